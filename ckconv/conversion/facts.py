"""Counts of a conversion for the report, its JSON and programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ckconv.core.named import NamedTuple
from ckconv.core.tensors import TensorIndex
from ckconv.errors import shown
from ckconv.formats import format_of
from ckconv.plan.planner import HEAD
from ckconv.plan.steps import Plan, Step
from ckconv.quant.convert import Action

if TYPE_CHECKING:
    from ckconv.quant.quantize import Error

VERBS = {
    Action.COPY: "copied",
    Action.WIDEN: "widened",
    Action.NARROW: "narrowed",
    Action.DECODE: "decoded",
    Action.REPACK: "re-packed",
    Action.QUANTIZE: "quantized",
    Action.SHIFT: "shifted",
    Action.SCALE: "scaled",
    Action.MERGE: "merged",
}


class Way(NamedTuple):
    """Conversion of values and places that several tensors share.

    Attributes:
        action: the conversion of their values.
        reordered, transposed: their rows change places; become columns.
        packed: values are copied, but not as one run of bytes (rows of several tensors, padding).
    """

    action: Action
    reordered: bool
    transposed: bool
    packed: bool


def ways_of(plan: Plan) -> Counter[Way]:
    """Counts of canonical tensors, by the first step that writes of each.

    A step may write several (fused q, k and v), and several steps may write one (an MLX triple, single experts).
    """
    found: Counter[Way] = Counter()
    seen: set[str] = set()
    for step in plan.steps:
        names = {name for name in _names(step, plan.index) if name not in seen}
        if names:
            action, reordered, transposed = step.action, step.reordered, step.transposed
            lies = action is not Action.COPY or reordered or transposed or step.copied is not None
            found[Way(action, reordered, transposed, not lies)] += len(names)
            seen |= names
    return found


def _names(step: Step, index: TensorIndex) -> Iterator[str]:
    """Canonical names of what a step writes."""
    if step.target.name == HEAD:  # a tied head that is stored is read from the embedding
        yield HEAD
        return
    for tensor in step.sources:
        name = tensor.name
        yield from (name,) if name in index.tensors else index.canonical_of.get(tensor.source, (name,))


def counts_of(ways: Counter[Way]) -> Counter[Action]:
    """Tensors by what is done to their values."""
    counts: Counter[Action] = Counter()
    for way, tensors in ways.items():
        counts[way.action] += tensors
    return counts


def errors_of(plan: Plan) -> Mapping[str, Error]:
    """Type -> how far quantizing moved values."""
    return plan.errors.of_types if plan.errors else {}


def made_by(name: str) -> str:
    """Package and version that made blocks of a type; empty for none."""
    from ckconv.quant.quantize import GGML_TYPES, quantizer_of

    dtype = GGML_TYPES.get(name.lower())
    return quantizer_of(dtype) if dtype else ""


def bits_per_weight(plan: Plan) -> float:
    """Bits of the output's tensors for each of their elements; 0 without any."""
    steps = [step for step in plan.steps if step.source is not None]
    elements = sum(step.target.elements for step in steps)
    return 8 * sum(step.nbytes for step in steps) / elements if elements else 0.0


def facts_of_plan(plan: Plan) -> dict[str, Any]:
    """The fields of a plan in JSON."""
    counts = counts_of(ways_of(plan))
    return {
        "format": plan.format,
        "version": plan.version or format_of(plan.format).version or None,
        "bytes": plan.nbytes,
        "bits_per_weight": round(bits_per_weight(plan), 3),
        "source": {
            "path": shown(plan.index.path),
            "format": plan.index.format,
            "version": plan.index.version or None,
            "architecture": plan.index.architecture,
        },
        "tensors": {action.value: counts[action] for action in VERBS},
        "reordered": sum(step.reordered for step in plan.steps),
        "content": sum(step.content is not None for step in plan.steps),
        "placeholders": sum(step.zero_filled for step in plan.steps),
        "left_out": [{"name": left.name, "reason": left.reason, "bytes": left.nbytes} for left in plan.left_out],
        "rope_layout": plan.rope_layout or None,
        "source_record": plan.record.nbytes if plan.record else None,
        "changes": [change._asdict() for change in plan.changes],
        "notes": list(plan.notes),
    }
