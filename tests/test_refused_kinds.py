"""Kinds of mistakes of configurations and headers, each in several families: refused by name, with a way out."""

from __future__ import annotations

import functools
import json
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import family_cases
import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckconv.conversion.planning import make_plan
from ckconv.core.options import Options
from ckconv.formats.detect import open_index

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
STEP = "decoder_sparse_step = {}: whole numbers from 1 to 2,147,483,647 are expected"

#: Family, target, changes of config.json, what is said.
DOCUMENTS: list[tuple[str, str, dict[str, Any], str]] = [
    ("qwen3moe", "m.gguf", {"decoder_sparse_step": 0}, STEP.format(0)),
    ("qwen2_moe", "m.gguf", {"decoder_sparse_step": "2"}, STEP.format("'2'")),
    ("klear", "m/", {"decoder_sparse_step": True}, STEP.format(True)),
    ("qwen3_next", "m.gguf", {"mlp_only_layers": 5}, "mlp_only_layers"),
    ("llama4", "m.gguf", {"moe_layers": [-1]}, "moe_layers = [-1]: whole numbers from 0 to"),
    ("jamba", "m.gguf", {"attn_layer_period": 0}, "attn_layer_period = 0"),
    ("mixtral", "m/", {"num_experts_per_tok": 99}, "num_experts_per_tok is 99, num_local_experts is"),
    (
        "plamo",
        "m/",
        {"num_attention_heads": 4, "n_shared_head": 3},
        "4 are no multiple of 3 (num_attention_heads, n_shared_head)",
    ),
    # its class has a mask of the window (modeling_arctic.py), and no scaling; llama.cpp the other way round
    ("arctic", "m.gguf", {"sliding_window": 16}, "sliding_window = 16"),
    *(
        (family, "m.gguf", {"rope_scaling": YARN}, "which the class does not take")
        for family in ("arctic", "llada", "qwen")
    ),
    *(
        (
            family,
            "m/",
            {"max_position_embeddings": ..., "seq_length": ...},
            "no context length (max_position_embeddings)",
        )
        for family in ("klear", "bailing_moe", "nanbeige", "telechat3", "spark2_5", "iquestloopcoder")
    ),
    ("openelm", "m.gguf", {"num_kv_heads": "x"}, "num_kv_heads must be a whole number, got 'x'"),
    ("openelm", "m.gguf", {"num_query_heads": ["x", 2, 3]}, "num_query_heads must be whole numbers, got ['x', 2, 3]"),
    ("spark2_5", "m/", {"rope_parameters.sliding_attention.rope_theta": 0}, "sliding_attention.rope_theta is 0"),
    (
        "llama",
        "m.gguf",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 8, "beta_slow": 2}},
        "rope_parameters.beta_slow=1 makes them 32 and 1, and llama.cpp's --yarn-beta-fast 8 --yarn-beta-slow 2",
    ),
    (
        "gemma3",
        "m.gguf",
        {"rope_parameters.full_attention.rope_type": "x"},
        "rope_type 'x' of rope_scaling or rope_parameters, of which transformers knows nothing",
    ),
    # lists over layers of another length: classes stop at load
    ("gemma3n", "m/", {"activation_sparsity_pattern": [0.95] * 10}, "activation_sparsity_pattern has 10 entries, num_"),
    ("gemma3n", "m/", {"intermediate_size": [1200] * 10}, "intermediate_size has 10 entries, num_hidden_layers is 11"),
    ("granite4", "m/", {"layer_types": ["attention"] * 4}, "layer_types has 4 entries, num_hidden_layers is 3"),
    ("lfm2", "m/", {"layer_types": ["conv", "full_attention", "conv"]}, "layer_types has 3 entries, num_hidden_lay"),
    ("minimax", "m.gguf", {"layer_types": ["full_attention"]}, "layer_types has 1 entries, num_hidden_layers is"),
    ("minimax_m3", "m/", {"mlp_layer_types": ["dense", "sparse"]}, "mlp_layer_types has 2 entries, num_hidden_lay"),
    ("smollm3", "m/", {"no_rope_layers": [1, 1, 1]}, "no_rope_layers has 3 entries, num_hidden_layers is 4"),
    # what is divided by
    *(
        (family, "m/", {"logits_scaling": 0}, "logits_scaling = 0: no logit_scale follows from it")
        for family in ("granite", "granite4", "granitehybrid", "granitemoe", "granitemoehybrid")
    ),
    ("gemma4_text", "m.gguf", {"final_logit_softcapping": 0.0}, "final_logit_softcapping = 0.0: no logit_cap follows"),
    ("recurrent_gemma", "m/", {"logits_soft_cap": 0.0}, "logits_soft_cap = 0.0: no logit_cap follows from it"),
    ("gemma4_text", "m/", {"rope_parameters.full_attention.rope_theta": 0.0}, "full_attention.rope_theta is 0"),
    ("gemma4_text", "m/", {"rope_parameters.sliding_attention.rope_theta": -1e4}, "sliding_attention.rope_theta must"),
    ("step3p5", "m.gguf", {"rope_theta": 0}, "rope_theta is 0"),
    # of an older class: StableLmConfig reads neither
    ("stablelm", "m.gguf", {"rope_parameters": None, "rope_pct": 0.5}, "rope_pct"),
    ("stablelm", "m.gguf", {"layer_norm_eps": None, "norm_eps": 1e-3}, "norm_eps"),
    ("phi", "m/", {"num_key_value_heads": 0}, "num_key_value_heads is 0"),
    ("gpt2", "m/", {"n_positions": 0}, "n_positions is 0, the position embedding has"),
    ("step3p5", "m/", {"rope_theta": [-1e4] * 4}, "rope_theta must be 0 or more, got -10000.0"),
    ("olmo_hybrid", "m/", {"rope_parameters": None, "rope_theta": 0}, "rope_theta is 0"),
    # classes choose nothing of no groups, divide by them, or stop; engines pass over both
    *(
        (family, "m/", {key: 0}, f"{key} = 0: whole numbers from 1 to")
        for key in ("topk_group", "n_group")
        for family in ("bailing_moe_linear", "deepseek_v3", "dots1", "exaone_moe", "mimo_v2_flash", "nemotron_h_moe")
    ),
    ("bailing_hybrid", "m.gguf", {"n_group": 0}, "n_group = 0: whole numbers from 1 to"),
    ("kimi_linear", "m.gguf", {"topk_group": 0}, "topk_group = 0: whole numbers from 1 to"),
    ("nanbeige", "m.gguf", {"num_loops": 0}, "num_loops = 0: whole numbers from 1 to"),
    ("gptj", "m/", {"rotary_dim": -1}, "rotary_dim = -1: whole numbers from 0 to"),
    ("mamba2", "m/", {"head_dim": -1}, "head_dim = -1: whole numbers from 1 to"),
    ("bailing_moe_v2_5", "m/", {"num_shared_experts": 0}, "num_shared_experts = 0: whole numbers from 1 to"),
    ("plamo3", "m/", {"rope_local_theta": -1e4}, "rope_local_theta must be 0 or more, got -10000.0"),
    # what is made of a number is read back before anything is written
    ("falcon_h1", "m.gguf", {"mamba_d_head": 3}, "mamba_d_head = 3, mamba_d_ssm = 28"),
    ("granitemoehybrid", "m.gguf", {"mamba_d_head": 0}, "(mamba_d_head)"),
    (
        "glm4_moe",
        "m.gguf",
        {"use_qk_norm": -1.5},
        "no tensor for layers.{n}.attention.q_norm.weight in 3 layers (num_hidden_layers, n_routed_experts, "
        "num_local_experts, model_type, use_qk_norm)",
    ),
    ("gemma4_unified", "m.gguf", {"rope_parameters.full_attention.partial_rotary_factor": 0.3}, "is 0.3, and would"),
    (
        "ministral3",
        "m.gguf",
        {"rope_parameters.llama_4_scaling_beta": [1, 2]},
        "llama_4_scaling_beta would not be",
    ),
    ("ministral3", "m.gguf", {"rope_parameters.original_max_position_embeddings": 0.3}, "original_max_position_"),
]


@pytest.mark.parametrize(("family", "target", "changes", "said"), DOCUMENTS)
def test_a_configuration_that_no_class_computes_is_refused_by_its_key(
    tmp_path: Path, ckconv: Any, family: str, target: str, changes: dict[str, Any], said: str
) -> None:
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    config = json.loads((source / "config.json").read_text())
    for path, value in changes.items():
        *tables, key = path.split(".")
        functools.reduce(dict.__getitem__, tables, config)[key] = value
    (source / "config.json").write_text(json.dumps({key: it for key, it in config.items() if it is not ...}))
    to = ("--to", "mlx") if target == "m/" else ()

    done = ckconv("convert", source, f"{tmp_path}/{target}", *to)

    assert (done.code in (3, 4), said in done.err) == (True, True), done.err
    if "--context" in done.err:
        done = ckconv("convert", source, f"{tmp_path}/{target}", *to, "--context", 64)
        assert done.code == 0, done.err
        assert json.loads((tmp_path / "m/config.json").read_text())["max_position_embeddings"] == 64
    if "--to safetensors copies it as it is" in done.err:
        done = ckconv("convert", source, f"{tmp_path}/copy/", "--to", "safetensors")
        assert done.code == 0, done.err


#: Family, case, changes of config.json, target, flags, what a refusal says (nothing of what is right, and verified).
TOGETHER: list[tuple[str, str, dict[str, Any], str, list[str], str]] = [
    # a head that was left out is the embedding, also where the target's class wants one of its own
    ("helium", "biases", {}, "m/", ["--drop", "lm_head.weight"], ""),
    ("qwen", "released", {}, "m/", ["--drop", "lm_head.weight"], ""),
    ("olmo2", "untied", {}, "m.gguf", ["--drop", "lm_head.weight"], ""),
    ("bailing_moe_v2", "sigmoids", {}, "m.gguf", ["--drop", "lm_head.weight"], ""),
    # tensors tell a GLM 4.1V from a GLM-OCR
    ("glm4v", "untied", {}, "m.gguf", ["--drop", "*_proj.bias"], "'glm4v', and would be read as 'glm_ocr'"),
    # values of JSON that a report or a proof took for others
    ("llama", "", {}, "m.gguf", ["--set-meta", "temperature=NaN", "--json"], ""),
    ("llama", "", {"model_type": []}, "hf/", ["--to", "hf"], ""),
    ("llama", "", {"torch_dtype": []}, "m/", ["--dtype", "f16", "--allow-lossy"], ""),
    ("umt5_encoder", "relu", {"pad_token_id": True}, "m.gguf", [], ""),
    *(("nemotron", "", {"attention_dropout": endless}, "m/", [], "") for endless in (math.nan, -math.inf)),
    # a scaling by one of classes that read no table: every angle is what it is without
    *(
        ("qwen", "", {"rope_scaling": {"factor": 1.0, "original_max_position_embeddings": 16, **kind}}, target, [], "")
        for kind, target in (({"type": "linear"}, "m.gguf"), ({"rope_type": "yarn"}, "m/"))
    ),
    # lists of which classes look up the item of each layer: more are of layers that are not there
    ("smollm3", "", {"no_rope_layers": [1, 1, 1, 0, 1, 1]}, "m/", [], ""),
    ("llama4", "", {"no_rope_layers": [1, 1, 1, 0, 1, 1, 0, 0]}, "m.gguf", [], ""),
    ("granite_swa", "", {"layer_rope_theta": [1e4] * 7}, "m.gguf", [], ""),
    # keys that mlx-lm's class wants, and the source's does not read
    ("gemma3n", "", {"altup_coef_clip": 0.0}, "m/", [], ""),
    ("deepseek", "linear", {"rope_parameters": {"rope_type": "linear", "factor": 1, "rope_theta": 1e4}}, "m/", [], ""),
]


@pytest.mark.parametrize(("family", "name", "changes", "target", "flags", "said"), TOGETHER)
def test_what_commands_make_of_chance_keys_and_flags_is_right_or_refused(
    tmp_path: Path,
    ckconv: Any,
    family: str,
    name: str,
    changes: dict[str, Any],
    target: str,
    flags: list[str],
    said: str,
) -> None:
    case = next(one for one in family_cases.cases(family) if one.name == name or not name)
    made = {**case.recorded, "config": case.recorded["config"] | changes}
    source = family_cases.checkpoint(made, tmp_path / "source", case.tokenizer)
    to = ("--to", "mlx") if target == "m/" else ()

    done = ckconv("convert", source, f"{tmp_path}/{target}", *to, *flags)

    assert (done.code, said in done.err) == (4 if said else 0, True), done.err
    if said:
        assert "hint: leave out --drop" in done.err
    else:
        asked = [flag for flag in flags if flag != "--json"]
        assert ckconv("verify", tmp_path / target, source, *(() if "--to" in flags else asked)).code == 0


@pytest.mark.parametrize(("target", "flags"), [("m.gguf", []), ("m.gguf", ["--dequantize"]), ("m/", ["--dequantize"])])
def test_a_vector_of_fp8_is_refused(tmp_path: Path, ckconv: Any, target: str, flags: list[str]) -> None:
    case = next(family_cases.cases("llama"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "source", case.tokenizer)
    raw = (source / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, data, at = json.loads(raw[8 : 8 + size]), b"", 0
    for key, entry in header.items():
        if key != "__metadata__":
            start, end = entry["data_offsets"]
            part = raw[8 + size :][start:end]
            if key == "model.norm.weight":
                part, entry["dtype"] = part[: len(part) // 4], "F8_E4M3"
            data, entry["data_offsets"], at = data + part, [at, at + len(part)], at + len(part)
    text = json.dumps(header).encode()
    (source / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)

    done = ckconv("convert", source, f"{tmp_path}/{target}", *(("--to", "mlx") if target == "m/" else ()), *flags)

    assert (done.code, "a vector of FP8 is no matrix" in done.err) == (4, True), done.err


def damaged(path: Path, key: str, value: bytes) -> None:
    """Put another typed value behind a key."""
    reader = gguf.GGUFReader(path)
    field, last = reader.fields[key], reader.tensors[-1].field
    start, behind = field.offset + 8 + len(key), field.offset + sum(int(part.nbytes) for part in field.parts)
    end = last.offset + sum(int(part.nbytes) for part in last.parts)
    data, begin = path.read_bytes(), int(reader.data_offset)
    head = data[:start] + value + data[behind:end]
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data[begin:])


def number(kind: str, code: str, value: float) -> bytes:
    return struct.pack(f"<I{code}", gguf.GGUFValueType[kind], value)


LIST = struct.pack("<IIQ2I", gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32, 2, 3, 5)
EMPTY = struct.pack("<IQ", gguf.GGUFValueType.STRING, 0)
NAN, NEGATIVE = number("FLOAT32", "f", np.nan), number("INT32", "i", -3)

#: Family, key of the GGUF, value, whether a model is made of it all the same.
KEYS = [
    *(("qwen3moe", "qwen3moe.expert_used_count", one) for one in (number("UINT32", "I", 99), LIST, NAN, EMPTY)),
    *(("llama", "llama.context_length", one) for one in (LIST, NAN, NEGATIVE, EMPTY)),
    *(("llama", f"tokenizer.ggml.{name}", NAN) for name in ("tokens", "token_type", "model", "pre", "add_bos_token")),
    *(("llama", "tokenizer.ggml.tokens", one) for one in (LIST, EMPTY, NEGATIVE)),
    *(("llama", "tokenizer.ggml.bos_token_id", one) for one in (NAN, NEGATIVE, EMPTY, LIST)),
]


@pytest.mark.parametrize(("family", "key", "value"), KEYS)
def test_a_key_of_another_type_is_named_and_stays_in_the_container(
    tmp_path: Path, ckconv: Any, family: str, key: str, value: bytes
) -> None:
    """``gguf_get_val`` of llama.cpp's loader takes one type; nothing else is needed to copy, edit or inspect a file."""
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    made = tmp_path / "m.gguf"
    assert ckconv("convert", source, made).code == 0
    damaged(made, key, value)

    back = ckconv("convert", made, f"{tmp_path}/back/", "--to", "hf")
    assert (back.code in (3, 4), key in back.err) == (True, True), back.err
    for command in (
        ("inspect", made),
        ("verify", made),
        ("convert", made, tmp_path / "copy.gguf"),
        ("edit", made, tmp_path / "edited.gguf", "--set-meta", "general.author=x"),
    ):
        done = ckconv(*command)
        assert done.code == 0, (command, done.err)
    assert ckconv("diff", made, tmp_path / "copy.gguf").code == 0


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        ("kquants/llama64.Q4_K_M.gguf", ("--quantize", "q8_0"), "values are rounded to the blocks of --quantize q8_0;"),
        ("quantised/ct-nvfp4", ("--to", "mlx", "--dtype", "bf16", "--allow-lossy"), "values are rounded to BF16;"),
        ("quantised/ct-nvfp4", ("--to", "mlx"), "every value is what its library computes, rounded to FP32;"),
        ("quantised/fp8-block-ue8m0", ("--to", "bump"), "every value is exact, in FP32;"),
    ],
)
def test_a_way_out_says_what_becomes_of_values_with_what_was_asked_for(
    tmp_path: Path, ckconv: Any, fixtures: Path, name: str, flags: tuple[str, ...], said: str
) -> None:
    """Decoded values are exact, and were said to be so where they are rounded then."""
    done = ckconv("convert", fixtures / name, f"{tmp_path}/{'m/' if '--to' in flags else 'm.gguf'}", *flags)

    ways = [line for line in done.err.splitlines() if "way out: --dequantize: " in line]
    assert (len(ways), said in ways[0]) == (1, True), done.err
    assert not ("--quantize" in flags and "bf16" in done.err)


#: Family, a key whose number is made of others or says which layers have tensors, value, what is named.
DERIVED = [
    ("gemma4_text", "gemma4.attention.shared_kv_layers", number("UINT32", "I", 4000), "attention.shared_kv_layers"),
    ("glm4_moe", "glm4moe.nextn_predict_layers", NEGATIVE, "nextn_predict_layers is -3"),
    ("glm4_moe", "glm4moe.nextn_predict_layers", number("UINT32", "I", 4000), "nextn_predict_layers is 4000"),
    ("distilbert", "bert.attention.layer_norm_epsilon", number("FLOAT32", "f", 1e-3), "1e-12 (layer_norm_epsilon)"),
    ("gemma3n", "gemma3n.block_count", number("UINT32", "I", 0), "gemma3n.block_count is 0"),
    ("gemma3", "gemma3.rope.freq_base_swa", number("FLOAT32", "f", 0), "gemma3.rope.freq_base_swa is 0"),
    ("gpt_oss", "gpt-oss.rope.scaling.yarn_beta_slow", number("FLOAT32", "f", 0), "yarn_beta_slow must be above 0"),
    ("dbrx", "dbrx.attention.clamp_kqv", NAN, "attention.clamp_kqv must be a finite number"),
    ("bailing_moe_v2", "bailingmoe2.expert_gating_func", number("UINT32", "I", 3), "from 1 to 2 are expected"),
    ("t5", "t5.block_count", LIST, "t5.block_count must be a whole number, got"),
    ("falcon_h1", "falcon-h1.ssm.state_size", number("UINT32", "I", 0), "falcon-h1.ssm.state_size"),
    ("deepseek_v2", "deepseek2.leading_dense_block_count", number("UINT32", "I", 0), "leading_dense_block_count"),
    ("glm4", "glm4.rope.dimension_count", number("UINT32", "I", 7), "7, which is no number of pairs within the"),
    ("gpt_neox", "gptneox.rope.dimension_count", number("UINT32", "I", 99), "99, which is no number of pairs"),
    ("glm4", "glm4.attention.key_length", number("UINT32", "I", 2), "of a head (glm4.attention.key_length)"),
    ("phi3", "phi3.attention.head_count", number("UINT32", "I", 32), "(phi3.embedding_length / attention.head_count)"),
    ("refact", "refact.attention.head_count_kv", number("UINT32", "I", 2), "one head of K and V, and this one 2"),
    ("minicpm", "minicpm.residual_scale", number("FLOAT32", "f", math.inf), "must be a finite number, got inf"),
    ("modernbert_classifier", "modern-bert.classifier.pooling_type", number("UINT32", "I", 7), "not 7"),
    ("granite4", "granite.ssm.inner_size", number("UINT32", "I", 99), "(granite.ssm.inner_size) is 99, and would be"),
    ("dbrx", "dbrx.attention.clamp_kqv", number("FLOAT32", "f", math.inf), "clamp_kqv must be a finite number"),
    # each came back as another number, without a line
    ("bloom", "bloom.attention.head_count_kv", number("UINT32", "I", 0), "bloom.attention.head_count_kv is 0"),
    ("olmoe", "olmoe.attention.head_count_kv", number("UINT32", "I", 0), "olmoe.attention.head_count_kv is 0"),
    ("llama", "llama.rope.dimension_count", number("UINT32", "I", 0), "llama.rope.dimension_count is 0"),
    ("gpt2", "gpt2.context_length", number("UINT32", "I", 0), "gpt2.context_length is 0"),
    ("gemma4_text", "gemma4.attention.value_length_swa", number("UINT32", "I", 7), "value_length_swa is 7"),
    ("gemma4_text", "gemma4.rope.dimension_count_swa", number("UINT32", "I", 6), "rope.dimension_count_swa is 6"),
    ("hy_v3", "hy_v3.expert_shared_feed_forward_length", number("UINT32", "I", 29), "length is 29, and a GGUF of what"),
    ("llada", "diffusion.shift_logits", struct.pack("<IB", gguf.GGUFValueType.BOOL, 1), "shift_logits is True, and a"),
    ("ministral3", "mistral3.rope.scaling.original_context_length", number("UINT32", "I", 0), "context_length is 0"),
    # llama.cpp computes other numbers of these than a class: 0.707 for both, and what grows from 9 on
    ("mistral4", "mistral4.rope.scaling.yarn_log_multiplier", number("FLOAT32", "f", 0.0707), "yarn_log_multiplier ="),
    ("mistral4", "mistral4.attention.temperature_length", number("UINT32", "I", 9), "temperature_length = 9 changes"),
]


@pytest.mark.parametrize(("family", "key", "value", "said"), DERIVED)
def test_a_number_is_named_though_others_are_made_of_it(
    tmp_path: Path, ckconv: Any, family: str, key: str, value: bytes, said: str
) -> None:
    """No sentence names a number that is not in the file, and no check of the output finds it first."""
    case = next(case for case in family_cases.cases(family) if case.expected("hf->gguf") == "right")
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    damaged(tmp_path / "m.gguf", key, value)

    done = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "hf")
    if "hint: --to gguf copies it as it is" in done.err:
        assert ckconv("convert", tmp_path / "m.gguf", tmp_path / "copy.gguf").code == 0
    assert (done.code in (3, 4), said in done.err) == (True, True), done.err


def test_tensors_that_are_keys_of_a_gguf_are_counted_and_may_be_doubles(tmp_path: Path, ckconv: Any) -> None:
    """xIELU's numbers: a report said "verified 46/34", and float64 of them ended in an internal error."""
    case = next(family_cases.cases("apertus"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    done = ckconv("convert", source, tmp_path / "m.gguf")
    assert (done.code, "verified 46/46" in done.out) == (0, True), done.out

    stored = load_file(source / "model.safetensors")
    for path in source.glob("*.safetensors*"):
        path.unlink()
    save_file({key: values.astype(np.float64) for key, values in stored.items()}, source / "model.safetensors")
    done = ckconv("convert", source, tmp_path / "d.gguf", "--dtype", "f32")
    assert (done.code, "verified 46/46" in done.out) == (0, True), done.err
    assert ckconv("diff", tmp_path / "m.gguf", tmp_path / "d.gguf").code == 0

    name = "model.layers.1.mlp.act_fn.alpha_n"
    doubles = {key: values.astype(np.float64) for key, values in stored.items()}
    save_file(doubles | {name: np.full_like(doubles[name], 1e300)}, source / "model.safetensors")
    done = ckconv("convert", source, tmp_path / "f.gguf", "--dtype", "f32", "--allow-lossy")
    assert (done.code, f"{name} is 1e+300, which no float32 holds" in done.err) == (4, True), done.err

    save_file(doubles | {name: doubles[name] + 2**-40}, source / "model.safetensors")
    done = ckconv("convert", source, tmp_path / "e.gguf", "--dtype", "f32")
    assert (done.code, f"{name} is no float32, as which a GGUF has it" in done.err) == (4, True), done.err
    assert ckconv("convert", source, tmp_path / "e.gguf", "--dtype", "f32", "--allow-lossy").code == 0


def test_a_norm_of_k_that_is_not_1_is_found_and_refused(tmp_path: Path, ckconv: Any) -> None:
    """Muse Glimmer's GGUF has what K is multiplied by, and no key of config.json says another number than 1."""
    case = next(family_cases.cases("muse_glimmer"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    drop = ("--drop", *case.options["drop"])
    assert ckconv("convert", source, tmp_path / "m.gguf", *drop).code == 0
    reader = gguf.GGUFReader(tmp_path / "m.gguf", "r+")
    for tensor in reader.tensors:
        if "attn_k_norm" in tensor.name:
            tensor.data[...] = 2
    reader.data.flush()

    done = ckconv("verify", tmp_path / "m.gguf", source, *drop)
    assert (done.code, "key_factor is 0.0, 1.0 in the source" in done.err) == (5, True), done.err
    done = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/mlx/", "--to", "mlx")
    assert (done.code, "attn_k_norm.weight of the GGUF is not 1 in all places" in done.err) == (4, True), done.err


def test_a_value_that_equals_nothing_is_copied(tmp_path: Path, ckconv: Any) -> None:
    case = next(family_cases.cases("grovemoe"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"hidden_act": math.nan, "architectures": [math.nan]}))

    done = ckconv("convert", source, f"{tmp_path}/copy/", "--to", "hf")
    assert done.code == 0, done.err
    assert math.isnan(json.loads((tmp_path / "copy/config.json").read_text())["hidden_act"])

    (tmp_path / "copy/config.json").write_text(json.dumps(config | {"hidden_act": "silu"}))
    done = ckconv("verify", tmp_path / "copy", source)
    assert (done.code, "hidden_act = nan" in done.err) == (5, True), done.err


#: Family, key of the GGUF, number, key of a document of the checkpoint -> what it is there, and the note.
KEPT: list[tuple[str, str, int, tuple[str, str, Any], str]] = [
    (
        "glm4",
        "tokenizer.ggml.unknown_token_id",
        99,
        ("tokenizer_config.json", "unk_token", None),
        "token_id is 99",
    ),
    ("bert", "tokenizer.ggml.seperator_token_id", 1, ("tokenizer_config.json", "sep_token", "[UNK]"), ""),
    ("bert", "tokenizer.ggml.seperator_token_id", 1, ("tokenizer_config.json", "eos_token", "[SEP]"), ""),
    ("bert", "tokenizer.ggml.eos_token_id", 0, ("tokenizer_config.json", "eos_token", "[PAD]"), ""),
    ("granitehybrid", "granitehybrid.context_length", 64, ("config.json", "max_position_embeddings", 64), "is 64"),
]


@pytest.mark.parametrize(("family", "key", "value", "there", "note"), KEPT)
def test_a_number_that_only_a_note_is_about_is_no_fault(
    tmp_path: Path, ckconv: Any, family: str, key: str, value: int, there: tuple[str, str, Any], note: str
) -> None:
    """Each ended in exit 5: the output was right, and its check wanted more of it than a class can be told."""
    case = next(case for case in family_cases.cases(family) if case.expected("hf->gguf") == "right")
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    damaged(tmp_path / "m.gguf", key, number("UINT32", "I", value))

    done = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "hf")
    assert (done.code, note in done.out + done.err) == (0, True), done.err
    name, said, wanted = there
    assert json.loads((tmp_path / "back" / name).read_text()).get(said) == wanted


@pytest.mark.parametrize("family", ["glm4v", "glm_ocr"])
def test_sections_of_rope_that_llama_cpp_takes_for_none_are_refused(tmp_path: Path, ckconv: Any, family: str) -> None:
    """It turned neighbors then (``llama_hparams::use_mrope``), where rows are those of halves."""
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    config = json.loads((source / "config.json").read_text())
    rope = config["text_config"]["rope_parameters"]
    first, *others = rope["mrope_section"]
    rope["mrope_section"] = [0, first + others[0], *others[1:]]
    (source / "config.json").write_text(json.dumps(config))
    done = ckconv("convert", source, tmp_path / "m.gguf", *(["--drop", *case.options["drop"]] if case.options else []))
    assert (done.code, "wants the first two above 0" in done.err) == (4, True), done.err


def test_an_end_that_config_json_alone_says_is_the_one_of_a_bert(tmp_path: Path, ckconv: Any) -> None:
    """llama.cpp's converter takes it before the separator (``SpecialVocab``)."""
    case = next(family_cases.cases("bert"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"eos_token_id": 1}))
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    ids = [fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("eos", "seperator")]
    assert ids == [1, 3]


def test_a_copy_says_of_a_head_what_its_source_says(tmp_path: Path, ckconv: Any) -> None:
    case = next(case for case in family_cases.cases("ernie4_5_moe") if case.name == "tied")
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    done = ckconv("convert", source, f"{tmp_path}/copy/", "--to", "safetensors")
    assert done.code == 0, done.err
    done = ckconv("convert", source, tmp_path / "m.gguf")
    assert (done.code, "tie_word_embeddings" in done.err) == (4, True), done.err


def test_the_number_that_llama_cpp_reads_counts_beside_one_that_it_does_not(tmp_path: Path, ckconv: Any) -> None:
    """ModernBERT's GGUFs have two epsilons, and ``load_arch_hparams`` of modern-bert.cpp reads one."""
    case = next(family_cases.cases("modernbert"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    for name, value in (("layer_norm_epsilon", 0.25), ("layer_norm_rms_epsilon", 0.5)):
        damaged(tmp_path / "m.gguf", f"modern-bert.attention.{name}", number("FLOAT32", "f", value))

    done = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "hf")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "back/config.json").read_text())["norm_eps"] == 0.25


@pytest.mark.parametrize(
    ("family", "arch"), [("afmoe", "afmoe"), ("deepseek_v4", "deepseek4"), ("gemma2", "gemma2"), ("olmo3", "olmo2")]
)
def test_heads_of_layers_that_slide_are_those_of_others(tmp_path: Path, ckconv: Any, family: str, arch: str) -> None:
    """``load_hparams`` of llama.cpp reads their sizes for every architecture, and no class is told of them."""
    case = next(case for case in family_cases.cases(family) if case.expected("hf->gguf") == "right")
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    key = f"{arch}.rope.dimension_count_swa"
    assert ckconv("edit", tmp_path / "m.gguf", tmp_path / "e.gguf", "--set-meta", f"{key}=2").code == 0

    done = ckconv("convert", tmp_path / "e.gguf", f"{tmp_path}/back/", "--to", "hf")
    assert (done.code, f"{key} = 2 changes the computation" in done.err) == (4, True), done.err


def test_a_scaling_that_is_none_has_no_factor(tmp_path: Path, ckconv: Any) -> None:
    """``llama_context``: "never scale if scaling type is none"; Youtu's GGUF was refused for its factor."""
    case = next(family_cases.cases("youtu"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    keys = [f"deepseek2.rope.scaling.{pair}" for pair in ("factor=4.0", "type=none")]
    pairs = [word for key in keys for word in ("--set-meta", key)]
    assert ckconv("edit", tmp_path / "m.gguf", tmp_path / "e.gguf", *pairs).code == 0
    done = ckconv("convert", tmp_path / "e.gguf", f"{tmp_path}/back/", "--to", "hf")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "back/config.json").read_text())["rope_scaling"] is None


def test_a_gguf_with_an_embedding_is_a_model_whatever_it_calls_itself(tmp_path: Path, ckconv: Any) -> None:
    """llama.cpp's loader of models does not look at general.type."""
    case = next(family_cases.cases("llama"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    assert ckconv("edit", tmp_path / "m.gguf", tmp_path / "e.gguf", "--set-meta", "general.type=base").code == 0
    assert ckconv("convert", tmp_path / "e.gguf", f"{tmp_path}/back/", "--to", "hf").code == 0


def test_a_scaling_that_is_not_there_is_not_dropped(tmp_path: Path, ckconv: Any) -> None:
    case = next(family_cases.cases("llama"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    done = ckconv("convert", source, tmp_path / "m.gguf", "--drop", "rope_frequencies")
    assert (done.code, "--drop rope_frequencies names no tensor of hf" in done.err) == (2, True), done.err


def test_an_adapter_that_stands_for_none_is_of_zeros(tmp_path: Path, ckconv: Any) -> None:
    """A Granite Switch's GGUF has one before the others, whose numbers a checkpoint would lose."""
    case = next(family_cases.cases("granite_switch"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    reader = gguf.GGUFReader(tmp_path / "m.gguf", "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "blk.1.ffn_down.lora_a").data[0] = 1
    reader.data.flush()

    done = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "hf")
    assert (done.code, "blk.1.ffn_down.lora_a begins with an adapter that is not of" in done.err) == (4, True), done.err

    done = ckconv("verify", tmp_path / "m.gguf", source)
    assert (done.code, "begins with an adapter that is neither of zeros nor the source's" in done.err) == (5, True)
    done = ckconv("convert", source, tmp_path / "n.gguf")
    for other in (source, tmp_path / "n.gguf"):
        for pair in ((tmp_path / "m.gguf", other), (other, tmp_path / "m.gguf")):
            done = ckconv("diff", *pair)
            assert (done.code, "what stands before its elements" in done.out) == (5, True), done.out
    assert ckconv("diff", source, tmp_path / "n.gguf").code == 0
    assert ckconv("convert", tmp_path / "m.gguf", tmp_path / "c.gguf").code == 0
    assert ckconv("verify", tmp_path / "c.gguf", tmp_path / "m.gguf").code == 0

    half, single = tmp_path / "half.gguf", tmp_path / "single.gguf"
    assert ckconv("convert", tmp_path / "m.gguf", half, "--dtype", "f16", "--allow-lossy").code == 0
    assert ckconv("convert", half, single, "--dtype", "f32").code == 0
    assert ckconv("diff", half, single).code == 0
    hashes = [ckconv("inspect", "--hash", one).out.split()[-1] for one in (half, single, tmp_path / "m.gguf", source)]
    assert (hashes[0] == hashes[1], hashes[2] == hashes[3]) == (True, False)
    reader = gguf.GGUFReader(single, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "blk.1.ffn_down.lora_a").data[0] = 2
    reader.data.flush()
    assert ckconv("verify", single, half).code == ckconv("diff", single, half).code == 5


@pytest.mark.parametrize(("family", "wrong"), [("falcon_mamba", 2.5), ("bailing_hybrid", -2.5)])
def test_a_decay_of_the_wrong_sign_has_no_logarithm(family: str, wrong: float, tmp_path: Path, ckconv: Any) -> None:
    """A checkpoint has logarithms; one of the wrong sign became NaN, and the conversion ended in exit 5."""
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    reader = gguf.GGUFReader(tmp_path / "m.gguf", "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "blk.0.ssm_a").data[0] = wrong
    reader.data.flush()

    done = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "hf")
    assert (done.code, f"blk.0.ssm_a has {wrong}, and a checkpoint" in done.err) == (4, True), done.err


@pytest.mark.parametrize("family", ["falcon_mamba", "bailing_hybrid"])
def test_a_large_decay_has_the_nearest_logarithm(family: str, tmp_path: Path, ckconv: Any) -> None:
    """No float32 has 1.2e16 or 3e38 as its exponential."""
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    reader = gguf.GGUFReader(tmp_path / "m.gguf", "r+")
    decays = next(tensor for tensor in reader.tensors if tensor.name == "blk.0.ssm_a").data
    large = np.array([1.2e16, 1e20, 3e38], np.float32) * np.sign(decays.flat[0])
    decays.flat[:3] = large
    reader.data.flush()

    assert ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "hf").code == 0
    stored = load_file(tmp_path / "back" / "model.safetensors")
    logarithms = next(array for name, array in sorted(stored.items()) if name.endswith("A_log"))
    assert logarithms.flat[:3].tolist() == np.log(np.abs(large).astype(np.float64)).astype(np.float32).tolist()


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("deepseek_v3", "first_k_dense_replace=3"),
        ("deepseek_v3", "first_k_dense_replace=null"),
        ("qwen3moe", "mlp_only_layers=[0]"),
        ("deepseek_v3", "q_lora_rank=null"),
        ("deepseek_v3", "n_shared_experts=0"),
        ("gemma3n", "laurel_rank=3"),
        ("gemma4_text", "enable_moe_block=true"),
    ],
)
def test_a_copy_keeps_which_layers_have_which_tensors(family: str, said: str, tmp_path: Path, ckconv: Any) -> None:
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    for command in (("edit", source, f"{tmp_path}/out/"), ("convert", source, f"{tmp_path}/out/", "--to", "hf")):
        done = ckconv(*command, "--set-meta", said)
        what = "shapes tensors have" if said in ("n_shared_experts=0", "laurel_rank=3") else "layers have which tensors"
        text = f"{said.partition('=')[0]} says which {what}"
        assert (done.code, text in done.err) == (2, True), done.err
    done = ckconv("edit", source, f"{tmp_path}/out/", "--set-meta", said, "--set-meta", "initializer_range=5.0")
    assert f"{said.partition('=')[0]}, initializer_range together say which" in done.err


def test_what_one_layer_has_too_many_is_dropped_there_alone(tmp_path: Path, ckconv: Any) -> None:
    """RWKV 7 mixes values with those of the first layer, which has no matrices for it; with them some save it."""
    case = next(family_cases.cases("rwkv7"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    stored = load_file(source / "model.safetensors")
    first = {name.replace(".1.", ".0.", 1): array for name, array in stored.items() if ".1.attn.v_lora" in name}
    save_file(first | stored, source / "model.safetensors", {"format": "pt"})
    globs = [f"model.layers.0.attn.v_lora.lora.*.{kind}" for kind in ("weight", "bias")]
    for target in (tmp_path / "m.gguf", f"{tmp_path}/mlx/"):
        done = ckconv("convert", source, target, "--to", "gguf" if str(target).endswith("gguf") else "mlx")
        assert done.code == 4
        assert all(f"--drop '{glob}' leaves out what rwkv7 does not have" in done.err for glob in globs)
    assert ckconv("convert", source, tmp_path / "m.gguf", "--drop", globs[0], "--drop", globs[1]).code == 0


@pytest.mark.parametrize(
    ("family", "key", "value", "stray"),
    [
        ("granite", "hidden_act", "gelu", False),
        ("bailing_moe_v2", "norm_head", True, False),  # of mlx-lm's class
        ("glm4_moe", "scoring_func", "softmax", True),  # both classes take sigmoids
        ("stablelm", "rope_pct", 0.5, True),
        ("chatglm", "rope_parameters", {"rope_theta": 7e5, "rope_type": "default"}, True),  # it has rope_ratio
    ],
)
def test_only_a_key_that_no_class_computes_with_may_be_dropped(
    family: str, key: str, value: Any, stray: bool, tmp_path: Path, ckconv: Any
) -> None:
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, key: value}))
    assert ckconv("edit", source, f"{tmp_path}/edited/", "--drop-meta", key).code == 0
    for target in ("gguf", "mlx"):
        refused = ckconv("convert", source, tmp_path / f"m-{target}", "--to", target)
        hinted = f"if the model computes without it: ckconv edit SRC DST/ --drop-meta {key}" in refused.err
        assert (refused.code, f"{key} = " in refused.err, hinted) == (4, True, stray)
        known = family != "bailing_moe_v2"
        assert target == "gguf" or ("mlx-lm does not know it" in refused.err) == known
        if (target == "gguf" or family != "chatglm") and stray:
            assert ckconv("convert", tmp_path / "edited", tmp_path / f"m-{target}", "--to", target).code == 0


def test_a_head_whose_columns_mlx_lm_divides_stays_floats(tmp_path: Path, ckconv: Any) -> None:
    """sanitize of mlx_lm/models/bailing_moe.py divides what is stored, codes as floats."""
    case = next(one for one in family_cases.cases("bailing_moe") if one.name == "normalized_head")
    source, types = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer), "affine:4:32,*.gate_*=f32"
    for word, code in (("", 0), (",lm_head.weight=affine:4:32", 4)):
        out = tmp_path / f"mlx{code}"
        done = ckconv("convert", source, out, "--to", "mlx", "--quantize", f"{types}{word}")
        assert (done.code, "class takes floats there, and no codes: lm_head.weight" in done.err) == (code, code == 4)
    assert json.loads((tmp_path / "mlx0" / "config.json").read_text())["norm_head"] is True
    stored = load_file(tmp_path / "mlx0" / "model.safetensors")
    assert ("lm_head.scales" in stored, "model.word_embeddings.scales" in stored) == (False, True)
    refused = ckconv("convert", tmp_path / "mlx0", tmp_path / "m.gguf", "--dequantize")
    assert (refused.code, "divided by their norms (norm_head)" in refused.err) == (4, True)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("model.layers.{n}.mlp.up_proj.weight", "model.layers.{n}.mlp.upp_proj.weight"),
        ("model.norm.weight", "model.final_norm.weight"),
    ],
)
def test_what_may_be_missing_by_another_name_is_not_dropped(
    right: str, wrong: str, tmp_path: Path, ckconv: Any
) -> None:
    case = next(family_cases.cases("qwen3"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    stored = load_file(source / "model.safetensors")
    renamed = {name.replace(right.split("{n}")[-1], wrong.split("{n}")[-1]): array for name, array in stored.items()}
    save_file(renamed, source / "model.safetensors", {"format": "pt"})
    for target in ("gguf", "mlx"):
        done = ckconv("convert", source, tmp_path / f"out-{target}" / "m", "--to", target)
        assert (done.code, "--drop" in done.err) == (4, False)
        assert wrong in done.err
        assert f"hint: if it is {right} by another name, rename it in the file" in done.err

    save_file(stored, source / "model.safetensors", {"format": "pt"})  # renamed again
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_columns_of_bitsandbytes_in_another_storage_are_called_so(dtype: Any, tmp_path: Path, ckconv: Any) -> None:
    case = next(family_cases.cases("llama"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    stored = load_file(source / "model.safetensors")
    codes = {name: np.ones((array.size // 4, 1), dtype) for name, array in stored.items() if "proj" in name}
    save_file(stored | codes, source / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    declared = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (source / "config.json").write_text(json.dumps({**config, "quantization_config": declared}))
    done = ckconv("convert", source, tmp_path / "m.gguf")
    assert done.code == 4
    assert f"{len(codes)} tensors of quantized numbers (quant_method 'bitsandbytes')" in done.err


def test_a_file_of_tiktoken_is_not_called_malformed(tmp_path: Path, ckconv: Any) -> None:
    case = next(family_cases.cases("llama"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    (source / "tokenizer.json").unlink()
    (source / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    done = ckconv("convert", source, tmp_path / "m.gguf")
    assert done.code == 0
    assert "tokenizer.model is a file of tiktoken, which ckconv does not read of this class" in done.out + done.err


def calls_of(work: Callable[[], Any]) -> tuple[int, Any]:
    """How many functions are called, and what is returned."""
    count = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        made = work()
    finally:
        sys.setprofile(None)
    return count, made


def test_flags_for_many_unknown_names_are_found_in_one_walk(tmp_path: Path) -> None:
    case = next(family_cases.cases("llama"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    known, took = load_file(source / "model.safetensors"), []
    for many in (300, 100, 300):  # the first plan of a process fills caches
        names = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}.weight" for n in range(many)]
        foreign = {name: np.zeros(1, np.float32) for name in names}
        save_file(known | foreign, source / "model.safetensors", {"format": "pt"})
        index = open_index(source)
        calls, plan = calls_of(lambda index=index: make_plan(index, "gguf", Options()))
        took.append(calls)
        hints = {f"--drop '{name}' leaves out what llama does not have" for name in names}
        assert {one.hint for one in plan.refusals} == hints

    _, few, more = took
    assert more < 3 * few


def drafting(family: str, root: Path, change: Callable[[dict[str, Any]], dict[str, Any]], **said: Any) -> Path:
    """A case with a layer that predicts a further token, with other tensors and keys."""
    case = next(one for one in family_cases.cases(family) if one.name == "drafts")
    recorded = {**case.recorded, "config": {**case.recorded["config"], **said}}
    source = family_cases.checkpoint(recorded, root, case.tokenizer)
    stored = change(load_file(source / "model.safetensors"))
    save_file(stored, source / "model.safetensors", {"format": "pt"})
    return source


def test_a_layer_that_predicts_a_token_may_lack_an_indexer(tmp_path: Path, ckconv: Any) -> None:
    """``graph_mtp`` of llama.cpp's glm-dsa.cpp has no use for it."""

    def bare(stored: dict[str, Any]) -> dict[str, Any]:
        return {
            name: array for name, array in stored.items() if not name.startswith("model.layers.3.self_attn.indexer")
        }

    source = drafting("glm_moe_dsa", tmp_path / "hf", bare)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    assert "blk.3.indexer.attn_k.weight" not in {one.name for one in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "hf").code == 0
    first, second = (load_file(one / "model.safetensors") for one in (source, tmp_path / "back"))
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_layers_that_predict_tokens_and_lack_tensors_can_be_left_out(tmp_path: Path, ckconv: Any) -> None:
    """llama.cpp's converter writes what K-EXAONE's layers share once for each."""

    def two(stored: dict[str, Any]) -> dict[str, Any]:
        again = {name.replace("mtp.layers.0", "mtp.layers.1"): array for name, array in stored.items()}
        return again | stored

    source = drafting("exaone_moe", tmp_path / "hf", two, num_nextn_predict_layers=2)
    done = ckconv("convert", source, tmp_path / "m.gguf")
    assert (done.code, "--drop mtp leaves out the layers that predict further tokens" in done.err) == (4, True)
    assert ckconv("convert", source, tmp_path / "m.gguf", "--drop", "mtp").code == 0


@pytest.mark.parametrize(("said", "code"), [({}, 0), ({"mscale": 0.7}, 0), ({"mscale_all_dim": 1.0}, 4)])
def test_mscale_all_dim_alone_weighs_scores_of_latent_attention(
    said: dict[str, float], code: int, tmp_path: Path, ckconv: Any
) -> None:
    """``yarn_apply_mscale`` of transformers' bailing_hybrid; llama.cpp's bailingmoe3 divides by a root alone."""
    case = next(family_cases.cases("bailing_hybrid"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").unlink()
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, **said}
    (source / "config.json").write_text(json.dumps(config | {"rope_scaling": yarn}))

    done = ckconv("convert", source, tmp_path / "m.gguf")
    assert (done.code, "mscale_all_dim is 1.0" in done.err) == (code, code == 4), done.err


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("multi_query_attention", False, "Q, K and V lie head by head (multi_query_attention)"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, "the class of chatglm reads no scaling of RoPE"),
        ("ffn_hidden_size", None, "axis (I|I) has 0 elements (ffn_hidden_size"),
    ],
)
def test_what_a_file_of_another_family_cannot_say_is_refused(
    key: str, value: object, said: str, tmp_path: Path, ckconv: Any
) -> None:
    """A GGUF of a ChatGLM is a GLM's: the family's own rows count besides."""
    case = next(family_cases.cases("chatglm"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").unlink()
    (source / "config.json").write_text(json.dumps(config | {key: value}))

    done = ckconv("convert", source, tmp_path / "m.gguf")
    assert (done.code, said in done.err) == (4, True), done.err


@pytest.mark.parametrize("name", ["ernie4_5_moe-untied", "mellum-tied"])
def test_layers_that_a_rule_leaves_out_may_be_dropped_by_name(name: str, tmp_path: Path, ckconv: Any) -> None:
    case = next(case for case in family_cases.cases(name.partition("-")[0]) if str(case) == name)
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf", "--drop", "mtp").code == 0


@pytest.mark.parametrize(
    ("family", "sections", "code"),
    [
        ("qwen3_vl", [1, 1, 1], 0),
        ("qwen3_vl", [1, 2, 1], 4),
        ("qwen3_vl", [2, 2, 2], 0),
        ("qwen3_vl_moe", [1, 2, 1], 4),
        ("qwen3_omni_moe", [1, 2, 1], 4),
        ("qwen3_5", [1, 0, 1], 4),
        ("qwen3_5_moe", [1, 0, 1], 4),
        ("qwen4_exp", [1, 0, 1], 4),
    ],
)
def test_sections_that_are_less_than_what_turns_have_to_be_thirds(
    family: str, sections: list[int], code: int, tmp_path: Path, ckconv: Any
) -> None:
    """``ggml_mrope_cache_init`` of ggml repeats them: logits of [4, 6, 6] and heads of 128 are off by up to 1.4."""
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    config = json.loads((source / "config.json").read_text())
    config.get("text_config", config)["rope_parameters"]["mrope_section"] = sections
    (source / "config.json").unlink()
    (source / "config.json").write_text(json.dumps(config))

    done = ckconv("convert", source, tmp_path / "m.gguf")
    assert (done.code, f"sections, {sections}, are less than half" in done.err) == (code, code == 4), done.err


def test_limits_of_a_layer_without_experts_get_a_note(tmp_path: Path, ckconv: Any) -> None:
    """llama.cpp's ``build_ffn`` has one list for shared experts and layers without any."""
    case = next(one for one in family_cases.cases("bailing_hybrid") if one.name == "clamped")
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    config = json.loads((source / "config.json").read_text())
    said = "llama.cpp clamps layers without experts by the limits of shared ones, too (share_expert_swiglu_limit_list)"
    for limits, noted in ([0.0, 97.0, None, 96.5], False), ([7.0, 97.0], True):
        (source / "config.json").unlink()
        (source / "config.json").write_text(json.dumps(config | {"share_expert_swiglu_limit_list": limits}))
        done = ckconv("convert", source, tmp_path / "m.gguf", "--force")
        assert (done.code, said in done.out) == (0, noted), done.err


def test_a_head_that_an_openelm_does_not_compute_with_is_refused(tmp_path: Path, ckconv: Any) -> None:
    """Its class has no head but the embedding where ``share_input_output_layers`` is true; a note said otherwise."""
    case = next(family_cases.cases("openelm"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    stored = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    head = stored["transformer.token_embeddings.weight"] + np.float32(1)
    save_file(stored | {"lm_head.weight": head}, source / "model.safetensors")
    to = ("convert", source, f"{tmp_path}/mlx/", "--to", "mlx")
    done = ckconv(*to)
    assert (done.code, "share_input_output_layers says that it is" in done.err) == (4, True), done.err
    assert ckconv(*to, "--drop", "output.weight").code == 0


LOST = {
    "qwen2": ("self_attn.{}_proj.bias", "layers.*.attention.?.bias", {}),
    "cohere": ("self_attn.{}_norm.weight", "", {"use_qk_norm": True}),
}


@pytest.mark.parametrize("family", LOST)
def test_a_checkpoint_without_what_its_class_has_is_refused_where_the_engine_does_without(
    family: str, tmp_path: Path, ckconv: Any
) -> None:
    """transformers makes zeros of a bias that is not there, and ones of a norm; llama.cpp computes without."""
    lost, glob, changes = LOST[family]
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    document = json.loads((source / "config.json").read_text()) | changes
    (source / "config.json").write_text(json.dumps(document))
    path = source / "model.safetensors"
    whole, ends = load_file(path), tuple(lost.format(part) for part in "qkvo")
    save_file({name: values for name, values in whole.items() if not name.endswith(ends)}, path, {"format": "pt"})

    refused = ckconv("convert", source, tmp_path / "m.gguf")
    assert (refused.code, "no tensor for layers.{n}.attention.q" in refused.err) == (4, True), refused.err
    if not glob:
        return
    assert "hint: --drop 'layers.*.attention.q.bias' makes a model without them" in refused.err
    assert ckconv("convert", source, tmp_path / "m.gguf", "--drop", "layers.*.attention.*.bias").code == 0
    assert not [one.name for one in gguf.GGUFReader(tmp_path / "m.gguf").tensors if one.name.endswith(".bias")]
    refused = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", "5")
    assert (refused.code, "no tensor for layers.{n}.attention.q.bias" in refused.err) == (4, True), refused.err
    refused = ckconv("convert", source, f"{tmp_path}/mlx/", "--to", "mlx")
    assert (refused.code, "no tensor for layers.{n}.attention.q.bias" in refused.err) == (4, True), refused.err


NEEDED = {
    "falcon": ("input_layernorm.bias", "layers.{n}.attention_norm.bias"),
    "pangu_embedded": ("self_attn.o_proj.bias", "layers.{n}.attention.output.bias"),
    "falcon_h1": ("mamba.conv1d.bias", "layers.{n}.mixer.conv.bias"),
}


@pytest.mark.parametrize("family", NEEDED)
def test_biases_without_which_llama_cpp_loads_no_model_are_not_to_be_dropped(
    family: str, tmp_path: Path, ckconv: Any
) -> None:
    """``create_tensor`` of ``falcon.cpp`` and ``pangu-embed.cpp`` has no ``TENSOR_NOT_REQUIRED`` for them."""
    ends, pattern = NEEDED[family]
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    asked = ckconv("convert", source, tmp_path / "m.gguf", "--drop", pattern.replace("{n}", "*"))
    assert (asked.code, f"no tensor for {pattern}, which --drop leaves out" in asked.err) == (4, True), asked.err

    kept = {name: it for name, it in case.recorded["tensors"].items() if not name.endswith(ends)}
    source = family_cases.checkpoint({**case.recorded, "tensors": kept}, tmp_path / "lacking", case.tokenizer)
    refused = ckconv("convert", source, tmp_path / "m.gguf")
    assert (refused.code, f"no tensor for {pattern} in" in refused.err) == (4, True), refused.err
    assert "--drop" not in refused.err


def test_a_bias_that_one_layer_lacks_is_not_to_be_dropped_of_all(tmp_path: Path, ckconv: Any) -> None:
    """The flag would drop what was trained: the source is incomplete, and the message says where."""
    case = next(family_cases.cases("qwen2"))
    lost = "model.layers.1.self_attn.q_proj.bias"
    kept = {name: it for name, it in case.recorded["tensors"].items() if name != lost}
    layers = [n for n in range(8) if f"model.layers.{n}.self_attn.q_proj.bias" in kept]
    source = family_cases.checkpoint({**case.recorded, "tensors": kept}, tmp_path / "hf", case.tokenizer)
    others = "layer 0 has" if layers == [0] else f"layers {', '.join(map(str, layers[:-1]))} and {layers[-1]} have"
    for output in ((tmp_path / "m.gguf",), (tmp_path / "m.bump", "--bump-version", "5")):
        refused = ckconv("convert", source, *output)
        said = f"no tensor for layers.{{n}}.attention.q.bias in layer 1, which {others}: the source is incomplete"
        assert (refused.code, said in refused.err, "--drop" in refused.err) == (4, True, False), refused.err
    refused = ckconv("convert", source, tmp_path / "m.gguf", "--drop", "layers.1.attention.q.bias")
    assert (refused.code, "no tensor for layers.{n}.attention.q.bias" in refused.err) == (4, True), refused.err
    assert ckconv("convert", source, tmp_path / "m.gguf", "--drop", "layers.*.attention.q.bias").code == 0


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "glm4v", "glm_ocr"])
def test_no_hint_offers_a_text_model_that_no_class_is(family: str, tmp_path: Path, ckconv: Any) -> None:
    recorded = next(family_cases.cases(family)).recorded
    name = next(name for name in recorded["tensors"] if "visual" in name)
    source = family_cases.checkpoint(recorded, tmp_path / "hf")
    found = ckconv("convert", source, f"{tmp_path}/out/", "--to", "hf", "--drop", name)
    assert (found.code, "and config.json says all of it" in found.err, "hint:" in found.err) == (4, True, False)


@pytest.mark.parametrize(("name", "hint"), [("tied", "--engine july computes it"), ("biases", "")])
def test_an_engine_that_adds_biases_twice_is_no_way_out(name: str, hint: str, tmp_path: Path, ckconv: Any) -> None:
    recorded = next(case for case in family_cases.cases("glm4") if case.name == name).recorded
    command = ("convert", family_cases.checkpoint(recorded, tmp_path / "hf"), tmp_path / "m.bump", "--bump-version", 5)
    found = ckconv(*command)
    assert (found.code, "has no template for glm4" in found.err) == (4, True)
    assert found.err.rpartition("hint: ")[2].strip() == hint if hint else "hint:" not in found.err
    assert ckconv(*command, "--engine", "july").code == (0 if hint else 4)


@pytest.mark.parametrize("names", ["canonical", "gguf"])
def test_what_the_shape_of_a_dropped_tensor_says_is_not_said(names: str, tmp_path: Path, ckconv: Any) -> None:
    recorded = next(case for case in family_cases.cases("qwen4_exp") if case.name == "one_table").recorded
    drop = ("--drop", "model.layers.*.ple.ple_embedding.ngram_embedding.shard_0.weight")
    source = family_cases.checkpoint(recorded, tmp_path / "hf")
    found = ckconv("convert", source, f"{tmp_path}/out/", "--to", "hf", "--names", names, *drop)
    assert found.code == 0, found.err
