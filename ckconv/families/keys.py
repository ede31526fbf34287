"""Keys of a family file: parameters, and the role of every other key.

A key is a parameter, harmless, or a modifier with its neutral values; one that is none of these nobody is known to
read: a report names it.

Section ``[parameters]``: ``name = { hf, gguf, bump, default, value, optional, aid }``, or a constant of the family
(``mlp_bias = false``). ``hf``, ``gguf`` and ``bump`` (keys of the engine's configuration, besides those that every
family has) are a cell or a list of cells: a key (``"hidden_size"``, ``"rope.freq_base:f32"``), or a table that has one
of

- ``key``: with ``read`` and ``write`` (expressions over ``it``), ``when`` (written only then), ``alias`` (read, never
  written), ``instead`` (an alias, unless that is said to be false, that counts only where no other cell says anything),
  ``map`` (words to words), ``only`` (``transformers``, ``mlx_lm`` or ``nobody``: whose class reads it);
- ``fixed``: the loader takes this value for granted, and another is refused with the sentence ``else``, unless it is
  ``folded`` into the tensors;
- ``present``, ``absent`` (a tensor's name, parameters in braces; ``{n}`` with ``read`` over a list of all layers),
  ``shape`` (a name and an axis): what tensors say;
- ``tensor``: the numbers are a float32 tensor of that name, with ``read``, ``write`` and ``when`` as a key has them.

``default`` is what the class takes where nothing is stated, an expression, for all or as a table of ``transformers``,
``mlx_lm`` and ``llama_cpp``; ``value``: it follows from others. Neither, and not ``optional``: required.

Sections ``[config]`` and ``[metadata]``: ``modifiers`` (key -> a neutral value, a list of them, or a table of
``neutral``, ``only`` and ``written``) change what is computed but for their neutral values, where ``"any"`` stands for
a key that a rule of a reader looks at: a text in ``[metadata]`` is an expression over
the parameters; ``harmless`` change nothing. ``seen`` (key -> values) closes the section: no other key, and no other
value. ``[config]`` has further tables: ``written`` (key -> constant of every document that is made), ``default``
(``rope_parameters`` and ``text_config``: what the class takes for the table, or what it leaves out), and
``unknown``: whether a key without a row is ``refused`` (what a user's file is taken for) or ``noted``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from ckconv.core.config import FIELD_OF
from ckconv.core.lazy import NamedTuple, table_of
from ckconv.families import merge
from ckconv.families.expressions import Expression

# -- Role of each configuration and metadata key for its readers -------------------------------------------------------


def full_key(architecture: str, name: str) -> str:
    """Metadata key behind its architecture, unless it starts with ``/``."""
    return name.removeprefix("/") if name.startswith("/") else f"{architecture}.{name}"


class Kind(Enum):
    """Role of a key.

    PARAMETER: a hyper-parameter, or what a rule of its own looks at; carried.
    HARMLESS: nothing that is computed depends on it.
    MODIFIER: changes what is computed, unless it has a neutral value; refused where it cannot be carried.
    """

    PARAMETER = "parameter"
    HARMLESS = "harmless"
    MODIFIER = "modifier"


#: Who loads a checkpoint: what computes a model of Hugging Face's format, and what one of MLX's.
TRANSFORMERS, MLX_LM = "transformers", "mlx-lm"
BOTH = (TRANSFORMERS, MLX_LM)

#: Format of a checkpoint -> who loads it.
CONSUMERS: Mapping[str, str] = {"safetensors": TRANSFORMERS, "mlx": MLX_LM}

#: Word of a family file -> who reads a key.
READERS: Mapping[str, tuple[str, ...]] = {"transformers": (TRANSFORMERS,), "mlx_lm": (MLX_LM,), "both": BOTH}


class Key(NamedTuple):
    """One key.

    Attributes:
        readers: whose classes read it; another one computes the same whatever its value is.
        neutral: of a modifier, the values that change nothing; ``None`` also stands for a key that is not there.
        same_as: of a modifier, the parameters whose value changes nothing.
        written: of a modifier, a document that is made says its first neutral value.
    """

    name: str
    kind: Kind
    readers: tuple[str, ...] = BOTH
    neutral: tuple[object, ...] = ()
    same_as: Expression | None = None
    written: bool = False

    def is_neutral(self, value: object) -> bool:
        """Whether the value changes nothing; ``true`` is not 1, but ``0.0`` is 0."""
        return any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in self.neutral
        )


#: Words of ``seen`` in place of a value: any, and none.
ANY, NONE = merge.EVERY, "absent"


class Keys(NamedTuple):
    """The keys of one family, or of one type of RoPE's scaling, by name.

    Attributes:
        seen: key -> its values in the models that the file was made of, :data:`ANY` or :data:`NONE` among them; of a
            list, its items. Empty for a file that is not closed so.
    """

    name: str
    keys: Mapping[str, Key]
    seen: Mapping[str, Sequence[Any]] = {}

    def reads(self, name: str, consumer: str) -> bool:
        """Whether the consumer's class looks at this key, or at its table."""
        key = self.keys.get(name, self.keys.get(name.partition(".")[0]))
        return key is not None and key.kind is not Kind.HARMLESS and consumer in key.readers

    def idle(self, name: str, value: object) -> bool:
        """Whether this key changes nothing: nobody reads it, or not this value."""
        key = self.keys.get(name)
        return value is None or key is None or key.kind is Kind.HARMLESS or key.is_neutral(value)

    def active(self, document: Mapping[str, Any], consumer: str) -> Iterator[str]:
        """Modifiers of the document that change what this consumer computes."""
        for key in self.keys.values():
            read = key.kind is Kind.MODIFIER and consumer in key.readers and key.name in document
            if read and not key.is_neutral(document[key.name]):
                yield key.name

    def misread(self, document: Mapping[str, Any], source: str, target: str) -> Iterator[str]:
        """Modifiers that only the reader of the output would notice."""
        for name in self.active(document, target):
            if source not in self.keys[name].readers:
                yield name

    def unseen(self, document: Mapping[str, Any]) -> Iterator[str]:
        """Values unlike those of all models of the file: "key = value, ..."."""
        if not self.seen:
            return
        for name in sorted({*document, *self.seen}):
            key = self.keys.get(name, self.keys.get(name.partition(".")[0]))
            value, values = document.get(name), self.seen.get(name, (NONE,))
            if key is not None and key.kind is Kind.HARMLESS:
                continue
            items = value if isinstance(value, list) and value else [NONE if value is None else value]
            if not all(_among(item, values) for item in items):
                meant = ", ".join("nothing" if one == NONE else repr(one) for one in values)
                found = "nothing" if value is None else repr(value)
                yield f"{name} = {found}, where {self.name} was seen with {meant},"

    def unknown(self, document: Iterable[str]) -> list[str]:
        """Keys that are in no row."""
        return sorted(name for name in document if name not in self.keys)


def _among(value: Any, values: Sequence[Any]) -> bool:
    if ANY in values and value != NONE:
        return True
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)


# -- Section ``[parameters]`` of a family file: rows of hyper-parameters -----------------------------------------------

#: Types that a key of GGUF metadata may have, written behind its name (``rope.freq_base:f32``); u32 without.
KEY_TYPES = ("u32", "i32", "u64", "f32", "bool", "str", "i32[]", "u32[]", "u64[]", "bool[]", "f32[]", "str[]")

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
        sentence: of ``fixed``, what is reported of another value.
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
    def of_no_use(self) -> bool:
        """Whether a loader wants this constant and reads nothing of it."""
        constant = self.write is not None and not self.write.names
        return constant and self.read is not None and "it" not in self.read.names

    @property
    def of_rope(self) -> bool:
        """Whether the key is in a table of RoPE, which rows of its own read."""
        return "." in self.key and self.head in TABLES_OF_ROPE


class Parameter(NamedTuple):
    """Hyper-parameter of a family: its row in ``[parameters]``.

    Attributes:
        cells: format ("hf", "gguf", "bump") -> its cells.
        defaults: who reads (:data:`TAKERS`) -> what it takes where nothing is stated.
        value: it follows from others.
        optional: it may be missing, which is ``None``.
        aid: it only serves to compute other parameters, which models are compared by.
    """

    name: str
    cells: Mapping[str, tuple[ParameterCell, ...]] = {}
    defaults: Mapping[str, Expression] = {}
    value: Expression | None = None
    optional: bool = False
    aid: bool = False

    @property
    def neutral(self) -> tuple[Any, ...]:
        """Constants that stand for a missing value, and are in the tensors."""
        cells = [cell for cell in self.cells.get("gguf", ()) if cell.folded and cell.expression is not None]
        return tuple(cell.expression.value({}) for cell in cells if cell.expression and not cell.expression.names)

    @property
    def folded(self) -> bool:
        """Whether some formats have the parameter in their tensors."""
        return any(cell.folded for cell in self.cells.get("gguf", ()))

    @property
    def read_only(self) -> bool:
        """Whether the parameter only serves to derive further parameters."""
        return all(cell.alias or cell.kind == "fixed" for cells in self.cells.values() for cell in cells)

    @property
    def of_a_class(self) -> bool:
        """Whether the parameter is derived, and only documents state it."""
        return self.value is not None and not self.cells.get("gguf")

    @property
    def depends_on(self) -> frozenset[str]:
        """The parameters that it may follow from."""
        cells = [cell for cells in self.cells.values() for cell in cells]
        made = [one for cell in cells for one in (cell.expression, cell.read, cell.write, cell.when)]
        return frozenset().union(*(one.names for one in (*made, *self.defaults.values(), self.value) if one))

    def key_cells(self, format: str) -> tuple[ParameterCell, ...]:
        """Cells that are a key of the format."""
        return tuple(cell for cell in self.cells.get(format, ()) if cell.kind == "key")

    @property
    def kind(self) -> str:
        """Metadata type: ``u32``, ``f32``, ``bool``, ``str``; empty if unsaid."""
        return next((cell.type for cell in self.key_cells("gguf")), "")

    @property
    def is_switch(self) -> bool:
        """Whether its default is true or false."""
        return any(not one.names and isinstance(one.value({}), bool) for one in self.defaults.values())

    @property
    def kind_of_items(self) -> str:
        """Metadata type of list items, one a layer; empty if ambiguous."""
        made = any(cell.write or cell.read or cell.alias for cell in self.key_cells("gguf"))
        return "" if made else self.kind

    @property
    def is_single(self) -> bool:
        """Whether it is one value, never a list.

        A GGUF's key has a type for it, or a constant is its default, and no type, tensor or expression of its row is
        of lists. Fields of a configuration have rules of their own.
        """
        cells = [cell for cells in self.cells.values() for cell in cells]
        made = [one for cell in cells for one in (cell.expression, cell.read, cell.write)]
        lists = any(one.of_lists for one in (*made, *self.defaults.values(), self.value) if one)
        several = lists or any(one.kind == "tensor" or one.type.endswith("[]") for one in cells)
        typed = self.kind or any(not one.names and one.value({}) is not None for one in self.defaults.values())
        return bool(typed) and not several and self.name not in FIELD_OF


_KINDS = ("key", "fixed", "present", "absent", "shape", "tensor")


def unread_by(reader: str | None, rows: Iterable[Parameter]) -> frozenset[str]:
    """Keys of a checkpoint's rows that the classes of a library do not read."""
    cells = [cell for row in rows for cell in row.key_cells("hf")]
    return frozenset(cell.key for cell in cells) - {cell.key for cell in cells if reader in cell.readers}


class ParameterRows(merge.Fields):
    """Reads the section."""

    def row(self, name: str, row: object) -> Parameter:
        """Row of a parameter, out of a table or a constant."""
        self.where = f"parameters.{name}"
        if not isinstance(row, dict):
            return Parameter(name, value=self.expression(row))
        fields = self.fields(row, merge.PARAMETER_FIELDS.keys())
        cells = {
            format: tuple(map(self._cell, merge.listed(fields[format]))) if format in fields else ()
            for format in merge.PARAMETER_CELLS
        }
        value = self.expression(fields["value"]) if "value" in fields else None
        flags = (bool(fields.get(name)) for name in ("optional", "aid"))
        return Parameter(name, cells, self._defaults(fields.get("default")), value, *flags)

    def check(self, parameters: Mapping[str, Parameter], formats: Iterable[str]) -> None:
        """Check rows against each other: unique keys, required cells."""
        for format in formats:
            owners: dict[str, str] = {}
            for name, parameter in parameters.items():
                self.where = f"parameters.{name}"
                for cell in parameter.key_cells(format):
                    if not cell.alias and owners.setdefault(cell.key, name) != name:
                        raise self.fault(f"{cell.key} is written by {owners[cell.key]!r} too")
                    if format == "gguf" and name == "layer_types" and not cell.alias and cell.type != "str[]":
                        self._check_kinds(cell)
                needed = not (parameter.value or parameter.optional or parameter.defaults)
                if needed and not any(not cell.alias for cell in parameter.cells.get(format, ())):
                    other = next(
                        (cell.key for cells in parameter.cells.values() for cell in cells if cell.key), "a key"
                    )
                    raise self.fault(
                        f"it has no place in {format}, and no default: add {format} = {other!r}, or "
                        f'{format} = {{ fixed = VALUE, else = "WHY OTHERS ARE REFUSED" }}, or optional = true'
                    )

    def _check_kinds(self, cell: ParameterCell) -> None:
        """Check that a key of numbers has both ways to kinds of layers."""
        ways = {"read": cell.read, "write": cell.write}
        missing = " and ".join(way for way, expression in ways.items() if expression is None)
        if missing:
            some = 'read = "slides(layers, it)" and write = "[kind == \'sliding_attention\' for kind in it]"'
            more = f"; for example {some}" if cell.type == "bool[]" else ""
            raise self.fault(f"{cell.key} is of {cell.type}, not of kinds of layers, and lacks {missing}{more}")

    def _defaults(self, value: object) -> dict[str, Expression]:
        if value is None:
            return {}
        table = self.fields(value, frozenset(TAKERS)) if isinstance(value, dict) else dict.fromkeys(TAKERS, value)
        found = {who: self.expression(item) for who, item in table.items()}
        return {who: expression for who, expression in found.items() if expression}

    def _cell(self, cell: object) -> ParameterCell:
        row = self.fields({"key": cell} if isinstance(cell, str) else cell, merge.KEY_FIELDS.keys())
        common: dict[str, Any] = {
            **{field: self.expression(row[field]) for field in ("read", "write", "when") if field in row},
            "alias": bool(row.get("alias", row.get("instead"))),
            "instead": bool(row.get("instead")),
            "unread": row.get("only") == merge.NOBODY,
            "folded": bool(row.get("folded")),
            "sentence": str(row.get("else", "")),
            "words": row.get("map", {}),
            "readers": self.word(row, "only", {**READERS, merge.NOBODY: BOTH}, "both") if "only" in row else BOTH,
        }
        kinds = [kind for kind in _KINDS if kind in row]
        if len(kinds) != 1:
            found = f"says {' and '.join(kinds)}" if kinds else "says none of them"
            raise self.fault(f"a cell has one of the fields {', '.join(_KINDS)}; this one {found}")
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


# -- Sections ``[config]`` and ``[metadata]``: keys without a parameter ------------------------------------------------

_SECTION = frozenset({"modifiers", "harmless"})


#: Where a class of mlx-lm looks for RoPE.
MLX_ROPE = ("top", "rope_parameters", "only_rope_parameters", "base", "nowhere")


class RopeStyle(NamedTuple):
    """RoPE of a configuration, as rows of parameters and engines have it.

    Attributes:
        by_layer: ``rope_parameters`` has a table for each kind of layer (``full_attention``, ``sliding_attention``), in
            which a key of the base is.
        by_part: it has one for layers that compress and one for others (``compress``, ``main``), in which that key is.
        types: the only types of scaling that transformers' class takes, if it does not take all.
        older: consumer -> another word that its class takes for a type -> the type.
        mlx_lm: where mlx-lm's class looks for the scaling: at the "top" of the document, in "rope_parameters" too,
            there and nowhere else ("only_rope_parameters"), or "nowhere"; "base": for nothing but the base, in both.
        default: the table that transformers' class takes where there is no ``rope_parameters``.
        alpha: a key of this name stretches the base, whatever the length of a sequence.
        whole: mlx-lm's class turns whole heads, whatever part is stated: no key of it has mlx-lm for a reader.
        noted: keys of a scaling that engines compute without, as notes of their rows say (``same_if``): those that have
            a row.
        part: who reads -> the part of a head that its class turns where nothing is stated; 1 for others.
        theta, share: what the classes call the base and that part at the top of the document.
        read_theta: the number of the first -> the base, where it is another one.
        counted: what they call the number of elements of a head that they turn, "" where none has a key for it.
    """

    by_layer: bool = False
    by_part: bool = False
    types: tuple[str, ...] | None = None
    mlx_lm: str = "top"
    default: Mapping[str, Any] = {}
    part: Mapping[str, float] = {}
    theta: str = "rope_theta"
    read_theta: Expression | None = None
    share: str = "partial_rotary_factor"
    counted: str = ""
    alpha: bool = False
    noted: tuple[str, ...] = ()
    whole: bool = False
    older: Mapping[str, Mapping[str, str]] = {}


class Document(NamedTuple):
    """The section ``[config]``.

    Attributes:
        keys: every key of a document.
        written: constants of a document that is made.
        within: what the class takes for keys that a ``text_config`` leaves out, as released ones do.
        closed: a key that no row has is refused, in metadata too; else a note names it.
    """

    keys: Keys
    written: Mapping[str, Any] = {}
    within: Mapping[str, Any] = {}
    rope: RopeStyle = RopeStyle()
    closed: bool = False


class KeyRows(merge.Fields):
    """Reads the two sections."""

    def document(
        self, name: str, row: Mapping[str, Any], parameters: Mapping[str, Parameter], engines: Mapping[str, Any]
    ) -> Document:
        """``[config]``."""
        self.where = "config"
        self.fields(row, _SECTION | {"written", "default", "unknown", "seen"})
        tables = self.fields(row.get("default", {}), frozenset({"rope_parameters", "text_config"}))
        rope = rope_style(parameters, engines, tables.get("rope_parameters", {}))
        cells = [cell for parameter in parameters.values() for cell in parameter.key_cells("hf") if not cell.unread]
        readers: dict[str, set[str]] = {}
        for cell in cells:
            readers.setdefault(cell.head, set()).update(cell.readers)
        own = {key: tuple(who for who in READERS["both"] if who in found) for key, found in readers.items()}
        if rope.mlx_lm in ("base", "nowhere"):
            own["rope_scaling"] = READERS["transformers"]
        return Document(
            Keys(name, self.keys(row, own), self._seen(row)),
            dict(row.get("written", {})),
            tables.get("text_config", {}),
            rope,
            self.word(
                row,
                "unknown",
                {"refused": True, "noted": False},
                "noted" if self.path.parent == merge.FOLDER else "refused",
            ),
        )

    def metadata(self, name: str, row: Mapping[str, Any], parameters: Iterable[Parameter]) -> Keys:
        """``[metadata]``; a derived parameter's key must equal its value."""
        self.where = "metadata"
        self.fields(row, _SECTION | {"seen"})
        read = ((p, cell) for p in parameters for cell in p.key_cells("gguf") if not cell.unread)
        cells = [(p, cell) for p, cell in read if not cell.key.startswith("/")]  # others are the tokenizer's
        found = self.keys(row, {cell.key: READERS["both"] for _, cell in cells}, expressions=True)
        derived = {cell.key: Key(cell.key, Kind.MODIFIER, same_as=p.value) for p, cell in cells if p.value and cell.key}
        return Keys(name, {**found, **derived}, self._seen(row))

    def _seen(self, row: Mapping[str, Any]) -> dict[str, list[Any]]:
        return {key: merge.listed(values) for key, values in row.get("seen", {}).items()}

    def keys(
        self, row: Mapping[str, Any], own: Mapping[str, tuple[str, ...]], *, expressions: bool = False
    ) -> dict[str, Key]:
        """Keys that parameters have, modifiers, and keys that are harmless."""
        found = {key: Key(key, Kind.PARAMETER, readers) for key, readers in own.items()}
        for key, value in row.get("modifiers", {}).items():
            if merge.is_carried(value):
                also = found[key].readers if key in found else ()
                who = self.word(value, "only", READERS, "both")
                found[key] = Key(key, Kind.PARAMETER, tuple(one for one in READERS["both"] if one in (*also, *who)))
                continue
            if key in found:
                raise self.fault(f"{key} is given two meanings")
            found[key] = self._modifier(key, value, expressions)
        harmless = row.get("harmless", [])
        if len({*found, *harmless}) < len(found) + len(harmless):
            key = next(key for at, key in enumerate(harmless) if key in found or key in harmless[:at])
            raise self.fault(f"{key} is given two meanings")
        return found | {key: Key(key, Kind.HARMLESS) for key in harmless}

    def _modifier(self, key: str, value: Any, expressions: bool) -> Key:
        if expressions and isinstance(value, str):
            return Key(key, Kind.MODIFIER, same_as=self.expression(value))
        table = value if isinstance(value, dict) else {"neutral": value}
        self.fields(table, frozenset({"neutral", "only", "written"}))
        readers = READERS["both"] if expressions else self.word(table, "only", READERS, "transformers")
        neutral = tuple(merge.listed(table.get("neutral", [])))
        return Key(
            key,
            Kind.MODIFIER,
            readers,
            neutral if expressions else (*neutral, None),
            written=bool(table.get("written")),
        )


# -- The keys of ``rope_parameters`` and ``rope_scaling``, by ``rope_type`` --------------------------------------------

#: Where a document says how RoPE is scaled: one for transformers 4 and mlx-lm, one for transformers 5.
TABLES_OF_ROPE = ("rope_scaling", "rope_parameters")

_TYPES = merge.FOLDER / "other_programs" / "rope_types.toml"


def _rope_keys() -> Iterator[Keys]:
    table, reader = table_of(_TYPES), KeyRows(_TYPES)
    for kind, row in table["types"].items():
        own = {
            **dict.fromkeys(table["every"], BOTH),
            **{key: READERS[who] for who in READERS for key in row.get(who, ())},
        }
        read = {*own, *row.get("modifiers", ())}
        yield Keys(kind, reader.keys({**row, "harmless": [key for key in table["some"] if key not in read]}, own))


#: ``rope_type`` -> its keys.
ROPE_KEYS: Mapping[str, Keys] = {keys.name: keys for keys in _rope_keys()}

#: Keys of a scaling that are refused but for one value, unless the family has a row of them.
_NOTED = tuple(
    dict.fromkeys(key.name for type in ROPE_KEYS.values() for key in type.keys.values() if key.kind is Kind.MODIFIER)
)


def rope_style(
    parameters: Mapping[str, Parameter], engines: Mapping[str, Any], default: Mapping[str, Any]
) -> RopeStyle:
    """Read how documents say RoPE from the rows of a family.

    Args:
        engines: rows of type :class:`~ckconv.families.schema.Engine`.
        default: the table that transformers' class takes where there is none.
    """
    rows = ("rope_theta", "rope_dim", "rope_type")
    base, turned, kind = (parameters[name].key_cells("hf") if name in parameters else () for name in rows)
    parts = [cell for cell in turned if not cell.of_rope and cell.read]
    defaults = parameters["rope_dim"].defaults if turned else {}
    part = {who: size.value({"head_dim": 1.0}) for who, size in defaults.items() if size.names == {"head_dim"}}
    older: dict[str, dict[str, str]] = {}
    for cell in kind:
        for who in cell.readers if cell.words else ():
            older.setdefault(who, {}).update(cell.words)
    mlx, transformers = engines.get("mlx_lm"), engines.get("transformers")
    return RopeStyle(
        by_layer=any(cell.key.startswith("rope_parameters.full_attention.") for cell in base),
        by_part=any(cell.key.startswith("rope_parameters.main.") for cell in base),
        types=transformers.scaling if transformers else None,
        mlx_lm=mlx.rope if mlx else MLX_ROPE[0],
        default=default,
        part={READERS[who][0]: share for who, share in part.items() if who in READERS},
        theta=next((cell.key for cell in base if not cell.of_rope), RopeStyle().theta),
        read_theta=next((cell.read for cell in base if not cell.of_rope), None),
        share=next((cell.key for cell in parts), RopeStyle().share),
        counted=next((cell.key for cell in turned if not cell.of_rope and not cell.read), ""),
        alpha="rope_alpha" in parameters,
        noted=tuple(key for key in _NOTED if f"rope_{key}" in parameters),
        whole=bool(turned) and not any(MLX_LM in cell.readers for cell in turned),
        older=older,
    )
