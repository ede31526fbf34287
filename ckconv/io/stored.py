"""Stored bytes out of canonical rows, in bounded pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from ckconv.core.layouts import Kind, Layout, plain
from ckconv.core.lazy import Cells, Index, Rows, np, replace
from ckconv.core.tensors import Tensor
from ckconv.io.files import Files
from ckconv.io.rows import PIECE, SCRATCH, Reader, RowReader, cell_of, indices, stored_view, taken, worth
from ckconv.io.tiles import Tiles, is_handed_over
from ckconv.quant.convert import Conversion, Run

# Canonical rows that a target stores as one: of several tensors or a part of one, or several rows as one row.

#: Run, first and last row, first column -> values that changed.
_Counts = dict[tuple[int, int, int, int], int]

#: What reads rows of one run, converted, and counts the values that changed.
_Read = Callable[["Run", "RowReader | RowsTogether", "Index"], "tuple[Rows, int]"]


class JoinedRows:
    """Reader of the converted rows of several runs, joined to one tensor.

    Args:
        cols: elements of a row as it is written.
        changed: what counts values that change; shared where several read the same rows side by side.
        tiles: where rows are cached for whoever compares them.
    """

    def __init__(
        self, runs: Sequence[Run], cols: int, files: Files, changed: _Counts | None = None, tiles: Tiles | None = None
    ) -> None:
        readers = [reader_of(run.tensor, run.conversion, files) for run in runs]
        self._runs = [
            (run._replace(conversion=reader.left(run.conversion)), reader)
            for run, reader in zip(runs, readers, strict=True)
        ]
        self._first = np.cumsum([0, *(run.stop - run.start for run in runs)])
        self._changed: _Counts = {} if changed is None else changed
        self._tiles = tiles
        self.dtype = runs[0].conversion.written
        self.layout = plain(int(self._first[-1]), cols)
        self.row_bytes = max(max(reader.row_bytes, worth(reader, run.conversion)) for run, reader in self._runs)

    @property
    def changed(self) -> int:
        """Changed values of all rows asked for so far, each row counted once."""
        return sum(self._changed.values())

    @property
    def piece(self) -> int:
        """Bytes worth asking for at once."""
        return max(reader.piece for _, reader in self._runs)

    @property
    def max_change(self) -> float:
        """The largest change by adapters to a value read so far."""
        return max(reader.max_change for _, reader in self._runs)

    def gather(self, canonical: Index) -> Rows:
        """The converted rows at these indices."""
        return self._joined(canonical, 0, self.layout.cols, self._read)

    def _read(self, run: Run, reader: RowReader | RowsTogether, rows: Index) -> tuple[Rows, int]:
        return _cached(self._tiles, run.tensor, run.conversion, rows, run.conversion.apply(reader.gather(rows)))

    def columns(self, canonical: Index, low: int, high: int, conversion: Conversion) -> tuple[Rows, int]:
        """Columns of the rows at these indices; they are converted already."""
        return self._joined(
            canonical, low, high, lambda run, reader, rows: reader.columns(rows, low, high, run.conversion)
        ), 0

    def _joined(self, canonical: Index, low: int, high: int, read: _Read) -> Rows:
        out = np.empty((len(canonical), self.dtype.nbytes(high - low)), np.uint8)
        for number, (run, reader) in enumerate(self._runs):
            first, last = int(self._first[number]), int(self._first[number + 1])
            selected = (canonical >= first) & (canonical < last)
            if selected.any():
                wanted = canonical[selected] - first + run.start
                out[selected], changed = read(run, reader, wanted)
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

    def gather(self, canonical: Index) -> Rows:
        """The rows at these indices: ``[len(canonical), row_bytes]``."""
        each = canonical[:, None] * self._many + np.arange(self._many)
        return self._reader.gather(each.reshape(-1)).reshape(len(canonical), self.row_bytes)

    def columns(self, canonical: Index, low: int, high: int, conversion: Conversion) -> tuple[Rows, int]:
        """Convert the rows at these indices, in all their columns."""
        return conversion.apply(self.gather(canonical))


def reader_of(
    tensor: Tensor, conversion: Conversion, files: Files, tiles: Tiles | None = None
) -> RowReader | RowsTogether:
    """The reader of the rows of a tensor for a conversion."""
    reader = RowReader(tensor, files, tiles)
    return reader if conversion.together == 1 else RowsTogether(reader, conversion.together)


# Stored bytes out of canonical rows, in bounded pieces: the bytes of a tensor as a target's layout stores it.
#
# The other way round than :mod:`ckconv.io.rows`, and as little at a time.


class Piece(NamedTuple):
    """A function that makes some of a tensor's stored bytes.

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
    """Pieces of a tensor in ``layout``'s order, for this reader or a copy."""
    if isinstance(reader, RowReader):
        if _same_positions(reader, layout, conversion):
            yield from _elements(reader, conversion)
            return
        conversion = reader.left(conversion)
    if not layout.elements:
        return
    in_order = isinstance(reader, RowReader) and reader.in_order and layout.in_order
    read = reader.row_bytes * layout.stored_cols // layout.cols
    row_bytes = max(conversion.written.nbytes(layout.stored_cols), read, worth(reader, conversion))
    step = max(1, (SCRATCH if layout.by_columns else reader.piece) // max(1, row_bytes)) * layout.stored_cols
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


def _same_positions(reader: RowReader, layout: Layout, conversion: Conversion) -> bool:
    """Whether every element stays in place, so that rows need no gathering."""
    elementwise = Kind.BLOCK not in (conversion.source.kind, conversion.target.kind)
    complete = layout.elements == layout.rows * layout.cols and reader.tensor.merge is None
    alike = replace(reader.layout, shift=layout.shift, scale=layout.scale)
    return elementwise and complete and alike.same_bytes_as(layout)


def _elements(reader: RowReader, conversion: Conversion) -> Iterator[Piece]:
    rows = reader.layout.stored_rows
    step = max(1, PIECE // conversion.target.nbytes(reader.layout.stored_cols))
    for start in range(0, rows, step):
        make = partial(_converted, conversion=conversion, start=start, stop=min(start + step, rows))
        yield Piece(make, start, rows)


def _converted(reader: RowReader, conversion: Conversion, start: int, stop: int) -> tuple[Rows, int]:
    return conversion.apply(reader.stored(start, stop))


def _rows_in_order(reader: RowReader, conversion: Conversion, start: int, stop: int) -> tuple[Rows, int]:
    """Convert canonical rows that both sides store in order."""
    if reader.tiles is not None and conversion.without_codes:
        made = _scales_or_biases(reader, conversion, start, stop)
    else:
        made = conversion.apply(reader.rows(start, stop))
    if reader.tiles is not None:
        reader.tiles.add(reader.tensor, conversion, start, *made)
    return made


def _scales_or_biases(reader: RowReader, conversion: Conversion, start: int, stop: int) -> tuple[Rows, int]:
    """Scales or biases; the other ones are cached, and written next."""
    assert reader.tiles is not None
    assert conversion.plane
    found = reader.tiles.take(reader.tensor, conversion, start, stop, later=True)
    if found is None:
        made, other = conversion.numbers(reader.rows(start, stop)), 3 - conversion.plane
        if other < len(made):
            reader.tiles.keep(reader.tensor, conversion._replace(plane=other), start, made[other], 0, later=True)
        found = made[conversion.plane], 0
    return found


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
        return _cached(reader.tiles, reader.tensor, conversion, rows, made) if isinstance(reader, RowReader) else made
    low, high = int(cols.min()), int(cols.max()) + 1
    values, changed = reader.columns(rows, low, high, conversion)
    block, cell = conversion.written.block, cell_of(conversion.written)
    found = taken(values.view(cell).swapaxes(0, 1), (cols[::block] - low) // block).swapaxes(0, 1)
    return np.ascontiguousarray(found).view(np.uint8), changed


def _cached(tiles: Tiles | None, of: Tensor, how: Conversion, rows: Index, made: tuple[Rows, int]) -> tuple[Rows, int]:
    """Pass on converted rows, cached for whoever compares them."""
    if tiles is not None and is_handed_over(of, how):
        order = np.argsort(rows)  # canonical; heads, say, are written in another
        if (np.diff(rows[order]) == 1).all():
            tiles.add(of, how, int(rows[order[0]]), taken(made[0], order), made[1])
    return made
