"""Names that several finished files get one after another, and lose again if one of them cannot have its own."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from ckconv.filesystem import NO_LINKS, claim, made_meanwhile, temporary_name


class Naming:
    """Gives names by one link or rename each; until :meth:`settle` all of it can be undone."""

    def __init__(self, force: bool) -> None:
        """Give names.

        Args:
            force: replace what has a name already; it keeps its mode bits.
        """
        self._force = force
        self._given: list[Path] = []
        #: (where the old content is kept, its name) of files that were replaced.
        self._replaced: list[tuple[Path, Path]] = []

    def name(self, temp: Path, target: Path, *, last: bool) -> None:
        """Turn ``temp`` into ``target``, in the same directory tree.

        Args:
            last: nothing comes after it that could fail, so that what it replaces need not be kept.

        Raises:
            OutputError: ``output.exists``, without ``force`` the name is taken, and be it since a moment ago.
            OSError: the system refuses.
        """
        if self._force:
            self._replace(temp, target, last=last)
            return
        try:
            claim(temp, target)
        except FileExistsError:
            raise made_meanwhile(target) from None
        self._given.append(target)

    def _replace(self, temp: Path, target: Path, *, last: bool) -> None:
        try:
            found = target.stat().st_mode
        except FileNotFoundError:
            os.replace(temp, target)
            self._given.append(target)
            return
        if stat.S_ISDIR(found):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        temp.chmod(stat.S_IMODE(found) & 0o777)
        if not last:
            self._keep(target)
        os.replace(temp, target)

    def _keep(self, target: Path) -> None:
        old = temporary_name(target.parent, target.name)
        self._replaced.append((old, target))
        try:
            os.link(target, old)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            target.rename(old)

    def settle(self) -> None:
        """All names stay; what was replaced goes."""
        kept = [old for old, _ in self._replaced]
        self._given.clear()
        self._replaced.clear()  # before one of them is gone: from here on nothing may be brought back
        for old in kept:
            with suppress(OSError):
                old.unlink()

    def undo(self) -> None:
        """Bring back what was replaced and take the names away that were given; after :meth:`settle`, nothing."""
        while self._replaced:
            old, target = self._replaced.pop()
            with suppress(OSError):
                os.replace(old, target)
                old.unlink()  # two names of one file: then a rename does nothing
        while self._given:
            with suppress(OSError):
                self._given.pop().unlink()
