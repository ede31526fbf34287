"""The small Gemma 3 of the fixtures with another configuration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from conftest import FIXTURES

#: One RoPE base in all layers, and a window that no prompt leaves: what the engine of bump 5 computes.
ONE_BASE: dict[str, Any] = {"rope_local_base_freq": 1000000.0, "max_position_embeddings": 32}


def gemma3(folder: Path, changes: dict[str, Any]) -> Path:
    """A copy in ``folder``; a key whose value is ``None`` is left out."""
    copy = folder / "gemma3"
    shutil.copytree(FIXTURES / "hf/gemma3-text-bf16", copy)
    configure(copy, changes)
    return copy


def configure(checkpoint: Path, changes: dict[str, Any]) -> None:
    """Change a checkpoint's configuration in place."""
    path = checkpoint / "config.json"
    document = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}, indent=2))
