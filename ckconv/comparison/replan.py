"""Plan the source again as it was converted, to know what an output should hold.

The storage options (types, names, fused and tied tensors, files, versions) are read from the output. Options that
change the model (a context length, metadata, dropped tensors) must be given again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from ckconv.conversion.planning import make_plan
from ckconv.core.dtypes import Kind
from ckconv.core.metadata import Content
from ckconv.core.tensors import TensorIndex
from ckconv.formats import format_of, load
from ckconv.formats.gguf.values import parse_shard_name
from ckconv.formats.safetensors.spec import INDEX_SUFFIX
from ckconv.options import Options
from ckconv.plan.planner import HEAD
from ckconv.plan.steps import Container, Plan
from ckconv.publish.files import pieces_of

_FLOATS = ("engine", "keep", "f32", "f16", "bf16", "source")


def plan_again(source: TensorIndex, out: TensorIndex, options: Options, *, directory: bool) -> Plan:
    """Return the plan that makes ``out`` from ``source``, or the nearest one if there is none.

    Args:
        options: the options of the conversion; storage options that have their defaults are read from the output.
        directory: the output is a directory, whose files have the names that readers look for.
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
    """Return the plan that restores the source of a bump file from its record, or an ordinary plan without one."""
    options = replace(options, source_record=True, file_name="" if directory else file_name_of(out))
    return make_plan(source, out.format, options)


def content_of_plan(container: Container) -> Content:
    """Return everything that a plan writes except tensors."""
    files = {name: b"".join(pieces_of(content)) for name, content in container.side_files.items()}
    return Content(container.keys, {**files, **container.inside})


def stores_alike(plan: Plan, out: TensorIndex) -> bool:
    """Whether the plan writes tensors of the same names, types and shapes as ``out``, in as many files."""
    if len(plan.files) != len(out.files):
        return False
    own = format_of(out.format).stores_alike
    if own is not None:
        return bool(load(own)(plan, out))

    def meant() -> Iterator[tuple[str, str, tuple[int, ...]]]:
        return ((step.slot, step.target.dtype.name, tuple(step.target.shape)) for step in plan.steps)

    def found() -> Iterator[tuple[str, str, tuple[int, ...]]]:
        return ((stored.name, stored.dtype.name, tuple(stored.shape)) for stored in out.stored)

    in_order = all(one == other for one, other in zip_longest(meant(), found()))
    return in_order or {name: how for name, *how in meant()} == {name: how for name, *how in found()}


def file_name_of(out: TensorIndex) -> str:
    """The file name that the user gave; of shards, the name without the number."""
    name = out.path.name
    if name.endswith(INDEX_SUFFIX):
        return name.removesuffix(INDEX_SUFFIX)
    shard = parse_shard_name(name)
    return f"{shard.stem}.gguf" if shard else name


def _candidates(source: TensorIndex, out: TensorIndex, options: Options) -> Iterator[Options]:
    """Yield options to try: those given, completed by what the output shows, one storage type after another."""
    seen = _seen(source, out, options)
    for change in _storage(source, out, options):
        yield replace(options, **seen, **change)
    yield replace(options, **{key: seen[key] for key in ("bump_version", "dtype_codes") if key in seen})


def _seen(source: TensorIndex, out: TensorIndex, options: Options) -> dict[str, Any]:
    """The storage options that the output shows, except those given."""
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
    """The smallest shard limit that gives these files; a file of a single tensor may exceed it."""
    filled: dict[Any, list[int]] = {path: [] for path in out.files}
    alignment = int(out.facts.get("alignment") or 1)
    for stored in out.stored:
        filled[stored.extent.path].append(-(-stored.extent.nbytes // alignment) * alignment)
    several = [sum(sizes) for sizes in filled.values() if len(sizes) > 1]
    return max(several, default=1)


def _storage(source: TensorIndex, out: TensorIndex, options: Options) -> Iterator[Mapping[str, Any]]:
    """Yield the ``--dtype`` and ``--dequantize`` options that may have made the output, the most likely first."""
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
