"""Which planner makes a checkpoint of a text model and a tower beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckconv.core.tensors import TensorIndex
from ckconv.formats.safetensors.checkpoint_config import CHECKPOINTS

if TYPE_CHECKING:
    from ckconv.plan.planner import Planner


def planner_of(index: TensorIndex) -> type[Planner] | None:
    """The planner of a model of two files; ``None`` for any other."""
    if index.tower is None or index.config is None or index.format in CHECKPOINTS:
        return None
    from ckconv.formats.huggingface.whole_plan import WholePlanner

    return WholePlanner
