"""Substitutes for POSIX calls, for systems such as Windows."""

from __future__ import annotations

import errno
import io
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Held from moving a descriptor's position until the bytes there were read or written: threads share descriptors.
_POSITION = threading.Lock()

#: Seconds after which a pipe that was full is asked again.
_SOON = 0.005

#: What the C library of Windows says of bytes that somebody else has locked (``_locking``).
_LOCKED = (errno.EACCES, getattr(errno, "EDEADLOCK", errno.EDEADLK))


def read_at(fd: int, nbytes: int, offset: int) -> bytes:
    """As :func:`ckconv.system.read_at`."""
    parts = []
    with _POSITION:
        os.lseek(fd, offset, os.SEEK_SET)
        while nbytes and (data := os.read(fd, nbytes)):
            parts.append(data)
            nbytes -= len(data)
    return b"".join(parts)


def read_into(fd: int, buffer: Buffer, offset: int) -> int:
    """As :func:`ckconv.system.read_into`."""
    with _POSITION, io.FileIO(fd, closefd=False) as file:
        file.seek(offset)
        return file.readinto(buffer) or 0


def write_some(fd: int, content: Buffer, offset: int) -> int:
    """As :func:`ckconv.system.write_some`."""
    with _POSITION:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, content)


def wait_for_reader(fd: int) -> None:
    """Wait for a pipe's reader by trying again after a moment."""
    time.sleep(_SOON)


def free_space(directory: Path) -> int | None:
    """As :func:`ckconv.system.free_space`."""
    import shutil

    return shutil.disk_usage(directory).free


def sync_directory(path: Path, fd: int | None = None) -> None:
    """Do nothing: NTFS keeps a journal of names."""


def become_directory(made: Path, place: Path) -> None:
    """Rename a directory; an empty one in its place goes first."""
    with suppress(FileNotFoundError):
        place.rmdir()
    made.rename(place)


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """As :func:`ckconv.system.try_lock`, of the first byte of a file."""
    try:
        import msvcrt
    except ImportError:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)) from None
    system: Any = msvcrt  # its functions are declared for Windows only
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        system.locking(fd, system.LK_NBLCK, 1)
    except OSError as error:
        if error.errno in _LOCKED:
            return False
        raise
    return True


def is_own(status: os.stat_result) -> bool:
    """Assume that a file is the user's; the system refuses removal if not."""
    return True


def peak_memory() -> int:
    """As :func:`ckconv.system.peak_memory`; 0 where the system does not say."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        library: Any = ctypes.windll  # type: ignore[attr-defined,unused-ignore]

        class Counters(ctypes.Structure):
            # PROCESS_MEMORY_COUNTERS (psapi.h)
            _fields_ = [
                ("size", ctypes.c_uint32),
                ("faults", ctypes.c_uint32),
                *((name, ctypes.c_size_t) for name in ("peak", "working", "q1", "q2", "q3", "q4", "page", "most")),
            ]

        counters = Counters(size=ctypes.sizeof(Counters))
        library.kernel32.GetCurrentProcess.restype = ctypes.c_void_p
        process = ctypes.c_void_p(library.kernel32.GetCurrentProcess())
        if library.psapi.GetProcessMemoryInfo(process, ctypes.byref(counters), counters.size):
            return int(counters.peak)
    return 0
