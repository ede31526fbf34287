"""What a family's rows refuse: tensors lost in one layer, and keys whose values no class builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import family_cases
import pytest
from gguf_copies import gguf_copy

import ckconv
from ckconv import Options
from ckconv.errors import CkconvError, UnsupportedError


def checkpoint(root: Path, family: str, name: str, lost: str = "", **changes: Any) -> tuple[Path, Options]:
    """A case's checkpoint without the tensors ``lost``, and with other keys of its text model."""
    case = next(one for one in family_cases.cases(family) if not name or one.name == name)
    tensors = {key: value for key, value in case.recorded["tensors"].items() if key != lost}
    assert len(tensors) == len(case.recorded["tensors"]) - bool(lost)
    config = case.recorded["config"]
    text = {**config.get("text_config", config), **changes}
    document = {**config, "text_config": text} if "text_config" in config else text
    made = family_cases.checkpoint({"config": document, "tensors": tensors}, root / "hf", case.tokenizer)
    return made, Options(**case.options)


def refusal(source: Path, options: Options, to: str = "gguf") -> str:
    with pytest.raises(CkconvError) as info:
        ckconv.convert(source, source.parent / ("m.gguf" if to == "gguf" else "out"), to=to, options=options)
    return " ".join((info.value.message, *info.value.details))


@pytest.mark.parametrize(
    ("changes", "to", "said"),
    [
        ({"n_group": 1}, "mlx", "does not choose 2 of 1 groups of 8 experts"),
        ({"n_group": 2}, "gguf", "llama.cpp stops at 2 groups of 8 experts of which 2 are chosen"),
        ({"n_group": 3}, "gguf", "llama.cpp stops at 3 groups"),
        ({"n_group": 3}, "mlx", "does not choose 2 of 3 groups"),
        ({"n_group": 8}, "gguf", "llama.cpp stops at 8 groups"),
        ({"n_group": 8}, "mlx", "does not choose 2 of 8 groups"),
    ],
)
def test_what_an_engine_does_not_do_with_the_experts_of_a_ling_3(
    changes: dict[str, Any], to: str, said: str, tmp_path: Path
) -> None:
    """Asserts of llama_model_base::load_hparams, and what mlx-lm's group_expert_select raises."""
    assert said in refusal(*checkpoint(tmp_path, "bailing_hybrid", "released", **changes), to)


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe", "dots1"])
def test_groups_of_experts_that_llama_cpp_stops_at_have_a_way_out(family: str, tmp_path: Path) -> None:
    source, options = checkpoint(tmp_path, family, "groups", n_group=2, topk_group=2)

    with pytest.raises(UnsupportedError, match="experts of which 2 are chosen") as info:
        ckconv.convert(source, tmp_path / "m.gguf", options=options)

    assert info.value.hint == (
        "ckconv edit SRC DST/ --set-meta n_group=1 --set-meta topk_group=1 chooses the same experts"
    )
    ckconv.edit(source, f"{tmp_path / 'ones'}/", set_meta=[("n_group", "1"), ("topk_group", "1")])
    ckconv.convert(tmp_path / "ones", tmp_path / "m.gguf", options=options)


@pytest.mark.parametrize(
    ("family", "key", "said", "taken"),
    [
        ("deepseek_v3", "routed_scaling_factor", "deepseek2.expert_weights_scale", 1.0),
        ("bailing_hybrid", "routed_scaling_factor", "bailingmoe3.expert_weights_scale", 1.0),
        ("granite", "embedding_multiplier", "granite.embedding_scale", 1.0),
        ("granite", "residual_multiplier", "granite.residual_scale", 1.0),
        ("granite", "attention_multiplier", "granite.attention.scale", 0.4082483),
        ("minicpm", "scale_depth", "minicpm.residual_scale", 1.7320508),
        ("cohere", "logit_scale", "command-r.logit_scale", 1.0),
    ],
)
def test_a_factor_of_0_is_none_for_llama_cpp(family: str, key: str, said: str, taken: float, tmp_path: Path) -> None:
    case = next(iter(family_cases.cases(family))).name
    assert f"({key}) is 0.0, and would be read as {taken}" in refusal(*checkpoint(tmp_path, family, case, **{key: 0.0}))
    source, options = checkpoint(tmp_path / "right", family, case)
    ckconv.convert(source, tmp_path / "m.gguf", options=options)
    gguf_copy(tmp_path / "m.gguf", tmp_path / "none.gguf", keys={said: 0.0})
    ckconv.convert(tmp_path / "none.gguf", f"{tmp_path / 'back'}/", to="hf", options=options)
    assert json.loads((tmp_path / "back" / "config.json").read_text())[key] == taken


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("afmoe", {"route_norm": False}, "route_norm = False changes the computation"),
        ("step3p5", {"moe_router_activation": "softmax"}, "moe_router_activation = 'softmax' changes"),
        ("dots1", {"scoring_func": "softmax"}, "scoring_func = 'softmax' changes"),
        ("deepseek_v2", {"scoring_func": "sigmoid"}, "scoring_func = 'sigmoid' changes"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func = 'softmax' changes"),
        ("exaone_moe", {"scoring_func": "softmax"}, "scoring_func = 'softmax' changes"),
        ("mimo_v2_flash", {"scoring_func": "softmax"}, "scoring_func = 'softmax' changes"),
        (
            "nemotron_h",
            {"time_step_min": 0.0, "mamba_dt_min": 0.01},
            "least_step is 0.01 (mamba_dt_min, time_step_min)",
        ),
        (
            "nemotron_h_moe",
            {"time_step_min": 0.0, "mamba_dt_min": 0.01},
            "least_step is 0.01 (mamba_dt_min, time_step_min)",
        ),
        ("bailing_hybrid", {"linear_num_heads": 2}, "the configuration makes it [2] (linear_num_heads"),
        ("kimi_linear", {"linear_num_heads": 2}, "linear_num_heads is 2, linear_attn_config.num_heads is 4"),
        ("bailing_hybrid", {"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]}, "first_k_dense_replace is 1"),
        ("kimi_linear", {"mlp_layer_types": ["sparse"] * 3 + ["dense"]}, "first_k_dense_replace is 0"),
    ],
)
def test_a_key_of_what_is_always_so_is_compared(
    family: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    case = next(iter(family_cases.cases(family))).name
    for to in ("gguf", "mlx"):
        assert said in refusal(*checkpoint(tmp_path / to, family, case, **changes), to)


def test_architectures_that_are_no_list_are_not_said(tmp_path: Path) -> None:
    for family in ("bailing_hybrid", "bailing_moe_v2", "bailing_moe_v2_5"):
        case = next(iter(family_cases.cases(family))).name
        for name, said in {"number": 5, "null": None}.items():
            source, options = checkpoint(tmp_path / family / name, family, case, architectures=said)
            ckconv.convert(source, f"{source}-mlx/", to="mlx", options=options)


@pytest.mark.parametrize("family", ["bailing_moe_linear", "bailing_moe_v2_5"])
def test_groups_that_do_not_divide_what_linear_attention_computes(family: str, tmp_path: Path) -> None:
    said = refusal(*checkpoint(tmp_path, family, "plain", group_norm_size=3), "mlx")
    assert "3 groups do not divide what linear attention computes" in said


@pytest.mark.parametrize(
    ("family", "lost"),
    [
        ("rwkv6qwen2", "model.layers.1.self_attn.k_proj.bias"),
        ("exaone_moe", "model.layers.1.mlp.e_score_correction_bias"),
        ("deepseek_v3", "model.layers.1.mlp.gate.e_score_correction_bias"),
        ("qwen2", "model.layers.1.self_attn.v_proj.bias"),
    ],
)
def test_what_some_models_have_is_missed_where_only_some_layers_have_it(tmp_path: Path, family: str, lost: str) -> None:
    """llama.cpp loads such a tensor if it is there, and computes without it."""
    said = refusal(*checkpoint(tmp_path, family, "", lost))

    assert "bias" in said
    assert "in layer 1, which layer" in said


@pytest.mark.parametrize(
    ("family", "name", "changes", "said"),
    [
        (
            "paddleocr_vl",
            "untied",
            {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [2, 3, 2]}},
            "mrope_section",
        ),
        ("paddleocr_vl", "untied", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "mrope_section"),
        ("qwen2_vl", "untied", {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [2, 3, 2]}}, "mrope_section"),
        ("qwen2_5_vl", "untied", {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [2, 1, 2]}}, "mrope_section"),
        ("hunyuan_vl", "untied", {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [2, 3, 2]}}, "mrope_section"),
        (
            "hunyuan_vl",
            "untied",
            {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [2, 2, 2, 1]}},
            "mrope_section",
        ),
        ("hunyuan_vl", "untied", {"num_experts": 2}, "num_experts"),
        ("hunyuan_vl", "untied", {"use_cla": True}, "use_cla"),
        ("hunyuan_vl", "untied", {"norm_type": "layernorm"}, "norm_type"),
        # the class turns so many elements: it fails, and of 2 it turns all by one angle
        *((family, "", {"head_dim": 2}, "head_dim = 2") for family in ("deepseek_v3", "glm4_moe_lite", "youtu")),
        ("youtu", "", {"head_dim": -1}, "head_dim = -1"),
    ],
)
def test_what_no_class_builds_is_refused_by_its_key(
    tmp_path: Path, family: str, name: str, changes: dict[str, Any], said: str
) -> None:
    assert said in refusal(*checkpoint(tmp_path, family, name, **changes))


@pytest.mark.parametrize(("family", "size"), [("youtu", 0), ("deepseek_v32", 2), ("glm_moe_dsa", 24)])
def test_a_size_that_the_class_makes_of_others_is_none_of_its_own(tmp_path: Path, family: str, size: int) -> None:
    for given in ({}, {"head_dim": size}):
        source, options = checkpoint(tmp_path / str(len(given)), family, "", **given)
        ckconv.convert(source, tmp_path / f"{len(given)}.gguf", options=options)

    assert (tmp_path / "0.gguf").read_bytes() == (tmp_path / "1.gguf").read_bytes()


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("attention", {"no_op": True}, "self_attn.q_proj"),
        ("attention", {"replace_with_linear": True}, "self_attn.q_proj"),
        ("ffn", {"no_op": True}, "mlp.up_proj"),
        ("ffn", {"replace_with_linear": True}, "mlp.up_proj"),
        ("ffn", {"gated": False}, "block_configs"),
    ],
)
def test_layers_of_nemotron_nas_are_what_their_switches_say(
    tmp_path: Path, part: str, changes: dict[str, Any], said: str
) -> None:
    """A layer of nothing has no sizes, whatever its table says, and the class ignores its tensors (mlx-lm's, too)."""
    case = next(one for one in family_cases.cases("nemotron_nas") if one.name == "scaled")
    first, *more = case.recorded["config"]["block_configs"]
    more[-1] = {**more[-1], part: {**more[-1][part], **changes}}

    assert said in refusal(*checkpoint(tmp_path, "nemotron_nas", "scaled", block_configs=[first, *more]))


@pytest.mark.product("values")
@pytest.mark.parametrize("to", ["gguf", "mlx"])
@pytest.mark.parametrize("family", ["laguna", "mellum", "gemma4_text", "gemma4_assistant"])
def test_a_scaling_beside_a_table_by_kinds_of_layers_is_refused(tmp_path: Path, family: str, to: str) -> None:
    """The class takes it for the whole of rope_parameters, and finds no kinds of layers there."""
    scaled: dict[str, Any] = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}

    assert "rope_scaling" in refusal(*checkpoint(tmp_path, family, "", **scaled), to)


@pytest.mark.parametrize(
    ("family", "kind", "part"),
    [
        ("laguna", "sliding_attention", 1.5),
        ("laguna", "sliding_attention", 0.4),
        ("laguna", "full_attention", 1.5),
        ("spark2_5", "sliding_attention", 1.5),
        ("gemma4_text", "full_attention", 1.5),
    ],
)
def test_no_layer_turns_more_than_its_head(tmp_path: Path, family: str, kind: str, part: float) -> None:
    case = next(family_cases.cases(family))
    document = case.recorded["config"]
    text = document.get("text_config", document)
    tables = {name: dict(table) for name, table in text["rope_parameters"].items()}
    tables[kind]["partial_rotary_factor"] = part

    assert "partial_rotary_factor" in refusal(*checkpoint(tmp_path, family, case.name, rope_parameters=tables))


def test_no_layer_of_a_gguf_turns_more_than_its_head(tmp_path: Path) -> None:
    source, options = checkpoint(tmp_path, "laguna", "")
    ckconv.convert(source, tmp_path / "m.gguf", options=options)
    key, data = b"laguna.rope.dimension_count_swa", bytearray((tmp_path / "m.gguf").read_bytes())
    at = data.index(key) + len(key) + 4
    assert data[at : at + 4] == b"\x08\0\0\0"
    data[at] = 12
    (tmp_path / "wide.gguf").write_bytes(data)

    assert key.decode() in refusal(tmp_path / "wide.gguf", Options(), "safetensors")


@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("afmoe", "afmoe.expert_weights_norm"),
        ("hy_v3", "hy_v3.expert_weights_norm"),
        ("laguna", "laguna.expert_weights_norm"),
        ("minimax_m3", "minimax-m3.expert_weights_norm"),
        ("eurobert", "eurobert.attention.causal"),
        ("jais", "jais.attention.max_alibi_bias"),
    ],
)
def test_a_gguf_without_a_key_is_what_llama_cpp_takes_for_it_and_no_class_computes(
    family: str, key: str, tmp_path: Path
) -> None:
    """Members of llama-hparams.h keep what they are initialized with where load_arch_hparams finds no key."""
    source, options = checkpoint(tmp_path, family, "")
    ckconv.convert(source, tmp_path / "m.gguf", options=options)
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors")
    lacking = gguf_copy(tmp_path / "m.gguf", tmp_path / "lacking.gguf", without=[key])

    assert key in refusal(lacking, Options(), "safetensors")


def test_an_mlx_of_afmoe_that_does_not_renormalize_is_refused(tmp_path: Path) -> None:
    source, options = checkpoint(tmp_path, "afmoe", "")
    ckconv.convert(source, tmp_path / "mlx", to="mlx", options=options)
    document = json.loads((tmp_path / "mlx/config.json").read_text())
    (tmp_path / "mlx/config.json").write_text(json.dumps({**document, "route_norm": False}))

    assert "route_norm = False" in refusal(tmp_path / "mlx", Options())


@pytest.mark.parametrize("family", ["nemotron_h", "nemotron_h_moe"])
@pytest.mark.parametrize(
    ("said", "noted"),
    [
        ({}, True),  # NemotronHConfig takes 0.001
        ({"time_step_min": 0.0}, False),
        ({"time_step_min": 0.05, "mamba_dt_min": 0.0}, False),  # which NemotronHConfig takes in its place
        ({"time_step_min": 0.0, "mamba_dt_min": 0.001}, True),
    ],
)
def test_steps_that_transformers_does_not_take_are_noted_and_taken_on_the_way_back(
    family: str, said: dict[str, float], noted: bool, tmp_path: Path
) -> None:
    """Neither NemotronHMamba2Mixer of mlx-lm nor llama.cpp's build_mamba2_layer clamps a step from below."""
    source, options = checkpoint(tmp_path, family, "")
    document = json.loads((source / "config.json").read_text())
    document.pop("time_step_min", None)
    (source / "config.json").write_text(json.dumps({**document, **said}))

    for to in ("gguf", "mlx"):
        made = ckconv.convert(source, tmp_path / to, to=to, options=options)
        assert any("takes every step" in note for note in made.plan.notes) == noted
        ckconv.convert(tmp_path / to, tmp_path / f"{to}-back", to="safetensors", options=options)
        back = json.loads((tmp_path / f"{to}-back" / "config.json").read_text())
        assert (back["time_step_min"], "mamba_dt_min" in back) == (0.0, False)


@pytest.mark.parametrize(
    ("family", "case", "sliding"),
    [
        ("mellum", "other_layers", (0, 1, 2)),
        ("cohere2_moe", "softmax", (1, 2, 3)),
        ("cohere2_moe", "sigmoid", (1, 2, 3)),
    ],
)
def test_layers_that_slide_where_a_gguf_does_not_say_are_those_of_llama_cpp(
    family: str, case: str, sliding: tuple[int, ...], tmp_path: Path
) -> None:
    """Patterns that load_arch_hparams gives load_swa_pattern: the last of four, or the first."""
    source, options = checkpoint(tmp_path, family, case)
    ckconv.convert(source, tmp_path / "m.gguf", options=options)
    key = f"{family.replace('_', '')}.attention.sliding_window_pattern"
    lacking = gguf_copy(tmp_path / "m.gguf", tmp_path / "lacking.gguf", without=[key])
    ckconv.convert(lacking, tmp_path / "back", to="safetensors")

    kinds = json.loads((tmp_path / "back" / "config.json").read_text())["layer_types"]
    assert [n for n, kind in enumerate(kinds) if kind == "sliding_attention"] == [n for n in sliding if n < len(kinds)]


@pytest.mark.parametrize(("family", "case"), [("laguna", "heads"), ("spark2_5", "tied")])
def test_layers_that_slide_turn_as_much_as_others_where_a_gguf_does_not_say(
    family: str, case: str, tmp_path: Path
) -> None:
    """llama_model_base::load_hparams gives n_rot_swa what n_rot_full is."""
    source, options = checkpoint(tmp_path, family, case)
    ckconv.convert(source, tmp_path / "m.gguf", options=options)
    for name, without in {"said": [], "lacking": [f"{family}.rope.dimension_count_swa"]}.items():
        gguf_copy(tmp_path / "m.gguf", tmp_path / f"{name}.gguf", without=without)
        ckconv.convert(tmp_path / f"{name}.gguf", tmp_path / name, to="safetensors")
    said, lacking = (
        json.loads((tmp_path / name / "config.json").read_text())["rope_parameters"] for name in ("said", "lacking")
    )

    part = said["full_attention"]["partial_rotary_factor"]
    assert said["sliding_attention"]["partial_rotary_factor"] > part
    assert lacking["sliding_attention"]["partial_rotary_factor"] == part


def test_a_bamba_of_heads_that_its_class_stops_at_is_refused(tmp_path: Path) -> None:
    assert "mamba_d_head = 3, mamba_expand = 2" in refusal(*checkpoint(tmp_path, "bamba", "", mamba_d_head=3))
