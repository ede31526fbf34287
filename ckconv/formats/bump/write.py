"""Header, metadata and side files of a bump file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ckconv.core import __version__
from ckconv.core.config import ModelConfig
from ckconv.core.lazy import NamedTuple
from ckconv.core.metadata import CONFIG_NAME, table_within
from ckconv.families import catalog, parameters, schema
from ckconv.formats.bump import header, sidefiles, slots
from ckconv.formats.bump.releases import FAMILY_KEY, KEY, merged
from ckconv.plan.steps import Container, Frame, Step

# The JSON documents of a bump 5 or 4 file: manifest, configuration, and the metadata at the end of the file.
#
# Source: what ``version/v7/scripts/convert_gguf_to_bump_v7.py`` writes; ``build_ir_v7.py`` works from the manifest
# alone and fills what its ``config`` lacks from ``config.json``.


class DocumentFacts(NamedTuple):
    """Facts that the documents are made of.

    Attributes:
        steps: the payload.
        tied: there is no output head of its own.
        own_rope_layout: ``split`` where Q and K rows are not as the template rotates them, else empty.
        engines: releases of the engine that compute the file right.
        of: the source's family, where the file is written as another's; else empty.
        total_vocab_bytes: bytes of the token strings.
        template: the engine's, ``None`` where none was given.
        fragment: what the engine's template has to say besides.
        created: seconds since 1970, ``None`` for no date.
    """

    config: ModelConfig
    geometry: slots.Geometry
    steps: tuple[Step, ...]
    tied: bool
    own_rope_layout: str
    engines: tuple[str, ...]
    of: str
    num_merges: int
    total_vocab_bytes: int
    special_tokens: Mapping[str, Any]
    texts: Mapping[str, str]
    template: Mapping[str, Any] | None
    fragment: Mapping[str, Any]
    created: int | None

    @property
    def family(self) -> schema.Family:
        """The model's family."""
        return catalog.FAMILIES[self.config.family]

    @property
    def optional(self) -> dict[str, Any]:
        """Keys of manifest and ``config.json`` that only some models have."""
        layout = {"rope_layout": self.own_rope_layout} if self.own_rope_layout else {}
        window = {"sliding_window": self.config.sliding_window} if self.config.sliding_window else {}
        own = parameters.write(self.family, parameters.scope_of(self.family, self.config), "bump").entries
        circuit = {key: value for key, (_, value) in own.items()}
        return {**layout, **window, **slots.carried(self.config, self.family), **circuit, **self.texts}


def entries(steps: tuple[Step, ...]) -> list[dict[str, Any]]:
    """The manifest's entries: one a slot, in file order; offsets are absolute."""
    found: dict[str, dict[str, Any]] = {}
    for step in steps:
        entry = found.get(step.slot)
        if entry is not None:
            entry["size"] += step.nbytes
            continue
        words = slots.TYPE_WORDS if step.content is None else slots.CONTENT_WORDS
        word = words[step.target.dtype.name]
        found[step.slot] = {"name": step.slot, "dtype": word, "file_offset": step.offset, "size": step.nbytes}
    return list(found.values())


def manifest(facts: DocumentFacts) -> dict[str, Any]:
    """``weights_manifest.json``."""
    row = facts.family.engines.get(slots.TEMPLATED)
    names = {step.target.name for step in facts.steps if step.source is not None}
    template = {"template": found} if (found := _template(facts)) else {}
    return {
        "version": 5,
        "model": facts.family.gguf,
        "bump_layout": {
            "header_size": slots.HEADER_BYTES,
            "ext_metadata_size": slots.EXTENSION_BYTES,
            "data_start": slots.EXTENDED_HEADER_BYTES,
            "description": "Offsets: [0..header_size) header, [header_size..data_start) ext_metadata, "
            "[data_start..] dtype_table + weights",
        },
        # In both versions: without them the builder takes head size, rotation and types for others than they are.
        "config": _config(facts),
        "quant_summary": _summary(facts.steps, [name for name, _ in row.slots] if row else []),
        **template,
        "special_tokens": dict(facts.special_tokens) or None,
        "tokenizer_contract": None,
        "chat_contract": None,
        **_words(facts.geometry),
        "has_attention_biases": "layers.0.attention.q.bias" in names,
        "has_qk_norm": "layers.0.attention.q_norm.weight" in names,
        "num_merges": facts.num_merges,
        "total_vocab_bytes": facts.total_vocab_bytes,
        "entries": entries(facts.steps),
    }


def _config(facts: DocumentFacts) -> dict[str, Any]:
    c, g = facts.config, facts.geometry
    return {
        "model": facts.family.gguf,
        "embed_dim": g.hidden,
        "attn_out_dim": g.heads * g.head,
        "num_layers": g.num_layers,
        "num_heads": g.heads,
        "num_kv_heads": g.kv_heads,
        "head_dim": g.head,
        "intermediate_size": g.ffn,
        "context_length": g.context,
        "rope_theta": c.rope_theta,
        "rotary_dim": c.rotary_dim,
        "rope_scaling_type": "none",
        "rope_scaling_factor": 1.0,
        "rope_original_context_length": g.context,
        "rope_beta_fast": 0.0,
        "rope_beta_slow": 0.0,
        "rope_attn_factor": 1.0,
        "vocab_size": g.vocab,
        "rms_eps": c.norm_eps,
        "tie_word_embeddings": facts.tied,
        **facts.optional,
        KEY: list(facts.engines),
        **({FAMILY_KEY: facts.of} if facts.of else {}),
    }


def _summary(steps: tuple[Step, ...], named: Sequence[str]) -> dict[str, Any]:
    """Types of the matrices; a tied head has the embedding's."""
    words = {step.slot: slots.TYPE_WORDS[step.target.dtype.name] for step in steps if step.content is None}
    summary: dict[str, Any] = {"token_emb": words["token_emb"]}
    summary["lm_head"] = words.get("output.weight", words["token_emb"])
    for slot, word in words.items():
        layer, _, name = slot.rpartition(".")
        if name in (named or slots.SUMMARIZED):
            summary.setdefault(layer, {})[name] = word
    return summary


def _template(facts: DocumentFacts) -> dict[str, Any]:
    """Template to embed; a given one is made to name an untied head."""
    template = merged(facts.fragment, facts.template or {})
    if facts.tied or facts.template is None:
        return template
    contract, logits = table_within(template, "contract"), table_within(template, "contract", "logits_contract")
    return {**template, "contract": {**contract, "logits_contract": {**logits, "lm_head": "output_weight"}}}


def _hyperparameters(config: ModelConfig, g: slots.Geometry) -> dict[str, Any]:
    """Sizes and constants under Hugging Face's keys."""
    values = {**_words(g), "rms_eps": config.norm_eps, "rope_theta": config.rope_theta}
    return {name: values[ours] for ours, name in header.HUGGINGFACE_KEYS.items() if ours in values}


def config_json(facts: DocumentFacts) -> dict[str, Any]:
    """Make ``config.json``: the engine's script's keys, and the head size."""
    g = facts.geometry
    return {
        "architectures": [facts.family.hf_class],
        "model_type": facts.family.gguf,
        **_hyperparameters(facts.config, g),
        "attn_out_dim": g.heads * g.head,
        "tie_word_embeddings": facts.tied,
        "num_merges": facts.num_merges,
        "total_vocab_bytes": facts.total_vocab_bytes,
        **facts.optional,
    }


def metadata(facts: DocumentFacts, manifest: Mapping[str, Any]) -> bytes:
    """Metadata of version 5 and the footer that finds it."""
    document: dict[str, Any] = {
        "schema_version": 1,
        "format": "BUMPWGT5",
        "created_by": f"ckconv {__version__}",
        "config": manifest["config"],
        "quant_summary": manifest["quant_summary"],
        "manifest_hash": hashlib.sha256(slots.canonical_json(manifest)).hexdigest(),
    }
    if facts.created is not None:
        moment = datetime.fromtimestamp(facts.created, UTC).replace(tzinfo=None)
        document["created_at"] = f"{moment.isoformat()}Z"
    if template := _template(facts):
        document |= {"template": template, "template_hash": hashlib.sha256(slots.canonical_json(template)).hexdigest()}
    data = slots.canonical_json(document)
    return data + slots.FOOTER.pack(slots.FOOTER_MAGIC, len(data), hashlib.sha256(data).digest())


# The bytes of a BUMPWGT3 file that are not tensors, and the config.json that its loader reads beside it.


class Bump3(NamedTuple):
    """Contents of a version 3 file, and documents beside it.

    Attributes:
        codes: the dtype table.
        rope_layout: ``split`` or ``interleaved``.
    """

    config: ModelConfig
    geometry: slots.Geometry
    codes: bytes
    rope_layout: str


def container3(bump: Bump3) -> Container:
    """Everything in and beside a BUMPWGT3 file but its tensors."""
    prologue = slots.TABLE_LENGTH.pack(len(bump.codes)) + bump.codes
    return Container(
        (Frame(prologue, slots.HEADER_BYTES, lambda digest: header3(bump, digest).pack()),),
        side_files={CONFIG_NAME: config_json3(bump)},
        keys={**slots.fields_of(header3(bump, bytes(32))), "dtype table": bump.codes},
    )


def _sizes(g: slots.Geometry) -> dict[str, Any]:
    """Sizes of a geometry, as the fields of a header."""
    return {**dict(zip(slots.SIZES, g, strict=True)), "aligned_context": slots.align(g.context)}


def _words(g: slots.Geometry) -> dict[str, Any]:
    """Sizes of a geometry, as the engine's documents call them."""
    sizes = _sizes(g)
    return {word: sizes[field] for field, word in slots.WORDS.items()}


def header3(bump: Bump3, sha256: bytes) -> slots.HeaderV3:
    """The first 128 bytes, once the digest of all others is known."""
    sizes = _sizes(bump.geometry)
    return slots.HeaderV3(**{name: sizes[name] for name in slots.HeaderV3._fields if name in sizes}, sha256=sha256)


def config_json3(bump: Bump3) -> bytes:
    """Make ``config.json`` with every key that ``src/ckernel_ir.c`` reads.

    And what a reader needs.

    That parser takes the first match of a quoted key in the text, so no key or value here may repeat one of its keys.
    A missing ``rope_theta`` would switch RoPE off.
    """
    document: dict[str, Any] = {
        "architectures": [catalog.FAMILIES[bump.config.family].hf_class],
        "model_type": bump.config.model_type,
        **_hyperparameters(bump.config, bump.geometry),
        "tie_word_embeddings": True,
        "rope_layout": bump.rope_layout,
    }
    del document["head_dim"]
    return _json(document)


# The bytes of a BUMPWGT5 or BUMPWGT4 file that are not tensors, and the files beside it.


class Bump5(NamedTuple):
    """Contents of a version 5 file, and documents beside it.

    Attributes:
        codes: the dtype table.
        tokenizer: entries of the payload that are no tensors, by name.
        manifest: the document of ``weights_manifest.json``.
        config_json: the document of ``config.json``.
        metadata: what stands behind the payload, footer included; empty in version 4.
    """

    version: int
    geometry: slots.Geometry
    codes: bytes
    num_merges: int
    total_vocab_bytes: int
    tokenizer: Mapping[str, bytes]
    manifest: Mapping[str, Any]
    config_json: Mapping[str, Any]
    metadata: bytes


def container5(bump: Bump5) -> Container:
    """Bytes and side files around tensors, hashed from the dtype table on."""
    frame = Frame(
        slots.TABLE_LENGTH.pack(len(bump.codes)) + bump.codes,
        slots.EXTENDED_HEADER_BYTES,
        lambda digest: header5(bump, digest).pack() + bytes(slots.EXTENSION_BYTES),
        epilogue=bump.metadata,
    )
    return Container(
        (frame,),
        side_files={
            CONFIG_NAME: _json(bump.config_json),
            header.MANIFEST_NAME: _json(bump.manifest),
            sidefiles.MAP_NAME: manifest_map(bump.manifest),
        },
        on_request=frozenset({sidefiles.MAP_NAME}),
        keys={**slots.fields_of(header5(bump, bytes(32))), "dtype table": bump.codes, **bump.tokenizer},
        inside={slots.FOOTER_NAME: bump.metadata[: -slots.FOOTER.size]} if bump.metadata else {},
    )


def header5(bump: Bump5, sha256: bytes) -> slots.HeaderV4:
    """128 bytes of the header, once the digest is known; zeros follow them."""
    sizes, merges, nbytes = _sizes(bump.geometry), bump.num_merges, bump.total_vocab_bytes
    version = bump.version
    return slots.HeaderV4(**sizes, sha256=sha256, num_merges=merges, total_vocab_bytes=nbytes, version=version)


def manifest_map(manifest: Mapping[str, Any]) -> bytes:
    """``weights_manifest.map``: a line an entry, in the file's order."""
    lines = ["# ck-bumpwgt5-manifest-map v1", "# name|dtype|file_offset|size|runtime_offset"]
    for entry in sorted(manifest["entries"], key=lambda entry: int(entry["file_offset"])):
        offset, size = entry["file_offset"], entry["size"]
        lines.append(f"{entry['name']}|{entry['dtype']}|0x{offset:016X}|0x{size:016X}|0x{offset:016X}")
    return ("\n".join(lines) + "\n").encode()


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()
