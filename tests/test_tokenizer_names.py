"""Every pre-tokenizer of llama.cpp by its name, and real vocabularies: the ids that llama.cpp makes, recorded."""

from __future__ import annotations

import json
import unicodedata
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from conftest import FIXTURES
from test_plan_checkpoint_tokenizer import Array, Scalar, files_of, left_out

from ckconv.core.metadata import Value, array, pieces_of, scalar
from ckconv.tokenizer.gguf import tokenizer_keys
from ckconv.tokenizer.vocabulary import TokenizerFiles, pre_tokenizers

tokenizers = pytest.importorskip("tokenizers")

FOLDER = FIXTURES / "tokenizers"
TEXTS = json.loads((FOLDER / "texts.json").read_bytes())
NAMES = json.loads((FOLDER / "names.json").read_bytes())
RESULTS = {name: result["ids"] for result in NAMES["results"] for name in result["names"]}
VOCABULARIES = sorted(path.stem for path in (FOLDER / "vocabularies").glob("*.json"))

#: The vocabulary has words that one trained with this definition cannot have: with a space before digits.
_FINER = frozenset({"falcon"})
#: Texts with marks: the tokenizers library applies SentencePiece's rules to wholes, llama.cpp one by one; and to take
#: accents off, as BERT does, llama.cpp decomposes fewer characters.
WITH_MARKS = {"t5": 16, "bert": 60}
#: Names with the definition of another, which is the one that is written.
_SAME = {"starcoder": "smollm", "refact": "smollm", "mpt": "olmo"}
#: Why a file that llama.cpp opens says too little.
UNSAID = {
    "aquila": "the source does not say how it splits text (tokenizer.ggml.pre)",
    "gpt-neox": "the source does not say how it splits text (tokenizer.ggml.pre)",
    "baichuan": "'---' and '▁t' have one score, and merges have an order",
}
#: Whether the unknown token is a special one or of a type of its own is all the same.
_KINDS = {2: 3}
#: llama.cpp takes words for the end of a text by their text, although the vocabulary has them as normal ones.
FOUND_BY_TEXT = ("</s>", "<s>", "<|endoftext|>")


def recorded(name: str) -> dict[str, Any]:
    """Of a real vocabulary: its keys, and the ids."""
    found: dict[str, Any] = json.loads((FOLDER / "vocabularies" / f"{name}.json").read_bytes())
    return found


def keys_of(said: Mapping[str, Any]) -> dict[str, Scalar]:
    """The metadata of a GGUF that has them."""
    kinds = {"tokens": "str", "merges": "str", "token_type": "i32", "scores": "f32"}
    values = {key: Array(kinds[key], value) if key in kinds else value for key, value in said.items()}
    if "precompiled_charsmap" in values:
        values["precompiled_charsmap"] = Array("u8", b64decode(values["precompiled_charsmap"]))
    return {f"tokenizer.ggml.{key}": Scalar(value) for key, value in values.items()}


def document_of(said: Mapping[str, Any]) -> dict[str, Any]:
    files, _ = files_of(keys_of(said))
    document: dict[str, Any] = json.loads(b"".join(pieces_of(files["tokenizer.json"])))
    return document


def differing(document: Mapping[str, Any], texts: Sequence[str], wanted: Sequence[Sequence[int]]) -> list[str]:
    """Texts of which the tokenizers library makes other ids; what composing changes is no text of llama.cpp's."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    composes = document["normalizer"] == {"type": "NFC"}
    return [
        text
        for text, ids in zip(texts, wanted, strict=True)
        if (not composes or unicodedata.is_normalized("NFC", text)) and tokenizer.encode(text).ids != ids
    ]


@pytest.mark.parametrize("name", RESULTS)
def test_a_name_cuts_hostile_texts_as_llama_cpp_does_or_its_row_says_which_not(name: str) -> None:
    document = document_of({**NAMES["keys"], "pre": name})
    texts = [TEXTS[number] for number in NAMES["texts"]]

    assert len(texts) > 500
    others = differing(document, texts, RESULTS[name])
    assert bool(others) == bool(pre_tokenizers()[name].otherwise or name in _FINER), others[:5]
    assert len(others) < len(texts) / 5


def test_only_names_that_are_newer_than_the_recording_have_none() -> None:
    assert pre_tokenizers().keys() - RESULTS.keys() == {"glm5"}


@pytest.mark.parametrize("name", UNSAID)
def test_a_real_vocabulary_that_says_too_little_is_left_out_with_the_reason(name: str) -> None:
    assert left_out(keys_of(recorded(name)["keys"])) == UNSAID[name]


@pytest.mark.parametrize("name", ["aquila", "gpt-neox"])
def test_llama_cpp_takes_the_default_where_a_file_does_not_say_how_text_is_split(name: str) -> None:
    document = document_of({**recorded(name)["keys"], "pre": "default"})

    others = differing(document, TEXTS, recorded(name)["ids"])
    assert [text for text in others if not any(word in text for word in FOUND_BY_TEXT)] == []


@pytest.mark.parametrize("name", sorted(set(VOCABULARIES) - UNSAID.keys()))
def test_a_real_vocabulary_makes_the_same_ids_and_comes_back(name: str) -> None:
    said = recorded(name)["keys"]
    files, _ = files_of(keys_of(said))
    document, settings = json.loads(files["tokenizer.json"]), json.loads(files["tokenizer_config.json"])

    known = pre_tokenizers().get(said.get("pre", ""))
    others = {text for text in differing(document, TEXTS, recorded(name)["ids"]) if text not in FOUND_BY_TEXT}
    assert (known and known.otherwise) or len(others) == WITH_MARKS.get(said["model"], 0), others
    model = files.get("tokenizer.model") if said["model"] == "t5" else None
    source = TokenizerFiles(tokenizer=document, model=model, settings=settings)
    made = tokenizer_keys(source, len(said["tokens"])).metadata
    has, had = made["tokenizer.ggml.token_type"], array("i32", [_KINDS.get(kind, kind) for kind in said["token_type"]])
    assert Value(has.type, has.payload.replace(b"\2\0\0\0", b"\3\0\0\0")) == had
    for key in ("tokens", "merges"):
        if key in said:
            assert made[f"tokenizer.ggml.{key}"] == array("str", said[key])
    for key in ("model", "pre"):
        if key in said and (key, said["model"]) != ("pre", "bert"):  # which has none
            assert made[f"tokenizer.ggml.{key}"] == scalar("str", _SAME.get(said[key], said[key]))
