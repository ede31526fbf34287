"""Distribution of the files of a conversion to the workers of a cluster.

Cluster addresses are ``dask://HOST:PORT``, ``ray://HOST:PORT``, and ``local://N`` for N processes of this machine.
"""

from __future__ import annotations

import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import lru_cache, partial
from multiprocessing import get_context, parent_process
from typing import Any, NamedTuple, TypeVar

from ckconv.conversion.planning import at_work
from ckconv.conversion.resume import Request, SharedFiles
from ckconv.conversion.run import run
from ckconv.core.tensors import identity
from ckconv.errors import CkconvError, OutputError, UsageError, missing_package
from ckconv.plan.steps import Container, Plan
from ckconv.system import deaf_children
from ckconv.system.signals import check, ignore

W = TypeVar("W")
R = TypeVar("R")

#: Worker deaths in a row, without a finished file between them, after which the conversion fails.
DEATHS = 4

_ADDRESS = re.compile(r"(dask|ray)://([^/\s]+:\d+)|(local)://([1-9]\d?)")

#: Seconds to wait for a connection.
_PATIENCE = 30

#: Seconds between two checks for signals.
_LOOK = 0.5


@contextmanager
def connected(address: str) -> Iterator[Executor]:
    """Connect to a cluster and yield an executor of its workers.

    Raises:
        UsageError: ``usage.cluster``, the address is malformed.
        UnsupportedError: ``system.package``, the client library is not installed.
        OutputError: ``cluster.worker``, nothing answers at the address.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        expected = "dask://HOST:PORT, ray://HOST:PORT or local://N (1 to 99 processes) expected"
        raise UsageError("usage.cluster", f"--cluster {address!r}: {expected}")
    scheme, place = (group for group in found.groups() if group)
    with ExitStack() as stack:
        try:
            executor = _OPENING[scheme](place, stack)
        except ImportError as error:
            raise missing_package(f"{scheme}:", {"dask": "distributed"}.get(scheme, scheme)) from error
        except Exception as error:
            message = f"nothing answers at {address}: {type(error).__name__}"
            raise OutputError("cluster.worker", message, hint="start the scheduler and its workers first") from error
        yield executor


def _dask(place: str, stack: ExitStack) -> Executor:
    from distributed import Client

    client = Client(f"tcp://{place}", timeout=_PATIENCE, set_as_default=False)
    stack.callback(client.close)
    executor: Executor = client.get_executor(pure=False)
    return executor


def _ray(place: str, stack: ExitStack) -> Executor:
    import ray

    session = ray.init(f"ray://{place}", allow_multiple=True, logging_level="ERROR", log_to_driver=False)
    stack.callback(session.disconnect)
    return _Ray(ray, session)


class _Ray(Executor):
    """Ray's tasks as futures."""

    def __init__(self, ray: Any, session: Any) -> None:
        self._ray, self._session = ray, session

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a task; Ray itself retries a few times when a worker dies."""
        with self._session:
            found: Future[Any] = self._ray.remote(fn).remote(*args, **kwargs).future()
        return found


def _local(place: str, stack: ExitStack) -> Executor:
    with suppress(ImportError):  # POSIX only; started here, because its start unblocks signals
        from multiprocessing.resource_tracker import ensure_running

        ensure_running()

    # spawn, because a process forked from one with threads may hang.
    executor = _Processes(int(place), get_context("spawn"), _serve)
    stack.callback(executor.shutdown, cancel_futures=True)
    return executor


class _Processes(ProcessPoolExecutor):
    """Processes of this machine, which ignore signals."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a task, which may start a process."""
        with deaf_children():
            return super().submit(fn, *args, **kwargs)


def _serve() -> None:
    """Start a local worker, which ignores signals and ends with its parent."""
    ignore()
    parent = parent_process()
    assert parent is not None

    def end_with_it() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_it, daemon=True).start()


_OPENING: dict[str, Callable[[str, ExitStack], Executor]] = {"dask": _dask, "ray": _ray, "local": _local}


#: Class names of errors that Dask and Ray raise when a worker dies; names, because neither library is imported here.
_DEATHS = frozenset(
    {"KilledWorker", "WorkerCrashedError", "NodeDiedError", "RayActorError", "ActorDiedError", "OutOfMemoryError"}
)

#: Errors of a worker that has another version of ckconv, or none.
_STRANGERS = (ImportError, AttributeError, pickle.UnpicklingError)


def dispatched(executor: Executor, work: Callable[[W], R], pieces: Sequence[W]) -> Iterator[R]:
    """Run ``work`` on each piece and yield the results as they finish.

    Raises:
        OutputError: ``cluster.worker``, workers keep dying; ``cluster.version``, a worker cannot load the task.
        Exception: an error that ``work`` raised.
    """
    executors, waiting, deaths = [executor], dict[Future[R], W](), 0

    def submit(piece: W) -> None:
        try:
            future = executors[-1].submit(work, piece)
        except BrokenExecutor as error:
            executors.append(_renewed(executors[-1], error))
            future = executors[-1].submit(work, piece)
        waiting[future] = piece

    try:
        for piece in pieces:
            submit(piece)
        while waiting:
            done, _ = wait(waiting, timeout=_LOOK, return_when=FIRST_COMPLETED)
            check()
            died: list[tuple[W, BaseException]] = []
            for future in done:
                piece = waiting.pop(future)
                if future.cancelled():
                    raise OutputError("cluster.worker", "the workers are gone: their scheduler has dropped the work")
                error = future.exception()
                if error is None:
                    deaths = 0
                    yield future.result()
                elif isinstance(error, BrokenExecutor) or any(kind.__name__ in _DEATHS for kind in type(error).__mro__):
                    died.append((piece, error))
                else:
                    raise _known(error)
            if died and (deaths := deaths + 1) > DEATHS:
                message = f"workers died {DEATHS + 1} times in a row, and nothing was finished"
                hint = "fewer processes leave more memory to each"
                raise OutputError("cluster.worker", message, hint=hint) from died[0][1]
            for piece, _ in died:
                submit(piece)
    finally:
        # What still runs would make the directory again that is removed next.
        running = [future for future in waiting if not future.cancel()]
        for pool in executors if len(executors) > 1 else ():  # the first one is broken, the others are our own
            pool.shutdown(cancel_futures=True)
        wait(running)


def _renewed(old: Executor, error: BrokenExecutor) -> Executor:
    """Return a new pool in place of one of which a process died."""
    if not isinstance(old, ProcessPoolExecutor):
        raise OutputError("cluster.worker", f"the workers are gone: {error}") from error
    given = ("_max_workers", "_mp_context", "_initializer", "_initargs")
    return type(old)(*(getattr(old, name) for name in given))


def _known(error: BaseException) -> BaseException:
    """Convert an error of a worker to one that can be shown."""
    cause = getattr(error, "cause", None)  # Ray wraps the error of the task
    if isinstance(cause, CkconvError):
        return cause
    if isinstance(error, _STRANGERS):
        message = f"a worker has another version of ckconv, or none: {error}"
        return OutputError("cluster.version", message, hint="install the same version there")
    return error


def sharing(
    request: Request, *, executor: Executor | None, resume: bool, jobs: int | None
) -> Callable[[Plan, Container], SharedFiles]:
    """Return the maker of a run's :class:`SharedFiles`."""

    def made_by(executor: Executor, numbers: Sequence[int]) -> Iterator[int]:
        yield from dispatched(executor, made, [Job(request, number, jobs) for number in numbers])

    hands = partial(made_by, executor) if executor is not None else None
    return partial(SharedFiles, request=request, resume=resume, hands=hands)


class Job(NamedTuple):
    """The task of making one file of an output.

    Attributes:
        number: index of the file in the plan.
        jobs: pieces of a tensor to convert at once; ``None`` for one.
    """

    request: Request
    number: int
    jobs: int | None


#: Held while a file is made with state that threads share.
_ALONE = threading.Lock()


def made(job: Job) -> int:
    """Make one shared file in a worker process.

    Raises:
        CkconvError: any error of a conversion.
        OutputError: ``cluster.version``; ``cluster.place``, the worker does not see the directory.
    """
    request, options = job.request, job.request.options
    # The threads of a worker (Dask starts one a processor) share the plan, which sums quantization errors, and the
    # list of families.
    with (
        _ALONE if options.quantize or options.families else nullcontext(),
        at_work(options.families, job.jobs or 1),
    ):
        plan = _planned(request)
        if not _is_current(plan):  # a source file was replaced after it was planned
            _planned.cache_clear()
            plan = _planned(request)
        shared = partial(SharedFiles, request=request, resume=True, only=job.number)
        run(plan, request.target, force=request.force, verify=request.verify, shared=shared)
    return job.number


@lru_cache(maxsize=1)
def _planned(request: Request) -> Plan:
    """The plan of a conversion, cached for all of its files."""
    plan = request.planned()
    plan.check()
    return plan


def _is_current(plan: Plan) -> bool:
    """Whether every source file is still the one whose header was read."""
    with suppress(OSError):
        return all(identity(path.stat()) == known for path, known in plan.index.identities.items())
    return False
