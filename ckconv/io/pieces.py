"""A virtual file: runs of other files, and tensors cut over several.

A stand-in (:mod:`ckconv.io.standing`) has its size, and what is read of it is put together here: whatever reads files
reads shards of a training run, members of an archive and a model behind a program as files of their own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from ckconv.core.tensors import Extent
from ckconv.errors import OutputError
from ckconv.io.files import ByteSource, FileSource, open_source
from ckconv.io.standing import Near


class Box(NamedTuple):
    """A part of a tensor whose rows lie in one run.

    Attributes:
        extent: where.
        start, shape: of the part in the tensor, outermost axis first; it ends within the first axis, and within one
            other at most.
    """

    extent: Extent
    start: tuple[int, ...]
    shape: tuple[int, ...]


class Whole(NamedTuple):
    """A tensor ``shape`` of elements of ``size`` bytes, of parts that fill it."""

    shape: tuple[int, ...]
    size: int
    boxes: Sequence[Box]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.size


class Turned(NamedTuple):
    """A run of another file with the bytes of its numbers in the other order.

    Attributes:
        extent: where.
        period: bytes from one block to the next; the run is whole blocks.
        numbers: in a block, where each number begins, and its bytes.
    """

    extent: Extent
    period: int
    numbers: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the run."""
        return self.extent.nbytes


#: What a file consists of: bytes, a run of another file, as it is or turned, or a tensor of several.
Part = bytes | Extent | Turned | Whole


class Pieces(Near):
    """The file: see :class:`ckconv.io.standing.Origin`."""

    whole = False

    def __init__(self, parts: Sequence[Part]) -> None:
        """Nothing is opened yet."""
        self._parts = [part for part in parts if _nbytes(part)]
        self._ends = [*accumulate(map(_nbytes, self._parts))]
        self._sources: dict[Path, FileSource] = {}
        self.size = self._ends[-1] if self._ends else 0
        self.state = ""

    def fetch(self, offset: int, nbytes: int) -> bytes:
        """See :class:`ckconv.io.standing.Origin`."""
        out = bytearray(nbytes)
        at = 0
        number = bisect_right(self._ends, offset)
        while at < nbytes:
            part = self._parts[number]
            first = offset + at - (self._ends[number] - _nbytes(part))
            many = min(nbytes - at, _nbytes(part) - first)
            view = memoryview(out)[at : at + many]
            if isinstance(part, bytes):
                view[:] = part[first : first + many]
            elif isinstance(part, Extent):
                view[:] = self._read(part, first, many)
            elif isinstance(part, Turned):
                view[:] = self._turned(part, first, many)
            else:
                for box in part.boxes:
                    self._put(box, part, first, view)
            at, number = at + many, number + 1
        return bytes(out)

    def _turned(self, part: Turned, first: int, nbytes: int) -> bytes:
        """Bytes of whole blocks, cut to those that are asked for."""
        begin = first - first % part.period
        data = bytearray(self._read(part.extent, begin, first + nbytes + -(first + nbytes) % part.period - begin))
        for at, size in part.numbers:
            for low, high in zip(range(at, at + size // 2), range(at + size - 1, at, -1), strict=False):
                data[low :: part.period], data[high :: part.period] = (
                    data[high :: part.period],
                    data[low :: part.period],
                )
        return bytes(data[first - begin :][:nbytes])

    def _put(self, box: Box, whole: Whole, first: int, view: memoryview) -> None:
        """Copy the bytes of a part into ``view``, which begins at ``first``."""
        axis = max((n for n, own in enumerate(box.shape) if own != whole.shape[n]), default=0)
        inner = math.prod(whole.shape[axis + 1 :]) * whole.size
        # The part is runs of ``run`` bytes, which begin ``pitch`` bytes after each other in the tensor.
        run, pitch = box.shape[axis] * inner if box.shape else whole.size, math.prod(whole.shape[axis:]) * whole.size
        begin = box.start[axis] * inner if box.start else 0
        count = math.prod(box.shape[:axis])
        if axis:
            begin += box.start[0] * math.prod(whole.shape[1:axis]) * pitch
        low = max(0, -(-(first - begin - run + 1) // pitch))
        high = min(count, -(-(first + len(view) - begin) // pitch))
        if low >= high:
            return
        # Of the first and the last run only what is asked for is read: one may be the whole part.
        source = low * run + max(0, first - begin - low * pitch)
        until = (high - 1) * run + min(run, first + len(view) - begin - (high - 1) * pitch)
        stored = self._read(box.extent, source, until - source)
        for number in range(low, high):
            place, at = begin + number * pitch - first, number * run - source
            skip, end = max(0, -place), min(run, len(view) - place)
            view[place + skip : place + end] = stored[at + skip : at + end]

    def _read(self, extent: Extent, offset: int, nbytes: int) -> bytes:
        source = self._sources.get(extent.path)
        if source is None:
            source = self._sources[extent.path] = open_source(extent.path)
            source.close()  # it opens for each read, and sees whether the file is another one
        data = source.read_at(extent.offset + offset, nbytes)
        if len(data) < nbytes:
            raise OutputError("input.changed", "the file ends early: it has changed", path=extent.path)
        return data


def _nbytes(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else part.nbytes


class Window(ByteSource):
    """A run of another source, as one of its own."""

    def __init__(self, source: ByteSource, offset: int, nbytes: int) -> None:
        """The other one stays open."""
        self.path, self.size = source.path, nbytes
        self.offset, self._source = offset, source

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ByteSource.read_at`."""
        assert self.size is not None
        return self._source.read_at(self.offset + offset, min(nbytes, max(0, self.size - offset)))
