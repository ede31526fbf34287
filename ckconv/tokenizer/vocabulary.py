"""What the ``tokenizer.*`` keys of a GGUF say about a tokenizer, read as llama.cpp reads them; arrays stay encoded.

Source: ``llama_vocab::impl::load`` of llama.cpp's ``src/llama-vocab.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ckconv.tokenizer.pretokenizers import PreTokenizer, pre_tokenizers

#: Name of a special token in Hugging Face's words -> its key in GGUF after ``tokenizer.ggml.``, in llama.cpp's order.
SPECIAL: dict[str, str] = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",
    "pad": "padding_token_id",
    "cls": "cls_token_id",
    "mask": "mask_token_id",
}

#: Tokens that end a text besides ``eos``: of a turn, of a message.
_ALSO_END = ("eot_token_id", "eom_token_id")

#: Texts of tokens that llama.cpp takes for the end of a turn where a file names none, and of a message.
FOUND_AS: dict[str, frozenset[str]] = {
    "eot_token_id": frozenset(
        {
            *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>"),
            *("_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"),
        }
    ),
    "eom_token_id": frozenset({"<|eom_id|>"}),
}
#: Texts of tokens after which llama.cpp ends, whatever a file names.
ENDS_BY_TEXT = frozenset(
    {
        *(text for texts in FOUND_AS.values() for text in texts),
        *("<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "[EOS]", "<eos>", "<turn|>", "<|tool_response>"),
        "[e~[",
    }
)

#: What llama.cpp takes for the special tokens of a SentencePiece model whose file does not say. The unknown token is
#: the one of that type.
_SPECIAL = {
    "llama": {"bos": 1, "eos": 2},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
    "bert": {"bos": 101, "sep": 102, "unk": 100, "pad": 0, "mask": 103},
}

#: Pre-tokenizers that make spaces pieces and follow merges of pieces -> whether a beginning is put before a text
#: whatever the file says.
PIECES: dict[str, bool] = {"gemma4": True, "granite-embed-multi-311m": True, "sarvam-moe": False}

#: Models of llama.cpp that no ``tokenizer.json`` says, or none of a family that ckconv knows, and why.
OTHER_MODELS: dict[str, str] = {
    "hybriddna": "it takes six letters at a time between <dna> and </dna>, which no tokenizer.json says",
    "plamo2": "it scores pieces as PLaMo's own code does, and ckconv knows no model of PLaMo",
    "rwkv": "it takes the longest word that a text begins with, which no tokenizer.json says",
    "whitespace": "it is that of Jina's Chinese embedding model, whose architecture ckconv does not know",
}

#: Models whose name holds one of these have special tokens that swallow the white space behind them, but for these.
PHI3_NAMES = ("phi-3", "phi3")
#: Words that llama.cpp looks up in their vocabulary, without asking whether they are there.
PHI3_TOKENS = frozenset({"</s>", "<unk>", "<s>", "<|endoftext|>"})
KEEPS_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})


class NotFaithful(Exception):
    """Why a tokenizer cannot be written so that it does what llama.cpp does with the file."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a unigram model does to a text first: SentencePiece's map of characters, and one space for many."""

    charsmap: Any
    one_space: bool


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer, without its words.

    Attributes:
        pre: how text is split; ``None`` for pieces, where it is not: those of SentencePiece, with ``scores``, or with
            ``merges``.
        special: Hugging Face's name (``bos``) -> id.
        adds_bos, adds_eos: a beginning, an end is put around a text.
        space_prefix: a space is put before a text of pieces.
        strips: special tokens swallow the white space behind them, but for ``KEEPS_SPACE``.
        chat_template: a text, or a list of ``name`` and ``template`` with the default one first; ``None`` for none.
        tokens, types, merges, scores: arrays with ``count`` and ``decode()``, of strings with ``each()`` too; ``None``
            for those that the model does not have.
        unigram: the rules of a unigram model; ``None`` for another.
        lowers: WordPiece: letters are made small, and accents taken off them; ``None`` for another.
    """

    pre: PreTokenizer | None
    special: Mapping[str, int]
    adds_bos: bool
    adds_eos: bool
    space_prefix: bool
    strips: bool
    chat_template: str | list[dict[str, str]] | None
    tokens: Any
    types: Any
    merges: Any = None
    scores: Any = None
    unigram: Rules | None = None
    lowers: tuple[bool, bool] | None = None


def vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """The tokenizer of a GGUF. Only what can be seen without decoding an array is checked.

    Raises:
        NotFaithful: there is none, or not everything that it does is known.
    """
    kind = _text(metadata, "tokenizer.ggml.model")
    if kind in ("", "no_vocab", "none"):
        raise NotFaithful("the source has none")
    if kind in OTHER_MODELS:
        raise NotFaithful(OTHER_MODELS[kind])
    if kind not in ("gpt2", "llama", "gemma4", "t5", "bert"):
        raise NotFaithful(f"its model is {kind!r}, which is not known exactly")
    name = "gemma4" if kind == "gemma4" else _text(metadata, "tokenizer.ggml.pre")
    scored = kind in ("llama", "t5")
    pieces = scored or kind == "bert" or name in PIECES
    pre = None if pieces else _pre_tokenizer(name)
    special = special_ids(metadata)
    tokens = _array(metadata, "tokens", "str", 1)
    added = [
        _flag(metadata, key, default)
        for key, default in (
            ("add_bos_token", pre.adds_bos if pre else kind == "llama"),
            ("add_eos_token", kind == "t5"),
        )
    ]
    added[0] = added[0] or (not scored and PIECES.get(name, False))
    if kind == "bert":  # llama.cpp asks no switch, and closes with the separator
        added, special = [True, True], {**special, "cls": special["bos"], "eos": special["sep"]}
    for what, adds in zip(("bos", "eos"), added, strict=True):
        if adds and what not in special:
            raise NotFaithful(f"it puts a token around a text and does not say which ({SPECIAL[what]})")
    model = _text(metadata, "general.name").lower()
    lower = _flag(metadata, "normalizer.lowercase", True)
    return Vocabulary(
        pre,
        special,
        added[0],
        added[1],
        scored and _flag(metadata, "add_space_prefix", kind == "llama"),
        any(word in model for word in PHI3_NAMES),
        _chat_template(metadata),
        tokens,
        _array(metadata, "token_type", "i32", tokens.count),
        None if scored or kind == "bert" else _array(metadata, "merges", "str", 1),
        _array(metadata, "scores", "f32", tokens.count) if scored else None,
        Rules(_charsmap(metadata), _flag(metadata, "remove_extra_whitespaces", False)) if kind == "t5" else None,
        (lower, _flag(metadata, "normalizer.strip_accents", lower)) if kind == "bert" else None,
    )


def adds_by_default(metadata: Mapping[str, Any]) -> dict[str, bool]:
    """Key -> whether llama.cpp puts a token around a text where the file does not say; empty where it is not known."""
    kind, pre = _text(metadata, "tokenizer.ggml.model"), pre_tokenizers().get(_text(metadata, "tokenizer.ggml.pre"))
    if kind != "llama" and pre is None:
        return {}
    adds_bos = kind == "llama" or (pre is not None and pre.adds_bos)
    return {"tokenizer.ggml.add_bos_token": adds_bos, "tokenizer.ggml.add_eos_token": False}


def special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Name of a special token -> its id, where the file says it or llama.cpp takes it for granted."""
    found = _SPECIAL.get(_text(metadata, "tokenizer.ggml.model"), {})
    said = {name: _number(metadata, key) for name, key in SPECIAL.items()}
    return found | {name: number for name, number in said.items() if number is not None}


def token_ids(metadata: Mapping[str, Any], texts: Iterable[str]) -> dict[str, int]:
    """Text of a token -> its number, of those that the vocabulary has."""
    with suppress(NotFaithful):
        wanted = {*texts}
        tokens = _array(metadata, "tokens", "str", 1)
        return {text: number for number, text in enumerate(tokens.decode()) if text in wanted}
    return {}


def ending_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Ids after which there is nothing more to generate: the end, and what the file says besides."""
    ids = [special_ids(metadata).get("eos"), *(_number(metadata, key) for key in _ALSO_END)]
    return list(dict.fromkeys(number for number in ids if number is not None))


def _pre_tokenizer(name: str) -> PreTokenizer:
    if not name:
        raise NotFaithful("the source does not say how it splits text (tokenizer.ggml.pre)")
    known = pre_tokenizers().get(name)
    if known is None:
        raise NotFaithful(f"it splits text as {name!r}, whose definition is not known exactly")
    return known


def _charsmap(metadata: Mapping[str, Any]) -> Any:
    """llama.cpp takes bytes of either sign."""
    key = "precompiled_charsmap"
    found = _value(metadata, f"tokenizer.ggml.{key}")
    return None if found is None else _array(metadata, key, "i8" if getattr(found, "type", "") == "i8" else "u8", 0)


def _chat_template(metadata: Mapping[str, Any]) -> str | list[dict[str, str]] | None:
    """The template, and those with names beside it."""
    key = "tokenizer.chat_template"
    texts = {"default": _printable(metadata, key)} if key in metadata else {}
    texts |= {k.removeprefix(f"{key}."): _printable(metadata, k) for k in metadata if k.startswith(f"{key}.")}
    texts = {name: text for name, text in texts.items() if text}
    if texts.keys() <= {"default"}:
        return texts.get("default")
    return [{"name": name, "template": text} for name, text in texts.items()]


def _printable(metadata: Mapping[str, Any], key: str) -> str:
    return _text(metadata, key).encode("utf-8", "replace").decode()


def _value(metadata: Mapping[str, Any], key: str) -> Any:
    return getattr(metadata.get(key), "value", None)


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = _value(metadata, key)
    return value if isinstance(value, str) else ""


def _number(metadata: Mapping[str, Any], key: str) -> int | None:
    value = _value(metadata, f"tokenizer.ggml.{key}")
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = _value(metadata, f"tokenizer.ggml.{key}")
    return value if isinstance(value, bool) else default


def _array(metadata: Mapping[str, Any], key: str, kind: str, least: int) -> Any:
    """An array of at least so many elements; llama.cpp reads no other type."""
    found = _value(metadata, f"tokenizer.ggml.{key}")
    if getattr(found, "type", None) != kind or found.count < least:
        raise NotFaithful(f"tokenizer.ggml.{key} is missing or too short")
    return found
