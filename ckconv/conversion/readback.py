"""What stands around the tensors of a staged file, read back and held against the bytes that were meant.

The tensors themselves are compared with their source, through the reader of the format.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ckconv.errors import VerifyError
from ckconv.io.files import CHUNK, Files
from ckconv.plan.steps import Frame, OutputFile, Plan
from ckconv.system import read_at

CODE = "verify.file"

_ZEROS = bytes(CHUNK)


def check_frame(file: OutputFile, frame: Frame, header: bytes, fd: int, path: Path) -> None:
    """The header, what follows it, entries that are no tensors, padding between tensors and the end of a file.

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
    """Everything that is no tensor: what it is, where it lies, its bytes."""
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
    """What a restored source has out of its record and not out of the bump file is what the record keeps.

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
