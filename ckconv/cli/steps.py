"""Steps of a plan, one by one: ``-v``, and ``--json`` of ``--dry-run``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckconv.cli.fitted import width
from ckconv.plan.steps import Step

#: What a terminal that is too narrow goes without, more and more.
_LEFT_OUT = ((), ("offset", "source"), ("offset", "source", "bytes"))


def step_lines(steps: Sequence[Step], *, err: bool) -> list[str]:
    """What is written, and of what, a line each."""
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
        "action": f"{step.action.value:<6}",
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
