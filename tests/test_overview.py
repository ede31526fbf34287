"""The headline of inspect, and the map of types by layer."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import FIXTURES

from ckconv.cli.describe import VECTORS, layer_map, marks, overview, repeated
from ckconv.formats.detect import open_index

K_QUANTS = FIXTURES / "kquants"
GEMMA = FIXTURES / "hf" / "gemma3-text-bf16"


def test_a_label_is_what_the_file_says_where_its_tensors_are_that() -> None:
    assert overview(open_index(FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf")).types == "BF16"
    found = overview(open_index(K_QUANTS / "llama64.Q4_K_M.gguf")).types
    assert found == "Q4_K_M (mostly Q5_0)", "rows of 64 elements are no K-quants"


def test_bits_of_a_weight_count_scales() -> None:
    assert overview(open_index(FIXTURES / "hf" / "qwen2-tied-bf16")).bits == 16
    assert overview(open_index(FIXTURES / "mlx" / "llama-tied-bf16.q4g64")).bits == pytest.approx(4.5, abs=0.1)


def test_the_cache_of_sliding_layers_ends_with_their_window() -> None:
    index = open_index(GEMMA)
    config = index.config
    assert config is not None
    assert (config.sliding_window, config.context_length) == (32, 256)
    full = sum(kind == "full_attention" for kind in config.layer_types or ())
    row = 2 * 2 * config.num_kv_heads * config.head_dim  # K and V of F16
    (cache,) = overview(index).caches
    assert cache.nbytes == row * (full * 256 + (config.num_layers - full) * 32)


def test_layers_that_are_alike_stand_in_one_row() -> None:
    rows = {row.name: row for row in repeated(open_index(FIXTURES / "hf" / "qwen2-tied-bf16").everything)}
    assert [*rows] == ["token_embedding.weight", "layers.0-1  2 x: 12 tensors", "output_norm.weight"]
    assert sum(row.nbytes for row in rows.values()) == 197_760


def test_the_map_has_a_row_for_every_role() -> None:
    found = layer_map(open_index(K_QUANTS / "llama64.Q4_K_M.gguf").everything)
    assert found.layers == (0, 1)
    assert found.rows["attention.v"] == ("Q5_0", "Q8_0")
    assert found.rows[VECTORS] == ("F32", "F32")
    assert [*found.rows][-1] == VECTORS


def test_a_type_has_a_character_of_its_own() -> None:
    assert marks(["BF16", "F32", "F16", "Q4_K", "Q4_0", "Q6_K"]) == {
        "BF16": "B", "F32": "F", "F16": "1", "Q4_K": "4", "Q4_0": "Q", "Q6_K": "6"
    }  # fmt: skip


def test_a_license_of_a_checkpoint_is_that_of_its_card(tmp_path: Path, ckconv) -> None:
    import shutil

    source = shutil.copytree(GEMMA, tmp_path / "m")
    (source / "README.md").write_text("---\nlicense: gemma\n---\n")
    facts = ckconv("inspect", "--json", source).json["overview"]
    assert (facts["name"], facts["card"]["license"]) == ("m", "gemma")
