"""Converted files computed by llama.cpp: the logits are those that transformers computed from the checkpoints.

Permuting nothing, or by the wrong number of heads, is off by 0.29 and more; gemma's norms without their shift by 1.3.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Decoder, as_mixtral, save, stacked
from conftest import FIXTURES

import ckconv
from ckconv import Options

LIBRARY = os.environ.get("LLAMA_CPP_LIBRARY", "")

pytestmark = pytest.mark.skipif(not LIBRARY, reason="LLAMA_CPP_LIBRARY names no folder of llama.cpp's libraries")

REFERENCE = json.loads((FIXTURES / "logits" / "logits.json").read_text())
PROMPT = (1, 5, 17, 42, 99, 200, 301, 7)
FLOAT32, BFLOAT16 = 0.01, 0.05

CHECKPOINTS = {
    "llama-bias-f32": FLOAT32,
    "llama-tied-bf16": BFLOAT16,
    "llama-untied-f16-sharded": FLOAT32,
    "qwen2-tied-bf16": BFLOAT16,
    "qwen3-tied-bf16": BFLOAT16,
    "gemma3-text-bf16": BFLOAT16,
    "phi3-bf16": BFLOAT16,
    "gpt2-hub-f32": FLOAT32,
}


def logits(path: Path, prompt: tuple[int, ...] = PROMPT) -> np.ndarray:
    script = Path(__file__).parent / "llama_cpp_logits.py"
    command = [sys.executable, script, LIBRARY, ",".join(map(str, prompt)), path]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "GGML_NO_BACKTRACE": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return np.array(json.loads(done.stdout))


def off(path: Path, name: str) -> float:
    """The largest difference from what transformers computed."""
    facts = REFERENCE[name]
    expected = np.array(next(value for value in facts.values() if len(value) > 100))
    prompt = next(value for value in facts.values() if len(value) < 100)
    made = logits(path, tuple(prompt))
    assert made.shape == expected.shape
    return float(np.abs(made - expected).max())


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_becomes_a_gguf_that_computes_the_same(name: str, tmp_path: Path) -> None:
    ckconv.convert(FIXTURES / "hf" / name, tmp_path / "m.gguf")

    assert off(tmp_path / "m.gguf", name) < CHECKPOINTS[name]


@pytest.mark.parametrize("options", [Options(dtype="f32"), Options(tie="untie"), Options(max_shard_bytes=60_000)])
def test_other_types_a_stored_head_and_shards_compute_the_same(options: Options, tmp_path: Path) -> None:
    report = ckconv.convert(FIXTURES / "hf" / "llama-tied-bf16", tmp_path / "m.gguf", options=options)

    assert off(report.files[0].path, "llama-tied-bf16") < BFLOAT16


@pytest.mark.parametrize("name", ["llama-tied-bf16", "qwen3-tied-bf16", "gemma3-text-bf16"])
def test_back_from_a_bump_without_its_record(name: str, tmp_path: Path) -> None:
    ckconv.convert(FIXTURES / "hf" / name, f"{tmp_path}/b/", to="bump", options=Options(source_record=False))
    (bump,) = (tmp_path / "b").glob("*.bump")
    ckconv.convert(bump, tmp_path / "m.gguf")

    assert off(tmp_path / "m.gguf", name) < BFLOAT16


def test_a_model_without_words_is_loaded(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "hf" / "llama-tied-bf16", tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").unlink()
    ckconv.convert(tmp_path / "hf", tmp_path / "m.gguf")

    assert off(tmp_path / "m.gguf", "llama-tied-bf16") < BFLOAT16


def test_an_mlx_model_computes_as_its_decoded_copy(tmp_path: Path) -> None:
    ckconv.convert(FIXTURES / "mlx" / "llama-tied-bf16.q4g64", tmp_path / "blocks.gguf")
    decoded = Options(dequantize=True)
    ckconv.convert(FIXTURES / "mlx" / "llama-tied-bf16.q4g64", tmp_path / "floats.gguf", options=decoded)

    types = {tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "blocks.gguf").tensors}
    assert types == {"Q4_1", "F32"}
    # llama.cpp rounds the other factor of a product with blocks to 8 bits.
    assert np.abs(logits(tmp_path / "blocks.gguf") - logits(tmp_path / "floats.gguf")).max() < 0.1


def rotated(x: np.ndarray, theta: float, factors: np.ndarray) -> np.ndarray:
    """Split-half RoPE of ``[tokens, heads, dim]``, each frequency divided by its factor."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half) / factors
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    one, two = x[..., :half], x[..., half:]
    return np.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


def forward(t: dict[str, np.ndarray], d: Decoder, factors: np.ndarray) -> np.ndarray:
    """A decoder under llama's names in float64, written down from its definition; experts are chosen by two."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * t[f"{name}.weight"]

    def mlp(x: np.ndarray, at: str) -> np.ndarray:
        gate = x @ t[f"{at}.gate_proj.weight"].T
        return (gate / (1 + np.exp(-gate)) * (x @ t[f"{at}.up_proj.weight"].T)) @ t[f"{at}.down_proj.weight"].T

    def experts(x: np.ndarray, at: str) -> np.ndarray:
        scores = np.exp(x @ t[f"{at}.gate.weight"].T)
        made = np.zeros_like(x)
        for row, weights in enumerate(scores):
            best = np.argsort(weights)[-2:]
            for e in best:
                made[row] += weights[e] / weights[best].sum() * mlp(x[row : row + 1], f"{at}.experts.{e}")[0]
        return made

    x = t["model.embed_tokens.weight"][list(PROMPT)].astype(np.float64)
    n = len(PROMPT)
    for layer in range(d.layers):
        at = f"model.layers.{layer}"
        h = norm(x, f"{at}.input_layernorm")
        q, k, v = (h @ t[f"{at}.self_attn.{p}_proj.weight"].T for p in "qkv")
        q, k, v = q.reshape(n, d.heads, -1), k.reshape(n, d.kv_heads, -1), v.reshape(n, d.kv_heads, -1)
        if d.qk_norm:
            q, k = norm(q, f"{at}.self_attn.q_norm"), norm(k, f"{at}.self_attn.k_norm")
        q, k = rotated(q, 10_000.0, factors), rotated(k, 10_000.0, factors)
        k, v = (np.repeat(a, d.heads // d.kv_heads, axis=1) for a in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d.head_dim)
        scores = np.exp(np.where(np.tri(n, dtype=bool), scores, -np.inf))
        mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v).reshape(n, -1)
        x = x + mixed @ t[f"{at}.self_attn.o_proj.weight"].T
        h = norm(x, f"{at}.post_attention_layernorm")
        x = x + (experts if d.experts else mlp)(h, f"{at}.mlp")
    return norm(x, "model.norm")[-1] @ t["lm_head.weight"].T


def tame(decoder: Decoder) -> dict[str, np.ndarray]:
    """Weights with which rounding does not blow up."""
    made = {k: v * 0.08 if v.ndim > 1 else 1 + v * 0.1 for k, v in decoder.tensors().items()}
    return {name: array.astype(np.float32) for name, array in made.items()}


def smoothed(theta: float, dim: int, factor: float, low: float, high: float, context: float) -> np.ndarray:
    """What Llama 3's paper code divides frequencies by."""
    made = []
    for i in range(dim // 2):
        wavelength = 2 * np.pi * theta ** (2 * i / dim)
        mix = np.clip((context / wavelength - low) / (high - low), 0, 1)
        made.append(1 / (mix + (1 - mix) / factor))
    return np.array(made)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip


@pytest.mark.parametrize(
    ("scaling", "factors"),
    [
        (None, np.ones(8)),
        ({"rope_type": "linear", "factor": 4.0}, np.full(8, 4.0)),
        (LLAMA3, smoothed(10_000.0, 16, 8.0, 1.0, 4.0, 64.0)),
    ],
)
def test_rope_is_scaled_as_the_configuration_says(scaling: Any, factors: np.ndarray, tmp_path: Path) -> None:
    decoder = Decoder(vocab=384)
    tensors = tame(decoder)
    ckconv.convert(save(tmp_path / "hf", decoder.config(rope_scaling=scaling), tensors), tmp_path / "m.gguf")

    made = logits(tmp_path / "m.gguf")
    assert np.abs(made - forward(tensors, decoder, factors)).max() < FLOAT32
    if scaling:
        assert np.abs(made - forward(tensors, decoder, np.ones(8))).max() > 2 * FLOAT32


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "qwen3_moe stacked"])
def test_experts(model_type: str, tmp_path: Path) -> None:
    decoder = Decoder(vocab=384, experts=4, qk_norm=model_type.startswith("qwen3"))
    tensors = tame(decoder)
    family, _, form = model_type.partition(" ")
    stored = as_mixtral(tensors) if family == "mixtral" else stacked(tensors) if form else tensors
    config = decoder.config(family, **({} if family == "mixtral" else {"norm_topk_prob": True}))
    root = save(tmp_path / "hf", config, stored, metadata={"format": "mlx"} if form else None)
    ckconv.convert(root, tmp_path / "m.gguf")

    assert np.abs(logits(tmp_path / "m.gguf") - forward(tensors, decoder, np.ones(8))).max() < FLOAT32
