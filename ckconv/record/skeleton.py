"""The headers that a source record keeps, read by the readers of their format: an index of files that are not there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.formats.checkpoints import index_of
from ckconv.formats.gguf.index import index_gguf
from ckconv.formats.gguf.read import join_shards
from ckconv.formats.gguf.read_header import read_header
from ckconv.formats.safetensors.files import CONFIG_NAME, CheckpointFiles
from ckconv.formats.safetensors.read import read_safetensors
from ckconv.formats.safetensors.spec import MAX_JSON
from ckconv.io.bytesource import ByteSource
from ckconv.io.json import Document, parse_object
from ckconv.record.read import OpenRecord
from ckconv.record.schema import Run

_CONFIG = Document("configuration", "model.config", "model.config", MAX_JSON)

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
        if record.format == "gguf":
            return index_gguf(path, join_shards(path, tuple(read_header(source) for source in weights)))
        shards = tuple(read_safetensors(source.path, source=source) for source in weights)
        config = None
        if CONFIG_NAME in sources:
            source = sources[CONFIG_NAME]
            config = parse_object(source.read_at(0, source.size), _CONFIG, source.path)
        tensors = tuple(tensor for shard in shards for tensor in shard.tensors)
        return index_of(path, CheckpointFiles(path, None, shards, tensors, config, ()))
    except (InputError, UnsupportedError) as error:  # and no signal, which is an error too
        where = f"{quoted(error.path)}: " if error.path else ""
        message = f"what it keeps is no source: {where}{error.message}"
        raise InputError("record.files", message, path=opened.path, details=error.details) from error
