"""Tensors that models of a family have, always or by parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ckconv.families.expressions import Expression
from ckconv.families.names import canonical_pattern, has_bias
from ckconv.families.schema import FAMILIES_KEPT, Family
from ckconv.families.sizes import Scope, layers_with
from ckconv.families.tensor_rows import TensorRow

#: The output head, which a model has of its own or not whatever its class: rules of its own look at it.
_HEAD = "output"


@lru_cache(maxsize=FAMILIES_KEPT)
def always(family: Family, format: str) -> frozenset[str]:
    """Canonical patterns that every model of the family has in a format."""
    constants = Scope(family, {})
    found = set()
    for row in family.tensors.values():
        if _has(row, format) and not row.optional:
            found.add(_pattern(family, row, "weight"))
            if row.bias is not None and not _asks(family, row.bias) and row.bias.value(constants):
                found.add(_pattern(family, row, "bias"))
    return frozenset(found)


def everywhere(family: Family, parameters: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    """Canonical pattern -> layers, of tensors in every GGUF of the family."""
    scope, patterns = Scope(family, parameters), always(family, "gguf")
    rows = [(_pattern(family, row, kind), row) for row in family.tensors.values() for kind in ("weight", "bias")]
    return {pattern: layers_with(family, row, scope) for pattern, row in rows if pattern in patterns}


def _has(row: TensorRow, format: str) -> bool:
    return bool(row.cells[format]) or (format == "gguf" and bool(row.key))


def conditional(family: Family, parameters: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    """Canonical pattern -> layers, of weights of this model's GGUF only."""
    scope = Scope(family, parameters)
    rows = (row for row in family.tensors.values() if row.optional and row.cells["gguf"] and row.cells["hf"])
    return {
        _pattern(family, row, "weight"): layers
        for row in rows
        if row.name != _HEAD and (row.when is None or row.when.value(scope))
        if (layers := layers_with(family, row, scope))
    }


def expected(family: Family, format: str, parameters: Mapping[str, Any]) -> dict[str, int]:
    """Canonical pattern -> count of a model's tensors, without the head."""
    scope = Scope(family, parameters)
    counts: dict[str, int] = {}
    for row in family.tensors.values():
        if not _has(row, format) or row.name == _HEAD or (row.when is not None and not row.when.value(scope)):
            continue
        count = len(layers_with(family, row, scope))
        counts[_pattern(family, row, "weight")] = count
        if row.bias is not None and row.bias.value(scope):
            counts[_pattern(family, row, "bias")] = count
    return {pattern: count for pattern, count in counts.items() if count}


def switches(family: Family) -> dict[str, frozenset[str]]:
    """Bias parameter -> canonical patterns of its biases."""
    found: dict[str, set[str]] = {}
    for row in family.tensors.values():
        if has_bias(row) and row.bias is not None and row.name != _HEAD:
            for name in _asks(family, row.bias):
                found.setdefault(name, set()).add(_pattern(family, row, "bias"))
    return {name: frozenset(patterns) for name, patterns in found.items()}


def loaded(family: Family, engine: str) -> frozenset[str]:
    """Canonical patterns that an engine loads if present."""
    row = family.engines.get(engine)
    return _patterns(family, row.optional if row else ())


def required(family: Family, engine: str) -> frozenset[str]:
    """Canonical patterns that an engine requires, if some models lack them."""
    row = family.engines.get(engine)
    return _patterns(family, row.required if row else ())


def narrow(family: Family, engine: str) -> frozenset[str]:
    """Canonical patterns in matrix type for this engine, in FP32 elsewhere."""
    row = family.engines.get(engine)
    return _patterns(family, row.narrow if row else ())


def used(family: Family, engine: str) -> frozenset[str]:
    """Canonical patterns that a bump engine uses in addition to a Llama's."""
    row = family.engines.get(engine)
    return _patterns(family, row.tensors if row else ())


def added(family: Family, engine: str) -> frozenset[str] | None:
    """Canonical patterns of biases that a bump engine adds; ``None``: all."""
    row = family.engines.get(engine)
    return None if row is None or row.biases is None else _patterns(family, row.biases)


def _patterns(family: Family, names: tuple[str, ...]) -> frozenset[str]:
    patterns = (name.rpartition(".") for name in names)
    return frozenset(
        canonical_pattern(family, module, kind) if kind in ("weight", "bias") else canonical_pattern(family, whole, "")
        for module, dot, kind in patterns
        for whole in (module + dot + kind,)
    )


def _asks(family: Family, expression: Expression) -> Iterator[str] | frozenset[str]:
    """Parameters at the root of a value, with derived parameters resolved."""
    found: set[str] = set()
    for name in expression.names:
        parameter = family.parameters.get(name)
        if parameter is not None and parameter.value is not None:
            found |= set(_asks(family, parameter.value))
        else:
            found.add(name)
    return frozenset(found)


def _pattern(family: Family, row: TensorRow, kind: str) -> str:
    return canonical_pattern(family, row.name, "" if row.whole_name else kind)
