"""Shapes of tensors as named axes, and moves between orders of axes.

``"(A 2 d) H"`` is a matrix of A*2*d rows and H columns: ``( )`` is a product, outermost first. The same letters in
another order say how a format stores the values: ``"(A d 2) H"`` has the RoPE rows of a head interleaved,
``"H (A 2 d)"`` is the transposed matrix. ``(x|y)`` are segments one after the other: several tensors that are stored
as one. ``_x`` is a segment that no tensor owns. ``1`` is an axis of one element, which either side may leave out.

A :class:`Move` is computed from two such shapes and holds both directions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from ckconv.core.lazy import NamedTuple, dataclass

#: A row is written for no more tensors.
_MOST_NAMES = 64
_MOST_PARENTHESES = 32

_TOKEN = re.compile(r"\s*([()|]|_?[A-Za-z]\w*|\d+)")

#: Number of elements of an axis letter; half of an odd head is not a number of elements, and twice it is one.
Size = Callable[[str], float]


class AxesError(ValueError):
    """A shape that is written wrongly, or two that do not hold the same axes."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Products in a row along the same axis."""

    parts: tuple[tuple[Term, ...], ...]

    def __str__(self) -> str:
        return f"({'|'.join(' '.join(map(str, part)) for part in self.parts)})"


#: An axis letter, a number, or segments.
Term = str | Segments
Product = tuple[Term, ...]
#: A shape: one product an axis, outermost first.
Shape = tuple[Product, ...]


def single(shape: Shape) -> Shape:
    """Shape of one expert, or of one part of the first axis."""
    return ((shape[0][1:],) if len(shape[0]) > 1 else ()) + shape[1:]


@lru_cache(maxsize=1024)
def parse(text: str) -> Shape:
    """The shape that ``text`` writes.

    Raises:
        AxesError: ``text`` is no shape.
    """
    if text.count("(") > _MOST_PARENTHESES:
        raise AxesError(f"more than {_MOST_PARENTHESES} parentheses")
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if found is None:
            raise AxesError(f"{text!r}: no axis at {text[at:].strip()[:10]!r}")
        tokens.append(found[1])
        at = found.end()
    reader = _Reader(tokens, text)
    axes: list[Product] = []
    while reader.more:
        term = reader.term()
        axes.append(term if isinstance(term, tuple) else (term,))
    if not axes and text:
        raise AxesError("a shape without an axis")
    return tuple(axes)


class _Reader:
    def __init__(self, tokens: list[str], text: str) -> None:
        self._tokens, self._text, self._at = tokens, text, 0

    @property
    def more(self) -> bool:
        return self._at < len(self._tokens)

    def term(self) -> Term | Product:
        """Letter or parenthesis: segments, or a product without ``|``."""
        token = self._next()
        if token != "(":
            if token in ")|":
                raise AxesError(f"{self._text!r}: a letter or ( expected, {token!r} found")
            return token
        parts: list[list[Term]] = [[]]
        while (ahead := self._peek()) != ")":
            if ahead == "|":
                self._next()
                parts.append([])
                continue
            inner = self.term()
            parts[-1] += inner if isinstance(inner, tuple) else (inner,)
        self._next()
        if not all(parts):
            raise AxesError(f"{self._text!r}: an empty segment")
        if len(parts) == 1:
            return tuple(parts[0])
        return Segments(tuple(tuple(part) for part in parts))

    def _peek(self) -> str:
        if not self.more:
            raise AxesError(f"{self._text!r}: a parenthesis that is not closed")
        return self._tokens[self._at]

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token


@lru_cache(maxsize=1024)
def letters(shape: Shape) -> tuple[str, ...]:
    """Axis letters and numbers of a shape, in order, those of segments too."""
    return tuple(letter for product in shape for letter in _letters(product))


def _letters(product: Product) -> Iterator[str]:
    for term in product:
        if isinstance(term, Segments):
            yield from letters(term.parts)
        else:
            yield term


def segment_count(shape: Shape) -> int:
    """Number of segments that tensors own; 1 without segments."""
    counts = {
        sum(not _owned_by_none(part) for part in term.parts)
        for product in shape
        for term in product
        if isinstance(term, Segments)
    }
    if len(counts) > 1:
        raise AxesError("a shape with segments along more than one axis")
    return counts.pop() if counts else 1


def segmented(product: Product) -> bool:
    """Whether the shape has segments."""
    return any(isinstance(term, Segments) for term in product)


def _owned_by_none(part: Product) -> bool:
    return len(part) == 1 and isinstance(part[0], str) and part[0].startswith("_")


def of_part(shape: Shape, part: int) -> Shape:
    """Shape of a single tensor of a shared row: its segment in place of all."""
    return tuple(
        tuple(inner for term in product for inner in (_owned(term)[part] if isinstance(term, Segments) else (term,)))
        for product in shape
    )


def _owned(term: Segments) -> list[Product]:
    return [part for part in term.parts if not _owned_by_none(part)]


def sizes(shape: Shape, size: Size) -> tuple[int, ...]:
    """Elements along each axis.

    Raises:
        AxesError: an axis that is not a whole number of elements.
    """
    return tuple(_size(product, size) for product in shape)


def _size(product: Product, size: Size) -> int:
    return _whole(math.prod(_elements(term, size) for term in product), " * ".join(map(str, product)))


def _whole(value: float, what: object) -> int:
    if not math.isfinite(value) or value != int(value) or value < 1:
        raise AxesError(f"axis {what} has {value:g} elements")
    return int(value)


def _elements(term: Term, size: Size) -> float:
    if isinstance(term, Segments):
        return sum(_segment_size(part, size) for part in term.parts)
    return int(term) if term.isdigit() else size(term.removeprefix("_"))


def _segment_size(part: Product, size: Size) -> int:
    """Size of a segment, which is 0 for a tensor that a model lacks."""
    if math.prod(_elements(term, size) for term in part) == 0:
        return 0
    return _size(part, size)


def _term_size(term: Term, size: Size) -> int:
    return _whole(_elements(term, size), term)


class Move(NamedTuple):
    """Where the values of a canonical tensor are among those of a stored one.

    Attributes:
        stored: shape of the stored tensor.
        canonical: shape of the canonical one.
        first: the stored element that is the first canonical one.
        axes: elements, and stored elements from one to the next, of each axis in canonical order.
    """

    stored: tuple[int, ...]
    canonical: tuple[int, ...]
    first: int
    axes: tuple[tuple[int, int], ...]


def move(stored: Shape, canonical: Shape, part: int, size: Size) -> Move:
    """Move between a stored shape and the canonical shape of a tensor in it.

    Args:
        part: which of the segments, where ``stored`` has some.

    Raises:
        AxesError: the two do not hold the same axes.
    """
    terms = [term for product in stored for term in product]
    stride = math.prod(_term_size(term, size) for term in terms)
    first = 0
    positions: list[tuple[str, int, int]] = []
    for term in terms:
        stride //= _term_size(term, size)
        own: Product = (term,)
        if isinstance(term, Segments):
            start, own = _span(term, part, size)
            first += start * stride
        inner = stride * _size(own, size)
        for letter in _letters(own):
            inner //= _term_size(letter, size)
            positions.append((letter, _term_size(letter, size), inner))
    axes = _in_order(positions, [letter for product in canonical for letter in _letters(product)])
    return Move(sizes(stored, size), sizes(canonical, size), first, axes)


def _span(term: Segments, part: int, size: Size) -> tuple[int, Product]:
    """Where a segment starts, in elements, and what it is."""
    start, owned = 0, -1
    for piece in term.parts:
        owned += not _owned_by_none(piece)
        if owned == part and not _owned_by_none(piece):
            return start, piece
        start += _segment_size(piece, size)
    raise AxesError(f"there is no segment {part + 1}")


def _in_order(positions: list[tuple[str, int, int]], canonical: list[str]) -> tuple[tuple[int, int], ...]:
    """Stored axes in canonical order; axes of length 1 need no partner."""
    left, axes = list(positions), []
    for name in canonical:
        place = next((place for place in left if place[0] == name), None)
        if place is None:
            if name == "1":
                continue
            raise AxesError(f"the stored shape has no axis {name!r}")
        left.remove(place)
        axes.append(place[1:])
    other = next((name for name, _, _ in left if name != "1"), None)
    if other is not None:
        raise AxesError(f"the canonical shape has no axis {other!r}")
    return tuple(axes)


def expanded(text: str) -> list[str]:
    """``a.{q,k}.b`` -> both texts, all braces in step; ``{n}``, ``{E}`` stay.

    Raises:
        AxesError: braces of different counts.
    """
    found = list(re.finditer(r"\{([^{}]*,[^{}]*)\}", text)) if "," in text else []
    if not found:
        return [text]
    lists = [match[1].split(",") for match in found]
    if len({len(items) for items in lists}) > 1:
        raise AxesError(f"{text!r}: braces with different counts")
    if len(lists[0]) > _MOST_NAMES:
        raise AxesError(f"braces of {len(lists[0]):,} names; {_MOST_NAMES} are allowed")
    results = []
    for n in range(len(lists[0])):
        result, end = "", 0
        for match, items in zip(found, lists, strict=True):
            result += text[end : match.start()] + items[n].strip()
            end = match.end()
        results.append(result + text[end:])
    return results
