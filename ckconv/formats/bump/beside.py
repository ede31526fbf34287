"""The documents beside a bump file, under the names that the engine reads or under the bump file's own.

Where two bump files share a directory and their documents differ, those of the second one are called after it
(``b.bump.config.json``). ckconv looks for such a name first; the engine knows only ``config.json``.
"""

from __future__ import annotations

from pathlib import Path

from ckconv.publish.files import SideFile, holds, there


def document_beside(bump: Path, name: str) -> Path:
    """Where the document ``name`` of a bump file is, if it has one."""
    own = _own(bump, name)
    return own if there(own) else bump.with_name(name)


def place_beside(bump: Path, name: str, content: SideFile) -> Path:
    """Where the document ``name`` of a bump file goes: never in the place of one that another bump file there needs."""
    own, shared = _own(bump, name), bump.with_name(name)
    if there(own):  # it would be found first
        return own
    return own if other_bumps(bump, name) and not holds(shared, content) else shared


def other_bumps(bump: Path, name: str) -> bool:
    """Another bump file in the directory has no document of its own, so that it takes the one called ``name``."""
    if not bump.parent.is_dir():
        return False
    others = (path for path in bump.parent.glob("*.bump") if path.name != bump.name)
    return any(not there(_own(other, name)) for other in others)


def _own(bump: Path, name: str) -> Path:
    return bump.with_name(f"{bump.name}.{name}")
