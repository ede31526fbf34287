"""Packed modules that differ from each other, or are fused or transposed where they are dense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import pytest
from checkpoints import Decoder, Tensors, bf16, save
from conftest import FIXTURES
from packed_checkpoints import bf16_values, compressed_settings, drawn, gptq, model, pack_quantized
from safetensors import safe_open

DECODER = Decoder(layers=2, hidden=64, ffn=128)
GPTQ = {
    "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True, "checkpoint_format": "gptq_v2",
}  # fmt: skip

#: As GPTQModel writes them: the first expression that a name begins with counts.
DYNAMIC = {
    r"-:.*self_attn\.k_proj": {},
    r"+:.*\.1\..*down_proj": {"bits": 8, "group_size": 64},
    r".*down_proj": {"group_size": -1},
    r"+:.*self_attn\.": {"bits": 2},
}


def pack_dynamic(module: str, shape: tuple[int, int], seed: int) -> Any:
    bits, group = 4, 32
    if "k_proj" in module:
        values = bf16_values(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
        return {f"{module}.weight": bf16(values)}, values
    if "down_proj" in module:
        bits, group = (8, 64) if ".1." in module else (4, shape[1])
    elif "self_attn" in module:
        bits = 2
    matrix = drawn(shape, bits, group, seed=seed, symmetric=True)
    return gptq(matrix, module, version=2), matrix.values


def dense_of(folder: Path) -> dict[str, np.ndarray]:
    with safe_open(folder / "model.safetensors", "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys() if "proj" in name}  # noqa: SIM118


def decoded(ckconv: Callable[..., Any], source: Path, out: Path) -> dict[str, np.ndarray]:
    flags = ("--to", "safetensors", "--dequantize", "--dtype", "f32")
    result = ckconv("convert", source, f"{out}/", *flags)
    assert result.code == 0, result.err
    return dense_of(out)


def test_gptqmodels_dynamic_says_what_single_modules_are(tmp_path: Path, ckconv) -> None:
    source = tmp_path / "packed"
    expected = model(source, DECODER, pack_dynamic, {**GPTQ, "dynamic": DYNAMIC})
    words = ckconv("inspect", source).out
    for kind in (
        "GPTQ, 2-bit, groups of 32: 6 matrices", "GPTQ, 4-bit, groups of 32: 4 matrices",
        "GPTQ, 4-bit, scales of whole rows: 1 matrix", "GPTQ, 8-bit, groups of 64: 1 matrix",
    ):  # fmt: skip
        assert kind in words

    found = decoded(ckconv, source, tmp_path / "dense")
    assert len(found) == 14
    assert all(np.array_equal(values, expected[name].astype(np.float32)) for name, values in found.items())
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    names = ("blk.0.ffn_down", "blk.1.ffn_down", "blk.0.attn_k", "blk.0.attn_q", "blk.0.ffn_up")
    assert [types[f"{name}.weight"] for name in names] == ["Q4_0", "Q8_0", "BF16", "Q4_0", "Q4_0"]


@pytest.mark.parametrize(
    ("dynamic", "sentence"),
    [
        ({r"-:.*down_proj": {}}, "quantization_config.dynamic says '-:.*down_proj': not quantized"),
        ({r".*up_proj": {"bits": 8}}, "quantization_config says bits 8, and the arrays hold 4"),
        ({r"model\.layers\.1": {"group_size": 64}}, "quantization_config makes 1 groups of 64, and scales has 2"),
    ],
)
def test_overrides_that_contradict_the_arrays_are_said(
    tmp_path: Path, ckconv, dynamic: dict[str, Any], sentence: str
) -> None:
    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        matrix = drawn(shape, 4, 32, seed=seed, symmetric=True)
        return gptq(matrix, module, version=2), matrix.values

    model(tmp_path / "packed", DECODER, pack, {**GPTQ, "dynamic": dynamic})
    result = ckconv("inspect", tmp_path / "packed")
    assert (result.code, sentence in result.err) == (3, True), result.err


@pytest.mark.parametrize("named", ["re:.*down_proj$", "model.layers.1.mlp.down_proj"])
@pytest.mark.parametrize("first", ["classes", "names"])
def test_each_group_of_compressed_tensors_is_about_its_targets(tmp_path: Path, ckconv, named: str, first: str) -> None:
    """A name counts before a class, whichever group comes first."""

    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        own = module.endswith("down_proj") and (named.startswith("re:") or ".1." in module)
        matrix = drawn(shape, 8 if own else 4, 64 if own else 32, seed=seed, symmetric=True)
        return pack_quantized(matrix, module, zeros=False, index=False), matrix.values

    def weights(bits: int, group: int) -> dict[str, Any]:
        return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": group}

    settings = compressed_settings("pack-quantized", weights(4, 32))
    groups = {**settings["config_groups"], "group_1": {"targets": [named], "weights": weights(8, 64)}}
    settings["config_groups"] = groups if first == "classes" else dict(reversed(groups.items()))
    expected = model(tmp_path / "packed", DECODER, pack, settings)
    assert (
        f"8-bit, groups of 64: {'2 matrices' if 're:' in named else '1 matrix'}"
        in ckconv("inspect", tmp_path / "packed").out
    )
    found = decoded(ckconv, tmp_path / "packed", tmp_path / "dense")
    assert all(np.array_equal(values, expected[name].astype(np.float32)) for name, values in found.items())


def repacked(name: str, root: Path, transposed: bool) -> dict[str, np.ndarray]:
    """A checkpoint of the fixtures whose linear layers are GPTQ's; what they are as ``[out, in]``."""
    source = FIXTURES / "hf" / name
    tensors: Tensors = {}
    values: dict[str, np.ndarray] = {}
    config = json.loads((source / "config.json").read_text())
    with safe_open(source / "model.safetensors", "numpy") as file:
        for seed, key in enumerate(file.keys()):
            part = file.get_slice(key)
            module, shape = key.removesuffix(".weight"), tuple(part.get_shape())
            if module.endswith(("_proj", "c_attn", "c_fc")) and key.endswith(".weight"):
                shape = shape[::-1] if transposed else shape
                matrix = drawn(shape, 4, 32, seed=seed, symmetric=True)
                tensors |= gptq(matrix, module, version=2)
                values[module] = matrix.values
            else:
                tensors[key] = bf16(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
    save(root, {**config, "quantization_config": GPTQ}, tensors, metadata={"format": "pt"})
    return values


def test_fused_matrices_go_as_they_are_and_apart(tmp_path: Path, ckconv) -> None:
    values = repacked("phi3-bf16", tmp_path / "packed", transposed=False)
    assert ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf").code == 0
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    for theirs, ours in (("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")):
        made = tensors[f"blk.0.{theirs}.weight"]
        assert made.tensor_type.name == "Q4_0"
        found = gguf.quants.dequantize(made.data, made.tensor_type)
        assert np.array_equal(found, values[f"model.layers.0.{ours}"])
    dense = decoded(ckconv, tmp_path / "packed", tmp_path / "dense")
    assert all(np.array_equal(dense[f"{name}.weight"], value.astype(np.float32)) for name, value in values.items())


@pytest.mark.parametrize("to", ["gguf", "mlx", "safetensors"])
def test_conv1d_is_packed_by_its_outputs_and_nothing_is_made_of_it(tmp_path: Path, ckconv, to: str) -> None:
    """GPTQ packs GPT-2's layers as linear ones (``QuantLinear.pack``), whose dense weight is ``[in, out]``."""
    repacked("gpt2-hub-f32", tmp_path / "packed", transposed=True)
    for flags in ((), ("--dequantize",)) if to != "safetensors" else (("--dequantize",),):
        result = ckconv("convert", tmp_path / "packed", f"{tmp_path}/out/", "--to", to, *flags)
        assert (result.code, "of modules that are stored [in, out]" in result.err) == (4, True), result.err
    assert not (tmp_path / "out").exists()
