"""The bytes of a plan's steps: copied, in another order of rows, written whatever a system takes of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import FIXTURES

from ckconv import Options, convert
from ckconv.conversion import write
from ckconv.conversion.write import Chunk, GrowingOutput, Progress, Stopped, write_file
from ckconv.core.layouts import DTYPES
from ckconv.errors import OutputError
from ckconv.formats.detect import open_index
from ckconv.io.files import growing as opening

Q8_0 = DTYPES["Q8_0"]


@pytest.fixture
def out(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


CHUNKS = [Chunk(3, b"abc", "one"), Chunk(6, np.arange(6, dtype="<u2").reshape(2, 3), "two"), Chunk(20, b"", "none")]
CONTENT = bytes(3) + b"abc" + np.arange(6, dtype="<u2").tobytes()


@pytest.mark.parametrize("most", [1, 7, 1 << 20])
def test_what_a_system_does_not_take_at_once_is_written_then(
    out: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = write.write_some
    monkeypatch.setattr(write, "write_some", lambda fd, data, at: real(fd, data[:most], at))
    progress = Progress({})
    write_file(out, CHUNKS, 30, progress)
    assert os.pread(out, 100, 0) == CONTENT
    assert (progress.written, progress.stopped) == (30, False)


def test_who_follows_hears_when_a_file_is_not_completed(out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "write_some", full)
    progress = Progress({})
    with pytest.raises(OutputError, match="after 3 bytes: No space left on device") as raised:
        write_file(out, CHUNKS, 30, progress)
    assert (raised.value.code, raised.value.offset) == ("output.space", 3)
    with pytest.raises(Stopped):
        progress.wait(1, "digest")


def test_nothing_more_is_written_of_a_file_that_nobody_wants(out: int) -> None:
    progress = Progress({})
    progress.stop()
    with pytest.raises(Stopped):
        write_file(out, CHUNKS, 30, progress)
    assert os.fstat(out).st_size == 0


@pytest.mark.parametrize(("wanted", "leads", "until"), [(0, {"compare": 5}, 5), (4, {"compare": 5, "digest": 9}, 9)])
def test_a_writer_is_not_far_ahead_of_who_follows(wanted: int, leads: dict[str, int], until: int) -> None:
    progress = Progress(leads)
    with ThreadPoolExecutor(3) as pool:
        writer = pool.submit(lambda: [progress.advance(at) for at in range(1, 101)])
        for name in leads:
            progress.wait(wanted, name)
        while progress.written <= until:
            time.sleep(0.001)
        time.sleep(0.05)
        assert (progress.written, writer.done()) == (until + 1, False), "it hears of the byte that it has to wait for"
        for name in leads:
            progress.leave(name)
        writer.result(60)
    assert progress.written == 100


def test_a_bump_file_is_opened_before_its_tensors_are_written(tmp_path: Path) -> None:
    """What stands behind them is there: its comparison need not wait for the whole file."""
    path = tmp_path / "m.bump"
    convert(FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf", path, options=Options(bump_version=5))
    tensors = sorted(open_index(path).stored, key=lambda one: one.extent.offset)
    progress = Progress({})
    progress.written = tensors[0].extent.offset
    progress.end = tensors[-1].extent.offset + tensors[-1].extent.nbytes
    progress.stop()  # who waits for more raises Stopped
    growing = GrowingOutput({path: progress}, path)

    with opening(growing.wait_for):
        assert len(open_index(path).stored) == len(tensors)
    for start, stop in ((progress.written, progress.written + 1), (progress.end - 1, progress.end + 1)):
        with pytest.raises(Stopped):
            growing.wait_for(path, start, stop)
