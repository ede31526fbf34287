"""Llama."""

from __future__ import annotations

from ckconv.core.key_table import MLX_LM, Rows, harmless, parameters, table
from ckconv.families.key_tables.shared import DECODER, HEAD_DIM, TRADITIONAL, WHOLE_HEAD

#: What mlx-lm's llama class reads, which it takes mistral's checkpoints for too.
MLX_LLAMA: Rows = (
    *HEAD_DIM,
    *TRADITIONAL,
    *parameters("layer_types", "sliding_window", readers=(MLX_LM,), source="LlamaModel of mlx_lm/models/llama.py"),
)

LLAMA = table(
    "llama",
    DECODER,
    MLX_LLAMA,
    WHOLE_HEAD,
    parameters("attention_bias", "mlp_bias"),
    harmless("pretraining_tp", source="configuration_llama.py: read by no class since 4.48, and exact before"),
)
