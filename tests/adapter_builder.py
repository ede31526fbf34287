"""Small adapters that this project did not write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_copies import finish
from safetensors.numpy import save_file

Q = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.0.mlp.down_proj"

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}


def random(*shape: int, seed: int = 0, dtype: str = "f4") -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(0, 0.1, shape).astype(dtype)


def peft(path: Path, tensors: Mapping[str, np.ndarray], **config: Any) -> Path:
    """An adapter directory; ``tensors`` are named from the module's path on; a setting of ``...`` is left out."""
    path.mkdir(parents=True, exist_ok=True)
    save_file(
        {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}, path / "adapter_model.safetensors"
    )
    document = {key: value for key, value in {**CONFIG, **config}.items() if value is not ...}
    (path / "adapter_config.json").write_text(json.dumps(document))
    return path


def pair(module: str = Q, *, rows: int = 64, cols: int = 64, rank: int = 4, dtype: str = "f4") -> dict[str, np.ndarray]:
    return {
        f"{module}.lora_A.weight": random(rank, cols, dtype=dtype),
        f"{module}.lora_B.weight": random(rows, rank, seed=1, dtype=dtype),
    }


def mlx(path: Path, tensors: Mapping[str, np.ndarray], **config: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), path / "adapters.safetensors")
    document = {
        "fine_tune_type": "lora",
        "num_layers": 2,
        "lora_parameters": {"rank": 4, "scale": 20.0, "dropout": 0.0},
    }
    (path / "adapter_config.json").write_text(json.dumps({**document, **config}))
    return path


def gguf_adapter(
    path: Path, tensors: Mapping[str, np.ndarray], *, alpha: float | None = 8.0, arch: str = "llama", kind: str = "lora"
) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, kind)
    if alpha is not None:
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    return finish(writer, path)
