"""Llama 3's RoPE scaling, which a configuration names by four numbers and a GGUF by a tensor of factors.

Source: ``LlamaModel.generate_extra_tensors`` of llama.cpp's converter; transformers' ``_compute_llama3_parameters``
divides the frequencies by the same factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ckconv.core.config import shortest_float32

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
    width = np.float32(high - low) or np.float32(1)  # Llama 4 Scout's two are equal, and no frequency is between them
    smooth = (np.float32(context) / wavelengths - np.float32(low)) / width
    with np.errstate(divide="ignore"):  # of what is not between them
        between = np.float32(1) / ((np.float32(1) - smooth) / np.float32(factor) + smooth)
    made = np.where(wavelengths < context / high, np.float32(1), between)
    return np.where(wavelengths > context / low, np.float32(factor), made).astype(np.float32)


def rope_scaling_of(factors: Floats, theta: float, rotary_dim: int) -> dict[str, Any] | None:
    """The ``rope_scaling`` that gives these factors: ``{}`` for factors that scale nothing, ``None`` where none does.

    Equal factors are a linear scaling. Between its two ends Llama 3's is ``1 / f = 1 / F + s * (1 - 1 / F)`` with
    ``s = (context / wavelength - low) / (high - low)``, so every factor between them gives the context, once the two
    constants are known: those of Llama 3 are tried first, then what a line through the factors says.
    """
    import numpy as np

    if factors.shape != (rotary_dim // 2,) or not np.isfinite(factors).all() or factors.min() <= 0:
        return None
    if (factors == factors[0]).all():
        factor = shortest_float32(float(factors[0]))
        return {} if factor == 1 else {"rope_type": "linear", "factor": factor}
    for found in _candidates(factors.astype(np.float64), theta, rotary_dim):
        made = rope_factors(theta, rotary_dim, found[0], low=found[1], high=found[2], context=found[3])
        if found[3] > 0 and np.allclose(factors, made, rtol=_TOLERANCE, atol=0):
            return {
                "factor": found[0],
                "high_freq_factor": found[2],
                "low_freq_factor": found[1],
                "original_max_position_embeddings": found[3],
                "rope_type": "llama3",
            }
    return None


def _candidates(factors: NDArray[Any], theta: float, rotary_dim: int) -> Iterator[tuple[float, float, float, int]]:
    """Factor, low, high and original context that may give these factors."""
    import numpy as np

    wavelengths = 2 * math.pi * theta ** (np.arange(0, rotary_dim, 2) / rotary_dim)
    # The slowest frequency is divided by the whole factor, unless no frequency is that slow.
    factor = float(factors[-1])
    if factor > 1:
        between = (factors > 1) & (factors < factor)
        smooth = (1 / factors[between] - 1 / factor) / (1 - 1 / factor)
        low, high = LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR
        yield factor, low, high, ORIGINAL_CONTEXT
        if between.any():
            contexts = wavelengths[between] * (smooth * (high - low) + low)
            yield factor, low, high, round(float(np.median(contexts)))
        if between.sum() == 1:
            yield from _one_between(factor, float(wavelengths[between][0]), float(smooth[0]), wavelengths, factors)
        if between.sum() > 1:
            yield from _fitted(factor, *np.polyfit(1 / wavelengths[between], smooth, 1))
        if not between.any():
            yield from _between(factor, wavelengths[factors == 1][-1], wavelengths[factors == factor][0])
    # Every frequency lies before the slow end: the line through two of them says the factor.
    slow = factors > 1
    if slow.sum() > 1:
        slope, start = np.polyfit(1 / wavelengths[slow], 1 / factors[slow], 1)
        ratio = LOW_FREQ_FACTOR / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)
        inverse = (start + ratio) / (1 + ratio)
        if 0 < inverse < 1:
            context = slope / (1 - inverse) * (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)
            rounded = round(1 / inverse, 3)
            yield rounded, LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, round(float(context))


def _fitted(factor: float, slope: float, start: float) -> Iterator[tuple[float, float, float, int]]:
    """Constants of the line ``s = slope / wavelength + start``; they are known up to a common multiple."""
    if slope <= 0 or start >= 0:
        return
    for low in (1.0, 0.5, 2.0, 4.0, 8.0):
        high = low - low / start
        for digits in (0, 1, 2, 4, 6):
            width = round(high, digits) - low
            if width > 0:
                yield factor, low, round(high, digits), round(slope * width)


def _one_between(
    factor: float, wavelength: float, smooth: float, wavelengths: NDArray[Any], factors: NDArray[Any]
) -> Iterator[tuple[float, float, float, int]]:
    """A single frequency lies between the ends: any context up to the next wavelength fits, with a constant for it."""
    slow = float(wavelengths[factors == factor].min())
    for context in (math.floor(slow), round(math.sqrt(wavelength * slow)), math.ceil(wavelength) + 1):
        if wavelength < context <= slow:
            yield factor, 1.0, 1 + (context / wavelength - 1) / smooth, context


def _between(factor: float, fast: float, slow: float) -> Iterator[tuple[float, float, float, int]]:
    """No frequency lies between the ends: any boundary between its neighbours will do."""
    if slow / fast >= HIGH_FREQ_FACTOR / LOW_FREQ_FACTOR:
        yield factor, LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, math.floor(slow)
    for context in (math.floor(slow), round(math.sqrt(fast * slow))):
        if context > fast:
            yield factor, 1.0, round(1 + (context / fast - 1) / 2, 4), context
