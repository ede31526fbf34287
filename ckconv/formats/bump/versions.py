"""Version of bump that holds a model best, and flags that help.

Flags give types which the engine computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import combinations, product
from typing import Protocol

from ckconv.core.dtypes import DTYPES, F32, DType
from ckconv.core.tensors import Tensor, TensorIndex, parse
from ckconv.formats.bump.ages import age_of, numbering
from ckconv.formats.bump.slots import computed_by
from ckconv.options import Options
from ckconv.plan.steps import Plan, Reason, decode

# Which version of bump holds a model best, where none is asked for.

#: What is tried, in this order.
_AUTO = (3, 5)


class PlanOf(Protocol):
    """Plans for a version."""

    def __call__(self, version: int, *, only_reasons: bool = False) -> Plan:
        """The plan; with ``only_reasons``, without steps."""


def choose(index: TensorIndex, options: Options, plan_of: PlanOf) -> Plan:
    """Plan of the version that is asked for, or the first that fits the model."""
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
    """Refuse bump 3 with K-quants unless it is asked for.

    At most one snapshot of the engine computes it.
    """
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
    """Reasons of each version, where none holds the model.

    Reasons that they share are named once.
    """
    shared = [reason for reason in plans[0].refusals if all(reason in plan.refusals for plan in plans)]
    reasons = list(shared)
    for plan in plans:
        reasons += [r._replace(text=f"{plan.target_name}: {r.text}") for r in plan.refusals if r not in shared]
    out = next(filter(None, (plan.way_out for plan in plans)), "")
    if out:  # it leads out of the reasons of one version
        reasons = [reason._replace(hint="") for reason in reasons]
    return Plan(index, plans[0].format, 0, options, refusals=tuple(reasons), alternative=out)


# The flags that give a bump 5 file types which the engine computes, each tried on the types of the plan.

Types = Mapping[str, DType]

#: Slot -> the source tensors in it.
Held = Mapping[str, Sequence[Tensor]]

_Q8_0 = DTYPES["Q8_0"]

#: Names that a flag lists at most, where one glob for all would change a matrix too many.
_SHOWN = 3


class Remedies:
    """Remedies for types that the engine computes wrong.

    Attributes:
        quantized: canonical name -> the type that ``--quantize`` gives a matrix of floats.
        right: the engine computes a model with these types.
        stand: matrices of a layer with these types stand beside each other.
    """

    def __init__(
        self,
        held: Held,
        types: Types,
        quantized: Types,
        options: Options,
        right: Callable[[Types], bool],
        stand: Callable[[Types], bool],
    ) -> None:
        self._held, self._types, self._quantized, self._options = held, types, quantized, options
        self._right, self._stand = right, stand

    def apart(self, layers: Sequence[tuple[str, ...]]) -> str:
        """Flag that changes as few matrices of a layer as possible.

        Of those that do not stand together.
        """
        changed: dict[str, DType] = {}
        for places in layers:
            found = self._fewest([slot for slot in places if slot in self._types])
            if found is None:
                return ""
            changed |= found
        if not self._right({**self._types, **changed}):
            return ""
        names = self._names(changed)
        if not any(self._is_quantized(slot) for slot in changed):
            return decode(names, several=len(changed) > 1)
        rules = "".join(f",{glob}={dtype.name.lower()}" for glob, dtype in names.items())
        return f"--quantize '{self._options.quantize}{rules}' gives types that are right beside each other"

    def rounded(self) -> str:
        """Flag that makes matrices Q8_0: of floats, or all if need be."""
        floats = {slot: _Q8_0 for slot, dtype in self._types.items() if dtype.block == 1}
        every = dict.fromkeys(self._types, _Q8_0)
        for flag, slots in ((f"--quantize {_Q8_0}", floats), (f"--dequantize --quantize {_Q8_0}", every)):
            fit = not any(tensor.shape[-1] % _Q8_0.block for slot in slots for tensor in self._held[slot])
            if slots and fit and self._right({**self._types, **slots}):
                return flag
        return ""

    def _is_quantized(self, slot: str) -> bool:
        return any(tensor.name in self._quantized for tensor in self._held[slot])

    def _fewest(self, places: Sequence[str]) -> dict[str, DType] | None:
        """Change the types of as few of these matrices as possible.

        To the smallest of other types.
        """
        here = {slot: self._types[slot] for slot in places}
        for count in range(1, len(places) + 1):
            choices = [
                dict(zip(slots, types, strict=True))
                for slots in combinations(places, count)
                for types in product(*(self._others(slot, here) for slot in slots))
            ]
            fitting = [choice for choice in choices if self._stand({**here, **choice})]
            if fitting:
                return min(fitting, key=self._nbytes)
        return None

    def _others(self, slot: str, here: Types) -> Iterator[DType]:
        """Types that a flag can give a matrix.

        Of floats those of its neighbors, and Q8_0; of blocks FP32.
        """
        if not self._is_quantized(slot):
            yield F32
            return
        columns = [tensor.shape[-1] for tensor in self._held[slot]]
        for dtype in dict.fromkeys([*here.values(), _Q8_0]):
            if dtype is not here[slot] and not any(number % dtype.block for number in columns):
                yield dtype

    def _nbytes(self, types: Types) -> int:
        return sum(dtype.nbytes(math.prod(t.shape)) for slot, dtype in types.items() for t in self._held[slot])

    def _names(self, changed: Types) -> dict[str, DType]:
        """Globs or names of the matrices, with their new types.

        Globs over the layers where that is right, too.
        """
        globs: dict[str, DType] = {}
        exact: dict[str, DType] = {}
        for slot, dtype in changed.items():
            for tensor in self._held[slot]:
                shared = any(tensor.source == other.source for s in self._types for other in self._held[s] if s != slot)
                name = tensor.name if shared else tensor.source
                exact[name] = globs[parse(name).pattern.replace("{n}", "*")] = dtype
        after = dict(self._types)
        for slot in after:
            for glob, dtype in globs.items():
                if any(fnmatchcase(name, glob) for tensor in self._held[slot] for name in (tensor.name, tensor.source)):
                    after[slot] = dtype
        others = {slot for slot in after if after[slot] is not self._types[slot]} - changed.keys()
        several = len(exact) > 1 and (not others or len(exact) > _SHOWN)
        return globs if several and self._right(after) else exact
