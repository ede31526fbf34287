"""The headers and the configuration of a checkpoint -> the canonical index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ckconv.core.documents import joined_metadata
from ckconv.core.tensors import MetadataKind, StoredTensor, TensorIndex
from ckconv.families.canonical import Canonical, Item, canonicalise, plain_item
from ckconv.families.huggingface_config import huggingface_config, huggingface_family
from ckconv.families.huggingface_tensors import foreign_quantizer
from ckconv.families.keys import CONSUMERS
from ckconv.families.naming_schemes import NAMES_KEY, NESTED, OTHER_SCHEMES, scheme_names
from ckconv.families.words import said, said_of
from ckconv.formats.safetensors.files import CheckpointFiles

#: Stored arrays, ``config.json`` and the path, for errors -> the tensors that they are.
Group = Callable[[tuple[StoredTensor, ...], Mapping[str, Any], Path], list[Item]]


def index_checkpoint(path: Path, checkpoint: CheckpointFiles, group: Group | None = None) -> TensorIndex:
    """The index of headers and a configuration that were read.

    Args:
        group: which stored arrays are one matrix, in a checkpoint of MLX's.

    Raises:
        InputError: ``mlx.quant`` or ``model.config``.
    """
    config, mlx = checkpoint.config, group is not None
    architecture = str(config.get("model_type", "")) if config else ""
    quantizer = "" if mlx else foreign_quantizer(checkpoint.tensors, config)
    # Without the values of its matrices a model has no canonical tensors, whatever its family.
    family = huggingface_family(config) if config and not quantizer else None
    scheme = checkpoint.shards[0].metadata.get(NAMES_KEY, "hf")
    model = None
    canonical = Canonical({}, {}, (), checkpoint.tensors)
    if config is not None:
        items = group(checkpoint.tensors, config, path) if group else [plain_item(t) for t in checkpoint.tensors]
        if family:
            consumer = CONSUMERS["mlx" if mlx else "safetensors"]
            model = huggingface_config(config, family, checkpoint.tensors, path, consumer=consumer)
            canonical = canonicalise(
                items,
                family,
                scheme_names(family, scheme if scheme in OTHER_SCHEMES else "mlx" if mlx else "hf"),
                model,
                said_of(model),
                path=path,
                layers=f"the number of layers{said(model, 'num_layers')}",
                nested=NESTED if isinstance(config.get("text_config"), dict) else (),
            )
    return TensorIndex(
        format="mlx" if mlx else "safetensors",
        version=0,
        path=path,
        files=tuple(shard.path for shard in checkpoint.shards),
        architecture=architecture,
        config=model,
        stored=checkpoint.tensors,
        tensors=canonical.tensors,
        canonical_of=canonical.canonical_of,
        dropped=canonical.dropped,
        unknown=canonical.unknown,
        metadata_kind=MetadataKind.DOCUMENT,
        metadata=_metadata(checkpoint),
        facts=_facts(checkpoint, config, quantizer),
        quantizer=quantizer,
        side_files=checkpoint.side_files,
        shard_index=checkpoint.index_path,
    )


def _metadata(checkpoint: CheckpointFiles) -> dict[str, Any]:
    """The headers' own ``__metadata__`` and the configuration, each key once."""
    header: dict[str, str] = {}
    for shard in checkpoint.shards:
        header.update(shard.metadata)
    return joined_metadata(header, checkpoint.config or {})


def _facts(checkpoint: CheckpointFiles, config: dict[str, Any] | None, quantizer: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": "model", "shards": len(checkpoint.shards)}
    if checkpoint.side_files:
        facts["side_files"] = ", ".join(side.name for side in checkpoint.side_files)
    if quantizer:
        facts["quantizer"] = quantizer
    if config is None:
        facts["note"] = "no config.json: tensors keep the names of the file"
    return facts
