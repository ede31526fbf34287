"""Files that are looked at and hashed in one pass: a thread hashes what the calling one has just looked at.

The hashing thread is handed the very memory, which goes round between the two. What is looked at in another order than
that of the file is read again.
"""

from __future__ import annotations

import hashlib
import mmap
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from ckconv.core.tensors import Extent, Identity
from ckconv.engine.workers import Stage
from ckconv.io.ahead import made_at_once
from ckconv.io.files import CHUNK, Files
from ckconv.system import MAX_OPEN

if TYPE_CHECKING:
    from typing_extensions import Buffer


#: Bytes of a run.
RUN_BYTES = 2 << 20

#: Runs that are read and not hashed yet.
AHEAD = 2
#: Buffers altogether: those of hashed runs are filled again.
HELD = 4


class Run(NamedTuple):
    """Bytes that the calling thread looks at, and where they begin in their file."""

    offset: int
    bytes: memoryview


class Reading:
    """One extent, looked at from its beginning to its end; a thread hashes it behind."""

    def __init__(
        self,
        extent: Extent,
        read: Callable[[Path, int, memoryview], None],
    ) -> None:
        self._extent, self._read = extent, read
        self._hash = hashlib.sha256()
        self._held: deque[Run] = deque()
        self._spare: list[memoryview] = []
        self._stage: Stage | None = None
        #: Bytes that were looked at.
        self._until = 0
        #: The calling thread hashes: there is little, or one processor is to do everything.
        self._alone = extent.nbytes <= RUN_BYTES or made_at_once() == 1

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
        while not self.over:
            self._next()
        self.stop()
        return self._hash.digest()

    def stop(self) -> None:
        """End the thread, and hold nothing any more: what is looked at again is read."""
        stage = self._stage
        if stage is not None:
            stage.jobs.put(None)
            stage.wait()
            self._stage = None
        self._held.clear()
        self._spare.clear()

    def _next(self) -> None:
        if self._stage is not None:
            self._stage.done.get()  # the run that is held longest is hashed
        if len(self._held) == (1 if self._stage is None else HELD):
            self._spare.append(memoryview(self._held.popleft().bytes.obj))
        # Whole pages, see the pipeline's.
        buffer = self._spare.pop() if self._spare else memoryview(mmap.mmap(-1, RUN_BYTES))
        run = Run(self._extent.offset + self._until, buffer[: self._extent.nbytes - self._until])
        self._read(self._extent.path, run.offset, run.bytes)
        self._held.append(run)
        self._until += len(run.bytes)
        if self._alone:
            self._hash.update(run.bytes)
            return
        if self._stage is None:
            stage = Stage(lambda job, _: self._hash.update(job), AHEAD - 1)  # type: ignore[arg-type]
            stage.start()
            self._stage = stage
        self._stage.jobs.put(run.bytes)


class ReadOnce(Files):
    """Files of which some extents are hashed while they are read."""

    def __init__(
        self,
        known: Mapping[Path, Identity] | None = None,
        *,
        hashed: Iterable[Extent] = (),
        moved: Mapping[Path, Path] | None = None,
        most: int = MAX_OPEN,
    ) -> None:
        """Open nothing yet.

        Args:
            known, moved, most: see :class:`ckconv.io.files.Files`.
            hashed: extents whose digests are wanted.
        """
        super().__init__(known, None, moved, most)
        read = super().read_into
        self._readings = {extent: Reading(extent, read) for extent in hashed}
        self._of_path: dict[Path, list[Reading]] = {}
        for extent, reading in self._readings.items():
            self._of_path.setdefault(extent.path, []).append(reading)

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
        return run.bytes[within : within + min(nbytes, CHUNK)]

    def _run(self, path: Path, offset: int) -> Run | None:
        reading = self._reading(path, offset)
        if reading is None:
            return None
        self._begin(reading)
        return reading.run(offset)

    def _begin(self, reading: Reading) -> None:
        """Let extents that are read to their end hold no memory while others are looked at."""
        if not reading.begun:
            for other in self._readings.values():
                if other.over:
                    other.stop()

    def _reading(self, path: Path, offset: int) -> Reading | None:
        return next((reading for reading in self._of_path.get(path, ()) if reading.holds(offset)), None)

    def digest(self, extent: Extent) -> bytes:
        """SHA-256 of an extent, all of it read now if it was not asked for before."""
        if extent not in self._readings:
            self._readings[extent] = Reading(extent, super().read_into)
        return self._readings[extent].digest()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reading in self._readings.values():
            reading.stop()
        super().__exit__(kind, error, trace)
