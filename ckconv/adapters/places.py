"""Where the matrices of a LoRA lie: as the outputs and the inputs of a stored matrix lie along its two axes.

A format that stores rows of heads in another order, or Q, K and V head by head, has the rows of ``lora_b`` in that
order; ``lora_a`` knows nothing of it. So a LoRA of such a matrix is as exact as one of any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ckconv.core.layouts import Axis, Layout, Strip, merged
from ckconv.families.kinds import Kind, kind_of
from ckconv.families.names import Stored
from ckconv.families.sizes import Sizes


class Side(NamedTuple):
    """The outputs, or the inputs, of a canonical matrix along one axis of the stored one: the first, and the axes."""

    first: int
    axes: tuple[Axis, ...]

    def spread(self, step: int) -> tuple[Axis, ...]:
        """The axes where the stored elements are so far apart."""
        return tuple((count, stride * step) for count, stride in self.axes)


class Sides(NamedTuple):
    """Both sides of one canonical matrix; ``turned`` if outputs lie along the second axis of the stored one."""

    outputs: Side
    inputs: Side
    turned: bool


class Outputs(NamedTuple):
    """The outputs of all that is stored as one matrix, which has so many; and its inputs, where they are moved too."""

    sides: tuple[Side, ...]
    rows: int
    inputs: Side | None = None

    def layout(self, rank: int, *, turned: bool = False, stored_rank: int = 0) -> Layout:
        """Of a ``lora_b``; ``turned``: stored ``[rank, out]``; ``stored_rank``: zeros make it one of this rank."""
        width = stored_rank or rank
        step, along = (1, self.rows) if turned else (width, 1)
        strips = tuple(
            Strip(side.first * step, merged(side.spread(step)), merged([(rank, along)])) for side in self.sides
        )
        stored = (width, self.rows) if turned else (self.rows, width)
        return Layout(self.rows, rank, *stored, strips)

    def layout_of_a(self, rank: int, cols: int) -> Layout:
        """Of the ``lora_a`` beside it, which is stored ``[rank, in]``."""
        moved = self.inputs or Side(0, ((cols, 1),))
        strips = (Strip(moved.first, merged([(rank, cols)]), merged(moved.axes)),)
        return Layout(rank, cols, rank, cols, strips)


def sides_of(kind: Kind) -> Sides | None:
    """The two sides of a matrix, or of each one of a stack; ``None`` where the stored axes mix them."""
    rows, _ = _matrix(kind)
    if len(kind.whole) < 2 or len(kind.shape) < len(kind.whole):
        return None
    across = kind.whole[-1]
    axes = kind.axes[1:] if len(kind.whole) == 3 else kind.axes
    split = next((n for n in range(len(axes) + 1) if math.prod(a for a, _ in axes[:n]) == rows), None)
    if split is None:
        return None
    found = []
    for own in (axes[:split], axes[split:]):
        second = {stride < across for count, stride in own if count > 1}
        if len(second) > 1:
            return None
        found.append((own, second.pop() if second else None))
    (own_rows, rows_second), (own_columns, columns_second) = found
    turned = bool(rows_second) if rows_second is not None else columns_second is False
    if columns_second is turned:
        return None
    down, right = divmod(kind.first, across)
    outputs = Side(right if turned else down, own_rows if turned else _divided(own_rows, across))
    inputs = Side(down if turned else right, _divided(own_columns, across) if turned else own_columns)
    return Sides(outputs, inputs, turned)


def _matrix(kind: Kind) -> tuple[int, int]:
    """Rows and columns of the matrix, or of each one of a stack; heads of one matrix are its rows."""
    stacked = len(kind.whole) == 3
    return math.prod(kind.shape[stacked:-1]), kind.shape[-1]


def _divided(axes: Sequence[Axis], by: int) -> tuple[Axis, ...]:
    return tuple((count, stride // by) for count, stride in axes)


def outputs_of(stored: Stored, sizes: Sizes, layer: int | None) -> Outputs | None:
    """Where outputs and inputs are in a stored matrix; ``None`` where all are in canonical order."""
    kinds = [kind_of(part, sizes.of(part.row, layer)) for part in stored.parts]
    sides = [sides_of(kind) for kind in kinds]
    known = [side for side in sides if side is not None]
    if len(known) < len(sides):
        return None
    first, in_order = 0, True
    for kind, side in zip(kinds, known, strict=True):
        rows, _ = _matrix(kind)
        in_order &= side.outputs.first == first and merged(side.outputs.axes) in ((), ((rows, 1),))
        first += rows
    height, inputs = kinds[0].whole[-1 if known[0].turned else -2], known[0].inputs
    same = merged(inputs.axes) in ((), ((kinds[0].shape[-1], 1),))
    if in_order and same:
        return None
    return Outputs(tuple(side.outputs for side in known), height, None if same else inputs)
