"""Small checkpoints that the safetensors package accepts, and the same models under the names of other formats.

Matrices of a decoder are made once, under Hugging Face's llama names, and
renamed, stacked, quantized or permuted from there by the functions below, which use nothing of the reader under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors
from gguf_copies import finish
from packing import packed
from safetensors_builder import container, tensor

TYPES = {
    "float32": "F32", "float16": "F16", "float64": "F64", "uint32": "U32", "uint8": "U8", "int8": "I8", "int32": "I32",
    "int64": "I64",
}  # fmt: skip


@dataclass(frozen=True)
class Raw:
    """Bytes of a type that numpy does not have, by its name in safetensors."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Array = np.ndarray | Raw
Tensors = dict[str, Array]


def change_document(path: Path, how: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON document in its place."""
    document = json.loads(path.read_text())
    how(document)
    path.write_text(json.dumps(document, indent=2) + "\n")


def bf16(values: np.ndarray) -> Raw:
    """The upper half of each float32: truncated, so that what comes back is exactly what went in."""
    upper = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return Raw("BF16", values.shape, upper.tobytes())


def save(root: Path, config: Mapping[str, Any] | None, tensors: Mapping[str, Array], *, shards: int = 1,
         metadata: dict[str, str] | None = None) -> Path:  # fmt: skip
    """A checkpoint directory; with several shards the tensors are dealt out in turn."""
    root.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (root / "config.json").write_text(json.dumps(config))
    names = list(tensors)
    files = (
        ["model.safetensors"]
        if shards == 1
        else [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    )
    weight_map = {name: files[i % shards] for i, name in enumerate(names)}
    for file in files:
        save_file(root / file, {name: tensors[name] for name in names if weight_map[name] == file}, metadata)
    if shards > 1:
        (root / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return root


def save_file(path: Path, tensors: Mapping[str, Array], metadata: dict[str, str] | None = None) -> Path:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = bytearray()
    for name, array in tensors.items():
        raw = array if isinstance(array, Raw) else Raw(TYPES[array.dtype.name], array.shape, array.tobytes())
        header[name] = tensor(raw.dtype, list(raw.shape), len(data), len(data) + len(raw.data))
        data += raw.data
    path.write_bytes(container(header, bytes(data)))
    with safetensors.safe_open(path, "numpy") as file:
        assert set(file.keys()) == set(tensors)
    return path


@dataclass(frozen=True)
class Decoder:
    """A random decoder under llama's names."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 96
    vocab: int = 40
    experts: int = 0
    expert_ffn: int = 64
    qk_norm: bool = False
    seed: int = 7

    def config(self, model_type: str = "llama", **other: Any) -> dict[str, Any]:
        facts = {
            "model_type": model_type, "num_hidden_layers": self.layers, "hidden_size": self.hidden,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "intermediate_size": self.ffn, "vocab_size": self.vocab, "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        }  # fmt: skip
        if model_type == "mixtral":
            facts |= {
                "num_local_experts": self.experts,
                "num_experts_per_tok": 2,
                "intermediate_size": self.expert_ffn,
            }
        if model_type == "gemma3_text":
            facts |= {"query_pre_attn_scalar": self.head_dim}
        if model_type == "qwen3_moe":
            facts |= {"num_experts": self.experts, "num_experts_per_tok": 2, "moe_intermediate_size": self.expert_ffn}
        return {key: value for key, value in {**facts, **other}.items() if value is not ...}

    def tensors(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.seed)

        def matrix(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        made = {"model.embed_tokens.weight": matrix(self.vocab, self.hidden)}
        for n in range(self.layers):
            at = f"model.layers.{n}."
            made |= {
                at + "input_layernorm.weight": matrix(self.hidden),
                at + "self_attn.q_proj.weight": matrix(q, self.hidden),
                at + "self_attn.k_proj.weight": matrix(kv, self.hidden),
                at + "self_attn.v_proj.weight": matrix(kv, self.hidden),
                at + "self_attn.o_proj.weight": matrix(self.hidden, q),
                at + "post_attention_layernorm.weight": matrix(self.hidden),
            }
            if self.qk_norm:
                made |= {
                    at + "self_attn.q_norm.weight": matrix(self.head_dim),
                    at + "self_attn.k_norm.weight": matrix(self.head_dim),
                }
            if self.experts:
                made[at + "mlp.gate.weight"] = matrix(self.experts, self.hidden)
                for e in range(self.experts):
                    made |= {
                        f"{at}mlp.experts.{e}.gate_proj.weight": matrix(self.expert_ffn, self.hidden),
                        f"{at}mlp.experts.{e}.up_proj.weight": matrix(self.expert_ffn, self.hidden),
                        f"{at}mlp.experts.{e}.down_proj.weight": matrix(self.hidden, self.expert_ffn),
                    }
            else:
                made |= {
                    at + "mlp.gate_proj.weight": matrix(self.ffn, self.hidden),
                    at + "mlp.up_proj.weight": matrix(self.ffn, self.hidden),
                    at + "mlp.down_proj.weight": matrix(self.hidden, self.ffn),
                }
        return made | {"model.norm.weight": matrix(self.hidden), "lm_head.weight": matrix(self.vocab, self.hidden)}


def as_mixtral(tensors: Mapping[str, Array]) -> Tensors:
    """Mixtral's words for the same experts."""
    words = {".gate_proj.": ".w1.", ".up_proj.": ".w3.", ".down_proj.": ".w2."}
    renamed = {}
    for name, array in tensors.items():
        if ".mlp." in name:
            name = name.replace(".mlp.", ".block_sparse_moe.")
            for theirs, ours in words.items():
                name = name.replace(theirs, ours)
        renamed[name] = array
    return renamed


def stacked(tensors: Mapping[str, np.ndarray], module: str = "mlp") -> dict[str, np.ndarray]:
    """Experts as mlx-lm stores them: one array ``[experts, out, in]`` of each kind."""
    plain = {name: array for name, array in tensors.items() if ".experts." not in name}
    groups: dict[str, list[np.ndarray]] = {}
    for name, array in tensors.items():
        if ".experts." in name:
            before, _, rest = name.partition(".experts.")
            groups.setdefault(f"{before}.switch_mlp.{rest.partition('.')[2]}", []).append(array)
    made = {**plain, **{name: np.stack(members) for name, members in groups.items()}}
    return {name.replace(".mlp.", f".{module}."): array for name, array in made.items()}


def quantized(array: np.ndarray, bits: int = 4, group: int = 32) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A matrix ``[..., out, in]`` as an affine triple of float32 scales: (codes as words, scales, biases)."""
    grouped = array.reshape(*array.shape[:-1], -1, group)
    low = grouped.min(-1, keepdims=True)
    scale = ((grouped.max(-1, keepdims=True) - low) / ((1 << bits) - 1)).astype(np.float32)
    codes = np.clip(np.rint((grouped - low) / scale), 0, (1 << bits) - 1).astype(np.uint8)
    words = packed(codes.reshape(-1, array.shape[-1]), bits).view(np.uint32)
    return words.reshape(*array.shape[:-1], -1), scale[..., 0], low[..., 0].astype(np.float32)


def dequantized(codes: np.ndarray, scales: np.ndarray, biases: np.ndarray, bits: int) -> np.ndarray:
    """The values of a triple: bit by bit from the words, scaled and shifted in float32."""
    rows = codes.reshape(-1, codes.shape[-1])
    flat = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little").reshape(len(rows), -1, bits)
    values = (flat * (1 << np.arange(bits))).sum(-1).astype(np.float32).reshape(len(rows), scales.shape[-1], -1)
    made = values * scales.reshape(len(rows), -1, 1) + biases.reshape(len(rows), -1, 1)
    return made.reshape(*codes.shape[:-1], -1)


def interleaved(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp's converter permutes those of llama models (``LlamaModel.permute``)."""
    return array.reshape(heads, 2, len(array) // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


GGUF_WORDS = {
    "mlp.switch_mlp.gate_proj": "ffn_gate_exps", "mlp.switch_mlp.up_proj": "ffn_up_exps",
    "mlp.switch_mlp.down_proj": "ffn_down_exps",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate.": "ffn_gate_inp.",
}  # fmt: skip


def save_gguf(path: Path, decoder: Decoder, arch: str, *, permuted: bool,
              blocks: Mapping[str, tuple[np.ndarray, Any]] | None = None, extra: Mapping[str, Array] | None = None,
              ) -> Path:  # fmt: skip
    """The same decoder as the gguf package writes it; ``blocks`` replace matrices, by their names in GGUF."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(decoder.layers)
    writer.add_context_length(128)
    writer.add_embedding_length(decoder.hidden)
    writer.add_feed_forward_length(decoder.expert_ffn if arch == "llama" and decoder.experts else decoder.ffn)
    writer.add_head_count(decoder.heads)
    writer.add_head_count_kv(decoder.kv_heads)
    writer.add_key_length(decoder.head_dim)
    writer.add_value_length(decoder.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if decoder.experts:
        writer.add_expert_count(decoder.experts)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(decoder.expert_ffn)
    for name, array in stacked(decoder.tensors()).items():
        heads = decoder.heads if ".q_proj." in name else decoder.kv_heads if ".k_proj." in name else 0
        if permuted and heads:
            array = interleaved(array, heads)
        for theirs, ours in GGUF_WORDS.items():
            name = name.replace(theirs, ours)
        if blocks and name in blocks:
            writer.add_tensor(name, blocks[name][0], raw_dtype=blocks[name][1])
        else:
            writer.add_tensor(name, np.ascontiguousarray(array))
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    return finish(writer, path)
