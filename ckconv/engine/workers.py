"""A thread that does jobs in order, and that a signal can neither break nor leave behind."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from queue import SimpleQueue

from ckconv.errors import OutputError

#: A buffer's filled part, or a number of zero bytes that nobody stores, or the end.
Job = memoryview | int | None


class Stage:
    """One thread that does jobs in order. After a failure it only consumes them, so that nobody waits in vain.

    Not a :class:`threading.Thread`: a signal handler that raises inside its ``start`` or ``join`` breaks their own
    locks, and (up to Python 3.12) an interrupted ``join`` takes a running thread for ended. Here both are one call.
    """

    def __init__(self, work: Callable[[memoryview | int, int], None], buffers: int) -> None:
        self.work = work
        self.jobs: SimpleQueue[Job] = SimpleQueue()
        self.done: SimpleQueue[None] = SimpleQueue()
        for _ in range(buffers):
            self.done.put(None)
        self.error: BaseException | None = None
        self.started = self.over = False
        self._running = _thread.allocate_lock()
        self._running.acquire()

    def start(self) -> None:
        """Start the thread; it ends at the job ``None``.

        Raises:
            OutputError: ``system``, the user may have no more threads.
        """
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError as error:
            raise OutputError("system", f"a thread cannot be started: {error}") from error
        self.started = True

    def wait(self) -> None:
        """Until the last job is done, if it was started; may be called again after a signal interrupted it."""
        if self.started and not self.over:
            self._running.acquire()

    def _run(self) -> None:
        position = 0
        while (job := self.jobs.get()) is not None:
            try:
                if self.error is None:
                    self.work(job, position)
            except BaseException as error:
                self.error = error
            if isinstance(job, int):
                position += job
            else:
                position += len(job)
                self.done.put(None)
        self.over = True
        self._running.release()
