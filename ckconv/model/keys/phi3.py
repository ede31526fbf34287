"""Phi 3."""

from __future__ import annotations

from ckconv.model.keys.shared import DECODER, TRADITIONAL
from ckconv.model.keys.table import TRANSFORMERS, harmless, parameters, table

PHI3 = table(
    "phi3",
    DECODER,
    TRADITIONAL,
    parameters("original_max_position_embeddings", "partial_rotary_factor"),
    parameters("sliding_window", readers=(TRANSFORMERS,), source="Phi3Model of modeling_phi3.py"),
    harmless("embd_pdrop", "resid_pdrop", source="dropout is for training"),
    harmless("attention_bias", source="configurations of the hub have it, no class reads it"),
)
