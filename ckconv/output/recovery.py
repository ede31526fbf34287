"""What runs left behind that were killed: recognised by the lock that ended with them, undone and removed.

A run that dies while it gives names leaves its staging directory with a directory ``.old`` in it. Files that it had
named are second names of files in the staging directory, files that it had taken away are in ``.old``. As long as one
of its files has no name yet, all of that is undone; a run that had named everything only lacks its cleaning up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ckconv.errors import OutputError
from ckconv.lazy import dataclass, regex
from ckconv.output.filesystem import TEMPORARY
from ckconv.output.kept import FINISHED, KEPT, UNFINISHED, finished_in, is_lasting
from ckconv.output.locks import Locked
from ckconv.output.regular import close_unwritten
from ckconv.output.removal import remove_directory, remove_kept
from ckconv.system import CLOEXEC, DIRECTORY, NOFOLLOW, is_own, try_lock

_STAGING = regex(TEMPORARY, re.DOTALL)


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
            if not _STAGING.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
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

    @property
    def is_there(self) -> bool:
        return os.path.lexists(self.kept)


class _Dead:
    """The staging directory of a run that is no more."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found = [entry for entry in path.iterdir() if entry.name not in (KEPT, FINISHED, UNFINISHED)]
        folders = [entry for entry in found if entry.is_dir() and not entry.is_symlink()]
        entries = [entry for entry in found if entry not in folders]
        entries += [entry for folder in folders for entry in folder.iterdir()]
        #: Directories beside it that it gave names in; of one that was to be the output itself there are none.
        places = [path.parent / folder.name for folder in folders if (path / KEPT).is_dir()]
        self._folders = [place for place in places if place.is_dir()]
        #: Files that were written for other directories, beside their places.
        self._elsewhere = [entry.readlink() for entry in entries if entry.is_symlink()]
        self._staged = [entry for entry in entries if not entry.is_symlink()] + self._elsewhere

    def recover(self, *, lasting: bool) -> list[str]:
        told: list[str] = []
        naming = (self._path / KEPT).is_dir()
        lasting = lasting and (bool(self._staged) or finished_in(self._path))
        if lasting and not naming:
            return []
        if naming and self._is_unfinished():
            taken = [found for found in self._taken() if found.is_there]
            given = self._given([found.target for found in taken])
            if any(os.path.lexists(found.target) and found.target not in given for found in taken):
                return [f"{self._path} holds files that a killed run replaced; others stand in their places now"]
            told = _undo(taken, given)
        else:
            lasting = False
            for found in self._taken():
                found.kept.unlink(missing_ok=True)
        for temp in self._elsewhere:
            if _STAGING.fullmatch(temp.name):
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
        found = [path.stat() for path in self._staged if path.exists()]
        return not found or any(status.st_nlink < 2 for status in found) or finished_in(self._path)

    def _taken(self) -> Iterator[_Taken]:
        """In the order in which they were taken away."""
        kept = self._path / KEPT
        for own in sorted(kept.iterdir()) if kept.is_dir() else ():
            for entry in own.iterdir():
                place = entry.readlink() if entry.is_symlink() else entry
                parent = place.parent if entry.is_symlink() else self._path.parent
                yield _Taken(place, parent / entry.name)

    def _given(self, targets: Iterable[Path]) -> set[Path]:
        """The names that staged files got."""
        staged = {(s.st_dev, s.st_ino) for s in (path.stat() for path in self._staged if path.exists())}
        parents = {*self._folders, *(p.parent for p in (self._path, *self._elsewhere))}
        near = {path for parent in parents for path in parent.iterdir()}
        return {path for path in near | set(targets) if _identity(path) in staged and not _is_temporary(path)}


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = path.lstat()
        return status.st_dev, status.st_ino
    return None


def _is_temporary(path: Path) -> bool:
    return _STAGING.fullmatch(path.name) is not None


def _undo(taken: list[_Taken], given: set[Path]) -> list[str]:
    replaced = {found.target for found in taken}
    for path in sorted(given - replaced):
        path.unlink()
    for found in reversed(taken):  # what loaders begin with was taken first, and comes back last
        found.kept.replace(found.target)
    return [f"{found.target} had been removed by a run that was killed; it is restored" for found in taken]
