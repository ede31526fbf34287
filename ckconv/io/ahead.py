"""Pieces of one tensor made side by side, and given in their order: what is computed does not depend on how many.

Decoding, quantising and merging are loops of numpy and libgguf, which release the interpreter's lock, so threads share
the work. Each has a reader and descriptors of its own, and only a few pieces more than there are threads are made
before somebody takes the first one: that bounds memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from itertools import chain, islice
from threading import Event, local
from typing import TYPE_CHECKING, Generic, TypeVar

from ckconv.errors import UsageError
from ckconv.io.files import Files
from ckconv.quant.quantise import noted_aside
from ckconv.system import THREADS, processors

if TYPE_CHECKING:
    from ckconv.core.tensors import Tensor
    from ckconv.quant.convert import Conversion

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
    """Make that many pieces side by side until the end of the block; ``None`` for the processors that there are.

    Raises:
        UsageError: ``usage.flag``, there are none to be made.
    """
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
    """A pool whose threads run already; ``None`` where there are none to be had (WebAssembly, a user's limit)."""
    if not THREADS:
        return None
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


def is_light(tensor: Tensor, conversion: Conversion) -> bool:
    """Reading takes as long as computing does: nothing is decoded, quantised, packed again or merged."""
    blocks = max(conversion.source.block, conversion.target.block) > 1
    return tensor.merge is None and (conversion.source is conversion.target or not blocks)


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
        """What the pieces make, in order. To be closed, or the threads wait until it is collected.

        Args:
            alone: there is little to compute, and the calling thread does all of it.

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
    """What a piece made; how far it moved values is noted now, in the order of the pieces."""
    made, notes = result.result()
    for note in notes:
        note()
    return made
