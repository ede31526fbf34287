"""Rows that only change places within their heads: split and interleaved RoPE order of bytes that stay as they are.

Whole rows move as slices of a buffer. That takes no longer than the copying around it, and neither writing nor
verifying the most common conversion has to wait for numpy to be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ckconv.io.files import CHUNK, Files, runs

if TYPE_CHECKING:
    from ckconv.core.tensors import Extent, Tensor

#: A head with more bytes is moved piece by piece, by what computes with rows.
MAX_HEAD_BYTES = CHUNK

#: Rows that are moved at once: where each of them goes is worked out before.
MAX_ROWS = 1 << 14


class Moved(NamedTuple):
    """What :func:`moved_chunks` makes of a tensor: equal for those of the same bytes in the same order.

    Attributes:
        extents: of the source's stored bytes.
        row_bytes: of one row.
        order: see :func:`row_order`.
    """

    extents: tuple[Extent, ...]
    row_bytes: int
    order: tuple[int, ...]

    @classmethod
    def of(cls, source: Tensor, order: tuple[int, ...]) -> Moved:
        """The rows of ``source`` in this order."""
        return cls(source.extents, source.dtype.nbytes(source.layout.cols), order)


def row_order(source: Tensor, target: Tensor) -> tuple[int, ...] | None:
    """Which stored row of a source's head is each stored row of the target's.

    Returns:
        one number a row of a head; ``None`` where more happens to the bytes, or nothing.
    """
    one, other = source.layout, target.layout
    same = source.dtype is target.dtype and (one.shift, one.scale) == (other.shift, other.scale)
    same = same and (one.rows, one.cols) == (other.rows, other.cols)
    same = same and one.elements == other.elements == one.rows * one.cols
    plain = all(len(layout.strips) == 1 and layout.whole_rows for layout in (one, other))
    stored = source.as_stored and target.as_stored
    if not (same and plain and stored) or one.strips == other.strips:
        return None
    size = max(one.period, other.period)
    if size % one.period or size % other.period:
        return None
    if size > MAX_ROWS or size * source.dtype.nbytes(one.cols) > MAX_HEAD_BYTES:
        return None
    (mine,), (theirs,) = one.strips, other.strips
    order = {theirs.start(row) // one.cols: mine.start(row) // one.cols for row in range(size)}
    return tuple(order[row] for row in range(size))


def moved_chunks(source: Tensor, order: tuple[int, ...], files: Files) -> Iterator[memoryview]:
    """The rows of ``source`` in the order of :func:`row_order`, whole heads at a time.

    Yields:
        about ``CHUNK`` bytes each time, in a buffer that is used again.
    """
    row_bytes = source.dtype.nbytes(source.layout.cols)
    head_bytes, total = len(order) * row_bytes, source.nbytes
    heads = min(CHUNK // head_bytes, total // head_bytes, max(1, MAX_ROWS // len(order)))
    stored, moved = memoryview(bytearray(heads * head_bytes)), memoryview(bytearray(heads * head_bytes))
    places = [
        (n * row_bytes, (n - n % len(order) + order[n % len(order)]) * row_bytes) for n in range(heads * len(order))
    ]
    slices = [(slice(to, to + row_bytes), slice(at, at + row_bytes)) for to, at in places]
    for start in range(0, total, heads * head_bytes):
        nbytes = min(heads * head_bytes, total - start)
        files.read_run(source.extents, start, stored[:nbytes])
        for here, there in slices[: nbytes // row_bytes]:
            moved[here] = stored[there]
        yield moved[:nbytes]


def same_moved(
    tensor: Tensor, source: Tensor, order: tuple[int, ...], files: Files, told: Callable[[int], None]
) -> bool:
    """The stored bytes of ``tensor`` are the rows of ``source`` in this order.

    Args:
        told: called with the bytes of ``tensor`` just compared.
    """
    if _known(tensor, Moved.of(source, order), files):
        told(tensor.nbytes)
        return True
    mine, start = bytearray(), 0
    for moved in moved_chunks(source, order, files):
        if len(mine) != len(moved):
            mine = bytearray(len(moved))
        files.read_run(tensor.extents, start, mine)
        start += len(moved)
        told(len(moved))
        if mine != moved:  # a bytearray first: comparing views goes byte by byte
            return False
    return True


def _known(tensor: Tensor, rows: Moved, files: Files) -> bool:
    """All of it was written from these rows, and read back."""
    done = 0
    for path, offset, left in runs(tensor):
        while left:
            known = files.known_same(path, offset, rows, done, left)
            if not known:
                return False
            offset, done, left = offset + known, done + known, left - known
    return True
