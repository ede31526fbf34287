"""Stream the steps of a plan into files or a pipe."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ckconv.core.tensors import Extent
from ckconv.engine.following import Growth, Telling
from ckconv.engine.lookback import LookBack
from ckconv.engine.losses import Losses
from ckconv.engine.pipeline import Pipeline
from ckconv.engine.rowmoves import Moved, moved_chunks, row_order
from ckconv.engine.writeback import Disk, WriteBehind
from ckconv.errors import OutputError, UnsupportedError, UsageError, VerifyError
from ckconv.io.files import Files
from ckconv.plan.container import Container, Frame
from ckconv.plan.steps import OutputFile, Plan, Step
from ckconv.publish.files import write_code
from ckconv.quant.convert import Action, Conversion
from ckconv.signals import blocking
from ckconv.system import read_at, write_at

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ckconv.core.tensors import Tensor
    from ckconv.engine.pipeline import Placed
    from ckconv.io.stored import Piece
    from ckconv.io.tiles import Tiles
    from ckconv.quant.codec import Rows

#: Before anything is written.
NO_DIGEST = bytes(32)


class Watcher(Protocol):
    """Hears of progress: a phase begins with its total bytes, then bytes are done, with the tensor they belong to."""

    def begin(self, phase: str, total: int) -> None:
        """A phase of ``total`` bytes begins."""

    def __call__(self, nbytes: int, name: str) -> None:
        """``nbytes`` more are done."""


class Unwatched:
    """A watcher for whom nothing is done."""

    def begin(self, phase: str, total: int) -> None:
        """Ignored."""

    def __call__(self, nbytes: int, name: str) -> None:
        """Ignored."""


class Sink(Protocol):
    """What steps append bytes to: :class:`ckconv.engine.pipeline.Pipeline`, or what holds them against a file.

    Attributes:
        to_file: they stay where they are written, and what :func:`write_frames` wrote is there.
    """

    to_file: bool

    @property
    def position(self) -> int:
        """Bytes appended so far."""

    def put(self, data: Buffer, moved: Moved | None = None, offset: int = 0) -> None:
        """Append the bytes of a buffer, which are those of moved rows from ``offset`` on, if any are named."""

    def copy(self, fd: int, offset: int, nbytes: int, *, path: Path, tensor: str = "") -> None:
        """Append bytes of another file."""

    def zeros(self, nbytes: int) -> None:
        """Append zeros."""

    def skip(self, nbytes: int) -> None:
        """Leave bytes of a file as they are."""


class Told:
    """Tells a watcher of bytes, and of the tensor that they belong to."""

    def __init__(self, watcher: Callable[[int, str], None]) -> None:
        self._watcher = watcher
        self._name = ""

    def begin(self, name: str) -> None:
        """What comes next belongs to this tensor."""
        self._name = name
        self._watcher(0, name)

    def __call__(self, nbytes: int) -> None:
        """So many bytes more are done."""
        self._watcher(nbytes, self._name)


def stream(
    file: OutputFile,
    frame: Frame,
    begin: int,
    files: Files,
    pipeline: Sink,
    told: Told,
    losses: Losses,
    tiles: Tiles | None = None,
) -> None:
    """Append all of a file from byte ``begin`` on, what stands behind its tensors left out."""
    following = iter(file.steps[1:])
    for step in file.steps:
        for tensor in _stored(next(following, None)):
            files.will_need(tensor.extents[0].path, tensor.extents[0].offset, tensor.extents[0].nbytes)
        _fill(pipeline, step.offset - begin, step.slot)
        told.begin(step.target.name)
        _run_step(step, files, pipeline, losses, tiles)
    _fill(pipeline, file.nbytes - len(frame.epilogue) - begin, "the end")


def _stored(step: Step | None) -> Iterator[Tensor]:
    """The arrays that a step reads."""
    for tensor in step.sources if step else ():
        yield from tensor.arrays


def _fill(pipeline: Sink, until: int, what: str) -> None:
    """Zeros up to where the next run of bytes begins."""
    gap = until - pipeline.position
    if gap < 0:
        raise AssertionError(f"{what} is planned {-gap:,} bytes before the end of the one before it")
    if gap:
        pipeline.zeros(gap)


def _run_step(step: Step, files: Files, pipeline: Sink, losses: Losses, tiles: Tiles | None) -> None:
    """Append the step's bytes and count what they could not keep."""
    if step.content is not None:
        if pipeline.to_file:  # it is there already
            pipeline.skip(len(step.content))
        else:
            pipeline.put(step.content)
        return
    if step.source is None:
        pipeline.zeros(step.nbytes)
        return
    extents = step.copied
    if extents is not None:
        for extent in extents:
            pipeline.copy(
                files.fd(extent.path), extent.offset, extent.nbytes, path=extent.path, tensor=step.source.source
            )
        return
    order = row_order(step.source, step.target) if step.action is Action.COPY and not step.runs else None
    if order is not None:
        rows, done = Moved.of(step.source, order), 0
        for chunk in moved_chunks(step.source, order, files):
            pipeline.put(chunk, rows, done)
            done += len(chunk)
        return
    _convert(step, files, pipeline, losses, tiles)


def _convert(step: Step, files: Files, pipeline: Sink, losses: Losses, tiles: Tiles | None) -> None:
    """Append rows that are put together or converted, several pieces at once."""
    from ckconv.io.ahead import SideBySide, is_light
    from ckconv.io.joined import JoinedRows
    from ckconv.io.stored import stored_pieces
    from ckconv.io.tiles import is_handed_over
    from ckconv.io.together import reader_of

    assert step.conversion is not None
    assert step.source is not None
    tensor, cols, how = step.source, step.target.layout.cols, step.conversion
    counted: dict[tuple[int, int, int, int], int] = {}

    def reading(files: Files) -> Any:
        return JoinedRows(step.runs, cols, files, counted) if step.runs else reader_of(tensor, how, files, tiles)

    placing = pipeline if isinstance(pipeline, Pipeline) and pipeline.to_file else None
    append: Callable[[Any], None] = placing.take if placing else pipeline.put
    begin, known = pipeline.position, tiles is not None and not step.runs and is_handed_over(tensor, how)

    def make(piece: Piece, reader: Any) -> tuple[Placed | Rows, int]:
        made, some = piece(reader)
        if placing is None:
            return made, some
        return placing.place(made, begin + step.nbytes * piece.start // piece.of, known=known), some

    rows = SideBySide(reading, files)
    joined = rows.first if isinstance(rows.first, JoinedRows) else None
    conversion = Conversion(joined.dtype, joined.dtype) if joined else how
    light = all(is_light(run.tensor, run.conversion) for run in step.runs) if joined else is_light(tensor, conversion)
    try:
        pieces = (partial(make, piece) for piece in stored_pieces(rows.first, step.target.layout, conversion))
        with closing(rows.each(pieces, alone=light)) as found:
            for made, some in found:
                append(made)
                losses.add(step, some)
    except UnsupportedError as error:  # rows do not know whose they are
        if error.tensor is None:
            error.tensor, error.path = tensor.source, str(losses.path)
            error.message = f"{error.message}: {error.tensor}"
        raise
    if joined:
        losses.add(step, joined.changed)
    change = max(reader.max_change for reader in rows.readers)
    if change:
        name = step.target.name
        losses.merged[name] = max(losses.merged.get(name, 0.0), change)


def write_frames(plan: Plan, container: Container, fds: Iterable[int], path: Path) -> None:
    """Give every file its size, and write what is around the tensors; the digests in headers are zeros.

    Args:
        fds: one a file, each used before the next is asked for.
        path: what an error calls them.

    Raises:
        VerifyError: ``verify.file``.
    """
    for file, frame, fd in zip(plan.files, container.frames, fds, strict=True):
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
    """The part of a file that :func:`write_file` writes, with the file at ``path``."""
    begin = frame.header_bytes + len(frame.prologue)
    return Extent(path, begin, file.nbytes - len(frame.epilogue) - begin)


def write_file(
    plan: Plan,
    file: OutputFile,
    frame: Frame,
    files: Files,
    output: tuple[int, Path],
    growth: Growth,
    told: Callable[[int, str], None],
    disk: Disk | None = None,
) -> Losses:
    """Write the payload of one file.

    Args:
        output: its descriptor and place.
        growth: hears how far it is.
        disk: waits until the file is there; ``None``: it is when this returns, but for its last bytes.
        told: hears of bytes and of the tensor they belong to.

    Returns:
        what could not be kept, for the caller to check.
    """
    fd, place = output
    telling, losses = Told(told), Losses(plan)
    begin = payload(file, frame, place).offset
    followers = (WriteBehind(fd, disk), Telling(growth, place, begin))
    telling(begin + len(frame.epilogue))
    back = LookBack(growth.copies, growth.handed, growth.place(place, begin))
    with Pipeline(fd, offset=begin, progress=telling, followers=followers, back=back) as pipeline:
        stream(file, frame, begin, files, pipeline, telling, losses, growth.tiles)
        pipeline.finish()
    return losses


def phase(plan: Plan) -> str:
    """What a watcher calls writing it."""
    return "quantising" if plan.errors else "writing"


def write_stdout(plan: Plan, container: Container, files: Files, fd: int, watcher: Watcher) -> tuple[bytes, Losses]:
    """Two passes where a header holds the digest of what follows it: a pipe cannot be gone back in.

    The first pass also finds what may not be lost.
    """
    if len(plan.files) != 1:
        hint = "leave out --max-shard-size" if plan.options.max_shard_bytes else "name a file or a directory"
        raise UsageError("usage.target", f"{len(plan.files)} files cannot go to stdout", hint=hint)
    file, frame = plan.files[0], container.frames[0]
    begin = frame.header_bytes
    told = Told(watcher)
    losses = counted = Losses(plan)
    digest = b""
    if frame.header or any(_may_lose(step) for step in file.steps):
        watcher.begin("hashing", plan.nbytes)
        with Pipeline(None, progress=told) as pipeline:
            pipeline.put(frame.prologue)
            stream(file, frame, begin, files, pipeline, told, losses)
            digest = pipeline.finish()
        losses.check()
        counted = Losses(plan)
    watcher.begin("writing", plan.nbytes)
    with _to_reader():
        if frame.header:
            _write_all(fd, frame.header(digest))
        with Pipeline(fd, seekable=False, progress=told) as pipeline:
            pipeline.put(frame.prologue)
            stream(file, frame, begin, files, pipeline, told, counted)
            again = pipeline.finish()
        if digest and again != digest:
            raise OutputError("input.changed", "the input changed between two passes over it", path=plan.index.path)
        _write_all(fd, frame.epilogue)
    told(frame.header_bytes + len(frame.epilogue))
    files.check_unchanged()
    return again, losses


@contextmanager
def _to_reader() -> Iterator[None]:
    """A model on stdout that was not read to its end is an error, unlike a listing of which only the head is wanted.

    Raises:
        OutputError: ``output.write`` or ``output.space``.
    """
    try:
        yield
    except BrokenPipeError as error:
        message = "stdout was closed by its reader before the model was complete"
        raise OutputError("output.write", message) from error
    except OSError as error:
        if error.filename is not None:
            raise
        raise OutputError(write_code(error), f"stdout cannot be written: {error.strerror or error}") from error


def _may_lose(step: Step) -> bool:
    """Whether all of the step's values survive is only known when they are converted."""
    conversions = [run.conversion for run in step.runs] if step.runs else [step.conversion]
    return any(c is not None and (not c.exact or c.action is Action.REPACK) for c in conversions)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while len(view):
        with blocking():
            view = view[os.write(fd, view) :]
