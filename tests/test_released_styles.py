"""Configurations as released checkpoints have them, and as transformers 5 writes them: each style is a family's case.

The cases are converted in every direction by ``test_families_cases.py``; here is which of them holds which style, and
what has no class of transformers that reads it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from family_cases import cases, checkpoint
from safetensors.numpy import load_file, save_file

import ckconv

#: Family and case -> keys of its document, or values of some, and keys that it has not.
STYLES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "gemma3-released": (
        {"sliding_window_pattern": 6, "rope_theta": ..., "rope_local_base_freq": ..., "rope_scaling": ...},
        ("layer_types", "rope_parameters"),
    ),
    "gemma3-tied": ({"layer_types": ..., "rope_parameters": ...}, ("sliding_window_pattern", "rope_local_base_freq")),
    "modernbert-released": (
        {"global_rope_theta": ..., "local_rope_theta": ..., "global_attn_every_n_layers": ..., "layer_norm_eps": ...},
        ("rope_parameters", "layer_types"),
    ),
    "modernbert-plain": ({"rope_parameters": ..., "norm_eps": ...}, ("layer_norm_eps", "global_rope_theta")),
    "gpt_neox-released": ({"rotary_pct": ..., "rotary_emb_base": ...}, ("rope_parameters",)),
    "qwen2_moe-released": ({"torch_dtype": ...}, ("dtype", "rope_parameters")),
    "qwen3moe-released": ({"num_experts": 5, "rope_theta": ...}, ("num_local_experts", "rope_parameters", "dtype")),
    "qwen3moe-untied": ({"num_local_experts": 5}, ("num_experts",)),
    "gemma4_text-shared": ({"per_layer_config": ...}, ("global_head_dim",)),
    "gemma4_text-released": (
        {"global_head_dim": ..., "num_global_key_value_heads": ...},
        ("per_layer_config",),
    ),
    "granitemoehybrid-untied": ({"layer_types": ["linear_attention", "full_attention", "linear_attention"]}, ()),
    "granitemoehybrid-released": ({"layer_types": ["mamba", "attention", "mamba"]}, ()),
    "nemotron_h-released": ({"hybrid_override_pattern": "M-*M"}, ("layers_block_type",)),
    "nemotron_h_moe-latent": ({"hybrid_override_pattern": "MEM*E"}, ("layers_block_type",)),
    "kimi_linear-released_keys": (
        {"linear_attn_config": ..., "first_k_dense_replace": 0, "moe_layer_freq": 1},
        ("layer_types", "linear_head_dim", "mlp_layer_types"),
    ),
    "kimi_linear-two_shared": ({"layer_types": ..., "linear_head_dim": ...}, ("linear_attn_config",)),
    "minimax_m2-released_keys": (
        {"rotary_dim": 8, "use_qk_norm": True, "scoring_func": "sigmoid", "use_routing_bias": True},
        ("rope_parameters",),
    ),
    "minimax_m2-partial": ({"rope_parameters": ...}, ("rotary_dim", "scoring_func")),
    "deepseek_v3-plain": ({"scoring_func": "sigmoid", "topk_method": "noaux_tc"}, ()),
    "deepseek_v3-as_saved": ({}, ("scoring_func", "topk_method")),
    "cohere2-released": ({"rotary_pct": 1.0, "sliding_window_pattern": 4}, ("layer_types", "rope_parameters")),
    "cohere2-usual": ({"layer_types": ...}, ("rotary_pct", "sliding_window_pattern")),
    "falcon-released": ({}, ("num_kv_heads", "rope_parameters")),
    "falcon-one_key_for_all": ({"num_kv_heads": 1}, ()),
    "phimoe-released": ({"architectures": ["PhiMoEForCausalLM"]}, ("rope_parameters",)),
    "phimoe-untied": ({"architectures": ["PhimoeForCausalLM"]}, ()),
    "mpt-released": ({"architectures": ["MPTForCausalLM"]}, ()),
    "mpt-tied": ({"architectures": ["MptForCausalLM"]}, ()),
    "internlm3-released": ({"qkv_bias": ..., "bias": ...}, ("attention_bias", "mlp_bias")),
    "lfm2-listed_by_number": (
        {"full_attn_idxs": [2], "block_ff_dim": 44, "block_dim": 24},
        ("layer_types", "intermediate_size", "rope_parameters"),
    ),
    "lfm2-adjusted": ({"layer_types": ..., "intermediate_size": 44}, ("full_attn_idxs", "block_ff_dim")),
    "dots1-released": ({"scoring_func": "noaux_tc"}, ("rope_parameters",)),
    "dots1-untied": ({}, ("scoring_func",)),
    "dbrx-released": ({"attn_config": ...}, ("rope_parameters",)),
    "dbrx-groups": ({"rope_parameters": ...}, ()),
}


@pytest.mark.parametrize("style", STYLES)
def test_a_case_has_the_document(style: str) -> None:
    family, _, name = style.partition("-")
    document = next(case for case in cases(family) if case.name == name).recorded["config"]
    said, unsaid = STYLES[style]

    assert said.keys() <= document.keys()
    assert {key: document[key] for key, value in said.items() if value is not ...} == {
        key: value for key, value in said.items() if value is not ...
    }
    assert not [key for key in unsaid if document.get(key) is not None]


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen3_5_moe", "qwen4_exp"])
def test_sections_of_rope_may_stand_in_the_table_of_transformers_4(family: str, tmp_path: Path) -> None:
    root = checkpoint(next(cases(family)).recorded, tmp_path / "hf")
    document = json.loads((root / "config.json").read_text())
    holder = document.get("text_config", document)
    table = holder.pop("rope_parameters", None) or holder["rope_scaling"]
    assert "mrope_section" in table
    ckconv.convert(root, tmp_path / "new.gguf")
    at_the_top = {key: table.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in table}
    holder |= {**at_the_top, "rope_scaling": table}
    (root / "config.json").write_text(json.dumps(document))

    ckconv.convert(root, tmp_path / "older.gguf")

    assert (tmp_path / "older.gguf").read_bytes() == (tmp_path / "new.gguf").read_bytes()


@pytest.mark.parametrize("family", ["rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"])
def test_vectors_in_float16_that_are_one_matrix_of_a_gguf_are_widened(family: str, tmp_path: Path) -> None:
    root = checkpoint(next(cases(family)).recorded, tmp_path / "hf")
    path = next(root.glob("*.safetensors"))
    halves = {name: array.astype(np.float16) for name, array in load_file(path).items()}
    save_file(halves, path, {"format": "pt"})

    ckconv.convert(root, tmp_path / "m.gguf")

    fused = next(t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors if "lerp_fused" in t.name)
    parts = [name for name in halves if re.search(r"\.0\.\w*att\w*\.(time_mixer\.)?(x|time_maa)_[rwkvag]$", name)]
    assert fused.data.dtype == np.float32
    assert sorted(fused.data.flatten()) == sorted(np.concatenate([halves[name].flatten() for name in parts]))


#: Of the first models of Nomic's, whose code is their own.
NOMIC = {
    "hidden_size": "n_embd", "num_attention_heads": "n_head", "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer", "layer_norm_eps": "layer_norm_epsilon", "max_position_embeddings": "n_positions",
}  # fmt: skip


def test_the_first_documents_of_nomic_bert_are_the_same_model(tmp_path: Path) -> None:
    case = next(case for case in cases("nomic_bert") if case.name == "plain")
    root = checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    ckconv.convert(root, tmp_path / "new.gguf")
    document = json.loads((root / "config.json").read_text())
    older = {NOMIC.get(key, key): value for key, value in document.items() if key != "rope_parameters"}
    older |= {"rotary_emb_base": 1000.0, "n_positions": 8192, "activation_function": "swiglu", "causal": False}
    older |= {"rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "prenorm": False, "qkv_proj_bias": False}
    del older["hidden_act"]
    (root / "config.json").write_text(json.dumps(older))

    ckconv.convert(root, tmp_path / "older.gguf")

    assert {key: f.contents() for key, f in gguf.GGUFReader(tmp_path / "older.gguf").fields.items()} == {
        key: f.contents() for key, f in gguf.GGUFReader(tmp_path / "new.gguf").fields.items()
    }
    assert (tmp_path / "older.gguf").read_bytes() == (tmp_path / "new.gguf").read_bytes()
