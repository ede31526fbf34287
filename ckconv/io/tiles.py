"""Parallel computation of a tensor's pieces; rows cached for comparison."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from itertools import chain, islice
from pathlib import Path
from threading import Event, Lock, local
from typing import TYPE_CHECKING, Generic, TypeVar

from ckconv.core.lazy import Floats, NamedTuple, Rows, replace
from ckconv.core.tensors import Tensor
from ckconv.errors import UsageError
from ckconv.io.files import Files
from ckconv.quant.convert import Action, Conversion, made_by_library, noted_aside
from ckconv.system import THREADS, processors

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

# Pieces of one tensor made side by side, and given in their order: what is computed does not depend on how many.
#
# Libraries that quantize release the interpreter's lock, so threads share the work. Each has a reader and descriptors
# of its own, and only a few pieces more than there are threads are made before somebody takes the first one: that
# bounds memory.

R = TypeVar("R")
T = TypeVar("T")

#: More threads than this only cost memory: one stream of bytes is hashed and written behind them.
MAX_JOBS = 64

#: Finished pieces beyond one for each thread: the thread that takes them does other things meanwhile.
BEHIND = 3


#: How many pieces are made at once; ``--jobs`` of what this thread, or the one that started it, carries out.
_JOBS: ContextVar[int] = ContextVar("_JOBS", default=1)


@contextmanager
def at_once(jobs: int | None) -> Iterator[None]:
    """Make ``jobs`` pieces side by side; ``None``: as many as processors."""
    if jobs is not None and jobs < 1:
        raise UsageError("usage.flag", f"jobs is {jobs}, and at least one is needed")
    token = _JOBS.set(min(processors() if jobs is None else jobs, MAX_JOBS))
    try:
        yield
    finally:
        _JOBS.reset(token)


def made_at_once() -> int:
    """How many pieces that is."""
    return _JOBS.get()


def threads(count: int) -> ThreadPoolExecutor | None:
    """A pool of threads; ``None`` in WebAssembly or at a user's limit."""
    if not THREADS:
        return None
    from concurrent.futures import ThreadPoolExecutor

    pool, begun = ThreadPoolExecutor(count), Event()
    try:
        for _ in range(count):
            pool.submit(begun.wait)
    except RuntimeError:
        begun.set()
        pool.shutdown()
        return None
    begun.set()
    return pool


def is_in_steps(tensor: Tensor, conversion: Conversion) -> bool:
    """Whether numpy converts: in steps so short that threads gain nothing.

    Each step of some 20 us gives up the interpreter's lock and takes it again: two threads need 1 to 1.3 times as long
    as one, and eight 2 to 5 times. A library quantizes a piece in one call, and a merge is many steps over much memory.
    """
    return tensor.merge is None and not (conversion.action is Action.QUANTIZE and made_by_library(conversion.target))


class SideBySide(Generic[R]):
    """Makes pieces, each with a reader that no other thread uses.

    Attributes:
        readers: all that were made; the first is that of the calling thread.
    """

    def __init__(self, make: Callable[[Files], R], files: Files) -> None:
        self._make, self._files = make, files
        self.readers = [make(files)]

    @property
    def first(self) -> R:
        """The calling thread's reader."""
        return self.readers[0]

    def each(self, pieces: Iterable[Callable[[R], T]], *, alone: bool = False) -> Generator[T, None, None]:
        """Yield the results of pieces, in order.

        To be closed, or the threads wait until it is collected.

        Args:
            alone: the calling thread does all of it (:func:`is_in_steps`).

        Raises:
            CkconvError: whatever a piece raises, where its turn comes; or of a thread's files, when all are made.
        """
        waiting = iter(pieces)
        head = list(islice(waiting, 2))
        count = made_at_once()
        pool = threads(count) if len(head) > 1 and count > 1 and not alone else None
        if pool is None:
            for piece in chain(head, waiting):
                yield piece(self.first)
            return
        own, twins = local(), list[Files]()

        def made(piece: Callable[[R], T]) -> tuple[T, list[Callable[[], None]]]:
            with noted_aside() as notes:
                if not hasattr(own, "reader"):
                    twins.append(self._files.twin())
                    own.reader = self._make(twins[-1])
                    self.readers.append(own.reader)
                return piece(own.reader), notes

        results: deque[Future[tuple[T, list[Callable[[], None]]]]] = deque()
        try:
            for piece in chain(head, waiting):
                results.append(pool.submit(copy_context().run, made, piece))
                if len(results) >= count + BEHIND:
                    yield _taken(results.popleft())
            while results:
                yield _taken(results.popleft())
            for files in twins:
                files.check_unchanged()
        finally:
            pool.shutdown(cancel_futures=True)
            for files in twins:
                files.close()


def _taken(result: Future[tuple[T, list[Callable[[], None]]]]) -> T:
    """The result of a piece; its notes are made now, in the order of pieces."""
    made, notes = result.result()
    for note in notes:
        note()
    return made


# Rows that were just converted, cached for whoever compares them with what is read back of them.
#
# Decoding, packing blocks again and above all quantizing take longer than writing and hashing what comes out. A tile is
# known by the rows of the source that it was made of, not by where it was written: the reader of the output says where
# each of its tensors is, a piece that was written in the wrong place is another row there, and what is not found is
# converted again.

_Place = tuple[tuple[Path, int] | int, int | None, int, bool]

#: Bytes that are cached beside those that are made at once: what may be written and not read again yet, and more.
MOST = 12 << 20

#: Bytes of a tile of those that are made at once, at most about: quantized rows, of fewer bytes than what they are of.
EACH = 1 << 20

#: What takes longer than to look whether it was done.
SLOW = frozenset({Action.DECODE, Action.REPACK, Action.QUANTIZE})


class Tile(NamedTuple):
    """Converted rows.

    Attributes:
        conversion: without importance, and where to note errors.
        changed: see :meth:`ckconv.quant.convert.Conversion.apply`.
    """

    tensor: Tensor
    conversion: Conversion
    importance: Floats | None
    rows: Rows
    changed: int


class Tiles:
    """Cache of converted rows from writer to comparison; drops the oldest."""

    def __init__(self, made_at_once: int) -> None:
        self._most = MOST + made_at_once * EACH
        self._cache: dict[_Place, Tile] = {}
        self._nbytes, self._turn = 0, Lock()

    def add(self, tensor: Tensor, conversion: Conversion, start: int, rows: Rows, changed: int) -> None:
        """Keep converted canonical rows of ``tensor`` from ``start`` on."""
        if is_handed_over(tensor, conversion):
            self.keep(tensor, conversion, start, rows, changed)

    def keep(
        self, tensor: Tensor, conversion: Conversion, start: int, rows: Rows, changed: int, *, later: bool = False
    ) -> None:
        """Keep rows to compare, or of an array that is written ``later``."""
        place, settings = _place(tensor, conversion, start, later), conversion.quantizing
        importance = settings.importance if settings is not None else None
        tile = Tile(tensor, _values(conversion), importance, rows, changed)
        with self._turn:
            self._drop(place)
            self._cache[place] = tile
            self._nbytes += rows.nbytes
            while self._nbytes > self._most:
                self._drop(next(iter(self._cache)))

    def _drop(self, place: _Place) -> Tile | None:
        tile = self._cache.pop(place, None)
        self._nbytes -= tile.rows.nbytes if tile else 0
        return tile

    def take(
        self,
        tensor: Tensor,
        conversion: Conversion,
        start: int,
        stop: int,
        importance: Floats | None = None,
        *,
        later: bool = False,
    ) -> tuple[Rows, int] | None:
        """Rows and the number of changed values, if added as one tile.

        Args:
            importance: how much the error of each column counts where they are quantized.
            later: rows that were cached to be written, not to be compared.
        """
        with self._turn:
            tile = self._drop(_place(tensor, conversion, start, later))
        if tile is None or tile.conversion != _values(conversion) or len(tile.rows) != stop - start:
            return None
        same = tile.tensor is tensor or (_stored(tile.tensor) == _stored(tensor) and tensor.merge is None)
        return (tile.rows, tile.changed) if same and _alike(tile.importance, importance) else None


def is_handed_over(tensor: Tensor, conversion: Conversion) -> bool:
    """Whether converted rows are worth keeping: slow to make, and whole."""
    whole = conversion.plane is None or conversion.in_arrays
    return conversion.action in SLOW and whole and tensor.merge is None


def _values(conversion: Conversion) -> Conversion:
    """The conversion without importance and the name of an array's type."""
    return conversion._replace(quantizing=None, array=None)


def _alike(one: Floats | None, other: Floats | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and bool((one == other).all())


def _place(tensor: Tensor, conversion: Conversion, start: int, later: bool) -> _Place:
    """The key of a tile: the place of its first row, and which array it is of.

    Two tensors of an index may be the same bytes, with another name or order of rows.
    """
    first = next((extent for array in tensor.arrays for extent in array.extents), None)
    return (first[:2] if first else id(tensor)), conversion.plane, start, later


def _stored(tensor: Tensor) -> tuple[object, ...]:
    """All that decides which bytes rows are, without names."""
    return (
        tensor.dtype,
        replace(tensor.layout, shared=False),
        tensor.extents,
        tensor.packed,
        *map(_stored, tensor.planes),
    )
