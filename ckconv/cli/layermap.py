"""Types by layer as one small map: a row a role, a column a layer, a character and a color a type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ckconv.cli.render import printable
from ckconv.core.tensors import Tensor, parse

if TYPE_CHECKING:
    from rich.text import Text

#: Colors that can be told apart on a light and on a dark ground, also by who does not see red and green apart.
_COLORS = ("cyan", "yellow", "magenta", "blue", "green", "red", "bright_black")

#: What names of plain numbers begin with, and what stands for a type whose own characters are taken.
_PLAIN, _MARKS = "BF", "abcdefghijklmnopqrstuvwxyz"

#: What the row of vectors is called.
VECTORS = "vectors"

_NONE = "."


class LayerMap(NamedTuple):
    """Role -> the type of every layer, empty where it has none; ``layers`` in order."""

    layers: tuple[int, ...]
    rows: Mapping[str, tuple[str, ...]]

    @property
    def types(self) -> tuple[str, ...]:
        """Every type, in the order in which they come."""
        return tuple(dict.fromkeys(name for row in self.rows.values() for name in row if name))


def layer_map(tensors: Mapping[str, Tensor]) -> LayerMap:
    """The map of tensors by name; experts of one role are one, and so are the vectors of a layer.

    Where the experts of a role, or the vectors of a layer, have several types, the last one stands.
    """
    cells: dict[str, dict[int, str]] = {}
    for name, tensor in tensors.items():
        pattern, layer, _ = parse(name)
        if layer is not None:
            role = role_of(pattern) if len(tensor.shape) > 1 else VECTORS
            cells.setdefault(role, {})[layer] = tensor.dtype.name
    if VECTORS in cells:
        cells[VECTORS] = cells.pop(VECTORS)
    layers = tuple(sorted({layer for row in cells.values() for layer in row}))
    return LayerMap(layers, {role: tuple(row.get(layer, "") for layer in layers) for role, row in cells.items()})


def role_of(pattern: str) -> str:
    """``attention.q`` of ``layers.{n}.attention.q.weight``."""
    return pattern.rpartition("{n}.")[2].removesuffix(".weight").replace(".{e}", "")


def marks(types: Sequence[str]) -> dict[str, str]:
    """A character for every type: the bits of blocks, the letter of plain numbers, else the next letter."""
    found: dict[str, str] = {}
    for name in types:
        digits = [c for c in name if c.isdigit()]
        wanted = (name[:1], *digits[:1]) if name[:1] in _PLAIN else (*digits[:1], name[:1])
        free = (c for c in (*wanted, *_MARKS) if c not in found.values())
        found[name] = next(free, "?")
    return found


def lines(table: LayerMap, width: int) -> Iterator[Text]:
    """The map as text, in as many parts as the width asks for, and what its characters mean."""
    from rich.text import Text

    if not table.rows or len(table.layers) < 2:
        return
    mark = marks(table.types)
    color = {name: _COLORS[number % len(_COLORS)] for number, name in enumerate(table.types)}
    names = max(len(role) for role in table.rows) + 2
    room = max(width - names, 8)
    for start in range(0, len(table.layers), room):
        part = table.layers[start : start + room]
        yield Text(f"{'':{names}}{_ruler(part)}", style="dim")
        for role, row in table.rows.items():
            line = Text(f"{printable(role):<{names}}")
            for name in row[start : start + room]:
                line.append(mark[name] if name else _NONE, style=color[name] if name else "dim")
            yield line
    legend = Text(" " * names)
    for name in table.types:
        legend.append(mark[name], style=color[name])
        legend.append(f" {name}  ")
    yield legend


def _ruler(layers: Sequence[int]) -> str:
    """The number of every tenth layer, and of the first, where it begins."""
    marks = [" "] * len(layers)
    free = 0
    for at, layer in enumerate(layers):
        text = str(layer)
        if at >= free and (at == 0 or layer % 10 == 0) and at + len(text) <= len(layers):
            marks[at : at + len(text)] = text
            free = at + len(text) + 1
    return "".join(marks)
