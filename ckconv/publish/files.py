"""New files, checks of their paths, directories by descriptor, locks."""

from __future__ import annotations

import errno
import os
import shlex
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ckconv.core.metadata import SideFile, pieces_of
from ckconv.errors import OutputError, UsageError, VerifyError, code_of, shown
from ckconv.io.files import close_unwritten, holds, is_in
from ckconv.system import (
    CLOEXEC,
    DIRECTORY,
    MOVES_OPEN,
    NO_LOCKS,
    NOFOLLOW,
    NONBLOCK,
    RELATIVE,
    become_directory,
    free_space,
    is_own,
    link,
    read_at,
    sync,
    sync_directory,
    try_lock,
    write_at,
)
from ckconv.system.signals import check, noted

# -- What an output needs of a file system -----------------------------------------------------------------------------

#: Bytes of a name in a temporary one. It leaves room for what is added: a name may be as long as the file system allows
#: (255 bytes, almost everywhere).
CUT = 200


def create(path: Path) -> int:
    """A descriptor of a new file, never of one that is there."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | CLOEXEC, 0o666)


def write_file(fd: int, content: SideFile, path: Path) -> None:
    """Write a new file, bring it to the disk, compare and close it."""
    at = 0
    try:
        for piece in pieces_of(content):
            write_at(fd, piece, at)
            at += len(piece)
            if at < len(content):  # merges of a large vocabulary take seconds to make
                check()
        sync(fd)
        if not is_in(fd, content):
            raise VerifyError("verify.file", "differs from what should have been written", path=path)
    except BaseException:
        close_unwritten(fd)
        raise
    close_written(fd)


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file whole: its name appears, or is replaced, at once.

    Raises:
        OutputError: ``output.write``, ``output.space``.
    """
    place = path.with_name(f".{path.name[: CUT // 4]}.{os.getpid()}")
    with failing(path):
        try:
            write_file(create(place), data, place)
            place.replace(path)
        except BaseException:
            removed(place)
            raise


def close_written(fd: int) -> None:
    """Close a descriptor; what failed to be written may be said only now.

    An interruption is no failure: the descriptor is closed all the same.
    """
    with suppress(InterruptedError):
        os.close(fd)


def removed(path: Path) -> list[str]:
    """Remove a file, if it is there.

    Returns:
        a sentence, if it cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return [f"{path} is left over; it could not be removed: {error.strerror}"]
    return []


def shared_with(sources: Iterable[Path]) -> int:
    """The permissions of a file that holds all that is in these files.

    Its owner may do anything. Those who may read may also do what the user's mask leaves them.
    """
    allowed = 0o777
    for source in sources:
        with suppress(OSError):  # it is not there
            mode = source.stat().st_mode
            allowed &= 0o700 | (0o070 if mode & 0o040 else 0) | (0o007 if mode & 0o004 else 0)
    return allowed


def made_meanwhile(target: Path) -> OutputError:
    """The error of a name that was free when the work began."""
    return OutputError("output.exists", "was made by another process meanwhile", path=target)


def write_error(error: OSError, path: Path) -> OutputError:
    """The error of a failed write to ``path``."""
    return OutputError(code_of(error), f"cannot be written: {error.strerror or error}", path=path)


@contextmanager
def syncing(output: Path) -> Iterator[None]:
    """Names of a complete output are brought to the disk in this block.

    Raises:
        OutputError: ``output.write``.
    """
    try:
        yield
    except OSError as error:
        message = f"the output is complete and there, but its name could not be synced to the disk: {error.strerror}"
        hint = "a power loss may undo it: call sync, and verify it"
        raise OutputError(code_of(error), message, path=output, hint=hint) from error


@contextmanager
def failing(path: Path) -> Iterator[None]:
    """Turn what the system says in this block into an error about ``path``.

    Raises:
        OutputError: ``output.space`` or ``output.write``.
    """
    try:
        yield
    except OSError as error:
        raise write_error(error, path) from error


# -- Checks of the paths of outputs, before anything is written --------------------------------------------------------

#: Side file -> the flag of ``convert`` that says where it goes.
_PLACE_FLAGS = {"config.json": "--config-out", "weights_manifest.json": "--manifest"}


def check_place(directory: Path) -> None:
    """Check that files can be put into a directory, or it can be made.

    Raises:
        OutputError: ``output.parent``; ``output.exists``, it is not a directory.
    """
    check_parent(directory)
    if os.path.lexists(directory) and not directory.is_dir():
        raise OutputError("output.exists", "exists and is not a directory", path=directory)


def check_directory(directory: Path, *, force: bool) -> bool:
    """Whether ``directory`` is made anew and gets its name in one step.

    Else its files get their names one by one.

    Raises:
        OutputError: ``output.parent``; ``output.exists``, it is not a directory, or not empty and not to be filled.
    """
    check_place(directory)
    if not os.path.lexists(directory):
        return True
    with failing(directory):
        empty = not any(directory.iterdir())
    if not empty and not force:
        raise OutputError(
            "output.exists",
            "the directory exists and is not empty",
            path=directory,
            hint="--force writes into it; files of the same name are replaced",
        )
    return empty and _is_replaceable(directory)


def followed(path: Path, *, force: bool, typed: bool = True) -> Path:
    """The place of an output: where a named link leads, with ``force``.

    Args:
        typed: as it stands, and not made of something else, which may be no link at all.
    """
    with failing(path):
        if not os.path.islink(path):  # noqa: PTH114 - never raises
            return path
        real, link = Path(os.path.realpath(path)), path.lstat()
        leads = f"is a link to {path.readlink()}{'' if os.path.lexists(real) else ', which is not there'}"
    if real.is_symlink():
        raise OutputError("output.special", "is a link that goes in a circle", path=path)
    if link.st_uid and not is_own(link):
        raise OutputError("output.special", f"is a link of another user to {real}", path=path, hint="name that place")
    if not typed:
        raise OutputError("output.exists", leads, path=path, hint="remove the link, or name another place")
    if not force:
        hint = f"--force writes there; or name {shlex.quote(str(real))}, or remove the link"
        raise OutputError("output.exists", leads, path=path, hint=hint)
    return real


def check_folder(path: Path) -> None:
    """Check that a directory inside an output is one, or can be made."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        what = "is a link" if path.is_symlink() else "is not a directory"
        raise OutputError("output.parent", f"{what}, and a directory of that name is part of the output", path=path)


def _is_replaceable(directory: Path) -> bool:
    """Whether a new directory can take the place of this one."""
    with suppress(OSError):
        here = directory.samefile(os.curdir)
        return not here and not directory.is_mount() and os.access(directory.parent, os.W_OK | os.X_OK)
    return False


def check_target(target: Path, content: SideFile | None, *, force: bool, inputs: Iterable[Path]) -> None:
    """Check that a file can be made or replaced.

    Args:
        content: what a side file is going to hold; one that holds it already is fine.
        force: replace what is there.
        inputs: files that are never replaced.

    Raises:
        OutputError: ``output.exists``, ``output.directory``, ``output.parent``, ``output.special``,
            ``output.is-input`` or ``output.write``.
    """
    check_parent(target)
    try:
        found = target.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_error(error, target) from error
    for source in inputs:
        with suppress(OSError):
            if os.path.samestat(found, source.stat()):
                message = f"is the input {source}, which is never written to"
                raise OutputError("output.is-input", message, path=target, hint="name another place")
    with suppress(OSError):
        if os.path.samestat(found, read := os.fstat(0)) and stat.S_ISREG(read.st_mode):
            message = "is the file that standard input reads, which is never written to"
            raise OutputError("output.is-input", message, path=target, hint="name another place")
    if stat.S_ISDIR(found.st_mode):
        raise OutputError(
            "output.directory", "is a directory", path=target, hint=f"name a file in it, or {target}/ for all of them"
        )
    is_link = stat.S_ISLNK(found.st_mode)
    if not (stat.S_ISREG(found.st_mode) or is_link):
        raise OutputError("output.special", "exists and is not a regular file", path=target)
    if force or (content is not None and holds(target, content)):
        return
    if is_link:
        message = f"is a link to {target.readlink()}, and no file of an output is written through one"
        raise OutputError("output.exists", message, path=target, hint="--force replaces the link; or remove it")
    hint = "--force replaces it"
    if content is not None:
        flag = _PLACE_FLAGS.get(target.name)
        elsewhere = f", or another place for it ({flag})" if flag else ""
        hint = f"name a directory for the output (DST/){elsewhere}; {hint}"
    raise OutputError("output.exists", "exists already", path=target, hint=hint)


def check_gone(targets: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Check that nothing is taken away that is read."""
    inputs = tuple(inputs)
    for target in targets:
        for source in inputs:
            with suppress(OSError):
                if target.samefile(source):
                    message = f"is the input {source}, and loaders would take it for part of the output"
                    raise OutputError("output.is-input", message, path=target, hint="name another directory")


def check_different(targets: Iterable[Path]) -> None:
    """Check that no two outputs are one file, as links may make them."""
    seen, targets = dict[tuple[str, str], Path](), [*targets]
    parents = {parent: os.path.realpath(parent) for parent in {target.parent for target in targets}}
    for target in targets:
        other = seen.setdefault((parents[target.parent], target.name), target)
        if other is not target:
            raise OutputError("output.special", f"is the same file as {other}", path=target)


def check_room(needs: Iterable[tuple[Path, Path, int]]) -> None:
    """Check that every file system has room for what goes there.

    Args:
        needs: (directory, target, bytes) of each file; of several on a file system the error names the directory.
    """
    per_device: dict[int, list[tuple[Path, Path, int]]] = {}
    for parent, target, nbytes in needs:
        per_device.setdefault(parent.stat().st_dev, []).append((parent, target, nbytes))
    for files in per_device.values():
        free, need = free_space(files[0][0]), sum(nbytes for _, _, nbytes in files)
        if free is not None and need > free:
            _, path, _ = max(files, key=lambda file: file[2])
            what = "" if len(files) == 1 else f" for {len(files):,} files"
            raise OutputError(
                "output.space",
                f"needs {need:,} bytes{what}, {free:,} are free",
                path=path.parent if what else path,
                found=free,
                allowed=need,
            )


def check_parent(path: Path) -> None:
    """Check that the directory which is to hold ``path`` is there."""
    with failing(path):
        if path.parent.is_dir():
            return
    there = os.path.lexists(path.parent)
    if not there and "://" in shown(path):
        raise UsageError("usage.target", "goes to a local path only", path=path, hint="copy it there afterwards")
    message = f"{path.parent} is not a directory" if there else f"the directory {path.parent} does not exist"
    hint = None if there else f"mkdir -p {shlex.quote(str(path.parent))}"
    raise OutputError("output.parent", message, path=path, hint=hint)


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
LOCK = ".ckconv.lock"

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
    locks, left, known = list[tuple[Path, int]](), list[str](), dict[tuple[int, int], Path]()
    with noted():
        try:
            for directory in directories:
                with failing(directory):
                    status = directory.stat()
                known.setdefault((status.st_dev, status.st_ino), directory)
            for _, directory in sorted(known.items()):
                until, path = time.monotonic() + PATIENCE, directory / LOCK
                while (fd := _take(path)) is None:
                    check()
                    if time.monotonic() > until:
                        message = f"another run of ckconv has been publishing its files here for {PATIENCE:.0f} s"
                        raise OutputError("output.busy", message, path=directory, hint="wait until it ends, or end it")
                    time.sleep(0.005)
                locks.append((path, fd))
            yield left
        finally:
            for path, fd in reversed(locks):
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
                raise OutputError(code_of(error), message, path=path, details=left) from error
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
