"""Parts of a stored tensor in elements: shapes and places of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ckconv.core.dtypes import F32, DType, float32
from ckconv.core.dtypes import Kind as Kinds
from ckconv.core.layouts import Axis, Layout, merged, strip
from ckconv.core.named import NamedTuple
from ckconv.core.tensors import Tensor, matrix_of, parse
from ckconv.errors import UnsupportedError, quoted
from ckconv.families import axes as shapes
from ckconv.families.names import GGUF, Part, Stored, heads_of, names_of
from ckconv.families.schema import Family
from ckconv.families.sizes import Sizes


class Kind(NamedTuple):
    """A part in one layer, or in all layers where sizes do not differ.

    Attributes:
        whole: shape of the stored tensor.
        shape: shape of the canonical one.
        first: stored element that is its first one.
        axes: in canonical order, with stored elements from one to the next.
    """

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    first: int
    axes: tuple[Axis, ...]

    @property
    def in_order(self) -> bool:
        """Whether the part is a single run of stored elements."""
        return merged(self.axes) in ((), ((math.prod(self.shape), 1),))

    def stacked(self, count: int) -> Kind:
        """Several equal tensors, each stored alone, as a stack."""
        each = math.prod(self.whole)
        return Kind((count, *self.whole), (count, *self.shape), self.first, ((count, each), *self.axes))


def kind_of(part: Part, size: shapes.Size) -> Kind:
    """The part with these sizes.

    Raises:
        AxesError: sizes that are no whole numbers.
    """
    if part.stored != part.axes:
        move = shapes.move(part.stored, part.axes, part.number, size)
        return Kind(move.stored, move.canonical, move.first, move.axes)
    shape = shapes.sizes(part.axes, size)
    return Kind(shape, shape, 0, tuple((n, math.prod(shape[at + 1 :])) for at, n in enumerate(shape)))


def stored_layout(kinds: Sequence[Kind], dtype: DType, *, one: bool = False) -> Layout:
    """Layout of canonical tensors of equal width in a shared stored tensor.

    Args:
        one: of a stack, so that a vector is a row.
    """
    cols = kinds[0].shape[-1] if one else matrix_of(kinds[0].shape, dtype)[1]
    rows = sum(math.prod(kind.shape) for kind in kinds) // cols
    whole = matrix_of(kinds[0].whole, dtype)
    first = 0
    for kind in kinds:
        first = first + math.prod(kind.shape) if kind.in_order and kind.first == first else -1
    axes = [((rows, cols), (cols, 1))] if first == rows * cols else [kind.axes for kind in kinds]
    starts = [kinds[0].first] if len(axes) == 1 else [kind.first for kind in kinds]
    strips = tuple(strip(start, own, cols) for start, own in zip(starts, axes, strict=True))
    return Layout(rows, cols, *whole, strips, shared=len(kinds) == 1)


def layout_in(stored: Stored, sizes: Sizes, layer: int | None) -> tuple[tuple[int, ...], Layout] | None:
    """Shape and layout of a stored tensor; ``None`` if rows just follow.

    Raises:
        AxesError: the parameters give no sizes.
    """
    kinds = [kind_of(part, sizes.of(part.row, layer)) for part in stored.parts]
    layout = stored_layout(kinds, F32, one=bool(stored.parts[0].stack))
    same = layout.in_order and len(kinds[0].whole) == len(kinds[0].shape)
    return None if same else (kinds[0].whole, replace(layout, shared=False))


def factor_of(part: Part, parameters: Mapping[str, Any]) -> float:
    """Factor on stored values, the product of float32 factors.

    Raises:
        AxesError: a factor that no value is divided by again.
    """
    if part.by is None:
        return 1.0
    said = part.by.value(parameters)
    factor = math.prod(float32(one) for one in (said if isinstance(said, list) else [said]))
    if not factor or not math.isfinite(factor):
        raise shapes.AxesError(f"{part.by} is {factor:g}, and a matrix is multiplied by it")
    return factor


def with_factor(tensor: Tensor, factor: float) -> Tensor:
    """Values times the factor that the format's class multiplies them with.

    Raises:
        UnsupportedError: ``model.config``, they are blocks.
    """
    if factor == 1.0 and tensor.layout.scale == 1.0:
        return tensor
    if tensor.dtype.kind is not Kinds.FLOAT:
        why = "and the class multiplies its result by a factor, which blocks cannot store"
        message = f"tensor {quoted(tensor.source)} is {tensor.dtype}, {why}"
        raise UnsupportedError("model.config", message, tensor=tensor.source)
    return replace(tensor, layout=replace(tensor.layout, scale=factor))


def is_regrouped(family: Family, module: str, parameters: Mapping[str, Any] | None) -> bool:
    """Whether GGUF reorders rows or columns beyond interleaved heads.

    Args:
        module: canonical, of the matrix or of the whole that it is stored in.
        parameters: of the model; without them, whether that is so of any.
    """
    names, name = names_of(family, GGUF), parse(f"{module}.weight")
    whole = next((found for found in names.always_fused if found.canonical == name.pattern), None)
    found = whole or names.written.get(name.pattern)
    if found is None or heads_of(family, name.pattern):
        return False
    if parameters is None:
        return any(shapes.of_part(part.stored, part.number) != part.axes for part in found.parts)
    return layout_in(found, Sizes(family, parameters), name.layer) is not None


def is_transposed(part: Part) -> bool:
    """A matrix that is stored ``[in, out]``."""
    own = shapes.of_part(part.stored, part.number) if shapes.segment_count(part.stored) > 1 else part.stored
    return len(own) == 2 and own == part.axes[::-1] and own != part.axes


def has_transposed(family: Family) -> bool:
    """Hugging Face stores matrices of the family ``[in, out]`` (Conv1D)."""
    return any(is_transposed(part) for stored in names_of(family, "hf").written.values() for part in stored.parts)


def canonical_shape(family: Family, parameters: Mapping[str, Any], canonical: str) -> tuple[int, ...] | None:
    """Shape of a canonical tensor, or ``None`` without a row.

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
