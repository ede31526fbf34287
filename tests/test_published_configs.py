"""Checkpoints as they are published, where they differ from what transformers writes now."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import pytest
from checkpoints import Decoder, save
from family_cases import checkpoint, recording, tensors

import ckconv
from ckconv.errors import CkconvError, UnsupportedError

#: Keys of the code that nomic-embed came with -> those of transformers 5.
NOMIC = {
    "n_layer": "num_hidden_layers", "n_embd": "hidden_size", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps", "n_positions": "max_position_embeddings",
}  # fmt: skip


def published(root: Path, family: str, case: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """The checkpoint of a recorded case with another configuration."""
    made = checkpoint(recording(family)[case], root / "source")
    path = made / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    return made


def nomic(root: Path, **said: Any) -> Path:
    def older(document: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in document.items() if key not in (*NOMIC.values(), "rope_parameters")}
        return kept | {key: document[theirs] for key, theirs in NOMIC.items()} | said

    return published(root, "nomic_bert", "plain", older)


@pytest.mark.parametrize(("said", "base"), [({}, 1000.0), ({"rotary_emb_base": 10000}, 10000.0)])
def test_nomic_bert_turns_by_the_base_that_its_first_code_reads(
    tmp_path: Path, said: dict[str, Any], base: float
) -> None:
    ckconv.convert(nomic(tmp_path, **said), tmp_path / "m.gguf")

    assert gguf.GGUFReader(tmp_path / "m.gguf").fields["nomic-bert.rope.freq_base"].contents() == base


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rotary_emb_fraction", 0.5),
        ("rotary_emb_interleaved", True),
        ("activation_function", "geglu"),
        ("use_rms_norm", True),
        ("prenorm", True),
        ("causal", True),
    ],
)
def test_what_the_first_code_of_nomic_bert_computes_otherwise_is_refused(
    tmp_path: Path, key: str, value: object
) -> None:
    with pytest.raises(UnsupportedError, match=f"{key} = .* changes the computation"):
        ckconv.convert(nomic(tmp_path, **{key: value}), tmp_path / "m.gguf")


def test_k_and_v_that_llama_cpp_loads_in_every_layer_are_missed_where_transformers_left_them_out(
    tmp_path: Path,
) -> None:
    """transformers 5 writes no K and V of layers that use those of others; llama.cpp's gemma3n does not load that."""
    found = recording("gemma3n")
    case = next(name for name, one in found.items() if one.get("config", {}).get("num_kv_shared_layers"))
    shared = found[case]["config"]["num_kv_shared_layers"]

    with pytest.raises(
        UnsupportedError, match=rf"no tensor for layers.{{n}}.attention.k.weight in {shared} layers"
    ) as info:
        ckconv.convert(checkpoint(found[case], tmp_path / "source"), tmp_path / "m.gguf")
    assert info.value.code == "plan.refused"


@pytest.mark.parametrize("embeds", ["modules.json", "class"])
def test_a_model_that_gives_embeddings_needs_no_head(tmp_path: Path, embeds: str) -> None:
    stored = {name: array for name, array in Decoder().tensors().items() if name != "lm_head.weight"}
    said = {"architectures": ["LlamaModel"]} if embeds == "class" else {}
    source = save(tmp_path / "hf", {**Decoder().config(), **said}, stored)
    if embeds == "modules.json":
        pooling = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
        (source / "modules.json").write_text(json.dumps([pooling]))
        (source / "1_Pooling").mkdir()
        (source / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))

    report = ckconv.convert(source, tmp_path / "m.gguf")
    names = {tensor.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert "output.weight" not in names
    assert any("the model gives embeddings" in note for note in report.plan.notes)


def test_logits_of_a_model_without_a_head_are_none(tmp_path: Path) -> None:
    stored = {name: array for name, array in Decoder().tensors().items() if name != "lm_head.weight"}
    said = {"architectures": ["GPT2LMHeadModel", "LlamaForCausalLM"]}

    with pytest.raises(UnsupportedError, match="but there is none"):
        ckconv.convert(save(tmp_path / "hf", {**Decoder().config(), **said}, stored), tmp_path / "m.gguf")


def test_numbers_between_two_floats_come_back_as_one_of_them(tmp_path: Path) -> None:
    """Command R+ says 0.8333333333333334, and a GGUF holds the float32 next to it."""
    source = published(tmp_path, "cohere", "scale", lambda document: {**document, "logit_scale": 5 / 6})

    ckconv.convert(source, tmp_path / "m.gguf")
    assert np.float32(gguf.GGUFReader(tmp_path / "m.gguf").fields["command-r.logit_scale"].contents()) == np.float32(
        5 / 6
    )
    ckconv.verify(tmp_path / "m.gguf", source)


@pytest.mark.parametrize(
    ("family", "case", "to", "said"),
    [
        (
            "phi3",
            "plain",
            "gguf",
            {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False},
        ),
        ("phimoe", "untied", "mlx", {"expert_dropout": 0.0, "hidden_dropout": 0.0}),
    ],
    ids=["Phi-4-mini-instruct", "Phi-mini-MoE-instruct"],
)
def test_keys_of_released_models_that_no_class_reads_change_nothing(
    tmp_path: Path, family: str, case: str, to: Literal["gguf", "mlx"], said: dict[str, Any]
) -> None:
    """Beside ``auto_map``, a key that is not known may be one that the code reads."""

    def whole(document: dict[str, Any]) -> dict[str, Any]:
        code = {"AutoModelForCausalLM": f"modeling_{family}.{document['architectures'][0]}"}
        return {**document, **said, "auto_map": code}

    ckconv.convert(published(tmp_path / "said", family, case, whole), tmp_path / "a", to=to)
    ckconv.convert(published(tmp_path / "unsaid", family, case, dict), tmp_path / "b", to=to)

    one, other = (path / "model.safetensors" if to == "mlx" else path for path in (tmp_path / "a", tmp_path / "b"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("family", "case", "key"),
    [
        ("gpt2", "tied", "activation_function"),
        ("gpt_bigcode", "tied", "activation_function"),
        ("phi", "half", "hidden_act"),
        ("starcoder2", "tied", "hidden_act"),
    ],
)
@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_gelu_is_what_engines_compute_whether_by_tanh_or_not(
    tmp_path: Path, family: str, case: str, key: str, to: Literal["gguf", "mlx"]
) -> None:
    """StarCoder says "gelu", and llama.cpp has one GELU for all models."""
    ckconv.convert(published(tmp_path, family, case, lambda old: {**old, key: "gelu"}), tmp_path / "out", to=to)

    source = published(tmp_path / "other", family, case, lambda old: {**old, key: "relu"})
    with pytest.raises(UnsupportedError, match=f"{key} = 'relu' changes the computation"):
        ckconv.convert(source, tmp_path / "none", to=to)


@pytest.mark.parametrize(
    ("family", "case"),
    [
        ("bloom", "two_heads"),
        ("falcon", "every_head"),
        ("gpt_neox", "parallel"),
        ("mamba", "tied"),
        ("modernbert", "plain"),
        ("nemotron_h", "untied"),
        ("t5", "gated"),
    ],
)
def test_the_embedding_has_the_size_of_a_vocabulary_that_nothing_says(tmp_path: Path, family: str, case: str) -> None:
    def unsaid(document: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in document.items() if key != "vocab_size"}

    ckconv.convert(published(tmp_path / "said", family, case, dict), tmp_path / "a.gguf")
    ckconv.convert(published(tmp_path / "unsaid", family, case, unsaid), tmp_path / "b.gguf")

    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_words_of_inputs_of_layers_do_not_count_where_a_gemma_4_has_none(tmp_path: Path) -> None:
    """Without them, the class still has 262,144 for their number."""

    def unsaid(document: dict[str, Any]) -> dict[str, Any]:
        assert not document["hidden_size_per_layer_input"]
        return {key: value for key, value in document.items() if key != "vocab_size_per_layer_input"}

    ckconv.convert(published(tmp_path, "gemma4_text", "keys_are_values", unsaid), tmp_path / "m.gguf")


@pytest.mark.parametrize("model_type", ["gemma", "gemma2"])
def test_mlx_lm_is_told_the_size_of_a_head_that_only_transformers_takes_for_granted(
    tmp_path: Path, model_type: str
) -> None:
    """Gemma's classes have heads of 256 elements where nothing is said; those of mlx-lm want the key."""
    decoder = Decoder(heads=2, kv_heads=1, head_dim=256)
    tensors = {name: array for name, array in decoder.tensors().items() if name != "lm_head.weight"}
    if model_type == "gemma2":
        norms = [name for name in tensors if name.endswith("post_attention_layernorm.weight")]
        for place in ("pre_feedforward", "post_feedforward"):
            tensors |= {name.replace("post_attention", place): tensors[name] for name in norms}
    document = decoder.config(model_type, head_dim=..., tie_word_embeddings=True)
    ckconv.convert(save(tmp_path / "hf", document, tensors), tmp_path / "out", to="mlx")

    assert json.loads((tmp_path / "out" / "config.json").read_text())["head_dim"] == 256


# Windows: what a class slides over, where its keys say it


SLIDE, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("family", "case", "to"),
    [("dots1", "untied", "gguf"), ("dots1", "untied", "mlx"), ("qwen3_reranker", "tied", "mlx")],
)
def test_a_window_from_a_layer_on_is_one_though_no_list_says_it(
    tmp_path: Path, family: str, case: str, to: Literal["gguf", "mlx"]
) -> None:
    said = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}

    def windowed(document: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in document.items() if key != "layer_types"} | said

    with pytest.raises(UnsupportedError, match="attention slides over 8 tokens"):
        ckconv.convert(published(tmp_path, family, case, windowed), tmp_path / "out", to=to)


def test_a_classifier_with_a_window_is_none_of_llama_cpp(tmp_path: Path) -> None:
    said = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0, "layer_types": [SLIDE, SLIDE]}
    source = published(tmp_path, "qwen3_classifier", "three_labels", lambda old: {**old, **said})

    with pytest.raises(UnsupportedError, match="attention slides over 8 tokens"):
        ckconv.convert(source, tmp_path / "m.gguf")


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_layers_that_slide_without_the_switch_are_no_model_of_transformers(tmp_path: Path, family: str) -> None:
    """mlx-lm does not look at the list, so a directory of its own goes out without it."""

    def listed(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "layer_types": [SLIDE, *[FULL] * (document["num_hidden_layers"] - 1)]}

    source = published(tmp_path, family, "untied", listed)
    with pytest.raises(CkconvError, match=r"use_sliding_window is .*, and 1 layers slide"):
        ckconv.convert(source, tmp_path / "m.gguf")

    right = published(tmp_path / "mlx", family, "untied", dict)
    ckconv.convert(right, tmp_path / "m", to="mlx")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps(listed(json.loads(path.read_text()))))
    ckconv.convert(tmp_path / "m", tmp_path / "back", to="safetensors")
    assert SLIDE not in (tmp_path / "back" / "config.json").read_text()


def test_a_window_that_transformers_llama_does_not_read_is_not_handed_to_mlx_lm(tmp_path: Path) -> None:
    said = {"sliding_window": 4, "layer_types": [SLIDE, FULL, FULL]}
    source = published(tmp_path, "llama", "untied", lambda old: {**old, **said})

    ckconv.convert(source, tmp_path / "m", to="mlx")
    made = json.loads((tmp_path / "m" / "config.json").read_text())
    assert ("layer_types" in made, made["sliding_window"]) == (False, None)


@pytest.mark.parametrize(
    ("family", "case", "key"),
    [
        ("gpt_oss", "yarn", "gpt-oss"),
        ("exaone_moe", "untied", "exaone-moe"),
        ("gemma_embedding", "plain", "gemma-embedding"),
    ],
)
def test_layers_that_slide_over_nothing_are_refused(tmp_path: Path, family: str, case: str, key: str) -> None:
    ckconv.convert(checkpoint(recording(family)[case], tmp_path / "hf"), tmp_path / "m.gguf")
    ckconv.edit(tmp_path / "m.gguf", tmp_path / "n.gguf", set_meta=((f"{key}.attention.sliding_window", "0"),))

    with pytest.raises(UnsupportedError, match="the source names no window"):
        ckconv.convert(tmp_path / "n.gguf", tmp_path / "out", to="safetensors")


def test_a_table_that_mlx_lm_wants_is_written_though_the_source_has_none(tmp_path: Path) -> None:
    """GLM 5.2 in FP8 leaves rope_parameters to its class, and mlx-lm's has no default."""

    def bare(document: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in document.items() if key != "rope_parameters"}

    ckconv.convert(published(tmp_path, "glm_moe_dsa", "plain", bare), tmp_path / "m", to="mlx")
    table = json.loads((tmp_path / "m" / "config.json").read_text())["rope_parameters"]
    assert (table["rope_theta"], table["rope_type"]) == (10000.0, "default")


#: Family, case, the layers that are kept -> why llama.cpp loads no such model, as it was tried.
NOT_LOADED: list[tuple[str, str, list[int], str]] = [
    ("jamba", "experts", [0, 1], "a jamba without a layer of attention or without one of Mamba"),
    ("lfm2", "adjusted", [0, 2], "an lfm2 without a layer of attention or without one of convolution"),
    ("lfm2", "adjusted", [1, 3], "an lfm2 without a layer of attention or without one of convolution"),
    ("lfm2_moe", "untied", [0], "an lfm2moe without a layer of attention"),
    ("nemotron_h", "untied", [0, 1, 3], "a nemotron_h without a layer of attention or without one of Mamba 2"),
    ("nemotron_h", "untied", [1, 2], "a nemotron_h without a layer of attention or without one of Mamba 2"),
    ("nemotron_h_moe", "untied", [0, 1], "a nemotron_h_moe without a layer of attention"),
    ("qwen3_5", "tied", [0, 1, 2], "a qwen35 without a layer of full attention or without one of linear attention"),
    ("qwen3_5", "tied", [3], "a qwen35 without a layer of full attention or without one of linear attention"),
    ("qwen3_5_moe", "tied", [3], "a qwen35moe without a layer of full attention"),
    ("qwen3_next", "tied", [3], "a qwen3next without a layer of full attention"),
    ("kimi_linear", "tied", [0, 1, 2], "a kimi-linear without a layer of full attention"),
    ("llama4", "released", [0, 1, 2], "a llama4 of less than four layers"),
    ("cohere2_moe", "softmax", [0], "cohere2moe does not load a model none of whose layers slides"),
    ("granite_swa", "untied", [0], "granite-swa does not load a model none of whose layers slides"),
    ("gemma4_text", "released", [5], "gemma4 does not load a model none of whose layers slides"),
    ("gemma_embedding", "plain", [5], "gemma-embedding does not load where all layers slide, nor where none does"),
]

#: The same of mlx-lm.
NOT_LOADED_BY_MLX: list[tuple[str, str, list[int], str]] = [
    ("lfm2", "adjusted", [0, 2], "an lfm2 without a layer of attention or without one of convolution"),
    ("lfm2", "adjusted", [1, 3], "an lfm2 without a layer of attention or without one of convolution"),
    ("nemotron_h", "untied", [1, 2], "a nemotron_h without a layer of attention or without one of Mamba 2"),
    ("nemotron_h_moe", "untied", [0, 1], "a nemotron_h_moe without a layer of attention"),
    ("kimi_linear", "tied", [0, 1, 2], "a kimi_linear without a layer of full attention"),
    ("kimi_linear", "tied", [3], "a kimi_linear without a layer of full attention"),
]

LAYER = re.compile(r"(layers\.)(\d+)(\.)")


def with_layers(root: Path, family: str, case: str, kept: list[int]) -> Path:
    """The checkpoint of a recorded case with some of its layers, in their order."""
    recorded = recording(family)[case]
    document, tensors = dict(recorded["config"]), dict[str, Any]()
    listed = [document.get(key) for key in ("layers_block_type", "layer_types", "hybrid_override_pattern")]
    count = document.get("num_hidden_layers") or len(next(filter(None, listed)))
    for key, value in document.items():
        if isinstance(value, list) and len(value) == count:
            document[key] = [value[n] for n in kept]
    document["num_hidden_layers"] = len(kept)
    document["architectures"] = recorded["config"]["architectures"]
    for name, said in recorded["tensors"].items():
        found = LAYER.search(name)
        if found is None or int(found[2]) in kept:
            tensors[LAYER.sub(lambda it: f"{it[1]}{kept.index(int(it[2]))}{it[3]}", name, count=1)] = said
    return checkpoint({"config": document, "tensors": tensors}, root)


@pytest.mark.parametrize(
    ("output", "family", "case", "kept", "why"),
    [*(("m.gguf", *row) for row in NOT_LOADED), *(("m-mlx/", *row) for row in NOT_LOADED_BY_MLX)],
)
def test_what_the_target_loads_nowhere_is_refused(
    output: str, family: str, case: str, kept: list[int], why: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=why):
        ckconv.convert(with_layers(tmp_path / "hf", family, case, kept), f"{tmp_path}/{output}")


@pytest.mark.parametrize(
    ("family", "case", "kept"), [("nemotron_h", "untied", [0, 2]), ("nemotron_h_moe", "untied", [0, 2])]
)
def test_a_number_of_what_no_layer_has_counts_for_nothing(
    family: str, case: str, kept: list[int], tmp_path: Path
) -> None:
    """No feed-forward: GGUF has no size of one, and llama.cpp computes the model."""
    source = with_layers(tmp_path / "hf", family, case, kept)

    ckconv.convert(source, tmp_path / "m.gguf")

    assert ckconv.verify(tmp_path / "m.gguf", source)


@pytest.mark.parametrize("kept", [[0, 1], [0, 1, 2]])
def test_a_number_that_is_divided_comes_back_as_it_was(kept: list[int], tmp_path: Path) -> None:
    """MiniCPM's scale_depth / sqrt(layers), as a float32: 1.4999999 where it was multiplied again."""
    source = with_layers(tmp_path / "hf", "minicpm", "untied", kept)

    ckconv.convert(source, tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors")

    said = [json.loads((it / "config.json").read_text())["scale_depth"] for it in (source, tmp_path / "back")]
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("case", "key"),
    [
        ("bailing_moe_v2/sigmoids", "use_qk_norm"),
        ("bailing_moe_v2/sigmoids", "moe_router_enable_expert_bias"),
        ("bailing_hybrid/released", "kda_safe_gate"),
        ("bailing_hybrid/released", "no_kda_lora"),
        ("bailing_hybrid/released", "rope_interleave"),
        ("deepseek/as_released", "moe_layer_freq"),
        ("deepseek_v3/plain", "topk_method"),
        ("laguna/heads", "gating"),
        ("nemotron_nas/kinds", "hidden_act"),
        ("spark2_5/tied", "gate_attn_act_mode"),
        ("kimi_linear/released_keys", "model_type"),
    ],
)
def test_mlx_lm_loads_what_is_made_where_a_key_is_null(case: str, key: str, tmp_path: Path) -> None:
    load_model = pytest.importorskip("mlx_lm.utils").load_model
    family, _, name = case.partition("/")
    source = published(tmp_path, family, name, lambda document: {**document, key: None})
    ckconv.convert(source, f"{tmp_path / 'mlx'}/", to="mlx")
    load_model(tmp_path / "mlx", lazy=True)


@pytest.mark.parametrize(("key", "value"), [("mlp_multipliers", [1.0]), ("key_multiplier", "x"), ("key_multiplier", 0)])
def test_a_factor_that_is_none_is_named_and_the_container_is_sound(key: str, value: object, tmp_path: Path) -> None:
    source = published(tmp_path, "falcon_h1", "plain", lambda document: {**document, key: value})

    with pytest.raises(CkconvError, match=f"what a matrix is multiplied by is .*{key}"):
        ckconv.convert(source, tmp_path / "m.gguf")
    ckconv.convert(source, tmp_path / "copy", to="safetensors")


def test_a_size_that_its_class_makes_of_another_is_made_without_the_factor(tmp_path: Path) -> None:
    """FalconH1Config: mamba_d_ssm null is mamba_expand * hidden_size, and mamba_expand is 2 where nothing says it."""

    def bare(document: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in document.items() if key != "mamba_expand"} | {"mamba_d_ssm": None}

    ckconv.convert(published(tmp_path, "falcon_h1", "expanded", bare), tmp_path / "m.gguf")
    assert gguf.GGUFReader(tmp_path / "m.gguf").fields["falcon-h1.ssm.inner_size"].contents() == 48


#: A value that no sound configuration has, or no engine computes -> what the sentence names.
DAMAGED: list[tuple[str, str, object, str]] = [
    ("minicpm", "dim_model_base", 0, "dim_model_base"),
    ("glm4_moe", "n_group", -1, "n_group = -1: whole numbers from 1"),
    ("t5", "decoder_start_token_id", -1, "decoder_start_token_id would be -1"),
    ("kimi_linear", "head_dim", "x", "head_dim must be a whole number, got 'x'"),
    ("lfm2", "num_key_value_heads", "x", "num_key_value_heads must be a whole number, got 'x'"),
    ("smallthinker", "sliding_window_layout", 7, "sliding_window_layout"),
    ("qwen3_5", "layer_types", 7, "layer_types"),
    ("llama4", "moe_layers", [99], r"moe_layers = \[99\]: whole numbers from 0 to 4 are expected"),
    *((name, "is_causal", False, "convolutions of an .* look both ways") for name in ("lfm2", "lfm2_moe")),
    ("mamba2", "n_groups", 0, "axis g has no number of elements .n_groups"),
]


@pytest.mark.parametrize(("family", "key", "value", "said"), DAMAGED, ids=[f"{it[0]}-{it[1]}" for it in DAMAGED])
def test_a_damaged_key_is_named_and_a_copy_does_not_depend_on_it(
    family: str, key: str, value: object, said: str, tmp_path: Path
) -> None:
    case = next(name for name, it in recording(family).items() if name != "adapters" and it.get("tensors"))
    source = published(tmp_path, family, case, lambda document: {**document, key: value})

    with pytest.raises(CkconvError, match=said) as raised:
        ckconv.convert(source, tmp_path / "m.gguf")
    assert "has no value" not in str(raised.value)
    ckconv.convert(source, tmp_path / "copy", to="safetensors")
    assert ckconv.verify(tmp_path / "copy", source)


@pytest.mark.parametrize(
    ("family", "keys", "read", "heads"),
    [
        ("bert", ("num_attention_heads",), "bert.attention.head_count", 12),
        ("gpt2", ("n_head",), "gpt2.attention.head_count", 12),
        ("bloom", ("n_head", "num_attention_heads"), "bloom.attention.head_count", 8),
    ],
)
def test_a_number_that_is_not_said_is_that_of_the_class(
    family: str, keys: tuple[str, ...], read: str, heads: int, tmp_path: Path
) -> None:
    case = next(name for name, it in recording(family).items() if name != "adapters" and it.get("tensors"))

    def bare(document: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in document.items() if key not in keys}

    ckconv.convert(published(tmp_path, family, case, bare), tmp_path / "m.gguf")
    assert gguf.GGUFReader(tmp_path / "m.gguf").fields[read].contents() == heads


def test_a_scaling_that_phi_3s_class_does_not_take_is_refused(tmp_path: Path) -> None:
    """Phi3Config.validate_rope; with a factor the GGUF failed its own check."""
    said = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    case = next(name for name, it in recording("phi3").items() if name != "adapters" and it.get("tensors"))
    source = published(tmp_path, "phi3", case, lambda document: {**document, "rope_parameters": said})

    with pytest.raises(UnsupportedError, match="rope_type = 'linear', which the class does not take"):
        ckconv.convert(source, tmp_path / "m.gguf")


def test_one_number_under_two_keys_comes_back_under_both(tmp_path: Path) -> None:
    """DeepSeek's mscale, a tenth of which GGUF has: 0.7000000000000001 where it was multiplied again."""
    said = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 16}
    said |= {"mscale": 0.7, "mscale_all_dim": 0.7}
    case = next(name for name, it in recording("deepseek_v3").items() if name != "adapters" and it.get("tensors"))
    source = published(tmp_path, "deepseek_v3", case, lambda it: {**it, "rope_parameters": said})

    ckconv.convert(source, tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors")

    table = json.loads((tmp_path / "back" / "config.json").read_text())["rope_parameters"]
    assert (table["mscale"], table["mscale_all_dim"]) == (0.7, 0.7)


@pytest.mark.parametrize(("family", "head"), [("bert", "BertForMaskedLM"), ("xlm_roberta", "XLMRobertaForMaskedLM")])
def test_no_checkpoint_names_a_class_whose_head_was_left_behind(tmp_path: Path, family: str, head: str) -> None:
    """transformers would make up a head for it, and fill in anything."""
    source = published(tmp_path, family, "plain", lambda old: {**old, "architectures": [head]})
    ckconv.convert(source, tmp_path / "mlx", to="mlx")
    ckconv.convert(tmp_path / "mlx", tmp_path / "back", to="safetensors")

    made = [json.loads((tmp_path / name / "config.json").read_text())["architectures"] for name in ("mlx", "back")]
    assert made == [[head.removesuffix("ForMaskedLM") + "Model"]] * 2


@pytest.mark.parametrize(
    ("family", "case", "code", "keys"),
    [
        ("phi", "half", "modeling_phi.PhiForCausalLM", {"attention_bias": False, "rotary_dim": 32}),
        ("bailing_moe", "as_released", "modeling_bailing_moe.BailingMoeForCausalLM", {"pretraining_tp": 1}),
    ],
)
def test_keys_of_released_files_that_no_class_reads_change_nothing(
    tmp_path: Path, family: str, case: str, code: str, keys: dict[str, Any]
) -> None:
    """Phi 1 and Ling, beside the code that came with them."""
    plain = published(tmp_path / "plain", family, case, dict)
    released = published(
        tmp_path / "released", family, case, lambda old: {**old, **keys, "auto_map": {"AutoModel": code}}
    )
    made = [tmp_path / "plain.gguf", tmp_path / "released.gguf"]
    for source, out in zip((plain, released), made, strict=True):
        ckconv.convert(source, out, options=ckconv.Options(source_record=False))

    assert made[0].read_bytes() == made[1].read_bytes()


@pytest.mark.parametrize(
    ("said", "own"),
    [
        ({"indexer_types": ["full", "full", "shared", "shared"], "index_topk_freq": 4}, "1100"),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 2}, "1100"),
        ({"index_topk_freq": 3}, "1100"),
        ({"index_topk_pattern": "FFSS", "index_topk_freq": 1}, "1100"),
    ],
)
def test_glm_shares_indexers_by_a_step_where_no_list_is_said(tmp_path: Path, said: dict[str, Any], own: str) -> None:
    """GLM 5.2 says a list, and the step that it came from."""

    def stepped(document: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in document.items() if key != "indexer_types"} | said

    source = published(tmp_path, "glm_moe_dsa", "indexers_shared", stepped)
    ckconv.convert(source, tmp_path / "m.gguf")

    found = gguf.GGUFReader(tmp_path / "m.gguf").fields["glm-dsa.attention.indexer.types"].contents()
    assert "".join(str(int(kind)) for kind in found) == own


def test_queries_of_ministral_3_that_do_not_grow_go_to_gguf_and_back(tmp_path: Path) -> None:
    """Devstral 2: YaRN, and llama_4_scaling_beta 0."""

    def level(document: dict[str, Any]) -> dict[str, Any]:
        table = {**document["rope_parameters"], "llama_4_scaling_beta": 0.0, "mscale_all_dim": 0.0}
        return {**document, "rope_parameters": table}

    ckconv.convert(published(tmp_path, "ministral3", "bfloat16", level), tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors")

    made = gguf.GGUFReader(tmp_path / "m.gguf").fields["mistral3.attention.temperature_scale"].contents()
    table = json.loads((tmp_path / "back" / "config.json").read_text())["rope_parameters"]
    assert (made, table["llama_4_scaling_beta"], table["rope_type"]) == (0.0, 0.0, "yarn")


def test_su_and_yarn_are_phi_3s_older_words_for_longrope(tmp_path: Path) -> None:
    made = []
    for kind in ("longrope", "su", "yarn"):

        def called(document: dict[str, Any], kind: str = kind) -> dict[str, Any]:
            return {**document, "rope_scaling": {**document["rope_scaling"], "type": kind}}

        source = published(tmp_path / kind, "phi3", "longrope_of_a_released_checkpoint", called)
        ckconv.convert(source, tmp_path / f"{kind}.gguf", options=ckconv.Options(source_record=False))
        made.append((tmp_path / f"{kind}.gguf").read_bytes())

    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_gemma_4_wants_a_table_of_rope_for_each_kind_of_layers(tmp_path: Path, to: str) -> None:
    """No class is built of it, and llama.cpp and mlx-lm would turn by different bases."""
    source = published(tmp_path, "gemma4_text", "double_wide", lambda old: {**old, "rope_parameters": {}})

    with pytest.raises(CkconvError, match="rope_parameters without full_attention"):
        ckconv.convert(source, tmp_path / "out", to=to)


@pytest.mark.parametrize(
    ("family", "case", "said"),
    [
        ("nemotron_nas", "kinds", {"pretraining_tp": 1}),
        ("minicpm", "untied", {"mup_denominator": 32}),
        ("qwen", "another_base", {"rope_theta": 1000000, "seq_length": 8192, "use_dynamic_ntk": False}),
    ],
    ids=["Llama-3_3-Nemotron-Super-49B", "MiniCPM4-8B", "Qwen-72B-Chat"],
)
def test_keys_that_code_of_a_repository_does_not_compute_with_change_nothing(
    tmp_path: Path, family: str, case: str, said: dict[str, Any]
) -> None:
    ckconv.convert(published(tmp_path / "said", family, case, lambda one: {**one, **said}), tmp_path / "a.gguf")
    ckconv.convert(published(tmp_path / "unsaid", family, case, dict), tmp_path / "b.gguf")

    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_a_qwen_that_stretches_texts_longer_than_seq_length_gets_a_note(tmp_path: Path) -> None:
    source = published(tmp_path, "qwen", "plain", lambda one: {**one, "seq_length": 32, "use_dynamic_ntk": True})

    plan = ckconv.convert(source, tmp_path / "m.gguf").plan
    assert any("beyond 32 tokens (seq_length) the class stretches RoPE" in note for note in plan.notes)


@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_values_that_are_not_quantized_as_config_json_says_are_refused_with_a_way_out(
    tmp_path: Path, to: Literal["gguf", "mlx"]
) -> None:
    """QLoRA models are merged and published with the key of the quantized base."""
    stale = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    source = published(tmp_path, "llama", "dynamic", lambda one: {**one, **stale})

    with pytest.raises(UnsupportedError, match="quantization_config declares a quantization, and no tensor is") as info:
        ckconv.convert(source, tmp_path / "out", to=to)
    assert "ckconv edit SRC DST/ --drop-meta quantization_config" in info.value.hint
    ckconv.edit(source, f"{tmp_path / 'without'}/", drop_meta=["quantization_config"])
    ckconv.convert(tmp_path / "without", tmp_path / "out", to=to)


def at_sections(document: dict[str, Any]) -> dict[str, Any]:
    """Sections of RoPE of heads of 128 elements, whatever the heads have."""
    text = document.get("text_config", document)
    text["rope_parameters"] = {**text["rope_parameters"], "mrope_section": [24, 20, 20]}
    return document


@pytest.mark.parametrize(("family", "case"), [("qwen3_vl", "untied"), ("qwen3_5", "tied"), ("qwen3_vl_moe", "untied")])
def test_llama_cpp_stops_where_sections_are_more_than_a_head(tmp_path: Path, family: str, case: str) -> None:
    """``GGML_ASSERT(sect_dims <= ne0)`` of its kernel."""
    with pytest.raises(UnsupportedError, match=r"llama.cpp stops where sections of RoPE, \[24, 20, 20\]"):
        ckconv.convert(published(tmp_path, family, case, at_sections), tmp_path / "m.gguf")


def test_mlx_lm_takes_no_qwen_3_5_without_a_layer_of_full_attention(tmp_path: Path) -> None:
    """It asks for the mask of one."""
    recorded = recording("qwen3_5")["grouped_value_heads"]
    stored = {name: array for name, array in tensors(recorded).items() if ".layers.3." not in name}
    said = {key: value for key, value in recorded["config"].items() if key != "layer_types"} | {"num_hidden_layers": 3}

    with pytest.raises(UnsupportedError, match=r"full attention in every nth layer .*, and this model has not"):
        ckconv.convert(save(tmp_path / "hf", said, stored), tmp_path / "out", to="mlx")


def one_by_one(stored: dict[str, Any], *, transposed: bool = False) -> dict[str, Any]:
    """Experts of a layer as quantizers store them: each a module of its own, ``[out, in]``."""
    made: dict[str, Any] = {}
    for name, array in stored.items():
        before, experts, kind = name.partition(".experts.")
        if not experts:
            made[name] = array
            continue
        for number, matrix in enumerate(array.swapaxes(1, 2) if transposed else array):
            names = ("gate_proj", "up_proj") if "up" in kind else (kind,)
            parts = zip(names, np.split(matrix, len(names)), strict=True)
            made |= {f"{before}.experts.{number}.{part}.weight": np.ascontiguousarray(it) for part, it in parts}
    return made


def in_pairs(stored: dict[str, Any]) -> dict[str, Any]:
    """Experts of gpt-oss as unsloth quantizes them: rows of gate and up in turn, ``[out, in]``."""
    made: dict[str, Any] = {}
    for name, array in stored.items():
        before, experts, kind = name.partition(".experts.")
        part, bias, _ = kind.partition("_bias")
        for number, each in enumerate(array if experts else ()):
            made[f"{before}.experts.{part}s.{number}.{'bias' if bias else 'weight'}"] = np.ascontiguousarray(each.T)
        made |= {} if experts else {name: array}
    return made


@pytest.mark.parametrize(
    ("family", "case", "apart"),
    [
        ("gemma4_text", "experts", one_by_one),
        ("llama4", "released", partial(one_by_one, transposed=True)),
        ("qwen3_vl_moe", "untied", partial(one_by_one, transposed=True)),
        ("gpt_oss", "released", in_pairs),
    ],
)
@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_experts_may_stand_one_by_one(
    tmp_path: Path, family: str, case: str, apart: Callable[..., dict[str, Any]], to: Literal["gguf", "mlx"]
) -> None:
    """Quantizers make a module of each matrix of a class that has those of all experts in one."""
    recorded = recording(family)[case]
    whole = tensors(recorded)
    for name, stored in (("whole", whole), ("apart", apart(whole))):
        source = save(tmp_path / name, recorded["config"], stored, metadata={"format": "pt"})
        ckconv.convert(source, tmp_path / f"{name}.{to}", to=to)

    assert ckconv.diff(tmp_path / f"whole.{to}", tmp_path / f"apart.{to}").same
