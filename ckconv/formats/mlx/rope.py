"""What mlx-lm does with a ``rope_scaling``, and what it leaves out of it without a word.

Source: ``initialize_rope`` of mlx_lm/models/rope_utils.py, 0.32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckconv.core.config import ModelConfig, same_factors_always, scaled
from ckconv.families.catalogue import FAMILIES
from ckconv.families.engine_rows import Engine
from ckconv.families.rope_keys import ROPE_KEYS
from ckconv.plan.steps import Reason

#: Scaling that mlx-lm computes as transformers does -> the keys that it reads. It takes the long factors
#: of ``longrope`` from the first token on, transformers only for sequences longer than the original context.
_KEYS: Mapping[str, frozenset[str]] = {
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "llama3": frozenset({"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}),
    "yarn": frozenset(
        {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
    ),
    "longrope": frozenset({"long_factor", "short_factor", "original_max_position_embeddings"}),
}

#: What mlx-lm takes for a YaRN scaling without ``original_max_position_embeddings``.
_YARN_CONTEXT = 4096

_NAMES = frozenset({"rope_type", "type", "rope_theta"})


def rope_reasons(config: ModelConfig, scaling: Mapping[str, Any], row: Engine) -> Iterator[Reason]:
    """Why mlx-lm would rotate by other angles than the configuration says."""
    kind = str(scaling.get("rope_type"))
    if row.scaling is not None and kind not in row.scaling:
        yield Reason(f"{scaled(kind, config)}, which mlx-lm's {config.family} does not do")
        return
    if kind not in _KEYS:
        yield Reason(f"{scaled(kind, config)}, which mlx-lm does not do as transformers does")
        return
    if kind == "longrope" and not same_factors_always(scaling):
        original = scaling["original_max_position_embeddings"]
        yield Reason(f"{scaled(kind, config)}; mlx-lm uses the long factors for the first {original:,} tokens, too")
    if kind == "yarn" and not scaling.get("original_max_position_embeddings"):
        yield Reason(
            f"{scaled(kind, config)} and names no original_max_position_embeddings: mlx-lm takes {_YARN_CONTEXT}"
        )
    known = _KEYS[kind] | _NAMES | {*row.reads, *FAMILIES[config.family].document.rope.noted}
    for key, value in sorted(scaling.items()):
        if key not in known and not ROPE_KEYS[kind].idle(key, value):
            yield Reason(f"{scaled(kind, config)} with {key} = {value!r}, which mlx-lm does not read")
