"""Decode types whose codes are places in a grid.

They are IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S. A row of the grid is eight whole numbers, of IQ3 four, which are looked up
at once: a quarter of libgguf's time. They, and ``d`` times the scale of a group, have so few bits that products are
exact, and the same in whatever order they are taken. Sources: ``dequantize_row_iq2_xs`` and its like in
``ggml-quants.c``; the grids are those of the package gguf.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckconv.core.dtypes import DType

    Floats = NDArray[np.float32]

#: Type -> its block.
BLOCKS = {
    "IQ2_XS": np.dtype([("d", "<f2"), ("codes", "<u2", 32), ("scales", "u1", 8)]),
    "IQ2_S": np.dtype([("d", "<f2"), ("codes", "u1", 32), ("signs", "u1", 32), ("high", "u1", 8), ("scales", "u1", 8)]),
    "IQ3_XXS": np.dtype([("d", "<f2"), ("codes", "u1", 64), ("signs", "<u4", 8)]),
    "IQ3_S": np.dtype([("d", "<f2"), ("codes", "u1", 64), ("high", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]),
}


def decode(rows: NDArray[np.uint8], dtype: DType) -> Floats:
    """``[n, bytes]`` -> float32 ``[n, cols]``."""
    blocks = np.ascontiguousarray(rows).view(BLOCKS[dtype.name])
    count, codes = blocks.size, blocks["codes"]
    if dtype.name == "IQ2_XS":
        negative = _negative(seven=True).take(codes >> np.uint16(9))
        codes = codes & np.uint16(0x1FF)
    elif dtype.name == "IQ3_XXS":
        each = blocks["signs"][..., None] >> np.array([0, 7, 14, 21], np.uint32)
        negative = _negative(seven=True).take(each & np.uint32(0x7F))
    else:
        negative = _negative().take(blocks["signs"])
        bits = 8 * blocks["high"].shape[-1] // codes.shape[-1]
        high = blocks["high"][..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
        codes = codes | high.reshape(codes.shape).astype(np.uint16) << np.uint16(8)
    numbers = _grid(dtype.name).take(codes).view(np.int8).reshape(count, -1)
    flip = negative.view(np.int8).reshape(count, -1)
    numbers ^= flip
    numbers -= flip
    values = numbers.astype(np.float32)
    with np.errstate(all="ignore"):  # infinite or NaN scales are values too
        scales = _scales(blocks.reshape(-1), dtype.name)
        grouped = values.reshape(*scales.shape, -1)
        grouped *= scales[..., None]
    return values.reshape(len(rows), -1)


def _scales(blocks: NDArray[Any], name: str) -> Floats:
    """The factor of each group: ``[blocks, groups]``."""
    if name == "IQ3_XXS":
        codes = (blocks["signs"] >> np.uint32(28)).astype(np.float32)
    else:
        halves = np.stack([blocks["scales"] & np.uint8(15), blocks["scales"] >> np.uint8(4)], axis=-1)
        codes = halves.reshape(len(blocks), -1).astype(np.float32)
    d = blocks["d"].astype(np.float32)[:, None]
    if name == "IQ3_S":
        found = d * (np.float32(1) + np.float32(2) * codes)
    else:
        found = d * (np.float32(0.5) + codes) * np.float32(0.25 if name.startswith("IQ2") else 0.5)
    return np.asarray(found, np.float32)


@cache
def _grid(name: str) -> NDArray[Any]:
    """The rows of a grid, each as one number of as many bytes."""
    import gguf.quants

    of_type = getattr(gguf.quants, name)
    of_type.init_grid()
    grid = of_type.grid.reshape(-1, of_type.grid.shape[-1]).astype(np.int8)
    return np.ascontiguousarray(grid).view(f"u{grid.shape[1]}").reshape(-1)


@cache
def _negative(*, seven: bool = False) -> NDArray[np.uint64]:
    """A byte of signs -> eight bytes, all ones for a minus.

    Of seven signs the eighth makes their count even.
    """
    signs = np.unpackbits(np.arange(128 if seven else 256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    if seven:
        signs[:, 7] = signs.sum(axis=1) & 1
    return (signs * np.uint8(0xFF)).view(np.uint64).reshape(-1)
