"""The bytes of a source record."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import NamedTuple

from ckconv.core.tensors import Extent
from ckconv.errors import OutputError
from ckconv.io.digests import Digests
from ckconv.io.files import Files, extent_pieces
from ckconv.record import zip as zipstore
from ckconv.record.schema import CONVERSION_NAME, DOCUMENT_NAME, Record, SourceFile


class Content(NamedTuple):
    """One member of the archive: bytes of source files, one after the other, their SHA-256 (hex) and CRC-32."""

    extents: tuple[Extent, ...]
    sha256: str
    crc: int

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(extent.nbytes for extent in self.extents)


class PendingRecord(NamedTuple):
    """A record of which everything is known but the digest of the bump that it belongs to.

    Attributes:
        record: with any digest.
        contents: the members that hold bytes of the source, by name.
        hashed: file of the source -> all of it, of those that are read once more for their digests.
        digests: what reads them.
    """

    record: Record
    contents: Mapping[str, Content]
    hashed: Mapping[str, Extent] = {}
    digests: Digests = Digests(())

    @property
    def nbytes(self) -> int:
        """Exact size of the file without a conversion record."""
        return self.size(None)

    def size(self, conversion: bytes | None) -> int:
        """Exact size of the file, with this conversion record if there is one."""
        return self._archive(self._documents(self.record, conversion)).nbytes

    def chunks(self, payload: bytes, conversion: bytes | None) -> Iterator[bytes]:
        """The file in pieces, once the SHA-256 of the bump's payload is known; empty where no header holds one.

        Args:
            conversion: the conversion record that is a member of it.

        Raises:
            OutputError: ``input.changed``, a source file is not what it was.
        """
        with Files() as files:
            documents = self._documents(self.record._replace(payload=payload, files=self._files()), conversion)
            archive = self._archive(documents)
            for header, member in zip(archive.headers, archive.members, strict=True):
                yield header
                if member.name in documents:
                    yield documents[member.name]
                else:
                    yield from _again(self.contents[member.name], files)
        yield archive.directory

    @contextmanager
    def hashing(self) -> Iterator[None]:
        """Within the block, files of the source are hashed beside other work."""
        with self.digests:
            self.digests.begin()
            yield

    def _files(self) -> tuple[SourceFile, ...]:
        """With their digests."""
        found = self.digests.all()
        return tuple(
            file._replace(sha256=found[self.hashed[file.name]].hex()) if file.name in self.hashed else file
            for file in self.record.files
        )

    def _documents(self, record: Record, conversion: bytes | None) -> dict[str, bytes]:
        """The members that are no bytes of the source."""
        if conversion is None:
            return {DOCUMENT_NAME: record.to_json()}
        return {DOCUMENT_NAME: record._replace(options=None).to_json(), CONVERSION_NAME: conversion}

    def _archive(self, documents: Mapping[str, bytes]) -> zipstore.Archive:
        members = [zipstore.Member(name, c.crc, c.nbytes) for name, c in self.contents.items()]
        members += [zipstore.Member(name, zlib.crc32(data), len(data)) for name, data in documents.items()]
        return zipstore.archive(members)


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
