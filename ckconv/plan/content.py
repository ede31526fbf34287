"""What a model says besides its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that is no tensor.

    Attributes:
        keys: header fields and metadata, by name. Two that are equal say the same.
        files: documents within the files, by what a person is told they are; content of a file beside them, if it is
            known without a path.
        paths: name that readers look for -> the file beside the model.
    """

    keys: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    paths: Mapping[str, Path] = field(default_factory=dict)


def numbered(key: str, number: int) -> str:
    """Only the first file of a set says anything of the model."""
    return key if number == 0 else f"file {number + 1}: {key}"
