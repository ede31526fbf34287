"""Embeddings of jina-embeddings v2 in llama.cpp, held against the computation of its paper in NumPy.

The class is code of its repository (``modeling_bert.py`` of jina-bert-implementation): ALiBi by the distance of two
tokens, whichever is first, and a feed-forward whose first half of rows is the gate.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from consumers import LIBRARY
from embedding_cases import by_llama_cpp, cosines, with_modules
from family_cases import cases, checkpoint
from safetensors.numpy import load_file

import ckconv

TEXTS = ["a", "the river", "a model is a file of numbers", "one two three four five six seven eight nine ten"]


def norm(rows: np.ndarray, tensors: dict[str, np.ndarray], name: str, eps: float) -> np.ndarray:
    centered = rows - rows.mean(-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + eps)
    return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def slopes(heads: int) -> np.ndarray:
    """Geometric; of a number of heads that is no power of 2, every other one of the next power behind them."""
    whole = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8 * (n + 1) / whole) for n in range(whole)]
    return np.array([*first, *(2.0 ** (-4 * (2 * n + 1) / whole) for n in range(heads - whole))])


def embedding(tensors: dict[str, np.ndarray], config: dict[str, int], ids: list[int]) -> np.ndarray:
    """The mean over the tokens of a text."""
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]
    width = config["hidden_size"] // heads
    rows = tensors["embeddings.word_embeddings.weight"][ids] + tensors["embeddings.token_type_embeddings.weight"][0]
    rows = norm(rows, tensors, "embeddings.LayerNorm", eps)
    at = np.arange(len(ids))
    bias = -np.abs(at[:, None] - at) * slopes(heads)[:, None, None]
    for layer in (f"encoder.layer.{n}" for n in range(config["num_hidden_layers"])):

        def linear(rows: np.ndarray, name: str, layer: str = layer) -> np.ndarray:
            return rows @ tensors[f"{layer}.{name}.weight"].T + tensors.get(f"{layer}.{name}.bias", 0)

        q, k, v = (
            linear(rows, f"attention.self.{name}").reshape(-1, heads, width).swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        scores = np.exp(q @ k.swapaxes(1, 2) / math.sqrt(width) + bias)
        seen = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(ids), -1)
        rows = norm(rows + linear(seen, "attention.output.dense"), tensors, f"{layer}.attention.output.LayerNorm", eps)
        gate, up = np.split(linear(rows, "mlp.gated_layers"), 2, axis=-1)
        gelu = np.vectorize(lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))))
        rows = norm(rows + linear(gelu(gate) * up, "mlp.wo"), tensors, f"{layer}.mlp.layernorm", eps)
    found: np.ndarray = rows.mean(0)
    return found


@pytest.mark.skipif(not LIBRARY, reason="needs llama.cpp")
def test_llama_cpp_embeds_texts_as_the_model_does(tmp_path: Path) -> None:
    case = next(case for case in cases("jina_bert") if case.name == "plain")
    root = with_modules(checkpoint(case.recorded, tmp_path / "hf", case.tokenizer), {"pooling_mode_mean_tokens": True})
    ckconv.convert(root, tmp_path / "m.gguf", options=ckconv.Options(dtype="f32"))

    ids, made = by_llama_cpp(tmp_path / "m.gguf", TEXTS, 1)

    tensors = {name: array.astype(np.float64) for name, array in load_file(root / "model.safetensors").items()}
    config = json.loads((root / "config.json").read_text())
    wanted = np.stack([embedding(tensors, config, each) for each in ids])
    assert [len(each) > 1 for each in ids] == [True] * len(TEXTS)
    assert cosines(made, wanted).min() > 1 - 1e-5
