"""Canonical rows out of stored bytes, and stored bytes out of canonical rows, in bounded pieces.

A :class:`RowReader` undoes a tensor's layout while reading. :func:`stored_chunks` goes the other way: it yields the
bytes of a tensor as a target layout stores it. Neither ever holds a whole tensor: pieces are about ``CHUNK`` bytes,
and where a layout turns rows into columns they are up to ``SCRATCH`` bytes, so that the source is not read too often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ckconv.core.layouts import Layout, plain
from ckconv.io.files import CHUNK, Files
from ckconv.quant.convert import decode, narrowed
from ckconv.quant.triples import triple_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckconv.core.tensors import Tensor
    from ckconv.io.merge import MergedRows
    from ckconv.quant.codec import Rows
    from ckconv.quant.convert import Conversion, Run, narrowed

    Index = NDArray[np.int64]

#: Bytes of a piece where rows become columns: a compromise between memory and reading the source again.
SCRATCH = 8 << 20

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


class RowReader:
    """Reads the canonical rows of one tensor, as bytes of its stored type, padding cut off."""

    def __init__(self, tensor: Tensor, files: Files) -> None:
        self.tensor = tensor
        self.layout = tensor.layout
        self._files = files
        self._itemsize = tensor.dtype.size  # only meaningful for types of one element a block
        self._planes = [RowReader(plane, files) for plane in tensor.planes]
        self._merged: MergedRows | None = None
        if tensor.merge is not None:
            from ckconv.io.merge import MergedRows

            self._merged = MergedRows(tensor.merge, tensor.dtype, files)
        self.row_bytes = tensor.dtype.nbytes(self.layout.cols)
        self._stored_row_bytes = tensor.dtype.nbytes(self.layout.stored_cols)

    @property
    def max_change(self) -> float:
        """The largest difference that adapters made to a value, of all rows read so far."""
        return self._merged.max_change if self._merged else 0.0

    @property
    def piece(self) -> int:
        """Bytes worth asking for at once: more where every piece costs a pass over the whole tensor."""
        return SCRATCH if self.layout.transposed else CHUNK

    def rows(self, start: int, stop: int) -> Rows:
        """Canonical rows ``start`` to ``stop``: ``[stop - start, row_bytes]``; planes stand side by side."""
        if self._merged:
            return self._merged.rows(start, stop)
        if self._planes:
            return np.concatenate([plane.rows(start, stop) for plane in self._planes], axis=1)
        if self.layout.transposed:
            return self._rows_of_transposed(start, stop)
        if self.layout.column_head:
            return self._rows_of_blocks(start, stop)
        return self.gather(np.arange(start, stop, dtype=np.int64))

    def gather(self, canonical: Index) -> Rows:
        """The canonical rows at these indices: ``[len(canonical), row_bytes]``."""
        if self._merged:
            return self._merged.gather(canonical)
        if self._planes:
            return np.concatenate([plane.gather(canonical) for plane in self._planes], axis=1)
        if not len(canonical):
            return np.empty((0, self.row_bytes), np.uint8)
        if self.layout.transposed or self.layout.column_head:
            low = int(canonical.min())
            return _take(self.rows(low, int(canonical.max()) + 1), canonical - low)
        stored = self.layout.stored_index(canonical)
        low, high = int(stored.min()), int(stored.max()) + 1
        if high - low <= 4 * len(stored):
            block = _take(self.stored(low, high), stored - low)
        else:
            block = np.concatenate([self.stored(int(row), int(row) + 1) for row in stored])
        return block if self.row_bytes == self._stored_row_bytes else np.ascontiguousarray(block[:, : self.row_bytes])

    def stored(self, start: int, stop: int) -> Rows:
        """Stored rows, padding included. Rows of several extents follow each other; no row crosses two."""
        out = np.empty((stop - start, self._stored_row_bytes), np.uint8)
        self._files.read_run(self.tensor.extents, start * self._stored_row_bytes, out.reshape(-1))
        return out

    def _rows_of_blocks(self, start: int, stop: int) -> Rows:
        """Canonical rows of a matrix whose columns are stored head by head."""
        size = self._itemsize
        out = np.empty((stop - start, self.row_bytes), np.uint8)
        width = self.layout.column_head * size
        for head in range(self.layout.heads):
            first = head * self.layout.block_rows
            out[:, head * width : (head + 1) * width] = self.stored(first + start, first + stop)[:, :width]
        return out

    def _rows_of_transposed(self, start: int, stop: int) -> Rows:
        """Canonical rows are stored columns: one pass over the stored matrix."""
        size = self._itemsize
        out = np.empty((stop - start, self.layout.cols, size), np.uint8)
        step = max(1, CHUNK // self._stored_row_bytes)
        for low in range(0, self.layout.cols, step):
            high = min(low + step, self.layout.cols)
            tile = self.stored(low, high).reshape(high - low, self.layout.stored_cols, size)
            first = self.layout.column_offset
            out[:, low:high] = tile[:, first + start : first + stop].swapaxes(0, 1)
        return out.reshape(stop - start, self.row_bytes)


class JoinedRows:
    """The rows of several runs, already converted, one after the other: what a target stores as one tensor.

    Args:
        cols: elements of a row as it is written.
    """

    def __init__(self, runs: Sequence[Run], cols: int, files: Files) -> None:
        self._runs = [(run, RowReader(run.tensor, files)) for run in runs]
        self._first = np.cumsum([0, *(run.stop - run.start for run in runs)])
        self._changed: dict[tuple[int, int, int], int] = {}
        self.dtype = runs[0].conversion.written
        self.layout = plain(int(self._first[-1]), cols)
        self.row_bytes = self.dtype.nbytes(cols)

    @property
    def changed(self) -> int:
        """Values that are not what they were, of all rows asked for so far; rows asked for again count once."""
        return sum(self._changed.values())

    @property
    def piece(self) -> int:
        """Bytes worth asking for at once."""
        return max(reader.piece for _, reader in self._runs)

    @property
    def max_change(self) -> float:
        """The largest difference that adapters made to a value, of all rows read so far."""
        return max(reader.max_change for _, reader in self._runs)

    def rows(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop``: ``[stop - start, row_bytes]``."""
        return self.gather(np.arange(start, stop, dtype=np.int64))

    def gather(self, canonical: Index) -> Rows:
        """The rows at these indices: ``[len(canonical), row_bytes]``."""
        out = np.empty((len(canonical), self.row_bytes), np.uint8)
        for number, (run, reader) in enumerate(self._runs):
            first, last = int(self._first[number]), int(self._first[number + 1])
            mine = (canonical >= first) & (canonical < last)
            if mine.any():
                wanted = canonical[mine] - first + run.start
                out[mine], changed = run.conversion.apply(reader.gather(wanted))
                self._changed[number, int(wanted.min()), int(wanted.max())] = changed
        return out


def _take(block: Rows, index: Index) -> Rows:
    """``block[index]``, without a copy where that is the block itself."""
    if len(index) == len(block) and bool((index == np.arange(len(index))).all()):
        return block
    return block.take(index, axis=0)


def canonical_pieces(reader: Reader, row_bytes: int = 0) -> Iterator[tuple[int, Rows]]:
    """All canonical rows in order: (first row, rows), about ``reader.piece`` bytes each.

    ``row_bytes`` is the size of a row in whatever the caller turns it into, where that is larger.
    """
    layout = reader.layout
    step = max(1, reader.piece // max(row_bytes, reader.row_bytes, 1))
    if layout.head_rows and step > layout.head_rows:
        step -= step % layout.head_rows  # whole heads, so that no row is read twice
    for start in range(0, layout.rows, step):
        yield start, reader.rows(start, min(start + step, layout.rows))


def stored_chunks(reader: Reader, layout: Layout, conversion: Conversion) -> Iterator[tuple[Rows, int]]:
    """The bytes of a tensor as ``layout`` stores them, in order.

    Yields:
        contiguous uint8 arrays, and how many values in each are not what they were (see :class:`Conversion`).
    """
    if isinstance(reader, RowReader) and _same_places(reader, layout, conversion):
        yield from _elements(reader, layout, conversion)
    elif layout.column_head:
        yield from _blocks(reader, layout, conversion)
    elif layout.transposed:
        yield from _transposed(reader, layout, conversion)
    else:
        yield from _rows(reader, layout, conversion)


def _same_places(reader: RowReader, layout: Layout, conversion: Conversion) -> bool:
    """Every element stays where it is, so that rows need not be put together, whatever they are to either side."""
    elementwise = conversion.source.block == conversion.target.block == 1
    complete = layout.elements == layout.rows * layout.cols and reader.tensor.merge is None
    alike = replace(reader.layout, shift=layout.shift, scale=layout.scale)
    return elementwise and complete and alike.same_bytes_as(layout)


def _elements(reader: RowReader, layout: Layout, conversion: Conversion) -> Iterator[tuple[Rows, int]]:
    step = max(1, CHUNK // conversion.target.nbytes(layout.stored_cols))
    for start in range(0, layout.stored_rows, step):
        yield conversion.apply(reader.stored(start, min(start + step, layout.stored_rows)))


def _rows(reader: Reader, layout: Layout, conversion: Conversion) -> Iterator[tuple[Rows, int]]:
    target = conversion.written
    stored_bytes, row_bytes = target.nbytes(layout.stored_cols), target.nbytes(layout.cols)
    step = max(1, reader.piece // max(stored_bytes, reader.row_bytes))
    if layout.head_stride and step > layout.head_stride:
        step -= step % layout.head_stride
    for start in range(0, layout.stored_rows, step):
        stop = min(start + step, layout.stored_rows)
        canonical = layout.canonical_index(np.arange(start, stop, dtype=np.int64))
        real = canonical >= 0
        whole = bool(real.all())
        rows, changed = conversion.apply(reader.gather(canonical if whole else canonical[real]))
        if whole and stored_bytes == row_bytes:
            yield rows, changed
            continue
        out = np.zeros((stop - start, stored_bytes), np.uint8)
        if whole:
            out[:, :row_bytes] = rows
        else:
            out[real, :row_bytes] = rows
        yield out, changed


def _blocks(reader: Reader, layout: Layout, conversion: Conversion) -> Iterator[tuple[Rows, int]]:
    """One block of columns per head, a few heads at a time so that the source is read only a few times."""
    size = conversion.target.size
    width = layout.column_head * size
    group = max(1, SCRATCH // (layout.block_rows * layout.stored_cols * size))
    for first in range(0, layout.heads, group):
        heads = min(group, layout.heads - first)
        out = np.zeros((heads, layout.block_rows, layout.stored_cols * size), np.uint8)
        changed = 0
        for start, rows in canonical_pieces(reader):
            cut, some = _columns(rows, conversion, first * layout.column_head, (first + heads) * layout.column_head)
            changed += some
            out[:, start : start + len(rows), :width] = cut.reshape(len(rows), heads, width).swapaxes(0, 1)
        yield out.reshape(-1, layout.stored_cols * size), changed


def _transposed(reader: Reader, layout: Layout, conversion: Conversion) -> Iterator[tuple[Rows, int]]:
    """Stored rows are canonical columns, padded at their end: a group of columns at a time."""
    size = conversion.target.size
    group = max(1, SCRATCH // (layout.stored_cols * size))
    for low in range(0, layout.cols, group):
        high = min(low + group, layout.cols)
        out = np.zeros((high - low, layout.stored_cols, size), np.uint8)
        changed = 0
        for start, rows in canonical_pieces(reader):
            cut, some = _columns(rows, conversion, low, high)
            changed += some
            out[:, start : start + len(rows)] = cut.reshape(len(rows), high - low, size).swapaxes(0, 1)
        yield out.reshape(high - low, layout.stored_cols * size), changed


def _columns(rows: Rows, conversion: Conversion, low: int, high: int) -> tuple[Rows, int]:
    """Columns ``low`` to ``high`` of whole source rows, converted: ``[n, bytes]`` and how many values changed.

    Of blocks only those are decoded that hold one of the columns; the planes of an MLX triple cannot be cut.
    """
    source, target = conversion.source, conversion.target
    if source.block == 1:
        return conversion.apply(np.ascontiguousarray(rows[:, low * source.size : high * source.size]))
    first, last = 0, rows.shape[1] // source.size
    if triple_of(source) is None:
        first, last = low // source.block, -(-high // source.block)
    floats = decode(np.ascontiguousarray(rows[:, first * source.size : last * source.size]), source)
    left = first * source.block
    return narrowed(floats[:, low - left : high - left], target)
