"""Canonical rows held against each other, and padding against zero: the part of verifying that computes with rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ckconv.core.dtypes import WIDENS_TO_F32
from ckconv.core.layouts import plain
from ckconv.io.ahead import SideBySide, is_light
from ckconv.io.cells import cell_of, stored_view
from ckconv.io.files import CHUNK, Files
from ckconv.io.rows import RowReader, canonical_pieces, row_ranges
from ckconv.quant.convert import Action, decode
from ckconv.quant.quantise import Quantising

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckconv.core.tensors import Tensor
    from ckconv.io.tiles import Tiles
    from ckconv.quant.codec import Floats, Rows
    from ckconv.quant.convert import Conversion


def wrong_rows(
    tensor: Tensor,
    source: Tensor,
    conversion: Conversion,
    files: Files,
    progress: Callable[[int], None],
    importance: Floats | None = None,
    tiles: Tiles | None = None,
) -> tuple[list[int], int]:
    """Canonical rows of ``tensor`` that are not what ``conversion`` makes of the source's, in order.

    Also how many values ``conversion`` had to round.

    Args:
        progress: called with the bytes of ``tensor`` just compared.
        importance: where it was quantised, how much the error of each column counted, an expert a row.
        tiles: where rows may be that were converted already, to be written.
    """
    both = SideBySide(lambda files: (RowReader(tensor, files), RowReader(source, files)), files)
    mine, theirs = both.first
    if mine.dtype is not tensor.dtype:
        conversion = conversion._replace(target=mine.dtype)
    conversion = theirs.left(conversion)
    wrong: list[int] = []
    rounded = 0

    if conversion.action is not Action.DECODE:  # nothing else is handed over
        tiles = None
    in_order = tensor.as_stored and mine.dtype is tensor.dtype
    in_order = in_order and tensor.layout.same_bytes_as(plain(tensor.layout.rows, tensor.layout.cols))

    def compared(readers: tuple[RowReader, RowReader], start: int, stop: int) -> tuple[list[int], int, int]:
        made = None
        if tiles is not None and in_order:
            begin, end = start * mine.row_bytes, stop * mine.row_bytes
            files.wait_for(tensor.extents, begin, end)  # when they are there, their tile is
            made = tiles.take(source, conversion, start, stop)
            if made is not None and files.stores(tensor.extents, begin, made[0]):
                return [], made[1], end - begin
        got = readers[0].rows(start, stop)
        if made is None:
            made = tiles.take(source, conversion, start, stop) if tiles else None
        if made is None:
            made = _converted(readers[1].rows(start, stop), start, tensor.layout.rows, conversion, importance)
        want, changed = made
        if changed and conversion.action is Action.REPACK:  # no block holds the source's numbers, so these cannot
            return list(range(start, stop)), changed, got.nbytes
        if np.array_equal(_words(got), _words(want)):
            return [], changed, got.nbytes
        return [start + int(row) for row in np.nonzero((got != want).any(axis=1))[0]], changed, got.nbytes

    alone = is_light(source, conversion) or tiles is not None

    def pieces() -> Iterator[Callable[[tuple[RowReader, RowReader]], tuple[list[int], int, int]]]:
        for start, stop in row_ranges(_broader(mine, theirs), max(mine.row_bytes, theirs.row_bytes), conversion):
            for array in () if alone else (*tensor.arrays, *source.arrays):  # threads read what is there
                until = stop * mine.row_bytes if in_order and array is tensor else array.nbytes
                files.wait_for(array.extents, 0, until)
            yield partial(compared, start=start, stop=stop)

    with closing(both.each(pieces(), alone=alone)) as results:
        for some, changed, nbytes in results:
            wrong += some
            rounded += changed
            progress(nbytes)
    return wrong, rounded


def _broader(mine: RowReader, theirs: RowReader) -> RowReader:
    """Whose pieces are taken: of packed matrices their own, as they take more memory than bytes."""
    for packed, other in ((theirs, mine), (mine, theirs)):
        if packed.tensor.packed and other.layout.whole_rows:
            return packed
    return mine if mine.piece >= theirs.piece else theirs


def _converted(
    rows: Rows, start: int, count: int, conversion: Conversion, importance: Floats | None
) -> tuple[Rows, int]:
    """Rows from ``start`` on of ``count``, each expert's by its own importance."""
    if importance is None or not conversion.quantises:
        return conversion.apply(rows)
    made, each, at, changed = [], count // len(importance), start, 0
    while at < start + len(rows):
        expert = at // each
        stop = min(start + len(rows), (expert + 1) * each)
        how = conversion._replace(quantising=Quantising(importance[expert]))
        some, more = how.apply(rows[at - start : stop - start])
        made.append(some)
        changed += more
        at = stop
    return np.concatenate(made), changed


def dirty_padding(tensor: Tensor, files: Files) -> int | None:
    """The first stored row whose padding is not zero, or ``None``."""
    layout, dtype = tensor.layout, tensor.dtype
    if not layout.padded:
        return None
    stored_bytes = dtype.nbytes(layout.stored_cols)
    step = max(1, CHUNK // stored_bytes)
    buffer = np.empty((min(step, layout.stored_rows), stored_bytes), np.uint8)
    for start in range(0, layout.stored_rows, step):
        stop = min(start + step, layout.stored_rows)
        rows = buffer[: stop - start]
        files.read_into(tensor.extents[0].path, tensor.extents[0].offset + start * stored_bytes, rows)
        cells, first = rows.reshape(-1).view(cell_of(dtype)), start * layout.stored_cols
        for strip in layout.strips:
            for box in strip.between(first, stop * layout.stored_cols):
                stored_view(cells, strip, box, dtype.block, first)[...] = np.zeros((), cells.dtype)
        bad = rows.any(axis=1)
        if bad.any():
            return start + int(np.argmax(bad))
    return None


def same_values(one: Tensor, other: Tensor, files: Files) -> bool:
    """The two are the same numbers in the same order, each in the float type that it is stored in."""
    if one.shape != other.shape or not {one.dtype, other.dtype} <= WIDENS_TO_F32:
        return False
    mine, theirs = RowReader(one, files), RowReader(other, files)
    return all(
        np.array_equal(
            decode(rows, one.dtype).view(np.uint32),
            decode(theirs.rows(start, start + len(rows)), other.dtype).view(np.uint32),
        )
        for start, rows in canonical_pieces(mine, max(mine.row_bytes, theirs.row_bytes))
    )


def _words(rows: Rows) -> NDArray[np.uint64] | Rows:
    """The same bytes as eight-byte words where they divide into them: an eighth of the comparisons."""
    flat = np.ascontiguousarray(rows).reshape(-1)
    return flat.view(np.uint64) if flat.nbytes % 8 == 0 else flat
