"""What an adapter changes: of which module, of which rows of a fused one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ckconv.core.config import ModelConfig
from ckconv.core.tensors import PARTS, Adapter, AdapterModule, Role, Tensor, TensorIndex, cut, parse, with_layer
from ckconv.families.catalogue import FAMILIES
from ckconv.families.kinds import canonical_shape
from ckconv.families.schema import Family


class Change(NamedTuple):
    """How one matrix of the base changes: the tensors of ``module`` by role, rows cut to those of that matrix."""

    module: AdapterModule
    tensors: Mapping[Role, Tensor]


def family_of(adapter: Adapter) -> Family | None:
    """The family of the base, where it is known."""
    return FAMILIES[adapter.base.family] if adapter.base else None


def matrix_shape(module_name: str, config: ModelConfig) -> tuple[int, ...] | None:
    """``[out, in]`` of a module of the base, a fused one included; ``None`` for one that the family does not have."""
    name = parse(module_name)
    if name.layer is not None and name.layer >= config.num_layers:
        return None
    family = FAMILIES[config.family]
    parts = [with_layer(part, name.layer) for part in PARTS.get(name.pattern, (name.pattern,))]
    shapes = [
        canonical_shape(family, config.scope, f"{part}.weight") or canonical_shape(family, config.scope, part)
        for part in parts
    ]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    if len(known) == 1:
        return known[0]
    return (sum(math.prod(shape[:-1]) for shape in known), known[0][-1])


def changes_of(index: TensorIndex, name: str, config: ModelConfig) -> tuple[Change, ...]:
    """What an adapter changes of the canonical tensor ``name`` (``layers.0.attention.q.weight``).

    Args:
        config: the base model's, for the rows of fused modules.
    """
    assert index.adapter is not None
    module_name = name.removesuffix(".weight").removesuffix(".bias")
    asked = parse(module_name)
    found = []
    own = index.adapter.modules.get(module_name)
    if own is not None:
        found.append(Change(own, {role: index.tensors[f"{module_name}.{role.value}"] for role in own.roles}))
    for fused, parts in PARTS.items():
        whole = with_layer(fused, asked.layer)
        module = index.adapter.modules.get(whole)
        if module is None or asked.pattern not in parts:
            continue
        shapes = [matrix_shape(with_layer(part, asked.layer), config) or (0, 0) for part in parts]
        heights = [math.prod(shape[:-1]) for shape in shapes]  # of heads, too
        at = parts.index(asked.pattern)
        first = sum(heights[:at])
        tensors = {}
        for role in module.roles:
            tensor = index.tensors[f"{whole}.{role.value}"]
            by_rows = role is not Role.A and not (role is Role.IA3 and module.feedforward)
            tensors[role] = rows_of(tensor, first, heights[at]) if by_rows else tensor
        found.append(Change(module, tensors))
    return tuple(found)


def rows_of(tensor: Tensor, first: int, rows: int) -> Tensor:
    """Canonical rows ``first`` and on, as many as ``rows``, of a tensor stored in order or transposed."""
    layout, shape = tensor.layout, (rows, *tensor.shape[1:])
    if not layout.whole_rows or len(layout.strips) > 1:
        return replace(tensor, shape=shape, layout=layout.part(first, rows))
    row_bytes = tensor.dtype.nbytes(layout.cols)
    extents = tuple(cut(tensor.extents, first * row_bytes, (first + rows) * row_bytes))
    layout = replace(layout.part(0, rows), stored_rows=rows, shared=layout.shared)
    return replace(tensor, shape=shape, extents=extents, layout=layout)
