"""Reports of `convert` and `edit`: the plan before, the result after."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ckconv.cli.render import SCHEMA, container, count, print_json, print_report_lines, size, width
from ckconv.cli.settings import Settings
from ckconv.conversion.run import (
    VERBS,
    Report,
    RowChange,
    bits_per_weight,
    counts_of,
    errors_of,
    facts_of_plan,
    made_by,
    ways_of,
)
from ckconv.core.layouts import F32
from ckconv.core.tensors import TensorIndex, parse
from ckconv.errors import MAX_LISTED, counted
from ckconv.families.catalog import FAMILIES
from ckconv.families.names import key_patterns
from ckconv.formats.destination import Destination
from ckconv.plan.probe import size_of
from ckconv.plan.steps import Plan, Step
from ckconv.quant.convert import Action
from ckconv.system import peak_memory

#: The version of the report's document.
_REPORT_SCHEMA = 2

#: Tensors left out for one reason that are named before they are counted.
_LEFT_OUT_SHOWN = 3

#: Characters of a value that was changed.
_VALUE_SHOWN = 60


def print_plan(plan: Plan, target: str, settings: Settings, *, tower: tuple[Plan, Destination] | None = None) -> None:
    """Print ``--dry-run``: output and ``tower`` with exact sizes."""
    if settings.json:
        print_json(_with_tower(_planned(plan, target), _planned(tower[0], tower[1].name) if tower else None, SCHEMA))
        return
    left = max(len(plan.index.path.name), len(target)) + 2
    index = plan.index
    source = container("GGUF" if index.format == "gguf" else index.format, index.version, "v")
    exact = ", ".join(filter(None, [f"{plan.nbytes:,} bytes", _bits(plan)]))
    lines = [
        f"{index.path.name:<{left}}{source}  {_model(index)}",
        f"{target:<{left}}{container(plan.format, plan.version, 'v')}  {size(plan.nbytes)} ({exact})",
        *_action_lines(plan),
        *_left_out_lines(plan, settings),
        *_change_lines(plan),
        f"  {_layout_line(plan)}",
        *([f"  source record beside it: {size(plan.record.nbytes)}"] if plan.record else []),
        *(f"  note: {note}" for note in plan.notes),
    ]
    if settings.verbose:
        lines += step_lines(plan.steps, err=False)
    print_report_lines([*lines, "nothing written"], settings)
    if tower:
        print_plan(tower[0], tower[1].name, settings)


def _in_keys(plan: Plan) -> int:
    """Tensors of the model that are keys of the output, and no tensors of it."""
    family = FAMILIES.get(plan.index.config.family) if plan.index.config else None
    patterns = key_patterns(family) if family else {}
    return sum(parse(name).pattern in patterns for name in plan.index.tensors) if patterns else 0


def print_report(report: Report, settings: Settings, *, tower: Report | None = None, err: bool) -> None:
    """Print the report; to stderr where stdout is the model.

    Args:
        tower: written beside it: a field of the document, and not of the lines.
    """
    plan = report.plan
    if settings.json:
        document = _with_tower(report.to_dict(), tower.to_dict() if tower else None, _REPORT_SCHEMA)
        print_json(document, err=err, schema=_REPORT_SCHEMA)
        return
    if settings.quiet:
        return
    ways = ways_of(plan)
    written = counts_of(ways)
    # What comes back out of a record is not in the bump file that the others are compared with.
    total = sum(written.values())
    # Factors of RoPE, which a configuration says and a GGUF holds as a tensor, are verified for themselves.
    own = (step for step in plan.steps if step.content is not None and step.target.name not in plan.index.tensors)
    made = len([*own]) + _in_keys(plan) if plan.format == "gguf" else 0
    # A tied head that is stored, and zeros that a bump file has for tensors, are compared besides.
    compared = report.verified if plan.restores else max(total + made, report.verified or 0)
    verified = "not verified" if report.verified is None else f"verified {report.verified}/{compared}"
    rate, peak = size(int(plan.nbytes / report.seconds) if report.seconds else plan.nbytes), peak_memory()
    lines = [
        f"{report.target}  {container(plan.format, plan.version, 'v')}  {size(plan.nbytes)}{_in_files(plan)}"
        f"  {counted(total, 'tensor')} from {plan.index.path.name}"
        f"{f' ({source})' if (source := _source(plan.index)) else ''}",
        f"  {_summary(plan, ways)}",
        *rounded_lines(report, settings),
        *merged_lines(report, settings),
        *quantized_lines(plan, settings),
        *_left_out_lines(plan, settings),
        *_change_lines(plan),
        *(f"  note: {note}" for note in plan.notes),
        f"  {verified}{_digest(report, settings)}"
        f"   {report.seconds:.1f} s   {rate}/s{f'   peak memory {size(peak)}' if peak else ''}",
    ]
    if len(report.files) > 1:
        lines.insert(1, f"  {report.plan.files[0].name} to {report.plan.files[-1].name}")
    if report.side_files:
        lines.insert(-1, f"  beside it: {', '.join(names_beside(report))}")
    if settings.verbose:
        lines += step_lines(plan.steps, err=err)
    print_report_lines(lines, settings, err=err)


def _with_tower(document: dict[str, Any], tower: dict[str, Any] | None, schema: int) -> dict[str, Any]:
    """The document with that of the tower beside it, of the same form."""
    return {**document, "mmproj": tower and {"schema": schema, **tower, "mmproj": None}}


def _planned(plan: Plan, target: str) -> dict[str, Any]:
    return {"dry_run": True, "target": target, **facts_of_plan(plan), "steps": [step_facts(s) for s in plan.steps]}


def _change_lines(plan: Plan) -> list[str]:
    """``key: old -> new`` of what flags changed."""
    return [f"  {change.key}: {_value(change.old)} -> {_value(change.new)}" for change in plan.changes]


def _value(value: object) -> str:
    """A value of the metadata in a line, as JSON has it; a long one is cut."""
    if value is None:
        return "(none)"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _VALUE_SHOWN else f"{text[: _VALUE_SHOWN - 3]}... ({len(text):,} characters)"


def _left_out_lines(plan: Plan, settings: Settings) -> list[str]:
    """Tensors that are not written, many of one reason in one line."""
    groups: dict[str, list[str]] = {}
    for left in plan.left_out:
        groups.setdefault(left.reason, []).append(plan.index.label(left.name))
    lines = []
    for reason, names in groups.items():
        if len(names) > _LEFT_OUT_SHOWN and not settings.verbose:
            lines.append(f"  left out {names[0]} and {len(names) - 1} more{_why(reason)} (-v lists them)")
        else:
            lines += [f"  left out {name}{_why(reason)}" for name in names]
    return lines


def _why(reason: str) -> str:
    return f": asked for by {reason}" if reason.startswith("--") else f": {reason}"


def _in_files(plan: Plan) -> str:
    """Bits per weight of an output with blocks, and how many files it has."""
    bits = _bits(plan)
    return (f" ({bits})" if bits else "") + (f" in {len(plan.files)} files" if len(plan.files) > 1 else "")


def _bits(plan: Plan) -> str:
    """Bits per weight of an output with blocks; empty for another."""
    blocks = any(step.target.dtype.block > 1 for step in plan.steps)
    return f"{bits_per_weight(plan):.2f} bits per weight" if blocks else ""


def _digest(report: Report, settings: Settings) -> str:
    payload = report.payload_sha256 if settings.verbose or not report.sha256 else ""
    sums = (("sha256", report.sha256), ("payload sha256", payload))
    return "".join(f"   {what} {_short(digest, settings)}" for what, digest in sums if digest)


def _short(digest: str, settings: Settings) -> str:
    return digest if settings.verbose or len(digest) < 32 else f"{digest[:12]}...{digest[-12:]}"


def _source(index: TensorIndex) -> str:
    if index.adapter is not None:
        return f"{index.adapter.method}, {counted(len(index.adapter.modules), 'module')}"
    layers = counted(index.config.num_layers, "layer") if index.config else ""
    return ", ".join(word for word in (index.architecture, layers) if word)


def _model(index: TensorIndex) -> str:
    c = index.config
    if index.adapter is not None:
        base = f"for {index.adapter.base_name}  " if index.adapter.base_name else ""
        return f"{_source(index)}  {base}{count(size_of(index)[0])} parameters"
    if c is None:
        return f"{index.architecture or 'no architecture named'}  {count(size_of(index)[0])} parameters"
    heads = f"{c.num_heads}/{c.num_kv_heads} heads" if c.num_kv_heads != c.num_heads else f"{c.num_heads} heads"
    sizes = f"{counted(c.num_layers, 'layer')}, {heads}, hidden {c.hidden_size}"
    return f"{index.architecture}  {sizes}  {count(size_of(index)[0])} parameters"


def _transposed(ways: Counter[RowChange]) -> int:
    """Number of tensors whose rows become columns."""
    return sum(n for way, n in ways.items() if way.action is Action.COPY and way.transposed)


def _types(plan: Plan, action: Action) -> str:
    pairs = {
        (s.conversion.source.name, s.conversion.target.name) for s in plan.steps if s.conversion and s.action is action
    }
    sources = ", ".join(sorted({source for source, _ in pairs}))
    targets = ", ".join(sorted({target for _, target in pairs}))
    return sources if sources == targets else f"{sources} -> {targets}"


def _moved(plan: Plan, ways: Counter[RowChange], action: Action) -> str:
    """Movement of rows, for a bracket; empty where bytes stay."""
    reordered = sum(n for way, n in ways.items() if way.action is action and way.reordered)
    packed = sum(n for way, n in ways.items() if way.action is action and way.packed)
    words = []
    if reordered:
        words.append(f"{reordered} of them in {plan.rope_layout} RoPE row order")
    if packed:
        words.append(f"{packed} packed or padded")
    return f" ({', '.join(words)})" if words else ""


def summary(plan: Plan) -> str:
    """Actions and numbers of tensors, in one line."""
    return _summary(plan, ways_of(plan))


def _summary(plan: Plan, ways: Counter[RowChange]) -> str:
    counts, transposed = counts_of(ways), _transposed(ways)
    parts = [f"copied {counts[Action.COPY] - transposed} byte for byte{_moved(plan, ways, Action.COPY)}"]
    parts += [f"transposed {transposed}"] if transposed else []
    parts += [
        f"{VERBS[action]} {counts[action]} {_types(plan, action)}{_moved(plan, ways, action)}"
        for action in VERBS
        if counts[action] and action is not Action.COPY
    ]
    parts.append(f"dropped {len(plan.left_out)}")
    return ", ".join(parts)


def _action_lines(plan: Plan) -> list[str]:
    ways = ways_of(plan)
    counts, transposed = counts_of(ways), _transposed(ways)
    words = {
        Action.COPY: f"values unchanged, {transposed} transposed" if transposed else "bytes unchanged",
        Action.WIDEN: "exact",
        Action.NARROW: "rounded"
        if plan.options.allow_lossy or plan.options.quantize
        else "exact: a value that would change stops the conversion",
        Action.DECODE: "the blocks' own values" + (", rounded" if _decoded_to_fewer_bits(plan) else ""),
        Action.REPACK: "the same numbers in other blocks",
        Action.QUANTIZE: "rounded to blocks: asked for by --quantize",
        Action.SHIFT: "norm convention",
        Action.SCALE: "the scale, which the target stores as a tensor",
        Action.MERGE: "with adapters, computed in float32 and rounded once",
    }
    lines = [
        f"  {counts[action]:>4}  {action.value:<8} {_types(plan, action)}, {words[action]}{_moved(plan, ways, action)}"
        for action in words
        if counts[action]
    ]
    zero = [step for step in plan.steps if step.zero_filled]
    if zero:
        nbytes = size(sum(step.nbytes for step in zero))
        lines.append(f"  {len(zero):>4}  zero     {nbytes}, for tensors that the model lacks")
    content = [step for step in plan.steps if step.content is not None]
    if content:
        lines.append(
            f"  {len(content):>4}  content  {size(sum(step.nbytes for step in content))} that is not part of a tensor"
        )
    lines.append(f"  {len(plan.left_out):>4}  drop")
    return lines


def _decoded_to_fewer_bits(plan: Plan) -> bool:
    """Whether blocks are decoded to a type that rounds them."""
    requested = plan.options.dtype not in ("engine", "keep")  # what nobody asks for is exact
    return requested and any(s.action is Action.DECODE and s.target.dtype is not F32 for s in plan.steps)


def _layout_line(plan: Plan) -> str:
    source = "interleaved" if any(t.layout.interleaved for t in plan.index.tensors.values()) else "split"
    head = (
        "its own tensor"
        if any(step.target.name == "output.weight" for step in plan.steps)
        else "tied to the embeddings"
    )
    rows = f"RoPE rows: {source} in the source, {plan.rope_layout} in the output   " if plan.rope_layout else ""
    return rows.rstrip() if plan.index.adapter is not None else f"{rows}head: {head}"


def rounded_lines(report: Report, settings: Settings) -> list[str]:
    """The tensors that lost precision, named as far as somebody reads."""
    lines = [f"  {name}: {counted(changed, 'value')} rounded" for name, changed in report.changed.items()]
    if settings.verbose or len(lines) <= MAX_LISTED:
        return lines
    total = sum(report.changed.values())
    return [f"  {counted(total, 'value')} of {counted(len(lines), 'tensor')} rounded (-v lists them)"]


def merged_lines(report: Report, settings: Settings) -> list[str]:
    """How far adapters changed each tensor."""
    if not report.merged:
        return []
    label = report.plan.index.label
    name, most = max(report.merged.items(), key=lambda item: item[1])
    changed = counted(len(report.merged), "tensor")
    lines = [f"  adapters changed {changed}, at most by {most:.3g}, in {label(name)}; -v lists all"]
    if settings.verbose:
        lines += [f"    {label(name)}: {change:.3g}" for name, change in report.merged.items()]
    return lines


def quantized_lines(plan: Plan, settings: Settings) -> list[str]:
    """How far quantizing moved values, type by type, and what made the blocks."""
    lines = [
        (name, f"largest error {one.largest:.3g}, RMS {one.rms:.3g} of {one.values:,} values")
        for name, one in errors_of(plan).items()
    ]
    by = {name: made_by(name) for name, _ in lines} if settings.verbose else {}
    return [f"  {name}: {text}{f', made by {by[name]}' if by.get(name) else ''}" for name, text in lines]


def names_beside(report: Report) -> Iterator[str]:
    """Names of side files, relative to the model."""
    place = report.files[0].path.parent
    for path in report.side_files:
        yield path.relative_to(place).as_posix() if place in path.parents else path.name


#: What a terminal that is too narrow goes without, more and more.
_LEFT_OUT = ((), ("offset", "source"), ("offset", "source", "bytes"))


def step_lines(steps: Sequence[Step], *, err: bool) -> list[str]:
    """Steps of a plan, a line each."""
    columns = width(err=err)
    lines: list[str] = []
    for left_out in _LEFT_OUT:
        lines = [_line(step, left_out) for step in steps]
        if columns is None or max(map(len, lines), default=0) <= columns:
            break
    return lines


def _line(step: Step, left_out: Sequence[str]) -> str:
    types = step.target.dtype.name
    if step.conversion and step.conversion.source is not step.conversion.target:
        types = f"{step.conversion.source} -> {types}"
    cells = {
        "offset": f"{step.offset:>14,}",
        "bytes": f"{step.nbytes:>14,}",
        "action": f"{step.action.value:<8}",
        "types": f"{types:<14}",
        "slot": step.slot,
        "source": f"<- {step.source.source}" if step.source else "",
    }
    return "".join(f"  {cell}" for name, cell in cells.items() if cell and name not in left_out)


def step_facts(step: Step) -> dict[str, Any]:
    """A step as JSON has it."""
    return {
        "slot": step.slot,
        "tensor": step.target.name,
        "source": step.source.source if step.source else None,
        "action": step.action.value,
        "dtype": step.target.dtype.name,
        "offset": step.offset,
        "bytes": step.nbytes,
        "reordered": step.reordered,
    }
