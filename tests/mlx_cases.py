"""Weights from a seed, and what ``mlx.core.quantize`` makes of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

KINDS = [("affine", bits, group) for bits in (1, 2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
KINDS += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]

#: ``F16 affine 4 64`` -> what is asked for.
CASES = {
    f"{number} {mode} {bits} {group}": (number, mode, bits, group)
    for number in ("F32", "BF16", "F16")
    for mode, bits, group in KINDS
}


def weights(number: str) -> np.ndarray:
    """Float32 values that are numbers of the type: of many sizes, rows of one value, ties, zeros of both signs."""
    rng = np.random.default_rng(11)
    rows = rng.integers(-(1 << 20), 1 << 20, (96, 512)).astype(np.float32) * np.float32(2.0**-25)
    rows[0], rows[1], rows[2], rows[3, ::2] = 0, 0.5, -0.25, -0.0
    rows[4], rows[5] = np.abs(rows[4]), -np.abs(rows[5])
    rows[6:14] = rng.integers(-24, 25, (8, 512)).astype(np.float32) * np.float32(0.25)
    rows[14:30] *= np.exp2(rng.integers(-14, 9, (16, 1))).astype(np.float32)
    rows[30, :32] = 0
    if number == "BF16":
        return (rows.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return rows.astype(np.float16).astype(np.float32) if number == "F16" else rows


def by_mlx(name: str) -> list[np.ndarray]:
    import mlx.core as mx

    number, mode, bits, group = CASES[name]
    kinds = {"F32": mx.float32, "BF16": mx.bfloat16, "F16": mx.float16}
    made = mx.quantize(mx.array(weights(number)).astype(kinds[number]), group_size=group, bits=bits, mode=mode)
    return [np.array(array.view(mx.uint8)) for array in made]


def digest(arrays: Sequence[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
