"""Metadata values that say their type, and their bytes: those of GGUF.

Numbers are little-endian, counts and lengths 64 bits. Source: ``docs/gguf.md`` of ggml-org/ggml.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct, pack
from typing import NamedTuple

U32 = Struct("<I")
U64 = Struct("<Q")


class ValueType(NamedTuple):
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
    return Value(f"arr[{type}]", U32.pack(VALUE_TYPES_BY_NAME[type].id) + U64.pack(count) + elements)


def _elements(kind: ValueType, values: Sequence[str | int | float | bool]) -> bytes:
    if kind is STRING:
        return b"".join(string(str(value)) for value in values)
    return pack(f"<{len(values)}{kind.code}", *values)


def string(text: str) -> bytes:
    """A length and UTF-8; lone surrogates become the bytes that they stand for (``surrogateescape``)."""
    data = text.encode("utf-8", "surrogateescape")
    return U64.pack(len(data)) + data
