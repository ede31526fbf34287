"""Rows of a matrix that adapters change, a piece at a time.

Everything is computed in float32, element by element and in a fixed order: a matrix product of a library adds in an
order that depends on the processor, and the same input is to give the same bytes everywhere.

Sources: ``merge`` and ``get_delta_weight`` of the layers of peft 0.21 (tuners/lora/layer.py, tuners/lora/dora.py,
tuners/ia3/layer.py, tuners/trainable_tokens/layer.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ckconv.core.dtypes import DType, float32
from ckconv.core.tensors import Delta, Merge, Replacement, Rescale, Tensor
from ckconv.errors import UnsupportedError
from ckconv.io.rows import RowReader
from ckconv.quant.codec import from_float32
from ckconv.quant.convert import decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckconv.io.files import Files
    from ckconv.quant.codec import Floats, Rows

    Index = NDArray[np.int64]


class MergedRows:
    """The canonical rows of a tensor with everything that adapters do to it, rounded once to its type."""

    def __init__(self, merge: Merge, dtype: DType, files: Files) -> None:
        self._dtype = dtype
        self._name = merge.base.name
        self._path = next((extent.path for extent in merge.base.extents), None)
        self._base = RowReader(merge.base, files)
        self._changes = [_change(change, files) for change in merge.changes]
        #: The largest absolute difference to the base's own value, of all rows made so far.
        self.max_change = 0.0

    def rows(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop``: ``[stop - start, bytes of a row]``.

        Raises:
            UnsupportedError: ``adapter.unsupported``, what is made of a finite number is none.
        """
        return self._changed(self._base.rows(start, stop), np.arange(start, stop, dtype=np.int64))

    def gather(self, canonical: Index) -> Rows:
        """The rows at these indices."""
        return self._changed(self._base.gather(canonical), canonical)

    def _changed(self, stored: Rows, canonical: Index) -> Rows:
        before = decode(stored, self._base.dtype)
        after = before.copy()
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is an error below
            for change in self._changes:
                after = change.apply(after, canonical)
            made, _ = from_float32(after, self._dtype)
            rounded = decode(made, self._dtype)
            difference = np.abs(rounded - before)
        if not np.isfinite(difference).all():
            self._check_finite(before, rounded, canonical)
        self.max_change = max(self.max_change, float(np.nanmax(difference, initial=0.0)))
        return made

    def _check_finite(self, before: Floats, after: Floats, canonical: Index) -> None:
        """A number stays one: an adapter that overflows, or holds NaN, would break the whole model."""
        broken = (np.isfinite(before) & ~np.isfinite(after)).any(axis=1)
        if broken.any():
            raise UnsupportedError(
                "adapter.unsupported",
                f"the adapters make row {canonical[broken][0]:,} of {self._name} infinite or NaN in {self._dtype}",
                path=self._path,
                tensor=self._name,
            )


def _change(change: Delta | Rescale | Replacement, files: Files) -> _Added | _Rescaled | _Replaced:
    if isinstance(change, Delta):
        return _Added(change, files)
    return _Rescaled(change, files) if isinstance(change, Rescale) else _Replaced(change, files)


class _Added:
    """LoRA and DoRA."""

    def __init__(self, delta: Delta, files: Files) -> None:
        self._a = RowReader(delta.a, files) if delta.a is not None else None
        self._b_type = delta.b.dtype
        self._b = RowReader(delta.b, files)
        #: Rows of one matrix of a stack, 0 where there is no stack.
        self._out = delta.b.shape[1] if len(delta.b.shape) == 3 else 0
        self._scale = np.float32(float32(delta.scale))
        self._magnitude = _Factors(delta.magnitude, files) if delta.magnitude is not None else None
        self._rows_of_a: Floats | None = None

    def apply(self, values: Floats, canonical: Index) -> Floats:
        """``values`` are the rows ``canonical`` of the matrix; they may be changed in place."""
        if self._rows_of_a is None:  # rank x in: as small as the adapter is
            self._rows_of_a = np.ones((1, 1), np.float32)
            if self._a is not None:
                self._rows_of_a = decode(self._a.rows(0, self._a.layout.rows), self._a.tensor.dtype)
        total = np.zeros_like(values)
        product = np.empty_like(values)
        b = decode(self._b.gather(canonical), self._b_type)
        of_rank: Iterable[Floats] = self._rows_of_a
        if self._out:
            rows = self._rows_of_a.reshape(-1, b.shape[1], values.shape[1])
            of_rank = (rows[canonical // self._out, rank] for rank in range(b.shape[1]))
        for rank, row in enumerate(of_rank):
            np.multiply(b[:, rank, None], row, out=product)
            total += product
        total *= self._scale
        values += total
        if self._magnitude is not None:
            values *= (self._magnitude.of(canonical) / _lengths(values))[:, None]
        return values


class _Rescaled:
    """IA3."""

    def __init__(self, change: Rescale, files: Files) -> None:
        self._factors = _Factors(change.factors, files)
        self._of_columns = change.of_columns

    def apply(self, values: Floats, canonical: Index) -> Floats:
        """As :meth:`_Added.apply`."""
        if self._of_columns:
            values *= self._factors.of(np.arange(values.shape[1], dtype=np.int64))
        else:
            values *= self._factors.of(canonical)[:, None]
        return values


class _Replaced:
    """Rows of trainable tokens."""

    def __init__(self, change: Replacement, files: Files) -> None:
        self._type, self._reader = change.rows.dtype, RowReader(change.rows, files)
        order = np.argsort(change.at)
        self._at, self._order = np.array(change.at, np.int64)[order], order.astype(np.int64)

    def apply(self, values: Floats, canonical: Index) -> Floats:
        """As :meth:`_Added.apply`."""
        place = np.searchsorted(self._at, canonical).clip(max=len(self._at) - 1)
        found = self._at[place] == canonical
        if found.any():
            values[found] = decode(self._reader.gather(self._order[place[found]]), self._type)
        return values


class _Factors:
    """A vector of an adapter."""

    def __init__(self, tensor: Tensor, files: Files) -> None:
        self._reader, self._type = RowReader(tensor, files), tensor.dtype

    def of(self, canonical: Index) -> Floats:
        """float32 ``[len(canonical)]``."""
        return decode(self._reader.gather(canonical), self._type).reshape(-1)


def _lengths(values: Floats) -> Floats:
    """The Euclidean length of every row, added in an order that is the same on every machine."""
    squares = values.astype(np.float64)
    squares *= squares
    width = squares.shape[1]
    while width > 1:  # halves on halves: elementwise, whatever the processor can do at once
        half = (width + 1) // 2
        squares[:, : width - half] += squares[:, half:width]
        width = half
    return np.sqrt(squares[:, 0]).astype(np.float32)
