"""The disk works while the rest of a file is written, so that little is left to wait for when it is complete."""

from __future__ import annotations

import errno

from ckconv.engine.workers import Stage
from ckconv.errors import OutputError
from ckconv.output.filesystem import write_code
from ckconv.system import sync_data, syncs_data

#: Bytes between two requests: what a disk is busy with for some tenths of a second.
STEP = 64 << 20


class WriteBehind:
    """Has what was written to ``fd`` brought to the disk by a thread of its own, a large piece at a time.

    A system tells an open file of a failed write once, so what the thread hears counts as a failure of the output.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting = 0
        self._busy = self._stopped = False
        self._stage: Stage | None = None

    def wrote(self, nbytes: int) -> None:
        """``nbytes`` more are written. Never waits; called by one thread only."""
        self._waiting += nbytes
        if self._waiting < STEP or self._busy or not syncs_data():
            return
        if self._stage is None:
            stage = Stage(self._sync, 0)
            stage.start()
            self._stage = stage
        self._busy = True
        self._stage.jobs.put(self._waiting)
        self._waiting = 0

    def finish(self) -> None:
        """Wait until the thread has ended; may be called again after a signal interrupted it.

        Raises:
            OutputError: ``output.write`` or ``output.space``.
        """
        stage = self._stage
        if stage is None:
            return
        stage.jobs.put(None)
        stage.wait()
        self._stage = None
        if stage.error is not None:
            raise stage.error

    def abandon(self) -> None:
        """Let the thread end by itself: nobody needs the file, and a slow disk is nothing to wait for."""
        self._stopped = True
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.jobs.put(None)

    def _sync(self, job: memoryview | int, position: int) -> None:
        try:
            if not self._stopped:
                sync_data(self._fd)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):  # a device: there is nothing to bring
                return
            within = position + int(job)
            raise OutputError(
                write_code(error), f"writing failed within the first {within:,} bytes: {error.strerror}"
            ) from error
        finally:
            self._busy = False
