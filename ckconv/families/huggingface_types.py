"""Values that configuration classes of transformers accept.

transformers_types.json has the annotations of the classes (``scripts/record_config_types.py``). What counts of them is
what ``@strict`` of huggingface_hub looks at: a float is no whole number, true is no number, a list holds what it says.
A key without a row takes everything, and so does a class that is not recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

Accepts = Callable[[Any], bool]

TYPES = Path(__file__).with_name("transformers_types.json")


def _is_labels(value: Any) -> bool:
    """Whether the value is an ``id2label`` with whole-number keys."""
    return isinstance(value, dict) and all(key.isdecimal() and isinstance(name, str) for key, name in value.items())


def _is_factors(value: Any) -> bool:
    """Whether lists of factors fit the type (``Phi3Config.validate_rope``)."""
    if not isinstance(value, dict):
        return False
    kind = value.get("rope_type", value.get("type"))
    return kind == "longrope" or value.get("long_factor") is None is value.get("short_factor")


#: First word of a type -> what is of that type; the others are its arguments.
_TYPES: Mapping[str, Callable[..., bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value, low="-inf", high="inf": isinstance(value, float) and float(low) <= value <= float(high),
    "str": lambda value: isinstance(value, str),
    "null": lambda value: value is None,
    "dict": lambda value: isinstance(value, dict),
    "list": lambda value, *item: isinstance(value, list) and all(_TYPES[item[0]](v, *item[1:]) for v in value if item),
    "some": lambda value, *item: value != [] and _TYPES["list"](value, *item),
    "=": lambda value, *word: value == " ".join(word),
    "true": lambda value: value is True,
    "false": lambda value: value is False,
    "labels": _is_labels,
    "factors": _is_factors,
}

#: What every class does with what it is given (``PreTrainedConfig.__post_init__``); a ``dtype`` is one of torch's. A
#: model that returns tuples does not get to its head (``can_return_tuple`` of utils/generic.py).
_EVERY = {
    "= float64 | = float32 | = float16 | = bfloat16 | null": "dtype torch_dtype",
    "labels | null": "id2label",
    "int": "num_labels",
    "true": "return_dict",
}

#: Of those that are recorded: such a model is looked for among those that translate.
_DECODERS = {"false": "is_encoder_decoder"}


def unaccepted(document: Mapping[str, Any], model_type: str, *, by_layer: bool = False) -> list[str]:
    """Keys whose values the class of transformers does not take.

    Args:
        by_layer: its RoPE has a table for each kind of layer.
    """
    types, recorded = _types_of(model_type), _recorded()
    found = [key for key, value in document.items() if key in types and not types[key](value)]
    layers = document.get("num_hidden_layers", document.get("n_layer"))
    for key, kinds in recorded["layers"].items():
        if key not in found and document.get(key) is not None and not _lists(document[key], kinds, layers):
            found.append(key)
    hidden, heads = document.get("hidden_size"), document.get("num_attention_heads")
    counted = _is_count(hidden) and _is_count(heads) and model_type in recorded["whole_heads"]
    if counted and (not heads or hidden % heads):
        found.append("num_attention_heads")
    if not is_padding(document.get("pad_token_id"), document.get("vocab_size")):
        found.append("pad_token_id")
    kinds = () if by_layer or "layer_types" not in types else recorded["layers"]["layer_types"]
    found += [key for key in ("rope_parameters", "rope_scaling") if _has_any(document.get(key), kinds)]
    return found


def is_padding(token: Any, vocabulary: Any) -> bool:
    """Whether a table of so many rows may have this padding token."""
    return not (_is_count(token) and _is_count(vocabulary)) or -vocabulary <= token < vocabulary


def takes(model_type: str, key: str, value: Any) -> bool:
    """The class of transformers is known to take this value."""
    types = _types_of(model_type)
    return key in types and types[key](value)


def accepted_by(model_type: str, key: str) -> Accepts | None:
    """Check of values of a key by transformers' class, or ``None``."""
    return _types_of(model_type).get(key)


@cache
def _recorded() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(TYPES.read_text("utf-8"))
    return recorded


def _types_of(model_type: str) -> dict[str, Accepts]:
    recorded = _recorded()
    own = recorded["types"].get(model_type, {})
    rows = {**_EVERY, **(_DECODERS if own else {}), **own}
    found = {key: accepts(kinds) for kinds, keys in rows.items() for key in keys.split()}
    return found | dict.fromkeys(recorded["unset"], lambda value: False)


def accepts(kinds: str) -> Accepts:
    """Whether a value is of one of the types that ``|`` separates."""
    split = [kind.split() for kind in kinds.split(" | ")]
    return lambda value: any(_TYPES[name](value, *arguments) for name, *arguments in split)


def _has_any(table: Any, keys: Collection[str]) -> bool:
    """Whether a RoPE table counts as one for each kind of layer."""
    return isinstance(table, dict) and any(key in keys for key in table)


def _is_count(value: Any) -> bool:
    return _TYPES["int"](value)


def _lists(value: Any, kinds: list[str], layers: Any) -> bool:
    return isinstance(value, list) and all(kind in kinds for kind in value) and layers in (None, len(value))
