"""Files that are looked at and hashed in one pass: a thread hashes what somebody else has just looked at.

The thread reads it itself, out of the system's cache: memory that one processor fills and another one hashes, again and
again, costs both more than that. Only what comes from another machine is handed over, as it is not asked for twice.
What is looked at in another order than that of the file is read again, too; and what is being written is hashed behind
whoever writes it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ckconv.core.tensors import Extent, Identity
from ckconv.engine.behind import Behind
from ckconv.engine.following import Growth
from ckconv.engine.reread import HASHED_AT_ONCE, FileHash
from ckconv.engine.workers import Stage
from ckconv.errors import OutputError, unreadable
from ckconv.io.files import CHUNK, Files
from ckconv.lazy import NamedTuple
from ckconv.system import MAX_OPEN, is_elsewhere

if TYPE_CHECKING:
    from typing_extensions import Buffer


#: Runs that may be looked at and not hashed yet: a cache of the system still has them.
LAG = 16

#: Runs that are held where the thread is handed them: one is looked at while others are hashed.
HELD = 4


class Run(NamedTuple):
    """Bytes that somebody looks at, and where they begin in their file."""

    offset: int
    bytes: memoryview


class Reading:
    """One extent, looked at from its beginning to its end; a thread hashes it behind."""

    def __init__(
        self,
        extent: Extent,
        read: Callable[[Path, int, memoryview], None],
        fd: Callable[[Path], int],
    ) -> None:
        self._extent, self._read, self._fd = extent, read, fd
        self._hash = hashlib.sha256()
        self._behind: FileHash | None = None
        self._held: deque[Run] = deque()
        self._spare: list[memoryview] = []
        self._stage: Stage | None = None
        #: Bytes that were looked at; of those, bytes of which the thread does not know yet.
        self._until = self._unhashed = 0
        #: The thread's, and its result, when it has ended.
        self._error: BaseException | None = None
        self._digest: bytes | None = None

    @property
    def begun(self) -> bool:
        """Something of it was looked at."""
        return self._until > 0

    @property
    def over(self) -> bool:
        """All of it was looked at."""
        return self._until == self._extent.nbytes

    def holds(self, offset: int) -> bool:
        """The byte at ``offset`` of the file is in the extent."""
        return 0 <= offset - self._extent.offset < self._extent.nbytes

    def run(self, offset: int) -> Run | None:
        """The run that has the byte at ``offset`` of the file, read now if it was not; ``None``: it is held no more."""
        while self._until <= offset - self._extent.offset:
            self._next()
        for run in reversed(self._held):
            if run.offset <= offset:
                return run if offset < run.offset + len(run.bytes) else None
        return None

    def digest(self) -> bytes:
        """SHA-256 of the whole extent, of which the rest is read."""
        if not self.over and self._extent.nbytes > CHUNK and self._stage is None:
            self._stage = self._hashing()
        while not self.over:
            if self._behind is None:
                self._next()
                continue
            n = min(CHUNK, self._extent.nbytes - self._until)
            self._until += n
            self._hash_behind(n)
        self.stop()
        if self._error is not None:
            raise self._error
        return self._digest or self._hash.digest()

    def stop(self) -> None:
        """End the thread, and hold nothing any more: what is looked at again is read."""
        stage = self._stage
        if stage is not None:
            if self._behind is not None and self._until < self._extent.nbytes:
                self._behind.stopped = True
            stage.jobs.put(None)
            stage.wait()
            self._stage, self._error = None, stage.error
            if self._behind is not None:
                self._behind.close()
                self._digest = self._behind.digest
                self._behind = None
        self._held.clear()
        self._spare.clear()

    def _next(self) -> None:
        handed = self._stage is not None and self._behind is None
        if handed:
            assert self._stage is not None
            self._stage.done.get()  # the run that is held longest is hashed
        if len(self._held) == (HELD if handed else 1):
            self._spare.append(memoryview(self._held.popleft().bytes.obj))
        # Whole pages, see the pipeline's.
        buffer = self._spare.pop() if self._spare else memoryview(mmap.mmap(-1, CHUNK))
        run = Run(self._extent.offset + self._until, buffer[: self._extent.nbytes - self._until])
        self._read(self._extent.path, run.offset, run.bytes)
        self._held.append(run)
        self._until += len(run.bytes)
        if self._extent.nbytes <= CHUNK:
            self._hash.update(run.bytes)
            return
        if self._stage is None:
            self._stage = self._hashing()
        if self._behind is None:
            self._stage.jobs.put(run.bytes)
        else:
            self._hash_behind(len(run.bytes))

    def _hash_behind(self, nbytes: int) -> None:
        """Threads that wake each other for little wait for each other more than they work."""
        assert self._stage is not None
        self._unhashed += nbytes
        if self._unhashed >= HASHED_AT_ONCE or self._until == self._extent.nbytes:
            self._stage.done.get()
            self._stage.jobs.put(self._unhashed)
            self._unhashed = 0

    def _hashing(self) -> Stage:
        fd = self._fd(self._extent.path)
        if is_elsewhere(fd):
            stage = Stage(lambda job, _: self._hash.update(job), HELD - 1)  # type: ignore[arg-type]
        else:
            self._behind = FileHash(os.dup(fd), self._extent.offset)
            stage = Stage(self._follow, LAG)
        stage.start()
        return stage

    def _follow(self, job: memoryview | int, position: int) -> None:
        assert self._behind is not None
        assert isinstance(job, int)
        try:
            self._behind.read_to(position + job)
        except OSError as error:
            raise unreadable(error, self._extent.path, doing="cannot be read") from error
        if self._behind.nbytes < position + job and not self._behind.stopped:
            message = "the file ends early: it has changed"
            raise OutputError("input.changed", message, path=self._extent.path)


class ReadOnce(Files):
    """Files of which some extents are hashed while they are read."""

    def __init__(
        self,
        known: Mapping[Path, Identity] | None = None,
        growing: Growth | None = None,
        *,
        hashed: Iterable[Extent] = (),
        moved: Mapping[Path, Path] | None = None,
        most: int = MAX_OPEN,
    ) -> None:
        """Open nothing yet.

        Args:
            known, growing, moved, most: see :class:`ckconv.io.files.Files`.
            hashed: extents whose digests are wanted.
        """
        super().__init__(known, growing, moved, most)
        read, wanted, grows = super().read_into, list(hashed), growing.paths if growing is not None else ()
        self._readings = {extent: Reading(extent, read, self.fd) for extent in wanted if extent.path not in grows}
        self._of_path: dict[Path, list[Reading]] = {}
        for extent, reading in self._readings.items():
            self._of_path.setdefault(extent.path, []).append(reading)
        self._growth = growing
        behind = [extent for extent in wanted if extent.path in grows]
        self._behind = Behind(behind, growing, self._opened) if growing is not None and behind else None

    def read_into(self, path: Path, offset: int, buffer: Buffer) -> None:
        """See :meth:`ckconv.io.files.Files.read_into`."""
        view = memoryview(buffer).cast("B")
        while len(view) and (run := self._run(path, offset)) is not None:
            there = run.bytes[offset - run.offset :]
            n = min(len(there), len(view))
            view[:n] = there[:n]
            view, offset = view[n:], offset + n
        if len(view):
            super().read_into(path, offset, view)

    def shown(self, path: Path, offset: int, nbytes: int) -> memoryview:
        """See :meth:`ckconv.io.files.Files.shown`."""
        run = self._run(path, offset)
        if run is None:
            return super().shown(path, offset, nbytes)
        within = offset - run.offset
        return run.bytes[within : within + nbytes]

    def known_same(self, path: Path, offset: int, other: object, other_at: int, nbytes: int) -> int:
        """See :meth:`ckconv.io.files.Files.known_same`."""
        return self._growth.same(path, offset, other, other_at, nbytes) if self._growth is not None else 0

    def _run(self, path: Path, offset: int) -> Run | None:
        reading = self._reading(path, offset)
        if reading is None:
            return None
        self._begin(reading)
        return reading.run(offset)

    def _begin(self, reading: Reading) -> None:
        """Those that are over hold nothing while others are looked at, however many there are."""
        if not reading.begun:
            for other in self._readings.values():
                if other.over:
                    other.stop()

    def _reading(self, path: Path, offset: int) -> Reading | None:
        return next((reading for reading in self._of_path.get(path, ()) if reading.holds(offset)), None)

    def digest(self, extent: Extent) -> bytes:
        """SHA-256 of an extent, all of it read now if it was not asked for before."""
        if self._behind is not None and self._behind.has(extent):
            return self._behind.digest(extent)
        if extent not in self._readings:
            self._readings[extent] = Reading(extent, super().read_into, self.fd)
        return self._readings[extent].digest()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._behind is not None:
            self._behind.stop()
        for reading in self._readings.values():
            reading.stop()
        super().__exit__(kind, error, trace)
