"""Archive of a source record: members are checked when they are read."""

from __future__ import annotations

import json
import string
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import Any, Protocol

from ckconv.core.lazy import NamedTuple
from ckconv.core.metadata import CONFIG_NAME
from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.formats import format_of, load, recorded
from ckconv.formats.safetensors.container import INDEX_SUFFIX, SINGLE_NAME
from ckconv.formats.safetensors.files import SIDE_FILES
from ckconv.io.files import CHUNK, ByteSource, FileSource, open_source, there
from ckconv.io.json import Document, parse_object, shown
from ckconv.record import CONVERSION_NAME, record_path

# The source record: what an output does not hold of its source, so that the source can be made again byte for byte.
#
# ``out.bump.source.zip`` lies beside ``out.bump`` and belongs to it by the SHA-256 that the bump's header stores of its
# payload. Its ``record.json`` lists every file of the source with its size, and *runs* of bytes (offset and length)
# that are stored verbatim: all that is no tensor, and tensors or rows of tensors that do not come back out of the bump.
# Every other byte comes back out of the bump file, or is zero. Contents are members of the archive: a file stored whole
# under its own name in ``files/``, any other run, or several runs of one tensor, in ``parts/`` under its SHA-256.
#
# Where a conversion record was asked for it is a member, too (``ckconv.json``), and says all the options (schema 2);
# without one, ``record.json`` lists those that decide what the bump holds (schema 1).
#
# A GGUF has no digest in its header. The record beside one has the SHA-256 of every file of tensors of the source
# instead, and what is made again is that file or is not published (schema 3). A model that sees is two of them, the
# text model, beside which the record lies, and its tower: both are needed.

#: Without and with a conversion record, and of an output whose header holds no digest.
SCHEMA, SCHEMA_RECORDED, SCHEMA_HASHED = 1, 2, 3

#: Bytes that a record keeps of any model, bytes of a run that is read whole, and bytes of ``record.json``.
MAX_RECORD = 64 << 20
MAX_WHOLE = 2 * MAX_RECORD
MAX_DOCUMENT = 16 << 20

#: The member that says what the others are.
DOCUMENT_NAME = "record.json"

DOCUMENTS = (DOCUMENT_NAME, CONVERSION_NAME)

#: Bytes of a file's name, in almost every file system.
MAX_NAME_BYTES = 255

#: (offset, bytes) in a source file.
Run = tuple[int, int]


class StoredRuns(NamedTuple):
    """Runs of one file, sorted, and the SHA-256 (hex) of their bytes."""

    runs: tuple[Run, ...]
    sha256: str

    @property
    def nbytes(self) -> int:
        """Bytes of all runs together."""
        return sum(nbytes for _, nbytes in self.runs)


class SourceFile(NamedTuple):
    """File of the source: ``stored`` runs do not overlap.

    Attributes:
        sha256: of the whole file (hex), of one that holds tensors; empty in a bump file's record before 0.4.
    """

    name: str
    size: int
    tensors: bool
    stored: tuple[StoredRuns, ...]
    sha256: str = ""

    @property
    def runs(self) -> list[Run]:
        """Every run that is stored, sorted."""
        return sorted(run for group in self.stored for run in group.runs)

    def member(self, group: StoredRuns) -> str:
        """The archive's name of what is stored."""
        whole = not self.tensors
        return f"files/{self.name}" if whole else f"parts/{group.sha256}"


class Record(NamedTuple):
    """Everything in ``record.json``.

    Attributes:
        format: of the source: ``gguf``, ``safetensors`` or ``mlx``.
        source: the name of the path that was converted.
        payload: SHA-256 of the bump's payload, as its header stores it; empty where no header does.
        rope_layout: ``split`` or ``interleaved`` rows in the bump, empty for a model without RoPE.
        family: of the model, as ckconv names families.
        options: the flags that changed values or left tensors out; ``None`` where the conversion record says all.
        left_out: names of source tensors that are not in the bump.
        aliases: canonical tensor that is not in the bump -> the one that is byte for byte the same.
        files: in the order in which a reader of the format reads them; side files last.
    """

    format: str
    source: str
    payload: bytes
    rope_layout: str
    family: str
    options: Mapping[str, Any] | None
    left_out: tuple[str, ...]
    aliases: Mapping[str, str]
    files: tuple[SourceFile, ...]

    def to_json(self) -> bytes:
        """``record.json``: its size does not depend on what ``payload`` is."""
        made = {"payload_sha256": self.payload.hex(), "rope_layout": self.rope_layout, "family": self.family}
        document = {
            "schema": SCHEMA_RECORDED if self.options is None else SCHEMA if self.payload else SCHEMA_HASHED,
            "format": self.format,
            "source": self.source,
            **({"bump": made} if self.payload else {}),
            **({} if self.options is None else {"options": dict(self.options)}),
            "left_out": list(self.left_out),
            "aliases": dict(self.aliases),
            "files": [
                {
                    "name": file.name,
                    "size": file.size,
                    "tensors": file.tensors,
                    "kept": [{"sha256": group.sha256, "runs": group.runs} for group in file.stored],
                    **({"sha256": file.sha256} if file.sha256 else {}),
                }
                for file in self.files
            ],
        }
        return (json.dumps(document) + "\n").encode()


def plain_name(name: str) -> bool:
    """Whether it names a visible file in a directory, valid on any system."""
    if not name or name.startswith(".") or any(c in "/\\" or ord(c) < 32 or ord(c) == 127 for c in name):
        return False
    try:
        return len(name.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False


# Reads a source record, and trusts nothing in it before it is checked.

_DOCUMENT = Document(DOCUMENT_NAME, "record.json", "record.json", MAX_DOCUMENT)
_MAX_SIZE = 1 << 62

#: What to do about a record that does not fit: every command looks at it, and not every one has the flag.
IGNORED = "move it away; convert and batch ignore it with --no-source-record"


class OpenRecord:
    """Record whose contents :meth:`check` has yet to read."""

    def __init__(self, path: Path, record: Record, source: FileSource, members: Mapping[str, Location]) -> None:
        self.path, self.record = path, record
        self._source, self._members = source, members

    @property
    def contents(self) -> Mapping[str, Location]:
        """Every member that holds bytes of the source, by name."""
        return {name: stored for name, stored in self._members.items() if name not in DOCUMENTS}

    def conversion(self) -> bytes | None:
        """Conversion record among the members; ``None`` without one.

        Raises:
            InputError: ``record.zip``, its CRC-32 is wrong.
        """
        stored = self._members.get(CONVERSION_NAME)
        return _document(self._source, stored) if stored else None

    def check(self) -> None:
        """Read every content."""
        for file in self.record.files:
            for group in file.stored:
                stored = self._stored(file, group)
                digest = sha256()
                for at in range(0, group.nbytes, CHUNK):
                    digest.update(self.read(stored.offset + at, min(CHUNK, group.nbytes - at)))
                if digest.hexdigest() != group.sha256:
                    message = f"member {quoted(stored.member.name)} does not have the SHA-256 that is listed"
                    raise InputError("record.content", message, path=self.path, offset=stored.offset)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes of the record's own file."""
        return self._source.read_at(offset, nbytes)

    def read_whole(self, offset: int, nbytes: int) -> bytes:
        """The same of bytes that are no tensor."""
        if nbytes > MAX_WHOLE:
            message = f"{nbytes:,} bytes of a header or a document are listed; there are {MAX_WHOLE:,} at most"
            raise InputError("record.files", message, path=self.path, found=nbytes, allowed=MAX_WHOLE)
        return self.read(offset, nbytes)

    def pieces(self, file: SourceFile) -> list[tuple[Run, int]]:
        """Stored runs of a file, sorted, with their offsets in the record."""
        found = []
        for group in file.stored:
            at = self._stored(file, group).offset
            for run in group.runs:
                found.append((run, at))
                at += run[1]
        return sorted(found)

    def _stored(self, file: SourceFile, group: StoredRuns) -> Location:
        """Member with the stored bytes, whose size :func:`open_record` checked."""
        return self._members[file.member(group)]


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
    if source.size > MAX_ARCHIVE:
        message = f"has {source.size:,} bytes; a record has at most {MAX_ARCHIVE:,}"
        raise InputError("record.zip", message, path=path, found=source.size, allowed=MAX_ARCHIVE)
    members = members_of(source, "record.zip")
    stored = members.get(DOCUMENT_NAME)
    if stored is None or stored.member.nbytes > MAX_DOCUMENT:
        what = "holds no" if stored is None else "holds too large a"
        raise InputError("record.json", f"{what} {DOCUMENT_NAME}", path=path)
    data = _document(source, stored)
    record = _Checks(path, parse_object(data, _DOCUMENT, path, offset=stored.offset)).record()
    wanted = {DOCUMENT_NAME, *([CONVERSION_NAME] if record.options is None else [])}
    wanted |= {file.member(group) for file in record.files for group in file.stored}
    for name in sorted(members.keys() ^ wanted):
        what = "is missing" if name in wanted else "is listed nowhere"
        raise InputError("record.content", f"member {quoted(name)} {what}", path=path)
    for file in record.files:
        for group in file.stored:
            name = file.member(group)
            nbytes = members[name].member.nbytes
            if nbytes != group.nbytes:
                message = f"member {quoted(name)} has {nbytes:,} bytes, {group.nbytes:,} are listed"
                raise InputError("record.content", message, path=path, found=nbytes, allowed=group.nbytes)
    return OpenRecord(path, record, source, members)


def _document(source: FileSource, stored: Location) -> bytes:
    """Bytes of a whole member, its CRC-32 checked."""
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
        message = f"is no record of a {index.format}"
        raise InputError("record.foreign", message, path=path, hint=IGNORED)
    if opened.record.payload:
        check_belongs(opened, index)
    return opened


def check_belongs(opened: OpenRecord, index: TensorIndex) -> None:
    """The record was written with this bump file."""
    record = opened.record
    payload = index.checksums[0].stored if index.checksums else b""
    if record.payload != payload:
        message = (
            f"belongs to another bump file: to the payload {record.payload.hex()}, "
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


def is_side_file(name: str) -> bool:
    """Whether an untrusted record may create a file of this name.

    One may lie in a directory of a module of sentence-transformers, as its weights do.
    """
    folder, inside, last = name.rpartition("/")
    names = (*SIDE_FILES, f"*{INDEX_SUFFIX}", *((SINGLE_NAME, "pytorch_model.bin") if inside else ()))
    plain = plain_name(last) and (plain_name(folder) or not inside)
    return plain and any(fnmatchcase(last, pattern) for pattern in names)


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
            if not file.tensors and (format_of(format).single or not is_side_file(file.name)):
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
        if not (plain_name(name) or is_side_file(name)):
            raise self._fault(f"a file is called {quoted(name)}, which is not a plain file name", "record.files")
        if not 0 <= size < _MAX_SIZE:
            raise self._fault(f"{quoted(name)} is listed with {shown(size)} bytes", "record.files")
        stored = tuple(self._runs(entry) for entry in self._of(item, "kept", list))
        tensors = self._of(item, "tensors", bool)
        digested = tensors and (self._hashed or "sha256" in item)  # records of bump files have it since 0.4
        if tensors and not plain_name(name):
            raise self._fault(f"{quoted(name)} holds tensors in a directory", "record.files")
        file = SourceFile(name, size, tensors, stored, self._digest(item, "sha256") if digested else "")
        end = 0
        for offset, nbytes in file.runs:
            if offset < end or nbytes < 1 or nbytes > size - offset:
                run = f"the run of {shown(nbytes)} bytes at byte {shown(offset)}"
                message = f"{run} of {quoted(name)} overlaps another or is not in its {size:,} bytes"
                raise self._fault(message, "record.files")
            end = offset + nbytes
        if not file.tensors and (len(stored) != 1 or stored[0].runs != (((0, size),) if size else ())):
            raise self._fault(f"{quoted(name)} holds no tensors and is not kept whole", "record.files")
        return file

    def _runs(self, entry: Any) -> StoredRuns:
        runs = self._of(entry, "runs", list)
        for run in runs:
            if not isinstance(run, list) or [type(number) for number in run] != [int, int]:
                raise self._fault(f"a run is {shown(run)}; [offset, bytes] expected", "record.files")
        return StoredRuns(tuple((offset, nbytes) for offset, nbytes in runs), self._digest(entry, "sha256"))

    def _check_names(self, files: Sequence[SourceFile]) -> None:
        twice = [name for name, count in Counter(file.name for file in files).items() if count > 1]
        if twice:
            raise self._fault(f"{quoted(twice[0])} is listed twice", "record.files")
        both = {file.name.rpartition("/")[0] for file in files} & {file.name for file in files}
        if both:
            raise self._fault(f"{quoted(min(both))} is a file and a directory", "record.files")
        if not any(file.tensors for file in files):
            raise self._fault("no file holds tensors", "record.files")


# The headers that a source record keeps, read by the readers of their format: an index of files that are not there.

#: More than any header has: what is asked for beyond the stored runs is zeros, made one by one.
_LONGEST = 256 << 20


class PartialSource(ByteSource):
    """Bytes of a partly stored file; other runs read as zeros.

    Args:
        pieces: the runs, sorted, each with the offset where ``read`` finds its bytes.
        read: gives bytes (offset, number) of the file that keeps them.
    """

    size: int

    def __init__(
        self, path: Path, size: int, pieces: Sequence[tuple[Run, int]], read: Callable[[int, int], bytes]
    ) -> None:
        self.path, self.size = path, size
        self._pieces, self._read = pieces, read
        self._offsets = [offset for (offset, _), _ in pieces]

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ByteSource.read_at`."""
        end = offset + min(nbytes, self.size - offset, _LONGEST)
        parts = []
        for (at, length), stored_at in self._pieces[max(bisect_right(self._offsets, offset) - 1, 0) :]:
            if at >= end:
                break
            low, high = max(offset, at), min(end, at + length)
            if low < high:
                parts += [bytes(low - offset), self._read(stored_at + low - at, high - low)]
                offset = high
        parts.append(bytes(max(end - offset, 0)))
        return b"".join(parts)


def open_skeleton(opened: OpenRecord) -> TensorIndex:
    """Index of the source; extents are offsets in its files."""
    record = opened.record
    sources = {
        file.name: PartialSource(Path(file.name), file.size, opened.pieces(file), opened.read)
        for file in record.files
        if file.tensors or file.name == CONFIG_NAME
    }
    weights = [sources[file.name] for file in record.files if file.tensors]
    path = Path(record.source)
    try:
        place = format_of(record.format).of_headers
        assert place is not None  # the record was checked
        index: TensorIndex = load(place)(path, weights, sources.get(CONFIG_NAME))
        return index
    except (InputError, UnsupportedError) as error:  # and no signal, which is an error too
        where = f"{quoted(error.path)}: " if error.path else ""
        message = f"keeps files that are no source: {where}{error.message}"
        raise InputError("record.files", message, path=opened.path, details=error.details) from error


# -- Zip archive of stored members whose bytes follow from them --------------------------------------------------------
#
# Members are sorted by name and lie back to back from byte 0: nothing is compressed, there is no time (1980-01-01 is
# the earliest of the format), no comment and no extra field, and the directory follows the last member. Any unpacker
# opens it; :func:`members_of` takes nothing else, so an archive cannot mean one thing to it and another to an unpacker.
# Source of the structures: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7, 4.3.12 and 4.3.16.

#: Members of one archive, and bytes of it, that the format holds without its 64-bit extension.
MAX_MEMBERS = 0xFFFE
MAX_ARCHIVE = 0xFFFFFFFE

_LOCAL = Struct("<4sHHHHHIIIHH")
_CENTRAL = Struct("<4sHHHHHHIIIHHHHHII")
_END = Struct("<4sHHHHIIH")

#: 1.0 of the format is what stored members need; made on Unix, where the upper half of the attributes is a file's mode.
_NEEDED, _MADE_BY, _MODE = 10, 3 << 8 | 10, 0o100644 << 16
_DATE = 1 << 5 | 1
_UTF8 = 1 << 11


class ArchiveSource(Protocol):
    """Source of an archive: bytes at offsets, and a name."""

    @property
    def path(self) -> Path:
        """Path for messages."""

    @property
    def size(self) -> int | None:
        """Length in bytes."""

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """``nbytes`` bytes from ``offset`` on; fewer at the end."""


class Member(NamedTuple):
    """Member of an archive: ``nbytes`` bytes, and their CRC-32."""

    name: str
    crc: int
    nbytes: int


class Location(NamedTuple):
    """Where the bytes of a member are: ``offset`` is absolute."""

    offset: int
    member: Member


class Archive(NamedTuple):
    """The bytes of an archive that are not its members'.

    Attributes:
        members: in file order.
        headers: what stands before each member.
        directory: what stands behind the last one.
    """

    members: tuple[Member, ...]
    headers: tuple[bytes, ...]
    directory: bytes

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where the bytes of each member are."""
        found, at = [], 0
        for header, member in zip(self.headers, self.members, strict=True):
            found.append(at + len(header))
            at = found[-1] + member.nbytes
        return tuple(found)

    @property
    def nbytes(self) -> int:
        """Exact size."""
        members = sum(member.nbytes for member in self.members)
        return sum(map(len, self.headers)) + members + len(self.directory)


def fits(names: Iterable[str], nbytes: int) -> bool:
    """Whether members of these names and bytes fit one archive."""
    names = list(names)
    room = sum(_LOCAL.size + _CENTRAL.size + 2 * len(name.encode()) for name in names) + _END.size
    return len(names) <= MAX_MEMBERS and nbytes + room <= MAX_ARCHIVE


def archive(members: Iterable[Member]) -> Archive:
    """The archive of these members; their names are distinct."""
    ordered = tuple(sorted(members, key=lambda member: member.name))
    headers, central, at = [], [], 0
    for member in ordered:
        name = member.name.encode()
        flags = 0 if name.isascii() else _UTF8
        facts = (flags, 0, 0, _DATE, member.crc, member.nbytes, member.nbytes, len(name), 0)
        headers.append(_LOCAL.pack(b"PK\3\4", _NEEDED, *facts) + name)
        central.append(_CENTRAL.pack(b"PK\1\2", _MADE_BY, _NEEDED, *facts, 0, 0, 0, _MODE, at) + name)
        at += len(headers[-1]) + member.nbytes
    directory = b"".join(central)
    end = _END.pack(b"PK\5\6", 0, 0, len(ordered), len(ordered), len(directory), at, 0)
    return Archive(ordered, tuple(headers), directory + end)


def members_of(source: ArchiveSource, code: str) -> Mapping[str, Location]:
    """Members of an archive by name; their bytes are not read.

    Raises:
        InputError: ``code``: it is truncated, or is not of that form in any byte.
    """
    path, size = source.path, source.size or 0
    tail = source.read_at(size - _END.size, _END.size) if size >= _END.size else b""
    if tail[:4] != b"PK\5\6":
        message = f"{size:,} bytes do not end with the directory of a zip archive"
        raise InputError(code, message, path=path, hint="the copy looks incomplete")
    _, _, _, _, count, directory_bytes, at, _ = _END.unpack(tail)
    if at + directory_bytes + _END.size != size or count * _CENTRAL.size > directory_bytes:
        message = f"the directory of {directory_bytes:,} bytes at byte {at:,} does not lie at the end, byte {size:,}"
        raise InputError(code, message, path=path, offset=size - _END.size)
    members = _members(path, source.read_at(at, directory_bytes), count, code)
    made = archive(members)
    if [member.name for member in members] != [member.name for member in made.members]:
        raise InputError(code, "members are not sorted by name", path=path, offset=at)
    if made.nbytes != size or made.directory != source.read_at(at, size - at):
        raise InputError(code, "is not an archive as ckconv writes it", path=path, offset=at)
    for header, offset, member in zip(made.headers, made.offsets, made.members, strict=True):
        if source.read_at(offset - len(header), len(header)) != header:
            message = f"the header of member {quoted(member.name)} is not what its directory says"
            raise InputError(code, message, path=path, offset=offset - len(header))
    return {member.name: Location(offset, member) for offset, member in zip(made.offsets, made.members, strict=True)}


def _members(path: Path, directory: bytes, count: int, code: str) -> Sequence[Member]:
    members: list[Member] = []
    names: set[str] = set()
    at = 0
    for _ in range(count):
        fields = directory[at : at + _CENTRAL.size]
        if len(fields) < _CENTRAL.size or fields[:4] != b"PK\1\2":
            raise InputError(code, "the directory is not whole", path=path)
        crc, nbytes, _, length = _CENTRAL.unpack(fields)[7:11]
        raw = directory[at + _CENTRAL.size : at + _CENTRAL.size + length]
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            raise InputError(code, "the name of a member is not UTF-8", path=path) from None
        if name in names:
            raise InputError(code, f"member {quoted(name)} is there twice", path=path)
        names.add(name)
        members.append(Member(name, crc, nbytes))
        at += _CENTRAL.size + length
    if at != len(directory):
        raise InputError(code, f"the directory has {len(directory) - at:,} bytes that are no entry", path=path)
    return members
