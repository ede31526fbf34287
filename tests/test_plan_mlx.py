"""Any source -> an MLX directory, against what mlx-lm writes, loads and computes."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import consumers
import gguf
import numpy as np
import pytest
from checkpoints import Decoder, Raw, as_mixtral, save, save_gguf, stacked
from conftest import FIXTURES
from gguf import GGMLQuantizationType as Q
from models import Model
from safetensors_builder import tensors_of
from test_plan_checkpoint import config_of, reasons, to_hf

from ckconv.api import convert, diff
from ckconv.core.options import Options
from ckconv.errors import UnsupportedError
from ckconv.formats.gguf.read import read_gguf

LOGITS: dict[str, dict[str, list[float]]] = json.loads((FIXTURES / "logits" / "logits.json").read_text())


def to_mlx(source: Path, out: Path, **options: Any) -> Path:
    convert(source, f"{out}/", to="mlx", options=Options(**options))
    return out


# Names, rows and the index


@pytest.mark.parametrize(
    "name", ["gemma3-text-bf16", "llama-bias-f32", "phi3-bf16", "qwen2-tied-bf16", "qwen3-tied-bf16"]
)
def test_most_names_are_those_of_hugging_face(tmp_path: Path, name: str) -> None:
    source = FIXTURES / "hf" / name
    out = to_mlx(source, tmp_path / "out")

    assert tensors_of(out) == tensors_of(source)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(tensors_of(source))
    assert b'"__metadata__":{"format":"mlx"}' in (out / "model.safetensors").read_bytes()
    beside = {path.name for path in source.iterdir() if path.suffix != ".safetensors"}
    assert beside <= {path.name for path in out.iterdir()}


@pytest.mark.parametrize("name", ["hf/gpt2-hub-f32", "gguf/gpt2-f32.f32.gguf"])
def test_gpt2_has_linear_layers_and_a_prefix(tmp_path: Path, name: str) -> None:
    hub = tensors_of(FIXTURES / "hf" / "gpt2-hub-f32")
    made = tensors_of(to_mlx(FIXTURES / name, tmp_path / "out"))

    assert set(made) == {f"model.{key}" for key in hub if not key.endswith(".attn.bias")}
    weight = np.frombuffer(hub["h.1.mlp.c_proj.weight"][2], np.float32).reshape(256, 64)
    assert made["model.h.1.mlp.c_proj.weight"] == ("F32", (64, 256), weight.T.tobytes())
    assert config_of(tmp_path / "out")["n_ctx"] == 128


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_experts_are_stacked(tmp_path: Path, family: str) -> None:
    decoder = Decoder(experts=3, qk_norm=family != "mixtral")
    plain = decoder.tensors()
    module = "block_sparse_moe" if family == "mixtral" else "mlp"
    source = save(tmp_path / "hf", decoder.config(family), as_mixtral(plain) if family == "mixtral" else plain)
    out = to_mlx(source, tmp_path / "mlx")

    made = {name: (shape, data) for name, (_, shape, data) in tensors_of(out).items()}
    assert made == {name: (array.shape, array.tobytes()) for name, array in stacked(plain, module).items()}
    assert tensors_of(to_hf(out, tmp_path / "back")) == tensors_of(source)
    if family == "qwen3_moe":
        assert config_of(out)["norm_topk_prob"] is False, "what transformers takes where nothing is said"


def test_experts_are_counted_under_the_key_that_mlx_lm_reads(tmp_path: Path) -> None:
    decoder = Decoder(experts=2, qk_norm=True)
    config = decoder.config("qwen3_moe", num_experts=..., num_local_experts=2)
    source = save(tmp_path / "hf", config, decoder.tensors())

    assert config_of(to_mlx(source, tmp_path / "out"))["num_experts"] == 2


def test_a_configuration_in_the_style_of_transformers_5_is_completed(tmp_path: Path) -> None:
    decoder = Decoder()
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = decoder.config(rope_theta=..., rope_parameters={"rope_theta": 5e5, **scaling})
    document = config_of(to_mlx(save(tmp_path / "hf", config, decoder.tensors()), tmp_path / "out"))
    assert document["rope_theta"] == 5e5
    assert {key: document["rope_scaling"][key] for key in scaling} == scaling


def test_a_part_of_the_head_that_rope_turns_is_said_where_mlx_lm_looks(tmp_path: Path) -> None:
    """transformers 5 says it in ``rope_parameters``; mlx_lm/models/phi3.py reads the top, and else turns all."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    config = json.loads((FIXTURES / "hf/phi3-bf16/config.json").read_text())
    source = shutil.copytree(FIXTURES / "hf/phi3-bf16", tmp_path / "hf")
    config = {k: v for k, v in config.items() if k not in ("rope_theta", "rope_scaling", "partial_rotary_factor")}
    (source / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))

    assert config_of(to_mlx(source, tmp_path / "out"))["partial_rotary_factor"] == 0.5


def test_what_transformers_takes_for_granted_is_written_out(tmp_path: Path) -> None:
    """mlx_lm/models/gemma3_text.py has defaults of its own: 4 heads, a window of 512."""
    source = shutil.copytree(FIXTURES / "hf/gemma3-text-bf16", tmp_path / "hf")
    config = json.loads((source / "config.json").read_text())
    taken = {"sliding_window": 4096, "rms_norm_eps": 1e-6, "max_position_embeddings": 131072}
    (source / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in taken}))

    assert config_of(to_mlx(source, tmp_path / "out")).items() >= taken.items()


def test_a_family_that_nobody_looked_at_in_mlx_lm_is_refused(tmp_path: Path, ckconv) -> None:
    folder = FIXTURES / "hf/whisper-f32"
    names = json.loads((folder / "names.json").read_text())
    tensors = {name: np.zeros(shape, np.float32) for name, (_, shape) in names.items()}
    source = save(tmp_path / "hf", json.loads((folder / "config.json").read_text()), tensors)

    result = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx")
    what = "ckconv does not know what mlx-lm computes of a whisper (model_type)"
    assert (result.code, what in result.err) == (4, True)


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("model.encoder.layers.0.fc1.weight", "no tensor for enc.layers.{n}.ffn.up.weight in 1 layer"),
        ("model.decoder.layers.1.encoder_attn.q_proj.bias", "no tensor for layers.{n}.cross_attn.q.bias in 1 layer"),
        ("model.encoder.conv1.bias", "no tensor for enc.conv1.bias"),
    ],
)
def test_a_whisper_that_lacks_a_tensor_is_refused(tmp_path: Path, lost: str, said: str) -> None:
    folder = FIXTURES / "hf/whisper-f32"
    names = json.loads((folder / "names.json").read_text())
    tensors = {name: np.zeros(shape, np.float32) for name, (_, shape) in names.items() if name != lost}
    source = save(tmp_path / "hf", json.loads((folder / "config.json").read_text()), tensors)

    assert len(tensors) == len(names) - 1
    assert [reason for reason in reasons(source, tmp_path, "mlx") if reason.startswith(said)]


# Quantized matrices


@pytest.mark.parametrize("name", ["llama-tied-bf16.q4g64", "llama-untied-f32.q4g32", "qwen3-tied-bf16.q4g64"])
def test_triples_are_copied(tmp_path: Path, name: str) -> None:
    source = FIXTURES / "mlx" / name
    out = to_mlx(source, tmp_path / "out")

    assert tensors_of(out) == tensors_of(source)
    assert (out / "config.json").read_bytes() == (source / "config.json").read_bytes()
    again = to_mlx(out, tmp_path / "canonical", names="canonical")
    back = to_mlx(again, tmp_path / "back")
    assert tensors_of(back) == tensors_of(source)
    assert config_of(back)["quantization"] == config_of(source)["quantization"]


def blocks_of(rng: np.random.Generator, rows: int, columns: int, kind: Q) -> np.ndarray:
    """Sound blocks of a type: random numbers as the gguf package quantizes them."""
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    return gguf.quants.quantize(values, kind)


#: GGUF type -> mode, bits and group of the triple.
TYPES = [
    (Q.Q4_0, "affine", 4, 32),
    (Q.Q4_1, "affine", 4, 32),
    (Q.Q5_0, "affine", 5, 32),
    (Q.Q5_1, "affine", 5, 32),
    (Q.Q8_0, "affine", 8, 32),
    (Q.MXFP4, "mxfp4", 4, 32),
]


def quantized_gguf(path: Path, kind: Q, names: tuple[str, ...]) -> Path:
    decoder, rng = Decoder(layers=1), np.random.default_rng(3)
    shapes = {"ffn_up": (96, 64), "ffn_gate": (96, 64), "token_embd": (40, 64), "attn_q": (64, 64)}
    blocks = {name: (blocks_of(rng, *shapes[name.split(".")[-2]], kind), kind) for name in names}
    return save_gguf(path, decoder, "llama", permuted=True, blocks=blocks)


@pytest.mark.parametrize(("kind", "mode", "bits", "group"), TYPES)
def test_blocks_become_triples_of_the_same_numbers(tmp_path: Path, kind: Q, mode: str, bits: int, group: int) -> None:
    source = quantized_gguf(tmp_path / "m.gguf", kind, ("blk.0.ffn_up.weight", "token_embd.weight"))
    out = to_mlx(source, tmp_path / "out")

    entry = {"group_size": group, "bits": bits, "mode": mode}
    assert config_of(out)["quantization"] == config_of(out)["quantization_config"] == entry
    made = tensors_of(out)
    module = "model.layers.0.mlp.up_proj"
    assert made[f"{module}.weight"][:2] == ("U32", (96, 64 * bits // 32))
    assert made[f"{module}.scales"][:2] == ("F32" if mode == "affine" else "U8", (96, 2))
    assert (f"{module}.biases" in made) == (mode == "affine")
    assert diff(source, out).same


@pytest.mark.parametrize("name", ["kquants/llama64.Q4_K_M.gguf", "gguf/qwen2-tied-bf16.auto.gguf"])
def test_a_gguf_comes_back_byte_for_byte(tmp_path: Path, name: str) -> None:
    source = FIXTURES / name
    convert(to_mlx(source, tmp_path / "mlx"), str(tmp_path / "back.gguf"))

    made, wanted = (
        {t.name: (t.tensor_type, t.data.tobytes()) for t in gguf.GGUFReader(path).tensors}
        for path in (tmp_path / "back.gguf", source)
    )
    assert made == wanted


def test_groups_that_do_not_fit_are_counted_once(tmp_path: Path) -> None:
    blocks = np.zeros((96, 2, 18), np.uint8)
    blocks[5, 1, :2] = np.array([0x7C00], "<u2").view(np.uint8)  # an infinite scale
    source = save_gguf(
        tmp_path / "m.gguf", Decoder(layers=1), "llama", permuted=True,
        blocks={"blk.0.ffn_up.weight": (blocks.reshape(96, 36), Q.Q4_0)},
    )  # fmt: skip
    with pytest.raises(UnsupportedError) as caught:
        to_mlx(source, tmp_path / "out")
    assert (caught.value.code, caught.value.details) == ("plan.repack", ("blk.0.ffn_up.weight: 1 group",))
    assert not (tmp_path / "out").exists()


def test_most_modules_share_an_entry_and_others_have_their_own(tmp_path: Path) -> None:
    kinds = {"blk.0.ffn_up.weight": Q.Q8_0, "blk.0.ffn_gate.weight": Q.Q8_0, "blk.0.attn_q.weight": Q.Q4_0}
    rng = np.random.default_rng(1)
    shapes = {"ffn_up": (96, 64), "ffn_gate": (96, 64), "attn_q": (64, 64)}
    blocks = {name: (blocks_of(rng, *shapes[name.split(".")[-2]], kind), kind) for name, kind in kinds.items()}
    source = save_gguf(tmp_path / "n.gguf", Decoder(layers=1), "llama", permuted=True, blocks=blocks)
    out = to_mlx(source, tmp_path / "out")

    assert config_of(out)["quantization"] == {
        "group_size": 32, "bits": 8, "mode": "affine",
        "model.layers.0.self_attn.q_proj": {"group_size": 32, "bits": 4, "mode": "affine"},
    }  # fmt: skip
    assert diff(source, out).same


def test_planes_are_fused_each_on_its_own(tmp_path: Path) -> None:
    source = FIXTURES / "mlx" / "llama-untied-f32.q4g32"
    apart = tensors_of(source)
    out = to_mlx(source, tmp_path / "out", fuse=("qkv",))

    made, at = tensors_of(out), "model.layers.1.self_attn"
    for kind in ("weight", "scales", "biases"):
        parts = [apart[f"{at}.{letter}_proj.{kind}"][2] for letter in "qkv"]
        assert made[f"{at}.qkv_proj.{kind}"][2] == b"".join(parts)
    assert diff(source, out).same
    assert tensors_of(to_mlx(out, tmp_path / "back")) == apart


def test_only_what_is_named_is_decoded(tmp_path: Path) -> None:
    out = to_mlx(FIXTURES / "mlx" / "llama-tied-bf16.q4g64", tmp_path / "out", decode=("*.embed_tokens.*",))
    made = tensors_of(out)
    assert made["model.embed_tokens.weight"][:2] == ("F32", (384, 64))
    assert "model.embed_tokens.scales" not in made
    assert made["model.layers.0.mlp.up_proj.weight"][0] == "U32"
    assert config_of(out)["quantization"] == {"group_size": 64, "bits": 4, "mode": "affine"}


def test_blocks_without_an_exact_triple_are_refused(tmp_path: Path) -> None:
    source = Model(hidden=256, ffn=256, matrix=Q.Q6_K).write(tmp_path / "m.gguf")
    assert reasons(source, tmp_path, "mlx") == ["Q6_K has no exact form in MLX: token_embd.weight and 14 more"]
    made = tensors_of(to_mlx(source, tmp_path / "out", decode=("blk.*", "token_embd.weight")))
    assert {dtype for dtype, _, _ in made.values()} == {"F32"}


def test_keep_keeps_the_type_or_refuses(tmp_path: Path) -> None:
    source = quantized_gguf(tmp_path / "m.gguf", Q.Q4_1, ("blk.0.ffn_up.weight",))
    assert reasons(source, tmp_path, "mlx", dtype="keep") == ["Q4_1 is another type in MLX: blk.0.ffn_up.weight"]


def test_float16_scales_are_what_mlx_itself_makes_of_a_gguf(tmp_path: Path) -> None:
    source = quantized_gguf(tmp_path / "m.gguf", Q.Q4_1, ("blk.0.ffn_up.weight",))
    made = tensors_of(to_mlx(source, tmp_path / "out", dtype="f16", allow_lossy=True))
    stored = next(t for t in gguf.GGUFReader(source).tensors if t.name == "blk.0.ffn_up.weight")
    blocks = stored.data.reshape(96, 2, 20)
    dtype, shape, data = made["model.layers.0.mlp.up_proj.scales"]
    assert (dtype, shape, data) == ("F16", (96, 2), blocks[..., :2].tobytes())
    assert made["model.layers.0.mlp.up_proj.biases"][2] == blocks[..., 2:4].tobytes()


# Architectures without rules


def test_an_unknown_architecture_is_only_copied(tmp_path: Path) -> None:
    tensors = {"layers.0.w": np.ones((2, 4), np.float32), "ids": np.arange(3, dtype=np.int64)}
    source = save(tmp_path / "hf", {"model_type": "bitnet"}, tensors)
    assert "ckconv does not know the architecture" in reasons(source, tmp_path, "mlx")[0], (
        "mlx-lm may compute something else"
    )
    assert "ckconv does not know the architecture" in reasons(source, tmp_path, "mlx", names="canonical")[0]

    own = save(tmp_path / "mlx", {"model_type": "bitnet"}, tensors, metadata={"format": "mlx"})
    out = to_mlx(own, tmp_path / "out")
    assert (tensors_of(out), config_of(out)) == (tensors_of(source), config_of(source))
    assert tensors_of(to_hf(out, tmp_path / "back")) == tensors_of(source)


def test_quantized_modules_of_an_unknown_architecture_are_only_copied(tmp_path: Path) -> None:
    source = FIXTURES / "mlx" / "llama-untied-f32.q4g32"
    tensors = {name: Raw(*entry) for name, entry in tensors_of(source).items()}
    config = {**config_of(source), "model_type": "unheard-of", "architectures": ["UnheardOf"]}
    unknown = save(tmp_path / "unknown", config, tensors, metadata={"format": "mlx"})

    assert tensors_of(to_mlx(unknown, tmp_path / "out")) == tensors_of(source)
    assert "ckconv does not know the architecture" in reasons(unknown, tmp_path)[0]
    assert "ckconv does not know the architecture" in reasons(unknown, tmp_path, "mlx", dequantize=True)[0]


# What mlx-lm's classes do not compute


def test_what_the_class_does_not_know_is_refused(tmp_path: Path) -> None:
    decoder = Decoder()
    window = save(tmp_path / "a", decoder.config("mistral", sliding_window=32), decoder.tensors())
    assert reasons(window, tmp_path, "mlx") == [
        "attention slides over 32 tokens (sliding_window), mlx-lm attends to all 128"
    ]
    to_mlx(window, tmp_path / "short", context=32)

    wide = Decoder(head_dim=32, experts=2)
    mixtral = save(tmp_path / "b", wide.config("mixtral"), as_mixtral(wide.tensors()))
    assert reasons(mixtral, tmp_path, "mlx") == ["mlx-lm's mixtral takes hidden / heads for the size of a head, not 32"]

    double = save(tmp_path / "c", decoder.config(), {**decoder.tensors(), "model.norm.weight": np.ones(64)})
    assert reasons(double, tmp_path, "mlx") == ["mlx loads no F64 tensors: model.norm.weight"]
    gpt2 = FIXTURES / "hf" / "gpt2-hub-f32"
    assert reasons(gpt2, tmp_path, "mlx", tie="untie") == [
        "mlx-lm's gpt2 has no output head of its own (tie_word_embeddings)"
    ]

    relu = {**config_of(gpt2), "activation_function": "relu"}
    tensors = {name: Raw(*entry) for name, entry in tensors_of(gpt2).items()}
    other = save(tmp_path / "d", relu, tensors)
    assert reasons(other, tmp_path, "mlx") == [
        "activation_function = 'relu' changes the computation; mlx-lm does not know it"
    ]


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("model_type", "scaling", "reason"),
    [
        ("llama", {**YARN, "truncate": False}, "truncate = False changes the computation"),
        (
            "llama",
            {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
            "rope_type longrope .*; mlx-lm uses the long factors for the first",
        ),
        ("mixtral", YARN, "which mlx-lm's mixtral does not do"),
    ],
)
def test_scaling_that_mlx_lm_computes_otherwise_is_refused(
    tmp_path: Path, model_type: str, scaling: dict[str, Any], reason: str
) -> None:
    decoder = Decoder(experts=2 if model_type == "mixtral" else 0)
    tensors = as_mixtral(decoder.tensors()) if decoder.experts else decoder.tensors()
    source = save(tmp_path / "hf", decoder.config(model_type, rope_scaling=scaling), tensors)

    assert any(re.search(reason, found) for found in reasons(source, tmp_path, "mlx"))


@pytest.mark.parametrize(
    "scaling", [YARN, {**YARN, "beta_fast": 4.0, "mscale": 0.7, "mscale_all_dim": 0.5, "attention_factor": None}]
)
def test_scaling_that_mlx_lm_computes_as_transformers_does_stays(tmp_path: Path, scaling: dict[str, Any]) -> None:
    decoder = Decoder()
    source = save(tmp_path / "hf", decoder.config(rope_scaling=scaling), decoder.tensors())

    assert config_of(to_mlx(source, tmp_path / "out"))["rope_scaling"] == scaling


@pytest.mark.parametrize("alone", [{"mscale": 0.7}, {"mscale_all_dim": 1.0}])
def test_what_mlx_lm_alone_multiplies_by_is_not_written_and_is_read_of_its_own(
    tmp_path: Path, alone: dict[str, float]
) -> None:
    """``YarnRoPE`` of mlx-lm multiplies by one ``mscale``, too; transformers by both or by neither."""
    decoder = Decoder()
    source = save(tmp_path / "hf", decoder.config(rope_scaling={**YARN, **alone}), decoder.tensors())

    out = to_mlx(source, tmp_path / "out")
    assert config_of(out)["rope_scaling"] == YARN

    config = config_of(out) | {"rope_scaling": {**YARN, **alone}, "rope_parameters": None}
    (out / "config.json").write_text(json.dumps(config))
    growth = 0.1 * math.log(4.0)
    factor = (growth * alone.get("mscale", 1) + 1) / (growth * alone.get("mscale_all_dim", 0) + 1)
    convert(out, tmp_path / "m.gguf")
    said = read_gguf(tmp_path / "m.gguf").metadata["llama.rope.scaling.attn_factor"].value
    assert said == pytest.approx(factor / (growth + 1))  # llama.cpp multiplies by the rest


def test_numbers_that_the_two_libraries_take_for_granted_are_written_out(tmp_path: Path) -> None:
    """Without an original context transformers takes the model's own, mlx-lm 4096; one ``mscale`` alone is ignored by
    transformers only."""
    decoder = Decoder()
    scaling = {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7}
    source = save(tmp_path / "hf", decoder.config(rope_scaling=scaling), decoder.tensors())

    written = config_of(to_mlx(source, tmp_path / "out"))["rope_scaling"]
    assert written == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


def test_gemma3_needs_the_layer_of_full_attention_that_mlx_lm_looks_for(tmp_path: Path) -> None:
    """``cache[sliding_window_pattern - 1]`` of mlx_lm/models/gemma3_text.py fails for fewer layers."""
    gemma = FIXTURES / "hf" / "gemma3-text-bf16"
    layers = {n: Raw(*t) for n, t in tensors_of(gemma).items() if not re.search(r"layers\.[2-5]\.", n)}
    config = {**config_of(gemma), "num_hidden_layers": 2, "layer_types": ["sliding_attention"] * 2}
    source = save(tmp_path / "hf", config, layers)

    assert reasons(source, tmp_path, "mlx") == [
        "mlx-lm's gemma3 wants at least 6 layers, one of full attention among them "
        "(num_hidden_layers, layer_types, sliding_window_pattern)"
    ]


# What mlx-lm computes


def test_mlx_lm_computes_the_reference_logits(tmp_path: Path, mlx_lm: consumers.Consumer) -> None:
    outputs: dict[Path, tuple[str, float]] = {}
    for name in LOGITS:
        if name == "gpt2-f32":  # the same weights as the hub's
            continue
        twin = next((FIXTURES / "gguf").glob(f"{name.replace('-hub', '')}.*"))
        outputs[to_mlx(FIXTURES / "hf" / name, tmp_path / f"{name}.hf")] = name, 0.01 if "f32" in name else 0.05
        outputs[to_mlx(twin, tmp_path / f"{name}.gguf")] = name, 0.01
    prompt = tuple(LOGITS["llama-tied-bf16"]["prompt_ids"])
    for path, (name, limit) in outputs.items():
        wanted = np.array(LOGITS[name]["last_row"])
        assert np.abs(mlx_lm.logits(path, prompt)[-1] - wanted).max() < limit, path.name


@pytest.mark.parametrize("kind", [kind for kind, *_ in TYPES])
def test_mlx_decodes_a_triple_to_the_very_values_of_the_blocks(tmp_path: Path, kind: Q) -> None:
    mx = pytest.importorskip("mlx.core")
    source = quantized_gguf(tmp_path / "m.gguf", kind, ("blk.0.ffn_up.weight",))
    out = to_mlx(source, tmp_path / "out")

    arrays = mx.load(str(out / "model.safetensors"))
    triple = [arrays.get(f"model.layers.0.mlp.up_proj.{part}") for part in ("weight", "scales", "biases")]
    decoded = mx.dequantize(*triple, **config_of(out)["quantization"]).astype(mx.float32)
    made = np.array(decoded)
    stored = next(t for t in gguf.GGUFReader(source).tensors if t.name == "blk.0.ffn_up.weight")
    wanted = gguf.quants.dequantize(stored.data, stored.tensor_type)
    # A zero's sign is not kept by every pair of types.
    assert np.array_equal((made + 0.0).view(np.uint32), (wanted + np.float32(0)).view(np.uint32))
