"""Canonical rows that a target stores as one: of several tensors or a part of one, or several rows as one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ckconv.core.layouts import plain
from ckconv.io.files import Files
from ckconv.io.rows import RowReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckconv.core.tensors import Tensor
    from ckconv.io.tiles import Tiles
    from ckconv.quant.codec import Rows
    from ckconv.quant.convert import Conversion, Run

    Index = NDArray[np.int64]

#: Run, first and last row, first column -> values that changed.
_Counts = dict[tuple[int, int, int, int], int]

#: What reads rows of one run, converted, and counts the values that changed.
_Read = Callable[["Run", "RowReader | RowsTogether", "Index"], "tuple[Rows, int]"]


class JoinedRows:
    """The rows of several runs, already converted, one after the other: what a target stores as one tensor.

    Args:
        cols: elements of a row as it is written.
        changed: what counts values that change; shared where several read the same rows side by side.
    """

    def __init__(self, runs: Sequence[Run], cols: int, files: Files, changed: _Counts | None = None) -> None:
        readers = [reader_of(run.tensor, run.conversion, files) for run in runs]
        self._runs = [
            (run._replace(conversion=reader.left(run.conversion)), reader)
            for run, reader in zip(runs, readers, strict=True)
        ]
        self._first = np.cumsum([0, *(run.stop - run.start for run in runs)])
        self._changed: _Counts = {} if changed is None else changed
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
        cols = self.layout.cols
        return self._joined(canonical, 0, cols, lambda run, reader, rows: run.conversion.apply(reader.gather(rows)))

    def columns(self, canonical: Index, low: int, high: int, conversion: Conversion) -> tuple[Rows, int]:
        """Columns of the rows at these indices; they are converted already."""
        return self._joined(
            canonical, low, high, lambda run, reader, rows: reader.columns(rows, low, high, run.conversion)
        ), 0

    def _joined(self, canonical: Index, low: int, high: int, read: _Read) -> Rows:
        out = np.empty((len(canonical), self.dtype.nbytes(high - low)), np.uint8)
        for number, (run, reader) in enumerate(self._runs):
            first, last = int(self._first[number]), int(self._first[number + 1])
            mine = (canonical >= first) & (canonical < last)
            if mine.any():
                wanted = canonical[mine] - first + run.start
                out[mine], changed = read(run, reader, wanted)
                self._changed[number, int(wanted.min()), int(wanted.max()), low] = changed
        return out


class RowsTogether:
    """Rows of another reader, ``many`` of them side by side."""

    max_change = 0.0

    def __init__(self, reader: RowReader, many: int) -> None:
        self._reader, self._many = reader, many
        self.dtype, self.piece, self.left = reader.dtype, reader.piece, reader.left
        self.layout = plain(reader.layout.rows // many, reader.layout.cols)
        self.row_bytes = reader.row_bytes * many

    def rows(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop``: ``[stop - start, row_bytes]``."""
        return self.gather(np.arange(start, stop, dtype=np.int64))

    def gather(self, canonical: Index) -> Rows:
        """The rows at these indices: ``[len(canonical), row_bytes]``."""
        each = canonical[:, None] * self._many + np.arange(self._many)
        return self._reader.gather(each.reshape(-1)).reshape(len(canonical), self.row_bytes)

    def columns(self, canonical: Index, low: int, high: int, conversion: Conversion) -> tuple[Rows, int]:
        """All columns of the rows at these indices, converted: what stands side by side cannot be cut."""
        return conversion.apply(self.gather(canonical))


def reader_of(
    tensor: Tensor, conversion: Conversion, files: Files, tiles: Tiles | None = None
) -> RowReader | RowsTogether:
    """What reads the rows of a tensor as a conversion takes them."""
    reader = RowReader(tensor, files, tiles)
    return reader if conversion.together == 1 else RowsTogether(reader, conversion.together)
