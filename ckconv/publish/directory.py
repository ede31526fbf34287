"""A directory by its descriptor: names are made, moved and removed in it.

It stays the same directory wherever its path leads by now.

Where a directory belongs to somebody else, that one may rename what is in it, and put a link in its place. So nothing
is asked by a path a second time, and no link is followed (``openat(2)`` and its kin).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from ckconv.publish.files import close_unwritten, close_written
from ckconv.system import (
    CLOEXEC,
    DIRECTORY,
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


class Directory:
    """A directory that is there; names are plain names in it.

    Methods raise what the system says, as :class:`OSError`.

    Attributes:
        path: what it was called when it was opened.
        fd: ``None`` where the system opens no directories: names are joined to the path then.
    """

    def __init__(self, path: Path, within: Directory | None = None) -> None:
        """Open it; ``path`` is a name in ``within``, where it must be no link."""
        self.path: Path = within.path / path if within else path
        self.fd: int | None = None
        if RELATIVE:
            flags = os.O_RDONLY | DIRECTORY | CLOEXEC
            self.fd = os.open(path, flags | NOFOLLOW, dir_fd=within.fd) if within else os.open(path, flags)
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
