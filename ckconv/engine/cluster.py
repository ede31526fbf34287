"""Clusters by their addresses, as executors: ``dask://HOST:PORT``, ``ray://HOST:PORT``, and ``local://N`` processes."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context, parent_process
from typing import Any

from ckconv.errors import CkconvError, OutputError, UsageError
from ckconv.signals import ignore
from ckconv.system import deaf_children

_ADDRESS = re.compile(r"(dask|ray)://([^/\s]+:\d+)|(local)://([1-9]\d?)")

#: Seconds in which a cluster answers.
_PATIENCE = 30


@contextmanager
def connected(address: str) -> Iterator[Executor]:
    """The workers of a cluster.

    Raises:
        UsageError: ``usage.cluster``, it is not an address of one, or what speaks to it is not installed.
        OutputError: ``cluster.worker``, nobody answers there.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        expected = "dask://HOST:PORT, ray://HOST:PORT or local://N (1 to 99 processes) expected"
        raise UsageError("usage.cluster", f"--cluster {address!r}: {expected}")
    scheme, place = (group for group in found.groups() if group)
    try:
        opened = _OPENING[scheme](place)
        executor, close = next(opened)
    except ImportError as error:
        message = f"{scheme}: cannot be used here: {error}"
        raise UsageError("usage.cluster", message, hint="pip install 'ckconv[cluster]'") from error
    except CkconvError:
        raise
    except Exception as error:
        message = f"nothing answers at {address}: {type(error).__name__}"
        raise OutputError("cluster.worker", message, hint="start the scheduler and its workers first") from error
    try:
        yield executor
    finally:
        close()


_Opened = Iterator[tuple[Executor, Callable[[], object]]]


def _dask(place: str) -> _Opened:
    from distributed import Client

    client = Client(f"tcp://{place}", timeout=_PATIENCE, set_as_default=False)
    yield client.get_executor(pure=False), client.close


def _ray(place: str) -> _Opened:
    import ray

    session = ray.init(f"ray://{place}", allow_multiple=True, logging_level="ERROR", log_to_driver=False)
    yield _Ray(ray, session), session.disconnect


class _Ray(Executor):
    """Ray's tasks as futures."""

    def __init__(self, ray: Any, session: Any) -> None:
        self._ray, self._session = ray, session

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin; Ray does it again by itself where a worker dies, a few times."""
        with self._session:
            found: Future[Any] = self._ray.remote(fn).remote(*args, **kwargs).future()
        return found


def _local(place: str) -> _Opened:
    with suppress(ImportError):  # of POSIX; where it begins it lets signals through again
        from multiprocessing.resource_tracker import ensure_running

        ensure_running()

    # A process that is copied from one with threads may hang.
    executor = _Processes(int(place), get_context("spawn"), _serve)
    yield executor, partial(executor.shutdown, cancel_futures=True)


class _Processes(ProcessPoolExecutor):
    """Processes of this machine, which hear no signal."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin; it may take a process more."""
        with deaf_children():
            return super().submit(fn, *args, **kwargs)


def _serve() -> None:
    """Begin a worker on this machine: signals of a terminal are for its parent, and it ends with that."""
    ignore()
    parent = parent_process()
    assert parent is not None

    def end_with_it() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_it, daemon=True).start()


_OPENING: dict[str, Callable[[str], _Opened]] = {"dask": _dask, "ray": _ray, "local": _local}
