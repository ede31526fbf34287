"""Keys that a document lacks: one may be missing where the class that loads it takes that very value."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES

import ckconv
from ckconv.core.metadata import Content
from ckconv.errors import VerifyError
from ckconv.verification.content import differences

SOURCE = FIXTURES / "hf" / "qwen3-tied-bf16"


LLAMA, GEMMA = {"model_type": "llama"}, {"model_type": "gemma3_text"}


def missing(name: str, mine: Mapping[str, Any], meant: Mapping[str, Any]) -> list[str]:
    contents = [Content(keys={}, files={name: json.dumps(one).encode()}) for one in (mine, meant)]
    return [fact.key for fact in differences(*contents)]


@pytest.mark.parametrize(
    ("name", "mine", "meant", "keys"),
    [
        ("config.json", LLAMA, LLAMA | {"hidden_size": 3}, ["hidden_size"]),
        ("config.json", LLAMA, LLAMA | {"hidden_size": 4096}, []),
        ("config.json", {}, {"hidden_size": 4096}, ["hidden_size"]),
        ("config.json", LLAMA, LLAMA | {"num_key_value_heads": 32}, []),
        (
            "config.json",
            LLAMA | {"num_attention_heads": 4},
            LLAMA | {"num_attention_heads": 4, "num_key_value_heads": 4},
            [],
        ),
        ("config.json", LLAMA, LLAMA | {"num_key_value_heads": 8}, ["num_key_value_heads"]),
        ("config.json", GEMMA, GEMMA | {"sliding_window": 32}, ["sliding_window"]),
        ("config.json", GEMMA, GEMMA | {"sliding_window": 4096}, []),
        ("config.json", {"text_config": LLAMA}, {"text_config": LLAMA | {"vocab_size": 3}}, ["text_config.vocab_size"]),
        ("config.json", {"llm_config": LLAMA}, {"llm_config": LLAMA | {"vocab_size": 32000}}, []),
        ("config.json", LLAMA | {"rope_parameters": {}}, LLAMA | {"rope_parameters": {"rope_theta": 10000.0}}, []),
        (
            "config.json",
            {"model_type": "ministral3", "rope_parameters": {}},
            {
                "model_type": "ministral3",
                "rope_parameters": {"rope_theta": 1000000.0},
            },  # its own table's, not the class's
            ["rope_parameters.rope_theta"],
        ),
        (
            "config.json",
            LLAMA | {"rope_parameters": {}},
            LLAMA | {"rope_parameters": {"rope_theta": 3}},
            ["rope_parameters.rope_theta"],
        ),
        (
            "config.json",
            LLAMA | {"rope_theta": 3},
            LLAMA | {"rope_theta": 3, "rope_parameters": {}},
            ["rope_parameters"],
        ),
        ("config.json", {}, {"other": 3}, ["other"]),
        ("config.json", {"extra": {}}, {"extra": {"hidden_size": 3}}, ["extra.hidden_size"]),
        ("config.json", {"a": [{}]}, {"a": [{"hidden_size": 3}]}, ["a[0].hidden_size"]),
        ("config.json", {"vision_config": {}}, {"vision_config": {"hidden_size": 3}}, ["vision_config.hidden_size"]),
        (
            "config.json",
            {"text_config": {"x": {}}},
            {"text_config": {"x": {"hidden_size": 3}}},
            ["text_config.x.hidden_size"],
        ),
        ("generation_config.json", {}, {"max_position_embeddings": 3}, ["max_position_embeddings"]),
        ("1_Pooling/config.json", {}, {"hidden_size": 3}, ["hidden_size"]),
        ("tokenizer_config.json", {"text_config": {}}, {"text_config": {"vocab_size": 3}}, ["text_config.vocab_size"]),
    ],
)
def test_a_key_may_be_missing_where_its_loader_takes_the_same(
    name: str, mine: Mapping[str, Any], meant: Mapping[str, Any], keys: list[str]
) -> None:
    assert missing(name, mine, meant) == keys


@pytest.mark.parametrize(
    ("name", "said"),
    [("config.json", {"extra": {"hidden_size": 3}}), ("generation_config.json", {"max_position_embeddings": 3})],
)
def test_a_copy_that_lacks_a_key_does_not_verify(name: str, said: dict[str, Any], tmp_path: Path) -> None:
    source = shutil.copytree(SOURCE, tmp_path / "source")
    document = json.loads((source / name).read_text()) | said
    (source / name).write_text(json.dumps(document))
    ckconv.convert(source, f"{tmp_path / 'out'}/", to="safetensors")
    written = json.loads((tmp_path / "out" / name).read_text())
    for key, value in said.items():
        if isinstance(value, dict):
            written[key] = {}
        else:
            del written[key]
    (tmp_path / "out" / name).write_text(json.dumps(written, indent=2))
    with pytest.raises(VerifyError, match="is missing"):
        ckconv.verify(tmp_path / "out", source)
