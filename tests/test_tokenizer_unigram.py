"""A unigram model out of tokenizer.json alone, as transformers 5 saves XLM-R's: what its tokenizer.model gives."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from conftest import FIXTURES
from test_tokenizer_names import TEXTS

from ckconv.core.metadata import Value, scalar
from ckconv.tokenizer import checkpoint
from ckconv.tokenizer.gguf import TokenizerKeys, tokenizer_keys
from ckconv.tokenizer.vocabulary import TokenizerFiles

MODEL = (FIXTURES / "tokenizers" / "sentencepiece-rules.model").read_bytes()
SPACES = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
SETTINGS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}


def xlm_roberta(**changes: Any) -> dict[str, Any]:
    """As ``XLMRobertaTokenizer`` builds it (tokenization_xlm_roberta.py of transformers 5.23)."""
    model = checkpoint.parse_sentencepiece(MODEL)
    first = [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0]]
    vocab = [*first, *([piece.text, piece.score] for piece in model.pieces[3:]), ["<mask>", 0.0]]
    numbers = {piece: number for number, (piece, _) in enumerate(vocab)}
    ends = {"<s>": 0, "</s>": 2}
    return {
        "added_tokens": [
            {"id": numbers[word], "content": word, "special": True, "lstrip": word == "<mask>", "rstrip": False,
             "normalized": False, "single_word": False}
            for word in SETTINGS.values()
        ],
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, SPACES]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {word: {"id": word, "ids": [n], "tokens": [word]} for word, n in ends.items()},
        },
        "decoder": SPACES,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": False},
    } | changes  # fmt: skip


def keys(document: dict[str, Any], **files: Any) -> TokenizerKeys:
    return tokenizer_keys(TokenizerFiles(tokenizer=document, settings=SETTINGS, **files), 340)


def test_it_is_what_the_model_beside_it_gives() -> None:
    document = xlm_roberta()
    size = len(document["model"]["vocab"])

    ours, theirs = keys(document).metadata, keys(document, model=MODEL, moved=True).metadata

    assert ours["tokenizer.ggml.model"] == scalar("str", "t5")
    for key in ("scores", "token_type"):
        made, wanted = (values(keys_of[f"tokenizer.ggml.{key}"]) for keys_of in (ours, theirs))
        assert made[: size - 1] == wanted[: size - 1]
    apart = {"tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.mask_token_id"}
    assert {key: ours[key] for key in ours.keys() - apart} == {key: theirs[key] for key in theirs.keys() - apart}
    assert ours["tokenizer.ggml.mask_token_id"] == scalar("u32", size - 1)


def values(array: Value) -> list[float]:
    """Of an array of numbers of four bytes, behind its type and count."""
    kind = array.payload[:4]
    return list(
        struct.unpack(
            f"<{(len(array.payload) - 12) // 4}{'i' if kind == bytes([5, 0, 0, 0]) else 'f'}", array.payload[12:]
        )
    )


def test_the_library_makes_the_ids_that_it_makes_of_the_model() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    library = pytest.importorskip("sentencepiece")
    processor = library.SentencePieceProcessor(model_proto=MODEL)
    document = tokenizers.Tokenizer.from_str(
        json.dumps({"version": "1.0", "truncation": None, "padding": None, **xlm_roberta()})
    )
    plain = [text for text in TEXTS if not any(word in text for word in SETTINGS.values())]

    others = [
        text
        for text in plain
        if [3 if n == 0 else n + 1 for n in processor.encode(text)]
        != document.encode(text, add_special_tokens=False).ids
    ]

    assert len(plain) > 500
    assert len(others) <= 16, others  # of stacked marks, which the library takes as one: docs/limits.md


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": {**xlm_roberta()["model"], "byte_fallback": True}}, "its model has pieces for bytes"),
        ({"model": {**xlm_roberta()["model"], "unk_id": None}}, "its model has no unknown token"),
        ({"model": {**xlm_roberta()["model"], "vocab": [["a", 0.0], ["a", 0.0]]}}, "a piece twice"),
        ({"model": {**xlm_roberta()["model"], "vocab": [["a", float("inf")]]}}, "the score of 'a' is no number"),
        ({"model": {**xlm_roberta()["model"], "vocab": [["a▁b", 0.0]]}}, "'a▁b' is of two words"),
        ({"normalizer": {"type": "NFKC"}}, "no map of characters alone, but NFKC"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "its map of characters is malformed"),
        ({"pre_tokenizer": SPACES}, "does not cut at white space"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "its pre-tokenizer is 'Whitespace'"),
    ],
)  # fmt: skip
def test_what_llama_cpp_would_do_otherwise_is_left_out(changes: dict[str, Any], why: str) -> None:
    made = keys(xlm_roberta(**changes))

    assert made.metadata == {"tokenizer.ggml.model": scalar("str", "no_vocab")}
    assert why in made.notes[0]
