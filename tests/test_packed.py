"""Checkpoints that other quantizers wrote: what they hold is read, whoever packed it, and decoded when asked to."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Decoder, Raw, save
from packed_checkpoints import (
    arrays_of,
    awq_model,
    bitnet_model,
    bitsandbytes_int8_model,
    bitsandbytes_model,
    comfyui_model,
    compressed_model,
    fp8_model,
    gptq_model,
    hqq,
    hqq_model,
    planes,
    quark_model,
    scaled_fp8_model,
    torchao_float8_model,
    torchao_model,
    torchao_mx_model,
    torchao_offsets_model,
)
from safetensors import safe_open
from safetensors_builder import tensors_of

#: Rows and columns are whole words of every packing, and no whole blocks of 128.
DECODER = Decoder(layers=1, hidden=64, ffn=160)

MODELS: dict[str, tuple[Callable[..., dict[str, np.ndarray]], str]] = {
    "GPTQ v1, 4 bits": (partial(gptq_model, version=1), "GPTQ, 4-bit, groups of 32: 7 matrices"),
    "GPTQ v2, 4 bits": (partial(gptq_model, version=2), "GPTQ, 4-bit, groups of 32: 7 matrices"),
    "GPTQ, 8 bits": (partial(gptq_model, bits=8), "GPTQ, 8-bit, groups of 32: 7 matrices"),
    "GPTQ, 2 bits": (partial(gptq_model, bits=2), "GPTQ, 2-bit, groups of 32: 7 matrices"),
    "GPTQ, 3 bits": (partial(gptq_model, bits=3), "GPTQ, 3-bit, groups of 32: 7 matrices"),
    "GPTQ, 3 bits in planes": (
        partial(gptq_model, bits=3, version=2, pack=planes),
        "GPTQ, 3-bit, groups of 32: 7 matrices",
    ),
    "GPTQ, 5 bits in planes": (
        partial(gptq_model, bits=5, version=2, pack=planes),
        "GPTQ, 5-bit, groups of 32: 7 matrices",
    ),
    "GPTQ, 7 bits in planes, columns in another order": (
        partial(gptq_model, bits=7, version=2, pack=planes, scattered=True),
        "GPTQ, 7-bit, groups of 32, columns in another order (desc_act): 7 matrices",
    ),
    "auto-round as GPTQ v1, 6 bits": (
        partial(gptq_model, bits=6, auto_round="auto_round:auto_gptq"),
        "GPTQ, 6-bit, groups of 32: 7 matrices",
    ),
    "auto-round, 3 bits": (
        partial(gptq_model, bits=3, version=2, auto_round="auto_round"),
        "GPTQ, 3-bit, groups of 32: 7 matrices",
    ),
    "auto-round as AWQ, 4 bits": (partial(awq_model, auto_round=True), "AWQ, 4-bit, groups of 32: 7 matrices"),
    "auto-round as AWQ, 5 bits": (
        partial(awq_model, auto_round=True, bits=5),
        "AWQ, 5-bit, groups of 32: 7 matrices",
    ),
    "GPTQ, whole rows": (partial(gptq_model, group=-1), "GPTQ, 4-bit, scales of whole rows: 7 matrices"),
    "GPTQ, symmetric": (partial(gptq_model, symmetric=True), "GPTQ, 4-bit, groups of 32: 7 matrices"),
    "GPTQ, columns in another order": (
        partial(gptq_model, scattered=True),
        "GPTQ, 4-bit, groups of 32, columns in another order (desc_act): 7 matrices",
    ),
    "FP8 in blocks": (
        partial(fp8_model, block=(128, 128)),
        "block-scaled FP8, 8-bit, blocks of 128 x 128: 7 matrices",
    ),
    "AWQ": (awq_model, "AWQ, 4-bit, groups of 32: 7 matrices"),
    "ternary": (bitnet_model, "BitNet, ternary, one scale a matrix: 7 matrices"),
    "ternary, times a scale": (
        partial(bitnet_model, times=True),
        "BitNet, ternary, one scale a matrix: 7 matrices",
    ),
    "nf4": (bitsandbytes_model, "bitsandbytes nf4, blocks of 64: 7 matrices"),
    "nf4 with quantized scales": (
        partial(bitsandbytes_model, double=4),
        "bitsandbytes nf4, blocks of 64, double-quantized: 7 matrices",
    ),
    "fp4 in blocks of several rows, stored as bfloat16": (
        partial(bitsandbytes_model, kind="fp4", block=4096, storage="BF16"),
        "bitsandbytes fp4, blocks of 4096: 7 matrices",
    ),
    "nf4 in blocks that begin within rows": (
        partial(bitsandbytes_model, block=256, double=3),
        "bitsandbytes nf4, blocks of 256, double-quantized: 7 matrices",
    ),
    "int8 of bitsandbytes": (bitsandbytes_int8_model, "bitsandbytes int8, scales of whole rows: 7 matrices"),
    "int4 words": (
        compressed_model,
        "compressed-tensors pack-quantized, 4-bit, groups of 32: 7 matrices",
    ),
    "int4 words with zero points": (
        partial(compressed_model, symmetric=False),
        "compressed-tensors pack-quantized, 4-bit, groups of 32: 7 matrices",
    ),
    "int3 words": (
        partial(compressed_model, bits=3),
        "compressed-tensors pack-quantized, 3-bit, groups of 32: 7 matrices",
    ),
    "int6 words with zero points": (
        partial(compressed_model, bits=6, symmetric=False),
        "compressed-tensors pack-quantized, 6-bit, groups of 32: 7 matrices",
    ),
    "int7 words of whole codes with zero points": (
        partial(compressed_model, bits=7, symmetric=False, old=True),
        "compressed-tensors pack-quantized, 7-bit, groups of 32: 7 matrices",
    ),
    "int5 words of whole codes, scales of whole rows": (
        partial(compressed_model, bits=5, group=-1, old=True),
        "compressed-tensors pack-quantized, 5-bit, scales of whole rows: 7 matrices",
    ),
    "int4 words, columns in another order": (
        partial(compressed_model, scattered=True),
        "groups of 32, columns in another order (actorder): 7 matrices",
    ),
    "int8 words of whole rows": (
        partial(compressed_model, bits=8, group=-1),
        "compressed-tensors pack-quantized, 8-bit, scales of whole rows: 7 matrices",
    ),
    "int8": (
        partial(compressed_model, form="int-quantized", bits=8, group=-1),
        "compressed-tensors int-quantized, 8-bit, scales of whole rows: 7 matrices",
    ),
    "int8 with zero points": (
        partial(compressed_model, form="int-quantized", bits=8, symmetric=False),
        "compressed-tensors int-quantized, 8-bit, groups of 32: 7 matrices",
    ),
    "FP8 of rows": (
        partial(scaled_fp8_model, strategy="channel"),
        "scaled FP8, 8-bit, scales of whole rows: 7 matrices",
    ),
    "FP8 of matrices": (
        partial(scaled_fp8_model, strategy="tensor"),
        "scaled FP8, 8-bit, one scale a matrix: 7 matrices",
    ),
    "torchao int8": (partial(torchao_model, wide=True), "torchao, 8-bit, scales of whole rows: 7 matrices"),
    "torchao int8 with zero points": (
        partial(torchao_model, zeros=True),
        "torchao, 8-bit, scales of whole rows: 7 matrices",
    ),
    "torchao int4": (partial(torchao_model, bits=4, group=32), "torchao, 4-bit, groups of 32: 7 matrices"),
    "torchao int6": (partial(torchao_model, bits=6, group=32, zeros=True), "torchao, 6-bit, groups of 32: 7 matrices"),
    "ComfyUI FP8": (comfyui_model, "ComfyUI, FP8, one scale a matrix: 7 matrices"),
    "ComfyUI FP8 of rows": (partial(comfyui_model, rows=True), "ComfyUI, FP8, scales of whole rows: 7 matrices"),
    "ComfyUI FP8 in the header": (
        partial(comfyui_model, said="header"),
        "ComfyUI, FP8, one scale a matrix: 7 matrices",
    ),
    "ComfyUI FP8 of before": (partial(comfyui_model, said="old"), "ComfyUI, FP8, one scale a matrix: 7 matrices"),
    "ComfyUI E5M2": (partial(comfyui_model, kind="float8_e5m2"), "ComfyUI, FP8 (E5M2), one scale a matrix: 7 matrices"),
    "ComfyUI int8": (partial(comfyui_model, kind="int8_tensorwise"), "ComfyUI, 8-bit, one scale a matrix: 7 matrices"),
    "ComfyUI int8 of rows": (
        partial(comfyui_model, kind="int8_tensorwise", rows=True),
        "ComfyUI, 8-bit, scales of whole rows: 7 matrices",
    ),
    "ComfyUI mxfp8": (partial(comfyui_model, kind="mxfp8"), "ComfyUI, mxfp8 8-bit group 32: 7 matrices"),
    "ComfyUI nvfp4": (partial(comfyui_model, kind="nvfp4"), "ComfyUI, NVFP4, groups of 16: 7 matrices"),
    "ComfyUI nvfp4 in the header": (
        partial(comfyui_model, kind="nvfp4", said="header"),
        "ComfyUI, NVFP4, groups of 16: 7 matrices",
    ),
    "FP8 without scales": (partial(comfyui_model, said="nothing"), "FP8, F8_E4M3 without scales: 7 matrices"),
    "E5M2 without scales": (
        partial(comfyui_model, kind="float8_e5m2", said="nothing"),
        "FP8, F8_E5M2 without scales: 7 matrices",
    ),
    "torchao float8 of rows": (torchao_float8_model, "torchao, 8-bit, scales of whole rows: 7 matrices"),
    "torchao float8": (partial(torchao_float8_model, rows=False), "torchao, 8-bit, one scale a matrix: 7 matrices"),
    "torchao int4 with offsets": (
        torchao_offsets_model,
        "torchao, 4-bit with offsets, groups of 32: 7 matrices",
    ),
    "torchao int4 in tiles": (
        partial(torchao_offsets_model, tiles=True),
        "torchao, 4-bit with offsets in tiles, groups of 32: 7 matrices",
    ),
    "torchao mxfp4": (torchao_mx_model, "torchao, mxfp4 4-bit group 32: 7 matrices"),
    "torchao mxfp8": (partial(torchao_mx_model, kind="mxfp8"), "torchao, mxfp8 8-bit group 32: 7 matrices"),
    "torchao nvfp4": (partial(torchao_mx_model, kind="nvfp4"), "torchao, nvfp4 4-bit group 16: 7 matrices"),
    "torchao nvfp4, scaled scales": (
        partial(torchao_mx_model, kind="nvfp4", factor=True),
        "torchao, NVFP4, groups of 16: 7 matrices",
    ),
    "Quark int4": (quark_model, "Quark, 4-bit, groups of 32: 7 matrices"),
    "Quark uint4 in order": (
        partial(quark_model, kind="uint4", ordered=True),
        "Quark, 4-bit, groups of 32: 7 matrices",
    ),
    "Quark FP8": (partial(quark_model, kind="fp8_e4m3"), "scaled FP8, 8-bit, scales of whole rows: 7 matrices"),
    "HQQ, 4 bits": (hqq_model, "HQQ, 4-bit, groups of 32: 7 matrices"),
    "HQQ, 8 bits, as floats": (partial(hqq_model, bits=8, floats=True), "HQQ, 8-bit, groups of 32: 7 matrices"),
    "HQQ, 3 bits": (partial(hqq_model, bits=3), "HQQ, 3-bit, groups of 32: 7 matrices"),
    "HQQ, 3 bits across rows": (
        partial(hqq_model, bits=3, axis=0, group=16),
        "HQQ, 3-bit, groups of 16 across rows: 7 matrices",
    ),
    "HQQ, 2 bits across rows": (
        partial(hqq_model, bits=2, axis=0, group=16),
        "HQQ, 2-bit, groups of 16 across rows: 7 matrices",
    ),
    "HQQ, 1 bit": (partial(hqq_model, bits=1), "HQQ, 1-bit, groups of 32: 7 matrices"),
    "FP8 in small blocks": (
        partial(fp8_model, block=(32, 16)),
        "block-scaled FP8, 8-bit, blocks of 32 x 16: 7 matrices",
    ),
}


def values_of(directory: Path) -> dict[str, np.ndarray]:
    """The float tensors of a directory, by the package of the format."""
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, "numpy") as file:
            for name in file.keys():  # noqa: SIM118
                slice_ = file.get_slice(name)
                if slice_.get_dtype() in ("F32", "F16", "F64"):
                    found[name] = file.get_tensor(name)
    return found


@pytest.mark.product("values")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("model_type", ["llama", "unheard-of"])
def test_dequantize_writes_the_numbers_that_the_arrays_stand_for(
    tmp_path: Path, ckconv, name: str, model_type: str
) -> None:
    make, words = MODELS[name]
    source, out = tmp_path / "packed", tmp_path / "dense"
    expected = make(source, DECODER, model_type=model_type)

    assert words in ckconv("inspect", source).out
    result = ckconv("convert", source, f"{out}/", "--to", "safetensors", "--dequantize")
    assert result.code == 0, result.err

    found = values_of(out)
    matrices = {key: value for key, value in expected.items() if key.endswith("_proj.weight")}
    assert len(matrices) == 7
    for key, value in matrices.items():
        assert np.array_equal(found[key], value.astype(np.float32)), key
        assert np.array_equal(value.astype(np.float32), value), "float32 holds it"
    config = json.loads((out / "config.json").read_text())
    assert "quantization_config" not in config
    with safe_open(out / "model.safetensors", "numpy") as file:
        assert not {*file.metadata()} & {*expected}, "nothing is said of a class of matrices that are decoded"
    assert config["torch_dtype"] == "float32"
    assert "model.layers.0.self_attn.q_proj.weight" in ckconv("inspect", out).out


def test_matrices_of_any_shape_are_what_their_codes_say(tmp_path: Path, ckconv) -> None:
    """Of one column, of one row, and of a few; a block of one number is a block all the same."""
    tensors, values = dict[str, Any](), dict[str, np.ndarray]()
    shapes = [(16, 1), (1, 16), (80, 1), (8, 2), (1, 80), (40, 3), (2, 8)]
    for seed, (bits, axis, shape) in enumerate(itertools.product((8, 4, 3, 2, 1), (0, 1), shapes)):
        group, lines = (shape[1], shape[0]) if axis else (shape[0], shape[0])
        if bits != 3 and lines % (8 // bits):
            continue
        name = f"a{seed}"
        arrays, values[f"{name}.weight"] = hqq(name, shape, seed, bits=bits, axis=axis, group=group)
        tensors |= arrays
    assert len(values) > 40
    config = {"model_type": "unheard-of", "quantization_config": {"quant_method": "hqq"}}
    save(tmp_path / "in", config, tensors, metadata={"format": "pt"})
    done = ckconv("convert", tmp_path / "in", f"{tmp_path}/out/", "--to", "safetensors", "--dequantize")
    assert done.code == 0, done.err
    found = values_of(tmp_path / "out")
    assert {name: found[name].tolist() for name in values} == {name: value.tolist() for name, value in values.items()}


@pytest.mark.parametrize("how", [{}, {"kind": "mxfp8"}, {"kind": "nvfp4"}, {"kind": "nvfp4", "factor": True}])
def test_scales_in_blocks_are_those_in_rows(tmp_path: Path, ckconv, how: dict[str, Any]) -> None:
    """Of k and v there are 176 rows: a block of 128, 32 of the next, and half as many."""
    decoder = Decoder(layers=1, hidden=128, heads=16, kv_heads=2, head_dim=88, ffn=128)
    rows, blocks = tmp_path / "rows" / "model", tmp_path / "blocks" / "model"
    torchao_mx_model(rows, decoder, **how)
    torchao_mx_model(blocks, decoder, blocks=True, **how)
    assert ckconv("diff", rows, blocks).code == 0
    kind = how.get("kind", "mxfp4")
    flags = ("--tensor-scales",) if how.get("factor") else ()
    for target, held in (("gguf", {"mxfp8": "BF16"}.get(kind, kind.upper())), ("mlx", kind)):
        if target == "mlx" and flags:
            continue
        made = []
        for source in (rows, blocks):
            out = source.parent / ("mlx" if target == "mlx" else "m.gguf")
            done = ckconv("convert", source, f"{out}/" if target == "mlx" else out, "--to", target, *flags)
            assert done.code == 0, done.err
            made.append(out / "model.safetensors" if target == "mlx" else out)
        assert made[0].read_bytes() == made[1].read_bytes()
        assert held in ckconv("inspect", made[1]).out


@pytest.mark.parametrize("name", ["GPTQ v1, 4 bits", "FP8 in blocks"])
def test_what_is_decoded_goes_to_other_formats_as_any_model_does(tmp_path: Path, ckconv, name: str) -> None:
    source, out = tmp_path / "packed", tmp_path / "model.gguf"
    expected = MODELS[name][0](source, DECODER)
    result = ckconv("convert", source, out, "--dequantize")
    assert result.code == 0, result.err

    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(out).tensors}
    down = expected["model.layers.0.mlp.down_proj.weight"].astype(np.float32)
    assert np.array_equal(found["blk.0.ffn_down.weight"], down)
    q = expected["model.layers.0.self_attn.q_proj.weight"].astype(np.float32)
    permuted = q.reshape(DECODER.heads, 2, -1, q.shape[1]).swapaxes(1, 2).reshape(q.shape)
    assert np.array_equal(found["blk.0.attn_q.weight"], permuted)


@pytest.mark.product("values")
@pytest.mark.parametrize("name", ["GPTQ v1, 4 bits", "FP8 of rows"])
@pytest.mark.parametrize("model_type", ["llama", "unheard-of"])
def test_a_copy_keeps_every_array_in_one_shard_with_its_module(
    tmp_path: Path, ckconv, name: str, model_type: str
) -> None:
    source, out = tmp_path / "packed", tmp_path / "copy"
    MODELS[name][0](source, DECODER, model_type=model_type, shards=3)

    result = ckconv("convert", source, f"{out}/", "--to", "safetensors", "--max-shard-size", "20KB")
    assert result.code == 0, result.err
    places = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    modules: dict[str, set[str]] = {}
    for key, file in places.items():
        if not key.endswith(".input_scale"):
            modules.setdefault(key.rpartition(".")[0], set()).add(file)
    assert all(len(files) == 1 for files in modules.values())
    assert len(set(places.values())) > 1
    assert ckconv("diff", source, out).code == ckconv("verify", out, source).code == 0
    found = [json.loads(ckconv("inspect", "--hash", "--json", path).out) for path in (source, out)]
    assert found[0]["hash"] == found[1]["hash"]
    assert all(tensor["hash"] or tensor["name"].endswith(".input_scale") for tensor in found[0]["tensors"])


def test_numbers_that_are_alike_are_equal_whatever_the_layout_they_lie_in(tmp_path: Path, ckconv) -> None:
    """Version 2 stores the zero points of version 1 as they are, and an index that says nothing may be left out."""
    gptq_model(tmp_path / "one", DECODER, version=1)
    gptq_model(tmp_path / "other", DECODER, version=2, lowest=1)
    assert ckconv("diff", "--weights", tmp_path / "one", tmp_path / "other").code == 0


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("GPTQ v1, 4 bits", "F16"), ("AWQ", "F16"), ("int8 with zero points", "BF16")],
)
@pytest.mark.parametrize("model_type", ["llama", "unheard-of"])
def test_dtype_source_gives_the_values_of_the_format_s_own_library_in_its_type(
    tmp_path: Path, ckconv, name: str, dtype: str, model_type: str
) -> None:
    """The exact product, rounded once to the type of the scales."""
    source, out = tmp_path / "packed", tmp_path / "dense"
    expected = MODELS[name][0](source, DECODER, model_type=model_type)
    flags = ("--to", "safetensors", "--dequantize", "--dtype", "source")
    result = ckconv("convert", source, f"{out}/", *flags)
    assert result.code == 0, result.err
    assert ckconv("verify", out, source, "--dequantize", "--dtype", "source").code == 0
    tensors = arrays_of(out)
    for key, value in expected.items():
        if key.endswith("_proj.weight"):
            exact = value.astype(np.float32)
            bits = exact.astype(np.float16).view(np.uint16) if dtype == "F16" else to_bfloat16(exact)
            assert tensors[key].dtype == dtype
            assert np.array_equal(np.frombuffer(tensors[key].data, np.uint16).reshape(bits.shape), bits), key
    config = json.loads((out / "config.json").read_text())
    assert config["torch_dtype"] == {"F16": "float32", "BF16": "bfloat16"}[dtype], "norms are bfloat16"


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest ones, those with an even last bit where two are as near."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def test_some_packed_matrices_are_not_decoded_without_the_others(tmp_path: Path, ckconv) -> None:
    source = tmp_path / "packed"
    gptq_model(source, DECODER)
    result = ckconv("convert", source, f"{tmp_path}/out/", "--to", "safetensors", "--decode", "*q_proj*")
    assert (result.code, "--dequantize decodes all" in result.err) == (4, True)


def test_drop_names_a_packed_matrix_as_a_whole(tmp_path: Path, ckconv) -> None:
    source, out = tmp_path / "packed", tmp_path / "out"
    gptq_model(source, DECODER, model_type="unheard-of")
    convert = partial(ckconv, "convert", source, f"{out}/", "--to", "safetensors", "--drop")
    result = convert("*q_proj.qzeros")
    assert (result.code, "not the other arrays of model.layers.0.self_attn.q_proj.weight" in result.err) == (4, True)

    assert convert("*q_proj.weight").code == 0
    names = values_of(out)
    assert "model.layers.0.self_attn.k_proj.scales" in names
    assert "model.layers.0.self_attn.q_proj.scales" not in names


def test_what_torchao_says_of_tensors_is_said_of_those_that_stay(tmp_path: Path, ckconv) -> None:
    """transformers wants an entry for every name in the list."""
    source = tmp_path / "packed"
    gone = [f"model.layers.0.{name}.weight" for name in ("self_attn.q_proj", "input_layernorm")]
    torchao_offsets_model(source, DECODER, model_type="unheard-of")
    (path,) = source.glob("*.safetensors")
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + size])
    said = header["__metadata__"]
    plain = [name for name in header if name.endswith("norm.weight")]
    said |= {name: json.dumps({"_type": "Tensor"}) for name in plain}
    said["tensor_names"] = json.dumps([name for name in said if name.endswith(".weight")])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + path.read_bytes()[8 + size :])
    convert = partial(ckconv, "convert", source, "--to", "safetensors")

    assert convert(f"{tmp_path}/less/", *(word for name in gone for word in ("--drop", name))).code == 0
    assert convert(f"{tmp_path}/dense/", "--dequantize").code == 0

    with safe_open(next((tmp_path / "less").glob("*.safetensors")), "np") as file:
        found = file.metadata()
    assert json.loads(found["tensor_names"]) == [name for name in json.loads(said["tensor_names"]) if name not in gone]
    assert {name for name in found if name.endswith(".weight")} == set(json.loads(found["tensor_names"]))
    with safe_open(next((tmp_path / "dense").glob("*.safetensors")), "np") as file:
        assert "tensor_names" not in file.metadata()


def test_columns_that_are_no_whole_word_are_those_of_the_shape(tmp_path: Path, ckconv) -> None:
    """52 codes of 4 bits fill six words and a half; 20 rows of zero points two and a half."""
    decoder = Decoder(layers=1, hidden=52, heads=5, kv_heads=5, head_dim=4, ffn=20)
    source, out = tmp_path / "packed", tmp_path / "dense"
    expected = compressed_model(source, decoder, group=-1, symmetric=False)
    assert ckconv("convert", source, f"{out}/", "--to", "safetensors", "--dequantize").code == 0
    found = values_of(out)
    for name, value in expected.items():
        if name.endswith("_proj.weight"):
            assert np.array_equal(found[name], value), name


@pytest.mark.parametrize("model_type", ["llama", "unheard-of"])
def test_scales_of_activations_are_copied_and_left_out_of_what_is_decoded(
    tmp_path: Path, ckconv, model_type: str
) -> None:
    source = tmp_path / "packed"
    scaled_fp8_model(source, DECODER, strategy="tensor", model_type=model_type)
    one = "model.layers.0.mlp.up_proj.input_scale"

    assert ckconv("convert", source, f"{tmp_path}/copy/", "--to", "safetensors").code == 0
    assert one in ckconv("inspect", tmp_path / "copy").out
    result = ckconv("convert", source, f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize")
    assert result.code == 0, result.err
    assert "of activations, not of weights" in result.out + result.err
    assert one not in ckconv("inspect", tmp_path / "dense").out
    assert ckconv("diff", "--weights", source, tmp_path / "dense").code == 0
    alone = {name: Raw(*entry) for name, entry in tensors_of(source).items() if name != one}
    save(tmp_path / "less", json.loads((source / "config.json").read_text()), alone)
    found = ckconv("diff", "--weights", source, tmp_path / "less")
    assert (found.code, one in found.out) == (5, True)
