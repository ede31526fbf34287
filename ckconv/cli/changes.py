"""What the report of a conversion says of values that are not what they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckconv.cli.settings import Settings
from ckconv.conversion.facts import errors_of, made_by
from ckconv.conversion.run import Report
from ckconv.errors import MAX_LISTED, counted
from ckconv.plan.steps import Plan

if TYPE_CHECKING:
    pass


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
    name, most = max(report.merged.items(), key=lambda item: item[1])
    lines = [
        f"  adapters changed {counted(len(report.merged), 'tensor')}, at most by {most:.3g}, in {name} (-v lists all)"
    ]
    if settings.verbose:
        lines += [f"    {name}: {change:.3g}" for name, change in report.merged.items()]
    return lines


def quantized_lines(plan: Plan, settings: Settings) -> list[str]:
    """How far quantizing moved values, type by type, and what made the blocks."""
    lines = [(name, f"largest error {one.largest:.3g}, RMS {one.rms:.3g}") for name, one in errors_of(plan).items()]
    by = {name: made_by(name) for name, _ in lines} if settings.verbose else {}
    return [f"  {name}: {text}{f', made by {by[name]}' if by.get(name) else ''}" for name, text in lines]


def names_beside(report: Report) -> Iterator[str]:
    """Names as they lie beside the model, with their directories where those are inside."""
    place = report.files[0].path.parent
    for path in report.side_files:
        yield path.relative_to(place).as_posix() if place in path.parents else path.name
