"""Verification of an output: checksums, structure, tensors, statements."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache, partial
from hashlib import sha256
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ckconv.conversion.planning import make_plan, merged
from ckconv.conversion.sidefiles import Recorded, check_listed, check_sums, file_digest, side_paths
from ckconv.conversion.write import Losses, Watcher, check_frame, check_stored, in_one_run, watching
from ckconv.core import __version__
from ckconv.core.layouts import Kind
from ckconv.core.lazy import Floats, replace
from ckconv.core.metadata import CONFIG_NAME, METADATA, Content, beside, document_of, pieces_of, scalar
from ckconv.core.options import Options, given_options
from ckconv.core.tensors import HEAD, MetadataKind, Tensor, TensorIndex, require_described, stored_value
from ckconv.errors import (
    CkconvError,
    InputError,
    OutputError,
    UnsupportedError,
    UsageError,
    VerifyError,
    counted,
    listed,
)
from ckconv.families.adapters import parted_alike
from ckconv.families.catalog import asks_target, drafter_of, layers_behind, own_files
from ckconv.families.schema import TOWER
from ckconv.formats import detect, format_of, hazards, load
from ckconv.formats.bump.releases import DEFAULT
from ckconv.formats.destination import Destination, of_tower_alone
from ckconv.formats.gguf.values import parse_shard_name
from ckconv.formats.model import seen_alike
from ckconv.formats.safetensors.container import INDEX_SUFFIX
from ckconv.io import StrPath
from ckconv.io.digests import Digests
from ckconv.io.files import CHUNK, ByteSource, Files, Progress, holds, open_source, opened_regular, readable, there
from ckconv.io.json import parse_object, read_document
from ckconv.plan.steps import Container, Frame, NewFile, OutputFile, Plan
from ckconv.record import CONVERSION_NAME, record_path
from ckconv.record.conversion import DOCUMENT, ConversionRecord, as_meant, of_files_gone, recorded_options, records_of
from ckconv.record.read import OpenRecord, open_record, record_beside
from ckconv.tokenizer.vocabulary import adds_by_default
from ckconv.verification.content import (
    Fact,
    check_documents,
    check_json,
    content_of_index,
    differences,
    made_by,
    needed,
)
from ckconv.verification.documents import sees
from ckconv.verification.statements import ENOUGH, HINT, faults_of, taken_by_default
from ckconv.verification.tensors import ABSENT, SourceChecksum, TensorComparison

if TYPE_CHECKING:
    from typing_extensions import Buffer


#: A GGUF is called after the place of its source, where that has no name of its own.
OF_THE_PLACE = "general.name"

#: The library that a safetensors file says it was written for.
WRITTEN_FOR = f"{METADATA}.format"

#: What converters count out of the sizes of tensors, each in its way.
_OF_SIZES = "general.size_label"

#: What converters take from the name of the source's directory: it is shown, and no difference of the model.
LABELS = frozenset({OF_THE_PLACE, *(f"general.{key}" for key in ("basename", "finetune", "version")), _OF_SIZES})

# Plan the source again as it was converted, to know what an output should hold.
#
# The storage options (types, names, fused and tied tensors, files, versions) are read from the output. Options that
# change the model (a context length, metadata, dropped tensors but a whole tower) must be given again.

_FLOATS = ("engine", "keep", "f32", "f16", "bf16", "source")


def plan_again(source: TensorIndex, out: TensorIndex, options: Options, *, directory: bool) -> Plan:
    """Return the plan that makes ``out`` from ``source``, or the nearest one.

    Args:
        options: the options of the conversion; storage options that have their defaults are read from the output.
        directory: the output is a directory, whose files have the names that readers look for.
    """
    to = out.format.partition(" ")[0]
    options = replace(options, file_name="" if directory or _has_layers(out) else file_name_of(out))
    ways = [options]  # some options leave a tower out by themselves, of classes that refuse to be without one
    if TOWER not in options.drop and _lacks_tower(source, out):
        ways.insert(0, replace(options, drop=(*options.drop, TOWER)))
    first: Plan | None = None
    for candidate in (candidate for way in ways for candidate in _candidates(source, out, way)):
        plan = make_plan(source, to, candidate)
        if not plan.refusals and stores_alike(plan, out):
            return plan
        if first is None or (first.refusals and not plan.refusals):
            first = plan
    assert first is not None
    return first


def _has_layers(out: TensorIndex) -> bool:
    """Whether linear layers lie in directories beside the model's file."""
    return out.metadata_kind is MetadataKind.DOCUMENT and bool(layers_behind(out))


def _lacks_tower(source: TensorIndex, out: TensorIndex) -> bool:
    """Whether the output is the text model of a checkpoint with a tower."""
    if not format_of(out.format).holds_towers or format_of(source.format).single or out.adapter or source.adapter:
        return False
    return sees(source) and not sees(out)


def restoring_again(source: TensorIndex, out: TensorIndex, options: Options, *, directory: bool) -> Plan:
    """Return the plan that restores the source of a bump file."""
    options = replace(options, source_record=True, file_name="" if directory else file_name_of(out))
    return make_plan(source, out.format, options)


def content_of_plan(container: Container) -> Content:
    """Return everything that a plan writes except tensors."""
    files = {name: b"".join(pieces_of(content)) for name, content in container.side_files.items()}
    return Content(container.keys, {**files, **container.inside})


def stores_alike(plan: Plan, out: TensorIndex) -> bool:
    """Whether a plan writes tensors of the names, types and shapes of ``out``."""
    files = [file for file in plan.files if not file.in_directory]  # which are compared later
    if len(files) != len(out.files):
        return False
    own = format_of(out.format).stores_alike
    if own is not None:
        return bool(load(own)(plan, out))

    def meant() -> Iterator[tuple[str, str, tuple[int, ...]]]:
        steps = (step for file in files for step in file.steps if step.content is None)
        return ((step.slot, step.target.dtype.name, tuple(step.target.shape)) for step in steps)

    def found() -> Iterator[tuple[str, str, tuple[int, ...]]]:
        return ((stored.name, stored.dtype.name, tuple(stored.shape)) for stored in out.stored)

    in_order = all(one == other for one, other in zip_longest(meant(), found()))
    return in_order or {name: how for name, *how in meant()} == {name: how for name, *how in found()}


def file_name_of(out: TensorIndex) -> str:
    """File name that the user gave; of shards, the name without the number."""
    name = out.path.name
    if name.endswith(INDEX_SUFFIX):
        return name.removesuffix(INDEX_SUFFIX)
    shard = parse_shard_name(name)
    return f"{shard.stem}.gguf" if shard else name


def _candidates(source: TensorIndex, out: TensorIndex, options: Options) -> Iterator[Options]:
    """Yield options to try, one storage type after another."""
    seen = _seen(source, out, options)
    for change in _storage(source, out, options):
        yield replace(options, **seen, **change)
    yield replace(options, **{key: seen[key] for key in ("bump_version", "dtype_codes") if key in seen})


def _seen(source: TensorIndex, out: TensorIndex, options: Options) -> dict[str, Any]:
    """The storage options that the output shows, except those given."""
    row = format_of(out.format)
    seen: dict[str, Any] = load(row.shown)(source, out) if row.shown is not None else {}
    may_tie = out.adapter is None and any("tie" in output.options for output in row.outputs)
    if may_tie and out.tensors and source.tensors:
        has, had = HEAD in out.tensors, HEAD in source.tensors
        seen["tie"] = "untie" if has and not had else "tie" if had and not has else ""
    if len(out.files) > 1:
        seen["max_shard_bytes"] = _shard_bytes(out)
    defaults = Options()
    return {key: value for key, value in seen.items() if getattr(options, key) == getattr(defaults, key)}


def _shard_bytes(out: TensorIndex) -> int:
    """The smallest shard limit that gives these files."""
    filled: dict[Any, list[int]] = {path: [] for path in out.files}
    alignment = int(out.facts.get("alignment") or 1)
    for stored in out.stored:
        filled[stored.extent.path].append(-(-stored.extent.nbytes // alignment) * alignment)
    several = [sum(sizes) for sizes in filled.values() if len(sizes) > 1]
    return max(several, default=1)


def _storage(source: TensorIndex, out: TensorIndex, options: Options) -> Iterator[Mapping[str, Any]]:
    """Yield options of types that may have made the output, likely ones first."""
    if options.dtype != "engine" or options.dequantize or options.decode:
        yield {}
        return
    blocks = {name for name, tensor in source.everything.items() if tensor.dtype.kind is Kind.BLOCK}
    decoded = {name for name in blocks if name in out.everything and out.everything[name].dtype.kind is not Kind.BLOCK}
    ways: list[Mapping[str, Any]] = [{}]
    if decoded:
        ways = [{"dequantize": True}, {"decode": tuple(sorted(decoded))}, {}]  # without either, where floats hold them
    for way in ways:
        for dtype in _FLOATS:
            if dtype != ("keep" if way else "source"):
                yield {**way, "dtype": dtype, "allow_lossy": True}


# Verify an output: checksums, structure, every tensor against its source, and everything that it says besides.

CODE = "verify.content"

#: Characters of values that a hint repeats.
_SHORT = 40


class Verified(NamedTuple):
    """Result of a verification: the checks that passed.

    Attributes:
        tensors: tensors of the output that were compared, or only looked at where no source was given.
        zero_filled: all-zero placeholders for tensors that the source does not have.
        rounded: tensors that hold their source's values rounded to a smaller type: right, but not exact.
        payload_sha256: the digest of the payload that the header stores, as hex; empty where the format has none.
        without_tower: it is the text model of a source that has a tower, too.
    """

    tensors: int
    zero_filled: int
    payload_sha256: str
    compared: bool
    rounded: int = 0
    without_tower: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return self._asdict()


class Request(NamedTuple):
    """The scope of a verification.

    Attributes:
        options: the options of the conversion, as far as they are known.
        weights: verify the tensors only, without metadata and side files.
        named: side file -> path, for each that is not beside the model.
        directory: the output is a directory.
    """

    options: Options
    weights: bool = False
    named: Mapping[str, Path] | None = None
    directory: bool = False


class Proofs(NamedTuple):
    """The records and checksums beside an output.

    Attributes:
        record: the conversion record, ``None`` if there is none.
        sums: path of the checksum list, ``None`` if there is none.
        stored_options: the options in the source record of a bump file, for an output without a conversion record.
    """

    record: ConversionRecord | None
    sums: Path | None
    stored_options: Options = Options()

    @property
    def path(self) -> Path | None:
        """The record's."""
        return self.record.path if self.record else None

    def options(self, given: Options, adapters: Sequence[object]) -> Options:
        """Options of the conversion: given ones, completed by the record's."""
        if self.record is not None:
            for flag in self.record.besides:
                named = {"--adapter": adapters, "--template": given.template, "--imatrix": given.imatrix}
                if not named[flag.partition(" ")[0]]:
                    raise UsageError("usage.flag", f"{self.record.path.name} says that {flag} was given: name it again")
            for name, digest in self.record.families:
                used = own_files().digests.get(name)
                if used != digest:
                    what = "another file was given" if used else "name it again"
                    message = f"{self.record.path.name} says that the family file {name} was used: {what}"
                    raise UsageError("usage.flag", message, hint=f"the file's SHA-256 was {digest}")
        changed = {found.option.name: found.value for found in given_options(given)}
        return replace(self.record.options if self.record else self.stored_options, **changed)


def check_beside(opened: Path, out: TensorIndex, source: TensorIndex | None) -> Proofs:
    """Hold every file of an output against records and checksums beside it.

    Args:
        opened: what the user named.

    Raises:
        VerifyError: ``verify.checksum``, a file has another digest.
        InputError: ``record.conversion`` or ``checksum.line``, what lies beside is malformed.
    """
    if opened.is_dir() and (gone := [*of_files_gone(opened, out)]):
        texts = [*dict.fromkeys(f"{name} is listed and missing" for _, name in gone)]
        raise VerifyError("verify.checksum", texts[0], path=gone[0][0], details=listed(texts[1:]))
    digest_of = cache(file_digest)
    source_record = None
    if format_of(out.format).keeps_source:
        with suppress(InputError):  # :func:`check_source_record` says so, after what is wrong with the output
            source_record = record_beside(out)
    records = list(records_of(opened, out, source_record))
    for record in records:
        faults = check_listed(record.path, record.outputs, digest_of)
        if source is not None:
            there = {path.name: path for path in source.files} | beside(source)
            faults += [
                f"{name} is not the file that was converted: its SHA-256 is {digest_of(there[name])}, {digest} was"
                for name, digest in record.sources
                if name in there and digest_of(there[name]) != digest
            ]
        if faults:
            raise VerifyError("verify.checksum", faults[0], path=record.path, details=listed(faults[1:]))
    options = recorded_options(source_record) if source_record and not records else Options()
    if source_record and source is not None and source_record.record.format != format_of(source.format).name:
        # The record of a bump file that was made of another one has the types that were asked for either of them.
        options = replace(options, dtype="engine", quantize="", dequantize=False, decode=())
    releases = str(out.facts.get("engines") or DEFAULT).split(", ")
    if not options.engine and DEFAULT not in releases:
        options = replace(options, engine=releases[0])  # the file says for which it is
    sums = check_sums(out, opened, digest_of)
    return Proofs(records[0] if records else None, sums, options)


def check_source_record(out: TensorIndex) -> OpenRecord | None:
    """The source record beside a file, checked whole; ``None`` without one."""
    if not format_of(out.format).single:
        return None
    try:
        found = record_beside(out)
        if found is not None:
            found.check()
    except InputError as error:
        if error.code in ("record.foreign", "record.content"):
            raise VerifyError.of(error) from error
        raise
    return found


def verify_index(
    out: TensorIndex,
    source: TensorIndex | None = None,
    *,
    left_out: Collection[str] = (),
    left_parts: Collection[str] = (),
    configuration: bool = True,
    options: Options | None = None,
    progress: Progress | None = None,
    importance: Mapping[str, Floats] | None = None,
    decodes: Callable[[Tensor], bool] | None = None,
) -> Verified:
    """Verify the tensors of ``out``, against ``source`` if there is one.

    The source's own checksum comes first: nothing is right beside a damaged one.

    Args:
        left_out, left_parts, configuration, options, importance, decodes: see
            :class:`ckconv.verification.tensors.TensorComparison`.

    Raises:
        VerifyError: ``bump.checksum``, ``verify.config``, ``verify.padding`` or ``verify.tensor``, with every fault
            found.
        InputError: ``bump.config``, if the output cannot be described for want of its configuration.
    """
    require_described(out)
    known = {**(source.identities if source else {}), **out.identities}
    with (
        SourceChecksum(source) if source is not None else nullcontext() as sound,
        Files(known) as files,
        Digests(checksum.extent for checksum in out.checksums) as digests,
    ):
        if sound is not None:
            sound.begin()
        digests.begin()
        found = TensorComparison(
            out,
            source,
            files,
            left_out=left_out,
            left_parts=left_parts,
            configuration=configuration,
            options=options or Options(),
            progress=progress,
            importance=importance or {},
            decodes=decodes,
        ).run()
        found.check(out.path, out.checksums, digests.all())
        files.check_unchanged()
        if sound is not None:
            sound.check()
    digest = out.checksums[0].stored.hex() if out.checksums else ""
    return Verified(found.tensors, found.zero_filled, digest, source is not None, found.rounded)


def verify_alone(
    out: TensorIndex, named: Mapping[str, Path] | None = None, *, progress: Progress | None = None
) -> Verified:
    """Verify an output without its source: its files are well-formed.

    Raises:
        VerifyError: ``verify.*`` or ``bump.checksum``.
        InputError: ``side.json``, a file beside it is malformed.
    """
    check_json(content_of_index(out, named))
    found = verify_index(out, None, progress=progress)
    check_documents(out, named)
    return found


def wants_model(index: TensorIndex) -> str:
    """Hint for a drafter that was opened without its model; empty otherwise."""
    drafter = drafter_of(index.metadata) if index.metadata_kind is MetadataKind.DOCUMENT else ""
    known = index.config is None and not index.quantizer and drafter and asks_target(drafter)
    return "--base DIR takes the directory of the model that it drafts for" if known else ""


def verify_whole(
    out: TensorIndex, source: TensorIndex, request: Request, *, progress: Progress | None = None
) -> Verified:
    """Verify tensors, metadata, tokenizer and side files against the source.

    Raises:
        VerifyError: ``verify.*`` or ``bump.checksum``, with every fault found.
        InputError: ``side.json``, a file beside the output is malformed.
    """
    options = request.options
    source = parted_alike(source, out)
    plan: Plan | None = None
    reason: UnsupportedError | None = None
    if not request.weights or options.imatrix:
        try:
            plan = _plan(out, source, request)
        except UnsupportedError as error:
            reason = error
    if out.config is not None and (way := wants_model(source)):
        message = "tensors of a drafter have no names in its source without the model that it drafts for"
        raise VerifyError(CODE, message, path=out.path, hint=way)
    try:
        found = verify_index(
            out,
            source,
            left_out=options.drop,
            left_parts=[left.name for left in plan.left_out] if plan else (),
            configuration=not request.weights,
            options=options,
            progress=progress,
            importance=plan.importance if plan else None,
            decodes=options.decodes if options.dequantize or options.decode else None,
        )
    except VerifyError as error:  # the source may be rounded, and made of the output, which its record restores
        if (restored := _restored(out, source, request)) is None:
            if reason is not None and (reason.hint or "").startswith("--base") and ABSENT in error.message:
                error.message = f"without the base model tensors may have other names: {error.message}"
                error.hint = reason.hint
            raise
        return restored
    if request.weights:
        return found
    if plan is not None and TOWER in plan.options.drop and format_of(out.format).holds_towers:
        found = found._replace(without_tower=True)
    if _restoring(out, source, request) is not None:
        return found
    if reason is not None:
        message = f"metadata, tokenizer and side files cannot be compared: {reason.message}"
        raise VerifyError(CODE, message, path=out.path, details=reason.details, hint="--weights compares the tensors")
    assert plan is not None
    meant = content_of_plan(plan.contents())
    alone = not (request.directory or _has_layers(out))
    if alone and (others := beside(out).keys() - meant.files.keys()):
        out, meant = _of_its_place(out, source, request, meant, others)
    check_documents(out, request.named)
    content = cache(partial(content_of_index, out, request.named))
    reported = [*islice(faults_of(out, source, options, content), ENOUGH)]
    compared = {file.name for file in plan.files}  # of which some are in directories
    output = content()
    output = output._replace(files={name: data for name, data in output.files.items() if name not in compared})
    other = differences(with_flags(out, output, meant), with_flags(out, meant, output))
    planned = islice(_but_of_shards(other, out), ENOUGH)
    made = (out.metadata_kind, source.metadata_kind) == (MetadataKind.TYPED, MetadataKind.DOCUMENT)
    documents = out.metadata_kind is source.metadata_kind is MetadataKind.DOCUMENT
    stated = document_of(source.metadata) if documents else {}
    nulls = {key for key, value in stated.items() if value is None is document_of(out.metadata).get(key, stated)}
    alike = out.format == source.format  # a copy lacks what its source does
    texts = {fact.name: str(fact) for fact in reported if not fact.idle}
    idle = {fact.name for fact in reported if fact.idle}  # other programs leave them out
    own = [*output.keys] == [*meant.keys]  # the very keys that ckconv writes, in its order: so it spelled them
    for fact in planned:
        near = own and str(fact.found).casefold() == str(fact.meant).casefold()
        # programs spell a directory in ways of their own
        of_the_place = fact.key in (LABELS if made else {_OF_SIZES}) and not near
        null = fact.file == CONFIG_NAME and fact.key in nulls  # which mlx-lm keeps
        lacked = alike and fact.key == WRITTEN_FOR and fact.found is None and fact.key not in source.metadata
        if not (of_the_place or null or lacked or fact.name in idle):
            texts.setdefault(fact.name, str(fact))
    faults = [*texts.values()]
    if faults and not options.quantize and (blocks := _blocks_of_others(out, source)):
        first, types = "--dequantize " * any(again for _, again in blocks), sorted({name for name, _ in blocks})
        what = "of another type" if first else "floats"
        many = counted(blocks.total(), f"tensor that is {what}", f"tensors that are {what}")
        text = f"{many} in the source, quantized ({', '.join(types)})"
        follow = needed()["file_types"]["follow"]  # from types that nobody asked for
        details = [text for name, text in texts.items() if not any(word in name for word in follow)]
        word = made_by(out, types) or "TYPE, the type or recipe that made them,"
        hint = f"{first}--quantize {word} asks for these types; --weights compares the tensors alone"
        raise VerifyError(CODE, text, path=out.path, details=listed(details), hint=hint)
    if faults:
        flags = _flags_of_keys(out, source, request, texts)
        hint = HINT.replace(", or", f": {flags}; or") if flags else HINT
        raise VerifyError(CODE, faults[0], path=out.path, details=listed(faults[1:]), hint=hint)
    return found


def _flags_of_keys(out: TensorIndex, source: TensorIndex, request: Request, names: Iterable[str]) -> str:
    """``--set-meta`` flags for the output's values of keys; empty for none."""
    keys = {key if key in out.metadata else f"{out.architecture}.{key}" for key in names}
    values = {key: stored_value(out, key) for key in sorted(keys)}
    plain = all(isinstance(value, (str, int, float)) for value in values.values())
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items() if plain}
    if out.metadata_kind is not MetadataKind.TYPED or not 0 < sum(map(len, texts.values())) <= _SHORT:
        return ""
    options = replace(request.options, set_meta=(*request.options.set_meta, *texts.items()))
    try:
        _plan(out, source, request._replace(options=options))
    except CkconvError:
        return ""
    return " ".join(f"--set-meta {shlex.quote(f'{key}={text}')}" for key, text in texts.items())


def _but_of_shards(facts: Iterator[Fact], out: TensorIndex) -> Iterator[Fact]:
    """Facts but those about tensors' files, which others cut otherwise.

    That the index says where tensors are, and how much they are, is read in the files; no loader reads how many
    elements it says they have.
    """
    if out.shard_index is None:
        yield from facts
        return
    names = {stored.name for stored in out.stored}
    for fact in facts:
        table, _, name = fact.key.partition(".")
        proved = name in names if table == "weight_map" else table == "metadata" or fact.found is None
        if fact.file != out.shard_index.name or not proved:
            yield fact


def _blocks_of_others(out: TensorIndex, source: TensorIndex) -> Counter[tuple[str, bool]]:
    """Tensors quantized to another type: (type, source is blocks) -> count."""
    both = (
        (out.everything[name].dtype, other.dtype) for name, other in source.everything.items() if name in out.everything
    )
    return Counter((a.name, b.kind is Kind.BLOCK) for a, b in both if a.kind is Kind.BLOCK and a.name != b.name)


def _of_its_place(
    out: TensorIndex, source: TensorIndex, request: Request, meant: Content, others: Collection[str]
) -> tuple[TensorIndex, Content]:
    """A file that was named, with the files beside it that are its own.

    Those of a directory that a conversion makes, if it is one; else those that stand beside a file.

    Args:
        others: names of files beside it that a conversion to this file would not write.
    """
    whole = plan_again(source, out, replace(request.options, source_record=False), directory=True)
    if not whole.refusals and {path.name for path in out.files} <= {file.name for file in whole.files}:
        content = content_of_plan(whole.contents())
        if not content.files.keys().isdisjoint(others):
            named = out.shard_index is not None  # who names a file of tensors leaves its index aside
            files = {name: data for name, data in content.files.items() if named or not name.endswith(INDEX_SUFFIX)}
            return out, content._replace(files=files)
    side_files = tuple(path for path in out.side_files if path.name in meant.files)
    return replace(out, side_files=side_files, part_files=()), meant


def with_flags(index: TensorIndex, content: Content, other: Content) -> Content:
    """Content with keys that only another GGUF says, by their defaults."""
    taken = taken_by_default(index)
    if taken:
        taken |= {key: ("bool", value) for key, value in adds_by_default(index.metadata).items()}
    return content._replace(keys={**{key: scalar(*taken[key]) for key in taken if key in other.keys}, **content.keys})


def _plan(out: TensorIndex, source: TensorIndex, request: Request) -> Plan:
    options = replace(request.options, source_record=False)
    plan = plan_again(source, out, options, directory=request.directory)
    plan.check()
    return plan


def _restored(out: TensorIndex, source: TensorIndex, request: Request) -> Verified | None:
    """Verify a restored output as what its source, rounded, was made of."""
    plan = _restoring(out, source, request)
    if plan is None or plan.restores is None:
        return None
    try:
        found = verify_index(source, out, left_out=plan.restores.left_out)
    except VerifyError:
        return None
    return Verified(len(out.tensors), 0, "", found.compared)


def _restoring(out: TensorIndex, source: TensorIndex, request: Request) -> Plan | None:
    """The plan of a restored source, ``None`` where the output is none.

    Everything but tensors is compared.
    """
    was, made = format_of(source.format), format_of(out.format)
    if (was.keeps_source, was.single) <= (made.keeps_source, made.single):
        return None
    try:
        plan = restoring_again(source, out, request.options, directory=request.directory)
        if not plan.restores or plan.refusals or len(plan.files) != len(out.files):
            return None
        container = plan.contents()
        paths = list(out.files) if format_of(out.format).single else sorted(out.files)
        for path, file, frame in zip(paths, plan.files, container.frames, strict=True):
            with readable(path), opened_regular(path) as fd:
                check_frame(file, frame, b"", fd, path)
        check_stored(plan, paths, out.path)
    except CkconvError as error:
        if isinstance(error, InputError) and not error.code.startswith("record."):
            raise
        return None
    place = out.files[0].parent
    return plan if all(holds(place / name, content) for name, content in container.side_files.items()) else None


class CheckResult(NamedTuple):
    """Result of a verification: the checks that passed, and the side files.

    Attributes:
        record: the conversion record, or what it is a member of.
        sums: the list of checksums.
        source: the source record of a bump file.
    """

    found: Verified
    record: Path | None
    sums: Path | None
    source: OpenRecord | None


def check_output(
    path: Path,
    out: TensorIndex,
    source: TensorIndex | None,
    options: Options,
    *,
    adapters: Sequence[tuple[StrPath, float]] = (),
    weights: bool = False,
    named: Mapping[str, Path] | None = None,
    progress: Progress | None = None,
) -> CheckResult:
    """Verify what is open, with the records beside it.

    Args:
        path: what the user named.
        named: side file -> where it is, if not beside the model.
    """
    if source is not None:
        whole, (out, source) = source, seen_alike(out, source)
        if out.tower is not None and out.config is None and source is not whole:
            options = of_tower_alone(whole, source, options)
    if options.strict:
        hazards.noted(out, strict=True)
    beside = check_beside(path, out, source)
    if source is None:
        found = verify_alone(out, named, progress=progress)
        return CheckResult(found, beside.path, beside.sums, check_source_record(out))
    if adapters and source.adapter is None:
        source = merged(source, adapters, options, out.format)
    request = Request(beside.options(options, adapters), weights, named, path.is_dir())
    found = verify_whole(out, source, request, progress=progress)
    return CheckResult(found, beside.path, beside.sums, check_source_record(out))


# Whether an output that is there is the one that a conversion would write: then it need not be written again.

#: Fields of a conversion record -> how the output that is there was made, where they are others.
_OTHERWISE = {
    "ckconv": "by another version of ckconv",
    "sources": "of other files",
    "adapters": "with other adapters",
    "families": "with other family files",
    "format": "in another format",
    "options": "with other options",
}


def found_there(plan: Plan, place: Destination, needed: Iterable[Path], record: Recorded) -> tuple[NewFile, ...]:
    """The files of an output that is there already, whole and as planned.

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


def _listed(plan: Plan, place: Destination, record: Recorded) -> tuple[NewFile, ...]:
    assert place.directory is not None
    inside = plan.record is not None and format_of(plan.format).keeps_source
    path = record_path(place.directory / plan.files[0].name) if inside else place.directory / CONVERSION_NAME
    data = None
    if there(path):
        data = open_record(path).conversion() if inside else read_document(path, DOCUMENT)
    if data is None:
        raise _other(place, "without a conversion record")
    document = parse_object(data, DOCUMENT, path)
    try:
        files = tuple(
            NewFile(place.directory / item["name"], item["bytes"], item["sha256"])
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
    """Check that every file is as it was written.

    The record lists digests of files, but neither what is in a template nor weights.
    """
    assert place.directory is not None
    out = detect.open_index(place.directory, base=plan.options.base)
    check_beside(place.directory, out, None)
    check_source_record(out)
    if plan.options.template or plan.options.imatrix:  # of which the record has no digest
        verify_whole(out, plan.index, Request(plan.options, directory=True))
    else:
        verify_alone(out)


def _other(place: Destination, what: str) -> OutputError:
    return OutputError("output.exists", f"is there, {what}", path=place.name, hint="--force replaces it")


# An output made once more, and compared byte for byte with the files that are there. Nothing is written anywhere.

REBUILT = "verify.rebuild"

#: Plan and place of the conversion, given the name and the format of the output, and its options.
Prepare = Callable[[str, str, Options], "tuple[Plan, Destination]"]


class Rebuild(NamedTuple):
    """Files that were made again, byte for byte the same."""

    files: int
    nbytes: int


def rebuild(
    out: TensorIndex,
    opened: Path,
    given: Callable[[ConversionRecord | None], Options],
    prepare: Prepare,
    *,
    named: Mapping[str, Path] | None = None,
    watcher: Watcher | None = None,
) -> Rebuild:
    """Run a conversion again as its record says; compare every byte.

    The record itself, and lists of digests, are not made again: they are compared with the files they list.

    Args:
        opened: what the user named.
        given: the options that count, given the record if there is one.
        named: side file -> where it is, if not beside the model.

    Raises:
        VerifyError: ``verify.rebuild``, the first byte that differs, or a file that is missing.
        UnsupportedError, UsageError: the conversion cannot be run again.
    """
    source_record = record_beside(out) if format_of(out.format).keeps_source else None
    record = next(records_of(opened, out, source_record), None)
    name = f"{opened}/" if opened.is_dir() else str(out.files[0].with_name(file_name_of(out)))
    options, first = given(record), None
    # Whether a source record beside SRC was used is in no record.
    for used in (source_record is not None,) if format_of(out.format).keeps_source else (True, False):
        plan, place = prepare(name, out.format, replace(options, source_record=used))
        plan.check()
        try:
            return _compared(plan, place, named or {}, source_record, watching(watcher))
        except VerifyError as error:
            first = first or error
        if not format_of(plan.index.format).keeps_source:
            break
    assert first is not None
    if record is not None and record.version != __version__:
        first.hint = f"ckconv {record.version} made it, this is {__version__}"
    elif record is None:
        first.hint = "no conversion record says how it was made: repeat the options"
    raise first


def _compared(
    plan: Plan, place: Destination, named: Mapping[str, Path], source_record: OpenRecord | None, watcher: Watcher
) -> Rebuild:
    container = plan.contents()
    parent = place.parent
    if parent is None:
        raise UsageError("usage.target", "stdout holds nothing to compare")
    files, nbytes, digests, losses = 0, 0, list[bytes](), Losses(plan)
    watcher.begin("rebuilding", plan.nbytes)
    with Files(plan.index.identities) as inputs:
        for file, frame in zip(plan.files, container.frames, strict=True):
            digests.append(_compared_file(parent / file.name, file, frame, inputs, losses, watcher))
            files, nbytes = files + 1, nbytes + file.nbytes
        losses.check()
        inputs.check_unchanged()
    wanted = [name for name in container.on_request if there(named.get(name) or parent / name)]
    side = side_paths(plan, container, place, named, wanted)
    made = [(path, pieces_of(small.content)) for path, small in side.items()]
    if plan.record is not None and source_record is not None:
        record = plan.record.chunks(digests[0], source_record.conversion())
        made.append((record_path(parent / plan.files[0].name), record))
    for path, pieces in made:
        with _opened(path) as there_is:
            end, _ = _hold(there_is, 0, ((piece, "") for piece in pieces), watching(None))
            _check_end(there_is, end)
        files, nbytes = files + 1, nbytes + end
    return Rebuild(files, nbytes)


def _compared_file(
    path: Path, file: OutputFile, frame: Frame, inputs: Files, losses: Losses, watcher: Watcher
) -> bytes:
    """Compare one file of tensors; the digest that its header holds."""
    with _opened(path) as there_is:
        begin, end = frame.header_bytes + len(frame.prologue), file.nbytes - len(frame.epilogue)
        made = chain([(memoryview(frame.prologue), "")], in_one_run(file, begin, end, inputs, losses))
        at, digest = _hold(there_is, frame.header_bytes, made, watcher)
        at, _ = _hold(there_is, at, [(frame.epilogue, "")], watcher)
        _check_end(there_is, at)
        if frame.header:
            _hold(there_is, 0, [(frame.header(digest), "")], watcher)
    return digest


def _hold(file: ByteSource, at: int, made: Iterable[tuple[Buffer, str]], watcher: Watcher) -> tuple[int, bytes]:
    """Compare bytes, in pieces of tensors, with a file from ``at`` on.

    Returns:
        the byte behind the last one, and the SHA-256 of all of them.
    """
    digest = sha256()
    for data, tensor in made:
        view = memoryview(data)
        for start in range(0, len(view), CHUNK):
            piece = view[start : start + CHUNK]
            found = file.read_at(at, len(piece))
            if found != piece:
                first = next((n for n, (a, b) in enumerate(zip(found, piece, strict=False)) if a != b), len(found))
                is_there = f"is {found[first]:#04x}" if first < len(found) else "is missing"
                message = f"byte {at + first:,} {is_there}, {piece[first]:#04x} is made of the source"
                raise VerifyError(REBUILT, message, path=file.path, offset=at + first, tensor=tensor or None)
            digest.update(piece)
            at += len(piece)
            watcher(len(piece), tensor)
    return at, digest.digest()


def _check_end(file: ByteSource, end: int) -> None:
    """Check that a file ends at byte ``end``."""
    if file.size != end:
        message = f"has {file.size:,} bytes, {end:,} are made of the source: byte {end:,} is one too many"
        raise VerifyError(REBUILT, message, path=file.path, offset=end)


def _opened(path: Path) -> ByteSource:
    """The file, open."""
    if not there(path):
        raise VerifyError(REBUILT, "is missing, and is made of the source", path=path)
    return open_source(path)
