"""Block types of other quantizers: codes, scales and zero points of a row.

However a quantizer lays its arrays out, its rows become these, which stand for themselves: rows can change places, be
hashed and be compared without being decoded. A row is, one after the other::

    codes     u8 [columns]      one byte each, unsigned: integers, floats, or positions in a table of 16 (low four bits)
    scales    number [groups]   as they are stored
    zeros     u8 [groups]       where integers have them: value = (code - zero) * scale; or as the scales are stored
    factor    F32 [1]           where scales are themselves scaled (NVFP4)
    order     u32 [columns]     where groups are no runs of columns: the group of each column (GPTQ's g_idx)

:func:`numbers` is the view of a tile that re-packing works on: the source's own codes, scales and zero points.
:func:`decode` is the number that they say (E), in float32: nothing is rounded where codes have eight bits and scales
eleven; a product with a float32 scale is rounded once.
"""

from __future__ import annotations

import math
from functools import cache

from ckconv.core.layouts import DTYPES, DType, Kind, e2m1, e4m3, e5m2, e8m0, round_to
from ckconv.core.lazy import Floats, Index, NamedTuple, Rows, np
from ckconv.quant.codec import looked_up, of_rows, pack, to_float32

#: What codes are; ``INT`` of as many bits as the scheme says, ``PARTS`` of eight: signed parts of 127 of the scale.
#: ``REAL`` as ``INT``, with zero points that are numbers of the scales' type; of ``SUM`` those are added to the
#: products: value = (code - 2 ** (bits - 1)) * scale + zero.
INT, PARTS, REAL, SUM = "int", "int/127", "real", "sum"
E4M3, E5M2, E2M1, NF4, FP4 = "E4M3", "E5M2", "E2M1", "NF4", "bitsandbytes FP4"

#: What the sixteen codes of bitsandbytes stand for (``get_4bit_type`` of its ``functional.py``, 0.50), as float32.
MAPS = {
    NF4: (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ),
    FP4: tuple(n / 12 for n in (0.0, 0.0625, 8, 12, 4, 6, 2, 3, -0.0, -0.0625, -8, -12, -4, -6, -2, -3)),
}  # fmt: skip

#: How far the nearest types move the values of a matrix whose numbers are normally distributed, the RMS of the error by
#: that of the values in %: GGUF's Q8_0, and groups of 32 with 8 bits of MLX.
_NEAREST = {NF4: (0.5, 0.4), FP4: (0.6, 0.5)}

#: What is multiplied with instead of a division by 127 (``int8_vectorwise_dequant``).
_PART = 7.874015718698502e-3


class Scheme(NamedTuple):
    """Codes, groups and types of the numbers of a packed matrix.

    Attributes:
        codes: what they are: ``INT`` and the others.
        bits: of a code.
        group: columns that share a scale; the last group of a row may have fewer.
        number: type of the scales: a float, F8_E8M0, or F8_E4M3 (as U8 arrays hold them, too).
        zeros: there is a zero point for every scale; without one integers stand around ``2 ** (bits - 1)``.
        factor: every row has a float32 number that its scales are multiplied with.
        divisor: they are divided by it instead.
        ordered: columns of a group are anywhere in the row.
        library: float type that the library of the format computes values in; the scales' own where it says nothing.
    """

    codes: str
    bits: int
    group: int
    number: DType
    zeros: bool = False
    factor: bool = False
    divisor: bool = False
    ordered: bool = False
    library: DType | None = None

    def groups(self, columns: int) -> int:
        """How many scales a row of this many columns has."""
        return -(-columns // self.group)


SCHEMES: dict[DType, Scheme] = {}
_TYPES: dict[DType, DType] = {}


@cache
def packed_type(scheme: Scheme, columns: int) -> DType:
    """Block type for ``columns``: a group, or a row if groups differ."""
    bits = f"int{scheme.bits}"
    of = {INT: bits, REAL: f"HQQ {bits}", SUM: f"{bits} and sum", E4M3: "FP8", E5M2: "FP8 E5M2", E2M1: "FP4"}.get(
        scheme.codes, scheme.codes
    )
    one = columns % scheme.group or scheme.factor or scheme.ordered or scheme.group == 1
    block = columns if one else scheme.group
    many = scheme.groups(block)
    size = block + many * (scheme.number.size + _zero_bytes(scheme)) + 4 * scheme.factor + 4 * block * scheme.ordered
    also = (("zeros", scheme.zeros), ("factor", scheme.factor), ("divisor", scheme.divisor), ("order", scheme.ordered))
    number = scheme.library if scheme.codes in MAPS or scheme.codes == PARTS else scheme.number
    alone = scheme.codes in (E4M3, E5M2) and scheme.group == columns and number is DTYPES["F8_E8M0"]
    groups = () if alone else (f"group {scheme.group}", str(number))
    words = (of, *groups, *(word for word, there in also if there))
    made = DType(" ".join(words), Kind.BLOCK, block, size)
    dtype = _TYPES.setdefault(made, made)  # what is equal is one type
    SCHEMES[dtype] = scheme
    return dtype


def _zero_bytes(scheme: Scheme) -> int:
    return scheme.zeros * (scheme.number.size if scheme.codes in (REAL, SUM) else 1)


def scheme_of(dtype: DType) -> Scheme | None:
    """The scheme that a type stands for, ``None`` for any other type."""
    return SCHEMES.get(dtype)


#: NVFP4 with a factor for all scales, and with what divides them.
FACTOR = Scheme(E2M1, 4, 16, DTYPES["F8_E4M3"], factor=True)
DIVISOR = FACTOR._replace(divisor=True)


def nearest(dtype: DType, *, mlx: bool = False) -> str:
    """Clause on what the nearest type loses, where no other has a table."""
    scheme = scheme_of(dtype)
    if scheme is None or scheme.codes not in _NEAREST:
        return ""
    name, lost = "affine:8:32" if mlx else "q8_0", _NEAREST[scheme.codes][mlx]
    return f" (the nearest, --dequantize --quantize {name}, moves values by {lost} %)"


def is_scaled(dtype: DType) -> bool:
    """Whether the matrix is NVFP4 with a number for all of it."""
    scheme = scheme_of(dtype)
    return scheme is not None and scheme.codes == E2M1 and scheme.factor


def inverse(factor: float) -> float | None:
    """Return the exact float32 reciprocal of a factor, or ``None``."""
    mantissa, exponent = math.frexp(factor)
    return 1 / factor if mantissa == 0.5 and -125 <= exponent <= 127 else None


#: Why arrays of the scales of activations, and others about them, are left out.
NOT_WEIGHTS = "of activations, not of weights"


class Numbers(NamedTuple):
    """The numbers of some rows of a packed matrix, as the source has them.

    Attributes:
        scheme: what they are.
        codes: uint8 ``[rows, columns]``, unsigned.
        scales: float32 ``[rows, groups]``, each exactly the stored one; NaN where a stored one is.
        zeros: of integers uint8 ``[rows, groups]``, ``2 ** (bits - 1)`` where none are stored: value =
            (code - zero) * scale; where they are numbers of the scales' type, their bytes. ``None`` for floats.
        factors: float32 ``[rows]``, what the scales are multiplied with or divided by; ``None`` for a scheme without.
        order: the group of every column ``[columns]``; ``None`` where group ``i`` is a run of ``scheme.group`` columns.
        stored_scales: the scales' own bytes ``[rows, bytes]``.
    """

    scheme: Scheme
    codes: Rows
    scales: Floats
    zeros: Rows | None
    factors: Floats | None
    order: Index | None
    stored_scales: Rows


def numbers(rows: Rows, dtype: DType) -> Numbers:
    """Take rows ``[n, bytes]`` of a packed type apart; nothing is decoded."""
    scheme = SCHEMES[dtype]
    columns = rows.shape[1] // dtype.size * dtype.block
    groups = scheme.groups(columns)
    widths = (
        columns,
        groups * scheme.number.size,
        groups * _zero_bytes(scheme),
        4 * scheme.factor,
        4 * columns * scheme.ordered,
    )
    parts, at = [], 0
    for width in widths:
        parts.append(np.ascontiguousarray(rows[:, at : at + width]))
        at += width
    codes, scales, zeros, factors, order = parts
    integer = scheme.codes in (INT, PARTS)
    if integer and not scheme.zeros:
        zeros = np.full((len(rows), groups), 1 << scheme.bits - 1, np.uint8)
    return Numbers(
        scheme,
        codes,
        scale_values(scales, scheme.number),
        zeros if scheme.zeros or integer else None,
        factors.view(np.float32)[:, 0] if scheme.factor else None,
        order[:1].view(np.uint32)[0].astype(np.int64) if scheme.ordered and len(rows) else None,
        scales,
    )


def scale_values(scales: Rows, number: DType) -> Floats:
    """Bytes of scales -> their values; codes that are no number become NaN."""
    if number is DTYPES["F8_E8M0"]:
        values: Floats = e8m0()[scales]
        values[scales == 0xFF] = np.nan
        return values
    return e4m3()[scales] if number is DTYPES["F8_E4M3"] else to_float32(scales, number)


def rows_of(*parts: Rows) -> Rows:
    """Join contiguous arrays to the rows that :func:`numbers` takes apart."""
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8).reshape(len(part), -1) for part in parts], axis=1)


def plane(rows: Rows, dtype: DType, number: int) -> Rows:
    """One array of rows of a packed type, as bytes.

    Args:
        number: 0 for the codes, one stream of bits a row with the lowest first; 1 for the scales; 2 for the zero
            points, in words that are for :func:`together` rows each.
    """
    found = numbers(rows, dtype)
    if number < 2:
        return found.stored_scales if number else pack(found.codes, found.scheme.bits)
    assert found.zeros is not None
    return of_rows(found.zeros, found.scheme.bits)


def together(scheme: Scheme) -> int:
    """Rows whose zero points are in one word of 32 bits."""
    return 32 // scheme.bits


def scaled(found: Numbers) -> Floats:
    """Scales times the factor of all, or divided by it."""
    if found.factors is None:
        return found.scales
    with np.errstate(all="ignore"):
        factors = found.factors[:, None]
        return np.divide(found.scales, factors) if found.scheme.divisor else np.multiply(found.scales, factors)


def decode(rows: Rows, dtype: DType) -> Floats:
    """The values of rows of a packed type, float32 ``[n, columns]``."""
    found = numbers(rows, dtype)
    scheme, columns = found.scheme, found.codes.shape[1]
    scales, where = scaled(found), found.order
    if where is None and columns % scheme.group:
        where = np.arange(columns) // scheme.group
    with np.errstate(all="ignore"):  # infinite or NaN scales are values too
        if scheme.codes == REAL:
            return _computed(found, scheme.number)
        if scheme.codes == SUM:
            assert found.zeros is not None
            values = found.codes.astype(np.float32) - np.float32(1 << scheme.bits - 1)
            _each(values, scales, where, np.multiply)
            _each(values, scale_values(found.zeros, scheme.number), where, np.add)
            return values
        if found.zeros is None:
            values = looked_up(_table(scheme.codes), found.codes)
        else:
            values = found.codes.astype(np.float32)
            _each(values, found.zeros.astype(np.float32), where, np.subtract)
        _each(values, scales, where, np.multiply)
        if scheme.codes == PARTS:
            values *= np.float32(_PART)
    return values


def _computed(found: Numbers, number: DType) -> Floats:
    """Values; difference and product are rounded to the type of the scales."""
    assert found.zeros is not None
    values = found.codes.astype(np.float32)
    _each(values, scale_values(found.zeros, number), None, np.subtract)
    round_to(values, number)
    _each(values, found.scales, None, np.multiply)
    round_to(values, number)
    return values


@cache
def _table(codes: str) -> Floats:
    """Values of codes that are no integers."""
    if codes in MAPS:
        return np.array(MAPS[codes], np.float32)
    return {E4M3: e4m3, E5M2: e5m2, E2M1: e2m1}[codes]()


def _each(values: Floats, groups: Floats, where: Index | None, operation: np.ufunc) -> None:
    """Combine every value with the number of its group, in place."""
    if where is None:
        tiles = values.reshape(*groups.shape, -1)
        operation(tiles, groups[..., None], out=tiles)
    else:
        operation(values, groups.take(where, axis=1), out=values)  # in rows, as values are: an index gives columns
