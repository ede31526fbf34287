"""MLX triples under other names, whose rows are the same bytes.

====================  =============================  ==============================  ================================
written by            codes                          scales                          is
====================  =============================  ==============================  ================================
transformers mxfp4    ``P_blocks`` U8 [.., G, 16]    ``P_scales`` U8 [.., G]         mxfp4
compressed-tensors    ``P.weight_packed`` [.., C/2]  ``P.weight_scale`` [.., G]      mxfp4
compressed-tensors    ``P.weight`` E4M3 [.., C]      ``P.weight_scale`` U8 [.., G]   mxfp8
transformers metal    ``P.weight`` U32               ``P.scales``, ``P.qbiases``     affine
Quark                 ``P.weight`` U8 [.., C/2]      ``P.weight_scale`` U8 [.., G]   mxfp4
ModelOpt              ``P.weight`` U8 [.., C/2]      ``P.weight_scale`` E4M3 [.., G]  nvfp4, without a second scale
====================  =============================  ==============================  ================================

Element 2k of a row is in the lower half of byte k, as in MLX's words of 32 bits. Sources: ``integrations/mxfp4.py`` and
``integrations/metal_quantization.py`` of transformers 5.23; ``compressors/mx_pack.py`` of compressed-tensors 0.20.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from ckconv.core.dtypes import BF16, DTYPES, DType
from ckconv.core.layouts import plain
from ckconv.core.tensors import Array, StoredTensor, Tensor
from ckconv.errors import InputError
from ckconv.quant.mlx import MODES, Quantization, Triple, quantization
from ckconv.quant.packings.module import (
    AUTO_ROUND,
    FLOATS,
    FP8,
    U8,
    UE8,
    Arrays,
    Declared,
    Misfit,
    Module,
    Packing,
    shaped,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_U32 = DTYPES["U32"]


def fit(stored: Arrays, declared: Declared, *, mode: str, apart: bool = False) -> Module:
    """Triple of codes, scales and, of affine, biases, in this order.

    Args:
        apart: the codes of a group are an axis of their own.
    """
    codes, scales, *biases = stored.values()
    q = _quantization(mode, declared)
    lead, own = codes.shape[: -2 if apart else -1], codes.shape[-2 if apart else -1 :]
    words = math.prod(own) * codes.dtype.size
    columns = q.columns(words)
    if not lead or not math.prod(lead) or not q.divides(columns) or q.row_bytes(columns) != words:
        raise Misfit(f"{_last(codes)} has shape {list(codes.shape)}, which is not {q}")
    groups = columns // q.group_size
    if apart:
        shaped(codes, (*lead, groups, q.row_bytes(q.group_size)))
    for array in (scales, *biases):
        shaped(array, (*lead, groups))
    rows, number = math.prod(lead), scales.dtype if q.has_biases else BF16
    numbers = [(array, groups, number if q.has_biases else U8) for array in (scales, *biases)]
    planes = [_plane(array, rows, cols, dtype) for array, cols, dtype in [(codes, words // 4, _U32), *numbers]]
    return Module(Triple(q, number), (*lead, columns), tuple(planes), None, str(q))


def _quantization(mode: str, declared: Declared) -> Quantization:
    if mode != "affine":
        own = MODES[mode]
        declared.agree("group_size", own.group_size)
        return Quantization(mode, own.bits, own.group_size)
    try:
        return quantization(mode, declared.number("bits"), declared.number("group_size"))
    except InputError as error:
        raise Misfit(error.message) from None


def _plane(stored: StoredTensor, rows: int, cols: int, dtype: DType) -> Array:
    """An array as rows of a type of the same bytes."""
    return Array(Tensor(stored.name, stored.name, dtype, (rows, cols), (stored.extent,), plain(rows, cols)))


def _last(stored: StoredTensor) -> str:
    return stored.name.rpartition(".")[2]


def _packing(name: str, methods: Sequence[str], mode: str, arrays: dict[str, tuple[DType, ...]]) -> Packing:
    return Packing(name, frozenset(methods), arrays, partial(fit, mode=mode))


_CT = ("compressed-tensors", *AUTO_ROUND)
_POWERS = (U8, UE8)
PACKINGS = (
    Packing(
        "MXFP4",
        frozenset({"mxfp4"}),
        {"_blocks": (U8,), "_scales": _POWERS},
        partial(fit, mode="mxfp4", apart=True),
        "_blocks",
    ),
    _packing("compressed-tensors", _CT, "mxfp4", {".weight_packed": (U8,), ".weight_scale": _POWERS}),
    _packing("compressed-tensors", _CT, "mxfp8", {".weight": (FP8,), ".weight_scale": _POWERS}),
    _packing("MXFP8", ("mxfp8",), "mxfp8", {".weight": (FP8,), ".weight_scale_inv": (U8,)}),
    _packing("Quark", ("quark",), "mxfp4", {".weight": (U8,), ".weight_scale": _POWERS})._replace(declared=True),
    _packing("metal", ("metal",), "affine", {".weight": (_U32,), ".scales": FLOATS, ".qbiases": FLOATS}),
)
