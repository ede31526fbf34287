"""Writing of source records: content that an output cannot give back."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from ckconv.core.lazy import NamedTuple, np, replace
from ckconv.core.metadata import beside as side_files_of
from ckconv.core.options import Options, Records, given_options
from ckconv.core.tensors import EMBEDDING, HEAD, Extent, StoredTensor, Tensor, TensorIndex
from ckconv.errors import OutputError, and_more, quoted
from ckconv.formats import format_of, recorded
from ckconv.io.digests import Digests
from ckconv.io.files import Files, extent_pieces, head_is_embedding
from ckconv.io.rows import RowReader, canonical_pieces
from ckconv.plan.steps import Plan, Step
from ckconv.quant import mlx, repack
from ckconv.quant.convert import Action, Conversion
from ckconv.record import CONVERSION_NAME, record_path
from ckconv.record.read import (
    DOCUMENT_NAME,
    DOCUMENTS,
    MAX_ARCHIVE,
    MAX_DOCUMENT,
    MAX_NAME_BYTES,
    MAX_RECORD,
    MAX_WHOLE,
    Archive,
    Member,
    Record,
    Run,
    SourceFile,
    StoredRuns,
    archive,
    fits,
    is_side_file,
    plain_name,
    record_beside,
)

# The bytes of a source record.


class SourceBytes(NamedTuple):
    """Member of the archive: source bytes, SHA-256 (hex) and CRC-32."""

    extents: tuple[Extent, ...]
    sha256: str
    crc: int

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(extent.nbytes for extent in self.extents)


class PendingRecord(NamedTuple):
    """Record that lacks only the digest of its bump file.

    Attributes:
        record: with any digest.
        contents: the members that hold bytes of the source, by name.
        hashed: file of the source -> all of it, of those that are read once more for their digests.
        digests: what reads them.
    """

    record: Record
    contents: Mapping[str, SourceBytes]
    hashed: Mapping[str, Extent] = {}
    digests: Digests = Digests(())

    @property
    def nbytes(self) -> int:
        """Exact size of the file without a conversion record."""
        return self.size(None)

    def size(self, conversion: bytes | None) -> int:
        """Exact size of the file, with this conversion record if there is one."""
        return self._archive(self._documents(self.record, conversion)).nbytes

    def chunks(self, payload: bytes, conversion: bytes | None) -> Iterator[bytes]:
        """File in pieces, once the bump's payload SHA-256 is known.

        Args:
            conversion: the conversion record that is a member of it.

        Raises:
            OutputError: ``input.changed``, a source file is not what it was.
        """
        with Files() as files:
            documents = self._documents(self.record._replace(payload=payload, files=self._files()), conversion)
            made = self._archive(documents)
            for header, member in zip(made.headers, made.members, strict=True):
                yield header
                if member.name in documents:
                    yield documents[member.name]
                else:
                    yield from _again(self.contents[member.name], files)
        yield made.directory

    @contextmanager
    def hashing(self) -> Iterator[None]:
        """Within the block, files of the source are hashed beside other work."""
        with self.digests:
            self.digests.begin()
            yield

    def _files(self) -> tuple[SourceFile, ...]:
        """With their digests."""
        found = self.digests.all()
        return tuple(
            file._replace(sha256=found[self.hashed[file.name]].hex()) if file.name in self.hashed else file
            for file in self.record.files
        )

    def _documents(self, record: Record, conversion: bytes | None) -> dict[str, bytes]:
        """The members that are no bytes of the source."""
        if conversion is None:
            return {DOCUMENT_NAME: record.to_json()}
        return {DOCUMENT_NAME: record._replace(options=None).to_json(), CONVERSION_NAME: conversion}

    def _archive(self, documents: Mapping[str, bytes]) -> Archive:
        members = [Member(name, c.crc, c.nbytes) for name, c in self.contents.items()]
        members += [Member(name, zlib.crc32(data), len(data)) for name, data in documents.items()]
        return archive(members)


def content_of(extents: Sequence[Extent], files: Files) -> SourceBytes:
    """Read the bytes once, for their digests."""
    digest, crc = sha256(), 0
    for data in _read(extents, files):
        digest.update(data)
        crc = zlib.crc32(data, crc)
    return SourceBytes(tuple(extents), digest.hexdigest(), crc)


def _again(content: SourceBytes, files: Files) -> Iterator[bytes]:
    crc = 0
    for data in _read(content.extents, files):
        crc = zlib.crc32(data, crc)
        yield data
    if crc != content.crc:
        message = "the file changed while it was being read"
        raise OutputError("input.changed", message, path=content.extents[0].path)


def _read(extents: Sequence[Extent], files: Files) -> Iterator[bytes]:
    for extent in extents:
        for path, at, nbytes in extent_pieces(extent):
            buffer = bytearray(nbytes)
            files.read_into(path, at, buffer)
            yield bytes(buffer)


# What of a source does not come back out of the output that is planned: what its record has to keep.

#: A record has this part of the output's bytes in any case: blocks have less than a third of what they decode to.
SHARE = 3

#: What a payload is called whose digest is not known yet.
_NO_DIGEST = bytes(32)


class NoRecordError(Exception):
    """Reason why no record can be made; never leaves this module."""


def with_record(plan: Plan) -> Plan:
    """Plan with a record of its source, or a note why without."""
    if plan.refusals:
        return plan
    try:
        return replace(plan, record=_prepare(plan))
    except NoRecordError as reason:
        return plan.with_notes(f"no source record: {reason}")


def _prepare(plan: Plan) -> PendingRecord:
    index = plan.index
    if len(os.fsencode(record_path(Path(plan.files[0].name)).name)) > MAX_NAME_BYTES:
        raise NoRecordError("its name would be too long for a file system")
    if index.target is not None:
        raise NoRecordError("a drafter's would need the configuration of the model that it drafts for")
    with Files(index.identities) as files:
        returning = _Returning(plan, files)
        digested = format_of(plan.format).keeps_source
        if not digested and (format_of(index.format).single or index.format not in recorded()):
            raise NoRecordError(f"beside a {plan.format} it is of a checkpoint, and this source is a {index.format}")
        if index.format not in recorded():
            return _carried(plan, returning)
        name = Path(os.path.abspath(index.path)).name  # noqa: PTH100 - a link keeps its own name
        beside = _side_files(index)
        _check_names(name, [path.name for path in index.files], [*beside])
        wanted = {path: _stored_runs(index, path, returning, files) for path in index.files}
        _check_size(wanted, beside.values(), plan)
        contents: dict[str, SourceBytes] = {}
        sources = [_source_file(path.name, path, wanted[path], contents, files) for path in index.files]
        sources += [_source_file(name, path, None, contents, files) for name, path in beside.items()]
        sources = [file._replace(sha256=_NO_DIGEST.hex()) if file.tensors else file for file in sources]
    record = Record(
        index.format,
        name,
        _NO_DIGEST if digested else b"",
        plan.rope_layout if digested else "",
        index.config.family if index.config and digested else "",
        _recorded(plan.options),
        tuple(left.name for left in plan.left_out),
        returning.aliases,
        tuple(sources),
    )
    whole = {file.name: Extent(path, 0, file.size) for path, file in zip(index.files, sources, strict=False)}
    pending = PendingRecord(record, contents, whole, Digests(whole.values()))
    document = len(record.to_json())
    if document > MAX_DOCUMENT or not fits(
        [*contents, *DOCUMENTS], document + sum(c.nbytes for c in contents.values())
    ):
        raise NoRecordError("it would list too many runs of bytes")
    return pending


def _carried(plan: Plan, returning: _Returning) -> PendingRecord:
    """Record of a bump source, for the bump made from it."""
    from ckconv.record.conversion import recorded_options

    index = plan.index
    opened = record_beside(index)
    if opened is None:
        raise NoRecordError(f"there is none beside {index.path.name}, and none is made from a bump file")
    opened.check()
    zero_filled = {tensor.name for tensor in index.tensors.values() if tensor.may_be_absent} - returning.written
    lost = [stored.name for stored in index.stored if stored.name not in zero_filled and returning.lost(stored)]
    if lost:
        raise NoRecordError(f"the one beside {index.path.name} needs {and_more(lost)}, which would not come back")
    record = opened.record
    aliases = {**record.aliases, **returning.aliases}
    options = {**_recorded(recorded_options(opened)), **_recorded(plan.options)}
    return PendingRecord(
        record._replace(rope_layout=plan.rope_layout, options=options, aliases=aliases),
        {
            name: SourceBytes((Extent(opened.path, stored.offset, stored.member.nbytes),), "", stored.member.crc)
            for name, stored in opened.contents.items()
        },
    )


def _recorded(options: Options) -> dict[str, object]:
    return {given.option.name: given.value for given in given_options(options) if given.option.records is Records.BOTH}


def _side_files(index: TensorIndex) -> dict[str, Path]:
    """Every file of the source that is stored whole, by name."""
    return dict(sorted({**side_files_of(index), **({it.name: it} if (it := index.shard_index) else {})}.items()))


def _check_names(source: str, files: list[str], beside: list[str]) -> None:
    odd = [name for name in (source, *files) if not plain_name(name)]
    odd += [name for name in beside if not is_side_file(name)]
    if odd:
        raise NoRecordError(f"{quoted(odd[0])} is a name that no record holds")
    if len({*files, *beside}) != len(files) + len(beside):
        raise NoRecordError("two files of the source have one name")


def _check_size(wanted: Mapping[Path, Iterable[list[Run]]], side_files: Iterable[Path], plan: Plan) -> None:
    """Refuse a record that is large beside the output, unless asked for."""
    sizes = [path.stat().st_size for path in side_files]
    stored = sum(nbytes for runs in wanted.values() for some in runs for _, nbytes in some)
    for size in sizes:
        _check_whole(size)
    total = stored + sum(sizes)
    requested = plan.options.source_record == "always"
    most = MAX_ARCHIVE if requested else max(MAX_RECORD, sum(file.nbytes for file in plan.files) // SHARE)
    if total > most:
        raise NoRecordError(
            f"{total:,} bytes of the source would not come back out of the "
            f"{'bump file' if format_of(plan.format).keeps_source else plan.format}, and a record keeps {most:,}"
            + ("" if requested or total > MAX_ARCHIVE else "; --source-record keeps them")
        )


def _check_whole(nbytes: int) -> None:
    if nbytes > MAX_WHOLE:
        raise NoRecordError(
            f"{nbytes:,} bytes of a header or a document are more than the {MAX_WHOLE:,} that one keeps"
        )


def _source_file(
    name: str, path: Path, runs: list[list[Run]] | None, contents: dict[str, SourceBytes], files: Files
) -> SourceFile:
    """File of the record, with the runs that are stored."""
    size = path.stat().st_size
    groups = [[(0, size)] if size else []] if runs is None else runs
    made = [content_of([Extent(path, offset, nbytes) for offset, nbytes in group], files) for group in groups]
    stored = tuple(StoredRuns(tuple(group), content.sha256) for group, content in zip(groups, made, strict=True))
    file = SourceFile(name, size, runs is not None, stored)
    for item, content in zip(stored, made, strict=True):
        contents.setdefault(file.member(item), content)
    return file


def _stored_runs(index: TensorIndex, path: Path, returning: _Returning, files: Files) -> list[list[Run]]:
    """Bytes stored of a file of tensors: the rest, then lost values."""
    stored = sorted((t for t in index.stored if t.extent.path == path), key=lambda t: t.extent.offset)
    groups: list[list[Run]] = []
    end = 0
    for extent in (*(t.extent for t in stored), Extent(path, path.stat().st_size, 0)):
        gap = Extent(path, end, extent.offset - end)
        _check_whole(gap.nbytes)
        if gap.nbytes > 0 and not files.are_zero(extent_pieces(gap)):
            groups.append([(gap.offset, gap.nbytes)])
        end = max(end, extent.offset + extent.nbytes)
    return groups + [runs for t in stored if (runs := returning.lost(t))]


class _Returning:
    """Decides which stored bytes the planned output gives back.

    Attributes:
        written: canonical tensors with a step.
        aliases: canonical tensor without a step -> the one that is byte for byte the same and has one.
    """

    def __init__(self, plan: Plan, files: Files) -> None:
        self._plan, self._index, self._files = plan, plan.index, files
        self._steps = dict(_conversions(plan.steps))
        self.written = frozenset(self._steps)
        self.aliases: dict[str, str] = {}
        tied = HEAD in self._index.tensors and HEAD not in self._steps and EMBEDDING in self._steps
        if tied and head_is_embedding(self._index, files):
            self.aliases[HEAD] = EMBEDDING

    def lost(self, stored: StoredTensor) -> list[Run]:
        """Runs of a stored tensor that do not come back, sorted."""
        here = stored.extent
        names = [name for name in self._index.canonical_of.get(stored.name, ()) if name in self._index.tensors]
        parts = [
            (tensor, plane, extent)
            for tensor in (self._index.tensors[name] for name in names)
            for plane, array in (enumerate(tensor.planes) if tensor.planes else ((None, tensor),))
            for extent in array.extents
            if extent.path == here.path and here.offset <= extent.offset < here.offset + max(here.nbytes, 1)
        ]
        # Tensors whose elements lie between each other's are no runs of bytes.
        if sum(extent.nbytes for _, _, extent in parts) != here.nbytes:
            return [(here.offset, here.nbytes)] if here.nbytes else []
        return _merged(run for part in parts for run in self._lost(*part))

    def _lost(self, tensor: Tensor, plane: int | None, extent: Extent) -> Iterator[Run]:
        conversion = self._steps.get(self.aliases.get(tensor.name, tensor.name))
        array = tensor if plane is None else tensor.planes[plane]
        whole = (extent.offset, extent.nbytes)
        if conversion is None or (len(array.extents) > 1 and not array.layout.in_order):
            yield whole
        elif conversion.action is Action.REPACK:
            triple = mlx.triple_of(tensor.dtype)
            recipe = repack.find(triple.quantization, conversion.target) if triple is not None else None
            if triple is None or recipe is None:  # there is no way back
                yield whole
            elif plane or recipe.anywhere:
                rows, moved = self._respelled(tensor, recipe, triple)
                if moved:
                    yield whole
                elif plane:
                    yield from _runs_of(rows, array, extent)
        elif not self._comes_back(tensor, conversion):
            yield whole

    def _comes_back(self, tensor: Tensor, conversion: Conversion) -> bool:
        """Whether every bit survives the conversion there and back."""
        action = conversion.action
        if action is Action.SHIFT:
            return self._shift_comes_back(tensor, conversion)
        if action is Action.NARROW:
            return not self._plan.options.allow_lossy and conversion.quantizing is None
        return action in (Action.COPY, Action.WIDEN)

    def _shift_comes_back(self, tensor: Tensor, conversion: Conversion) -> bool:
        """Whether adding and taking away 1 gives every float32 back."""
        back = Conversion(conversion.target, conversion.source, -conversion.shift)
        for _, rows in canonical_pieces(RowReader(tensor, self._files)):
            stored, _ = conversion.apply(rows)
            again, _ = back.apply(stored)
            if again.tobytes() != rows.tobytes():
                return False
        return True

    def _respelled(self, tensor: Tensor, recipe: repack.Recipe, triple: mlx.Triple) -> tuple[list[int], bool]:
        """Rows whose numbers come back as other bits of equal values."""
        _, scales, *biases = (RowReader(array, self._files) for array in tensor.planes)
        found, moved = [], False
        for start, rows in canonical_pieces(scales):
            beside = biases[0].rows(start, start + len(rows)) if biases else None
            flags = recipe.respelled(rows, beside, triple).any(axis=1)
            found += [start + int(row) for row in np.flatnonzero(flags)]
            moved |= recipe.moves(rows, beside, triple)
        return found, moved


def _conversions(steps: Iterable[Step]) -> Iterator[tuple[str, Conversion]]:
    """Conversions of canonical tensors that are written whole."""
    for step in steps:
        if any(tensor.merge for tensor in step.sources):
            continue
        for run in step.runs:
            if (run.start, run.stop) == (0, run.tensor.layout.rows):
                yield run.tensor.name, run.conversion
        if not step.runs and step.source is not None and step.conversion is not None:
            yield step.source.name, step.conversion


def _runs_of(rows: Iterable[int], array: Tensor, extent: Extent) -> Iterator[Run]:
    """Where rows of an array lie in one of its extents."""
    row_bytes = array.dtype.nbytes(array.layout.cols)
    first = 0
    for other in array.extents:
        if other is extent:
            break
        first += other.nbytes // row_bytes
    for row in rows:
        if first <= row < first + extent.nbytes // row_bytes:
            yield extent.offset + (row - first) * row_bytes, row_bytes


def _merged(runs: Iterable[Run]) -> list[Run]:
    """Sorted, and runs that follow each other as one."""
    found: list[Run] = []
    for offset, nbytes in sorted(runs):
        if found and sum(found[-1]) == offset:
            found[-1] = (found[-1][0], found[-1][1] + nbytes)
        else:
            found.append((offset, nbytes))
    return found
