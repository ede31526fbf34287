"""The headers that a source record keeps, read by the readers of their format: an index of files that are not there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from ckconv.errors import CkconvError, InputError, quoted
from ckconv.formats.safetensors import MAX_JSON
from ckconv.model.index import TensorIndex
from ckconv.readers.bytesource import ByteSource
from ckconv.readers.gguf import join_shards
from ckconv.readers.gguf_header import read_header
from ckconv.readers.gguf_index import index_gguf
from ckconv.readers.huggingface import index_checkpoint
from ckconv.readers.huggingface_files import CONFIG_NAME, CheckpointFiles
from ckconv.readers.record import OpenRecord
from ckconv.readers.safetensors import read_safetensors
from ckconv.readers.strictjson import Document, parse_object
from ckconv.record import Run

_CONFIG = Document("configuration", "model.config", "model.config", MAX_JSON)

#: More than any header has: what is asked for beyond the kept runs is zeros, made one by one.
_LONGEST = 256 << 20


class KeptSource(ByteSource):
    """The bytes of a file of which only some runs are kept; the others read as zeros."""

    size: int

    def __init__(self, path: Path, size: int, pieces: Sequence[tuple[Run, memoryview]]) -> None:
        self.path, self.size = path, size
        self._offsets = [offset for (offset, _), _ in pieces]
        self._views = [view for _, view in pieces]

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ByteSource.read_at`."""
        nbytes = min(nbytes, self.size - offset, _LONGEST)
        if nbytes <= 0:
            return b""
        first = max(bisect_right(self._offsets, offset) - 1, 0)
        if first < len(self._offsets) and self._offsets[first] <= offset:
            start = offset - self._offsets[first]
            if start + nbytes <= len(self._views[first]):
                return bytes(self._views[first][start : start + nbytes])
        out = bytearray(nbytes)
        for at, view in zip(self._offsets[first:], self._views[first:], strict=True):
            low, high = max(offset, at), min(offset + nbytes, at + len(view))
            if at >= offset + nbytes:
                break
            if low < high:
                out[low - offset : high - offset] = view[low - at : high - at]
        return bytes(out)


def open_skeleton(opened: OpenRecord) -> TensorIndex:
    """The index of the source as it was; extents are offsets in its files, whose paths are their bare names.

    Raises:
        InputError: ``record.files``, the kept bytes are no headers of the format; ``record.content``.
    """
    record = opened.record
    sources = {
        file.name: KeptSource(Path(file.name), file.size, list(opened.pieces(file)))
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
        return index_checkpoint(path, CheckpointFiles(path, None, shards, tensors, config, ()))
    except CkconvError as error:
        if error.code.startswith("record."):
            raise
        where = f"{quoted(error.path)}: " if error.path else ""
        message = f"what it keeps is no source: {where}{error.message}"
        raise InputError("record.files", message, path=opened.path, details=error.details) from error
