"""Numbers that are hyper-parameters in one format and tensors in another: LongRoPE's factors, xIELU's four."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from family_cases import cases, checkpoint, recording, tensors
from gguf_copies import finish, gguf_copy

import ckconv
from ckconv.errors import InputError, UnsupportedError

LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


def made(family: str, case: str, folder: Path) -> Path:
    """The GGUF of a recorded case."""
    found = next(each for each in cases(family) if each.name == case)
    ckconv.convert(checkpoint(found.recorded, folder / "hf"), folder / "m.gguf")
    return folder / "m.gguf"


def test_factors_are_tensors_and_come_back_as_the_numbers_that_they_were(tmp_path: Path) -> None:
    source = made("phi3", "longrope_with_an_attention_factor", tmp_path)
    ckconv.convert(source, tmp_path / "back", to="safetensors")

    scaling = json.loads((tmp_path / "back" / "config.json").read_text())["rope_scaling"]
    assert scaling == {
        "rope_type": "longrope",
        "type": "longrope",
        "long_factor": [1.0, 1.4, 1.9, 3.0],
        "short_factor": [1.0, 1.4, 1.9, 3.0],
        "attention_factor": 1.3,
        "original_max_position_embeddings": 256,
    }


def test_an_attention_factor_that_follows_from_the_context_is_not_said(tmp_path: Path) -> None:
    source = made("phi3", "longrope_in_short_sequences", tmp_path)
    ckconv.convert(source, tmp_path / "back", to="safetensors")

    key = gguf.GGUFReader(source).fields["phi3.rope.scaling.attn_factor"].contents()
    assert key == pytest.approx((1 + np.log(4) / np.log(256)) ** 0.5)
    assert "attention_factor" not in json.loads((tmp_path / "back" / "config.json").read_text())["rope_scaling"]


@pytest.mark.parametrize("without", [LONG, SHORT])
def test_one_set_of_factors_alone_is_refused(tmp_path: Path, without: str) -> None:
    source = gguf_copy(
        made("phi3", "longrope_in_short_sequences", tmp_path), tmp_path / "changed.gguf", without=[without]
    )

    with pytest.raises(UnsupportedError, match="of a scaling that is not longrope"):
        ckconv.convert(source, tmp_path / "back", to="safetensors")


def test_a_phimoe_with_factors_is_refused_for_what_its_gguf_does_not_say(tmp_path: Path) -> None:
    """llama.cpp's converter writes the factors, and not what the model multiplies by beside them."""
    case = recording("phimoe")["longrope"]
    config, stored = case["config"], dict(tensors(case))
    for layer in range(config["num_hidden_layers"]):
        for part in ("w1", "w2", "w3"):
            place = f"model.layers.{layer}.block_sparse_moe.experts."
            names = [f"{place}{number}.{part}.weight" for number in range(config["num_local_experts"])]
            stored[f"{place}{part}.weight"] = np.stack([stored.pop(name) for name in names])
    scaling = config["rope_parameters"]
    stored |= {LONG: np.float32(scaling["long_factor"]), SHORT: np.float32(scaling["short_factor"])}
    writer, known = (
        gguf.GGUFWriter(tmp_path / "m.gguf", "phimoe"),
        gguf.get_tensor_name_map(gguf.MODEL_ARCH.PHIMOE, config["num_hidden_layers"]),
    )
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    writer.add_rope_scaling_attn_factors((1 + np.log(2) / np.log(64)) ** 0.5)
    for name, array in stored.items():
        writer.add_tensor(known.get_name(name, (".weight", ".bias")) or name, np.ascontiguousarray(array))
    finish(writer, tmp_path / "m.gguf")

    with pytest.raises(UnsupportedError, match="multiplies by short_mscale and long_mscale") as caught:
        ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors")
    assert not caught.value.details


def test_numbers_of_layers_are_metadata_without_the_architecture_before_them(tmp_path: Path) -> None:
    read = gguf.GGUFReader(made("apertus", "llama3", tmp_path))

    arrays = {key: field.contents() for key, field in read.fields.items() if "xielu" in key}
    assert {key: len(value) for key, value in arrays.items()} == {
        "xielu.alpha_n": 3, "xielu.alpha_p": 3, "xielu.beta": 3, "xielu.eps": 3,
    }  # fmt: skip


def test_an_array_that_has_not_a_number_a_layer_is_an_error_of_the_file(tmp_path: Path) -> None:
    source = gguf_copy(made("apertus", "llama3", tmp_path), tmp_path / "changed.gguf", keys={"xielu.beta": [0.5, 0.5]})

    with pytest.raises(InputError, match=r"xielu\.beta must be a list of 3 numbers"):
        ckconv.convert(source, tmp_path / "back", to="safetensors")
