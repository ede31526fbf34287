"""A thread that does jobs in order, and that a signal can neither break nor leave behind.

Where no thread can be started, a job is done by the thread that hands it over.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from ckconv.errors import OutputError
from ckconv.system import THREADS

#: A buffer's filled part, or a number of zero bytes that nobody stores, or the end.
Job = memoryview | int | None


class Stage:
    """One thread that does jobs in order. After a failure it only consumes them, so that no other thread waits in vain.

    Not a :class:`threading.Thread`: a signal handler that raises inside its ``start`` or ``join`` breaks their own
    locks, and (up to Python 3.12) an interrupted ``join`` takes a running thread for ended. Here both are one call.
    """

    def __init__(self, work: Callable[[memoryview | int, int], None], buffers: int) -> None:
        self.work = work
        self.jobs: Any = SimpleQueue()
        self._position = 0
        self.done: SimpleQueue[None] = SimpleQueue()
        for _ in range(buffers):
            self.done.put(None)
        self.error: BaseException | None = None
        self.started = self.over = False
        self._running = _thread.allocate_lock()
        self._running.acquire()

    @classmethod
    def of(cls, work: Callable[[], object]) -> Stage:
        """A thread for one job, not started yet."""

        def once(job: memoryview | int, position: int) -> None:
            work()

        stage = cls(once, 0)
        stage.jobs.put(0)
        stage.jobs.put(None)
        return stage

    def start(self) -> None:
        """Start the thread; it ends at the job ``None``.

        Raises:
            OutputError: ``system``, the user may have no more threads.
        """
        if not THREADS:
            waiting, self.jobs, self.started = self.jobs, _AtOnce(self), True
            while not waiting.empty():
                self.jobs.put(waiting.get())
            return
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError as error:
            raise OutputError("system", f"a thread cannot be started: {error}") from error
        self.started = True

    def wait(self) -> None:
        """Until the last job is done, if it was started; may be called again after a signal interrupted it."""
        if self.started and not self.over:
            self._running.acquire()

    def waited(self, seconds: float) -> bool:
        """The last job is done, or not after so long."""
        if self.started and not self.over:
            self._running.acquire(timeout=seconds)
        return self.over or not self.started

    def _run(self) -> None:
        while (job := self.jobs.get()) is not None:
            self.do(job)
        self.end()

    def do(self, job: memoryview | int) -> None:
        """One job."""
        try:
            if self.error is None:
                self.work(job, self._position)
        except BaseException as error:
            self.error = error
        self._position += job if isinstance(job, int) else len(job)
        self.done.put(None)

    def end(self) -> None:
        """There is no other job."""
        self.over = True
        self._running.release()


class _AtOnce:
    """A queue whose jobs are done as they are put into it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def put(self, job: Job) -> None:
        """Do it."""
        if job is None:
            self._stage.end()
        else:
            self._stage.do(job)
