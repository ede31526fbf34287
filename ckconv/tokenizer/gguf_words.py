"""The words of a tokenizer by id, as a GGUF holds them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckconv.core.typed import Value
from ckconv.core.undecoded import is_text
from ckconv.tokenizer.files import LeftOut
from ckconv.tokenizer.sentencepiece import CONTROL, NORMAL, UNUSED, USER_DEFINED
from ckconv.tokenizer.vocabulary import SPECIAL

#: Tokens that llama.cpp's converter takes for control tokens although nobody marked them as special.
LOOKS_SPECIAL = re.compile(r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<｜.*｜>|<unused.*>", re.DOTALL)

#: Digits of an id, of which an embedding has far fewer.
_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Words:
    """What one kind of tokenizer says.

    Attributes:
        metadata: the keys of its words.
        ids: word -> id.
        tokens: the words that have an id.
        own: the model's own special tokens: name -> id.
        behind: keys that come after those of special tokens.
    """

    metadata: dict[str, Value]
    ids: Mapping[str, int]
    tokens: frozenset[str]
    own: Mapping[str, int] = field(default_factory=dict)
    behind: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def words_of(
    document: Mapping[str, Any], vocab_size: int, settings: Mapping[str, Any]
) -> tuple[dict[int, tuple[str, int]], dict[str, int]]:
    """``tokenizer.json``: id -> word and type, and the ids of the added tokens by word.

    transformers adds those that ``tokenizer_config.json`` names.

    Raises:
        LeftOut: a word has no id of the embedding, or is not text.
    """
    vocab = document["model"].get("vocab")
    if not isinstance(vocab, dict) or not vocab:
        raise LeftOut("tokenizer.json has no vocabulary")
    by_id: dict[int, tuple[str, int]] = {}
    for token, number in vocab.items():
        _place(by_id, token, number, NORMAL, vocab_size)
    added = document.get("added_tokens")
    ids: dict[str, int] = {}
    for item in added if isinstance(added, list) else ():
        token, number = (item.get("content"), item.get("id")) if isinstance(item, dict) else (None, None)
        if not isinstance(token, str):
            raise LeftOut("tokenizer.json has an added token without content")
        control = item.get("special") is True or LOOKS_SPECIAL.fullmatch(token)
        ids[token] = _place(by_id, token, number, CONTROL if control else USER_DEFINED, vocab_size)
    named = [content_of(settings, f"{name}_token") for name in SPECIAL]
    for token in named:
        if token in vocab and token not in ids:
            ids[token] = _place(by_id, token, vocab[token], CONTROL, vocab_size)
    return by_id, ids


def content_of(settings: Mapping[str, Any], key: str) -> str:
    """The word that a setting names, as a text or as an object with one."""
    entry = settings.get(key)
    entry = entry.get("content") if isinstance(entry, dict) else entry
    return entry if isinstance(entry, str) else ""


def is_id(key: str) -> bool:
    """A key of ``added_tokens_decoder`` is the number of a row that an embedding could have."""
    return key.isascii() and key.isdecimal() and len(key) <= _MAX_DIGITS


def added_by_id(settings: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The entries of ``added_tokens_decoder``.

    Raises:
        LeftOut: one is no token.
    """
    decoder = settings.get("added_tokens_decoder")
    for key, entry in decoder.items() if isinstance(decoder, dict) else ():
        if not is_id(key) or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            shown = json.dumps(key if len(key) <= 40 else f"{key[:30]}...")
            raise LeftOut(f"added_tokens_decoder has no token at {shown} (tokenizer_config.json)")
        yield int(key), entry


def filled(by_id: Mapping[int, tuple[str, int]], vocab_size: int) -> list[tuple[str, int]]:
    """A word and a type for every row of the embedding."""
    return [by_id.get(n, (f"[PAD{n}]", UNUSED)) for n in range(vocab_size)]


def _place(by_id: dict[int, tuple[str, int]], token: str, number: object, kind: int, vocab_size: int) -> int:
    check_text(token)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise LeftOut(f"token {token!r} has the id {number!r} (tokenizer.json)")
    if number >= vocab_size:
        raise LeftOut(f"token {token!r} has the id {number:,}, the embedding {vocab_size:,} rows")
    there = by_id.get(number)
    if there and there[0] != token and kind == NORMAL:
        raise LeftOut(f"tokens {there[0]!r} and {token!r} have the same id {number:,}")
    by_id[number] = (token, kind)
    return number


def check_text(text: str) -> None:
    """JSON can spell halves of a character.

    Raises:
        LeftOut: it does.
    """
    if not is_text(text):
        raise LeftOut(f"{text!r} is not text")
