"""What a format adds around the tensors, as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # it imports hashlib, which takes longer to load than a plan to make
    from ckconv.publish.files import SideFile


class Frame(NamedTuple):
    """The bytes of one output file that are not tensors.

    Attributes:
        prologue: what stands before the first tensor, after the header.
        header_bytes: bytes at the start that are only known at the end; the digest starts after them.
        header: makes them out of the digest of prologue and tensors; ``None`` where there are none.
        epilogue: what stands behind the last tensor, outside the digest.
    """

    prologue: bytes
    header_bytes: int = 0
    header: Callable[[bytes], bytes] | None = None
    epilogue: bytes = b""


class Container(NamedTuple):
    """Everything in an output but its tensors.

    Attributes:
        frames: one for each file of the plan, in the plan's order.
        side_files: name -> content of what is published beside the model; a name, or one in a directory there.
        on_request: names of side files that are only written where they are asked for.
        keys: what the files say besides, header fields and metadata, by name; two values that are equal say the same.
        inside: documents within the files, by what a person is told they are.
        notes: facts worth a line in the report that only show when the bytes are made.
        check: raises if a program that is not ours does not open a file that was written.
    """

    frames: tuple[Frame, ...]
    side_files: Mapping[str, SideFile] = {}
    on_request: frozenset[str] = frozenset()
    keys: Mapping[str, Any] = {}
    inside: Mapping[str, bytes] = {}
    notes: tuple[str, ...] = ()
    check: Callable[[Path], None] = lambda _: None


class Along(NamedTuple):
    """Patterns of names that loaders look for in the directory of an output, whatever it was that left such a file.

    Attributes:
        weights: files of tensors, and what names those: nothing is written beside one.
        documents: what describes weights, perhaps in a directory inside; with ``--force`` they go.
    """

    weights: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()


class Written(NamedTuple):
    """One file of an output.

    Attributes:
        sha256: of the whole file, as hex.
        payload_sha256: of the part whose digest its own header stores; empty where there is none.
    """

    path: Path
    nbytes: int
    sha256: str
    payload_sha256: str = ""


class Late(NamedTuple):
    """A file beside the model whose content is known when all files before it are written.

    Attributes:
        nbytes: its size, told the files before it, whose digests are not known yet.
        content: its bytes, told the same files: those of tensors, side files, and late ones, in this order.
        names_digests: of whole files, also of those whose headers hold one.
    """

    path: Path
    nbytes: Callable[[Sequence[Written]], int]
    content: Callable[[Sequence[Written]], Iterable[bytes]]
    names_digests: bool = True


def nothing() -> Container:
    """What stands around no files."""
    return Container(())
