"""Vectors that MLX itself decoded: ``fixtures/mlx/dequantize.npz``.

``python -m tests.mlx_vectors`` writes the file anew; that needs mlx. The inputs come from a fixed seed; of the two rows
of each case one has scales as models have them, the other any bits at all: infinities, NaN, subnormal numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from packing import raw_of

from ckconv.core.layouts import BF16, F16, F32, DType
from ckconv.quant.mlx import Quantization

PATH = Path(__file__).parent.parent / "fixtures" / "mlx" / "dequantize.npz"
COLUMNS = 256


@dataclass(frozen=True)
class Case:
    quantization: Quantization
    dtype: DType

    @property
    def key(self) -> str:
        q = self.quantization
        return f"{q.mode}-{q.bits}-{q.group_size}-{self.dtype}"


CASES = [
    *(
        Case(Quantization("affine", bits, (32, 64, 128)[(i + j) % 3]), dtype)
        for i, bits in enumerate((1, 2, 3, 4, 5, 6, 8))
        for j, dtype in enumerate((F32, F16, BF16))
    ),
    *(
        Case(Quantization(mode, bits, group), dtype)
        for mode, bits, group in (("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16))
        for dtype in (F32, F16, BF16)
    ),
]


def inputs(case: Case, rng: np.random.Generator, rows: int = 2, columns: int = COLUMNS) -> list[np.ndarray]:
    """Raw bytes of weight, scales and biases; odd rows have scales and biases of random bits."""
    q = case.quantization
    groups = columns // q.group_size
    weight = rng.integers(0, 256, (rows, columns * q.bits // 8), dtype=np.uint8)
    if not q.has_biases:
        scales = rng.integers(100, 130, (rows, groups), dtype=np.uint8)
        scales[1::2] = rng.integers(0, 256, scales[1::2].shape, dtype=np.uint8)
        return [weight, scales]
    scale = rng.normal(0, 0.02, (rows, groups)).astype(np.float32)
    bias = (scale * rng.uniform(-(1 << q.bits), 0, scale.shape)).astype(np.float32)
    planes = [raw_of(numbers, case.dtype.name).copy() for numbers in (scale, bias)]
    for plane in planes:
        plane[1::2] = rng.integers(0, 256, plane[1::2].shape, dtype=np.uint8)
    return [weight, *planes]


def by_mlx(mx: Any, case: Case, planes: list[np.ndarray], wide: bool = False) -> np.ndarray:
    """What ``mx.dequantize`` gives; with ``wide`` from scales and biases turned into float32 first."""
    types = {F32: mx.float32, F16: mx.float16, BF16: mx.bfloat16}
    q = case.quantization
    arrays = [mx.array(planes[0].view(np.uint32))]
    for plane in planes[1:]:
        if not q.has_biases:
            arrays.append(mx.array(plane))
        elif case.dtype is F32:
            arrays.append(mx.array(plane.view(np.float32)))
        else:
            arrays.append(mx.view(mx.array(plane.view(np.uint16)), types[case.dtype]))
            if wide:
                arrays[-1] = arrays[-1].astype(mx.float32)
    dtype = None if q.has_biases else types[case.dtype]
    out = mx.dequantize(*arrays, group_size=q.group_size, bits=q.bits, mode=q.mode, dtype=dtype)
    return np.array(out.astype(mx.float32))


def stored() -> Iterator[tuple[Case, list[np.ndarray], np.ndarray]]:
    """Every case of the file: its inputs and MLX's values."""
    with np.load(PATH, allow_pickle=False) as file:
        for case in CASES:
            count = 3 if case.quantization.has_biases else 2
            yield case, [file[f"{case.key}/{i}"] for i in range(count)], file[f"{case.key}/values"]


def raw_tensors(path: Path) -> dict[str, np.ndarray]:
    """A safetensors file's tensors as raw bytes, uint8 ``[rows, bytes of a row]``."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = np.frombuffer(data, np.uint8, offset=8 + length)
    return {name: body[slice(*t["data_offsets"])].reshape(t["shape"][0], -1) for name, t in header.items()}


def write() -> None:
    import mlx.core as mx

    rng = np.random.default_rng(20)
    arrays = {}
    for case in CASES:
        planes = inputs(case, rng)
        arrays |= {f"{case.key}/{i}": plane for i, plane in enumerate(planes)}
        arrays[f"{case.key}/values"] = by_mlx(mx, case, planes)
    np.savez_compressed(PATH, **arrays)


if __name__ == "__main__":
    write()
