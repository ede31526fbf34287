"""Which planner makes a checkpoint of what is more than a text model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckconv.core.tensors import TensorIndex
from ckconv.families.speech import speech
from ckconv.formats.safetensors.checkpoint_config import CHECKPOINTS

if TYPE_CHECKING:
    from ckconv.plan.planner import Planner


def planner_of(index: TensorIndex) -> type[Planner] | None:
    """The planner of a model of two files, or of one that hears, out of another format; ``None`` for any other."""
    if index.config is not None and index.format not in CHECKPOINTS and index.config.family == speech().family:
        from ckconv.formats.huggingface.speech_plan import SpeechPlanner

        return SpeechPlanner
    if index.tower is None or index.config is None:
        return None
    from ckconv.formats.huggingface.whole_plan import WholePlanner

    return WholePlanner
