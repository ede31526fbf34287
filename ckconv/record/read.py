"""Reads a source record, and trusts nothing in it before it is checked."""

from __future__ import annotations

import string
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any

from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, quoted
from ckconv.formats import format_of, recorded
from ckconv.formats.safetensors.files import SIDE_FILES
from ckconv.formats.safetensors.spec import INDEX_SUFFIX
from ckconv.io.files import CHUNK, FileSource, open_source
from ckconv.io.json import Document, parse_object, shown
from ckconv.publish.files import there
from ckconv.record import zip as zipstore
from ckconv.record.schema import (
    CONVERSION_NAME,
    DOCUMENT_NAME,
    DOCUMENTS,
    MAX_DOCUMENT,
    MAX_KEPT,
    SCHEMA,
    SCHEMA_HASHED,
    SCHEMA_RECORDED,
    Kept,
    Record,
    Run,
    SourceFile,
    plain_name,
    record_path,
)

_DOCUMENT = Document(DOCUMENT_NAME, "record.json", "record.json", MAX_DOCUMENT)
_MAX_SIZE = 1 << 62

#: What to do about a record that does not fit: every command looks at it, and not every one has the flag.
IGNORED = "move it away; convert and batch ignore it with --no-source-record"


class OpenRecord:
    """A record of which everything is checked but the contents, which :meth:`check` reads."""

    def __init__(self, path: Path, record: Record, source: FileSource, members: Mapping[str, zipstore.Stored]) -> None:
        self.path, self.record = path, record
        self._source, self._members = source, members

    @property
    def contents(self) -> Mapping[str, zipstore.Stored]:
        """Every member that holds bytes of the source, by name."""
        return {name: stored for name, stored in self._members.items() if name not in DOCUMENTS}

    def conversion(self) -> bytes | None:
        """The conversion record that is a member of it, ``None`` where there is none.

        Raises:
            InputError: ``record.zip``, its CRC-32 is wrong.
        """
        stored = self._members.get(CONVERSION_NAME)
        return _document(self._source, stored) if stored else None

    def check(self) -> None:
        """Read every content.

        Raises:
            InputError: ``record.content``, one does not have the digest that is listed.
        """
        for file in self.record.files:
            for kept in file.kept:
                stored = self._stored(file, kept)
                digest = sha256()
                for at in range(0, kept.nbytes, CHUNK):
                    digest.update(self.read(stored.offset + at, min(CHUNK, kept.nbytes - at)))
                if digest.hexdigest() != kept.sha256:
                    message = f"its member {quoted(stored.member.name)} does not have the SHA-256 that is listed"
                    raise InputError("record.content", message, path=self.path, offset=stored.offset)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes of the record's own file."""
        return self._source.read_at(offset, nbytes)

    def pieces(self, file: SourceFile) -> list[tuple[Run, int]]:
        """Every run that is kept of a file, sorted, and the offset of its bytes in the record's own file."""
        found = []
        for kept in file.kept:
            at = self._stored(file, kept).offset
            for run in kept.runs:
                found.append((run, at))
                at += run[1]
        return sorted(found)

    def _stored(self, file: SourceFile, kept: Kept) -> zipstore.Stored:
        """The member that holds what is kept; :func:`open_record` has made sure that it is there and of that size."""
        return self._members[file.member(kept)]


#: Rows of the smallest head that RoPE rotates.
_ONE_PAIR = 2


def open_record(path: Path) -> OpenRecord:
    """Read and check a record. Contents are not read.

    Raises:
        InputError: ``record.zip``, it is truncated or no archive that ckconv writes; ``record.json``;
            ``record.files``, files whose names or runs no source has; ``record.content``,
            members that are missing, not listed or of another size.
    """
    source = open_source(path)
    if source.size > 2 * MAX_KEPT:
        message = f"has {source.size:,} bytes; a record has at most {2 * MAX_KEPT:,}"
        raise InputError("record.zip", message, path=path, found=source.size, allowed=2 * MAX_KEPT)
    members = zipstore.read(source, "record.zip")
    stored = members.get(DOCUMENT_NAME)
    if stored is None or stored.member.nbytes > MAX_DOCUMENT:
        what = "holds no" if stored is None else "holds too large a"
        raise InputError("record.json", f"{what} {DOCUMENT_NAME}", path=path)
    data = _document(source, stored)
    record = _Checks(path, parse_object(data, _DOCUMENT, path, offset=stored.offset)).record()
    wanted = {DOCUMENT_NAME, *([CONVERSION_NAME] if record.options is None else [])}
    wanted |= {file.member(kept) for file in record.files for kept in file.kept}
    for name in sorted(members.keys() ^ wanted):
        what = "is missing" if name in wanted else "is listed nowhere"
        raise InputError("record.content", f"its member {quoted(name)} {what}", path=path)
    for file in record.files:
        for kept in file.kept:
            name = file.member(kept)
            nbytes = members[name].member.nbytes
            if nbytes != kept.nbytes:
                message = f"its member {quoted(name)} has {nbytes:,} bytes, {kept.nbytes:,} are listed"
                raise InputError("record.content", message, path=path, found=nbytes, allowed=kept.nbytes)
    return OpenRecord(path, record, source, members)


def _document(source: FileSource, stored: zipstore.Stored) -> bytes:
    """A member that is read whole."""
    data = source.read_at(stored.offset, stored.member.nbytes)
    if zlib.crc32(data) != stored.member.crc:
        message = f"the CRC-32 of {stored.member.name} is wrong"
        raise InputError("record.zip", message, path=source.path, offset=stored.offset)
    return data


def record_beside(index: TensorIndex) -> OpenRecord | None:
    """The record that lies beside a file, ``None`` where there is none.

    Raises:
        InputError: ``record.*``: it is malformed, or belongs to another bump file.
    """
    path = record_path(index.path if format_of(index.format).keeps_source else index.files[0])
    if not there(path):
        return None
    opened = open_record(path)
    if bool(opened.record.payload) != format_of(index.format).keeps_source:
        message = f"it is no record of a {index.format}"
        raise InputError("record.foreign", message, path=path, hint=IGNORED)
    if opened.record.payload:
        check_belongs(opened, index)
    return opened


def check_belongs(opened: OpenRecord, index: TensorIndex) -> None:
    """The record was written with this bump file.

    Raises:
        InputError: ``record.foreign``.
    """
    record = opened.record
    payload = index.checksums[0].stored if index.checksums else b""
    if record.payload != payload:
        message = (
            f"it belongs to another bump file: to the payload {record.payload.hex()}, "
            f"{index.path.name} says {payload.hex()}"
        )
        raise InputError(
            "record.foreign", message, path=opened.path, found=record.payload.hex(), allowed=payload.hex(), hint=IGNORED
        )
    if not index.tensors:
        return
    rope = "interleaved" if any(t.layout.interleaved for t in index.tensors.values()) else "split"
    if index.config and index.config.head_dim == _ONE_PAIR:  # both orders are one
        rope = record.rope_layout
    family = index.config.family if index.config else ""
    for what, wrote, reads in (("rope_layout", record.rope_layout, rope), ("model", record.family, family)):
        if wrote and wrote != reads:
            message = (
                f"the bump file was written with {what} {quoted(wrote)}, config.json beside it says {quoted(reads)}"
            )
            raise InputError("record.foreign", message, path=opened.path, found=reads, allowed=wrote)


def _is_side_file(name: str) -> bool:
    """Records are untrusted: restoring may create only these file names."""
    return name.endswith(INDEX_SUFFIX) or any(fnmatchcase(name, pattern) for pattern in SIDE_FILES)


class _Checks:
    """Turns the document into a record, or says what is wrong with it."""

    def __init__(self, path: Path, document: Mapping[str, Any]) -> None:
        self._path, self._document = path, document

    def record(self) -> Record:
        """The whole document, checked."""
        d = self._document
        schema = d.get("schema")
        if schema not in (SCHEMA, SCHEMA_RECORDED, SCHEMA_HASHED) or isinstance(schema, bool):
            message = f"schema is {shown(schema)}, {SCHEMA}, {SCHEMA_RECORDED} or {SCHEMA_HASHED} expected"
            raise InputError("record.json", message, path=self._path, hint="a newer ckconv may know it")
        self._hashed = schema == SCHEMA_HASHED
        bump = {} if self._hashed else self._of(d, "bump", dict)
        format = self._of(d, "format", str)
        if format not in recorded():
            raise self._fault(f"format is {shown(format)}, one of {', '.join(recorded())} expected")
        source = self._of(d, "source", str)
        if not plain_name(source):
            raise self._fault(f"the source is called {quoted(source)}, which is not a plain file name", "record.files")
        files = tuple(self._file(item) for item in self._of(d, "files", list))
        for file in files:
            if not file.tensors and (format_of(format).single or not _is_side_file(file.name)):
                raise self._fault(f"{quoted(file.name)} does not belong to a model in {format}", "record.files")
        self._check_names(files)
        left_out, aliases = self._of(d, "left_out", list), self._of(d, "aliases", dict)
        if not all(isinstance(name, str) for name in (*left_out, *aliases.values())):
            raise self._fault("left_out and aliases must name tensors")
        return Record(
            format,
            source,
            b"" if self._hashed else bytes.fromhex(self._digest(bump, "payload_sha256")),
            "" if self._hashed else self._of(bump, "rope_layout", str),
            "" if self._hashed else self._of(bump, "family", str),
            None if schema == SCHEMA_RECORDED else self._of(d, "options", dict),
            tuple(left_out),
            aliases,
            files,
        )

    def _fault(self, message: str, code: str = "record.json") -> InputError:
        return InputError(code, message, path=self._path)

    def _of(self, holder: Any, key: str, kind: type[Any]) -> Any:
        value = holder.get(key) if isinstance(holder, dict) else None
        # Not isinstance: JSON's true would pass as 1.
        if type(value) is not kind:
            raise self._fault(f"{key} is {shown(value)}, which is not a {kind.__name__}")
        return value

    def _digest(self, holder: Any, key: str) -> str:
        text: str = self._of(holder, key, str)
        if len(text) != 64 or not set(text) <= set(string.digits + "abcdef"):
            raise self._fault(f"{key} is {shown(text)}, which is not a SHA-256")
        return text

    def _file(self, item: Any) -> SourceFile:
        name, size = self._of(item, "name", str), self._of(item, "size", int)
        if not plain_name(name):
            raise self._fault(f"a file is called {quoted(name)}, which is not a plain file name", "record.files")
        if not 0 <= size < _MAX_SIZE:
            raise self._fault(f"{quoted(name)} is listed with {shown(size)} bytes", "record.files")
        kept = tuple(self._kept(entry) for entry in self._of(item, "kept", list))
        tensors = self._of(item, "tensors", bool)
        digested = tensors and (self._hashed or "sha256" in item)  # records of bump files have it since 0.4
        file = SourceFile(name, size, tensors, kept, self._digest(item, "sha256") if digested else "")
        end = 0
        for offset, nbytes in file.runs:
            if offset < end or nbytes < 1 or nbytes > size - offset:
                run = f"the run of {shown(nbytes)} bytes at byte {shown(offset)}"
                message = f"{run} of {quoted(name)} overlaps another or is not in its {size:,} bytes"
                raise self._fault(message, "record.files")
            end = offset + nbytes
        if not file.tensors and (len(kept) != 1 or kept[0].runs != (((0, size),) if size else ())):
            raise self._fault(f"{quoted(name)} holds no tensors and is not kept whole", "record.files")
        return file

    def _kept(self, entry: Any) -> Kept:
        runs = self._of(entry, "runs", list)
        for run in runs:
            if not isinstance(run, list) or [type(number) for number in run] != [int, int]:
                raise self._fault(f"a run is {shown(run)}; [offset, bytes] expected", "record.files")
        return Kept(tuple((offset, nbytes) for offset, nbytes in runs), self._digest(entry, "sha256"))

    def _check_names(self, files: Sequence[SourceFile]) -> None:
        twice = [name for name, count in Counter(file.name for file in files).items() if count > 1]
        if twice:
            raise self._fault(f"{quoted(twice[0])} is listed twice", "record.files")
        if not any(file.tensors for file in files):
            raise self._fault("no file holds tensors", "record.files")
