"""Integer codes with scale and zero point, or scale and bias.

What integer block types have in common.

A value is ``scale * (code - zero)`` or ``scale * code + bias``. That is an exact number of few digits, and another
type that holds the same number in its own scale and code holds the same value: nothing is decoded or rounded.

========  ========  ==========================================================================================
GGUF      elements  a group fits if
========  ========  ==========================================================================================
TQ2_0     256       scale is a float16 number and the same in the whole block, ``code - zero`` is -1 to 2
Q2_0      64        the same
Q4_0      32        scale is a float16 number, ``code - zero`` is -8 to 7
Q4_1      32        scale and bias are float16 numbers, codes are below 16
Q5_0      32        scale is a float16 number, ``code - zero`` is -16 to 15
Q5_1      32        scale and bias are float16 numbers, codes are below 32
Q8_0      32        scale is a float16 number, ``code - zero`` is -128 to 127, or with the other sign
========  ========  ==========================================================================================

An MLX triple holds a group if its type of numbers holds scale and bias, and its bits the codes. With float32 numbers
and scales of float16 or bfloat16 every group fits: ``-zero * scale`` has at most 19 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckconv.core.layouts import DTYPES, F16, DType, holds
from ckconv.core.lazy import Bytes, Flags, Floats, NamedTuple, Zeros, np
from ckconv.quant import codec

if TYPE_CHECKING:
    from ckconv.quant.mlx import Triple


class Affine(NamedTuple):
    """Some rows. Groups are of one size, and fill a row.

    Attributes:
        bits: every code is below ``1 << bits``.
        group: elements that share the numbers.
        codes: uint8 ``[rows, columns]``; no column where only the numbers were asked for.
        scale: float32 ``[rows, groups]``.
        zero: int16 ``[rows, groups]``; ``None`` where there is a bias instead.
        bias: float32 ``[rows, groups]``.
    """

    bits: int
    group: int
    codes: Bytes
    scale: Floats
    zero: Zeros | None = None
    bias: Floats | None = None


class NewTile(NamedTuple):
    """A tile in its new arrangement.

    Attributes:
        planes: uint8 ``[rows, bytes]`` each: ``(blocks,)``, ``(weight, scales, biases)`` or ``(weight, scales)``.
        groups: MLX groups in the tile.
        inexact: groups that do not fit; unless it is 0, ``planes`` is of no use.
        respelled: groups that fit, but whose scale and bias do not come back as the same bits: the scale of a
            constant group (MLX stores -1e-7, which multiplies code 0 only) is written as 0, or a zero's sign is lost.
    """

    planes: tuple[Bytes, ...]
    groups: int
    inexact: int
    respelled: int = 0


class Block(NamedTuple):
    """Bits and middle of the codes of a GGUF block.

    Attributes:
        bits: of a code.
        offset: the code of 0; ``None`` where a minimum is stored.
    """

    bits: int
    offset: int | None


#: The most compact first.
BLOCKS: dict[DType, Block] = {
    DTYPES[name]: Block(bits, offset)
    for name, bits, offset in (
        ("TQ2_0", 2, 1),
        ("Q2_0", 2, 1),
        ("Q4_0", 4, 8),
        ("Q4_1", 4, None),
        ("Q5_0", 5, 16),
        ("Q5_1", 5, None),
        ("Q8_0", 8, 128),
    )
}

_Q8_0 = DTYPES["Q8_0"]


def zero_points(scale: Floats, bias: Floats) -> tuple[Zeros, Flags]:
    """Zero points with ``bias == -zero * scale``, and which groups have one.

    A zero point has at most nine bits.
    """
    with np.errstate(all="ignore"):
        exact = -bias.astype(np.float64) / scale
        zero = np.where(np.abs(exact) < 512, np.rint(exact), 0).astype(np.int16)
        found = np.isfinite(scale) & (scale.astype(np.float64) * zero == -bias.astype(np.float64))
    return zero, found


def unfit(parts: Affine, block: DType, *, whatever: bool = False) -> Flags:
    """Groups ``[rows, groups]`` whose numbers alone show that they do not fit.

    Args:
        whatever: count only those that do not fit whatever their codes are, else those too that may not.
    """
    bits, offset = BLOCKS[block]
    fits = holds(parts.scale, F16)
    if offset is None:
        bias, exact = _biases(parts)
        return np.asarray(~(fits & exact & holds(bias, F16)) | (parts.bits > bits and not whatever))
    zero, whole = _zeros(parts, offset)
    low, high = offset - zero, offset - zero + (1 << parts.bits) - 1
    inside = (low >= 0) & (high < 1 << bits)
    if block is _Q8_0:
        inside |= (low >= 1) & (high <= 1 << bits)
    return np.asarray(~(fits & whole & (inside | whatever)))


def to_blocks(parts: Affine, block: DType) -> NewTile:
    """GGUF rows, and how many groups do not fit."""
    bits, offset = BLOCKS[block]
    rows, groups = parts.scale.shape
    scale, codes, most = parts.scale, parts.codes.reshape(rows, groups, -1), parts.bits
    fits = holds(scale, F16)
    bias = None
    if offset is None:
        bias, exact = _biases(parts)
        fits = fits & exact & holds(bias, F16)
    else:
        zero, whole = _zeros(parts, offset)
        fits = fits & whole
        if (zero != offset).any():
            shift = np.int16(offset) - zero
            low, high = shift, shift + np.int16((1 << parts.bits) - 1)
            if low.min() < 0 or high.max() > 255:
                low, high = codes.min(axis=-1) + shift, codes.max(axis=-1) + shift
            codes, most = codes + shift.astype(np.uint8)[..., None], 8
            inside = (low >= 0) & (high < 256)
            if block is _Q8_0:
                # 128 is no int8, but -128 is: the other sign of the scale gives the same product.
                flipped = (high == 256) & (low >= 1)
                codes[flipped] = -codes[flipped]
                scale, inside = np.where(flipped, -scale, scale), inside | flipped
            fits = fits & inside
    if bits < most:
        fits = fits & (codes.max(axis=-1) >> bits == 0)
        codes = codes & np.uint8((1 << bits) - 1)
    if not fits.all():
        return NewTile((np.empty((rows, 0), np.uint8),), fits.size, int((~fits).sum()))
    if parts.group < block.block:
        whole = _same(scale, block.block // parts.group)
        if not whole.all():
            return NewTile((np.empty((rows, 0), np.uint8),), whole.size, int((~whole).sum()))
    made = codec.empty(rows, groups * parts.group, block)
    codec.put_codes(made, np.ascontiguousarray(codes).reshape(rows, -1), block)
    made["d"] = _spread(scale, made.shape[1])
    if bias is not None:
        made["m"] = _spread(bias, made.shape[1])
    return NewTile((codec.to_bytes(made),), fits.size, 0)


def to_triple(parts: Affine, triple: Triple) -> NewTile:
    """MLX rows, and how many groups do not fit.

    Without codes the first plane is empty.
    """
    q, number = triple.quantization, triple.number
    bias, exact = _biases(parts)
    fits = exact & holds(parts.scale, number) & holds(bias, number)
    if (run := q.group_size // parts.group) > 1:
        fits = fits.reshape(len(fits), -1, run).all(axis=-1) & _same(parts.scale, run) & _same(bias, run)
    codes = parts.codes
    if codes.size and parts.bits > q.bits:
        fits = fits & (codes.reshape(*fits.shape, -1).max(axis=-1) >> q.bits == 0)
        codes = codes & np.uint8((1 << q.bits) - 1)
    count = parts.scale.shape[1] * parts.group // q.group_size
    numbers = (codec.from_float32(_spread(values, count), number)[0] for values in (parts.scale, bias))
    return NewTile((codec.pack(codes, q.bits), *numbers), fits.size, int((~fits).sum()))


def integers(parts: Affine) -> tuple[Bytes, Flags]:
    """Zero points of as many bits as the codes, and which groups have one."""
    zero, found = _zeros(parts, 1 << parts.bits - 1)
    fits = (zero >= 0) & (zero < 1 << parts.bits) & np.isfinite(parts.scale) & found
    return np.where(fits, zero, 0).astype(np.uint8), fits


def natural_group(group: int) -> int:
    """Return MLX's largest group that divides groups of this size, or 0."""
    return next((size for size in (128, 64, 32) if group % size == 0), 0)


def _zeros(parts: Affine, offset: int) -> tuple[Zeros, Flags | bool]:
    """Zero points (any, if the scale is 0), and which groups have one."""
    zero, found = (parts.zero, True) if parts.zero is not None else zero_points(parts.scale, given(parts.bias))
    return np.where(parts.scale == 0, np.int16(offset), zero), found


def _biases(parts: Affine) -> tuple[Floats, Flags | bool]:
    """Biases, and which of them are exact."""
    if parts.zero is None:
        return given(parts.bias), True
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = -parts.zero * parts.scale.astype(np.float64)
        bias = wanted.astype(np.float32)
    return bias, bias == wanted


def given(bias: Floats | None) -> Floats:
    """The bias of numbers without a zero point."""
    assert bias is not None  # where there is no zero point
    return bias


def _spread(numbers: Floats, count: int) -> Floats:
    """Numbers ``[rows, groups]`` for ``count`` groups a row.

    They are repeated, or the first of those that are one.
    """
    groups = numbers.shape[1]
    return np.repeat(numbers, count // groups, axis=1) if count >= groups else numbers[:, :: groups // count]


def _same(scale: Floats, run: int) -> Flags:
    """Runs of groups ``[rows, groups / run]`` that are the same bits."""
    bits = scale.view(np.uint32).reshape(scale.shape[0], -1, run)
    same: Flags = (bits == bits[..., :1]).all(axis=-1)
    return same
