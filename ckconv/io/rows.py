"""Canonical rows out of arrays, packings and merged adapters, in pieces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ckconv.core.layouts import F32, F64, WIDENS_TO_F32, Box, DType, Kind, Layout, Strip, boxes, float32
from ckconv.core.lazy import Cells, Floats, Index, Rows, np
from ckconv.core.tensors import Delta, Merge, PackedMatrix, Replacement, Rescale, Tensor, blocks_split
from ckconv.errors import UnsupportedError
from ckconv.io.files import CHUNK, Files
from ckconv.io.tiles import Tiles, made_at_once
from ckconv.quant.codec import from_float32
from ckconv.quant.convert import Action, Conversion, decodable, decode, narrowed, side_by_side

if TYPE_CHECKING:
    from ckconv.quant.packings.module import Tile


# Boxes of a strip: elements that stay in order along every axis, between stored bytes and canonical rows.
#
# A *cell* is what is moved as one: an element, or a block of them.

#: As many times the cells that are wanted are read at once, rather than those alone one by one; or a page.
SPARSE, PAGE = 4, 4096

#: Bytes from one run to the next that are read along: that takes less time than another read does.
_ALONG = 32 << 10

#: Of an axis of a box: how many cells, and from one to the next where they come from and where they go.
Moved = tuple[int, int, int]


def cell_of(dtype: DType) -> np.dtype[Any]:
    """The numpy type that moves a cell."""
    return np.dtype(f"u{dtype.size}" if dtype.size in (1, 2, 4, 8) else f"V{dtype.size}")


def row_boxes(
    strip: Strip, block: int, rows: tuple[int, int], cols: tuple[int, int]
) -> Iterator[tuple[int, int, list[Moved]]]:
    """Canonical rows and columns as boxes: first cells and axes.

    The first cell is that of the stored ones, then that of those rows.
    """
    width = (cols[1] - cols[0]) // block
    for down in boxes([n for n, _ in strip.rows], *rows):
        for across in boxes([n for n, _ in strip.cols], *cols):
            first, to, axes = strip.first // block, -rows[0] * width - cols[0] // block, []
            for (_, stride), inner, (low, high) in _steps(strip, down, across, width * block):
                unit = block if stride == 1 else 1
                first += low * stride // block
                to += low * inner // block
                axes.append(((high - low) // unit, stride * unit // block, inner * unit // block))
            yield first, to, axes


def _steps(strip: Strip, down: Box, across: Box, width: int) -> Iterator[tuple[tuple[int, int], int, tuple[int, int]]]:
    """The axes of a strip with their strides in consecutive rows."""
    for axes, box, inner in ((strip.rows, down, width), (strip.cols, across, 1)):
        for axis, limits in zip(reversed(axes), reversed(box), strict=True):
            yield axis, inner, limits
            inner *= axis[0]


def read_box(read: Callable[[int, Cells], None], first: int, axes: Sequence[Moved], out: Cells, limit: int) -> None:
    """Read a box of cells into their positions of ``out``.

    Args:
        read: fills an array with the cells from one on.
        limit: bytes that are read before they are put in their positions.
    """
    axes = sorted((axis for axis in axes if axis[0] > 1), key=lambda axis: -axis[1])
    if _near(axes, out.itemsize, limit):
        _read_runs(read, first, [(1, 0, 0), *axes], out, limit)
        return
    (n, stride, to), *inner = axes
    if not _near(inner, out.itemsize, limit):
        for index in range(n):
            read_box(read, first + index * stride, inner, out[index * to :], limit)
        return
    some = min(n, max(1, limit // (stride * out.itemsize)))
    if not _near([(some, stride, to), *inner], out.itemsize, limit):
        _read_runs(read, first, axes, out, limit)
        return
    for low in range(0, n, some):
        part = [(min(some, n - low), stride, to), *inner]
        _read_runs(read, first + low * stride, [(1, 0, 0), *part], out[low * to :], limit)


def _near(axes: Sequence[Moved], size: int, limit: int) -> bool:
    """Whether cells lie so close that all bytes between are read at once."""
    nbytes, wanted = _span(axes) * size, size * math.prod(n for n, _, _ in axes)
    runs = math.prod(n for n, stride, _ in axes if stride > 1)
    return nbytes <= PAGE or nbytes <= min(limit, max(SPARSE * wanted, _ALONG * runs))


def _span(axes: Sequence[Moved]) -> int:
    """Cells from the first one to the last."""
    return 1 + sum((n - 1) * stride for n, stride, _ in axes)


def _read_runs(read: Callable[[int, Cells], None], first: int, axes: Sequence[Moved], out: Cells, limit: int) -> None:
    """A run for each index of the first axis."""
    (n, stride, _), *inner = axes
    size, run = out.itemsize, _span(inner)
    many = max(1, min(n, limit // (run * size)))
    buffer = np.empty((many, run), out.dtype)
    tile = np.lib.stride_tricks.as_strided(
        buffer, [many, *(n for n, _, _ in inner)], [run * size, *(step * size for _, step, _ in inner)]
    )
    view = np.lib.stride_tricks.as_strided(out, [n for n, _, _ in axes], [to * size for _, _, to in axes])
    for low in range(0, n, many):
        high = min(low + many, n)
        for index in range(low, high):
            read(first + index * stride, buffer[index - low])
        view[low:high] = tile[: high - low]


def stored_view(cells: Cells, strip: Strip, box: Box, block: int, start: int) -> Cells:
    """View of a box in stored cells from ``start`` on, row axes first."""
    first, axes = strip.first - start, []
    for (_, stride, _, of_rows), (low, high) in zip(strip.stored, box, strict=True):
        unit = block if stride == 1 else 1
        first += low * stride
        axes.append((not of_rows, (high - low) // unit, stride * unit // block * cells.itemsize))
    axes.sort(key=lambda axis: axis[0])
    return np.lib.stride_tricks.as_strided(
        cells[first // block :], [n for _, n, _ in axes], [step for _, _, step in axes]
    )


def indices(strip: Strip, box: Box, *, of_rows: bool) -> Index:
    """The canonical rows of a box, or its columns, in stored order."""
    found = np.zeros(1, np.int64)
    for (_, _, inner, row_axis), (low, high) in zip(strip.stored, box, strict=True):
        if row_axis is of_rows:
            found = np.add.outer(found, np.arange(low, high, dtype=np.int64) * inner).reshape(-1)
    return found


# Rows of a matrix that another quantizer packed: arrays are read tile by tile, and its packing makes rows of them.

#: Bytes of rows that are made at once.
_PIECE = 1 << 20
#: Bytes that all threads keep of a matrix whose rows are columns of the file: they are read in strips as broad as that.
_WINDOW = 8 << 20


#: As many times the rows that are wanted are made at once, rather than those alone one by one.
_SPARSE = 4


class PackedRows:
    """Reader of packed rows in the arrays' order, matrix after matrix."""

    def __init__(self, tensor: Tensor, reader: Callable[[Tensor], RowReader]) -> None:
        self._dtype, self._columns = tensor.dtype, tensor.layout.stored_cols
        self._modules = [
            (packed, [None if array is None else reader(array.tensor) for array in packed.arrays])
            for packed in tensor.packed
        ]
        self._first = [0, *itertools.accumulate(packed.rows for packed in tensor.packed)]
        self._windows: dict[tuple[int, int], tuple[int, Rows]] = {}
        self._width = tensor.dtype.nbytes(self._columns)

    def rows(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop``."""
        parts = []
        for number, (packed, _) in enumerate(self._modules):
            low, high = max(start, self._first[number]), min(stop, self._first[number + 1])
            if low < high:
                first = self._first[number]
                parts.append(packed.unpack(self._tile(number, packed, low - first, high - first)))
        if not parts:
            return np.empty((0, self._width), np.uint8)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def gather(self, wanted: Index) -> Rows:
        """The rows with these numbers."""
        if not len(wanted):
            return self.rows(0, 0)
        low, high = int(wanted.min()), int(wanted.max()) + 1
        if high - low <= _SPARSE * len(wanted):
            rows = self.rows(low, high)
            return rows if high - low == len(wanted) and bool((np.diff(wanted) == 1).all()) else rows[wanted - low]
        half = len(wanted) // 2
        return np.concatenate([self.gather(wanted[:half]), self.gather(wanted[half:])])

    def _tile(self, number: int, packed: PackedMatrix, start: int, stop: int) -> Tile:
        from ckconv.quant.packings.module import Tile

        arrays: list[Rows | None] = []
        ahead = start + _WINDOW // (2 * made_at_once()) // self._stored_width(number, packed)
        for position, (array, reader) in enumerate(zip(packed.arrays, self._modules[number][1], strict=True)):
            if array is None or reader is None:
                arrays.append(None)
                continue
            low, high, until = 0, reader.layout.rows, reader.layout.rows
            if array.per:
                low, high, until = start // array.per, -(-stop // array.per), -(-ahead // array.per)
            arrays.append(self._read((number, position), reader, low, high, until, keep=not array.per))
        per = tuple(array.per if array is not None else 0 for array in packed.arrays)
        return Tile(start, stop, tuple(arrays), per, self._dtype, self._columns)

    def _stored_width(self, number: int, packed: PackedMatrix) -> int:
        """Bytes of all arrays for one row of the matrix."""
        pairs = zip(packed.arrays, self._modules[number][1], strict=True)
        return 1 + sum(reader.row_bytes // array.per for array, reader in pairs if array and reader and array.per)

    def _read(self, key: tuple[int, int], reader: RowReader, low: int, high: int, until: int, *, keep: bool) -> Rows:
        """Read an array's rows unless buffered, up to ``until`` if by columns."""
        if reader.layout.in_order and not keep:
            return reader.rows(low, high)
        nothing = np.empty((0, 0), np.uint8)
        first, rows = self._windows.get(key, (0, nothing))
        if low < first or high > first + len(rows):
            rows = nothing  # what there was is gone before there is more
            self._windows.pop(key, None)
            self._windows = {other: window for other, window in self._windows.items() if other[0] == key[0]}
            first, rows = low, reader.rows(low, min(reader.layout.rows, max(high, until)))
            self._windows[key] = first, rows
        return rows[low - first : high - first]


class _Zeros:
    """Reads zeros instead of an array."""

    def __init__(self, reader: RowReader) -> None:
        self.layout, self.row_bytes = reader.layout, reader.row_bytes

    def rows(self, start: int, stop: int) -> Rows:
        """As many rows of zeros."""
        return np.zeros((stop - start, self.row_bytes), np.uint8)


def values_of(tensor: Tensor, files: Files, start: int = 0, stop: int | None = None) -> Floats:
    """Canonical rows from ``start`` to ``stop``, decoded exactly.

    Raises:
        UnsupportedError: ``tensor.values``, the type has no float32 values.
    """
    if tensor.dtype not in WIDENS_TO_F32 and not decodable(tensor.dtype):
        raise UnsupportedError("tensor.values", f"{tensor.dtype} has no float32 values", tensor=tensor.name)
    reader = RowReader(tensor, files)
    return decode(reader.rows(start, tensor.layout.rows if stop is None else stop), reader.dtype)


def numbers_alone(tensor: Tensor, files: Files) -> Iterator[Rows]:
    """Rows of a packed matrix with zeros for codes, in the order of arrays.

    The first array is not read.

    Unless that is one of blocks, which hold scales, too.
    """
    first = [packed.arrays[0].tensor for packed in tensor.packed if packed.arrays[0] is not None]
    codes = {array.source for array in first if array.dtype.block == 1}

    def without(array: Tensor) -> Any:
        reader = RowReader(array, files)
        return _Zeros(reader) if array.source in codes else reader

    found = PackedRows(tensor, without)
    total = sum(packed.rows for packed in tensor.packed)
    step = max(1, _PIECE // max(1, tensor.dtype.nbytes(tensor.layout.stored_cols)))
    for start in range(0, total, step):
        yield found.rows(start, min(start + step, total))


# Canonical rows out of stored bytes, in bounded pieces: a :class:`RowReader` undoes a tensor's layout while reading.
#
# It never holds a whole tensor: pieces are about ``PIECE`` bytes, and where a layout takes rows apart they are up to
# ``SCRATCH`` bytes, so that the source is not read too often.

#: Bytes of a piece. Smaller ones take longer: the steps of each give the interpreter's lock to whoever hashes and
#: compares, and wait to have it back.
PIECE = 2 << 20

#: Bytes of a piece where rows are taken apart: a compromise between memory and the number of reads.
SCRATCH = 4 << 20

#: Types of blocks of up to so many numbers are quantized about as fast as they are read, those of more look for scales.
_QUICK_BLOCK = 32

# glibc gives freed memory back to the system at once, and getting it again, zeroed page by page, takes longer than what
# is done with it. Once a block of this size was freed, it keeps as much (mallopt(3), "dynamic mmap threshold"). Nothing
# touches the block, so it costs no memory, and elsewhere it does nothing.
bytes(2 * SCRATCH)


class Reader(Protocol):
    """Where canonical rows come from."""

    layout: Layout
    row_bytes: int

    @property
    def piece(self) -> int:
        """Bytes worth asking for at once."""

    def gather(self, canonical: Index) -> Rows:
        """The canonical rows at these indices: ``[len(canonical), row_bytes]``."""

    def columns(self, canonical: Index, low: int, high: int, conversion: Conversion) -> tuple[Rows, int]:
        """Convert columns of the rows at these indices; count changed values."""


class RowReader:
    """Reads the canonical rows of one tensor, padding cut off.

    Attributes:
        dtype: of the rows: the stored one, but F32 where blocks hold values of several rows and are decoded first.
    """

    def __init__(self, tensor: Tensor, files: Files, tiles: Tiles | None = None) -> None:
        """Read nothing yet; converted rows go to ``tiles``, too."""
        self.tensor, self.tiles = tensor, tiles
        self.dtype = tensor.dtype
        self.layout = tensor.layout
        self._files = files
        self._planes = [RowReader(plane, files) for plane in tensor.planes]
        self._packed = PackedRows(tensor, lambda array: RowReader(array, files)) if tensor.packed else None
        self._merged: MergedRows | None = None
        if tensor.merge is not None:
            self._merged = MergedRows(tensor.merge, tensor.dtype, files)
        elif why := blocks_split(tensor.dtype, tensor.layout):
            if not decodable(tensor.dtype):
                raise UnsupportedError("plan.refused", f"{tensor.source}: {why}", tensor=tensor.source)
            self.dtype = F32
        self.row_bytes = self.dtype.nbytes(self.layout.cols)

    @property
    def max_change(self) -> float:
        """The largest change by adapters to a value read so far."""
        return self._merged.max_change if self._merged else 0.0

    @property
    def in_order(self) -> bool:
        """Whether canonical rows are stored one after the other."""
        in_one = not self.tensor.planes and self.tensor.merge is None
        return in_one and self.dtype is self.tensor.dtype and self.layout.in_order

    def left(self, conversion: Conversion) -> Conversion:
        """The rest of a conversion, after reading."""
        return conversion if self.dtype is self.tensor.dtype else conversion._replace(source=self.dtype)

    @property
    def piece(self) -> int:
        """Bytes worth asking for at once: more for rows out of many runs."""
        if self._merged:  # what is added to a row is as large as the row, in float32
            return PIECE // 2
        return PIECE if self.layout.whole_rows or self.layout.run > 1 else SCRATCH

    def rows(self, start: int, stop: int) -> Rows:
        """Canonical rows ``[stop - start, row_bytes]``, planes side by side."""
        if self._merged:
            return self._merged.rows(start, stop)
        if self._planes and self.dtype is self.tensor.dtype:
            return np.concatenate([plane.rows(start, stop) for plane in self._planes], axis=1)
        if self._packed and self.dtype is self.tensor.dtype:
            if self.layout.in_order:
                return self._packed.rows(start, stop)
            return self.gather(np.arange(start, stop, dtype=np.int64))
        if self.in_order:
            out = np.empty((stop - start, self.row_bytes), np.uint8)
            self._read(start * self.row_bytes, out.reshape(-1))
            return out
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
        """Convert columns of the rows at these indices; count changed values."""
        if self._merged or self.dtype.kind is Kind.BLOCK:  # of another quantizer's single column one number is a block
            return _columns(self.gather(canonical), conversion, low, high)
        return conversion.apply(self._gather(canonical, low, high))

    def stored(self, start: int, stop: int) -> Rows:
        """Stored rows, padding included; extents join, and no row crosses two."""
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
        starts = (self.layout.start(canonical) + low) // dtype.block * dtype.size
        edges = [0, *(np.flatnonzero(np.diff(starts) != width) + 1).tolist(), len(starts)]
        first = int(starts.min())
        nbytes = int(starts.max()) + width - first
        out = np.empty((len(starts), width), np.uint8)
        if len(edges) == 2 or nbytes > max(SPARSE * len(starts) * width, PAGE * len(edges)):
            for one, other in itertools.pairwise(edges):
                self._read(int(starts[one]), out[one:other])
            return out
        if nbytes <= 2 * CHUNK or len(starts) == 1:
            return self._picked(first, nbytes, starts - first, width)
        step = max(1, len(starts) * CHUNK // nbytes)
        for one in range(0, len(starts), step):
            out[one : one + step] = self._gather(canonical[one : one + step], low, high)
        return out

    def _picked(self, first: int, nbytes: int, starts: Index, width: int) -> Rows:
        """Rows that begin at these offsets of a run of bytes."""
        pitch = self.dtype.nbytes(self.layout.pitch)
        index = starts // pitch
        count = int(index.max()) + 1
        run = np.empty(max(nbytes, count * pitch), np.uint8)
        self._read(first, run[:nbytes])
        if pitch == width:
            return taken(run.reshape(count, pitch), index)
        picked: Rows = np.lib.stride_tricks.as_strided(run, (count, width), (pitch, 1))[index]
        return picked

    def _read(self, start: int, out: Rows) -> None:
        if self.dtype is self.tensor.dtype:
            self._files.read_run(self.tensor.extents, start, out)
        else:
            self._read_decoded(start // self.dtype.size, out)

    def _read_decoded(self, first: int, out: Rows) -> None:
        """Decode values from a stored element on, out of blocks or planes."""
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


def canonical_pieces(reader: RowReader, row_bytes: int = 0) -> Iterator[tuple[int, Rows]]:
    """All canonical rows in order: (first row, rows); see :func:`row_ranges`."""
    return ((start, reader.rows(start, stop)) for start, stop in row_ranges(reader, row_bytes))


def row_ranges(reader: Reader, row_bytes: int = 0, conversion: Conversion | None = None) -> Iterator[tuple[int, int]]:
    """Ranges of canonical rows, about ``reader.piece`` bytes each.

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
    """Bytes that a row counts for, more if slow, so that pieces are smaller."""
    if conversion is None:
        return 0
    action = conversion.action
    if action is Action.QUANTIZE and conversion.target.block > _QUICK_BLOCK:
        return 4 * reader.layout.cols
    return 2 * reader.layout.cols if action in (Action.QUANTIZE, Action.REPACK) else 0


def same_values(one: Tensor, other: Tensor, files: Files) -> bool:
    """Whether two tensors are the same numbers, each in its float type."""
    if one.shape != other.shape or not {one.dtype, other.dtype} <= WIDENS_TO_F32:
        return False
    reader, other_reader = RowReader(one, files), RowReader(other, files)
    return all(
        np.array_equal(
            decode(rows, one.dtype).view(np.uint32),
            decode(other_reader.rows(start, start + len(rows)), other.dtype).view(np.uint32),
        )
        for start, rows in canonical_pieces(reader, max(reader.row_bytes, other_reader.row_bytes))
    )


def _columns(rows: Rows, conversion: Conversion, low: int, high: int) -> tuple[Rows, int]:
    """Convert columns of whole source rows: ``[n, bytes]``, changed values.

    Of blocks only those are decoded that hold one of the columns; what stands side by side in a row cannot be cut.
    """
    source, target = conversion.source, conversion.target
    if source.kind is not Kind.BLOCK or conversion.action is Action.COPY:
        return conversion.apply(np.ascontiguousarray(rows[:, source.nbytes(low) : source.nbytes(high)]))
    first, last = 0, rows.shape[1] // source.size
    if not side_by_side(source):
        first, last = low // source.block, -(-high // source.block)
    floats = decode(np.ascontiguousarray(rows[:, first * source.size : last * source.size]), source)
    left = first * source.block
    return narrowed(floats[:, low - left : high - left], target)


# Rows of a matrix that adapters change, a piece at a time.
#
# Everything is computed in float32, element by element and in a fixed order: a matrix product of a library adds in an
# order that depends on the processor, and the same input is to give the same bytes everywhere.
#
# Sources: ``merge`` and ``get_delta_weight`` of the layers of peft 0.21 (tuners/lora/layer.py, tuners/lora/dora.py,
# tuners/ia3/layer.py, tuners/trainable_tokens/layer.py).


class MergedRows:
    """Reader of canonical rows with adapters merged, rounded once."""

    def __init__(self, merge: Merge, dtype: DType, files: Files) -> None:
        self._dtype = dtype
        self._name = merge.base.name
        self._path = next((extent.path for extent in merge.base.extents), None)
        self._base = RowReader(merge.base, files)
        self._changes = [_change(change, files) for change in merge.changes]
        #: The largest absolute difference to the base's own value, of all rows made so far.
        self.max_change = 0.0

    def rows(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop``: ``[stop - start, bytes of a row]``.

        Raises:
            UnsupportedError: ``adapter.unsupported``, what is made of a finite number is none.
        """
        return self._changed(self._base.rows(start, stop), np.arange(start, stop, dtype=np.int64))

    def gather(self, canonical: Index) -> Rows:
        """The rows at these indices."""
        return self._changed(self._base.gather(canonical), canonical)

    def _changed(self, stored: Rows, canonical: Index) -> Rows:
        before = decode(stored, self._base.dtype)
        after = before.copy()
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is an error below
            for change in self._changes:
                after = change.apply(after, canonical)
            made, _ = from_float32(after, self._dtype)
            rounded = decode(made, self._dtype)
            difference = np.abs(rounded - before)
        if not np.isfinite(difference).all():
            self._check_finite(before, rounded, canonical)
        self.max_change = max(self.max_change, float(np.nanmax(difference, initial=0.0)))
        return made

    def _check_finite(self, before: Floats, after: Floats, canonical: Index) -> None:
        """Raise if a finite value became infinite or NaN."""
        broken = (np.isfinite(before) & ~np.isfinite(after)).any(axis=1)
        if broken.any():
            raise UnsupportedError(
                "adapter.unsupported",
                f"the adapters make row {canonical[broken][0]:,} of {self._name} infinite or NaN in {self._dtype}",
                path=self._path,
                tensor=self._name,
            )


def _change(change: Delta | Rescale | Replacement, files: Files) -> _Added | _Rescaled | _Replaced:
    if isinstance(change, Delta):
        return _Added(change, files)
    return _Rescaled(change, files) if isinstance(change, Rescale) else _Replaced(change, files)


class _Added:
    """LoRA and DoRA."""

    def __init__(self, delta: Delta, files: Files) -> None:
        self._a = RowReader(delta.a, files) if delta.a is not None else None
        self._b_type = delta.b.dtype
        self._b = RowReader(delta.b, files)
        #: Rows of one matrix of a stack, 0 where there is no stack.
        self._out = delta.b.shape[1] if len(delta.b.shape) == 3 else 0
        self._scale = np.float32(float32(delta.scale))
        self._magnitude = _Factors(delta.magnitude, files) if delta.magnitude is not None else None
        self._rows_of_a: Floats | None = None

    def apply(self, values: Floats, canonical: Index) -> Floats:
        """Change ``values``, the rows ``canonical``, perhaps in place."""
        if self._rows_of_a is None:  # rank x in: as small as the adapter is
            self._rows_of_a = np.ones((1, 1), np.float32)
            if self._a is not None:
                self._rows_of_a = _loaded(self._a.rows(0, self._a.layout.rows), self._a.tensor.dtype)
        total = np.zeros_like(values)
        product = np.empty_like(values)
        b = _loaded(self._b.gather(canonical), self._b_type)
        of_rank: Iterable[Floats] = self._rows_of_a
        if self._out:
            rows = self._rows_of_a.reshape(-1, b.shape[1], values.shape[1])
            of_rank = (rows[canonical // self._out, rank] for rank in range(b.shape[1]))
        for rank, row in enumerate(of_rank):
            np.multiply(b[:, rank, None], row, out=product)
            total += product
        total *= self._scale
        values += total
        if self._magnitude is not None:
            values *= (self._magnitude.of(canonical) / _lengths(values))[:, None]
        return values


class _Rescaled:
    """IA3."""

    def __init__(self, change: Rescale, files: Files) -> None:
        self._factors = _Factors(change.factors, files)
        self._of_columns = change.of_columns

    def apply(self, values: Floats, canonical: Index) -> Floats:
        """As :meth:`_Added.apply`."""
        if self._of_columns:
            values *= self._factors.of(np.arange(values.shape[1], dtype=np.int64))
        else:
            values *= self._factors.of(canonical)[:, None]
        return values


class _Replaced:
    """Rows of trainable tokens."""

    def __init__(self, change: Replacement, files: Files) -> None:
        self._type, self._reader = change.rows.dtype, RowReader(change.rows, files)
        order = np.argsort(change.at)
        self._at, self._order = np.array(change.at, np.int64)[order], order.astype(np.int64)

    def apply(self, values: Floats, canonical: Index) -> Floats:
        """As :meth:`_Added.apply`."""
        place = np.searchsorted(self._at, canonical).clip(max=len(self._at) - 1)
        found = self._at[place] == canonical
        if found.any():
            values[found] = _loaded(self._reader.gather(self._order[place[found]]), self._type)
        return values


def _loaded(rows: Rows, dtype: DType) -> Floats:
    """float32, as peft loads an adapter: F64 is rounded."""
    return rows.view(np.float64).astype(np.float32) if dtype is F64 else decode(rows, dtype)


class _Factors:
    """A vector of an adapter."""

    def __init__(self, tensor: Tensor, files: Files) -> None:
        self._reader, self._type = RowReader(tensor, files), tensor.dtype

    def of(self, canonical: Index) -> Floats:
        """float32 ``[len(canonical)]``."""
        return _loaded(self._reader.gather(canonical), self._type).reshape(-1)


def _lengths(values: Floats) -> Floats:
    """The Euclidean length of every row, added in a fixed order."""
    squares = values.astype(np.float64)
    squares *= squares
    width = squares.shape[1]
    while width > 1:  # halves on halves: elementwise, whatever the processor can do at once
        half = (width + 1) // 2
        squares[:, : width - half] += squares[:, half:width]
        width = half
    return np.sqrt(squares[:, 0]).astype(np.float32)
