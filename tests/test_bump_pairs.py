"""Every family that goes to bump 5 in a release has entries and a configuration that are expected by hand.

The pairs are those of family files and of releases. Sources are GGUFs of the gguf package; entries are packed by
:mod:`bump5_expected`, configurations are written from the keys of the GGUF. Families with layers of their own have
their entries in :mod:`test_bump_quantized`, those that are written as others theirs in :mod:`test_bump_families`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bump3_expected import Source
from bump5_expected import expected_bump5
from gguf import GGMLQuantizationType as Q
from models import Model
from quantized_models import MODELS, Quantized
from test_bump_families import HELD

import ckconv
from ckconv import Options
from ckconv.formats.bump.releases import table_of_families

BOTH = ["april", "july"]


class Pair(NamedTuple):
    """A model of a family for a release.

    Attributes:
        engines: releases that the file is for.
        own: keys of the configuration besides those of every family.
        packed: its entries are those of a llama and its like.
        kept: floats that stay as they are.
    """

    model: Model | Quantized
    engines: list[str]
    own: Mapping[str, Any] = {}
    packed: bool = True
    kept: Q | None = None


GEMMA3 = Model(
    arch="gemma3",
    context=8,
    head_dim=32,
    qk_norm=True,
    post_norms=True,
    extra_keys={"gemma3.attention.sliding_window": 8},
)
QWEN3_VL = Model(
    arch="qwen3vl",
    head_dim=32,
    qk_norm=True,
    matrix=Q.Q8_0,
    head="own",
    extra_keys={"qwen3vl.rope.dimension_sections": [6, 5, 5, 0], "qwen3vl.n_deepstack_layers": 1},
)
SECTIONS = {"mrope_sections": [6, 5, 5, 0], "mrope_n_dims": 32, "rope_layout": "multi_section_1d"}
#: The keys of a Qwen 3.5, whose heads are 32 and whose sections begin with a quarter of that.
QWEN35 = {
    "mrope_n_dims": 16, "mrope_sections": [8, 0, 0, 0], "ssm_conv_kernel": 4, "ssm_state_size": 32,
    "ssm_group_count": 2, "ssm_time_step_rank": 2, "ssm_inner_size": 64, "full_attention_interval": 4,
    "layer_kinds": ["recurrent", "recurrent", "full_attention"],
}  # fmt: skip

PAIRS = {
    ("llama", "april"): Pair(Model(head="own", matrix=Q.BF16), BOTH),
    ("llama", "july"): Pair(Model(head="own", matrix=Q.BF16), ["july"], kept=Q.BF16),
    ("qwen2", "april"): Pair(Model(arch="qwen2", qkv_bias=True), ["april"]),
    ("qwen2", "july"): Pair(Model(arch="qwen2", qkv_bias=True, matrix=Q.Q8_0), BOTH),
    ("qwen3", "april"): Pair(Model(arch="qwen3", head_dim=32, qk_norm=True, head="own"), BOTH),
    ("qwen3", "july"): Pair(Model(arch="qwen3", head_dim=32, qk_norm=True, matrix=Q.Q8_0), BOTH),
    ("gemma3", "april"): Pair(GEMMA3, BOTH, {"sliding_window": 8}),
    ("gemma3", "july"): Pair(GEMMA3, BOTH, {"sliding_window": 8}),
    ("qwen3_vl", "july"): Pair(QWEN3_VL, ["july"], SECTIONS | {"num_deepstack_layers": 1}),
    ("glm4", "july"): Pair(MODELS["glm4-q8_0"], ["july"], {"rope_layout": "pairwise"}, packed=False),
    ("qwen3_5", "july"): Pair(MODELS["qwen35-q8_0"], ["july"], QWEN35, packed=False),
}

#: Pairs whose configuration is expected elsewhere: families as others', and those with entries of their own.
ELSEWHERE = {(name.partition("-")[0], release) for name in HELD for release in BOTH} | {("nemotron_h", "july")}


def config_of(path: Path, pair: Pair) -> dict[str, Any]:
    """What a GGUF says, in the engine's words."""
    source = Source(path)
    heads, context = source.key("attention.head_count"), source.key("context_length")
    sized = f"{source.arch}.attention.key_length" in source.fields
    size = source.key("attention.key_length") if sized else source.key("embedding_length") // heads
    floats = {name.rpartition(".")[2]: value for name, value in source.fields.items() if isinstance(value, float)}
    rotary = "rope.dimension_count"
    return {
        "model": source.arch,
        "embed_dim": source.key("embedding_length"),
        "attn_out_dim": heads * size,
        "num_layers": source.key("block_count"),
        "num_heads": heads,
        "num_kv_heads": source.key("attention.head_count_kv"),
        "head_dim": size,
        "intermediate_size": source.key("feed_forward_length"),
        "context_length": context,
        "rope_theta": floats["freq_base"],
        "rotary_dim": source.key(rotary) if f"{source.arch}.{rotary}" in source.fields else size,
        "rope_scaling_type": "none",
        "rope_scaling_factor": 1.0,
        "rope_original_context_length": context,
        "rope_beta_fast": 0.0,
        "rope_beta_slow": 0.0,
        "rope_attn_factor": 1.0,
        "vocab_size": len(source.tensors["token_embd.weight"].data),
        "rms_eps": pytest.approx(floats["layer_norm_rms_epsilon"]),
        "tie_word_embeddings": "output.weight" not in source.tensors,
        **pair.own,
        "ckconv_engines": pair.engines,
    }


@pytest.mark.parametrize(("family", "release"), PAIRS)
def test_entries_and_configuration_are_the_expected_ones(family: str, release: str, tmp_path: Path) -> None:
    pair = PAIRS[family, release]
    source = pair.model.write(tmp_path / "m.gguf")
    ckconv.convert(source, tmp_path / "m.bump", options=Options(bump_version=5, engine=release, source_record=False))

    manifest = json.loads((tmp_path / "weights_manifest.json").read_text())
    assert manifest["config"] == config_of(source, pair)
    if pair.packed:
        file, entries = expected_bump5(source, kept=pair.kept)
        assert (tmp_path / "m.bump").read_bytes()[: len(file)] == file
        assert manifest["entries"] == entries


class SeedOss(Model):
    """Its second norm has another name."""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {name.replace("ffn_norm", "post_attention_norm"): shape for name, shape in super().tensors().items()}


def test_biases_of_a_seed_oss_stay_beside_blocks(tmp_path: Path) -> None:
    """Its entries are those of a qwen2 with the same tensors."""
    file, entries = expected_bump5(Model(arch="qwen2", qkv_bias=True, matrix=Q.Q8_0, head="own").write(tmp_path / "q"))
    source = SeedOss(arch="seed_oss", qkv_bias=True, matrix=Q.Q8_0, head="own").write(tmp_path / "m.gguf")
    options = Options(bump_version=5, engine="july", source_record=False)
    ckconv.convert(source, tmp_path / "m.bump", options=options)

    assert (tmp_path / "m.bump").read_bytes()[: len(file)] == file
    assert json.loads((tmp_path / "weights_manifest.json").read_text())["entries"] == entries


def test_no_pair_of_family_and_release_is_without_expectations() -> None:
    there = {
        (family, release)
        for family, (_, said) in table_of_families().items()
        for release in said
        if said[release] != "refused"
    }
    assert there == PAIRS.keys() | ELSEWHERE
