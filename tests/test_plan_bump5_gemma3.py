"""Gemma 3 in bump 5 and 4: the engine has one RoPE base and a window in every layer, so most of them are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES
from gemma3_checkpoint import ONE_BASE, gemma3
from gguf import GGMLQuantizationType as Q
from models import Model

BASE = "RoPE's base is 10,000 in 5 of 6 layers; the engine rotates all layers of gemma3 by 1,000,000"
WINDOW = "1 of 6 layers attend to all 256 tokens; the engine slides over 32 in every layer of gemma3"
SLIDING, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize("version", ["auto", 4, 5])
@pytest.mark.parametrize("source", ["hf/gemma3-text-bf16", "gguf/gemma3-text-bf16.auto.gguf"])
def test_a_gemma3_as_they_are_published_is_refused(source: str, version: object, tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", FIXTURES / source, f"{tmp_path}/b/", "--to", "bump", "--bump-version", version)
    assert result.code == 4
    assert BASE in result.err
    assert WINDOW in result.err
    assert "\nhint:" not in result.err, "what makes the windows the same leaves the bases"


@pytest.mark.parametrize("source", ["hf/gemma3-text-bf16", "gguf/gemma3-text-bf16.auto.gguf"])
def test_inspect_says_so_too(source: str, ckconv) -> None:
    lines = ckconv("inspect", FIXTURES / source).out.splitlines()
    assert {"target\tbump 5\tno", f"reason\tbump 5\t{BASE}\t"} <= set(lines)


ALL_SLIDE = {"layer_types": [SLIDING] * 6, "rope_local_base_freq": 1000000.0}
ALL_FULL = {"layer_types": [FULL] * 6, "sliding_window": None, "use_sliding_window": None}

CONFIGURATIONS: dict[str, tuple[dict[str, Any], tuple[str, ...], bool]] = {
    "one base, context in the window": (ONE_BASE, (), True),
    "one base, context made as short as the window": (
        {"rope_local_base_freq": 1000000.0},
        ("--context", "32"),
        True,
    ),
    "one base of 10,000": ({"rope_theta": 10000.0, "max_position_embeddings": 32}, (), True),
    "one base, every layer slides": (ALL_SLIDE, (), True),
    "one base, one layer is full beyond the window": ({"rope_local_base_freq": 1000000.0}, (), False),
    "two bases, context in the window": ({"max_position_embeddings": 32}, (), False),
    "two bases, every layer slides": ({"layer_types": [SLIDING] * 6}, (), False),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_the_engine_computes_is_accepted(name: str, tmp_path: Path, ckconv) -> None:
    changes, flags, accepted = CONFIGURATIONS[name]
    source = gemma3(tmp_path, changes)
    result = ckconv("convert", source, f"{tmp_path}/b/", "--to", "bump", "--bump-version", 5, *flags)
    assert result.code == (0 if accepted else 4), result.err


MIXES = {"q8_0 q8_0 q6_k": True, "q4_k q4_k q8_0": True, "q8_0 q8_0 q5_0": True, "q4_k q8_0 q5_0": False}


@pytest.mark.parametrize("words", MIXES)
def test_q8_0_reads_floats_in_aprils_gemma3(words: str, tmp_path: Path, ckconv) -> None:
    """Q5_0 and K-quants do not."""
    model = Model(
        "gemma3", hidden=256, ffn=256, head_dim=64, qk_norm=True, post_norms=True, matrix=Q.Q8_0, context=32,
        types={f"attn_{part}.weight": Q[word.upper()] for part, word in zip("qkv", words.split(), strict=True)},
        extra_keys={"gemma3.attention.sliding_window": 32, "gemma3.rope.freq_base": 10000.0},
    )  # fmt: skip
    result = ckconv("convert", model.write(tmp_path / "m.gguf"), tmp_path / "m.bump", "--engine", "april")
    assert result.code == (0 if MIXES[words] else 4), result.err
    assert ("does not compute layer.0.wv of Q5_0 beside layer.0.wq of Q4_K right" in result.err) == (not MIXES[words])


@pytest.mark.parametrize(("quantize", "april"), [("q8_0", True), ("q5_1", True), ("q5_0", False), ("q4_k_m", False)])
def test_april_builds_no_gate_of_types_that_read_blocks(quantize: str, april: bool, tmp_path: Path, ckconv) -> None:
    """Q4_K_M gives rows of 64 Q5_0."""
    source, flags = gemma3(tmp_path, ONE_BASE), ("--to", "bump", "--bump-version", 5)
    asked = f"{quantize},model.embed_tokens.weight=q8_0"
    result = ckconv("convert", source, f"{tmp_path}/b/", *flags, "--quantize", asked)
    assert result.code == (0 if april else 4), result.err
    if not april:
        assert "the engine of April 2026 does not compute layer.0.w1 of Q5_0 right (6 layers)" in result.err
        parts = "".join(f",model.layers.*.mlp.{part}_proj.weight=q8_0" for part in ("gate", "up"))
        assert f"hint: --quantize '{asked}{parts}' gives" in result.err
        assert "--engine july computes it" in result.err
        assert ckconv("convert", source, f"{tmp_path}/b/", *flags, "--quantize", asked + parts).code == 0
        made = ckconv("convert", source, f"{tmp_path}/j/", *flags, "--quantize", asked, "--engine", "july")
        assert "note: computed right by the engine of July 2026\n" in made.out


@pytest.mark.parametrize("gone", ["", "config.json", "weights_manifest.json"])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("changes", [ONE_BASE, ALL_SLIDE])
def test_base_and_window_of_the_layers_come_back(
    changes: dict[str, Any], version: int, gone: str, tmp_path: Path, ckconv
) -> None:
    """Not as the defaults of a Gemma 3, which are other ones: any of the documents says it."""
    source = gemma3(tmp_path, changes)
    flags = ("--to", "bump", "--bump-version", version, "--no-source-record")
    assert ckconv("convert", source, f"{tmp_path}/b/", *flags).code == 0
    if gone:
        (tmp_path / "b" / gone).unlink()
    assert ckconv("convert", tmp_path / "b/weights.bump", f"{tmp_path}/back/", "--to", "safetensors").code == 0
    document = json.loads((tmp_path / "back/config.json").read_text())
    assert document["rope_local_base_freq"] == document["rope_theta"] == 1000000.0
    assert document["sliding_window"] == 32
    if changes is ALL_SLIDE:
        assert document["layer_types"] == [SLIDING] * 6
    assert ckconv("verify", tmp_path / "back", source, "--weights").code == 0


def test_there_and_back_is_the_same_bytes(tmp_path: Path, ckconv) -> None:
    source = gemma3(tmp_path, ONE_BASE)
    assert ckconv("convert", source, f"{tmp_path}/b/", "--to", "bump").code == 0
    assert ckconv("convert", tmp_path / "b", f"{tmp_path}/back/").code == 0
    for path in (tmp_path / "back").iterdir():
        assert path.read_bytes() == (source / path.name).read_bytes()
