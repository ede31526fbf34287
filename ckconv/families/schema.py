"""Family file as checked data: tensors, parameters, keys, engines.

The form of the file is described in docs/adding-a-family.md, that of sections about keys in ``keys``. Everything is
checked once, when the file is read: an unknown field, axis, parameter or layer kind is an error of the file, wherever
it came from.

Section ``[engines]``: how the loader of an engine treats a family.

``llama_cpp``, ``transformers`` and ``mlx_lm`` are rows, as are ``bump3``, ``bump5`` and ``bump_trained`` (what
trains). No row: the engine is not known to compute the family, and the conversion is refused; ``absent``: the engine is
known to have nothing for it, or, with a sentence, to compute it wrong. Rows are not inherited.

Section ``[tensors]``: a row is a module: ``axes`` is its shape, ``hf``, ``gguf`` and ``mlx`` its cells (a name, a table
of ``name``, ``axes``, ``value``, ``packed`` and ``by``, a list of forms of which the first is written, or ``absent``;
GGUF's may be a table of ``key``, the metadata key with a number of every layer), ``bias`` and ``when`` say whether
there is a bias, and whether it is there at all (``by``, of ``hf``: a factor, or several, that its class multiplies what
comes out with, and that the canonical values have in them), ``layers`` which kind of layer has it, ``spare`` which may
store it though nothing reads it there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ckconv.core.config import FIELD_OF
from ckconv.core.layouts import ADD_ONE, COUNTED, EXP, NEG_EXP, SOFTPLUS, float32
from ckconv.core.lazy import NamedTuple, cached_property, dataclass
from ckconv.core.metadata import TARGET
from ckconv.core.tensors import PARTS
from ckconv.families import axes as shapes
from ckconv.families.expressions import Expression
from ckconv.families.keys import MLX_ROPE, ROPE_KEYS, Document, KeyRows, Keys, Parameter, ParameterRows
from ckconv.families.merge import ENGINE_FIELDS, FORMATS, Fields, listed, merged, texts

# -- Engines with a row in family files, which load what is written ----------------------------------------------------


class Loader(NamedTuple):
    """An engine.

    Attributes:
        name: what people call it.
        row: its row in a family file.
        column: the cells of a parameter that it reads.
        has: what it has of a family.
        like: the engine whose classes it has where a family file says nothing of its own.
    """

    name: str
    row: str
    column: str
    has: str = "class"
    like: Loader | None = None

    @property
    def alike(self) -> Loader:
        """The engine that reads the same keys."""
        return self.like or self

    @property
    def of_metadata(self) -> bool:
        """Whether the engine reads typed metadata instead of a document."""
        return self.column == "gguf"


LLAMA_CPP = Loader("llama.cpp", "llama_cpp", "gguf", "architecture")
MLX_LM = Loader("mlx-lm", "mlx_lm", "hf")
MLX_VLM = Loader("mlx-vlm", "mlx_vlm", "hf", like=MLX_LM)
TRANSFORMERS = Loader("transformers", "transformers", "hf")

#: Format -> the engine that such a file was written for.
OF_FORMAT = {"gguf": LLAMA_CPP, "mlx": MLX_LM}

#: Formats that have a place for layers that predict further tokens.
DRAFT_FORMATS = frozenset({"gguf", "safetensors"})


# -- Section ``[engines]``: how the loader of an engine treats a family ------------------------------------------------

_HOLE = re.compile(r"\{(\w+)\}")


class Condition(NamedTuple):
    """Condition for an engine to compute a model right.

    Attributes:
        sentence: why it does not where it does not hold; ``{name}`` stands for a parameter's value. Empty for none.
        of: parameters whose keys are named behind the sentence.
        hint: what helps; ``{name}`` stands for a parameter's value.
    """

    expression: Expression
    sentence: str = ""
    of: tuple[str, ...] = ()
    hint: str = ""

    def message(self, values: Mapping[str, Any]) -> str:
        """The sentence about these values, empty where the file has none."""
        return _HOLE.sub(lambda hole: _shown(values[hole[1]]), self.sentence)

    def way_out(self, values: Mapping[str, Any]) -> str:
        """The hint about these values, numbers as a command line has them."""
        return _HOLE.sub(lambda hole: str(values[hole[1]]), self.hint)

    @property
    def names(self) -> frozenset[str]:
        """The parameters that it asks for."""
        return self.expression.names | {*_HOLE.findall(self.sentence), *_HOLE.findall(self.hint)}


def _shown(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


class Engine(NamedTuple):
    """How an engine loads a family: its row in ``[engines]``.

    Attributes:
        absent: the engine is known to have nothing for the family.
        why: what it does with such a model, where that is known.
        model_type: what its documents call the family, where it is not as Hugging Face's do.
        right_if: what must hold; otherwise the engine computes something else.
        same_if: what must hold for the engine to compute what transformers does; where it does not, a note says
            so, as nothing that a file could say would change it.
        unmeasured: why nobody knows that it computes what the others do; a note says so.
        needs: keys of the document that its class cannot do without, or takes a default of its own for.
        reads: keys that its class reads where another library's goes by another key; of a bump engine: "window", as it
            slides in every layer alike, all rotated by one base.
        ignores: parameters that it does not look at, though the format has them.
        scaling: types of RoPE's scaling that it computes as transformers does; ``None`` for those of the engine.
        head: "written": a tied output head is stored all the same; "none": it has none but the embedding.
        optional: canonical names of tensors that it loads where they are, and does without.
        required: those that only some models of the family have, and that it does not do without.
        tensors: of a bump engine: canonical names of tensors that its operations use besides those of a Llama; all
            of them have to be there, and no others may.
        slots: of a bump engine: entries of a layer, where they are not a Llama's -> canonical names of the tensors that
            lie in each, in order; a layer has those of its kind. Besides, the zeros behind the last norm, where it has
            them.
        floats: those of them that are FP32 whatever the model's type is, besides vectors.
        rotates: of a bump engine: "interleaved" rows of Q and K, otherwise split ones; "neighbors": in every format of
            the family, and in the engine, so that rows stay as they are.
        written_as: the family as which its models are written: of a bump engine entry for entry, of transformers those
            that have a window; of one that is absent, a tower that a file of llama.cpp's comes back as.
        rope: of mlx-lm: where its class looks for the scaling of RoPE (:data:`MLX_ROPE`).
        written: of mlx-lm: keys that its class wants, with what they are where nothing is stated.
        biased: of the engine that trains: the family whose class has every bias, for a model with one that this
            family's has not.
        biases: of a bump engine: the only biases that it adds, where a model of the family may have others too.
        unnamed: of a bump engine: a file that names no family and has these tensors is taken for this family's.
        unadapted: canonical modules that it computes without the adapter of them.
        wrapped: ``model_type`` of the document around that of the family, which is its ``text_config``, where the class
            reads no other.
        scaled: of llama.cpp: it multiplies products of NVFP4 matrices with the scales beside them.
        transposed: of transformers: its class declares parameters of experts ``[in, out]`` (``is_transposed``).
        narrow: canonical tensors that llama.cpp's converter stores as other matrices, though in FP32 of other families.
        text: of a tower: families of text models that the engine has within it; all that the tower has, without any.
        names: of a tower: what the names of the text model's tensors begin with -> what they begin with in the whole.
        says: of a tower: key of the document -> what it says: parameters of the text model, in ``text_config``, or of
            the tower.
        at_top: of a tower: keys of the text model stand in the document itself.
        only: of a tower: table of the document -> the only keys that its class does not stop at.
        drafts: of llama.cpp: why its converter leaves out layers that predict further tokens, of a model whose GGUF may
            have them; of a tower: the file in which mlx-vlm gets one such layer.
    """

    name: str
    absent: bool = False
    why: str = ""
    model_type: str = ""
    right_if: tuple[Condition, ...] = ()
    same_if: tuple[Condition, ...] = ()
    unmeasured: str = ""
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    scaling: tuple[str, ...] | None = None
    head: str = ""
    optional: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    rotates: str = ""
    written_as: str = ""
    rope: str = MLX_ROPE[0]
    written: Mapping[str, Any] = {}
    biased: str = ""
    biases: tuple[str, ...] | None = None
    unnamed: bool = False
    unadapted: tuple[str, ...] = ()
    narrow: tuple[str, ...] = ()
    wrapped: str = ""
    scaled: bool = False
    slots: tuple[tuple[str, tuple[str, ...]], ...] = ()
    floats: tuple[str, ...] = ()
    transposed: bool = False
    text: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    says: Mapping[str, Expression] = {}
    at_top: bool = False
    only: Mapping[str, tuple[str, ...]] = {}
    drafts: str = ""


#: Engines that have a row.
_ENGINES = ("llama_cpp", "mlx_lm", "mlx_vlm", "transformers", "bump3", "bump5", "bump_trained")

#: Fields of bump engines alone.
_OF_BUMP = frozenset({"tensors", "rotates", "biased", "biases", "unnamed", "slots"})


def _names(value: object) -> tuple[str, ...]:
    return tuple(name for text in texts(value) for name in shapes.expanded(text))


#: Field of a row -> the words that it may be, the first of which it is where it is not there.
_WORDS = {"head": ("", "none", "written"), "rotates": ("", "interleaved", "neighbors"), "rope": MLX_ROPE}

#: Field of a row -> what makes its value.
_READ: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("unmeasured", "biased", "drafts"), str),
    **dict.fromkeys(("needs", "reads", "ignores", "scaling", "text"), texts),
    **dict.fromkeys(("optional", "required", "tensors", "biases", "unadapted", "narrow"), _names),
    **dict.fromkeys(("unnamed", "scaled", "transposed", "at_top"), bool),
    "written": dict,
    "names": lambda names: tuple(names.items()),
    "only": lambda tables: {table: texts(names) for table, names in tables.items()},
}


def engine(path: Path, name: str, row: object) -> Engine:
    """Read one row."""
    reader = Fields(path)
    reader.where = f"engines.{name}"
    if name not in _ENGINES:
        raise reader.fault(f"there is no such engine (known: {', '.join(_ENGINES)})")
    if row == "absent":
        return Engine(name, absent=True)
    fields = reader.fields(row, ENGINE_FIELDS.keys() - (set() if name.startswith("bump") else _OF_BUMP))
    wrapped, _, model_type = fields.get("model_type", "").rpartition("/")
    slots = fields.get("slots", {})
    return Engine(
        name,
        absent="absent" in fields,
        why=str(fields.get("absent", "")),
        model_type=model_type,
        wrapped=wrapped,
        written_as=str(fields.get("as", "")),
        right_if=tuple(condition(reader, item) for item in listed(fields.get("right_if", []))),
        same_if=tuple(condition(reader, item) for item in listed(fields.get("same_if", []))),
        slots=tuple((slot.partition(":")[0], tuple(shapes.expanded(names))) for slot, names in slots.items()),
        floats=tuple(slot.removesuffix(":f32") for slot in slots if slot.endswith(":f32")),
        says={key: found for key, text in fields.get("says", {}).items() if (found := reader.expression(text))},
        **{
            field: reader.word(fields, field, {word: word for word in words}, words[0])
            for field, words in _WORDS.items()
        },
        **{field: read(fields[field]) for field, read in _READ.items() if field in fields},
    )


def condition(reader: Fields, item: object) -> Condition:
    """A condition, of a row or by itself."""
    row = reader.fields({"if": item} if isinstance(item, str) else item, frozenset({"if", "else", "of", "hint"}))
    expression = reader.expression(row.get("if"))
    if expression is None:
        raise reader.fault("a condition without 'if'")
    return Condition(expression, str(row.get("else", "")), texts(row.get("of")), str(row.get("hint", "")))


# -- Section ``[tensors]`` of a family file: rows of tensors -----------------------------------------------------------

#: Tables of whole numbers, which GGUF holds as I32 and a checkpoint as I64; the second of those that name experts, as
#: ``tid2eid`` of a DeepSeek V4.
WHOLE_NUMBERS, EXPERTS = "whole", "experts"

#: A row of I64 in both, which GGUF has with the place of each in it added: ``d2t`` of an EAGLE 3.
COUNTED_NUMBERS = "counted"

#: Operations that change values: what is stored for a canonical x, as :class:`ckconv.core.layouts.Layout` has it.
VALUES: Mapping[str, int] = {
    "": 0,
    "add_one": ADD_ONE,
    "neg_exp": NEG_EXP,
    "exp": EXP,
    "softplus": SOFTPLUS,
    WHOLE_NUMBERS: 0,
    EXPERTS: 0,
    COUNTED_NUMBERS: COUNTED,
}


def stored_higher(value: str | float) -> float:
    """Shift of a value operation, a word or a number of float32."""
    return VALUES[value] if isinstance(value, str) else float32(value)


#: Forms of a cell beside the usual one: of values in blocks, and what its class calls it in memory.
MEMORY = "memory"
_FORMS = ("", "blocks", MEMORY)

#: The canonical values are this format's; and the format that stores no stack one by one, but may have numbers as keys.
_CANONICAL, _KEYED = "hf", "gguf"
#: Formats whose cell may have factors; one that takes another's cell over has them only where its own says so.
_FACTORED = (_CANONICAL, "mlx")


def _without_factors(cell: object) -> object:
    """A cell as another format takes it over: the factors are in its values."""
    forms = [{k: v for k, v in form.items() if k != "by"} if isinstance(form, dict) else form for form in listed(cell)]
    return forms if isinstance(cell, list) else forms[0] if forms else None


class Cell(NamedTuple):
    """How one format stores a tensor.

    Attributes:
        name: the module's name, with ``M.``, ``L.`` and ``{n}``, ``{E}``; with ``=`` in front the full name.
        axes: the order in which the format stores the values; ``None`` for the canonical one.
        part, parts: which of the segments of the stored tensor this one is, and how many tensors share it.
        value: the operation on values, "" for none; a number is added.
        packed: the form is that of values in blocks, which are stored in another order and under another name.
        by: what a stored value is multiplied with; ``None`` for 1.
        memory: the class calls it so in memory, where its files have the first form; adapters are made there.
        instead: the row whose tensor stands here in layers without this one; nothing reads it. "" for none.
    """

    name: str
    axes: shapes.Shape | None = None
    part: int = 0
    parts: int = 1
    value: str | float = ""
    packed: bool = False
    by: Expression | None = None
    memory: bool = False
    instead: str = ""

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


class DroppedPattern(NamedTuple):
    """A stored tensor that is no part of the model.

    Attributes:
        name: its full name.
        why: what is reported of it.
        zeros: the class has it whatever is stored, and would make it up: zeros are written.
        copied: other classes of the family read it: it goes along where tensors keep their names.
        sinusoids: sines and cosines of positions, which are written where the source has none.
    """

    name: str
    why: str
    zeros: bool = False
    copied: bool = False
    sinusoids: bool = False


class TensorRow(NamedTuple):
    """Canonical tensor of a family: its row in ``[tensors]``.

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
        whole: the key is a list of whole numbers (``u64[]``): the tensor of the one layer that has it.
    """

    name: str
    axes: shapes.Shape
    fused_axes: shapes.Shape
    bias: Expression | None
    when: Expression | None
    layers: Expression | None
    spare: Expression | None
    cells: Mapping[str, tuple[Cell, ...]]
    dropped: Mapping[str, DroppedPattern] = {}
    key: str = ""
    whole: bool = False

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
        """Whether the name takes no ``.weight`` or ``.bias`` (a head's does)."""
        return self.name != "output" and any(cells[0].name.startswith("=") for cells in self.cells.values() if cells)


@dataclass(frozen=True, slots=True)
class Stack:
    """Stack of layers apart from the decoder's, with a letter for rows.

    Attributes:
        canonical: what the letter stands for in canonical names (``enc.layers.{n}.``).
        count: how many layers there are; or a list over them of the number that each has in GGUF's names.
        prefixes: format -> what the letter stands for there.
    """

    canonical: str
    count: Expression
    prefixes: Mapping[str, str]


_DROPPED = frozenset({"name", "dropped", "value", "part", "parts"})


class TensorRows(Fields):
    """Reads the section."""

    def __init__(self, path: Path, letters: Mapping[str, object], rows: Collection[str]) -> None:
        super().__init__(path)
        self._letters, self._rows = letters, rows

    def row(self, name: str, row: Mapping[str, Any], kinds: Mapping[str, Any]) -> TensorRow:
        """Row of a tensor out of its merged fields."""
        self.where = f"tensors.{name}"
        fused = self._axes(row.get("axes"))
        if fused is None:
            raise self.fault('axes are missing: the shape in letters of [axes], outermost first, such as axes = "F H"')
        axes = shapes.of_part(fused, row.get("part", 0))
        cells: dict[str, tuple[Cell, ...]] = {}
        dropped: dict[str, DroppedPattern] = {}
        for format in FORMATS:
            cell = row.get(format, None if format != "mlx" else _without_factors(row.get("hf")))
            if cell is None:
                raise self.fault(
                    f'{format} is missing: {format} = "NAME", or {format} = "absent" where the format has none'
                )
            if isinstance(cell, dict) and "dropped" in cell:
                values = listed(self.fields(cell, _DROPPED).get("value", []))
                known = ("zeros", "copied", "sinusoids")
                if unknown := [word for word in values if word not in known]:
                    words = ", ".join(sorted(known))
                    raise self.fault(f"a tensor that is dropped has no value {unknown[0]!r} (known: {words})")
                dropped[format] = DroppedPattern(cell["name"], cell["dropped"], *(word in values for word in known))
            if format == "mlx" and isinstance(cell, dict) and "name" not in cell and isinstance(row.get("hf"), dict):
                cell = {**{k: v for k, v in row["hf"].items() if k in ("name", "part", "parts")}, **cell}
            keyed = isinstance(cell, dict) and "key" in cell
            forms = [] if cell == "absent" or format in dropped or keyed else listed(cell)
            cells[format] = tuple(self._cell(form, axes, fused, format) for form in forms)
            if "layers" not in row:  # which may be one
                self._check_numbered(name, format, cells[format])
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
            *self._key(row.get(_KEYED)),
        )

    def _check_numbered(self, row: str, format: str, cells: Sequence[Cell]) -> None:
        """Check that a tensor of every layer has a name in each."""
        letter, _, short = row.partition(".")
        names = [cell.name.removeprefix("=") for cell in cells]
        of_layers = short and len(letter) == 1
        if of_layers and names and not any(name.startswith(f"{letter}.") or "{n}" in name for name in names):
            meant = f"{letter}.{names[0].removeprefix('M.')}"
            raise self.fault(f"{names[0]} would be a name of every layer's: {format} = {meant!r} has its number")

    def _key(self, cell: object) -> tuple[str, bool]:
        """The key of a cell, and whether it is a list of whole numbers."""
        if not isinstance(cell, dict) or "key" not in cell:
            return "", False
        key, _, type = str(self.fields(cell, frozenset({"key"}))["key"]).partition(":")
        return key, self.word({"key": type}, "key", {"": False, "f32": False, "u64[]": True}, "")

    def _kind(self, text: object, kinds: Mapping[str, Any]) -> Expression | None:
        found = self.expression(text)
        for name in found.names if found else ():
            if name not in kinds:
                known = ", ".join(kinds) or "none"
                raise self.fault(f"there is no layer kind {name!r} (known: {known}; a new one is a row of [layers])")
        return found

    def _cell(self, form: object, axes: shapes.Shape, fused: shapes.Shape, format: str) -> Cell:
        own = ["by"] if format in _FACTORED else ["instead"]
        known = frozenset({"name", "axes", "value", "as", "part", "parts", *own})
        row = self.fields({"name": form} if isinstance(form, str) else form, known)
        value = row.get("value", "")
        if not isinstance(row.get("name"), str):
            raise self.fault('a cell without a name: "NAME", or { name = "NAME", ... }')
        if isinstance(value, str) and value not in VALUES:
            raise self.fault(f"there is no value operation {value!r} (known: {', '.join(filter(None, VALUES))})")
        # the difference of two of them is to be none of the other operations
        if isinstance(value, bool) or (isinstance(value, float | int) and not 0 < float32(value) < NEG_EXP):
            raise self.fault(f"{value!r} is no number above 0 and below {NEG_EXP} that can be added")
        if value and format == _CANONICAL:
            raise self.fault(f"{format} holds the values themselves, without {value}")
        stored, form_of = self._axes(row.get("axes")), self.word(row, "as", dict(zip(_FORMS, _FORMS, strict=True)), "")
        parts = row.get("parts", 1)
        cell = Cell(
            row["name"],
            stored or (fused if parts > 1 else None),
            row.get("part", 0),
            parts,
            value,
            form_of == "blocks",
            self.expression(row.get("by")),
            form_of == MEMORY,
            str(row.get("instead", "")),
        )
        self._check_cell(cell, axes, format)
        return cell

    def _check_cell(self, cell: Cell, axes: shapes.Shape, format: str) -> None:
        """Check that a cell's axes are the row's, without a stacked axis."""
        canonical = shapes.single(axes) if cell.stack else axes
        if cell.instead and cell.instead not in self._rows:
            raise self.fault(f"there is no row {cell.instead!r} to stand instead")
        if cell.stack and (axes[0][:1] != (cell.stack,) or format == _KEYED):
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


# -- Family file as checked data: tensors, parameters, keys, engines ---------------------------------------------------

#: Format of parameters -> the section that says of which models it is.
_SECTIONS = {"hf": "huggingface", "gguf": "gguf"}


class Match(NamedTuple):
    """Models of the family: architectures, types, classes, a condition.

    Attributes:
        text: of a tower: families of text models that see with it, any where there are none, what stands in a
            checkpoint before the names of their tensors, and in memory before those of their modules.
        tokens: of a tower: key of ``config.json`` -> the token whose id it is.
        embeddings: of a tower: canonical tensor -> the token whose embedding in the text model it is; of a reranker:
            -> the tokens whose rows of the head it is.
        modules: canonical tensor -> the directory of sentence-transformers whose linear layer it is.
    """

    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    condition: Expression | None = None
    text: tuple[tuple[str, ...], str, str] = ((), "", "")
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


#: Families times formats of which compiled names are cached: a user's own files come and go in a long-running program.
MAX_FAMILIES = 256

#: The parameter that says whether layers behind the last are there, which predict further tokens; ``--drop`` calls them
#: so.
DRAFTS, MTP = "drafts", "mtp"

#: The way out of what is wrong with them.
DROP_MTP = "--drop mtp leaves out the layers that predict further tokens"

#: What ``--drop`` calls the tower beside a text model.
TOWER = "tower"

#: Parameters of RoPE's scaling, which the readers' own rules make: those that every type has, and one for each key of
#: a type.
SCALING = frozenset({"rope_type", "rope_factor", "rope_original", "rope_alpha"})
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
        """Whether the model is a mixture of experts."""
        return any(name.startswith("L.ffn.experts.") for name in self.tensors)

    @property
    def rope(self) -> bool:
        """Whether positions are rotary, not learned."""
        return "rope_theta" in self.parameters

    @property
    def known_classes(self) -> bool:
        """Whether transformers' class is known, not just names and sizes."""
        return "transformers" in self.engines

    @property
    def asks_target(self) -> bool:
        """Whether a drafter has its model's tokenizer and reads its document."""
        return any(cell.head == TARGET for row in self.parameters.values() for cell in row.key_cells(FORMATS[0]))

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

    @cached_property
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
        tensors = TensorRows(self.path, self.table.get("axes", {}), self.table.get("tensors", {}))
        parameters = {name: rows.row(name, row) for name, row in self.table.get("parameters", {}).items()}
        rows.check(parameters, [format for format, section in _SECTIONS.items() if section in self.table])
        letters = {name: self.expression(text, "axes", name) for name, text in self.table.get("axes", {}).items()}
        kinds = {name: self.expression(text, "layers", name) for name, text in self.table.get("layers", {}).items()}
        engines = {
            name: engine(self.path, name, row)
            for names, row in self.table.get("engines", {}).items()
            for name in shapes.expanded(names)
        }
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
            keys.document(self.path.stem, self.table.get("config", {}), parameters, engines),
            keys.metadata(self.path.stem, self.table.get("metadata", {}), list(parameters.values())),
            engines,
        )

    def _match(self, section: str, word: str) -> Match:
        self.where = section
        row = self.fields(
            self.table.get(section, {}),
            frozenset({word, "class", "match", "over", "text", "tokens", "elsewhere"}),
        )
        text, elsewhere = row.get("text", {}), row.get("elsewhere", {})
        prefix = str(self.fields(text, frozenset({"of", "prefix", "module"})).get("prefix", ""))
        modules = {name: place[:-1] for name, place in elsewhere.items() if str(place).endswith("/")}
        return Match(
            texts(row.get(word)),
            texts(row.get("class")),
            self._condition(row.get("match")),
            (texts(text.get("of")), prefix, str(text.get("module", prefix))),
            row.get("tokens", {}),
            {name: place for name, place in elsewhere.items() if name not in modules},
            modules,
        )

    def _condition(self, text: object) -> Expression | None:
        return self.expression(text, self.where, "match")

    def _prefixes(self) -> dict[str, tuple[tuple[str, str], ...]]:
        found = {}
        for name, row in self.table.get("prefix", {}).items():
            if name == DRAFTS:
                continue
            self.where = f"prefix.{name}"
            pairs = [self.fields(item, frozenset({"root", "layer", "as"})) for item in listed(row)]
            found[name] = tuple((pair.get("root", ""), pair["layer"]) for pair in pairs)
            for prefix, pair in zip(found[name], pairs, strict=True):
                if self.word(pair, "as", {"": False, MEMORY: True}, default=""):
                    found[MEMORY] = (prefix,)
        return found

    def _stack(self, letter: str, row: object) -> Stack:
        self.where = f"stacks.{letter}"
        fields = self.fields(row, frozenset({"canonical", "count", *FORMATS}))
        count = self.expression(fields.get("count"))
        if count is None or not isinstance(fields.get("canonical"), str):
            raise self.fault("canonical and count are missing")
        prefixes = {key: fields[key] for key in FORMATS if key in fields}
        return Stack(fields["canonical"], count, prefixes)

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
