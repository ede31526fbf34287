"""Standard output and standard error that are closed, full, or whose reader went away; and what else ends a run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import Model

from ckconv import cli as entry


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Model(hidden=256, ffn=512).write(tmp_path_factory.mktemp("model") / "m.gguf")  # more than a pipe holds


def shell(script: str, model: Path) -> tuple[int, list[str]]:
    """Status of the last command, and what is on stderr, of a script in which ``ckconv`` is the command line."""
    script = f'ckconv() {{ "{sys.executable}" -m ckconv "$@"; }}; set -o pipefail; {script}'
    found = subprocess.run(["bash", "-c", script, "bash", str(model)], capture_output=True, text=True)
    return found.returncode, found.stderr.splitlines()


READER_GONE = "ckconv: error[output.write]: stdout was closed by its reader before the model was complete"
FULL = "No space left on device"
NO_SPACE = f"ckconv: error[output.space]: stdout cannot be written: {FULL}"


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ("ckconv convert $1 - --to gguf | head -c 100 >/dev/null", 6, READER_GONE),
        ("ckconv convert $1 - --to bump --dequantize | head -c 100 >/dev/null", 6, READER_GONE),
        ("ckconv convert $1 - --to safetensors | true", 6, READER_GONE),
        (
            "ckconv convert $1 - --to gguf >&-",
            6,
            "ckconv: error[output.write]: stdout is closed; the model cannot be written to it",
        ),
        ("ckconv convert $1 - --to gguf >/dev/full", 6, NO_SPACE),
        ("ckconv convert $1 - --to bump >/dev/full", 6, NO_SPACE),
    ],
)
def test_a_model_that_nobody_takes_whole_is_not_written(model: Path, script: str, status: int, said: str) -> None:
    assert shell(script, model) == (status, [said])


@pytest.mark.parametrize(
    "script",
    [
        "ckconv inspect $1 | true",
        "ckconv inspect $1 --json | head -c 10 >/dev/null",
        "ckconv --help | true",
        "ckconv inspect --help | true",
        "ckconv convert $1 - --to gguf 2>/dev/full >/dev/null",
    ],
)
def test_a_listing_that_nobody_reads_to_its_end_is_no_failure(model: Path, script: str) -> None:
    assert shell(script, model) == (0, [])


@pytest.mark.parametrize("script", ["inspect $1", "inspect $1 --json", "--help", "formats", "diff $1 $1"])
def test_a_listing_is_lost_to_a_closed_stdout(model: Path, script: str) -> None:
    status, lines = shell(f"ckconv {script} >&-", model)
    assert (status, len(lines), "stdout cannot be written: Bad file descriptor" in lines[0]) == (6, 1, True)


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_debug_adds_a_traceback_and_nothing_else_changes(
    debug: list[str], model: Path, ckconv: Callable[..., Any]
) -> None:
    done = ckconv("inspect", "nothing", "--json", *debug)
    assert (done.code, json.loads(done.err.splitlines()[-1])["error"]["code"]) == (3, "input.missing")
    assert ("Traceback" in done.err) == bool(debug)
    done = ckconv("convert", model, "out", *debug)
    assert (done.code, done.err.splitlines()[-1]) == (2, "hint: --to gguf, --to hf or --to mlx names one")


@pytest.mark.needs("posix")
def test_a_listing_for_which_there_is_no_space_is_told_so(model: Path) -> None:
    assert shell("ckconv inspect $1 >/dev/full", model) == (6, [NO_SPACE])
    status, lines = shell("ckconv convert $1 $1.bump >/dev/full", model)
    assert (status, "error[output.space]" in lines[0], "the output is complete" in lines[0]) == (6, True, True)


@pytest.mark.parametrize("stderr", ["/dev/full", "&-"])
@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("ckconv inspect nothing", 3),
        ("ckconv inspect nothing --json", 3),
        ("ckconv inspect --nonsense", 2),
        ("ckconv convert $1 $1 --force", 6),
        ("ckconv", 2),
    ],
)
def test_an_error_that_cannot_be_said_keeps_its_status(model: Path, script: str, status: int, stderr: str) -> None:
    assert shell(f"{script} 2>{stderr}", model) == (status, [])


def test_too_little_memory_is_the_system_s_fault(
    model: Path, ckconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ckconv.formats.detect as detect

    def refusing(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(detect, "_open", refusing)
    found = ckconv("inspect", model)
    assert (found.code, found.out, found.err) == (6, "", "ckconv: error[system]: there is not enough memory\n")


@pytest.mark.parametrize(("flags", "said"), [([], False), (["-W", "default"], True)])
def test_warnings_of_python_are_for_who_asks_for_them(flags: list[str], said: bool) -> None:
    code = (
        "import warnings; from ckconv import cli as entry\n"
        "entry.run = lambda arguments: warnings.warn('division by zero', RuntimeWarning) or 0\n"
        "entry.main()"
    )
    found = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0
    assert ("division by zero" in found.stderr) == said
    assert said or found.stderr == ""
    assert entry.run.__module__ == "ckconv.cli"
