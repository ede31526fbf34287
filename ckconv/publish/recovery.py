"""What runs left behind that were killed: recognised by the lock that ended with them, undone and removed.

A run that dies while it gives names leaves its staging directory with a directory ``.old`` in it. Files that it had
named are second names of files in the staging directory, files that it had taken away are in ``.old``. As long as one
of its files has no name yet, all of that is undone; a run that had named everything only lacks its cleaning up.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ckconv.errors import OutputError
from ckconv.publish.files import close_unwritten
from ckconv.publish.kept import FINISHED, KEPT, UNFINISHED, finished_in, is_lasting
from ckconv.publish.links import is_directory, is_temporary, kept_at, led_to, places_of, regular
from ckconv.publish.locks import Locked
from ckconv.publish.removal import remove_directory, remove_kept
from ckconv.system import CLOEXEC, DIRECTORY, NOFOLLOW, is_own, try_lock


def recover(directories: Iterable[Path], abandoned: Collection[Path] = ()) -> list[str]:
    """Undo and remove what dead runs of this user left in these directories; finished files that are kept stay.

    Args:
        abandoned: staging directories of which nothing is kept.

    Returns:
        sentences about what was brought back, and about what is still there.
    """
    told: list[str] = []
    for directory in directories:
        if not any(_leftovers(directory)):
            continue
        with suppress(OutputError), Locked([directory]):
            for path in list(_leftovers(directory)):
                with suppress(OSError):
                    told += _recover_if_dead(path, lasting=path not in abandoned and is_lasting(path))
    return told


def _leftovers(directory: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if not is_temporary(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            if is_own(entry.stat(follow_symlinks=False)):
                yield Path(entry.path)


def _recover_if_dead(path: Path, *, lasting: bool) -> list[str]:
    fd = os.open(path, os.O_RDONLY | DIRECTORY | NOFOLLOW | CLOEXEC)
    try:
        return (
            _Dead(path).recover(lasting=lasting) if try_lock(fd) else []
        )  # OSError: no locks here, then nobody can know
    finally:
        close_unwritten(fd)


@dataclass(frozen=True, slots=True)
class _Taken:
    """A file that was taken away: where it is, and where it was."""

    kept: Path
    target: Path


class _Dead:
    """The staging directory of a run that is no more.

    Somebody may have made it by hand, and others have cloned or unpacked it. Whatever it holds, only files in it are
    moved or removed, and others that are the same file or, by their name, temporary.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        #: It began to give names.
        self._naming = is_directory(path / KEPT)
        found = [entry for entry in path.iterdir() if entry.name not in (KEPT, FINISHED, UNFINISHED)]
        folders = [entry for entry in found if is_directory(entry)]
        entries = [entry for entry in found if entry not in folders]
        entries += [entry for folder in folders for entry in folder.iterdir()]
        #: Directories beside it that it gave names in; of one that was to be the output itself there are none.
        places = [path.parent / folder.name for folder in folders if self._naming]
        self._folders = [place for place in places if is_directory(place)]
        #: Files that were written for other directories, beside their places.
        self._elsewhere = [temp for entry in entries if (temp := led_to(entry)) is not None]
        self._here = [entry for entry in entries if regular(entry) is not None]

    def recover(self, *, lasting: bool) -> list[str]:
        told: list[str] = []
        lasting = lasting and (bool(self._here or self._elsewhere) or finished_in(self._path))
        if lasting and not self._naming:
            return []
        if self._naming and self._is_unfinished():
            taken, given = [*self._taken()], self._given()
            if any(os.path.lexists(found.target) and found.target not in given for found in taken):
                return [f"{self._path} holds files that a killed run replaced; others stand in their places now"]
            told = _undo(taken, given)
        else:
            lasting = False
            for found in self._taken():
                found.kept.unlink(missing_ok=True)
        for temp in self._elsewhere:
            temp.unlink(missing_ok=True)
        for folder in self._folders:
            with suppress(OSError):  # it was there before, with files in it
                folder.rmdir()
        if lasting:
            remove_kept(self._path / KEPT)
            return told
        return [*told, *remove_directory(self._path)]

    def _is_unfinished(self) -> bool:
        """A file has no other name than its temporary one, or nothing is left of them to have been named.

        A run that named everything removes what it replaced first. So if that is all there is, it was not brought back.
        """
        found = [status for path in (*self._here, *self._elsewhere) if (status := regular(path)) is not None]
        return not found or any(status.st_nlink < 2 for status in found) or finished_in(self._path)

    def _taken(self) -> Iterator[_Taken]:
        """In the order in which they were taken away."""
        for own in sorted((self._path / KEPT).iterdir()) if self._naming else ():
            for entry in own.iterdir() if is_directory(own) else ():
                kept = kept_at(entry)
                if kept is not None:
                    parent = self._path.parent if kept == entry else kept.parent
                    yield _Taken(kept, parent / entry.name)

    def _given(self) -> set[Path]:
        """The names that staged files got: beside the directory, or beside their temporary names elsewhere."""
        near = (path for parent in (self._path.parent, *self._folders) for path in parent.iterdir())
        given = _same(near, self._here)
        for temp in self._elsewhere:
            given |= _same(places_of(temp), [temp])
        return given


def _same(paths: Iterable[Path], staged: Iterable[Path]) -> set[Path]:
    """Other names of staged files among these."""
    known = {_identity(path) for path in staged} - {None}
    return {path for path in paths if _identity(path) in known and not is_temporary(path.name)}


def _identity(path: Path) -> tuple[int, int] | None:
    status = regular(path)
    return None if status is None else (status.st_dev, status.st_ino)


def _undo(taken: list[_Taken], given: set[Path]) -> list[str]:
    replaced = {found.target for found in taken}
    for path in sorted(given - replaced):
        path.unlink()
    for found in reversed(taken):  # what loaders begin with was taken first, and comes back last
        found.kept.replace(found.target)
    return [f"{found.target} had been removed by a run that was killed; it is restored" for found in taken]
