"""Stand-ins: files whose bytes are elsewhere, in a pipe or in other files."""

from __future__ import annotations

import atexit
import math
import os
import shutil
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from functools import cache
from hashlib import sha256
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

from ckconv.core.tensors import Extent
from ckconv.errors import ADDRESSES, InputError, OutputError, UnsupportedError, UsageError, code_of, shown
from ckconv.io.files import ByteSource, FileSource, open_source
from ckconv.system import ELSEWHERE
from ckconv.system.signals import blocking, check

# -- Standard input as a temporary file --------------------------------------------------------------------------------
# A pipe is read once, and a model in any order and more than once.

#: Bytes that are read at once.
_CHUNK = 1 << 20

STDIN = 0


@cache
def spooled() -> tuple[Path, int]:
    """A temporary file of standard input, removed at exit, and its size.

    Raises:
        InputError: ``input.unreadable``; ``input.empty``.
        OutputError: ``output.write`` or ``output.space``, there is no place for temporary files, or not enough.
        UsageError: ``usage``, standard input is a terminal.
    """
    root = Path(tempfile.mkdtemp(prefix="ckconv-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    path, nbytes = root / "model", 0
    ADDRESSES[str(path)] = "stdin"
    if os.isatty(STDIN):
        raise UsageError("usage", "- reads a model from a pipe, and standard input is a terminal")
    try:
        with open(path, "xb") as file:
            while True:
                check()
                with blocking():
                    data = _read()
                if not data:
                    break
                file.write(data)
                nbytes += len(data)
    except OSError as error:
        message = f"the model on standard input has no place in {root.parent}: {error.strerror}"
        hint = "TMPDIR names another place for temporary files"
        raise OutputError(code_of(error), message, hint=hint) from error
    if not nbytes:
        raise InputError("input.empty", "nothing came through the pipe", path=path)
    return path, nbytes


def _read() -> bytes:
    try:
        return os.read(STDIN, _CHUNK)
    except OSError as error:
        raise InputError("input.unreadable", f"standard input cannot be read: {error.strerror}") from error


# -- Stand-ins: empty files of the size of files whose bytes are elsewhere ---------------------------------------------
# Everything that opens, measures and lists files does so with the stand-in; reads go through :mod:`ckconv.system`,
# which asks here. Only the ranges that are read are fetched. Stand-ins are sparse files, removed at exit.

#: Bytes that are fetched at least: as long on their way as a request that asks for none.
LEAST = 64 << 10

#: Bytes of a piece that is fetched before it is read, and how many of them at once.
PIECE, AHEAD = 4 << 20, 3

#: Bytes that are cached, of all files: writing and comparing read the same ones, one behind the other.
MAX_CACHED = 48 << 20

#: Seconds between two looks whether a signal came.
PATIENCE = 0.1

#: Bytes of one file: the most that a file of ext4 has.
_LARGEST = 1 << 44


class Origin(Protocol):
    """One file elsewhere."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    @property
    def whole(self) -> bool:
        """Whether a range of the file costs as much as all of it."""

    @property
    def state(self) -> str:
        """A text that changes with the bytes; empty if unknown."""

    def fetch(self, offset: int, nbytes: int) -> bytes:
        """Bytes that are there, every one of them.

        Raises:
            OutputError: ``remote.read``, after several tries; ``input.changed``, it is another file now.
        """


class RangeCache:
    """Cache of fetched bytes: at most :data:`MAX_CACHED`, the last used."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: (file, first byte) -> how many bytes, and what they are; the ones used longest ago first.
        self._found: dict[tuple[Origin, int], tuple[int, Future[bytes]]] = {}
        self._nbytes = 0

    def holding(self, origin: Origin, offset: int) -> tuple[int, int, Future[bytes]] | None:
        """First byte, size and content of the piece with the byte at ``offset``."""
        for (owner, start), (nbytes, _) in self._found.items():
            if owner is origin and start <= offset < start + nbytes:
                found = self._found.pop((owner, start))
                self._found[owner, start] = found
                return start, *found
        return None

    def until(self, origin: Origin, offset: int, end: int) -> int:
        """The next cached byte behind ``offset``, at most ``end``."""
        return min((at for owner, at in self._found if owner is origin and offset < at < end), default=end)

    def add(self, origin: Origin, start: int, nbytes: int, found: Future[bytes]) -> None:
        """Keep what is being fetched, and let go of what was not used for long."""
        self.forget(origin, start)
        self._found[origin, start] = (nbytes, found)
        self._nbytes += nbytes
        while self._nbytes > MAX_CACHED and len(self._found) > 1:
            self._nbytes -= self._found.pop(next(iter(self._found)))[0]

    def forget(self, origin: Origin, start: int) -> None:
        """Forget a piece: a failed one is fetched again if asked for."""
        nbytes, _ = self._found.pop((origin, start), (0, None))
        self._nbytes -= nbytes


_CACHE = RangeCache()


def keep(origin: Origin, first: bytes) -> None:
    """Keep the first bytes of a file, which came along with its size."""
    found: Future[bytes] = Future()
    found.set_result(first)
    with _CACHE.lock:
        _CACHE.add(origin, 0, len(first), found)


class RangeReader:
    """Ranges of one file, fetched once while cached, in order ahead."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._end = -1

    def read(self, offset: int, nbytes: int, *, in_order: bool) -> bytes:
        """Bytes from ``offset`` on, fewer at the end of the file.

        Args:
            in_order: more is likely to be read behind them.
        """
        nbytes = min(nbytes, self._origin.size - offset)
        parts = []
        while nbytes > 0:
            with _CACHE.lock:
                start, found = self._piece(offset, nbytes, in_order)
            try:
                while not found.done():  # whoever waits for a server hears of a signal
                    check()
                    wait((found,), PATIENCE)
                part = found.result()[offset - start :][:nbytes]
            except BaseException:
                with _CACHE.lock:
                    _CACHE.forget(self._origin, start)
                raise
            parts.append(part)
            offset, nbytes = offset + len(part), nbytes - len(part)
        return b"".join(parts)

    def _piece(self, offset: int, nbytes: int, in_order: bool) -> tuple[int, Future[bytes]]:
        """The piece with the byte at ``offset``; further ones are fetched ahead."""
        follows = in_order and offset == self._end
        start, size, found = self._at(offset, max(nbytes, PIECE if follows else LEAST))
        self._end = offset + nbytes
        behind = start + size
        for _ in range(AHEAD if size >= PIECE and in_order else 0):
            if behind < self._origin.size:
                at, more, _ = self._at(behind, PIECE)
                behind = at + more
        return start, found

    def _at(self, offset: int, nbytes: int) -> tuple[int, int, Future[bytes]]:
        known = _CACHE.holding(self._origin, offset)
        if known is not None:
            return known
        if self._origin.whole:
            offset, nbytes = 0, self._origin.size
        else:
            end = min(offset + nbytes, self._origin.size)
            nbytes = _CACHE.until(self._origin, offset, end) - offset
        found = _begun(self._origin, offset, nbytes)
        _CACHE.add(self._origin, offset, nbytes, found)
        return offset, nbytes, found


def _begun(origin: Origin, offset: int, nbytes: int) -> Future[bytes]:
    """Start to fetch in a daemon thread, so that exit waits for no server."""
    found: Future[bytes] = Future()

    def fetch() -> None:
        try:
            found.set_result(origin.fetch(offset, nbytes))
        except BaseException as error:
            found.set_exception(error)

    try:
        threading.Thread(target=fetch, name="ckconv-remote", daemon=True).start()
    except RuntimeError as error:
        raise OutputError("system", f"a thread cannot be started: {error}") from error
    return found


class LocalOrigin:
    """A file put together on this machine, neither fetched ahead nor cached."""

    size: int

    def fetch(self, offset: int, nbytes: int) -> bytes:
        """See :class:`Origin`."""
        raise NotImplementedError

    def read(self, offset: int, nbytes: int, *, in_order: bool) -> bytes:
        """See :meth:`RangeReader.read`."""
        return self.fetch(offset, max(0, min(nbytes, self.size - offset)))


def stand_in(url: str, name: str, files: Mapping[str, Origin]) -> Path:
    """Make a directory of stand-ins, called ``name``, for ``files``.

    Returns their paths in it, and what reads them.

    Args:
        url: what messages call the directory.
    """
    for path, origin in files.items():
        if origin.size >= _LARGEST:
            message = f"the server says that {path} has {origin.size:,} bytes, which no file has"
            raise UnsupportedError("remote.ranges", message, path=url)
    folders = {folder.as_posix() for path in files for folder in PurePosixPath(path).parents}
    if both := sorted(folders & files.keys()):
        raise InputError("input.special", f"the listing has {both[0]} as a file and as a directory", path=url)
    try:
        root = tempfile.mkdtemp(prefix="ckconv-")
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        directory = Path(root, name)
        for folder in ("", *(os.path.dirname(path) for path in files)):
            (directory / folder).mkdir(parents=True, exist_ok=True)
        for path, origin in files.items():
            with open(directory / path, "xb") as file:
                file.truncate(origin.size)
                status = os.fstat(file.fileno())
                near = origin if isinstance(origin, LocalOrigin) else RangeReader(origin)
                ELSEWHERE[status.st_dev, status.st_ino] = near.read
            if origin.state:  # whoever opens it here and elsewhere, or once more, sees whether it is the same
                when = int.from_bytes(sha256(origin.state.encode()).digest()[:7], "big")
                os.utime(directory / path, ns=(when, when))  # by its name: Windows takes no descriptor
    except OSError as error:
        message = f"there is no place for temporary files: {error.strerror}"
        raise OutputError("output.write", message, path=error.filename) from error
    ADDRESSES[str(directory)] = shown(url).rstrip("/")
    return directory


# Ranges of files behind HTTP: several tries, and proof that every answer is of the same file.


# -- A virtual file: runs of other files, and tensors cut over several -------------------------------------------------
# A stand-in (:mod:`ckconv.io.standins`) has its size, and what is read of it is put together here: whatever reads files
# reads shards of a training run, members of an archive and a model behind a program as files of their own.


class Box(NamedTuple):
    """A part of a tensor whose rows lie in one run.

    Attributes:
        extent: where.
        start, shape: of the part in the tensor, outermost axis first; it ends within the first axis, and within one
            other at most.
    """

    extent: Extent
    start: tuple[int, ...]
    shape: tuple[int, ...]


class Assembly(NamedTuple):
    """A tensor ``shape`` of elements of ``size`` bytes, of parts that fill it."""

    shape: tuple[int, ...]
    size: int
    boxes: Sequence[Box]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.size


class SwappedRun(NamedTuple):
    """A run of another file with the bytes of its numbers in the other order.

    Attributes:
        extent: where.
        period: bytes from one block to the next; the run is whole blocks.
        numbers: in a block, where each number begins, and its bytes.
    """

    extent: Extent
    period: int
    numbers: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the run."""
        return self.extent.nbytes


#: What a file consists of: bytes, a run of another file, as it is or turned, or a tensor of several.
Part = bytes | Extent | SwappedRun | Assembly


class Pieces(LocalOrigin):
    """The file: see :class:`ckconv.io.standins.Origin`."""

    whole = False

    def __init__(self, parts: Sequence[Part]) -> None:
        """Nothing is opened yet."""
        self._parts = [part for part in parts if _nbytes(part)]
        self._ends = [*accumulate(map(_nbytes, self._parts))]
        self._sources: dict[Path, FileSource] = {}
        self.size = self._ends[-1] if self._ends else 0
        self.state = ""

    def fetch(self, offset: int, nbytes: int) -> bytes:
        """See :class:`ckconv.io.standins.Origin`."""
        out = bytearray(nbytes)
        at = 0
        number = bisect_right(self._ends, offset)
        while at < nbytes:
            part = self._parts[number]
            first = offset + at - (self._ends[number] - _nbytes(part))
            many = min(nbytes - at, _nbytes(part) - first)
            view = memoryview(out)[at : at + many]
            if isinstance(part, bytes):
                view[:] = part[first : first + many]
            elif isinstance(part, Extent):
                view[:] = self._read(part, first, many)
            elif isinstance(part, SwappedRun):
                view[:] = self._turned(part, first, many)
            else:
                for box in part.boxes:
                    self._put(box, part, first, view)
            at, number = at + many, number + 1
        return bytes(out)

    def _turned(self, part: SwappedRun, first: int, nbytes: int) -> bytes:
        """Bytes of whole blocks, cut to those that are asked for."""
        begin = first - first % part.period
        data = bytearray(self._read(part.extent, begin, first + nbytes + -(first + nbytes) % part.period - begin))
        for at, size in part.numbers:
            for low, high in zip(range(at, at + size // 2), range(at + size - 1, at, -1), strict=False):
                data[low :: part.period], data[high :: part.period] = (
                    data[high :: part.period],
                    data[low :: part.period],
                )
        return bytes(data[first - begin :][:nbytes])

    def _put(self, box: Box, whole: Assembly, first: int, view: memoryview) -> None:
        """Copy the bytes of a part into ``view``, which begins at ``first``."""
        axis = max((n for n, own in enumerate(box.shape) if own != whole.shape[n]), default=0)
        inner = math.prod(whole.shape[axis + 1 :]) * whole.size
        # The part is runs of ``run`` bytes, which begin ``pitch`` bytes after each other in the tensor.
        run, pitch = box.shape[axis] * inner if box.shape else whole.size, math.prod(whole.shape[axis:]) * whole.size
        begin = box.start[axis] * inner if box.start else 0
        count = math.prod(box.shape[:axis])
        if axis:
            begin += box.start[0] * math.prod(whole.shape[1:axis]) * pitch
        low = max(0, -(-(first - begin - run + 1) // pitch))
        high = min(count, -(-(first + len(view) - begin) // pitch))
        if low >= high:
            return
        # Of the first and the last run only what is asked for is read: one may be the whole part.
        source = low * run + max(0, first - begin - low * pitch)
        until = (high - 1) * run + min(run, first + len(view) - begin - (high - 1) * pitch)
        stored = self._read(box.extent, source, until - source)
        for number in range(low, high):
            place, at = begin + number * pitch - first, number * run - source
            skip, end = max(0, -place), min(run, len(view) - place)
            view[place + skip : place + end] = stored[at + skip : at + end]

    def _read(self, extent: Extent, offset: int, nbytes: int) -> bytes:
        source = self._sources.get(extent.path)
        if source is None:
            source = self._sources[extent.path] = open_source(extent.path)
            source.close()  # it opens for each read, and sees whether the file is another one
        data = source.read_at(extent.offset + offset, nbytes)
        if len(data) < nbytes:
            raise OutputError("input.changed", "the file ends early: it has changed", path=extent.path)
        return data


def _nbytes(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else part.nbytes


class Window(ByteSource):
    """A run of another source, as one of its own."""

    def __init__(self, source: ByteSource, offset: int, nbytes: int) -> None:
        """The other one stays open."""
        self.path, self.size = source.path, nbytes
        self.offset, self._source = offset, source

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ByteSource.read_at`."""
        assert self.size is not None
        return self._source.read_at(self.offset + offset, min(nbytes, max(0, self.size - offset)))
