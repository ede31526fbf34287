"""A refusal names the key of config.json that was edited: an edit -> words of the message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES

SPARSE = " of a qwen3_moe (model_type, mlp_only_layers, decoder_sparse_step)"


@pytest.mark.parametrize(
    ("source", "edit", "to", "words"),
    [
        ("experts/qwen3_moe", {"mlp_only_layers": [0]}, "mlx", SPARSE),
        ("experts/qwen3_moe", {"decoder_sparse_step": 1000}, "mlx", SPARSE),
        (
            "hf/phi3-bf16",
            {"partial_rotary_factor": 0.5},
            "bump",
            "elements of a head; the engine rotates all (partial_rotary_factor)",
        ),
        ("hf/phi3-bf16", {"model_type": "llama"}, "gguf", "does not know of llama (model_type, architectures)"),
        (
            "hf/phi3-bf16",
            {"model_type": ..., "n_gate": 1},
            "gguf",
            "n_gate = 1, a key that ckconv does not know of phi3 (no model_type)",
        ),
    ],
)
def test_a_refusal_names_the_key(
    source: str, edit: dict[str, Any], to: str, words: str, tmp_path: Path, ckconv
) -> None:
    model = Path(shutil.copytree(FIXTURES / source, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(
        json.dumps({key: value for key, value in {**config, **edit}.items() if value is not ...})
    )
    found = ckconv("convert", model, tmp_path / "out", "--to", to)
    assert found.code == 4
    assert words in found.err
