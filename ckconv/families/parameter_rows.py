"""Section ``[parameters]`` of a family file: rows of hyper-parameters.

``name = { hf, gguf, bump, default, value, optional }``, or a plain constant of the family (``mlp_bias = false``).
``hf``, ``gguf`` and ``bump`` (keys of the engine's configuration, besides those that every family has) are a cell or a
list of cells: a key (``"hidden_size"``, ``"rope.freq_base:f32"``), or a table that has one of

- ``key``: with ``read`` and ``write`` (expressions over ``it``), ``when`` (written only then), ``alias`` (read, never
  written), ``instead`` (an alias, unless that is said to be false, that counts only where no other cell says anything),
  ``unread`` (no engine looks at it), ``map`` (words to words), ``only`` (``transformers`` or ``mlx_lm``: whose class
  reads it);
- ``fixed``: the loader takes this value for granted, and another is refused with the sentence ``else``, unless it is
  ``folded`` into the tensors;
- ``present``, ``absent`` (a tensor's name, parameters in braces; ``{n}`` with ``read`` over a list of all layers),
  ``shape`` (a name and an axis): what tensors say;
- ``tensor``: the numbers are a float32 tensor of that name, with ``read``, ``write`` and ``when`` as a key has them.

``default`` is what the class takes where nothing is said, an expression, for all or as a table of ``transformers``,
``mlx_lm`` and ``llama_cpp``; ``value``: it follows from others. Neither, and not ``optional``: required.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ckconv.core.named import NamedTuple
from ckconv.families.expressions import Expression
from ckconv.families.fields import Fields, listed
from ckconv.families.keys import READERS
from ckconv.families.merge import PARAMETER_CELLS

#: Types that a key of GGUF metadata may have, written behind its name (``rope.freq_base:f32``); u32 without.
KEY_TYPES = ("u32", "i32", "u64", "f32", "bool", "str", "i32[]", "u32[]", "bool[]", "f32[]", "str[]")

#: Who takes a default: the classes of both libraries, and llama.cpp's loader.
TAKERS = ("transformers", "mlx_lm", "llama_cpp")


class ParameterCell(NamedTuple):
    """Place of a parameter in a format, or the loader's fixed value.

    Attributes:
        key: dotted path of a document, or metadata key; "" for the other kinds.
        kind: "key", "fixed", "present", "absent", "shape" or "tensor".
        type: of a metadata key.
        expression: of ``fixed``.
        tensor, axis: the stored tensor of the other kinds, and the axis of "shape".
        read, write: over ``it``: the stored value -> the parameter, and back.
        when: written only then; ``stated`` are the names of the parameters that the source says itself.
        alias: read, never written.
        unread: written, but no engine looks at it.
        sentence: of ``fixed``, what is said of another value.
        instead: looked at only where no other cell says anything.
        folded: another value than ``fixed`` is in the tensors (``scale``), and not refused.
        words: stored word -> the parameter's.
        readers: of a document's key, whose classes read it.
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
    alias: bool = False
    unread: bool = False
    instead: bool = False
    folded: bool = False
    sentence: str = ""
    words: Mapping[str, Any] = {}
    readers: tuple[str, ...] = READERS["both"]

    @property
    def head(self) -> str:
        """The key at the top of the document."""
        return self.key.partition(".")[0]

    @property
    def of_rope(self) -> bool:
        """In one of RoPE's tables, which rules of their own read."""
        return "." in self.key and self.head in ("rope_parameters", "rope_scaling")


class Parameter(NamedTuple):
    """One hyper-parameter.

    Attributes:
        cells: format ("hf", "gguf", "bump") -> its cells.
        defaults: who reads (:data:`TAKERS`) -> what it takes where nothing is said.
        value: it follows from others.
        optional: it may be missing, which is ``None``.
    """

    name: str
    cells: Mapping[str, tuple[ParameterCell, ...]] = {}
    defaults: Mapping[str, Expression] = {}
    value: Expression | None = None
    optional: bool = False

    @property
    def folded(self) -> bool:
        """Some formats have it in the tensors."""
        return any(cell.folded for cell in self.cells.get("gguf", ()))

    @property
    def read_only(self) -> bool:
        """Whether the parameter only serves to derive further parameters."""
        return all(cell.alias or cell.kind == "fixed" for cells in self.cells.values() for cell in cells)

    @property
    def of_a_class(self) -> bool:
        """Whether the parameter is derived, and only documents state it."""
        return self.value is not None and not self.cells.get("gguf")

    def key_cells(self, format: str) -> tuple[ParameterCell, ...]:
        """Cells that are a key of the format."""
        return tuple(cell for cell in self.cells.get(format, ()) if cell.kind == "key")

    @property
    def kind(self) -> str:
        """Metadata type: ``u32``, ``f32``, ``bool``, ``str``; empty if unsaid."""
        return next((cell.type for cell in self.key_cells("gguf")), "")

    @property
    def kind_of_items(self) -> str:
        """Metadata type of list items, one a layer; empty if ambiguous."""
        made = any(cell.write or cell.read or cell.alias for cell in self.key_cells("gguf"))
        return "" if made else self.kind


_CELL = frozenset(
    {
        "key", "read", "write", "when", "alias", "instead", "unread", "map", "only", "fixed", "folded", "else",
        "present", "absent", "shape", "tensor",
    }
)  # fmt: skip
_KINDS = ("key", "fixed", "present", "absent", "shape", "tensor")


class ParameterRows(Fields):
    """Reads the section."""

    def row(self, name: str, row: object) -> Parameter:
        """One parameter: a table, or a constant of the family."""
        self.where = f"parameters.{name}"
        if not isinstance(row, dict):
            return Parameter(name, value=self.expression(row))
        fields = self.fields(row, frozenset({*PARAMETER_CELLS, "default", "value", "optional"}))
        cells = {
            format: tuple(self._cell(cell) for cell in listed(fields.get(format, []))) for format in PARAMETER_CELLS
        }
        value = self.expression(fields.get("value"))
        return Parameter(name, cells, self._defaults(fields.get("default")), value, bool(fields.get("optional")))

    def check(self, parameters: Mapping[str, Parameter], formats: Iterable[str]) -> None:
        """Check rows against each other: unique keys, required cells."""
        for format in formats:
            places: dict[str, str] = {}
            for name, parameter in parameters.items():
                self.where = f"parameters.{name}"
                for cell in parameter.key_cells(format):
                    if not cell.alias and places.setdefault(cell.key, name) != name:
                        raise self.fault(f"{cell.key} is written by {places[cell.key]!r} too")
                needed = not (parameter.value or parameter.optional or parameter.defaults)
                if needed and not any(not cell.alias for cell in parameter.cells.get(format, ())):
                    other = next(
                        (cell.key for cells in parameter.cells.values() for cell in cells if cell.key), "a key"
                    )
                    raise self.fault(
                        f"it has no place in {format}, and no default: add {format} = {other!r}, or "
                        f'{format} = {{ fixed = VALUE, else = "WHY OTHERS ARE REFUSED" }}, or optional = true'
                    )

    def _defaults(self, value: object) -> dict[str, Expression]:
        if value is None:
            return {}
        table = self.fields(value, frozenset(TAKERS)) if isinstance(value, dict) else dict.fromkeys(TAKERS, value)
        found = {who: self.expression(item) for who, item in table.items()}
        return {who: expression for who, expression in found.items() if expression}

    def _cell(self, cell: object) -> ParameterCell:
        row = self.fields({"key": cell} if isinstance(cell, str) else cell, _CELL)
        common: dict[str, Any] = {
            "read": self.expression(row.get("read")),
            "write": self.expression(row.get("write")),
            "when": self.expression(row.get("when")),
            "alias": bool(row.get("alias", row.get("instead"))),
            "instead": bool(row.get("instead")),
            "unread": bool(row.get("unread")),
            "folded": bool(row.get("folded")),
            "sentence": str(row.get("else", "")),
            "words": row.get("map", {}),
            "readers": self.word(row, "only", READERS, "both"),
        }
        kinds = [kind for kind in _KINDS if kind in row]
        if len(kinds) != 1:
            said = f"says {' and '.join(kinds)}" if kinds else "says none of them"
            raise self.fault(f"a cell has one of the fields {', '.join(_KINDS)}; this one {said}")
        kind = kinds[0]
        if kind == "key":
            key, _, type = str(row["key"]).partition(":")
            if type and type not in KEY_TYPES:
                raise self.fault(f"there is no type {type!r} of keys (known: {', '.join(KEY_TYPES)})")
            return ParameterCell(kind, key, type or "u32", **common)
        if kind == "fixed":
            return ParameterCell(kind, expression=self.expression(row["fixed"]), **common)
        if kind == "shape":
            tensor, axis = row["shape"]
            return ParameterCell(kind, tensor=tensor, axis=axis, **common)
        return ParameterCell(kind, tensor=str(row[kind]), **common)
