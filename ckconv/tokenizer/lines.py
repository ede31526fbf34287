"""Vocabularies of one token a line, RWKV's and PLaMo's.

``rwkv_vocab_v20230424.txt`` and ``tokenizer.jsonl``.

A line of RWKV's is ``ID REPR LENGTH``: the token's id from 1 on, the token as Python writes a string or bytes, and how
many bytes it has. One of PLaMo's is a JSON list that begins with a token, its score and its type; its id is the number
of the lines before it. Sources: ``_set_vocab_rwkv_world``, ``_set_vocab_plamo`` of llama.cpp's ``conversion/base.py``.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from ckconv.core.named import NamedTuple
from ckconv.errors import InputError, is_text
from ckconv.tokenizer.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN

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
            said = ast.literal_eval(literal) if _LITERAL.fullmatch(literal) else None
            token = said.encode() if isinstance(said, str) else said
        except (ValueError, SyntaxError):
            token = None
        if not token:
            raise _malformed(path, number, "it has no token that Python writes so")
        if length != str(len(token)):
            raise _malformed(path, number, f"its token has {len(token):,} bytes, and the line says another number")
        rows.append(Row(repr(token)[2:-1], NORMAL))
    return _apart(rows, path, before=1)


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
    return _apart(rows, path, before=0)


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


def _apart(rows: list[Row], path: Path, before: int) -> list[Row]:
    """Rows no two of which are one token."""
    seen: set[str] = set()
    for number, row in enumerate(rows, 1 - before):
        if row.text in seen:
            raise _malformed(path, number, f"its token {row.text[:40]!r} is there before")
        seen.add(row.text)
    return rows


def _malformed(path: Path, number: int, why: str) -> InputError:
    return InputError("tokenizer.model", f"line {number:,}: {why}", path=path)
