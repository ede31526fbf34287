"""MXFP4, mxfp8, NVFP4 and ``metal`` as other tools store them: read, decoded, and given to MLX and GGUF as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import consumers
import family_cases
import gguf
import numpy as np
import pytest
from checkpoints import Decoder, Raw, Tensors
from gguf_copies import bytes_of, gguf_copy
from packed_checkpoints import fp8, fp8_values, model, nibbles, rewritten
from safetensors import safe_open

from ckconv.families.catalog import FAMILIES
from ckconv.formats.gguf.entries import _SCALED

DECODER = Decoder(layers=1, hidden=64, ffn=128)

#: OCP Microscaling Formats v1.0, 5.3.3; bit 3 is the sign.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])

Made = tuple[Tensors, np.ndarray]
Pack = Callable[[str, tuple[int, int], int], Made]


def groups(scales: np.ndarray, size: int) -> np.ndarray:
    spread: np.ndarray = np.repeat(scales, size, 1)
    return spread


def mxfp4(module: str, shape: tuple[int, int], seed: int) -> Made:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, shape).astype(np.uint8)
    scales = rng.integers(100, 130, (shape[0], shape[1] // 32)).astype(np.uint8)
    values = E2M1[codes] * groups(2.0 ** (scales.astype(float) - 127), 32)
    return {f"{module}.weight_packed": nibbles(codes), f"{module}.weight_scale": scales}, values


def mxfp8(module: str, shape: tuple[int, int], seed: int) -> Made:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 0x7F, shape).astype(np.uint8) | rng.integers(0, 2, shape).astype(np.uint8) << 7
    scales = rng.integers(100, 130, (shape[0], shape[1] // 32)).astype(np.uint8)
    values = fp8_values()[codes] * groups(2.0 ** (scales.astype(float) - 127), 32)
    return {f"{module}.weight": Raw("F8_E4M3", shape, codes.tobytes()), f"{module}.weight_scale": scales}, values


def fp8_blocks(module: str, shape: tuple[int, int], seed: int) -> Made:
    codes, scales, values = fp8(shape, (64, 64), seed=seed, powers=True)
    return {f"{module}.weight": Raw("F8_E4M3", shape, codes.tobytes()), f"{module}.weight_scale_inv": scales}, values


def deepseek(module: str, shape: tuple[int, int], seed: int, *, bits: int) -> Made:
    """Matrices of DeepSeek V4 as they are released; those of experts have four bits."""
    if bits == 4:
        (codes, scales), values = (found := mxfp4(module, shape, seed))[0].values(), found[1]
        codes = np.asarray(codes).view(np.int8)
    else:
        weight, numbers, values = fp8(shape, (64, 64), seed=seed, powers=True)
        codes, scales = Raw("F8_E4M3", shape, weight.tobytes()), (np.log2(numbers) + 127).astype(np.uint8)
    stored = Raw("F8_E8M0", np.shape(scales), np.asarray(scales).tobytes())
    return {f"{module}.weight": codes, f"{module}.scale": stored}, values


def nvfp4(module: str, shape: tuple[int, int], seed: int, *, divided: bool, factor: float | None = None) -> Made:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, shape).astype(np.uint8)
    scales = rng.integers(8, 0x7F, (shape[0], shape[1] // 16)).astype(np.uint8)
    number = np.float32(rng.uniform(100, 3000) if divided else rng.uniform(1e-4, 1e-2))
    number = number if factor is None else np.float32(factor)
    scale = fp8_values()[scales].astype(np.float32)
    scale = scale / number if divided else scale * number
    values = E2M1.astype(np.float32)[codes] * groups(scale, 16)
    stored = Raw("F8_E4M3", scales.shape, scales.tobytes())
    if divided:
        return {
            f"{module}.weight_packed": nibbles(codes),
            f"{module}.weight_scale": stored,
            f"{module}.weight_global_scale": np.array([number], np.float32),
            f"{module}.input_global_scale": np.array([7], np.float32),
        }, values
    return {
        f"{module}.weight": nibbles(codes),
        f"{module}.weight_scale": stored,
        f"{module}.weight_scale_2": np.array(number, np.float32),
        f"{module}.input_scale": np.array(0.5, np.float32),
    }, values


def metal(module: str, shape: tuple[int, int], seed: int) -> Made:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, shape).astype(np.uint8)
    # Numbers of few digits, of which no product or sum is rounded.
    scales = (rng.integers(1, 64, (shape[0], shape[1] // 64)) / 1024).astype(np.float32)
    biases = (rng.integers(-64, 64, scales.shape) / 512).astype(np.float32)
    weight = np.ascontiguousarray(nibbles(codes)).view(np.uint32)
    values = codes * groups(scales.astype(float), 64) + groups(biases.astype(float), 64)
    return {f"{module}.weight": weight, f"{module}.scales": scales, f"{module}.qbiases": biases}, values


def compressed(form: str) -> dict[str, Any]:
    group = {"format": form, "targets": ["Linear"], "weights": {"num_bits": 8 if "8" in form else 4, "type": "float"}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
DEEPSEEK = {"quant_method": "fp8", "weight_block_size": [64, 64], "scale_fmt": "ue8m0"}
MODELS: dict[str, tuple[Pack, dict[str, Any], str]] = {
    "DeepSeek V4": (partial(deepseek, bits=8), DEEPSEEK, "8-bit, blocks of 64 x 64"),
    "DeepSeek V4, experts": (partial(deepseek, bits=4), DEEPSEEK, "mxfp4 4-bit group 32"),
    "compressed-tensors mxfp4": (mxfp4, compressed("mxfp4-pack-quantized"), "mxfp4 4-bit group 32"),
    "compressed-tensors mxfp8": (mxfp8, compressed("mxfp8-quantized"), "mxfp8 8-bit group 32"),
    "compressed-tensors nvfp4": (
        partial(nvfp4, divided=True),
        compressed("nvfp4-pack-quantized"),
        "NVFP4, groups of 16",
    ),
    "ModelOpt": (partial(nvfp4, divided=False), MODELOPT, "NVFP4, groups of 16"),
    "metal": (metal, {"quant_method": "metal", "bits": 4, "group_size": 64}, "affine 4-bit group 64"),
}


def floats(directory: Path) -> dict[str, np.ndarray]:
    """The matrices of layers, by the package of the format."""
    with safe_open(directory / "model.safetensors", "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys() if name.endswith("_proj.weight")}  # noqa: SIM118


@pytest.mark.product("values")
@pytest.mark.parametrize("model_type", ["llama", "unheard-of"])
@pytest.mark.parametrize("name", MODELS)
def test_dequantize_writes_the_numbers_that_the_arrays_stand_for(
    tmp_path: Path, ckconv, name: str, model_type: str
) -> None:
    pack, settings, words = MODELS[name]
    expected = model(tmp_path / "packed", DECODER, pack, settings, model_type=model_type)
    found = ckconv("inspect", tmp_path / "packed")
    assert f"{words}: 7 matrices" in found.out, found.err

    result = ckconv("convert", tmp_path / "packed", f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize")
    assert result.code == 0, result.err
    dense = floats(tmp_path / "dense")
    assert len(dense) == 7
    for key, values in dense.items():
        assert values.dtype == np.float32
        assert np.array_equal(values, expected[key].astype(np.float32)), key
    assert "quantization_config" not in json.loads((tmp_path / "dense" / "config.json").read_text())


def test_nvfp4_may_stand_beside_fp8_in_blocks_whose_method_the_document_says(tmp_path: Path, ckconv) -> None:
    """Experts of NVIDIA's DeepSeek V4: its groups have no block size, which stands beside them."""

    def pack(module: str, shape: tuple[int, int], seed: int) -> Made:
        return nvfp4(module, shape, seed, divided=False) if ".mlp." in module else fp8_blocks(module, shape, seed)

    group = {"targets": ["Linear"], "weights": {"group_size": 16, "num_bits": 4, "type": "float"}}
    settings = {
        "quant_method": "fp8", "weight_block_size": [64, 64], "quant_algo": "MIXED_PRECISION",
        "moe_quant_algo": "NVFP4", "config_groups": {"group_0": group}, "ignore": ["*.self_attn.*", "head", "mtp.*"],
    }  # fmt: skip
    expected = model(tmp_path / "packed", DECODER, pack, settings)

    result = ckconv("convert", tmp_path / "packed", f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize")
    assert result.code == 0, result.err
    dense = floats(tmp_path / "dense")
    assert len(dense) == 7
    for key, values in dense.items():
        assert np.array_equal(values, expected[key].astype(np.float32)), key


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_and_its_hash_are_those_of_the_source(tmp_path: Path, ckconv, name: str) -> None:
    pack, settings, _ = MODELS[name]
    model(tmp_path / "packed", DECODER, pack, settings)
    assert ckconv("convert", tmp_path / "packed", f"{tmp_path}/copy/", "--to", "safetensors").code == 0
    assert (tmp_path / "packed" / "config.json").read_bytes() == (tmp_path / "copy" / "config.json").read_bytes()
    assert ckconv("diff", tmp_path / "packed", tmp_path / "copy").code == 0
    one, other = (
        sorted(
            line.split("\t")[-1]
            for line in ckconv("inspect", "--hash", tmp_path / it).out.splitlines()
            if "layers" in line
        )
        for it in ("packed", "copy")
    )
    assert one == other != []


def test_mxfp4_blocks_of_a_gguf_decode_to_the_same_numbers(tmp_path: Path, ckconv) -> None:
    expected = model(tmp_path / "packed", DECODER, mxfp4, compressed("mxfp4-pack-quantized"))
    assert ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf").code == 0
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    for name, key in (("ffn_down", "mlp.down_proj"), ("attn_v", "self_attn.v_proj")):
        made = tensors[f"blk.0.{name}.weight"]
        assert made.tensor_type is gguf.GGMLQuantizationType.MXFP4
        values = gguf.quants.dequantize(made.data, made.tensor_type)
        assert np.array_equal(values, expected[f"model.layers.0.{key}.weight"])


def test_mxfp8_is_bf16_of_the_same_values_in_a_gguf(tmp_path: Path, ckconv) -> None:
    expected = model(tmp_path / "packed", DECODER, mxfp8, compressed("mxfp8-quantized"))
    result = ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf")
    assert result.code == 0, result.err
    assert "7 tensors of MLX mxfp8 group 32 (8.2 bits a weight) are BF16 (16.0)" in result.out
    plan = ckconv("convert", tmp_path / "packed", tmp_path / "other.gguf", "-n").out
    assert "MLX mxfp8 group 32 -> BF16, the blocks' own values (2 of them in interleaved RoPE row order)\n" in plan
    made = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}["blk.0.ffn_down.weight"]
    assert made.tensor_type is gguf.GGMLQuantizationType.BF16
    values = gguf.quants.dequantize(made.data, made.tensor_type)
    assert np.array_equal(values, expected["model.layers.0.mlp.down_proj.weight"])


@pytest.mark.parametrize("byte", [2, 247, 255])
def test_mxfp8_scales_with_which_bf16_does_not_hold_every_code_are_counted(tmp_path: Path, ckconv, byte: int) -> None:
    def one(module: str, shape: tuple[int, int], seed: int) -> Made:
        tensors, values = mxfp8(module, shape, seed)
        if module.endswith("0.mlp.down_proj"):
            tensors[f"{module}.weight_scale"][3, 1] = byte
        return tensors, values

    model(tmp_path / "packed", DECODER, one, compressed("mxfp8-quantized"))
    result = ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf")
    assert result.code == 4
    said = "1 groups have a scale that is not a power of two in BF16's range"
    assert ("the scale of 1 group is not a finite number" if byte == 255 else said) in result.err


@pytest.mark.parametrize("flags", [(), ("--dequantize",), ("--decode", "*"), ("--dequantize", "--quantize", "q8_0")])
@pytest.mark.parametrize("target", ["m.gguf", "m.bump", "m/"])
@pytest.mark.parametrize(
    ("pack", "named", "byte", "settings"),
    [
        (mxfp8, "weight_scale", 255, compressed("mxfp8-quantized")),
        (mxfp4, "weight_scale", 255, compressed("mxfp4-pack-quantized")),
        (fp8_blocks, "weight_scale_inv", np.nan, {"quant_method": "fp8", "weight_block_size": [64, 64]}),
    ],
    ids=["mxfp8", "mxfp4", "fp8"],
)
def test_a_scale_that_is_no_number_has_the_same_reason_and_way_out_everywhere(
    tmp_path: Path, ckconv, pack: Pack, named: str, byte: float, settings: Any, target: str, flags: tuple[str, ...]
) -> None:
    """Decoding, which was offered, makes NaN of it: in a bump file it did."""

    def one(module: str, shape: tuple[int, int], seed: int) -> Made:
        tensors, values = pack(module, shape, seed)
        if module.endswith("0.mlp.down_proj"):
            scales = tensors[f"{module}.{named}"]
            assert isinstance(scales, np.ndarray)
            scales[0, 0] = byte
        return tensors, values

    model(tmp_path / "packed", DECODER, one, settings)
    to = ("--to", "mlx") if target == "m/" else ()
    if to and "--quantize" in flags:
        flags = (*flags[:-1], "affine:8:32")
    result = ckconv("convert", tmp_path / "packed", f"{tmp_path}/{target}", *to, *flags)
    assert (result.code, "the scale of 1 group is not a finite number" in result.err) == (4, True), result.err
    assert ("convert the original" in result.err, "way out" in result.err) == (True, False), result.err


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("compressed-tensors mxfp4", {"group_size": 32, "bits": 4, "mode": "mxfp4"}),
        ("compressed-tensors mxfp8", {"group_size": 32, "bits": 8, "mode": "mxfp8"}),
        ("metal", {"group_size": 64, "bits": 4, "mode": "affine"}),
    ],
)
def test_what_is_a_triple_under_other_names_is_one_in_mlx(
    tmp_path: Path, ckconv, name: str, entry: dict[str, Any]
) -> None:
    mx = pytest.importorskip("mlx.core")
    pack, settings, _ = MODELS[name]
    expected = model(tmp_path / "packed", DECODER, pack, settings)
    result = ckconv("convert", tmp_path / "packed", f"{tmp_path}/mlx/", "--to", "mlx")
    assert result.code == 0, result.err
    assert json.loads((tmp_path / "mlx" / "config.json").read_text())["quantization"] == entry
    made = mx.load(str(tmp_path / "mlx" / "model.safetensors"))
    for key in (key for key in expected if key.endswith("_proj.weight")):
        module = key.removesuffix(".weight")
        parts = [made[f"{module}.{kind}"] for kind in ("weight", "scales", "biases") if f"{module}.{kind}" in made]
        found = mx.dequantize(*parts, **entry, dtype=mx.float32)
        assert np.array_equal(np.array(found), expected[key].astype(np.float32)), key


@pytest.mark.parametrize("name", ["compressed-tensors nvfp4", "ModelOpt"])
def test_mlx_has_no_place_for_a_scale_of_scales_and_a_flag_decodes(tmp_path: Path, ckconv, name: str) -> None:
    pack, settings, _ = MODELS[name]
    model(tmp_path / "packed", DECODER, pack, settings)
    result = ckconv("convert", tmp_path / "packed", f"{tmp_path}/m/", "--to", "mlx")
    assert (result.code, "--dequantize" in result.err) == (4, True)
    assert "scales times the global scale are not E4M3 numbers" in result.err


@pytest.mark.parametrize(("divided", "factor"), [(False, 0.125), (False, 1.5), (True, 8), (True, 0.5), (False, 1)])
def test_scales_that_take_up_the_scale_of_scales_are_nvfp4_in_mlx(
    tmp_path: Path, ckconv, divided: bool, factor: float
) -> None:
    """Scales are powers of two of which the product with any of these is an E4M3 number."""
    mx = pytest.importorskip("mlx.core")

    def pack(module: str, shape: tuple[int, int], seed: int) -> Made:
        tensors, _ = nvfp4(module, shape, seed, divided=divided, factor=factor)
        scales = (np.random.default_rng(seed).integers(6, 12, (shape[0], shape[1] // 16)) * 8).astype(np.uint8)
        tensors[f"{module}.weight_scale"] = Raw("F8_E4M3", scales.shape, scales.tobytes())
        words = tensors[f"{module}.{'weight_packed' if divided else 'weight'}"]
        assert isinstance(words, np.ndarray)
        codes = np.stack([words & 15, words >> 4], -1).reshape(shape)
        numbers = fp8_values()[scales]
        return tensors, E2M1[codes] * groups(numbers / factor if divided else numbers * factor, 16)

    settings = compressed("nvfp4-pack-quantized") if divided else MODELOPT
    expected = model(tmp_path / "packed", DECODER, pack, settings)
    result = ckconv("convert", tmp_path / "packed", f"{tmp_path}/mlx/", "--to", "mlx")
    assert result.code == 0, result.err
    entry = {"group_size": 16, "bits": 4, "mode": "nvfp4"}
    assert json.loads((tmp_path / "mlx" / "config.json").read_text())["quantization"] == entry
    made = mx.load(str(tmp_path / "mlx" / "model.safetensors"))
    for key in (key for key in expected if key.endswith("_proj.weight")):
        module = key.removesuffix(".weight")
        found = mx.dequantize(made[key], made[f"{module}.scales"], **entry, dtype=mx.float32)
        assert np.array_equal(np.array(found), expected[key].astype(np.float32)), key
    assert ckconv("verify", tmp_path / "mlx", tmp_path / "packed").code == 0


def test_groups_whose_scale_does_not_take_it_up_are_counted(tmp_path: Path, ckconv) -> None:
    """240 times 2 is more than E4M3 has: one group of every matrix."""

    def pack(module: str, shape: tuple[int, int], seed: int) -> Made:
        tensors, values = nvfp4(module, shape, seed, divided=False, factor=2)
        scales = np.full((shape[0], shape[1] // 16), 0x38, np.uint8)
        scales[1, 1] = 0x77
        tensors[f"{module}.weight_scale"] = Raw("F8_E4M3", scales.shape, scales.tobytes())
        return tensors, values

    model(tmp_path / "packed", DECODER, pack, MODELOPT)
    result = ckconv("convert", tmp_path / "packed", f"{tmp_path}/mlx/", "--to", "mlx")
    assert (result.code, "7 scales times the global scale are not E4M3 numbers" in result.err) == (4, True), result.err


@pytest.mark.parametrize(("name", "divided"), [("compressed-tensors nvfp4", True), ("ModelOpt", False)])
def test_nvfp4_goes_to_a_gguf_with_its_scale_of_scales_beside_it(
    tmp_path: Path, ckconv, name: str, divided: bool
) -> None:
    pack, settings, _ = MODELS[name]
    source = tmp_path / "packed"
    expected = model(source, DECODER, pack, settings)
    result = ckconv("convert", source, tmp_path / "m.gguf")
    assert (result.code, "without which a reader gets other numbers" in result.err) == (4, True)
    result = ckconv("convert", source, tmp_path / "m.gguf", "--tensor-scales")
    assert result.code == 0, result.err
    assert "verified 12/12" in result.out
    assert ("inverted: rounded once, to float32" in result.out) == divided
    assert ckconv("verify", tmp_path / "m.gguf", source).code == 0

    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    with safe_open(source / "model.safetensors", "numpy") as file:
        stored = file.get_tensor(f"model.layers.0.mlp.up_proj.weight_{'global_scale' if divided else 'scale_2'}")
    scale = tensors["blk.0.ffn_up.scale"]
    assert (scale.tensor_type, scale.shape.tolist()) == (gguf.GGMLQuantizationType.F32, [1])
    assert scale.data[0] == (np.float32(1) / stored.reshape(()) if divided else stored)
    made = tensors["blk.0.ffn_up.weight"]
    assert made.tensor_type is gguf.GGMLQuantizationType.NVFP4
    values = gguf.quants.dequantize(made.data, made.tensor_type).astype(np.float64) * float(scale.data[0])
    wanted = expected["model.layers.0.mlp.up_proj.weight"]
    assert np.abs(values - wanted).max() <= 2.0**-22 * np.abs(wanted).max()


def test_llama_cpp_multiplies_by_the_scale_of_scales(tmp_path: Path, ckconv, llama_cpp: consumers.Consumer) -> None:
    model(tmp_path / "packed", DECODER, partial(nvfp4, divided=False, factor=1 / 8192), MODELOPT)
    for name, flags in (("blocks", ("--tensor-scales",)), ("dense", ("--dequantize",))):
        assert ckconv("convert", tmp_path / "packed", tmp_path / f"{name}.gguf", *flags).code == 0
    blocks, dense = (llama_cpp.logits(tmp_path / f"{name}.gguf", (1, 5, 9, 3)) for name in ("blocks", "dense"))
    # Beside blocks of NVFP4 llama.cpp rounds activations to eight bits.
    assert np.linalg.norm(blocks - dense) < 0.1 * np.linalg.norm(dense)


#: What Ministral 3 has to say.
YARN = {
    "rope_type": "yarn", "rope_theta": 1e6, "original_max_position_embeddings": 16, "beta_slow": 1.0, "factor": 4.0,
    "beta_fast": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


def test_nvfp4_is_kept_for_families_whose_matrices_llama_cpp_all_multiplies() -> None:
    """Each was measured, matrix by matrix, as the test below does; elsewhere feed-forward matrices are not multiplied.

    Of granite, Qwen 2, Qwen 3 Next, Phi 3, Gemma 2 and 3, OLMo, GLM and others logits are 20 to 140 % off.
    """
    rows = {name: FAMILIES[name].engines.get("llama_cpp") for name in FAMILIES}
    assert {name for name, row in rows.items() if row and row.scaled} == {
        "cohere2", "falcon_mamba", "gemma4_text", "gemma4_unified", "hy_v3", "internlm3", "llama", "mamba", "mamba2",
        "mellum", "ministral3", "mistral", "mixtral", "nemotron_h", "nemotron_h_moe", "qwen3", "qwen3_reranker",
        "qwen3_5", "qwen3_5_moe", "qwen3moe",
    }  # fmt: skip


@pytest.mark.parametrize(
    "family", ["cohere2", "falcon_mamba", "hy_v3", "internlm3", "mamba", "mamba2", "mellum", "nemotron_h_moe"]
)
def test_llama_cpp_multiplies_every_matrix_of_a_layer_by_the_scale_beside_it(
    tmp_path: Path, ckconv, llama_cpp: consumers.Consumer, family: str
) -> None:
    """Half of a matrix and a scale of 2 are the same numbers, of floats too; the head's is for NVFP4 alone."""
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf", "--dtype", "f32").code == 0
    halves = {}
    for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors:
        module, kind = tensor.name.removesuffix(".weight"), tensor.name.split(".")[-2]
        if kind in _SCALED - {"output"} and len(tensor.shape) > 1:
            experts = len(tensor.data) if tensor.data.ndim == 3 else 1
            halves |= {tensor.name: tensor.data / 2, f"{module}.scale": np.full(experts, 2, np.float32)}
    gguf_copy(tmp_path / "m.gguf", tmp_path / "halves.gguf", tensors=halves)

    whole, scaled = (llama_cpp.logits(tmp_path / f"{name}.gguf", (1, 5, 9, 3)) for name in ("m", "halves"))
    assert np.array_equal(whole, scaled)
    assert len(halves) >= 4


@pytest.mark.parametrize("model_type", ["llama", "ministral3", "mistral", "mixtral", "qwen3", "qwen3_moe"])
def test_llama_cpp_multiplies_by_the_scale_of_scales_of_every_matrix_and_the_head(
    tmp_path: Path, ckconv, llama_cpp: consumers.Consumer, model_type: str
) -> None:
    """Twice the scales and half the scale of scales are the same numbers, to the last bit of the logits."""
    experts = {"experts": 4} if model_type in ("mixtral", "qwen3_moe") else {}
    decoder = Decoder(layers=1, hidden=64, ffn=64, qk_norm=model_type.startswith("qwen3"), **experts)
    settings = {**MODELOPT, "ignore": []}
    special = {"qwen3_moe": {"norm_topk_prob": True}, "ministral3": {"rope_parameters": YARN}}.get(model_type, {})
    rows = []
    for step, factor in ((0, 1 / 8192), (8, 1 / 16384), (8, 1 / 8192)):
        named = tmp_path / f"{step}-{factor}"

        def pack(module: str, shape: tuple[int, int], seed: int, step: int = step, factor: float = factor) -> Made:
            tensors, values = nvfp4(module, shape, seed, divided=False, factor=factor)
            raw = tensors[f"{module}.weight_scale"]
            assert isinstance(raw, Raw)
            scales = np.frombuffer(raw.data, np.uint8).clip(16, 0x70) + np.uint8(step)
            tensors[f"{module}.weight_scale"] = Raw(raw.dtype, raw.shape, scales.tobytes())
            return tensors, values

        def head(tensors: Tensors, config: dict[str, Any], pack: Pack = pack) -> None:
            shape = tensors.pop("lm_head.weight").shape
            tensors |= pack("lm_head", (shape[0], shape[1]), 99)[0]
            if model_type == "mixtral":
                for name in [name for name in tensors if ".mlp." in name]:
                    own = name.replace(".mlp.", ".block_sparse_moe.").replace("gate_proj", "w1")
                    tensors[own.replace("up_proj", "w3").replace("down_proj", "w2")] = tensors.pop(name)

        model(named, decoder, pack, settings, model_type=model_type, **special)
        rewritten(named, head)
        result = ckconv("convert", named, f"{named}.gguf", "--tensor-scales")
        assert result.code == 0, result.err
        rows.append(llama_cpp.logits(Path(f"{named}.gguf"), (1, 5, 9, 3)))
    names = {tensor.name for tensor in gguf.GGUFReader(f"{named}.gguf").tensors}
    assert "output.scale" in names
    assert np.array_equal(rows[0], rows[1])
    assert np.abs(rows[0] - rows[2]).max() > 0.01


def test_llama_cpp_multiplies_every_expert_by_its_own_scale_of_scales(
    tmp_path: Path, ckconv, llama_cpp: consumers.Consumer
) -> None:
    """Stacked experts of a GGUF have one vector of scales, an expert each."""

    def pack(module: str, shape: tuple[int, int], seed: int) -> Made:
        return nvfp4(module, shape, seed, divided=False, factor=(1 + seed % 7) / 8192)

    experts = Decoder(layers=1, hidden=64, ffn=64, experts=4, qk_norm=True)
    expected = model(tmp_path / "packed", experts, pack, MODELOPT, model_type="qwen3_moe", norm_topk_prob=True)
    for name, flags in (("blocks", ("--tensor-scales",)), ("dense", ("--dequantize",))):
        result = ckconv("convert", tmp_path / "packed", tmp_path / f"{name}.gguf", *flags)
        assert result.code == 0, result.err
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "blocks.gguf").tensors}
    made, scales = tensors["blk.0.ffn_down_exps.weight"], tensors["blk.0.ffn_down_exps.scale"].data
    assert (made.tensor_type, len(set(scales.tolist()))) == (gguf.GGMLQuantizationType.NVFP4, 4)
    for number, values in enumerate(gguf.quants.dequantize(made.data, made.tensor_type)):
        wanted = expected[f"model.layers.0.mlp.experts.{number}.down_proj.weight"]
        assert np.allclose(values.astype(np.float64) * float(scales[number]), wanted, rtol=2.0**-22, atol=0)
    blocks, dense = (llama_cpp.logits(tmp_path / f"{name}.gguf", (1, 5, 9, 3)) for name in ("blocks", "dense"))
    assert np.linalg.norm(blocks - dense) < 0.1 * np.linalg.norm(dense)
    back = ckconv("convert", tmp_path / "blocks.gguf", f"{tmp_path}/back/", "--to", "safetensors", "--dequantize")
    assert back.code == 0, back.err
    for key, values in floats(tmp_path / "back").items():
        assert np.array_equal(values, expected[key].astype(np.float32)), key


def test_nvfp4_of_a_gguf_is_decoded_with_its_scale(tmp_path: Path, ckconv) -> None:
    pack, settings, _ = MODELS["ModelOpt"]
    expected = model(tmp_path / "packed", DECODER, pack, settings)
    assert ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf", "--tensor-scales").code == 0
    result = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize")
    assert result.code == 0, result.err
    for key, values in floats(tmp_path / "dense").items():
        assert np.array_equal(values, expected[key].astype(np.float32)), key
    assert ckconv("verify", tmp_path / "m.gguf", tmp_path / "packed").code == 0
    assert ckconv("convert", tmp_path / "m.gguf", tmp_path / "copy.gguf").code == 0
    one, other = (bytes_of(tmp_path / f"{name}.gguf")
                  for name in ("m", "copy"))  # fmt: skip
    assert one == other


def test_scales_of_activations_beside_nvfp4_stay_in_a_gguf_and_are_left_out_elsewhere(tmp_path: Path, ckconv) -> None:
    """As llama.cpp's converter writes them: ``NAME.input_scale``."""
    pack, settings, _ = MODELS["ModelOpt"]
    expected = model(tmp_path / "packed", DECODER, pack, settings)
    assert ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf", "--tensor-scales").code == 0
    scales = [tensor.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors if tensor.name.endswith(".scale")]
    more = {name.replace(".scale", ".input_scale"): np.array([0.75], np.float32) for name in scales}
    gguf_copy(tmp_path / "m.gguf", tmp_path / "scales.gguf", tensors=more)

    assert ckconv("convert", tmp_path / "scales.gguf", tmp_path / "copy.gguf").code == 0
    one, other = (bytes_of(tmp_path / f"{name}.gguf")
                  for name in ("scales", "copy"))  # fmt: skip
    assert one == other
    assert ckconv("diff", tmp_path / "m.gguf", tmp_path / "scales.gguf").code == 0
    result = ckconv("convert", tmp_path / "scales.gguf", f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize")
    assert result.code == 0, result.err
    assert ".input_scale and 6 more: of activations, not of weights" in result.out
    for key, values in floats(tmp_path / "dense").items():
        assert np.array_equal(values, expected[key].astype(np.float32)), key


def test_the_bytes_of_a_scale_of_scales_are_no_scales(tmp_path: Path, ckconv) -> None:
    """0x7F and 0xFF are no number as E4M3, and any byte of a float32."""
    factor = float(np.array(0x3A7FFF7F, np.uint32).view(np.float32))
    expected = model(tmp_path / "packed", DECODER, partial(nvfp4, divided=False, factor=factor), MODELOPT)
    assert ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf", "--tensor-scales").code == 0
    result = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize")
    assert result.code == 0, result.err
    for key, values in floats(tmp_path / "dense").items():
        assert np.array_equal(values, expected[key].astype(np.float32)), key


@pytest.mark.parametrize("where", ["weight_scale", "weight_scale_2"])
def test_scales_of_nvfp4_that_are_no_numbers_are_said_and_not_decoded(tmp_path: Path, ckconv, where: str) -> None:
    def pack(module: str, shape: tuple[int, int], seed: int) -> Made:
        tensors, values = nvfp4(module, shape, seed, divided=False)
        raw = tensors[f"{module}.weight_scale"]
        assert isinstance(raw, Raw)
        if where == "weight_scale":
            tensors[f"{module}.weight_scale"] = Raw("F8_E4M3", raw.shape, bytes([0x7F]) + raw.data[1:])
        else:
            tensors[f"{module}.weight_scale_2"] = np.array(np.nan, np.float32)
        return tensors, values

    model(tmp_path / "packed", DECODER, pack, MODELOPT)
    result = ckconv("convert", tmp_path / "packed", f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize")
    assert (result.code, "is not a finite number" in result.err) == (4, True), result.err


@pytest.mark.parametrize(
    ("factor", "divided"),
    [(np.inf, False), (-np.inf, False), (3e38, False), (np.inf, True), (1e-38, True), (0, True)],
)
def test_products_of_nvfp4_beyond_float32_are_said_and_not_decoded(
    tmp_path: Path, ckconv, factor: float, divided: bool
) -> None:
    with np.errstate(all="ignore"):
        how = MODELS["compressed-tensors nvfp4"][1] if divided else MODELOPT
        model(tmp_path / "packed", DECODER, partial(nvfp4, divided=divided, factor=factor), how)
    result = ckconv("convert", tmp_path / "packed", f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize")
    assert (result.code, "is not a finite number" in result.err) == (4, True), result.err
    assert not (tmp_path / "dense").exists()


@pytest.mark.parametrize(("factor", "exact"), [(0.25, True), (0.3, False)])
def test_decoding_is_called_exact_where_the_factor_is_a_power_of_two(
    tmp_path: Path, ckconv, factor: float, exact: bool
) -> None:
    model(tmp_path / "packed", DECODER, partial(nvfp4, divided=False, factor=factor), MODELOPT)
    result = ckconv("convert", tmp_path / "packed", tmp_path / "m.bump")
    assert result.code == 4
    said = "every value is exact" if exact else "every value is what its library computes, rounded to FP32"
    assert said in result.err, result.err


def test_a_matrix_whose_scale_of_scales_is_one_has_none_in_a_gguf(tmp_path: Path, ckconv) -> None:
    model(tmp_path / "packed", DECODER, partial(nvfp4, divided=False, factor=1), MODELOPT)
    assert ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf").code == 0
    assert not any(tensor.name.endswith(".scale") for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors)
    assert ckconv("verify", tmp_path / "m.gguf", tmp_path / "packed").code == 0


def test_nvfp4_of_a_family_that_was_not_measured_is_refused(tmp_path: Path, ckconv) -> None:
    model(tmp_path / "packed", DECODER, partial(nvfp4, divided=False), MODELOPT, model_type="qwen2")
    result = ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf")
    assert result.code == 4
    assert "llama.cpp is not known to multiply NVFP4 by its scale" in result.err


@pytest.mark.parametrize("scale", [0x7F, 0x88])
def test_a_scale_that_is_no_number_or_negative_is_refused(tmp_path: Path, ckconv, scale: int) -> None:
    def spoiled(module: str, shape: tuple[int, int], seed: int) -> Made:
        tensors, values = nvfp4(module, shape, seed, divided=False)
        raw = tensors[f"{module}.weight_scale"]
        assert isinstance(raw, Raw)
        tensors[f"{module}.weight_scale"] = Raw("F8_E4M3", raw.shape, bytes([scale]) + raw.data[1:])
        return tensors, values

    model(tmp_path / "packed", DECODER, spoiled, MODELOPT)
    assert ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf").code == 4
    assert not (tmp_path / "m.gguf").exists()


BROKEN: dict[str, tuple[str, Callable[[Tensors, str], Any], str]] = {
    "scales of another shape": (
        "compressed-tensors mxfp4",
        lambda tensors, module: tensors.update({f"{module}.weight_scale": np.zeros((3, 2), np.uint8)}),
        "weight_scale has shape [3, 2], the other arrays make it [64, 4]",
    ),
    "two second scales": (
        "ModelOpt",
        lambda tensors, module: tensors.update({f"{module}.weight_scale_2": np.ones(2, np.float32)}),
        "weight_scale_2 has shape [2], the other arrays make it [1]",
    ),
    "a second scale of two axes": (
        "ModelOpt",
        lambda tensors, module: tensors.update({f"{module}.weight_scale_2": np.ones((1, 1), np.float32)}),
        "weight_scale_2 has shape [1, 1], the other arrays make it [1]",
    ),
    "scales of fewer groups": (
        "ModelOpt",
        lambda tensors, module: tensors.update({f"{module}.weight_scale": Raw("F8_E4M3", (64, 4), bytes(256))}),
        "weight_scale has shape [64, 4], the other arrays make it [64, 8]",
    ),
    "scales of three axes": (
        "ModelOpt",
        lambda tensors, module: tensors.update({f"{module}.weight_scale": Raw("F8_E4M3", (2, 32, 8), bytes(512))}),
        "weight_scale has shape [2, 32, 8], the other arrays make it [64, 8]",
    ),
    "codes of no rows": (
        "ModelOpt",
        lambda tensors, module: tensors.update({f"{module}.weight": np.zeros((0, 64), np.uint8)}),
        "weight has shape [0, 64], which is not nvfp4 4-bit group 16",
    ),
    "codes of one axis": (
        "ModelOpt",
        lambda tensors, module: tensors.update({f"{module}.weight": np.zeros(4096, np.uint8)}),
        "weight has shape [4096], which is not nvfp4 4-bit group 16",
    ),
    "no scales": (
        "ModelOpt",
        lambda tensors, module: tensors.pop(f"{module}.weight_scale"),
        "weight_scale_2' belongs to no quantized matrix",
    ),
    "a row that is no groups": (
        "ModelOpt",
        lambda tensors, module: tensors.update({f"{module}.weight": np.zeros((64, 60), np.uint8)}),
        "weight has shape [64, 60], which is not nvfp4 4-bit group 16",
    ),
    "biases that are missing": (
        "metal",
        lambda tensors, module: tensors.pop(f"{module}.qbiases"),
        "of codes without what decodes them (model.layers.0.mlp.down_proj.weight is U32 [64, 16])",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_arrays_that_do_not_fit_are_one_sentence(tmp_path: Path, ckconv, what: str) -> None:
    name, spoil, sentence = BROKEN[what]
    pack, settings, _ = MODELS[name]

    def broken(module: str, shape: tuple[int, int], seed: int) -> Made:
        tensors, values = pack(module, shape, seed)
        if module.endswith("down_proj"):
            spoil(tensors, module)
        return tensors, values

    model(tmp_path / "packed", DECODER, broken, settings)
    result = ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf")
    assert result.code == (4 if "without" in sentence else 3), result.out
    assert sentence in result.err


def test_bits_of_another_configuration_are_said(tmp_path: Path, ckconv) -> None:
    model(tmp_path / "packed", DECODER, metal, {"quant_method": "metal", "bits": 7, "group_size": 64})
    result = ckconv("inspect", tmp_path / "packed")
    assert result.code == 3
    assert "affine quantization has 7 bits" in result.err


def test_matrices_whose_scale_llama_cpp_has_no_place_for_are_one_reason(tmp_path: Path, ckconv) -> None:
    """It multiplies by the scale where it adds no bias."""
    model(tmp_path / "packed", DECODER, partial(nvfp4, divided=False), MODELOPT, mlp_bias=True)

    def with_biases(tensors: Tensors, document: dict[str, Any]) -> None:
        rows = {"gate": DECODER.ffn, "up": DECODER.ffn, "down": DECODER.hidden}
        tensors |= {f"model.layers.0.mlp.{kind}_proj.bias": np.ones(n, np.float32) for kind, n in rows.items()}

    rewritten(tmp_path / "packed", with_biases)
    result = ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf", "--tensor-scales")
    sentence = "llama.cpp has no place for the scale of the scales of blk.0.ffn_gate and 2 more"
    assert (result.code, sentence in result.err) == (4, True), result.err
    assert ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf", "--dequantize").code == 0
