"""What mlx-lm does with a ``rope_scaling``, and what it leaves out of it without a word.

Source: ``initialize_rope`` of mlx_lm/models/rope_utils.py, 0.32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckconv.model.huggingface_classes import ModelClass
from ckconv.plan.steps import Reason

_SHARED = frozenset({"rope_type", "type", "factor", "rope_theta", "original_max_position_embeddings"})

#: Scaling that mlx-lm computes as transformers does -> the keys that it reads. ``longrope`` is none: mlx-lm takes the
#: long factors from the first token on, transformers only for sequences longer than the original context.
_KEYS: Mapping[str, frozenset[str]] = {
    "linear": _SHARED,
    "dynamic": _SHARED,
    "llama3": _SHARED | {"low_freq_factor", "high_freq_factor"},
    "yarn": _SHARED | {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"},
}

#: Values under which transformers does what it does without the key.
_IDLE: Mapping[str, tuple[Any, ...]] = {"partial_rotary_factor": (None, 1, 1.0), "truncate": (None, True)}

#: Keys that transformers itself reads for no other scaling.
_OF_YARN_ONLY = frozenset({"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"})


#: What mlx-lm takes for a YaRN scaling without ``original_max_position_embeddings``; transformers: the model's context.
_YARN_CONTEXT = 4096


def rope_reasons(family: str, scaling: Mapping[str, Any], own: ModelClass, context: int) -> Iterator[Reason]:
    """Why mlx-lm would rotate by other angles than the configuration says.

    Args:
        context: the model's context length.
    """
    kind = str(scaling.get("rope_type"))
    if not own.scales_rope:
        yield Reason(f"mlx-lm's {family} does not scale RoPE as the configuration says ({kind})")
        return
    if kind not in _KEYS:
        yield Reason(f"RoPE is scaled ({kind}), which mlx-lm does not do as transformers does")
        return
    if kind == "yarn" and not scaling.get("original_max_position_embeddings") and context != _YARN_CONTEXT:
        yield Reason(
            f"the scaling of RoPE (yarn) names no original context: mlx-lm takes {_YARN_CONTEXT}, not {context}"
        )
    for key, value in sorted(scaling.items()):
        idle = value in _IDLE.get(key, (None,)) or (kind != "yarn" and key in _OF_YARN_ONLY)
        if key not in _KEYS[kind] and not idle:
            yield Reason(f"the scaling of RoPE ({kind}) has {key} = {value!r}, which mlx-lm does not read")
