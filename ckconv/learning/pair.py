"""Checkpoint and GGUF of one model: keys, and tensors by pattern."""

from __future__ import annotations

import math
import os
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ckconv.core import config, layouts, metadata
from ckconv.core.tensors import StoredTensor, TensorIndex
from ckconv.families import axes as shapes, expressions, huggingface_config, keys
from ckconv.families.schema import Cell, Family, stored_higher
from ckconv.io.files import Files
from ckconv.quant.codec import from_float32
from ckconv.quant.convert import decode, shifted

# -- Checkpoint and GGUF of one model: keys, and tensors by pattern ----------------------------------------------------

#: Types whose values are compared.
FLOATS = ("F32", "F16", "BF16")

#: How far -exp, and 1 added and taken away, of two libraries are apart.
NEAR = 2e-6

#: What is read at once, and how much of it is kept in memory; bytes of the largest block.
_PAGE, _PAGES, _BLOCK = 1 << 14, 2048, 512

#: How far rows of a quantized tensor, and all that was sampled of it, may be from the values: part of their square.
MAX_DISTANCE = 0.19

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
        self.document = dict(huggingface_config.text_config(metadata.document_of(checkpoint.metadata)))
        self.flat = {key: value for key, value in huggingface_config.flat(self.document).items() if value is not None}
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
    return config.shortest_float32(value) if isinstance(value, float) else value


def _type(found: Any) -> str:
    return re.sub(r"arr\[(\w+)\]", r"\1[]", found.type)


class Numbers:
    """Values of stored tensors at positions, by positioned reads of pages."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._pages: dict[tuple[Path, int], bytearray] = {}
        self.nbytes = 0

    def at(self, tensor: StoredTensor, positions: np.ndarray) -> np.ndarray:
        """Float32 values, decoded if quantized, at positions in stored order."""
        blocks, index = np.unique(positions // tensor.dtype.block, return_inverse=True)
        decoded = decode(self._stored(tensor, blocks), tensor.dtype)
        return np.asarray(decoded[index, positions % tensor.dtype.block])

    def _stored(self, tensor: StoredTensor, positions: np.ndarray) -> np.ndarray:
        """Bytes of blocks, or of elements: ``[n, bytes]``."""
        width, path = tensor.dtype.size, tensor.extent.path
        starts = positions.astype(np.int64) * width + tensor.extent.offset
        out = np.empty((len(positions), width), np.uint8)
        for page in np.unique(starts // _PAGE).tolist():
            selected = np.flatnonzero(starts // _PAGE == page)
            raw = np.frombuffer(self._page(path, page), np.uint8)
            out[selected] = raw[(starts[selected] - page * _PAGE)[:, None] + np.arange(width)]
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


def distances(ours: np.ndarray, decoded: np.ndarray) -> np.ndarray:
    """Distance of rows from decoded ones, as a part of their variance."""
    mean = ours.mean(axis=-1, keepdims=True)
    whole = np.square(ours - mean).sum(axis=-1) + np.square(ours).sum(axis=-1) * 1e-3
    found = np.square(ours - decoded).sum(axis=-1) / np.maximum(whole, np.finfo(np.float32).tiny)
    return np.asarray(np.where(np.isnan(found), np.inf, found))


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
        self._assumed: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
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

    def assume(self, name: str, value: Any) -> None:
        """Take a value from elsewhere and forget what followed without it."""
        self._assumed[name] = value
        self._known = dict(self._assumed)
        self._sizes.clear()

    def _read(self, row: keys.Parameter) -> Any:
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

    def _cell(self, cell: keys.ParameterCell, format: str) -> Any:
        pair = self.pair
        if cell.kind == "key":
            stated = pair.flat if format == "hf" else pair.keys
            value = stated.get(cell.key, pair.document.get(cell.key) if format == "hf" else None)
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

    def with_it(self, expression: expressions.Expression, it: Any) -> Any:
        """The expression over a stored or a read value."""
        return expression.value(ChainMap({"it": it, "stated": list(self)}, self))  # type: ignore[arg-type]

    def size(self, letter: str) -> int:
        """Elements of an axis.

        Raises:
            AxesError: it has no size.
        """
        if letter not in self._sizes:
            expression = self.family.axes.get(letter)
            value = expression.value(self) if expression is not None else None
            if value is None or isinstance(value, bool):
                raise shapes.AxesError(letter)
            self._sizes[letter] = int(value)
        return self._sizes[letter]

    def kind(self, expression: expressions.Expression, layer: int) -> bool:
        """Whether a layer is of a kind."""
        value = expression.value(_Kinds(self, layer))
        return bool(value[layer] if isinstance(value, list) else value)


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


# -- Source of each tensor of a GGUF, found by values, not by names ----------------------------------------------------

# A hypothesis is a row of a shipped family: axes of the canonical tensor, and how either format stores them. It is
# compared with some rows of both tensors; what no row explains is not traced.

#: Elements of each sampled row that are compared.
_COLUMNS = 64

#: So many times more of a quantized tensor: what is near may be so by chance.
_MORE = 8


#: Both moves of a form in a pair, and the number of experts.
Moves = tuple[shapes.Move, shapes.Move, int]


class Form(NamedTuple):
    """Layout of a canonical tensor in both formats, from a shipped row."""

    family: str
    row: str
    axes: shapes.Shape
    fused: shapes.Shape
    hf: Cell
    gguf: Cell

    @property
    def key(self) -> tuple[Any, ...]:
        """Identity of forms that say the same of values."""
        return (
            self.axes,
            self.hf.axes,
            self.hf.part if self.hf.axes else 0,
            bool(self.hf.stack),
            self.gguf.axes,
            self.gguf.part if self.gguf.axes else 0,
            self.gguf.value,
        )


class Hit(NamedTuple):
    """A tensor of the checkpoint that has the values, in a form."""

    source: str
    form: Form


class Name(NamedTuple):
    """Name in a family file: module, and ``weight`` or ``bias``."""

    module: str
    kind: str

    @property
    def whole(self) -> str:
        """The full name."""
        return f"{self.module}.{self.kind}" if self.kind else self.module


def name_in(name: str, root: str, layer: str) -> Name:
    """The name behind the prefixes of a family file."""
    module, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        module, kind = name, ""
    if module.startswith(layer):
        return Name("L." + module.removeprefix(layer), kind)
    if root and module.startswith(root):
        return Name("M." + module.removeprefix(root), kind)
    return Name(module, kind)


def gguf_name(pattern: str) -> Name:
    """The name of a GGUF's tensor as family files write it."""
    return name_in(pattern, "", "blk.{n}.")


def rows_of(family: Family, pattern: str, *, near: bool = True) -> list[tuple[str, Cell]]:
    """Rows of a family, with the cell that has this name in GGUF.

    Args:
        near: the row of the module counts, too, where the name is that of its bias, or has none behind it.
    """
    name = gguf_name(pattern)
    spelled = ["=" + name.whole, *([name.module] if name.kind else [])]
    if near:
        spelled += ["=" + name.module, "=" + name.module + ".bias", "=" + name.module + ".weight", name.module]
    by_name = _by_name(family)
    return next((by_name[one] for one in spelled if one in by_name), [])


@lru_cache(maxsize=256)
def _by_name(family: Family) -> Mapping[str, list[tuple[str, Cell]]]:
    """Name in GGUF -> rows of a family with the cell that has it."""
    by_name: dict[str, list[tuple[str, Cell]]] = {}
    for row in family.tensors.values():
        for cell in row.cells["gguf"]:
            by_name.setdefault(cell.name, []).append((row.name, cell))
    return by_name


class Traces(NamedTuple):
    """Hits of every pattern, and the patterns without.

    Attributes:
        found: pattern of a GGUF's tensor -> what has its values.
        untraced: patterns that nothing has.
    """

    found: Mapping[str, Sequence[Hit]]
    untraced: Sequence[str]


class Tracer:
    """Traces the tensors of some pairs."""

    def __init__(
        self, pairs: Sequence[Pair], families: Mapping[str, Family], numbers: Numbers, rows: int, guesses: Any
    ) -> None:
        self._pairs, self._families, self._numbers, self._rows = pairs, families, numbers, rows
        self._guesses: Mapping[tuple[str, int], Guess] = guesses
        self._by_name: dict[str, list[Form]] = {}
        self._every: dict[tuple[Any, ...], list[Form]] = {}
        for form in self._forms():
            same = self._every.setdefault(form.key, [])
            same.append(form)
        for same in self._every.values():
            for form in same:
                self._by_name.setdefault(form.gguf.name, []).append(form)
        self._known: dict[tuple[Any, ...], np.ndarray] = {}
        self._moved: dict[tuple[int, int, bool], Moves | None] = {}
        self._alike: dict[tuple[Any, ...], shapes.Move] = {}

    def _forms(self) -> Iterator[Form]:
        for family in self._families.values():
            for row in family.tensors.values():
                for cell in row.cells["gguf"]:
                    for ours in row.cells["hf"]:
                        if ours.packed or ours.by:
                            continue
                        form = Form(family.name, row.name, row.axes, row.fused_axes, ours, cell)
                        yield form
                        stored = ours.axes or (row.axes if len(row.axes) == 2 else ())
                        if len(stored) == 2 and not ours.stack:  # a class that multiplies from the left
                            yield form._replace(hf=ours._replace(axes=tuple(reversed(stored))))
                        stored = ours.axes or row.axes
                        if len(stored) == 1 and shapes.segment_count(stored) == 1 and not ours.stack:
                            one = ours._replace(axes=(("1",), *stored))
                            yield form._replace(hf=one)
                            yield form._replace(hf=one, gguf=cell._replace(axes=(("1",), *(cell.axes or row.axes))))

    def trace(self) -> Traces:
        """Trace every tensor."""
        found: dict[str, list[Hit]] = {}
        untraced = []
        patterns = list(dict.fromkeys(pattern for pair in self._pairs for pattern in pair.target))
        for pattern in patterns:
            hits = self._of(pattern)
            if hits:
                found[pattern] = hits
            elif not self._computed(pattern):
                untraced.append(pattern)
        return Traces(found, untraced)

    def _computed(self, pattern: str) -> bool:
        """Whether the tensor is made of the configuration in every family."""
        name = gguf_name(pattern)
        if "=" + name.whole in self._by_name or name.module in self._by_name:
            return False
        return any(
            any(cell.tensor == pattern for row in family.parameters.values() for cell in row.cells.get("gguf", ()))
            or any(cell.name == f"={pattern}" and not row.cells["hf"] for row in family.tensors.values()
                   for cell in row.cells["gguf"])
            for family in self._families.values()
        )  # fmt: skip

    def _of(self, pattern: str) -> list[Hit]:
        self._known.clear()
        name = gguf_name(pattern)
        named = [*self._by_name.get("=" + name.whole, ()), *self._by_name.get(name.module, ())]
        named += self._by_name.get(f"={name.module}.bias", ())
        for forms in (named, [form for same in self._every.values() for form in same[:3]]):
            hits = list(self._hits(pattern, name.kind, forms))
            if hits:
                return hits
        return []

    def _hits(self, pattern: str, kind: str, forms: Sequence[Form]) -> Iterator[Hit]:
        pair = next(pair for pair in self._pairs if pattern in pair.target)
        layer = max(pair.target[pattern])
        size = math.prod(pair.target[pattern][layer][0].shape)
        for source, layers in pair.source.items():
            here = layers.get(layer)
            if here is None:
                continue
            count = sum(math.prod(tensor.shape) for tensor in here)
            if not size <= count * 4 or count > size * 6:
                continue
            bias = kind == "bias" and source.endswith(".bias")
            right: dict[tuple[Any, ...], bool] = {}
            for form in forms:
                if bool(form.hf.stack) != ("{E}" in source):
                    continue
                moves = tuple(self._moves(form, n, bias) for n in range(len(self._pairs)))
                key = (*moves, form.gguf.value)
                if key not in right:
                    right[key] = self._holds(form, pattern, source, bias)
                if right[key]:
                    yield Hit(source, form)

    def _holds(self, form: Form, pattern: str, source: str, bias: bool) -> bool:
        """Whether a form holds in some layers of every pair."""
        for number, pair in enumerate(self._pairs):
            layers = pair.target.get(pattern, {})
            if layers and source not in pair.source:
                return False
            ours = pair.source.get(source, {})
            if any(n not in ours for n in layers):
                return False
            moves = self._moves(form, number, bias)
            if layers and moves is None:
                return False
            for n in sorted(layers, key=lambda n: (n not in (max(layers), min(layers)), n))[:3]:
                assert moves is not None
                if not self._same(ours[n], layers[n][0], moves, form.gguf.value):
                    return False
        return True

    def _moves(self, form: Form, number: int, bias: bool) -> Moves | None:
        key = (id(form), number, bias)
        if key not in self._moved:
            self._moved[key] = self._computed_moves(form, number, bias)
        return self._moved[key]

    def _computed_moves(self, form: Form, number: int, bias: bool) -> Moves | None:
        axes, ours, other = form.axes, form.hf.axes, form.gguf.axes
        if bias and len(axes) > 1:
            last = axes[-1]
            ours, other = (shape and tuple(p for p in shape if p != last) for shape in (ours, other))
            axes = axes[:-1]
        guess = self._guesses[form.family, number]
        try:
            single = axes[1:] if form.hf.stack else axes
            parts = [cell.part if stored and shapes.segment_count(stored) > 1 else 0
                     for cell, stored in ((form.hf, ours), (form.gguf, other))]  # fmt: skip
            experts = shapes.sizes(axes[:1], guess.size)[0] if form.hf.stack else 1
            return (
                self._move(ours or single, single, parts[0], guess),
                self._move(other or axes, axes, parts[1], guess),
                experts,
            )
        except (shapes.AxesError, ArithmeticError, LookupError, TypeError, ValueError):
            return None

    def _move(self, stored: shapes.Shape, canonical: shapes.Shape, part: int, guess: Guess) -> shapes.Move:
        """Move between two shapes, computed once for all families of these sizes."""
        named = sorted({one.removeprefix("_") for shape in (stored, canonical) for one in shapes.letters(shape)})
        key = (stored, canonical, part, *((one, guess.size(one)) for one in named if not one.isdigit()))
        if key not in self._alike:
            self._alike[key] = shapes.move(stored, canonical, part, guess.size)
        return self._alike[key]

    def _same(
        self,
        ours: Sequence[StoredTensor],
        target: StoredTensor,
        moves: Moves,
        value: str | float,
    ) -> bool:
        one, other, experts = moves
        if len(ours) != experts or tuple(ours[0].shape) != tuple(one.stored):
            return False
        if squeezed(target.shape) != squeezed(other.stored) or (target.shape[0] == 1) != (other.stored[0] == 1):
            return False
        if not all(tensor.dtype.name in FLOATS for tensor in ours):
            return False
        blocks = target.dtype.block > 1
        count = math.prod(size for size, _ in other.axes)
        if count != experts * math.prod(size for size, _ in one.axes):
            return False
        positions = sampled(count, self._rows * (_MORE if blocks else 1))
        meant = self._read(target, positions, other)
        per = count // experts
        found = np.empty(len(positions), np.float32)
        for expert in np.unique(positions // per).tolist():
            selected = positions // per == expert
            found[selected] = self._read(ours[expert], positions[selected] % per, one)
        if blocks:
            return not value and bool(distances(found, meant) <= MAX_DISTANCE)
        shift = stored_higher(value)
        if shift in layouts.EXPONENTIALS:
            return bool(np.allclose(shifted(found, shift), meant, rtol=NEAR, atol=0))
        found = found + np.float32(shift) if shift else found
        rounded, _ = from_float32(found, target.dtype)
        return bool(np.array_equal(decode(rounded, target.dtype), meant, equal_nan=True))

    def _read(self, tensor: StoredTensor, positions: np.ndarray, move: shapes.Move) -> np.ndarray:
        key = (tensor.extent, move, len(positions), int(positions[-1]))
        if key not in self._known:
            sizes = [size for size, _ in move.axes] or [1]
            indices = np.unravel_index(positions, sizes)
            stored = np.full(len(positions), move.first, np.int64)
            for index, (_, stride) in zip(indices, move.axes, strict=False):
                stored += index * stride
            self._known[key] = self._numbers.at(tensor, stored)
        return self._known[key]


def squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """Shape without axes of one."""
    return tuple(size for size in shape if size != 1)


def sampled(count: int, rows: int) -> np.ndarray:
    """Positions of a tensor to compare: all, or runs from all over."""
    if count <= rows * _COLUMNS * 4:
        return np.arange(count)
    random = np.random.default_rng(0)
    starts = np.unique(np.r_[0, count - _COLUMNS, random.integers(0, count - _COLUMNS, rows)])
    return np.unique((starts[:, None] + np.arange(_COLUMNS)).reshape(-1))


def written(shape: shapes.Shape) -> str:
    """A shape as family files write it."""

    def term(one: shapes.Term) -> str:
        if isinstance(one, str):
            return one
        return "(" + "|".join(" ".join(map(term, part)) for part in one.parts) + ")"

    return " ".join(term(p[0]) if len(p) == 1 else "(" + " ".join(map(term, p)) + ")" for p in shape)


def plainness(form: Form) -> tuple[int, int]:
    """Rank of equivalent forms: fewest numbers and letters first."""
    text = written(form.axes) + written(form.gguf.axes or ()) + written(form.hf.axes or ()) + str(form.gguf.value)
    return len(re.findall(r"\d", text)), len(text)


__all__ = ["NO_LAYER", "Form", "Hit", "Tracer", "Traces", "gguf_name", "name_in", "plainness", "rows_of", "written"]
