"""LoRA of experts whose modules are one by one in a file: all of a layer become one module, as where they are stacked.

transformers 4 has a module for each expert, and adapters that were trained with it have two matrices for each. GGUF
and MLX have stacks of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ckconv.adapters.model import matrix_shape, rows_of
from ckconv.adapters.read import Collected
from ckconv.core.config import ModelConfig
from ckconv.core.layouts import plain
from ckconv.core.tensors import AdapterModule, Role, Tensor, parse, with_layer

#: What stands for the number of an expert in the path of all of them.
NUMBER = "{e}"

_PAIR = (Role.A, Role.B)


def experts_together(collected: Collected, model: ModelConfig) -> Collected:
    """The modules, those of single experts as one where all are there and alike: rank, scale, type.

    The path of such a module has :data:`NUMBER` for the number of the expert.
    """
    groups: dict[str, dict[int, AdapterModule]] = defaultdict(dict)
    for module in collected.modules.values():
        name = parse(module.name)
        if name.expert is not None and module.roles == _PAIR:
            groups[with_layer(name.pattern.replace(f".{NUMBER}", ""), name.layer)][name.expert] = module
    modules, tensors = dict(collected.modules), dict(collected.tensors)
    canonical_of = dict(collected.canonical_of)
    for whole, members in groups.items():
        shape = matrix_shape(whole, model)
        ordered = [members[number] for number in sorted(members)]
        found = {role: [tensors[f"{module.name}.{role.value}"] for module in ordered] for role in _PAIR}
        alike = all(_alike(each) for each in found.values())
        if shape is None or sorted(members) != list(range(shape[0])) or not alike:
            continue
        for module in ordered:
            del modules[module.name]
        number = f".{parse(ordered[0].name).expert}."
        before, _, after = ordered[0].path.rpartition(number)
        modules[whole] = ordered[0]._replace(name=whole, path=f"{before}.{NUMBER}.{after}")
        for role, each in found.items():
            made = _stacked(f"{whole}.{role.value}", each)
            for tensor in each:
                del tensors[tensor.name]
                canonical_of[tensor.source] = (made.name,)
            tensors[made.name] = made
    return Collected(modules, tensors, canonical_of)


def _alike(tensors: list[Tensor]) -> bool:
    first = tensors[0]
    return all(
        (one.shape, one.dtype, one.layout) == (first.shape, first.dtype, first.layout) and one.layout.whole_rows
        for one in tensors
    )


def _stacked(name: str, tensors: list[Tensor]) -> Tensor:
    first, count = tensors[0], len(tensors)
    layout = replace(plain(count * first.layout.rows, first.layout.cols), scale=first.layout.scale)
    extents = tuple(extent for tensor in tensors for extent in tensor.extents)
    return replace(first, name=name, shape=(count, *first.shape), extents=extents, layout=layout)


def one_by_one(tensor: Tensor) -> list[Tensor]:
    """The matrices of a stack that :func:`experts_together` made."""
    count, rows, columns = tensor.shape
    flat = replace(tensor, shape=(count * rows, columns))
    return [rows_of(flat, number * rows, rows) for number in range(count)]
