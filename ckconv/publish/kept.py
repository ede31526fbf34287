"""Finished files of an output that is not complete: what stays of it when it ends early, and fits when it goes on.

They are in a staging directory of a name that follows from the target's, beside a list of them: a line of JSON each,
with size and SHA-256, brought to the disk when the file is. A file counts only if it still has both, and only for a
run that is of the very same conversion.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.errors import InputError, Interrupted, OutputError, counted
from ckconv.publish.files import CUT, create, opened_regular, removed
from ckconv.publish.links import is_directory, make_directory
from ckconv.signals import check
from ckconv.system import read_into, sync, sync_directory

#: The directory of finished files, and the list of them in it.
FINISHED = ".ckconv.finished"
_LIST, _LIST_TO_BE = ".list", ".list.new"

#: The directory of files that were there before and are replaced, each in a directory of its own.
KEPT = ".old"

#: The directory in which files are written before they are finished.
UNFINISHED = ".ckconv.unfinished"

#: What the files of a split model have in their names beside its own (``llama_split_path`` of llama.cpp).
_NUMBER = re.compile(r"-\d{5}-of-\d{5}(?=\.|$)")

#: Bytes that are hashed at a time, and of a list.
_CHUNK, _MOST = 4 << 20, 64 << 20


def lasting_name(place: Path) -> Path:
    """Where an output that is going to be at ``place`` grows, if it is to stay: always the same name.

    It is the same for each file of a split model, into however many files that is split.
    """
    name = _NUMBER.sub("", place.name)
    digest = sha256(os.fsencode(name)).hexdigest()[:8]
    cut = os.fsdecode(os.fsencode(name)[:CUT])
    return place.parent / f".{cut}.ckconv-{digest}.tmp"


class Finished(NamedTuple):
    """A file that needs not be written again.

    Attributes:
        facts: what else is to be known of it.
    """

    name: str
    nbytes: int
    sha256: str
    facts: Mapping[str, Any]


class Kept:
    """The finished files of one conversion.

    Attributes:
        files: by their names.
        of: how many there are going to be.
    """

    def __init__(self, fingerprint: str, of: int) -> None:
        """Nothing is finished.

        Args:
            fingerprint: what is the same for every run of the same conversion, and for no other.
        """
        self._fingerprint, self.of = fingerprint, of
        self._directory: Path | None = None
        self.files: dict[str, Finished] = {}

    def begin(self, staging: Path) -> None:
        """Take over what fits, and remove everything else that is there.

        Raises:
            OSError: the system refuses.
        """
        self._directory = directory = staging / FINISHED
        make_directory(directory)
        for found in _listed(directory, self._fingerprint):
            for place in (directory / found.name, staging / found.name):  # it may have been about to be named
                if found.name not in self.files and _fits(place, found):
                    place.replace(directory / found.name)
                    self.files[found.name] = found
        for entry in [*directory.iterdir()]:
            if entry.name not in self.files and entry.name != _LIST:
                entry.unlink()
        clear(staging)
        self._write_list()

    def _write_list(self) -> None:
        """All of it anew; the one that is there stays until then, since a full disk may have no room for another."""
        directory = self._made
        with open(create(directory / _LIST_TO_BE), "wb") as file:
            for line in ({"fingerprint": self._fingerprint}, *(found._asdict() for found in self.files.values())):
                file.write(_line(line))
            file.flush()
            sync(file.fileno())
        (directory / _LIST_TO_BE).replace(directory / _LIST)
        sync_directory(directory)

    @property
    def _made(self) -> Path:
        assert self._directory is not None
        return self._directory

    def put_back(self, staging: Path) -> None:
        """Take back what was about to be named, where it was not: all of it is kept.

        Raises:
            OSError: the system refuses.
        """
        self._made.mkdir(exist_ok=True)
        for name in [*self.files]:
            if not os.path.lexists(self._made / name):
                try:
                    (staging / name).replace(self._made / name)
                except FileNotFoundError:  # without hard links it had one name, which was given and taken away
                    del self.files[name]
        if not is_lasting(staging):
            self._write_list()

    def add(self, place: Path, found: Finished) -> None:
        """A file is finished and on the disk, at ``place`` in the staging directory.

        Raises:
            OSError: the system refuses.
        """
        place.replace(self._made / found.name)
        sync_directory(self._made)  # its name first, then the line that speaks of it
        with open(self._made / _LIST, "ab") as file:
            file.write(_line(found._asdict()))
            file.flush()
            sync(file.fileno())
        self.files[found.name] = found

    def place(self, name: str) -> Path:
        """Where a finished file is."""
        return self._made / name

    def stays(self, error: BaseException | None) -> bool:
        """Whether what is finished is of use after this error: one of the machine, not of the model."""
        of_machine = isinstance(error, OutputError) and error.code != "input.changed"
        unread = isinstance(error, InputError) and error.code == "input.unreadable"
        return bool(self.files) and (
            of_machine or unread or isinstance(error, (Interrupted, KeyboardInterrupt, MemoryError))
        )

    @property
    def sentence(self) -> str:
        """What is said of them when the run ends early."""
        done = counted(len(self.files), "file")
        return f"{done} of {self.of:,} {'is' if len(self.files) == 1 else 'are'} finished and stay: --resume goes on"


def is_lasting(staging: Path) -> bool:
    """A later run may go on with what is in this staging directory (``--resume``)."""
    return os.path.lexists(staging / FINISHED / _LIST)


def finished_in(staging: Path) -> bool:
    """A finished file is in this staging directory, and not about to be named."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return any(not name.startswith(".") for name in os.listdir(staging / FINISHED))  # noqa: PTH208
    return False


def clear(staging: Path) -> list[str]:
    """Remove everything in a staging directory but its finished files.

    Returns:
        sentences about what cannot be removed.
    """
    left: list[str] = []
    for name in os.listdir(staging):  # noqa: PTH208 - names are all that is wanted
        if name not in (FINISHED, KEPT) or not is_directory(staging / name):
            left += remove_entry(staging / name)
    return left


def remove_entry(path: Path) -> list[str]:
    """Remove a file, or a directory of files: tried as a file first, since asking which it is may fail.

    Returns:
        a sentence, if it cannot be removed.
    """
    return remove_folder(path) if removed(path) else []


def remove_folder(path: Path) -> list[str]:
    """Remove a directory of files, in which a worker may still be making one. What a link leads to stays.

    Returns:
        a sentence, if it cannot be removed.
    """
    for _ in range(0 if os.path.islink(path) else 3):  # noqa: PTH114 - never raises
        with suppress(OSError):
            for entry in list(path.iterdir()):
                entry.unlink(missing_ok=True)
            path.rmdir()
        if not os.path.lexists(path):
            return []
    return [f"{path} is left over"]


def _line(document: Mapping[str, Any]) -> bytes:
    import json

    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _listed(directory: Path, fingerprint: str) -> list[Finished]:
    """What the list says; nothing if it is of another conversion. A line that was cut off says nothing."""
    found: list[Finished] = []
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError, InputError):
        import json

        with opened_regular(directory / _LIST) as fd, open(fd, "rb", closefd=False) as file:
            first, *lines = file.read(_MOST).split(b"\n")
        if json.loads(first)["fingerprint"] == fingerprint:
            for line in lines:
                listed = Finished(**json.loads(line))
                if isinstance(listed.name, str):
                    found.append(listed)
    return found


def _fits(path: Path, found: Finished) -> bool:
    """The file is there, and every byte of it is what it was."""
    if Path(found.name).name != found.name or path.is_symlink():
        return False
    try:
        with opened_regular(path) as fd:
            if os.fstat(fd).st_size != found.nbytes:
                return False
            return digest_of(fd) == found.sha256
    except Exception as error:
        check()
        if isinstance(error, MemoryError):
            raise
        return False


def digest_of(fd: int) -> str:
    """SHA-256 of a whole file, as hex."""
    digest, at, buffer = sha256(), 0, memoryview(bytearray(_CHUNK))
    while got := read_into(fd, buffer, at):
        check()
        digest.update(buffer[:got])
        at += got
    return digest.hexdigest()
