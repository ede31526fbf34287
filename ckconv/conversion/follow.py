"""What follows the writing of a file: its SHA-256, its way to the disk, and the comparison with the source."""

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
from ckconv.verification.tensors import Compared, Comparison, within

#: Bytes between two requests: what a disk is busy with for some tenths of a second.
SYNC_EVERY = 64 << 20


def digest(fd: int, extent: Extent, progress: Progress) -> bytes:
    """SHA-256 of what is in a part of the file, as it is written.

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
    """Bring the file to the disk while it is written: a system says of a failed write once, to an open file.

    What is left then is brought there with everything else of the output.

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
    """What the reader of the format finds in an output that is being written, read once for all of its files."""

    def __init__(self, read: Callable[[], TensorIndex]) -> None:
        """Read nothing yet.

        Args:
            read: opens the output.
        """
        self._read = read
        self._turn, self._found = Lock(), list[TensorIndex | None]()

    def early(self, growing: Growing) -> TensorIndex | None:
        """As soon as the frames are there; ``None``: it takes more than them, or than files of the output."""
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
        """When all is written."""
        return (self._found and self._found[0]) or self._read()


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
    """Hold the tensors of an output, as the reader of its format finds them, against the source.

    Args:
        growing: files that are being written.
        only: compare the tensors that lie in one of these files alone, and nothing else.
        but: leave those out that do.
        most: files that may be open at once.
    """
    alone = within(only or but)
    with Files(plan.index.identities, growing, most) as files:
        found = Comparison(
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
    """The comparison that was made when the source was converted, of what it became with what is made of that again."""
    assert plan.restores is not None
    with Files(plan.index.identities) as files:
        found = Comparison(plan.index, out, files, left_out=plan.restores.left_out).run()
        files.check_unchanged()
    return found
