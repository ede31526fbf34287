"""Names that finished files get one after another; all of it can be undone until it is settled.

Several files that replace others are named in two steps: first everything old is taken away, then everything new is
given its name. Whoever looks in between, or after the process was killed, finds a part of the old files or a part of
the new ones, and never files of both; what loaders begin with is taken away first and given last.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from ckconv.publish.files import NO_LINKS, close_written, create, made_meanwhile, removed
from ckconv.system import link


class Naming:
    """Takes names away and gives them, by one link or rename each."""

    def __init__(self) -> None:
        self._given: list[Path] = []
        #: (where it is kept, its name) of files that were taken away.
        self._taken: list[tuple[Path, Path]] = []

    @property
    def has_taken(self) -> bool:
        """Something old is not in its place."""
        return bool(self._taken)

    def take(self, target: Path, kept: Path) -> None:
        """Move what is at ``target`` to ``kept``, which is free.

        Raises:
            OSError: the system refuses, or it is a directory.
        """
        if stat.S_ISDIR(target.lstat().st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        self._taken.append((kept, target))
        target.rename(kept)

    def give(self, temp: Path, target: Path) -> None:
        """Give a file its name; ``temp`` may stay as another name of it.

        Raises:
            OutputError: ``output.exists``, the name is taken, possibly only just now.
            OSError: the system refuses.
        """
        try:
            link(temp, target)
        except FileExistsError:
            raise made_meanwhile(target) from None
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
        else:
            self._given.append(target)
            return
        # Without hard links the name is claimed by an empty file that must be new, which the rename then replaces.
        try:
            fd = create(target)
        except FileExistsError:
            raise made_meanwhile(target) from None
        self._given.append(target)
        close_written(fd)
        os.replace(temp, target)

    def settle(self) -> list[str]:
        """All names stay; what was replaced goes.

        Returns:
            sentences about what could not be removed.
        """
        kept = [old for old, _ in self._taken]
        self._given.clear()
        self._taken.clear()  # before one of them is gone: from here on nothing may be brought back
        return [sentence for old in kept for sentence in removed(old, "is the former file")]

    def undo(self) -> list[str]:
        """Bring back what was there and take the other names away; after :meth:`settle`, nothing.

        What loaders begin with comes back last, and only if nothing new stands beside it.

        Returns:
            sentences about what could not be undone.
        """
        left = []
        replaced = {target for _, target in self._taken}
        for target in self._given:
            if target not in replaced:
                left += removed(target, "is new")
        while self._taken:
            old, target = self._taken.pop()
            if not os.path.lexists(old):  # it was not taken after all
                continue
            try:
                if left and not self._taken:
                    raise OSError(errno.EBUSY, "it was not restored, because new files are beside it")
                if target not in self._given and os.path.lexists(target):
                    raise OSError(errno.EEXIST, "another one was made meanwhile")
                os.replace(old, target)
            except OSError as error:
                left.append(f"the former {target} is now {old} and could not be restored: {error.strerror}")
        self._given.clear()
        return left


def replace(temp: Path, target: Path) -> None:
    """Put one file in the place of another in one step; it keeps the other's permissions.

    Raises:
        OSError: the system refuses, or there is a directory.
    """
    keep_mode(temp, target)
    os.replace(temp, target)


def keep_mode(temp: Path, target: Path) -> None:
    """Give ``temp`` the permissions of what is at ``target``.

    Raises:
        OSError: the system refuses, or it is a directory.
    """
    with suppress(FileNotFoundError):
        found = target.stat().st_mode
        if stat.S_ISDIR(found):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        temp.chmod(stat.S_IMODE(found) & 0o777)
