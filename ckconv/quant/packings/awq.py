"""AWQ's layout for GEMM: everything is stored ``[in, out]``, codes in words of 32 bits along the output, interleaved.

``qweight``  I32 ``[C, R / 8]``: bits ``4 * i`` and on of word ``w`` are output ``8 * w + (0, 2, 4, 6, 1, 3, 5, 7)[i]``.
``qzeros``   I32 ``[G, R / 8]``: zero points, packed alike.
``scales``   F16 ``[G, R]``.

Value = scales[c // group_size, r] * (code - zero). Source: ``awq/modules/linear/gemm.py`` of AutoAWQ 0.2.9 and its
``packing_utils.py``. Other versions (gemv) pack otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckconv.quant.packed import INT, Scheme, rows_of
from ckconv.quant.packings.groups import grouped, said
from ckconv.quant.packings.module import (
    FLOATS,
    I32,
    Arrays,
    Declared,
    Misfit,
    Module,
    Packing,
    Tile,
    Unread,
    in_columns,
    shaped,
)
from ckconv.quant.packings.words import along_rows

if TYPE_CHECKING:
    from ckconv.quant.codec import Rows

_BITS = 4
#: Output ``8 * w + j`` is this place of word ``w``.
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def _like(stored: Arrays) -> bool:
    """Words along the output, of weights and zero points alike: GPTQ has only those of zero points so."""
    weight, zeros = stored[".qweight"].shape, stored[".qzeros"].shape
    return len(weight) == len(zeros) == 2 and weight[1] == zeros[1]


def _fit(stored: Arrays, declared: Declared) -> Module:
    weight, scales, zeros = (stored[suffix] for suffix in (".qweight", ".scales", ".qzeros"))
    if len(weight.shape) != 2 or len(scales.shape) != 2 or not all((*weight.shape, *scales.shape)):
        raise Misfit("qweight and scales are not matrices")
    (columns, many), (groups, rows) = weight.shape, scales.shape
    if many * 32 != _BITS * rows:
        raise Misfit(f"qweight has shape {list(weight.shape)}, scales {list(scales.shape)}, which is not {_BITS} bits")
    declared.agree("bits", _BITS)
    shaped(zeros, (groups, many))
    version = str(declared.settings.get("version") or "gemm").lower()
    if version != "gemm":
        raise Unread(f"AWQ of version {version}")
    size = grouped(columns, groups, declared)
    return Module(
        Scheme(INT, _BITS, size, scales.dtype, zeros=True),
        (rows, columns),
        (in_columns(weight, 8), in_columns(scales), in_columns(zeros, 8)),
        _unpack,
        f"{_BITS}-bit, {said(size, declared)}",
    )


def _unpack(tile: Tile) -> Rows:
    weight, _, zeros = tile.arrays
    assert weight is not None
    assert zeros is not None
    codes, points = (tile.cut(along_rows(words, _BITS, _PLACES), 8) for words in (weight, zeros))
    return rows_of(codes, tile.own(1), points)


PACKINGS = (
    Packing(
        "AWQ",
        frozenset({"awq"}),
        {".qweight": (I32,), ".qzeros": (I32,), ".scales": FLOATS},
        _fit,
        like=_like,
    ),
)
