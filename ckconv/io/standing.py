"""Stand-ins: empty files of the size of files whose bytes are elsewhere.

Everything that opens, measures and lists files does so with the stand-in; reads go through :mod:`ckconv.system`,
which asks here. Only the ranges that are read are fetched. Stand-ins are sparse files, removed at exit.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Protocol

from ckconv.errors import ADDRESSES, InputError, OutputError, UnsupportedError, shown
from ckconv.signals import check
from ckconv.system import ELSEWHERE

#: Bytes that are fetched at least: as long on their way as a request that asks for none.
LEAST = 64 << 10

#: Bytes of a piece that is fetched before it is read, and how many of them at once.
PIECE, AHEAD = 4 << 20, 3

#: Bytes that are kept, of all files: writing and comparing read the same ones, one behind the other.
KEPT = 48 << 20

#: Seconds between two looks whether a signal came.
PATIENCE = 0.1

#: Bytes of one file: the most that a file of ext4 has.
_LARGEST = 1 << 44


class Origin(Protocol):
    """One file elsewhere."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    @property
    def whole(self) -> bool:
        """A range of it costs as much as all of it."""

    @property
    def state(self) -> str:
        """A text that changes with the bytes; empty if unknown."""

    def fetch(self, offset: int, nbytes: int) -> bytes:
        """Bytes that are there, every one of them.

        Raises:
            OutputError: ``remote.read``, after several tries; ``input.changed``, it is another file now.
        """


class Kept:
    """Cache of fetched bytes: at most :data:`KEPT`, those used last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: (file, first byte) -> how many bytes, and what they are; the ones used longest ago first.
        self._found: dict[tuple[Origin, int], tuple[int, Future[bytes]]] = {}
        self._nbytes = 0

    def holding(self, origin: Origin, offset: int) -> tuple[int, int, Future[bytes]] | None:
        """First byte, size and content of the piece with the byte at ``offset``."""
        for (owner, start), (nbytes, _) in self._found.items():
            if owner is origin and start <= offset < start + nbytes:
                found = self._found.pop((owner, start))
                self._found[owner, start] = found
                return start, *found
        return None

    def until(self, origin: Origin, offset: int, end: int) -> int:
        """The next kept byte behind ``offset``, at most ``end``."""
        return min((at for owner, at in self._found if owner is origin and offset < at < end), default=end)

    def add(self, origin: Origin, start: int, nbytes: int, found: Future[bytes]) -> None:
        """Keep what is being fetched, and let go of what was not used for long."""
        self.forget(origin, start)
        self._found[origin, start] = (nbytes, found)
        self._nbytes += nbytes
        while self._nbytes > KEPT and len(self._found) > 1:
            self._nbytes -= self._found.pop(next(iter(self._found)))[0]

    def forget(self, origin: Origin, start: int) -> None:
        """Forget a piece: a failed one is fetched again if asked for."""
        nbytes, _ = self._found.pop((origin, start), (0, None))
        self._nbytes -= nbytes


_KEPT = Kept()


def keep(origin: Origin, first: bytes) -> None:
    """Keep the first bytes of a file, which came along with its size."""
    found: Future[bytes] = Future()
    found.set_result(first)
    with _KEPT.lock:
        _KEPT.add(origin, 0, len(first), found)


class Reader:
    """Ranges of one file, fetched once while kept, in order ahead."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._end = -1

    def read(self, offset: int, nbytes: int, *, in_order: bool) -> bytes:
        """Bytes from ``offset`` on, fewer at the end of the file.

        Args:
            in_order: more is likely to be read behind them.
        """
        nbytes = min(nbytes, self._origin.size - offset)
        parts = []
        while nbytes > 0:
            with _KEPT.lock:
                start, found = self._piece(offset, nbytes, in_order)
            try:
                while not found.done():  # whoever waits for a server hears of a signal
                    check()
                    wait((found,), PATIENCE)
                part = found.result()[offset - start :][:nbytes]
            except BaseException:
                with _KEPT.lock:
                    _KEPT.forget(self._origin, start)
                raise
            parts.append(part)
            offset, nbytes = offset + len(part), nbytes - len(part)
        return b"".join(parts)

    def _piece(self, offset: int, nbytes: int, in_order: bool) -> tuple[int, Future[bytes]]:
        """The piece with the byte at ``offset``; further ones are fetched ahead."""
        follows = in_order and offset == self._end
        start, size, found = self._at(offset, max(nbytes, PIECE if follows else LEAST))
        self._end = offset + nbytes
        behind = start + size
        for _ in range(AHEAD if size >= PIECE and in_order else 0):
            if behind < self._origin.size:
                at, more, _ = self._at(behind, PIECE)
                behind = at + more
        return start, found

    def _at(self, offset: int, nbytes: int) -> tuple[int, int, Future[bytes]]:
        known = _KEPT.holding(self._origin, offset)
        if known is not None:
            return known
        if self._origin.whole:
            offset, nbytes = 0, self._origin.size
        else:
            end = min(offset + nbytes, self._origin.size)
            nbytes = _KEPT.until(self._origin, offset, end) - offset
        found = _begun(self._origin, offset, nbytes)
        _KEPT.add(self._origin, offset, nbytes, found)
        return offset, nbytes, found


def _begun(origin: Origin, offset: int, nbytes: int) -> Future[bytes]:
    """Start to fetch in a thread.

    Not of a pool: the end of the process does not wait for a slow server.

    Raises:
        OutputError: ``system``, the user may have no more threads.
    """
    found: Future[bytes] = Future()

    def fetch() -> None:
        try:
            found.set_result(origin.fetch(offset, nbytes))
        except BaseException as error:
            found.set_exception(error)

    try:
        threading.Thread(target=fetch, name="ckconv-remote", daemon=True).start()
    except RuntimeError as error:
        raise OutputError("system", f"a thread cannot be started: {error}") from error
    return found


class Near:
    """A file put together on this machine, neither fetched ahead nor kept."""

    size: int

    def fetch(self, offset: int, nbytes: int) -> bytes:
        """See :class:`Origin`."""
        raise NotImplementedError

    def read(self, offset: int, nbytes: int, *, in_order: bool) -> bytes:
        """See :meth:`Reader.read`."""
        return self.fetch(offset, max(0, min(nbytes, self.size - offset)))


def stand_in(url: str, name: str, files: Mapping[str, Origin]) -> Path:
    """Make a directory of stand-ins, called ``name``, for ``files``.

    Returns their paths in it, and what reads them.

    Args:
        url: what messages call the directory.

    Raises:
        InputError: ``input.special``, one of them is said to be a directory, too.
        OutputError: ``output.write``, there is no place for temporary files.
        UnsupportedError: ``remote.ranges``, a file is said to have more bytes than one can have.
    """
    for path, origin in files.items():
        if origin.size >= _LARGEST:
            message = f"the server says that {path} has {origin.size:,} bytes, which no file has"
            raise UnsupportedError("remote.ranges", message, path=url)
    folders = {folder.as_posix() for path in files for folder in PurePosixPath(path).parents}
    if both := sorted(folders & files.keys()):
        raise InputError("input.special", f"the listing has {both[0]} as a file and as a directory", path=url)
    try:
        root = tempfile.mkdtemp(prefix="ckconv-")
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        directory = Path(root, name)
        for folder in ("", *(os.path.dirname(path) for path in files)):
            (directory / folder).mkdir(parents=True, exist_ok=True)
        for path, origin in files.items():
            with open(directory / path, "xb") as file:
                file.truncate(origin.size)
                status = os.fstat(file.fileno())
                near = origin if isinstance(origin, Near) else Reader(origin)
                ELSEWHERE[status.st_dev, status.st_ino] = near.read
            if origin.state:  # whoever opens it here and elsewhere, or once more, sees whether it is the same
                when = int.from_bytes(sha256(origin.state.encode()).digest()[:7], "big")
                os.utime(directory / path, ns=(when, when))  # by its name: Windows takes no descriptor
    except OSError as error:
        message = f"there is no place for temporary files: {error.strerror}"
        raise OutputError("output.write", message, path=error.filename) from error
    ADDRESSES[str(directory)] = shown(url).rstrip("/")
    return directory


# Ranges of files behind HTTP: several tries, and proof that every answer is of the same file.
