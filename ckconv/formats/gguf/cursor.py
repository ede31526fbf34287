"""Reading a GGUF header forward, a window at a time, so that memory stays bounded whatever the header declares."""

from __future__ import annotations

from pathlib import Path

from ckconv.errors import InputError
from ckconv.io.bytesource import ByteSource

#: The next step for an input that ends too early.
TRUNCATED = "the download looks truncated; fetch it again and compare its size or sha256"

#: Bytes of a window: it stays in the processor's cache between reading and parsing. Larger ones take longer.
WINDOW = 1 << 20


class Cursor:
    """A position in a source.

    Attributes:
        source: what is read.
        buffer: the window.
        base: absolute offset of the window's first byte.
        at: the position in the window; whoever skips data may set it beyond the window's end.
    """

    __slots__ = ("_window", "at", "base", "buffer", "source")

    def __init__(self, source: ByteSource, offset: int = 0, *, first: int = WINDOW, window: int = WINDOW) -> None:
        self.source = source
        self.base, self.at = offset, 0
        self._window = window
        self.buffer = source.read_at(offset, first)

    @property
    def path(self) -> Path:
        """The input's name."""
        return self.source.path

    @property
    def offset(self) -> int:
        """The absolute position, in bytes."""
        return self.base + self.at

    @property
    def left(self) -> int | None:
        """Bytes from here to the end of the input; ``None`` for a pipe whose end has not been seen."""
        return None if self.source.size is None else max(self.source.size - self.offset, 0)

    def has(self, nbytes: int) -> bool:
        """Bring the next ``nbytes`` bytes into the window; false where the input ends before.

        The caller bounds ``nbytes``: of a pipe that many are read and kept.
        """
        if self.at + nbytes <= len(self.buffer):
            return True
        left = self.left
        if left is not None and nbytes > left:
            return False
        self.base, self.at = self.offset, 0
        self.buffer = self.source.read_at(self.base, max(nbytes, self._window))
        return nbytes <= len(self.buffer)

    def reaches(self, offset: int) -> bool:
        """Whether the input has every byte before the absolute ``offset``; a pipe is read up to there."""
        if self.source.size is None and offset > 0:
            self.source.read_at(offset - 1, 1)
        return self.source.size is None or offset <= self.source.size

    def take(self, nbytes: int) -> bytes:
        """The next ``nbytes`` bytes, which :meth:`has` has found."""
        data = self.buffer[self.at : self.at + nbytes]
        self.at += nbytes
        return data

    def need(self, nbytes: int, what: str) -> bytes:
        """The next ``nbytes`` bytes, which belong to ``what``.

        Raises:
            InputError: ``gguf.truncated``, the input ends before.
        """
        if not self.has(nbytes):
            raise self.truncated(nbytes, what)
        return self.take(nbytes)

    def truncated(self, nbytes: int, what: str) -> InputError:
        """The error for an input that ends inside ``what``, which has ``nbytes`` bytes."""
        left = self.left or 0
        return InputError(
            "gguf.truncated",
            f"the file ends at byte {self.offset + left:,}, inside {what}",
            path=self.path,
            offset=self.offset,
            found=left,
            allowed=nbytes,
            hint=TRUNCATED,
        )
