"""A checkpoint of torch.distributed without torch: ``.metadata`` by Python's own pickle, of stubs for its classes."""

from __future__ import annotations

import io
import math
import pickle
import struct
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

_METADATA = "torch.distributed.checkpoint.metadata"
_MODULES = {
    _METADATA: ("Metadata", "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties", "MetadataIndex"),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
}


class Size(tuple[int, ...]):
    """``torch.Size``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Size, (tuple(self),)


class Dtype:
    """A type of torch's, pickled by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> str:
        return self.name


Size.__module__ = Dtype.__module__ = "torch"


def _made(module: ModuleType, name: str, **state: Any) -> Any:
    made = getattr(module, name)()
    made.__dict__ |= state
    return made


def chunk(values: np.ndarray) -> bytes:
    """What ``torch.save`` writes of a tensor of float32."""

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    def numbers(*found: int) -> bytes:
        return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in found) + b"t"

    strides = [math.prod(values.shape[n + 1 :]) for n in range(values.ndim)]
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu")
    storage += b"J" + struct.pack("<i", values.size) + b"tQ"
    body = storage + b"K\0" + numbers(*values.shape) + numbers(*strides) + b"\x89ccollections\nOrderedDict\n)R"
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as opened:
        opened.writestr("archive/data.pkl", b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + body + b"tR.")
        opened.writestr("archive/data/0", np.ascontiguousarray(values).tobytes())
    return made.getvalue()


Piece = tuple[tuple[int, ...], np.ndarray]


def distributed(root: Path, tensors: dict[str, tuple[tuple[int, ...], list[Piece]]], **changes: Any) -> Path:
    """Tensors by key: the size, and the chunks by where they begin; each in a file of its own number.

    Args:
        changes: ``path``, ``offset`` and ``length`` of the first chunk; ``dtype`` of all tensors; ``drop`` as many
            chunks' places; ``extra`` in the pickle; ``place`` of the model in the state.
    """
    root.mkdir()
    modules = {"torch": ModuleType("torch")}
    for module, names in _MODULES.items():
        modules[module] = ModuleType(module)
        for name in names:
            setattr(modules[module], name, type(name, (), {"__module__": module, "__qualname__": name}))
    dtype = Dtype(changes.get("dtype", "float32"))
    modules["torch"].Size, modules["torch"].__dict__[dtype.name] = Size, dtype  # type: ignore[attr-defined]
    told, held = modules[_METADATA], modules["torch.distributed.checkpoint.filesystem"]
    described, places, paths, files = {}, {}, {}, dict[int, bytes]()
    for key, (size, pieces) in tensors.items():
        chunks = [
            _made(told, "ChunkStorageMetadata", offsets=Size(at), sizes=Size(piece.shape)) for at, piece in pieces
        ]
        properties = _made(told, "TensorProperties", dtype=dtype)
        described[key] = _made(told, "TensorStorageMetadata", properties=properties, size=Size(size), chunks=chunks)
        paths[key] = (changes.get("place", "model"), key.partition(".")[2])
        for number, (at, piece) in enumerate(pieces):
            blob, before = chunk(piece), files.get(number, b"")
            index = _made(told, "MetadataIndex", fqn=key, offset=Size(at), index=number)
            info = {"relative_path": f"__{number}_0.distcp", "offset": len(before), "length": len(blob)}
            if not places:
                info |= {name: value for name, value in changes.items() if name in ("offset", "length")}
                info["relative_path"] = changes.get("path", info["relative_path"])
            places[index] = _made(held, "_StorageInfo", **info, transform_descriptors=changes.get("transforms"))
            files[number] = before + blob
    for _ in range(changes.get("drop", 0)):
        places.popitem()
    said = _made(told, "Metadata", state_dict_metadata=described, storage_data=places, planner_data=paths)
    said.extra = changes.get("extra")
    with patch.dict(sys.modules, modules):
        (root / ".metadata").write_bytes(pickle.dumps(said, protocol=4))
    for number, data in files.items():
        (root / f"__{number}_0.distcp").write_bytes(data)
    return root
