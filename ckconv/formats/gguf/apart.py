"""Which planner makes a GGUF of what is no text model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckconv.core.tensors import TensorIndex
from ckconv.families.diffusion import diffusion_of

if TYPE_CHECKING:
    from ckconv.plan.planner import Planner


def planner_of(index: TensorIndex) -> type[Planner] | None:
    """The planner of a tower, or of a model that diffuses; ``None`` for a text model, and for a GGUF: it is copied."""
    if index.format == "gguf" or index.config is not None:
        return None
    if index.tower is not None:
        from ckconv.formats.gguf.tower_plan import TowerPlanner

        return TowerPlanner
    if not index.quantizer and diffusion_of({stored.name for stored in index.stored}):
        from ckconv.formats.gguf.diffusion_plan import DiffusionPlanner

        return DiffusionPlanner
    return None
