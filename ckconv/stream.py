"""One stream of bytes, hashed and written while it is read.

The calling thread fills a ring of preallocated buffers; one thread hashes them, another writes them. hashlib and the
system calls give up the interpreter's lock, so the three overlap, and memory is the ring whatever the model's size.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING

from ckconv.errors import OutputError

if TYPE_CHECKING:
    from typing_extensions import Buffer

BUFFERS = 4
BUFFER_BYTES = 1 << 20

#: A run of zeros shorter than this is written like any other bytes: holes are whole blocks of the file system.
SMALLEST_HOLE = 64 << 10

_ZEROS = memoryview(bytes(BUFFER_BYTES))

#: A buffer's filled part, or a number of zero bytes that nobody stores, or the end.
_Job = memoryview | int | None


class Pipeline:
    """Appends bytes to ``fd`` from ``offset`` on, and hashes them."""

    def __init__(
        self,
        fd: int | None,
        *,
        offset: int = 0,
        seekable: bool = True,
        progress: Callable[[int], None] | None = None,
        buffers: int = BUFFERS,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """Start the threads.

        Args:
            fd: where to write; ``None`` only hashes.
            offset: where in ``fd`` the first byte goes.
            seekable: write at positions and leave runs of zeros as holes; else write in order, as to a pipe.
            progress: called with the number of bytes just appended.
            buffers, buffer_bytes: the ring.
        """
        self._fd, self._base, self._seekable, self._progress = fd, offset, seekable, progress
        self._ring = [memoryview(bytearray(buffer_bytes)) for _ in range(buffers)]
        self._bytes = buffer_bytes
        self._next, self._filled = 0, 0
        self._current: memoryview | None = None
        self._position = 0
        self._digest = hashlib.sha256()
        self._error: BaseException | None = None
        self._stopped = False
        self._jobs: list[SimpleQueue[_Job]] = []
        self._done: list[SimpleQueue[None]] = []
        self._threads: list[threading.Thread] = []
        work = [self._hash] if fd is None else [self._hash, self._write]
        for function in work:
            jobs: SimpleQueue[_Job] = SimpleQueue()
            done: SimpleQueue[None] = SimpleQueue()
            for _ in range(buffers):
                done.put(None)
            self._jobs.append(jobs)
            self._done.append(done)
            thread = threading.Thread(target=self._run, args=(function, jobs, done), name="ckconv-stream", daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def position(self) -> int:
        """Bytes appended so far."""
        return self._position

    def writable(self) -> memoryview:
        """The free rest of the current buffer, at least one byte; call :meth:`advance` with what was filled."""
        if self._current is None:
            for done in self._done:
                done.get()  # blocks until every thread is through with this buffer's last content
            self._check()
            self._current = self._ring[self._next]
            self._next = (self._next + 1) % len(self._ring)
        return self._current[self._filled :]

    def advance(self, nbytes: int) -> None:
        """The first ``nbytes`` of :meth:`writable` are filled."""
        self._filled += nbytes
        self._position += nbytes
        if self._progress:
            self._progress(nbytes)
        if self._filled == self._bytes:
            self._submit()

    def copy(self, fd: int, offset: int, nbytes: int, *, path: Path, tensor: str = "") -> None:
        """Append ``nbytes`` of the file ``fd`` from ``offset`` on.

        Raises:
            OutputError: ``input.changed``, the file ends early.
        """
        done = 0
        while done < nbytes:
            got = os.preadv(fd, [self.writable()[: nbytes - done]], offset + done)
            if not got:
                raise OutputError(
                    "input.changed",
                    f"the file ends at byte {offset + done:,}, {nbytes - done:,} bytes early: it changed meanwhile",
                    path=path,
                    tensor=tensor or None,
                    offset=offset + done,
                )
            done += got
            self.advance(got)

    def put(self, data: Buffer) -> None:
        """Append the bytes of a contiguous buffer; they are copied, so the caller may reuse it."""
        view = memoryview(data).cast("B")
        while len(view):
            free = self.writable()
            taken = min(len(free), len(view))
            free[:taken] = view[:taken]
            view = view[taken:]
            self.advance(taken)

    def zeros(self, nbytes: int) -> None:
        """Append zeros: a hole in the file where it has blocks to leave out, but hashed all the same."""
        if not self._seekable or self._fd is None or nbytes < SMALLEST_HOLE:
            for start in range(0, nbytes, BUFFER_BYTES):
                self.put(_ZEROS[: min(BUFFER_BYTES, nbytes - start)])
            return
        self._submit()
        self._position += nbytes
        for jobs in self._jobs:
            jobs.put(nbytes)
        if self._progress:
            self._progress(nbytes)

    def finish(self) -> bytes:
        """Hash and write what is left and end the threads.

        Returns:
            the SHA-256 of everything appended.

        Raises:
            OutputError: ``output.write`` or ``output.space``, the first failure of the writing thread.
        """
        self._submit()
        self._end()
        self._check()
        if self._fd is not None and self._seekable:
            end = self._base + self._position
            if os.fstat(self._fd).st_size < end:
                os.ftruncate(self._fd, end)
        return self._digest.digest()

    def abort(self) -> None:
        """End the threads, whatever they have left to do. Harmless after :meth:`finish`."""
        self._stopped = True
        self._end()

    def _submit(self) -> None:
        if self._current is not None and self._filled:
            for jobs in self._jobs:
                jobs.put(self._current[: self._filled])
            self._current, self._filled = None, 0

    def _end(self) -> None:
        for jobs in self._jobs:
            jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self, work: Callable[[memoryview | int, int], None], jobs: SimpleQueue[_Job], done: SimpleQueue[None]) -> None:
        """One thread: do the jobs in order; after a failure only consume them, so that the caller never waits in vain."""
        position = 0
        while (job := jobs.get()) is not None:
            nbytes = job if isinstance(job, int) else len(job)
            try:
                if not self._stopped:
                    work(job, position)
            except BaseException as error:
                self._error = self._error or error
                self._stopped = True
            position += nbytes
            if not isinstance(job, int):
                done.put(None)

    def _hash(self, job: memoryview | int, position: int) -> None:
        if not isinstance(job, int):
            self._digest.update(job)
            return
        while job and not self._stopped:
            step = min(job, BUFFER_BYTES)
            self._digest.update(_ZEROS[:step])
            job -= step

    def _write(self, job: memoryview | int, position: int) -> None:
        assert self._fd is not None
        if isinstance(job, int):
            return
        try:
            while len(job) and not self._stopped:
                at = self._base + position
                wrote = os.pwrite(self._fd, job, at) if self._seekable else os.write(self._fd, job)
                job = job[wrote:]
                position += wrote
        except BrokenPipeError:
            raise
        except OSError as error:
            code = "output.space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "output.write"
            raise OutputError(code, f"writing failed after {position:,} bytes: {error.strerror}", offset=position) from error

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abort()
