"""A GGUF's header -> the canonical index."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckconv.core.config import ModelConfig
from ckconv.core.tensors import Dropped, MetadataKind, TensorIndex
from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.families.canonical import Canonical, Fitted, canonicalise, fitted, notes_on
from ckconv.families.catalogue import family_of_gguf
from ckconv.families.names import names_of
from ckconv.families.naming_schemes import BESIDE_TEXT, beside_text
from ckconv.families.schema import Family
from ckconv.families.words import said_of
from ckconv.formats.gguf.config import KeySource, gguf_config, keys_of, value_of
from ckconv.formats.gguf.layer_keys import tensors_of_keys
from ckconv.formats.gguf.read import GgufFile, join_shards, read_gguf
from ckconv.formats.gguf.read_header import read_header
from ckconv.formats.gguf.scales import items, of_activations
from ckconv.formats.gguf.spec import GGUF_KIND
from ckconv.io.bytesource import ByteSource

if TYPE_CHECKING:
    from ckconv.core.tensors import Tower
    from ckconv.formats.safetensors.adapter_base import Opener


def open_gguf(
    path: Path,
    *,
    source: ByteSource | None = None,
    opener: Opener | None = None,
    base: Path | None = None,
    drop: Sequence[str] = (),
) -> TensorIndex:
    """Read the header of a GGUF (all shards of a split set) and apply its family's rules.

    Args:
        opener: opens an adapter's ``base`` model.
        drop: globs of tensors that need not fit the family's rules.

    Raises:
        InputError: the file is malformed (``gguf.*``).
    """
    file = read_gguf(path, source=source)
    if value_of(file.metadata, "general.type") == GGUF_KIND:
        from ckconv.formats.gguf.adapter import gguf_adapter

        return gguf_adapter(file, path, opener=opener or open_gguf, base=base)
    return index_gguf(path, file, drop)


def index_of_headers(path: Path, sources: Sequence[ByteSource], config: ByteSource | None = None) -> TensorIndex:
    """The index of a GGUF of whose files only headers are there.

    Raises:
        InputError: as :func:`open_gguf`.
    """
    return index_gguf(path, join_shards(path, tuple(read_header(source) for source in sources)))


def index_gguf(path: Path, file: GgufFile, drop: Sequence[str] = ()) -> TensorIndex:
    """The index of headers that were read."""
    architecture = str(value_of(file.metadata, "general.architecture") or "")
    kind = str(value_of(file.metadata, "general.type") or "model")
    family = _family(file, architecture) if kind == "model" else None
    towers = [tensor for tensor in file.tensors if beside_text({}, tensor.name)] if family else []
    beside = (*of_activations(file.tensors), *(Dropped(tensor, BESIDE_TEXT, copied=True) for tensor in towers))
    left = {dropped.stored.name for dropped in beside}
    config, canonical, misfit = Fitted(None, Canonical({}, {}, (), file.tensors))
    if family:
        config, canonical, misfit = fitted(partial(_made, file, family, left), file.tensors, drop)
    tower, named = _tower(path, file) if kind == "mmproj" else (None, None)
    canonical = named or canonical
    return TensorIndex(
        format="gguf",
        version=file.version,
        path=path,
        files=file.files,
        architecture=architecture,
        config=config,
        stored=file.tensors,
        tensors=canonical.tensors,
        canonical_of=canonical.canonical_of,
        dropped=(*canonical.dropped, *beside),
        unknown=canonical.unknown,
        metadata_kind=MetadataKind.TYPED,
        metadata=file.metadata,
        facts=_facts(file, kind),
        tower=tower,
        misfit=misfit,
        notes=notes_on(misfit),
    )


def _made(file: GgufFile, family: Family, left: Container[str], drop: Sequence[str]) -> tuple[ModelConfig, Canonical]:
    architecture = str(value_of(file.metadata, "general.architecture") or "")
    config = gguf_config(file, architecture, family)
    canonical = canonicalise(
        items([tensor for tensor in file.tensors if tensor.name not in left]),
        family,
        names_of(family, "gguf"),
        config,
        said_of(config, "gguf"),
        layers=f"{architecture}.block_count",
        drop=drop,
    )
    keyed = {tensor.name: tensor for tensor in tensors_of_keys(file, family, config)}
    return config, canonical._replace(tensors={**canonical.tensors, **keyed})


def _tower(path: Path, file: GgufFile) -> tuple[Tower | None, Canonical | None]:
    """The tower that an mmproj holds, where it is one whose names are known: any other is copied as it is."""
    with suppress(InputError, UnsupportedError):
        return _known_tower(path, file)
    return None, None


def unknown_tower(path: Path) -> str:
    """Why the tower of an mmproj is none that is known; empty where no tower has its projector."""
    from ckconv.families.elsewhere import projector_known_by

    file = read_gguf(path)
    try:
        found, _ = _known_tower(path, file)
    except (InputError, UnsupportedError) as error:
        return error.message
    name = str(value_of(file.metadata, "clip.projector_type") or "")
    return "" if found else f"ckconv does not know clip.projector_type {quoted(name)}{projector_known_by(name)}"


def _known_tower(path: Path, file: GgufFile) -> tuple[Tower | None, Canonical | None]:
    from ckconv.families.towers import tower_of_projector, tower_parameters, tower_tensors

    def has(name: str) -> bool:
        return value_of(file.metadata, f"clip.{name}") is not None

    family = tower_of_projector(str(value_of(file.metadata, "clip.projector_type") or ""), has)
    if family is None:
        return None, None
    tower = tower_parameters(family, KeySource(file, family.gguf), path)
    return tower, tower_tensors(items(file.tensors), tower, "gguf", path)


def _facts(file: GgufFile, kind: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": kind, "alignment": file.alignment, "data_offset": file.data_offset}
    if len(file.files) > 1:
        facts["shards"] = len(file.files)
    return facts


def _family(file: GgufFile, architecture: str) -> Family | None:
    def has(name: str) -> bool:
        if name.startswith("="):
            return any(tensor.name == name[1:] for tensor in file.tensors)
        return any(value_of(file.metadata, key) for key in keys_of(architecture, name))

    return family_of_gguf(architecture, has)
