"""A BUMPWGT5 file (or one of layout D of version 4) computed from scratch, up to its metadata.

The gguf package reads, numpy and struct pack; nothing of ckconv is used. Written from the description of the engine's
own GGUF script: no padding, no alignment, RoPE rows as the GGUF has them, one byte of the dtype table for positions
that are not there and none for the norms of Q and K.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
from bump3_expected import Source, unpermute
from gguf import GGMLQuantizationType as Q

CODES = {
    Q.F32: 0,
    Q.F16: 2,
    Q.BF16: 1,
    Q.Q4_0: 5,
    Q.Q4_1: 6,
    Q.Q4_K: 7,
    Q.Q6_K: 8,
    Q.Q8_0: 9,
    Q.Q5_0: 11,
    Q.Q5_1: 12,
    Q.Q5_K: 13,
}
WORDS = {Q.F32: "fp32"}


def expected_bump5(
    path: Path, *, version: int = 5, context: int | None = None, split: bool = False, kept: Q | None = None
) -> tuple[bytes, list[dict[str, Any]]]:
    """Header, dtype table and payload, and the manifest's entries.

    ``kept``: floats of this type are stored as they are in matrices.
    ``split``: the Q and K rows of a llama are put back into Hugging Face's order.
    """
    source = Source(path)
    layers, hidden, ffn = source.key("block_count"), source.key("embedding_length"), source.key("feed_forward_length")
    heads, kv = source.key("attention.head_count"), source.key("attention.head_count_kv")
    size = (
        source.key("attention.key_length")
        if f"{source.arch}.attention.key_length" in source.fields
        else hidden // heads
    )
    ctx = context or source.key("context_length")
    vocab = len(source.tensors["token_embd.weight"].data)
    unpermuted = split and source.arch == "llama"
    table: list[int] = []
    payload: list[bytes] = []
    entries: list[dict[str, Any]] = []

    def emit(name: str, data: bytes | np.ndarray, word: str = "fp32", code: int | None = 0) -> None:
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        entries.append({"name": name, "dtype": word, "file_offset": sum(map(len, payload)), "size": len(raw)})
        payload.append(raw)
        if code is not None:
            table.append(code)

    def matrix(name: str, *stored: str, rotated: int = 0) -> None:
        parts = [source.rows(one, kept) for one in stored]
        kind = parts[0][1]
        rows = np.concatenate([part for part, _ in parts])
        if rotated and unpermuted:
            rows = unpermute(rows, rotated)
        emit(name, rows, WORDS.get(kind, kind.name.lower()), CODES[kind])

    def vector(name: str, stored: str, length: int, *, code: int | None = 0, rotated: int = 0) -> None:
        values = source.rows(stored)[0] if stored in source.tensors else np.zeros(length, np.float32)
        emit(name, unpermute(values, rotated) if rotated and unpermuted else values, code=code)

    matrix("token_emb", "token_embd.weight")
    untied = "output.weight" in source.tensors
    if untied:
        matrix("output.weight", "output.weight")
    tokens = source.fields.get("tokenizer.ggml.tokens", [])
    merges: list[int] = []
    strings = b""
    if tokens:
        offsets = []
        for token in tokens:
            offsets.append(len(strings))
            strings += token.encode() + b"\0"
        for merge in source.fields.get("tokenizer.ggml.merges", []):
            at = merge.find(" ", 1)
            if at < 0:
                continue
            triple = [merge[:at], merge[at + 1 :], merge[:at] + merge[at + 1 :]]
            if all(token in tokens for token in triple):
                merges += [len(tokens) - 1 - tokens[::-1].index(token) for token in triple]
        scores = source.fields.get("tokenizer.ggml.scores", [0.0] * vocab)
        types = source.fields.get("tokenizer.ggml.token_type", [0] * vocab)
        emit("vocab_offsets", struct.pack(f"<{vocab}i", *offsets), "i32", None)
        emit("vocab_strings", strings, "u8", None)
        emit("vocab_scores", struct.pack(f"<{vocab}f", *scores), "f32", None)
        emit("vocab_types", bytes(types), "u8", None)
        emit("vocab_merges", struct.pack(f"<{len(merges)}i", *merges), "i32", None)
    table.append(0)  # positions
    for n in range(layers):
        b, o = f"blk.{n}.", f"layer.{n}."
        vector(o + "ln1_gamma", b + "attn_norm.weight", hidden)
        vector(o + "ln2_gamma", b + "ffn_norm.weight", hidden)
        if b + "post_attention_norm.weight" in source.tensors:
            vector(o + "post_attention_norm", b + "post_attention_norm.weight", hidden)
            vector(o + "post_ffn_norm", b + "post_ffw_norm.weight", hidden)
        normed = b + "attn_q_norm.weight" in source.tensors
        matrix(o + "wq", b + "attn_q.weight", rotated=heads)
        vector(o + "bq", b + "attn_q.bias", heads * size, rotated=heads)
        if normed:
            vector(o + "q_norm", b + "attn_q_norm.weight", size, code=None)
        matrix(o + "wk", b + "attn_k.weight", rotated=kv)
        vector(o + "bk", b + "attn_k.bias", kv * size, rotated=kv)
        if normed:
            vector(o + "k_norm", b + "attn_k_norm.weight", size, code=None)
        matrix(o + "wv", b + "attn_v.weight")
        vector(o + "bv", b + "attn_v.bias", kv * size)
        matrix(o + "wo", b + "attn_output.weight")
        vector(o + "bo", b + "attn_output.bias", hidden)
        matrix(o + "w1", b + "ffn_gate.weight", b + "ffn_up.weight")
        gate, up = (
            source.rows(b + name)[0] if b + name in source.tensors else np.zeros(ffn, np.float32)
            for name in ("ffn_gate.bias", "ffn_up.bias")
        )
        emit(o + "b1", np.concatenate([gate, up]))
        matrix(o + "w2", b + "ffn_down.weight")
        vector(o + "b2", b + "ffn_down.bias", hidden)
    vector("final_ln_weight", "output_norm.weight", hidden)
    vector("final_ln_bias", "output_norm.bias", hidden)

    start = 0x98 + 4 + len(table)
    for entry in entries:
        entry["file_offset"] += start
    body = struct.pack("<I", len(table)) + bytes(table) + b"".join(payload)
    numbers = struct.pack("<10I", version, 1, layers, vocab, hidden, ffn, ctx, heads, kv, size)
    aligned = struct.pack("<4Q", hidden, size, ffn, (ctx + 15) // 16 * 16)
    counts = struct.pack("<II", len(merges) // 3, len(strings))
    magic = f"BUMPWGT{version}".encode()
    header = magic + numbers + aligned + counts + hashlib.sha256(body).digest() + bytes(8)
    assert len(header) == 128
    return header + bytes(24) + body, entries
