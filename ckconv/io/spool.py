"""Standard input as a temporary file.

A pipe is read once, and a model in any order and more than once.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from ckconv.errors import ADDRESSES, InputError, OutputError, UsageError
from ckconv.publish.files import write_code
from ckconv.signals import blocking, check

#: Bytes that are read at once.
_CHUNK = 1 << 20

STDIN = 0


@cache
def spooled() -> tuple[Path, int]:
    """A temporary file of standard input, removed at exit, and its size.

    Raises:
        InputError: ``input.unreadable``; ``input.empty``.
        OutputError: ``output.write`` or ``output.space``, there is no place for temporary files, or not enough.
        UsageError: ``usage``, standard input is a terminal.
    """
    root = Path(tempfile.mkdtemp(prefix="ckconv-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    path, nbytes = root / "model", 0
    ADDRESSES[str(path)] = "stdin"
    if os.isatty(STDIN):
        raise UsageError("usage", "- reads a model from a pipe, and standard input is a terminal")
    try:
        with open(path, "xb") as file:
            while True:
                check()
                with blocking():
                    data = _read()
                if not data:
                    break
                file.write(data)
                nbytes += len(data)
    except OSError as error:
        message = f"the model on standard input has no place in {root.parent}: {error.strerror}"
        hint = "TMPDIR names another place for temporary files"
        raise OutputError(write_code(error), message, hint=hint) from error
    if not nbytes:
        raise InputError("input.empty", "nothing came through the pipe", path=path)
    return path, nbytes


def _read() -> bytes:
    try:
        return os.read(STDIN, _CHUNK)
    except OSError as error:
        raise InputError("input.unreadable", f"standard input cannot be read: {error.strerror}") from error
