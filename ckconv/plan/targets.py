"""The targets of this build, and the choice among them."""

from __future__ import annotations

from typing import Protocol

from ckconv.model.index import TensorIndex
from ckconv.plan.bump3 import plan_bump3
from ckconv.plan.steps import Options, Plan
from ckconv.tied import head_is_embedding


class Planner(Protocol):
    """Plans a conversion; reasons to refuse are part of the plan."""

    def __call__(self, index: TensorIndex, options: Options, *, head_is_embedding: bool) -> Plan:
        """``head_is_embedding``: ``output.weight`` is byte for byte the embedding."""


#: What `inspect` judges a model by, and `convert` writes.
TARGETS: dict[str, Planner] = {"bump 3": plan_bump3}


def make_plan(index: TensorIndex, to: str, options: Options) -> Plan:
    """Plan the conversion of ``index``. The plan may hold reasons to refuse: see :meth:`Plan.check`."""
    return TARGETS[f"{to} {options.bump_version or 3}"](index, options, head_is_embedding=head_is_embedding(index))
