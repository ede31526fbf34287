"""FP8 with scales of blocks, of rows, or of the whole matrix.

``weight`` is F8_E4M3 ``[R, C]``.

``weight_scale_inv`` (DeepSeek, Qwen): F32 or F8_E8M0, one for each block of ``weight_block_size`` rows and columns,
the last block of a row or column cut; or one number. Despite its name the scale is multiplied with. Source:
``modeling_deepseek.py`` and ``kernel.py`` of DeepSeek-V3. Grids of another size would be other blocks (transformers 5
divides the shape by the grid instead): they are refused.

``weight_scale`` (compressed-tensors, ModelOpt, Quark): the same for blocks, ``[R, 1]`` or ``[R]`` for rows, else one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ckconv.core.tensors import StoredTensor
from ckconv.quant.packed import E4M3, Scheme, rows_of
from ckconv.quant.packings.module import (
    AUTO_ROUND,
    FLOATS,
    FP8,
    UE8,
    Arrays,
    Declared,
    Misfit,
    Module,
    Packing,
    Tile,
    in_rows,
)

if TYPE_CHECKING:
    from ckconv.quant.codec import Rows


def fit(stored: Arrays, declared: Declared, *, suffix: str) -> Module:
    """Module of an FP8 ``weight`` and its scales, the array ``suffix``."""
    weight, scale = stored[".weight"], stored[suffix]
    if scale.shape == weight.shape[:1]:  # Quark
        scale = scale._replace(shape=(weight.shape[0], 1))
    if len(weight.shape) != 2 or not all(weight.shape):
        raise Misfit(f"weight has shape {list(weight.shape)}, and is not a matrix")
    (rows, columns), (per, group) = weight.shape, _blocks(weight, scale, declared)
    return Module(
        Scheme(E4M3, 8, min(group, columns), scale.dtype),
        weight.shape,
        (in_rows(weight), in_rows(scale, per if per < rows else 0)),
        _unpack,
        f"8-bit, {_said(scale, per, group)}",
    )


def _said(scale: StoredTensor, per: int, group: int) -> str:
    if len(scale.shape) < 2:
        return "one scale a matrix"
    return "scales of whole rows" if per == 1 else f"blocks of {per} x {group}"


def _blocks(weight: StoredTensor, scale: StoredTensor, declared: Declared) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    rows, columns = weight.shape
    if scale.shape in ((), (1,)):
        return rows, columns
    said = declared.settings.get("weight_block_size") or declared.settings.get("block_structure")
    if isinstance(said, list) and len(said) == 2 and all(type(n) is int and n > 0 for n in said):
        grid = tuple(-(-n // block) for n, block in zip(weight.shape, said, strict=True))
        if scale.shape != grid:
            size = f"blocks of {said[0]} x {said[1]} in {list(weight.shape)}"
            raise Misfit(f"{size} need {list(grid)} scales, and there are {list(scale.shape)}")
        return said[0], said[1]
    if scale.shape == (rows, 1):
        return 1, columns
    raise Misfit(
        f"weight has shape {list(weight.shape)} and its scales {list(scale.shape)}, and no block size is declared"
    )


def _unpack(tile: Tile) -> Rows:
    return rows_of(tile.own(0), tile.own(1))


PACKINGS = (
    Packing(
        "block-scaled FP8",
        frozenset({"fp8"}),
        {".weight": (FP8,), ".weight_scale_inv": (*FLOATS, UE8)},
        partial(fit, suffix=".weight_scale_inv"),
    ),
    Packing(
        "scaled FP8",
        AUTO_ROUND | {"compressed-tensors", "modelopt", "fp8", "fbgemm_fp8", "quark"},
        {".weight": (FP8,), ".weight_scale": FLOATS},
        partial(fit, suffix=".weight_scale"),
    ),
)
