"""Classes of transformers and mlx-lm: defaults, accepted values, tensors.

transformers_defaults.json and mlx_lm_defaults.json have the values of the classes' fields
(``scripts/record_config_defaults.py``). A key without a row, and every key of a class that is not recorded, is taken
for one that has to be there. The first also has who ties the head where a model has a text part: some classes ask the
whole's configuration, some the text part's, some both.

transformers_types.json has the annotations of the classes (``scripts/record_config_types.py``). What counts of them is
what ``@strict`` of huggingface_hub looks at: a float is no whole number, true is no number, a list holds what it says.
A key without a row takes everything, and so does a class that is not recorded.

A tensor that a class does not have is ignored by transformers with a warning at most, and one that it misses is made
up: either is a model that computes something else. mlx-lm refuses both.

Source of the tensors: the modeling files of transformers 4.57 and 5 and of mlx-lm 0.32.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ckconv.core import metadata, tensors
from ckconv.core.config import ModelConfig
from ckconv.core.lazy import NamedTuple
from ckconv.families import catalog, schema
from ckconv.families.keys import MLX_LM, TABLES_OF_ROPE, TRANSFORMERS, Parameter
from ckconv.families.sizes import always, expected_layers, required, switches

# -- Defaults of both libraries' classes for missing keys --------------------------------------------------------------

DEFAULTS = Path(__file__).with_name("transformers_defaults.json")
DEFAULTS_OF_MLX = Path(__file__).with_name("mlx_lm_defaults.json")

#: Value of a key that nothing is known of: no document says it.
UNKNOWN = object()

#: Value of a key that a recorded class does not read, and of one without which it makes no model.
UNREAD, REQUIRED = object(), object()


@cache
def _of_classes(consumer: str = TRANSFORMERS) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((DEFAULTS_OF_MLX if consumer == MLX_LM else DEFAULTS).read_text())
    return found


def _class_defaults() -> dict[str, dict[str, Any]]:
    return _of_classes()["defaults"]


#: Columns of a row of ``ties``: ``tie_word_embeddings`` of the whole, and that of its text part.
TIES = tuple((whole, text) for whole in (True, False, None) for text in (True, False))


def ties_head(model_type: str, *, whole: bool | None, text: bool) -> bool | None:
    """Whether the class of a whole ties its head; ``None`` if not recorded.

    Args:
        whole: what its document says; ``None`` for nothing.
        text: what its text part says, or takes.
    """
    row = next((row for row, names in _of_classes()["ties"].items() if model_type in names.split()), None)
    return None if row is None else row[TIES.index((whole, text))] == "T"


def is_recorded(document: Mapping[str, Any]) -> bool:
    """Whether the class of this document is a recorded one of transformers."""
    return str(document.get("model_type")) in _class_defaults()


def defaults_of_mlx(document: Mapping[str, Any], *, idle: bool = False) -> Mapping[str, Any]:
    """Keys that mlx-lm's class reads -> defaults; empty if not recorded.

    Of a document with a text part, those of the class that reads it.

    Args:
        idle: those too that the class has, and that no code asks for.
    """
    names = (metadata.text_table(document).get("model_type"), document.get("model_type"))
    found: dict[str, Any] = {}
    for table in ("defaults", *(["idle"] if idle else [])):
        classes = _of_classes(MLX_LM)[table]
        found |= next((classes[str(name)] for name in names if str(name) in classes), {})
    return {key: REQUIRED if value == "= !" else value for key, value in found.items()}


def default_of(document: Mapping[str, Any], key: str) -> Any:
    """Default of the document's class for a missing key, or ``UNKNOWN``.

    Args:
        document: that of a text model, or of the part of one that has the key.
    """
    of_class = _class_defaults().get(str(document.get("model_type")), {})
    value = of_class.get(key, UNREAD if of_class else UNKNOWN)
    if value == "= ?":
        return UNKNOWN
    if not (isinstance(value, str) and value.startswith("= ")):
        return value

    def value_of(name: str) -> Any:
        return document.get(name, of_class.get(name))

    numbers = [value_of(name) for name in value.removeprefix("= ").split(" // ")]
    if len(numbers) == 1:
        return numbers[0]
    whole = all(isinstance(number, int) for number in numbers) and numbers[1] > 0
    return numbers[0] // numbers[1] if whole else UNKNOWN


def tying_key(document: Mapping[str, Any]) -> str:
    """The key that ties a whole's head where it is true, or empty."""
    name, part = str(document.get("model_type")), metadata.text_key(document)
    key = "tie_word_embeddings"
    if ties_head(name, whole=True, text=False) is not False:
        return key
    return f"{part}.{key}" if ties_head(name, whole=None, text=True) else ""


# -- Values that configuration classes of transformers accept ----------------------------------------------------------

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
    drafts = document.get("num_nextn_predict_layers")
    padded = model_type not in recorded["types"] and _is_count(layers) and _is_count(drafts)
    lengths = [layers, layers + drafts if padded else layers]  # Step3p7TextConfig of 5.24 cuts a longer list itself
    for key, kinds in recorded["layers"].items():
        if key not in found and document.get(key) is not None and not _lists(document[key], kinds, lengths):
            found.append(key)
    hidden, heads = document.get("hidden_size"), document.get("num_attention_heads")
    counted = _is_count(hidden) and _is_count(heads) and model_type in recorded["whole_heads"]
    if counted and (not heads or hidden % heads):
        found.append("num_attention_heads")
    if not is_padding(document.get("pad_token_id"), document.get("vocab_size")):
        found.append("pad_token_id")
    kinds = () if by_layer or "layer_types" not in types else recorded["layers"]["layer_types"]
    # a table that counts as one for each kind of layer
    tables = {key: table for key in reversed(TABLES_OF_ROPE) if isinstance(table := document.get(key), dict)}
    return [*found, *(key for key, table in tables.items() if not table.keys().isdisjoint(kinds))]


def is_padding(token: Any, vocabulary: Any) -> bool:
    """Whether a table of so many rows may have this padding token."""
    return not (_is_count(token) and _is_count(vocabulary)) or -vocabulary <= token < vocabulary


def takes(model_type: str, key: str, value: Any) -> bool:
    """Whether the class of transformers is known to take this value."""
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


def _is_count(value: Any) -> bool:
    return _TYPES["int"](value)


def _lists(value: Any, kinds: list[str], lengths: Sequence[Any]) -> bool:
    whole = None in lengths or (isinstance(value, list) and len(value) in lengths)
    return isinstance(value, list) and whole and all(kind in kinds for kind in value)


# -- Tensors of transformers' and mlx-lm's classes, and bias switches --------------------------------------------------


def switches_of(config: ModelConfig, consumer: str) -> dict[str, frozenset[str]]:
    """Bias keys of the consumer's class -> canonical patterns of biases."""
    family = catalog.FAMILIES[config.family]
    return {
        key: patterns
        for name, patterns in switches(family).items()
        for key in (cell.key for cell in family.parameters[name].cells.get("hf", ()))
        if family.document.keys.reads(key, consumer)
    }


def is_on(config: ModelConfig, key: str, document: Mapping[str, Any], consumer: str) -> bool:
    """Whether a document, or the class by default, has these biases."""
    family = catalog.FAMILIES[config.family]
    if key in document:
        return document[key] is True
    rows = [family.parameters[name] for name in switches(family)]
    return any(_by_default(row, config, consumer) for row in rows if any(c.key == key for c in row.key_cells("hf")))


def _by_default(row: Parameter, config: ModelConfig, consumer: str) -> bool:
    default = row.defaults.get("mlx_lm" if consumer == MLX_LM else "transformers")
    return default is not None and bool(default.value(config.scope))


def expected_of(config: ModelConfig, on: Mapping[str, bool], consumer: str) -> dict[str, int]:
    """Canonical pattern -> count of :func:`expected_layers_of`."""
    return {pattern: len(layers) for pattern, layers in expected_layers_of(config, on, consumer).items()}


def expected_layers_of(config: ModelConfig, on: Mapping[str, bool], consumer: str) -> dict[str, Sequence[int]]:
    """Canonical pattern -> layers of tensors of the class, without the head.

    Args:
        on: keys of :func:`switches_of` -> there are those biases; of others, what the class takes.
    """
    family = catalog.FAMILIES[config.family]
    biases = {}
    for name in switches(family):
        row = family.parameters[name]
        stated = [on[cell.key] for cell in row.key_cells("hf") if cell.key in on]
        biases[name] = any(stated) if stated else _by_default(row, config, consumer)
    if consumer != MLX_LM:
        return expected_layers(family, "hf", {**config.scope, **biases})
    everywhere = dict.fromkeys(required(family, "mlx_lm"), range(config.num_layers))
    return expected_layers(family, "mlx", {**config.scope, **biases}) | everywhere


class Fit(NamedTuple):
    """How a model's tensors fit a class.

    Attributes:
        switches: the class's own keys -> whether the model has those biases.
        missing: canonical pattern -> layers in which the class has a tensor and the model has none.
        surplus: canonical pattern -> tensors that the class has no place for.
    """

    switches: Mapping[str, bool] = {}
    missing: Mapping[str, int] = {}
    surplus: Mapping[str, int] = {}


def fit(config: ModelConfig, present: Collection[str], consumer: str) -> Fit:
    """Hold canonical names against the class, without the output head."""
    counts = Counter(tensors.parse(name).pattern for name in present)
    on = {key: any(counts[name] for name in names) for key, names in switches_of(config, consumer).items()}
    wanted = expected_of(config, on, consumer)
    return Fit(
        on,
        {pattern: n - counts[pattern] for pattern, n in wanted.items() if counts[pattern] < n},
        {pattern: n for pattern, n in counts.items() if pattern not in wanted},
    )


def needs(family: schema.Family, canonical: str) -> bool:
    """Whether the class requires this tensor, even full of zeros."""
    return not family.known_classes or tensors.parse(canonical).pattern in always(family, "hf")
