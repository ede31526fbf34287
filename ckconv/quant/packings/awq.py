"""AWQ for GEMM: stored ``[in, out]``, interleaved words along the output.

``qweight``  I32 ``[C, R / 8]``: bits ``4 * i`` and on of word ``w`` are output ``8 * w + (0, 2, 4, 6, 1, 3, 5, 7)[i]``.
``qzeros``   I32 ``[G, R / 8]``: zero points, packed alike.
``scales``   F16 ``[G, R]``.

Codes of auto-round may have 5, 6 or 7 bits: a stream of as many words for 32 outputs, each eight in the same order
(``utils/bit_packing.py``, 0.16).

Value = scales[c // group_size, r] * (code - zero). Source: ``awq/modules/linear/gemm.py`` of AutoAWQ 0.2.9 and its
``packing_utils.py``. Other versions (gemv) pack otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckconv.quant.packed import INT, Scheme, rows_of
from ckconv.quant.packings.groups import grouped, said
from ckconv.quant.packings.module import (
    AUTO_ROUND,
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
from ckconv.quant.packings.words import along_rows, run, together

if TYPE_CHECKING:
    from ckconv.quant.codec import Rows

#: Output ``8 * w + j`` is this place of word ``w``.
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def _like(stored: Arrays) -> bool:
    """Whether weights and zero points both have words along the output.

    GPTQ has only those of zero points so.
    """
    weight, zeros = stored[".qweight"].shape, stored[".qzeros"].shape
    return len(weight) == len(zeros) == 2 and weight[1] == zeros[1]


def _fit(stored: Arrays, declared: Declared) -> Module:
    weight, scales, zeros = (stored[suffix] for suffix in (".qweight", ".scales", ".qzeros"))
    if len(weight.shape) != 2 or len(scales.shape) != 2 or not all((*weight.shape, *scales.shape)):
        raise Misfit("qweight and scales are not matrices")
    (columns, many), (groups, rows) = weight.shape, scales.shape
    bits, mine = many * 32 // rows, declared.method in AUTO_ROUND
    if many * 32 != bits * rows or bits not in (range(4, 8) if mine else (4,)) or many % run(bits):
        made = "4 to 7 bits" if mine else "4 bits"
        raise Misfit(f"qweight has shape {list(weight.shape)}, scales {list(scales.shape)}, which is not {made}")
    declared.agree("bits", bits)
    shaped(zeros, (groups, many))
    version = str(declared.settings.get("version") or "gemm").lower()
    if version != "gemm":
        raise Unread(f"AWQ of version {version}")
    packed = declared.settings.get("packing_format")
    if mine and packed not in ("auto_round:auto_awq", "auto_round:awq"):
        raise Misfit(f"quantization_config says packing_format {packed}, and it is stored as AWQ")
    size = grouped(columns, groups, declared)
    per, words = together(bits), run(bits)
    return Module(
        Scheme(INT, bits, size, scales.dtype, zeros=True),
        (rows, columns),
        (in_columns(weight, per, words), in_columns(scales), in_columns(zeros, per, words)),
        _unpack,
        f"{bits}-bit, {said(size, declared)}",
    )


def _unpack(tile: Tile) -> Rows:
    weight, _, zeros = tile.arrays
    assert weight is not None
    assert zeros is not None
    bits = tile.scheme.bits
    codes, points = (tile.cut(along_rows(words, bits, PLACES), together(bits)) for words in (weight, zeros))
    return rows_of(codes, tile.own(1), points)


PACKINGS = (
    Packing(
        "AWQ",
        AUTO_ROUND | {"awq"},
        {".qweight": (I32,), ".qzeros": (I32,), ".scales": FLOATS},
        _fit,
        like=_like,
    ),
)
