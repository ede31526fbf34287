"""Models that are no text model: towers, speech, models that diffuse.

Files of towers, which llama.cpp keeps in an ``mmproj``, have the form of a family's and lie in a folder of their own,
as no model is a tower alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from ckconv.core import layouts, metadata
from ckconv.core.config import ModelConfig, config_differences, shortest_float32, worded_fields
from ckconv.core.lazy import NamedTuple, replace, table_of
from ckconv.core.tensors import (
    PREFIX,
    ROPE_FREQUENCIES,
    MetadataKind,
    StoredTensor,
    Tensor,
    TensorIndex,
    Tower,
    matrix_of,
    with_layer,
)
from ckconv.errors import InputError
from ckconv.families import catalog, expressions, sizes
from ckconv.families.canonical import Canonical, Item, canonicalize
from ckconv.families.keys import TRANSFORMERS, Parameter
from ckconv.families.merge import FOLDER, is_family
from ckconv.families.names import HF, MLX, Names, names_of
from ckconv.families.parameters import NewKeys, ParameterError, Source, Values, differ
from ckconv.families.schema import DRAFT_FORMATS, MLX_LM, MLX_VLM, TRANSFORMERS as OF_CLASSES, Engine, Family, load

_TOWERS = FOLDER / "towers"

#: What the rows call the document beside it that says how pictures are prepared.
PREPROCESSOR = "preprocessor"

#: Likewise, of the one that says how pictures and text are put together.
PROCESSOR = "processor"

#: Why layers behind the last that is computed are left out.
_BEHIND = "of a layer behind the one that the text model sees"

#: What may stand before every name of a checkpoint: the class with a head has the model as ``model``.
_NESTED = (("model.", ""), (metadata.THINKER, ""), ("model.language_model.", ""))


@cache
def _texts() -> Mapping[str, str]:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(_TOWERS.glob("*.toml"))}
    return {name: text for name, text in texts.items() if is_family(text)}


@lru_cache
def tower_family(name: str) -> Family:
    """The family of towers of this name."""
    return load(_TOWERS / f"{name}.toml")


@lru_cache
def _towers_called(model_type: str) -> list[Family]:
    """Towers of this ``model_type``, as a line of each file says it.

    Types of text models are in files too, and their towers are not compiled.
    """
    pattern = re.compile(f'model_type = .*"{re.escape(model_type)}"')
    found = (tower_family(name) for name, text in _texts().items() if pattern.search(text))
    return [one for one in found if model_type in one.in_huggingface.names]


def tower_of_document(document: Mapping[str, Any]) -> Family | None:
    """Tower of a whole document's ``model_type``, or ``None``."""
    named = _towers_called(str(document.get("model_type")))
    fits = (one for one in named if _holds(one.in_huggingface.condition, document))
    return min(fits, key=lambda one: one.in_huggingface.condition is None, default=None)


def tower_beside(document: Mapping[str, Any]) -> Family | None:
    """Tower of a document that has the text model's keys at its top."""
    alone = metadata.text_key(document) or not isinstance(document.get("vision_config"), dict)
    tower = None if alone else tower_of_document(document)
    return tower if tower and "text_family" in tower.parameters else None


def of_a_tower(family: Family, key: str) -> bool:
    """Whether a key at the top of a document is about its tower."""
    heads = (cell.head for row in family.parameters.values() for cell in row.key_cells("hf"))
    return key in family.document.keys.keys or key in heads


def tower_of_projector(projector: str, has: Callable[[str], bool]) -> Family | None:
    """The tower of an mmproj, by ``clip.projector_type``.

    Args:
        has: the metadata has this key, after the architecture's prefix; behind ``=``: there is a tensor of this name.
    """
    found = (tower_family(name) for name, text in _texts().items() if f"'{projector}'" in text)
    scope = {"projector_type": projector, "has": has}
    return next((one for one in found if one.in_gguf.condition and _holds(one.in_gguf.condition, scope)), None)


#: What stands before the names of a text model's tensors in a class of mlx-vlm's.
_TEXT = "language_model."


def name_within(row: Engine | None, name: str) -> str:
    """A text tensor's name within mlx-vlm's class of both."""
    for start, instead in row.names if row else ():
        if name.startswith(start):
            return instead + name.removeprefix(start)
    return name if name.startswith(_TEXT) else _TEXT + name


def tower_within(tower: Tower, text: str) -> Tower:
    """Tower as stored beside the text model of this family."""
    own = tower_family(tower.family)
    kind, known = own.parameters["kind"].value, own.in_huggingface.text[0]
    for family in map(tower_family, _texts() if known and text not in known else ()):
        if text in family.in_huggingface.text[0] and str(family.parameters["kind"].value) == str(kind):
            constants = {
                name: row.value.value(tower.parameters) for name, row in family.parameters.items() if row.value
            }
            return tower._replace(family=family.name, parameters={**tower.parameters, **constants})
    return tower


def is_seen_by(text: str) -> bool:
    """Whether a tower makes a checkpoint with text models of this family."""
    return any(text in tower_family(name).in_huggingface.text[0] and comes_back(name) for name in _texts())


def comes_back(tower: str) -> bool:
    """Whether such a tower and its text model make a checkpoint."""
    row = tower_family(tower).engines.get(OF_CLASSES.row)
    return row is None or not row.absent or bool(row.written_as)


def holds_drafts(format: str, config: ModelConfig | None, seeing: Family | None) -> bool:
    """Whether a format has a place for layers that predict further tokens.

    A directory of mlx-vlm has one for one layer, behind a text model with its tower.
    """
    row = seeing.engines.get(MLX_VLM.row) if seeing is not None and format == MLX else None
    one = config is not None and config.own.get("extra_layers") == 1
    return format in DRAFT_FORMATS or bool(row is not None and row.drafts and one)


def reader_of(consumer: str, document: Mapping[str, Any]) -> str:
    """Library that loads a document; mlx-vlm where there is a tower."""
    seeing = tower_of_document(document) if consumer == MLX_LM.name else None
    return MLX_VLM.name if seeing is not None and MLX_VLM.row in seeing.engines else consumer


def _holds(condition: expressions.Expression | None, scope: Mapping[str, Any]) -> bool:
    with suppress(expressions.ExpressionError):  # what is not stated fulfils no condition
        return condition is None or bool(condition.value(scope))
    return False


def tower_parameters(family: Family, source: Source, path: Path) -> Tower:
    """Every parameter that the source says or that follows."""
    values = Values(family, source)
    try:
        for name in _SIZES:
            if name in family.parameters and family.parameters[name].value is None:
                _check_size(family.parameters[name], _plain(values[name]), source.format)
        parameters = {name: _plain(values[name]) for name in family.parameters}
        for name, row in family.parameters.items():
            _check(row, parameters[name])
    except (ParameterError, expressions.ExpressionError) as error:
        raise InputError("model.config", str(error), path=path) from None
    table = family.parameters["hidden"].key_cells("hf")[0].head  # of the document, which is the tower's
    document = _tower_keys(source, table) if source.format == "hf" else {}
    others = tuple(
        f"{cell.key} = {stated!r}"
        for name, row in family.parameters.items()
        for cell in row.key_cells("hf")
        if row.value is not None and cell.head == PREPROCESSOR and document
        if not isinstance(stated := source.value(cell.key), str | None) and differ(stated, parameters[name])
    )
    return Tower(family.name, parameters, *_besides(family, table, document), others)


def _tower_keys(source: Source, table: str) -> Mapping[str, Any]:
    """Keys of the tower's table, and of the document beside it."""
    own, beside = (found if isinstance(found := source.value(name), dict) else {} for name in (table, PREPROCESSOR))
    return {**own, **{f"{PREPROCESSOR}.{key}": value for key, value in beside.items()}}


def _besides(family: Family, table: str, document: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keys without a row: modifiers, and keys without a known reader."""
    keys = family.document.keys
    cells = (cell for row in family.parameters.values() for cell in row.key_cells("hf"))
    read = {".".join(cell.key.split(".")[:2]).removeprefix(f"{table}.") for cell in cells}
    rest = {key: value for key, value in document.items() if key not in read and value is not None}
    named = {key: key if key.startswith(f"{PREPROCESSOR}.") else f"{table}.{key}" for key in rest}
    modifiers = (f"{named[key]} = {rest[key]!r}" for key in keys.active(rest, TRANSFORMERS))
    return tuple(modifiers), tuple(named[key] for key in keys.unknown(rest))


def taken_otherwise(tower: Tower, written: NewKeys, format: str, engine: str) -> Iterator[str]:
    """Sentences on tower parameters for which an engine assumes a value.

    Args:
        written: the parameters, written in ``format``.
    """
    rows = tower_family(tower.family).parameters
    for name, (value, taken) in written.refused.items():
        sentence = next((cell.sentence for cell in rows[name].cells[format] if cell.sentence), "")
        if sentence:
            yield sentence.format_map(dict(tower.parameters))
        else:
            yield f"{name} of the tower is {value!r}, and {engine} computes with {taken!r}"


#: Types of numbers in a GGUF -> those of Python, and the least that one may be.
_NUMBERS: Mapping[str, tuple[tuple[type[int | float], ...], float]] = {
    "u32": ((int,), 0),
    "i32": ((int,), -math.inf),
    "f32": ((int, float), -math.inf),
    "bool[]": ((int,), 0),  # numbers of layers, of which a GGUF has a list of switches
}


#: Of these there is at least one, and others are divided by them.
_SIZES = ("hidden", "heads", "kv_heads", "patch", "merge", "channels")


def _check_size(row: Parameter, value: Any, format: str) -> None:
    """Check that a size is not 0."""
    if isinstance(value, int | float) and value == 0:
        keys = " or ".join(cell.key for cell in row.key_cells(format))
        raise ParameterError(f"{keys or row.name} must be a number above 0, got {value!r}")


def _check(row: Parameter, value: Any) -> None:
    """Check the type of a value: lists where due, of finite numbers."""
    type = next((cell.type for cell in row.key_cells("gguf") if not cell.alias), "")
    many = type.endswith("[]")
    kind = type if type in _NUMBERS else type.removesuffix("[]")
    if value is None:
        return
    if kind in _NUMBERS:
        types, least = _NUMBERS[kind]
        numbers = value if isinstance(value, list) else [value]
        right = all(isinstance(one, types) and not isinstance(one, bool) and one >= least for one in numbers)
        right = right and isinstance(value, list) == many
        what = "a list of numbers" if many else "one number that is not negative"
    elif not type and row.is_switch:
        right, what = isinstance(value, bool), "true or false"
    else:
        return
    if not right:
        keys = " or ".join(cell.key for cell in row.key_cells("hf")) or row.name
        raise ParameterError(f"{keys} must be {what}, got {value!r}")


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return shortest_float32(value) if isinstance(value, float) else value


def sinusoids_of(tower: Tower) -> Mapping[str, tuple[int, ...]]:
    """Stored tables of positions that the class computes, and their shapes."""
    family = tower_family(tower.family)
    rows = ((cell.name, row) for row in family.tensors.values() for cell in row.dropped.values() if cell.sinusoids)
    return {name: sizes.Sizes(family, tower.parameters).shape(row) for name, row in rows}


def tower_tensors(items: Iterable[Item], tower: Tower, format: str, path: Path) -> Canonical:
    """The tensors of a tower under canonical names.

    Raises:
        InputError: ``model.config``, a tensor's shape contradicts the parameters.
    """
    family, known = tower_family(tower.family), tower.parameters
    config = ModelConfig(
        family=family.name,
        model_type=family.model_type,
        num_layers=int(known["layers"]),
        hidden_size=int(known["hidden"]),
        ffn_size=int(known["ffn"]),
        num_heads=int(known["heads"]),
        num_kv_heads=int(known["heads"]),
        head_dim=0,
        vocab_size=0,
        context_length=0,
        norm_eps=0.0,
        rope_theta=None,
        rotary_dim=0,
        own=known,
    )
    names = names_of(family, format)
    nested = _NESTED if format == "hf" else ()
    return canonicalize(
        items,
        family,
        names,
        config,
        lambda *words: "",
        path=path,
        layers="the tower's layers",
        nested=nested,
        extra=_BEHIND,
    )


# -- Hyper-parameters in which two models differ -----------------------------------------------------------------------


def parameter_differences(a: TensorIndex, b: TensorIndex) -> dict[str, tuple[object, object]]:
    """Hyper-parameters in which two models differ, each with both values."""
    return {**_of_towers(a.tower, b.tower), **_of_texts(a, b)}


def _of_towers(one: Tower | None, other: Tower | None) -> dict[str, tuple[object, object]]:
    """Parameters in which two towers differ."""
    if one is None or other is None:
        return {}
    rows = (row for tower in (one, other) for row in tower_family(tower.family).parameters.values())
    aids = {row.name for row in rows if row.read_only or row.of_a_class}
    names = dict.fromkeys((*one.parameters, *other.parameters))  # one of them is the kind of projector
    pairs = {name: (one.parameters.get(name), other.parameters.get(name)) for name in names if name not in aids}
    return {f"{PREFIX}{name}": pair for name, pair in pairs.items() if differ(*pair)}


def _of_texts(a: TensorIndex, b: TensorIndex) -> dict[str, tuple[object, object]]:
    if a.config is None or b.config is None:
        return {}
    of_a, of_b, same_words = a.config, b.config, a.metadata_kind is b.metadata_kind
    if not same_words:
        pairs = ((of_a, of_b), (of_b, of_a))
        of_a, of_b = (replace(one, family=_taken_for(one.family, other.family)) for one, other in pairs)
    of_a, of_b = catalog.without_aids(of_a), catalog.without_aids(of_b)
    if a.format != b.format:
        of_a, of_b = catalog.without_noted(of_a), catalog.without_noted(of_b)
    worded = [
        set()
        if index.metadata_kind is MetadataKind.OWN
        else worded_fields(other, factors=ROPE_FREQUENCIES in index.tensors)
        for index, other in ((a, of_b), (b, of_a))
    ]
    return config_differences(of_a, of_b, same_words=same_words, worded=worded)


def _taken_for(name: str, other: str) -> str:
    """The family that a GGUF is taken for.

    Without a tokenizer, the other one where nothing else tells them apart.
    """
    family = catalog.FAMILIES[catalog.family_in_gguf(name)]
    condition = family.in_gguf.condition
    if condition is None or family.gguf != catalog.FAMILIES[other].gguf:
        return family.name
    by_tokenizer = all(key.startswith(("/tokenizer.", "=")) for key in condition.probed_keys)
    return min(family.name, catalog.family_in_gguf(other)) if by_tokenizer else family.name


# -- Speech models of whisper.cpp: header, names and order of tensors --------------------------------------------------

#: What is said of filters that its converter writes.
USUAL = "those of its converter"


class Speech(NamedTuple):
    """Contents of a whisper.cpp file; see ``speech/whisper_cpp.toml``.

    Attributes:
        family: the only one that it is for.
        header: numbers of the header, in order, each with its key of ``config.json``.
        widths: keys of what follows from the state's width, which is ``width`` times that.
        heads: of a configuration that names no number.
        ends: rows of the embedding -> id of the token that ends a text.
        mels: how many filters there may be.
        full: canonical names of matrices that are FP32.
        columns: canonical names of vectors that are stored with an axis of one.
        tensors: canonical pattern -> the file's, in the order of the file.
        extractor: what computes the same input in transformers.
    """

    family: str
    header: tuple[tuple[str, str], ...]
    widths: tuple[str, ...]
    width: int
    heads: int
    ends: Mapping[int, int]
    mels: tuple[int, ...]
    full: frozenset[str]
    columns: frozenset[str]
    tensors: Mapping[str, str]
    extractor: Mapping[str, Any]


@cache
def speech() -> Speech:
    """The table."""
    table = table_of(FOLDER / "speech" / "whisper_cpp.toml")
    return Speech(
        table["family"],
        tuple((name, key) for name, key in table["header"]),
        tuple(table["widths"]),
        table["width"],
        table["heads"],
        {int(rows): end for rows, end in table["ends"].items()},
        tuple(table["mels"]),
        frozenset(table["full"]),
        frozenset(table["columns"]),
        table["tensors"],
        table["extractor"],
    )


def speech_family() -> Family:
    """The family that the file is for."""
    return catalog.FAMILIES[speech().family]


@cache
def speech_names() -> Names:
    """The names of the file, for the rows of its family."""
    written = names_of(speech_family(), HF).written
    called = {
        canonical: written[canonical]._replace(pattern=name)
        for canonical, name in speech().tensors.items()
        if canonical in written
    }
    return Names({found.pattern: found for found in called.values()}, called, {})


def speech_tensors(layers: int, encoder_layers: int) -> Iterator[tuple[str, str]]:
    """Canonical name and stored name of every tensor, in file order."""
    for layered, rows in groupby(speech().tensors.items(), lambda row: row[0].partition("{n}")[0] * ("{n}" in row[0])):
        group = list(rows)
        count = (encoder_layers if layered.startswith("enc.") else layers) if layered else 1
        for number in range(count):
            yield from ((with_layer(name, number), with_layer(called, number)) for name, called in group)


def speech_settings(mels: int) -> dict[str, Any]:
    """``preprocessor_config.json`` with defaults of Whisper's extractor."""
    return {**speech().extractor, "feature_size": mels}


def speech_document(numbers: Mapping[str, int]) -> dict[str, Any]:
    """``config.json`` of a file's header.

    Args:
        numbers: of the header, by key of ``config.json``.
    """
    table, family = speech(), speech_family()
    end = table.ends.get(numbers["vocab_size"])
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    return {
        "architectures": [family.hf_class],
        "model_type": family.model_type,
        **numbers,
        **dict.fromkeys(table.widths, table.width * numbers["d_model"]),
        **({**tokens, "decoder_start_token_id": end + 1} if end is not None else {}),
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
    }


# -- Diffusion models --------------------------------------------------------------------------------------------------

# They have no family: nothing is computed from their sizes, and tensors have the names of the original checkpoint.


class Diffusion(NamedTuple):
    """An architecture.

    Attributes:
        name: of ``general.architecture``.
        prefix: of the names of its tensors, which a GGUF's do not have.
        full: parts of the names of tensors that stay FP32.
        ignored: parts of the names of tensors that are no weights.
        in_blocks: matrices are cut into rows of :data:`ROW` elements where their own are no multiple of it.
        five: tensors of five axes are there.
        stays, ends: see :class:`ckconv.plan.quantizing.Picture`.
    """

    name: str
    prefix: str = ""
    full: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    in_blocks: bool = False
    five: bool = False
    stays: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


#: Elements of a row that was cut anew; the shape is under this key and the tensor's name (``tools/convert.py``).
ROW = 256
ORIGINAL_SHAPE = "comfy.gguf.orig_shape."


@cache
def _table() -> dict[str, Any]:
    return table_of(FOLDER / "diffusing" / "architectures.toml")


def diffuses(architecture: str) -> bool:
    """Whether this ``general.architecture`` is a diffusion model's."""
    return architecture in _table()["architectures"]


@cache
def _known_names() -> frozenset[str]:
    """Names that some architecture has, or lacks."""
    rows = _table()["architectures"].values()
    return frozenset(name for row in rows for each in (*row["holds"], row.get("lacks", ())) for name in each)


class _Names(NamedTuple):
    """Names of tensors, as they speak of diffusion.

    Attributes:
        prefix: of the names of the model itself.
        own: names behind the prefix that some architecture has, or lacks.
        parts: whether any is one of such models, known or not.
    """

    prefix: str
    own: frozenset[str]
    parts: bool


def _names_of(stored: Iterable[StoredTensor]) -> _Names:
    """Go through names once and keep few: there may be a million."""
    prefixes, whole, parts = tuple(_table()["prefixes"]), str(_table()["whole_prefix"]), tuple(_table()["parts"])
    behind = {prefix + name: (prefix, name) for prefix in (*prefixes, whole, "") for name in _known_names()}
    found, there, everywhere, of_parts = set[str](), set[tuple[str, str]](), True, False
    for one in stored:
        name = one.name
        if name in behind:
            there.add(behind[name])
        if name.startswith(prefixes):
            found.update(filter(name.startswith, prefixes))
        everywhere = everywhere and name.startswith(whole)
        of_parts = of_parts or name.startswith(parts)
    prefix = next(filter(found.__contains__, prefixes), whole if everywhere else "")
    return _Names(prefix, frozenset(name for before, name in there if before == prefix), of_parts)


def diffusion_of(stored: Iterable[StoredTensor]) -> Diffusion | None:
    """Diffusion architecture with these tensors, or ``None``."""
    return _diffusion(_names_of(stored))


def _diffusion(names: _Names) -> Diffusion | None:
    for name, row in _table()["architectures"].items():
        if any(names.own.issuperset(each) for each in row["holds"]) and names.own.isdisjoint(row.get("lacks", ())):
            parts = {key: tuple(row.get(key, ())) for key in ("full", "ignored", "stays", "ends")}
            return Diffusion(name, names.prefix, in_blocks="in_blocks" in row, five="five" in row, **parts)
    return None


def _names_in(index: TensorIndex) -> _Names:
    return _names_of(index.stored)


def diffusion_in(index: TensorIndex) -> Diffusion | None:
    """Diffusion architecture or ``None``; a GGUF's keys have to name one."""
    eligible = index.metadata_kind is not MetadataKind.TYPED or diffuses(index.architecture)
    return _diffusion(index.once(_names_in)) if eligible else None


def is_of_diffusion(index: TensorIndex) -> bool:
    """Whether tensors are a diffusion model's, known or not."""
    names = index.once(_names_in)
    return names.parts or _diffusion(names) is not None


def has_names_of_diffusers(stored: Collection[StoredTensor]) -> bool:
    """Whether tensors have diffusers' names, not the original checkpoint's."""
    names = frozenset(_table()["diffusers"])
    return any(one.name in names for one in stored)


def canonical_diffusion(
    model: Diffusion, items: Iterable[Item], shape: Callable[[StoredTensor], tuple[int, ...]] | None = None
) -> Canonical:
    """Tensors of the model under the names of a GGUF; the others are unknown.

    Args:
        shape: that a tensor had before its rows were cut anew.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[str, tuple[str, ...]] = {}
    others: list[StoredTensor] = []
    for tensor, arrays, _ in items:
        if tensor.name.startswith(model.prefix):
            name = tensor.name.removeprefix(model.prefix)
            tensors[name] = _shaped(replace(tensor, name=name), shape(arrays[0]) if shape else ())
            names |= {array.name: (name,) for array in arrays}
        else:
            others += arrays
    return Canonical(tensors, names, (), others)


def _shaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor with its own shape; blocks keep the rows that they are in."""
    if not shape:
        return tensor
    layout = layouts.plain(*matrix_of(shape, tensor.dtype)) if tensor.dtype.block == 1 else tensor.layout
    return replace(tensor, shape=shape, layout=layout)
