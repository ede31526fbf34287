"""What outputs need of a file system: new files, space, names that clobber nothing, and errors with the file's name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ckconv.errors import NO_RESOURCES, CkconvError, OutputError, VerifyError
from ckconv.output.regular import close_unwritten, opened_regular
from ckconv.output.streamed import SideFile, is_in, pieces_of
from ckconv.system import CLOEXEC

#: What a file system says that cannot make hard links (FAT, some network mounts), or may not here (some containers).
#: What has another reason, such as a directory that may not be written to, comes again with what is done instead.
NO_LINKS = (
    errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV,
)  # fmt: skip

#: A pattern of the names that files have until they are complete.
TEMPORARY = r"\..+\.ckconv-[0-9a-f]{8}\.tmp"

#: Bytes of a name in a temporary one. It leaves room for what is added: a name may be as long as the file system allows
#: (255 bytes, almost everywhere).
CUT = 200


def through_link(path: Path) -> Path:
    """Where a symbolic link points; any other path, and a link that goes in a circle, as it is."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else path  # noqa: PTH114 - never raises


def temporary_name(parent: Path, name: str) -> Path:
    """A path in ``parent`` that nothing has, and that says what it is going to be."""
    cut = os.fsdecode(os.fsencode(name)[:CUT])
    return parent / f".{cut}.ckconv-{os.urandom(4).hex()}.tmp"


def create(path: Path) -> int:
    """A descriptor of a new file: never one that is there, and with the permissions that the user's mask leaves."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | CLOEXEC, 0o666)


def write_file(path: Path, content: SideFile) -> None:
    """Make a new file that holds ``content``, and read it again.

    Raises:
        VerifyError: ``verify.file``, it holds something else.
    """
    fd = create(path)
    try:
        for piece in pieces_of(content):
            view = memoryview(piece)
            while len(view):
                view = view[os.write(fd, view) :]
        if not is_in(fd, content):
            raise VerifyError("verify.file", "differs from what should have been written", path=path)
    except BaseException:
        close_unwritten(fd)
        raise
    close_written(fd)


def close_written(fd: int) -> None:
    """Close a descriptor; what failed to be written may be said only now.

    An interruption is no failure: the descriptor is closed all the same.
    """
    with suppress(InterruptedError):
        os.close(fd)


def holds(path: Path, content: SideFile) -> bool:
    """``path`` is a regular file with this very content."""
    with suppress(OSError, CkconvError):
        if path.is_file():
            with opened_regular(path) as fd:
                return is_in(fd, content)
    return False


def removed(path: Path, what: str = "is left over") -> list[str]:
    """Remove a file, if it is there.

    Args:
        what: what the sentence says of it.

    Returns:
        a sentence, if it cannot be removed.
    """
    return _gone(path, path.unlink, what)


def removed_directory(path: Path) -> list[str]:
    """The same for an empty directory."""
    return _gone(path, path.rmdir, "is left over")


def _gone(path: Path, remove: Callable[[], None], what: str) -> list[str]:
    try:
        remove()
    except FileNotFoundError:
        pass
    except OSError as error:
        return [not_removed(path, error, what)]
    return []


def not_removed(path: Path, error: OSError, what: str = "is left over") -> str:
    """The sentence about what is still there."""
    return f"{path} {what}; it could not be removed: {error.strerror}"


def made_meanwhile(target: Path) -> OutputError:
    """The error of a name that was free when the work began."""
    return OutputError("output.exists", "was made by another process meanwhile", path=target)


def write_code(error: OSError) -> str:
    """The code of what the system says of a write: no room, and no descriptor or memory, are kinds of their own."""
    if error.errno in NO_RESOURCES:
        return "system"
    return "output.space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "output.write"


def write_error(error: OSError, path: Path) -> OutputError:
    """What the system says of ``path``."""
    return OutputError(write_code(error), f"cannot be written: {error.strerror or error}", path=path)


@contextmanager
def syncing(output: Path) -> Iterator[None]:
    """The names of an output, all of which it has, are brought to the disk in this block.

    Raises:
        OutputError: ``output.write``.
    """
    try:
        yield
    except OSError as error:
        message = f"the output is complete and there, but its name could not be synced to the disk: {error.strerror}"
        hint = "a power loss may undo it: call sync, and verify it"
        raise OutputError(write_code(error), message, path=output, hint=hint) from error


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
