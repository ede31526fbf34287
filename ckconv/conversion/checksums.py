"""Lists of checksums beside a model, as sha256sum writes and reads them: ``NAME.sha256`` and ``SHA256SUMS``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, UsageError, VerifyError, listed, quoted
from ckconv.formats.destination import Destination
from ckconv.io.digests import sha256_of
from ckconv.io.files import open_source, readable
from ckconv.plan.steps import Late, Written
from ckconv.publish.files import opened_regular, there
from ckconv.record.schema import named_after

#: What the file is called in a directory, and what is added to the name of a model that is a file.
IN_DIRECTORY = "SHA256SUMS"
SUFFIX = ".sha256"


def checksum_file(target: Destination) -> Late:
    """``DST.sha256``, or ``SHA256SUMS`` in a directory: a line for every other file, named as it lies beside it.

    Raises:
        UsageError: ``usage.side-file``, standard output has no place beside it.
    """
    if target.parent is None:
        raise UsageError(
            "usage.side-file", "--checksums writes a file beside the model, and stdout has no place for it"
        )
    parent = target.parent
    name = IN_DIRECTORY if target.directory else f"{target.file_name}{SUFFIX}"
    return Late(
        parent / name,
        lambda files: sum(map(len, _lines(files, parent))),
        lambda files: _lines(files, parent),
    )


def _lines(files: Sequence[Written], parent: Path) -> Iterator[bytes]:
    return (_line(file.sha256, seen_from(file.path, parent)) for file in files)


def seen_from(path: Path, parent: Path) -> str:
    """Return a file's path from the output's directory ``parent``; a side file may lie elsewhere."""
    return path.name if path.parent == parent else os.path.relpath(path.absolute(), parent.absolute())


def _line(digest: str, name: str) -> bytes:
    r"""As sha256sum prints it: a backslash or a line feed in a name is escaped, and the line then begins with one."""
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    mark = "\\" if escaped != name else ""
    return f"{mark}{digest}  {escaped}\n".encode("utf-8", "surrogateescape")


CODE = "verify.checksum"

#: Bytes of a list of checksums.
_LIMIT = 16 << 20

_LINE = re.compile(r"(\\?)([0-9a-fA-F]{64}) [ *](.+)")
_BSD = re.compile(r"SHA256 \((.+)\) = ([0-9a-fA-F]{64})")
_ALONE = re.compile(r"([0-9a-fA-F]{64})")
_ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}


class FileDigests:
    """SHA-256 of files, each computed once."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}

    def of(self, path: Path) -> str:
        """Of a whole file, as hex.

        Raises:
            InputError: it is not a regular file, or cannot be read.
            OutputError: ``system``.
        """
        if path not in self._known:
            with readable(path), opened_regular(path) as fd:
                self._known[path] = sha256_of(fd)
        return self._known[path]


def check_sums(index: TensorIndex, opened: Path, digests: FileDigests) -> Path | None:
    """Hold every file that a list of checksums beside the model names against it.

    Args:
        opened: what the user named.

    Returns:
        the list, of which every line is read; ``None`` where there is none.

    Raises:
        VerifyError: ``verify.checksum``, naming every file that has another digest or is missing.
        InputError: ``checksum.line``, a line is none; the list cannot be read.
    """
    found = None
    for path in (*named_after(index, opened, SUFFIX), index.files[0].parent / IN_DIRECTORY):
        pairs = list(_pairs(path)) if there(path) else []
        if not pairs:
            continue
        if faults := check_listed(path, pairs, digests):
            raise VerifyError(CODE, faults[0], path=path, details=listed(faults[1:]))
        found = path
    return found


def names_in(path: Path) -> list[str]:
    """What a list of checksums names.

    Raises:
        InputError: ``checksum.line``, a line is none; the list cannot be read.
    """
    return [name for name, _ in _pairs(path)]


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    """(name, digest) of every line."""
    with open_source(path) as source:
        size = source.size or 0
        if size > _LIMIT:
            message = f"has {size:,} bytes; a list of checksums has at most {_LIMIT:,}"
            raise InputError("checksum.line", message, path=path, found=size, allowed=_LIMIT)
        text = source.read_at(0, size).decode("utf-8", "surrogateescape")
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line or line.startswith("#"):
            continue
        if found := _LINE.fullmatch(line):
            name = re.sub(r"\\[\\nr]", lambda m: _ESCAPES[m[0]], found[3]) if found[1] else found[3]
            yield name, found[2].lower()
        elif found := _BSD.fullmatch(line):
            yield found[1], found[2].lower()
        elif found := _ALONE.fullmatch(line):
            yield path.name.removesuffix(SUFFIX), found[1].lower()
        else:
            message = f"line {number:,} is {quoted(line, 60)}, a SHA-256 and a file name expected"
            raise InputError("checksum.line", message, path=path)


def _fault(path: Path, digest: str, digests: FileDigests) -> str:
    if not there(path):
        return f"{path.name} is listed and missing"
    computed = digests.of(path)
    return "" if computed == digest else f"the SHA-256 of {path.name} is {computed}, {digest} is listed"


def check_listed(path: Path, pairs: Sequence[tuple[str, str]], digests: FileDigests) -> list[str]:
    """What is wrong with files that a document beside them lists with their digests."""
    return [text for name, digest in pairs if (text := _fault(path.parent / name, digest, digests))]
