"""Advisory locks (``flock``): turns of runs in a directory, living runs.

A lock ends with the process that holds it, however that ends.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ckconv.errors import OutputError
from ckconv.publish.files import close_unwritten, failing, removed, write_code
from ckconv.signals import check, noted
from ckconv.system import CLOEXEC, MOVES_OPEN, NO_LOCKS, NOFOLLOW, NONBLOCK, try_lock

#: The file that is locked; it is there only as long as a run holds it, or was killed holding it. Not the directory
#: itself: people lock that for a command of their own (``flock DIR ckconv ...``), and not every file system can.
NAME = ".ckconv.lock"

#: Seconds that another run has for naming files, which takes milliseconds.
PATIENCE = 60.0


@contextmanager
def locked(directories: Iterable[Path]) -> Iterator[list[str]]:
    """Keep other runs from naming files in these directories.

    Without locks, none is kept off.

    Signals are noted until all are given back. The order is the same everywhere: two runs do not wait for each other.

    Yields:
        sentences about lock files that could not be removed, when the block has ended.

    Raises:
        OutputError: ``output.busy``, another run does so for ``PATIENCE``; ``output.write``.
        Interrupted: on leaving the block, if a signal came meanwhile.
    """
    held, left, known = list[tuple[Path, int]](), list[str](), dict[tuple[int, int], Path]()
    with noted():
        try:
            for directory in directories:
                with failing(directory):
                    status = directory.stat()
                known.setdefault((status.st_dev, status.st_ino), directory)
            for _, directory in sorted(known.items()):
                until, path = time.monotonic() + PATIENCE, directory / NAME
                while (fd := _take(path)) is None:
                    check()
                    if time.monotonic() > until:
                        message = f"another run of ckconv has been publishing its files here for {PATIENCE:.0f} s"
                        raise OutputError("output.busy", message, path=directory, hint="wait until it ends, or end it")
                    time.sleep(0.005)
                held.append((path, fd))
            yield left
        finally:
            for path, fd in reversed(held):
                if MOVES_OPEN:
                    left += removed(path)
                close_unwritten(fd)
                if not MOVES_OPEN:
                    with suppress(OSError):  # somebody else has opened it meanwhile, and will remove it
                        path.unlink()


def _take(path: Path) -> int | None:
    """The descriptor of the locked file; ``None`` while another run has it."""
    with failing(path.parent):
        try:
            fd = _open(path)
        except PermissionError:
            if MOVES_OPEN:
                raise
            return None  # its name goes with the last one who has it open
        is_locked = False
        try:
            is_locked = try_lock(fd)
            if not is_locked or not os.path.samestat(os.fstat(fd), path.lstat()):  # whoever had it has just removed it
                close_unwritten(fd)
                return None
        except FileNotFoundError:
            close_unwritten(fd)
            return None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                left = removed(path) if is_locked else [f"{path} is left over"]
                close_unwritten(fd)
                message = f"cannot be locked: {error.strerror}"
                raise OutputError(write_code(error), message, path=path, details=left) from error
    return fd


def _open(path: Path) -> int:
    flags = CLOEXEC | NOFOLLOW | NONBLOCK
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
            message = "is no file that a run of ckconv could lock, which each does for a moment"
            raise OutputError("output.write", message, path=path, hint="remove it") from error
        if not isinstance(error, PermissionError):
            raise
        # Another user's, in a directory that both may write into. Linux opens it only if it need not be made, where the
        # directory is sticky (fs.protected_regular).
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | flags)
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)  # it has just been removed, or may not be made
