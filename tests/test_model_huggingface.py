"""Hugging Face and MLX names, shapes and configurations -> the canonical index, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import Array, Decoder, Raw, Tensors, as_mixtral, bf16, dequantized, quantized, save, save_gguf, stacked
from conftest import FIXTURES, Result

import ckconv as package
from ckconv.comparison.compare import diff
from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, UnsupportedError
from ckconv.families.catalog import FAMILIES
from ckconv.families.huggingface_config import huggingface_config, huggingface_family
from ckconv.families.names import names_of
from ckconv.formats.detect import open_index

Run = Callable[..., Result]
PLAIN = Decoder()
MOE = Decoder(experts=4)


def opened(folder: Path, config: dict[str, Any], tensors: Tensors | dict[str, np.ndarray], **how: Any) -> TensorIndex:
    return open_index(save(folder, config, tensors, **how))


def refused(
    folder: Path, config: dict[str, Any] | str, tensors: Tensors | dict[str, np.ndarray]
) -> InputError | UnsupportedError:
    path = save(folder, config if isinstance(config, dict) else None, tensors)
    if isinstance(config, str):
        (path / "config.json").write_text(config)
    try:
        misfit = open_index(path).misfit
    except (InputError, UnsupportedError) as error:
        return error
    assert misfit is not None
    return misfit


# names


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("format", ["hf", "mlx", "gguf"])
def test_no_two_names_that_are_written_lead_to_one_tensor(family: str, format: str) -> None:
    names = names_of(FAMILIES[family], format)
    for pattern, found in names.written.items():
        assert pattern in found.names
        assert found in names.choices.get(found.pattern, (names.stored[found.pattern],))
    for name in set(names.dropped) & set(names.stored):  # one that other layers have
        assert all(part.row.layers for part in names.stored[name].parts), name
    holds = [name for found in {id(found): found for found in names.written.values()}.values() for name in found.names]
    assert sorted(holds) == sorted(names.written)


def test_whisper_has_two_stacks_of_layers() -> None:
    names = names_of(FAMILIES["whisper"], "hf").written
    encoder = {name for name in names if name.startswith("enc.layers.{n}.")}
    assert {name.removeprefix("enc.").replace("attn", "attention") for name in encoder} < set(names)


def test_phi3_parts_are_cut_out_of_the_fused_rows(tmp_path: Path) -> None:
    plain = PLAIN.tensors()
    fused = dict(plain)
    for n in range(PLAIN.layers):
        at = f"model.layers.{n}."
        parts = [fused.pop(f"{at}self_attn.{p}_proj.weight") for p in "qkv"]
        fused[f"{at}self_attn.qkv_proj.weight"] = np.concatenate(parts)
        fused[f"{at}mlp.gate_up_proj.weight"] = np.concatenate(
            [fused.pop(f"{at}mlp.gate_proj.weight"), fused.pop(f"{at}mlp.up_proj.weight")]
        )
    one = opened(tmp_path / "fused", PLAIN.config("phi3"), fused)
    other = opened(tmp_path / "plain", PLAIN.config("phi3"), plain)

    assert one.canonical_of["model.layers.1.mlp.gate_up_proj.weight"] == (
        "layers.1.ffn.gate.weight",
        "layers.1.ffn.up.weight",
    )
    assert one.tensors["layers.0.attention.q.weight"].source == "model.layers.0.self_attn.qkv_proj.weight"
    assert diff(one, other).same


def test_a_quantized_fused_matrix_is_cut_between_rows_of_all_three_arrays(tmp_path: Path) -> None:
    tensors: Tensors = {}
    dense = dict(PLAIN.tensors())
    for n in range(PLAIN.layers):
        parts = [f"model.layers.{n}.mlp.{part}.weight" for part in ("gate_proj", "up_proj")]
        triples = [quantized(dense[part]) for part in parts]
        dense |= {part: dequantized(*triple, 4) for part, triple in zip(parts, triples, strict=True)}
        for kind, *arrays in zip(("weight", "scales", "biases"), *triples, strict=True):
            tensors[f"model.layers.{n}.mlp.gate_up_proj.{kind}"] = np.concatenate(arrays)
    mixed = {**{k: v for k, v in dense.items() if "gate_proj" not in k and "up_proj" not in k}, **tensors}

    config = PLAIN.config("phi3", quantization={"group_size": 32, "bits": 4})
    assert diff(opened(tmp_path / "mlx", config, mixed), opened(tmp_path / "hf", PLAIN.config("phi3"), dense)).same


def gpt2_tensors(prefix: str, *, turned: bool) -> dict[str, np.ndarray]:
    """A random GPT-2; ``turned`` matrices are ``[out, in]``, as mlx-lm stores them."""
    rng = np.random.default_rng(3)
    made = {"wte.weight": (24, 16), "wpe.weight": (12, 16), "ln_f.weight": (16,), "ln_f.bias": (16,)}
    for n in range(2):
        for name, shape in {
            "ln_1.weight": (16,), "ln_1.bias": (16,), "ln_2.weight": (16,), "ln_2.bias": (16,),
            "attn.c_attn.weight": (16, 48), "attn.c_attn.bias": (48,), "attn.c_proj.weight": (16, 16),
            "attn.c_proj.bias": (16,), "mlp.c_fc.weight": (16, 64), "mlp.c_fc.bias": (64,),
            "mlp.c_proj.weight": (64, 16), "mlp.c_proj.bias": (16,),
        }.items():  # fmt: skip
            made[f"h.{n}.{name}"] = shape
    found = {}
    for name, shape in made.items():
        array = rng.standard_normal(shape).astype(np.float32)
        found[prefix + name] = np.ascontiguousarray(array.T) if turned and ".c_" in name and array.ndim == 2 else array
    return found


GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 12, "vocab_size": 24}


def test_gpt2_matrices_are_turned_but_for_mlx(tmp_path: Path) -> None:
    forms = {
        "hub": opened(tmp_path / "hub", GPT2, gpt2_tensors("", turned=False)),
        "hf": opened(tmp_path / "hf", GPT2, gpt2_tensors("transformer.", turned=False)),
        "mlx": opened(tmp_path / "mlx", GPT2, gpt2_tensors("model.", turned=True), metadata={"format": "mlx"}),
    }

    assert [index.format for index in forms.values()] == ["safetensors", "safetensors", "mlx"]
    assert all(diff(forms[one], forms[other]).same for one, other in combinations(forms, 2))
    assert forms["mlx"].config is not None
    assert (forms["mlx"].config.ffn_size, forms["mlx"].config.rope_theta) == (64, None)


def test_a_matrix_that_looks_the_same_turned_is_turned_by_its_name(tmp_path: Path) -> None:
    """attn.c_proj is square: only the rule can tell that its rows are columns."""
    index = opened(tmp_path, GPT2, gpt2_tensors("", turned=False))
    assert not index.tensors["layers.0.attention.output.weight"].layout.whole_rows
    assert index.tensors["token_embedding.weight"].layout.whole_rows


# experts


@pytest.mark.parametrize(
    ("model_type", "arch", "module"),
    [("mixtral", "llama", "block_sparse_moe"), ("qwen3_moe", "qwen3moe", "mlp")],
)
def test_experts_are_the_same_one_by_one_stacked_and_in_gguf(
    tmp_path: Path, model_type: str, arch: str, module: str
) -> None:
    decoder = replace(MOE, qk_norm=model_type == "qwen3_moe", ffn=64)
    # llama.cpp renormalizes the weights of the chosen experts, whatever the architecture.
    own = {"norm_topk_prob": True} if model_type == "qwen3_moe" else {}
    plain, config = decoder.tensors(), decoder.config(model_type, **own)
    one_by_one = as_mixtral(plain) if model_type == "mixtral" else plain
    forms = {
        "hf": opened(tmp_path / "hf", config, one_by_one, shards=3),
        "mlx": opened(tmp_path / "mlx", config, stacked(plain, module), metadata={"format": "mlx"}),
        "gguf": open_index(save_gguf(tmp_path / "m.gguf", decoder, arch, permuted=arch == "llama")),
    }

    for one, other in combinations(forms, 2):
        found = diff(forms[one], forms[other])
        assert found.same, (one, other, found)
        assert found.equal == len(stacked(plain))
    experts = forms["hf"].tensors["layers.1.ffn.experts.down.weight"]
    assert (experts.shape, len(experts.extents)) == ((4, 64, 64), 4)


def test_quantized_experts_equal_their_decoded_ones(tmp_path: Path) -> None:
    plain = stacked(MOE.tensors())
    dense, packed = dict(plain), dict(plain)
    for name, array in plain.items():
        if "switch_mlp" in name or "mlp.gate." in name:
            bits = 8 if "mlp.gate." in name else 4
            module = name.removesuffix(".weight")
            triple = quantized(array, bits)
            packed |= dict(zip((f"{module}.weight", f"{module}.scales", f"{module}.biases"), triple, strict=True))
            dense[name] = dequantized(*triple, bits)
    settings: dict[str, Any] = {"group_size": 32, "bits": 4, "mode": "affine"}
    settings |= {f"model.layers.{n}.mlp.gate": {"group_size": 32, "bits": 8} for n in range(2)}
    one = opened(tmp_path / "packed", MOE.config("qwen3_moe", quantization=settings), packed)
    other = opened(tmp_path / "dense", MOE.config("qwen3_moe"), dense, metadata={"format": "mlx"})

    found = diff(one, other)
    assert found.same
    assert ("layers.0.ffn.experts.up.weight", "MLX 4-bit group 32 F32", "F32") in found.retyped
    assert ("layers.0.ffn.router.weight", "MLX 8-bit group 32 F32", "F32") in found.retyped
    assert one.tensors["layers.0.ffn.experts.up.weight"].shape == (4, 64, 64)


def test_quantized_experts_one_by_one_equal_stacked_ones(tmp_path: Path) -> None:
    one_by_one: Tensors = {}
    for name, array in MOE.tensors().items():
        if ".experts." in name:
            module = name.removesuffix(".weight")
            for kind, plane in zip(("weight", "scales", "biases"), quantized(array), strict=True):
                one_by_one[f"{module}.{kind}"] = plane
        else:
            one_by_one[name] = array
    whole = dict(stacked(MOE.tensors()))
    for name, array in stacked(MOE.tensors()).items():
        if "switch_mlp" in name:
            for kind, plane in zip(("weight", "scales", "biases"), quantized(array), strict=True):
                whole[f"{name.removesuffix('.weight')}.{kind}"] = plane
    config = MOE.config("qwen3_moe", quantization={"group_size": 32, "bits": 4})

    assert diff(opened(tmp_path / "a", config, one_by_one), opened(tmp_path / "b", config, whole)).same


def without(tensors: dict[str, np.ndarray], *names: str) -> dict[str, np.ndarray]:
    return {name: array for name, array in tensors.items() if name not in names}


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    tensors = without(MOE.tensors(), "model.layers.1.mlp.experts.2.up_proj.weight")
    error = refused(tmp_path, MOE.config("qwen3_moe"), tensors)

    assert (error.code, error.exit_code) == ("model.config", 3)
    assert error.message == (
        "layers.1.ffn.experts.up.weight: 3 of 4 experts (num_local_experts, num_experts) are there, expert 2 is missing"
    )


def test_an_expert_beyond_the_count_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, MOE.config("qwen3_moe", num_experts=3), MOE.tensors())

    assert "tensor 'model.layers.0.mlp.gate.weight' has shape [4, 64], the configuration makes it [3, 64]" in str(error)
    assert (
        "the number of experts (num_local_experts, num_experts) is 3, "
        "'model.layers.0.mlp.experts.3.gate_proj.weight' names expert 3"
    ) in str(error)


def test_a_billion_experts_take_neither_time_nor_memory(tmp_path: Path) -> None:
    start = time.monotonic()
    error = refused(tmp_path, MOE.config("qwen3_moe", num_experts=1_000_000_000), MOE.tensors())

    assert "4 of 1,000,000,000 experts (num_local_experts, num_experts) are there, expert 4 is missing" in str(error)
    assert time.monotonic() - start < 2


def test_an_expert_of_another_shape_or_type_than_its_fellows_is_named(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.1.down_proj.weight"
    other = {**MOE.tensors(), name: np.zeros((64, 32), np.float32)}
    error = refused(tmp_path / "shape", MOE.config("qwen3_moe"), other)
    assert f"tensor '{name}' is F32 [64, 32], the configuration and the other parts make it F32 [64, 64]" in str(error)

    other = {**MOE.tensors(), name: np.zeros((64, 64), np.float16)}
    error = refused(tmp_path / "type", MOE.config("qwen3_moe"), other)
    assert f"tensor '{name}' is F16 [64, 64], the configuration and the other parts make it F32 [64, 64]" in str(error)


# configurations


def read(tmp_path: Path, decoder: Decoder = PLAIN, model_type: str = "llama", **other: Any) -> Any:
    index = opened(tmp_path / f"c{len(list(tmp_path.iterdir()))}", decoder.config(model_type, **other), {
        "model.embed_tokens.weight": np.zeros((decoder.vocab, decoder.hidden), np.float32)
    })  # fmt: skip
    if index.misfit is not None:
        raise index.misfit
    assert index.config is not None
    return index.config


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": 500000.0},
        {"rope_theta": 500000},
        {"rope_theta": ..., "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
        {"rope_theta": 500000.0, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
        {"rope_theta": 500000.0, "rope_scaling": None},
        {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "default"}},
    ],
)
def test_theta_in_either_style_and_nothing_scaled(tmp_path: Path, keys: dict[str, Any]) -> None:
    config = read(tmp_path, **keys)
    assert (config.rope_theta, config.rope_scaling) == (500000.0, None)


def test_theta_is_ten_thousand_where_nothing_says_so(tmp_path: Path) -> None:
    assert read(tmp_path, rope_theta=...).rope_theta == 10000.0


LLAMA3 = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("llama3", LLAMA3),
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 64}),
        ("linear", {"factor": 2.0}),
    ],
)
def test_a_scaling_is_recorded_in_every_style(tmp_path: Path, kind: str, facts: dict[str, Any]) -> None:
    styles = (
        {"rope_scaling": {"rope_type": kind, **facts}},
        {"rope_scaling": {"type": kind, **facts}},
        {"rope_theta": ..., "rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **facts}},
    )
    for keys in styles:
        config = read(tmp_path, **keys)
        assert config.rope_theta == 10000.0
        assert config.rope_scaling["rope_type"] == kind
        assert config.rope_scaling.items() >= facts.items()


def test_gemma3_has_two_bases_and_that_of_full_attention_is_the_models(tmp_path: Path) -> None:
    decoder = Decoder(layers=1)
    parameters = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
    }
    config = read(tmp_path, decoder, "gemma3_text", rope_theta=..., rope_parameters=parameters, sliding_window=512)

    assert (config.family, config.rope_theta, config.sliding_window) == ("gemma3", 1000000.0, 512)
    assert config.rope_scaling == {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0}


def test_part_of_a_head_is_turned_by_the_class_that_reads_it(tmp_path: Path) -> None:
    phi3 = {"model_type": "phi3"}
    nested = {"rope_type": "default", "partial_rotary_factor": 0.75}
    assert read(tmp_path, **phi3).rotary_dim == 16
    assert read(tmp_path, **phi3, partial_rotary_factor=0.5).rotary_dim == 8
    assert read(tmp_path, **phi3, partial_rotary_factor=1.0).rotary_dim == 16
    assert read(tmp_path, **phi3, head_dim=..., partial_rotary_factor=0.25).rotary_dim == 4
    assert read(tmp_path, **phi3, rope_parameters=nested).rotary_dim == 12
    assert read(tmp_path, partial_rotary_factor=0.5).rotary_dim == 16, "LlamaRotaryEmbedding turns all of it"
    both = read(tmp_path, **phi3, partial_rotary_factor=0.5, rope_parameters=nested)
    assert both.rotary_dim == 12, "convert_rope_params_to_dict of Phi3Config: the table first"
    assert both.overruled == ("partial_rotary_factor, because rope_parameters.partial_rotary_factor is there",)
    for factor in (0, 2):
        with pytest.raises(InputError, match=f"partial_rotary_factor must be above 0 and at most 1, got {factor}"):
            read(tmp_path, **phi3, partial_rotary_factor=factor)
        assert read(tmp_path, partial_rotary_factor=factor).rotary_dim == 16, "a llama does not read it"
    with pytest.raises(InputError, match=r"partial_rotary_factor is 0.45, which turns 7 of 16"):
        read(tmp_path, **phi3, partial_rotary_factor=0.45)


SLIDE, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("model_type", "keys", "window"),
    [
        ("mistral", {"sliding_window": 64}, 64),
        ("mistral", {}, 4096),
        ("mistral", {"sliding_window": None}, None),
        ("llama", {"sliding_window": 64}, None),
        ("llama", {"sliding_window": 64, "layer_types": [SLIDE, SLIDE]}, None),
        ("qwen2", {"sliding_window": 64}, None),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True}, None),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 2}, None),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}, 64),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "layer_types": [FULL, SLIDE]}, 64),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "layer_types": [FULL, FULL]}, None),
        ("qwen2", {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, None),
    ],
)
def test_a_window_is_that_of_the_layers_which_slide(
    tmp_path: Path, model_type: str, keys: dict[str, Any], window: int | None
) -> None:
    assert read(tmp_path, model_type=model_type, **keys).sliding_window == window


@pytest.mark.parametrize(
    ("model_type", "flag", "tied"),
    [
        ("llama", True, True),
        ("llama", False, False),
        ("llama", ..., False),
        ("gemma3_text", ..., True),
        ("gemma3_text", False, False),
        ("qwen3", None, False),
    ],
)
def test_the_flag_that_ties_the_head_is_the_classs_own_where_it_is_not_there(
    tmp_path: Path, model_type: str, flag: Any, tied: bool | None
) -> None:
    assert read(tmp_path, model_type=model_type, tie_word_embeddings=flag).tied is tied


def test_keys_that_change_the_computation_are_kept(tmp_path: Path) -> None:
    assert read(tmp_path, hidden_act="silu", attn_logit_softcapping=None, logit_scale=1.0).modifiers == ()
    assert read(tmp_path, hidden_act="gelu", pruned_heads={}, residual_multiplier=0.5).modifiers == (
        "hidden_act = 'gelu'",
    ), "a llama has no residual_multiplier"


def test_a_model_of_several_modalities_is_read_by_its_text_part(tmp_path: Path) -> None:
    decoder = Decoder(layers=1, qk_norm=True)
    plain = {f"language_model.{name}": array for name, array in decoder.tensors().items()}
    for norm in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
        plain[f"language_model.model.layers.0.{norm}.weight"] = np.ones(64, np.float32)
    vision: Tensors = {"vision_tower.encoder.layers.0.mlp.fc1.weight": np.zeros((4, 4), np.float32)}
    inner = decoder.config("gemma3_text", tie_word_embeddings=...)
    config = {"model_type": "gemma3", "hidden_size": 96, "text_config": inner, "tie_word_embeddings": False}
    index = opened(tmp_path, config, {**plain, **vision})

    assert index.config is not None
    assert (index.config.family, index.config.hidden_size, index.config.tied) == ("gemma3", 64, False)
    assert [tensor.name for tensor in index.unknown] == list(vision)
    assert index.canonical_of["language_model.model.layers.0.post_attention_layernorm.weight"] == (
        "layers.0.post_attention_norm.weight",
    )
    assert "output.weight" in index.tensors


def test_dropped_tensors_are_named_with_their_rule(tmp_path: Path) -> None:
    extra = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32) for n in range(2)}
    index = opened(tmp_path, PLAIN.config(), {**PLAIN.tensors(), **extra})

    assert {item.stored.name for item in index.dropped} == set(extra)
    assert {item.reason for item in index.dropped} == {"rotary frequencies, which follow from the configuration"}
    assert not index.unknown


def test_unknown_tensors_are_listed_and_described(tmp_path: Path) -> None:
    extra: Tensors = {
        "model.layers.0.self_attn.sinks": np.ones(4, np.float32),
        "model.layers.01.input_layernorm.weight": np.ones(64, np.float32),
        "score.step": np.array(7, np.int64),
    }
    index = opened(tmp_path, PLAIN.config(), {**PLAIN.tensors(), **extra})

    assert [tensor.name for tensor in index.unknown] == list(extra), "layer 01 is not layer 1"
    assert not set(extra) & set(index.canonical_of)


@pytest.mark.parametrize(
    "config", [{}, {"model_type": "bitnet", "num_hidden_layers": "many"}, {"model_type": ["x"]}, None]
)
def test_what_has_no_rules_still_opens(tmp_path: Path, ckconv: Run, config: dict[str, Any] | None) -> None:
    path = save(tmp_path / "m", config, {"a.weight": np.ones((2, 3), np.float32), "b": np.array(1.0, np.float32)})
    index = open_index(path)

    assert (index.config, index.tensors) == (None, {})
    assert [tensor.name for tensor in index.unknown] == ["a.weight", "b"]
    found = ckconv("inspect", "--hash", path)
    assert found.code == 0
    assert "tensor\ta.weight\t-\tF32\t2x3\t24\t" in found.out
    assert "tensor\tb\t-\tF32\t\t4\t" in found.out


# what is refused


def test_two_stored_names_for_one_tensor_are_refused(tmp_path: Path) -> None:
    both = gpt2_tensors("", turned=False) | {"transformer.wte.weight": np.zeros((24, 16), np.float32)}
    error = refused(tmp_path, GPT2, both)

    assert (error.code, error.exit_code, error.path) == ("model.config", 3, str(tmp_path))
    assert error.message == "'wte.weight' and 'transformer.wte.weight' are both token_embedding.weight"


def test_experts_one_by_one_and_stacked_at_once_are_refused(tmp_path: Path) -> None:
    source = save(tmp_path / "m", MOE.config("qwen3_moe"), {**MOE.tensors(), **stacked(MOE.tensors())})
    with pytest.raises(UnsupportedError, match="switch_mlp"):
        package.convert(source, tmp_path / "m.gguf")


def test_shapes_that_contradict_the_configuration_are_listed_up_to_eleven(tmp_path: Path) -> None:
    decoder = Decoder(layers=4)
    error = refused(tmp_path, decoder.config(intermediate_size=80), decoder.tensors())

    assert (error.code, error.exit_code) == ("model.config", 3)
    assert error.tensor == "model.layers.0.mlp.gate_proj.weight"
    assert error.message == (
        "tensor 'model.layers.0.mlp.gate_proj.weight' has shape [96, 64], the configuration makes it [80, 64] "
        "(intermediate_size, hidden_size, model_type)"
    )
    assert len(error.details) == 11
    assert "'model.layers.0.mlp.down_proj.weight' has shape [64, 96], the configuration makes it [64, 80]" in str(error)
    assert error.details[-1] == "... and 1 more"


def test_a_layer_beyond_the_count_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, PLAIN.config(num_hidden_layers=1), PLAIN.tensors())

    assert error.message == (
        "the number of layers (num_hidden_layers) is 1, tensors name layer 1 ('model.layers.1.input_layernorm.weight')"
    )


WHISPER = {"model_type": "whisper", "decoder_layers": 1, "d_model": 8, "decoder_attention_heads": 2}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PLAIN.config(num_hidden_layers=10**12), "num_hidden_layers is 1,000,000,000,000, outside 0 to 65,536"),
        (PLAIN.config(num_hidden_layers=-1), "num_hidden_layers is -1, outside 0 to 65,536"),
        (PLAIN.config(num_hidden_layers=0), "num_hidden_layers is 0"),
        (PLAIN.config(num_hidden_layers=...), "num_hidden_layers is missing"),
        (PLAIN.config(hidden_size="64"), "hidden_size must be a whole number, got '64'"),
        (PLAIN.config(hidden_size=64.5), "hidden_size must be a whole number, got 64.5"),
        (PLAIN.config(hidden_size=True), "hidden_size must be a whole number, got True"),
        (PLAIN.config(num_attention_heads=0), "num_attention_heads is 0"),
        (PLAIN.config(num_key_value_heads=3), "num_attention_heads is 4, not a multiple of num_key_value_heads, 3"),
        (PLAIN.config(num_attention_heads=6, head_dim=...), "hidden_size is 64, not a multiple of num_attention"),
        (PLAIN.config(vocab_size=41), "vocab_size is 41, the embedding has 40 rows"),
        (PLAIN.config(vocab_size=0), "vocab_size is 0, the embedding has 40 rows"),
        (PLAIN.config(rms_norm_eps=[1]), "rms_norm_eps must be a finite number, got [1]"),
        (PLAIN.config(rope_theta=-1.0), "rope_theta must be 0 or more, got -1.0"),
        (PLAIN.config(rope_theta=..., rope_parameters={"rope_theta": -5}), "rope_parameters.rope_theta must be"),
        (PLAIN.config(rope_theta=..., rope_parameters={"rope_theta": "x"}), "rope_parameters.rope_theta must be"),
        (PLAIN.config(rope_parameters=[1]), "rope_parameters must be an object, got list"),
        ({**WHISPER, "encoder_layers": "two"}, "encoder_layers must be a whole number, got 'two'"),
        ({**WHISPER, "encoder_layers": 10**9}, "encoder_layers is 1,000,000,000, outside 0 to 65,536"),
    ],
)  # fmt: skip
def test_absurd_numbers_are_refused_with_their_key(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    error = refused(tmp_path, config, PLAIN.tensors())

    assert (error.code, error.exit_code, error.path) == ("model.config", 3, str(tmp_path / "config.json"))
    assert message in error.message


@pytest.mark.parametrize("number", ["9" * 400, "1e999", "NaN"])
def test_numbers_that_json_or_python_cannot_hold_are_refused(tmp_path: Path, number: str) -> None:
    text = json.dumps(PLAIN.config(rope_theta="HERE")).replace('"HERE"', number)
    assert refused(tmp_path, text, PLAIN.tensors()).code == "model.config"


def module(name: str, **parts: Array) -> Tensors:
    return {f"{name}.{part}".replace("__", "."): array for part, array in parts.items()}


ONES, BYTES = np.ones((8, 8), np.float32), np.ones((8, 8), np.uint8)
WORDS = np.ones((8, 8), np.int32)
Q = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("parts", "what", "count"),
    [
        (module(Q, qweight=ONES, qzeros=WORDS, scales=ONES, g_idx=WORDS), "GPTQ or AWQ", 2),
        (module(Q, weight=BYTES, weight__absmax=ONES, weight__quant_map=ONES, weight__nested_absmax=ONES),
         "bitsandbytes", 3),
        (module(Q, weight=BYTES, SCB=ONES), "bitsandbytes", 1),
        (module(Q, weight=Raw("F8_E5M2", (8, 8), bytes(64)), weight_scale_inv=ONES), "block-scaled FP8", 1),
        (module(Q, weight=BYTES, weight_scale=ONES), "FP8 or compressed-tensors", 1),
        (module(Q, weight=BYTES, weight_scale=ONES[0, :1]), "FP8 or compressed-tensors", 1),
        (module(Q, weight_packed=WORDS, weight_shape=WORDS), "compressed-tensors", 1),
        (module(Q, weight___data=BYTES, other=ONES), "a quanto format", 1),
        (module(Q, weight=BYTES[:, :1]),
         f"4-bit codes of bitsandbytes without absmax and quant_state ({Q}.weight is U8 [8, 1])", 1),
        (module(Q, weight=WORDS), f"codes without what decodes them ({Q}.weight is I32 [8, 8])", 1),
    ],
)  # fmt: skip
def test_foreign_quantizers_are_named_with_their_count(tmp_path: Path, parts: Tensors, what: str, count: int) -> None:
    source = save(tmp_path / "hf", PLAIN.config(), {**PLAIN.tensors(), **parts})
    index = open_index(source)

    assert index.quantizer == f"{count} tensor{'s' if count > 1 else ''} of {what}"
    assert (index.config, dict(index.tensors)) == (None, {})


def test_a_quantizer_is_known_by_its_own_word_where_the_numbers_are_no_floats(tmp_path: Path) -> None:
    config = PLAIN.config(quantization_config={"quant_method": "spqr"})
    assert open_index(save(tmp_path / "plain", config, PLAIN.tensors())).config is not None, "quantized when loaded"

    packed = {**PLAIN.tensors(), f"{Q}.dense_weights": WORDS}
    assert open_index(save(tmp_path / "packed", config, packed)).quantizer == (
        "1 tensor of quantized numbers (quant_method 'spqr')"
    )


@pytest.mark.parametrize("model_type", ["llama", "unheard-of"])
def test_what_another_quantizer_wrote_is_copied_and_compared_and_not_converted(
    tmp_path: Path, ckconv, model_type: str
) -> None:
    parts = module(Q, weight__absmax=ONES, weight__quant_map=ONES)
    config = PLAIN.config(model_type=model_type, quantization_config={"quant_method": "bitsandbytes"})
    source = save(tmp_path / "hf", config, {**PLAIN.tensors(), **parts})
    out = tmp_path / "out"

    assert "2 tensors of bitsandbytes (quant_method 'bitsandbytes')" in ckconv("inspect", source, "--hash").out
    assert ckconv("convert", source, f"{out}/", "--to", "safetensors", "--max-shard-size", "40KB").code == 0
    assert len(list(out.glob("*.safetensors"))) > 1
    assert ckconv("verify", out, source).code == ckconv("diff", out, source).code == 0
    for target, *flags in (("gguf",), ("mlx",), ("bump",), ("safetensors", "--dequantize")):
        result = ckconv("convert", source, f"{tmp_path}/{target}/", "--to", target, *flags)
        assert (result.code, "2 tensors of bitsandbytes" in result.err) == (4, True)
        without = " without --dequantize" if flags else ""
        assert f"--to safetensors{without} copies this one as it is" in result.err.replace(" DST/", "")
        assert not (tmp_path / target).exists()


def test_bfloat16_values_are_those_of_float32_cut_in_half(tmp_path: Path) -> None:
    whole = {name: np.ascontiguousarray(a.view(np.uint32) >> 16 << 16).view(np.float32) for name, a in
             PLAIN.tensors().items()}  # fmt: skip
    halves = {name: bf16(array) for name, array in whole.items()}
    found = diff(opened(tmp_path / "a", PLAIN.config(), whole), opened(tmp_path / "b", PLAIN.config(), halves))

    assert found.same
    assert len(found.retyped) == found.equal == 21


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_scaling": "linear"}, "rope_scaling must be an object, got str"),
        ({"rope_scaling": [2.0]}, "rope_scaling must be an object, got list"),
        ({"partial_rotary_factor": "half"}, "partial_rotary_factor must be a number above 0 and at most 1, got 'half'"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings must be true or false, got 'false'"),
        ({"tie_word_embeddings": 0}, "tie_word_embeddings must be true or false, got 0"),
        ({"rope_theta": 0}, "rope_theta is 0"),
    ],
)
def test_what_is_not_understood_is_not_ignored(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, **keys)
    assert (caught.value.code, message in str(caught.value)) == ("model.config", True)


def test_a_factor_without_a_type_scales_nothing(tmp_path: Path) -> None:
    """``standardize_rope_params`` of transformers 5 takes the type for ``default``; so does ``initialize_rope``."""
    assert read(tmp_path, rope_scaling={"factor": 2.0}).rope_scaling is None


def test_gemma3_has_modifiers_and_parameters_of_its_own(tmp_path: Path) -> None:
    decoder = Decoder(layers=1)
    plain = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": decoder.head_dim}
    config = read(tmp_path, decoder, "gemma3_text", **plain)
    assert (config.modifiers, config.final_cap, config.query_scalar) == ((), 0, decoder.head_dim)
    other = {"final_logit_softcapping": 30.0, "hidden_activation": "silu", "query_pre_attn_scalar": 168}
    config = read(tmp_path, decoder, "gemma3_text", **other)
    assert (config.modifiers, config.final_cap, config.query_scalar) == (("hidden_activation = 'silu'",), 30, 168)


def test_a_gemma3_that_names_no_scalar_of_attention_has_that_of_its_class(tmp_path: Path) -> None:
    assert read(tmp_path, Decoder(layers=1), "gemma3_text", query_pre_attn_scalar=...).query_scalar == 256


#: What a configuration may leave out -> what the class of transformers 4.57 and 5.18 has then.
LEFT_OUT = {
    "llama": {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    "mistral": {"num_key_value_heads": 8, "max_position_embeddings": 131072},
    "mixtral": {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2": {"rms_norm_eps": 1e-6, "num_key_value_heads": 32, "max_position_embeddings": 32768},
    "qwen3": {"head_dim": 128, "num_key_value_heads": 32},
    "qwen3_moe": {"num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8},
    "gemma3_text": {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072,
    },
    "phi3": {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
}  # fmt: skip


@pytest.mark.parametrize("model_type", LEFT_OUT)
def test_what_a_configuration_leaves_out_is_what_its_class_takes(tmp_path: Path, model_type: str) -> None:
    left_out = LEFT_OUT[model_type]
    decoder = Decoder(heads=32, kv_heads=32, experts=2)
    silent = read(tmp_path, decoder, model_type, **dict.fromkeys(left_out, ...))
    assert silent == read(tmp_path, decoder, model_type, **left_out)


def test_null_is_not_left_out(tmp_path: Path) -> None:
    config = read(tmp_path, PLAIN, "mistral", num_key_value_heads=None, sliding_window=None)
    assert (config.num_kv_heads, config.sliding_window) == (PLAIN.heads, None)


USUAL_LAYERS = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("keys", "local", "layers"),
    [
        ({}, 10_000, USUAL_LAYERS),
        ({"rope_local_base_freq": 5000.0, "_sliding_window_pattern": 2}, 5000, USUAL_LAYERS),
        ({"sliding_window_pattern": 2}, 10_000, ["sliding_attention", "full_attention"] * 3 + ["sliding_attention"]),
        ({"sliding_window_pattern": 2, "layer_types": USUAL_LAYERS[::-1]}, 10_000, USUAL_LAYERS[::-1]),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 7.0}, "full_attention": {}}}, 7, USUAL_LAYERS),
    ],
)
def test_gemma3s_local_base_and_layers(tmp_path: Path, keys: dict[str, Any], local: float, layers: list[str]) -> None:
    config = read(tmp_path, Decoder(layers=7), "gemma3_text", **keys)
    assert (config.modifiers, config.local_rope_theta, config.layer_types) == ((), local, tuple(layers))


@pytest.mark.parametrize(
    "keys",
    [{"layer_types": USUAL_LAYERS[1:]}, {"layer_types": ["chunked_attention"] * 7}, {"sliding_window_pattern": 0}],
)
def test_layers_that_transformers_does_not_take(tmp_path: Path, keys: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, Decoder(layers=7), "gemma3_text", **keys)
    assert caught.value.code == "model.config"


def test_gpt2_and_whisper_have_modifiers_of_their_own() -> None:
    for name, changed in (
        ("hf/gpt2-hub-f32", {"activation_function": "relu", "scale_attn_weights": False}),
        ("hf/whisper-f32", {"activation_function": "relu", "scale_embedding": True}),
    ):
        root = FIXTURES / name
        config = json.loads((root / "config.json").read_text())
        family = huggingface_family(config)
        assert family is not None
        assert huggingface_config(config, family, (), root).modifiers == ()
        found = huggingface_config({**config, **changed}, family, (), root).modifiers
        assert set(found) == {f"{key} = {value!r}" for key, value in changed.items()}
