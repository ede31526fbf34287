"""How a tensor's canonical rows lie in stored bytes.

Canonical order is Hugging Face's: a matrix is ``[out, in]`` rows, the RoPE rows of a head are in split
("rotate half") order, and nothing is padded. A :class:`Layout` says where those rows are in a file, by the number of
stored elements from one index of an axis to the next: heads with padding behind them, RoPE pairs as neighbors, columns
in blocks by head, a transposed matrix, Q K and V fused head by head are all such strides. It is index arithmetic and
knows no bytes and no files, so the same object serves a reader, a writer and the verifier, and quantized rows move as
opaque runs of whole blocks.

Units: rows and columns are elements. A vector is a matrix of one column, so that biases permute and
pad the way the rows of their matrix do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeVar

from ckconv.core.late import Index

#: The number of a row, or of many.
Row = TypeVar("Row", int, "Index")

#: Of an axis: its elements, and how many stored elements are from one to the next.
Axis = tuple[int, int]

#: One range of each axis.
Box = tuple[tuple[int, int], ...]

#: Layouts that are shared: the tensors of a model have a few dozen.
_KEPT = 1024

#: What a format stores for a canonical w: 1 + w, or another number more (of float32), or -exp(w), exp(w), or
#: log(1 + exp(w)). A tensor has one of them everywhere or none, so the difference of two says what makes the one out of
#: the other.
ADD_ONE, NEG_EXP, EXP, SOFTPLUS = 1, 2, 3, 5

#: The signs of stored exponentials, and of what is log(1 + one).
EXPONENTIALS: Mapping[float, int] = {NEG_EXP: -1, EXP: 1, SOFTPLUS: 1}

#: Of whole numbers: each is stored higher by its place in its row.
COUNTED = 4


def ambiguous(shift: float) -> bool:
    """Whether several canonical values are stored as the same number.

    Exponentials and sums with a fraction are rounded; several float32 become the same one.
    """
    return shift < 0 and (-shift in EXPONENTIALS or shift != int(shift))


@dataclass(frozen=True)
class Strip:
    """Canonical rows one after the other, and where their elements are stored.

    Attributes:
        first: the stored element that is the first one.
        rows, cols: axes of the rows and of a row, outermost first.
    """

    first: int
    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]

    @cached_property
    def height(self) -> int:
        """How many rows they are."""
        return math.prod(n for n, _ in self.rows)

    @cached_property
    def stored(self) -> tuple[tuple[int, int, int, bool], ...]:
        """The axes in stored order: elements, strides, whether of rows.

        The stored stride comes first, then the canonical one.
        """
        own = [*_canonical(self.rows, True), *_canonical(self.cols, False)]
        return tuple(sorted(own, key=lambda axis: -axis[1]))

    @property
    def run(self) -> int:
        """Elements of a row that lie together, at multiples of their number."""
        if self.cols and self.cols[-1][1] != 1:
            return 1
        inner = self.cols[-1][0] if self.cols else 1
        return math.gcd(inner, self.first, *(stride for _, stride in (*self.rows, *self.cols[:-1])))

    def start(self, row: Row) -> Row:
        """The stored element that is the first one of a row."""
        at = row * 0 + self.first
        for n, stride in reversed(self.rows):
            at = at + row % n * stride
            row = row // n
        return at

    def between(self, start: int, stop: int) -> Iterator[Box]:
        """Ranges of the axes, in stored order, between two stored elements."""
        sizes = [axis[0] for axis in self.stored]
        yield from boxes(sizes, self._behind(start), self._behind(stop))

    def _behind(self, element: int) -> int:
        """How many of the strip's elements lie before a stored one."""
        rest, count = max(0, element - self.first), math.prod(axis[0] for axis in self.stored)
        before = 0
        for n, stride, _, _ in self.stored:
            count //= n
            step, rest = divmod(rest, stride)
            before += min(step, n) * count
            if step >= n:
                return before
        return before + (rest > 0)


def _canonical(axes: Sequence[Axis], of_rows: bool) -> Iterator[tuple[int, int, int, bool]]:
    inner = 1
    for n, stride in reversed(axes):
        yield n, stride, inner, of_rows
        inner *= n


def boxes(sizes: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The elements ``start`` to ``stop`` of an array as few boxes in order."""
    if start >= stop:
        return
    if not sizes:
        yield ()
        return
    inner = math.prod(sizes[1:])
    low, below = divmod(start, inner)
    high, above = divmod(stop, inner)
    if below:
        for box in boxes(sizes[1:], below, inner if low < high else above):
            yield (low, low + 1), *box
        low += 1
    if low < high:
        yield (low, high), *((0, n) for n in sizes[1:])
    if above and low <= high:
        for box in boxes(sizes[1:], 0, above):
            yield (high, high + 1), *box


def merged(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """The same elements along as few axes as can be."""
    found: list[Axis] = []
    for n, stride in axes:
        if n != 1 and found and found[-1][1] == n * stride:
            found[-1] = found[-1][0] * n, stride
        elif n != 1:
            found.append((n, stride))
    return tuple(found)


@dataclass(frozen=True)
class Layout:
    """Places of a canonical matrix in ``[stored_rows, stored_cols]``.

    Attributes:
        rows, cols: the canonical matrix.
        stored_rows, stored_cols: the stored matrix, padding and other tensors included.
        strips: where the canonical rows are; several where other tensors' rows follow that are stored as one with them.
        shared: stored elements that are in no canonical row are those of other tensors, no padding.
        shift: what the file holds for a canonical value (gemma norms are 1 + w in GGUF); 0 for the value itself.
        scale: what every stored value is to be multiplied by (the B of a LoRA, whose scale its configuration holds;
            the matrices of a class that multiplies what comes out of them); a float32 number, or the product of a few.
    """

    rows: int
    cols: int
    stored_rows: int
    stored_cols: int
    strips: tuple[Strip, ...]
    shared: bool = False
    shift: float = 0
    scale: float = 1.0

    @property
    def in_order(self) -> bool:
        """Whether stored rows are the canonical rows and nothing else, in order.

        Bytes can be copied as one run.
        """
        return self.elements == self.rows * self.cols and self.strips == _in_order(self.rows, self.cols)

    @property
    def padded(self) -> bool:
        """Whether the stored matrix holds zeros that are in no canonical row."""
        return not self.shared and self.elements != self.rows * self.cols

    @property
    def elements(self) -> int:
        """Stored elements, padding included."""
        return self.stored_rows * self.stored_cols

    @cached_property
    def run(self) -> int:
        """Elements of a row that stay together, which blocks have to divide."""
        return math.gcd(*(strip.run for strip in self.strips))

    @property
    def pitch(self) -> int:
        """Stored elements from one row to another are a multiple of this."""
        return math.gcd(*(stride for strip in self.strips for _, stride in strip.rows)) or self.cols

    @property
    def whole_rows(self) -> bool:
        """Every row lies together."""
        return all(strip.cols in ((), ((self.cols, 1),)) for strip in self.strips)

    @property
    def by_columns(self) -> bool:
        """Whether the matrix is stored transposed: columns lie together."""
        return any(strip.cols and strip.cols[-1][1] != 1 for strip in self.strips)

    @property
    def interleaved(self) -> bool:
        """Whether rows ``i`` and ``i + n / 2`` of each head are neighbors.

        llama.cpp's converter stores Q and K like that.
        """
        return self._pair >= 0

    @property
    def heads(self) -> int:
        """How many heads have their rows ``interleaved``; 1 where none has."""
        return math.prod(n for n, _ in self.strips[0].rows[: max(0, self._pair)])

    @property
    def _pair(self) -> int:
        """Which axis of rows counts the two halves of a head."""
        axes = self.strips[0].rows if len(self.strips) == 1 else ()
        pairs = itertools.pairwise(axes)
        return next((n for n, (one, other) in enumerate(pairs) if one[0] == 2 and other[1] == 2 * one[1]), -1)

    @property
    def period(self) -> int:
        """The period of the permutation of rows; for one strip of whole rows."""
        axes = self.strips[0].rows
        inner = math.prod(n for n, _ in axes[1:])
        return inner if axes and axes[0][1] == inner * self.cols else self.rows

    def start(self, rows: Index) -> Index:
        """The stored elements at which canonical rows start."""
        if len(self.strips) == 1:
            return self.strips[0].start(rows)
        places, first = rows * 0, 0
        for strip in self.strips:
            own = (rows >= first) & (rows < first + strip.height)
            places[own] = strip.start(rows[own] - first)
            first += strip.height
        return places

    def same_bytes_as(self, other: Layout) -> bool:
        """Whether two layouts put the same values at the same places.

        A whole tensor is one run of bytes then.
        """
        if (self.shift, self.scale) != (other.shift, other.scale) or (self.rows, self.cols) != (other.rows, other.cols):
            return False
        return not self.padded and (self.elements, self.strips) == (other.elements, other.strips)

    def part(self, first: int, rows: int) -> Layout:
        """The layout of canonical rows from ``first`` on, in the same matrix.

        They are whole heads if there are some.
        """
        strips: list[Strip] = []
        left = rows
        for one in self.strips:
            many = min(left, one.height - first)
            if many <= 0:
                first = max(0, first - one.height)
                continue
            inner = math.prod(n for n, _ in one.rows[1:])
            stride = one.rows[0][1] if one.rows else 0
            kept = merged([(many // inner, stride), *one.rows[1:]])
            strips.append(Strip(one.first + first // inner * stride, kept, one.cols))
            first, left = 0, left - many
        return replace(self, rows=rows, strips=tuple(strips), shared=True)

    def of_width(self, cols: int) -> Layout:
        """The same places for rows of another width; only for whole rows."""
        wide = tuple(
            Strip(
                strip.first * cols // self.cols,
                tuple((n, stride * cols // self.cols) for n, stride in strip.rows),
                merged([(cols, 1)]),
            )
            for strip in self.strips
        )
        return replace(self, cols=cols, stored_rows=self.elements // self.cols, stored_cols=cols, strips=wide)


def stored_order(layout: Layout, other: Layout) -> Layout | None:
    """Return ``layout`` with rows and columns in the order of ``other``.

    Elements that ``other`` stores one after the other are neighbors, as blocks have them. ``None`` where an axis of the
    one runs over several of the other.
    """
    if len(layout.strips) > 1 or len(other.strips) > 1 or other.strips[0].first:
        return None
    if (layout.rows, layout.cols) != (other.rows, other.cols) or other.elements != other.rows * other.cols:
        return None
    places: list[Axis] = []
    for n, _, step, of_rows in other.strips[0].stored:
        axes = [axis for axis in layout.strips[0].stored if axis[3] is of_rows]
        found = [(n, stride * step // own) for size, stride, own, _ in axes if own <= step and step * n <= own * size]
        if not found:
            return None
        places.append(found[0])
    rows, cols = other.stored_rows, other.stored_cols
    split = next((at for at in range(len(places) + 1) if math.prod(n for n, _ in places[at:]) == cols), None)
    if split is None:
        return None
    strips = (Strip(layout.strips[0].first, merged(places[:split]), merged(places[split:])),)
    return replace(layout, rows=rows, cols=cols, strips=strips)


def _in_order(rows: int, cols: int) -> tuple[Strip, ...]:
    return (Strip(0, merged([(rows, cols)]), merged([(cols, 1)])),)


def strip(first: int, axes: Sequence[Axis], cols: int) -> Strip:
    """The strip with these axes in canonical order.

    The last ones are the ``cols`` elements of a row.
    """
    split = len(axes)
    while cols > 1:
        split -= 1
        cols //= axes[split][0]
    return Strip(first, merged(axes[:split]), merged(axes[split:]))


def plain(rows: int, cols: int, *, stored_rows: int = 0, stored_cols: int = 0, shift: float = 0) -> Layout:
    """Rows in canonical order, padded at their ends and after the last."""
    return headed(1, rows, cols, head_stride=stored_rows, stored_cols=stored_cols, shift=shift)


@lru_cache(maxsize=_KEPT)
def headed(
    heads: int,
    head_rows: int,
    cols: int,
    *,
    head_stride: int = 0,
    stored_cols: int = 0,
    interleaved: bool = False,
    shift: float = 0,
) -> Layout:
    """Rows of heads, each padded to ``head_stride`` stored rows."""
    stride, width = head_stride or head_rows, stored_cols or cols
    rows = [(2, width), (head_rows // 2, 2 * width)] if interleaved else [(head_rows, width)]
    places = Strip(0, merged([(heads, stride * width), *rows]), merged([(cols, 1)]))
    return Layout(heads * head_rows, cols, heads * stride, width, (places,), shift=shift)


def column_blocks(rows: int, heads: int, head_cols: int, *, block_rows: int = 0, stored_cols: int = 0) -> Layout:
    """Columns of heads, each stored as a ``[block_rows, stored_cols]`` block."""
    block, width = block_rows or rows, stored_cols or head_cols
    places = Strip(0, merged([(rows, width)]), merged([(heads, block * width), (head_cols, 1)]))
    return Layout(rows, heads * head_cols, heads * block, width, (places,))


def transposed(rows: int, cols: int, *, stored_cols: int = 0) -> Layout:
    """Canonical ``[rows, cols]`` stored as columns of a matrix."""
    width = stored_cols or rows
    return Layout(rows, cols, cols, width, (Strip(0, merged([(rows, 1)]), merged([(cols, width)])),))


def shifted(layout: Layout, shift: float) -> Layout:
    """The same places, values stored ``shift`` higher."""
    return replace(layout, shift=shift)
