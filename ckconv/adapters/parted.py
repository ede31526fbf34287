"""LoRA of a matrix that is several in the target: each gets its rows of ``lora_b``, and all of them ``lora_a``.

Granite 4 has gate and up in one matrix, Qwen 3 Next what its linear layers begin with; GGUF and MLX do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from ckconv.adapters.model import matrix_shape, rows_of
from ckconv.core.config import ModelConfig
from ckconv.core.tensors import PARTS, AdapterModule, Role, TensorIndex, parse, with_layer


def parted(index: TensorIndex, has_place: Callable[[str, ModelConfig], bool]) -> TensorIndex:
    """The adapter with such modules in parts; those that have a place, and all where no base is named, as they are.

    Args:
        has_place: the target has one matrix for a module.
    """
    adapter = index.adapter
    if adapter is None or adapter.base is None:
        return index
    base, modules = adapter.base, {}
    tensors, canonical_of = dict(index.tensors), dict(index.canonical_of)
    for module in adapter.modules.values():
        parts = [] if has_place(module.name, base) else _parts(module, base, has_place)
        if not parts:
            modules[module.name] = module
            continue
        made: dict[Role, list[str]] = {role: [] for role in module.roles}
        pair = {role: tensors.pop(f"{module.name}.{role.value}") for role in module.roles}
        first = 0
        for name, rows in parts:
            modules[name] = module._replace(name=name)
            for role, whole in pair.items():
                own = replace(rows_of(whole, first, rows) if role is Role.B else whole, name=f"{name}.{role.value}")
                tensors[own.name] = own
                made[role].append(own.name)
            first += rows
        canonical_of |= {whole.source: tuple(made[role]) for role, whole in pair.items()}
    return replace(index, adapter=replace(adapter, modules=modules), tensors=tensors, canonical_of=canonical_of)


def _parts(
    module: AdapterModule, base: ModelConfig, has_place: Callable[[str, ModelConfig], bool]
) -> list[tuple[str, int]]:
    """Names and rows of the matrices that the target has of a module, in order; none if it has not all of them."""
    asked = parse(module.name)
    left, found = PARTS.get(asked.pattern, ()), []
    while left and module.roles == (Role.A, Role.B):
        for name, many in _beginnings(left):
            own, shape = with_layer(name, asked.layer), matrix_shape(with_layer(name, asked.layer), base)
            if shape is not None and len(shape) == 2 and has_place(own, base):
                found.append((own, math.prod(shape[:-1])))
                left = left[many:]
                break
        else:
            return []
    return found


def _beginnings(parts: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """What the first of some parts are together, and how many; the most first."""
    yield from ((whole, len(of)) for whole, of in PARTS.items() if of == parts[: len(of)] and len(of) < len(parts))
    yield parts[0], 1
