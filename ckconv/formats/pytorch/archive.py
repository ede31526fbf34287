"""Find the pickle of a ``torch.save`` file, and the storages it names.

A zip archive of stored members since torch 1.6::

    NAME/data.pkl    the state dict
    NAME/byteorder   "little"; missing in files of old versions
    NAME/data/KEY    the values of a storage

Before, one pickle after the other: a magic number, a protocol version, the sizes of the machine, the state dict, the
list of its storages' keys; then each storage, a count of elements as i64 in front of its values.
Sources: ``torch/serialization.py``; PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7, 4.3.12, 4.3.14 to 4.3.16 and 4.5.3.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Container, Iterable, Mapping
from struct import Struct
from typing import Any, NamedTuple

from ckconv.core.tensors import Extent
from ckconv.formats.pytorch.spec import LEGACY_MAGIC, LEGACY_PROTOCOL, MAX_DIRECTORY, MAX_PICKLE
from ckconv.formats.pytorch.unpickle import Malformed, Record, Unpickled, View, unpickle
from ckconv.io.files import ByteSource

_LOCAL = Struct("<4s2xHH16xHH")
_CENTRAL = Struct("<4s4xHH8xIIHHH8xI")
_END = Struct("<4s4x2xHIIH")
_LOCATOR, _END64 = Struct("<4s4xQ4x"), Struct("<4s28xQQQ")
#: A field of 32 bits that the 64-bit extension holds.
_WIDE = 0xFFFFFFFF
_EXTENSION = 1
_ENCRYPTED = 1
#: Bytes of a comment behind the end record.
_MAX_COMMENT = 0xFFFF
#: Bytes of a file of pickles that are read at first.
_FIRST = 1 << 20


class Saved(NamedTuple):
    """Pickled state, and the bytes of each storage by key."""

    value: Any
    storages: Mapping[str, Extent]


class Member(NamedTuple):
    """Entry of a zip archive's directory.

    Attributes:
        end: where the next member, or the directory, begins.
    """

    offset: int
    nbytes: int
    method: int
    flags: int
    end: int = 0


def read_saved(source: ByteSource, records: Container[tuple[str, str]] = ()) -> Saved:
    """Read a file that begins as one of the two kinds do.

    Args:
        records: see :func:`ckconv.formats.pytorch.unpickle.unpickle`.

    Raises:
        Malformed: it is neither.
    """
    try:
        return (_archive if source.read_at(0, 2) == b"PK" else _legacy)(source, records)
    except (EOFError, struct.error):
        raise Malformed("ends early; the download looks incomplete") from None


def _archive(source: ByteSource, records: Container[tuple[str, str]]) -> Saved:
    members = members_of(source)
    if any(name.partition("/")[2].startswith("code/") for name in members):
        raise Malformed(
            "is a TorchScript program: torch.jit.load reads it; save the state_dict() of what it was made of"
        )
    pickles = [name for name in members if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise Malformed("is a zip archive that torch.save did not write (it has no data.pkl)")
    stem = pickles[0].removesuffix("data.pkl")
    order = members.get(f"{stem}byteorder")
    if order is not None and _read(source, order, 16) != b"little":
        raise Malformed("was saved on a machine with the other order of bytes")
    value = unpickle(_read(source, members[pickles[0]], MAX_PICKLE), records).value
    prefix = f"{stem}data/"
    held = {name.removeprefix(prefix): member for name, member in members.items() if name.startswith(prefix)}
    named = {view.storage.key for view in _views(value)}
    return Saved(value, {key: member_extent(source, held[key]) for key in held.keys() & named})


def _views(value: Any) -> list[View]:
    """All tensors, however deep they lie."""
    found, seen, left = [], set[int](), [value]
    while left:
        item = left.pop()
        if isinstance(item, View):
            found.append(item)
        elif isinstance(item, (dict, list, tuple, Record)) and id(item) not in seen:
            seen.add(id(item))
            left += item.values() if isinstance(item, dict) else _held(item)
    return found


def _held(item: Any) -> Iterable[Any]:
    return (item.made_of, item.state) if isinstance(item, Record) else item


def _read(source: ByteSource, member: Member, limit: int) -> bytes:
    if member.nbytes > limit:
        raise Malformed(f"has a pickle of {member.nbytes:,} bytes; {limit:,} are allowed")
    extent = member_extent(source, member)
    return source.read_whole(extent.offset, extent.nbytes)


def member_extent(source: ByteSource, member: Member) -> Extent:
    """The bytes of a member, which lie behind a header of their own."""
    if member.method or member.flags & _ENCRYPTED:
        raise Malformed("has compressed or encrypted members: save it without")
    head = (
        source.read_at(member.offset, _LOCAL.size) if member.offset + _LOCAL.size <= member.end else bytes(_LOCAL.size)
    )
    magic, flags, method, name, extra = _LOCAL.unpack(head)
    start = member.offset + _LOCAL.size + name + extra
    if magic != b"PK\3\4" or method != member.method or flags & _ENCRYPTED or start + member.nbytes > member.end:
        raise Malformed(f"has a member at byte {member.offset:,} that is not what its directory says")
    return Extent(source.path, start, member.nbytes)


def members_of(source: ByteSource) -> dict[str, Member]:
    """The directory of a zip archive: name -> member.

    Raises:
        Malformed: it is none.
        EOFError: it has no end.
    """
    size = source.size or 0
    tail_at = max(0, size - _END.size - _MAX_COMMENT)
    tail = source.read_at(tail_at, size - tail_at)
    at = tail.rfind(b"PK\5\6")
    if at < 0:
        raise EOFError
    _, count, nbytes, offset, _ = _END.unpack_from(tail, at)
    if at >= _LOCATOR.size and tail[at - _LOCATOR.size :].startswith(b"PK\6\7"):
        _, end64 = _LOCATOR.unpack_from(tail, at - _LOCATOR.size)
        magic, count, nbytes, offset = _END64.unpack(source.read_at(end64, _END64.size))
        if magic != b"PK\6\6":
            raise Malformed("has a zip directory whose end record is not where it says")
    if nbytes > MAX_DIRECTORY or offset + nbytes > size:
        raise Malformed(f"has a zip directory of {nbytes:,} bytes at byte {offset:,}, the file {size:,} bytes")
    directory = source.read_whole(offset, nbytes)
    found: dict[str, Member] = {}
    at = 0
    for _ in range(count):
        magic, flags, method, stored, plain, name_bytes, extra, comment, local = _CENTRAL.unpack_from(directory, at)
        start = at + _CENTRAL.size
        at = start + name_bytes + extra + comment
        if magic != b"PK\1\2" or at > nbytes:
            raise Malformed("has a zip directory that is not sound")
        name = directory[start : start + name_bytes].decode("utf-8", "replace")
        wide = _wide(directory[start + name_bytes : start + name_bytes + extra])
        plain, stored, local = (next(wide) if number == _WIDE else number for number in (plain, stored, local))
        if name in found or (plain != stored and not method):
            raise Malformed(f"has a zip directory with {name!r} twice, or of two sizes")
        found[name] = Member(local, plain, method, flags)
    places = sorted({member.offset for member in found.values()} | {offset})
    if len(places) <= len(found) or places[-1] != offset:
        raise Malformed("has a zip directory whose members lie over each other")
    ends = dict(itertools.pairwise(places))
    return {name: member._replace(end=ends[member.offset]) for name, member in found.items()}


def _wide(extra: bytes) -> Any:
    """Numbers of the 64-bit extension: size, stored size, offset."""
    at = 0
    while at + 4 <= len(extra):
        kind, nbytes = int.from_bytes(extra[at : at + 2], "little"), int.from_bytes(extra[at + 2 : at + 4], "little")
        if kind == _EXTENSION:
            body = extra[at + 4 : at + 4 + nbytes]
            for start in range(0, len(body) - 7, 8):
                yield int.from_bytes(body[start : start + 8], "little")
        at += 4 + nbytes
    raise Malformed("has a zip directory that is not sound")


def _legacy(source: ByteSource, records: Container[tuple[str, str]]) -> Saved:
    """One pickle after the other, then the storages."""
    at = 0
    values = []
    for _ in range(5):
        found = _unpickled(source, at, records)
        values.append(found.value)
        at += found.nbytes
        if values[0] != LEGACY_MAGIC:
            raise Malformed("is a pickle that torch.save did not write")
    _, protocol, machine, value, keys = values
    if protocol != LEGACY_PROTOCOL or not isinstance(machine, dict) or not isinstance(keys, list):
        raise Malformed("is a pickle of another protocol than torch.save's")
    if machine.get("little_endian") is not True:
        raise Malformed("was saved on a machine with the other order of bytes")
    sizes = {view.storage.key: view.storage for view in _views(value)}
    extents: dict[str, Extent] = {}
    for key in keys:
        storage = sizes.get(key) if isinstance(key, str) else None
        elements = int.from_bytes(source.read_at(at, 8), "little", signed=True)
        if storage is None or storage.dtype is None or elements != storage.elements:
            raise Malformed(f"has a storage at byte {at:,} that its pickle does not describe")
        extents[key] = Extent(source.path, at + 8, storage.dtype.nbytes(elements))
        at += 8 + extents[key].nbytes
    if at > (source.size or 0):
        raise EOFError
    return Saved(value, extents)


def _unpickled(source: ByteSource, at: int, records: Container[tuple[str, str]]) -> Unpickled:
    """Read the pickle at a byte; its length is not known before."""
    nbytes, left = _FIRST, (source.size or 0) - at
    while True:
        try:
            return unpickle(source.read_at(at, min(nbytes, left)), records)
        except EOFError:
            if nbytes >= left:
                raise
            if nbytes >= MAX_PICKLE:
                raise Malformed(f"has a pickle of more than {MAX_PICKLE:,} bytes") from None
        nbytes *= 8
