"""Checkpoints of text and tower, made of what ``scripts/record_towers.py`` recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from family_cases import checkpoint as plain_checkpoint

RECORDED = Path(__file__).parents[1] / "fixtures" / "towers.json"


def recordings() -> dict[str, Any]:
    """Name -> what was recorded."""
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def checkpoint(recorded: Mapping[str, Any], root: Path) -> Path:
    """The checkpoint's directory."""
    plain_checkpoint(recorded, root)
    (root / "preprocessor_config.json").write_text(json.dumps(recorded["prepared"]))
    return root
