"""What stands in and beside an adapter's file of tensors: its header, and ``adapter_config.json``."""

from __future__ import annotations

from ckconv.adapters.stored import CONFIG_NAME
from ckconv.formats.safetensors.adapter_files import AdapterFiles
from ckconv.formats.safetensors.reference import check_opens
from ckconv.plan.container import Container, Frame
from ckconv.plan.steps import Plan


def container(plan: Plan) -> Container:
    """One frame, and the configuration beside it."""
    details = plan.details
    assert isinstance(details, AdapterFiles)
    frames = tuple(Frame(header) for header in details.headers)
    return Container(frames, side_files={CONFIG_NAME: details.config_json}, check=check_opens)
