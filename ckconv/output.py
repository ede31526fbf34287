"""Output files that are published complete or not at all.

Everything is written under a temporary name in the target's own directory and gets its real name by one link or
rename. Until then a failure, a signal or a lost race leaves what was there before.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ckconv.errors import CkconvError, OutputError
from ckconv.signals import LATE, check, deferred

#: What a file system says that cannot make hard links (FAT, some network mounts).
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Outputs:
    """The main file and its side files, staged together and published together: side files first, the main file last.

    A target that is a symbolic link is written where the link points. A side file that is there already with the same
    content is left alone. With ``force``, a file is replaced by one rename and keeps the old one's mode bits, and side
    files that were replaced come back if the main file then fails.
    """

    def __init__(
        self,
        side: Mapping[Path, bytes],
        *,
        main: Path | None = None,
        nbytes: int = 0,
        holes: Sequence[tuple[int, int]] = (),
        directory: Path | None = None,
        force: bool = False,
        inputs: Iterable[Path] = (),
    ) -> None:
        """Describe what is going to be written; nothing is touched before :meth:`__enter__`.

        Args:
            side: content of the side files.
            main: the large file, written through :attr:`fd`.
            nbytes: its exact size.
            holes: (offset, bytes) in it that are zeros and take no space, in order.
            directory: a directory that holds all of it, to be made anew; every path is directly inside.
            force: replace what is there.
            inputs: files that must not be overwritten whatever the flags say.
        """
        self._side = {_through_link(path): content for path, content in side.items()}
        self._main = _through_link(main) if main else None
        self._nbytes, self._holes, self._force = nbytes, holes, force
        self._inputs = tuple(inputs)
        self._directory = _through_link(directory) if directory else None
        self._inside = {path for path in (*side, main) if path is not None and path.parent == directory}
        self._complete = False
        self._staging: Path | None = None
        self._temps: list[Path] = []
        self._published: list[Path] = []
        #: (where the old content is kept, its name) of side files that were replaced.
        self._replaced: list[tuple[Path, Path]] = []
        self.fd = -1
        #: Where the main file is while it has no name of its own.
        self.path: Path | None = None

    def __enter__(self) -> Outputs:
        """Check everything that can be known, then make the temporary file.

        Raises:
            OutputError: ``output.exists``, ``output.directory``, ``output.parent``, ``output.special``,
                ``output.is-input``, ``output.space`` or ``output.write``.
        """
        check()
        try:
            if self._directory is not None:
                self._check_directory(self._directory)
            targets = [*self._side, *([self._main] if self._main else [])]
            for target in targets:
                self._check(target)
            if targets:
                self._check_space(targets)
            if self._main is not None:
                self.path = self._temporary(self._main)
                self.fd = self._create(self.path, self._main)
                self._allocate()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clean_up()

    def sync(self) -> None:
        """Bring the main file to the disk."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise _write_error(error, self._main) from error

    def publish(self) -> None:
        """Give everything its name.

        Raises:
            OutputError: ``output.exists``, somebody else made one of the files meanwhile; ``output.write``.
        """
        check()
        with deferred(late=LATE):
            self._publish()
            self._complete = True

    def _publish(self) -> None:
        targets = [*self._side, *([self._main] if self._main else [])]
        parents = {target.parent for target in targets if not self._staged(target)}
        try:
            for path, content in self._side.items():
                self._publish_side(path, content)
            if self._main is not None:
                assert self.path is not None
                self._name(self.path, self._main)
            if self._staging is not None:
                assert self._directory is not None
                parents.add(self._directory.parent)
                _sync_directory(self._staging)
                self._name_directory(self._staging, self._directory)
                self._staging = None
            self._published.clear()
            while self._replaced:
                self._replaced.pop()[0].unlink()
            for parent in sorted(parents):
                _sync_directory(parent)
        except OSError as error:
            raise _write_error(error, self._main or next(iter(self._side), None)) from error

    def _check_directory(self, directory: Path) -> None:
        """A new directory is staged beside its place; an existing one is only filled where that is asked for."""
        _check_parent(directory)
        if os.path.lexists(directory):
            if not directory.is_dir():
                raise OutputError("output.exists", "exists and is not a directory", path=directory)
            if any(directory.iterdir()):
                if self._force:
                    return
                raise OutputError(
                    "output.exists",
                    "the directory exists and is not empty",
                    path=directory,
                    hint="--force writes into it; files of the same name are replaced",
                )
        staging = self._temporary(directory)
        self._temps.append(staging)
        try:
            staging.mkdir()
        except OSError as error:
            raise _write_error(error, directory) from error
        self._staging = staging

    def _check(self, target: Path) -> None:
        if self._staged(target):
            return
        _check_parent(target)
        try:
            found = os.lstat(target)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _write_error(error, target) from error
        for source in self._inputs:
            with suppress(OSError):
                if os.path.samestat(found, os.stat(source)):
                    raise OutputError(
                        "output.is-input", f"is the input {source}; nothing is written into it", path=target
                    )
        if stat.S_ISDIR(found.st_mode):
            raise OutputError(
                "output.directory",
                "is a directory",
                path=target,
                hint=f"name a file in it, or {target}/ for all of them",
            )
        if not stat.S_ISREG(found.st_mode):
            raise OutputError("output.special", "exists and is not a regular file", path=target)
        content = self._side.get(target)
        if content is not None and _holds(target, content):
            return
        if not self._force:
            hint = "--force replaces it"
            if content is not None:
                hint += (
                    f"; or name another place for {target.name} (--config-out), or a directory for the output (DST/)"
                )
            raise OutputError("output.exists", "exists already", path=target, hint=hint)

    def _check_space(self, targets: Sequence[Path]) -> None:
        parent = self._staging or targets[-1].parent
        filesystem = os.statvfs(parent)
        free = filesystem.f_bavail * filesystem.f_frsize
        if not filesystem.f_blocks:  # one that does not say
            return
        need = self._nbytes - sum(n for _, n in self._holes) + sum(map(len, self._side.values()))
        if need > free:
            raise OutputError(
                "output.space",
                f"needs {need:,} bytes, {free:,} are free",
                path=self._main or targets[-1],
                found=free,
                allowed=need,
            )

    def _temporary(self, target: Path) -> Path:
        parent = self._staging if self._staged(target) else target.parent
        assert parent is not None
        # Room for what is added: a name may be as long as the file system allows (255 bytes, almost everywhere).
        name = os.fsdecode(os.fsencode(target.name)[:200])
        return parent / f".{name}.{secrets.token_hex(4)}.tmp"

    def _staged(self, target: Path) -> bool:
        """``target`` is made inside the new directory, not in a place that is there already."""
        return self._staging is not None and target in self._inside

    def _create(self, path: Path, target: Path) -> int:
        """A new file that is going to be ``target``: never one that is there, and as the user's mask has new files."""
        self._temps.append(path)  # before it is there: a signal may come between any two steps
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self._temps.remove(path)
            raise _write_error(error, target) from error

    def _allocate(self) -> None:
        """Take the blocks now: a full disk is found before the work, and not in the middle of it."""
        if not hasattr(os, "posix_fallocate") or not self._nbytes:
            return
        at = 0
        for offset, nbytes in [*self._holes, (self._nbytes, 0)]:
            if offset > at:
                try:
                    if not at and not _allocates(self.fd):
                        return
                    os.posix_fallocate(self.fd, at, offset - at)
                except OSError as error:
                    if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                        return
                    raise _write_error(error, self._main) from error
            at = offset + nbytes

    def _publish_side(self, path: Path, content: bytes) -> None:
        if not self._staged(path) and path.is_file() and _holds(path, content):
            return
        temp = self._temporary(path)
        fd = self._create(temp, path)
        try:
            view = memoryview(content)
            while len(view):
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        self._name(temp, path)

    def _name(self, temp: Path, target: Path) -> None:
        """Turn a temporary name into the real one; without ``force`` it must not exist, not even since we looked."""
        if self._staged(target):
            assert self._staging is not None
            temp.rename(self._staging / target.name)
            self._temps.append(self._staging / target.name)
        elif self._force:
            self._replace(temp, target)
        else:
            try:
                _claim(temp, target)
            except FileExistsError:
                raise _made_meanwhile(target) from None
            self._published.append(target)
        self._temps.remove(temp)

    def _replace(self, temp: Path, target: Path) -> None:
        """Put a file in the place of an old one. The old content of a side file is kept until all is published."""
        try:
            temp.chmod(stat.S_IMODE(target.stat().st_mode) & 0o777)
        except FileNotFoundError:
            self._published.append(target)
        else:
            if target != self._main:
                old = self._temporary(target)
                self._replaced.append((old, target))
                try:
                    os.link(target, old)
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    target.rename(old)
        os.replace(temp, target)

    def _name_directory(self, staging: Path, directory: Path) -> None:
        """Put the new directory in its place, where there is nothing, or an empty directory."""
        try:
            staging.rename(directory)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise _made_meanwhile(directory) from None
            raise

    def _clean_up(self) -> None:
        """Remove everything that has no business to stay, whatever signal comes meanwhile."""
        with deferred(late=LATE if self._complete else None):
            self._remove_all()

    def _remove_all(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        while self._replaced:
            old, target = self._replaced.pop()
            with suppress(OSError):
                os.replace(old, target)
                old.unlink()  # two names of one file: then a rename does nothing
        for path in reversed([*self._temps, *self._published]):
            with suppress(OSError):
                if path.is_dir():
                    path.rmdir()
                else:
                    path.unlink()
        self._temps.clear()
        self._published.clear()


def _through_link(path: Path) -> Path:
    return Path(os.path.realpath(path)) if os.path.islink(path) else path  # noqa: PTH114 - never raises


def _claim(temp: Path, target: Path) -> None:
    """Turn ``temp`` into ``target``; FileExistsError if that exists, even if it was made just now."""
    try:
        os.link(temp, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        temp.unlink()
        return
    # Without hard links the name is claimed by an empty file that must be new, which the rename then replaces.
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        os.replace(temp, target)
    except BaseException:
        target.unlink()
        raise


def _made_meanwhile(target: Path) -> OutputError:
    return OutputError("output.exists", "was made by somebody else meanwhile", path=target)


def _allocates(fd: int) -> bool:
    """The file system can set blocks aside. Where it cannot, the C library would write to every one of them."""
    os.posix_fallocate(fd, 0, 1)
    if not hasattr(os, "SEEK_DATA"):
        return True
    try:
        os.lseek(fd, 0, os.SEEK_DATA)
    except OSError:  # no data before the end of the file: the block is only set aside
        return True
    return False


def _check_parent(path: Path) -> None:
    if not path.parent.is_dir():
        raise OutputError("output.parent", f"the directory {path.parent} does not exist", path=path)


def _holds(path: Path, content: bytes) -> bool:
    with suppress(OSError):
        return path.stat().st_size == len(content) and path.read_bytes() == content
    return False


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot, and then need not
            raise
    finally:
        os.close(fd)


def _write_error(error: OSError, path: Path | None) -> CkconvError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return OutputError("output.space" if full else "output.write", f"cannot be written: {error.strerror}", path=path)
