"""Codes in words of 32 bits, along rows or along columns.

The lowest bits are the first code.

Codes of 3, 5, 6 or 7 bits do not fill a word. Where they are a ``STREAM``, they go over its end: 32 of them take as
many words as a code has bits, a *run*. GPTQModel's ``gptq_p`` has ``PLANES`` in a run, of the low two or four bits of
all 32 codes, then of the next (``planar_packing.py``, 7.7). Before version 0.19 compressed-tensors had ``WHOLE``
codes in a word and its last bits empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckconv.quant.codes import unpack

if TYPE_CHECKING:
    from ckconv.quant.codec import Rows

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


def along_rows(words: Rows, bits: int, places: Sequence[int] = (), form: str = STREAM) -> Rows:
    """Runs of words, each for :func:`together` rows -> uint8 rows.

    Words are ``[n, columns * bytes of a run]``.

    Args:
        places: which code of every so many is each of those rows; in order, unless it is given.
    """
    import numpy as np

    if bits not in FILLING:
        many = together(bits, form)
        codes = _codes(words, bits, form).reshape(len(words), -1, many).swapaxes(1, 2)
        if places:
            codes = codes.reshape(len(words), -1, len(places), codes.shape[2])[:, :, list(places)]
        return np.ascontiguousarray(codes).reshape(len(words) * many, -1)
    stored = words.reshape(len(words), -1, 4)
    codes = np.empty((len(words), 32 // bits, stored.shape[1]), np.uint8)
    for row, place in enumerate(places or range(32 // bits)):
        byte, shift = divmod(place * bits, 8)
        np.right_shift(stored[..., byte], np.uint8(shift), out=codes[:, row])
    if bits < 8:
        codes &= np.uint8((1 << bits) - 1)
    return codes.reshape(-1, stored.shape[1])


def along_columns(words: Rows, bits: int, form: str = STREAM) -> Rows:
    """Rows of words along the columns -> uint8 rows.

    They have as many codes as the words hold, or some more.
    """
    import numpy as np

    if bits in FILLING:
        return unpack(words, bits)
    short = -words.shape[1] % (4 * run(bits, form))
    return _codes(np.pad(words, ((0, 0), (0, short))) if short else words, bits, form).reshape(len(words), -1)


def _codes(words: Rows, bits: int, form: str) -> Rows:
    """Whole runs of words -> the codes of each run ``[n, together]``."""
    import numpy as np

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


def of_rows(codes: Rows, bits: int) -> Rows:
    """uint8 rows -> words ``[n * bits / 32, 4 * columns]``, lowest bits first.

    The inverse of :func:`along_rows` for whole words.
    """
    import numpy as np

    each = codes.reshape(-1, 4, 8 // bits, codes.shape[1])  # words, bytes of a word, codes of a byte
    packed = each[:, :, 0].copy()
    for place in range(1, 8 // bits):
        packed |= each[:, :, place] << np.uint8(place * bits)
    return np.ascontiguousarray(packed.swapaxes(1, 2)).reshape(len(packed), -1)
