"""Pack and unpack rows of codes of a few bits: one bit stream a row."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from ckconv.errors import CkconvError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]


@cache
def _lanes(bits: int) -> tuple[np.dtype[Any], int, tuple[tuple[int, Any, Any, Any], ...]]:
    """Steps that spread packed codes to one byte each inside one integer.

    A lane holds the fewest codes that fill whole packed bytes, one byte for each code. Each step moves the
    upper half of every run of ``2 * half`` codes up to where its bytes begin.

    Returns:
        The lane's type, the packed bytes it is made from, and for each step, from coarse to fine: the shift, the
        mask of the lower halves, that of the upper halves when spread, and when packed.
    """
    import numpy as np

    codes = 8 // math.gcd(bits, 8)
    lane = np.dtype(f"<u{codes}")
    steps = []
    half = codes // 2
    while half:
        low = sum(((1 << half * bits) - 1) << start for start in range(0, 8 * codes, 16 * half))
        masks = (low, low << 8 * half, low << half * bits)
        steps.append((half * (8 - bits), *(lane.type(mask) for mask in masks)))
        half //= 2
    return lane, codes * bits // 8, tuple(steps)


def unpack(weight: Bytes, bits: int) -> Bytes:
    """Packed rows -> codes uint8 ``[rows, bytes * 8 / bits]``.

    With 8 bits the result may be ``weight`` itself.
    """
    import numpy as np

    weight = np.ascontiguousarray(weight)
    if bits == 8:
        return weight
    lane, packed, steps = _lanes(bits)
    rows = weight.shape[0]
    if packed == 1:
        x = weight.astype(lane)
    else:
        x = np.zeros((rows, weight.shape[1] // packed), lane)
        spread, source = x.view(np.uint8).reshape(rows, -1, lane.itemsize), weight.reshape(rows, -1, packed)
        for i in range(packed):
            spread[..., i] = source[..., i]
    for shift, low, high, _ in steps:
        upper = x << lane.type(shift)
        upper &= high
        x &= low
        x |= upper
    return x.view(np.uint8).reshape(rows, -1)


def pack(codes: Bytes, bits: int) -> Bytes:
    """Codes uint8, each below ``2 ** bits`` -> ``[rows, columns * bits / 8]``.

    The inverse of :func:`unpack`.

    Raises:
        CkconvError: a code needs more bits.
    """
    import numpy as np

    if bits == 8:
        return codes
    if codes.size and (largest := int(codes.max())) >> bits:
        raise CkconvError("internal.code", f"code {largest} does not fit {bits} bits", found=largest, allowed=1 << bits)
    lane, packed, steps = _lanes(bits)
    rows = codes.shape[0]
    x = np.array(codes, order="C").view(lane)
    for shift, low, _, high in reversed(steps):
        upper = x >> lane.type(shift)
        upper &= high
        x &= low
        x |= upper
    if packed == 1:
        return x.astype(np.uint8)
    out = np.empty((rows, x.shape[1], packed), np.uint8)
    spread = x.view(np.uint8).reshape(rows, -1, lane.itemsize)
    for i in range(packed):
        out[..., i] = spread[..., i]
    return out.reshape(rows, -1)
