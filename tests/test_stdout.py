"""A model on stdout: every byte, to a reader however slow; or a sentence, and nothing that waits for ever."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest
from conftest import FIXTURES
from outputs import contents

ROOT = Path(__file__).parent.parent

#: Target -> source below the fixtures, and flags. A header holds a digest, values may be lost, and between tensors are
#: zeros and entries that are none.
RUNS = {
    "bump 3": ("gguf/llama-tied-bf16.auto.gguf", ("--to", "bump", "--bump-version", "3", "--no-source-record")),
    "bump 5": ("gguf/qwen3-tied-bf16.auto.gguf", ("--to", "bump", "--bump-version", "5", "--no-source-record")),
    "gguf": ("hf/gpt2-hub-f32", ("--to", "gguf")),
    "gguf, decoded": (
        "kquants/llama64.Q4_K_M.gguf",
        ("--to", "gguf", "--dequantize", "--dtype", "f16", "--allow-lossy"),
    ),
    "safetensors": ("gguf/gemma3-text-bf16.auto.gguf", ("--to", "safetensors")),
}


def command(source: str, target: str, *flags: str) -> list[str]:
    return [sys.executable, "-m", "ckconv", "convert", str(FIXTURES / source), target, *flags, "-q"]


@pytest.mark.parametrize("what", RUNS)
def test_the_bytes_are_those_of_the_file(what: str, tmp_path: Path) -> None:
    source, flags = RUNS[what]
    file = tmp_path / f"model.{flags[1]}"
    assert subprocess.run(command(source, str(file), *flags), cwd=ROOT, check=False).returncode == 0
    piped = subprocess.run(command(source, "-", *flags), cwd=ROOT, capture_output=True, check=False)
    assert (piped.returncode, piped.stderr) == (0, b"")
    assert piped.stdout == file.read_bytes()


#: Target -> source, and flags; what is a directory is an archive by any name.
ARCHIVES = {
    "mlx": ("kquants/llama64.Q4_K_M.gguf", ("--dequantize", "--max-shard-size", "100KB")),
    "hf": ("gguf/llama-tied-bf16.auto.gguf", ()),
    "bump": ("gguf/qwen3-tied-bf16.auto.gguf", ("--bump-version", "5", "--no-source-record")),
    "gguf": ("hf/gpt2-hub-f32", ("--max-shard-size", "100KB")),
    "peft": ("lora/llama-r4-attn-mlp", ()),
}


@pytest.mark.parametrize("target", ARCHIVES)
def test_an_archive_has_every_file_of_the_directory(target: str, tmp_path: Path) -> None:
    source, flags = ARCHIVES[target]
    flags = ("--to", target, *flags)
    assert subprocess.run(command(source, f"{tmp_path}/made/", *flags), cwd=ROOT, check=False).returncode == 0
    for name in ("tar:-", "-")[: 1 + (target in ("mlx", "hf", "peft"))]:
        piped = subprocess.run(command(source, name, *flags), cwd=ROOT, capture_output=True, check=False)
        assert (piped.returncode, piped.stderr) == (0, b"")
        with tarfile.open(fileobj=io.BytesIO(piped.stdout)) as archive:
            found = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
        wanted = contents(tmp_path / "made")
        assert found.keys() == wanted.keys()
        assert found == wanted


def test_what_a_lone_file_is_without_is_said() -> None:
    source, flags = RUNS["safetensors"]
    loud = command(source, "-", *flags)[:-1]
    done = subprocess.run(loud, cwd=ROOT, capture_output=True, check=False)
    assert b"note: not written: README.md, config.json, " in done.stderr
    assert b"tar:- is a tar archive with them" in done.stderr


@pytest.mark.needs("posix")
@pytest.mark.parametrize("blocking", [True, False])
def test_a_pipe_gets_every_byte_however_slowly_it_is_read(blocking: bool, tmp_path: Path) -> None:
    """Also one that somebody made non-blocking, whom it is shared with."""
    source, flags = RUNS["gguf"]
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, blocking)
    got = bytearray()

    def read() -> None:
        while data := os.read(read_end, 5_000):
            got.extend(data)
            time.sleep(0.0005)

    reader = threading.Thread(target=read)
    reader.start()
    done = subprocess.run(command(source, "-", *flags), cwd=ROOT, stdout=write_end, check=False)
    os.close(write_end)
    reader.join()
    os.close(read_end)
    subprocess.run(command(source, f"{tmp_path}/m.gguf", *flags), cwd=ROOT, check=True)
    assert (done.returncode, bytes(got)) == (0, (tmp_path / "m.gguf").read_bytes())


@pytest.mark.needs("posix")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_waits_for_a_reader_that_does_not_read_can_be_interrupted(number: int, status: int) -> None:
    source, flags = RUNS["gguf"]
    with subprocess.Popen(
        command(source, "-", *flags), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.read(1)
        time.sleep(0.3)  # the pipe is full
        child.send_signal(number)
        assert child.wait(30) == status
        assert child.stderr is not None
        assert b"error[interrupted]: interrupted; nothing was left behind" in child.stderr.read()
