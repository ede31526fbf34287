"""Differences between two tensors, compared piece by piece with numpy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ckconv.core.dtypes import F32, F64
from ckconv.errors import counted
from ckconv.io.rows import RowReader, canonical_pieces
from ckconv.quant.convert import Conversion, convertible, decode, shifted, way_between

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckconv.core.tensors import Tensor
    from ckconv.io.files import Files
    from ckconv.quant.codec import Floats, Rows


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


def incomparable(one: Tensor, other: Tensor, reason: str) -> Difference:
    """Two whose values cannot be held against each other."""
    return Difference(one.name, (one.dtype.name, other.dtype.name), 0, one.elements, math.nan, math.nan, reason)


def difference(
    one: Tensor, other: Tensor, shifts: tuple[float, float], files: Files, tell: Callable[[int], None], *, spread: bool
) -> Difference | None:
    """The difference between two tensors; ``None`` for equal ones.

    Args:
        shifts: what has to be added to the stored values of each.
        tell: called with the bytes just compared.
        spread: count how far values are apart.
    """
    types = (one.dtype.name, other.dtype.name)
    left, right = RowReader(one, files), RowReader(other, files)
    pair = _Pair(left, right, shifts, Counter() if spread else None)
    if left.dtype is not right.dtype and not pair.comparable:
        return incomparable(one, other, f"{types[0]} and {types[1]}")
    lead = left if left.piece >= right.piece else right
    for start, rows in canonical_pieces(lead, max(left.row_bytes, right.row_bytes)):
        stop = start + len(rows)
        pair.add(rows if lead is left else left.rows(start, stop), rows if lead is right else right.rows(start, stop))
        tell(rows.nbytes)
    return pair.result(types, lambda: _power(left, shifts[0]))


def _power(reader: RowReader, shift: float) -> float:
    """The sum of a tensor's squared values, read once more."""
    total = 0.0
    with np.errstate(all="ignore"):
        for _, rows in canonical_pieces(reader):
            total += float(np.nansum(_doubles(rows, reader, shift) ** 2))
    return total


def _values(rows: Rows, reader: RowReader, shift: float) -> Floats:
    values = np.ascontiguousarray(decode(rows, reader.dtype))
    if reader.layout.scale != 1.0:
        values = (values.astype(np.float64) * reader.layout.scale).astype(np.float32)
    return shifted(values, shift) if shift else values


def _doubles(rows: Rows, reader: RowReader, shift: float) -> NDArray[np.float64]:
    if reader.dtype is not F64:
        return _values(rows, reader, shift).astype(np.float64)
    return np.ascontiguousarray(rows).view(np.float64) * reader.layout.scale + shift


class _Pair:
    """Adds up the differences of two tensors, piece by piece."""

    def __init__(
        self, one: RowReader, other: RowReader, shifts: tuple[float, float], spread: Counter[int] | None
    ) -> None:
        self.spread = spread
        self.one, self.other, self.shifts = one, other, shifts
        self.doubles = F64 in (one.dtype, other.dtype) and one.dtype.kind is other.dtype.kind
        self.comparable = self.doubles or (convertible(one.dtype, F32) and convertible(other.dtype, F32))
        self.recipes = way_between(one.dtype, other.dtype), way_between(other.dtype, one.dtype)
        self.values, self.max_error, self.squares = 0, math.nan, 0.0
        self.uncompared = False

    def add(self, left: Rows, right: Rows) -> None:
        """Compare some rows.

        Blocks of the same numbers are equal whatever either library rounds them to.
        """
        alike = self.shifts[0] == self.shifts[1] and self.one.layout.scale == self.other.layout.scale
        if self.one.dtype is self.other.dtype and alike and np.array_equal(left, right):
            return
        # Some re-packings go one way only: whichever there is decides.
        for recipe, source, target, rows, want in (
            (self.recipes[0], self.one, self.other, left, right),
            (self.recipes[1], self.other, self.one, right, left),
        ):
            if recipe is not None:
                packed, inexact = Conversion(source.dtype, target.dtype).apply(rows)
                if not inexact and np.array_equal(packed, want):
                    return
        if not self.comparable:
            self.values += int((left != right).any(axis=1).sum())
            self.uncompared = True
            return
        values = _doubles if self.doubles else _values
        a, b = values(left, self.one, self.shifts[0]), values(right, self.other, self.shifts[1])
        if not self.doubles and self.one.dtype.block == 1 and self.other.dtype.block == 1:
            wrong = a.view(np.uint32) != b.view(np.uint32)
        else:
            wrong = (a != b) & ~(np.isnan(a) & np.isnan(b))
        if wrong.any():
            with np.errstate(all="ignore"):
                error = np.abs(a[wrong].astype(np.float64) - b[wrong])
                self.max_error = float(np.fmax(self.max_error, np.fmax.reduce(error)))
                self.squares += float(np.nansum(error * error))
            if self.spread is not None:
                powers, counts = np.unique(np.frexp(error[np.isfinite(error) & (error > 0)])[1], return_counts=True)
                self.spread.update(dict(zip(powers.tolist(), counts.tolist(), strict=True)))
            self.values += int(np.count_nonzero(wrong))

    def result(self, types: tuple[str, str], power: Callable[[], float]) -> Difference | None:
        """The sum, or ``None`` where nothing differs."""
        if not self.values:
            return None
        if self.uncompared:
            differ = f"{counted(self.values, 'row')} differ{'s' if self.values == 1 else ''}"
            reason = f"{differ}, and there is no decoder for {self.one.dtype.name}"
            return incomparable(self.one.tensor, self.other.tensor, reason)
        relative = math.nan if math.isnan(self.max_error) else 0.0  # only zeros of the other sign
        if self.squares:
            squares = power()
            relative = math.sqrt(self.squares / squares) if squares else math.inf
        errors = self.max_error, relative
        spread = tuple(sorted(self.spread.items())) if self.spread else ()
        return Difference(self.one.tensor.name, types, self.values, self.one.tensor.elements, *errors, spread=spread)
