"""The reference parser of safetensors, asked whether it opens a file that ckconv has written.

What it costs: it parses the header only, 1 ms for a usual one; 1.3 s and 275 MB for one of 32 MB (280,000 tensors).
"""

from __future__ import annotations

from pathlib import Path

from ckconv.errors import VerifyError
from ckconv.formats.safetensors.spec import LENGTH_BYTES

#: Bytes of a header that it is asked about: it takes nine times as much memory.
_MAX_HEADER = 16 << 20


def check_opens(path: Path) -> None:
    """Open a file as every program does that loads it with the ``safetensors`` package.

    Where that is not installed, the system cannot map the file or its header lists very much, nothing is said.

    Raises:
        VerifyError: ``verify.file``, the parser refuses the header.
    """
    try:
        from safetensors import SafetensorError, __version__, safe_open
    except ImportError:
        return
    try:
        with path.open("rb") as file:
            if int.from_bytes(file.read(LENGTH_BYTES), "little") > _MAX_HEADER:
                return
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        message = f"safetensors {__version__} does not open it: {error}"
        hint = "a newer release of the safetensors package may know what this one does not"
        raise VerifyError("verify.file", message, path=path, hint=hint) from error
    except (OSError, MemoryError):
        return
