"""Record what mlx-vlm makes of models that see: ``python scripts/record_mlx_vlm.py`` writes fixtures/mlx_vlm.json.

Of cases of ``fixtures/towers.json`` that mlx-vlm has a class for: what its loader, ``sanitize`` and all, calls each
tensor and in which order of axes it has it, a layer for all. ``config.json`` is that of the output, as mlx-vlm does not
read transformers 5's; no value of it is recorded. Needs mlx-vlm, which need not be installed with what it depends on.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import mlx.core as mx  # noqa: E402
from mlx_vlm.utils import load_model  # noqa: E402
from tower_cases import MLX_VLM, seen_by_mlx_vlm, with_tokens  # noqa: E402

from ckconv.api import convert  # noqa: E402

CASES = (
    *("gemma3-f16", "gemma3-bf16", "gemma4-f16", "idefics3-f16", "internvl-bf16", "internvl_chat-bf16", "llava-f16"),
    *("mistral3-f16", "pixtral-f16", "qwen2_vl-f16", "qwen2_5_vl-f32", "qwen3_vl-f16", "qwen3_vl-bf16", "qwen3_5-f16"),
    *(
        "qwen3_5_moe-bf16",
        "qwen3_vl_moe-f16",
        "smolvlm-f16",
        "lfm2_vl-f16",
        "gemma4_unified-bf16",
        "gemma4_unified-f16",
        "glm_ocr-f16",
    ),
)

#: What save_pretrained of transformers 5 calls them -> what mlx-vlm's InternVL knows, as transformers 4.52 wrote.
OLDER = {"internvl": (("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head."),
                      ("model.", ""))}  # fmt: skip


def made(name: str, root: Path) -> dict[str, Any]:
    """mlx-vlm's name -> the checkpoint's, the order of its axes, what is added.

    ``{e}`` stands for every expert, ``|1`` for the second half.
    """
    source = with_tokens(seen_by_mlx_vlm(name), root / "source")
    convert(source, f"{root}/out/", to="mlx")
    stored: Any = mx.load(str(source / "model.safetensors"))
    (root / "renamed").mkdir()
    shutil.copy(root / "out" / "config.json", root / "renamed")
    config = json.loads((root / "out" / "config.json").read_text())
    older, tower = OLDER.get(config["model_type"], ()), config["vision_config"]
    written = {renamed(key, older): value for key, value in stored.items()}
    behind = [f"vision_tower.vision_model.encoder.layers.{n}." for n in range(tower.get("num_hidden_layers", 0), 9)]
    kept = {key: value for key, value in written.items() if name != "llava-f16" or not key.startswith(tuple(behind))}
    mx.save_safetensors(str(root / "renamed" / "model.safetensors"), kept, metadata={"format": "pt"})
    experts: dict[str, list[Any]] = {}
    for key in sorted(stored):
        experts.setdefault(re.sub(r"\bexperts\.\d+\.", "experts.{e}.", key), []).append(stored[key])
    whole = {key: mx.stack(each) if "{e}" in key else each[0] for key, each in experts.items()}
    fused = {key: one for key, one in whole.items() if key.endswith("gate_up_proj")}
    whole |= {f"{key}|{n}": half for key, one in fused.items() for n, half in enumerate(mx.split(one, 2, axis=-1))}
    found: dict[str, Any] = {}
    for called, array in sorted(arrays(load_model(root / "renamed", lazy=True)).items()):
        own = [(more, axes, old) for old, one in whole.items() for more in (0, 1) for axes in orders(one + more, array)]
        more, axes, old = min(own)
        entry = [pattern(old), list(axes), *([more] if more else [])]
        assert found.setdefault(pattern(called), entry) == entry, called
    return found


def renamed(name: str, starts: tuple[tuple[str, str], ...]) -> str:
    """The name with another beginning."""
    return next((new + name.removeprefix(old) for old, new in starts if name.startswith(old)), name)


def pattern(name: str) -> str:
    """The name of a tensor of every layer."""
    return re.sub(r"\b(layers?|blocks|deepstack_merger_list)\.\d+\.", r"\1.{n}.", name)


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
