"""MLX's quantized matrices: decode them, see them as blocks, quantize."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ckconv.core.layouts import DTYPES, DType, Kind, e2m1, e4m3, e8m0, round_to
from ckconv.core.lazy import Bytes, Floats, NamedTuple, NDArray, Rows, np, replace
from ckconv.errors import InputError, UnsupportedError
from ckconv.quant.codec import from_float32, pack, reduced, to_float32, transposed, unpack

if TYPE_CHECKING:
    import os

    from ckconv.core.tensors import Tensor


# -- Decode MLX's quantized matrices, as arrays of raw bytes -----------------------------------------------------------
# A quantized module ``P`` is stored as parallel arrays, and row ``i`` of the matrix is row ``i`` of each:
#
# ``P.weight``
#     U32 ``[out, in * bits / 32]``. A row is one little-endian bit stream; code ``i`` is its bits
#     ``[i * bits, (i + 1) * bits)``, so 3, 5 and 6-bit codes cross word borders.
# ``P.scales``
#     ``[out, in / group_size]``. Affine: a float of the model's type. mxfp4, mxfp8: U8, E8M0. nvfp4: U8, E4M3.
# ``P.biases``
#     Affine only, as ``scales``: value = scale * code + bias. (A layer's own ``bias`` is another array.)
#
# Decoding equals ``mlx.core.dequantize`` of MLX's CPU backend (0.32) bit for bit: scale * code is rounded to the
# model's type, and the sum with the bias is rounded again, in float32 as well as in bfloat16 and float16. (A GPU may
# fuse the two into one rounding, which moves a value by one unit in the last place at most.)
#
# Every function works on a tile: some rows of a matrix, stacked experts being more rows. Arrays of raw bytes
# are uint8 ``[rows, bytes of a row]``.

#: Decoding works on about this many elements at a time, so that its temporaries stay in the cache.
CHUNK_ELEMENTS = 1 << 17

#: MLX keeps a group size in a C int.
MAX_GROUP = 2**31 - 1

#: Columns of a row of quantized numbers that are read at once: codes and scales stand side by side and are not cut.
MAX_COLUMNS = 1 << 22

#: Row lengths are multiples of this many bits: MLX packs codes into 32-bit words.
WORD_BITS = 32


class Mode(NamedTuple):
    """Limits of an MLX mode; ``group_size`` and ``bits`` are its defaults.

    Only affine leaves a choice.
    """

    group_size: int
    bits: int
    allowed_bits: tuple[int, ...]
    any_group: bool
    has_biases: bool


# Source: the table of modes in the documentation of mlx.core.quantize, 0.32.
MODES: dict[str, Mode] = {
    "affine": Mode(64, 4, (1, 2, 3, 4, 5, 6, 8), any_group=True, has_biases=True),
    "mxfp4": Mode(32, 4, (4,), any_group=False, has_biases=False),
    "mxfp8": Mode(32, 8, (8,), any_group=False, has_biases=False),
    "nvfp4": Mode(16, 4, (4,), any_group=False, has_biases=False),
}


class Quantization(NamedTuple):
    """Mode, bits of a code and group size of one MLX module."""

    mode: str
    bits: int
    group_size: int

    @property
    def has_biases(self) -> bool:
        """Whether a ``biases`` array lies beside ``scales``."""
        return MODES[self.mode].has_biases

    def columns(self, row_bytes: int) -> int:
        """Elements in a packed row of ``row_bytes`` bytes."""
        return row_bytes * 8 // self.bits

    def row_bytes(self, columns: int) -> int:
        """Bytes of a packed row of ``columns`` elements."""
        return columns * self.bits // 8

    def divides(self, columns: int) -> bool:
        """Whether a row of ``columns`` is whole groups and whole 32-bit words."""
        return columns > 0 and columns % self.group_size == 0 and columns * self.bits % WORD_BITS == 0

    def __str__(self) -> str:
        return f"{self.mode} {self.bits}-bit group {self.group_size}"


class Triple(NamedTuple):
    """Type of an MLX triple.

    ``number`` is the type of affine scales and biases, the model's in other modes.
    """

    quantization: Quantization
    number: DType

    def __str__(self) -> str:
        return f"{self.quantization} {self.number}"


def quantization(
    mode: object = None,
    bits: object = None,
    group_size: object = None,
    *,
    path: str | os.PathLike[str] | None = None,
    tensor: str | None = None,
) -> Quantization:
    """Check a ``quantization`` entry of ``config.json``.

    ``None`` stands for the mode's default.

    ``path`` and ``tensor`` name the place of the entry in errors.
    """

    def fault(message: str, found: object, allowed: object) -> InputError:
        return InputError("mlx.quant", message, path=path, tensor=tensor, found=found, allowed=allowed)

    mode = "affine" if mode is None else mode
    if not isinstance(mode, str) or mode not in MODES:
        known = ", ".join(MODES)
        raise fault(f"quantization mode is {_shown(mode)}; {known} exist", _shown(mode), known)
    rules = MODES[mode]
    bits = rules.bits if bits is None else bits
    # Not isinstance: JSON's true would pass as 1.
    if type(bits) is not int or bits not in rules.allowed_bits:
        widths = ", ".join(map(str, rules.allowed_bits))
        raise fault(f"{mode} quantization has {_shown(bits)} bits; {widths} is allowed", _shown(bits), widths)
    group_size = rules.group_size if group_size is None else group_size
    low, high = (1, MAX_GROUP) if rules.any_group else (rules.group_size, rules.group_size)
    allowed = str(low) if low == high else f"a whole number from {low} to {high:,}"
    if type(group_size) is not int or not low <= group_size <= high:
        shown = _shown(group_size)
        raise fault(f"{mode} quantization has group size {shown}; {allowed} is allowed", shown, allowed)
    return Quantization(mode, bits, group_size)


def _shown(value: object) -> str:
    """Value from a file for a message: escaped, and never longer than a line."""
    if isinstance(value, (str, bytes)):
        return repr(value[:40])
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number beyond 10^18"
    return str(value) if isinstance(value, (int, float)) else f"a {type(value).__name__}"


def decode(
    weight: Bytes,
    scales: Bytes,
    biases: Bytes | None,
    quantization: Quantization,
    dtype: DType,
    *,
    arithmetic: DType | None = None,
) -> Floats:
    """The values of a tile, as ``mlx.core.dequantize`` computes them.

    Args:
        weight: raw bytes of the packed rows.
        scales: raw bytes of the rows of scales.
        biases: raw bytes of the rows of biases; ``None`` unless the mode has them.
        quantization: how they are packed.
        dtype: affine: the type of ``scales`` and ``biases``. Other modes: the model's type (BF16 where the caller
            knows none, as in MLX).
        arithmetic: the type that products and sums are rounded to; ``dtype`` if not given. With F32 the numbers
            stand as stored: that is what ggml computes from the same scale, code and bias, and what MLX's
            matrix-vector kernels on Metal compute with (``typedef float U`` in ``kernels/quantized.h``).

    Returns:
        float32 ``[rows, in]``. Where MLX gives a NaN there is a NaN, with an unspecified payload.

    Raises:
        InputError: ``mlx.quant``: the shapes do not belong together.
    """
    rows, columns = checked_shape(weight, scales, biases, quantization, dtype)
    groups = columns // quantization.group_size
    target = dtype if arithmetic is None else arithmetic
    out = np.empty((rows, columns), np.float32)
    step = max(1, CHUNK_ELEMENTS // columns)
    with np.errstate(all="ignore"):
        for start in range(0, rows, step):
            part = slice(start, start + step)
            values = out[part]
            if biases is None:
                table = _products(quantization.mode, quantization.bits, target)
                bytes_of = (scales[part].astype(np.uint16) << 8)[..., None] | weight[part].reshape(
                    *scales[part].shape, -1
                )
                made = values.view(table.dtype)
                np.take(table, bytes_of.reshape(made.shape), out=made, mode="clip")
                continue
            grouped = values.reshape(-1, groups, quantization.group_size)
            values[...] = unpack(weight[part], quantization.bits)
            grouped *= to_float32(scales[part], dtype)[..., None]
            round_to(values, target)
            grouped += to_float32(biases[part], dtype)[..., None]
            round_to(values, target)
    return out


@cache
def _products(mode: str, bits: int, target: DType) -> NDArray[Any]:
    """Values of a byte times each scale, as one number of their bits.

    Looking it up takes half the time of multiplying.
    """
    values = (e2m1() if bits == 4 else e4m3())[unpack(np.arange(256, dtype=np.uint8)[:, None], bits)]
    scales = (e4m3() if mode == "nvfp4" else e8m0()).copy()
    # MLX casts the scale before it multiplies: in float16 it may be infinite where a product is not.
    round_to(scales, target)
    products = scales[:, None, None] * values
    round_to(products, target)
    return products.view(np.uint64 if bits == 4 else np.uint32).reshape(-1)


def checked_shape(
    weight: Bytes, scales: Bytes, biases: Bytes | None, quantization: Quantization, dtype: DType
) -> tuple[int, int]:
    """``(rows, columns)`` of a tile, in elements."""
    rows, row_bytes = weight.shape
    columns = quantization.columns(row_bytes)
    number = dtype.size if quantization.has_biases else 1
    wanted = (rows, columns // quantization.group_size * number)
    given = [scales.shape] if biases is None else [scales.shape, biases.shape]
    if (
        not quantization.divides(columns)
        or (biases is not None) != quantization.has_biases
        or any(shape != wanted for shape in given)
    ):
        raise InputError(
            "mlx.quant",
            f"weight rows of {row_bytes} bytes with "
            f"{' and '.join(f'{s[1]} bytes' for s in given)} of scales{' and biases' * (len(given) > 1)} a row "
            f"are not {quantization}",
            found=given,
            allowed=wanted,
        )
    return rows, columns


# -- MLX triples as block types: a block is a group of elements --------------------------------------------------------
# Its bytes are those of codes, scale and bias.
#
# A row of such a type is the module's row of packed codes, then its row of scales, then its row of biases, as the
# planes of the tensor are read side by side.


@cache
def triple_type(triple: Triple) -> DType:
    """Return the block type of a triple: a group's codes, scale and bias."""
    q = triple.quantization
    codes = q.group_size * q.bits // 8
    numbers = triple.number.size * 2 if q.has_biases else 1
    mode = f"{q.bits}-bit" if q.mode == "affine" else q.mode
    number = f" {triple.number}" if q.has_biases else ""
    dtype = DType(f"MLX {mode} group {q.group_size}{number}", Kind.BLOCK, q.group_size, codes + numbers)
    TRIPLES[dtype] = triple
    return dtype


TRIPLES: dict[DType, Triple] = {}


def triple_of(dtype: DType) -> Triple | None:
    """The triple that a type stands for, ``None`` for any other type."""
    return TRIPLES.get(dtype)


def plane_types(triple: Triple) -> tuple[DType, ...]:
    """Types of the arrays: packed codes, scales and, if any, biases."""
    if triple.quantization.has_biases:
        return DTYPES["U32"], triple.number, triple.number
    return DTYPES["U32"], DTYPES["U8"]


def split_planes(rows: Rows, triple: Triple) -> tuple[Rows, ...]:
    """Split rows into the rows of each plane: weight, scales, biases.

    Contiguous; biases only where there are such.
    """
    q: Quantization = triple.quantization
    dtype = triple_type(triple)
    columns = rows.shape[1] // dtype.size * dtype.block
    groups = columns // q.group_size
    codes = q.row_bytes(columns)
    widths = [groups * triple.number.size] * 2 if q.has_biases else [groups]
    planes = [np.ascontiguousarray(rows[:, :codes])]
    for width in widths:
        start = sum(plane.shape[1] for plane in planes)
        planes.append(np.ascontiguousarray(rows[:, start : start + width]))
    return tuple(planes)


def viewed(plane: Tensor, dtype: DType) -> Tensor:
    """The bytes of an array as rows of another type."""
    if plane.dtype is dtype:
        return plane
    cols = plane.layout.cols * plane.dtype.size // dtype.size
    return replace(plane, dtype=dtype, shape=(plane.layout.rows, cols), layout=plane.layout.of_width(cols))


# -- Quantize to MLX's triples, the very bytes of ``mlx.core.quantize`` ------------------------------------------------
# In NumPy, as mlx 0.32 has them on a processor.
#
# affine
#     The bias is the end of a group that is farther from zero, the scale goes from there to the other end, and is
#     negative where that is below; it is fitted again so that zero is a code. Of one bit the bias is the lower end, and
#     nothing is fitted. Codes are computed with float32 numbers,
#     which are rounded to the type of the weights afterwards.
# mxfp4, mxfp8
#     The scale is the smallest power of two with which nothing is beyond the largest code.
# nvfp4
#     The scale is the largest value over the largest code, as E4M3.
#
# Of two codes that are as near, 4-bit floats get the smaller one, and what rounds to zero is +0. (On Metal they go to
# the even one, and keep their sign: ``fp4_e2m1`` of ``backend/metal/kernels/fp4.h``.) The quotients that are scales are
# numbers of the weights' own type.

#: Below it a group of one value would be divided by nothing (``eps`` of ``mlx.core.quantize``).
_LEAST_SCALE = 1e-7

#: What E4M3 scales do in ggml, too (``ggml_fp32_to_ue4m3``): below half of the least one, 2^-9, there is 0.
LEAST_NVFP4 = (
    "16 values of NVFP4 that are all below 0.0059 become zeros: its least scale is 2^-9, and codes end at 6 times it"
)

#: The largest 4-bit and 8-bit float, and between which magnitudes 4-bit codes change.
_LARGEST = {4: 6.0, 8: 448.0}
_STEPS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def quantize_triple(floats: Floats, triple: Triple, number: DType, *, codes: bool = True) -> tuple[Rows, ...]:
    """float32 ``[n, cols]`` -> rows of packed codes, of scales, of biases.

    Biases only where the mode has them.

    Args:
        number: the type of the weights, all of whose values ``floats`` are.
        codes: ``False`` for scales and biases alone: the first is empty.
    """
    q = triple.quantization
    grouped = floats.reshape(len(floats), -1, q.group_size)
    with np.errstate(all="ignore"):
        if q.has_biases:
            scale, bias = _pairs(grouped, q)
            planes = tuple(from_float32(numbers[..., 0], triple.number)[0] for numbers in (scale, bias))
            made = np.rint((grouped - bias) / scale).clip(0, (1 << q.bits) - 1) if codes else None
        else:
            stored = _scales(grouped, q, number)
            scale = (e4m3() if q.mode == "nvfp4" else e8m0())[stored][..., None]
            planes = (stored,)
            made = _float_codes(np.where(scale == 0, np.float32(0), grouped / scale), q.bits) if codes else None
    if made is None:
        return np.empty((len(floats), 0), np.uint8), *planes
    return pack(made.astype(np.uint8).reshape(floats.shape), q.bits), *planes


def _pairs(grouped: Floats, q: Quantization) -> tuple[Floats, Floats]:
    """Scale and bias of each group."""
    columns = transposed(np.ascontiguousarray(grouped).reshape(-1, q.group_size))
    low, high = (reduced(columns, by).reshape(*grouped.shape[:-1], 1) for by in (np.minimum, np.maximum))
    scale = np.maximum((high - low) / np.float32((1 << q.bits) - 1), np.float32(_LEAST_SCALE))
    if q.bits == 1:
        return scale, grouped.min(-1, keepdims=True)  # its sign is stored, of zeros, too
    below = np.abs(low) > np.abs(high)
    scale = np.where(below, scale, -scale)
    edge = np.where(below, low, high)
    zero = np.rint(edge / scale)
    return np.where(zero != 0, edge / zero, scale), np.where(zero != 0, edge, np.float32(0))


def _scales(grouped: Floats, q: Quantization, number: DType) -> Rows:
    """The scale of each group as it is stored."""
    columns = transposed(np.abs(grouped).reshape(-1, q.group_size))
    scale = reduced(columns, np.maximum).reshape(grouped.shape[:-1]) / np.float32(_LARGEST[q.bits])
    round_to(scale, number)
    if q.mode == "nvfp4":
        if scale.max(initial=0) > _LARGEST[8]:
            largest = float(scale.max()) * _LARGEST[4]
            message = f"values up to {largest:g} are beyond the range of nvfp4, whose scales end at 448"
            raise UnsupportedError("quantize.value", message, found=largest)
        return _e4m3_codes(scale)
    mantissa, exponent = np.frexp(scale)
    stored: Rows = ((exponent - (mantissa == 0.5)).clip(-127, 127) + 127).astype(np.uint8)
    return stored


def _float_codes(values: Floats, bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return _e4m3_codes(values)
    magnitude, codes = np.abs(values), np.zeros(values.shape, np.uint8)
    for step in _STEPS:
        codes += magnitude > np.float32(step)
    codes |= (np.signbit(values) & (codes > 0)).astype(np.uint8) << np.uint8(3)
    return codes


def _e4m3_codes(values: Floats) -> NDArray[np.uint8]:
    """Rounded to nearest, ties to even, to 448 at most (``to_fp8`` of MLX)."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    sign = bits >> np.uint32(31) << np.uint32(7)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    # Below 2**-6 codes are multiples of 2**-9: what is added leaves just those bits of the sum.
    small = (magnitude.view(np.float32) + np.float32(2.0**14)).view(np.uint32) - np.float32(2.0**14).view(np.uint32)
    odd = magnitude >> np.uint32(20) & np.uint32(1)
    large = (magnitude - np.uint32(120 << 23) + np.uint32(0x7FFFF) + odd) >> np.uint32(20)
    codes = np.where(magnitude < np.uint32(121 << 23), small, np.minimum(large, np.uint32(0x7E)))
    made: NDArray[np.uint8] = (codes | sign).astype(np.uint8)
    return made
