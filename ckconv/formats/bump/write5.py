"""The bytes of a BUMPWGT5 or BUMPWGT4 file that are not tensors, and the files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ckconv.formats.bump.plan5 import Bump5
from ckconv.formats.bump.spec import EXTENDED_HEADER_BYTES, EXTENSION_BYTES, TABLE_LENGTH, HeaderV4, align
from ckconv.formats.bump.write3 import CONFIG_NAME
from ckconv.plan.container import Container, Frame
from ckconv.plan.steps import Plan

#: What the engine's builder works from, and what its loader maps from; the map must lie in the bump's folder.
MANIFEST_NAME = "weights_manifest.json"
MAP_NAME = "weights_manifest.map"


def container(plan: Plan) -> Container:
    """Everything in and beside the file but its tensors. The digest begins at the dtype table."""
    details = _details(plan)
    frame = Frame(
        TABLE_LENGTH.pack(len(details.codes)) + details.codes,
        EXTENDED_HEADER_BYTES,
        lambda digest: header(plan, digest),
        epilogue=details.metadata,
    )
    return Container(
        (frame,),
        side_files={
            CONFIG_NAME: _json(details.config_json),
            MANIFEST_NAME: _json(details.manifest),
            MAP_NAME: manifest_map(details.manifest),
        },
        on_request=frozenset({MAP_NAME}),
    )


def header(plan: Plan, sha256: bytes) -> bytes:
    """The 128 bytes of the header, once the digest is known, and the zeros after them."""
    details = _details(plan)
    g = details.geometry
    fields = HeaderV4(
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
        details.num_merges,
        details.total_vocab_bytes,
        version=plan.version,
    )
    return fields.pack() + bytes(EXTENSION_BYTES)


def manifest_map(manifest: Mapping[str, Any]) -> bytes:
    """``weights_manifest.map``: a line an entry, sorted by where it is in memory, which is where it is in the file."""
    lines = ["# ck-bumpwgt5-manifest-map v1", "# name|dtype|file_offset|size|runtime_offset"]
    for entry in sorted(manifest["entries"], key=lambda entry: int(entry["file_offset"])):
        offset, size = entry["file_offset"], entry["size"]
        lines.append(f"{entry['name']}|{entry['dtype']}|0x{offset:016X}|0x{size:016X}|0x{offset:016X}")
    return ("\n".join(lines) + "\n").encode()


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()


def _details(plan: Plan) -> Bump5:
    details = plan.details
    assert isinstance(details, Bump5)
    return details
