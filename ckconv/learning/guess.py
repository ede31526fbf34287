"""Values of a family's parameters, as far as a pair says them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckconv.families.axes import AxesError
from ckconv.families.expressions import Expression
from ckconv.families.keys import Parameter, ParameterCell
from ckconv.families.schema import Family
from ckconv.learning.pair import Pair

#: What rules of an unknown pair may fail with.
FAILS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Guess(Mapping[str, Any]):
    """The parameters of a family.

    Args:
        only: the format whose word counts, ``hf`` or ``gguf``; "" for both, the checkpoint's first.
    """

    def __init__(self, family: Family, pair: Pair, only: str = "") -> None:
        self.family, self.pair, self._only = family, pair, only
        self._known: dict[str, Any] = {}
        self._told: dict[str, Any] = {}
        self._open: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter(self.family.parameters)

    def __len__(self) -> int:
        return len(self.family.parameters)

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            if name in self._open or name not in self.family.parameters:
                raise KeyError(name)
            self._open.add(name)
            self._known[name] = self._read(self.family.parameters[name])
            self._open.discard(name)
        return self._known[name]

    def told(self, name: str, value: Any) -> None:
        """Take a value from elsewhere and forget what followed without it."""
        self._told[name] = value
        self._known = dict(self._told)

    def _read(self, row: Parameter) -> Any:
        for format in ("hf", "gguf"):
            for cell in row.cells.get(format, ()) if self._only in ("", format) else ():
                try:
                    value = self._cell(cell, format)
                except FAILS:
                    continue
                if value is not None:
                    return value
        for expression in (row.value, row.defaults.get("transformers"), row.defaults.get("llama_cpp")):
            if expression is not None:
                try:
                    return expression.value(self)
                except FAILS:
                    continue
        return None

    def _cell(self, cell: ParameterCell, format: str) -> Any:
        pair = self.pair
        if cell.kind == "key":
            said = pair.flat if format == "hf" else pair.keys
            value = said.get(cell.key, pair.document.get(cell.key) if format == "hf" else None)
            value = cell.words.get(value, value) if isinstance(value, str) else value
            return self.with_it(cell.read, value) if value is not None and cell.read else value
        if format != "gguf":
            return None
        if cell.kind in ("present", "absent"):
            layers = range(pair.layers) if "{n}" in cell.tensor else (0,)
            there = [
                (pair.shape(cell.tensor.replace("{n}", str(n))) is not None) == (cell.kind == "present") for n in layers
            ]
            return self.with_it(cell.read, there) if cell.read else there[0]
        if cell.kind == "shape":
            shape = pair.shape(cell.tensor)
            return shape[cell.axis] if shape else None
        return cell.expression.value(self) if cell.kind == "fixed" and cell.expression else None

    def with_it(self, expression: Expression, it: Any) -> Any:
        """The expression over a stored or a read value."""
        return expression.value(With(self, {"it": it, "stated": list(self)}))

    def size(self, letter: str) -> int:
        """Elements of an axis.

        Raises:
            AxesError: it has no size.
        """
        expression = self.family.axes.get(letter)
        value = expression.value(self) if expression is not None else None
        if value is None or isinstance(value, bool):
            raise AxesError(letter)
        return int(value)

    def kind(self, expression: Expression, layer: int) -> bool:
        """Whether a layer is of a kind."""
        value = expression.value(_Kinds(self, layer))
        return bool(value[layer] if isinstance(value, list) else value)


class With(Mapping[str, Any]):
    """Values, and others in place of some."""

    def __init__(self, values: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        self._values, self._more = values, more

    def __getitem__(self, name: str) -> Any:
        return self._more[name] if name in self._more else self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._more, *self._values))

    def __len__(self) -> int:
        return len(self._more) + len(self._values)


class _Kinds(Mapping[str, Any]):
    """Kinds of layers, and parameters, in one layer."""

    def __init__(self, guess: Guess, layer: int) -> None:
        self._guess, self._layer = guess, layer

    def __getitem__(self, name: str) -> Any:
        if name == "n":
            return self._layer
        if name in self._guess.family.layers:
            value = self._guess.family.layers[name].value(self)
            return value[self._layer] if isinstance(value, list) else value
        return self._guess[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._guess.family.layers, *self._guess))

    def __len__(self) -> int:
        return len(self._guess.family.layers) + len(self._guess)
