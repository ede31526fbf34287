"""NVFP4 of ModelOpt and compressed-tensors, with a scale of scales.

Codes of E2M1 along the row, two a byte, an E4M3 scale for each 16, and one float32 number for the matrix.

ModelOpt (``quantization/qtensor/nvfp4_tensor.py``, 0.47): ``weight`` U8 ``[R, C / 2]``, ``weight_scale``,
``weight_scale_2``, which is multiplied with; without it the matrix is an MLX triple. compressed-tensors
(``compressors/nvfp4.py``, 0.20): ``weight_packed``, ``weight_scale``, ``weight_global_scale``, which is divided by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckconv.core.dtypes import F32
from ckconv.quant.codes import unpack
from ckconv.quant.packed import E2M1, Scheme, rows_of
from ckconv.quant.packings.module import (
    AUTO_ROUND,
    FP8,
    U8,
    Arrays,
    Declared,
    Misfit,
    Module,
    Packing,
    Tile,
    in_rows,
    shaped,
)
from ckconv.quant.packings.mx import fit as fit_triple

if TYPE_CHECKING:
    from ckconv.quant.codec import Rows

GROUP = 16


def _fit(stored: Arrays, declared: Declared) -> Module:
    codes, scales, *factors = stored.values()
    triple = fit_triple({".codes": codes, ".scales": scales}, declared, mode="nvfp4")
    if not factors:
        return triple
    if len(triple.shape) != 2:
        raise Misfit(f"{len(triple.shape) - 1} axes of rows, and one scale of all scales")
    if factors[0].shape not in ((), (1,)):
        shaped(factors[0], (1,))
    divisor = ".weight_global_scale" in stored
    scheme = Scheme(E2M1, 4, GROUP, FP8, factor=True, divisor=divisor)
    arrays = (in_rows(codes), in_rows(scales), in_rows(factors[0], 0))
    return Module(scheme, triple.shape, arrays, _unpack, f"NVFP4, groups of {GROUP}")


def _unpack(tile: Tile) -> Rows:
    return rows_of(unpack(tile.own(0), 4), tile.own(1), tile.own(2))


PACKINGS = (
    Packing(
        "ModelOpt",
        frozenset({"modelopt"}),
        {".weight": (U8,), ".weight_scale": (FP8,), ".weight_scale_2?": (F32,)},
        _fit,
    ),
    Packing(
        "compressed-tensors",
        AUTO_ROUND | {"compressed-tensors"},
        {".weight_packed": (U8,), ".weight_scale": (FP8,), ".weight_global_scale": (F32,)},
        _fit,
    ),
)
