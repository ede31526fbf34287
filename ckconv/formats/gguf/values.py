"""GGUF's constants, a forward reader of headers, metadata values."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from io import BytesIO
from pathlib import Path

from ckconv.core.lazy import NamedTuple, dataclass, field, pattern, table_of
from ckconv.core.metadata import ARRAY, BOOL, STRING, U32, VALUE_TYPES, VALUE_TYPES_BY_NAME, Value, ValueType, string
from ckconv.errors import InputError, OutputError, quoted
from ckconv.families.catalog import FAMILIES, families_of_gguf
from ckconv.io.files import TRUNCATED, ByteSource, Cursor, of_key

# GGUF, byte by byte: what its reader and its writer share.
#
# A file is a header, metadata, tensor records, padding, tensor data; every number is little-endian::
#
#     0   4  magic "GGUF"
#     4   4  version, u32
#     8   w  tensor count          w is 4 in version 1, 8 since version 2 (LENGTH)
#     .   w  metadata count
#     then each metadata pair:   key (string), value type (u32), value
#     then each tensor record:   name (string), dimension count (u32), dimensions (w each, innermost first),
#                                ggml type (u32), offset in the data section (u64)
#     padding to a multiple of general.alignment, then the data section; each tensor in it is padded likewise
#
# A string is a length (``w`` bytes) and that many bytes of UTF-8, without a terminator. An array is an element
# type (u32), a count (``w`` bytes) and the elements.
#
# Sources: ``docs/gguf.md`` of ggml-org/ggml and ``ggml/src/gguf.cpp`` of ggml-org/llama.cpp; for version 1 the
# first bullet of the former's "Version History".

MAGIC = b"GGUF"
VERSIONS = (1, 2, 3)

#: The code of a file that ends too early.
TRUNCATED_CODE = "gguf.truncated"
#: What is written.
VERSION = 3

#: version -> how it writes a count, a length or a dimension.
LENGTH = {1: struct.Struct("<I"), 2: struct.Struct("<Q"), 3: struct.Struct("<Q")}
#: version -> (tensor count, metadata count), at byte 8.
COUNTS = {1: struct.Struct("<II"), 2: struct.Struct("<QQ"), 3: struct.Struct("<QQ")}
COUNTS_OFFSET = 8

#: The end of a tensor record: ggml type, offset in the data section.
TENSOR_TAIL = struct.Struct("<IQ")

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


def align_up(offset: int, alignment: int) -> int:
    """The next multiple of ``alignment``, a power of two."""
    return (offset + alignment - 1) & -alignment


# Keys of a split set, written to every shard by llama.cpp's gguf-split. A merged file keeps split.count = 0.
SPLIT_NO = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"

# ``llama_split_path``: "%s-%05d-of-%05d.gguf", counted from 1 where split.no counts from 0.
_SHARD_NAME = pattern(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


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
    found = _SHARD_NAME.fullmatch(name) if "-of-" in name else None
    return ShardName(found[1], int(found[2]), int(found[3])) if found else None


class Record(NamedTuple):
    """Tensor of a header: shape outermost first, byte offset in the data."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


def header_bytes(metadata: Mapping[str, Value], tensors: Iterable[tuple[str, int]]) -> int:
    """Size of a header without padding; ``tensors``: names and axis counts."""
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
GGUF_TASK_KEYS = ("adapter.lora.task_name", "adapter.lora.prompt_prefix")
GGUF_ALORA_KEY = "adapter.alora.invocation_tokens"
GGUF_A, GGUF_B = ".lora_a", ".lora_b"

#: ``num_heads`` and ``num_kv_heads`` -> the keys of a model's GGUF. An adapter of ckconv carries them too where the
#: order of its rows follows from them, so that it can be read without its base; llama.cpp does not look at them.
HEAD_KEYS = {"num_heads": "{arch}.attention.head_count", "num_kv_heads": "{arch}.attention.head_count_kv"}


# GGUF metadata values: scalars are decoded, arrays are located and decoded when somebody asks.

Scalar = int | float | bool | str

_CHUNK = 1 << 20

#: Strings that are passed over in one go where all of them are short: an expression walks along their lengths in half
#: the time that a loop takes. Most tokens and merges have fewer bytes. To compile it takes as long as many strings.
_RUN, _SHORT, _MANY = 64, 40, 1 << 15

# A byte of a bool array -> 1 where it is neither 0 nor 1, so that the first such byte can be searched for.
_NOT_BOOL = b"\0\0" + b"\1" * 254


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """An array that was located and bounded, not decoded.

    Attributes:
        type: name of the element type (``str``, ``i32``).
        count: elements.
        offset: absolute offset of the first element, in bytes.
        nbytes: stored bytes of all elements, the lengths of strings included.
        length: how the file writes the length of a string.
        source: where the bytes are; a file is opened again for each use.
    """

    type: str
    count: int
    offset: int
    nbytes: int
    length: struct.Struct = field(repr=False)
    source: ByteSource = field(repr=False)

    def raw(self) -> bytes:
        """The stored bytes.

        Raises:
            OutputError: ``input.changed``, the file is not the one that was read before.
        """
        data = self.source.read_at(self.offset, self.nbytes)
        if len(data) != self.nbytes:
            raise self._changed()
        return data

    def decode(self) -> list[Scalar]:
        """All elements; bytes that are not UTF-8 as ``surrogateescape``."""
        return self._decoded(self.raw(), self.count)

    def each(self) -> Iterator[str]:
        """Strings of an array, read at once, each decoded when asked for."""
        return self._texts(self.raw(), self.count)

    def head(self, count: int) -> list[Scalar]:
        """The first ``count`` elements at most, reading little more."""
        count = min(max(count, 0), self.count)
        if self.type == STRING.name:
            return list(self._strings(count))
        return self._decoded(self.source.read_at(self.offset, count * VALUE_TYPES_BY_NAME[self.type].size), count)

    def _decoded(self, data: bytes, count: int) -> list[Scalar]:
        if self.type != STRING.name:
            try:
                return list(struct.unpack(f"<{count}{VALUE_TYPES_BY_NAME[self.type].code}", data))
            except struct.error:
                raise self._changed() from None
        return list(self._texts(data, count))

    def _texts(self, data: bytes, count: int) -> Iterator[str]:
        unpack, width, at, end = self.length.unpack_from, self.length.size, 0, len(data)
        for _ in range(count):
            start = at + width
            if start > end:
                raise self._changed()
            at = start + unpack(data, at)[0]
            if at > end:
                raise self._changed()
            yield data[start:at].decode("utf-8", "surrogateescape")

    def _strings(self, count: int) -> Iterator[str]:
        cursor = Cursor(self.source, TRUNCATED_CODE, self.offset, first=4 << 10, window=64 << 10)
        for _ in range(count):
            if not cursor.has(self.length.size):
                raise self._changed()
            nbytes = self.length.unpack(cursor.take(self.length.size))[0]
            if nbytes > MAX_STRING_BYTES or not cursor.has(nbytes):
                raise self._changed()
            yield cursor.take(nbytes).decode("utf-8", "surrogateescape")

    def _changed(self) -> OutputError:
        # The bounds were proved when the header was read.
        return OutputError("input.changed", "the file was changed while it was being read", path=self.source.path)


class MetaValue(NamedTuple):
    """One metadata value.

    Attributes:
        type: ``u32``, ``f32``, ``bool``, ``str``, ...; ``arr[str]`` for an array.
        value: the decoded scalar; an f32 as the equal Python float. Strings as :meth:`ArrayRef.decode` has them.
        raw: the stored bytes of a number, because a signaling NaN does not survive a Python float; empty for
            strings and arrays, which are restorable as they are.
        offset: where a number lies in the file.
    """

    type: str
    value: Scalar | ArrayRef
    raw: bytes = b""
    offset: int = 0


def read_value(cursor: Cursor, key: str, length: struct.Struct) -> MetaValue:
    """Read a value's type and the value; the cursor is left behind it.

    Args:
        cursor: at the type.
        key: the value's key, for messages.
        length: how this version writes counts and lengths.

    Raises:
        InputError: ``gguf.value-type``, ``gguf.string``, ``gguf.array``, ``gguf.nested-array``, ``gguf.bool``,
            ``gguf.truncated``.
    """
    kind = _read_type(cursor, key, "has value type")
    if kind is ARRAY:
        return _read_array(cursor, key, length)
    if kind is STRING:
        text = read_string(cursor, length, MAX_STRING_BYTES, "the value of key", key)
        return MetaValue(STRING.name, text.decode("utf-8", "surrogateescape"))
    offset = cursor.offset
    raw = cursor.need(kind.size, "the value of key", key)
    if kind is BOOL and raw[0] > 1:
        raise _not_bool(cursor, key, offset, raw[0])
    return MetaValue(kind.name, struct.unpack("<" + kind.code, raw)[0], raw, offset)


def read_string(cursor: Cursor, length: struct.Struct, cap: int, what: str, key: str | None = None) -> bytes:
    """Read a length and that many bytes.

    ``what`` is what a message calls them, of a key.

    Raises:
        InputError: ``gguf.string``, the length passes ``cap`` or the end of the input; ``gguf.truncated``.
    """
    nbytes = length.unpack(cursor.need(length.size, what, key))[0]
    if nbytes > cap or not cursor.has(nbytes):
        raise _bad_string(cursor, of_key(what, key), cursor.offset - length.size, nbytes, cap)
    return cursor.take(nbytes)


def _bad_string(cursor: Cursor, what: str, offset: int, nbytes: int, cap: int) -> InputError:
    left = cursor.left
    over_cap = nbytes > cap and (left is None or cap < left)
    limit = f"at most {cap:,} are allowed" if over_cap or left is None else f"{left:,} remain"
    message = f"{what} at byte {offset:,} declares {nbytes:,} bytes, {limit}"
    allowed, hint = cap if over_cap else left, TRUNCATED if nbytes <= cap else None
    return cursor.fault("gguf.string", message, offset=offset, found=nbytes, allowed=allowed, hint=hint)


def _read_type(cursor: Cursor, key: str, what: str) -> ValueType:
    number = U32.unpack(cursor.need(U32.size, "the type of key", key))[0]
    kind = VALUE_TYPES.get(number)
    if kind is None:
        most, message = max(VALUE_TYPES), f"key {quoted(key)} {what} {number} (0 to {max(VALUE_TYPES)} exist)"
        raise cursor.fault("gguf.value-type", message, offset=cursor.offset - U32.size, found=number, allowed=most)
    return kind


def _read_array(cursor: Cursor, key: str, length: struct.Struct) -> MetaValue:
    at = cursor.offset
    kind = _read_type(cursor, key, "is an array of value type")
    if kind is ARRAY:
        message = f"array of arrays at byte {at:,} is not supported"
        raise cursor.fault("gguf.nested-array", message, offset=at, found=ARRAY.id)
    counted_at = cursor.offset
    count = length.unpack(cursor.need(length.size, "the length of array", key))[0]
    start = cursor.offset
    smallest = kind.size or length.size
    if count > MAX_ARRAY_ELEMENTS or not cursor.reaches(start + count * smallest):
        raise _bad_array(cursor, key, kind, counted_at, count, smallest)
    if kind is STRING:
        _skip_strings(cursor, key, count, length)
    elif kind is BOOL:
        _check_bools(cursor, key, count)
    else:
        cursor.at += count * kind.size
    ref = ArrayRef(kind.name, count, start, cursor.offset - start, length, cursor.source)
    return MetaValue(f"arr[{kind.name}]", ref)


def _bad_array(cursor: Cursor, key: str, kind: ValueType, offset: int, count: int, smallest: int) -> InputError:
    noun = "strings" if kind is STRING else f"{kind.name} elements"
    fit = None if cursor.left is None else cursor.left // smallest
    allowed = MAX_ARRAY_ELEMENTS if fit is None else min(fit, MAX_ARRAY_ELEMENTS)
    limit = f"at most {allowed:,} fit" if allowed == fit else f"at most {allowed:,} are allowed"
    message = f"{quoted(key)} declares {count:,} {noun}, {limit}"
    hint = TRUNCATED if count <= MAX_ARRAY_ELEMENTS else None
    return cursor.fault("gguf.array", message, offset=offset, found=count, allowed=allowed, hint=hint)


@cache
def _short_strings(width: int) -> re.Pattern[bytes]:
    """Pattern of ``_RUN`` strings below ``_SHORT`` bytes, common sizes first."""
    lengths = sorted(range(_SHORT), key=lambda nbytes: abs(nbytes - 6))
    forms = (b"\\x%02x\\0{%d}.{%d}" % (nbytes, width - 1, nbytes) for nbytes in lengths)
    return re.compile(b"(?:%s){%d}+" % (b"|".join(forms), _RUN), re.DOTALL)


def _skip_strings(cursor: Cursor, key: str, count: int, length: struct.Struct) -> None:
    """Move over ``count`` strings.

    The inner loop runs once a token of a vocabulary: it touches only the lengths.
    """
    unpack, width = length.unpack_from, length.size
    run = _short_strings(width).match if count >= _MANY else None
    done = index = 0
    while done < count:
        if not cursor.has(width):
            raise cursor.truncated(width, f"the length of string #{done + 1:,} of {quoted(key)}")
        buffer, at = cursor.buffer, cursor.at
        while run and count - done >= _RUN and (short := run(buffer, at)):
            done, previous, at = done + _RUN, at, short.end()
        # No length is trusted: a long one moves `at` out of the window, and there is nothing to unpack there.
        stop = min(done + _RUN, count)
        try:
            for index in range(done, stop):  # noqa: B007 - read where the loop ends early
                previous, at = at, at + width + unpack(buffer, at)[0]
            done = stop
        except (struct.error, OverflowError):
            done = index
        nbytes = at - previous - width
        if at > len(buffer) and (nbytes > MAX_STRING_BYTES or not cursor.reaches(cursor.base + at)):
            cursor.at = previous + width
            what = f"string #{done:,} of {quoted(key)}"
            raise _bad_string(cursor, what, cursor.base + previous, nbytes, MAX_STRING_BYTES)
        cursor.at = at


def _check_bools(cursor: Cursor, key: str, count: int) -> None:
    while count:
        offset = cursor.offset
        part = cursor.need(min(count, _CHUNK), "array", key)
        bad = part.translate(_NOT_BOOL).find(1)
        if bad >= 0:
            raise _not_bool(cursor, key, offset + bad, part[bad])
        count -= len(part)


def _not_bool(cursor: Cursor, key: str, offset: int, byte: int) -> InputError:
    message = f"key {quoted(key)} holds {byte} where 0 or 1 is required"
    return cursor.fault("gguf.bool", message, offset=offset, found=byte, allowed="0 or 1")


# -- Keys of a GGUF that readers know, by type -------------------------------------------------------------------------

KNOWN = Path(__file__).with_name("known_keys.toml")


@cache
def keys_by_type() -> Mapping[str, tuple[str, ...]]:
    """Type -> keys, and globs of keys, outside of an architecture."""
    return {kind: tuple(keys.split()) for kind, keys in table_of(KNOWN).items()}


def known_types(architecture: str, family: str = "") -> Mapping[str, list[str]]:
    """Key, or glob, -> types of an architecture or one of its families."""
    found: dict[str, list[str]] = {}
    for one in [FAMILIES[family]] if family else families_of_gguf(architecture):
        for cell in (cell for row in one.parameters.values() for cell in row.key_cells("gguf")):
            kind = f"arr[{cell.type[:-2]}]" if cell.type.endswith("[]") else cell.type
            if not cell.key.startswith("/"):
                found.setdefault(f"{architecture}.{cell.key}", []).append(kind)
    return {**found, **{key: [kind] for kind, keys in keys_by_type().items() for key in keys}}


def types_of(key: str, known: Mapping[str, list[str]]) -> list[str]:
    """The types of a key; empty where no table has it."""
    return known.get(key) or next((kinds for glob, kinds in known.items() if fnmatchcase(key, glob)), [])
