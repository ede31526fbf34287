"""The tensors of a model in few lines: those of layers that are alike stand in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from ckconv.core.tensors import Tensor, parse
from ckconv.errors import counted


class Row(NamedTuple):
    """One tensor, or all of so many equal layers."""

    name: str
    types: str
    shape: str
    nbytes: int


def repeated(tensors: Mapping[str, Tensor]) -> list[Row]:
    """A row for every tensor outside of the layers, and one for all layers with the same tensors, types and shapes."""
    layers: dict[tuple[str, int], list[tuple[str, Tensor]]] = {}
    alone: list[Row] = []
    for name, tensor in tensors.items():
        pattern, layer, _ = parse(name)
        if layer is None:
            alone.append(Row(name, tensor.dtype.name, " x ".join(map(str, tensor.shape)), tensor.nbytes))
        else:
            layers.setdefault((pattern.partition("{n}")[0], layer), []).append((pattern, tensor))
    alike: dict[tuple[str, object], list[int]] = {}
    for (stack, layer), held in layers.items():
        kind = tuple(sorted((pattern, t.dtype.name, t.shape) for pattern, t in held))
        alike.setdefault((stack, kind), []).append(layer)
    rows = []
    for (stack, _), numbers in alike.items():
        held = layers[stack, numbers[0]]
        types = ", ".join(dict.fromkeys(tensor.dtype.name for _, tensor in held))
        nbytes = sum(tensor.nbytes for number in numbers for _, tensor in layers[stack, number])
        times = f"{len(numbers)} x: " if len(numbers) > 1 else ""
        rows.append(Row(f"{stack}{_runs(numbers)}  {times}{counted(len(held), 'tensor')}", types, "", nbytes))
    return [*alone[:1], *rows, *alone[1:]]


def _runs(numbers: Iterable[int]) -> str:
    """``0-3,7`` of 0, 1, 2, 3 and 7."""
    runs = (
        [number for _, number in run]
        for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    )
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
