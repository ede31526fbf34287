"""Where a stream of bytes ends: a file, which can be asked whether it has them, or a pipe."""

from __future__ import annotations

import _thread
import os
from contextlib import suppress

from ckconv.errors import OutputError
from ckconv.publish.files import write_code
from ckconv.signals import blocking
from ckconv.system import read_into, wait_for_reader, write_some


class Store:
    """Writes to ``fd``; to a file any thread may, each at places of its own."""

    def __init__(self, fd: int, base: int, *, seekable: bool) -> None:
        """Write nothing yet.

        Args:
            base: where in a file the first byte goes.
            seekable: it is a file; else bytes go out in order.
        """
        self._fd, self._base, self._seekable = fd, base, seekable
        #: A file system lets one thread at a time write to a file, and those that wait keep a processor busy.
        self._turn = _thread.allocate_lock()

    def write(self, data: memoryview, position: int) -> None:
        """Write ``data``, which begins at byte ``position`` of the stream.

        Raises:
            OutputError: ``output.write`` or ``output.space``.
            BrokenPipeError: nobody reads what is written.
        """
        try:
            while len(data):
                try:
                    if self._seekable:
                        with self._turn:
                            wrote = write_some(self._fd, data, self._base + position)
                    else:
                        with blocking():
                            wrote = os.write(self._fd, data)
                except BlockingIOError:  # somebody made the pipe that we share non-blocking
                    with blocking():
                        wait_for_reader(self._fd)
                    continue
                data = data[wrote:]
                position += wrote
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(
                write_code(error), f"writing failed after {position:,} bytes: {error.strerror}", offset=position
            ) from error

    def read(self, buffer: memoryview, position: int) -> bool:
        """Fill ``buffer`` with what the file has there; ``False`` if it cannot be read, or ends before."""
        done = 0
        with suppress(OSError):
            while done < len(buffer) and (got := read_into(self._fd, buffer[done:], self._base + position + done)):
                done += got
        return done == len(buffer)

    def end(self) -> None:
        """Nothing is written any more: the descriptor is going to be closed, and another file may get its number."""
        self._fd = -1

    def reach(self, position: int) -> None:
        """Let a file go on to there, if it ends before."""
        end = self._base + position
        if os.fstat(self._fd).st_size < end:
            os.ftruncate(self._fd, end)
