"""Write ckconv/families/modules.json anew, the paths of all modules: to be run when a family file changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ckconv.families.catalog import FAMILIES
from ckconv.families.modules import INDEX, document_of, modules_of


def written(value: object, depth: int = 0) -> str:
    """JSON, a line for each path and group."""
    if isinstance(value, dict) and value:
        lines = (f"{json.dumps(key)}: {written(one, depth + 1)}" for key, one in value.items())
        return "{\n" + ",\n".join(" " * (depth + 1) + line for line in lines) + "\n" + " " * depth + "}"
    if isinstance(value, list) and depth == 1:
        return "[\n" + ",\n".join(f"  {json.dumps(one, separators=(',', ':'))}" for one in value) + "\n ]"
    return json.dumps(value, separators=(",", ":"))


def text() -> str:
    """The file as it should be."""
    return written(document_of(modules_of(FAMILIES[name] for name in FAMILIES))) + "\n"


if __name__ == "__main__":
    INDEX.write_text(text())
