"""Files of Mistral's own checkpoints, and of Meta's: several without an index, and ``params.json``.

Files ``consolidated.00.pth``, ``consolidated.01.pth`` ... hold different tensors of a model each, or a share of every
matrix: some of its rows or of its columns, as many as processors shall compute it (``model_parallel_size`` of Meta's
llama; ``write_model`` of transformers' ``convert_llama_weights_to_hf.py`` knows of which matrix it is which).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ckconv.errors import UnsupportedError, quoted
from ckconv.families.naming_schemes import NAMES_KEY
from ckconv.families.reference import REFERENCE, reference_config
from ckconv.formats.safetensors.read import SafetensorsFile

_PART = re.compile(r"consolidated\.\d\d\.(?:pth|pt)")
_TORCH_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def parts_of(name: str, names: Sequence[str]) -> list[str]:
    """The files of ``names`` that hold a model together with the file ``name``; nothing where that holds one alone."""
    return sorted(filter(_PART.fullmatch, names)) if _PART.fullmatch(name) else []


def put_together(files: Sequence[SafetensorsFile]) -> tuple[SafetensorsFile, ...]:
    """The files, none of which holds a tensor of another.

    Raises:
        UnsupportedError: ``hf.shares``, two hold a share of one tensor.
    """
    holders: dict[str, Path] = {}
    for file in files:
        for stored in file.tensors:
            other = holders.setdefault(stored.name, file.path)
            if other != file.path:
                message = (
                    f"{other.name} and {file.path.name} both hold {quoted(stored.name)}: "
                    f"each of {len(files)} files has a share of every matrix, of some by rows, of others by columns"
                )
                hint = "take the same model as Hugging Face has it, or join them with its publisher's script"
                raise UnsupportedError("hf.shares", message, path=file.path, tensor=stored.name, hint=hint)
    return tuple(files)


def described(
    params: Mapping[str, Any], files: tuple[SafetensorsFile, ...]
) -> tuple[dict[str, Any] | None, str, tuple[SafetensorsFile, ...]]:
    """The configuration of another implementation in the words of ``config.json``; the tensors have its names."""
    config, note = reference_config(params)
    if config is None:
        return None, f"{note}: tensors keep the names of the file", files
    dtype = next((tensor.dtype.name for tensor in files[0].tensors), "")
    config |= {key: _TORCH_NAMES[dtype] for key in ("dtype", "torch_dtype") if dtype in _TORCH_NAMES}
    return config, note, tuple(file._replace(metadata={**file.metadata, NAMES_KEY: REFERENCE}) for file in files)
