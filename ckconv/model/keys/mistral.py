"""Mistral: a llama without biases, whose layers may all slide."""

from __future__ import annotations

from ckconv.model.keys.llama import MLX_LLAMA
from ckconv.model.keys.shared import DECODER, WHOLE_HEAD
from ckconv.model.keys.table import MLX_LM, parameters, table

MISTRAL = table(
    "mistral",
    DECODER,
    MLX_LLAMA,
    WHOLE_HEAD,
    parameters("sliding_window", source="MistralModel of modeling_mistral.py"),
    parameters("attention_bias", "mlp_bias", readers=(MLX_LM,), source="mlx_lm/models/llama.py"),
)
