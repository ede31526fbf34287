"""Tokens that files add to the words of a tokenizer, with the ids and flags that ``AutoTokenizer`` gives them.

Whatever id a file lists, a token that is a word keeps that one's, and any other gets the next free one, in the order in
which tokens come: those of ``tokenizer.json``, those of ``added_tokens_decoder`` (or of ``added_tokens.json``) by id,
then the special ones that the settings name.
Sources: ``AddedVocabulary.add_tokens`` of tokenizers 0.23; ``_from_pretrained`` and ``TokenizersBackend.__init__`` of
transformers 5.24.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ckconv.tokenizer.files import LeftOut, TokenizerFiles

#: ``SPECIAL_TOKENS_ATTRIBUTES`` of transformers, in its order.
_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
#: Lists of further special tokens; some versions have an object of named ones.
_MORE = ("additional_special_tokens", "extra_special_tokens")
#: T5's, which its class puts among the words, the last one first.
_SENTINEL = "<extra_id_"
#: Classes that take ``tokenizer.json`` as it is; of transformers 5, others make their own of its words.
_WHOLE = ("PreTrainedTokenizerFast", "TokenizersBackend")
#: Types of models that transformers 5 has a class for whatever the settings name
#: (``MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS``).
_OF_THE_TYPE = ("qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text")
#: Digits of an id, of which an embedding has far fewer.
_MAX_DIGITS = 9


class Added(NamedTuple):
    """A token that is looked for in a text before anything else.

    Attributes:
        number: its id.
        listed: the id that a file lists; ``None`` where the token is only named.
        given: what the file says of it: ``lstrip`` and the like.
    """

    content: str
    number: int
    special: bool
    listed: int | None = None
    given: Mapping[str, Any] = {}


class _Listed(NamedTuple):
    """A token as a file has it, ``listed`` being the id there."""

    content: str
    special: bool
    listed: int | None
    given: Mapping[str, Any]


def added_tokens(files: TokenizerFiles, words: Mapping[str, int]) -> dict[str, Added]:
    """Content -> token, in the order in which they are added.

    Args:
        words: those of the tokenizer's model, with their ids.

    Raises:
        LeftOut: one is malformed, or transformers 4 and 5 do not agree about it.
    """
    whole, listed, named = [*_of_document(files.tokenizer)], [*of_settings(files.settings)], [*_named(files.settings)]
    more, own = [*_more(files.settings)], listed
    if "added_tokens_decoder" not in files.settings:
        known = {token.content for token in whole}
        numbers = {content: n for content, n in files.added.items() if type(n) is int and content not in known}
        listed = [_Listed(content, content in (*named, *more), n, {}) for content, n in numbers.items()]
        own = sorted([*listed, *whole], key=lambda token: token.listed or 0)
        listed.sort(key=lambda token: token.listed or 0)
    known = {token.content for token in (*whole, *listed)}
    first, last = ([_Listed(content, True, None, {}) for content in contents] for contents in (named, more))
    found = _numbered((whole, [*listed, *first, *(token for token in last if token.content not in known)]), words)
    other = _numbered((own, [*first, *last]), words)
    said = str(files.settings.get("tokenizer_class") or "")
    if said not in _WHOLE or files.config.get("model_type") in _OF_THE_TYPE:
        for content, token in found.items():
            if content not in other or (token.number, token.special) != (other[content].number, other[content].special):
                raise LeftOut(f"transformers 4 and 5 have other ids, or other flags, for the token {content!r}")
    return found


def _numbered(batches: Iterable[Sequence[_Listed]], words: Mapping[str, int]) -> dict[str, Added]:
    """The tokens of each batch with their ids; the first free one is looked for once a batch."""
    made: dict[str, Added] = {}
    for batch in batches:
        free = max([len(words) - 1, *(token.number for token in made.values())]) + 1
        for content, special, listed, given in batch:
            there = made.get(content)
            if there and listed is None:  # named besides
                made[content] = there._replace(special=True)
                continue
            number = there.number if there else words.get(content, free)
            free += number == free
            made[content] = Added(content, number, special, listed, given)
    return made


def words_of_document(document: Mapping[str, Any] | None) -> dict[str, int]:
    """Word -> id, of the model of a ``tokenizer.json``; empty where it has none."""
    model = (document or {}).get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):
        return {pair[0]: n for n, pair in enumerate(vocab) if isinstance(pair, list) and pair and type(pair[0]) is str}
    return {word: n for word, n in vocab.items() if type(n) is int} if isinstance(vocab, dict) else {}


def is_id(key: str) -> bool:
    """A key of ``added_tokens_decoder`` is the number of a row that an embedding could have."""
    return key.isascii() and key.isdecimal() and len(key) <= _MAX_DIGITS


def content_of(settings: Mapping[str, Any], key: str) -> str:
    """The word that a setting names, as a text or as an object with one."""
    entry = settings.get(key)
    entry = entry.get("content") if isinstance(entry, dict) else entry
    return entry if isinstance(entry, str) else ""


def _of_document(document: Mapping[str, Any] | None) -> Iterator[_Listed]:
    added = (document or {}).get("added_tokens")
    for item in added if isinstance(added, list) else ():
        token, number = (item.get("content"), item.get("id")) if isinstance(item, dict) else (None, None)
        if not isinstance(token, str):
            raise LeftOut("tokenizer.json has an added token without content")
        if type(number) is not int or number < 0:
            raise LeftOut(f"token {token!r} has the id {number!r} (tokenizer.json)")
        if token:
            yield _Listed(token, item.get("special") is True, number, item)


def of_settings(settings: Mapping[str, Any]) -> Iterator[_Listed]:
    """Those of ``added_tokens_decoder``, by id."""
    found = settings.get("added_tokens_decoder")
    decoder = found if isinstance(found, dict) else {}
    for key, entry in decoder.items():
        if not is_id(key) or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            shown = json.dumps(key if len(key) <= 40 else f"{key[:30]}...")
            raise LeftOut(f"added_tokens_decoder has no token at {shown} (tokenizer_config.json)")
    for key, entry in sorted(decoder.items(), key=lambda item: int(item[0])):
        if entry["content"]:
            yield _Listed(entry["content"], entry.get("special") is True, int(key), entry)


def _named(settings: Mapping[str, Any]) -> Iterator[str]:
    """Special tokens that the settings name."""
    yield from dict.fromkeys(content for key in _NAMED if (content := content_of(settings, key)))


def _more(settings: Mapping[str, Any]) -> Iterator[str]:
    """Further special tokens of the settings."""
    for key in _MORE:
        found: Any = settings.get(key)
        items = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
        contents = (content_of({"": item}, "") for item in items)
        yield from (content for content in contents if content and not content.startswith(_SENTINEL))
