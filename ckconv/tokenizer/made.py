"""Keys of a GGUF that were made here, in the words of a reader of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import unpack_from
from typing import Any

from ckconv.core.metadata import STRING, U32, U64, VALUE_TYPES_BY_NAME, Value


@dataclass(frozen=True, slots=True)
class Made:
    """A value: of a scalar type, or an array that is decoded where it is asked for."""

    value: Any


@dataclass(frozen=True, slots=True)
class MadeArray:
    """The elements of an array.

    Attributes:
        type: of an element, by name.
        count: elements.
        elements: their bytes.
    """

    type: str
    count: int
    elements: bytes

    def decode(self) -> list[Any]:
        """All of them."""
        if self.type == STRING.name:
            return list(self.each())
        return list(unpack_from(f"<{self.count}{VALUE_TYPES_BY_NAME[self.type].code}", self.elements))

    def each(self) -> Iterator[str]:
        """The strings of an array of them."""
        at = 0
        for _ in range(self.count):
            start = at + U64.size
            at = start + U64.unpack_from(self.elements, at)[0]
            yield self.elements[start:at].decode("utf-8", "surrogateescape")


def as_read(metadata: Mapping[str, Value]) -> dict[str, Made]:
    """Key -> its value."""
    return {key: Made(_value(value)) for key, value in metadata.items()}


def _value(value: Value) -> object:
    name = value.type.removeprefix("arr[").removesuffix("]")
    if name != value.type:
        return MadeArray(name, U64.unpack_from(value.payload, U32.size)[0], value.payload[U32.size + U64.size :])
    text = MadeArray(name, 1, value.payload)
    return text.decode()[0]
