"""Regular files, opened for reading: whatever has the name, nothing waits and nothing is set off."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from ckconv.core.tensors import Identity, identity
from ckconv.errors import InputError, OutputError, quoted, shown, unreadable
from ckconv.system import CLOEXEC, NONBLOCK

#: What was opened since :func:`remembered` began.
_OPENED: ContextVar[dict[Path, Identity] | None] = ContextVar("_OPENED", default=None)


#: Waits until a file is written up to a byte, of files that this process is still writing.
_WAITS: ContextVar[Callable[[Path, int], None] | None] = ContextVar("_WAITS", default=None)


@contextmanager
def growing(wait: Callable[[Path, int], None]) -> Iterator[None]:
    """Within the block, files may be written to while they are read; see :func:`wait_for`."""
    token = _WAITS.set(wait)
    try:
        yield
    finally:
        _WAITS.reset(token)


def wait_for(path: Path, until: int) -> None:
    """Wait until the bytes before ``until`` are there, of a file that is :func:`growing`."""
    wait = _WAITS.get()
    if wait is not None:
        wait(path, until)


def same_file(one: Identity, other: Identity) -> bool:
    """The file did not change; its size at least did not, where files are :func:`growing`."""
    return one == other if _WAITS.get() is None else one[:3] == other[:3]


@contextmanager
def remembered() -> Iterator[dict[Path, Identity]]:
    """Within the block, note what every file is that :func:`open_regular` opens, by its open descriptor.

    A name that is looked up once more may lead to another file than the one that was read.
    """
    outer, opened = _OPENED.get(), dict[Path, Identity]()
    token = _OPENED.set(opened)
    try:
        yield opened
    finally:
        _OPENED.reset(token)
        if outer is not None:
            outer.update(opened)


def open_regular(path: Path) -> tuple[int, os.stat_result]:
    """Open a regular file.

    The kind is asked twice: opening some devices has side effects, and the name may be replaced in between;
    ``NONBLOCK`` keeps a FIFO that appears then from blocking the open.

    Raises:
        InputError: ``input.missing``, ``input.directory``, ``input.special`` (a FIFO, socket or device) or
            ``input.unreadable`` (permission, a name that is too long, an I/O error).
        OutputError: ``input.changed``, within :func:`remembered`: the file was another one when it was opened before.
    """
    fd = -1
    try:
        _require_regular(path, path.stat())
        fd = os.open(path, os.O_RDONLY | CLOEXEC | NONBLOCK)
        status = os.fstat(fd)
        _require_regular(path, status)
        _remember(path, identity(status))
    except BaseException as error:
        if fd >= 0:
            close_unwritten(fd)
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            if path.is_symlink():
                message = f"it is a link, and leads to {quoted(os.path.realpath(path))}, which is not there"
                raise InputError("input.missing", message, path=path) from None
            raise InputError("input.missing", "there is no such file", path=path, hint=_instead(path)) from None
        if isinstance(error, OSError):
            raise unreadable(error, path) from None
        if isinstance(error, ValueError):
            raise InputError("input.missing", "a file name cannot hold a NUL character", path=path) from None
        raise
    return fd, status


def _instead(path: Path) -> str | None:
    """What was perhaps meant by a file that is not there."""
    if str(path) == "-":
        return "only inspect reads from a pipe; save the input to a file"
    from difflib import get_close_matches

    try:
        names = get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=3, cutoff=0.8)
        near = [other for other in map(path.with_name, names) if other.exists()]
    except OSError:
        return None
    return f"did you mean {quoted(shown(near[0]))}?" if near else None


@contextmanager
def opened_regular(path: Path) -> Iterator[int]:
    """A descriptor of a regular file while the block runs, as :func:`open_regular`."""
    fd, _ = open_regular(path)
    try:
        yield fd
    finally:
        close_unwritten(fd)


def there(path: Path) -> bool:
    """Something has this name, a link to nothing too.

    Raises:
        InputError: ``input.unreadable``, the system does not tell.
        OutputError: ``system``.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # nothing is called what holds a NUL
        return False
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise unreadable(error, path) from None
    return True


def _remember(path: Path, found: Identity) -> None:
    opened = _OPENED.get()
    if opened is not None and not same_file(opened.setdefault(path, found), found):
        raise OutputError("input.changed", "the file was changed while it was being read", path=path)


def _require_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise InputError("input.directory", "is a directory, a file is needed here", path=path)
    kind = next((name for test, name in _SPECIAL if test(status.st_mode)), "special file")
    raise InputError(
        "input.special",
        f"is a {kind}, a regular file is needed here",
        path=path,
        found=kind,
        allowed="regular file",
        hint="save it to a file first; `ckconv inspect -` reads a pipe",
    )


def close_unwritten(fd: int) -> None:
    """Close a descriptor through which nothing was written: whatever the system says, nothing is lost."""
    with suppress(OSError):
        os.close(fd)


_SPECIAL = (
    (stat.S_ISFIFO, "FIFO"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISBLK, "block device"),
)
