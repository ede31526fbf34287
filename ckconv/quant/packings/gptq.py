"""GPTQ: stored ``[in, out]``, in words of 32 bits along the input.

``qweight``  I32 ``[C * bits / 32, R]``: a word has the codes of ``32 / bits`` inputs of one output, lowest bits first;
             32 codes of 3, 5, 6 or 7 bits are a stream of as many words.
``qzeros``   I32 ``[G, R * bits / 32]``: zero points, along the output, lowest bits first. Version 1 stores zero - 1.
``scales``   F16 ``[G, R]``.
``g_idx``    I32 ``[C]``: the group of each input; without it, group ``i // group_size``.

Value = scales[g_idx[c], r] * (code - zero). Source: ``nn_modules/qlinear/torch.py`` of GPTQModel 7.7. Version 1 is
``checkpoint_format: gptq``, or none; ``gptq_p`` is version 2 with codes in planes (:mod:`.words`). auto-round says it
by ``packing_format`` (``inference/convert_model.py``, 0.16): ``auto_round:auto_gptq`` and none are version 1,
``auto_round`` and ``auto_round:gptqmodel`` version 2. In version 1 the library adds one to whole words, so that a
stored zero point of all ones would carry into the next one: no writer stores it, and what it is depends on who reads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ckconv.core.dtypes import BF16, F16, F32
from ckconv.errors import InputError
from ckconv.quant.packed import INT, Scheme, rows_of
from ckconv.quant.packings.groups import grouped, ordered, said
from ckconv.quant.packings.module import (
    AUTO_ROUND,
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
from ckconv.quant.packings.words import PLANES, STREAM, along_columns, along_rows, run, together

if TYPE_CHECKING:
    from ckconv.quant.codec import Rows

_READ = range(2, 9)

#: What stores zero points less one, as they are, and as they are beside codes in planes; ``None`` is what says nothing.
_LESS, _AS_THEY_ARE, _PLANES = {"gptq", None}, {"gptq_v2"}, {"gptq_p"}
_LESS |= {"auto_round:auto_gptq", "auto_round:gptq", "auto"}
_AS_THEY_ARE |= {"auto_round", "auto_round:gptqmodel"}


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
    for array, words in ((weight, weight.shape[0]), (zeros, zeros.shape[1])):
        if words % run(bits):
            name = array.name.rpartition(".")[2]
            raise Misfit(f"{name} has shape {list(array.shape)}, which is not whole runs of 32 codes of {bits} bits")
    columns = weight.shape[0] * 32 // bits
    size = grouped(columns, groups, declared)
    index = None
    if ".g_idx" in stored:
        shaped(stored[".g_idx"], (columns,))
        index = in_rows(stored[".g_idx"], 0)
    elif declared.settings.get("desc_act"):
        raise Misfit("desc_act is true, and there is no g_idx")
    key = "packing_format" if AUTO_ROUND & {declared.method} else "checkpoint_format"
    version = declared.settings.get(key) or None
    if version is not None and not isinstance(version, str):
        raise Misfit(f"quantization_config says {key} {version!r}, which is no text")
    if key == "packing_format" and version is None and declared.settings.get("checkpoint_format"):
        raise Unread("auto-round's GPTQ with a checkpoint_format in place of its packing_format")
    if version in ("auto_round:auto_awq", "auto_round:awq"):
        raise Misfit(f"quantization_config says {key} {version}, and it is stored as GPTQ")
    if version not in _LESS | _AS_THEY_ARE | _PLANES:
        raise Unread(f"GPTQ with {key} {version}")
    if bits in (5, 6, 7) and key == "checkpoint_format" and version not in _PLANES:
        raise Unread(f"{bits}-bit GPTQ with checkpoint_format {version}, where GPTQModel has gptq_p")
    across = ordered(index, stored, ".g_idx", size, groups, declared)
    return Module(
        Scheme(INT, bits, size, scales.dtype, zeros=True, ordered=across),
        (rows, columns),
        (
            in_columns(weight),
            in_columns(scales),
            in_columns(zeros, together(bits), run(bits)),
            index if across else None,
        ),
        partial(_unpack, less=version in _LESS, form=PLANES if version in _PLANES else STREAM, name=zeros.name),
        f"{bits}-bit, {said(size, declared)}{', columns in another order (desc_act)' * across}",
    )


def _unpack(tile: Tile, *, less: bool, form: str, name: str) -> Rows:
    import numpy as np

    weight, _, zeros, _ = tile.arrays
    assert weight is not None
    assert zeros is not None
    bits = tile.scheme.bits
    points = tile.cut(along_rows(zeros, bits, form=form), together(bits))
    parts = [along_columns(weight, bits, form), tile.own(1), points]
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
        AUTO_ROUND | {"gptq"},
        {".qweight": (I32,), ".qzeros": (I32,), ".scales": (F16, BF16, F32), ".g_idx?": (I32,)},
        _fit,
    ),
)
