"""BUMPWGT5 and BUMPWGT4, in all their layouts -> the canonical index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.core.dtypes import DTYPES
from ckconv.core.metadata import CONFIG_NAME
from ckconv.core.tensors import Checksum, Extent, TensorIndex
from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.families.ages import ages
from ckconv.families.axes import AxesError
from ckconv.families.catalogue import (
    FAMILIES,
    families_of_gguf,
    family_of_model_type,
    family_without_name,
    told_by_architecture,
    written_as,
)
from ckconv.families.presence import used
from ckconv.families.schema import Family
from ckconv.formats.bump.ages import FAMILY_KEY, KEY, still_right
from ckconv.formats.bump.config import completed, model_config, without_config
from ckconv.formats.bump.engines import FOR_V7_AND_V8, TEMPLATED
from ckconv.formats.bump.flavours import D, Flavour
from ckconv.formats.bump.header5 import Bump5File
from ckconv.formats.bump.manifest import MANIFEST_NAME, Manifest, checked_manifest
from ckconv.formats.bump.metadata import Metadata, huggingface_config
from ckconv.formats.bump.resolve import resolve
from ckconv.formats.bump.spec import HeaderV4
from ckconv.formats.bump.table import misfit, misfit_error, stored_of, tensor_of
from ckconv.formats.bump.template import ROPE_WORDS, template_interleaves
from ckconv.io.bytesource import ByteSource

#: Keys that documents about one file must agree in, besides those that the header repeats.
_AGREEING = ("rope_theta", "rms_norm_eps", "rope_layout")


def index_bump5(
    path: Path,
    source: ByteSource,
    file: Bump5File,
    config: Mapping[str, Any] | None,
    manifest: Mapping[str, Any] | None,
) -> TensorIndex:
    """The index of a file and the documents beside it; of a pipe, whose end is not known, without tensors.

    Raises:
        InputError: ``bump.metadata``, ``bump.dtype-table``, ``bump.extent`` or ``model.config``.
        UnsupportedError: ``model.architecture``.
    """
    facts: dict[str, Any] = {"header": file.header, "codes": file.codes, "size": file.size}
    if file.size is None:
        return TensorIndex(
            "bump", file.version, path, (path,), "", None, (), {}, facts=facts, incomplete=without_config(path)
        )
    checked = None
    if manifest is not None:
        checked = checked_manifest(manifest, path, start=file.start, end=file.end)
    merged = _merged(path, config, file.metadata, checked)
    own = _own_config(file.metadata, checked)
    family = _family(merged)
    if _written_as(own.get(FAMILY_KEY), family):
        family = merged["model_type"] = own[FAMILY_KEY]
    elif family and family_of_model_type(str(merged["model_type"])) is None:
        merged["model_type"] = family
    resolved = resolve(path, source, file, checked, used(row_family(family), TEMPLATED) if family else frozenset())
    merged.setdefault("model_type", family or family_without_name(TEMPLATED, resolved.present))
    _check_template(path, str(merged["model_type"]))
    model = completed(path, model_config(path, merged, _header_fields(file.header)), own)
    embedded = _template(file.metadata, checked)
    interleaved = _interleaved(path, merged, resolved.flavour, model, embedded)
    try:
        placed = resolved.place(interleaved=interleaved, family=FAMILIES[model.family], parameters=model.scope)
    except AxesError as error:
        raise InputError("model.config", f"{MANIFEST_NAME}: {error}", path=path) from None
    cut = misfit(placed)
    if cut:
        raise misfit_error(path, cut)
    tensors = [p for p in placed if p.canonical]
    foreign = [p for p in tensors if resolved.flavour.own_q4_k and p.dtype is DTYPES["Q4_K"]]
    matrices = {p.slot_name: p.dtype for p in tensors if not p.slot.fp32}
    facts |= {
        "layout": f"{file.version}-{resolved.flavour.name}",
        "dtype_codes": resolved.numbering,
        "rope_layout": "interleaved" if interleaved else "split",
        "engines": ", ".join(still_right(_engines(own.get(KEY)), row_family(model.family).gguf, matrices)) or None,
        "tokenizer": tuple(stored_of(path, p) for p in placed if not p.canonical) or None,
    }
    if file.version == 4 and resolved.flavour is D:
        facts["note"] = FOR_V7_AND_V8
    if foreign:
        facts["note"] = "its Q4_K blocks are packed in the engine's first way, not ggml's: they cannot be read"
    known = [p for p in tensors if p not in foreign]
    return TensorIndex(
        format="bump",
        version=file.version,
        path=path,
        files=(path,),
        architecture=str(merged["model_type"]),
        config=model,
        stored=tuple(stored_of(path, p) for p in tensors),
        tensors={p.canonical: tensor_of(path, p) for p in known},
        canonical_of={p.canonical: (p.canonical,) for p in known},
        unknown=tuple(stored_of(path, p) for p in foreign),
        metadata=merged,
        facts=facts,
        checksums=_checksums(path, file),
    )


def _check_template(path: Path, model_type: str) -> None:
    """Entries of a family that the engine computes wrong, or not, are not known.

    Raises:
        UnsupportedError: ``model.architecture``.
    """
    family = family_of_model_type(model_type)
    row = row_family(family.name).engines.get(TEMPLATED) if family else None
    if row is not None and row.absent:
        why = f": {row.why}" if row.why else ""
        raise UnsupportedError("model.architecture", f"ckconv reads no bump file of a {model_type}{why}", path=path)


def _checksums(path: Path, file: Bump5File) -> tuple[Checksum, ...]:
    payload = Checksum("payload", Extent(path, file.table_at, file.end - file.table_at), file.header.sha256)
    return (payload, file.metadata.checksum) if file.metadata else (payload,)


def _merged(
    path: Path, config: Mapping[str, Any] | None, metadata: Metadata | None, manifest: Manifest | None
) -> dict[str, Any]:
    """One configuration out of up to three documents, under Hugging Face's keys; ``config.json`` goes first.

    Raises:
        InputError: ``model.config``, they contradict each other.
    """
    others = {
        "the file's metadata": huggingface_config(metadata.document if metadata else None),
        "the manifest": huggingface_config(manifest.document if manifest else None),
    }
    merged: dict[str, Any] = {}
    said: dict[str, str] = {}
    table = (config or {}).get("rope_parameters")  # where transformers 5 has the base
    table = table.get("full_attention", table) if isinstance(table, dict) else {}
    theta = {"rope_theta": table["rope_theta"]} if isinstance(table, dict) and "rope_theta" in table else {}
    for what, document in {**others, CONFIG_NAME: {**theta, **(config or {})}}.items():
        for key, value in document.items():
            if value is None:
                continue
            if key in _AGREEING and key in merged and merged[key] != value:
                raise InputError(
                    "model.config",
                    f"{what}: {key} is {quoted(str(value))}, {said[key]} says {quoted(str(merged[key]))}",
                    path=path,
                )
            merged[key], said[key] = value, what
    model = (manifest.document if manifest else {}).get("model")
    if "model_type" not in merged and isinstance(model, str):
        merged["model_type"] = model
    return merged


def _family(config: Mapping[str, Any]) -> str:
    """The family that a configuration names, empty where it names none that is known."""
    word = str(config.get("model_type", ""))
    found = family_of_model_type(word) or next(iter(families_of_gguf(word)), None)
    return found.name if found else ""


def _own_config(metadata: Metadata | None, manifest: Manifest | None) -> Mapping[str, Any]:
    """What the documents of the file itself say, the engine's keys and ckconv's."""
    for document in (metadata.document if metadata else {}, manifest.document if manifest else {}):
        config = document.get("config")
        if isinstance(config, dict):
            return config
    return {}


def _written_as(own: object, family: str) -> bool:
    """A model of the family ``own`` is written as one of ``family``."""
    if not isinstance(own, str) or own not in FAMILIES or not family:
        return False
    return family == (written_as(FAMILIES[own], TEMPLATED) or told_by_architecture(own))


def row_family(name: str) -> Family:
    """The family whose row says how a file of this one is laid out."""
    return FAMILIES[written_as(FAMILIES[name], TEMPLATED) or told_by_architecture(name)]


def _engines(found: object) -> list[str]:
    """The ages that the file says it is for."""
    return [name for name in found if isinstance(name, str) and name in ages()] if isinstance(found, list) else []


def _header_fields(h: HeaderV4) -> dict[str, int]:
    fields = ("num_layers", "hidden_size", "ffn_size", "num_heads", "num_kv_heads", "vocab_size", "context_length")
    return {field: getattr(h, field) for field in (*fields, "head_dim")}


def _template(metadata: Metadata | None, manifest: Manifest | None) -> dict[str, Any]:
    """The template that the file carries, empty where it carries none."""
    for document in (metadata.document if metadata else {}, manifest.document if manifest else {}):
        template = document.get("template")
        if isinstance(template, dict):
            return template
    return {}


def _interleaved(
    path: Path, config: Mapping[str, Any], flavour: Flavour, model: ModelConfig, template: dict[str, Any]
) -> bool:
    """How Q and K rows are stored: as the configuration says, else as the template rotates them, else as written."""
    word = config.get("rope_layout")
    row = FAMILIES[model.family].engines.get(TEMPLATED)
    if row is not None and row.neighbours:
        return False
    if word is None:
        row = row_family(model.family).engines.get(TEMPLATED)
        default = flavour.interleaved and row is not None and row.interleaved
        return template_interleaves(template, default) if flavour.interleaved else default
    if not isinstance(word, str) or word not in ROPE_WORDS:
        raise InputError("model.config", f"rope_layout is {quoted(str(word))}, split or pairwise expected", path=path)
    return ROPE_WORDS[word]
