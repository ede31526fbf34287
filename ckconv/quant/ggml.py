"""Scales, minima and codes of GGUF blocks that hold plain codes.

Block structs and the order of codes in them: ``ggml/src/ggml-common.h``; their decoders:
``dequantize_row_*`` in ``ggml/src/ggml-quants.c``. All numbers are little-endian.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckconv.core.arrays import Blocks, Bytes, np
from ckconv.quant.codes import pack, unpack

if TYPE_CHECKING:
    from ckconv.core.dtypes import DType


#: Fields of one block, in order: ``d`` the scale, ``m`` the minimum, ``qs`` the lower four bits (or all eight) of the
#: codes, ``qh`` their fifth bits. ``qs`` is a run of bytes, here in words of eight.
_FIELDS: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {
    "Q4_0": [("d", "<f2", ()), ("qs", "<u8", (2,))],
    "Q4_1": [("d", "<f2", ()), ("m", "<f2", ()), ("qs", "<u8", (2,))],
    "Q5_0": [("d", "<f2", ()), ("qh", "u1", (4,)), ("qs", "<u8", (2,))],
    "Q5_1": [("d", "<f2", ()), ("m", "<f2", ()), ("qh", "u1", (4,)), ("qs", "<u8", (2,))],
    "Q8_0": [("d", "<f2", ()), ("qs", "<u8", (4,))],
    "IQ4_NL": [("d", "<f2", ()), ("qs", "<u8", (2,))],
    "TQ2_0": [("qs", "u1", (2, 32)), ("d", "<f2", ())],
    "Q1_0": [("d", "<f2", ()), ("qs", "u1", (16,))],
    "Q2_0": [("d", "<f2", ()), ("qs", "u1", (16,))],
    "MXFP4": [("d", "u1", (1,)), ("qs", "<u8", (2,))],
    "NVFP4": [("d", "u1", (4,)), ("qs", "<u8", (4,))],
}

#: Elements whose 4-bit codes are arranged together, where that is not the whole block: byte ``j`` of a run holds
#: element ``j`` in its lower half and element ``j + run / 2`` in its upper one.
_RUN = {"NVFP4": 16}

#: Types whose codes are one stream of bits, the lowest first, and the bits of a code.
STREAMS = {"Q1_0": 1, "Q2_0": 2}

#: q - 128 as a signed byte is q with its highest bit flipped.
_SIGNS = 0x8080808080808080

#: The lower four bits of eight codes, and their fifth ones.
_NIBBLES = 0x0F0F0F0F0F0F0F0F
_FIFTHS = 0x1010101010101010


def empty(rows: int, columns: int, dtype: DType) -> Blocks:
    """Blocks ``[rows, columns / block]`` to be filled."""
    return np.empty((rows, columns // dtype.block), _struct(dtype))


def of_bytes(raw: Bytes, dtype: DType) -> Blocks:
    """View rows ``[rows, bytes]`` as blocks ``[rows, bytes / dtype.size]``."""
    return np.ascontiguousarray(raw).view(_struct(dtype))


def to_bytes(blocks: Blocks) -> Bytes:
    """The inverse of :func:`of_bytes`."""
    return blocks.view(np.uint8).reshape(blocks.shape[0], -1)


def put_codes(blocks: Blocks, codes: Bytes, dtype: DType) -> None:
    """Set the codes of all blocks, uint8 ``[rows, columns]``.

    Those of Q8_0 are its signed numbers plus 128.
    """
    if dtype.name == "TQ2_0":
        first, second, third, fourth = np.moveaxis(codes.reshape(*blocks.shape, 2, 4, 32), -2, 0)
        blocks["qs"] = first | second << np.uint8(2) | third << np.uint8(4) | fourth << np.uint8(6)
        return
    if bits := STREAMS.get(dtype.name):
        blocks["qs"] = pack(codes, bits).reshape(blocks["qs"].shape)
        return
    words = codes.view("<u8").reshape(blocks.size, -1)
    if dtype.name == "Q8_0":
        blocks["qs"] = (words ^ np.uint64(_SIGNS)).reshape(blocks["qs"].shape)
        return
    if "qh" in _names(dtype):
        fifth = (words & np.uint64(_FIFTHS)).view(np.uint8).reshape(-1)
        blocks["qh"] = np.packbits(fifth, bitorder="little").reshape(blocks["qh"].shape)
        words = words & np.uint64(_NIBBLES)
    packed = np.empty((blocks.size, words.shape[1] // 2), "<u8")
    for at, low, high in _word_places(dtype):
        np.left_shift(words[:, high], np.uint64(4), out=packed[:, at])
        packed[:, at] |= words[:, low]
    blocks["qs"] = packed.reshape(blocks["qs"].shape)


def get_codes(blocks: Blocks, dtype: DType) -> Bytes:
    """Return the codes of all blocks, a new array uint8 ``[rows, columns]``.

    The inverse of :func:`put_codes`.
    """
    rows = blocks.shape[0]
    if bits := STREAMS.get(dtype.name):
        return unpack(blocks["qs"].reshape(rows, -1), bits)
    packed = np.ascontiguousarray(blocks["qs"]).reshape(blocks.size, -1)
    if dtype.name == "Q8_0":
        return (packed ^ np.uint64(_SIGNS)).view(np.uint8).reshape(rows, -1)
    words = np.empty((blocks.size, packed.shape[1] * 2), "<u8")
    for at, low, high in _word_places(dtype):
        words[:, low] = packed[:, at]
        np.right_shift(packed[:, at], np.uint64(4), out=words[:, high])
    words &= np.uint64(_NIBBLES)
    if "qh" in _names(dtype):
        fifth = np.unpackbits(np.ascontiguousarray(blocks["qh"]).reshape(-1), bitorder="little").view("<u8")
        fifth <<= np.uint64(4)
        words |= fifth.reshape(words.shape)
    return words.view(np.uint8).reshape(rows, -1)


def _word_places(dtype: DType) -> list[tuple[int, int, int]]:
    """Places of words of packed 4-bit codes, and of their two halves.

    For each word its place, and those of the words of its lower and its upper codes.
    """
    run = _RUN.get(dtype.name, dtype.block) // 8
    half = run // 2
    return [
        (start // 2 + i, start + i, start + half + i) for start in range(0, dtype.block // 8, run) for i in range(half)
    ]


def _names(dtype: DType) -> list[str]:
    return [name for name, *_ in _FIELDS[dtype.name]]


def _struct(dtype: DType) -> np.dtype[Any]:
    return np.dtype(_FIELDS[dtype.name])
