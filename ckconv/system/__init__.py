"""Calls that only some systems have; :mod:`.portable` does the rest."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import signal

    from typing_extensions import Buffer
else:
    import _signal as signal  # enumerations of its numbers take as long as to open a small file

#: Descriptors that are open at a time: a checkpoint may have hundreds of shards, a process 256 descriptors (macOS).
MAX_OPEN = 48

#: The tests name it to have everything done by the portable half.
_FORCED = "CKCONV_PORTABLE" in os.environ


def _has(*names: str) -> bool:
    """Whether the system has these calls."""
    return not _FORCED and all(hasattr(os, name) for name in names)


#: A file that is open can be renamed and removed, as everywhere but on Windows.
MOVES_OPEN = _has("fork")

#: Names in an open directory can be made, moved and removed without its path (``openat(2)`` and its kin).
RELATIVE = MOVES_OPEN and all(
    getattr(os, name, None) in os.supports_dir_fd
    for name in ("open", "mkdir", "rename", "link", "unlink", "rmdir", "stat")
)

#: Threads can be started: not where Python is WebAssembly. The tests name the variable to have everything done without.
THREADS = sys.platform not in ("emscripten", "wasi") and "CKCONV_NO_THREADS" not in os.environ

#: It tells what of a file is in memory.
TELLS_CACHED = _has("preadv", "RWF_NOWAIT")

#: Flags for opening: no child inherits the descriptor, and bytes stay as they are (Windows would change ends of lines);
#: a FIFO does not wait; a link is an error; so is what is no directory.
CLOEXEC: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)

#: The signals by which a person, a service manager or a lost terminal ends a program.
ENDING: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)

#: What a file system says that has no locks of the kind of :func:`try_lock` (some network mounts), and a container that
#: allows none (``EPERM``, of a filter of system calls).
NO_LOCKS = (
    errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL, errno.EBADF, errno.EPERM,
)  # fmt: skip

#: What it says that cannot set blocks aside.
_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


# Positioned reading and writing


def processors() -> int:
    """How many processors this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


class RemoteReader(Protocol):
    """Reads a file that is on another machine."""

    def __call__(self, offset: int, nbytes: int, *, in_order: bool) -> bytes:
        """Bytes from ``offset`` on; whether more is likely to be read behind them."""


#: (device, inode) of a file that stands in for one on another machine -> what reads that.
ELSEWHERE: dict[tuple[int, int], RemoteReader] = {}


def _elsewhere(fd: int) -> RemoteReader | None:
    if not ELSEWHERE:
        return None
    status = os.fstat(fd)
    return ELSEWHERE.get((status.st_dev, status.st_ino))


if TYPE_CHECKING or _has("pread", "preadv", "pwrite"):

    def _read_at(fd: int, nbytes: int, offset: int) -> bytes:
        data = os.pread(fd, nbytes, offset)
        parts = [data]
        while data and (nbytes := nbytes - len(data)):
            offset += len(data)
            data = os.pread(fd, nbytes, offset)
            parts.append(data)
        return b"".join(parts) if len(parts) > 1 else data

    def _read_into(fd: int, buffer: Buffer, offset: int) -> int:
        return os.preadv(fd, [buffer], offset)

    def write_some(fd: int, content: Buffer, offset: int) -> int:
        """Write at ``offset``; the count of bytes that the system took."""
        return os.pwrite(fd, content, offset)

else:
    from ckconv.system.portable import read_at as _read_at, read_into as _read_into, write_some


def read_at(fd: int, nbytes: int, offset: int) -> bytes:
    """``nbytes`` bytes from ``offset`` on, fewer at the end only."""
    elsewhere = _elsewhere(fd)
    return _read_at(fd, nbytes, offset) if elsewhere is None else elsewhere(offset, nbytes, in_order=False)


def read_into(fd: int, buffer: Buffer, offset: int) -> int:
    """Read from ``offset`` on into ``buffer``; the count of bytes that came."""
    elsewhere = _elsewhere(fd)
    if elsewhere is None:
        return _read_into(fd, buffer, offset)
    view = memoryview(buffer).cast("B")
    data = elsewhere(offset, len(view), in_order=True)
    view[: len(data)] = data
    return len(data)


def write_at(fd: int, content: bytes, offset: int) -> None:
    """Write all of ``content``, of which a system may take less at a time."""
    view = memoryview(content)
    while len(view):
        written = write_some(fd, view, offset)
        view, offset = view[written:], offset + written


def reads_in_order(fd: int) -> None:
    """Tell the system that a file is going to be read in order."""
    if _has("posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)


def reads_what_is_cached(fd: int) -> None:
    """Turn off read-ahead, which fills pages of a growing file with zeros."""
    if _has("posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)


def reads_soon(fd: int, offset: int, nbytes: int) -> None:
    """Have the system begin to read, where it can."""
    if nbytes > 0 and _has("posix_fadvise") and not is_cached(fd, offset + nbytes - 1):
        with suppress(OSError):
            os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_WILLNEED)


def is_cached(fd: int, offset: int) -> bool:
    """Whether a byte can be read without the disk, if the system tells."""
    with suppress(OSError):  # it would wait, or the file system cannot tell
        return TELLS_CACHED and os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    return False


# Space


def allocate(fd: int, nbytes: int, holes: Iterable[tuple[int, int]]) -> None:
    """Take the blocks of a file now: a full disk is found before the work.

    Args:
        nbytes: the size that the file is going to have.
        holes: (offset, bytes) in it that take no space, in order.

    Raises:
        OSError: there is no room, or the file would be larger than one may be.
    """
    if not _has("posix_fallocate") or not nbytes:
        return
    at = 0
    try:
        for offset, length in [*holes, (nbytes, 0)]:
            if offset > at:
                if not at and not allocates(fd):
                    return
                os.posix_fallocate(fd, at, offset - at)
            at = offset + length
    except OSError as error:
        if error.errno not in _NO_ALLOCATION:
            raise


def allocates(fd: int) -> bool:
    """Whether the file system can set blocks aside without writing them."""
    os.posix_fallocate(fd, 0, 1)
    if not hasattr(os, "SEEK_DATA"):
        return True
    with suppress(OSError):  # no data before the end of the file: the block is only set aside
        os.lseek(fd, 0, os.SEEK_DATA)
        return False
    return True


if TYPE_CHECKING or _has("statvfs"):

    def free_space(directory: Path) -> int | None:
        """Bytes that a file in ``directory`` may take; ``None`` if not known."""
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize if found.f_blocks else None

else:
    from ckconv.system.portable import free_space


# Limits


def limits() -> dict[str, int]:
    """Limits of this process, by flags of ``ulimit``."""
    try:
        import resource
    except ImportError:
        return {}
    found = {}
    for flag, name in (("-v", "RLIMIT_AS"), ("-d", "RLIMIT_DATA"), ("-n", "RLIMIT_NOFILE"), ("-u", "RLIMIT_NPROC")):
        soft, _ = resource.getrlimit(getattr(resource, name)) if hasattr(resource, name) else (-1, -1)
        if soft != resource.RLIM_INFINITY and soft >= 0:
            found[flag] = soft
    return found


def limit_process(nbytes: int, seconds: int) -> None:
    """Limit memory and processor time of this process, where possible."""
    with suppress(ImportError):
        import resource

        for kind, wanted in ((resource.RLIMIT_AS, nbytes), (resource.RLIMIT_CPU, seconds)):
            _, hard = resource.getrlimit(kind)
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            with suppress(ValueError, OSError):  # macOS has no limit of addresses
                resource.setrlimit(kind, (most, most))


def require_memory(nbytes: int) -> None:
    """Ask the system for memory and give it back, or raise.

    Raises:
        MemoryError: there is none.
    """
    import mmap

    try:
        mmap.mmap(-1, nbytes).close()
    except OSError as error:
        raise MemoryError from error


# The disk


def link(path: str | Path, other: str | Path, directory: int | None = None, other_directory: int | None = None) -> None:
    """Give a file, or a link itself, another name.

    Raises:
        OSError: ``ENOSYS`` where the system has no such call; what else it says.
    """
    if not hasattr(os, "link"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if directory is None or other_directory is None:
        os.link(path, other)
    else:
        os.link(path, other, src_dir_fd=directory, dst_dir_fd=other_directory, follow_symlinks=False)


def sync(fd: int) -> None:
    """Bring a file to the disk."""
    os.fsync(fd)


def syncs_data() -> bool:
    """Whether the system syncs the bytes of a file without its dates."""
    return _has("fdatasync")


def sync_data(fd: int) -> None:
    """Bring the bytes of a file to the disk, where :func:`syncs_data`."""
    os.fdatasync(fd)


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes begun in the block hear none of :data:`ENDING`.

    This process hears of them when the block ends.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Names, processes and users


if TYPE_CHECKING or MOVES_OPEN:

    def sync_directory(path: Path, fd: int | None = None) -> None:
        """Bring the names in a directory to the disk."""
        opened = -1
        try:
            opened = os.open(path, os.O_RDONLY | CLOEXEC) if fd is None else -1
            os.fsync(opened if fd is None else fd)
        except PermissionError:  # one that may be written and not read: the names are there, and nobody can do more
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot, and then need not
                raise
        finally:
            if opened >= 0:
                with suppress(OSError):
                    os.close(opened)

    def become_directory(made: Path, place: Path) -> None:
        """Put a directory where there is nothing, or an empty directory."""
        made.rename(place)

    def try_lock(fd: int, *, shared: bool = False) -> bool:
        """Lock an open file or directory (``flock``) until it is closed.

        Args:
            shared: others may lock it so, too; a lock of the other kind that this descriptor has becomes one.

        Returns:
            ``False`` if somebody else has locked it.

        Raises:
            OSError: the file system has no locks.
        """
        import fcntl

        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_own(status: os.stat_result) -> bool:
        """Whether the file is one of the user who runs this process."""
        return status.st_uid == os.geteuid()

    def peak_memory() -> int:
        """Bytes that this process held at most; 0 where the system does not say."""
        with suppress(OSError, ValueError, StopIteration):  # ru_maxrss begins with what the caller held before its exec
            lines = Path("/proc/self/status").read_text("utf-8").splitlines()
            return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
        try:
            import resource
        except ImportError:  # WebAssembly
            return 0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def wait_for_reader(fd: int) -> None:
        """Return when a pipe that somebody made non-blocking takes bytes again."""
        import select

        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        poll.poll()

else:
    from ckconv.system.portable import become_directory, is_own, peak_memory, sync_directory, try_lock, wait_for_reader


def share_heap() -> None:
    """Have threads that start from now on allocate from one heap.

    glibc gives each its own, which keeps what is freed: a third more memory (``M_ARENA_MAX`` of mallopt(3)).
    """
    with suppress(ImportError, AttributeError, OSError, TypeError):  # no ctypes, or another C library
        import ctypes

        ctypes.CDLL(None).mallopt(-8, 1)


def c_function(folder: Path, stem: str, name: str, arguments: str) -> Callable[..., int] | None:
    """A function of a shared library that returns a size; ``None`` for none.

    Args:
        stem: of the library's file name, without what a system puts before and behind it.
        arguments: a letter for each: ``i`` int, ``q`` int64_t, ``P`` a pointer (an address, or ``None``).
    """
    import ctypes

    types = {"i": ctypes.c_int, "q": ctypes.c_int64, "P": ctypes.c_void_p}
    names = (f"lib{stem}.so", f"lib{stem}.dylib", f"{stem}.dll")
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    try:
        found = getattr(ctypes.CDLL(str(path)), name) if path else None
    except (OSError, AttributeError):
        return None
    if found is not None:
        found.argtypes, found.restype = [types[letter] for letter in arguments], ctypes.c_size_t
    return found
