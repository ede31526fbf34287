"""What a GGUF says besides its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckconv.core.metadata import Content, numbered
from ckconv.core.tensors import TensorIndex
from ckconv.formats.gguf.keys import copied
from ckconv.formats.gguf.read_header import read_header
from ckconv.formats.gguf.scales import has_scales
from ckconv.io.bytesource import open_source


def content(index: TensorIndex, _: Mapping[str, Path]) -> Content:
    """The metadata of every file of the set."""
    keys: dict[str, Any] = {}
    for number, path in enumerate(index.files):
        with open_source(path) as source:
            shard = read_header(source)
            keys["version"] = min(shard.version, keys.get("version", shard.version))
            keys |= {numbered(key, number): value for key, value in copied(shard.metadata).items()}
    return Content(keys, paths={path.name: path for path in index.side_files})


def shown(_: TensorIndex, out: TensorIndex) -> dict[str, Any]:
    """Whether scales of scales stand beside their matrices."""
    return {"tensor_scales": has_scales(out.stored)}
