"""Record which values the configuration classes of transformers take: tests/config_types.json.

    python scripts/record_config_types.py

ckconv/families/huggingface_types.py is held against the recording. Run it with the newest transformers.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ckconv.families.catalogue import FAMILIES  # noqa: E402

#: ``model_type`` -> keys of the family that has it.
KEYS = {name: family.document.keys for family in FAMILIES.values() for name in family.in_huggingface.names}

RECORDING = ROOT / "tests" / "config_types.json"

#: Name -> a value that is tried on every key.
PROBES: dict[str, Any] = {
    "null": None, "true": True, "whole": 7, "zero": 0, "negative": -1, "real": 0.5, "round": 2.0, "word": "word",
    "numbers": [0, 1], "words": ["a"], "nothing": [], "object": {"1": "a"},
}  # fmt: skip


def main() -> None:
    """Write the recording."""
    import transformers
    from huggingface_hub.errors import StrictDataclassFieldValidationError

    made: dict[str, dict[str, str]] = {}
    for model_type in KEYS:
        own = transformers.CONFIG_MAPPING[model_type]
        names = sorted(field.name for field in dataclasses.fields(own) if field.name in KEYS[model_type].keys)
        made[model_type] = {}
        for name in names:
            refused = []
            for probe, value in PROBES.items():
                try:
                    own(**{name: value})
                except StrictDataclassFieldValidationError:
                    refused.append(probe)
                except Exception:
                    continue  # the value is of a type that fits, and contradicts another key
            made[model_type][name] = " ".join(refused)
    versions = {"transformers": importlib.metadata.version("transformers")}
    RECORDING.write_text(json.dumps({"versions": versions, "probes": PROBES, "refused": made}, indent=1) + "\n")


if __name__ == "__main__":
    main()
