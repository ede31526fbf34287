"""Arrays of an output that have no place in its files yet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ckconv.core.dtypes import DType
from ckconv.core.layouts import Layout
from ckconv.core.tensors import Extent, Tensor, blocks_apart
from ckconv.plan.steps import Step
from ckconv.quant.convert import Conversion, Run


class Piece(NamedTuple):
    """One array of the output that has no place yet.

    Attributes:
        name: what it is called in the file.
        canonical: what it holds, for reports.
        shape: as stored, in elements.
        layout: how canonical rows lie in it.
        source, conversion, runs: where its rows come from, as in :class:`ckconv.plan.steps.Step`; ``None`` for
            ``content``, or for zeros.
        module: the block type of the quantised module that it is one array of, ``None`` where it stands for itself.
    """

    name: str
    canonical: str
    dtype: DType
    shape: tuple[int, ...]
    layout: Layout
    source: Tensor | None
    conversion: Conversion | None
    runs: tuple[Run, ...] = ()
    module: DType | None = None
    content: bytes | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.dtype.nbytes(math.prod(self.shape))

    def step(self, offset: int) -> Step:
        """The piece at ``offset`` bytes into its file."""
        extent = Extent(Path(), offset, self.nbytes)
        target = Tensor(self.canonical, self.name, self.dtype, self.shape, (extent,), self.layout)
        return Step(self.name, target, self.source, self.conversion, self.content, self.runs)


def apart(parts: Iterable[Tensor], layout: Layout | None, dtype: DType) -> str:
    """Why blocks of parts cannot be moved into a layout, or out of their own; empty where they can, or are decoded."""
    if dtype.block == 1:
        return ""
    reasons = []
    for part in parts:
        copied = layout is not None and part.dtype is dtype and part.layout.same_bytes_as(layout)
        if part.merge is None and not copied:
            reasons += [blocks_apart(part.dtype, part.layout), blocks_apart(dtype, layout) if layout else ""]
    return next(filter(None, reasons), "")


#: Pieces that stay in one file: the arrays of a quantised module, else one alone.
Module = tuple[Piece, ...]
