"""What an output was made of, with which options, and every file of it: as a conversion record, and for in-toto."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ckconv.conversion.checksums import FileDigests, seen_from
from ckconv.core.metadata import beside
from ckconv.core.non_utf8 import each_text, valid
from ckconv.core.tensors import TensorIndex
from ckconv.core.version import __version__
from ckconv.errors import UsageError
from ckconv.families.own import own_files
from ckconv.formats.destination import Destination
from ckconv.io.files import readable
from ckconv.options import Records, asked
from ckconv.plan.steps import Late, Plan, Written
from ckconv.record.conversion import SCHEMA, sealed
from ckconv.record.schema import CONVERSION_NAME, CONVERSION_SUFFIX

#: What a statement is about, and who makes it.
BUILD_TYPE = "https://github.com/ckconv/ckconv/convert/v1"
BUILDER = "https://github.com/ckconv/ckconv"

#: The record, told the files that are written before it. Its size does not depend on their digests.
Recorded = Callable[[Sequence[Written]], bytes]


def recorded(facts: Facts, place: Destination) -> Recorded:
    """What makes the record of a conversion.

    Raises:
        UsageError: ``usage.side-file``, standard output has no place beside it.
    """
    if place.parent is None:
        raise UsageError("usage.side-file", "--record writes a file beside the model, and stdout has no place for it")
    parent = place.parent

    def content(files: Sequence[Written]) -> bytes:
        outputs = [
            {"name": seen_from(file.path, parent), "bytes": file.nbytes, "sha256": file.sha256} for file in files
        ]
        made = {"schema": SCHEMA, "ckconv": __version__, **facts.asked, "sources": facts.sources, "outputs": outputs}
        return sealed(made)

    return content


def attested(facts: Facts, place: Destination, path: Path) -> Late:
    """The same as a statement of in-toto with SLSA's provenance, both version 1, to be signed by whoever wants to.

    Raises:
        UsageError: ``usage.side-file``, standard output has no place beside it.
    """
    if place.parent is None:
        raise UsageError("usage.side-file", "--attest names files beside the model, and stdout has none")
    parent = place.parent

    def content(files: Sequence[Written]) -> bytes:
        sources = [{"name": file["name"], "digest": {"sha256": file["sha256"]}} for file in facts.sources]
        statement = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": seen_from(file.path, parent), "digest": {"sha256": file.sha256}} for file in files],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": facts.asked,
                    "resolvedDependencies": sources,
                },
                "runDetails": {"builder": {"id": BUILDER, "version": {"ckconv": __version__}}},
            },
        }
        return (json.dumps(each_text(statement, valid), indent=2) + "\n").encode()

    return Late(path, lambda files: len(content(files)), lambda files: [content(files)])


class Facts:
    """What a conversion was asked for, and of what it is made; a source is hashed once."""

    def __init__(self, plan: Plan, adapters: Sequence[tuple[Path, float]]) -> None:
        self._plan, self._adapters, self._digests = plan, adapters, FileDigests()
        own = own_files()
        self._families: list[dict[str, Any]] = []
        for name, digest in own.digests.items():
            family = own.families.get(name.removesuffix(".toml"))
            open = {row.name: row.unmeasured for row in family.engines.values() if row.unmeasured} if family else {}
            self._families.append({"name": name, "sha256": digest, **({"unmeasured": open} if open else {})})

    @property
    def asked(self) -> dict[str, Any]:
        """Format, options, and the files that were named."""
        plan, options = self._plan, self._plan.options
        return {
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
            **({"families": self._families} if self._families else {}),
            "adapters": [{"name": path.name, "weight": weight} for path, weight in self._adapters],
        }

    @property
    def sources(self) -> list[dict[str, Any]]:
        """Every file that was read, by name."""
        paths = _sources(self._plan.index).items()
        return [{"name": name, "bytes": _size(path), "sha256": self._digests.of(path)} for name, path in paths]


def record_file(place: Destination, content: Recorded) -> Late:
    """The record as a file of its own beside the output."""
    assert place.parent is not None
    path = place.parent / (CONVERSION_NAME if place.directory else f"{place.file_name}{CONVERSION_SUFFIX}")
    return Late(path, lambda files: len(content(files)), lambda files: [content(files)])


def _size(path: Path) -> int:
    with readable(path):
        return path.stat().st_size


def _sources(index: TensorIndex) -> dict[str, Path]:
    return {path.name: path for path in index.files} | beside(index)
