"""What stands in and beside safetensors files but tensors: headers, index, configuration, tokenizer, carried files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckconv.formats.safetensors.checkpoint import Checkpoint
from ckconv.formats.safetensors.reference import check_opens
from ckconv.formats.safetensors.tokenizer_files import tokenizer_files
from ckconv.io.bytesource import open_source
from ckconv.io.files import CHUNK
from ckconv.output.streamed import SideFile, side_file
from ckconv.plan.container import Container, Frame
from ckconv.plan.steps import Plan


def container(plan: Plan) -> Container:
    """Everything in a checkpoint but its tensors.

    Raises:
        InputError: a file of the source that is carried cannot be read.
        OutputError: ``input.changed``, the source is not what it was.
    """
    details = plan.details
    assert isinstance(details, Checkpoint)
    side = {path.name: _carried(path) for path in details.carried}
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


def _carried(path: Path) -> SideFile:
    with open_source(path) as source:  # which can be read later, too
        return side_file(lambda: (source.read_at(at, CHUNK) for at in range(0, source.size or 0, CHUNK)))


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
