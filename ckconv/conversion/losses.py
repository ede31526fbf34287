"""What steps of a plan could not keep, counted, and refused where nobody asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ckconv.errors import UnsupportedError, counted, listed
from ckconv.plan.steps import Plan, Step
from ckconv.quant.convert import Action


class Losses:
    """What steps could not keep: values that changed, and groups that no block can hold."""

    def __init__(
        self, plan: Plan, changed: Mapping[str, int] | None = None, merged: Mapping[str, float] | None = None
    ) -> None:
        """Nothing is lost yet but what is given."""
        self._plan = plan
        self.changed = dict(changed or {})
        #: Tensor that adapters change -> the largest difference that they made to a value.
        self.merged = dict(merged or {})
        self._unfit: dict[str, int] = {}

    @property
    def path(self) -> Path:
        """What is converted."""
        return self._plan.index.path

    def add(self, step: Step, count: int) -> None:
        """``count`` values of a step's source did not survive."""
        if count and step.source is not None and not (step.conversion and step.conversion.quantises):
            counts = self._unfit if step.action is Action.REPACK else self.changed
            counts[step.source.source] = counts.get(step.source.source, 0) + count

    def merge(self, name: str, change: float) -> None:
        """Adapters changed a value of the tensor of this name by so much, and others by less."""
        if change:
            self.merged[name] = max(self.merged.get(name, 0.0), change)

    def join(self, other: Losses) -> None:
        """Add what could not be kept in files that other threads or workers wrote."""
        for mine, theirs in ((self.changed, other.changed), (self._unfit, other._unfit)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count
        for name, change in other.merged.items():
            self.merge(name, change)

    def check(self) -> None:
        """Raise what may not be lost.

        Raises:
            UnsupportedError: ``plan.repack`` or ``plan.lossy``, naming every tensor.
        """
        options = self._plan.options
        if self._unfit:
            text = "{} have numbers that no block can hold"
            raise self._refusal("plan.repack", text, self._unfit, "groups", "--dequantize decodes them")
        if self.changed and not options.allow_lossy and options.dtype != "source":
            what = options.dtype if options.dtype not in ("engine", "keep") else self._plan.target_name
            text = f"{what} cannot hold {{}} exactly"
            raise self._refusal("plan.lossy", text, self.changed, "values", "--allow-lossy rounds them")

    def _refusal(self, code: str, text: str, counts: Mapping[str, int], unit: str, hint: str) -> UnsupportedError:
        """``text`` with the sum in its place, and every tensor with its count."""
        return UnsupportedError(
            code,
            text.format(f"{sum(counts.values()):,} {unit} of {counted(len(counts), 'tensor')}"),
            path=self._plan.index.path,
            tensor=next(iter(counts)),
            hint=hint,
            details=listed([f"{name}: {count:,} {unit}" for name, count in counts.items()]),
        )
