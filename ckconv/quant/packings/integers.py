"""Integers with scales and zero points, as each quantizer packs them."""

from __future__ import annotations

from functools import partial

from ckconv.core.layouts import BF16, F16, F32, DType, Layout, Strip, merged, plain
from ckconv.core.lazy import Rows, np
from ckconv.core.metadata import within
from ckconv.core.tensors import Array, StoredTensor
from ckconv.errors import InputError
from ckconv.quant.codec import FILLING, PLANES, STREAM, WHOLE, along_columns, along_rows, run, to_float32, together
from ckconv.quant.packed import INT, REAL, Scheme, rows_of
from ckconv.quant.packings.module import (
    AUTO_ROUND,
    FLOATS,
    I8,
    I32,
    I64,
    U8,
    Arrays,
    Conflict,
    Module,
    PackConfig,
    Packing,
    Tile,
    Unread,
    group_words,
    grouped,
    in_columns,
    in_rows,
    laid_out,
    matrix,
    ordered,
    shaped,
    unpack_bytes,
)

# -- AWQ for GEMM: stored ``[in, out]``, interleaved words along the output --------------------------------------------
# ``qweight``  I32 ``[C, R / 8]``: bits ``4 * i`` and on of word ``w`` are output
#              ``8 * w + (0, 2, 4, 6, 1, 3, 5, 7)[i]``.
# ``qzeros``   I32 ``[G, R / 8]``: zero points, packed alike.
# ``scales``   F16 ``[G, R]``.
#
# Codes of auto-round may have 5, 6 or 7 bits: a stream of as many words for 32 outputs, each eight in the same order
# (``utils/bit_packing.py``, 0.16).
#
# Value = scales[c // group_size, r] * (code - zero). Source: ``awq/modules/linear/gemm.py`` of AutoAWQ 0.2.9 and its
# ``packing_utils.py``. Other versions (gemv) pack otherwise.

#: Output ``8 * w + j`` is this place of word ``w``.
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


def _like(stored: Arrays) -> bool:
    """Whether weights and zero points both have words along the output.

    GPTQ has only those of zero points so.
    """
    weight, zeros = stored[".qweight"].shape, stored[".qzeros"].shape
    return len(weight) == len(zeros) == 2 and weight[1] == zeros[1]


def _fit_awq(stored: Arrays, declared: PackConfig) -> Module:
    weight, scales, zeros = (stored[suffix] for suffix in (".qweight", ".scales", ".qzeros"))
    if len(weight.shape) != 2 or len(scales.shape) != 2 or not all((*weight.shape, *scales.shape)):
        raise Conflict("qweight and scales are not matrices")
    (columns, many), (groups, rows) = weight.shape, scales.shape
    bits, auto_round = many * 32 // rows, declared.method in AUTO_ROUND
    if many * 32 != bits * rows or bits not in (range(4, 8) if auto_round else (4,)) or many % run(bits):
        made = "4 to 7 bits" if auto_round else "4 bits"
        raise Conflict(f"qweight has shape {list(weight.shape)}, scales {list(scales.shape)}, which is not {made}")
    declared.agree("bits", bits)
    shaped(zeros, (groups, many))
    version = str(declared.settings.get("version") or "gemm").lower()
    if version != "gemm":
        raise Unread(f"AWQ of version {version}")
    packed = declared.settings.get("packing_format")
    if auto_round and packed not in ("auto_round:auto_awq", "auto_round:awq"):
        raise Conflict(f"quantization_config says packing_format {packed}, and it is stored as AWQ")
    size = grouped(columns, groups, declared)
    per, words = together(bits), run(bits)
    return Module(
        Scheme(INT, bits, size, scales.dtype, zeros=True),
        (rows, columns),
        (in_columns(weight, per, words), in_columns(scales), in_columns(zeros, per, words)),
        _unpack_awq,
        f"{bits}-bit, {group_words(size, declared)}",
    )


def _unpack_awq(tile: Tile, *, order: tuple[int, ...] = ORDER, signed: bool = False) -> Rows:
    weight, _, zeros = tile.arrays
    assert weight is not None
    assert zeros is not None
    bits = tile.scheme.bits
    codes, points = (tile.cut(along_rows(words, bits, order), together(bits)) for words in (weight, zeros))
    if signed:  # two's complement: codes are eight more than what they stand for
        codes, points = codes ^ np.uint8(8), points ^ np.uint8(8)
    return rows_of(codes, tile.own(1), points)


AWQ_PACKINGS = (
    Packing(
        "AWQ",
        AUTO_ROUND | {"awq"},
        {".qweight": (I32,), ".qzeros": (I32,), ".scales": FLOATS},
        _fit_awq,
        like=_like,
    ),
)


# -- GPTQ: stored ``[in, out]``, in words of 32 bits along the input ---------------------------------------------------
# ``qweight``  I32 ``[C * bits / 32, R]``: a word has the codes of ``32 / bits`` inputs of one output, lowest bits
#              first; 32 codes of 3, 5, 6 or 7 bits are a stream of as many words.
# ``qzeros``   I32 ``[G, R * bits / 32]``: zero points, along the output, lowest bits first. Version 1 stores zero - 1.
# ``scales``   F16 ``[G, R]``.
# ``g_idx``    I32 ``[C]``: the group of each input; without it, group ``i // group_size``.
#
# Value = scales[g_idx[c], r] * (code - zero). Source: ``nn_modules/qlinear/torch.py`` of GPTQModel 7.7. Version 1 is
# ``checkpoint_format: gptq``, or none; ``gptq_p`` is version 2 with codes in planes (:mod:`ckconv.quant.codec`).
# auto-round says it by ``packing_format`` (``inference/convert_model.py``, 0.16): ``auto_round:auto_gptq`` and none are
# version 1, ``auto_round`` and ``auto_round:gptqmodel`` version 2. In version 1 the library adds one to whole words, so
# that a stored zero point of all ones would carry into the next one: no writer stores it, and what it is depends on who
# reads.

_GPTQ_READ = range(2, 9)

#: What stores zero points less one, as they are, and as they are beside codes in planes; ``None`` is what says nothing.
_LESS, _AS_THEY_ARE, _PLANES = {"gptq", None}, {"gptq_v2"}, {"gptq_p"}
_LESS |= {"auto_round:auto_gptq", "auto_round:gptq", "auto"}
_AS_THEY_ARE |= {"auto_round", "auto_round:gptqmodel"}


def _fit_gptq(stored: Arrays, declared: PackConfig) -> Module:
    weight, scales, zeros = (stored[suffix] for suffix in (".qweight", ".scales", ".qzeros"))
    if not all(len(array.shape) == 2 for array in (weight, scales, zeros)):
        raise Conflict("qweight, qzeros and scales are not matrices")
    groups, rows = scales.shape
    if weight.shape[1] != rows:
        raise Conflict(f"qweight has shape {list(weight.shape)}, scales {list(scales.shape)}")
    if not rows or not groups or zeros.shape[0] != groups or zeros.shape[1] * 32 % rows:
        raise Conflict(f"qzeros has shape {list(zeros.shape)}, scales {list(scales.shape)}")
    bits = zeros.shape[1] * 32 // rows
    declared.agree("bits", bits)
    if bits not in _GPTQ_READ:
        raise Unread(f"{bits}-bit GPTQ")
    for array, words in ((weight, weight.shape[0]), (zeros, zeros.shape[1])):
        if words % run(bits):
            name = array.name.rpartition(".")[2]
            raise Conflict(f"{name} has shape {list(array.shape)}, which is not whole runs of 32 codes of {bits} bits")
    columns = weight.shape[0] * 32 // bits
    size = grouped(columns, groups, declared)
    promised = "desc_act is true" if declared.settings.get("desc_act") else ""
    index = ordered(stored, ".g_idx", size, groups, declared, promised)
    key = "packing_format" if AUTO_ROUND & {declared.method} else "checkpoint_format"
    version = declared.settings.get(key) or None
    if version is not None and not isinstance(version, str):
        raise Conflict(f"quantization_config says {key} {version!r}, which is no text")
    if key == "packing_format" and version is None and declared.settings.get("checkpoint_format"):
        raise Unread("auto-round's GPTQ with a checkpoint_format in place of its packing_format")
    if version in ("auto_round:auto_awq", "auto_round:awq"):
        raise Conflict(f"quantization_config says {key} {version}, and it is stored as GPTQ")
    if version not in _LESS | _AS_THEY_ARE | _PLANES:
        raise Unread(f"GPTQ with {key} {version}")
    if bits in (5, 6, 7) and key == "checkpoint_format" and version not in _PLANES:
        raise Unread(f"{bits}-bit GPTQ with checkpoint_format {version}, where GPTQModel has gptq_p")
    return Module(
        Scheme(INT, bits, size, scales.dtype, zeros=True, ordered=index is not None),
        (rows, columns),
        (in_columns(weight), in_columns(scales), in_columns(zeros, together(bits), run(bits)), index),
        partial(_unpack_gptq, less=version in _LESS, form=PLANES if version in _PLANES else STREAM, name=zeros.name),
        f"{bits}-bit, {group_words(size, declared)}{', columns in another order (desc_act)' * (index is not None)}",
    )


def _unpack_gptq(tile: Tile, *, less: bool, form: str, name: str) -> Rows:
    weight, _, zeros, _ = tile.arrays
    assert weight is not None
    assert zeros is not None
    bits = tile.scheme.bits
    points = tile.cut(along_rows(zeros, bits, form=form), together(bits))
    parts = [along_columns(weight, bits, form), tile.own(1), points]
    if less:
        if bool((parts[2] == (1 << bits) - 1).any()):
            message = f"a stored zero point of {(1 << bits) - 1} stands for {1 << bits}, which {bits} bits do not hold"
            raise InputError(
                "quant.zero", message, tensor=name, hint="checkpoint_format gptq_v2 stores them as they are"
            )
        parts[2] = parts[2] + np.uint8(1)
    if tile.scheme.ordered:
        parts.append(tile.own(3))
    return rows_of(*parts)


GPTQ_PACKINGS = (
    Packing(
        "GPTQ",
        AUTO_ROUND | {"gptq"},
        {".qweight": (I32,), ".qzeros": (I32,), ".scales": (F16, BF16, F32), ".g_idx?": (I32,)},
        _fit_gptq,
    ),
)


# -- BitNet's ternary matrices: four rows in a byte, one scale a matrix ------------------------------------------------
# ``weight``        U8 ``[R / 4, C]``: bits ``2 * i`` and on of row ``r`` are row ``i * R / 4 + r``: 0, 1, 2 for
#                   -1, 0, 1.
# ``weight_scale``  one float: numbers are divided by it, or multiplied where ``linear_class`` is ``autobitlinear``.
#
# Source: ``unpack_weights``, ``BitLinear`` and ``AutoBitLinear`` of transformers 5.23, ``integrations/bitnet.py``,
# which round what goes into a matrix to eight bits, too.

_MANY, _BITS, _MIDDLE = 4, 2, 1


def _fit_bitnet(stored: Arrays, declared: PackConfig) -> Module:
    weight, scale = stored[".weight"], stored[".weight_scale"]
    quarter, columns = matrix(weight)
    if scale.shape not in ((), (1,)):
        raise Conflict(f"weight_scale has shape {list(scale.shape)}, and a ternary matrix has one scale")
    if declared.settings.get("use_rms_norm"):
        raise Unread("ternary with norms of its own")
    rows = _MANY * quarter
    # The bytes are read again for every fourth of the rows.
    codes = laid_out(weight, plain(rows, columns), times=_MANY)
    times = declared.settings.get("linear_class") == "autobitlinear"
    return Module(
        Scheme(INT, _BITS, columns, F32, zeros=True),
        (rows, columns),
        (codes, in_rows(scale, 0)),
        partial(_unpack_bitnet, quarter=quarter, number=scale.dtype, times=times),
        "ternary, one scale a matrix",
    )


def _unpack_bitnet(tile: Tile, *, quarter: int, number: DType, times: bool) -> Rows:
    shifts = np.uint8(_BITS) * (np.arange(tile.start, tile.stop) // quarter).astype(np.uint8)
    codes = tile.own(0) >> shifts[:, None] & np.uint8(3)
    scales = to_float32(tile.own(1), number)
    with np.errstate(divide="ignore"):
        scales = np.ascontiguousarray(scales if times else np.float32(1) / scales)
    scales[np.isinf(scales)] = np.nan  # it divides by zero, or nearly: what becomes of a 0 is no number
    return rows_of(codes, scales.view(np.uint8), np.full((len(codes), 1), _MIDDLE, np.uint8))


BITNET_PACKINGS = (
    Packing("BitNet", frozenset({"bitnet"}), {".weight": (U8,), ".weight_scale": FLOATS}, _fit_bitnet, declared=True),
)


# -- AMD Quark's own layout of integers (``quant_method: quark``) ------------------------------------------------------
# FP8 and MXFP4 have the arrays of others.
#
# 4 bits in groups
#     AWQ's arrays under other names: ``weight`` I32 ``[C, R / 8]``, ``weight_scale`` ``[G, R]``, ``weight_zero_point``
#     I32 ``[G, R / 8]``. Codes and zero points of ``int4`` are signed; with ``pack_method: order`` words are not
#     interleaved.
# Value = scale * (code - zero). Integers of 8 bits and of 2 are named and not read. Sources: ``torch/utils/pack.py``
# and ``torch/export/nn/modules/realquantizer.py`` of amd-quark 0.13.


def _fit_quark(stored: Arrays, declared: PackConfig) -> Module:
    weight, scale, zero = stored[".weight"], stored[".weight_scale"], stored[".weight_zero_point"]
    whole = within(declared.settings, "global_quant_config", "weight")
    kind = within(whole, "dtype")
    if kind not in ("int4", "uint4"):
        raise Unread(f"Quark's {kind}")
    if declared.settings.get("layer_quant_config"):
        raise Unread(f"Quark's {kind} with other types for some layers (layer_quant_config)")
    if len(weight.shape) != 2 or len(scale.shape) != 2 or not all((*weight.shape, *scale.shape)):
        raise Conflict("weight and weight_scale are not matrices")
    (columns, many), (groups, rows) = weight.shape, scale.shape
    if many * 8 != rows:
        raise Conflict(f"weight has shape {list(weight.shape)}, weight_scale {list(scale.shape)}, which is not 4 bits")
    shaped(zero, (groups, many))
    size = grouped(columns, groups, declared._replace(settings={"group_size": within(whole, "group_size")}))
    order = () if within(declared.settings, "export", "pack_method") == "order" else ORDER
    return Module(
        Scheme(INT, 4, size, scale.dtype, zeros=True, library=F32 if scale.dtype is F32 else None),
        (rows, columns),
        (in_columns(weight, 8), in_columns(scale), in_columns(zero, 8)),
        partial(_unpack_awq, order=order, signed=kind == "int4"),
        f"4-bit, groups of {size}",
    )


def _named(stored: Arrays, declared: PackConfig) -> Module:
    raise Unread(f"Quark's {within(declared.settings, 'global_quant_config', 'weight', 'dtype')}")


_QUARK_METHODS = frozenset({"quark"})

QUARK_PACKINGS = (
    Packing(
        "Quark", _QUARK_METHODS, {".weight": (I32,), ".weight_scale": FLOATS, ".weight_zero_point": (I32,)}, _fit_quark,
        declared=True,
    ),
    Packing(
        "Quark",
        _QUARK_METHODS,
        {".weight": (I8, U8), ".weight_scale": FLOATS, ".weight_zero_point?": (I8, I32, U8)},
        _named,
        declared=True,
    ),
)  # fmt: skip


# -- Integers of compressed-tensors, in rows ``[out, in]`` -------------------------------------------------------------
# pack-quantized
#     ``weight_packed``      I32 ``[R, ceil(C * bits / 32)]``: code + 2 ** (bits - 1), along the row, lowest bits first.
#     ``weight_scale``       ``[R, G]``; ``[R, 1]`` for whole rows, ``[1]`` for the matrix.
#     ``weight_shape``       I64 ``[2]``: R and C, which the words do not tell.
#     ``weight_zero_point``  I32 ``[ceil(R * bits / 32), G]``: zero point + 2 ** (bits - 1), along the **output**; if
#                            any.
#     ``weight_g_idx``       I32 ``[C]``: the group of each column; versions up to 0.10, ``actorder: group``.
#
# int-quantized, naive-quantized
#     ``weight`` I8 ``[R, C]``, ``weight_scale`` as above, ``weight_zero_point`` I8 like the scales, if any.
#
# Value = scale * (code - zero), both signed. Source: ``compressors/quantized_compressors`` of compressed-tensors 0.20.
# Codes of 3, 5, 6 and 7 bits are a stream over the words of a row; before version 0.19 a word had whole ones, and a row
# took more words (:mod:`ckconv.quant.codec`).

_COMPRESSED_READ = range(2, 9)


def _packed(stored: Arrays, declared: PackConfig) -> Module:
    weight, scale = stored[".weight_packed"], stored[".weight_scale"]
    matrix(weight)
    rows, columns = _shape(stored, declared)
    bits = declared.number("bits") or weight.shape[1] * 32 // max(columns, 1)
    if bits == 1:
        raise Unread("1-bit pack-quantized")
    form = STREAM
    if bits in _COMPRESSED_READ and bits not in FILLING and weight.shape[1] == -(-columns // (32 // bits)):
        form = WHOLE
        if weight.shape[1] == -(-columns * bits // 32):
            raise Unread(f"{bits}-bit pack-quantized of so few columns that older versions cannot be distinguished")
    elif bits not in _COMPRESSED_READ or weight.shape[1] != -(-columns * bits // 32):
        made = f"{rows:,} rows of {columns:,} columns (weight_shape)"
        raise Conflict(f"weight_packed has shape {list(weight.shape)}, which is not {made} in {bits} bits")
    array, groups, size = _scales(scale, rows, columns, declared)
    zeros = None
    if zero := _zero(stored, declared):
        words = run(bits, form)
        shaped(zero, (-(-rows // together(bits, WHOLE)) if form == WHOLE else -(-rows * bits // 32), groups))
        if zero.shape[0] % words:
            raise Unread(f"{bits}-bit zero points of rows that are no multiple of 32")
        wide = zero._replace(shape=(zero.shape[0] // words, words * groups))
        zeros = in_rows(wide, together(bits, form))
    if ".weight_g_idx" in stored and zeros is not None:
        raise Unread("pack-quantized with columns in another order and zero points")
    promised = "actorder is group" if declared.settings.get("actorder") == "group" else ""
    index = ordered(stored, ".weight_g_idx", size, groups, declared, promised)
    return Module(
        Scheme(INT, bits, size, scale.dtype, zeros=zeros is not None, ordered=index is not None),
        (rows, columns),
        (in_rows(weight), array, zeros, index),
        partial(_unpack_words, form=form),
        f"{bits}-bit, {_scale_words(scale, size)}{', columns in another order (actorder)' * (index is not None)}",
    )


def _plain(stored: Arrays, declared: PackConfig) -> Module:
    weight, scale = stored[".weight"], stored[".weight_scale"]
    rows, columns = matrix(weight)
    declared.agree("bits", 8)
    zero = _zero(stored, declared)
    array, _, size = _scales(scale, rows, columns, declared)
    if zero:
        shaped(zero, scale.shape)
    zeros = in_rows(zero, array.per) if zero else None
    return Module(
        Scheme(INT, 8, size, scale.dtype, zeros=zeros is not None),
        weight.shape,
        (in_rows(weight), array, zeros),
        unpack_bytes,
        f"8-bit, {_scale_words(scale, size)}",
    )


def _shape(stored: Arrays, declared: PackConfig) -> tuple[int, int]:
    """Rows and columns; what the words can hold where only headers are there."""
    weight, shape = stored[".weight_packed"], stored[".weight_shape"]
    shaped(shape, (2,))
    found = declared.integers_of(shape)
    if found is None:
        return weight.shape[0], weight.shape[1] * 32 // (declared.number("bits") or 32)
    rows, columns = int(found[0]), int(found[1])
    if rows != weight.shape[0] or columns < 1:
        raise Conflict(f"weight_shape is {[rows, columns]}, and weight_packed has shape {list(weight.shape)}")
    return rows, columns


def _scales(scale: StoredTensor, rows: int, columns: int, declared: PackConfig) -> tuple[Array, int, int]:
    """The array, the scales of a row, and the columns of each."""
    if scale.shape in ((), (1,), (1, 1)):
        return in_rows(scale, 0), 1, columns
    if len(scale.shape) != 2 or scale.shape[0] != rows or not scale.shape[1]:
        raise Conflict(f"weight_scale has shape {list(scale.shape)}, and the matrix {rows:,} rows")
    return in_rows(scale), scale.shape[1], grouped(columns, scale.shape[1], declared)


def _zero(stored: Arrays, declared: PackConfig) -> StoredTensor | None:
    zero = stored.get(".weight_zero_point")
    if zero is None and declared.settings.get("symmetric") is False:
        raise Conflict("symmetric is false, and there is no weight_zero_point")
    return zero


def _scale_words(scale: StoredTensor, size: int) -> str:
    if len(scale.shape) < 2:
        return "one scale a matrix"
    return "scales of whole rows" if scale.shape[1] == 1 else f"groups of {size}"


def _unpack_words(tile: Tile, *, form: str) -> Rows:
    weight, _, zeros, _ = tile.arrays
    assert weight is not None
    bits = tile.scheme.bits
    parts = [along_columns(weight, bits, form)[:, : tile.columns], tile.own(1)]
    if zeros is not None:
        words = zeros.reshape(len(zeros), run(bits, form), -1, 4).swapaxes(1, 2).reshape(zeros.shape)
        parts.append(tile.cut(along_rows(words, bits, form=form), together(bits, form)))
    if tile.scheme.ordered:
        parts.append(tile.own(3))
    return rows_of(*parts)


_COMPRESSED_METHODS = AUTO_ROUND | {"compressed-tensors"}

COMPRESSED_PACKINGS = (
    Packing(
        "compressed-tensors pack-quantized",
        _COMPRESSED_METHODS,
        {
            ".weight_packed": (I32,),
            ".weight_scale": FLOATS,
            ".weight_shape": (I64, I32),
            ".weight_zero_point?": (I32,),
            ".weight_g_idx?": (I32,),
        },
        _packed,
    ),
    Packing(
        "compressed-tensors int-quantized",
        _COMPRESSED_METHODS,
        {".weight": (I8,), ".weight_scale": FLOATS, ".weight_zero_point?": (I8,)},
        _plain,
    ),
)


# -- HQQ as its library saves it in safetensors (``encoded_state_dict``) -----------------------------------------------
# ``W_q``              U8, of 3 bits I32, or those bytes as floats (``view_as_float``): codes, see below
# ``scale``, ``zero``  floats, as many as groups: ``[groups, 1]``, with ``axis`` 0 ``[1, groups]``
# ``shape``            I64 ``[2]``: of the matrix
# ``group_size``, ``axis``  I32: codes of a group; 1: they follow each other; 0: they are as many codes apart as there
#                      are groups
# ``packing``          U8: ``4bit_u8`` and its like, in ASCII
# ``compute_dtype``    U8: ``torch.float16`` and its like, in ASCII; what values are rounded to
#
# All codes of the matrix, row after row, are cut into as many parts as a byte (or, of 3 bits, a word) holds codes.
# Element i of ``W_q`` has code i of every part, the first part's in its highest bits. Value = (code - zero) * scale;
# the difference and the product are each rounded to the type of the scales. Source: ``core/quantize.py`` and
# ``core/bitpack.py`` of hqq 0.2.8.

#: Bits of a code, codes of an element, and bytes of an element.
_HQQ_CODES = {
    "8bit_u8": (8, 1, 1), "4bit_u8": (4, 2, 1), "3bit_32": (3, 10, 4), "2bit_u8": (2, 4, 1), "1bit_u8": (1, 8, 1),
}  # fmt: skip
_HQQ_TYPES: dict[str, DType | None] = {"torch.float16": F16, "torch.bfloat16": BF16, "torch.float32": F32}

#: Arrays of numbers beside the codes; names that other arrays have, too.
HQQ_BESIDE = (
    *(".scale", ".zero", ".zero_scale", ".shape", ".group_size", ".axis", ".packing", ".compute_dtype", ".nbits"),
    *(".view_as_float", ".unpack_view_dtype", ".quant_scale", ".quant_zero", ".offload_meta", ".encoded_state_dict"),
    *(".stores_quant_config", ".channel_wise", ".optimize", ".round_zero"),
)


def _fit_hqq(stored: Arrays, declared: PackConfig) -> Module:
    if ".zero_scale" in stored:
        raise Unread("HQQ with scales and zero points in one array (offload_meta)")
    missing = [suffix for suffix in HQQ_BESIDE[:2] + HQQ_BESIDE[3:7] if suffix not in stored]
    if missing:
        raise Conflict(f"there is no {missing[0][1:]}")
    values = {suffix: _hqq_numbers(stored[suffix], declared, suffix) for suffix in (".shape", ".group_size", ".axis")}
    values[".packing"] = _hqq_numbers(stored[".packing"], declared, ".packing", U8)
    packing, weight, scale, zero = _hqq_text(values[".packing"]), stored[".W_q"], stored[".scale"], stored[".zero"]
    shape, (size, axis) = (
        values[".shape"],
        (values[key][0] if len(values[key]) == 1 else -1 for key in (".group_size", ".axis")),
    )
    if packing not in _HQQ_CODES:
        raise Unread(f"HQQ with packing {packing}")
    if len(shape) != 2 or not all(0 < length < 1 << 32 for length in shape) or size < 1 or axis not in (0, 1):
        raise Conflict(f"it says shape {shape}, group_size {size} and axis {axis}")
    rows, columns = shape
    bits, parts, unit = _HQQ_CODES[packing]
    groups, rest = divmod(rows * columns, size)
    if rest:
        raise Conflict(f"groups of {size} do not divide {rows * columns:,} codes")
    lines = groups if axis else size  # of what was packed, whose first axis is cut into parts
    elements = -(-lines // parts) * (rows * columns // lines)
    if weight.extent.nbytes != elements * unit or (lines % parts and bits != 3):
        raise Conflict(f"W_q has shape {list(weight.shape)} {weight.dtype}, which is not {packing} of {shape}")
    shaped(scale, (groups, 1) if axis else (1, groups))
    shaped(zero, scale.shape)
    if columns % size if axis else groups % columns:
        raise Unread("HQQ with groups that cross rows")
    computed: DType | None = F16
    if ".compute_dtype" in stored:
        computed = _HQQ_TYPES.get(_hqq_text(_hqq_numbers(stored[".compute_dtype"], declared, ".compute_dtype", U8)))
    if computed is not scale.dtype or zero.dtype is not scale.dtype:
        raise Unread("HQQ with scales of another type than it computes in")
    many = (rows, columns // size) if axis else (rows, columns)
    layout = plain(*many) if axis else _over_and_over(size, groups // columns, columns)
    numbers = [laid_out(array, layout, scale.dtype) for array in (scale, zero)]
    return Module(
        Scheme(REAL, bits, size if axis else 1, scale.dtype, zeros=True),
        (rows, columns),
        (laid_out(weight, plain(rows, columns * unit), U8, times=parts), *numbers),
        partial(_unpack_hqq, elements=elements, unit=unit),
        f"{bits}-bit, groups of {size}{' across rows' * (not axis)}",
    )


def _hqq_numbers(stored: StoredTensor, declared: PackConfig, suffix: str, *types: DType) -> list[int]:
    """Integers of a small array; bytes of a text where these types say so."""
    if stored.dtype not in (types or (I32, I64)):
        expected = "bytes of a text" if types else "integers"
        raise Conflict(f"{suffix[1:]} is {stored.dtype}, {expected} expected")
    found = declared.integers_of(stored) if stored.extent.nbytes <= 64 else None
    if found is None:
        raise Unread("HQQ without its settings")
    return [int(number) for number in found]


def _hqq_text(numbers: list[int]) -> str:
    return bytes(number & 0x7F for number in numbers).decode("ascii")


def _over_and_over(times: int, rows: int, columns: int) -> Layout:
    """Stored rows that are those of the matrix so many times.

    By a stride of nothing: as many extents would take what a hostile header says.
    """
    strip = Strip(0, merged([(times, 0), (rows, columns)]), merged([(columns, 1)]))
    return Layout(times * rows, columns, rows, columns, (strip,), shared=True)


def _unpack_hqq(tile: Tile, *, elements: int, unit: int) -> Rows:
    bits, stored = tile.scheme.bits, np.ascontiguousarray(tile.own(0))
    words = stored.view("<u4") if unit == 4 else stored
    first, count = tile.start * tile.columns, words.size
    parts = next(parts for of, parts, _ in _HQQ_CODES.values() if of == bits)
    step = 1 if elements % tile.columns else tile.columns  # most often a row is in one part
    part = np.arange(first, first + count, step).reshape(len(words), -1) // elements
    codes = words >> (bits * (parts - 1 - part)).astype(words.dtype) & words.dtype.type((1 << bits) - 1)
    return rows_of(codes.astype(np.uint8), tile.own(1), tile.own(2))


_HQQ_SMALL = (U8, I32, I64, F32)

HQQ_PACKINGS = (
    Packing(
        "HQQ",
        frozenset({"hqq"}),
        {".W_q": (U8, I32, *FLOATS), **{f"{suffix}?": (*_HQQ_SMALL, *FLOATS) for suffix in HQQ_BESIDE}},
        _fit_hqq,
    ),
)
