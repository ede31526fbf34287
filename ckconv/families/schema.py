"""What a family file says, as checked data: rows of tensors, of parameters, of the configuration and of engines.

The form of the file is described in docs/adding-a-family.md. Everything is checked here once: an unknown field, axis,
parameter or layer kind is an error of the file, wherever it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckconv.core.names import PARTS
from ckconv.families import axes as shapes
from ckconv.families.engine_rows import Engine, engine
from ckconv.families.expressions import Expression
from ckconv.families.fields import Fields, listed, texts
from ckconv.families.key_rows import Document, KeyRows
from ckconv.families.keys import Keys
from ckconv.families.merge import FORMATS, merged
from ckconv.families.parameter_rows import Parameter, ParameterRows

#: Format of parameters -> the section that says of which models it is.
_SECTIONS = {"hf": "huggingface", "gguf": "gguf"}

#: Operations that change values: what is stored for a canonical x.
VALUES = ("add_one", "neg_exp", "scale")


@dataclass(frozen=True, slots=True)
class Cell:
    """How one format stores a tensor.

    Attributes:
        name: the module's name, with ``M.``, ``L.`` and ``{n}``, ``{E}``; with ``=`` in front the full name.
        axes: the order in which the format stores the values; ``None`` for the canonical one.
        part, parts: which of the segments of the stored tensor this one is, and how many tensors share it.
        value: the operation on values, "" for none; ``by`` its factor.
        when: the form is there only then.
    """

    name: str
    axes: shapes.Shape | None = None
    part: int = 0
    parts: int = 1
    value: str = ""
    by: Expression | None = None
    when: Expression | None = None

    @property
    def stack(self) -> str:
        """The axis of which every index has a stored tensor of its own, "" where there is none."""
        start = self.name.find("{")
        while start >= 0:
            letter = self.name[start + 1 : self.name.index("}", start)]
            if letter != "n":
                return letter
            start = self.name.find("{", start + 1)
        return ""


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One canonical tensor.

    Attributes:
        name: canonical module name; ``L.`` stands for one layer's.
        axes: its canonical shape.
        fused_axes: that of all tensors that share the row, which a cell with one name for all stores.
        bias: whether there is a bias beside the weight.
        when: the tensor is there only then.
        layers: the kind of layer that has it, "" for all.
        cells: format -> its forms, the first of which is written; empty where the format has none.
        dropped: format -> full name of a stored tensor that is no part of the model, and why it is not.
    """

    name: str
    axes: shapes.Shape
    fused_axes: shapes.Shape
    bias: Expression | None
    when: Expression | None
    layers: Expression | None
    cells: Mapping[str, tuple[Cell, ...]]
    dropped: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def in_layers(self) -> bool:
        """There is one in every layer of the kind."""
        return self.name.startswith("L.")

    def in_stack(self, stacks: Mapping[str, Stack]) -> bool:
        """There is one in every layer of the decoder, or of another stack."""
        letter, dot, _ = self.name.partition(".")
        return bool(dot) and (letter == "L" or letter in stacks)

    @property
    def optional(self) -> bool:
        """There are models of the family without it."""
        return self.when is not None or self.layers is not None

    @property
    def whole_name(self) -> bool:
        """Its name is no module's: there is neither ``.weight`` nor ``.bias`` behind it."""
        return any(cell.name.startswith("=") for cells in self.cells.values() for cell in cells)


@dataclass(frozen=True, slots=True)
class Match:
    """Which models are the family's: architectures or model types, the classes, and a condition over the metadata."""

    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    condition: Expression | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers besides the decoder's: rows whose names start with its letter are in each of them.

    Attributes:
        canonical: what the letter stands for in canonical names (``enc.layers.{n}.``).
        count: how many layers there are.
        prefixes: format -> what the letter stands for there.
    """

    canonical: str
    count: Expression
    prefixes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Fusion:
    """Tensors that a checkpoint may hold as one, rows one after the other, though the family's classes do not.

    Attributes:
        name: row name of the whole (``L.attention.qkv``).
        parts: those of the tensors, in order.
        cells: format -> its name.
    """

    name: str
    parts: tuple[str, ...]
    cells: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Family:
    """A family file.

    Attributes:
        name: what ckconv calls the family: the file's name.
    """

    name: str
    path: Path
    in_gguf: Match
    in_huggingface: Match
    prefixes: Mapping[str, tuple[tuple[str, str], ...]]
    axes: Mapping[str, Expression]
    layers: Mapping[str, Expression]
    stacks: Mapping[str, Stack]
    tensors: Mapping[str, TensorRow]
    fused: Mapping[str, Fusion]
    parameters: Mapping[str, Parameter]
    document: Document
    metadata: Keys
    engines: Mapping[str, Engine]

    @property
    def gguf(self) -> str:
        """The ``general.architecture`` that is written; empty for a family that GGUF does not have."""
        return self.in_gguf.names[0] if self.in_gguf.names else ""

    @property
    def model_type(self) -> str:
        """Hugging Face's ``model_type`` that is written."""
        return self.in_huggingface.names[0]

    @property
    def hf_class(self) -> str:
        """The class that is written to ``config.json``."""
        return self.in_huggingface.classes[0]

    @property
    def experts(self) -> bool:
        """A mixture of experts."""
        return any(name.startswith("L.ffn.experts.") for name in self.tensors)

    @property
    def rope(self) -> bool:
        """Positions are rotary; learned otherwise."""
        return "rope_theta" in self.parameters


def load(path: Path) -> Family:
    """Read a family file and everything that it extends.

    Raises:
        InputError: ``family.file``, with the key at fault.
    """
    return _Reader(path, merged(path)).family()


class _Reader(Fields):
    def __init__(self, path: Path, table: Mapping[str, Any]) -> None:
        super().__init__(path)
        self.table = table

    def family(self) -> Family:
        """The family; every part of the table is looked at."""
        rows, keys = ParameterRows(self.path), KeyRows(self.path)
        parameters = {name: rows.row(name, row) for name, row in self.table.get("parameters", {}).items()}
        rows.check(parameters, [format for format, section in _SECTIONS.items() if section in self.table])
        letters = {name: self.expression(text, "axes", name) for name, text in self.table.get("axes", {}).items()}
        kinds = {name: self.expression(text, "layers", name) for name, text in self.table.get("layers", {}).items()}
        return Family(
            self.path.stem,
            self.path,
            self._match("gguf", "arch"),
            self._match("huggingface", "model_type"),
            self._prefixes(),
            {k: v for k, v in letters.items() if v},
            {k: v for k, v in kinds.items() if v},
            {letter: self._stack(letter, row) for letter, row in self.table.get("stacks", {}).items()},
            {name: self._tensor(name, row, kinds) for name, row in self.table.get("tensors", {}).items()},
            {name: self._fusion(name, row) for name, row in self.table.get("fused", {}).items()},
            parameters,
            keys.document(self.path.stem, self.table.get("config", {}), list(parameters.values())),
            keys.metadata(self.path.stem, self.table.get("metadata", {}), list(parameters.values())),
            {name: engine(self.path, name, row) for name, row in self.table.get("engines", {}).items()},
        )

    def _match(self, section: str, word: str) -> Match:
        self.where = section
        row = self.fields(self.table.get(section, {}), frozenset({word, "class", "match"}))
        return Match(texts(row.get(word)), texts(row.get("class")), self._condition(row.get("match")))

    def _condition(self, text: object) -> Expression | None:
        return self.expression(text, self.where, "match")

    def _prefixes(self) -> dict[str, tuple[tuple[str, str], ...]]:
        found = {}
        for name, row in self.table.get("prefix", {}).items():
            self.where = f"prefix.{name}"
            pairs = [self.fields(item, frozenset({"root", "layer"})) for item in listed(row)]
            found[name] = tuple((pair.get("root", ""), pair["layer"]) for pair in pairs)
        return found

    def _stack(self, letter: str, row: object) -> Stack:
        self.where = f"stacks.{letter}"
        fields = self.fields(row, frozenset({"canonical", "count", *FORMATS}))
        count = self.expression(fields.get("count"))
        if count is None or not isinstance(fields.get("canonical"), str):
            raise self.fault("canonical and count are not said")
        return Stack(fields["canonical"], count, {key: fields[key] for key in FORMATS if key in fields})

    def _fusion(self, name: str, row: object) -> Fusion:
        self.where = f"fused.{name}"
        fields = self.fields(row, frozenset(FORMATS))
        known = {whole.replace("layers.{n}.", "L."): parts for whole, parts in PARTS.items()}
        if name not in known:
            raise self.fault(f"there is no tensor of several that is called so (known: {', '.join(known)})")
        parts = tuple(part.replace("layers.{n}.", "L.") for part in known[name])
        for part in parts:
            if part not in self.table.get("tensors", {}):
                raise self.fault(f"there is no tensor {part!r}")
        return Fusion(name, parts, dict(fields))

    # Tensors

    def _tensor(self, name: str, row: Mapping[str, Any], kinds: Mapping[str, Any]) -> TensorRow:
        self.where = f"tensors.{name}"
        fused = self._axes(row.get("axes"))
        if fused is None:
            raise self.fault("axes are not said")
        axes = shapes.of_part(fused, row.get("part", 0))
        cells: dict[str, tuple[Cell, ...]] = {}
        dropped: dict[str, tuple[str, str]] = {}
        for format in FORMATS:
            cell = row.get(format, None if format != "mlx" else row.get("hf"))
            if cell is None:
                raise self.fault(f"{format} is not said ('absent' where the format has none)")
            if isinstance(cell, dict) and "dropped" in cell:
                dropped[format] = (cell["name"], cell["dropped"])
            if format == "mlx" and isinstance(cell, dict) and "name" not in cell and isinstance(row.get("hf"), dict):
                cell = {**{k: v for k, v in row["hf"].items() if k in ("name", "part", "parts")}, **cell}
            forms = [] if cell == "absent" or format in dropped else listed(cell)
            cells[format] = tuple(self._cell(form, axes, fused) for form in forms)
        return TensorRow(
            name,
            axes,
            fused,
            self.expression(row.get("bias")),
            self.expression(row.get("when")),
            self._kind(row.get("layers"), kinds),
            cells,
            dropped,
        )

    def _kind(self, text: object, kinds: Mapping[str, Any]) -> Expression | None:
        found = self.expression(text)
        for name in found.names if found else ():
            if name not in kinds:
                raise self.fault(f"there is no layer kind {name!r} (known: {', '.join(kinds)})")
        return found

    def _cell(self, form: object, axes: shapes.Shape, fused: shapes.Shape) -> Cell:
        known = frozenset({"name", "axes", "value", "by", "when", "part", "parts"})
        row = self.fields({"name": form} if isinstance(form, str) else form, known)
        value = row.get("value", "")
        if not isinstance(row.get("name"), str):
            raise self.fault("a cell without a name")
        if value and value not in VALUES:
            raise self.fault(f"there is no value operation {value!r} (known: {', '.join(VALUES)})")
        stored = self._axes(row.get("axes"))
        parts = row.get("parts", 1)
        cell = Cell(
            row["name"],
            stored or (fused if parts > 1 else None),
            row.get("part", 0),
            parts,
            value,
            self.expression(row.get("by")),
            self.expression(row.get("when")),
        )
        self._check_cell(cell, axes)
        return cell

    def _check_cell(self, cell: Cell, axes: shapes.Shape) -> None:
        """The atoms of a cell are the tensor's own, an axis that is stacked left out."""
        canonical = axes[1:] if cell.stack and axes and axes[0] == (cell.stack,) else axes
        if cell.axes is None:
            return
        try:
            shapes.move(cell.axes, canonical, cell.part if shapes.segment_count(cell.axes) > 1 else 0, lambda name: 1)
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
            if not letter.isdigit() and not letter.startswith("_") and letter not in self.table.get("axes", {}):
                raise self.fault(f"there is no axis {letter!r}")
        return shape
