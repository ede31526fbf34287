"""What a model says besides its tensors: header fields, metadata, and the files beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckconv.adapters.stored import CONFIG_NAME as ADAPTER_CONFIG
from ckconv.core.documents import METADATA
from ckconv.core.tensors import TensorIndex
from ckconv.formats.bump.beside import document_beside
from ckconv.formats.bump.manifest import MANIFEST_NAME
from ckconv.formats.bump.map import MAP_NAME
from ckconv.formats.bump.spec import FOOTER_NAME, fields_of
from ckconv.formats.gguf.keys import copied
from ckconv.formats.gguf.write import numbered
from ckconv.io.bytesource import open_source
from ckconv.output.streamed import pieces_of
from ckconv.plan.container import Container

#: Formats whose files are safetensors.
SAFETENSORS = ("safetensors", "mlx", "peft", "mlx adapter")

#: Largest file beside a model that is read whole, in bytes.
_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that is no tensor.

    Attributes:
        keys: header fields and metadata, by name. Two that are equal say the same.
        files: name that readers look for -> content.
        paths: where those are, as far as they are files.
    """

    keys: Mapping[str, Any]
    files: Mapping[str, bytes]
    paths: Mapping[str, Path] = field(default_factory=dict)


def content_of_index(index: TensorIndex, named: Mapping[str, Path] | None = None) -> Content:
    """What lies in and beside the files of an open model.

    Args:
        named: side file -> where it is, if not beside the model.

    Raises:
        InputError: one of the files cannot be read.
    """
    if index.format == "bump":
        return _of_bump(index, named or {})
    paths = {path.name: path for path in index.side_files}
    if index.format in SAFETENSORS:
        keys = _header_keys(_safetensors_metadata(path) for path in index.files)
        paths |= _beside_safetensors(index)
    else:
        keys = _gguf_keys(index)
    return Content(keys, {name: _read(path) for name, path in paths.items()}, paths)


def content_of_plan(container: Container) -> Content:
    """What a plan is going to write."""
    files = {name: b"".join(pieces_of(content)) for name, content in container.side_files.items()}
    return Content(container.keys, {**files, **container.inside})


def _of_bump(index: TensorIndex, named: Mapping[str, Path]) -> Content:
    from ckconv.formats.bump.config import CONFIG_NAME

    path = index.path
    keys = {**fields_of(index.facts["header"]), "dtype table": bytes(index.facts["codes"])}
    with open_source(path) as source:
        for stored in index.facts.get("tokenizer") or ():
            keys[stored.name] = source.read_at(stored.extent.offset, stored.extent.nbytes)
        metadata = [checksum.extent for checksum in index.checksums if checksum.what == "metadata"]
        files = {FOOTER_NAME: source.read_at(metadata[0].offset, metadata[0].nbytes)} if metadata else {}
    names = (CONFIG_NAME,) if index.version == 3 else (CONFIG_NAME, MANIFEST_NAME, MAP_NAME)
    paths = {name: named.get(name) or document_beside(path, name) for name in names}
    paths = {name: place for name, place in paths.items() if place.exists()}
    return Content(keys, {**{name: _read(place) for name, place in paths.items()}, **files}, paths)


def _gguf_keys(index: TensorIndex) -> dict[str, Any]:
    from ckconv.formats.gguf.read_header import read_header

    keys: dict[str, Any] = {}
    for number, path in enumerate(index.files):
        with open_source(path) as source:
            shard = read_header(source)
            keys["version"] = min(shard.version, keys.get("version", shard.version))
            keys |= {numbered(key, number): value for key, value in copied(shard.metadata).items()}
    return keys


def _safetensors_metadata(path: Path) -> Mapping[str, str]:
    from ckconv.formats.safetensors.read import read_safetensors

    return read_safetensors(path).metadata


def _header_keys(headers: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Every file of a checkpoint says the same; what one says else is its own."""
    keys: dict[str, Any] = {}
    first: Mapping[str, str] = {}
    for number, header in enumerate(headers):
        first = first if number else header
        if number == 0 or header != first:
            keys |= {numbered(f"{METADATA}.{key}", number): value for key, value in header.items()}
    return keys


def _beside_safetensors(index: TensorIndex) -> dict[str, Path]:
    if index.adapter is not None:
        path = index.files[0].parent / ADAPTER_CONFIG
        return {path.name: path} if path.exists() else {}
    return {index.shard_index.name: index.shard_index} if index.shard_index else {}


def _read(path: Path) -> bytes:
    with open_source(path) as source:
        return source.read_at(0, min(source.size or 0, _LIMIT))
