"""Gemma 3, whose text part is what is converted."""

from __future__ import annotations

from ckconv.core.key_table import TRANSFORMERS, Rows, harmless, modifier, parameters, table
from ckconv.families.key_tables.shared import DECODER, HEAD_DIM, WHOLE_HEAD

_TEXT: Rows = (
    *DECODER,
    *HEAD_DIM,
    *WHOLE_HEAD,
    *parameters("query_pre_attn_scalar", "rope_local_base_freq", "sliding_window", "sliding_window_pattern"),
    *parameters(
        "attention_bias",
        "final_logit_softcapping",
        "layer_types",
        "tie_word_embeddings",
        readers=(TRANSFORMERS,),
        source="modeling_gemma3.py",
    ),
    *modifier(
        "hidden_activation",
        "gelu_pytorch_tanh",
        "gelu_new",
        source="ACT2FN[config.hidden_activation]; mlx-lm's class has the approximation by tanh",
    ),
    *modifier("attn_logit_softcapping", source="eager_attention_forward of modeling_gemma3.py"),
    *modifier("use_bidirectional_attention", False, source="Gemma3TextModel of modeling_gemma3.py"),
    *harmless("hidden_act", source="Gemma3MLP reads hidden_activation"),
    *harmless("_sliding_window_pattern", source="Gemma3TextConfig.__post_init__ sets it and does not read it"),
    *harmless("cache_implementation", source="how a cache is stored"),
)

GEMMA3_TEXT = table("gemma3_text", _TEXT)

#: The document around the text part, whose own keys are those of the text model's configuration.
GEMMA3 = table(
    "gemma3",
    _TEXT,
    parameters("text_config"),
    harmless(
        "boi_token_id",
        "boi_token_index",
        "eoi_token_id",
        "eoi_token_index",
        "image_token_id",
        "image_token_index",
        "mm_tokens_per_image",
        "vision_config",
        source="pictures, which the text part does not see",
    ),
)
