"""Packed checkpoints that contradict themselves: one sentence and status 3, and nothing is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import Decoder, Raw, Tensors, save, save_file
from packed_checkpoints import (
    awq_model,
    bitnet_model,
    bitsandbytes_int8_model,
    bitsandbytes_model,
    comfyui_model,
    compressed_model,
    drawn,
    fp8_model,
    gptq,
    gptq_model,
    hqq_model,
    planes,
    quark_model,
    rewritten,
    scaled_fp8_model,
    torchao_float8_model,
    torchao_model,
    torchao_mx_model,
    torchao_offsets_model,
)
from safetensors_builder import tensors_of

DECODER = Decoder(layers=1, hidden=64, ffn=160)
Q = "model.layers.0.self_attn.q_proj"
Change = Callable[[Tensors, dict[str, Any]], None]


def array(suffix: str, dtype: str, *shape: int) -> Change:
    """Another array of zeros in the place of one of the query projection's."""
    size = {
        "I32": 4,
        "F16": 2,
        "BF16": 2,
        "F32": 4,
        "I64": 8,
        "F8_E4M3": 1,
        "F8_E8M0": 1,
        "F8_E5M2": 1,
        "U8": 1,
        "I8": 1,
    }[dtype]

    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        tensors[Q + suffix] = Raw(dtype, shape, bytes(int(np.prod(shape)) * size))

    return change


def text(suffix: str, words: str) -> Change:
    """The bytes of a text in the place of an array."""

    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        tensors[Q + suffix] = Raw("U8", (len(words),), words.encode())

    return change


def without(suffix: str) -> Change:
    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        del tensors[Q + suffix]

    return change


def says(**keys: Any) -> Change:
    """Other words in ``quantization_config``."""

    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        config["quantization_config"] |= keys

    return change


def weights(**keys: Any) -> Change:
    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        config["quantization_config"]["config_groups"]["group_0"]["weights"] |= keys

    return change


def filled(suffix: str, dtype: str, value: int) -> Change:
    """The same array, every word of it this one."""

    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        shape = tensors[Q + suffix].shape
        word = np.full(shape, value, {"I32": "<u4", "I64": "<i8", "F16": "<u2", "F32": "<u4", "BF16": "<u2"}[dtype])
        tensors[Q + suffix] = Raw(dtype, shape, word.tobytes())

    return change


def groups_of_others(tensors: Tensors, config: dict[str, Any]) -> None:
    for name in ("scale", "zero_point"):
        array(f"._weight_{name}", "BF16", 3, 64)(tensors, config)


def as_many_groups_as_rows(tensors: Tensors, config: dict[str, Any]) -> None:
    """Groups of 16 or of 32, as scales have the rows first or last."""
    array("._weight_qdata", "I8", 64, 1024)(tensors, config)
    for name in ("scale", "zero_point"):
        array(f"._weight_{name}", "BF16", 64, 64)(tensors, config)


def stacked(tensors: Tensors, config: dict[str, Any]) -> None:
    array("._weight_qdata", "F8_E4M3", 2, 64, 64)(tensors, config)
    array("._weight_scale", "F8_E8M0", 2, 64, 2)(tensors, config)


def shape(value: Any) -> Change:
    """Another shape in what the file says of the query projection."""

    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        config["metadata"] = {f"{Q}.weight": json.dumps({"_data": {"shape": value}})}

    return change


def told(**data: Any) -> Change:
    """Other words in what the file says of the query projection."""

    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        config["metadata"] = {f"{Q}.weight": json.dumps({"_data": data})}

    return change


STATE = ".weight.quant_state.bitsandbytes__nf4"


def state(**keys: Any) -> Change:
    """Other words in the ``quant_state`` of the query projection."""

    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        text = json.dumps(json.loads(tensors[Q + STATE].data) | keys).encode()
        tensors[Q + STATE] = Raw("U8", (len(text),), text)

    return change


FOUR = bitsandbytes_model
DOUBLE = partial(bitsandbytes_model, double=4)
FP8 = partial(fp8_model, block=(128, 128))
THREE = partial(gptq_model, bits=3)
ROUND = partial(gptq_model, auto_round="auto_round:auto_gptq")
ROUND_AWQ = partial(awq_model, auto_round=True, bits=5)
AO = partial(torchao_model, bits=4, group=32, zeros=True)
COMFY4, COMFY8 = partial(comfyui_model, kind="nvfp4"), partial(comfyui_model, kind="mxfp8")
AO8, QUARK8 = torchao_float8_model, partial(quark_model, kind="fp8_e4m3")
OFFSETS, TILES = torchao_offsets_model, partial(torchao_offsets_model, tiles=True)
MX, NV = partial(torchao_mx_model, kind="mxfp8"), partial(torchao_mx_model, kind="nvfp4", factor=True)
INT8 = bitsandbytes_int8_model
QUARK = quark_model
HQQ = hqq_model
WORDS3 = partial(compressed_model, bits=3, symmetric=False)
ROWS = partial(scaled_fp8_model, strategy="channel")

BROKEN = {
    "scales of other outputs": (
        gptq_model,
        array(".scales", "F16", 2, 32),
        "qweight has shape [8, 64], scales [2, 32]",
    ),
    "zero points of other groups": (gptq_model, array(".qzeros", "I32", 3, 8), "qzeros has shape [3, 8]"),
    "groups that do not divide": (gptq_model, says(group_size=48), "groups of 48 do not divide rows of 64"),
    "groups of another size": (gptq_model, says(group_size=64), "makes 1 groups of 64, and scales has 2"),
    "other bits": (gptq_model, says(bits=8), "quantization_config says bits 8, and the arrays hold 4"),
    "a version that is a list": (
        gptq_model,
        says(checkpoint_format=["gptq"]),
        "says checkpoint_format ['gptq'], which is no text",
    ),
    "another method": (gptq_model, says(quant_method="awq"), "says quant_method 'awq', and it is stored as GPTQ"),
    "an index too short": (gptq_model, array(".g_idx", "I32", 32), "g_idx has shape [32]"),
    "an index beyond the groups": (gptq_model, filled(".g_idx", "I32", 2), "g_idx names groups beyond the 2"),
    "an order without an index": (
        gptq_model,
        lambda tensors, config: (without(".g_idx")(tensors, config), says(desc_act=True)(tensors, config)),
        "desc_act is true, and there is no g_idx",
    ),
    "a module without scales": (gptq_model, without(".scales"), "belongs to no quantized matrix"),
    "AWQ's scales of other outputs": (awq_model, array(".scales", "F16", 2, 32), "which is not 4 bits"),
    "AWQ's groups": (awq_model, says(group_size=48), "groups of 48 do not divide rows of 64"),
    "AWQ called GPTQ": (awq_model, says(quant_method="gptq"), "it is stored as AWQ"),
    "a grid of scales": (FP8, array(".weight_scale_inv", "F32", 2, 1), "need [1, 1] scales, and there are [2, 1]"),
    "blocks of another size": (FP8, says(weight_block_size=[32, 32]), "need [2, 2] scales, and there are [1, 1]"),
    "scales of other rows": (ROWS, array(".weight_scale", "BF16", 32, 1), "no block size is declared"),
    "a quant_state that is no JSON": (FOUR, array(STATE, "U8", 9), "quant_state is no JSON object"),
    "a quant_state of another shape": (FOUR, state(shape=[64, 128]), "and quant_state says [64, 128]"),
    "a quant_state of three axes": (FOUR, state(shape=[8, 8, 64]), "quant_state says shape [8, 8, 64]"),
    "a quant_state with a negative length": (FOUR, state(shape=[-64, -64]), "quant_state says shape [-64, -64]"),
    "a blocksize of nothing": (FOUR, state(blocksize=0), "quant_state says blocksize 0"),
    "a blocksize of all": (FOUR, state(blocksize=1 << 40), "quant_state says blocksize 1099511627776"),
    "a type that is no float": (FOUR, state(dtype="int8"), "dtype int8"),
    "scales of other blocks": (FOUR, state(blocksize=32), "absmax has shape [64], the other arrays make it [128]"),
    "a table of other length": (FOUR, array(".weight.quant_map", "F32", 8), "quant_map has shape [8]"),
    "codes of fewer numbers": (FOUR, array(".weight", "U8", 99, 1), "weight has shape [99, 1] U8"),
    "quantized scales without theirs": (DOUBLE, without(".weight.nested_absmax"), "absmax is quantized, and"),
    "quantized scales without their offset": (DOUBLE, state(nested_offset=None), "absmax is quantized, and"),
    "quantized scales of no blocks": (DOUBLE, state(nested_blocksize=0), "absmax is quantized, and"),
    "quantized scales of other blocks": (DOUBLE, state(nested_blocksize=2), "nested_absmax has shape [16]"),
    "scales of scales that are floats": (DOUBLE, array(".weight.absmax", "F32", 64), "absmax is F32, and there are"),
    "nf4 without a quant_state": (FOUR, without(STATE), "belongs to no quantized matrix"),
    "int8 with scales of other rows": (bitsandbytes_int8_model, array(".SCB", "F32", 32), "SCB has shape [32]"),
    "int8 of three axes": (INT8, array(".weight", "I8", 8, 8, 64), "weight has shape [8, 8, 64], and is not a matrix"),
    "int8 of one axis": (INT8, array(".weight", "I8", 4096), "weight has shape [4096], and is not a matrix"),
    "int8 of no rows": (INT8, array(".weight", "I8", 0, 64), "weight has shape [0, 64], and is not a matrix"),
    "int8 of fewer rows": (INT8, array(".weight", "I8", 32, 64), "SCB has shape [64], and weight [32, 64]"),
    "int8 with scales of groups": (INT8, array(".SCB", "F32", 64, 2), "SCB has shape [64, 2]"),
    "int8 with one scale": (INT8, array(".SCB", "F32"), "SCB has shape []"),
    "int8 with no scale in SCB": (INT8, array(".SCB", "F32", 0), "SCB has shape [0]"),
    "int8 without SCB": (INT8, without(".SCB"), "belongs to no quantized matrix"),
    "int8 by another method": (INT8, says(quant_method="gptq"), "and it is stored as bitsandbytes int8"),
    "int8 that is listed": (INT8, says(modules_to_not_convert=[Q]), "which is quantized"),
    "a ternary matrix with many scales": (
        bitnet_model,
        array(".weight_scale", "F32", 16),
        "weight_scale has shape [16], and a ternary matrix has one scale",
    ),
    "a shape of other rows": (compressed_model, filled(".weight_shape", "I64", 99), "weight_shape is [99, 99]"),
    "words of other bits": (compressed_model, weights(num_bits=8), "in 8 bits"),
    "scales of other groups": (compressed_model, array(".weight_scale", "BF16", 64, 4), "scales has 4"),
    "zero points that are missing": (compressed_model, weights(symmetric=False), "there is no weight_zero_point"),
    "3 bits whose words are no runs of 32 codes": (
        THREE,
        array(".qweight", "I32", 7, 64),
        "not whole runs of 32 codes",
    ),
    "3 bits of other zero points": (THREE, array(".qzeros", "I32", 2, 5), "qzeros has shape [2, 5]"),
    "3 bits of fewer columns": (THREE, array(".qweight", "I32", 3, 64), "makes 1 groups of 32, and scales has 2"),
    "3 bits that are called 4": (THREE, says(bits=4), "says bits 4, and the arrays hold 3"),
    "3 bits with an index too short": (THREE, array(".g_idx", "I32", 32), "g_idx has shape [32]"),
    "3 bits of other outputs": (THREE, array(".scales", "F16", 2, 32), "qweight has shape [6, 64], scales [2, 32]"),
    "3 bits, zero points of other groups": (THREE, array(".qzeros", "I32", 3, 6), "qzeros has shape [3, 6]"),
    "3 bits of three axes": (THREE, array(".qweight", "I32", 2, 3, 64), "qweight, qzeros and scales are not matrices"),
    "3 bits, groups that do not divide": (THREE, says(group_size=48), "groups of 48 do not divide rows of 64"),
    "3 bits without scales": (THREE, without(".scales"), "belongs to no quantized matrix"),
    "auto-round, scales of other outputs": (ROUND, array(".scales", "F16", 2, 32), "qweight has shape [8, 64]"),
    "auto-round, groups that do not divide": (ROUND, says(group_size=48), "groups of 48 do not divide rows of 64"),
    "auto-round, a form that is a list": (
        ROUND,
        says(packing_format=["x"]),
        "says packing_format ['x'], which is no text",
    ),
    "auto-round that says AWQ": (
        ROUND,
        says(packing_format="auto_round:auto_awq"),
        "says packing_format auto_round:auto_awq, and it is stored as GPTQ",
    ),
    "auto-round's AWQ that says GPTQ": (
        ROUND_AWQ,
        says(packing_format="auto_round:auto_gptq"),
        "says packing_format auto_round:auto_gptq, and it is stored as AWQ",
    ),
    "auto-round of other bits": (ROUND, says(extra_config={Q: {"bits": 2}}), "says bits 2, and the arrays hold 4"),
    "auto-round of other groups": (ROUND, says(extra_config={".*q_proj": {"group_size": 64}}), "makes 1 groups of 64"),
    "auto-round's AWQ of 3 bits": (ROUND_AWQ, array(".qweight", "I32", 64, 6), "qweight has shape [64, 6]"),
    "AWQ of 5 bits by AutoAWQ": (ROUND_AWQ, says(quant_method="awq"), "which is not 4 bits"),
    "auto-round's AWQ, called of 4 bits": (ROUND_AWQ, says(bits=4), "says bits 4, and the arrays hold 5"),
    "words of 3 bits that are called 4": (WORDS3, weights(num_bits=4), "in 4 bits"),
    "words of 3 bits of other columns": (WORDS3, array(".weight_packed", "I32", 64, 8), "in 3 bits"),
    "words of 3 bits, zero points of others": (
        WORDS3,
        array(".weight_zero_point", "I32", 8, 2),
        "weight_zero_point has shape [8, 2]",
    ),
    "words of 3 bits, scales of other rows": (WORDS3, array(".weight_scale", "BF16", 32, 2), "the matrix 64 rows"),
    "words of 3 bits, a shape of other rows": (WORDS3, filled(".weight_shape", "I64", 99), "weight_shape is [99, 99]"),
    "words of 3 bits without a shape": (WORDS3, without(".weight_shape"), "belongs to no quantized matrix"),
    "words of 3 bits, no zero points": (WORDS3, without(".weight_zero_point"), "there is no weight_zero_point"),
    "words of 3 bits of three axes": (WORDS3, array(".weight_packed", "I32", 8, 8, 6), "and is not a matrix"),
    "words of 3 bits, scales of no groups": (WORDS3, array(".weight_scale", "BF16", 64, 0), "the matrix 64 rows"),
    "words of 9 bits": (WORDS3, weights(num_bits=9), "in 9 bits"),
    "torchao, scales of other rows": (AO, array("._weight_scale", "BF16", 32, 2), "_weight_scale has shape [32, 2]"),
    "torchao, groups that do not divide": (AO, array("._weight_scale", "BF16", 64, 3), "do not divide rows of 64"),
    "torchao, zero points of other groups": (AO, array("._weight_zero_point", "I8", 64, 1), "has shape [64, 1]"),
    "torchao, three axes": (AO, array("._weight_qdata", "I8", 8, 8, 64), "_weight_qdata has shape [8, 8, 64]"),
    "torchao, no scales": (AO, without("._weight_scale"), "belongs to no quantized matrix"),
    "torchao, no codes": (AO, without("._weight_qdata"), "belongs to no quantized matrix"),
    "torchao, another method": (AO, says(quant_method="gptq"), "says quant_method 'gptq', and it is stored as torchao"),
    "torchao, scales of no groups": (AO, array("._weight_scale", "BF16", 64, 0), "_weight_scale has shape [64, 0]"),
    "offsets, scales of other rows": (OFFSETS, array("._weight_scale", "BF16", 2, 32), "and the matrix 64 rows"),
    "offsets, as many as others": (OFFSETS, array("._weight_zero_point", "BF16", 1, 64), "has shape [1, 64]"),
    "offsets of another type": (
        OFFSETS,
        array("._weight_zero_point", "F16", 2, 64),
        "is BF16 and _weight_zero_point F16",
    ),
    "offsets, groups that do not divide": (
        OFFSETS,
        groups_of_others,
        "groups of 21 do not divide rows of 64",
    ),
    "offsets, no scales": (OFFSETS, without("._weight_scale"), "belongs to no quantized matrix"),
    "tiles of other lanes": (TILES, array("._weight_qdata", "I32", 8, 8, 16, 4), "tiles are [.., .., 32, 4]"),
    "tiles of three axes": (TILES, array("._weight_qdata", "I32", 8, 8, 128), "tiles are [.., .., 32, 4]"),
    "tiles, numbers of other rows": (
        TILES,
        array("._weight_scale_and_zero", "BF16", 32, 8, 2),
        "_weight_scale_and_zero has shape [32, 8, 2]",
    ),
    "tiles, groups that do not divide": (
        TILES,
        array("._weight_scale_and_zero", "BF16", 3, 64, 2),
        "3 groups do not divide rows of 1,024",
    ),
    "tiles, groups of 8": (
        TILES,
        array("._weight_scale_and_zero", "BF16", 128, 64, 2),
        "128 groups do not divide rows of 1,024",
    ),
    "tiles, no numbers": (TILES, without("._weight_scale_and_zero"), "belongs to no quantized matrix"),
    "tiles, a larger shape": (TILES, shape([64, 4096]), "tiles have 64 rows of 1,024 columns"),
    "tiles, a shape of one": (TILES, shape([64]), "says shape [64], and a matrix has two lengths"),
    "tiles, a negative shape": (TILES, shape([64, -1]), "says shape [64, -1], and a matrix has two lengths"),
    "MX, a block of another size": (MX, told(block_size=64), "says block_size 64, and the arrays have 32"),
    "MX, blocks of rows": (MX, told(block_size=[1, 64]), "says block_size [1, 64], and the arrays have [1, 32]"),
    "MX, other elements": (
        MX,
        told(elem_dtype={"_type": "torch.dtype", "_data": "float8_e5m2"}),
        "says elem_dtype float8_e5m2, and _weight_qdata is F8_E4M3",
    ),
    "NVFP4, a block of another size": (NV, told(block_size=32), "says block_size 32, and the arrays have 16"),
    "torchao int4, blocks of another size": (AO, told(block_size=[1, 64]), "[1, 64], and the arrays have [1, 32]"),
    "torchao int4, blocks of all rows": (AO, told(block_size=[64, 32]), "[64, 32], and the arrays have [1, 32]"),
    "torchao float8, blocks of another size": (AO8, told(block_size=[1, 8]), "[1, 8], and the arrays have [1, 64]"),
    "offsets, blocks of another size": (OFFSETS, told(block_size=[1, 64]), "[1, 64], and the arrays have [1, 32]"),
    "offsets, another shape": (OFFSETS, told(shape=[64, 32]), "says shape [64, 32], and the arrays have [64, 64]"),
    "tiles, blocks of another size": (TILES, told(block_size=[1, 64]), "[1, 64], and the arrays have [1, 32]"),
    "MX, scales of other groups": (MX, array("._weight_scale", "F8_E8M0", 64, 4), "_weight_scale has shape [64, 4]"),
    "MX, scales of three axes": (MX, array("._weight_scale", "F8_E8M0", 2, 64, 2), "scale has shape [2, 64, 2]"),
    "MX, scales in blocks of more rows": (MX, array("._weight_scale", "F8_E8M0", 64, 16), "scale has shape [64, 16]"),
    "MX, rows that are no groups": (MX, array("._weight_qdata", "F8_E4M3", 64, 40), "groups of 32 do not divide"),
    "MX, codes of no rows": (MX, array("._weight_qdata", "F8_E4M3", 0, 64), "_weight_qdata has shape [0, 64]"),
    "MX, another method": (MX, says(quant_method="gptq"), "says quant_method 'gptq', and it is stored as torchao"),
    "NVFP4, scales of other rows": (NV, array("._weight_scale", "F8_E4M3", 32, 4), "scale has shape [32, 4]"),
    "NVFP4, many scales of scales": (NV, array("._weight_per_tensor_scale", "F32", 4), "has shape [4]"),
    "NVFP4, scales of scales a row": (NV, array("._weight_per_tensor_scale", "F32", 64, 1), "has shape [64, 1]"),
    "NVFP4, no scales": (NV, without("._weight_scale"), "belongs to no quantized matrix"),
    "NVFP4, rows that are no groups": (NV, array("._weight_qdata", "U8", 64, 20), "groups of 16 do not divide"),
    "HQQ, no scales": (HQQ, without(".scale"), "there is no scale"),
    "HQQ, no zero points": (HQQ, without(".zero"), "there is no zero"),
    "HQQ, no shape": (HQQ, without(".shape"), "there is no shape"),
    "HQQ, no axis": (HQQ, without(".axis"), "there is no axis"),
    "HQQ, a third axis": (HQQ, filled(".axis", "I32", 2), "it says shape [64, 64], group_size 32 and axis 2"),
    "HQQ, a group in a float": (HQQ, filled(".group_size", "F32", 32), "group_size is F32, integers expected"),
    "HQQ, a type in words": (HQQ, array(".packing", "I32", 7), "packing is I32, bytes of a text expected"),
    "HQQ, no group": (HQQ, filled(".group_size", "I32", 0), "group_size 0 and axis 1"),
    "HQQ, a negative group": (HQQ, filled(".group_size", "I32", 0xFFFFFFFF), "group_size -1 and axis 1"),
    "HQQ, groups that do not divide": (HQQ, filled(".group_size", "I32", 37), "groups of 37 do not divide 4,096 codes"),
    "HQQ, other groups": (HQQ, filled(".group_size", "I32", 64), "scale has shape [128, 1]"),
    "HQQ, another shape": (
        HQQ,
        filled(".shape", "I64", 32),
        "W_q has shape [64, 32] U8, which is not 4bit_u8 of [32, 32]",
    ),
    "HQQ, a huge shape": (HQQ, filled(".shape", "I64", 1 << 40), "it says shape [1099511627776, 1099511627776]"),
    "HQQ, codes of fewer rows": (HQQ, array(".W_q", "U8", 60, 32), "W_q has shape [60, 32] U8"),
    "HQQ, zero points of other groups": (HQQ, array(".zero", "F16", 64, 1), "zero has shape [64, 1]"),
    "HQQ, another method": (HQQ, says(quant_method="gptq"), "says quant_method 'gptq', and it is stored as HQQ"),
    "ComfyUI, no scale": (comfyui_model, without(".weight_scale"), "belongs to no quantized matrix"),
    "ComfyUI, no weight": (comfyui_model, without(".weight"), "belongs to no quantized matrix"),
    "ComfyUI, what is no JSON": (comfyui_model, array(".comfy_quant", "U8", 7), "comfy_quant is no JSON object"),
    "ComfyUI, no format": (comfyui_model, text(".comfy_quant", "{}"), "its format is None"),
    "ComfyUI, a format that is no word": (comfyui_model, text(".comfy_quant", '{"format": [1]}'), "its format is [1]"),
    "ComfyUI, another format": (
        comfyui_model,
        text(".comfy_quant", '{"format": "int8_tensorwise"}'),
        "its format is int8_tensorwise, and weight is F8_E4M3",
    ),
    "ComfyUI, scales of other rows": (comfyui_model, array(".weight_scale", "F32", 32), "weight_scale has shape [32]"),
    "ComfyUI, scales of columns": (comfyui_model, array(".weight_scale", "F32", 1, 64), "has shape [1, 64]"),
    "ComfyUI, a scale of bytes": (comfyui_model, array(".weight_scale", "U8", 1), "weight_scale is U8, and a number"),
    "ComfyUI, a matrix of no rows": (
        comfyui_model,
        array(".weight", "F8_E4M3", 0, 64),
        "has shape [0, 64], and no rows",
    ),
    "ComfyUI, nvfp4 without its second scale": (COMFY4, without(".weight_scale_2"), "weight_scale_2 is not there"),
    "ComfyUI, nvfp4 with scales in rows": (COMFY4, array(".weight_scale", "F8_E4M3", 64, 4), "has [128, 4]"),
    "ComfyUI, nvfp4 of three axes": (COMFY4, array(".weight", "U8", 2, 32, 32), "and is not a matrix"),
    "ComfyUI, mxfp8 with scales in rows": (COMFY8, array(".weight_scale", "U8", 64, 2), "has [128, 4]"),
    "ComfyUI, mxfp8 and a second scale": (COMFY8, array(".weight_scale_2", "F32"), "weight_scale_2 is there"),
    "ComfyUI, rows that are no groups": (COMFY8, array(".weight", "F8_E4M3", 64, 72), "groups of 32 do not divide"),
    "ComfyUI, a header without the matrix": (
        partial(comfyui_model, said="header"),
        lambda tensors, config: config.update(metadata={"_quantization_metadata": '{"layers": {}}'}),
        "its format is None, where comfy_quant or _quantization_metadata says one",
    ),
    "ComfyUI, a header that is no JSON": (
        partial(comfyui_model, said="header"),
        lambda tensors, config: config.update(metadata={"_quantization_metadata": "{"}),
        "its format is None",
    ),
    "ComfyUI, an old scale of other rows": (
        partial(comfyui_model, said="old"),
        array(".scale_weight", "F32", 3),
        "scale_weight has shape [3]",
    ),
    "torchao float8, scales of other rows": (AO8, array("._weight_scale", "F32", 32, 1), "no block size is declared"),
    "torchao float8, three axes": (AO8, array("._weight_qdata", "F8_E4M3", 8, 8, 64), "and is not a matrix"),
    "Quark, scales of other outputs": (QUARK, array(".weight_scale", "BF16", 2, 32), "which is not 4 bits"),
    "Quark, zero points of other groups": (QUARK, array(".weight_zero_point", "I32", 3, 8), "has shape [3, 8]"),
    "Quark, scales of other groups": (QUARK, array(".weight_scale", "BF16", 4, 64), "has shape [2, 8]"),
    "Quark, fewer inputs": (QUARK, array(".weight", "I32", 32, 8), "makes 1 groups of 32, and scales has 2"),
    "Quark, groups of another size": (
        QUARK,
        says(global_quant_config={"weight": {"dtype": "int4", "group_size": 48}}),
        "groups of 48 do not divide rows of 64",
    ),
    "Quark, three axes": (QUARK, array(".weight", "I32", 8, 8, 8), "weight and weight_scale are not matrices"),
    "Quark, no zero points": (QUARK, without(".weight_zero_point"), "belongs to no quantized matrix"),
    "Quark, no scales": (QUARK, without(".weight_scale"), "belongs to no quantized matrix"),
    "Quark FP8, scales of other rows": (QUARK8, array(".weight_scale", "F32", 32), "no block size is declared"),
    "Quark FP8, three axes": (QUARK8, array(".weight", "F8_E4M3", 8, 8, 64), "and is not a matrix"),
    "a list with a module that is quantized": (
        compressed_model,
        says(ignore=["lm_head", Q]),
        f"quantization_config.ignore names '{Q}', which is quantized",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_arrays_that_contradict_each_other_or_the_configuration_are_said(tmp_path: Path, ckconv, name: str) -> None:
    make, change, sentence = BROKEN[name]
    source, out = tmp_path / "packed", tmp_path / "out"
    make(source, DECODER)
    assert ckconv("inspect", source).code == 0
    rewritten(source, change)

    for arguments in (("inspect", source), ("convert", source, f"{out}/", "--to", "safetensors", "--dequantize")):
        result = ckconv(*arguments)
        assert (result.code, sentence in result.err) == (3, True), result.err
        assert "Traceback" not in result.err
    assert not out.exists()


def test_a_zero_point_that_version_1_cannot_mean_is_refused_where_it_is_read(tmp_path: Path, ckconv) -> None:
    """Stored 15 means 16, or 0 and one more in the next: it depends on who adds the one."""
    source = tmp_path / "packed"
    gptq_model(source, DECODER)
    rewritten(source, filled(".qzeros", "I32", 0xFFFFFFFF))
    result = ckconv("convert", source, f"{tmp_path}/out/", "--to", "safetensors", "--dequantize")
    assert (result.code, "a stored zero point of 15 stands for 16" in result.err) == (3, True), result.err
    assert not (tmp_path / "out").exists()
    assert ckconv("convert", source, f"{tmp_path}/copy/", "--to", "safetensors", "--no-verify").code == 0

    rewritten(source, says(checkpoint_format="gptq_v2"))
    assert ckconv("convert", source, f"{tmp_path}/out/", "--to", "safetensors", "--dequantize").code == 0


@pytest.mark.product("values")
@pytest.mark.parametrize(
    ("make", "change"),
    [
        (gptq_model, filled(".scales", "F16", 0x7E00)),
        (FP8, filled(".weight_scale_inv", "F32", 0x7FC00000)),
        (FP8, filled(".weight_scale_inv", "F32", 0x7F800000)),
        (compressed_model, filled(".weight_scale", "BF16", 0x7FC0)),
        (bitnet_model, filled(".weight_scale", "BF16", 0)),
        (FOUR, filled(".weight.absmax", "F32", 0x7FC00000)),
        (DOUBLE, filled(".weight.nested_absmax", "F32", 0x7FC00000)),
        (bitsandbytes_int8_model, filled(".SCB", "F32", 0x7FC00000)),
    ],
    ids=[
        "GPTQ",
        "FP8",
        "FP8, infinite",
        "int4 words",
        "ternary, divided by zero",
        "nf4",
        "nf4, quantized scales",
        "int8",
    ],
)
@pytest.mark.parametrize("model_type", ["llama", "unheard-of"])
def test_scales_that_are_no_numbers_are_said_and_not_decoded(
    tmp_path: Path, ckconv, make: Callable[..., Any], change: Change, model_type: str
) -> None:
    source = tmp_path / "packed"
    make(source, DECODER, model_type=model_type)
    rewritten(source, change)
    result = ckconv("convert", source, f"{tmp_path}/out/", "--to", "safetensors", "--dequantize")
    assert (result.code, "not a finite number" in result.err) == (4, True), result.err
    assert ckconv("convert", source, f"{tmp_path}/copy/", "--to", "safetensors").code == 0
    for arguments in (("inspect", "--hash", source), ("verify", f"{tmp_path}/copy", source)):
        result = ckconv(*arguments)
        assert (result.code, "is not a finite number: " in result.out) == (0, True), result.out + result.err


def test_products_beyond_float32_are_not_written(tmp_path: Path, ckconv) -> None:
    FP8(tmp_path / "packed", DECODER)
    rewritten(tmp_path / "packed", filled(".weight_scale_inv", "F32", 0x7F000000))
    result = ckconv("convert", tmp_path / "packed", f"{tmp_path}/out/", "--to", "safetensors", "--dequantize")
    assert (result.code, "is not a finite number" in result.err) == (4, True), result.err
    assert not (tmp_path / "out").exists()


def test_what_is_not_there_may_stand_in_a_list_and_so_may_classes(tmp_path: Path, ckconv) -> None:
    """A head that is tied, a tower that was taken off, and layers that predict further tokens."""
    source = tmp_path / "packed"
    compressed_model(source, DECODER)
    for listed in (["lm_head"], ["re:.*embed_tokens"], ["model.vision.proj"], ["mtp.layers.0*"], ["LlamaRMSNorm"], []):
        rewritten(source, says(ignore=listed))
        assert ckconv("inspect", source).code == 0, listed


def test_what_is_sound_and_not_read_is_named_and_copied(tmp_path: Path, ckconv) -> None:
    source = tmp_path / "packed"
    awq_model(source, DECODER)
    rewritten(source, says(version="gemv"))
    assert "7 of AWQ of version gemv" in ckconv("inspect", source).out
    assert ckconv("convert", source, f"{tmp_path}/copy/", "--to", "safetensors").code == 0
    result = ckconv("convert", source, f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize")
    assert (result.code, "AWQ of version gemv" in result.err) == (4, True)


@pytest.mark.parametrize(
    ("make", "change", "sentence"),
    [
        (
            ROUND,
            says(rotation_config={"hadamard_type": "hadamard"}),
            "weights and activations are rotated (rotation_config)",
        ),
        (ROUND, says(packing_format="auto_round:marlin"), "7 of GPTQ with packing_format auto_round:marlin"),
        (AO, array("._weight_qdata", "U8", 64, 32), "1 of torchao's tensor"),
        (AO, array("._weight_zero_point", "BF16", 64, 2), "1 of torchao's tensor with zero points that are floats"),
        (
            partial(torchao_offsets_model, said=False),
            as_many_groups_as_rows,
            "1 of torchao's tensor with zero points that are floats",
        ),
        (AO, array("._weight_act_pre_scale", "BF16", 64), "scales of activations that belong to the weights"),
        (
            TILES,
            array("._weight_qdata", "I32", 2, 8, 8, 32, 4),
            "1 of torchao's Int4TilePackedTo4dTensor of several matrices",
        ),
        (TILES, array("._weight_qdata", "U8", 8, 8, 32, 4), "1 of torchao's Int4TilePackedTo4dTensor of U8"),
        (TILES, array("._weight_act_pre_scale", "BF16", 64), "scales of activations that belong to the weights"),
        (MX, stacked, "1 of torchao's tensors of several matrices"),
        (MX, array("._weight_qdata", "F8_E5M2", 64, 64), "1 of torchao's tensor of F8_E5M2"),
        (OFFSETS, array("._weight_act_pre_scale", "BF16", 64), "scales of activations that belong to the weights"),
        (QUARK, says(global_quant_config={"weight": {"dtype": "int3"}}), "7 of Quark's int3"),
        (QUARK, says(layer_quant_config={"*.down_proj": {}}), "7 of Quark's int4 with other types for some layers"),
        (QUARK, array(".weight", "I8", 64, 64), "1 of Quark's int4"),
        (QUARK, says(export=None), ""),
        (
            partial(gptq_model, auto_round="auto_round:auto_gptq"),
            says(packing_format=None, checkpoint_format="gptq_v2"),
            "7 of auto-round's GPTQ with a checkpoint_format in place of its packing_format",
        ),
        (THREE, says(checkpoint_format="marlin"), "7 of GPTQ with checkpoint_format marlin"),
        (
            partial(gptq_model, bits=5, version=2, pack=planes),
            says(checkpoint_format="gptq"),
            "7 of 5-bit GPTQ with checkpoint_format gptq, where GPTQModel has gptq_p",
        ),
        (HQQ, array(".packing", "U8", 7), "1 of HQQ with packing "),
        (
            HQQ,
            array(".zero_scale", "F16", 2, 128, 1),
            "1 of HQQ with scales and zero points in one array (offload_meta)",
        ),
        (HQQ, array(".zero", "F32", 128, 1), "1 of HQQ with scales of another type than it computes in"),
        (partial(HQQ, bits=8, group=128), says(), "7 of HQQ with groups that cross rows"),
        (FOUR, filled(".weight.quant_map", "F32", 0), "1 of NF4 with a table of its own (quant_map)"),
        (FOUR, state(shape=[4096, 1]), "1 of NF4 with rows of an odd number of columns"),
        (bitsandbytes_int8_model, array(".weight_format", "U8"), ""),
    ],
)
def test_what_a_quantizer_may_hold_and_is_not_read_is_named(
    tmp_path: Path, ckconv, make: Callable[..., Any], change: Change, sentence: str
) -> None:
    source = tmp_path / "packed"
    make(source, DECODER)
    rewritten(source, change)
    found = ckconv("inspect", source)
    assert (found.code, sentence in found.out) == (0, True), found.out
    result = ckconv("convert", source, f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize")
    assert (result.code, sentence in result.err) == (4 if sentence else 0, True)
    assert ckconv("convert", source, f"{tmp_path}/copy/", "--to", "safetensors").code == 0


def test_a_configuration_beside_config_json_counts_where_that_has_none(tmp_path: Path, ckconv) -> None:
    """AutoGPTQ's and AutoAWQ's own files; the second one has other keys."""
    source = tmp_path / "packed"
    values = gptq_model(source, DECODER, version=2)
    rewritten(source, lambda tensors, config: config.pop("quantization_config"))
    said = {"bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"}
    (source / "quantize_config.json").write_text(json.dumps(said))
    assert ckconv("convert", source, f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize").code == 0
    assert not (tmp_path / "dense" / "quantize_config.json").exists()
    assert values

    assert ckconv("convert", source, f"{tmp_path}/copy/", "--to", "safetensors").code == 0
    assert (tmp_path / "copy" / "quantize_config.json").exists()

    awq_model(tmp_path / "awq", DECODER)
    rewritten(tmp_path / "awq", lambda tensors, config: config.pop("quantization_config"))
    (tmp_path / "awq" / "quant_config.json").write_text(json.dumps({"w_bit": 4, "q_group_size": 48, "version": "GEMM"}))
    assert ckconv("inspect", tmp_path / "awq").code == 3


def test_packed_matrices_of_a_family_that_stores_them_transposed_are_named_and_copied(tmp_path: Path, ckconv) -> None:
    """Square ones would be read the wrong way round, and nothing would tell."""
    rng, made = np.random.default_rng(3), dict[str, Any]()
    for name, shape in {"wte": (40, 64), "wpe": (32, 64), "ln_f": (64,), "h.0.ln_1": (64,), "h.0.ln_2": (64,),
                        "h.0.attn.c_attn": (64, 192), "h.0.mlp.c_fc": (64, 256), "h.0.mlp.c_proj": (256, 64),
                        }.items():  # fmt: skip
        made[f"{name}.weight"] = rng.standard_normal(shape).astype(np.float16)
    made |= gptq(drawn((64, 64), 4, 32, seed=1), "h.0.attn.c_proj")
    for name, width in (("ln_f", 64), ("h.0.ln_1", 64), ("h.0.ln_2", 64), ("h.0.attn.c_attn", 192),
                        ("h.0.attn.c_proj", 64), ("h.0.mlp.c_fc", 256), ("h.0.mlp.c_proj", 64)):  # fmt: skip
        made[f"{name}.bias"] = rng.standard_normal(width).astype(np.float16)
    config = {
        "model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 32, "vocab_size": 40,
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32},
    }  # fmt: skip
    save(tmp_path / "packed", config, {f"transformer.{name}": array for name, array in made.items()})
    found = ckconv("inspect", tmp_path / "packed")
    assert (found.code, "GPTQ, 4-bit, groups of 32: 1 matrix" in found.out) == (0, True), found.err
    assert ckconv("convert", tmp_path / "packed", f"{tmp_path}/copy/", "--to", "safetensors").code == 0
    for flags in (("--to", "gguf"), ("--to", "safetensors", "--dequantize")):
        result = ckconv("convert", tmp_path / "packed", f"{tmp_path}/out/", *flags)
        assert (result.code, "stored [in, out]" in result.err) == (4, True), result.err


#: What a matrix loses -> whether its codes alone may be values.
LOST = {
    "comfyui-fp8": True, "comfyui-fp8-old": True, "comfyui-int8": False, "comfyui-nvfp4": False, "bnb-int8": False,
    "bnb-nf4": False, "ct-fp8-channel-dynamic": False, "ct-w8a8-int8": False, "ct-mxfp8": False, "fp8-block": False,
    "modelopt-fp8": False, "modelopt-nvfp4": False,
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_a_matrix_that_lost_all_that_belongs_to_it_is_not_taken_for_values(name: str, tmp_path: Path, ckconv) -> None:
    """Its codes were copied, or decoded without a word, where all others were decoded."""
    source = shutil.copytree(Path(__file__).parents[1] / "fixtures/quantised" / name, tmp_path / "source")
    stored = {key: Raw(*it) for key, it in tensors_of(source).items()}
    matrix = next(key for key in stored if key.endswith("layers.0.mlp.down_proj.weight"))
    kept = {key: it for key, it in stored.items() if not key.startswith(matrix.removesuffix("weight")) or key == matrix}
    save_file(source / "model.safetensors", kept)

    for target in ("out/", "m.gguf"):
        to = "hf" if target == "out/" else "gguf"
        done = ckconv("convert", source, f"{tmp_path}/{target}", "--to", to, "--dequantize")
        if LOST[name]:
            assert (done.code, "no scale, beside 13 matrices with one" in done.out) == (0, True), (done.err, done.out)
        else:
            assert (done.code, matrix in done.err) == (4, True), done.err
    assert ckconv("convert", source, f"{tmp_path}/copy/", "--to", "hf").code == 0
