"""The keys that ``config.json`` files have for the fields of a configuration, whatever the family.

Source: C-Kernel-Engine's src/ckernel_ir.c, which searches a document for them in this order; they are those of the
configuration classes of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

CONFIG_KEYS: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "decoder_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "ffn_size": ("intermediate_size", "n_inner", "ffn_dim", "mlp_dim", "decoder_ffn_dim"),
    "num_heads": ("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "vocab_size": ("vocab_size", "n_vocab"),
    "context_length": (
        "max_position_embeddings",
        "n_positions",
        "context_length",
        "seq_len",
        "max_target_positions",
    ),
    "norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
    "rope_theta": ("rope_theta", "rope_base"),
    "rotary_dim": (),
    "sliding_window": ("sliding_window",),
    "num_experts": ("num_local_experts", "num_experts"),
    "experts_used": ("num_experts_per_tok",),
    "expert_ffn_size": ("moe_intermediate_size",),
}
