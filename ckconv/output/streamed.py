"""Side files: bytes that are held, or text that is too large for that and is made again each time it is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ckconv.system import read_at

#: Bytes of a text that is held once it is made. Making a tokenizer of 150,000 words takes as long as reading 1 GB.
HELD = 16 << 20

#: Bytes that are compared at a time.
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Streamed:
    """A text that is made when it is written, and held nowhere.

    Attributes:
        nbytes: of all of it.
        sha256: of all of it, as hex.
        pieces: makes it, the same each time.
    """

    nbytes: int
    sha256: str
    pieces: Callable[[], Iterator[bytes]]

    def __len__(self) -> int:
        return self.nbytes


#: What a side file holds.
SideFile = bytes | Streamed


def side_file(pieces: Callable[[], Iterator[bytes]]) -> SideFile:
    """What makes these pieces: made once now, and only once if it is small enough to be held.

    Args:
        pieces: makes them, the same each time. What it raises is raised.
    """
    held: list[bytes] = []
    from hashlib import sha256

    nbytes, digest = 0, sha256()
    for piece in pieces():
        nbytes += len(piece)
        digest.update(piece)
        if nbytes <= HELD:
            held.append(piece)
        else:
            held.clear()
    return b"".join(held) if nbytes <= HELD else Streamed(nbytes, digest.hexdigest(), pieces)


def pieces_of(content: SideFile) -> Iterator[bytes]:
    """All of it."""
    return iter([content]) if isinstance(content, bytes) else content.pieces()


def digest_of(content: SideFile) -> str:
    """Its SHA-256, as hex."""
    from hashlib import sha256

    return sha256(content).hexdigest() if isinstance(content, bytes) else content.sha256


def is_in(fd: int, content: SideFile) -> bool:
    """The file holds this and nothing else.

    Raises:
        OSError: it cannot be read.
    """
    if os.fstat(fd).st_size != len(content):
        return False
    from hashlib import sha256

    at, digest = 0, sha256()
    while data := read_at(fd, _CHUNK, at):
        if isinstance(content, bytes):
            if data != content[at : at + len(data)]:
                return False
        else:
            digest.update(data)
        at += len(data)
    return at == len(content) and (isinstance(content, bytes) or digest.hexdigest() == content.sha256)
