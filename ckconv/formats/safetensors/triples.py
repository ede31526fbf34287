"""MLX directories: which stored arrays are one quantized matrix.

Whether a module is quantized is decided by its ``.scales``, as mlx-lm's loader does; ``config.json`` says how, with
overrides per module. What the shapes say must agree with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ckconv.core.dtypes import DTYPES, DType, Kind
from ckconv.core.layouts import plain
from ckconv.core.tensors import StoredTensor, Tensor
from ckconv.errors import Faults, InputError, quoted
from ckconv.families.canonical import Item, plain_item
from ckconv.quant.mlx import MAX_COLUMNS, Quantization, Triple, quantization, triple_type


def is_mlx(config: Mapping[str, Any] | None, metadata: Mapping[str, str], names: Iterable[str]) -> bool:
    """Whether MLX wrote the checkpoint, by files or configuration.

    Files that torch wrote are MLX's only where they hold what that key is about: transformers does not read it.
    """
    if metadata.get("format") == "mlx":
        return True
    quantized = metadata.get("format") != "pt" or any(name.endswith(".scales") for name in names)
    return quantized and isinstance((config or {}).get("quantization"), dict)


def mlx_items(stored: Sequence[StoredTensor], config: Mapping[str, Any], path: Path) -> list[Item]:
    """Group the stored arrays of an MLX checkpoint."""
    by_name = {tensor.name: tensor for tensor in stored}
    modules = {name.removesuffix(".scales") for name in by_name if name.endswith(".scales")}
    settings = config.get("quantization")
    settings = settings if isinstance(settings, dict) else {}
    faults = Faults(path)
    items: list[Item] = []
    taken: set[str] = set()
    for tensor in stored:
        module, _, kind = tensor.name.rpartition(".")
        if module not in modules or kind not in ("weight", "scales", "biases"):
            items.append(plain_item(tensor))
        elif module not in taken:
            taken.add(module)
            triple = _triple(module, by_name, settings, path, faults)
            if triple:
                items.append(triple)
    dense = {tensor.name.removesuffix(".weight") for tensor in stored} - modules
    for name, value in settings.items():
        if isinstance(value, dict) and name in dense:
            faults.add("mlx.quant", f"{quoted(name)} has a quantization entry and no scales", tensor=name)
    faults.check()
    return items


def _settings_of(module: str, settings: Mapping[str, Any], path: Path) -> Quantization:
    """Settings of a module, its own or the general ones."""
    entry = settings.get(module)
    chosen = entry if isinstance(entry, dict) else settings
    return quantization(
        chosen.get("mode"), chosen.get("bits"), chosen.get("group_size"), path=path, tensor=f"{module}.weight"
    )


def _triple(
    module: str, by_name: Mapping[str, StoredTensor], settings: Mapping[str, Any], path: Path, faults: Faults
) -> Item | None:
    name = f"{module}.weight"
    weight, scales, biases = (by_name.get(f"{module}.{kind}") for kind in ("weight", "scales", "biases"))
    assert scales is not None
    if weight is None:
        faults.add("mlx.quant", f"{quoted(module)} has scales and no weight", tensor=scales.name)
        return None
    if not settings:
        raise InputError(
            "mlx.quant", f"{quoted(module)} has scales, config.json has no quantization", path=path, tensor=name
        )
    if settings.get(module) is False:
        faults.add("mlx.quant", f"{quoted(module)} has scales, its quantization entry is false", tensor=name)
        return None
    q = _settings_of(module, settings, path)
    number = scales.dtype if q.has_biases else DTYPES["BF16"]
    arrays = [array for array in (weight, scales, biases) if array is not None]
    if q.has_biases and biases is None:
        faults.add("mlx.quant", f"{quoted(module)} has no biases, which {q} needs", tensor=name)
    elif not q.has_biases and biases is not None:
        faults.add("mlx.quant", f"{quoted(module)} has biases, which {q} does not have", tensor=name)
    elif not _fits(weight, scales, biases, q):
        shapes = f"weight {list(weight.shape)} {weight.dtype} with scales {list(scales.shape)} {scales.dtype}"
        faults.add("mlx.quant", f"{quoted(name)}: {shapes} is not {q}", tensor=name)
    elif (columns := q.columns(weight.shape[-1] * 4)) > MAX_COLUMNS:
        what = f"{quoted(name)} has rows of {columns:,} columns; {MAX_COLUMNS:,} are read at once"
        faults.add("mlx.quant", what, tensor=name, found=columns, allowed=MAX_COLUMNS)
    else:
        dtype = triple_type(Triple(q, number))
        shape = (*weight.shape[:-1], columns)
        planes = tuple(_plane(array) for array in arrays)
        tensor = Tensor(name, name, dtype, shape, (), plain(math.prod(shape[:-1]), columns), planes)
        return Item(tensor, tuple(arrays))
    return None


def _plane(stored: StoredTensor) -> Tensor:
    rows, cols = math.prod(stored.shape[:-1]), stored.shape[-1]
    return Tensor(stored.name, stored.name, stored.dtype, (rows, cols), (stored.extent,), plain(rows, cols))


def _fits(weight: StoredTensor, scales: StoredTensor, biases: StoredTensor | None, q: Quantization) -> bool:
    """Whether the arrays fit the quantization of one matrix."""
    if weight.dtype is not DTYPES["U32"] or len(weight.shape) < 2 or len(weight.shape) != len(scales.shape):
        return False
    columns = weight.shape[-1] * 32 // q.bits
    if not q.divides(columns) or q.row_bytes(columns) != weight.shape[-1] * 4:
        return False
    numbers: DType = scales.dtype
    right = numbers.kind is Kind.FLOAT and numbers.name != "F64" if q.has_biases else numbers is DTYPES["U8"]
    same = biases is None or (biases.dtype is numbers and biases.shape == scales.shape)
    return right and same and scales.shape == (*weight.shape[:-1], columns // q.group_size)
