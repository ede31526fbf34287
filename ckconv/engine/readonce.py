"""Files that are read once for two purposes: a thread hashes what somebody else looks at.

The digest is of the very bytes that were looked at. What is looked at in another order than that of the file is read
again.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ckconv.core.tensors import Extent, Identity
from ckconv.engine.workers import Stage
from ckconv.io.files import CHUNK, Files, Growing

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Blocks that are kept of an extent: one is looked at while others are hashed.
BLOCKS = 4


class Reading:
    """One extent, read block by block from its beginning to its end; a thread hashes the blocks."""

    def __init__(self, extent: Extent, read: Callable[[Path, int, memoryview], None]) -> None:
        self._extent, self._read = extent, read
        self._hash = hashlib.sha256()
        self._ring: list[memoryview] = []
        self._stage: Stage | None = None
        #: Blocks that were read.
        self._count = 0

    def holds(self, offset: int) -> bool:
        """The byte at ``offset`` of the file is in the extent."""
        return 0 <= offset - self._extent.offset < self._extent.nbytes

    def shown(self, offset: int) -> memoryview | None:
        """What there is from ``offset`` on of a block, read now if it was not yet; ``None`` if it is kept no more."""
        number, within = divmod(offset - self._extent.offset, CHUNK)
        while self._count <= number:
            self._next()
        if number < self._count - len(self._ring):
            return None
        return self._ring[number % BLOCKS][within : self._size(number)]

    def digest(self) -> bytes:
        """SHA-256 of the whole extent, of which the rest is read."""
        while self._size(self._count) > 0:
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

    def _size(self, number: int) -> int:
        return min(CHUNK, self._extent.nbytes - number * CHUNK)

    def _next(self) -> None:
        if len(self._ring) < BLOCKS:  # whole pages, see the pipeline's
            self._ring.append(memoryview(mmap.mmap(-1, CHUNK)))
        if self._stage is not None:
            self._stage.done.get()  # what the block held before is hashed
        block = self._ring[self._count % BLOCKS][: self._size(self._count)]
        self._read(self._extent.path, self._extent.offset + self._count * CHUNK, block)
        self._count += 1
        if self._extent.nbytes <= CHUNK:
            self._hash.update(block)
            return
        if self._stage is None:
            stage = Stage(lambda job, _: self._hash.update(job), BLOCKS - 1)  # type: ignore[arg-type]
            stage.start()
            self._stage = stage
        self._stage.jobs.put(block)


class ReadOnce(Files):
    """Files of which some extents are hashed while they are read."""

    def __init__(
        self,
        known: Mapping[Path, Identity] | None = None,
        growing: Growing | None = None,
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
        self._readings = {extent: Reading(extent, read) for extent in hashed}
        self._of_path: dict[Path, list[Reading]] = {}
        for extent, reading in self._readings.items():
            self._of_path.setdefault(extent.path, []).append(reading)

    def read_into(self, path: Path, offset: int, buffer: Buffer) -> None:
        """See :meth:`ckconv.io.files.Files.read_into`."""
        view = memoryview(buffer).cast("B")
        while len(view) and (block := self._block(path, offset)) is not None:
            n = min(len(block), len(view))
            view[:n] = block[:n]
            view, offset = view[n:], offset + n
        if len(view):
            super().read_into(path, offset, view)

    def shown(self, path: Path, offset: int, nbytes: int) -> memoryview:
        """See :meth:`ckconv.io.files.Files.shown`."""
        block = self._block(path, offset)
        return super().shown(path, offset, nbytes) if block is None else block[:nbytes]

    def _block(self, path: Path, offset: int) -> memoryview | None:
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
