"""Rows that were just decoded, kept for whoever compares them with what is read back of them.

Decoding blocks takes longer than writing and hashing what comes out. A tile is known by the rows of the source that it
was made of, not by where it was written: the reader of the output says where each of its tensors is, a piece that was
written in the wrong place is another row there, and what is not found is decoded again.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from ckconv.quant.convert import Action

if TYPE_CHECKING:
    from ckconv.core.tensors import Tensor
    from ckconv.quant.codec import Rows
    from ckconv.quant.convert import Conversion

_Place = tuple[tuple[Path, int] | int, int]

#: Tiles of about 1 MiB that are kept beside those that are made at once: what may be written and not read again yet.
MOST = 12


class Tiles:
    """Threads that decode add tiles, another one takes them; of those that nobody takes the oldest goes first."""

    def __init__(self, made_at_once: int) -> None:
        self._most = MOST + made_at_once
        self._kept: dict[_Place, tuple[Tensor, Conversion, Rows, int]] = {}
        self._order: deque[_Place] = deque()

    def add(self, tensor: Tensor, conversion: Conversion, start: int, rows: Rows, changed: int) -> None:
        """Keep what ``conversion`` made of the canonical rows of ``tensor`` from ``start`` on, if it decodes."""
        if conversion.action is not Action.DECODE or conversion.plane is not None or tensor.merge is not None:
            return
        place = _place(tensor, start)
        self._kept[place] = tensor, conversion, rows, changed
        self._order.append(place)
        if len(self._order) > self._most:
            self._kept.pop(self._order.popleft(), None)

    def take(self, tensor: Tensor, conversion: Conversion, start: int, stop: int) -> tuple[Rows, int] | None:
        """These rows and how many of their values changed, if just these were added as one tile."""
        tile = self._kept.pop(_place(tensor, start), None)
        if tile is None or tile[1] != conversion or len(tile[2]) != stop - start:
            return None
        of = tile[0]
        same = of is tensor or (of.extents == tensor.extents and of.layout == tensor.layout and tensor.merge is None)
        return tile[2:] if same else None


def _place(tensor: Tensor, start: int) -> _Place:
    """Where the rows begin: two tensors of an index may be the same bytes, with another name or order of rows."""
    return (tensor.extents[0][:2] if tensor.extents else id(tensor)), start
