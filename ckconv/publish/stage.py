"""The directory with a temporary name in which an output grows until it is complete.

Every file is in it under the name that it is going to have, a side file under the one that readers look for, so that
readers find together what belongs together.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ckconv.errors import OutputError
from ckconv.publish.files import (
    SideFile,
    close_unwritten,
    create,
    failing,
    holds,
    made_meanwhile,
    removed,
    temporary_name,
    write_file,
)
from ckconv.publish.kept import KEPT, Kept, clear, lasting_name
from ckconv.publish.links import make_directory
from ckconv.publish.locks import Locked
from ckconv.publish.removal import remove_directory, remove_kept
from ckconv.system import (
    CLOEXEC,
    DIRECTORY,
    MOVES_OPEN,
    NO_LOCKS,
    NOFOLLOW,
    allocate,
    become_directory,
    is_own,
    sync_directory,
    sync_file,
    try_lock,
)


@dataclass(frozen=True, slots=True)
class Room:
    """A large file, written through a descriptor.

    Attributes:
        nbytes: its exact size.
        holes: (offset, bytes) in it that are zeros and take no space, in order.
        apart: its bytes are written to another file, which then takes its place.
    """

    nbytes: int
    holes: tuple[tuple[int, int], ...] = ()
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Small:
    """A side file.

    Attributes:
        name: what readers of the format look for, whatever the file is called in the end (``config.json``); it may
            lie in a directory (``1_Pooling/config.json``).
    """

    name: str
    content: SideFile


@dataclass(slots=True)
class File:
    """One output: where it goes, and where it is until then.

    Attributes:
        target: its place, behind a symbolic link.
        name: what it is called in the staging directory.
        what: its content, or the room for it.
        inside: it comes with the directory that is made for it.
        place: where in that directory, or in the one that is there.
        staged: where readers find it meanwhile.
        temp: what is going to be renamed; not in the staging directory if it goes elsewhere.
    """

    target: Path
    name: str
    what: Room | Small
    inside: bool
    place: Path | None = None
    staged: Path | None = None
    temp: Path | None = None

    @property
    def content(self) -> SideFile | None:
        """``None`` for a large file."""
        return self.what.content if isinstance(self.what, Small) else None

    @property
    def nbytes(self) -> int:
        """The space that it takes."""
        if isinstance(self.what, Small):
            return len(self.what.content)
        return self.what.nbytes - sum(nbytes for _, nbytes in self.what.holes)

    def is_apart(self, parent: Path) -> bool:
        """It goes to another directory than ``parent``, perhaps on another file system: no rename leads there."""
        near = self.target.parent.parent if self.in_folder else self.target.parent
        return not self.inside and not near.samefile(parent)

    @property
    def in_folder(self) -> bool:
        """It goes to a directory inside the output's."""
        return self.place is not None and len(self.place.parts) > 1

    @property
    def is_there(self) -> bool:
        """A side file that needs no writing: its place holds the same content."""
        return self.content is not None and holds(self.target, self.content)


class Staging:
    """The directory and what is staged for other places; :meth:`remove` leaves nothing of it.

    It is locked as long as the process lives, so that others can tell what a dead one left behind.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self._lock = -1
        self._left: list[str] = []
        self._temps: list[Path] = []
        self._unsynced: list[File] = []

    @property
    def _made(self) -> Path:
        assert self.path is not None
        return self.path

    def make(self, place: Path, *, whole: bool, kept: Kept | None = None) -> None:
        """Make the directory beside ``place``.

        Args:
            whole: it is going to be ``place``, and gets the mode bits of an empty directory that is there.
            kept: finished files stay, and an existing directory is continued.

        Raises:
            OutputError: ``output.busy``, another run is at work in it.
        """
        with Locked([place.parent]) as locked:  # no other run may find it before it is locked itself
            # Before it is there: a signal may come any time.
            self.path = lasting_name(place) if kept else temporary_name(place.parent, place.name)
            try:
                self.path.mkdir()
            except FileExistsError:
                path, self.path = self.path, None
                if kept is None:
                    raise
                self._adopt(path)
            else:
                with suppress(OSError):  # no locks here, then no run takes it for a dead one's
                    self._lock = os.open(self.path, os.O_RDONLY | DIRECTORY | CLOEXEC)
                    try_lock(self._lock)
        self._left = locked.left
        made = self._made
        mode = stat.S_IMODE(made.stat().st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:  # the user's mask may forbid what making files in it needs
            made.chmod(mode | stat.S_IRWXU)
        if whole:
            with suppress(FileNotFoundError):
                made.chmod(stat.S_IMODE(place.stat().st_mode))

    def _adopt(self, path: Path) -> None:
        """Go on in a directory that an earlier run left."""
        fd = -1
        try:
            fd = os.open(path, os.O_RDONLY | DIRECTORY | NOFOLLOW | CLOEXEC)
            free = is_own(os.fstat(fd)) and try_lock(fd)
        except OSError as error:
            free = error.errno in NO_LOCKS or not MOVES_OPEN  # no run can know; Windows opens no directory
        if not free:
            if fd >= 0:
                close_unwritten(fd)
            raise OutputError("output.busy", "another run of ckconv is writing it", path=path, hint="wait for it")
        self.path, self._lock = path, fd

    def add_small(self, file: File, what: Small) -> None:
        """Write a side file, and once more where it goes if a rename does not lead there."""
        file.staged = self._free_name(file.name)
        if file.is_apart(self._made.parent):
            self.bring(file, what)
        if file.temp is not None and _links_to(file.temp, file.staged):
            return
        write_file(file.staged, what.content)
        if file.temp is None and not file.is_apart(self._made.parent):
            file.temp = file.staged
            self._unsynced.append(file)

    def bring(self, file: File, what: Small) -> None:
        """Write a side file beside its place, unless it is staged for it already or not needed there."""
        if file.temp is None and not file.is_there:
            file.temp = self._temporary(file.target)
            write_file(file.temp, what.content)
            self._unsynced.append(file)

    def add_large(self, file: File, what: Room) -> tuple[int, Path]:
        """Make a large file with room for all of it, apart if a rename does not lead there: descriptor and place."""
        staged = self._free_name(file.name)
        file.staged = file.temp = staged
        if file.is_apart(self._made.parent):
            file.staged = file.temp = self._temporary(file.target)
            if _links_to(file.temp, staged):  # else readers find it under its temporary name
                file.staged = staged
        fd = create(file.temp)
        if what.apart:
            return fd, file.temp
        try:
            allocate(fd, what.nbytes, what.holes)
        except BaseException:
            close_unwritten(fd)
            raise
        return fd, file.temp

    def _free_name(self, name: str) -> Path:
        """``name`` in the directory, unless another file has it there."""
        path = self._made / name
        if path.parent != self._made:
            path.parent.mkdir(exist_ok=True)
        return temporary_name(path.parent, path.name) if os.path.lexists(path) else path

    def _temporary(self, target: Path) -> Path:
        temp = temporary_name(target.parent, target.name)
        self._temps.append(temp)
        return temp

    def sync_small(self) -> None:
        """Bring the side files to the disk, each once."""
        while self._unsynced:
            file = self._unsynced[-1]
            assert file.temp is not None
            with failing(file.target):
                sync_file(file.temp)
            self._unsynced.pop()

    def leave(self, kept: Kept) -> list[str]:
        """Remove everything but finished files, and let go of the directory.

        Returns:
            sentences about what is still there.
        """
        left = self._without_temps()
        if self.path is not None:
            try:
                kept.put_back(self.path)
                left += clear(self.path)
            except OSError as error:  # where all of it is the next run finds what is finished
                left.append(f"{self.path} could not be put in order: {error.strerror}")
            remove_kept(self.path / KEPT)
            self.path = None
        self._let_go()
        return left

    def begin_naming(self, others: Iterable[Path | None]) -> None:
        """From now on, until all of its files have a second name, the names that a dead run gave are to be undone.

        Args:
            others: staged files that get none.
        """
        for path in others:
            if path is not None:
                path.unlink(missing_ok=True)
        make_directory(self._made / KEPT)  # it is there if an earlier run found others in the places of its files

    def keep(self, target: Path) -> Path:
        """Where a file is kept that is replaced: in the directory, or beside its place if no rename leads there."""
        kept = self._made / KEPT
        if not kept.is_dir():  # the whole directory gets its name, and this file is not in it
            return temporary_name(target.parent, target.name)
        own = kept / f"{len(list(kept.iterdir())):04}"
        own.mkdir()
        if target.parent.samefile(self._made.parent):
            return own / target.name
        elsewhere = temporary_name(target.parent, target.name)
        _links_to(elsewhere, own / target.name)
        return elsewhere

    def become(self, directory: Path, files: Collection[File]) -> None:
        """Put the directory in its place, where there is nothing, or an empty directory.

        Raises:
            OutputError: ``output.exists``, there is something meanwhile.
        """
        self._arrange(files)
        for folder in sorted({file.place.parent for file in files if file.in_folder and file.place is not None}):
            sync_directory(self._made / folder)
        sync_directory(self._made)
        try:
            become_directory(self._made, directory)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise made_meanwhile(directory) from None
            raise
        self.path = None

    def _arrange(self, files: Collection[File]) -> None:
        """Leave in the directory what belongs there, under the names that were asked for."""
        moves: list[tuple[Path, Path]] = []
        for file in files:
            assert file.staged is not None
            if not file.inside:
                file.staged.unlink(missing_ok=True)
            elif file.place is not None and file.staged != self._made / file.place:
                moves.append((file.staged, self._made / file.place))
        # In two steps: a name may be free only when another file has moved.
        between = [(old, temporary_name(self._made, place.name)) for old, place in moves]
        after = [(temp, place) for (_, temp), (_, place) in zip(between, moves, strict=True)]
        for old, new in (*between, *after):
            old.rename(new)

    def remove(self) -> list[str]:
        """Remove the directory and everything temporary, but no file that is kept.

        Returns:
            sentences about what is still there.
        """
        left = self._without_temps()
        if self.path is not None:
            left += remove_directory(self.path)
            if not left:
                self.path = None
        self._let_go()
        return left

    def _without_temps(self) -> list[str]:
        left, self._left = self._left, []
        while self._temps:
            left += removed(self._temps.pop())
        return left

    def _let_go(self) -> None:
        if self._lock >= 0:
            close_unwritten(self._lock)
            self._lock = -1


def _links_to(temp: Path, link: Path) -> bool:
    """Make a symbolic link, where the file system can."""
    try:
        link.symlink_to(temp.absolute())
    except OSError:
        return False
    return True
