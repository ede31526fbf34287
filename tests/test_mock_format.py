"""A format is a folder and a row: one that exists in the tests only goes through every command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FIXTURES, Result

HERE = Path(__file__).parent
LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"

#: The command line with the row plugged in, before anything has read the table.
COMMAND = """
import sys
import mock_format
mock_format.plug_in()
from ckconv.cli import run
sys.exit(run(sys.argv[1:]))
"""


def ckconv(*arguments: object) -> Result:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}"},
        check=False,
    )
    assert "Traceback" not in done.stderr
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A mock file of a llama, Q and K rows of which a GGUF interleaves."""
    path = tmp_path / "out.mock"
    result = ckconv("convert", LLAMA, path)
    assert result.code == 0, result.err
    assert "verified 20/20" in result.out
    return path


def test_it_is_read_and_written_back(made: Path, tmp_path: Path) -> None:
    assert ckconv("verify", made, LLAMA).code == 0
    assert ckconv("diff", made, LLAMA, "--weights").code == 0
    assert ckconv("diff", made, made).code == 0
    document = ckconv("inspect", "--json", "--hash", made).json
    assert (document["format"], len(document["tensors"])) == ("mock", 20)
    assert document["hash"] == ckconv("inspect", "--json", "--hash", LLAMA).json["hash"]
    for to in ("gguf", "safetensors", "mlx", "bump"):
        result = ckconv("convert", made, f"{tmp_path}/{to}/", "--to", to, "--no-source-record")
        assert result.code == 0, (to, result.err)
        assert ckconv("diff", tmp_path / to, LLAMA, "--weights").code == 0


def test_a_flipped_bit_is_found(made: Path) -> None:
    data = bytearray(made.read_bytes())
    data[-5] ^= 1
    made.write_bytes(data)

    result = ckconv("verify", made, LLAMA)

    assert (result.code, "error[verify.tensor]" in result.err) == (5, True)


def test_options_have_a_say_only_where_its_row_says_so(tmp_path: Path) -> None:
    path = tmp_path / "out.mock"
    result = ckconv("convert", LLAMA, path, "--context", "64")
    assert (result.code, "--context is for gguf, safetensors, mlx and bump, and the output is mock" in result.err) == (
        2,
        True,
    )

    assert ckconv("convert", LLAMA, path, "--set-meta", "note=seen").code == 0
    assert ckconv("verify", path, LLAMA).code == 5
    assert ckconv("verify", path, LLAMA, "--set-meta", "note=seen").code == 0


def test_what_it_cannot_hold_is_refused(tmp_path: Path) -> None:
    result = ckconv("convert", FIXTURES / "kquants" / "llama64.Q4_K_M.gguf", tmp_path / "out.mock")

    assert (result.code, "mock cannot hold this model: mock holds no blocks" in result.err) == (4, True)


def test_it_is_listed_and_known_by_content(made: Path) -> None:
    assert "mock" in ckconv("formats").out.splitlines()[1].split()
    assert "mock" in json.loads(ckconv("formats", "--json").out)["reads"]
    assert "|mock|" in "".join(ckconv("convert", "--help").out.split())
    other = made.rename(made.with_name("no-ending"))
    assert ckconv("inspect", other, "--json").json["format"] == "mock"
    directory = made.parent / "directory"
    directory.mkdir()
    other.rename(directory / "model.mock")
    assert ckconv("inspect", directory, "--json").json["format"] == "mock"
