"""The file that ``sha256sum -c`` reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ckconv.engine.settle import Late, Written
from ckconv.errors import UsageError
from ckconv.formats.destination import Destination

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
    return (_line(file.sha256, _beside(file.path, parent)) for file in files)


def _beside(path: Path, parent: Path) -> str:
    """A side file may have been sent to another directory."""
    return path.name if path.parent == parent else os.path.relpath(path.absolute(), parent.absolute())


def _line(digest: str, name: str) -> bytes:
    r"""As sha256sum prints it: a backslash or a line feed in a name is escaped, and the line then begins with one."""
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    mark = "\\" if escaped != name else ""
    return f"{mark}{digest}  {escaped}\n".encode("utf-8", "surrogateescape")
