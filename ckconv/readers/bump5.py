"""BUMPWGT5 and BUMPWGT4, in all their layouts -> the canonical index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckconv.dtypes import DTYPES
from ckconv.errors import InputError, listed, quoted
from ckconv.formats.bump import (
    EXTENDED_HEADER_BYTES,
    HEADER_BYTES,
    TABLE_LENGTH,
    HeaderV4,
)
from ckconv.formats.bump_flavours import FLAVOURS, PAIRWISE_FAMILIES, Flavour
from ckconv.formats.bump_slots import table_entries, with_optional
from ckconv.model.architectures import FAMILIES, family_of_model_type
from ckconv.model.config import MAX_LAYERS, ModelConfig
from ckconv.model.index import Checksum, Extent, TensorIndex
from ckconv.model.placement import Geometry
from ckconv.readers.bump_config import CONFIG_NAME, model_config
from ckconv.readers.bump_manifest import Manifest, checked_manifest
from ckconv.readers.bump_metadata import Metadata, huggingface_config, read_metadata
from ckconv.readers.bump_resolve import Resolved, resolve
from ckconv.readers.bump_table import read_table, stored_of, tensor_of
from ckconv.readers.bytesource import ByteSource
from ckconv.readers.template import ROPE_WORDS, template_interleaves

_POST_NORM = "layers.{n}.post_attention_norm.weight"
_Q_NORM = "layers.{n}.attention.q_norm.weight"

#: Keys that documents about one file must agree in, besides those that the header repeats.
_AGREEING = ("rope_theta", "rms_norm_eps", "rope_layout")


@dataclass(frozen=True, slots=True)
class Bump5File:
    """What the file says without the documents beside it.

    Attributes:
        flavours: the layouts that header and dtype table allow.
        table_at: where the dtype table's length stands, and the checksum's run begins.
        size: bytes of the file, ``None`` for a pipe.
    """

    version: int
    header: HeaderV4
    flavours: tuple[Flavour, ...]
    table_at: int
    codes: bytes
    size: int | None
    metadata: Metadata | None

    @property
    def start(self) -> int:
        """Where the payload begins."""
        return self.table_at + TABLE_LENGTH.size + len(self.codes)

    @property
    def end(self) -> int:
        """Where the payload ends."""
        return self.metadata.offset if self.metadata else self.size or self.start

    @property
    def geometry(self) -> Geometry:
        """The sizes, all of which the header names."""
        h = self.header
        return Geometry(
            h.num_layers,
            h.vocab_size,
            h.hidden_size,
            h.ffn_size,
            h.num_heads,
            h.num_kv_heads,
            h.head_dim,
            h.context_length,
            h.aligned_hidden,
            h.aligned_ffn,
            h.aligned_head,
        )


def read_bump5(path: Path, source: ByteSource, head: bytes, version: int) -> Bump5File:
    """Read and check header, dtype table and metadata; ``head`` is the first 128 bytes.

    Raises:
        InputError: ``bump.header``, ``bump.dtype-table`` or ``bump.metadata``.
    """
    between = source.read_at(HEADER_BYTES, EXTENDED_HEADER_BYTES - HEADER_BYTES + TABLE_LENGTH.size)
    tokenizer_fields = any(head[0x70:0x78])
    header = HeaderV4.unpack(head, tokenizer_fields=tokenizer_fields)
    _check_sizes(path, header)
    extended = _extended(path, between, header.num_layers, version)
    if extended != tokenizer_fields and extended:
        # A checksum of the newer layout covers the bytes that tell; only one that is zero there does not.
        header = HeaderV4.unpack(head, tokenizer_fields=True)
    _check_reserved(path, header)
    flavours = tuple(
        f for f in FLAVOURS[version] if f.extended == extended and f.tokenizer_fields == header.tokenizer_fields
    )
    if not flavours:
        raise InputError(
            "bump.header",
            f"bump {version} has no layout with token counts at 0x50 and the dtype table at {HEADER_BYTES:#x}",
            path=path,
            offset=0x50,
        )
    table_at = EXTENDED_HEADER_BYTES if extended else HEADER_BYTES
    layers = header.num_layers
    expected = {length for flavour in flavours for length in table_lengths(flavour, layers)}
    codes = read_table(path, source, table_at, expected, layers)
    flavours = tuple(flavour for flavour in flavours if len(codes) in table_lengths(flavour, layers))
    metadata = None
    if version == 5 and source.size is not None:
        metadata = read_metadata(path, source, source.size, table_at + TABLE_LENGTH.size + len(codes))
    return Bump5File(version, header, flavours, table_at, codes, source.size, metadata)


def table_lengths(flavour: Flavour, num_layers: int) -> set[int]:
    """The lengths that a layout's dtype table may have.

    Of the coded optional slots a model has the head or not, and both norms behind the blocks or neither.
    """
    choices: tuple[set[str], ...] = (set(), {_POST_NORM, "layers.{n}.post_ffn_norm.weight"})
    heads: tuple[set[str], ...] = (set(), {"output.weight"})
    tables = [with_optional(flavour.slots, norms | head) for norms in choices for head in heads]
    lengths = {table_entries(table, num_layers) for table in tables}
    if not flavour.table_by_slot:  # 8 weights a layer in the scripts that are known, 10 with the norms of Q and K
        lengths |= {2 + per_layer * num_layers + head for per_layer in (8, 10) for head in (0, 1)}
    return lengths


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
        return TensorIndex("bump", file.version, path, (path,), "", None, (), {}, facts=facts)
    checked = checked_manifest(manifest, path, start=file.start, end=file.end) if manifest else None
    merged = _merged(path, config, file.metadata, checked)
    family = _family(merged)
    resolved = resolve(path, source, file, checked, family)
    merged.setdefault("model_type", family or _guess(resolved))
    model = model_config(path, merged, _header_fields(file.header))
    embedded = _template(file.metadata, checked)
    interleaved = _interleaved(path, merged, resolved.flavour, model, embedded)
    placed = resolved.place(interleaved=interleaved, family=FAMILIES[model.family])
    tensors = [p for p in placed if p.canonical]
    foreign = [p for p in tensors if resolved.flavour.own_q4_k and p.dtype is DTYPES["Q4_K"]]
    facts |= {
        "layout": f"{file.version}-{resolved.flavour.name}",
        "dtype_codes": resolved.numbering,
        "rope_layout": "interleaved" if interleaved else "split",
        "tokenizer": tuple(stored_of(path, p) for p in placed if not p.canonical) or None,
    }
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


def _checksums(path: Path, file: Bump5File) -> tuple[Checksum, ...]:
    payload = Checksum("payload", Extent(path, file.table_at, file.end - file.table_at), file.header.sha256)
    return (payload, file.metadata.checksum) if file.metadata else (payload,)


def _extended(path: Path, between: bytes, num_layers: int, version: int) -> bool:
    """Whether the dtype table is behind the 24 zero bytes of the newer layouts, or at once behind the header."""
    zeros, counted = between[: -TABLE_LENGTH.size], between[-TABLE_LENGTH.size :]
    if len(between) < EXTENDED_HEADER_BYTES - HEADER_BYTES + TABLE_LENGTH.size or not any(zeros):
        return True
    (there,), (here,) = TABLE_LENGTH.unpack(counted), TABLE_LENGTH.unpack_from(zeros)
    older = {n for f in FLAVOURS[version] if not f.extended for n in table_lengths(f, num_layers)}
    newer = {n for f in FLAVOURS[version] if f.extended for n in table_lengths(f, num_layers)}
    if here not in older and there in newer:
        at = next(i for i, byte in enumerate(zeros) if byte)
        raise InputError(
            "bump.header",
            f"reserved byte {HEADER_BYTES + at:#x} is {zeros[at]:#04x}, not zero",
            path=path,
            offset=HEADER_BYTES + at,
        )
    return False


def _check_reserved(path: Path, h: HeaderV4) -> None:
    if any(h.reserved):
        at = next(i for i, byte in enumerate(h.reserved) if byte)
        raise InputError(
            "bump.header",
            f"reserved byte {h.reserved_at + at:#x} is {h.reserved[at]:#04x}, not zero",
            path=path,
            offset=h.reserved_at + at,
        )


def _check_sizes(path: Path, h: HeaderV4) -> None:
    names = {
        "num_layers": h.num_layers,
        "vocab_size": h.vocab_size,
        "embed_dim": h.hidden_size,
        "intermediate_size": h.ffn_size,
        "context_length": h.context_length,
        "num_heads": h.num_heads,
        "num_kv_heads": h.num_kv_heads,
        "head_dim": h.head_dim,
    }
    faults = [f"{name} is {value}" for name, value in names.items() if not 0 < value < 1 << 31]
    if h.num_layers > MAX_LAYERS:
        faults.append(f"num_layers is {h.num_layers:,}, at most {MAX_LAYERS:,} are allowed")
    if h.model_type != 1:
        faults.append(f"model_type is {h.model_type}, 1 expected")
    if h.num_kv_heads and h.num_heads % h.num_kv_heads:
        faults.append(f"num_heads {h.num_heads} is no multiple of num_kv_heads {h.num_kv_heads}")
    for name, real, aligned in (
        ("embed", h.hidden_size, h.aligned_hidden),
        ("head", h.head_dim, h.aligned_head),
        ("intermediate", h.ffn_size, h.aligned_ffn),
        ("context", h.context_length, h.aligned_context),
    ):
        if aligned < real:
            faults.append(f"aligned_{name} {aligned} is below {name} {real}")
    if faults:
        raise InputError("bump.header", faults[0], path=path, details=listed(faults[1:]))


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
    for what, document in {**others, CONFIG_NAME: dict(config or {})}.items():
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
    return family_of_model_type(str(config.get("model_type", ""))) or ""


def _guess(resolved: Resolved) -> str:
    """The family that has the optional slots of the file, where no document names one."""
    if _POST_NORM in resolved.present:
        return "gemma3"
    return "qwen3" if _Q_NORM in resolved.present else "llama"


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
    if word is None:
        return template_interleaves(template, flavour.pairwise and model.family in PAIRWISE_FAMILIES)
    if not isinstance(word, str) or word not in ROPE_WORDS:
        raise InputError("model.config", f"rope_layout is {quoted(str(word))}, split or pairwise expected", path=path)
    return ROPE_WORDS[word]
