"""Names and order of a family's tensors in one format, both ways: the places where canonical tensors are stored."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ckconv.families import axes as shapes
from ckconv.families.expressions import Expression
from ckconv.families.schema import Family
from ckconv.families.tensor_rows import Cell, TensorRow


@dataclass(frozen=True, slots=True)
class Place:
    """Where one canonical tensor is in a format.

    Attributes:
        canonical: its name (``layers.0.attention.q.weight``).
        stored: names of the stored tensors: one, or one for each index of the first canonical axis.
        move: how the values of each of them lie; of a part of a stored tensor, which part.
        value: the operation on values, "" for none; ``by`` its factor.
        shared: other tensors are in the same stored one.
        stacked: every index of the first axis is a stored tensor of its own, be it a single one.
    """

    canonical: str
    stored: tuple[str, ...]
    move: shapes.Move
    value: str = ""
    by: Any = None
    shared: bool = False
    stacked: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The canonical shape."""
        return (len(self.stored), *self.move.canonical) if self.stacked else self.move.canonical


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the rows make of a format's names.

    Attributes:
        places: every tensor that the model has, in the order of the file.
        missing: canonical name -> stored names of those that are not there, where names were given.
        dropped: stored name -> why it is no part of the model.
        unknown: names that no row knows.
    """

    places: tuple[Place, ...]
    missing: Mapping[str, tuple[str, ...]]
    dropped: Mapping[str, str]
    unknown: tuple[str, ...]


def resolve(family: Family, values: Mapping[str, Any], format: str, present: Collection[str] | None = None) -> Resolved:
    """The places of a model's tensors.

    Args:
        values: the parameters.
        format: ``hf``, ``gguf`` or ``mlx``.
        present: names that a checkpoint has: of several forms and prefixes those are taken whose names are there.
            Without, the first ones: what is written.

    Raises:
        AxesError, ExpressionError: the parameters give no sizes.
    """
    known = frozenset(present) if present is not None else None
    places: list[Place] = []
    missing: dict[str, tuple[str, ...]] = {}
    dropped: dict[str, str] = {}
    for row in family.tensors.values():
        for layer in _layers(family, row, values):
            scope = values if layer is None else ChainMap({"n": layer}, dict(values))
            reason = row.dropped.get(format)
            if not _holds(row.when, scope) or (reason is None and not row.cells[format]):
                continue
            rows = _Row(family, row, format, layer, scope, known)
            if reason is not None:
                dropped |= {name: reason[1] for name in rows.spellings(reason[0]) if known is None or name in known}
                continue
            for kind in ("weight", "bias") if _holds(row.bias, scope, default=False) else ("weight",):
                place = rows.place(kind)
                places.append(place)
                if known is not None and (absent := tuple(name for name in place.stored if name not in known)):
                    missing[place.canonical] = absent
    taken = {name for place in places for name in place.stored}
    unknown = tuple(name for name in present or () if name not in taken and name not in dropped)
    return Resolved(tuple(places), missing, dropped, unknown)


def _holds(expression: Expression | None, scope: Mapping[str, Any], *, default: bool = True) -> bool:
    return bool(expression.value(scope)) if expression is not None else default


def _layers(family: Family, row: TensorRow, values: Mapping[str, Any]) -> Iterator[int | None]:
    """The layers that have the tensor; ``None`` once for one that is in no layer."""
    if not row.in_layers:
        yield None
        return
    kinds = {name: kind.value(values) for name, kind in family.layers.items()} if row.layers else {}
    for layer in range(values["layers"]):
        if row.layers is None or row.layers.value({name: kind[layer] for name, kind in kinds.items()}):
            yield layer


class _Row:
    """One row in one layer."""

    def __init__(
        self,
        family: Family,
        row: TensorRow,
        format: str,
        layer: int | None,
        scope: Mapping[str, Any],
        present: frozenset[str] | None,
    ) -> None:
        self.family, self.row, self.format, self.layer, self.scope, self.present = (
            family, row, format, layer, scope, present,
        )  # fmt: skip

    def place(self, kind: str) -> Place:
        """The weight's place, or the bias's."""
        cell, names = self._form(kind)
        canonical = self.row.axes[1:] if cell.stack else self.row.axes
        stored = cell.axes or canonical
        if kind == "bias" and len(canonical) > 1:
            columns = canonical[-1]
            canonical, stored = canonical[:-1], tuple(product for product in stored if product != columns)
        move = shapes.move(stored, canonical, cell.part, self._size)
        own = self.row.name.replace("L.", f"layers.{self.layer}.", 1) if self.row.in_layers else self.row.name
        by = cell.by.value(self.scope) if cell.by else None
        return Place(f"{own}.{kind}", names, move, cell.value, by, cell.parts > 1, bool(cell.stack))

    def spellings(self, name: str) -> list[str]:
        """A full name behind every prefix."""
        return [self._full(name, prefix) for prefix in self._prefixes()]

    def _form(self, kind: str) -> tuple[Cell, tuple[str, ...]]:
        """The form whose names are there, else the first."""
        forms = [cell for cell in self.row.cells[self.format] if _holds(cell.when, self.scope)]
        choices = [(cell, self._names(cell, prefix, kind)) for prefix in self._prefixes() for cell in forms]
        if self.present is not None:
            for cell, names in choices:
                if any(name in self.present for name in names):
                    return cell, names
        return choices[0]

    def _prefixes(self) -> tuple[tuple[str, str], ...]:
        prefixes = self.family.prefixes
        return prefixes.get(self.format) or prefixes["hf"]

    def _names(self, cell: Cell, prefix: tuple[str, str], kind: str) -> tuple[str, ...]:
        name = self._full(cell.name.removeprefix("="), prefix)
        name = name if cell.name.startswith("=") else f"{name}.{kind}"
        if not cell.stack:
            return (name,)
        hole = "{" + cell.stack + "}"
        return tuple(name.replace(hole, str(index)) for index in range(self._size(cell.stack)))

    def _full(self, name: str, prefix: tuple[str, str]) -> str:
        """A name with the prefix and the number of the layer."""
        root, layer = prefix
        if name.startswith("M."):
            name = root + name[2:]
        elif name.startswith("L."):
            name = layer + name[2:]
        return name if self.layer is None else name.replace("{n}", str(self.layer))

    def _size(self, letter: str) -> int:
        """Elements along an axis."""
        value = self.family.axes[letter].value(self.scope)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < 1:
            raise shapes.AxesError(f"axis {letter} ({self.family.axes[letter]}) is {value!r}, no number of elements")
        return int(value)
