"""What other quantisers' own libraries make of the checkpoints that they wrote: recorded, and computed here."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from packed_checkpoints import arrays_of

#: Of float32 scales the library's values were recorded before they are rounded to the model's type.
FLOAT32 = {"fp8-block", "modelopt-fp8"}

NAMES = (
    "awq-g32",
    "ct-fp8-channel-dynamic",
    "ct-fp8-tensor-static",
    "ct-w4-g32-actorder",
    "ct-w4-g32-asym",
    "ct-w4-g32-sym",
    "ct-w8-channel-sym",
    "ct-w8a8-int8",
    "fp8-block",
    "fp8-block-ue8m0",
    "gptq-4b-g32-asym-v1",
    "gptq-4b-g32-asym-v2",
    "gptq-4b-g32-sym-descact",
    "gptq-8b-gall-sym",
    "modelopt-fp8",
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
