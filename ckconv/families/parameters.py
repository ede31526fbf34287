"""Hyper-parameters of a family, both ways: a document or metadata -> values, and values -> what a format says."""

from __future__ import annotations

import struct
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ckconv.families.expressions import Expression, ExpressionError
from ckconv.families.parameter_rows import Parameter, ParameterCell
from ckconv.families.schema import Family


class ParameterError(ValueError):
    """A parameter that is missing, contradicts itself, or cannot be said in a format."""


class Source(Protocol):
    """What parameters are read from."""

    #: ``hf`` or ``gguf``.
    format: str

    def value(self, key: str) -> Any:
        """What stands under a key, ``None`` for nothing: a dotted path, or a metadata key after ``{arch}.``."""

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """The shape of a stored tensor, ``None`` where there is none."""


class Values(Mapping[str, Any]):
    """The parameters of one model, each read when it is asked for.

    Attributes:
        stated: those that the source says itself.
    """

    def __init__(self, family: Family, source: Source, taker: str = "") -> None:
        self._family, self._source = family, source
        self._taker = taker or ("transformers" if source.format == "hf" else "llama_cpp")
        self._known: dict[str, Any] = {}
        self._open: list[str] = []
        self.stated: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter(self._family.parameters)

    def __len__(self) -> int:
        return len(self._family.parameters)

    def __getitem__(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        if name in self._open:
            raise ParameterError(f"parameter {name!r} depends on itself: {' -> '.join((*self._open, name))}")
        parameter = self._family.parameters[name]
        self._open.append(name)
        try:
            self._known[name] = self._read(parameter)
        finally:
            self._open.pop()
        return self._known[name]

    def _read(self, parameter: Parameter) -> Any:
        if parameter.value is not None:
            return parameter.value.value(self)
        found = {
            cell.key or cell.tensor: value
            for cell in parameter.cells.get(self._source.format, ())
            if cell.kind != "fixed" and not cell.unread and (value := self._cell(cell)) is not None
        }
        distinct = list(found.items())
        for key, value in distinct[1:]:
            if value != distinct[0][1]:
                raise ParameterError(f"{distinct[0][0]} is {distinct[0][1]!r}, {key} is {value!r}")
        if distinct:
            self.stated.add(parameter.name)
            return distinct[0][1]
        for cell in parameter.cells.get(self._source.format, ()):
            if cell.kind == "fixed" and cell.expression is not None:
                return cell.expression.value(self)
        if self._taker in parameter.defaults:
            return parameter.defaults[self._taker].value(self)
        if parameter.optional:
            return None
        keys = " or ".join(cell.key for cell in parameter.cells.get(self._source.format, ()) if cell.key)
        raise ParameterError(f"{keys or parameter.name} is missing")

    def _cell(self, cell: ParameterCell) -> Any:
        """What one cell says, ``None`` for nothing."""
        if cell.kind in ("present", "absent"):
            return (self._source.shape(cell.tensor) is not None) == (cell.kind == "present")
        if cell.kind == "shape":
            shape = self._source.shape(cell.tensor)
            return shape[cell.axis] if shape is not None else None
        stored = self._source.value(cell.key)
        if stored is None:
            return None
        if cell.words:
            stored = [cell.words.get(item, item) for item in stored] if isinstance(stored, list) else (
                cell.words.get(stored, stored)
            )  # fmt: skip
        return _with_it(cell.read, stored, self) if cell.read is not None else stored


def _with_it(expression: Expression, it: Any, values: Mapping[str, Any]) -> Any:
    return expression.value(_It(it, values))


class _It(Mapping[str, Any]):
    """The parameters and ``it``."""

    def __init__(self, it: Any, values: Mapping[str, Any]) -> None:
        self._it, self._values = it, values

    def __getitem__(self, name: str) -> Any:
        return self._it if name == "it" else self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("it", *self._values))

    def __len__(self) -> int:
        return len(self._values) + 1


@dataclass(frozen=True, slots=True)
class Written:
    """What a format says of a model.

    Attributes:
        entries: key -> (type, value); a document's keys are dotted paths and their type is of no account.
        refused: parameters whose loader takes another value for granted: name -> (value, what the loader takes).
    """

    entries: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    refused: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


def write(family: Family, values: Mapping[str, Any], format: str, stated: Collection[str] = ()) -> Written:
    """What ``format`` says of these parameters.

    Args:
        stated: parameters that the source says itself.

    Raises:
        ExpressionError: an expression of the file has no value.
    """
    entries: dict[str, tuple[str, Any]] = {}
    refused: dict[str, tuple[Any, Any]] = {}
    scope = ChainMap({"stated": list(stated)}, dict(values))
    for name, parameter in family.parameters.items():
        value = values[name]
        for cell in parameter.cells.get(format, ()):
            if cell.kind == "fixed" and cell.expression is not None and not cell.folded:
                taken = cell.expression.value(scope)
                if not _same(value, taken):
                    refused[name] = (value, taken)
            if cell.kind == "key" and not cell.alias and (cell.when is None or cell.when.value(scope)):
                said = _stored(cell, value, scope)
                if said is not None or format == "hf":
                    entries[cell.key] = (cell.type, said)
    return Written(entries, refused)


def _stored(cell: ParameterCell, value: Any, values: Mapping[str, Any]) -> Any:
    words = {theirs: own for own, theirs in cell.words.items()}
    stored = [words.get(item, item) for item in value] if isinstance(value, list) else value
    stored = words.get(stored, stored) if isinstance(stored, str) else stored
    if cell.write is None:
        return stored
    return _with_it(cell.write, stored, values)


def _same(one: Any, other: Any) -> bool:
    """Equal, numbers as float32: the precision of the keys that hold them."""
    if isinstance(one, float) or isinstance(other, float):
        try:
            return struct.pack("<f", one) == struct.pack("<f", other)
        except (struct.error, OverflowError):
            return bool(one == other)
    return bool(one == other)


__all__ = ["ExpressionError", "ParameterError", "Source", "Values", "Written", "write"]
