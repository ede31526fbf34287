"""Rows that were just converted, kept for whoever compares them with what is read back of them.

Decoding, packing blocks again and above all quantising take longer than writing and hashing what comes out. A tile is
known by the rows of the source that it was made of, not by where it was written: the reader of the output says where
each of its tensors is, a piece that was written in the wrong place is another row there, and what is not found is
converted again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckconv.quant.convert import Action

if TYPE_CHECKING:
    from ckconv.core.tensors import Tensor
    from ckconv.quant.codec import Floats, Rows
    from ckconv.quant.convert import Conversion

_Place = tuple[tuple[Path, int] | int, int]

#: Bytes that are kept beside those that are made at once: what may be written and not read again yet, and more.
MOST = 12 << 20

#: Bytes of a tile, at most about.
EACH = 1 << 20

#: What takes longer than to look whether it was done.
_SLOW = (Action.DECODE, Action.REPACK, Action.QUANTIZE)


class Tile(NamedTuple):
    """Converted rows.

    Attributes:
        conversion: without what it was told of importance, and of where to note errors.
        changed: see :meth:`ckconv.quant.convert.Conversion.apply`.
    """

    tensor: Tensor
    conversion: Conversion
    importance: Floats | None
    rows: Rows
    changed: int


class Tiles:
    """Threads that convert add tiles, another one takes them; of those that nobody takes the oldest goes first."""

    def __init__(self, made_at_once: int) -> None:
        self._most = MOST + made_at_once * EACH
        self._kept: dict[_Place, Tile] = {}
        self._order: deque[tuple[_Place, int]] = deque()
        self._nbytes = 0

    def add(self, tensor: Tensor, conversion: Conversion, start: int, rows: Rows, changed: int) -> None:
        """Keep what ``conversion`` made of the canonical rows of ``tensor`` from ``start`` on."""
        if not is_handed_over(tensor, conversion):
            return
        place, told = _place(tensor, start), conversion.quantising
        importance = told.importance if told is not None else None
        self._kept[place] = Tile(tensor, conversion._replace(quantising=None), importance, rows, changed)
        self._order.append((place, rows.nbytes))
        self._nbytes += rows.nbytes
        while self._nbytes > self._most:
            oldest, nbytes = self._order.popleft()
            self._nbytes -= nbytes
            self._kept.pop(oldest, None)

    def take(
        self, tensor: Tensor, conversion: Conversion, start: int, stop: int, importance: Floats | None = None
    ) -> tuple[Rows, int] | None:
        """These rows and how many of their values changed, if just these were added as one tile.

        Args:
            importance: how much the error of each column counts where they are quantised.
        """
        tile = self._kept.pop(_place(tensor, start), None)
        if tile is None or tile.conversion != conversion or len(tile.rows) != stop - start:
            return None
        same = tile.tensor is tensor or (_stored(tile.tensor) == _stored(tensor) and tensor.merge is None)
        return (tile.rows, tile.changed) if same and _alike(tile.importance, importance) else None


def is_handed_over(tensor: Tensor, conversion: Conversion) -> bool:
    """What comes out of this is worth keeping: it took long, and it is all of a row."""
    return conversion.action in _SLOW and conversion.plane is None and tensor.merge is None


def tiles_for(actions: Iterable[Action], made_at_once: int) -> Tiles | None:
    """Where rows wait to be compared; ``None`` where nothing of all that is done takes long."""
    return Tiles(made_at_once) if any(action in _SLOW for action in actions) else None


def _alike(one: Floats | None, other: Floats | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and bool((one == other).all())


def _place(tensor: Tensor, start: int) -> _Place:
    """Where the rows begin: two tensors of an index may be the same bytes, with another name or order of rows."""
    first = next((extent for array in tensor.arrays for extent in array.extents), None)
    return (first[:2] if first else id(tensor)), start


def _stored(tensor: Tensor) -> tuple[object, ...]:
    """Everything that rows are read by, whatever the tensor is called, and whoever has the elements between them."""
    return (
        tensor.dtype,
        replace(tensor.layout, shared=False),
        tensor.extents,
        tensor.packed,
        *map(_stored, tensor.planes),
    )
