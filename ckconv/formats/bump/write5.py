"""The bytes of a BUMPWGT5 or BUMPWGT4 file that are not tensors, and the files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ckconv.core.metadata import CONFIG_NAME
from ckconv.formats.bump.placement import Geometry
from ckconv.formats.bump.spec import (
    EXTENDED_HEADER_BYTES,
    EXTENSION_BYTES,
    FOOTER,
    FOOTER_NAME,
    TABLE_LENGTH,
    HeaderV4,
    align,
    fields_of,
)
from ckconv.plan.container import Container, Frame

#: What the engine's builder works from, and what its loader maps from; the map must lie in the bump's folder.
MANIFEST_NAME = "weights_manifest.json"
MAP_NAME = "weights_manifest.map"


class Bump5(NamedTuple):
    """What stands in and beside the file.

    Attributes:
        codes: the dtype table.
        tokenizer: entries of the payload that are no tensors, by name.
        manifest: the document of ``weights_manifest.json``.
        config_json: the document of ``config.json``.
        metadata: what stands behind the payload, footer included; empty in version 4.
    """

    version: int
    geometry: Geometry
    codes: bytes
    num_merges: int
    total_vocab_bytes: int
    tokenizer: Mapping[str, bytes]
    manifest: Mapping[str, Any]
    config_json: Mapping[str, Any]
    metadata: bytes


def container(bump: Bump5) -> Container:
    """Everything in and beside the file but its tensors. The digest begins at the dtype table."""
    frame = Frame(
        TABLE_LENGTH.pack(len(bump.codes)) + bump.codes,
        EXTENDED_HEADER_BYTES,
        lambda digest: header(bump, digest).pack() + bytes(EXTENSION_BYTES),
        epilogue=bump.metadata,
    )
    return Container(
        (frame,),
        side_files={
            CONFIG_NAME: _json(bump.config_json),
            MANIFEST_NAME: _json(bump.manifest),
            MAP_NAME: manifest_map(bump.manifest),
        },
        on_request=frozenset({MAP_NAME}),
        keys={**fields_of(header(bump, bytes(32))), "dtype table": bump.codes, **bump.tokenizer},
        inside={FOOTER_NAME: bump.metadata[: -FOOTER.size]} if bump.metadata else {},
    )


def header(bump: Bump5, sha256: bytes) -> HeaderV4:
    """The 128 bytes of the header, once the digest is known; zeros follow them."""
    g = bump.geometry
    return HeaderV4(
        g.num_layers,
        g.vocab,
        g.hidden,
        g.ffn,
        g.context,
        g.heads,
        g.kv_heads,
        g.head,
        g.aligned_hidden,
        g.aligned_head,
        g.aligned_ffn,
        align(g.context),
        sha256,
        bump.num_merges,
        bump.total_vocab_bytes,
        version=bump.version,
    )


def manifest_map(manifest: Mapping[str, Any]) -> bytes:
    """``weights_manifest.map``: a line an entry, sorted by where it is in memory, which is where it is in the file."""
    lines = ["# ck-bumpwgt5-manifest-map v1", "# name|dtype|file_offset|size|runtime_offset"]
    for entry in sorted(manifest["entries"], key=lambda entry: int(entry["file_offset"])):
        offset, size = entry["file_offset"], entry["size"]
        lines.append(f"{entry['name']}|{entry['dtype']}|0x{offset:016X}|0x{size:016X}|0x{offset:016X}")
    return ("\n".join(lines) + "\n").encode()


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()
