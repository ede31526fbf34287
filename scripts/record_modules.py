"""Write ckconv/families/index.json and modules.json anew, what the families are called and the paths of their modules.

To be run when a family file changes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ckconv.families import adapters, catalog
from ckconv.families.catalog import FAMILIES


def written(value: object, depth: int = 0) -> str:
    """JSON, a line for each path and group."""
    if isinstance(value, dict) and value:
        lines = (f"{json.dumps(key)}: {written(one, depth + 1)}" for key, one in value.items())
        return "{\n" + ",\n".join(" " * (depth + 1) + line for line in lines) + "\n" + " " * depth + "}"
    if isinstance(value, list) and depth == 1:
        return "[\n" + ",\n".join(f"  {json.dumps(one, separators=(',', ':'))}" for one in value) + "\n ]"
    return json.dumps(value, separators=(",", ":"))


def main() -> None:
    """Write both; the families are those of the first."""
    catalog.INDEX.write_text(written(catalog.index_of_files()) + "\n")
    paths = adapters.modules_of(FAMILIES[name] for name in FAMILIES)
    adapters.PATHS.write_text(written(adapters.recorded_paths(paths)) + "\n")


if __name__ == "__main__":
    main()
