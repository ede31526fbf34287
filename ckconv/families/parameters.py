"""Hyper-parameters of a family: read from, and written to, a format.

Source of a GGUF's keys: ``set_gguf_parameters`` of the converter's classes, checked key by key against files that it
wrote. llama.cpp loads a number only with the type that is given here.
"""

from __future__ import annotations

import math
import re
import reprlib
import struct
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from ckconv.core.config import MAX_LAYERS, ModelConfig
from ckconv.core.lazy import NamedTuple
from ckconv.core.metadata import Value, array, scalar, text_on_top
from ckconv.core.tensors import StoredTensor
from ckconv.errors import counted
from ckconv.families.expressions import Expression, ExpressionError
from ckconv.families.keys import READERS, Parameter, ParameterCell, full_key
from ckconv.families.merge import FOLDER
from ckconv.families.schema import Family

# -- A ``config.json`` as the rows of a family read it -----------------------------------------------------------------


#: Table of a document in which the settings of a preprocessor stand.
PREPROCESSOR = "preprocessor"


class ConfigSource:
    """The document as the rows of a family read it."""

    format = "hf"

    def __init__(self, document: Mapping[str, Any], stored: Sequence[StoredTensor] = ()) -> None:
        self._document, self._stored = document, stored

    def _found(self, key: str) -> tuple[bool, Any]:
        found: Any = self._document
        for number, part in enumerate(parts := key.split(".")):
            # a preprocessor has one number, or a table of two
            if not isinstance(found, dict) and found is not None and parts[0] != PREPROCESSOR:
                table = ".".join(parts[:number])
                raise ParameterError(f"{table} must be an object, got {type(found).__name__}")
            if not isinstance(found, dict) or part not in found:
                return False, None
            found = found[part]
        return True, found

    def has(self, key: str) -> bool:
        """Whether the key is there, be it null."""
        return self._found(key)[0]

    def value(self, key: str) -> Any:
        """Value at a dotted path."""
        return self._found(key)[1]

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """Shape of a stored tensor by this name, with or without a prefix."""
        ends = (one for one in self._stored if one.name.endswith(tensor))
        return next((one.shape for one in ends if one.name == tensor or one.name.endswith(f".{tensor}")), None)

    def numbers(self, tensor: str) -> list[float] | None:
        """A document has no tensors."""
        return None


# -- Hyper-parameters of a family: read from, and written to, a format -------------------------------------------------

#: A parameter in the name of a tensor.
_HOLE = re.compile(r"\{(\w+)\}")


#: What llama.cpp takes for a number of each layer, too (``get_key_or_arr``).
PER_LAYER = ("head_count", "head_count_kv", "feed_forward_length", "expert_used_count")

#: Last words of keys whose lists have a number for each layer there; of the clamps there are only lists.
_OF_LAYERS = frozenset({*PER_LAYER, "swiglu_clamp_exp", "swiglu_clamp_shexp"})

#: Keys of GGUF whose 0 llama.cpp takes for none: of experts and embeddings always (build_moe_ffn, build_inp_embd),
#: of others where the row of a family says so.
ZERO_IS_NONE = ("expert_weights_scale", "embedding_scale", "residual_scale", "attention.scale", "logit_scale")


class ParameterError(ValueError):
    """Missing or contradictory parameter, or no place in a format."""


class Source(Protocol):
    """Document or metadata that parameters are read from."""

    #: ``hf`` or ``gguf``.
    format: str

    def value(self, key: str) -> Any:
        """Value of a dotted path, or of a metadata key after ``{arch}.``."""

    def has(self, key: str) -> bool:
        """Whether the key is there, be it null."""

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """The shape of a stored tensor, ``None`` where there is none."""

    def numbers(self, tensor: str) -> list[float] | None:
        """The values of a stored vector, ``None`` where there is none."""


class Values(Mapping[str, Any]):
    """The parameters of one model, each read when it is asked for.

    Args:
        reader: whose keys and defaults count (:data:`~ckconv.families.keys.TAKERS`).
        given: parameters that are known.

    Attributes:
        stated: those that the source says itself.
    """

    def __init__(
        self, family: Family, source: Source, reader: str = "", given: Mapping[str, Any] | None = None
    ) -> None:
        self._family, self._source = family, source
        self._reader = reader or ("transformers" if source.format == "hf" else "llama_cpp")
        self._known: dict[str, Any] = dict(given or {})
        self._open: list[str] = []
        self.stated: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter(self._family.parameters)

    def __len__(self) -> int:
        return len(self._family.parameters)

    def __getitem__(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        if name in self._open:
            raise ParameterError(f"parameter {name!r} depends on itself: {' -> '.join((*self._open, name))}")
        parameter = self._family.parameters[name]
        self._open.append(name)
        try:
            self._known[name] = self._read(parameter)
        except ExpressionError as error:
            if self._family.path.parent != FOLDER:
                raise  # whoever wrote it is told of the expression
            raise ParameterError(self._unread(parameter, error)) from None
        finally:
            self._open.pop()
        return self._known[name]

    def _unread(self, parameter: Parameter, error: ExpressionError) -> str:
        """Message on keys that give no value for a parameter."""
        followed = [self._family.parameters[one] for one in sorted(error.names) if one in self]
        for rows in ([parameter], followed) if error.why else ([parameter, *followed],):
            cells = [cell for row in rows for cell in row.key_cells(self._source.format) if self._looks_at(cell)]
            stated = {cell.key: self._source.value(cell.key) for cell in cells if self._source.has(cell.key)}
            if stated:
                break
        values = ", ".join(f"{key} = {reprlib.repr(value)}" for key, value in stated.items())
        return f"{values or parameter.name}: {error.why or f'no {parameter.name} follows from it'}"

    def _read(self, parameter: Parameter) -> Any:
        if parameter.value is not None:
            return parameter.value.value(self)
        cells = [cell for cell in parameter.cells.get(self._source.format, ()) if self._looks_at(cell)]
        found: dict[str, Any] = {}
        for cell in sorted(cells, key=lambda cell: cell.instead):
            if cell.kind != "fixed" and not (cell.instead and found):
                value = self._cell(cell, parameter)
                found |= {} if value is None else {cell.key or cell.tensor: value}
        distinct = list(found.items())
        for key, value in distinct[1:]:
            if value != distinct[0][1]:
                stated = ((name, self._source.value(name)) for name in (distinct[0][0], key))  # as the source has them
                raise ParameterError(", ".join(f"{n} is {found[n] if it is None else it!r}" for n, it in stated))
        if distinct:
            self.stated.add(parameter.name)
            return distinct[0][1]
        for cell in cells:
            if cell.kind == "fixed" and cell.expression is not None:
                return cell.expression.value(self)
        if parameter.optional and any(cell.key and self._source.has(cell.key) for cell in cells):
            return None
        if self._reader in parameter.defaults:
            return parameter.defaults[self._reader].value(self)
        if parameter.optional:
            return None
        keys = " or ".join(cell.key for cell in cells if cell.key)
        raise ParameterError(f"{keys or parameter.name} is missing")

    def _looks_at(self, cell: ParameterCell) -> bool:
        return not cell.unread and (self._reader == "llama_cpp" or READERS[self._reader][0] in cell.readers)

    def _cell(self, cell: ParameterCell, parameter: Parameter) -> Any:
        """Value of a single cell, or ``None``."""
        if cell.kind in ("present", "absent"):
            return self._there(cell)
        if cell.kind == "shape":
            shape = self._source.shape(self._named(cell.tensor))
            size = shape[cell.axis] if shape is not None else None
            return size if size is None or cell.read is None else with_it(cell.read, size, self)
        tensor = cell.kind == "tensor"
        stored: Any = self._numbers(cell.tensor) if tensor else self._source.value(cell.key)
        if stored is None:
            return None
        if stored == 0 and cell.key in ZERO_IS_NONE[:2] and self._source.format == "gguf":
            stored = 1.0
        typed = self._source.format != "hf"
        several = typed and isinstance(stored, list)  # a list of a GGUF may hold an infinity: Gemma 3n's does
        for number in stored if isinstance(stored, list) else [stored]:
            no_number = isinstance(number, float) and not math.isfinite(number) and not (several and math.isinf(number))
            if no_number or (typed and cell.type.startswith("f32") and isinstance(number, bool | str)):
                raise ParameterError(f"{cell.key} must be a finite number, got {number!r}")
        if isinstance(stored, list) and parameter.is_single and (cell.read is None or "it" in cell.read.names):
            words = _TYPES.get(parameter.kind, ((), "one value"))[1]
            raise ParameterError(f"{cell.key} must be {words}, got {reprlib.repr(stored)}")
        if typed and cell.type in ("u32", "u64") and isinstance(stored, int) and stored < 0:
            raise ParameterError(f"{cell.key} is {stored}, and no such number is below 0")
        of_layers = several and cell.key.rpartition(".")[2] in _OF_LAYERS
        layers = self._source.value("block_count") if of_layers else None
        if isinstance(layers, int) and len(stored) != layers:  # llama_model_loader::get_key_or_arr
            count = counted(len(stored), "number")
            raise ParameterError(f"{cell.key} has {count}, and llama.cpp wants one for {counted(layers, 'layer')}")
        if typed and cell.type.endswith("[]") and isinstance(stored, bool):
            raise ParameterError(f"{cell.key} must be a list or a number, got {stored}")
        if cell.words:
            stored = [_own_word(cell, item) for item in stored] if isinstance(stored, list) else _own_word(cell, stored)
        if cell.read is not None:
            value = self._shortest(cell, with_it(cell.read, stored, self), stored)
            return _checked(cell.key, value, parameter.kind) if value is stored and isinstance(value, str) else value
        if isinstance(stored, list):
            kind = parameter.kind_of_items
            if kind not in _TYPES or (stored and kind != "f32"):  # one for each layer, which no f32 has
                return [_checked(cell.key, item, kind) for item in stored]
        return _checked(cell.key, stored, parameter.kind)

    def _numbers(self, tensor: str) -> list[float] | None:
        """Values of a stored vector, with ``{n}`` the same in every layer."""
        if "{n}" not in tensor:
            return self._source.numbers(tensor)
        found = [self._source.numbers(tensor.replace("{n}", str(n))) for n in range(min(self["layers"], MAX_LAYERS))]
        if any(numbers != found[0] for numbers in found):
            raise ParameterError(f"{tensor} is not the same in every layer")
        return found[0] if found else None

    def _shortest(self, cell: ParameterCell, value: Any, stored: Any) -> Any:
        """Shortest decimal that a GGUF stores alike: 1.5, not 1.4999999."""
        if cell.type != "f32" or not isinstance(value, float) or cell.write is None:
            return value
        candidates = (float(f"{value:.{digits}g}") for digits in range(6, 17))
        try:
            return next((it for it in candidates if not differ(with_it(cell.write, it, self), stored)), value)
        except ExpressionError:  # of a file that has other keys than are written
            return value

    def _there(self, cell: ParameterCell) -> Any:
        """Whether the tensor is in the file, with ``{n}`` in every layer."""
        layers = range(min(self["layers"], MAX_LAYERS)) if "{n}" in cell.tensor else ()
        names = [cell.tensor.replace("{n}", str(n)) for n in layers] or [cell.tensor]
        present = [(self._source.shape(self._named(name)) is not None) == (cell.kind == "present") for name in names]
        return with_it(cell.read, present, self) if cell.read is not None else present[0]

    def _named(self, tensor: str) -> str:
        """A tensor's name with the parameters that stand in braces."""
        try:
            return _HOLE.sub(lambda hole: str(self[hole[1]]), tensor)
        except KeyError as error:
            raise ParameterError(f"{tensor}: there is no parameter {error}") from None


def _own_word(cell: ParameterCell, value: Any) -> Any:
    return cell.words.get(value, value) if isinstance(value, str) else value


#: Type of a parameter -> the numbers and words that it may be.
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "f32": ((int, float), "a finite number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "a word"),
    "u32": ((int,), "a whole number"),
    "i32": ((int,), "a whole number"),
    "u64": ((int,), "a whole number"),
}


def _checked(key: str, value: Any, kind: str) -> Any:
    """``value`` as the parameter's type."""
    if kind not in _TYPES:
        return value
    types, words = _TYPES[kind]
    right: bool = isinstance(value, types) and (bool in types or not isinstance(value, bool))
    if not right:
        raise ParameterError(f"{key} must be {words}, got {value!r}")
    if kind != "f32":
        return value
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ParameterError(f"{key} must be {words}, got {value!r}")
    return number


def with_it(expression: Expression, it: Any, values: Mapping[str, Any]) -> Any:
    """The value of an expression about ``it``."""
    return expression.value(with_value("it", it, values))


def with_value(name: str, value: Any, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters and one more name."""
    return ChainMap({name: value}, values)  # type: ignore[arg-type]  # nothing is put into it


def scope_of(family: Family, config: ModelConfig) -> Mapping[str, Any]:
    """Parameters of a model, completed by llama.cpp's or other defaults."""
    return _Scope(family, config.scope, config.own)


class _Scope(Mapping[str, Any]):
    def __init__(self, family: Family, known: Mapping[str, Any], own: Collection[str]) -> None:
        self._family, self._known, self._own = family, dict(known), own

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._family.parameters, *self._known)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> Any:
        row = self._family.parameters.get(name)
        if self._known.get(name) is None and row is not None and name not in self._own:
            taken = [cell.expression for cell in row.cells.get("gguf", ()) if cell.kind == "fixed"]
            default = row.value or next(iter((*taken, row.defaults.get("llama_cpp"))), None)
            self._known[name] = default.value(self) if default is not None else None
        return self._known[name]


class NewKeys(NamedTuple):
    """Keys and tensors that a format has for parameters.

    Attributes:
        entries: key -> (type, value); a document's keys are dotted paths and their type is of no account.
        tensors: name -> numbers, of parameters that are a tensor.
        refused: parameters whose loader takes another value for granted: name -> (value, what the loader takes).
    """

    entries: Mapping[str, tuple[str, Any]] = {}
    tensors: Mapping[str, Sequence[float]] = {}
    refused: Mapping[str, tuple[Any, Any]] = {}


def nested(entries: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """A document whose keys have these paths, dotted."""
    document: dict[str, Any] = {}
    for path, (_, value) in entries.items():
        *tables, key = path.split(".")
        table = document
        for name in tables:
            table = table.setdefault(name, {})
        table[key] = value
    return document


def write(family: Family, values: Mapping[str, Any], format: str, stated: Collection[str] = ()) -> NewKeys:
    """Write parameters in ``format``.

    Args:
        stated: parameters that the source says itself.

    Raises:
        ExpressionError: an expression of the file has no value.
    """
    entries: dict[str, tuple[str, Any]] = {}
    tensors: dict[str, Sequence[float]] = {}
    refused: dict[str, tuple[Any, Any]] = {}
    scope = with_value("stated", list(stated), values)
    for name, parameter in family.parameters.items():
        value = values[name] if parameter.cells.get(format) else None
        for cell in parameter.cells.get(format, ()):
            if cell.kind == "fixed" and cell.expression is not None and not cell.folded:
                taken = cell.expression.value(scope)
                if differ(value, taken):
                    refused[name] = (value, taken)
            if cell.kind not in ("key", "tensor") or cell.alias or (cell.when and not cell.when.value(scope)):
                continue
            try:
                stored = _stored(cell, value, scope)
            except ExpressionError as error:
                raise ExpressionError(str(error), error.why, error.names | {name}) from None
            if cell.kind == "tensor" and stored is not None:
                if not all(isinstance(number, int | float) for number in stored):
                    raise ExpressionError(f"{name} is {value!r}, and no number", names=frozenset({name}))
                layers = range(values["layers"]) if "{n}" in cell.tensor else (0,)
                tensors |= {cell.tensor.replace("{n}", str(n)): stored for n in layers}
            elif cell.kind == "key" and (stored is not None or format == "hf"):
                entries[cell.key] = (cell.type, stored)
    return NewKeys(entries, tensors, refused)


def _stored(cell: ParameterCell, value: Any, values: Mapping[str, Any]) -> Any:
    words = {word: own for own, word in cell.words.items()}
    several = isinstance(value, list | tuple)
    stored = [words.get(item, item) if isinstance(item, str) else item for item in value] if several else value
    stored = words.get(stored, stored) if isinstance(stored, str) else stored
    if cell.write is None:
        return stored
    return with_it(cell.write, stored, values)


def differ(one: Any, other: Any) -> bool:
    """Whether values differ, numbers compared as float32."""
    if isinstance(one, float) or isinstance(other, float):
        try:
            return struct.pack("<f", one) != struct.pack("<f", other)
        except (struct.error, OverflowError):
            return bool(one != other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return list(one) != list(other)
    return bool(one != other)


__all__ = ["ExpressionError", "NewKeys", "ParameterError", "Source", "Values", "write"]


# -- ModelConfig -> hyper-parameter keys of a GGUF, as llama.cpp's -----------------------------------------------------

#: The version of ggml's block types, which changed last in 2023 (``GGML_QNT_VERSION`` of ``ggml.h``).
_QUANTIZATION_VERSION = 2

#: How keys on the importance matrix begin.
IMPORTANCE = "quantize.imatrix."

#: How a repository's directory in a download cache begins.
_CACHED = "models--"

_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"))


def own_document(config: ModelConfig) -> Mapping[str, Any]:
    """Source document with the keys of its text part on top."""
    return text_on_top(config.raw)


#: Hyper-parameters in the order of files that were written before; any other key comes behind them. Nothing depends on
#: the order.
_ORDER = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.freq_base", "rope.freq_base_swa",
    "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "expert_count", "expert_used_count",
    "expert_feed_forward_length", "attention.key_length", "attention.value_length", "vocab_size",
    "rope.dimension_count", "attention.sliding_window", "final_logit_softcapping",
)  # fmt: skip


def stated_by(config: ModelConfig, family: Family) -> list[str]:
    """Parameters that the source's own document says."""
    document = own_document(config)
    return [
        name
        for name, row in family.parameters.items()
        if any(document.get(cell.key) is not None for cell in row.key_cells("hf"))
    ]


def number_tensors(config: ModelConfig, family: Family) -> Mapping[str, Sequence[float]]:
    """Tensors that are hyper-parameters: name -> numbers."""
    return write(family, scope_of(family, config), "gguf").tensors


def model_keys(config: ModelConfig, family: Family, context: int) -> dict[str, Value]:
    """``{arch}.*`` keys in order, for a changed context length.

    A scaling of RoPE must be one that :func:`ckconv.formats.gguf.entries.engine_reasons` does not refuse.
    """
    entries = dict(write(family, scope_of(family, config), "gguf", stated_by(config, family)).entries)
    scaling = config.rope_scaling or {}
    if scaling.get("rope_type") == "yarn":
        for name in ("beta_fast", "beta_slow"):
            if scaling.get(name) is not None:
                entries[f"rope.scaling.yarn_{name}"] = "f32", scaling[name]
    return {**keys_of_entries(family, entries), f"{family.gguf}.context_length": scalar("u32", context)}


def keys_of_entries(family: Family, entries: Mapping[str, tuple[str, Any]]) -> dict[str, Value]:
    """Keys with their architecture, in order."""
    names = sorted(entries, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    found: dict[str, Value] = {}
    for name in names:
        try:
            found[full_key(family.gguf, name)] = _value(*entries[name])
        except (struct.error, OverflowError, ValueError, TypeError, IndexError):
            type, value = entries[name]
            why = f"{full_key(family.gguf, name)} would be {reprlib.repr(value)}, which no {type} holds"
            of = {
                one.name for one in family.parameters.values() if name in {cell.key for cell in one.key_cells("gguf")}
            }
            raise ExpressionError(why, why, frozenset(of)) from None
    return found


def _value(type: str, value: Any) -> Value:
    """A value in its key's type, or a list of such."""
    if isinstance(value, list | tuple):
        if type == "bool[]" and not all(isinstance(item, bool) for item in value):
            raise TypeError(type)
        return array("bool" if isinstance(value[0], bool) else type.removesuffix("[]"), list(value))
    if type.endswith("[]"):
        raise TypeError(type)
    return scalar(type, float(value) if type == "f32" else value if type in ("bool", "str") else int(value))


def general_keys(family: Family, name: str, size_label: str, kind: str = "model") -> dict[str, Value]:
    """Keys at the head of a GGUF."""
    return {
        "general.architecture": scalar("str", family.gguf),
        "general.type": scalar("str", kind),
        **({"general.name": scalar("str", name)} if name else {}),
        "general.size_label": scalar("str", size_label),
    }


def type_keys(file_type: int) -> dict[str, Value]:
    """Keys on the types of the tensors."""
    return {
        "general.file_type": scalar("u32", file_type),
        "general.quantization_version": scalar("u32", _QUANTIZATION_VERSION),
    }


def importance_keys(file: str, entries: int, dataset: str, chunks: int) -> dict[str, Value]:
    """Keys on the importance matrix, as ``quantize.cpp`` writes them."""
    keys = {"file": scalar("str", _cut(file))}
    keys |= {"dataset": scalar("str", _cut(dataset))} if dataset else {}
    keys |= {"entries_count": scalar("u32", entries)}
    keys |= {"chunks_count": scalar("u32", chunks)} if chunks else {}
    return {f"{IMPORTANCE}{key}": value for key, value in keys.items()}


def _cut(text: str) -> str:
    """As much as llama.cpp keeps of it (``llama_model_kv_override``)."""
    return text.encode(errors="replace")[:127].decode(errors="ignore")


def size_label(parameters: int, experts: int, in_experts: int) -> str:
    """``297K``, ``7B``, ``8x7B``: count of parameters as a label.

    Args:
        parameters: all of them.
        experts: how many experts a layer has; 0 for none.
        in_experts: parameters of all experts together.
    """
    count = parameters - in_experts + in_experts // experts if experts else parameters
    unit, letter = next(((u, letter) for u, letter in _UNITS if count > u), (10**3, "K"))
    scaled = count / unit
    digits = max(2 - len(str(round(scaled)).lstrip("0")), 0)
    return f"{f'{experts}x' if experts else ''}{scaled:.{digits}f}{letter}"


def display_name(text: str) -> str:
    """``llama-tied-bf16`` -> ``Llama Tied Bf16``, as llama.cpp names it."""
    words = text.strip().replace("-", " ").replace("_", " ").split()
    return " ".join(word.title() if word.islower() and not word[0].isdigit() else word for word in words)


def directory_name(path: Path) -> str:
    """Name of the source's directory, or of a cached repository.

    The cache is ``models--OWNER--NAME/snapshots/REVISION/FILE -> ../../blobs/HASH`` (huggingface_hub, "Understand
    caching").
    """
    resolved = path.resolve()
    for place in (path.absolute(), resolved):
        for repository, inside in pairwise(place.parts):
            if repository.startswith(_CACHED) and inside in ("snapshots", "blobs"):
                owner, _, name = repository.removeprefix(_CACHED).partition("--")
                return name or owner
    return resolved.name if resolved.is_dir() else resolved.parent.name
