"""How embeddings are pooled: sentence-transformers' files beside a checkpoint, and the key that llama.cpp reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from family_cases import cases, checkpoint

import ckconv

CASE = next(cases("bert"))
PACKAGE = "sentence_transformers.models."


def source(root: Path, pooling: dict[str, Any] | None, *more: str) -> Path:
    """A BERT with the files of sentence-transformers."""
    checkpoint(CASE.recorded, root, CASE.tokenizer)
    names = ["Transformer", *(["Pooling"] if pooling is not None else []), *more]
    modules = [{"idx": n, "path": f"{n}_{name}" if n else "", "type": PACKAGE + name} for n, name in enumerate(names)]
    (root / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (root / "1_Pooling").mkdir()
        (root / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return root


def pooled(path: Path) -> int | None:
    found = gguf.GGUFReader(path).fields.get("bert.pooling_type")
    return found.contents() if found else None


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, gguf.PoolingType.MEAN),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, gguf.PoolingType.CLS),
        ({"pooling_mode_lasttoken": True}, gguf.PoolingType.LAST),
        ({"pooling_mode": "cls"}, gguf.PoolingType.CLS),
    ],
)
def test_the_pooling_of_sentence_transformers_is_llama_cpps_key(said: Any, number: int, tmp_path: Path) -> None:
    ckconv.convert(source(tmp_path / "hf", said, "Normalize"), tmp_path / "m.gguf")

    assert pooled(tmp_path / "m.gguf") == number


def test_a_pooling_that_llama_cpp_does_not_have_is_no_key_and_said(tmp_path: Path) -> None:
    report = ckconv.convert(source(tmp_path / "hf", {"pooling_mode_max_tokens": True}, "Dense"), tmp_path / "m.gguf")

    assert pooled(tmp_path / "m.gguf") is None
    assert any("1_Pooling/config.json pools as llama.cpp does not" in note for note in report.plan.notes)
    assert any("no Dense behind what it pools" in note for note in report.plan.notes)


def test_a_checkpoint_by_itself_says_nothing_of_pooling(tmp_path: Path) -> None:
    ckconv.convert(checkpoint(CASE.recorded, tmp_path / "hf", CASE.tokenizer), tmp_path / "m.gguf")

    assert pooled(tmp_path / "m.gguf") is None


def test_a_modules_json_that_is_no_list_is_refused_or_says_nothing(tmp_path: Path) -> None:
    root = source(tmp_path / "hf", None)
    (root / "modules.json").write_text("{")

    with pytest.raises(ckconv.CkconvError, match=r"modules\.json"):
        ckconv.convert(root, tmp_path / "m.gguf")


def test_a_pooler_is_zeros_where_a_gguf_has_none(tmp_path: Path) -> None:
    ckconv.convert(checkpoint(CASE.recorded, tmp_path / "hf", CASE.tokenizer), tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors")

    from safetensors.numpy import load_file

    found = load_file(tmp_path / "back" / "model.safetensors")
    assert found["pooler.dense.weight"].shape == (24, 24)
    assert not found["pooler.dense.weight"].any()
    assert not found["pooler.dense.bias"].any()


def test_what_a_gguf_says_of_pooling_is_a_note_where_a_checkpoint_is_written(tmp_path: Path) -> None:
    ckconv.convert(source(tmp_path / "hf", {"pooling_mode": "mean"}), tmp_path / "m.gguf")

    report = ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors")

    assert any("embeddings are pooled by their mean (pooling_type)" in note for note in report.plan.notes)
