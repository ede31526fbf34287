"""Reads a mock file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.core.layouts import DTYPES
from ckconv.core.metadata import Content
from ckconv.core.tensors import Extent, StoredTensor, TensorIndex, plain_tensor
from ckconv.errors import InputError
from ckconv.io.files import ByteSource, open_source

MAGIC = b"MOCKFILE"


def header_of(path: Path, source: ByteSource) -> tuple[dict[str, Any], int]:
    if source.read_at(0, 8) != MAGIC:
        raise InputError("mock.magic", f"starts with {source.read_at(0, 8)!r}", path=path)
    length = int.from_bytes(source.read_at(8, 8), "little")
    return json.loads(source.read_at(16, length)), 16 + length


def open_mock(path: Path, *, source: ByteSource | None = None) -> TensorIndex:
    if source is None:
        with open_source(path) as opened:
            return open_mock(path, source=opened)
    header, start = header_of(path, source)
    stored = []
    for name, (kind, shape, offset) in header["tensors"].items():
        dtype = DTYPES[kind]
        nbytes = dtype.nbytes(shape[-1]) * (len(shape) == 1 or shape[0])
        stored.append(StoredTensor(name, dtype, tuple(shape), Extent(path, start + offset, nbytes)))
    tensors = {tensor.name: plain_tensor(tensor.name, tensor) for tensor in stored}
    return TensorIndex(
        format="mock",
        version=0,
        path=path,
        files=(path,),
        architecture=header["config"]["family"],
        config=ModelConfig(**header["config"]),
        stored=tuple(stored),
        tensors=tensors,
        canonical_of={name: (name,) for name in tensors},
        metadata=header["metadata"],
    )


def content(index: TensorIndex, _: Mapping[str, Path]) -> Content:
    return Content(dict(index.metadata))
