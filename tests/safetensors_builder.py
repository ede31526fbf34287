"""Makes safetensors files and checkpoint directories byte by byte, sound ones and broken ones."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

Tensors = Mapping[str, tuple[str, list[int]]]


def container(header: str | bytes | dict[str, Any], data: bytes = b"") -> bytes:
    """Length, header as given, data."""
    if isinstance(header, dict):
        header = json.dumps(header, separators=(",", ":"))
    if isinstance(header, str):
        header = header.encode()
    return len(header).to_bytes(8, "little") + header + data


def tensor(dtype: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def f32(begin: int, end: int) -> dict[str, Any]:
    """A vector that fills bytes ``begin`` to ``end``."""
    return tensor("F32", [(end - begin) // 4], begin, end)


def header_of(tensors: Tensors) -> tuple[dict[str, Any], int]:
    """A header of these tensors one after the other, and the bytes of their data."""
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = at + prod(shape) * BITS[dtype] // 8
        header[name] = tensor(dtype, shape, at, end)
        at = end
    return header, at


def sound(tensors: Tensors) -> bytes:
    """A file that holds these tensors, filled with a pattern."""
    header, size = header_of(tensors)
    return container(header, bytes(i % 251 for i in range(size)))


def checkpoint(root: Path, shards: Mapping[str, Tensors], **index: Any) -> Path:
    """A directory of shards with its index; ``index`` replaces parts of it."""
    root.mkdir(parents=True, exist_ok=True)
    total = 0
    for name, tensors in shards.items():
        (root / name).write_bytes(sound(tensors))
        total += header_of(tensors)[1]
    weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    write_index(root, **{"metadata": {"total_size": total}, "weight_map": weight_map, **index})
    return root


def write_index(root: Path, **index: Any) -> None:
    (root / "model.safetensors.index.json").write_text(json.dumps(index))


def split(data: bytes) -> tuple[bytes, bytes]:
    """``(header, tensor data)`` of a sound file."""
    length = int.from_bytes(data[:8], "little")
    return data[8 : 8 + length], data[8 + length :]


def tensors_of(place: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Type, shape and bytes of every tensor of a file, or of the files of a directory."""
    found = {}
    for path in sorted(place.glob("*.safetensors")) if place.is_dir() else [place]:
        header, data = split(path.read_bytes())
        for name, entry in json.loads(header).items():
            if name != "__metadata__":
                found[name] = entry["dtype"], tuple(entry["shape"]), data[slice(*entry["data_offsets"])]
    return found


def numbers(dtype: str, data: bytes) -> np.ndarray:
    """Values as float32, one behind the other; whole numbers as they are."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype == "I64":
        return np.frombuffer(data, "<i8")
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32)


_NUMBERS = (b"0", b"-1", b"-0", b"1.5", b"1e3", b"2", b"9" * 19, b"9" * 30, b"1e999", b"18446744073709551615", b"NaN")
_PIECES = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"true", b"\xff", b"\x00", b" ",
    b'"dtype"', b'"shape"', b'"data_offsets"', b'"__metadata__"', b'"F4"', b"..", b"/", b"\n",
    b"[" * 200, b'{"a":' * 80,
)  # fmt: skip
_TOKEN = re.compile(rb'"[^"]*"|-?\d+|[\[\]{}:,]')


def mutated(document: bytes, rng: random.Random) -> bytes:
    """A JSON document with one to three changes, most of which leave it JSON."""
    for _ in range(rng.randint(1, 3)):
        tokens = list(_TOKEN.finditer(document))
        if not tokens:
            return document
        (way,) = rng.choices(_WAYS, _WEIGHTS)
        document = way(document, tokens, rng)
    return document


_Tokens = list[re.Match[bytes]]


def _change_number(document: bytes, tokens: _Tokens, rng: random.Random) -> bytes:
    numbers = [token for token in tokens if token[0].lstrip(b"-").isdigit()] or tokens
    start, end = rng.choice(numbers).span()
    return document[:start] + rng.choice((*_NUMBERS, b"%d" % rng.randrange(300))) + document[end:]


def _change_alike(document: bytes, tokens: _Tokens, rng: random.Random) -> bytes:
    """One string or number takes the place of another one."""
    token = rng.choice(tokens)
    others = [other[0] for other in tokens if other[0][:1].isdigit() == token[0][:1].isdigit()]
    others = [other for other in others if (other[:1] == b'"') == (token[0][:1] == b'"')]
    return document[: token.start()] + rng.choice(others) + document[token.end() :]


def _change_token(document: bytes, tokens: _Tokens, rng: random.Random) -> bytes:
    start, end = rng.choice(tokens).span()
    return document[:start] + rng.choice((*_PIECES, rng.choice(tokens)[0])) + document[end:]


def _repeat(document: bytes, tokens: _Tokens, rng: random.Random) -> bytes:
    start, end = sorted((rng.choice(tokens).start(), rng.choice(tokens).end()))
    return document[:end] + document[start:end] + document[end:]


def _insert(document: bytes, tokens: _Tokens, rng: random.Random) -> bytes:
    at = rng.randrange(len(document) + 1)
    return document[:at] + rng.choice(_PIECES) + document[at:]


def _remove(document: bytes, tokens: _Tokens, rng: random.Random) -> bytes:
    at = rng.randrange(len(document))
    return document[:at] + document[at + rng.randint(1, 12) :]


def _flip_bit(document: bytes, tokens: _Tokens, rng: random.Random) -> bytes:
    at = rng.randrange(len(document))
    return document[:at] + bytes([document[at] ^ 1 << rng.randrange(8)]) + document[at + 1 :]


def _change_end(document: bytes, tokens: _Tokens, rng: random.Random) -> bytes:
    cut = document[: rng.randrange(len(document) + 1)]
    return rng.choice((cut, document + b" ", document + b"\0", document + b"\n", document + b"x"))


_WAYS = (_change_number, _change_alike, _change_token, _repeat, _insert, _remove, _flip_bit, _change_end)
_WEIGHTS = (40, 30, 5, 5, 5, 5, 5, 5)
