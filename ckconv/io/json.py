"""JSON documents of a model, and patterns, read as every reader would.

The standard library's parser accepts duplicate keys (the last one wins), NaN, numbers of any length and lone
surrogates, and recurses once per level. All of that is refused here, but NaN and the infinities in documents that
transformers 4 wrote so, and depth and breadth are bounded before it runs.
"""

from __future__ import annotations

import json
import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ckconv.core.lazy import NamedTuple, pattern
from ckconv.errors import InputError, UnsupportedError, listed, quoted
from ckconv.io.files import lfs_pointer, open_source

if TYPE_CHECKING:
    import regex

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


# -- Regular expressions of a file's author, matched in bounded time ---------------------------------------------------
#
# Python's own may backtrack for years; the package regex matches as Python does, and stops when its time is over.

#: For all patterns and modules of one file. The largest known adapters take a hundredth of it.
MAX_SECONDS = 3.0
#: Characters of an expression. The longest known ones, which list every kind of projection, have 400.
MAX_PATTERN = 4096
#: Positions that regex may make of an expression: it writes out what is repeated a number of times.
MAX_POSITIONS = 100_000
#: Numbers of repetitions, and the bracket of a group before them.
_COUNT = r"(\)?)\{(?:\d*,)?(\d+)(?:,)?\}"
#: What regex reads as a number of errors and as a class of POSIX, and Python as characters.
_OTHERWISE = r"\[:|(?<!\\)(?:\\\\)*\{(?!\d+(?:,\d*)?\}|,\d+\})"

#: Every character of such an expression stands for one character: for itself, or ``.`` for any one.
PLAIN = pattern(r"(?:[A-Za-z0-9_.\-]|\\\.)*", re.ASCII)

#: What a compiled expression finds in a path, if anything.
Matcher = Callable[[str], "re.Match[str] | regex.Match[str] | None"]


class Clock:
    """Time left for the patterns of one file.

    Args:
        path: the file whose patterns they are.
        code: of the error where none is left, or an expression cannot be matched.
    """

    def __init__(self, path: Path | None = None, code: str = "adapter.unsupported") -> None:
        self.path, self.code = path, code
        self._left = MAX_SECONDS

    def take(self, seconds: float) -> None:
        """Take time off.

        Raises:
            UnsupportedError: the clock's code, none is left.
        """
        self._left -= seconds
        if self._left <= 0:
            message = f"patterns take more than {MAX_SECONDS:g} seconds to be held against the modules"
            hint = "names in place of patterns are held against them at once"
            raise UnsupportedError(self.code, message, path=self.path, hint=hint)

    def match(self, method: Callable[..., regex.Match[str] | None], name: str) -> regex.Match[str] | None:
        """Result of a method of regex's for a name."""
        began = time.monotonic()
        try:
            found = method(name, timeout=self._left)
        except TimeoutError:
            found, began = None, -math.inf
        self.take(time.monotonic() - began)
        return found


def compiled(text: str, field: str, clock: Clock, around: str | None) -> Matcher:
    """Function that matches an expression, within another or a whole path.

    The expression is valid by itself.

    Raises:
        InputError: ``adapter.config``, it is not a regular expression.
        UnsupportedError: the clock's code, Python and regex read it otherwise, or it is too large.
    """
    began = time.monotonic()
    whole = text if around is None else around.replace("{}", text)
    counts = [(bool(group), int(number)) for group, number in re.findall(_COUNT, text)]
    positions = len(text) * math.prod(number for group, number in counts if group) * max([1, *(n for _, n in counts)])
    message = (
        f"{quoted(text)} of {field} is an expression that ckconv does not match: it is longer than"
        f" {MAX_PATTERN:,} characters, too deep or too often repeated, or has braces that are no number of"
        " repetitions, or a class [:...:]"
    )
    refused = UnsupportedError(clock.code, message, path=clock.path)
    if len(text) > MAX_PATTERN or positions > MAX_POSITIONS or re.search(_OTHERWISE, text):
        raise refused
    try:
        with warnings.catch_warnings(action="ignore"):  # of a bracket in a class
            re.compile(text)
            plain = re.compile(whole)
            if PLAIN.fullmatch(text):
                return plain.fullmatch if around is None else plain.match
            import regex

            made = regex.compile(whole, cache_pattern=False)
    except re.error as error:
        message = f"{quoted(text)} of {field} is not a regular expression: {error}"
        raise InputError("adapter.config", message, path=clock.path) from None
    except (RecursionError, OverflowError):
        raise refused from None
    clock.take(time.monotonic() - began)
    return partial(clock.match, made.fullmatch if around is None else made.match)
