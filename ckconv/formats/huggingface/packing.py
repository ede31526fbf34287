"""Quantised matrices as other quantisers lay them out: which of their types holds one, its arrays, and what says so.

Sources: ``compressors/{nvfp4,mx_pack,pack_quantized}.py`` of compressed-tensors 0.20; ``quantization/qtensor`` and
``torch/export/convert_hf_config.py`` of ModelOpt 0.47, which has no integers without activations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from struct import pack
from typing import Any, NamedTuple

from ckconv.core.dtypes import DTYPES, F32, DType
from ckconv.core.layouts import plain
from ckconv.core.tensors import Tensor
from ckconv.formats.safetensors.checkpoint_names import Entry
from ckconv.formats.safetensors.checkpoint_pieces import StoredArray
from ckconv.plan.pieces import Module, Piece
from ckconv.plan.planner import EMBEDDING
from ckconv.quant.integers import INTEGERS, with_zeros
from ckconv.quant.mlx import Triple
from ckconv.quant.nvfp4 import TRIPLE
from ckconv.quant.packed import DIVISOR, FACTOR, INT, Scheme, inverse, is_scaled, packed_type, scheme_of, together
from ckconv.quant.triples import triple_of, triple_type

COMPRESSED, MODELOPT = "compressed-tensors", "modelopt"

_NVFP4, _MXFP4 = DTYPES["NVFP4"], DTYPES["MXFP4"]
_U8, _I32, _I64, _E4M3 = DTYPES["U8"], DTYPES["I32"], DTYPES["I64"], DTYPES["F8_E4M3"]


class Form(NamedTuple):
    """A type of a layout.

    Attributes:
        name: of compressed-tensors' formats.
        codes: suffix and type of the array of codes.
        scales: type of the scales; ``None`` for that of the matrix.
        weights: what the configuration says of the numbers.
    """

    name: str
    codes: tuple[str, DType]
    scales: DType | None
    weights: Mapping[str, Any]


_FP4 = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False}
_MX = Form(
    "mxfp4-pack-quantized",
    ("weight_packed", _U8),
    _U8,
    {**_FP4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
)
_NV = Form(
    "nvfp4-pack-quantized",
    ("weight_packed", _U8),
    _E4M3,
    {**_FP4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"},
)
_MODELOPT = Form("NVFP4", ("weight", _U8), _E4M3, {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False})


def form_of(dtype: DType) -> Form:
    """What the type of an output is in its layout."""
    scheme = scheme_of(dtype)
    if scheme is None:
        return _MX
    if scheme.codes != INT:
        return _NV if scheme.divisor else _MODELOPT
    group = {"strategy": "group", "group_size": scheme.group}
    weights = {"num_bits": scheme.bits, "type": "int", "symmetric": not scheme.zeros, "dynamic": False, **group}
    return Form("pack-quantized", ("weight_packed", _I32), None, weights)


def packed_as(
    layout: str, tensor: Tensor, mxfp4: Triple, number: DType | None = None, *, middle: bool = False
) -> DType | None:
    """The type that holds every number of a quantised matrix in this layout; ``None`` where it has none.

    Args:
        number: type of the scales where the matrix has float32 ones, if it is to be another.
        middle: every zero point is the middle one, so that none is stored.
    """
    source = tensor.dtype
    if source is _NVFP4 or triple_of(source) == TRIPLE or is_scaled(source):
        return packed_type(DIVISOR if layout == COMPRESSED else FACTOR, tensor.shape[-1])
    if layout != COMPRESSED:
        return None
    if source in (_MXFP4, triple_type(mxfp4)):
        return triple_type(mxfp4)
    if source in INTEGERS:
        return packed_type(INTEGERS[source], tensor.shape[-1])
    if _is_symmetric(scheme_of(source), source):
        return source
    scheme = with_zeros(source)
    if scheme is None or scheme.group % 32:
        return None
    scales = number if number and scheme.number is F32 else scheme.number
    return packed_type(scheme._replace(number=scales, zeros=not middle), tensor.shape[-1])


def words_of(dtype: DType) -> int:
    """Rows of a matrix whose zero points are in one word; 1 where none are stored."""
    scheme = scheme_of(dtype)
    return together(scheme) if scheme and scheme.codes == INT and scheme.zeros else 1


def _is_symmetric(scheme: Scheme | None, dtype: DType) -> bool:
    """Integers around zero in whole groups of neighbours, and words have whole codes."""
    if scheme is None or scheme.codes != INT or scheme.bits not in (4, 8):
        return False
    return not (scheme.zeros or scheme.ordered) and dtype.block == scheme.group and scheme.group % 32 == 0


def misplaced(entry: Entry) -> str:
    """Why what a checkpoint has under this name is no module that a layout packs; empty where it is one."""
    whole = entry.places is None and not entry.shift and all(factor == 1 for factor in entry.factors)
    if not entry.name.endswith(".weight") or not whole:
        return "its class does not store it as the matrix [out, in] of a linear layer"
    return ""


def arrays_of(name: str, shape: tuple[int, ...], dtype: DType) -> list[StoredArray]:
    """Codes, scales and zero points of a module."""
    form, scheme, module = form_of(dtype), scheme_of(dtype), name.removesuffix(".weight")
    bits, group = (scheme.bits, scheme.group) if scheme else (4, 32)
    suffix, codes = form.codes
    scales = form.scales or (scheme.number if scheme else _U8)
    arrays = [
        StoredArray(f"{module}.{suffix}", codes, (*shape[:-1], shape[-1] * bits // 8 // codes.size)),
        StoredArray(f"{module}.weight_scale", scales, (*shape[:-1], shape[-1] // group)),
    ]
    if scheme and scheme.zeros:
        many, rows = together(scheme), math.prod(shape[:-1])
        arrays.append(StoredArray(f"{module}.weight_zero_point", _I32, (rows // many, shape[-1] // group), many))
    return arrays


def beside(entry: Entry, shape: tuple[int, ...], dtype: DType, factor: float) -> Module:
    """What else a module has: the number for all scales, or its shape."""
    scheme, module = scheme_of(dtype), entry.name.removesuffix(".weight")
    if scheme is None:
        return ()
    if scheme.codes == INT:
        content = pack(f"<{len(shape)}q", *shape)
        return (_content(f"{module}.weight_shape", entry.canonical, _I64, (len(shape),), content, dtype),)
    if scheme.divisor:
        content = pack("<f", inverse(factor) or 0)  # 0 where it is refused
        return (_content(f"{module}.weight_global_scale", entry.canonical, F32, (1,), content, dtype),)
    return (_content(f"{module}.weight_scale_2", entry.canonical, F32, (), pack("<f", factor), dtype),)


def _content(name: str, canonical: str, dtype: DType, shape: tuple[int, ...], content: bytes, module: DType) -> Piece:
    layout = plain(math.prod(shape), 1)
    return Piece(name, canonical, dtype, shape, layout, None, None, module=module, content=content)


def quantization_of(layout: str, modules: Sequence[Module], head: str) -> dict[str, Any] | None:
    """``quantization_config``; ``None`` where nothing is packed.

    Args:
        head: what the class calls an output head that is the embedding, which is a linear layer, too.
    """
    forms: dict[str, list[str]] = {}
    found: dict[str, Form] = {}
    for module in modules:
        if module[0].module is not None:
            form = form_of(module[0].module)
            key = repr(form)
            found[key] = form
            forms.setdefault(key, []).append(module[0].name.rpartition(".")[0])
    if not found:
        return None
    dense = [m[0].name for m in modules if m[0].module is None and m[0].canonical != EMBEDDING and len(m[0].shape) > 1]
    ignored = [name.removesuffix(".weight") for name in (*dense, head) if name.endswith(".weight")]
    if layout == MODELOPT:
        group = {"targets": ["Linear"], "weights": dict(_MODELOPT.weights)}
        says = {"config_groups": {"group_0": group}, "ignore": ignored, "quant_algo": "W4A16_NVFP4"}
        return {**says, "producer": {"name": "modelopt"}, "quant_method": MODELOPT}
    kinds = [found[key] for key in forms]
    names = {form.name for form in kinds}
    groups = {
        f"group_{number}": {
            "format": found[key].name,
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"] if len(forms) == 1 else forms[key],
            "weights": dict(found[key].weights),
        }
        for number, key in enumerate(forms)
    }
    return {
        "config_groups": groups,
        "format": kinds[0].name if len(names) == 1 else "mixed-precision",
        "ignore": ignored,
        "kv_cache_scheme": None,
        "quant_method": COMPRESSED,
        "quantization_status": "compressed",
    }
