"""What the keys of a GGUF make of a configuration: the tables of keys, and what is carried, refused, or left out."""

from __future__ import annotations

import json
import math
import struct
import tomllib
from pathlib import Path
from typing import Any

import family_cases
import gguf
import numpy as np
import pytest
from checkpoints import Decoder, save, save_gguf
from conftest import FIXTURES
from family_cases import cases, checkpoint
from models import Model

import ckconv
from ckconv import Options
from ckconv.core.config import ModelConfig, rope_factors, rope_scaling_of
from ckconv.errors import UnsupportedError
from ckconv.families.catalog import FAMILIES
from ckconv.families.expressions import llama3_factors, llama3_numbers
from ckconv.families.keys import Kind
from ckconv.formats.gguf.entries import engine_reasons
from ckconv.verification.content import NEEDED

#: What scripts/record_gguf_keys.py found.
RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "gguf_keys.json").read_text())

#: Family -> what each key of its GGUFs is.
KEYS = {name: family.metadata.keys for name, family in FAMILIES.items() if family.gguf}

SLIDING, FULL = "sliding_attention", "full_attention"


def to_hf(source: Path, out: Path, **options: Any) -> dict[str, Any]:
    """The ``config.json`` of what a source becomes."""
    ckconv.convert(source, f"{out}/", to="safetensors", options=Options(**options))
    return json.loads((out / "config.json").read_text())


def gemma(root: Path, **changes: Any) -> Path:
    """Gemma 3's checkpoint with another configuration; ``...`` removes a key."""
    document = {**json.loads((FIXTURES / "hf/gemma3-text-bf16/config.json").read_text()), **changes}
    root.mkdir()
    (root / "model.safetensors").symlink_to(FIXTURES / "hf/gemma3-text-bf16/model.safetensors")
    (root / "model.safetensors").unlink()
    (root / "model.safetensors").write_bytes((FIXTURES / "hf/gemma3-text-bf16/model.safetensors").read_bytes())
    (root / "config.json").write_text(json.dumps({k: v for k, v in document.items() if v is not ...}))
    return root


class Fused(Model):
    """Without the matrices that phi 3 stores as one."""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        parts = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "ffn_gate.weight")
        return {name: shape for name, shape in super().tensors().items() if not name.endswith(parts)}


def phi3(path: Path, **keys: object) -> Path:
    fused = {
        f"blk.{n}.{name}.weight": (rows, 64) for n in (0, 1) for name, rows in (("attn_qkv", 128), ("ffn_up", 256))
    }
    return Fused(arch="phi3", extra_keys=keys, extra_tensors=fused).write(path)


def value(path: Path, key: str) -> Any:
    field = gguf.GGUFReader(path).fields.get(key)
    return field.contents() if field else None


# The tables


#: Keys that are written as llama.cpp's converter does, or for a relative, and that its loader does not ask for.
UNREAD = {
    "deepseek": {"expert_gating_func"},
    "deepseek_v32": {"attention.temperature_length"},
    "deepseek_v4": {"rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"},
    "mistral4": {"rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"},
    "dspark": {"has_confidence_head", "sample_from_anchor"},
    "eagle3": {"rope.dimension_sections"},
    "ernie4_5_moe": {"expert_shared_count"},
    "falcon": {"tensor_data_layout"},
    "gemma3n": {
        "activation_sparsity_scale", "altup.active_idx", "altup.num_inputs", "attention.shared_kv_layers",
        "embedding_length_per_layer_input", "final_logit_softcapping",
    },
    "gemma4_dspark": {"has_confidence_head", "sample_from_anchor"},
    "gemma4_assistant": {"embedding_length_per_layer_input", "final_logit_softcapping"},
    "glm_moe_dsa": {"attention.temperature_length"},
    "gpt_oss": {"rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"},
    "granite4": {"ssm.conv_kernel", "ssm.group_count", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"},
    "granitemoe": {"deepstack_mapping"},
    "granitemoeshared": {"deepstack_mapping"},
    "hunyuan_v1_moe": {"expert_shared_count"},
    "mimo_v2_flash": {"expert_gating_func"},
    "modernbert": {"attention.layer_norm_rms_epsilon"},
    "modernbert_classifier": {"attention.layer_norm_rms_epsilon"},
    "nemotron": {"attention.layer_norm_rms_epsilon"},
    "orion": {"tensor_data_layout"},
    "qwen": {"attention.layer_norm_epsilon"},
    "qwen2_5_omni": {"attention.layer_norm_rms_epsilon"},
    "qwen2_5_vl": {"attention.layer_norm_rms_epsilon"},
    "qwen2_vl": {"attention.layer_norm_rms_epsilon"},
    "stablelm": {"use_parallel_residual"},
    "step3p5": {"leading_dense_block_count", "moe_every_n_layers"},
    "t5": {"attention.layer_norm_epsilon"},
    "t5_encoder": {"attention.layer_norm_epsilon"},
    "umt5_encoder": {"attention.layer_norm_epsilon"},
    "xverse": {"tensor_data_layout"},
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_the_keys_that_llama_cpp_reads_are_those_of_the_table(name: str) -> None:
    architecture, rows = FAMILIES[name].gguf, FAMILIES[name].tensors.values()
    tensors = {row.key.partition(".")[2] for row in rows if row.key.startswith(f"{architecture}.")}
    assert {*KEYS[name], *tensors} - UNREAD.get(name, set()) == set(RECORDED["read"][architecture])


@pytest.mark.parametrize("name", KEYS)
def test_a_modifier_has_a_neutral_value(name: str) -> None:
    for key in KEYS[name].values():
        assert (key.kind is Kind.MODIFIER) == bool(key.neutral or key.same_as)
        assert not key.same_as or key.same_as.names <= FAMILIES[name].parameters.keys()


#: Architectures whose loader does without ``expert_gating_func``, and whose graph stops then (``build_moe_ffn``).
STOPS = {"dots1", "minimax-m2", "smallthinker"}


def test_keys_that_llama_cpp_does_not_load_without_are_those_of_the_table() -> None:
    table = tomllib.loads(NEEDED.read_text())["llama_cpp"]
    for architecture, keys in RECORDED["read"].items():
        said = {
            key for key in (*table["always"], *table["everywhere"]) if architecture not in table["but"].get(key, ())
        }
        said |= {key for key, architectures in table["only"].items() if architecture in architectures}
        wanted = {key for key, kind in keys.items() if kind == "required"}
        wanted |= {"expert_gating_func"} if architecture in STOPS else set()
        assert said & keys.keys() == wanted, architecture


def test_names_are_those_of_the_gguf_package_and_of_llama_cpp() -> None:
    known = {
        text.removeprefix("{arch}.")
        for group in vars(gguf.Keys).values()
        if isinstance(group, type)
        for text in vars(group).values()
        if isinstance(text, str) and text.startswith("{arch}.")
    }
    # The package has no names of some keys of llama-arch.cpp, and neither has these two of convert_hf_to_gguf.py.
    known |= {*RECORDED["names"], "has_confidence_head", "sample_from_anchor"}
    assert {name for table in KEYS.values() for name in table} <= known


# Modifiers, and keys that nobody reads


@pytest.mark.parametrize(
    ("model", "key", "changed"),
    [
        (Model(), "nextn_predict_layers", 1),
        (Model(), "expert_group_count", 2),
        (Model(), "pooling_type", 4),
        (Model(), "rope.scaling.attn_factor", 2.0),
        (Model(), "rope.scaling.attn_factor", 0.0),
        (Model(), "rope.scaling.type", "longrope"),
        (Model(), "attention.value_length", 8),
        (Model(arch="gemma3", qk_norm=True, post_norms=True), "attention.key_length_swa", 8),
        (Model(arch="granite", extra_keys={"granite.logit_scale": 8.0}), "rope.scaling.finetuned", False),
    ],
)
def test_a_key_that_changes_the_computation_is_refused_by_its_name(
    model: Model, key: str, changed: object, tmp_path: Path
) -> None:
    name = f"{model.arch}.{key}"
    model.extra_keys[name] = changed
    source = model.write(tmp_path / "m.gguf")
    engine = FAMILIES[model.arch].engines["bump5"]
    for target in ("safetensors", "mlx", "bump"):
        with pytest.raises(UnsupportedError) as info:
            ckconv.convert(source, f"{tmp_path}/out/", to=target)
        said = f"{info.value.message} {info.value.details}"
        # Of a family that the engine has nothing for, that is the reason, and no key is another one.
        assert engine.why in said if target == "bump" and engine.absent else name in said
    ckconv.convert(source, tmp_path / "copy.gguf")
    assert value(tmp_path / "copy.gguf", name) == pytest.approx(changed)


def test_what_a_library_has_no_word_for_is_named_by_the_key_of_the_gguf(tmp_path: Path) -> None:
    source = Model(extra_keys={"llama.attention.causal": False}).write(tmp_path / "m.gguf")

    with pytest.raises(UnsupportedError, match=r"llama\.attention\.causal = False changes the computation; mlx-lm"):
        ckconv.convert(source, tmp_path / "out", to="mlx")


@pytest.mark.parametrize(
    ("key", "neutral"),
    [
        ("attention.causal", True),
        ("nextn_predict_layers", 0),
        ("rope.scaling.attn_factor", 1.0),
        ("attention.value_length", 16),
        ("pooling_type", 3),
        ("rope.scaling.finetuned", True),
        ("expert_group_used_count", 1),
    ],
)
def test_a_key_that_changes_nothing_says_nothing(key: str, neutral: object, tmp_path: Path) -> None:
    source = Model(extra_keys={f"llama.{key}": neutral}).write(tmp_path / "m.gguf")
    report = ckconv.convert(source, f"{tmp_path}/out/", to="safetensors")
    assert not [note for note in report.plan.notes if "llama.cpp does not read" in note]


def test_keys_that_llama_cpp_does_not_read_are_left_out_with_one_note(tmp_path: Path) -> None:
    keys = {"llama.attn_logit_softcapping": 30.0, "llama.attention.sliding_window": 16, "llama.of_tomorrow": "x"}
    source = Model(extra_keys=dict(keys)).write(tmp_path / "m.gguf")
    for target in ("safetensors", "mlx", "bump"):
        report = ckconv.convert(source, f"{tmp_path}/{target}/", to=target)
        notes = [note for note in report.plan.notes if "llama.cpp does not read" in note]
        assert notes == [f"left out, as llama.cpp does not read them in a llama: {', '.join(keys)}"]


@pytest.mark.parametrize(
    ("arch", "context", "written"), [("llama", 40, None), ("qwen2", 40, None), ("phi3", 40, None), ("llama", 16, 16)]
)
def test_a_window_that_llama_cpp_does_not_have_is_not_written(
    arch: str, context: int, written: int | None, tmp_path: Path
) -> None:
    keys: dict[str, object] = {f"{arch}.attention.sliding_window": 16}
    fused = {
        f"blk.{n}.{name}.weight": (rows, 64) for n in (0, 1) for name, rows in (("attn_qkv", 128), ("ffn_up", 256))
    }
    model = Model(arch=arch, context=context, extra_keys=keys, qkv_bias=arch == "qwen2")
    if arch == "phi3":
        model = Fused(arch=arch, context=context, extra_keys=keys, extra_tensors=fused)
    assert to_hf(model.write(tmp_path / "m.gguf"), tmp_path / "out")["sliding_window"] == written


# The scaling of RoPE


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"../scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"factor": 4.0, "../scale_linear": 2.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"type": "none", "factor": 4.0}, None),
        ({"type": "yarn"}, None),
        ({"type": "linear", "factor": 1.0}, None),
        ({"factor": 0.0}, None),
        (
            {"type": "yarn", "factor": 4.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40},
        ),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 10},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10},
        ),
    ],
)
def test_the_scaling_of_rope_is_said_as_llama_cpp_reads_it(
    keys: dict[str, object], scaling: dict[str, Any] | None, tmp_path: Path
) -> None:
    named = {f"llama.rope.scaling.{key}".replace("scaling.../", ""): item for key, item in keys.items()}
    source = Model(extra_keys=named).write(tmp_path / "m.gguf")

    document = to_hf(source, tmp_path / "out")

    assert document["rope_scaling"] == scaling
    assert document["rope_parameters"] == {"rope_theta": 10000.0, **(scaling or {"rope_type": "default"})}
    assert ckconv.verify(tmp_path / "out", source).compared


def test_yarn_goes_there_and_back(tmp_path: Path) -> None:
    keys = {"type": "yarn", "factor": 4.0, "original_context_length": 10}
    source = Model(extra_keys={f"llama.rope.scaling.{key}": item for key, item in keys.items()})
    to_hf(source.write(tmp_path / "m.gguf"), tmp_path / "out")
    ckconv.convert(tmp_path / "out", tmp_path / "back.gguf")

    assert {key: value(tmp_path / "back.gguf", f"llama.rope.scaling.{key}") for key in keys} == keys


def test_another_context_does_not_change_what_yarn_starts_from(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0}
    config = Decoder().config(rope_scaling=scaling)
    source = save(tmp_path / "hf", config, Decoder().tensors())
    original = config["max_position_embeddings"]

    ckconv.convert(source, tmp_path / "a.gguf", options=Options(context=32))
    ckconv.convert(source, tmp_path / "b.gguf")
    ckconv.convert(tmp_path / "b.gguf", tmp_path / "c.gguf", options=Options(context=32))
    bare = Model(extra_keys={f"llama.rope.scaling.{k}": v for k, v in {"type": "yarn", "factor": 4.0}.items()})
    ckconv.convert(bare.write(tmp_path / "d.gguf"), tmp_path / "e.gguf", options=Options(context=32))

    for name, expected in (("a", original), ("c", original), ("e", 40)):
        path = tmp_path / f"{name}.gguf"
        assert value(path, "llama.context_length") == 32
        assert value(path, "llama.rope.scaling.original_context_length") == expected


@pytest.mark.parametrize(("family", "written"), [("llama", False), ("qwen2", False), ("phi3", True)])
def test_a_part_of_a_head_is_turned_where_llama_cpp_does_that(family: str, written: bool) -> None:
    """llama.cpp: "invalid n_rot: 8, expected 16" for a llama."""
    config = ModelConfig(family, family, 2, 64, 96, 4, 2, 16, 40, 128, 1e-5, 10_000.0, 8)
    reasons = [reason.text for reason in engine_reasons(config, 128, rope_dropped=False)]
    assert reasons == ([] if written else ["RoPE rotates 8 of 16 elements of a head; llama.cpp rotates all"])


# Llama 3's factors


@pytest.mark.parametrize("context", [64, 100, 1024, 4096, 8192, 131072])
@pytest.mark.parametrize(("theta", "dims"), [(10_000.0, 16), (500_000.0, 64), (500_000.0, 128), (1_000_000.0, 128)])
@pytest.mark.parametrize("factor", [2.0, 8.0, 32.0])
def test_llama_3s_numbers_are_found_for_any_base_and_any_context(
    context: int, theta: float, dims: int, factor: float
) -> None:
    factors = rope_factors(theta, dims, factor, context=context)
    found = rope_scaling_of(factors, theta, dims)

    assert found is not None
    if found.get("rope_type") == "llama3":
        numbers = {"low": found["low_freq_factor"], "high": found["high_freq_factor"]}
        again = rope_factors(theta, dims, found["factor"], **numbers, context=found["original_max_position_embeddings"])
        np.testing.assert_allclose(again, factors, rtol=1e-6)
    else:  # no frequency, or each, is as slow as that
        assert (factors == factors[0]).all()


@pytest.mark.parametrize(("low", "high"), [(1.0, 2.0), (2.0, 8.0), (0.5, 4.0), (1.0, 32.0)])
def test_other_constants_are_found_from_the_line_through_the_factors(low: float, high: float) -> None:
    factors = rope_factors(500_000.0, 128, 8.0, low=low, high=high, context=4096)
    found = rope_scaling_of(factors, 500_000.0, 128)

    assert found is not None
    numbers = {"low": found["low_freq_factor"], "high": found["high_freq_factor"]}
    again = rope_factors(500_000.0, 128, 8.0, **numbers, context=found["original_max_position_embeddings"])
    np.testing.assert_allclose(again, factors, rtol=1e-6)


@pytest.mark.parametrize("factors", [[3, 3, 2, 2], [0.5, 0.5, 2, 2], [2, 1, 1, 1]])
def test_factors_of_no_scaling_have_no_numbers(factors: list[float]) -> None:
    assert rope_scaling_of(np.array(factors, np.float32), 10_000.0, 8) is None
    assert llama3_numbers([float(one) for one in factors], 10_000.0, 8) is None


@pytest.mark.parametrize(("low", "high"), [(1.0, 4.0), (1.0, 32.0), (2.0, 8.0), (2.0, 32.0)])
@pytest.mark.parametrize(("turned", "context"), [(32, 8192), (64, 8192), (64, 131072)])
def test_numbers_of_step_give_its_factors_again(low: float, high: float, turned: int, context: int) -> None:
    factors = llama3_factors(5e6, turned, turned, 2.0, low, high, context)
    found = llama3_numbers(factors, 5e6, turned)

    assert found is not None
    assert llama3_factors(5e6, turned, turned, *found.values()) == factors


@pytest.mark.parametrize(("dims", "context", "ones"), [(128, 8192, 35), (32, 8192, 9), (16, 32, 1), (128, 2, 0)])
@pytest.mark.filterwarnings("error")
def test_equal_constants_are_a_step_which_others_make_too(dims: int, context: int, ones: int) -> None:
    """Llama 4 Scout's are 1 and 1; counts are those of transformers' ``_compute_llama3_parameters``."""
    factors = rope_factors(500_000.0, dims, 16.0, low=1.0, high=1.0, context=context)
    assert factors.tolist() == [1.0] * ones + [16.0] * (dims // 2 - ones)

    found = rope_scaling_of(factors, 500_000.0, dims)
    assert found is not None
    if ones:
        numbers = {"low": found["low_freq_factor"], "high": found["high_freq_factor"]}
        assert numbers["low"] < numbers["high"]
        again = rope_factors(500_000.0, dims, 16.0, **numbers, context=found["original_max_position_embeddings"])
        assert again.tolist() == factors.tolist()
    else:
        assert found == {"rope_type": "linear", "factor": 16.0}


@pytest.mark.parametrize(
    ("factors", "scaling"), [([1.0] * 8, None), ([2.5] * 8, {"rope_type": "linear", "factor": 2.5})]
)
def test_equal_factors_are_a_linear_scaling_and_ones_are_none(
    factors: list[float], scaling: dict[str, Any] | None, tmp_path: Path
) -> None:
    extra = {"rope_freqs.weight": np.array(factors, np.float32)}
    source = save_gguf(tmp_path / "m.gguf", Decoder(), "llama", permuted=True, extra=extra)

    assert to_hf(source, tmp_path / "out")["rope_scaling"] == scaling


def test_a_yarn_that_shrinks_is_refused(tmp_path: Path) -> None:
    keys: dict[str, object] = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 0.5}
    with pytest.raises(UnsupportedError, match=r"llama.rope.scaling.type = yarn with a factor of 0\.5"):
        to_hf(Model(extra_keys=keys).write(tmp_path / "m.gguf"), tmp_path / "out")


@pytest.mark.parametrize("to", ["safetensors", "mlx"])
def test_experts_that_are_not_there_are_named(tmp_path: Path, to: str) -> None:
    model = Model(extra_keys={"llama.expert_count": 4, "llama.expert_used_count": 2})
    with pytest.raises(UnsupportedError) as info:
        ckconv.convert(model.write(tmp_path / "m.gguf"), tmp_path / "out/", to=to)
    assert "no tensor for layers.{n}.ffn.router.weight in 2 layers (llama.block_count, llama.expert_count)" in (
        info.value.details
    )


def test_the_number_of_tokens_is_counted_where_they_are_listed(tmp_path: Path) -> None:
    """``llama_vocab::impl::load`` of llama.cpp reads the key only where there is no tokenizer."""
    model = Model(extra_keys={"llama.vocab_size": 6}, tokens=tuple(map(str, range(96)))).write(tmp_path / "m.gguf")

    out = ckconv.convert(model, f"{tmp_path}/out/", to="safetensors")
    assert json.loads((tmp_path / "out/config.json").read_text())["vocab_size"] == Model().vocab
    assert [note for note in out.plan.notes if "llama.vocab_size" in note]


def test_factors_beside_another_scaling_are_refused(tmp_path: Path) -> None:
    keys: dict[str, object] = {"llama.rope.scaling.factor": 2.0}
    model = Model(extra_keys=keys, extra_tensors={"rope_freqs.weight": (8,)})
    with pytest.raises(UnsupportedError, match="rope_freqs"):
        to_hf(model.write(tmp_path / "m.gguf"), tmp_path / "out")


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_phi_3_scales_in_a_way_only_that_its_class_takes(kind: str, tmp_path: Path) -> None:
    said = rf"RoPE is scaled \({kind} by rope.scaling.type, .*\); transformers' phi3 knows longrope only"
    with pytest.raises(UnsupportedError, match=said):
        to_hf(phi3(tmp_path / "m.gguf", **{"phi3.rope.scaling.type": kind, "phi3.rope.scaling.factor": 4.0}), tmp_path)


def test_phi_3_without_a_padding_token_is_loaded_whatever_the_vocabulary(tmp_path: Path) -> None:
    """``Phi3Config`` takes token 32000, which torch refuses in a smaller table."""
    assert to_hf(phi3(tmp_path / "m.gguf"), tmp_path / "out")["pad_token_id"] is None


# Gemma 3


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, {}),
        ({"rope_local_base_freq": 5000.0}, {"rope.freq_base_swa": 5000.0}),
        ({"final_logit_softcapping": 30.0}, {"final_logit_softcapping": 30.0}),
        ({"layer_types": [SLIDING, SLIDING, FULL] * 2}, {"attention.sliding_window_pattern": 3}),
        ({"layer_types": ..., "sliding_window_pattern": 2}, {"attention.sliding_window_pattern": 2}),
        (
            {"layer_types": [FULL, SLIDING, SLIDING, FULL, SLIDING, SLIDING]},
            {"attention.sliding_window_pattern": [False, True, True, False, True, True]},
        ),
        ({"layer_types": [SLIDING] * 6}, {"attention.sliding_window_pattern": 7}),
        ({"layer_types": [FULL] * 6}, {"attention.sliding_window": None}),
    ],
)
def test_gemma_3_is_said_in_the_keys_that_llama_cpp_reads(
    changes: dict[str, Any], keys: dict[str, Any], tmp_path: Path
) -> None:
    source = gemma(tmp_path / "hf", **changes)
    usual = {
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": None,
        "rope.freq_base_swa": 10_000.0,
        "final_logit_softcapping": None,
    }

    ckconv.convert(source, tmp_path / "m.gguf")

    assert {key: value(tmp_path / "m.gguf", f"gemma3.{key}") for key in usual} == {**usual, **keys}
    back = to_hf(tmp_path / "m.gguf", tmp_path / "back")
    own = json.loads((source / "config.json").read_text())
    own.setdefault("layer_types", [SLIDING, FULL] * 3)
    for key in ("layer_types", "rope_local_base_freq", "final_logit_softcapping", "query_pre_attn_scalar"):
        assert back[key] == own[key]
    ckconv.convert(tmp_path / "back", tmp_path / "again.gguf")
    for key in usual:
        name = f"gemma3.{key}"
        assert value(tmp_path / "again.gguf", name) == value(tmp_path / "m.gguf", name)


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        (None, [SLIDING] * 5 + [FULL, SLIDING]),
        (0, [SLIDING] * 7),
        (1, [FULL] * 7),
        (3, [SLIDING, SLIDING, FULL] * 2 + [SLIDING]),
        ([True, False], [SLIDING] + [FULL] * 6),
        ([False, True] * 8, [FULL, SLIDING] * 3 + [FULL]),
    ],
)
def test_a_pattern_of_windows_is_read_as_llama_cpp_reads_it(pattern: object, layers: list[str], tmp_path: Path) -> None:
    """``load_swa_pattern`` of llama.cpp: a list says it layer by layer, a number n makes every n-th layer full."""
    model = Model(arch="gemma3", layers=7, qk_norm=True, post_norms=True)
    model.extra_keys["gemma3.attention.sliding_window"] = 16
    if pattern is not None:
        model.extra_keys["gemma3.attention.sliding_window_pattern"] = pattern
    document = to_hf(model.write(tmp_path / "m.gguf"), tmp_path / "out", allow_lossy=True)
    assert document["layer_types"] == layers


def test_what_mlx_lm_reads_of_gemma_3_is_written_and_the_rest_refused(tmp_path: Path) -> None:
    bases = {
        "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 3000.0, "rope_type": "default"},
    }
    both = {"rope_parameters": bases, "rope_local_base_freq": 5000.0, "layer_types": [SLIDING, SLIDING, FULL] * 2}
    ckconv.convert(gemma(tmp_path / "a", **both), f"{tmp_path}/mlx/", to="mlx")
    document = json.loads((tmp_path / "mlx/config.json").read_text())
    assert (document["rope_local_base_freq"], document["sliding_window_pattern"]) == (3000.0, 3)

    for number, refused in enumerate(({"final_logit_softcapping": 30.0}, {"layer_types": [FULL] + [SLIDING] * 5})):
        with pytest.raises(UnsupportedError, match=next(iter(refused))):
            ckconv.convert(gemma(tmp_path / str(number), **refused), f"{tmp_path}/x/", to="mlx")


#: Numbers of a GGUF that are none, or stand under no name.
NO_NUMBERS = [
    ("deepseek_v2", "deepseek2.attention.key_length_mla", math.nan),
    ("deepseek_v2", "deepseek2.attention.kv_lora_rank", math.nan),
    ("deepseek_v2", "deepseek2.attention.kv_lora_rank", None),
    ("gpt_oss", "gpt-oss.rope.scaling.yarn_beta_fast", math.nan),
    ("mimo_v2_flash", "mimo2.rope.freq_base", 0.0),
]


@pytest.mark.parametrize(("family", "key", "value"), NO_NUMBERS)
def test_a_number_that_is_none_is_named(
    tmp_path: Path, ckconv: Any, family: str, key: str, value: float | None
) -> None:
    case = next(family_cases.cases(family))
    done = ckconv("convert", family_cases.checkpoint(case.recorded, tmp_path / "hf"), tmp_path / "m.gguf")
    assert done.code == 0, done.err
    content = bytearray((tmp_path / "m.gguf").read_bytes())
    at = content.index(key.encode()) + len(key)
    if value is None:
        content[at - 1 : at] = b"x"
    else:
        content[at : at + 8] = struct.pack("<If", 6, value)
    (tmp_path / "m.gguf").write_bytes(content)
    done = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "hf")
    assert (done.code in (3, 4), key.partition(".")[2].rpartition(".")[2][:12] in done.err) == (True, True), done.err


@pytest.mark.parametrize("family", ["bert", "modernbert", "nomic_bert"])
def test_a_file_that_does_not_say_it_attends_in_both_ways_does_not(tmp_path: Path, ckconv, family: str) -> None:
    """llama-hparams.h: ``causal_attn = true``, which no loader of these changes."""
    case = next(cases(family))
    made = checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", made, tmp_path / "m.gguf").code == 0
    key, stored = f"{FAMILIES[family].gguf}.attention.causal".encode(), (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "n.gguf").write_bytes(stored.replace(key, b"x" + key[1:]))
    assert ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/m/", "--to", "hf").code == 0
    result = ckconv("convert", tmp_path / "n.gguf", f"{tmp_path}/n/", "--to", "hf")
    assert (result.code, "attends to earlier tokens alone" in result.err) == (4, True), result.err
    assert ckconv("convert", tmp_path / "n.gguf", tmp_path / "o.gguf").code == 0


@pytest.mark.parametrize(
    ("family", "key", "changed"),
    [
        ("youtu", "rope.scaling.type", "yarn"),
        ("youtu", "rope.scaling.factor", 4.0),
        ("youtu", "rope.scale_linear", 4.0),
        ("youtu", "attention.temperature_scale", 0.5),
        ("youtu", "rope.scaling.yarn_log_multiplier", 0.5),
        ("rwkv6", "token_shift_count", 1),
        ("rwkv7", "token_shift_count", 1),
        ("neo_bert", "rope.scaling.attn_factor", 2.0),
        ("neo_bert", "rope.dimension_count", 2),
    ],
)
def test_what_changes_a_result_is_refused_by_name(
    tmp_path: Path, ckconv: Any, family: str, key: str, changed: object
) -> None:
    case = next(cases(family))
    made = checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", made, tmp_path / "m.gguf").code == 0
    name = f"{FAMILIES[family].gguf}.{key}"
    done = ckconv("edit", tmp_path / "m.gguf", tmp_path / "n.gguf", "--set-meta", f"{name}={changed}")
    assert done.code == 0, done.err
    result = ckconv("convert", tmp_path / "n.gguf", f"{tmp_path}/n/", "--to", "hf")
    assert (result.code, f"{name} = {changed} changes the computation" in result.err) == (4, True), result.err


def test_layers_of_lightning_attention_are_those_of_the_interval(tmp_path: Path, ckconv: Any) -> None:
    """``load_arch_hparams`` of minimax-01.cpp; a list of them is in the family's case of other layers."""
    case = next(cases("minimax"))
    made = checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", made, tmp_path / "m.gguf").code == 0
    said = "minimax-01.full_attention_interval=8"
    assert ckconv("edit", tmp_path / "m.gguf", tmp_path / "n.gguf", "--set-meta", said).code == 0
    document = to_hf(tmp_path / "n.gguf", tmp_path / "n")
    assert document["layer_types"] == ["linear_attention"] * 7 + ["full_attention"]
