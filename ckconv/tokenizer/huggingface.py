"""``tokenizer.json`` out of the words of a GGUF: the steps of the tokenizers library that do what llama.cpp does.

Source: ``llm_tokenizer_bpe``, ``llm_tokenizer_spm_session`` and ``tokenizer_st_partition`` of llama.cpp's
``src/llama-vocab.cpp``; the serialised form is that of the tokenizers library, version 1.0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from json import JSONEncoder
from typing import Any

from ckconv.core.non_utf8 import is_text
from ckconv.publish.files import SideFile, side_file
from ckconv.tokenizer.pretokenizers import BYTE_LEVEL, definition
from ckconv.tokenizer.sentencepiece import BYTE, CONTROL, SPACE, UNKNOWN, UNUSED, USER_DEFINED
from ckconv.tokenizer.sentencepiece_merges import merges_of, spell_out
from ckconv.tokenizer.vocabulary import KEEPS_SPACE, NotFaithful, Vocabulary

#: Types of tokens that are looked for in a text before anything else; all but the user's are special.
ADDED = frozenset({CONTROL, UNKNOWN, USER_DEFINED})

_BYTES = 256
#: Bytes of a ``tokenizer.json``; the largest known one, of 262,144 words, has half of it. A vocabulary of long pieces
#: has far more merges than it has letters.
_MAX_BYTES = 64 << 20
#: Characters of it that are written at a time.
_PIECE = 64 << 10
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
        if not token.isascii() and not is_text(token):
            raise NotFaithful(f"token {number:,} is not text")
    for what, adds in (("bos", vocabulary.adds_bos), ("eos", vocabulary.adds_eos)):
        number = vocabulary.special.get(what, -1)
        if adds and not has_role(number, tokens, types):
            raise NotFaithful(f"it puts token {number:,} around a text, which is not a control token")


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


def byte_level(
    vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], merges: Callable[[], Iterable[str]]
) -> SideFile:
    """``tokenizer.json`` of byte-level BPE.

    Args:
        merges: gives them, one after the other.

    Raises:
        NotFaithful: a merge is not of tokens; a token has a type that byte-level BPE does not have.
    """
    pre = vocabulary.pre
    assert pre is not None
    if BYTE in types:
        raise NotFaithful("it has tokens for bytes and is byte-level BPE")
    vocab = {token: n for n, token in enumerate(tokens) if not fills(token, types[n], n)}
    document = {
        "added_tokens": added_tokens(vocabulary, tokens, types),
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": definition(pre),
        "post_processor": around(vocabulary, tokens, BYTE_LEVEL),
        "decoder": BYTE_LEVEL,
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
    return written(document, model, vocab, lambda: _of_tokens(merges(), vocab))


def _of_tokens(merges: Iterable[str], vocab: Mapping[str, int]) -> Iterator[str]:
    """The merges, whose halves and whole have to be tokens."""
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not (space and left in vocab and right in vocab and left + right in vocab):
            raise NotFaithful(f"the merge {merge!r} is not of tokens")
        yield merge


def pieces(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> SideFile:
    """``tokenizer.json`` of BPE of characters with byte fallback: SentencePiece's.

    Args:
        scores: of SentencePiece; none where the vocabulary has merges.

    Raises:
        NotFaithful: it is not one that merges can say.
    """
    unknown = unknown_token(vocabulary, tokens, types)
    vocab = {token: n for n, token in enumerate(tokens) if not fills(token, types[n], n)}
    if any(types[vocab.get(f"<0x{byte:02X}>", unknown)] != BYTE for byte in range(_BYTES)):
        raise NotFaithful("it has no tokens for all bytes")
    if scores:
        spell_out(vocab, tokens, types)
    prefix = [{"type": "Prepend", "prepend": SPACE}] if vocabulary.space_prefix else []
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if vocabulary.space_prefix else []
    document = {
        "added_tokens": added_tokens(vocabulary, tokens, types),
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, spaces]},
        "pre_tokenizer": None,
        "post_processor": around(vocabulary, tokens, None),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
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
    if scores:
        return written(document, model, vocab, lambda: merges_of(vocab, tokens, types, scores))
    return written(document, model, vocab, lambda: _of_tokens(vocabulary.merges.each(), vocab))


def added_tokens(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int]) -> list[dict[str, Any]]:
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


def around(vocabulary: Vocabulary, tokens: Sequence[str], otherwise: dict[str, Any] | None) -> dict[str, Any] | None:
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


def written(
    document: dict[str, Any],
    model: dict[str, Any],
    vocab: Mapping[str, int] | Sequence[tuple[str, float]],
    merges: Callable[[], Iterable[str]],
) -> SideFile:
    """The document, in pieces: the whole as one object in memory would be ten times the file.

    Raises:
        NotFaithful: it would be larger than what ckconv, or anybody, reads.
    """
    return side_file(lambda: _in_pieces(_texts(document, model, vocab, merges())))


def _texts(
    document: Mapping[str, Any],
    model: Mapping[str, Any],
    vocab: Mapping[str, int] | Sequence[tuple[str, float]],
    merges: Iterable[str],
) -> Iterator[str]:
    """One line for a word, which has an id, or a score and its place."""
    yield '{\n  "version": "1.0",\n  "truncation": null,\n  "padding": null,\n'
    for key, value in document.items():
        if key == "added_tokens":
            yield '  "added_tokens": [\n'
            yield from _lines("    ", (json.dumps(token, ensure_ascii=False) for token in value))
            yield "  ],\n"
            continue
        yield f'  "{key}": {json.dumps(value, ensure_ascii=False)},\n'
    yield '  "model": {\n'
    for key, value in model.items():
        yield f'    "{key}": {json.dumps(value, ensure_ascii=False)},\n'
    if not isinstance(vocab, Mapping):
        yield '    "vocab": [\n'
        yield from _lines("      ", (f"[{_encoded(token)}, {score!r}]" for token, score in vocab))
        yield "    ]\n  }\n}\n"
        return
    yield '    "vocab": {\n'
    yield from _lines("      ", (f"{_encoded(token)}: {number}" for token, number in vocab.items()))
    if "byte_fallback" not in model:
        yield "    }\n  }\n}\n"
        return
    yield '    },\n    "merges": [\n'
    yield from _lines("      ", map(_encoded, merges))
    yield "    ]\n  }\n}\n"


def _lines(indent: str, items: Iterable[str]) -> Iterator[str]:
    """The items, each on a line, with commas between them."""
    comma = ""
    for item in items:
        yield f"{comma}{indent}{item}"
        comma = ",\n"
    if comma:
        yield "\n"


def _in_pieces(texts: Iterable[str]) -> Iterator[bytes]:
    """The texts as bytes, many at a time."""
    held: list[str] = []
    length = nbytes = 0
    for text in chain(texts, [""]):
        held.append(text)
        length += len(text)
        if length >= _PIECE or not text:
            piece = "".join(held).encode()
            nbytes += len(piece)
            if nbytes > _MAX_BYTES:
                raise NotFaithful(f"its tokenizer.json would have more than {_MAX_BYTES >> 20} MiB")
            yield piece
            held.clear()
            length = 0
