"""One key of a configuration changed: the conversion carries it, refuses it by its name, or takes no notice of what its
reader takes no notice of.

What transformers 5.23 and mlx-lm 0.32 do with each of these was run: logits over 60 positions.
"""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import family_cases
import gguf
import numpy as np
import pytest
from checkpoints import Decoder, as_mixtral, save
from click.testing import CliRunner
from conftest import FIXTURES
from safetensors_builder import tensors_of
from test_plan_checkpoint import config_of

import ckconv
from ckconv import Options
from ckconv.cli.commands import main
from ckconv.errors import CkconvError, InputError, UnsupportedError
from ckconv.families.catalog import FAMILIES

PLAIN, MOE = Decoder(), Decoder(experts=4, qk_norm=True)
SLIDE, FULL = "sliding_attention", "full_attention"
YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def model(root: Path, model_type: str = "llama", *, mlx: bool = False, biases: tuple[str, ...] = (),
          leave_out: tuple[str, ...] = (), **changes: Any) -> Path:  # fmt: skip
    """A checkpoint of a family, with keys changed, biases added to projections, tensors left out."""
    sparse = model_type in ("mixtral", "qwen3_moe")
    decoder = MOE if sparse else Decoder(qk_norm=model_type in ("qwen3", "gemma3_text"))
    tensors: dict[str, np.ndarray] = dict(decoder.tensors())
    if model_type == "mixtral":
        tensors = as_mixtral({k: v for k, v in tensors.items() if "_norm.weight" not in k or "layers" not in k})
    for name in [name for name in tensors if name.split(".")[-2] in biases]:
        tensors[name.replace(".weight", ".bias")] = np.ones(tensors[name].shape[0], np.float32)
    if model_type == "qwen2":
        for name in [name for name in tensors if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj")]:
            tensors[name.replace(".weight", ".bias")] = np.ones(tensors[name].shape[0], np.float32)
    if model_type == "gemma3_text":
        for name in [name for name in tensors if ".post_attention_layernorm." in name]:
            for norm in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
                tensors[name.replace("post_attention_layernorm", norm)] = np.ones(64, np.float32)
    kept = {name: array for name, array in tensors.items() if name not in leave_out}
    return save(
        root / "source", decoder.config(model_type, **changes), kept, metadata={"format": "mlx"} if mlx else None
    )


def gemma3(root: Path, **changes: Any) -> Path:
    return edited(root, FIXTURES / "hf/gemma3-text-bf16", **changes)


def edited(root: Path, source: Path, **changes: Any) -> Path:
    """A copy of a checkpoint; ``...`` takes a key away."""
    (root / "source").mkdir(parents=True)
    for path in source.iterdir():
        (root / "source" / path.name).write_bytes(path.read_bytes())
    document = {**json.loads((source / "config.json").read_text()), **changes}
    kept = {key: value for key, value in document.items() if value is not ...}
    (root / "source" / "config.json").write_text(json.dumps(kept))
    return root / "source"


def convert(source: Path, to: str, **options: Any) -> Path:
    out = source.parent / f"out-{to}"
    ckconv.convert(source, f"{out}/", to=to, options=Options(**options))
    return out


def fields(out: Path) -> dict[str, Any]:
    (path,) = out.glob("*.gguf")
    return {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}


# Tensors that the class does not have


@pytest.mark.parametrize(
    ("model_type", "changes", "switch"),
    [
        ("llama", {"attention_bias": False}, "attention_bias"),
        ("llama", {}, "attention_bias"),
        ("mistral", {"attention_bias": True, "sliding_window": None}, ""),
        ("qwen3", {"attention_bias": False}, "attention_bias"),
    ],
)
@pytest.mark.parametrize("to", ["gguf", "mlx", "bump"])
def test_biases_that_transformers_ignores_are_refused_by_name(
    tmp_path: Path, model_type: str, changes: dict[str, Any], switch: str, to: str
) -> None:
    source = model(tmp_path, model_type, biases=("q_proj",), **changes)

    with pytest.raises(UnsupportedError) as info:
        convert(source, to)
    said = " ".join((info.value.message, *info.value.details, info.value.hint or ""))
    assert "self_attn.q_proj.bias (2 tensors)" in said
    assert switch in said
    assert "--drop 'model.layers.*.self_attn.q_proj.bias'" in said


def test_biases_that_transformers_ignores_can_be_dropped(tmp_path: Path) -> None:
    plain = model(tmp_path / "a")
    biased = model(tmp_path / "b", biases=("q_proj", "gate_proj"))
    drop = ("model.layers.*.self_attn.q_proj.bias", "model.layers.*.mlp.gate_proj.bias")

    assert tensors_of(convert(biased, "mlx", drop=drop)) == tensors_of(convert(plain, "mlx"))
    manifest = json.loads((convert(biased, "bump", drop=drop) / "weights_manifest.json").read_text())
    assert manifest["has_attention_biases"] is False
    assert not any("bias" in t.name for t in gguf.GGUFReader(convert(biased, "gguf", drop=drop) / "model.gguf").tensors)


def test_a_copy_for_the_same_library_keeps_what_it_ignores(tmp_path: Path) -> None:
    source = model(tmp_path, biases=("q_proj",))

    assert tensors_of(convert(source, "safetensors")) == tensors_of(source)


@pytest.mark.parametrize("key", ["attention_bias", "mlp_bias"])
def test_biases_that_start_at_zero_are_none_for_mlx_lm(tmp_path: Path, key: str) -> None:
    """transformers makes them up as zeros, mlx-lm stops: "Missing 8 parameters"."""
    out = convert(model(tmp_path, **{key: True}), "mlx")

    assert config_of(out)[key] is False
    assert not any(name.endswith(".bias") for name in tensors_of(out))


EDITS = [
    ("jamba", "attn_layer_offset=0", 2, "says which layers", "they are those of attn_layer_offset = 2"),
    ("nemotron_h", "hybrid_override_pattern=M*M-", 2, "says which layers", "those of no hybrid_override_pattern"),
    ("mimo_v2_flash", "hybrid_layer_pattern=[1,0,0,1]", 2, "says which layers", "those of no hybrid_layer_pattern"),
    ("glm_moe_dsa", "index_topk_freq=3", 2, "says which layers", "they are those of no index_topk_freq"),
    ("qwen3_next", "full_attention_interval=3", 0, "mlx-lm's class has full attention in every nth layer", ""),
    ("mimo_v2_flash", "moe_layer_freq=[1,0,0,1]", 0, "config.json says otherwise in moe_layer_freq", ""),
    ("deepseek_v2", "moe_layer_freq=3", 0, "transformers does not read moe_layer_freq of config.json, mlx-lm does", ""),
]


@pytest.mark.parametrize(("family", "pair", "code", "said", "hint"), EDITS)
def test_an_edited_key_that_says_where_tensors_are_is_refused_or_said(
    family: str, pair: str, code: int, said: str, hint: str, tmp_path: Path, ckconv: Any
) -> None:
    """Also where another key of the same document says it: what reads the edited one alone would look elsewhere."""
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)

    done = ckconv("edit", source, tmp_path / "out", "--set-meta", pair)

    assert (done.code, said in done.out + done.err, hint in done.err) == (code, True, True), done


# Keys that change the computation


@pytest.mark.parametrize("to", ["gguf", "mlx", "bump"])
@pytest.mark.parametrize(
    ("model_type", "changes", "said"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("llama", {"rope_scaling": {**YARN, "truncate": False}}, "rope_scaling.truncate = False"),
        ("llama", {"rope_scaling": {**YARN, "partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        ("llama", {"rope_scaling": YARN, "partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ("mistral", {"sliding_window": 16}, "16 tokens (sliding_window)"),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}, "max_window_layers"),
    ],
)
def test_what_the_target_does_not_compute_is_refused(
    tmp_path: Path, model_type: str, changes: dict[str, Any], said: str, to: str
) -> None:
    source = model(tmp_path, model_type, **changes)

    with pytest.raises(UnsupportedError) as info:
        convert(source, to)
    assert said in " ".join((info.value.message, *info.value.details))


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_attention_in_both_ways_goes_to_gguf_and_to_no_engine_that_ignores_it(tmp_path: Path, model_type: str) -> None:
    source = model(tmp_path, model_type, is_causal=False)

    made = convert(source, "gguf")
    back = convert(made, "safetensors")

    assert config_of(back)["is_causal"] is False
    for given, to, said in (
        (source, "mlx", " is_causal = False"),
        (source, "bump", " is_causal = False"),
        (made, "mlx", ".attention.causal = False"),
        (made, "bump", ".attention.causal = False"),
    ):
        with pytest.raises(UnsupportedError) as info:
            convert(given, to)
        assert said in " ".join((info.value.message, *info.value.details))


def test_a_window_around_a_token_is_not_llama_cpps(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"sees in both ways around it \(is_causal\)"):
        convert(
            model(tmp_path, "qwen2", is_causal=False, use_sliding_window=True, sliding_window=16, max_window_layers=0),
            "gguf",
        )


@pytest.mark.parametrize(
    ("changes", "said"), [({"decoder_sparse_step": 2}, "decoder_sparse_step = 2"), ({"mlp_only_layers": [0]}, "= [0]")]
)
def test_layers_without_experts_are_not_for_llama_cpp(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError) as info:
        convert(model(tmp_path, "qwen3_moe", **changes, norm_topk_prob=True), "gguf")
    assert f"{said}, llama.cpp takes" in " ".join(info.value.details)


@pytest.mark.parametrize("to", ["gguf", "mlx"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"is_causal": False}, "is_causal"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        (
            {
                "rope_parameters": {
                    FULL: {"rope_type": "default", "rope_theta": 1e6},
                    SLIDE: {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
                }
            },
            "rope_parameters.sliding_attention.rope_type",
        ),
    ],
)
def test_what_gemma3_would_compute_otherwise_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str, to: str
) -> None:
    with pytest.raises(UnsupportedError) as info:
        convert(gemma3(tmp_path, **changes), to)
    assert said in " ".join((info.value.message, *info.value.details))


def test_gemma3_without_a_window_for_its_sliding_layers_is_malformed(tmp_path: Path) -> None:
    """``create_sliding_window_causal_mask`` of transformers raises; mlx-lm's class fails too."""
    with pytest.raises(InputError, match="sliding_window is null, and 5 layers slide"):
        convert(gemma3(tmp_path, sliding_window=None), "mlx")


def test_the_same_library_gets_the_key_as_it_is(tmp_path: Path) -> None:
    source = model(tmp_path, is_causal=False, hidden_act="gelu")

    assert config_of(convert(source, "safetensors", dtype="f32")) == config_of(source)


# Keys that change nothing


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {"partial_rotary_factor": 0.5}),
        ("llama", {"sliding_window": 16}),
        ("llama", {"num_local_experts": 8}),
        ("llama", {"logit_scale": 2.0, "residual_multiplier": 2.0, "attn_logit_softcapping": 30.0}),
        ("llama", {"rope_traditional": True}),
        ("llama", {"rope_scaling": {"factor": 2.0}}),
        ("llama", {"rope_theta": ..., "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "factor": 2.0}}),
        ("llama", {"is_causal": True, "pruned_heads": {}, "per_layer_config": None}),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 2}),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "layer_types": [FULL, FULL]}),
    ],
)
def test_what_transformers_takes_no_notice_of_changes_no_tensor_and_no_number(
    tmp_path: Path, model_type: str, changes: dict[str, Any]
) -> None:
    plain, changed = model(tmp_path / "a", model_type), model(tmp_path / "b", model_type, **changes)

    assert fields(convert(changed, "gguf")) == {**fields(convert(plain, "gguf")), "general.name": "Source"}
    written, usual = config_of(convert(changed, "mlx")), config_of(convert(plain, "mlx"))
    mlx_reads = ("rope_traditional", "rope_theta", "layer_types", "head_dim", "num_hidden_layers")
    assert {key: written.get(key) for key in mlx_reads if key != "layer_types"} == {
        key: usual.get(key) for key in mlx_reads if key != "layer_types"
    }


def test_keys_that_nobody_knows_are_named_in_one_note(tmp_path: Path) -> None:
    source = model(tmp_path, logit_scale=2.0, zebra=1, rope_scaling={**YARN, "stripes": 2})

    report = ckconv.convert(source, tmp_path / "m.gguf").plan
    (note,) = [note for note in report.notes if "zebra" in note]
    assert note == ("no known class of llama reads these keys of config.json: logit_scale, zebra, rope_scaling.stripes")


# Refusals name the key


@pytest.mark.parametrize(
    ("fixture", "changes", "to", "key"),
    [
        ("gpt2-hub-f32", {"n_embd": ...}, "gguf", "n_embd is missing"),
        ("gpt2-hub-f32", {"n_positions": ...}, "gguf", "n_positions is 1,024"),
        (
            "gpt2-hub-f32",
            {"model_type": "qwen2"},
            "gguf",
            "num_hidden_layers is missing, which a qwen2 (model_type) has",
        ),
        ("qwen3-tied-bf16", {"model_type": "llama"}, "gguf", "model_type"),
        ("qwen3-tied-bf16", {"model_type": "llama"}, "mlx", "model_type"),
        ("qwen3-tied-bf16", {"model_type": "llama"}, "bump", "model_type"),
        ("qwen3-tied-bf16", {"model_type": "gemma3_text"}, "gguf", "model_type"),
        ("qwen3-tied-bf16", {"head_dim": 1, "num_attention_heads": 128}, "gguf", "head_dim"),
        ("gemma3-text-bf16", {"sliding_window_pattern": 12, "layer_types": ...}, "mlx", "sliding_window_pattern"),
    ],
)
def test_a_refusal_names_the_key(tmp_path: Path, fixture: str, changes: dict[str, Any], to: str, key: str) -> None:
    source = edited(tmp_path, FIXTURES / "hf" / fixture, **changes)

    with pytest.raises(CkconvError) as info:
        convert(source, to)
    assert key in " ".join((info.value.message, *info.value.details))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_other_class_misses_its_own_keys_by_name(tmp_path: Path, family: str) -> None:
    for model_type in {*FAMILIES[family].in_huggingface.names} - {"gpt2"}:
        source = edited(tmp_path / model_type, FIXTURES / "hf/gpt2-hub-f32", model_type=model_type)
        for to in ("gguf", "mlx"):
            with pytest.raises(CkconvError) as info:
                convert(source, to)
            assert info.value.exit_code in (3, 4), model_type


def test_fewer_experts_than_are_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="num_experts_per_tok is 2, num_local_experts is 1"):
        convert(model(tmp_path, "mixtral", num_local_experts=1, num_experts_per_tok=2), "gguf")


def test_a_quantization_of_nothing_is_not_read_by_transformers(tmp_path: Path) -> None:
    """Arrays that torch wrote are transformers' where none of them is quantized."""
    source = edited(tmp_path, FIXTURES / "hf/gpt2-hub-f32", quantization={"group_size": 64, "bits": 4})

    assert "quantization" not in config_of(convert(source, "mlx"))
    assert fields(convert(source, "gguf"))["gpt2.block_count"] == 2


# What only mlx-lm reads


def test_a_window_as_long_as_the_context_is_the_same_in_both_libraries(tmp_path: Path) -> None:
    source = model(tmp_path, mlx=True, layer_types=[FULL, SLIDE], sliding_window=16)

    out = convert(source, "safetensors", context=16)
    assert json.loads((out / "config.json").read_text())["max_position_embeddings"] == 16


@pytest.mark.parametrize("to", ["gguf", "safetensors"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rope_traditional": True}, "rope_traditional = True"),
        ({"quantize_activations": True}, "quantize_activations = True"),
        ({"layer_types": [FULL, SLIDE], "sliding_window": 16}, "sliding_window"),
        ({"rope_theta": ..., "rope_parameters": {"rope_theta": 5e5}}, "rope_parameters.rope_theta = 500000.0"),
        ({"rope_parameters": {**YARN, "rope_theta": 1e4}}, "rope_parameters.rope_type = 'yarn'"),
    ],
)
def test_what_only_mlx_lm_computes_is_refused(tmp_path: Path, changes: dict[str, Any], said: str, to: str) -> None:
    source = model(tmp_path, mlx=True, **changes)

    with pytest.raises(UnsupportedError) as info:
        convert(source, to)
    assert said in " ".join((info.value.message, *info.value.details))


@pytest.mark.parametrize("changes", [{"hidden_act": "gelu"}, {"is_causal": False}])
def test_what_mlx_lm_takes_no_notice_of_is_not_handed_to_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    source = model(tmp_path, mlx=True, **changes)

    assert not changes.items() <= config_of(convert(source, "safetensors")).items()
    assert fields(convert(source, "gguf"))["general.architecture"] == "llama"


def test_mrope_of_mlx_lm_turns_a_text_as_no_scaling(tmp_path: Path) -> None:
    """``initialize_rope`` of mlx_lm/models/rope_utils.py; transformers does not load a llama with that type."""
    source = model(tmp_path, mlx=True, rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]})

    written = config_of(convert(source, "safetensors"))
    assert (written["rope_scaling"], written["rope_parameters"]["rope_type"]) == (None, "default")
    assert not any("rope.scaling" in key for key in fields(convert(source, "gguf")))


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"type": "deepseek_yarn", "factor": 2.0}, "rope_type is 'deepseek_yarn' (rope_scaling, rope_parameters)"),
        (
            {
                "type": "longrope",
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 64,
            },
            "rope_scaling.long_factor, which mlx-lm also uses for short sequences, changes the computation",
        ),
    ],
)
def test_a_scaling_that_the_libraries_do_not_compute_alike_is_not_handed_over(
    tmp_path: Path, scaling: dict[str, Any], said: str
) -> None:
    """``SuScaledRoPE`` of mlx_lm takes the long factors from the first token on: logits are 0.9 off."""
    source = model(tmp_path, mlx=True, rope_scaling=scaling)

    with pytest.raises(UnsupportedError) as info:
        convert(source, "safetensors")
    assert said in " ".join((str(info.value), *info.value.details))


@pytest.mark.parametrize(
    ("changes", "edit"),
    [
        ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, {"drop_meta": ("rope_scaling",)}),
        (
            {"rope_theta": ..., "rope_parameters": {"rope_theta": 1e4, "rope_type": "mrope", "mrope_section": [2, 3]}},
            {"set_meta": (("rope_parameters.rope_type", "default"),)},
        ),
    ],
)
@pytest.mark.parametrize("to", ["gguf", "mlx", "bump"])
def test_sections_of_a_text_model_are_taken_away_by_what_is_hinted(
    tmp_path: Path, changes: dict[str, Any], edit: dict[str, Any], to: str
) -> None:
    """transformers loads no Qwen 2 with that type, and llama.cpp's converter leaves it out."""
    source = model(tmp_path / "sections", "qwen2", **changes)

    with pytest.raises(UnsupportedError, match="rope_type mrope") as info:
        convert(source, to)
    ((flag, (value,)),) = edit.items()
    said = value if isinstance(value, str) else "=".join(value)
    assert f"ckconv edit SRC DST/ --{flag.replace('_', '-')} {said} " in (info.value.hint or "")
    ckconv.edit(source, tmp_path / "edited", **edit)
    convert(tmp_path / "edited", to)


def test_what_mlx_lm_does_not_read_of_a_scaling_is_not_handed_to_transformers(tmp_path: Path) -> None:
    """``rope_kwargs`` of ``initialize_rope`` in mlx_lm/models/rope_utils.py."""
    yarn, idle = {**YARN, "original_max_position_embeddings": 32}, {"truncate": False}
    written = config_of(convert(model(tmp_path, mlx=True, rope_scaling={**yarn, **idle}), "safetensors"))

    assert written["rope_scaling"] == yarn
    assert not idle.items() <= written["rope_parameters"].items()


# Keys that say different things


@pytest.mark.parametrize(
    ("changes", "base", "idle"),
    [
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e6}}, 1e6,
         "rope_theta, because rope_parameters.rope_theta is there"),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "default", "rope_theta": 1e6}}, 1e6,
         "rope_theta, because rope_scaling.rope_theta is there"),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "default", "type": "linear", "factor": 2.0}}, 5e5,
         "rope_scaling.type, because rope_scaling.rope_type is there"),
    ],
)  # fmt: skip
def test_of_two_keys_that_transformers_could_read_the_one_is_carried_that_it_reads(
    tmp_path: Path, changes: dict[str, Any], base: float, idle: str
) -> None:
    source = model(tmp_path, **changes)

    keys = fields(convert(source, "gguf"))
    assert (keys["llama.rope.freq_base"], any("rope.scaling" in key for key in keys)) == (base, False)
    written = config_of(convert(source, "mlx"))
    assert (written["rope_theta"], written.get("rope_scaling")) == (base, None)
    (note,) = [note for note in ckconv.convert(source, tmp_path / "m.gguf").plan.notes if "because" in note]
    assert note == f"transformers does not read everything that config.json says: {idle}"


def test_a_base_that_a_scaling_takes_away_is_missed(tmp_path: Path) -> None:
    """transformers takes ``rope_scaling`` instead of ``rope_parameters``, and 10,000 where it names no base."""
    source = model(tmp_path, rope_theta=..., rope_parameters={"rope_theta": 5e5}, rope_scaling=YARN)

    with pytest.raises(
        InputError, match=r"rope_parameters.rope_theta is 500,000\.0, and not read, because rope_scaling"
    ):
        convert(source, "gguf")


def test_gemma3_reads_rope_type_of_its_own_before_type_of_rope_scaling(tmp_path: Path) -> None:
    """``convert_rope_params_to_dict`` of ``Gemma3TextConfig`` starts from ``rope_type``: default."""
    source = gemma3(tmp_path, rope_parameters=..., rope_scaling={"type": "linear", "factor": 2.0})

    assert not any("rope.scaling" in key for key in fields(convert(source, "gguf")))
    assert "rope_scaling" not in config_of(convert(source, "mlx"))


def test_a_mistral_of_mlx_lm_does_not_slide_in_transformers_either(tmp_path: Path) -> None:
    source = model(tmp_path, "mistral", mlx=True, sliding_window=16)

    assert config_of(convert(source, "safetensors"))["sliding_window"] is None


# The output head


@pytest.mark.product("values")
@pytest.mark.parametrize("to", ["gguf", "mlx", "bump"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_a_head_that_the_class_would_make_up_is_missed(tmp_path: Path, model_type: str, to: str) -> None:
    source = model(tmp_path, model_type, leave_out=("lm_head.weight",), tie_word_embeddings=...)

    with pytest.raises(UnsupportedError) as info:
        convert(source, to)
    said = " ".join((info.value.message, *info.value.details, info.value.hint or ""))
    assert '"tie_word_embeddings": true in config.json' in said


def test_a_head_that_the_class_ties_is_not_missed(tmp_path: Path) -> None:
    source = edited(tmp_path, FIXTURES / "hf/gemma3-text-bf16", tie_word_embeddings=...)

    assert "output.weight" not in {t.name for t in gguf.GGUFReader(convert(source, "gguf") / "model.gguf").tensors}


# Another context length


@pytest.mark.parametrize("to", ["gguf", "safetensors", "mlx"])
def test_another_context_leaves_the_rotation_as_it_is(tmp_path: Path, to: str) -> None:
    out = convert(model(tmp_path, rope_scaling=YARN), to, context=64)

    if to == "gguf":
        assert fields(out)["llama.rope.scaling.original_context_length"] == 128
    else:
        assert config_of(out)["rope_scaling"]["original_max_position_embeddings"] == 128
        assert config_of(out)["max_position_embeddings"] == 64


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen3", "mixtral"])
def test_a_context_that_mlx_lm_has_no_number_for_is_asked_for(tmp_path: Path, model_type: str) -> None:
    """transformers' class would take its own, and the output would not verify."""
    source = model(tmp_path, model_type, mlx=True, max_position_embeddings=...)

    with pytest.raises(UnsupportedError, match="the source names no context length") as caught:
        convert(source, "safetensors")
    assert caught.value.hint == "--context N sets one"
    assert config_of(convert(source, "safetensors", context=64))["max_position_embeddings"] == 64


@pytest.mark.parametrize("mlx", [False, True])
def test_the_context_that_the_sources_class_takes_is_written_for_another(tmp_path: Path, mlx: bool) -> None:
    """Gemma3TextConfig takes 131,072 where nothing is said, mlx-lm's gemma3_text 32,768."""
    source = gemma3(tmp_path)
    if mlx:
        source = convert(source, "mlx")
    document = {key: value for key, value in config_of(source).items() if key != "max_position_embeddings"}
    (source / "config.json").write_text(json.dumps(document))

    out = convert(source, "safetensors" if mlx else "mlx")
    assert config_of(out)["max_position_embeddings"] == (32768 if mlx else 131072)


def test_qwen_1_is_trained_for_other_tokens_than_its_context_in_mlx_too(tmp_path: Path) -> None:
    case = next(one for one in family_cases.cases("qwen") if one.name == "plain")
    root = family_cases.checkpoint(case.recorded, tmp_path / "hf", {})
    source = edited(tmp_path, root, seq_length=16)

    assert config_of(convert(source, "mlx"))["seq_length"] == 16


@pytest.mark.parametrize("to", ["safetensors", "mlx"])
def test_a_scaling_that_follows_from_the_context_keeps_it(tmp_path: Path, to: str) -> None:
    source = model(tmp_path, rope_scaling={"rope_type": "dynamic", "factor": 2.0})

    with pytest.raises(UnsupportedError, match="rope_type dynamic"):
        convert(source, to, context=64)


@pytest.mark.parametrize(("to", "model_type"), [("gguf", "llama"), ("bump", "llama"), ("gguf", "qwen3")])
@pytest.mark.parametrize("mlx", [False, True])
def test_a_scaling_that_starts_behind_the_context_scales_nothing(
    tmp_path: Path, to: str, model_type: str, mlx: bool
) -> None:
    source = model(tmp_path, model_type, mlx=mlx, rope_scaling={"rope_type": "dynamic", "factor": 2.0})

    notes = ckconv.convert(source, f"{tmp_path}/out/", to=to, options=Options(context=64)).plan.notes
    assert [note for note in notes if "dynamic" in note and "behind 128 tokens only" in note]
    with pytest.raises(UnsupportedError, match="dynamic"):
        convert(source, to, context=129)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_a_yarn_that_shrinks_is_refused(tmp_path: Path, model_type: str) -> None:
    """``get_mscale`` of transformers is 1 then, llama.cpp takes 1 + 0.1 * log(factor): logits are 0.57 off."""
    yarn = {**YARN, "factor": 0.5, "original_max_position_embeddings": 32}
    with pytest.raises(UnsupportedError, match=r"factor = 0\.5"):
        convert(model(tmp_path, model_type, rope_scaling=yarn, sliding_window=16), "gguf")


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_scaling_by_one_is_none_for_the_engine(tmp_path: Path, kind: str) -> None:
    convert(model(tmp_path, rope_scaling={"rope_type": kind, "factor": 1.0}), "bump", bump_version=5)


def test_llama3_scaling_without_an_original_context_starts_from_the_models_own(tmp_path: Path) -> None:
    """``standardize_rope_params`` of transformers; mlx-lm would take 8192."""
    out = convert(model(tmp_path, rope_scaling=LLAMA3), "mlx")

    assert config_of(out)["rope_scaling"]["original_max_position_embeddings"] == 128


# Values of no use


@pytest.mark.product("values")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            (key, value)
            for key in ("hidden_size", "num_hidden_layers", "vocab_size")
            for value in ("64", True, -1, 2**60, math.inf)
        ),
        *(("num_attention_heads", value) for value in ("4", 0, 2.5, None)),
        *(("rms_norm_eps", value) for value in ("small", True, -1.0, math.inf, math.nan)),
        *(("rope_theta", value) for value in ("x", 0, -3.0, True, math.inf, math.nan)),
        *((key, "yes") for key in ("attention_bias", "mlp_bias", "tie_word_embeddings")),
        ("rope_scaling", "linear"),
        ("rope_parameters", [1]),
    ],
)
@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_a_value_of_another_type_is_named(tmp_path: Path, key: str, value: object, to: str) -> None:
    source = model(tmp_path, **{key: value})

    with pytest.raises(CkconvError) as info:
        convert(source, to)
    assert info.value.exit_code in (3, 4)
    assert key in " ".join((info.value.message, *info.value.details))


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"rope_type": "linear"}, "rope_scaling.factor is missing"),
        ({"type": "yarn"}, "rope_scaling.factor is missing"),
        ({"rope_type": "linear", "factor": math.inf}, "rope_scaling.factor must be a number above 0, got inf"),
        ({"rope_type": "linear", "factor": "2"}, "rope_scaling.factor must be a number above 0, got '2'"),
        ({**LLAMA3, "low_freq_factor": -1}, "rope_scaling.low_freq_factor must be a number above 0"),
        (
            {**LLAMA3, "low_freq_factor": 4.5},
            "rope_scaling.low_freq_factor is above rope_scaling.high_freq_factor, which is 4.0",
        ),
        ({"rope_type": 7}, "rope_scaling.rope_type must be a word, got 7"),
    ],
)
def test_a_scaling_that_makes_no_sense_is_named(tmp_path: Path, scaling: dict[str, Any], said: str) -> None:
    source = model(tmp_path, rope_scaling=scaling)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError) as info:
            convert(source, "gguf")
    assert said in info.value.message


def _no_json(word: str) -> None:
    raise AssertionError(f"{word} is not a JSON number")


def test_what_transformers_4_wrote_as_infinity_is_written_as_json_has_it(tmp_path: Path) -> None:
    (case,) = (case for case in family_cases.cases("mamba2") if case.name == "released")
    source = family_cases.checkpoint(case.recorded, tmp_path / "source", case.tokenizer)
    assert '"time_step_limit": [\n    0.0,\n    Infinity' in (source / "config.json").read_text()

    copy = convert(source, "safetensors")
    assert (copy / "config.json").read_bytes() == (source / "config.json").read_bytes()
    ckconv.verify(copy, source)

    document = json.loads((source / "config.json").read_text()) | {"of_nobody": [math.inf]}
    (source / "config.json").write_text(json.dumps(document))
    made = json.loads((convert(source, "mlx") / "config.json").read_text(), parse_constant=_no_json)
    assert (made["time_step_limit"], made["of_nobody"]) == ([0.0, 1e38], [{"__float__": "Infinity"}])


def test_inspect_shows_an_infinity_of_a_configuration_as_text(tmp_path: Path) -> None:
    source = model(tmp_path, of_nobody=[1.5, {"a": math.inf}, math.nan])
    done = CliRunner().invoke(main, ["inspect", str(source), "--json"])

    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["metadata"]["of_nobody"] == [1.5, {"a": "inf"}, "nan"]


def test_a_base_that_no_float32_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="rope_theta is 1e-46"):
        convert(model(tmp_path, rope_theta=1e-46), "gguf")


@pytest.mark.parametrize(
    ("key", "value"), [("num_hidden_layers", 1), ("intermediate_size", 80), ("num_key_value_heads", 1)]
)
def test_a_number_that_the_tensors_contradict_is_named(tmp_path: Path, key: str, value: int) -> None:
    with pytest.raises(InputError, match=key):
        convert(model(tmp_path, **{key: value}), "gguf")


def test_part_of_a_head_is_nothing_to_gpt2(tmp_path: Path) -> None:
    source = edited(tmp_path, FIXTURES / "hf/gpt2-hub-f32", partial_rotary_factor=0.5)

    assert "gpt2.rope.dimension_count" not in fields(convert(source, "gguf"))


def test_a_new_family_is_not_admitted_to_bump_3_unless_somebody_thinks_of_it() -> None:
    rows = {name: family.engines.get("bump3") for name, family in FAMILIES.items()}
    assert sorted(name for name, row in rows.items() if row and not row.absent) == [
        "llama", "phi3", "qwen2", "qwen3", "qwen3_vl"
    ]  # fmt: skip


def test_experts_without_a_size_are_refused_by_the_keys_that_say_it(tmp_path: Path) -> None:
    decoder = Decoder(experts=3)
    document = decoder.config("mixtral")
    del document["intermediate_size"]
    source = save(tmp_path / "hf", document, as_mixtral(decoder.tensors()))

    for target in ("gguf", "mlx"):
        with pytest.raises(UnsupportedError, match=r"axis M has 0 elements .intermediate_size, .*model_type"):
            ckconv.convert(source, f"{tmp_path}/out/", to=target)


def test_a_number_that_only_a_class_has_is_laid_to_the_model_type(tmp_path: Path) -> None:
    source = next(path for path in sorted((FIXTURES / "mlx").iterdir()) if path.name.startswith("llama"))

    with pytest.raises(InputError, match=r"embedding_multiplier is missing, as model_type 'granite' wants"):
        convert(edited(tmp_path, source, model_type="granite"), "gguf")


def test_experts_that_a_count_of_none_hides_are_laid_to_it(tmp_path: Path) -> None:
    source = tmp_path / "m.gguf"
    data = (FIXTURES / "experts/mixtral.f32.gguf").read_bytes()
    at = data.index(b"llama.expert_count") + len(b"llama.expert_count") + 4
    source.write_bytes(data[:at] + bytes(4) + data[at + 4 :])

    with pytest.raises(UnsupportedError) as info:
        convert(source, "safetensors")
    assert any("ffn_up_exps.weight" in line and "(llama.expert_count)" in line for line in info.value.details)


def test_layers_that_a_class_would_make_up_are_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    with pytest.raises(UnsupportedError, match=r"add_cross_attention"):
        convert(edited(tmp_path / "hf", FIXTURES / "hf/gpt2-hub-f32", add_cross_attention=True), "gguf")

    mlx = convert(edited(tmp_path, FIXTURES / "hf/gpt2-hub-f32"), "mlx")
    (mlx / "config.json").write_text(json.dumps({**config_of(mlx), "add_cross_attention": True}))
    assert config_of(convert(mlx, "safetensors")).get("add_cross_attention") in (None, False)


@pytest.mark.parametrize("offset", [-1, 99, "1"])
@pytest.mark.parametrize("key", ["expert_layer_offset", "attn_layer_offset"])
def test_an_offset_of_jamba_outside_of_its_period_is_refused(tmp_path: Path, key: str, offset: object) -> None:
    case = next(family_cases.cases("jamba"))
    made = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {key: offset}))
    with pytest.raises(InputError, match=key):
        ckconv.convert(made, tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("target", "step", "listed", "said"),
    [
        ("m.gguf", 2, [1, 3], ""),
        ("m.gguf", 1, [1, 3], ""),
        ("m.gguf", 1, [0, 3], "llama4"),
        ("m.gguf", 2, [1, 3, 4], "experts"),
        ("m.gguf", 2, [1, 99], "moe_layers"),
        ("m.gguf", 2, "all", "moe_layers"),
        ("mlx", 1, [1, 3], "takes one expert"),
    ],
)
def test_layers_of_llama4_with_experts_are_those_of_the_list(
    tmp_path: Path, target: str, step: int, listed: object, said: str
) -> None:
    case = next(case for case in family_cases.cases("llama4") if case.name == "every_other_layer_has_experts")
    made = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    config = json.loads((made / "config.json").read_text())
    changed = config | {"moe_layers": listed, "interleave_moe_layer_step": step}
    (made / "config.json").write_text(json.dumps(changed))
    options = {"to": "mlx"} if target == "mlx" else {}
    if said:
        with pytest.raises(CkconvError, match=said):
            ckconv.convert(made, tmp_path / target, **options)
    else:
        ckconv.convert(made, tmp_path / target, **options)
        found = gguf.GGUFReader(tmp_path / target).fields["llama4.interleave_moe_layer_step"]
        assert found.contents() == 2
        assert ckconv.diff(made, tmp_path / target).same


def test_mlx_lm_is_told_the_step_of_a_list_of_layers_with_experts(tmp_path: Path) -> None:
    case = next(case for case in family_cases.cases("llama4") if case.name == "every_other_layer_has_experts")
    changes = {"moe_layers": [1, 3], "interleave_moe_layer_step": 1, "num_experts_per_tok": 1}
    recorded = {**case.recorded, "config": case.recorded["config"] | changes}
    made = family_cases.checkpoint(recorded, tmp_path / "hf", case.tokenizer)

    assert config_of(convert(made, "mlx"))["text_config"]["interleave_moe_layer_step"] == 2


def test_a_table_is_dropped_with_what_is_in_it(tmp_path: Path) -> None:
    source = model(tmp_path / "hf", rope_parameters={"rope_theta": 5e5, "rope_type": "default"}, rope_theta=5e5)
    ckconv.edit(source, tmp_path / "out", drop_meta=("rope*",))

    assert not [key for key in config_of(tmp_path / "out") if key.startswith("rope")]
