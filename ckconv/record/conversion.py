"""Conversion record: source and options of an output, for verify.

``out.gguf.ckconv.json`` lies beside ``out.gguf``, ``ckconv.json`` in a directory; that of a bump file is a member of
its source record, if it has one. It holds the options that changed something, and the SHA-256 of every file of the
sources and of the output, but not of what it lies in. Its last field is the SHA-256 of all before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckconv.core.lazy import NamedTuple, replace
from ckconv.core.options import OPTIONS, Options, Records, Takes
from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, UsageError, each_text, escaped, quoted, unescaped, valid
from ckconv.io.files import there
from ckconv.io.json import Document, parse_object, read_document
from ckconv.plan.quantizing import check_values
from ckconv.record import CONVERSION_NAME, CONVERSION_SUFFIX, SUFFIX, SUMS_SUFFIX, named_after

if TYPE_CHECKING:
    from ckconv.record.read import OpenRecord

SCHEMA = 1
CODE = "record.conversion"

#: The field that says it.
ESCAPED = "escaped"

DOCUMENT = Document("the conversion record", CODE, CODE, 64 << 20)


class ConversionRecord(NamedTuple):
    """Content of a conversion record.

    Attributes:
        path: of the file that it is, or is a member of.
        options: of the conversion.
        sources, outputs: (name, SHA-256).
        families: (name, SHA-256) of family files that the user brought.
        version: of ckconv, that wrote it.
        besides: flags whose files have to be named again: their names are not where they are.
    """

    path: Path
    options: Options
    sources: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    families: tuple[tuple[str, str], ...]
    version: str
    besides: tuple[str, ...]


def sealed(document: Mapping[str, Any]) -> bytes:
    """Serialize a document, its own digest behind everything else.

    If a name or an option is not text, all of them are escaped, and a field says so.
    """
    if each_text(document, valid) != each_text(document, str):
        document = {**each_text(document, escaped), ESCAPED: True}
    text = json.dumps(document, indent=2)
    return (json.dumps({**document, "sha256": sha256(text.encode()).hexdigest()}, indent=2) + "\n").encode()


def as_meant(document: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record, its texts as they were before any was escaped."""
    found: dict[str, Any] = each_text(document, unescaped) if document.get(ESCAPED) is True else document
    return found


def records_of(opened: Path, index: TensorIndex, source_record: OpenRecord | None) -> Iterator[ConversionRecord]:
    """Records of an output: in its source record, then beside it.

    Args:
        opened: what the user named.
        source_record: the source record of a bump file.

    Raises:
        InputError: ``record.conversion``, one is malformed, was changed or does not list the output.
    """
    inside = source_record.conversion() if source_record else None
    if source_record is not None and inside is not None:
        yield _listing(index, _parsed(inside, source_record.path))
    for path in named_after(index, opened, CONVERSION_SUFFIX):
        if there(path):
            yield _listing(index, read_record(path))
            return
    first = index.files[0]
    path = first.parent / CONVERSION_NAME
    if there(path):
        record = read_record(path)
        if _lists(record, first):  # else it is about another model there
            yield record


def of_files_gone(place: Path, index: TensorIndex) -> Iterator[tuple[Path, str]]:
    """Records in a directory, each with a file of its own that is gone."""
    path = place / CONVERSION_NAME
    if there(path):
        yield from ((path, name) for name, _ in read_record(path).outputs if not there(place / name))
    kind = index.files[0].suffix
    for suffix in (SUFFIX, CONVERSION_SUFFIX, SUMS_SUFFIX):
        others = sorted({*place.glob(f"*{kind}{suffix}")} - {*named_after(index, place, suffix)})
        names = ((path, path.name.removesuffix(suffix)) for path in others)
        yield from ((path, name) for path, name in names if not there(place / name))


def _listing(index: TensorIndex, record: ConversionRecord) -> ConversionRecord:
    first = index.files[0]
    if not _lists(record, first):
        raise InputError(CODE, f"does not list {quoted(first.name)}, which it is beside", path=record.path)
    return record


def _lists(record: ConversionRecord, file: Path) -> bool:
    return any(name == file.name for name, _ in record.outputs)


def read_record(path: Path) -> ConversionRecord:
    """Read and check a record that is a file of its own.

    Raises:
        InputError: ``record.conversion``.
    """
    return _parsed(read_document(path, DOCUMENT), path)


def recorded_options(source_record: OpenRecord) -> Options:
    """The options of the conversion that a source record says.

    Raises:
        InputError: ``record.conversion``, the conversion record in it is malformed, or the options are none.
    """
    inside = source_record.conversion()
    if inside is not None:
        return _parsed(inside, source_record.path).options
    try:
        return options_of(source_record.record.options or {})
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise InputError(CODE, f"options are not valid: {error}", path=source_record.path) from error


def _parsed(data: bytes, path: Path) -> ConversionRecord:
    document = parse_object(data, DOCUMENT, path)
    if document.get("schema") != SCHEMA or document["schema"] is True:
        message = f"schema is {document.get('schema')!r:.40}, {SCHEMA} expected"
        raise InputError(CODE, message, path=path, hint="a newer ckconv may know it")
    without = {key: value for key, value in document.items() if key != "sha256"}
    if data != sealed(without):
        raise InputError(CODE, "is not as it was written: its own sha256 does not match", path=path)
    document = as_meant(document)
    try:
        options = options_of(document["options"])
        sources, outputs = (_listed(document[key]) for key in ("sources", "outputs"))
        families, version = _listed(document.get("families", [])), _text(document["ckconv"])
        besides = [f"--template {_text(document['template'])}"] if document["template"] else []
        besides += [f"--imatrix {_text(document['imatrix'])}"] if document.get("imatrix") else []
        besides += [f"--adapter {_text(item['name'])}" for item in document["adapters"]]
    except (KeyError, TypeError, AttributeError, ValueError, UsageError) as error:
        raise InputError(CODE, f"lacks what a record has: {error}", path=path) from error
    return ConversionRecord(path, options, sources, outputs, families, version, tuple(besides))


def options_of(found: Mapping[str, Any]) -> Options:
    """The options that a record says.

    Raises:
        KeyError, TypeError, ValueError: there is no such option, or its value is of another type.
        UsageError: its value is none of the option's.
    """
    known = {option.name: option for option in OPTIONS if option.records is not Records.NEITHER}
    values: dict[str, Any] = {}
    for name, value in found.items():
        takes = known[name].takes
        if takes in (Takes.GLOB, Takes.WORDS, Takes.PAIR) and not isinstance(value, list):
            raise TypeError(f"{name} is not a list")
        if takes in (Takes.GLOB, Takes.WORDS):
            value = tuple(value)
        elif takes is Takes.PAIR:
            value = tuple((key, text) for key, text in value)
        values[name] = value
    options = replace(Options(), **values)
    check_values(options)
    return options


def _listed(items: Any) -> tuple[tuple[str, str], ...]:
    return tuple((_text(item["name"]), _text(item["sha256"])) for item in items)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]} is not text")
    return value
