"""Small floats inside float32: rounding to them, being one of them, and the values of 4 and 8-bit codes."""

from __future__ import annotations

import math
import struct
from functools import cache
from typing import TYPE_CHECKING

from ckconv.core.dtypes import F16, F32, DType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Flags = NDArray[np.bool_]


def round_to(values: Floats, dtype: DType) -> None:
    """Round float32 in place to what ``dtype`` holds, to nearest, ties to even; NaN stays NaN."""
    import numpy as np

    if dtype is F32:
        return
    bits = values.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    if dtype is F16:
        # Integer rounding is right from 2**-14, the first normal float16, to below 65,520, which rounds to infinity.
        magnitude -= np.uint32(0x38800000)
        special = magnitude >= np.uint32(0x477FF000 - 0x38800000)
        with np.errstate(all="ignore"):
            kept = values[special].astype(np.float16).astype(np.float32)
        dropped = 13
    else:
        # Rounding a NaN's payload could carry into its exponent and sign.
        special = magnitude > np.uint32(0x7F800000)
        kept = np.full(1, np.nan, np.float32)
        dropped = 16
    odd = np.right_shift(bits, np.uint32(dropped), out=magnitude)
    odd &= np.uint32(1)
    odd += np.uint32((1 << dropped - 1) - 1)
    bits += odd
    bits &= np.uint32(0xFFFFFFFF >> dropped << dropped)
    values[special] = kept


def holds(values: Floats, dtype: DType) -> Flags:
    """Which values are finite and exactly numbers of ``dtype`` (F32, F16 or BF16)."""
    import numpy as np

    bits = values.view(np.uint32)
    if dtype is not F16:
        finite: Flags = np.isfinite(values)
        return finite if dtype is F32 else finite & (bits & np.uint32(0xFFFF) == 0)
    # From 2**-14 to 65,504 float16 has ten bits of mantissa where float32 has 23.
    normal = (bits & np.uint32(0x7FFFFFFF)) - np.uint32(0x38800000) <= np.uint32(0x477FE000 - 0x38800000)
    same: Flags = bits & np.uint32(0x1FFF) == 0
    rest = values[~normal]
    with np.errstate(over="ignore", invalid="ignore"):
        same[~normal] = np.isfinite(rest) & (rest.astype(np.float16) == rest)
    return same


@cache
def e2m1() -> Floats:
    """The values of 4-bit float codes ``[16]``; bit 3 is the sign. Source: OCP Microscaling Formats v1.0, 5.3.3."""
    import numpy as np

    positive = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    return np.array([*positive, *(-v for v in positive)], np.float32)


@cache
def e4m3() -> Floats:
    """The values of 8-bit float codes ``[256]``: bias 7, no infinity, NaN at 0x7F and 0xFF. Source: as above, 5.3.1."""
    import numpy as np

    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8.0 + mantissa, exponent - 10))
    value[code & 127 == 127] = np.nan
    signed: Floats = np.where(code > 127, -value, value).astype(np.float32)
    return signed


@cache
def e8m0() -> Floats:
    """Powers of two ``[256]``: ``2 ** (code - 127)``. 255, NaN in the standard, is 2**128 and so infinite in MLX."""
    import numpy as np

    with np.errstate(over="ignore"):
        powers: Floats = np.ldexp(1.0, np.arange(256) - 127).astype(np.float32)
    return powers


def float32(value: float) -> float:
    """The nearest float32 number; infinite where there is none."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
