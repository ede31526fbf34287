"""GGUF, byte by byte: what its reader and its writer share.

A file is a header, metadata, tensor records, padding, tensor data; every number is little-endian::

    0   4  magic "GGUF"
    4   4  version, u32
    8   w  tensor count          w is 4 in version 1, 8 since version 2 (LENGTH)
    .   w  metadata count
    then each metadata pair:   key (string), value type (u32), value
    then each tensor record:   name (string), dimension count (u32), dimensions (w each, innermost first),
                               ggml type (u32), offset in the data section (u64)
    padding to a multiple of general.alignment, then the data section; each tensor in it is padded likewise

A string is a length (``w`` bytes) and that many bytes of UTF-8, without a terminator. An array is an element
type (u32), a count (``w`` bytes) and the elements.

Sources: ``docs/gguf.md`` of ggml-org/ggml and ``ggml/src/gguf.cpp`` of ggml-org/llama.cpp; for version 1 the
first bullet of the former's "Version History".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from struct import Struct
from typing import NamedTuple

from ckconv.core.metadata import ARRAY, U32, VALUE_TYPES_BY_NAME, Value, string

MAGIC = b"GGUF"
VERSIONS = (1, 2, 3)
#: What is written.
VERSION = 3

#: version -> how it writes a count, a length or a dimension.
LENGTH = {1: Struct("<I"), 2: Struct("<Q"), 3: Struct("<Q")}
#: version -> (tensor count, metadata count), at byte 8.
COUNTS = {1: Struct("<II"), 2: Struct("<QQ"), 3: Struct("<QQ")}
COUNTS_OFFSET = 8

#: The end of a tensor record: ggml type, offset in the data section.
TENSOR_TAIL = Struct("<IQ")

DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
#: The format allows every power of two (``gguf.cpp``); no file needs more, and padding costs memory.
MAX_ALIGNMENT = 1 << 24
#: Zeros that may stand behind the last tensor: files are padded to pages and blocks of devices, too.
MAX_TRAILING_ZEROS = 1 << 24

MAX_DIMS = 4

# Caps: what no real file comes near. They bound the work that a hostile header can ask for.
MAX_KEYS = 65_536
MAX_KEY_BYTES = 65_535
MAX_STRING_BYTES = 64 << 20
MAX_ARRAY_ELEMENTS = 1 << 24
MAX_TENSORS = 1_000_000
MAX_NAME_BYTES = 1 << 10
#: ``split.count`` is written as u16.
MAX_SHARDS = 65_535


def min_pair_bytes(version: int) -> int:
    """Bytes that a metadata pair takes at least: an empty key, a type, a one-byte value."""
    return LENGTH[version].size + U32.size + 1


def min_record_bytes(version: int) -> int:
    """Bytes that a tensor record takes at least: an empty name, no dimensions, type and offset."""
    return LENGTH[version].size + U32.size + TENSOR_TAIL.size


def align_up(offset: int, alignment: int) -> int:
    """The next multiple of ``alignment``, a power of two."""
    return (offset + alignment - 1) & -alignment


# Keys of a split set, written to every shard by llama.cpp's gguf-split. A merged file keeps split.count = 0.
SPLIT_NO = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"

# ``llama_split_path``: "%s-%05d-of-%05d.gguf", counted from 1 where split.no counts from 0.
_SHARD_NAME = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ShardName:
    """``STEM-00002-of-00003.gguf``; ``number`` counts from 1."""

    stem: str
    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.stem}-{self.number:05}-of-{self.count:05}.gguf"


def parse_shard_name(name: str) -> ShardName | None:
    """The parts of a shard's file name, or ``None`` where it is not one."""
    found = _SHARD_NAME.fullmatch(name)
    return ShardName(found[1], int(found[2]), int(found[3])) if found else None


class Record(NamedTuple):
    """One tensor of a header: ``shape`` outermost first, ``offset`` in bytes from the start of the data section."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


def header_bytes(metadata: Mapping[str, Value], tensors: Iterable[tuple[str, int]]) -> int:
    """Bytes of a header before the padding; ``tensors`` are names and numbers of dimensions."""
    width = LENGTH[VERSION].size
    fixed = COUNTS_OFFSET + COUNTS[VERSION].size
    pairs = sum(len(string(key)) + value.nbytes for key, value in metadata.items())
    records = sum(len(string(name)) + U32.size + width * dims + TENSOR_TAIL.size for name, dims in tensors)
    return fixed + pairs + records


def header(metadata: Mapping[str, Value], records: Sequence[Record], nbytes: int = 0) -> bytes:
    """Everything before the data section.

    Args:
        nbytes: bytes with the padding that precedes the data section, where that is wanted.
    """
    made = BytesIO()  # of a million tensors it has 100 MB
    made.write(MAGIC + U32.pack(VERSION) + COUNTS[VERSION].pack(len(records), len(metadata)))
    for key, value in metadata.items():
        kind = ARRAY if value.type.startswith("arr[") else VALUE_TYPES_BY_NAME[value.type]
        made.write(string(key) + U32.pack(kind.id) + value.payload)
    for record in records:
        made.write(string(record.name) + U32.pack(len(record.shape)))
        made.write(b"".join(LENGTH[VERSION].pack(size) for size in reversed(record.shape)))
        made.write(TENSOR_TAIL.pack(record.type_id, record.offset))
    made.write(bytes(max(0, nbytes - made.tell())))
    return made.getvalue()


#: Keys of an adapter's GGUF, and endings of its names. Sources: ``src/llama-adapter.cpp`` and
#: ``convert_lora_to_gguf.py`` of llama.cpp.
GGUF_KIND = "adapter"
GGUF_TYPE_KEY = "adapter.type"
GGUF_ALPHA_KEY = "adapter.lora.alpha"
GGUF_ALORA_KEY = "adapter.alora.invocation_tokens"
GGUF_A, GGUF_B = ".lora_a", ".lora_b"

#: ``num_heads`` and ``num_kv_heads`` -> the keys of a model's GGUF. An adapter of ckconv carries them too where the
#: order of its rows follows from them, so that it can be read without its base; llama.cpp does not look at them.
HEAD_KEYS = {"num_heads": "{arch}.attention.head_count", "num_kv_heads": "{arch}.attention.head_count_kv"}
