"""Models that diffuse: copied, split, hashed and compared as they are, and to GGUF and back under their own names."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Raw, Tensors, bf16, save_file as raw_file
from diffusion_models import MODELS, save_model
from gguf_copies import finish
from packed_checkpoints import fp8_values
from products import shown
from safetensors.numpy import load_file, save_file
from safetensors_builder import tensors_of

from ckconv.api import convert, diff, open_model, verify
from ckconv.core.options import Options
from ckconv.errors import CkconvError, UnsupportedError, UsageError
from ckconv.plan.quantizing import Matrix, Picture, pictured

FIXTURES = Path(__file__).parents[1] / "fixtures"
STEM = "diffusion_pytorch_model"
SHAPES = "comfy.gguf.orig_shape."
LAYER = "input_blocks.1.0.emb_layers.1.weight"


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def original(dtype: type) -> dict[str, np.ndarray]:
    """A part of a Flux as its authors have published it."""
    return {
        "double_blocks.0.img_attn.proj.weight": drawn(48, 64).astype(dtype),
        "double_blocks.0.img_attn.proj.bias": drawn(48).astype(dtype),
        "double_blocks.0.img_attn.norm.key_norm.scale": drawn(16).astype(dtype),
        "time_in.in_layer.weight": drawn(8, 16).astype(dtype),
    }


def diffusers(folder: Path) -> Path:
    """The same in two shards, as diffusers saves it."""
    folder.mkdir()
    tensors = {f"transformer_blocks.{n}.attn.to_q.weight": drawn(64, 48 + n) for n in range(3)}
    tensors["transformer_blocks.0.attn.norm_added_k.weight"] = drawn(48)
    names = [f"{STEM}-0000{n}-of-00002.safetensors" for n in (1, 2)]
    shards = dict(zip(names, (list(tensors)[:2], list(tensors)[2:]), strict=True))
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    total = sum(array.nbytes for array in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": {name: f for f, held in shards.items() for name in held}}
    (folder / f"{STEM}.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"_class_name": "FluxTransformer2DModel", "num_layers": 3}))
    return folder


@pytest.mark.parametrize("name", ["wan", "flux 2"])
def test_a_gguf_that_its_programs_would_read_in_part_is_not_split(name: str, tmp_path: Path) -> None:
    architecture, shapes = MODELS[name]
    source = save_model(tmp_path / "source.safetensors", shapes(), "F16")
    convert(source, tmp_path / "m.gguf")

    for path in (source, tmp_path / "m.gguf"):
        with pytest.raises(UnsupportedError, match=r"read one file, and --max-shard-size makes \d+"):
            convert(path, f"{tmp_path}/made/", to="gguf", options=Options(max_shard_bytes=100_000))
    convert(source, f"{tmp_path}/made/", to="gguf", options=Options(max_shard_bytes=1 << 30))
    assert open_model(tmp_path / "made").architecture == architecture


@pytest.mark.parametrize(("limit", "files"), [(0, 1), (20_000, 3)])
def test_shards_of_diffusers_keep_the_name_that_diffusers_looks_for(limit: int, files: int, tmp_path: Path) -> None:
    source = diffusers(tmp_path / "source")

    convert(source, f"{tmp_path / 'made'}/", to="safetensors", options=Options(max_shard_bytes=limit))

    made = sorted(path.name for path in (tmp_path / "made").glob("*.safetensors"))
    assert made == (
        [f"{STEM}.safetensors"]
        if files == 1
        else [f"{STEM}-0000{n + 1}-of-0000{files}.safetensors" for n in range(files)]
    )
    index = tmp_path / "made" / f"{STEM}.safetensors.index.json"
    assert not index.exists() or set(json.loads(index.read_text())["weight_map"].values()) == set(made)
    assert tensors_of(tmp_path / "made") == tensors_of(source)
    assert (tmp_path / "made" / "config.json").read_text() == (source / "config.json").read_text()
    assert diff(source, tmp_path / "made").same
    assert verify(tmp_path / "made", source).tensors == 4


def test_names_of_diffusers_are_refused_for_gguf(tmp_path: Path) -> None:
    with pytest.raises(CkconvError) as caught:
        convert(diffusers(tmp_path / "source"), tmp_path / "made.gguf")

    said = "the source is a model of diffusers (FluxTransformer2DModel), not a language model; its tensors have the"
    assert said in str(caught.value)
    assert (caught.value.code, caught.value.exit_code) == ("plan.refused", 4)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_flux_in_gguf_has_its_names_shapes_and_values(dtype: str, tmp_path: Path) -> None:
    if dtype == "BF16":
        from checkpoints import save

        tensors: Tensors = {name: bf16(array) for name, array in original(np.float32).items()}
        source = save(tmp_path / "source", {}, tensors) / "model.safetensors"
        (source.parent / "config.json").unlink()
    else:
        source = tmp_path / "flux.safetensors"
        save_file(original({"F32": np.float32, "F16": np.float16}[dtype]), source)

    convert(source, tmp_path / "flux.gguf")

    reader = gguf.GGUFReader(tmp_path / "flux.gguf")
    keys = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    numbers = {"F32": 0, "F16": 1, "BF16": 32}
    assert keys == {
        "general.architecture": "flux", "general.file_type": numbers[dtype], "general.quantization_version": 2,
    }  # fmt: skip
    large = "double_blocks.0.img_attn.proj.weight"
    assert {one.name: one.tensor_type.name for one in reader.tensors} == {
        name: dtype if name == large or dtype == "F16" else "F32" for name in original(np.float32)
    }
    for one in reader.tensors:
        wanted = original(np.float32)[one.name]
        values = gguf.dequantize(one.data, one.tensor_type).reshape([int(n) for n in reversed(one.shape)])
        kept = wanted.view(np.uint32) >> 16 << 16
        exact = (
            kept.view(np.float32) if dtype == "BF16" else wanted.astype(np.float16 if dtype == "F16" else np.float32)
        )
        assert np.array_equal(values, exact.astype(np.float32))


def test_a_flux_comes_back_out_of_a_gguf(tmp_path: Path) -> None:
    save_file(original(np.float16), tmp_path / "flux.safetensors")
    convert(tmp_path / "flux.safetensors", tmp_path / "flux.gguf")

    convert(tmp_path / "flux.gguf", tmp_path / "again.safetensors")

    found, wanted = load_file(tmp_path / "again.safetensors"), original(np.float16)
    assert found.keys() == wanted.keys()
    assert all(found[name].dtype == np.float16 and np.array_equal(found[name], wanted[name]) for name in wanted)


def test_the_architecture_follows_from_the_names(tmp_path: Path) -> None:
    held = {
        "blocks.0.self_attn.norm_q.weight": (16,),
        "text_embedding.2.weight": (40, 48),
        "head.modulation": (1, 2, 900),
    }
    save_file({name: drawn(*shape).astype(np.float32) for name, shape in held.items()}, tmp_path / "wan.safetensors")
    convert(tmp_path / "wan.safetensors", tmp_path / "wan.gguf")

    reader = gguf.GGUFReader(tmp_path / "wan.gguf")
    assert reader.fields["general.architecture"].contents() == "wan"
    assert {one.name: [int(n) for n in reversed(one.shape)] for one in reader.tensors} == {
        name: list(shape) for name, shape in held.items()
    }


def test_a_tensor_of_five_axes_is_refused(tmp_path: Path) -> None:
    tensors = original(np.float32) | {"img_in.weight": drawn(8, 4, 1, 2, 2)}
    save_file(tensors, tmp_path / "flux.safetensors")

    with pytest.raises(CkconvError, match=r"tensors of 4 axes at most, and img_in\.weight has 5"):
        convert(tmp_path / "flux.safetensors", tmp_path / "flux.gguf")


RECORDED = [line.split("\t") for line in (FIXTURES / "diffusion" / "converted.tsv").read_text().splitlines()]


@pytest.mark.parametrize("row", shown(RECORDED, lambda row: {*row[:3]}, lambda row: "-".join(row[:2])))
def test_a_gguf_is_what_the_converter_of_comfyui_gguf_makes(row: list[str], tmp_path: Path) -> None:
    name, dtype, architecture, digest = row
    source = save_model(tmp_path / "model.safetensors", MODELS[name][1](), dtype)

    options = Options(dequantize=True, dtype="f16") if dtype == "F8_E4M3" else Options()
    convert(source, tmp_path / "made.gguf", options=options)

    assert architecture == MODELS[name][0]
    assert hashlib.sha256((tmp_path / "made.gguf").read_bytes()).hexdigest() == digest
    held = len(open_model(tmp_path / "made.gguf").tensors)
    assert verify(tmp_path / "made.gguf", source, options=options).tensors == held


@pytest.mark.parametrize("name", MODELS)
def test_shapes_come_back_out_of_a_gguf(name: str, tmp_path: Path) -> None:
    source = save_model(tmp_path / "model.safetensors", MODELS[name][1](), "F16")
    convert(source, tmp_path / "made.gguf")

    convert(tmp_path / "made.gguf", tmp_path / "again.safetensors")

    prefix = "model.diffusion_model."
    wanted = load_file(source)
    own = {key.removeprefix(prefix): array for key, array in wanted.items() if key.startswith(prefix)} or wanted
    found = load_file(tmp_path / "again.safetensors")
    assert found.keys() == own.keys()
    assert all(np.array_equal(found[key], own[key]) and found[key].shape == own[key].shape for key in own)
    assert verify(tmp_path / "again.safetensors", tmp_path / "made.gguf").tensors == len(own)
    assert diff(tmp_path / "made.gguf", tmp_path / "again.safetensors").same
    if own is wanted:
        assert diff(source, tmp_path / "again.safetensors").same


@pytest.mark.parametrize("to", ["mlx", "bump"])
def test_no_other_format_takes_it_for_a_language_model(to: str, tmp_path: Path) -> None:
    source = diffusers(tmp_path / "source")

    with pytest.raises(CkconvError, match=r"a model of diffusers \(FluxTransformer2DModel\), not a language model"):
        convert(source, f"{tmp_path / 'made'}/", to=to)


#: Recipe -> types that a matrix gets of the plain kind, V (the first, the third, the fifth), fused, the feed-forward's
#: output, and in a Qwen-Image of its first block, of its last, and V of that: ``img_tensor_get_type`` of
#: ``tools/lcpp.patch`` in the branch auto_convert of city96's ComfyUI-GGUF.
MIXES = {
    "q8_0": "Q8_0 Q8_0 Q8_0 Q8_0 Q8_0 Q8_0 Q8_0 Q8_0 Q8_0",
    "q4_0": "Q4_0 Q4_0 Q4_0 Q4_0 Q4_0 Q4_1 Q4_0 Q4_0 Q4_0",
    "q5_0": "Q5_0 Q5_0 Q5_0 Q5_0 Q5_0 Q5_1 Q5_0 Q5_0 Q5_0",
    "q2_k": "Q2_K Q3_K Q3_K Q3_K Q2_K Q2_K Q4_K Q4_K Q4_K",
    "q3_k_s": "Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q4_K Q4_K Q4_K",
    "q3_k_m": "Q3_K Q5_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K",
    "q3_k_l": "Q3_K Q5_K Q5_K Q5_K Q4_K Q5_K Q4_K Q4_K Q4_K",
    "q4_k_s": "Q4_K Q5_K Q5_K Q4_K Q4_K Q5_K Q4_K Q4_K Q5_K",
    "q4_k_m": "Q4_K Q6_K Q6_K Q6_K Q5_K Q6_K Q5_K Q5_K Q5_K",
    "q5_k_s": "Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K",
    "q5_k_m": "Q5_K Q6_K Q6_K Q6_K Q6_K Q6_K Q6_K Q6_K Q6_K",
    "q6_k": "Q6_K Q6_K Q6_K Q6_K Q6_K Q6_K Q6_K Q6_K Q6_K",
}


@pytest.mark.parametrize("recipe", MIXES)
def test_the_mix_of_a_recipe_is_that_of_comfyui_gguf(recipe: str) -> None:
    wanted = MIXES[recipe].split()
    names = ["a.to_q.weight", *(f"{n}.attn1.to_v.weight" for n in range(5)), "b.attn.qkv.weight", "c.ff.net.2.weight"]
    matrices = [Matrix(name, (512, 512)) for name in names]

    made, left = pictured(recipe, matrices, {}, Picture((), ()))

    plain, first, _, third, _, fifth, fused, down = (made[name].name for name in names)
    assert ([plain, first, third, fifth, fused, down], left) == (wanted[:6], {})
    ends = ["transformer_blocks.0.attn.to_q.weight", "transformer_blocks.59.attn.to_q.weight"]
    ends.append("transformer_blocks.0.attn.to_v.weight")
    made, _ = pictured(recipe, [Matrix(n, (512, 512)) for n in ends], {}, Picture((), ("blocks.0.", "blocks.59.")))
    found = [made[name].name for name in ends]
    assert found == wanted[6:] or recipe == "q4_k_s", "V counts by itself where the ends have nothing of their own"


@pytest.mark.parametrize(("name", "count"), [("sdxl", 258), ("flux 2", 12), ("qwen-image", 28), ("wan", 10)])
def test_a_quantized_model_keeps_as_floats_what_comfyui_gguf_keeps(name: str, count: int, tmp_path: Path) -> None:
    source = save_model(tmp_path / "model.safetensors", MODELS[name][1](), "BF16")
    options = Options(quantize="q8_0")
    convert(source, tmp_path / "made.gguf", options=options)

    made = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "made.gguf").tensors}
    stays = {
        "sdxl": r"time_embed\.|label_emb\.|^(input_blocks\.0\.0|out\.2)\.weight$",
        "flux 2": r"_in\.|final_layer\.|_modulation",
        "qwen-image": r"img_in\.|txt_in\.|time_text_embed\.|proj_out\.|norm_out\.",
        "wan": r"modulation|patch_embedding|text_embedding|time_|head\.",
    }[name]
    blocks = {key for key, tensor in made.items() if tensor.tensor_type.name == "Q8_0"}
    wide = {key for key, tensor in made.items() if sum(length > 1 for length in tensor.shape) == 2}
    assert blocks == {key for key in wide if key.endswith("weight") and not re.search(stays, key)}
    assert len(blocks) == count
    assert verify(tmp_path / "made.gguf", source, options=options).tensors == len(made)


@pytest.mark.parametrize(("name", "recipe"), [("sdxl", "q8_0"), ("qwen-image", "q4_k_m"), ("wan", "q5_0")])
def test_a_gguf_of_floats_becomes_the_blocks_that_its_source_becomes(name: str, recipe: str, tmp_path: Path) -> None:
    source = save_model(tmp_path / "model.safetensors", MODELS[name][1](), "F16")
    convert(source, tmp_path / "floats.gguf")

    convert(source, tmp_path / "direct.gguf", options=Options(quantize=recipe))
    convert(tmp_path / "floats.gguf", tmp_path / "again.gguf", options=Options(quantize=recipe))

    direct, again = (gguf.GGUFReader(tmp_path / f"{stem}.gguf") for stem in ("direct", "again"))
    assert [(t.name, t.tensor_type, *t.shape) for t in direct.tensors] == [
        (t.name, t.tensor_type, *t.shape) for t in again.tensors
    ]
    assert all(np.array_equal(one.data, two.data) for one, two in zip(direct.tensors, again.tensors, strict=True))
    said = ({key: field.contents() for key, field in it.fields.items()} for it in (direct, again))
    assert next(said) == next(said)


def test_rows_that_are_no_whole_blocks_stay_floats(tmp_path: Path) -> None:
    save_file(original(np.float16), tmp_path / "flux.safetensors")

    done = convert(tmp_path / "flux.safetensors", tmp_path / "flux.gguf", options=Options(quantize="q4_k_m"))

    said = "rows that are not whole blocks of 256 stay floats: double_blocks.0.img_attn.proj.weight (1 tensor)"
    assert said in done.plan.notes
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "flux.gguf").tensors}
    assert types["double_blocks.0.img_attn.proj.weight"] == "F16"


@pytest.mark.parametrize("word", ["iq4_xs", "tq2_0", "mxfp4", "q8_0,*=iq3_s"])
def test_types_that_comfyui_gguf_does_not_make_are_refused(word: str, tmp_path: Path) -> None:
    save_file(original(np.float32), tmp_path / "flux.safetensors")

    with pytest.raises(UsageError, match=r"makes no .* of a model that diffuses"):
        convert(tmp_path / "flux.safetensors", tmp_path / "flux.gguf", options=Options(quantize=word))


@pytest.mark.parametrize("scale", ["proj_scale", "proj.weight.scale", "proj.weight_scale.max"])
def test_fp8_whose_scale_is_called_otherwise_is_not_taken_for_values(scale: str, tmp_path: Path) -> None:
    matrix = "double_blocks.0.img_attn.proj.weight"
    held: Tensors = {name: bf16(array) for name, array in original(np.float32).items()}
    held[matrix] = Raw("F8_E4M3", (48, 64), bytes(48 * 64))
    held[f"double_blocks.0.img_attn.{scale}"] = np.array(0.3, np.float32)
    source = raw_file(tmp_path / "flux.safetensors", held)

    for drop in ((), ("*scale*",)):
        with pytest.raises(CkconvError, match=f"llama.cpp loads no F8_E4M3 here: {matrix}"):
            convert(source, tmp_path / "m.gguf", options=Options(dequantize=True, drop=drop))
    convert(source, f"{tmp_path / 'copy'}/", to="safetensors", options=Options(dequantize=True))

    assert tensors_of(tmp_path / "copy")[matrix][0] == "F8_E4M3"


@pytest.mark.parametrize(("kind", "stored"), [("float8_e4m3fn", "F8_E4M3"), ("nvfp4", "U8"), ("int8_tensorwise", "I8")])
def test_a_matrix_that_lost_the_scale_of_its_format_is_named_and_copied(kind: str, stored: str, tmp_path: Path) -> None:
    matrix = "double_blocks.0.img_attn.proj"
    held: Tensors = {name: bf16(array) for name, array in original(np.float32).items()}
    held[f"{matrix}.weight"] = Raw(
        stored, (48, 32 if kind == "nvfp4" else 64), bytes(48 * (32 if kind == "nvfp4" else 64))
    )
    said = {"_quantization_metadata": json.dumps({"layers": {matrix: {"format": kind}}})}
    source = raw_file(tmp_path / "flux.safetensors", held, said)

    for target in ("m.gguf", "m.safetensors"):
        with pytest.raises(CkconvError, match=f"ComfyUI's {kind} without weight_scale: {matrix}"):
            convert(source, tmp_path / target, options=Options(dequantize=True))
    convert(source, tmp_path / "copy.safetensors")
    assert diff(source, tmp_path / "copy.safetensors").same


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("target", ["gguf", "safetensors"])
def test_fp8_with_scales_becomes_the_products(prefix: str, target: str, tmp_path: Path) -> None:
    matrix, codes = "double_blocks.0.img_attn.proj", np.arange(48 * 64, dtype=np.uint8) % 127
    held: Tensors = {f"{prefix}{name}": bf16(array) for name, array in original(np.float32).items()}
    held[f"{prefix}{matrix}.weight"] = Raw("F8_E4M3", (48, 64), codes.tobytes())
    held |= {f"{prefix}{matrix}.{name}": np.array(0.3, np.float32) for name in ("scale_weight", "scale_input")}
    held[f"{prefix}scaled_fp8"] = Raw("F8_E4M3", (2,), bytes(2))
    source = raw_file(tmp_path / "flux.safetensors", held)
    with pytest.raises(CkconvError, match="a scale that is not a power of two"):
        convert(source, tmp_path / "refused.gguf")

    convert(source, f"{tmp_path / 'out'}/", to=target, options=Options(dequantize=True))

    values = fp8_values()[codes].astype(np.float32).reshape(48, 64) * np.float32(0.3)
    if target == "gguf":
        made = {it.name: it.data.tobytes() for it in gguf.GGUFReader(tmp_path / "out" / "model.gguf").tensors}
    else:
        made = {name.removeprefix(prefix): data for name, (*_, data) in tensors_of(tmp_path / "out").items()}
    assert made[f"{matrix}.weight"] == values.tobytes()
    assert made.keys() == original(np.float32).keys(), "neither scales nor the marker"


@pytest.mark.parametrize("said", ["header", "old"])
@pytest.mark.parametrize("target", ["gguf", "safetensors"])
def test_fp8_of_a_convolution_has_a_scale_of_all_its_axes(said: str, target: str, tmp_path: Path) -> None:
    """``[O, 1, 1, 1]``: what torch broadcasts over a convolution."""
    held: Tensors = {name: np.zeros(shape, np.float16) for name, shape in MODELS["sdxl"][1]().items()}
    name, shape = next(it for it in MODELS["sdxl"][1]().items() if len(it[1]) == 4 and it[1][2] == 3)
    module = name.removesuffix(".weight")
    codes = np.arange(math.prod(shape), dtype=np.uint64).astype(np.uint8) % 127
    held[name] = Raw("F8_E4M3", shape, codes.tobytes())
    scale = np.linspace(0.1, 0.7, shape[0], dtype=np.float32).reshape(-1, 1, 1, 1)
    held[f"{module}.{'weight_scale' if said == 'header' else 'scale_weight'}"] = scale
    header = {"_quantization_metadata": json.dumps({"layers": {module: {"format": "float8_e4m3fn"}}})}
    source = raw_file(tmp_path / "model.safetensors", held, header if said == "header" else {})

    convert(source, f"{tmp_path / 'out'}/", to=target, options=Options(dequantize=True))

    values = (fp8_values()[codes].astype(np.float32).reshape(shape) * scale).tobytes()
    if target == "gguf":
        made = {it.name: it.data.tobytes() for it in gguf.GGUFReader(tmp_path / "out" / "model.gguf").tensors}
    else:
        made = {key: data for key, (*_, data) in tensors_of(tmp_path / "out").items()}
    assert values in made.values()


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"format": "int8_tensorwise", "convrot": True}, "int8_tensorwise of rotated matrices"),
        ({"format": "int8_tensorwise", "params": {"convrot": True}}, "int8_tensorwise of rotated matrices"),
        ({"format": "convrot_w4a4"}, "ComfyUI's convrot_w4a4"),
        ({"format": "asym_w4a8_int8"}, "ComfyUI's asym_w4a8_int8"),
    ],
)
def test_matrices_of_comfyui_that_no_product_gives_are_named_and_copied(
    said: dict[str, Any], named: str, tmp_path: Path
) -> None:
    held: Tensors = dict(original(np.float32))
    held["double_blocks.0.img_attn.proj.weight"] = np.zeros((48, 64), np.int8)
    held["double_blocks.0.img_attn.proj.weight_scale"] = np.ones((48, 1), np.float32)
    held["double_blocks.0.img_attn.proj.comfy_quant"] = np.frombuffer(json.dumps(said).encode(), np.uint8)
    source = raw_file(tmp_path / "flux.safetensors", held)

    for target in ("made.gguf", "made.safetensors"):
        with pytest.raises(CkconvError, match=named):
            convert(source, tmp_path / target, options=Options(dequantize=True))
    convert(source, tmp_path / "copy.safetensors")
    assert diff(source, tmp_path / "copy.safetensors").same


def test_a_gguf_of_nothing_is_not_made(tmp_path: Path) -> None:
    save_file(original(np.float32), tmp_path / "flux.safetensors")

    with pytest.raises(CkconvError, match="no tensor of flux would be in it"):
        convert(tmp_path / "flux.safetensors", tmp_path / "flux.gguf", options=Options(drop=("*",)))


@pytest.mark.parametrize("name", ["sdxl", "sd1.5 with VAE and text encoder"])
def test_a_source_record_brings_the_file_back_with_all_that_was_beside_the_model(name: str, tmp_path: Path) -> None:
    source = save_model(tmp_path / "model.safetensors", MODELS[name][1](), "F16")
    convert(source, tmp_path / "made.gguf", options=Options(source_record="always"))

    convert(tmp_path / "made.gguf", f"{tmp_path / 'again'}/", to="safetensors")

    assert (tmp_path / "again" / "model.safetensors").read_bytes() == source.read_bytes()


def of_blocks(path: Path, shape: tuple[int, ...], key: object = ()) -> np.ndarray:
    """A GGUF of an SD 1.5 with one matrix in Q8_0, cut into rows of 256; its values are given back."""
    writer = gguf.GGUFWriter(path, "sd1")
    if key is not None:
        said = key or shape
        writer.add_array(f"{SHAPES}{LAYER}", said)
    blocks = gguf.quantize(drawn(math.prod(shape) // 256, 256), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("input_blocks.1.0.emb_layers.1.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    finish(writer, path)
    return gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0).reshape(shape)


def test_blocks_that_run_over_rows_are_decoded_to_the_shape_that_a_key_says(tmp_path: Path) -> None:
    wanted = of_blocks(tmp_path / "sd.gguf", (64, 24, 2, 2))

    with pytest.raises(CkconvError, match="a diffusion model, not a language model") as caught:
        convert(tmp_path / "sd.gguf", tmp_path / "sd.safetensors")
    assert caught.value.hint == "--to safetensors --dequantize decodes its values"
    convert(tmp_path / "sd.gguf", tmp_path / "sd.safetensors", options=Options(dequantize=True))
    convert(tmp_path / "sd.gguf", tmp_path / "copy.gguf")

    (found,) = load_file(tmp_path / "sd.safetensors").values()
    assert found.shape == wanted.shape
    assert np.array_equal(found, wanted)
    assert verify(tmp_path / "sd.safetensors", tmp_path / "sd.gguf").tensors == 1
    assert diff(tmp_path / "sd.gguf", tmp_path / "sd.safetensors").equal == 1
    assert (tmp_path / "copy.gguf").read_bytes() == (tmp_path / "sd.gguf").read_bytes()


@pytest.mark.parametrize("source", ["sd.safetensors", "sd.gguf"])
@pytest.mark.parametrize("asked", [{"drop_meta": (f"{SHAPES}*",)}, {"set_meta": ((f"{SHAPES}{LAYER}", "[6144]"),)}])
def test_shapes_that_a_gguf_has_of_tensors_stay_in_it(asked: dict[str, Any], source: str, tmp_path: Path) -> None:
    save_model(tmp_path / "sd.safetensors", MODELS["sd1.5"][1](), "F16")
    convert(tmp_path / "sd.safetensors", tmp_path / "sd.gguf")

    with pytest.raises(UsageError, match=re.escape(SHAPES)):
        convert(tmp_path / source, tmp_path / "out.gguf", options=Options(**asked))
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ([64, 24, 2], "is [64, 24, 2]"),
        ([0, 64], "is [0, 64]"),
        ([6144.0], "is no list of i32"),
        ([-64, -96], "is [-64"),
    ],
)
def test_a_shape_of_other_elements_is_malformed(key: list[float], said: str, tmp_path: Path) -> None:
    of_blocks(tmp_path / "sd.gguf", (64, 24, 2, 2), key)

    with pytest.raises(CkconvError) as caught:
        open_model(tmp_path / "sd.gguf")

    assert (caught.value.code, caught.value.exit_code) == ("gguf.shape", 3)
    assert said in caught.value.message
    assert "and the tensor has 6,144 elements" in caught.value.message


def test_a_control_net_is_no_model_that_diffuses_by_itself(tmp_path: Path) -> None:
    shapes = MODELS["sd1.5 of diffusers"][1]() | {"controlnet_cond_embedding.conv_in.weight": (8, 3, 3, 3)}
    source = save_model(tmp_path / "net.safetensors", shapes, "F16")

    with pytest.raises(CkconvError, match="a diffusion model, not a language model"):
        convert(source, tmp_path / "net.gguf")


@pytest.mark.parametrize("prefix", ["model.diffusion_model.", "model.", "net."])
def test_names_lose_the_prefix_of_the_file_that_they_are_in(prefix: str, tmp_path: Path) -> None:
    save_file({f"{prefix}{name}": array for name, array in original(np.float16).items()}, tmp_path / "a.safetensors")
    save_file(original(np.float16), tmp_path / "b.safetensors")

    convert(tmp_path / "a.safetensors", tmp_path / "a.gguf")
    convert(tmp_path / "b.safetensors", tmp_path / "b.gguf")

    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert verify(tmp_path / "a.gguf", tmp_path / "a.safetensors").tensors == 4


def test_a_pipeline_is_named_part_by_part_and_each_converts(tmp_path: Path) -> None:
    diffusers(tmp_path / "unet").rename(tmp_path / "transformer")
    for part, file in (("vae", "model.safetensors"), ("text_encoder", "pytorch_model.bin"), ("scheduler", "s.json")):
        (tmp_path / part).mkdir()
        (tmp_path / part / file).write_bytes(b"")
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))

    with pytest.raises(CkconvError) as caught:
        open_model(tmp_path)
    assert caught.value.code == "input.format"
    assert "holds 3 models: 'transformer', 'vae', 'text_encoder'" in caught.value.message

    convert(tmp_path / "transformer", f"{tmp_path / 'made'}/", to="safetensors")
    assert diff(tmp_path / "transformer", tmp_path / "made").same


@pytest.mark.product("values")
@pytest.mark.parametrize("number", ["", "_2"])
@pytest.mark.parametrize("target", ["gguf", "safetensors", "mlx"])
def test_a_text_encoder_takes_the_tokenizer_of_its_pipeline(target: str, number: str, tmp_path: Path) -> None:
    pipeline, whole = tmp_path / "pipeline", tmp_path / f"text_encoder{number}"
    shutil.copytree(FIXTURES / "hf" / "qwen2-tied-bf16", whole)
    source, words = pipeline / whole.name, pipeline / f"tokenizer{number}"
    shutil.copytree(whole, source)
    words.mkdir()
    for file in source.glob("*token*"):
        file.rename(words / file.name)
    (pipeline / "model_index.json").write_text("{}")

    made = convert(source, f"{tmp_path / 'made'}/", to=target)
    convert(whole, f"{tmp_path / 'expected'}/", to=target)

    (said,) = [note for note in made.plan.notes if "tokenizer" in note]
    assert said.startswith("the tokenizer is that of the pipeline, in ")
    made_files, expected = (
        {it.name: it.read_bytes() for it in (tmp_path / name).iterdir()} for name in ("made", "expected")
    )
    assert made_files == expected
    for file in words.iterdir():
        shutil.copy(file, source)
    assert not [note for note in convert(source, f"{tmp_path / 'own'}/", to=target).plan.notes if "pipeline" in note]
