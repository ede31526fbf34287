"""Record what mlx-vlm makes of models that see: ``python scripts/record_mlx_vlm.py`` writes fixtures/mlx_vlm.json.

Of every case of ``fixtures/towers.json`` that mlx-vlm has a class for: what it calls each tensor, and in which order of
axes it stores it. Needs mlx-vlm, which need not be installed with what it depends on besides mlx-lm.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import mlx.core as mx  # noqa: E402
from mlx_vlm.utils import load_model  # noqa: E402
from tower_cases import MLX_VLM, recordings, with_tokens  # noqa: E402

CASES = ("gemma3-f16", "gemma3-bf16", "qwen2_5_vl-f32", "qwen3_vl-f16", "qwen3_vl-bf16")


def released(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as released checkpoints have it: mlx-vlm does not read that of transformers 5."""
    text = config["text_config"]
    rope = {"rope_theta": 10000.0, "rope_scaling": {**text["rope_parameters"], "type": "mrope"}}
    if config["model_type"] == "gemma3":
        rope = {"mm_tokens_per_image": config["mm_tokens_per_image"]}
    text = {**text, **rope}
    vision = {**config["vision_config"], "model_type": config["vision_config"]["model_type"].removesuffix("_vision")}
    outer = text if config["model_type"] == "qwen2_5_vl" else {}
    return {**outer, **config, "text_config": text, "vision_config": vision}


def made(name: str, root: Path) -> dict[str, Any]:
    """mlx-vlm's name -> the checkpoint's, and the order of its axes."""
    source = with_tokens(recordings()[name], root)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(released(config)))
    stored: Any = mx.load(str(source / "model.safetensors"))
    found = {}
    for called, array in arrays(load_model(source, lazy=True)).items():
        own = [(old, axes) for old, one in stored.items() for axes in orders(one, array)]
        found[called] = min(own, key=lambda pair: pair[1])
    return {called: [old, list(axes)] for called, (old, axes) in sorted(found.items())}


def arrays(model: Any) -> dict[str, mx.array]:
    """Every parameter by its path."""
    from mlx.utils import tree_flatten

    found: Any = tree_flatten(model.parameters())
    return dict(found)


def orders(stored: mx.array, array: mx.array) -> list[tuple[int, ...]]:
    """The orders of axes in which one array is the other."""
    if sorted(stored.shape) != sorted(array.shape) or stored.dtype != array.dtype:
        return []
    every = itertools.permutations(range(len(stored.shape)))
    return [axes for axes in every if same(stored.transpose(axes), array)]


def same(one: mx.array, other: mx.array) -> bool:
    """All values are equal."""
    return one.shape == other.shape and bool(mx.array_equal(one, other))


def main() -> None:
    """Record every case."""
    with tempfile.TemporaryDirectory() as folder:
        found = {name: made(name, Path(folder) / name) for name in CASES}
    document = {"mlx_vlm": version("mlx-vlm"), "tensors": found}
    MLX_VLM.write_text(json.dumps(document, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
