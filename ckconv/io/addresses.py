"""What people call a file that another one stands in for."""

from __future__ import annotations

import os
import re

#: An address, of which :class:`~pathlib.Path` may have made one slash of two; who asks, and what proves it, is nobody's
#: business: ``USER:PASSWORD@``, ``?signature=...``.
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}(?:[^/@]*@(?=[^/]*/))?([^?]*).*", re.DOTALL)

#: Directory of stand-ins -> the address of what they stand in for.
ADDRESSES: dict[str, str] = {}


def shown(path: str | os.PathLike[str]) -> str:
    """A path as people know it: of a stand-in, the address of what it stands in for."""
    text = os.fspath(path)
    for directory, address in ADDRESSES.items():
        if text == directory or text.startswith(directory + os.sep):
            return address + text[len(directory) :]
    found = _ADDRESS.fullmatch(text)
    return f"{found[1]}://{found[2]}" if found else text
