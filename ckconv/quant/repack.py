"""Exact ways from one block type to another, and their conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeVar

from ckconv.core.layouts import BF16, DTYPES, F16, F32, DType, e4m3, holds
from ckconv.core.lazy import Blocks, Bytes, Flags, Floats, NamedTuple, Rows, np
from ckconv.errors import InputError, UnsupportedError
from ckconv.quant import affine, codec, packed
from ckconv.quant.affine import Affine, NewTile
from ckconv.quant.codec import from_float32, pack, to_float32, unpack
from ckconv.quant.mlx import Quantization, Triple, checked_shape, split_planes, triple_of
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

# -- Codes and numbers of GGUF's superblocks, which only go one way ----------------------------------------------------
# ======  =========================================================  ================================
# GGUF    a value                                                    the numbers of a group
# ======  =========================================================  ================================
# Q4_K    groups of 32, ``d * sc * code - dmin * m``                 ``d * sc``, bias ``-(dmin * m)``
# Q5_K    the same, codes of five bits                               the same
# Q3_K    ``d * n``, ``n = (sc - 32) * (code - 4)``, -124 to 128     ``d`` of 256, code ``n + 127``
# IQ4_NL  ``d * n``, n one of 16 signed bytes                        ``d`` of 32, code ``n + 128``
# TQ1_0   ``d * n``, n -1, 0 or 1                                    ``d`` of 256, code ``n + 1``
# TQ2_0   ``d * n``, n -1 to 2                                       the same
# ======  =========================================================  ================================
#
# ``d``, ``dmin`` are float16; sc and m of Q4_K and Q5_K have six bits: ``d * sc`` has at most 17 significant bits and
# is a float32 number, and so is its product with a code of 5 bits, so ggml's decoder and MLX's round the same sum once.
# There is no way back: another d with other factors can give the same products. Q2_K and Q6_K have groups of 16
# elements, which MLX's affine mode lacks, and products of more bits than eight.
#
# Block structs: ``ggml/src/ggml-common.h``; 6-bit factors: ``get_scale_min_k4`` in ``ggml/src/ggml-quants.c``, and for
# the others ``dequantize_row_*`` there.

#: Fields of one block, in order; those of TQ2_0 and IQ4_NL are :mod:`ckconv.quant.codec`'s.
_FIELDS: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {
    "Q3_K": [("hmask", "u1", (32,)), ("qs", "u1", (2, 32)), ("scales", "u1", (12,)), ("d", "<f2", ())],
    "Q4_K": [("d", "<f2", ()), ("dmin", "<f2", ()), ("factors", "u1", (12,)), ("qs", "u1", (4, 32))],
    "Q5_K": [
        ("d", "<f2", ()),
        ("dmin", "<f2", ()),
        ("factors", "u1", (12,)),
        ("qh", "u1", (32,)),
        ("qs", "u1", (4, 32)),
    ],
    "TQ1_0": [("qs", "u1", (48,)), ("qh", "u1", (4,)), ("d", "<f2", ())],
}

#: Values of the codes of IQ4_NL; ``kvalues_iq4nl``.
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class Superblock(NamedTuple):
    """How the numbers of a GGUF type lie.

    Attributes:
        bits: of a code as it is here.
        group: elements that share the numbers.
        zero: the code of 0; ``None`` where there is a bias.
        codes: codes uint8 ``[rows, n, block]`` of blocks ``[rows, n]``.
    """

    bits: int
    group: int
    zero: int | None
    codes: Callable[[Blocks], Bytes]


def parts_of(raw: Bytes, block: DType, *, codes: bool = True) -> Affine:
    """GGUF rows ``[rows, bytes]`` as codes and numbers.

    Args:
        codes: ``False`` for the numbers alone.
    """
    blocks, kind = _blocks_of(raw, block), SUPERBLOCKS.get(block)
    read = kind.codes if kind else partial(codec.get_codes, dtype=block)
    unpacked = read(blocks).reshape(len(raw), -1) if codes else np.empty((len(raw), 0), np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):  # d, dmin or m may be infinite or NaN
        d = blocks["d"].astype(np.float32)
        if kind is None:
            recipe = BY_BLOCK[block]
            scale = d * np.float32(recipe.step)
            bias = blocks["m"].astype(np.float32) if recipe.offset is None else scale * np.float32(-recipe.offset)
            return Affine(recipe.bits, recipe.group, unpacked, scale, bias=bias)
        if kind.zero is not None:
            return Affine(kind.bits, kind.group, unpacked, d, zero=np.full(d.shape, kind.zero, np.int16))
        factors, minima = _factors(blocks["factors"])
        scale = (d[..., None] * factors).reshape(len(raw), -1)
        bias = -(blocks["dmin"].astype(np.float32)[..., None] * minima).reshape(len(raw), -1)
    return Affine(kind.bits, kind.group, unpacked, scale, bias=bias)


def _blocks_of(raw: Bytes, block: DType) -> Blocks:
    if raw.shape[1] % block.size:
        message = f"a row of {raw.shape[1]:,} bytes is not whole {block} blocks of {block.size} bytes"
        raise InputError("repack.row", message, found=raw.shape[1], allowed=block.size)
    fields = _FIELDS.get(block.name)
    return codec.of_bytes(raw, block) if fields is None else np.ascontiguousarray(raw).view(np.dtype(fields))


def _factors(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight 6-bit factors of scales and of minima, of bytes ``[..., 12]``."""
    low, high, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, (rest & 15) | (low >> 6 << 4)], axis=-1)
    minima = np.concatenate([high & 63, (rest >> 4) | (high >> 6 << 4)], axis=-1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _runs(bytes_of_runs: Bytes, bits: int) -> Bytes:
    """Codes of runs of bytes ``[..., run]``, lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes: Bytes = bytes_of_runs[..., None, :] >> shifts[:, None] & np.uint8((1 << bits) - 1)
    return codes


def _k_codes(blocks: Blocks) -> Bytes:
    codes = _runs(blocks["qs"], 4)
    if "qh" in (blocks.dtype.names or ()):
        codes |= (_runs(blocks["qh"], 1) << np.uint8(4)).reshape(codes.shape)
    return codes


def _q3_codes(blocks: Blocks) -> Bytes:
    packed = blocks["scales"]
    low = _runs(packed[..., :8], 4).reshape(*blocks.shape, 16)
    high = _runs(packed[..., 8:], 2).reshape(*blocks.shape, 16)
    factors = (low | high << np.uint8(4)).astype(np.int16) - np.int16(32)
    codes = _runs(blocks["qs"], 2).reshape(*blocks.shape, 256)
    codes |= (_runs(blocks["hmask"], 1) << np.uint8(2)).reshape(codes.shape)
    signed = (codes.astype(np.int16) - np.int16(4)).reshape(*blocks.shape, 16, 16)
    return (signed * factors[..., None] + np.int16(127)).astype(np.uint8)


def _nl_codes(blocks: Blocks) -> Bytes:
    table = (np.array(_IQ4_NL, np.int16) + np.int16(128)).astype(np.uint8)
    return table[codec.get_codes(blocks, DTYPES["IQ4_NL"])]


def _ternary_codes(blocks: Blocks) -> Bytes:
    """Unpack five (or four) digits of a byte, ``byte / 256`` in base 3."""
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
    runs = ((blocks["qs"][..., :32], 5), (blocks["qs"][..., 32:], 5), (blocks["qh"], 4))
    digits = [(run[..., None, :] * powers[:n]).reshape(*blocks.shape, -1) for run, n in runs]
    return (np.concatenate(digits, axis=-1).astype(np.uint16) * np.uint16(3) >> np.uint16(8)).astype(np.uint8)


SUPERBLOCKS: dict[DType, Superblock] = {
    DTYPES["Q4_K"]: Superblock(4, 32, None, _k_codes),
    DTYPES["Q5_K"]: Superblock(5, 32, None, _k_codes),
    DTYPES["Q3_K"]: Superblock(8, 256, 127, _q3_codes),
    DTYPES["IQ4_NL"]: Superblock(8, 32, 128, _nl_codes),
    DTYPES["TQ1_0"]: Superblock(2, 256, 1, _ternary_codes),
    DTYPES["TQ2_0"]: Superblock(2, 256, 1, lambda blocks: _runs(blocks["qs"], 2)),
}


# -- Exact re-packing between GGUF blocks and MLX triples --------------------------------------------------------------
# The same numbers in another arrangement.
#
# Nothing is decoded. Every scale, bias and code is moved as it is, and every group is checked while it is moved:
#
# ============  ==========================  ========================================================================
# GGUF type     MLX                         a group fits if
# ============  ==========================  ========================================================================
# Q4_1          affine, up to 4 bits        scale and bias are float16 numbers
# Q5_1          affine, up to 5 bits        scale and bias are float16 numbers
# Q4_0          affine, up to 4 bits        scale is a float16 number, bias = -z * scale, code - z fits 4 bits (z = 8)
# Q5_0          affine, up to 5 bits        the same, code - z fits 5 bits (z = 16)
# Q8_0          affine, up to 8 bits        the same, code - z fits 8 bits (z = 128)
# Q1_0          affine, 1 bit               half the scale is a float16 number, bias = -scale / 2
# Q2_0          affine, up to 2 bits        as Q4_0, code - z is -1 to 2 (z = 1)
# TQ2_0         affine, up to 2 bits        the same, code - z is -1 to 2 (z = 1), scales are equal in 256 elements
# MXFP4         mxfp4                       the scale byte is not 255 (infinite in MLX, 2**128 in ggml)
# NVFP4         nvfp4, no global scale      the scale byte is at most 0x7E (no sign, no NaN)
# ============  ==========================  ========================================================================
#
# MLX groups of affine are whole GGUF blocks: 32, or a multiple of it by repeating the pair; going back, the pairs of
# the blocks of a group must be the same bits, and its codes must fit the bits. Infinite and NaN scales or biases never
# fit. bfloat16 numbers within float16's range (2**-14 to 65,504) are float16 numbers, so most bfloat16 models fit;
# float32 scales hardly ever do.
#
# What exact means
#     The numbers are kept, so both files say the same thing: value = scale * code + bias. ggml's decoder and MLX's
#     for float32 scales then give the same float32 bits, since a product of a float16 and a code has at most 19
#     bits and only the sum is rounded, in both. MLX's decoder for float16 and bfloat16 scales rounds product and
#     sum to that type, which ggml's does not: there the two differ by that rounding. For the mx modes float32 and
#     bfloat16 both give ggml's bits.
#
#     One thing may differ: the sign of a zero. ggml computes d * (q - 8), which is -0.0 for q = 8 and a negative d,
#     where MLX's scale * 8 - 8 * scale is 0.0; the 4-bit float code 8 is -0.0 in MLX and 0.0 in ggml. Q4_1 and Q5_1
#     have no such case.
#
# The two arrangements are described in :mod:`ckconv.quant.codec` and :mod:`ckconv.quant.mlx`.


class Recipe(NamedTuple):
    """One exact pair.

    Attributes:
        block: the GGUF type.
        mode, bits: the MLX mode, and the widest code that a block holds.
        offset: bias is ``-offset * scale``; ``None`` where the bias is stored, or the mode has none.
        group: elements that share a scale; an MLX group is a multiple of it.
        step: the scale by what the block has for one: between the two values of one bit lie two.
    """

    block: DType
    mode: str
    bits: int
    offset: float | None
    group: int
    step: int = 1

    @property
    def anywhere(self) -> bool:
        """Whether codes are moved, as the triple's zero points may differ."""
        return self.block in affine.BLOCKS and self.offset is not None

    def takes(self, quantization: Quantization) -> bool:
        """Whether triples of this kind can be tried; the numbers decide."""
        return (
            quantization.mode == self.mode
            and quantization.bits <= self.bits
            and quantization.group_size % self.group == 0
        )

    def unfit_groups(self, scales: Bytes, biases: Bytes | None, triple: Triple, *, whatever: bool = False) -> int:
        """Groups whose scale and bias do not fit, found without their codes.

        An upper bound of ``inexact``.

        ``scales`` and ``biases`` are raw bytes of some rows. A cheap way to choose between recipes. With ``whatever``
        only those count that do not fit whatever their codes are.
        """
        if biases is None:
            return int((~self._sound(scales)).sum()) if scales.max(initial=0) > self._most else 0
        parts = of_triple(triple, scales, biases)
        if self.block not in affine.BLOCKS:
            return int((~self._fitting(parts)[0]).sum())
        return int(affine.unfit(parts, self.block, whatever=whatever).sum())

    def respelled(self, scales: Bytes, biases: Bytes | None, triple: Triple) -> Flags:
        """Groups whose scale and bias come back out of blocks as other bits.

        ``[rows, groups]``.

        ``scales`` and ``biases`` are raw bytes of some rows, of which every group fits, or says nothing by its scale.
        """
        if biases is None:
            return np.zeros(scales.shape, np.bool_)
        fits, respelled = self._fitting(of_triple(triple, scales, biases))
        return ~fits | respelled

    def moves(self, scales: Bytes, biases: Bytes | None, triple: Triple) -> bool:
        """Whether some zero points differ from the block's, so that codes do."""
        if biases is None or not self.anywhere:
            return False
        return not self._fitting(of_triple(triple, scales, biases))[0].all()

    def to_blocks(self, planes: tuple[Bytes, ...], triple: Triple) -> NewTile:
        """MLX rows -> GGUF rows.

        Args:
            planes: raw bytes of the rows of ``weight``, ``scales`` and, for affine, ``biases``.
            triple: what they are.

        Raises:
            InputError: ``mlx.quant``: the planes do not belong together.
            UnsupportedError: ``repack.block``: rows are not whole blocks.
        """
        weight, scales = planes[:2]
        biases = planes[2] if len(planes) > 2 else None
        quantization = triple.quantization
        rows, columns = checked_shape(weight, scales, biases, quantization, triple.number)
        self._check(columns, quantization)
        blocks = codec.empty(rows, columns, self.block)
        if biases is None:
            codec.put_codes(blocks, unpack(weight, quantization.bits), self.block)
            blocks["d"] = scales.reshape(blocks["d"].shape)
            return NewTile((codec.to_bytes(blocks),), scales.size, int((~self._sound(scales)).sum()))
        parts = of_triple(triple, scales, biases, weight)
        fits, respelled = self._fitting(parts)
        if self.anywhere and not (fits.all() and self.block.block == self.group):
            return affine.to_blocks(parts, self.block)
        codec.put_codes(blocks, parts.codes, self.block)
        scale, bias = parts.scale, affine.given(parts.bias)
        if self.offset is None and not fits.all():
            # Where every code is 0 the scale says nothing, and 0 with its sign gives the same values.
            idle = ~fits & holds(bias, F16) & np.isfinite(scale)
            idle[idle] = ~parts.codes.reshape(*scale.shape, -1)[idle].any(axis=-1)
            scale = np.where(idle, np.copysign(np.float32(0), scale), scale)
            fits |= idle
            respelled |= idle
        repeat = quantization.group_size // self.group
        with np.errstate(over="ignore", invalid="ignore"):
            blocks["d"] = np.repeat(scale / np.float32(self.step), repeat, axis=1)
            if self.offset is None:
                blocks["m"] = np.repeat(bias, repeat, axis=1)
        inexact = int((~fits).sum())
        return NewTile((codec.to_bytes(blocks),), fits.size, inexact, int(respelled.sum()))

    def to_triple(self, raw: Bytes, triple: Triple, *, codes: bool = True) -> NewTile:
        """GGUF rows ``[rows, bytes]`` -> MLX rows of the type ``triple``.

        The inverse of :meth:`to_blocks`.

        Args:
            codes: ``False`` for scales and biases alone: the first plane is empty, and what does not fit for its codes
                is not counted.

        Raises:
            InputError: ``repack.row``: rows are not whole blocks.
            UnsupportedError: ``repack.block``: rows are not whole groups of ``triple``.
        """
        columns = raw.shape[1] // self.block.size * self.block.block
        if self.mode == "affine":
            parts = parts_of(raw, self.block, codes=codes)
            self._check(columns, triple.quantization)
            return affine.to_triple(parts, triple)
        blocks = _blocks_of(raw, self.block)
        self._check(columns, triple.quantization)
        unpacked = codec.get_codes(blocks, self.block) if codes else np.empty((len(raw), 0), np.uint8)
        scales = np.ascontiguousarray(blocks["d"]).reshape(len(raw), -1)
        planes = (pack(unpacked, triple.quantization.bits), scales)
        return NewTile(planes, scales.size, int((~self._sound(scales)).sum()))

    def _check(self, columns: int, quantization: Quantization) -> None:
        whole = self.takes(quantization) and quantization.divides(columns) and columns % self.block.block == 0
        if not whole:
            raise UnsupportedError(
                "repack.block",
                f"rows of {columns:,} elements are not whole groups of {quantization} "
                f"and whole {self.block} blocks of {self.block.block}",
                found=columns,
                allowed=self.block.block,
            )

    def _fitting(self, parts: Affine) -> tuple[Flags, Flags]:
        """Groups that fit by their numbers, and those that come back otherwise.

        Otherwise means: as other bits.
        """
        with np.errstate(all="ignore"):
            fits = holds(parts.scale / np.float32(self.step), F16)
            bias = affine.given(parts.bias)
            if self.offset is None:
                fits &= holds(bias, F16)
                return fits, np.zeros_like(fits)
            implied = parts.scale * np.float32(-self.offset)
            fits &= implied == bias
            return fits, fits & (np.signbit(implied) != np.signbit(bias))

    @property
    def _most(self) -> int:
        """The largest byte that means the same scale to MLX and to ggml."""
        return 0x7E if self.mode == "nvfp4" else 0xFE

    def _sound(self, scales: Bytes) -> Flags:
        return scales <= self._most


#: Every exact pair; of those that take a triple, the most compact first.
RECIPES: tuple[Recipe, ...] = (
    Recipe(DTYPES["Q1_0"], "affine", 1, 0.5, 128, 2),
    *(Recipe(block, "affine", *kind, min(block.block, 128)) for block, kind in affine.BLOCKS.items()),
    Recipe(DTYPES["MXFP4"], "mxfp4", 4, None, 32),
    Recipe(DTYPES["NVFP4"], "nvfp4", 4, None, 16),
)

BY_BLOCK: dict[DType, Recipe] = {recipe.block: recipe for recipe in RECIPES}


def no_numbers(scales: Bytes, triple: Triple) -> int:
    """How many scales are codes that OCP's formats have for no number."""
    if triple.quantization.has_biases:
        return 0
    mask = 0x7F if triple.quantization.mode == "nvfp4" else 0xFF  # a code of ones
    return int(np.count_nonzero(scales & mask == mask)) if scales.max(initial=0) >= mask else 0


def find(quantization: Quantization, block: DType) -> Recipe | None:
    """The recipe between triples of this kind and a GGUF type, or ``None``."""
    recipe = BY_BLOCK.get(block)
    return recipe if recipe is not None and recipe.takes(quantization) else None


def candidates(quantization: Quantization) -> tuple[Recipe, ...]:
    """Recipes that take triples of this kind, the most compact block first."""
    return tuple(recipe for recipe in RECIPES if recipe.takes(quantization))


def natural_triple(block: DType, number: DType | None = None) -> Triple | None:
    """Return the triple that holds every finite block of a type, or ``None``.

    ``number`` is by default F16, which is the blocks' own type, and BF16 in the mx modes. Of the types with an
    offset, F16 does not hold a bias beyond 65,504; F32 does.
    """
    recipe = BY_BLOCK.get(block)
    if recipe is None:
        return None
    own = F16 if recipe.mode == "affine" else BF16
    return Triple(Quantization(recipe.mode, recipe.bits, recipe.group), number or own)


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
    """Whether every group, a row's last included, is a multiple of ``unit``."""
    scheme = scheme_of(dtype)
    return scheme is not None and scheme.groups(dtype.block) == 1 and dtype.block % unit == 0


def of_packed(rows: Rows, dtype: DType, *, codes: bool = True) -> Affine:
    """Rows of a packed type of integers."""
    found = packed.numbers(rows, dtype)
    assert found.zeros is not None  # of integers
    stored = found.codes if codes else found.codes[:, :0]
    return Affine(found.scheme.bits, dtype.block, stored, found.scales, zero=found.zeros.astype(np.int16))


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
    """Numbers, and codes if wanted, of a type :func:`with_zeros` knows."""
    triple = triple_of(dtype)
    if triple is not None:
        weight, scales, biases = split_planes(rows, triple)
        return of_triple(triple, scales, biases, weight if codes else None)
    return parts_of(rows, dtype, codes=codes) if dtype is _Q4_1 else of_packed(rows, dtype, codes=codes)


def integer_way(source: DType, target: DType) -> Callable[..., NewTile] | None:
    """To rows of a packed type of integers, or ``None`` where there is none."""
    scheme, own = scheme_of(target), with_zeros(source)
    if scheme is None:
        return None
    scheme = scheme._replace(library=None)  # what a library computes in is no part of the numbers
    if INTEGERS.get(source) == scheme:
        return partial(_of_blocks, block=source)
    same = own is not None and own._replace(library=None) == scheme._replace(number=own.number, zeros=True)
    return partial(_to_zeros, dtype=source, scheme=scheme) if same else None


def _of_blocks(rows: Rows, *, block: DType, codes: bool = True) -> NewTile:
    blocks = codec.of_bytes(rows, block)
    scales = np.ascontiguousarray(blocks["d"])
    unfit = ~np.isfinite(scales)
    return NewTile((packed.rows_of(codec.get_codes(blocks, block), scales),), unfit.size, int(unfit.sum()))


def _to_zeros(rows: Rows, *, dtype: DType, scheme: Scheme, codes: bool = True) -> NewTile:
    found = integer_parts(rows, dtype)
    zeros, fits = affine.integers(found)
    fits = fits & holds(found.scale, scheme.number)
    if not scheme.zeros:
        fits &= zeros == 1 << scheme.bits - 1
    scales, _ = from_float32(found.scale, scheme.number)
    made = packed.rows_of(found.codes, scales, *([zeros] if scheme.zeros else []))
    return NewTile((made,), fits.size, int(np.count_nonzero(~fits)))


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


def nvfp4_way(source: DType, target: DType) -> Callable[..., NewTile] | None:
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


def _nvfp4_to_blocks(rows: Rows, *, dtype: DType, codes: bool = True) -> NewTile:
    found = numbers(rows, dtype)
    blocks = codec.empty(len(rows), found.codes.shape[1], _NVFP4)
    codec.put_codes(blocks, found.codes, _NVFP4)
    blocks["d"] = found.stored_scales.reshape(blocks["d"].shape)
    unfit = found.stored_scales > np.uint8(0x7E)
    return NewTile((codec.to_bytes(blocks),), unfit.size, int(unfit.sum()))


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


def _to_triple(rows: Rows, *, dtype: DType, codes: bool = True) -> NewTile:
    scales, exact = products(rows, dtype)
    found = numbers(rows, dtype).codes
    return NewTile((pack(found if codes else found[:, :0], 4), scales), exact.size, int((~exact).sum()))


def _to_factor(rows: Rows, *, dtype: DType, codes: bool = True) -> NewTile:
    found = numbers(rows, dtype)
    assert found.factors is not None
    with np.errstate(all="ignore"):
        factors = (np.float32(1) / found.factors)[:, None].view(np.uint8)
    return NewTile((rows_of(found.codes, found.stored_scales, factors),), found.scales.size, 0)


def _to_divisor(rows: Rows, *, dtype: DType, codes: bool = True) -> NewTile:
    found = numbers(rows, dtype)
    assert found.factors is not None
    mantissas, exponents = np.frexp(found.factors)
    exact = (mantissas == 0.5) & (exponents >= -125) & (exponents <= 127)
    with np.errstate(all="ignore"):
        divisors = (np.float32(1) / found.factors)[:, None].view(np.uint8)
    made = rows_of(found.codes, found.stored_scales, divisors)
    return NewTile((made,), found.scales.size, int((~exact).sum()) * found.scales.shape[1])


def _with_one(rows: Rows, *, dtype: DType, codes: bool = True) -> NewTile:
    if dtype is _NVFP4:
        blocks = codec.of_bytes(rows, _NVFP4)
        found, scales = codec.get_codes(blocks, _NVFP4), np.ascontiguousarray(blocks["d"]).reshape(len(rows), -1)
    else:
        weight, scales = split_planes(rows, TRIPLE)
        found = unpack(weight, 4)
    unfit = scales > np.uint8(0x7E)
    ones = np.ones((len(rows), 1), np.float32).view(np.uint8)
    return NewTile((rows_of(found, scales, ones),), unfit.size, int(unfit.sum()))


# -- Exact ways from one block type to another, and their conditions ---------------------------------------------------

T = TypeVar("T")

#: Rows of one type -> those of another; ``codes=False`` for scales and biases alone.
Way = Callable[..., NewTile]


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
        recipe = find(triple.quantization, target)
        return partial(_to_blocks, recipe, triple) if recipe else None
    if into is not None and (recipe := find(into.quantization, source)):
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
    found = [recipe.block for recipe in candidates(triple.quantization)] if triple else _OF_PACKED
    return tuple(block for block in found if way_between(source, block) and columns % block.block == 0)


def is_fp8(dtype: DType) -> bool:
    """Whether it has E4M3 codes and a scale for each group of a row."""
    scheme = scheme_of(dtype)
    return scheme is not None and scheme.codes == E4M3 and not (scheme.factor or scheme.ordered)


def is_wide_fp8(dtype: DType) -> bool:
    """Whether it has E5M2 codes and a scale for each group of a row."""
    scheme = scheme_of(dtype)
    return scheme is not None and scheme.codes == E5M2


def is_mxfp8(dtype: DType) -> bool:
    """Whether it has E4M3 codes, and powers of two for scales of groups."""
    triple = triple_of(dtype)
    return triple is not None and triple.quantization == _MXFP8


def beyond_bf16(scales: Rows, *, wide: bool = False) -> Flags:
    """E8M0 bytes whose product with some code is no BF16 number.

    Codes of E4M3 are from 2**-9 to 448, ``wide`` ones of E5M2 from 2**-16 to 57,344.
    """
    least, most = (10, 239) if wide else (3, 246)
    return np.asarray((scales < least) | (scales > most))


def scale_bytes(rows: Rows, dtype: DType) -> tuple[Rows, Flags]:
    """E8M0 of FP8's scales ``[rows, groups]``, and which are powers of two."""
    bits = packed.numbers(rows, dtype).scales.view(np.uint32)
    exponent = bits >> np.uint32(23)
    # 2**-127 is a subnormal float32, of exponent 0; a sign makes the exponent 256 or more.
    sound = (bits & np.uint32(0x7FFFFF) == 0) & (exponent > 0) & (exponent < 255) | (bits == np.uint32(1 << 22))
    return exponent.astype(np.uint8), sound


def _to_mxfp8(rows: Rows, *, dtype: DType, codes: bool = True) -> NewTile:
    scales, sound = scale_bytes(rows, dtype)
    found = packed.numbers(rows, dtype).codes
    repeated = np.repeat(scales, found.shape[1] // scales.shape[1] // _MXFP8.group_size, axis=1)
    stored = found if codes else found[:, :0]
    return NewTile((stored, repeated), sound.size, int((~sound).sum()))


def scattered(dtype: DType) -> bool:
    """Whether groups are no runs of columns."""
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
    """Triple with ``number`` scales that holds blocks exactly, or ``None``."""
    recipe = BY_BLOCK.get(source)
    if recipe is not None:
        return natural_triple(source, number if recipe.mode == "affine" else None)
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


def _to_blocks(recipe: Recipe, triple: Triple, rows: Rows) -> NewTile:
    return recipe.to_blocks(split_planes(rows, triple), triple)


def _through(
    numbers: Numbers, target: T, make: Callable[[Affine, T], NewTile], rows: Rows, *, codes: bool = True
) -> NewTile:
    return make(numbers.parts(rows, codes=codes), target)
