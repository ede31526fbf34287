"""Check the documents beside a bump file against it and the builder."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ckconv.core.config import CONFIG_KEYS
from ckconv.core.metadata import CONFIG_NAME, table_within
from ckconv.core.tensors import HEAD, TensorIndex, parse
from ckconv.errors import VerifyError, in_file, listed, nearest
from ckconv.families.catalog import families_of_gguf
from ckconv.families.sizes import used
from ckconv.formats.bump import read, releases, sidefiles, slots
from ckconv.formats.bump.header import HUGGINGFACE_KEYS, MANIFEST_NAME, load_manifest, read_bump5
from ckconv.io.files import open_source

# What the engine's builder checks when it builds a bump 5 or 4 file, checked without building.
#
# Every entry has to be used by an operation of the family's template, and every weight that an operation expects has to
# be there (``validate_weights`` of ``build_ir_v7.py`` and ``build_ir_v8.py``: a hard fault); types are taken from
# ``quant_summary``.

UNUSED, MISSING, SUMMARY, HASH = (
    "verify.entry-unused",
    "verify.entry-missing",
    "verify.quant-summary",
    "verify.hash",
)

#: An entry that every file of the layout has whose layers have attention and a feed-forward block each.
_MARK = "layer.0.wq"

_OPTIONAL = frozenset(
    slots.key_of(slot) for group in slots.TABLES["5"] for slot in group if slot.optional and slot.parts
) - {HEAD}


def entry_faults(index: TensorIndex) -> Iterator[tuple[str, str]]:
    """Codes and sentences of entries that the builder does not use or find."""
    config = index.config
    if config is None or _MARK not in {tensor.source for tensor in index.tensors.values()}:
        return
    family = read.row_family(config.family)
    needed, name = used(family, slots.TEMPLATED), family.gguf
    there = Counter(pattern for pattern in (parse(one).pattern for one in index.tensors) if pattern in _OPTIONAL)
    sources = {parse(one).pattern: tensor.source for one, tensor in [*index.tensors.items()][::-1]}
    for pattern in sorted(there.keys() - needed):
        yield UNUSED, f"{sources[pattern]} is used by no operation of the engine's {name}"
    for pattern in sorted(needed):
        if there[pattern] < config.num_layers:
            yield MISSING, f"{pattern} is missing in {config.num_layers - there[pattern]} layers, and {name} has it"
    tied = index.metadata.get("tie_word_embeddings")
    if tied is True and HEAD in index.tensors:
        yield UNUSED, f"{index.tensors[HEAD].source} is used by no operation: tie_word_embeddings is true"
    if tied is False and HEAD not in index.tensors:
        yield MISSING, "output.weight is missing: tie_word_embeddings is false"


def summary_faults(summary: object, index: TensorIndex) -> Iterator[tuple[str, str]]:
    """Faults of a manifest's ``quant_summary``: wrong types, missing matrices."""
    if not isinstance(summary, dict):
        return
    words = {tensor.source: slots.TYPE_WORDS.get(tensor.dtype.name, "") for tensor in index.tensors.values()}
    words["lm_head"] = words.get("output.weight") or words.get("lm_head_weight") or words.get("token_emb", "")
    types: dict[str, object] = {}
    for name, value in summary.items():
        types |= {f"{name}.{slot}": word for slot, word in value.items()} if isinstance(value, dict) else {name: value}
    for slot, word in types.items():
        if slot in words and words[slot] != word:
            yield SUMMARY, f"quant_summary: {slot} is {word!r}, in the file {words[slot]}"
    row = read.row_family(index.config.family).engines.get(slots.TEMPLATED) if index.config else None
    summarized = {name for name, _ in row.slots} - {*row.floats} if row and row.slots else slots.SUMMARIZED
    for tensor in index.tensors.values():
        slot = tensor.source
        if len(tensor.shape) > 1 and slot.rpartition(".")[2] in summarized and slot not in types:
            yield SUMMARY, f"quant_summary has no {slot}"


def hash_faults(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Wrong hashes inside the metadata."""
    stated = metadata.get("template_hash")
    if stated is not None and isinstance(metadata.get("template"), dict):
        found = hashlib.sha256(slots.canonical_json(metadata["template"])).hexdigest()
        if stated != found:
            yield HASH, f"template_hash is {stated!r}, the template's SHA-256 is {found}"


# The documents beside a bump file, compared with the file: what no checksum covers and the engine works from.
#
# ``build_ir_v7.py`` takes everything from ``weights_manifest.json`` and fills what its ``config`` lacks from
# ``config.json``; ``src/ckernel_ir.c`` (bump 3) takes everything from ``config.json``, and 0 for what it does not find.

CODE = "verify.document"

Document = Mapping[str, Any]

#: Parameters that the engine looks for in ``config.json``; each has several names.
_SOUGHT = frozenset({
    "num_layers", "hidden_size", "ffn_size", "num_heads", "num_kv_heads", "vocab_size", "context_length", "norm_eps",
    "rope_theta",
})  # fmt: skip

#: Other keys of a ``config.json`` that is written for bump 3.
_BUMP3_KEYS = ("architectures", "model_type", "tie_word_embeddings", "rope_layout")

#: A key that is as close as this to one that is missing is that one, misspelt.
_ALIKE = 0.85

#: Fields that not every header has.
_COUNTS = ("num_merges", "total_vocab_bytes")

#: Keys of a manifest, and of one of its entries; the engine's runner may add others.
_MANIFEST_KEYS = frozenset({
    "version", "model", "bump_layout", "config", "quant_summary", "template", "special_tokens", "tokenizer_contract",
    "chat_contract", "num_layers", "embed_dim", "num_heads", "num_kv_heads", "head_dim", "intermediate_size",
    "vocab_size", "context_length", "has_attention_biases", "has_qk_norm", "num_merges", "total_vocab_bytes", "entries",
})  # fmt: skip
_ENTRY_KEYS = frozenset(("name", "dtype", "file_offset", "size"))

#: Field of the header -> what the engine's documents call it.
_HEADER_KEYS = {**slots.WORDS, **{count: count for count in _COUNTS}}


def check_documents(index: TensorIndex, named: Mapping[str, Path] | None = None) -> None:
    """Check the documents beside a bump file, as far as they are there.

    Args:
        named: document -> where it is, if not beside the file.

    Raises:
        VerifyError: ``verify.document``, with every fault found; ``verify.entry-unused``, ``verify.entry-missing``,
            ``verify.quant-summary`` or ``verify.hash``, the engine does not build the file, or builds another.
        InputError: a document is malformed.
    """
    if not index.version:  # its manifest was compared with it when it was opened
        return
    paths = {
        name: (named or {}).get(name) or sidefiles.document_beside(index.path, name)
        for name in (CONFIG_NAME, MANIFEST_NAME)
    }
    config, manifest = sidefiles.load_config(paths[CONFIG_NAME], required=False), load_manifest(paths[MANIFEST_NAME])
    header = index.facts["header"]
    if isinstance(header, slots.HeaderV3):
        _check(paths[CONFIG_NAME], [*_unnamed(config), *_misspelt(config, _BUMP3_KEYS)] if config is not None else [])
        return
    metadata = _metadata(index)
    if manifest is not None:
        _check(paths[MANIFEST_NAME], _manifest_faults(manifest, metadata, header, index))
    if config is not None:
        # Nobody else's manifest of version 4 has a configuration.
        ours = _ours(metadata) if index.version == 5 else isinstance((manifest or {}).get("config"), dict)
        described = (metadata or manifest or {}) if ours else {}
        _check(paths[CONFIG_NAME], _config_faults(config, described, header))
    whole = metadata or manifest or {}
    built = [
        *entry_faults(index),
        *summary_faults((manifest or whole).get("quant_summary"), index),
        *hash_faults(whole),
    ]
    for code, sentence in built[:1]:
        raise VerifyError(code, sentence, path=index.path, details=listed([text for _, text in built[1:]]))


def _check(path: Path, faults: list[str]) -> None:
    if faults:
        raise VerifyError(CODE, faults[0], path=path, details=listed(faults[1:]))


def _metadata(index: TensorIndex) -> Document | None:
    with in_file(index.path), open_source(index.path) as source:
        metadata = read_bump5(
            index.path, source, source.read_whole(0, slots.HEADER_BYTES), index.version, named=True
        ).metadata
    return metadata.document if metadata else None


def _ours(metadata: Document | None) -> bool:
    return str((metadata or {}).get("created_by", "")).startswith("ckconv ")


def _unnamed(config: Document, *, own: bool = False) -> Iterator[str]:
    """Parameters that the engine does not find.

    Its parser searches the text for a key at any place.

    Args:
        own: the builder of versions 4 and 5 takes its own names for them, too.
    """
    nested = [part for key in ("text_config", "rope_parameters") if isinstance(part := config.get(key), dict)]
    for field, names in CONFIG_KEYS.items():
        own_names = [ours for ours, name in HUGGINGFACE_KEYS.items() if name in names] if own else []
        if field in _SOUGHT and not any(name in part for part in (config, *nested) for name in (*names, *own_names)):
            yield f"it has no {names[0]}"


def _misspelt(config: Document, keys: tuple[str, ...]) -> Iterator[str]:
    known = {name for names in CONFIG_KEYS.values() for name in names} | set(keys)
    for key in keys:
        near = nearest(key, [name for name in config if name not in known], _ALIKE)
        if key not in config and near:
            yield f"it has no {key}, but {near!r}"


def _manifest_faults(
    manifest: Document, metadata: Document | None, header: slots.HeaderV4, index: TensorIndex
) -> list[str]:
    config = table_within(manifest, "config")
    faults = []
    if manifest.get("version", 5) not in (index.version, 5):
        faults.append(f"version is {manifest['version']!r}, the file's is {index.version}")
    for field, key in _HEADER_KEYS.items():
        if field in _COUNTS and not header.tokenizer_fields:
            continue
        for where, document in (("", manifest), ("config.", config)):
            if key in document and document[key] != getattr(header, field):
                faults.append(f"{where}{key} is {document[key]!r}, the file's header says {getattr(header, field):,}")
    layout = table_within(manifest, "bump_layout") if index.facts["layout"].endswith("-D") else {}
    sizes = {
        "header_size": slots.HEADER_BYTES,
        "ext_metadata_size": slots.EXTENSION_BYTES,
        "data_start": slots.EXTENDED_HEADER_BYTES,
    }
    for key, size in sizes.items():
        if layout.get(key, size) != size:
            faults.append(f"bump_layout.{key} is {layout[key]!r}, the file's is {size}")
    if metadata is None:
        return faults
    for name in ("config", "quant_summary", "template"):
        faults += _differences(name, manifest.get(name), metadata.get(name))
    if not faults and _ours(metadata) and _digest(manifest, metadata) != metadata.get("manifest_hash"):
        faults.append("it is not the one that the file was written with: the file's metadata has another SHA-256")
    return faults


def _differences(name: str, stated: object, inside: object) -> Iterator[str]:
    """Keys of the metadata that the manifest lacks or contradicts."""
    if not isinstance(inside, dict):
        return
    stated = table_within(stated)
    for key, value in inside.items():
        if key not in stated:
            yield f"{name} has no {key}"
        elif stated[key] != value:
            yield f"{name}.{key} is not what the file's metadata says"


def _digest(manifest: Document, metadata: Document) -> str:
    """SHA-256 of the manifest without what the engine's runner may have added."""
    known = metadata.get("config")
    stable = {key: value for key, value in manifest.items() if key in _MANIFEST_KEYS}
    stable |= dict.fromkeys(("tokenizer_contract", "chat_contract"))
    stable["entries"] = [{key: entry[key] for key in _ENTRY_KEYS & entry.keys()} for entry in manifest["entries"]]
    if isinstance(known, dict) and isinstance(stable.get("config"), dict):
        stable["config"] = {key: value for key, value in stable["config"].items() if key in known}
    return hashlib.sha256(slots.canonical_json(stable)).hexdigest()


def _config_faults(config: Document, described: Document, header: slots.HeaderV4) -> list[str]:
    """Keys that ckconv writes and ``config.json`` lacks or contradicts."""
    faults = list(_unnamed(config, own=True))
    known = described.get("config")
    if not isinstance(known, dict):
        return faults
    stated: Mapping[str, Any] = known
    expected = {HUGGINGFACE_KEYS.get(key, key): stated[key] for key in stated if key not in _BUILDERS_OWN}
    expected |= {"num_merges": header.num_merges, "total_vocab_bytes": header.total_vocab_bytes}
    families = families_of_gguf(str(known.get("model")))
    classes = [f.hf_class for f in families if slots.TEMPLATED in f.engines and not f.engines[slots.TEMPLATED].absent]
    if classes:
        expected["architectures"] = classes[:1]
    for key, value in expected.items():
        if key not in config and f"it has no {key}" not in faults:
            faults.append(f"it has no {key}")
        elif key in config and config[key] != value:
            faults.append(f"{key} is {config[key]!r}, {value!r} in {MANIFEST_NAME} and the file")
    return faults


#: Keys of the builder's configuration that ``config.json`` does not repeat.
_BUILDERS_OWN = frozenset({
    "rotary_dim", "rope_scaling_type", "rope_scaling_factor", "rope_original_context_length", "rope_beta_fast",
    "rope_beta_slow", "rope_attn_factor", releases.KEY, releases.FAMILY_KEY,
})  # fmt: skip
