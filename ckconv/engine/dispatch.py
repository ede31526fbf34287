"""Work for the processes of an executor; a piece whose worker died is submitted again."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from typing import Any, TypeVar

from ckconv.errors import CkconvError, OutputError
from ckconv.signals import check

W = TypeVar("W")
R = TypeVar("R")

#: So many deaths in a row, in which nothing was finished, are no accident.
DEATHS = 4

#: Seconds after which a signal is looked for.
_PATIENCE = 0.5

#: What an engine raises for work whose worker died: names, as nobody imports an engine to see that it is not there.
_DEATHS = frozenset(
    {"KilledWorker", "WorkerCrashedError", "NodeDiedError", "RayActorError", "ActorDiedError", "OutOfMemoryError"}
)

#: What comes of a worker that has another ckconv, or none.
_STRANGERS = (ImportError, AttributeError, pickle.UnpicklingError)


def dispatched(executor: Executor, work: Callable[[W], R], pieces: Sequence[W]) -> Iterator[R]:
    """What ``work`` gives for each piece, as it ends.

    Raises:
        OutputError: ``cluster.worker``, workers die over it; ``cluster.version``, one does not know the work.
        Exception: what ``work`` raised.
    """
    crew = _Crew(executor, work)
    try:
        for piece in pieces:
            crew.submit(piece)
        while crew.waiting:
            yield from crew.ended()
    finally:
        crew.dismiss()


class _Crew:
    def __init__(self, executor: Executor, work: Callable[[Any], Any]) -> None:
        self._executor, self._work = executor, work
        self._own: list[Executor] = []
        self._deaths = 0
        self.waiting: dict[Future[Any], Any] = {}

    def submit(self, piece: object) -> None:
        try:
            future = self._executor.submit(self._work, piece)
        except BrokenExecutor as error:
            self._replace(error)
            future = self._executor.submit(self._work, piece)
        self.waiting[future] = piece

    def ended(self) -> Iterator[Any]:
        """What came of the work that ended next."""
        done, _ = wait(self.waiting, timeout=_PATIENCE, return_when=FIRST_COMPLETED)
        check()
        again = []
        for future in done:
            piece = self.waiting.pop(future)
            error = _gone() if future.cancelled() else future.exception()
            if error is None:
                self._deaths = 0
                yield future.result()
            elif _is_death(error):
                again.append((piece, error))
            else:
                raise _known(error)
        if again:
            self._deaths += 1
            if self._deaths > DEATHS:
                message = f"workers died {DEATHS + 1} times in a row, and nothing was finished"
                hint = "fewer processes leave more memory to each"
                raise OutputError("cluster.worker", message, hint=hint) from again[0][1]
        for piece, _ in again:
            self.submit(piece)

    def _replace(self, error: BrokenExecutor) -> None:
        """Make a new pool like the old one, which takes no more work after one of its processes died."""
        if not isinstance(self._executor, ProcessPoolExecutor):
            raise OutputError("cluster.worker", f"the workers are gone: {error}") from error
        old = self._executor
        self._executor = type(old)(
            getattr(old, "_max_workers", None),
            getattr(old, "_mp_context", None),
            getattr(old, "_initializer", None),
            getattr(old, "_initargs", ()),
        )
        self._own.append(self._executor)

    def dismiss(self) -> None:
        """Cancel what is not done, without waiting for it."""
        for future in self.waiting:
            future.cancel()
        for executor in self._own:
            executor.shutdown(wait=False, cancel_futures=True)


def _gone() -> OutputError:
    """What comes of work that is cancelled, and not by us: whoever gave it to workers is no more."""
    return OutputError("cluster.worker", "the workers are gone: their scheduler has dropped the work")


def _is_death(error: BaseException) -> bool:
    return isinstance(error, BrokenExecutor) or any(kind.__name__ in _DEATHS for kind in type(error).__mro__)


def _known(error: BaseException) -> BaseException:
    """What a worker raised, as an error that can be shown."""
    cause = getattr(error, "cause", None)  # Ray's wraps what the work raised
    if isinstance(cause, CkconvError):
        return cause
    if isinstance(error, _STRANGERS):
        message = f"a worker has another version of ckconv, or none: {error}"
        return OutputError("cluster.version", message, hint="install the same version there")
    return error
