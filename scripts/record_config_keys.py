"""Record the keys that the configuration classes of transformers and mlx-lm know: tests/config_keys.json.

    python scripts/record_config_keys.py

The tables of ckconv/families are held against the recording, so that no key of a class is left unclassified. Run it
with the newest transformers and mlx-lm, look at what changed, and give every new key a row.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ckconv.families.catalogue import FAMILIES  # noqa: E402

KEYS = [name for family in FAMILIES.values() for name in family.in_huggingface.names]

RECORDING = ROOT / "tests" / "config_keys.json"

#: Methods that every configuration goes through.
_METHODS = ("__post_init__", "convert_rope_params_to_dict")

#: Keys that a method takes out of what a document says besides the class's fields.
_TAKEN = re.compile(r'kwargs\.(?:pop|get)\(\s*"(\w+)"')


def main() -> None:
    """Write the recording."""
    import transformers
    from transformers.modeling_rope_utils import RopeParameters

    made: dict[str, Any] = {
        "versions": {name: importlib.metadata.version(name) for name in ("transformers", "mlx-lm")},
        "transformers": {name: of_transformers(transformers, name) for name in KEYS},
        "mlx-lm": {name: keys for name in KEYS if (keys := of_mlx(name))},
        "rope": sorted(RopeParameters.__annotations__),
    }
    RECORDING.write_text(json.dumps(made, indent=1) + "\n")


def of_transformers(transformers: Any, model_type: str) -> list[str]:
    """Fields of the class and of its bases, other names of them, and what its methods ask for."""
    own = type(transformers.AutoConfig.for_model(model_type))
    fields = {field.name for field in dataclasses.fields(own)} | set(own.attribute_map)
    found = (vars(c).get(method) for c in own.__mro__ for method in _METHODS)
    methods = "".join(inspect.getsource(method) for method in found if method is not None)
    return sorted(fields | set(_TAKEN.findall(methods)))


def of_mlx(model_type: str) -> list[str]:
    """Fields of ``ModelArgs``; empty for a class that mlx-lm does not have."""
    from mlx_lm.utils import MODEL_REMAPPING

    try:
        module = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(model_type, model_type)}")
    except ImportError:
        return []
    return sorted(field.name for field in dataclasses.fields(module.ModelArgs))


if __name__ == "__main__":
    main()
