"""Rows that only change places within their heads, against the plainest possible packing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rows import stored

from ckconv.core.dtypes import DTYPES, F16, F32, DType
from ckconv.core.layouts import Layout, headed, plain, shifted, transposed
from ckconv.core.tensors import Extent, Tensor
from ckconv.engine import rowmoves
from ckconv.engine.copies import PIECE_BYTES
from ckconv.engine.following import Growth, Telling
from ckconv.engine.lookback import LookBack
from ckconv.engine.pipeline import Pipeline
from ckconv.engine.readonce import ReadOnce
from ckconv.engine.rowmoves import Moved, moved_chunks, row_order, same_moved
from ckconv.io.files import Files

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
    assert row_order(source, target) is None


def test_a_head_larger_than_a_piece_is_for_what_computes_with_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowmoves, "MAX_HEAD_BYTES", F32.nbytes(32) * 4)
    assert row_order(tensor(PAIRS), tensor(headed(2, 4, 32))) == (0, 2, 1, 3)

    monkeypatch.setattr(rowmoves, "MAX_HEAD_BYTES", F32.nbytes(32) * 4 - 1)
    assert row_order(tensor(PAIRS), tensor(headed(2, 4, 32))) is None


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
def test_bytes(
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
    folder = tmp_path_factory.mktemp("rowmoves")
    cols = blocks * 32
    row_bytes = dtype.nbytes(cols)
    split, pairs = headed(heads, head_rows, cols), headed(heads, head_rows, cols, interleaved=True)
    there, here = (split, pairs) if to_pairs else (pairs, split)
    matrix = np.random.default_rng(0).integers(0, 256, (heads * head_rows, row_bytes), np.uint8)
    cuts = (cut % (heads * head_rows),)
    source = stored(folder, in_order(matrix, there, head_rows).tobytes(), there, dtype, cuts)

    with pytest.MonkeyPatch.context() as patch, Files() as files:
        if by_rows:
            patch.setattr(rowmoves, "MAX_ROWS", piece * head_rows + 1)
        else:
            patch.setattr(rowmoves, "CHUNK", piece * head_rows * row_bytes + 1)
        order = row_order(source, tensor(here, dtype))
        assert order is not None
        chunks = [bytes(chunk) for chunk in moved_chunks(source, order, files)]

    assert b"".join(chunks) == in_order(matrix, here, head_rows).tobytes()
    assert len(chunks) == -(-heads // piece), "whole heads, as many as fit"


#: Heads of 384 KB, which fit into no whole number of blocks.
HEADS, HEAD_ROWS, COLS = 13, 64, 1536


class Written:
    """Rows of heads that were written into a file in interleaved order, behind some other bytes."""

    def __init__(self, folder: Path, before: int, flipped: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
        split, pairs = headed(HEADS, HEAD_ROWS, COLS), headed(HEADS, HEAD_ROWS, COLS, interleaved=True)
        matrix = np.frombuffer(os.urandom(HEADS * HEAD_ROWS * COLS * 4), np.uint8).reshape(HEADS * HEAD_ROWS, -1)
        self.source = stored(folder, matrix.tobytes(), split, F32)
        order = row_order(self.source, tensor(pairs))
        assert order is not None
        self.order, path = order, folder / "out"
        self.target = replace(tensor(pairs), extents=(Extent(path, before, matrix.nbytes),))
        growth = Growth([Extent(path, 0, before + matrix.nbytes)])

        def write(fd: int, content: memoryview, offset: int) -> int:
            data = bytearray(content)
            if flipped is not None and 0 <= before + flipped - offset < len(data):
                data[before + flipped - offset] ^= 1
            return os.pwrite(fd, data, offset)

        monkeypatch.setattr("ckconv.engine.store.write_some", write)
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            with (
                Files() as files,
                Pipeline(
                    fd, followers=[Telling(growth, path, 0)], back=LookBack(growth.copies, growth.handed)
                ) as pipeline,
            ):
                pipeline.put(bytes(before))
                rows, done = Moved.of(self.source, order), 0
                for chunk in moved_chunks(self.source, order, files):
                    pipeline.put(chunk, rows, done)
                    done += len(chunk)
                pipeline.finish()
        finally:
            os.close(fd)
        self.growth, self.told = growth, 0
        self.growth.unread()

    def is_of(self, source: Tensor, order: tuple[int, ...]) -> bool:
        def tell(nbytes: int) -> None:
            self.told += nbytes

        with ReadOnce({}, self.growth) as files:
            return same_moved(self.target, source, order, files, tell)


@pytest.fixture(params=[0, 77])
def before(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_moved_rows_that_were_read_back_are_not_read_again(
    tmp_path: Path, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(tmp_path, before, None, monkeypatch)
    monkeypatch.setattr("ckconv.io.files.read_into", lambda *_: pytest.fail("it is read again"))
    assert written.is_of(written.source, written.order)
    assert written.told == written.source.nbytes


@pytest.mark.parametrize("flipped", [0, PIECE_BYTES - 1, PIECE_BYTES, HEADS * HEAD_ROWS * COLS * 4 - 1])
def test_a_byte_that_did_not_get_there_is_found(
    tmp_path: Path, before: int, flipped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(tmp_path, before, flipped, monkeypatch)
    assert not written.is_of(written.source, written.order)


def test_rows_of_another_place_or_order_are_not_known(
    tmp_path: Path, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the output says where its rows are; what was planned counts for nothing."""
    written = Written(tmp_path, before, None, monkeypatch)
    first, second, *rest = written.order
    assert not written.is_of(written.source, (second, first, *rest))
    other = tmp_path / "other"
    other.mkdir()
    data = written.source.extents[0].path.read_bytes()[13:]
    twin = stored(other, data, written.source.layout, F32)
    assert written.is_of(twin, written.order), "the same bytes elsewhere"
    changed = stored(other, data[:-1] + bytes([data[-1] ^ 1]), written.source.layout, F32)
    assert not written.is_of(changed, written.order)
