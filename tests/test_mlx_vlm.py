"""Directories of mlx-vlm, both ways: a text model and a tower under its names, and the checkpoint that they are of."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import Raw, save
from conftest import Result
from family_directions import differing, read_gguf
from safetensors import deserialize
from test_towers_back import arrays, pictured, seen
from tower_cases import MLX_VLM, recorded_tower, seen_by_mlx_vlm, with_tokens

from ckconv.api import convert, convert_tower, diff, verify
from ckconv.core.options import Options

MADE: dict[str, dict[str, list[Any]]] = json.loads(MLX_VLM.read_text())["tensors"]

#: Of which the class has Q, K and V of the tower in one, and the recording each by itself.
JOINED = ("paddleocr_vl-f16",)

#: Those that transformers has a class for.
BOTH = [name for name in (*MADE, *JOINED) if not name.startswith("internvl_chat")]

#: Of numbers between limits, which the recording does not tell from each other.
CLIPPED = ("gemma4-bf16", "gemma4_hearing-bf16")

#: Layers behind the one that the text model sees: they are in no output of a tower, and mlx-vlm's has none either.
BEHIND = {"llava-f16": 2}


def made(name: str, stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What mlx-vlm makes of a checkpoint's tensors."""
    found: dict[str, np.ndarray] = {}
    for called, (old, axes, *more) in MADE[name].items():
        old, _, half = old.partition("|")
        for at, numbers in _places(old, stored):
            one = np.stack([stored[each] for each in at]) if "{e}" in old else stored[at[0]]
            one = np.split(one, 2, axis=-1)[int(half)] if half else one
            found[called.replace("{n}", numbers)] = one.transpose(axes) + sum(more)
    return found


def _places(pattern: str, stored: dict[str, np.ndarray]) -> Iterator[tuple[list[str], str]]:
    """Names of one pattern, those of every layer together."""
    shape = re.escape(pattern).replace(r"\{n\}", r"(\d+)").replace(r"\{e\}", r"\d+")
    found: dict[str, list[str]] = {}
    for name in sorted(stored):
        if match := re.fullmatch(shape, name):
            found.setdefault(match[1] if match.groups() else "", []).append(name)
    yield from ((names, number) for number, names in found.items())


def both(name: str, root: Path) -> tuple[Path, Path]:
    """A checkpoint, and the directory of mlx-vlm."""
    source = with_tokens(seen_by_mlx_vlm(name), root / "hf" / "model")
    convert(source, f"{root}/mlx/", to="mlx")
    return source, root / "mlx"


@pytest.mark.parametrize("name", MADE)
def test_a_checkpoint_becomes_what_mlx_vlm_makes_of_it(name: str, tmp_path: Path) -> None:
    source, directory = both(name, tmp_path)

    found, wanted = arrays(directory), made(name, arrays(source))

    zeros = {key for key in wanted if name in BEHIND and "post_layernorm" in key}
    behind = {key for key in wanted if f".encoder.layers.{BEHIND.get(name)}." in key}
    assert found.keys() == wanted.keys() - behind
    exact = {key: array for key, array in wanted.items() if key not in behind | zeros}
    assert [key for key, array in exact.items() if not np.array_equal(array, found[key])] == []
    assert [key for key in zeros if found[key].any()] == []
    verify(directory, source)


@pytest.mark.parametrize("name", [*MADE, *JOINED])
def test_its_tower_and_its_text_model_are_those_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    source, directory = both(name, tmp_path)

    convert_tower(source, tmp_path / "hf-mmproj.gguf")
    convert_tower(directory, tmp_path / "mlx-mmproj.gguf")
    convert(source, tmp_path / "hf.gguf")
    done = convert(directory, tmp_path / "mlx.gguf")

    wanted, found = read_gguf(tmp_path / "hf-mmproj.gguf"), read_gguf(tmp_path / "mlx-mmproj.gguf")
    assert (differing(wanted["tensors"], found["tensors"]), differing(wanted["keys"], found["keys"])) == ("", "")
    verify(tmp_path / "mlx-mmproj.gguf", directory)
    wanted, found = read_gguf(tmp_path / "hf.gguf"), read_gguf(tmp_path / "mlx.gguf")
    if name.startswith(("gemma3", *JOINED)):  # mlx-vlm stores the embedding twice
        found["tensors"].pop("output.weight", None)
    assert (differing(wanted["tensors"], found["tensors"]), differing(wanted["keys"], found["keys"])) == ("", "")
    assert any("only the text part is written" in note for note in done.plan.notes)


@pytest.mark.parametrize("name", [*BOTH, *CLIPPED])
def test_it_becomes_the_checkpoint_again(name: str, tmp_path: Path) -> None:
    source, directory = both(name, tmp_path)

    convert(directory, f"{tmp_path}/out/", to="hf")

    wanted, found = arrays(source), arrays(tmp_path / "out")
    behind = {key for key in wanted if f".encoder.layers.{BEHIND.get(name)}." in key or "post_layernorm" in key}
    twice = name.startswith(("gemma3", *JOINED))
    left = {"lm_head.weight", "language_model.lm_head.weight"} if twice else set()
    assert found.keys() - left == wanted.keys() - (behind if name in BEHIND else set()) | (found.keys() & behind)
    assert [key for key in wanted.keys() - behind if not np.array_equal(wanted[key], found[key])] == []
    verify(tmp_path / "out", directory)


@pytest.mark.product("values")
@pytest.mark.parametrize("made_of", ["hf", "mlx"])
@pytest.mark.parametrize("name", BOTH)
def test_two_files_become_the_directory_and_it_two_files(name: str, made_of: str, tmp_path: Path) -> None:
    source, directory = both(name, tmp_path)
    convert({"hf": source, "mlx": directory}[made_of], tmp_path / "text.gguf")
    convert_tower(source, tmp_path / "mmproj.gguf")

    convert(tmp_path / "text.gguf", f"{tmp_path}/out/", to="mlx", mmproj=tmp_path / "mmproj.gguf")

    wanted, found = arrays(directory), arrays(tmp_path / "out")
    assert found.keys() == wanted.keys()
    assert [key for key in wanted if not np.array_equal(wanted[key], found[key])] == []
    verify(tmp_path / "out", tmp_path / "text.gguf", mmproj=tmp_path / "mmproj.gguf")


@pytest.mark.parametrize("name", ["qwen2_vl-f16", "qwen2_5_vl-f32"])
def test_a_flat_configuration_says_what_a_nested_one_says(name: str, tmp_path: Path) -> None:
    """As these models are released: keys of the text model in the document itself."""
    nested = with_tokens(seen_by_mlx_vlm(name), tmp_path / "nested")
    document = json.loads((nested / "config.json").read_text())
    text, flat = document.pop("text_config"), tmp_path / "flat"
    rope = text.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    shutil.copytree(nested, flat)
    document = {**text, **document, "rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    (flat / "config.json").write_text(json.dumps(document))

    said = {}
    for source in (nested, flat):
        convert(source, f"{source}-mlx/", to="mlx", options=Options(context=32))
        said[source] = json.loads(Path(f"{source}-mlx/config.json").read_text())

    assert said[flat]["rope_scaling"]["mrope_section"] == [1, 1, 1]
    assert (said[flat]["max_position_embeddings"], said[nested]["max_position_embeddings"]) == (32, 32)
    unread = {"rope_parameters", "rope_scaling", "layer_types", "max_window_layers"}  # nothing slides
    read = said[nested]["text_config"].keys() - unread
    assert {key: said[flat].get(key) for key in read} == {key: said[nested].get(key) for key in read}


def test_a_copy_keeps_the_tower(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    _, directory = both("smolvlm-f16", tmp_path)

    assert ckconv("convert", directory, f"{tmp_path}/copy/", "--to", "mlx").code == 0
    assert diff(directory, tmp_path / "copy").same


@pytest.mark.parametrize("back", ["hf", "mlx"])
def test_a_flag_leaves_the_tower_out(back: str, ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source, directory = both("smolvlm-f16", tmp_path)

    made_of = {"hf": source, "mlx": directory}[back]
    done = ckconv("convert", made_of, f"{tmp_path}/text/", "--to", "mlx", "--drop", "tower")

    assert (done.code, "only the text part is written" in done.out) == (0, True), done.err
    names = arrays(tmp_path / "text").keys()
    assert {name.partition(".")[0] for name in names} == {"model", "lm_head"}
    assert json.loads((tmp_path / "text" / "config.json").read_text())["model_type"] == "llama"
    checked = ckconv("verify", tmp_path / "text", made_of)
    assert (checked.code, "the text model alone: the tower of the source is not in it" in checked.out) == (0, True)


def test_a_tower_that_cannot_be_read_is_left_out_with_the_reason(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source, _ = both("smolvlm-f16", tmp_path)
    config = json.loads((source / "config.json").read_text())
    del config["vision_config"]["num_hidden_layers"]
    (source / "config.json").write_text(json.dumps(config))

    done = ckconv("convert", source, f"{tmp_path}/text/", "--to", "mlx")

    assert (done.code, "the tower is left out, as it cannot be read: " in done.out) == (0, True), done.err


def test_who_leaves_the_tower_out_is_told_what_keeps_it(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source, _ = both("smolvlm-f16", tmp_path)

    for to in ("safetensors", "mlx"):
        done = ckconv("convert", source, f"{tmp_path}/to-{to}/", "--to", to, "--drop", "tower")
        assert (done.code, "; --to safetensors without --drop tower keeps everything" in done.out) == (0, True), (
            done.err
        )
    assert ckconv("convert", source, f"{tmp_path}/kept/", "--to", "safetensors").code == 0
    assert diff(source, tmp_path / "kept").same


@pytest.mark.parametrize(("name", "code"), [("smolvlm-f16", 0), ("glm4v-f16", 4)])
def test_of_two_files_the_text_model_goes_by_itself_where_it_has_a_class(
    name: str, code: int, ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    source = with_tokens(seen_by_mlx_vlm(name), tmp_path / "source")
    convert(source, tmp_path / "text.gguf")
    convert_tower(source, tmp_path / "mmproj.gguf")

    done = ckconv("convert", tmp_path / "text.gguf", tmp_path / "mmproj.gguf", f"{tmp_path}/two/", "--to", "mlx")
    alone = ckconv("convert", tmp_path / "text.gguf", f"{tmp_path}/one/", "--to", "mlx")

    assert alone.code == code, alone.err
    said = done.out + done.err
    hints = said.count("leave MMPROJ out to write the text model alone, for mlx-lm"), said.count(", for mlx-lm")
    assert hints == ((1, 1) if code == 0 else (0, 0)), said
    assert "--drop tower" not in said


@pytest.mark.parametrize("of", ["hf", "mlx"])
def test_a_tower_that_is_said_and_not_there_is_left_out(of: str, ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source, directory = both("gemma3-f16", tmp_path)
    blind = {"hf": source, "mlx": directory}[of]
    kept = {
        name: Raw(one["dtype"], tuple(one["shape"]), bytes(one["data"]))
        for name, one in raw(blind).items()
        if name.startswith("language_model.")
    }
    save(blind, json.loads((blind / "config.json").read_text()), kept, metadata={"format": {"hf": "pt"}.get(of, of)})
    to = {"hf": "mlx", "mlx": "hf"}[of]

    done = ckconv("convert", blind, f"{tmp_path}/out/", "--to", to)

    assert done.code == 0, done.err
    assert "config.json says a tower, and no tensor of it is there: the text model is written" in done.out
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "gemma3_text"
    assert {name.partition(".")[0] for name in arrays(tmp_path / "out")} <= {"model", "lm_head"}
    assert ckconv("verify", tmp_path / "out", blind).code == 0
    refused = ckconv("convert", blind, tmp_path / "text.gguf", "--mmproj", tmp_path / "mmproj.gguf")
    said = (
        "error[tower.unknown]: " in refused.err
        and "config.json says a tower, and no tensor of it is there" in refused.err
    )
    assert (refused.code, said) == (4, True), refused.err


def test_what_mlx_vlm_computes_otherwise_and_takes_is_said(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source = with_tokens(seen_by_mlx_vlm("gemma3-f16"), tmp_path / "source")

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx")

    said = "mlx-vlm attends causally within a picture, and transformers both ways"
    assert (done.code, said in done.out) == (0, True), done.err


def raw(root: Path) -> dict[str, Any]:
    """Every tensor as it is stored."""
    return dict(deserialize((root / "model.safetensors").read_bytes()))


def wide(root: Path) -> Path:
    """A SmolVLM whose rows are whole groups."""
    recorded = seen_by_mlx_vlm("smolvlm-f16")
    sizes = {24: 64, 40: 96, 12: 32}
    for key, (kind, shape) in recorded["tensors"].items():
        if "vision_model" not in key:
            recorded["tensors"][key] = [kind, [sizes.get(size, size) for size in shape]]
    recorded["config"]["text_config"] |= {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    return with_tokens(recorded, root)


def test_the_text_model_and_the_connector_are_quantized(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source = wide(tmp_path / "wide")
    convert(source, f"{tmp_path}/plain/", to="mlx")

    asked = ("--quantize", "affine:4:32,*lm_head*=affine:8:32")
    done = ckconv("convert", source, f"{tmp_path}/four/", "--to", "mlx", *asked)

    assert done.code == 0, done.err
    plain, stored = (raw(tmp_path / name) for name in ("plain", "four"))
    scaled = {name.removesuffix(".scales") for name in stored if name.endswith(".scales")}
    assert {name for name in scaled if not name.startswith("language_model.")} == {"connector.modality_projection.proj"}
    assert len(scaled) == 2 * 7 + 2 + 1
    dense = {name for name in plain if name.removesuffix(".weight") not in scaled}
    assert [name for name in dense if plain[name]["data"] != stored[name]["data"]] == []
    general = {"group_size": 32, "bits": 4, "mode": "affine"}
    said = json.loads((tmp_path / "four" / "config.json").read_text())["quantization"]
    assert said == {**general, "language_model.lm_head": {**general, "bits": 8}}
    assert ckconv("verify", tmp_path / "four", source, *asked).code == 0
    for flags in (("--to", "hf", "--dequantize"), ("--to", "mlx", "--dequantize")):
        out = tmp_path / flags[1]
        assert ckconv("convert", tmp_path / "four", f"{out}/", *flags).code == 0
        assert len(arrays(out)) == len(plain)
        assert ckconv("verify", out, tmp_path / "four").code == 0
    two = (tmp_path / "x.gguf", "--mmproj", tmp_path / "m.gguf", "--dequantize")
    assert ckconv("convert", tmp_path / "four", *two).code == 0
    assert ckconv("convert", tmp_path / "plain", f"{tmp_path}/again/", "--to", "mlx", *asked).code == 0
    assert raw(tmp_path / "again") == stored


@pytest.mark.parametrize(
    ("name", "keys", "why"),
    [
        ("llava-f32", {}, "ckconv writes mlx-vlm's llava with llama, qwen2 within it, not with mistral"),
        ("pixtral-f16", {"vision_config": {"hidden_act": "gelu"}}, "mlx-vlm computes silu"),
        ("mistral3-mistral4", {}, "mlx-vlm's mistral4 does not weigh attention by mscale_all_dim"),
        ("gemma4_hearing-f16", {}, "mlx-vlm's class wants limits of linear layers"),
        ("gemma3-f16", {"tie_word_embeddings": False}, "takes the embedding for the output head"),
        ("gemma3-f16", {"tie_word_embeddings": True}, "takes the embedding for the output head"),
    ],
)
def test_what_mlx_vlm_computes_otherwise_is_refused(
    name: str, keys: dict[str, Any], why: str, ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    recorded = seen_by_mlx_vlm(name)
    for key, value in keys.items():
        recorded["config"][key] = recorded["config"][key] | value if isinstance(value, dict) else value
    if name.startswith("gemma3"):
        embedding = recorded["tensors"]["language_model.model.embed_tokens.weight"]
        recorded["tensors"]["language_model.lm_head.weight"] = embedding
    source = with_tokens(recorded, tmp_path / "source")

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx")

    assert (done.code, why in done.err) == (4, True), done.err


@pytest.mark.parametrize(
    ("name", "key", "value", "code", "why"),
    [
        (
            "glm_ocr-f16",
            "vision_config.attention_bias",
            False,
            4,
            "a glm_ocr of this configuration has no tower.layers",
        ),
        (
            "paddleocr_vl-f16",
            "vision_config.layer_norm_eps",
            1e-5,
            4,
            "tower is 1e-05, and mlx-vlm computes with 1e-06",
        ),
        ("paddleocr_vl-f16", "vision_config.hidden_act", "gelu", 4, "is gelu, and mlx-vlm computes gelu_pytorch_tanh"),
        (
            "glm_ocr-f16",
            "vision_config.rope_parameters",
            {"rope_theta": 500.0},
            4,
            "of the tower changes the computation",
        ),
        ("gemma4_unified-bf16", "text_config.rope_parameters", "x", 3, "rope_parameters must be an object, got str"),
        ("gemma4_unified-bf16", "text_config.rope_parameters.full_attention", 0, 3, "must be an object, got int"),
    ],
)
def test_what_a_class_would_not_load_or_compute_is_refused(
    name: str, key: str, value: Any, code: int, why: str, ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    recorded = seen_by_mlx_vlm(name)
    *tables, word = key.split(".")
    reduce(dict.__getitem__, tables, recorded["config"])[word] = value
    source = with_tokens(recorded, tmp_path / "source")

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx")

    assert (done.code, why in done.err) == (code, True), done.err


def test_a_narrower_text_model_is_refused_where_the_class_has_one_width(
    ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    source = with_tokens(recorded_tower("paddleocr_vl-f16"), tmp_path / "source")

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx")

    assert (done.code, "of a text model of 1,024 elements, and this one has 24" in done.err) == (4, True), done.err


@pytest.mark.parametrize(
    ("name", "table", "value", "meant"),
    [
        ("gemma3-f16", "vision_config", "x", "siglip_vision_model"),
        ("mistral3-f16", "vision_config", "x", "pixtral"),
        ("smolvlm-f16", "vision_config", "x", "smolvlm_vision"),
        ("lfm2_vl-f16", "vision_config", "x", "siglip2_vision_model"),
        ("glm_ocr-f16", "vision_config", "x", "glm_ocr_vision"),
        ("internvl_chat-bf16", "vision_config", ..., "intern_vit_6b"),
        ("gemma4_unified-bf16", "audio_config", ..., "gemma4_unified_audio"),
    ],
)
def test_a_part_has_the_kind_that_the_class_takes(
    name: str, table: str, value: Any, meant: str, ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    """Several classes of mlx-vlm stop at another; those of transformers do not look."""
    recorded = seen_by_mlx_vlm(name)
    recorded["config"][table]["model_type"] = value
    if value is ...:
        del recorded["config"][table]["model_type"]
    source = with_tokens(recorded, tmp_path / "source")

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx")

    assert done.code == 0, done.err
    assert json.loads((tmp_path / "out" / "config.json").read_text())[table]["model_type"] == meant
    assert ckconv("verify", tmp_path / "out", source).code == 0


UNBIASED = "glm_ocr-f16 without biases"


def unbiased() -> Any:
    """A GLM-OCR the layers of whose tower have no biases."""
    recorded = seen_by_mlx_vlm("glm_ocr-f16")
    recorded["config"]["vision_config"]["attention_bias"] = False
    tensors = recorded["tensors"]
    recorded["tensors"] = {key: it for key, it in tensors.items() if ".blocks." not in key or not key.endswith("bias")}
    assert len(tensors) - len(recorded["tensors"]) == 3 * 5
    return recorded


def test_a_tower_without_biases_is_one(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source = with_tokens(unbiased(), tmp_path / "source")

    assert ckconv("convert", source, f"{tmp_path}/mlx/", "--to", "mlx").code == 0
    assert ckconv("convert", tmp_path / "mlx", f"{tmp_path}/back/", "--to", "hf").code == 0
    two = ("--mmproj", tmp_path / "m.gguf")  # libmtmd asks for no bias of a layer (load_tensors of clip.cpp)
    assert ckconv("convert", source, tmp_path / "x.gguf", *two).code == 0
    assert ckconv("convert", tmp_path / "x.gguf", tmp_path / "m.gguf", f"{tmp_path}/whole/", "--to", "hf").code == 0
    before = arrays(tmp_path / "source")
    for name in ("back", "whole"):
        after = arrays(tmp_path / name)
        assert before.keys() == after.keys()
        assert all((before[key] == after[key]).all() for key in after)
        vision = json.loads((tmp_path / name / "config.json").read_text())["vision_config"]
        assert vision["attention_bias"] is False


def test_sections_that_the_class_takes_by_itself_are_said(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    recorded, sections = seen_by_mlx_vlm("paddleocr_vl-f16"), [16, 24, 24]  # which turn heads of 128
    text = recorded["config"]["text_config"]
    wider = 2 * sum(sections) // text["head_dim"]
    text |= {"head_dim": 2 * sum(sections), "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    for _, shape in (
        one for name, one in recorded["tensors"].items() if ".self_attn." in name and "visual" not in name
    ):
        at = 1 if shape[0] == text["hidden_size"] else 0
        shape[at] *= wider
    source = with_tokens(recorded, tmp_path / "source")

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx")

    assert done.code == 0, done.err
    document = json.loads((tmp_path / "out" / "config.json").read_text())
    assert document["text_config"]["rope_scaling"]["mrope_section"] == sections


def test_a_layer_that_mlx_vlm_leaves_out_is_refused(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    recorded, start = seen_by_mlx_vlm("glm_ocr-f16"), "model.language_model.layers."
    layer = {key.removeprefix(f"{start}1"): one for key, one in recorded["tensors"].items() if f"{start}1." in key}
    recorded["tensors"] |= {f"{start}{n}{key}": one for n in range(17) for key, one in layer.items()}
    recorded["config"]["text_config"]["num_hidden_layers"] = 17
    source = with_tokens(recorded, tmp_path / "source")

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx")

    assert (done.code, "leaves out the 17th layer of a text model, which has 17" in done.err) == (4, True), done.err


@pytest.mark.parametrize(
    ("name", "table", "key", "value", "meant"),
    [
        ("qwen2_5_vl-f32", "", "hidden_act", False, "silu"),  # of the text part, which says its own
        ("qwen3_5-f16", "text_config", "attention_bias", True, False),  # there are none
        ("qwen2_vl-bf16", "", "attention_dropout", -1, 0.0),  # which the class does not take
        ("qwen2_vl-bf16", "", "use_sliding_window", 2, False),
        ("idefics3-f16", "text_config", "sliding_window", False, None),  # which its class does not read
        ("internvl-bf16", "text_config", "rope_theta", 0, 1e4),  # that of rope_parameters is read
        ("mistral3-f16", "", "layer_types", -1, None),  # beside the text part no class reads it
        ("qwen2_vl-bf16", "text_config", "rope_parameters", {"mrope_section": [1, 1, 1]},
         {"mrope_section": [1, 1, 1], "rope_type": "default", "rope_theta": 1e6}),
        ("gemma3-f16", "vision_config", "model_type", ..., "siglip_vision_model"),
        ("internvl_chat-bf16", "llm_config", "model_type", "x", "qwen2"),  # its architectures say so
    ],
)  # fmt: skip
def test_what_no_class_takes_and_tensors_contradict_is_said_right(
    name: str, table: str, key: str, value: Any, meant: Any, ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    recorded = seen_by_mlx_vlm(name)
    said = recorded["config"][table] if table else recorded["config"]
    said[key] = value
    if value is ...:
        del said[key]
    source = with_tokens(recorded, tmp_path / "source")

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx")

    assert done.code == 0, done.err
    document = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (document[table] if table else document).get(key) == meant


@pytest.mark.parametrize(("layers", "hinted"), [(6, True), (2, False)])  # mlx-lm's class wants six
def test_what_leaves_the_tower_out_is_hinted_where_the_text_model_goes_alone(
    layers: int, hinted: bool, ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    recorded = seen_by_mlx_vlm("gemma3-f16") if layers == 6 else recorded_tower("gemma3-f16")
    recorded["config"]["vision_config"]["intermediate_size"] += 1
    source = with_tokens(recorded, tmp_path / "source")

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx")
    alone = ckconv("convert", source, f"{tmp_path}/text/", "--to", "mlx", "--drop", "tower")

    assert (done.code, "--drop tower" in done.err) == (3, hinted), done.err
    assert alone.code == (0 if hinted else 4), alone.err


def test_a_tower_of_another_text_model_is_refused(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    one, _ = both("qwen2_vl-f16", tmp_path / "one")
    other, _ = both("smolvlm-f16", tmp_path / "other")
    convert(one, tmp_path / "text.gguf")
    convert_tower(other, tmp_path / "mmproj.gguf")

    done = ckconv("convert", tmp_path / "text.gguf", tmp_path / "mmproj.gguf", f"{tmp_path}/out/", "--to", "mlx")

    said = "tower of mmproj.gguf is of a smolvlm, and the text model of text.gguf is a qwen2"
    assert (done.code, said in done.err) == (4, True), done.err


#: Whose classes compute heads of these sizes, of either.
SEEN = [name for name in BOTH if name not in ("gemma3-f16", "gemma3-bf16")]


@pytest.mark.live
@pytest.mark.parametrize("name", SEEN)
def test_transformers_sees_with_what_comes_back(name: str, tmp_path: Path) -> None:
    source, directory = both(name, tmp_path)
    convert(directory, f"{tmp_path}/out/", to="safetensors")

    assert np.abs(seen(source) - seen(tmp_path / "out")).max() == 0


def logits_of(model: Any, source: Path, *, batched: bool = False) -> np.ndarray:
    """What a class of mlx-vlm computes of the picture of a checkpoint."""
    mx = pytest.importorskip("mlx.core")
    inputs = {key: mx.array(value.numpy()) for key, value in pictured(source).items()}
    ids, pixels, mask = (inputs.pop(key) for key in ("input_ids", "pixel_values", "attention_mask"))
    pixels = pixels[None] if batched else pixels  # of a batch
    # As generate_step of mlx_vlm/generate/ar.py.
    inputs.pop("mm_token_type_ids", None)
    found = model.get_input_embeddings(ids, pixels, mask=mask, **inputs).to_dict()
    embedded = found.pop("inputs_embeds")
    inputs |= {key: value for key, value in found.items() if value is not None}
    return np.array(model.language_model(ids, inputs_embeds=embedded, **inputs).logits)


@pytest.mark.live
@pytest.mark.parametrize("name", [*SEEN, *CLIPPED, UNBIASED])
def test_mlx_vlm_sees_what_transformers_sees(name: str, tmp_path: Path) -> None:
    utils = pytest.importorskip("mlx_vlm.utils")
    recorded = unbiased() if name == UNBIASED else seen_by_mlx_vlm(name)
    if name.startswith("gemma4"):  # of which mlx-vlm has other layers attend both ways
        recorded["config"]["text_config"]["use_bidirectional_attention"] = None
    source = with_tokens(recorded, tmp_path / "source")
    convert(source, f"{tmp_path}/out/", to="mlx", options=Options(dtype="f32"))
    model = utils.load_model(tmp_path / "out")

    assert np.abs(logits_of(model, source, batched=name in JOINED) - seen(source)).max() < 1e-4


@pytest.mark.live
def test_what_mlx_vlm_computes_of_a_mistral_4_is_what_is_said_of_it(tmp_path: Path) -> None:
    utils, recorded = pytest.importorskip("mlx_vlm.utils"), seen_by_mlx_vlm("mistral3-mistral4")
    text = recorded["config"]["text_config"]
    text["tie_word_embeddings"] = True  # which its loader reads there
    source = with_tokens(recorded, tmp_path / "source")
    model, wanted = utils.load_model(source), seen(source)
    model.set_dtype(pytest.importorskip("mlx.core").float32)

    found = logits_of(model, source)
    for layer in model.language_model.model.layers:
        layer.self_attn.scale *= (1 + 0.1 * np.log(text["rope_parameters"]["factor"])) ** 2
        layer.self_attn.q_a_layernorm.eps = layer.self_attn.kv_a_layernorm.eps = 1e-6

    assert np.abs(found - wanted).max() > 1e-3
    assert np.abs(logits_of(model, source) - wanted).max() < 1e-5


#: Those that are read and not written -> what is called otherwise than in the checkpoint.
READ = {
    "gemma3n-bf16": {"model.": "", "language_model.": "language_model.model."},
    "mistral3-mistral4": {
        "vision_tower.": "vision_tower.vision_model.",
        ".experts.down_proj": ".switch_mlp.down_proj.weight",
    },
}


def directory_of(name: str, root: Path) -> tuple[Path, Path]:
    """A checkpoint, and its directory under the names and in the orders of axes that mlx-vlm's class loads."""
    recorded = recorded_tower(name)
    recorded["config"]["text_config"]["tie_word_embeddings"] = True  # where mlx-vlm reads it
    source, directory = with_tokens(recorded, root / "hf" / "model"), root / "mlx"
    named = {}
    for key, one in raw(source).items():
        array = np.frombuffer(one["data"], "<u2").reshape(one["shape"])
        array = np.moveaxis(array, 1, -1) if array.ndim > 2 and "experts" not in key else array  # kernels
        called = reduce(lambda said, other: said.replace(*other, 1), READ[name].items(), key)
        halves = np.split(array, 2, axis=1) if "gate_up_proj" in key else [array]
        for half, part in zip(halves, ("gate", "up"), strict=False):
            own = called.replace(".experts.gate_up_proj", f".switch_mlp.{part}_proj.weight")
            named[own] = Raw(one["dtype"], half.shape, half.tobytes())
    shutil.copytree(source, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    save(directory, json.loads((source / "config.json").read_text()), named, metadata={"format": "mlx"})
    return source, directory


@pytest.mark.parametrize("name", READ)
def test_a_directory_that_is_not_written_becomes_the_checkpoint_and_its_mmproj(name: str, tmp_path: Path) -> None:
    source, directory = directory_of(name, tmp_path)

    convert(directory, f"{tmp_path}/out/", to="hf")
    assert {**raw(tmp_path / "out")} == {**raw(source)}
    verify(tmp_path / "out", directory)
    for make in (convert_tower, convert) if name.startswith("mistral3") else (convert_tower,):
        one, other = (tmp_path / f"{make.__name__}-{of}.gguf" for of in ("hf", "mlx"))
        make(source, one)
        make(directory, other)
        wanted, found = read_gguf(one), read_gguf(other)
        assert (differing(wanted["tensors"], found["tensors"]), differing(wanted["keys"], found["keys"])) == ("", "")


def test_of_a_gemma3n_the_text_model_is_written_and_why(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source, _ = directory_of("gemma3n-bf16", tmp_path)
    convert(source, tmp_path / "text.gguf")
    convert_tower(source, tmp_path / "mmproj.gguf")

    done = ckconv("convert", source, f"{tmp_path}/text/", "--to", "mlx")
    two = ckconv("convert", tmp_path / "text.gguf", tmp_path / "mmproj.gguf", f"{tmp_path}/two/", "--to", "mlx")

    why = "its class in mlx-vlm does not multiply the embeddings of a prompt by the square root of hidden_size"
    assert (done.code, f"the tower is left out, as {why}" in done.out) == (0, True), done.err
    assert {name.partition(".")[0] for name in arrays(tmp_path / "text")} == {"model"}
    assert (two.code, why in two.err, "leave MMPROJ out to write the text model" in two.err) == (4, True, True)
