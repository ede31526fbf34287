"""The conversion record: of what an output was made, and how, so that it can be verified without remembering.

``out.gguf.ckconv.json`` lies beside ``out.gguf``, ``ckconv.json`` in a directory. It holds the options that changed
something, and the SHA-256 of every file of the sources and of the output. Its last field is the SHA-256 of all before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ckconv import __version__
from ckconv.destination import Destination
from ckconv.errors import InputError, UsageError, quoted
from ckconv.formats.gguf import parse_shard_name
from ckconv.model.index import TensorIndex
from ckconv.plan.choices import asked, check_values
from ckconv.plan.steps import Options, Plan
from ckconv.readers.strictjson import Document, read_object
from ckconv.settle import Late, Written
from ckconv.sums import FileDigests

IN_DIRECTORY = "ckconv.json"
SUFFIX = ".ckconv.json"
SCHEMA = 1
CODE = "record.conversion"

_DOCUMENT = Document("the conversion record", CODE, CODE, 64 << 20)

#: Options that say where something is, or what is written besides: nothing in the output's content.
_NOT_RECORDED = frozenset({"file_name", "source_record", "base", "template"})

_LISTS = ("decode", "drop", "drop_meta", "fuse")


@dataclass(frozen=True, slots=True)
class ConversionRecord:
    """What is read.

    Attributes:
        options: of the conversion.
        sources, outputs: (name, SHA-256).
        besides: flags whose files have to be named again: their names are not where they are.
    """

    path: Path
    options: Options
    sources: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    besides: tuple[str, ...]


def record_file(plan: Plan, place: Destination, adapters: Sequence[tuple[Path, float]]) -> Late:
    """The record that is written with the output.

    Raises:
        UsageError: ``usage.side-file``, standard output has no place beside it.
    """
    if place.parent is None:
        raise UsageError("usage.side-file", "--record writes a file beside the model, and stdout has no place for it")
    parent = place.parent
    digests = FileDigests()

    def content(files: Sequence[Written]) -> bytes:
        return _document(plan, adapters, files, parent, digests)

    path = parent / (IN_DIRECTORY if place.directory else f"{place.file_name}{SUFFIX}")
    return Late(path, lambda files: len(content(files)), lambda files: [content(files)])


def _document(
    plan: Plan,
    adapters: Sequence[tuple[Path, float]],
    files: Sequence[Written],
    parent: Path,
    digests: FileDigests,
) -> bytes:
    index, options = plan.index, plan.options
    names = [field.name for field in fields(options) if field.name not in _NOT_RECORDED]
    document = {
        "schema": SCHEMA,
        "ckconv": __version__,
        "format": plan.format,
        "version": plan.version,
        "options": {option.name: option.value for option in asked(options, names)},
        "template": options.template.name if options.template else None,
        "adapters": [{"name": path.name, "weight": weight} for path, weight in adapters],
        "sources": [
            {"name": path.name, "bytes": path.stat().st_size, "sha256": digests.of(path)} for path in _sources(index)
        ],
        "outputs": [
            {"name": _beside(file.path, parent), "bytes": file.nbytes, "sha256": file.sha256} for file in files
        ],
    }
    return sealed(document)


def sealed(document: Mapping[str, Any]) -> bytes:
    """The document with its own digest behind everything else."""
    text = json.dumps(document, indent=2)
    return (json.dumps({**document, "sha256": sha256(text.encode()).hexdigest()}, indent=2) + "\n").encode()


def _sources(index: TensorIndex) -> Iterator[Path]:
    yield from dict.fromkeys((*index.files, *index.side_files))


def _beside(path: Path, parent: Path) -> str:
    return path.name if path.parent == parent else os.path.relpath(path.absolute(), parent.absolute())


def record_beside(opened: Path, index: TensorIndex) -> ConversionRecord | None:
    """The record that lies beside an output, ``None`` where there is none.

    Args:
        opened: what the user named.

    Raises:
        InputError: ``record.conversion``, it is malformed or was changed.
    """
    first = index.files[0]
    names = [f"{opened.name}{SUFFIX}", f"{first.name}{SUFFIX}"]
    shard = parse_shard_name(first.name)
    names += [f"{shard.stem}.gguf{SUFFIX}"] if shard else []
    for name in dict.fromkeys((*names, IN_DIRECTORY)):
        path = first.parent / name
        if os.path.lexists(path):
            record = read_record(path)
            if any(name == first.name for name, _ in record.outputs):
                return record
            if name != IN_DIRECTORY:
                raise InputError(CODE, f"does not list {quoted(first.name)}, which it is beside", path=path)
    return None


def read_record(path: Path) -> ConversionRecord:
    """Read and check a record.

    Raises:
        InputError: ``record.conversion``.
    """
    document = read_object(path, _DOCUMENT)
    if document.get("schema") != SCHEMA:
        message = f"schema is {document.get('schema')!r:.40}, {SCHEMA} expected"
        raise InputError(CODE, message, path=path, hint="a newer ckconv may know it")
    without = {key: value for key, value in document.items() if key != "sha256"}
    if path.read_bytes() != sealed(without):
        raise InputError(CODE, "is not as it was written: its own sha256 does not fit", path=path)
    try:
        options = options_of(document["options"])
        sources, outputs = (_listed(document[key]) for key in ("sources", "outputs"))
        besides = [f"--template {document['template']}"] if document["template"] else []
        besides += [f"--adapter {item['name']}" for item in document["adapters"]]
    except (KeyError, TypeError, AttributeError, UsageError) as error:
        raise InputError(CODE, f"lacks what a record has: {error}", path=path) from error
    return ConversionRecord(path, options, sources, outputs, tuple(besides))


def options_of(found: Mapping[str, Any]) -> Options:
    """The options that a record says.

    Raises:
        KeyError, TypeError: there is no such option, or its value is of another type.
        UsageError: its value is none of the option's.
    """
    known = {field.name for field in fields(Options)} - _NOT_RECORDED
    values: dict[str, Any] = {}
    for name, value in found.items():
        if name not in known:
            raise KeyError(name)
        values[name] = tuple(value) if name in _LISTS else value
    if "set_meta" in values:
        values["set_meta"] = tuple((key, text) for key, text in values["set_meta"])
    options = replace(Options(), **values)
    check_values(options)
    return options


def _listed(items: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(item["name"]), str(item["sha256"])) for item in items)
