"""The headers and the configuration of a checkpoint -> the canonical index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ckconv.core.documents import joined_metadata, text_key, unquantised
from ckconv.core.tensors import MetadataKind, StoredTensor, TensorIndex
from ckconv.families.canonical import Canonical, Item, canonicalise, plain_item
from ckconv.families.huggingface_config import huggingface_config, huggingface_family
from ckconv.families.keys import CONSUMERS
from ckconv.families.kinds import has_transposed
from ckconv.families.naming_schemes import NAMES_KEY, NESTED, OTHER_SCHEMES, TEXT_PART, scheme_names
from ckconv.families.reference import REFERENCE
from ckconv.families.words import said, said_of
from ckconv.formats.huggingface.packed import Found, packed_items
from ckconv.formats.safetensors.files import CheckpointFiles
from ckconv.formats.safetensors.spec import is_pickle

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
    if group is not None:
        found = Found(group(checkpoint.tensors, config, path) if config is not None else [])
    else:
        found = packed_items(checkpoint.tensors, config or {}, checkpoint.root)
    if found.packed and config is not None and (known := huggingface_family(config)) and has_transposed(known):
        # A quantiser may store what a Conv1D multiplies with as it is, or as that of a Linear, [out, in].
        found = Found(words=found.words, unread=f"{found.words} of modules that are stored [in, out]")
    # Without the values of its matrices a model has no canonical tensors, whatever its family.
    family = huggingface_family(config) if config and not found.unread else None
    scheme = checkpoint.shards[0].metadata.get(NAMES_KEY, "hf")
    model = None
    left = {item.stored.name for item in found.dropped}
    rest = tuple(stored for stored in checkpoint.tensors if stored.name not in left) if left else checkpoint.tensors
    canonical = Canonical({}, {}, (), rest)
    if config is not None and family:
        consumer = CONSUMERS["mlx" if mlx else "safetensors"]
        said_of_model = unquantised(config) if found.packed else config
        model = huggingface_config(said_of_model, family, _named(found, checkpoint.tensors), path, consumer=consumer)
        canonical = canonicalise(
            found.items or map(plain_item, checkpoint.tensors),
            family,
            scheme_names(family, scheme if scheme in (*OTHER_SCHEMES, REFERENCE) else "mlx" if mlx else "hf"),
            model,
            said_of(model),
            path=path,
            layers=f"the number of layers{said(model, 'num_layers')}",
            nested=NESTED if text_key(config) or architecture.endswith(TEXT_PART) else (),
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
        dropped=(*canonical.dropped, *found.dropped),
        unknown=canonical.unknown,
        metadata_kind=MetadataKind.DOCUMENT,
        metadata=_metadata(checkpoint),
        facts=_facts(checkpoint, config, found.words),
        packed=found.packed,
        quantizer=found.unread,
        side_files=checkpoint.side_files,
        shard_index=checkpoint.index_path,
        notes=checkpoint.notes,
    )


def _named(found: Found, stored: tuple[StoredTensor, ...]) -> tuple[StoredTensor, ...]:
    """The stored tensors, and what is packed as if it were stored under the name that it has dense."""
    if not found.packed:
        return stored
    whole = (
        StoredTensor(item.tensor.source, item.tensor.dtype, item.tensor.shape, item.stored[0].extent)
        for item in found.items
        if item.tensor.packed or item.tensor.planes
    )
    return (*(tensor for tensor in stored if tensor.name not in found.packed), *whole)


def _metadata(checkpoint: CheckpointFiles) -> dict[str, Any]:
    """The headers' own ``__metadata__`` and the configuration, each key once."""
    header: dict[str, str] = {}
    for shard in checkpoint.shards:
        header.update(shard.metadata)
    return joined_metadata(header, checkpoint.config or {})


def _facts(checkpoint: CheckpointFiles, config: dict[str, Any] | None, quantizer: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": "model", "shards": len(checkpoint.shards)}
    if any(is_pickle(shard.path.name) for shard in checkpoint.shards):
        facts["saved_by"] = "torch.save"
    if checkpoint.side_files:
        facts["side_files"] = ", ".join(side.name for side in checkpoint.side_files)
    if quantizer:
        facts["quantizer"] = quantizer
    if config is None and not checkpoint.notes:
        facts["note"] = "no config.json: tensors keep the names of the file"
    return facts
