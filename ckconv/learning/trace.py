"""Source of each tensor of a GGUF, found by values, not by names.

A hypothesis is a row of a shipped family: axes of the canonical tensor, and how either format stores them. It is held
against some rows of both tensors; what no row explains is not traced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ckconv.core.layouts import EXPONENTIALS
from ckconv.core.tensors import StoredTensor
from ckconv.families import axes as shapes
from ckconv.families.axes import AxesError, Shape
from ckconv.families.schema import Cell, Family, stored_higher
from ckconv.learning.pair import APART, FLOATS, NEAR, NO_LAYER, Guess, Numbers, Pair, apart, stored_as

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
    axes: Shape
    fused: Shape
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
    by_name: dict[str, list[tuple[str, Cell]]] = {}
    for row in family.tensors.values():
        for cell in row.cells["gguf"]:
            by_name.setdefault(cell.name, []).append((row.name, cell))
    return next((by_name[one] for one in spelled if one in by_name), [])


class Traced(NamedTuple):
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

    def _forms(self) -> Iterator[Form]:
        for family in self._families.values():
            for row in family.tensors.values():
                for theirs in row.cells["gguf"]:
                    for ours in row.cells["hf"]:
                        if ours.packed or ours.by:
                            continue
                        form = Form(family.name, row.name, row.axes, row.fused_axes, ours, theirs)
                        yield form
                        stored = ours.axes or (row.axes if len(row.axes) == 2 else ())
                        if len(stored) == 2 and not ours.stack:  # a class that multiplies from the left
                            yield form._replace(hf=ours._replace(axes=tuple(reversed(stored))))
                        stored = ours.axes or row.axes
                        if len(stored) == 1 and shapes.segment_count(stored) == 1 and not ours.stack:
                            one = ours._replace(axes=(("1",), *stored))
                            yield form._replace(hf=one)
                            yield form._replace(hf=one, gguf=theirs._replace(axes=(("1",), *(theirs.axes or row.axes))))

    def trace(self) -> Traced:
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
        return Traced(found, untraced)

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
        axes, ours, theirs = form.axes, form.hf.axes, form.gguf.axes
        if bias and len(axes) > 1:
            last = axes[-1]
            ours, theirs = (shape and tuple(p for p in shape if p != last) for shape in (ours, theirs))
            axes = axes[:-1]
        guess = self._guesses[form.family, number]
        try:
            single = axes[1:] if form.hf.stack else axes
            parts = [cell.part if stored and shapes.segment_count(stored) > 1 else 0
                     for cell, stored in ((form.hf, ours), (form.gguf, theirs))]  # fmt: skip
            experts = shapes.sizes(axes[:1], guess.size)[0] if form.hf.stack else 1
            return (
                shapes.move(ours or single, single, parts[0], guess.size),
                shapes.move(theirs or axes, axes, parts[1], guess.size),
                experts,
            )
        except (AxesError, ArithmeticError, LookupError, TypeError, ValueError):
            return None

    def _same(
        self,
        ours: Sequence[StoredTensor],
        theirs: StoredTensor,
        moves: Moves,
        value: str | float,
    ) -> bool:
        one, other, experts = moves
        if len(ours) != experts or tuple(ours[0].shape) != tuple(one.stored):
            return False
        if _squeezed(theirs.shape) != _squeezed(other.stored) or (theirs.shape[0] == 1) != (other.stored[0] == 1):
            return False
        if not all(tensor.dtype.name in FLOATS for tensor in ours):
            return False
        blocks = theirs.dtype.block > 1
        count = math.prod(size for size, _ in other.axes)
        if count != experts * math.prod(size for size, _ in one.axes):
            return False
        places = sampled(count, self._rows * (_MORE if blocks else 1))
        meant = self._read(theirs, places, other)
        per = count // experts
        found = np.empty(len(places), np.float32)
        for expert in np.unique(places // per).tolist():
            mine = places // per == expert
            found[mine] = self._read(ours[expert], places[mine] % per, one)
        if blocks:
            return not value and bool(apart(found, meant) <= APART)
        shift = stored_higher(value)
        if shift in EXPONENTIALS:
            return bool(np.allclose(EXPONENTIALS[shift] * np.exp(found), meant, rtol=NEAR, atol=0))
        found = found + np.float32(shift) if shift else found
        return bool(np.array_equal(stored_as(found, theirs.dtype), meant, equal_nan=True))

    def _read(self, tensor: StoredTensor, places: np.ndarray, move: shapes.Move) -> np.ndarray:
        key = (tensor.extent, move, len(places), int(places[-1]))
        if key not in self._known:
            sizes = [size for size, _ in move.axes] or [1]
            indices = np.unravel_index(places, sizes)
            stored = np.full(len(places), move.first, np.int64)
            for index, (_, stride) in zip(indices, move.axes, strict=False):
                stored += index * stride
            self._known[key] = self._numbers.at(tensor, stored)
        return self._known[key]


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def sampled(count: int, rows: int) -> np.ndarray:
    """Places of a tensor to compare: all, or runs from all over."""
    if count <= rows * _COLUMNS * 4:
        return np.arange(count)
    random = np.random.default_rng(0)
    starts = np.unique(np.r_[0, count - _COLUMNS, random.integers(0, count - _COLUMNS, rows)])
    return np.unique((starts[:, None] + np.arange(_COLUMNS)).reshape(-1))


def written(shape: Shape) -> str:
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


__all__ = ["NO_LAYER", "Form", "Hit", "Traced", "Tracer", "gguf_name", "name_in", "plainness", "rows_of", "written"]
