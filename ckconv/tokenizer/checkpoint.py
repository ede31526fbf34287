"""The files of a checkpoint that define its tokenizer."""

from __future__ import annotations

import ast
import base64
import binascii
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ckconv.core.lazy import NamedTuple
from ckconv.core.metadata import (
    GENERATION,
    SETTINGS,
    TARGET,
    TOKENIZER,
    document_of,
    list_within,
    root_of,
    table_within,
    text_on_top,
    tokenizer_root,
    within,
)
from ckconv.core.tensors import MetadataKind, TensorIndex
from ckconv.errors import InputError, is_text
from ckconv.io.files import open_source
from ckconv.io.json import Document, read_object
from ckconv.tokenizer.vocabulary import BYTE_LEVEL, Inexact, TokenizerFiles, content_of, definition, of_class

# -- SentencePiece's file, tokenizer.model -----------------------------------------------------------------------------

# Reading is strict. The file is a protocol buffer; every field is a varint key (number and wire type) and a value. The
# fields read, by number (``sentencepiece_model.proto`` of google/sentencepiece)::
#
#     ModelProto       1 pieces (message, repeated)   2 trainer_spec   3 normalizer_spec
#     SentencePiece    1 piece (string)   2 score (float)   3 type (enum, default NORMAL)
#     TrainerSpec      3 model_type (enum)   35 byte_fallback   40 unk_id   41 bos_id   42 eos_id   43 pad_id
#     NormalizerSpec   1 name   2 precompiled_charsmap   3 add_dummy_prefix   4 remove_extra_whitespaces
#
# Written besides: TrainerSpec 4 vocab_size, and 45 to 48, the texts of the tokens 40 to 43, by which the
# library finds them.

UNIGRAM, BPE = 1, 2

#: What stands for a space in a piece.
SPACE = "▁"

#: Types of a piece, which GGUF's token types repeat.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: Keys of a piece's fields.
_TEXT, _SCORE, _TYPE = 1 << 3 | _BYTES, bytes((2 << 3 | _FIXED32,)), 3 << 3 | _VARINT
_MAX_PIECES = 1 << 24

_float = struct.Struct("<f").unpack_from
#: Varints of one byte.
_SMALL = [bytes((value,)) for value in range(0x80)]


class Malformed(ValueError):
    """The bytes are no SentencePiece model."""


class TooManyPieces(Malformed):
    """More pieces than there may be."""


class Piece(NamedTuple):
    """Token of a SentencePiece model, with its score and its type."""

    text: str
    score: float
    type: int


class SentencePiece(NamedTuple):
    """A model.

    Attributes:
        pieces: by id.
        model_type: ``UNIGRAM`` or ``BPE``; other numbers are words and characters.
        byte_fallback: characters without a piece become pieces of their bytes.
        special: ``unk``, ``bos``, ``eos``, ``pad`` -> id, -1 where there is none.
        normalizer: name of the rules that text goes through first.
        charsmap: the rules, empty for none.
        add_dummy_prefix: a space is put before the text.
        remove_extra_whitespaces: runs of spaces become one.
    """

    pieces: tuple[Piece, ...]
    model_type: int
    byte_fallback: bool
    special: dict[str, int]
    normalizer: str
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def parse_sentencepiece(data: bytes, limit: int = _MAX_PIECES) -> SentencePiece:
    """Read a model.

    Args:
        limit: pieces that it may have; no more are read.

    Raises:
        Malformed: a field is cut off, has the wrong wire type or a value outside its range.
    """
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(_message(value)))
            if len(pieces) > limit:
                raise TooManyPieces(f"it has more than {limit:,} pieces")
        elif number == 2:
            trainer.update(_fields(_message(value)))
        elif number == 3:
            normalizer.update(_fields(_message(value)))
    if not pieces:
        raise Malformed("it has no pieces")
    fields = (("unk", 40, 0), ("bos", 41, 1), ("eos", 42, 2), ("pad", 43, -1))
    ids = {name: _number(trainer, field, default) for name, field, default in fields}  # int32, negative in 64 bits
    return SentencePiece(
        tuple(pieces),
        _number(trainer, 3, UNIGRAM),
        bool(_number(trainer, 35, 0)),
        {name: number - (1 << 64) if number >= 1 << 63 else number for name, number in ids.items()},
        _utf8(_message(normalizer.get(1, b""))),
        _message(normalizer.get(2, b"")),
        bool(_number(normalizer, 3, 1)),
        bool(_number(normalizer, 4, 1)),
    )


def _piece(data: bytes) -> Piece:
    end = 2 + data[1] if len(data) > 1 and data[0] == _TEXT and data[1] < 0x80 else len(data)
    tail = data[end:]
    if tail[:1] == _SCORE and (len(tail) == 5 or (len(tail) == 7 and tail[5] == _TYPE and NORMAL <= tail[6] <= BYTE)):
        # as the library writes nearly all of the hundreds of thousands of pieces: a short text, a score, a type
        return Piece(_utf8(data[2:end]), _float(tail, 1)[0], tail[6] if len(tail) == 7 else NORMAL)
    fields = dict(_fields(data))
    score = fields.get(2, bytes(4))
    if not isinstance(score, bytes) or len(score) != 4:
        raise Malformed("a score is not a 32-bit number")
    kind = _number(fields, 3, NORMAL)
    if not NORMAL <= kind <= BYTE:
        raise Malformed(f"a piece has type {kind}")
    return Piece(_utf8(_message(fields.get(1, b""))), struct.unpack("<f", score)[0], kind)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value, int or bytes, of each protobuf field."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == _BYTES:
            length, at = _varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise Malformed(f"field {number} has wire type {wire}")
        if length > end - at:
            raise Malformed(f"field {number} is cut off")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Malformed("a number is cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _message(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise Malformed("a number stands where a message is expected")
    return value


def _number(fields: dict[int, int | bytes], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise Malformed(f"field {number} is not a whole number")
    return value


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Malformed("a text is not UTF-8") from None


def encode_sentencepiece(
    pieces: Iterable[Piece],
    special: Mapping[str, int],
    *,
    add_dummy_prefix: bool,
    unigram: bool = False,
    charsmap: bytes = b"",
    one_space: bool = False,
) -> bytes:
    """Encode a BPE model with byte fallback, or a unigram model.

    BPE takes text as it is, but for the space that may be put before it.

    Args:
        pieces: by id.
        special: ``unk``, ``bos``, ``eos``, ``pad`` -> id; those that there are.
        charsmap: rules that a text goes through first.
        one_space: runs of spaces become one.

    Raises:
        UnicodeEncodeError: the text of a piece is not text.
    """
    out = bytearray()
    texts: dict[int, str] = {}
    wanted = frozenset(special.values())
    count = 0
    for count, piece in enumerate(pieces, 1):
        message = _field(1, piece.text.encode()) + _SCORE + struct.pack("<f", piece.score)
        if piece.type != NORMAL:
            message += _field(3, piece.type)
        out += _field(1, message)
        if count - 1 in wanted:
            texts[count - 1] = piece.text
    trainer = _field(3, UNIGRAM if unigram else BPE) + _field(4, count) + _field(35, int(not unigram))
    for number, name in enumerate(("unk", "bos", "eos", "pad")):
        found = special.get(name, -1)
        trainer += _field(40 + number, found)
        if found in texts:
            trainer += _field(45 + number, texts[found].encode())
    rules = _field(2, charsmap) if charsmap else b""
    normalizer = _field(1, b"identity") + rules + _field(3, int(add_dummy_prefix)) + _field(4, int(one_space))
    return bytes(out + _field(2, trainer) + _field(3, normalizer))


def _field(number: int, value: int | bytes) -> bytes:
    """A field with its key; negative numbers as 64-bit two's complement."""
    if isinstance(value, int):
        return _encoded(number << 3 | _VARINT) + _encoded(value % (1 << 64))
    return _encoded(number << 3 | _BYTES) + _encoded(len(value)) + value


def _encoded(value: int) -> bytes:
    """A varint."""
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- Vocabularies of one token a line, RWKV's and PLaMo's --------------------------------------------------------------

# ``rwkv_vocab_v20230424.txt`` and ``tokenizer.jsonl``.
#
# A line of RWKV's is ``ID REPR LENGTH``: the token's id from 1 on, the token as Python writes a string or bytes, and
# how many bytes it has. One of PLaMo's is a JSON list that begins with a token, its score and its type; its id is the
# number of the lines before it. Sources: ``_set_vocab_rwkv_world``, ``_set_vocab_plamo`` of llama.cpp's
# ``conversion/base.py``.

#: Characters of a line; RWKV's longest has 500. And lines: RWKV's file has 65,529, PLaMo's 100,000.
_MAX_LINE, _MAX_LINES = 4096, 1 << 18

#: One string, or bytes: nothing else comes to Python's parser, and no escape that it would warn of.
_ESCAPE, _LONG = r"""\\(?:[\\'"abfnrtv]|x[0-9a-fA-F]{2}""", r"|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}"
_LITERAL = re.compile(
    "|".join(
        rf"{prefix}{quote}(?:{_ESCAPE}{more})|[^\\{quote}])*{quote}"
        for prefix, more in (("", _LONG), ("b", ""))
        for quote in "'\""
    )
)

#: Scores of pieces; -1000 is what llama.cpp takes off for a character without one, and for rows without a piece.
_MAX_SCORE = 1000

_TYPES = {"UNKNOWN": UNKNOWN, "CONTROL": CONTROL, "BYTE": BYTE}


class Row(NamedTuple):
    """A token as a GGUF says it."""

    text: str
    type: int
    score: float = 0.0


def rwkv_rows(data: bytes, path: Path) -> list[Row]:
    """Tokens by id.

    The bytes of one are spelled as Python's ``repr``, which llama.cpp reads.

    Raises:
        InputError: ``tokenizer.model``, a line is not in the form.
    """
    rows = [Row("<s>", CONTROL)]
    for number, line in _lines(data, path):
        first, _, rest = line.partition(" ")
        literal, _, length = rest.rpartition(" ")
        if first != str(number):
            raise _malformed(path, number, f"its id is not {number:,}, as the lines before it ask")
        try:
            value = ast.literal_eval(literal) if _LITERAL.fullmatch(literal) else None
            token = value.encode() if isinstance(value, str) else value
        except (ValueError, SyntaxError):
            token = None
        if not token:
            raise _malformed(path, number, "it has no token that Python writes so")
        if length != str(len(token)):
            raise _malformed(path, number, f"its token has {len(token):,} bytes, and the line says another number")
        rows.append(Row(repr(token)[2:-1], NORMAL))
    return _distinct(rows, path, before=1)


def plamo_rows(data: bytes, path: Path) -> list[Row]:
    """Pieces by id.

    Raises:
        InputError: ``tokenizer.model``, a line is not in the form.
    """
    rows = []
    for number, line in _lines(data, path):
        try:
            text, score, kind, *_ = json.loads(line)
            fits = isinstance(text, str) and text and is_text(text) and type(score) in (int, float)
        except (ValueError, TypeError, RecursionError):
            fits = False
        if not fits:
            raise _malformed(path, number, "it is no list of a token, its score and its type")
        if not -_MAX_SCORE < score < _MAX_SCORE:
            raise _malformed(path, number, f"its score is not between -{_MAX_SCORE:,} and {_MAX_SCORE:,}")
        hidden = text.startswith("<|plamo:") and text.endswith("|>")
        rows.append(Row(text, _TYPES.get(str(kind), CONTROL if hidden else NORMAL), float(score)))
    return _distinct(rows, path, before=0)


def _lines(data: bytes, path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line."""
    try:
        lines = data.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise InputError("tokenizer.model", "the file is not UTF-8", path=path) from None
    if len(lines) > _MAX_LINES:
        raise InputError("tokenizer.model", f"the file has more than {_MAX_LINES:,} lines", path=path)
    for number, line in enumerate(lines, 1):
        if len(line) > _MAX_LINE:
            raise _malformed(path, number, f"it has more than {_MAX_LINE:,} characters")
        yield number, line


def _distinct(rows: list[Row], path: Path, before: int) -> list[Row]:
    """Rows no two of which are one token."""
    seen: set[str] = set()
    for number, row in enumerate(rows, 1 - before):
        if row.text in seen:
            raise _malformed(path, number, f"its token {row.text[:40]!r} is there before")
        seen.add(row.text)
    return rows


def _malformed(path: Path, number: int, why: str) -> InputError:
    return InputError("tokenizer.model", f"line {number:,}: {why}", path=path)


# -- The files of a checkpoint that define its tokenizer ---------------------------------------------------------------

# Tokens that files add to the words of a tokenizer, with the ids and flags that ``AutoTokenizer`` gives them.
#
# Whatever id a file lists, a token that is a word keeps that one's, and any other gets the next free one, in the order
# in which tokens come: those of ``tokenizer.json``, those of ``added_tokens_decoder`` (or of ``added_tokens.json``) by
# id, then the special ones that the settings name. Sources: ``AddedVocabulary.add_tokens`` of tokenizers 0.23;
# ``_from_pretrained`` and ``TokenizersBackend.__init__`` of transformers 5.24.

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


class AddedToken(NamedTuple):
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


def added_tokens(files: TokenizerFiles, words: Mapping[str, int]) -> dict[str, AddedToken]:
    """Content -> token, in the order in which they are added.

    Args:
        words: those of the tokenizer's model, with their ids.

    Raises:
        Inexact: one is malformed, or transformers 4 and 5 do not agree about it.
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
    class_name = str(files.settings.get("tokenizer_class") or "")
    if class_name not in _WHOLE or files.config.get("model_type") in _OF_THE_TYPE:
        for content, token in found.items():
            if content not in other or (token.number, token.special) != (other[content].number, other[content].special):
                raise Inexact(f"transformers 4 and 5 have other ids, or other flags, for the token {content!r}")
    return found


def _numbered(batches: Iterable[Sequence[_Listed]], words: Mapping[str, int]) -> dict[str, AddedToken]:
    """Tokens of each batch with their ids.

    The first free one is looked for once a batch.
    """
    made: dict[str, AddedToken] = {}
    for batch in batches:
        free = max([len(words) - 1, *(token.number for token in made.values())]) + 1
        for content, special, listed, given in batch:
            there = made.get(content)
            if there and listed is None:  # named besides
                made[content] = there._replace(special=True)
                continue
            number = there.number if there else words.get(content, free)
            free += number == free
            made[content] = AddedToken(content, number, special, listed, given)
    return made


def words_of_document(document: Mapping[str, Any] | None) -> dict[str, int]:
    """Word -> id of the model of a ``tokenizer.json``; may be empty."""
    vocab = within(document, "model", "vocab")
    if isinstance(vocab, list):
        return {pair[0]: n for n, pair in enumerate(vocab) if isinstance(pair, list) and pair and type(pair[0]) is str}
    return {word: n for word, n in table_within(vocab).items() if type(n) is int}


def is_id(key: str) -> bool:
    """Whether a key of ``added_tokens_decoder`` can be an embedding's row."""
    return key.isascii() and key.isdecimal() and len(key) <= _MAX_DIGITS


def _of_document(document: Mapping[str, Any] | None) -> Iterator[_Listed]:
    for item in list_within(document, "added_tokens"):
        token, number = within(item, "content"), within(item, "id")
        if not isinstance(token, str):
            raise Inexact("tokenizer.json has an added token without content")
        if type(number) is not int or number < 0:
            raise Inexact(f"token {token!r} has the id {number!r}, no whole number (tokenizer.json)")
        if token:
            yield _Listed(token, item.get("special") is True, number, item)


def of_settings(settings: Mapping[str, Any]) -> Iterator[_Listed]:
    """Tokens of ``added_tokens_decoder``, by id."""
    decoder = table_within(settings, "added_tokens_decoder")
    for key, entry in decoder.items():
        if not is_id(key) or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            shown = json.dumps(key if len(key) <= 40 else f"{key[:30]}...")
            raise Inexact(f"added_tokens_decoder has no token at {shown} (tokenizer_config.json)")
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


# Byte pair encoding of one word, to see whether merges make it.

#: Characters of all words, each squared, that are looked through; those of o200k have 2^24.
_MAX_WORK = 1 << 28

Word = TypeVar("Word", str, bytes)


def bounded(words: Iterable[Word], file: str) -> Iterator[Word]:
    """Words whose merging takes bounded work.

    The work grows with the square of their lengths.

    Raises:
        Inexact: they are too long.
    """
    work = 0
    for word in words:
        work += len(word) ** 2
        if work > _MAX_WORK:
            raise Inexact(f"its tokens are too long to be looked through ({file})")
        yield word


def unmade(words: Iterable[str], merges: Sequence[str]) -> str | None:
    """The first word that the merges do not make, else ``None``.

    Where they do, it is all the same whether a word that is a token is looked up or made of its merges.

    Raises:
        Inexact: the words are too long to be looked through.
    """
    ranks = {(left, right): rank for rank, (left, _, right) in enumerate(merge.partition(" ") for merge in merges)}
    return next((word for word in bounded(words, TOKENIZER) if not _made(word, ranks)), None)


def _made(word: str, ranks: dict[tuple[str, str], int]) -> bool:
    parts = list(word)
    while len(parts) > 1:
        best = at = -1
        for n in range(len(parts) - 1):
            rank = ranks.get((parts[n], parts[n + 1]), -1)
            if rank >= 0 and (best < 0 or rank < best):
                best, at = rank, n
        if best < 0:
            return False
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return True


# Tokenizers that lie beside a checkpoint in other files than ``tokenizer.json``, as the document that says the same.
#
# ``vocab.json`` and ``merges.txt`` are byte-level BPE; which, transformers says by the tokenizer's class
# (``tokenization_gpt2.py``, ``tokenization_qwen2.py``, 5.23), that of ``tokenizer_config.json`` or of the model's type
# (``models/auto/tokenization_auto.py``). ``tekken.json`` is Mistral's: bytes by rank, which tiktoken merges by the rank
# of what they make; special tokens have the first ids (``tokens/tokenizers/tekken.py`` of mistral_common 1.13).

#: What the classes take for tokens that no file names, where the vocabulary has it.
_END = "<|endoftext|>"
#: Beginning of the first line of ``merges.txt``.
_VERSION = "#version"
_BOS, _PAD = "<s>", "<pad>"
#: Special tokens of a ``tekken.json`` that names none, from id 0 on.
_UNNAMED = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
)
#: Special tokens of a ``tekken.json``, of which those without a name get one; Mistral's have 1,000.
_MAX_SPECIAL = 100_000


def of_vocabulary(
    vocab: Mapping[str, Any],
    merges: str,
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """``tokenizer.json`` of ``vocab.json`` and ``merges.txt``.

    Raises:
        Inexact: it is of a class of which ckconv has no rules.
    """
    class_name = settings.get("tokenizer_class") or config.get("tokenizer_class")
    known = of_class(str(class_name or config.get("model_type")))
    if known is None:
        what = f"of the class {class_name!r}" if class_name else "of no class that is named"
        raise Inexact(f"vocab.json and merges.txt are {what}, which ckconv has no rules for")
    if settings.get("add_prefix_space"):
        raise Inexact("it puts a space before a text (add_prefix_space), which llama.cpp does not do")
    lines = merges.replace("\r\n", "\n").split("\n")
    return {
        "added_tokens": [{"id": vocab[_END], "content": _END, "special": True}] if _END in vocab else [],
        "normalizer": {"type": "NFC"} if known.nfc else None,
        "pre_tokenizer": definition(known),
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": [line for n, line in enumerate(lines) if line and not (n == 0 and line.startswith(_VERSION))],
        },
    }


def of_tekken(document: Mapping[str, Any]) -> dict[str, Any]:
    """Make ``tokenizer.json`` and its settings of ``tekken.json``.

    ``scores`` is what llama.cpp's converter writes for every word of such a tokenizer, though nothing reads it there.

    Raises:
        Inexact: it is not in the form that mistral_common reads.
    """
    config, ranked, special = (document.get(key) for key in ("config", "vocab", "special_tokens"))
    special = [*enumerate(_UNNAMED.split())] if special is None else special
    if not isinstance(config, dict) or not isinstance(ranked, list) or not isinstance(special, list):
        raise Inexact("tekken.json has no configuration, or no list of words")
    size, first = config.get("default_vocab_size"), config.get("default_num_special_tokens")
    if not isinstance(size, int) or not isinstance(first, int) or not 0 < first < size <= first + len(ranked):
        raise Inexact("tekken.json has no sizes, or fewer words than it says")
    if first > _MAX_SPECIAL:
        raise Inexact(f"tekken.json has more than {_MAX_SPECIAL:,} special tokens")
    words = list(_words(ranked[: size - first]))
    added: dict[int, str] = dict(item if isinstance(item, tuple) else _special(item) for item in special)
    ranks = {word: rank for rank, word in enumerate(words)}
    if len(ranks) < len(words):
        raise Inexact("tekken.json has a word twice")
    alphabet = byte_letters()
    spelled = ["".join(map(alphabet.__getitem__, word)) for word in words]
    bos = added.get(1) == _BOS
    names = [added.get(rank, f"<SPECIAL_{rank}>") for rank in range(first)]
    return {
        "added_tokens": [{"id": rank, "content": name, "special": True} for rank, name in enumerate(names)],
        "settings": {f"{name}_token": added[rank] for rank, name in enumerate(("unk", "bos", "eos")) if rank in added}
        | ({"pad_token": _PAD} if _PAD in added.values() else {}),
        "scores": 0,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": config.get("pattern")}, "behavior": "Isolated"},
                BYTE_LEVEL,
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": _BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {_BOS: {"id": _BOS, "ids": [1], "tokens": [_BOS]}},
        }
        if bos
        else None,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {word: number for number, word in enumerate([*names, *spelled])},
            "merges": [[spelled[one], spelled[other]] for one, other in _merges(words, ranks)],
        },
    }


def _special(item: object) -> tuple[int, str]:
    rank, text = within(item, "rank"), within(item, "token_str")
    if not isinstance(rank, int) or not isinstance(text, str):
        raise Inexact("a special token of tekken.json has no rank, or no text")
    return rank, text


def _words(ranked: list[Any]) -> Iterator[bytes]:
    """The words in the order of their ranks."""
    for rank, item in enumerate(ranked):
        try:
            if item["rank"] != rank:
                raise Inexact(f"word {rank:,} of tekken.json has another rank")
            yield base64.b64decode(item["token_bytes"], validate=True)
        except (TypeError, KeyError, ValueError, binascii.Error):
            raise Inexact(f"word {rank:,} of tekken.json has no bytes") from None


def _merges(words: list[bytes], ranks: Mapping[bytes, int]) -> Iterator[tuple[int, int]]:
    """Merges that make words, by rank of the word, then of the two halves."""
    for word in bounded(words, "tekken.json"):
        halves = ((ranks.get(word[:cut]), ranks.get(word[cut:])) for cut in range(1, len(word)))
        yield from sorted((one, other) for one, other in halves if one is not None and other is not None)


def byte_letters() -> dict[int, str]:
    """Byte -> the letter that stands for it in byte-level BPE.

    ``bytes_to_unicode`` of GPT-2's encoder.py.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(0x100 + n) for n, byte in enumerate(rest)}


# The files of a checkpoint that tell of its tokenizer, read.

#: Bytes of a tokenizer's file; real ones have a third of it.
_LIMIT = 64 << 20

_TEMPLATE, _MORE_TEMPLATES = "chat_template.jinja", "additional_chat_templates"
#: Models of SentencePiece, the first that is there: Llama's and newer ones, T5's, XLM-R's.
_MODELS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
#: Classes whose code has other words than their file: ``tokenization_chatglm.py``, of SentencePiece's or tiktoken's.
_OF_CODE = {"ChatGLMTokenizer", "ChatGLM4Tokenizer"}
#: What Mistral calls them, with the version of its chats.
_VERSIONED = re.compile(r".+\.model\.v\d+(?:m\d+)?")
#: Tokenizers of other libraries.
_OTHERS = ("vocab.txt", "vocab.json", "tokenizer.tiktoken")
#: Tokenizers of one token a line -> llama.cpp's name of the kind, and what reads them.
_OF_LINES = {"rwkv_vocab_v20230424.txt": ("rwkv", rwkv_rows), "tokenizer.jsonl": ("plamo2", plamo_rows)}
_TEKKEN, _VOCABULARY, _MERGES = "tekken.json", "vocab.json", "merges.txt"


def tokenizer_files(index: TensorIndex) -> TokenizerFiles:
    """Tokenizer files beside a checkpoint's tensors.

    Nothing for another format.

    Raises:
        InputError: ``tokenizer.json``, one of the documents is malformed; ``tokenizer.model``, it is too large.
    """
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        words = index.facts.get("tokenizer")
        return TokenizerFiles(why="a bump file holds its words, not how a text is cut into them" if words else "")
    root = tokenizer_root(index)
    config = document_of(index.metadata)
    config = config[TARGET] if index.target else config
    named = next((name for name in _MODELS if (root / name).is_file()), "")
    own = None
    tokenizer, model, why = _json(root / TOKENIZER), _bytes(root / named) if named else None, ""
    settings = _settings(root, alone=tokenizer is None and model is not None)
    if tokenizer is None and model is not None and (class_name := str(settings.get("tokenizer_class"))) in _OF_CODE:
        model, why = None, f"{named} is of the class {class_name!r}, which ckconv has no rules for"
    elif tokenizer is None and model is None:
        try:
            tokenizer = _of_vocab_files(root, settings, config)
            if tokenizer is not None:
                settings = {**tokenizer.get("settings", {}), **settings}
        except Inexact as error:
            why = str(error)
        if tokenizer is None and not why and (own := _versioned(root)) is not None:
            model = _bytes(own)
    return TokenizerFiles(
        tokenizer=tokenizer,
        model=model,
        moved=named == _MODELS[-1],
        versioned=own is not None,
        settings=settings,
        config=text_on_top(config),
        generation=_json(root_of(index) / GENERATION) or {},
        chat_template=chat_template(root, settings),
        added=_json(root / "added_tokens.json") or {},
        why=why,
        others=tuple(name for name in _OTHERS if (root / name).is_file()),
    )


def _settings(root: Path, *, alone: bool) -> Mapping[str, Any]:
    """``tokenizer_config.json`` under ``special_tokens_map.json``.

    As ``_from_pretrained`` of transformers reads the two.

    Args:
        alone: there is a SentencePiece model and no ``tokenizer.json``: transformers 5 takes no list of the map's.
    """
    settings = _json(root / SETTINGS) or {}
    if "added_tokens_decoder" in settings:
        return settings
    named = _json(root / "special_tokens_map.json") or {}
    return {**settings, **{key: value for key, value in named.items() if not (alone and isinstance(value, list))}}


def _versioned(root: Path) -> Path | None:
    """Mistral's SentencePiece model of the last version, as its name says."""
    return max((path for path in root.glob("*.model.v*") if _VERSIONED.fullmatch(path.name)), default=None)


def vocabulary_beside(index: TensorIndex) -> Mapping[str, Any]:
    """Word -> id of ``vocab.json`` or ``tokenizer.json``; may be empty."""
    root = tokenizer_root(index)
    if (words := _json(root / _VOCABULARY)) is not None:
        return words
    return table_within(_json(root / TOKENIZER), "model", "vocab")


def token_ids_beside(index: TensorIndex, texts: Iterable[str]) -> dict[str, int]:
    """Text of a token -> its number, by the files beside a checkpoint.

    Raises:
        InputError: ``tokenizer.json``, a document is malformed.
    """
    files, wanted = tokenizer_files(index), {*texts}
    words = words_of_document(files.tokenizer)
    with suppress(Inexact):
        added = added_tokens(files, words).values()
        # Of other files than tokenizer.json, the words are not known here.
        ids = {it.content: it.number if words else it.listed for it in added if it.content in wanted}
        known = {text: number for text, number in words.items() if text in wanted}
        return known | {text: number for text, number in ids.items() if number is not None}
    return {}


def _of_vocab_files(root: Path, settings: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """``tokenizer.json`` of what other files say."""
    if (document := _json(root / _TEKKEN)) is not None:
        return of_tekken(document)
    for name, (kind, rows) in _OF_LINES.items():
        if (data := _bytes(root / name)) is not None:
            return {"model": {"type": kind, "rows": rows(data, root / name)}}
    if not (root / _MERGES).is_file() or (vocab := _json(root / _VOCABULARY)) is None:
        return None
    merges = (_bytes(root / _MERGES) or b"").decode("utf-8", "replace")
    return of_vocabulary(vocab, merges, settings, config)


def chat_template(root: Path, settings: Mapping[str, Any]) -> object:
    """Chat template, or a list of named ones; files count before settings."""
    texts = {}
    if (root / _TEMPLATE).is_file():
        texts["default"] = _text(root / _TEMPLATE)
    texts |= {path.stem: _text(path) for path in sorted((root / _MORE_TEMPLATES).glob("*.jinja"))}
    found = settings.get("chat_template")
    if texts:
        found = texts["default"] if texts.keys() == {"default"} else texts
    if found is None:
        found = (_json(root / "chat_template.json") or {}).get("chat_template")
    return [{"name": name, "template": text} for name, text in found.items()] if isinstance(found, dict) else found


def _text(path: Path) -> str:
    """A text with Unix ends of lines, as transformers reads templates."""
    return (_bytes(path) or b"").decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")


def _json(path: Path) -> Mapping[str, Any] | None:
    what = "tokenizer" if path.name == TOKENIZER else "document"
    document = Document(what, TOKENIZER, TOKENIZER, _LIMIT)
    return read_object(path, document) if path.is_file() else None


def _bytes(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    with open_source(path) as source:
        data = source.read_at(0, _LIMIT + 1)
    if len(data) > _LIMIT:
        raise InputError("tokenizer.model", f"the file has more than {_LIMIT:,} bytes", path=path, allowed=_LIMIT)
    return data
