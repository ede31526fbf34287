"""Output files that are published complete or not at all.

Everything is written into a staging directory beside the target. The files get their real names by one link or rename
each, or all at once by the rename of the directory. Until then a failure, a signal or a lost race leaves what was
there before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from ckconv.errors import CkconvError, Interrupted, OutputError
from ckconv.publish.checks import check_apart, check_directory, check_gone, check_links, check_room, check_target
from ckconv.publish.descriptors import Descriptors
from ckconv.publish.files import failing, syncing, through_link
from ckconv.publish.folders import Folders
from ckconv.publish.kept import FINISHED, UNFINISHED, Kept, lasting_name, remove_folder
from ckconv.publish.locks import Locked
from ckconv.publish.naming import Naming, keep_mode, replace
from ckconv.publish.recovery import recover
from ckconv.publish.stage import File, Room, Small, Staging
from ckconv.signals import LATE, LEFT, check, declare, noted
from ckconv.system import MOVES_OPEN, sync_directory

__all__ = ["Outputs", "Room", "Small"]


class Outputs:
    """Large files and their side files, staged together and published together: side files first, then in order.

    A target that is a symbolic link is written where the link points. A side file that is there already with the same
    content is left alone. With ``force``, what is replaced gives its mode bits to its successor. One file is replaced
    in one step; of several, the old ones are taken away before the first new one is named, and come back if one fails.
    From entering to leaving, signals are noted: :func:`ckconv.signals.check` raises them.

    Attributes:
        fds: large target, as it was given -> descriptor.
    """

    def __init__(
        self,
        large: Mapping[Path, Room],
        small: Mapping[Path, Small],
        *,
        directory: Path | None = None,
        force: bool = False,
        inputs: Iterable[Path] = (),
        last: Sequence[Path] = (),
        kept: Kept | None = None,
        gone: Sequence[Path] = (),
    ) -> None:
        """Describe what is going to be written; nothing is touched before :meth:`__enter__`.

        Args:
            large: the last one gets its name last.
            small: may be beside the others or anywhere else.
            directory: a directory that holds all of it, to be made anew, with the directories that its files are in.
            force: replace what is there.
            inputs: files that must not be overwritten whatever the flags say.
            last: what loaders begin with; these files get their names after the others, in this order.
            kept: finished files stay where the output is not completed, and those of an earlier run are taken over.
            gone: files that are replaced by nothing, with ``force``.
        """
        self._directory = through_link(directory) if directory else None
        outputs: list[tuple[Path, str, Room | Small]] = [(path, what.name, what) for path, what in small.items()]
        outputs += [(path, path.name, room) for path, room in large.items()]
        self._files = {
            path: File(through_link(path), name, what, inside=directory is not None and directory in path.parents)
            for path, name, what in outputs
        }
        for path, file in self._files.items():
            if directory is not None and directory in path.parents:
                file.place = path.relative_to(directory)
        #: Directories inside that files go to; made first where the directory itself is there already.
        self._folders = Folders({path.parent for path in small if directory in path.parents[1:]})
        self._force = force
        self._inputs = tuple(inputs)
        self._last = [path for path in last if path in self._files]
        self._links = [path for path in (directory, *large, *small) if path is not None]
        self._kept, self._gone = kept, gone
        self._naming = Naming()
        self._staging = Staging()
        self._complete = False
        self._recovered: list[str] = []
        self._locked = Locked([])
        self._signals = ExitStack()
        #: Sentences about names that could not be undone, and about what could not be removed.
        self._stuck: list[str] = []
        self._left: list[str] = []
        self.fds = Descriptors()

    @property
    def staging(self) -> Path:
        """The directory where everything is until it is published; only while that is so."""
        assert self._staging.path is not None
        return self._staging.path

    def staged(self, path: Path) -> Path:
        """Where a target, as it was given, is until it is published."""
        staged = self._files[path].staged
        assert staged is not None
        return staged

    def __enter__(self) -> Outputs:
        """Check everything that can be known, then make the staging directory and the files in it.

        Raises:
            OutputError: ``output.exists``, ``output.directory``, ``output.parent``, ``output.special``,
                ``output.is-input``, ``output.space`` or ``output.write``.
        """
        self._signals.enter_context(noted())
        self._signals.push(lambda kind, error, trace: self._clean_up(error))
        declare(None)
        try:
            check()
            self._recover()
            self._check()
            if (place := self._place()) is not None:
                self._stage_all(place)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signals.__exit__(kind, error, trace)

    def _recover(self) -> None:
        parents = {file.target.parent for file in self._files.values() if not file.inside}
        if self._directory is not None:
            parents |= {self._directory.parent, self._directory}
        places = [self._directory, *(file.target for file in self._files.values() if isinstance(file.what, Room))]
        abandoned = {lasting_name(place) for place in places if place is not None} if self._kept is None else set()
        self._recovered = recover(sorted(parents), abandoned)

    def _check(self) -> None:
        if self._directory is not None and not check_directory(self._directory, force=self._force):
            self._directory = None
            for file in self._files.values():
                file.inside = False
            self._folders.check()
        outside = self._in_order()[::-1]  # what somebody has named comes first
        for file in outside:
            if not self._folders.is_made(file.target.parent):
                check_target(file.target, file.content, force=self._force, inputs=self._inputs)
        check_gone(self._gone, self._inputs)
        check_apart(file.target for file in outside)
        check_links(self._links, force=self._force)

    def _place(self) -> Path | None:
        """What the staging directory is beside: the largest file. ``None`` if there is nothing to write."""
        if self._directory is not None:
            return self._directory
        large = [file for file in self._files.values() if isinstance(file.what, Room)]
        if large and self._kept is not None:
            return large[0].target
        if large:
            return max(large, key=lambda file: file.nbytes).target
        missing = [file.target for file in self._files.values() if not file.is_there]
        return next(iter([*missing, *self._gone]), None)

    def _stage_all(self, place: Path) -> None:
        files = self._files.values()
        with failing(place):
            apart = [file.content is None and file.is_apart(place.parent) for file in files]
            if self._kept is not None:
                self._staging.make(place, whole=self._directory is not None, kept=self._kept)
                self._kept.begin(self.staging)
            done = self._kept.files if self._kept is not None else {}
            check_room(
                (file.target.parent if elsewhere else place.parent, file.target, file.nbytes)
                for file, elsewhere in zip(files, apart, strict=True)
                if file.name not in done
            )
            if self._directory is None and any(file.in_folder and file.is_apart(place.parent) for file in files):
                self._folders.make()  # what is staged in them
            if self._kept is None:
                self._staging.make(place, whole=self._directory is not None)
        for path, file in self._files.items():
            with failing(file.target):
                if isinstance(file.what, Small):
                    self._staging.add_small(file, file.what)
                else:
                    fd, there = self._staging.add_large(file, file.what)
                    self.fds.add(path, fd, there)

    def unfinished(self) -> Path:
        """The directory for files that are made apart."""
        place = self.staging / UNFINISHED
        place.mkdir(exist_ok=True)
        return place

    def take(self, path: Path, made: Path) -> None:
        """Put what was made apart in the place of a large file.

        Raises:
            OSError: the system refuses.
        """
        file = self._files[path]
        assert file.temp is not None
        self.fds.forget(path)
        if file.temp.parent.samefile(self.staging):
            made.replace(file.temp)
        else:
            raise OutputError("output.write", "a shard that is a link to elsewhere is not written apart", path=path)

    def sync(self) -> None:
        """Bring all files to the disk.

        Raises:
            OutputError: ``output.write`` or ``output.space``.
        """
        self.fds.sync()
        self._staging.sync_small()

    def publish(self, look: Callable[[], None] = lambda: None) -> None:
        """Give everything its name, while no other run names files there.

        Args:
            look: looks once more at what only counts now, and may raise.

        Raises:
            OutputError: ``output.exists``, one of the files was made meanwhile; ``output.busy``; ``output.write``.
        """
        check()
        outside = self._in_order()
        if self._staging.path is None and all(file.is_there for file in outside):
            declare(LATE)
            return
        self._locked = Locked(sorted({self._folders.there(path) for path in self._parents(outside)}))
        with self._locked:
            try:
                look()
                self._publish(outside)
            except BaseException:
                if not self._complete:
                    self._stuck = self._naming.undo()
                raise

    def _in_order(self) -> list[File]:
        """The files that get names one by one; those that loaders begin with come last."""
        last = [self._files[path] for path in self._last]
        return [file for file in (*(f for f in self._files.values() if f not in last), *last) if not file.inside]

    def _parents(self, files: Iterable[File]) -> list[Path]:
        parents = {path.parent for path in (*(file.target for file in files), *self._gone)}
        return sorted(parents | ({self._directory.parent} if self._directory else set()))

    def _publish(self, outside: Sequence[File]) -> None:
        if not MOVES_OPEN:
            self.fds.close()
        for file in outside:
            if isinstance(file.what, Small):  # what it was left alone for may be gone
                with failing(file.target):
                    self._staging.bring(file, file.what)
        self._staging.sync_small()
        named = [file for file in outside if file.temp is not None and not file.is_there]
        parents = self._parents(named)
        if len(named) == 1 and self._directory is None and not (self._gone or self._folders.is_made(parents[0])):
            self._name_alone(named[0])
        elif parents:
            self._name_all(named, parents)
        self._complete = True
        declare(LATE)
        try:
            with syncing(self._directory or outside[-1].target):
                for parent in parents:
                    sync_directory(parent)
        finally:
            self._stuck = self._naming.settle()
        self._left = self._remove_temporary()

    def _name_alone(self, file: File) -> None:
        """One file replaces another in one step."""
        assert file.temp is not None
        with failing(file.target):
            if self._force and os.path.lexists(file.target):
                replace(file.temp, file.target)
            else:
                self._naming.give(file.temp, file.target)

    def _name_all(self, named: Sequence[File], parents: Iterable[Path]) -> None:
        """Take everything old away, then give everything its name; each step is on the disk before the next."""
        if self._directory is None:
            with failing(self.staging):
                self._staging.begin_naming(file.staged for file in self._files.values() if file not in named)
                self._folders.make()  # from here on whoever finds a dead run removes them
        for file in reversed(named) if self._force else ():
            with failing(file.target), suppress(FileNotFoundError):
                assert file.temp is not None
                keep_mode(file.temp, file.target)
                self._naming.take(file.target, self._staging.keep(file.target))
        for path in self._gone:
            with failing(path), suppress(FileNotFoundError):
                self._naming.take(path, self._staging.keep(path))
        self._sync_if_taken(parents)
        for number, file in enumerate(named):
            if number == len(named) - 1 and self._directory is None:
                self._sync_if_taken(parents)
            with failing(file.target):
                assert file.temp is not None
                self._naming.give(file.temp, file.target)
        if self._directory is not None:
            self._sync_if_taken(parents)
            with failing(self._directory):
                for folder in (FINISHED, UNFINISHED):
                    remove_folder(self.staging / folder)
                self._staging.become(self._directory, self._files.values())

    def _sync_if_taken(self, parents: Iterable[Path]) -> None:
        for parent in parents if self._naming.has_taken else ():
            with failing(parent):
                sync_directory(parent)

    @property
    def notes(self) -> list[str]:
        """What people should know of leftovers, of this run and of others."""
        return [*self._recovered, *self._stuck, *self._left, *self._locked.left]

    def _clean_up(self, error: BaseException | None) -> None:
        """Remove everything that has no business to stay, whatever signal comes meanwhile, and say what stays."""
        if self._kept is not None and not self._complete and self._kept.stays(error):
            self.fds.close()
            self._left = [*self._staging.leave(self._kept), *self._folders.remove()]
            declare(f"interrupted; {self._kept.sentence}")
            if isinstance(error, Interrupted):
                error.message = f"interrupted; {self._kept.sentence}"
            else:
                self._left.append(self._kept.sentence)
            if isinstance(error, CkconvError):
                error.details = (*error.details, *self.notes)
            return
        self._left = self._remove_temporary()
        if not self._complete and (self._stuck or self._left or self._locked.left):
            declare(LEFT)
            if isinstance(error, Interrupted):
                error.message = LEFT
        if isinstance(error, CkconvError):
            error.details = (*error.details, *self.notes)

    def _remove_temporary(self) -> list[str]:
        self.fds.close()
        left = self._staging.remove()
        return left if self._complete else [*left, *self._folders.remove()]
