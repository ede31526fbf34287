"""Matrices as ComfyUI reads them from safetensors.

``P.comfy_quant`` U8 is the JSON of a matrix; or all are in ``__metadata__``, by name: ``_quantization_metadata`` is
``{"layers": {"P": {"format": ..}}}``. ``P.weight`` and, of each ``format``:

float8_e4m3fn, float8_e5m2
    ``weight`` of that type, of any shape; ``weight_scale`` F32, one number or one for each row (of a convolution
    ``[O, 1, 1, 1]``). Files of before have
    neither JSON, call it ``scale_weight``, and have ``scaled_fp8``, which says how products are computed.
int8_tensorwise
    ``weight`` I8; ``weight_scale`` likewise. With ``convrot`` it is the matrix times a rotation.
mxfp8
    ``weight`` F8_E4M3; ``weight_scale`` U8 or F8_E8M0 of 32 columns, in blocks of 128 rows and 4 groups.
nvfp4
    ``weight`` U8, element 2k in the **upper** half of byte k; ``weight_scale`` F8_E4M3 (as U8, too) of 16 columns, in
    such blocks; ``weight_scale_2`` F32, which all scales are multiplied with.

Value = code * scale. Many files have FP8 without any scale: those are the values (:data:`ALONE`). Sources:
``convert_old_quants`` of ComfyUI's ``utils.py``, ``_load_quantized_module`` of its ``ops.py``; ``tensor`` and
``backends/eager`` of comfy-kitchen 0.2.40.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from ckconv.core.late import Rows, np
from ckconv.core.layouts import DTYPES, F32, plain
from ckconv.core.tensors import StoredTensor
from ckconv.errors import and_more
from ckconv.quant.packed import E4M3, E5M2, INT, Scheme, rows_of
from ckconv.quant.packings.module import (
    FLOATS,
    FP8,
    I8,
    U8,
    UE8,
    Arrays,
    Declared,
    Misfit,
    Module,
    Packing,
    Tile,
    Unread,
    in_rows,
    laid_out,
)
from ckconv.quant.packings.torchao import fit_mx

FP8_WIDE = DTYPES["F8_E5M2"]
_CODES = {FP8: E4M3, FP8_WIDE: E5M2, I8: INT}
_BITS = 8

#: ``format`` -> types of the weight.
_FORMATS = {
    "float8_e4m3fn": FP8,
    "float8_e5m2": FP8_WIDE,
    "int8_tensorwise": I8,
    "mxfp8": FP8,
    "nvfp4": U8,
}

METHOD = "comfyui"
SAID, HEADER = ".comfy_quant", "_quantization_metadata"
#: Of the names of a model in a file with others; the metadata may leave it out.
_PREFIX = "model.diffusion_model."


def layers_of(headers: Sequence[Mapping[str, str]]) -> Mapping[str, Any] | None:
    """Facts of the metadata about matrices; ``None`` where there are none."""
    for header in headers:
        if HEADER in header:
            try:
                found = json.loads(header[HEADER])
            except (ValueError, RecursionError):
                found = None
            layers = found.get("layers") if isinstance(found, dict) else None
            return layers if isinstance(layers, dict) else {}
    return None


def said_of(module: str, layers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Facts of the metadata about one matrix; empty for none."""
    found = layers.get(module, layers.get(module.removeprefix(_PREFIX)))
    return found if isinstance(found, dict) else {}


def _fit(stored: Arrays, declared: Declared) -> Module:
    said = declared.header
    if SAID in stored:
        said = declared.document(stored[SAID], "comfy_quant", "ComfyUI's matrices")
    kind, weight, scale = said.get("format"), stored[".weight"], stored[".weight_scale"]
    if not isinstance(kind, str):
        raise Misfit(f"its format is {kind!r}, where {SAID[1:]} or {HEADER} says one")
    inner = said.get("params")
    if said.get("convrot") or (isinstance(inner, dict) and inner.get("convrot")):
        raise Unread(f"ComfyUI's {kind} of rotated matrices (convrot)")
    if kind not in _FORMATS:
        raise Unread(f"ComfyUI's {kind}")
    if ".pre_quant_scale" in stored:
        raise Unread(f"ComfyUI's {kind} with scales of activations that belong to the weights (pre_quant_scale)")
    if weight.dtype is not _FORMATS[kind]:
        raise Misfit(f"its format is {kind}, and weight is {weight.dtype}")
    if kind in ("mxfp8", "nvfp4"):
        return _fit_blocks(weight, scale, stored.get(".weight_scale_2"), kind)
    return _fit_scaled(stored, declared, suffix=".weight_scale")


def _fit_scaled(stored: Arrays, declared: Declared, *, suffix: str) -> Module:
    weight, scale = stored[".weight"], stored[suffix]
    if not weight.shape or not math.prod(weight.shape):
        raise Misfit(f"weight has shape {list(weight.shape)}, and no rows")
    if len(weight.shape) == 3 and len(scale.shape) in (1, 2) and scale.shape[0] == weight.shape[0] > 1:
        raise Unread("ComfyUI's matrices of several experts")
    columns, rows = weight.shape[-1], math.prod(weight.shape[:-1])
    if scale.dtype not in FLOATS:
        raise Misfit(f"{suffix[1:]} is {scale.dtype}, and a number is expected")
    count = math.prod(scale.shape)
    flat = len(weight.shape) <= 2 or len(scale.shape) == len(weight.shape)  # of a convolution: of all axes
    if count != 1 and not (flat and scale.shape[0] == count == weight.shape[0]):
        raise Misfit(f"{suffix[1:]} has shape {list(scale.shape)}, and weight {list(weight.shape)}")
    one = count == 1
    number = in_rows(scale._replace(shape=(count, 1)), 0 if one else rows // count)
    what = "FP8" if weight.dtype is FP8 else "FP8 (E5M2)" if weight.dtype is FP8_WIDE else "8-bit"
    scheme = Scheme(_CODES[weight.dtype], _BITS, columns, scale.dtype)
    words = f"{what}, {'one scale a matrix' if one else 'scales of whole rows'}"
    return Module(scheme, weight.shape, (laid_out(weight, plain(rows, columns)), number), _unpack, words)


def _unpack(tile: Tile) -> Rows:
    codes = tile.own(0)
    return rows_of(codes ^ np.uint8(0x80) if tile.scheme.codes == INT else codes, tile.own(1))


def _fit_blocks(weight: StoredTensor, scale: StoredTensor, factor: StoredTensor | None, kind: str) -> Module:
    nvfp4 = kind == "nvfp4"
    if len(weight.shape) != 2 or not all(weight.shape):
        raise Misfit(f"weight has shape {list(weight.shape)}, and is not a matrix")
    if nvfp4 != (factor is not None):
        raise Misfit(f"its format is {kind}, and weight_scale_2 is {'not ' if nvfp4 else ''}there")
    rows, groups = weight.shape[0], weight.shape[1] * (2 if nvfp4 else 1) // (16 if nvfp4 else 32)
    tall, wide = -(-rows // 128), -(-groups // 4)
    wanted = [128 * tall, 4 * wide]
    if scale.dtype not in ((U8, FP8) if nvfp4 else (U8, UE8)) or math.prod(scale.shape) != tall * wide * 512:
        raise Misfit(f"weight_scale is {scale.dtype} {list(scale.shape)}, and {kind} of {rows:,} rows has {wanted}")
    blocked = scale._replace(dtype=FP8 if nvfp4 else UE8, shape=(32 * tall, 16 * wide))
    found = fit_mx(weight, blocked, factor, Declared(METHOD, {}, lambda stored: None, {}))
    assert found.unpack is not None
    return found._replace(unpack=partial(_swapped, unpack=found.unpack)) if nvfp4 else found


def _swapped(tile: Tile, *, unpack: Any) -> Rows:
    """Rows of codes whose first one is in the upper half of a byte."""
    codes, *rest = tile.arrays
    assert codes is not None
    turned = codes << np.uint8(4) | codes >> np.uint8(4)
    found: Rows = unpack(tile._replace(arrays=(turned, *rest)))
    return found


def _fit_alone(stored: Arrays, declared: Declared) -> Module:
    codes = stored[""]
    columns, rows = codes.shape[-1], math.prod(codes.shape[:-1])
    scheme = Scheme(_CODES[codes.dtype], _BITS, columns, UE8)
    array = laid_out(codes, plain(rows, columns))
    return Module(scheme, codes.shape, (array,), _unpack_alone, f"{codes.dtype} without scales")


def _unpack_alone(tile: Tile) -> Rows:
    codes = tile.own(0)
    return rows_of(codes, np.full((len(codes), 1), 127, np.uint8))


#: FP8 that stands for itself, whatever it is called.
ALONE = Packing("FP8", frozenset({METHOD}), {"": (FP8, FP8_WIDE)}, _fit_alone, "")


def without_scale(stored: Sequence[StoredTensor], taken: Collection[str], layers: Mapping[str, Any]) -> str:
    """Matrices with a format in the metadata and no scale, in words."""
    found = [
        (one.name, kind)
        for one in (stored if layers else ())
        if one.name not in taken and one.name.endswith(".weight")
        for kind in [said_of(one.name.removesuffix(".weight"), layers).get("format")]
        if isinstance(kind, str) and one.dtype is _FORMATS.get(kind)
    ]
    names = [name for name, _ in found]
    return f"ComfyUI's {found[0][1]} without weight_scale: {and_more(names)}" if found else ""


def alone(stored: Sequence[StoredTensor], taken: Collection[str]) -> dict[str, tuple[Packing, dict[str, StoredTensor]]]:
    """FP8 that no scale belongs to, by name.

    A tensor that is called a scale of any kind may be one: beside it (``P.scale_weight``), or where its name goes on,
    as in ``P.weight.scale`` and ``P_scale``.
    """
    if not any(one.dtype in (FP8, FP8_WIDE) for one in stored):
        return {}
    beside: dict[str, int] = {}
    for place, _, last in (one.name.rpartition(".") for one in stored if "scale" in one.name):
        beside[place] = beside.get(place, 0) + ("scale" in last)
    names = sorted(one.name for one in stored if "scale" in one.name)
    found: dict[str, tuple[Packing, dict[str, StoredTensor]]] = {}
    for one in stored:
        if one.dtype in (FP8, FP8_WIDE) and one.shape and one.extent.nbytes and one.name not in taken:
            place, _, last = one.name.rpartition(".")
            if last != "scaled_fp8" and beside.get(place, 0) <= ("scale" in last) and not _goes_on(one.name, names):
                found[one.name] = ALONE, {"": one}
    return found


def _goes_on(name: str, scales: Sequence[str]) -> bool:
    """Whether a scale has the module's name and more; ``scales`` sorted."""
    for start in (f"{name.removesuffix('.weight')}{mark}" for mark in "._"):
        at = bisect_left(scales, start)
        while at < len(scales) and scales[at].startswith(start):
            if "scale" in scales[at][len(start) :]:
                return True
            at += 1
    return False


_ANY = (FP8, FP8_WIDE, I8, U8)
PACKINGS = (
    Packing(
        "ComfyUI",
        frozenset({METHOD}),
        {
            ".weight": _ANY,
            ".weight_scale": (*FLOATS, FP8, U8, UE8),
            f"{SAID}?": (U8,),
            ".weight_scale_2?": (F32,),
            ".pre_quant_scale?": FLOATS,
        },
        _fit,
        declared=True,
    ),
    Packing(
        "ComfyUI",
        frozenset({METHOD}),
        {".weight": (FP8, FP8_WIDE), ".scale_weight": FLOATS},
        partial(_fit_scaled, suffix=".scale_weight"),
    ),
)
