"""Families that bump 5 files hold as a llama or a qwen2, and back: entries, configurations and logits.

The checkpoints are those of ``fixtures/families``, with the logits that transformers computed; entries are packed here
by hand, and :mod:`bump_engine` computes what the engine makes of them. Nothing of ckconv has a say in what is expected.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bump_engine
import family_cases
import numpy as np
import pytest
from checkpoints import Raw
from family_cases import CLOSE, Case
from safetensors_builder import tensors_of

import ckconv
from ckconv.errors import UnsupportedError

#: Case -> (the engine's template, RoPE rotates neighbors in the checkpoint, too).
HELD = {
    "mistral-without_a_window": ("llama", False),
    "mistral-head_dim": ("llama", False),
    "mistral-theta": ("llama", False),
    "phi3-plain": ("llama", False),
    "phi3-tied": ("llama", False),
    "ernie4_5-tied": ("llama", True),
    "ernie4_5-untied": ("llama", True),
    "seed_oss-bfloat16": ("qwen2", False),
    "internlm3-bfloat16": ("llama", False),
    "internlm3-head_size": ("llama", False),
    "helium-plain": ("llama", True),
    "helium-tied": ("llama", True),
}

#: Case -> part of the sentence.
REFUSED = {
    "phi3-window": "attention slides over 8 tokens",
    "phi3-longrope_in_short_sequences": "RoPE is scaled (rope_type longrope",
    "ernie4_5-biases": "ernie4_5 goes to bump 5 only without layers.{n}.attention.k.bias and 6 more",
    "seed_oss-without_biases": "RoPE is scaled (rope_type yarn",
    "seed_oss-output_bias": "seed_oss goes to bump 5 only without layers.{n}.attention.output.bias and 3 more",
    "mistral-window": "attention slides over 8 tokens",
    "helium-biases": "helium goes to bump 5 only without layers.{n}.attention.k.bias and 2 more",
}

CASES = {str(case): case for case in family_cases.cases(*{name.partition("-")[0] for name in [*HELD, *REFUSED]})}


def recorded(case: Case) -> Any:
    return family_cases.recording(case.family)[case.name]


def converted(name: str, folder: Path, release: str = "april", through: str = "hf") -> Path:
    """A bump 5 file without its record, made of a checkpoint by way of another format."""
    source = family_cases.checkpoint(recorded(CASES[name]), folder / "source")
    if through != "hf":
        made = folder / through / ("m.gguf" if through == "gguf" else "")
        made.parent.mkdir(exist_ok=True)
        ckconv.convert(source, f"{made}" if through == "gguf" else f"{made}/", to=through)
        source = made
    options = ckconv.Options(engine=release, source_record=False)
    ckconv.convert(source, f"{folder}/bump/", to="bump", options=options)
    return folder / "bump" / "weights.bump"


def off(name: str, path: Path, release: str) -> float:
    """How far the file's logits are from transformers', as a part of their standard deviation."""
    case = CASES[name]
    wanted = np.array(recorded(case)["logits"], np.float32)
    found = family_cases.kept(case, bump_engine.logits(path, case.tokens, release))
    return float(np.abs(found - wanted).max() / wanted.std())


class Source:
    """The checkpoint of a case as its class would load it: rows of float32, and the types that they are stored in."""

    def __init__(self, name: str) -> None:
        said = recorded(CASES[name])
        self.config = {**said["config"], **said["config"].get("rope_parameters", {})}
        self.stored = family_cases.tensors(said)
        self.split = not HELD[name][1]

    def get(self, name: str) -> np.ndarray:
        array = self.stored[name]
        if isinstance(array, Raw):
            halves = np.frombuffer(array.data, np.uint16).astype(np.uint32) << 16
            return halves.view(np.float32).reshape(array.shape)
        return np.asarray(array, np.float32)

    def parts(self, layer: str, whole: str, names: tuple[str, ...], rows: tuple[int, ...]) -> list[np.ndarray]:
        if f"{layer}{whole}.weight" in self.stored:
            return np.split(self.get(f"{layer}{whole}.weight"), np.cumsum(rows)[:-1])
        return [self.get(f"{layer}{name}.weight") for name in names]

    def bias(self, name: str, length: int) -> np.ndarray:
        return self.get(f"{name}.bias") if f"{name}.bias" in self.stored else np.zeros(length, np.float32)

    def turned(self, rows: np.ndarray, template: str) -> np.ndarray:
        """Q and K rows as the template rotates them: llama's takes neighbors."""
        if template != "llama" or not self.split:
            return rows
        size = self.size
        heads = rows.reshape(-1, 2, size // 2, *rows.shape[1:])
        return heads.swapaxes(1, 2).reshape(rows.shape)

    @property
    def size(self) -> int:
        return int(self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"])


def expected_entries(name: str, *, bf16: bool) -> list[tuple[str, str, bytes]]:
    """(name, type, bytes) of every entry but the tokenizer's, in the order of the engine's own script."""
    source, template = Source(name), HELD[name][0]
    c, size = source.config, source.size
    q, k = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    hidden, ffn = c["hidden_size"], c["intermediate_size"]
    kept = bf16 and CASES[name].dtype == "bfloat16"
    found: list[tuple[str, str, bytes]] = []

    def vector(entry: str, values: np.ndarray) -> None:
        found.append((entry, "fp32", values.tobytes()))

    def matrix(entry: str, rows: np.ndarray) -> None:
        upper = (np.ascontiguousarray(rows).view(np.uint32) >> 16).astype(np.uint16)
        found.append((entry, "bf16" if kept else "fp32", upper.tobytes() if kept else rows.tobytes()))

    matrix("token_emb", source.get("model.embed_tokens.weight"))
    if not c.get("tie_word_embeddings"):
        matrix("output.weight", source.get("lm_head.weight"))
    for n in range(c["num_hidden_layers"]):
        at, layer = f"layer.{n}.", f"model.layers.{n}."
        attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
        vector(at + "ln1_gamma", source.get(f"{layer}input_layernorm.weight"))
        vector(at + "ln2_gamma", source.get(f"{layer}post_attention_layernorm.weight"))
        three = source.parts(attention, "qkv_proj", ("q_proj", "k_proj", "v_proj"), (q, k, k))
        for letter, rows, length in zip("qkv", three, (q, k, k), strict=True):
            bias = source.bias(f"{attention}{letter}_proj", length)
            turned = (rows, bias) if letter == "v" else (source.turned(rows, template), source.turned(bias, template))
            matrix(f"{at}w{letter}", turned[0])
            vector(f"{at}b{letter}", turned[1])
        matrix(at + "wo", source.get(f"{attention}o_proj.weight"))
        vector(at + "bo", np.zeros(hidden, np.float32))
        matrix(at + "w1", np.concatenate(source.parts(mlp, "gate_up_proj", ("gate_proj", "up_proj"), (ffn, ffn))))
        vector(at + "b1", np.zeros(2 * ffn, np.float32))
        matrix(at + "w2", source.get(f"{mlp}down_proj.weight"))
        vector(at + "b2", np.zeros(hidden, np.float32))
    vector("final_ln_weight", source.get("model.norm.weight"))
    vector("final_ln_bias", np.zeros(hidden, np.float32))
    return found


def expected_config(name: str, engines: list[str]) -> dict[str, Any]:
    source = Source(name)
    c, size = source.config, source.size
    return {
        "model": HELD[name][0],
        "embed_dim": c["hidden_size"],
        "attn_out_dim": c["num_attention_heads"] * size,
        "num_layers": c["num_hidden_layers"],
        "num_heads": c["num_attention_heads"],
        "num_kv_heads": c["num_key_value_heads"],
        "head_dim": size,
        "intermediate_size": c["intermediate_size"],
        "context_length": c["max_position_embeddings"],
        "rope_theta": c["rope_theta"],
        "rotary_dim": size,
        "rope_scaling_type": "none",
        "rope_scaling_factor": 1.0,
        "rope_original_context_length": c["max_position_embeddings"],
        "rope_beta_fast": 0.0,
        "rope_beta_slow": 0.0,
        "rope_attn_factor": 1.0,
        "vocab_size": c["vocab_size"],
        "rms_eps": c["rms_norm_eps"],
        "tie_word_embeddings": bool(c.get("tie_word_embeddings")),
        "ckconv_engines": engines,
        "ckconv_family": CASES[name].family,
    }


@pytest.mark.product("values")
@pytest.mark.parametrize("release", ["april", "july"])
@pytest.mark.parametrize("name", HELD)
def test_entries_and_configuration_are_the_computed_ones(name: str, release: str, tmp_path: Path) -> None:
    if (name, release) == ("seed_oss-bfloat16", "july"):
        with pytest.raises(UnsupportedError, match="adds a bias beside a float matrix twice"):
            converted(name, tmp_path, release)
        return
    path = converted(name, tmp_path, release)
    manifest, data = json.loads(path.with_name("weights_manifest.json").read_text()), path.read_bytes()
    entries = [
        (e["name"], e["dtype"], data[e["file_offset"] : e["file_offset"] + e["size"]])
        for e in manifest["entries"]
        if not e["name"].startswith("vocab_")
    ]
    assert entries == expected_entries(name, bf16=release == "july")
    bf16 = any(dtype == "bf16" for _, dtype, _ in entries)
    biased = CASES[name].family == "seed_oss"
    releases = ["july"] if bf16 else ["april"] if biased else ["april", "july"]
    assert manifest["config"] == expected_config(name, releases)
    assert "template" not in manifest


@pytest.mark.parametrize("name", HELD)
def test_the_checkpoint_comes_back_without_a_record(name: str, tmp_path: Path) -> None:
    """Its class, its names and every value."""
    path = converted(name, tmp_path, "april")
    dtype = {"bfloat16": "bf16", "float16": "f16"}.get(CASES[name].dtype, "engine")
    options = ckconv.Options(source_record=False, dtype=dtype)
    ckconv.convert(path, f"{tmp_path}/back/", to="safetensors", options=options)

    assert tensors_of(tmp_path / "back") == tensors_of(tmp_path / "source")
    config = json.loads((tmp_path / "back/config.json").read_text())
    assert config["model_type"] == CASES[name].family


@pytest.mark.parametrize(
    ("name", "through"),
    [
        (name, through)
        for name in HELD
        for through in ("hf", "gguf", "mlx")
        if recorded(CASES[name])["outcomes"].get(f"hf->{through}") == "right"  # the format between holds it
    ],
)
def test_the_engine_computes_what_transformers_does(name: str, through: str, tmp_path: Path) -> None:
    assert off(name, converted(name, tmp_path, through=through), "april") < CLOSE


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_has_no_place_for_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        converted(name, tmp_path)
    assert REFUSED[name] in f"{caught.value.message} {' '.join(caught.value.details)}"
