"""A BUMPWGT3 file computed from scratch: the gguf package reads, plain numpy packs, nothing of ckconv is used.

Written from the description of the loader: 14 slots a layer, heads and rows padded to 16 elements,
FP32 Wo one block a head.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Q, GGUFReader

CODES = {"v3": {Q.F32: 0, Q.Q4_K: 6, Q.Q6_K: 7}, "v4": {Q.F32: 0, Q.Q4_K: 7, Q.Q6_K: 8}}


def up(n: int) -> int:
    return (n + 15) // 16 * 16


class Source:
    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        self.arch = self.fields["general.architecture"]
        self.tensors = {t.name: t for t in reader.tensors}

    def key(self, name: str) -> int:
        return int(self.fields[f"{self.arch}.{name}"])

    def rows(self, name: str, kept: Q | None = None) -> tuple[np.ndarray, Q]:
        """Rows of bytes for blocks and floats of the type ``kept``, of float32 otherwise."""
        tensor = self.tensors[name]
        kind = tensor.tensor_type
        data = np.array(tensor.data)
        if kind in (Q.F32, kept):
            return data, kind
        if kind == Q.F16:
            return data.astype(np.float32), Q.F32
        if kind == Q.BF16:
            wide = data.view(np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32), Q.F32
        return data, kind


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's converter made [2i, 2i+1] neighbors of [i, i + D/2]; this is its inverse."""
    per_head = rows.reshape(heads, -1, *rows.shape[1:])
    return np.concatenate([per_head[:, 0::2], per_head[:, 1::2]], axis=1).reshape(rows.shape)


def pad(rows: np.ndarray, height: int, width: int) -> np.ndarray:
    out = np.zeros((height, width), rows.dtype)
    out[: rows.shape[0], : rows.shape[1]] = rows
    return out


def pad_heads(rows: np.ndarray, heads: int, stride: int, width: int) -> np.ndarray:
    return np.concatenate([pad(head, stride, width) for head in np.split(rows, heads)])


def expected_bump3(
    path: Path, *, context: int | None = None, codes: str = "v3", interleaved_kept: bool = False
) -> bytes:
    source = Source(path)
    layers, hidden, ffn = source.key("block_count"), source.key("embedding_length"), source.key("feed_forward_length")
    heads, kv = source.key("attention.head_count"), source.key("attention.head_count_kv")
    size = hidden // heads
    ctx = context or source.key("context_length")
    wide, stride, tall = up(hidden), up(size), up(ffn)
    permuted = source.arch == "llama" and not interleaved_kept
    table: list[int] = []
    payload: list[bytes] = []

    def emit(array: np.ndarray, kind: Q = Q.F32) -> None:
        table.append(CODES[codes][kind])
        payload.append(np.ascontiguousarray(array).tobytes())

    def vector(name: str, length: int) -> np.ndarray:
        if name not in source.tensors:
            return np.zeros(length, np.float32)
        return pad(source.rows(name)[0].reshape(1, -1), 1, length)[0]

    def matrix(name: str, height: int, width: int) -> tuple[np.ndarray, Q]:
        rows, kind = source.rows(name)
        return (pad(rows, height, width), kind) if kind == Q.F32 else (rows, kind)

    def projection(name: str, count: int, rotated: bool) -> None:
        rows, kind = source.rows(name + ".weight")
        rows = unpermute(rows, count) if rotated else rows
        emit(pad_heads(rows, count, stride, wide) if kind == Q.F32 else rows, kind)
        bias = np.zeros(count * size, np.float32)
        if name + ".bias" in source.tensors:
            bias = source.rows(name + ".bias")[0]
            bias = unpermute(bias, count) if rotated else bias
        emit(pad(bias.reshape(count, size), count, stride))

    vocab = len(source.tensors["token_embd.weight"].data)
    emit(*matrix("token_embd.weight", vocab, wide))
    emit(np.zeros((ctx, wide), np.float32))
    for n in range(layers):
        b = f"blk.{n}."
        emit(vector(b + "attn_norm.weight", wide))
        emit(vector(b + "ffn_norm.weight", wide))
        projection(b + "attn_q", heads, permuted)
        projection(b + "attn_k", kv, permuted)
        projection(b + "attn_v", kv, False)
        rows, kind = source.rows(b + "attn_output.weight")
        if kind == Q.F32:
            rows = np.concatenate([pad(rows[:, h * size : (h + 1) * size], wide, stride) for h in range(heads)])
        emit(rows, kind)
        emit(vector(b + "attn_output.bias", wide))
        (gate, kind), (up_rows, _) = matrix(b + "ffn_gate.weight", tall, wide), matrix(b + "ffn_up.weight", tall, wide)
        emit(np.concatenate([gate, up_rows]), kind)
        emit(np.concatenate([vector(b + "ffn_gate.bias", tall), vector(b + "ffn_up.bias", tall)]))
        emit(*matrix(b + "ffn_down.weight", wide, tall))
        emit(vector(b + "ffn_down.bias", wide))
    emit(vector("output_norm.weight", wide))
    emit(vector("output_norm.bias", wide))

    body = struct.pack("<I", len(table)) + bytes(table) + b"".join(payload)
    numbers = struct.pack("<8I", 3, 1, layers, vocab, hidden, ctx, heads, size)
    aligned = struct.pack("<3Q", wide, stride, up(ctx))
    return b"BUMPWGT3" + numbers + aligned + hashlib.sha256(body).digest() + bytes(32) + body
