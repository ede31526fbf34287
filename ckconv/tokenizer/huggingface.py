"""tokenizer.json and the settings beside it, out of the words of a GGUF."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from json.encoder import encode_basestring
from math import isnan
from typing import Any
from zlib import compress, decompress

from ckconv.core.metadata import SideFile, array, scalar, side_file
from ckconv.errors import is_text
from ckconv.tokenizer.checkpoint import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED, Piece
from ckconv.tokenizer.gguf_words import Wordlist, filled, words_of
from ckconv.tokenizer.vocabulary import (
    BYTE_LEVEL,
    ENDS_BY_TEXT,
    KEEPS_SPACE,
    SPECIAL,
    Inexact,
    NotFaithful,
    Rules,
    TokenizerFiles,
    Vocabulary,
    definition,
)

# SentencePiece BPE as a list of merges, which is how the tokenizers library says BPE.
#
# SentencePiece joins the two neighbors whose piece has the highest score, the leftmost of equals. Here that is a list
# of merges in the order of the scores, as transformers makes it out of a ``tokenizer.model``. Of one piece's merges the
# one with the longest first half is first, so that where two of them overlap it is the leftmost. Source:
# ``generate_merges`` of transformers' ``convert_slow_tokenizer.py``; ``llm_tokenizer_spm_session`` of llama.cpp's
# ``src/llama-vocab.cpp``.

_ASCII = 128
#: Characters of a piece, which is cut at every one of them; trained pieces have a few dozen at most.
_MAX_PIECE = 256


def spell_out(vocab: dict[str, int], tokens: Sequence[str], types: Sequence[int]) -> None:
    """Give every character of a piece an id of its own.

    Merges begin with characters.

    A character without a piece of its own gets the id of its byte token (Gemma has no piece for a single tab).

    Raises:
        NotFaithful: it has several bytes.
    """
    missing = {char for n, token in enumerate(tokens) if types[n] == NORMAL for char in token} - vocab.keys()
    for char in sorted(missing):
        if ord(char) >= _ASCII:
            raise NotFaithful(f"a piece holds {char!r}, which is not a piece itself")
        vocab[char] = vocab[f"<0x{ord(char):02X}>"]


def merges_of(
    vocab: dict[str, int], tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> Iterator[str]:
    """Merges that make pieces, in the order of SentencePiece.

    Pieces of one score have no order, and of their merges the leftmost comes first. Where they are all runs of one
    character, as the spaces of llama's vocabulary, that is the one that makes the longest run longer.

    Args:
        vocab: piece, or character without one -> id.
        tokens, types, scores: by id.

    Raises:
        NotFaithful: there is no such order.
    """
    made = [n for n, token in enumerate(tokens) if types[n] == NORMAL and len(token) > 1]
    if any(isnan(scores[n]) for n in made):
        raise NotFaithful("a score is not a number")
    longest = max((len(tokens[n]) for n in made), default=0)
    if longest > _MAX_PIECE:
        raise NotFaithful(f"a piece has {longest:,} characters")
    made.sort(key=lambda n: -scores[n])
    joins = {part for part, number in vocab.items() if len(part) == 1 or types[number] == NORMAL}
    for _, equals in groupby(made, key=lambda n: scores[n]):
        pairs: list[tuple[str, str]] = []
        first = ""
        for n in equals:
            halves = _halves(tokens[n], joins)
            if halves and first and len({*first, *tokens[n]}) > 1:
                raise NotFaithful(f"{first!r} and {tokens[n]!r} have one score, and merges have an order")
            first = first or (tokens[n] if halves else "")
            pairs += halves
        for left, right in sorted(pairs, key=lambda pair: (-len(pair[0]), -len(pair[1]))):
            yield f"{left} {right}"


def _halves(token: str, joins: Container[str]) -> list[tuple[str, str]]:
    """Every way in which a piece can be made of two."""
    cuts = range(len(token) - 1, 0, -1)
    found = [(left, right) for at in cuts if (left := token[:at]) in joins and (right := token[at:]) in joins]
    if found and " " in token:
        raise NotFaithful(f"the piece {token!r} holds a space")
    return found


# ``tokenizer.json`` out of the words of a GGUF: the steps of the tokenizers library that do what llama.cpp does.
#
# Source: ``llm_tokenizer_bpe``, ``llm_tokenizer_spm_session`` and ``tokenizer_st_partition`` of llama.cpp's
# ``src/llama-vocab.cpp``; the serialized form is that of the tokenizers library, version 1.0.

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

#: A model of pairs, but for its words and merges.
_BPE: Mapping[str, Any] = {
    "type": "BPE",
    **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
    **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
}


def fills(token: str, kind: int, number: int) -> bool:
    """Whether the token only fills a row of the embedding.

    llama.cpp's converter makes one up where there is none.

    It is unused, or unknown in files of older converters.
    """
    return not token or (kind in (UNUSED, UNKNOWN) and token == f"[PAD{number}]")


def check_words(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Check that every token is a text, and no two are equal.

    A token with a role is one that is looked for.

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
    for what, adds in vocabulary.around:
        number = vocabulary.special.get(what, -1)
        if adds and not has_role(number, tokens, types):
            raise NotFaithful(f"it puts token {number:,} around a text, which is not a control token")


def unknown_token(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int]) -> int:
    """The id of the unknown token.

    By its type, else the one that the file or llama.cpp names.

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
    """Whether the token of this id can be named as a special one."""
    return number < len(tokens) and types[number] in ADDED and not fills(tokens[number], types[number], number)


def byte_level(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], merges: Iterable[str]) -> SideFile:
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
        "added_tokens": added_tokens(vocabulary, tokens, types),
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": definition(pre),
        "post_processor": around(vocabulary, tokens, BYTE_LEVEL),
        "decoder": BYTE_LEVEL,
    }
    return written(document, {**_BPE, "ignore_merges": pre.ignore_merges}, vocab, _of_tokens(merges, vocab))


def _of_tokens(merges: Iterable[str], vocab: Mapping[str, int]) -> Iterator[str]:
    """The merges, whose halves and whole have to be tokens."""
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not (space and left in vocab and right in vocab and left + right in vocab):
            raise NotFaithful(f"the merge {merge!r} is not of tokens")
        yield merge


def pieces(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> SideFile:
    """``tokenizer.json`` of SentencePiece's BPE with byte fallback.

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
    model = {**_BPE, "unk_token": tokens[unknown], "fuse_unk": True, "byte_fallback": True}
    if scores:
        return written(document, model, vocab, merges_of(vocab, tokens, types, scores))
    return written(document, model, vocab, _of_tokens(vocabulary.merges.each(), vocab))


def added_tokens(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int]) -> list[dict[str, Any]]:
    """Added tokens, which are looked for first.

    llama.cpp says nothing of white space around them, but for phi 3.
    """
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
    """Post-processor that puts special tokens around a text, or two texts."""
    ends = [tokens[vocabulary.special[what]] if adds else "" for what, adds in vocabulary.around]
    if ends == ["", ""]:
        return otherwise

    def parts(what: str, type_id: int) -> list[dict[str, Any]]:
        begin, end = ([{"SpecialToken": {"id": token, "type_id": type_id}}] if token else [] for token in ends)
        return [*begin, {"Sequence": {"id": what, "type_id": type_id}}, *end]

    ids = {token: vocabulary.special[what] for (what, _), token in zip(vocabulary.around, ends, strict=True) if token}
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
    merges: Iterable[str],
) -> SideFile:
    """The document in pieces, made once and held compressed.

    Merges of a large vocabulary take seconds to make. The whole as one object in memory would be ten times the file.

    Raises:
        NotFaithful: it would be larger than what ckconv, or anybody, reads.
    """
    pieces = [compress(piece, 1) for piece in _in_pieces(_texts(document, model, vocab, merges))]
    return side_file(lambda: map(decompress, pieces))


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
        yield from _lines("      ", (f"[{encode_basestring(token)}, {score!r}]" for token, score in vocab))
        yield "    ]\n  }\n}\n"
        return
    yield '    "vocab": {\n'
    yield from _lines("      ", (f"{encode_basestring(token)}: {number}" for token, number in vocab.items()))
    if "byte_fallback" not in model:
        yield "    }\n  }\n}\n"
        return
    yield '    },\n    "merges": [\n'
    yield from _lines("      ", map(encode_basestring, merges))
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
    buffer: list[str] = []
    length = nbytes = 0
    for text in chain(texts, [""]):
        buffer.append(text)
        length += len(text)
        if length >= _PIECE or not text:
            piece = "".join(buffer).encode()
            nbytes += len(piece)
            if nbytes > _MAX_BYTES:
                raise NotFaithful(f"its tokenizer.json would have more than {_MAX_BYTES >> 20} MiB")
            yield piece
            buffer.clear()
            length = 0


# WordPiece, as BERT has it: a word is cut into the longest pieces, greedily; between GGUF and ``tokenizer.json``.
#
# llama.cpp marks the beginning of a word (``▁word``), the tokenizers library what follows it (``##piece``).
# Source: ``llm_tokenizer_wpm_session`` of llama.cpp's ``src/llama-vocab.cpp``; ``BertModel`` of its converter.

_CONTINUED = "##"
ACCENTS = "llama.cpp takes accents off fewer characters than the tokenizer, and leaves Hangul whole"
#: Letters of a word, above which it is unknown; llama.cpp has no such limit.
_LONGEST = 100


def wordpiece(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], _: Sequence[float]) -> SideFile:
    """``tokenizer.json``.

    Raises:
        NotFaithful: two tokens are one.
    """
    vocab = {
        _wordpiece_of(token) if types[n] == NORMAL else token: n
        for n, token in enumerate(tokens)
        if not fills(token, types[n], n)
    }
    if len(vocab) != sum(not fills(token, types[n], n) for n, token in enumerate(tokens)):
        raise NotFaithful("two of its tokens are one")
    assert vocabulary.lowers is not None
    lowercase, accents = vocabulary.lowers
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    document = {
        "added_tokens": added_tokens(vocabulary, tokens, types),
        "normalizer": {**normalizer, "strip_accents": accents, "lowercase": lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": around(vocabulary, tokens, None),
        "decoder": {"type": "WordPiece", "prefix": _CONTINUED, "cleanup": False},
    }
    model = {
        "type": "WordPiece",
        "unk_token": tokens[unknown_token(vocabulary, tokens, types)],
        "continuing_subword_prefix": _CONTINUED,
        "max_input_chars_per_word": _LONGEST,
    }
    return written(document, model, vocab, ())


def _wordpiece_of(token: str) -> str:
    return token[1:] if token.startswith(SPACE) else _CONTINUED + token


def from_wordpiece(files: TokenizerFiles, document: Mapping[str, Any], vocab_size: int) -> Wordlist:
    """The words of a ``tokenizer.json``.

    Raises:
        LeftOut: llama.cpp would make other ids of a text.
    """
    normalizer, model = document.get("normalizer"), document["model"]
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        raise Inexact("its normalizer is not BERT's (tokenizer.json)")
    if normalizer.get("clean_text") is not True or normalizer.get("handle_chinese_chars") is not True:
        raise Inexact("its normalizer keeps control characters or Chinese ones together (tokenizer.json)")
    if document.get("pre_tokenizer") != {"type": "BertPreTokenizer"}:
        raise Inexact("its pre-tokenizer is not BERT's (tokenizer.json)")
    if model.get("continuing_subword_prefix") != _CONTINUED:
        raise Inexact(f"its pieces do not begin with {_CONTINUED} (tokenizer.json)")
    by_id, added, notes = words_of(files, model.get("vocab"), vocab_size)
    rows = [(_ours(token) if kind == NORMAL else token, kind) for token, kind in filled(by_id, vocab_size)]
    lowercase, accents = normalizer.get("lowercase") is True, normalizer.get("strip_accents")
    metadata = {
        "tokenizer.ggml.model": scalar("str", "bert"),
        "tokenizer.ggml.tokens": array("str", [token for token, _ in rows]),
        "tokenizer.ggml.token_type": array("i32", [kind for _, kind in rows]),
        "tokenizer.ggml.normalizer.lowercase": scalar("bool", lowercase),
        "tokenizer.ggml.normalizer.strip_accents": scalar("bool", lowercase if accents is None else accents is True),
    }
    words = frozenset(token for token, kind in rows if kind != UNUSED)
    takes_off = metadata["tokenizer.ggml.normalizer.strip_accents"] == scalar("bool", True)
    return Wordlist(metadata, added, words, notes=(*notes, *((ACCENTS,) if takes_off else ())))


def _ours(token: str) -> str:
    return token.removeprefix(_CONTINUED) if token.startswith(_CONTINUED) else SPACE + token


# ``tokenizer.json`` of a unigram model of SentencePiece: the likeliest pieces, after rules for characters and spaces.
#
# Source: ``llm_tokenizer_ugm_session`` of llama.cpp's ``src/llama-vocab.cpp``. Its rules are SentencePiece's; the
# tokenizers library applies them to whole graphemes, so that a few combinations of marks have other ids there.


def rules_of(rules: Rules) -> dict[str, Any]:
    """Arguments of ``encode_sentencepiece``."""
    charsmap = rules.charsmap.decode() if rules.charsmap else ()
    return {"unigram": True, "charsmap": bytes(byte % 256 for byte in charsmap), "one_space": rules.one_space}


def unigram(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> SideFile:
    """``tokenizer.json`` of the likeliest pieces.

    Raises:
        NotFaithful: not every token has a text, or not one is the unknown one.
    """
    rules = vocabulary.unigram
    assert rules is not None
    if "" in tokens:
        raise NotFaithful(f"token {tokens.index(''):,} has no text")
    steps: list[dict[str, Any]] = []
    if charsmap := rules_of(rules)["charsmap"]:
        steps.append({"type": "Precompiled", "precompiled_charsmap": b64encode(charsmap).decode()})
    if rules.one_space:
        # As SentencePiece and llama.cpp do; a space at the end is none of a word's.
        steps += [{"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""}]
        steps += [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]
    spaces = {"type": "Metaspace", "replacement": SPACE, "split": rules.one_space}
    spaces["prepend_scheme"] = "always" if vocabulary.space_prefix else "never"
    document = {
        "added_tokens": added_tokens(vocabulary, tokens, types),
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": spaces,
        "post_processor": around(vocabulary, tokens, None),
        "decoder": spaces,
    }
    # A token that only fills a row may not set the scale, by which the unknown one is the last resort.
    least = min((score for score, kind in zip(scores, types, strict=True) if kind == NORMAL), default=0.0)
    vocab = [(token, max(score, least)) for token, score in zip(tokens, scores, strict=True)]
    model = {"type": "Unigram", "unk_id": unknown_token(vocabulary, tokens, types), "byte_fallback": False}
    return written(document, model, vocab, ())


# The small documents beside a ``tokenizer.json``: ``tokenizer_config.json``, ``generation_config.json``.

#: The class that takes ``tokenizer.json`` as it is, whatever the model is. Others build their own steps.
_CLASS = "PreTrainedTokenizerFast"

#: The score that llama.cpp's converter gives to a token which is not the SentencePiece model's own.
_ADDED_SCORE = -1000.0


def tokenizer_config(
    vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], context: int
) -> dict[str, Any]:
    """``tokenizer_config.json``.

    Args:
        scores: of a SentencePiece model; empty for another.
        context: tokens that the model takes, 0 where nobody knows.
    """
    decoder = _not_its_own(tokens, types, scores)
    return {
        "add_bos_token": vocabulary.adds_bos,
        "add_eos_token": vocabulary.adds_eos,
        **({"added_tokens_decoder": decoder} if decoder else {}),
        **{
            f"{name}_token": tokens[vocabulary.special[name]]
            for name in SPECIAL
            if has_role(vocabulary.special.get(name, len(tokens)), tokens, types)
        },
        **({"chat_template": vocabulary.chat_template} if vocabulary.chat_template else {}),
        "clean_up_tokenization_spaces": False,
        **({"model_max_length": context} if context else {}),
        "tokenizer_class": _CLASS,
    }


def generation_config(special: Mapping[str, int], ending: Sequence[int], vocab_size: int) -> dict[str, Any]:
    """``generation_config.json``; empty where no token has a role.

    Args:
        special: ``bos``, ``pad`` -> id.
        ending: ids after which there is nothing more to generate.
        vocab_size: ids beyond it are none.
    """
    ends = [number for number in ending if number < vocab_size]
    made: dict[str, Any] = {"bos_token_id": special.get("bos"), "eos_token_id": ends[0] if len(ends) == 1 else ends}
    made["pad_token_id"] = special.get("pad")
    return {
        key: value
        for key, value in made.items()
        if value not in (None, []) and (isinstance(value, list) or value < vocab_size)
    }


def also_ending(generation: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> Mapping[str, Any]:
    """``generation_config.json`` plus end tokens llama.cpp knows by text."""
    found = [n for n, token in enumerate(tokens) if token in ENDS_BY_TEXT and types[n] == CONTROL]
    stated = generation.get("eos_token_id", [])
    ends = list(dict.fromkeys([*(stated if isinstance(stated, list) else [stated]), *found]))
    return {**generation, "eos_token_id": ends} if len(ends) > 1 else generation


def model_pieces(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], unknown: int) -> Iterator[Piece]:
    """Pieces of ``tokenizer.model`` (one unknown) without trailing padding."""
    count = len(tokens)
    while count and fills(tokens[count - 1], types[count - 1], count - 1):
        count -= 1
    for number in range(count):
        text, kind = tokens[number], UNKNOWN if number == unknown else types[number]
        # SentencePiece looks for a user's token where every space is escaped already.
        text = text.replace(" ", SPACE) if kind == USER_DEFINED else text
        used = kind in range(NORMAL, BYTE + 1) and not fills(text, kind, number)
        yield Piece(text or f"[PAD{number}]", scores[number], kind if used else UNUSED)


def _not_its_own(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> dict[str, dict[str, Any]]:
    """Tokens added to a SentencePiece model: id -> token.

    As transformers lists them.

    So are a user's with spaces, which the model itself only holds escaped.
    """
    return {
        str(number): {
            "content": tokens[number],
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": types[number] == CONTROL,
        }
        for number, score in enumerate(scores)
        if tokens[number]
        and (
            (types[number] in (CONTROL, USER_DEFINED) and score == _ADDED_SCORE)
            or (types[number] == USER_DEFINED and " " in tokens[number])
        )
    }
