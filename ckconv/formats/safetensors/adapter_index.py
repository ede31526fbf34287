"""The index of an adapter that is a file of safetensors and a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ckconv.adapters.read import Collected
from ckconv.core.metadata import joined_metadata
from ckconv.core.tensors import Adapter, Dropped, MetadataKind, StoredTensor, TensorIndex
from ckconv.formats.safetensors.read import SafetensorsFile


def adapter_index(
    format: str,
    path: Path,
    file: SafetensorsFile,
    config_path: Path,
    collected: Collected,
    adapter: Adapter,
    *,
    unknown: Sequence[StoredTensor],
    dropped: Sequence[Dropped] = (),
    more: Mapping[str, object] | None = None,
) -> TensorIndex:
    """The index of an adapter that is a file of tensors and a configuration.

    Args:
        path: what the user named.
        more: what ``inspect`` prints besides.
    """
    facts: dict[str, object] = {"kind": "adapter", "method": adapter.method, "modules": len(adapter.modules)}
    if adapter.base_name:
        facts["base"] = adapter.base_name
    return TensorIndex(
        format=format,
        version=0,
        path=path,
        files=(file.path,),
        architecture=adapter.base.model_type if adapter.base else "",
        config=None,
        stored=file.tensors,
        tensors=collected.tensors,
        canonical_of=collected.canonical_of,
        unknown=tuple(unknown),
        dropped=tuple(dropped),
        metadata_kind=MetadataKind.DOCUMENT,
        metadata=joined_metadata(file.metadata, adapter.document),
        facts={**facts, **(more or {})},
        side_files=(config_path,),
        adapter=adapter,
    )
