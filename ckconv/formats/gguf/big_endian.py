"""Big-endian GGUF files as the little-endian ones of the same sizes.

Every number of the header is turned around, and in the data the numbers of floats and the scales of blocks. Counts and
lengths that are malformed end that: what follows is left as it is, and the reader of headers finds the fault. Sources:
``gguf/scripts/gguf_convert_endian.py`` of gguf 0.19, and the structs of halves and bytes of ``ggml-common.h``; types
that are read from bytes as wider numbers there have no order that is sure.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from pathlib import Path

from ckconv.core.dtypes import DType, Kind, of_ggml
from ckconv.core.metadata import ARRAY, STRING, VALUE_TYPES
from ckconv.core.tensors import Extent
from ckconv.errors import UnsupportedError, quoted
from ckconv.formats.gguf.values import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    LENGTH,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_ARRAY_ELEMENTS,
    MAX_DIMS,
    MAX_KEYS,
    MAX_STRING_BYTES,
    MAX_TENSORS,
    VERSIONS,
    Cursor,
    align_up,
)
from ckconv.io.files import ByteSource
from ckconv.io.standing import Part, Turned

#: Type of blocks -> where in a block a half begins.
_HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_NL": (0,), "TQ2_0": (64,), "MXFP4": (), "NVFP4": (),
}  # fmt: skip


def little_endian(source: ByteSource) -> list[Part]:
    """The parts of the file that has the same numbers.

    Raises:
        UnsupportedError: ``gguf.endian``, a type whose bytes have no sure order.
    """
    assert source.size is not None
    if source.read_at(4, 2) != b"\0\0":  # another shard may be of another order
        return [Extent(source.path, 0, source.size)]
    header, tensors = _Header(source), list[tuple[str, DType, int, int]]()
    try:
        data, tensors = header.turned()
    except _Malformed:
        data = source.size
    made: list[Part] = [bytes(header.made)]
    at = len(header.made)
    for name, dtype, offset, nbytes in tensors:
        if data + offset < at or data + offset + nbytes > source.size:
            break
        made += [Extent(source.path, at, data + offset - at), _turned(source.path, name, dtype, data + offset, nbytes)]
        at = data + offset + nbytes
    return [*made, Extent(source.path, at, source.size - at)]


def _turned(path: Path, name: str, dtype: DType, offset: int, nbytes: int) -> Turned:
    halves = _HALVES.get(dtype.name)
    if dtype.kind is Kind.BLOCK and halves is None:
        message = f"is big-endian, and {dtype} blocks, as of {quoted(name)}, have no order of bytes that is sure"
        hint = "convert the checkpoint that it was made from"
        raise UnsupportedError("gguf.endian", message, path=path, tensor=name, hint=hint)
    runs = ((0, dtype.size),) if halves is None else tuple((at, 2) for at in halves)
    return Turned(Extent(path, offset, nbytes), dtype.size, runs)


class _Malformed(Exception):
    """Number that no sound header has, or the end of the file."""


class _Header:
    """Walks along a header, and makes the little-endian one."""

    def __init__(self, source: ByteSource) -> None:
        self._cursor = Cursor(source)
        self.made = bytearray()

    def turned(self) -> tuple[int, list[tuple[str, DType, int, int]]]:
        """Offset of the data; name, type, offset and bytes of every tensor."""
        self._bytes(len(MAGIC))
        version = self._number(4)
        if version not in VERSIONS:
            raise _Malformed
        length = LENGTH[version].size
        count, pairs = self._number(length, MAX_TENSORS), self._number(length, MAX_KEYS)
        alignment = DEFAULT_ALIGNMENT
        for _ in range(pairs):
            key = self._string(length)
            value = self._value(self._number(4), length)
            if key == ALIGNMENT_KEY.encode() and value:
                alignment = value
        if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise _Malformed
        tensors = list(self._tensors(count, length))
        return align_up(len(self.made), alignment), tensors

    def _tensors(self, count: int, length: int) -> Iterator[tuple[str, DType, int, int]]:
        for _ in range(count):
            name = self._string(length).decode("utf-8", "replace")
            shape = [self._number(length, 1 << 62) for _ in range(self._number(4, MAX_DIMS))]
            dtype, offset = of_ggml(self._number(4), shape[0] if shape else 0), self._number(8, 1 << 62)
            if dtype is None:
                raise _Malformed
            yield name, dtype, offset, dtype.nbytes(math.prod(shape))

    def _bytes(self, nbytes: int) -> bytes:
        if not self._cursor.has(nbytes):
            raise _Malformed
        data = self._cursor.take(nbytes)
        self.made += data
        return data

    def _number(self, nbytes: int, most: int = 1 << 64) -> int:
        if not self._cursor.has(nbytes):
            raise _Malformed
        data = self._cursor.take(nbytes)
        self.made += data[::-1]
        number = int.from_bytes(data, "big")
        if number > most:
            raise _Malformed
        return number

    def _string(self, length: int) -> bytes:
        return self._bytes(self._number(length, MAX_STRING_BYTES))

    def _value(self, type_id: int, length: int) -> int:
        """A value of 32 bits; zero for any other."""
        if type_id == STRING.id:
            self._string(length)
            return 0
        if type_id != ARRAY.id:
            size = self._size(type_id)
            number = self._number(size)
            return number if size == 4 else 0
        of, count = self._number(4), self._number(length, MAX_ARRAY_ELEMENTS)
        size = length if of == STRING.id else self._size(of)
        if not self._cursor.reaches(self._cursor.offset + count * size):
            raise _Malformed
        if of == STRING.id:
            for _ in range(count):
                self._string(length)
            return 0
        while count:  # a piece at a time: what is declared may not be there
            some = min(count, 1 << 16)
            numbers = array({1: "B", 2: "H", 4: "I", 8: "Q"}[size], self._bytes(some * size))
            numbers.byteswap()
            self.made[-some * size :] = numbers.tobytes()
            count -= some
        return 0

    @staticmethod
    def _size(type_id: int) -> int:
        kind = VALUE_TYPES.get(type_id)
        if kind is None or not kind.size:
            raise _Malformed
        return kind.size
