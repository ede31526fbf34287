"""Modules of an adapter out of its stored tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ckconv.adapters.model import Outputs, matrix_shape, rows_of
from ckconv.core.config import ModelConfig
from ckconv.core.dtypes import Kind
from ckconv.core.layouts import plain, transposed
from ckconv.core.tensors import AdapterModule, Role, StoredTensor, Tensor, parse, plain_tensor, with_layer
from ckconv.errors import Faults, quoted


class Part(NamedTuple):
    """Stored tensor of a module and its role, transposed or not."""

    stored: StoredTensor
    transposed: bool = False


class Shape(NamedTuple):
    """Configuration of one module's LoRA: rank, alpha, scale.

    Attributes:
        given: how the file says its rank (``r``), for errors.
    """

    scale: float
    rank: int | None = None
    alpha: float | None = None
    given: str = "r"


class Collected(NamedTuple):
    """The modules of an adapter and their tensors, by canonical name."""

    modules: Mapping[str, AdapterModule]
    tensors: Mapping[str, Tensor]
    canonical_of: Mapping[str, tuple[str, ...]]


class Collector:
    """Gathers the modules of one adapter, and every fault of them."""

    def __init__(self, path: Path) -> None:
        self.faults = Faults(path)
        self._modules: dict[str, AdapterModule] = {}
        self._tensors: dict[str, Tensor] = {}
        self._canonical_of: dict[str, tuple[str, ...]] = {}

    def add(
        self,
        name: str,
        path: str,
        parts: Mapping[Role, Part],
        shape: Shape,
        *,
        embedding: bool = False,
        feedforward: bool = False,
        replaced: tuple[int, ...] = (),
        outputs: Outputs | None = None,
    ) -> None:
        """Add one module.

        Args:
            name: canonical, or the file's own where there is no rule.
            replaced: which rows of the base its own replace.
            outputs: where the rows of ``lora_b`` are, if not in canonical order.
            shape: of its LoRA; not looked at where it has none.
        """
        other = self._modules.get(name)
        if other is not None:
            self.faults.add("adapter.base", f"{quoted(other.path)} and {quoted(path)} are both {name}", tensor=path)
            return
        rank = 0
        if Role.A in parts or Role.B in parts:
            found = self._rank(name, path, parts, shape)
            if found is None:
                return
            rank = found
        for role, part in parts.items():
            tensor = _tensor(f"{name}.{role.value}", part)
            if role is Role.B and outputs is not None:
                if tensor.shape[0] != outputs.rows:
                    message = f"{quoted(part.stored.name)} has {tensor.shape[0]:,} rows, the base has {outputs.rows:,}"
                    self.faults.add("adapter.base", message, tensor=path)
                    return
                tensor = replace(tensor, layout=outputs.layout(rank, turned=part.transposed))
            if role is Role.B or role is Role.BIAS:
                tensor = replace(tensor, layout=replace(tensor.layout, scale=shape.scale))
            self._tensors[tensor.name] = tensor
            self._canonical_of[part.stored.name] = (tensor.name,)
        roles = tuple(role for role in Role if role in parts)
        self._modules[name] = AdapterModule(
            name,
            path,
            roles,
            rank,
            shape.alpha if rank else None,
            shape.scale if rank else 1.0,
            embedding,
            feedforward,
            replaced,
        )

    def add_made(self, module: AdapterModule, tensors: Mapping[Role, Tensor]) -> None:
        """Add a module of canonical tensors, or of parts of stored ones."""
        self._modules[module.name] = module
        for tensor in tensors.values():
            self._tensors[tensor.name] = tensor
            self._canonical_of[tensor.source] = (*self._canonical_of.get(tensor.source, ()), tensor.name)

    def finish(self) -> Collected:
        """Everything gathered.

        Raises:
            InputError: ``adapter.rank``, ``adapter.scale``, ``adapter.base``: every fault of the first kind found.
        """
        self.faults.check()
        return Collected(self._modules, self._tensors, self._canonical_of)

    def _rank(self, name: str, path: str, parts: Mapping[Role, Part], shape: Shape) -> int | None:
        """The rank that both matrices and the configuration agree on."""
        for role, other in ((Role.A, Role.B), (Role.B, Role.A)):
            if role in parts and other not in parts:
                there = parts[role].stored.name
                self.faults.add("adapter.rank", f"{quoted(there)} has no {_SAID[other]} beside it", tensor=there)
                return None
        a, b = (_tensor("", parts[role]) for role in (Role.A, Role.B))
        axes = 3 if ".experts." in name and len(a.shape) == 3 else 2
        for role, tensor in ((Role.A, a), (Role.B, b)):
            wrong = len(tensor.shape) != axes or 0 in tensor.shape or tensor.shape[:-2] != a.shape[:-2]
            if wrong or tensor.dtype.kind not in (Kind.FLOAT, Kind.BLOCK):
                stored = parts[role].stored
                message = f"{quoted(stored.name)} is {stored.dtype} {list(stored.shape)}, not a matrix of numbers"
                self.faults.add("adapter.rank", message, tensor=stored.name)
                return None
        ranks = a.shape[-2], b.shape[-1]
        if ranks[0] != ranks[1]:
            message = f"{path}: lora_A has rank {ranks[0]}, lora_B {ranks[1]}"
            self.faults.add("adapter.rank", message, tensor=path, found=ranks[1], allowed=ranks[0])
            return None
        if shape.rank is not None and shape.rank != ranks[0]:
            message = f"{path}: lora_A and lora_B have rank {ranks[0]}, {shape.given} makes it {shape.rank}"
            self.faults.add("adapter.rank", message, tensor=path, found=ranks[0], allowed=shape.rank)
            return None
        return ranks[0]


_SAID = {Role.A: "A", Role.B: "B"}


def _tensor(name: str, part: Part) -> Tensor:
    """The canonical tensor of a stored one."""
    tensor = plain_tensor(name, part.stored)
    if not part.transposed or len(part.stored.shape) != 2:
        return tensor
    cols, rows = part.stored.shape
    return replace(tensor, shape=(rows, cols), layout=transposed(rows, cols))


def vector(part: Part) -> Part:
    """A vector that its file stores as a matrix of one row or column."""
    stored = part.stored
    shape = tuple(size for size in stored.shape if size != 1) or (1,)
    return Part(stored._replace(shape=shape)) if len(shape) == 1 else part


# LoRA of experts whose modules are one by one in a file: all of a layer become one module, as where they are stacked.
#
# transformers 4 has a module for each expert, and adapters that were trained with it have two matrices for each. GGUF
# and MLX have stacks of them.

#: What stands for the number of an expert in the path of all of them.
NUMBER = "{e}"

_PAIR = (Role.A, Role.B)


def experts_together(collected: Collected, model: ModelConfig) -> Collected:
    """Modules with single experts stacked, where all are alike.

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
