"""Metadata against tensors (malformed input 25): the file contradicts itself, and says so with both numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gguf_builder import F32, Tensor, gguf
from models import Model

from ckconv.core.config import ModelConfig, config_differences
from ckconv.formats.detect import open_index

KEYS: dict[str, tuple[str, object]] = {
    "general.architecture": ("str", "llama"),
    "llama.block_count": ("u32", 2),
    "llama.context_length": ("u32", 8),
    "llama.embedding_length": ("u32", 8),
    "llama.feed_forward_length": ("u32", 12),
    "llama.attention.head_count": ("u32", 2),
    "llama.attention.head_count_kv": ("u32", 1),
    "llama.attention.layer_norm_rms_epsilon": ("f32", 1e-5),
}
SHAPES: dict[str, tuple[int, ...]] = {"token_embd.weight": (8, 5), "output_norm.weight": (8,)} | {
    f"blk.{n}.{name}.weight": dims
    for n in (0, 1)
    for name, dims in (
        ("attn_norm", (8,)),
        ("attn_q", (8, 8)),
        ("attn_k", (8, 4)),
        ("attn_v", (8, 4)),
        ("attn_output", (8, 8)),
        ("ffn_norm", (8,)),
        ("ffn_gate", (8, 12)),
        ("ffn_up", (8, 12)),
        ("ffn_down", (12, 8)),
    )
}


def _config() -> ModelConfig:
    return ModelConfig("llama", "llama", 2, 8, 12, 2, 1, 4, 5, 8, 1e-5, 10000.0, 4)


def write(
    folder: Path,
    keys: dict[str, tuple[str, object] | None] | None = None,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> Path:
    """The sound model with keys (``None``: without it) and shapes changed."""
    pairs = [(key, *value) for key, value in {**KEYS, **(keys or {})}.items() if value is not None]
    tensors = [Tensor(name, dims, F32) for name, dims in {**SHAPES, **(shapes or {})}.items()]
    path = folder / "m.gguf"
    path.write_bytes(gguf(pairs, tensors))
    return path


def u32(value: int) -> tuple[str, object]:
    return "u32", value


def test_sound(tmp_path: Path, ckconv) -> None:
    shown = ckconv("inspect", write(tmp_path), "--json").json
    config = shown["config"]
    assert (config["num_layers"], config["hidden_size"], config["num_heads"], config["num_kv_heads"]) == (2, 8, 2, 1)
    assert (config["head_dim"], config["vocab_size"], config["norm_eps"]) == (4, 5, 1e-05)
    assert shown["targets"][0]["converts"] is True
    assert ckconv("convert", tmp_path / "m.gguf", tmp_path / "m.bump").code == 0


CONTRADICTIONS = {
    "two stored names for one tensor": (
        {key.replace("llama.", "phi3."): value for key, value in KEYS.items()}
        | {"general.architecture": ("str", "phi3")},
        {f"blk.{n}.{name}.weight": dims for n in (0, 1) for name, dims in (("attn_qkv", (8, 16)), ("ffn_up", (8, 24)))},
        "'blk.0.attn_q.weight' and 'blk.0.attn_qkv.weight' are both layers.0.attention.q.weight",
    ),
    "no base for the rotary positions": ({"llama.rope.freq_base": ("f32", 0.0)}, {}, "llama.rope.freq_base is 0"),
    "a layer beyond the count": (
        {}, {"blk.40.attn_norm.weight": (8,)}, "llama.block_count is 2, tensors name layer 40",
    ),
    "layers beyond the count": ({"llama.block_count": u32(1)}, {}, "llama.block_count is 1, tensors name layer 1"),
    "hidden size": (
        {"llama.embedding_length": u32(16)}, {},
        "tensor 'token_embd.weight' has shape [5, 8], the configuration makes it [5, 16] "
        "(llama.vocab_size, llama.embedding_length)",
    ),
    "feed-forward size": (
        {"llama.feed_forward_length": u32(13)}, {},
        "tensor 'blk.0.ffn_gate.weight' has shape [12, 8], the configuration makes it [13, 8]",
    ),
    "key/value heads": (
        {"llama.attention.head_count_kv": u32(2)}, {},
        "tensor 'blk.0.attn_k.weight' has shape [4, 8], the configuration makes it [8, 8]",
    ),
    "one tensor only": (
        {}, {"blk.1.ffn_down.weight": (12, 7)},
        "tensor 'blk.1.ffn_down.weight' has shape [7, 12], the configuration makes it [8, 12]",
    ),
    "no heads": ({"llama.attention.head_count": u32(0)}, {}, "llama.attention.head_count is 0"),
    "no layers": ({"llama.block_count": u32(0)}, {}, "llama.block_count is 0"),
    "no hidden size": ({"llama.embedding_length": u32(0)}, {}, "llama.embedding_length is 0"),
    "heads do not divide": (
        {"llama.attention.head_count": u32(3), "llama.attention.head_count_kv": u32(3)}, {},
        "llama.embedding_length is 8, not a multiple of llama.attention.head_count, 3",
    ),
    "key/value heads do not divide": (
        {"llama.attention.head_count": u32(4), "llama.attention.head_count_kv": u32(3)}, {},
        "llama.attention.head_count is 4, not a multiple of llama.attention.head_count_kv, 3",
    ),
    "tokens": (
        {"tokenizer.ggml.tokens": ("arr[str]", ["a", "b", "c", "d", "e", "f"])}, {},
        "tokenizer.ggml.tokens has 6 entries, token_embd.weight 5 rows",
    ),
    "vocabulary": ({"llama.vocab_size": u32(6)}, {}, "llama.vocab_size is 6, the embedding has 5 rows"),
    "layers missing": ({"llama.block_count": None}, {}, "llama.block_count is missing"),
    "heads missing": ({"llama.attention.head_count": None}, {}, "llama.attention.head_count is missing"),
    "layers as text": (
        {"llama.block_count": ("str", "2")}, {}, "llama.block_count must be a whole number, got '2'",
    ),
    "layers as truth": (
        {"llama.block_count": ("bool", True)}, {}, "llama.block_count must be a whole number, got True",
    ),
    "absurd layers": (
        {"llama.block_count": ("u64", 10**12)}, {}, "llama.block_count is 1,000,000,000,000, outside 0 to 65,536",
    ),
    "negative heads": (
        {"llama.attention.head_count": ("i32", -2)}, {}, "llama.attention.head_count is -2, outside 0 to 2,147,483,648",
    ),
    "epsilon NaN": (
        {"llama.attention.layer_norm_rms_epsilon": ("f32", float("nan"))}, {},
        "llama.attention.layer_norm_rms_epsilon must be a finite number, got nan",
    ),
    "epsilon as text": (
        {"llama.attention.layer_norm_rms_epsilon": ("str", "\x1b[31m")}, {},
        r"llama.attention.layer_norm_rms_epsilon must be a finite number, got '\x1b[31m'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("keys", "shapes", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradiction(keys: dict, shapes: dict, message: str, tmp_path: Path, ckconv) -> None:
    path = write(tmp_path, keys, shapes)
    result = ckconv("convert", path, tmp_path / "m.bump")
    assert (result.code, result.out) == (3, "")
    assert f"error[model.config]: {path}: {message}" in result.err
    assert [found.name for found in tmp_path.iterdir()] == ["m.gguf"]
    assert message in ckconv("inspect", path).out
    assert ckconv("verify", path).code == 0
    assert ckconv("convert", path, tmp_path / "copy.gguf").code == 0
    assert (tmp_path / "copy.gguf").read_bytes() == path.read_bytes()
    assert ckconv("diff", path, tmp_path / "copy.gguf").code == 0


def test_several_shapes_are_listed_together(tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", write(tmp_path, {"llama.feed_forward_length": u32(13)}), tmp_path / "m.bump")
    assert result.err.count("the configuration makes it") == 6


def test_keys_without_the_architectures_prefix(tmp_path: Path, ckconv) -> None:
    keys: dict = {key: None for key in KEYS if key.startswith("llama.")}
    keys |= {key.removeprefix("llama."): value for key, value in KEYS.items() if key.startswith("llama.")}
    shown = ckconv("inspect", write(tmp_path, keys), "--json").json
    assert shown["config"]["hidden_size"] == 8
    result = ckconv("inspect", write(tmp_path, {**keys, "attention.head_count": u32(0)}))
    assert "attention.head_count is 0" in result.out


def test_prefix_goes_before_none(tmp_path: Path, ckconv) -> None:
    shown = ckconv("inspect", write(tmp_path, {"block_count": u32(77), "context_length": u32(9)}), "--json").json
    assert (shown["config"]["num_layers"], shown["config"]["context_length"]) == (2, 8)


def test_one_value_for_all_layers_may_be_an_array(tmp_path: Path, ckconv) -> None:
    same = {"llama.attention.head_count_kv": ("arr[u32]", [1, 1]), "llama.feed_forward_length": ("arr[i32]", [12, 12])}
    assert ckconv("inspect", write(tmp_path, same), "--json").json["config"]["num_kv_heads"] == 1
    for array, said in (([1, 2], "differs from layer to layer"), ([], "has 0 numbers, for 2 layers")):
        result = ckconv("inspect", write(tmp_path, {"llama.attention.head_count_kv": ("arr[u32]", array)}))
        assert f"llama.attention.head_count_kv {said}" in result.out
    source = write(tmp_path, {"llama.attention.head_count_kv": ("arr[str]", ["1"])})
    assert ckconv("convert", source, tmp_path / "m.bump").code == 3


def test_theta_that_is_not_named_is_llama_cpps(tmp_path: Path, ckconv) -> None:
    assert ckconv("inspect", write(tmp_path), "--json").json["config"]["rope_theta"] == 10000.0
    named = write(tmp_path, {"llama.rope.freq_base": ("f32", 500000.0)})
    assert ckconv("inspect", named, "--json").json["config"]["rope_theta"] == 500000.0


@pytest.mark.parametrize("value", [0.1, 1e-5, 1e-6, 9.999999974752427e-07])
def test_float32_numbers_are_shown_with_their_shortest_digits(value: float, tmp_path: Path, ckconv) -> None:
    path = write(tmp_path, {"llama.attention.layer_norm_rms_epsilon": ("f32", value)})
    assert len(repr(ckconv("inspect", path, "--json").json["config"]["norm_eps"])) <= 5


@pytest.mark.parametrize(("layers", "head_dim", "scalar"), [(62, 24, 16), (62, 16, 16), (3, 24, 24)])
def test_gemma3_27b_scales_attention_otherwise(layers: int, head_dim: int, scalar: int, tmp_path: Path) -> None:
    """No key says so: engines know that model by its number of layers."""
    model = Model(arch="gemma3", layers=layers, head_dim=head_dim, qk_norm=True, post_norms=True)
    index = open_index(model.write(tmp_path / "m.gguf"))
    assert index.config is not None
    assert (index.config.modifiers, index.config.query_scalar) == ((), scalar)


def test_the_scope_of_expressions_has_the_names_of_family_files_and_what_one_family_adds() -> None:
    config = replace(_config(), own={"embedding_scale": 12.0}, rope_scaling={"rope_type": "linear", "factor": 4.0})

    scope = config.scope

    assert (scope["layers"], scope["hidden"], scope["vocabulary"]) == (
        config.num_layers, config.hidden_size, config.vocab_size,
    )  # fmt: skip
    assert (scope["embedding_scale"], scope["rope_type"], scope["rope_factor"]) == (12.0, "linear", 4.0)


def test_what_one_family_adds_is_compared() -> None:
    ours, theirs = replace(_config(), own={"logit_scale": 8.0}), replace(_config(), own={"logit_scale": 4.0})

    assert config_differences(ours, theirs, same_words=False) == {"logit_scale": (8.0, 4.0)}
