"""Checkpoints of several modalities: their text part is converted as the text model is that stands alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Raw, save, save_file
from conftest import FIXTURES
from family_cases import checkpoint, recording, tensors
from family_directions import differing, read_gguf
from safetensors_builder import tensors_of
from tower_cases import recorded_tower, with_tokens

import ckconv
from ckconv.api import convert_tower
from ckconv.errors import UnsupportedError

#: Family -> model_type of the whole, where its text part begins, and its other parts, as transformers 5.23 saves them.
WHOLES = {
    "gemma3": ("gemma3", "language_model.model.", ("vision_tower", "multi_modal_projector")),
    "gemma3n": ("gemma3n", "model.language_model.", ("model.vision_tower", "model.audio_tower", "model.embed_vision")),
    "gemma4_text": ("gemma4", "model.language_model.", ("model.vision_tower", "model.embed_vision")),
    "llama4": ("llama4", "language_model.model.", ("vision_model", "multi_modal_projector")),
    "mistral": ("mistral3", "language_model.model.", ("vision_tower", "multi_modal_projector")),
    "ministral3": ("mistral3", "language_model.model.", ("vision_tower", "multi_modal_projector")),
}


def plain_case(family: str) -> dict[str, Any]:
    return next(case for name, case in recording(family).items() if case.get("converter"))


def whole(family: str, root: Path, **outer: object) -> Path:
    """The recorded text model among tensors of pictures."""
    model_type, prefix, parts = WHOLES[family]
    case = plain_case(family)
    text = {key: value for key, value in case["config"].items() if key != "architectures"}
    config = {
        "model_type": model_type, "architectures": ["WholeForConditionalGeneration"], "text_config": text,
        "vision_config": {"hidden_size": 16, "model_type": "pictures"}, "image_token_id": 7, **outer,
    }  # fmt: skip
    before = prefix.removesuffix("model.") if prefix.startswith("language") else ""
    named = {
        prefix + name.removeprefix("model.") if name.startswith("model.") else before + name: array
        for name, array in tensors(case).items()
    }
    named |= {f"{part}.layers.{n}.fc1.weight": np.ones((2, 2), np.float32) for part in parts for n in (0, 1)}
    return save(root, config, named)


@pytest.mark.parametrize("family", WHOLES)
def test_the_gguf_is_the_one_that_llama_cpps_converter_makes_of_the_text_model(family: str, tmp_path: Path) -> None:
    ckconv.convert(whole(family, tmp_path / "whole"), tmp_path / "made.gguf")

    made, wanted = read_gguf(tmp_path / "made.gguf"), plain_case(family)["converter"]
    assert differing(wanted["tensors"], made["tensors"]) == ""
    keys = {key: value for key, value in made["keys"].items() if not key.endswith(".vocab_size")}  # no tokenizer here
    assert differing({key: value for key, value in wanted["keys"].items() if key in keys}, keys) == ""


@pytest.mark.parametrize("family", WHOLES)
def test_the_mlx_directory_is_that_of_the_text_model(family: str, tmp_path: Path) -> None:
    case = plain_case(family)
    ckconv.convert(save(tmp_path / "text", case["config"], tensors(case)), tmp_path / "alone", to="mlx")
    ckconv.convert(whole(family, tmp_path / "whole"), tmp_path / "made", to="mlx")

    assert tensors_of(tmp_path / "made") == tensors_of(tmp_path / "alone")
    said, wanted = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("made", "alone"))
    for document in (said, said.get("text_config", {})):
        document.pop("image_token_id", None)
    assert said == wanted


def test_a_note_names_each_part_beside_the_text_model_that_is_left_out(tmp_path: Path) -> None:
    report = ckconv.convert(whole("gemma4_text", tmp_path / "whole"), tmp_path / "made.gguf")

    said = "only the text part is written, without model.vision_tower.* (2 tensors), model.embed_vision.* (2 tensors)"
    assert [note for note in report.plan.notes if note.startswith(said)]


def test_a_part_of_the_text_model_that_no_rule_has_is_a_reason(tmp_path: Path) -> None:
    source = whole("gemma4_text", tmp_path / "whole")
    config = json.loads((source / "config.json").read_text())
    named = {name: Raw(*entry) for name, entry in tensors_of(source).items()}
    named["model.something.weight"] = np.ones((2, 2), np.float32)

    with pytest.raises(UnsupportedError) as caught:
        ckconv.convert(save(tmp_path / "other", config, named), tmp_path / "made.gguf")

    assert "ckconv has no rule of gemma4 for model.something.* of a gemma4_text (model_type)" in str(caught.value)
    assert caught.value.hint == "--drop 'model.something.*' leaves out what gemma4_text does not have"


@pytest.mark.product("values")
@pytest.mark.parametrize("family", WHOLES)
@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_the_number_of_a_token_is_the_one_that_the_text_part_says(family: str, to: str, tmp_path: Path) -> None:
    source = whole(family, tmp_path / "whole", pad_token_id=None)
    config = json.loads((source / "config.json").read_text())
    config["text_config"]["pad_token_id"] = 0
    (source / "config.json").write_text(json.dumps(config))

    ckconv.convert(source, tmp_path / "made", to=to)

    if to == "mlx":
        said = json.loads((tmp_path / "made" / "config.json").read_text())
        assert said.get("text_config", said)["pad_token_id"] == 0
    ckconv.verify(tmp_path / "made", source)  # raises what differs


@pytest.mark.parametrize(
    ("outer", "inner", "head", "tied"),
    [
        (True, False, False, True),  # the class of a Mistral 3 goes by the outer one
        (False, True, True, False),
        (False, True, False, False),
        (None, False, True, True),  # and takes true where it says nothing
        (None, True, False, True),
    ],
)
def test_the_outer_document_says_whether_the_head_is_the_embedding(
    outer: bool | None, inner: bool, head: bool, tied: bool, tmp_path: Path
) -> None:
    source = whole("mistral", tmp_path / "whole", **({} if outer is None else {"tie_word_embeddings": outer}))
    config = json.loads((source / "config.json").read_text())
    config["text_config"]["tie_word_embeddings"] = inner
    found = {name: entry for name, entry in tensors_of(source).items() if head or "lm_head" not in name}
    source = save(tmp_path / "other", config, {name: Raw(*entry) for name, entry in found.items()})

    index = ckconv.open_model(source).index
    assert index.config is not None
    assert index.config.tied is tied
    assert ("output.weight" in index.tensors) is head


def test_keys_beside_the_text_part_are_nothing_that_a_report_names(tmp_path: Path) -> None:
    report = ckconv.convert(whole("llama4", tmp_path / "whole"), tmp_path / "made.gguf")

    assert not any("no class of" in note for note in report.plan.notes)


#: Text parts that are saved alone, under the names that they have in the whole model.
ALONE = ("qwen3_5", "qwen3_5_moe", "gemma3", "gemma3n", "gemma4_text", "llama4")


@pytest.mark.product("pairs")
@pytest.mark.parametrize("family", ALONE)
@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_a_text_part_saved_alone_may_keep_its_names(tmp_path: Path, family: str, prefix: str, to: str) -> None:
    case = plain_case(family)
    assert case["config"]["model_type"].endswith("_text")
    named = {
        prefix + name.removeprefix("model.") if name.startswith("model.") else name: array
        for name, array in tensors(case).items()
    }
    for name, arrays in (("plain", tensors(case)), ("kept", named)):
        ckconv.convert(save(tmp_path / name, case["config"], arrays), tmp_path / f"{name}.{to}", to=to)

    read = read_gguf if to == "gguf" else tensors_of
    made, wanted = read(tmp_path / f"kept.{to}"), read(tmp_path / f"plain.{to}")
    if to == "gguf":
        made, wanted = made["tensors"], wanted["tensors"]
    assert made == wanted


@pytest.mark.parametrize(("source", "to"), [("hf", "mlx"), ("mlx", "hf")])
def test_a_text_model_under_the_name_of_the_whole_is_called_by_its_own(tmp_path: Path, source: str, to: str) -> None:
    """Released configurations say ``gemma3`` and no ``text_config``, which the class of that name reads alone."""
    given = tmp_path / "given"
    ckconv.convert(FIXTURES / "hf/gemma3-text-bf16", given, to=source)
    config = json.loads((given / "config.json").read_text())
    assert config["model_type"] == "gemma3_text"
    (given / "config.json").write_text(json.dumps(config | {"model_type": "gemma3"}))

    ckconv.convert(given, tmp_path / "made", to=to)

    assert json.loads((tmp_path / "made/config.json").read_text())["model_type"] == "gemma3_text"


@pytest.mark.parametrize("turned", [False, True], ids=["as released", "as transformers 5.24 saves them"])
@pytest.mark.parametrize("square", [False, True])
def test_experts_of_qwen3_vl_moe_are_read_in_either_order(turned: bool, square: bool, tmp_path: Path) -> None:
    """A matrix with as many rows as columns lies as the others of its file do."""
    case = recording("qwen3_vl_moe")["untied"]
    config, named = json.loads(json.dumps(case["config"])), dict(tensors(case))
    text = config["text_config"]
    hidden, experts = text["hidden_size"], text.get("num_experts", text.get("num_local_experts", 60))
    size = hidden // 2 if square else text["moe_intermediate_size"]
    text["moe_intermediate_size"] = size
    made, rows = dict[str, np.ndarray](), np.random.default_rng(3)
    for name in [name for name in named if ".experts." in name]:
        shape = (experts, hidden, 2 * size) if "gate_up" in name else (experts, size, hidden)
        made[name] = rows.standard_normal(shape, np.float32)
        named[name] = np.ascontiguousarray(made[name].swapaxes(1, 2)) if turned else made[name]
    ckconv.convert(save(tmp_path / "source", config, named), tmp_path / "m.gguf")

    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    gates = next(value for name, value in made.items() if "layers.0." in name and "gate_up" in name)
    downs = next(value for name, value in made.items() if "layers.0." in name and "down" in name)
    np.testing.assert_array_equal(stored["blk.0.ffn_gate_exps.weight"], gates[..., :size].swapaxes(1, 2))
    np.testing.assert_array_equal(stored["blk.0.ffn_down_exps.weight"], downs.swapaxes(1, 2))


@pytest.mark.parametrize("family", ["llama4", "qwen3_vl_moe"])
def test_keys_of_the_text_part_that_the_outer_document_has_too_are_no_fault(family: str, tmp_path: Path) -> None:
    """Only mlx-lm's classes that wrap the text model get a document in another."""
    source = (
        whole(family, tmp_path / "source")
        if family in WHOLES
        else checkpoint(recording(family)["untied"], tmp_path / "source")
    )
    config = json.loads((source / "config.json").read_text())
    inner = {key: value for key, value in config["text_config"].items() if key != "model_type"}
    (source / "config.json").write_text(json.dumps({**inner, **config}))

    ckconv.convert(source, tmp_path / "made", to="mlx")

    said = json.loads((tmp_path / "made" / "config.json").read_text())
    assert said["text_config"]["vocab_size"] == config["text_config"]["vocab_size"]


#: What transformers 5.3 to 5.5.3 saved of a Qwen 3.5 (transformers 45216, 45357), and none of them reads whole.
RENAMED = {
    "all": (("model.language_model.", 3 * "language_model."), ("model.visual.", "language_model.visual.")),
    "tower": (("model.visual.", "language_model.visual."),),
}


@pytest.mark.parametrize("renamed", RENAMED)
def test_names_that_transformers_saved_with_a_prefix_too_many_are_those_of_the_model(
    renamed: str, tmp_path: Path
) -> None:
    source = with_tokens(recorded_tower("qwen3_5-f16"), tmp_path / "model")
    files = "o.gguf", "t.gguf", "mlx/model.safetensors"

    def made(root: Path) -> list[bytes]:
        root.mkdir()
        ckconv.convert(source, root / "o.gguf")
        convert_tower(source, root / "t.gguf")
        ckconv.convert(source, root / "mlx", to="mlx")
        return [(root / name).read_bytes() for name in files]

    wanted = made(tmp_path / "wanted")
    arrays = {name: Raw(*entry) for name, entry in tensors_of(source).items()}
    for start, instead in RENAMED[renamed]:
        arrays = {re.sub(f"^{re.escape(start)}", f"model.{instead}", name): array for name, array in arrays.items()}
    save_file(source / "model.safetensors", arrays, {"format": "pt"})

    assert made(tmp_path / "found") == wanted
