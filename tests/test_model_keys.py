"""The tables of configuration keys, held against what transformers' and mlx-lm's classes know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES

from ckconv.families.catalog import FAMILIES
from ckconv.families.keys import MLX_LM, ROPE_KEYS, TRANSFORMERS, Keys, Kind
from ckconv.families.merge import FOLDER

#: What scripts/record_config_keys.py found.
RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "config_keys.json").read_text())

#: Whether mlx-lm computes a family.
COMPUTED = {name: "mlx_lm" in one.engines and not one.engines["mlx_lm"].absent for name, one in FAMILIES.items()}

#: ``model_type`` -> keys of the family that has it; of several, of one that mlx-lm computes.
KEYS = {
    name: FAMILIES[family].document.keys
    for family in sorted(FAMILIES, key=COMPUTED.__getitem__)
    for name in FAMILIES[family].in_huggingface.names
}

TABLES = [*KEYS.values(), *ROPE_KEYS.values()]


@pytest.mark.parametrize("model_type", [name for name in KEYS if name in RECORDED["transformers"]])
def test_every_key_of_a_class_of_transformers_is_classified(model_type: str) -> None:
    assert KEYS[model_type].unknown(RECORDED["transformers"][model_type].split()) == []


@pytest.mark.parametrize("model_type", [name for name in KEYS if name in RECORDED["mlx-lm"]])
def test_every_key_of_a_class_of_mlx_lm_is_classified_as_one_that_it_reads(model_type: str) -> None:
    table, fields = KEYS[model_type], RECORDED["mlx-lm"][model_type].split()
    read = [name for name, key in table.keys.items() if key.kind is not Kind.HARMLESS and MLX_LM in key.readers]
    of_the_loader = {"text_config", "quantization", "quantize_activations", "model_file"}
    if model_type not in ("gemma3", "qwen3_vl"):  # whose classes hand the text part to that of another
        # What says how long a text may be, and what a class takes for granted.
        granted = {"max_position_embeddings", "max_seq_len", "seq_length", "n_inner"}
        granted |= {"layer_norm_epsilon"} if model_type in ("mamba", "falcon_mamba") else set()
        assert set(read) - of_the_loader <= {*fields, *granted}
    assert table.unknown(fields) == []


@pytest.mark.parametrize("folder", sorted((FIXTURES / "hf").glob("*/config.json")), ids=lambda path: path.parent.name)
def test_every_key_that_transformers_4_wrote_is_classified(folder: Path) -> None:
    document = json.loads(folder.read_text())
    assert KEYS[document["model_type"]].unknown(document) == []


@pytest.mark.parametrize("kind", ROPE_KEYS)
def test_every_key_of_the_parameters_of_rope_is_classified(kind: str) -> None:
    assert ROPE_KEYS[kind].unknown(RECORDED["rope"]) == []


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_modifier_says_who_reads_it_and_what_changes_nothing(table: Keys) -> None:
    modifiers = [key for key in table.keys.values() if key.kind is Kind.MODIFIER]
    assert all(key.readers and key.neutral for key in modifiers)
    assert not any(key.neutral for key in table.keys.values() if key.kind is not Kind.MODIFIER)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_the_file_says_beside_a_modifier_where_that_was_read(path: Path) -> None:
    section = above = before = ""
    for line in path.read_text().splitlines():
        above, before = before, line
        section = f"{line} {above if above.startswith('#') else ''}" if line.startswith("[") else section
        if section.split("]")[0] in ("[config.modifiers", "[metadata.modifiers") and "=" in line and line[0] != "#":
            said = "#" in line or "#" in section or above.startswith("#") or '"absent"' in line
            assert said, line


def test_true_is_not_one_and_nothing_is_neutral() -> None:
    causal = KEYS["t5"].keys["is_causal"]
    assert [causal.is_neutral(value) for value in (True, None, 1, False, "true")] == [True, True, False, False, False]


def test_a_modifier_counts_for_those_who_read_it() -> None:
    document = {"rope_traditional": True, "per_layer_config": {"0": {}}, "hidden_act": "silu"}
    assert list(KEYS["llama"].active(document, TRANSFORMERS)) == ["per_layer_config"]
    assert list(KEYS["llama"].active(document, MLX_LM)) == ["rope_traditional"]
    assert list(KEYS["llama"].misread(document, TRANSFORMERS, MLX_LM)) == ["rope_traditional"]
