"""Decode stored rows to float32 and back: floats and ggml's blocks."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ckconv.core.dtypes import BF16, F16, F32, DType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.uint8]
    Floats = NDArray[np.float32]

#: Codes whose values are looked up at once.
_AT_ONCE = 1 << 16


def to_float32(rows: Rows, dtype: DType) -> Floats:
    """``[n, bytes]`` -> float32 ``[n, cols]``, exactly."""
    import numpy as np

    if dtype is F32:
        return rows.view(np.float32)
    if dtype is F16:
        return looked_up(_float16_values(), rows.view(np.uint16))
    if dtype is BF16:
        bits = rows.view(np.uint16).astype(np.uint32)
        bits <<= np.uint32(16)
        return bits.view(np.float32)
    if dtype.ggml is None:
        raise ValueError(f"{dtype} has no float32 values")
    if dtype.name in _LOWEST:
        return _lowest(rows, dtype)
    decoded = _by_libgguf(rows, dtype)
    if decoded is not None:
        return decoded
    import gguf.quants

    with np.errstate(all="ignore"):  # infinite or NaN scales are values too
        values: Floats = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(dtype.ggml))
    return values


#: Types that gguf does not decode, nor libgguf each of them -> of a code: what is multiplied with, what is added.
_LOWEST = {"Q1_0": (2, -1), "Q2_0": (1, -1)}


def _lowest(rows: Rows, dtype: DType) -> Floats:
    """Decode Q1_0 and Q2_0 (``dequantize_row_q1_0`` of ``ggml-quants.c``).

    ``d * (2 * code - 1)`` of one bit, ``d * (code - 1)`` of two.
    """
    import numpy as np

    from ckconv.quant import ggml

    times, plus = _LOWEST[dtype.name]
    blocks = ggml.of_bytes(rows, dtype)
    values = ggml.get_codes(blocks, dtype).astype(np.float32) * np.float32(times) + np.float32(plus)
    grouped = values.reshape(*blocks.shape, dtype.block)
    with np.errstate(all="ignore"):
        grouped *= np.ascontiguousarray(blocks["d"]).astype(np.float32)[..., None]
    return values


#: Types of which libgguf multiplies in another order than gguf: the same values, but a NaN may have the other sign.
_NAN_SIGNS = frozenset({"IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"})


@cache
def libgguf() -> ModuleType | None:
    """Return libgguf, if it is installed.

    Its decoders give the bits that gguf's give, several times as fast.

    Pieces are made side by side already (:mod:`ckconv.io.tiles`), and one that stays in a cache is decoded in less time
    than a thread takes to start: of its own the library is to start none, unless somebody has said how many.
    """
    os.environ.setdefault("LIBGGUF_NUM_THREADS", "1")  # it looks at every call
    try:
        return import_module("libgguf")
    except ImportError:
        return None


def _by_libgguf(rows: Rows, dtype: DType) -> Floats | None:
    """Decoded blocks; ``None`` where gguf has to decode them."""
    import numpy as np

    library = libgguf()
    if library is None or rows.shape[1] % dtype.size:
        return None
    columns = rows.shape[1] // dtype.size * dtype.block
    values = np.empty((len(rows), columns), np.float32)
    if values.size:
        library.dequantize_rows_into_raw(dtype.ggml, np.ascontiguousarray(rows), values, len(rows), columns)
    return None if dtype.name in _NAN_SIGNS and np.isnan(values).any() else values


@cache
def _float16_values() -> Floats:
    """Values of the 65,536 float16 numbers.

    Looking them up is twice as fast as numpy's own widening.
    """
    import numpy as np

    halves = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        values = halves.view(np.float16).astype(np.float32)
    # A NaN keeps its bits whatever the processor does to signaling ones, so that every number comes back.
    nan = halves[np.isnan(values)].astype(np.uint32)
    sign, payload = nan & np.uint32(0x8000), nan & np.uint32(0x3FF)
    values.view(np.uint32)[nan] = sign << np.uint32(16) | np.uint32(0x7F800000) | payload << np.uint32(13)
    return values


def looked_up(table: Floats, codes: NDArray[Any]) -> Floats:
    """Return ``table[codes]``, made of some codes at a time.

    numpy makes an index of eight bytes of each code first.
    """
    import numpy as np

    values = np.empty(codes.shape, np.float32)
    flat, out = codes.reshape(-1), values.reshape(-1)
    for start in range(0, flat.size, _AT_ONCE):
        table.take(flat[start : start + _AT_ONCE], out=out[start : start + _AT_ONCE], mode="clip")
    return values


def from_float32(floats: Floats, dtype: DType) -> tuple[Rows, int]:
    """float32 ``[n, cols]`` -> ``[n, bytes]``, and how many were rounded."""
    import numpy as np

    if dtype is F32:
        return np.ascontiguousarray(floats).view(np.uint8), 0
    bits = np.ascontiguousarray(floats).view(np.uint32)
    if dtype is BF16:
        halves = bits.view(np.uint16).reshape(*bits.shape, 2)  # the lower one first
        if not halves[..., 0].any():
            return np.ascontiguousarray(halves[..., 1]).view(np.uint8), 0
        # Round to nearest even on the upper half. A NaN must not round up to infinity: its upper half stays as it is,
        # and is made quiet where its payload was only in the lower one.
        back = bits >> np.uint32(16)
        back &= np.uint32(1)
        back += np.uint32(0x7FFF)
        back += bits
        back >>= np.uint32(16)
        narrow = back.astype(np.uint16)
        is_nan = np.isnan(bits.view(np.float32))
        if is_nan.any():
            upper = bits[is_nan] >> np.uint32(16)
            narrow[is_nan] = np.where(upper & np.uint32(0x7F), upper, upper | np.uint32(0x40))
            back = narrow.astype(np.uint32)
        back <<= np.uint32(16)
    else:
        with np.errstate(over="ignore", under="ignore"):
            narrow = floats.astype(np.float16).view(np.uint16)
        is_nan = np.isnan(floats)
        if is_nan.any():
            nan = bits[is_nan]
            payload = nan >> np.uint32(13) & np.uint32(0x3FF)
            quiet = np.where(payload, payload, np.uint32(0x200))
            narrow[is_nan] = nan >> np.uint32(16) & np.uint32(0x8000) | np.uint32(0x7C00) | quiet
        back = looked_up(_float16_values(), narrow).view(np.uint32)
    return np.ascontiguousarray(narrow).view(np.uint8), int(np.count_nonzero(back != bits))
