"""Quantized models of templates of the engine's own: their blocks are the source's, and compute what transformers does.

Entries are expected from the GGUF, which the gguf package wrote; logits are transformers', of the decoded weights.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import bump_engine
import gguf
import numpy as np
import pytest
from family_directions import other_tensors
from gguf import GGMLQuantizationType as Q
from quantized_models import MODELS, PROMPT, recorded
from test_bump_circuits import BLOCKS, FULL, GLM4, RECURRENT

import ckconv
from ckconv import Options
from ckconv.errors import CkconvError

PINS = "required_numerical_contracts"


def bump_of(name: str, folder: Path, release: str = "july") -> Path:
    source = MODELS[name].write(folder / "m.gguf")
    asked = Options(bump_version=5, source_record=False, engine=release)
    ckconv.convert(source, f"{folder}/bump/", to="bump", options=asked)
    return folder / "bump" / "weights.bump"


def tensors_of(name: str) -> dict[str, str | int]:
    """Entry -> its tensor of the GGUF, or the length of a bias of zeros."""
    made: dict[str, str | int] = {"token_emb": "token_embd.weight", "output.weight": "output.weight"}
    wide = MODELS[name].wide
    for n, kind in enumerate(MODELS[name].layers):
        if MODELS[name].arch == "glm4":
            biases = {f"b{part}": f"attn_{part}.bias" for part in "qkv"} | {"bo": wide, "b1": 2 * wide, "b2": wide}
            layer = {entry: biases.get(entry, tensor) for entry, tensor in GLM4.items()}
        elif MODELS[name].arch == "nemotron_h":
            layer = dict(BLOCKS[kind])
        else:
            layer = dict(FULL if kind == "full_attention" else RECURRENT)
            layer |= {f"ffn_{part}": f"ffn_{part}.weight" for part in ("gate", "up", "down")}
        made |= {f"layer.{n}.{e}": f"blk.{n}.{t}" if isinstance(t, str) else t for e, t in layer.items()}
    last: dict[str, str | int] = {"final_ln_weight": "output_norm.weight"}
    return made | last | ({} if MODELS[name].arch == "qwen35" else {"final_ln_bias": wide})


@pytest.mark.parametrize("name", MODELS)
def test_every_entry_is_the_sources_tensor_block_by_block(name: str, tmp_path: Path) -> None:
    made = bump_of(name, tmp_path)
    said, data = json.loads(made.with_name("weights_manifest.json").read_text()), made.read_bytes()
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    wanted = []
    for entry, of in tensors_of(name).items():
        kind = "F32" if isinstance(of, int) else tensors[of].tensor_type.name
        raw = bytes(4 * of) if isinstance(of, int) else tensors[of].data.tobytes()
        if name.startswith("nemotron_h") and entry.endswith(("attn_q", "attn_k")):  # no position turns them
            rows = tensors[str(of)].data
            raw = rows.reshape(2, -1, 2, rows.shape[-1]).swapaxes(1, 2).tobytes()
        wanted.append((entry, kind.lower().replace("f32", "fp32"), raw))
    found = [(e["name"], e["dtype"], data[e["file_offset"] : e["file_offset"] + e["size"]]) for e in said["entries"]]
    assert found == wanted
    assert {word for _, word, _ in found} == {"fp32", *(kind.name.lower() for kind in MODELS[name].types.values())}


@pytest.mark.parametrize("name", MODELS)
def test_the_engine_computes_what_transformers_does_of_the_decoded_weights(name: str, tmp_path: Path) -> None:
    rows, wanted = bump_engine.logits(bump_of(name, tmp_path), PROMPT, "july"), recorded(name)
    assert wanted.std() > 0.1
    assert np.abs(rows - wanted).max() < 1e-4 * wanted.std()


@pytest.mark.parametrize(("name", "pinned"), [("qwen35-q8_0", True), ("qwen35-q4_k", True), ("qwen35-q5_k", False)])
def test_the_kernel_of_q5_k_is_unpinned_where_the_projection_has_another_type(
    name: str, pinned: bool, tmp_path: Path
) -> None:
    said = json.loads(bump_of(name, tmp_path).with_name("weights_manifest.json").read_text())
    assert (PINS in said.get("template", {})) == pinned


@pytest.mark.parametrize("name", MODELS)
def test_the_blocks_come_back(name: str, tmp_path: Path) -> None:
    made = bump_of(name, tmp_path)
    ckconv.convert(made, tmp_path / "back.gguf")
    found, wanted = (
        {tensor.name: (tensor.tensor_type, tensor.data.tobytes()) for tensor in gguf.GGUFReader(path).tensors}
        for path in (tmp_path / "back.gguf", tmp_path / "m.gguf")
    )
    assert found == wanted


def test_april_has_no_template_for_a_quantized_glm4(tmp_path: Path) -> None:
    with pytest.raises(CkconvError, match="the engine of April 2026 has no template for glm4"):
        bump_of("glm4-q8_0", tmp_path, "april")


def test_a_qwen35_without_linear_layers_is_refused(tmp_path: Path) -> None:
    source = MODELS["qwen35-q8_0"]._replace(layers=("full_attention",)).write(tmp_path / "m.gguf")
    with pytest.raises(CkconvError, match="a qwen35 without linear layers") as caught:
        ckconv.convert(source, tmp_path / "m.bump", options=Options(bump_version=5, engine="july"))
    assert (caught.value.code, caught.value.exit_code) == ("plan.refused", 4)


def test_the_configuration_of_nemotron_h(tmp_path: Path) -> None:
    said = json.loads(bump_of("nemotron_h-q8_0", tmp_path).with_name("weights_manifest.json").read_text())
    kinds = ["mamba", "mlp", "attention", "mamba"]

    def policy(kind: str, word: str) -> list[str]:
        return [word if one == kind else "none" for one in kinds]

    wanted = {
        "model": "nemotron_h", "embed_dim": 64, "num_layers": 4, "num_heads": 2, "num_kv_heads": 2, "head_dim": 32,
        "intermediate_size": 64, "context_length": 64, "vocab_size": 64, "rms_eps": 1e-5, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False, "layer_kinds": kinds, "hybrid_block_pattern": kinds, "has_qk_norm": False,
        "layer_state_policy": policy("mamba", "mamba2"), "layer_recurrent_policy": policy("mamba", "mamba2"),
        "layer_attention_policy": policy("attention", "full_attention"), "layer_mlp_policy": policy("mlp", "relu2"),
        "layer_kv_policy": policy("attention", "attention_kv_cache"), "layer_moe_policy": ["none"] * 4,
        "mamba_num_heads": 2, "mamba_head_dim": 32, "mamba_intermediate_size": 64, "gate_dim": 64, "ssm_inner_size": 64,
        "ssm_state_size": 16, "ssm_group_count": 2, "ssm_conv_kernel": 4, "ssm_conv_history": 4,
        "ssm_time_step_rank": 2, "ssm_conv_channels": 128, "mamba_conv_dim": 128, "mamba_projection_size": 194,
        "mamba_norm_group_size": 32, "recurrent_num_heads": 2, "recurrent_head_dim": 32,
        "ssm_projection_layout": "mamba2_v_qk_dt", "ssm_conv_history_mode": "kernel_width",
        "recurrent_state_layout": "heads_head_dim_state", "ckconv_engines": ["july"],
    }  # fmt: skip
    assert {key: said["config"].get(key) for key in wanted} == wanted
    assert said["quant_summary"]["layer.0"]["mamba_in_proj"] == "q8_0"
    assert said["quant_summary"]["layer.0"]["mamba_conv1d"] == "fp32"
    assert "template" not in said


@pytest.mark.parametrize("format", ["hf", "mlx"])
def test_nemotron_h_of_floats_is_right_once_it_is_quantized(format: str, tmp_path: Path) -> None:
    direct = bump_of("nemotron_h-q8_0", tmp_path)
    between = tmp_path / "between"
    to = "safetensors" if format == "hf" else format
    ckconv.convert(tmp_path / "m.gguf", f"{between}/", to=to, options=Options(dequantize=True))
    asked = Options(bump_version=5, source_record=False, engine="july")
    with pytest.raises(CkconvError, match=r"with matrices of Q8_0, Q4_K, Q6_K, Q5_0 only, and token_emb is") as caught:
        ckconv.convert(between, f"{tmp_path}/floats/", to="bump", options=asked)
    assert (caught.value.exit_code, caught.value.hint) == (4, "--quantize Q8_0")
    ckconv.convert(between, f"{tmp_path}/again/", to="bump", options=replace(asked, quantize="Q8_0"))
    rows = bump_engine.logits(tmp_path / "again" / "weights.bump", PROMPT, "july")
    assert np.abs(rows - bump_engine.logits(direct, PROMPT, "july")).max() < 1e-6


@pytest.mark.parametrize("name", ["nemotron_h-q8_0", "qwen35-q8_0"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda layer, slot: layer.pop(slot), "quant_summary has no layer.0.{slot}"),
        (lambda layer, slot: layer.update({slot: "bf16"}), "quant_summary: layer.0.{slot} is 'bf16', in the file q8_0"),
    ],
)
def test_verify_holds_the_summary_of_layers_of_their_own_against_the_entries(
    name: str, change: Any, sentence: str, tmp_path: Path
) -> None:
    made = bump_of(name, tmp_path)
    slot = "mamba_in_proj" if name.startswith("nemotron") else "attn_qkv"
    data = made.read_bytes()
    size = int.from_bytes(data[-40:-32], "little")
    metadata, path = json.loads(data[-48 - size : -48]), made.with_name("weights_manifest.json")
    manifest = json.loads(path.read_text())
    for document in (metadata, manifest):
        change(document["quant_summary"]["layer.0"], slot)
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())
    metadata["manifest_hash"] = digest.hexdigest()
    text = json.dumps(metadata, sort_keys=True, separators=(",", ":")).encode()
    footer = struct.pack("<8sQ32s", b"BUMPV5MD", len(text), hashlib.sha256(text).digest())
    made.write_bytes(data[: -48 - size] + text + footer)
    path.write_text(json.dumps(manifest, indent=2) + "\n")

    with pytest.raises(CkconvError) as caught:
        ckconv.verify(made)
    assert (caught.value.code, caught.value.message) == ("verify.quant-summary", sentence.format(slot=slot))


def test_nemotron_h_comes_back_as_a_checkpoint(tmp_path: Path) -> None:
    made = bump_of("nemotron_h-q8_0", tmp_path)
    for source, name in ((made, "back"), (tmp_path / "m.gguf", "direct")):
        ckconv.convert(source, f"{tmp_path}/{name}/", to="safetensors", options=Options(dequantize=True))
    assert other_tensors(tmp_path / "back", tmp_path / "direct") == ""
    found, wanted = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("back", "direct"))
    assert found == wanted


@pytest.mark.parametrize("release", ["april", "july"])
def test_blocks_that_nemotron_h_was_not_run_with_are_refused(release: str, tmp_path: Path) -> None:
    source = MODELS["nemotron_h-q4_k"]._replace(types={"token_embd": Q.Q6_K, "output.weight": Q.Q6_K, "": Q.Q5_K})
    why = (
        "only, and layer.0.mamba_in_proj is Q5_K" if release == "july" else "April 2026 has no template for nemotron_h"
    )
    with pytest.raises(CkconvError, match=why) as caught:
        ckconv.convert(
            source.write(tmp_path / "m.gguf"), tmp_path / "m.bump", options=Options(bump_version=5, engine=release)
        )
    assert caught.value.exit_code == 4
