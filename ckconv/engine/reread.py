"""What is in a file, hashed, and held against what the file says of itself."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

from ckconv.core.tensors import Extent, TensorIndex
from ckconv.errors import UnsupportedError, VerifyError, unreadable
from ckconv.io.ahead import threads
from ckconv.publish.files import opened_regular
from ckconv.signals import check
from ckconv.system import read_into
from ckconv.verification.tensors import check_checksums

#: Bytes that are read and hashed before threads have to agree again who may run Python: few enough for a cache. To map
#: a file takes longer than to read it: the system has to find every page of it as well, and forget it again.
HASHED_AT_ONCE = 4 << 20

#: Seconds between two looks whether a signal came.
_PATIENCE = 0.1


class FileHash:
    """Hashes the bytes of ``fd`` from ``offset`` on, as far as it is told to."""

    def __init__(self, fd: int, offset: int) -> None:
        """Hash nothing yet."""
        self._fd, self.offset = fd, offset
        self._hash = hashlib.sha256()
        self._buffer = memoryview(b"")
        self._hashed = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are hashed."""
        return self._hashed

    @property
    def digest(self) -> bytes:
        """SHA-256 of :attr:`nbytes` bytes."""
        return self._hash.digest()

    def read_to(self, until: int) -> None:
        """Hash up to ``until`` bytes, or as far as the file goes.

        Raises:
            OSError: the file cannot be read.
        """
        while self._hashed < until:
            check()
            if not self._buffer:
                self._buffer = memoryview(bytearray(HASHED_AT_ONCE))
            part = self._buffer[: until - self._hashed]
            got = read_into(self._fd, part, self.offset + self._hashed)
            if not got:
                return
            self._hash.update(part[:got])
            self._hashed += got


class Soundness:
    """Whether a source that says its own checksum has it: hashed by a thread beside what is done with its tensors.

    A source that is damaged is said to be so, whatever else is found to be wrong because of it.
    """

    def __init__(self, index: TensorIndex) -> None:
        self._index = index
        self._pool: ThreadPoolExecutor | None = None
        self._hashing: Future[dict[Extent, bytes]] | None = None
        self._stopped = False

    def begin(self) -> None:
        """Hash it beside what is done from now on; where no thread can be started, when it is checked."""
        if self._index.checksums and self._hashing is None and (pool := threads(1)) is not None:
            self._pool, self._hashing = pool, pool.submit(self._digests)

    def check(self) -> None:
        """Wait for the result.

        Raises:
            VerifyError: ``bump.checksum``.
            InputError: ``input.unreadable``.
        """
        self.begin()
        while self._hashing is not None and not self._hashing.done():
            check()
            wait((self._hashing,), _PATIENCE)
        digests = self._hashing.result() if self._hashing is not None else self._digests()
        check_checksums(self._index.checksums, digests.__getitem__, self._index.path)

    def _digests(self) -> dict[Extent, bytes]:
        found = {}
        for extent in (checksum.extent for checksum in self._index.checksums):
            try:
                with opened_regular(extent.path) as fd:
                    reading = FileHash(fd, extent.offset)
                    while not self._stopped and reading.nbytes < extent.nbytes:
                        before = reading.nbytes
                        reading.read_to(min(extent.nbytes, before + HASHED_AT_ONCE))
                        if reading.nbytes == before:
                            break
            except OSError as error:
                raise unreadable(error, extent.path) from error
            found[extent] = reading.digest
        return found

    def __enter__(self) -> Soundness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, (UnsupportedError, VerifyError)) and error.code != "bump.checksum":
                self.check()
        finally:
            self._stopped = True
            if self._pool is not None:
                self._pool.shutdown()
