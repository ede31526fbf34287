"""The bytes of a BUMPWGT3 file that are not tensors, and the config.json that its loader reads beside it."""

from __future__ import annotations

import json
from typing import Any

from ckconv.families.architectures import FAMILIES
from ckconv.formats.bump.plan3 import Bump3
from ckconv.formats.bump.spec import HEADER_BYTES, TABLE_LENGTH, HeaderV3, align
from ckconv.plan.container import Container, Frame
from ckconv.plan.steps import Plan

#: The name the loader looks for, in the folder of the weights.
CONFIG_NAME = "config.json"


def container(plan: Plan) -> Container:
    """Everything in and beside a BUMPWGT3 file but its tensors."""
    return Container(
        (Frame(prologue(plan), HEADER_BYTES, lambda digest: header(plan, digest)),),
        side_files={CONFIG_NAME: config_json(plan)},
    )


def prologue(plan: Plan) -> bytes:
    """What stands between the header and the payload: the dtype table and its length."""
    codes = _details(plan).codes
    return TABLE_LENGTH.pack(len(codes)) + codes


def header(plan: Plan, sha256: bytes) -> bytes:
    """The first 128 bytes, once the digest of all others is known."""
    g = _details(plan).geometry
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
    ).pack()


def config_json(plan: Plan) -> bytes:
    """``config.json`` with every key that ``src/ckernel_ir.c`` searches for, and what a reader needs besides.

    That parser takes the first match of a quoted key in the text, so no key or value here may repeat one of its keys.
    A missing ``rope_theta`` would switch RoPE off.
    """
    details = _details(plan)
    config, family = details.config, FAMILIES[details.config.family]
    document: dict[str, Any] = {
        "architectures": [family.hf_class],
        "model_type": config.model_type,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": details.geometry.context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": True,
        "rope_layout": plan.rope_layout,
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def _details(plan: Plan) -> Bump3:
    details = plan.details
    assert isinstance(details, Bump3)
    return details
