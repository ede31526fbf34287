"""Files beside their places in other directories: a symbolic link in the staging directory says where each of them is.

Directories that people clone or unpack may hold such links, too, made by anybody and leading anywhere. So a link counts
only if it leads from the root to a regular file that has a temporary name, which says what the file may be renamed to.
No other link is followed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ckconv.publish.files import CUT, TEMPORARY

_TEMPORARY = re.compile(TEMPORARY, re.DOTALL)

#: Bytes of a temporary name behind the name that the file is going to have: ``.ckconv-hhhhhhhh.tmp``.
_BEHIND = 20


def is_temporary(name: str) -> bool:
    """The name is one that files have until they are complete."""
    return _TEMPORARY.fullmatch(name) is not None


def is_directory(path: Path) -> bool:
    """It is a directory, and no link to one.

    Raises:
        OSError: the system does not tell.
    """
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def make_directory(path: Path) -> None:
    """Make a directory unless it is there; what else has its name, such as a link, is removed.

    Raises:
        OSError: the system refuses.
    """
    if not is_directory(path):
        path.unlink(missing_ok=True)
        path.mkdir()


def regular(path: Path) -> os.stat_result | None:
    """What a regular file is; ``None`` for anything else, a link to one too."""
    with suppress(OSError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode):
            return status
    return None


def led_to(link: Path) -> Path | None:
    """Where a link in a staging directory leads, if that is a file with a temporary name."""
    with suppress(OSError):
        path = link.readlink()
        if path.is_absolute() and is_temporary(path.name) and regular(path) is not None:
            return path
    return None


def kept_at(entry: Path) -> Path | None:
    """Where a file is that was taken away: ``entry`` itself, or where it leads if that is named after it."""
    if regular(entry) is not None:
        return entry
    path = led_to(entry)
    return path if path is not None and _called(path) == os.fsencode(entry.name)[:CUT] else None


def places_of(temp: Path) -> Iterator[Path]:
    """What a file with a temporary name may have been given as its name; it is cut off if it is long."""
    called = _called(temp)
    if len(called) < CUT:
        yield temp.parent / os.fsdecode(called)
    else:
        yield from (path for path in temp.parent.iterdir() if os.fsencode(path.name).startswith(called))


def _called(temp: Path) -> bytes:
    return os.fsencode(temp.name)[1:-_BEHIND]
