"""Conversions of element types, row by row, each exact or counted.

A conversion takes rows of one type as bytes and gives rows of another. Exact ones (copying, widening) cannot change
a value; the others are only ever planned when a flag asks for them, and narrowing reports how many values it changed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckconv.dtypes import BF16, F16, F32, WIDENS_TO_F32, DType, Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.uint8]
    Floats = NDArray[np.float32]


#: Block types for which the gguf package has no decoder.
_NO_DECODER = frozenset({"Q8_1", "Q8_K", "Q1_0", "Q2_0"})


class Action(str, enum.Enum):
    """What a conversion does to the values."""

    COPY = "copy"
    WIDEN = "widen"
    NARROW = "narrow"
    DECODE = "decode"
    SHIFT = "shift"
    ZERO = "zero"


@dataclass(frozen=True, slots=True)
class Conversion:
    """From ``source`` values to ``target`` values, adding ``shift`` to each in float32."""

    source: DType
    target: DType
    shift: int = 0

    @property
    def action(self) -> Action:
        """The name of what happens, for reports."""
        if self.source.kind is Kind.BLOCK and self.target is not self.source:
            return Action.DECODE
        if self.shift:
            return Action.SHIFT
        if self.source is self.target:
            return Action.COPY
        return Action.WIDEN if self.target is F32 else Action.NARROW

    @property
    def exact(self) -> bool:
        """No value can change: a copy, or a widening to float32 (or a block's own value as float32)."""
        return self.action in (Action.COPY, Action.WIDEN) or (self.action is Action.DECODE and self.target is F32)

    def apply(self, rows: Rows) -> tuple[Rows, int]:
        """Convert ``rows`` ``[n, bytes of a source row]``.

        Returns:
            ``[n, bytes of a target row]`` and the number of values that are not what they were.
        """
        import numpy as np

        if self.source is self.target and not self.shift:
            return rows, 0
        floats = to_float32(rows, self.source)
        if self.shift:
            floats = floats + np.float32(self.shift)
        return from_float32(floats, self.target)


def convertible(source: DType, target: DType) -> bool:
    """There is a conversion between the two types."""
    if source is target:
        return True
    return target in WIDENS_TO_F32 and (source in WIDENS_TO_F32 or decodable(source))


def decodable(dtype: DType) -> bool:
    """The gguf package decodes this block type to the very float32 values that ggml's C code gives."""
    return dtype.kind is Kind.BLOCK and dtype.name not in _NO_DECODER


def to_float32(rows: Rows, dtype: DType) -> Floats:
    """``[n, bytes]`` -> float32 ``[n, cols]``; exact for every type this is called with."""
    import numpy as np

    if dtype is F32:
        return rows.view(np.float32)
    if dtype is F16:
        return rows.view(np.float16).astype(np.float32)
    if dtype is BF16:
        return (rows.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    import gguf.quants

    with np.errstate(all="ignore"):  # infinite or NaN scales are values too
        decoded: Floats = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(dtype.ggml))
    return decoded


def from_float32(floats: Floats, dtype: DType) -> tuple[Rows, int]:
    """float32 ``[n, cols]`` -> ``[n, bytes]`` and how many values are not exactly representable."""
    import numpy as np

    if dtype is F32:
        return np.ascontiguousarray(floats).view(np.uint8), 0
    bits = np.ascontiguousarray(floats).view(np.uint32)
    if dtype is BF16:
        # Round to nearest even on the upper half; a NaN must not round up to infinity, so it is made quiet.
        rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
        is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        narrow = np.where(is_nan, (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)
        back = narrow.astype(np.uint32) << np.uint32(16)
    else:
        with np.errstate(over="ignore", under="ignore"):
            half = floats.astype(np.float16)
        narrow = half.view(np.uint16)
        back = half.astype(np.float32).view(np.uint32)
    return np.ascontiguousarray(narrow).view(np.uint8), int(np.count_nonzero(back != bits))
