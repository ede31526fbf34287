"""Which bytes of an output were copied from where, and read back as they were meant.

The thread that copies reads back what it wrote and compares it while a cache still has both. Whoever then holds the
output against its source asks about the two places that the output's own reader leads to: bytes that were copied from
just there need not be read again. What was copied from elsewhere, computed, or stored otherwise is not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ckconv.lazy import NamedTuple

#: Bytes that are copied at once: those of both files, what is written and what is read back stay in a cache.
BLOCK_BYTES = 512 << 10

#: To remember where fewer bytes came from takes longer than to read them again.
SMALLEST = 4 << 10

#: What is remembered at most: whoever follows is never that far behind.
_MOST = 1 << 16


class Copy(NamedTuple):
    """Some bytes.

    Attributes:
        place: where they are, counted as :class:`ckconv.engine.following.Growth` does.
        path, offset: where they came from.
    """

    place: int
    nbytes: int
    path: Path
    offset: int


def noted(copies: list[Copy], copy: Copy) -> None:
    """Add a copy that follows the others; one that goes on where the last one ended is a part of it."""
    if copies:
        last = copies[-1]
        ends = last.place + last.nbytes == copy.place and last.offset + last.nbytes == copy.offset
        if ends and last.path == copy.path:
            copies[-1] = Copy(last.place, last.nbytes + copy.nbytes, last.path, last.offset)
            return
    copies.append(copy)


class Copies:
    """Copies in the order in which they were written; one thread adds, another one asks, and neither waits."""

    def __init__(self) -> None:
        self._known: deque[Copy] = deque(maxlen=_MOST)

    def add(self, copies: Iterable[Copy]) -> None:
        """These were read back, and are the same."""
        self._known.extend(copy for copy in copies if copy.nbytes >= SMALLEST)

    def same(self, place: int, path: Path, offset: int, nbytes: int) -> int:
        """How many bytes from ``place`` on are those from ``offset`` of ``path`` on, ``nbytes`` at most; 0: not known.

        What lies before ``place`` is forgotten.
        """
        with suppress(IndexError):  # there is none, or it was forgotten meanwhile
            while (found := self._known[0]).place + found.nbytes <= place:
                self._known.popleft()
            if found.place <= place and found.path == path and found.offset + place - found.place == offset:
                return min(nbytes, found.place + found.nbytes - place)
        return 0
