"""A bump file holds what its source computes: its entries, used as the engine uses them, give transformers' logits.

:mod:`bump_engine` knows nothing of ckconv, and the logits of the sources are recorded.
"""

from __future__ import annotations

import json
from pathlib import Path

import bump_engine
import numpy as np
import pytest
import trained_cases
from conftest import FIXTURES
from recorded import EXACT, FACTS, PROMPT, off

import ckconv
from ckconv import Options

#: Checkpoint -> another file with the same weights.
SOURCES = {
    "llama-tied-bf16": "gguf/llama-tied-bf16.auto.gguf",
    "llama-bias-f32": "gguf/llama-bias-f32.f32.gguf",
    "llama-untied-f16-sharded": "gguf/llama-untied-f16-sharded.auto.gguf",
    "qwen2-tied-bf16": "gguf/qwen2-tied-bf16.auto.gguf",
    "qwen3-tied-bf16": "gguf/qwen3-tied-bf16.auto.gguf",
}


def bump_of(source: Path, folder: Path, **options: object) -> Path:
    """A bump 5 file without its source record."""
    asked = Options(**{"bump_version": 5, "source_record": False, **options})  # type: ignore[arg-type]
    ckconv.convert(source, f"{folder}/b/", to="bump", options=asked)
    return folder / "b" / "weights.bump"


@pytest.mark.product("values")
@pytest.mark.parametrize("through", ["checkpoint", "gguf", "mlx"])
@pytest.mark.parametrize("name", SOURCES)
def test_the_engine_computes_what_transformers_does_of_the_source(name: str, through: str, tmp_path: Path) -> None:
    source = FIXTURES / SOURCES[name] if through == "gguf" else FIXTURES / "hf" / name
    if through == "mlx":
        ckconv.convert(source, tmp_path / "mlx", to="mlx")
        source = tmp_path / "mlx"
    made = bump_of(source, tmp_path)

    assert off(bump_engine.logits(made, PROMPT), name) < EXACT


@pytest.mark.parametrize("name", SOURCES)
def test_bump_4_computes_the_same(name: str, tmp_path: Path) -> None:
    made = bump_of(FIXTURES / "hf" / name, tmp_path, bump_version=4)

    assert off(bump_engine.logits(made, PROMPT), name) < EXACT


def test_split_rows_are_right_in_aprils_engine(tmp_path: Path) -> None:
    made = bump_of(FIXTURES / "hf" / "llama-tied-bf16", tmp_path, rope_layout="split")

    assert off(bump_engine.logits(made, PROMPT), "llama-tied-bf16") < EXACT


@pytest.mark.parametrize("name", ["llama-tied-bf16", "qwen2-tied-bf16", "qwen3-tied-bf16"])
def test_the_other_order_of_rows_computes_something_else(name: str, tmp_path: Path) -> None:
    made = bump_of(FIXTURES / "hf" / name, tmp_path)
    path = made.with_name("weights_manifest.json")
    manifest = json.loads(path.read_text())
    other = "split" if name.startswith("llama") else "pairwise"
    path.write_text(json.dumps({**manifest, "config": {**manifest["config"], "rope_layout": other}}))

    assert off(bump_engine.logits(made, PROMPT), name) > 0.1


def test_blocks_compute_what_transformers_does_of_the_gguf(tmp_path: Path) -> None:
    """Q5_0 matrices and a Q8_0 head; the engine has no Q5_0 embedding."""
    source = FIXTURES / "kquants" / "llama64.Q4_K_M.gguf"
    made = bump_of(source, tmp_path, decode=("token_embd.weight",))

    types = {entry["dtype"] for entry in json.loads(made.with_name("weights_manifest.json").read_text())["entries"]}
    assert {"q5_0", "q8_0"} < types
    rows = bump_engine.logits(made, PROMPT)[FACTS["rows"]]
    assert np.abs(rows - trained_cases.recorded(source.name)).max() < EXACT


def test_an_entry_that_no_operation_uses_is_an_error(tmp_path: Path) -> None:
    made = bump_of(FIXTURES / "hf" / "llama-tied-bf16", tmp_path)
    path = made.with_name("weights_manifest.json")
    manifest = json.loads(path.read_text())
    manifest["entries"].append({"name": "layer.0.q_scale", "dtype": "fp32", "file_offset": 0, "size": 4})
    path.write_text(json.dumps(manifest))

    with pytest.raises(AssertionError, match=r"layer\.0\.q_scale"):
        bump_engine.logits(made, PROMPT)
