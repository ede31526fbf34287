"""Numbers as files hold them, packed by numpy and the gguf package: nothing of ckconv is used."""

from __future__ import annotations

import gguf
import numpy as np


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes ``[rows, columns]`` as one stream of bits a row, lowest bit first, as MLX packs them."""
    wide = np.unpackbits(codes[..., None].astype(np.uint8), axis=-1, bitorder="little")
    assert not wide[..., bits:].any(), f"a code needs more than {bits} bits"
    return np.packbits(wide[..., :bits].reshape(len(codes), -1), axis=1, bitorder="little")


def raw_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values ``[rows, columns]`` as raw bytes of F32, F16 or BF16, rounded to nearest even."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "BF16":
        return np.asarray(gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)).view(np.uint8)
    with np.errstate(over="ignore"):  # infinity
        return values.astype({"F32": "<f4", "F16": "<f2"}[dtype]).view(np.uint8)
