"""Layers that predict further tokens: kept where the target has a place for them, left out with a word elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import save_file
from family_cases import cases, checkpoint
from gguf_copies import gguf_copy
from safetensors.numpy import load_file

import ckconv
from ckconv.errors import InputError
from ckconv.formats.detect import open_index
from ckconv.io.files import Files
from ckconv.verification.tensors import TensorComparison

#: How many layers the model has besides.
LAYERS = {"qwen3_5": 4, "qwen3_5_moe": 4, "qwen3_next": 4, "glm4_moe": 3}
LAYERS |= {"bailing_hybrid": 4, "exaone_moe": 4, "bailing_moe_v2": 3, "glm_moe_dsa": 3, "glm4_moe_lite": 3}
FAMILIES = tuple(LAYERS)
#: Those with several, too.
NAMED = LAYERS | {"mimo_v2_flash": 3, "step3p5": 4}


def source(root: Path, family: str = "qwen3_5", case: str = "drafts") -> Path:
    one = next(one for one in cases(family) if one.name == case)
    return checkpoint(one.recorded, root, one.tokenizer)


def keys(path: Path, *names: str) -> list[Any]:
    reader = gguf.GGUFReader(path)
    fields = {key.partition(".")[2]: field for key, field in reader.fields.items()}
    return [fields[name].contents() if name in fields else None for name in names]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_flag_leaves_them_out(family: str, tmp_path: Path) -> None:
    root = source(tmp_path / "hf", family)
    options = ckconv.Options(drop=("mtp",))

    ckconv.convert(root, tmp_path / "m.gguf", options=options)
    ckconv.convert(root, tmp_path / "whole.gguf")
    ckconv.convert(tmp_path / "whole.gguf", f"{tmp_path / 'hf2'}/", to="safetensors", options=options)

    count = LAYERS[family]
    names = {tensor.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert not [name for name in names if name.startswith(f"blk.{count}.") or "nextn" in name]
    assert keys(tmp_path / "m.gguf", "block_count", "nextn_predict_layers") in ([count, None], [count, 0])
    assert keys(tmp_path / "whole.gguf", "block_count", "nextn_predict_layers") == [count + 1, 1]
    left = load_file(tmp_path / "hf2" / "model.safetensors").keys()
    assert not [name for name in left if name.startswith("mtp.") or f".layers.{count}." in name]
    assert ckconv.verify(tmp_path / "whole.gguf", root)
    assert ckconv.verify(tmp_path / "m.gguf", root, options=options)


@pytest.mark.parametrize("names", ["gguf", "canonical"])
@pytest.mark.parametrize("family", NAMED)
def test_other_names_are_written_and_read_again(family: str, names: str, tmp_path: Path) -> None:
    root = source(tmp_path / "hf", family)
    expected = load_file(root / "model.safetensors")

    ckconv.convert(root, f"{tmp_path / 'named'}/", to="safetensors", options=ckconv.Options(names=names))
    ckconv.convert(tmp_path / "named", f"{tmp_path / 'back'}/", to="safetensors")

    layer = {"gguf": f"blk.{NAMED[family]}.nextn.", "canonical": f"layers.{NAMED[family]}.draft."}[names]
    assert [name for name in load_file(tmp_path / "named" / "model.safetensors") if name.startswith(layer)]
    there = load_file(tmp_path / "back" / "model.safetensors")
    assert there.keys() == expected.keys()
    assert [name for name, array in there.items() if not np.array_equal(array, expected[name])] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_mlx_has_no_place_for_them_and_a_note_says_so(family: str, tmp_path: Path) -> None:
    root = source(tmp_path / "hf", family)

    report = ckconv.convert(root, f"{tmp_path / 'mlx'}/", to="mlx")

    assert [note for note in report.plan.notes if "predict further tokens are left out" in note]
    assert any("predicts further tokens" in item.reason for item in report.plan.left_out)
    assert ckconv.verify(tmp_path / "mlx", root)


def test_deepseek_v3s_are_left_out_of_a_gguf_as_the_converter_leaves_them_out(tmp_path: Path) -> None:
    """A copy has them, and a flag leaves them out of that, too."""
    root = source(tmp_path / "hf", "deepseek_v3", "predicts_further")

    report = ckconv.convert(root, tmp_path / "m.gguf")
    ckconv.convert(root, f"{tmp_path / 'copy'}/", to="safetensors")
    ckconv.convert(root, f"{tmp_path / 'less'}/", to="safetensors", options=ckconv.Options(drop=("mtp",)))

    why = "llama.cpp's converter leaves those of a DeepSeek V3 out"
    assert [note for note in report.plan.notes if note.endswith(f"predict further tokens are left out: {why}")]
    assert keys(tmp_path / "m.gguf", "block_count", "nextn_predict_layers") == [2, None]
    for name, there in (("copy", True), ("less", False)):
        names = load_file(tmp_path / name / "model.safetensors")
        assert any(one.startswith("model.layers.2.") for one in names) == there


def test_a_ling_3_with_two_is_refused_where_llama_cpp_drafts_with_one(tmp_path: Path, ckconv: Any) -> None:
    root = source(tmp_path / "hf", "bailing_hybrid")
    stored = load_file(root / "model.safetensors")
    (root / "model.safetensors").unlink()
    more = {name.replace(".layers.4.", ".layers.5."): array for name, array in stored.items() if ".layers.4." in name}
    save_file(root / "model.safetensors", stored | more)
    config = json.loads((root / "config.json").read_text())
    (root / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 2}))

    done = ckconv("convert", root, tmp_path / "m.gguf")
    assert (done.code, "has one layer that predicts a further token, not 2" in done.err) == (4, True), done.err
    assert ckconv("convert", root, tmp_path / "m.gguf", "--drop", "mtp").code == 0


def test_glm_4_7s_come_back_out_of_a_gguf_that_is_a_deepseek_v3s(tmp_path: Path) -> None:
    root = source(tmp_path / "hf", "glm4_moe_lite")

    ckconv.convert(root, tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "n.gguf", options=ckconv.Options(context=32))
    ckconv.convert(tmp_path / "n.gguf", f"{tmp_path / 'back'}/", to="safetensors")

    there, own = load_file(tmp_path / "back" / "model.safetensors"), load_file(root / "model.safetensors")
    assert there.keys() == own.keys()
    assert all(np.array_equal(there[name], own[name]) for name in own)


def test_an_assistant_of_gemma_4_has_a_tokenizer_of_its_own(tmp_path: Path, ckconv) -> None:
    """It needs no ``--base``, and is written within its text_config again."""
    root = source(tmp_path / "hf", "gemma4_assistant", "plain")

    assert ckconv("convert", root, tmp_path / "m.gguf").code == 0
    assert ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "hf").code == 0
    assert ckconv("verify", tmp_path / "m.gguf", root).code == 0

    made = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (made["model_type"], made["text_config"]["model_type"]) == ("gemma4_assistant", "gemma4_text")
    assert (made["backbone_hidden_size"], made["text_config"]["num_kv_shared_layers"]) == (30, 4)
    said = ckconv("inspect", "--json", root).json["overview"]["heads"]
    assert said == ["drafts tokens for a model whose hidden size is 30 (Gemma4AssistantForCausalLM)"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"num_kv_shared_layers": 3}, "layers have K and V of their own (num_kv_shared_layers)"),
        ({"hidden_size_per_layer_input": 8}, "has no inputs of layers and no experts"),
    ],
)
def test_another_assistant_than_llama_cpps_is_refused(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    root = source(tmp_path / "hf", "gemma4_assistant", "plain")
    config = json.loads((root / "config.json").read_text())
    (root / "config.json").write_text(json.dumps(config | {"text_config": {**config["text_config"], **more}}))

    with pytest.raises(ckconv.CkconvError) as refused:
        ckconv.convert(root, tmp_path / "m.gguf")
    assert refused.value.exit_code == 4
    assert said in " ".join((refused.value.message, *refused.value.details))


def test_a_checkpoint_that_has_none_though_its_configuration_says_so_is_a_model_without(tmp_path: Path) -> None:
    """Models that transformers saved again: its classes drop them."""
    root = source(tmp_path / "hf")
    kept = {name: array for name, array in load_file(root / "model.safetensors").items() if not name.startswith("mtp.")}
    save_file(root / "model.safetensors", kept, {"format": "pt"})

    ckconv.convert(root, tmp_path / "m.gguf")

    assert keys(tmp_path / "m.gguf", "block_count", "nextn_predict_layers") == [4, None]


@pytest.mark.parametrize("family", NAMED)
def test_one_of_other_sizes_is_an_error_of_the_source(family: str, tmp_path: Path, ckconv) -> None:
    root, count = source(tmp_path / "hf", family), NAMED[family]
    ckconv("convert", root, tmp_path / "m.gguf")
    tensors, known = load_file(root / "model.safetensors"), open_index(root).tensors
    for part, of_gguf in (("draft.projection", False), ("attention.output", True)):
        name = known[f"layers.{count}.{part}.weight"].source
        save_file(root / "model.safetensors", tensors | {name: np.repeat(tensors[name], 2, 0)}, {"format": "pt"})
        blocks = open_index(tmp_path / "m.gguf").tensors[f"layers.{count}.{part}.weight"].source
        array = next(one.data for one in gguf.GGUFReader(tmp_path / "m.gguf").tensors if one.name == blocks)
        gguf_copy(tmp_path / "m.gguf", tmp_path / "x.gguf", tensors={blocks: np.repeat(array, 2, 0)})

        made, stored = (tmp_path / "x.gguf", blocks) if of_gguf else (root, name)
        to = "gguf" if not of_gguf else "mlx" if family == "step3p5" else "hf"  # transformers takes no such list
        done = ckconv("convert", made, f"{tmp_path}/{to}/", "--to", to)
        assert (done.code, f"tensor '{stored}' has shape [" in done.err) == (3, True), done.err
        assert "hint: --drop mtp leaves out" in done.err
        again = ckconv("convert", made, f"{tmp_path}/without/", "--to", to, "--drop", "mtp", "--force")
        assert again.code == 0, again.err
    assert ckconv("convert", root, tmp_path / "without.gguf", "--drop", "mtp").code == 0
    assert keys(tmp_path / "without.gguf", "block_count") == [count]


def test_one_that_is_not_whole_is_refused_by_the_name_of_what_is_missing(tmp_path: Path) -> None:
    root = source(tmp_path / "hf")
    tensors = load_file(root / "model.safetensors")
    del tensors["mtp.layers.0.self_attn.o_proj.weight"]
    save_file(root / "model.safetensors", tensors, {"format": "pt"})

    with pytest.raises(ckconv.CkconvError) as refused:
        ckconv.convert(root, tmp_path / "m.gguf")
    assert refused.value.exit_code == 4
    assert "layers.{n}.attention.output.weight in 1 layer" in " ".join((refused.value.message, *refused.value.details))


def test_a_document_that_is_made_counts_them(tmp_path: Path) -> None:
    ckconv.convert(source(tmp_path / "hf"), tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", f"{tmp_path / 'back'}/", to="safetensors")

    said = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (said["num_hidden_layers"], said["mtp_num_hidden_layers"]) == (4, 1)


def test_inspect_counts_them(tmp_path: Path, ckconv) -> None:
    found = ckconv("inspect", "--json", source(tmp_path / "hf")).json

    assert found["overview"]["heads"] == ["1 layer to predict further tokens (mtp)"]
    assert found["overview"]["caches"] == [{"tokens": 64, "nbytes": 8192}]  # of the one other layer with attention


def test_a_file_of_their_own_that_no_index_names_is_read(tmp_path: Path) -> None:
    root = source(tmp_path / "hf")
    ckconv.convert(root, tmp_path / "one.gguf")
    tensors = load_file(root / "model.safetensors")
    parts: dict[str, dict[str, Any]] = {"model": {}, "mtp": {}}
    for name, array in tensors.items():
        parts["mtp" if name.startswith("mtp.") else "model"][name] = array
    for stem, part in parts.items():
        save_file(root / f"{stem}.safetensors", part, {"format": "pt"})

    ckconv.convert(root, tmp_path / "two.gguf")
    ckconv.convert(root, f"{tmp_path / 'copy'}/", to="safetensors")

    assert ckconv.diff(tmp_path / "one.gguf", tmp_path / "two.gguf").same
    assert load_file(tmp_path / "copy" / "model.safetensors").keys() == tensors.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_bump_has_no_place_for_their_families(family: str, tmp_path: Path) -> None:
    with pytest.raises(ckconv.CkconvError, match="bump cannot hold this model") as refused:
        ckconv.convert(source(tmp_path / "hf", family), tmp_path / "m.bump")
    assert refused.value.exit_code == 4


#: Documents of drafters, and what is said of them.
DRAFTERS = [
    (
        {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"},
        "for another model (LlamaForCausalLMEagle3), and has that model's tokenizer",
    ),
    (
        {"architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text"},
        "for another model (Gemma4DSparkModel), and has that model's tokenizer",
    ),
    *(
        (
            {"architectures": [name], "model_type": kind},
            f"for another model ({name}), and ckconv has no rules for such a drafter",
        )
        for name, kind in (
            ("DominoDraftModel", "qwen3"),
            ("PEagleDraftModel", "llama"),
            ("LlamaForCausalLMEagle", "llama"),
        )
    ),
    (
        {"architectures": ["DeepseekV4DSparkModel"], "model_type": "deepseek_v4"},
        "for another model (DeepseekV4DSparkModel), and ckconv has no rules for such a drafter: nobody has written "
        "its file yet",
    ),
    (
        {"architectures": ["DFlashDraftModel"], "model_type": "qwen3"},
        "for another model (DFlashDraftModel), and has that model's tokenizer",
    ),
    (
        {
            "architectures": ["Gemma5AssistantForCausalLM"],
            "model_type": "gemma5_assistant",
            "backbone_hidden_size": 1536,
        },
        "for a model whose hidden size is 1,536",
    ),
    (
        {
            "architectures": ["Eagle3Speculator"],
            "model_type": "eagle3",
            "speculators_config": {"verifier": {"name_or_path": "meta-llama/Llama-3.1-8B-Instruct"}},
        },
        "for 'meta-llama/Llama-3.1-8B-Instruct'",
    ),
]


@pytest.mark.parametrize(("document", "said"), DRAFTERS)
def test_a_drafter_is_refused_with_what_it_drafts_for(document: dict[str, Any], said: str, tmp_path: Path) -> None:
    root = source(tmp_path / "hf", "qwen3", "untied")
    config = json.loads((root / "config.json").read_text())
    (root / "config.json").write_text(json.dumps({**config, **document}))

    for target, format in (("m.gguf", "gguf"), ("mlx/", "mlx")):
        with pytest.raises(ckconv.CkconvError) as refused:
            ckconv.convert(root, f"{tmp_path}/{target}", to=format)
        assert (refused.value.exit_code, f"it drafts tokens {said}" in refused.value.message) == (4, True)
    assert ckconv.convert(root, f"{tmp_path}/copy/", to="safetensors").verified


def drafter(root: Path, family: str = "dflash", case: str = "plain", **more: Any) -> Path:
    """The checkpoint of a drafter, without a tokenizer, with these keys besides."""
    one = next(one for one in cases(family) if one.name == case)
    made = checkpoint(one.recorded, root, {})
    config = json.loads((made / "config.json").read_text())
    config |= {key: {**config.get(key, {}), **said} if isinstance(said, dict) else said for key, said in more.items()}
    (made / "config.json").write_text(json.dumps(config))
    return made


def target_of_six_layers(root: Path, **more: Any) -> Path:
    """The directory of the model that it drafts for, of which the configuration and the tokenizer are read."""
    made = source(root, "qwen3", "untied")
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 6} | more))
    return made


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling", ""])
def test_a_drafter_has_the_tokenizer_of_its_model_and_turns_by_the_first_part_of_its_positions(
    key: str, nested: bool, tmp_path: Path, ckconv
) -> None:
    """The parts of Qwen 3.5's positions; a text model has none."""
    target, draft = target_of_six_layers(tmp_path / "target"), drafter(tmp_path / "draft")
    config = json.loads((target / "config.json").read_text())
    config |= {key: {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1]}} if key else {}
    (target / "config.json").write_text(json.dumps({"text_config": config} if nested else config))

    done = ckconv("convert", draft, tmp_path / "m.gguf", "--base", target)

    assert done.code == 0, done.err
    found = keys(tmp_path / "m.gguf", "target_layers", "block_size", "rope.dimension_sections", "ggml.mask_token_id")
    assert found == [[2, 4, 5], 16, [4, 0, 0, 0] if key else None, 248]
    assert len(keys(tmp_path / "m.gguf", "ggml.tokens")[0]) == config["vocab_size"]
    assert ckconv("verify", tmp_path / "m.gguf", draft, "--base", target).code == 0
    assert ckconv("diff", tmp_path / "m.gguf", draft, "--base", target).code == 0
    for verb, code in (("verify", 5), ("diff", 4)):
        without = ckconv(verb, tmp_path / "m.gguf", draft)
        said = "hint: --base DIR takes the directory of the model that it drafts for" in without.err
        assert (without.code, said) == (code, True), without.err


def test_inspect_says_what_a_drafter_drafts_for(tmp_path: Path, ckconv) -> None:
    draft = drafter(tmp_path / "draft")
    target = target_of_six_layers(tmp_path / "target")
    ckconv("convert", draft, tmp_path / "m.gguf", "--base", target)

    reads = ", of whose layers it reads 1, 3, 4"
    for args, said in (
        ((draft,), "drafts tokens for a model of 6 layers (DFlashDraftModel)"),
        ((draft, "--base", target), f"drafts tokens for a model of 6 layers (DFlashDraftModel){reads}"),
        ((tmp_path / "m.gguf",), f"drafts tokens for another model (dflash){reads}"),
    ):
        assert ckconv("inspect", "--json", *args).json["overview"]["heads"] == [said]


@pytest.mark.parametrize(
    ("family", "case", "more", "said"),
    [
        ("dflash", "plain", {"dflash_config": {"use_swa": True}}, "other keys of dflash_config"),
        (
            "dflash",
            "plain",
            {"layer_types": ["sliding_attention"] * 3, "sliding_window": 16},
            "layers slide without use_sliding_window",
        ),
        ("dspark", "confident", {"draft_vocab_size": 100}, "drafts of fewer words than the model has"),
        ("dspark", "confident", {"dflash_config": {"markov_head_type": "gated"}}, "the plain one (markov_head_type)"),
        ("dflash", "plain", {"architectures": ["Gemma5DFlashModel"]}, "no rules for such a drafter"),
        ("eagle3", "normed", {"attention_bias": True}, "has no biases (attention_bias)"),
        ("eagle3", "normed", {"eagle_aux_hidden_state_layer_ids": [1, 2]}, "reads three layers"),
        ("eagle3", "normed", {"draft_vocab_size": 300}, "there is no table of their ids (d2t)"),
        ("gemma4_dspark", "plain", {"layer_types": ["sliding_attention"] * 3}, "has no layers that slide"),
        ("gemma4_dspark", "plain", {"attention_k_eq_v": False}, "takes K for V (attention_k_eq_v)"),
        ("gemma4_dspark", "plain", {"attention_bias": True}, "has no biases (attention_bias)"),
        ("gemma4_dspark", "plain", {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0 changes"),
        ("gemma4_dspark", "plain", {"use_sliding_window": True}, "use_sliding_window = True changes"),
    ],
)
def test_what_ckconv_has_no_rules_for_of_a_drafter_is_refused_by_its_key(
    family: str, case: str, more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    draft, target = drafter(tmp_path / "draft", family, case, **more), target_of_six_layers(tmp_path / "target")

    with pytest.raises(ckconv.CkconvError) as refused:
        ckconv.convert(draft, tmp_path / "m.gguf", options=ckconv.Options(base=target))
    assert refused.value.exit_code == 4
    assert said in " ".join((refused.value.message, *refused.value.details))


@pytest.mark.parametrize("key", ["block_size", "mask_token_id"])
def test_a_list_of_one_number_is_no_number_of_a_drafter(key: str, tmp_path: Path) -> None:
    draft = drafter(tmp_path / "draft", dflash_config={key: [16]})

    with pytest.raises(InputError) as refused:
        ckconv.convert(draft, tmp_path / "m.gguf", options=ckconv.Options(base=target_of_six_layers(tmp_path / "t")))
    assert (refused.value.exit_code, f"dflash_config.{key} must be a whole number, got [16]") == (
        3,
        refused.value.message.rpartition(": ")[2],
    )


def test_the_model_of_a_drafter_is_named_by_a_directory_with_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(InputError, match=r"no config\.json of the model that it drafts for"):
        ckconv.convert(
            drafter(tmp_path / "draft"), tmp_path / "m.gguf", options=ckconv.Options(base=tmp_path / "empty")
        )


@pytest.mark.parametrize(
    ("drafts", "target", "said"),
    [
        ({}, {"hidden_size": 32}, "hidden_size is 32, and hidden_size of the drafter 24"),
        ({"target_hidden_size": 9}, {}, "hidden_size is 24, and target_hidden_size of the drafter 9"),
        ({}, {"num_hidden_layers": 8}, "num_hidden_layers is 8, and num_target_layers of the drafter 6"),
        ({}, {"vocab_size": 1000}, "vocab_size is 1,000, and vocab_size of the drafter 384"),
        (
            {"dflash_config": {"target_layer_ids": [1, 3, 6]}},
            {},
            "num_hidden_layers is 6, and the drafter reads layer 6 (target_layer_ids)",
        ),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 3, 7]},
            {},
            "num_hidden_layers is 6, and the drafter reads layer 7 (eagle_aux_hidden_state_layer_ids)",
        ),
    ],
)
def test_another_model_than_that_of_the_drafter_is_refused_by_both_values(
    drafts: dict[str, Any], target: dict[str, Any], said: str, tmp_path: Path
) -> None:
    draft, base = drafter(tmp_path / "draft", **drafts), target_of_six_layers(tmp_path / "target", **target)

    with pytest.raises(InputError) as refused:
        ckconv.convert(draft, tmp_path / "m.gguf", options=ckconv.Options(base=base))
    assert (refused.value.exit_code, refused.value.message.endswith(said)) == (3, True), refused.value.message


def test_a_layer_of_another_stack_is_missed_whatever_its_number(tmp_path: Path) -> None:
    """An encoder of three layers beside a decoder of two: its third is no layer that predicts further tokens."""
    root = source(tmp_path / "hf", "t5", "gated")
    ckconv.convert(root, tmp_path / "m.gguf")
    out, theirs = open_index(tmp_path / "m.gguf"), open_index(root)
    assert out.config is not None
    gone = "enc.layers.2.attention.q.weight"
    assert (out.config.num_layers, gone in out.tensors) == (2, True)
    less = replace(out, tensors={name: tensor for name, tensor in out.tensors.items() if name != gone})

    with Files({**out.identities, **theirs.identities}) as files:
        found = [TensorComparison(one, theirs, files).run().faults for one in (out, less)]

    lost = "encoder.block.2.layer.0.SelfAttention.q.weight of the source is not in the output"
    assert [[fault.text for fault in faults] for faults in found] == [[], [lost]]


def test_a_quantized_assistant_is_not_told_of_its_model(tmp_path: Path, ckconv) -> None:
    """No other model's configuration makes the numbers of a quantizer readable."""
    root = source(tmp_path / "hf", "gemma4_assistant", "plain")
    ckconv("convert", root, tmp_path / "m.gguf")
    config = json.loads((root / "config.json").read_text())
    (root / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "other"}}))
    arrays = load_file(root / "model.safetensors")
    name = "model.layers.0.mlp.gate_proj.weight"
    save_file(root / "model.safetensors", {**arrays, name: arrays[name].astype(np.int8)})

    for command in (("verify", tmp_path / "m.gguf", root), ("convert", root, tmp_path / "n.gguf")):
        run = ckconv(*command)
        assert run.code in (4, 5)
        assert "--base" not in run.err


def eagle(root: Path, ids: Callable[[np.ndarray], np.ndarray] = np.copy, **more: Any) -> tuple[Path, Path]:
    """An EAGLE 3 of 300 words with these ids, less their places, and its model of ten layers."""
    draft = drafter(root / "draft", "eagle3", "smaller", num_target_layers=10, **more)
    arrays = load_file(draft / "model.safetensors")
    save_file(draft / "model.safetensors", {**arrays, "d2t": ids(arrays["d2t"])}, {"format": "pt"})
    return draft, target_of_six_layers(root / "target", num_hidden_layers=10, hidden_size=30)


def test_words_of_a_drafter_have_the_ids_of_its_models_tokens(tmp_path: Path, ckconv) -> None:
    draft, target = eagle(tmp_path, eagle_aux_hidden_state_layer_ids=None)

    assert ckconv("convert", draft, tmp_path / "m.gguf", "--base", target).code == 0
    assert ckconv("convert", tmp_path / "m.gguf", tmp_path / "n.gguf", "--set-meta", "general.name=x").code == 0

    places = np.arange(300) + load_file(draft / "model.safetensors")["d2t"]
    for name in ("m", "n"):
        tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors}
        assert tensors["d2t"].data.tolist() == places.tolist()
    assert keys(tmp_path / "m.gguf", "target_layers", "target_hidden_size") == [[2, 5, 7], 30]
    for verb in ("verify", "diff"):
        assert ckconv(verb, tmp_path / "m.gguf", draft, "--base", target).code == 0
    damaged = eagle(tmp_path / "other", lambda ids: ids + 1)[0]
    assert ckconv("verify", tmp_path / "m.gguf", damaged, "--base", target).code == 5
    assert "300 of 300" in ckconv("diff", tmp_path / "m.gguf", damaged, "--base", target).out


def test_layers_that_a_drafter_reads_are_counted_by_what_they_read(tmp_path: Path, ckconv) -> None:
    """So llama.cpp counts; what the last layer gives is the number of layers, and a nested key may count by outputs."""
    key = "eagle_aux_hidden_state_layer_ids"
    draft, target = eagle(tmp_path / "last", **{key: [2, 5, 10]})
    assert ckconv("convert", draft, tmp_path / "m.gguf", "--base", target).code == 0
    assert keys(tmp_path / "m.gguf", "target_layers") == [[2, 5, 10]]

    for ids, code in ([2, 5, 7], 0), ([1, 4, 6], 4):  # the first are those without a key, of ten layers
        draft, target = eagle(tmp_path / f"nested{code}", **{key: None, "eagle_config": {key: ids}})
        done = ckconv("convert", draft, tmp_path / f"{code}.gguf", "--base", target)
        assert (done.code, f"nothing says whether eagle_config.{key} counts layers" in done.err) == (code, code == 4)
    assert ckconv("edit", draft, f"{tmp_path}/edited/", "--set-meta", f"{key}=[2,5,7]").code == 0
    assert ckconv("convert", tmp_path / "edited", tmp_path / "n.gguf", "--base", target).code == 0
    assert keys(tmp_path / "n.gguf", "target_layers") == keys(tmp_path / "0.gguf", "target_layers") == [[2, 5, 7]]


def test_a_drafter_of_speculators_is_the_same_model_within_a_table_of_its_document(tmp_path: Path) -> None:
    draft, target = eagle(tmp_path)
    options = ckconv.Options(base=target)
    ckconv.convert(draft, tmp_path / "m.gguf", options=options)
    config = json.loads((draft / "config.json").read_text())
    ours = ("draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids")
    outer = {"architectures": ["Eagle3Speculator"], **{key: config.pop(key) for key in ours}}
    outer |= {"speculators_model_type": "eagle3", "transformer_layer_config": {**config, "architectures": None}}
    arrays = load_file(draft / "model.safetensors")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps(outer))
    renamed = {name.replace("midlayer.", "layers.0."): array for name, array in arrays.items()}
    save_file(tmp_path / "other" / "model.safetensors", renamed, {"format": "pt"})

    ckconv.convert(tmp_path / "other", tmp_path / "n.gguf", options=options)

    assert ckconv.diff(tmp_path / "m.gguf", tmp_path / "n.gguf").same


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (lambda ids: ids + 384, "is for token 3"),
        (
            lambda ids: (ids * 0 + 2**31 - 1).astype(np.int32),
            "element 0 is for token 2,147,483,647, and its model has 384",
        ),
        (lambda ids: ids * 0 - 1, "element 0 is for token -1, and its model has 384"),
        (lambda ids: 5 - np.arange(300), "300 elements are for token 5"),
    ],
)
def test_ids_of_no_tokens_are_refused(ids: Callable[[np.ndarray], np.ndarray], said: str, tmp_path: Path) -> None:
    draft, target = eagle(tmp_path, ids)

    with pytest.raises(ckconv.CkconvError) as refused:
        ckconv.convert(draft, tmp_path / "m.gguf", options=ckconv.Options(base=target))
    assert (refused.value.exit_code, said in " ".join((refused.value.message, *refused.value.details))) == (4, True)
