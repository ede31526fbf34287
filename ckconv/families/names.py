"""Tensor rows of a family for a format, and other naming schemes.

``max``: GPT-2 with linear layers, its matrices ``[out, in]``. ``canonical`` and ``gguf``: other names only, rows and
values as Hugging Face stores them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from ckconv.core.lazy import NamedTuple, table_of
from ckconv.core.metadata import THINKER, WHOLE
from ckconv.core.tensors import GATE_UP, PARTS, QKV, parse, with_layer
from ckconv.families import axes as shapes, expressions, merge
from ckconv.families.schema import (
    COUNTED_NUMBERS,
    EXPERTS,
    MAX_FAMILIES,
    WHOLE_NUMBERS,
    Cell,
    Family,
    Fusion,
    TensorRow,
    load,
    stored_higher,
)

# -- Tensor rows of a family, compiled for a format: names and parts ---------------------------------------------------
# A name is looked up with its whole-number segments replaced (:func:`ckconv.core.tensors.parse`: ``{n}``, ``{e}``), so
# a model costs one dictionary look-up a tensor, whatever its length.

#: Formats of the cells of a tensor row.
HF, MLX, GGUF = "hf", "mlx", "gguf"

#: The other format whose names a reader of the first takes too, where nothing but the name is different.
_ALSO: Mapping[str, str] = {HF: MLX, MLX: HF}


class Part(NamedTuple):
    """Canonical tensor, or a share of one, within a stored tensor.

    Attributes:
        canonical: pattern of its name.
        axes: its canonical shape; of a stack that is stored one by one, that of a single one.
        stored: how the stored tensor's values lie.
        number: which of the stored shape's segments it is.
        value: the operation on values, "" for none.
        stack: the axis of which every index is a stored tensor of its own, "" where there is none.
        by: what a stored value is multiplied with; ``None`` for 1.
        row: where this is stated.
        instead: the row whose tensor stands here in layers without this one; "" for none.
    """

    canonical: str
    axes: shapes.Shape
    stored: shapes.Shape
    number: int
    value: str | float
    stack: str
    row: TensorRow
    by: expressions.Expression | None = None
    instead: str = ""


class NameRule(NamedTuple):
    """A kind of stored tensor.

    Attributes:
        pattern: of its name.
        canonical: pattern of what it holds; of several tensors, of the whole, a name that none of them has.
        parts: what it holds, in order.
        numbers: of a stack: how many layers it has, or a list of the numbers that they have in names.
    """

    pattern: str
    canonical: str
    parts: tuple[Part, ...]
    numbers: expressions.Expression | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Canonical patterns of the parts."""
        return tuple(part.canonical for part in self.parts)

    @property
    def of_one_layer(self) -> bool:
        """Whether a single layer has such a tensor, whose name has no number."""
        return "{n}" in self.canonical and "{n}" not in self.pattern

    def called(self, layer: int | None, scope: Mapping[str, Any]) -> str:
        """The name in the format, of a layer of its stack."""
        numbers = self.numbers.value(scope) if self.numbers is not None else None
        if isinstance(numbers, list | tuple) and layer is not None:
            layer = numbers[layer]
        return with_layer(self.pattern, layer)

    @property
    def side_by_side(self) -> bool:
        """Whether parts of a fused tensor follow each other, not head by head."""
        return all(len(product) == 1 or not shapes.segmented(product) for product in self.parts[0].stored)


class Names(NamedTuple):
    """A family in one format.

    Attributes:
        stored: pattern of a stored name -> what such a tensor holds, in every spelling that is read.
        written: canonical pattern of a tensor -> what it is written in: the first of its spellings.
        dropped: pattern of a stored tensor that is no part of the model -> why it is not.
        choices: pattern of a stored name -> what such a tensor is in one model or in another, where that differs.
        packed: canonical pattern of a tensor -> what it is written in where its values are blocks.
        zeros: name of a dropped tensor that the class makes up where it is not there -> its row.
        copied: pattern of a dropped tensor that goes along where tensors keep their names -> its first spelling.
        turned: pattern of a stored name -> what such a tensor is in files that lay its axes out in the other order.
    """

    stored: Mapping[str, NameRule]
    written: Mapping[str, NameRule]
    dropped: Mapping[str, str]
    choices: Mapping[str, tuple[NameRule, ...]] = {}
    packed: Mapping[str, NameRule] = {}
    zeros: Mapping[str, TensorRow] = {}
    copied: Mapping[str, str] = {}
    turned: Mapping[str, NameRule] = {}

    @property
    def always_fused(self) -> tuple[NameRule, ...]:
        """Tensors that hold several canonical ones, however they are asked for."""
        return tuple({found.pattern: found for found in self.written.values() if len(found.parts) > 1}.values())


@lru_cache(maxsize=MAX_FAMILIES)
def names_of(family: Family, format: str) -> Names:
    """The rows of ``family`` for ``hf``, ``mlx`` or ``gguf``."""
    return _Compiler(family, format).names()


def canonical_pattern(family: Family, row: str, kind: str) -> str:
    """``L.attention.q`` -> ``layers.{n}.attention.q.weight``."""
    letter, dot, tail = row.partition(".")
    if dot and letter in family.stacks:
        row = family.stacks[letter].canonical + tail
    elif dot and letter == "L":
        row = f"layers.{{n}}.{tail}"
    return f"{row}.{kind}" if kind else row


#: A norm, and what its weight and bias are called in checkpoints that were made of TensorFlow's; transformers renames
#: them in whatever it loads (``conversion_mapping.py`` of 5).
_NORM = "LayerNorm"
_OLDER = {"weight": "gamma", "bias": "beta"}


#: Why a tensor is none of the model's, whose numbers a configuration says.
IN_CONFIGURATION = "its numbers are in the configuration"


class _Compiler:
    def __init__(self, family: Family, format: str) -> None:
        self.family, self.format = family, format
        self.stored: dict[str, NameRule] = {}
        self.written: dict[str, NameRule] = {}
        self.packed: dict[str, NameRule] = {}
        self.dropped: dict[str, str] = {}
        self.zeros: dict[str, TensorRow] = {}
        self.copied: dict[str, str] = {}
        self.choices: dict[str, tuple[NameRule, ...]] = {}
        self.turned: dict[str, NameRule] = {}

    def names(self) -> Names:
        for row in self.family.tensors.values():
            if (reason := row.dropped.get(self.format)) is not None:
                spelled = self._spelled(row, reason.name)
                spelled += [
                    f"{older}{_OLDER[kind]}" for older, kind in map(_halves, spelled) if older.endswith(f"{_NORM}.")
                ]
                self.dropped |= dict.fromkeys(spelled, reason.why)
                self.copied |= dict.fromkeys(spelled, spelled[0]) if reason.copied else {}
                if reason.zeros:
                    self.zeros[spelled[0]] = row
            for kind in _kinds(row):
                named: set[str] = set()
                for cell in row.cells[self.format]:
                    if kind == "bias" and cell.name.startswith("="):  # another form of the weight
                        continue
                    into = self.packed if cell.packed else self.written
                    table = self.turned if cell.name in named else self.stored
                    named.add(cell.name)
                    for pattern in self._spelled(row, cell.name):
                        self._add(self._stored(row, cell, _full(pattern, cell, kind), kind), into, table)
                        if self.format == "hf" and pattern.endswith(_NORM):
                            self._add(self._stored(row, cell, f"{pattern}.{_OLDER[kind]}", kind))
                for cell in self._others(row):
                    for pattern in self._spelled(row, cell.name):
                        self._add(self._stored(row, cell, _full(pattern, cell, kind), kind))
        for parameter in self.family.parameters.values():
            cells = (cell for cell in parameter.cells.get(self.format, ()) if cell.kind == "tensor")
            self.dropped |= dict.fromkeys((cell.tensor for cell in cells), IN_CONFIGURATION)
        for fusion in self.family.fused.values():
            for found in self.fusions(fusion):
                self._add(found)
        tables = self.stored, self.written, self.dropped, self.choices, self.packed, self.zeros, self.copied
        return Names(*tables, self.turned)

    def fusions(self, fusion: Fusion) -> Iterator[NameRule]:
        """Stored names of a fusion; empty if the parts are always fused."""
        name = fusion.cells.get(self.format) or fusion.cells.get("hf" if self.format == "mlx" else self.format)
        rows = [self.family.tensors[part] for part in fusion.parts]
        alone = all(cell.parts == 1 for row in rows for cell in row.cells[self.format])
        if name is None or not alone:
            return
        for kind in ("weight", "bias"):
            if any(kind not in _kinds(row) for row in rows):
                continue
            for pattern in self._spelled(rows[0], name):
                parts = tuple(
                    self._part(row, Cell(name), kind)._replace(number=n, stored=_segments(rows, kind))
                    for n, row in enumerate(rows)
                )
                yield NameRule(f"{pattern}.{kind}", canonical_pattern(self.family, fusion.name, kind), parts)

    def _others(self, row: TensorRow) -> Sequence[Cell]:
        """Stacks that the other format's programs store in another way."""
        other = _ALSO.get(self.format)
        own = {cell.stack for cell in row.cells[self.format]}
        return [cell for cell in row.cells[other] if cell.stack not in own] if other else []

    def _add(
        self, found: NameRule, written: dict[str, NameRule] | None = None, table: dict[str, NameRule] | None = None
    ) -> None:
        table = self.stored if table is None else table
        there = table.get(found.pattern)
        alone = shapes.segment_count(found.parts[0].stored) == 1
        if there is not None and there.names != found.names and alone:
            self.choices[found.pattern] = (*self.choices.get(found.pattern, (there,)), found)
        elif there is not None and there.names != found.names and len(found.parts) == 1:
            found = there._replace(parts=(*there.parts, *found.parts))
            found = found._replace(canonical=self._whole(found))
        table[found.pattern] = found
        if written is None or table is self.turned:
            return
        for part in found.parts:
            known = written.get(part.canonical)
            if known is None or known.pattern == found.pattern:
                written[part.canonical] = found

    def _whole(self, found: NameRule) -> str:
        modules = tuple(name.rpartition(".")[0] for name in found.names)
        kind = found.parts[0].canonical.rpartition(".")[2]
        return next((f"{whole}.{kind}" for whole, parts in PARTS.items() if parts == modules), found.canonical)

    def _stored(self, row: TensorRow, cell: Cell, pattern: str, kind: str) -> NameRule:
        part = self._part(row, cell, kind)
        stack = self.family.stacks.get(row.name.partition(".")[0])
        return NameRule(pattern, part.canonical, (part,), stack.count if stack and self.format == GGUF else None)

    def _part(self, row: TensorRow, cell: Cell, kind: str) -> Part:
        axes = shapes.single(row.axes) if cell.stack else row.axes
        stored = cell.axes or axes
        if kind == "bias" and len(axes) > 1:
            without = (axes[-1], ("1",))  # columns, and the axis of one of a convolution's kernel
            rest = axes[:-1] if stored == axes else tuple(product for product in stored if product not in without)
            axes, stored = axes[:-1], rest
        canonical = canonical_pattern(self.family, row.name, "" if row.whole_name else kind)
        value = cell.value if kind == "weight" else ""  # of a norm's scale; its shift is stored as it is
        return Part(canonical, axes, stored, cell.part, value, cell.stack, row, cell.by, cell.instead)

    def _spelled(self, row: TensorRow, name: str) -> list[str]:
        """The pattern behind every prefix that is read, the written one first."""
        name = name.removeprefix("=")
        letter, dot, tail = name.partition(".")
        if dot and letter in self.family.stacks:
            prefixes = self.family.stacks[letter].prefixes
            return [_numbered(prefixes.get(self.format, prefixes.get("hf", "")) + tail)]
        found = []
        for root, layer in self._prefixes():
            start = root if letter == "M" else layer if letter == "L" else ""
            found.append(_numbered(start + tail if dot and letter in ("M", "L") else name))
        return list(dict.fromkeys(found))

    def _prefixes(self) -> list[tuple[str, str]]:
        prefixes, other = self.family.prefixes, _ALSO.get(self.format, "")
        return [*(prefixes.get(self.format) or prefixes["hf"]), *prefixes.get(other, ())]


def key_patterns(family: Family) -> dict[str, str]:
    """Canonical pattern of a tensor that is a GGUF key -> its key."""
    rows = (row for row in family.tensors.values() if row.key)
    return {canonical_pattern(family, row.name, "" if row.whole_name else "weight"): row.key for row in rows}


def _halves(name: str) -> tuple[str, str]:
    """The module with its dot, and weight or bias."""
    module, dot, kind = name.rpartition(".")
    return module + dot, kind


def has_bias(row: TensorRow) -> bool:
    """Whether a bias may stand beside the weight."""
    return row.bias is not None and not row.whole_name


def _kinds(row: TensorRow) -> tuple[str, ...]:
    return ("weight", "bias") if has_bias(row) else ("weight",)


def _full(pattern: str, cell: Cell, kind: str) -> str:
    return pattern if cell.name.startswith("=") else f"{pattern}.{kind}"


def _numbered(name: str) -> str:
    """Placeholder of a stack's number in a parsed name."""
    hole = "{e}" if "{n}" in name else "{n}"
    start = name.find("{")
    while start >= 0:
        stop = name.index("}", start)
        if name[start + 1 : stop] != "n":
            return f"{name[:start]}{hole}{name[stop + 1 :]}"
        start = name.find("{", stop)
    return name


def _segments(rows: Sequence[TensorRow], kind: str) -> shapes.Shape:
    """The shape of rows that are stored one after the other."""
    parts = tuple(row.axes[0] for row in rows)
    first: shapes.Product = (shapes.Segments(parts),)
    return (first, *(rows[0].axes[1:] if kind == "weight" else ()))


def numbered_on(stored: str, family: Family, layers: int) -> str:
    """Name of a draft layer's tensor with a layer number: ``mtp.layers.0.x``.

    Args:
        layers: how many there are besides.
    """
    if not family.of_drafts:
        return stored
    one = re.escape(family.of_drafts)
    one = one.replace(r"\{n\}", r"(\d+)") if "{n}" in family.of_drafts else rf"(?:model\.)?{one}(?:layers\.(\d+)\.)?"
    found = re.fullmatch(rf"{one}(.+)", stored)
    if found is None:
        return stored
    return family.prefixes[HF][0][1].replace("{n}", str(layers + int(found[1] or 0))) + found[2]


def draft_name(called: str, canonical: str, family: Family, layers: int) -> str:
    """Inverse of :func:`numbered_on`; leaves further names alone."""
    layer = parse(canonical).layer
    if not (family.of_drafts and layer is not None and layer >= layers and canonical.startswith("layers.")):
        return called
    rest = called
    for format in (HF, MLX):
        rest = rest.removeprefix(family.prefixes.get(format, family.prefixes[HF])[0][1].replace("{n}", str(layer)))
    if "{n}" in family.of_drafts:
        return f"{family.of_drafts.replace('{n}', str(layer - layers))}{rest}"
    own = ".draft." in canonical
    return f"{family.of_drafts}{'' if own else f'layers.{layer - layers}.'}{rest}"


def heads_of(family: Family, canonical: str) -> str | None:
    """Parameter that counts the heads of interleaved rows, or ``None``.

    Args:
        canonical: pattern of the tensor's name.
    """
    found = names_of(family, GGUF).written.get(canonical)
    if found is None or len(found.parts) > 1:
        return None
    part = found.parts[0]
    own, stored = part.axes[0], part.stored[0]
    if len(own) != 3 or own[1] != "2" or stored != (own[0], own[2], own[1]):
        return None
    letter = own[0]
    return family.axes[letter].text if isinstance(letter, str) else None


@lru_cache(maxsize=MAX_FAMILIES)
def _shifts(family: Family) -> Mapping[str, float]:
    """Canonical pattern -> shift of stored values in GGUF and bump."""
    written = names_of(family, GGUF).written.values()
    return {part.canonical: stored_higher(part.value) for found in written for part in found.parts if part.value}


def shift_of(family: Family, canonical: str) -> float:
    """Shift of stored values of a canonical tensor in GGUF and bump, or 0."""
    own = _shifts(family)
    return own.get(parse(canonical).pattern, 0) if own else 0


@lru_cache(maxsize=MAX_FAMILIES)
def tables_of(family: Family, *values: str) -> frozenset[str]:
    """Canonical patterns of tables of whole numbers, or of some values."""
    kinds = values or (WHOLE_NUMBERS, EXPERTS, COUNTED_NUMBERS)
    written = names_of(family, GGUF).written.values()
    return frozenset(part.canonical for found in written for part in found.parts if part.value in kinds)


@lru_cache(maxsize=MAX_FAMILIES)
def interleaves(family: Family) -> bool:
    """Whether GGUF stores rows of heads with RoPE pairs as neighbors."""
    return any(heads_of(family, name) for name in names_of(family, GGUF).written)


# -- Mistral's own checkpoints: ``params.json`` and reference names ----------------------------------------------------
# Tables: other_programs/mistral_inference.toml.

#: What the scheme of these names is called.
REFERENCE = "reference"

PARAMS_NAME = "params.json"

#: How the files of weights are called.
WEIGHTS = "consolidated"

#: The key of ``params.json`` for what a mixture of experts has.
_MOE = "moe"

#: ``freqs_cis`` of mistral-inference's ``transformer.py``; its older ones had 10,000 beside a window, as the converter.
_THETAS = "mistral-inference then takes for 1,000,000, transformers' converter for 10,000"

#: What there is to say of a context that is the converter's default.
CONTEXT_NOTE = (
    f"{PARAMS_NAME} names no context length: 32,768 as transformers' converter has it; --context N says another"
)


@cache
def _reference() -> Mapping[str, Mapping[str, Any]]:
    """The data."""
    return table_of(merge.FOLDER / "other_programs" / "mistral_inference.toml")


def reference_config(params: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """``config.json`` of a Mistral checkpoint with notes, or ``None`` and why."""
    given = {key: value for key, value in params.items() if value is not None}
    mixture, table = given.pop(_MOE, None), _reference()
    missing = [key for key in table["needed"] if key not in given]
    if missing:
        return None, f"{PARAMS_NAME} has no {missing[0]}"
    known, of_moe = {**table["needed"], **table["optional"]}, table["moe"]
    if "rope_theta" not in given and not {"sliding_window", "_sliding_window"} & given.keys():
        return None, f"{PARAMS_NAME} has no rope_theta, which {_THETAS}"
    more = [key for key, value in given.items() if key not in known and value not in table["idle"].get(key, ())]
    if more:
        return None, f"{PARAMS_NAME} says {more[0]}, which is not part of Mistral's decoders that ckconv knows"
    if mixture is not None and (not isinstance(mixture, dict) or mixture.keys() != of_moe.keys()):
        return None, f"what {PARAMS_NAME} says of {_MOE} is not {' and '.join(of_moe)} alone, as a Mixtral has it"
    renamed = {known[key]: value for key, value in given.items() if key in known}
    if isinstance(renamed.get("sliding_window"), str) and renamed["sliding_window"].isdecimal():
        renamed["sliding_window"] = int(renamed["sliding_window"])
    own = {} if mixture is None else {name: mixture[key] for key, name in of_moe.items()}
    config = {
        **table["dense" if mixture is None else "mixture"],
        **table["default"],
        "sliding_window": None,
        **renamed,
        **own,
    }
    return config, "" if "max_position_embeddings" in renamed else CONTEXT_NOTE


@lru_cache(maxsize=MAX_FAMILIES)
def reference_names(family: Family) -> Names:
    """The names of a family's tensors there."""
    own = [names_of(family, scheme) for scheme in (GGUF, HF)]
    kinds = [found for names in own for found in names.stored.values()]
    stored = {called: found._replace(pattern=called) for found in kinds if (called := _called(found))}
    pairs = [pair for names in own for pair in names.written.items()]
    written = {name: stored[called] for name, found in pairs if (called := _called(found))}
    return Names(stored, written, {})


def _called(found: NameRule) -> str:
    module, names = found.pattern.removesuffix(".weight"), _reference()["names"]
    return f"{names[module]}.weight" if module in names and module != found.pattern else ""


# -- Naming schemes of checkpoints: the family's own and alternatives --------------------------------------------------

#: The key of a file's ``__metadata__`` that says under which names its tensors are, where not under the family's own.
NAMES_KEY = "ckconv.names"

#: How the ``model_type`` of a text part ends. Saved alone it may keep the names that it has in the whole model, which
#: transformers 5 (conversion_mapping.py, ``PrefixChange``), llama.cpp's converter and vLLM take off.
TEXT_PART = "_text"

#: Where a configuration has a ``text_config``, or is one, the decoder's tensors are under one of these: transformers 5
#: and 4. What transformers 5.24 saves of a Kimi K2.5 that it loaded has ``blocks``, as if it were the tower
#: (``conversion_mapping.py``), and it loads that again. The first is what 5.3 to 5.5.1 saved of a Qwen 3.5, and load no
#: more.
TRIPLED = "model.language_model.language_model.language_model."
NESTED = (
    (TRIPLED, "model."),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.", ""),
    ("language_model.model.blocks.", "model.layers."),
    ("llm.", ""),
)

#: The same of paths of modules; the last is mlx-vlm's of SmolVLM and Idefics 3.
NESTED_PATHS = (*NESTED, ("language_model.", "model."))

#: What ``--fuse`` calls them -> canonical module of the fused tensor.
FUSIONS: dict[str, str] = {"qkv": QKV, "gate-up": GATE_UP}

#: What names a checkpoint may have besides its family's own.
OTHER_SCHEMES = ("max", "canonical", GGUF)


#: What the classes of transformers, and llama.cpp's ``conversion/``, call parts beside the text part: towers that see
#: or hear, and what projects their output to the text part's embeddings.
_BESIDE = frozenset(
    {
        "aligner", "audio_tower", "connector", "embed_audio", "embed_vision", "image_newline", "merger", "mlp1",
        "mlp_AR", "mm_projector", "multi_modal_projector", "multimodal_projector", "patch_merger",
        "pre_mm_projector_norm", "projector", "resampler", "sam_model", "view_seperator", "vision", "vision_embedder",
        "vision_encoder", "vision_language_adapter", "vision_model", "vision_projection", "vision_tower", "visual",
        "vpm",
    }
)  # fmt: skip

#: What they are called in a GGUF that has all of a model in one file, as ollama's: the names of llama.cpp's mmproj.
_BESIDE_IN_GGUF = frozenset({"a", "mm", "resampler", "v"})

#: Why the tensors of those parts are left out where a target holds text models.
BESIDE_TEXT = "not part of the text model"


def is_beside_text(config: Mapping[str, Any], name: str) -> bool:
    """Whether a tensor is of a part that the text model does not have."""
    return beside_text(config, name).removesuffix(".*").rpartition(".")[2] in _BESIDE


def beside_text(config: Mapping[str, Any], name: str) -> str:
    """Glob of the multimodal part that a tensor belongs to; "" for text."""
    head, _, rest = name.partition(".")
    if WHOLE in config and name.startswith(THINKER):
        found = beside_text({key: value for key, value in config.items() if key != WHOLE}, rest)
        return found and THINKER + found
    if not any(isinstance(config.get(key), dict) for key in ("text_config", "vision_config")):
        return f"{head}.*" if rest and head in _BESIDE_IN_GGUF else ""
    if prefix := next((prefix for prefix, _ in NESTED if name.startswith(prefix)), ""):
        # What transformers 5.3 to 5.5.3 saved of a Qwen 3.5 has its tower there.
        part, _, rest = name.removeprefix(prefix).partition(".")
        return f"{prefix}{part}.*" if rest and part in _BESIDE else ""
    part = f"{head}.{rest.partition('.')[0]}" if head == "model" else head
    if name == part:  # no module, one array
        return part if part.removeprefix("model.") in _BESIDE else ""
    return f"{part}.*" if name.startswith(f"{part}.") else ""


def part_hint(family: Family | None, pattern: str) -> str:
    """Flag that drops the part of :func:`beside_text`, or empty."""
    if family is None or not pattern.endswith(".*"):
        return ""
    return f"--drop '{pattern}' leaves out what {family.name} does not have"


@lru_cache(maxsize=MAX_FAMILIES)
def scheme_names(family: Family, scheme: str) -> Names:
    """Names of a family in ``hf``, ``mlx`` or an alternative scheme."""
    if scheme in (HF, MLX):
        return names_of(family, scheme)
    if scheme == REFERENCE:
        return reference_names(family)
    own = names_of(family, HF)
    if scheme == "max":
        return Names(
            {pattern: _in_order(found) for pattern, found in own.stored.items()},
            {name: _in_order(found) for name, found in own.written.items()},
            own.dropped,
        )
    names = {**{name: name for name in own.written}, **(_gguf_names(family) if scheme == GGUF else {})}
    single = {
        name: NameRule(names[name], name, (_canonical(part),))
        for found in own.written.values()
        for part in found.parts
        if (name := part.canonical) in names
    }
    wholes = []
    for whole, modules in PARTS.items():
        for kind in ("weight", "bias"):
            parts = [single[f"{module}.{kind}"].parts[0] for module in modules if f"{module}.{kind}" in single]
            if len(parts) == len(modules):
                called = f"{whole}.{kind}" if scheme == "canonical" else _gguf_whole(f"{whole}.{kind}")
                wholes.append(NameRule(called, f"{whole}.{kind}", _side_by_side(parts)))
    # In layers of another kind a matrix of its own may have the name of a fused one: blk.{n}.attn_qkv of MiniMax.
    return Names({found.pattern: found for found in (*wholes, *single.values())}, single, {})


def fusion_names(family: Family, scheme: str, whole: str) -> dict[str, NameRule]:
    """Canonical pattern -> stored name, where ``whole`` is fused."""
    names = scheme_names(family, scheme)
    found: dict[str, NameRule] = {}
    for stored in names.stored.values():
        if stored.canonical.rpartition(".")[0] == whole:
            for name in stored.names:
                found.setdefault(name, stored)
    return found


def fuses_otherwise(family: Family, scheme: str, wholes: Iterable[str]) -> bool:
    """Whether fusing ``wholes`` differs from the family's own storage."""
    written = scheme_names(family, scheme).written
    return any(
        name not in written or written[name].pattern != stored.pattern
        for whole in wholes
        for name, stored in fusion_names(family, scheme, whole).items()
    )


def _in_order(found: NameRule) -> NameRule:
    return found._replace(parts=_side_by_side([_canonical(part) for part in found.parts]))


def _canonical(part: Part) -> Part:
    """The part by itself, its values in canonical order."""
    axes = part.row.axes[: len(part.axes) + 1] if part.stack else part.axes
    return part._replace(axes=axes, stored=axes, number=0, value="", stack="")


def _side_by_side(parts: list[Part]) -> tuple[Part, ...]:
    """Parts stored one after the other, by rows."""
    if len(parts) == 1:
        return tuple(parts)
    rows: shapes.Product = (shapes.Segments(tuple(part.axes[0] for part in parts)),)
    return tuple(
        part._replace(stored=(rows, *part.axes[1:]), number=n, row=part.row._replace(fused_axes=(rows, *part.axes[1:])))
        for n, part in enumerate(parts)
    )


@lru_cache(maxsize=MAX_FAMILIES)
def _gguf_names(family: Family) -> Mapping[str, str]:
    """Canonical pattern -> GGUF's name of the tensor that alone has it."""
    own, common = names_of(family, GGUF).written, names_of(decoder(), GGUF).written
    alone = {name: found.pattern for name, found in own.items() if len(found.parts) == 1}
    names = {name: found.pattern for name, found in common.items()} | alone
    first = {pattern: name for name, pattern in reversed(names.items()) if name in names_of(family, HF).written}
    return {name: pattern for name, pattern in names.items() if pattern != _FACTORS and first.get(pattern) == name}


_FACTORS = "rope_freqs.weight"


@cache
def decoder() -> Family:
    """Rows of the decoder fragment."""
    return load(merge.FOLDER / "decoder.toml")


def _gguf_whole(canonical: str) -> str:
    stored = names_of(decoder(), GGUF).stored
    return next((pattern for pattern, found in stored.items() if found.canonical == canonical), canonical)
