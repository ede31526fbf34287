"""Bytes in: source files, documents, and canonical rows.

A place of bytes is a path, or an address of files on another machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    _Path = Path
else:
    _Path = type(Path())  # of Python 3.11, Path itself is none to build on


#: A place of bytes, as programs give it.
StrPath = str | os.PathLike[str]


class _Address(_Path):
    """The path of an address, whose text stays as given.

    :class:`~pathlib.Path` makes one slash of several and leaves out dots, which are part of a name elsewhere.
    """

    text = ""

    def __str__(self) -> str:
        return self.text or super().__str__()


def address_of(text: str) -> re.Match[str] | None:
    """Scheme, slashes, rest of an address; ``None`` for paths and drives."""
    return re.fullmatch(r"([a-z][a-z0-9+.-]+):(/*)(.+)", text, re.DOTALL | re.IGNORECASE) if ":" in text else None


def as_path(given: StrPath) -> Path:
    """Return a path; the text of an address stays as it is."""
    if isinstance(given, _Address):
        return given
    if not address_of(os.fspath(given)):
        return Path(given)
    path = _Address(given)
    path.text = os.fspath(given)
    return path
