"""torchao's tensors as transformers saves them in safetensors.

The arrays of ``P.weight`` are ``P._weight_qdata`` and its like.

Int8Tensor, IntxUnpackedToInt8Tensor
    ``qdata`` I8 ``[R, C]``, ``scale`` ``[R, G]``, ``zero_point`` I8 like the scales, if any, all signed. Value =
    scale * (code - zero). A target of int2 to int7 has codes of as many bits (``quant_type`` of the configuration).
Float8Tensor
    ``qdata`` F8_E4M3 ``[R, C]``, ``scale`` F32 ``[R, 1]`` or ``[1, 1]``.

Int4TilePackedTo4dTensor lies as tensor cores take it; Int4Tensor and the tensors of MX and NVFP4 have arrays of the
same names. They are named and not read, and neither is what ``act_pre_scale`` multiplies the activations of. Sources:
``quantization/quantize_/workflows`` and ``prototype/safetensors`` of torchao 0.18.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ckconv.core.dtypes import BF16, DTYPES, F16, F32
from ckconv.errors import InputError
from ckconv.quant.packed import INT, Scheme, rows_of
from ckconv.quant.packings import fp8
from ckconv.quant.packings.groups import grouped
from ckconv.quant.packings.module import (
    FLOATS,
    FP8,
    I8,
    I32,
    U8,
    UE8,
    Arrays,
    Declared,
    Misfit,
    Module,
    Packing,
    Tile,
    Unread,
    in_rows,
    shaped,
)

if TYPE_CHECKING:
    from ckconv.quant.codec import Rows

_TILES = "._weight_scale_and_zero"
_CODES, _SCALE, _ZERO, _BEFORE = "._weight_qdata", "._weight_scale", "._weight_zero_point", "._weight_act_pre_scale"


def _fit(stored: Arrays, declared: Declared) -> Module:
    if _TILES in stored:
        raise Unread("torchao's Int4TilePackedTo4dTensor")
    weight, scale, zero = stored[_CODES], stored[_SCALE], stored.get(_ZERO)
    if _BEFORE in stored:
        raise Unread("torchao with scales of activations that belong to the weights (act_pre_scale)")
    if weight.dtype is FP8:
        scale = scale._replace(shape=()) if scale.shape == (1, 1) else scale
        return fp8.fit({".weight": weight, ".scale": scale}, declared, suffix=".scale")
    if weight.dtype is not I8 or (zero is not None and zero.dtype is not I8):
        raise Unread(f"torchao's {_kind(stored)}")
    if len(weight.shape) != 2 or not all(weight.shape):
        raise Misfit(f"{_CODES[1:]} has shape {list(weight.shape)}, and is not a matrix")
    rows, columns = weight.shape
    if len(scale.shape) == 2 and scale.shape[0] != rows and scale.shape[1] == rows:
        raise Unread("torchao's Int4Tensor")
    if len(scale.shape) != 2 or scale.shape[0] != rows or not scale.shape[1]:
        raise Misfit(f"{_SCALE[1:]} has shape {list(scale.shape)}, and the matrix {rows:,} rows")
    bits, size = _bits(declared), grouped(columns, scale.shape[1], declared)
    if zero is not None:
        shaped(zero, scale.shape)
    library = F32 if scale.dtype is F32 else None
    return Module(
        Scheme(INT, bits, size, scale.dtype, zeros=zero is not None, library=library),
        weight.shape,
        (in_rows(weight), in_rows(scale), in_rows(zero) if zero is not None else None),
        partial(_unpack, name=weight.name),
        f"{bits}-bit, {'scales of whole rows' if size == columns else f'groups of {size}'}",
    )


def _kind(stored: Arrays) -> str:
    """The class of a tensor that is not read, by its arrays."""
    if stored[_CODES].dtype is I32:
        return "Int4PlainInt32Tensor"
    if stored[_SCALE].dtype in (FP8, U8, UE8):
        return "MXTensor or NVFP4Tensor"
    return "tensor with zero points that are floats" if _ZERO in stored else f"tensor of {stored[_CODES].dtype}"


def _bits(declared: Declared) -> int:
    """Bits of the one integer type of all matrices; eight where types differ."""
    found: Any = declared.settings.get("quant_type")
    for key in ("default", "_data", "weight_dtype", "_data"):
        found = found.get(key) if isinstance(found, dict) else None
    bits = str(found).removeprefix("int")
    return int(bits) if bits in "2345678" and len(bits) == 1 else 8


def _unpack(tile: Tile, *, name: str) -> Rows:
    """Signed numbers are so much less than the codes that stand for them."""
    import numpy as np

    middle = np.uint8(1 << tile.scheme.bits - 1)
    parts = [tile.own(0) + middle, tile.own(2) + middle] if tile.scheme.zeros else [tile.own(0) + middle]
    if tile.scheme.bits < 8 and any(bool((part >> np.uint8(tile.scheme.bits)).any()) for part in parts):
        message = f"a code is no number of {tile.scheme.bits} bits, which quant_type says they are"
        raise InputError("quant.code", message, tensor=name)
    return rows_of(parts[0], tile.own(1), *parts[1:])


_METHODS = frozenset({"torchao"})
_ANY = (I8, U8, FP8, DTYPES["F8_E5M2"], I32)

PACKINGS = (
    Packing(
        "torchao",
        _METHODS,
        {_CODES: _ANY, _SCALE: (*FLOATS, FP8, U8, UE8), f"{_ZERO}?": (I8, F32, BF16, F16), f"{_BEFORE}?": FLOATS},
        _fit,
    ),
    Packing("torchao", _METHODS, {_CODES: (I32, U8), _TILES: FLOATS, f"{_BEFORE}?": FLOATS}, _fit),
)
