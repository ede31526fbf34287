"""What a part of a stored tensor is, in elements: shapes, and where its rows lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ckconv.core.layouts import Layout
from ckconv.core.names import parse
from ckconv.families import axes as shapes
from ckconv.families.names import Part, names_of
from ckconv.families.orders import layout_of
from ckconv.families.schema import Family
from ckconv.families.sizes import Sizes


class Kind(NamedTuple):
    """A part in one layer, or in all layers where sizes do not differ.

    Attributes:
        whole: shape of the stored tensor.
        shape: shape of the canonical one.
        first: stored row that is its first one, where it is a run of whole rows.
        layout: where its rows lie in what it is cut to; ``None`` where stored and canonical order are the same.
    """

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    first: int
    layout: Layout | None


def kind_of(part: Part, size: shapes.Size) -> Kind:
    """The part with these sizes.

    Raises:
        AxesError: sizes that are no whole numbers, or values in an order that is not moved.
    """
    whole, shape = shapes.sizes(part.stored, size), shapes.sizes(part.axes, size)
    if part.stored == part.axes:
        return Kind(whole, shape, 0, None)
    move = shapes.move(part.stored, part.axes, part.number, size)
    layout = layout_of(move)
    if layout is None:
        raise shapes.AxesError("values in an order that is not moved")
    return Kind(whole, shape, move.first_row, layout)


def is_transposed(part: Part) -> bool:
    """A matrix that is stored ``[in, out]``."""
    own = shapes.of_part(part.stored, part.number) if shapes.segment_count(part.stored) > 1 else part.stored
    return len(own) == 2 and own == part.axes[::-1] and own != part.axes


def has_transposed(family: Family) -> bool:
    """Hugging Face stores matrices of the family ``[in, out]`` (Conv1D)."""
    return any(is_transposed(part) for stored in names_of(family, "hf").written.values() for part in stored.parts)


def canonical_shape(family: Family, parameters: Mapping[str, Any], canonical: str) -> tuple[int, ...] | None:
    """The shape of a canonical tensor; ``None`` for one that the family does not have.

    Raises:
        AxesError: the parameters give no sizes.
    """
    name = parse(canonical)
    found = names_of(family, "hf").written.get(name.pattern)
    part = next((part for part in found.parts if part.canonical == name.pattern), None) if found else None
    if part is None:
        return None
    axes = (part.row.axes[0], *part.axes) if part.stack else part.axes
    return shapes.sizes(axes, Sizes(family, parameters).of(part.row, name.layer))
