"""Boxes of a strip: elements that stay in order along every axis, between stored bytes and canonical rows.

A *cell* is what is moved as one: an element, or a block of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ckconv.core.dtypes import DType
from ckconv.core.layouts import Box, Strip, boxes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Cells = NDArray[Any]
    Index = NDArray[np.int64]

#: As many times the cells that are wanted are read at once, rather than those alone one by one; or a page.
SPARSE, PAGE = 4, 4096

#: Bytes from one run to the next that are read along: that takes less time than another read does.
_ALONG = 32 << 10

#: Of an axis of a box: how many cells, and from one to the next where they come from and where they go.
Moved = tuple[int, int, int]


def cell_of(dtype: DType) -> np.dtype[Any]:
    """What numpy moves a cell as."""
    return np.dtype(f"u{dtype.size}" if dtype.size in (1, 2, 4, 8) else f"V{dtype.size}")


def row_boxes(
    strip: Strip, block: int, rows: tuple[int, int], cols: tuple[int, int]
) -> Iterator[tuple[int, int, list[Moved]]]:
    """Canonical rows and columns as boxes: the first cell, stored and of those rows, and the axes."""
    width = (cols[1] - cols[0]) // block
    for down in boxes([n for n, _ in strip.rows], *rows):
        for across in boxes([n for n, _ in strip.cols], *cols):
            first, to, axes = strip.first // block, -rows[0] * width - cols[0] // block, []
            for (_, stride), inner, (low, high) in _steps(strip, down, across, width * block):
                unit = block if stride == 1 else 1
                first += low * stride // block
                to += low * inner // block
                axes.append(((high - low) // unit, stride * unit // block, inner * unit // block))
            yield first, to, axes


def _steps(strip: Strip, down: Box, across: Box, width: int) -> Iterator[tuple[tuple[int, int], int, tuple[int, int]]]:
    """The axes of a strip with what is from one index to the next where rows lie one after the other."""
    for axes, box, inner in ((strip.rows, down, width), (strip.cols, across, 1)):
        for axis, limits in zip(reversed(axes), reversed(box), strict=True):
            yield axis, inner, limits
            inner *= axis[0]


def read_box(read: Callable[[int, Cells], None], first: int, axes: Sequence[Moved], out: Cells, limit: int) -> None:
    """Read a box of cells into their places of ``out``.

    Args:
        read: fills an array with the cells from one on.
        limit: bytes that are read before they are put in their places.
    """
    axes = sorted((axis for axis in axes if axis[0] > 1), key=lambda axis: -axis[1])
    if _near(axes, out.itemsize, limit):
        _read_runs(read, first, [(1, 0, 0), *axes], out, limit)
        return
    (n, stride, to), *inner = axes
    if not _near(inner, out.itemsize, limit):
        for index in range(n):
            read_box(read, first + index * stride, inner, out[index * to :], limit)
        return
    some = min(n, max(1, limit // (stride * out.itemsize)))
    if not _near([(some, stride, to), *inner], out.itemsize, limit):
        _read_runs(read, first, axes, out, limit)
        return
    for low in range(0, n, some):
        part = [(min(some, n - low), stride, to), *inner]
        _read_runs(read, first + low * stride, [(1, 0, 0), *part], out[low * to :], limit)


def _near(axes: Sequence[Moved], size: int, limit: int) -> bool:
    """So much of the bytes from the first cell to the last is wanted that they are read at once."""
    nbytes, wanted = _span(axes) * size, size * math.prod(n for n, _, _ in axes)
    runs = math.prod(n for n, stride, _ in axes if stride > 1)
    return nbytes <= PAGE or nbytes <= min(limit, max(SPARSE * wanted, _ALONG * runs))


def _span(axes: Sequence[Moved]) -> int:
    """Cells from the first one to the last."""
    return 1 + sum((n - 1) * stride for n, stride, _ in axes)


def _read_runs(read: Callable[[int, Cells], None], first: int, axes: Sequence[Moved], out: Cells, limit: int) -> None:
    """A run for each index of the first axis."""
    (n, stride, _), *inner = axes
    size, run = out.itemsize, _span(inner)
    many = max(1, min(n, limit // (run * size)))
    buffer = np.empty((many, run), out.dtype)
    tile = as_strided(buffer, [many, *(n for n, _, _ in inner)], [run * size, *(step * size for _, step, _ in inner)])
    view = as_strided(out, [n for n, _, _ in axes], [to * size for _, _, to in axes])
    for low in range(0, n, many):
        high = min(low + many, n)
        for index in range(low, high):
            read(first + index * stride, buffer[index - low])
        view[low:high] = tile[: high - low]


def stored_view(cells: Cells, strip: Strip, box: Box, block: int, start: int) -> Cells:
    """The cells of a box in stored bytes from element ``start`` on: axes of rows, then of columns, in stored order."""
    first, axes = strip.first - start, []
    for (_, stride, _, of_rows), (low, high) in zip(strip.stored, box, strict=True):
        unit = block if stride == 1 else 1
        first += low * stride
        axes.append((not of_rows, (high - low) // unit, stride * unit // block * cells.itemsize))
    axes.sort(key=lambda axis: axis[0])
    return as_strided(cells[first // block :], [n for _, n, _ in axes], [step for _, _, step in axes])


def indices(strip: Strip, box: Box, *, of_rows: bool) -> Index:
    """The canonical rows of a box, or its columns, in stored order."""
    found = np.zeros(1, np.int64)
    for (_, _, inner, mine), (low, high) in zip(strip.stored, box, strict=True):
        if mine is of_rows:
            found = np.add.outer(found, np.arange(low, high, dtype=np.int64) * inner).reshape(-1)
    return found
