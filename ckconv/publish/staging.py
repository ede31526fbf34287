"""Output files that are published complete or not at all.

Everything is written into a staging directory beside the target, where every file has the name that readers look for,
so that they find together what belongs together. The files get their real names by one link or rename each, or all at
once by the rename of the directory. Until then a failure, a signal or a lost race leaves what was there before.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ckconv.core.lazy import NamedTuple, dataclass
from ckconv.core.metadata import SideFile
from ckconv.errors import CkconvError, Interrupted
from ckconv.io.files import close_unwritten, holds
from ckconv.publish.files import (
    LOCK,
    Directory,
    check_different,
    check_directory,
    check_folder,
    check_gone,
    check_room,
    check_target,
    close_written,
    failing,
    followed,
    locked,
    made_meanwhile,
    shared_with,
    syncing,
    write_file,
)
from ckconv.publish.journal import (
    NAME,
    REPLACED,
    Journal,
    Place,
    discard,
    give,
    is_temporary,
    lasting_name,
    recover,
    temporary_name,
    undo,
    within,
)
from ckconv.system import MAX_OPEN, MOVES_OPEN, allocate, sync
from ckconv.system.signals import COMPLETE, LEFT, OLDER, check, declare, noted


class LargeFile(NamedTuple):
    """A large file, written through a descriptor.

    Attributes:
        nbytes: its exact size.
        holes: (offset, bytes) in it that are zeros and take no space, in order.
        later: its blocks are taken when it is written, if it is: another file may take its place.
    """

    nbytes: int
    holes: tuple[tuple[int, int], ...] = ()
    later: bool = False


class SmallFile(NamedTuple):
    """A side file.

    Attributes:
        name: what readers of the format look for, whatever the file is called in the end (``config.json``); it may
            lie in a directory (``1_Pooling/config.json``).
    """

    name: str
    content: SideFile


@dataclass(slots=True, eq=False)
class _File:
    """One output.

    Attributes:
        target: its place.
        parent: the directory of an output that it is in, perhaps in one inside that.
        reader: the place that readers look for, in the staging directory.
        inside: it comes with the directory that is made for it.
        copy: where readers find it meanwhile.
        staged: the staging directory, and the place in it, of what is going to be renamed.
    """

    target: Path
    parent: Path
    reader: Place
    what: LargeFile | SmallFile
    inside: bool = False
    copy: Path | None = None
    staged: tuple[Staging, Place] | None = None

    @property
    def place(self) -> Place:
        """Where it goes in its directory."""
        return self.target.relative_to(self.parent).parts

    @property
    def content(self) -> SideFile | None:
        """``None`` for a large file."""
        return self.what.content if isinstance(self.what, SmallFile) else None

    @property
    def nbytes(self) -> int:
        """The space that it takes."""
        if isinstance(self.what, SmallFile):
            return len(self.what.content)
        return self.what.nbytes - sum(nbytes for _, nbytes in self.what.holes)

    @property
    def is_there(self) -> bool:
        """Whether a side file needs no writing, as its place holds the content."""
        return self.content is not None and holds(self.target, self.content)


class Staging(Journal):
    """A staging directory, locked as long as the process lives.

    Attributes:
        left: sentences about lock files that could not be removed.
    """

    def __init__(self, place: Path, *, is_locked: bool, is_link: bool = True) -> None:
        """Make it beside ``place``.

        Args:
            is_locked: this run is naming files there already.
            is_link: the directory may be a link: nobody has looked yet where it leads.
        """
        here, name = Directory(place.parent, is_link=is_link), temporary_name(place.name)
        try:
            # No other run may find it before it is locked itself.
            with locked([] if is_locked else [place.parent]) as self.left:
                staged = here.make(name)
                with suppress(OSError):  # no locks here, then no run takes it for a dead one's
                    staged.is_free()
            status = staged.status()
            if status is not None and stat.S_IMODE(status.st_mode) & stat.S_IRWXU != stat.S_IRWXU:
                staged.chmod(".", stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
        except BaseException:
            with suppress(OSError):
                here.remove_directory(name)
            here.close()
            raise
        super().__init__(here, staged)

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.staged.path

    def create(self, reader: Place, allowed: int) -> tuple[Place, int]:
        """A new file and its descriptor, where readers look if that is free."""
        if len(reader) > 1:
            self.staged.make(reader[0]).close()
        with within(self.staged, reader) as (folder, name):
            name = name if folder.status(name) is None else temporary_name(name)
            return (*reader[:-1], name), folder.create(name, 0o666 & allowed)

    def add(self, what: SmallFile, reader: Place, allowed: int) -> Place:
        """Write a side file, bring it to the disk, and say where."""
        place, fd = self.create(reader, allowed)
        write_file(fd, what.content, self.path.joinpath(*place))
        return place

    def become(self, place: Path, allowed: int) -> None:
        """Take the permissions of the directory that is replaced, or of a new one."""
        there, own = self.here.status(place.name), self.staged.status()
        assert own is not None
        mode = there.st_mode if there is not None else own.st_mode & (allowed | ~0o777)
        self.staged.chmod(".", stat.S_IMODE(mode))

    def arrange(self, targets: Mapping[Place, Place]) -> None:
        """Leave only files that get a name, each under that name.

        Args:
            targets: where each of them is -> where it is to be.
        """
        for place in self._files():
            if place not in targets:
                self._move(place, None)
        for name in set(self.staged.names()) - {REPLACED, *(place[0] for place in targets)}:
            with suppress(OSError):  # somebody is at work in it
                self.staged.remove_directory(name)
        # In two steps: a name may be free only when another file has moved.
        moves = {old: new for old, new in targets.items() if old != new}
        between = {old: (*new[:-1], temporary_name(new[-1])) for old, new in moves.items()}
        for old, other in between.items():
            self._move(old, other)
        for old, other in between.items():
            self._move(other, moves[old])

    def _move(self, place: Place, other: Place | None) -> None:
        with within(self.staged, place) as (folder, name):
            if other is None:
                folder.remove(name)
            else:
                if len(other) > 1:
                    self.staged.make(other[0]).close()
                with within(self.staged, other) as (there, new):
                    folder.move(name, there, new)

    def _files(self) -> Iterator[Place]:
        """Every file that is staged."""
        for name in self.staged.names():
            status = self.staged.status(name)
            if status is None or not stat.S_ISDIR(status.st_mode):
                yield (name,)
            elif name != REPLACED:
                with Directory(Path(name), self.staged) as folder:
                    yield from ((name, inner) for inner in folder.names())

    def shrink(self) -> None:
        """Give the room back that staged files take which have no other name."""
        for place in self._files():
            with suppress(OSError), within(self.staged, place) as (folder, name):
                status = folder.status(name)
                if name != NAME and status is not None and stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                    os.truncate(folder.path / name, 0)

    def sync_names(self) -> None:
        """Bring its names to the disk."""
        for name in sorted({place[0] for place in self._files() if len(place) > 1}):
            with Directory(Path(name), self.staged) as folder:
                folder.sync()
        self.staged.sync()

    def close(self) -> None:
        """Let go of it."""
        super().close()
        self.staged.close()
        self.here.close()


class Outputs:
    """Large files and side files, staged together and published together.

    A side file that is there already with the same content is left alone. With ``force``, what is replaced gives its
    mode bits to its successor. One file is replaced in one step; of several, the old ones are taken away before the
    first new one is named, and come back if one fails. No name that an output has is written through a link: only
    ``directory`` and ``typed`` may be links, with ``force``. From entering to leaving, signals are noted:
    :func:`ckconv.system.signals.check` raises them.

    Attributes:
        fds: large target, as it was given -> descriptor.
    """

    def __init__(
        self,
        large: Mapping[Path, LargeFile],
        small: Mapping[Path, SmallFile],
        *,
        directory: Path | None = None,
        force: bool = False,
        inputs: Iterable[Path] = (),
        last: Sequence[Path] = (),
        gone: Sequence[Path] = (),
        typed: Path | None = None,
        follow: bool = True,
    ) -> None:
        """Describe the output; nothing is touched before :meth:`__enter__`.

        Args:
            large: the last one gets its name last.
            small: may be beside the others or anywhere else.
            directory: a directory that holds all of it, to be made anew, with the directories that its files are in.
            force: replace what is there.
            inputs: files that must not be overwritten whatever the flags say, and who may read them.
            last: what loaders begin with; these files get their names after the others, in this order.
            gone: files that are replaced by nothing, with ``force``.
            typed: the one file of it that a user has named, if one was.
            follow: ``directory`` and ``typed`` may be links, with ``force``.
        """
        self._force, self._inputs, self._last, self._gone = force, tuple(inputs), last, tuple(gone)
        self._large, self._small = large, small
        self._given_directory, self._typed, self._follow = directory, typed, follow
        self._files: dict[Path, _File] = {}
        self._directory: Path | None = None
        #: The directory gets its name in one step; or it is filled, and nothing else is to be in it.
        self._whole = self._alone = False
        self._stagings: dict[Path, Staging] = {}
        self._signals = ExitStack()
        self._naming = self._complete = False
        self._made: list[Path] = []
        #: Sentences: links that are followed, and what was brought back of dead runs; what these left; names that could
        #: not be undone; what could not be removed.
        self._notes, self._left_by_others, self._stuck = list[str](), list[str](), list[str]()
        self._left, self._locks_left = list[str](), list[str]()
        self._allowed = 0o777
        self.fds = Descriptors()

    @property
    def staging(self) -> Path:
        """The directory of everything until it is published."""
        return self._main.path

    @property
    def _main(self) -> Staging:
        return next(iter(self._stagings.values()))

    def staged(self, path: Path) -> Path:
        """Where readers find a target, as it was given, until it is published."""
        copy = self._files[path].copy
        assert copy is not None
        return copy

    def __enter__(self) -> Outputs:
        """Check the paths, then make the staging directory and its files.

        Raises:
            OutputError: ``output.exists``, ``output.directory``, ``output.parent``, ``output.special``,
                ``output.is-input``, ``output.space`` or ``output.write``.
        """
        self._signals.enter_context(noted())
        self._signals.push(lambda kind, error, trace: self._clean_up(error))
        declare(None)
        try:
            check()
            self._describe()
            self.recover()
            self._check()
            if self._gone or any(os.path.lexists(file.target) for file in self._files.values()):
                declare(OLDER)
            if (place := self._place()) is not None:
                self._stage(place)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, *raised: Any) -> None:
        self._signals.__exit__(*raised)

    def recover(self) -> None:
        """Undo and remove what dead runs left."""
        # Nobody goes back to finished files of an earlier run.
        outputs = [self._directory, *(file.target for file in self._files.values() if isinstance(file.what, LargeFile))]
        abandoned = [lasting_name(place.name) for place in outputs if place is not None]
        notes, self._left_by_others = recover(self._parents(), abandoned=abandoned)
        self._notes += notes

    def _describe(self) -> None:
        """Decide where each file goes; named links are followed with ``force``."""
        given = self._given_directory
        directory = self._directory = self._followed(given) if given else None
        outputs: list[tuple[Path, LargeFile | SmallFile]] = [*self._small.items(), *self._large.items()]
        for path, what in outputs:
            inside = given is not None and given in path.parents
            target = directory / path.relative_to(given) if inside and directory and given else path
            if path == self._typed and not inside:
                target = self._followed(path)
            there = path.relative_to(given if inside and given else path.parent)
            reader = (Path(what.name) if isinstance(what, SmallFile) else there).parts
            parent = directory if inside and directory else target.parent
            self._files[path] = _File(target, parent, reader, what)

    def _followed(self, path: Path) -> Path:
        real = followed(path, force=self._force, typed=self._follow)
        self._notes += [f"{path} is a link: the output is {real}"] if real != path else []
        return real

    def _parents(self) -> list[Path]:
        parents = {file.parent for file in self._files.values()} | {self._parent(path) for path in self._gone}
        return sorted(parents | ({self._directory.parent} if self._directory else set()))

    def _check(self) -> None:
        directory = self._directory
        new = directory is not None and check_directory(directory, force=self._force)
        for file in reversed(self._in_order()):  # what somebody has named comes first
            if new and file.parent == directory:
                continue
            if len(file.place) > 1:
                check_folder(file.target.parent)
            if len(file.place) == 1 or file.target.parent.exists():
                check_target(file.target, file.content, force=self._force, inputs=self._inputs)
        check_gone(self._gone, self._inputs)
        check_different(file.target for file in self._in_order())
        self._allowed = shared_with(self._inputs)
        outside = (file for file in self._files.values() if file.parent != directory)
        self._whole = new and all(file.is_there for file in outside)
        self._alone = new and not self._whole
        if new and not self._whole and directory is not None and not directory.exists():
            with failing(directory):
                directory.mkdir(0o777 & self._allowed)
            self._made.append(directory)

    def _place(self) -> Path | None:
        """The largest file, which is staged beside its place; ``None`` for none."""
        if self._whole:
            return self._directory
        large = [file for file in self._files.values() if isinstance(file.what, LargeFile)]
        if large:
            main = max(large, key=lambda file: file.nbytes)
            return main.parent / main.place[-1]
        missing = [file.parent / file.place[-1] for file in self._files.values() if not file.is_there]
        return next(iter([*missing, *self._gone]), None)

    def _stage(self, beside: Path) -> None:
        if self._whole:
            for file in self._files.values():
                file.inside = file.parent == self._directory
        with failing(beside):
            files = self._files.values()
            check_room((beside.parent if f.inside else f.parent, f.target, f.nbytes) for f in files)
            main = self._staging(beside, beside.parent)
            if self._whole:
                main.become(beside, self._allowed)
        for path, file in self._files.items():
            with failing(file.target):
                self._stage_file(path, file)

    def _stage_file(self, path: Path, file: _File) -> None:
        """Stage a file where it is going to be renamed."""
        main, what = self._main, file.what
        near = file.inside or file.parent.samefile(main.here.path)
        if isinstance(what, LargeFile):
            home = main if near else self._staging(file.target, file.parent)
            place, fd = home.create(file.reader, self._allowed_of(file))
            self.fds.add(path, fd, home.staged, place)
            if not what.later:
                allocate(fd, what.nbytes, what.holes)
            file.staged = home, place
        else:
            home, place = main, main.add(what, file.reader, self._allowed_of(file))
            if near:
                file.staged = main, place
            elif not file.is_there:
                self._bring(file, what)
        file.copy = home.path.joinpath(*place)

    def _bring(self, file: _File, what: SmallFile) -> None:
        """Stage a side file beside its place, which is in another directory."""
        home = self._staging(file.target, file.parent)
        file.staged = home, home.add(what, file.place, self._allowed_of(file))

    def _allowed_of(self, file: _File) -> int:
        """The permissions that a file may have at most."""
        return self._allowed & shared_with([file.target] if self._force and not file.inside else [])

    def _staging(self, place: Path, parent: Path) -> Staging:
        """The staging directory of a directory, made where there is none yet."""
        found = next((known for known in self._stagings if known == parent or known.samefile(parent)), None)
        if found is None:
            made = Staging(parent / place.name, is_locked=self._naming, is_link=parent != self._directory)
            self._stagings[found := parent] = made
        return self._stagings[found]

    def share(self, path: Path, directory: Directory, name: str) -> bool:
        """Give a large file a second name in a directory.

        Returns:
            ``False`` where files have one name only: it is there now, and a file without content is here.
        """
        staging, place = self._staged(path)
        with within(staging.staged, place) as (folder, own):
            give(folder, own, directory, name)
            if folder.status(own) is not None:
                return True
            self.fds.forget(path)
            close_written(folder.create(own, 0o666 & self._allowed))
        return False

    def take(self, path: Path, directory: Directory, name: str) -> None:
        """Put a finished file in the place of a large one."""
        staging, place = self._staged(path)
        with within(staging.staged, place) as (folder, own):
            here, there = folder.status(own), directory.status(name)
            if here is None or there is None or here.st_ino != there.st_ino:
                self.fds.forget(path)
                folder.remove(own)
                give(directory, name, folder, own)

    def _staged(self, path: Path) -> tuple[Staging, Place]:
        staged = self._files[path].staged
        assert staged is not None
        return staged

    def publish(self, look: Callable[[], None] = lambda: None) -> None:
        """Give everything its name, while no other run names files there.

        Args:
            look: looks once more at what only counts now, and may raise.

        Raises:
            OutputError: ``output.exists``, one of the files was made meanwhile; ``output.busy``; ``output.write``.
        """
        check()
        if not self._stagings and all(file.is_there for file in self._files.values()):
            declare(COMPLETE)
            return
        parents = {file.parent for file in self._files.values() if not file.inside}
        parents |= {self._parent(path) for path in self._gone} | ({self._main.here.path} if self._whole else set())
        with locked(sorted(parents)) as self._locks_left:
            self._naming = True
            try:
                look()
                self._check_alone()
                self._publish()
            except BaseException:
                if not self._complete:
                    self._undo()
                raise

    def _check_alone(self) -> None:
        """Check that an empty directory has no files of other programs by now."""
        if self._alone and not self._force and self._directory is not None:
            with failing(self._directory):
                if any(path.name != LOCK and not is_temporary(path.name) for path in self._directory.iterdir()):
                    raise made_meanwhile(self._directory)

    def _in_order(self) -> list[_File]:
        """The files in the order of naming, those that loaders begin with last."""
        last = [self._files[path] for path in self._last if path in self._files]
        return [*(file for file in self._files.values() if file not in last), *last]

    def _publish(self) -> None:
        if not MOVES_OPEN:
            self.fds.close()
        named = [file for file in self._in_order() if not file.is_there]
        for file in named:
            if isinstance(file.what, SmallFile) and file.staged is None:  # what it was left alone for is gone
                if self._whole:
                    raise made_meanwhile(file.target)
                with failing(file.target):
                    self._bring(file, file.what)
        here = [staging.here for staging in self._stagings.values()]
        with failing(self.staging):
            self._main.arrange(
                {file.staged[1]: file.place for file in named if file.staged and file.staged[0] is self._main}
            )
        if self._whole:
            self._become_directory()
        elif len(named) == 1 and not self._gone and len(named[0].place) == 1:
            self._name_alone(named[0])
        elif named or self._gone:
            self._name_all(named)
        self._complete = True
        declare(COMPLETE)
        try:
            with syncing(self._directory or self._in_order()[-1].target):
                for directory in here:
                    directory.sync()
        finally:
            self._left = self._remove()
        if self._left_by_others:
            _, self._left_by_others = recover(self._parents(), over=[*(file.target for file in named), *self._gone])

    def _become_directory(self) -> None:
        directory, main = self._directory, self._main
        assert directory is not None
        with failing(directory):
            main.sync_names()
            try:
                main.here.put(main.path.name, directory.name)
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise made_meanwhile(directory) from None
                raise
        del self._stagings[next(iter(self._stagings))]
        main.close()

    def _name_alone(self, file: _File) -> None:
        """Give a single file its name in one step, in place of an old file."""
        assert file.staged is not None
        staging, name = file.staged[0], file.place[0]
        with failing(file.target):
            status = staging.here.status(name) if self._force else None
            if status is None:
                give(staging.staged, name, staging.here, name)
            elif stat.S_ISDIR(status.st_mode):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
            else:
                self._keep_mode(file)
                staging.staged.move(name, staging.here, name)

    def _keep_mode(self, file: _File) -> None:
        """Give a staged file the permissions of what it replaces."""
        assert file.staged is not None
        staging = file.staged[0]
        with suppress(FileNotFoundError), within(staging.here, file.place) as (here, name):
            status = here.status(name)
            if status is not None and stat.S_ISREG(status.st_mode):
                with within(staging.staged, file.place) as (folder, _):
                    folder.chmod(name, stat.S_IMODE(status.st_mode) & 0o777 & self._allowed)

    def _name_all(self, named: Sequence[_File]) -> None:
        """Take everything old away, then give everything its name.

        What loaders begin with is taken first and given last, and each half is on the disk before the other.
        """
        steps: list[tuple[Staging, Place, Path]] = []
        for file in named:
            assert file.staged is not None
            with failing(file.target):
                self._keep_mode(file)
            steps.append((file.staged[0], file.place, file.target))
        taken = [*reversed(steps)] if self._force else []
        for path in self._gone:
            parent = self._parent(path)
            taken.append((self._staging(path, parent), path.relative_to(parent).parts, path))
        group = [os.path.realpath(staging.path) for staging in self._stagings.values()]
        for staging in reversed(self._stagings.values()):  # that of the main one counts
            with failing(staging.path):
                folders = [place[0] for home, place, _ in steps if home is staging and len(place) > 1]
                staging.begin(
                    [place for home, place, _ in taken if home is staging],
                    [place for home, place, _ in steps if home is staging],
                    sorted({name for name in folders if staging.here.status(name) is None}),
                    group,
                )
        for number, (staging, place, path) in enumerate(taken):
            with failing(path):
                staging.take_away(place)
                if number in (0, len(taken) - 1):
                    self._sync()
        for number, (staging, place, path) in enumerate(steps):
            with failing(path):
                if number == len(steps) - 1:
                    self._sync()
                staging.give_name(place)

    def _sync(self) -> None:
        for staging in self._stagings.values():
            staging.sync()

    def _parent(self, path: Path) -> Path:
        """The directory of the output that a path is in, however deep."""
        parents = {file.parent for file in self._files.values()}
        return next((parent for parent in path.parents if parent in parents), path.parent)

    def _undo(self) -> None:
        """Put everything back.

        Where that fails on a full disk, once more when nothing else takes room on it.
        """
        _, self._stuck = undo([*self._stagings.values()])
        if self._stuck:
            self.fds.close()
            for staging in self._stagings.values():
                staging.shrink()
            _, self._stuck = undo([*self._stagings.values()])

    @property
    def notes(self) -> list[str]:
        """Notes about links, and about leftovers of this and of other runs."""
        return [*self._notes, *self._left_by_others, *self._stuck, *self._left, *self._locks_left]

    def _clean_up(self, error: BaseException | None) -> None:
        """Remove everything that has no business to stay, and say what stays."""
        if not self._complete:
            self._left += self._remove()
            for path in self._made:
                with suppress(OSError):  # somebody has put something there
                    path.rmdir()
            if self._stuck or self._left or self._locks_left:
                declare(LEFT)
                if isinstance(error, Interrupted):
                    error.message = LEFT
        if isinstance(error, CkconvError):
            error.details = (*error.details, *self.notes)

    def _remove(self) -> list[str]:
        self.fds.close()
        left = []
        for parent, staging in [*self._stagings.items()]:
            left += [*staging.left, *([] if self._stuck else discard(staging.here, staging.staged))]
            staging.close()
            del self._stagings[parent]
        return left


class Descriptors(Mapping[Path, int]):
    """Descriptors of outputs, to read and write them.

    Each stays open until ``MAX_OPEN`` others were opened.

    What is closed before the end is brought to the disk first: whoever opens it again might not hear of a failed write.
    One thread asks for descriptors.
    """

    def __init__(self) -> None:
        self._located: dict[Path, tuple[Directory, Place]] = {}
        #: Output -> descriptor, in the order in which they were opened.
        self._open: dict[Path, int] = {}

    def add(self, output: Path, fd: int, directory: Directory, place: Place) -> None:
        """Take over the descriptor of ``output``, which is at ``place`` for now."""
        self._located[output], self._open[output] = (directory, place), fd
        self._make_room(MAX_OPEN)

    def forget(self, output: Path) -> None:
        """Close the descriptor of a file whose place another file takes."""
        if output in self._open:
            close_written(self._open.pop(output))

    def __getitem__(self, output: Path) -> int:
        if output not in self._open:
            self._make_room(MAX_OPEN - 1)
            self._open[output] = self._opened(output)
        return self._open[output]

    def _opened(self, output: Path) -> int:
        directory, place = self._located[output]
        with failing(output), within(directory, place) as (folder, name):
            return folder.open(name, os.O_RDWR)

    def _make_room(self, most: int) -> None:
        while len(self._open) > most:
            output = next(iter(self._open))
            with failing(output):
                sync(self._open[output])
                close_written(self._open.pop(output))

    def sync(self) -> None:
        """Bring all files to the disk, in any thread.

        Raises:
            OutputError: ``output.write`` or ``output.space``.
        """
        for output in [*self._located]:
            fd = self._open.get(output)
            if fd is not None and len(self._located) <= MAX_OPEN:
                with failing(output):
                    sync(fd)
            else:
                fd = self._opened(output)
                try:
                    with failing(output):
                        sync(fd)
                finally:
                    close_unwritten(fd)

    def __iter__(self) -> Iterator[Path]:
        return iter(list(self._located))

    def __len__(self) -> int:
        return len(self._located)

    def close(self) -> None:
        """Close every descriptor and forget the files."""
        self._located.clear()
        while self._open:
            with suppress(OSError):  # what could go wrong was said when it was brought to the disk
                os.close(self._open.popitem()[1])
