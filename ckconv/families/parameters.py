"""Hyper-parameters of a family: read from, and written to, a format."""

from __future__ import annotations

import math
import re
import reprlib
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ckconv.core.config import MAX_LAYERS, ModelConfig
from ckconv.core.named import NamedTuple
from ckconv.families.expressions import Expression, ExpressionError
from ckconv.families.keys import READERS
from ckconv.families.merge import FOLDER
from ckconv.families.parameter_rows import Parameter, ParameterCell
from ckconv.families.schema import Family

#: A parameter in the name of a tensor.
_HOLE = re.compile(r"\{(\w+)\}")


class ParameterError(ValueError):
    """Missing or contradictory parameter, or no place in a format."""


class Source(Protocol):
    """Document or metadata that parameters are read from."""

    #: ``hf`` or ``gguf``.
    format: str

    def value(self, key: str) -> Any:
        """Value of a dotted path, or of a metadata key after ``{arch}.``."""

    def has(self, key: str) -> bool:
        """The key is there, be it null."""

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """The shape of a stored tensor, ``None`` where there is none."""

    def numbers(self, tensor: str) -> list[float] | None:
        """The values of a stored vector, ``None`` where there is none."""


class Values(Mapping[str, Any]):
    """The parameters of one model, each read when it is asked for.

    Args:
        reader: whose keys and defaults count (:data:`~ckconv.families.parameter_rows.TAKERS`).
        given: parameters that are known.

    Attributes:
        stated: those that the source says itself.
    """

    def __init__(
        self, family: Family, source: Source, reader: str = "", given: Mapping[str, Any] | None = None
    ) -> None:
        self._family, self._source = family, source
        self._reader = reader or ("transformers" if source.format == "hf" else "llama_cpp")
        self._known: dict[str, Any] = dict(given or {})
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
        except ExpressionError as error:
            if self._family.path.parent != FOLDER:
                raise  # whoever wrote it is told of the expression
            raise ParameterError(self._unread(parameter, error)) from None
        finally:
            self._open.pop()
        return self._known[name]

    def _unread(self, parameter: Parameter, error: ExpressionError) -> str:
        """Message on keys that give no value for a parameter."""
        names = () if error.why else sorted(error.names)
        rows = [parameter, *(self._family.parameters[one] for one in names if one in self)]
        cells = [cell for row in rows for cell in row.key_cells(self._source.format) if self._looks_at(cell)]
        said = {cell.key: self._source.value(cell.key) for cell in cells if self._source.has(cell.key)}
        values = ", ".join(f"{key} = {reprlib.repr(value)}" for key, value in said.items())
        return f"{values or parameter.name}: {error.why or f'no {parameter.name} follows from it'}"

    def _read(self, parameter: Parameter) -> Any:
        if parameter.value is not None:
            return parameter.value.value(self)
        cells = [cell for cell in parameter.cells.get(self._source.format, ()) if self._looks_at(cell)]
        found: dict[str, Any] = {}
        for cell in sorted(cells, key=lambda cell: cell.instead):
            if cell.kind != "fixed" and not (cell.instead and found):
                value = self._cell(cell, parameter)
                found |= {} if value is None else {cell.key or cell.tensor: value}
        distinct = list(found.items())
        for key, value in distinct[1:]:
            if value != distinct[0][1]:
                stated = ((name, self._source.value(name)) for name in (distinct[0][0], key))  # as the source has them
                raise ParameterError(", ".join(f"{n} is {found[n] if it is None else it!r}" for n, it in stated))
        if distinct:
            self.stated.add(parameter.name)
            return distinct[0][1]
        for cell in cells:
            if cell.kind == "fixed" and cell.expression is not None:
                return cell.expression.value(self)
        if parameter.optional and any(cell.key and self._source.has(cell.key) for cell in cells):
            return None
        if self._reader in parameter.defaults:
            return parameter.defaults[self._reader].value(self)
        if parameter.optional:
            return None
        keys = " or ".join(cell.key for cell in cells if cell.key)
        raise ParameterError(f"{keys or parameter.name} is missing")

    def _looks_at(self, cell: ParameterCell) -> bool:
        return not cell.unread and (self._reader == "llama_cpp" or READERS[self._reader][0] in cell.readers)

    def _cell(self, cell: ParameterCell, parameter: Parameter) -> Any:
        """Value of a single cell, or ``None``."""
        if cell.kind in ("present", "absent"):
            return self._there(cell)
        if cell.kind == "shape":
            shape = self._source.shape(cell.tensor)
            size = shape[cell.axis] if shape is not None else None
            return size if size is None or cell.read is None else _with_it(cell.read, size, self)
        tensor = cell.kind == "tensor"
        stored: Any = self._source.numbers(cell.tensor) if tensor else self._source.value(cell.key)
        if stored is None:
            return None
        of_document = [stored] if self._source.format == "hf" else []  # a GGUF may hold an infinity: Gemma 3n's does
        for number in stored if of_document and isinstance(stored, list) else of_document:
            if isinstance(number, float) and not math.isfinite(number):
                raise ParameterError(f"{cell.key} must be a finite number, got {number!r}")
        if cell.words:
            stored = [_own_word(cell, item) for item in stored] if isinstance(stored, list) else _own_word(cell, stored)
        if cell.read is not None:
            return _with_it(cell.read, stored, self)
        if isinstance(stored, list):
            kind = parameter.kind_of_items
            if kind not in _TYPES or (stored and kind != "f32"):  # one for each layer, which no f32 has
                return [_checked(cell.key, item, kind) for item in stored]
        return _checked(cell.key, stored, parameter.kind)

    def _there(self, cell: ParameterCell) -> Any:
        """Whether the tensor is in the file, with ``{n}`` in every layer."""
        layers = range(min(self["layers"], MAX_LAYERS)) if "{n}" in cell.tensor else ()
        names = [cell.tensor.replace("{n}", str(n)) for n in layers] or [cell.tensor]
        said = [(self._source.shape(self._named(name)) is not None) == (cell.kind == "present") for name in names]
        return _with_it(cell.read, said, self) if cell.read is not None else said[0]

    def _named(self, tensor: str) -> str:
        """A tensor's name with the parameters that stand in braces."""
        try:
            return _HOLE.sub(lambda hole: str(self[hole[1]]), tensor)
        except KeyError as error:
            raise ParameterError(f"{tensor}: there is no parameter {error}") from None


def _own_word(cell: ParameterCell, said: Any) -> Any:
    return cell.words.get(said, said) if isinstance(said, str) else said


#: Type of a parameter -> the numbers and words that it may be.
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "f32": ((int, float), "a finite number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "a word"),
    "u32": ((int,), "a whole number"),
    "i32": ((int,), "a whole number"),
    "u64": ((int,), "a whole number"),
}


def _checked(key: str, value: Any, kind: str) -> Any:
    """``value`` as the parameter's type."""
    if kind not in _TYPES:
        return value
    types, words = _TYPES[kind]
    right: bool = isinstance(value, types) and (bool in types or not isinstance(value, bool))
    if not right:
        raise ParameterError(f"{key} must be {words}, got {value!r}")
    if kind != "f32":
        return value
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ParameterError(f"{key} must be {words}, got {value!r}")
    return number


def _with_it(expression: Expression, it: Any, values: Mapping[str, Any]) -> Any:
    return expression.value(_With("it", it, values))


class _With(Mapping[str, Any]):
    """The parameters and one more name."""

    def __init__(self, name: str, value: Any, values: Mapping[str, Any]) -> None:
        self._name, self._value, self._values = name, value, values

    def __getitem__(self, name: str) -> Any:
        return self._value if name == self._name else self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter((self._name, *self._values))

    def __len__(self) -> int:
        return len(self._values) + 1


def scope_of(family: Family, config: ModelConfig) -> Mapping[str, Any]:
    """Parameters of a model, completed by llama.cpp's or other defaults."""
    return _Scope(family, config.scope, config.own)


class _Scope(Mapping[str, Any]):
    def __init__(self, family: Family, known: Mapping[str, Any], own: Collection[str]) -> None:
        self._family, self._known, self._own = family, dict(known), own

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._family.parameters, *self._known)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> Any:
        row = self._family.parameters.get(name)
        if self._known.get(name) is None and row is not None and name not in self._own:
            taken = [cell.expression for cell in row.cells.get("gguf", ()) if cell.kind == "fixed"]
            default = row.value or next(iter((*taken, row.defaults.get("llama_cpp"))), None)
            self._known[name] = default.value(self) if default is not None else None
        return self._known[name]


class Written(NamedTuple):
    """Keys and tensors that a format has for parameters.

    Attributes:
        entries: key -> (type, value); a document's keys are dotted paths and their type is of no account.
        tensors: name -> numbers, of parameters that are a tensor.
        refused: parameters whose loader takes another value for granted: name -> (value, what the loader takes).
    """

    entries: Mapping[str, tuple[str, Any]] = {}
    tensors: Mapping[str, Sequence[float]] = {}
    refused: Mapping[str, tuple[Any, Any]] = {}


def nested(entries: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """A document whose keys have these paths, dotted."""
    document: dict[str, Any] = {}
    for path, (_, value) in entries.items():
        *tables, key = path.split(".")
        table = document
        for name in tables:
            table = table.setdefault(name, {})
        table[key] = value
    return document


def write(family: Family, values: Mapping[str, Any], format: str, stated: Collection[str] = ()) -> Written:
    """Write parameters in ``format``.

    Args:
        stated: parameters that the source says itself.

    Raises:
        ExpressionError: an expression of the file has no value.
    """
    entries: dict[str, tuple[str, Any]] = {}
    tensors: dict[str, Sequence[float]] = {}
    refused: dict[str, tuple[Any, Any]] = {}
    scope = _With("stated", list(stated), values)
    for name, parameter in family.parameters.items():
        value = values[name] if parameter.cells.get(format) else None
        for cell in parameter.cells.get(format, ()):
            if cell.kind == "fixed" and cell.expression is not None and not cell.folded:
                taken = cell.expression.value(scope)
                if differ(value, taken):
                    refused[name] = (value, taken)
            if cell.kind not in ("key", "tensor") or cell.alias or (cell.when and not cell.when.value(scope)):
                continue
            said = _stored(cell, value, scope)
            if cell.kind == "tensor" and said is not None:
                tensors[cell.tensor] = said
            elif cell.kind == "key" and (said is not None or format == "hf"):
                entries[cell.key] = (cell.type, said)
    return Written(entries, tensors, refused)


def _stored(cell: ParameterCell, value: Any, values: Mapping[str, Any]) -> Any:
    words = {theirs: own for own, theirs in cell.words.items()}
    several = isinstance(value, list | tuple)
    stored = [words.get(item, item) if isinstance(item, str) else item for item in value] if several else value
    stored = words.get(stored, stored) if isinstance(stored, str) else stored
    if cell.write is None:
        return stored
    return _with_it(cell.write, stored, values)


def differ(one: Any, other: Any) -> bool:
    """Not equal, numbers as float32: the precision of the keys that hold them."""
    if isinstance(one, float) or isinstance(other, float):
        try:
            return struct.pack("<f", one) != struct.pack("<f", other)
        except (struct.error, OverflowError):
            return bool(one != other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return list(one) != list(other)
    return bool(one != other)


__all__ = ["ExpressionError", "ParameterError", "Source", "Values", "Written", "write"]
