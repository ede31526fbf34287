"""A source planned again as it was converted, to know what an output should hold.

How the values are stored is read off the output: types, names, fused and tied tensors, files, versions. What the
model says has to be asked for again: a context length, metadata, tensors that are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ckconv.conversion.planning import make_plan
from ckconv.core.dtypes import Kind
from ckconv.core.tensors import TensorIndex
from ckconv.formats import format_of, load
from ckconv.formats.gguf.spec import parse_shard_name
from ckconv.formats.safetensors.spec import INDEX_SUFFIX
from ckconv.options import Options
from ckconv.plan.container import Container
from ckconv.plan.content import Content
from ckconv.plan.planner import HEAD
from ckconv.plan.steps import Plan
from ckconv.publish.files import pieces_of

_FLOATS = ("engine", "keep", "f32", "f16", "bf16", "source")


def plan_again(source: TensorIndex, out: TensorIndex, options: Options, *, directory: bool) -> Plan:
    """The plan that makes ``out`` of ``source``, as far as there is one.

    Args:
        options: what was asked for; what is as by default and shows in the output is read off it.
        directory: the output is a directory, and its files have the names that readers look for.
    """
    to = out.format.partition(" ")[0]
    options = replace(options, file_name="" if directory else file_name_of(out))
    first: Plan | None = None
    for candidate in _candidates(source, out, options):
        plan = make_plan(source, to, candidate)
        if not plan.refusals and stores_alike(plan, out):
            return plan
        if first is None or (first.refusals and not plan.refusals):
            first = plan
    assert first is not None
    return first


def restoring_again(source: TensorIndex, out: TensorIndex, options: Options, *, directory: bool) -> Plan:
    """The plan that makes the source of a bump file again out of the record beside it, or another where it does not."""
    options = replace(options, source_record=True, file_name="" if directory else file_name_of(out))
    return make_plan(source, out.format, options)


def content_of_plan(container: Container) -> Content:
    """What a plan is going to write besides tensors."""
    files = {name: b"".join(pieces_of(content)) for name, content in container.side_files.items()}
    return Content(container.keys, {**files, **container.inside})


def stores_alike(plan: Plan, out: TensorIndex) -> bool:
    """The plan writes tensors of these names, types and shapes, in as many files."""
    if len(plan.files) != len(out.files):
        return False
    own = format_of(out.format).stores_alike
    if own is not None:
        return bool(load(own)(plan, out))
    meant = {step.slot: (step.target.dtype.name, tuple(step.target.shape)) for step in plan.steps}
    return meant == {stored.name: (stored.dtype.name, tuple(stored.shape)) for stored in out.stored}


def file_name_of(out: TensorIndex) -> str:
    """What a user calls an output that is one file, or several that are named after one."""
    name = out.path.name
    if name.endswith(INDEX_SUFFIX):
        return name.removesuffix(INDEX_SUFFIX)
    shard = parse_shard_name(name)
    return f"{shard.stem}.gguf" if shard else name


def _candidates(source: TensorIndex, out: TensorIndex, options: Options) -> Iterator[Options]:
    """The options as they were given, then what the output looks like, type by type."""
    seen = _seen(source, out, options)
    for change in _storage(source, out, options):
        yield replace(options, **seen, **change)
    yield replace(options, **{key: seen[key] for key in ("bump_version", "dtype_codes") if key in seen})


def _seen(source: TensorIndex, out: TensorIndex, options: Options) -> dict[str, Any]:
    """Options that show in the output, unless they were given."""
    row = format_of(out.format)
    seen: dict[str, Any] = load(row.shown)(source, out) if row.shown is not None else {}
    if (
        out.adapter is None
        and any("tie" in output.options for output in row.outputs)
        and out.tensors
        and source.tensors
    ):
        has, had = HEAD in out.tensors, HEAD in source.tensors
        seen["tie"] = "untie" if has and not had else "tie" if had and not has else ""
    if len(out.files) > 1:
        seen["max_shard_bytes"] = _shard_bytes(out)
    defaults = Options()
    return {key: value for key, value in seen.items() if getattr(options, key) == getattr(defaults, key)}


def _shard_bytes(out: TensorIndex) -> int:
    """The least limit that splits the tensors into these files: a file of one tensor may be above it."""
    filled: dict[Any, list[int]] = {path: [] for path in out.files}
    alignment = int(out.facts.get("alignment") or 1)
    for stored in out.stored:
        filled[stored.extent.path].append(-(-stored.extent.nbytes // alignment) * alignment)
    several = [sum(sizes) for sizes in filled.values() if len(sizes) > 1]
    return max(several, default=1)


def _storage(source: TensorIndex, out: TensorIndex, options: Options) -> Iterator[Mapping[str, Any]]:
    """Types that the output may have been asked for in, the most likely first."""
    if options.dtype != "engine" or options.dequantize or options.decode:
        yield {}
        return
    blocks = {name for name, tensor in source.tensors.items() if _is_block(tensor.dtype.kind)}
    decoded = {name for name in blocks if name in out.tensors and not _is_block(out.tensors[name].dtype.kind)}
    ways: list[Mapping[str, Any]] = [{}]
    if decoded:
        ways = [{"dequantize": True}, {"decode": tuple(sorted(decoded))}, {}]  # without either, where floats hold them
    for way in ways:
        for dtype in _FLOATS:
            if dtype != ("keep" if way else "source"):
                yield {**way, "dtype": dtype, "allow_lossy": True}


def _is_block(kind: Kind) -> bool:
    return kind is Kind.BLOCK
