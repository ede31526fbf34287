"""Text models in the documents of others: mlx-lm has a class for the whole, and is written the one of the text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import family_cases
import pytest
from checkpoints import save_file
from safetensors.numpy import load_file

import ckconv

WHOLE = {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"]}


def within(source: Path, place: Path, form: str, layers: str = "layers") -> Path:
    """The same as the text part of a Kimi K2.5 without its tower; transformers 5.24 saves it with ``blocks``."""
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("*.safetensors*"))
    stored = load_file(source / "model.safetensors").items()
    tensors = {f"language_model.{name.replace('model.layers.', f'model.{layers}.')}": array for name, array in stored}
    save_file(place / "model.safetensors", tensors, {"format": form})
    document = json.loads((source / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(WHOLE | {"text_config": document}))
    return place


@pytest.mark.parametrize(("form", "layers"), [("pt", "layers"), ("mlx", "layers"), ("pt", "blocks")])
def test_the_text_of_kimi_k25_is_a_deepseek_to_mlx(form: str, layers: str, tmp_path: Path) -> None:
    case = next(family_cases.cases("deepseek_v3"))
    text = family_cases.checkpoint(case.recorded, tmp_path / "text", case.tokenizer)
    ckconv.convert(text, tmp_path / "alone", to="mlx")

    ckconv.convert(
        within(tmp_path / "alone" if form == "mlx" else text, tmp_path / "whole", form, layers),
        tmp_path / "out",
        to="mlx",
    )

    assert (tmp_path / "out/model.safetensors").read_bytes() == (tmp_path / "alone/model.safetensors").read_bytes()
    assert json.loads((tmp_path / "out/config.json").read_text())["model_type"] == "deepseek_v3"


@pytest.mark.parametrize("family", ["qwen3_vl_moe", "llama4"])
def test_keys_beside_the_text_part_stay_where_its_class_does_not_read_them(family: str, tmp_path: Path) -> None:
    case = next(family_cases.cases(family))
    ckconv.convert(family_cases.checkpoint(case.recorded, tmp_path / "hf"), tmp_path / "mlx", to="mlx")
    beside = {"rope_scaling": {"type": "proportional", "factor": 0}, "rope_theta": 5.0, "hidden_act": "gelu"}
    document = json.loads((tmp_path / "mlx/config.json").read_text()) | beside
    (tmp_path / "mlx/config.json").write_text(json.dumps(document))

    ckconv.convert(tmp_path / "mlx", tmp_path / "out", to="mlx")

    made = json.loads((tmp_path / "out/config.json").read_text())
    assert {**made, "text_config": 0} == {**document, "text_config": 0}
    assert not made["text_config"].get("rope_scaling")
