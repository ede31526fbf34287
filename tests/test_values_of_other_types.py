"""Documents beside a model whose values are of another type than anybody writes: one clean error, or a note."""

from __future__ import annotations

import json
import shutil
import struct
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from bump4_builder import build, with_footer
from checkpoints import Decoder
from conftest import FIXTURES

import ckconv as package
from ckconv.errors import InputError, UnsupportedError
from ckconv.tokenizer.checkpoint import is_id, token_ids_beside

QWEN3, GEMMA3 = FIXTURES / "hf" / "qwen3-tied-bf16", FIXTURES / "hf" / "gemma3-text-bf16"
DIGITS = "9" * 5_000
CONFIG = Decoder(hidden=20, heads=2, kv_heads=1, head_dim=10, ffn=28, vocab=11, layers=2).config()


def beside(tmp_path: Path, source: Path, without: tuple[str, ...] = (), **documents: Any) -> Path:
    """A checkpoint with these documents instead of its own; a text is a file of text."""
    root = tmp_path / "hf"
    shutil.copytree(source, root)
    for name in without:
        (root / name).unlink(missing_ok=True)
    for name, document in documents.items():
        path = root / f"{name}.{'txt' if isinstance(document, str) else 'json'}"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
    return root


def notes(source: Path, tmp_path: Path) -> str:
    return "\n".join(package.convert(source, tmp_path / "out.gguf").plan.notes)


def unigram(charsmap: bytes) -> dict[str, Any]:
    spaces = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
    return {
        "added_tokens": [],
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": b64encode(charsmap).decode()},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]},
    }


TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")


@pytest.mark.parametrize(
    ("documents", "why"),
    [
        ({"vocab": {"<|endoftext|>": [1], "a": 0}, "merges": "a b\n"}, "'<|endoftext|>' has the id [1]"),
        (
            {
                "vocab": {"a": 0},
                "merges": "a b\n",
                "tokenizer_config": {"added_tokens_decoder": {DIGITS: {"content": "x"}}},
            },
            "has no token at",
        ),
        ({"tokenizer": unigram(b"\5\0\0\0abcdefgh")}, "its map of characters is malformed"),
    ],
)
def test_a_tokenizer_is_left_out_with_the_reason(documents: dict[str, Any], why: str, tmp_path: Path) -> None:
    assert why in notes(beside(tmp_path, QWEN3, TOKENIZERS, **documents), tmp_path)


def test_ids_are_numbers_of_few_digits(tmp_path: Path) -> None:
    decoder = {DIGITS: {"content": "x"}, "\u0661": {"content": "z"}, "8": []}
    source = beside(tmp_path, QWEN3, TOKENIZERS, tokenizer_config={"added_tokens_decoder": decoder})

    assert token_ids_beside(package.open_model(source).index, ("x", "z")) == {}
    good = beside(
        tmp_path / "good", QWEN3, TOKENIZERS, tokenizer_config={"added_tokens_decoder": {"7": {"content": "y"}}}
    )
    assert token_ids_beside(package.open_model(good).index, ("x", "y")) == {"y": 7}
    assert [is_id(key) for key in ("0", "123456789", "1234567890", "-1", "")] == [True, True, False, False, False]


@pytest.mark.parametrize("end", [{"a": 1}, [{"a": 1}, [2]], True, "x", -1, 10**30])
def test_an_end_of_generation_that_is_no_id_is_none(end: object, tmp_path: Path) -> None:
    source = beside(tmp_path, QWEN3, generation_config={"eos_token_id": end})
    package.convert(source, tmp_path / "m.gguf")

    assert "tokenizer.ggml.eot_token_id" not in package.open_model(tmp_path / "m.gguf").metadata


@pytest.mark.parametrize("key", ["query_pre_attn_scalar", "final_logit_softcapping"])
@pytest.mark.parametrize("value", ["", "256", True, [256], -1.0, {}])
def test_a_number_of_a_family_is_a_number(key: str, value: object, tmp_path: Path) -> None:
    document = json.loads((GEMMA3 / "config.json").read_text())
    misfit = package.open_model(beside(tmp_path, GEMMA3, config={**document, key: value})).index.misfit
    assert misfit is not None
    assert (misfit.code, key in misfit.message) == ("model.config", True)


@pytest.mark.parametrize("value", [["x"], [], [2.0], [[]], "x", {}])
def test_a_factor_of_a_family_is_one_number(value: object, tmp_path: Path) -> None:
    source = FIXTURES / "zoo" / "granite"
    document = json.loads((source / "config.json").read_text())
    misfit = package.open_model(beside(tmp_path, source, config={**document, "logits_scaling": value})).index.misfit
    said = "logits_scaling must be a finite number", f"logits_scaling = {value!r}: no logit_scale follows from it"
    assert any(text in str(misfit) for text in said)


@pytest.mark.parametrize("engines", [[["a"]], [{}], [None, 1], "july", 3])
def test_releases_of_the_engine_that_are_no_words_are_none(engines: object, tmp_path: Path) -> None:
    built = build("D", version=5, bias=True, metadata={"config": {**CONFIG, "ckconv_engines": engines}})

    assert package.open_model(built.write(tmp_path)).index.facts["engines"] is None


@pytest.mark.parametrize("config", [[], [1], "x", 7, None])
def test_the_configuration_of_a_table_of_another_length_is_an_object(config: object, tmp_path: Path) -> None:
    built = build("D", version=5, bias=True)
    data = bytearray(built.data[: built.end] + with_footer(json.dumps({"config": config}).encode()))
    data[0x98] -= 1
    (tmp_path / "m.bump").write_bytes(data)

    with pytest.raises(InputError) as caught:
        package.open_model(tmp_path / "m.bump")
    assert caught.value.code == "bump.dtype-table"


def config_of(tmp_path: Path, source: Path, **values: Any) -> Path:
    """A checkpoint whose configuration has these values."""
    return beside(tmp_path, source, config={**json.loads((source / "config.json").read_text()), **values})


def test_heads_of_no_elements_are_none(tmp_path: Path) -> None:
    """transformers builds no such model."""
    with pytest.raises(InputError, match="head_dim is 0"):
        package.convert(config_of(tmp_path, FIXTURES / "hf" / "llama-tied-bf16", head_dim=0), tmp_path / "out.gguf")


@pytest.mark.parametrize("part", [0, 2])
def test_a_part_of_a_head_that_is_none(part: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"partial_rotary_factor must be above 0 and at most 1, got {part}"):
        package.convert(
            config_of(tmp_path, FIXTURES / "hf" / "phi3-bf16", partial_rotary_factor=part), tmp_path / "out.gguf"
        )
    shutil.rmtree(tmp_path / "hf")
    llama = FIXTURES / "hf" / "llama-tied-bf16"  # whose class does not read it
    package.convert(config_of(tmp_path, llama, partial_rotary_factor=part), tmp_path / "one.gguf")
    (tmp_path / "as it is").mkdir()
    package.convert(beside(tmp_path / "as it is", llama), tmp_path / "other.gguf")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "other.gguf").read_bytes()


def test_a_document_is_called_what_it_is(tmp_path: Path) -> None:
    root = beside(tmp_path, FIXTURES / "hf" / "llama-tied-bf16")
    (root / "generation_config.json").write_text('{"temperature": NaN}')
    with pytest.raises(InputError, match="document is not a JSON object") as caught:
        package.convert(root, tmp_path / "out.gguf")
    assert caught.value.path == str(root / "generation_config.json")


def test_a_file_without_tensors_is_edited_and_not_converted(tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    with pytest.raises(UnsupportedError, match="holds no tensors, only metadata"):
        package.convert(path, tmp_path / "out.gguf")
    package.edit(path, tmp_path / "out.gguf", set_meta=[("general.name", "x")])
