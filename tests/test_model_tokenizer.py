"""Tokenizer entries out of what GGUF metadata and tokenizer.json say."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ckconv.errors import UnsupportedError
from ckconv.tokenizer.vocabulary import gguf_entries, huggingface_entries, tokenizer_entries


def numbers(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def strings(entries: dict[str, bytes]) -> list[bytes]:
    return [entries["vocab_strings"][at:].split(b"\0")[0] for at in numbers(entries["vocab_offsets"])]


def array(kind: str, values: list[Any]) -> SimpleNamespace:
    return SimpleNamespace(value=SimpleNamespace(type=kind, decode=lambda: list(values)))


def test_entries_are_in_file_order() -> None:
    made = tokenizer_entries([b"a"], [], vocab_size=1)
    assert list(made) == ["vocab_offsets", "vocab_strings", "vocab_scores", "vocab_types", "vocab_merges"]


def test_missing_ids_are_padding_and_more_are_cut() -> None:
    assert strings(tokenizer_entries([b"a", b"b"], [], vocab_size=4)) == [b"a", b"b", b"<|pad_2|>", b"<|pad_3|>"]
    assert strings(tokenizer_entries([b"a", b"b", b"c"], [], vocab_size=2)) == [b"a", b"b"]


def test_merges_become_ids_or_are_left_out() -> None:
    tokens = [b"a", b"b", b"ab", b"c", b"a"]
    merges = [(b"a", b"b"), (b"a", b"c"), (b"x", b"b"), (b"b", b"a")]
    assert numbers(tokenizer_entries(tokens, merges, vocab_size=5)["vocab_merges"]) == [4, 1, 2]
    assert tokenizer_entries(tokens, merges, vocab_size=2)["vocab_merges"] == b""


def test_scores_and_types_are_filled_with_zeros() -> None:
    made = tokenizer_entries([b"a", b"b"], [], vocab_size=3, scores=[-1.5], types=[6, 1])
    assert made["vocab_scores"] == struct.pack("<3f", -1.5, 0, 0)
    assert made["vocab_types"] == bytes([6, 1, 0])


def test_type_beyond_a_byte() -> None:
    with pytest.raises(UnsupportedError, match="a token has type 256, 0 to 255 fit") as caught:
        tokenizer_entries([b"a"], [], vocab_size=1, types=[256])
    assert (caught.value.code, caught.value.exit_code) == ("tokenizer.type", 4)


@given(st.lists(st.binary(max_size=5).filter(lambda token: b"\0" not in token), max_size=20))
def test_every_token_is_found_at_its_offset(tokens: list[bytes]) -> None:
    assert strings(tokenizer_entries(tokens, [], vocab_size=len(tokens))) == tokens


def test_gguf() -> None:
    metadata = {
        "tokenizer.ggml.tokens": array("str", ["Ġ", "a", "Ġa", "\udcff", " b", "c", " bc"]),
        "tokenizer.ggml.merges": array("str", ["Ġ a", " b c", "nospace", " "]),
        "tokenizer.ggml.scores": array("f32", [0.5] * 7),
        "tokenizer.ggml.token_type": array("i32", [1, 2, 3, 4, 5, 6, 1]),
    }
    made = gguf_entries(metadata, 7)
    assert made is not None
    assert strings(made) == ["Ġ".encode(), b"a", "Ġa".encode(), b"\xff", b" b", b"c", b" bc"]
    assert numbers(made["vocab_merges"]) == [0, 1, 2, 4, 5, 6]
    assert made["vocab_types"] == bytes([1, 2, 3, 4, 5, 6, 1])


@pytest.mark.parametrize(
    "metadata",
    [{}, {"tokenizer.ggml.tokens": SimpleNamespace(value="gpt2")}, {"tokenizer.ggml.tokens": array("i32", [1, 2])}],
)
def test_gguf_without_tokens(metadata: dict[str, Any]) -> None:
    assert gguf_entries(metadata, 2) is None


def test_gguf_arrays_of_another_type_count_as_missing() -> None:
    metadata = {
        "tokenizer.ggml.tokens": array("str", ["a"]),
        "tokenizer.ggml.scores": array("f64", [1e300]),
        "tokenizer.ggml.token_type": array("str", ["x"]),
    }
    made = gguf_entries(metadata, 1)
    assert made is not None
    assert (made["vocab_scores"], made["vocab_types"]) == (bytes(4), b"\0")


def test_tokenizer_json() -> None:
    document = {
        "added_tokens": [{"id": 5, "content": "<eos>"}, {"id": "6", "content": "no"}, 7],
        "model": {"vocab": {"a": 0, "b": 1, "ab": 2, "<eos>": 5, "far": 99}, "merges": ["a b", ["b", "a"], ["a"], 3]},
    }
    made = huggingface_entries(document, 6)
    assert made is not None
    assert strings(made) == [b"a", b"b", b"ab", b"<|ck_missing_3|>", b"<|ck_missing_4|>", b"<eos>"]
    assert numbers(made["vocab_merges"]) == [0, 1, 2]


def test_added_tokens_have_the_ids_that_the_tokenizers_library_gives() -> None:
    listed = [{"id": 0, "content": "a"}, {"id": 0, "content": "twice"}, {"id": 4, "content": "behind a gap"}]
    made = huggingface_entries({"added_tokens": listed, "model": {"vocab": {"a": 0, "b": 4}}}, 5)
    assert made is not None
    assert strings(made) == [b"a", b"<|ck_missing_1|>", b"twice", b"behind a gap", b"b"]


@pytest.mark.parametrize("unknown", ["<unk>", {"content": "<unk>"}])
def test_holes_are_the_unknown_token(unknown: object) -> None:
    made = huggingface_entries({"model": {"vocab": {"a": 0}, "unk_token": unknown}}, 2)
    assert made is not None
    assert strings(made) == [b"a", b"<unk>"]


@pytest.mark.parametrize("document", [{}, {"model": 3}, {"model": {"vocab": [["a", -1.0]]}}, {"model": {"vocab": {}}}])
def test_tokenizer_json_without_a_vocabulary(document: dict[str, Any]) -> None:
    assert huggingface_entries(document, 2) is None
