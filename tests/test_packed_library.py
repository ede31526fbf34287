"""What other quantizers' own libraries make of the checkpoints that they wrote: recorded, and computed here."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from packed_checkpoints import arrays_of

#: Of float32 scales the library's values were recorded before they are rounded to the model's type.
FLOAT32 = {"fp8-block", "modelopt-fp8", "bnb-int8", "torchao-float8", "torchao-int8"}

NAMES = (
    "autoround-3b",
    "autoround-5b",
    "autoround-awq-4b",
    "autoround-awq-6b",
    "awq-g32",
    "bnb-fp4-double",
    "bnb-int8",
    "bnb-nf4",
    "bnb-nf4-double",
    "comfyui-fp8",
    "comfyui-fp8-old",
    "comfyui-int8",
    "comfyui-mxfp8",
    "comfyui-nvfp4",
    "ct-fp8-channel-dynamic",
    "ct-fp8-tensor-static",
    "ct-w3-asym",
    "ct-w4-g32-actorder",
    "ct-w4-g32-asym",
    "ct-w4-g32-sym",
    "ct-w6-sym",
    "ct-w8-channel-sym",
    "ct-w8a8-int8",
    "fp8-block",
    "fp8-block-ue8m0",
    "gptq-4b-g32-asym-v1",
    "gptq-4b-g32-asym-v2",
    "gptq-4b-g32-sym-descact",
    "gptq-8b-gall-sym",
    "gptq-p-3b",
    "hqq-2b",
    "hqq-3b-across",
    "hqq-4b",
    "modelopt-fp8",
    "ct-mxfp4",
    "ct-mxfp8",
    "ct-nvfp4",
    "metal-q4g64",
    "modelopt-nvfp4",
    "quark-int4",
    "torchao-float8",
    "torchao-int4",
    "torchao-int4-plain",
    "torchao-int4-tiles",
    "torchao-int8",
    "torchao-mxfp4",
    "torchao-mxfp8",
    "torchao-nvfp4",
)


@pytest.mark.parametrize("name", NAMES)
def test_every_matrix_has_the_values_of_the_library(tmp_path: Path, ckconv, fixtures: Path, name: str) -> None:
    recorded = json.loads((fixtures / "quantised" / f"{name}.json").read_text())["library"]
    source, out = fixtures / "quantised" / name, tmp_path / "dense"
    dtype = "f32" if name in FLOAT32 else "source"
    flags = ("--to", "safetensors", "--dequantize", "--dtype", dtype)
    result = ckconv("convert", source, f"{out}/", *flags)
    assert result.code == 0, result.err

    arrays = arrays_of(out)
    assert len(recorded) == 14
    for matrix, digest in recorded.items():
        raw = arrays[matrix]
        if raw.dtype == "BF16":
            values = (np.frombuffer(raw.data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw.data, {"F16": np.float16, "F32": np.float32}[raw.dtype]).astype(np.float32)
        assert hashlib.sha256((values + np.float32(0)).tobytes()).hexdigest() == digest, matrix


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_has_every_array_and_the_model_is_the_same(tmp_path: Path, ckconv, fixtures: Path, name: str) -> None:
    source, out = fixtures / "quantised" / name, tmp_path / "copy"
    assert ckconv("convert", source, f"{out}/", "--to", "safetensors").code == 0
    assert arrays_of(out) == arrays_of(source)
    assert (out / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert ckconv("diff", source, out).code == 0


#: NumPy's faster loops, all that a processor of x86-64 may have beyond its baseline.
FASTER = "SSE41 SSE42 POPCNT AVX F16C FMA3 AVX2 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"

#: Every output of these in one process, because starting one takes longer.
ALL = """
import hashlib, sys
from pathlib import Path
from ckconv.cli import run
fixtures, out = Path(sys.argv[1]), Path(sys.argv[2])
out.mkdir()
for line in sys.stdin.read().splitlines():
    name, *flags = line.split()
    made = out / "-".join(line.split()).replace("/", "-")
    status = run(["convert", "-q", str(fixtures / name), f"{made}/", *flags])
    for path in sorted(made.rglob("*")) if status == 0 else ():
        print(line, path.name, hashlib.sha256(path.read_bytes()).hexdigest())
"""

RUNS = [
    *(f"{name} --to safetensors --dequantize --dtype {dtype}" for name in NAMES for dtype in ("f32", "source")),
    *(f"{name} --to gguf" for name in ("awq-g32", "ct-w4-g32-sym", "fp8-block-ue8m0", "gptq-8b-gall-sym", "ct-mxfp4")),
    *(f"{name} --to mlx" for name in ("awq-g32", "ct-w4-g32-asym", "fp8-block-ue8m0", "metal-q4g64", "ct-mxfp8")),
    *(f"{name} --to hf --pack compressed-tensors" for name in ("awq-g32", "gptq-4b-g32-asym-v1", "gptq-8b-gall-sym")),
    "../hf/qwen3-tied-bf16 --to gguf --quantize q4_0",
    "../hf/qwen3-tied-bf16 --to mlx --quantize affine:4:32",
    "../kquants/llama64.Q4_K_M.gguf --to mlx",
    "../kquants/llama64.Q4_K_M.gguf --to safetensors --dequantize",
]


def test_the_bytes_do_not_depend_on_the_processor(tmp_path: Path, fixtures: Path) -> None:
    """Decoded, re-packed and quantized with NumPy's plainest loops, they are the same."""
    made = []
    for name, environment in (("plain", {}), ("slow", {"NPY_DISABLE_CPU_FEATURES": FASTER})):
        program = [sys.executable, "-W", "ignore", "-c", ALL, str(fixtures / "quantised"), str(tmp_path / name)]
        own = {**os.environ, "PYTHONPATH": str(fixtures.parent), **environment}
        done = subprocess.run(program, input="\n".join(RUNS), check=True, env=own, capture_output=True, text=True)
        made.append(done.stdout)
    assert {line.rsplit(" ", 2)[0] for line in made[0].splitlines()} == set(RUNS)
    assert made[0] == made[1]
