"""Advisory locks (``flock``): who may name files in a directory, and whether the run that made a directory still lives.

A lock ends with the process that holds it, however that ends.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ckconv.errors import OutputError
from ckconv.publish.files import close_unwritten, failing, removed, write_code
from ckconv.signals import check, noted
from ckconv.system import CLOEXEC, MOVES_OPEN, NO_LOCKS, NOFOLLOW, NONBLOCK, try_lock

#: The file that is locked; it is there only as long as a run holds it, or was killed holding it. Not the directory
#: itself: people lock that for a command of their own (``flock DIR ckconv ...``), and not every file system can.
NAME = ".ckconv.lock"

#: Seconds that another run has for naming files, which takes milliseconds.
PATIENCE = 60.0


class Locked:
    """Within the block no other run names files in these directories; without locks, no run is kept off.

    Signals are noted only until all are given back: an exception between the end of the block and the first line of
    ``__exit__`` would leave the files of the locks behind.

    Raises:
        OutputError: ``output.busy``, another run does so for ``PATIENCE``; ``output.write``.
        Interrupted: on leaving the block, if a signal came meanwhile.
    """

    def __init__(self, directories: Iterable[Path]) -> None:
        """Describe what is locked; the same order everywhere, so that two runs do not wait for each other."""
        self._directories = list(directories)
        self._held: list[tuple[Path, int]] = []
        self._signals = ExitStack()
        #: Sentences about lock files that could not be removed.
        self.left: list[str] = []

    def __enter__(self) -> Locked:
        self._signals.enter_context(noted())
        try:
            known: dict[tuple[int, int], Path] = {}
            for directory in self._directories:
                with failing(directory):
                    status = directory.stat()
                known.setdefault((status.st_dev, status.st_ino), directory)
            for _, directory in sorted(known.items()):
                self._wait_for(directory)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _wait_for(self, directory: Path) -> None:
        until = time.monotonic() + PATIENCE
        while not self._take(directory / NAME):
            check()
            if time.monotonic() > until:
                message = f"another run of ckconv has been publishing its files here for {PATIENCE:.0f} s"
                raise OutputError("output.busy", message, path=directory, hint="wait until it ends, or end it")
            time.sleep(0.005)

    def _take(self, path: Path) -> bool:
        with failing(path.parent):
            try:
                fd = _open(path)
            except PermissionError:
                if MOVES_OPEN:
                    raise
                return False  # it is being removed, and its name goes with the last one who has it open
            locked = False
            try:
                locked = try_lock(fd)
                if not locked or not _is(path, fd):  # whoever had it may just have removed it
                    close_unwritten(fd)
                    return False
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    left = removed(path) if locked else [f"{path} is left over"]
                    close_unwritten(fd)
                    raise OutputError(
                        write_code(error), f"cannot be locked: {error.strerror}", path=path, details=left
                    ) from error
            self._held.append((path, fd))
        return True

    def release(self) -> None:
        """Give all of them back."""
        while self._held:
            path, fd = self._held.pop()
            if MOVES_OPEN:
                self.left += removed(path)
            close_unwritten(fd)
            if not MOVES_OPEN:
                with suppress(OSError):  # somebody else has opened it meanwhile, and will remove it
                    path.unlink()

    def __exit__(self, *raised: Any) -> None:
        try:
            self.release()
        finally:
            self._signals.__exit__(*raised)


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


def _is(path: Path, fd: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), path.lstat())
    return False
