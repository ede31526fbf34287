"""Comparison of canonical rows, and of padding with zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ckconv.core.layouts import plain
from ckconv.io.files import CHUNK, Files
from ckconv.io.rows import RowReader, cell_of, row_ranges, stored_view
from ckconv.io.tiles import SideBySide, is_handed_over, is_light
from ckconv.quant.convert import Action
from ckconv.quant.quantize import Quantizing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckconv.core.tensors import Tensor
    from ckconv.io.tiles import Tiles
    from ckconv.quant.codec import Floats, Rows
    from ckconv.quant.convert import Conversion

#: Rows of each tensor that are quantized twice: to be written, and to be compared.
QUANTIZED_TWICE = 16


def wrong_rows(
    tensor: Tensor,
    source: Tensor,
    conversion: Conversion,
    files: Files,
    progress: Callable[[int], None],
    importance: Floats | None = None,
    tiles: Tiles | None = None,
) -> tuple[list[int], int]:
    """Canonical rows of a tensor that differ from the converted source's.

    Also how many values ``conversion`` had to round.

    Args:
        progress: called with the bytes of ``tensor`` just compared.
        importance: where it was quantized, how much the error of each column counted, an expert a row.
        tiles: where rows may be that were converted already, to be written.
    """
    both = SideBySide(lambda files: (RowReader(tensor, files), RowReader(source, files)), files)
    mine, theirs = both.first
    if mine.dtype is not tensor.dtype:
        conversion = conversion._replace(target=mine.dtype)
    held = _Rows(tensor, source, theirs.left(conversion), importance, tiles, mine, files)
    alone = is_light(source, held.conversion)
    wrong: list[int] = []
    rounded = 0

    def note(found: _Found) -> None:
        nonlocal rounded
        wrong.extend(found.wrong)
        rounded += found.changed
        progress(found.nbytes)

    def pieces() -> Iterator[Callable[[tuple[RowReader, RowReader]], _Found]]:
        for start, stop in row_ranges(
            _broader(mine, theirs, conversion), max(mine.row_bytes, theirs.row_bytes), held.conversion
        ):
            if (found := held.handed_over(start, stop)) is not None:
                note(found)
                if start or not held.conversion.quantizes:
                    continue
                stop = min(stop, QUANTIZED_TWICE)
            for array in () if alone else (*tensor.arrays, *source.arrays):  # threads read what is there
                until = stop * mine.row_bytes if held.in_order and array is tensor else array.nbytes
                files.wait_for(array.extents, 0, until)
            yield partial(held.converted, start=start, stop=stop)

    with closing(both.each(pieces(), alone=alone)) as results:
        for found in results:
            note(found)
    return sorted({*wrong}), rounded


class _Found(NamedTuple):
    """Wrong rows, a count of rounded values, and of compared bytes."""

    wrong: list[int]
    changed: int
    nbytes: int


class _Rows:
    """The rows of a tensor, compared with converted rows of its source."""

    def __init__(
        self,
        tensor: Tensor,
        source: Tensor,
        conversion: Conversion,
        importance: Floats | None,
        tiles: Tiles | None,
        mine: RowReader,
        files: Files,
    ) -> None:
        self._tensor, self._source, self.conversion = tensor, source, conversion
        self._importance, self._mine, self._files = importance, mine, files
        as_stored = tensor.as_stored and mine.dtype is tensor.dtype
        self.in_order = as_stored and tensor.layout.same_bytes_as(plain(tensor.layout.rows, tensor.layout.cols))
        self._tiles = tiles if as_stored and is_handed_over(source, conversion) else None

    def handed_over(self, start: int, stop: int) -> _Found | None:
        """Compare with rows that were converted to be written.

        ``None`` where there are none. Called in the thread that waits for the output.
        """
        if self._tiles is None:
            return None
        tensor, mine, conversion = self._tensor, self._mine, self.conversion
        begin, end = start * mine.row_bytes, min(stop * mine.row_bytes, tensor.nbytes)
        self._files.wait_for(tensor.extents, begin, end)  # when they are there, their tile is
        of_all = self._importance is not None and len(self._importance) == 1
        told = self._importance[0] if self._importance is not None and of_all else None
        made = self._tiles.take(self._source, conversion, start, stop, told)
        if made is None:
            return None
        if self.in_order and not self._cannot_be(made[1]) and self._files.stores(tensor.extents, begin, made[0]):
            return _Found([], made[1], end - begin)
        return self._compared(made, mine.rows(start, stop), start)

    def converted(self, readers: tuple[RowReader, RowReader], start: int, stop: int) -> _Found:
        """Against rows that are converted now, in any thread."""
        mine, theirs = readers
        rows = theirs.rows(start, stop)
        made = _converted(rows, start, self._tensor.layout.rows, self.conversion, self._importance)
        return self._compared(made, mine.rows(start, stop), start)

    def _cannot_be(self, changed: int) -> bool:
        """No block holds the source's numbers, so these do not."""
        return changed > 0 and self.conversion.action is Action.REPACK

    def _compared(self, made: tuple[Rows, int], got: Rows, start: int) -> _Found:
        want, changed = made
        if self._cannot_be(changed):
            return _Found(list(range(start, start + len(got))), changed, got.nbytes)
        if np.array_equal(_words(got), _words(want)):
            return _Found([], changed, got.nbytes)
        return _Found([start + int(row) for row in np.nonzero((got != want).any(axis=1))[0]], changed, got.nbytes)


def _broader(mine: RowReader, theirs: RowReader, conversion: Conversion) -> RowReader:
    """The reader whose pieces are taken: of packed matrices their own."""
    if conversion.plane is not None:  # of one array, which is made of whole rows
        return theirs
    for packed, other in ((theirs, mine), (mine, theirs)):
        if packed.tensor.packed and other.layout.whole_rows:
            return packed
    return mine if mine.piece >= theirs.piece else theirs


def _converted(
    rows: Rows, start: int, count: int, conversion: Conversion, importance: Floats | None
) -> tuple[Rows, int]:
    """Converted rows from ``start`` on; each expert's by its own importance."""
    if importance is None or not conversion.quantizes:
        return conversion.apply(rows)
    made, each, at, changed = [], count // len(importance), start, 0
    while at < start + len(rows):
        expert = at // each
        stop = min(start + len(rows), (expert + 1) * each)
        how = conversion._replace(quantizing=Quantizing(importance[expert]))
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


def _words(rows: Rows) -> NDArray[np.uint64] | Rows:
    """The same bytes as eight-byte words, which are compared faster."""
    flat = np.ascontiguousarray(rows).reshape(-1)
    return flat.view(np.uint64) if flat.nbytes % 8 == 0 else flat
