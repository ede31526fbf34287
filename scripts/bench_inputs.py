"""The models that ``bench.py`` measures: llama-shaped GGUF files, written without ckconv.

Blocks are random bytes. Floats are drawn as weights are: quantizers branch on them, and of numbers of all magnitudes a
compiler's choice of branches decided which was the faster.

Run in a process of its own, because a process hands its peak memory on to the children it starts.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: Name -> ggml id, elements and bytes of a block.
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210), "BF16": (30, 1, 2)}

QUANTIZED, WIDENED, HEADER = "quantized.gguf", "widened.gguf", "header.gguf"
#: As the quantized one, but small: as numbers it takes six times the space. And numbers to be quantized.
BLOCKS, FEW = "blocks.gguf", "few.gguf"
#: Numbers, as large as the quantized one, to be written in several files.
SHARDED = "sharded.gguf"

#: Tensors of headers whose time should be linear in their size. A safetensors header of 100 MB holds no more of these.
MANY = (90_000, 900_000)

_ALIGNMENT = 32
_POOL_BYTES = 16 << 20
#: Of a model's weights (``initializer_range`` of Llama's configurations).
_DEVIATION = np.float32(0.02)
#: Vocabulary of the model that is nearly all header.
_TOKENS, _MERGES, _HEADER_LAYERS = 152_064, 151_387, 33


@dataclass(frozen=True)
class Shape:
    """A llama-like model; ``vocab`` rows of the embedding."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    arch: str = "llama"
    biased: bool = False
    head: bool = False

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> dimensions, outermost first."""
        kv = self.hidden // self.heads * self.kv_heads
        square, wide = (self.hidden, self.hidden), (kv, self.hidden)
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (self.hidden,),
            "attn_q": square,
            "attn_k": wide,
            "attn_v": wide,
            "attn_output": square,
            "ffn_norm": (self.hidden,),
            "ffn_gate": (self.ffn, self.hidden),
            "ffn_up": (self.ffn, self.hidden),
            "ffn_down": (self.hidden, self.ffn),
        }
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (self.vocab, self.hidden)}
        for n in range(self.layers):
            shapes |= {f"blk.{n}.{name}.weight": shape for name, shape in layer.items()}
            if self.biased:
                shapes |= {f"blk.{n}.attn_{name}.bias": (layer[f"attn_{name}"][0],) for name in "qkv"}
        shapes["output_norm.weight"] = (self.hidden,)
        if self.head:
            shapes["output.weight"] = (self.vocab, self.hidden)
        return shapes

    def metadata(self) -> list[bytes]:
        """The keys that a converter needs."""
        numbers = {
            "block_count": self.layers,
            "context_length": 2048,
            "embedding_length": self.hidden,
            "feed_forward_length": self.ffn,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
        }
        return [
            _string("general.architecture") + struct.pack("<I", 8) + _string(self.arch),
            *(_string(f"{self.arch}.{key}") + struct.pack("<II", 4, value) for key, value in numbers.items()),
            _string(f"{self.arch}.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5),
            _string(f"{self.arch}.rope.freq_base") + struct.pack("<If", 6, 10000.0),
        ]


def quantized_shape(gigabytes: float) -> Shape:
    """As many layers of an 8 B model, in Q4_K and Q6_K, as make about this size."""
    one = Shape(1, 4096, 14336, 32, 8, 32_000)
    two = Shape(2, 4096, 14336, 32, 8, 32_000)
    sizes = [sum(nbytes(shape, quantized_type(name, shape)) for name, shape in s.tensors().items()) for s in (one, two)]
    layer = sizes[1] - sizes[0]
    return Shape(max(1, round((gigabytes * 1e9 - sizes[0]) / layer) + 1), 4096, 14336, 32, 8, 32_000)


def quantized_type(name: str, shape: tuple[int, ...]) -> str:
    """The types of a Q4_K_M file."""
    if len(shape) == 1:
        return "F32"
    return "Q6_K" if "token_embd" in name or "ffn_down" in name or "attn_v" in name else "Q4_K"


def widened_shape(gigabytes: float) -> Shape:
    """No dimension is a multiple of 16, so every tensor is padded; float32 output of about two thirds of the size."""
    return Shape(max(1, round(gigabytes * 3.8)), 2040, 5500, 20, 4, 16_000)


def widened_type(name: str, shape: tuple[int, ...]) -> str:
    """Both 16-bit types: they widen by different code."""
    odd = name.startswith("blk.") and int(name.split(".")[1]) % 2
    return "F16" if odd else "BF16"


def nbytes(shape: tuple[int, ...], kind: str) -> int:
    """Bytes of a tensor."""
    _, elements, size = TYPES[kind]
    count = 1
    for dimension in shape:
        count *= dimension
    return count // elements * size


def write_gguf(
    path: Path,
    model: Shape,
    type_of: Callable[[str, tuple[int, ...]], str],
    extra: list[bytes],
    *,
    sparse: bool = False,
) -> None:
    """Write a model; with ``sparse`` its data is one hole but for a byte that tells head and embedding apart."""
    shapes = model.tensors()
    pairs = model.metadata() + extra
    header = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(pairs)) + b"".join(pairs)
    records, offsets, at = [], {}, 0
    for name, shape in shapes.items():
        kind = type_of(name, shape)
        records.append(
            _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), TYPES[kind][0], at)
        )
        offsets[name] = at
        at += -(-nbytes(shape, kind) // _ALIGNMENT) * _ALIGNMENT
    header += b"".join(records)
    header += bytes(-len(header) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(header)
        if sparse:
            file.truncate(len(header) + at)
            file.seek(len(header) + offsets["output.weight"])
            file.write(b"\1")
            return
        pools = {kind: _pool(kind) for kind in {type_of(name, shape) for name, shape in shapes.items()}}
        for name, shape in shapes.items():
            kind = type_of(name, shape)
            _write_data(file.write, pools[kind], nbytes(shape, kind), offsets[name])


def _write_data(write: Callable[[memoryview], object], pool: memoryview, size: int, salt: int) -> None:
    """``size`` bytes of the pool, from another place for each tensor, and zeros up to the alignment."""
    start = salt * 2654435761 % (len(pool) // 2) & ~3
    padded = -(-size // _ALIGNMENT) * _ALIGNMENT
    left = size
    while left:
        part = pool[start : start + left]
        write(part)
        left -= len(part)
        start = 0
    write(memoryview(bytes(padded - size)))


def _pool(kind: str) -> memoryview:
    """Random blocks, or numbers with the deviation of a model's weights."""
    if TYPES[kind][1] > 1:
        return memoryview(random.Random(1).randbytes(_POOL_BYTES))
    values = np.random.default_rng(1).standard_normal(_POOL_BYTES // TYPES[kind][2], np.float32) * _DEVIATION
    halves = {"F32": values, "F16": values.astype(np.float16), "BF16": values.view(np.uint16)[1::2]}
    return memoryview(halves[kind].tobytes())


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _array(key: str, kind: int, count: int, data: bytes) -> bytes:
    return _string(key) + struct.pack("<IIQ", 9, kind, count) + data


def _vocabulary() -> list[bytes]:
    """A byte-pair vocabulary of the size that current models have."""
    draw = random.Random(2)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz\u0120", k=draw.randint(2, 14))) for _ in range(_TOKENS)]
    merges = [f"{word[:5]} {word[5:] or 'e'}" for word in words[:_MERGES]]
    return [
        _array("tokenizer.ggml.tokens", 8, _TOKENS, b"".join(map(_string, words))),
        _array("tokenizer.ggml.token_type", 5, _TOKENS, struct.pack(f"<{_TOKENS}i", *[1] * _TOKENS)),
        _array("tokenizer.ggml.merges", 8, _MERGES, b"".join(map(_string, merges))),
    ]


def many_gguf(count: int) -> str:
    """The name of a GGUF of ``count`` tensors."""
    return f"many{count}.gguf"


def many_safetensors(count: int) -> str:
    """The name of a safetensors file of ``count`` tensors."""
    return f"many{count}.safetensors"


def _write_many(place: Path, count: int) -> None:
    """Nothing but header: tensors of four floats each, of an architecture that has no rules."""
    tail = struct.pack("<IQQI", 2, 2, 2, 0)
    records = b"".join(_string(f"blk.{n}.attn_q.weight") + tail + struct.pack("<Q", 32 * n) for n in range(count))
    pair = _string("general.architecture") + struct.pack("<I", 8) + _string("many")
    header = b"GGUF" + struct.pack("<IQQ", 3, count, 1) + pair + records
    _write_sparse(place / many_gguf(count), header + bytes(-len(header) % _ALIGNMENT), 32 * count)
    entries = (
        f'"model.layers.{n}.self_attn.q_proj.weight":{{"dtype":"F32","shape":[2,2],'
        f'"data_offsets":[{16 * n},{16 * n + 16}]}}'
        for n in range(count)
    )
    header = f"{{{','.join(entries)}}}".encode()
    _write_sparse(place / many_safetensors(count), struct.pack("<Q", len(header)) + header, 16 * count)


def _write_sparse(path: Path, header: bytes, nbytes: int) -> None:
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + nbytes)


def main(directory: str, gigabytes: str) -> None:
    """Write the models into ``directory``."""
    place, size = Path(directory), float(gigabytes)
    write_gguf(place / QUANTIZED, quantized_shape(size), quantized_type, [])
    write_gguf(place / WIDENED, widened_shape(size), widened_type, [])
    write_gguf(place / BLOCKS, quantized_shape(size / 6), quantized_type, [])
    write_gguf(place / FEW, Shape(4, 2048, 5632, 16, 4, 8_000), widened_type, [])
    write_gguf(place / SHARDED, widened_shape(size * 2.6), widened_type, [])
    header = Shape(_HEADER_LAYERS, 3584, 18944, 28, 4, _TOKENS, arch="qwen2", biased=True, head=True)
    write_gguf(place / HEADER, header, quantized_type, _vocabulary(), sparse=True)
    for count in MANY:
        _write_many(place, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
