"""Rows of a tensor, some of them as one: an array of the target has numbers of several in one word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ckconv.core.layouts import plain
from ckconv.io.rows import RowReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckconv.core.tensors import Tensor
    from ckconv.io.files import Files
    from ckconv.io.tiles import Tiles
    from ckconv.quant.codec import Rows
    from ckconv.quant.convert import Conversion

    Index = NDArray[np.int64]


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
