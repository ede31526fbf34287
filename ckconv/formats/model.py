"""Text model, tower or both of a model, as the other side has them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from ckconv.core.tensors import TensorIndex, joined
from ckconv.errors import InputError, UnsupportedError, UsageError, shown
from ckconv.formats import detect, format_of
from ckconv.io import as_path

# Choose text model, tower or both of a multimodal checkpoint, to match the other side of a comparison.


def tower_index(index: TensorIndex, documents: Mapping[str, bytes] | None = None) -> TensorIndex:
    """The tower alone, of a checkpoint; see its reader."""
    from ckconv.formats.huggingface.read import tower_index as read

    return read(index, documents)


def with_tower(index: TensorIndex, documents: Mapping[str, bytes] | None = None) -> TensorIndex:
    """Checkpoint with a known tower's tensors under its rows' names.

    Args:
        documents: the contents of side files, where these are no files.
    """
    try:
        return joined(index, tower_index(index, documents))
    except (InputError, UnsupportedError):
        return index


def seen_alike(a: TensorIndex, b: TensorIndex) -> tuple[TensorIndex, TensorIndex]:
    """Two models, each as the part that the other is."""
    if not _stored_otherwise(a, b):
        return seen_as(b, a), seen_as(a, b)
    both = with_tower(a), with_tower(b)
    return both if all(index.tower for index in both) else (a, b)


def _stored_otherwise(a: TensorIndex, b: TensorIndex) -> bool:
    """Whether two directories store a tower differently."""
    if format_of(a.format).single or format_of(b.format).single:
        return False
    one, other = ({stored.name for stored in index.stored if stored.name.endswith(".scales")} for index in (a, b))
    return a.format != b.format or (a.format == "mlx" and one != other)


def seen_as(other: TensorIndex, index: TensorIndex) -> TensorIndex:
    """The part of ``index`` that ``other`` is.

    Raises:
        UnsupportedError: ``tower.unknown``, ``other`` has a tower, and ``index`` none that is known.
        InputError: ``model.config``.
    """
    if _stored_otherwise(other, index):
        return with_tower(index) if with_tower(other).tower else index
    tower = other.facts.get("kind") == "mmproj"
    if not (tower or other.tower) or index.tower is not None or format_of(index.format).single:
        return index
    found = tower_index(index)
    return found if tower else joined(index, found)


def of_task(index: TensorIndex, task: str) -> TensorIndex:
    """The adapter of a task, or without ``task`` the model.

    Raises:
        UsageError: ``usage.flag``, it has none.
    """
    if not task:
        return index
    from ckconv.formats.safetensors.adapter import adapter_of_task

    return adapter_of_task(index, task)


def with_mmproj(index: TensorIndex, mmproj: str | os.PathLike[str]) -> TensorIndex:
    """A text model, and the tower that is a file of its own.

    Raises:
        UsageError: ``usage``, one of the two is something else.
        UnsupportedError: ``plan.refused``, both are towers; ``tower.unknown``.
        InputError: ``model.config``, the tower's tensors have other shapes than its keys give them.
    """
    tower = detect.open_index(as_path(mmproj))
    _check_one_tower([index, tower])
    if tower.tower is None or tower.config is not None:
        if tower.facts.get("kind") == "mmproj" or tower.architecture == "clip":
            from ckconv.formats.gguf.index import unknown_tower

            why = unknown_tower(tower.path)
            message = f"{shown(mmproj)} is a tower that is not known"
            raise UnsupportedError("tower.unknown", message, details=[why] if why else [])
        message = f"{shown(mmproj)} is no tower, but the second of two sources must be a tower (mmproj)"
        merged = [f" --adapter {shlex.quote(shown(each.path))}" for each in (index, tower) if each.adapter is not None]
        base = "BASE" if index.adapter is not None else shlex.quote(shown(index.path))
        hint = f"ckconv convert {base} DST{''.join(merged)} merges it" if tower.adapter is not None else None
        raise UsageError("usage", message, hint=hint)
    if index.config is None or not format_of(index.format).single:
        raise UsageError(
            "usage", f"{shown(index.path)} is not a text model of a format that keeps the tower in a file of its own"
        )
    return joined(index, tower)


def check_one_tower(paths: Sequence[str | os.PathLike[str]]) -> None:
    """Refuse more than one tower among files, which are opened.

    Raises:
        UnsupportedError: ``plan.refused``.
        InputError: one cannot be read.
    """
    _check_one_tower([detect.open_index(as_path(path)) for path in paths])


def _check_one_tower(indexes: Sequence[TensorIndex]) -> None:
    towers = [shown(index.path) for index in indexes if index.facts.get("kind") == "mmproj"]
    if len(towers) > 1:
        message = f"{', '.join(towers[:-1])} and {towers[-1]} are {len(towers)} towers, and a checkpoint has one"
        text = next((shown(index.path) for index in indexes if index.config is not None), "MODEL.gguf")
        hint = f"ckconv convert {text} {towers[0]} DST/ takes the first"
        raise UnsupportedError("plan.refused", message, hint=hint)


def check_alone(requested: Mapping[str, object]) -> None:
    """Refuse an operation for one source where a tower lies beside it.

    Args:
        requested: what it is called -> whether it is asked for.

    Raises:
        UsageError: ``usage.flag``.
    """
    for name, wanted in requested.items():
        if wanted:
            raise UsageError("usage.flag", f"{name} is for one source, and a text model and its tower are two")
