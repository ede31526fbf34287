"""Bytes of a file, and who follows them: digest, flush, comparison."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from itertools import chain, groupby, pairwise
from pathlib import Path
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any, Protocol

from ckconv.core.lazy import NamedTuple, NDArray, np, replace
from ckconv.core.metadata import SideFile, pieces_of
from ckconv.core.tensors import Extent, TensorIndex, identity
from ckconv.errors import (
    CkconvError,
    OutputError,
    UnsupportedError,
    UsageError,
    VerifyError,
    code_of,
    counted,
    listed,
    unreadable,
)
from ckconv.io.digests import HASHED_AT_ONCE, FileHash
from ckconv.io.files import CHUNK, READ_AHEAD, Files, growing as opening
from ckconv.io.tiles import SideBySide, Tiles, is_in_steps
from ckconv.plan.steps import Container, Frame, OutputFile, Plan, Step
from ckconv.quant.convert import Action, Conversion
from ckconv.system import MAX_OPEN, read_at, sync_data, syncs_data, wait_for_reader, write_at, write_some
from ckconv.system.signals import blocking, check
from ckconv.verification.tensors import Compared, SourceChecksum, TensorComparison, within

if TYPE_CHECKING:
    from typing_extensions import Buffer

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


class Callback:
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
    return progress if progress is not None and hasattr(progress, "begin") else Callback(progress)


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


class GrowingOutput:
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


class OutputReader:
    """The index of an output that is being written, read once for all files."""

    def __init__(self, read: Callable[[], TensorIndex]) -> None:
        """Read nothing yet."""
        self._read = read
        self._turn, self._found = Lock(), list[TensorIndex | None]()

    def early(self, growing: GrowingOutput) -> TensorIndex | None:
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

    def complete(self, *, again: bool = False) -> TensorIndex:
        """Return the index of the complete output.

        Args:
            again: headers were written after it was read.
        """
        found = self._found[0] if self._found else None
        if found is not None and not again:
            now = {path: identity(path.stat()) for path in found.identities}
            if {path for path, _ in found.identities.items() - now.items()} <= {*found.files}:  # which have grown
                return replace(found, identities=now)
        self._found, found = [], None  # one index at a time: a million tensors take half a gigabyte
        self._found.append(self._read())
        return self.complete()


def compare(
    out: TensorIndex,
    plan: Plan,
    growing: GrowingOutput | None = None,
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
            options=plan.options,
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


# What stands around the tensors of a staged file, read back and compared with the bytes that were meant.
#
# The tensors themselves are compared with their source, through the reader of the format.

CODE = "verify.file"

_EMPTY = bytes(CHUNK)


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
        offset = step.offset
        yield from _padding(at, offset)
        if step.content is not None:
            yield step.slot, offset, step.content
        at = offset + step.nbytes
    end = file.nbytes - len(frame.epilogue)
    yield from _padding(at, end)
    yield "the end", end, frame.epilogue


def _padding(start: int, stop: int) -> Iterator[tuple[str, int, bytes]]:
    for at in range(start, stop, CHUNK):
        yield "padding", at, _EMPTY[: min(CHUNK, stop - at)]


def check_stored(plan: Plan, staged: Iterable[Path], path: Path) -> None:
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
                extent = step.source.extents[0]
                if not files.are_same([((record, extent.offset), (place, step.offset), extent.nbytes)]):
                    message = f"{step.slot} differs from what the record keeps, from byte {step.offset:,} on"
                    raise VerifyError(CODE, message, path=path, offset=step.offset)


# -- The bytes of a file: frame and steps ------------------------------------------------------------------------------

# What steps of a plan could not keep, counted, and refused where nobody asked for it.


class Losses:
    """Losses of steps: changed values, and groups that no block holds."""

    def __init__(
        self, plan: Plan, changed: Mapping[str, int] | None = None, merged: Mapping[str, float] | None = None
    ) -> None:
        """Nothing is lost yet but what is given."""
        self._plan = plan
        self.changed = dict(changed or {})
        #: Tensor that adapters change -> the largest difference that they made to a value.
        self.merged = dict(merged or {})
        self._unfit: dict[str, int] = {}

    @property
    def path(self) -> Path:
        """The file that is converted."""
        return self._plan.index.path

    @property
    def quantizes(self) -> str:
        """Value of ``--quantize``; empty without."""
        return self._plan.options.quantize

    def add(self, step: Step, count: int) -> None:
        """``count`` values of a step's source did not survive."""
        if count and step.source is not None and not (step.conversion and step.conversion.quantizes):
            counts = self._unfit if step.action is Action.REPACK else self.changed
            counts[step.source.source] = counts.get(step.source.source, 0) + count

    def merge(self, name: str, change: float) -> None:
        """Note the largest change that adapters made to a value of a tensor."""
        if change:
            self.merged[name] = max(self.merged.get(name, 0.0), change)

    def join(self, other: Losses) -> None:
        """Add what could not be kept in files that other threads or workers wrote."""
        for own, added in ((self.changed, other.changed), (self._unfit, other._unfit)):
            for name, count in added.items():
                own[name] = own.get(name, 0) + count
        for name, change in other.merged.items():
            self.merge(name, change)

    def check(self) -> None:
        """Raise what may not be lost."""
        options = self._plan.options
        if self._unfit:
            text = "{} have numbers that no block can hold"
            raise self._refusal("plan.repack", text, self._unfit, "group", "--dequantize decodes them")
        if self.changed and not options.allow_lossy and options.dtype != "source":
            what = options.dtype if options.dtype not in ("engine", "keep") else self._plan.target_name
            text = f"{what} cannot hold {{}} exactly"
            raise self._refusal("plan.lossy", text, self.changed, "value", "--allow-lossy rounds them")

    def _refusal(self, code: str, text: str, counts: Mapping[str, int], unit: str, hint: str) -> UnsupportedError:
        """``text`` with the sum in its place, and every tensor with its count."""
        return UnsupportedError(
            code,
            text.format(f"{counted(sum(counts.values()), unit)} of {counted(len(counts), 'tensor')}"),
            path=self._plan.index.path,
            tensor=next(iter(counts)),
            hint=self._plan.followable(hint),
            details=listed([f"{name}: {counted(count, unit)}" for name, count in counts.items()]),
        )


# The bytes of a file: its frame first, then those of its steps, copied or converted.

#: What a digest is before anything is written.
NO_DIGEST = bytes(32)

#: A run of zeros shorter than this is written like any other bytes: holes are whole blocks of the file system.
SMALLEST_HOLE = 64 << 10

_ZEROS = memoryview(bytes(CHUNK))


class Chunk(NamedTuple):
    """Some bytes of a file.

    Attributes:
        offset: in the file.
        data: contiguous; may be overwritten when the next chunk is asked for.
        name: of the tensor that they belong to.
    """

    offset: int
    data: Buffer
    name: str


def write_file(fd: int, chunks: Iterable[Chunk], end: int, progress: Progress) -> None:
    """Write chunks, and say how far the file is; complete before ``end``.

    Raises:
        OutputError: ``output.write`` or ``output.space``.
        Stopped: nobody wants the file any more.
    """
    try:
        for offset, data, name in chunks:
            view = memoryview(data)
            view = view.cast("B") if view.nbytes else memoryview(b"")
            for start in range(0, len(view), CHUNK):
                check()
                if progress.stopped:
                    raise Stopped
                part, at = view[start : start + CHUNK], offset + start
                write_all(fd, part, at)
                progress.advance(at + len(part), name)
        progress.advance(end, "")
    except BaseException:
        progress.stop()
        raise


def write_all(fd: int, data: memoryview, offset: int) -> None:
    """Write all of ``data`` to a file at ``offset``.

    Raises:
        OutputError: ``output.write`` or ``output.space``.
    """
    try:
        while len(data):
            wrote = write_some(fd, data, offset)
            data, offset = data[wrote:], offset + wrote
    except OSError as error:
        message = f"writing failed after {offset:,} bytes: {error.strerror}"
        raise OutputError(code_of(error), message, offset=offset) from error


def chunks(
    file: OutputFile, files: Files, losses: Losses, tiles: Tiles | None = None, *, entries: bool = False
) -> Generator[Chunk, None, None]:
    """The bytes of a file's tensors, in order, without those in between.

    Args:
        files: of the source.
        losses: hears of what could not be kept.
        tiles: converted rows, for whoever compares them.
        entries: those that are no tensors, too.

    Raises:
        CkconvError: the source cannot be read, or its values not be written.
    """
    for step, after in pairwise(chain(file.steps, (None,))):
        assert step is not None
        for source in after.sources if after else ():
            for array in source.arrays:
                files.will_need(array.extents[0].path, array.extents[0].offset, array.extents[0].nbytes)
        if step.content is not None:
            if entries:
                yield Chunk(step.offset, step.content, step.target.name)
            continue
        offset = step.offset
        for data in _pieces(step, files, losses, tiles):
            yield Chunk(offset, data, step.target.name)
            offset += memoryview(data).nbytes


def bytes_of(step: Step, files: Files, losses: Losses) -> bytearray:
    """All bytes that a step writes, in memory."""
    made, at = bytearray(step.nbytes), 0
    for data in _pieces(step, files, losses, None):
        view = memoryview(data).cast("B")
        made[at : at + view.nbytes] = view
        at += view.nbytes
    return made


def _pieces(step: Step, files: Files, losses: Losses, tiles: Tiles | None) -> Iterator[Buffer]:
    """The bytes of a step, in order; none of zeros."""
    if step.source is None:
        return
    extents = step.copied
    try:
        if extents is not None:
            yield from _copied(extents, step.offset, files)
        else:
            yield from _convert(step, files, losses, tiles)
    except CkconvError as error:  # bytes and rows do not know whose they are
        if error.tensor is None:
            error.tensor = step.source.source
            if isinstance(error, UnsupportedError):
                error.path = str(losses.path)
                error.message = f"{error.message}: {error.tensor}"
                if error.code == "quantize.value" and losses.quantizes:
                    error.hint = f"--quantize {losses.quantizes},{error.tensor}=f32 leaves that tensor as floats"
        raise


def _copied(extents: Iterable[Extent], place: int, files: Files) -> Iterator[memoryview]:
    """The bytes of extents in pieces.

    They end where chunks of the file do that is written from ``place`` on: a system writes whole pages in less time.
    """
    buffer = files.pages
    for path, offset, nbytes in extents:
        for begin in range(offset, offset + nbytes, READ_AHEAD):
            at, end = begin, min(begin + READ_AHEAD, offset + nbytes)
            files.will_need(path, end, offset + nbytes - end)
            while at < end:
                part = buffer[: min(CHUNK - place % CHUNK, end - at)]
                files.read_into(path, at, part)
                yield part
                at, place = at + len(part), place + len(part)


def _convert(step: Step, files: Files, losses: Losses, tiles: Tiles | None) -> Iterator[Buffer]:
    """Rows that move, are joined or converted, several pieces at once."""
    from ckconv.io.stored import JoinedRows, reader_of, stored_pieces

    assert step.conversion is not None
    assert step.source is not None
    tensor, cols, how = step.source, step.target.layout.cols, step.conversion
    counted: dict[tuple[int, int, int, int], int] = {}

    def reading(files: Files) -> Any:
        return JoinedRows(step.runs, cols, files, counted, tiles) if step.runs else reader_of(tensor, how, files, tiles)

    rows = SideBySide(reading, files)
    joined = rows.first if isinstance(rows.first, JoinedRows) else None
    conversion = Conversion(joined.dtype, joined.dtype) if joined else how
    parts = [(run.tensor, run.conversion) for run in step.runs] or [(tensor, conversion)]
    alone = all(is_in_steps(*part) for part in parts)
    pieces = (piece.make for piece in stored_pieces(rows.first, step.target.layout, conversion))
    with closing(rows.each(pieces, alone=alone)) as made:
        for data, changed in made:
            losses.add(step, changed)
            yield data
    if joined:
        losses.add(step, joined.changed)
    losses.merge(step.target.name, max(reader.max_change for reader in rows.readers))


def in_one_run(
    file: OutputFile, begin: int, end: int, files: Files, losses: Losses
) -> Iterator[tuple[memoryview, str]]:
    """The bytes of a file from ``begin`` to ``end``, with tensors' names."""
    at = begin
    for offset, data, name in chain(chunks(file, files, losses, entries=True), (Chunk(end, b"", ""),)):
        if offset < at:
            what = name or "the end"
            raise AssertionError(f"{what} is planned {at - offset:,} bytes before the end of the one before it")
        for start in range(at, offset, CHUNK):
            yield _ZEROS[: min(CHUNK, offset - start)], ""
        view = memoryview(data)
        if view.nbytes:
            yield view.cast("B"), name
        at = offset + view.nbytes


def write_frames(files: Iterable[tuple[OutputFile, Frame, int]], path: Path) -> None:
    """Give files their sizes; write all but tensors, with zeros as digests.

    Args:
        files: each with its frame and a descriptor, which is used before the next is asked for.
        path: what an error calls them.
    """
    for file, frame, fd in files:
        if os.fstat(fd).st_size < file.nbytes:
            os.ftruncate(fd, file.nbytes)
        header = frame.header(NO_DIGEST) if frame.header else b""
        write_at(fd, header, 0)
        if read_at(fd, len(header), 0) != header:  # readers trust it until it is written again
            raise VerifyError("verify.file", "the header differs from what should have been written", path=path)
        write_at(fd, frame.prologue, frame.header_bytes)
        write_at(fd, frame.epilogue, file.nbytes - len(frame.epilogue))
        for step in file.steps:
            if step.content is not None:
                write_at(fd, step.content, step.offset)


def payload(file: OutputFile, frame: Frame, path: Path) -> Extent:
    """The part of a file that is tensors, and entries and padding in between."""
    begin = frame.header_bytes + len(frame.prologue)
    return Extent(path, begin, file.nbytes - len(frame.epilogue) - begin)


def digested(file: OutputFile, frame: Frame, path: Path) -> Extent:
    """The byte range to hash: the part with a digest in the header, or all."""
    behind = len(frame.epilogue) if frame.header else 0
    return Extent(path, frame.header_bytes, file.nbytes - frame.header_bytes - behind)


def holes(file: OutputFile) -> list[tuple[int, int]]:
    """Offset and bytes of zeros that take no space in a file, in order."""
    return [(step.offset, step.nbytes) for step in file.steps if step.zero_filled and step.nbytes >= SMALLEST_HOLE]


# The tensors of a plan as arrays, for programs.

#: Type -> numpy's, of those that numpy has.
_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "BOOL": "?"}


def arrays(plan: Plan) -> Iterator[tuple[str, NDArray[Any]]]:
    """Name and array of each tensor of a plan, in the target's order.

    Raises:
        VerifyError: ``bump.checksum``, the source is damaged.
    """
    with Files(plan.index.identities) as files, SourceChecksum(plan.index) as sound:
        sound.check()
        steps = (step for step in plan.steps if step.content is None)
        for slot, parts in groupby(steps, lambda step: step.slot):
            made = [_array(step, plan, files) for step in parts]
            yield slot, np.concatenate(made) if len(made) > 1 else made[0]
        files.check_unchanged()


def _array(step: Step, plan: Plan, files: Files) -> NDArray[Any]:
    """Values of a step, in its target's shape; blocks as rows of bytes."""
    losses, dtype, shape = Losses(plan), step.target.dtype, step.target.shape
    data = bytes_of(step, files, losses)
    losses.check()
    kind = _NUMPY.get(dtype.name, f"<u{dtype.size}" if dtype.block == 1 and dtype.size <= 8 else "u1")
    array = np.frombuffer(data, kind)
    return array.reshape(*shape[:-1], -1) if dtype.block > 1 and shape else array.reshape(shape)


# A model on stdout: nothing can be taken back from there, and no header be written last.


#: Bytes of a block of a tar archive.
_BLOCK = 512


def write_archive(
    plan: Plan, container: Container, beside: Mapping[str, SideFile], files: Files, fd: int, watcher: Watcher
) -> Losses:
    """Write a tar archive of the files of a plan and its side files.

    Returns:
        What could not be kept.
    """
    losses = Losses(plan)
    for name, content in beside.items():
        with _to_reader():
            _write(fd, _head(name, len(content)))
            for data in pieces_of(content):
                _write(fd, data)
            _write(fd, _filled(len(content)))
    for file, frame in zip(plan.files, container.frames, strict=True):
        with _to_reader():
            _write(fd, _head(file.name, file.nbytes))
            _, losses = _write_file(plan, file, frame, losses, files, fd, watcher)
            _write(fd, _filled(file.nbytes))
    with _to_reader():
        _write(fd, bytes(2 * _BLOCK))
    files.check_unchanged()
    return losses


def _head(name: str, nbytes: int) -> bytes:
    """The header of a file in an archive: the same bytes for the same model."""
    from tarfile import PAX_FORMAT, TarInfo

    info = TarInfo(name)
    info.size = nbytes
    return info.tobuf(PAX_FORMAT)


def _filled(nbytes: int) -> bytes:
    return bytes(-nbytes % _BLOCK)


def write_stdout(plan: Plan, container: Container, files: Files, fd: int, watcher: Watcher) -> tuple[bytes, Losses]:
    """Write the one file of a plan to a pipe.

    In two passes where the header holds the digest of the bytes behind it.

    The first pass also finds what may not be lost, before anything is written.

    Returns:
        SHA-256 of what follows the header, and what could not be kept.

    Raises:
        UsageError: ``usage.target``, there are several files.
        UnsupportedError: a value would change that may not.
        OutputError: ``output.write``, ``output.space`` or ``input.changed``.
    """
    if len(plan.files) != 1:
        hint = (
            "leave out --max-shard-size; tar:- is a tar archive"
            if plan.options.max_shard_bytes
            else "tar:- is a tar archive"
        )
        raise UsageError("usage.target", f"{len(plan.files)} files cannot go to stdout", hint=hint)
    with _to_reader():
        digest, losses = _write_file(plan, plan.files[0], container.frames[0], Losses(plan), files, fd, watcher)
    files.check_unchanged()
    return digest, losses


def _write_file(
    plan: Plan, file: OutputFile, frame: Frame, known: Losses, files: Files, fd: int, watcher: Watcher
) -> tuple[bytes, Losses]:
    """Write one file to a pipe; add losses to the earlier ones."""
    begin, end = frame.header_bytes, file.nbytes - len(frame.epilogue)

    def content(losses: Losses) -> Iterator[tuple[memoryview, str]]:
        yield memoryview(frame.prologue), ""
        for data, name in in_one_run(file, begin + len(frame.prologue), end, files, losses):
            check()
            yield data, name
            watcher(len(data), name)

    losses, first, digest = known, b"", sha256()
    if frame.header or any(_may_lose(step) for step in file.steps):
        watcher.begin("hashing", plan.nbytes)
        for data, _ in content(losses):
            digest.update(data)
        losses.check()
        first, digest = digest.digest(), sha256()
    watcher.begin("writing", plan.nbytes)
    _write(fd, frame.header(first) if frame.header else b"")
    for data, _ in content(Losses(plan) if first else losses):
        _write(fd, data)
        digest.update(data)
    if first and digest.digest() != first:
        raise OutputError("input.changed", "the input changed between two passes over it", path=plan.index.path)
    _write(fd, frame.epilogue)
    watcher(begin + len(frame.prologue) + len(frame.epilogue), "")
    return digest.digest(), losses


@contextmanager
def _to_reader() -> Iterator[None]:
    """Turn a failed write to stdout into an error, a closed pipe too."""
    try:
        yield
    except BrokenPipeError as error:
        message = "stdout was closed by its reader before the model was complete"
        raise OutputError("output.write", message) from error
    except OSError as error:
        if error.filename is not None:
            raise
        raise OutputError(code_of(error), f"stdout cannot be written: {error.strerror or error}") from error


def _may_lose(step: Step) -> bool:
    """Whether only the conversion of a step tells if all values survive."""
    conversions = [run.conversion for run in step.runs] if step.runs else [step.conversion]
    return any(c is not None and (not c.exact or c.action is Action.REPACK) for c in conversions)


def _write(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while len(view):
        with blocking():
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:  # somebody made the pipe that we share non-blocking
                wait_for_reader(fd)
