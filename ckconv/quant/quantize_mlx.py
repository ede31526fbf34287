"""Quantize to MLX's triples, the very bytes of ``mlx.core.quantize``.

In NumPy, as mlx 0.32 has them on a processor.

affine
    The bias is the end of a group that is farther from zero, the scale goes from there to the other end, and is
    negative where that is below; it is fitted again so that zero is a code. Of one bit the bias is the lower end, and
    nothing is fitted. Codes are computed with float32 numbers,
    which are rounded to the type of the weights afterwards.
mxfp4, mxfp8
    The scale is the smallest power of two with which nothing is beyond the largest code.
nvfp4
    The scale is the largest value over the largest code, as E4M3.

Of two codes that are as near, 4-bit floats get the smaller one, and what rounds to zero is +0. (On Metal they go to
the even one, and keep their sign: ``fp4_e2m1`` of ``backend/metal/kernels/fp4.h``.) The quotients that are scales are
numbers of the weights' own type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckconv.core.dtypes import DType, e4m3, e8m0, round_to
from ckconv.errors import UnsupportedError
from ckconv.quant.codec import from_float32
from ckconv.quant.codes import pack

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckconv.quant.codec import Floats, Rows
    from ckconv.quant.mlx import Quantization, Triple

#: Below it a group of one value would be divided by nothing (``eps`` of ``mlx.core.quantize``).
_LEAST_SCALE = 1e-7

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
    import numpy as np

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
    import numpy as np

    low, high = grouped.min(-1, keepdims=True), grouped.max(-1, keepdims=True)
    scale = np.maximum((high - low) / np.float32((1 << q.bits) - 1), np.float32(_LEAST_SCALE))
    if q.bits == 1:
        return scale, low
    below = np.abs(low) > np.abs(high)
    scale = np.where(below, scale, -scale)
    edge = np.where(below, low, high)
    zero = np.rint(edge / scale)
    return np.where(zero != 0, edge / zero, scale), np.where(zero != 0, edge, np.float32(0))


def _scales(grouped: Floats, q: Quantization, number: DType) -> Rows:
    """The scale of each group as it is stored."""
    import numpy as np

    scale = np.abs(grouped).max(-1) / np.float32(_LARGEST[q.bits])
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
    import numpy as np

    if bits == 8:
        return _e4m3_codes(values)
    magnitude, codes = np.abs(values), np.zeros(values.shape, np.uint8)
    for step in _STEPS:
        codes += magnitude > np.float32(step)
    codes |= (np.signbit(values) & (codes > 0)).astype(np.uint8) << np.uint8(3)
    return codes


def _e4m3_codes(values: Floats) -> NDArray[np.uint8]:
    """Rounded to nearest, ties to even, to 448 at most (``to_fp8`` of MLX)."""
    import numpy as np

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
