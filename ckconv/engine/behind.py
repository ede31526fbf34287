"""Digests of files that are being written, by a thread that follows the writing one, or by the writing thread itself.

With one processor the writer hashes; once a processor is free, a thread takes over.

The hashing thread never waits for the comparing thread: what it needs was handed over, or is in the system's cache,
and there is as little Python as there can be between two pieces. Either way the same steps are gone through.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path

from ckconv.core.tensors import Extent
from ckconv.engine.following import Growth
from ckconv.engine.handed import STEP
from ckconv.engine.pace import AbandonedError
from ckconv.engine.reread import FileHash
from ckconv.engine.workers import Stage
from ckconv.errors import OutputError, unreadable
from ckconv.publish.files import close_unwritten
from ckconv.system import reads_what_is_cached


class Behind:
    """Hashes extents in order, each byte when it is written: in a thread of its own, or in the writing one."""

    def __init__(
        self, extents: Sequence[Extent], growth: Growth, opened: Callable[[Path], tuple[int, os.stat_result]]
    ) -> None:
        """Begin.

        Args:
            opened: opens a file, from any thread.
        """
        self._extents, self._growth, self._opened = extents, growth, opened
        self._digests: dict[Extent, bytes] = {}
        self._steps = self._hashing()
        self._step = 1 if growth.alone else STEP
        self._stage: Stage | None = None
        self._error: Exception | None = None
        self._wanted: tuple[Path, int] | None = None
        self._over = False
        #: Held while the writing thread hashes (no hashing thread yet).
        self._at_work = _thread.allocate_lock()
        if growth.alone:
            growth.hashed_by(self._go_on, self._helped)
            return
        self._stage = Stage.of(self._run)
        self._stage.start()

    def has(self, extent: Extent) -> bool:
        """``extent`` is one of those that are hashed."""
        return extent in self._extents

    def digest(self, extent: Extent) -> bytes:
        """SHA-256 of an extent, when all are hashed. To be called when the comparing thread is through.

        Raises:
            InputError, OutputError: a file cannot be read, or ends early.
            AbandonedError: nobody writes it, or it was stopped.
        """
        self._growth.unread()
        if self._stage is None:
            self._growth.wait_for_all()
            self._go_on()
        if self._stage is not None:
            self._stage.wait()
        error = self._error or (self._stage and self._stage.error)
        if error:
            raise error
        if extent not in self._digests:
            raise AbandonedError
        return self._digests[extent]

    def stop(self) -> None:
        """End the hashing thread; the writing one no longer waits for the comparing one. Harmless when called again."""
        self._growth.unread()
        self._growth.unhashed()
        with self._at_work:
            self._over = True
            if self._stage is None:
                self._steps.close()
        if self._stage is not None:
            self._stage.wait()

    def _run(self) -> None:
        with closing(self._steps) as steps:
            if self._wanted is not None:
                self._growth.wait_for(*self._wanted, hashing=True)
            for path, until in steps:
                self._growth.wait_for(path, until, hashing=True)

    def _go_on(self) -> None:
        """Called by the writing thread when more is written: hash it, as long as there is no hashing thread."""
        with self._at_work:
            if self._stage is None and not self._over:
                self._advance()

    def _helped(self) -> bool:
        """A processor is free: start the hashing thread. ``False`` if there is one, or nothing left to hash."""
        with self._at_work:
            if self._stage is not None or self._over:
                return False
            stage = Stage.of(self._run)
            self._growth.handed.share(alone=False)  # before: that thread waits for more than one that is alone hands
            try:
                stage.start()
            except OutputError:  # the user may have no more threads: it goes on as before
                self._growth.handed.share(alone=True)
                return False
            self._stage, self._step = stage, STEP
        return True

    def _advance(self) -> None:
        self._over = True  # unless there is more
        try:
            while self._wanted is None or self._growth.is_written(*self._wanted):
                self._wanted = next(self._steps)
            self._over = False
        except StopIteration:
            pass
        except Exception as error:  # raised by `digest`
            self._error = error

    def _hashing(self) -> Generator[tuple[Path, int], None, None]:
        """Hash everything.

        Yields:
            before anything is read that may not be written yet: what is to be.
        """
        self._growth.handed.begin()
        try:
            for extent in self._extents:
                fd, _ = self._opened(extent.path)
                try:
                    reads_what_is_cached(fd)
                    self._digests[extent] = yield from self._hashed(FileHash(fd, extent.offset), extent)
                except OSError as error:
                    raise unreadable(error, extent.path, doing="cannot be read") from error
                finally:
                    close_unwritten(fd)
        finally:
            self._growth.unhashed()

    def _hashed(self, hashing: FileHash, extent: Extent) -> Generator[tuple[Path, int], None, bytes]:
        """Hash an extent: blocks that were handed over as they are, all other bytes read from the file."""
        path, growth = extent.path, self._growth
        until = 0
        while (at := hashing.nbytes) < extent.nbytes:
            if at >= until:
                until = extent.offset + min(extent.nbytes, at + self._step)
                yield path, until
                until = min(growth.written(path, until) - extent.offset, extent.nbytes)
            stop = growth.around(path, extent.offset + at, extent.offset + until) - extent.offset
            if stop == at:
                place = growth.place(path, extent.offset + at)
                block = growth.handed.next(place)
                if block is not None and block.place <= place:
                    hashing.add(block.bytes[place - block.place :])
                    growth.handed.done(block)
                    continue
                stop = until if block is None else min(until, at + block.place - place)
            hashing.read_to(stop)
            if hashing.nbytes < stop:
                raise OutputError("input.changed", "the file ends early: it has changed", path=path)
        return hashing.digest
