"""Section ``[tensors]`` of a family file: rows of tensors.

A row is a module: ``axes`` is its shape, ``hf``, ``gguf`` and ``mlx`` its cells (a name, a table of ``name``, ``axes``,
``value``, ``packed`` and ``by``, a list of forms of which the first is written, or ``absent``; GGUF's may be
a table of ``key``, the metadata key with a number of every layer), ``bias`` and ``when`` say whether there is a bias,
and whether it is there at all (``by``, of ``hf``: a factor, or several, that its class multiplies what comes out with,
and that the canonical values have in them), ``layers`` which kind of layer has it, ``spare`` which may
store it though nothing reads it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckconv.core.layouts import ADD_ONE, NEG_EXP
from ckconv.core.named import NamedTuple
from ckconv.families import axes as shapes
from ckconv.families.expressions import Expression
from ckconv.families.fields import Fields, listed
from ckconv.families.merge import FORMATS

#: Operations that change values: what is stored for a canonical x, as :class:`ckconv.core.layouts.Layout` has it.
VALUES: Mapping[str, int] = {"": 0, "add_one": ADD_ONE, "neg_exp": NEG_EXP}

#: The canonical values are this format's; and the format that stores no stack one by one, but may have numbers as keys.
_CANONICAL, _KEYED = "hf", "gguf"
#: Formats whose cell may have factors: the first, and the one that takes its cell over without them.
_FACTORED = (_CANONICAL, "mlx")


class Cell(NamedTuple):
    """How one format stores a tensor.

    Attributes:
        name: the module's name, with ``M.``, ``L.`` and ``{n}``, ``{E}``; with ``=`` in front the full name.
        axes: the order in which the format stores the values; ``None`` for the canonical one.
        part, parts: which of the segments of the stored tensor this one is, and how many tensors share it.
        value: the operation on values, "" for none.
        packed: the form is that of values in blocks, which are stored in another order and under another name.
        by: what a stored value is multiplied with; ``None`` for 1.
        memory: the class calls it so in memory, where its files have the first form; adapters are made there.
    """

    name: str
    axes: shapes.Shape | None = None
    part: int = 0
    parts: int = 1
    value: str = ""
    packed: bool = False
    by: Expression | None = None
    memory: bool = False

    @property
    def stack(self) -> str:
        """Axis with a stored tensor for every index, or ""."""
        start = self.name.find("{")
        while start >= 0:
            letter = self.name[start + 1 : self.name.index("}", start)]
            if letter != "n":
                return letter
            start = self.name.find("{", start + 1)
        return ""


class Dropped(NamedTuple):
    """A stored tensor that is no part of the model.

    Attributes:
        name: its full name.
        why: what is said of it.
        zeros: the class has it whatever is stored, and would make it up: zeros are written.
        copied: other classes of the family read it: it goes along where tensors keep their names.
    """

    name: str
    why: str
    zeros: bool = False
    copied: bool = False


class TensorRow(NamedTuple):
    """One canonical tensor.

    Attributes:
        name: canonical module name; ``L.`` stands for one layer's.
        axes: its canonical shape.
        fused_axes: that of all tensors that share the row, which a cell with one name for all stores.
        bias: whether there is a bias beside the weight.
        when: the tensor is there only then.
        layers: the kind of layer that has it, ``None`` for all.
        spare: the kind that may store it, too, and computes without it.
        cells: format -> its forms, the first of which is written; empty where the format has none.
        dropped: format -> a stored tensor that is no part of the model.
        key: the metadata key of GGUF that holds the one number of every layer, "" where it is a tensor there.
    """

    name: str
    axes: shapes.Shape
    fused_axes: shapes.Shape
    bias: Expression | None
    when: Expression | None
    layers: Expression | None
    spare: Expression | None
    cells: Mapping[str, tuple[Cell, ...]]
    dropped: Mapping[str, Dropped] = {}
    key: str = ""

    def in_stack(self, stacks: Mapping[str, Stack]) -> bool:
        """Whether every layer of the decoder or of a stack has the row."""
        letter, dot, _ = self.name.partition(".")
        return bool(dot) and (letter == "L" or letter in stacks)

    @property
    def optional(self) -> bool:
        """Whether models of the family may lack the row."""
        return self.when is not None or self.layers is not None

    @property
    def whole_name(self) -> bool:
        """Whether the name is complete, without ``.weight`` or ``.bias``."""
        return any(cells[0].name.startswith("=") for cells in self.cells.values() if cells)


@dataclass(frozen=True, slots=True)
class Stack:
    """Stack of layers apart from the decoder's, with a letter for rows.

    Attributes:
        canonical: what the letter stands for in canonical names (``enc.layers.{n}.``).
        count: how many layers there are.
        prefixes: format -> what the letter stands for there.
        numbers: a list over the layers of the number that each has in GGUF's names, where that is another.
    """

    canonical: str
    count: Expression
    prefixes: Mapping[str, str]
    numbers: Expression | None = None


class TensorRows(Fields):
    """Reads the section."""

    def __init__(self, path: Path, letters: Mapping[str, object]) -> None:
        super().__init__(path)
        self._letters = letters

    def row(self, name: str, row: Mapping[str, Any], kinds: Mapping[str, Any]) -> TensorRow:
        """One tensor, its fields merged."""
        self.where = f"tensors.{name}"
        fused = self._axes(row.get("axes"))
        if fused is None:
            raise self.fault('axes are missing: the shape in letters of [axes], outermost first, such as axes = "F H"')
        axes = shapes.of_part(fused, row.get("part", 0))
        cells: dict[str, tuple[Cell, ...]] = {}
        dropped: dict[str, Dropped] = {}
        for format in FORMATS:
            cell = row.get(format, None if format != "mlx" else row.get("hf"))
            if cell is None:
                raise self.fault(
                    f'{format} is missing: {format} = "NAME", or {format} = "absent" where the format has none'
                )
            if isinstance(cell, dict) and "dropped" in cell:
                also = (bool(cell.get(word)) for word in ("zeros", "copied"))
                dropped[format] = Dropped(cell["name"], cell["dropped"], *also)
            if format == "mlx" and isinstance(cell, dict) and "name" not in cell and isinstance(row.get("hf"), dict):
                cell = {**{k: v for k, v in row["hf"].items() if k in ("name", "part", "parts")}, **cell}
            keyed = isinstance(cell, dict) and "key" in cell
            forms = [] if cell == "absent" or format in dropped or keyed else listed(cell)
            cells[format] = tuple(self._cell(form, axes, fused, format) for form in forms)
        return TensorRow(
            name,
            axes,
            fused,
            self.expression(row.get("bias")),
            self.expression(row.get("when")),
            self._kind(row.get("layers"), kinds),
            self._kind(row.get("spare"), kinds),
            cells,
            dropped,
            self._key(row.get(_KEYED)),
        )

    def _key(self, cell: object) -> str:
        return str(self.fields(cell, frozenset({"key"}))["key"]) if isinstance(cell, dict) and "key" in cell else ""

    def _kind(self, text: object, kinds: Mapping[str, Any]) -> Expression | None:
        found = self.expression(text)
        for name in found.names if found else ():
            if name not in kinds:
                raise self.fault(f"there is no layer kind {name!r} (known: {', '.join(kinds)})")
        return found

    def _cell(self, form: object, axes: shapes.Shape, fused: shapes.Shape, format: str) -> Cell:
        known = frozenset(
            {"name", "axes", "value", "packed", "memory", "part", "parts", *(["by"] if format in _FACTORED else [])}
        )
        row = self.fields({"name": form} if isinstance(form, str) else form, known)
        value = row.get("value", "")
        if not isinstance(row.get("name"), str):
            raise self.fault('a cell without a name: "NAME", or { name = "NAME", ... }')
        if value not in VALUES:
            raise self.fault(f"there is no value operation {value!r} (known: {', '.join(filter(None, VALUES))})")
        if value and format == _CANONICAL:
            raise self.fault(f"{format} holds the values themselves, without {value}")
        stored = self._axes(row.get("axes"))
        parts = row.get("parts", 1)
        cell = Cell(
            row["name"],
            stored or (fused if parts > 1 else None),
            row.get("part", 0),
            parts,
            value,
            row.get("packed", False),
            self.expression(row.get("by")) if format == _CANONICAL else None,
            row.get("memory", False),
        )
        self._check_cell(cell, axes, format)
        return cell

    def _check_cell(self, cell: Cell, axes: shapes.Shape, format: str) -> None:
        """Check that a cell's axes are the row's, without a stacked axis."""
        canonical = axes[1:] if cell.stack else axes
        if cell.stack and (axes[:1] != ((cell.stack,),) or format == _KEYED):
            raise self.fault(f"{cell.name}: only the first axis is stored one by one, and not in {_KEYED}")
        if cell.axes is None:
            return
        part = cell.part if shapes.segment_count(cell.axes) > 1 else 0
        try:
            shapes.move(cell.axes, canonical, part, lambda letter: 1)
        except shapes.AxesError as error:
            raise self.fault(f"{cell.name}: {error}") from None

    def _axes(self, text: object) -> shapes.Shape | None:
        if text is None:
            return None
        try:
            shape = shapes.parse(str(text))
        except shapes.AxesError as error:
            raise self.fault(str(error)) from None
        for letter in shapes.letters(shape):
            if not letter.isdigit() and letter.removeprefix("_") not in self._letters:
                known = ", ".join(sorted(one for one in self._letters if len(one) == 1))
                raise self.fault(f"there is no axis {letter!r} (known: {known}; a new one is a row of [axes])")
        return shape
