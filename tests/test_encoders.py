"""Embeddings of encoders in llama.cpp, held against the computation of their papers in NumPy.

Their classes are code of their repositories: ``modeling_bert.py`` of jina-bert-implementation (ALiBi by the distance of
two tokens, whichever is first; the first half of rows is the gate) and of jina-bert-v2-qk-post-norm (Q and K
normalized, a second norm behind attention; the second half is the gate), ``modeling_hf_nomic_bert.py`` (experts in
every other layer, weighted by the softmax over all of them).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import save_file
from consumers import LIBRARY
from embedding_cases import COUNT, TEXTS, by_llama_cpp, cosines, with_modules
from family_cases import cases, checkpoint
from gguf_copies import gguf_copy
from safetensors.numpy import load_file

import ckconv

gelu = np.vectorize(lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))))


def source(root: Path, family: str, name: str) -> Path:
    case = next(case for case in cases(family) if case.name == name)
    return with_modules(checkpoint(case.recorded, root, case.tokenizer), {"pooling_mode_mean_tokens": True})


def softmax(rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.exp(rows) / np.exp(rows).sum(-1, keepdims=True)
    return found


def slopes(heads: int) -> np.ndarray:
    """Geometric; of a number of heads that is no power of 2, every other one of the next power behind them."""
    whole = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8 * (n + 1) / whole) for n in range(whole)]
    return np.array([*first, *(2.0 ** (-4 * (2 * n + 1) / whole) for n in range(heads - whole))])


@dataclass
class Encoder:
    """Layers with norms behind them."""

    tensors: Mapping[str, np.ndarray]
    config: Mapping[str, Any]

    def said(self, *keys: str) -> Any:
        return next(self.config[key] for key in keys if key in self.config)

    def norm(self, rows: np.ndarray, name: str) -> np.ndarray:
        centered = rows - rows.mean(-1, keepdims=True)
        eps = self.said("layer_norm_eps", "layer_norm_epsilon")
        scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + eps)
        return scaled * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def linear(self, rows: np.ndarray, name: str) -> np.ndarray:
        return rows @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0)

    def attention(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *, turned: bool) -> np.ndarray:
        heads = self.said("num_attention_heads", "n_head")
        q, k, v = (rows.reshape(len(rows), heads, -1).swapaxes(0, 1) for rows in (q, k, v))
        at = np.arange(q.shape[1])
        bias = 0 if turned else -np.abs(at[:, None] - at) * slopes(heads)[:, None, None]
        if turned:
            angles = at[:, None] * self.said("rotary_emb_base") ** -(np.arange(0, q.shape[2], 2) / q.shape[2])
            q, k = (self.turned(rows, np.cos(angles), np.sin(angles)) for rows in (q, k))
        scores = softmax(q @ k.swapaxes(1, 2) / math.sqrt(q.shape[2]) + bias)
        found: np.ndarray = (scores @ v).swapaxes(0, 1).reshape(len(at), -1)
        return found

    def turned(self, rows: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        one, other = np.split(rows, 2, axis=-1)
        return np.concatenate((one * cos - other * sin, one * sin + other * cos), -1)

    def embedding(self, ids: list[int]) -> np.ndarray:
        """The mean over the tokens of a text."""
        found: np.ndarray = self.hidden(ids).mean(0)
        return found

    def hidden(self, ids: list[int]) -> np.ndarray:
        table = "embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight"
        rows = self.tensors[table[0]][ids] + self.tensors[table[1]][0]
        rows = self.norm(rows, "emb_ln" if "emb_ln.weight" in self.tensors else "embeddings.LayerNorm")
        for n in range(self.said("num_hidden_layers", "n_layer")):
            rows = self.nomic(rows, f"encoder.layers.{n}") if "n_layer" in self.config else self.jina(rows, n)
        return rows

    def jina(self, rows: np.ndarray, n: int) -> np.ndarray:
        layer = f"encoder.layer.{n}"
        q, k, v = (self.linear(rows, f"{layer}.attention.self.{name}") for name in ("query", "key", "value"))
        code = f"{layer}.layer_norm_1.weight" in self.tensors
        if code:
            q, k = (self.norm(part, f"{layer}.attention.self.layer_norm_{name}") for part, name in ((q, "q"), (k, "k")))
        seen = self.linear(self.attention(q, k, v, turned=False), f"{layer}.attention.output.dense")
        seen = self.norm(rows + seen, f"{layer}.attention.output.LayerNorm")
        if code:
            seen = self.norm(rows + seen, f"{layer}.layer_norm_1")
            up, gate = np.split(self.linear(seen, f"{layer}.mlp.up_gated_layer"), 2, axis=-1)
            return self.norm(seen + self.linear(up * gelu(gate), f"{layer}.mlp.down_layer"), f"{layer}.layer_norm_2")
        gate, up = np.split(self.linear(seen, f"{layer}.mlp.gated_layers"), 2, axis=-1)
        return self.norm(seen + self.linear(gelu(gate) * up, f"{layer}.mlp.wo"), f"{layer}.mlp.layernorm")

    def nomic(self, rows: np.ndarray, layer: str) -> np.ndarray:
        q, k, v = np.split(self.linear(rows, f"{layer}.attn.Wqkv"), 3, axis=-1)
        seen = self.linear(self.attention(q, k, v, turned=True), f"{layer}.attn.out_proj")
        seen = self.norm(rows + seen, f"{layer}.norm1")
        if f"{layer}.mlp.fc1.weight" in self.tensors:
            made = self.linear(gelu(self.linear(seen, f"{layer}.mlp.fc1")), f"{layer}.mlp.fc2")
        else:
            made = np.stack([self.experts(row, f"{layer}.mlp") for row in seen])
        return self.norm(seen + made, f"{layer}.norm2")

    def experts(self, row: np.ndarray, layer: str) -> np.ndarray:
        weights = softmax(self.linear(row, f"{layer}.router.layer"))
        shape = (len(weights), self.said("n_inner"), len(row))
        up, down = (self.tensors[f"{layer}.experts.mlp.{name}"].reshape(shape) for name in ("w1", "w2"))
        chosen = np.argsort(-weights)[: self.said("moe_top_k")]
        made: np.ndarray = sum(weights[n] * (gelu(up[n] @ row) @ down[n]) for n in chosen)
        return made + self.tensors[f"{layer}.experts.bias"]


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("jina_bert", "plain"),
        ("jina_bert_code", "plain"),
        ("nomic_bert_moe", "plain"),
    ],
)
@pytest.mark.skipif(not LIBRARY, reason="needs llama.cpp")
def test_llama_cpp_embeds_texts_as_the_model_does(tmp_path: Path, family: str, name: str) -> None:
    """Experts have a bias of zeros: llama.cpp has no place for one."""
    root = source(tmp_path / "hf", family, name)
    tensors = load_file(root / "model.safetensors")
    bare = {key: array * 0 if key.endswith(".experts.bias") else array for key, array in tensors.items()}
    save_file(root / "model.safetensors", bare, {"format": "pt"})
    ckconv.convert(root, tmp_path / "m.gguf", options=ckconv.Options(dtype="f32"))
    texts = [text for text in TEXTS if 0 < len(text) <= 60][:COUNT]

    ids, made = by_llama_cpp(tmp_path / "m.gguf", texts, 1)

    config = json.loads((root / "config.json").read_text())
    encoder = Encoder({key: array.astype(np.float64) for key, array in bare.items()}, config)
    wanted = np.stack([encoder.embedding(each) for each in ids])
    assert (len(texts), sum(len(each) > 2 for each in ids) > COUNT // 2) == (COUNT, True)
    assert cosines(made, wanted).min() > 1 - 1e-5


@pytest.mark.skipif(not LIBRARY, reason="needs llama.cpp")
def test_llama_cpp_ranks_by_something_else_than_a_jina_reranker_scores(tmp_path: Path) -> None:
    """By tanh of one row on the first token; two matrices, which the class has with tanh between, do not load."""
    root = source(tmp_path / "hf", "jina_bert_classifier", "one_label")
    document, tensors = json.loads((root / "config.json").read_text()), load_file(root / "model.safetensors")
    pooler, row = (
        tuple(tensors[f"{at}.{kind}"] for kind in ("weight", "bias")) for at in ("bert.pooler.dense", "classifier")
    )
    bare = {name.removeprefix("bert."): array for name, array in tensors.items() if "pooler" not in name}
    bare = {name: array for name, array in bare.items() if not name.startswith("classifier")}
    save_file(root / "model.safetensors", bare, {"format": "pt"})
    (root / "config.json").write_text(json.dumps(document | {"architectures": ["JinaBertModel"]}))
    ckconv.convert(root, tmp_path / "bare.gguf", options=ckconv.Options(dtype="f32"))
    ranks, texts = {"jina-bert-v2.pooling_type": 4}, [text for text in TEXTS if 0 < len(text) <= 60][:COUNT]
    one = {"cls.weight": row[0], "cls.bias": row[1]}
    gguf_copy(tmp_path / "bare.gguf", tmp_path / "one.gguf", keys=ranks, tensors=one)
    ckconv.convert(tmp_path / "one.gguf", tmp_path / "again.gguf")

    ids, scores = by_llama_cpp(tmp_path / "again.gguf", texts, 1)

    encoder = Encoder({key: array.astype(np.float64) for key, array in bare.items()}, document)
    first = np.stack([encoder.hidden(each)[0] for each in ids])
    assert np.abs(scores - np.tanh(first @ row[0].T + row[1])).max() < 1e-3
    assert np.abs(scores - (np.tanh(first @ pooler[0].T + pooler[1]) @ row[0].T + row[1])).max() > 0.1
    both = {"cls.weight": pooler[0], "cls.bias": pooler[1], "cls.output.weight": row[0], "cls.output.bias": row[1]}
    gguf_copy(tmp_path / "bare.gguf", tmp_path / "both.gguf", keys=ranks, tensors=both)
    with pytest.raises(AssertionError, match="does not load"):
        by_llama_cpp(tmp_path / "both.gguf", texts, 1)


def test_a_bias_of_experts_is_left_out_by_name_and_a_note_says_so(tmp_path: Path) -> None:
    root = source(tmp_path / "hf", "nomic_bert_moe", "plain")

    report = ckconv.convert(root, tmp_path / "m.gguf")

    left = {item.name: item.reason for item in report.plan.left_out}
    assert left == {f"encoder.layers.{n}.mlp.experts.bias": "llama.cpp has no bias of experts" for n in (1, 3)}
    assert any("adds no bias behind experts" in note for note in report.plan.notes)
    assert ckconv.verify(tmp_path / "m.gguf", root)


def test_the_gate_of_jina_code_is_a_matrix_of_its_own(tmp_path: Path) -> None:
    root = source(tmp_path / "hf", "jina_bert_code", "plain")
    ckconv.convert(root, tmp_path / "m.gguf")

    both = load_file(root / "model.safetensors")["encoder.layer.1.mlp.up_gated_layer.weight"]
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    up, gate = np.split(both, 2)
    assert np.array_equal(found["blk.1.ffn_up.weight"], up)
    assert np.array_equal(found["blk.1.ffn_gate.weight"], gate)
