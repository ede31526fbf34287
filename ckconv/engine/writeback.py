"""The disk works while the rest of a file, or the next one, is written: little is left to wait for in the end."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from functools import partial

from ckconv.engine.workers import Stage
from ckconv.errors import OutputError
from ckconv.publish.files import close_unwritten, write_code
from ckconv.system import sync_data, syncs_data

#: Bytes between two requests: what a disk is busy with for some tenths of a second.
STEP = 64 << 20

#: Files that are written whole and may not be on the disk yet; each has a descriptor and a thread.
MOST = 2


class Disk:
    """Files that one thread writes, each of which need not be on the disk when the next one begins."""

    def __init__(self) -> None:
        self._busy: deque[Stage] = deque()

    def take(self, stage: Stage) -> None:
        """It has heard of all of its file. Waits while too many have.

        Raises:
            OutputError: ``output.write`` or ``output.space``.
        """
        while len(self._busy) >= MOST:
            _end(self._busy.popleft())
        self._busy.append(stage)

    def wait(self) -> None:
        """Until none is at work.

        Raises:
            OutputError: ``output.write`` or ``output.space``.
        """
        while self._busy:
            _end(self._busy.popleft())


class WriteBehind:
    """Has what was written to ``fd`` brought to the disk by a thread of its own, a large piece at a time.

    A system tells an open file of a failed write once, so what the thread hears counts as a failure of the output.
    """

    def __init__(self, fd: int, disk: Disk | None = None) -> None:
        """Begin with the first large piece; a smaller file is left to the sync at the end.

        Args:
            disk: waits for the thread when all is written; ``None``: :meth:`finish` does.
        """
        self._fd, self._disk = fd, disk
        self._waiting = 0
        self._busy = self._stopped = False
        self._stage: Stage | None = None

    def wrote(self, nbytes: int) -> None:
        """``nbytes`` more are written. Never waits; called by one thread only."""
        self._waiting += nbytes
        if self._waiting < STEP or self._busy or not syncs_data():
            return
        if self._stage is None:
            stage = _Syncing(self._fd, self._sync)
            stage.start()
            self._stage = stage
        self._put(self._stage)

    def finish(self) -> None:
        """All is written: the thread is to end. May be called again after a signal interrupted it.

        Raises:
            OutputError: ``output.write`` or ``output.space``.
        """
        stage = self._stage
        if stage is None:
            return
        if self._disk is not None and self._waiting:
            self._put(stage)
        stage.jobs.put(None)
        if self._disk is None:
            _end(stage)
        else:
            self._disk.take(stage)
        self._stage = None

    def abandon(self) -> None:
        """Let the thread end by itself: the file is given up, and not worth waiting for a slow disk."""
        stage, self._stage = self._stage, None
        if stage is not None:
            self._stopped = True
            stage.jobs.put(None)

    def _put(self, stage: Stage) -> None:
        self._busy = True
        stage.jobs.put(self._waiting)
        self._waiting = 0

    def _sync(self, fd: int, job: memoryview | int, position: int) -> None:
        try:
            if not self._stopped:
                sync_data(fd)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):  # a device: there is nothing to bring
                return
            within = position + int(job)
            raise OutputError(
                write_code(error), f"writing failed within the first {within:,} bytes: {error.strerror}"
            ) from error
        finally:
            self._busy = False


class _Syncing(Stage):
    """A thread with a descriptor of its own: the writing thread may close the file before."""

    def __init__(self, fd: int, sync: Callable[[int, memoryview | int, int], None]) -> None:
        self._own = os.dup(fd)
        super().__init__(partial(sync, self._own), 0)

    def start(self) -> None:
        """See :meth:`Stage.start`; without a thread the descriptor is closed at once."""
        try:
            super().start()
        except BaseException:
            close_unwritten(self._own)
            raise

    def end(self) -> None:
        """See :meth:`Stage.end`."""
        close_unwritten(self._own)
        super().end()


def _end(stage: Stage) -> None:
    """Wait for a thread that is to end, and say what it found."""
    stage.wait()
    if stage.error is not None:
        raise stage.error
