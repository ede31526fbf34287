"""Words and special tokens for a GGUF: BPE, SentencePiece, unigram."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any

from ckconv.core.lazy import NamedTuple
from ckconv.core.metadata import Value, array, list_within, raw_array, scalar, table_within, within
from ckconv.errors import is_text
from ckconv.tokenizer.checkpoint import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    AddedToken,
    Malformed,
    Piece,
    SentencePiece,
    TooManyPieces,
    added_tokens,
    of_settings,
    parse_sentencepiece,
    words_of_document,
)
from ckconv.tokenizer.vocabulary import ENDS_BY_TEXT, FOUND_AS, SPECIAL, Inexact, TokenizerFiles, content_of, encodable

# What a checkpoint says around its words: special tokens, what ends a text, what is put around one, chat templates.
#
# Sources: ``SpecialVocab`` of gguf-py; ``llama_vocab::impl::load`` of llama.cpp's ``src/llama-vocab.cpp`` for the
# tokens that it finds by their text; ``from_pretrained`` of transformers 5, which takes what is put around a text from
# ``tokenizer.json`` alone.

_TEMPLATE_NAME = re.compile(r"[a-z0-9_]{1,64}")


def _word(settings: Mapping[str, Any], name: str) -> str:
    """The text of a special token; BERT's kin name it otherwise."""
    other = {"bos": "cls", "eos": "sep"}.get(name, name)
    return content_of(settings, f"{name}_token") or content_of(settings, f"{other}_token")


def ended(files: TokenizerFiles, ids: Mapping[str, int]) -> tuple[TokenizerFiles, tuple[str, ...]]:
    """Add the end token that the template puts behind a text, and a note.

    llama.cpp has one token for the end of a text and for what it puts behind one; gguf-py takes that of the template
    (``SpecialVocab._try_load_from_tokenizer_json``). Both have to be ends to llama.cpp by their text, so that a text
    ends after either, and a chat template that writes ``eos_token`` means the other.

    A token that nothing names has the role of its place, where no chat template writes that: a beginning, BERT's
    separator, what is an end by its text anyway.
    """
    try:
        first, last = _around((files.tokenizer or {}).get("post_processor"))
    except Inexact:
        return files, ()
    wordpiece, chat = _is_wordpiece(files.tokenizer), str(files.chat_template)
    free = {"bos": first, "sep": last} if wordpiece else {"bos": first, "eos": last if last in ENDS_BY_TEXT else ""}
    named = {
        f"{role}_token": token
        for role, token in free.items()
        if token in ids and f"{role}_token" not in chat and not _is_named(files, role)
    }
    files = files._replace(settings={**files.settings, **named}) if named else files
    own = _word(files.settings, "eos")
    if (
        not last
        or not own
        or last == own
        or not {last, own} <= ENDS_BY_TEXT & ids.keys()
        or "eos_token" in str(files.chat_template)
    ):
        return files, ()
    note = (
        f"llama.cpp has {last!r} for eos_token, as tokenizer.json appends it to a text; a text also ends after {own!r}"
    )
    return files._replace(settings={**files.settings, "eos_token": last}), (note,)


def _is_wordpiece(document: Mapping[str, Any] | None) -> bool:
    model = (document or {}).get("model")
    return isinstance(model, dict) and model.get("type") == "WordPiece"


def _is_named(files: TokenizerFiles, role: str) -> bool:
    """Whether settings or ``config.json`` say the token of a role."""
    return bool(_word(files.settings, role)) or files.config.get(f"{role}_token_id") is not None


def special_ids(
    files: TokenizerFiles, ids: Mapping[str, int], own: Mapping[str, int], vocab_size: int
) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Ids of special tokens, and notes.

    By the words of the settings, else by ``config.json``, else the model's ``own``.
    """
    found = _numbers(files, ids, own, vocab_size)
    made = {f"tokenizer.ggml.{SPECIAL[name]}": scalar("u32", number) for name, number in found.items()}
    more, left = _other_ends(files, ids, found.get("eos"), vocab_size)
    notes = []
    if left:
        named = ", ".join(map(str, left[:5]))
        notes.append(
            f"generation ends after token {named} too, and a GGUF has no place for more than three such tokens"
        )
    ends = {*numbers_of(files.generation.get("eos_token_id")), *(value for value in found.values())}
    ignored = [n for n in numbers_of(files.config.get("eos_token_id")) if n not in ends]
    if ignored and files.generation.get("eos_token_id") is not None:
        named = ", ".join(map(str, ignored[:5]))
        notes.append(f"config.json ends a text after token {named} too; generation_config.json does not, and counts")
    return made | more, tuple(notes)


def _numbers(files: TokenizerFiles, ids: Mapping[str, int], own: Mapping[str, int], vocab_size: int) -> dict[str, int]:
    """Special tokens by name."""
    found: dict[str, int] = {}
    for name in SPECIAL:
        value = files.config.get(f"{name}_token_id")
        value = value[0] if isinstance(value, list) and value else value
        stated = value if isinstance(value, int) and not isinstance(value, bool) else None
        word = content_of(files.settings, f"{name}_token") or (_word(files.settings, name) if stated is None else "")
        other = own.get(name, -1) if stated is None else stated
        number = ids.get(word, other) if word else other
        if 0 <= number < vocab_size:
            found[name] = number
    return found


def numbers_of(value: object) -> list[int]:
    """Whole numbers of a key that has one or a list of them."""
    return [number for number in (value if isinstance(value, list) else [value]) if type(number) is int]


def _other_ends(
    files: TokenizerFiles, ids: Mapping[str, int], end: int | None, vocab_size: int
) -> tuple[dict[str, Value], list[int]]:
    """Keys for end tokens that llama.cpp does not find itself.

    Besides ``eos``; and the tokens without a key.

    ``generation_config.json`` has the first word, as in transformers.
    """
    ends = files.generation.get("eos_token_id")
    ends = files.config.get("eos_token_id") if ends is None else ends
    found = {end, *(ids[text] for text in ENDS_BY_TEXT & ids.keys())}
    numbers = [n for n in numbers_of(ends) if 0 <= n < vocab_size]
    wanted = [number for number in dict.fromkeys(numbers) if number not in found]
    # A key takes the place of the token that llama.cpp would find by its text, so a free one comes first.
    keys = sorted(FOUND_AS, key=lambda key: not FOUND_AS[key].isdisjoint(ids))
    return {f"tokenizer.ggml.{key}": scalar("u32", number) for key, number in zip(keys, wanted, strict=False)}, wanted[
        len(keys) :
    ]


def put_around(
    files: TokenizerFiles, words: Wordlist, vocab_size: int, *, unigram: bool = False
) -> tuple[bool, bool, tuple[str, ...]]:
    """Whether a beginning and an end are put around a text, and notes.

    Args:
        unigram: the tokenizer's class is T5's or XLM-R's, which put an end behind a text unless a file says otherwise.

    Raises:
        Inexact: there is more to it.
    """
    requested = {what: files.settings.get(f"add_{what}_token") for what in ("bos", "eos")}
    adds = {
        "bos": requested["bos"] is True if unigram and not files.moved else requested["bos"] is not False,
        "eos": unigram or requested["eos"] is True,
    }
    if files.tokenizer is None:
        return adds["bos"], adds["eos"], ()
    try:
        around = dict(zip(adds, _around(files.tokenizer.get("post_processor")), strict=True))
    except Inexact as reason:
        if files.model is None:
            raise
        note = f"llama.cpp puts its own tokens around a text, or none, where the tokenizer does otherwise: {reason}"
        return adds["bos"], adds["eos"], (note,)
    numbers, notes = _numbers(files, words.ids, words.own, vocab_size), list[str]()
    if words.metadata["tokenizer.ggml.model"] == scalar("str", "bert"):  # llama.cpp closes with the separator
        numbers["eos"] = numbers.get("sep", numbers.get("eos", -1))
    for what, token in around.items():
        if token and words.ids.get(token) != numbers.get(what):
            if files.model is None:
                raise Inexact(f"it puts {token!r} around a text, which is not its {what}_token (tokenizer.json)")
            notes.append(f"llama.cpp puts {what}_token around a text, or none, where tokenizer.json puts {token!r}")
            continue
        adds[what] = bool(token)
        if isinstance(switch := requested[what], bool) and switch != bool(token):
            notes.append(
                f"tokenizer_config.json says add_{what}_token = {str(switch).lower()}, tokenizer.json puts "
                f"{f'{token!r}' if token else 'no such token'} around a text, which is what counts"
            )
    return adds["bos"], adds["eos"], tuple(notes)


def _around(processor: object) -> tuple[str, str]:
    """The tokens that a post-processor puts before and after a text."""
    first = last = ""
    members: list[object] = [processor] if isinstance(processor, dict) else []
    if isinstance(processor, dict) and processor.get("type") == "Sequence":
        inner = processor.get("processors")
        members = inner if isinstance(inner, list) else [None]
    for member in map(table_within, members):
        kind = member.get("type")
        if kind == "ByteLevel":
            continue
        if kind in ("BertProcessing", "RobertaProcessing"):
            pairs = [pair for key in ("cls", "sep") if isinstance(pair := member.get(key), list) and pair]
            if len(pairs) == 2 and all(isinstance(pair[0], str) for pair in pairs):
                first, last = (pair[0] for pair in pairs)
                continue
        if kind != "TemplateProcessing":
            raise Inexact(f"its post-processor is {kind!r} (tokenizer.json)")
        first, last = _ends(member)
    return first, last


def _ends(template: Mapping[str, Any]) -> tuple[str, str]:
    """The special tokens before and after the text; empty where there is none."""
    special = (within(part, "SpecialToken") for part in list_within(template, "single"))
    words = [str(one.get("id")) if isinstance(one, dict) else "" for one in special]
    if words.count("") != 1 or len(words) - words.index("") > 2 or words.index("") > 1:
        raise Inexact("its template puts more around a text than a beginning and an end (tokenizer.json)")
    at = words.index("")
    return (words[0] if at else ""), (words[-1] if at < len(words) - 1 else "")


def chat_templates(template: object) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Keys of chat templates, and notes.

    One template, or the default one and others by name (``SpecialVocab.add_to_gguf``); of two with one name the last.
    """
    if isinstance(template, str):
        return {"tokenizer.chat_template": scalar("str", encodable(template))}, ()
    made: dict[str, Value] = {}
    others: dict[str, None] = {}
    lost: list[str] = []
    for item in list_within(template):
        name, text = within(item, "name"), within(item, "template")
        if not isinstance(name, str) or not isinstance(text, str) or not _TEMPLATE_NAME.fullmatch(name):
            lost.append(repr(name))
            made.pop(f"tokenizer.chat_template.{name}".removesuffix(".default"), None)
            others.pop(str(name), None)
        elif name == "default":
            made["tokenizer.chat_template"] = scalar("str", encodable(text))
        else:
            others[name] = None
            made[f"tokenizer.chat_template.{name}"] = scalar("str", encodable(text))
    notes = (f"a GGUF has no place for the chat template {', '.join(lost[:3])}",) if lost else ()
    return ({"tokenizer.chat_templates": array("str", [*others]), **made} if others else made), notes


# The words of a tokenizer by id, as a GGUF holds them.

#: Tokens that llama.cpp's converter takes for control tokens although nobody marked them as special.
_LOOKS_SPECIAL = re.compile(r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<｜.*｜>|<unused.*>", re.DOTALL)


def looks_special(token: AddedToken) -> bool:
    """Whether only llama.cpp's converter takes the token for a control token."""
    return not token.special and _LOOKS_SPECIAL.fullmatch(token.content) is not None


class Wordlist(NamedTuple):
    """Words of one kind of tokenizer.

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
    own: Mapping[str, int] = {}
    behind: Mapping[str, Value] = {}
    notes: tuple[str, ...] = ()


def words_of(
    files: TokenizerFiles, words: object, vocab_size: int
) -> tuple[dict[int, tuple[str, int]], dict[str, int], tuple[str, ...]]:
    """Id -> word and type; the ids of the added tokens by word; and notes.

    Raises:
        Inexact: a word has no id of the embedding, or is not text.
    """
    if not isinstance(words, dict) or not words:
        raise Inexact("tokenizer.json has no vocabulary")
    by_id: dict[int, tuple[str, int]] = {}
    for token, number in words.items():
        _place(by_id, token, number, NORMAL, vocab_size)
    ids: dict[str, int] = {}
    added = added_tokens(files, words)
    for token in placeable(added.values(), vocab_size):
        kind = CONTROL if token.special or looks_special(token) else USER_DEFINED
        ids[token.content] = _place(by_id, token.content, token.number, kind, vocab_size)
    return by_id, ids, notes_on(added.values(), vocab_size)


def placeable(added: Iterable[AddedToken], vocab_size: int) -> Iterator[AddedToken]:
    """Tokens with a row of the embedding; the settings may name others."""
    return (token for token in added if token.listed is not None or token.number < vocab_size)


def notes_on(added: Iterable[AddedToken], vocab_size: int) -> tuple[str, ...]:
    """Notes on tokens with another id, without a row, or of another type.

    The id is another one than a file lists, or the embedding has no row for it, or llama.cpp does not print it.
    """
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
    hidden = [token.content for token in placeable(added, vocab_size) if looks_special(token)]
    if hidden:
        more = f" and {len(hidden) - 1:,} more" if len(hidden) > 1 else ""
        notes.append(
            f"{hidden[0]!r}{more}, not special in the tokenizer's file, is a control token here, as of llama.cpp's"
            " converter: it is not printed, and special in a checkpoint of this GGUF; --source-record keeps that file"
        )
    return tuple(notes)


def filled(by_id: Mapping[int, tuple[str, int]], vocab_size: int) -> list[tuple[str, int]]:
    """A word and a type for every row of the embedding."""
    return [by_id.get(n, (f"[PAD{n}]", UNUSED)) for n in range(vocab_size)]


def _place(by_id: dict[int, tuple[str, int]], token: str, number: object, kind: int, vocab_size: int) -> int:
    check_text(token)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise Inexact(f"token {token!r} has the id {number!r}, no whole number (tokenizer.json)")
    if number >= vocab_size:
        raise Inexact(f"token {token!r} has the id {number:,}, the embedding {vocab_size:,} rows")
    there = by_id.get(number)
    if there and there[0] != token:
        raise Inexact(f"tokens {there[0]!r} and {token!r} have the same id {number:,}")
    by_id[number] = (token, kind)
    return number


def check_text(text: str) -> None:
    """JSON can spell halves of a character.

    Raises:
        Inexact: it does.
    """
    if not is_text(text):
        raise Inexact(f"{text!r} is not text")


# SentencePiece as the keys of a GGUF: pieces, scores and types, out of ``tokenizer.model`` or ``tokenizer.json``.
#
# Of a unigram model llama.cpp takes the likeliest pieces, and applies its rules to a text first. Of a BPE model it
# joins the two neighbors whose piece has the highest score, the leftmost of equals. A ``tokenizer.json`` has merges in
# an order instead: the scores are made of that order, where it is one of pieces. Sources:
# ``_create_vocab_sentencepiece`` of llama.cpp's converter; ``llm_tokenizer_spm_session`` of llama.cpp's
# ``src/llama-vocab.cpp``.

#: Score of a token that the SentencePiece model does not have; of an id that nothing has.
ADDED_SCORE, EMPTY_SCORE = -1000.0, -10000.0
_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
#: Characters of all ways to cut all pieces in two; Gemma's 262,144 pieces have 2^24.
_MAX_CUT = 1 << 28

#: Why a unigram model is left out: a character without a piece is the unknown token there.
PIECES_FOR_BYTES = "has pieces for bytes, which llama.cpp does not take in unigram models"

#: A token in base64 and its rank, line by line.
_OF_TIKTOKEN = rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n"

Rows = list[tuple[str, float, int]]


def model_of_same_words(files: TokenizerFiles, vocab_size: int) -> SentencePiece | None:
    """``tokenizer.model``, where it has the words of ``tokenizer.json``.

    But for tokens that are added to them.

    transformers takes ``tokenizer.json``; the model says how likely pieces are.

    Raises:
        Inexact: it is malformed, and there is no ``tokenizer.json``.
    """
    if files.model is None:
        return None
    words = words_of_document(files.tokenizer)
    if not words:
        return _parsed(files, files.model, vocab_size)
    try:
        model = _parsed(files, files.model, vocab_size)
    except Inexact:
        return None
    added = added_tokens(files, words)
    numbers = {token.number for token in added.values()}
    pieces = {piece.text: n for n, piece in enumerate(model.pieces) if n not in numbers and piece.text not in added}
    own_words = {word: n for word, n in words.items() if n not in numbers and word not in added}
    return model if pieces == own_words else None


def _parsed(files: TokenizerFiles, data: bytes, vocab_size: int) -> SentencePiece:
    try:
        model = parse_sentencepiece(data, limit=vocab_size)
    except TooManyPieces:
        model = None
    except Malformed as error:
        if re.match(_OF_TIKTOKEN, data):
            raise Inexact("tokenizer.model is a file of tiktoken, which ckconv does not read of this class") from None
        raise Inexact(f"tokenizer.model is malformed: {error}") from None
    if model is not None and files.moved:
        model = _moved(model)
    if model is None or len(model.pieces) > vocab_size:
        raise Inexact(f"tokenizer.model has more pieces than the embedding has rows ({vocab_size:,})")
    return model


def from_model(files: TokenizerFiles, model: SentencePiece, vocab_size: int) -> Wordlist:
    """Words of a ``tokenizer.model`` and tokens that files beside it add.

    Raises:
        Inexact: it is neither BPE with byte fallback nor unigram without.
    """
    unigram = model.model_type == UNIGRAM
    if not unigram and model.model_type != BPE:
        raise Inexact("tokenizer.model is of neither the BPE nor the unigram type")
    if model.byte_fallback == unigram:
        raise Inexact(f"tokenizer.model {PIECES_FOR_BYTES if unigram else 'has no pieces for bytes'}")
    rows, notes = _pieces(model, files, vocab_size)
    prefix = files.settings.get("add_prefix_space")
    prefix = prefix if isinstance(prefix, bool) else model.add_dummy_prefix
    if unigram:
        words = as_words(rows, model.special, prefix=prefix, notes=notes)
        return as_unigram(words, model.charsmap, one_space=model.remove_extra_whitespaces, prefix=prefix)
    if files.tokenizer is not None:
        with suppress(Inexact):
            prefix, extra = _spaces(files.tokenizer)
            notes += extra
    if model.charsmap or model.remove_extra_whitespaces:
        rules = model.normalizer or "removing spaces"
        notes.append(f"the tokenizer normalizes text first ({rules}), which llama.cpp does not do")
    own = dict(model.special)
    if files.versioned and own["pad"] < 0:  # MistralVocab.pad_id of gguf-py
        own["pad"] = own["eos"]
    return as_words(rows, own, prefix=prefix, notes=notes)


#: What XLM-R has in front of the pieces in place of SentencePiece's own (``XLMRobertaTokenizer`` of transformers).
_FIRST = (("<s>", CONTROL), ("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN))


def _moved(model: SentencePiece) -> SentencePiece:
    first = tuple(Piece(text, 0.0, kind) for text, kind in _FIRST)
    own = {name: n for n, name in enumerate(("bos", "pad", "eos", "unk"))}
    return model._replace(pieces=(*first, *model.pieces[3:]), special=own)


def as_unigram(words: Wordlist, charsmap: bytes, *, one_space: bool, prefix: bool) -> Wordlist:
    """Words of a unigram model, with llama.cpp's rules to prepare a text."""
    rules = {
        "model": scalar("str", "t5"),
        "remove_extra_whitespaces": scalar("bool", one_space),
        "precompiled_charsmap": raw_array("u8", len(charsmap), charsmap),
    }
    keys = {f"tokenizer.ggml.{key}": value for key, value in rules.items() if key[0] != "p" or charsmap}
    return words._replace(metadata={**words.metadata, **keys}, behind=_prefix(prefix))


def _prefix(prefix: bool) -> dict[str, Value]:
    return {"tokenizer.ggml.add_space_prefix": scalar("bool", prefix)}


def is_sentencepiece(document: Mapping[str, Any]) -> bool:
    """Whether ``tokenizer.json`` holds BPE of characters with byte fallback."""
    model = document.get("model")
    return isinstance(model, dict) and model.get("type") == "BPE" and model.get("byte_fallback") is True


def from_json(files: TokenizerFiles, document: Mapping[str, Any], vocab_size: int) -> Wordlist:
    """Words of a ``tokenizer.json``, with scores or with merges.

    Merges where their order is none of scores.

    Raises:
        Inexact: llama.cpp would make other ids of a text.
    """
    model = document["model"]
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if model.get(key):
            raise Inexact(f"its model has {key} = {model[key]!r} (tokenizer.json)")
    prefix, notes = _spaces(document)
    by_id, added, extra = words_of(files, model["vocab"], vocab_size)
    notes += extra
    if not model["vocab"].keys() >= _BYTES:
        raise Inexact("tokenizer.json has no tokens for all bytes")
    plain = [token for token in model["vocab"] if token not in added and token not in _BYTES]
    merges: list[str] = []
    try:
        scores = _scores(model, plain)
    except Inexact:
        if prefix or any("\n" in token and token.strip("\n") for token in plain):
            raise  # the tokenizer of llama.cpp that follows merges puts no space in front, and cuts between lines
        scores, merges = {}, [" ".join(pair) for pair in merged_pairs(model.get("merges"), "pieces")]
    unknown = model.get("unk_token")
    rows: Rows = []
    for token, kind in filled(by_id, vocab_size):
        if kind == UNUSED:
            rows.append((token, EMPTY_SCORE, kind))
        elif token == unknown:
            rows.append((token, 0.0, UNKNOWN))
        elif kind == NORMAL and token in _BYTES:
            rows.append((token, 0.0, BYTE))
        elif kind == NORMAL:
            rows.append((token, scores.get(token, float(-len(scores))), kind))
        else:
            rows.append((token.replace(SPACE, " ") if kind == USER_DEFINED else token, ADDED_SCORE, kind))
    words = as_words(rows, {}, prefix=prefix, notes=notes)
    return _with_merges(words, merges, adds_bos=put_around(files, words, vocab_size)[0]) if merges else words


def _with_merges(words: Wordlist, merges: list[str], *, adds_bos: bool) -> Wordlist:
    """Words with merges, under the name that begins texts as they do.

    llama.cpp puts a beginning before every text under one name, and does as a key says under the other.
    """
    bad = next((merge for merge in merges if merge.count(" ") != 1), "")
    if bad:
        raise Inexact(f"the merge {bad!r} holds a space (tokenizer.json)")
    model = {"model": "gemma4"} if adds_bos else {"model": "gpt2", "pre": "sarvam-moe"}
    names = {f"tokenizer.ggml.{key}": scalar("str", name) for key, name in model.items()}
    stored = {key: words.metadata[key] for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")}
    return words._replace(metadata={**names, **stored, "tokenizer.ggml.merges": array("str", merges)})


def as_words(rows: Rows, own: Mapping[str, int], *, prefix: bool, notes: list[str]) -> Wordlist:
    """Pieces that merge with neighbors; ``own`` are the special ones."""
    texts = [text for text, _, _ in rows]
    metadata = {
        "tokenizer.ggml.model": scalar("str", "llama"),
        "tokenizer.ggml.pre": scalar("str", "default"),
        "tokenizer.ggml.tokens": array("str", texts),
        "tokenizer.ggml.scores": array("f32", [score for _, score, _ in rows]),
        "tokenizer.ggml.token_type": array("i32", [kind for _, _, kind in rows]),
    }
    ids = {text: n for n, text in reversed(list(enumerate(texts)))}
    # llama.cpp's default for this model is true.
    return Wordlist(metadata, ids, frozenset(texts), own, {} if prefix else _prefix(prefix), tuple(notes))


def _spaces(document: Mapping[str, Any]) -> tuple[bool, list[str]]:
    """Whether a space is put before a text; and notes."""
    prefix, escaped = False, False
    notes: list[str] = []
    for step in steps(document.get("normalizer"), "normalizers"):
        if step == {"type": "Prepend", "prepend": SPACE}:
            prefix = True
        elif step == {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}:
            escaped = True
        else:
            raise Inexact(f"it normalizes text first ({step.get('type')}), which llama.cpp does not do")
    for step in steps(document.get("pre_tokenizer"), "pretokenizers"):
        scheme = step.get("prepend_scheme", "always")
        if step.get("type") == "Metaspace" and step.get("replacement") == SPACE and step.get("split") is False:
            escaped = True
            if scheme != "never":
                prefix = True
                notes.append(
                    "llama.cpp puts a space after special tokens and before spaces too; the tokenizer does not"
                )
        elif not (escaped and step.get("type") == "Split" and step.get("pattern") == {"String": " "}):
            raise Inexact(f"its pre-tokenizer is {step.get('type')!r} (tokenizer.json)")
    if not escaped:
        raise Inexact("it does not make spaces pieces (tokenizer.json)")
    return prefix, notes


def steps(part: object, members: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer."""
    steps = part.get(members) if isinstance(part, dict) and part.get("type") == "Sequence" else [part]
    steps = [] if steps == [None] else steps
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise Inexact("its steps are not a list of objects (tokenizer.json)")
    return steps


def _scores(model: Mapping[str, Any], pieces: list[str]) -> dict[str, float]:
    """Piece -> its place in the order of the merges, as a number that falls.

    Args:
        pieces: all words that are made of characters.
    """
    if sum(len(piece) ** 2 for piece in pieces) > _MAX_CUT:
        raise Inexact("its pieces are too long to be looked through (tokenizer.json)")
    scores: dict[str, float] = {}
    order: list[str] = []
    pairs: dict[tuple[str, str], None] = {}
    tied: set[str] = set()
    last = ""
    for left, right in merged_pairs(model.get("merges"), "pieces"):
        piece = left + right
        if piece != last and piece in scores:
            between = order[order.index(piece) :]
            if len(set("".join(between))) > 1:
                raise Inexact(f"the merges of {piece!r} do not follow each other (tokenizer.json)")
            tied.update(between)
            scores |= dict.fromkeys(between, scores[piece])
        elif piece not in scores:
            scores[piece] = float(-len(scores))
            order.append(piece)
        pairs[left, right] = None
        last = piece
    _check_ties([pair for pair in pairs if "".join(pair) in tied])
    for piece in pieces:
        for left, right in ((piece[:at], piece[at:]) for at in range(1, len(piece))):
            joins = all(len(half) == 1 or half in scores for half in (left, right))
            if joins and (left, right) not in pairs:
                raise Inexact(f"no merge makes {piece!r} of {left!r} and {right!r}, llama.cpp does (tokenizer.json)")
    return scores


def _check_ties(pairs: list[tuple[str, str]]) -> None:
    """Check pieces of equal scores: runs of one character only.

    As the spaces of llama's vocabulary: the leftmost run is made longer.
    """
    for _, same in groupby(pairs, key=lambda pair: pair[0][0]):
        run = list(same)
        if run != sorted(run, key=lambda pair: (-len(pair[0]), -len(pair[1]))):
            raise Inexact(f"the merges of {''.join(run[0])!r} do not follow each other (tokenizer.json)")


def merged_pairs(merges: object, what: str, *, spaced: bool = True) -> Iterator[tuple[str, str]]:
    """Halves of each merge, called ``what``; ``spaced`` may hold spaces."""
    for merge in merges if isinstance(merges, list) else ():
        halves = merge.split(" ") if isinstance(merge, str) else merge
        whole = isinstance(halves, list) and len(halves) == 2
        if not whole or not all(isinstance(half, str) and half and (spaced or " " not in half) for half in halves):
            raise Inexact(f"a merge is not two {what} (tokenizer.json)")
        yield halves[0], halves[1]


def _pieces(model: SentencePiece, files: TokenizerFiles, vocab_size: int) -> tuple[Rows, list[str]]:
    """Words, scores and types by id.

    The model's, then added tokens, then tokens that fill the embedding's rows.

    Where ``tokenizer.json`` is there, a piece that it does not add is a word, whatever type the model gives it. Without
    it, the settings may give a piece another text (Gemma's unused ones).
    """
    rows = [(piece.text, piece.score, piece.type) for piece in model.pieces]
    words = words_of_document(files.tokenizer)
    if alone := not words:
        words = {text: n for n, (text, _, _) in enumerate(rows)}
        names = {token.listed: token.content for token in added_tokens(files, {}).values()}
        rows = [(names[n] if n in names and names[n] not in words else it[0], *it[1:]) for n, it in enumerate(rows)]
        words = {text: n for n, (text, _, _) in enumerate(rows)}
    added = added_tokens(files, words)
    if not alone:
        numbers = {token.number for token in added.values()}
        looked_for = (CONTROL, USER_DEFINED)
        rows = [(*it[:2], NORMAL if it[2] in looked_for and n not in numbers else it[2]) for n, it in enumerate(rows)]
    rows += [(f"[PAD{n}]", EMPTY_SCORE, UNUSED) for n in range(len(rows), vocab_size)]
    listed = {*files.added, *(token.content for token in of_settings(files.settings))}
    for token in placeable(added.values(), vocab_size):
        check_text(token.content)
        number = token.number
        if number >= vocab_size:
            raise Inexact(f"token {token.content!r} has the id {number:,}, the embedding {vocab_size:,} rows")
        control = token.special or looks_special(token)
        text, _, kind = rows[number]
        if control and (token.content in listed or kind not in (CONTROL, UNKNOWN) or text != token.content):
            rows[number] = (token.content, ADDED_SCORE, CONTROL)
        elif not control and (text != token.content or kind not in (USER_DEFINED, UNKNOWN, BYTE)):
            # A user's token is matched against text, where a space is a space.
            rows[number] = (token.content.replace(SPACE, " "), ADDED_SCORE, USER_DEFINED)
    return rows, [*notes_on(added.values(), vocab_size)]


# A unigram model out of ``tokenizer.json`` alone, as transformers 5 saves those of XLM-R and T5.
#
# Words are cut at white space and each gets a space in front, which is what llama.cpp does with
# ``remove_extra_whitespaces`` where the map of characters makes every white space a space. Sources:
# ``XLMRobertaTokenizer`` and ``T5Tokenizer`` of transformers 5.23; ``llm_tokenizer_ugm_session`` of llama.cpp's
# ``src/llama-vocab.cpp``, which has the map's layout, too; ``_xlmroberta_set_vocab`` of its converter.

#: White space of common texts.
_SPACES = ("\t", "\n", "\r")


def from_unigram(files: TokenizerFiles, document: Mapping[str, Any], vocab_size: int) -> Wordlist:
    """The words, with their scores.

    Raises:
        Inexact: llama.cpp would make other ids of a text.
    """
    model = document["model"]
    if model.get("byte_fallback"):
        raise Inexact(f"its model {PIECES_FOR_BYTES} (tokenizer.json)")
    charsmap = _charsmap(document.get("normalizer"))
    _check_cut(document.get("pre_tokenizer"))
    scores = _unigram_scores(model.get("vocab"))
    inside = next((piece for piece in scores if SPACE in piece[1:]), None)
    if inside is not None:
        raise Inexact(f"it cuts words before it takes pieces, and {inside!r} is of two words (tokenizer.json)")
    unknown = model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(scores):
        raise Inexact("its model has no unknown token (tokenizer.json)")
    vocab = {piece: number for number, piece in enumerate(scores)}
    by_id, _, notes = words_of(files, vocab, vocab_size)
    rows: Rows = []
    for number, (token, kind) in enumerate(filled(by_id, vocab_size)):
        score = EMPTY_SCORE if kind == UNUSED else scores.get(token, ADDED_SCORE)
        text = token.replace(SPACE, " ") if kind == USER_DEFINED else token
        rows.append((text, score, UNKNOWN if number == unknown else kind))
    words = as_words(rows, {"unk": unknown}, prefix=True, notes=[*notes])
    return as_unigram(words, charsmap, one_space=True, prefix=True)


def _charsmap(normalizer: object) -> bytes:
    """SentencePiece's rules, which make white space of every kind a space."""
    found = steps(normalizer, "normalizers")
    if [step.get("type") for step in found] != ["Precompiled"]:
        kinds = ", ".join(str(step.get("type")) for step in found) or "none"
        raise Inexact(f"its normalizer is no map of characters alone, but {kinds} (tokenizer.json)")
    text = found[0].get("precompiled_charsmap")
    try:
        charsmap = base64.b64decode(text if isinstance(text, str) else "", validate=True)
        other = next((space for space in _SPACES if _mapped(charsmap, space.encode()) != b" "), None)
    except (binascii.Error, ValueError, IndexError, TypeError):  # of units that are cut off, cast raises the last
        raise Inexact("its map of characters is malformed (tokenizer.json)") from None
    if other is not None:
        raise Inexact(f"it cuts at {other!r}, which its map of characters makes no space (tokenizer.json)")
    return charsmap


def _mapped(charsmap: bytes, key: bytes) -> bytes | None:
    """A text after a map of characters.

    The map is the size of a double array in bytes (u32), its units (u32), and texts that end in zero. A unit has a
    label (bits 0 to 7, and 31, which no label has), a leaf (8), and an offset (10 and on; by 256 with bit 9).
    """
    size = int.from_bytes(charsmap[:4], "little")
    units = memoryview(charsmap)[4 : 4 + size].cast("I")
    at = _offset(units[0])
    unit = units[0]
    for byte in key:
        at ^= byte
        unit = units[at]
        if unit & (1 << 31 | 0xFF) != byte:
            return None
        at ^= _offset(unit)
    if not unit >> 8 & 1:
        return None
    start = 4 + size + (units[at] & (1 << 31) - 1)
    return charsmap[start : charsmap.index(b"\0", start)]


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)


def _check_cut(pre_tokenizer: object) -> None:
    """Words between white space, each with a space in front."""
    for step in (found := steps(pre_tokenizer, "pretokenizers")):
        kind, scheme = step.get("type"), step.get("prepend_scheme", "always")
        spaces = kind == "Metaspace" and step.get("replacement") == SPACE and scheme == "always"
        if not (kind == "WhitespaceSplit" or (spaces and step.get("add_prefix_space") is not False)):
            raise Inexact(f"its pre-tokenizer is {kind!r} (tokenizer.json)")
    if [step.get("type") for step in found] != ["WhitespaceSplit", "Metaspace"]:
        raise Inexact("it does not cut at white space before it makes spaces pieces (tokenizer.json)")


def _unigram_scores(vocab: object) -> dict[str, float]:
    """Piece -> score, in the order of ids."""
    pairs = vocab if isinstance(vocab, list) else []
    scores: dict[str, float] = {}
    for pair in pairs:
        piece, score = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
        if not isinstance(piece, str) or isinstance(score, bool) or not isinstance(score, int | float):
            raise Inexact("its vocabulary is not a list of pieces and scores (tokenizer.json)")
        if not math.isfinite(score):
            raise Inexact(f"the score of {piece!r} is no number (tokenizer.json)")
        scores[piece] = float(score)
    if len(scores) < len(pairs) or not scores:
        raise Inexact("its vocabulary is empty, or has a piece twice (tokenizer.json)")
    return scores
