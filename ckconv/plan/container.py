"""The bytes that a format adds around the tensors: headers, entries and side files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # it imports hashlib, which takes longer to load than a plan to make
    from ckconv.publish.files import SideFile


class Frame(NamedTuple):
    """The bytes of one output file that are not tensors.

    Attributes:
        prologue: bytes between the header and the first tensor.
        header_bytes: size of the header, which is written last; the digest starts after it.
        header: makes the header from the digest of prologue and tensors; ``None`` for a format without one.
        epilogue: bytes after the last tensor, outside the digest.
    """

    prologue: bytes
    header_bytes: int = 0
    header: Callable[[bytes], bytes] | None = None
    epilogue: bytes = b""


class Container(NamedTuple):
    """Everything in an output except its tensors.

    Attributes:
        frames: one for each file of the plan, in the plan's order.
        side_files: name -> content of each file beside the model; a name may lie in a directory (``1_Pooling/x``).
        on_request: names of side files that are written only if a flag asks for them.
        keys: header fields and metadata by name, for comparison by value.
        inside: name for people -> content of each document embedded in the files.
        notes: lines for the report that are known only when the bytes are made.
        check: raises if the format's reference reader does not open a file that was written.
    """

    frames: tuple[Frame, ...]
    side_files: Mapping[str, SideFile] = {}
    on_request: frozenset[str] = frozenset()
    keys: Mapping[str, Any] = {}
    inside: Mapping[str, bytes] = {}
    notes: tuple[str, ...] = ()
    check: Callable[[Path], None] = lambda _: None


class Along(NamedTuple):
    """Patterns of file names that loaders look for in the directory of an output.

    Attributes:
        weights: files of tensors and their indexes; a conversion refuses to write beside one.
        documents: files that describe weights, perhaps in a subdirectory; ``--force`` removes them.
    """

    weights: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()


class Written(NamedTuple):
    """One file of an output.

    Attributes:
        sha256: digest of the whole file, as hex.
        payload_sha256: digest that the file's header stores, as hex; empty for a format without one.
    """

    path: Path
    nbytes: int
    sha256: str
    payload_sha256: str = ""


class Late(NamedTuple):
    """A file beside the model whose content depends on the files written before it.

    Attributes:
        nbytes: returns its size, given the earlier files (their digests are still zeros).
        content: returns its bytes, given the earlier files: tensors, then side files, then late files.
        names_digests: whether its content lists digests of whole files.
    """

    path: Path
    nbytes: Callable[[Sequence[Written]], int]
    content: Callable[[Sequence[Written]], Iterable[bytes]]
    names_digests: bool = True
