"""AMD Quark's own layout of integers (``quant_method: quark``).

FP8 and MXFP4 have the arrays of others.

4 bits in groups
    AWQ's arrays under other names: ``weight`` I32 ``[C, R / 8]``, ``weight_scale`` ``[G, R]``, ``weight_zero_point``
    I32 ``[G, R / 8]``. Codes and zero points of ``int4`` are signed; with ``pack_method: order`` words are not
    interleaved.
Value = scale * (code - zero). Integers of 8 bits and of 2 are named and not read. Sources: ``torch/utils/pack.py`` and
``torch/export/nn/modules/realquantizer.py`` of amd-quark 0.13.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ckconv.core.dtypes import F32
from ckconv.quant.packed import INT, Scheme, rows_of
from ckconv.quant.packings.awq import PLACES
from ckconv.quant.packings.groups import grouped
from ckconv.quant.packings.module import (
    FLOATS,
    I8,
    I32,
    U8,
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


def _said(declared: Declared, *keys: str) -> Any:
    found: Any = declared.settings
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _fit(stored: Arrays, declared: Declared) -> Module:
    weight, scale, zero = stored[".weight"], stored[".weight_scale"], stored[".weight_zero_point"]
    kind = _said(declared, "global_quant_config", "weight", "dtype")
    if kind not in ("int4", "uint4"):
        raise Unread(f"Quark's {kind}")
    if _said(declared, "layer_quant_config"):
        raise Unread(f"Quark's {kind} with other types for some layers (layer_quant_config)")
    if len(weight.shape) != 2 or len(scale.shape) != 2 or not all((*weight.shape, *scale.shape)):
        raise Misfit("weight and weight_scale are not matrices")
    (columns, many), (groups, rows) = weight.shape, scale.shape
    if many * 8 != rows:
        raise Misfit(f"weight has shape {list(weight.shape)}, weight_scale {list(scale.shape)}, which is not 4 bits")
    shaped(zero, (groups, many))
    own = declared._replace(settings={"group_size": _said(declared, "global_quant_config", "weight", "group_size")})
    size = grouped(columns, groups, own)
    places = () if _said(declared, "export", "pack_method") == "order" else PLACES
    return Module(
        Scheme(INT, 4, size, scale.dtype, zeros=True, library=F32 if scale.dtype is F32 else None),
        (rows, columns),
        (in_columns(weight, 8), in_columns(scale), in_columns(zero, 8)),
        partial(_unpack, places=places, signed=kind == "int4"),
        f"4-bit, groups of {size}",
    )


def _unpack(tile: Tile, *, places: tuple[int, ...], signed: bool) -> Rows:
    import numpy as np

    weight, _, zeros = tile.arrays
    assert weight is not None
    assert zeros is not None
    codes, points = (tile.cut(along_rows(words, 4, places), 8) for words in (weight, zeros))
    sign = np.uint8(8 * signed)  # of two's complement: codes are eight more than what they stand for
    return rows_of(codes ^ sign, tile.own(1), points ^ sign)


def _named(stored: Arrays, declared: Declared) -> Module:
    raise Unread(f"Quark's {_said(declared, 'global_quant_config', 'weight', 'dtype')}")


_METHODS = frozenset({"quark"})

PACKINGS = (
    Packing(
        "Quark", _METHODS, {".weight": (I32,), ".weight_scale": FLOATS, ".weight_zero_point": (I32,)}, _fit,
        declared=True,
    ),
    Packing(
        "Quark", _METHODS, {".weight": (I8, U8), ".weight_scale": FLOATS, ".weight_zero_point?": (I8, I32, U8)}, _named,
        declared=True,
    ),
)  # fmt: skip
