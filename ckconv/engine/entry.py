"""What loaders of an output begin with: as long as that is not there, nothing of the rest is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ckconv.formats import format_of
from ckconv.formats.bump.write3 import CONFIG_NAME
from ckconv.formats.safetensors.spec import ADAPTER_CONFIG, INDEX_SUFFIX
from ckconv.output.publish import Small
from ckconv.plan.steps import Plan


def entry(plan: Plan, paths: Sequence[Path], side: Mapping[Path, Small]) -> list[Path]:
    """The files to name last, in this order.

    llama.cpp begins with the first shard of a split GGUF (``llama_model_loader``), the engine with the weights,
    transformers with the index of a checkpoint, or its one file of weights; mlx-lm reads ``config.json`` and takes
    no weights of which a tensor is missing.

    Args:
        paths: files of tensors, in order.
        side: files beside them.
    """
    if format_of(plan.format).single:
        return list(reversed(paths))
    indexes = [path for path, what in side.items() if what.name.endswith(INDEX_SUFFIX)]
    configs = [path for path, what in side.items() if what.name in (CONFIG_NAME, ADAPTER_CONFIG)]
    return [*configs, *paths, *indexes]
