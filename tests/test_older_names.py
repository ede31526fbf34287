"""Norms of checkpoints that were made of TensorFlow's (``gamma``, ``beta``), as bert-base-uncased was published."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoints import save_file
from family_cases import cases, checkpoint, tensors
from safetensors.numpy import load_file

import ckconv

CASE = next(cases("bert"))
#: The heads that it was trained with.
HEADS = {
    "cls.predictions.bias": (384,),
    "cls.predictions.transform.LayerNorm.gamma": (24,),
    "cls.predictions.transform.LayerNorm.beta": (24,),
    "cls.predictions.transform.dense.weight": (24, 24),
    "cls.predictions.transform.dense.bias": (24,),
    "cls.seq_relationship.weight": (2, 24),
    "cls.seq_relationship.bias": (2,),
}


def values(path: Path) -> dict[str, bytes]:
    return {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_norms_under_their_older_names_are_the_same_model(prefix: str, tmp_path: Path) -> None:
    new = checkpoint(CASE.recorded, tmp_path / "new", CASE.tokenizer)
    old = checkpoint(CASE.recorded, tmp_path / "old", CASE.tokenizer)
    named = {
        prefix + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values
        for name, values in tensors(CASE.recorded).items()
    }
    heads = {name: np.ones(shape, np.float32) for name, shape in HEADS.items() if prefix}
    save_file(old / "model.safetensors", {**named, **heads}, {"format": "pt"})

    report = ckconv.convert(old, tmp_path / "old.gguf")
    ckconv.convert(new, tmp_path / "new.gguf")
    ckconv.convert(old, f"{tmp_path / 'copy'}/", to="safetensors")

    assert values(tmp_path / "old.gguf") == values(tmp_path / "new.gguf")
    assert {item.name for item in report.plan.left_out} == set(heads)
    assert load_file(tmp_path / "copy" / "model.safetensors").keys() == {**named, **heads}.keys()
    assert ckconv.verify(tmp_path / "old.gguf", old)
