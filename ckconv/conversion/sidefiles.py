"""Files beside a model: paths, checksums, records, leftovers.

Weights are not ours to remove: nothing is written beside them. Documents are: ``force`` replaces an output, and one
that the new output does not have is replaced by nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from ckconv.conversion.write import NO_DIGEST
from ckconv.core import __version__, tensors
from ckconv.core.metadata import CONFIG_NAME, SideFile, beside, digest_of, root_of
from ckconv.core.options import Records, given_options
from ckconv.errors import InputError, OutputError, UsageError, VerifyError, and_more, each_text, listed, quoted, valid
from ckconv.families.catalog import own_files
from ckconv.formats import FORMATS, format_of, load
from ckconv.formats.destination import Destination
from ckconv.formats.safetensors.container import ADAPTER_CONFIG, INDEX_SUFFIX
from ckconv.io.digests import sha256_of
from ckconv.io.files import holds, open_source, opened_regular, readable, there
from ckconv.plan.steps import Container, Globs, LastFile, NewFile, PayloadRecord, Plan
from ckconv.publish.files import check_target, failing, followed
from ckconv.publish.staging import LargeFile, SmallFile
from ckconv.record import CONVERSION_NAME, CONVERSION_SUFFIX, SUMS_SUFFIX, conversion, named_after, record_path
from ckconv.system import sync, write_at

# -- Files beside a model: paths, checksum lists, the conversion record ------------------------------------------------

# The files beside a model: where they go, and those whose content follows from what is written.


def side_paths(
    plan: Plan, container: Container, target: Destination, named: Mapping[str, Path], on_request: Sequence[str]
) -> dict[Path, SmallFile]:
    """Where each side file goes; a model on stdout has no place beside it."""
    side: dict[Path, SmallFile] = {}
    wanted = {*named, *on_request}
    for name in sorted(wanted - container.side_files.keys()):
        raise UsageError("usage.side-file", f"{plan.target_name} has no {name}")
    for name, content in container.side_files.items():
        if name in container.on_request and name not in wanted:
            continue
        place = named.get(name) or _beside(target, name, content)
        if place is None and name in container.on_request:
            raise UsageError("usage.side-file", f"{name} must lie beside the model, and stdout has no place for it")
        if place is not None and any(place.absolute() == other.absolute() for other in side):
            raise UsageError("usage.side-file", f"{place} would be two of the files beside the model")
        if place is not None:
            side[place] = SmallFile(name, content)
    return side


def _beside(target: Destination, name: str, content: SideFile) -> Path | None:
    own = format_of(target.format).place_beside
    if target.file is not None and own is not None:
        place: Path = load(own)(target.file, name, content)
        return place
    return target.parent / name if target.parent is not None else None


def own_names(side: Mapping[Path, SmallFile], target: Destination) -> Iterator[str]:
    """Notes about side files that had to get another name."""
    own = {small.name: path.name for path, small in side.items() if path.name == f"{target.file_name}.{small.name}"}
    if own:
        yield (
            f"another bump file is there: what belongs to this one is {', '.join(own.values())}; "
            f"the engine reads {', '.join(own)}, so a directory of its own (DST/) is better"
        )


def check_distinct(beside: Sequence[Path], paths: Sequence[Path]) -> None:
    """Check that no file beside the model is the model."""
    taken = {path.absolute() for path in beside}
    for path in paths:
        if path.absolute() in taken:
            raise UsageError(
                "usage.target", f"{path} would be both the model and a file beside it", hint="name another DST"
            )


def written(side: Mapping[Path, SmallFile]) -> list[NewFile]:
    """Side files, as the report lists them."""
    return [NewFile(path, len(what.content), digest_of(what.content)) for path, what in side.items()]


def last_file_sizes(
    last: Sequence[LastFile], paths: Sequence[Path], plan: Plan, side: Mapping[Path, SmallFile]
) -> dict[Path, LargeFile]:
    """The space that the last files take, whose content is not known yet."""
    none = NO_DIGEST.hex()
    known = [NewFile(path, file.nbytes, none, none) for path, file in zip(paths, plan.files, strict=True)]
    known += written(side)
    rooms = {}
    for item in last:
        nbytes = item.nbytes(known)
        rooms[item.path] = LargeFile(nbytes)
        known.append(NewFile(item.path, nbytes, none))
    return rooms


def named_last(plan: Plan, paths: Sequence[Path], side: Mapping[Path, SmallFile]) -> list[Path]:
    """The files to name last, in this order.

    llama.cpp begins with the first shard of a split GGUF (``llama_model_loader``), the engine with the weights,
    transformers with the index of a checkpoint, or its one file of weights; mlx-lm reads ``config.json`` and takes
    no weights of which a tensor is missing.

    Args:
        paths: files of tensors, in order.
        side: files beside them.
    """
    if format_of(plan.format).single:
        return list(reversed(paths))
    indexes = [path for path, what in side.items() if what.name.endswith(INDEX_SUFFIX)]
    configs = [path for path, what in side.items() if what.name in (CONFIG_NAME, ADAPTER_CONFIG)]
    return [*configs, *paths, *indexes]


def write_last(item: LastFile, files: Sequence[NewFile], fd: int, *, verify: bool) -> NewFile:
    """Write a file whose content is known now, sync it, read it again.

    Raises:
        VerifyError: ``verify.file``.
        OSError: it cannot be written.
    """
    at, meant, planned = 0, sha256(), item.nbytes(files)
    for data in item.content(files):
        meant.update(data)
        write_at(fd, data, at)
        at += len(data)
    if at != planned:
        raise AssertionError(f"{item.path.name} has {at:,} bytes, {planned:,} were planned")
    if verify and sha256_of(fd) != meant.hexdigest():
        raise VerifyError("verify.file", "differs from what should have been written", path=item.path)
    sync(fd)
    return NewFile(item.path, at, meant.hexdigest())


def last_files(
    plan: Plan,
    place: Destination,
    *,
    checksums: bool = False,
    record: bool = False,
    attest: Path | None = None,
    adapters: Sequence[tuple[str | os.PathLike[str], float]] = (),
    facts: Facts | None = None,
) -> Sequence[LastFile]:
    """The files beside the model whose content follows from what is written.

    Args:
        attest: where the statement for in-toto goes.
        facts: what the record and the statement say, if somebody has gathered that already.

    Raises:
        UsageError: ``usage.side-file``, standard output has no place beside it.
    """
    plan.check()
    content: Recorded | None = None
    if record or attest:
        facts = facts or Facts(plan, [(Path(path), weight) for path, weight in adapters])
        content = recorded(facts, place) if record else None
    last = []
    digested = format_of(plan.format).keeps_source
    if plan.record:
        last.append(_source_record(plan.record, plan, place, content if digested else None))
    if content and not (plan.record and digested):
        last.append(record_file(place, content))
    if attest and facts:
        last.append(attested(facts, place, attest))
    return [*last, checksum_file(place)] if checksums else last


def _source_record(record: PayloadRecord, plan: Plan, place: Destination, content: Recorded | None) -> LastFile:
    """``DST.source.zip``, with the conversion record if one was asked for."""
    parent = _place_of(place, "--source-record writes a file beside the model, and stdout has none")
    return LastFile(
        record_path(parent / plan.files[0].name),
        lambda files: record.size(content(files) if content else None),
        lambda files: record.chunks(bytes.fromhex(files[0].payload_sha256), content(files) if content else None),
        names_digests=content is not None,
    )


def _place_of(place: Destination, message: str) -> Path:
    """The directory of an output; standard output has no place beside it."""
    if place.parent is None:
        raise UsageError("usage.side-file", message)
    return place.parent


# Lists of checksums beside a model, as sha256sum writes and reads them: ``NAME.sha256`` and ``SHA256SUMS``.

#: What the file is called in a directory, and what is added to the name of a model that is a file.
IN_DIRECTORY = "SHA256SUMS"


def checksum_file(target: Destination) -> LastFile:
    """``DST.sha256``, or ``SHA256SUMS`` in a directory, of all other files."""
    parent = _place_of(target, "--checksums writes a file beside the model, and stdout has no place for it")
    name = IN_DIRECTORY if target.directory else f"{target.file_name}{SUMS_SUFFIX}"
    return LastFile(
        parent / name,
        lambda files: sum(map(len, _lines(files, parent))),
        lambda files: _lines(files, parent),
    )


def _lines(files: Sequence[NewFile], parent: Path) -> Iterator[bytes]:
    return (_line(file.sha256, seen_from(file.path, parent)) for file in files)


def seen_from(path: Path, parent: Path) -> str:
    """A file's path from the output's directory ``parent``."""
    return path.name if path.parent == parent else os.path.relpath(path.absolute(), parent.absolute())


def _line(digest: str, name: str) -> bytes:
    r"""A line as sha256sum prints it.

    A backslash or a line feed in a name is escaped, and the line then begins with a backslash.
    """
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    mark = "\\" if escaped != name else ""
    return os.fsencode(f"{mark}{digest}  {escaped}\n")


CODE = "verify.checksum"

#: Bytes of a list of checksums.
_LIMIT = 16 << 20

_LINE = r"(\\?)([0-9a-fA-F]{64}) [ *](.+)"
_BSD = r"SHA256 \((.+)\) = ([0-9a-fA-F]{64})"
_ALONE = r"([0-9a-fA-F]{64})"
_ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}


#: SHA-256 of a file, as hex.
Digest = Callable[[Path], str]


def file_digest(path: Path) -> str:
    """SHA-256 of a whole file, as hex.

    Raises:
        InputError: it is not a regular file, or cannot be read.
        OutputError: ``system``.
    """
    with readable(path), opened_regular(path) as fd:
        return sha256_of(fd)


def check_sums(index: tensors.TensorIndex, opened: Path, digest_of_file: Digest) -> Path | None:
    """Hold every file that a checksum list beside the model names against it.

    Args:
        opened: what the user named.

    Returns:
        the list, of which every line is read; ``None`` where there is none.

    Raises:
        VerifyError: ``verify.checksum``, naming every file that has another digest or is missing.
        InputError: ``checksum.line``, a line is none; the list cannot be read.
    """
    found = None
    for path in (*named_after(index, opened, SUMS_SUFFIX), index.files[0].parent / IN_DIRECTORY):
        pairs = list(_pairs(path)) if there(path) else []
        if not pairs:
            continue
        if faults := check_listed(path, pairs, digest_of_file):
            raise VerifyError(CODE, faults[0], path=path, details=listed(faults[1:]))
        found = path
    return found


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    """(name, digest) of every line.

    Raises:
        InputError: ``checksum.line``, a line is none; the list cannot be read.
    """
    with open_source(path) as source:
        size = source.size or 0
        if size > _LIMIT:
            message = f"has {size:,} bytes; a list of checksums has at most {_LIMIT:,}"
            raise InputError("checksum.line", message, path=path, found=size, allowed=_LIMIT)
        text = os.fsdecode(source.read_at(0, size))
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line or line.startswith("#"):
            continue
        if found := re.fullmatch(_LINE, line):
            name = re.sub(r"\\[\\nr]", lambda m: _ESCAPES[m[0]], found[3]) if found[1] else found[3]
            yield name, found[2].lower()
        elif found := re.fullmatch(_BSD, line):
            yield found[1], found[2].lower()
        elif found := re.fullmatch(_ALONE, line):
            yield path.name.removesuffix(SUMS_SUFFIX), found[1].lower()
        else:
            message = f"line {number:,} is {quoted(line, 60)}, a SHA-256 and a file name expected"
            raise InputError("checksum.line", message, path=path)


def check_listed(document: Path, pairs: Sequence[tuple[str, str]], digest_of_file: Digest) -> list[str]:
    """Faults of files that a document lists with their digests."""
    faults = []
    for name, digest in pairs:
        path = document.parent / name
        if not there(path):
            faults.append(f"{path.name} is listed and missing")
        elif (computed := digest_of_file(path)) != digest:
            faults.append(f"the SHA-256 of {path.name} is {computed}, {digest} is listed")
    return faults


# What an output was made of, with which options, and every file of it: as a conversion record, and for in-toto.

#: What a statement is about, and who makes it.
BUILD_TYPE = "https://github.com/ckconv/ckconv/convert/v1"
BUILDER = "https://github.com/ckconv/ckconv"

#: The record, given the files that are written before it. Its size does not depend on their digests.
Recorded = Callable[[Sequence[NewFile]], bytes]


def recorded(facts: Facts, place: Destination) -> Recorded:
    """The maker of a conversion record."""
    parent = _place_of(place, "--record writes a file beside the model, and stdout has no place for it")

    def content(files: Sequence[NewFile]) -> bytes:
        outputs = [
            {"name": seen_from(file.path, parent), "bytes": file.nbytes, "sha256": file.sha256} for file in files
        ]
        made = {
            "schema": conversion.SCHEMA,
            "ckconv": __version__,
            **facts.parameters,
            "sources": facts.sources,
            "outputs": outputs,
        }
        return conversion.sealed(made)

    return content


def attested(facts: Facts, place: Destination, path: Path) -> LastFile:
    """The record as a statement of in-toto with SLSA's provenance."""
    parent = _place_of(place, "--attest names files beside the model, and stdout has none")

    def content(files: Sequence[NewFile]) -> bytes:
        sources = [{"name": file["name"], "digest": {"sha256": file["sha256"]}} for file in facts.sources]
        statement = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": seen_from(file.path, parent), "digest": {"sha256": file.sha256}} for file in files],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": facts.parameters,
                    "resolvedDependencies": sources,
                },
                "runDetails": {"builder": {"id": BUILDER, "version": {"ckconv": __version__}}},
            },
        }
        return (json.dumps(each_text(statement, valid), indent=2) + "\n").encode()

    return LastFile(path, lambda files: len(content(files)), lambda files: [content(files)])


class Facts:
    """Options, sources and adapters of a conversion record."""

    def __init__(self, plan: Plan, adapters: Sequence[tuple[Path, float]]) -> None:
        self._plan, self._adapters, self._digest = plan, adapters, cache(file_digest)
        own = own_files()
        self._families: list[dict[str, Any]] = []
        for name, digest in own.digests.items():
            family = own.families.get(name.removesuffix(".toml"))
            open = {row.name: row.unmeasured for row in family.engines.values() if row.unmeasured} if family else {}
            self._families.append({"name": name, "sha256": digest, **({"unmeasured": open} if open else {})})

    @property
    def parameters(self) -> dict[str, Any]:
        """Format, options, and the files that were named."""
        plan, options = self._plan, self._plan.options
        return {
            "format": plan.format,
            "version": plan.version or format_of(plan.format).version,
            "options": {
                given.option.name: given.value
                for given in given_options(options)
                if given.option.records is not Records.NEITHER
            },
            **({"origins": dict(plan.origins)} if plan.origins else {}),
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
        return [{"name": name, "bytes": _size(path), "sha256": self._digest(path)} for name, path in paths]


def record_file(place: Destination, content: Recorded) -> LastFile:
    """The record as a file of its own beside the output."""
    assert place.parent is not None
    path = place.parent / (CONVERSION_NAME if place.directory else f"{place.file_name}{CONVERSION_SUFFIX}")
    return LastFile(path, lambda files: len(content(files)), lambda files: [content(files)])


def _size(path: Path) -> int:
    with readable(path):
        return path.stat().st_size


def _sources(index: tensors.TensorIndex) -> dict[str, Path]:
    return {path.name: path for path in index.files} | beside(index)


# -- Files of an earlier output that loaders would read with the new one -----------------------------------------------


def check_leftovers(
    plan: Plan,
    target: Destination,
    rooms: Collection[Path],
    side: Mapping[Path, SmallFile],
    gone: Collection[Path] = (),
) -> None:
    """Refuse to write beside files that would be read along with the output.

    Args:
        rooms, side: everything that is going to be written.
        gone: what is taken away.
    """
    directory = target.parent
    if directory is None or not directory.is_dir():  # it is going to be made
        return
    along, written = _along(plan, directory), {*rooms, *side, *gone}
    documents = _there(directory, along.documents, written)
    read = "loaders would take it for part of the output"
    for left, why in (
        (_there(directory, along.weights, written), read),
        (_described(target, written, side, gone), f"the {CONFIG_NAME} there would be of another model"),
        (documents, read),
    ):
        if left:
            hint = "remove what is left over, or name another directory"
            if left is documents:
                hint = f"--force removes {'it' if len(left) == 1 else 'them'}; or {hint}"
            message = f"{and_more(left)} would remain, and {why}"
            raise OutputError("output.exists", message, path=directory, hint=hint, details=listed(left[1:]))


def left_documents(plan: Plan, target: Destination, written: Collection[Path]) -> list[Path]:
    """Documents of an earlier output, which the new one removes.

    Args:
        written: everything that is going to be written.
    """
    directory = target.parent
    if directory is None or not directory.is_dir():
        return []
    return [directory / name for name in _there(directory, _along(plan, directory).documents, written)]


def gone_notes(gone: Collection[Path]) -> list[str]:
    """Notes about documents that were removed."""
    names, them = ", ".join(path.name for path in gone), "it" if len(gone) == 1 else "them"
    return [f"removed, as loaders would take {them} for part of the output: {names}"] if gone else []


def _along(plan: Plan, directory: Path) -> Globs:
    """Names of files that loaders read along with the output."""
    place = format_of(plan.format).takes_along
    along: Globs = load(place)(plan, directory) if place is not None else Globs()
    root = root_of(plan.index)
    if along.documents and not format_of(plan.index.format).single and root.is_dir() and root.samefile(directory):
        return along._replace(documents=())
    return along


def _there(directory: Path, patterns: Iterable[str], written: Collection[Path]) -> list[str]:
    """Names in a directory that match a pattern and are not written."""
    found: set[str] = set()
    with failing(directory):
        for folder in {os.path.dirname(pattern) for pattern in patterns}:
            globs = [os.path.basename(pattern) for pattern in patterns if os.path.dirname(pattern) == folder]
            paths = (directory / folder).iterdir() if (directory / folder).is_dir() else ()
            found |= {
                os.path.join(folder, path.name)
                for path in paths
                if path not in written
                and any(fnmatchcase(path.name, glob) for glob in globs)
                and not (path.is_dir() and not path.is_symlink())
            }
    return sorted(found)


def _described(
    target: Destination, written: Collection[Path], side: Mapping[Path, SmallFile], gone: Collection[Path]
) -> list[str]:
    """Weights of an earlier output that the new configuration would describe."""
    directory = target.parent
    assert directory is not None
    path = directory / CONFIG_NAME
    config = side.get(path)
    same = path not in gone if config is None else holds(path, config.content)
    if same or not (target.directory or os.path.lexists(path)):
        return []
    with failing(directory):
        found = [name for format in FORMATS if format.configured for name in load(format.configured)(directory)]
    return sorted(name for name in found if directory / name not in written)


def stale_lists(target: Destination, written: Collection[Path]) -> list[str]:
    """Notes about lists of digests of an earlier output.

    Args:
        written: everything that is going to be written.
    """
    assert target.parent is not None
    names = (IN_DIRECTORY, CONVERSION_NAME)
    if not target.directory:
        names = (f"{target.file_name}{SUMS_SUFFIX}", f"{target.file_name}{CONVERSION_SUFFIX}")
    left = [path for path in (target.parent / name for name in names) if path not in written and os.path.lexists(path)]
    return [f"{path.name} is already there and is not part of this output: remove it" for path in left]


def check_in_place(index: tensors.TensorIndex, place: Destination) -> bool:
    """Whether ``NAME.sha256`` lies beside it and has to be renewed."""
    hint = "name a DST instead of --in-place"
    if place.file is None or len(index.files) != 1 or index.files[0].name != place.file.name:
        raise UsageError("usage.in-place", "only a model that is one file is edited in place", hint=hint)
    path = place.file
    if path.is_symlink():
        raise UsageError("usage.in-place", f"{path} is a link, which the new file would replace", hint=hint)
    own = (path.with_name(f"{path.name}{CONVERSION_SUFFIX}"), record_path(path))
    speaking = [f"{other.name} beside it describes its present bytes" for other in own if os.path.lexists(other)]
    for name, listed_in in (
        (IN_DIRECTORY, _pairs),
        (CONVERSION_NAME, lambda record: conversion.read_record(record).outputs),
    ):
        other = path.with_name(name)
        try:
            if other.is_file() and path.name in (os.path.normpath(one) for one, _ in listed_in(other)):
                speaking.append(f"{name} beside it describes its present bytes")
        except InputError as error:
            speaking.append(f"{name} beside it may describe its present bytes: {error.message}")
    if speaking:
        raise UsageError("usage.in-place", speaking[0], path=Path(path), hint=hint)
    return os.path.lexists(path.with_name(f"{path.name}{SUMS_SUFFIX}"))


def check_tower(
    tower: tuple[Plan, Destination], outputs: Sequence[Path], last: Sequence[LastFile], *, force: bool
) -> None:
    """Check that a tower can be written when its text model is there.

    Args:
        outputs: everything that is written of the text model.
        last: files beside the tower.
    """
    plan, place = tower
    assert place.parent is not None
    own = [place.parent / file.name for file in plan.files]
    for path in (*own, *(item.path for item in last)):
        if any(_is_same(path, other) for other in outputs):
            message = f"{path} would be both a file of the tower and one of the text model"
            raise UsageError("usage.target", message, hint="name another FILE for --mmproj")
        if path in own:
            followed(path, force=force, typed=False)
        if path.parent.exists() or not any(_is_same(path.parent, other) for other in outputs):
            check_target(path, None, force=force, inputs=plan.index.files)


def _is_same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)
