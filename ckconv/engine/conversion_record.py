"""The bytes of a conversion record: what an output was made of, with which options, and every file of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ckconv.core.tensors import TensorIndex
from ckconv.core.version import __version__
from ckconv.engine.checksums import FileDigests
from ckconv.engine.settle import Late, Written
from ckconv.errors import UsageError
from ckconv.families.own import own_files
from ckconv.formats.destination import Destination
from ckconv.io.files import readable
from ckconv.options import Records, asked
from ckconv.plan.steps import Plan
from ckconv.record.conversion import IN_DIRECTORY, SCHEMA, SUFFIX, sealed

#: The record, told the files that are written before it. Its size does not depend on their digests.
Recorded = Callable[[Sequence[Written]], bytes]


def recorded(plan: Plan, place: Destination, adapters: Sequence[tuple[Path, float]]) -> Recorded:
    """What makes the record of a conversion.

    Raises:
        UsageError: ``usage.side-file``, standard output has no place beside it.
    """
    if place.parent is None:
        raise UsageError("usage.side-file", "--record writes a file beside the model, and stdout has no place for it")
    parent, digests, options = place.parent, FileDigests(), plan.options
    families = [{"name": name, "sha256": digest} for name, digest in own_files().digests.items()]

    def content(files: Sequence[Written]) -> bytes:
        return sealed(
            {
                "schema": SCHEMA,
                "ckconv": __version__,
                "format": plan.format,
                "version": plan.version,
                "options": {
                    given.option.name: given.value
                    for given in asked(options)
                    if given.option.records is not Records.NEITHER
                },
                **({"engines": list(plan.engines)} if plan.engines else {}),
                "template": options.template.name if options.template else None,
                **({"imatrix": options.imatrix.name} if options.imatrix else {}),
                **({"families": families} if families else {}),
                "adapters": [{"name": path.name, "weight": weight} for path, weight in adapters],
                "sources": [
                    {"name": path.name, "bytes": _size(path), "sha256": digests.of(path)}
                    for path in _sources(plan.index)
                ],
                "outputs": [
                    {"name": _beside(file.path, parent), "bytes": file.nbytes, "sha256": file.sha256} for file in files
                ],
            }
        )

    return content


def record_file(place: Destination, content: Recorded) -> Late:
    """The record as a file of its own beside the output."""
    assert place.parent is not None
    path = place.parent / (IN_DIRECTORY if place.directory else f"{place.file_name}{SUFFIX}")
    return Late(path, lambda files: len(content(files)), lambda files: [content(files)])


def _size(path: Path) -> int:
    with readable(path):
        return path.stat().st_size


def _sources(index: TensorIndex) -> Iterator[Path]:
    yield from dict.fromkeys((*index.files, *index.side_files))


def _beside(path: Path, parent: Path) -> str:
    return path.name if path.parent == parent else os.path.relpath(path.absolute(), parent.absolute())
