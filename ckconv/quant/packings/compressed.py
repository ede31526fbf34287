"""Integers of compressed-tensors, in rows ``[out, in]``.

pack-quantized
    ``weight_packed``      I32 ``[R, ceil(C * bits / 32)]``: code + 2 ** (bits - 1), along the row, lowest bits first.
    ``weight_scale``       ``[R, G]``; ``[R, 1]`` for whole rows, ``[1]`` for the matrix.
    ``weight_shape``       I64 ``[2]``: R and C, which the words do not tell.
    ``weight_zero_point``  I32 ``[ceil(R * bits / 32), G]``: zero point + 2 ** (bits - 1), along the **output**; if any.
    ``weight_g_idx``       I32 ``[C]``: the group of each column; versions up to 0.10, ``actorder: group``.

int-quantized, naive-quantized
    ``weight`` I8 ``[R, C]``, ``weight_scale`` as above, ``weight_zero_point`` I8 like the scales, if any.

Value = scale * (code - zero), both signed. Source: ``compressors/quantized_compressors`` of compressed-tensors 0.20.
Codes of 3, 5, 6 and 7 bits are a stream over the words of a row; before version 0.19 a word had whole ones, and a row
took more words (:mod:`.words`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ckconv.core.tensors import Array, StoredTensor
from ckconv.quant.packed import INT, Scheme, rows_of
from ckconv.quant.packings.groups import grouped, ordered
from ckconv.quant.packings.module import (
    AUTO_ROUND,
    FLOATS,
    I8,
    I32,
    I64,
    Arrays,
    Declared,
    Misfit,
    Module,
    Packing,
    Tile,
    Unread,
    in_rows,
    shaped,
)
from ckconv.quant.packings.words import FILLING, STREAM, WHOLE, along_columns, along_rows, run, together

if TYPE_CHECKING:
    from ckconv.quant.codec import Rows

_READ = range(2, 9)


def _packed(stored: Arrays, declared: Declared) -> Module:
    weight, scale = stored[".weight_packed"], stored[".weight_scale"]
    if len(weight.shape) != 2 or not all(weight.shape):
        raise Misfit(f"weight_packed has shape {list(weight.shape)}, and is not a matrix")
    rows, columns = _shape(stored, declared)
    bits = declared.number("bits") or weight.shape[1] * 32 // max(columns, 1)
    if bits == 1:
        raise Unread("1-bit pack-quantized")
    form = STREAM
    if bits in _READ and bits not in FILLING and weight.shape[1] == -(-columns // (32 // bits)):
        form = WHOLE
        if weight.shape[1] == -(-columns * bits // 32):
            raise Unread(f"{bits}-bit pack-quantized with so few columns that versions before 0.19 are not told apart")
    elif bits not in _READ or weight.shape[1] != -(-columns * bits // 32):
        made = f"{rows:,} rows of {columns:,} columns (weight_shape)"
        raise Misfit(f"weight_packed has shape {list(weight.shape)}, which is not {made} in {bits} bits")
    array, groups, size = _scales(scale, rows, columns, declared)
    zeros, index = None, None
    if zero := _zero(stored, declared):
        words = run(bits, form)
        shaped(zero, (-(-rows // together(bits, WHOLE)) if form == WHOLE else -(-rows * bits // 32), groups))
        if zero.shape[0] % words:
            raise Unread(f"{bits}-bit zero points of rows that are no multiple of 32")
        wide = zero._replace(shape=(zero.shape[0] // words, words * groups))
        zeros = in_rows(wide, together(bits, form))
    if ".weight_g_idx" in stored:
        if zeros is not None:
            raise Unread("pack-quantized with columns in another order and zero points")
        shaped(stored[".weight_g_idx"], (columns,))
        index = in_rows(stored[".weight_g_idx"], 0)
    elif declared.settings.get("actorder") == "group":
        raise Misfit("actorder is group, and there is no weight_g_idx")
    across = ordered(index, stored, ".weight_g_idx", size, groups, declared)
    return Module(
        Scheme(INT, bits, size, scale.dtype, zeros=zeros is not None, ordered=across),
        (rows, columns),
        (in_rows(weight), array, zeros, index if across else None),
        partial(_unpack_words, form=form),
        f"{bits}-bit, {_said(scale, size)}{', columns in another order (actorder)' * across}",
    )


def _plain(stored: Arrays, declared: Declared) -> Module:
    weight, scale = stored[".weight"], stored[".weight_scale"]
    if len(weight.shape) != 2 or not all(weight.shape):
        raise Misfit(f"weight has shape {list(weight.shape)}, and is not a matrix")
    declared.agree("bits", 8)
    (rows, columns), zero = weight.shape, _zero(stored, declared)
    array, _, size = _scales(scale, rows, columns, declared)
    if zero:
        shaped(zero, scale.shape)
    zeros = in_rows(zero, array.per) if zero else None
    return Module(
        Scheme(INT, 8, size, scale.dtype, zeros=zeros is not None),
        weight.shape,
        (in_rows(weight), array, zeros),
        _unpack_bytes,
        f"8-bit, {_said(scale, size)}",
    )


def _shape(stored: Arrays, declared: Declared) -> tuple[int, int]:
    """Rows and columns; what the words can hold where only headers are there."""
    weight, shape = stored[".weight_packed"], stored[".weight_shape"]
    shaped(shape, (2,))
    found = declared.integers_of(shape)
    if found is None:
        return weight.shape[0], weight.shape[1] * 32 // (declared.number("bits") or 32)
    rows, columns = int(found[0]), int(found[1])
    if rows != weight.shape[0] or columns < 1:
        raise Misfit(f"weight_shape is {[rows, columns]}, and weight_packed has shape {list(weight.shape)}")
    return rows, columns


def _scales(scale: StoredTensor, rows: int, columns: int, declared: Declared) -> tuple[Array, int, int]:
    """The array, the scales of a row, and the columns of each."""
    if scale.shape in ((), (1,), (1, 1)):
        return in_rows(scale, 0), 1, columns
    if len(scale.shape) != 2 or scale.shape[0] != rows or not scale.shape[1]:
        raise Misfit(f"weight_scale has shape {list(scale.shape)}, and the matrix {rows:,} rows")
    return in_rows(scale), scale.shape[1], grouped(columns, scale.shape[1], declared)


def _zero(stored: Arrays, declared: Declared) -> StoredTensor | None:
    zero = stored.get(".weight_zero_point")
    if zero is None and declared.settings.get("symmetric") is False:
        raise Misfit("symmetric is false, and there is no weight_zero_point")
    return zero


def _said(scale: StoredTensor, size: int) -> str:
    if len(scale.shape) < 2:
        return "one scale a matrix"
    return "scales of whole rows" if scale.shape[1] == 1 else f"groups of {size}"


def _unpack_words(tile: Tile, *, form: str) -> Rows:
    weight, _, zeros, _ = tile.arrays
    assert weight is not None
    bits = tile.scheme.bits
    parts = [along_columns(weight, bits, form)[:, : tile.columns], tile.own(1)]
    if zeros is not None:
        words = zeros.reshape(len(zeros), run(bits, form), -1, 4).swapaxes(1, 2).reshape(zeros.shape)
        parts.append(tile.cut(along_rows(words, bits, form=form), together(bits, form)))
    if tile.scheme.ordered:
        parts.append(tile.own(3))
    return rows_of(*parts)


def _unpack_bytes(tile: Tile) -> Rows:
    """Signed numbers are 128 less than the codes that stand for them."""
    import numpy as np

    sign = np.uint8(0x80)
    zeros = (tile.own(2) ^ sign,) if tile.scheme.zeros else ()
    return rows_of(tile.own(0) ^ sign, tile.own(1), *zeros)


_METHODS = AUTO_ROUND | {"compressed-tensors"}

PACKINGS = (
    Packing(
        "compressed-tensors pack-quantized",
        _METHODS,
        {
            ".weight_packed": (I32,),
            ".weight_scale": FLOATS,
            ".weight_shape": (I64, I32),
            ".weight_zero_point?": (I32,),
            ".weight_g_idx?": (I32,),
        },
        _packed,
    ),
    Packing(
        "compressed-tensors int-quantized",
        _METHODS,
        {".weight": (I8,), ".weight_scale": FLOATS, ".weight_zero_point?": (I8,)},
        _plain,
    ),
)
