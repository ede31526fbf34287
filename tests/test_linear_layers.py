"""Families with layers of several kinds: Qwen 3.5 and its mixture, whose other layers are Gated DeltaNet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import family_cases
import gguf
import numpy as np
import pytest
from checkpoints import save_file
from family_directions import differing, numbers, read_gguf, read_safetensors
from safetensors.numpy import load_file

import ckconv
from ckconv.core.layouts import NEG_EXP
from ckconv.quant.shifts import shifted

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


def test_layers_that_predict_further_tokens_are_left_out_of_a_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    names = ["fc", "norm", "pre_fc_norm_hidden", "layers.0.self_attn.q_proj", "layers.0.mlp.up_proj"]
    extra = {f"mtp.{name}.weight": np.ones((2, 2), np.float32) for name in names}
    save_file(checkpoint / "model.safetensors", {**tensors, **extra}, {"format": "pt"})
    ckconv.convert(checkpoint, tmp_path / "out.gguf")
    wanted = recorded("grouped_value_heads")["converter"]
    assert read_gguf(tmp_path / "out.gguf")["keys"] == wanted["keys"]
    assert read_gguf(tmp_path / "out.gguf")["tensors"].keys() == wanted["tensors"].keys()


def test_layers_that_predict_further_tokens_are_left_out_of_a_gguf(checkpoint: Path, tmp_path: Path) -> None:
    """As llama.cpp's converter writes them: counted as layers, the last of attention."""
    ckconv.convert(checkpoint, tmp_path / "plain.gguf")
    reader = gguf.GGUFReader(tmp_path / "plain.gguf")
    writer = gguf.GGUFWriter(tmp_path / "mtp.gguf", "qwen35")
    changed = {"qwen35.block_count": 5, "qwen35.attention.recurrent_layers": [True, True, True, False, False]}
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            kind, *of = field.types
            writer.add_key_value(key, changed.get(key, field.contents()), kind, *(of[:1] or [None]))
    writer.add_uint32("qwen35.nextn_predict_layers", 1)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.add_tensor("blk.4.attn_norm.weight", np.ones(24, np.float32))
    writer.add_tensor("blk.4.nextn.eh_proj.weight", np.ones((24, 48), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ckconv.convert(tmp_path / "mtp.gguf", tmp_path / "out", to="safetensors")
    wanted, made = read_safetensors(checkpoint), read_safetensors(tmp_path / "out")
    assert made.keys() == wanted.keys()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["layer_types"] == ["linear_attention"] * 3 + [
        "full_attention"
    ]


def test_norms_of_bfloat16_are_float32_in_mlx_whose_class_wants_1_more(tmp_path: Path) -> None:
    source = family_cases.checkpoint(recorded("tied"), tmp_path / "source")
    ckconv.convert(source, tmp_path / "mlx", to="mlx")
    wanted, made = read_safetensors(source), read_safetensors(tmp_path / "mlx")
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
    stored = shifted(logarithms, NEG_EXP)
    assert np.array_equal(stored, (-np.exp(logarithms.astype(np.float64))).astype(np.float32))
    assert np.array_equal(shifted(stored, -NEG_EXP), logarithms)
