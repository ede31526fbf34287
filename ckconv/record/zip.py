"""Zip archive of stored members whose bytes follow from them.

Members are sorted by name and lie back to back from byte 0: nothing is compressed, no time is kept (1980-01-01 is the
earliest that the format knows), no comment, no extra field, and the directory follows the last member. Any unpacker
opens it; :func:`read` takes nothing else, so an archive cannot mean one thing to it and another to an unpacker.
Source of the structures: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7, 4.3.12 and 4.3.16.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Protocol

from ckconv.core.late import NamedTuple
from ckconv.errors import InputError, quoted

#: Members of one archive, and bytes of it, that the format holds without its 64-bit extension.
MAX_MEMBERS = 0xFFFE
MAX_BYTES = 0xFFFFFFFE

_LOCAL = Struct("<4sHHHHHIIIHH")
_CENTRAL = Struct("<4sHHHHHHIIIHHHHHII")
_END = Struct("<4sHHHHIIH")

#: 1.0 of the format is what stored members need; made on Unix, where the upper half of the attributes is a file's mode.
_NEEDED, _MADE_BY, _MODE = 10, 3 << 8 | 10, 0o100644 << 16
_DATE = 1 << 5 | 1
_UTF8 = 1 << 11


class Readable(Protocol):
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
    """One member: ``nbytes`` bytes with this CRC-32."""

    name: str
    crc: int
    nbytes: int


class Stored(NamedTuple):
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
    return len(names) <= MAX_MEMBERS and nbytes + room <= MAX_BYTES


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


def read(source: Readable, code: str) -> Mapping[str, Stored]:
    """Members of an archive by name; their bytes are not read.

    Raises:
        InputError: ``code``: it is truncated, or is not of that form in any byte.
    """
    path, size = source.path, source.size or 0
    tail = source.read_at(size - _END.size, _END.size) if size >= _END.size else b""
    if tail[:4] != b"PK\5\6":
        message = f"its {size:,} bytes do not end with the directory of a zip archive"
        raise InputError(code, message, path=path, hint="the copy looks incomplete")
    _, _, _, _, count, directory_bytes, at, _ = _END.unpack(tail)
    if at + directory_bytes + _END.size != size or count * _CENTRAL.size > directory_bytes:
        message = f"its directory of {directory_bytes:,} bytes at byte {at:,} does not lie at its end, byte {size:,}"
        raise InputError(code, message, path=path, offset=size - _END.size)
    members = _members(path, source.read_at(at, directory_bytes), count, code)
    made = archive(members)
    if [member.name for member in members] != [member.name for member in made.members]:
        raise InputError(code, "its members are not sorted by name", path=path, offset=at)
    if made.nbytes != size or made.directory != source.read_at(at, size - at):
        raise InputError(code, "it is not an archive as ckconv writes it", path=path, offset=at)
    for header, offset, member in zip(made.headers, made.offsets, made.members, strict=True):
        if source.read_at(offset - len(header), len(header)) != header:
            message = f"the header of its member {quoted(member.name)} is not what its directory says"
            raise InputError(code, message, path=path, offset=offset - len(header))
    return {member.name: Stored(offset, member) for offset, member in zip(made.offsets, made.members, strict=True)}


def _members(path: Path, directory: bytes, count: int, code: str) -> Sequence[Member]:
    members: list[Member] = []
    names: set[str] = set()
    at = 0
    for _ in range(count):
        fields = directory[at : at + _CENTRAL.size]
        if len(fields) < _CENTRAL.size or fields[:4] != b"PK\1\2":
            raise InputError(code, "its directory is not whole", path=path)
        crc, nbytes, _, length = _CENTRAL.unpack(fields)[7:11]
        raw = directory[at + _CENTRAL.size : at + _CENTRAL.size + length]
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            raise InputError(code, "the name of a member is not UTF-8", path=path) from None
        if name in names:
            raise InputError(code, f"its member {quoted(name)} is there twice", path=path)
        names.add(name)
        members.append(Member(name, crc, nbytes))
        at += _CENTRAL.size + length
    if at != len(directory):
        raise InputError(code, f"its directory holds {len(directory) - at:,} bytes that are not an entry", path=path)
    return members
