"""The numbers of a ``rope_scaling`` object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckconv.core.config import ModelConfig

#: The largest float32, the type of such numbers in GGUF, and the smallest above 0.
MAX_FLOAT32, MIN_FLOAT32 = (2 - 2**-23) * 2.0**127, 2.0**-149

#: What Llama 3's scaling needs; transformers has no defaults for them.
LLAMA3_NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def scaled(kind: str, config: ModelConfig) -> str:
    """That RoPE is scaled, and where a configuration says so."""
    if config.raw:
        return f"RoPE is scaled (rope_type {kind} of rope_scaling or rope_parameters)"
    keys = ("rope_factors_long.weight",) if kind == "longrope" else SCALING_KEYS
    return f"RoPE is scaled ({kind} by {', '.join(keys)})"


#: What scales RoPE in a GGUF.
SCALING_KEYS = ("rope.scaling.type", "rope.scaling.factor", "rope.scale_linear")


def starts_behind(scaling: Mapping[str, Any], config: ModelConfig, context: int) -> bool:
    """The scaling changes no angle within an output's context length.

    A dynamic one starts behind the model's own (``dynamic_frequency_update`` of transformers, ``DynamicNTKScalingRoPE``
    of mlx-lm).
    """
    return scaling.get("rope_type") == "dynamic" and 0 < context <= config.context_length


def scales_by_one(scaling: Mapping[str, Any]) -> bool:
    """Every angle is what it is without the scaling."""
    numbers = (scaling.get("factor"), scaling.get("attention_factor", 1))
    return scaling.get("rope_type") in ("linear", "yarn") and numbers == (1, 1)


def behind_note(config: ModelConfig) -> str:
    """That a scaling is left out because it starts behind the output's context."""
    return f"{scaled('dynamic', config)} behind {config.context_length:,} tokens only: nothing is scaled up to there"


def longrope_note(config: ModelConfig) -> str:
    """When llama.cpp and transformers turn by the long factors (``llama_model::get_rope_factors``)."""
    original = int((config.rope_scaling or {})["original_max_position_embeddings"])
    both = f"of more than {original:,} tokens"
    return f"longrope: llama.cpp uses the long factors for a context {both}, transformers in a sequence {both}"


def same_factors_always(scaling: Mapping[str, Any]) -> bool:
    """LongRoPE whose two sets of factors are one: of others mlx-lm takes the long ones for short sequences, too."""
    return scaling.get("rope_type") == "longrope" and scaling.get("long_factor") == scaling.get("short_factor")


def positive_numbers(scaling: Mapping[str, Any], keys: Sequence[str]) -> list[float] | None:
    """The numbers under these keys, or ``None`` where one is missing, is none, or is not above 0 as a float32."""
    found = [scaling.get(key) for key in keys]
    for number in found:
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= MAX_FLOAT32:
            return None
    return [float(number) for number in found if number is not None]


#: Numbers that transformers' YaRN takes where they are not said (``_compute_yarn_parameters``).
YARN_DEFAULTS: Mapping[str, Any] = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}

#: What each type of scaling computes with; other keys are read by nobody.
_COMPUTES: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": LLAMA3_NUMBERS,
    "yarn": (
        *("factor", "original_max_position_embeddings", "attention_factor", "llama_4_scaling_beta"),
        *YARN_DEFAULTS,
    ),
}


def effective_scaling(scaling: Mapping[str, Any], context: int, *, latent: bool) -> dict[str, Any]:
    """A scaling without what says nothing: two that are equal here compute the same.

    Args:
        context: the model's context length, which YaRN takes for the original one where none is said.
        latent: attention over latent vectors, which ``mscale_all_dim`` weighs besides.
    """
    from ckconv.core.config import shortest_float32

    kind = scaling.get("rope_type")
    names = _COMPUTES.get(str(kind), tuple(key for key in scaling if key not in ("type", "rope_theta", "rope_type")))
    said = {"original_max_position_embeddings": context, **YARN_DEFAULTS} if kind == "yarn" else {}
    said |= {key: scaling[key] for key in names if scaling.get(key) is not None}
    if kind == "yarn" and scaling.get("factor"):
        more = (scaling.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim"))
        said["attention_factor"] = yarn_scale(scaling["factor"], *more)
        said |= {"mscale_all_dim": scaling.get("mscale_all_dim")} if latent else {}

    def shortest(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [shortest(item) for item in value]
        return (
            shortest_float32(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value
        )

    return {"rope_type": kind, **{key: shortest(value) for key, value in said.items()}}


def yarn_scale(
    factor: float, attention: float | None = None, mscale: float | None = None, all_dim: float | None = None
) -> float:
    """What YaRN multiplies cosines and sines by.

    Source: ``_compute_yarn_parameters`` of transformers' modeling_rope_utils.py; ``mscale`` counts with
    ``mscale_all_dim`` only, and neither beside an ``attention_factor``.
    """
    if attention is not None:
        return float(attention)
    growth = 0.1 * math.log(factor) if factor > 1 else 0.0
    return (growth * mscale + 1.0) / (growth * all_dim + 1.0) if mscale and all_dim else growth + 1.0


def without_yarn_default(scaling: Mapping[str, Any]) -> dict[str, Any]:
    """YaRN without an ``attention_factor`` that is what its readers compute where none is said, in float32."""
    from ckconv.core.config import shortest_float32

    factor, said = scaling.get("factor"), scaling.get("attention_factor")
    if said is None or not factor:
        return dict(scaling)
    default = yarn_scale(factor, None, scaling.get("mscale"), scaling.get("mscale_all_dim"))
    kept = shortest_float32(float(said)) != shortest_float32(default)
    return {key: value for key, value in scaling.items() if kept or key != "attention_factor"}


#: Powers and quotients of float32 may differ by some units in the last place from library to library.
_TOLERANCE = 1e-6


def same_factors(one: bytes, other: bytes) -> bool:
    """Two contents of ``rope_freqs.weight`` are the same, but for what libraries round differently."""
    import numpy as np

    a, b = np.frombuffer(one, "<f4"), np.frombuffer(other, "<f4")
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=_TOLERANCE, atol=0))


def llama3_factors(config: ModelConfig) -> bytes | None:
    """The content of ``rope_freqs.weight``, ``[rotary_dim / 2]`` float32; ``None`` for a model scaled otherwise."""
    scaling = config.rope_scaling or {}
    numbers = positive_numbers(scaling, LLAMA3_NUMBERS) if scaling.get("rope_type") == "llama3" else None
    if numbers is None or config.rope_theta is None:
        return None
    from ckconv.core.llama3_rope import rope_factors

    factor, low, high, context = numbers
    made = rope_factors(config.rope_theta, config.rotary_dim, factor, low=low, high=high, context=int(context))
    return made.astype("<f4").tobytes()
