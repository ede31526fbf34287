"""BUMPWGT4 and BUMPWGT5 files of every layout, put together from canonical weights with numpy and struct alone.

Written from what the engine's scripts write; nothing of the package under test is used.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray


def up(n: int) -> int:
    return -(-n // 16) * 16


def pad(rows: Array, height: int, width: int) -> Array:
    out = np.zeros((height, width), np.float32)
    out[: rows.shape[0], : rows.shape[1]] = rows
    return out


def pad_heads(rows: Array, heads: int, stride: int, width: int) -> Array:
    return np.concatenate([pad(head, stride, width) for head in np.split(rows, heads)])


def neighbors(rows: Array, heads: int) -> Array:
    """Rows i and i + D/2 of a head next to each other, as llama.cpp's converter puts them."""
    per_head = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return per_head.swapaxes(1, 2).reshape(rows.shape)


@dataclass
class Sizes:
    layers: int = 2
    vocab: int = 11
    hidden: int = 20
    ffn: int = 28
    heads: int = 2
    kv: int = 1
    head: int = 10
    context: int = 6


@dataclass
class Built:
    """A file and what is in it: canonical name -> values, and (name, dtype, offset, bytes) of every entry."""

    data: bytes
    weights: dict[str, Array]
    entries: list[dict[str, Any]]
    sizes: Sizes
    start: int
    end: int
    content: dict[str, bytes] = field(default_factory=dict)

    def manifest(self, **more: Any) -> dict[str, Any]:
        return {"version": 5, "entries": self.entries, **more}

    def write(self, folder: Path, *, manifest: Any = None, config: Any = None, data: bytes | None = None) -> Path:
        path = folder / "m.bump"
        path.write_bytes(self.data if data is None else data)
        if manifest is not None:
            (folder / "weights_manifest.json").write_text(json.dumps(manifest))
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        return path


def weights(s: Sizes, *, qk_norm: bool, post_norms: bool, head: bool, bias: bool, seed: int = 5) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    q, k = s.heads * s.head, s.kv * s.head
    shapes: dict[str, tuple[int, ...]] = {"token_embedding.weight": (s.vocab, s.hidden)}
    if head:
        shapes["output.weight"] = (s.vocab, s.hidden)
    for n in range(s.layers):
        p = f"layers.{n}."
        shapes |= {
            p + "attention_norm.weight": (s.hidden,),
            p + "ffn_norm.weight": (s.hidden,),
            p + "attention.q.weight": (q, s.hidden),
            p + "attention.k.weight": (k, s.hidden),
            p + "attention.v.weight": (k, s.hidden),
            p + "attention.output.weight": (s.hidden, q),
            p + "ffn.gate.weight": (s.ffn, s.hidden),
            p + "ffn.up.weight": (s.ffn, s.hidden),
            p + "ffn.down.weight": (s.hidden, s.ffn),
        }
        if qk_norm:
            shapes |= {p + "attention.q_norm.weight": (s.head,), p + "attention.k_norm.weight": (s.head,)}
        if post_norms:
            shapes |= {p + "post_attention_norm.weight": (s.hidden,), p + "post_ffn_norm.weight": (s.hidden,)}
        if bias:
            shapes |= {p + f"attention.{x}.bias": (rows,) for x, rows in (("q", q), ("k", k), ("v", k))}
    shapes["output_norm.weight"] = (s.hidden,)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def content_of(vocab: int, names: str) -> dict[str, bytes]:
    """Made-up tokenizer entries; ``names`` are the first letters of those wanted (offsets, strings, scores, ...)."""
    words = [b"t%d" % n * (1 + n % 3) for n in range(vocab)]
    offsets = [sum(len(word) + 1 for word in words[:n]) for n in range(vocab)]
    whole = {
        "vocab_offsets": struct.pack(f"<{vocab}i", *offsets),
        "vocab_strings": b"".join(word + b"\0" for word in words),
        "vocab_scores": struct.pack(f"<{vocab}f", *range(vocab)),
        "vocab_types": bytes(vocab),
        "vocab_merges": struct.pack("<6i", 0, 1, 2, 3, 4, 5),
    }
    keys = {"o": "vocab_offsets", "s": "vocab_strings", "c": "vocab_scores", "t": "vocab_types", "m": "vocab_merges"}
    return {keys[letter]: whole[keys[letter]] for letter in names}


def build(
    flavour: str,
    *,
    version: int = 4,
    sizes: Sizes | None = None,
    head: bool = False,
    qk_norm: bool = False,
    post_norms: bool = False,
    bias: bool = False,
    content: str = "",
    pairs: bool = False,
    table: bytes | None = None,
    metadata: dict[str, Any] | None = None,
) -> Built:
    """``pairs``: Q and K rows with RoPE pairs as neighbors. ``table`` replaces the dtype table."""
    s = sizes or Sizes()
    w = weights(s, qk_norm=qk_norm or flavour == "E", post_norms=post_norms, head=head, bias=bias)
    padded = flavour in "AEF"
    ae, ad, af = (up(s.hidden), up(s.head), up(s.ffn)) if padded else (s.hidden, s.head, s.ffn)
    tokenizer = content_of(s.vocab, content)
    parts: list[tuple[str, str, bytes]] = []
    codes: list[int] = []

    def emit(name: str, data: Array | bytes, word: str = "fp32", coded: bool = True) -> None:
        parts.append((name, word, data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()))
        if coded:
            codes.append(0)

    def vector(name: str, values: Array, length: int, coded: bool = True) -> None:
        emit(name, pad(values.reshape(1, -1), 1, length), coded=coded)

    def heads(name: str, key: str, count: int, rotated: bool) -> None:
        rows = w[key]
        rows = neighbors(rows, count) if rotated and pairs else rows
        emit(name, pad_heads(rows, count, ad, ae))

    def bias_of(name: str, key: str, count: int, rotated: bool) -> None:
        values = w.get(key, np.zeros(count * s.head, np.float32))
        emit(name, neighbors(values, count) if rotated and pairs else values)

    def tokens() -> None:
        words = {"vocab_offsets": "i32", "vocab_merges": "i32", "vocab_scores": "f32"}
        for name, data in tokenizer.items():
            emit(name, data, words.get(name, "u8"), False)

    emit("token_emb", pad(w["token_embedding.weight"], s.vocab, ae))
    if flavour == "D" and head:
        emit("output.weight", w["output.weight"])
    tokens()
    if flavour in "BC":
        emit("pos_emb", np.zeros((s.context, s.hidden), np.float32))
    elif flavour == "D":
        codes.append(0)
    for n in range(s.layers):
        p, o = f"layers.{n}.", f"layer.{n}."
        attention = [("q", s.heads, True), ("k", s.kv, True), ("v", s.kv, False)]
        wo = w[p + "attention.output.weight"]
        gate_up = np.concatenate([pad(w[p + f"ffn.{x}.weight"], af, ae) for x in ("gate", "up")])
        down = pad(w[p + "ffn.down.weight"], ae, af)
        vector(o + "ln1_gamma", w[p + "attention_norm.weight"], ae)
        if flavour in "AEF":
            if flavour == "E":
                vector(o + "q_norm", w[p + "attention.q_norm.weight"], ad, coded=False)
                vector(o + "k_norm", w[p + "attention.k_norm.weight"], ad, coded=False)
            for x, count, rotated in attention:
                heads(o + "w" + x, p + f"attention.{x}.weight", count, rotated)
            if flavour in "AF":
                wo = np.concatenate([pad(block, ae, ad) for block in np.split(wo, s.heads, axis=1)])
            else:
                wo = pad(wo, ae, s.heads * ad)
            emit(o + "wo", wo)
            vector(o + "ln2_gamma", w[p + "ffn_norm.weight"], ae)
            emit(o + "w1", gate_up)
            emit(o + "w2", down)
            continue
        vector(o + "ln2_gamma", w[p + "ffn_norm.weight"], ae)
        if post_norms:
            vector(o + "post_attention_norm", w[p + "post_attention_norm.weight"], ae)
            vector(o + "post_ffn_norm", w[p + "post_ffn_norm.weight"], ae)
        for x, count, rotated in attention:
            heads(o + "w" + x, p + f"attention.{x}.weight", count, rotated)
            bias_of(o + "b" + x, p + f"attention.{x}.bias", count, rotated)
            if qk_norm and x != "v":
                vector(o + f"{x}_norm", w[p + f"attention.{x}_norm.weight"], s.head, coded=False)
        emit(o + "wo", wo)
        vector(o + "bo", np.zeros(s.hidden, np.float32), s.hidden)
        emit(o + "w1", gate_up)
        vector(o + "b1", np.zeros(2 * s.ffn, np.float32), 2 * s.ffn)
        emit(o + "w2", down)
        vector(o + "b2", np.zeros(s.hidden, np.float32), s.hidden)
    vector("final_ln_weight", w["output_norm.weight"], ae)
    if flavour in "AEF" and head:
        emit("lm_head_weight", pad(w["output.weight"], s.vocab, ae))
    elif flavour in "BCD":
        vector("final_ln_bias", np.zeros(s.hidden, np.float32), s.hidden)

    codes_bytes = bytes(codes) if table is None else table
    start = (0x98 if flavour == "D" else 0x80) + 4 + len(codes_bytes)
    entries, at = [], start
    for name, word, data in parts:
        entries.append({"name": name, "dtype": word, "file_offset": at, "size": len(data)})
        at += len(data)
    body = struct.pack("<I", len(codes_bytes)) + codes_bytes + b"".join(data for _, _, data in parts)
    numbers = (version, 1, s.layers, s.vocab, s.hidden, s.ffn, s.context, s.heads, s.kv, s.head)
    file = b"BUMPWGT%d" % version + struct.pack("<10I4Q", *numbers, ae, ad, af, up(s.context))
    sha = hashlib.sha256(body).digest()
    if flavour in "CD":
        merges = len(tokenizer.get("vocab_merges", b"")) // 12
        file += struct.pack("<II", merges, len(tokenizer.get("vocab_strings", b""))) + sha + bytes(8)
    else:
        file += sha + bytes(16)
    file += bytes(24 if flavour == "D" else 0) + body
    if version == 5:
        file += with_footer(json.dumps(metadata if metadata is not None else {"schema_version": 1}).encode())
    return Built(file, w, entries, s, start, at, tokenizer)


def with_footer(data: bytes, *, magic: bytes = b"BUMPV5MD", size: int | None = None, sha: bytes | None = None) -> bytes:
    return data + struct.pack(
        "<8sQ32s", magic, len(data) if size is None else size, sha or hashlib.sha256(data).digest()
    )
