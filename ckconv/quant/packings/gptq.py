"""GPTQ: everything is stored ``[in, out]``, codes in words of 32 bits along the input.

``qweight``  I32 ``[C * bits / 32, R]``: a word has the codes of ``32 / bits`` inputs of one output, lowest bits first.
``qzeros``   I32 ``[G, R * bits / 32]``: zero points, along the output, lowest bits first. Version 1 stores zero - 1.
``scales``   F16 ``[G, R]``.
``g_idx``    I32 ``[C]``: the group of each input; without it, group ``i // group_size``.

Value = scales[g_idx[c], r] * (code - zero). Source: ``nn_modules/qlinear/torch.py`` of GPTQModel 7.7. Version 1 is
``checkpoint_format: gptq``, or none. There the library adds one to whole words, so that a stored zero point of all ones
would carry into the next one: no writer stores it, and what it is depends on who reads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ckconv.core.dtypes import BF16, F16, F32
from ckconv.errors import InputError
from ckconv.quant.codes import unpack as unpacked
from ckconv.quant.packed import INT, Scheme, rows_of
from ckconv.quant.packings.groups import grouped, ordered, said
from ckconv.quant.packings.module import (
    I32,
    Arrays,
    Declared,
    Misfit,
    Module,
    Packing,
    Tile,
    Unread,
    in_columns,
    in_rows,
    shaped,
)
from ckconv.quant.packings.words import along_rows

if TYPE_CHECKING:
    from ckconv.quant.codec import Rows

_READ = (2, 4, 8)


def _fit(stored: Arrays, declared: Declared) -> Module:
    weight, scales, zeros = (stored[suffix] for suffix in (".qweight", ".scales", ".qzeros"))
    if not all(len(array.shape) == 2 for array in (weight, scales, zeros)):
        raise Misfit("qweight, qzeros and scales are not matrices")
    groups, rows = scales.shape
    if weight.shape[1] != rows:
        raise Misfit(f"qweight has shape {list(weight.shape)}, scales {list(scales.shape)}")
    if not rows or not groups or zeros.shape[0] != groups or zeros.shape[1] * 32 % rows:
        raise Misfit(f"qzeros has shape {list(zeros.shape)}, scales {list(scales.shape)}")
    bits = zeros.shape[1] * 32 // rows
    declared.agree("bits", bits)
    if bits not in _READ:
        raise Unread(f"{bits}-bit GPTQ")
    columns = weight.shape[0] * 32 // bits
    size = grouped(columns, groups, declared)
    index = None
    if ".g_idx" in stored:
        shaped(stored[".g_idx"], (columns,))
        index = in_rows(stored[".g_idx"], 0)
    elif declared.settings.get("desc_act"):
        raise Misfit("desc_act is true, and there is no g_idx")
    version = str(declared.settings.get("checkpoint_format") or "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise Unread(f"GPTQ with checkpoint_format {version}")
    across = ordered(index, stored, ".g_idx", size, groups, declared)
    return Module(
        Scheme(INT, bits, size, scales.dtype, zeros=True, ordered=across),
        (rows, columns),
        (in_columns(weight), in_columns(scales), in_columns(zeros, 32 // bits), index if across else None),
        partial(_unpack, less=version == "gptq", name=zeros.name),
        f"{bits}-bit, {said(size, declared)}{', columns in another order (desc_act)' * across}",
    )


def _unpack(tile: Tile, *, less: bool, name: str) -> Rows:
    import numpy as np

    weight, _, zeros, _ = tile.arrays
    assert weight is not None
    assert zeros is not None
    bits = tile.scheme.bits
    parts = [unpacked(weight, bits), tile.own(1), tile.cut(along_rows(zeros, bits), 32 // bits)]
    if less:
        if bool((parts[2] == (1 << bits) - 1).any()):
            message = f"a stored zero point of {(1 << bits) - 1} stands for {1 << bits}, which {bits} bits do not hold"
            raise InputError(
                "quant.zero", message, tensor=name, hint="checkpoint_format gptq_v2 stores them as they are"
            )
        parts[2] = parts[2] + np.uint8(1)
    if tile.scheme.ordered:
        parts.append(tile.own(3))
    return rows_of(*parts)


PACKINGS = (
    Packing(
        "GPTQ",
        frozenset({"gptq"}),
        {".qweight": (I32,), ".qzeros": (I32,), ".scales": (F16, BF16, F32), ".g_idx?": (I32,)},
        _fit,
    ),
)
