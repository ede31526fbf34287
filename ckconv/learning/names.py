"""Names of a checkpoint's tensors in an MLX directory, by values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from ckconv.core.tensors import StoredTensor, TensorIndex
from ckconv.errors import InputError
from ckconv.families.axes import expanded
from ckconv.families.schema import Cell, Family
from ckconv.formats.detect import open_index
from ckconv.learning.pair import FLOATS, Numbers, Pair, by_pattern
from ckconv.learning.rows import braced, prefixes
from ckconv.learning.trace import name_in, sampled, written

#: Prefixes of a model's and of a layer's names.
Prefix = tuple[str, str]


def prefix_of(family: Family, index: TensorIndex) -> Prefix:
    """Prefixes in the directory: the family's, unless layers have another."""
    own, seen = family.prefixes["mlx"][0], prefixes(by_pattern(index.stored))
    return own if own[1] == seen[1] else seen


def opened(directory: Path) -> TensorIndex:
    """An MLX directory whose values can be compared.

    Raises:
        InputError: ``learn.pair``, it is none, or its tensors are quantized.
    """
    index = open_index(directory)
    if index.format != "mlx":
        raise InputError("learn.pair", f"an MLX directory expected, got {index.format}", path=directory)
    odd = sorted({tensor.dtype.name for tensor in index.stored} - {*FLOATS})
    if odd:
        message = f"its tensors are {', '.join(odd)}, too; F32, F16 or BF16 expected"
        raise InputError("learn.pair", message, path=directory)
    return index


def same_values(pair: Pair, index: TensorIndex, numbers: Numbers, rows: int) -> Mapping[str, str]:
    """Pattern of a checkpoint's names -> that of the tensors with its values.

    Experts may be stacked in one tensor.
    """
    theirs, found = dict(by_pattern(index.stored)), dict[str, str]()
    for pattern, layers in pair.source.items():
        near = sorted(theirs, key=lambda one: -SequenceMatcher(None, pattern, one, autojunk=False).ratio())
        for other in near:
            if _equal(layers, theirs[other], numbers, rows):
                found[pattern] = other
                del theirs[other]
                break
    return found


def _equal(
    ours: Mapping[int, Sequence[StoredTensor]],
    theirs: Mapping[int, Sequence[StoredTensor]],
    numbers: Numbers,
    rows: int,
) -> bool:
    if ours.keys() != theirs.keys():
        return False
    for layer in sorted({min(ours), max(ours)}):
        experts, whole = ours[layer], theirs[layer][0]
        shape = (len(experts), *experts[0].shape) if len(experts) > 1 else experts[0].shape
        if len(theirs[layer]) > 1 or tuple(whole.shape) != tuple(shape):
            return False
        each = math.prod(experts[0].shape)
        places = sampled(each * len(experts), rows)
        meant = numbers.at(whole, places)
        for number in np.unique(places // each).tolist():
            mine = places // each == number
            if not np.array_equal(numbers.at(experts[number], places[mine] % each), meant[mine], equal_nan=True):
                return False
    return True


def cells(
    family: Family, own: Collection[str], prefix: Prefix, theirs: Prefix, found: Mapping[str, str]
) -> Iterator[tuple[str, Any]]:
    """Rows of a family file -> their cells, where the name is another one.

    Args:
        own: rows that the file writes; several tensors may be one row there.
    """
    said = dict(_cells(family, prefix, theirs, found))
    for key in own:
        names = [*expanded(key)]
        if len(names) > 1 and all(name in said for name in names):
            mine = [said.pop(name) for name in names]
            yield key, [{**mine[0], "name": braced([cell["name"] for cell in mine])}]
    for name, cell in said.items():
        yield name, [cell]


def _cells(
    family: Family, prefix: Prefix, theirs: Prefix, found: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    for row in family.tensors.values():
        for cell in row.cells["hf"]:
            other = found.get(_pattern(cell, *prefix))
            if other is None:
                continue
            name = name_in(other, *theirs)
            spelled = "=" + name.whole if cell.name.startswith("=") else name.module
            axes = row.axes if cell.stack or cell.axes is None else cell.axes
            now = row.cells["mlx"][0] if row.cells["mlx"] else None
            if now is None or (now.name, now.axes or row.axes, bool(now.stack)) != (spelled, axes, False):
                yield row.name, {"name": spelled} | ({"axes": written(axes)} if axes != row.axes else {})
            break


def _pattern(cell: Cell, root: str, layer: str) -> str:
    """Pattern of the stored names of a row's weight."""
    name = cell.name.removeprefix("=")
    for letter, prefix in (("L.", layer), ("M.", root)):
        if name.startswith(letter):
            name = prefix + name.removeprefix(letter)
    return name if cell.name.startswith("=") else f"{name}.weight"
