"""Which orders of values are moved: whole rows, rows of heads interleaved, a matrix transposed."""

from __future__ import annotations

import math

from ckconv.core.layouts import Layout, headed, plain, transposed
from ckconv.families import axes as shapes

#: Sizes by which no two axes, and no two products of them, are mistaken for each other.
_PRIMES = (
    3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109,
)  # fmt: skip


def unmoved(stored: shapes.Shape, canonical: shapes.Shape, part: int, *, shared: bool, heads: bool) -> str:
    """Why values in this order are neither read nor written; empty where they are.

    Args:
        shared: other tensors are in the stored one.
        heads: the format stores the rows of heads interleaved, and no matrix transposed.

    Raises:
        AxesError: the two do not hold the same axes.
    """
    letters = dict.fromkeys((*shapes.letters(stored), *shapes.letters(canonical)))
    if any(letter.startswith("_") for letter in letters):
        return "a segment that no tensor owns"
    sizes = dict(zip((letter for letter in letters if not letter.isdigit()), _PRIMES, strict=False))
    found = shapes.move(stored, canonical, part, lambda letter: sizes.get(letter, 1))
    layout = layout_of(found)
    if len(stored) != len(canonical):
        return "another number of axes"
    allowed = layout is not None and (
        layout.in_order or (layout.transposed and not heads) or (layout.interleaved and heads and not shared)
    )
    return "" if allowed else "values in an order that is not moved"


def layout_of(found: shapes.Move) -> Layout | None:
    """The move as a layout of whole rows, or of a transposed matrix; ``None`` where it is neither."""
    rows, cols = math.prod(found.canonical[:-1]), found.canonical[-1]
    if len(found.canonical) == 1:
        rows, cols = cols, 1
    moved = [place for place in found.order if found.parts[place] > 1]
    if moved == sorted(moved):
        return plain(rows, cols) if found.cut is None or math.prod(found.factors[: found.cut[0]]) == 1 else None
    if len(found.stored) == 2 and len(found.canonical) == 2 and _swapped(found):
        return transposed(rows, cols, stored_cols=found.stored[1], column_offset=found.cut[1] if found.cut else 0)
    heads = [found.parts[place] for place in found.order]
    pair = next((n for n in range(1, len(heads)) if found.order[n] == found.order[n - 1] - 1), None)
    if pair is None or found.cut is not None or heads[pair - 1] != 2 or found.order[pair - 1] != pair:
        return None
    rest = [*found.order[: pair - 1], *found.order[pair + 1 :]]
    if rest != sorted(rest) or math.prod(heads[pair + 1 :]) != cols:
        return None
    return headed(math.prod(heads[: pair - 1]), 2 * heads[pair], cols, interleaved=True)


def _swapped(found: shapes.Move) -> bool:
    """Stored columns are the canonical rows, in order."""
    split = next((n for n in range(1, len(found.order)) if found.order[n] < found.order[n - 1]), 0)
    first, second = found.order[:split], found.order[split:]
    width = math.prod(found.parts[place] for place in first)
    return list(first) == sorted(first) and list(second) == sorted(second) and width == found.canonical[0]
