"""Rows of a matrix that another quantiser packed: arrays are read tile by tile, and its packing makes rows of them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from ckconv.io.ahead import made_at_once
from ckconv.quant.packed import scheme_of
from ckconv.quant.packings import Tile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from ckconv.core.tensors import Packed, Tensor
    from ckconv.io.rows import Reader
    from ckconv.quant.codec import Rows

    Index = NDArray[np.int64]

#: Bytes of rows that are made at once.
_PIECE = 1 << 20
#: Bytes that all threads keep of a matrix whose rows are columns of the file: they are read in strips as broad as that.
_WINDOW = 8 << 20

_NO_ROWS = np.empty((0, 0), np.uint8)

#: As many times the rows that are wanted are made at once, rather than those alone one by one.
_SPARSE = 4


class PackedRows:
    """Reads rows of the matrix in the order of its arrays; of stacked ones, one matrix after the other."""

    def __init__(self, tensor: Tensor, reader: Callable[[Tensor], Reader]) -> None:
        scheme = scheme_of(tensor.dtype)
        assert scheme is not None
        self._scheme, self._columns = scheme, tensor.layout.stored_cols
        self._modules = [
            (packed, [None if array is None else reader(array.tensor) for array in packed.arrays])
            for packed in tensor.packed
        ]
        readers = (reader for _, own in self._modules for reader in own if reader)
        self.across = any(not reader.layout.in_order for reader in readers)  # they are read in strips, which are kept
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

    def _tile(self, number: int, packed: Packed, start: int, stop: int) -> Tile:
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
        return Tile(start, stop, tuple(arrays), per, self._scheme, self._columns)

    def _stored_width(self, number: int, packed: Packed) -> int:
        """Bytes of all arrays for one row of the matrix."""
        pairs = zip(packed.arrays, self._modules[number][1], strict=True)
        return 1 + sum(reader.row_bytes // array.per for array, reader in pairs if array and reader and array.per)

    def _read(self, key: tuple[int, int], reader: Reader, low: int, high: int, until: int, *, keep: bool) -> Rows:
        """Rows of an array, up to ``until`` where they are columns; those that are there already are not read again."""
        if reader.layout.in_order and not keep:
            return reader.rows(low, high)
        first, rows = self._windows.get(key, (0, _NO_ROWS))
        if low < first or high > first + len(rows):
            rows = _NO_ROWS  # what there was is gone before there is more
            self._windows.pop(key, None)
            self._windows = {other: window for other, window in self._windows.items() if other[0] == key[0]}
            first, rows = low, reader.rows(low, min(reader.layout.rows, max(high, until)))
            self._windows[key] = first, rows
        return rows[low - first : high - first]


class _Zeros:
    """Reads zeros instead of an array."""

    def __init__(self, reader: Reader) -> None:
        self.layout, self.row_bytes = reader.layout, reader.row_bytes

    def rows(self, start: int, stop: int) -> Rows:
        """As many rows of zeros."""
        return np.zeros((stop - start, self.row_bytes), np.uint8)


def numbers_alone(tensor: Tensor, reader: Callable[[Tensor], Reader]) -> Iterator[Rows]:
    """Rows of a packed matrix, in the order of its arrays, with zeros for codes: its first array is not read.

    Unless that is one of blocks, which hold scales, too.
    """
    first = [packed.arrays[0].tensor for packed in tensor.packed if packed.arrays[0] is not None]
    codes = {array.source for array in first if array.dtype.block == 1}

    def without(array: Tensor) -> Any:
        return _Zeros(reader(array)) if array.source in codes else reader(array)

    found = PackedRows(tensor, without)
    total = sum(packed.rows for packed in tensor.packed)
    step = max(1, _PIECE // max(1, tensor.dtype.nbytes(tensor.layout.stored_cols)))
    for start in range(0, total, step):
        yield found.rows(start, min(start + step, total))
