"""Journal of an output of several files: names taken away and given.

It is on the disk before the first step.

As long as ``journal.json`` is in a staging directory, whoever finds that of a dead run undoes its steps in reverse, if
one of its files has no name yet; else everything has its name, and only the rest is removed. Anybody may have made the
document: it holds plain names, and what it names is moved within the directory that it was found in, and nowhere else.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ckconv.errors import BROUGHT_BACK, OutputError
from ckconv.publish.files import CUT, Directory, close_written, locked, made_meanwhile
from ckconv.system import is_own

#: What a file system says that cannot make hard links (FAT, some network mounts), or may not here (some containers).
#: What has another reason, such as a directory that may not be written to, comes again with what is done instead.
NO_LINKS = (
    errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV,
)  # fmt: skip

NAME = "journal.json"

#: The directory in a staging directory of files that were there before, under the names that they had.
REPLACED = ".replaced"

#: What the directory of replaced files was called up to version 0.3, which wrote no journal.
_FORMER = ".old"

#: What says of which conversion finished files are, in a directory to which a later run goes back (``--resume``).
CONVERSION = ".conversion"


_TEMPORARY = re.compile(r"\..+\.ckconv-[0-9a-f]{8}\.tmp", re.DOTALL)

#: What the files of a split model have in their names beside its own (``llama_split_path`` of llama.cpp).
_NUMBER = re.compile(r"-\d{5}-of-\d{5}(?=\.|$)")

#: Bytes of a journal: some hundred names of shards take 50 kB.
_MOST = 16 << 20

#: A name in a directory, or in a directory inside it.
Place = tuple[str, ...]


#: Directories in each other that a staging directory has.
_DEEP = 3


def temporary_name(name: str) -> str:
    """A new name that says which output it is for."""
    return f".{os.fsdecode(os.fsencode(name)[:CUT])}.ckconv-{os.urandom(4).hex()}.tmp"


def lasting_name(name: str) -> str:
    """The name of the directory of an output's finished files.

    It is the same for each file of a split model, into however many files that is split.
    """
    name = _NUMBER.sub("", name)
    from hashlib import sha256

    digest = sha256(os.fsencode(name)).hexdigest()[:8]
    return f".{os.fsdecode(os.fsencode(name)[:CUT])}.ckconv-{digest}.tmp"


def is_temporary(name: str) -> bool:
    """Whether a staging directory may have this name."""
    return _TEMPORARY.fullmatch(name) is not None


@contextmanager
def within(directory: Directory, place: Place) -> Iterator[tuple[Directory, str]]:
    """The directory of a place, which may be no link, and the name in it."""
    if len(place) == 1:
        yield directory, place[0]
    else:
        with Directory(Path(place[0]), directory) as folder:
            yield folder, place[1]


class Journal:
    """The steps in one directory.

    Methods raise what the system says, as :class:`OSError`.

    Attributes:
        here: where names are taken and given.
        staged: the staging directory in it; every file has the place there that it is to have here.
        take, give: paths, in the order of the steps; for what is given, with its inode.
        folders: directories that are made for it.
    """

    def __init__(self, here: Directory, staged: Directory) -> None:
        self.here, self.staged = here, staged
        self.take: list[Place] = []
        self.give: list[tuple[Place, int]] = []
        self.folders: list[str] = []
        self._replaced: Directory | None = None

    def begin(self, take: Sequence[Place], give: Sequence[Place], folders: Sequence[str], group: Sequence[str]) -> None:
        """Write it to the disk, and make the directories.

        Args:
            group: the staging directories of the same output, each by its path; the first one's journal counts.
        """
        self.take, self.folders = [*take], [*folders]
        for place in give:
            with within(self.staged, place) as (folder, name):
                status = folder.status(name)
                assert status is not None
                self.give.append((place, status.st_ino))
        document = {"take": self.take, "give": self.give, "folders": self.folders, "group": [*group]}
        self._replaced = self.staged.make(REPLACED)
        for folder_name in sorted({place[0] for place in take if len(place) > 1}):
            self._replaced.make(folder_name).close()
        self.staged.write(NAME, json.dumps(document).encode())
        for directory in (self._replaced, self.staged, self.here):
            directory.sync()
        for name in self.folders:
            self.here.make(name).close()

    # Steps

    def take_away(self, place: Place) -> None:
        """Move a file to the staging directory, if there is one of its name."""
        assert self._replaced is not None
        with suppress(FileNotFoundError), within(self.here, place) as (here, name):
            status = here.status(name)
            if status is not None and stat.S_ISDIR(status.st_mode):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
            with within(self._replaced, place) as (former, _):
                here.move(name, former, name)

    def give_name(self, place: Place) -> None:
        """Give a staged file its name.

        Raises:
            OutputError: ``output.exists``, the name is taken, possibly only just now.
        """
        with within(self.staged, place) as (staged, name), within(self.here, place) as (here, _):
            give(staged, name, here, name)

    def sync(self) -> None:
        """Bring every step to the disk."""
        for directory in filter(None, (self.here, self._replaced)):
            directory.sync()
            for folder in sorted({place[0] for place in (*self.take, *dict(self.give)) if len(place) > 1}):
                with suppress(FileNotFoundError, NotADirectoryError), Directory(Path(folder), directory) as inside:
                    inside.sync()

    # The way back

    def has_unnamed(self) -> bool:
        """Whether a staged file has no name yet."""
        return any(
            (staged := _status(self.staged, place)) is not None
            and ((here := _status(self.here, place)) is None or here.st_ino != staged.st_ino)
            for place, _ in self.give
        )

    def taken(self) -> list[Place]:
        """Paths in the staging directory of files that were here before."""
        with suppress(FileNotFoundError, NotADirectoryError):
            self._replaced = self._replaced or Directory(Path(REPLACED), self.staged)
        replaced = self._replaced
        return [place for place in self.take if replaced and _status(replaced, place) is not None]

    def _is_given(self, place: Place, inode: int) -> bool:
        """Whether a name has the staged file, or the empty file that claims it."""
        here, staged = _status(self.here, place), _status(self.staged, place)
        is_claim = here is not None and staged is not None and stat.S_ISREG(here.st_mode) and not here.st_size
        return here is not None and (here.st_ino == inode or is_claim)

    def in_the_way(self) -> list[Place]:
        """Paths of former files that files of another output have by now."""
        given = {place for place, inode in self.give if self._is_given(place, inode)}
        return [place for place in self.taken() if _status(self.here, place) is not None and place not in given]

    def take_back(self) -> list[str]:
        """Take every name away that was given.

        Returns:
            sentences about what could not be undone.
        """
        left = []
        for place, inode in reversed(self.give):
            try:
                if self._is_given(place, inode):
                    with within(self.here, place) as (here, name), within(self.staged, place) as (staged, _):
                        here.remove(name) if staged.status(name) is not None else here.move(name, staged, name)
            except OSError as error:
                left.append(f"{self._path(place)} is new; it could not be removed: {error.strerror}")
        return left

    def restore(self, *, last: bool) -> tuple[list[str], list[str]]:
        """Bring back the former files, the one that loaders begin with last.

        Args:
            last: bring that back, too.

        Returns:
            sentences about what was brought back, and about what could not be.
        """
        notes, left = [], []
        for place in reversed(self.taken()):
            assert self._replaced is not None
            path = self._path(place)
            try:
                if place == self.take[0] and not last:
                    raise OSError(errno.EBUSY, "it was not restored, because new files are beside it")
                if _status(self.here, place) is not None:
                    raise OSError(errno.EEXIST, "another file of this name was made in the meantime")
                with within(self._replaced, place) as (replaced, name), within(self.here, place) as (here, _):
                    replaced.move(name, here, name)
                notes.append(f"{path} had been removed by a run that was killed; it is restored")
            except OSError as error:
                former = self.staged.path.joinpath(REPLACED, *place)
                left.append(f"the former {path} is now {former} and could not be restored: {error.strerror}")
        return notes, left

    def _path(self, place: Place) -> Path:
        return self.here.path.joinpath(*place)

    def close(self) -> None:
        """Close what it has opened."""
        if self._replaced is not None:
            self._replaced.close()


def give(staged: Directory, name: str, here: Directory, other: str) -> None:
    """Give a staged file a further name, which is to be free.

    Raises:
        OutputError: ``output.exists``, the name is taken, possibly only just now.
    """
    try:
        try:
            staged.link(name, here, other)
            return
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
        # Without hard links the name is claimed by an empty file that must be new, which the rename then replaces.
        close_written(here.create(other))
    except FileExistsError:
        raise made_meanwhile(here.path / other) from None
    try:
        staged.move(name, here, other)
    except OSError:
        here.remove(other)
        raise


def _status(directory: Directory, place: Place) -> os.stat_result | None:
    with suppress(FileNotFoundError, NotADirectoryError), within(directory, place) as (folder, name):
        return folder.status(name)
    return None


def undo(journals: Sequence[Journal]) -> tuple[list[str], list[str]]:
    """Undo the steps of one output, as far as the system lets that be done.

    Returns:
        sentences about what was brought back, and about what could not be.
    """
    left = [sentence for journal in journals for sentence in journal.take_back()]
    with suppress(OSError):
        for journal in journals:
            journal.sync()
    notes = []
    for journal in reversed(journals):  # the first one has what loaders begin with
        restored, stuck = journal.restore(last=not left)
        notes += restored
        left += stuck
        for folder in journal.folders:
            with suppress(OSError):  # something is in it
                journal.here.remove_directory(folder)
        with suppress(OSError):
            journal.sync()
    return notes, left


# Dead runs


def recover(
    directories: Iterable[Path], *, abandoned: Collection[str] = (), over: Collection[Path] = ()
) -> tuple[list[str], list[str]]:
    """Undo and remove what dead runs of this user left in directories.

    Args:
        abandoned: directories of finished files, by their names, of which nothing is kept.
        over: files that have just been replaced: former ones of these names are not wanted back.

    Returns:
        sentences about what was brought back, and about what is still there.
    """
    notes: list[str] = []
    left: list[str] = []
    for directory in directories:
        if leftovers(directory):
            with suppress(OutputError, OSError), locked([directory]):
                for name in leftovers(directory):
                    with suppress(OSError):
                        restored, stuck = _recovered(directory / name, over, lasting=name not in abandoned)
                        notes += restored
                        left += stuck
    return notes, left


def bring_back(directory: Path) -> list[str]:
    """Bring back what dead runs took away in a directory that is to be read.

    Returns:
        sentences about what was brought back, and about what is not in its place.
    """
    found = [name for name in leftovers(directory, own=False) if os.path.lexists(directory / name / NAME)]
    notes, left = recover([directory]) if found else ([], [])
    away = [directory / name / REPLACED for name in found if os.path.lexists(directory / name / NAME)]
    notes += left or [
        f"{path} has files of this directory, which a run of ckconv was replacing: wait for it, or move them back"
        for path in away
    ]
    BROUGHT_BACK.extend(notes)
    return notes


def leftovers(directory: Path, *, own: bool = True) -> list[str]:
    """Names of staging directories in a directory, of this user or of anybody."""
    found = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            is_one = is_temporary(entry.name) and entry.is_dir(follow_symlinks=False)
            if is_one and (not own or is_own(entry.stat(follow_symlinks=False))):
                found.append(entry.name)
    return sorted(found)


def _recovered(path: Path, over: Collection[Path], *, lasting: bool) -> tuple[list[str], list[str]]:
    with ExitStack() as stack:
        here = stack.enter_context(Directory(path.parent))
        staged = stack.enter_context(Directory(Path(path.name), here))
        if not staged.is_free():  # OSError: no locks here, then nobody can know
            return [], []
        if (name := _unreadable(staged)) is not None:
            return [], [
                f"{path / name} holds files that a run replaced that was killed: move them back, or remove them"
            ]
        journals = _group(stack, here, staged)
        notes: list[str] = []
        if any(journal.has_unnamed() for journal in journals):
            others = [journal.here.path.joinpath(*place) for journal in journals for place in journal.in_the_way()]
            if not others:
                notes, left = undo(journals)
                if left:
                    return notes, left
            elif not set(others) <= set(over):
                return [], [f"{path} holds files that a killed run replaced; others stand in their places now"]
        elif not journals and lasting and is_lasting(staged):
            return [], []
        pairs = [(journal.here, journal.staged) for journal in journals] or [(here, staged)]
        return notes, [sentence for pair in pairs for sentence in discard(*pair)]


def _group(stack: ExitStack, here: Directory, staged: Directory) -> list[Journal]:
    """The journals of one output, in all directories that name each other."""
    found = _read(staged)
    if found is None:
        return []
    journal, group = found
    stack.callback(journal.close)
    journal.here, journals = here, {os.path.realpath(staged.path): journal}
    for path in group if os.path.realpath(staged.path) in group else ():
        parent, name = os.path.split(path)
        if path in journals or not (Path(path).is_absolute() and is_temporary(name)):
            continue
        with suppress(FileNotFoundError, NotADirectoryError):
            other = stack.enter_context(Directory(Path(parent)))
            folder = stack.enter_context(Directory(Path(name), other))
            read = _read(folder)
            if read is not None and read[1] == group:
                if not folder.is_free():
                    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
                read[0].here, journals[path] = other, read[0]
                stack.callback(read[0].close)
    return [journals[path] for path in group if path in journals] or [journal]


def _read(staged: Directory) -> tuple[Journal, list[str]] | None:
    """Journal and group in a staging directory; ``None`` if none makes sense."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        document = json.loads(staged.read(NAME, _MOST))
        journal = Journal(staged, staged)
        journal.take = [_place(names) for names in document["take"]]
        journal.give = [(_place(names), int(inode)) for names, inode in document["give"]]
        journal.folders = [_place([name])[0] for name in document["folders"]]
        group = document["group"]
        if isinstance(group, list) and all(isinstance(path, str) for path in group):
            return journal, group
    return None


def _place(names: object) -> Place:
    """A place that a journal names."""
    if not isinstance(names, list) or len(names) not in (1, 2):
        raise ValueError(names)
    for name in names:
        if not isinstance(name, str) or name in ("", ".", "..") or os.path.basename(name) != name or "\0" in name:
            raise ValueError(name)
    return tuple(names)


def _unreadable(staged: Directory) -> str | None:
    """The directory of replaced files that no journal tells how to put back."""
    for name in (_FORMER, *([REPLACED] if staged.status(NAME) is not None and _read(staged) is None else [])):
        with suppress(FileNotFoundError, NotADirectoryError), Directory(Path(name), staged) as replaced:
            for inner in replaced.names():
                status = replaced.status(inner)
                if status is not None and stat.S_ISREG(status.st_mode):
                    return name
                with suppress(NotADirectoryError, FileNotFoundError), Directory(Path(inner), replaced) as folder:
                    if any(stat.S_ISREG(s.st_mode) for s in map(folder.status, folder.names()) if s is not None):
                        return name
    return None


def is_lasting(staged: Directory) -> bool:
    """Whether a later run may go on with finished files (``--resume``)."""
    return staged.status(CONVERSION) is not None and any(not name.startswith(".") for name in staged.names())


def discard(here: Directory, staged: Directory) -> list[str]:
    """Remove a staging directory, its journal first.

    Returns:
        sentences about what is still there.
    """
    try:
        with suppress(IsADirectoryError, PermissionError):
            staged.remove(NAME)
        _empty(staged, _DEEP)
        here.remove_directory(staged.path.name)
    except OSError as error:
        return [f"{staged.path} is left over; it could not be removed: {error.strerror}"]
    return []


def _empty(directory: Directory, deep: int) -> None:
    """Remove what is in a directory; links are removed and not followed."""
    failed: OSError | None = None
    for name in directory.names():
        try:
            status = directory.status(name)
            if status is not None and stat.S_ISDIR(status.st_mode) and deep:
                with Directory(Path(name), directory) as inside:
                    _empty(inside, deep - 1)
                directory.remove_directory(name)
            else:
                directory.remove(name)
        except OSError as error:
            failed = failed or error
    if failed is not None:
        raise failed
