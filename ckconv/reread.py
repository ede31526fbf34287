"""What is in a file, hashed: beside the comparison of its tensors, or right behind the thread that writes it.

Either digest says what the file holds, not what it was meant to hold. Behind the writer it costs no further pass over
a large output when that is complete.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping

from ckconv.model.index import Checksum, Extent
from ckconv.signals import check
from ckconv.stage import Stage

#: Bytes that are read and hashed before threads have to agree again who may run Python.
HASHED_AT_ONCE = 4 << 20


class Reread:
    """Hashes the bytes of ``fd`` from ``offset`` on, as far as they are written."""

    def __init__(self, fd: int, offset: int) -> None:
        self._fd, self.offset = fd, offset
        self._hash = hashlib.sha256()
        self._buffer = memoryview(bytearray(HASHED_AT_ONCE))
        self._written = self._asked = self._hashed = 0
        self._stopped = False
        self._stage: Stage | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are hashed."""
        return self._hashed

    @property
    def digest(self) -> bytes:
        """SHA-256 of :attr:`nbytes` bytes."""
        return self._hash.digest()

    def wrote(self, nbytes: int) -> None:
        """``nbytes`` more are written. Never waits; called by one thread only."""
        self._written += nbytes
        if self._written - self._asked < HASHED_AT_ONCE:
            return
        if self._stage is None:
            stage = Stage(self._follow, 0)
            stage.start()
            self._stage = stage
        self._stage.jobs.put(self._written - self._asked)
        self._asked = self._written

    def finish(self) -> None:
        """Hash the rest; may be called again after a signal interrupted it.

        Raises:
            OSError: the file cannot be read.
        """
        stage = self._stage
        if stage is not None:
            stage.jobs.put(None)
            stage.wait()
            self._stage = None
            if stage.error is not None:
                raise stage.error
        self._catch_up(self._written)

    def abandon(self) -> None:
        """End the thread."""
        self._stopped = True
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.jobs.put(None)
            stage.wait()

    def _follow(self, job: memoryview | int, position: int) -> None:
        self._catch_up(position + int(job))

    def _catch_up(self, until: int) -> None:
        """Hash up to ``until``, or as far as the file goes: a hole may end only when the file does."""
        while self._hashed < until and not self._stopped:
            check()
            part = self._buffer[: until - self._hashed]
            got = os.preadv(self._fd, [part], self.offset + self._hashed)
            if not got:
                return
            self._hash.update(part[:got])
            self._hashed += got


class ChecksumThread:
    """Computes a file's own checksums beside the comparison of its tensors."""

    def __init__(self, checksums: tuple[Checksum, ...], known: Mapping[Extent, bytes]) -> None:
        """Begin.

        Args:
            known: digests of what was read again already.
        """
        self._checksums, self._known = checksums, known
        self._mismatch: tuple[Checksum, bytes] | None = None
        self._error: OSError | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="ckconv-verify-hash", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for checksum in self._checksums:
                computed = self._known.get(checksum.extent) or self._digest(checksum.extent)
                if not self._stopped and computed != checksum.stored:
                    self._mismatch = checksum, computed
                    return
        except OSError as error:
            self._error = error

    def _digest(self, extent: Extent) -> bytes:
        digest = hashlib.sha256()
        view = memoryview(bytearray(HASHED_AT_ONCE))
        with open(extent.path, "rb", buffering=0) as file:
            file.seek(extent.offset)
            left = extent.nbytes
            while left and not self._stopped:
                got = file.readinto(view[: min(left, len(view))])
                if not got:
                    break
                digest.update(view[:got])
                left -= got
        return digest.digest()

    def result(self) -> tuple[Checksum, bytes] | None:
        """Wait; the checksum that does not fit with what was computed, or ``None``."""
        self._thread.join()
        if self._error:
            raise self._error
        return self._mismatch

    def stop(self) -> None:
        """End early and wait for the thread."""
        self._stopped = True
        self._thread.join()
