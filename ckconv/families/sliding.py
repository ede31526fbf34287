"""Layers with a window and a RoPE base, as engines expect them."""

from __future__ import annotations

from collections.abc import Iterator

from ckconv.core.config import ModelConfig
from ckconv.families.catalog import FAMILIES
from ckconv.families.functions import FULL, PERIOD, SLIDING, period_of, slides
from ckconv.families.parameters import scope_of

#: The RoPE base of the sliding layers, where nothing else is said (``Gemma3TextConfig`` of transformers 5).
LOCAL_ROPE_THETA = 10_000.0


def periodic(layers: int, period: int) -> tuple[str, ...]:
    """Every ``period``-th layer has full attention; 1: all, 0: none."""
    return tuple(slides(layers, period))


def layers_of(config: ModelConfig) -> tuple[str, ...]:
    """Which layers slide; the usual ones where the source does not say."""
    return config.layer_types or periodic(config.num_layers, PERIOD if config.sliding_window else 1)


def local_theta_of(config: ModelConfig) -> float:
    """The RoPE base of the sliding layers."""
    return config.local_rope_theta or LOCAL_ROPE_THETA


def unusual(config: ModelConfig) -> Iterator[str]:
    """Causality, caps and scales of attention that engines assume."""
    family = FAMILIES[config.family]
    scope = scope_of(family, config)
    if "causal" in family.parameters and not scope["causal"]:
        yield "is_causal = False"
    if "final_cap" in family.parameters and scope["final_cap"]:
        yield f"final_logit_softcapping = {scope['final_cap']:g}"
    if "query_scalar" in family.parameters and scope["query_scalar"] != config.head_dim:
        yield f"query_pre_attn_scalar = {scope['query_scalar']:g} beside head_dim = {config.head_dim}"


__all__ = [
    "FULL", "LOCAL_ROPE_THETA", "PERIOD", "SLIDING", "layers_of", "local_theta_of", "period_of", "periodic", "unusual",
]  # fmt: skip
