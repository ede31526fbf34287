"""Small floats and tables of values, as each quantizer packs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from ckconv.core.layouts import BF16, DTYPES, F16, F32, DType, plain
from ckconv.core.lazy import Floats, Rows, np
from ckconv.core.tensors import StoredTensor
from ckconv.errors import InputError
from ckconv.quant.codec import unpack
from ckconv.quant.mlx import MODES, Quantization, Triple, quantization
from ckconv.quant.packed import E2M1, E4M3, FP4, MAPS, NF4, PARTS, Scheme, rows_of
from ckconv.quant.packings.module import (
    AUTO_ROUND,
    FLOATS,
    FP8,
    I8,
    U8,
    UE8,
    Arrays,
    Conflict,
    Module,
    PackConfig,
    Packing,
    Tile,
    Unread,
    in_rows,
    laid_out,
    matrix,
    shaped,
    unpack_bytes,
)

# -- MLX triples under other names, whose rows are the same bytes ------------------------------------------------------
# ====================  =============================  ==============================  ================================
# written by            codes                          scales                          is
# ====================  =============================  ==============================  ================================
# transformers mxfp4    ``P_blocks`` U8 [.., G, 16]    ``P_scales`` U8 [.., G]         mxfp4
# compressed-tensors    ``P.weight_packed`` [.., C/2]  ``P.weight_scale`` [.., G]      mxfp4
# compressed-tensors    ``P.weight`` E4M3 [.., C]      ``P.weight_scale`` U8 [.., G]   mxfp8
# transformers metal    ``P.weight`` U32               ``P.scales``, ``P.qbiases``     affine
# Quark                 ``P.weight`` U8 [.., C/2]      ``P.weight_scale`` U8 [.., G]   mxfp4
# DeepSeek V4, experts  ``P.weight`` I8 [.., C/2]      ``P.scale`` E8M0 [.., G]        mxfp4
# ModelOpt              ``P.weight`` U8 [.., C/2]      ``P.weight_scale`` E4M3 [.., G]  nvfp4, without a second scale
# ====================  =============================  ==============================  ================================
#
# Element 2k of a row is in the lower half of byte k, as in MLX's words of 32 bits. Sources: ``integrations/mxfp4.py``
# and ``integrations/metal_quantization.py`` of transformers 5.23; ``compressors/mx_pack.py`` of compressed-tensors
# 0.20.

_U32 = DTYPES["U32"]


def fit_triple(stored: Arrays, declared: PackConfig, *, mode: str, own_axis: bool = False) -> Module:
    """Triple of codes, scales and, of affine, biases, in this order.

    Args:
        own_axis: the codes of a group are an axis of their own.
    """
    codes, scales, *biases = stored.values()
    q = _quantization(mode, declared)
    lead, own = codes.shape[: -2 if own_axis else -1], codes.shape[-2 if own_axis else -1 :]
    words = math.prod(own) * codes.dtype.size
    columns = q.columns(words)
    if not lead or not math.prod(lead) or not q.divides(columns) or q.row_bytes(columns) != words:
        raise Conflict(f"{codes.name.rpartition('.')[2]} has shape {list(codes.shape)}, which is not {q}")
    groups = columns // q.group_size
    if own_axis:
        shaped(codes, (*lead, groups, q.row_bytes(q.group_size)))
    for array in (scales, *biases):
        shaped(array, (*lead, groups))
    rows, number = math.prod(lead), scales.dtype if q.has_biases else BF16
    numbers = [(array, groups, number if q.has_biases else U8) for array in (scales, *biases)]
    planes = [laid_out(each, plain(rows, cols), dtype) for each, cols, dtype in [(codes, words // 4, _U32), *numbers]]
    return Module(Triple(q, number), (*lead, columns), tuple(planes), None, str(q))


def _quantization(mode: str, declared: PackConfig) -> Quantization:
    if mode != "affine":
        own = MODES[mode]
        declared.agree("group_size", own.group_size)
        return Quantization(mode, own.bits, own.group_size)
    try:
        return quantization(mode, declared.number("bits"), declared.number("group_size"))
    except InputError as error:
        raise Conflict(error.message) from None


def _packing(name: str, methods: Sequence[str], mode: str, arrays: dict[str, tuple[DType, ...]]) -> Packing:
    return Packing(name, frozenset(methods), arrays, partial(fit_triple, mode=mode))


_CT = ("compressed-tensors", *AUTO_ROUND)
_POWERS = (U8, UE8)
MX_PACKINGS = (
    Packing(
        "MXFP4",
        frozenset({"mxfp4"}),
        {"_blocks": (U8,), "_scales": _POWERS},
        partial(fit_triple, mode="mxfp4", own_axis=True),
        "_blocks",
    ),
    _packing("compressed-tensors", _CT, "mxfp4", {".weight_packed": (U8,), ".weight_scale": _POWERS}),
    _packing("compressed-tensors", _CT, "mxfp8", {".weight": (FP8,), ".weight_scale": _POWERS}),
    _packing("MXFP8", ("mxfp8",), "mxfp8", {".weight": (FP8,), ".weight_scale_inv": (U8,)}),
    _packing("DeepSeek V4", ("fp8",), "mxfp4", {".weight": (I8,), ".scale": (UE8,)}),
    _packing("Quark", ("quark",), "mxfp4", {".weight": (U8,), ".weight_scale": _POWERS})._replace(declared=True),
    _packing("metal", ("metal",), "affine", {".weight": (_U32,), ".scales": FLOATS, ".qbiases": FLOATS}),
)


# -- FP8 with scales of blocks, of rows, or of the whole matrix --------------------------------------------------------
# ``weight`` is F8_E4M3 ``[R, C]``.
#
# ``weight_scale_inv`` (DeepSeek, Qwen): F32 or F8_E8M0, one for each block of ``weight_block_size`` rows and columns,
# the last block of a row or column cut; or one number. Despite its name the scale is multiplied with. Source:
# ``modeling_deepseek.py`` and ``kernel.py`` of DeepSeek-V3. Grids of another size would be other blocks (transformers 5
# divides the shape by the grid instead): they are refused.
#
# ``scale`` (DeepSeek V4): the same in F8_E8M0.
#
# ``weight_scale`` (compressed-tensors, ModelOpt, Quark): the same for blocks, ``[R, 1]`` or ``[R]`` for rows, else one.


def fit_fp8(stored: Arrays, declared: PackConfig, *, suffix: str) -> Module:
    """Module of an FP8 ``weight`` and its scales, the array ``suffix``."""
    weight, scale = stored[".weight"], stored[suffix]
    if scale.shape == weight.shape[:1]:  # Quark
        scale = scale._replace(shape=(weight.shape[0], 1))
    (rows, columns), (per, group) = matrix(weight), _blocks(weight, scale, declared)
    return Module(
        Scheme(E4M3, 8, min(group, columns), scale.dtype),
        weight.shape,
        (in_rows(weight), in_rows(scale, per if per < rows else 0)),
        unpack_bytes,
        f"8-bit, {_scale_words(scale, per, group)}",
    )


def _scale_words(scale: StoredTensor, per: int, group: int) -> str:
    if len(scale.shape) < 2:
        return "one scale a matrix"
    return "scales of whole rows" if per == 1 else f"blocks of {per} x {group}"


def _blocks(weight: StoredTensor, scale: StoredTensor, declared: PackConfig) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    rows, columns = weight.shape
    if scale.shape in ((), (1,)):
        return rows, columns
    shape = declared.settings.get("weight_block_size") or declared.settings.get("block_structure")
    if isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and n > 0 for n in shape):
        grid = tuple(-(-n // block) for n, block in zip(weight.shape, shape, strict=True))
        if scale.shape != grid:
            size = f"blocks of {shape[0]} x {shape[1]} in {list(weight.shape)}"
            raise Conflict(f"{size} need {list(grid)} scales, and there are {list(scale.shape)}")
        return shape[0], shape[1]
    if scale.shape == (rows, 1):
        return 1, columns
    raise Conflict(
        f"weight has shape {list(weight.shape)} and its scales {list(scale.shape)}, and no block size is declared"
    )


def _fp8(name: str, methods: frozenset[str], suffix: str, types: tuple[DType, ...]) -> Packing:
    return Packing(name, methods, {".weight": (FP8,), suffix: types}, partial(fit_fp8, suffix=suffix))


FP8_PACKINGS = (
    _fp8("block-scaled FP8", frozenset({"fp8"}), ".weight_scale_inv", (*FLOATS, UE8)),
    _fp8("block-scaled FP8", frozenset({"fp8"}), ".scale", (UE8,)),
    _fp8("scaled FP8", AUTO_ROUND | {*_CT, "modelopt", "fp8", "fbgemm_fp8", "quark"}, ".weight_scale", FLOATS),
)


# -- NVFP4 of ModelOpt and compressed-tensors, with a scale of scales --------------------------------------------------
# Codes of E2M1 along the row, two a byte, an E4M3 scale for each 16, and one float32 number for the matrix.
#
# ModelOpt (``quantization/qtensor/nvfp4_tensor.py``, 0.47): ``weight`` U8 ``[R, C / 2]``, ``weight_scale``,
# ``weight_scale_2``, which is multiplied with; without it the matrix is an MLX triple. Where the other matrices are FP8
# in blocks (NVIDIA's DeepSeek V4), ``quant_method`` is ``fp8``, and ``moe_quant_algo`` NVFP4. compressed-tensors
# (``compressors/nvfp4.py``, 0.20): ``weight_packed``, ``weight_scale``, ``weight_global_scale``, which is divided by.

GROUP = 16


def _fit_nvfp4(stored: Arrays, declared: PackConfig) -> Module:
    codes, scales, *factors = stored.values()
    triple = fit_triple({".codes": codes, ".scales": scales}, declared, mode="nvfp4")
    if not factors:
        return triple
    if len(triple.shape) != 2:
        raise Conflict(f"{len(triple.shape) - 1} axes of rows, and one scale of all scales")
    if factors[0].shape not in ((), (1,)):
        shaped(factors[0], (1,))
    divisor = ".weight_global_scale" in stored
    scheme = Scheme(E2M1, 4, GROUP, FP8, factor=True, divisor=divisor)
    arrays = (in_rows(codes), in_rows(scales), in_rows(factors[0], 0))
    return Module(scheme, triple.shape, arrays, unpack_blocks, f"NVFP4, groups of {GROUP}")


def unpack_blocks(tile: Tile, *, groups: int | None = None) -> Rows:
    """Rows of MX, or of NVFP4 with a scale of scales; ``groups`` scales."""
    scales = tile.own(1)[:, :groups]
    if len(tile.arrays) > 2:
        return rows_of(unpack(tile.own(0), 4), scales, tile.own(2))
    return rows_of(tile.own(0), scales)


NVFP4_PACKINGS = (
    Packing(
        "ModelOpt",
        frozenset({"modelopt", "fp8"}),
        {".weight": (U8,), ".weight_scale": (FP8,), ".weight_scale_2?": (F32,)},
        _fit_nvfp4,
    ),
    Packing(
        "compressed-tensors",
        AUTO_ROUND | {"compressed-tensors"},
        {".weight_packed": (U8,), ".weight_scale": (FP8,), ".weight_global_scale": (F32,)},
        _fit_nvfp4,
    ),
)


# -- bitsandbytes: 4-bit codes of a table, or 8-bit parts of a row's largest -------------------------------------------
# nf4, fp4: a matrix ``[R, C]`` is one run of codes, two in a byte, the first one in the **upper** half, and a scale for
# each ``blocksize`` of them, whatever row they are in.
#
# ``weight``                                   U8 ``[R * C / 2, 1]``; the same bytes as BF16, F16 or F32 (quant_storage)
# ``weight.absmax``                            F32 ``[B]``: scales; U8, where they are quantized, too ("double quant"):
# ``weight.nested_absmax``                     F32: of each ``nested_blocksize`` of them, what all are multiplied with
# ``weight.nested_quant_map``                  F32 ``[256]``: what the codes of scales are
# ``weight.quant_map``                         F32 ``[16]``: what the codes are
# ``weight.quant_state.bitsandbytes__nf4``     U8: JSON with shape, blocksize, dtype and, of scales, nested_offset
#
# Value = quant_map[code] * absmax; absmax = nested_quant_map[code] * nested_absmax + nested_offset.
#
# int8: ``weight`` I8 ``[R, C]``, ``SCB`` F32 ``[R]``, ``weight_format`` U8 ``[]``, 0 for rows. Value = code * SCB /
# 127.
#
# Every product and sum is rounded to float32, and the value to the model's type. Sources: ``QuantState`` of
# ``functional.py``, ``backends/default/ops.py`` and ``nn/modules.py`` of bitsandbytes 0.50.

_STATE = ".weight.quant_state.bitsandbytes__"
_TYPES = {"float32": F32, "bfloat16": BF16, "float16": F16}


def _fit_bitsandbytes(stored: Arrays, declared: PackConfig, *, codes: str, state: str) -> Module:
    weight, absmax = stored[".weight"], stored[".weight.absmax"]
    document = declared.document(stored[state], "quant_state", "bitsandbytes")
    shape, size, number = document.get("shape"), document.get("blocksize"), _TYPES.get(str(document.get("dtype")))
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and n > 0 for n in shape):
        raise Conflict(f"quant_state says shape {shape}, and a matrix has two lengths")
    if type(size) is not int or not 0 < size <= 1 << 20 or number is None:
        raise Conflict(f"quant_state says blocksize {size} and dtype {document.get('dtype')}")
    rows, columns = shape
    if columns % 2:
        raise Unread(f"{codes} with rows of an odd number of columns")
    if math.prod(weight.shape) * weight.dtype.size * 2 != rows * columns:
        raise Conflict(f"weight has shape {list(weight.shape)} {weight.dtype}, and quant_state says {shape}")
    blocks = -(-rows * columns // size)
    shaped(absmax, (blocks,))
    _check_map(stored[".weight.quant_map"], codes, declared)
    nested, inner = (stored.get(f".weight.nested_{name}") for name in ("absmax", "quant_map"))
    many, offset = document.get("nested_blocksize", 0), document.get("nested_offset", 0.0)
    if absmax.dtype is U8:
        if nested is None or inner is None or type(many) is not int or many < 1 or not isinstance(offset, float):
            raise Conflict("absmax is quantized, and its nested_absmax, nested_quant_map or quant_state are not there")
        shaped(nested, (-(-blocks // many),))
        shaped(inner, (256,))
    elif nested is not None or inner is not None:
        raise Conflict("absmax is F32, and there are nested_absmax or nested_quant_map")
    group = math.gcd(size, columns)
    return Module(
        Scheme(codes, 4, group, F32, library=number),
        (rows, columns),
        (
            laid_out(weight, plain(rows, columns // 2), U8),
            in_rows(absmax, 0),
            in_rows(stored[".weight.quant_map"], 0),
            in_rows(stored[state], 0),
            *(in_rows(array, 0) for array in (nested, inner) if array),
        ),
        partial(_unpack_bitsandbytes, size=size, many=many, offset=offset),
        f"blocks of {size}{', double-quantized' * (nested is not None)}",
    )


def _check_map(stored: StoredTensor, codes: str, declared: PackConfig) -> None:
    shaped(stored, (16,))
    found = declared.integers_of(stored)
    if found is not None and not np.array_equal(found.view("<f4"), np.array(MAPS[codes], np.float32)):
        raise Unread(f"{codes} with a table of its own (quant_map)")


def _unpack_bitsandbytes(tile: Tile, *, size: int, many: int, offset: float) -> Rows:
    packed = tile.own(0)
    codes = np.empty((len(packed), tile.columns), np.uint8)
    np.right_shift(packed, np.uint8(4), out=codes[:, ::2])
    np.bitwise_and(packed, np.uint8(15), out=codes[:, 1::2])
    group = tile.scheme.group
    first = np.arange(tile.start * tile.columns, tile.stop * tile.columns, group)  # element that a group begins with
    scales = _scales(tile, first // size, many, offset)
    return rows_of(codes, np.ascontiguousarray(scales).view(np.uint8).reshape(len(codes), -1))


def _scales(tile: Tile, blocks: Any, many: int, offset: float) -> Floats:
    absmax, *nested = (tile.arrays[number] for number in (1, 4, 5) if number < len(tile.arrays))
    assert absmax is not None
    if not nested:
        alone: Floats = absmax[0].view(np.float32)[blocks]
        return alone
    outer, inner = (part[0].view(np.float32) for part in nested if part is not None)
    with np.errstate(all="ignore"):
        made: Floats = inner[absmax[0][blocks]] * outer[blocks // many] + np.float32(offset)
    return made


def _fit_parts(stored: Arrays, declared: PackConfig) -> Module:
    weight, scale = stored[".weight"], stored[".SCB"]
    rows, columns = matrix(weight)
    if math.prod(scale.shape) != rows:
        raise Conflict(f"SCB has shape {list(scale.shape)}, and weight {list(weight.shape)}")
    form = stored.get(".weight_format")
    found = declared.integers_of(form) if form else None
    if found is not None and found.any():
        raise Unread("int8 of bitsandbytes in tiles (weight_format)")
    scheme, arrays = Scheme(PARTS, 8, columns, F32, library=F32), (in_rows(weight), laid_out(scale, plain(rows, 1)))
    return Module(scheme, weight.shape, arrays, unpack_bytes, "scales of whole rows")


_BITSANDBYTES_METHODS = frozenset({"bitsandbytes"})


def _four(codes: str, name: str) -> Packing:
    arrays = {
        ".weight": (U8, *FLOATS),
        ".weight.absmax": (F32, U8),
        ".weight.quant_map": (F32,),
        _STATE + name: (U8,),
        ".weight.nested_absmax?": (F32,),
        ".weight.nested_quant_map?": (F32,),
    }
    fit = partial(_fit_bitsandbytes, codes=codes, state=_STATE + name)
    return Packing(f"bitsandbytes {name}", _BITSANDBYTES_METHODS, arrays, fit)


BITSANDBYTES_PACKINGS = (
    _four(NF4, "nf4"),
    _four(FP4, "fp4"),
    Packing(
        "bitsandbytes int8",
        _BITSANDBYTES_METHODS,
        {".weight": (I8,), ".SCB": (F32,), ".weight_format?": (U8,)},
        _fit_parts,
    ),
)
