"""What only Gemma 3 has: layers with a sliding window and a RoPE base of their own, and a scale of attention.

Sources: ``Gemma3TextConfig`` of transformers 5, ``load_arch_hparams`` of llama.cpp's ``src/models/gemma3.cpp``,
``mlx_lm/models/gemma3_text.py`` 0.32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckconv.core.config import ModelConfig

SLIDING, FULL = "sliding_attention", "full_attention"
#: Where nothing else is said, every 6th layer attends to everything.
PERIOD = 6
#: The RoPE base of the sliding layers, where nothing else is said.
LOCAL_ROPE_THETA = 10_000.0
#: Layers of the one size whose attention llama.cpp scales by hidden / heads (``LLM_TYPE_27B``), not by the head size.
LAYERS_27B = 62


def periodic(layers: int, period: int) -> tuple[str, ...]:
    """Every ``period``-th layer attends to everything; 1: all of them, 0: none."""
    return tuple(FULL if period and (n + 1) % period == 0 else SLIDING for n in range(layers))


def period_of(kinds: Sequence[str]) -> int | None:
    """The period that gives these layers: above their number where all slide, ``None`` where there is none."""
    period = kinds.index(FULL) + 1 if FULL in kinds else max(PERIOD, len(kinds) + 1)
    return period if tuple(kinds) == periodic(len(kinds), period) else None


def pattern_words(format: str) -> str:
    """The keys that say how many layers there are and which of them slide."""
    if format == "gguf":
        return "gemma3.block_count, gemma3.attention.sliding_window_pattern"
    return "num_hidden_layers, layer_types, sliding_window_pattern"


def layers_of(config: ModelConfig) -> tuple[str, ...]:
    """Which layers slide; the usual ones where the source does not say."""
    return config.layer_types or periodic(config.num_layers, PERIOD if config.sliding_window else 1)


def local_theta_of(config: ModelConfig) -> float:
    """The RoPE base of the sliding layers."""
    return config.local_rope_theta or LOCAL_ROPE_THETA


def scalar_in_gguf(config: ModelConfig) -> float:
    """What llama.cpp divides attention by the root of: no key of a GGUF says it."""
    largest = config.num_layers == LAYERS_27B
    return float(config.hidden_size // config.num_heads if largest else config.head_dim)


def scalar_of(config: ModelConfig) -> float:
    """What attention is divided by the root of."""
    return config.query_scalar or scalar_in_gguf(config)


def unusual(config: ModelConfig) -> Iterator[str]:
    """What differs from every published Gemma 3 of this size, for engines that take that for granted."""
    if config.family != "gemma3":
        return
    if config.final_cap:
        yield f"final_logit_softcapping = {config.final_cap:g}"
    if scalar_of(config) != config.head_dim:
        yield f"query_pre_attn_scalar = {scalar_of(config):g} beside head_dim = {config.head_dim}"
