"""Write, hash, compare and flush the files of one output at the same time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from contextvars import copy_context
from importlib import import_module
from pathlib import Path
from typing import Any

from ckconv.conversion.write import (
    LEAD,
    GrowingOutput,
    Losses,
    OutputReader,
    Progress,
    Stopped,
    chunks,
    compare,
    digest,
    digested,
    flush,
    payload,
    write_file,
)
from ckconv.core.lazy import NamedTuple
from ckconv.core.tensors import TensorIndex
from ckconv.errors import OutputError, shown
from ckconv.io.files import Files, close_unwritten
from ckconv.io.tiles import SLOW, Tiles, at_once, made_at_once, threads
from ckconv.plan.steps import Container, Plan
from ckconv.publish.files import close_written
from ckconv.system import ELSEWHERE, MAX_OPEN, THREADS, share_heap
from ckconv.system.signals import check
from ckconv.verification.tensors import Compared

#: The number of files that are written at once at most.
MOST_FILES = 8

#: Bytes of an only file that one thread has written, hashed and compared before others would have begun.
ALONE = 1 << 20

#: Bytes the writer may be ahead of the comparison, if converted rows are cached or the source is on a server.
SHORT_LEAD = 4 << 20

#: Seconds between two checks for signals and progress.
PATIENCE = 0.1


class FileResult(NamedTuple):
    """The result of writing one file.

    Attributes:
        number: index of the file in the plan.
        digest: SHA-256 of :func:`ckconv.conversion.write.digested`.
        compared: the comparison of its tensors; ``None`` if they are compared after all files are written.
        losses: values that its steps could not keep.
    """

    number: int
    digest: bytes
    compared: Compared | None
    losses: Losses


class Pipeline:
    """The weights files of one output, whose headers are already written.

    Four threads write, hash, compare and flush a file. They share only the file and its
    :class:`ckconv.conversion.write.Progress`. Without threads, and of a small file, the four functions run one after
    another.
    """

    def __init__(
        self,
        plan: Plan,
        container: Container,
        source: Files,
        paths: Sequence[Path],
        read: Callable[[], TensorIndex],
        *,
        verify: bool = True,
    ) -> None:
        """Start nothing yet.

        Args:
            source: the files of the source; the writer opens its own descriptors.
            paths: the staged path of each file of the plan.
            read: opens the output with the reader of its format.
            verify: compare tensors with the source.
        """
        self._plan, self._source, self._paths = plan, source, list(paths)
        self._verify = verify and not plan.restores
        sources = (plan.index, *(adapter for adapter, _ in plan.index.adapters))
        #: A server sends the source, or an adapter.
        self._on_server = any(known[:2] in ELSEWHERE for each in sources for known in each.identities.values())
        #: One thread does all of it.
        self.alone = len(plan.files) == 1 and plan.files[0].nbytes <= ALONE
        self._parts = list(zip(plan.files, container.frames, paths, strict=True))
        self._reader = OutputReader(read)

    def run(
        self, numbers: Sequence[int], descriptor: Callable[[int], int], watcher: Callable[[int, str], None]
    ) -> list[FileResult]:
        """Write these files of the plan, several at once.

        Args:
            descriptor: returns the descriptor of a file, by its number; called in this thread, as the watcher is.

        Raises:
            CkconvError: the error of the first file that fails; of its threads, the writer's first, then that of the
                hash, the comparison, the flush.
        """
        count = self._side_by_side(len(numbers))
        self._most = MAX_OPEN if count == 1 else max(4, MAX_OPEN // (2 * count))
        if any(not step.one_run for number in numbers for step in self._plan.files[number].steps):
            share_heap()
            # Two threads that import modules of one package in two orders wait for each other.
            import_module("ckconv.io.stored")
        self._pool = None if self.alone else threads(4 * count)
        cached = self._verify and (self.alone or self._pool is not None)
        self._slow = {number: cached and self._has_slow(number) for number in numbers}
        self._progress = {path: self._unwritten(number) for number, path in enumerate(self._paths)}
        waiting, flights = deque(numbers), list[_Flight]()
        found, errors, reported = dict[int, FileResult](), dict[int, BaseException](), dict.fromkeys(numbers, 0)
        try:
            while waiting or flights:
                while waiting and len(flights) <= count > sum(not flight.tasks[0].done() for flight in flights):
                    with at_once(max(1, made_at_once() // count)):
                        flights.append(self._begin(waiting[0], os.dup(descriptor(waiting.popleft()))))
                at_work: list[Future[Any]] = [task for each in flights for task in each.tasks if not task.done()]
                wait(at_work, PATIENCE, FIRST_COMPLETED)
                check()
                for number, before in reported.items():
                    progress = self._progress[self._paths[number]]
                    reported[number] = progress.written
                    if reported[number] > before:
                        watcher(reported[number] - before, progress.tensor)
                for flight in [flight for flight in flights if all(task.done() for task in flight.tasks)]:
                    if (error := flight.error) is None:
                        found[flight.number] = flight.result
                        close_written(flight.fd)
                    else:  # earlier files are completed: one of them may fail too, and its error comes first
                        errors[flight.number] = error
                        if isinstance(error, OutputError):  # what writes has descriptors alone
                            error.path = error.path or shown(self._paths[flight.number])
                        close_unwritten(flight.fd)
                        waiting.clear()
                        for other in flights:
                            if other.number > flight.number:
                                self._progress[self._paths[other.number]].stop()
                    flights.remove(flight)
        finally:
            for progress in self._progress.values():
                progress.stop()
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
            for flight in flights:
                close_unwritten(flight.fd)
        if errors:
            raise errors[min(errors)]
        return [found[number] for number in numbers]

    def compared(self, found: Sequence[FileResult]) -> Compared | None:
        """Return the comparison of all files; ``None`` without verification."""
        if not self._verify:
            return None
        done = {self._paths[each.number]: each.compared for each in found if each.compared is not None}
        out = None if len(self._paths) == len(done) == 1 else self.index()
        return done[self._paths[0]] if out is None else compare(out, self._plan, but=list(done)).join(done.values())

    def index(self, *, again: bool = False) -> TensorIndex:
        """The index of the complete output; see :meth:`OutputReader.complete`."""
        return self._reader.complete(again=again)

    def _side_by_side(self, files: int) -> int:
        """The number of files to write at once; one if order matters."""
        if not THREADS or self._on_server or self._plan.errors is not None:
            return 1
        return max(1, min(files, made_at_once(), MOST_FILES))

    def _unwritten(self, number: int) -> Progress:
        file, frame, path = self._parts[number]
        leads = {"digest": LEAD}
        if self._verify:
            leads["compare"] = SHORT_LEAD if self._on_server or self._slow.get(number) else LEAD
        progress = Progress(leads if self._pool is not None else {})
        _, progress.written, nbytes = payload(file, frame, path)
        progress.end = progress.written + nbytes
        return progress

    def _has_slow(self, number: int) -> bool:
        """Say whether converted rows of a file are cached for its comparison."""
        return any(step.action in SLOW for step in self._plan.files[number].steps)

    def _begin(self, number: int, fd: int) -> _Flight:
        file, frame, path = self._parts[number]
        progress, tiles = self._progress[path], Tiles(made_at_once()) if self._slow[number] else None
        return _Flight(
            number,
            fd,
            (
                self._submit(self._write, number, fd, tiles),
                self._submit(digest, fd, digested(file, frame, path), progress),
                self._submit(self._compare, path, tiles),
                self._submit(flush, fd, file.nbytes, progress),
            ),
        )

    def _submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        if self._pool is not None:
            return self._pool.submit(copy_context().run, work, *given)
        done: Future[Any] = Future()
        try:
            done.set_result(work(*given))
        except BaseException as error:
            done.set_exception(error)
        return done

    def _write(self, number: int, fd: int, tiles: Tiles | None) -> Losses:
        file, losses = self._plan.files[number], Losses(self._plan)
        with self._source.twin(self._most) as files, closing(chunks(file, files, losses, tiles)) as made:
            write_file(fd, made, file.nbytes, self._progress[self._paths[number]])
        return losses

    def _compare(self, path: Path, tiles: Tiles | None) -> Compared | None:
        progress, growing = self._progress[path], GrowingOutput(self._progress, path)
        try:
            out = self._reader.early(growing) if self._verify else None
            if out is None:
                return None
            only = [path] if len(self._paths) > 1 else None
            return compare(out, self._plan, growing, only=only, tiles=tiles, most=self._most)
        except Stopped:
            if progress.stopped:
                raise
            return None  # the comparison needs bytes of another file
        finally:
            progress.leave("compare")


def phase(plan: Plan) -> str:
    """The name of the phase for a progress bar."""
    return "quantizing" if plan.errors else "writing"


class _Flight(NamedTuple):
    """A file that is being written.

    Attributes:
        tasks: the writer, the hash, the comparison and the flush.
    """

    number: int
    fd: int
    tasks: tuple[Future[Losses], Future[bytes], Future[Compared | None], Future[None]]

    @property
    def error(self) -> BaseException | None:
        """The first error in the order of ``tasks``; :class:`Stopped` comes last."""
        errors = [error for task in self.tasks if (error := task.exception()) is not None]
        return next((error for error in errors if not isinstance(error, Stopped)), next(iter(errors), None))

    @property
    def result(self) -> FileResult:
        """The result of all four tasks."""
        losses, found, compared, _ = self.tasks
        return FileResult(self.number, found.result(), compared.result(), losses.result())
