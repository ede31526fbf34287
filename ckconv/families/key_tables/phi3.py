"""Phi 3."""

from __future__ import annotations

from ckconv.core.key_table import TRANSFORMERS, harmless, parameters, table
from ckconv.families.key_tables.shared import DECODER, TRADITIONAL

PHI3 = table(
    "phi3",
    DECODER,
    TRADITIONAL,
    parameters("original_max_position_embeddings", "partial_rotary_factor"),
    parameters("sliding_window", readers=(TRANSFORMERS,), source="Phi3Model of modeling_phi3.py"),
    harmless("embd_pdrop", "resid_pdrop", source="dropout is for training"),
    harmless("attention_bias", source="configurations of the hub have it, no class reads it"),
)
