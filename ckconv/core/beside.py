"""The files beside a model, by what they are called from there."""

from __future__ import annotations

from pathlib import Path

from ckconv.core.tensors import TensorIndex


def root_of(index: TensorIndex) -> Path:
    """The directory that a model lies in."""
    return index.path if index.path.is_dir() else index.path.parent


def beside(index: TensorIndex) -> dict[str, Path]:
    """Name, with its directory where it lies in one -> file."""
    parts = {f"{path.parent.name}/{path.name}": path for path in index.part_files}
    return {**{path.name: path for path in index.side_files}, **parts}
