"""The numbers of a ``rope_scaling`` object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckconv.model.config import ModelConfig

#: The largest float32, the type of such numbers in GGUF.
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127

#: What Llama 3's scaling needs; transformers has no defaults for them.
LLAMA3_NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def positive_numbers(scaling: Mapping[str, Any], keys: Sequence[str]) -> list[float] | None:
    """The numbers under these keys, or ``None`` where one is missing, is none, or is not above 0 as a float32."""
    found = [scaling.get(key) for key in keys]
    for number in found:
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= MAX_FLOAT32:
            return None
    return [float(number) for number in found if number is not None]


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
    from ckconv.model.llama3_rope import rope_factors

    factor, low, high, context = numbers
    made = rope_factors(config.rope_theta, config.rotary_dim, factor, low=low, high=high, context=int(context))
    return made.astype("<f4").tobytes()
