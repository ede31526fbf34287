"""What is in a file, hashed, and held against what the file says of itself."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType

from ckconv.core.tensors import Checksum, Extent, TensorIndex
from ckconv.engine.workers import Stage
from ckconv.errors import UnsupportedError, VerifyError, unreadable
from ckconv.publish.files import opened_regular
from ckconv.signals import check
from ckconv.system import read_into
from ckconv.verification.tensors import check_checksums

#: Bytes that are read and hashed before threads have to agree again who may run Python: few enough for a cache. To map
#: a file takes longer than to read it: the system has to find every page of it as well, and forget it again.
HASHED_AT_ONCE = 4 << 20


class FileHash:
    """Hashes the bytes of ``fd`` from ``offset`` on, as far as it is told to.

    Attributes:
        stopped: set from any thread when the digest is not needed any more.
    """

    def __init__(self, fd: int, offset: int) -> None:
        """Hash nothing yet."""
        self._fd, self.offset = fd, offset
        self._hash = hashlib.sha256()
        self._buffer = memoryview(b"")
        self._hashed = 0
        self.stopped = False

    @property
    def nbytes(self) -> int:
        """Bytes that are hashed."""
        return self._hashed

    @property
    def digest(self) -> bytes:
        """SHA-256 of :attr:`nbytes` bytes."""
        return self._hash.digest()

    def add(self, data: memoryview) -> None:
        """Hash bytes that were read already, and come next."""
        self._hash.update(data)
        self._hashed += len(data)

    def read_to(self, until: int) -> None:
        """Hash up to ``until`` bytes, or as far as the file goes.

        Raises:
            OSError: the file cannot be read.
        """
        while self._hashed < until and not self.stopped:
            check()
            if not self._buffer:
                self._buffer = memoryview(bytearray(HASHED_AT_ONCE))
            part = self._buffer[: until - self._hashed]
            got = read_into(self._fd, part, self.offset + self._hashed)
            if not got:
                return
            self._hash.update(part[:got])
            self._hashed += got


class ChecksumThread:
    """Computes a file's own checksums beside other work with its tensors."""

    def __init__(self, checksums: tuple[Checksum, ...]) -> None:
        """Begin."""
        self._checksums = checksums
        self._digests: dict[Extent, bytes] = {}
        self._reading: FileHash | None = None
        self._stopped = False
        self._stage: Stage | None = None
        if checksums:  # a thread takes memory of its own even if it has nothing to do
            stage = Stage.of(self._run)
            stage.start()
            self._stage = stage

    def _run(self) -> None:
        for checksum in self._checksums:
            self._digests[checksum.extent] = self._digest(checksum.extent)

    def _digest(self, extent: Extent) -> bytes:
        try:
            with opened_regular(extent.path) as fd:
                self._reading = reading = FileHash(fd, extent.offset)
                if self._stopped:  # before there was anything to stop
                    reading.stopped = True
                reading.read_to(extent.nbytes)
        except OSError as error:
            raise unreadable(error, extent.path) from error
        return reading.digest

    def check(self, path: Path) -> None:
        """Wait, and check: see :func:`check_checksums`.

        Raises:
            InputError: ``input.unreadable``.
        """
        if self._stage is not None:
            self._stage.wait()
            if self._stage.error is not None:
                raise self._stage.error
        check_checksums(self._checksums, self._digests.__getitem__, path)

    def stop(self) -> None:
        """End early and wait for the thread."""
        self._stopped = True
        if self._reading is not None:
            self._reading.stopped = True
        if self._stage is not None:
            self._stage.wait()


class Soundness:
    """Whether a source that says its own checksum has it.

    A source that is damaged is said to be so, whatever else is found to be wrong because of it.
    """

    def __init__(self, index: TensorIndex) -> None:
        self._index = index
        self._hashing: ChecksumThread | None = None

    def begin(self) -> None:
        """Hash it beside what is done from now on."""
        if self._hashing is None:
            self._hashing = ChecksumThread(self._index.checksums)

    def check(self) -> None:
        """Wait for the result.

        Raises:
            VerifyError: ``bump.checksum``.
            InputError: ``input.unreadable``.
        """
        self.begin()
        assert self._hashing is not None
        self._hashing.check(self._index.path)

    def __enter__(self) -> Soundness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, (UnsupportedError, VerifyError)) and error.code != "bump.checksum":
                self.check()
        finally:
            if self._hashing is not None:
                self._hashing.stop()
