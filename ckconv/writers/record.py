"""The bytes of a source record."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from ckconv.errors import OutputError
from ckconv.files import Files, extent_pieces
from ckconv.formats import zipstore
from ckconv.model.index import Extent
from ckconv.record import DOCUMENT_NAME, Record


@dataclass(frozen=True, slots=True)
class Content:
    """One member of the archive: bytes of source files, one after the other, their SHA-256 (hex) and CRC-32."""

    extents: tuple[Extent, ...]
    sha256: str
    crc: int

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(extent.nbytes for extent in self.extents)


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """A record of which everything is known but the digest of the bump that it belongs to.

    Attributes:
        record: with any digest.
        contents: the members besides ``record.json``, by name.
    """

    record: Record
    contents: Mapping[str, Content]

    @property
    def nbytes(self) -> int:
        """Exact size of the file."""
        return self._archive(self.record.to_json()).nbytes

    def chunks(self, payload: bytes) -> Iterator[bytes]:
        """The file in pieces, once the SHA-256 of the bump's payload is known.

        Raises:
            OutputError: ``input.changed``, a source file is not what it was.
        """
        document = replace(self.record, payload=payload).to_json()
        archive = self._archive(document)
        with Files() as files:
            for header, member in zip(archive.headers, archive.members, strict=True):
                yield header
                if member.name == DOCUMENT_NAME:
                    yield document
                else:
                    yield from _again(self.contents[member.name], files)
        yield archive.directory

    def _archive(self, document: bytes) -> zipstore.Archive:
        members = [zipstore.Member(name, c.crc, c.nbytes) for name, c in self.contents.items()]
        return zipstore.archive([*members, zipstore.Member(DOCUMENT_NAME, zlib.crc32(document), len(document))])


def content_of(extents: Sequence[Extent], files: Files) -> Content:
    """Read the bytes once, for their digests."""
    digest, crc = sha256(), 0
    for data in _read(extents, files):
        digest.update(data)
        crc = zlib.crc32(data, crc)
    return Content(tuple(extents), digest.hexdigest(), crc)


def _again(content: Content, files: Files) -> Iterator[bytes]:
    crc = 0
    for data in _read(content.extents, files):
        crc = zlib.crc32(data, crc)
        yield data
    if crc != content.crc:
        message = "the file changed while it was being read"
        raise OutputError("input.changed", message, path=content.extents[0].path)


def _read(extents: Sequence[Extent], files: Files) -> Iterator[bytes]:
    for extent in extents:
        for path, at, nbytes in extent_pieces(extent):
            buffer = bytearray(nbytes)
            files.read_into(path, at, buffer)
            yield bytes(buffer)
