"""GGUF files by the gguf package: changed copies, and the end of every new one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np


def add_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """Write a key with the type that its value has in Python; whole numbers are u32, bytes an array."""
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, list | bytes):
        writer.add_array(key, value)
    else:
        writer.add_uint32(key, int(value))  # type: ignore[call-overload]


def finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Write header, keys and tensors into the file that the writer was made for."""
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def bytes_of(path: Path) -> dict[str, bytes]:
    """The bytes of every tensor of a GGUF."""
    return {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(path).tensors}


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """The array of every tensor of a GGUF."""
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def gguf_copy(
    source: Path,
    target: Path,
    *,
    keys: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
    tensors: Mapping[str, np.ndarray | tuple[np.ndarray, gguf.GGMLQuantizationType]] | None = None,
    types: Mapping[str, gguf.GGUFValueType] | None = None,
) -> Path:
    """A copy in which keys and tensors are others, missing or more.

    Args:
        keys: values, which take the type of the key that they replace; new ones that of their value.
        without: names of keys and of tensors.
        tensors: arrays, or blocks with their type, in the place of those of the same name, and further ones.
        types: of keys that have another one in the source.
    """
    reader, values, arrays = gguf.GGUFReader(source), dict(keys or {}), dict(tensors or {})
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in {"general.architecture", *without}:
            kind, *of = field.types
            kind = (types or {}).get(key, kind)
            writer.add_key_value(key, values.pop(key, field.contents()), kind, of[0] if of else None)
    for key, value in values.items():
        add_value(writer, key, value)
    stored = {tensor.name: (tensor.data, tensor.tensor_type) for tensor in reader.tensors if tensor.name not in without}
    for name, entry in (stored | arrays).items():
        data, kind = entry if isinstance(entry, tuple) else (entry, None)
        writer.add_tensor(name, data, raw_dtype=kind)
    return finish(writer, target)
