"""The file that ``sha256sum -c`` reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ckconv.destination import Destination
from ckconv.errors import UsageError
from ckconv.execute import Late, Written
from ckconv.output import Outputs
from ckconv.plan.steps import Plan
from ckconv.reread import FileHash

#: What the file is called in a directory.
_IN_DIRECTORY = "SHA256SUMS"


def checksum_file(plan: Plan, target: Destination) -> Late:
    """``DST.sha256``, or ``SHA256SUMS`` in a directory: a line for every model file, named as it lies beside them.

    Raises:
        UsageError: ``usage.side-file``, standard output has no place beside it.
    """
    if target.parent is None:
        raise UsageError(
            "usage.side-file", "--checksums writes a file beside the model, and stdout has no place for it"
        )
    name = _IN_DIRECTORY if target.directory else f"{target.file_name}.sha256"
    nbytes = sum(len(_line("0" * 64, file.name)) for file in plan.files)
    return Late(target.parent / name, nbytes, _content)


def _content(files: Sequence[Written], outputs: Outputs) -> Iterator[bytes]:
    return (_line(_digest(outputs.fds[file.path]), file.path.name) for file in files)


def _digest(fd: int) -> str:
    """The digest of a whole file: its own header may hold another, of a part of it."""
    whole = FileHash(fd, 0)
    whole.read_to(os.fstat(fd).st_size)
    return whole.digest.hex()


def _line(digest: str, name: str) -> bytes:
    r"""As sha256sum prints it: a backslash or a line feed in a name is escaped, and the line then begins with one."""
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    mark = "\\" if escaped != name else ""
    return f"{mark}{digest}  {escaped}\n".encode("utf-8", "surrogateescape")
