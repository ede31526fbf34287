"""GGUF files put together byte by byte, sound and broken ones, and mutations of them.

Nothing of the package under test is used here: a wrong constant there cannot hide behind itself.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: name -> (id, struct code); strings and arrays have no code.
VALUES = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "i16": (3, "h"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "?"),
    "str": (8, ""),
    "arr": (9, ""),
    "u64": (10, "Q"),
    "i64": (11, "q"),
    "f64": (12, "d"),
}

F32, F16, Q4_0, Q8_0, Q4_K = 0, 1, 2, 8, 12
#: ggml id -> (elements, bytes) of a block.
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34), Q4_K: (256, 144)}


@dataclass(frozen=True)
class Tensor:
    """``dims`` as the file has them, innermost first. What is ``None`` is filled in as it should be."""

    name: str | bytes
    dims: tuple[int, ...] = (4,)
    type: int = F32
    offset: int | None = None
    n_dims: int | None = None
    data: bytes | None = None

    @property
    def payload(self) -> bytes:
        if self.data is not None:
            return self.data
        block, size = BLOCKS.get(self.type, (1, 4))
        elements = 1
        for dim in self.dims:
            elements *= dim
        return b"\x11" * (elements // block * size)


def number(value: int, version: int = 3) -> bytes:
    """A count, length or dimension."""
    return struct.pack("<I" if version == 1 else "<Q", value)


def string(text: str | bytes, version: int = 3, length: int | None = None) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return number(len(data) if length is None else length, version) + data


def value(kind: str, content: object, version: int = 3) -> bytes:
    """A value without its type; ``arr[i32]`` takes a list."""
    if kind.startswith("arr["):
        element = kind[4:-1]
        head = struct.pack("<I", VALUES[element][0]) + number(len(content), version)
        return head + b"".join(value(element, item, version) for item in content)
    if kind == "str":
        return string(content, version)
    return struct.pack("<" + VALUES[kind][1], content)


def pair(key: str | bytes, kind: str, content: object, version: int = 3) -> bytes:
    return raw_pair(key, VALUES[kind.partition("[")[0]][0], value(kind, content, version), version)


def raw_pair(key: str | bytes, type_id: int, payload: bytes, version: int = 3) -> bytes:
    """A pair whose type id and value bytes are taken as they are."""
    return string(key, version) + struct.pack("<I", type_id) + payload


def record(tensor: Tensor, offset: int, version: int = 3) -> bytes:
    n_dims = len(tensor.dims) if tensor.n_dims is None else tensor.n_dims
    dims = b"".join(number(dim, version) for dim in tensor.dims)
    place = offset if tensor.offset is None else tensor.offset
    return string(tensor.name, version) + struct.pack("<I", n_dims) + dims + struct.pack("<IQ", tensor.type, place)


def padding(size: int, alignment: int) -> bytes:
    return b"\0" * (-size % alignment)


def gguf(
    metadata: Iterable[tuple[str | bytes, str, object] | bytes] = (),
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    tensor_count: int | None = None,
    pair_count: int | None = None,
    last_padding: bool = True,
) -> bytes:
    """A whole file. A pair given as bytes goes in as it is. ``alignment`` other than 32 needs its metadata pair too."""
    pairs = [item if isinstance(item, bytes) else pair(*item, version) for item in metadata]
    header = b"GGUF" + struct.pack("<I", version)
    header += number(len(tensors) if tensor_count is None else tensor_count, version)
    header += number(len(pairs) if pair_count is None else pair_count, version)
    header += b"".join(pairs)
    data = bytearray()
    for index, tensor in enumerate(tensors):
        header += record(tensor, len(data), version)
        data += tensor.payload
        if last_padding or index + 1 < len(tensors):
            data += padding(len(data), alignment)
    return header + padding(len(header), alignment) + bytes(data)


class _Fields:
    """A walk over the header of a sound file that notes its numbers."""

    def __init__(self, file: bytes) -> None:
        self.file, self.at, self.found = file, 4, []
        self.read(4)
        self.width = 4 if file[4] == 1 else 8
        tensors, pairs = self.read(self.width), self.read(self.width)
        for _ in range(pairs):
            self.string()
            self.value(self.read(4))
        for _ in range(tensors):
            self.string()
            for _ in range(self.read(4)):
                self.read(self.width)
            self.read(4)
            self.read(8)

    def read(self, nbytes: int) -> int:
        self.found.append((self.at, nbytes))
        self.at += nbytes
        return int.from_bytes(self.file[self.at - nbytes : self.at], "little")

    def string(self) -> None:
        nbytes = self.read(self.width)
        self.at += nbytes

    def value(self, type_id: int) -> None:
        if type_id == 8:
            self.string()
        elif type_id == 9:
            element, count = self.read(4), self.read(self.width)
            for _ in range(count):
                self.value(element)
        else:
            self.at += next(struct.calcsize("<" + code) for number, code in VALUES.values() if number == type_id)


def number_fields(file: bytes) -> list[tuple[int, int]]:
    """``(offset, bytes)`` of every count, length, type, dimension and offset in the header of a sound file."""
    return _Fields(file).found


EDGES = (0, 1, 2, 3, 5, 7, 31, 33, 77, 255, 256, 65_535, 65_536, 1 << 24, (1 << 24) + 1, 1 << 31, (1 << 32) - 1)
EDGES_64 = (1 << 32, 1 << 50, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 32, (1 << 64) - 9, (1 << 64) - 1)


def mutated(file: bytes, rng: random.Random, fields: Sequence[tuple[int, int]] = ()) -> bytes:
    """``file`` with one to four changes; those to ``fields`` put an edge value, or a near one, into a number."""
    data = bytearray(file)
    header = fields[-1][0] + fields[-1][1] if fields else len(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind = rng.randrange(8)
        at = rng.randrange(min(header, len(data)) or 1)
        if kind < 4 and fields:
            at, width = rng.choice(fields)
            old = int.from_bytes(data[at : at + width], "little")
            edge = rng.choice(EDGES if width == 4 else EDGES + EDGES_64)
            new = rng.choice((edge, old + rng.randrange(-3, 4), old ^ 1 << rng.randrange(width * 8)))
            data[at : at + width] = (new % (1 << width * 8)).to_bytes(width, "little")
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            del data[at : at + rng.randrange(1, 40)]
        elif kind == 6:
            data[at:at] = rng.randbytes(rng.randrange(1, 40))
        else:
            data[at : at + 1] = rng.randbytes(1)
    return bytes(data)
