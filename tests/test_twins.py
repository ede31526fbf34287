"""Families whose class no engine but llama.cpp has, held against another that computes the same of the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import consumers
import numpy as np
import pytest
from checkpoints import save_file
from family_cases import cases, checkpoint
from safetensors.numpy import load_file

import ckconv

Arrays = dict[str, np.ndarray]

#: Limit for logits in float32: the two run through other kernels.
CLOSE = 1e-5


def cogvlm(config: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """The matrices for words are a Llama's; a text asks for no others."""
    made: Arrays = {}
    for name, array in arrays.items():
        plain = name.replace("language_mlp.", "").replace("language_expert_dense", "o_proj")
        if "query_key_value" in plain:
            for part, rows in zip("qkv", np.split(array, 3), strict=True):
                made[plain.replace("language_expert_query_key_value", f"{part}_proj")] = rows
        else:
            made[plain] = array
    kept = {name: array for name, array in made.items() if "vision_" not in name}
    return {**config, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}, kept


def deepseek_ocr(config: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """The matrices are those of a DeepSeek 1, whose rows llama.cpp has in another order and whose weights it scales."""
    said = {**config, "model_type": "deepseek", "architectures": ["DeepseekForCausalLM"]}
    kept = {
        key: value for key, value in said.items() if not key.startswith(("qk_", "v_", "use_mla", "n_group", "topk"))
    }
    return kept, arrays


TWINS: dict[str, Callable[[dict[str, Any], Arrays], tuple[dict[str, Any], Arrays]]] = {
    "cogvlm-plain": cogvlm,
    "deepseek_ocr-plain": deepseek_ocr,
}


@pytest.mark.parametrize("name", TWINS)
def test_llama_cpp_computes_what_it_computes_of_the_twin(
    name: str, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    case = next(case for case in cases(name.partition("-")[0]) if str(case) == name)
    source = checkpoint(case.recorded, tmp_path / "hf")
    config, arrays = TWINS[name](case.recorded["config"], load_file(source / "model.safetensors"))
    twin = tmp_path / "twin"
    twin.mkdir()
    (twin / "config.json").write_text(json.dumps(config))
    save_file(twin / "model.safetensors", arrays)
    ckconv.convert(source, tmp_path / "own.gguf")
    ckconv.convert(twin, tmp_path / "twin.gguf")

    own, other = (llama_cpp.logits(tmp_path / f"{file}.gguf", case.tokens) for file in ("own", "twin"))
    assert np.abs(own - other).max() < CLOSE
    assert np.ptp(own) > 0.1


def neo_bert(config: dict[str, Any], arrays: Arrays, tokens: tuple[int, ...]) -> np.ndarray:
    """What the published class computes of words: every one sees every other."""
    heads, epsilon = config["num_attention_heads"], config["norm_eps"]
    turned = np.arange(len(tokens))[:, None] * 10000.0 ** -np.arange(0, 1, 2 * heads / config["hidden_size"])

    def normed(rows: np.ndarray, name: str) -> np.ndarray:
        return rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + epsilon) * arrays[f"model.{name}.weight"]

    def rotated(rows: np.ndarray) -> np.ndarray:
        made = (rows[..., ::2] + 1j * rows[..., 1::2]) * np.exp(1j * turned)[:, None]
        return np.stack([made.real, made.imag], -1).reshape(rows.shape)

    found = arrays["model.encoder.weight"][list(tokens)].astype(np.float64)
    for n in range(config["num_hidden_layers"]):
        layer = f"transformer_encoder.{n}."
        of = {name: arrays[f"model.{layer}{name}.weight"] for name in ("qkv", "wo", "ffn.w12", "ffn.w3")}
        rows = (normed(found, f"{layer}attention_norm") @ of["qkv"].T).reshape(len(tokens), heads, -1)
        q, k, v = np.split(rows, 3, axis=-1)
        scores = np.exp(np.einsum("ihd,jhd->hij", rotated(q), rotated(k)) / np.sqrt(q.shape[-1]))
        seen = np.einsum("hij,jhd->ihd", scores / scores.sum(-1, keepdims=True), v)
        found = found + seen.reshape(len(tokens), -1) @ of["wo"].T
        gate, up = np.split(normed(found, f"{layer}ffn_norm") @ of["ffn.w12"].T, 2, axis=-1)
        found = found + (gate / (1 + np.exp(-gate)) * up) @ of["ffn.w3"].T
    return normed(found, "layer_norm")


def test_llama_cpp_embeds_what_the_published_class_does(llama_cpp: consumers.Consumer, tmp_path: Path) -> None:
    case = next(cases("neo_bert"))
    source = checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    ckconv.convert(source, tmp_path / "m.gguf")

    wanted = neo_bert(case.recorded["config"], load_file(source / "model.safetensors"), case.tokens)
    assert np.abs(llama_cpp.logits(tmp_path / "m.gguf", case.tokens) - wanted).max() < 2e-3  # its SiLU has 16 bits
    assert np.ptp(wanted) > 1


def test_llama_cpp_classifies_as_the_published_class_does(llama_cpp: consumers.Consumer, tmp_path: Path) -> None:
    """tanh between two layers, on the first word."""
    case = next(cases("neo_bert_classifier"))
    source = checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    ckconv.convert(source, tmp_path / "m.gguf")

    arrays = load_file(source / "model.safetensors")
    beginnings = [case.tokens[:stop] for stop in range(1, len(case.tokens) + 1)]
    first = np.stack([neo_bert(case.recorded["config"], arrays, tokens)[0] for tokens in beginnings])
    inner = np.tanh(first @ arrays["dense.weight"].T + arrays["dense.bias"])
    wanted = inner @ arrays["classifier.weight"].T + arrays["classifier.bias"]
    assert np.abs(llama_cpp.logits(tmp_path / "m.gguf", case.tokens) - wanted).max() < 2e-3  # its SiLU has 16 bits
    assert np.ptp(wanted) > 0.1
