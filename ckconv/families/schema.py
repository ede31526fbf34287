"""What a family file says, as checked data: rows of tensors, of parameters, of the configuration and of engines.

The form of the file is described in docs/adding-a-family.md. Everything is checked here once: an unknown field, axis,
parameter or layer kind is an error of the file, wherever it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckconv.families import axes as shapes
from ckconv.families.expressions import Expression, ExpressionError, parse
from ckconv.families.merge import FORMATS, fault, merged

#: Operations that change values: what is stored for a canonical x.
VALUES = ("add_one", "neg_exp", "scale")

#: Types that a key of GGUF metadata may have, written behind its name (``rope.freq_base:f32``); u32 without.
KEY_TYPES = ("u32", "i32", "u64", "f32", "bool", "str", "i32[]", "u32[]", "bool[]", "f32[]")


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


@dataclass(frozen=True, slots=True)
class ParameterCell:
    """Where one format has a parameter, or what its loader takes for it.

    Attributes:
        key: dotted path of a document, or metadata key; "" for the other kinds.
        kind: "key", "fixed", "present", "absent", "shape" or "tensor".
        type: of a metadata key.
        expression: of ``fixed``.
        tensor, axis: the stored tensor of the other kinds, and the axis of "shape".
        read, write: over ``it``: the stored value -> the parameter, and back.
        when: written only then.
        stated: written only where the source states it.
        alias: read, never written.
        folded: another value than ``fixed`` is in the tensors (``scale``), and not refused.
        words: stored word -> the parameter's.
    """

    kind: str
    key: str = ""
    type: str = "u32"
    expression: Expression | None = None
    tensor: str = ""
    axis: int = 0
    read: Expression | None = None
    write: Expression | None = None
    when: Expression | None = None
    stated: bool = False
    alias: bool = False
    folded: bool = False
    words: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One hyper-parameter.

    Attributes:
        cells: format ("hf", "gguf") -> its cells.
        default: what the class takes where nothing is said; ``None`` for no default.
        value: it follows from others, and what is stored is compared with it.
        optional: it may be missing, which is ``None``.
    """

    name: str
    cells: Mapping[str, tuple[ParameterCell, ...]] = field(default_factory=dict)
    default: Expression | None = None
    value: Expression | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Engine:
    """What an engine's loader does with the family.

    Attributes:
        right_if: what must hold; otherwise it computes something else.
        needs: keys of the document that its class wants.
        ignores: parameters that it does not look at.
    """

    name: str
    loader: str = ""
    right_if: tuple[Expression, ...] = ()
    needs: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    head_must_be_written: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    """Which models are the family's: architectures or model types, the classes, and a condition over the metadata."""

    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    condition: Expression | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """A family file."""

    name: str
    path: Path
    gguf: Match
    huggingface: Match
    prefixes: Mapping[str, tuple[tuple[str, str], ...]]
    axes: Mapping[str, Expression]
    layers: Mapping[str, Expression]
    tensors: Mapping[str, TensorRow]
    parameters: Mapping[str, Parameter]
    modifiers: Mapping[str, tuple[Any, ...]]
    harmless: tuple[str, ...]
    engines: Mapping[str, Engine]


def load(path: Path) -> Family:
    """Read a family file and everything that it extends.

    Raises:
        InputError: ``family.file``, with the key at fault.
    """
    return _Reader(path, merged(path)).family()


class _Reader:
    def __init__(self, path: Path, table: Mapping[str, Any]) -> None:
        self.path, self.table = path, table
        self.where = ""

    def family(self) -> Family:
        """The family; every part of the table is looked at."""
        parameters = {name: self._parameter(name, row) for name, row in self.table.get("parameters", {}).items()}
        letters = {name: self._expression(text, "axes", name) for name, text in self.table.get("axes", {}).items()}
        kinds = {name: self._expression(text, "layers", name) for name, text in self.table.get("layers", {}).items()}
        config = self.table.get("config", {})
        return Family(
            self.path.stem,
            self.path,
            self._match("gguf", "arch"),
            self._match("huggingface", "model_type"),
            self._prefixes(),
            {k: v for k, v in letters.items() if v},
            {k: v for k, v in kinds.items() if v},
            {name: self._tensor(name, row, kinds) for name, row in self.table.get("tensors", {}).items()},
            parameters,
            {key: tuple(v) if isinstance(v, list) else (v,) for key, v in config.get("modifiers", {}).items()},
            tuple(dict.fromkeys(config.get("harmless", []))),
            {name: self._engine(name, row) for name, row in self.table.get("engines", {}).items()},
        )

    def _fault(self, message: str) -> Exception:
        return fault(self.path, f"{self.where}: {message}")

    def _expression(self, text: object, *where: str) -> Expression | None:
        """An expression, or ``None`` for what is not said; a boolean or number of TOML is a constant."""
        if where:
            self.where = ".".join(where)
        if text is None:
            return None
        try:
            return parse(str(text).lower() if isinstance(text, bool) else str(text))
        except ExpressionError as error:
            raise self._fault(str(error)) from None

    def _fields(self, row: object, known: frozenset[str]) -> Mapping[str, Any]:
        if not isinstance(row, dict):
            raise self._fault("a table expected")
        for key in sorted(row.keys() - known):
            raise self._fault(f"there is no field {key!r} (known: {', '.join(sorted(known))})")
        return row

    def _match(self, section: str, word: str) -> Match:
        self.where = section
        row = self._fields(self.table.get(section, {}), frozenset({word, "class", "match"}))
        return Match(_texts(row.get(word)), _texts(row.get("class")), self._condition(row.get("match")))

    def _condition(self, text: object) -> Expression | None:
        return self._expression(text, self.where, "match")

    def _prefixes(self) -> dict[str, tuple[tuple[str, str], ...]]:
        found = {}
        for name, row in self.table.get("prefix", {}).items():
            self.where = f"prefix.{name}"
            pairs = [self._fields(item, frozenset({"root", "layer"})) for item in _listed(row)]
            found[name] = tuple((pair.get("root", ""), pair["layer"]) for pair in pairs)
        return found

    # Tensors

    def _tensor(self, name: str, row: Mapping[str, Any], kinds: Mapping[str, Any]) -> TensorRow:
        self.where = f"tensors.{name}"
        fused = self._axes(row.get("axes"))
        if fused is None:
            raise self._fault("axes are not said")
        axes = shapes.of_part(fused, row.get("part", 0))
        cells: dict[str, tuple[Cell, ...]] = {}
        dropped: dict[str, tuple[str, str]] = {}
        for format in FORMATS:
            cell = row.get(format, None if format != "mlx" else row.get("hf"))
            if cell is None:
                raise self._fault(f"{format} is not said ('absent' where the format has none)")
            if isinstance(cell, dict) and "dropped" in cell:
                dropped[format] = (cell["name"], cell["dropped"])
            if format == "mlx" and isinstance(cell, dict) and "name" not in cell and isinstance(row.get("hf"), dict):
                cell = {**{k: v for k, v in row["hf"].items() if k in ("name", "part", "parts")}, **cell}
            forms = [] if cell == "absent" or format in dropped else _listed(cell)
            cells[format] = tuple(self._cell(form, axes, fused) for form in forms)
        return TensorRow(
            name,
            axes,
            fused,
            self._expression(row.get("bias")),
            self._expression(row.get("when")),
            self._kind(row.get("layers"), kinds),
            cells,
            dropped,
        )

    def _kind(self, text: object, kinds: Mapping[str, Any]) -> Expression | None:
        found = self._expression(text)
        for name in found.names if found else ():
            if name not in kinds:
                raise self._fault(f"there is no layer kind {name!r} (known: {', '.join(kinds)})")
        return found

    def _cell(self, form: object, axes: shapes.Shape, fused: shapes.Shape) -> Cell:
        known = frozenset({"name", "axes", "value", "by", "when", "part", "parts"})
        row = self._fields({"name": form} if isinstance(form, str) else form, known)
        value = row.get("value", "")
        if not isinstance(row.get("name"), str):
            raise self._fault("a cell without a name")
        if value and value not in VALUES:
            raise self._fault(f"there is no value operation {value!r} (known: {', '.join(VALUES)})")
        stored = self._axes(row.get("axes"))
        parts = row.get("parts", 1)
        cell = Cell(
            row["name"],
            stored or (fused if parts > 1 else None),
            row.get("part", 0),
            parts,
            value,
            self._expression(row.get("by")),
            self._expression(row.get("when")),
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
            raise self._fault(f"{cell.name}: {error}") from None

    def _axes(self, text: object) -> shapes.Shape | None:
        if text is None:
            return None
        try:
            shape = shapes.parse(str(text))
        except shapes.AxesError as error:
            raise self._fault(str(error)) from None
        for letter in shapes.letters(shape):
            if not letter.isdigit() and not letter.startswith("_") and letter not in self.table.get("axes", {}):
                raise self._fault(f"there is no axis {letter!r}")
        return shape

    # Parameters

    def _parameter(self, name: str, row: object) -> Parameter:
        self.where = f"parameters.{name}"
        if not isinstance(row, dict):
            return Parameter(name, value=self._expression(row))
        known = frozenset({"hf", "gguf", "default", "value", "optional", "range"})
        fields = self._fields(row, known)
        cells = {
            format: tuple(self._parameter_cell(cell) for cell in _listed(fields.get(format, [])))
            for format in ("hf", "gguf")
        }
        default = self._expression(fields.get("default"))
        return Parameter(name, cells, default, self._expression(fields.get("value")), bool(fields.get("optional")))

    def _parameter_cell(self, cell: object) -> ParameterCell:
        known = frozenset(
            {
                "key", "read", "write", "when", "stated", "alias", "map", "fixed", "folded", "present", "absent",
                "shape", "tensor", "scalar",
            }
        )  # fmt: skip
        row = self._fields({"key": cell} if isinstance(cell, str) else cell, known)
        common = {
            "read": self._expression(row.get("read")),
            "write": self._expression(row.get("write")),
            "when": self._expression(row.get("when")),
            "stated": bool(row.get("stated")),
            "alias": bool(row.get("alias")),
            "folded": bool(row.get("folded")),
            "words": row.get("map", {}),
        }
        kinds = [kind for kind in ("key", "fixed", "present", "absent", "shape", "tensor") if kind in row]
        if len(kinds) != 1:
            raise self._fault("a cell is a key, fixed, present, absent, shape or tensor")
        kind = kinds[0]
        if kind == "key":
            key, _, type = str(row["key"]).partition(":")
            if type and type not in KEY_TYPES:
                raise self._fault(f"there is no type {type!r} of keys (known: {', '.join(KEY_TYPES)})")
            return ParameterCell(kind, key, type or "u32", **common)
        if kind == "fixed":
            return ParameterCell(kind, expression=self._expression(row["fixed"]), **common)
        if kind == "shape":
            tensor, axis = row["shape"]
            return ParameterCell(kind, tensor=tensor, axis=axis, **common)
        return ParameterCell(kind, tensor=str(row[kind]), **common)

    def _engine(self, name: str, row: object) -> Engine:
        self.where = f"engines.{name}"
        known = frozenset({"class", "right_if", "needs", "ignores", "head_must_be_written"})
        fields = self._fields(row, known)
        conditions = [self._expression(text) for text in _listed(fields.get("right_if", []))]
        return Engine(
            name,
            fields.get("class", ""),
            tuple(condition for condition in conditions if condition),
            _texts(fields.get("needs")),
            _texts(fields.get("ignores")),
            bool(fields.get("head_must_be_written")),
        )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in _listed(value)) if value is not None else ()
