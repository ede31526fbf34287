"""GPT-2."""

from __future__ import annotations

from ckconv.core.key_table import MLX_LM, TRANSFORMERS, harmless, modifier, parameters, table
from ckconv.families.key_tables.shared import NO_ROPE, PRETRAINED

GPT2 = table(
    "gpt2",
    PRETRAINED,
    NO_ROPE,
    parameters("layer_norm_epsilon", "n_embd", "n_head", "n_layer", "n_positions", "vocab_size"),
    parameters("n_inner", source="mlx-lm does not load another one than 4 * n_embd"),
    parameters("tie_word_embeddings", readers=(TRANSFORMERS,)),
    parameters(
        "hidden_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        readers=(TRANSFORMERS,),
        source="attribute_map of GPT2Config",
    ),
    parameters("num_key_value_heads", readers=(MLX_LM,), source="ModelArgs of mlx_lm/models/gpt2.py"),
    modifier("scale_attn_weights", True, source="GPT2Attention of modeling_gpt2.py"),
    modifier("scale_attn_by_inverse_layer_idx", False, source="GPT2Attention of modeling_gpt2.py"),
    modifier(
        "activation_function",
        "gelu_new",
        "gelu_pytorch_tanh",
        "gelu_fast",
        source="ACT2FN[config.activation_function]; mlx-lm's class has the approximation by tanh",
    ),
    harmless("n_ctx", source="a buffer of mlx-lm's class that nothing reads; transformers 5 has no such key"),
    harmless("attn_pdrop", "embd_pdrop", "resid_pdrop", "initializer_range", source="for training"),
    harmless("reorder_and_upcast_attn", source="GPT2Attention: in which type a product is summed"),
    harmless(
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        source="GPT2DoubleHeadsModel only",
    ),
)
