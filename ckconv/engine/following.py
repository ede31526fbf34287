"""What is written is read again right behind the writing thread: hashed, and compared with its source.

One thread writes; another follows it through the format's own reader, which knows nothing of the plan; a third one
hashes what is there. The bytes are still in a cache then, and when the last one is written little is left to do. The
reader opens the output when all of it but its tensors is there. A thread that wants a byte that is not written yet
waits for it, and the writing thread waits for one that is far behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import copy_context
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from ckconv.core.tensors import Extent
from ckconv.engine.copies import Copies
from ckconv.engine.handed import Handed
from ckconv.engine.pace import Pace
from ckconv.engine.workers import Stage
from ckconv.errors import Interrupted
from ckconv.system import THREADS

if TYPE_CHECKING:
    from ckconv.io.tiles import Tiles

#: Bytes that may be written and not looked at yet: they are to be in a cache still.
LEAD = 4 << 20

#: Bytes that may be written and not hashed yet: they are to be in memory still, whatever the size of the file.
UNHASHED = 128 << 20

#: Bytes that the comparing thread asks :class:`ckconv.engine.copies.Copies` about at once: a thread that is woken for
#: little keeps others from their work.
ASKED_AT_ONCE = 32 << 20

T = TypeVar("T")


def _nothing() -> None:
    """Default for ``_hash``: the writing thread hashes nothing."""


def _nobody() -> bool:
    """Default for ``_help``: no helper is wanted."""
    return False


class Growth:
    """How far files are written, one after the other.

    A place in any of them is counted from the beginning of the first one.
    """

    def __init__(self, payloads: Iterable[Extent], tiles: Tiles | None = None, *, alone: bool = False) -> None:
        """Nothing is written.

        Args:
            payloads: of each file, in order, what is going to be written; what is around it is there already.
            tiles: converted rows, handed from the writing thread to the comparing one.
            alone: one processor is to do everything: the writing thread hashes, too, until :meth:`help` is called.
        """
        self.tiles, self.alone = tiles, alone
        self._hash: Callable[[], None] = _nothing
        self._help: Callable[[], bool] = _nobody
        self.copies = Copies()
        self.handed = Handed(alone=alone)
        self._payloads: dict[Path, tuple[Extent, int]] = {}
        self._end = 0
        for payload in payloads:
            self._payloads[payload.path] = payload, self._end - payload.offset
            self._end += payload.nbytes
        self._looking, self._hashing = Pace(LEAD), Pace(UNHASHED)

    @property
    def paths(self) -> frozenset[Path]:
        """The files."""
        return frozenset(self._payloads)

    def place(self, path: Path, offset: int) -> int:
        """Where a byte of a file is among all that are written."""
        return self._payloads[path][1] + offset

    def same(self, path: Path, offset: int, source: object, source_offset: int, nbytes: int) -> int:
        """How many bytes from ``offset`` on are known to be those of ``source``; waits for them.

        Raises:
            AbandonedError: nobody writes them.
        """
        if path not in self._payloads:
            return 0
        base = self._payloads[path][1]
        if not self.holds(path, offset):
            return 0
        self.wait_for(path, offset + min(nbytes, ASKED_AT_ONCE))
        return self.copies.same(base + offset, source, source_offset, nbytes)

    def tell(self, path: Path, until: int) -> None:
        """The bytes of a file before ``until`` are written; waits while too many of them are not read again."""
        place = self.place(path, until)
        self._hashing.tell(place)
        self._hash()
        self._looking.tell(place)  # after the last byte the comparing thread asks for the digest

    def hashed_by(self, hash: Callable[[], None], help: Callable[[], bool]) -> None:
        """Call ``hash`` when more is written, and ``help`` when a processor is free: it says if that is of use."""
        self._hash, self._help = hash, help

    def help(self) -> bool:
        """A processor is free: a hashing thread takes over from the writing one. ``False`` if that is of no use."""
        return self._help()

    @property
    def left(self) -> float:
        """Bytes that are not written yet."""
        return self._end - self._hashing.written

    def holds(self, path: Path, offset: int) -> bool:
        """A byte is one of those that are written, and of no header and nothing behind the tensors."""
        payload = self._payloads[path][0]
        return 0 <= offset - payload.offset < payload.nbytes

    def around(self, path: Path, offset: int, until: int) -> int:
        """How far bytes from ``offset`` on are around those that are written, at most ``until``."""
        if self.holds(path, offset):
            return offset
        begin = self._payloads[path][0].offset
        return min(begin, until) if offset < begin else until

    def is_written(self, path: Path, until: int) -> bool:
        """The bytes before ``until`` are written."""
        payload, base = self._payloads[path]
        return until <= payload.offset or self._hashing.written >= base + min(until, payload.offset + payload.nbytes)

    def written(self, path: Path, until: int) -> int:
        """How far a file is written whose bytes before ``until`` are."""
        payload, base = self._payloads[path]
        return max(until, min(payload.offset + payload.nbytes, int(self._hashing.written) - base))

    def wait_for(self, path: Path, until: int, *, hashing: bool = False) -> None:
        """Wait until the bytes of a file before ``until`` are written.

        Args:
            hashing: whoever waits hashes them; there may be one who does, beside one who looks at them.

        Raises:
            AbandonedError: nobody writes them.
        """
        if path not in self._payloads:
            return
        payload, base = self._payloads[path]
        if until > payload.offset:
            pace = self._hashing if hashing else self._looking
            pace.wait(base + min(until, payload.offset + payload.nbytes))

    def begun(self) -> None:
        """Wait until something is written, if anything will be: until then the writing thread needs the interpreter.

        Raises:
            AbandonedError: nothing will be.
        """
        if self._end:
            self._looking.wait_aside(1)

    def wait_for_all(self) -> None:
        """Wait until everything is written.

        Raises:
            AbandonedError: it will not be.
        """
        self._looking.wait(self._end)

    def unread(self) -> None:
        """The comparing thread has ended: the writing one waits for it no more."""
        self._looking.unread()

    def unhashed(self) -> None:
        """Nothing is hashed any more: a hashing thread that waits for bytes is to end."""
        self._hash, self._help = _nothing, _nobody
        self.handed.end()
        self._hashing.unread()
        self._hashing.abandon()

    def abandon(self) -> None:
        """The writing thread has ended: threads that wait for bytes are to end."""
        self._looking.abandon()
        self._hashing.abandon()


class Telling:
    """Tells how far one file is written; see :class:`ckconv.engine.pipeline.Follower`."""

    def __init__(self, growth: Growth, path: Path, offset: int) -> None:
        self._growth, self._path, self._until = growth, path, offset

    def wrote(self, nbytes: int) -> None:
        """``nbytes`` more are written."""
        self._until += nbytes
        self._growth.tell(self._path, self._until)

    def finish(self) -> None:
        """There is nothing to wait for."""

    def abandon(self) -> None:
        """There is nothing to end."""


class Following(Generic[T]):
    """A thread that does ``work`` behind the one that writes the files of ``growth``."""

    def __init__(self, growth: Growth, work: Callable[[], T]) -> None:
        self._growth, self._work = growth, work
        self._found: list[T] = []
        context = copy_context()  # family files that count for this call
        self._stage = Stage.of(lambda: context.run(self._run))

    def _run(self) -> None:
        try:
            self._found.append(self._work())
        finally:
            self._growth.unread()

    def __enter__(self) -> Following[T]:
        if not THREADS:  # what is written is read when all of it is
            return self
        try:
            self._stage.start()
        except Interrupted:
            self._end()
            raise
        return self

    def result(self) -> T:
        """Wait for it, when everything is written.

        Raises:
            Exception: what ``work`` raised.
        """
        if not THREADS:
            self._stage.start()
        self._stage.wait()
        if self._stage.error is not None:
            raise self._stage.error
        return self._found[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._growth.abandon()
        self._stage.wait()
