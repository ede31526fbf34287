"""What is around the tensors of a file: written before them, but for digests in headers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ckconv.core.tensors import Extent
from ckconv.errors import VerifyError
from ckconv.plan.container import Frame
from ckconv.plan.steps import OutputFile
from ckconv.system import read_at, write_at

#: What a digest is before anything is written.
NO_DIGEST = bytes(32)

#: A run of zeros shorter than this is written like any other bytes: holes are whole blocks of the file system.
SMALLEST_HOLE = 64 << 10


def write_frames(files: Iterable[tuple[OutputFile, Frame, int]], path: Path) -> None:
    """Give every file its size, and write what is around the tensors; the digests in headers are zeros.

    Args:
        files: each with its frame and a descriptor, which is used before the next is asked for.
        path: what an error calls them.

    Raises:
        VerifyError: ``verify.file``.
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
    """The part of a file that is tensors, and entries and padding between them, with the file at ``path``."""
    begin = frame.header_bytes + len(frame.prologue)
    return Extent(path, begin, file.nbytes - len(frame.epilogue) - begin)


def digested(file: OutputFile, frame: Frame, path: Path) -> Extent:
    """What is hashed while it is written: the part whose digest the header holds, or all of the file."""
    behind = len(frame.epilogue) if frame.header else 0
    return Extent(path, frame.header_bytes, file.nbytes - frame.header_bytes - behind)


def holes(file: OutputFile) -> list[tuple[int, int]]:
    """Offset and bytes of zeros that take no space in a file, in order."""
    return [(step.offset, step.nbytes) for step in file.steps if step.zero_filled and step.nbytes >= SMALLEST_HOLE]
