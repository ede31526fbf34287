"""Which version of bump holds a model best, where none is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ckconv.core.tensors import TensorIndex
from ckconv.formats.bump.ages import age_of, numbering
from ckconv.formats.bump.engines import computed_by
from ckconv.options import Options
from ckconv.plan.steps import Plan, Reason

#: What is tried, in this order.
_AUTO = (3, 5)


class PlanOf(Protocol):
    """Plans for a version."""

    def __call__(self, version: int, *, only_reasons: bool = False) -> Plan:
        """The plan; with ``only_reasons``, without steps."""


def choose(index: TensorIndex, options: Options, plan_of: PlanOf) -> Plan:
    """The plan of the version that is asked for, or of the first that holds the model."""
    if options.trainable:
        return plan_of(0)
    version = options.bump_version or (age_of(options).versions[0] if options.engine else 0)
    if version:
        plan = plan_of(version)
        if plan.refusals and version == 3 and not options.engine and not plan_of(5, only_reasons=True).refusals:
            return replace(plan, alternative="--bump-version 5 holds it")
        return plan
    plans: list[Plan] = []
    for version in _AUTO:
        plan = _unless_k_quants(plan_of(version))
        if not plan.refusals:
            return replace(plan, notes=(*plan.notes, _why(plan, plans)))
        plans.append(plan)
    return _refused(index, options, plans)


def _unless_k_quants(plan: Plan) -> Plan:
    """A bump 3 file with K-quants, which at most one snapshot of the engine computes, has to be asked for."""
    who = computed_by([step.target.dtype.name for step in plan.steps], numbering(plan.options))
    if plan.version != 3 or not who:
        return plan
    return replace(plan, files=(), refusals=(Reason(who, "--bump-version 3 writes it all the same"),))


def _why(plan: Plan, refused: Sequence[Plan]) -> str:
    """Why this version was chosen."""
    if not refused:
        return f"{plan.target_name} was chosen: it holds the model without loss"
    first = refused[0].refusals
    more = f" (and {len(first) - 1} more)" if len(first) > 1 else ""
    return f"{plan.target_name} was chosen; {refused[0].target_name} cannot hold the model: {first[0].text}{more}"


def _refused(index: TensorIndex, options: Options, plans: Sequence[Plan]) -> Plan:
    """No version holds the model: the reasons of each, those that they share once."""
    shared = [reason for reason in plans[0].refusals if all(reason in plan.refusals for plan in plans)]
    reasons = list(shared)
    for plan in plans:
        reasons += [r._replace(text=f"{plan.target_name}: {r.text}") for r in plan.refusals if r not in shared]
    out = next(filter(None, (plan.way_out for plan in plans)), "")
    if out:  # it leads out of the reasons of one version
        reasons = [reason._replace(hint="") for reason in reasons]
    return Plan(index, plans[0].format, 0, options, refusals=tuple(reasons), alternative=out)
