"""What stands in and beside safetensors files but tensors: headers, index, configuration, tokenizer, carried files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.formats.safetensors.checkpoint_tokenizer import TokenizerPlan
from ckconv.formats.safetensors.reference import check_opens
from ckconv.formats.safetensors.shards import Shards
from ckconv.formats.safetensors.tokenizer_files import tokenizer_files
from ckconv.io.bytesource import open_source
from ckconv.io.card import CARD_NAME
from ckconv.io.files import CHUNK
from ckconv.plan.container import Container
from ckconv.publish.files import SideFile, side_file


class Checkpoint(NamedTuple):
    """What stands in and beside the files of a checkpoint.

    Attributes:
        config_json: the bytes of ``config.json``; empty for none.
        parameters: elements of all tensors.
        carried: files of the source that are copied, by the names that they keep.
        tokenizer: what is made of the tokenizer of a source that has no such files.
        card: the README.md of a source that has none beside it; empty where it says nothing for one.
        further: other documents beside it: how embeddings are pooled, how pictures are prepared.
    """

    shards: Shards
    config_json: bytes
    parameters: int
    carried: Mapping[str, Path]
    tokenizer: TokenizerPlan
    card: str = ""
    further: Mapping[str, bytes] = {}


def container(checkpoint: Checkpoint) -> Container:
    """Everything in a checkpoint but its tensors.

    Raises:
        InputError: a file of the source that is carried cannot be read.
        OutputError: ``input.changed``, the source is not what it was.
    """
    side = {name: _carried(path) for name, path in checkpoint.carried.items()}
    made, notes = tokenizer_files(checkpoint.tokenizer)
    side |= made
    if checkpoint.card:
        side[CARD_NAME] = checkpoint.card.encode()
    if checkpoint.config_json:
        side["config.json"] = checkpoint.config_json
    side |= checkpoint.further
    shards = checkpoint.shards
    if shards.index_name:
        metadata = {"total_parameters": checkpoint.parameters, "total_size": shards.nbytes}
        side[shards.index_name] = _json({"metadata": metadata, "weight_map": shards.weight_map})
    return Container(
        shards.frames, side_files=dict(sorted(side.items())), keys=shards.keys, notes=notes, check=check_opens
    )


def _carried(path: Path) -> SideFile:
    with open_source(path) as source:  # which can be read later, too
        return side_file(lambda: (source.read_at(at, CHUNK) for at in range(0, source.size or 0, CHUNK)))


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
