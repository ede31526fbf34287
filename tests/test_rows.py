"""Bytes out of rows and rows out of bytes, for every layout, against the plainest possible packing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from test_layouts import Places, row_places

from ckconv.core.layouts import BF16, DTYPES, F16, F32, DType, Layout, column_blocks, plain, transposed
from ckconv.core.tensors import Extent, Tensor
from ckconv.io.files import Files
from ckconv.io.rows import RowReader, canonical_pieces
from ckconv.io.stored import stored_pieces
from ckconv.quant.convert import Conversion


def column_places(rows: int, heads: int, cols: int, extra: int, wide: int) -> Places:
    block = rows + extra
    layout = column_blocks(rows, heads, cols, block_rows=block, stored_cols=cols + wide)
    return Places(layout, lambda r, c: (c // cols * block + r, c % cols))


@st.composite
def all_places(draw: st.DrawFn) -> Places:
    rows, cols = draw(st.integers(1, 20)), draw(st.integers(1, 9))
    kind = draw(st.sampled_from(("rows", "rows", "blocks", "transposed")))
    if kind == "rows":
        return draw(row_places())
    if kind == "transposed":
        return turned(rows, cols)
    return column_places(rows, draw(st.integers(1, 4)), cols, draw(st.integers(0, 3)), draw(st.integers(0, 3)))


def straight(rows: int, cols: int, wide: int = 0) -> Places:
    return Places(plain(rows, cols, stored_cols=cols + wide), lambda r, c: (r, c))


def turned(rows: int, cols: int) -> Places:
    return Places(transposed(rows, cols), lambda r, c: (c, r))


def stored(folder: Path, data: bytes, layout: Layout, dtype: DType, cuts: tuple[int, ...] = ()) -> Tensor:
    """A tensor whose bytes lie in a file, in as many runs as there are cuts (in stored rows), with rubbish between."""
    row = dtype.nbytes(layout.stored_cols)
    edges = [0, *(cut * row for cut in sorted(cuts)), len(data)]
    path = folder / "tensor.bin"
    extents = []
    with path.open("wb") as file:
        for low, high in itertools.pairwise(edges):
            file.write(b"\xee" * 13)
            extents.append(Extent(path, file.tell(), high - low))
            file.write(data[low:high])
    return Tensor("t", "t", dtype, (layout.rows, layout.cols), tuple(extents), layout)


def values(layout: Layout) -> np.ndarray:
    return np.arange(1, layout.rows * layout.cols + 1, dtype=np.float32).reshape(layout.rows, layout.cols)


def read(tensor: Tensor) -> np.ndarray:
    with Files() as files:
        pieces = list(canonical_pieces(RowReader(tensor, files)))
    at = 0
    for start, piece in pieces:
        assert start == at
        at += len(piece)
    assert at == tensor.layout.rows
    return np.concatenate([piece for _, piece in pieces])


def written(tensor: Tensor, layout: Layout, conversion: Conversion) -> tuple[bytes, int]:
    with Files() as files:
        reader = RowReader(tensor, files)
        chunks = [piece(reader) for piece in stored_pieces(reader, layout, conversion)]
    return b"".join(chunk.tobytes() for chunk, _ in chunks), sum(changed for _, changed in chunks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@given(places=all_places(), data=st.data())
@settings(deadline=None, max_examples=60)
def test_reader_undoes_every_layout(small_pieces: None, folder: Path, places: Places, data: st.DataObject) -> None:
    layout = places.layout
    matrix = values(layout)
    cuts = data.draw(st.sets(st.integers(1, max(1, layout.stored_rows - 1)), max_size=3))
    tensor = stored(folder, places.packed(matrix).tobytes(), layout, F32, tuple(cuts))
    assert np.array_equal(read(tensor).view(np.float32), matrix)


@given(places=all_places())
@settings(deadline=None, max_examples=60)
def test_chunks_are_the_packed_matrix(small_pieces: None, folder: Path, places: Places) -> None:
    layout = places.layout
    matrix = values(layout)
    tensor = stored(folder, matrix.tobytes(), plain(layout.rows, layout.cols), F32)
    data, changed = written(tensor, layout, Conversion(F32, F32))
    assert data == places.packed(matrix).tobytes()
    assert changed == 0


@given(one=all_places(), other=all_places(), kind=st.sampled_from((F32, F16, BF16)))
@settings(deadline=None, max_examples=60)
def test_from_any_layout_and_float_to_any_other(
    small_pieces: None, folder: Path, one: Places, other: Places, kind: DType
) -> None:
    target = other.layout
    if (one.layout.rows, one.layout.cols) != (target.rows, target.cols):
        one = straight(target.rows, target.cols)
    source = one.layout
    matrix = values(target) % 128
    small = {F32: matrix, F16: matrix.astype(np.float16), BF16: (matrix.view(np.uint32) >> 16).astype(np.uint16)}[kind]
    tensor = stored(folder, one.packed(small).tobytes(), source, kind)
    data, changed = written(tensor, target, Conversion(kind, F32))
    assert data == other.packed(matrix).tobytes()
    assert changed == 0
    back = stored(folder, data, target, F32)
    data, changed = written(back, source, Conversion(F32, kind))
    assert data == one.packed(small).tobytes()
    assert changed == 0


@given(blocks=st.integers(1, 4), data=st.data())
@settings(deadline=None, max_examples=40)
def test_rows_of_blocks_move_whole(small_pieces: None, folder: Path, blocks: int, data: st.DataObject) -> None:
    kind = DTYPES["Q4_0"]
    places = data.draw(row_places(cols=32 * blocks))
    layout = places.layout
    raw = np.random.default_rng(blocks).integers(0, 256, (layout.rows, 18 * blocks), dtype=np.uint8)
    tensor = stored(folder, raw.tobytes(), plain(layout.rows, layout.cols), kind)
    data_out, _ = written(tensor, layout, Conversion(kind, kind))
    expected = np.zeros((layout.stored_rows, 18 * blocks), np.uint8)
    for r, row in enumerate(raw):
        expected[places.place(r, 0)[0]] = row
    assert data_out == expected.tobytes()
    assert np.array_equal(read(stored(folder, data_out, layout, kind)), raw)


def test_counts_of_changed_values_add_up_over_pieces(small_pieces: None, folder: Path) -> None:
    matrix = np.full((7, 5), 1 + 2**-20, np.float32)
    matrix[::2] = 1
    tensor = stored(folder, matrix.tobytes(), plain(7, 5), F32)
    targets: tuple[Layout, ...] = (plain(7, 5, stored_cols=8), transposed(7, 5), column_blocks(7, 5, 1, stored_cols=2))
    for layout in targets:
        _, changed = written(tensor, layout, Conversion(F32, F16))
        assert changed == 15


Read = Callable[[RowReader], object]


@pytest.mark.parametrize(
    "places",
    [straight(30, 4), straight(30, 4, 3), turned(30, 4), column_places(30, 2, 2, 0, 0)],
    ids=["plain", "padded", "transposed", "blocks"],
)
def test_any_range_and_any_choice_of_rows(places: Places, folder: Path) -> None:
    layout = places.layout
    matrix = values(layout)
    with Files() as files:
        reader = RowReader(stored(folder, places.packed(matrix).tobytes(), layout, F32), files)
        assert np.array_equal(reader.rows(7, 19).view(np.float32), matrix[7:19])
        assert reader.rows(5, 5).shape == (0, 16)
        for index in ([29, 0], [3], [5, 4, 4, 28], []):
            chosen = np.array(index, np.int64)
            assert np.array_equal(reader.gather(chosen).view(np.float32), matrix[chosen])
