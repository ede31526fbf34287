"""Codes of a few bits: one bit stream a row, or words of 32 bits.

The lowest bits are the first code.

Codes of 3, 5, 6 or 7 bits do not fill a word. Where they are a ``STREAM``, they go over its end: 32 of them take as
many words as a code has bits, a *run*. GPTQModel's ``gptq_p`` has ``PLANES`` in a run, of the low two or four bits of
all 32 codes, then of the next (``planar_packing.py``, 7.7). Before version 0.19 compressed-tensors had ``WHOLE``
codes in a word and its last bits empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from ckconv.core.arrays import Bytes, np
from ckconv.errors import CkconvError

# -- Pack and unpack rows of codes of a few bits: one bit stream a row -------------------------------------------------


@cache
def _lanes(bits: int) -> tuple[np.dtype[Any], int, tuple[tuple[int, Any, Any, Any], ...]]:
    """Steps that spread packed codes to one byte each inside one integer.

    A lane holds the fewest codes that fill whole packed bytes, one byte for each code. Each step moves the
    upper half of every run of ``2 * half`` codes up to where its bytes begin.

    Returns:
        The lane's type, the packed bytes it is made from, and for each step, from coarse to fine: the shift, the
        mask of the lower halves, that of the upper halves when spread, and when packed.
    """
    codes = 8 // math.gcd(bits, 8)
    lane = np.dtype(f"<u{codes}")
    steps = []
    half = codes // 2
    while half:
        low = sum(((1 << half * bits) - 1) << start for start in range(0, 8 * codes, 16 * half))
        masks = (low, low << 8 * half, low << half * bits)
        steps.append((half * (8 - bits), *(lane.type(mask) for mask in masks)))
        half //= 2
    return lane, codes * bits // 8, tuple(steps)


def unpack(weight: Bytes, bits: int) -> Bytes:
    """Packed rows -> codes uint8 ``[rows, bytes * 8 / bits]``.

    With 8 bits the result may be ``weight`` itself.
    """
    weight = np.ascontiguousarray(weight)
    if bits == 8:
        return weight
    lane, packed, steps = _lanes(bits)
    rows = weight.shape[0]
    if packed == 1:
        x = weight.astype(lane)
    else:
        x = np.zeros((rows, weight.shape[1] // packed), lane)
        spread, source = x.view(np.uint8).reshape(rows, -1, lane.itemsize), weight.reshape(rows, -1, packed)
        for i in range(packed):
            spread[..., i] = source[..., i]
    for shift, low, high, _ in steps:
        upper = x << lane.type(shift)
        upper &= high
        x &= low
        x |= upper
    return x.view(np.uint8).reshape(rows, -1)


def pack(codes: Bytes, bits: int) -> Bytes:
    """Codes uint8, each below ``2 ** bits`` -> ``[rows, columns * bits / 8]``.

    The inverse of :func:`unpack`.

    Raises:
        CkconvError: a code needs more bits.
    """
    if bits == 8:
        return codes
    if codes.size and (largest := int(codes.max())) >> bits:
        raise CkconvError("internal.code", f"code {largest} does not fit {bits} bits", found=largest, allowed=1 << bits)
    lane, packed, steps = _lanes(bits)
    rows = codes.shape[0]
    x = np.array(codes, order="C").view(lane)
    for shift, low, _, high in reversed(steps):
        upper = x >> lane.type(shift)
        upper &= high
        x &= low
        x |= upper
    if packed == 1:
        return x.astype(np.uint8)
    out = np.empty((rows, x.shape[1], packed), np.uint8)
    spread = x.view(np.uint8).reshape(rows, -1, lane.itemsize)
    for i in range(packed):
        out[..., i] = spread[..., i]
    return out.reshape(rows, -1)


# -- Codes in words of 32 bits, along rows or along columns ------------------------------------------------------------

STREAM, PLANES, WHOLE = "stream", "planes", "whole"

#: Bits of codes that fill a word, of which none is in two bytes.
FILLING = (1, 2, 4, 8)

#: Bits of a code -> those of its planes, the lowest first.
_PLANES = {3: (2, 1), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1)}


def run(bits: int, form: str = STREAM) -> int:
    """Words of a run: the fewest that hold whole codes."""
    return 1 if bits in FILLING or form == WHOLE else bits


def together(bits: int, form: str = STREAM) -> int:
    """Codes of a run."""
    return 32 * run(bits, form) // bits


def along_rows(words: Bytes, bits: int, places: Sequence[int] = (), form: str = STREAM) -> Bytes:
    """Runs of words, each for :func:`together` rows -> uint8 rows.

    Words are ``[n, columns * bytes of a run]``.

    Args:
        places: which code of every so many is each of those rows; in order, unless it is given.
    """
    if bits not in FILLING:
        many = together(bits, form)
        codes = _codes(words, bits, form).reshape(len(words), -1, many).swapaxes(1, 2)
        if places:
            codes = codes.reshape(len(words), -1, len(places), codes.shape[2])[:, :, list(places)]
        return np.ascontiguousarray(codes).reshape(len(words) * many, -1)
    stored = np.ascontiguousarray(words).view("<u4")
    codes = np.empty((len(words), 32 // bits, stored.shape[1]), np.uint8)
    for row, place in enumerate(places or range(32 // bits)):
        codes[:, row] = stored >> np.uint32(place * bits)
    if bits < 8:
        codes &= np.uint8((1 << bits) - 1)
    return codes.reshape(-1, stored.shape[1])


def along_columns(words: Bytes, bits: int, form: str = STREAM) -> Bytes:
    """Bytes of words along the columns -> uint8 rows.

    They have as many codes as the words hold, or some more.
    """
    if bits in FILLING:
        return unpack(words, bits)
    short = -words.shape[1] % (4 * run(bits, form))
    return _codes(np.pad(words, ((0, 0), (0, short))) if short else words, bits, form).reshape(len(words), -1)


def _codes(words: Bytes, bits: int, form: str) -> Bytes:
    """Whole runs of words -> the codes of each run ``[n, together]``."""
    runs = words.reshape(-1, 4 * run(bits, form))
    if form == STREAM:
        return unpack(runs, bits)
    codes = np.zeros((len(runs), together(bits, form)), np.uint8)
    if form == WHOLE:
        for place in range(codes.shape[1]):
            codes[:, place] = runs.view("<u4")[:, 0] >> np.uint32(place * bits) & np.uint32((1 << bits) - 1)
        return codes
    at, low = 0, 0
    for width in _PLANES[bits]:
        codes |= unpack(runs[:, at : at + 4 * width], width) << np.uint8(low)
        at, low = at + 4 * width, low + width
    return codes


def of_rows(codes: Bytes, bits: int) -> Bytes:
    """uint8 rows -> words ``[n * bits / 32, 4 * columns]``, lowest bits first.

    The inverse of :func:`along_rows` for whole words.
    """
    each = codes.reshape(-1, 4, 8 // bits, codes.shape[1])  # words, bytes of a word, codes of a byte
    packed = each[:, :, 0].copy()
    for place in range(1, 8 // bits):
        packed |= each[:, :, place] << np.uint8(place * bits)
    return np.ascontiguousarray(packed.swapaxes(1, 2)).reshape(len(packed), -1)
