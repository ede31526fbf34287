"""Layouts of other quantizers' matrices, in the order of recognition.

A new packing is a row of :data:`PACKINGS`:

``arrays``
    What the arrays of a module ``P`` are called, with the types that each may have: ``P.qweight`` is ``.qweight``.
    Names alone are often shared; the first row that all required arrays fit, and ``like`` does, is the one.
``fit``
    Given the arrays and what ``quantization_config`` declares, says what they are (:class:`Module`): shape, scheme
    (:mod:`ckconv.quant.packed`, which has the decoder and the view that re-packing takes), and for each array the
    layout of its rows and how many rows of the matrix one of them is for. It raises :class:`Conflict` where shapes,
    types or declarations do not agree, and :class:`Unread` for what is sound and not read here.
``unpack``
    In the :class:`Module`: a :class:`Tile`, the bytes of those arrays for some rows of the matrix, becomes rows of the
    scheme's type. Bit order, transposition and stored offsets of zero points end here.

Nothing else knows a packing: reading, hashing, comparing, decoding and re-packing see rows of a type.
"""

from __future__ import annotations

from ckconv.quant.packings.described import COMFYUI_PACKINGS, TORCHAO_PACKINGS
from ckconv.quant.packings.floats import BITSANDBYTES_PACKINGS, FP8_PACKINGS, MX_PACKINGS, NVFP4_PACKINGS
from ckconv.quant.packings.integers import (
    AWQ_PACKINGS,
    BITNET_PACKINGS,
    COMPRESSED_PACKINGS,
    GPTQ_PACKINGS,
    HQQ_PACKINGS,
    QUARK_PACKINGS,
)

PACKINGS = (
    *COMFYUI_PACKINGS,
    *AWQ_PACKINGS,
    *BITNET_PACKINGS,
    *BITSANDBYTES_PACKINGS,
    *GPTQ_PACKINGS,
    *FP8_PACKINGS,
    *QUARK_PACKINGS,
    *TORCHAO_PACKINGS,
    *COMPRESSED_PACKINGS,
    *MX_PACKINGS,
    *NVFP4_PACKINGS,
    *HQQ_PACKINGS,
)

#: Arrays beside a packed module that are about activations or caches: they do not enter the weights.
ACTIVATIONS = (
    ".input_scale",
    ".input_scale_ub",
    ".input_global_scale",
    ".input_zero_point",
    ".activation_scale",
    ".output_scale",
    "._weight_act_quant_scale",
    "._weight_act_per_tensor_scale",
    "._weight_act_quant_zero_point",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".scale_input",
    "scaled_fp8",
)
