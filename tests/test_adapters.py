"""Adapters converted between formats: every value, every effective scale, and what the engines make of them."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import adapter_builder as build
import family_cases
import gguf
import numpy as np
import pytest
from adapter_builder import DOWN, Q, pair, random
from conftest import FIXTURES
from consumers import Consumer
from gguf_copies import finish
from outputs import contents
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tower_cases import checkpoint, recordings

from ckconv.api import convert

ADAPTERS = FIXTURES / "adapters"
LORA = FIXTURES / "lora"
LLAMA = FIXTURES / "gguf-split" / "llama-untied-f32-00001-of-00003.gguf"
QWEN2 = FIXTURES / "gguf" / "qwen2-tied-bf16.auto.gguf"
GPT2 = FIXTURES / "gguf" / "gpt2-f32.f32.gguf"
RECORDED = recordings()
TEXT_OUTPUT = re.compile(r"(model\.|language_model\.|text_model\.)*layers\.1\.self_attn\.o_proj\.weight")
PHI3 = FIXTURES / "gguf" / "phi3-bf16.auto.gguf"


def deltas(path: Path) -> dict[str, np.ndarray]:
    """Module -> what its matrix changes by, computed from the file alone, by the rules of its format."""
    if (path / "adapters.safetensors").exists():
        tensors = load_file(path / "adapters.safetensors")
        scale = json.loads((path / "adapter_config.json").read_text())["lora_parameters"]["scale"]
        modules = {name.removesuffix(".lora_a") for name in tensors if name.endswith(".lora_a")}
        return {m: scale * (tensors[f"{m}.lora_b"].T @ tensors[f"{m}.lora_a"].T) for m in modules}
    tensors = load_file(path / "adapter_model.safetensors")
    config = json.loads((path / "adapter_config.json").read_text())
    found = {}
    for name, b in tensors.items():
        if name.endswith(".lora_B.weight"):
            module = name.removesuffix(".lora_B.weight").removeprefix("base_model.model.")
            rank = config["rank_pattern"].get(module, config["r"])
            alpha = config["alpha_pattern"].get(module, config["lora_alpha"])
            found[module] = alpha / rank * (b @ tensors[name.replace("lora_B", "lora_A")])
    return found


# ---- there and back


@pytest.mark.parametrize("name", ["llama-r4-attn-mlp", "qwen2-r4-all", "gpt2-r4"])
@pytest.mark.parametrize("through", ["mlx", "gguf"])
def test_there_and_back(name: str, through: str, tmp_path: Path, ckconv: Any) -> None:
    base = {"l": LLAMA, "q": QWEN2, "g": GPT2}[name[0]]
    middle = tmp_path / ("middle.gguf" if through == "gguf" else "middle")
    for arguments in (
        (LORA / name, middle, "--to", through, "--base", base),
        (middle, tmp_path / "back", "--to", "peft"),
    ):
        result = ckconv("convert", *arguments)
        assert result.code == 0, result.err
        assert "verified" in result.out
    source, back = LORA / name / "adapter_model.safetensors", tmp_path / "back" / "adapter_model.safetensors"
    with safe_open(source, "np") as ours, safe_open(back, "np") as theirs:
        assert sorted(ours.keys()) == sorted(theirs.keys())
        for key in ours.keys():  # noqa: SIM118
            assert np.array_equal(ours.get_tensor(key), theirs.get_tensor(key)), key
    assert ckconv("diff", tmp_path / "back", LORA / name).code == 0
    assert ckconv("verify", tmp_path / "back", middle).code == 0
    assert ckconv("verify", tmp_path / "back", LORA / name, "--weights").code == 0
    config = json.loads((tmp_path / "back" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["fan_in_fan_out"]) == (4, 8, name[0] == "g")


@pytest.mark.parametrize("name", ["llama-rslora", "llama-rank-pattern"])
def test_scales_survive_the_one_alpha_of_a_gguf(name: str, tmp_path: Path, ckconv: Any) -> None:
    assert ckconv("convert", ADAPTERS / name, tmp_path / "a.gguf", "--base", LLAMA).code == 0
    assert ckconv("convert", tmp_path / "a.gguf", tmp_path / "back", "--to", "peft").code == 0
    scales = json.loads((ADAPTERS / name / "expected.json").read_text())["scaling"]
    tensors = load_file(ADAPTERS / name / "adapter_model.safetensors")
    ours = deltas(tmp_path / "back")
    assert ours.keys() == scales.keys()
    for module, scale in scales.items():
        prefix = f"base_model.model.{module}"
        theirs = scale * (tensors[f"{prefix}.lora_B.weight"] @ tensors[f"{prefix}.lora_A.weight"])
        assert np.allclose(ours[module], theirs, rtol=1e-6, atol=1e-7)


def test_as_llama_cpp_converts_it(tmp_path: Path, ckconv: Any) -> None:
    for name, base in (("llama-r4-attn-mlp", LLAMA), ("qwen2-r4-all", QWEN2)):
        out = tmp_path / f"{name}.gguf"
        assert ckconv("convert", LORA / name, out, "--base", base).code == 0
        ours = gguf.GGUFReader(out)
        theirs = gguf.GGUFReader(FIXTURES / "gguf-lora" / f"{name}.f32.gguf")
        tensors = {tensor.name: tensor.data for tensor in ours.tensors}
        assert tensors.keys() == {tensor.name for tensor in theirs.tensors}
        for tensor in theirs.tensors:
            assert np.array_equal(tensors[tensor.name], tensor.data), tensor.name
        for key in ("general.architecture", "general.type", "adapter.type", "adapter.lora.alpha"):
            assert ours.fields[key].contents() == theirs.fields[key].contents()


def test_a_square_matrix_is_not_mistaken_for_its_transpose(tmp_path: Path, ckconv: Any) -> None:
    """Rank, inputs and outputs are all the same, so that nothing but the values tells the orientation."""
    tensors = pair("model.layers.0.self_attn.o_proj", rows=64, cols=64, rank=64)
    source = build.peft(tmp_path / "a", tensors, r=64, lora_alpha=64, rank_pattern={}, alpha_pattern={})
    theirs = (
        tensors[f"{(module := 'model.layers.0.self_attn.o_proj')}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"]
    )
    assert not np.allclose(theirs, theirs.T)
    assert ckconv("convert", source, tmp_path / "mlx", "--to", "mlx").code == 0
    assert np.allclose(deltas(tmp_path / "mlx")[module], theirs, atol=1e-6)
    assert ckconv("convert", source, tmp_path / "a.gguf", "--base", LLAMA).code == 0
    made = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    a, b = (made[f"blk.0.attn_output.weight.lora_{letter}"] for letter in "ab")
    assert np.allclose(b @ a, theirs, atol=1e-6)
    for middle in ("mlx", "a.gguf"):
        assert ckconv("convert", tmp_path / middle, tmp_path / f"{middle}-back", "--to", "peft").code == 0
        assert np.allclose(deltas(tmp_path / f"{middle}-back")[module], theirs, atol=1e-6)


#: Tower -> what its class of transformers 5 calls the text model in memory, as peft names what it adapts.
IN_MEMORY = {
    **dict.fromkeys(
        [
            "gemma3-f16", "llava-f16", "pixtral-f16", "mistral3-f16", "qwen2_vl-f16", "qwen2_5_vl-f32",
            "qwen3_vl-f16", "paddleocr_vl-f16", "voxtral-bf16", "qwen2_audio-bf16", "audioflamingo3-bf16",
        ],
        "model.language_model",
    ),
    "smolvlm-f16": "model.text_model",
    "llama4-f16": "language_model.model",
}  # fmt: skip


@pytest.mark.parametrize("name", IN_MEMORY)
def test_an_adapter_of_a_class_that_sees_comes_back_under_its_names(name: str, tmp_path: Path, ckconv: Any) -> None:
    base = checkpoint(RECORDED[name], tmp_path / "base")
    module = f"{IN_MEMORY[name]}.layers.1.self_attn.o_proj"
    stored = next(kind for key, kind in RECORDED[name]["tensors"].items() if TEXT_OUTPUT.fullmatch(key))
    rows, cols = stored[1]
    source = build.peft(tmp_path / "a", pair(module, rows=rows, cols=cols), target_modules=["o_proj"])

    assert ckconv("convert", source, tmp_path / "a.gguf", "--base", base).code == 0
    assert ckconv("convert", tmp_path / "a.gguf", tmp_path / "b", "--to", "peft", "--base", base).code == 0

    with safe_open(tmp_path / "b" / "adapter_model.safetensors", "np") as file:
        assert sorted(file.keys()) == [f"base_model.model.{module}.lora_{part}.weight" for part in "AB"]


# ---- scales that a target has no place for


def test_a_power_of_two_is_folded_without_a_flag(tmp_path: Path, ckconv: Any) -> None:
    source = build.peft(
        tmp_path / "a", {**pair(), **pair(DOWN, cols=128)}, alpha_pattern={"down_proj": 2}, rank_pattern={}
    )
    for target in ("mlx", "a.gguf"):
        to = ("--to", "mlx") if target == "mlx" else ("--base", LLAMA)
        result = ckconv("convert", source, tmp_path / target, *to)
        assert result.code == 0, result.err
        assert "scaled 1 F32" in result.out
        assert ckconv("verify", tmp_path / target, source, *to[: 2 if to[0] == "--base" else 0]).code == 0
        assert ckconv("diff", tmp_path / target, source).code == 0
    tensors = load_file(tmp_path / "mlx" / "adapters.safetensors")
    lower = pair(DOWN, cols=128)[f"{DOWN}.lora_B.weight"].T / 4
    upper = pair()[f"{Q}.lora_B.weight"].T * 4
    scale = json.loads((tmp_path / "mlx" / "adapter_config.json").read_text())["lora_parameters"]["scale"]
    if scale == 2:
        assert np.array_equal(tensors[f"{DOWN}.lora_b"], lower)
    else:
        assert scale == 0.5
        assert np.array_equal(tensors[f"{Q}.lora_b"], upper)


@pytest.mark.parametrize("target", ["mlx", "a.gguf"])
def test_any_other_factor_rounds_and_needs_a_flag(target: str, tmp_path: Path, ckconv: Any) -> None:
    to = ("--to", "mlx") if target == "mlx" else ("--base", LLAMA)
    source = ADAPTERS / "llama-alpha-pattern"
    result = ckconv("convert", source, tmp_path / target, *to)
    assert result.code == 4
    assert "error[plan.lossy]" in result.err
    assert "layers.1.mlp.down_proj.lora_B.weight: " in result.err
    assert not (tmp_path / target).exists()
    result = ckconv("convert", source, tmp_path / target, *to, "--allow-lossy")
    assert result.code == 0, result.err
    assert "values rounded" in result.out
    assert ckconv("convert", tmp_path / target, tmp_path / "back", "--to", "peft").code == 0
    tensors = load_file(source / "adapter_model.safetensors")
    for module, scale in json.loads((source / "expected.json").read_text())["scaling"].items():
        a, b = (tensors[f"base_model.model.{module}.lora_{letter}.weight"] for letter in "AB")
        assert np.allclose(deltas(tmp_path / "back")[module], scale * b @ a, rtol=1e-6, atol=1e-7)


def test_half_precision_folds_only_what_fits(tmp_path: Path, ckconv: Any) -> None:
    tensors = {**pair(dtype="f2"), **pair(DOWN, cols=128, dtype="f2")}
    for module in (Q, DOWN):  # whichever is multiplied, and whether by 4 or by a quarter
        tensors[f"{module}.lora_B.weight"][0, :2] = 60000, 6e-8
    up = build.peft(tmp_path / "up", tensors, alpha_pattern={"down_proj": 32}, rank_pattern={})
    result = ckconv("convert", up, tmp_path / "x", "--to", "mlx")
    assert (result.code, "error[plan.lossy]" in result.err) == (4, True)
    assert ckconv("convert", up, tmp_path / "x", "--to", "mlx", "--dtype", "f32").code == 0
    assert ckconv("diff", tmp_path / "x", up).code == 0


@pytest.mark.parametrize("name", ["llama-rank-pattern", "llama-patterns-rslora"])
def test_mlx_gets_one_rank_by_zeros_that_add_nothing(name: str, tmp_path: Path, ckconv: Any) -> None:
    result = ckconv("convert", ADAPTERS / name, tmp_path / "m", "--to", "mlx", "--allow-lossy")
    assert result.code == 0, result.err
    rank = json.loads((tmp_path / "m" / "adapter_config.json").read_text())["lora_parameters"]["rank"]
    assert f"zeros make those of 2{', 4' if rank == 8 else ''} modules of {rank}" in result.out
    tensors = load_file(tmp_path / "m" / "adapters.safetensors")
    assert {t.shape[1] if name.endswith("a") else t.shape[0] for name, t in tensors.items()} == {rank}
    assert ckconv("convert", tmp_path / "m", tmp_path / "back", "--to", "peft").code == 0
    theirs = load_file(ADAPTERS / name / "adapter_model.safetensors")
    for module, scale in json.loads((ADAPTERS / name / "expected.json").read_text())["scaling"].items():
        a, b = (theirs[f"base_model.model.{module}.lora_{letter}.weight"] for letter in "AB")
        for made in ("m", "back"):
            assert np.allclose(deltas(tmp_path / made)[module], scale * b @ a, rtol=1e-6, atol=1e-7)
    if name == "llama-rank-pattern":
        assert ckconv("diff", tmp_path / "back", ADAPTERS / name).code == 0
        assert ckconv("verify", tmp_path / "m", ADAPTERS / name).code == 0


def test_what_stands_beyond_the_rank_of_the_source_is_found(tmp_path: Path, ckconv: Any) -> None:
    source = ADAPTERS / "llama-rank-pattern"
    assert ckconv("convert", source, tmp_path / "m", "--to", "mlx").code == 0
    tensors = load_file(tmp_path / "m" / "adapters.safetensors")
    for name in ("model.layers.0.self_attn.k_proj.lora_a", "model.layers.0.self_attn.k_proj.lora_b"):
        changed = dict(tensors)
        changed[name] = tensors[name].copy()
        changed[name][-1, -1] = 1
        save_file(changed, tmp_path / "m" / "adapters.safetensors")
        assert ckconv("verify", tmp_path / "m", source).code == 5
        assert ckconv("diff", tmp_path / "m", source).code == 5


# ---- what a target cannot say, all at once


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("llama-dora", ["GGUF has no place for DoRA magnitudes of 4 modules"]),
        ("llama-ia3", ["GGUF has no place for IA3 factors of 6 modules"]),
        ("llama-lora-bias", ["GGUF has no place for LoRA biases of 4 modules"]),
        (
            "llama-save-bias",
            ["GGUF has no place for whole weights of 1 module", "GGUF has no place for whole biases of 2 modules"],
        ),
        ("llama-embed-head", ["GGUF has no place for whole weights of 2 modules"]),
    ],
)
def test_refused_with_every_reason(name: str, reasons: list[str], tmp_path: Path, ckconv: Any) -> None:
    result = ckconv("convert", ADAPTERS / name, tmp_path / "a.gguf")
    assert result.code == 4
    assert "error[adapter.unsupported]" in result.err
    for reason in [*reasons, "the architecture, which a GGUF names, follows from the base model"]:
        assert reason in result.err
    assert "--base BASE names the base model" in result.err
    assert not (tmp_path / "a.gguf").exists()


def test_what_is_left_out_on_purpose_is_named(tmp_path: Path, ckconv: Any) -> None:
    source = ADAPTERS / "llama-embed-head"
    result = ckconv("convert", source, tmp_path / "a.gguf", "--base", LLAMA, "--drop", "*.saved_weight")
    assert result.code == 0, result.err
    assert "(output.saved_weight): asked for by --drop" in result.out
    halved = ckconv("convert", source, tmp_path / "b.gguf", "--base", LLAMA, "--drop", "*lora_B*")
    assert (halved.code, "--drop leaves half of" in halved.err) == (4, True)


def test_a_tied_base_has_no_place_for_a_change_of_its_embedding(tmp_path: Path, ckconv: Any) -> None:
    tensors = {
        "model.embed_tokens.lora_embedding_A": random(4, 384),
        "model.embed_tokens.lora_embedding_B": random(64, 4),
        **pair("lm_head", rows=384),
    }
    source = build.peft(tmp_path / "a", tensors, target_modules=["embed_tokens", "lm_head"])
    tied = FIXTURES / "hf" / "qwen2-tied-bf16"
    result = ckconv("convert", source, tmp_path / "a.gguf", "--base", tied)
    assert result.code == 4
    assert "its GGUF has no output head" in result.err
    assert "take the change of its embedding for one of its head" in result.err
    assert "the base is tied" in ckconv("convert", source, tmp_path / "m", "--to", "mlx", "--base", tied).err
    assert "--base BASE names" in ckconv("convert", source, tmp_path / "m", "--to", "mlx").err
    assert ckconv("convert", source, tmp_path / "m", "--to", "mlx", "--base", LLAMA).code == 0


def test_models_and_adapters_are_not_mistaken_for_each_other(tmp_path: Path, ckconv: Any) -> None:
    result = ckconv("convert", LORA / "gpt2-r4", tmp_path / "m.bump")
    assert (result.code, "the format holds models, and this is an adapter" in result.err) == (4, True)
    result = ckconv("convert", QWEN2, tmp_path / "out", "--to", "peft")
    assert (result.code, "the format holds adapters, and this is a model" in result.err) == (4, True)


@pytest.mark.parametrize("to", ["peft", "mlx"])
def test_an_adapter_on_stdout_is_an_archive_of_its_directory(to: str, tmp_path: Path) -> None:
    adapter = LORA / "gpt2-r4"
    command = [sys.executable, "-m", "ckconv", "convert", adapter, "-", "--to", to]
    done = subprocess.run(command, capture_output=True, check=True)
    convert(adapter, f"{tmp_path}/made/", to=to)

    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive}
    assert found == contents(tmp_path / "made")


def test_blocks_are_decoded_only_when_asked(tmp_path: Path, ckconv: Any) -> None:
    a, b = random(32, 64), random(128, 32)
    packed = gguf.quants.quantize(a, gguf.GGMLQuantizationType.Q8_0)
    path = tmp_path / "q.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 32.0)
    writer.add_tensor("blk.0.ffn_up.weight.lora_a", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.ffn_up.weight.lora_b", b)
    finish(writer, path)
    result = ckconv("convert", path, tmp_path / "out", "--to", "peft")
    assert (result.code, "--dequantize decodes them" in result.err) == (4, True)
    assert ckconv("convert", path, tmp_path / "out", "--to", "peft", "--dequantize").code == 0
    decoded = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
    assert np.allclose(deltas(tmp_path / "out")["model.layers.0.mlp.up_proj"], b @ decoded, atol=1e-6)
    assert ckconv("convert", path, tmp_path / "again.gguf").code == 0
    assert ckconv("diff", path, tmp_path / "again.gguf").code == 0


# ---- verification


def test_a_wrong_scale_is_found(tmp_path: Path, ckconv: Any) -> None:
    assert ckconv("convert", LORA / "llama-r4-attn-mlp", tmp_path / "m", "--to", "mlx").code == 0
    config = tmp_path / "m" / "adapter_config.json"
    document = json.loads(config.read_text())
    assert document["lora_parameters"]["scale"] == 2.0
    document["lora_parameters"]["scale"] = 8.0
    config.write_text(json.dumps(document))
    assert ckconv("verify", tmp_path / "m", LORA / "llama-r4-attn-mlp").code == 5
    result = ckconv("diff", tmp_path / "m", LORA / "llama-r4-attn-mlp")
    assert result.code == 5
    assert "14 tensors equal" in result.out
    assert "14 differ" in result.out


def test_the_same_bytes_every_time(tmp_path: Path, ckconv: Any) -> None:
    for number in "12":
        out = tmp_path / number
        assert ckconv("convert", ADAPTERS / "llama-rslora", f"{out}/", "--to", "gguf", "--base", LLAMA).code == 0
        assert ckconv("convert", LORA / "mlx-lora", out / "peft", "--to", "peft").code == 0
    for file in ("adapter.gguf", "peft/adapter_config.json", "peft/adapter_model.safetensors"):
        assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "2" / file).read_bytes()


# ---- what the engines compute

PROMPT = (1, 5, 17, 42, 99, 200, 301, 7)

LOGITS = [
    (LORA / "llama-r4-attn-mlp", "ref_logits.json", LLAMA, 0.01),
    (LORA / "mlx-lora", "mlx_logits.json", LLAMA, 0.01),
    (LORA / "gpt2-r4", "ref_logits.json", GPT2, 0.01),
    (LORA / "qwen2-r4-all", "ref_logits.json", QWEN2, 0.05),
    (ADAPTERS / "llama-rslora", "expected.json", LLAMA, 0.01),
    (ADAPTERS / "llama-rank-pattern", "expected.json", LLAMA, 0.01),
    (ADAPTERS / "llama-alpha-pattern", "expected.json", LLAMA, 0.01),
    (ADAPTERS / "llama-patterns-rslora", "expected.json", LLAMA, 0.01),
    (ADAPTERS / "llama-embed-head", "expected.json", LLAMA, 0.01),
    (ADAPTERS / "llama-layers", "expected.json", LLAMA, 0.01),
    (ADAPTERS / "gpt2-rank-pattern", "expected.json", GPT2, 0.01),
    (ADAPTERS / "phi3-fused", "expected.json", PHI3, 0.05),
]


#: Script of a consumer and base -> the last row without an adapter.
ALONE: dict[tuple[str, Path], np.ndarray] = {}


def last_rows(consumer: Consumer, base: Path, adapter: Path) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the last position with the adapter, and without it."""
    known = (consumer.script, base)
    if known not in ALONE:
        ALONE[known] = consumer.logits(base, PROMPT)[-1]
    return consumer.logits(base, PROMPT, adapter=adapter)[-1], ALONE[known]


@pytest.mark.parametrize(("adapter", "reference", "base", "limit"), LOGITS, ids=[row[0].name for row in LOGITS])
def test_llama_cpp_computes_what_the_source_does(
    adapter: Path, reference: str, base: Path, limit: float, tmp_path: Path, ckconv: Any, llama_cpp: Consumer
) -> None:
    flags = ("--allow-lossy", "--drop", "*.saved_weight")
    result = ckconv("convert", adapter, tmp_path / "a.gguf", "--base", base, *flags)
    assert result.code == 0, result.err
    document = json.loads((adapter / reference).read_text())
    theirs = np.array(document["last_row"])
    ours, without = last_rows(llama_cpp, base, tmp_path / "a.gguf")
    assert np.abs(ours - theirs).max() < limit
    assert np.abs(without - theirs).max() > 20 * limit


@pytest.mark.parametrize(
    ("adapter", "reference", "base", "limit"),
    [
        (LORA / "gpt2-r4", "ref_logits.json", FIXTURES / "hf" / "gpt2-hub-f32", 1e-4),
        (LORA / "qwen2-r4-all", "ref_logits.json", FIXTURES / "hf" / "qwen2-tied-bf16", 0.06),
    ],
    ids=["gpt2", "qwen2"],
)
def test_mlx_computes_what_the_source_does(
    adapter: Path, reference: str, base: Path, limit: float, tmp_path: Path, ckconv: Any, mlx_lm: Consumer
) -> None:
    assert ckconv("convert", adapter, tmp_path / "m", "--to", "mlx").code == 0
    theirs = np.array(json.loads((adapter / reference).read_text())["last_row"])
    ours, without = last_rows(mlx_lm, base, tmp_path / "m")
    assert np.abs(ours - theirs).max() < limit
    assert np.abs(without - theirs).max() > 1


@pytest.mark.parametrize("target", ["gguf", "mlx"])
def test_copies_of_the_bases_matrices_are_left_out(target: str, tmp_path: Path, ckconv: Any) -> None:
    """peft saves the embedding and the head beside their LoRA; only the base shows that nothing changed them."""
    source = FIXTURES / "lora" / "llama-embed-head"
    base = FIXTURES / "gguf-split" / "llama-untied-f32-00001-of-00003.gguf"
    name = "m.gguf" if target == "gguf" else "m/"
    for folder, more in (("with", ("--base", base)), ("dropped", ("--base", base, "--drop", "*base_layer*"))):
        (tmp_path / folder).mkdir()
        result = ckconv("convert", source, f"{tmp_path / folder}/{name}", "--to", target, *more)
        assert result.code == 0, result.err
    files = sorted(path.relative_to(tmp_path / "with") for path in (tmp_path / "with").rglob("*") if path.is_file())
    assert files
    for file in files:
        assert (tmp_path / "with" / file).read_bytes() == (tmp_path / "dropped" / file).read_bytes()

    other = FIXTURES / "hf" / "llama-bias-f32"
    result = ckconv("convert", source, f"{tmp_path}/x/", "--to", target, "--base", other)
    assert result.code == 4
    assert "ckconv convert BASE DST --adapter ADAPTER merges it" in result.err
    assert "--base" not in result.err.partition("hint: ")[2]


def test_a_model_and_its_adapter_the_wrong_way_round(tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", LORA / "llama-r4-attn-mlp", tmp_path / "m.gguf", "--adapter", LLAMA)
    said = re.search(r"hint: ckconv (convert .+) merges it", result.err)
    assert result.code == 4, result.err
    assert said is not None, result.err
    assert ckconv(*shlex.split(said[1].replace(" DST ", f" {tmp_path / 'm.gguf'} "))).code == 0
    assert ckconv("verify", tmp_path / "m.gguf", LLAMA, "--adapter", LORA / "llama-r4-attn-mlp").code == 0


def test_one_module_that_a_gguf_has_in_two_is_verified_with_its_base(tmp_path: Path, ckconv: Any) -> None:
    """Qwen 4 exp has ``index_qk_proj``, llama.cpp a matrix for the queries of the indexer and one for its keys."""
    case = next(case for case in family_cases.cases("qwen4_exp") if case.name == "parts")
    base = family_cases.checkpoint(case.recorded, tmp_path / "base")
    module, rows, cols = next(
        (name.removesuffix(".weight"), *stored.shape)
        for name, stored in load_file(base / "model.safetensors").items()
        if name.endswith("index_qk_proj.weight")
    )
    source = build.peft(tmp_path / "peft", pair(module, rows=rows, cols=cols), target_modules=["index_qk_proj"])
    out = tmp_path / "adapter.gguf"

    assert ckconv("convert", source, out, "--base", base).code == 0
    for command in ("verify", "diff"):
        done = ckconv(command, out, source, "--base", base)
        assert done.code == 0, done.err
    done = ckconv("verify", out, source)
    assert (done.code, "hint: --base BASE names the base model" in done.err) == (5, True)
    wrong = load_file(source / "adapter_model.safetensors")
    wrong[f"base_model.model.{module}.lora_B.weight"][-1] += 1
    save_file(wrong, source / "adapter_model.safetensors")
    assert ckconv("verify", out, source, "--base", base).code == 5
    assert ckconv("diff", out, source, "--base", base).code == 5
