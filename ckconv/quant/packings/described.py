"""Matrices of torchao and ComfyUI: safetensors files describe them."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from ckconv.core.layouts import BF16, DTYPES, F16, F32, Layout, Strip, merged, plain
from ckconv.core.lazy import Rows, np
from ckconv.core.metadata import table_within, within
from ckconv.core.tensors import StoredTensor
from ckconv.errors import InputError, and_more
from ckconv.quant.codec import unpack
from ckconv.quant.mlx import MODES
from ckconv.quant.packed import E4M3, E5M2, FACTOR, INT, SUM, Scheme, rows_of
from ckconv.quant.packings.floats import fit_fp8, fit_triple, unpack_blocks
from ckconv.quant.packings.module import (
    FLOATS,
    FP8,
    I8,
    I32,
    U8,
    UE8,
    Arrays,
    Conflict,
    Module,
    PackConfig,
    Packing,
    Tile,
    Unread,
    grouped,
    in_columns,
    in_rows,
    laid_out,
    matrix,
    shaped,
    unpack_bytes,
)

# -- torchao's matrices ------------------------------------------------------------------------------------------------

# The arrays of ``P.weight`` are ``P._weight_qdata`` and its like; ``__metadata__`` says under ``P.weight`` in JSON of
# which class they are (``_type``), and what else it has (``_data``).
#
# Int8Tensor, IntxUnpackedToInt8Tensor
#     ``qdata`` I8 ``[R, C]``, ``scale`` ``[R, G]``, ``zero_point`` I8 like the scales, if any, all signed. Value =
#     scale * (code - zero). A target of int2 to int7 has codes of as many bits (``quant_type`` of the configuration).
# Float8Tensor
#     ``qdata`` F8_E4M3 ``[R, C]``, ``scale`` F32 ``[R, 1]`` or ``[1, 1]``.
# Int4Tensor
#     ``qdata`` I8 ``[R, C / 2]``, signed codes, the first one in the lower half of a byte; ``scale`` and ``zero_point``
#     floats ``[G, R]``. Value = scale * code + zero: in float32, then rounded (``bf16i4bf16_rowwise`` of MSLK 1.1).
# Int4TilePackedTo4dTensor
#     ``qdata`` I32 ``[R / 8, C / 128, 32, 4]``, rows and columns filled up; ``scale_and_zero`` BF16 ``[G, R, 2]``. Of
#     tile ``[i, j]``, lane ``t`` has columns of row ``8 * i + t // 4``: word ``w`` those of ``128 * j + 32 * w`` and
#     on, in its four lower codes ``2 * (t % 4)`` plus 0, 8, 16 and 24, and in the upper ones what follows each. Value =
#     scale * (code - 8) + zero, rounded once (``int4mm.cu`` of PyTorch, which packs it and multiplies with it, and
#     ``tensor_core_tiled_layout.cu`` of torchao, which unpacks it).
# MXTensor, NVFP4Tensor
#     ``qdata`` F8_E4M3 ``[R, C]`` or U8 ``[R, C / 2]``; ``scale`` F8_E8M0 of 32 columns or, of NVFP4, F8_E4M3 of 16,
#     ``[R, G]`` or in blocks of 128 rows and 4 groups (``to_blocked`` of its ``utils.py``); ``per_tensor_scale`` F32,
#     which all scales are multiplied with.
#
# What ``act_pre_scale`` multiplies the activations of is named and not read. Sources:
# ``quantization/quantize_/workflows``, ``prototype/mx_formats`` and ``prototype/safetensors`` of torchao 0.18.

_CODES, _SCALE, _ZERO, _FACTOR = (f"._weight_{name}" for name in ("qdata", "scale", "zero_point", "per_tensor_scale"))
#: Types of the codes of MX, and what the metadata calls them.
_ELEMENTS = {FP8: "float8_e4m3fn", U8: "float4_e2m1fn_x2"}
_TILES, _BEFORE = "._weight_scale_and_zero", "._weight_act_pre_scale"


def _checked(stored: Arrays, declared: PackConfig) -> Module:
    """Matrix whose arrays agree with the file's metadata."""
    tiles = _TILES in stored
    found = (_fit_tiles if tiles else _fit)(stored, declared)
    scheme = found.scheme
    group = scheme.group if isinstance(scheme, Scheme) else scheme.quantization.group_size
    one = not tiles and stored[_SCALE].shape in ((), (1,), (1, 1))
    stated, rows = _data(declared, "block_size"), found.shape[0]
    has = group if type(stated) is int else [rows if one else 1, group]
    if stated is not None and stated != has:
        raise Conflict(f"the file's metadata says block_size {stated}, and the arrays have {has}")
    stated = within(_data(declared, "elem_dtype"), "_data")
    codes = stored[_CODES].dtype
    if stated is not None and codes in _ELEMENTS and stated != _ELEMENTS[codes]:
        raise Conflict(f"the file's metadata says elem_dtype {stated}, and {_CODES[1:]} is {codes}")
    stated = _data(declared, "shape")
    if stated is not None and not tiles and stated != list(found.shape):
        raise Conflict(f"the file's metadata says shape {stated}, and the arrays have {list(found.shape)}")
    return found


def _fit(stored: Arrays, declared: PackConfig) -> Module:
    _check_activations(stored)
    weight, scale, zero = stored[_CODES], stored[_SCALE], stored.get(_ZERO)
    if len(weight.shape) != 2 or not all(weight.shape):
        if len(weight.shape) == len(scale.shape) == 3 and all(weight.shape):
            raise Unread(f"torchao's {_type(declared) or 'tensors'} of several matrices")
        matrix(weight)
    if scale.dtype in (UE8, FP8):
        return fit_mx(weight, scale, stored.get(_FACTOR), declared)
    if weight.dtype is FP8:
        scale = scale._replace(shape=()) if scale.shape == (1, 1) else scale
        return fit_fp8({".weight": weight, ".scale": scale}, declared, suffix=".scale")
    if weight.dtype is I8 and zero is not None and zero.dtype in FLOATS:
        return _fit_sums(weight, scale, zero, declared)
    if weight.dtype is not I8 or (zero is not None and zero.dtype is not I8):
        kind = "Int4PlainInt32Tensor" if weight.dtype is I32 else f"tensor of {weight.dtype}"
        raise Unread(f"torchao's {_type(declared) or kind}")
    rows, columns = weight.shape
    if len(scale.shape) != 2 or scale.shape[0] != rows or not scale.shape[1]:
        raise Conflict(f"{_SCALE[1:]} has shape {list(scale.shape)}, and the matrix {rows:,} rows")
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


def _check_activations(stored: Arrays) -> None:
    if _BEFORE in stored:
        raise Unread("torchao with scales of activations that belong to the weights (act_pre_scale)")


def _data(declared: PackConfig, key: str) -> Any:
    """Value of a key of ``_data``; nothing where the file has none."""
    return within(declared.header.get("_data"), key)


def _type(declared: PackConfig) -> str:
    """The class of a tensor, where the file says it."""
    found = declared.header.get("_type")
    return found if isinstance(found, str) and found.isidentifier() else ""


def _bits(declared: PackConfig) -> int:
    """Bits of the one integer type of all matrices; eight where types differ."""
    found = within(declared.settings.get("quant_type"), "default", "_data", "weight_dtype", "_data")
    bits = str(found).removeprefix("int")
    return int(bits) if bits in "2345678" and len(bits) == 1 else 8


def _unpack(tile: Tile, *, name: str) -> Rows:
    """Signed numbers are so much less than the codes that stand for them."""
    middle = np.uint8(1 << tile.scheme.bits - 1)
    parts = [tile.own(0) + middle, tile.own(2) + middle] if tile.scheme.zeros else [tile.own(0) + middle]
    if tile.scheme.bits < 8 and any(bool((part >> np.uint8(tile.scheme.bits)).any()) for part in parts):
        message = f"a code is no number of {tile.scheme.bits} bits, which quant_type says they are"
        raise InputError("quant.code", message, tensor=name)
    return rows_of(parts[0], tile.own(1), *parts[1:])


# -- Integers with numbers that are added to the products --------------------------------------------------------------


def _fit_sums(weight: StoredTensor, scale: StoredTensor, zero: StoredTensor, declared: PackConfig) -> Module:
    rows, columns = weight.shape[0], 2 * weight.shape[1]
    of_rows = scale.shape[:1] == (rows,) and (scale.shape[1:] != (rows,) or weight.shape[1] % rows == 0)
    kind = _type(declared) or ("tensor" if of_rows else "Int4Tensor")  # Int4Tensor has a column for each row
    if kind != "Int4Tensor":
        raise Unread(f"torchao's {kind} with zero points that are floats")
    if len(scale.shape) != 2 or scale.shape[1] != rows or not scale.shape[0]:
        raise Conflict(f"{_SCALE[1:]} has shape {list(scale.shape)}, and the matrix {rows:,} rows")
    shaped(zero, scale.shape)
    if zero.dtype is not scale.dtype:
        raise Conflict(f"{_SCALE[1:]} is {scale.dtype} and {_ZERO[1:]} {zero.dtype}")
    size = grouped(columns, scale.shape[0], declared)
    return Module(
        Scheme(SUM, 4, size, scale.dtype, zeros=True),
        (rows, columns),
        (in_rows(weight), in_columns(scale), in_columns(zero)),
        _unpack_sums,
        f"4-bit with offsets, groups of {size}",
    )


def _unpack_sums(tile: Tile) -> Rows:
    return rows_of(unpack(tile.own(0), 4) ^ np.uint8(8), tile.own(1), tile.own(2))


#: Rows of a tile, its columns, and bytes that one of them has of a tile: four lanes of four words.
_TALL, _WIDE, _RUN = 8, 128, 64


def _fit_tiles(stored: Arrays, declared: PackConfig) -> Module:
    _check_activations(stored)
    codes, numbers = stored[_CODES], stored[_TILES]
    if codes.dtype is not I32:
        raise Unread(f"torchao's {_type(declared) or 'tiles'} of {codes.dtype}")
    if len(codes.shape) == 5:
        raise Unread(f"torchao's {_type(declared) or 'tiles'} of several matrices")
    if len(codes.shape) != 4 or codes.shape[2:] != (32, 4) or not all(codes.shape):
        raise Conflict(f"{_CODES[1:]} has shape {list(codes.shape)}, and tiles are [.., .., 32, 4]")
    tall, wide = codes.shape[0] * _TALL, codes.shape[1] * _WIDE
    groups = numbers.shape[0] if numbers.shape else 0
    shaped(numbers, (groups, tall, 2))
    if not groups or wide % groups or wide // groups % 16:
        raise Conflict(f"{groups:,} groups do not divide rows of {wide:,}")
    rows, columns = _shape(declared, tall, wide)
    size = min(wide // groups, columns)
    axes = merged([(tall // _TALL, wide // _WIDE * _TALL * _RUN), (_TALL, _RUN)])
    strip = Strip(0, axes, merged([(wide // _WIDE, _TALL * _RUN), (_RUN, 1)]))
    words = laid_out(codes, Layout(tall, wide // 2, tall, wide // 2, (strip,)), U8)
    pair = (Strip(at, merged([(tall, 2)]), merged([(groups, 2 * tall)])) for at in (0, 1))
    scale, zero = (laid_out(numbers, Layout(tall, groups, groups, 2 * tall, (one,), shared=True)) for one in pair)
    return Module(
        Scheme(SUM, 4, size, numbers.dtype, zeros=True),
        (rows, columns),
        (words, scale, zero),
        _unpack_tiles,
        f"4-bit with offsets in tiles, groups of {size}",
    )


def _shape(declared: PackConfig, tall: int, wide: int) -> tuple[int, int]:
    """Rows and columns of the matrix; of a file that says none all of them."""
    shape = _data(declared, "shape")
    if shape is None:
        return tall, wide
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and n > 0 for n in shape):
        raise Conflict(f"the file's metadata says shape {shape}, and a matrix has two lengths")
    if shape[0] > tall or shape[1] > wide:
        raise Conflict(f"the file's metadata says shape {shape}, and tiles have {tall:,} rows of {wide:,} columns")
    return shape[0], shape[1]


def _unpack_tiles(tile: Tile) -> Rows:
    lanes = np.ascontiguousarray(tile.own(0)).view("<u4").reshape(tile.stop - tile.start, -1, 4, 4)
    codes = np.empty((*lanes.shape, 8), np.uint8)
    for nibble in range(8):
        codes[..., nibble] = lanes >> np.uint32(4 * nibble) & np.uint32(15)
    # tile, lane, word, upper, eighth -> tile, word, eighth, lane, upper
    each = codes.reshape(*lanes.shape, 2, 4).transpose(0, 1, 3, 5, 2, 4).reshape(len(codes), -1)
    groups = -(-tile.columns // tile.scheme.group) * tile.scheme.number.size
    return rows_of(each[:, : tile.columns], tile.own(1)[:, :groups], tile.own(2)[:, :groups])


# -- Small floats of MX and NVFP4 --------------------------------------------------------------------------------------


def fit_mx(codes: StoredTensor, scale: StoredTensor, factor: StoredTensor | None, declared: PackConfig) -> Module:
    """Matrix of MX or NVFP4, whose scales are in rows or in blocks."""
    mode = "nvfp4" if scale.dtype is FP8 else "mxfp8" if codes.dtype is FP8 else "mxfp4"
    kind = _data(declared, "elem_dtype")
    if codes.dtype not in (U8, FP8) or (codes.dtype is FP8 and mode == "nvfp4") or isinstance(kind, str):
        raise Unread(f"torchao's {_type(declared) or 'tensor'} of {kind if isinstance(kind, str) else codes.dtype}")
    rows, columns = codes.shape[0], codes.shape[1] * (1 if mode == "mxfp8" else 2)
    if columns % MODES[mode].group_size:
        raise Conflict(f"groups of {MODES[mode].group_size} do not divide rows of {columns:,}")
    groups = columns // MODES[mode].group_size
    scales, blocks = in_rows(scale), scale.shape == (-(-rows // 128) * 32, -(-groups // 4) * 16)
    if blocks:
        scales, scale = laid_out(scale, _in_blocks(rows, groups)), scale._replace(shape=(rows, groups))
    own = declared._replace(settings={})
    triple = fit_triple({".codes": codes, ".scales": scale}, own, mode=mode)
    if factor is not None:
        shaped(factor, ())
        arrays = (in_rows(codes), scales, in_rows(factor, 0))
        unpacked = partial(unpack_blocks, groups=groups)
        return Module(FACTOR, triple.shape, arrays, unpacked, f"NVFP4, groups of {FACTOR.group}")
    if not blocks:
        return triple
    return triple._replace(arrays=(in_rows(codes), scales), unpack=partial(unpack_blocks, groups=groups))


def _in_blocks(rows: int, groups: int) -> Layout:
    """Scales in blocks of 512 bytes for 128 rows and 4 groups, filled up.

    That of row r and group j is in block ``[r // 128, j // 4]`` at ``r % 32 * 16 + r % 128 // 32 * 4 + j % 4``.
    """
    tall, wide = -(-rows // 128), -(-groups // 4)
    axes = merged([(tall, 512 * wide), (4, 4), (32, 16)]), merged([(wide, 512), (4, 1)])
    return Layout(128 * tall, 4 * wide, 128 * tall, 4 * wide, (Strip(0, *axes),))


_METHODS = frozenset({"torchao"})
_CODED = (I8, U8, FP8, DTYPES["F8_E5M2"], I32)

TORCHAO_PACKINGS = (
    Packing(
        "torchao",
        _METHODS,
        {
            _CODES: _CODED,
            _SCALE: (*FLOATS, FP8, U8, UE8),
            f"{_ZERO}?": (I8, F32, BF16, F16),
            f"{_BEFORE}?": FLOATS,
            f"{_FACTOR}?": (F32,),
        },
        _checked,
    ),
    Packing("torchao", _METHODS, {_CODES: (I32, U8), _TILES: FLOATS, f"{_BEFORE}?": FLOATS}, _checked),
)


# -- ComfyUI's matrices ------------------------------------------------------------------------------------------------

# ``P.comfy_quant`` U8 is the JSON of a matrix; or all are in ``__metadata__``, by name: ``_quantization_metadata`` is
# ``{"layers": {"P": {"format": ..}}}``. ``P.weight`` and, of each ``format``:
#
# float8_e4m3fn, float8_e5m2
#     ``weight`` of that type, of any shape; ``weight_scale`` F32, one number or one for each row (of a convolution
#     ``[O, 1, 1, 1]``). Older files have neither JSON, call it ``scale_weight``, and have ``scaled_fp8``, which says
#     how products are computed.
# int8_tensorwise
#     ``weight`` I8; ``weight_scale`` likewise. With ``convrot`` it is the matrix times a rotation.
# mxfp8
#     ``weight`` F8_E4M3; ``weight_scale`` U8 or F8_E8M0 of 32 columns, in blocks of 128 rows and 4 groups.
# nvfp4
#     ``weight`` U8, element 2k in the **upper** half of byte k; ``weight_scale`` F8_E4M3 (as U8, too) of 16 columns, in
#     such blocks; ``weight_scale_2`` F32, which all scales are multiplied with.
#
# Value = code * scale. Many files have FP8 without any scale: those are the values (:data:`ALONE`). Sources:
# ``convert_old_quants`` of ComfyUI's ``utils.py``, ``_load_quantized_module`` of its ``ops.py``; ``tensor`` and
# ``backends/eager`` of comfy-kitchen 0.2.40.

FP8_WIDE = DTYPES["F8_E5M2"]
_CODE_TYPES = {FP8: E4M3, FP8_WIDE: E5M2, I8: INT}
_BITS = 8

#: ``format`` -> types of the weight.
_FORMATS = {
    "float8_e4m3fn": FP8,
    "float8_e5m2": FP8_WIDE,
    "int8_tensorwise": I8,
    "mxfp8": FP8,
    "nvfp4": U8,
}

COMFYUI = "comfyui"
DESCRIPTION, HEADER = ".comfy_quant", "_quantization_metadata"
#: Of the names of a model in a file with others; the metadata may leave it out.
_PREFIX = "model.diffusion_model."


def layers_of(headers: Sequence[Mapping[str, str]]) -> Mapping[str, Any] | None:
    """Facts of the metadata about matrices; ``None`` where there are none."""
    for header in headers:
        if HEADER in header:
            try:
                found = json.loads(header[HEADER])
            except (ValueError, RecursionError):
                found = None
            return table_within(found, "layers")
    return None


def facts_of(module: str, layers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Facts of the metadata about one matrix; empty for none."""
    return table_within(layers.get(module, layers.get(module.removeprefix(_PREFIX))))


def _fit_comfyui(stored: Arrays, declared: PackConfig) -> Module:
    header = declared.header
    if DESCRIPTION in stored:
        header = declared.document(stored[DESCRIPTION], "comfy_quant", "ComfyUI's matrices")
    kind, weight, scale = header.get("format"), stored[".weight"], stored[".weight_scale"]
    if not isinstance(kind, str):
        raise Conflict(f"its format is {kind!r}, where {DESCRIPTION[1:]} or {HEADER} says one")
    if header.get("convrot") or within(header.get("params"), "convrot"):
        raise Unread(f"ComfyUI's {kind} of rotated matrices (convrot)")
    if kind not in _FORMATS:
        raise Unread(f"ComfyUI's {kind}")
    if ".pre_quant_scale" in stored:
        raise Unread(f"ComfyUI's {kind} with scales of activations that belong to the weights (pre_quant_scale)")
    if weight.dtype is not _FORMATS[kind]:
        raise Conflict(f"its format is {kind}, and weight is {weight.dtype}")
    if kind in ("mxfp8", "nvfp4"):
        return _fit_blocks(weight, scale, stored.get(".weight_scale_2"), kind)
    return _fit_scaled(stored, declared, suffix=".weight_scale")


def _fit_scaled(stored: Arrays, declared: PackConfig, *, suffix: str) -> Module:
    weight, scale = stored[".weight"], stored[suffix]
    if not weight.shape or not math.prod(weight.shape):
        raise Conflict(f"weight has shape {list(weight.shape)}, and no rows")
    if len(weight.shape) == 3 and len(scale.shape) in (1, 2) and scale.shape[0] == weight.shape[0] > 1:
        raise Unread("ComfyUI's matrices of several experts")
    columns, rows = weight.shape[-1], math.prod(weight.shape[:-1])
    if scale.dtype not in FLOATS:
        raise Conflict(f"{suffix[1:]} is {scale.dtype}, and a number is expected")
    count = math.prod(scale.shape)
    flat = len(weight.shape) <= 2 or len(scale.shape) == len(weight.shape)  # of a convolution: of all axes
    if count != 1 and not (flat and scale.shape[0] == count == weight.shape[0]):
        raise Conflict(f"{suffix[1:]} has shape {list(scale.shape)}, and weight {list(weight.shape)}")
    one = count == 1
    number = in_rows(scale._replace(shape=(count, 1)), 0 if one else rows // count)
    what = "FP8" if weight.dtype is FP8 else "FP8 (E5M2)" if weight.dtype is FP8_WIDE else "8-bit"
    scheme = Scheme(_CODE_TYPES[weight.dtype], _BITS, columns, scale.dtype)
    words = f"{what}, {'one scale a matrix' if one else 'scales of whole rows'}"
    return Module(scheme, weight.shape, (laid_out(weight, plain(rows, columns)), number), unpack_bytes, words)


def _fit_blocks(weight: StoredTensor, scale: StoredTensor, factor: StoredTensor | None, kind: str) -> Module:
    nvfp4 = kind == "nvfp4"
    rows, groups = matrix(weight)[0], weight.shape[1] * (2 if nvfp4 else 1) // (16 if nvfp4 else 32)
    if nvfp4 != (factor is not None):
        raise Conflict(f"its format is {kind}, and weight_scale_2 is {'not ' if nvfp4 else ''}there")
    tall, wide = -(-rows // 128), -(-groups // 4)
    wanted = [128 * tall, 4 * wide]
    if scale.dtype not in ((U8, FP8) if nvfp4 else (U8, UE8)) or math.prod(scale.shape) != tall * wide * 512:
        raise Conflict(f"weight_scale is {scale.dtype} {list(scale.shape)}, and {kind} of {rows:,} rows has {wanted}")
    blocked = scale._replace(dtype=FP8 if nvfp4 else UE8, shape=(32 * tall, 16 * wide))
    found = fit_mx(weight, blocked, factor, PackConfig(COMFYUI, {}, lambda stored: None, {}))
    assert found.unpack is not None
    return found._replace(unpack=partial(_swapped, unpack=found.unpack)) if nvfp4 else found


def _swapped(tile: Tile, *, unpack: Any) -> Rows:
    """Rows of codes whose first one is in the upper half of a byte."""
    codes, *rest = tile.arrays
    assert codes is not None
    turned = codes << np.uint8(4) | codes >> np.uint8(4)
    found: Rows = unpack(tile._replace(arrays=(turned, *rest)))
    return found


def _fit_alone(stored: Arrays, declared: PackConfig) -> Module:
    codes = stored[""]
    columns, rows = codes.shape[-1], math.prod(codes.shape[:-1])
    scheme = Scheme(_CODE_TYPES[codes.dtype], _BITS, columns, UE8)
    array = laid_out(codes, plain(rows, columns))
    return Module(scheme, codes.shape, (array,), _unpack_alone, f"{codes.dtype} without scales")


def _unpack_alone(tile: Tile) -> Rows:
    codes = tile.own(0)
    return rows_of(codes, np.full((len(codes), 1), 127, np.uint8))


#: FP8 that stands for itself, whatever it is called.
ALONE = Packing("FP8", frozenset({COMFYUI}), {"": (FP8, FP8_WIDE)}, _fit_alone, "")


def without_scale(stored: Sequence[StoredTensor], taken: Collection[str], layers: Mapping[str, Any]) -> str:
    """Matrices with a format in the metadata and no scale, in words."""
    found = [
        (one.name, kind)
        for one in (stored if layers else ())
        if one.name not in taken and one.name.endswith(".weight")
        for kind in [facts_of(one.name.removesuffix(".weight"), layers).get("format")]
        if isinstance(kind, str) and one.dtype is _FORMATS.get(kind)
    ]
    names = [name for name, _ in found]
    return f"ComfyUI's {found[0][1]} without weight_scale: {and_more(names)}" if found else ""


def alone(stored: Sequence[StoredTensor], taken: Collection[str]) -> dict[str, tuple[Packing, dict[str, StoredTensor]]]:
    """FP8 that no scale belongs to, by name.

    A tensor that is called a scale of any kind may be one: beside it (``P.scale_weight``), or where its name goes on,
    as in ``P.weight.scale`` and ``P_scale``.
    """
    if not any(one.dtype in (FP8, FP8_WIDE) for one in stored):
        return {}
    beside: dict[str, int] = {}
    for place, _, last in (one.name.rpartition(".") for one in stored if "scale" in one.name):
        beside[place] = beside.get(place, 0) + ("scale" in last)
    names = sorted(one.name for one in stored if "scale" in one.name)
    found: dict[str, tuple[Packing, dict[str, StoredTensor]]] = {}
    for one in stored:
        if one.dtype in (FP8, FP8_WIDE) and one.shape and one.extent.nbytes and one.name not in taken:
            place, _, last = one.name.rpartition(".")
            if last != "scaled_fp8" and beside.get(place, 0) <= ("scale" in last) and not _goes_on(one.name, names):
                found[one.name] = ALONE, {"": one}
    return found


def _goes_on(name: str, scales: Sequence[str]) -> bool:
    """Whether a scale has the module's name and more; ``scales`` sorted."""
    for start in (f"{name.removesuffix('.weight')}{mark}" for mark in "._"):
        at = bisect_left(scales, start)
        while at < len(scales) and scales[at].startswith(start):
            if "scale" in scales[at][len(start) :]:
                return True
            at += 1
    return False


_ANY = (FP8, FP8_WIDE, I8, U8)
COMFYUI_PACKINGS = (
    Packing(
        "ComfyUI",
        frozenset({COMFYUI}),
        {
            ".weight": _ANY,
            ".weight_scale": (*FLOATS, FP8, U8, UE8),
            f"{DESCRIPTION}?": (U8,),
            ".weight_scale_2?": (F32,),
            ".pre_quant_scale?": FLOATS,
        },
        _fit_comfyui,
        declared=True,
    ),
    Packing(
        "ComfyUI",
        frozenset({COMFYUI}),
        {".weight": (FP8, FP8_WIDE), ".scale_weight": FLOATS},
        partial(_fit_scaled, suffix=".scale_weight"),
    ),
)
