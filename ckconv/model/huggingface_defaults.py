"""What the configuration classes of transformers take for a key that ``config.json`` does not have.

The hub's Gemma 3 checkpoints of 4 billion parameters and more name neither heads nor their size.

Source: the configuration files of transformers 4.57 and 5.18, which agree on these.
"""

from __future__ import annotations

from collections.abc import Mapping

_QWEN = {"norm_eps": 1e-6, "context_length": 32_768, "sliding_window": 4096}

#: ``model_type`` -> field of :data:`ckconv.model.config.PARAMETERS` -> value.
DEFAULTS: Mapping[str, Mapping[str, int | float]] = {
    "llama": {"norm_eps": 1e-6, "context_length": 2048},
    "mistral": {"num_kv_heads": 8, "norm_eps": 1e-6, "context_length": 131_072, "sliding_window": 4096},
    "mixtral": {
        "num_kv_heads": 8,
        "norm_eps": 1e-5,
        "context_length": 131_072,
        "rope_theta": 1e6,
        "num_experts": 8,
        "experts_used": 2,
    },
    "qwen2": {"num_kv_heads": 32, **_QWEN},
    "qwen3": {"num_kv_heads": 32, "head_dim": 128, **_QWEN},
    "qwen3_moe": {"num_kv_heads": 4, "num_experts": 128, "experts_used": 8, "expert_ffn_size": 768, **_QWEN},
    "gemma3_text": {
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 256,
        "norm_eps": 1e-6,
        "context_length": 131_072,
        "rope_theta": 1e6,
        "sliding_window": 4096,
    },
    "phi3": {"norm_eps": 1e-5, "context_length": 4096},
    "gpt2": {"norm_eps": 1e-5, "context_length": 1024},
}

#: Gemma 3 scales attention by one over the root of this.
GEMMA3_ATTENTION_SCALAR = 256
