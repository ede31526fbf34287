"""Exact ways from one block type to another, and their conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple, TypeVar

from ckconv.core.arrays import Flags, Rows, np
from ckconv.core.dtypes import BF16, DTYPES, F16, F32, DType, e4m3, holds
from ckconv.quant import affine, codec, packed, repack
from ckconv.quant.affine import Affine, Repacked
from ckconv.quant.codec import from_float32, to_float32
from ckconv.quant.codes import pack, unpack
from ckconv.quant.mlx import Quantization, Triple, split_planes, triple_of
from ckconv.quant.packed import (
    DIVISOR,
    E4M3,
    E5M2,
    FACTOR,
    INT,
    SUM,
    Scheme,
    is_scaled,
    nearest,
    numbers,
    rows_of,
    scheme_of,
)
from ckconv.quant.repack import SUPERBLOCKS, parts_of

# -- Re-packings of integers of 4 and 8 bits with scales and zero points -----------------------------------------------
# A group of a triple or of Q4_1 has a bias instead. It is ``-zero * scale`` exactly, with a zero point that is a code,
# or the group has no zero point. Where every zero point is the middle one, nothing needs to be stored of them.

#: GGUF blocks that are a scale and integers around zero -> the same numbers as other quantizers have them.
INTEGERS = {DTYPES[name]: Scheme(INT, bits, 32, F16) for name, bits in (("Q4_0", 4), ("Q8_0", 8))}

_Q4_1 = DTYPES["Q4_1"]


@cache
def with_zeros(dtype: DType) -> Scheme | None:
    """Scheme of a type with zero points added, or ``None``.

    Of types with zero points or biases.
    """
    triple, found = triple_of(dtype), scheme_of(dtype)
    if triple is not None and triple.quantization.mode == "affine":
        found = Scheme(INT, triple.quantization.bits, triple.quantization.group_size, triple.number, zeros=True)
    elif dtype is _Q4_1:
        found = Scheme(INT, 4, 32, F16, zeros=True)
    elif found is None or not (found.codes == INT and found.zeros and whole(dtype, 1)) or found.ordered:
        return None
    return found if found.bits in (4, 8) else None


def whole(dtype: DType, unit: int) -> bool:
    """Whether groups of a packed type are all a multiple of ``unit`` long.

    Else the last one of a row is smaller.
    """
    scheme = scheme_of(dtype)
    return scheme is not None and scheme.groups(dtype.block) == 1 and dtype.block % unit == 0


def of_packed(rows: Rows, dtype: DType, *, codes: bool = True) -> Affine:
    """Rows of a packed type of integers."""
    found = packed.numbers(rows, dtype)
    assert found.zeros is not None  # of integers
    kept = found.codes if codes else found.codes[:, :0]
    return Affine(found.scheme.bits, dtype.block, kept, found.scales, zero=found.zeros.astype(np.int16))


def of_sums(rows: Rows, dtype: DType, *, codes: bool = True) -> Affine:
    """Rows of integers with offsets; a bias that is no float32 is NaN."""
    found = packed.numbers(rows, dtype)
    scheme = found.scheme
    assert found.zeros is not None
    with np.errstate(all="ignore"):
        added = packed.scale_values(found.zeros, scheme.number).astype(np.float64)
        wanted = added - found.scales.astype(np.float64) * (1 << scheme.bits - 1)
        bias = wanted.astype(np.float32)
        bias[bias != wanted] = np.nan
    return Affine(scheme.bits, dtype.block, found.codes if codes else found.codes[:, :0], found.scales, bias=bias)


def of_triple(triple: Triple, scales: Rows, biases: Rows, codes: Rows | None = None) -> Affine:
    """Rows of the arrays of a triple; without codes the numbers alone."""
    q = triple.quantization
    unpacked = np.empty((len(scales), 0), np.uint8) if codes is None else unpack(codes, q.bits)
    scale, bias = (to_float32(np.ascontiguousarray(plane), triple.number) for plane in (scales, biases))
    return Affine(q.bits, q.group_size, unpacked, scale, bias=bias)


def integer_parts(rows: Rows, dtype: DType, *, codes: bool = True) -> Affine:
    """Codes and numbers of rows of a type that :func:`with_zeros` knows.

    Without ``codes`` the numbers alone.
    """
    triple = triple_of(dtype)
    if triple is not None:
        weight, scales, biases = split_planes(rows, triple)
        return of_triple(triple, scales, biases, weight if codes else None)
    if dtype is not _Q4_1:
        return of_packed(rows, dtype, codes=codes)
    blocks = codec.of_bytes(rows, dtype)
    d, m = (np.ascontiguousarray(blocks[field]).astype(np.float32) for field in ("d", "m"))
    found = codec.get_codes(blocks, dtype) if codes else np.empty((len(rows), 0), np.uint8)
    return Affine(4, 32, found, d, bias=m)


def integer_way(source: DType, target: DType) -> Callable[..., Repacked] | None:
    """To rows of a packed type of integers, or ``None`` where there is none."""
    scheme, own = scheme_of(target), with_zeros(source)
    if scheme is None:
        return None
    scheme = scheme._replace(library=None)  # what a library computes in is no part of the numbers
    if INTEGERS.get(source) == scheme:
        return partial(_of_blocks, block=source)
    same = own is not None and own._replace(library=None) == scheme._replace(number=own.number, zeros=True)
    return partial(_to_zeros, dtype=source, scheme=scheme) if same else None


def _of_blocks(rows: Rows, *, block: DType, codes: bool = True) -> Repacked:
    blocks = codec.of_bytes(rows, block)
    scales = np.ascontiguousarray(blocks["d"])
    unfit = ~np.isfinite(scales)
    return Repacked((packed.rows_of(codec.get_codes(blocks, block), scales),), unfit.size, int(unfit.sum()))


def _to_zeros(rows: Rows, *, dtype: DType, scheme: Scheme, codes: bool = True) -> Repacked:
    found = integer_parts(rows, dtype)
    zeros, fits = affine.integers(found)
    fits = fits & holds(found.scale, scheme.number)
    if not scheme.zeros:
        fits &= zeros == 1 << scheme.bits - 1
    scales, _ = from_float32(found.scale, scheme.number)
    made = packed.rows_of(found.codes, scales, *([zeros] if scheme.zeros else []))
    return Repacked((made,), fits.size, int(np.count_nonzero(~fits)))


# -- Re-pack NVFP4 with a scale of scales into ggml's blocks and MLX's -------------------------------------------------
# The other way round blocks and triples have the scale of scales 1.
#
# A block of ggml has four scales of E4M3 and the codes of 64 elements. Its scales have no sign and are numbers, else a
# group does not fit. A group fits MLX's nvfp4 if its scale times the scale of scales is an E4M3 number without a sign:
# with that one the codes say the same. A divisor becomes a factor by one rounding, as llama.cpp's converter has it; a
# factor becomes a divisor if it is a power of two, of which the inverse is exact.

_NVFP4 = DTYPES["NVFP4"]

#: What holds a matrix whose scales take up the scale of scales.
TRIPLE = Triple(Quantization("nvfp4", 4, 16), BF16)


def nvfp4_way(source: DType, target: DType) -> Callable[..., Repacked] | None:
    """From or to rows of a scaled NVFP4 type, or ``None`` where there is none."""
    scheme, other = scheme_of(source), scheme_of(target)
    if other in (FACTOR, DIVISOR) and (source is _NVFP4 or triple_of(source) == TRIPLE):
        return partial(_with_one, dtype=source)
    if scheme == FACTOR and other == DIVISOR:
        return partial(_to_divisor, dtype=source)
    if scheme is None or not is_scaled(source):
        return None
    if target is _NVFP4:
        return partial(_nvfp4_to_blocks, dtype=source)
    if triple_of(target) == TRIPLE:
        return partial(_to_triple, dtype=source)
    if other is not None and scheme.divisor and other == scheme._replace(divisor=False):
        return partial(_to_factor, dtype=source)
    return None


def _nvfp4_to_blocks(rows: Rows, *, dtype: DType, codes: bool = True) -> Repacked:
    found = numbers(rows, dtype)
    blocks = codec.empty(len(rows), found.codes.shape[1], _NVFP4)
    codec.put_codes(blocks, found.codes, _NVFP4)
    blocks["d"] = found.stored_scales.reshape(blocks["d"].shape)
    unfit = found.stored_scales > np.uint8(0x7E)
    return Repacked((codec.to_bytes(blocks),), unfit.size, int(unfit.sum()))


def products(rows: Rows, dtype: DType) -> tuple[Rows, Flags]:
    """Scales of groups times the scale of scales, and which exist.

    Bytes ``[rows, groups]``.
    """
    found = numbers(rows, dtype)
    assert found.factors is not None
    table, factors = e4m3()[:0x7F].astype(np.float64), found.factors.astype(np.float64)[:, None]
    scales = found.scales.astype(np.float64)
    with np.errstate(all="ignore"):  # a factor of 0, or that is no number
        wanted = scales / factors if found.scheme.divisor else scales * factors
    codes = np.searchsorted(table, wanted).clip(max=len(table) - 1)
    # Four bits times 24 are exact in float64; a quotient that is an E4M3 number is not rounded.
    exact = table[codes] * factors == scales if found.scheme.divisor else table[codes] == wanted
    return codes.astype(np.uint8), exact & np.isfinite(factors)


def _to_triple(rows: Rows, *, dtype: DType, codes: bool = True) -> Repacked:
    scales, exact = products(rows, dtype)
    found = numbers(rows, dtype).codes
    return Repacked((pack(found if codes else found[:, :0], 4), scales), exact.size, int((~exact).sum()))


def _to_factor(rows: Rows, *, dtype: DType, codes: bool = True) -> Repacked:
    found = numbers(rows, dtype)
    assert found.factors is not None
    with np.errstate(all="ignore"):
        factors = (np.float32(1) / found.factors)[:, None].view(np.uint8)
    return Repacked((rows_of(found.codes, found.stored_scales, factors),), found.scales.size, 0)


def _to_divisor(rows: Rows, *, dtype: DType, codes: bool = True) -> Repacked:
    found = numbers(rows, dtype)
    assert found.factors is not None
    mantissas, exponents = np.frexp(found.factors)
    exact = (mantissas == 0.5) & (exponents >= -125) & (exponents <= 127)
    with np.errstate(all="ignore"):
        divisors = (np.float32(1) / found.factors)[:, None].view(np.uint8)
    made = rows_of(found.codes, found.stored_scales, divisors)
    return Repacked((made,), found.scales.size, int((~exact).sum()) * found.scales.shape[1])


def _with_one(rows: Rows, *, dtype: DType, codes: bool = True) -> Repacked:
    if dtype is _NVFP4:
        blocks = codec.of_bytes(rows, _NVFP4)
        found, scales = codec.get_codes(blocks, _NVFP4), np.ascontiguousarray(blocks["d"]).reshape(len(rows), -1)
    else:
        weight, scales = split_planes(rows, TRIPLE)
        found = unpack(weight, 4)
    unfit = scales > np.uint8(0x7E)
    ones = np.ones((len(rows), 1), np.float32).view(np.uint8)
    return Repacked((rows_of(found, scales, ones),), unfit.size, int(unfit.sum()))


# -- Exact ways from one block type to another, and their conditions ---------------------------------------------------

T = TypeVar("T")

#: Rows of one type -> those of another; ``codes=False`` for scales and biases alone.
Way = Callable[..., Repacked]


class Numbers(NamedTuple):
    """Bits, group and reader of the numbers of a type.

    Attributes:
        bits: of a code.
        group: elements that share scale and zero point, or scale and bias.
        has_zero: there is a zero point, or a bias that may be one times the scale.
        parts: codes and numbers of rows; ``codes=False`` for the numbers alone.
    """

    bits: int
    group: int
    has_zero: bool
    parts: Callable[..., Affine]


_MXFP8 = Quantization("mxfp8", 8, 32)

#: What holds FP8 whose scales are powers of two.
MXFP8 = Triple(_MXFP8, BF16)

#: Why scattered groups are nothing but themselves.
SCATTERED = "columns that share a scale are scattered over the row (desc_act); other formats have them side by side"

#: Blocks for what other quantizers packed, in the order of choice.
_OF_PACKED = tuple(DTYPES[name] for name in ("Q4_0", "Q4_1", "Q8_0"))


@cache
def numbers_of(dtype: DType) -> Numbers | None:
    """Reader of the numbers of a type that only goes one way, or ``None``."""
    kind, scheme = SUPERBLOCKS.get(dtype), scheme_of(dtype)
    if kind is not None:
        return Numbers(kind.bits, kind.group, kind.zero is not None, partial(parts_of, block=dtype))
    if scheme is None or scheme.ordered or scheme.factor or not whole(dtype, 1):
        return None
    if scheme.codes == SUM and scheme.number is not F32:  # else products are rounded
        return Numbers(scheme.bits, dtype.block, True, partial(of_sums, dtype=dtype))
    if scheme.codes != INT:
        return None
    return Numbers(scheme.bits, dtype.block, True, partial(of_packed, dtype=dtype))


@cache
def way_between(source: DType, target: DType) -> Way | None:
    """Return the exact re-packing from one type to another, or ``None``."""
    triple, into = triple_of(source), triple_of(target)
    if source is target or (triple and into):
        return None
    if found := nvfp4_way(source, target) or integer_way(source, target):
        return found
    if triple is not None:
        recipe = repack.find(triple.quantization, target)
        return partial(_to_blocks, recipe, triple) if recipe else None
    if into is not None and (recipe := repack.find(into.quantization, source)):
        return partial(recipe.to_triple, triple=into)
    if into and into.quantization == _MXFP8 and is_fp8(source) and whole(source, _MXFP8.group_size):
        return partial(_to_mxfp8, dtype=source)
    numbers = numbers_of(source)
    if numbers is None:
        return None
    if into is not None:
        q = into.quantization
        fits = q.mode == "affine" and q.bits == _of_mlx(numbers.bits) and numbers.group % q.group_size == 0
        return partial(_through, numbers, into, affine.to_triple) if fits else None
    block = affine.BLOCKS.get(target)
    fits = block is not None and (numbers.has_zero or block.offset is None) and numbers.bits <= block.bits
    fits = fits and numbers.group % target.block == 0
    return partial(_through, numbers, target, affine.to_blocks) if fits else None


def blocks_for(source: DType, columns: int) -> tuple[DType, ...]:
    """GGUF types that may hold rows of this length, the first choice first."""
    triple = triple_of(source)
    if is_fp8(source) or is_mxfp8(source) or is_wide_fp8(source):
        return (BF16,)
    found = [recipe.block for recipe in repack.candidates(triple.quantization)] if triple else _OF_PACKED
    return tuple(block for block in found if way_between(source, block) and columns % block.block == 0)


def is_fp8(dtype: DType) -> bool:
    """E4M3 codes and a scale for each group of a row."""
    scheme = scheme_of(dtype)
    return scheme is not None and scheme.codes == E4M3 and not (scheme.factor or scheme.ordered)


def is_wide_fp8(dtype: DType) -> bool:
    """E5M2 codes and a scale for each group of a row."""
    scheme = scheme_of(dtype)
    return scheme is not None and scheme.codes == E5M2


def is_mxfp8(dtype: DType) -> bool:
    """E4M3 codes, and powers of two for the scales of their groups."""
    triple = triple_of(dtype)
    return triple is not None and triple.quantization == _MXFP8


def beyond_bf16(scales: Rows, *, wide: bool = False) -> Flags:
    """E8M0 bytes whose product with some code is no BF16 number.

    Codes of E4M3 are from 2**-9 to 448, ``wide`` ones of E5M2 from 2**-16 to 57,344.
    """
    least, most = (10, 239) if wide else (3, 246)
    return np.asarray((scales < least) | (scales > most))


def scale_bytes(rows: Rows, dtype: DType) -> tuple[Rows, Flags]:
    """E8M0 bytes of FP8's scales, and which scales are powers of two.

    Both ``[rows, groups]``.
    """
    bits = packed.numbers(rows, dtype).scales.view(np.uint32)
    exponent = bits >> np.uint32(23)
    # 2**-127 is a subnormal float32, of exponent 0; a sign makes the exponent 256 or more.
    sound = (bits & np.uint32(0x7FFFFF) == 0) & (exponent > 0) & (exponent < 255) | (bits == np.uint32(1 << 22))
    return exponent.astype(np.uint8), sound


def _to_mxfp8(rows: Rows, *, dtype: DType, codes: bool = True) -> Repacked:
    scales, sound = scale_bytes(rows, dtype)
    found = packed.numbers(rows, dtype).codes
    repeated = np.repeat(scales, found.shape[1] // scales.shape[1] // _MXFP8.group_size, axis=1)
    kept = found if codes else found[:, :0]
    return Repacked((kept, repeated), sound.size, int((~sound).sum()))


def scattered(dtype: DType) -> bool:
    """Groups are no runs of columns."""
    scheme = scheme_of(dtype)
    return scheme is not None and scheme.ordered


def no_block(source: DType, columns: int) -> str:
    """Why no GGUF type holds rows of this many elements."""
    if scattered(source):
        return SCATTERED
    if blocks_for(source, 0):
        return f"rows of {columns:,} elements are not whole blocks"
    return f"no GGUF block holds {source}{nearest(source)}"


def none_of(blocks: Sequence[DType]) -> str:
    """Reason for groups that none of these types holds."""
    if BF16 in blocks:
        return "a scale that is not a power of two in BF16's range, so BF16 cannot hold the values"
    return f"numbers that no {' or '.join(block.name for block in blocks)} block holds"


def triple_for(source: DType, number: DType) -> Triple | None:
    """Return the triple that holds blocks of a type exactly, or ``None``.

    ``number`` is the type of affine scales and biases.
    """
    recipe = repack.BY_BLOCK.get(source)
    if recipe is not None:
        return repack.natural_triple(source, number if recipe.mode == "affine" else None)
    if is_fp8(source) and whole(source, _MXFP8.group_size):
        return MXFP8
    if is_scaled(source):
        return TRIPLE
    numbers = numbers_of(source)
    if numbers is None or not (group := affine.natural_group(numbers.group)):
        return None
    return Triple(Quantization("affine", _of_mlx(numbers.bits), group), number)


def _of_mlx(bits: int) -> int:
    """Bits of MLX's codes that hold these: it has none of seven."""
    return 8 if bits == 7 else bits


def grown(source: DType, target: DType) -> bool:
    """Whether codes in ``target`` take more bits than groups in ``source``.

    ``target`` is no type that is decoded to.
    """
    triple, block = triple_of(target), affine.BLOCKS.get(target)
    widened = 16 * (target is BF16 and BF16 in blocks_for(source, 0))
    bits = triple.quantization.bits if triple else block.bits if block else widened
    return bits > bits_a_weight(source) and (target is BF16 or way_between(source, target) is not None)


def library_type(dtype: DType) -> DType:
    """The float type that the library of a quantized type computes values in.

    compressed-tensors unpacks NVFP4 as bfloat16 (``unpack_fp4_from_uint8``), whatever its scales are.
    """
    scheme, triple = scheme_of(dtype), triple_of(dtype)
    if scheme and scheme.divisor:
        return BF16
    number = (
        (scheme.library or scheme.number)
        if scheme
        else triple.number
        if triple and triple.quantization.has_biases
        else F32
    )
    return number if number in (F16, BF16) else F32


def rounds(dtype: DType) -> bool:
    """Whether the float32 value of a code is a rounded quotient or product."""
    scheme = scheme_of(dtype)
    return is_scaled(dtype) or (scheme is not None and scheme.library is not None)


def bits_a_weight(dtype: DType) -> float:
    """Bits that a weight takes, its part of the scales included."""
    scheme = scheme_of(dtype)
    if scheme is None:
        return dtype.size * 8 / dtype.block
    return (
        scheme.bits + (scheme.number.size * 8 + scheme.zeros * scheme.bits) * scheme.groups(dtype.block) / dtype.block
    )


def _to_blocks(recipe: repack.Recipe, triple: Triple, rows: Rows) -> Repacked:
    return recipe.to_blocks(split_planes(rows, triple), triple)


def _through(
    numbers: Numbers, target: T, make: Callable[[Affine, T], Repacked], rows: Rows, *, codes: bool = True
) -> Repacked:
    return make(numbers.parts(rows, codes=codes), target)
