"""Any source -> a Hugging Face checkpoint: names, rows, types and configuration, against what transformers wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Decoder, Raw, as_mixtral, bf16, save, save_gguf
from conftest import FIXTURES
from family_cases import checkpoint, recording
from models import Model
from safetensors_builder import tensors_of

from ckconv.api import convert, diff
from ckconv.core.options import Options
from ckconv.errors import CkconvError, UnsupportedError, UsageError
from ckconv.formats.detect import open_index

#: GGUF -> the checkpoint that llama.cpp's converter made it of.
ORIGINALS = [
    ("gemma3-text-bf16.auto", "gemma3-text-bf16", "bf16"),
    ("gpt2-f32.f32", "gpt2-hub-f32", "f32"),
    ("llama-bias-f32.f32", "llama-bias-f32", "f32"),
    ("llama-tied-bf16.auto", "llama-tied-bf16", "bf16"),
    ("llama-untied-f16-sharded.auto", "llama-untied-f16-sharded", "f16"),
    ("phi3-bf16.auto", "phi3-bf16", "bf16"),
    ("qwen2-tied-bf16.auto", "qwen2-tied-bf16", "bf16"),
    ("qwen3-tied-bf16.auto", "qwen3-tied-bf16", "bf16"),
]


def config_of(root: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((root / "config.json").read_text())
    return document


def to_hf(source: Path, out: Path, **options: Any) -> Path:
    convert(source, f"{out}/", to="safetensors", options=Options(**options))
    return out


def reasons(source: Path, tmp_path: Path, to: str = "safetensors", **options: Any) -> list[str]:
    with pytest.raises(UnsupportedError) as caught:
        convert(source, f"{tmp_path / 'refused'}/", to=to, options=Options(**options))
    assert caught.value.exit_code == 4
    assert not (tmp_path / "refused").exists()
    return list(caught.value.details) or [caught.value.message.partition(": ")[2]]


@pytest.mark.parametrize(("name", "original", "dtype"), ORIGINALS)
def test_a_gguf_is_the_checkpoint_it_was_made_of_byte_for_byte(
    tmp_path: Path, name: str, original: str, dtype: str
) -> None:
    made = tensors_of(to_hf(FIXTURES / "gguf" / f"{name}.gguf", tmp_path / "out", dtype=dtype))

    wanted = tensors_of(FIXTURES / "hf" / original)
    prefix = "transformer." if "gpt2" in name else ""
    wanted = {f"{prefix}{key}": value for key, value in wanted.items() if not key.endswith(".attn.bias")}
    assert made == wanted


@pytest.mark.parametrize(("name", "original", "dtype"), ORIGINALS)
def test_its_configuration_says_what_the_original_says(tmp_path: Path, name: str, original: str, dtype: str) -> None:
    made = config_of(to_hf(FIXTURES / "gguf" / f"{name}.gguf", tmp_path / "out", dtype=dtype))
    wanted = config_of(FIXTURES / "hf" / original)

    unsaid = {
        "_sliding_window_pattern", "initializer_range", "transformers_version", "pretraining_tp", "max_window_layers",
        "attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx",
        "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
        "use_bidirectional_attention", "layer_types",
    }  # fmt: skip
    differing = {key: (made.get(key), value) for key, value in wanted.items() if made.get(key) != value}
    assert differing.keys() <= unsaid, differing
    if made["model_type"] != "gpt2":
        assert "rope_theta" in made["rope_parameters"] or "full_attention" in made["rope_parameters"]
    if "gemma3" in name:
        assert made["layer_types"] == wanted["layer_types"]


def test_types_are_kept_where_none_is_asked_for_and_the_widest_is_loaded(tmp_path: Path) -> None:
    out = to_hf(FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf", tmp_path / "out")

    types = {name: dtype for name, (dtype, _, _) in tensors_of(out).items()}
    assert types["model.norm.weight"] == "F32"
    assert types["model.embed_tokens.weight"] == "BF16"
    assert (config_of(out)["dtype"], config_of(out)["torch_dtype"]) == ("float32", "float32")


@pytest.mark.parametrize("name", ["gpt2-hub-f32", "llama-untied-f16-sharded", "phi3-bf16", "qwen3-tied-bf16"])
def test_a_checkpoint_copied_keeps_names_types_and_configuration(tmp_path: Path, name: str) -> None:
    source = FIXTURES / "hf" / name
    out = to_hf(source, tmp_path / "out")

    kept = {key: value for key, value in tensors_of(source).items() if not key.endswith(".attn.bias")}
    assert tensors_of(out) == kept
    assert (out / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_types_that_are_not_floats_and_unknown_architectures_are_copied(tmp_path: Path) -> None:
    tensors = {
        "embeddings.position_ids": np.arange(7, dtype=np.int64)[None],
        "encoder.w": np.ones((2, 3), np.float64),
        "encoder.scale": Raw("F8_E4M3", (3,), b"\1\2\3"),
    }
    source = save(tmp_path / "bert", {"model_type": "mybert", "hidden_size": 3}, tensors)
    assert tensors_of(to_hf(source, tmp_path / "out")) == tensors_of(source)
    alone = source / "model.safetensors"
    (source / "config.json").unlink()
    convert(alone, str(tmp_path / "alone.safetensors"))
    assert tensors_of(tmp_path / "alone.safetensors") == tensors_of(source)
    assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize(
    ("to", "who", "what"),
    [
        ("safetensors", "transformers", "computes with random numbers for those that it does not find"),
        ("mlx", "mlx-lm", "refuses others"),
    ],
)
@pytest.mark.parametrize("options", [{"fuse": ("qkv",)}, {"names": "gguf"}])
def test_what_a_library_does_not_load_is_said_so(
    tmp_path: Path, to: str, who: str, what: str, options: dict[str, Any]
) -> None:
    report = convert(FIXTURES / "hf/qwen2-tied-bf16", f"{tmp_path}/out/", to=to, options=Options(**options))
    (note,) = [note for note in report.plan.notes if note.startswith(f"{who} does not load this output: ")]
    assert note.endswith(f"the names of --names hf, fused as its classes are, and {what}")


@pytest.mark.parametrize("to", ["safetensors", "mlx"])
def test_matrices_that_the_class_fuses_anyway_may_be_asked_for(tmp_path: Path, to: str) -> None:
    source = FIXTURES / "hf" / "phi3-bf16"
    report = convert(source, f"{tmp_path}/out/", to=to, options=Options(fuse=("qkv", "gate-up")))
    assert not [note for note in report.plan.notes if "does not load" in note]
    convert(source, f"{tmp_path}/plain/", to=to)
    assert tensors_of(tmp_path / "out") == tensors_of(tmp_path / "plain")


@pytest.mark.parametrize("to", ["gguf", "mlx", "bump"])
def test_a_missing_configuration_is_named(tmp_path: Path, to: str) -> None:
    source = save(tmp_path / "n", None, Decoder(layers=1).tensors(), metadata={"format": "pt"})
    assert f"there is no {source / 'config.json'}, which names the architecture" in reasons(source, tmp_path, to)


def test_an_unknown_architecture_is_refused_across_formats(tmp_path: Path) -> None:
    source = Model(arch="bitnet").write(tmp_path / "m.gguf")
    assert "ckconv does not know the architecture 'bitnet'" in reasons(source, tmp_path)[0]


@pytest.mark.parametrize(("dtype", "expected"), [("f32", "F32"), ("bf16", "BF16")])
def test_floats_are_converted_where_they_survive(tmp_path: Path, dtype: str, expected: str) -> None:
    out = to_hf(FIXTURES / "hf" / "llama-tied-bf16", tmp_path / "out", dtype=dtype)
    assert {kind for kind, _, _ in tensors_of(out).values()} == {expected}
    assert config_of(out)["dtype"] == {"f32": "float32", "bf16": "bfloat16"}[dtype]


def test_what_would_be_rounded_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    source = FIXTURES / "hf" / "llama-bias-f32"
    with pytest.raises(UnsupportedError) as caught:
        to_hf(source, tmp_path / "out", dtype="bf16")
    assert caught.value.code == "plan.lossy"
    out = to_hf(source, tmp_path / "out", dtype="bf16", allow_lossy=True)
    assert config_of(out)["dtype"] == "bfloat16"


# Blocks


def test_blocks_are_refused_all_at_once_and_decoded_when_asked(tmp_path: Path) -> None:
    source = FIXTURES / "kquants" / "llama64.Q4_K_M.gguf"
    assert reasons(source, tmp_path) == [
        "safetensors has no Q8_0 type: output.weight and 2 more",
        "safetensors has no Q5_0 type: token_embd.weight and 12 more",
    ]

    made = tensors_of(to_hf(source, tmp_path / "out", dequantize=True))

    stored = {t.name: t for t in gguf.GGUFReader(source).tensors}["blk.1.ffn_down.weight"]
    wanted = gguf.quants.dequantize(stored.data, stored.tensor_type)
    dtype, shape, data = made["model.layers.1.mlp.down_proj.weight"]
    assert (dtype, shape) == ("F32", wanted.shape)
    assert data == wanted.astype(np.float32).tobytes()
    queries = {t.name: t for t in gguf.GGUFReader(source).tensors}["blk.0.attn_q.weight"]
    rows = gguf.quants.dequantize(queries.data, queries.tensor_type)
    split = rows.reshape(4, 8, 2, 64).swapaxes(1, 2).reshape(64, 64)
    assert made["model.layers.0.self_attn.q_proj.weight"][2] == split.tobytes()


def test_mlx_triples_are_decoded_as_mlx_decodes_them(tmp_path: Path) -> None:
    source = FIXTURES / "mlx" / "llama-tied-bf16.q4g64"
    assert "matrices of MLX 4-bit group 64 BF16" in reasons(source, tmp_path)[0]
    out = to_hf(source, tmp_path / "out", dequantize=True, dtype="bf16")

    twin = FIXTURES / "mlx-dequantized" / "llama-tied-bf16.q4g64.dequantized"
    assert tensors_of(out) == tensors_of(twin)
    document = config_of(out)
    assert "quantization" not in document
    assert "quantization_config" not in document
    assert document["dtype"] == "bfloat16"


# Norms of gemma


def test_norms_that_did_not_come_from_adding_one_are_refused(tmp_path: Path) -> None:
    source = Model(arch="gemma3", head_dim=16, qk_norm=True, post_norms=True).write(tmp_path / "m.gguf")
    with pytest.raises(UnsupportedError) as caught:
        to_hf(source, tmp_path / "out")
    assert caught.value.code == "plan.lossy"


# Heads


def test_a_tied_head_is_left_out_untied_or_tied_again(tmp_path: Path) -> None:
    tied = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
    untied = to_hf(tied, tmp_path / "untied", tie="untie")
    made = tensors_of(untied)
    assert made["lm_head.weight"] == made["model.embed_tokens.weight"]
    assert config_of(untied)["tie_word_embeddings"] is False

    again = to_hf(untied, tmp_path / "again", tie="tie")
    assert "lm_head.weight" not in tensors_of(again)
    assert config_of(again)["tie_word_embeddings"] is True
    assert diff(tied, again).same


def test_a_head_of_its_own_is_not_tied(tmp_path: Path) -> None:
    found = reasons(FIXTURES / "hf" / "llama-bias-f32", tmp_path, tie="tie")
    assert found == ["lm_head.weight is not byte for byte the embedding, and --tie leaves it out"]


# RoPE


def llama3_factors(factor: float, dims: int = 16) -> np.ndarray:
    """The tensor as llama.cpp's converter computes it (``LlamaModel.generate_extra_tensors``)."""
    made = []
    for n in range(0, dims, 2):
        wavelength = 2 * np.pi * 10000.0 ** (n / dims)
        smooth = (8192 / wavelength - 1) / 3
        between = 1 / ((1 - smooth) / factor + smooth)
        made.append(1.0 if wavelength < 2048 else factor if wavelength > 8192 else between)
    return np.array(made, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_scaling_of_llama_3_is_recovered_from_its_factors(tmp_path: Path, factor: float) -> None:
    extra = {"rope_freqs.weight": llama3_factors(factor)}
    source = save_gguf(tmp_path / "m.gguf", Decoder(), "llama", permuted=True, extra=extra)
    out = to_hf(source, tmp_path / "out")

    scaling = {
        "factor": factor,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    assert config_of(out)["rope_scaling"] == scaling
    assert config_of(out)["rope_parameters"] == {"rope_theta": 10000.0, **scaling}
    assert open_index(out).config.rope_scaling == scaling  # type: ignore[union-attr]


def test_other_factors_are_refused_and_may_be_dropped(tmp_path: Path) -> None:
    extra = {"rope_freqs.weight": llama3_factors(8.0) * np.float32(1.01)}
    source = save_gguf(tmp_path / "m.gguf", Decoder(), "llama", permuted=True, extra=extra)

    assert reasons(source, tmp_path) == [
        "rope_freqs.weight is neither Llama 3's scaling nor a linear one: no rope_scaling gives these factors"
    ]
    assert config_of(to_hf(source, tmp_path / "out", drop=("rope_frequencies",)))["rope_scaling"] is None


def test_what_keys_scale_stays_where_factors_are_dropped(tmp_path: Path) -> None:
    keys = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    source = Model(extra_keys=keys, extra_tensors={"rope_freqs.weight": (8,)}).write(tmp_path / "m.gguf")
    scaling = config_of(to_hf(source, tmp_path / "out", drop=("rope_frequencies",)))["rope_scaling"]
    assert scaling == {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("name", "layout"), [("gguf/llama-tied-bf16.auto.gguf", "source"), ("hf/llama-tied-bf16", "interleaved")]
)
def test_rows_in_another_order_are_refused(tmp_path: Path, name: str, layout: str) -> None:
    assert "RoPE rows" in reasons(FIXTURES / name, tmp_path, rope_layout=layout)[0]


# Experts


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_experts_are_cut_out_of_their_stack_one_by_one(tmp_path: Path, family: str) -> None:
    decoder = Decoder(experts=3, qk_norm=family != "mixtral")
    tensors: Mapping[str, Any] = decoder.tensors()
    tensors = as_mixtral(tensors) if family == "mixtral" else tensors
    arch = "llama" if family == "mixtral" else "qwen3moe"
    source = save_gguf(tmp_path / "m.gguf", decoder, arch, permuted=family == "mixtral")
    out = to_hf(source, tmp_path / "out")

    assert {name: data for name, (_, _, data) in tensors_of(out).items()} == {
        name: array.tobytes() for name, array in tensors.items()
    }
    count = {"mixtral": "num_local_experts", "qwen3_moe": "num_experts"}[family]
    document = config_of(out)
    assert (document["model_type"], document[count], document["num_experts_per_tok"]) == (family, 3, 2)


# Classes


def test_a_class_without_a_place_for_a_tensor_refuses_it(tmp_path: Path) -> None:
    partly = Model(qkv_bias=True).write(tmp_path / "a.gguf")
    assert reasons(partly, tmp_path) == [
        "no tensor for layers.{n}.attention.output.bias in 2 layers (llama.block_count)"
    ]
    normed = Model(qk_norm=True).write(tmp_path / "b.gguf")
    assert reasons(normed, tmp_path) == [
        "no rule for blk.{n}.attn_q_norm.weight (2 tensors); "
        "hint: --drop 'blk.*.attn_q_norm.weight' leaves out what llama does not have",
        "no rule for blk.{n}.attn_k_norm.weight (2 tensors); "
        "hint: --drop 'blk.*.attn_k_norm.weight' leaves out what llama does not have",
    ]
    assert "no tensor for layers.{n}.attention.q.bias in 2 layers (qwen2.block_count)" in reasons(
        Model(arch="qwen2").write(tmp_path / "c.gguf"), tmp_path
    )


def test_biases_are_switched_on_by_the_configuration(tmp_path: Path) -> None:
    document = config_of(to_hf(Model(all_bias=True).write(tmp_path / "a.gguf"), tmp_path / "out"))
    assert (document["attention_bias"], document["mlp_bias"]) == (True, True)


# Names and fusing


@pytest.mark.parametrize("names", ["canonical", "gguf"])
@pytest.mark.parametrize(
    "name", ["hf/gpt2-hub-f32", "hf/phi3-bf16", "gguf/llama-bias-f32.f32.gguf", "gguf/gemma3-text-bf16.auto.gguf"]
)
def test_other_names_are_written_and_read_again(tmp_path: Path, name: str, names: str) -> None:
    out = to_hf(FIXTURES / name, tmp_path / "out", names=names)
    first = "token_embedding.weight" if names == "canonical" else "token_embd.weight"
    assert first in tensors_of(out)
    assert diff(FIXTURES / name, out).same

    back = to_hf(out, tmp_path / "back")
    assert diff(FIXTURES / name, back).same
    assert b"ckconv.names" not in (back / "model.safetensors").read_bytes()


@pytest.mark.parametrize("names", ["canonical", "gguf"])
@pytest.mark.parametrize(
    ("family", "case"),
    [
        ("qwen3moe", "tied"),  # experts, which a checkpoint has one by one
        ("apertus", "tied"),  # numbers, which are no tensors of a GGUF
        ("qwen3_next", "tied"),  # parts of what a GGUF has in one
        ("t5_encoder", "gated"),  # two tensors with one name in a GGUF, never both
    ],
)
def test_other_names_of_a_family_that_gguf_stores_otherwise(tmp_path: Path, family: str, case: str, names: str) -> None:
    source = checkpoint(recording(family)[case], tmp_path / "hf")
    convert(source, tmp_path / "m.gguf")

    out = to_hf(tmp_path / "m.gguf", tmp_path / "out", names=names)
    assert diff(tmp_path / "m.gguf", out).same
    assert not {name for name in tensors_of(out) if name.startswith("model.")}


def test_max_has_linear_layers_and_a_head_of_its_own(tmp_path: Path) -> None:
    source = FIXTURES / "hf" / "gpt2-hub-f32"
    out = to_hf(source, tmp_path / "out", names="max")

    hub, made = tensors_of(source), tensors_of(out)
    assert {name for name in made if not name.startswith("transformer.")} == {"lm_head.weight"}
    assert not any(name.endswith(".attn.bias") for name in made)
    weight = np.frombuffer(hub["h.0.attn.c_attn.weight"][2], np.float32).reshape(64, 192)
    assert made["transformer.h.0.attn.c_attn.weight"] == ("F32", (192, 64), weight.T.tobytes())
    assert made["lm_head.weight"][2] == hub["wte.weight"][2]
    assert diff(source, to_hf(out, tmp_path / "back", tie="tie")).same


@pytest.mark.parametrize(
    "name", ["gguf/llama-bias-f32.f32.gguf", "hf/qwen2-tied-bf16", "gguf/gemma3-text-bf16.auto.gguf"]
)
def test_rows_are_fused_weights_and_biases_alike_and_split_again(tmp_path: Path, name: str) -> None:
    apart = tensors_of(to_hf(FIXTURES / name, tmp_path / "apart"))
    out = to_hf(FIXTURES / name, tmp_path / "out", fuse=("qkv", "gate-up"))

    made, at = tensors_of(out), "model.layers.1."
    qkv = [apart[f"{at}self_attn.{letter}_proj.weight"][2] for letter in "qkv"]
    assert made[f"{at}self_attn.qkv_proj.weight"][2] == b"".join(qkv)
    both = [apart[f"{at}mlp.{word}_proj.weight"][2] for word in ("gate", "up")]
    assert made[f"{at}mlp.gate_up_proj.weight"][2] == b"".join(both)
    if f"{at}self_attn.q_proj.bias" in apart:
        biases = [apart[f"{at}self_attn.{letter}_proj.bias"][2] for letter in "qkv"]
        assert made[f"{at}self_attn.qkv_proj.bias"][2] == b"".join(biases)
    assert diff(FIXTURES / name, out).same
    assert tensors_of(to_hf(out, tmp_path / "back")) == apart


def test_parts_of_different_types_are_not_fused(tmp_path: Path) -> None:
    source = Model(types={"attn_v.weight": gguf.GGMLQuantizationType.BF16}).write(tmp_path / "m.gguf")
    (reason,) = reasons(source, tmp_path, fuse=("qkv",))
    assert reason.startswith("the parts of a fused tensor share one type: model.layers.0.self_attn.qkv_proj.weight")
    to_hf(source, tmp_path / "out", fuse=("qkv",), dtype="f32")


# Bump


@pytest.mark.parametrize(("name", "version"), [("llama-tied-bf16", 3), ("qwen3-tied-bf16", 5), ("qwen2-tied-bf16", 4)])
def test_a_bump_file_is_its_source_again(tmp_path: Path, name: str, version: int) -> None:
    source = FIXTURES / "gguf" / f"{name}.auto.gguf"
    options = Options(bump_version=version, source_record=False)
    convert(source, f"{tmp_path / 'bump'}/", to="bump", options=options)
    out = to_hf(tmp_path / "bump" / "weights.bump", tmp_path / "out", dtype="bf16", source_record=False)
    assert tensors_of(out) == tensors_of(FIXTURES / "hf" / name)


# What is asked for and cannot be


def test_tensors_without_a_rule_stop_the_conversion_or_are_dropped(tmp_path: Path) -> None:
    source = Model(extra_tensors={"blk.0.odd.weight": (4,), "blk.1.odd.weight": (4,)}).write(tmp_path / "m.gguf")
    assert reasons(source, tmp_path) == ["no rule for blk.{n}.odd.weight (2 tensors)"]
    to_hf(source, tmp_path / "out", drop=("*.odd.*",))


@pytest.mark.parametrize("to", ["safetensors", "mlx", "gguf"])
def test_what_the_class_needs_is_not_dropped(tmp_path: Path, to: str) -> None:
    """transformers would make it up at random."""
    source = FIXTURES / "hf" / "llama-tied-bf16"
    assert reasons(source, tmp_path, to, drop=("model.norm.weight",)) == [
        "no tensor for output_norm.weight, which --drop leaves out"
    ]
    found = reasons(source, tmp_path, to, drop=("model.layers.1.*",))
    if to == "gguf":
        assert found == ["--drop leaves out all tensors of 1 of 2 layers"]
    else:
        assert "no tensor for layers.{n}.ffn.down.weight, which --drop leaves out in 1 layer" in found
        assert len(found) == 9


def test_biases_that_the_configuration_promises_are_not_dropped(tmp_path: Path) -> None:
    assert "no tensor for layers.{n}.attention.q.bias, which --drop leaves out in 2 layers" in reasons(
        FIXTURES / "hf" / "llama-bias-f32", tmp_path, drop=("*bias",)
    )


def test_what_the_source_lacks_itself_is_no_reason_not_to_copy(tmp_path: Path) -> None:
    decoder = Decoder(layers=1)
    tensors = decoder.tensors() | {"more.weight": np.ones(4, np.float32)}
    del tensors["model.norm.weight"]
    source = save(tmp_path / "holey", decoder.config(), tensors)
    assert "model.norm.weight" not in tensors_of(to_hf(source, tmp_path / "copy", drop=("more.weight",)))
    assert reasons(source, tmp_path, drop=("*down_proj*",)) == [
        "no tensor for layers.{n}.ffn.down.weight, which --drop leaves out in 1 layer"
    ]


def test_a_head_that_is_dropped_is_tied(tmp_path: Path) -> None:
    out = to_hf(FIXTURES / "hf" / "phi3-bf16", tmp_path / "out", drop=("lm_head.weight",))
    assert "lm_head.weight" not in tensors_of(out)
    assert config_of(out)["tie_word_embeddings"] is True


@pytest.mark.parametrize("options", [{"set_meta": (("format", "x"),)}, {"drop_meta": ("format",)}])
def test_metadata_that_readers_need_are_not_changed(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        to_hf(FIXTURES / "hf" / "llama-tied-bf16", tmp_path / "out", **options)
    assert (caught.value.code, caught.value.exit_code) == ("usage.meta", 2)


def test_context(tmp_path: Path) -> None:
    out = to_hf(FIXTURES / "hf" / "llama-tied-bf16", tmp_path / "out", context=64)
    assert config_of(out)["max_position_embeddings"] == 64
    (reason,) = reasons(FIXTURES / "hf" / "gpt2-hub-f32", tmp_path, context=64)
    assert reason == "the position table has 128 rows, --context says 64"


@pytest.mark.parametrize(
    ("family", "case", "said"),
    [
        ("bloom", "two_heads", {"seq_length": 32}),
        ("dbrx", "one_key_for_all", {"max_seq_len": 32}),
        ("kimi_linear", "released_keys", {"model_max_length": 32}),
        ("mpt", "tied", {"max_seq_len": 32}),
    ],
)
def test_another_context_is_said_by_the_key_of_the_family(
    tmp_path: Path, family: str, case: str, said: dict[str, int]
) -> None:
    """No table of positions is there, whose rows would say it."""
    out = to_hf(checkpoint(recording(family)[case], tmp_path / "hf"), tmp_path / "out", context=32)

    assert said.items() <= config_of(out).items()


def test_another_context_of_a_class_without_one_is_refused(tmp_path: Path) -> None:
    (reason,) = reasons(checkpoint(recording("mamba")["tied"], tmp_path / "hf"), tmp_path, context=64)
    assert reason == "--context: no key of a mamba's config.json says a context length"


def test_the_text_model_of_several_modalities_becomes_one_of_its_own(tmp_path: Path) -> None:
    text = config_of(FIXTURES / "hf" / "gemma3-text-bf16")
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "dtype": "bfloat16",
        "vision_config": {"hidden_size": 4}, "text_config": text,
    }  # fmt: skip
    tensors: dict[str, Any] = {
        f"language_model.{name}": Raw(*entry)
        for name, entry in tensors_of(FIXTURES / "hf" / "gemma3-text-bf16").items()
    }
    tensors["vision_tower.w"] = bf16(np.ones((2, 2), np.float32))
    source = save(tmp_path / "both", config, tensors)

    assert tensors_of(to_hf(source, tmp_path / "same")) == tensors_of(source)
    report = convert(source, f"{tmp_path / 'mlx'}/", to="mlx")
    left = "only the text part is written, without vision_tower.* (1 tensor); --to safetensors keeps everything"
    assert left in report.plan.notes
    document = config_of(tmp_path / "mlx")
    assert (document["model_type"], document["architectures"]) == ("gemma3_text", ["Gemma3ForCausalLM"])
    assert "text_config" not in document
    assert tensors_of(tmp_path / "mlx") == tensors_of(FIXTURES / "hf" / "gemma3-text-bf16")


def test_every_reason_has_the_same_exit_status(tmp_path: Path) -> None:
    with pytest.raises(CkconvError) as caught:
        convert(
            FIXTURES / "hf" / "llama-tied-bf16", f"{tmp_path / 'out'}/", to="safetensors", options=Options(names="max")
        )
    assert caught.value.exit_code == 4
