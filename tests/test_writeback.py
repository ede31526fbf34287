"""Bytes go to the disk while more are written; what the disk says of them is not lost."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import FIXTURES
from test_stream import no_thread_left  # noqa: F401 - for every test

import ckconv
from ckconv.engine import pipeline as writing
from ckconv.engine import writeback
from ckconv.engine.pipeline import Pipeline
from ckconv.engine.writeback import MOST, Disk, WriteBehind
from ckconv.errors import OutputError
from ckconv.options import Options

STEP = 1 << 12


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback, "STEP", STEP)
    monkeypatch.setattr(writing, "TOLD_AT_ONCE", 1)


@pytest.fixture
def out(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes that the file had when it was synced."""
    sizes: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: sizes.append(os.fstat(fd).st_size))
    return sizes


@pytest.mark.needs("posix")
def test_large_files_are_synced_while_they_grow(out: int, synced: list[int]) -> None:
    with Pipeline(out, buffers=2, buffer_bytes=STEP // 4, followers=[WriteBehind(out)]) as pipeline:
        for _ in range(100):
            pipeline.put(bytes(STEP))
        pipeline.finish()

    assert synced
    assert all(STEP <= size <= 100 * STEP for size in synced)
    assert synced == sorted(synced)


def test_small_files_need_no_thread(out: int, synced: list[int]) -> None:
    with Pipeline(out, buffer_bytes=STEP // 4, followers=[WriteBehind(out)]) as pipeline:
        pipeline.put(bytes(STEP - 1))
        pipeline.finish()

    assert not synced


@pytest.mark.needs("posix")
def test_a_slow_disk_is_not_asked_again_before_it_is_done(out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, calls = threading.Event(), []

    def slow(fd: int) -> None:
        calls.append(fd)
        assert ready.wait(10)

    monkeypatch.setattr(os, "fdatasync", slow)
    behind = WriteBehind(out)
    for _ in range(50):
        behind.wrote(STEP)
    ready.set()
    behind.finish()

    assert len(calls) == 1


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EIO, "output.write"), (errno.ENOSPC, "output.space"), (errno.EDQUOT, "output.space")]
)
@pytest.mark.needs("posix")
def test_a_failure_is_the_outputs(out: int, monkeypatch: pytest.MonkeyPatch, number: int, code: str) -> None:
    def fail(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fdatasync", fail)
    with Pipeline(out, followers=[WriteBehind(out)]) as pipeline:
        pipeline.put(bytes(STEP))
        with pytest.raises(OutputError, match=os.strerror(number)) as info:
            pipeline.finish()

    assert info.value.code == code


def test_what_cannot_be_synced_needs_not(out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fdatasync", fail)
    with Pipeline(out, followers=[WriteBehind(out)]) as pipeline:
        pipeline.put(bytes(STEP))
        pipeline.finish()


def test_a_system_without_the_call_does_without(out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fdatasync")
    with Pipeline(out, followers=[WriteBehind(out)]) as pipeline:
        pipeline.put(bytes(STEP))
        pipeline.finish()


@pytest.mark.needs("posix")
def test_nobody_waits_for_a_disk_after_a_failure(out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, began = threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        began.set()
        ready.wait(10)

    monkeypatch.setattr(os, "fdatasync", slow)
    pipeline = Pipeline(out, buffer_bytes=STEP, followers=[WriteBehind(out)])
    pipeline.put(bytes(2 * STEP))
    assert began.wait(10)
    start = time.monotonic()
    pipeline.abort()
    waited = time.monotonic() - start
    ready.set()

    assert waited < 5, "the disk took ten seconds"


@pytest.mark.needs("posix")
def test_the_next_file_begins_before_the_last_one_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is asked for, through a descriptor that outlives the writer's; and few files wait."""
    ready, calls = threading.Event(), set[tuple[int, int]]()

    def slow(fd: int) -> None:
        assert ready.wait(10)
        calls.add((os.fstat(fd).st_ino, os.fstat(fd).st_size))

    def free() -> int:
        """The lowest number that no descriptor has."""
        os.close(fd := os.dup(0))
        return fd

    monkeypatch.setattr(os, "fdatasync", slow)
    before, disk, files = free(), Disk(), [tmp_path / str(number) for number in range(MOST)]
    for file in files:
        fd = os.open(file, os.O_RDWR | os.O_CREAT)
        with Pipeline(fd, buffer_bytes=STEP, followers=[WriteBehind(fd, disk)]) as pipeline:
            pipeline.put(bytes(3 * STEP + 1))
            pipeline.finish()
        os.close(fd)
    assert not calls, "nobody waited"
    ready.set()
    disk.wait()
    disk.wait()
    assert {(file.stat().st_ino, 3 * STEP + 1) for file in files} <= calls
    assert free() == before


@pytest.mark.needs("posix")
def test_what_the_disk_says_of_an_earlier_file_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    disk = Disk()

    def write(number: int) -> None:
        fd = os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT)
        try:
            with Pipeline(fd, buffer_bytes=STEP, followers=[WriteBehind(fd, disk)]) as pipeline:
                pipeline.put(bytes(2 * STEP))
                pipeline.finish()
        finally:
            os.close(fd)

    for number in range(MOST):
        write(number)
    with pytest.raises(OutputError, match=os.strerror(errno.EIO)):
        write(MOST)
    with pytest.raises(OutputError, match=os.strerror(errno.EIO)):
        disk.wait()


@pytest.mark.needs("posix")
@pytest.mark.parametrize("jobs", [1, 4])
def test_an_output_of_several_files_fails_with_any_of_them(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def fail(fd: int) -> None:
        seen.append(fd)
        if len(seen) == 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OutputError) as raised:
        ckconv.convert(
            FIXTURES / "hf/llama-tied-bf16",
            f"{tmp_path}/out/",
            to="safetensors",
            jobs=jobs,
            options=Options(max_shard_bytes=30_000),
        )
    assert raised.value.code == "output.space"
    assert list(tmp_path.iterdir()) == []
