"""Every fixture x target x options gives the bytes, or the refusal, and the messages of tests/golden.tsv.

And ``verify OUT SRC`` is right about every output.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from conftest import FIXTURES, kept_handlers
from products import shown

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


def kinds_of(line: str) -> set[tuple[str, ...]]:
    """What a line shows: what is said of a run of a folder, and that its source becomes something of a target."""
    source, run, status, outcome, *told = line.split("\t")
    folder, target = source.partition("/")[0], run.partition(" ")[0]
    said = re.sub(r"=[0-9a-f]{16}|[\d.,]+", "", "|".join((outcome, *told)).replace(source, ""))
    made = {(source, target)} if status == "0" else set()
    return {(folder, run, status, said), *made}


def called_after(name: str) -> set[tuple[str, str]]:
    """The family of a fixture, or the program that quantized it."""
    folder, _, called = name.partition("/")
    return {(folder, re.split(r"[-.]", called)[0])}


@pytest.mark.parametrize(
    "line", shown(golden.GOLDEN.read_text().splitlines(), kinds_of, lambda line: "-".join(line.split("\t")[:2]))
)
def test_every_run_gives_what_the_golden_file_says_and_verifies(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    source, run, *_ = line.split("\t")
    with kept_handlers():
        assert golden.made(f"{source}\t{run}\t", verify) == [line]


@pytest.mark.parametrize("name", shown(NAMES, called_after))
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


def test_the_golden_file_has_every_run_of_every_fixture() -> None:
    runs = [tuple(line.split("\t")[:2]) for line in golden.GOLDEN.read_text().splitlines()]
    assert runs == [
        (name, run) for name, source in NAMES.items() for run in golden.QUANTIZED.get(source.parent.name, golden.RUNS)
    ]
