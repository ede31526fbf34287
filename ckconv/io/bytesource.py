"""Where a reader gets bytes from: a regular file, or a pipe that is read once and remembered.

Files are read with positioned reads and never mapped: a mapped file that somebody truncates kills the
process with SIGBUS, a short read is an error with a sentence.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import IO

from ckconv.core.tensors import identity
from ckconv.errors import InputError, OutputError, unreadable
from ckconv.publish.files import close_unwritten, open_regular, same_file, wait_for
from ckconv.system import read_at

#: Bytes of a pipe that are kept, so that what lies in a header can be decoded later.
PIPE_LIMIT = 256 << 20

_PIPE_CHUNK = 1 << 20


class ByteSource:
    """Bytes at offsets.

    Attributes:
        path: what messages call the input.
        size: its length in bytes; ``None`` for a pipe whose end has not been seen.
    """

    path: Path
    size: int | None

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """``nbytes`` bytes from ``offset`` on; fewer at the end of the input, none beyond it."""
        raise NotImplementedError

    def read_whole(self, offset: int, nbytes: int) -> bytes:
        """``nbytes`` bytes from ``offset`` on, which the size says are there: the way to what lies in tensors.

        Raises:
            OutputError: ``input.changed``, they are not there any more.
        """
        wait_for(self.path, offset + nbytes)
        data = self.read_at(offset, nbytes)
        if len(data) < nbytes:
            end = offset + len(data)
            raise OutputError(
                "input.changed",
                f"the file ends at byte {end:,}, {nbytes - len(data):,} bytes early: it has changed",
                path=self.path,
                offset=end,
            )
        return data

    def close(self) -> None:
        """Give back the descriptor. Closing twice is harmless."""

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileSource(ByteSource):
    """A regular file.

    After :meth:`close` it can still be read: each read then opens the file for itself and makes sure that it
    is the same file with the same size and modification time, so that thousands of shards need no descriptors.

    Raises:
        InputError: ``input.missing``, ``input.directory``, ``input.special`` or ``input.unreadable``.
    """

    size: int

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._fd, status = open_regular(path)
        self.size = status.st_size
        self._identity = identity(status)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ByteSource.read_at`.

        Raises:
            InputError: ``input.unreadable``, a read that the system refuses (``OutputError``, ``system``, where the
                file is not at fault).
            OutputError: ``input.changed``, another file under this name than the one first opened.
        """
        nbytes = min(nbytes, self.size - offset)
        if nbytes <= 0:
            return b""
        if self._fd >= 0:
            return self._read(self._fd, offset, nbytes)
        fd, status = open_regular(self.path)
        try:
            if not same_file(identity(status), self._identity):
                raise OutputError("input.changed", "the file was changed while it was being read", path=self.path)
            return self._read(fd, offset, nbytes)
        finally:
            close_unwritten(fd)

    def _read(self, fd: int, offset: int, nbytes: int) -> bytes:
        try:
            return read_at(fd, nbytes, offset)
        except OSError as error:
            raise unreadable(error, self.path) from None

    def close(self) -> None:
        """See :meth:`ByteSource.close`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_unwritten(fd)

    def __del__(self) -> None:
        self.close()


class PipeSource(ByteSource):
    """A stream that can be read only once; what was read is kept, up to :data:`PIPE_LIMIT` bytes.

    Nothing is read ahead of what is asked for but the rest of one chunk. ``size`` is set when the end is seen.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.path = Path("-")
        self.size = None
        self._stream = stream
        self._kept = bytearray()

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ByteSource.read_at`.

        Raises:
            InputError: ``input.pipe-limit``, the bytes asked for lie beyond what is kept.
        """
        end = offset + max(nbytes, 0)
        while self.size is None and len(self._kept) < end:
            if len(self._kept) >= PIPE_LIMIT:
                raise InputError(
                    "input.pipe-limit",
                    f"byte {end:,} is needed, and only the first {PIPE_LIMIT:,} bytes of a pipe are kept",
                    path=self.path,
                    found=end,
                    allowed=PIPE_LIMIT,
                    hint="save it to a file first",
                )
            self._fill(min(_PIPE_CHUNK, PIPE_LIMIT - len(self._kept)))
        return bytes(memoryview(self._kept)[offset:end])

    def _fill(self, nbytes: int) -> None:
        try:
            data = self._stream.read(nbytes)
        except OSError as error:
            raise unreadable(error, self.path) from None
        if data:
            self._kept += data
        else:
            self.size = len(self._kept)


def open_source(path: Path) -> FileSource:
    """Open a regular file for reading.

    Raises:
        InputError: ``input.missing``, ``input.directory``, ``input.special`` (a FIFO, socket or device) or
            ``input.unreadable`` (permission, a name that is too long, an I/O error).
    """
    return FileSource(path)


# The pointer format: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_LFS_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/[^\n]*\n(?:[^\n]*\n)*?size ([0-9]{1,19})\n")
_LFS_START = b"version https://git-lfs"


def lfs_pointer(head: bytes) -> str | None:
    """What a git-lfs pointer that was never replaced by its object says: ``is a git-lfs pointer for a 4.1 GB object``.

    Args:
        head: the first bytes of the file; a pointer is shorter than 1,024 bytes.
    """
    if not head.startswith(_LFS_START):
        return None
    found = _LFS_POINTER.match(head[:1024])
    if found is None:
        return "is a git-lfs pointer"
    return f"is a git-lfs pointer for a {_rounded(int(found[1]))} object"


def _rounded(nbytes: int) -> str:
    """In decimal units, as the sites that serve such objects count them."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes}-byte"
