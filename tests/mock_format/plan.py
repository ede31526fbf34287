"""Plans a mock file: every float as F32, under its canonical name."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ckconv.core.layouts import F32, Kind, plain
from ckconv.core.tensors import Extent, Tensor, matrix_of
from ckconv.plan.planner import Planner
from ckconv.plan.steps import Container, Frame, OutputFile, Plan, Step
from ckconv.quant.convert import between
from mock_format.read import MAGIC

_FIELDS = (
    "family", "model_type", "num_layers", "hidden_size", "ffn_size", "num_heads", "num_kv_heads", "head_dim",
    "vocab_size", "context_length", "norm_eps", "rope_theta", "rotary_dim", "tied",
)  # fmt: skip


class MockPlanner(Planner):
    format = "mock"

    def plan(self, *, only_reasons: bool = False) -> Plan:
        blocks = [tensor.source for tensor in self.index.tensors.values() if tensor.dtype.kind is Kind.BLOCK]
        if blocks:
            self.refuse(f"mock holds no blocks: {blocks[0]} and {len(blocks) - 1} more")
        if self.reasons or only_reasons:
            return self.refused()
        targets = [self._target(tensor) for tensor in self.index.tensors.values()]
        header = self._header(targets)
        steps = []
        at = len(header)
        for tensor, target in zip(self.index.tensors.values(), targets, strict=True):
            placed = Tensor(
                target.name,
                target.name,
                F32,
                target.shape,
                (Extent(Path(), at, target.extents[0].nbytes),),
                target.layout,
            )
            steps.append(Step(target.name, placed, tensor, between(tensor, placed)))
            at += placed.nbytes
        file = OutputFile(self.options.file_name or "model.mock", at, tuple(steps))
        container = Container((Frame(header),), keys=self._metadata())
        return Plan(self.index, "mock", 0, self.options, files=(file,), rope_layout="split", contents=lambda: container)

    def _target(self, tensor: Tensor) -> Tensor:
        rows, cols = matrix_of(tensor.shape, F32)
        extent = Extent(Path(), 0, F32.nbytes(cols) * rows)
        return Tensor(tensor.name, tensor.name, F32, tensor.shape, (extent,), plain(rows, cols))

    def _metadata(self) -> dict[str, str]:
        return {"made": "for tests", **dict(self.options.set_meta)}

    def _header(self, targets: list[Tensor]) -> bytes:
        assert self.index.config is not None
        config = {name: value for name, value in asdict(self.index.config).items() if name in _FIELDS}
        tensors: dict[str, Any] = {}
        at = 0
        for target in targets:
            tensors[target.name] = ["F32", list(target.shape), at]
            at += target.extents[0].nbytes
        text = json.dumps({"config": config, "metadata": self._metadata(), "tensors": tensors}).encode()
        return MAGIC + len(text).to_bytes(8, "little") + text
