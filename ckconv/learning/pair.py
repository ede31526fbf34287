"""Checkpoint and GGUF of one model: keys, and tensors by pattern."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ckconv.core.config import shortest_float32
from ckconv.core.dtypes import DType
from ckconv.core.metadata import document_of
from ckconv.core.tensors import StoredTensor, TensorIndex
from ckconv.families.axes import AxesError
from ckconv.families.expressions import Expression
from ckconv.families.huggingface_config import flat, text_config
from ckconv.families.keys import Parameter, ParameterCell
from ckconv.families.schema import Family
from ckconv.io.files import Files
from ckconv.quant.convert import decode

#: Types whose values are compared.
FLOATS = ("F32", "F16", "BF16")

#: How far -exp, and 1 added and taken away, of two libraries are apart.
NEAR = 2e-6

#: What is read at once, and how much of it is kept in memory; bytes of the largest block.
_PAGE, _PAGES, _BLOCK = 1 << 14, 2048, 512

#: How far rows of a quantized tensor, and all that was sampled of it, may be from the values: part of their square.
APART = 0.19

#: ``a.layers.3.b.experts.7.c`` -> its pattern, layer and expert.
_LAYER = re.compile(r"(.*?\.)(\d+)(\..*)$")
_EXPERT = re.compile(r"(.*experts\.)(\d+)(\..*)$")

#: Layer of a tensor that is in none.
NO_LAYER = -1

#: Pattern of a name -> layer -> the tensors there: one, or one for each expert.
Tensors = Mapping[str, Mapping[int, Sequence[StoredTensor]]]


class Place(NamedTuple):
    """Pattern, layer and expert in a name."""

    pattern: str
    layer: int
    expert: int | None


def place_of(name: str) -> Place:
    """Split a stored name."""
    found = _LAYER.match(name)
    if found is None:
        return Place(name, NO_LAYER, None)
    rest, expert = found[3], _EXPERT.match(found[3])
    if expert is not None:
        rest = f"{expert[1]}{{E}}{expert[3]}"
    return Place(f"{found[1]}{{n}}{rest}", int(found[2]), int(expert[2]) if expert else None)


def by_pattern(stored: Sequence[StoredTensor]) -> Tensors:
    """Tensors by the pattern of their names."""
    found: dict[str, dict[int, dict[int, StoredTensor]]] = {}
    for tensor in stored:
        place = place_of(tensor.name)
        found.setdefault(place.pattern, {}).setdefault(place.layer, {})[place.expert or 0] = tensor
    return {
        pattern: {n: [experts[e] for e in sorted(experts)] for n, experts in sorted(layers.items())}
        for pattern, layers in found.items()
    }


class Pair:
    """One pair.

    Attributes:
        document: keys of ``config.json``, of a text part its own; ``flat``: by dotted path.
        keys, types: metadata of the architecture, without its prefix, and their types as family files write them.
        source, target: tensors of the checkpoint and of the GGUF.
        doubled: the GGUF has a head of its own, though the checkpoint ties it to the embedding.
        near: its values are not the checkpoint's, but rounded.
    """

    def __init__(self, checkpoint: TensorIndex, model: TensorIndex, *, near: bool = False) -> None:
        self.checkpoint, self.model, self.near = checkpoint, model, near
        self.document = dict(text_config(document_of(checkpoint.metadata)))
        self.flat = {key: value for key, value in flat(self.document).items() if value is not None}
        self.architecture = model.architecture
        prefix = f"{model.architecture}."
        own = {key.removeprefix(prefix): value for key, value in model.metadata.items() if key.startswith(prefix)}
        self.keys = {key: value_of(found) for key, found in own.items()}
        self.types = {key: _type(found) for key, found in own.items()}
        self.source, self.target = by_pattern(checkpoint.stored), by_pattern(model.stored)
        tied = self.document.get("tie_word_embeddings") is True
        self.doubled = tied and "output.weight" in self.target
        if self.doubled:
            self.target = {pattern: layers for pattern, layers in self.target.items() if pattern != "output.weight"}
        self.layers = 1 + max((n for layers in self.target.values() for n in layers), default=NO_LAYER)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.checkpoint.path.name or self.checkpoint.path} and {self.model.path.name}"

    def has(self, key: str) -> bool:
        """Whether the GGUF has a key, or a tensor behind ``=``."""
        if key.startswith("="):
            return any(tensor.name == key[1:] for tensor in self.model.stored)
        return key[1:] in self.model.metadata if key.startswith("/") else key in self.keys

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """Shape of a tensor of the GGUF."""
        place = place_of(tensor)
        found = self.target.get(place.pattern, {}).get(place.layer)
        return found[0].shape if found else None


def value_of(found: Any) -> Any:
    """Metadata value as a list, text or shortest float32 decimal."""
    value = found.value if isinstance(found.value, str | int | float) else found.value.decode()
    return shortest_float32(value) if isinstance(value, float) else value


def _type(found: Any) -> str:
    return re.sub(r"arr\[(\w+)\]", r"\1[]", found.type)


class Numbers:
    """Values of stored tensors at single places, by positioned reads of pages."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._pages: dict[tuple[Path, int], bytearray] = {}
        self.nbytes = 0

    def at(self, tensor: StoredTensor, places: np.ndarray) -> np.ndarray:
        """Float32 values, decoded where quantized, at places in the stored order."""
        if tensor.dtype.block > 1:
            blocks, mine = np.unique(places // tensor.dtype.block, return_inverse=True)
            decoded = decode(self._stored(tensor, blocks), tensor.dtype)
            return np.asarray(decoded[mine, places % tensor.dtype.block])
        return floats(self._stored(tensor, places).reshape(-1), tensor.dtype)

    def _stored(self, tensor: StoredTensor, places: np.ndarray) -> np.ndarray:
        """Bytes of blocks, or of elements: ``[n, bytes]``."""
        width, path = tensor.dtype.size, tensor.extent.path
        starts = places.astype(np.int64) * width + tensor.extent.offset
        out = np.empty((len(places), width), np.uint8)
        for page in np.unique(starts // _PAGE).tolist():
            mine = np.flatnonzero(starts // _PAGE == page)
            raw = np.frombuffer(self._page(path, page), np.uint8)
            out[mine] = raw[(starts[mine] - page * _PAGE)[:, None] + np.arange(width)]
        return out

    def _page(self, path: Path, page: int) -> bytearray:
        """A page, and the first bytes behind it: a block may lie in both."""
        key = (path, page)
        if key not in self._pages:
            if len(self._pages) >= _PAGES:
                self._pages.pop(next(iter(self._pages)))
            end = os.fstat(self._files.fd(path)).st_size
            data = bytearray(min(_PAGE + _BLOCK, end - page * _PAGE))
            self._files.read_into(path, page * _PAGE, data)
            self._pages[key] = data
            self.nbytes += len(data)
        return self._pages[key]


def floats(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """Float32 of stored bytes."""
    if dtype.name == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return raw.view({"F32": "<f4", "F16": "<f2"}[dtype.name]).astype(np.float32)


def apart(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Distance of rows from decoded ones, as a part of their variance."""
    mean = ours.mean(axis=-1, keepdims=True)
    whole = np.square(ours - mean).sum(axis=-1) + np.square(ours).sum(axis=-1) * 1e-3
    found = np.square(ours - theirs).sum(axis=-1) / np.maximum(whole, np.finfo(np.float32).tiny)
    return np.asarray(np.where(np.isnan(found), np.inf, found))


def stored_as(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Float32 values rounded to another type, as converters round them."""
    if dtype.name == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    if dtype.name == "BF16":
        bits = values.view(np.uint32).astype(np.uint64)
        return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)).view(np.float32)
    return values


# -- Values of a family's parameters, as far as a pair says them -------------------------------------------------------

#: What rules of an unknown pair may fail with.
FAILS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Guess(Mapping[str, Any]):
    """The parameters of a family.

    Args:
        only: the format whose word counts, ``hf`` or ``gguf``; "" for both, the checkpoint's first.
    """

    def __init__(self, family: Family, pair: Pair, only: str = "") -> None:
        self.family, self.pair, self._only = family, pair, only
        self._known: dict[str, Any] = {}
        self._told: dict[str, Any] = {}
        self._open: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter(self.family.parameters)

    def __len__(self) -> int:
        return len(self.family.parameters)

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            if name in self._open or name not in self.family.parameters:
                raise KeyError(name)
            self._open.add(name)
            self._known[name] = self._read(self.family.parameters[name])
            self._open.discard(name)
        return self._known[name]

    def told(self, name: str, value: Any) -> None:
        """Take a value from elsewhere and forget what followed without it."""
        self._told[name] = value
        self._known = dict(self._told)

    def _read(self, row: Parameter) -> Any:
        for format in ("hf", "gguf"):
            for cell in row.cells.get(format, ()) if self._only in ("", format) else ():
                try:
                    value = self._cell(cell, format)
                except FAILS:
                    continue
                if value is not None:
                    return value
        for expression in (row.value, row.defaults.get("transformers"), row.defaults.get("llama_cpp")):
            if expression is not None:
                try:
                    return expression.value(self)
                except FAILS:
                    continue
        return None

    def _cell(self, cell: ParameterCell, format: str) -> Any:
        pair = self.pair
        if cell.kind == "key":
            said = pair.flat if format == "hf" else pair.keys
            value = said.get(cell.key, pair.document.get(cell.key) if format == "hf" else None)
            value = cell.words.get(value, value) if isinstance(value, str) else value
            return self.with_it(cell.read, value) if value is not None and cell.read else value
        if format != "gguf":
            return None
        if cell.kind in ("present", "absent"):
            layers = range(pair.layers) if "{n}" in cell.tensor else (0,)
            there = [
                (pair.shape(cell.tensor.replace("{n}", str(n))) is not None) == (cell.kind == "present") for n in layers
            ]
            return self.with_it(cell.read, there) if cell.read else there[0]
        if cell.kind == "shape":
            shape = pair.shape(cell.tensor)
            return shape[cell.axis] if shape else None
        return cell.expression.value(self) if cell.kind == "fixed" and cell.expression else None

    def with_it(self, expression: Expression, it: Any) -> Any:
        """The expression over a stored or a read value."""
        return expression.value(With(self, {"it": it, "stated": list(self)}))

    def size(self, letter: str) -> int:
        """Elements of an axis.

        Raises:
            AxesError: it has no size.
        """
        expression = self.family.axes.get(letter)
        value = expression.value(self) if expression is not None else None
        if value is None or isinstance(value, bool):
            raise AxesError(letter)
        return int(value)

    def kind(self, expression: Expression, layer: int) -> bool:
        """Whether a layer is of a kind."""
        value = expression.value(_Kinds(self, layer))
        return bool(value[layer] if isinstance(value, list) else value)


class With(Mapping[str, Any]):
    """Values, and others in place of some."""

    def __init__(self, values: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        self._values, self._more = values, more

    def __getitem__(self, name: str) -> Any:
        return self._more[name] if name in self._more else self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._more, *self._values))

    def __len__(self) -> int:
        return len(self._more) + len(self._values)


class _Kinds(Mapping[str, Any]):
    """Kinds of layers, and parameters, in one layer."""

    def __init__(self, guess: Guess, layer: int) -> None:
        self._guess, self._layer = guess, layer

    def __getitem__(self, name: str) -> Any:
        if name == "n":
            return self._layer
        if name in self._guess.family.layers:
            value = self._guess.family.layers[name].value(self)
            return value[self._layer] if isinstance(value, list) else value
        return self._guess[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._guess.family.layers, *self._guess))

    def __len__(self) -> int:
        return len(self._guess.family.layers) + len(self._guess)
