"""Mixtral."""

from __future__ import annotations

from ckconv.core.key_table import TRANSFORMERS, harmless, parameters, table
from ckconv.families.key_tables.shared import DECODER, EXPERTS, TRADITIONAL, WHOLE_HEAD

MIXTRAL = table(
    "mixtral",
    DECODER,
    EXPERTS,
    TRADITIONAL,
    WHOLE_HEAD,
    parameters("num_local_experts"),
    parameters("num_experts", readers=(TRANSFORMERS,), source="attribute_map of MixtralConfig"),
    parameters("sliding_window", readers=(TRANSFORMERS,), source="MixtralModel of modeling_mixtral.py"),
    harmless("router_jitter_noise", source="MixtralSparseMoeBlock: in training only"),
)
