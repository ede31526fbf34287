"""What the report says: numbers with the right noun, what was asked for and not done, memory that is its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import Model

from ckconv.cli import render
from ckconv.cli.render import ProgressLine
from ckconv.cli.settings import Settings

Run = Callable[..., Any]


def test_a_type_that_changes_no_quantized_matrix_is_said_to(tmp_path: Path, fixtures: Path, ckconv: Run) -> None:
    source = fixtures / "kquants" / "llama64.Q4_K_M.gguf"
    note = "note: --dtype f32 leaves 16 tensors quantized: --dequantize decodes them"
    assert note in ckconv("convert", source, tmp_path / "a.gguf", "--dtype", "f32").out
    assert "leaves" not in ckconv("convert", source, tmp_path / "b.gguf").out
    assert "leaves" not in ckconv("convert", source, tmp_path / "c.gguf", "--dtype", "f32", "--dequantize").out


def test_one_is_singular_and_what_is_not_known_is_left_out(tmp_path: Path, ckconv: Run) -> None:
    source = Model(layers=1).write(tmp_path / "m.gguf")
    assert "(llama, 1 layer)" in ckconv("convert", source, tmp_path / "a.bump").out
    source = Model(arch="unheard-of").write(tmp_path / "u.gguf")
    assert "from u.gguf (unheard-of)\n" in ckconv("convert", source, tmp_path / "u2.gguf").out


def test_null_is_called_null(fixtures: Path, ckconv: Run) -> None:
    lines = ckconv("inspect", fixtures / "hf" / "llama-tied-bf16", "--metadata").out
    assert "NoneType" not in lines


def test_a_digest_is_shown_long_enough_to_compare(tmp_path: Path, fixtures: Path, ckconv: Run) -> None:
    source = fixtures / "gguf" / "llama-tied-bf16.auto.gguf"
    assert re.search(r"sha256 [0-9a-f]{12}\.\.\.[0-9a-f]{12} ", ckconv("convert", source, tmp_path / "a.gguf").out)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc for the peak")
@pytest.mark.needs("posix")
def test_peak_memory_is_that_of_this_process_and_not_of_its_caller(tmp_path: Path, fixtures: Path) -> None:
    source = fixtures / "gguf" / "llama-tied-bf16.auto.gguf"
    code = (
        "import os, sys\n"
        "held = bytearray(400 << 20)\n"
        "held[::4096] = bytes(len(held) // 4096)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'ckconv', *sys.argv[1:]])"
    )
    arguments = [sys.executable, "-c", code, "convert", str(source), str(tmp_path / "a.gguf"), "--json"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    found = re.search(r'"peak_memory": (\d+)', done.stdout)
    assert found is not None
    assert int(found[1]) < 200 << 20


def test_a_log_line_says_how_much_there_is_and_how_long_it_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 0.0, 20.0])
    monkeypatch.setattr(render.time, "monotonic", lambda: next(now))
    line = ProgressLine(Settings(progress="plain"), "out.gguf")
    line.begin("writing", 4_000_000_000)
    line(1_000_000_000, "blk.0.attn_q.weight")
    said = capsys.readouterr().err
    assert said == "ckconv: writing out.gguf 25%  1.0 GB of 4.0 GB  50.0 MB/s  60 s left  blk.0.attn_q.weight\n"
