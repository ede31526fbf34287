"""JSON documents of a model, parsed as every reader of them would.

The standard library's parser accepts duplicate keys (the last one wins), NaN, numbers of any length and lone
surrogates, and recurses once per level. All of that is refused here, but NaN and the infinities in documents that
transformers 4 wrote so, and depth and breadth are bounded before it runs.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

from ckconv.core.late import NamedTuple
from ckconv.errors import InputError, listed, quoted
from ckconv.io.files import lfs_pointer, open_source

MAX_DEPTH = 64
#: Characters of one number. The longest that real files hold has 31 (a tokenizer's ``model_max_length`` of 10^30).
MAX_NUMBER = 128
#: Brackets, quotes, commas and colons of one document: they bound the objects that parsing makes.
#: A safetensors header spends 25 on a matrix, and may have a million of them.
MAX_STRUCTURE = 25_000_000

#: Lists and objects of one document: so many, and one more for so many bytes. An empty list has 3 bytes and takes 64
#: of memory; of real documents the merges of a tokenizer have the shortest ones, with 10 bytes and more.
MAX_CONTAINERS, BYTES_PER_CONTAINER = 100_000, 8

_STRUCTURE = (b'"', b",", b":", b"[", b"]", b"{", b"}")
_NOT_NESTING = bytes(set(range(256)) - set(b'"[]{}'))
_LEVEL = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_LONE_SURROGATE = r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"


class Document(NamedTuple):
    """A kind of document: its name, and how its faults are reported.

    Attributes:
        what: the subject of the sentences (``header``).
        code: the code of everything that is wrong with it as JSON.
        duplicate_code: the code of a key that appears twice.
        limit: its largest size in bytes.
        entry: what a key of the outermost object names (``tensor``).
        lax: Infinity, -Infinity and NaN are numbers in it, as Python's json writes them.
    """

    what: str
    code: str
    duplicate_code: str
    limit: int
    entry: str = "key"
    lax: bool = False


class _RefusedNumberError(ValueError):
    """A number that a hook of the parser refuses; never leaves this module."""


def parse_object(data: bytes, document: Document, path: Path, *, offset: int = 0, before: int = 0) -> dict[str, Any]:
    """Parse one JSON object.

    Args:
        data: the whole document, or one entry of it as an object of its own.
        document: its limits and codes.
        path: the file it is in.
        offset: where in ``path`` it begins, in bytes.
        before: bytes of the document before ``data``, counted as columns.

    Raises:
        InputError: ``document.code``, for anything but one well-formed object within the bounds;
            ``document.duplicate_code``, for a key that appears twice in any of its objects.
    """
    what, code = document.what, document.code

    def refuse(reason: str, at: int = 0, **facts: Any) -> NoReturn:
        raise InputError(code, f"{what} {reason}", path=path, offset=offset + at, **facts) from None

    if pointer := lfs_pointer(data):
        raise InputError(code, f"{what} {pointer}", path=path, offset=offset, hint="run `git lfs pull`")
    if len(data) > document.limit:
        refuse(f"is larger than {document.limit:,} bytes", found=len(data), allowed=document.limit)
    structure = sum(map(data.count, _STRUCTURE))
    if structure > MAX_STRUCTURE:
        refuse(f"has {structure:,} brackets, quotes, commas and colons; {MAX_STRUCTURE:,} are allowed",
               found=structure, allowed=MAX_STRUCTURE)  # fmt: skip
    depth = _depth(data)
    if depth > MAX_DEPTH:
        refuse(f"is nested {depth:,} deep; {MAX_DEPTH} levels are allowed", found=depth, allowed=MAX_DEPTH)
    containers = data.count(b"[") + data.count(b"{")
    most = MAX_CONTAINERS + len(data) // BYTES_PER_CONTAINER
    if containers > most:
        refuse(f"has {containers:,} lists and objects; {most:,} are allowed", found=containers, allowed=most)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        refuse(f"is not UTF-8: byte {data[error.start]:#04x} at column {before + error.start + 1:,}", error.start)
    lone = re.search(_LONE_SURROGATE, text.replace("\\\\", "xx")) if "\\u" in text else None
    if lone:
        at = len(text[: lone.start()].encode())
        refuse(f"is not a JSON object: half of a surrogate pair at column {before + at + 1:,}", at)

    duplicates = _Duplicates()
    try:
        value = json.loads(
            text,
            object_pairs_hook=duplicates.hook,
            parse_int=_integer,
            parse_float=_real,
            parse_constant=float if document.lax else _constant,
        )
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode())
        line = f"line {error.lineno:,}, " if error.lineno > 1 else ""
        reason = error.msg[:1].lower() + error.msg[1:]
        refuse(f"is not a JSON object: {line}column {before + error.colno:,}: {reason}", at)
    except _RefusedNumberError as error:
        refuse(f"is not a JSON object: {error}")
    faults = duplicates.sentences(document)
    if faults:
        raise InputError(document.duplicate_code, faults[0], path=path, offset=offset, details=listed(faults[1:]))
    if not isinstance(value, dict):
        refuse(f"is not a JSON object: it is {kind(value)}")
    return value


def read_object(path: Path, document: Document) -> dict[str, Any]:
    """Read and parse the JSON object that a whole file is.

    Raises:
        InputError: as :func:`parse_object`, and as ``open_source`` for a file that cannot be opened.
    """
    return parse_object(read_document(path, document), document, path)


def read_document(path: Path, document: Document) -> bytes:
    """The bytes of a file that is one document.

    Raises:
        InputError: ``document.code``, it is larger than one may be; as ``open_source``, it cannot be opened.
    """
    source = open_source(path)
    try:
        if source.size is not None and source.size > document.limit:
            raise InputError(
                document.code,
                f"{document.what} has {source.size:,} bytes; at most {document.limit:,} are read",
                path=path,
                found=source.size,
                allowed=document.limit,
            )
        return source.read_at(0, document.limit + 1 if source.size is None else source.size)
    finally:
        source.close()


def kind(value: object) -> str:
    """The type of a parsed value, in words: ``a list``."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def shown(value: object) -> str:
    """A parsed value for messages: escaped, and only its type if long."""
    if isinstance(value, str):
        return quoted(value, 60)
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return f"{value}" if len(f"{value}") <= 40 else "a number of more than 40 digits"
    return kind(value)


class _Duplicates:
    """Builder of objects that notes keys that appear more than once."""

    def __init__(self) -> None:
        self._outermost: dict[str, int] = {}
        self._inner: list[tuple[str, int]] = []

    def hook(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        # The outermost object is the last one that the parser completes: until then each is an inner one.
        if self._outermost:
            self._inner.extend(self._outermost.items())
            self._outermost = {}
        if len(made) != len(pairs):
            self._outermost = {key: n for key, n in Counter(key for key, _ in pairs).items() if n > 1}
        return made

    def sentences(self, document: Document) -> list[str]:
        inner = [
            f"key {quoted(key)} appears {_times(n)} in one object of the {document.what}" for key, n in self._inner
        ]
        return repeated(self._outermost, document) + inner


def repeated(counts: Mapping[str, int], document: Document) -> list[str]:
    """A sentence for every repeated key of the outermost object."""
    return [
        f"{document.entry} {quoted(key)} appears {_times(n)} in the {document.what}"
        for key, n in counts.items()
        if n > 1
    ]


def _times(n: int) -> str:
    return "twice" if n == 2 else f"{n:,} times"


def _depth(data: bytes) -> int:
    """The deepest nesting of brackets, up to the first syntax error at least.

    Escapes go first (pairs of backslashes from the left, then escaped quotes); what then stands between an odd and
    an even quote is a string. Dropping ``""`` keeps that parity and most strings are that by then.
    """
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    bare = bare.translate(None, _NOT_NESTING).replace(b'""', b"")
    if b'"' in bare:
        bare = b"".join(bare.split(b'"')[::2])
    return max(accumulate(map(_LEVEL.__getitem__, bare)), default=0)


def _integer(digits: str) -> int | float:
    if len(digits) > MAX_NUMBER:
        raise _RefusedNumberError(f"a number of {len(digits):,} digits; {MAX_NUMBER} are allowed")
    # -0 is not a whole number: serde_json, and so the reference parser of safetensors, reads it as a float.
    return -0.0 if digits == "-0" else int(digits)


def _real(digits: str) -> float:
    if len(digits) > MAX_NUMBER:
        raise _RefusedNumberError(f"a number of {len(digits):,} digits; {MAX_NUMBER} are allowed")
    value = float(digits)
    if not math.isfinite(value):
        raise _RefusedNumberError(f"{quoted(digits)} is larger than any float64")
    return value


def _constant(word: str) -> NoReturn:
    raise _RefusedNumberError(f"{word} is not a JSON number")
