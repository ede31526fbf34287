"""Source records, and the names of records beside a model."""

from __future__ import annotations

from pathlib import Path

from ckconv.core.tensors import TensorIndex
from ckconv.formats.gguf.values import parse_shard_name

#: What the record of a file is called, behind the name of that.
SUFFIX = ".source.zip"

#: The member that is the conversion record, if there is one.
CONVERSION_NAME = "ckconv.json"

#: What its name ends in beside a model that is one file.
CONVERSION_SUFFIX = f".{CONVERSION_NAME}"

#: What the list of a file's digest is called, behind the name of that.
SUMS_SUFFIX = ".sha256"


def named_after(index: TensorIndex, opened: Path, suffix: str) -> list[Path]:
    """Return the paths of documents beside a model, by suffix.

    Args:
        opened: the path that the user named.
    """
    first = index.files[0]
    shard = parse_shard_name(first.name)
    names = [opened.name, first.name, *([f"{shard.stem}.gguf"] if shard else [])]
    return [first.parent / f"{name}{suffix}" for name in dict.fromkeys(names)]


def record_path(made: Path) -> Path:
    """Where the record of a file lies."""
    return made.with_name(made.name + SUFFIX)
