"""Family file as checked data: tensors, parameters, keys, engines.

The form of the file is described in docs/adding-a-family.md, that of each section in the module that reads it
(``tensor_rows``, ``parameter_rows``, ``key_rows``, ``engine_rows``). Everything is checked once, when the file is
read: an unknown field, axis, parameter or layer kind is an error of the file, wherever it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckconv.core.config import FIELD_OF
from ckconv.core.named import NamedTuple
from ckconv.core.tensors import PARTS
from ckconv.families.axes import expanded
from ckconv.families.engine_rows import Engine, engine
from ckconv.families.expressions import Expression
from ckconv.families.fields import Fields, listed, texts
from ckconv.families.key_rows import Document, KeyRows
from ckconv.families.keys import Keys
from ckconv.families.merge import FORMATS, merged
from ckconv.families.parameter_rows import Parameter, ParameterRows
from ckconv.families.rope_keys import ROPE_KEYS
from ckconv.families.tensor_rows import Stack, TensorRow, TensorRows

#: Format of parameters -> the section that says of which models it is.
_SECTIONS = {"hf": "huggingface", "gguf": "gguf"}


class Match(NamedTuple):
    """Models of the family: architectures, types, classes, a condition.

    Attributes:
        text: of a tower: families of text models that see with it, any where there are none, and what stands in a
            checkpoint before the names of their tensors.
        tokens: of a tower: key of ``config.json`` -> the token whose id it is.
        embeddings: of a tower: canonical tensor -> the token whose embedding in the text model it is; of a reranker:
            -> the tokens whose rows of the head it is.
        modules: canonical tensor -> the directory of sentence-transformers whose linear layer it is.
    """

    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    condition: Expression | None = None
    text: tuple[tuple[str, ...], str] = ((), "")
    tokens: Mapping[str, str] = {}
    embeddings: Mapping[str, str | list[str]] = {}
    modules: Mapping[str, str] = {}


class Fusion(NamedTuple):
    """Tensors that a checkpoint may store as a single fused tensor.

    Attributes:
        name: row name of the whole (``L.attention.qkv``).
        parts: those of the tensors, in order.
        cells: format -> its name.
    """

    name: str
    parts: tuple[str, ...]
    cells: Mapping[str, str]


#: Families times formats of which compiled names are kept: a user's own files come and go in a long-running program.
FAMILIES_KEPT = 256

#: The parameter that says whether layers behind the last are there, which predict further tokens; ``--drop`` calls them
#: so.
DRAFTS, MTP = "drafts", "mtp"

#: Parameters of RoPE's scaling, which the readers' own rules make: those that every type has, and one for each key of
#: a type.
SCALING = frozenset({"rope_type", "rope_factor", "rope_original"})
SCALING_NUMBERS = frozenset(f"rope_{key}" for keys in ROPE_KEYS.values() for key in keys.keys) - SCALING


@dataclass(frozen=True, eq=False)
class Family:
    """A family file.

    Attributes:
        name: what ckconv calls the family: the file's name.
        of_drafts: what stands in a checkpoint before the names of layers that predict further tokens, which have
            numbers of their own there; empty where they are numbered on.
    """

    name: str
    path: Path
    in_gguf: Match
    in_huggingface: Match
    prefixes: Mapping[str, tuple[tuple[str, str], ...]]
    of_drafts: str
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
        """``general.architecture`` to write; empty without GGUF."""
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
    def rows(self) -> frozenset[str]:
        """Canonical tensors that a checkpoint has as rows, or in directories."""
        return frozenset({*self.in_huggingface.embeddings, *self.in_huggingface.modules})

    @property
    def experts(self) -> bool:
        """A mixture of experts."""
        return any(name.startswith("L.ffn.experts.") for name in self.tensors)

    @property
    def rope(self) -> bool:
        """Positions are rotary; learned otherwise."""
        return "rope_theta" in self.parameters

    @property
    def known_classes(self) -> bool:
        """Whether transformers' class is known, not just names and sizes."""
        return "transformers" in self.engines

    @property
    def turns_a_part(self) -> bool:
        """Whether the classes rotate a configurable part of a head."""
        row = self.parameters.get("rope_dim")
        return row is not None and bool(row.cells.get("hf"))

    @property
    def sizes(self) -> frozenset[str]:
        """Parameters behind sizes of tensors and the number of layers."""
        expressions = (*self.axes.values(), *(stack.count for stack in self.stacks.values()))
        return frozenset(name for expression in expressions for name in expression.names)

    @property
    def own(self) -> tuple[str, ...]:
        """Parameters outside of a configuration's fields and readers' rules."""
        return tuple(
            name
            for name, row in self.parameters.items()
            if name not in FIELD_OF
            and name not in SCALING | SCALING_NUMBERS
            and row.value is None
            and not any(cell.tensor.endswith(".bias") for cells in row.cells.values() for cell in cells)
        )


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
        tensors = TensorRows(self.path, self.table.get("axes", {}))
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
            str(self.table.get("prefix", {}).get(DRAFTS, "")),
            {k: v for k, v in letters.items() if v},
            {k: v for k, v in kinds.items() if v},
            {letter: self._stack(letter, row) for letter, row in self.table.get("stacks", {}).items()},
            {name: tensors.row(name, row, kinds) for name, row in self.table.get("tensors", {}).items()},
            {name: self._fusion(name, row) for name, row in self.table.get("fused", {}).items()},
            parameters,
            keys.document(self.path.stem, self.table.get("config", {}), list(parameters.values())),
            keys.metadata(self.path.stem, self.table.get("metadata", {}), list(parameters.values())),
            {
                name: engine(self.path, name, row)
                for names, row in self.table.get("engines", {}).items()
                for name in expanded(names)
            },
        )

    def _match(self, section: str, word: str) -> Match:
        self.where = section
        row = self.fields(
            self.table.get(section, {}),
            frozenset({word, "class", "match", "over", "text", "tokens", "embeddings", "modules"}),
        )
        text = self.fields(row.get("text", {}), frozenset({"of", "prefix"}))
        return Match(
            texts(row.get(word)),
            texts(row.get("class")),
            self._condition(row.get("match")),
            (texts(text.get("of")), str(text.get("prefix", ""))),
            row.get("tokens", {}),
            row.get("embeddings", {}),
            row.get("modules", {}),
        )

    def _condition(self, text: object) -> Expression | None:
        return self.expression(text, self.where, "match")

    def _prefixes(self) -> dict[str, tuple[tuple[str, str], ...]]:
        found = {}
        for name, row in self.table.get("prefix", {}).items():
            if name == DRAFTS:
                continue
            self.where = f"prefix.{name}"
            pairs = [self.fields(item, frozenset({"root", "layer"})) for item in listed(row)]
            found[name] = tuple((pair.get("root", ""), pair["layer"]) for pair in pairs)
        return found

    def _stack(self, letter: str, row: object) -> Stack:
        self.where = f"stacks.{letter}"
        fields = self.fields(row, frozenset({"canonical", "count", "numbers", *FORMATS}))
        count = self.expression(fields.get("count"))
        if count is None or not isinstance(fields.get("canonical"), str):
            raise self.fault("canonical and count are missing")
        prefixes = {key: fields[key] for key in FORMATS if key in fields}
        return Stack(fields["canonical"], count, prefixes, self.expression(fields.get("numbers")))

    def _fusion(self, name: str, row: object) -> Fusion:
        self.where = f"fused.{name}"
        fields = self.fields(row, frozenset(FORMATS))
        known = {whole.replace("layers.{n}.", "L."): parts for whole, parts in PARTS.items()}
        if name not in known:
            raise self.fault(f"none of the tensors has that name (known: {', '.join(known)})")
        parts = tuple(part.replace("layers.{n}.", "L.") for part in known[name])
        for part in parts:
            if part not in self.table.get("tensors", {}):
                raise self.fault(f"there is no tensor {part!r}")
        return Fusion(name, parts, dict(fields))
