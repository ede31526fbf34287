"""Planning a checkpoint as transformers loads it."""

from __future__ import annotations

from ckconv.families.loaders import TRANSFORMERS
from ckconv.formats.safetensors.checkpoint import CheckpointPlanner


class HuggingFacePlanner(CheckpointPlanner):
    """What the classes of transformers load."""

    format = "safetensors"
    loader = TRANSFORMERS
    scheme = "hf"
    written_by = "pt"
    always_index = False
