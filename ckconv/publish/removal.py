"""Remove a staging directory, but no file in it that is kept."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ckconv.publish.files import not_removed, removed_directory
from ckconv.publish.kept import FINISHED, KEPT, remove_entry
from ckconv.publish.links import is_directory, kept_at


def remove_directory(path: Path) -> list[str]:
    """Remove a staging directory, but no file that is kept in it.

    Returns:
        sentences about what is still there.
    """
    try:
        found = list(path.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        return [not_removed(path, error)]
    for entry in sorted(found, key=lambda entry: entry.name != FINISHED):  # without it no run goes on with the rest
        if entry.name == KEPT and is_directory(entry):
            remove_kept(entry)
        else:
            remove_entry(entry)
    return removed_directory(path)


def remove_kept(kept: Path) -> None:
    """Remove the directory of what was replaced, if nothing is in it. Links go that do not lead to such a file."""
    with suppress(OSError):
        for own in sorted(kept.iterdir(), reverse=True) if is_directory(kept) else ():
            if own.is_symlink():
                own.unlink()
                continue
            for link in own.iterdir():
                if link.is_symlink() and kept_at(link) is None:
                    link.unlink()
            own.rmdir()
        kept.rmdir()
