"""bitsandbytes: 4-bit codes of a table, or 8-bit parts of a row's largest.

nf4, fp4: a matrix ``[R, C]`` is one run of codes, two in a byte, the first one in the **upper** half, and a scale for
each ``blocksize`` of them, whatever row they are in.

``weight``                                   U8 ``[R * C / 2, 1]``; the same bytes as BF16, F16 or F32 (quant_storage)
``weight.absmax``                            F32 ``[B]``: scales; U8, where they are quantized, too ("double quant"):
``weight.nested_absmax``                     F32: of each ``nested_blocksize`` of them, what all are multiplied with
``weight.nested_quant_map``                  F32 ``[256]``: what the codes of scales are
``weight.quant_map``                         F32 ``[16]``: what the codes are
``weight.quant_state.bitsandbytes__nf4``     U8: JSON with shape, blocksize, dtype and, of scales, nested_offset

Value = quant_map[code] * absmax; absmax = nested_quant_map[code] * nested_absmax + nested_offset.

int8: ``weight`` I8 ``[R, C]``, ``SCB`` F32 ``[R]``, ``weight_format`` U8 ``[]``, 0 for rows. Value = code * SCB / 127.

Every product and sum is rounded to float32, and the value to the model's type. Sources: ``QuantState`` of
``functional.py``, ``backends/default/ops.py`` and ``nn/modules.py`` of bitsandbytes 0.50.
"""

from __future__ import annotations

import json
import math
from functools import partial
from typing import TYPE_CHECKING, Any

from ckconv.core.dtypes import BF16, F16, F32
from ckconv.core.layouts import plain
from ckconv.core.tensors import Array, StoredTensor, Tensor
from ckconv.quant.packed import FP4, MAPS, NF4, PARTS, Scheme, rows_of
from ckconv.quant.packings.module import (
    FLOATS,
    I8,
    U8,
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

if TYPE_CHECKING:
    from ckconv.quant.codec import Floats, Rows

_STATE = ".weight.quant_state.bitsandbytes__"
_TYPES = {"float32": F32, "bfloat16": BF16, "float16": F16}


def _fit(stored: Arrays, declared: Declared, *, codes: str, state: str) -> Module:
    weight, absmax = stored[".weight"], stored[".weight.absmax"]
    said = _said(stored[state], declared)
    shape, size, number = said.get("shape"), said.get("blocksize"), _TYPES.get(str(said.get("dtype")))
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and n > 0 for n in shape):
        raise Misfit(f"quant_state says shape {shape}, and a matrix has two lengths")
    if type(size) is not int or not 0 < size <= 1 << 20 or number is None:
        raise Misfit(f"quant_state says blocksize {size} and dtype {said.get('dtype')}")
    rows, columns = shape
    if columns % 2:
        raise Unread(f"{codes} with rows of an odd number of columns")
    if math.prod(weight.shape) * weight.dtype.size * 2 != rows * columns:
        raise Misfit(f"weight has shape {list(weight.shape)} {weight.dtype}, and quant_state says {shape}")
    blocks = -(-rows * columns // size)
    shaped(absmax, (blocks,))
    _check_map(stored[".weight.quant_map"], codes, declared)
    nested, inner = (stored.get(f".weight.nested_{name}") for name in ("absmax", "quant_map"))
    many, offset = said.get("nested_blocksize", 0), said.get("nested_offset", 0.0)
    if absmax.dtype is U8:
        if nested is None or inner is None or type(many) is not int or many < 1 or not isinstance(offset, float):
            raise Misfit("absmax is quantized, and its nested_absmax, nested_quant_map or quant_state are not there")
        shaped(nested, (-(-blocks // many),))
        shaped(inner, (256,))
    elif nested is not None or inner is not None:
        raise Misfit("absmax is F32, and there are nested_absmax or nested_quant_map")
    group = math.gcd(size, columns)
    return Module(
        Scheme(codes, 4, group, F32, library=number),
        (rows, columns),
        (
            _bytes(weight, rows, columns // 2),
            in_rows(absmax, 0),
            in_rows(stored[".weight.quant_map"], 0),
            in_rows(stored[state], 0),
            *(in_rows(array, 0) for array in (nested, inner) if array),
        ),
        partial(_unpack, size=size, many=many, offset=offset),
        f"blocks of {size}{', double-quantized' * (nested is not None)}",
    )


def _said(state: StoredTensor, declared: Declared) -> dict[str, Any]:
    """The JSON of ``quant_state``."""
    found = declared.integers_of(state) if state.extent.nbytes <= 1 << 16 else None
    if found is None:
        raise Unread("bitsandbytes without its quant_state")
    try:
        said = json.loads(found.tobytes())
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise Misfit("quant_state is no JSON object")
    return said


def _check_map(stored: StoredTensor, codes: str, declared: Declared) -> None:
    import numpy as np

    shaped(stored, (16,))
    found = declared.integers_of(stored)
    if found is not None and not np.array_equal(found.view("<f4"), np.array(MAPS[codes], np.float32)):
        raise Unread(f"{codes} with a table of its own (quant_map)")


def _bytes(stored: StoredTensor, rows: int, width: int) -> Array:
    """An array as rows of so many bytes."""
    return Array(Tensor(stored.name, stored.name, U8, (rows, width), (stored.extent,), plain(rows, width)))


def _unpack(tile: Tile, *, size: int, many: int, offset: float) -> Rows:
    import numpy as np

    packed = tile.own(0)
    codes = np.empty((len(packed), tile.columns), np.uint8)
    np.right_shift(packed, np.uint8(4), out=codes[:, ::2])
    np.bitwise_and(packed, np.uint8(15), out=codes[:, 1::2])
    group = tile.scheme.group
    first = np.arange(tile.start * tile.columns, tile.stop * tile.columns, group)  # element that a group begins with
    scales = _scales(tile, first // size, many, offset)
    return rows_of(codes, np.ascontiguousarray(scales).view(np.uint8).reshape(len(codes), -1))


def _scales(tile: Tile, blocks: Any, many: int, offset: float) -> Floats:
    import numpy as np

    absmax, *nested = (tile.arrays[number] for number in (1, 4, 5) if number < len(tile.arrays))
    assert absmax is not None
    if not nested:
        alone: Floats = absmax[0].view(np.float32)[blocks]
        return alone
    outer, inner = (part[0].view(np.float32) for part in nested if part is not None)
    with np.errstate(all="ignore"):
        made: Floats = inner[absmax[0][blocks]] * outer[blocks // many] + np.float32(offset)
    return made


def _fit_parts(stored: Arrays, declared: Declared) -> Module:
    weight, scale = stored[".weight"], stored[".SCB"]
    if len(weight.shape) != 2 or not all(weight.shape):
        raise Misfit(f"weight has shape {list(weight.shape)}, and is not a matrix")
    rows, columns = weight.shape
    if math.prod(scale.shape) != rows:
        raise Misfit(f"SCB has shape {list(scale.shape)}, and weight {list(weight.shape)}")
    form = stored.get(".weight_format")
    found = declared.integers_of(form) if form else None
    if found is not None and found.any():
        raise Unread("int8 of bitsandbytes in tiles (weight_format)")
    numbers = Tensor(scale.name, scale.name, scale.dtype, (rows, 1), (scale.extent,), plain(rows, 1))
    return Module(
        Scheme(PARTS, 8, columns, F32, library=F32), weight.shape, (in_rows(weight), Array(numbers)), _unpack_parts,
        "scales of whole rows",
    )  # fmt: skip


def _unpack_parts(tile: Tile) -> Rows:
    import numpy as np

    return rows_of(tile.own(0) ^ np.uint8(0x80), tile.own(1))


_METHODS = frozenset({"bitsandbytes"})


def _four(codes: str, name: str) -> Packing:
    arrays = {
        ".weight": (U8, *FLOATS),
        ".weight.absmax": (F32, U8),
        ".weight.quant_map": (F32,),
        _STATE + name: (U8,),
        ".weight.nested_absmax?": (F32,),
        ".weight.nested_quant_map?": (F32,),
    }
    return Packing(f"bitsandbytes {name}", _METHODS, arrays, partial(_fit, codes=codes, state=_STATE + name))


PACKINGS = (
    _four(NF4, "nf4"),
    _four(FP4, "fp4"),
    Packing("bitsandbytes int8", _METHODS, {".weight": (I8,), ".SCB": (F32,), ".weight_format?": (U8,)}, _fit_parts),
)
