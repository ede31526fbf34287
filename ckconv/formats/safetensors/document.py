"""``config.json`` as transformers and mlx-lm read it, out of the canonical hyper-parameters.

RoPE is written in both styles, ``rope_theta`` with ``rope_scaling`` and ``rope_parameters``: transformers 4 and most of
mlx-lm's classes (0.32) know only the first, and take their own default where they find only the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.families.catalogue import FAMILIES
from ckconv.families.gemma3 import layers_of, local_theta_of, period_of, scalar_of

#: ``pad_token_id`` of ``Phi3Config``.
_PHI3_PADDING = 32_000


@dataclass(frozen=True, slots=True)
class Facts:
    """What a document says besides the hyper-parameters.

    Attributes:
        tied: there is no output head of its own.
        dtype: the type that the weights are to be loaded as, in torch's words; empty for none.
        switches: ``attention_bias`` and the like.
        rope_scaling: in Hugging Face's words.
        tokens: ids of special tokens, by key.
        source: what else the source says, under Hugging Face's keys.
        context: context length, 0 for the model's own.
    """

    tied: bool
    dtype: str
    switches: Mapping[str, bool] = field(default_factory=dict)
    rope_scaling: Mapping[str, Any] | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    context: int = 0


def build_document(config: ModelConfig, facts: Facts) -> dict[str, Any]:
    """The document, its keys sorted as transformers sorts them."""
    family = FAMILIES[config.family]
    windowed = config.family == "llama" and config.sliding_window is not None
    document: dict[str, Any] = {
        "architectures": ["MistralForCausalLM" if windowed else family.hf_class],
        "model_type": "mistral" if windowed else family.model_type,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": facts.tied,
        "use_cache": True,
        **_dtype(facts.dtype),
        **facts.switches,
        **facts.tokens,
    }
    document |= _decoder(config, facts) if family.rope else _gpt2(config)
    document |= _OWN.get(config.family, _nothing)(config, facts)
    return dict(sorted(document.items()))


def _dtype(name: str) -> dict[str, str]:
    # transformers 5 and late 4 read "dtype", older ones "torch_dtype".
    return {"dtype": name, "torch_dtype": name} if name else {}


def _decoder(config: ModelConfig, facts: Facts) -> dict[str, Any]:
    return {
        "attention_dropout": 0.0,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "max_position_embeddings": facts.context or config.context_length,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": _rope_parameters(config, facts.rope_scaling),
        "rope_scaling": dict(facts.rope_scaling) if facts.rope_scaling else None,
        "rope_theta": config.rope_theta,
        "sliding_window": config.sliding_window,
    }


def _rope_parameters(config: ModelConfig, scaling: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"rope_theta": config.rope_theta, **(scaling or {"rope_type": "default"})}


def _gpt2(config: ModelConfig) -> dict[str, Any]:
    return {
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm_eps,
        "n_ctx": config.context_length,
        "n_embd": config.hidden_size,
        "n_head": config.num_heads,
        "n_inner": None if config.ffn_size == 4 * config.hidden_size else config.ffn_size,
        "n_layer": config.num_layers,
        "n_positions": config.context_length,
        "scale_attn_weights": True,
    }


def _nothing(config: ModelConfig, facts: Facts) -> dict[str, Any]:
    return {}


def _mixtral(config: ModelConfig, facts: Facts) -> dict[str, Any]:
    return {
        "intermediate_size": config.expert_ffn_size or config.ffn_size,
        "num_experts_per_tok": config.experts_used,
        "num_local_experts": config.num_experts,
        "output_router_logits": False,
    }


def _qwen(config: ModelConfig, facts: Facts) -> dict[str, Any]:
    return {"use_sliding_window": config.sliding_window is not None, "max_window_layers": 0}


def _qwen3moe(config: ModelConfig, facts: Facts) -> dict[str, Any]:
    return {
        **_qwen(config, facts),
        "decoder_sparse_step": 1,
        "intermediate_size": config.ffn_size or config.expert_ffn_size,
        "mlp_only_layers": [],
        "moe_intermediate_size": config.expert_ffn_size or config.ffn_size,
        # llama.cpp always renormalises the weights of the chosen experts (llm_build_qwen3moe).
        "norm_topk_prob": True,
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.experts_used,
        "output_router_logits": False,
    }


def _gemma3(config: ModelConfig, facts: Facts) -> dict[str, Any]:
    kinds, local, scalar = layers_of(config), local_theta_of(config), scalar_of(config)
    period = period_of(kinds)
    return {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": config.final_cap or None,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": list(kinds),
        "query_pre_attn_scalar": int(scalar) if float(scalar).is_integer() else scalar,
        "rope_local_base_freq": local,
        "rope_parameters": {
            "full_attention": _rope_parameters(config, facts.rope_scaling),
            "sliding_attention": {"rope_theta": local, "rope_type": "default"},
        },
        "sliding_window": config.sliding_window or facts.context or config.context_length,
        **({"sliding_window_pattern": period} if period else {}),
    }


def _phi3(config: ModelConfig, facts: Facts) -> dict[str, Any]:
    original = facts.source.get("original_max_position_embeddings") or config.context_length
    # The class takes 32000 for a padding token that is not said, and is not built where the vocabulary ends before.
    padded = "pad_token_id" in facts.tokens or config.vocab_size > _PHI3_PADDING
    return {
        **({} if padded else {"pad_token_id": None}),
        "original_max_position_embeddings": original,
        "partial_rotary_factor": config.rotary_dim / config.head_dim,
    }


_OWN: Mapping[str, Callable[[ModelConfig, Facts], dict[str, Any]]] = {
    "mixtral": _mixtral,
    "qwen2": _qwen,
    "qwen3": _qwen,
    "qwen3moe": _qwen3moe,
    "gemma3": _gemma3,
    "phi3": _phi3,
}
