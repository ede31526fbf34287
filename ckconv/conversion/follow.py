"""Work on a file while it is written: digest, flush, comparison."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Condition, Lock
from typing import Protocol

from ckconv.core.tensors import Extent, TensorIndex
from ckconv.errors import OutputError, VerifyError, code_of, unreadable
from ckconv.io.digests import HASHED_AT_ONCE, FileHash
from ckconv.io.files import CHUNK, Files
from ckconv.io.tiles import Tiles
from ckconv.plan.steps import Frame, OutputFile, Plan
from ckconv.publish.files import growing as opening
from ckconv.system import MAX_OPEN, read_at, sync_data, syncs_data
from ckconv.verification.tensors import Compared, TensorComparison, within

# How far a file is written: one thread writes it, others follow.

#: Bytes that may be written before whoever follows has asked for them: they are in memory still.
LEAD = 64 << 20


class Stopped(Exception):
    """The file that a thread follows will not be completed."""


class Watcher(Protocol):
    """Listener to progress: phases with total bytes, then bytes of tensors."""

    def begin(self, phase: str, total: int) -> None:
        """A phase of ``total`` bytes begins."""

    def __call__(self, nbytes: int, name: str, /) -> None:
        """``nbytes`` more are done."""


class Watching:
    """A watcher that calls a function with bytes and a name, or does nothing."""

    def __init__(self, tell: Callable[[int, str], None] | None = None) -> None:
        self._tell = tell

    def begin(self, phase: str, total: int) -> None:
        """Ignore the phase."""

    def __call__(self, nbytes: int, name: str, /) -> None:
        """Pass them on."""
        if self._tell is not None:
            self._tell(nbytes, name)


def watching(progress: Callable[[int, str], None] | Watcher | None) -> Watcher:
    """A watcher of what a program gives: nothing, a function, or a watcher."""
    return progress if progress is not None and hasattr(progress, "begin") else Watching(progress)


class Progress:
    """The number of bytes of one file that are written, from its beginning on.

    The writer waits where a follower is far behind: what was written is to be in memory, or in a cache, still.

    Attributes:
        written: how many they are.
        end: what begins here was written before.
        tensor: whose the last ones are.
        stopped: there will be no more.
    """

    def __init__(self, leads: Mapping[str, int]) -> None:
        """Nothing is written.

        Args:
            leads: follower -> bytes that may be written beyond those that it waits for.
        """
        self._changed = Condition()
        self._leads = dict(leads)
        self._wanted = dict.fromkeys(leads, 0)
        self.written, self.end, self.tensor = 0, math.inf, ""
        self.stopped = False

    def advance(self, until: int, tensor: str = "") -> None:
        """Bytes before ``until`` are written, the last ones of this tensor."""
        with self._changed:
            reached = any(self.written < wanted <= until for wanted in self._wanted.values())
            self.written, self.tensor = until, tensor
            if reached:  # to wake a thread costs more than to look
                self._changed.notify_all()
            self._changed.wait_for(lambda: self.stopped or until <= self._limit())

    def _limit(self) -> float:
        return min((self._wanted[name] + lead for name, lead in self._leads.items()), default=self.written)

    def wait(self, until: int, follower: str) -> int:
        """Wait until bytes before ``until`` are written; returns how many are.

        Raises:
            Stopped: they will not be.
        """
        with self._changed:
            if until > self._wanted.get(follower, 0):
                self._wanted[follower] = until
                if follower in self._leads:
                    self._changed.notify_all()
            self._changed.wait_for(lambda: self.written >= until or self.stopped)
            if self.written < until:
                raise Stopped
            return self.written

    def leave(self, follower: str) -> None:
        """The writer waits for this one no more."""
        with self._changed:
            self._leads.pop(follower, None)
            self._changed.notify_all()

    def stop(self) -> None:
        """End the file: wake all threads that wait for bytes."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()


class Growing:
    """Files of an output, as the comparison of one of them sees all.

    :class:`ckconv.io.files.Files` asks before it reads.
    """

    def __init__(self, files: Mapping[Path, Progress], own: Path) -> None:
        """Wait for nothing yet.

        Args:
            files: each, however far it is.
            own: the one whose bytes are waited for.
        """
        self._files, self._own = files, own

    @property
    def paths(self) -> Collection[Path]:
        """Which they are."""
        return self._files.keys()

    def wait_for(self, path: Path, start: int, stop: int) -> None:
        """Return when the bytes ``start`` to ``stop`` of ``path`` are written.

        Raises:
            Stopped: they will not be, or are those of another file and not there yet.
        """
        progress = self._files.get(path)
        if progress is None or start >= progress.end:
            return
        if path == self._own:
            progress.wait(stop, "compare")
        elif progress.written < stop:
            raise Stopped


# Work on a file while it is written: its SHA-256, its flush to disk, and the comparison with the source.

#: Bytes between two flushes: some tenths of a second for a disk.
SYNC_EVERY = 64 << 20


def digest(fd: int, extent: Extent, progress: Progress) -> bytes:
    """Return the SHA-256 of a part of a file that is being written.

    Raises:
        InputError: ``input.unreadable``.
        OutputError: ``input.changed``, the file ends early.
    """
    path, begin, nbytes = extent
    found = FileHash(fd, begin)
    try:
        while found.nbytes < nbytes:
            ready = progress.wait(begin + min(found.nbytes + HASHED_AT_ONCE, nbytes), "digest") - begin
            found.read_to(min(ready, nbytes))
            if found.nbytes < min(ready, nbytes):
                raise OutputError("input.changed", "the file ends early: it has changed", path=path)
    except OSError as error:
        at = begin + found.nbytes
        raise unreadable(error, path, doing=f"cannot be read at byte {at:,}", offset=at) from error
    finally:
        progress.leave("digest")
    return found.digest


def flush(fd: int, end: int, progress: Progress) -> None:
    """Flush a file to disk while it is written.

    A system reports a failed write only once, to an open file.

    The last ``SYNC_EVERY`` bytes are flushed with the rest of the output.

    Raises:
        OutputError: ``output.write`` or ``output.space``.
    """
    at = 0
    while end - at >= SYNC_EVERY and syncs_data():
        at = progress.wait(at + SYNC_EVERY, "flush")
        try:
            sync_data(fd)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):  # a device: there is nothing to bring
                return
            message = f"writing failed within the first {at:,} bytes: {error.strerror}"
            raise OutputError(code_of(error), message) from error


class Reader:
    """The index of an output that is being written, read once for all files."""

    def __init__(self, read: Callable[[], TensorIndex]) -> None:
        """Read nothing yet."""
        self._read = read
        self._turn, self._found = Lock(), list[TensorIndex | None]()

    def early(self, growing: Growing) -> TensorIndex | None:
        """Return the index when headers are written; ``None`` if it needs more."""
        with self._turn:
            if not self._found:
                try:
                    with opening(growing.wait_for):
                        out = self._read()
                    self._found.append(out if set(growing.paths) >= set(out.files) else None)
                except Stopped:
                    self._found.append(None)
            return self._found[0]

    def late(self) -> TensorIndex:
        """Return the index of the complete output."""
        return (self._found and self._found[0]) or self._read()

    def forget(self) -> None:
        """Nobody asks any more."""
        self._found.clear()


def compare(
    out: TensorIndex,
    plan: Plan,
    growing: Growing | None = None,
    *,
    only: Sequence[Path] | None = None,
    but: Sequence[Path] = (),
    tiles: Tiles | None = None,
    most: int = MAX_OPEN,
) -> Compared:
    """Compare the tensors of an output with the source.

    Args:
        growing: the files that are being written.
        only: compare only tensors that lie entirely in one of these files.
        but: skip tensors that lie entirely in one of these files.
        most: the number of files that may be open at once.
    """
    alone = within(only or but)
    with Files(plan.index.identities, growing, most) as files:
        found = TensorComparison(
            out,
            plan.index,
            files,
            left_out=plan.options.drop,
            left_parts=[left.name for left in plan.left_out],
            configuration=not (plan.options.set_meta or plan.options.drop_meta),
            importance=plan.importance,
            decodes=plan.options.decodes,
            tiles=tiles,
            only=alone if only else (lambda tensor: not alone(tensor)) if but else None,
            absent=not only,
        ).run()
        files.check_unchanged()
    return found


def compare_restored(out: TensorIndex, plan: Plan) -> Compared:
    """Compare a restored source with the file that it was restored from."""
    assert plan.restores is not None
    with Files(plan.index.identities) as files:
        found = TensorComparison(plan.index, out, files, left_out=plan.restores.left_out).run()
        files.check_unchanged()
    return found


# What stands around the tensors of a staged file, read back and held against the bytes that were meant.
#
# The tensors themselves are compared with their source, through the reader of the format.

CODE = "verify.file"

_ZEROS = bytes(CHUNK)


def check_frame(file: OutputFile, frame: Frame, header: bytes, fd: int, path: Path) -> None:
    """Check every byte of a file outside of its tensors.

    Args:
        header: as it was made, out of the digest of what was meant to be written.
        fd: the staged file.
        path: what an error calls it.

    Raises:
        VerifyError: ``verify.file``, with the offset of a byte that is another one.
    """
    size = os.fstat(fd).st_size
    if size != file.nbytes:
        message = f"{size:,} bytes were written, {file.nbytes:,} were planned"
        raise VerifyError(CODE, message, path=path, found=size, allowed=file.nbytes)
    for what, offset, content in _parts(file, frame, header):
        for at in range(0, len(content), CHUNK):
            meant = content[at : at + CHUNK]
            stored = read_at(fd, len(meant), offset + at)
            if stored != meant:
                wrong = next((n for n, pair in enumerate(zip(stored, meant, strict=False)) if pair[0] != pair[1]), 0)
                message = f"{what} differs from what should have been written, at byte {offset + at + wrong:,}"
                raise VerifyError(CODE, message, path=path, offset=offset + at + wrong)


def _parts(file: OutputFile, frame: Frame, header: bytes) -> Iterator[tuple[str, int, bytes]]:
    """The parts of a file that are not tensors: label, offset, bytes."""
    yield "the header", 0, header
    yield "the header", frame.header_bytes, frame.prologue
    at = frame.header_bytes + len(frame.prologue)
    for step in file.steps:
        yield from _padding(at, step.offset)
        if step.content is not None:
            yield step.slot, step.offset, step.content
        at = step.offset + step.nbytes
    end = file.nbytes - len(frame.epilogue)
    yield from _padding(at, end)
    yield "the end", end, frame.epilogue


def _padding(start: int, stop: int) -> Iterator[tuple[str, int, bytes]]:
    for at in range(start, stop, CHUNK):
        yield "padding", at, _ZEROS[: min(CHUNK, stop - at)]


def check_kept(plan: Plan, staged: Iterable[Path], path: Path) -> None:
    """Compare bytes that a restored source has of its record with the record.

    Raises:
        VerifyError: ``verify.file``.
    """
    record = plan.index.files[-1]
    with Files() as files:
        for file, place in zip(plan.files, staged, strict=True):
            for step in file.steps:
                if step.source is None or step.source.extents[0].path != record:
                    continue
                kept = step.source.extents[0]
                if not files.are_same([((record, kept.offset), (place, step.offset), kept.nbytes)]):
                    message = f"{step.slot} differs from what the record keeps, from byte {step.offset:,} on"
                    raise VerifyError(CODE, message, path=path, offset=step.offset)
