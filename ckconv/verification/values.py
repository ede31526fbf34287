"""A second implementation of conversions, for a few rows of each tensor.

Everything that a conversion computes (decoders, packing again, quantizers, merges, other conventions of values) is
written by :mod:`ckconv.quant` and compared with what the same functions make again: a mistake in one of them would be
on both sides. So a few rows of each such tensor are decoded here, in plain NumPy by the formulas of the formats, ggml's
blocks by the gguf package, and compared with each other. What is sampled is said in docs/limits.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ckconv.core.layouts import (
    BF16,
    COUNTED,
    DTYPES,
    EXP,
    F16,
    F32,
    F64,
    INTEGERS,
    NEG_EXP,
    SOFTPLUS,
    WIDENS_TO_F32,
    DType,
    Kind,
    ambiguous,
    plain,
)
from ckconv.core.lazy import Doubles, Floats, Index, NDArray, Rows, replace
from ckconv.core.metadata import beside, document_of
from ckconv.core.tensors import PackedMatrix, Role, Tensor, TensorIndex
from ckconv.families.adapters import Change, changes_of
from ckconv.io.files import Files
from ckconv.io.rows import RowReader
from ckconv.quant.mlx import triple_of
from ckconv.quant.packed import Scheme, scheme_of
from ckconv.verification.rounding import (
    DROPPED,
    E2M1,
    LINEAR,
    Codes,
    again,
    by_ggml,
    linearly,
    misplaced,
    out_of_step,
    rounded,
)

#: Rows from the first on, and rows between them and the last, that are looked at.
FIRST, BETWEEN = 4, 8

#: Elements of rows that are computed here at most: one row of a broad matrix is enough.
_ELEMENTS = 1 << 18


class Sample(NamedTuple):
    """Rows of a tensor of the output and of its source.

    Attributes:
        out, source: the two tensors.
        model: what the source is a tensor of.
        shift: the layout's of the output less the source's.
        factor: what the source's values are multiplied with.
        importance: how much errors of each column counted when it was quantized, an expert a row.
        quantized: values were rounded to blocks, or to a float type, because somebody asked for that.
    """

    out: Tensor
    source: Tensor
    model: TensorIndex
    shift: float
    factor: float
    importance: Floats | None
    quantized: bool


#: Half of the last place of a float32.
_HALF = 2.0**-24


def sampled(rows: int, columns: int, *, packed: bool, parts: int = 1) -> Index:
    """The numbers of the rows that are looked at, some in each of the parts."""
    count = max(1, min(rows, _ELEMENTS // max(columns, 1)))
    first = np.arange(min(FIRST, count), dtype=np.int64)
    if packed or count <= FIRST:
        return first
    number = min(max(BETWEEN, parts), count - FIRST)
    between = np.arange(number, dtype=np.int64) * (rows - 1 - FIRST) // max(1, number - 1)
    return np.concatenate([first, FIRST + between])


def disagreement(sample: Sample, files: Files) -> str:
    """A fault of the sampled rows; empty where there is none."""
    out, source = sample.out, sample.source
    if not out.layout.rows or not out.layout.cols:  # of nothing there is no row
        return ""
    parts = out.shape[0] if len(out.shape) == 3 else 1  # experts
    packed = bool(source.packed) or not out.layout.whole_rows
    rows = sampled(out.layout.rows, out.layout.cols, packed=packed, parts=parts)
    settings, merged = _settings(sample.model), bool(sample.model.adapters)
    if merged:
        rows = np.union1d(rows, _replaced(source, sample.model))
    meant = _merged(source, sample.model, files, rows) if merged else values_of(source, files, rows, settings)
    if meant is None:
        return ""
    number = _float_of(source)
    if sample.quantized and out.dtype not in WIDENS_TO_F32:
        meant = _mlx(source, files, rows, number) if number is not None and not merged else meant
        return _quantized(sample, files, rows, meant)
    target = out.dtype if out.dtype in WIDENS_TO_F32 else None
    if target is not None and number is not None and not merged:
        meant = _mlx(source, files, rows, number)  # products and sums are rounded to the model's type there
    found = values_of(out, files, rows, settings)
    if found is None:
        return ""
    meant = meant * sample.factor if sample.factor != 1.0 else meant
    several = ambiguous(sample.shift)  # numbers have this exponential or this sum, and any of them is right
    if several and target in (F16, BF16, F32):  # of a large exponential no float32 may be the logarithm
        found = np.where(_between(found, meant, sample.shift, target), meant, _moved(found, -sample.shift))
    elif several:
        found = _moved(found, -sample.shift)
    else:
        meant = _moved(meant, sample.shift)
    scheme = scheme_of(source.dtype)
    logarithms = sample.shift in (-NEG_EXP, -EXP, -SOFTPLUS)
    loose = logarithms or merged or (scheme is not None and scheme.factor)
    kind = F32 if several or target is None else target
    least = 0.25 * logarithms
    wrong = (  # whole numbers have no neighbors; of I64 beyond float64's, none is an I32
        found != meant
        if source.dtype in INTEGERS
        else ~_same(found, meant, kind, loose=loose or sample.factor != 1.0, least=least)
    )
    if not wrong.any():
        return ""
    row, column = (int(n) for n in np.argwhere(wrong)[0])
    place = f"row {rows[row]:,}, column {column:,}"
    return f"{place} is {found[row, column]:.9g}, {meant[row, column]:.9g} is in the source"


def is_faithful(out: Tensor, source: Tensor, shift: float, files: Files) -> bool:
    """Whether every stored exponential is next to the exact number.

    Libraries compute them in float32, and are off by less than its last place.
    """
    step = max(1, _ELEMENTS // max(out.layout.cols, 1))
    for start in range(0, out.layout.rows, step):
        rows = np.arange(start, min(start + step, out.layout.rows))
        found, meant = (values_of(tensor, files, rows, {}) for tensor in (out, source))
        if found is None or meant is None:
            return False
        meant = _moved(meant, shift)
        with np.errstate(all="ignore"):
            near = np.abs(found - meant) < np.spacing(np.abs(meant).astype(np.float32))
        if not (near | (found == rounded(meant, F32))).all():
            return False
    return True


def _settings(index: TensorIndex) -> Mapping[str, Any]:
    """How a model says that its matrices are quantized."""
    settings = document_of(index.metadata).get("quantization_config")
    files = beside(index) if settings is None else {}
    for name in ("quantize_config.json", "quant_config.json"):  # AutoGPTQ's and AutoAWQ's own files
        if name in files:
            settings = json.loads(files[name].read_bytes())
    return settings if isinstance(settings, dict) else {}


def values_of(tensor: Tensor, files: Files, rows: Index, settings: Mapping[str, Any]) -> Doubles | None:
    """Values of rows, float64 ``[len(rows), columns]``, if decoded here."""
    if tensor.merge is not None:
        return None
    if triple_of(tensor.dtype):
        return _triple(tensor, files, rows)
    if tensor.packed:
        return _packed(tensor, files, rows, settings)
    reader = RowReader(tensor, files)
    if reader.dtype is not tensor.dtype:
        return None
    return _of_type(reader.gather(rows), tensor.dtype)


def _of_type(raw: Rows, dtype: DType) -> Doubles | None:
    raw = np.ascontiguousarray(raw)
    with np.errstate(all="ignore"):
        if dtype is F32:
            return raw.view("<f4").astype(np.float64)
        if dtype is F64:
            return raw.view("<f8")
        if dtype is F16:
            return raw.view("<f2").astype(np.float64)
        if dtype is BF16:
            return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
        if dtype in INTEGERS:
            return raw.view(f"<i{dtype.size}").astype(np.float64)
        if dtype.name == "F8_E4M3":
            return _floats8(4, 3)[raw]
        if dtype.name == "F8_E8M0" or dtype.name == "U8":
            return np.exp2(raw.astype(np.float64) - 127)
        if dtype.kind is not Kind.BLOCK or dtype.ggml is None:
            return None
        if bits := {"Q1_0": 1, "Q2_0": 2}.get(dtype.name):
            blocks = raw.reshape(len(raw), -1, dtype.size)
            codes = _codes(blocks[..., 2:].reshape(-1, dtype.size - 2), bits).reshape(*blocks.shape[:2], -1)
            scales = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float64)
            return (((codes if bits > 1 else 2 * codes) - 1) * scales).reshape(len(raw), -1)
        from gguf import GGMLQuantizationType, quants

        try:
            return np.asarray(quants.dequantize(raw, GGMLQuantizationType(dtype.ggml)), np.float64)
        except (NotImplementedError, ValueError):
            return None


#: Codes of 8 bits -> how many are the exponent's, and the mantissa's.
_FLOATS8 = {"E4M3": (4, 3), "E5M2": (5, 2)}


def _floats8(exponent_bits: int, mantissa_bits: int) -> Doubles:
    """Values of the 256 codes; of E4M3 the last of either sign is no number.

    E5M2 has infinities besides.
    """
    code = np.arange(256)
    bias = (1 << exponent_bits - 1) - 1
    exponent, mantissa = code >> mantissa_bits & (1 << exponent_bits) - 1, code & (1 << mantissa_bits) - 1
    small, whole = mantissa / 2.0**mantissa_bits, 1 + mantissa / 2.0**mantissa_bits
    value = np.where(exponent == 0, small * 2.0 ** (1 - bias), whole * 2.0 ** (exponent - bias))
    value[code & 127 == 127 if exponent_bits == 4 else exponent == 31] = np.nan
    value[code & 127 == 124 if exponent_bits == 5 else []] = np.inf
    return np.where(code > 127, -value, value)


def _codes(raw: Rows, bits: int) -> Index:
    """Codes of rows that are one stream of bits each, the lowest first."""
    stream = np.unpackbits(np.ascontiguousarray(raw), axis=1, bitorder="little").reshape(len(raw), -1, bits)
    return stream.astype(np.int64) @ (1 << np.arange(bits))


def _float_of(tensor: Tensor) -> DType | None:
    """The float type in which MLX computes a triple's values, if it is one."""
    triple = triple_of(tensor.dtype) if tensor.planes and tensor.merge is None else None
    return triple.number if triple else None


def _triple(tensor: Tensor, files: Files, rows: Index) -> Doubles | None:
    parts = _parts(tensor, files, rows)
    if parts is None:
        return None
    codes, scales, biases = parts
    with np.errstate(all="ignore"):
        return codes * scales if biases is None else codes * scales + biases


def _mlx(tensor: Tensor, files: Files, rows: Index, number: DType) -> Doubles:
    """Values as ``mlx.core.dequantize`` rounds them: product, then sum."""
    parts = _parts(tensor, files, rows)
    assert parts is not None
    codes, scales, biases = parts
    with np.errstate(all="ignore"):
        product = rounded(codes * rounded(scales, number), number)
        return product if biases is None else rounded(product + biases, number)


def _parts(tensor: Tensor, files: Files, rows: Index) -> tuple[Doubles, Doubles, Doubles | None] | None:
    """Codes as numbers, with the scale and the bias of each."""
    triple = triple_of(tensor.dtype)
    if triple is None or not tensor.layout.whole_rows:
        return None
    q = triple.quantization
    if len(tensor.packed) > 1:
        return None
    raw = [RowReader(plane, files).gather(rows) for plane in tensor.planes]
    if tensor.packed:  # scales are in blocks of 128 rows and 4 groups
        stored = tensor.layout.start(rows) // tensor.layout.stored_cols
        raw = [_rows_in_blocks(array.tensor, files, stored) for array in tensor.packed[0].arrays if array]
    codes = _codes(raw[0], q.bits)
    if q.has_biases:
        scales, biases = (_of_type(plane, triple.number) for plane in raw[1:])
        assert scales is not None
        assert biases is not None
        wide = [np.repeat(numbers, q.group_size, axis=1) for numbers in (scales, biases)]
        return codes.astype(np.float64), wide[0], wide[1]
    table = E2M1 if q.bits == 4 else _floats8(4, 3)
    raw[1] = raw[1][:, : codes.shape[1] // q.group_size]  # they may be filled up
    scales = _floats8(4, 3)[raw[1]] if q.mode == "nvfp4" else np.exp2(raw[1].astype(np.float64) - 127)
    return table[codes], np.repeat(scales, q.group_size, axis=1), None


def _rows_in_blocks(array: Tensor, files: Files, rows: Index) -> Rows:
    """Rows of codes, or of scales in cuBLAS's blocks.

    A block is 32 x 16 bytes, for 128 rows and 4 groups.
    """
    if array.layout.in_order:
        return RowReader(array, files).gather(rows)
    whole = array.layout
    flat = replace(array, layout=plain(whole.elements // 16, 16), shape=(whole.elements // 16, 16))
    block = (rows // 128)[:, None] * (whole.cols // 4) + np.arange(whole.cols // 4)
    lines = RowReader(flat, files).gather((block * 32 + (rows % 32)[:, None]).reshape(-1))
    four = lines.reshape(len(rows), -1, 4, 4)[np.arange(len(rows)), :, rows % 128 // 32]
    return np.ascontiguousarray(four.reshape(len(rows), -1))


# -- Other quantizers -------------------------------------------------------------------------------------------------


def _packed(tensor: Tensor, files: Files, rows: Index, settings: Mapping[str, Any]) -> Doubles | None:
    scheme = scheme_of(tensor.dtype)
    if scheme is None or not tensor.layout.whole_rows:
        return None
    stored = tensor.layout.start(rows) // tensor.layout.stored_cols
    found = np.empty((len(rows), tensor.layout.cols))
    first = 0
    for packed in tensor.packed:
        selected = (stored >= first) & (stored < first + packed.rows)
        if selected.any():
            values = _module(packed, scheme, stored[selected] - first, tensor.layout.cols, files, settings)
            if values is None:
                return None
            found[selected] = values
        first += packed.rows
    return found


def _module(
    packed: PackedMatrix, scheme: Scheme, rows: Index, columns: int, files: Files, settings: Mapping[str, Any]
) -> Doubles | None:
    """Rows of one matrix, out of its arrays."""
    arrays: list[Rows | None] = []
    for array in packed.arrays:
        place = None if array is None else rows // array.per if array.per else np.zeros_like(rows)
        arrays.append(None if array is None or place is None else RowReader(array.tensor, files).gather(place))
    if len(arrays) == 1 and arrays[0] is not None:  # numbers without scales
        return _floats8(*_FLOATS8[scheme.codes])[arrays[0]]
    first, scaled = packed.arrays[:2]
    if first is None or scaled is None or arrays[0] is None or arrays[1] is None:
        return None
    name, raw, bits = first.tensor.source, arrays[0], scheme.bits
    if first.tensor.dtype.kind is Kind.BLOCK:  # blocks of a GGUF, and a scale of their scales beside them
        values, factor = _of_type(raw, first.tensor.dtype), _of_type(arrays[1], scaled.tensor.dtype)
        return None if values is None or factor is None else values * factor
    if len(arrays) > 3 and arrays[3] is not None and name.endswith(".weight"):  # a matrix beside its quant_state
        return _by_table(raw, rows, columns, [array[0] for array in arrays if array is not None])
    codes: NDArray[Any]
    zeros: NDArray[Any] = np.zeros((1, 1))
    if scheme.codes == "int" and name.endswith(".qweight"):
        rounds = settings.get("quant_method") in ("auto-round", "intel/auto-round")
        packing = settings.get("packing_format" if rounds else "checkpoint_format") or "gptq"
        where = _bits_of_codes(bits, "planes" if packing == "gptq_p" else "")
        along = first.per > 1  # AWQ: words along the output, interleaved
        order = np.array([0, 4, 1, 5, 2, 6, 3, 7] if along else range(8))
        codes = _in_words(raw, rows, where, order) if along else _runs(raw, where).reshape(len(raw), -1)
        assert arrays[2] is not None
        version_1 = not along and packing in ("gptq", "auto", "auto_round:gptq", "auto_round:auto_gptq")
        zeros = _in_words(arrays[2], rows, where, order) + (1 if version_1 else 0)
    elif scheme.codes == "int" and name.endswith(".weight_packed"):
        whole = bits in (3, 5, 6, 7) and raw.shape[1] == -(-columns // (32 // bits)) * 4
        where = _bits_of_codes(bits, "whole" if whole else "")
        short = -raw.shape[1] % (np.max(where) // 32 * 4 + 4)
        codes = _runs(np.pad(raw, ((0, 0), (0, short))), where).reshape(len(raw), -1)[:, :columns]
        zeros = np.full((1, 1), 1 << bits - 1)
        if len(arrays) > 2 and arrays[2] is not None:
            words = arrays[2].reshape(len(rows), np.max(where) // 32 + 1, -1, 4).swapaxes(1, 2)
            zeros = _in_words(words.reshape(len(rows), -1), rows, where, np.arange(len(where)))
    elif scheme.codes == "int" and settings.get("quant_method") == "quark":  # AWQ's words of two's complements
        export = settings.get("export")
        in_order = isinstance(export, dict) and export.get("pack_method") == "order"
        order, where = np.array(range(8) if in_order else [0, 4, 1, 5, 2, 6, 3, 7]), _bits_of_codes(bits)
        codes = _in_words(raw, rows, where, order)
        assert arrays[2] is not None
        zeros = _in_words(arrays[2], rows, where, order)
        if settings["global_quant_config"]["weight"]["dtype"] == "int4":
            codes, zeros = (numbers - 16 * (numbers > 7) for numbers in (codes, zeros))
    elif scheme.codes == "int" and first.tensor.dtype is DTYPES["I8"]:
        codes = raw.view(np.int8).astype(np.int64)
        zeros = arrays[2].view(np.int8).astype(np.int64) if len(arrays) > 2 and arrays[2] is not None else zeros
    elif scheme.codes == "int" and settings.get("quant_method") == "bitnet":
        codes = raw.astype(np.int64) >> (2 * (rows * 4 // packed.rows))[:, None] & 3
        zeros = np.ones((1, 1))
    elif scheme.codes == "real":  # of each part of the matrix one code in every element
        words, parts = (raw.view("<u4"), 10) if bits == 3 else (raw, 8 // bits)
        part = (rows[:, None] * columns + np.arange(columns)) // (first.tensor.extents[0].nbytes // words.itemsize)
        codes = words.astype(np.int64) >> bits * (parts - 1 - part) & (1 << bits) - 1
        assert arrays[2] is not None
        found = _of_type(arrays[2], scaled.tensor.dtype)
        assert found is not None
        zeros = found
    elif scheme.codes == "sum":  # signed, or of tiles: word, then lane, then the halves of every byte
        codes = _codes(raw, 4)
        codes = codes - 16 * (codes > 7)
        if first.tensor.dtype is DTYPES["U8"]:
            eighths = _codes(raw, 4).reshape(len(raw), -1, 4, 4, 2, 4)
            codes = np.moveaxis(eighths, (3, 5, 2, 4), (2, 3, 4, 5)).reshape(len(raw), -1)[:, :columns] - 8
        assert arrays[2] is not None
        found = _of_type(arrays[2], scheme.number)
        assert found is not None
        zeros = -found
    elif scheme.codes in _FLOATS8:
        codes = _floats8(*_FLOATS8[scheme.codes])[raw]
    elif scheme.codes == "E2M1":
        upper = name.endswith(".weight") and not scaled.tensor.layout.in_order  # ComfyUI's, the upper half first
        codes = E2M1[_codes(raw >> np.uint8(4) | raw << np.uint8(4) if upper else raw, 4)]
        arrays[1] = _rows_in_blocks(scaled.tensor, files, rows)[:, : columns // scheme.group]
    else:
        return None
    scales = _of_type(arrays[1], scaled.tensor.dtype)
    if scales is None:
        return None
    with np.errstate(all="ignore"):
        if settings.get("quant_method") == "bitnet" and settings.get("linear_class") != "autobitlinear":
            scales = (np.float32(1) / scales.astype(np.float32)).astype(np.float64)
        if scheme.factor and arrays[2] is not None:
            factor = arrays[2].view("<f4").astype(np.float64)
            scales = rounded(scales / factor if name.endswith("_packed") else scales * factor, F32)
        ordered = len(arrays) > 3 and arrays[3] is not None
        group = arrays[3].view("<i4")[0] if ordered else np.arange(columns) // scheme.group  # type: ignore[union-attr]
        spread = [np.broadcast_to(part, (len(rows), max(part.shape[1], 1))) for part in (scales, zeros)]
        wide = [part[:, group] if part.shape[1] > 1 else part for part in spread]
        made: Doubles = codes * wide[0] - wide[1] if scheme.codes == "sum" else (codes - wide[1]) * wide[0]
        if scheme.codes == "real":
            made = rounded(rounded(codes - wide[1], scheme.number) * wide[0], scheme.number)
        if scaled.tensor.source.endswith(".SCB"):
            made = rounded(made, F32) * float(np.float32(7.874015718698502e-3))
    return made


def _by_table(raw: Rows, rows: Index, columns: int, first: list[Rows]) -> Doubles:
    """Values of bitsandbytes' four bits: positions in a table.

    Args:
        first: a row of each array, of which those behind the first are one.
    """
    scales, table, state = first[1], first[2].view("<f4").astype(np.float64), json.loads(first[3].tobytes())
    codes = np.stack([raw >> 4, raw & 15], axis=2).reshape(len(raw), -1)
    block = (rows[:, None] * columns + np.arange(columns)) // state["blocksize"]
    if len(first) > 4:
        outer, inner = (array.view("<f4").astype(np.float64) for array in first[4:])
        products = rounded(inner[scales[block]] * outer[block // state["nested_blocksize"]], F32)
        scale = rounded(products + float(np.float32(state["nested_offset"])), F32)
    else:
        scale = scales.view("<f4").astype(np.float64)[block]
    values: Doubles = table[codes] * scale
    return values


def _bits_of_codes(bits: int, form: str = "") -> Index:
    """Positions of the bits of each code ``[codes, bits]`` in a run of words.

    A run is the fewest words that hold whole codes, the lowest bits first. They follow each other, over the ends of
    words unless codes are ``whole``; or they are in ``planes``: of 32 codes the lowest two or four bits of each, then
    the next.
    """
    many = 32 // bits if form == "whole" or 32 % bits == 0 else 32
    code, bit = np.arange(many)[:, None], np.arange(bits)
    if form != "planes" or 32 % bits == 0:
        return np.asarray(code * bits + bit)
    low = 2 if bits == 3 else 4
    width = np.where(bit < low, low, np.where(bits - low == 3, np.where(bit < 6, 2, 1), bits - low))
    start = np.where(bit < low, 0, np.where((bits == 7) & (bit == 6), 6, low))
    return np.asarray(32 * start + code * width + bit - start)


def _runs(raw: Rows, where: Index) -> Index:
    """Codes ``[rows, runs, codes of a run]`` of rows of words."""
    words = int(np.max(where)) // 32 + 1
    stream = np.unpackbits(np.ascontiguousarray(raw).reshape(len(raw), -1, 4 * words), axis=2, bitorder="little")
    codes: Index = stream[..., where].astype(np.int64) @ (1 << np.arange(where.shape[1]))
    return codes


def _in_words(raw: Rows, rows: Index, where: Index, order: Index) -> Index:
    """Codes of these rows, of runs of words that hold neighboring rows."""
    number = rows % len(where)
    number = number - number % len(order) + order[number % len(order)]
    return _runs(raw, where)[np.arange(len(rows)), :, number]


# -- Merges, conventions, quantizers ----------------------------------------------------------------------------------


def _merged(tensor: Tensor, source: TensorIndex, files: Files, rows: Index) -> Doubles | None:
    """Values of rows with adapters: ``values + weight * scale * (B @ A)``."""
    base = tensor.merge.base if tensor.merge is not None else tensor
    number = _float_of(base)
    values = values_of(base, files, rows, _settings(source)) if number is None else _mlx(base, files, rows, number)
    for adapter, weight in source.adapters:
        for change in changes_of(adapter, tensor.name, source.config) if source.config is not None else ():
            if values is None:
                return None
            values = _changed(values, change, weight, tensor.name, files, rows)
    return values


def _changed(values: Doubles, change: Change, weight: float, name: str, files: Files, rows: Index) -> Doubles | None:
    of, scale = change.tensors, float(np.float32(change.module.scale * weight))
    vector = name.endswith(".bias")
    whole = of.get(Role.SAVED_BIAS if vector else Role.SAVED_WEIGHT)
    if whole is not None:
        found = values_of(whole, files, rows, {})
        if found is None:
            return None
        values = found.reshape(values.shape)
    along = Role.IA3 in of and change.module.feedforward
    if Role.IA3 in of and not (vector and along):
        factors = _vector(of[Role.IA3], files, np.arange(values.shape[1]) if along else rows)
        values = values * (factors if along else factors[:, None])
    if vector:
        return values + scale * _vector(of[Role.BIAS], files, rows)[:, None] if Role.BIAS in of else values
    if Role.ROWS in of:
        return _with_rows(values, of[Role.ROWS], change.module.replaced, files, rows)
    if Role.B not in of:
        return values
    product = _product(of[Role.A], of[Role.B], files, rows)
    if product is None:
        return None
    values = values + scale * product
    if Role.MAGNITUDE in of:
        lengths = np.sqrt((values * values).sum(axis=1))
        values = values * (_vector(of[Role.MAGNITUDE], files, rows) / lengths)[:, None]
    return values


def _replaced(tensor: Tensor, source: TensorIndex) -> Index:
    """Numbers of rows that adapters replace: a sample would miss them."""
    config, adapters = source.config, source.adapters
    changes = [one for adapter, _ in adapters if config for one in changes_of(adapter, tensor.name, config)]
    rows = np.array([row for change in changes for row in change.module.replaced], np.int64)
    return rows[:: 1 + len(rows) // 1000]


def _with_rows(values: Doubles, by: Tensor, at: tuple[int, ...], files: Files, rows: Index) -> Doubles | None:
    positions = {row: place for place, row in enumerate(at)}
    replaced = [number for number, row in enumerate(rows.tolist()) if row in positions]
    found = values_of(by, files, np.array([positions[rows[number]] for number in replaced], np.int64), {})
    if found is None:
        return None
    values[replaced] = found
    return values


def _product(a: Tensor, b: Tensor, files: Files, rows: Index) -> Doubles | None:
    """Rows of ``B @ A``; of a stack, each by the matrices of its own expert."""
    left = values_of(b, files, rows, {})
    if left is None:
        return None
    if len(b.shape) == 3:
        rank, out = b.shape[2], b.shape[1]
        wanted = (rows // out)[:, None] * rank + np.arange(rank)
        right = values_of(a, files, wanted.reshape(-1), {})
        return None if right is None else np.einsum("nr,nrc->nc", left, right.reshape(*wanted.shape, -1))
    right = values_of(a, files, np.arange(a.layout.rows), {})
    return None if right is None else left @ right


def _vector(tensor: Tensor, files: Files, rows: Index) -> Doubles:
    """Elements of a vector, however many axes its file gives it."""
    everything = values_of(replace(tensor, layout=plain(tensor.elements, 1)), files, np.arange(tensor.elements), {})
    return np.full(len(rows), np.nan) if everything is None else everything.reshape(-1)[rows]


def sinusoids(rows: int, columns: int, *deep: int) -> Floats:
    """Sines of positions and their cosines; of a plane, columns first."""
    if deep:
        down, along = np.divmod(np.arange(rows * columns), columns)
        turn = np.exp(-np.log(10000.0) * 4 / deep[0] * np.arange(deep[0] // 4))
        spun = [np.exp(1j * np.outer(place, turn)) for place in (along, down)]
        return np.hstack([half for one in spun for half in (one.imag, one.real)])
    half = columns // 2
    turns = np.outer(np.arange(rows), 10000.0 ** (-np.arange(half) / (half - 1)))
    both: Floats = np.exp(1j * turns)
    return np.hstack([both.imag, both.real])


def llama3_factors(theta: float, dimensions: int, scaling: Mapping[str, Any]) -> Doubles:
    """The divisors of Llama 3 for the frequency of each pair.

    ``_compute_llama3_parameters`` of transformers.
    """
    factor, low, high, context = (
        float(scaling[key])
        for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    turns = context * theta ** (-np.arange(0, dimensions, 2) / dimensions) / (2 * np.pi)
    with np.errstate(divide="ignore", invalid="ignore"):  # two equal factors make a step
        smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    made: Doubles = 1.0 / (smooth + (1.0 - smooth) / factor)
    return made


def _moved(values: Doubles, shift: float) -> Doubles:
    if abs(shift) == COUNTED:  # by how many numbers come before in the row
        before: Doubles = np.ones(values.shape).cumsum(axis=1) - 1
        return values + before if shift > 0 else values - before
    with np.errstate(all="ignore"):
        made = np.exp(values) if shift in (NEG_EXP, EXP, SOFTPLUS) else values + shift
        if shift == SOFTPLUS:
            return np.where(values > _STEEP, values, np.log1p(made))
        return -made if shift == NEG_EXP else made


def _between(found: Doubles, meant: Doubles, shift: float, dtype: DType) -> NDArray[np.bool_]:
    """Whether stored values are rounded from what the source says.

    Any number whose exponential, or sum, is the source's float32.
    """
    with np.errstate(all="ignore"):
        ends = [
            _logarithm(end, -shift) if shift in (-NEG_EXP, -EXP, -SOFTPLUS) else end + shift
            for end in (meant * (1 - _HALF), meant * (1 + _HALF))
        ]
        low, high = (rounded(end, dtype) for end in ends)
        return (np.minimum(low, high) <= found) & (found <= np.maximum(low, high))


#: From where on log(1 + exp(w)) is w, in float32.
_STEEP = 30.0


def _logarithm(stored: Doubles, shift: float) -> Doubles:
    """Number with this exponential, or this log(1 + exp)."""
    if shift == SOFTPLUS:
        return np.where(stored > _STEEP, stored, np.log(np.expm1(stored)))
    return np.log(-stored if shift == NEG_EXP else stored)


def _same(found: Doubles, meant: Doubles, dtype: DType, *, loose: bool, least: float = 0.0) -> NDArray[np.bool_]:
    """Whether stored values are the computed ones, rounded.

    As a sum of float32 in another order, nearly.
    """
    want = rounded(meant, dtype)
    same: NDArray[np.bool_] = (found == want) | (rounded(found, F32) == want) | (np.isnan(found) & np.isnan(want))
    if same.all() or not loose:
        return same
    mantissa = 23 - DROPPED.get(dtype, 0)
    with np.errstate(all="ignore"):
        step = np.exp2(np.floor(np.log2(np.maximum(np.abs(meant), 2.0**-126))) - mantissa)
        slack = np.maximum(np.abs(meant).max(axis=1, keepdims=True), least) * 2.0**-20
        near: NDArray[np.bool_] = np.abs(found - meant) <= step * 0.5 + slack
        near |= same
    return near


def _quantized(sample: Sample, files: Files, rows: Index, meant: Doubles) -> str:
    """Check values that were rounded to blocks, or to MLX's codes."""
    out = sample.out
    meant = rounded(meant * sample.factor, F32)
    found = values_of(out, files, rows, {})
    if found is None:
        return ""
    triple = triple_of(out.dtype) if out.planes else None
    if triple is not None and not triple.quantization.has_biases:
        return _nearest(sample, files, rows, meant)
    # A sum of an adapter's products is rounded in another order here: its code may be the next one, its scale another.
    merged = bool(sample.model.adapters)
    meant = rounded(meant, sample.source.dtype) if merged else meant
    slack, wrong, made, reference = 2 * _of_merge(sample, meant), None, None, None
    codes, number = LINEAR.get(out.dtype.name), F16
    importance: Doubles | None = None
    if sample.importance is not None:
        each = out.layout.rows // len(sample.importance)
        importance = sample.importance[rows // each].astype(np.float64)
    if triple is not None:
        q, number = triple.quantization, triple.number
        codes = Codes(q.group_size, q.bits, mlx=True)
        parts = _parts(out, files, rows)
        assert parts is not None
        assert parts[2] is not None
        if merged:
            wrong = _between_codes(found, meant, parts[1], parts[2], slack, q.bits, number)
        else:
            made, _ = linearly(rounded(meant, number), codes, number)
            wrong = found != made
    elif not merged and (made := again(meant, out.dtype, weighed=importance is not None)) is not None:
        wrong = found != made
        if out.dtype.name == "Q1_0":  # whose scale is a sum
            wrong &= np.abs(found - made) > np.abs(made) * 2.0**-10
    else:
        raw = np.ascontiguousarray(RowReader(out, files).gather(rows))
        wrong = misplaced(raw, found, meant, slack, out.dtype)
        reference = None if merged else by_ggml(meant, out.dtype, importance)
    if wrong is not None and wrong.any():
        row, column = (int(n) for n in np.argwhere(wrong)[0])
        place = f"row {rows[row]:,}, column {column:,} is"
        if made is None:
            return f"{place} {found[row, column]:.9g}, and another code is nearer to {meant[row, column]:.9g}"
        by = f"another quantizer makes {made[row, column]:.9g} of {meant[row, column]:.9g}"
        return f"{place} {found[row, column]:.9g}, {by}"
    if reference is not None:
        others = rows[(raw != reference).any(axis=1)]
        return f"row {others[0]:,}: ggml makes other blocks of the source's values" if len(others) else ""
    fault = out_of_step(found, meant, slack, importance, out.dtype.name, codes, number) if made is None else None
    return f"row {rows[fault[0]]:,}: {fault[1]}" if fault else ""


def _between_codes(
    found: Doubles, meant: Doubles, scales: Doubles, biases: Doubles, slack: Doubles, bits: int, number: DType
) -> NDArray[np.bool_]:
    """Values of which another code of MLX's groups is nearer.

    Codes are of numbers that are rounded to be stored.
    """
    last = biases + scales * ((1 << bits) - 1)
    low, high = np.minimum(biases, last), np.maximum(biases, last)
    digits = np.maximum(np.abs(low), np.abs(high)) * 2.0 ** (DROPPED.get(number, 0) - 22)
    half = np.abs(scales) * (0.5 + 2.0**-10)
    return np.asarray(np.abs(found - np.minimum(np.maximum(meant, low), high)) > half + digits + slack)


def _nearest(sample: Sample, files: Files, rows: Index, meant: Doubles) -> str:
    """Check that small floats are the nearest codes, and scales reach far."""
    parts = _parts(sample.out, files, rows)
    if parts is None:
        return ""
    codes, scales, _ = parts
    triple = triple_of(sample.out.dtype)
    assert triple is not None
    table = np.unique(E2M1 if triple.quantization.bits == 4 else _floats8(4, 3)[np.arange(127)])
    misscaled = _misscaled(scales, meant, float(table[-1]), sample)
    table = np.unique(np.concatenate([table, -table]))
    with np.errstate(all="ignore"):
        scaled = np.where(scales == 0, 0, meant / scales).clip(table[0], table[-1])
        at = np.clip(np.searchsorted(table, scaled), 1, len(table) - 1)
        least = np.minimum(np.abs(table[at - 1] - scaled), np.abs(table[at] - scaled))
        slack = _of_merge(sample, meant) / np.where(scales == 0, 1, np.abs(scales))
        wrong = misscaled | (np.abs(codes - scaled) > least * (1 + 2**-10) + 2**-20 + 2 * slack)
    if not wrong.any():
        return ""
    row, column = (int(n) for n in np.argwhere(wrong)[0])
    return f"row {rows[row]:,}, column {column:,} is not the code next to {meant[row, column]:.9g}"


def _misscaled(scales: Doubles, meant: Doubles, largest: float, sample: Sample) -> NDArray[np.bool_]:
    """Scales that are not the next ones to each group's largest value.

    Next E4M3, or the least power of two (``fp_quantize`` of MLX's ``fp_quantized.h``), to what a number of the weights'
    own type is of the quotient by the largest code. Of zeros it is 1.
    """
    triple, source = triple_of(sample.out.dtype), sample.source.dtype
    assert triple is not None
    size = triple.quantization.group_size
    number = source if source in (F16, BF16) and sample.factor == 1.0 else F32
    groups, slack = np.abs(meant).reshape(len(meant), -1, size).max(axis=-1), 2 * _of_merge(sample, meant)[:, ::size]
    low, high = (rounded((groups + end) / largest, number) for end in (-slack, slack))
    zero = low <= 0
    if triple.quantization.mode == "nvfp4":
        table = _floats8(4, 3)[np.arange(127)]
        middle = (table[1:] + table[:-1]) / 2
        low, high = table[np.searchsorted(middle, low)], table[np.searchsorted(middle, high, "right")]
    else:
        with np.errstate(all="ignore"):
            low, high = (np.exp2(np.ceil(np.log2(end)).clip(-127, 127)) for end in (low, high))
        low, high = np.where(zero, 0, low), np.where(zero, np.maximum(high, 1), high)
    stored = scales[:, ::size]
    return np.repeat((stored < low) | (stored > high), size, axis=1)


def _of_merge(sample: Sample, meant: Doubles) -> Doubles:
    """How far merged values may be off.

    They are a sum in another order, rounded to the model's type.
    """
    if not sample.model.adapters:
        return np.zeros_like(meant)
    half = np.abs(meant) * 2.0 ** (DROPPED.get(sample.source.dtype, 0) - 24)
    slack: Doubles = half + np.abs(meant).max(axis=1, keepdims=True) * 2.0**-20
    return slack
