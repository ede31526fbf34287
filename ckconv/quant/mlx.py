"""Decode MLX's quantized matrices, as arrays of raw bytes.

A quantized module ``P`` is stored as parallel arrays, and row ``i`` of the matrix is row ``i`` of each:

``P.weight``
    U32 ``[out, in * bits / 32]``. A row is one little-endian bit stream; code ``i`` is its bits
    ``[i * bits, (i + 1) * bits)``, so 3, 5 and 6-bit codes cross word borders.
``P.scales``
    ``[out, in / group_size]``. Affine: a float of the model's type. mxfp4, mxfp8: U8, E8M0. nvfp4: U8, E4M3.
``P.biases``
    Affine only, as ``scales``: value = scale * code + bias. (A layer's own ``bias`` is another array.)

Decoding equals ``mlx.core.dequantize`` of MLX's CPU backend (0.32) bit for bit: scale * code is rounded to the
model's type, and the sum with the bias is rounded again, in float32 as well as in bfloat16 and float16. (A GPU may
fuse the two into one rounding, which moves a value by one unit in the last place at most.)

Every function works on a tile: some rows of a matrix, stacked experts being more rows. Arrays of raw bytes
are uint8 ``[rows, bytes of a row]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ckconv.core.dtypes import e2m1, e4m3, e8m0, round_to
from ckconv.errors import InputError
from ckconv.quant.codec import to_float32
from ckconv.quant.codes import unpack

if TYPE_CHECKING:
    import os

    import numpy as np
    from numpy.typing import NDArray

    from ckconv.core.dtypes import DType

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

#: Decoding works on about this many elements at a time, so that its temporaries stay in the cache.
CHUNK_ELEMENTS = 1 << 17

#: MLX keeps a group size in a C int.
MAX_GROUP = 2**31 - 1

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
        """A row of ``columns`` elements is whole groups and whole 32-bit words."""
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

    Raises:
        InputError: ``mlx.quant``: an unknown mode, or bits or a group size that the mode does not have.
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
    import numpy as np

    rows, columns = checked_shape(weight, scales, biases, quantization, dtype)
    groups = columns // quantization.group_size
    target = dtype if arithmetic is None else arithmetic
    out = np.empty((rows, columns), np.float32)
    step = max(1, CHUNK_ELEMENTS // columns)
    with np.errstate(all="ignore"):
        for start in range(0, rows, step):
            part = slice(start, start + step)
            values = out[part]
            grouped = values.reshape(-1, groups, quantization.group_size)
            codes = unpack(weight[part], quantization.bits)
            if biases is not None:
                values[...] = codes
                grouped *= to_float32(scales[part], dtype)[..., None]
                round_to(values, target)
                grouped += to_float32(biases[part], dtype)[..., None]
            else:
                np.take(e2m1() if quantization.bits == 4 else e4m3(), codes, out=values, mode="clip")
                table = (e4m3() if quantization.mode == "nvfp4" else e8m0()).copy()
                # MLX casts the scale before it multiplies: in float16 it may be infinite where a product is not.
                round_to(table, target)
                grouped *= table[scales[part]][..., None]
            round_to(values, target)
    return out


def checked_shape(
    weight: Bytes, scales: Bytes, biases: Bytes | None, quantization: Quantization, dtype: DType
) -> tuple[int, int]:
    """``(rows, columns)`` of a tile, in elements.

    Raises:
        InputError: ``mlx.quant``: the arrays do not belong together, or a row is no whole groups and words.
    """
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
