"""What was just written is read back: compared with what was meant, told to the comparing and the hashing thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ckconv.engine.copies import PIECE_BYTES, Copies, Copy, Made, noted
from ckconv.engine.handed import Block, Handed
from ckconv.engine.rowmoves import Moved

if TYPE_CHECKING:
    from ckconv.engine.store import Store


class LookBack:
    """Reads back what goes into one file."""

    def __init__(self, copies: Copies, handed: Handed, place: int = 0) -> None:
        """Read nothing yet.

        Args:
            copies: hear of what was copied or moved and read back as it was meant.
            handed: takes what was read back, to be hashed.
            place: where the first byte goes, as they count.
        """
        self._copies, self._handed, self._place = copies, handed, place
        #: Where bytes come from that were appended and not written yet.
        self._noted: list[Copy] = []
        #: What was read back and is not handed over yet: where it begins, its memory, and how much of that is filled.
        self._begin, self._filled = 0, 0
        self._memory: bytearray | None = None
        #: Memory for threads that place bytes, as many as do so at once.
        self._spare: list[bytearray] = []

    def note(self, position: int, nbytes: int, source: Path | Moved | None, offset: int) -> None:
        """Where bytes that were appended come from, if it is anywhere."""
        if source is not None:
            noted(self._noted, Copy(self._place + position, nbytes, source, offset))

    def written(self, store: Store, data: memoryview, position: int, waiting: Callable[[], None]) -> int:
        """Look at bytes that were appended and are written; what was noted is of them. For the thread that appends.

        Args:
            data: ``PIECE_BYTES`` at most.
            waiting: called before anything is waited for.

        Returns:
            how many bytes, all told, followers may hear of now: not those that are gathered and not handed over.
        """
        copied, self._noted = self._noted, []
        if not copied and not self._handed.wanted:
            return self.hand(waiting) + len(data)
        heard = 0
        if self._memory is not None and self._filled + len(data) > len(self._memory):
            heard = self.hand(waiting)
        if self._memory is None:
            self._begin, self._filled, self._memory = position, 0, self._handed.borrow()
        until = self._filled + len(data)
        if not store.read(memoryview(self._memory)[self._filled : until], position):
            return heard + self.hand(waiting) + len(data)  # the thread that compares reads them again, and says why
        if self._memory.startswith(data, self._filled):  # views would be compared byte by byte
            self._copies.add(copied)
        self._filled = until
        return heard + (self.hand(waiting) if until == len(self._memory) else 0)

    def hand(self, waiting: Callable[[], None]) -> int:
        """Hand over what is gathered: how many bytes."""
        memory, self._memory = self._memory, None
        if memory is None:
            return 0
        block = Block(self._place + self._begin, memoryview(memory)[: self._filled], memory)
        self._handed.hand(block, waiting)
        return self._filled

    def place(self, store: Store, data: memoryview, position: int, made: Made | None) -> list[Copy]:
        """Write bytes before it is their turn, in any thread.

        Args:
            made: what ``data`` is the memory of, if somebody may look for that; it is read back then.

        Returns:
            those of them that were read back as they were meant, to be said to :meth:`taken` when it is their turn.
        """
        copies: list[Copy] = []
        for start in range(0, len(data), PIECE_BYTES):
            part = data[start : start + PIECE_BYTES]
            store.write(part, position + start)
            if made is None:
                continue
            memory = self._scratch()
            if store.read(memoryview(memory)[: len(part)], position + start) and memory.startswith(part):
                noted(copies, Copy(self._place + position + start, len(part), made, start))
            self._spare.append(memory)
        return copies

    def taken(self, copies: list[Copy]) -> None:
        """It is the turn of what was placed."""
        self._copies.add(copies)

    def _scratch(self) -> bytearray:
        try:
            return self._spare.pop()
        except IndexError:  # to look first would leave another thread time to take the last one
            return bytearray(PIECE_BYTES)
