"""The JSON header of a safetensors file, read entry by entry: a header may have 100 MB and a million tensors.

Only a window of it is in memory. An entry as writers make it (:data:`_ALIKE`) is read as it stands; any other one is
cut out and goes through the strict parser for itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ckconv.core.dtypes import BY_SAFETENSORS, DType
from ckconv.core.metadata import METADATA
from ckconv.errors import InputError, listed
from ckconv.formats.safetensors.spec import LENGTH_BYTES, MAX_HEADER, MAX_NAME, TOO_LARGE
from ckconv.io.json import Document, parse_object, repeated

if TYPE_CHECKING:
    from ckconv.io.bytesource import ByteSource

HEADER = Document("header", "st.header-json", "st.duplicate-key", MAX_HEADER, entry="tensor")

_WINDOW = 1 << 20
#: Bytes of one tensor's entry: a name may have 1,024, each escaped as 6, and a shape 64 numbers.
_MAX_ENTRY = 64 << 10
#: Bytes of ``__metadata__``: the settings of a training run have some hundred thousand.
_MAX_METADATA = 16 << 20
#: Pairs of type and shape that are kept: a model has a few dozen.
_MAX_FORMS = 4096

_SPACE = b" \t\n\r"
_S = rb"[ \t\n\r]*"
_NUMBER = rb"(?:0|[1-9][0-9]{0,18})"
_ALIKE = re.compile(
    rb'S"([^"\\\x00-\x1f]+)"S:S\{S"dtype"S:S"([A-Z0-9_]+)"S,S"shape"S:S\[S((?:N(?:S,SN){0,63})?)S\]'
    rb'S,S"data_offsets"S:S\[S(N)S,S(N)S\]S\}S([,}])'.replace(b"S", _S).replace(b"N", _NUMBER)
)
_KEY = re.compile(rb'S"([^"\\\x00-\x1f]*)"S:'.replace(b"S", _S))
_TOKEN = re.compile(rb'["\[\]{},]')
_LEVELS = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


class Alike(NamedTuple):
    """A tensor whose entry is sound in itself; ``begin`` and ``end`` in bytes of the data section."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


class Header:
    """The header's window, moved forward.

    Attributes:
        names: every key so far, up to ``limit``.
        count: the keys so far.
    """

    def __init__(self, source: ByteSource, length: int, path: Path, limit: int) -> None:
        self.names: list[str] = []
        self.count = 0
        self._source, self._path, self._limit = source, path, limit
        self._end = LENGTH_BYTES + length
        #: The window, its absolute offset, and the position in it.
        self._buffer, self._base, self._at = b"", LENGTH_BYTES, 0
        self._forms: dict[tuple[bytes, bytes], tuple[DType, tuple[int, ...]]] = {}

    def entries(self) -> Iterator[tuple[str, Alike | Any]]:
        """Every key with its value: ``Alike`` where nothing is wrong with its fields, else as it was parsed.

        Raises:
            InputError: ``st.header-json``, ``st.duplicate-key``, ``st.fields`` or ``st.metadata``.
        """
        self._extend()
        self._at = 1  # behind the opening brace
        more = True
        while more:
            found = _ALIKE.match(self._buffer, self._at)
            alike = self._alike(found) if found else None
            if found and alike:
                self._at = found.end()
                more = found[6] == b","
                name, value = alike
            else:
                item, more = self._any()
                if item is None:
                    break
                name, value = item
            self.count += 1
            if self.count <= self._limit:
                self.names.append(name)
            yield name, value
        self._check_end()
        self._check_names()

    def _alike(self, found: re.Match[bytes]) -> tuple[str, Alike] | None:
        raw, dtype, shape, begin, end, _ = found.groups()
        form = self._forms.get((dtype, shape)) or self._form(dtype, shape)
        if form is None or len(raw) > MAX_NAME or raw == METADATA.encode():
            return None
        first, last = int(begin), int(end)
        if max(first, last) >= TOO_LARGE:
            return None
        try:
            return raw.decode(), Alike(form[0], form[1], first, last)
        except UnicodeDecodeError:
            return None

    def _form(self, dtype: bytes, shape: bytes) -> tuple[DType, tuple[int, ...]] | None:
        kind = BY_SAFETENSORS.get(dtype.decode())
        extents = tuple(map(int, shape.split(b","))) if shape else ()
        if kind is None or max(extents, default=0) >= TOO_LARGE:
            return None
        if len(self._forms) < _MAX_FORMS:
            self._forms[dtype, shape] = kind, extents
        return kind, extents

    def _any(self) -> tuple[tuple[str, Any] | None, bool]:
        """Whatever stands at the position, and whether a comma follows it; no entry at the end of an empty object."""
        self._buffer = self._buffer[self._at :]
        self._base, self._at = self._base + self._at, 0
        end = self._find_end()
        text, mark = self._buffer[:end], self._buffer[end : end + 1]
        if not text.strip(_SPACE) and mark:
            if mark == b"}" and not self.count:
                self._at = end + 1
                return None, False
            self._parse(b'{"":0,', text + mark)
        value = self._parse(b"{", text + (b"}" if mark else b""))
        self._at = end + 1
        return next(iter(value.items())), mark == b","

    def _parse(self, opening: bytes, text: bytes) -> dict[str, Any]:
        before = self._base - LENGTH_BYTES - len(opening)
        return parse_object(opening + text, HEADER, self._path, offset=LENGTH_BYTES + before, before=before)

    def _find_end(self) -> int:
        """Where the entry at the window's start ends: at the comma or brace behind it, or where the header does."""
        key = _KEY.match(self._buffer)
        is_metadata = key is not None and key[1] == METADATA.encode()
        most = _MAX_METADATA if is_metadata else _MAX_ENTRY
        at = depth = 0
        while at <= most:
            found = _TOKEN.search(self._buffer, at)
            if found is None:
                at = len(self._buffer)
                if not self._extend():
                    return at
                continue
            token = found[0]
            if token == b'"':
                behind = self._behind_string(found.end())
                if behind < 0:
                    return len(self._buffer)
                at = behind
                continue
            if not depth and token in (b",", b"}"):
                return found.start()
            depth += _LEVELS.get(token, 0)
            at = found.end()
        what, code = (METADATA, "st.metadata") if is_metadata else ("the entry of a tensor", "st.fields")
        raise InputError(code, f"{what} has more than {most:,} bytes", path=self._path, offset=self._base, allowed=most)

    def _behind_string(self, at: int) -> int:
        """The position behind a string whose content starts at ``at``; -1 where the header ends before."""
        looked = at
        while True:
            quote = self._buffer.find(b'"', looked)
            if quote < 0:
                looked = len(self._buffer)
                # A backslash before what is not there yet counts with it.
                while looked > at and self._buffer[looked - 1] == ord("\\"):
                    looked -= 1
                if not self._extend():
                    return -1
                continue
            first = quote
            while first > looked and self._buffer[first - 1] == ord("\\"):
                first -= 1
            looked = quote + 1
            if (quote - first) % 2 == 0:
                return looked

    def _extend(self) -> bool:
        """Read on behind the window, at least as much as is in it; false at the header's end."""
        behind = self._base + len(self._buffer)
        nbytes = min(max(_WINDOW, len(self._buffer)), self._end - behind)
        if nbytes <= 0:
            return False
        self._buffer += self._source.read_at(behind, nbytes)
        return True

    def _check_end(self) -> None:
        """Nothing but space follows the object: writers align the data with it."""
        while True:
            rest = self._buffer[self._at :]
            if rest.strip(_SPACE):
                column = self._base - LENGTH_BYTES + self._at + len(rest) - len(rest.lstrip(_SPACE)) + 1
                message = f"header is not a JSON object: column {column:,}: extra data"
                raise InputError("st.header-json", message, path=self._path, offset=LENGTH_BYTES + column - 1)
            self._base, self._buffer, self._at = self._base + len(self._buffer), b"", 0
            if not self._extend():
                return

    def _check_names(self) -> None:
        if all(one != other for one, other in pairwise(sorted(self.names))):  # a set takes eight times as much memory
            return
        faults = repeated(Counter(self.names), HEADER)
        raise InputError(
            HEADER.duplicate_code, faults[0], path=self._path, offset=LENGTH_BYTES, details=listed(faults[1:])
        )
