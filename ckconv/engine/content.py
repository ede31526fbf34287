"""What a model says besides its tensors: header fields, metadata, and the files beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ckconv.core.tensors import TensorIndex
from ckconv.formats import format_of, load
from ckconv.io.bytesource import open_source
from ckconv.plan.container import Container
from ckconv.plan.content import Content
from ckconv.publish.files import pieces_of

#: Largest file beside a model that is read whole, in bytes.
_LIMIT = 1 << 30


def content_of_index(index: TensorIndex, named: Mapping[str, Path] | None = None) -> Content:
    """What lies in and beside the files of an open model.

    Args:
        named: side file -> where it is, if not beside the model.

    Raises:
        InputError: one of the files cannot be read.
    """
    found: Content = load(format_of(index.format).content)(index, named or {})
    return replace(found, files={**{name: _read(path) for name, path in found.paths.items()}, **found.files})


def content_of_plan(container: Container) -> Content:
    """What a plan is going to write."""
    files = {name: b"".join(pieces_of(content)) for name, content in container.side_files.items()}
    return Content(container.keys, {**files, **container.inside})


def _read(path: Path) -> bytes:
    with open_source(path) as source:
        return source.read_at(0, min(source.size or 0, _LIMIT))
