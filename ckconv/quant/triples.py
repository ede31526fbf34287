"""MLX triples as block types: a block is a group of elements.

Its bytes are those of codes, scale and bias.

A row of such a type is the module's row of packed codes, then its row of scales, then its row of biases, as the
planes of the tensor are read side by side.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from ckconv.core.dtypes import DTYPES, DType, Kind

if TYPE_CHECKING:
    from ckconv.core.tensors import Tensor
    from ckconv.quant.codec import Rows
    from ckconv.quant.mlx import Quantization, Triple


@cache
def triple_type(triple: Triple) -> DType:
    """Return the block type of a triple: a group's codes, scale and bias."""
    q = triple.quantization
    codes = q.group_size * q.bits // 8
    numbers = triple.number.size * 2 if q.has_biases else 1
    mode = f"{q.bits}-bit" if q.mode == "affine" else q.mode
    number = f" {triple.number}" if q.has_biases else ""
    dtype = DType(f"MLX {mode} group {q.group_size}{number}", Kind.BLOCK, q.group_size, codes + numbers)
    _TRIPLES[dtype] = triple
    return dtype


_TRIPLES: dict[DType, Triple] = {}


def triple_of(dtype: DType) -> Triple | None:
    """The triple that a type stands for, ``None`` for any other type."""
    return _TRIPLES.get(dtype)


def plane_types(triple: Triple) -> tuple[DType, ...]:
    """Types of the arrays: packed codes, scales and, if any, biases."""
    if triple.quantization.has_biases:
        return DTYPES["U32"], triple.number, triple.number
    return DTYPES["U32"], DTYPES["U8"]


def split_planes(rows: Rows, triple: Triple) -> tuple[Rows, ...]:
    """Split rows into the rows of each plane: weight, scales, biases.

    Contiguous; biases only where there are such.
    """
    import numpy as np

    q: Quantization = triple.quantization
    dtype = triple_type(triple)
    columns = rows.shape[1] // dtype.size * dtype.block
    groups = columns // q.group_size
    codes = q.row_bytes(columns)
    widths = [groups * triple.number.size] * 2 if q.has_biases else [groups]
    planes = [np.ascontiguousarray(rows[:, :codes])]
    for width in widths:
        start = sum(plane.shape[1] for plane in planes)
        planes.append(np.ascontiguousarray(rows[:, start : start + width]))
    return tuple(planes)


def viewed(plane: Tensor, dtype: DType) -> Tensor:
    """The bytes of an array as rows of another type."""
    if plane.dtype is dtype:
        return plane
    cols = plane.layout.cols * plane.dtype.size // dtype.size
    return replace(plane, dtype=dtype, shape=(plane.layout.rows, cols), layout=plane.layout.of_width(cols))
