"""``tokenizer.model``: SentencePiece's file, read and written.

Reading is strict.

The file is a protocol buffer; every field is a varint key (number and wire type) and a value. What is read, by number
(``sentencepiece_model.proto`` of google/sentencepiece)::

    ModelProto       1 pieces (message, repeated)   2 trainer_spec   3 normalizer_spec
    SentencePiece    1 piece (string)   2 score (float)   3 type (enum, default NORMAL)
    TrainerSpec      3 model_type (enum)   35 byte_fallback   40 unk_id   41 bos_id   42 eos_id   43 pad_id
    NormalizerSpec   1 name   2 precompiled_charsmap   3 add_dummy_prefix   4 remove_extra_whitespaces

What is written besides: TrainerSpec 4 vocab_size, and 45 to 48, the texts of the tokens 40 to 43, by which the library
finds them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

from ckconv.core.late import NamedTuple

UNIGRAM, BPE = 1, 2

#: What stands for a space in a piece.
SPACE = "▁"

#: Types of a piece, which GGUF's token types repeat.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_PIECES = 1 << 24


class Malformed(ValueError):
    """The bytes are no SentencePiece model."""


class TooManyPieces(Malformed):
    """More pieces than there may be."""


class Piece(NamedTuple):
    """One token."""

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


def parse(data: bytes, limit: int = _MAX_PIECES) -> SentencePiece:
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
        _text(_message(normalizer.get(1, b""))),
        _message(normalizer.get(2, b"")),
        bool(_number(normalizer, 3, 1)),
        bool(_number(normalizer, 4, 1)),
    )


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    score = fields.get(2, bytes(4))
    if not isinstance(score, bytes) or len(score) != 4:
        raise Malformed("a score is not a 32-bit number")
    kind = _number(fields, 3, NORMAL)
    if not NORMAL <= kind <= BYTE:
        raise Malformed(f"a piece has type {kind}")
    return Piece(_text(_message(fields.get(1, b""))), struct.unpack("<f", score)[0], kind)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field.

    An int of a varint, the bytes of the others.
    """
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


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Malformed("a text is not UTF-8") from None


def encode(
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
        message = _field(1, piece.text.encode()) + bytes((2 << 3 | _FIXED32,)) + struct.pack("<f", piece.score)
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
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
