"""BitNet's ternary matrices: four rows in a byte, one scale a matrix.

``weight``        U8 ``[R / 4, C]``: bits ``2 * i`` and on of row ``r`` are row ``i * R / 4 + r``: 0, 1, 2 for -1, 0, 1.
``weight_scale``  one float: numbers are divided by it, or multiplied where ``linear_class`` is ``autobitlinear``.

Source: ``unpack_weights``, ``BitLinear`` and ``AutoBitLinear`` of transformers 5.23, ``integrations/bitnet.py``, which
round what goes into a matrix to eight bits, too.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ckconv.core.dtypes import F32, DType
from ckconv.core.layouts import plain
from ckconv.core.tensors import Array, Tensor
from ckconv.quant.codec import to_float32
from ckconv.quant.packed import INT, Scheme, rows_of
from ckconv.quant.packings.module import FLOATS, U8, Arrays, Declared, Misfit, Module, Packing, Tile, Unread, in_rows

if TYPE_CHECKING:
    from ckconv.quant.codec import Rows

_MANY, _BITS, _MIDDLE = 4, 2, 1


def _fit(stored: Arrays, declared: Declared) -> Module:
    weight, scale = stored[".weight"], stored[".weight_scale"]
    if len(weight.shape) != 2 or not all(weight.shape):
        raise Misfit(f"weight has shape {list(weight.shape)}, and is not a matrix")
    if scale.shape not in ((), (1,)):
        raise Misfit(f"weight_scale has shape {list(scale.shape)}, and a ternary matrix has one scale")
    if declared.settings.get("use_rms_norm"):
        raise Unread("ternary with norms of its own")
    quarter, columns = weight.shape
    rows = _MANY * quarter
    # The bytes are read again for every fourth of the rows.
    codes = Tensor(
        weight.name, weight.name, weight.dtype, (rows, columns), (weight.extent,) * _MANY, plain(rows, columns)
    )
    times = declared.settings.get("linear_class") == "autobitlinear"
    return Module(
        Scheme(INT, _BITS, columns, F32, zeros=True),
        (rows, columns),
        (Array(codes), in_rows(scale, 0)),
        partial(_unpack, quarter=quarter, number=scale.dtype, times=times),
        "ternary, one scale a matrix",
    )


def _unpack(tile: Tile, *, quarter: int, number: DType, times: bool) -> Rows:
    import numpy as np

    shifts = np.uint8(_BITS) * (np.arange(tile.start, tile.stop) // quarter).astype(np.uint8)
    codes = tile.own(0) >> shifts[:, None] & np.uint8(3)
    scales = to_float32(tile.own(1), number)
    with np.errstate(divide="ignore"):
        scales = np.ascontiguousarray(scales if times else np.float32(1) / scales)
    scales[np.isinf(scales)] = np.nan  # it divides by zero, or nearly: what becomes of a 0 is no number
    return rows_of(codes, scales.view(np.uint8), np.full((len(codes), 1), _MIDDLE, np.uint8))


PACKINGS = (Packing("BitNet", frozenset({"bitnet"}), {".weight": (U8,), ".weight_scale": FLOATS}, _fit, declared=True),)
