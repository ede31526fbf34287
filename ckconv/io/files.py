"""Regular files, source files while read, and proof that none changed."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from ckconv.core.lazy import cached_property
from ckconv.core.metadata import NAME_KEY, OWN_KEYS, Card, SideFile, card_of_keys, card_of_text, own_in_card
from ckconv.core.tensors import Extent, Identity, MetadataKind, Tensor, TensorIndex, cut, identity
from ckconv.errors import CkconvError, InputError, OutputError, quoted, shown, unreadable
from ckconv.system import (
    CLOEXEC,
    MAX_OPEN,
    NONBLOCK,
    read_at,
    read_into,
    reads_in_order,
    reads_soon,
    reads_what_is_cached,
)
from ckconv.system.signals import State, check

if TYPE_CHECKING:
    from typing_extensions import Buffer


# -- Regular files: opened, waited for, compared -----------------------------------------------------------------------

#: A repository of the hub: owner and name.
_REPOSITORY = r"[\w-]+/[\w.-]*\w"

#: What was opened since :func:`remembered` began.
_OPENED: ContextVar[dict[Path, Identity] | None] = ContextVar("_OPENED", default=None)

#: Waits until bytes of a file are written, of files that this process is still writing.
_WAITS: ContextVar[Callable[[Path, int, int], None] | None] = ContextVar("_WAITS", default=None)


@contextmanager
def growing(wait: Callable[[Path, int, int], None]) -> Iterator[None]:
    """In the block, files may be written to while they are read."""
    token = _WAITS.set(wait)
    try:
        yield
    finally:
        _WAITS.reset(token)


def wait_for(path: Path, start: int, stop: int) -> None:
    """Wait for the bytes ``start`` to ``stop`` of a :func:`growing` file."""
    wait = _WAITS.get()
    if wait is not None:
        wait(path, start, stop)


def same_file(one: Identity, other: Identity) -> bool:
    """Whether a file did not change; its size, where files grow."""
    return one == other if _WAITS.get() is None else one[:3] == other[:3]


@contextmanager
def remembered() -> Iterator[dict[Path, Identity]]:
    """Within the block, note the identity of every file that is opened.

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
        _remember(path, status)
    except BaseException as error:
        if fd >= 0:
            close_unwritten(fd)
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            if path.is_symlink():
                message = f"is a link to {quoted(os.path.realpath(path))}, which is not there"
                raise InputError("input.missing", message, path=path) from None
            raise InputError("input.missing", "there is no such file", path=path, hint=_instead(path)) from None
        if isinstance(error, OSError):
            raise unreadable(error, path) from None
        if isinstance(error, ValueError):
            raise InputError("input.missing", "a file name cannot hold a NUL character", path=path) from None
        raise
    return fd, status


def _instead(path: Path) -> str | None:
    """A file of a similar name, as a hint for one that is not there."""
    if str(path) == "-":
        return "only inspect reads from a pipe; save the input to a file"
    from difflib import get_close_matches

    if re.fullmatch(_REPOSITORY, str(path)) and not path.parent.is_dir():
        return f"nor is it in the download cache of the hub: hf download {path}, or hf://{path} reads it there"
    try:
        names = get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=3, cutoff=0.8)
        near = [other for other in map(path.with_name, names) if other.exists()]
    except OSError:
        return None
    return f"did you mean {quoted(shown(near[0]))}?" if near else None


@contextmanager
def opened_regular(path: Path) -> Iterator[int]:
    """A descriptor of a regular file while the block runs."""
    fd, _ = open_regular(path)
    try:
        yield fd
    finally:
        close_unwritten(fd)


def there(path: Path) -> bool:
    """Whether something has this name, even a link to nothing.

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


def _remember(path: Path, status: os.stat_result) -> None:
    opened = _OPENED.get()
    if opened is not None and not same_file(opened.setdefault(path, found := identity(status)), found):
        raise OutputError("input.changed", "the file was changed while it was being read", path=path)


def _require_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise InputError("input.directory", "is a directory, a file is needed here", path=path)
    kind = next((name for test, name in SPECIAL if test(status.st_mode)), "special file")
    raise InputError(
        "input.special",
        f"is a {kind}, a regular file is needed here",
        path=path,
        found=kind,
        allowed="regular file",
        hint="save it to a file first; `ckconv inspect -` reads a pipe",
    )


def close_unwritten(fd: int) -> None:
    """Close a descriptor through which nothing was written."""
    with suppress(OSError):
        os.close(fd)


#: What a path names that is no regular file.
SPECIAL = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "FIFO"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISBLK, "block device"),
)


def is_in(fd: int, content: SideFile) -> bool:
    """Whether the file holds this and nothing else.

    Raises:
        OSError: it cannot be read.
    """
    if os.fstat(fd).st_size != len(content):
        return False
    from hashlib import sha256

    at, digest = 0, sha256()
    while data := read_at(fd, CHUNK, at):
        if isinstance(content, bytes):
            if data != content[at : at + len(data)]:
                return False
        else:
            digest.update(data)
        at += len(data)
    return at == len(content) and (isinstance(content, bytes) or digest.hexdigest() == content.sha256)


def holds(path: Path, content: SideFile) -> bool:
    """Whether ``path`` is a regular file of this content, and no link to one."""
    with suppress(OSError, CkconvError):
        if path.is_file() and not path.is_symlink():
            with opened_regular(path) as fd:
                return is_in(fd, content)
    return False


# Where a reader gets bytes from: a regular file, or a pipe that is read once and remembered.
#
# Files are read with positioned reads and never mapped: a mapped file that somebody truncates kills the
# process with SIGBUS, a short read is an error with a sentence.

#: Bytes of a pipe that are buffered, so that what lies in a header can be decoded later.
PIPE_LIMIT = 256 << 20

_PIPE_CHUNK = 1 << 20


class ByteSource:
    """Bytes at offsets.

    Attributes:
        path: what messages call the input.
        size: its length in bytes; ``None`` for a pipe whose end has not been seen.
    """

    path: Path
    size: int | None

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Read ``nbytes`` bytes from ``offset`` on; fewer at the end."""
        raise NotImplementedError

    def read_whole(self, offset: int, nbytes: int) -> bytes:
        """Read ``nbytes`` bytes that the size says are there."""
        wait_for(self.path, offset, offset + nbytes)
        data = self.read_at(offset, nbytes)
        if len(data) < nbytes:
            end = offset + len(data)
            raise OutputError(
                "input.changed",
                f"the file ends at byte {end:,}, {nbytes - len(data):,} bytes early: it has changed",
                path=self.path,
                offset=end,
            )
        return data

    def close(self) -> None:
        """Give back the descriptor. Closing twice is harmless."""

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NewHeader(ByteSource):
    """The first bytes of a file that there is not yet.

    Those behind them are zeros, as padding is.

    Args:
        size: of the whole file; without it, these bytes are all.
    """

    def __init__(self, path: Path, data: bytes, size: int | None = None) -> None:
        self.path, self.size, self._data = path, len(data) if size is None else size, data

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ByteSource.read_at`."""
        found = self._data[offset : offset + nbytes]
        return found if self.size is None else found.ljust(min(nbytes, self.size - offset), b"\0")


class FileSource(ByteSource):
    """A regular file.

    After :meth:`close` it can still be read: each read then opens the file for itself and makes sure that it
    is the same file with the same size and modification time, so that thousands of shards need no descriptors.

    Raises:
        InputError: ``input.missing``, ``input.directory``, ``input.special`` or ``input.unreadable``.
    """

    size: int

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._fd, status = open_regular(path)
        self.size = status.st_size
        self._identity = identity(status)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ByteSource.read_at`.

        Raises:
            InputError: ``input.unreadable``, a read that the system refuses (``OutputError``, ``system``, where the
                file is not at fault).
            OutputError: ``input.changed``, another file under this name than the one first opened.
        """
        nbytes = min(nbytes, self.size - offset)
        if nbytes <= 0:
            return b""
        if self._fd >= 0:
            return self._read(self._fd, offset, nbytes)
        fd, status = open_regular(self.path)
        try:
            if not same_file(identity(status), self._identity):
                raise OutputError("input.changed", "the file was changed while it was being read", path=self.path)
            return self._read(fd, offset, nbytes)
        finally:
            close_unwritten(fd)

    def _read(self, fd: int, offset: int, nbytes: int) -> bytes:
        try:
            return read_at(fd, nbytes, offset)
        except OSError as error:
            raise unreadable(error, self.path) from None

    def close(self) -> None:
        """See :meth:`ByteSource.close`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_unwritten(fd)

    def __del__(self) -> None:
        self.close()


class PipeSource(ByteSource):
    """A stream that is read once, and up to :data:`PIPE_LIMIT` bytes buffered.

    Nothing is read ahead of what is asked for but the rest of one chunk. ``size`` is set when the end is seen.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.path = Path("-")
        self.size = None
        self._stream = stream
        self._buffer = bytearray()

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ByteSource.read_at`."""
        end = offset + max(nbytes, 0)
        while self.size is None and len(self._buffer) < end:
            if len(self._buffer) >= PIPE_LIMIT:
                raise InputError(
                    "input.pipe-limit",
                    f"byte {end:,} is needed, and only the first {PIPE_LIMIT:,} bytes of a pipe are kept",
                    path=self.path,
                    found=end,
                    allowed=PIPE_LIMIT,
                    hint="save it to a file first",
                )
            self._fill(min(_PIPE_CHUNK, PIPE_LIMIT - len(self._buffer)))
        return bytes(memoryview(self._buffer)[offset:end])

    def _fill(self, nbytes: int) -> None:
        try:
            data = self._stream.read(nbytes)
        except OSError as error:
            raise unreadable(error, self.path) from None
        if data:
            self._buffer += data
        else:
            self.size = len(self._buffer)


def open_source(path: Path) -> FileSource:
    """Open a regular file for reading.

    Raises:
        InputError: ``input.missing``, ``input.directory``, ``input.special`` (a FIFO, socket or device) or
            ``input.unreadable`` (permission, a name that is too long, an I/O error).
    """
    return FileSource(path)


# Reading a header forward, a window at a time, so that memory stays bounded whatever the header declares.

#: The next step for an input that ends too early.
TRUNCATED = "the download looks truncated; fetch it again and compare its size or sha256"

#: Bytes of a window: it stays in the processor's cache between reading and parsing. Larger ones take longer.
WINDOW = 1 << 20


class Cursor:
    """A position in a source.

    Attributes:
        source: what is read.
        code: of the error of an input that ends too early.
        buffer: the window.
        base: absolute offset of the window's first byte.
        at: the position in the window; whoever skips data may set it beyond the window's end.
    """

    __slots__ = ("_window", "at", "base", "buffer", "code", "source")

    def __init__(
        self, source: ByteSource, code: str, offset: int = 0, *, first: int = WINDOW, window: int = WINDOW
    ) -> None:
        self.source, self.code = source, code
        self.base, self.at = offset, 0
        self._window = window
        self.buffer = source.read_at(offset, first)

    @property
    def path(self) -> Path:
        """The input's name."""
        return self.source.path

    @property
    def offset(self) -> int:
        """The absolute position, in bytes."""
        return self.base + self.at

    @property
    def left(self) -> int | None:
        """Bytes up to the end of the input; ``None`` while a pipe's is unknown."""
        return None if self.source.size is None else max(self.source.size - self.offset, 0)

    def has(self, nbytes: int) -> bool:
        """Bring the next ``nbytes`` bytes into the window.

        False where the input ends before.

        The caller bounds ``nbytes``: of a pipe that many are read and buffered.
        """
        if self.at + nbytes <= len(self.buffer):
            return True
        left = self.left
        if left is not None and nbytes > left:
            return False
        self.base, self.at = self.offset, 0
        self.buffer = self.source.read_at(self.base, max(nbytes, self._window))
        return nbytes <= len(self.buffer)

    def extend(self, end: int) -> bool:
        """Read on behind the window, doubling it; false at the end."""
        behind = self.base + len(self.buffer)
        nbytes = min(max(self._window, len(self.buffer)), end - behind)
        self.buffer += self.source.read_at(behind, nbytes) if nbytes > 0 else b""
        return nbytes > 0

    def reaches(self, offset: int) -> bool:
        """Whether all bytes before ``offset`` exist; reads a pipe up to there."""
        if self.source.size is None and offset > 0:
            self.source.read_at(offset - 1, 1)
        return self.source.size is None or offset <= self.source.size

    def take(self, nbytes: int) -> bytes:
        """The next ``nbytes`` bytes, which :meth:`has` has found."""
        data = self.buffer[self.at : self.at + nbytes]
        self.at += nbytes
        return data

    def need(self, nbytes: int, what: str, key: str | None = None) -> bytes:
        """The next ``nbytes`` bytes, which belong to ``what``, of a key.

        Raises:
            InputError: :attr:`code`, the input ends before.
        """
        if not self.has(nbytes):
            raise self.truncated(nbytes, of_key(what, key))
        return self.take(nbytes)

    def truncated(self, nbytes: int, what: str) -> InputError:
        """The error for an input that ends inside ``nbytes`` of ``what``."""
        left = self.left or 0
        message = f"the file ends at byte {self.offset + left:,}, inside {what}"
        return self.fault(self.code, message, found=left, allowed=nbytes, hint=TRUNCATED)

    def fault(self, code: str, message: str, **facts: Any) -> InputError:
        """An error of the input, here where no other offset is given."""
        return InputError(code, message, path=self.path, **{"offset": self.offset, **facts})


def of_key(what: str, key: str | None) -> str:
    """Part of a file, and the key that it is of."""
    return what if key is None else f"{what} {quoted(key)}"


# The pointer format: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_LFS_POINTER = rb"version https://git-lfs\.github\.com/spec/[^\n]*\n(?:[^\n]*\n)*?size ([0-9]{1,19})\n"
_LFS_START = b"version https://git-lfs"


def lfs_pointer(head: bytes) -> str | None:
    """Describe a git-lfs pointer that was never replaced by its object.

    ``is a git-lfs pointer for a 4.1 GB object``; ``None`` for any other file.

    Args:
        head: the first bytes of the file; a pointer is shorter than 1,024 bytes.
    """
    if not head.startswith(_LFS_START):
        return None
    found = re.match(_LFS_POINTER, head[:1024])
    if found is None:
        return "is a git-lfs pointer"
    return f"is a git-lfs pointer for a {_rounded(int(found[1]))} object"


def _rounded(nbytes: int) -> str:
    """In decimal units, as the sites that serve such objects count them."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes}-byte"


# Source files while they are read: opened once, whole reads or an error, and proof that nothing changed.

#: Bytes that the system is asked to read before they are needed: what a disk takes while as much is being hashed.
READ_AHEAD = 16 << 20

#: Bytes that a system reads ahead by itself: to ask whether fewer are there takes as long as to read them.
BY_ITSELF = 128 << 10

#: Bytes that are copied, compared or hashed at once: what stays in the second-level cache.
CHUNK = 1 << 20

#: Path, offset and number of bytes.
Piece = tuple[Path, int, int]

#: Called with the bytes that were just read, and the tensor that they are of.
Progress = Callable[[int, str], None]

#: (path, offset) of one and of the other, and how many bytes of both, however many.
Pair = tuple[tuple[Path, int], tuple[Path, int], int]

_ZEROS = bytes(CHUNK)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors of the system in this block into errors about a file.

    It is the file that the error names, or ``path``.

    Raises:
        InputError: ``input.unreadable``.
        OutputError: ``system``.
    """
    try:
        yield
    except OSError as error:
        named = error.filename if isinstance(error.filename, str) else path
        raise unreadable(error, named) from error


class GrowingFiles(Protocol):
    """Files that are written meanwhile."""

    @property
    def paths(self) -> Collection[Path]:
        """Which they are."""

    def wait_for(self, path: Path, start: int, stop: int) -> None:
        """Wait until the bytes ``start`` to ``stop`` of ``path`` are written."""


class _There:
    """Files being written, of which another thread waits for bytes."""

    def __init__(self, paths: Collection[Path]) -> None:
        self.paths = paths

    def wait_for(self, path: Path, start: int, stop: int) -> None:
        """Return at once: the bytes are written."""


class Files:
    """Open read-only descriptors by path, and proof that no file changed.

    Only so many are open at a time: the one used longest ago is closed, and opened again when it is needed.
    """

    def __init__(
        self,
        known: Mapping[Path, Identity] | None = None,
        growing: GrowingFiles | None = None,
        most: int = MAX_OPEN,
    ) -> None:
        """Open nothing yet.

        Args:
            known: what the files were when their headers were read.
            growing: files that this process writes meanwhile.
            most: how many may be open.
        """
        self._most = most
        self._known = dict(known or {})
        self._growing = growing
        #: Path -> descriptor, the one used longest ago first.
        self._open: dict[Path, int] = {}
        self._seen: dict[Path, os.stat_result] = {}
        self._buffers = [bytearray(), bytearray()]

    def fd(self, path: Path) -> int:
        """The descriptor of ``path``, open until too many others were asked for.

        Raises:
            InputError: ``input.missing``, ``input.special`` or ``input.unreadable``.
            OutputError: ``input.changed``, it is not the file whose header was read; ``system``.
        """
        if (fd := self._open.pop(path, -1)) < 0:
            while len(self._open) >= self._most:
                self._close_oldest()
            fd, status = self._opened(path)
            self._open[path] = fd  # whatever comes next, it will be closed
            if self._growing is not None and path in self._growing.paths:
                reads_what_is_cached(fd)
            else:
                found = identity(status)
                if self._known.setdefault(path, found) != found:
                    raise OutputError("input.changed", "the file is not the one whose header was read", path=path)
                self._seen[path] = status
                reads_in_order(fd)
        self._open[path] = fd
        return fd

    def _close_oldest(self) -> None:
        with suppress(OSError):  # nothing was written to it
            os.close(self._open.pop(next(iter(self._open))))

    def _opened(self, path: Path) -> tuple[int, os.stat_result]:
        try:
            return open_regular(path)
        except InputError as error:
            if path not in self._known or error.code == "input.unreadable":
                raise
            message = f"changed after its header was read: now it {error.message}"
            if error.code == "input.missing":
                message = "is not there any more: its header was read before"
            raise OutputError("input.changed", message, path=path) from error

    def will_need(self, path: Path, offset: int, nbytes: int) -> None:
        """Have the system read the first ``READ_AHEAD`` of these bytes ahead."""
        if nbytes > BY_ITSELF:
            reads_soon(self.fd(path), offset, min(nbytes, READ_AHEAD))

    def read_into(self, path: Path, offset: int, buffer: Buffer) -> None:
        """Fill ``buffer`` (contiguous) from byte ``offset``.

        Raises:
            InputError: ``input.unreadable``, the file cannot be read.
            OutputError: ``input.changed``, the file ends early; ``system``.
        """
        if State.number is not None:
            check()
        view = memoryview(buffer).cast("B")
        if self._growing is not None:
            self._growing.wait_for(path, offset, offset + len(view))
        done = 0
        while done < len(view):
            try:
                got = read_into(self.fd(path), view[done:], offset + done)
            except OSError as error:
                doing = f"cannot be read at byte {offset + done:,}"
                raise unreadable(error, path, doing=doing, offset=offset + done) from error
            if not got:
                raise OutputError(
                    "input.changed",
                    f"the file ends at byte {offset + done:,}, {len(view) - done:,} bytes early: it has changed",
                    path=path,
                    offset=offset + done,
                )
            done += got

    def read_run(self, extents: Iterable[Extent], start: int, buffer: Buffer) -> None:
        """Fill ``buffer`` from byte ``start`` of a run stored as several."""
        view, at = memoryview(buffer), 0
        if not view.nbytes:  # no rows: an array of none has no flat view
            return
        view = view.cast("B")
        for extent in cut(extents, start, start + len(view)):
            self.read_into(extent.path, extent.offset, view[at : at + extent.nbytes])
            at += extent.nbytes

    def are_zero(self, parts: Iterable[Piece], report: Callable[[int], None] | None = None) -> bool:
        """Whether all bytes of these pieces are zero; reads to the first other.

        Args:
            report: hears of the bytes of each piece.
        """
        for path, at, n in parts:
            while n:
                piece = self.shown(path, at, n)
                if report:
                    report(len(piece))
                if not _ZEROS.startswith(piece):
                    return False
                at, n = at + len(piece), n - len(piece)
        return True

    def are_same(self, parts: Iterable[Pair], report: Callable[[int], None] | None = None) -> bool:
        """Whether all pairs of pieces are equal; reads up to the first unequal.

        Args:
            report: hears of the bytes of each pair, counted once.
        """
        for (path, at), (other, other_at), left in parts:
            while left:
                piece = self.shown(path, at, left)
                n = len(piece)
                buffer = self._buffer(1, n)
                self.read_into(other, other_at, memoryview(buffer)[:n])
                if report:
                    report(n)
                if not buffer.startswith(piece):  # two views would be compared byte by byte
                    return False
                at, other_at, left = at + n, other_at + n, left - n
        return True

    def stores(self, extents: Iterable[Extent], start: int, data: Buffer) -> bool:
        """Whether a run stored as several holds ``data`` from ``start`` on."""
        meant, at = memoryview(data).cast("B"), 0
        for extent in cut(extents, start, start + len(meant)):
            for path, offset, n in extent_pieces(extent):
                buffer = self._buffer(0, n)
                self.read_into(path, offset, memoryview(buffer)[:n])
                if not buffer.startswith(meant[at : at + n]):
                    return False
                at += n
        return True

    def shown(self, path: Path, offset: int, nbytes: int) -> memoryview:
        """Bytes from ``offset`` on, valid until the next call.

        At least one, and at most ``nbytes`` or ``CHUNK``.
        """
        nbytes = min(nbytes, CHUNK)
        piece = memoryview(self._buffer(0, nbytes))[:nbytes]
        self.read_into(path, offset, piece)
        return piece

    @cached_property
    def pages(self) -> memoryview:
        """A buffer of whole pages, for whoever reads through this object alone.

        A copy to or from memory that starts inside a cache line costs a third more processor time.
        """
        from mmap import mmap

        return memoryview(mmap(-1, CHUNK))

    def _buffer(self, number: int, nbytes: int) -> bytearray:
        """Return buffer 0 or 1, which has at least ``nbytes``.

        What it held is overwritten by the next caller: to allocate a buffer for each call takes longer.
        """
        if len(self._buffers[number]) < nbytes:
            self._buffers[number] = bytearray(nbytes)
        return self._buffers[number]

    def wait_for(self, extents: Iterable[Extent], start: int, stop: int) -> None:
        """Wait until these bytes of a run that is stored as several are there."""
        if self._growing is not None:
            for path, offset, nbytes in cut(extents, start, stop):
                self._growing.wait_for(path, offset, offset + nbytes)

    def twin(self, most: int | None = None) -> Files:
        """Open descriptors of the same files for another thread.

        It reads only what this one has waited for.

        That no file of either changed says :meth:`check_unchanged` of both.
        """
        growing = _There(self._growing.paths) if self._growing is not None else None
        twin = Files(self._known, growing, most or self._most)
        twin._seen = self._seen
        return twin

    def check_unchanged(self) -> None:
        """Raise ``input.changed`` if a file has another size, time or identity."""
        for path, before in self._seen.items():
            now = None
            with suppress(OSError):
                now = os.fstat(self._open[path]) if path in self._open else path.stat()
            if now is None or not _same(now, before):
                raise OutputError("input.changed", "the file changed while it was being read", path=path)

    def close(self) -> None:
        """Close every descriptor."""
        while self._open:
            self._close_oldest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _same(now: os.stat_result, before: os.stat_result) -> bool:
    """Whether a file is unchanged: identity, size, times and names.

    A name more or less is a change too: of a file that was replaced under its name, what is open stays.
    """
    return (
        os.path.samestat(now, before)
        and (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        and (now.st_ctime_ns == before.st_ctime_ns or now.st_nlink != before.st_nlink)
    )


def extent_pieces(extent: Extent) -> Iterator[Piece]:
    """The bytes of an extent in pieces of at most ``CHUNK``."""
    for at in range(0, extent.nbytes, CHUNK):
        yield extent.path, extent.offset + at, min(CHUNK, extent.nbytes - at)


def runs(tensor: Tensor) -> Iterator[Extent]:
    """Where a tensor's stored bytes are."""
    if tensor.merge is not None:
        raise AssertionError(f"{tensor.name} is computed; no file has its bytes")
    for array in tensor.arrays:
        yield from array.extents


def paired_runs(one: Tensor, other: Tensor) -> Iterator[Pair]:
    """Pairs of runs of two tensors of equal size, however cut into extents."""
    left, right = runs(one), runs(other)
    first: Extent | None = None
    second: Extent | None = None
    while True:
        first, second = first or next(left, None), second or next(right, None)
        if first is None or second is None:
            return
        n = min(first.nbytes, second.nbytes)
        yield first[:2], second[:2], n
        first, second = _behind(first, n), _behind(second, n)


def _behind(extent: Extent, nbytes: int) -> Extent | None:
    """The rest of an extent behind its first bytes."""
    path, offset, size = extent
    return Extent(path, offset + nbytes, size - nbytes) if size > nbytes else None


# The card of an open model.

CARD_NAME = "README.md"

#: Bytes of a card that are looked at; its front matter is at its beginning.
_LIMIT = 1 << 20

#: Elements of an array that are read: more languages, tags or datasets than any card names.
_ELEMENTS = 64


def card_of(index: TensorIndex) -> Card:
    """The model's card, of metadata or README.md; empty if unreadable."""
    if index.metadata_kind is MetadataKind.TYPED:
        return card_of_keys({key: _plain(item) for key, item in index.metadata.items() if key.startswith("general.")})
    return card_of_text(text_of_card(index.side_files))


def text_of_card(side_files: Iterable[Path]) -> str:
    """The beginning of the README.md beside a model; empty if unreadable."""
    path = next((path for path in side_files if path.name == CARD_NAME), None)
    if path is None:
        return ""
    try:
        with open_source(path) as source:
            return source.read_at(0, _LIMIT).decode("utf-8", "replace")
    except (CkconvError, OSError):
        return ""


def own_texts(index: TensorIndex) -> dict[str, str]:
    """Texts about the model by :data:`OWN_KEYS`: keys, documents or card."""
    if index.metadata_kind is MetadataKind.DOCUMENT:
        return own_in_card(text_of_card(index.side_files))
    keys = (
        {"name": NAME_KEY} if index.metadata_kind is MetadataKind.OWN else {key: f"general.{key}" for key in OWN_KEYS}
    )
    found = {key: _plain(index.metadata.get(name)) for key, name in keys.items()}
    return {key: text for key, text in found.items() if isinstance(text, str) and text}


def _plain(item: Any) -> Any:
    """The value of a key; of an array its first elements."""
    value = getattr(item, "value", item)
    return value.head(_ELEMENTS) if hasattr(value, "head") else value


# Is the output head the embedding? The one fact about a model that only its bytes tell.


def head_is_embedding(index: TensorIndex, files: Files | None = None) -> bool:
    """Whether ``output.weight`` is ``token_embedding.weight`` byte for byte.

    The model is tied then, whatever its header says.

    Reads both until they differ, which two different matrices do at once.
    """
    head, embedding = index.tensors.get("output.weight"), index.tensors.get("token_embedding.weight")
    if head is None or embedding is None or (head.dtype, head.shape) != (embedding.dtype, embedding.shape):
        return False
    if head.merge or embedding.merge or not head.layout.same_bytes_as(embedding.layout):
        return False
    if any(len(tensor.extents) > 1 for t in (head, embedding) for tensor in (t, *t.planes)):
        return False  # stacked or fused: no head and no embedding is
    own = files or Files(index.identities)
    try:
        return own.are_same(paired_runs(head, embedding))
    finally:
        if files is None:
            own.close()
