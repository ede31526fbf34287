"""Stored bytes out of canonical rows, in bounded pieces: the bytes of a tensor as a target's layout stores it.

The other way round than :mod:`ckconv.io.rows`, and as little at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ckconv.core.layouts import Layout
from ckconv.io.cells import cell_of, indices, stored_view
from ckconv.io.files import CHUNK
from ckconv.io.rows import SCRATCH, Reader, RowReader, taken, worth
from ckconv.io.tiles import is_handed_over

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckconv.io.cells import Cells
    from ckconv.quant.codec import Rows
    from ckconv.quant.convert import Conversion

    Index = NDArray[np.int64]


class Piece(NamedTuple):
    """What makes some of a tensor's stored bytes.

    Attributes:
        make: of a reader a contiguous uint8 array, and how many values in it are not what they were
            (see :class:`Conversion`).
        start: where it begins, if the whole tensor is ``of``.
    """

    make: Callable[[Any], tuple[Rows, int]]
    start: int
    of: int

    def __call__(self, reader: Any) -> tuple[Rows, int]:
        """Make it."""
        return self.make(reader)


def stored_pieces(reader: Reader, layout: Layout, conversion: Conversion) -> Iterator[Piece]:
    """The bytes of a tensor as ``layout`` stores them, in order, to be made of this reader or one like it."""
    if isinstance(reader, RowReader):
        if _same_places(reader, layout, conversion):
            yield from _elements(reader, conversion)
            return
        conversion = reader.left(conversion)
    if not layout.elements:
        return
    in_order = isinstance(reader, RowReader) and reader.in_order and layout.in_order
    read = reader.row_bytes * layout.stored_cols // layout.cols
    row_bytes = max(conversion.written.nbytes(layout.stored_cols), read, worth(reader, conversion))
    step = max(1, (reader.piece if layout.whole_rows else SCRATCH) // max(1, row_bytes)) * layout.stored_cols
    strides = (stride for strip in layout.strips for _, stride in (*strip.rows, *strip.cols))
    step -= step % max((stride for stride in strides if layout.stored_cols <= stride <= step), default=1)
    for start in range(0, layout.elements, step):
        stop = min(start + step, layout.elements)
        if in_order:
            one, other = start // layout.cols, stop // layout.cols
            make = partial(_rows_in_order, conversion=conversion, start=one, stop=other)
        else:
            make = partial(_chunk, layout=layout, conversion=conversion, start=start, stop=stop)
        yield Piece(make, start, layout.elements)


def _same_places(reader: RowReader, layout: Layout, conversion: Conversion) -> bool:
    """Every element stays where it is, so that rows need not be put together, whatever they are to either side."""
    elementwise = conversion.source.block == conversion.target.block == 1
    complete = layout.elements == layout.rows * layout.cols and reader.tensor.merge is None
    alike = replace(reader.layout, shift=layout.shift, scale=layout.scale)
    return elementwise and complete and alike.same_bytes_as(layout)


def _elements(reader: RowReader, conversion: Conversion) -> Iterator[Piece]:
    rows = reader.layout.stored_rows
    step = max(1, CHUNK // conversion.target.nbytes(reader.layout.stored_cols))
    for start in range(0, rows, step):
        make = partial(_converted, conversion=conversion, start=start, stop=min(start + step, rows))
        yield Piece(make, start, rows)


def _converted(reader: RowReader, conversion: Conversion, start: int, stop: int) -> tuple[Rows, int]:
    return conversion.apply(reader.stored(start, stop))


def _rows_in_order(reader: RowReader, conversion: Conversion, start: int, stop: int) -> tuple[Rows, int]:
    """Canonical rows that both sides store as they are: what :func:`_chunk` makes of them, without asking where."""
    made = _converted(reader, conversion, start, stop)
    if reader.tiles is not None:
        reader.tiles.add(reader.tensor, conversion, start, *made)
    return made


def _chunk(reader: Reader, layout: Layout, conversion: Conversion, start: int, stop: int) -> tuple[Rows, int]:
    """Stored elements ``start`` to ``stop``, those of no canonical row zero."""
    dtype, cell = conversion.written, cell_of(conversion.written)
    out: Cells | None = None
    above = all_changed = 0
    for strip in layout.strips:
        for box in strip.between(start, stop):
            rows, cols = above + indices(strip, box, of_rows=True), indices(strip, box, of_rows=False)
            values, changed = _box(reader, layout, conversion, rows, cols)
            all_changed += changed
            if layout.whole_rows and len(rows) * len(cols) == stop - start:
                return values, changed
            if out is None:
                out = np.zeros((stop - start) // dtype.block, cell)
            view = stored_view(out, strip, box, dtype.block, start)
            view[...] = values.view(cell).reshape(view.shape)
        above += strip.height
    if out is None:
        out = np.zeros((stop - start) // dtype.block, cell)
    return out.view(np.uint8), all_changed


def _box(reader: Reader, layout: Layout, conversion: Conversion, rows: Index, cols: Index) -> tuple[Rows, int]:
    """Rows and columns of a tensor, converted, in this order."""
    if layout.whole_rows and len(cols) == layout.cols:
        made = conversion.apply(reader.gather(rows))
        if isinstance(reader, RowReader) and reader.tiles is not None and is_handed_over(reader.tensor, conversion):
            order = np.argsort(rows)
            if _follow(rows[order]):  # whoever compares takes canonical rows: heads, say, in another order
                reader.tiles.add(reader.tensor, conversion, int(rows[order[0]]), taken(made[0], order), made[1])
        return made
    low, high = int(cols.min()), int(cols.max()) + 1
    values, changed = reader.columns(rows, low, high, conversion)
    block, cell = conversion.written.block, cell_of(conversion.written)
    found = taken(values.view(cell).swapaxes(0, 1), (cols[::block] - low) // block).swapaxes(0, 1)
    return np.ascontiguousarray(found).view(np.uint8), changed


def _follow(rows: Index) -> bool:
    """Each row is the one behind the one before it."""
    return bool((np.diff(rows) == 1).all())
