"""The pipeline: what goes in comes out, hashed; and whatever fails, no thread and no wait is left behind."""

from __future__ import annotations

import _thread
import hashlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckconv.engine import store
from ckconv.engine.pipeline import SMALLEST_HOLE, Pipeline
from ckconv.errors import InputError, OutputError

SOURCE = bytes(range(256)) * 1024


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = _thread._count()
    yield
    until = time.monotonic() + 2  # a thread that was told to end may need a moment
    while _thread._count() > before and time.monotonic() < until:
        time.sleep(0.001)
    assert _thread._count() == before


@pytest.fixture
def out(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def content(fd: int) -> bytes:
    return os.pread(fd, 1 << 26, 0)


pieces = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.binary(max_size=700)),
        st.tuples(st.just("copy"), st.integers(0, 5000), st.integers(0, 9000)),
        st.tuples(st.just("zeros"), st.integers(0, 300)),
        st.tuples(st.just("zeros"), st.integers(SMALLEST_HOLE - 1, SMALLEST_HOLE + 5000)),
        st.tuples(st.just("fill"), st.binary(max_size=700)),
    ),
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(pieces, st.integers(1, 4), st.sampled_from([500, 4096, 1 << 16]), st.integers(0, 200), st.booleans())
def test_any_sequence_is_written_in_order_and_into_a_pipe_hashed(
    sequence: list[tuple[str, object]], buffers: int, buffer_bytes: int, offset: int, pipe: bool
) -> None:
    expected = b""
    seen: list[int] = []
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as target:
        source.write(SOURCE)
        source.flush()
        if pipe:
            os.lseek(target.fileno(), offset, os.SEEK_SET)
        with Pipeline(
            target.fileno(),
            offset=offset,
            seekable=not pipe,
            progress=seen.append,
            buffers=buffers,
            buffer_bytes=buffer_bytes,
        ) as pipeline:
            for kind, *operands in sequence:
                if kind == "put":
                    pipeline.put(operands[0])  # type: ignore[arg-type]
                    expected += operands[0]  # type: ignore[operator]
                elif kind == "copy":
                    start, nbytes = operands
                    pipeline.copy(source.fileno(), start, nbytes, path=Path("source"))  # type: ignore[arg-type]
                    expected += SOURCE[start : start + nbytes]  # type: ignore[operator]
                elif kind == "zeros":
                    pipeline.zeros(operands[0])  # type: ignore[arg-type]
                    expected += bytes(operands[0])  # type: ignore[call-overload]
                else:
                    rest = operands[0]
                    expected += rest  # type: ignore[operator]
                    while rest:
                        free = pipeline.writable()
                        taken = min(len(free), len(rest))  # type: ignore[arg-type]
                        free[:taken] = rest[:taken]  # type: ignore[index]
                        pipeline.advance(taken)
                        rest = rest[taken:]  # type: ignore[index]
                assert pipeline.position == len(expected)
            digest = pipeline.finish()
        assert digest == (hashlib.sha256(expected).digest() if pipe else b"")
        assert sum(seen) == len(expected)
        assert content(target.fileno())[offset:] == expected
        assert content(target.fileno())[:offset] == bytes(min(offset, os.fstat(target.fileno()).st_size))


def test_only_hashing_needs_no_file() -> None:
    with Pipeline(None) as pipeline:
        pipeline.put(b"abc")
        pipeline.zeros(3 << 20)
        assert pipeline.finish() == hashlib.sha256(b"abc" + bytes(3 << 20)).digest()


@pytest.mark.parametrize("dtype", ["<f4", "<f2", "u1", "<u8"])
@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (0,), ()])
def test_arrays_are_taken_as_their_bytes(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    with Pipeline(None) as pipeline:
        pipeline.put(array)
        assert pipeline.finish() == hashlib.sha256(array.tobytes()).digest()


def test_the_caller_may_reuse_its_buffer(out: int) -> None:
    data = bytearray(b"a" * 100)
    with Pipeline(out, buffer_bytes=16) as pipeline:
        for letter in b"abc":
            data[:] = bytes([letter]) * 100
            pipeline.put(data)
        pipeline.finish()
    assert content(out) == b"a" * 100 + b"b" * 100 + b"c" * 100


def test_long_zeros_take_no_space(out: int) -> None:
    with Pipeline(out) as pipeline:
        pipeline.put(b"head")
        pipeline.zeros(64 << 20)
        pipeline.finish()
    assert os.fstat(out).st_size == 4 + (64 << 20)
    assert os.fstat(out).st_blocks * 512 < 1 << 20


def test_partial_writes_are_continued(out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(store.os, "pwrite", lambda fd, data, at: write(fd, data[:7], at))
    with Pipeline(out, offset=3, buffer_bytes=100) as pipeline:
        pipeline.put(SOURCE[:1000])
        pipeline.finish()
    assert content(out) == bytes(3) + SOURCE[:1000]


def test_a_source_that_ends_early_is_an_error_with_both_numbers(tmp_path: Path, out: int) -> None:
    source = tmp_path / "in.gguf"
    source.write_bytes(bytes(1000))
    fd = os.open(source, os.O_RDONLY)
    with pytest.raises(OutputError, match="ends at byte 1,000, 400 bytes early") as caught, Pipeline(out) as pipeline:
        pipeline.copy(fd, 900, 500, path=source, tensor="output.weight")
    os.close(fd)
    error = caught.value
    assert (error.code, error.exit_code) == ("input.changed", 6)
    assert (error.path, error.tensor, error.offset) == (str(source), "output.weight", 1000)


def test_a_source_that_cannot_be_read_is_an_input_error(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(InputError, match="cannot be read at byte 5: Is a directory") as caught, Pipeline(None) as pipe:
        pipe.copy(fd, 5, 10, path=tmp_path)
    os.close(fd)
    assert (caught.value.code, caught.value.exit_code) == ("input.unreadable", 3)


def test_a_failing_write_surfaces_in_the_caller_long_before_the_end(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"")
    read_only = os.open(tmp_path / "out", os.O_RDONLY)
    with Pipeline(read_only, buffer_bytes=1000) as pipeline:
        with pytest.raises(OutputError, match="after 0 bytes: Bad file descriptor") as caught:
            pipeline.put(SOURCE[:200_000])
        assert pipeline.position < 100_000
    os.close(read_only)
    assert caught.value.code == "output.write"


@pytest.mark.parametrize("nbytes", [10, 100_000])
def test_a_failing_write_of_the_last_buffer_surfaces_in_finish(tmp_path: Path, nbytes: int) -> None:
    (tmp_path / "out").write_bytes(b"")
    read_only = os.open(tmp_path / "out", os.O_RDONLY)
    with Pipeline(read_only) as pipeline:
        pipeline.put(bytes(nbytes))
        with pytest.raises(OutputError, match="Bad file descriptor"):
            pipeline.finish()
    os.close(read_only)


def test_a_full_disk_is_told_with_the_bytes_written(tmp_path: Path) -> None:
    """A limit on the file's size stands for the disk: the same path, and it needs no mount."""
    code = f"""
import os
from ckconv.errors import OutputError
from ckconv.engine.pipeline import Pipeline
fd = os.open({str(tmp_path / "out")!r}, os.O_RDWR | os.O_CREAT)
try:
    with Pipeline(fd, offset=100) as pipeline:
        for _ in range(64):
            pipeline.put(bytes(range(256)) * 4096)
except OutputError as error:
    print(error.code, error.exit_code, error.message)
"""
    limit = 5_000_100
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert result.stdout == "output.space 6 writing failed after 5,000,000 bytes: File too large\n"


def test_a_closed_pipe_stays_a_broken_pipe() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with pytest.raises(BrokenPipeError), Pipeline(write_end, seekable=False) as pipeline:
        pipeline.put(bytes(4 << 20))
    os.close(write_end)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_pipe_gets_every_byte_however_slowly_it_is_read(blocking: bool) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, blocking)
    got = hashlib.sha256()

    def read() -> None:
        while data := os.read(read_end, 50_000):
            got.update(data)
            time.sleep(0.0005)

    reader = threading.Thread(target=read)
    reader.start()
    with Pipeline(write_end, seekable=False) as pipeline:
        pipeline.put(SOURCE * 10)
        pipeline.zeros(1 << 20)
        digest = pipeline.finish()
    os.close(write_end)
    reader.join()
    os.close(read_end)
    assert got.digest() == digest == hashlib.sha256(SOURCE * 10 + bytes(1 << 20)).digest()


class Alarm(Exception):
    pass


@pytest.fixture
def alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_a_pipe_that_nobody_reads_can_be_interrupted() -> None:
    read_end, write_end = os.pipe()
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(Alarm), Pipeline(write_end, seekable=False) as pipeline:
        pipeline.put(bytes(4 << 20))
    os.close(read_end)
    os.close(write_end)


@pytest.mark.usefixtures("alarm")
@pytest.mark.needs("posix")
def test_after_an_interrupted_finish_nothing_is_written_any_more(out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor is closed next, and its number may soon mean another file."""
    inside = threading.Event()
    write = os.pwrite

    def slow(fd: int, data: memoryview, at: int) -> int:
        inside.set()
        try:
            time.sleep(0.3)
        finally:
            inside.clear()
        return write(fd, data, at)

    monkeypatch.setattr(store.os, "pwrite", slow)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    pipeline = Pipeline(out)
    pipeline.put(b"x")
    with pytest.raises(Alarm), pipeline:
        pipeline.finish()
    assert not inside.is_set()


@pytest.mark.usefixtures("alarm")
def test_an_interruption_at_any_moment_ends_the_threads(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(SOURCE * 64)
    fd = os.open(source, os.O_RDONLY)
    rung = 0
    for step in range(120):
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + step * 0.0002)
        try:
            with Pipeline(None, buffer_bytes=1 << 16) as pipeline:
                pipeline.zeros(4 << 20)
                pipeline.copy(fd, 0, len(SOURCE) * 64, path=source)
                pipeline.finish()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            rung += 1
    os.close(fd)
    assert rung > 20


def test_abort_is_idempotent_and_prompt(out: int) -> None:
    pipeline = Pipeline(out)
    pipeline.zeros(1 << 40)  # an hour of hashing
    started = time.monotonic()
    pipeline.abort()
    pipeline.abort()
    assert time.monotonic() - started < 2


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_memory_is_the_ring_whatever_the_length() -> None:
    code = """
import sys
from ckconv.engine.pipeline import Pipeline
data = bytes(1 << 20)
with Pipeline(None) as pipeline:
    for _ in range(200):
        pipeline.put(data)
    pipeline.finish()
assert "numpy" not in sys.modules
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 32 << 10  # KiB; the interpreter with its imports takes half of it
