"""Blocks of files on their way: as they were written, and as they were read back at once, while a cache has them.

Whoever follows the writer takes them in the order of the files, and need not read again what it hashes and compares. A
block also knows where its bytes were copied from, so that a source is read once, too: whoever compares asks for the
bytes of the place that the output's reader leads to, and what was copied from anywhere else is read.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections import deque
from contextlib import suppress
from pathlib import Path

#: Bytes of a block: copied, written and read back, all of it stays in the second-level cache.
BLOCK_BYTES = 512 << 10

#: To remember where fewer bytes came from takes longer than to read them again.
SMALLEST_COPY = 4 << 10


class Block:
    """A run of bytes.

    Attributes:
        meant: what is written. Whole pages: to write from memory that starts inside a cache line takes longer.
        stored: what was read back.
        place, nbytes: where it is, counted as :class:`ckconv.engine.following.Growth` does.
        same: some of it was copied, and all that is stored is what was meant.
    """

    __slots__ = ("_copied", "_starts", "meant", "nbytes", "place", "same", "stored")

    def __init__(self) -> None:
        self.meant = memoryview(mmap.mmap(-1, BLOCK_BYTES))
        self.stored = bytearray(BLOCK_BYTES)
        self.place = self.nbytes = 0
        self.same = False
        #: Where each copy begins in the block; of which file it is, where it begins there, and where it ends here.
        self._starts: list[int] = []
        self._copied: list[tuple[Path, int, int]] = []

    def clear(self) -> None:
        """It is filled anew."""
        self._starts.clear()
        self._copied.clear()

    def read_back(self, place: int, nbytes: int) -> None:
        """So many bytes were stored at ``place``; they are compared now, while a cache has both."""
        self.place, self.nbytes = place, nbytes
        self.same = bool(self._starts) and self.stored.startswith(self.meant[:nbytes])

    def copied(self, at: int, nbytes: int, path: Path, offset: int) -> None:
        """The ``nbytes`` from ``at`` on were copied from byte ``offset`` of ``path``."""
        if self._starts:
            start, (before, begin, end) = self._starts[-1], self._copied[-1]
            if end == at and before == path and begin + at - start == offset:
                self._copied[-1] = (path, begin, at + nbytes)
                return
        if nbytes >= SMALLEST_COPY:
            self._starts.append(at)
            self._copied.append((path, offset, at + nbytes))

    def is_copy(self, at: int, nbytes: int, path: Path, offset: int) -> bool | None:
        """Whether what is stored from ``at`` on is what came from ``offset`` of ``path``; ``None`` if nothing did."""
        found = bisect_right(self._starts, at) - 1
        if found < 0:
            return None
        of, begin, end = self._copied[found]
        if of != path or begin + at - self._starts[found] != offset or at + nbytes > end:
            return None
        return self.same or self.stored.startswith(self.meant[at : at + nbytes], at)


class Blocks:
    """A few blocks, used again and again; neither side waits for the other here.

    A block that nobody takes in time is filled anew, and what was in it is read from its file.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._made = 0
        self._free: deque[Block] = deque()
        self._ready: deque[Block] = deque()

    def free(self) -> Block:
        """One to be filled."""
        for unused in (self._free, self._ready):
            if unused is self._free or self._made >= self._most:
                with suppress(IndexError):  # both are taken from by two threads
                    block = unused.popleft()
                    block.clear()
                    return block
        self._made += 1
        return Block()

    def add(self, block: Block) -> None:
        """It is written and read back."""
        self._ready.append(block)

    def take(self, place: int) -> tuple[Block | None, int]:
        """The block that holds the byte at ``place``, and where in it; give it back with :meth:`done`.

        Returns:
            ``None`` where none does, and how many bytes may be read of the file instead.
        """
        while True:
            try:
                block = self._ready.popleft()
            except IndexError:
                return None, BLOCK_BYTES
            if block.place > place:
                self._ready.appendleft(block)
                return None, block.place - place
            if place < block.place + block.nbytes:
                return block, place - block.place
            self._free.append(block)

    def done(self, block: Block) -> None:
        """Nobody looks at it any more."""
        self._free.append(block)
