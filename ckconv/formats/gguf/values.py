"""GGUF metadata values: scalars are decoded, arrays are located and decoded when somebody asks."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from struct import Struct

from ckconv.core.metadata import ARRAY, BOOL, STRING, U32, VALUE_TYPES, VALUE_TYPES_BY_NAME, ValueType
from ckconv.errors import InputError, OutputError, quoted
from ckconv.formats.gguf.cursor import TRUNCATED, Cursor
from ckconv.formats.gguf.spec import MAX_ARRAY_ELEMENTS, MAX_STRING_BYTES
from ckconv.io.bytesource import ByteSource

Scalar = int | float | bool | str

_CHUNK = 1 << 20

#: Strings that are passed over in one go where all of them are short: an expression walks along their lengths in half
#: the time that a loop takes. Most tokens and merges have fewer bytes.
_RUN, _SHORT = 64, 40

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
    length: Struct = field(repr=False)
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
        """All elements. Strings are UTF-8; bytes that are not are kept as lone surrogates (``surrogateescape``).

        Raises:
            OutputError: as :meth:`raw`.
        """
        return self._decoded(self.raw(), self.count)

    def each(self) -> Iterator[str]:
        """The strings of an array of them, one after the other: their bytes are read at once, decoded when asked for.

        Raises:
            OutputError: as :meth:`raw`.
        """
        return self._texts(self.raw(), self.count)

    def head(self, count: int) -> list[Scalar]:
        """The first ``count`` elements, or all where there are fewer; reads little more than those.

        Raises:
            OutputError: as :meth:`raw`.
        """
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
        cursor = Cursor(self.source, self.offset, first=4 << 10, window=64 << 10)
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


@dataclass(frozen=True, slots=True)
class MetaValue:
    """One metadata value.

    Attributes:
        type: ``u32``, ``f32``, ``bool``, ``str``, ...; ``arr[str]`` for an array.
        value: the decoded scalar; an f32 as the equal Python float. Strings as :meth:`ArrayRef.decode` has them.
        raw: the stored bytes of a number, because a signalling NaN does not survive a Python float; empty for
            strings and arrays, which are restorable as they are.
    """

    type: str
    value: Scalar | ArrayRef
    raw: bytes = field(default=b"", repr=False)


def read_value(cursor: Cursor, key: str, length: Struct) -> MetaValue:
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
        text = read_string(cursor, length, MAX_STRING_BYTES, f"the value of key {quoted(key)}")
        return MetaValue(STRING.name, text.decode("utf-8", "surrogateescape"))
    offset = cursor.offset
    raw = cursor.need(kind.size, f"the value of key {quoted(key)}")
    if kind is BOOL and raw[0] > 1:
        raise _not_bool(cursor, key, offset, raw[0])
    return MetaValue(kind.name, struct.unpack("<" + kind.code, raw)[0], raw)


def read_string(cursor: Cursor, length: Struct, cap: int, what: str) -> bytes:
    """Read a length and that many bytes. ``what`` is what a message calls them.

    Raises:
        InputError: ``gguf.string``, the length passes ``cap`` or the end of the input; ``gguf.truncated``.
    """
    offset = cursor.offset
    nbytes = length.unpack(cursor.need(length.size, what))[0]
    if nbytes > cap or not cursor.has(nbytes):
        raise _bad_string(cursor, what, offset, nbytes, cap)
    return cursor.take(nbytes)


def _bad_string(cursor: Cursor, what: str, offset: int, nbytes: int, cap: int) -> InputError:
    left = cursor.left
    over_cap = nbytes > cap and (left is None or cap < left)
    limit = f"at most {cap:,} are allowed" if over_cap or left is None else f"{left:,} remain"
    return InputError(
        "gguf.string",
        f"{what} at byte {offset:,} declares {nbytes:,} bytes, {limit}",
        path=cursor.path,
        offset=offset,
        found=nbytes,
        allowed=cap if over_cap else left,
        hint=TRUNCATED if nbytes <= cap else None,
    )


def _read_type(cursor: Cursor, key: str, what: str) -> ValueType:
    offset = cursor.offset
    number = U32.unpack(cursor.need(U32.size, f"the type of key {quoted(key)}"))[0]
    kind = VALUE_TYPES.get(number)
    if kind is None:
        raise InputError(
            "gguf.value-type",
            f"key {quoted(key)} {what} {number} (0 to {max(VALUE_TYPES)} exist)",
            path=cursor.path,
            offset=offset,
            found=number,
            allowed=max(VALUE_TYPES),
        )
    return kind


def _read_array(cursor: Cursor, key: str, length: Struct) -> MetaValue:
    at = cursor.offset
    kind = _read_type(cursor, key, "is an array of value type")
    if kind is ARRAY:
        raise InputError(
            "gguf.nested-array",
            f"array of arrays at byte {at:,} is not supported",
            path=cursor.path,
            offset=at,
            found=ARRAY.id,
        )
    counted_at = cursor.offset
    count = length.unpack(cursor.need(length.size, f"the length of array {quoted(key)}"))[0]
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
    return InputError(
        "gguf.array",
        f"{quoted(key)} declares {count:,} {noun}, {limit}",
        path=cursor.path,
        offset=offset,
        found=count,
        allowed=allowed,
        hint=TRUNCATED if count <= MAX_ARRAY_ELEMENTS else None,
    )


@cache
def _short_strings(width: int) -> re.Pattern[bytes]:
    """What :data:`_RUN` strings shorter than :data:`_SHORT` bytes are, the commonest lengths first."""
    lengths = sorted(range(_SHORT), key=lambda nbytes: abs(nbytes - 6))
    forms = (b"\\x%02x\\0{%d}.{%d}" % (nbytes, width - 1, nbytes) for nbytes in lengths)
    return re.compile(b"(?:%s){%d}+" % (b"|".join(forms), _RUN), re.DOTALL)


def _skip_strings(cursor: Cursor, key: str, count: int, length: Struct) -> None:
    """Move over ``count`` strings. The inner loop runs once a token of a vocabulary: it touches only the lengths."""
    unpack, width = length.unpack_from, length.size
    run = _short_strings(width).match
    done = index = 0
    while done < count:
        if not cursor.has(width):
            raise cursor.truncated(width, f"the length of string #{done + 1:,} of {quoted(key)}")
        buffer, at = cursor.buffer, cursor.at
        while count - done >= _RUN and (short := run(buffer, at)):
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
        part = cursor.need(min(count, _CHUNK), f"array {quoted(key)}")
        bad = part.translate(_NOT_BOOL).find(1)
        if bad >= 0:
            raise _not_bool(cursor, key, offset + bad, part[bad])
        count -= len(part)


def _not_bool(cursor: Cursor, key: str, offset: int, byte: int) -> InputError:
    return InputError(
        "gguf.bool",
        f"key {quoted(key)} holds {byte} where 0 or 1 is required",
        path=cursor.path,
        offset=offset,
        found=byte,
        allowed="0 or 1",
    )
