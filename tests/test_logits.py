"""Converted files, computed by the programs that they are made for: all positions, nothing rounded.

llama.cpp runs with a float32 cache and without flash attention. Of the same numbers it computes the same, to the bit;
from transformers, in float32, it differs by 1e-6, or by what its table of GELU rounds.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import consumers
import gguf
import numpy as np
import pytest
from checkpoints import Decoder, as_mixtral, save, stacked
from conftest import FIXTURES
from gemma3_checkpoint import ONE_BASE, gemma3
from recorded import FACTS, PROMPT, limit, off, stale

import ckconv
from ckconv import Options

pytestmark = pytest.mark.skipif(
    not consumers.LIBRARY, reason="LLAMA_CPP_LIBRARY names no folder of llama.cpp's libraries"
)

#: Checkpoint -> what llama.cpp's own converter makes of it.
TWINS = {
    FIXTURES / "hf" / "llama-tied-bf16": "gguf/llama-tied-bf16.auto.gguf",
    FIXTURES / "hf" / "llama-bias-f32": "gguf/llama-bias-f32.f32.gguf",
    FIXTURES / "hf" / "llama-untied-f16-sharded": "gguf/llama-untied-f16-sharded.auto.gguf",
    FIXTURES / "hf" / "qwen2-tied-bf16": "gguf/qwen2-tied-bf16.auto.gguf",
    FIXTURES / "hf" / "qwen3-tied-bf16": "gguf/qwen3-tied-bf16.auto.gguf",
    FIXTURES / "hf" / "gemma3-text-bf16": "gguf/gemma3-text-bf16.auto.gguf",
    FIXTURES / "hf" / "phi3-bf16": "gguf/phi3-bf16.auto.gguf",
    FIXTURES / "hf" / "gpt2-hub-f32": "gguf/gpt2-f32.f32.gguf",
    FIXTURES / "experts" / "mixtral": "experts/mixtral.f32.gguf",
    FIXTURES / "experts" / "qwen3_moe": "experts/qwen3_moe.f32.gguf",
}
#: GGUFs of llama.cpp's own tools that are copied: float32 in shards, and blocks.
COPIES = ("gguf-split/llama-untied-f32-00001-of-00003.gguf", "kquants/llama64.Q4_K_M.gguf")

EVERY = [pytest.param(path, id=path.name) for path in TWINS]


@pytest.mark.parametrize("name", FACTS["inputs"])
def test_what_is_recorded_was_computed_from_these_fixtures(name: str) -> None:
    assert stale(name) == []


# The same numbers as llama.cpp's own file


@pytest.mark.parametrize("checkpoint", EVERY)
def test_a_checkpoint_computes_to_the_bit_what_llama_cpps_own_gguf_of_it_does(
    checkpoint: Path, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    ckconv.convert(checkpoint, tmp_path / "m.gguf")

    theirs = llama_cpp.logits(FIXTURES / TWINS[checkpoint], PROMPT)
    assert np.array_equal(llama_cpp.logits(tmp_path / "m.gguf", PROMPT), theirs)


@pytest.mark.product("values")
@pytest.mark.parametrize("through", ["safetensors", "mlx"])
@pytest.mark.parametrize("checkpoint", EVERY)
def test_llama_cpps_own_gguf_computes_the_same_after_a_way_through_another_format(
    checkpoint: Path, through: str, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    theirs = FIXTURES / TWINS[checkpoint]
    ckconv.convert(theirs, tmp_path / "middle", to=through)
    ckconv.convert(tmp_path / "middle", tmp_path / "m.gguf")

    assert np.array_equal(llama_cpp.logits(tmp_path / "m.gguf", PROMPT), llama_cpp.logits(theirs, PROMPT))


@pytest.mark.product("values")
@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("options", [Options(), Options(max_shard_bytes=60_000)], ids=["one file", "shards"])
def test_a_copied_gguf_computes_the_same_to_the_bit(
    name: str, options: Options, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    report = ckconv.convert(FIXTURES / name, tmp_path / "m.gguf", options=options)

    theirs = llama_cpp.logits(FIXTURES / name, PROMPT)
    assert np.array_equal(llama_cpp.logits(report.files[0].path, PROMPT), theirs)


@pytest.mark.parametrize("name", ["llama-tied-bf16", "qwen3-tied-bf16"])
@pytest.mark.parametrize("options", [Options(tie="untie"), Options(max_shard_bytes=60_000)], ids=["untied", "shards"])
def test_a_stored_head_and_shards_compute_the_same_to_the_bit(
    name: str, options: Options, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    report = ckconv.convert(FIXTURES / "hf" / name, tmp_path / "m.gguf", options=options)

    theirs = llama_cpp.logits(FIXTURES / "gguf" / f"{name}.auto.gguf", PROMPT)
    assert np.array_equal(llama_cpp.logits(report.files[0].path, PROMPT), theirs)


def test_a_model_without_words_computes_the_same(llama_cpp: consumers.Consumer, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "hf" / "llama-tied-bf16", tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").unlink()
    ckconv.convert(tmp_path / "hf", tmp_path / "m.gguf")

    theirs = llama_cpp.logits(FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf", PROMPT)
    assert np.array_equal(llama_cpp.logits(tmp_path / "m.gguf", PROMPT), theirs)


# What transformers computes of the stored weights


@pytest.mark.parametrize("checkpoint", EVERY)
def test_a_float32_twin_computes_what_transformers_does(
    checkpoint: Path, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    ckconv.convert(checkpoint, tmp_path / "m.gguf", options=Options(dtype="f32"))

    assert off(llama_cpp.logits(tmp_path / "m.gguf", PROMPT), checkpoint.name) < limit(checkpoint.name)


@pytest.mark.product("values")
@pytest.mark.parametrize("source", ["checkpoint", "gguf"])
@pytest.mark.parametrize("checkpoint", EVERY)
def test_mlx_lm_computes_what_transformers_does(
    checkpoint: Path, source: str, mlx_lm: consumers.Consumer, tmp_path: Path
) -> None:
    path = checkpoint if source == "checkpoint" else FIXTURES / TWINS[checkpoint]
    ckconv.convert(path, tmp_path / "m", to="mlx")

    assert off(mlx_lm.logits(tmp_path / "m", PROMPT), checkpoint.name) < limit(checkpoint.name)


@pytest.mark.parametrize(
    ("name", "version"),
    [(name, 5) for name in ("llama-tied-bf16", "qwen2-tied-bf16", "qwen3-tied-bf16")] + [("llama-tied-bf16", 3)],
)
def test_back_from_a_bump_without_its_record(
    name: str, version: int, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    options = Options(source_record=False, bump_version=version)
    ckconv.convert(FIXTURES / "hf" / name, f"{tmp_path}/b/", to="bump", options=options)
    (bump,) = (tmp_path / "b").glob("*.bump")
    ckconv.convert(bump, tmp_path / "m.gguf")

    assert off(llama_cpp.logits(tmp_path / "m.gguf", PROMPT), name) < limit(name)


def test_a_gemma3_of_one_base_comes_back_from_a_bump_with_it(llama_cpp: consumers.Consumer, tmp_path: Path) -> None:
    source = gemma3(tmp_path, ONE_BASE)
    ckconv.convert(source, tmp_path / "m.gguf", options=Options(dtype="f32"))
    ckconv.convert(source, f"{tmp_path}/b/", to="bump", options=Options(source_record=False))
    ckconv.convert(tmp_path / "b/weights.bump", tmp_path / "back.gguf")

    direct, back = (llama_cpp.logits(tmp_path / name, PROMPT) for name in ("m.gguf", "back.gguf"))
    assert np.array_equal(direct, back)
    assert off(back, "gemma3-text-bf16") > 10 * limit("gemma3-text-bf16"), "another base computes something else"


MERGED = [
    ("lora/gpt2-r4", "hf/gpt2-hub-f32"),
    ("lora/qwen2-r4-all", "hf/qwen2-tied-bf16"),
    ("lora/llama-r4-attn-mlp", COPIES[0]),
    ("lora/llama-rslora", COPIES[0]),
    ("lora/llama-patterns", COPIES[0]),
    ("lora/llama-dora", COPIES[0]),
    ("lora/llama-embed-head", COPIES[0]),
    ("lora/llama-saved", COPIES[0]),
    ("lora/llama-bias", "hf/llama-bias-f32"),
    ("lora/llama-ia3", "hf/llama-bias-f32"),
    ("lora/llama-lorabias", "hf/llama-bias-f32"),
    ("lora/gpt2-dora", "hf/gpt2-hub-f32"),
    ("lora/gpt2-ia3", "hf/gpt2-hub-f32"),
    ("lora/gemma3-layers", "hf/gemma3-text-bf16"),
    ("lora/phi3-fused", "hf/phi3-bf16"),
    ("adapters/llama-alpha-pattern", COPIES[0]),
    ("adapters/llama-patterns-rslora", COPIES[0]),
    ("adapters/llama-rank-pattern", COPIES[0]),
    ("adapters/llama-layers", COPIES[0]),
    ("adapters/gpt2-rank-pattern", "hf/gpt2-hub-f32"),
]


@pytest.mark.parametrize(("adapter", "base"), MERGED, ids=[adapter for adapter, _ in MERGED])
def test_a_merged_adapter_computes_what_peft_does(
    adapter: str, base: str, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    options = Options(dtype="f32")
    ckconv.convert(FIXTURES / base, tmp_path / "m.gguf", adapters=[(FIXTURES / adapter, 1.0)], options=options)

    assert off(llama_cpp.logits(tmp_path / "m.gguf", PROMPT), adapter) < limit(adapter)


BESIDE = [("lora/llama-r4-attn-mlp", COPIES[0]), ("lora/gpt2-r4", "gguf/gpt2-f32.f32.gguf"),
          ("adapters/llama-rslora", COPIES[0]), ("adapters/llama-patterns-rslora", COPIES[0])]  # fmt: skip


@pytest.mark.parametrize(("adapter", "base"), BESIDE, ids=[adapter for adapter, _ in BESIDE])
def test_an_adapter_beside_its_base_computes_what_peft_does(
    adapter: str, base: str, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    ckconv.convert(FIXTURES / adapter, tmp_path / "a.gguf", options=Options(base=FIXTURES / base, allow_lossy=True))

    assert off(llama_cpp.logits(FIXTURES / base, PROMPT, adapter=tmp_path / "a.gguf"), adapter) < limit(adapter)


def test_an_mlx_model_computes_as_its_decoded_copy(llama_cpp: consumers.Consumer, tmp_path: Path) -> None:
    ckconv.convert(FIXTURES / "mlx" / "llama-tied-bf16.q4g64", tmp_path / "blocks.gguf")
    decoded = Options(dequantize=True)
    ckconv.convert(FIXTURES / "mlx" / "llama-tied-bf16.q4g64", tmp_path / "floats.gguf", options=decoded)

    types = {tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "blocks.gguf").tensors}
    assert types == {"Q4_1", "F32"}
    # llama.cpp rounds the other factor of a product with blocks to 8 bits.
    made, wanted = (llama_cpp.logits(tmp_path / f"{name}.gguf", PROMPT) for name in ("blocks", "floats"))
    assert np.abs(made - wanted).max() < 0.1


# What a definition that was written down from the papers computes


#: float32 against float64.
EXPECTED = 2e-5


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
    return norm(x, "model.norm") @ t["lm_head.weight"].T


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
def test_rope_is_scaled_as_the_configuration_says(
    scaling: Any, factors: np.ndarray, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    decoder = Decoder(vocab=384)
    tensors = tame(decoder)
    ckconv.convert(save(tmp_path / "hf", decoder.config(rope_scaling=scaling), tensors), tmp_path / "m.gguf")

    made = llama_cpp.logits(tmp_path / "m.gguf", PROMPT)
    assert np.abs(made - forward(tensors, decoder, factors)).max() < EXPECTED
    if scaling:
        assert np.abs(made - forward(tensors, decoder, np.ones(8))).max() > 100 * EXPECTED


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "qwen3_moe stacked"])
def test_experts(model_type: str, llama_cpp: consumers.Consumer, tmp_path: Path) -> None:
    decoder = Decoder(vocab=384, experts=4, qk_norm=model_type.startswith("qwen3"))
    tensors = tame(decoder)
    family, _, form = model_type.partition(" ")
    stored = as_mixtral(tensors) if family == "mixtral" else stacked(tensors) if form else tensors
    config = decoder.config(family, **({} if family == "mixtral" else {"norm_topk_prob": True}))
    root = save(tmp_path / "hf", config, stored, metadata={"format": "mlx"} if form else None)
    ckconv.convert(root, tmp_path / "m.gguf")

    assert (
        np.abs(llama_cpp.logits(tmp_path / "m.gguf", PROMPT) - forward(tensors, decoder, np.ones(8))).max() < EXPECTED
    )


# Edits of configurations that were found at random


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("hf/gemma3-text-bf16", {"query_pre_attn_scalar": ...}),
        ("hf/phi3-bf16", {"rope_scaling": {"truncate": True}}),
    ],
    ids=lambda value: str(value),
)
def test_mlx_lm_computes_the_same_without_a_key_that_it_wants(
    name: str, edit: dict[str, Any], mlx_lm: consumers.Consumer, tmp_path: Path
) -> None:
    shutil.copytree(FIXTURES / name, tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    document = {**json.loads(path.read_text()), **edit}
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not ...}))
    ckconv.convert(tmp_path / "hf", tmp_path / "mlx", to="mlx")
    ckconv.convert(FIXTURES / name, tmp_path / "plain", to="mlx")

    made, wanted = mlx_lm.logits(tmp_path / "mlx", PROMPT), mlx_lm.logits(tmp_path / "plain", PROMPT)
    same = "query_pre_attn_scalar" not in edit  # the class's default is 256, the model's own number 32
    assert np.array_equal(made, wanted) == same
