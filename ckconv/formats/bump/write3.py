"""The bytes of a BUMPWGT3 file that are not tensors, and the config.json that its loader reads beside it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ckconv.core.config import ModelConfig
from ckconv.core.metadata import CONFIG_NAME
from ckconv.families.catalogue import FAMILIES
from ckconv.formats.bump.placement import Geometry
from ckconv.formats.bump.spec import HEADER_BYTES, TABLE_LENGTH, HeaderV3, align, fields_of
from ckconv.plan.container import Container, Frame


class Bump3(NamedTuple):
    """What stands in and beside the file.

    Attributes:
        codes: the dtype table.
        rope_layout: ``split`` or ``interleaved``.
    """

    config: ModelConfig
    geometry: Geometry
    codes: bytes
    rope_layout: str


def container(bump: Bump3) -> Container:
    """Everything in and beside a BUMPWGT3 file but its tensors."""
    prologue = TABLE_LENGTH.pack(len(bump.codes)) + bump.codes
    return Container(
        (Frame(prologue, HEADER_BYTES, lambda digest: header(bump, digest).pack()),),
        side_files={CONFIG_NAME: config_json(bump)},
        keys={**fields_of(header(bump, bytes(32))), "dtype table": bump.codes},
    )


def header(bump: Bump3, sha256: bytes) -> HeaderV3:
    """The first 128 bytes, once the digest of all others is known."""
    g = bump.geometry
    return HeaderV3(
        g.num_layers,
        g.vocab,
        g.hidden,
        g.context,
        g.heads,
        g.head,
        g.aligned_hidden,
        g.aligned_head,
        align(g.context),
        sha256,
    )


def config_json(bump: Bump3) -> bytes:
    """``config.json`` with every key that ``src/ckernel_ir.c`` searches for, and what a reader needs besides.

    That parser takes the first match of a quoted key in the text, so no key or value here may repeat one of its keys.
    A missing ``rope_theta`` would switch RoPE off.
    """
    config, family = bump.config, FAMILIES[bump.config.family]
    document: dict[str, Any] = {
        "architectures": [family.hf_class],
        "model_type": config.model_type,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": bump.geometry.context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": True,
        "rope_layout": bump.rope_layout,
    }
    return (json.dumps(document, indent=2) + "\n").encode()
