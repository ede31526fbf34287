"""Pieces of one tensor made side by side, and given in their order: what is computed does not depend on how many.

Decoding, quantising and merging are loops of numpy and libgguf, which release the interpreter's lock, so threads share
the work. Each has a reader and descriptors of its own, and only a few pieces more than there are threads are made
before somebody takes the first one: that bounds memory.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from itertools import chain, islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ckconv.errors import UsageError
from ckconv.io.files import Files
from ckconv.quant.quantise import noted_aside
from ckconv.system import processors

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
            CkconvError: whatever a piece raises, where its turn comes.
        """
        waiting = iter(pieces)
        head = list(islice(waiting, 2))
        count = made_at_once()
        workers = _started(count, self._files, self._make) if len(head) > 1 and count > 1 and not alone else []
        if not workers:
            for piece in chain(head, waiting):
                yield piece(self.first)
            return
        jobs: SimpleQueue[Any] = workers[0].jobs
        try:
            results: deque[SimpleQueue[Any]] = deque()
            for piece in chain(head, waiting):
                results.append(SimpleQueue())
                jobs.put((piece, results[-1]))
                if len(results) >= len(workers) + BEHIND:
                    yield _taken(results.popleft())
            while results:
                yield _taken(results.popleft())
        finally:
            _end(workers)
        for worker in workers:
            self.readers += worker.made
            if worker.error is not None:
                raise worker.error


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.stopped = True
        worker.jobs.put(None)
    for worker in workers:
        worker.running.acquire()


def _taken(result: SimpleQueue[Any]) -> Any:
    """What a piece made; how far it moved values is noted now, in the order of the pieces."""
    made, error, notes = result.get()
    if error is not None:
        raise error
    for note in notes:
        note()
    return made


def _started(count: int, files: Files, make: Callable[[Files], Any]) -> list[_Worker]:
    """As many threads as there may be."""
    jobs: SimpleQueue[Any] = SimpleQueue()
    workers: list[_Worker] = []
    try:
        for _ in range(count):
            worker = _Worker(jobs, files.twin(), make)
            try:
                _thread.start_new_thread(copy_context().run, (worker.run,))
            except RuntimeError:  # the user may have no more
                break
            workers.append(worker)
    except BaseException:
        for _ in workers:
            jobs.put(None)
        raise
    return workers


class _Worker:
    """A thread that makes pieces. See :class:`ckconv.engine.workers.Stage` for why it is no ``Thread``."""

    def __init__(self, jobs: SimpleQueue[Any], files: Files, make: Callable[[Files], Any]) -> None:
        self.jobs, self._files, self._make = jobs, files, make
        self.made: list[Any] = []
        self.stopped = False
        self.error: BaseException | None = None
        self.running = _thread.allocate_lock()
        self.running.acquire()

    def run(self) -> None:
        """Until the job ``None``; after that, the files are proved not to have changed."""
        try:
            while (job := self.jobs.get()) is not None:
                piece, result = job
                if not self.stopped:
                    result.put(self._result(piece))
            self._files.check_unchanged()
        except BaseException as error:
            self.error = error
        finally:
            self._files.close()
            self.running.release()

    def _result(self, piece: Callable[[Any], Any]) -> tuple[Any, BaseException | None, list[Callable[[], None]]]:
        with noted_aside() as notes:
            try:
                if not self.made:
                    self.made.append(self._make(self._files))
                return piece(self.made[0]), None, notes
            except BaseException as error:
                return None, error, notes
