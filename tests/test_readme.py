"""The README is true: its examples print what it says, and every verb, flag and exit status stands in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ckconv import errors
from ckconv.cli import VERBS, main

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()


def test_examples_print_what_they_say() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/readme.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_opens_with_two_commands() -> None:
    block = re.search(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    assert block is not None
    commands = block[1].splitlines()
    assert len(commands) == 2
    assert "ckconv convert" in commands[0]
    assert "pytest" in commands[1]


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_is_described(verb: str) -> None:
    command = main.get_command(click.Context(main), verb)
    assert command is not None
    flags = [flag for parameter in command.params if isinstance(parameter, click.Option) for flag in parameter.opts]
    assert flags
    missing = [flag for flag in flags if f"`{flag}" not in TEXT and f", {flag}" not in TEXT]
    assert not missing
    assert f"ckconv {verb}" in TEXT


def test_every_exit_status_is_described() -> None:
    classes = [errors.UsageError, errors.InputError, errors.UnsupportedError, errors.VerifyError, errors.OutputError]
    for number in [0, *(kind.exit_code for kind in classes), errors.CkconvError.exit_code, "130, 143"]:
        assert re.search(rf"^\| {number}", TEXT, re.MULTILINE), number


def test_every_error_code_is_described() -> None:
    """A code is a promise: scripts branch on it."""
    source = "".join(path.read_text() for path in (ROOT / "ckconv").rglob("*.py"))
    groups = "adapter|bump|gguf|hf|index|input|mlx|model|output|plan|record|repack|st|template|tokenizer|usage|verify"
    pattern = rf'"((?:{groups})\.[a-z][a-z-]+)"'
    names = {
        "adapter.gguf",
        "adapter.type",
        "model.gguf",
        "model.safetensors",
        "tokenizer.tiktoken",
        "output.bias",
        "output.weight",
    }
    codes = set(re.findall(pattern, source)) - names
    assert len(codes) > 40
    assert not sorted(code for code in codes if f"`{code}`" not in TEXT)
