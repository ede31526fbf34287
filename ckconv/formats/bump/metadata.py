"""The metadata at the end of a version 5 file, found by the footer behind it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.core.tensors import Checksum, Extent
from ckconv.errors import InputError
from ckconv.formats.bump.spec import FOOTER, FOOTER_MAGIC
from ckconv.io.bytesource import ByteSource
from ckconv.io.json import Document, parse_object

CODE = "bump.metadata"
_DOCUMENT = Document("metadata", CODE, CODE, 64 << 20)

#: Keys of the engine's own configuration documents -> Hugging Face's.
HUGGINGFACE_KEYS: dict[str, str] = {
    "model": "model_type",
    "num_layers": "num_hidden_layers",
    "embed_dim": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "rms_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "rope_layout": "rope_layout",
    "sliding_window": "sliding_window",
    "sliding_window_pattern": "sliding_window_pattern",
    "rope_local_base_freq": "rope_local_base_freq",
    "tie_word_embeddings": "tie_word_embeddings",
}


class Metadata(NamedTuple):
    """The document, where it begins in the file (the payload ends there), and its checksum."""

    document: Mapping[str, Any]
    offset: int
    checksum: Checksum


def read_metadata(path: Path, source: ByteSource, size: int, start: int) -> Metadata:
    """Read the metadata of a file of ``size`` bytes whose dtype table ends at byte ``start``.

    Raises:
        InputError: ``bump.metadata``.
    """
    footer_at = size - FOOTER.size
    if footer_at < start:
        raise InputError(
            CODE,
            f"the file ends at byte {size:,}, where its dtype table and footer need {start + FOOTER.size:,}",
            path=path,
            found=size,
            allowed=start + FOOTER.size,
            hint="the copy looks incomplete",
        )
    magic, nbytes, sha256 = FOOTER.unpack(source.read_whole(footer_at, FOOTER.size))
    if magic != FOOTER_MAGIC:
        raise InputError(
            CODE,
            f"footer magic {FOOTER_MAGIC.decode()!r} not found {FOOTER.size} bytes before the end, but {magic!r}",
            path=path,
            offset=footer_at,
            found=magic,
            hint="the copy looks incomplete",
        )
    limit = min(footer_at - start, _DOCUMENT.limit)
    if nbytes > limit:
        raise InputError(
            CODE,
            f"the footer declares {nbytes:,} bytes of metadata, at most {limit:,} fit",
            path=path,
            offset=footer_at + 8,
            found=nbytes,
            allowed=limit,
        )
    offset = footer_at - nbytes
    data = source.read_whole(offset, nbytes)
    computed = hashlib.sha256(data).digest()
    if computed != sha256:
        raise InputError(
            CODE,
            f"the metadata sha256 is wrong: stored {sha256.hex()}, computed {computed.hex()}",
            path=path,
            offset=footer_at + 16,
            found=computed.hex(),
            allowed=sha256.hex(),
        )
    document = parse_object(data, _DOCUMENT, path, offset=offset)
    return Metadata(document, offset, Checksum("metadata", Extent(path, offset, nbytes), sha256))


def huggingface_config(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """The ``config`` of a manifest or of the metadata under Hugging Face's keys."""
    config = (document or {}).get("config")
    if not isinstance(config, dict):
        return {}
    return {theirs: config[ours] for ours, theirs in HUGGINGFACE_KEYS.items() if config.get(ours) is not None}
