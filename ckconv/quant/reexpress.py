"""Exact ways from one block type to another, and their conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ckconv.core.dtypes import BF16, DTYPES, F16, F32, DType
from ckconv.quant import affine, integers, packed, repack
from ckconv.quant import nvfp4 as packed_ways
from ckconv.quant.affine import Affine, Repacked
from ckconv.quant.mlx import Quantization, Triple
from ckconv.quant.packed import E4M3, INT, is_scaled, scheme_of
from ckconv.quant.superblocks import SUPERBLOCKS, parts_of
from ckconv.quant.triples import split_planes, triple_of

if TYPE_CHECKING:
    from ckconv.quant.affine import Flags
    from ckconv.quant.codec import Rows

T = TypeVar("T")

#: Rows of one type -> those of another; ``codes=False`` for scales and biases alone.
Way = Callable[..., Repacked]


class Numbers(NamedTuple):
    """Bits, group and reader of the numbers of a type.

    Attributes:
        bits: of a code.
        group: elements that share scale and zero point, or scale and bias.
        has_zero: there is a zero point, no bias of its own.
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
    if scheme is None or scheme.codes != INT or scheme.ordered or scheme.factor:
        return None
    if not integers.whole(dtype, 1):
        return None
    return Numbers(scheme.bits, dtype.block, True, partial(integers.of_packed, dtype=dtype))


@cache
def way_between(source: DType, target: DType) -> Way | None:
    """Return the exact re-packing from one type to another, or ``None``."""
    triple, into = triple_of(source), triple_of(target)
    if source is target or (triple and into):
        return None
    if found := packed_ways.way_between(source, target) or integers.way_between(source, target):
        return found
    if triple is not None:
        recipe = repack.find(triple.quantization, target)
        return partial(_to_blocks, recipe, triple) if recipe else None
    if into is not None and (recipe := repack.find(into.quantization, source)):
        return partial(recipe.to_triple, triple=into)
    if into and into.quantization == _MXFP8 and is_fp8(source) and integers.whole(source, _MXFP8.group_size):
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
    if is_fp8(source) or is_mxfp8(source):
        return (BF16,)
    found = [recipe.block for recipe in repack.candidates(triple.quantization)] if triple else _OF_PACKED
    return tuple(block for block in found if way_between(source, block) and columns % block.block == 0)


def is_fp8(dtype: DType) -> bool:
    """E4M3 codes and a scale for each group of a row."""
    scheme = scheme_of(dtype)
    return scheme is not None and scheme.codes == E4M3 and not (scheme.factor or scheme.ordered)


def is_mxfp8(dtype: DType) -> bool:
    """E4M3 codes, and powers of two for the scales of their groups."""
    triple = triple_of(dtype)
    return triple is not None and triple.quantization == _MXFP8


def beyond_bf16(scales: Rows) -> Flags:
    """E8M0 bytes whose product with some E4M3 code is no BF16 number.

    Codes are from 2**-9 to 448.
    """
    import numpy as np

    return np.asarray((scales < 3) | (scales > 246))


def scale_bytes(rows: Rows, dtype: DType) -> tuple[Rows, Flags]:
    """E8M0 bytes of FP8's scales, and which scales are powers of two.

    Both ``[rows, groups]``.
    """
    import numpy as np

    bits = packed.numbers(rows, dtype).scales.view(np.uint32)
    exponent = bits >> np.uint32(23)
    # 2**-127 is a subnormal float32, of exponent 0; a sign makes the exponent 256 or more.
    sound = (bits & np.uint32(0x7FFFFF) == 0) & (exponent > 0) & (exponent < 255) | (bits == np.uint32(1 << 22))
    return exponent.astype(np.uint8), sound


def _to_mxfp8(rows: Rows, *, dtype: DType, codes: bool = True) -> Repacked:
    import numpy as np

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
    return f"no GGUF block holds {source}"


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
    if is_fp8(source) and integers.whole(source, _MXFP8.group_size):
        return MXFP8
    if is_scaled(source):
        return packed_ways.TRIPLE
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
