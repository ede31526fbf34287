"""Directories of a checkpoint that are part of the model."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path

from ckconv.core.metadata import CONFIG_NAME
from ckconv.formats.safetensors.files import names_in, regular_file
from ckconv.formats.safetensors.modules import folders_of

#: Where transformers has chat templates by name.
TEMPLATES = "additional_chat_templates"

#: Files by which a directory inside is known to be part of the model.
_PARTS = (CONFIG_NAME, "*.jinja", "*.py")


def part_files(root: Path, *, follow_links: bool) -> tuple[Path, ...]:
    """The files of sentence-transformers' modules, each in a directory of its own, and templates by name.

    Raises:
        InputError: ``index.path``, one of them leads out of the directory, a hidden one too; as :func:`regular_file`.
    """
    folders = [*folders_of(root), *([TEMPLATES] if (root / TEMPLATES).is_dir() else [])]
    names = [f"{folder}/{name}" for folder in dict.fromkeys(folders) for name in names_in(root / folder)]
    files = [name for name in names if not (root / name).is_dir()]
    there = [root / name for name in files if regular_file(root, name, follow_links=follow_links)]
    return tuple(path for path in there if not path.name.startswith("."))


def parts_beside(path: Path, carried: Collection[str]) -> tuple[str, ...]:
    """Directories in a checkpoint's that look like part of a model, but for those that files are carried of."""
    if not path.is_dir() or not carried:
        return ()
    own = {name.partition("/")[0] for name in carried if "/" in name}
    try:
        folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        return tuple(
            folder.name
            for folder in folders
            if folder.name not in own
            and any(fnmatchcase(entry.name, pattern) for entry in folder.iterdir() for pattern in _PARTS)
        )
    except OSError:  # whoever reads them will say so
        return ()
