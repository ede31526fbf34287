"""Checkpoints of safetensors or torch.save: directory, index or file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckconv.core.lazy import replace
from ckconv.core.metadata import opened
from ckconv.core.tensors import TensorIndex
from ckconv.errors import shown
from ckconv.families.catalog import drafter_of
from ckconv.formats.huggingface.read import index_checkpoint, is_mlx, mlx_items, with_modules
from ckconv.formats.safetensors.container import ADAPTER_CONFIG, SafetensorsFile, is_pickle, read_safetensors
from ckconv.formats.safetensors.files import (
    CONFIG_DOCUMENT,
    CheckpointFiles,
    part_files,
    read_checkpoint_files,
    with_target,
)
from ckconv.io.files import ByteSource
from ckconv.io.json import parse_object

if TYPE_CHECKING:
    from ckconv.formats.safetensors.adapter import Opener


def open_mlx(
    path: Path, *, source: ByteSource | None = None, follow_links: bool = False, drop: Sequence[str] = ()
) -> TensorIndex:
    """Open a checkpoint as MLX where its files alone do not say so."""
    return open_checkpoint(path, source=source, mlx=True, follow_links=follow_links, drop=drop)


def open_checkpoint(
    path: Path,
    *,
    source: ByteSource | None = None,
    mlx: bool = False,
    base: Path | None = None,
    follow_links: bool = False,
    drop: Sequence[str] = (),
) -> TensorIndex:
    """Read headers and configuration; apply the rules of the family.

    A file without a ``config.json``, or of an unknown ``model_type``, is described, but has no canonical tensors.

    Args:
        mlx: it is MLX's, whether its files say so or not.
        base: directory of the model that a drafter drafts for, whose tokenizer it has.
        follow_links: links out of the directory are followed.
        drop: globs of tensors that need not fit the family's rules.

    Raises:
        InputError: ``st.*``, ``pt.*``, ``index.*``, ``hf.*``, ``mlx.quant`` or ``model.config``.
        UnsupportedError: ``hf.pickle``, of a pipe; ``pt.content``.
    """
    if source is not None:
        file = read_safetensors(path, source=source)
        return index_of(path, CheckpointFiles(path.parent, None, (file,), file.tensors, None, ()), mlx=mlx, drop=drop)
    checkpoint = read_checkpoint_files(path, follow_links=follow_links, read_pickle=_read_pytorch)
    if base is not None and drafter_of(checkpoint.config or {}):
        checkpoint = with_target(checkpoint, base, follow_links=follow_links)
    parts = part_files(checkpoint.root, follow_links=follow_links) if checkpoint.side_files else ()
    index = with_modules(replace(index_of(path, checkpoint, mlx=mlx, drop=drop), part_files=parts))
    adapter = checkpoint.root / ADAPTER_CONFIG
    if adapter.is_file() and any(checkpoint.root.glob("adapter_model.*")):
        what = f"{ADAPTER_CONFIG} is beside the model: transformers loads its adapter, too"
        index = replace(index, notes=(*index.notes, f"{what}, and ckconv where --adapter {shown(adapter)} names it"))
    return index


def open_peft_adapter(
    path: Path, *, opener: Opener, base: Path | None = None, follow_links: bool = False
) -> TensorIndex:
    """Read an adapter of peft, of safetensors or of ``torch.save``."""
    from ckconv.formats.peft.read import open_peft

    return open_peft(path, opener=opener, base=base, follow_links=follow_links, read_pickle=_read_pytorch)


def _read_pytorch(path: Path, *, source: ByteSource | None = None) -> SafetensorsFile:
    from ckconv.formats.pytorch.read import read_pytorch  # few checkpoints need what reads pickles

    return read_pytorch(path, source=source)


def index_of(path: Path, checkpoint: CheckpointFiles, *, mlx: bool = False, drop: Sequence[str] = ()) -> TensorIndex:
    """The index of headers and a configuration that were read.

    Raises:
        InputError: ``mlx.quant`` or ``model.config``.
    """
    names = (tensor.name for tensor in checkpoint.tensors)
    mlx = mlx or is_mlx(checkpoint.config, checkpoint.shards[0].metadata, names)
    return index_checkpoint(path, checkpoint, mlx_items if mlx else None, drop)


def index_of_headers(path: Path, sources: Sequence[ByteSource], config: ByteSource | None) -> TensorIndex:
    """Index of a checkpoint of which headers and config.json are there.

    Raises:
        InputError: ``st.*``, ``pt.*``, ``mlx.quant`` or ``model.config``.
    """
    shards = tuple(
        (_read_pytorch if is_pickle(source.path.name) else read_safetensors)(source.path, source=source)
        for source in sources
    )
    document = parse_object(config.read_at(0, config.size or 0), CONFIG_DOCUMENT, config.path) if config else None
    tensors = tuple(tensor for shard in shards for tensor in shard.tensors)
    return index_of(path, CheckpointFiles(path, None, shards, tensors, document and opened(document), ()))
