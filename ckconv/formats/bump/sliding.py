"""Families with layers that slide in bump 5: the engine rotates all layers by one base, and slides in all of them.

Source: logits of v7 and v8 against a forward pass with one base and a window in every layer, and against transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.families.schema import Family
from ckconv.families.sliding import (
    FULL,
    LOCAL_ROPE_THETA,
    PERIOD,
    SLIDING,
    layers_of,
    local_theta_of,
    period_of,
    periodic,
)
from ckconv.formats.bump.engines import TEMPLATED
from ckconv.plan.steps import Reason


def engine_reasons(config: ModelConfig, context: int) -> Iterator[Reason]:
    """Why the engine would compute something else than the model.

    Args:
        context: context length in the output.
    """
    layers, local, window = layers_of(config), local_theta_of(config), config.sliding_window
    if SLIDING in layers and local != config.rope_theta:
        yield Reason(
            f"RoPE's base is {local:,.9g} in {layers.count(SLIDING)} of {len(layers)} layers; the engine rotates all "
            f"layers of {config.family} by {config.rope_theta:,.9g}"
        )
    if window and window < context and FULL in layers:
        yield Reason(
            f"{layers.count(FULL)} of {len(layers)} layers attend to all {context:,} tokens; the engine slides over "
            f"{window:,} in every layer of {config.family}",
            f"--context {window} makes them the same",
        )


def carried(config: ModelConfig, family: Family) -> dict[str, Any]:
    """Keys of the documents that the engine does not need, and a reader does who makes the model again."""
    row = family.engines.get(TEMPLATED)
    if row is None or not row.slides:
        return {}
    found: dict[str, Any] = {}
    layers, local = layers_of(config), local_theta_of(config)
    if local != LOCAL_ROPE_THETA:
        found["rope_local_base_freq"] = local
    if config.sliding_window and layers != periodic(len(layers), PERIOD):
        found["sliding_window_pattern"] = period_of(layers)
    return found
