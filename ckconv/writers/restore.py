"""What lies around the tensors of a source that is made again: nothing but its own side files."""

from __future__ import annotations

from ckconv.plan.restore import Restored
from ckconv.plan.steps import Plan
from ckconv.writers.container import Container, Frame


def container(plan: Plan) -> Container:
    """Headers are steps like everything else."""
    details = plan.details
    assert isinstance(details, Restored)
    return Container(tuple(Frame(b"") for _ in plan.files), side_files=details.side_files)
