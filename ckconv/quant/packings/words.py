"""Codes in words of 32 bits, where neighbors in a word are rows of the matrix, and such words of codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckconv.quant.codec import Rows


def along_rows(words: Rows, bits: int, places: Sequence[int] = ()) -> Rows:
    """Words ``[n, 4 * columns]`` that hold the codes of ``32 / bits`` rows each -> uint8 rows.

    Args:
        places: which code of a word is each of those rows; lowest bits first, unless it is given.
    """
    import numpy as np

    stored = words.reshape(len(words), -1, 4)
    codes = np.empty((len(words), 32 // bits, stored.shape[1]), np.uint8)
    for row, place in enumerate(places or range(32 // bits)):
        byte, shift = divmod(place * bits, 8)  # no code is in two bytes
        np.right_shift(stored[..., byte], np.uint8(shift), out=codes[:, row])
    if bits < 8:
        codes &= np.uint8((1 << bits) - 1)
    return codes.reshape(-1, stored.shape[1])


def of_rows(codes: Rows, bits: int) -> Rows:
    """The inverse: uint8 rows, whole words of them -> words ``[n * bits / 32, 4 * columns]``, lowest bits first."""
    import numpy as np

    each = codes.reshape(-1, 4, 8 // bits, codes.shape[1])  # words, bytes of a word, codes of a byte
    packed = each[:, :, 0].copy()
    for place in range(1, 8 // bits):
        packed |= each[:, :, place] << np.uint8(place * bits)
    return np.ascontiguousarray(packed.swapaxes(1, 2)).reshape(len(packed), -1)
