"""Every fixture x target x options gives the bytes, or the refusal, and the messages of tests/golden.tsv.

And ``verify OUT SRC`` is right about every output.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import FIXTURES, kept_handlers

sys.path.insert(0, str(FIXTURES.parent / "scripts"))
import golden

NAMES = {str(source.relative_to(FIXTURES)): source for source in golden.sources()}

#: Options that show in the output, so that nobody has to repeat them.
SHOWN = {
    "names": ("--to", "safetensors", "--names", "gguf"),
    "f32 bump": ("--to", "bump", "--dtype", "f32"),
    "f16": ("--to", "gguf", "--dtype", "f16", "--allow-lossy"),
    "decoded and untied": ("--to", "mlx", "--dequantize", "--untie"),
    "decoded in part": ("--to", "safetensors", "--decode", "*ffn*"),
}


def verify(source: Path, out: Path, options: tuple[str, ...]) -> None:
    """What says nothing of itself in an output is asked for again."""
    opened = next((path for path in sorted(out.iterdir()) if path.suffix == ".gguf"), out)
    again = [
        word for flag in ("--quantize", "--base") if flag in options for word in options[options.index(flag) :][:2]
    ]
    status, said = golden.called(["verify", str(opened), str(source), *again])
    assert status == 0, (options, said)


@pytest.mark.parametrize("name", NAMES)
def test_every_run_gives_what_the_golden_file_says_and_verifies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    with kept_handlers():
        assert golden.differences(f"{name}\t", verify) == []


@pytest.mark.parametrize("name", NAMES)
def test_what_other_options_make_verifies(name: str, tmp_path: Path) -> None:
    source = NAMES[name]
    recorded = golden.QUANTIZED.get(source.parent.name, golden.RUNS)
    more = [options for run, options in golden.RUNS.items() if run not in recorded]
    for number, options in enumerate((*SHOWN.values(), *more)):
        out, options = tmp_path / str(number) / "out", (*options, *golden.base_of(source))
        out.parent.mkdir()
        with kept_handlers():
            status = golden.called(["convert", str(source), f"{out}/", *options, "-q", "--no-verify"])[0]
            assert status in (0, 2, 3, 4)
            if status == 0:
                verify(source, out, options)


def test_every_line_of_the_golden_file_is_of_a_fixture() -> None:
    assert {line.partition("\t")[0] for line in golden.GOLDEN.read_text().splitlines()} == {*NAMES}
