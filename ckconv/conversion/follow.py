"""Work on a file while it is written: its SHA-256, its flush to disk, and the comparison with the source."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from ckconv.conversion.progress import Growing, Progress, Stopped
from ckconv.core.tensors import Extent, TensorIndex
from ckconv.errors import OutputError, unreadable
from ckconv.io.digests import HASHED_AT_ONCE, FileHash
from ckconv.io.files import Files
from ckconv.io.tiles import Tiles
from ckconv.plan.steps import Plan
from ckconv.publish.files import growing as opening
from ckconv.publish.files import write_code
from ckconv.system import MAX_OPEN, sync_data, syncs_data
from ckconv.verification.tensors import Compared, TensorComparison, within

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
    """Flush a file to disk while it is written, because a system reports a failed write only once, to an open file.

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
            raise OutputError(write_code(error), message) from error


class Reader:
    """The index of an output that is being written, read once for all of its files by the reader of its format."""

    def __init__(self, read: Callable[[], TensorIndex]) -> None:
        """Read nothing yet.

        Args:
            read: opens the output and returns its index.
        """
        self._read = read
        self._turn, self._found = Lock(), list[TensorIndex | None]()

    def early(self, growing: Growing) -> TensorIndex | None:
        """Return the index as soon as headers are written; ``None`` if reading it takes tensors or other files."""
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
    """Compare the tensors of an output, as the reader of its format finds them, with the source.

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
            left_out=[left.name for left in plan.left_out],
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
    """Compare a restored source with the file it was restored from, as its conversion compared the two."""
    assert plan.restores is not None
    with Files(plan.index.identities) as files:
        found = TensorComparison(plan.index, out, files, left_out=plan.restores.left_out).run()
        files.check_unchanged()
    return found
