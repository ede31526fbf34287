"""NVFP4 in a GGUF: ``NAME.weight`` holds codes and scales, ``NAME.scale`` what all scales are multiplied with.

``NAME.scale`` is F32 ``[1]``, of stacked experts ``[experts]``; without it the number is 1. Source: the generic pass of
``load_tensors`` in ``src/llama-model.cpp`` and ``build_lora_mm`` in ``src/llama-graph.cpp``, which multiplies the
product; ``_generate_nvfp4_tensors`` in ``conversion/base.py``. ``NAME.input_scale``, of activations, is loaded beside
it and enters no product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from struct import pack
from typing import TYPE_CHECKING

from ckconv.core.dtypes import DTYPES, F32, DType
from ckconv.core.layouts import plain
from ckconv.core.tensors import Array, Dropped, Extent, Packed, StoredTensor, Tensor
from ckconv.families.canonical import Item, plain_item
from ckconv.formats.gguf.entries import Entry, numbers_entry
from ckconv.plan.decoding import DECODE
from ckconv.quant.packed import FACTOR, NOT_WEIGHTS, inverse, is_scaled, packed_type, rows_of, scheme_of

if TYPE_CHECKING:
    from ckconv.plan.planner import Planner
    from ckconv.quant.codec import Rows
    from ckconv.quant.packings import Tile

_NVFP4 = DTYPES["NVFP4"]
#: As ``inverse_scale`` of ``conversion/base.py`` of llama.cpp has it.
_ROUNDED = "NAME.scale is what NVFP4's scales are divided by in the source, inverted: rounded once, to float32"

_WEIGHT, _SCALE, _INPUT = ".weight", ".scale", ".input_scale"

#: What there may be, where nobody looked.
_UNSEEN = [math.nan]

#: Modules whose scale is looked for; a bias beside those of ``ffn`` ends llama.cpp (``build_ffn``).
_SCALED = frozenset(
    {"attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_exps",
     "ffn_up_exps", "ffn_down_exps", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "output", "attn_gate",
     "ssm_in", "ssm_out", "ssm_alpha", "ssm_beta"}
)  # fmt: skip


def of_activations(stored: Sequence[StoredTensor]) -> tuple[Dropped, ...]:
    """Scales of what a matrix is multiplied with: a GGUF keeps them, and nothing else has a place for them."""
    found = [tensor for tensor in stored if tensor.name.endswith(_INPUT)]
    names = {tensor.name for tensor in stored} if found else set()
    beside = (tensor for tensor in found if tensor.name.removesuffix(_INPUT) + _WEIGHT in names)
    return tuple(Dropped(tensor, NOT_WEIGHTS, copied=True) for tensor in beside)


def items(stored: Sequence[StoredTensor]) -> Iterable[Item]:
    """The tensors of a GGUF; a matrix and its scale are one."""
    by_name = {tensor.name: tensor for tensor in stored}
    for tensor in stored:
        weight = by_name.get(tensor.name.removesuffix(_SCALE) + _WEIGHT) if tensor.name.endswith(_SCALE) else None
        scale = by_name.get(tensor.name.removesuffix(_WEIGHT) + _SCALE)
        if weight is not None and _fits(weight, tensor):
            continue
        if scale is not None and tensor.name.endswith(_WEIGHT) and _fits(tensor, scale):
            yield Item(_scaled(tensor, scale), (tensor, scale))
        else:
            yield plain_item(tensor)


def has_scales(stored: Sequence[StoredTensor]) -> bool:
    """A matrix has its scale beside it."""
    scales = {tensor.name.removesuffix(_SCALE): tensor for tensor in stored if tensor.name.endswith(_SCALE)}
    matrices = (tensor for tensor in stored if scales and tensor.dtype is _NVFP4)
    return any((scale := scales.get(one.name.removesuffix(_WEIGHT))) and _fits(one, scale) for one in matrices)


def _fits(weight: StoredTensor, scale: StoredTensor) -> bool:
    many = weight.shape[0] if len(weight.shape) > 2 else 1
    return weight.dtype is _NVFP4 and scale.dtype is F32 and scale.shape == (many,)


def _scaled(weight: StoredTensor, scale: StoredTensor) -> Tensor:
    rows, columns = math.prod(weight.shape[:-1]) // scale.shape[0], weight.shape[-1]
    nbytes = _NVFP4.nbytes(rows * columns)
    modules = []
    for number in range(scale.shape[0]):
        blocks = Extent(weight.extent.path, weight.extent.offset + number * nbytes, nbytes)
        factor = Extent(scale.extent.path, scale.extent.offset + number * F32.size, F32.size)
        arrays = (
            Array(Tensor(weight.name, weight.name, _NVFP4, (rows, columns), (blocks,), plain(rows, columns))),
            Array(Tensor(scale.name, scale.name, F32, (1, 1), (factor,), plain(1, 1)), 0),
        )
        modules.append(Packed(rows, arrays, _unpack))
    dtype = packed_type(FACTOR, columns)
    layout = plain(math.prod(weight.shape[:-1]), columns)
    return Tensor(weight.name, weight.name, dtype, weight.shape, (), layout, packed=tuple(modules))


def _unpack(tile: Tile) -> Rows:
    import numpy as np

    from ckconv.quant.ggml import get_codes, of_bytes

    blocks = of_bytes(tile.own(0), _NVFP4)
    return rows_of(get_codes(blocks, _NVFP4), np.ascontiguousarray(blocks["d"]), tile.own(1))


def _divides(dtype: DType) -> bool:
    scheme = scheme_of(dtype)
    return scheme is not None and scheme.divisor


def scale_entries(planner: Planner, entries: Sequence[Entry], types: Sequence[DType]) -> list[Entry]:
    """``NAME.scale`` of every matrix that is written as NVFP4 and has one; what has no place for it is refused.

    A program that reads blocks and knows nothing of the other tensor takes wrong numbers for right ones, so a GGUF has
    one only where it is asked for, or where the source has it.
    """
    found: list[Entry] = []
    unasked: list[str] = []
    rounded = False
    asked = planner.options.tensor_scales or planner.index.format == "gguf"
    names = {entry.name for entry in entries}
    for entry, dtype in zip(entries, types, strict=True):
        parts = [part for part in entry.parts if is_scaled(part.dtype)]
        if dtype is not _NVFP4 or not parts:
            continue
        module = entry.name.removesuffix(_WEIGHT)
        kind = module.rpartition(".")[2]
        each = [planner.source.factors.get(part.name, _UNSEEN) for part in parts]
        if kind not in _SCALED or (kind.startswith("ffn") and f"{module}.bias" in names):
            planner.refuse(f"llama.cpp has no place for the scale of {entry.name}'s scales", DECODE)
        elif any(numbers != each[0] for numbers in each):
            planner.refuse(f"the parts of {entry.name} have scales of their own, and it has one", DECODE)
        elif any(number != 1 for number in each[0]) and not asked:
            unasked.append(module)
        elif any(number != 1 for number in each[0]):
            content = pack(f"<{len(each[0])}f", *each[0])
            found.append(numbers_entry(module + _SCALE, parts[0].name, content))
            rounded |= _divides(parts[0].dtype) and not all(map(inverse, each[0]))
    if rounded:
        planner.notes.append(_ROUNDED)
    if unasked:
        more = f" and {len(unasked) - 1} more" if len(unasked) > 1 else ""
        why = "the scales of NVFP4 matrices have a scale, without which a reader gets other numbers"
        hint = f"--tensor-scales writes it beside them (NAME.scale), as llama.cpp reads it; {DECODE}"
        planner.refuse(f"{why}: {unasked[0]}{more}", hint)
    return found
