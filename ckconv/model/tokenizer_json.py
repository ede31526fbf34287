"""``tokenizer.json`` out of the words of a GGUF: the steps of the tokenizers library that do what llama.cpp does.

Byte-level BPE is said in the same words by both. SentencePiece joins the two neighbours whose piece has the highest
score, the leftmost of equals; here that is a list of merges in the order of the scores, as transformers makes it out of
a ``tokenizer.model``. Of one piece's merges the one with the longest first half is first, so that where two of them
overlap it is the leftmost.
Source: ``generate_merges`` of transformers' ``convert_slow_tokenizer.py``; ``llm_tokenizer_spm_session`` and
``tokenizer_st_partition`` of llama.cpp's ``src/llama-vocab.cpp``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from json import JSONEncoder
from math import isnan
from typing import Any

from ckconv.model.gguf_pretokenizers import definition
from ckconv.model.gguf_vocabulary import KEEPS_SPACE, NotFaithful, Vocabulary
from ckconv.model.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

#: Types of tokens that are looked for in a text before anything else; all but the user's are special.
ADDED = frozenset({CONTROL, UNKNOWN, USER_DEFINED})

_BYTES = 256
#: What stands for a space in a SentencePiece model.
_SPACE = "▁"
_ASCII = 128
#: What llama.cpp takes for the unknown token where a file does not say.
_UNKNOWN_ID = 0

_encoded = JSONEncoder(ensure_ascii=False).encode


def fills(token: str, kind: int, number: int) -> bool:
    """The token only fills a row of the embedding: llama.cpp's converter makes one up where there is none.

    It is unused, or unknown in files of older converters.
    """
    return not token or (kind in (UNUSED, UNKNOWN) and token == f"[PAD{number}]")


def check_words(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Every token is a text, and no two are the same; a token with a role is one that is looked for.

    Raises:
        NotFaithful: not so.
    """
    ids: set[str] = set()
    for number, token in enumerate(tokens):
        if not token:
            continue
        if token in ids:
            raise NotFaithful(f"two tokens are {token!r}")
        ids.add(token)
        if not token.isascii():
            try:
                token.encode()
            except UnicodeEncodeError:
                raise NotFaithful(f"token {number:,} is no text") from None
    for what, adds in (("bos", vocabulary.adds_bos), ("eos", vocabulary.adds_eos)):
        number = vocabulary.special.get(what, -1)
        if adds and not has_role(number, tokens, types):
            raise NotFaithful(f"it puts token {number:,} around a text, which is no control token")


def unknown_token(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int]) -> int:
    """The id of the token that stands for what no token is: by its type, else the one that the file or llama.cpp names.

    A file has no such type where the checkpoint lists the token among the added ones: it is a control token then.

    Raises:
        NotFaithful: there is none, or more than one.
    """
    found = [n for n, kind in enumerate(types) if kind == UNKNOWN and not fills(tokens[n], kind, n)]
    named = vocabulary.special.get("unk", _UNKNOWN_ID)
    if not found and has_role(named, tokens, types):
        return named
    if len(found) != 1:
        raise NotFaithful(f"it has {len(found):,} unknown tokens, and not one")
    return found[0]


def has_role(number: int, tokens: Sequence[str], types: Sequence[int]) -> bool:
    """A token of this id can be named as a special one: it is looked for in a text anyway."""
    return number < len(tokens) and types[number] in ADDED and bool(tokens[number])


def byte_level(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], merges: Iterable[str]) -> bytes:
    """``tokenizer.json`` of byte-level BPE.

    Raises:
        NotFaithful: a merge is not of tokens; a token has a type that byte-level BPE does not have.
    """
    pre = vocabulary.pre
    assert pre is not None
    if BYTE in types:
        raise NotFaithful("it has tokens for bytes and is byte-level BPE")
    vocab = {token: n for n, token in enumerate(tokens) if not fills(token, types[n], n)}
    document = {
        "added_tokens": _added(vocabulary, tokens, types),
        "normalizer": {"type": "NFC"} if pre.composed else None,
        "pre_tokenizer": definition(pre),
        "post_processor": _around(vocabulary, tokens, _BYTE_LEVEL),
        "decoder": _BYTE_LEVEL,
    }
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": pre.ignore_merges,
    }
    return _document(document, model, vocab.items(), _of_tokens(merges, vocab))


def _of_tokens(merges: Iterable[str], vocab: Mapping[str, int]) -> Iterator[str]:
    """The merges, whose halves and whole have to be tokens."""
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not (space and left in vocab and right in vocab and left + right in vocab):
            raise NotFaithful(f"the merge {merge!r} is not of tokens")
        yield merge


_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def sentencepiece(
    vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> bytes:
    """``tokenizer.json`` of SentencePiece BPE with byte fallback.

    Raises:
        NotFaithful: it is not one that merges can say.
    """
    unknown = unknown_token(vocabulary, tokens, types)
    vocab = {token: n for n, token in enumerate(tokens) if not fills(token, types[n], n)}
    if any(types[vocab.get(f"<0x{byte:02X}>", unknown)] != BYTE for byte in range(_BYTES)):
        raise NotFaithful("it has no tokens for all bytes")
    _spell_out(vocab, tokens, types)
    prefix = [{"type": "Prepend", "prepend": _SPACE}] if vocabulary.space_prefix else []
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if vocabulary.space_prefix else []
    document = {
        "added_tokens": _added(vocabulary, tokens, types),
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, spaces]},
        "pre_tokenizer": None,
        "post_processor": _around(vocabulary, tokens, None),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *strip,
            ],
        },
    }
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": tokens[unknown],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
    }
    return _document(document, model, vocab.items(), _merges(vocab, tokens, types, scores))


def _spell_out(vocab: dict[str, int], tokens: Sequence[str], types: Sequence[int]) -> None:
    """Give every character of a piece an id of its own: merges begin with characters.

    One without a piece is its byte, whose id it shares; so has Gemma's vocabulary tabs, but no single one.
    """
    missing = {char for n, token in enumerate(tokens) if types[n] == NORMAL for char in token} - vocab.keys()
    for char in sorted(missing):
        if ord(char) >= _ASCII:
            raise NotFaithful(f"a piece holds {char!r}, which is no piece")
        vocab[char] = vocab[f"<0x{ord(char):02X}>"]


def _merges(
    vocab: dict[str, int], tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> Iterator[str]:
    """The merges that make pieces, in the order in which SentencePiece would choose them.

    Pieces of one score have no order, and of their merges the leftmost comes first. Where they are all runs of one
    character, as the spaces of llama's vocabulary, that is the one that makes the longest run longer.
    """
    made = [n for n, token in enumerate(tokens) if types[n] == NORMAL and len(token) > 1]
    if any(isnan(scores[n]) for n in made):
        raise NotFaithful("a score is no number")
    made.sort(key=lambda n: -scores[n])
    for _, equals in groupby(made, key=lambda n: scores[n]):
        group = [(n, halves) for n in equals if (halves := _halves(tokens[n], vocab, types))]
        if len(group) > 1 and len({char for n, _ in group for char in tokens[n]}) > 1:
            first, second = (tokens[n] for n, _ in group[:2])
            raise NotFaithful(f"{first!r} and {second!r} have one score, and merges have an order")
        pairs = [pair for _, halves in group for pair in halves]
        for left, right in sorted(pairs, key=lambda pair: (-len(pair[0]), -len(pair[1]))):
            yield f"{left} {right}"


def _halves(token: str, vocab: dict[str, int], types: Sequence[int]) -> list[tuple[str, str]]:
    """Every way in which a piece can be made of two."""
    cuts = ((token[:at], token[at:]) for at in range(len(token) - 1, 0, -1))
    found = [(left, right) for left, right in cuts if _joins(left, vocab, types) and _joins(right, vocab, types)]
    if found and " " in token:
        raise NotFaithful(f"the piece {token!r} holds a space")
    return found


def _joins(part: str, vocab: dict[str, int], types: Sequence[int]) -> bool:
    """A character, or a piece that merges make."""
    number = vocab.get(part)
    return number is not None and (len(part) == 1 or types[number] == NORMAL)


def _added(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int]) -> list[dict[str, Any]]:
    """Tokens that are looked for first. llama.cpp says nothing of white space around them, but for phi 3."""
    return [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": vocabulary.strips and token not in KEEPS_SPACE,
            "normalized": False,
            "special": types[number] != USER_DEFINED,
        }
        for number, token in enumerate(tokens)
        if types[number] in ADDED and not fills(token, types[number], number)
    ]


def _around(vocabulary: Vocabulary, tokens: Sequence[str], otherwise: dict[str, Any] | None) -> dict[str, Any] | None:
    """What puts the beginning and the end around a text, or around each of two."""
    ends = [
        tokens[vocabulary.special[what]] if adds else ""
        for what, adds in (("bos", vocabulary.adds_bos), ("eos", vocabulary.adds_eos))
    ]
    if ends == ["", ""]:
        return otherwise

    def parts(what: str, type_id: int) -> list[dict[str, Any]]:
        begin, end = ([{"SpecialToken": {"id": token, "type_id": type_id}}] if token else [] for token in ends)
        return [*begin, {"Sequence": {"id": what, "type_id": type_id}}, *end]

    ids = {token: vocabulary.special[what] for what, token in zip(("bos", "eos"), ends, strict=True) if token}
    template = {
        "type": "TemplateProcessing",
        "single": parts("A", 0),
        "pair": parts("A", 0) + parts("B", 1),
        "special_tokens": {token: {"id": token, "ids": [n], "tokens": [token]} for token, n in ids.items()},
    }
    return {"type": "Sequence", "processors": [otherwise, template]} if otherwise else template


def _document(
    document: dict[str, Any], model: dict[str, Any], vocab: Iterable[tuple[str, int]], merges: Iterable[str]
) -> bytes:
    """One line for a word: the whole as one object in memory would be ten times the file."""
    out = bytearray(b'{\n  "version": "1.0",\n  "truncation": null,\n  "padding": null,\n')
    for key, value in document.items():
        if key == "added_tokens":
            out += b'  "added_tokens": [\n'
            _lines(out, "    ", (json.dumps(token, ensure_ascii=False) for token in value))
            out += b"  ],\n"
            continue
        out += f'  "{key}": {json.dumps(value, ensure_ascii=False)},\n'.encode()
    out += b'  "model": {\n'
    for key, value in model.items():
        out += f'    "{key}": {json.dumps(value, ensure_ascii=False)},\n'.encode()
    out += b'    "vocab": {\n'
    _lines(out, "      ", (f"{_encoded(token)}: {number}" for token, number in vocab))
    out += b'    },\n    "merges": [\n'
    _lines(out, "      ", map(_encoded, merges))
    out += b"    ]\n  }\n}\n"
    return bytes(out)


def _lines(out: bytearray, indent: str, items: Iterable[str]) -> None:
    """The items, each on a line, with commas between them."""
    first = True
    for item in items:
        out += (f"{indent}{item}" if first else f",\n{indent}{item}").encode()
        first = False
    if not first:
        out += b"\n"
