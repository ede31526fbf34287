"""SHA-256 of files, by the thread that asks or by another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Self

from ckconv.core.tensors import Extent
from ckconv.errors import unreadable
from ckconv.io.files import opened_regular
from ckconv.io.tiles import threads
from ckconv.system import read_into
from ckconv.system.signals import check

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

#: Bytes that are read and hashed before threads have to agree again who may run Python: few enough for a cache. To map
#: a file takes longer than to read it: the system has to find every page of it as well, and forget it again.
HASHED_AT_ONCE = 1 << 20

#: Seconds between two looks whether a signal came.
_PATIENCE = 0.1


class FileHash:
    """SHA-256 of the bytes of ``fd`` from ``offset`` on, as far as asked for."""

    def __init__(self, fd: int, offset: int) -> None:
        """Hash nothing yet."""
        self._fd, self.offset = fd, offset
        self._hash = hashlib.sha256()
        self._buffer = memoryview(b"")
        #: Bytes that are hashed.
        self.nbytes = 0

    @property
    def digest(self) -> bytes:
        """SHA-256 of :attr:`nbytes` bytes."""
        return self._hash.digest()

    def read_to(self, until: int | None = None) -> None:
        """Hash up to ``until`` bytes, or as far as the file goes.

        Raises:
            OSError: the file cannot be read.
        """
        while until is None or self.nbytes < until:
            check()
            most = HASHED_AT_ONCE if until is None else min(HASHED_AT_ONCE, until - self.nbytes)
            if len(self._buffer) < most:
                self._buffer = memoryview(bytearray(most))
            part = self._buffer if until is None else self._buffer[: until - self.nbytes]
            got = read_into(self._fd, part, self.offset + self.nbytes)
            if not got:
                return
            self._hash.update(part[:got])
            self.nbytes += got


def sha256_of(fd: int) -> str:
    """SHA-256 of a whole file, as hex."""
    found = FileHash(fd, 0)
    found.read_to()
    return found.digest.hex()


class Digests:
    """SHA-256 of parts of files, by a thread, or on demand without threads."""

    def __init__(self, extents: Iterable[Extent]) -> None:
        """Compute nothing yet."""
        self._extents = list(extents)
        self._pool: ThreadPoolExecutor | None = None
        self._hashing: Future[dict[Extent, bytes]] | None = None
        self._stopped = False

    def begin(self) -> None:
        """Compute them beside what is done from now on."""
        if self._extents and self._hashing is None and (pool := threads(1)) is not None:
            self._pool, self._hashing = pool, pool.submit(self._compute)

    def all(self) -> dict[Extent, bytes]:
        """Each, when all are computed.

        Raises:
            InputError: ``input.unreadable``.
        """
        while self._hashing is not None and not self._hashing.done():
            check()
            wait((self._hashing,), _PATIENCE)
        return self._hashing.result() if self._hashing is not None else self._compute()

    def _compute(self) -> dict[Extent, bytes]:
        found = {}
        for extent in self._extents:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        if self._pool is not None:
            self._pool.shutdown()
        self._pool, self._hashing, self._stopped = None, None, False
