"""What a checkpoint or an adapter in safetensors files says besides its tensors, and which options show in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ckconv.core.metadata import METADATA, Content, beside, document_of, numbered
from ckconv.core.tensors import TensorIndex
from ckconv.families.naming_schemes import NAMES_KEY
from ckconv.formats.safetensors.read import read_safetensors
from ckconv.formats.safetensors.spec import ADAPTER_CONFIG, PICKLE_METADATA, is_pickle
from ckconv.options import PACKED


def content(index: TensorIndex, _: Mapping[str, Path]) -> Content:
    """The metadata of the headers, and the files beside them."""
    keys = _header_keys(
        PICKLE_METADATA if is_pickle(path.name) else read_safetensors(path).metadata for path in index.files
    )
    return Content(keys, paths={**beside(index), **_beside(index)})


def _header_keys(headers: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Every file of a checkpoint says the same; what one says else is its own."""
    keys: dict[str, Any] = {}
    first: Mapping[str, str] = {}
    for number, header in enumerate(headers):
        first = first if number else header
        if number == 0 or header != first:
            keys |= {numbered(f"{METADATA}.{key}", number): value for key, value in header.items()}
    return keys


def _beside(index: TensorIndex) -> dict[str, Path]:
    if index.adapter is not None:
        path = index.files[0].parent / ADAPTER_CONFIG
        return {path.name: path} if path.exists() else {}
    return {index.shard_index.name: index.shard_index} if index.shard_index else {}


#: A part of a fused tensor's name -> what ``--fuse`` calls it.
_FUSED = {"qkv_proj": "qkv", "gate_up_proj": "gate-up"}


def shown(source: TensorIndex, out: TensorIndex) -> dict[str, Any]:
    """The naming scheme, what was fused, and how matrices are packed."""
    names = [stored.name for stored in out.stored]
    before = [stored.name for stored in source.stored]
    fused = (
        word
        for part, word in _FUSED.items()
        if any(part in name for name in names) and not any(part in name for name in before)
    )
    names_of = str(out.metadata.get(f"{METADATA}.{NAMES_KEY}", "hf"))
    return {"names": names_of, "fuse": tuple(fused), "pack": _layout(out)}


def _layout(out: TensorIndex) -> str:
    """Whose layout its packed matrices have, as ``--pack`` calls it."""
    said = document_of(out.metadata).get("quantization_config") if out.packed else None
    method = said.get("quant_method") if isinstance(said, dict) else None
    return str(method) if method in PACKED else ""
