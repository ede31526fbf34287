"""Checkpoints against what other tools made of them: transformers, llama.cpp and mlx-lm hold the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoints import Raw, save
from conftest import FIXTURES
from mlx_vectors import raw_tensors
from safetensors_builder import numbers, tensors_of

from ckconv.comparison.compare import diff, hash_index
from ckconv.core.tensors import TensorIndex
from ckconv.formats.detect import open_index
from ckconv.io.files import Files
from ckconv.io.rows import RowReader, canonical_pieces
from ckconv.quant.convert import decode

#: Checkpoint and its GGUF; tensors, and those of them that llama.cpp stores in another type (vectors as F32).
PAIRS = [
    ("gemma3-text-bf16", "gemma3-text-bf16.auto", 80, 37),
    ("gpt2-hub-f32", "gpt2-f32.f32", 36, 0),
    ("llama-bias-f32", "llama-bias-f32.f32", 35, 0),
    ("llama-tied-bf16", "llama-tied-bf16.auto", 20, 5),
    ("llama-untied-f16-sharded", "llama-untied-f16-sharded.auto", 21, 5),
    ("phi3-bf16", "phi3-bf16.auto", 21, 5),
    ("qwen2-tied-bf16", "qwen2-tied-bf16.auto", 26, 11),
    ("qwen3-tied-bf16", "qwen3-tied-bf16.auto", 24, 9),
]

#: llama.cpp's converter was told what to call the pre-tokenizer of a model whose tokenizer it does not know.
CALLED_OTHERWISE = {"tokenizer.ggml.pre", "tokenizer.ggml.add_bos_token"}

MLX_TWINS = [("llama-tied-bf16.q4g64", 20, 15), ("qwen3-tied-bf16.q4g64", 24, 15)]


def opened(*parts: str) -> TensorIndex:
    return open_index(FIXTURES.joinpath(*parts))


def values(index: TensorIndex, name: str) -> np.ndarray:
    """A canonical tensor's values as the package reads them, without the shift that its layout tells of."""
    tensor = index.tensors[name]
    with Files() as files:
        rows = [rows for _, rows in canonical_pieces(RowReader(tensor, files))]
    made = decode(np.concatenate(rows), tensor.dtype).reshape(tensor.shape)
    return made - np.float32(tensor.layout.shift)


@pytest.mark.parametrize(("name", "twin", "tensors", "retyped"), PAIRS)
def test_a_checkpoint_equals_its_gguf_and_has_its_hash(name: str, twin: str, tensors: int, retyped: int) -> None:
    one, other = opened("hf", name), opened("gguf", f"{twin}.gguf")

    for found in (diff(one, other), diff(other, one)):
        assert (found.different, found.only, found.config) == ((), ((), ()), {})
        assert {fact.key for fact in found.facts} <= CALLED_OTHERWISE
        assert (found.equal, len(found.retyped)) == (tensors, retyped)
    assert hash_index(one).model == hash_index(other).model


@pytest.mark.parametrize(("name", "tensors", "retyped"), MLX_TWINS)
def test_an_mlx_directory_equals_what_mlx_decoded(name: str, tensors: int, retyped: int) -> None:
    found = diff(opened("mlx", name), opened("mlx-dequantized", f"{name}.dequantized"), weights=True)

    assert found.same
    assert (found.equal, len(found.retyped)) == (tensors, retyped)


def test_a_split_gguf_is_its_mlx_source_but_for_the_quantized_matrices() -> None:
    found = diff(opened("gguf-split", "llama-untied-f32-00001-of-00003.gguf"), opened("mlx", "llama-untied-f32.q4g32"))

    assert found.equal == 5, "the norms"
    assert {item.dtypes for item in found.different} == {("F32", "MLX 4-bit group 32 F32")}
    assert len(found.different) == 16
    assert all(0 < item.relative_error < 0.12 for item in found.different), "a permuted row would be off by 1.4"


@pytest.fixture
def whole_gpt2(tmp_path: Path) -> Path:
    """gpt2-f32 as transformers names it, put together from the hub's copy of the same weights."""
    names = json.loads((FIXTURES / "hf" / "gpt2-f32" / "names.json").read_text())
    hub = raw_tensors(FIXTURES / "hf" / "gpt2-hub-f32" / "model.safetensors")
    tensors = {
        name: Raw("F32", tuple(shape), hub[name.removeprefix("transformer.")].tobytes())
        for name, (_, shape) in names.items()
    }
    config = json.loads((FIXTURES / "hf" / "gpt2-f32" / "config.json").read_text())
    return save(tmp_path / "gpt2", config, tensors)


def test_gpt2_is_the_same_with_and_without_its_prefix_and_masks(whole_gpt2: Path) -> None:
    hub, prefixed = opened("hf", "gpt2-hub-f32"), open_index(whole_gpt2)

    assert diff(hub, prefixed, weights=True).same
    assert hash_index(hub) == hash_index(prefixed)
    assert [(item.stored.name, item.reason) for item in hub.dropped] == [
        ("h.0.attn.bias", "a causal mask, the same in every model"),
        ("h.1.attn.bias", "a causal mask, the same in every model"),
    ]
    assert prefixed.dropped == ()


def test_every_whisper_tensor_has_a_canonical_name(tmp_path: Path) -> None:
    names = json.loads((FIXTURES / "hf" / "whisper-f32" / "names.json").read_text())
    config = json.loads((FIXTURES / "hf" / "whisper-f32" / "config.json").read_text())
    tensors = {name: np.full(shape, i, np.float32) for i, (name, (_, shape)) in enumerate(names.items())}
    index = open_index(save(tmp_path / "whisper", config, tensors))

    assert (index.unknown, index.dropped) == ((), ())
    assert len(index.tensors) == len(names) == 89, "two stored names for one canonical one would lose a tensor"
    assert set(index.canonical_of) == set(names)
    for stored, canonical in {
        "model.encoder.layers.1.self_attn.q_proj.bias": "enc.layers.1.attn.q.bias",
        "model.encoder.layers.0.self_attn_layer_norm.weight": "enc.layers.0.attn_norm.weight",
        "model.encoder.conv2.bias": "enc.conv2.bias",
        "model.decoder.layers.1.encoder_attn.out_proj.weight": "layers.1.cross_attn.output.weight",
        "model.decoder.layers.0.self_attn.k_proj.weight": "layers.0.attention.k.weight",
        "model.decoder.layers.0.final_layer_norm.bias": "layers.0.ffn_norm.bias",
        "model.decoder.embed_positions.weight": "position_embedding.weight",
    }.items():
        assert index.canonical_of[stored] == (canonical,)


def hf_values(name: str) -> Callable[[str], np.ndarray]:
    """The values of a checkpoint's stored tensors by numpy alone, whatever float type they have."""
    stored = tensors_of(FIXTURES / "hf" / name)
    found = {key: numbers(dtype, data).reshape(shape) for key, (dtype, shape, data) in stored.items()}
    return found.__getitem__


def gguf_values(name: str) -> Callable[[str], np.ndarray]:
    reader = gguf.GGUFReader(FIXTURES / "gguf" / f"{name}.gguf")
    found = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    return found.__getitem__


def split_rows(array: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's interleaving: row 2i of a head goes to i, row 2i + 1 to i + half."""
    return np.concatenate([np.concatenate([head[0::2], head[1::2]]) for head in np.split(array, heads)])


Value = Callable[[str], np.ndarray]

#: Folder, file, canonical tensor, and how numpy makes it from what the file stores.
RECOMPUTED: list[tuple[str, str, str, Callable[[Value], np.ndarray]]] = [
    ("hf", "llama-tied-bf16", "layers.1.attention.q.weight", lambda t: t("model.layers.1.self_attn.q_proj.weight")),
    ("gguf", "llama-tied-bf16.auto", "layers.1.attention.q.weight", lambda t: split_rows(t("blk.1.attn_q.weight"), 4)),
    ("gguf", "llama-tied-bf16.auto", "layers.0.attention.k.weight", lambda t: split_rows(t("blk.0.attn_k.weight"), 2)),
    ("gguf", "llama-tied-bf16.auto", "layers.0.attention.v.weight", lambda t: t("blk.0.attn_v.weight")),
    ("gguf", "llama-bias-f32.f32", "layers.1.attention.q.bias", lambda t: split_rows(t("blk.1.attn_q.bias"), 4)),
    ("gguf", "llama-bias-f32.f32", "layers.1.attention.k.bias", lambda t: split_rows(t("blk.1.attn_k.bias"), 2)),
    ("gguf", "qwen2-tied-bf16.auto", "layers.0.attention.q.weight", lambda t: t("blk.0.attn_q.weight")),
    ("hf", "llama-untied-f16-sharded", "output.weight", lambda t: t("lm_head.weight")),
    ("hf", "phi3-bf16", "layers.0.attention.q.weight", lambda t: t("model.layers.0.self_attn.qkv_proj.weight")[:64]),
    ("hf", "phi3-bf16", "layers.0.attention.k.weight", lambda t: t("model.layers.0.self_attn.qkv_proj.weight")[64:96]),
    ("hf", "phi3-bf16", "layers.0.attention.v.weight", lambda t: t("model.layers.0.self_attn.qkv_proj.weight")[96:]),
    ("hf", "phi3-bf16", "layers.1.ffn.gate.weight", lambda t: t("model.layers.1.mlp.gate_up_proj.weight")[:128]),
    ("hf", "phi3-bf16", "layers.1.ffn.up.weight", lambda t: t("model.layers.1.mlp.gate_up_proj.weight")[128:]),
    ("gguf", "phi3-bf16.auto", "layers.1.ffn.up.weight", lambda t: t("blk.1.ffn_up.weight")[128:]),
    ("hf", "gpt2-hub-f32", "layers.0.attention.k.weight", lambda t: t("h.0.attn.c_attn.weight").T[64:128]),
    ("hf", "gpt2-hub-f32", "layers.0.attention.v.bias", lambda t: t("h.0.attn.c_attn.bias")[128:]),
    ("hf", "gpt2-hub-f32", "layers.1.ffn.down.weight", lambda t: t("h.1.mlp.c_proj.weight").T),
    ("hf", "gpt2-hub-f32", "layers.1.attention.output.weight", lambda t: t("h.1.attn.c_proj.weight").T),
    ("hf", "gpt2-hub-f32", "position_embedding.weight", lambda t: t("wpe.weight")),
    ("gguf", "gpt2-f32.f32", "layers.0.attention.q.weight", lambda t: t("blk.0.attn_qkv.weight")[:64]),
    (
        "hf",
        "gemma3-text-bf16",
        "layers.5.ffn_norm.weight",
        lambda t: t("model.layers.5.pre_feedforward_layernorm.weight"),
    ),
    ("gguf", "gemma3-text-bf16.auto", "layers.5.ffn_norm.weight", lambda t: t("blk.5.ffn_norm.weight") - np.float32(1)),
    (
        "gguf",
        "gemma3-text-bf16.auto",
        "layers.0.attention.k_norm.weight",
        lambda t: t("blk.0.attn_k_norm.weight") - np.float32(1),
    ),
    (
        "gguf",
        "gemma3-text-bf16.auto",
        "layers.2.post_ffn_norm.weight",
        lambda t: t("blk.2.post_ffw_norm.weight") - np.float32(1),
    ),
    ("gguf", "gemma3-text-bf16.auto", "layers.0.attention.q.weight", lambda t: t("blk.0.attn_q.weight")),
]


@pytest.mark.parametrize(("folder", "file", "canonical", "expected"), RECOMPUTED)
def test_canonical_rows_are_what_numpy_makes_of_the_stored_ones(
    folder: str, file: str, canonical: str, expected: Callable[[Value], np.ndarray]
) -> None:
    stored = hf_values(file) if folder == "hf" else gguf_values(file)
    index = opened("hf", file) if folder == "hf" else opened("gguf", f"{file}.gguf")

    made, wanted = values(index, canonical), expected(stored)

    assert made.shape == wanted.shape == index.tensors[canonical].shape
    assert np.array_equal(made.view(np.uint32), np.ascontiguousarray(wanted).view(np.uint32))


@pytest.mark.parametrize("name", ["llama-tied-bf16", "qwen3-tied-bf16"])
def test_an_mlx_triple_is_recomputed_from_its_words(name: str) -> None:
    """4-bit codes, group 64, bfloat16: product and sum are rounded one after the other."""
    raw = raw_tensors(FIXTURES / "mlx" / f"{name}.q4g64" / "model.safetensors")
    module = "model.layers.1.mlp.gate_proj"
    words = raw[f"{module}.weight"].view(np.uint8)
    codes = np.stack([words & 15, words >> 4], -1).reshape(len(words), -1).astype(np.float32)
    scales, biases = (
        np.repeat((raw[f"{module}.{kind}"].view(np.uint16).astype(np.uint32) << 16).view(np.float32), 64, axis=1)
        for kind in ("scales", "biases")
    )

    def rounded(array: np.ndarray) -> np.ndarray:
        bits = array.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)

    expected = rounded(rounded(codes * scales) + biases)
    made = values(opened("mlx", f"{name}.q4g64"), "layers.1.ffn.gate.weight")

    assert np.array_equal(made, expected)
