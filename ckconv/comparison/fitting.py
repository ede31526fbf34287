"""Whether an output that is there is the one that a conversion would write: then it need not be written again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ckconv.comparison.verify import Request, check_beside, check_source_record, verify_alone, verify_whole
from ckconv.conversion.conversion_record import Recorded
from ckconv.errors import CkconvError, OutputError
from ckconv.formats import format_of
from ckconv.formats.destination import Destination
from ckconv.formats.detect import open_index
from ckconv.io.files import readable
from ckconv.io.json import parse_object, read_document
from ckconv.plan.steps import Plan, Written
from ckconv.publish.files import there
from ckconv.record.conversion import DOCUMENT, as_meant
from ckconv.record.read import open_record
from ckconv.record.schema import CONVERSION_NAME, record_path

#: Fields of a conversion record -> how the output that is there was made, where they are others.
_OTHERWISE = {
    "ckconv": "by another version of ckconv",
    "sources": "of other files",
    "adapters": "with other adapters",
    "families": "with other family files",
    "format": "in another format",
    "options": "with other options",
}


def found_there(plan: Plan, place: Destination, needed: Iterable[Path], record: Recorded) -> tuple[Written, ...]:
    """The files of the output that ``plan`` would write, where they are there and whole; nothing if nothing is.

    Its conversion record must be byte for byte the one that would be written, which holds the options and the digests
    of the sources; and every file must have the digest that is listed.

    Args:
        place: a directory.
        needed: what else would be written beside the tensors.
        record: makes the conversion record.

    Raises:
        OutputError: ``output.exists``, something else is there.
    """
    assert place.directory is not None
    directory = place.directory
    with readable(directory):
        if not there(directory) or (directory.is_dir() and not any(directory.iterdir())):
            return ()
    try:
        written = _listed(plan, place, record)
        for path in needed:
            if not there(path):
                raise _other(place, f"without {path.name}")
        _check(plan, place)
    except OutputError:
        raise
    except CkconvError as error:
        raise _other(place, f"and not as its record says: {error.message}") from error
    return written


def _listed(plan: Plan, place: Destination, record: Recorded) -> tuple[Written, ...]:
    assert place.directory is not None
    inside = plan.record is not None and format_of(plan.format).keeps_source
    path = record_path(place.directory / plan.files[0].name) if inside else place.directory / CONVERSION_NAME
    if not there(path):
        raise _other(place, "without a conversion record")
    data = open_record(path).conversion() if inside else read_document(path, DOCUMENT)
    if data is None:
        raise _other(place, "without a conversion record")
    document = parse_object(data, DOCUMENT, path)
    try:
        files = tuple(
            Written(place.directory / item["name"], item["bytes"], item["sha256"])
            for item in as_meant(document)["outputs"]
        )
    except (KeyError, TypeError) as error:
        raise _other(place, f"and its record lacks what one has: {error}") from error
    meant = record(files)
    if meant != data:
        fields = json.loads(meant)
        changed = [name for name in {**fields, **document} if fields.get(name) != document.get(name)]
        how = (f"made {words}" for name, words in _OTHERWISE.items() if name in changed)
        raise _other(place, next(how, "and its record is another"))
    return files


def _check(plan: Plan, place: Destination) -> None:
    """Every file is as it was written: the record lists their digests, but neither what is in a template nor weights.

    Raises:
        VerifyError, InputError: it is not.
    """
    assert place.directory is not None
    out = open_index(place.directory, base=plan.options.base)
    check_beside(place.directory, out, None)
    check_source_record(out)
    if plan.options.template or plan.options.imatrix:  # of which the record has no digest
        verify_whole(out, plan.index, Request(plan.options, directory=True))
    else:
        verify_alone(out)


def _other(place: Destination, what: str) -> OutputError:
    return OutputError("output.exists", f"is there, {what}", path=place.name, hint="--force replaces it")
