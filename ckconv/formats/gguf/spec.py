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
from struct import Struct, pack

MAGIC = b"GGUF"
VERSIONS = (1, 2, 3)
#: What is written.
VERSION = 3

#: version -> how it writes a count, a length or a dimension.
LENGTH = {1: Struct("<I"), 2: Struct("<Q"), 3: Struct("<Q")}
#: version -> (tensor count, metadata count), at byte 8.
COUNTS = {1: Struct("<II"), 2: Struct("<QQ"), 3: Struct("<QQ")}
COUNTS_OFFSET = 8

U32 = Struct("<I")
U64 = Struct("<Q")
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
#: Offsets and sizes are signed 64-bit numbers to every operating system.
MAX_BYTES = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of metadata value. ``code`` is its format for :mod:`struct`, ``size`` its bytes; strings have neither."""

    id: int
    name: str
    code: str = ""
    size: int = 0

    @property
    def integer(self) -> bool:
        """Whole numbers, ``bool`` not among them."""
        return self.code in "bBhHiIqQ" and self.size > 0


STRING = ValueType(8, "str")
ARRAY = ValueType(9, "arr")
BOOL = ValueType(7, "bool", "?", 1)

#: id -> type (``enum gguf_type``).
VALUE_TYPES: dict[int, ValueType] = {
    t.id: t
    for t in (
        ValueType(0, "u8", "B", 1),
        ValueType(1, "i8", "b", 1),
        ValueType(2, "u16", "H", 2),
        ValueType(3, "i16", "h", 2),
        ValueType(4, "u32", "I", 4),
        ValueType(5, "i32", "i", 4),
        ValueType(6, "f32", "f", 4),
        BOOL,
        STRING,
        ARRAY,
        ValueType(10, "u64", "Q", 8),
        ValueType(11, "i64", "q", 8),
        ValueType(12, "f64", "d", 8),
    )
}
VALUE_TYPES_BY_NAME: dict[str, ValueType] = {t.name: t for t in VALUE_TYPES.values()}


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


@dataclass(frozen=True, slots=True)
class Value:
    """A metadata value as it is written: its ``type`` (``u32``, ``arr[str]``), and the bytes behind the type's number.

    Those of an array begin with the element type and the count.
    """

    type: str
    payload: bytes

    @property
    def nbytes(self) -> int:
        """Bytes in the file, the type's number included."""
        return U32.size + len(self.payload)


def scalar(type: str, value: str | int | float | bool) -> Value:
    """A value of a scalar type.

    Raises:
        struct.error, OverflowError: the number does not fit into the type.
    """
    return Value(type, _elements(VALUE_TYPES_BY_NAME[type], (value,)))


def array(type: str, values: Sequence[str | int | float | bool]) -> Value:
    """An array of ``type`` elements.

    Raises:
        struct.error, OverflowError: as :func:`scalar`.
    """
    kind = VALUE_TYPES_BY_NAME[type]
    return raw_array(type, len(values), _elements(kind, values))


def raw_array(type: str, count: int, elements: bytes) -> Value:
    """An array whose elements are there as a file of version 2 or 3 stores them."""
    return Value(f"arr[{type}]", U32.pack(VALUE_TYPES_BY_NAME[type].id) + LENGTH[VERSION].pack(count) + elements)


def _elements(kind: ValueType, values: Sequence[str | int | float | bool]) -> bytes:
    if kind is STRING:
        return b"".join(string(str(value)) for value in values)
    return pack(f"<{len(values)}{kind.code}", *values)


def string(text: str) -> bytes:
    """A length and UTF-8; lone surrogates become the bytes that they stand for (``surrogateescape``)."""
    data = text.encode("utf-8", "surrogateescape")
    return LENGTH[VERSION].pack(len(data)) + data


@dataclass(frozen=True, slots=True)
class Record:
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


def header(metadata: Mapping[str, Value], records: Sequence[Record]) -> bytes:
    """Everything before the padding that precedes the data section."""
    parts = [MAGIC, U32.pack(VERSION), COUNTS[VERSION].pack(len(records), len(metadata))]
    for key, value in metadata.items():
        kind = ARRAY if value.type.startswith("arr[") else VALUE_TYPES_BY_NAME[value.type]
        parts += [string(key), U32.pack(kind.id), value.payload]
    for record in records:
        parts += [string(record.name), U32.pack(len(record.shape))]
        parts += [LENGTH[VERSION].pack(size) for size in reversed(record.shape)]
        parts.append(TENSOR_TAIL.pack(record.type_id, record.offset))
    return b"".join(parts)
