"""The headers that a source record keeps, read by the readers of their format: an index of files that are not there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

from ckconv.core.metadata import CONFIG_NAME
from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.formats import format_of, load
from ckconv.io.files import ByteSource
from ckconv.record.read import OpenRecord
from ckconv.record.schema import Run

#: More than any header has: what is asked for beyond the kept runs is zeros, made one by one.
_LONGEST = 256 << 20


class KeptSource(ByteSource):
    """The bytes of a file of which only some runs are kept; the others read as zeros.

    Args:
        pieces: the runs, sorted, each with the offset where ``read`` finds its bytes.
        read: gives bytes (offset, number) of the file that keeps them.
    """

    size: int

    def __init__(
        self, path: Path, size: int, pieces: Sequence[tuple[Run, int]], read: Callable[[int, int], bytes]
    ) -> None:
        self.path, self.size = path, size
        self._pieces, self._read = pieces, read
        self._offsets = [offset for (offset, _), _ in pieces]

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ByteSource.read_at`."""
        end = offset + min(nbytes, self.size - offset, _LONGEST)
        parts = []
        for (at, length), kept_at in self._pieces[max(bisect_right(self._offsets, offset) - 1, 0) :]:
            if at >= end:
                break
            low, high = max(offset, at), min(end, at + length)
            if low < high:
                parts += [bytes(low - offset), self._read(kept_at + low - at, high - low)]
                offset = high
        parts.append(bytes(max(end - offset, 0)))
        return b"".join(parts)


def open_skeleton(opened: OpenRecord) -> TensorIndex:
    """The index of the source as it was; extents are offsets in its files, whose paths are their bare names.

    Raises:
        InputError: ``record.files``, the kept bytes are no headers of the format.
    """
    record = opened.record
    sources = {
        file.name: KeptSource(Path(file.name), file.size, opened.pieces(file), opened.read)
        for file in record.files
        if file.tensors or file.name == CONFIG_NAME
    }
    weights = [sources[file.name] for file in record.files if file.tensors]
    path = Path(record.source)
    try:
        place = format_of(record.format).of_headers
        assert place is not None  # the record was checked
        index: TensorIndex = load(place)(path, weights, sources.get(CONFIG_NAME))
        return index
    except (InputError, UnsupportedError) as error:  # and no signal, which is an error too
        where = f"{quoted(error.path)}: " if error.path else ""
        message = f"what it keeps is not a source: {where}{error.message}"
        raise InputError("record.files", message, path=opened.path, details=error.details) from error
