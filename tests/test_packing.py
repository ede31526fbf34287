"""Blocks of a GGUF and triples of MLX as packed checkpoints: the arrays that the quantizers' own libraries wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import Decoder, save
from packed_checkpoints import arrays_of, awq_model, compressed_model, gptq_model, model, torchao_model
from test_packed_floats import DECODER, MODELOPT, Made, compressed, floats, mxfp4, nvfp4

LIBRARY = {
    "modelopt-nvfp4": ("modelopt", "input_scale"),
    "ct-mxfp4": ("compressed-tensors", "?"),
    "ct-w4-g32-sym": ("compressed-tensors", "?"),
}


def weights(directory: Path, besides: str = "input_scale") -> dict[str, Any]:
    """The arrays of packed matrices."""
    return {k: v for k, v in arrays_of(directory).items() if "_proj." in k and not k.endswith(besides)}


def quantized(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "config.json").read_text())["quantization_config"]
    return found


@pytest.mark.parametrize("name", LIBRARY)
def test_a_gguf_of_a_packed_checkpoint_becomes_the_arrays_that_its_library_wrote(
    tmp_path: Path, ckconv, fixtures: Path, name: str
) -> None:
    layout, besides = LIBRARY[name]
    source = fixtures / "quantised" / name
    assert ckconv("convert", source, tmp_path / "m.gguf", "--tensor-scales").code == 0
    result = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "hf", "--pack", layout)
    assert result.code == 0, result.err

    expected = weights(source, besides)
    assert len(expected) >= 28
    assert weights(tmp_path / "back") == expected
    said, theirs = quantized(tmp_path / "back"), quantized(source)
    assert said["quant_method"] == theirs["quant_method"]
    assert (said.get("format"), said["ignore"]) == (theirs.get("format"), theirs["ignore"])
    ours, other = (it["config_groups"]["group_0"]["weights"] for it in (said, theirs))
    assert ours == other
    assert ckconv("verify", tmp_path / "back", tmp_path / "m.gguf").code == 0


@pytest.mark.parametrize(("quantizer", "layout"), [("nvfp4", "modelopt"), ("mxfp4", "compressed-tensors")])
def test_mlx_and_packed_checkpoints_have_the_same_codes_and_scales(
    tmp_path: Path, ckconv, fixtures: Path, quantizer: str, layout: str
) -> None:
    source = fixtures / "hf" / "qwen3-tied-bf16"
    types = f"{quantizer},token_embedding.weight=bf16"
    assert ckconv("convert", source, f"{tmp_path}/mlx/", "--to", "mlx", "--quantize", types).code == 0
    result = ckconv("convert", tmp_path / "mlx", f"{tmp_path}/packed/", "--to", "hf", "--pack", layout)
    assert result.code == 0, result.err
    made, given = arrays_of(tmp_path / "packed"), arrays_of(tmp_path / "mlx")
    codes = ".weight" if layout == "modelopt" else ".weight_packed"
    modules = [name.removesuffix(".scales") for name in given if name.endswith(".scales")]
    assert len(modules) == 14
    for module in modules:
        assert made[module + codes].data == given[f"{module}.weight"].data
        assert made[f"{module}.weight_scale"].data == given[f"{module}.scales"].data
    assert ckconv("diff", "--weights", tmp_path / "mlx", tmp_path / "packed").code == 0


@pytest.mark.parametrize("decoded", [[], ["--decode", "*_exps*"]])
def test_experts_one_by_one_are_no_part_of_a_packed_checkpoint(tmp_path: Path, ckconv, decoded: list[str]) -> None:
    """transformers 5.23 with compressed-tensors 0.20 loads neither packed experts nor those that are floats."""
    made = Decoder(layers=1, hidden=64, ffn=64, experts=4, qk_norm=True)
    source = save(tmp_path / "hf", made.config("qwen3_moe", norm_topk_prob=True), made.tensors())
    types = "q8_0,token_embedding.weight=f32,output.weight=f32"
    assert ckconv("convert", source, tmp_path / "m.gguf", "--quantize", types).code == 0
    pack = ["--to", "hf", "--pack", "compressed-tensors", *decoded]
    result = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/packed/", *pack)
    assert result.code == 4
    assert (
        "transformers makes one tensor of a layer's experts, and does not in a checkpoint that is packed" in result.err
    )
    assert ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/dense/", "--to", "hf", "--dequantize").code == 0


@pytest.mark.parametrize("factor", [1, 0.25, 2.0**40])
def test_a_power_of_two_is_divided_by_as_exactly_as_it_is_multiplied_with(
    tmp_path: Path, ckconv, factor: float
) -> None:
    model(tmp_path / "one", DECODER, partial(nvfp4, divided=False, factor=factor), MODELOPT)
    model(
        tmp_path / "other", DECODER, partial(nvfp4, divided=True, factor=1 / factor), compressed("nvfp4-pack-quantized")
    )
    one, other = weights(tmp_path / "one"), weights(tmp_path / "other", "input_global_scale")
    assert ckconv("convert", tmp_path / "one", tmp_path / "m.gguf", "--tensor-scales").code == 0
    for source, layout, expected in (("m.gguf", "modelopt", one), ("other", "modelopt", one), ("one", "ct", None)):
        flag = "compressed-tensors" if layout == "ct" else layout
        result = ckconv("convert", tmp_path / source, f"{tmp_path}/{source}.{layout}/", "--to", "hf", "--pack", flag)
        assert result.code == 0, result.err
        made = weights(tmp_path / f"{source}.{layout}")
        if expected is not None and source == "m.gguf":
            assert made == expected
        scales = {name: raw.data for name, raw in made.items() if name.endswith(("scale_2", "global_scale"))}
        wanted = np.float32(1 / factor if layout == "ct" else factor).tobytes()
        assert set(scales.values()) == {wanted}
    divided = weights(tmp_path / "one.ct")
    names = {name for name in divided if not name.endswith(".weight_packed")}
    assert {name for name in other if not name.endswith(".weight_packed")} == names
    form = quantized(tmp_path / "one.ct")
    assert (form["format"], form["ignore"]) == ("nvfp4-pack-quantized", ["lm_head"])


def test_a_layout_that_a_checkpoint_has_already_is_copied(tmp_path: Path, ckconv, fixtures: Path) -> None:
    source = fixtures / "quantised" / "ct-nvfp4"
    result = ckconv("convert", source, f"{tmp_path}/copy/", "--to", "hf", "--pack", "compressed-tensors")
    assert result.code == 0, result.err
    assert arrays_of(tmp_path / "copy") == arrays_of(source)


def test_scales_that_have_no_exact_inverse_are_refused_and_the_other_layout_named(
    tmp_path: Path, ckconv, fixtures: Path
) -> None:
    source = fixtures / "quantised" / "ct-nvfp4"
    refused = ckconv("convert", source, f"{tmp_path}/a/", "--to", "hf", "--pack", "modelopt")
    assert (refused.code, "only a power of two has an exact inverse" in refused.err) == (4, True)
    assert "and 13 more" in refused.err
    assert "--pack compressed-tensors writes it as it is" in refused.err
    model(tmp_path / "b", DECODER, partial(nvfp4, divided=False, factor=0.75), MODELOPT)
    refused = ckconv("convert", tmp_path / "b", f"{tmp_path}/c/", "--to", "hf", "--pack", "compressed-tensors")
    assert (refused.code, "--pack modelopt writes it as it is" in refused.err) == (4, True)


def test_scales_that_ggml_reads_as_no_number_stop_it(tmp_path: Path, ckconv) -> None:
    def spoiled(module: str, shape: tuple[int, int], seed: int) -> Made:
        tensors, values = mxfp4(module, shape, seed)
        scales = tensors[f"{module}.weight_scale"]
        assert isinstance(scales, np.ndarray)
        scales[0, 0] = 255
        return tensors, values

    model(tmp_path / "packed", DECODER, spoiled, compressed("mxfp4-pack-quantized"))
    assert ckconv("convert", tmp_path / "packed", f"{tmp_path}/mlx/", "--to", "mlx").code == 4


def test_what_a_layout_has_no_place_for_is_refused_with_the_flag_that_decodes_it(
    tmp_path: Path, ckconv, fixtures: Path
) -> None:
    source = fixtures / "hf" / "qwen3-tied-bf16"
    assert ckconv("convert", source, tmp_path / "m.gguf", "--quantize", "q8_0").code == 0
    pack = ("--to", "hf", "--pack", "compressed-tensors")
    result = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/a/", *pack)
    assert (result.code, "packs linear layers, and this is the embedding: token_embd.weight" in result.err) == (4, True)
    result = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/a/", *pack, "--decode", "token_embd.weight")
    assert result.code == 0, result.err
    assert quantized(tmp_path / "a")["config_groups"]["group_0"]["weights"]["num_bits"] == 8
    result = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/b/", "--to", "hf", "--pack", "modelopt")
    assert "modelopt has no type for the numbers of Q8_0" in result.err
    assert "--pack compressed-tensors keeps it" in result.err

    result = ckconv("convert", fixtures / "kquants" / "llama64.Q4_K_M.gguf", f"{tmp_path}/c/", *pack)
    assert (result.code, "compressed-tensors has no type for the numbers of Q5_0" in result.err) == (4, True)
    assert ckconv("convert", source, tmp_path / "n.gguf", "--pack", "modelopt").code == 2


def test_types_of_several_kinds_are_groups_that_name_their_modules(tmp_path: Path, ckconv, fixtures: Path) -> None:
    source, types = fixtures / "hf" / "qwen3-tied-bf16", "q8_0,*ffn*=mxfp4,token_embedding.weight=bf16"
    assert ckconv("convert", source, tmp_path / "m.gguf", "--quantize", types).code == 0
    result = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/packed/", "--to", "hf", "--pack", "compressed-tensors")
    assert result.code == 0, result.err
    said = quantized(tmp_path / "packed")
    targets = {group["format"]: group["targets"] for group in said["config_groups"].values()}
    assert said["format"] == "mixed-precision"
    assert {form: len(modules) for form, modules in targets.items()} == {
        "mxfp4-pack-quantized": 6,
        "pack-quantized": 8,
    }
    assert "model.layers.1.mlp.up_proj" in targets["mxfp4-pack-quantized"]
    assert ckconv("diff", "--weights", tmp_path / "m.gguf", tmp_path / "packed").code == 0


@pytest.mark.parametrize("family", ["gpt2-hub-f32", "phi3-bf16"])
def test_matrices_are_packed_where_the_class_has_linear_layers(
    tmp_path: Path, ckconv, fixtures: Path, family: str
) -> None:
    source = fixtures / "hf" / family
    assert ckconv("convert", source, tmp_path / "m.gguf", "--quantize", "q8_0,token_embedding.weight=f32").code == 0
    result = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/packed/", "--to", "hf", "--pack", "compressed-tensors")
    if family == "gpt2-hub-f32":
        assert "its class does not store it as the matrix [out, in] of a linear layer" in result.err
        return
    assert result.code == 0, result.err
    assert ckconv("diff", "--weights", tmp_path / "m.gguf", tmp_path / "packed").code == 0


def test_zero_points_that_the_library_wrote_come_back_out_of_triples(tmp_path: Path, ckconv, fixtures: Path) -> None:
    source = fixtures / "quantised" / "ct-w4-g32-asym"
    assert ckconv("convert", source, f"{tmp_path}/mlx/", "--to", "mlx").code == 0
    pack = ("--to", "hf", "--pack", "compressed-tensors", "--dtype", "bf16")
    result = ckconv("convert", tmp_path / "mlx", f"{tmp_path}/back/", *pack)
    assert result.code == 0, result.err

    expected = weights(source, "?")
    assert len(expected) == 4 * 14
    assert weights(tmp_path / "back", "?") == expected
    ours, other = (quantized(it)["config_groups"]["group_0"]["weights"] for it in (tmp_path / "back", source))
    assert ours == other


#: A model and its way to a checkpoint, and what compressed-tensors makes of the same numbers.
ZEROS: dict[str, tuple[Callable[..., Any], str, dict[str, Any]]] = {
    "AWQ": (partial(awq_model, group=64), "", {"group": 64, "symmetric": False}),
    "AWQ as triples": (awq_model, "mlx", {"symmetric": False}),
    "GPTQ, the middle zero point": (partial(gptq_model, symmetric=True, group=64), "", {"group": 64}),
    "the same as triples": (partial(gptq_model, symmetric=True, version=2), "mlx", {}),
    "8 bits": (
        partial(gptq_model, bits=8, version=2), "", {"bits": 8, "symmetric": False},
    ),
    "8 bits, the middle one, as triples": (partial(gptq_model, bits=8, symmetric=True), "mlx", {"bits": 8}),
    "blocks of Q4_1": (
        partial(compressed_model, symmetric=False, coarse=True), "gguf", {"symmetric": False, "coarse": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ZEROS)
def test_integers_with_zero_points_are_packed_as_the_same_numbers(tmp_path: Path, ckconv, name: str) -> None:
    make, through, same = ZEROS[name]
    decoder = Decoder(layers=1, hidden=128, ffn=256, head_dim=32, kv_heads=4)
    values = make(tmp_path / "source", decoder)
    compressed_model(tmp_path / "expected", decoder, **same)
    source = tmp_path / "source"
    if through:
        source = tmp_path / ("m.gguf" if through == "gguf" else "mlx")
        assert ckconv("convert", tmp_path / "source", f"{source}{'/' * (through == 'mlx')}", "--to", through).code == 0
    result = ckconv("convert", source, f"{tmp_path}/packed/", "--to", "hf", "--pack", "compressed-tensors")
    assert result.code == 0, result.err

    made, expected = weights(tmp_path / "packed", "?"), weights(tmp_path / "expected", "?")
    assert made.keys() == expected.keys()
    assert len(made) == 7 * (4 if "symmetric" in same else 3)
    for array, raw in expected.items():
        if array.endswith("weight_scale"):  # bfloat16 in one, float16 or float32 in the other
            assert made[array].shape == raw.shape
        else:
            assert made[array] == raw, array
    flags = ("--to", "safetensors", "--dequantize", "--dtype", "f32")
    assert ckconv("convert", tmp_path / "packed", f"{tmp_path}/dense/", *flags).code == 0
    dense = floats(tmp_path / "dense")
    assert len(dense) == 7
    for matrix, found in dense.items():
        assert np.array_equal(found, values[matrix]), matrix
    assert ckconv("verify", tmp_path / "packed", source).code == 0


def test_biases_that_are_no_zero_points_are_refused_and_counted(tmp_path: Path, ckconv, fixtures: Path) -> None:
    source, types = fixtures / "hf" / "qwen3-tied-bf16", "affine:4:32,token_embedding.weight=bf16"
    assert ckconv("convert", source, f"{tmp_path}/mlx/", "--to", "mlx", "--quantize", types).code == 0
    result = ckconv("convert", tmp_path / "mlx", f"{tmp_path}/a/", "--to", "hf", "--pack", "compressed-tensors")
    assert (result.code, "1,135 groups have a bias that is not a code times their scale" in result.err) == (4, True)
    assert "model.layers.0.mlp.down_proj.weight and 13 more" in result.err


def test_rows_that_fill_no_word_of_zero_points_are_refused(tmp_path: Path, ckconv) -> None:
    decoder = Decoder(layers=1, hidden=128, ffn=128, head_dim=4, kv_heads=1, heads=32)
    compressed_model(tmp_path / "source", decoder, symmetric=False)
    assert ckconv("convert", tmp_path / "source", f"{tmp_path}/mlx/", "--to", "mlx").code == 0
    result = ckconv("convert", tmp_path / "mlx", f"{tmp_path}/a/", "--to", "hf", "--pack", "compressed-tensors")
    assert (result.code, "zero points of 8 rows in a word, and the rows are no multiple of that" in result.err) == (
        4,
        True,
    )


@pytest.mark.parametrize("one", [True, False], ids=["one scale", "each its own"])
def test_scales_of_scales_of_what_vllm_computes_as_one(tmp_path: Path, ckconv, one: bool) -> None:
    """It takes the largest of those of q, k and v (``process_weights_after_loading``)."""

    def packed(module: str, shape: tuple[int, int], seed: int) -> Made:
        own = 0.5 if one or not module.endswith(("k_proj", "gate_proj")) else 0.25
        return nvfp4(module, shape, seed, divided=False, factor=own)

    model(tmp_path / "source", DECODER, packed, MODELOPT)
    assert ckconv("convert", tmp_path / "source", tmp_path / "m.gguf", "--tensor-scales").code == 0
    for layout, code in (("compressed-tensors", 0), ("modelopt", 0 if one else 4)):
        result = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/{layout}/", "--to", "hf", "--pack", layout)
        assert result.code == code, result.err
        said = "the largest scale of scales of q, k and v" in result.out + result.err
        assert said != one
        assert ("in 2 places" in result.out + result.err) != one


def test_codes_that_are_the_same_type_to_two_quantizers_change_hands(tmp_path: Path, ckconv) -> None:
    torchao_model(tmp_path / "torchao", Decoder(layers=1, hidden=64, ffn=160), wide=True)
    done = ckconv("convert", tmp_path / "torchao", f"{tmp_path}/packed/", "--to", "hf", "--pack", "compressed-tensors")
    assert done.code == 0, done.err
    assert ckconv("diff", "--weights", tmp_path / "torchao", tmp_path / "packed").code == 0


@pytest.mark.parametrize("flags", [[], ["--dequantize"]])
@pytest.mark.parametrize("layout", ["compressed-tensors", "modelopt"])
def test_a_layout_that_nothing_is_written_in_is_said(layout: str, flags: list[str], fixtures: Path, ckconv) -> None:
    asked = ("--to", "hf", "--pack", layout, "--dry-run", *flags)
    said = f"note: --pack {layout} packs nothing: all matrices of the output are floats"
    found = ckconv("convert", fixtures / "hf" / "llama-tied-bf16", "out/", *asked)
    assert (found.code, said in found.out) == (0, True), found.out + found.err
    blocks = ckconv("convert", fixtures / "kquants" / "llama64.Q4_K_M.gguf", "out/", *asked)
    assert (said in blocks.out) == bool(flags)
