"""The words of a tokenizer by id, as a GGUF holds them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ckconv.core.metadata import Value
from ckconv.core.non_utf8 import is_text
from ckconv.tokenizer.added import Added, added_tokens
from ckconv.tokenizer.files import LeftOut, TokenizerFiles
from ckconv.tokenizer.sentencepiece import CONTROL, NORMAL, UNUSED, USER_DEFINED

#: Tokens that llama.cpp's converter takes for control tokens although nobody marked them as special.
LOOKS_SPECIAL = re.compile(r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<｜.*｜>|<unused.*>", re.DOTALL)


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
    files: TokenizerFiles, words: object, vocab_size: int
) -> tuple[dict[int, tuple[str, int]], dict[str, int], tuple[str, ...]]:
    """Id -> word and type; the ids of the added tokens by word; and notes.

    Raises:
        LeftOut: a word has no id of the embedding, or is not text.
    """
    if not isinstance(words, dict) or not words:
        raise LeftOut("tokenizer.json has no vocabulary")
    by_id: dict[int, tuple[str, int]] = {}
    for token, number in words.items():
        _place(by_id, token, number, NORMAL, vocab_size)
    ids: dict[str, int] = {}
    added = added_tokens(files, words)
    for token in placeable(added.values(), vocab_size):
        kind = CONTROL if token.special or LOOKS_SPECIAL.fullmatch(token.content) else USER_DEFINED
        ids[token.content] = _place(by_id, token.content, token.number, kind, vocab_size)
    return by_id, ids, notes_on(added.values(), vocab_size)


def placeable(added: Iterable[Added], vocab_size: int) -> Iterator[Added]:
    """Without tokens that the settings only name, and the embedding has no row for."""
    return (token for token in added if token.listed is not None or token.number < vocab_size)


def notes_on(added: Iterable[Added], vocab_size: int) -> tuple[str, ...]:
    """What becomes of tokens whose id is not the one that a file lists, or that the embedding has no row for."""
    added = [*added]
    moved = [token for token in added if token.listed not in (None, token.number)]
    absent = [token.content for token in added if token.listed is None and token.number >= vocab_size]
    notes = []
    if moved:
        first = f"{moved[0].content!r} has the id {moved[0].number:,}, as the tokenizers library gives it"
        more = f", and so on for {len(moved) - 1:,} more" if len(moved) > 1 else ""
        notes.append(f"{first}; its file lists {moved[0].listed:,}{more}")
    if absent:
        notes.append(f"{absent[0]!r}, a special token by name, is none here: the embedding has no row for it")
    return tuple(notes)


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
    if there and there[0] != token:
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
