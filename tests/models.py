"""Small models made with the gguf package, so that what is read was not written by this project."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf_copies import add_value, finish

BLOCKS = {
    Q.Q4_K: (256, 144),
    Q.Q6_K: (256, 210),
    Q.Q8_0: (32, 34),
    Q.Q4_0: (32, 18),
    Q.Q5_K: (256, 176),
    Q.Q4_1: (32, 20),
    Q.Q5_0: (32, 22),
    Q.Q5_1: (32, 24),
    Q.Q3_K: (256, 110),
    Q.IQ4_NL: (32, 18),
    Q.TQ1_0: (256, 54),
    Q.TQ2_0: (256, 66),
}


@dataclass
class Model:
    """A random decoder. ``types`` maps a name's ending (``ffn_down.weight``) to a type; ``matrix`` is for the rest."""

    arch: str = "llama"
    layers: int = 2
    hidden: int = 64
    ffn: int = 128
    heads: int = 4
    kv_heads: int = 2
    vocab: int = 96
    context: int = 40
    matrix: Q = Q.F32
    norm: Q = Q.F32
    types: dict[str, Q] = field(default_factory=dict)
    qkv_bias: bool = False
    all_bias: bool = False
    head: str = "tied"  # tied, copy or own
    head_dim: int = 0  # hidden / heads
    qk_norm: bool = False
    post_norms: bool = False
    tokens: tuple[str, ...] = ()
    merges: tuple[str, ...] = ()
    extra_keys: dict[str, object] = field(default_factory=dict)
    extra_tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    seed: int = 1

    def tensors(self) -> dict[str, tuple[int, ...]]:
        head = self.head_dim or self.hidden // self.heads
        kv, q = self.kv_heads * head, self.heads * head
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (self.vocab, self.hidden)}
        for n in range(self.layers):
            b = f"blk.{n}."
            shapes |= {
                b + "attn_norm.weight": (self.hidden,),
                b + "attn_q.weight": (q, self.hidden),
                b + "attn_k.weight": (kv, self.hidden),
                b + "attn_v.weight": (kv, self.hidden),
                b + "attn_output.weight": (self.hidden, q),
                b + "ffn_norm.weight": (self.hidden,),
                b + "ffn_gate.weight": (self.ffn, self.hidden),
                b + "ffn_up.weight": (self.ffn, self.hidden),
                b + "ffn_down.weight": (self.hidden, self.ffn),
            }
            if self.qkv_bias or self.all_bias:
                shapes |= {b + "attn_q.bias": (q,), b + "attn_k.bias": (kv,), b + "attn_v.bias": (kv,)}
            if self.all_bias:
                shapes |= {
                    b + "attn_output.bias": (self.hidden,),
                    b + "ffn_gate.bias": (self.ffn,),
                    b + "ffn_up.bias": (self.ffn,),
                    b + "ffn_down.bias": (self.hidden,),
                }
            if self.qk_norm:
                shapes |= {b + "attn_q_norm.weight": (head,), b + "attn_k_norm.weight": (head,)}
            if self.post_norms:
                shapes |= {b + f"post_{what}_norm.weight": (self.hidden,) for what in ("attention", "ffw")}
        shapes["output_norm.weight"] = (self.hidden,)
        if self.head != "tied":
            shapes["output.weight"] = (self.vocab, self.hidden)
        return shapes | self.extra_tensors

    def type_of(self, name: str, shape: tuple[int, ...]) -> Q:
        for ending, kind in self.types.items():
            if name.endswith(ending):
                return kind
        return self.norm if len(shape) == 1 else self.matrix

    def write(self, path: Path) -> Path:
        rng = np.random.default_rng(self.seed)
        writer = gguf.GGUFWriter(path, self.arch)
        writer.add_block_count(self.layers)
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_feed_forward_length(self.ffn)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10000.0)
        if self.head_dim:
            writer.add_key_length(self.head_dim)
            writer.add_value_length(self.head_dim)
        if self.tokens:
            writer.add_tokenizer_model("gpt2")
            writer.add_token_list(self.tokens)
            writer.add_token_scores([-0.5 * n for n in range(len(self.tokens))])
            writer.add_token_types([1 + n % 6 for n in range(len(self.tokens))])
            writer.add_token_merges(self.merges)
            writer.add_eos_token_id(2)
            writer.add_add_bos_token(False)
            writer.add_chat_template("{{ messages }}")
        for key, value in self.extra_keys.items():
            add_value(writer, key, value)
        data: dict[str, np.ndarray] = {}
        for name, shape in self.tensors().items():
            kind = self.type_of(name, shape)
            if name == "output.weight" and self.head == "copy":
                data[name] = data["token_embd.weight"]
            else:
                data[name] = _random(rng, shape, kind)
            writer.add_tensor(name, data[name], raw_dtype=kind)
        return finish(writer, path)


def _random(rng: np.random.Generator, shape: tuple[int, ...], kind: Q) -> np.ndarray:
    if kind in BLOCKS:
        block, size = BLOCKS[kind]
        return rng.integers(0, 256, (*shape[:-1], shape[-1] // block * size), dtype=np.uint8)
    values = rng.standard_normal(shape).astype(np.float32)
    if kind == Q.F32:
        return values
    if kind == Q.F16:
        return values.astype(np.float16)
    assert kind == Q.BF16
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
