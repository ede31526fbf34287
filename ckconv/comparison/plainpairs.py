"""Two tensors compared where Python has no numpy, as in a browser: the same answers, more slowly.

What lies together row by row is compared as bytes, and floats that differ as numbers; whatever has to be decoded, or
put together out of single elements, needs numpy.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from ckconv.comparison.difference import Difference, incomparable, ratio, undecoded
from ckconv.core.dtypes import BF16, F16, F32, WIDENS_TO_F32, DType
from ckconv.core.layouts import ADD_ONE
from ckconv.core.tensors import blocks_apart
from ckconv.io.files import CHUNK, Files, paired_runs
from ckconv.quant.convert import convertible

if TYPE_CHECKING:
    from ckconv.core.tensors import Tensor

#: Bytes that are compared at once before each number is.
_FEW = 4096


def difference(
    one: Tensor, other: Tensor, shifts: tuple[int, int], files: Files, tell: Callable[[int], None], *, spread: bool
) -> Difference | None:
    """As :func:`ckconv.comparison.pairs.difference`.

    Raises:
        ModuleNotFoundError: numpy is needed.
    """
    types = (one.dtype, other.dtype)
    if types[0] is not types[1] and not all(convertible(dtype, F32) for dtype in types):
        return incomparable(one, other, f"{types[0]} and {types[1]}")
    alike = types[0] is types[1] and shifts[0] == shifts[1] and one.layout.scale == other.layout.scale
    stored = not (one.merge or other.merge or one.packed or other.packed)
    if alike and stored and one.layout.same_bytes_as(other.layout) and files.are_same(paired_runs(one, other)):
        tell(sum(array.nbytes for array in one.arrays))
        return None
    if not (stored and _in_rows(one) and _in_rows(other)):
        raise _numpy()
    floats = {*types} <= WIDENS_TO_F32 and {*shifts} <= {0, ADD_ONE, -ADD_ONE}
    rest = _Rest(spread=spread)
    rows = 0
    for mine, theirs in zip(_pieces(one, files), _pieces(other, files), strict=True):
        tell(len(mine))
        if alike and mine == theirs:
            continue
        if floats:
            rest.add(_widened(mine, types[0], shifts[0]), _widened(theirs, types[1], shifts[1]))
        elif alike and not convertible(types[0], F32):
            width = types[0].nbytes(one.layout.cols)
            rows += sum(mine[at : at + width] != theirs[at : at + width] for at in range(0, len(mine), width))
        else:
            raise _numpy()
    if rows:
        return undecoded(one, other, rows)
    return rest.result(one, other, lambda: _power(one, shifts[0], files))


def _numpy() -> ModuleNotFoundError:
    return ModuleNotFoundError("No module named 'numpy'", name="numpy")


def _in_rows(tensor: Tensor) -> bool:
    """Canonical rows are runs of bytes of one array, and stand for the values that they hold."""
    layout = tensor.layout
    return not (tensor.planes or not layout.whole_rows or layout.scale != 1.0 or blocks_apart(tensor.dtype, layout))


def _pieces(tensor: Tensor, files: Files) -> Iterator[bytes]:
    """Canonical rows in order, as many at a time as fit into a piece of float32."""
    layout, dtype = tensor.layout, tensor.dtype
    width = dtype.nbytes(layout.cols)
    step = max(1, CHUNK // max(4 * layout.cols, 1))
    for start in range(0, layout.rows, step):
        stop = min(start + step, layout.rows)
        data = bytearray((stop - start) * width)
        if layout.in_order:
            files.read_run(tensor.extents, start * width, data)
        else:
            view = memoryview(data)
            for row in range(start, stop):
                at = dtype.nbytes(_place(tensor, row))
                files.read_run(tensor.extents, at, view[(row - start) * width : (row - start + 1) * width])
        yield bytes(data)


def _place(tensor: Tensor, row: int) -> int:
    """The stored element at which a canonical row starts."""
    strips = iter(tensor.layout.strips)
    strip = next(strips)
    while row >= strip.height:
        row, strip = row - strip.height, next(strips)
    return strip.start(row)


def _widened(data: bytes, dtype: DType, shift: int) -> bytes:
    """Floats as float32, the first byte the lowest, with ``shift`` added to each."""
    if dtype is BF16:
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[::2], data[1::2]
        data = bytes(wide)
    elif dtype is F16:
        count = len(data) // 2
        data = struct.pack(f"<{count}I", *map(_float16().__getitem__, struct.unpack(f"<{count}H", data)))
    if not shift:
        return data
    # A sum of two float32 that is rounded to float64 first is the same float32.
    return struct.pack(f"<{len(data) // 4}f", *(value + shift for (value,) in struct.iter_unpack("<f", data)))


@cache
def _float16() -> list[int]:
    """Bits of float16 -> bits of the same float32; Python knows one NaN only."""
    count = 1 << 16
    values = struct.unpack(f"<{count}e", struct.pack(f"<{count}H", *range(count)))
    bits = list(struct.unpack(f"<{count}I", struct.pack(f"<{count}f", *values)))
    for sign in (0, 0x8000):
        for code in range(0x7C01, 0x8000):
            bits[sign | code] = sign << 16 | 0x7F800000 | (code & 0x3FF) << 13
    return bits


def _power(tensor: Tensor, shift: int, files: Files) -> float:
    """The sum of a tensor's squared values."""
    total = 0.0
    for piece in _pieces(tensor, files):
        values = struct.iter_unpack("<f", _widened(piece, tensor.dtype, shift))
        total += sum(value * value for (value,) in values if not math.isnan(value))
    return total


class _Rest:
    """Adds up the differences of float32 values."""

    def __init__(self, *, spread: bool) -> None:
        self.spread: Counter[int] | None = Counter() if spread else None
        self.values, self.max_error, self.squares = 0, math.nan, 0.0

    def add(self, left: bytes, right: bytes) -> None:
        """Compare values of the same places."""
        for at in range(0, len(left), _FEW):
            one, other = left[at : at + _FEW], right[at : at + _FEW]
            if one != other:
                self._add(one, other)

    def _add(self, left: bytes, right: bytes) -> None:
        form = f"<{len(left) // 4}"
        bits = struct.unpack(f"{form}I", left), struct.unpack(f"{form}I", right)
        values = struct.unpack(f"{form}f", left), struct.unpack(f"{form}f", right)
        for mine, theirs, one, other in zip(*bits, *values, strict=True):
            if mine == theirs:
                continue
            self.values += 1
            error = abs(one - other)
            if math.isnan(error):
                continue
            self.max_error = max(error, self.max_error) if self.max_error >= 0 else error
            self.squares += error * error
            if self.spread is not None and 0 < error < math.inf:
                self.spread[math.frexp(error)[1]] += 1

    def result(self, one: Tensor, other: Tensor, power: Callable[[], float]) -> Difference | None:
        """The sum, or ``None`` where nothing differs."""
        if not self.values:
            return None
        relative = math.nan if math.isnan(self.max_error) else ratio(self.squares, power())
        spread = tuple(sorted(self.spread.items())) if self.spread else ()
        names = (one.dtype.name, other.dtype.name)
        return Difference(one.name, names, self.values, one.elements, self.max_error, relative, spread=spread)
