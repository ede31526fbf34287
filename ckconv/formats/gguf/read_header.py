"""The header of one GGUF file: parsed once, proved sound, and trusted from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from ckconv.core.metadata import U32
from ckconv.core.tensors import StoredTensor
from ckconv.errors import Faults, InputError, counted, quoted
from ckconv.formats.gguf.cursor import TRUNCATED, Cursor
from ckconv.formats.gguf.records import check_extents, check_offsets, checked_name, read_records
from ckconv.formats.gguf.spec import (
    ALIGNMENT_KEY,
    COUNTS,
    COUNTS_OFFSET,
    DEFAULT_ALIGNMENT,
    LENGTH,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_TENSORS,
    MAX_TRAILING_ZEROS,
    VERSIONS,
    align_up,
    min_pair_bytes,
    min_record_bytes,
)
from ckconv.formats.gguf.values import MetaValue, read_string, read_value
from ckconv.io.bytesource import ByteSource, lfs_pointer

#: First bytes of what people take for a GGUF -> what it is.
_FOREIGN = (
    (b"<", "looks like a web page saved by the downloader"),
    (b"{", "looks like JSON text, perhaps an error message saved by the downloader"),
    (b"PK\3\4", "looks like a zip archive, as PyTorch checkpoints are"),
    (b"BUMPWGT", "looks like a bump file"),
    # The u32 magics "ggml", "ggmf", "ggjt" and "ggla", little-endian.
    *((magic, "looks like a GGML file from before GGUF") for magic in (b"lmgg", b"fmgg", b"tjgg", b"algg")),
)


class GgufShard(NamedTuple):
    """One GGUF file.

    Attributes:
        path: the file.
        version: 1, 2 or 3.
        alignment: of the data section and of every tensor in it, in bytes.
        metadata: key -> value, in file order.
        tensors: in file order; absolute offsets in bytes, shapes outermost first.
        header_bytes: bytes of everything before the padding that precedes the data section.
        data_offset: where the data section starts, in bytes.
        size: of the file, in bytes; ``None`` for a pipe.
        source: where its bytes are; a file is opened again for each use.
    """

    path: Path
    version: int
    alignment: int
    metadata: Mapping[str, MetaValue]
    tensors: Sequence[StoredTensor]
    header_bytes: int
    data_offset: int
    size: int | None
    source: ByteSource


def read_header(source: ByteSource) -> GgufShard:
    """Read and check the header of one file. Of a pipe, nothing is checked that needs its length.

    Raises:
        InputError: any ``gguf.*`` code but ``gguf.split``; all faults of the first kind found, up to ten.
    """
    size = source.size
    cursor = Cursor(source)
    _check_magic(cursor)
    version = _read_version(cursor)
    tensor_count, pair_count = _read_counts(cursor, version)
    metadata, alignment = _read_metadata(cursor, pair_count, LENGTH[version])
    records = read_records(cursor, tensor_count, LENGTH[version])
    header_bytes = cursor.offset
    data_offset = align_up(header_bytes, alignment)
    check_offsets(source.path, records, alignment)
    end = check_extents(source.path, records, data_offset, size)
    if size is not None:
        _check_trailing(source, max(end, header_bytes))
    tensors = records.stored(source.path, data_offset)
    return GgufShard(source.path, version, alignment, metadata, tensors, header_bytes, data_offset, size, source)


def _check_magic(cursor: Cursor) -> None:
    start = cursor.source.read_at(0, 1024)
    if start.startswith(MAGIC):
        return
    if not start:
        raise InputError("gguf.empty", "the file is empty", path=cursor.path, found=0)
    if pointer := lfs_pointer(start):
        raise InputError("gguf.lfs-pointer", pointer, path=cursor.path, hint="run `git lfs pull`")
    hint = next((words for magic, words in _FOREIGN if start.startswith(magic)), None)
    if hint is None and start[8:9] == b"{":
        hint = "looks like a safetensors file"
    found = _printable(start[: len(MAGIC)])
    message = f"starts with `{found}`, not `{MAGIC.decode()}`"
    raise InputError("gguf.magic", message, path=cursor.path, offset=0, found=found, allowed=MAGIC.decode(), hint=hint)


def _read_version(cursor: Cursor) -> int:
    cursor.at = len(MAGIC)
    version: int = U32.unpack(cursor.need(U32.size, "the version"))[0]
    if version in VERSIONS:
        return version
    offset = len(MAGIC)
    # A number whose low half is zero is a small one with its bytes swapped; gguf.cpp decides it the same way.
    if version and version & 0xFFFF == 0:
        raise InputError(
            "gguf.endian",
            f"big-endian GGUF (version reads {version})",
            path=cursor.path,
            offset=offset,
            found=version,
            allowed=VERSIONS,
            hint="convert its byte order first (`gguf-convert-endian FILE little`, of the gguf package)",
        )
    message = f"GGUF version {version}; ckconv reads 1, 2 and 3"
    raise InputError("gguf.version", message, path=cursor.path, offset=offset, found=version, allowed=VERSIONS)


def _read_counts(cursor: Cursor, version: int) -> tuple[int, int]:
    """Tensors and metadata pairs. Together they fit into what is left of the input, as far as its end is known."""
    layout = COUNTS[version]
    tensors, pairs = layout.unpack(cursor.need(layout.size, "the tensor and metadata counts"))
    left = cursor.left
    for position, (count, noun, cap, each) in enumerate(
        (
            (tensors, "tensors", MAX_TENSORS, min_record_bytes(version)),
            (pairs, "metadata keys", MAX_KEYS, min_pair_bytes(version)),
        )
    ):
        too_long = left is not None and count * each > left
        if not too_long and count <= cap:
            continue
        limit = f"but {left:,} bytes remain" if too_long else f"at most {cap:,} are allowed"
        raise InputError(
            "gguf.count",
            f"header declares {count} {noun}{' ' if too_long else '; '}{limit}",
            path=cursor.path,
            offset=COUNTS_OFFSET + position * LENGTH[version].size,
            found=count,
            allowed=left // each if too_long and left is not None else cap,
            hint=TRUNCATED if count <= cap else None,
        )
    return tensors, pairs


def _read_metadata(cursor: Cursor, count: int, length: Struct) -> tuple[dict[str, MetaValue], int]:
    faults = Faults(cursor.path)
    metadata: dict[str, MetaValue] = {}
    seen: dict[str, int] = {}
    try:
        for number in range(1, count + 1):
            at = cursor.offset
            what = f"key #{number}"
            key = checked_name(faults, read_string(cursor, length, MAX_KEY_BYTES, f"metadata {what}"), what, at)
            if key in seen:
                faults.add(
                    "gguf.duplicate-key",
                    f"{quoted(key)} appears twice, at {seen[key]} and {at}",
                    offset=at,
                    found=key,
                )
            seen.setdefault(key, at)
            metadata.setdefault(key, read_value(cursor, key, length))
    except InputError:
        # An earlier fault of a name is the likelier cause of what cannot be read now.
        faults.check()
        raise
    faults.check()
    return metadata, _alignment(cursor.path, metadata.get(ALIGNMENT_KEY), seen.get(ALIGNMENT_KEY))


def _alignment(path: Path, value: MetaValue | None, offset: int | None) -> int:
    if value is None:
        return DEFAULT_ALIGNMENT
    found = value.value
    rule = f"it must be a power of two, at most {MAX_ALIGNMENT:,}"
    # gguf.cpp takes no other type either.
    if value.type != "u32" or not isinstance(found, int):
        message = f"{ALIGNMENT_KEY} has type {value.type}; it must be u32"
        raise InputError("gguf.alignment", message, path=path, offset=offset, found=value.type, allowed="u32")
    if not 1 <= found <= MAX_ALIGNMENT or found & (found - 1):
        message = f"{ALIGNMENT_KEY} is {found}; {rule}"
        raise InputError("gguf.alignment", message, path=path, offset=offset, found=found, allowed=MAX_ALIGNMENT)
    return found


def _check_trailing(source: ByteSource, end: int) -> None:
    """After the last tensor there are zeros, or nothing: some writers pad it like the others, some files a page."""
    size = source.size or 0
    zeros = source.read_at(end, min(size - end, MAX_TRAILING_ZEROS))
    start = end + len(zeros) - len(zeros.lstrip(b"\0"))
    if start == size:
        return
    shown = _printable(source.read_at(start, 4))
    raise InputError(
        "gguf.trailing",
        f"{counted(size - start, 'byte')} after the last tensor (start `{shown}`)",
        path=source.path,
        offset=start,
        found=size,
        allowed=start,
    )


def _printable(data: bytes) -> str:
    """Bytes as ASCII, the others as hexadecimal escapes."""
    return repr(data)[2:-1]
