"""Quantized files of DeepSeek: K's part of ``kv_b_proj`` is stored turned, so its blocks hold values of many rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Raw, dequantized, quantized as quantized_groups, save_file
from family_cases import checkpoint, recording
from family_directions import read_gguf
from gguf_copies import gguf_copy
from safetensors_builder import numbers, tensors_of

import ckconv
from ckconv.comparison.compare import hash_index
from ckconv.errors import UnsupportedError, VerifyError

HEADS, NOPE, VALUE, RANK = 4, 32, 64, 32
K_B, V_B = "blk.1.attn_k_b.weight", "blk.1.attn_v_b.weight"
KV_B = "model.layers.1.self_attn.kv_b_proj.weight"


def sizes(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded case with heads whose parts are whole blocks."""
    config = {**recorded["config"], "qk_nope_head_dim": NOPE, "v_head_dim": VALUE, "kv_lora_rank": RANK}
    rope, hidden, q_rank = config["qk_rope_head_dim"], config["hidden_size"], config["q_lora_rank"]
    shapes = {
        "kv_b_proj.weight": [HEADS * (NOPE + VALUE), RANK],
        "kv_a_proj_with_mqa.weight": [RANK + rope, hidden],
        "kv_a_layernorm.weight": [RANK],
        "q_b_proj.weight": [HEADS * (NOPE + rope), q_rank],
        "o_proj.weight": [hidden, HEADS * VALUE],
    }
    tensors = {
        name: [dtype, next((shape for end, shape in shapes.items() if name.endswith(end)), own), *mean]
        for name, (dtype, own, *mean) in recorded["tensors"].items()
    }
    return {"config": config, "tensors": tensors}


def quantized(path: Path, into: Path, kinds: Mapping[str, gguf.GGMLQuantizationType]) -> Path:
    """A copy whose tensors with these endings are quantized by the gguf package."""
    made = {
        tensor.name: (gguf.quants.quantize(tensor.data, kind), kind)
        for tensor in gguf.GGUFReader(path).tensors
        for end, kind in kinds.items()
        if tensor.name.endswith(end)
    }
    return gguf_copy(path, into, tensors=made)


@pytest.fixture(scope="module", params=["deepseek_v2", "deepseek_v3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp(request.param)
    source = checkpoint(sizes(recording(request.param)["plain"]), place / "hf")
    ckconv.convert(source, place / "f32.gguf")
    kinds = {"attn_k_b.weight": gguf.GGMLQuantizationType.Q8_0, "attn_v_b.weight": gguf.GGMLQuantizationType.Q5_0}
    return quantized(place / "f32.gguf", place / "quantized.gguf", kinds)


def values(path: Path, name: str) -> np.ndarray:
    """What the gguf package decodes."""
    tensor = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def kv_b(path: Path) -> np.ndarray:
    """The matrix that Hugging Face has: of each head K's rows, then V's."""
    k, v = values(path, K_B).transpose(0, 2, 1), values(path, V_B)
    return np.concatenate([k, v], axis=1).reshape(-1, RANK)


def test_dequantize_decodes_them_for_a_checkpoint(model: Path, tmp_path: Path) -> None:
    made = tmp_path / "hf"
    ckconv.convert(model, made, to="safetensors", options=ckconv.Options(dequantize=True))

    dtype, shape, data = tensors_of(made)[KV_B]
    assert (dtype, shape) == ("F32", (HEADS * (NOPE + VALUE), RANK))
    assert np.array_equal(numbers(dtype, data).reshape(shape), kv_b(model))
    assert ckconv.verify(made, model).compared


def test_a_glob_is_enough(model: Path, tmp_path: Path) -> None:
    options = ckconv.Options(decode=("layers.*.attention.[kv]_b.weight",))
    ckconv.convert(model, tmp_path / "hf", to="safetensors", options=options)

    assert np.array_equal(numbers(*tensors_of(tmp_path / "hf")[KV_B][::2]), kv_b(model).reshape(-1))


def test_for_mlx_they_are_decoded_in_its_order(model: Path, tmp_path: Path) -> None:
    ckconv.convert(model, tmp_path / "mlx", to="mlx", options=ckconv.Options(dequantize=True))

    found = tensors_of(tmp_path / "mlx")
    own = found.get("model.layers.1.self_attn.embed_q.weight")
    if own is None:  # V2's class keeps the one matrix
        assert np.array_equal(numbers(*found[KV_B][::2]), kv_b(model).reshape(-1))
    else:
        assert np.array_equal(numbers(*own[::2]).reshape(own[1]), values(model, K_B))
    json.loads((tmp_path / "mlx" / "config.json").read_text())


def test_without_the_flag_the_hint_names_it(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="cannot hold this model") as caught:
        ckconv.convert(model, tmp_path / "hf", to="safetensors")

    assert "--dequantize decodes them to FP32" in str(caught.value.hint)


def test_a_gguf_of_it_keeps_the_blocks(model: Path, tmp_path: Path) -> None:
    ckconv.convert(model, tmp_path / "copy.gguf")

    assert read_gguf(tmp_path / "copy.gguf")["tensors"] == read_gguf(model)["tensors"]
    assert ckconv.diff(model, tmp_path / "copy.gguf").same


def test_it_is_hashed_and_compared_by_its_values(model: Path, tmp_path: Path) -> None:
    ckconv.convert(model, tmp_path / "hf", to="safetensors", options=ckconv.Options(dequantize=True))
    ckconv.convert(model, tmp_path / "decoded.gguf", options=ckconv.Options(dequantize=True))

    name = "layers.1.attention.k_b.weight"
    hashes = [
        hash_index(ckconv.open_model(path).index).tensors[name]
        for path in (model, tmp_path / "decoded.gguf", tmp_path / "hf")
    ]
    assert len(set(hashes)) == 1
    assert ckconv.diff(model, tmp_path / "hf", weights=True).same
    assert np.array_equal(ckconv.open_model(model).tensors[name].values(), values(model, K_B).transpose(0, 2, 1))


def test_a_value_that_is_another_is_found(model: Path, tmp_path: Path) -> None:
    ckconv.convert(model, tmp_path / "hf", to="safetensors", options=ckconv.Options(dequantize=True))
    found = next(tensor for tensor in gguf.GGUFReader(model).tensors if tensor.name == K_B)
    other = tmp_path / "other.gguf"
    data = bytearray(model.read_bytes())
    data[found.data_offset + 5] ^= 1  # a number of the first block
    other.write_bytes(data)

    difference = ckconv.diff(other, tmp_path / "hf", weights=True)
    assert [(one.name, one.values) for one in difference.different] == [("layers.1.attention.k_b.weight", 1)]
    with pytest.raises(VerifyError, match=r"kv_b_proj.*differs from blk.1.attn_k_b.weight: row 3 is"):
        ckconv.verify(tmp_path / "hf", other)


@pytest.mark.parametrize("model", ["deepseek_v3"], indirect=True)
def test_groups_of_mlx_in_that_order_are_decoded_too(model: Path, tmp_path: Path) -> None:
    made = tmp_path / "mlx"
    ckconv.convert(model, made, to="mlx", options=ckconv.Options(dequantize=True))
    tensors = {name: Raw(*entry) for name, entry in tensors_of(made).items()}
    module = "model.layers.1.self_attn.embed_q"
    shape = tensors[f"{module}.weight"].shape
    codes, scales, biases = quantized_groups(values(model, K_B).reshape(-1, shape[-1]), 4, 32)
    for kind, array in (("weight", codes), ("scales", scales), ("biases", biases)):
        tensors[f"{module}.{kind}"] = array.reshape(*shape[:-1], -1)
    (made / "model.safetensors.index.json").unlink(missing_ok=True)
    save_file(made / "model.safetensors", tensors, {"format": "mlx"})
    config = json.loads((made / "config.json").read_text())
    config["quantization"] = {"group_size": 32, "bits": 4, "mode": "affine"}
    (made / "config.json").write_text(json.dumps(config))

    with pytest.raises(UnsupportedError):
        ckconv.convert(made, tmp_path / "refused", to="safetensors")
    ckconv.convert(made, tmp_path / "hf", to="safetensors", options=ckconv.Options(dequantize=True))

    decoded = dequantized(codes, scales, biases, 4).reshape(shape).transpose(0, 2, 1)
    found = numbers(*tensors_of(tmp_path / "hf")[KV_B][::2]).reshape(HEADS, NOPE + VALUE, RANK)
    assert np.array_equal(found[:, :NOPE], decoded)
    assert ckconv.diff(made, tmp_path / "hf", weights=True).same


@pytest.mark.parametrize("word", ["affine:4:32", "nvfp4", "mxfp4"])
def test_quantized_for_mlx_they_stay_floats(word: str, tmp_path: Path) -> None:
    """Codes are made of rows in canonical order; mlx-lm's class takes floats there, too."""
    utils, mx = pytest.importorskip("mlx_lm.utils"), pytest.importorskip("mlx.core")
    hf = checkpoint(sizes(recording("deepseek_v3")["plain"]), tmp_path / "hf")
    module = "model.layers.1.self_attn.{}"

    ckconv.convert(hf, tmp_path / "mlx", to="mlx", options=ckconv.Options(quantize=word))

    found = tensors_of(tmp_path / "mlx")
    assert module.format("unembed_out.scales") in found
    assert found[module.format("embed_q.weight")][:2] == ("F32", (HEADS, RANK, NOPE))
    assert ckconv.verify(tmp_path / "mlx", hf, options=ckconv.Options(quantize=word)).compared
    model, _ = utils.load_model(tmp_path / "mlx")
    assert model(mx.array([[1, 2, 3]])).shape[:2] == (1, 3)
    options = ckconv.Options(quantize=f"{word},layers.*.attention.k_b.weight=affine:8:32")
    with pytest.raises(UnsupportedError, match="has columns of it for rows") as caught:
        ckconv.convert(hf, tmp_path / "asked", to="mlx", options=options)
    floats = f"{options.quantize},layers.*.attention.k_b.weight=f32"
    assert caught.value.hint == f"--quantize '{floats}' keeps floats there"
    ckconv.convert(hf, tmp_path / "asked", to="mlx", options=ckconv.Options(quantize=floats))


def grouped_heads(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A Qwen 3.5 with value heads of half a block of Q8_0, two for each key head; GGUF has them in another order."""
    keys, heads, size, hidden = 2 * 2 * 16, 4, 16, recorded["config"]["hidden_size"]
    config = {**recorded["config"], "linear_num_key_heads": 2, "linear_num_value_heads": heads}
    shapes = {
        "A_log": [heads],
        "dt_bias": [heads],
        "conv1d.weight": [keys + heads * size, 1, 4],
        "in_proj_a.weight": [heads, hidden],
        "in_proj_b.weight": [heads, hidden],
        "in_proj_qkv.weight": [keys + heads * size, hidden],
        "in_proj_z.weight": [heads * size, hidden],
        "linear_attn.norm.weight": [size],
        "out_proj.weight": [hidden, heads * size],
    }
    tensors = {
        name: [dtype, next((shape for end, shape in shapes.items() if name.endswith(end)), own), *mean]
        for name, (dtype, own, *mean) in recorded["tensors"].items()
    }
    return {"config": {**config, "linear_key_head_dim": size, "linear_value_head_dim": size}, "tensors": tensors}


@pytest.mark.parametrize(
    ("family", "case", "resized", "name"),
    [
        ("qwen3_5", "grouped_value_heads", grouped_heads, "blk.0.ssm_out.weight"),
        ("deepseek_v3", "plain", sizes, K_B),
    ],
)
@pytest.mark.parametrize("of", ["hf", "gguf"])
def test_floats_are_quantized_in_the_order_of_the_file(
    family: str, case: str, resized: Any, name: str, of: str, tmp_path: Path
) -> None:
    """As llama-quantize does, whose input is the GGUF of floats."""
    hf = checkpoint(resized(recording(family)[case]), tmp_path / "hf")
    ckconv.convert(hf, tmp_path / "floats.gguf")
    source = hf if of == "hf" else tmp_path / "floats.gguf"
    report = ckconv.convert(source, tmp_path / "m.gguf", options=ckconv.Options(quantize="q8_0"))

    floats = next(np.array(t.data) for t in gguf.GGUFReader(tmp_path / "floats.gguf").tensors if t.name == name)
    found = next(t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors if t.name == name)
    assert found.tensor_type.name == "Q8_0"
    assert np.array_equal(found.data, gguf.quants.quantize(floats, gguf.GGMLQuantizationType.Q8_0))
    assert report.verified
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors", options=ckconv.Options(dequantize=True))
