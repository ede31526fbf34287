"""Tensors of foreign quantizers in a checkpoint, recognized by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ckconv.core.dtypes import Kind
from ckconv.core.tensors import StoredTensor
from ckconv.errors import counted, quoted

#: Endings of tensors that other quantizers write -> what they are called.
FOREIGN_QUANTIZERS: tuple[tuple[str, str], ...] = (
    (".qzeros", "GPTQ or AWQ"),
    (".g_idx", "GPTQ"),
    (".qweight", "GPTQ or AWQ"),
    (".q_weight", "EXL2"),
    (".trellis", "EXL3"),
    (".absmax", "bitsandbytes"),
    (".quant_map", "bitsandbytes"),
    (".nested_absmax", "bitsandbytes"),
    (".SCB", "bitsandbytes"),
    (".weight_scale_inv", "block-scaled FP8"),
    (".weight_scale", "FP8 or compressed-tensors"),
    (".input_scale", "FP8"),
    (".weight_packed", "compressed-tensors"),
    ("._scale", "a scaled format"),
    ("._data", "a quanto format"),
)


def foreign_quantizer(tensors: Sequence[StoredTensor], settings: Mapping[str, Any]) -> str:
    """Name of the foreign quantizer of these tensors; empty for none.

    It calls itself ``quant_method``, which counts beside names that are known or numbers that are no floats: with that
    word alone the loader quantizes, and the checkpoint holds plain matrices. Names alone only suggest who it was.
    """
    method = settings.get("quant_method")
    method = method if isinstance(method, str) else ""
    found = Counter(what for tensor in tensors for ending, what in FOREIGN_QUANTIZERS if tensor.name.endswith(ending))
    what, count = next(iter(found.most_common(1)), ("", 0))
    if method and method.lower() not in what.lower():
        count = sum(found.values()) or sum(tensor.dtype.kind is not Kind.FLOAT for tensor in tensors)
        what = "quantized numbers"
    if not count:
        return ""
    return f"{counted(count, 'tensor')} of {what}" + (f" (quant_method {quoted(method)})" if method else "")
