"""Checkpoints of the other families that bump holds come back, and what bump 3 holds when it is asked for by name.

Random models in random sizes and types, as in :mod:`test_bump_identity`: every byte with the record, every value and
every size without it. What comes back is read without ckconv.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from checkpoints import Decoder, save
from hypothesis import given, settings, strategies as st
from safetensors_builder import numbers, tensors_of
from test_bump_identity import PATIENT, stored

import ckconv
from ckconv import Options

Checkpoint = tuple[dict[str, Any], dict[str, np.ndarray]]
DTYPES = st.sampled_from(["f32", "f16", "bf16"])


class Way(NamedTuple):
    """Versions of bump and releases of the engine that hold a family."""

    versions: tuple[int, ...]
    releases: tuple[str, ...]


WAYS = {
    "phi3": Way((4, 5), ("april", "july")),
    "glm4": Way((5,), ("july",)),
    "qwen35": Way((5,), ("july",)),
    "llama": Way((3,), ("", "april")),
    "qwen2": Way((3,), ("", "april")),
}


def fused(tensors: dict[str, np.ndarray], *names: str, to: str) -> None:
    """Rows of several matrices of every layer in one, the last of whose names goes."""
    for first in [name for name in tensors if name.endswith(f"{names[0]}.weight")]:
        parts = [tensors.pop(first.replace(names[0], name)) for name in names]
        tensors[first.replace(names[0], to)] = np.concatenate(parts)


@st.composite
def decoders(draw: st.DrawFn, family: str) -> Checkpoint:
    """A decoder of attention and MLP."""
    heads, head = draw(st.sampled_from([1, 2, 4])), 4 * draw(st.integers(1, 6))
    decoder = Decoder(
        layers=draw(st.integers(1, 3)), hidden=heads * head, heads=heads, head_dim=head,
        kv_heads=draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0])), ffn=draw(st.integers(1, 40)),
        vocab=draw(st.integers(2, 50)), seed=draw(st.integers(0, 99)),
    )  # fmt: skip
    tensors = decoder.tensors()
    tied = family in ("llama", "qwen2") or draw(st.booleans())  # bump 3 has no head of its own
    if tied:
        del tensors["lm_head.weight"]
    own: dict[str, Any] = {}
    if family == "qwen2":
        for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
            tensors[name.replace("weight", "bias")] = tensors[name][:, 0].copy()
    if family in ("phi3", "glm4"):
        fused(tensors, "gate_proj", "up_proj", to="gate_up_proj")
    if family == "phi3":
        fused(tensors, "q_proj", "k_proj", "v_proj", to="qkv_proj")
        own = {"original_max_position_embeddings": 128, "sliding_window": None, "pad_token_id": 0, "head_dim": ...}
    if family == "glm4":
        for name in [name for name in tensors if name.endswith("input_layernorm.weight")]:
            for other in ("self_attn", "mlp"):
                at = name.replace("input_layernorm", f"post_{other}_layernorm")
                tensors[at] = tensors[name] * np.float32(0.5)
        own = {"attention_bias": False, "partial_rotary_factor": draw(st.sampled_from([0.5, 1.0])), "pad_token_id": 0}
    theta, eps = draw(st.sampled_from([10_000.0, 500_000.0])), draw(st.sampled_from([1e-5, 1e-6]))
    return decoder.config(family, tie_word_embeddings=tied, rope_theta=theta, rms_norm_eps=eps, **own), tensors


@st.composite
def hybrids(draw: st.DrawFn) -> Checkpoint:
    """A Qwen 3.5 with layers of two kinds in any order, as many heads of keys as of values."""
    count, size, head = draw(st.integers(1, 4)), draw(st.sampled_from([4, 8, 32])), draw(st.sampled_from([8, 16]))
    heads, kv = draw(st.sampled_from([(1, 1), (2, 1), (4, 2)]))
    hidden, ffn, vocab = 4 * draw(st.integers(1, 12)), draw(st.integers(1, 40)), draw(st.integers(2, 50))
    width, kinds = draw(st.sampled_from([3, 4])), draw(st.lists(st.booleans(), min_size=1, max_size=4).filter(any))
    rng = np.random.default_rng(draw(st.integers(0, 99)))

    def matrix(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def vector(length: int) -> np.ndarray:
        """Of a grid that adding 1 and taking it away does not leave."""
        return np.round(rng.uniform(-0.5, 0.5, length) * 64).astype(np.float32) / np.float32(64)

    inner = count * size
    made = {"model.embed_tokens.weight": matrix(vocab, hidden), "model.norm.weight": vector(hidden)}
    for n, linear in enumerate(kinds):
        layer = {
            "input_layernorm.weight": vector(hidden),
            "post_attention_layernorm.weight": vector(hidden),
            "mlp.gate_proj.weight": matrix(ffn, hidden),
            "mlp.up_proj.weight": matrix(ffn, hidden),
            "mlp.down_proj.weight": matrix(hidden, ffn),
        }
        if linear:
            layer |= {
                "linear_attn.A_log": vector(count),
                "linear_attn.dt_bias": vector(count),
                "linear_attn.conv1d.weight": matrix(3 * inner, 1, width),
                "linear_attn.norm.weight": vector(size),
                "linear_attn.in_proj_qkv.weight": matrix(3 * inner, hidden),
                "linear_attn.in_proj_z.weight": matrix(inner, hidden),
                "linear_attn.in_proj_a.weight": matrix(count, hidden),
                "linear_attn.in_proj_b.weight": matrix(count, hidden),
                "linear_attn.out_proj.weight": matrix(hidden, inner),
            }
        else:
            layer |= {
                "self_attn.q_proj.weight": matrix(2 * heads * head, hidden),
                "self_attn.k_proj.weight": matrix(kv * head, hidden),
                "self_attn.v_proj.weight": matrix(kv * head, hidden),
                "self_attn.o_proj.weight": matrix(hidden, heads * head),
                "self_attn.q_norm.weight": vector(head),
                "self_attn.k_norm.weight": vector(head),
            }
        made |= {f"model.layers.{n}.{name}": array for name, array in layer.items()}
    tied = draw(st.booleans())
    if not tied:
        made["lm_head.weight"] = matrix(vocab, hidden)
    rope = {"rope_type": "default", "rope_theta": draw(st.sampled_from([1e4, 1e6])), "partial_rotary_factor": 0.5}
    config = {
        "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "num_hidden_layers": len(kinds),
        "hidden_size": hidden, "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": kv,
        "head_dim": head, "vocab_size": vocab, "max_position_embeddings": 128, "tie_word_embeddings": tied,
        "rms_norm_eps": draw(st.sampled_from([1e-5, 1e-6])), "linear_num_key_heads": count,
        "linear_num_value_heads": count, "linear_key_head_dim": size, "linear_value_head_dim": size,
        "linear_conv_kernel_dim": width, "rope_parameters": {**rope, "mrope_section": [head // 4, 0, 0]},
        "layer_types": ["linear_attention" if linear else "full_attention" for linear in kinds],
    }  # fmt: skip
    return config, made


@pytest.mark.parametrize("family", WAYS)
def test_a_checkpoint(family: str) -> None:
    way = WAYS[family]

    @given(
        hybrids() if family == "qwen35" else decoders(family),
        DTYPES,
        st.sampled_from(way.versions),
        st.sampled_from(way.releases),
        st.booleans(),
    )
    @settings(PATIENT, max_examples=10)
    def comes_back(made: Checkpoint, dtype: str, version: int, release: str, record: bool) -> None:
        config, tensors = made
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            source = save(folder / "hf", config, stored(tensors, dtype)[0])
            there = Options(bump_version=version, engine=release, source_record=record)
            ckconv.convert(source, f"{folder}/b/", to="bump", options=there)
            back, recorded = folder / "back", Options(source_record=record)
            ckconv.convert(folder / "b" / "weights.bump", f"{back}/", to="safetensors", options=recorded)
            if record:
                assert {f.name: f.read_bytes() for f in back.iterdir()} == {
                    f.name: f.read_bytes() for f in source.iterdir()
                }
                return
            assert not others(back, source)
            wanted, found = (flat(json.loads((folder / "config.json").read_text())) for folder in (source, back))
            assert {key: found.get(key) for key in wanted if key in SIZES} == {
                key: wanted[key] for key in wanted if key in SIZES
            }

    comes_back()


SIZES = {
    "model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "partial_rotary_factor", "mrope_section",
    "layer_types", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim",
}  # fmt: skip


def flat(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, **(config.get("rope_parameters") or {})}


def others(made: Path, wanted: Path) -> list[str]:
    """Tensors with other names, shapes or values; a logarithm is rounded."""
    ours, theirs = tensors_of(made), tensors_of(wanted)
    wrong = list(ours.keys() ^ theirs.keys())
    for name in ours.keys() & theirs.keys():
        (dtype, shape, data), (kind, size, raw) = ours[name], theirs[name]
        found, expected = numbers(dtype, data), numbers(kind, raw)
        same = np.allclose(found, expected, 0, 1e-6) if name.endswith("A_log") else np.array_equal(found, expected)
        if shape != size or not same:
            wrong.append(name)
    return sorted(wrong)
