"""What lies around the tensors of a source that is made again: nothing but its own side files."""

from __future__ import annotations

from dataclasses import replace

from ckconv.formats.safetensors.reference import check_opens
from ckconv.plan.container import Container, Frame
from ckconv.plan.steps import Plan
from ckconv.record.restore import Restored


def container(plan: Plan) -> Container:
    """Headers are steps like everything else."""
    details = plan.details
    assert isinstance(details, Restored)
    frames = tuple(Frame(b"") for _ in plan.files)
    made = Container(frames, side_files=details.side_files)
    return made if plan.format == "gguf" else replace(made, check=check_opens)
