"""What was read back of a file, handed to the thread that hashes it.

The writing thread reads each piece back at once. The hashing one takes it from there: to read it once more would take a
fifth longer. Memory goes round between the two, and the processor that works on it waits for the other one's cache if
that has just had it. So pieces are gathered in blocks as large as such a cache, some wait to be hashed, and as many to
be filled again. Where one processor does both, a block is one piece, which its cache still has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from ckconv.engine.copies import PIECE_BYTES
from ckconv.engine.pace import Mark

#: Bytes of a block.
BLOCK_BYTES = 4 * PIECE_BYTES

#: Blocks that may be handed and not hashed yet.
WAITING = 3

#: Blocks that are hashed and not to be filled again yet.
RESTING = 2

#: Bytes that the hashing thread waits for at once: a thread that is woken for little keeps others from their work.
#: Fewer than make the writing thread wait (WAITING blocks).
STEP = (WAITING - 1) * BLOCK_BYTES

#: Less than this part of a block is not handed: the reader may be waiting for exactly these bytes.
SMALLEST = 0.5


class Block(NamedTuple):
    """Bytes of a file.

    Attributes:
        place: of the first one, counted as :class:`ckconv.engine.following.Growth` does.
        memory: that was borrowed for them.
    """

    place: int
    bytes: memoryview
    memory: bytearray


class Handed:
    """Blocks in the order of the file: one thread hands them over, another one hashes them."""

    def __init__(self, *, alone: bool = False) -> None:
        """Nothing is handed over.

        Args:
            alone: one processor does everything, and keeps one block in its cache.
        """
        self.share(alone=alone)
        self._blocks: deque[Block] = deque()
        self._spare: deque[bytearray] = deque()
        #: Bytes that were handed over, and of those that are hashed.
        self._total, self._hashed = 0, Mark(0)
        self._active = False

    def share(self, *, alone: bool) -> None:
        """One processor, or two, work on the memory from now on."""
        self._bytes, self._resting = (PIECE_BYTES, 0) if alone else (BLOCK_BYTES, RESTING)

    def begin(self) -> None:
        """The hashing begins."""
        self._active = True

    def end(self) -> None:
        """The hashing has ended: blocks are handed over no more."""
        self._active = False
        self._hashed.end()
        self._clear()

    @property
    def wanted(self) -> bool:
        """Something is still to be hashed: blocks are handed over."""
        return self._active

    def borrow(self) -> bytearray:
        """Memory of a block, to be given back or handed over."""
        while len(self._spare) > self._resting:
            memory = self._spare.popleft()
            if len(memory) == self._bytes:  # and none of before two processors worked on it
                return memory
        return bytearray(self._bytes)

    def give_back(self, memory: bytearray) -> None:
        """``memory`` is free to be filled again."""
        self._spare.append(memory)

    def hand(self, block: Block, waiting: Callable[[], None]) -> None:
        """Hand over the next block of the file. Waits while too much is not hashed.

        Args:
            waiting: called before it waits.
        """
        nbytes = len(block.bytes)
        if self._active and nbytes >= SMALLEST * self._bytes:
            least = self._total + nbytes - WAITING * self._bytes
            if self._hashed.value < least:
                waiting()
                self._hashed.wait(least)
            self._total += nbytes
            self._blocks.append(block)
            if self._active:
                return
            self._clear()  # it ended just now
        else:
            self.give_back(block.memory)

    def next(self, place: int) -> Block | None:
        """The first block that ends behind ``place``."""
        while self._blocks:
            block = self._blocks[0]
            if block.place + len(block.bytes) > place:
                return block
            self.done(block)
        return None

    def done(self, block: Block) -> None:
        """The first block is hashed."""
        self._blocks.popleft()
        self._hashed.set(self._hashed.value + len(block.bytes))
        self.give_back(block.memory)

    def _clear(self) -> None:
        with suppress(IndexError):
            while True:
                self.give_back(self._blocks.popleft().memory)
