"""``ckconv diff A B``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ckconv.cli.flags import flag
from ckconv.cli.render import ProgressLine, print_json, print_report_lines
from ckconv.cli.settings import CONTEXT, PATH, Float, Settings, common_options, force_option, page_option, settings_of
from ckconv.comparison.compare import Comparison, Difference, diff, require_comparable
from ckconv.errors import counted, shown
from ckconv.system.signals import interruptible

_NOT_TRANSITIVE = (
    "an MLX triple is equal to the block that holds the same numbers and to the values that MLX rounds it to, "
    "which need not be equal to each other"
)

#: Names of one kind that are listed before the rest is counted.
_SHOWN = 20


@click.command("diff", context_settings=CONTEXT)
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@click.option("--base", type=PATH, help="The model that an adapter was made for.")
@flag("--follow-links")
@flag("--family")
@click.option("--weights", is_flag=True, help="Compare the tensors alone: no configuration, no tokenizer, no metadata.")
@click.option(
    "--tolerance",
    type=Float(min=0),
    default=0.0,
    metavar="T",
    help="Count a tensor as the same if its relative error (RMS) is at most T, such as 1e-6.",
)
@page_option("Write a page to FILE: both models, and how far each tensor is apart.")
@force_option
@common_options
@click.pass_context
def command(
    context: click.Context,
    a: Path,
    b: Path,
    base: Path | None,
    follow_links: bool,
    family: tuple[Path, ...],
    weights: bool,
    tolerance: float,
    page: Path | None,
    force: bool,
) -> int:
    """Compare two models of any formats, value by value.

    Exit 0 if they are the same model, 5 if not.

    Configuration, metadata, tokenizer and the files beside them count, unless --weights asks for tensors alone.
    Permuted, packed, fused, transposed and widened tensors are compared as what they stand for; tensors that only
    changed their type without changing a value are equal.
    """
    from ckconv.families.catalog import own_families
    from ckconv.formats.detect import open_index
    from ckconv.formats.model import seen_alike

    settings = settings_of(context)
    if page is not None:
        from ckconv.cli.page import check_new, check_place

        check_new(page, force=force)
        check_place(page, ())
    context.with_resource(own_families(family))
    with interruptible():
        one, other = (open_index(path, base=base, follow_links=follow_links) for path in (a, b))
        one, other = seen_alike(one, other)
        require_comparable(one, other)
        with ProgressLine(settings, str(a)) as line:
            line.begin("comparing", one.nbytes)
            found = diff(one, other, weights=weights, spread=page is not None, tolerance=tolerance, progress=line)
        if page is not None:
            from ckconv.cli.page import Side, pair_page, write

            sides = [Side(shown(path), index) for path, index in ((a, one), (b, other))]
            verdict = (found.same, _verdict(found))
            write(page, pair_page(f"{shown(a)} and {shown(b)}", verdict, (), sides, found), force=force)
    _print(found, (a, b), (one.label, other.label), settings)
    return 0 if found.same else 5


def _print(
    found: Comparison, paths: tuple[Path, Path], labels: Sequence[Callable[[str], str]], settings: Settings
) -> None:
    a, b = paths
    if settings.json:
        print_json(_document(found, a, b), schema=2)
        return
    if settings.quiet:
        return
    retyped = f" ({len(found.retyped)} stored in another type)" if found.retyped else ""
    lines = [f"{shown(a)}  {shown(b)}", _verdict(found), f"  {counted(found.equal, 'tensor')} equal{retyped}"]
    if settings.verbose:
        lines += [f"    {name}  {one} | {other}" for name, one, other in found.retyped]
    within = f" by at most the tolerance of {found.tolerance:g}"
    for items, how in ((found.near, within), (found.different, "")):
        if items:
            lines.append(f"  {len(items):,} differ{'s' if len(items) == 1 else ''}{how}{_worst(items)}")
            some = items[: None if settings.verbose else _SHOWN]
            lines += [f"    {labels[0](item.name)}  {_line(item)}" for item in some]
            lines += _rest(len(items), settings)
    for names, path, label in zip(found.only, paths, labels, strict=True):
        if names:
            lines.append(f"  {len(names)} only in {shown(path)}")
            lines += [f"    {label(name)}" for name in names[: None if settings.verbose else _SHOWN]]
            lines += _rest(len(names), settings)
    lines += [f"  config {name}: {one} | {other}" for name, (one, other) in found.config.items()]
    first = found.facts[: None if settings.verbose else _SHOWN]
    lines += [f"  {fact.name}: {fact.found or 'missing'} | {fact.meant or 'missing'}" for fact in first]
    lines += _rest(len(found.facts), settings)
    if found.unknown:
        lines.append(f"  only the tensors can be compared: {found.unknown}")
    if found.uncompared:
        lines.append(f"  not compared, as only one format or model has words for it: {', '.join(found.uncompared)}")
    if any(name.startswith(("MLX", "affine", "mxfp", "nvfp")) for _, *names in found.retyped for name in names):
        lines.append(f"  note: {_NOT_TRANSITIVE}")
    print_report_lines(lines, settings)


def _worst(items: Sequence[Difference]) -> str:
    """The largest errors of several tensors, in one line."""
    compared = [item for item in items if not item.reason and math.isfinite(item.relative_error)]
    if len(items) < 2 or not compared:
        return ""
    worst, largest = compared[0], max(item.max_error for item in compared)
    return f", worst first: relative error up to {worst.relative_error:.3g} ({worst.name}), max |d| {largest:.3g}"


def _verdict(found: Comparison) -> str:
    return f"{_words(found)} within the tolerance" if found.near and found.same_weights else _words(found)


def _words(found: Comparison) -> str:
    if found.weights:
        return "the same tensors" if found.same else "not the same tensors"
    if found.same:
        return "the same model"
    return "the same tensors, not the same model" if found.same_weights else "not the same model"


def _rest(count: int, settings: Settings) -> list[str]:
    return [] if settings.verbose or count <= _SHOWN else [f"    ... and {count - _SHOWN} more (-v lists them)"]


def _line(item: Difference) -> str:
    types = item.dtypes[0] if item.dtypes[0] == item.dtypes[1] else f"{item.dtypes[0]} | {item.dtypes[1]}"
    if item.reason:
        return item.reason
    errors = f"max |d| {item.max_error:.3g}, relative {item.relative_error:.3g}"
    return f"{types}  {item.values:,} of {item.elements:,} values, {errors}"


def _document(found: Comparison, a: Path, b: Path) -> dict[str, Any]:
    return {"a": shown(a), "b": shown(b), **found.to_dict()}
