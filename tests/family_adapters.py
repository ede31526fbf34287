"""A LoRA on the model of a family's case, converted in every direction, and merged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import consumers
import numpy as np
from family_cases import NO_SOURCE, AdapterCase, adapter, agrees
from family_directions import Run, close, said
from safetensors_builder import numbers, tensors_of

import ckconv
from ckconv.errors import CkconvError

#: The adapter's way -> the engine that uses the result. Merged: base and adapter become one model.
DIRECTIONS = {
    "peft->gguf": "llama_cpp", "peft->mlx": "mlx_lm", "merged->gguf": "llama_cpp", "merged->mlx": "mlx_lm",
}  # fmt: skip
#: Ways back to peft: the same change of every module.
BACK = ("gguf->peft", "mlx->peft")


def changes(folder: Path) -> dict[str, np.ndarray]:
    """Module -> what its LoRA adds to its matrix."""
    document = json.loads((folder / "adapter_config.json").read_text())
    found = {name: numbers(dtype, data).reshape(shape) for name, (dtype, shape, data) in tensors_of(folder).items()}
    modules = [name.removesuffix(".lora_A.weight") for name in found if name.endswith(".lora_A.weight")]
    scale = document["lora_alpha"] / document["r"]
    return {module: scale * found[f"{module}.lora_B.weight"] @ found[f"{module}.lora_A.weight"] for module in modules}


@dataclass
class AdapterRun:
    """An adapter, converted in every direction.

    Attributes:
        base: the case that it is for, converted.
        recorded: what the adapter was recorded with.
    """

    adapter: AdapterCase
    base: Run
    place: Path
    recorded: Mapping[str, Any]
    made: dict[str, str] = field(default_factory=dict)

    @cached_property
    def source(self) -> Path:
        return adapter(self.recorded, self.place / "adapter")

    def outcomes(self, engines: Mapping[str, consumers.Consumer]) -> dict[str, str]:
        """What became of every direction; of what engines compute, with the largest difference."""
        found = {}
        for direction, engine in DIRECTIONS.items():
            found[direction] = self._convert(direction) or self._computed(direction, engine, engines)
        for direction in BACK:
            found[direction] = self._convert(direction) or self._wrong_change(direction) or "right"
        return found

    def unexpected(self, outcomes: Mapping[str, str]) -> dict[str, str]:
        """What is neither right nor expected."""
        return {
            direction: f"{outcome} ({self.adapter.expected(direction)} is expected)"
            for direction, outcome in outcomes.items()
            if not agrees(outcome, self.adapter.expected(direction))
        }

    def _result(self, direction: str) -> Path:
        first, _, last = direction.partition("->")
        return self.place / (f"{first}.gguf" if last == "gguf" else f"{first}-{last}")

    def _convert(self, direction: str) -> str:
        """Convert; empty, or why not. Every step before is done first."""
        if direction not in self.made:
            self.made[direction] = self._converted(direction)
        return self.made[direction]

    def _converted(self, direction: str) -> str:
        first, _, last = direction.partition("->")
        format = last if last != "peft" else first
        if self.base.convert(f"hf->{format}"):
            return NO_SOURCE
        source, merged = self.source, ()
        if first == "merged":
            source, merged = self.base.source, ((self.source, 1.0),)
        elif last == "peft":
            if self._convert(f"peft->{first}"):
                return NO_SOURCE
            source = self._result(f"peft->{first}")
        options = ckconv.Options(**self.base.options(), base=None if merged else self.base.source)
        if merged and self.base.case.dtype != "float32":
            options = ckconv.Options(**self.base.options(), dtype="f32")
        try:
            ckconv.convert(source, self._result(direction), to=last, adapters=merged, options=options)
        except CkconvError as error:
            return said(error)
        return ""

    def _computed(self, direction: str, engine: str, engines: Mapping[str, consumers.Consumer]) -> str:
        if engine not in engines:
            return "right"
        made = self._result(direction)
        model, beside = made, None
        if not direction.startswith("merged"):
            model, beside = self.base.for_engine(engine, f"hf->{direction.rpartition('->')[2]}"), made
        try:
            rows = engines[engine].logits(model, self.base.case.tokens, adapter=beside)
        except consumers.DoesNotRun as error:
            return f"does not run: {error}"
        return close(self.base.case, engine, rows, self.recorded)

    def _wrong_change(self, direction: str) -> str:
        ours, theirs = changes(self._result(direction)), changes(self.source)
        if ours.keys() != theirs.keys():
            return f"other modules: {', '.join(sorted(ours.keys() ^ theirs.keys())[:3])}"
        wrong = [name for name, change in theirs.items() if np.abs(ours[name] - change).max() > 1e-6]
        return f"another change of {', '.join(wrong[:3])}" if wrong else ""
