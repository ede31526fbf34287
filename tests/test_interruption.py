"""Ending a conversion in the middle: by signals, by kill -9, by a full disk. Nothing half-made keeps a real name."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES
from gguf_builder import pair

from ckconv.publish.files import LOCK

resource = pytest.importorskip("resource")  # of POSIX

OLD = b"what was there before"
LAYERS, HIDDEN, FFN, VOCAB = 4, 512, 1024, 8000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of 46 MB whose FP16 weights are a hole in the file: quick to make, and all of it has to be widened."""
    path = tmp_path_factory.mktemp("big") / "big.gguf"
    shapes = [("token_embd.weight", (HIDDEN, VOCAB))]
    for n in range(LAYERS):
        square, wide = (HIDDEN, HIDDEN), (HIDDEN, FFN)
        for name, shape in (
            ("attn_norm", (HIDDEN,)), ("attn_q", square), ("attn_k", square), ("attn_v", square),
            ("attn_output", square), ("ffn_norm", (HIDDEN,)), ("ffn_gate", wide), ("ffn_up", wide),
            ("ffn_down", (FFN, HIDDEN)),
        ):  # fmt: skip
            shapes.append((f"blk.{n}.{name}.weight", shape))
    shapes.append(("output_norm.weight", (HIDDEN,)))
    keys = [
        ("general.architecture", "str", "llama"),
        *((f"llama.{key}", "u32", value) for key, value in (
            ("block_count", LAYERS), ("context_length", 64), ("embedding_length", HIDDEN), ("feed_forward_length", FFN),
            ("attention.head_count", 8), ("attention.head_count_kv", 8),
        )),
        ("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5),
    ]  # fmt: skip
    header = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys)) + b"".join(pair(*key) for key in keys)
    at = 0
    for name, dims in shapes:
        text = name.encode()
        header += struct.pack("<Q", len(text)) + text + struct.pack("<I", len(dims))
        header += struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", 1, at)
        size = 2
        for dim in dims:
            size *= dim
        at += -(-size // 32) * 32
    header += bytes(-len(header) % 32)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + at)
    return path


def start(source: Path, out: Path, *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ckconv", "convert", str(source), str(out), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def temporary(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith(".")]


def wait_for_work(child: subprocess.Popen[bytes], folder: Path) -> None:
    """Until the temporary file is there, or the work is done."""
    while child.poll() is None and not temporary(folder):
        time.sleep(0.001)


def finished(child: subprocess.Popen[bytes]) -> tuple[int, str]:
    try:
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()  # nothing, where it has ended
    return child.returncode, err.decode()


#: Shares of the time that the work takes on this machine.
MOMENTS = [0.0, 0.03, 0.08, 0.15, 0.3, 0.5, 0.8, 1.2]


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[float, bytes]:
    """Seconds of work that nothing interrupts, and the SHA-256 of what it makes."""
    folder = tmp_path_factory.mktemp("whole")
    child = start(source, folder / "m.bump")
    wait_for_work(child, folder)
    began = time.monotonic()
    assert finished(child)[0] == 0
    return time.monotonic() - began, hashlib.sha256((folder / "m.bump").read_bytes()).digest()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_at_many_moments(name: str, source: Path, whole: tuple[float, bytes], tmp_path: Path) -> None:
    number = getattr(signal, name)
    duration, digest = whole
    rng = random.Random(number)
    hit = 0
    for turn, moment in enumerate(MOMENTS):
        folder = tmp_path / str(turn)
        folder.mkdir()
        out = folder / "m.bump"
        replacing = bool(turn % 2)
        if replacing:
            out.write_bytes(OLD)
        child = start(source, out, *(["--force"] if replacing else []))
        wait_for_work(child, folder)
        time.sleep(duration * moment * (1 + rng.random() / 4))
        child.send_signal(number)
        code, err = finished(child)
        assert not temporary(folder)
        assert "Traceback" not in err
        if code == 0 or "the output was complete" in err:
            assert hashlib.sha256(out.read_bytes()).digest() == digest
            continue
        hit += 1
        assert code == 128 + number
        assert "error[interrupted]" in err
        assert [path.name for path in folder.iterdir()] == (["m.bump"] if replacing else [])
        assert ("what was there before stayed" in err) <= replacing
        if replacing:
            assert out.read_bytes() == OLD
    assert hit >= 2, "the moments must hit the middle of the work"


def test_impatient_second_signal_does_not_break_the_cleaning_up(source: Path, tmp_path: Path) -> None:
    child = start(source, tmp_path / "m.bump")
    wait_for_work(child, tmp_path)
    for _ in range(5):
        child.send_signal(signal.SIGINT)
        time.sleep(0.003)
    code, err = finished(child)
    assert code == 130
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_directory_target_is_all_or_nothing(source: Path, tmp_path: Path) -> None:
    for moment in (0.0, 0.05, 0.15):
        child = start(source, Path(f"{tmp_path}/out"), "--to", "bump")
        child.kill()
        finished(child)
        child = start(source, tmp_path / "out.bump")
        wait_for_work(child, tmp_path)
        time.sleep(moment)
        child.terminate()
        code, _ = finished(child)
        assert code in (0, 143)
        for path in tmp_path.iterdir():
            path.unlink()
        command = [sys.executable, "-m", "ckconv", "convert", str(source), f"{tmp_path}/out/", "--to", "bump"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            wait_for_work(child, tmp_path)
            time.sleep(moment)
            child.terminate()
            code, _ = finished(child)
        if code == 143:
            assert list(tmp_path.iterdir()) == []
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_killed_outright_only_a_temporary_name_is_left(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.bump"
    out.write_bytes(OLD)
    for moment in (0.02, 0.2):
        child = start(source, out, "--force")
        wait_for_work(child, tmp_path)
        time.sleep(moment)
        child.kill()
        code, _ = finished(child)
        if code == -signal.SIGKILL:
            assert out.read_bytes() == OLD
            left = [path.name for path in tmp_path.iterdir() if path != out and path.name != "config.json"]
            assert all(name == LOCK or (name.startswith(".") and name.endswith(".tmp")) for name in left), left
    assert finished(start(source, out, "--force"))[0] == 0, "what was left behind is in nobody's way"


def test_ignored_signal_stays_ignored(source: Path, tmp_path: Path) -> None:
    """As under nohup."""
    command = [sys.executable, "-m", "ckconv", "-q", "convert", str(source), str(tmp_path / "m.bump")]
    with subprocess.Popen(
        command, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN), stderr=subprocess.PIPE
    ) as child:
        wait_for_work(child, tmp_path)
        child.send_signal(signal.SIGHUP)
        assert finished(child) == (0, "")


def test_signal_while_nobody_reads_the_pipe(source: Path) -> None:
    """The writing thread waits for a reader that never comes; the signal must end it all the same."""
    read, write = os.pipe()
    command = [sys.executable, "-m", "ckconv", "convert", str(source), "-", "--to", "bump"]
    with subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE) as child:
        os.close(write)
        assert os.read(read, 8) == b"BUMPWGT3"  # both passes begin before a byte comes out
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        try:
            code, err = finished(child)
        finally:
            child.kill()
            os.close(read)
    assert code == 130
    assert "Traceback" not in err


# --- no room


def limited(nbytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


@pytest.mark.parametrize("limit", [0, 100, 1 << 20, 30 << 20])
@pytest.mark.parametrize("replacing", [False, True])
def test_file_size_limit(limit: int, replacing: bool, source: Path, tmp_path: Path) -> None:
    """EFBIG, with the SIGXFSZ that comes with it."""
    out = tmp_path / "m.bump"
    if replacing:
        out.write_bytes(OLD)
    command = [sys.executable, "-m", "ckconv", "convert", str(source), str(out), *(["-f"] if replacing else [])]
    done = subprocess.run(command, preexec_fn=lambda: limited(limit), capture_output=True)
    assert done.returncode == 6
    assert b"error[output.space]" in done.stderr
    assert b"File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == (["m.bump"] if replacing else [])
    if replacing:
        assert out.read_bytes() == OLD


@pytest.mark.parametrize("flags", [[], ["--resume"]])
def test_of_several_files_the_one_is_named_that_may_not_be_so_large(flags: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ckconv", "convert", str(FIXTURES / "hf/llama-tied-bf16"), f"{tmp_path}/out/"]
    command += ["--to", "safetensors", "--dtype", "f32", "--max-shard-size", "100KB", *flags]
    done = subprocess.run(command, preexec_fn=lambda: limited(40 << 10), capture_output=True)
    assert b"output.space]: %s/out/model-00001-of-0000" % bytes(tmp_path) in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", [[], ["--resume"]])
@pytest.mark.parametrize(("at", "name"), [("m.gguf", "m.gguf"), ("out/", "out/model-00001-of-0000")])
def test_a_disk_that_fills_up_is_said_of_the_output(
    at: str, name: str, flags: list[str], ckconv: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ckconv.conversion.write.write_some", full)
    shards = ["--to", "safetensors", "--max-shard-size", "100KB"] if at.endswith("/") else []
    done = ckconv("convert", FIXTURES / "hf/llama-tied-bf16", f"{tmp_path}/{at}", "--dtype", "f32", *shards, *flags)
    assert (done.code, f"error[output.space]: {tmp_path}/{name}" in done.err) == (6, True), done.err
    assert list(tmp_path.iterdir()) == []


def test_who_replaces_an_output_is_told_that_it_stayed(
    ckconv: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "m.gguf"
    out.write_bytes(OLD)

    def interrupted(_fd: int, data: memoryview, _offset: int) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return len(data)

    monkeypatch.setattr("ckconv.conversion.write.write_some", interrupted)
    done = ckconv("convert", FIXTURES / "hf/llama-tied-bf16", out, "--force")
    assert (done.code, out.read_bytes()) == (130, OLD)
    assert "interrupted; nothing was left behind, and what was there before stayed" in done.err


def test_file_size_limit_on_a_side_file_only(tmp_path: Path) -> None:
    from models import Model

    small = Model(layers=1, hidden=16, ffn=16, heads=1, kv_heads=1, vocab=1, context=1).write(tmp_path / "m.gguf")
    command = [sys.executable, "-m", "ckconv", "convert", str(small), f"{tmp_path}/out/", "--to", "bump"]
    size = 8000
    for limit in (size, size // 2, 300, 100):
        done = subprocess.run(command, preexec_fn=lambda limit=limit: limited(limit), capture_output=True)
        assert done.returncode in (0, 6)
        if done.returncode == 6:
            assert not (tmp_path / "out").exists()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf"]


@contextlib.contextmanager
def tiny_disk(place: Path, size: str) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.needs("mount")
def test_disk_that_is_too_small_is_known_before(source: Path, tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "8M") as disk:
        done = subprocess.run(
            [sys.executable, "-m", "ckconv", "convert", str(source), str(disk / "m.bump")], capture_output=True
        )
        assert done.returncode == 6
        assert b"error[output.space]" in done.stderr
        assert b" are free" in done.stderr
        assert list(disk.iterdir()) == []


@pytest.mark.needs("mount")
def test_disk_that_fills_up_meanwhile(source: Path, tmp_path: Path) -> None:
    """Into a pipe's end that is a file on a full disk, so that nothing could be allocated before."""
    with tiny_disk(tmp_path / "disk", "8M") as disk:
        with (disk / "m.bump").open("wb") as out:
            command = [sys.executable, "-m", "ckconv", "convert", str(source), "-", "--to", "bump"]
            done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE)
        assert done.returncode == 6
        assert b"error[output.space]" in done.stderr
        assert b"No space left on device" in done.stderr


def test_result_is_whole_when_nothing_interrupts(source: Path, tmp_path: Path) -> None:
    assert finished(start(source, tmp_path / "m.bump"))[0] == 0
    data = (tmp_path / "m.bump").read_bytes()
    assert data[0x40:0x60] == hashlib.sha256(data[0x80:]).digest()
