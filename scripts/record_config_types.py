"""Record which values the configuration classes of transformers take.

    python scripts/record_config_types.py

ckconv/families/transformers_types.json says it as the classes do, by the types of their fields; tests/config_types.json
is what the classes did with a few values of each type, and holds the former. Run it with the newest transformers.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.metadata
import inspect
import json
import logging
import re
import sys
import types
import typing
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from record_config_keys import KEYS  # noqa: E402

from ckconv.families.huggingface_classes import TYPES  # noqa: E402

RECORDING = ROOT / "tests" / "config_types.json"

#: Name -> a value that is tried on every key.
PROBES: dict[str, Any] = {
    "null": None, "true": True, "whole": 7, "zero": 0, "negative": -1, "real": 0.5, "round": 2.0, "word": "word",
    "numbers": [0, 1], "words": ["a"], "nothing": [], "object": {"1": "a"},
}  # fmt: skip

#: Lines of a class's source that tell of a check beyond the types of its fields.
_WHOLE_HEADS = "self.hidden_size % self.num_attention_heads != 0"
_COUNTED_FACTORS = "rope_parameters_long_factor) == rotary_ndims"


def main() -> None:
    """Write both files."""
    import transformers

    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    classes = transformers.CONFIG_MAPPING
    known = [name for name in KEYS if name in classes]
    versions = {"transformers": importlib.metadata.version("transformers")}
    base = transformers.PreTrainedConfig
    older = transformers.configuration_utils._LEGACY_LAYER_TYPE_REMAP  # words that a document may say, too
    layers = {
        "layer_types": sorted({*transformers.configuration_utils.ALLOWED_ATTN_LAYER_TYPES, *older}),
        "mlp_layer_types": sorted(transformers.configuration_utils.ALLOWED_MLP_LAYER_TYPES),
    }
    heads = [name for name in known if _WHOLE_HEADS in inspect.getsource(classes[name].validate_architecture)]
    document = {
        "versions": versions,
        "layers": layers,
        "whole_heads": heads,
        "unset": sorted(name for c in base.__mro__ for name, value in vars(c).items() if is_read_only(value)),
        "types": {name: types_of(classes[name]) for name in known},
    }
    TYPES.write_text(json.dumps(document, indent=1) + "\n")
    refused = {name: refusals(classes[name]) for name in known}
    text = json.dumps({"versions": versions, "probes": PROBES, "refused": refused}, indent=1)
    RECORDING.write_text(text + "\n")


def is_read_only(value: Any) -> bool:
    """A property that cannot be set."""
    return isinstance(value, property) and value.fset is None


def types_of(own: Any) -> dict[str, str]:
    """Type -> keys; another name of a field has the field's type."""
    found = {field.name: word for field in dataclasses.fields(own) if (word := type_of(field))}
    found |= {other: found[name] for other, name in own.attribute_map.items() if name in found}
    # A class without the field sets it all the same, and checks it.
    named = "rope_parameters" in {field.name for field in dataclasses.fields(own)}
    named = named or "standardize_rope_params" in inspect.getsource(own.__post_init__)  # Cohere 2 mixtures'
    rope = "dict | null" if named else "null"
    source = inspect.getsource(own.validate_rope)
    if _COUNTED_FACTORS in source:
        rope = "factors | null"
        found["partial_rotary_factor"] = "int | float"
    found |= {"rope_parameters": rope, "rope_scaling": rope}
    made = defaultdict(list)
    for key, word in sorted(found.items()):
        made[word].append(key)
    return {word: " ".join(keys) for word, keys in sorted(made.items())}


def type_of(field: Any) -> str:
    """As huggingface_hub's ``@strict`` checks it; empty for an annotation that is a string, which it passes over."""
    if isinstance(field.type, str):
        return ""
    check = field.metadata.get("validator", [])
    bounds = [inspect.getclosurevars(one).nonlocals for one in (check if isinstance(check, list) else [check])]
    return f"float {bounds[0]['min']} {bounds[0]['max']}" if bounds else " | ".join(sorted(set(words(field.type))))


def words(kind: Any) -> list[str]:
    """The alternatives of a type, without those that no JSON is."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return [word for arg in args for word in words(arg)]
    if origin is typing.Literal:
        return [f"= {arg}" for arg in args]
    if origin is list and args:
        return [f"{'list' if len(args) == 1 else 'some'} {word}" for word in words(args[0])]
    if kind is type(None):
        return ["null"]
    if origin is tuple or kind.__module__.startswith("torch"):
        return []
    name = (origin or kind).__name__
    return [name if re.fullmatch(r"bool|int|float|str|list", name) else "dict"]


def refusals(own: Any) -> dict[str, str]:
    """Names of values -> the keys for which the class takes none of them."""
    from huggingface_hub.errors import StrictDataclassFieldValidationError

    made = defaultdict(list)
    for name in sorted(field.name for field in dataclasses.fields(own)):
        refused = []
        for probe, value in PROBES.items():
            try:
                own(**{name: copy.deepcopy(value)})
            except StrictDataclassFieldValidationError:
                refused.append(probe)
            except Exception:
                continue  # the value is of a type that fits, and contradicts another key
        made[" ".join(refused)].append(name)
    return {probes: " ".join(keys) for probes, keys in sorted(made.items())}


if __name__ == "__main__":
    main()
