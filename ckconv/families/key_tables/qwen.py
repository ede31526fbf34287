"""Qwen 2, Qwen 3 and its mixture of experts."""

from __future__ import annotations

from ckconv.core.key_table import TRANSFORMERS, harmless, parameters, table
from ckconv.families.key_tables.shared import DECODER, EXPERTS, HEAD_DIM, QWEN_WINDOWS, TRADITIONAL, WHOLE_HEAD

QWEN2 = table("qwen2", DECODER, TRADITIONAL, WHOLE_HEAD, QWEN_WINDOWS)

_QWEN3 = (
    *DECODER,
    *HEAD_DIM,
    *WHOLE_HEAD,
    *QWEN_WINDOWS,
    *parameters("attention_bias", readers=(TRANSFORMERS,), source="Qwen3Attention of modeling_qwen3.py"),
)

QWEN3 = table(
    "qwen3",
    _QWEN3,
    parameters("rope_parameters", source="ModelArgs.__post_init__ of mlx_lm/models/qwen3.py"),
)

QWEN3_MOE = table(
    "qwen3_moe",
    _QWEN3,
    EXPERTS,
    parameters("decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size", "norm_topk_prob", "num_experts"),
    parameters("num_local_experts", readers=(TRANSFORMERS,), source="attribute_map of Qwen3MoeConfig"),
    harmless("layer_types", "max_window_layers", source="modeling_qwen3_moe.py: every layer slides, or none"),
)
