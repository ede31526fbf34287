"""``--quantize`` to MLX's triples: the bytes that ``mlx.core.quantize`` gives, in the modules that mlx-lm quantizes.

Where mlx is not installed, digests that scripts/record_mlx_quantize.py recorded stand for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import Decoder, as_mixtral, bf16, save
from conftest import FIXTURES, Result
from family_cases import cases, checkpoint as checkpoint_of
from mlx_cases import CASES, by_mlx, digest, weights
from safetensors_builder import tensors_of

import ckconv
from ckconv import Options
from ckconv.core.layouts import DTYPES
from ckconv.errors import UnsupportedError, UsageError
from ckconv.quant.convert import planes_of
from ckconv.quant.mlx import Quantization, Triple

RECORDED = Path(__file__).parent / "mlx_quantised.json"


def ours(name: str) -> tuple[np.ndarray, ...]:
    number, mode, bits, group = CASES[name]
    dtype = DTYPES[number]
    triple = Triple(Quantization(mode, bits, group), dtype if mode == "affine" else DTYPES["BF16"])
    return planes_of(weights(number), triple, dtype)


@pytest.mark.parametrize("name", CASES)
def test_every_byte_is_as_recorded_from_mlx(name: str) -> None:
    assert digest(ours(name)) == json.loads(RECORDED.read_text())[name]


@pytest.mark.parametrize("name", CASES)
def test_every_byte_is_mlxs(name: str) -> None:
    pytest.importorskip("mlx.core")
    for mine, theirs in zip(ours(name), by_mlx(name), strict=True):
        assert np.array_equal(mine, theirs)


def by_mlx_lm(dense: Path, target: Path, bits: int, group: int, mode: str) -> Path:
    """A dense directory as ``mlx_lm.convert -q`` quantizes it."""
    utils = pytest.importorskip("mlx_lm.utils")
    model, config = utils.load_model(dense, lazy=True)
    model, config = utils.quantize_model(model, config, group, bits, mode=mode)
    target.mkdir()
    utils.save_model(target, model)
    utils.save_config(config, target / "config.json")
    return target


SIZES: dict[str, Any] = {"hidden": 64, "head_dim": 16, "ffn": 128, "vocab": 64}

#: Words -> what mlx-lm is told.
WORDS = {"affine:4:64": (4, 64, "affine"), "affine:8:32": (8, 32, "affine"), "mxfp4": (4, 32, "mxfp4"),
         "nvfp4": (4, 16, "nvfp4")}  # fmt: skip

MODELS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda root: checkpoint(root, Decoder(**SIZES), "llama"),
    "tied": lambda root: checkpoint(root, Decoder(**SIZES), "llama", tie_word_embeddings=True),
    "rows that do not divide": lambda root: checkpoint(root, Decoder(**{**SIZES, "ffn": 80}), "llama"),
    "mixtral": lambda root: checkpoint(root, Decoder(**SIZES, experts=4), "mixtral"),
    "qwen3_moe": lambda root: checkpoint(root, Decoder(**SIZES, experts=4, qk_norm=True), "qwen3_moe", **MOE),
    "granite": lambda root: checkpoint(root, Decoder(**SIZES), "granite", **GRANITE),
    "gpt2": lambda root: FIXTURES / "hf" / "gpt2-hub-f32",
    "phi3": lambda root: FIXTURES / "hf" / "phi3-bf16",
    "qwen3": lambda root: FIXTURES / "hf" / "qwen3-tied-bf16",
}
MOE = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False}
GRANITE = {
    "embedding_multiplier": 1.0, "attention_multiplier": 0.25, "residual_multiplier": 1.0, "logits_scaling": 1.0,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip


def checkpoint(root: Path, decoder: Decoder, model_type: str, **config: Any) -> Path:
    made = decoder.tensors()
    tensors = {k: bf16(v) for k, v in (as_mixtral(made) if model_type == "mixtral" else made).items()}
    if config.get("tie_word_embeddings"):
        del tensors["lm_head.weight"]
    return save(root, decoder.config(model_type, **config), tensors)


@pytest.mark.product("values")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("word", WORDS)
def test_a_model_is_what_mlx_lm_makes_of_it(model: str, word: str, tmp_path: Path) -> None:
    source = MODELS[model](tmp_path / "hf")
    ckconv.convert(source, f"{tmp_path}/dense/", to="mlx")
    theirs = by_mlx_lm(tmp_path / "dense", tmp_path / "theirs", *WORDS[word])

    ckconv.convert(source, f"{tmp_path}/ours/", to="mlx", options=Options(quantize=word))

    assert tensors_of(tmp_path / "ours") == tensors_of(theirs)
    for key in ("quantization", "quantization_config"):
        assert settings(tmp_path / "ours")[key] == settings(theirs)[key]


@pytest.mark.parametrize(
    ("family", "case", "module"),
    [("deepseek", "as_released", "model.layers.1.mlp.gate"), ("seed_oss", "without_biases", "model.embed_tokens")],
)
def test_no_codes_are_made_where_a_class_takes_floats(family: str, case: str, module: str, tmp_path: Path) -> None:
    """A router that is no ``nn.Linear``, and an embedding that its class multiplies as it is for a head."""
    utils, mx = pytest.importorskip("mlx_lm.utils"), pytest.importorskip("mlx.core")
    recorded = next(one for one in cases(family) if one.name == case).recorded
    source = checkpoint_of(recorded, tmp_path / "hf")

    ckconv.convert(source, f"{tmp_path}/m/", to="mlx", options=Options(quantize="affine:4:32"))

    model, _ = utils.load_model(tmp_path / "m")
    assert model(mx.array([[1, 2, 3]])).shape[:2] == (1, 3)
    assert f"{module}.scales" not in tensors_of(tmp_path / "m")
    options = Options(quantize=f"affine:4:32,{module}.weight=affine:8:32")
    with pytest.raises(UnsupportedError, match="mlx-lm's class takes floats there, and no codes"):
        ckconv.convert(source, f"{tmp_path}/n/", to="mlx", options=options)


def settings(folder: Path) -> dict[str, Any]:
    """``config.json``; a module without a mode of its own is affine (``nn.quantize``)."""
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    for key in ("quantization", "quantization_config"):
        for value in found[key].values():
            if isinstance(value, dict):
                value.setdefault("mode", "affine")
    return found


def test_globs_give_modules_another_type_or_none(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", Decoder(**SIZES), "llama")
    word = "affine:4:32,*.v_proj.weight=AFFINE:8:64,lm_head.weight=bf16,layers.1.attention.v.weight=mxfp4"

    ckconv.convert(source, f"{tmp_path}/m/", to="mlx", options=Options(quantize=word))

    eight, four = ({"group_size": 64, "bits": 8, "mode": "affine"}, {"group_size": 32, "bits": 4, "mode": "mxfp4"})
    assert settings(tmp_path / "m")["quantization"] == {
        "group_size": 32, "bits": 4, "mode": "affine",
        "model.layers.0.self_attn.v_proj": eight, "model.layers.1.self_attn.v_proj": four,
    }  # fmt: skip
    assert tensors_of(tmp_path / "m")["lm_head.weight"][0] == "BF16"


def test_verification_quantizes_again(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    source, out = checkpoint(tmp_path / "hf", Decoder(**SIZES), "llama"), tmp_path / "m"
    ckconv("convert", source, f"{out}/", "--to", "mlx", "--quantize", "affine:4:64", "--record")

    sound = ckconv("verify", out, source)
    file = out / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    broken = ckconv("verify", out, source, "--weights")

    assert sound.code == 0, sound.err
    assert broken.code == 5


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("q4_k", "q4_k is not a type of MLX"),
        ("affine:4", "affine:4 is not a type of MLX"),
        ("affine:4:16", "in groups of 32, 64 or 128"),
        ("affine:7:64", "affine quantization has 7 bits"),
        ("mxfp4:4:64", "mxfp4:4:64 is not a type of MLX"),
    ],
)
def test_types_that_mlx_does_not_have_are_usage_errors(word: str, sentence: str, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", Decoder(**SIZES), "llama")

    with pytest.raises(UsageError) as caught:
        ckconv.convert(source, f"{tmp_path}/m/", to="mlx", options=Options(quantize=word))

    assert sentence in caught.value.message


def test_triples_are_quantized_again_only_where_they_are_decoded_on_purpose(tmp_path: Path) -> None:
    source = FIXTURES / "mlx" / "llama-tied-bf16.q4g64"

    with pytest.raises(UnsupportedError, match="is quantized already"):
        ckconv.convert(source, f"{tmp_path}/a/", to="mlx", options=Options(quantize="affine:8:32"))
    ckconv.convert(source, f"{tmp_path}/b/", to="mlx", options=Options(quantize="affine:8:32", dequantize=True))

    assert settings(tmp_path / "b")["quantization"] == {"group_size": 32, "bits": 8, "mode": "affine"}


def test_numbers_beyond_nvfp4_are_refused(tmp_path: Path) -> None:
    tensors = Decoder(**SIZES).tensors()
    tensors["model.layers.0.mlp.up_proj.weight"][1, 2] = 3000
    source = save(tmp_path / "hf", Decoder(**SIZES).config(), tensors)

    with pytest.raises(UnsupportedError) as caught:
        ckconv.convert(source, f"{tmp_path}/m/", to="mlx", options=Options(quantize="nvfp4"))

    assert (caught.value.code, caught.value.tensor) == ("quantize.value", "model.layers.0.mlp.up_proj.weight")
    assert caught.value.hint is not None
    asked = Options(quantize=caught.value.hint.split()[1])
    assert ckconv.convert(source, f"{tmp_path}/m/", to="mlx", options=asked).verified


def test_rows_that_are_no_whole_groups_of_what_the_class_asks_for_are_refused(tmp_path: Path) -> None:
    """mlx-lm quantizes some matrices of its classes in groups of 64, whatever was asked for."""
    source = FIXTURES / "experts/qwen3_moe"
    said = "rows of 32 are not whole groups of affine 8-bit group 64: model.layers.0.mlp.gate.weight and 1 more"
    with pytest.raises(UnsupportedError, match=said):
        ckconv.convert(source, f"{tmp_path}/out/", to="mlx", options=Options(quantize="affine:4:32"))
    asked = Options(quantize="affine:4:32,*mlp.gate*=affine:8:32")
    report = ckconv.convert(source, f"{tmp_path}/out/", to="mlx", options=asked)
    assert report.verified


def test_rows_that_are_no_whole_groups_stay_floats_and_a_note_says_so(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", Decoder(hidden=128, head_dim=32, ffn=192), "llama")

    report = ckconv.convert(source, f"{tmp_path}/m/", to="mlx", options=Options(quantize="affine:4:128"))

    said = "rows of 192 are not whole groups of 128 and stay floats: model.layers.0.mlp.down_proj.weight (2 tensors)"
    assert said in report.to_dict()["notes"]
    assert report.verified


def test_blocks_that_are_decoded_and_quantized_at_once_are_as_in_two_steps(tmp_path: Path) -> None:
    """Q4_0 has an exact form in MLX, which is not asked for."""
    ckconv.convert(FIXTURES / "hf/qwen2-tied-bf16", tmp_path / "blocks.gguf", options=Options(quantize="q4_0,*=q4_0"))
    both = Options(quantize="affine:4:32", dequantize=True)

    ckconv.convert(tmp_path / "blocks.gguf", f"{tmp_path}/one/", to="mlx", options=both)
    ckconv.convert(tmp_path / "blocks.gguf", tmp_path / "floats.gguf", options=Options(dequantize=True))
    ckconv.convert(tmp_path / "floats.gguf", f"{tmp_path}/two/", to="mlx", options=Options(quantize="affine:4:32"))

    one, two = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert ckconv.verify(tmp_path / "one", tmp_path / "blocks.gguf", options=both).rounded


@pytest.mark.parametrize("packed", ["torchao-int4-plain", "hqq-4b", "gptq-4b-g32-asym-v1"])
def test_values_that_were_on_the_codes_of_another_quantizer_are_quantized(tmp_path: Path, packed: str) -> None:
    """Evenly spaced codes hold them exactly, and MLX's rule, which makes 0 a code, does not."""
    options = Options(dequantize=True, quantize="affine:4:32")

    assert ckconv.convert(FIXTURES / "quantised" / packed, f"{tmp_path}/out/", to="mlx", options=options).verified


@pytest.mark.parametrize("quantize", ["mxfp4", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("base", ["llama-tied-bf16", "llama-untied-f16-sharded"])
def test_codes_of_merged_values_are_of_what_the_type_of_the_model_makes_of_them(
    base: str, quantize: str, tmp_path: Path
) -> None:
    """A merged value of bfloat16 may stand right between two codes, and the sum it is rounded from beside it."""
    source, adapters = FIXTURES / "hf" / base, [(FIXTURES / "lora/llama-r4-attn-mlp", 1.0)]
    options = Options(quantize=quantize, allow_lossy=True)

    ckconv.convert(source, f"{tmp_path}/merged/", to="hf", adapters=adapters, options=Options(allow_lossy=True))
    ckconv.convert(tmp_path / "merged", f"{tmp_path}/two/", to="mlx", options=options)
    ckconv.convert(source, f"{tmp_path}/one/", to="mlx", adapters=adapters, options=options)

    one, two = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
