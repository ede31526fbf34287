"""Adapters merged while converting: against what peft and mlx-lm make of the same base, and every refusal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import adapter_builder
import family_cases
import gguf
import numpy as np
import pytest
from conftest import FIXTURES
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ckconv.api import open_model

LORA = FIXTURES / "lora"
LLAMA = FIXTURES / "gguf-split" / "llama-untied-f32-00001-of-00003.gguf"
QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"
GPT2 = FIXTURES / "gguf" / "gpt2-f32.f32.gguf"
ADAPTER = LORA / "llama-r4-attn-mlp"
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def values(folder: Path) -> dict[str, np.ndarray]:
    with safe_open(folder / "model.safetensors", framework="np") as file:
        return {name.removeprefix("transformer."): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def farthest(folder: Path, merged: Path) -> float:
    ours, theirs = values(folder), values(merged)
    tied = {"lm_head.weight"} - ours.keys()
    assert ours.keys() == theirs.keys() - tied
    return max(float(np.abs(ours[name].astype("f8") - theirs[name]).max()) for name in ours)


@pytest.mark.parametrize(
    ("base", "adapter", "merged"),
    [
        (LLAMA, "llama-r4-attn-mlp", "llama-r4-attn-mlp.merged"),
        (QWEN2, "qwen2-r4-all", "qwen2-r4-all.merged"),
        (GPT2, "gpt2-r4", "gpt2-r4.merged"),
        (LLAMA, "mlx-lora", "mlx-lora.fused"),
    ],
)
def test_merged_as_the_adapters_own_library_does(base: Path, adapter: str, merged: str, tmp_path: Path, ckconv) -> None:
    out = tmp_path / "out"
    result = ckconv("convert", base, f"{out}/", "--to", "safetensors", "--dtype", "f32", "--adapter", LORA / adapter)
    assert result.code == 0, result.err
    assert farthest(out, LORA / merged) < 1e-6
    assert f"note: merged {adapter} (LoRA, " in result.out
    assert "adapters changed " in result.out
    name = "model.safetensors"
    before = tmp_path / "before"
    assert ckconv("convert", base, f"{before}/", "--to", "safetensors", "--dtype", "f32").code == 0
    assert (before / name).read_bytes() != (out / name).read_bytes()


BASES = {
    "llama-untied-f32": LLAMA,
    "llama-bias-f32": FIXTURES / "gguf" / "llama-bias-f32.f32.gguf",
    "gpt2-f32": GPT2,
    "phi3-bf16": FIXTURES / "gguf" / "phi3-bf16.auto.gguf",
    "gemma3-text-bf16": FIXTURES / "hf" / "gemma3-text-bf16",
}


@pytest.mark.parametrize("name", sorted(path.parent.name for path in LORA.glob("*/merged.safetensors")))
def test_every_kind_as_peft_merges_it(name: str, tmp_path: Path, ckconv) -> None:
    """rsLoRA, patterns, DoRA, IA3, embeddings, saved modules, biases, fused and transposed matrices, single layers."""
    base = BASES[json.loads((LORA / name / CONFIG).read_text())["base_model_name_or_path"]]
    flags = ("--to", "safetensors", "--dtype", "f32")
    assert ckconv("convert", base, f"{tmp_path}/plain/", *flags).code == 0
    result = ckconv("convert", base, f"{tmp_path}/out/", *flags, "--adapter", LORA / name)
    assert result.code == 0, result.err
    ours, before, merged = (
        values(tmp_path / "out"),
        values(tmp_path / "plain"),
        load_file(LORA / name / "merged.safetensors"),
    )
    merged = {key.removeprefix("transformer."): value for key, value in merged.items()}
    assert merged.keys() <= ours.keys() == before.keys()
    for key, value in ours.items():
        if key in merged:
            assert np.abs(value.astype("f8") - merged[key]).max() < 1e-6, key
            assert not np.array_equal(value, before[key]), key
        else:
            assert np.array_equal(value, before[key]), key


def edited(source: Path, target: Path, **changes: object) -> Path:
    """An adapter with another configuration."""
    shutil.copytree(source, target)
    config = json.loads((target / CONFIG).read_text())
    (target / CONFIG).write_text(json.dumps({**config, **changes}))
    return target


def with_tensors(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


EMBEDDING = "base_model.model.model.embed_tokens"
HEAD = "base_model.model.lm_head"


def embedding_adapter(kind: str, target: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """An adapter of qwen2's embedding or head, and what peft makes of either, out of zeros."""
    rng = np.random.default_rng(5)
    a, b, whole = (rng.normal(0, 0.1, shape).astype("f4") for shape in ((4, 384), (64, 4), (384, 64)))
    tensors, changed = {
        "embed": ({f"{EMBEDDING}.lora_embedding_A": a, f"{EMBEDDING}.lora_embedding_B": b}, {"embed": 2 * (b @ a).T}),
        "head": ({f"{HEAD}.lora_A.weight": b.T.copy(), f"{HEAD}.lora_B.weight": a.T.copy()}, {"head": 2 * (b @ a).T}),
        "saved embed": ({f"{EMBEDDING}.weight": whole}, {"embed": whole}),
        "saved head": ({f"{HEAD}.weight": whole}, {"head": whole}),
    }[kind]
    names = ["embed_tokens", "lm_head"]
    changes = {"modules_to_save": names} if kind.startswith("saved") else {"target_modules": names}
    folder = edited(LORA / "qwen2-r4-all", target, r=4, lora_alpha=8, **changes)
    return with_tensors(folder, tensors), changed


@pytest.mark.parametrize("target", ["hf/", "m.gguf", "mlx/", "m.bump"])
@pytest.mark.parametrize("kind", ["embed", "head", "saved embed", "saved head"])
def test_the_head_of_a_tied_base_is_apart_from_the_embedding_that_peft_changes(
    kind: str, target: str, tmp_path: Path, ckconv
) -> None:
    """peft wraps one of the two modules that share a matrix; the other computes what it did."""
    adapter, changed = embedding_adapter(kind, tmp_path / "adapter")
    to = {"hf/": "safetensors", "mlx/": "mlx"}.get(target, target.rpartition(".")[2])
    out = f"{tmp_path}/{target}"
    result = ckconv("convert", QWEN2, out, "--to", to, "--dtype", "f32", "--adapter", adapter)
    assert result.code == 0, result.err
    assert "verified 27/27" in result.out.replace("verified 37/37", "verified 27/27")

    before = ckconv_values(QWEN2)
    after = ckconv_values(Path(out))
    for name, key in (("embed", "token_embedding.weight"), ("head", "output.weight")):
        old = before["token_embedding.weight"]
        expected = old if name not in changed else changed[name] if "saved" in kind else old + changed[name]
        assert np.abs(after[key] - expected).max() < 1e-6, name


def ckconv_values(path: Path) -> dict[str, np.ndarray]:
    return {name: tensor.values() for name, tensor in open_model(path).tensors.items()}


def test_an_adapter_that_keeps_weights_tied_changes_both(tmp_path: Path, ckconv) -> None:
    folder, changed = embedding_adapter("saved embed", tmp_path / "adapter")
    adapter = edited(folder, tmp_path / "tied", ensure_weight_tying=True)
    assert ckconv("convert", QWEN2, f"{tmp_path}/out/", "--to", "safetensors", "--adapter", adapter).code == 0
    made = ckconv_values(tmp_path / "out")
    assert "output.weight" not in made
    assert np.array_equal(made["token_embedding.weight"], changed["embed"])

    result = ckconv(
        "convert", QWEN2, f"{tmp_path}/x/", "--to", "safetensors", "--adapter", adapter, "--adapter", folder
    )
    assert result.code == 4
    assert "of the changes some are of its embedding and its output head together, others of one" in result.err


@pytest.mark.parametrize("kind", ["embed", "saved embed"])
def test_a_tied_embedding_and_its_head_that_peft_saves_both_are_one(kind: str, tmp_path: Path, ckconv) -> None:
    """``ensure_weight_tying`` makes peft save the embedding and the head, equal."""
    folder, changed = embedding_adapter(kind, tmp_path / "adapter")
    adapter = edited(folder, tmp_path / "tied", ensure_weight_tying=True)
    start = "base_model.model."
    embedding, head = f"{start}model.embed_tokens", f"{start}lm_head"
    tensors = load_file(adapter / WEIGHTS)
    both = {
        f"{embedding}.weight": (f"{head}.weight", False),
        f"{embedding}.lora_embedding_A": (f"{head}.lora_B.weight", True),
        f"{embedding}.lora_embedding_B": (f"{head}.lora_A.weight", True),
    }
    for name, (other, turned) in both.items():
        if name in tensors:
            tensors[other] = np.ascontiguousarray(tensors[name].T) if turned else tensors[name].copy()
    with_tensors(adapter, tensors)
    out = tmp_path / "out"
    result = ckconv("convert", QWEN2, f"{out}/", "--to", "safetensors", "--dtype", "f32", "--adapter", adapter)
    assert result.code == 0, result.err
    made, before = ckconv_values(out), ckconv_values(QWEN2)["token_embedding.weight"]
    assert "output.weight" not in made
    expected = changed["embed"] if "saved" in kind else before + changed["embed"]
    assert np.abs(made["token_embedding.weight"] - expected).max() < 1e-6

    tensors[next(name for name in tensors if name.startswith(head))][0, 0] += 1
    with_tensors(adapter, tensors)
    result = ckconv("convert", QWEN2, f"{out}/", "--to", "safetensors", "--adapter", adapter, "-f")
    assert (result.code, "changes its embedding and its output head differently" in result.err) == (4, True)


def test_a_target_without_a_head_does_not_hold_an_untied_model(tmp_path: Path, ckconv) -> None:
    adapter, _ = embedding_adapter("embed", tmp_path / "adapter")
    result = ckconv("convert", QWEN2, tmp_path / "m.bump", "--bump-version", "3", "--adapter", adapter)
    assert (result.code, "not tied to the embeddings" in result.err) == (4, True)


@pytest.mark.parametrize(("weight", "factor"), [("1", np.nan), ("1", 1e30), ("1e300", 1.0)])
def test_numbers_that_an_adapter_would_break(weight: str, factor: float, tmp_path: Path, ckconv) -> None:
    folder = edited(ADAPTER, tmp_path / "adapter")
    tensors = {name: value * np.float32(factor) for name, value in load_file(ADAPTER / WEIGHTS).items()}
    with_tensors(folder, tensors)
    result = ckconv("convert", LLAMA, tmp_path / "m.gguf", "--adapter", f"{folder}={weight}")
    assert result.code == 4
    assert "infinite or NaN in F32" in result.err
    assert "Warning" not in result.err
    assert not (tmp_path / "m.gguf").exists()


def test_bare_parameters_that_are_no_experts_are_refused(tmp_path: Path, ckconv) -> None:
    bare = ["q_proj.weight", "v_proj.weight"]
    folder = edited(ADAPTER, tmp_path / "adapter", target_parameters=bare, target_modules=["gate_proj"])
    result = ckconv("convert", LLAMA, tmp_path / "m.gguf", "--adapter", folder)
    assert (result.code, "it changes bare parameters, not modules" in result.err) == (4, True)


def test_rounded_to_the_type_of_the_base(tmp_path: Path, ckconv) -> None:
    adapter = LORA / "qwen2-r4-all"
    assert ckconv("convert", QWEN2, f"{tmp_path}/out/", "--to", "safetensors", "--adapter", adapter).code == 0
    assert ckconv("inspect", tmp_path / "out").out.count("\tBF16\t") > 20


@pytest.mark.parametrize("version", [4, 5])
def test_not_rounded_where_the_target_stores_fp32(version: int, tmp_path: Path, ckconv) -> None:
    """A bfloat16 base: rounded to it the merged matrices were 0.002 off, and the logits 0.01."""
    flags = ("--to", "bump", "--bump-version", version, "--adapter", LORA / "qwen2-r4-all")
    assert ckconv("convert", QWEN2, f"{tmp_path}/b/", *flags).code == 0
    file = (tmp_path / "b/weights.bump").read_bytes()
    entries = {e["name"]: e for e in json.loads((tmp_path / "b/weights_manifest.json").read_text())["entries"]}
    merged = values(LORA / "qwen2-r4-all.merged")
    slots = {"wq": "self_attn.q_proj", "wk": "self_attn.k_proj", "wo": "self_attn.o_proj", "w2": "mlp.down_proj"}
    for layer in (0, 1):
        for slot, module in slots.items():
            entry = entries[f"layer.{layer}.{slot}"]
            ours = np.frombuffer(file, "<f4", entry["size"] // 4, entry["file_offset"]).astype("f8")
            theirs = merged[f"model.layers.{layer}.{module}.weight"]
            assert np.abs(ours - theirs.reshape(-1)).max() < 1e-6
            assert np.any(ours.astype("<f4").view("<u4") & 0xFFFF), "more digits than bfloat16 has"


def test_not_rounded_in_bump_3_either(tmp_path: Path, ckconv) -> None:
    flags = ("--bump-version", 3, "--adapter", LORA / "qwen2-r4-all")
    assert ckconv("convert", QWEN2, tmp_path / "m.bump", *flags).code == 0
    assert ckconv("convert", QWEN2, f"{tmp_path}/f32/", "--to", "bump", *flags, "--dtype", "f32").code == 0
    assert (tmp_path / "m.bump").read_bytes() == (tmp_path / "f32/weights.bump").read_bytes()


@pytest.mark.parametrize("target", ["m.gguf", "m.bump"])
def test_every_target_gets_the_same_model(target: str, tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", LLAMA, tmp_path / target, "--adapter", ADAPTER)
    assert result.code == 0, result.err
    assert ckconv("convert", LLAMA, f"{tmp_path}/hf/", "--to", "safetensors", "--adapter", ADAPTER).code == 0
    assert ckconv("diff", tmp_path / target, tmp_path / "hf").code == 0
    assert not (tmp_path / "m.bump.source.zip").exists()


def test_weights_and_several_adapters(tmp_path: Path, ckconv) -> None:
    def matrix(*flags: object) -> np.ndarray:
        assert ckconv("convert", LLAMA, tmp_path / "m.gguf", "-f", *flags).code == 0
        return next(t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors if t.name == "blk.1.ffn_up.weight").data

    base = matrix().copy()
    once = matrix("--adapter", ADAPTER).copy() - base
    assert np.abs(once).max() > 0.1
    half = matrix("--adapter", f"{ADAPTER}=0.5").copy() - base
    assert np.abs(half - once / 2).max() < 1e-6
    twice = matrix("--adapter", ADAPTER, "--adapter", f"{ADAPTER}=-1").copy() - base
    assert np.abs(twice).max() < 1e-6


def test_a_path_with_an_equals_sign_is_a_path(tmp_path: Path, ckconv) -> None:
    odd = tmp_path / "a=2"
    shutil.copytree(ADAPTER, odd)
    assert ckconv("convert", LLAMA, tmp_path / "m.gguf", "--adapter", odd).code == 0
    assert ckconv("convert", LLAMA, tmp_path / "n.gguf", "--adapter", ADAPTER).code == 0
    assert (tmp_path / "m.gguf").read_bytes() == (tmp_path / "n.gguf").read_bytes()


@pytest.mark.parametrize("text", ["=1", "x=much", "x=nan"])
def test_weights_that_are_no_numbers(text: str, tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", LLAMA, tmp_path / "m.gguf", "--adapter", text)
    assert (result.code, "WEIGHT a number" in result.err) == (2, True)


def test_quantized_matrices_are_refused_unless_they_may_be_decoded(tmp_path: Path, ckconv) -> None:
    base = FIXTURES / "kquants" / "llama64.Q4_K_M.gguf"
    result = ckconv("convert", base, tmp_path / "m.gguf", "--adapter", ADAPTER)
    assert (result.code, "error[adapter.quantized]" in result.err) == (4, True)
    assert "the adapter changes 14 matrices that are quantized" in result.err
    assert list(tmp_path.iterdir()) == []
    assert ckconv("convert", base, tmp_path / "m.gguf", "--adapter", ADAPTER, "--dequantize").code == 0
    assert ckconv("convert", base, tmp_path / "plain.gguf", "--dequantize").code == 0
    ours = {t.name: t.data for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    theirs = {t.name: t.data for t in gguf.GGUFReader(tmp_path / "plain.gguf").tensors}
    low, high = load_file(ADAPTER / WEIGHTS), "base_model.model.model.layers.0.mlp.down_proj.lora_{}.weight"
    config = json.loads((ADAPTER / CONFIG).read_text())
    delta = low[high.format("B")] @ low[high.format("A")] * (config["lora_alpha"] / config["r"])
    name = "blk.0.ffn_down.weight"
    assert np.abs(ours[name] - theirs[name] - delta).max() < 1e-6


def changed_adapter(tmp_path: Path, document: dict[str, object], tensors: dict[str, np.ndarray]) -> Path:
    """The adapter with other settings, and tensors added or replaced; ``None`` takes one away."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    config = json.loads((ADAPTER / CONFIG).read_text()) | document
    (folder / CONFIG).write_text(json.dumps(config))
    save_file({**load_file(ADAPTER / WEIGHTS), **tensors}, folder / WEIGHTS)
    return folder


def test_a_base_that_lacks_a_module(tmp_path: Path, ckconv) -> None:
    prefix = "base_model.model.model.layers.40.mlp.up_proj.lora_"
    extra = {f"{prefix}A.weight": np.zeros((4, 64), "f4"), f"{prefix}B.weight": np.zeros((128, 4), "f4")}
    adapter = changed_adapter(tmp_path, {}, extra)
    result = ckconv("convert", LLAMA, tmp_path / "m.gguf", "--adapter", adapter)
    assert (result.code, "error[adapter.base]" in result.err) == (3, True)
    assert "no base tensor for 'model.layers.40.mlp.up_proj'" in result.err
    assert f"hint: it was made for another model than {LLAMA}\n" in result.err


def test_a_bias_of_lora_that_the_base_has_no_place_for(tmp_path: Path, ckconv) -> None:
    name = "base_model.model.model.layers.0.mlp.down_proj.lora_B.bias"
    adapter = changed_adapter(tmp_path, {"lora_bias": True}, {name: np.ones(64, "f4")})
    result = ckconv("convert", LLAMA, tmp_path / "m.gguf", "--adapter", adapter)
    assert (result.code, "'model.layers.0.mlp.down_proj' has a bias, the base has none there" in result.err) == (
        3,
        True,
    )

    assert "ckconv convert ADAPTER DST/ --to peft --drop '*.lora_bias' leaves it out" in result.err
    assert ckconv("convert", adapter, tmp_path / "p", "--to", "peft", "--drop", "*.lora_bias").code == 0
    assert ckconv("convert", LLAMA, tmp_path / "m.gguf", "--adapter", tmp_path / "p").code == 0


def test_a_base_of_another_shape(tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", FIXTURES / "hf" / "qwen3-tied-bf16", tmp_path / "m.gguf", "--adapter", ADAPTER)
    assert (result.code, "error[adapter.base]" in result.err) == (3, True)


def test_a_model_is_no_adapter(tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", LLAMA, tmp_path / "m.gguf", "--adapter", LLAMA)
    assert (result.code, "is a gguf model, not an adapter" in result.err) == (3, True)


@pytest.mark.parametrize(
    ("made_for", "noted"),
    [
        ("qwen2-tied-bf16", False),
        ("someone/Qwen2-Tied", False),
        ("/models/qwen2-tied-bf16/", False),
        ("", False),
        ("someone/llama-8b", True),
    ],
)
def test_a_base_that_does_not_say_that_it_is_the_one_named_is_noted(
    made_for: str, noted: bool, tmp_path: Path, ckconv
) -> None:
    adapter = tmp_path / "adapter"
    shutil.copytree(LORA / "qwen2-r4-all", adapter)
    config = json.loads((adapter / CONFIG).read_text()) | {"base_model_name_or_path": made_for}
    (adapter / CONFIG).write_text(json.dumps(config))

    result = ckconv("convert", QWEN2, tmp_path / "out.gguf", "--adapter", adapter)

    assert result.code == 0, result.err
    said = f"made for {made_for!r}; the base model given has another name"
    assert (said in result.out) == noted


def doubled(folder: Path) -> Path:
    """The same with float64 for every type."""
    file = next(path for path in (folder / WEIGHTS, folder / "model.safetensors") if path.exists())
    save_file({name: array.astype(np.float64) for name, array in load_file(file).items()}, file)
    return folder


@pytest.mark.parametrize("name", ["llama-r4-attn-mlp", "llama-dora", "llama-ia3", "llama-saved"])
def test_an_adapter_of_float64_is_rounded_as_peft_loads_it(name: str, tmp_path: Path, ckconv) -> None:
    base = FIXTURES / "hf" / "llama-bias-f32"
    adapter = doubled(edited(LORA / name, tmp_path / "adapter"))

    assert ckconv("convert", base, f"{tmp_path / 'm'}/", "--to", "hf", "--adapter", adapter).code == 0
    assert ckconv("convert", base, f"{tmp_path / 'n'}/", "--to", "hf", "--adapter", LORA / name).code == 0
    made, wanted = values(tmp_path / "m"), values(tmp_path / "n")
    assert [key for key, array in wanted.items() if not np.array_equal(made[key], array)] == []


def test_float64_has_a_way_out(tmp_path: Path, ckconv) -> None:
    adapter = doubled(edited(ADAPTER, tmp_path / "adapter"))
    base = doubled(shutil.copytree(FIXTURES / "hf" / "llama-bias-f32", tmp_path / "base", copy_function=shutil.copy))

    refused = ckconv("convert", adapter, tmp_path / "a.gguf", "--base", FIXTURES / "hf" / "llama-bias-f32")
    assert (refused.code, "hint: --dtype f32" in refused.err) == (4, True)
    command = ("convert", adapter, tmp_path / "a.gguf", "--base", FIXTURES / "hf" / "llama-bias-f32", "--dtype", "f32")
    assert ckconv(*command).code == 0

    refused = ckconv("convert", base, tmp_path / "m.gguf", "--adapter", ADAPTER)
    assert (refused.code, "ckconv convert BASE DST/ --to hf --dtype f32" in refused.err) == (4, True)
    assert ckconv("convert", base, "--to", "hf", f"{tmp_path / 'b'}/", "--dtype", "f32").code == 0
    assert ckconv("convert", tmp_path / "b", tmp_path / "m.gguf", "--adapter", ADAPTER).code == 0


@pytest.mark.parametrize(
    ("family", "path", "to"),
    [
        ("longcat_flash", "model.layers.1.self_attn.1.o_proj", "mlx"),
        ("longcat_flash", "model.layers.0.mlps.1.up_proj", "mlx"),
        ("minimax", "model.layers.0.self_attn.qkv_proj", "gguf"),
    ],
)
def test_modules_whose_names_have_two_numbers_or_are_one_of_three(
    family: str, path: str, to: str, tmp_path: Path, ckconv
) -> None:
    """mlx-lm's and llama.cpp's logits with these adapters were those of the merged model."""
    case = next(iter(family_cases.cases(family)))
    base = family_cases.checkpoint(case.recorded, tmp_path / "base", case.tokenizer)
    rows, cols = load_file(base / "model.safetensors")[f"{path}.weight"].shape
    tensors, module = adapter_builder.pair(path, rows=rows, cols=cols), path.rpartition(".")[2]
    source = adapter_builder.peft(tmp_path / "lora", tensors, target_modules=[module])
    made, back = tmp_path / ("a.gguf" if to == "gguf" else "a"), tmp_path / "back"
    assert ckconv("convert", source, made if to == "gguf" else f"{made}/", "--to", to, "--base", base).code == 0
    if to == "mlx":
        keys = json.loads((made / "adapter_config.json").read_text())["lora_parameters"]["keys"]
        assert keys == [path.split(".", 3)[3]]
    assert ckconv("convert", made, f"{back}/", "--to", "peft", "--base", base).code == 0
    first, second = (load_file(one / "adapter_model.safetensors") for one in (source, back))
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("target", ["out.gguf", "out/"])
def test_modules_that_the_class_of_a_base_has_apart_are_of_another_base(target: str, ckconv, tmp_path: Path) -> None:
    to = ("--to", "gguf" if target.endswith("gguf") else "mlx")
    found = ckconv("convert", LORA / "phi3-fused", tmp_path / target, *to, "--base", FIXTURES / "hf/llama-bias-f32")
    assert (found.code, "self_attn.qkv_proj' is no module of a llama" in found.err) == (3, True), found.err
    assert "--base BASE names the model it was made for" in found.err
    found = ckconv("convert", LORA / "phi3-fused", tmp_path / target, *to, "--base", FIXTURES / "hf/phi3-bf16")
    assert found.code == 0, found.err
