"""What the classes of transformers and mlx-lm take for a key that ``config.json`` does not have.

The hub's Gemma 3 checkpoints of 4 billion parameters and more name neither heads nor their size.

Sources: the configuration files of transformers 4.57 and 5.23, which agree on these; ``ModelArgs`` of mlx-lm 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping

from ckconv.core.key_table import MLX_LM, TRANSFORMERS

Defaults = Mapping[str, Mapping[str, int | float]]

_QWEN = {"norm_eps": 1e-6, "context_length": 32_768, "sliding_window": 4096}

_TRANSFORMERS: Defaults = {
    "llama": {"norm_eps": 1e-6, "context_length": 2048},
    "mistral": {"num_kv_heads": 8, "norm_eps": 1e-6, "context_length": 131_072, "sliding_window": 4096},
    "mixtral": {
        "num_kv_heads": 8,
        "norm_eps": 1e-5,
        "context_length": 131_072,
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
        "sliding_window": 4096,
    },
    "phi3": {"norm_eps": 1e-5, "context_length": 4096},
    "gpt2": {"norm_eps": 1e-5, "context_length": 1024},
}

_MLX_LM: Defaults = {
    "mixtral": {
        "num_layers": 32,
        "hidden_size": 4096,
        "ffn_size": 14_336,
        "num_heads": 32,
        "num_kv_heads": 8,
        "num_experts": 8,
        "experts_used": 2,
        "norm_eps": 1e-5,
    },
    "qwen2": {"context_length": 32_768},
    "gemma3_text": {
        "num_layers": 26,
        "hidden_size": 1152,
        "ffn_size": 6912,
        "num_heads": 4,
        "num_kv_heads": 1,
        "head_dim": 256,
        "norm_eps": 1e-6,
        "context_length": 32_768,
        "sliding_window": 512,
    },
    "phi3": {"context_length": 131_072},
    "gpt2": {"norm_eps": 1e-5},
}

#: Who reads -> ``model_type`` -> field of :data:`ckconv.core.config.PARAMETERS` -> value.
DEFAULTS: Mapping[str, Defaults] = {TRANSFORMERS: _TRANSFORMERS, MLX_LM: _MLX_LM}

#: Who reads -> ``model_type`` -> base of RoPE, where it is another than 10,000.
ROPE_THETAS: Mapping[str, Mapping[str, float]] = {
    TRANSFORMERS: {"mixtral": 1e6, "gemma3_text": 1e6},
    MLX_LM: {"mixtral": 1e6, "qwen2": 1e6, "gemma3_text": 1e6},
}

#: Who reads -> model types whose head is the embedding where ``tie_word_embeddings`` is not there; in the others it is
#: a matrix of its own.
TIED: Mapping[str, frozenset[str]] = {
    TRANSFORMERS: frozenset({"gemma3_text", "gemma3", "gpt2", "whisper"}),
    MLX_LM: frozenset({"llama", "mistral", "qwen2"}),
}

#: mlx-lm's classes that tie where no head is stored, whatever the configuration says.
TIED_BY_TENSORS: frozenset[str] = frozenset({"gemma3_text", "gemma3", "gpt2"})

#: Gemma 3 scales attention by one over the root of this.
GEMMA3_ATTENTION_SCALAR = 256
