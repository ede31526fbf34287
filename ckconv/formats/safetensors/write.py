"""What stands in and beside safetensors files but tensors: headers, index, configuration, tokenizer, carried files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ckconv.formats.safetensors.checkpoint import Checkpoint
from ckconv.formats.safetensors.reference import check_opens
from ckconv.formats.safetensors.tokenizer_files import tokenizer_files
from ckconv.plan.container import Container, Frame
from ckconv.plan.steps import Plan


def container(plan: Plan) -> Container:
    """Everything in a checkpoint but its tensors.

    Raises:
        OSError: a file of the source that is carried cannot be read.
        OutputError: ``input.changed``, the source is not what it was.
    """
    details = plan.details
    assert isinstance(details, Checkpoint)
    side: dict[str, bytes] = {path.name: path.read_bytes() for path in details.carried}
    made, notes = tokenizer_files(details.tokenizer)
    side |= made
    if details.config_json:
        side["config.json"] = details.config_json
    shards = details.shards
    if shards.index_name:
        metadata = {"total_parameters": details.parameters, "total_size": shards.nbytes}
        side[shards.index_name] = _json({"metadata": metadata, "weight_map": shards.weight_map})
    frames = tuple(Frame(header) for header in shards.headers)
    return Container(frames, side_files=dict(sorted(side.items())), notes=notes, check=check_opens)


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
