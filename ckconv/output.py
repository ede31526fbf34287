"""Output files that are published complete or not at all.

Everything is written into a staging directory beside the target. The files get their real names by one link or rename
each, or all at once by the rename of the directory. Until then a failure, a signal or a lost race leaves what was
there before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from ckconv.descriptors import Descriptors
from ckconv.filesystem import failing, sync_directory, through_link
from ckconv.naming import Naming
from ckconv.places import check_apart, check_directory, check_room, check_target
from ckconv.signals import LATE, check, deferred
from ckconv.staging import File, Room, Small, Staging

__all__ = ["Outputs", "Room", "Small"]


class Outputs:
    """Large files and their side files, staged together and published together: side files first, then in order.

    A target that is a symbolic link is written where the link points. A side file that is there already with the same
    content is left alone. With ``force``, a file is replaced by one rename and keeps the old one's mode bits, and files
    that were replaced come back if a later one fails.

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
    ) -> None:
        """Describe what is going to be written; nothing is touched before :meth:`__enter__`.

        Args:
            large: the last one gets its name last.
            small: may be beside the others or anywhere else.
            directory: a directory that holds all of it, to be made anew; its files are directly inside.
            force: replace what is there.
            inputs: files that must not be overwritten whatever the flags say.
        """
        self._directory = through_link(directory) if directory else None
        outputs: list[tuple[Path, str, Room | Small]] = [(path, what.name, what) for path, what in small.items()]
        outputs += [(path, path.name, room) for path, room in large.items()]
        self._files = {
            path: File(through_link(path), name, what, inside=directory is not None and path.parent == directory)
            for path, name, what in outputs
        }
        self._force = force
        self._inputs = tuple(inputs)
        self._naming = Naming(force)
        self._staging = Staging()
        self._complete = False
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
        check()
        try:
            self._check()
            place = self._place()
            if place is not None:
                self._stage_all(place)
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clean_up()

    def _check(self) -> None:
        if self._directory is not None and not check_directory(self._directory, force=self._force):
            self._directory = None
            for file in self._files.values():
                file.inside = False
        outside = [file for file in self._files.values() if not file.inside]
        for file in outside:
            check_target(file.target, file.content, force=self._force, inputs=self._inputs)
        check_apart(file.target for file in outside)

    def _place(self) -> Path | None:
        """What the staging directory is beside: the largest file. ``None`` if there is nothing to write."""
        if self._directory is not None:
            return self._directory
        large = [file for file in self._files.values() if isinstance(file.what, Room)]
        if large:
            return max(large, key=lambda file: file.nbytes).target
        return next((file.target for file in self._files.values() if not file.is_there), None)

    def _stage_all(self, place: Path) -> None:
        files = self._files.values()
        with failing(place):
            apart = [file.content is None and file.is_apart(place.parent) for file in files]
            check_room(
                (file.target.parent if elsewhere else place.parent, file.target, file.nbytes)
                for file, elsewhere in zip(files, apart, strict=True)
            )
            self._staging.make(place, whole=self._directory is not None)
        for path, file in self._files.items():
            with failing(file.target):
                if isinstance(file.what, Small):
                    self._staging.add_small(file, file.what)
                else:
                    fd = self._staging.add_large(file, file.what)
                    assert file.temp is not None
                    self.fds.add(path, fd, file.temp)

    def sync(self) -> None:
        """Bring all files to the disk.

        Raises:
            OutputError: ``output.write`` or ``output.space``.
        """
        self.fds.sync()
        self._staging.sync_small()

    def publish(self) -> None:
        """Give everything its name.

        Raises:
            OutputError: ``output.exists``, somebody else made one of the files meanwhile; ``output.write``.
        """
        check()
        with deferred(late=LATE):
            self._publish()
            self._complete = True

    def _publish(self) -> None:
        outside = [file for file in self._files.values() if not file.inside]
        for file in outside:
            if isinstance(file.what, Small):  # what it was left alone for may be gone
                with failing(file.target):
                    self._staging.bring(file, file.what)
        self._staging.sync_small()
        parents: set[Path] = set()
        for file in outside:
            if file.temp is not None and not file.is_there:
                parents.add(file.target.parent)
                with failing(file.target):
                    last = file is outside[-1] and self._directory is None
                    self._naming.name(file.temp, file.target, last=last)
        if self._directory is not None:
            parents.add(self._directory.parent)
            with failing(self._directory):
                self._staging.become(self._directory, self._files.values())
        self._naming.settle()
        self._remove_temporary()
        for parent in sorted(parents):
            with failing(parent):
                sync_directory(parent)

    def _clean_up(self) -> None:
        """Remove everything that has no business to stay, whatever signal comes meanwhile."""
        with deferred(late=LATE if self._complete else None):
            self._naming.undo()
            self._remove_temporary()

    def _remove_temporary(self) -> None:
        self.fds.close()
        self._staging.remove()
