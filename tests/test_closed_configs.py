"""Keys of config.json that nobody is known to read, code of its own, parameters that no rule takes: each refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
from checkpoints import Decoder, save
from family_cases import cases, checkpoint, document_text, recording, tensors
from gguf_copies import gguf_copy

import ckconv
from ckconv import Options
from ckconv.errors import CkconvError, InputError, UnsupportedError

#: A family of one's own, with layers that slide.
MINE = """
extends = "decoder"
gguf = { arch = "mine" }
huggingface = { model_type = "mine", class = "MineForCausalLM" }
[parameters]
window = { hf = "sliding_window", gguf = "attention.sliding_window", optional = true }
layer_types = { hf = "layer_types", gguf = { key = "attention.sliding_window_pattern:bool[]", read = "slides(layers, it)", write = "[kind == 'sliding_attention' for kind in it]" }, optional = true }
[engines]
llama_cpp = {}
mlx_lm = {}
transformers = {}
"""  # noqa: E501
NONE = "harmless = []\n"
SLIDES = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
CODE = {"AutoConfig": "configuration_weird.WeirdConfig", "AutoModelForCausalLM": "modeling_weird.WeirdForCausalLM"}


def llama(root: Path, **changes: Any) -> Path:
    document = Decoder().config(architectures=["LlamaForCausalLM"])
    return save(root / "source", {**document, **changes}, Decoder().tensors())


def mine(root: Path, config: str = NONE, parameters: str = "", **changes: Any) -> tuple[Path, Options]:
    file = root / "mine.toml"
    file.write_text(f"config.{config}{MINE}".replace("[engines]", f"{parameters}\n[engines]"))
    document = Decoder().config("mine", **{**SLIDES, **changes})
    return save(root / "source", document, Decoder().tensors()), Options(families=(file,))


def said(error: CkconvError) -> str:
    return "; ".join((error.message, *error.details, error.hint or ""))


@pytest.mark.product("values")
@pytest.mark.parametrize("to", ["gguf", "mlx", "safetensors"])
@pytest.mark.parametrize("value", [False, "x", {"num_hidden_layers": 1}])
def test_a_key_without_letters_is_no_text_part(tmp_path: Path, to: str, value: Any) -> None:
    report = ckconv.convert(llama(tmp_path, **{"": value}), tmp_path / "out", to=to)
    assert report.verified == 21


@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_a_base_that_another_overrules_leaves_what_no_layer_reads(tmp_path: Path, to: str) -> None:
    made = Decoder(qk_norm=True)
    document = made.config("qwen3", max_window_layers=28, use_sliding_window=False, sliding_window=None)
    said = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "rope_theta": 500000.0}
    report = ckconv.convert(save(tmp_path / "source", {**document, **said}, made.tensors()), tmp_path / "out", to=to)
    assert report.verified == 25


def test_a_type_of_rope_that_the_other_library_passes_over_comes_back(tmp_path: Path) -> None:
    ckconv.convert(llama(tmp_path), tmp_path / "mlx", to="mlx")
    file = tmp_path / "mlx" / "config.json"
    table = {"rope_theta": 10000.0, "rope_type": "default", "type": "mrope", "mrope_section": [1, 1, 2]}
    file.write_text(json.dumps({**json.loads(file.read_text()), "rope_parameters": table}))
    report = ckconv.convert(tmp_path / "mlx", tmp_path / "back", to="safetensors")
    assert report.verified == 21


@pytest.mark.product("values")
@pytest.mark.parametrize("to", ["gguf", "mlx", "bump"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"auto_map": CODE, "architectures": ["WeirdForCausalLM"]}, "auto_map names WeirdForCausalLM"),
        ({"auto_map": {"AutoModel": ["weird.WeirdModel", None]}, "architectures": ["WeirdModel"]}, "WeirdModel"),
        ({"auto_map": CODE, "my_gate_scale": 2.5}, "my_gate_scale = 2.5"),
        ({"architectures": ["WeirdForCausalLM"], "my_gate_scale": 2.5}, "my_gate_scale = 2.5"),
        ({"model_type": "iquestcoder", "my_gate_scale": 2.5}, "my_gate_scale = 2.5"),
        ({"auto_map": {"AutoModelForCausalLM": "m.LlamaForCausalLM"}, "my_gate_scale": 2.5}, "my_gate_scale = 2.5"),
    ],
)
def test_code_of_its_own_and_the_keys_that_it_may_read_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str, to: str
) -> None:
    source = llama(tmp_path, **changes)

    with pytest.raises(UnsupportedError) as caught:
        ckconv.convert(source, tmp_path / "out", to=to)
    assert words in said(caught.value)

    # The way out that the hint names.
    document = json.loads((source / "config.json").read_text())
    for key in ("auto_map", "architectures", "my_gate_scale"):
        document.pop(key, None)
    (source / "config.json").write_text(json.dumps({**document, "model_type": "llama"}))
    ckconv.convert(source, tmp_path / "out", to=to)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({}, ""),
        ({"auto_map": {"AutoModelForCausalLM": "owner/repo--modeling_llama.LlamaForCausalLM"}}, ""),
        ({"auto_map": {"AutoTokenizer": ["weird.WeirdTokenizer", None]}}, ""),
        ({"auto_map": {"AutoModelForCausalLM": "m.LlamaForCausalLM"}, "my_gate_scale": None}, ""),
        ({"my_gate_scale": 2.5}, "no known class of llama reads these keys of config.json: my_gate_scale"),
        ({"architectures": ["WeirdForCausalLM"]}, "architectures (WeirdForCausalLM), because model_type is there"),
        ({"architectures": ["LlamaModel"]}, ""),
    ],
)
def test_a_class_of_transformers_reads_what_it_is_known_to_read(
    tmp_path: Path, changes: dict[str, Any], note: str
) -> None:
    report = ckconv.convert(llama(tmp_path, **changes), tmp_path / "m.gguf")

    notes = [one for one in report.plan.notes if "reads these keys" in one or "does not read" in one]
    assert bool(notes) == bool(note)
    assert all(note in one for one in notes)


@pytest.mark.parametrize(
    ("family", "model_type"), [("llama", "iquestcoder"), ("deepseek_v3", "kimi_k2"), ("qwen3", "qwen3_ours")]
)
@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_a_model_type_of_its_own_with_a_known_class_is_that_family(
    tmp_path: Path, family: str, model_type: str, to: str
) -> None:
    case = next(case for case in recording(family).values() if case.get("converter"))
    checkpoint(case, tmp_path / "known")
    checkpoint(case, tmp_path / "own")
    document = {**json.loads((tmp_path / "own" / "config.json").read_text()), "model_type": model_type}
    (tmp_path / "own" / "config.json").write_text(document_text(document))

    for name in ("known", "own"):
        ckconv.convert(tmp_path / name, tmp_path / f"{name}-made", to=to)
    made, wanted = (ckconv.open_model(tmp_path / f"{name}-made") for name in ("own", "known"))
    assert made.architecture == wanted.architecture
    assert {name: one.shape for name, one in made.tensors.items()} == {n: t.shape for n, t in wanted.tensors.items()}
    assert made.config is not None
    assert wanted.config is not None
    assert made.config.scope == wanted.config.scope


#: Keys of transformers' Falcon -> those of modelling_RW.py; of the empty ones it has none.
RW = {
    "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "num_kv_heads": "", "num_ln_in_parallel_attn": "",
    "new_decoder_architecture": "",
}  # fmt: skip
EPOCH = {"rope_parameters": "", "rope_scaling": ""}


@pytest.mark.parametrize(
    ("family", "case", "model_class", "model_type", "keys", "more"),
    [
        ("exaone_moe", 0, "ExaoneMoEForCausalLM", "another", {}, {}),
        ("lfm2", 0, "LFM2ForCausalLM", "another", {}, {}),
        ("llada_moe", 0, "LLaDAMoEModel", "another", {}, {}),
        ("minimax_m3", 0, "MiniMaxM3SparseForCausalLM", "another", {}, {}),
        ("plamo2", 0, "PLaMo2ForCausalLM", "another", {}, {}),
        ("rwkv7", 0, "Rwkv7ForCausalLM", "another", {}, {}),
        ("falcon", 0, "RWForCausalLM", "RefinedWebModel", RW, {}),
        ("falcon", 1, "RWForCausalLM", "RefinedWeb", {**RW, "multi_query": ""}, {"n_head_kv": 2}),
        (
            "stablelm", 0, "StableLMEpochForCausalLM", "stablelm_epoch", EPOCH,
            {"norm_eps": 1e-5, "rope_pct": 0.25, "rope_theta": 10000},
        ),
    ],
)  # fmt: skip
def test_the_second_name_of_a_class_and_its_keys_are_the_same_model(
    tmp_path: Path,
    family: str,
    case: int,
    model_class: str,
    model_type: str,
    keys: Mapping[str, str],
    more: dict[str, Any],
) -> None:
    known, own = (checkpoint([*cases(family)][case].recorded, tmp_path / name / "model") for name in ("known", "own"))
    document = json.loads((known / "config.json").read_text())
    document = {keys.get(key, key): value for key, value in document.items()}
    document |= {"architectures": [model_class], "model_type": model_type, **more}
    document.pop("", None)
    (own / "config.json").write_text(document_text(document))

    for folder in (known, own):
        ckconv.convert(folder, f"{folder}.gguf")
    assert Path(f"{own}.gguf").read_bytes() == Path(f"{known}.gguf").read_bytes()


# Families whose class is code of the repository: nobody here runs it, so no key that it may read is passed over

CODE_OF_REPOSITORIES = (
    "dream", "grovemoe", "llada_moe", "maincoder", "nanbeige", "pangu_embedded", "plm", "rnd1", "smallthinker",
)  # fmt: skip


def of_a_repository(root: Path, family: str, **changes: Any) -> Path:
    """The first recorded case of a family with other keys; ``...`` takes one away."""
    source = checkpoint(next(case for case in recording(family).values() if case.get("converter")), root / "source")
    document = {**json.loads((source / "config.json").read_text()), **changes}
    (source / "config.json").write_text(json.dumps({key: one for key, one in document.items() if one is not ...}))
    return source


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        *((family, "my_gate_scale", 2.5) for family in CODE_OF_REPOSITORIES),
        ("smallthinker", "moe_enable_early_router", False),
        ("smallthinker", "moe_enable_secondary_experts", True),
        ("smallthinker", "norm_topk_prob", False),
        ("smallthinker", "moe_layer_layout", [1, 0, 1, 1]),
        ("smallthinker", "use_qk_norm", True),
        ("smallthinker", "moe_shared_primary_experts", 1),
        ("llada_moe", "score_function", "sigmoid"),
        ("llada_moe", "n_group", 2),
        ("llada_moe", "num_shared_experts", 1),
        ("llada_moe", "qk_layernorm", False),
        ("llada_moe", "moe_layer_freq", [0, 1]),
        ("grovemoe", "routed_scaling_factor", 2.5),
        ("grovemoe", "n_group", 2),
        ("grovemoe", "parallel_expert_num", 4),
        ("grovemoe", "small_expert_intermediate_size", 64),
    ],
)
def test_a_key_that_changes_what_code_of_a_repository_computes_is_refused_by_name(
    tmp_path: Path, family: str, key: str, value: Any
) -> None:
    with pytest.raises(UnsupportedError, match=key):
        ckconv.convert(of_a_repository(tmp_path, family, **{key: value}), tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("family", "said"),
    [
        (
            "smallthinker",
            {
                "moe_enable_early_router": True,
                "moe_enable_secondary_experts": False,
                "norm_topk_prob": True,
                "moe_layer_layout": [1, 1, 1, 1],
                "use_qk_norm": False,
                "moe_shared_primary_experts": 0,
            },
        ),
        (
            "llada_moe",
            {
                "score_function": "softmax",
                "n_group": 1,
                "num_shared_experts": None,
                "qk_layernorm": True,
                "moe_layer_freq": [1, 1],
                "routed_scaling_factor": 1,
            },
        ),
        ("llada_moe", {"moe_layer_freq": 1}),
        (
            "grovemoe",
            {"routed_scaling_factor": 1.0, "parallel_expert_num": 2, "small_expert_intermediate_size": 12},
        ),
    ],
)
def test_the_same_keys_with_what_llama_cpp_computes_make_the_same_file(
    tmp_path: Path, family: str, said: dict[str, Any]
) -> None:
    ckconv.convert(of_a_repository(tmp_path / "said", family, **said), tmp_path / "said.gguf")
    ckconv.convert(of_a_repository(tmp_path / "unsaid", family), tmp_path / "unsaid.gguf")

    assert (tmp_path / "said.gguf").read_bytes() == (tmp_path / "unsaid.gguf").read_bytes()


@pytest.mark.parametrize(
    ("family", "to"),
    [
        *((family, "mlx") for family in ("mimo", "longcat_flash", "gear")),
        *((family, "gguf") for family in ("rwkv6", "maple", "codeshell", "arctic", "deepseek_v4")),
    ],
)
def test_keys_of_training_and_of_kernels_are_nobodys(tmp_path: Path, family: str, to: str) -> None:
    recorded, keys = next(cases(family)).recorded, {"use_flash_attn": True, "hidden_dropout": 0.1, "bf16": True}
    for place, more in (("said", keys), ("unsaid", {})):
        source = checkpoint({**recorded, "config": {**recorded["config"], **more}}, tmp_path / place / "model")
        ckconv.convert(source, tmp_path / f"{place}.{to}", to=to)
    file = "" if to == "gguf" else "model.safetensors"
    assert (tmp_path / f"said.{to}" / file).read_bytes() == (tmp_path / f"unsaid.{to}" / file).read_bytes()


@pytest.mark.parametrize("family", [family for family in CODE_OF_REPOSITORIES if family != "smallthinker"])
def test_a_base_of_rope_that_nobody_knows_the_default_of_is_refused(tmp_path: Path, family: str) -> None:
    with pytest.raises(InputError, match="rope_theta is missing"):
        ckconv.convert(of_a_repository(tmp_path, family, rope_theta=...), tmp_path / "m.gguf")


def test_smallthinker_takes_what_its_own_class_takes(tmp_path: Path) -> None:
    """SmallthinkerConfig: a base of a million, and the embedding for the head."""
    source = of_a_repository(tmp_path, "smallthinker", rope_theta=..., tie_word_embeddings=...)
    config = ckconv.open_model(source).config

    assert config is not None
    assert (config.rope_theta, config.tied) == (1e6, True)


# Families of one's own


def test_a_family_of_ones_own_with_its_rule_keeps_its_window(tmp_path: Path) -> None:
    source, options = mine(tmp_path)
    ckconv.convert(source, tmp_path / "m.gguf", options=options)

    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert fields["mine.attention.sliding_window"].contents() == 16
    assert fields["mine.attention.sliding_window_pattern"].contents() == [True, False]


@pytest.mark.parametrize(
    ("config", "parameters", "changes", "words"),
    [
        (NONE, 'rope_beta_fast = { hf = "my_beta", optional = true }', {"my_beta": 8.0}, "says my_beta = 8.0"),
    ],
)
def test_a_parameter_that_no_rule_takes_is_refused(
    tmp_path: Path, config: str, parameters: str, changes: dict[str, Any], words: str
) -> None:
    source, options = mine(tmp_path, config, parameters, **changes)

    with pytest.raises(InputError) as caught:
        ckconv.convert(source, tmp_path / "m.gguf", options=options)
    assert caught.value.code == "family.file"
    assert words in caught.value.message


def test_a_window_without_a_row_that_says_which_layers_slide_is_refused(tmp_path: Path) -> None:
    source, options = mine(tmp_path)
    (file,) = options.families
    file.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("layer_types")))

    with pytest.raises(InputError, match=r"config.json says sliding_window = 16, and no row layer_types"):
        ckconv.convert(source, tmp_path / "m.gguf", options=options)


def test_a_key_that_a_family_of_ones_own_does_not_name_is_refused_until_it_is_harmless(tmp_path: Path) -> None:
    source, options = mine(tmp_path, my_gate_scale=2.5)

    with pytest.raises(UnsupportedError, match=r"my_gate_scale = 2\.5, a key that ckconv does not know of mine"):
        ckconv.convert(source, tmp_path / "m.gguf", options=options)
    source, options = mine(tmp_path, 'harmless = ["my_gate_scale"]\n', my_gate_scale=2.5)
    ckconv.convert(source, tmp_path / "m.gguf", options=options)


def test_no_expression_of_a_family_file_is_in_a_message(tmp_path: Path) -> None:
    case = json.loads(json.dumps(next(c for c in recording("gemma4_text").values() if c.get("converter"))))
    case["config"]["per_layer_config"] = {"9": {"head_dim": 4}}

    with pytest.raises(InputError) as caught:
        ckconv.convert(checkpoint(case, tmp_path / "source"), tmp_path / "m.gguf")
    assert caught.value.message == (
        "per_layer_config = {'9': {'head_dim': 4}}: per_layer_config names layer 9, and the last one is 5"
    )


# MLX: what config.json says and what mlx-lm computes


def mlx(family: str, root: Path, **changes: Any) -> Path:
    """The first recorded case of a family, as a directory of MLX's."""
    case = next(case for case in recording(family).values() if case.get("converter"))
    document = {key: value for key, value in {**case["config"], **changes}.items() if value is not ...}
    if isinstance(document.get("rope_parameters"), dict):
        document.setdefault("rope_theta", document["rope_parameters"].get("rope_theta"))
    return save(root / "source", document, tensors(case), metadata={"format": "mlx"})


def table(family: str, **changes: Any) -> dict[str, Any]:
    case = next(case for case in recording(family).values() if case.get("converter"))
    return {**case["config"]["rope_parameters"], **changes}


@pytest.mark.product("pairs")
@pytest.mark.parametrize("family", ["phi", "nemotron", "stablelm", "glm4", "glm"])
@pytest.mark.parametrize("to", ["gguf", "safetensors"])
@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_a_part_of_a_table_that_mlx_lm_does_not_turn_is_refused_with_both_numbers(
    tmp_path: Path, family: str, to: str, name: str
) -> None:
    part = {} if family == "glm" else {"partial_rotary_factor": 0.5}
    both = {"rope_parameters": ...} | {name: table(family, partial_rotary_factor=0.25)}
    source = mlx(family, tmp_path, **both, **part)

    with pytest.raises(UnsupportedError) as caught:
        ckconv.convert(source, tmp_path / "out", to=to)
    other = "1" if family == "glm" else "0.5"
    wanted = f"{name}.partial_rotary_factor = 0.25 beside {other}, which mlx-lm takes"
    assert wanted in said(caught.value)


def test_a_part_at_the_top_that_mlx_lms_glm_does_not_turn_is_refused(tmp_path: Path) -> None:
    source = mlx("glm", tmp_path, rope_parameters=..., partial_rotary_factor=0.25)

    with pytest.raises(UnsupportedError, match=r"^.*partial_rotary_factor = 0\.25 beside 1, which mlx-lm takes"):
        ckconv.convert(source, tmp_path / "m.gguf")


def test_a_part_that_both_say_is_written(tmp_path: Path) -> None:
    source = mlx("glm", tmp_path, rope_parameters=table("glm", partial_rotary_factor=1.0), partial_rotary_factor=...)
    model = ckconv.open_model(source)

    ckconv.convert(source, tmp_path / "m.gguf", options=Options(context=64))
    assert model.config is not None
    dims = gguf.GGUFReader(tmp_path / "m.gguf").fields["chatglm.rope.dimension_count"].contents()
    assert dims == model.config.head_dim


def test_numbers_of_a_scaling_that_mlx_lm_does_not_read_are_refused(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0}
    changes = {"rope_scaling": scaling, "rope_parameters": {"rope_theta": 10000.0, **scaling, "factor": 8.0}}
    document = Decoder().config(**changes)
    source = save(tmp_path / "source", document, Decoder().tensors(), metadata={"format": "mlx"})

    with pytest.raises(UnsupportedError, match=r"rope_parameters\.factor = 8\.0 beside 4\.0, which mlx-lm takes"):
        ckconv.convert(source, tmp_path / "m.gguf")


# Numbers that are in the file, and models that a converter makes something else of


def test_a_sentence_names_the_numbers_of_the_file(tmp_path: Path) -> None:
    case = json.loads(json.dumps(next(c for c in recording("nomic_bert").values() if c.get("converter"))))
    for key in ("max_position_embeddings", "n_positions"):
        case["config"][key] = 2048
    ckconv.convert(checkpoint(case, tmp_path / "both"), tmp_path / "m.gguf")

    assert gguf.GGUFReader(tmp_path / "m.gguf").fields["nomic-bert.context_length"].contents() == 2048
    case["config"]["n_embd"] = case["config"]["hidden_size"] + 1
    with pytest.raises(InputError, match=f"n_embd is {case['config']['n_embd']}"):
        ckconv.convert(checkpoint(case, tmp_path / "other"), tmp_path / "m.gguf")


def test_a_t5_out_of_a_gguf_does_not_scale_as_llama_cpp_does_not(tmp_path: Path) -> None:
    case = recording("t5")["relu"]
    stored = {name: array for name, array in tensors(case).items() if name != "lm_head.weight"}
    source = save(tmp_path / "hf", case["config"], stored)
    ckconv.convert(source, tmp_path / "m.gguf")
    report = ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors")

    document = json.loads((tmp_path / "back" / "config.json").read_text())
    assert document["scale_decoder_outputs"] is False
    assert any("scale_decoder_outputs is false" in note for note in report.plan.notes)


def test_the_keys_of_the_first_nemotron_h_are_known(tmp_path: Path) -> None:
    """Those of NVIDIA's own code, which ``auto_map`` names."""
    case = json.loads(json.dumps(recording("nemotron_h")["eight_billion"]))
    code = {"auto_map": {"AutoModelForCausalLM": "modeling_nemotron_h.NemotronHForCausalLM"}}
    case["config"] |= {**code, "rms_norm_eps": 1e-05, "norm_eps": 1e-05, "time_step_rank": 512}
    ckconv.convert(checkpoint(case, tmp_path / "hf"), tmp_path / "m.gguf")

    case["config"]["norm_eps"] = 1e-06
    with pytest.raises(InputError, match="layer_norm_epsilon is 1e-05, norm_eps is 1e-06"):
        ckconv.convert(checkpoint(case, tmp_path / "other"), tmp_path / "m.gguf", force=True)


def test_a_t5_whose_gguf_has_no_head_is_still_its_embedding(tmp_path: Path) -> None:
    case = recording("t5")["relu"]
    stored = {name: array for name, array in tensors(case).items() if name != "lm_head.weight"}
    ckconv.convert(save(tmp_path / "hf", case["config"], stored), tmp_path / "m.gguf")
    gguf_copy(tmp_path / "m.gguf", tmp_path / "headless.gguf", without=["output.weight"])
    ckconv.convert(tmp_path / "headless.gguf", tmp_path / "back", to="safetensors")

    document = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (document["scale_decoder_outputs"], document["tie_word_embeddings"]) == (False, True)


@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_a_text_part_of_a_class_that_has_none_is_refused_by_its_key(to: str, tmp_path: Path) -> None:
    """No class of a text model reads it; this reader took its epsilon."""
    case = next(cases("mixtral"))
    config = {**case.recorded["config"], "text_config": {"rms_norm_eps": 0.5}}
    source = checkpoint({**case.recorded, "config": config}, tmp_path / "hf", case.tokenizer)
    with pytest.raises(UnsupportedError, match=r"text_config = .*, a key that ckconv does not know of mixtral"):
        ckconv.convert(source, tmp_path / "out", to=to)
    assert ckconv.convert(source, tmp_path / "copy", to="safetensors").verified


@pytest.mark.parametrize("inner", [{}, {"rms_norm_eps": 0.5}])
def test_a_text_part_of_a_text_model_is_copied_alone(inner: dict[str, float], tmp_path: Path, ckconv: Any) -> None:
    """transformers loads no Llama that has one ('dict' object has no attribute 'to_dict')."""
    source = llama(tmp_path, text_config=inner)

    def to(*flags: str) -> Any:
        return ckconv("convert", source, f"{tmp_path}/out/", "--to", "hf", "--force", *flags)

    assert to().code == 0
    for flags in (["--fuse", "qkv"], ["--names", "gguf"], ["--context", "64"]):
        done = to(*flags)
        assert (done.code, "text_config = {" in done.err, "take it out of config.json" in done.err) == (4, True, True)
    done = to("--set-meta", "foo=1")
    assert (done.code, "transformers loads none that has one" in done.err) == (2, True)
    assert ("hint: --drop-meta text_config, too, drops it" in done.err) == (not inner)
    assert to("--set-meta", "foo=1", "--drop-meta", "text_config").code == (2 if inner else 0)
    assert inner or "text_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
