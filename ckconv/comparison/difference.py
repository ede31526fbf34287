"""The difference between two tensors of one name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ckconv.errors import counted

if TYPE_CHECKING:
    from ckconv.core.tensors import Tensor


class Difference(NamedTuple):
    """A tensor that both models have with different values.

    Attributes:
        values: how many values differ, of ``elements``; 0 where the shapes or types cannot be compared.
        max_error: the largest absolute difference; NaN where every difference is between a number and NaN, or
            between two NaNs of other bits, which are left out of both errors.
        relative_error: root of the sum of squared differences over that of squared values of the first model.
        reason: why the values were not compared, empty where they were.
        spread: (n, values whose absolute difference is below 2**n and no less than half of that), if it was asked for.
    """

    name: str
    dtypes: tuple[str, str]
    values: int
    elements: int
    max_error: float
    relative_error: float
    reason: str = ""
    spread: tuple[tuple[int, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``ckconv diff --json``."""
        errors = {"max_error": self.max_error, "relative_error": self.relative_error}
        return {
            "tensor": self.name,
            "a": self.dtypes[0],
            "b": self.dtypes[1],
            "values": self.values,
            "elements": self.elements,
            **{name: error if math.isfinite(error) else None for name, error in errors.items()},
            "reason": self.reason or None,
        }


def ratio(squares: float, power: float) -> float:
    """The relative error out of the sum of squared differences and that of squared values."""
    if not squares:  # only zeros of the other sign
        return 0.0
    return math.sqrt(squares / power) if power else math.inf


def incomparable(one: Tensor, other: Tensor, reason: str) -> Difference:
    """Two whose values cannot be held against each other."""
    return Difference(one.name, (one.dtype.name, other.dtype.name), 0, one.elements, math.nan, math.nan, reason)


def undecoded(one: Tensor, other: Tensor, rows: int) -> Difference:
    """Two of a type without a decoder, of which so many rows have other bytes."""
    differ = f"{counted(rows, 'row')} differ{'s' if rows == 1 else ''}"
    return incomparable(one, other, f"{differ}, and there is no decoder for {one.dtype.name}")
