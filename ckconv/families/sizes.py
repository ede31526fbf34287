"""Parameters of a model as expressions see them, and sizes of axes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from ckconv.families import axes as shapes
from ckconv.families.expressions import Expression, ExpressionError
from ckconv.families.schema import DRAFTS, Family
from ckconv.families.tensor_rows import TensorRow


class Scope(Mapping[str, Any]):
    """Given parameters, completed by constants, derived values, defaults."""

    def __init__(self, family: Family, given: Mapping[str, Any]) -> None:
        self._family, self._given = family, given

    def __getitem__(self, name: str) -> Any:
        if name in self._given:
            return self._given[name]
        parameter = self._family.parameters[name]
        for expression in (parameter.value, parameter.defaults.get("transformers")):
            if expression is not None:
                return expression.value(self)
        if parameter.optional:
            return None
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter({**dict.fromkeys(self._family.parameters), **dict.fromkeys(self._given)})

    def __len__(self) -> int:
        return len(self._family.parameters.keys() | self._given.keys())


def layers_of(family: Family, row: TensorRow, scope: Mapping[str, Any]) -> int:
    """In how many layers a row's tensors may be."""
    stack = family.stacks.get(row.name.partition(".")[0])
    return int(stack.count.value(scope)) if stack else int(scope["layers"]) + draft_layers(family, scope)


def draft_layers(family: Family, scope: Mapping[str, Any]) -> int:
    """Number of layers behind the last that predict further tokens."""
    return int(scope["extra_layers"] or 0) if DRAFTS in family.parameters and scope[DRAFTS] else 0


def layers_with(family: Family, row: TensorRow, scope: Mapping[str, Any]) -> Sequence[int]:
    """Layers that have a row's tensors; a single entry outside of layers."""
    count = layers_of(family, row, scope) if row.in_stack(family.stacks) else 1
    kind = row.layers
    return range(count) if kind is None else [n for n in range(count) if _is(family, kind, scope, n)]


def _is(family: Family, kind: Expression, scope: Mapping[str, Any], layer: int) -> bool:
    """A layer is of a kind: a kind is a list over layers, or asks for ``n``."""
    here = ChainMap({"n": layer}, scope)  # type: ignore[arg-type]
    kinds = {name: family.layers[name].value(here) for name in kind.names}
    listed = {name: layer < len(kind) and kind[layer] for name, kind in kinds.items() if isinstance(kind, list | tuple)}
    return bool(kind.value({**kinds, **listed}))


class Sizes:
    """The sizes of one model's axes.

    Args:
        parameters: by the names of the family's file.
    """

    def __init__(self, family: Family, parameters: Mapping[str, Any]) -> None:
        self.family, self.scope = family, Scope(family, parameters)
        self._sizes: dict[int | None, shapes.Size] = {}
        self._layered: dict[str, bool] = {}
        self._layers: dict[str, int] = {}
        self._has: dict[tuple[str, int], bool] = {}

    def of(self, row: TensorRow, layer: int | None) -> shapes.Size:
        """Elements along a row's axes in a layer.

        Raises:
            AxesError: by the function that is returned, the parameters give no whole number of elements.
        """
        number = layer if self._differs(row) else None
        if number not in self._sizes:
            scope = self.scope if number is None else ChainMap({"n": number}, self.scope)  # type: ignore[arg-type]
            self._sizes[number] = cache(lambda letter: self._size(letter, scope))
        return self._sizes[number]

    def number(self, row: TensorRow, layer: int | None) -> int | None:
        """The layer, where a row's sizes differ from layer to layer."""
        return layer if self._differs(row) else None

    def layers(self, row: TensorRow) -> int:
        """In how many layers a row's tensors may be."""
        if row.name not in self._layers:
            self._layers[row.name] = layers_of(self.family, row, self.scope)
        return self._layers[row.name]

    def has(self, row: TensorRow, layer: int | None) -> bool:
        """Whether a layer has, or may store, a row's tensors."""
        if row.layers is None or layer is None:
            return True
        if (row.name, layer) not in self._has:
            kinds = [kind for kind in (row.layers, row.spare) if kind is not None]
            self._has[row.name, layer] = any(_is(self.family, kind, self.scope, layer) for kind in kinds)
        return self._has[row.name, layer]

    def _differs(self, row: TensorRow) -> bool:
        if row.name not in self._layered:
            letters = (letter for letter in shapes.letters(row.fused_axes) if letter in self.family.axes)
            self._layered[row.name] = any("n" in self.family.axes[letter].names for letter in letters)
        return self._layered[row.name]

    def _size(self, letter: str, scope: Mapping[str, Any]) -> float:
        try:
            value = self.family.axes[letter].value(scope)
        except ExpressionError as error:
            raise shapes.AxesError(f"axis {letter}: {error}") from None
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise shapes.AxesError(f"axis {letter} is {value!r}, not a number of elements")
        return value
