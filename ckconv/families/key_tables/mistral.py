"""Mistral: a llama without biases, whose layers may all slide."""

from __future__ import annotations

from ckconv.core.key_table import MLX_LM, parameters, table
from ckconv.families.key_tables.llama import MLX_LLAMA
from ckconv.families.key_tables.shared import DECODER, WHOLE_HEAD

MISTRAL = table(
    "mistral",
    DECODER,
    MLX_LLAMA,
    WHOLE_HEAD,
    parameters("sliding_window", source="MistralModel of modeling_mistral.py"),
    parameters("attention_bias", "mlp_bias", readers=(MLX_LM,), source="mlx_lm/models/llama.py"),
)
