"""A checkpoint directory, index or file of safetensors -> the canonical index, whether transformers or MLX wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckconv.core.key_table import CONSUMERS
from ckconv.core.tensors import TensorIndex
from ckconv.families.architectures import Canonical
from ckconv.families.huggingface_config import huggingface_config, huggingface_family
from ckconv.families.huggingface_names import NAMES_KEY
from ckconv.families.huggingface_tensors import canonicalise, foreign_quantizer
from ckconv.formats.mlx.read import is_mlx, mlx_items, plain_item
from ckconv.formats.safetensors.files import CheckpointFiles, read_checkpoint_files
from ckconv.formats.safetensors.read import read_safetensors
from ckconv.formats.safetensors.spec import joined_metadata
from ckconv.io.bytesource import ByteSource


def open_mlx(path: Path, *, source: ByteSource | None = None) -> TensorIndex:
    """:func:`open_checkpoint` of what nothing but its reader knows to be MLX's."""
    return open_checkpoint(path, source=source, mlx=True)


def open_checkpoint(path: Path, *, source: ByteSource | None = None, mlx: bool = False) -> TensorIndex:
    """Read the headers and configuration of a checkpoint and apply its family's rules.

    A file without a ``config.json``, or of an unknown ``model_type``, is described, but has no canonical tensors.

    Args:
        mlx: it is MLX's, whether its files say so or not.

    Raises:
        InputError: ``st.*``, ``index.*``, ``hf.*``, ``mlx.quant`` or ``model.config``.
        UnsupportedError: ``hf.pickle``.
    """
    if source is not None:
        file = read_safetensors(path, source=source)
        checkpoint = CheckpointFiles(path.parent, None, (file,), file.tensors, None, ())
    else:
        checkpoint = read_checkpoint_files(path)
    return index_checkpoint(path, checkpoint, mlx=mlx)


def index_checkpoint(path: Path, checkpoint: CheckpointFiles, *, mlx: bool = False) -> TensorIndex:
    """The index of headers and a configuration that were read.

    Raises:
        InputError: ``mlx.quant`` or ``model.config``.
    """
    config = checkpoint.config
    mlx = mlx or is_mlx(config, checkpoint.shards[0].metadata)
    architecture = str(config.get("model_type", "")) if config else ""
    quantizer = "" if mlx else foreign_quantizer(checkpoint.tensors, config)
    # Without the values of its matrices a model has no canonical tensors, whatever its family.
    family = huggingface_family(config) if config and not quantizer else None
    dialect = checkpoint.shards[0].metadata.get(NAMES_KEY, "hf")
    model = None
    canonical = Canonical({}, {}, (), checkpoint.tensors)
    if config is not None:
        items = mlx_items(checkpoint.tensors, config, path) if mlx else [plain_item(t) for t in checkpoint.tensors]
        if family:
            consumer = CONSUMERS["mlx" if mlx else "safetensors"]
            model = huggingface_config(config, family, checkpoint.tensors, path, consumer=consumer)
            canonical = canonicalise(items, family, model, path, mlx=mlx, dialect=dialect)
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
        metadata=_metadata(checkpoint),
        facts=_facts(checkpoint, config, quantizer),
        quantizer=quantizer,
        side_files=checkpoint.side_files,
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
