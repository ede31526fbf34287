"""What flags and edits make of a model that sees: all of it, its text model, or a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from conftest import Result
from outputs import contents
from test_mlx_vlm import both
from test_towers_back import arrays
from tower_cases import checkpoint, recorded_tower, seen_by_mlx_vlm, with_tokens

from ckconv.api import convert, convert_tower, diff
from ckconv.core.options import Options
from ckconv.errors import InputError

Ckconv = Callable[..., Result]


@pytest.mark.parametrize("of", ["mlx", "gguf"])
def test_a_text_model_with_its_tower_is_no_single_file(of: str, ckconv: Ckconv, tmp_path: Path) -> None:
    source, directory = both("smolvlm-f16", tmp_path)
    convert(source, tmp_path / "text.gguf")
    convert_tower(source, tmp_path / "mmproj.gguf")
    sources = {"mlx": [directory], "gguf": [tmp_path / "text.gguf", tmp_path / "mmproj.gguf"]}[of]

    done = ckconv("convert", *sources, tmp_path / "one.safetensors")

    assert (done.code, "name a directory (DST/)" in done.err) == (4, True), done.err
    assert ckconv("convert", *sources, f"{tmp_path}/out/", "--to", "hf").code == 0


@pytest.mark.parametrize("of", ["hf", "mlx"])
def test_a_text_model_of_a_class_that_wraps_it_is_written_and_verified(of: str, ckconv: Ckconv, tmp_path: Path) -> None:
    source, directory = both("qwen3_vl_moe-f16", tmp_path)
    place = {"hf": source, "mlx": directory}[of]

    assert ckconv("convert", place, f"{tmp_path}/text/", "--to", "mlx", "--drop", "tower").code == 0
    assert {name.partition(".")[0] for name in arrays(tmp_path / "text")} == {"language_model"}
    checked = ckconv("verify", tmp_path / "text", place)
    assert (checked.code, "the text model alone: the tower of the source is not in it" in checked.out) == (0, True)


def test_no_text_model_is_written_that_transformers_has_no_class_for(ckconv: Ckconv, tmp_path: Path) -> None:
    source, _ = both("qwen3_vl_moe-f16", tmp_path)

    done = ckconv("convert", source, f"{tmp_path}/text/", "--to", "hf", "--drop", "tower")

    assert (done.code, "the text part alone is no model of it" in done.err) == (4, True), done.err


@pytest.mark.parametrize(
    ("of", "globs", "left"),
    [
        ("hf", ["*vision_model.encoder.layers.0*"], 16),
        ("mlx", ["*vision*"], 53),
        ("hf", ["*vision*", "*connector*"], 0),
        ("mlx", ["*vision*", "*connector*"], 0),
    ],
)
def test_a_tower_is_left_out_whole_or_not_at_all(
    of: str, globs: Sequence[str], left: int, ckconv: Ckconv, tmp_path: Path
) -> None:
    source, directory = both("smolvlm-f16", tmp_path)
    drops = [word for glob in globs for word in ("--drop", glob)]

    done = ckconv("convert", {"hf": source, "mlx": directory}[of], f"{tmp_path}/out/", "--to", of, *drops)

    if left:
        assert (done.code, "no tensor for tower." in done.err, "--drop tower writes" in done.err) == (4, True, True)
    else:
        assert done.code == 0, done.err
        assert {name.partition(".")[0] for name in arrays(tmp_path / "out")} == {"model", "lm_head"}
        assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "llama"


def test_a_hole_in_a_tower_that_is_not_known_is_refused(ckconv: Ckconv, tmp_path: Path) -> None:
    source, _ = both("llava-f16", tmp_path)
    config = json.loads((source / "config.json").read_text())
    config["vision_config"]["model_type"] = "some_vision_model"
    (source / "config.json").write_text(json.dumps(config))

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "hf", "--drop", "*vision_tower*layers.1.*")

    assert (done.code, "tensors beside the text model (" in done.err) == (4, True), done.err
    assert "--drop tower writes the text model alone" in done.err


@pytest.mark.parametrize("flags", [("--fuse", "qkv"), ("--names", "canonical")])
def test_flags_for_text_models_do_not_leave_the_tower_out(
    flags: tuple[str, str], ckconv: Ckconv, tmp_path: Path
) -> None:
    source, _ = both("smolvlm-f16", tmp_path)

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "hf", *flags)

    assert (done.code, "--names and --fuse are for text models" in done.err) == (4, True), done.out


def test_two_words_for_one_number_of_a_tower_are_no_difference(tmp_path: Path) -> None:
    source, directory = both("llava-f16", tmp_path)
    assert "num_heads" not in json.loads((source / "config.json").read_text())["vision_config"]

    assert (diff(source, directory).same, diff(directory, source).same) == (True, True)


def test_edits_of_a_directory_of_mlx_vlm_go_to_every_table_that_it_reads(ckconv: Ckconv, tmp_path: Path) -> None:
    _, directory = both("qwen2_vl-f16", tmp_path)

    assert ckconv("edit", directory, f"{tmp_path}/out/", "--set-meta", "rope_theta=500").code == 0
    document = json.loads((tmp_path / "out" / "config.json").read_text())
    tables = (document, document["text_config"])
    assert {one["rope_theta"] for one in tables} | {one["rope_parameters"]["rope_theta"] for one in tables} == {500}
    done = ckconv("edit", directory, f"{tmp_path}/one/", "--set-meta", "text_config.rope_theta=500")
    assert (done.code, "mlx-vlm takes" in done.out, "mlx-lm" in done.out) == (0, True, False), done.err


@pytest.mark.parametrize("model_type", ["llava", "gemma3"])
def test_another_class_is_no_edit_of_what_is_named_for_one(model_type: str, ckconv: Ckconv, tmp_path: Path) -> None:
    source, _ = both("qwen2_vl-f16", tmp_path)

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx", "--set-meta", f"model_type={model_type}")
    noted = ckconv("edit", source, f"{tmp_path}/edited/", "--set-meta", f"model_type={model_type}")

    assert (done.code, "its tensors are those of a qwen2_vl" in done.err) == (2, True), done.err
    assert (noted.code, "its tensors are those of a qwen2_vl" in noted.out) == (0, True), noted.err


@pytest.mark.parametrize("name", ["qwen3_vl_moe-f16", "gemma4-f16", "llava-f16", "pixtral-f16"])
def test_a_tower_without_heads_is_refused_by_the_key(name: str, tmp_path: Path) -> None:
    recorded = recorded_tower(name)
    table = recorded["config"]["vision_config"]
    key = "num_heads" if "num_heads" in table else "num_attention_heads"
    table[key] = 0

    with pytest.raises(InputError, match=rf"vision_config\.{key}.* must be a number above 0, got 0"):
        convert_tower(checkpoint(recorded, tmp_path / "source"), tmp_path / "mmproj.gguf")


def test_square_experts_beside_two_orders_are_refused(ckconv: Ckconv, tmp_path: Path) -> None:
    """The third order is that of the others, and they have two."""
    recorded = seen_by_mlx_vlm("qwen3_vl_moe-f16")
    recorded["config"]["text_config"]["moe_intermediate_size"] = 24
    start = "model.language_model.layers.{n}.mlp.experts."
    orders = {0: [4, 24, 48], 1: [4, 48, 24], 2: [4, 24, 48]}
    for layer, shape in orders.items():
        recorded["tensors"][f"{start.format(n=layer)}gate_up_proj"][1] = shape
        recorded["tensors"][f"{start.format(n=layer)}down_proj"][1] = [4, 24, 24]

    done = ckconv("convert", with_tokens(recorded, tmp_path / "source"), tmp_path / "out.gguf")

    assert (done.code, "is square, and others of its kind lie in two orders" in done.err) == (3, True), done.err
    recorded["tensors"][f"{start.format(n=1)}gate_up_proj"][1] = orders[0]
    assert ckconv("convert", with_tokens(recorded, tmp_path / "right"), tmp_path / "out.gguf").code == 0


def test_verify_looks_for_towers_once(ckconv: Ckconv, tmp_path: Path) -> None:
    source, _ = both("smolvlm-f16", tmp_path)
    convert(source, f"{tmp_path}/text/", to="mlx", options=Options(drop=("tower",)))
    from ckconv.formats.huggingface import read

    with patch.object(read, "tower_index", wraps=read.tower_index) as looked:
        assert ckconv("verify", tmp_path / "text", source).code == 0
    assert looked.call_count == 2  # of the source, and of the output


@pytest.mark.parametrize("name", ["qwen2_vl-f16", "smolvlm-f16"])
def test_a_record_makes_a_directory_of_mlx_vlm_again_byte_for_byte(name: str, ckconv: Ckconv, tmp_path: Path) -> None:
    _, directory = both(name, tmp_path)
    two = (tmp_path / "text.gguf", tmp_path / "mmproj.gguf")

    made = ckconv("convert", directory, two[0], "--mmproj", two[1], "--source-record")
    done = ckconv("convert", *two, f"{tmp_path}/back/", "--to", "mlx")

    assert (made.code, done.code, "byte for byte: mlx" in done.out) == (0, 0, True), made.err + done.err
    assert contents(tmp_path / "back") == contents(directory)
