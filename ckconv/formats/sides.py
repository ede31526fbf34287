"""Choose text model, tower or both of a multimodal checkpoint, to match the other side of a comparison."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ckconv.core.tensors import TensorIndex
from ckconv.errors import UsageError, shown
from ckconv.formats import format_of
from ckconv.formats.detect import open_index
from ckconv.io.addresses import as_path


def seen_as(other: TensorIndex, index: TensorIndex) -> TensorIndex:
    """The part of ``index`` that ``other`` is.

    Raises:
        UnsupportedError: ``tower.unknown``, ``other`` has a tower, and ``index`` none that is known.
        InputError: ``model.config``.
    """
    if other.format != index.format and not format_of(other.format).single and not format_of(index.format).single:
        from ckconv.formats.huggingface.read import with_tower

        return with_tower(index) if with_tower(other).tower else index
    tower = other.facts.get("kind") == "mmproj"
    if not (tower or other.tower) or index.tower is not None or format_of(index.format).single:
        return index
    from ckconv.core.tensors import joined
    from ckconv.formats.huggingface.read import tower_index

    found = tower_index(index)
    return found if tower else joined(index, found)


def with_mmproj(index: TensorIndex, mmproj: str | os.PathLike[str]) -> TensorIndex:
    """A text model, and the tower that is a file of its own.

    Raises:
        UsageError: ``usage``, one of the two is something else.
    """
    from ckconv.core.tensors import joined

    tower = open_index(as_path(mmproj))
    if tower.tower is None or tower.config is not None:
        known, why = "no tower", ""
        if tower.facts.get("kind") == "mmproj" or tower.architecture == "clip":
            from ckconv.formats.gguf.index import unknown_tower

            known, why = "a tower that is not known", unknown_tower(tower.path)
        message = f"{shown(mmproj)} is {known}, but the second of two sources must be a tower (mmproj)"
        raise UsageError("usage", message, details=[why] if why else [])
    if index.config is None or not format_of(index.format).single:
        raise UsageError(
            "usage", f"{shown(index.path)} is not a text model of a format that keeps the tower in a file of its own"
        )
    return joined(index, tower)


def check_alone(asked: Mapping[str, object]) -> None:
    """Refuse what works on one source alone, where a text model and its tower are two.

    Args:
        asked: what it is called -> whether it is asked for.

    Raises:
        UsageError: ``usage.flag``.
    """
    for name, wanted in asked.items():
        if wanted:
            raise UsageError("usage.flag", f"{name} is for one source, and a text model and its tower are two")
