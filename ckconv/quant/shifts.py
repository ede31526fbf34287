"""Values in another convention: norms as 1 + w, decays as -exp(w)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckconv.core.layouts import NEG_EXP

if TYPE_CHECKING:
    from ckconv.quant.codec import Floats

#: Binary digits of a bfloat16 and of a float32.
_FEWEST, _MOST = 8, 24


def shifted(floats: Floats, shift: int) -> Floats:
    """Shift float32 values by the difference of two layouts' shifts.

    Shifts of :class:`ckconv.core.layouts.Layout`; a NaN stays one.

    Exponentials and logarithms are computed in float64 and rounded once.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        if shift == NEG_EXP:
            return -np.exp(floats.astype(np.float64)).astype(np.float32)
        return _logarithm(-floats) if shift == -NEG_EXP else floats + np.float32(shift)


def _logarithm(floats: Floats) -> Floats:
    """Shortest float32 with this exponential: a bfloat16 is found again."""
    import numpy as np

    exact = np.log(floats.astype(np.float64))
    mantissa, exponent = np.frexp(exact)
    found = exact.astype(np.float32)
    for digits in range(_MOST - 1, _FEWEST - 1, -1):
        shorter = np.ldexp(np.round(np.ldexp(mantissa, digits)), exponent - digits).astype(np.float32)
        same = np.exp(shorter.astype(np.float64)).astype(np.float32) == floats
        found = np.where(same, shorter, found)
    return found
