"""Verify an output: checksums, structure, every tensor against its source, and everything that it says besides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckconv.comparison.replan import content_of_plan, plan_again, restoring_again
from ckconv.conversion.checksums import FileDigests, check_listed, check_sums
from ckconv.conversion.readback import check_frame, check_kept
from ckconv.core.metadata import beside
from ckconv.core.tensors import Tensor, TensorIndex, require_described
from ckconv.errors import CkconvError, InputError, UnsupportedError, UsageError, VerifyError, listed
from ckconv.families.ages import DEFAULT
from ckconv.families.own import own_files
from ckconv.formats import format_of
from ckconv.formats.bump.documents import check_documents
from ckconv.io.digests import Digests
from ckconv.io.files import Files, readable
from ckconv.options import Options, asked
from ckconv.plan.steps import Plan
from ckconv.publish.files import holds, opened_regular
from ckconv.record.conversion import ConversionRecord, recorded_options, records_of
from ckconv.record.read import OpenRecord, record_beside
from ckconv.verification.content import check_json, content_of_index, differences
from ckconv.verification.statements import HINT, faults_of
from ckconv.verification.tensors import Progress, Soundness, TensorComparison

if TYPE_CHECKING:
    from ckconv.quant.codec import Floats

CODE = "verify.content"

#: Differences that are looked for: more say nothing more.
_ENOUGH = 1_000


class Verified(NamedTuple):
    """What was found right.

    Attributes:
        tensors: tensors of the output that were compared, or only looked at where no source was given.
        zero_filled: all-zero placeholders for tensors that the source does not have.
        rounded: tensors that hold their source's values rounded to a smaller type: right, but not exact.
        payload_sha256: the digest of the payload that the header stores, as hex; empty where the format has none.
    """

    tensors: int
    zero_filled: int
    payload_sha256: str
    compared: bool
    rounded: int = 0


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


@dataclass(frozen=True, slots=True)
class Beside:
    """The records and checksums beside an output.

    Attributes:
        record: the conversion record, ``None`` if there is none.
        sums: path of the checksum list, ``None`` if there is none.
        kept: the options in the source record of a bump file, for an output without a conversion record.
    """

    record: ConversionRecord | None
    sums: Path | None
    kept: Options = field(default_factory=Options)

    @property
    def path(self) -> Path | None:
        """The record's."""
        return self.record.path if self.record else None

    def options(self, given: Options, adapters: Sequence[object]) -> Options:
        """Return the options of the conversion: those given, completed by those of the record.

        Raises:
            UsageError: ``usage.flag``, the record says that files were used which are not named.
        """
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
        changed = {found.option.name: found.value for found in asked(given)}
        return replace(self.record.options if self.record else self.kept, **changed)


def check_beside(opened: Path, out: TensorIndex, source: TensorIndex | None) -> Beside:
    """Hold every file of an output against the records and the checksums that lie beside it.

    Args:
        opened: what the user named.

    Raises:
        VerifyError: ``verify.checksum``, a file has another digest.
        InputError: ``record.conversion`` or ``checksum.line``, what lies beside is malformed.
    """
    digests = FileDigests()
    kept = None
    if format_of(out.format).keeps_source:
        with suppress(InputError):  # :func:`check_source_record` says so, after what is wrong with the output
            kept = record_beside(out)
    records = list(records_of(opened, out, kept))
    for record in records:
        faults = check_listed(record.path, record.outputs, digests)
        if source is not None:
            there = {path.name: path for path in source.files} | beside(source)
            faults += [
                f"{name} is not the file that was converted: its SHA-256 is {digests.of(there[name])}, {digest} was"
                for name, digest in record.sources
                if name in there and digests.of(there[name]) != digest
            ]
        if faults:
            raise VerifyError("verify.checksum", faults[0], path=record.path, details=listed(faults[1:]))
    options = recorded_options(kept) if kept and not records else Options()
    ages = str(out.facts.get("engines") or DEFAULT).split(", ")
    if not options.engine and DEFAULT not in ages:
        options = replace(options, engine=ages[0])  # the file says for which it is
    sums = check_sums(out, opened, digests)
    return Beside(records[0] if records else None, sums, options)


def check_source_record(out: TensorIndex) -> OpenRecord | None:
    """The source record beside a file, checked whole; ``None`` where there is none.

    Raises:
        VerifyError: ``record.foreign`` or ``record.content``, it belongs to another bump file, or does not hold what
            it lists.
        InputError: ``record.*``, it is malformed.
    """
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
    configuration: bool = True,
    progress: Progress | None = None,
    importance: Mapping[str, Floats] | None = None,
    decodes: Callable[[Tensor], bool] | None = None,
) -> Verified:
    """Verify ``out``: checksums, padding and placeholders; with ``source``, configuration and every tensor against it.

    The source's own checksum comes first: nothing is right beside a damaged one.

    Args:
        left_out, configuration, importance, decodes: see :class:`ckconv.verification.tensors.TensorComparison`.

    Raises:
        VerifyError: ``bump.checksum``, ``verify.config``, ``verify.padding`` or ``verify.tensor``, with every fault
            found.
        InputError: ``bump.config``, if the output cannot be described for want of its configuration.
    """
    require_described(out)
    known = {**(source.identities if source else {}), **out.identities}
    with (
        Soundness(source) if source is not None else nullcontext() as sound,
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
            configuration=configuration,
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
    """An output without its source: what it holds is well-formed.

    Raises:
        VerifyError: ``verify.*`` or ``bump.checksum``.
        InputError: ``side.json``, a file beside it is malformed.
    """
    check_json(content_of_index(out, named))
    found = verify_index(out, None, progress=progress)
    check_documents(out, named)
    return found


def verify_whole(
    out: TensorIndex, source: TensorIndex, asked: Request, *, progress: Progress | None = None
) -> Verified:
    """Every tensor against its source, then metadata, tokenizer and side files against what the source makes.

    Raises:
        VerifyError: ``verify.*`` or ``bump.checksum``, with every fault found.
        InputError: ``side.json``, a file beside the output is malformed.
    """
    options = asked.options
    plan: Plan | None = None
    reason: UnsupportedError | None = None
    if not asked.weights or options.imatrix:
        try:
            plan = _plan(out, source, asked)
        except UnsupportedError as error:
            reason = error
    left_out = [*options.drop, *(left.name for left in plan.left_out)] if plan else options.drop
    found = verify_index(
        out,
        source,
        left_out=left_out,
        configuration=not (options.set_meta or options.drop_meta or asked.weights),
        progress=progress,
        importance=plan.importance if plan else None,
        decodes=options.decodes if options.dequantize or options.decode else None,
    )
    if asked.weights:
        return found
    if _is_kept(out, source) and _is_restored(out, source, asked):
        return found
    if reason is not None:
        message = f"metadata, tokenizer and side files cannot be compared: {reason.message}"
        raise VerifyError(CODE, message, path=out.path, details=reason.details, hint="--weights compares the tensors")
    assert plan is not None
    meant = content_of_plan(plan.contents())
    said = islice(faults_of(out, source, options), _ENOUGH)
    planned = islice(differences(content_of_index(out, asked.named), meant), _ENOUGH)
    faults = [*dict.fromkeys(str(fact) for fact in (*said, *planned))]
    if faults:
        raise VerifyError(CODE, faults[0], path=out.path, details=listed(faults[1:]), hint=HINT)
    return found


def _plan(out: TensorIndex, source: TensorIndex, asked: Request) -> Plan:
    options = replace(asked.options, source_record=False)
    plan = plan_again(source, out, options, directory=asked.directory)
    plan.check()
    return plan


def _is_kept(out: TensorIndex, source: TensorIndex) -> bool:
    """A record beside the source may be of the output: anything beside a bump file, a checkpoint beside a GGUF."""
    was, made = format_of(source.format), format_of(out.format)
    return (was.keeps_source, was.single) > (made.keeps_source, made.single)


def _is_restored(out: TensorIndex, source: TensorIndex, asked: Request) -> bool:
    """The output is the very source that the record beside the bump file keeps."""
    try:
        plan = restoring_again(source, out, asked.options, directory=asked.directory)
        if not plan.restores or plan.refusals or len(plan.files) != len(out.files):
            return False
        container = plan.contents()
        paths = list(out.files) if format_of(out.format).single else sorted(out.files)
        for path, file, frame in zip(paths, plan.files, container.frames, strict=True):
            with readable(path), opened_regular(path) as fd:
                check_frame(file, frame, b"", fd, path)
        check_kept(plan, paths, out.path)
    except CkconvError as error:
        if isinstance(error, InputError) and not error.code.startswith("record."):
            raise
        return False
    place = out.files[0].parent
    return all(holds(place / name, content) for name, content in container.side_files.items())
