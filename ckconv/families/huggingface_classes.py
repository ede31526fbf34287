"""Tensors of transformers' and mlx-lm's classes, and bias switches.

A tensor that a class does not have is ignored by transformers with a warning at most, and one that it misses is made
up: either is a model that computes something else. mlx-lm refuses both.

Source: the modeling files of transformers 4.57 and 5 and of mlx-lm 0.32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.core.named import NamedTuple
from ckconv.core.tensors import parse
from ckconv.families.catalog import FAMILIES
from ckconv.families.keys import MLX_LM
from ckconv.families.parameter_rows import Parameter
from ckconv.families.presence import always, expected, required, switches
from ckconv.families.schema import Family


def switches_of(config: ModelConfig, consumer: str) -> dict[str, frozenset[str]]:
    """Bias keys of the consumer's class -> canonical patterns of biases."""
    family = FAMILIES[config.family]
    return {
        key: patterns
        for name, patterns in switches(family).items()
        for key in (cell.key for cell in family.parameters[name].cells.get("hf", ()))
        if family.document.keys.reads(key, consumer)
    }


def is_on(config: ModelConfig, key: str, document: Mapping[str, Any], consumer: str) -> bool:
    """Whether a document, or the class by default, has these biases."""
    family = FAMILIES[config.family]
    if key in document:
        return document[key] is True
    rows = [family.parameters[name] for name in switches(family)]
    return any(_by_default(row, config, consumer) for row in rows if any(c.key == key for c in row.key_cells("hf")))


def _by_default(row: Parameter, config: ModelConfig, consumer: str) -> bool:
    default = row.defaults.get("mlx_lm" if consumer == MLX_LM else "transformers")
    return default is not None and bool(default.value(config.scope))


def expected_of(config: ModelConfig, on: Mapping[str, bool], consumer: str) -> dict[str, int]:
    """Canonical pattern -> count of tensors of the class, without the head.

    Args:
        on: keys of :func:`switches_of` -> there are those biases; of others, what the class takes.
    """
    family = FAMILIES[config.family]
    told = {}
    for name in switches(family):
        row = family.parameters[name]
        asked = [on[cell.key] for cell in row.key_cells("hf") if cell.key in on]
        told[name] = any(asked) if asked else _by_default(row, config, consumer)
    if consumer != MLX_LM:
        return expected(family, "hf", {**config.scope, **told})
    everywhere = dict.fromkeys(required(family, "mlx_lm"), config.num_layers)
    return expected(family, "mlx", {**config.scope, **told}) | everywhere


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
    counts = Counter(parse(name).pattern for name in present)
    on = {key: any(counts[name] for name in names) for key, names in switches_of(config, consumer).items()}
    wanted = expected_of(config, on, consumer)
    return Fit(
        on,
        {pattern: n - counts[pattern] for pattern, n in wanted.items() if counts[pattern] < n},
        {pattern: n for pattern, n in counts.items() if pattern not in wanted},
    )


def needs(family: Family, canonical: str) -> bool:
    """Whether the class requires this tensor, even full of zeros."""
    return not family.known_classes or parse(canonical).pattern in always(family, "hf")
