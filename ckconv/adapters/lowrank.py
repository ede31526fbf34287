"""LoRA matrices of another rank than their twins: zeros beyond the smaller rank add nothing.

A format with one rank for all modules stores those of a smaller rank so.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ckconv.adapters.model import rows_of
from ckconv.core.layouts import merged
from ckconv.core.tensors import Role, Tensor
from ckconv.io.files import Files
from ckconv.io.rows import RowReader, canonical_pieces

_A, _B = f".{Role.A.value}", f".{Role.B.value}"


def same_rank(one: Tensor, other: Tensor, files: Files) -> tuple[Tensor, Tensor]:
    """The two, the one of the larger rank cut to that of the other, where it holds nothing but zeros beyond that.

    Tensors that are no LoRA matrices, or differ otherwise, are given back as they are.
    """
    axis = 0 if one.name.endswith(_A) else 1 if one.name.endswith(_B) else None
    if axis is None or one.name != other.name or len(one.shape) != 2 or len(other.shape) != 2:
        return one, other
    if one.shape == other.shape or one.shape[1 - axis] != other.shape[1 - axis]:
        return one, other
    rank = min(one.shape[axis], other.shape[axis])
    larger = one if one.shape[axis] > rank else other
    if larger.dtype.block != 1 or not _zero_beyond(larger, axis, rank, files):
        return one, other
    smaller = rows_of(larger, 0, rank) if axis == 0 else _columns_of(larger, rank)
    return (smaller, other) if larger is one else (one, smaller)


def _zero_beyond(tensor: Tensor, axis: int, rank: int, files: Files) -> bool:
    first = rank * tensor.dtype.size if axis else 0
    rest = tensor if axis else rows_of(tensor, rank, tensor.shape[0] - rank)
    return not any(bool(np.any(rows[:, first:])) for _, rows in canonical_pieces(RowReader(rest, files)))


def _columns_of(tensor: Tensor, cols: int) -> Tensor:
    """The first canonical columns."""
    strips = tuple(replace(own, cols=merged([(cols, own.cols[0][1])])) for own in tensor.layout.strips)
    return replace(
        tensor, shape=(tensor.shape[0], cols), layout=replace(tensor.layout, cols=cols, strips=strips, shared=True)
    )
