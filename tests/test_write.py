"""The bytes of a plan's steps: copied, in another order of rows, written whatever a system takes of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import FIXTURES
from hypothesis import given, settings, strategies as st
from test_rows import stored

from ckconv import Options, convert
from ckconv.conversion import write
from ckconv.conversion.write import Chunk, Growing, Progress, Stopped, moved_rows, row_order, write_file
from ckconv.core.layouts import DTYPES, F16, F32, DType, Layout, headed, plain, shifted, transposed
from ckconv.core.tensors import Tensor
from ckconv.errors import OutputError
from ckconv.formats.detect import open_index
from ckconv.io.files import Files
from ckconv.publish.files import growing as opening

Q8_0 = DTYPES["Q8_0"]


def tensor(layout: Layout, dtype: DType = F32) -> Tensor:
    return Tensor("q", "q", dtype, (layout.rows, layout.cols), (), layout)


@pytest.mark.parametrize("head_rows", [4, 10])
def test_interleaved_rows_come_from_two_halves(head_rows: int) -> None:
    split, pairs = headed(3, head_rows, 8), headed(3, head_rows, 8, interleaved=True)
    half = head_rows // 2

    to_split, to_pairs = row_order(tensor(pairs), tensor(split)), row_order(tensor(split), tensor(pairs))

    assert to_split == (*range(0, head_rows, 2), *range(1, head_rows, 2))
    assert to_pairs == tuple(n // 2 + n % 2 * half for n in range(head_rows))


def test_rows_without_heads_are_in_split_order() -> None:
    pairs = headed(2, 4, 8, interleaved=True)

    assert row_order(tensor(pairs), tensor(plain(8, 8))) == (0, 2, 1, 3)


PAIRS = headed(2, 4, 32, interleaved=True)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(tensor(PAIRS), tensor(PAIRS), id="nothing moves"),
        pytest.param(tensor(PAIRS), tensor(headed(2, 4, 32), F16), id="another type"),
        pytest.param(tensor(PAIRS), tensor(headed(2, 4, 32, head_stride=6)), id="padding after heads"),
        pytest.param(tensor(PAIRS), tensor(headed(2, 4, 32, stored_cols=48)), id="padding after rows"),
        pytest.param(tensor(PAIRS), tensor(transposed(8, 32)), id="columns move, too"),
        pytest.param(
            tensor(headed(2, 6, 32, interleaved=True)), tensor(headed(3, 4, 32, interleaved=True)), id="other heads"
        ),
        pytest.param(tensor(PAIRS), tensor(shifted(headed(2, 4, 32), 1)), id="other values"),
        pytest.param(tensor(PAIRS), replace(tensor(headed(2, 4, 32)), planes=(tensor(PAIRS),)), id="several arrays"),
    ],
)
def test_more_than_moving_rows_is_for_what_computes_with_them(source: Tensor, target: Tensor) -> None:
    assert row_order(source, target) == ()


def test_a_head_larger_than_a_piece_is_for_what_computes_with_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "MAX_HEAD_BYTES", F32.nbytes(32) * 4)
    assert row_order(tensor(PAIRS), tensor(headed(2, 4, 32))) == (0, 2, 1, 3)

    monkeypatch.setattr(write, "MAX_HEAD_BYTES", F32.nbytes(32) * 4 - 1)
    assert row_order(tensor(PAIRS), tensor(headed(2, 4, 32))) == ()


def in_order(matrix: np.ndarray, layout: Layout, head_rows: int) -> np.ndarray:
    """The rows as the layout stores them."""
    if not layout.interleaved:
        return matrix
    halves = matrix.reshape(-1, 2, head_rows // 2, matrix.shape[1])
    return halves.swapaxes(1, 2)


@given(
    heads=st.integers(1, 7),
    head_rows=st.sampled_from((4, 6, 16)),
    blocks=st.integers(1, 3),
    dtype=st.sampled_from((F16, F32, Q8_0)),
    to_pairs=st.booleans(),
    piece=st.integers(1, 9),
    by_rows=st.booleans(),
    cut=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_moved_rows_are_those_of_the_plainest_packing(
    tmp_path_factory: pytest.TempPathFactory,
    heads: int,
    head_rows: int,
    blocks: int,
    dtype: DType,
    to_pairs: bool,
    piece: int,
    by_rows: bool,
    cut: int,
) -> None:
    folder = tmp_path_factory.mktemp("moved")
    cols = blocks * 32
    row_bytes = dtype.nbytes(cols)
    split, pairs = headed(heads, head_rows, cols), headed(heads, head_rows, cols, interleaved=True)
    there, here = (split, pairs) if to_pairs else (pairs, split)
    matrix = np.random.default_rng(0).integers(0, 256, (heads * head_rows, row_bytes), np.uint8)
    cuts = (cut % (heads * head_rows),)
    source = stored(folder, in_order(matrix, there, head_rows).tobytes(), there, dtype, cuts)

    with pytest.MonkeyPatch.context() as patch, Files() as files:
        if by_rows:
            patch.setattr(write, "MAX_ROWS", piece * head_rows + 1)
        else:
            patch.setattr(write, "CHUNK", piece * head_rows * row_bytes + 1)
        order = row_order(source, tensor(here, dtype))
        chunks = [bytes(chunk) for chunk in moved_rows(source, order, files)]

    assert b"".join(chunks) == in_order(matrix, here, head_rows).tobytes()
    assert len(chunks) == -(-heads // piece), "whole heads, as many as fit"


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
    growing = Growing({path: progress}, path)

    with opening(growing.wait_for):
        assert len(open_index(path).stored) == len(tensors)
    for start, stop in ((progress.written, progress.written + 1), (progress.end - 1, progress.end + 1)):
        with pytest.raises(Stopped):
            growing.wait_for(path, start, stop)
