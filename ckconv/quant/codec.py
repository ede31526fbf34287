"""Codes of a few bits; stored rows to float32 and back: floats, blocks.

Block structs of plain codes, and the order of codes in them: ``ggml/src/ggml-common.h``; their decoders:
``dequantize_row_*`` in ``ggml/src/ggml-quants.c``. All numbers are little-endian.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from ckconv.core.layouts import BF16, F16, F32, DType
from ckconv.core.lazy import Blocks, Bytes, Floats, NDArray, Rows, np
from ckconv.errors import CkconvError

# -- Codes of a few bits: one bit stream a row, or words of 32 bits ----------------------------------------------------
# The lowest bits are the first code.
#
# Codes of 3, 5, 6 or 7 bits do not fill a word. Where they are a ``STREAM``, they go over its end: 32 of them take as
# many words as a code has bits, a *run*. GPTQModel's ``gptq_p`` has ``PLANES`` in a run, of the low two or four bits of
# all 32 codes, then of the next (``planar_packing.py``, 7.7). Before version 0.19 compressed-tensors had ``WHOLE``
# codes in a word and its last bits empty.


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


def along_rows(words: Bytes, bits: int, order: Sequence[int] = (), form: str = STREAM) -> Bytes:
    """Runs of words, each for :func:`together` rows -> uint8 rows.

    Words are ``[n, columns * bytes of a run]``.

    Args:
        order: which code of every so many is each of those rows; in order, unless it is given.
    """
    if bits not in FILLING:
        many = together(bits, form)
        codes = _codes(words, bits, form).reshape(len(words), -1, many).swapaxes(1, 2)
        if order:
            codes = codes.reshape(len(words), -1, len(order), codes.shape[2])[:, :, list(order)]
        return np.ascontiguousarray(codes).reshape(len(words) * many, -1)
    stored = np.ascontiguousarray(words).view("<u4")
    codes = np.empty((len(words), 32 // bits, stored.shape[1]), np.uint8)
    for row, place in enumerate(order or range(32 // bits)):
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


# -- Scales, minima and codes of GGUF blocks that hold plain codes -----------------------------------------------------

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
    """Set all blocks' codes, uint8 ``[rows, columns]``; Q8_0's plus 128."""
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
    for at, low, high in _word_positions(dtype):
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
    for at, low, high in _word_positions(dtype):
        words[:, low] = packed[:, at]
        np.right_shift(packed[:, at], np.uint64(4), out=words[:, high])
    words &= np.uint64(_NIBBLES)
    if "qh" in _names(dtype):
        fifth = np.unpackbits(np.ascontiguousarray(blocks["qh"]).reshape(-1), bitorder="little").view("<u8")
        fifth <<= np.uint64(4)
        words |= fifth.reshape(words.shape)
    return words.view(np.uint8).reshape(rows, -1)


def _word_positions(dtype: DType) -> list[tuple[int, int, int]]:
    """Positions of words of packed 4-bit codes, and of their two halves.

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


# -- Rows of numbers ---------------------------------------------------------------------------------------------------

#: Codes whose values are looked up at once.
_AT_ONCE = 1 << 16


def to_float32(rows: Rows, dtype: DType) -> Floats:
    """``[n, bytes]`` -> float32 ``[n, cols]``, exactly."""
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
    if dtype.name in _IN_GRIDS and rows.size:
        return _by_grid(rows, dtype)
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
    times, plus = _LOWEST[dtype.name]
    blocks = of_bytes(rows, dtype)
    values = get_codes(blocks, dtype).astype(np.float32) * np.float32(times) + np.float32(plus)
    grouped = values.reshape(*blocks.shape, dtype.block)
    with np.errstate(all="ignore"):
        grouped *= np.ascontiguousarray(blocks["d"]).astype(np.float32)[..., None]
    return values


#: Types of which libgguf multiplies in another order than gguf: the same values, but a NaN may have the other sign.
_NAN_SIGNS = frozenset({"IQ2_XXS"})


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
    """All 65,536 float16 values; a look-up is twice as fast as numpy."""
    halves = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        values = halves.view(np.float16).astype(np.float32)
    # A NaN keeps its bits whatever the processor does to signaling ones, so that every number comes back.
    nan = halves[np.isnan(values)].astype(np.uint32)
    sign, payload = nan & np.uint32(0x8000), nan & np.uint32(0x3FF)
    values.view(np.uint32)[nan] = sign << np.uint32(16) | np.uint32(0x7F800000) | payload << np.uint32(13)
    return values


def transposed(groups: Floats) -> Floats:
    """Copy values ``[n, columns]`` to contiguous ``[columns / 4, 4 n]``.

    Numpy compares whole vectors of these, in a fifth of the time that it takes for each group: see :func:`reduced`.
    """
    columns: Floats = np.array(groups.view(np.complex128).T, order="C").view(np.float32)
    return columns


def reduced(columns: Floats, by: np.ufunc) -> Floats:
    """Reduce each group of what :func:`transposed` made: ``[n]``."""
    ends: Floats = by.reduce(np.ascontiguousarray(by.reduce(columns).reshape(-1, 4).T))
    return ends


def looked_up(table: NDArray[Any], codes: NDArray[Any]) -> NDArray[Any]:
    """Return ``table[codes]``, made of some codes at a time.

    numpy makes an index of eight bytes of each code first.
    """
    values = np.empty(codes.shape, table.dtype)
    flat, out = codes.reshape(-1), values.reshape(-1)
    for start in range(0, flat.size, _AT_ONCE):
        table.take(flat[start : start + _AT_ONCE], out=out[start : start + _AT_ONCE], mode="clip")
    return values


def from_float32(floats: Floats, dtype: DType) -> tuple[Rows, int]:
    """float32 ``[n, cols]`` -> ``[n, bytes]``, and how many were rounded."""
    if dtype is F32:
        return np.ascontiguousarray(floats).view(np.uint8), 0
    bits = np.ascontiguousarray(floats).view(np.uint32)
    narrow, rounded = np.empty(bits.shape, np.uint16), 0
    flat, out, some = bits.reshape(-1), narrow.reshape(-1), _to_bfloat16 if dtype is BF16 else _to_float16
    for start in range(0, flat.size, _AT_ONCE):  # what is between them stays in a cache
        rounded += some(flat[start : start + _AT_ONCE], out[start : start + _AT_ONCE])
    return narrow.view(np.uint8), rounded


def _to_bfloat16(bits: NDArray[np.uint32], out: NDArray[np.uint16]) -> int:
    """Round to nearest even on the upper half; return how many were rounded."""
    halves = bits.view(np.uint16).reshape(-1, 2)  # the lower one first
    rounded = int(np.count_nonzero(bits & np.uint32(0xFFFF)))
    if not rounded:
        out[:] = halves[:, 1]
        return 0
    sums = bits >> np.uint32(16)
    sums &= np.uint32(1)
    sums += np.uint32(0x7FFF)
    sums += bits
    out[:] = sums.view(np.uint16)[1::2]
    # A NaN must not round up to infinity: its upper half stays as it is, and is made quiet where its payload was only
    # in the lower one.
    is_nan = np.isnan(bits.view(np.float32))
    if is_nan.any():
        upper = halves[is_nan, 1]
        out[is_nan] = np.where(upper & np.uint16(0x7F), upper, upper | np.uint16(0x40))
    return rounded


def _to_float16(bits: NDArray[np.uint32], out: NDArray[np.uint16]) -> int:
    """Round to nearest even; return how many were rounded.

    A power of two is added of which the last bit of the sum is the last one that a float16 of this size has, which
    rounds as float16 does: numpy's own narrowing looks at one number after the other.
    """
    magnitude = bits & np.uint32(0x7FFFFFFF)
    if magnitude.max(initial=0) >= 0x477FF000:  # 65,520 becomes infinite
        return _beyond_float16(bits, out)
    power = np.maximum(magnitude, np.uint32(0x38800000))  # below 2**-14 all have the same last bit
    power &= np.uint32(0x7F800000)
    power += np.uint32(13 << 23)
    total = magnitude.view(np.float32) + power.view(np.float32)
    rounded = int(np.count_nonzero(total - power.view(np.float32) != magnitude.view(np.float32)))
    codes = total.view(np.uint32)
    codes -= power
    power >>= np.uint32(13)
    codes += power
    codes -= np.uint32(126 << 10)
    np.right_shift(bits, np.uint32(16), out=power)
    power &= np.uint32(0x8000)
    codes |= power
    out[:] = codes
    return rounded


def _beyond_float16(bits: NDArray[np.uint32], out: NDArray[np.uint16]) -> int:
    """The same where some are infinite then, or no number."""
    floats = bits.view(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        out[:] = floats.astype(np.float16).view(np.uint16)
    is_nan = np.isnan(floats)
    if is_nan.any():
        nan = bits[is_nan]
        payload = nan >> np.uint32(13) & np.uint32(0x3FF)
        quiet = np.where(payload, payload, np.uint32(0x200))
        out[is_nan] = nan >> np.uint32(16) & np.uint32(0x8000) | np.uint32(0x7C00) | quiet
    return int(np.count_nonzero(looked_up(_float16_values(), out).view(np.uint32) != bits))


# -- Types whose codes are positions in a grid: IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S ---------------------------------------

# A row of the grid is eight whole numbers, of IQ3 four, which are looked up at once: a third of libgguf's time. They,
# and ``d`` times the scale of a group, have so few bits that products are exact, and the same in whatever order they
# are taken. Sources: ``dequantize_row_iq2_xs`` and its like in ``ggml-quants.c``; grids are those of the package gguf.

#: Type -> the fields of its block.
_IN_GRIDS: dict[str, list[tuple[Any, ...]]] = {
    "IQ2_XS": [("d", "<f2"), ("codes", "<u2", 32), ("scales", "u1", 8)],
    "IQ2_S": [("d", "<f2"), ("codes", "u1", 32), ("signs", "u1", 32), ("high", "u1", 8), ("scales", "u1", 8)],
    "IQ3_XXS": [("d", "<f2"), ("codes", "u1", 64), ("signs", "<u4", 8)],
    "IQ3_S": [("d", "<f2"), ("codes", "u1", 64), ("high", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)],
}


def _by_grid(rows: Rows, dtype: DType) -> Floats:
    blocks = np.ascontiguousarray(rows).view(np.dtype(_IN_GRIDS[dtype.name]))
    count, codes = blocks.size, blocks["codes"]
    if dtype.name == "IQ2_XS":
        negative = _negative(seven=True).take(codes >> np.uint16(9))
        codes = codes & np.uint16(0x1FF)
    elif dtype.name == "IQ3_XXS":
        each = blocks["signs"][..., None] >> np.array([0, 7, 14, 21], np.uint32)
        negative = _negative(seven=True).take(each & np.uint32(0x7F))
    else:
        negative = _negative().take(blocks["signs"])
        bits = 8 * blocks["high"].shape[-1] // codes.shape[-1]
        high = blocks["high"][..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
        codes = codes | high.reshape(codes.shape).astype(np.uint16) << np.uint16(8)
    numbers = _grid(dtype.name).take(codes).view(np.int8).reshape(count, -1)
    flip = negative.view(np.int8).reshape(count, -1)
    numbers ^= flip
    numbers -= flip
    values = numbers.astype(np.float32)
    with np.errstate(all="ignore"):  # infinite or NaN scales are values too
        scales = _scales(blocks.reshape(-1), dtype.name)
        grouped = values.reshape(*scales.shape, -1)
        grouped *= scales[..., None]
    return values.reshape(len(rows), -1)


def _scales(blocks: NDArray[Any], name: str) -> Floats:
    """The factor of each group: ``[blocks, groups]``."""
    if name == "IQ3_XXS":
        codes = (blocks["signs"] >> np.uint32(28)).astype(np.float32)
    else:
        halves = np.stack([blocks["scales"] & np.uint8(15), blocks["scales"] >> np.uint8(4)], axis=-1)
        codes = halves.reshape(len(blocks), -1).astype(np.float32)
    d = blocks["d"].astype(np.float32)[:, None]
    if name == "IQ3_S":
        found = d * (np.float32(1) + np.float32(2) * codes)
    else:
        found = d * (np.float32(0.5) + codes) * np.float32(0.25 if name.startswith("IQ2") else 0.5)
    return np.asarray(found, np.float32)


@cache
def _grid(name: str) -> NDArray[Any]:
    """The rows of a grid, each as one number of as many bytes."""
    import gguf.quants

    of_type = getattr(gguf.quants, name)
    of_type.init_grid()
    grid = of_type.grid.reshape(-1, of_type.grid.shape[-1]).astype(np.int8)
    return np.ascontiguousarray(grid).view(f"u{grid.shape[1]}").reshape(-1)


@cache
def _negative(*, seven: bool = False) -> NDArray[np.uint64]:
    """Byte of signs -> eight bytes, all ones for a minus.

    With ``seven`` signs, the eighth makes their count even.
    """
    signs = np.unpackbits(np.arange(128 if seven else 256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    if seven:
        signs[:, 7] = signs.sum(axis=1) & 1
    return (signs * np.uint8(0xFF)).view(np.uint64).reshape(-1)
