"""Directories of an output that is there already: made for what goes into them, and gone again where nothing came."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ckconv.errors import OutputError
from ckconv.publish.files import removed_directory


class Folders:
    """Directories directly inside an output."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = sorted(paths)
        self._made: list[Path] = []

    def is_made(self, path: Path) -> bool:
        """The directory is not there, and :meth:`make` makes it."""
        return path in self._paths and not os.path.lexists(path)

    def there(self, path: Path) -> Path:
        """The directory, or the one that it is going to be in."""
        return path.parent if self.is_made(path) else path

    def check(self) -> None:
        """Check that no file has the name of a directory, and that none is a link elsewhere.

        Raises:
            OutputError: ``output.parent``.
        """
        for path in self._paths:
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                what = "is a link" if path.is_symlink() else "is not a directory"
                raise OutputError(
                    "output.parent", f"{what}, and a directory of that name is part of the output", path=path
                )

    def make(self) -> None:
        """Make those that are not there.

        Raises:
            OSError: the system refuses.
        """
        for path in self._paths:
            if self.is_made(path):
                self._made.append(path)  # before it is there: a signal may come any time
                path.mkdir()

    def remove(self) -> list[str]:
        """Remove what was made and is empty.

        Returns:
            sentences about what is still there.
        """
        left: list[str] = []
        while self._made:
            left += removed_directory(self._made.pop())
        return left
