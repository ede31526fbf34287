"""One stream of bytes, gathered in a buffer and written while it is read.

Into a file the calling thread writes itself, while what it read is still in the cache, and so do threads that convert
rows, each at its place: others follow them and hash what they read back. Into a pipe, out of which nothing can be read
back, a thread hashes what is written, and where nothing is written at all what would be. hashlib gives up the
interpreter's lock, so the two overlap, and memory is a ring of buffers whatever the model's size.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ckconv.engine.copies import PIECE_BYTES, Copy, Made
from ckconv.engine.lookback import LookBack
from ckconv.engine.rowmoves import Moved
from ckconv.engine.store import Store
from ckconv.engine.workers import Stage
from ckconv.errors import OutputError, unreadable
from ckconv.io.files import READ_AHEAD, read_ahead
from ckconv.signals import check
from ckconv.system import read_into

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Follower(Protocol):
    """Does something with the file behind the thread that writes it."""

    def wrote(self, nbytes: int) -> None:
        """``nbytes`` more are in the file, or left out of it as a hole."""

    def finish(self) -> None:
        """All is written."""

    def abandon(self) -> None:
        """The file is given up. Harmless after :meth:`finish`."""


#: Of a ring; a file needs only one.
BUFFERS = 4
BUFFER_BYTES = 1 << 20

#: Bytes of which followers hear at once.
TOLD_AT_ONCE = PIECE_BYTES

#: A run of zeros shorter than this is written like any other bytes: holes are whole blocks of the file system.
SMALLEST_HOLE = 64 << 10

_ZEROS = memoryview(bytes(BUFFER_BYTES))


class Placed(NamedTuple):
    """Bytes that were written where they belong before it was their turn.

    Attributes:
        position: of the first one in the stream.
        copies: those of them that were read back as they were meant.
    """

    position: int
    nbytes: int
    copies: list[Copy]


class Pipeline:
    """Appends bytes to ``fd`` from ``offset`` on.

    Attributes:
        to_file: they stay where they are written.
    """

    def __init__(
        self,
        fd: int | None,
        *,
        offset: int = 0,
        seekable: bool = True,
        progress: Callable[[int], None] | None = None,
        buffers: int = BUFFERS,
        buffer_bytes: int = BUFFER_BYTES,
        followers: Sequence[Follower] = (),
        back: LookBack | None = None,
    ) -> None:
        """Describe the stream; a thread starts with the first byte, when the caller can already end it.

        Args:
            fd: where to write; ``None`` only hashes.
            offset: where in ``fd`` the first byte goes.
            seekable: write at positions and leave runs of zeros as holes; else write in order, as to a pipe, and hash.
            progress: called with the number of bytes just appended.
            buffers, buffer_bytes: the ring.
            followers: work with what is in the file while more is written; not for a pipe.
            back: reads what was written; not for a pipe.
        """
        self._store = Store(fd, offset, seekable=seekable) if fd is not None else None
        self._progress = progress
        self.to_file = fd is not None and seekable
        self._back = back
        self._bytes = PIECE_BYTES if back is not None else buffer_bytes
        # Whole pages: a copy to or from memory that starts inside a cache line costs a third more processor time.
        self._ring = [memoryview(mmap.mmap(-1, self._bytes)) for _ in range(1 if self.to_file else buffers)]
        self._next, self._filled = 0, 0
        self._current: memoryview | None = None
        self._position = 0
        #: Bytes of which followers do not know yet.
        self._untold = 0
        self._digest = hashlib.sha256()
        self._stopped = False
        self._stage: Stage | None = None
        self._followers = followers

    @property
    def position(self) -> int:
        """Bytes appended so far."""
        return self._position

    def writable(self) -> memoryview:
        """The free rest of the current buffer, at least one byte; call :meth:`advance` with what was filled."""
        if self._current is None:
            stage = self._started()
            if stage is not None:
                stage.done.get()  # blocks until the thread is through with this buffer's last content
            self._current = self._ring[self._next]
            self._next = (self._next + 1) % len(self._ring)
        return self._current[self._filled :]

    def advance(self, nbytes: int) -> None:
        """The first ``nbytes`` of :meth:`writable` are filled."""
        self._filled += nbytes
        self._moved_on(nbytes)
        if self._filled == self._bytes:
            self._submit()

    def copy(self, fd: int, offset: int, nbytes: int, *, path: Path, tensor: str = "") -> None:
        """Append ``nbytes`` of the file ``fd`` from ``offset`` on.

        Raises:
            InputError: ``input.unreadable``, the file cannot be read.
            OutputError: ``input.changed``, the file ends early; ``system``.
        """
        done = asked = 0
        while done < nbytes:
            if done >= asked:
                asked += READ_AHEAD
                read_ahead(fd, offset + asked, nbytes - asked)
            free = self.writable()[: nbytes - done]
            try:
                got = read_into(fd, free, offset + done)
            except OSError as error:
                doing = f"cannot be read at byte {offset + done:,}"
                raise unreadable(error, path, doing=doing, tensor=tensor or None, offset=offset + done) from error
            if not got:
                raise OutputError(
                    "input.changed",
                    f"the file ends at byte {offset + done:,}, {nbytes - done:,} bytes early: it has changed",
                    path=path,
                    tensor=tensor or None,
                    offset=offset + done,
                )
            self._note(got, path, offset + done)
            done += got
            self.advance(got)

    def put(self, data: Buffer, moved: Moved | None = None, offset: int = 0) -> None:
        """Append the bytes of a contiguous buffer; the caller may use it again.

        Args:
            moved: rows of which these are the bytes from ``offset`` on.
        """
        view = memoryview(data)
        if not view.nbytes:  # an empty array of two dimensions has no flat view
            return
        view, done = view.cast("B"), 0
        if self.to_file and len(view) >= self._bytes:  # a copy less
            self._submit()
            while len(view) - done >= self._bytes:
                self._note(self._bytes, moved, offset + done)
                check()
                self._write(view[done : done + self._bytes], self._position)
                self._moved_on(self._bytes)
                done += self._bytes
        while done < len(view):
            free = self.writable()
            taken = min(len(free), len(view) - done)
            free[:taken] = view[done : done + taken]
            self._note(taken, moved, offset + done)
            done += taken
            self.advance(taken)

    def _note(self, nbytes: int, source: Path | Moved | None, offset: int) -> None:
        if self._back is not None:
            self._back.note(self._position, nbytes, source, offset)

    def place(self, data: Buffer, position: int, *, known: bool = False) -> Placed:
        """Write bytes of a file where they belong, behind all that was appended, in any order and in any thread.

        Args:
            known: an array of numpy's that somebody else is going to look for in the file, if it is still there then.

        Raises:
            OutputError: ``output.write`` or ``output.space``.
        """
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        assert self._store is not None
        copies: list[Copy] = []
        if self._back is None:
            self._store.write(view, position)
        else:
            copies = self._back.place(self._store, view, position, Made(data) if known else None)
        return Placed(position, len(view), copies)

    def take(self, placed: Placed) -> None:
        """It is the turn of what was written already."""
        self._submit()
        if placed.position != self._position:
            raise AssertionError(f"bytes of {self._position:,} were placed at {placed.position:,}")
        check()
        if self._back is not None:
            self._back.taken(placed.copies)
        self.skip(placed.nbytes)

    def zeros(self, nbytes: int) -> None:
        """Append zeros: a hole in the file where it has blocks to leave out."""
        if not self.to_file or nbytes < SMALLEST_HOLE:
            for start in range(0, nbytes, BUFFER_BYTES):
                self.put(_ZEROS[: min(BUFFER_BYTES, nbytes - start)])
            return
        self.skip(nbytes)

    def skip(self, nbytes: int) -> None:
        """Leave bytes of a file as they are."""
        self._submit()
        self._hand()
        self._moved_on(nbytes)
        self._tell(nbytes)

    def finish(self) -> bytes:
        """Write what is left and end the threads.

        Returns:
            the SHA-256 of everything appended; of a file nothing, which is hashed by whoever reads it back.

        Raises:
            OutputError: ``output.write`` or ``output.space``.
            BrokenPipeError: nobody reads what is written.
        """
        self._submit()
        self._hand()
        self._tell_all()
        self._end()
        if self._store is not None and self.to_file:
            self._store.reach(self._position)
        for follower in self._followers:
            follower.finish()
        return b"" if self.to_file else self._digest.digest()

    def abort(self) -> None:
        """End the threads, whatever they have left to do. Harmless after :meth:`finish`.

        Those that place bytes may be left behind by a signal that broke off who waited for them: they write no more.
        """
        self._stopped = True
        if self._store is not None:
            self._store.end()
        self._end()
        for follower in self._followers:
            follower.abandon()

    def _started(self) -> Stage | None:
        check()
        if self._stage is None and not self.to_file:
            stage = Stage(self._hash, len(self._ring))
            try:
                stage.start()
                self._stage = stage
            except BaseException:
                stage.jobs.put(None)  # if the thread runs, it ends by itself
                raise
        return self._stage

    def _submit(self) -> None:
        if self._current is not None and self._filled:
            job, start = self._current[: self._filled], self._position - self._filled
            if self._stage is not None:
                self._stage.jobs.put(job)
            self._write(job, start)
            self._current, self._filled = None, 0

    def _moved_on(self, nbytes: int) -> None:
        self._position += nbytes
        if self._progress:
            self._progress(nbytes)

    def _end(self) -> None:
        stage = self._stage
        if stage is not None:
            stage.jobs.put(None)
            stage.wait()
            self._stage = None

    def _hash(self, job: memoryview | int, position: int) -> None:
        assert not isinstance(job, int)
        if not self._stopped:
            self._digest.update(job)

    def _write(self, job: memoryview, position: int) -> None:
        if self._store is None:
            return
        self._store.write(job, position)
        heard = len(job)
        if self._back is not None:
            heard = self._back.written(self._store, job, position, self._tell_all)
        self._tell(heard)

    def _hand(self) -> None:
        if self._back is not None:
            self._tell(self._back.hand(self._tell_all))

    def _tell_all(self) -> None:
        """Tell followers of every byte, before this thread waits for one of them."""
        self._tell(0, all=True)

    def _tell(self, nbytes: int, *, all: bool = False) -> None:
        """Threads that wake each other for little wait for each other more than they work."""
        self._untold += nbytes
        if self._untold >= TOLD_AT_ONCE or (all and self._untold):
            told, self._untold = self._untold, 0
            for follower in self._followers:
                follower.wrote(told)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
