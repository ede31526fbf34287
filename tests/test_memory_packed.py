"""Converting a checkpoint that another quantizer packed takes 96 MB at most, whatever its size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors_builder import header_of
from test_memory import COMMAND, MB, REFUSED, peak, pytestmark

__all__ = ["pytestmark"]

HIDDEN, FFN = 2048, 8192
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 1, "hidden_size": HIDDEN, "intermediate_size": FFN,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 64, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": "float16",
}  # fmt: skip
SHAPES = {
    **{f"self_attn.{kind}_proj": (HIDDEN, HIDDEN) for kind in "qkvo"},
    "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN),
}  # fmt: skip

Arrays = dict[str, tuple[str, list[int]]]


def awq(rows: int, columns: int) -> Arrays:
    groups, words = columns // 128, rows // 8
    return {
        "qweight": ("I32", [columns, words]), "qzeros": ("I32", [groups, words]), "scales": ("F16", [groups, rows]),
    }  # fmt: skip


def gptq(rows: int, columns: int) -> Arrays:
    return awq(rows, columns) | {"qweight": ("I32", [columns // 8, rows])}


def compressed(rows: int, columns: int) -> Arrays:
    return {
        "weight_packed": ("I32", [rows, columns // 8]), "weight_scale": ("BF16", [rows, columns // 128]),
        "weight_zero_point": ("I32", [rows // 8, columns // 128]), "weight_shape": ("I64", [2]),
    }  # fmt: skip


def fp8(rows: int, columns: int) -> Arrays:
    return {"weight": ("F8_E4M3", [rows, columns]), "weight_scale_inv": ("F32", [-(-rows // 128), columns // 128])}


def nvfp4(rows: int, columns: int) -> Arrays:
    return {
        "weight": ("U8", [rows, columns // 2]), "weight_scale": ("F8_E4M3", [rows, columns // 16]),
        "weight_scale_2": ("F32", []),
    }  # fmt: skip


WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 128}
PACKINGS: dict[str, tuple[Callable[[int, int], Arrays], dict[str, Any]]] = {
    "AWQ": (awq, {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}),
    "GPTQ": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2"}),
    "compressed-tensors": (
        compressed,
        {
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
        },
    ),
    "FP8": (fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "NVFP4": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
}  # fmt: skip


FILLED: dict[str, Callable[[list[int]], np.ndarray]] = {
    "F16": lambda shape: np.full(shape, 0x3C01, np.uint16),
    "BF16": lambda shape: np.full(shape, 0x3F83, np.uint16),
    "F32": lambda shape: np.ones(shape, np.float32),
    "I32": lambda shape: np.full(shape, 0xBBBBBBBB, np.uint32),
}


def sparse(root: Path, name: str) -> Path:
    """A checkpoint whose codes are zeros that take no space on the disk.

    Scales have eleven digits, BF16 eight, and zero points are 11: of FP16 ones only Q8_0 holds the numbers.
    """
    arrays, settings = PACKINGS[name]
    facts = {"model.embed_tokens.weight": ("F16", [64, HIDDEN]), "model.norm.weight": ("F16", [HIDDEN])}
    filled: dict[str, np.ndarray] = {}
    for kind in ("input", "post_attention"):
        facts[f"model.layers.0.{kind}_layernorm.weight"] = ("F16", [HIDDEN])
    for module, shape in SHAPES.items():
        for suffix, fact in arrays(*shape).items():
            array = f"model.layers.0.{module}.{suffix}"
            facts[array] = fact
            filled |= (
                {array: FILLED[fact[0]](fact[1])}
                if "qweight" not in suffix and "packed" not in suffix and fact[0] in FILLED
                else {}
            )
            if suffix == "weight_shape":
                filled[array] = np.array(shape, np.int64)
    header, size = header_of(facts)
    text = json.dumps(header).encode()
    root.mkdir()
    (root / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": settings}))
    with open(root / "model.safetensors", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.truncate(8 + len(text) + size)
        for array, values in filled.items():
            out.seek(8 + len(text) + header[array]["data_offsets"][0])
            out.write(values.tobytes())
    return root


BLOCKS = {"AWQ": "Q8_0", "GPTQ": "Q8_0", "compressed-tensors": "Q4_1", "FP8": "BF16", "NVFP4": "NVFP4"}


@pytest.mark.parametrize("name", PACKINGS)
def test_a_packed_checkpoint_is_repacked_within_96_megabytes(tmp_path: Path, name: str) -> None:
    """Read, written and verified, with two threads: 67 million weights."""
    source, out = sparse(tmp_path / "packed", name), tmp_path / "m.gguf"
    assert peak(COMMAND, "convert", source, out, "--to", "gguf", "--jobs", "2") < 96 * MB
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(out).tensors}
    assert types["blk.0.ffn_down.weight"] == BLOCKS[name]


OTHERS = {
    "triples": ("mlx",),
    "decoded": ("safetensors", "--dequantize"),
    "quantised": ("gguf", "--dequantize", "--quantize", "q8_0"),
    "rounded": ("safetensors", "--dequantize", "--dtype", "source"),
}


@pytest.mark.parametrize("flags", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("name", ["AWQ", "FP8", "NVFP4"])
def test_other_outputs_of_one_take_no_more(tmp_path: Path, name: str, flags: tuple[str, ...]) -> None:
    source = sparse(tmp_path / "packed", name)
    assert peak(COMMAND, "convert", source, f"{tmp_path}/out/", "--to", *flags, "--jobs", "2") < 96 * MB


#: Rows of so many columns, of which one would take gigabytes where it is taken apart.
WIDE = 1 << 26
AS_WIDE = f"matrices with rows of {WIDE:,} columns (4,194,304 are read at once)"
HUGE: dict[str, tuple[Arrays, dict[str, Any], str]] = {
    "AWQ": (
        {"qweight": ("I32", [WIDE, 1]), "qzeros": ("I32", [1, 1]), "scales": ("F16", [1, 8])},
        {"quant_method": "awq", "version": "gemm"}, AS_WIDE,
    ),
    "GPTQ": (
        {"qweight": ("I32", [WIDE // 8, 8]), "qzeros": ("I32", [1, 1]), "scales": ("F16", [1, 8])},
        {"quant_method": "gptq"}, AS_WIDE,
    ),
    "GPTQ's index": (
        {
            "qweight": ("I32", [WIDE // 8, 8]), "qzeros": ("I32", [1, 1]), "scales": ("F16", [1, 8]),
            "g_idx": ("I32", [WIDE]),
        },
        {"quant_method": "gptq"}, "arrays of 268,435,456 bytes for any row (67,108,864 are read at once)",
    ),
    "FP8": (
        {"weight": ("F8_E4M3", [1, WIDE]), "weight_scale": ("F32", [1, 1])}, {"quant_method": "compressed-tensors"},
        AS_WIDE,
    ),
    "mxfp4": (
        {"weight_packed": ("U8", [1, WIDE // 2]), "weight_scale": ("U8", [1, WIDE // 32])},
        {"quant_method": "compressed-tensors"}, AS_WIDE,
    ),
    "tiles": (
        {"_weight_qdata": ("I32", [1, WIDE // 128, 32, 4]), "_weight_scale_and_zero": ("BF16", [1, 8, 2])},
        {"quant_method": "torchao"}, AS_WIDE,
    ),
}  # fmt: skip


def holes(root: Path, arrays: Arrays, settings: dict[str, Any]) -> Path:
    """A checkpoint of one module whose arrays take no space on the disk."""
    header, size = header_of({f"w.{name}": fact for name, fact in arrays.items()})
    text = json.dumps(header).encode()
    root.mkdir()
    said = {"quantization_config": settings} if settings else {"quantization": {"bits": 4, "group_size": 64}}
    (root / "config.json").write_text(json.dumps({"model_type": "unheard-of", **said}))
    with open(root / "model.safetensors", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.truncate(8 + len(text) + size)
    return root


@pytest.mark.parametrize("name", HUGE)
def test_what_would_take_gigabytes_is_refused_by_its_header(tmp_path: Path, name: str) -> None:
    arrays, settings, sentence = HUGE[name]
    source = holes(tmp_path / "in", arrays, settings)
    flags = ("--to", "safetensors", "--dequantize")
    assert peak(REFUSED, sentence, "convert", source, f"{tmp_path}/out/", *flags) < 80 * MB


def test_wide_rows_of_mlx_are_refused_by_their_header(tmp_path: Path) -> None:
    arrays = {
        "weight": ("U32", [1, WIDE // 8]), "scales": ("F16", [1, WIDE // 64]), "biases": ("F16", [1, WIDE // 64])
    }  # fmt: skip
    source = holes(tmp_path / "in", arrays, {})
    sentence = f"'w.weight' has rows of {WIDE:,} columns; 4,194,304 are read at once"
    assert peak(REFUSED, sentence, "convert", source, tmp_path / "m.gguf", "--dequantize") < 80 * MB
