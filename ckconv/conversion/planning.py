"""Plans of conversions, edits and towers: source, target, refusals."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from ckconv.core.lazy import NamedTuple, replace
from ckconv.core.metadata import CONFIG_NAME, document_of
from ckconv.core.options import Options
from ckconv.core.tensors import (
    BY_BASE,
    MetadataKind,
    TensorIndex,
    joined,
    of_tower,
    require_tensors,
)
from ckconv.errors import CkconvError, InputError, UnsupportedError, UsageError, counted, listed, quoted, shown
from ckconv.families import canonical, catalog, expressions
from ckconv.families.keys import CONSUMERS
from ckconv.families.names import BESIDE_TEXT, beside_text, is_beside_text
from ckconv.families.schema import DRAFT_FORMATS, DRAFTS, LLAMA_CPP, OF_FORMAT, TOWER, TRANSFORMERS
from ckconv.families.towers import reader_of, tower_of_document
from ckconv.formats import (
    ALIASES,
    FORMATS,
    Format,
    Output,
    adapter_outputs,
    format_of,
    hazards,
    load,
    model_outputs,
    named,
    names,
    tower_format,
    whole_format,
)
from ckconv.formats.destination import (
    ARCHIVED,
    STDOUT,
    Destination,
    check_edits,
    check_options,
    check_version,
    destination,
    followable,
    named_by_directory,
    of_tower_alone,
    says_nothing,
)
from ckconv.formats.detect import open_index
from ckconv.formats.model import of_task, tower_index, with_mmproj, with_tower
from ckconv.io import StrPath, as_path
from ckconv.io.files import head_is_embedding, readable
from ckconv.io.tiles import at_once
from ckconv.plan.planner import Planner, foreign_names, text_alone, unknown_architecture
from ckconv.plan.probe import SourceFacts, gather, gather_adapter, ids_beyond
from ckconv.plan.quantizing import check_values
from ckconv.plan.steps import LastFile, Plan, Reason, Step
from ckconv.record import record_path

#: What the note of a text model ends in, where its tower is known.
TOWER_HINT = "--mmproj FILE writes them for llama.cpp"


# -- What a source, a target and options make together -----------------------------------------------------------------


@contextmanager
def at_work(families: Sequence[StrPath], jobs: int | None = 1) -> Iterator[None]:
    """Let family files of a user count, and make pieces side by side.

    Args:
        jobs: how many; ``None`` for as many as there are processors.
    """
    with catalog.own_families([Path(file) for file in families]), at_once(jobs):
        yield


def prepare(
    source: StrPath,
    target: str,
    *,
    to: str | None = None,
    source_format: str | None = None,
    adapters: Sequence[tuple[StrPath, float]] = (),
    mmproj: StrPath | None = None,
    options: Options,
    index: TensorIndex | None = None,
) -> tuple[Plan, Destination]:
    """The plan of a conversion and where its output goes.

    A directory without ``to`` gets what a bump file was made from, where its source record says that, and a
    checkpoint of a text model and its tower.

    Args:
        index: the source, where it has been opened before.
    """
    check_values(options)
    target = ARCHIVED if target == STDOUT and to in ALIASES else target  # a directory of the hub, not one file of it
    to = named(to) if to else None
    if to is not None and to not in names():
        raise UsageError("usage", f"to is {quoted(to)}, one of {', '.join(names())} expected")
    if mmproj is not None and to is None and says_nothing(target):
        to = whole_format()
    place = destination(target, to, options, source=os.fspath(source)) if to or not says_nothing(target) else None
    refusal = None
    if mmproj is not None and place is not None and not format_of(place.format).holds_towers:
        message = f"a {place.format} has no place for a text model and a tower"
        refusal = UsageError("usage.target", message, hint="name a directory, for a checkpoint of both")
        if not os.path.exists(mmproj):  # noqa: PTH110 - what is there may be no tower, which is said first
            raise refusal
    index = index or open_index(
        as_path(source),
        format=source_format,
        base=options.base,
        follow_links=options.follow_links,
        drop=options.drop,
    )
    index = of_task(index, options.task)
    if mmproj is not None:
        index = with_mmproj(index, mmproj)
    if refusal is not None:
        raise refusal
    place = place or destination(target, _format_of_record(index, options), options, adapter=index.adapter is not None)
    leading = (
        (f"the name {target} says {place.format}: --to writes another format",)
        if to is None and named_by_directory(target)
        else ()
    )
    lead = partial(followable, place=place, options=options)
    if adapters:
        try:
            index = merged(index, adapters, options, place.format)
        except CkconvError as error:
            error.hint = lead(error.hint or "") or None
            raise
    if not index.stored and not (options.set_meta or options.drop_meta):
        require_tensors(index)  # metadata alone are edited, not converted
    carried = hazards.noted(index, strict=options.strict)
    # Beside standard output there is no place for a record: one that was asked for is refused where it is written.
    recordable = place.parent or not format_of(place.format).keeps_source or options.source_record == "always"
    record = options.source_record if recordable else False
    options = replace(options, file_name=place.file_name, source_record=record)
    with readable(index.path):
        plan = make_plan(index, place.format, options)
    trailing = (*_blocks_left(plan), *_tiny_shards(plan), *carried)
    plan = replace(plan, notes=(*leading, *plan.notes, *trailing), followable=lead)
    if place.parent is not None and plan.files and plan.record is None:
        stale = record_path(place.parent / plan.files[0].name)
        if os.path.lexists(stale):
            plan = plan.with_notes(f"{stale.name} is already there and is not part of this output: remove it")
    return plan, place


def _blocks_left(plan: Plan) -> Iterator[str]:
    """A type of values was asked for, and matrices are quantized all the same."""
    if plan.options.dtype not in ("f32", "f16", "bf16"):
        return
    blocks = [s for s in plan.steps if s.source is not None and s.source.dtype.block > 1 and s.target.dtype.block > 1]
    if blocks:
        what = counted(len(blocks), "tensor")
        yield f"--dtype {plan.options.dtype} leaves {what} quantized: --dequantize decodes them"


def _tiny_shards(plan: Plan) -> Iterator[str]:
    """Note a shard size below the largest tensor."""
    limit = plan.options.max_shard_bytes
    if limit <= 0 or len(plan.files) < 2:
        return
    if limit < (largest := max((step.nbytes for step in plan.steps), default=0)):
        what = f"--max-shard-size {limit:,} bytes is less than the largest tensor ({largest:,} bytes)"
        unit = ": 5GB, 500MB and the like have a unit" if limit < 1000 else ""  # no unit makes so few bytes
        yield f"{what}, so there are {len(plan.files):,} files{unit}"


def _format_of_record(index: TensorIndex, options: Options) -> str | None:
    if index.facts.get("kind") == "mmproj":
        return whole_format()  # a part of such a checkpoint
    from ckconv.record.read import record_beside

    opened = record_beside(index) if format_of(index.format).single and options.source_record else None
    return opened.record.format if opened else None


def prepare_edit(
    source: StrPath,
    target: StrPath | None,
    *,
    set_meta: Sequence[tuple[str, str]] = (),
    drop_meta: Sequence[str] = (),
) -> tuple[Plan, Destination, Sequence[LastFile]]:
    """The plan of an edit, its place, and the checksums beside it.

    Raises:
        UsageError: nothing would change.
    """
    from ckconv.conversion.sidefiles import check_in_place, last_files  # which hash

    if not set_meta and not drop_meta:
        raise UsageError("usage", "nothing would change", hint="--set-meta KEY=VALUE, --drop-meta GLOB")
    index = open_index(as_path(source))
    options = Options(set_meta=tuple(set_meta), drop_meta=tuple(drop_meta), dtype="keep", source_record=False)
    plan, place = prepare(source, os.fspath(source if target is None else target), to=index.format, options=options)
    summed = target is None and check_in_place(index, place)
    return plan, place, last_files(plan, place, checksums=summed)


def prepare_tower(source: StrPath, target: StrPath, *, options: Options) -> tuple[Plan, Destination]:
    """The plan of a tower's file (``mmproj``), and where it goes.

    Args:
        options: of the text model; a tower takes its types, and what is left out.

    Raises:
        UsageError: ``usage.target``, no such file is written there.
        UnsupportedError: ``tower.unknown``, the source has no tower that is known.
        InputError: it is malformed.
    """
    to, name = tower_format(), "" if says_nothing(os.fspath(target)) else Path(target).name
    for ending in (ending for format in FORMATS if format.name != to for ending in format.endings):
        if name.lower().endswith(ending):
            message = f"{name!r} ends in {ending}, and a tower is a {format_of(to).suffix}"
            raise UsageError("usage.target", message)
    place = destination(os.fspath(target), to)
    if place.parent is None:
        raise UsageError("usage.target", "a tower is a file beside the text model, not on stdout", hint="name a GGUF")
    whole = open_index(as_path(source), follow_links=options.follow_links)
    index = tower_index(whole)
    own = replace(tower_options(of_tower_alone(whole, index, options)), file_name=place.file_name)
    with readable(index.path):
        return make_plan(index, place.format, own), place


# -- The plan of one output --------------------------------------------------------------------------------------------


class Target(NamedTuple):
    """Format that a model may convert to, with reasons and notes."""

    name: str
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]


def judged(index: TensorIndex, *, everywhere: bool = True, piped: bool = False) -> Iterator[Target]:
    """Targets, and why they cannot hold a model as it is, from headers.

    Args:
        everywhere: judge every target, whose planners take a while to import; else those that are always judged.
        piped: the source is read once, from front to back.
    """
    source, outputs = SourceFacts(), adapter_outputs()
    if index.adapter is None:
        source = SourceFacts(not piped and head_is_embedding(index))
        outputs = {one.name: one for one in model_outputs() if one.judged or (everywhere and one.general)}
    for name, output in outputs.items():
        try:
            if index.adapter is not None:
                plan = _plan_adapter(index, format_of(output.name).name, Options())
            else:
                plan = _plan(index, output, Options(), source, only_reasons=True)
        except CkconvError as error:
            yield Target(name, (Reason(error.message, error.hint or ""),), ())
        else:
            yield Target(name, plan.refusals, () if plan.refusals else plan.notes)


def make_plan(index: TensorIndex, to: str, options: Options) -> Plan:
    """Plan the conversion of ``index``; see :meth:`Plan.check` for refusals.

    Raises:
        InputError: the engine template or the source's tokenizer is malformed.
        UsageError: ``usage.flag``, an option has no say in the output.
    """
    check_options(index, to, options)
    plan = _make_plan(index, to, options)
    check_version(plan)
    return plan


def _make_plan(index: TensorIndex, to: str, options: Options) -> Plan:
    target = format_of(to)
    if index.adapter is not None or all(output.adapter for output in target.outputs):
        return _plan_adapter(index, to, options)
    unread: tuple[str, ...] = ()
    if target.holds_towers and not format_of(index.format).single and TOWER not in options.drop:
        beside, gone = _beside(index, options)
        if gone and len(gone) == len(beside):
            return _make_plan(index, to, replace(options, drop=(*options.drop, TOWER)))
        index, why = _with_tower(index, target, options, whole=not gone)
        if gone and index.tower is None and index.format == to:
            what = (
                f"--drop leaves out {len(gone):,} of {counted(len(beside), 'tensor')} beside the text model ({gone[0]})"
            )
            text = f"{what}, and config.json says all of it"
            reason = Reason(text, text_alone(index.config, OF_FORMAT.get(to, TRANSFORMERS)))
            return Plan(index, to, 0, options, refusals=(reason,))
        unread = (f"the tower is left out, as {why}",) if why else ()
    if index.merged:
        plan = _plan_model(index, to, options)
        notes = [f"merged {adapter}" for adapter in index.merged]
        if options.source_record and (target.keeps_source or options.source_record == "always"):
            notes.append("no source record is written: the values are not those of the source")
        return plan.with_notes(*unread, *notes)
    if not target.keeps_source:
        plan = _back(index, to, options) if _has_record(index, options) else _plan_model(index, to, options)
        plan = plan.with_notes(*unread)
        return _keeping(plan) if options.source_record == "always" and not plan.restores else plan
    plan = _plan_model(index, to, options)
    if plan.refusals or not options.source_record or options.trainable:  # training is to change it
        return plan
    names = [file.name for file in index.side_files]
    if index.config is not None and index.metadata_kind is MetadataKind.DOCUMENT and CONFIG_NAME not in names:
        return plan.with_notes(f"no source record is written: the source has no {CONFIG_NAME}, by which one is read")
    from ckconv.record.keep import with_record

    return with_record(plan)


def _beside(index: TensorIndex, options: Options) -> tuple[list[str], list[str]]:
    """Tensors beside a text model, and those of them that ``--drop`` names."""
    if index.config is None or not options.drop:
        return [], []
    found = [stored.name for stored in index.stored if is_beside_text(index.config.raw, stored.name)]
    return found, [name for name in found if any(fnmatchcase(name, glob) for glob in options.drop)]


def _with_tower(index: TensorIndex, target: Format, options: Options, *, whole: bool) -> tuple[TensorIndex, str]:
    """Index with its tower, where a target holds one.

    Also why a known tower is left out, if so.

    Args:
        whole: no flag names tensors of the tower, which a copy would lack.

    Raises:
        InputError: ``model.config``, a tensor of the tower has another shape than the configuration gives it.
    """
    family = tower_of_document(document_of(index.metadata)) if index.metadata_kind is MetadataKind.DOCUMENT else None
    row = family.engines.get(target.towers_of) if family is not None else None
    if index.tower is not None or family is None or (target.towers_of and row is None):
        return index, ""
    planner = load(next(output.planner for output in target.outputs if not output.adapter))
    own_file = index.config is not None and index.config.own.get(DRAFTS) and target.name not in DRAFT_FORMATS
    copied = whole and index.format == target.name and not own_file  # layers that draft have a file of their own
    if copied and planner(index, options, SourceFacts()).keeps_names():
        return index, ""
    if row is not None and row.absent:
        return index, row.why
    try:
        return joined(index, tower_index(index)), ""
    except (InputError, UnsupportedError) as error:
        if error.tensor:  # the tower of another text model
            error.hint = error.hint or text_alone(index.config, OF_FORMAT.get(target.name, TRANSFORMERS))
            raise
        return index, "" if error.code == "tower.unknown" else f"it cannot be read: {error.message}"  # there is none


def _has_record(index: TensorIndex, options: Options) -> bool:
    """Whether a source record lies beside a model, or a note says why not."""
    row = format_of(index.format)
    if row.keeps_source or not (row.single and options.source_record):
        return row.keeps_source
    return os.path.lexists(record_path(index.files[0]))


def _keeping(plan: Plan) -> Plan:
    """Add the record that makes the source again."""
    from ckconv.record.keep import with_record

    index, whole, options = plan.index, plan, plan.options
    both = with_tower(index) if format_of(index.format).holds_towers else index
    if both.tower is not None and not plan.refusals:
        tower = _make_plan(tower_index(index), plan.format, tower_options(options))
        if not tower.refusals:
            files = [file._replace(steps=tuple(map(_seen, file.steps))) for file in tower.files]
            left = [item for item in plan.left_out if item.reason != BESIDE_TEXT]
            whole = replace(plan, index=both, files=(*plan.files, *files), left_out=(*left, *tower.left_out))
    made = with_record(whole)
    return replace(plan, record=made.record, notes=(*plan.notes, *made.notes[len(whole.notes) :]))


def tower_options(options: Options) -> Options:
    """Options of a text model that its tower takes."""
    shared = {name: getattr(options, name) for name in ("dtype", "drop", "allow_lossy", "dequantize", "decode")}
    return Options(**shared)


def _seen(step: Step) -> Step:
    """A step of a tower, under the names of tensors beside a text model."""
    runs = tuple(run._replace(tensor=of_tower(run.tensor)) for run in step.runs)
    return replace(step, source=of_tower(step.source) if step.source else None, runs=runs)


def _plan_adapter(index: TensorIndex, to: str, options: Options) -> Plan:
    """The plan of an adapter, or the reason why the target holds none."""
    if index.adapter is None:
        return Plan(index, to, 0, options, refusals=(Reason("the format holds adapters, and this is a model"),))
    outputs = adapter_outputs()
    if to not in outputs:
        from ckconv.plan.adapters import MERGED

        hint = f"{', '.join(f'--to {name}' for name in outputs)} converts it, {MERGED}"
        lasting = any(not text.endswith(BY_BASE) for text in index.adapter.unsupported)
        hint = "" if lasting else hint
        return Plan(index, to, 0, options, refusals=(Reason("the format holds models, and this is an adapter", hint),))
    if index.misfit is not None and to != index.format:
        raise index.misfit
    typed = to == index.format and index.metadata_kind is MetadataKind.TYPED
    if typed and index.adapter.unsupported:  # of which a copy asks nothing
        copy = _plan_model(index.as_container, to, options)
        if not copy.refusals:
            return copy
    facts = SourceFacts() if format_of(to).read is None else gather_adapter(index)
    return _plan(index, outputs[to], options, facts)


def _back(index: TensorIndex, to: str, options: Options) -> Plan:
    """The plan that restores a source from its record, else the index's."""
    from ckconv.record.restore import restoring_plan

    plan, note = restoring_plan(index, to, options)
    return plan or _plan_model(index, to, options).with_notes(*filter(None, [note]))


def _plan_model(index: TensorIndex, to: str, options: Options) -> Plan:
    """The plan of a format's only output, or of its chosen version."""
    target, source = format_of(to), gather(index)
    if options.imatrix is not None:
        from ckconv.io.imatrix import read_imatrix

        found = read_imatrix(options.imatrix)
        source = source._replace(importance=found.matrices, importance_of=(found.dataset, found.chunks))
    outputs = {output.version: output for output in target.outputs if not output.adapter}
    if target.choose is None:
        return _plan(index, outputs[0], options, source)

    def plan_of(version: int, *, only_reasons: bool = False) -> Plan:
        return _plan(index, outputs[version], options, source, only_reasons=only_reasons)

    chosen: Plan = load(target.choose)(index, options, plan_of)
    return chosen


def _plan(
    index: TensorIndex, output: Output, options: Options, source: SourceFacts, *, only_reasons: bool = False
) -> Plan:
    if output.needs_config and index.config is None:
        name = format_of(output.name).name
        return Plan(index, name, output.version, options, refusals=(unknown_architecture(index, options),))
    own = load(output.planner_for)(index) if output.planner_for and index.adapter is None else None
    planner: Planner = (own or load(output.planner))(index, options, source)
    try:
        plan = planner.plan(only_reasons=only_reasons)
    except expressions.ExpressionError as error:
        if index.config is None:
            raise
        text = canonical.not_following(
            catalog.FAMILIES[index.config.family], error, catalog.bracketed_of(index.config, index.format)
        )
        plan = Plan(index, format_of(output.name).name, output.version, options, refusals=(Reason(text),))
    if plan.refusals and index.unknown:
        foreign = foreign_names(index)
        plan = replace(plan, refusals=(foreign,)) if foreign else plan
    plan = _noted(_parts_noted(plan))
    if (options.set_meta or options.drop_meta) and plan.files:
        check_edits(plan, lambda: _plan(index, output, replace(options, set_meta=(), drop_meta=()), source))
    beyond = ids_beyond(index) if not (options.set_meta or plan.refusals) else ()
    return plan.with_notes(*beyond)


def _parts_noted(plan: Plan) -> Plan:
    """Add a note about parts of a model that an output of its text leaves out."""
    config = plan.index.config
    if config is None or plan.index.tower is not None:
        return plan
    left = [item.name for item in plan.left_out if item.reason == BESIDE_TEXT]
    nested = any(isinstance(part, dict) and name.endswith("_config") for name, part in config.raw.items())
    if not (left or nested):
        return plan
    if not left:
        document = plan.index.metadata_kind is MetadataKind.DOCUMENT and plan.format != plan.index.format
        if not document or tower_of_document(config.raw) is None:
            return plan
        if any(is_beside_text(config.raw, stored.name) for stored in plan.index.stored):
            return plan
        return plan.with_notes("config.json says a tower, and no tensor of it is there: the text model is written")
    counts = Counter(beside_text(config.raw, name) for name in left)
    parts = ", ".join(f"{part} ({counted(count, 'tensor')})" for part, count in counts.items())
    tower = tower_of_document(config.raw) if plan.format == tower_format() else None
    known = tower is not None and not any(one.expression.never_holds for one in tower.engines[LLAMA_CPP.row].right_if)
    o = plan.options
    flags = (TOWER in o.drop, "--drop tower"), (plan.index.merged, "--adapter"), (o.names != "hf", "--names")
    given = [flag for there, flag in (*flags, (o.fuse, "--fuse"), (o.tie, f"--{o.tie}"), (o.pack, "--pack")) if there]
    without = f" without {' and '.join(given)}" if given else ""
    keeps = TOWER_HINT if known else f"--to {plan.index.format}{without} keeps everything"
    return plan.with_notes(f"only the text part is written, without {parts}; {keeps}")


def _noted(plan: Plan) -> Plan:
    """Add notes about keys of config.json that no class reads."""
    index = plan.index
    if index.format not in CONSUMERS or plan.format == index.format or index.config is None:
        return plan
    config, notes = index.config, list[str]()
    if config.unread:
        names = ", ".join(listed([*config.unread]))
        notes.append(f"no known class of {config.model_type} reads these keys of config.json: {names}")
    if config.overruled:
        keys, reader = "; ".join(listed([*config.overruled])), reader_of(CONSUMERS[index.format], config.raw)
        notes.append(f"{reader} does not read everything that config.json says: {keys}")
    return plan.with_notes(*notes)


def merged(
    index: TensorIndex, adapters: Sequence[tuple[str | os.PathLike[str], float]], options: Options, to: str
) -> TensorIndex:
    """A model with adapters merged into it, for an output of format ``to``.

    Raises:
        UsageError: a weight is no finite number.
    """
    from ckconv.families.adapters import OTHER_BASE
    from ckconv.plan.adapters import Adapting, merge_adapters

    base = index.path if index.config is not None else None
    for path, weight in adapters:
        if not math.isfinite(weight):
            raise UsageError("usage", f"the weight of {shown(path)} is {weight}, which is not a finite number")
    links = options.follow_links
    opened = []
    for path, weight in adapters:
        try:
            opened.append(Adapting(open_index(as_path(path), base=base, follow_links=links), weight))
        except InputError as error:
            # there is no other base to name
            if error.code == "adapter.base" and error.hint in (None, OTHER_BASE):
                error.hint = f"it was made for another model than {shown(index.path)}"
            raise
    unrounded = partial(format_of(to).retypes, options)
    made = merge_adapters(index, opened, decoded=options.decodes, unrounded=unrounded)
    return replace(made, adapters=tuple((adapter.index, adapter.weight) for adapter in opened))
