"""A directory by its descriptor: names, moves, and turns of runs in it."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ckconv.errors import OutputError
from ckconv.publish.files import close_unwritten, close_written, failing, removed, write_code
from ckconv.signals import check, noted
from ckconv.system import (
    CLOEXEC,
    DIRECTORY,
    MOVES_OPEN,
    NO_LOCKS,
    NOFOLLOW,
    NONBLOCK,
    RELATIVE,
    become_directory,
    is_own,
    link,
    read_at,
    sync,
    sync_directory,
    try_lock,
    write_at,
)

# -- A directory by its descriptor: names are made, moved and removed in it --------------------------------------------
# It stays the same directory wherever its path leads by now.
#
# Where a directory belongs to somebody else, that one may rename what is in it, and put a link in its place. So nothing
# is asked by a path a second time, and no link is followed (``openat(2)`` and its kin).


class Directory:
    """A directory that is there; names are plain names in it.

    Methods raise what the system says, as :class:`OSError`.

    Attributes:
        path: what it was called when it was opened.
        fd: ``None`` where the system opens no directories: names are joined to the path then.
    """

    def __init__(self, path: Path, within: Directory | None = None, *, is_link: bool = True) -> None:
        """Open it; ``path`` is a name in ``within``, where it must be no link.

        Args:
            is_link: by itself it may be one.
        """
        self.path: Path = within.path / path if within else path
        self.fd: int | None = None
        if RELATIVE:
            flags = os.O_RDONLY | DIRECTORY | CLOEXEC
            flags |= NOFOLLOW if within or not is_link else 0
            self.fd = os.open(path, flags, dir_fd=within.fd if within else None)
        elif within and not stat.S_ISDIR(self.path.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.path))

    def _name(self, name: str) -> str | Path:
        return name if self.fd is not None else self.path / name

    def names(self) -> list[str]:
        """Names in the directory, in order."""
        return sorted(os.listdir(self.path if self.fd is None else self.fd))  # noqa: PTH208 - by the descriptor

    def status(self, name: str | None = None) -> os.stat_result | None:
        """The status of a name or of the directory; ``None`` for nothing."""
        if name is None:
            return os.stat(self.path if self.fd is None else self.fd)
        try:
            return os.stat(self._name(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def create(self, name: str, mode: int = 0o666) -> int:
        """A descriptor of a new file, never of one that is there."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | NOFOLLOW | CLOEXEC
        return os.open(self._name(name), flags, mode, dir_fd=self.fd)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor of a file that is no link; with ``O_CREAT`` of a new one."""
        return os.open(self._name(name), flags | NOFOLLOW | CLOEXEC, 0o666, dir_fd=self.fd)

    def read(self, name: str, most: int) -> bytes:
        """The first ``most`` bytes of a file that is no link."""
        fd = self.open(name, NONBLOCK)
        try:
            return read_at(fd, most, 0)
        finally:
            close_unwritten(fd)

    def write(self, name: str, data: bytes) -> None:
        """Make a file that only this user reads, and bring it to the disk."""
        fd = self.create(name, 0o600)
        try:
            write_at(fd, data, 0)
            sync(fd)
        finally:
            close_written(fd)

    def make(self, name: str) -> Directory:
        """Make a directory in it, unless it is there."""
        with suppress(FileExistsError):
            os.mkdir(self._name(name), dir_fd=self.fd)
        return Directory(Path(name), self)

    def move(self, name: str, to: Directory, other: str) -> None:
        """Rename a file; what has the other name is replaced."""
        os.replace(self._name(name), to._name(other), src_dir_fd=self.fd, dst_dir_fd=to.fd)

    def put(self, name: str, other: str) -> None:
        """Put a directory in it where there is nothing, or an empty directory."""
        if self.fd is None:
            become_directory(self.path / name, self.path / other)
        else:
            os.rename(name, other, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def link(self, name: str, to: Directory, other: str) -> None:
        """Give a file another name, which must be free."""
        link(self._name(name), to._name(other), self.fd, to.fd)

    def chmod(self, name: str, mode: int) -> None:
        """Change the permissions of a file."""
        os.chmod(self._name(name), mode, dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove a file or a link, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(self._name(name), dir_fd=self.fd)

    def remove_directory(self, name: str) -> None:
        """Remove an empty directory, if it is there."""
        with suppress(FileNotFoundError):
            os.rmdir(self._name(name), dir_fd=self.fd)

    def sync(self) -> None:
        """Bring the names in it to the disk."""
        sync_directory(self.path, self.fd)

    def is_free(self, *, shared: bool = False) -> bool:
        """Lock it until it is closed.

        Args:
            shared: others may do so, too.

        Returns:
            ``False`` if it belongs to somebody else, or another process has locked it.

        Raises:
            OSError: the file system has no locks.
        """
        if self.fd is None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        return is_own(os.fstat(self.fd)) and try_lock(self.fd, shared=shared)

    def close(self) -> None:
        """Close the descriptor, with which its lock ends."""
        fd, self.fd = self.fd, None
        if fd is not None:
            close_unwritten(fd)

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- Advisory locks (``flock``): turns of runs in a directory, living runs ---------------------------------------------
# A lock ends with the process that holds it, however that ends.

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
