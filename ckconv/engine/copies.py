"""Which bytes of an output were copied from where, and read back as they were meant.

The thread that copies reads back what it wrote and compares it while a cache still has both. Whoever then holds the
output against its source asks about the two places that the output's own reader leads to: bytes that were copied from
just there need not be read again. So it is with rows in memory, for whoever still has the very memory that they were
written from, and with rows that only changed places, for whoever looks for those of the same places in the same order.
What came from elsewhere or is stored otherwise is not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from weakref import ref

from ckconv.engine.rowmoves import Moved

#: Bytes that are copied, written and read back at once: those of both files and of memory stay in a cache meanwhile.
PIECE_BYTES = 512 << 10

#: To remember where fewer bytes came from takes longer than to read them again; but of moved rows all are read then.
SMALLEST = 4 << 10

#: Copies that are remembered at most: the comparing thread is never that far behind.
_MOST = 1 << 16


class Made:
    """Memory that bytes were written from, an array of numpy's. A weak reference: the asking thread holds it."""

    def __init__(self, memory: Any) -> None:
        self._memory = ref(memory)

    def is_of(self, memory: object) -> bool:
        """It is this array, and none that has its address by now."""
        return self._memory() is memory


class Copy(NamedTuple):
    """Some bytes.

    Attributes:
        place: where they are, counted as :class:`ckconv.engine.following.Growth` does.
        source, offset: the file, the moved rows or the memory that they came from, and where they are in it.
    """

    place: int
    nbytes: int
    source: Path | Moved | Made
    offset: int

    def is_of(self, source: object) -> bool:
        """They came from this file, from these rows, or from this memory."""
        if isinstance(self.source, Made):
            return self.source.is_of(source)
        return isinstance(source, (Path, Moved)) and self.source == source


def noted(copies: list[Copy], copy: Copy) -> None:
    """Add a copy that follows the others; one that goes on where the last one ended is a part of it."""
    if copies:
        last = copies[-1]
        ends = last.place + last.nbytes == copy.place and last.offset + last.nbytes == copy.offset
        if ends and last.source == copy.source:
            copies[-1] = Copy(last.place, last.nbytes + copy.nbytes, last.source, last.offset)
            return
    copies.append(copy)


class Copies:
    """Copies in the order in which they were written; one thread adds, another one asks, and neither waits."""

    def __init__(self) -> None:
        self._known: deque[Copy] = deque(maxlen=_MOST)

    def add(self, copies: Iterable[Copy]) -> None:
        """These were read back, and are the same."""
        self._known.extend(copy for copy in copies if copy.nbytes >= SMALLEST or isinstance(copy.source, Moved))

    def same(self, place: int, source: object, offset: int, nbytes: int) -> int:
        """How many bytes from ``place`` on are those from ``offset`` of ``source`` on; 0 if that is not known.

        What lies before ``place`` is forgotten.

        Args:
            source: a file, moved rows, or memory.
            nbytes: that are asked about; no more of them are said.
        """
        known = 0
        with suppress(IndexError):  # there is no other, or it was forgotten meanwhile
            while known < nbytes:
                while (found := self._known[0]).place + found.nbytes <= place + known:
                    self._known.popleft()
                within = place + known - found.place
                if within < 0 or not found.is_of(source) or found.offset + within != offset + known:
                    break
                known += found.nbytes - within
        return min(nbytes, known)
