"""Canonical rows out of stored bytes, in bounded pieces: a :class:`RowReader` undoes a tensor's layout while reading.

It never holds a whole tensor: pieces are about ``CHUNK`` bytes, and where a layout takes rows apart they are up to
``SCRATCH`` bytes, so that the source is not read too often.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ckconv.core.dtypes import F32, WIDENS_TO_F32
from ckconv.core.layouts import Layout
from ckconv.core.tensors import blocks_apart
from ckconv.errors import UnsupportedError
from ckconv.io.cells import PAGE, SPARSE, cell_of, read_box, row_boxes
from ckconv.io.files import CHUNK, Files
from ckconv.io.packed import PackedRows
from ckconv.quant.convert import Action, decodable, decode, narrowed, side_by_side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckconv.core.tensors import Tensor
    from ckconv.io.cells import Cells
    from ckconv.io.merge import MergedRows
    from ckconv.io.tiles import Tiles
    from ckconv.quant.codec import Rows
    from ckconv.quant.convert import Conversion

    Index = NDArray[np.int64]

#: Bytes of a piece where rows are taken apart: a compromise between memory and the number of reads.
SCRATCH = 4 << 20

#: Types of blocks of up to so many numbers are quantised about as fast as they are read, those of more look for scales.
_QUICK_BLOCK = 32

# glibc gives freed memory back to the system at once, and getting it again, zeroed page by page, takes longer than what
# is done with it. Once a block of this size was freed, it keeps as much (mallopt(3), "dynamic mmap threshold"). Nothing
# touches the block, so it costs no memory, and elsewhere it does nothing.
np.empty(2 * SCRATCH, np.uint8)


class Reader(Protocol):
    """Where canonical rows come from."""

    layout: Layout
    row_bytes: int

    @property
    def piece(self) -> int:
        """Bytes worth asking for at once."""

    def rows(self, start: int, stop: int) -> Rows:
        """Canonical rows ``start`` to ``stop``: ``[stop - start, row_bytes]``."""

    def gather(self, canonical: Index) -> Rows:
        """The canonical rows at these indices: ``[len(canonical), row_bytes]``."""

    def columns(self, canonical: Index, low: int, high: int, conversion: Conversion) -> tuple[Rows, int]:
        """Columns ``low`` to ``high`` of the rows at these indices, converted, and how many values changed."""


class RowReader:
    """Reads the canonical rows of one tensor, padding cut off.

    Attributes:
        dtype: of the rows: the stored one, but F32 where blocks hold values of several rows and are decoded first.
    """

    def __init__(self, tensor: Tensor, files: Files, tiles: Tiles | None = None) -> None:
        """Read nothing yet; rows that are converted to be stored go to ``tiles``, too.

        Raises:
            UnsupportedError: ``plan.refused``, blocks hold values of several canonical rows, and have no decoder.
        """
        self.tensor, self.tiles = tensor, tiles
        self.dtype = tensor.dtype
        self.layout = tensor.layout
        self._files = files
        self._planes = [RowReader(plane, files) for plane in tensor.planes]
        self._packed = PackedRows(tensor, lambda array: RowReader(array, files)) if tensor.packed else None
        self._merged: MergedRows | None = None
        if tensor.merge is not None:
            from ckconv.io.merge import MergedRows

            self._merged = MergedRows(tensor.merge, tensor.dtype, files)
        elif why := blocks_apart(tensor.dtype, tensor.layout):
            if not decodable(tensor.dtype):
                raise UnsupportedError("plan.refused", f"{tensor.source}: {why}", tensor=tensor.source)
            self.dtype = F32
        self.row_bytes = self.dtype.nbytes(self.layout.cols)

    @property
    def max_change(self) -> float:
        """The largest difference that adapters made to a value, of all rows read so far."""
        return self._merged.max_change if self._merged else 0.0

    @property
    def in_order(self) -> bool:
        """The canonical rows are what is stored, one after the other."""
        return self.tensor.as_stored and self.dtype is self.tensor.dtype and self.layout.in_order

    def left(self, conversion: Conversion) -> Conversion:
        """What of a conversion of the stored values is left to do with the rows."""
        return conversion if self.dtype is self.tensor.dtype else conversion._replace(source=self.dtype)

    @property
    def piece(self) -> int:
        """Bytes worth asking for at once: more where rows are put together out of many runs."""
        if self._packed:
            return SCRATCH // (16 if self._packed.across else 8)
        return CHUNK if self.layout.whole_rows or self.layout.run > 1 else SCRATCH

    def rows(self, start: int, stop: int) -> Rows:
        """Canonical rows ``start`` to ``stop``: ``[stop - start, row_bytes]``; planes stand side by side."""
        if self._merged:
            return self._merged.rows(start, stop)
        if self._planes and self.dtype is self.tensor.dtype:
            return np.concatenate([plane.rows(start, stop) for plane in self._planes], axis=1)
        if self._packed and self.dtype is self.tensor.dtype:
            return self.gather(np.arange(start, stop, dtype=np.int64))
        return self._rows(start, stop, 0, self.layout.cols)

    def gather(self, canonical: Index) -> Rows:
        """The canonical rows at these indices: ``[len(canonical), row_bytes]``."""
        if self._merged:
            return self._merged.gather(canonical)
        if self._planes and self.dtype is self.tensor.dtype:
            return np.concatenate([plane.gather(canonical) for plane in self._planes], axis=1)
        if self._packed and self.dtype is self.tensor.dtype:
            return self._packed.gather(self.layout.start(canonical) // self.layout.cols)
        return self._gather(canonical, 0, self.layout.cols)

    def columns(self, canonical: Index, low: int, high: int, conversion: Conversion) -> tuple[Rows, int]:
        """Columns ``low`` to ``high`` of the rows at these indices, converted, and how many values changed."""
        if self._merged or self.dtype.block > 1:
            return _columns(self.gather(canonical), conversion, low, high)
        return conversion.apply(self._gather(canonical, low, high))

    def stored(self, start: int, stop: int) -> Rows:
        """Stored rows, padding included. Rows of several extents follow each other; no row crosses two."""
        out = np.empty((stop - start, self.tensor.dtype.nbytes(self.layout.stored_cols)), np.uint8)
        self._read(start * out.shape[1], out.reshape(-1))
        return out

    def _rows(self, start: int, stop: int, low: int, high: int) -> Rows:
        if self.layout.whole_rows:
            return self._gather(np.arange(start, stop, dtype=np.int64), low, high)
        dtype = self.dtype
        out = np.empty((stop - start, (high - low) // dtype.block), cell_of(dtype))
        at = 0
        for strip in self.layout.strips:
            one, other = max(start, at), min(stop, at + strip.height)
            if one < other:
                into = out[one - start :].reshape(-1)
                for first, to, axes in row_boxes(strip, dtype.block, (one - at, other - at), (low, high)):
                    read_box(self._cells, first, axes, into[to:], CHUNK // 4)
            at += strip.height
        return out.view(np.uint8)

    def _gather(self, canonical: Index, low: int, high: int) -> Rows:
        dtype = self.dtype
        width = dtype.nbytes(high - low)
        if not len(canonical):
            return np.empty((0, width), np.uint8)
        if not self.layout.whole_rows:
            first = int(canonical.min())
            return taken(self._rows(first, int(canonical.max()) + 1, low, high), canonical - first)
        places = (self.layout.start(canonical) + low) // dtype.block * dtype.size
        edges = [0, *(np.flatnonzero(np.diff(places) != width) + 1).tolist(), len(places)]
        first = int(places.min())
        nbytes = int(places.max()) + width - first
        out = np.empty((len(places), width), np.uint8)
        if len(edges) == 2 or nbytes > max(SPARSE * len(places) * width, PAGE * len(edges)):
            for one, other in itertools.pairwise(edges):
                self._read(int(places[one]), out[one:other])
            return out
        if nbytes <= 2 * CHUNK or len(places) == 1:
            return self._picked(first, nbytes, places - first, width)
        step = max(1, len(places) * CHUNK // nbytes)
        for one in range(0, len(places), step):
            out[one : one + step] = self._gather(canonical[one : one + step], low, high)
        return out

    def _picked(self, first: int, nbytes: int, places: Index, width: int) -> Rows:
        """Rows that begin at these places of a run of bytes."""
        pitch = self.dtype.nbytes(self.layout.pitch)
        index = places // pitch
        count = int(index.max()) + 1
        run = np.empty(max(nbytes, count * pitch), np.uint8)
        self._read(first, run[:nbytes])
        if pitch == width:
            return taken(run.reshape(count, pitch), index)
        picked: Rows = as_strided(run, (count, width), (pitch, 1))[index]
        return picked

    def _read(self, start: int, out: Rows) -> None:
        if self.dtype is self.tensor.dtype:
            self._files.read_run(self.tensor.extents, start, out)
        else:
            self._read_decoded(start // self.dtype.size, out)

    def _read_decoded(self, first: int, out: Rows) -> None:
        """Values from a stored element on, out of the blocks, or rows of several arrays, that hold them."""
        dtype, count = self.tensor.dtype, out.nbytes // self.dtype.size
        unit = self.layout.stored_cols if self._planes or self._packed else dtype.block
        low, high = first // unit, -(-(first + count) // unit)
        if self._packed:
            stored = self._packed.rows(low, high)
        elif self._planes:
            stored = np.concatenate([plane.rows(low, high) for plane in self._planes], axis=1)
        else:
            stored = np.empty((high - low, dtype.size), np.uint8)
            self._files.read_run(self.tensor.extents, low * dtype.size, stored.reshape(-1))
        values = decode(stored, dtype).reshape(-1)[first - low * unit :][:count]
        out[...] = np.ascontiguousarray(values).view(np.uint8)

    def _cells(self, first: int, out: Cells) -> None:
        self._read(first * out.itemsize, out.view(np.uint8))


def taken(block: Rows, index: Index) -> Rows:
    """``block[index]``, without a copy where that is the block itself."""
    if len(index) == len(block) and bool((index == np.arange(len(index))).all()):
        return block
    return block.take(index, axis=0)


def canonical_pieces(reader: Reader, row_bytes: int = 0) -> Iterator[tuple[int, Rows]]:
    """All canonical rows in order: (first row, rows); see :func:`row_ranges`."""
    return ((start, reader.rows(start, stop)) for start, stop in row_ranges(reader, row_bytes))


def row_ranges(reader: Reader, row_bytes: int = 0, conversion: Conversion | None = None) -> Iterator[tuple[int, int]]:
    """All canonical rows in order: (first row, the one behind the last), about ``reader.piece`` bytes each.

    ``row_bytes`` is the size of a row in whatever the caller turns it into, where that is larger, with ``conversion``.
    """
    layout = reader.layout
    step = max(1, reader.piece // max(row_bytes, reader.row_bytes, worth(reader, conversion), 1))
    sizes = [n for n, _ in layout.strips[0].rows]
    inner = itertools.accumulate(reversed(sizes), lambda one, n: one * n)
    step -= step % max((n for n in inner if 0 < n <= step), default=1)  # whole heads, so that no row is read twice
    for start in range(0, layout.rows, step):
        yield start, min(start + step, layout.rows)


def worth(reader: Reader, conversion: Conversion | None) -> int:
    """Bytes that a row is worth: of what takes long pieces are smaller, as nobody else works at the end of the last."""
    if conversion is None:
        return 0
    quantises = conversion.action is Action.QUANTIZE
    if reader.piece < CHUNK:  # packed matrices take more memory than bytes
        each = 4 if quantises else 0
    elif quantises and conversion.target.block > _QUICK_BLOCK:
        each = 4
    else:
        each = 2 if conversion.action is Action.REPACK else 0
    return each * reader.layout.cols


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


def _columns(rows: Rows, conversion: Conversion, low: int, high: int) -> tuple[Rows, int]:
    """Columns ``low`` to ``high`` of whole source rows, converted: ``[n, bytes]`` and how many values changed.

    Of blocks only those are decoded that hold one of the columns; what stands side by side in a row cannot be cut.
    """
    source, target = conversion.source, conversion.target
    if source.block == 1 or conversion.action is Action.COPY:
        return conversion.apply(np.ascontiguousarray(rows[:, source.nbytes(low) : source.nbytes(high)]))
    first, last = 0, rows.shape[1] // source.size
    if not side_by_side(source):
        first, last = low // source.block, -(-high // source.block)
    floats = decode(np.ascontiguousarray(rows[:, first * source.size : last * source.size]), source)
    left = first * source.block
    return narrowed(floats[:, low - left : high - left], target)
