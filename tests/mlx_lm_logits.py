"""Logits of all positions, by mlx-lm on the processor, its arrays widened to float32; answers :mod:`consumers`."""

from __future__ import annotations

import sys
from pathlib import Path

# ruff: noqa: E402 - to load torch is two thirds of the start, and only tokenizers, which nobody asks, would use it.
sys.modules["torch"] = None

import mlx.core as mx
import numpy as np
from consumers import Request, serve
from mlx.utils import tree_map_with_path
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_adapters, load_model


def widened(name: str, array: mx.array) -> mx.array:
    """Scales and biases keep their type, in which the codes are decoded."""
    wide = array.dtype in (mx.bfloat16, mx.float16) and not name.endswith((".scales", ".biases"))
    return array.astype(mx.float32) if wide else array


def rows(request: Request) -> np.ndarray:
    model, _ = load_model(Path(request.model), strict=True)
    if request.adapter:
        model = load_adapters(model, request.adapter)
    model.update(tree_map_with_path(widened, model.parameters()))
    model.eval()
    logits = model(mx.array([request.prompt]), cache=make_prompt_cache(model))
    return np.array(logits[0].astype(mx.float32))


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    serve(rows)
