"""Llama 3's RoPE scaling, which a configuration names by four numbers and a GGUF by a tensor of factors.

Source: ``LlamaModel.generate_extra_tensors`` of llama.cpp's converter; transformers' ``_compute_llama3_parameters``
divides the frequencies by the same factors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, ORIGINAL_CONTEXT = 1.0, 4.0, 8192

#: Powers and quotients of float32 may differ by some units in the last place from library to library.
_TOLERANCE = 1e-6


def rope_factors(
    theta: float,
    rotary_dim: int,
    factor: float,
    *,
    low: float = LOW_FREQ_FACTOR,
    high: float = HIGH_FREQ_FACTOR,
    context: int = ORIGINAL_CONTEXT,
) -> Floats:
    """What each of the ``rotary_dim / 2`` frequencies is divided by, as float32."""
    import numpy as np

    powers = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    frequencies = np.float32(1) / np.float32(theta) ** powers
    wavelengths = np.float32(2 * math.pi) / frequencies
    smooth = (np.float32(context) / wavelengths - np.float32(low)) / np.float32(high - low)
    between = np.float32(1) / ((np.float32(1) - smooth) / np.float32(factor) + smooth)
    made = np.where(wavelengths < context / high, np.float32(1), between)
    return np.where(wavelengths > context / low, np.float32(factor), made).astype(np.float32)


def rope_scaling_of(factors: Floats, theta: float, rotary_dim: int) -> dict[str, Any] | None:
    """The ``rope_scaling`` that gives these factors with Llama 3's own constants, ``None`` where none does."""
    import numpy as np

    if factors.shape != (rotary_dim // 2,) or not np.isfinite(factors).all() or factors.max() <= 1:
        return None
    # The slowest frequency is divided by the whole factor.
    factor = float(factors[-1])
    if not np.allclose(factors, rope_factors(theta, rotary_dim, factor), rtol=_TOLERANCE, atol=0):
        return None
    return {
        "factor": factor,
        "high_freq_factor": HIGH_FREQ_FACTOR,
        "low_freq_factor": LOW_FREQ_FACTOR,
        "original_max_position_embeddings": ORIGINAL_CONTEXT,
        "rope_type": "llama3",
    }
