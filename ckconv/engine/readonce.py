"""Files that are read once for two purposes: a thread hashes what somebody else looks at.

The digest is of the very bytes that were looked at. What is looked at in another order than that of the file is read
again.
"""

from __future__ import annotations

import hashlib
import mmap
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ckconv.core.tensors import Extent, Identity
from ckconv.engine.blocks import Block
from ckconv.engine.following import HELD, Growth
from ckconv.engine.workers import Stage
from ckconv.io.files import CHUNK, Files
from ckconv.lazy import NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Shown(NamedTuple):
    """A run of bytes that somebody looks at and a thread hashes.

    Attributes:
        offset: where it begins in its file.
        block, at: the block that it is in, and where; ``None`` where it was read from the file.
    """

    offset: int
    bytes: memoryview
    block: Block | None
    at: int


class Reading:
    """One extent, looked at run by run from its beginning to its end; a thread hashes the runs."""

    def __init__(
        self, extent: Extent, read: Callable[[Path, int, memoryview], None], growing: Growth | None = None
    ) -> None:
        self._extent, self._read, self._growing = extent, read, growing
        self._hash = hashlib.sha256()
        self._held: deque[Shown] = deque()
        self._spare: list[memoryview] = []
        self._stage: Stage | None = None
        #: Bytes that were looked at.
        self._until = 0

    def holds(self, offset: int) -> bool:
        """The byte at ``offset`` of the file is in the extent."""
        return 0 <= offset - self._extent.offset < self._extent.nbytes

    def shown(self, offset: int) -> Shown | None:
        """The run that has the byte at ``offset`` of the file, read now if it was not; ``None``: it is held no more."""
        while self._until <= offset - self._extent.offset:
            self._next()
        for run in reversed(self._held):
            if run.offset <= offset:
                return run
        return None

    def digest(self) -> bytes:
        """SHA-256 of the whole extent, of which the rest is read."""
        while self._until < self._extent.nbytes:
            self._next()
        self.stop()
        return self._hash.digest()

    def stop(self) -> None:
        """End the thread."""
        stage = self._stage
        if stage is not None:
            stage.jobs.put(None)
            stage.wait()
            self._stage = None

    def _next(self) -> None:
        if self._stage is not None:
            self._stage.done.get()  # the run that is held longest is hashed
        if len(self._held) == HELD:
            self._let_go(self._held.popleft())
        run = self._run(self._extent.offset + self._until, self._extent.nbytes - self._until)
        self._held.append(run)
        self._until += len(run.bytes)
        if self._extent.nbytes <= CHUNK:
            self._hash.update(run.bytes)
            return
        if self._stage is None:
            stage = Stage(lambda job, _: self._hash.update(job), HELD - 1)  # type: ignore[arg-type]
            stage.start()
            self._stage = stage
        self._stage.jobs.put(run.bytes)

    def _run(self, offset: int, left: int) -> Shown:
        path = self._extent.path
        block, at = self._growing.read_back(path, offset) if self._growing is not None else (None, CHUNK)
        if block is not None:
            return Shown(offset, memoryview(block.stored)[at : min(block.nbytes, at + left)], block, at)
        # Whole pages, see the pipeline's.
        buffer = self._spare.pop() if self._spare else memoryview(mmap.mmap(-1, CHUNK))
        buffer = buffer[: min(at, left)]
        self._read(path, offset, buffer)
        return Shown(offset, buffer, None, 0)

    def _let_go(self, run: Shown) -> None:
        if run.block is None:
            self._spare.append(memoryview(run.bytes.obj))
        elif self._growing is not None:
            self._growing.done(run.block)


class ReadOnce(Files):
    """Files of which some extents are hashed while they are read."""

    def __init__(
        self,
        known: Mapping[Path, Identity] | None = None,
        growing: Growth | None = None,
        *,
        hashed: Iterable[Extent] = (),
        moved: Mapping[Path, Path] | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            known, growing, moved: see :class:`ckconv.io.files.Files`.
            hashed: extents whose digests are wanted.
        """
        super().__init__(known, growing, moved)
        read = super().read_into
        self._readings = {extent: Reading(extent, read, growing) for extent in hashed}
        self._of_path: dict[Path, list[Reading]] = {}
        #: Where what :meth:`shown` has just shown is kept.
        self._last: tuple[Block, int] | None = None
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
        self._last = None
        if run is None:
            return super().shown(path, offset, nbytes)
        within = offset - run.offset
        if run.block is not None:
            self._last = run.block, run.at + within
        return run.bytes[within : within + nbytes]

    def holds(self, path: Path, offset: int, shown: memoryview) -> bool:
        """See :meth:`ckconv.io.files.Files.holds`."""
        if self._last is not None:
            block, at = self._last
            same = block.is_copy(at, len(shown), path, offset)
            if same is not None:
                return same
        return super().holds(path, offset, shown)

    def is_shown(self, shown: memoryview, data: memoryview) -> bool:
        """See :meth:`ckconv.io.files.Files.is_shown`."""
        if self._last is None:
            return super().is_shown(shown, data)
        block, at = self._last
        return block.stored.startswith(data, at)

    def _run(self, path: Path, offset: int) -> Shown | None:
        for reading in self._of_path.get(path, ()):
            if reading.holds(offset):
                return reading.shown(offset)
        return None

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
