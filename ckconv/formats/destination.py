"""Where an output goes, and what its name says about its format."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from ckconv.errors import UsageError
from ckconv.formats import FORMATS, format_of, named

#: The name that writes to standard output.
STDOUT = "-"


class Destination(NamedTuple):
    """What the user named.

    Attributes:
        format: what is written there.
        directory: the directory that is made for it, ``None`` where the output is a file.
        file: the file, ``None`` where the output is a directory or standard output.
        typed: a user has named it as it stands; else it may be no link.
    """

    name: str
    format: str
    directory: Path | None = None
    file: Path | None = None
    typed: bool = True

    @property
    def parent(self) -> Path | None:
        """Where the files of the output go; ``None`` for standard output."""
        return self.directory or (self.file.parent if self.file else None)

    @property
    def file_name(self) -> str:
        """What the user calls the file; empty where nobody named one."""
        return self.file.name if self.file else ""


def says_nothing(target: str) -> bool:
    """A directory, or standard output: its name does not say what is to be written there."""
    return target == STDOUT or (_is_directory(target) and not named_by_directory(target))


def named_by_directory(target: str) -> str:
    """The format that the name of a directory ends in (``x-mlx/``, ``x.mlx``, ``x-hf/``); empty for none."""
    word = re.search(r"[-_.]([a-z]+)/*$", target.lower())
    found = named(word[1]) if word else ""
    if word is None or all(format.single or format.name != found for format in FORMATS):
        return ""
    return found if _is_directory(target) or f".{word[1]}" not in _SUFFIXES else ""


#: Ending of a file's name -> its format.
_SUFFIXES = {format.suffix: format.name for format in FORMATS if format.suffix}


def _is_directory(target: str) -> bool:
    return target.endswith("/") or (target != STDOUT and os.path.isdir(target))  # noqa: PTH112 - never raises


def _is_same(target: str, source: str) -> bool:
    try:
        return Path(target).samefile(source)
    except (OSError, ValueError):  # nothing is there
        return False


def destination(target: str, to: str | None, *, source: str = "") -> Destination:
    """What ``target`` is to be: of the format asked for, or of the one that its name says.

    Args:
        source: what is read; a file that is written in its own place keeps its name, whatever that says.

    Raises:
        UsageError: ``usage.target``, neither says, or they contradict each other.
    """
    if "\0" in target:
        raise UsageError("usage.target", "a file name cannot hold a NUL character")
    if "://" in target:
        raise UsageError("usage.target", "outputs are written to local paths only", hint="copy it there afterwards")
    path = Path(target)
    said = _SUFFIXES.get(path.suffix.lower())
    if to is None and (format := named_by_directory(target)):
        return Destination(target, format, directory=path)
    if to is None:
        if says_nothing(target):
            raise UsageError(
                "usage.target",
                f"{target!r} does not say which format to write",
                hint="--to gguf or --to mlx names one",
            )
        if said is None:
            known = ", ".join(_SUFFIXES)
            raise UsageError(
                "usage.target",
                f"{path.name!r} ends in no known format ({known})",
                hint="--to gguf or --to mlx names one",
            )
    format = to or said or ""
    if target == STDOUT:
        return Destination(target, format)
    if said not in (None, format) and not (_is_directory(target) or _is_same(target, source)):
        ending = format_of(format).suffix
        file = f"a name in {ending} makes a file, " if ending else ""
        raise UsageError(
            "usage.target",
            f"{path.name!r} says {said}, and the format to write is {format}",
            hint=f"{file}{target}/ makes a directory",
        )
    if _is_directory(target) or not (format_of(format).single or said == format):
        return Destination(target, format, directory=path)
    return Destination(target, format, file=path)
