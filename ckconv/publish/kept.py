"""Finished files of an output that is not complete: what stays of it when it ends early, and fits when it goes on.

They are in a staging directory of a name that follows from the target's, beside a list of them: a line of JSON each,
with size and SHA-256, brought to the disk when the file is. A file counts only if it still has both, and only for a
run that is of the very same conversion.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from ckconv.errors import CkconvError, InputError, Interrupted, OutputError, counted
from ckconv.publish.directory import Directory
from ckconv.publish.files import CUT, create, opened_regular
from ckconv.publish.journal import FINISHED, discard
from ckconv.publish.locks import Locked
from ckconv.signals import check, declare
from ckconv.system import MOVES_OPEN, NO_LOCKS, read_into, sync, sync_directory

#: The list of finished files in their directory.
_LIST, _LIST_TO_BE = ".list", ".list.new"

#: The directory in which files are written before they are finished.
UNFINISHED = ".ckconv.unfinished"

#: What the files of a split model have in their names beside its own (``llama_split_path`` of llama.cpp).
_NUMBER = re.compile(r"-\d{5}-of-\d{5}(?=\.|$)")

#: Bytes that are hashed at a time, and of a list.
_CHUNK, _MOST = 4 << 20, 64 << 20


def lasting_name(name: str) -> str:
    """What the directory of finished files is called of an output: always the same.

    It is the same for each file of a split model, into however many files that is split.
    """
    name = _NUMBER.sub("", name)
    digest = sha256(os.fsencode(name)).hexdigest()[:8]
    return f".{os.fsdecode(os.fsencode(name)[:CUT])}.ckconv-{digest}.tmp"


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
        self._here: Directory | None = None
        self._own: Directory | None = None
        self.files: dict[str, Finished] = {}

    def begin(self, output: Path) -> None:
        """Take over what fits of an output, and remove everything else that is there.

        Raises:
            OutputError: ``output.busy``, another run is at work in it.
            OSError: the system refuses.
        """
        with Locked([output.parent]):  # no other run may find it before it is locked itself
            self._here = Directory(output.parent)
            self._own = self._here.make(lasting_name(output.name))
            try:
                free = self._own.is_free()
            except OSError as error:
                free = error.errno in NO_LOCKS or not MOVES_OPEN  # no run can know; Windows opens no directory
            if not free:
                path = self._own.path
                self._close()
                raise OutputError("output.busy", "another run of ckconv is writing it", path=path, hint="wait for it")
        if (status := self._own.status(FINISHED)) is not None and not stat.S_ISDIR(status.st_mode):
            self._own.remove(FINISHED)
        self._own.make(FINISHED).close()
        self._directory = directory = self._own.path / FINISHED
        for found in _listed(directory, self._fingerprint):
            if found.name not in self.files and _fits(directory / found.name, found):
                self.files[found.name] = found
        for entry in [*directory.iterdir()]:
            if entry.name not in self.files and entry.name != _LIST:
                entry.unlink()
        self._write_list()

    def _close(self) -> None:
        for directory in (self._own, self._here):
            if directory is not None:
                directory.close()

    def __enter__(self) -> Kept:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._here is None or self._own is None:
            return
        if error is not None and self.stays(error):
            declare(f"interrupted; {self.sentence}")
            if isinstance(error, Interrupted):
                error.message = f"interrupted; {self.sentence}"
            elif isinstance(error, CkconvError):
                error.details = (*error.details, self.sentence)
        else:
            discard(self._here, self._own)
        self._close()

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
        named = (
            isinstance(error, OutputError) and error.code == "output.exists" and all(map(self._has_name, self.files))
        )
        return (
            bool(self.files)
            and not named
            and (of_machine or unread or isinstance(error, (Interrupted, KeyboardInterrupt, MemoryError)))
        )

    def _has_name(self, name: str) -> bool:
        """A run that was killed at its very end has published it."""
        with suppress(OSError):
            return self.place(name).stat().st_nlink > 1
        return False

    @property
    def sentence(self) -> str:
        """What is said of them when the run ends early."""
        done = counted(len(self.files), "file")
        return f"{done} of {self.of:,} {'is' if len(self.files) == 1 else 'are'} finished and stay: --resume goes on"


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
