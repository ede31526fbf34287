"""Families with layers of several kinds: Qwen 3.5 and its mixture, whose other layers are Gated DeltaNet."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import family_cases
import gguf
import numpy as np
import pytest
from checkpoints import save_file
from family_directions import differing, read_gguf
from gguf_copies import gguf_copy
from safetensors.numpy import load_file
from safetensors_builder import numbers, tensors_of

import ckconv
from ckconv.core.layouts import EXP, NEG_EXP
from ckconv.quant.convert import shifted

WRAPPED = {"vision_config": {"depth": 2}, "image_token_id": 5, "architectures": ["Qwen3_5ForConditionalGeneration"]}


def recorded(name: str, family: str = "qwen3_5") -> dict[str, Any]:
    return next(case for case in family_cases.cases(family) if case.name == name).recorded


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return family_cases.checkpoint(recorded("grouped_value_heads"), tmp_path / "checkpoint")


def wrapped(checkpoint: Path, **besides: Any) -> Path:
    """The checkpoint as the text part of a model that sees pictures, under the names of released ones."""
    config = json.loads((checkpoint / "config.json").read_text())
    document = {"model_type": config["model_type"].removesuffix("_text"), "text_config": config, **WRAPPED}
    (checkpoint / "config.json").write_text(json.dumps(document))
    tensors = {
        name.replace("model.", "model.language_model.", 1): array
        for name, array in load_file(checkpoint / "model.safetensors").items()
    }
    save_file(checkpoint / "model.safetensors", {**tensors, **besides}, {"format": "pt"})
    return checkpoint


def test_the_text_part_of_a_checkpoint_is_converted_as_the_text_model(checkpoint: Path, tmp_path: Path) -> None:
    ckconv.convert(checkpoint, tmp_path / "text.gguf")
    ckconv.convert(wrapped(checkpoint), tmp_path / "part.gguf")
    text, part = read_gguf(tmp_path / "text.gguf"), read_gguf(tmp_path / "part.gguf")
    assert differing(text["tensors"], part["tensors"]) == differing(text["keys"], part["keys"]) == ""


def test_experts_of_a_layer_in_two_tensors_are_those_that_lie_one_by_one(tmp_path: Path) -> None:
    """As Qwen 3.5's released mixtures have them; ``save_pretrained`` writes them one by one."""
    source = family_cases.checkpoint(recorded("grouped_value_heads", "qwen3_5_moe"), tmp_path / "source")
    ckconv.convert(source, tmp_path / "apart.gguf")
    tensors = load_file(source / "model.safetensors")
    for layer in range(4):
        experts = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            np.stack([tensors.pop(f"{experts}.{e}.{name}_proj.weight") for e in range(5)])
            for name in ("gate", "up", "down")
        )
        tensors |= {f"{experts}.gate_up_proj": np.concatenate([gate, up], 1), f"{experts}.down_proj": down}
    save_file(source / "model.safetensors", tensors, {"format": "pt"})
    ckconv.convert(wrapped(source), tmp_path / "together.gguf")
    apart, together = read_gguf(tmp_path / "apart.gguf"), read_gguf(tmp_path / "together.gguf")
    assert differing(apart["tensors"], together["tensors"]) == differing(apart["keys"], together["keys"]) == ""


def test_a_tower_is_left_out_and_a_note_names_it(checkpoint: Path, tmp_path: Path) -> None:
    patch = {"model.visual.patch_embed.proj.weight": np.zeros((4, 3), np.float32)}
    source = wrapped(checkpoint, **patch)
    notes = ckconv.convert(source, tmp_path / "part.gguf").plan.notes
    assert any("without model.visual.* (1 tensor)" in note for note in notes)
    wanted = recorded("grouped_value_heads")["converter"]
    assert read_gguf(tmp_path / "part.gguf")["tensors"].keys() == wanted["tensors"].keys()


def test_parts_of_layers_that_predict_further_tokens_are_left_out(checkpoint: Path, tmp_path: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    names = ["fc", "norm", "layers.0.self_attn.q_proj", "layers.0.mlp.up_proj"]
    extra = {f"mtp.{name}.weight": np.ones((2, 2), np.float32) for name in names}
    save_file(checkpoint / "model.safetensors", {**tensors, **extra}, {"format": "pt"})
    ckconv.convert(checkpoint, tmp_path / "out.gguf")
    wanted = recorded("grouped_value_heads")["converter"]
    assert read_gguf(tmp_path / "out.gguf")["keys"] == wanted["keys"]
    assert read_gguf(tmp_path / "out.gguf")["tensors"].keys() == wanted["tensors"].keys()


def with_further_tokens(checkpoint: Path, tmp_path: Path) -> Path:
    """As llama.cpp's converter writes layers that predict further tokens: counted as layers, the last of attention."""
    ckconv.convert(checkpoint, tmp_path / "plain.gguf")
    return gguf_copy(
        tmp_path / "plain.gguf",
        tmp_path / "mtp.gguf",
        keys={
            "qwen35.block_count": 5,
            "qwen35.attention.recurrent_layers": [True, True, True, False, False],
            "qwen35.nextn_predict_layers": 1,
        },
        tensors={
            "blk.4.attn_norm.weight": np.ones(24, np.float32),
            "blk.4.nextn.eh_proj.weight": np.ones((24, 48), np.float32),
        },
    )


def test_layers_that_predict_further_tokens_are_left_out_of_a_gguf(checkpoint: Path, tmp_path: Path) -> None:
    ckconv.convert(with_further_tokens(checkpoint, tmp_path), tmp_path / "out", to="safetensors")
    wanted, made = tensors_of(checkpoint), tensors_of(tmp_path / "out")
    assert made.keys() == wanted.keys()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["layer_types"] == ["linear_attention"] * 3 + [
        "full_attention"
    ]


def verified(text: str) -> int:
    """How many tensors were verified, which are all."""
    one, other = map(int, re.findall(r"verified (\d+)/(\d+)", text)[0])
    assert one == other
    return one


def test_what_a_family_leaves_out_of_others_are_tensors_of_the_file(checkpoint: Path, tmp_path: Path, ckconv) -> None:
    source, plain = with_further_tokens(checkpoint, tmp_path), tmp_path / "plain.gguf"
    count = len(gguf.GGUFReader(source).tensors)

    found = ckconv("diff", "--weights", "--json", plain, source)
    assert (found.code, found.json["only_in_b"]) == (5, ["blk.4.attn_norm.weight", "blk.4.nextn.eh_proj.weight"])
    assert ckconv("verify", "--weights", plain, source).code == 5
    copied = verified(ckconv("convert", source, tmp_path / "copy.gguf").out)
    assert copied >= count  # one that holds several is each of them
    assert verified(ckconv("verify", tmp_path / "copy.gguf", source).out) == copied
    shown = ckconv("inspect", "--json", source).json
    assert shown["parameters"] == sum(tensor.n_elements for tensor in gguf.GGUFReader(source).tensors)
    assert shown["overview"]["bits"] == 32


def test_a_copy_of_a_checkpoint_has_its_layers_that_predict_further_tokens(
    checkpoint: Path, tmp_path: Path, ckconv
) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    extra = {f"mtp.{name}.weight": np.full((2, 2), n, np.float32) for n, name in enumerate(["fc", "layers.0.norm"])}
    extra |= {f"mtp.layers.{n}.mlp.up_proj.weight": np.ones((2, 2), np.float32) for n in (0, 1)}
    extra["mtp.layers.0.self_attn.q_proj.weight"] = extra.pop("mtp.layers.0.norm.weight")
    save_file(checkpoint / "model.safetensors", {**tensors, **extra}, {"format": "pt"})
    count = len(tensors) + len(extra)

    done = ckconv("convert", checkpoint, f"{tmp_path}/out/", "--to", "safetensors")
    assert (done.code, verified(done.out) >= count) == (0, True)
    assert load_file(tmp_path / "out/model.safetensors").keys() == {*tensors, *extra}
    assert ckconv("diff", checkpoint, tmp_path / "out").code == 0
    assert ckconv("verify", tmp_path / "out", checkpoint).code == 0


@pytest.mark.parametrize("family", ["gemma4_text", "bert", "roberta", "t5", "llama", "deepseek_v3", "qwen3_next"])
def test_every_tensor_of_a_gguf_is_verified(family: str, tmp_path: Path, ckconv) -> None:
    for number, case in enumerate(family_cases.cases(family)):
        source = family_cases.checkpoint(case.recorded, tmp_path / f"{number}")
        done = ckconv("convert", source, tmp_path / f"{number}.gguf")
        if done.code == 0:
            count = verified(done.out)
            assert count >= len(gguf.GGUFReader(tmp_path / f"{number}.gguf").tensors), case.name
            assert verified(ckconv("verify", tmp_path / f"{number}.gguf", source).out) == count


def test_norms_of_bfloat16_are_float32_in_mlx_whose_class_wants_1_more(tmp_path: Path) -> None:
    source = family_cases.checkpoint(recorded("tied"), tmp_path / "source")
    ckconv.convert(source, tmp_path / "mlx", to="mlx")
    wanted, made = tensors_of(source), tensors_of(tmp_path / "mlx")
    norm, kernel = "model.layers.0.input_layernorm.weight", "model.layers.0.linear_attn.conv1d.weight"
    dtype, _, data = made[f"language_model.{norm}"]
    assert dtype == "F32"
    assert np.array_equal(numbers(dtype, data), numbers("BF16", wanted[norm][2]) + np.float32(1))
    dtype, shape, data = made[f"language_model.{kernel}"]
    assert (dtype, shape) == ("BF16", (wanted[kernel][1][0], 4, 1))
    assert data == wanted[kernel][2]


def test_decays_come_back_as_the_numbers_they_were() -> None:
    words = np.arange(0x3A00, 0x4060, dtype=np.uint32)  # bfloat16 from 5e-4 to 3.5
    logarithms = np.concatenate([(words << 16).view(np.float32), ((words | 0x8000) << 16).view(np.float32)])
    for shift, sign in (NEG_EXP, -1), (EXP, 1):
        stored = shifted(logarithms, shift)
        assert np.array_equal(stored, (sign * np.exp(logarithms.astype(np.float64))).astype(np.float32))
        assert np.array_equal(shifted(stored, -shift), logarithms)
