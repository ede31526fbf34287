"""Sizes of a model: axes, presence of tensors, positions of rows."""

from __future__ import annotations

import math
import struct
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from ckconv.core.layouts import F32, Axis, DType, Kind as Kinds, Layout, float32, merged, strip
from ckconv.core.lazy import NamedTuple, replace
from ckconv.core.tensors import Tensor, matrix_of, parse
from ckconv.errors import UnsupportedError, quoted
from ckconv.families import axes as shapes, merge
from ckconv.families.expressions import Expression, ExpressionError
from ckconv.families.names import GGUF, NameRule, Part, canonical_pattern, has_bias, heads_of, names_of
from ckconv.families.schema import DRAFTS, MAX_FAMILIES, Engine, Family, TensorRow

# -- Parameters of a model as expressions see them, and sizes of axes --------------------------------------------------


class Scope(Mapping[str, Any]):
    """Given parameters, completed by constants, derived values, defaults."""

    def __init__(self, family: Family, given: Mapping[str, Any]) -> None:
        self._family, self._given = family, given

    def __getitem__(self, name: str) -> Any:
        if name in self._given:
            return self._given[name]
        parameter = self._family.parameters[name]
        for expression in (parameter.value, parameter.defaults.get("transformers")):
            if expression is not None:
                return expression.value(self)
        if parameter.optional:
            return None
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter({**dict.fromkeys(self._family.parameters), **dict.fromkeys(self._given)})

    def __len__(self) -> int:
        return len(self._family.parameters.keys() | self._given.keys())


def layers_of(family: Family, row: TensorRow, scope: Mapping[str, Any]) -> int:
    """In how many layers a row's tensors may be."""
    stack = family.stacks.get(row.name.partition(".")[0])
    if stack is None:
        return int(scope["layers"]) + draft_layers(family, scope)
    count = stack.count.value(scope)
    return len(count) if isinstance(count, list | tuple) else int(count)


def draft_layers(family: Family, scope: Mapping[str, Any]) -> int:
    """Number of layers behind the last that predict further tokens."""
    return int(scope["extra_layers"] or 0) if DRAFTS in family.parameters and scope[DRAFTS] else 0


def layers_with(family: Family, row: TensorRow, scope: Mapping[str, Any]) -> Sequence[int]:
    """Layers that have a row's tensors; a single entry outside of layers."""
    count = layers_of(family, row, scope) if row.in_stack(family.stacks) else 1
    kind = row.layers
    if kind is None:
        return range(count)
    lists = {name: family.layers[name].value(scope) for name in kind.names if "n" not in family.layers[name].names}
    return [n for n in range(count) if _is(family, kind, scope, n, lists)]


def layers_of_nothing(family: Family, scope: Mapping[str, Any]) -> int:
    """How many layers have no tensor at all."""
    rows = [row for row in family.tensors.values() if row.name.startswith("L.") and not row.dropped]
    if any(row.layers is None for row in rows):
        return 0
    return int(scope["layers"]) - len({n for row in rows for n in layers_with(family, row, scope)})


def _is(
    family: Family, kind: Expression, scope: Mapping[str, Any], layer: int, lists: Mapping[str, Any] | None = None
) -> bool:
    """Whether a layer is of a kind, a list over layers or a question of ``n``.

    Args:
        lists: of kinds that do not ask for ``n``, if they are known.
    """
    here = ChainMap({"n": layer}, scope)  # type: ignore[arg-type]
    kinds = {**(lists or {})}
    kinds |= {name: family.layers[name].value(here) for name in kind.names if name not in kinds}
    listed = {name: layer < len(kind) and kind[layer] for name, kind in kinds.items() if isinstance(kind, list | tuple)}
    return bool(kind.value({**kinds, **listed}))


class Sizes:
    """The sizes of one model's axes.

    Args:
        parameters: by the names of the family's file.
    """

    def __init__(self, family: Family, parameters: Mapping[str, Any]) -> None:
        self.family, self.scope = family, Scope(family, parameters)
        self._sizes: dict[int | None, shapes.Size] = {}
        self._layered: dict[shapes.Shape, bool] = {}
        self._layers: dict[str, int] = {}
        self._has: dict[tuple[str, int], bool] = {}
        self._kinds: dict[tuple[int, int | None], tuple[Part, Kind]] = {}

    def of(self, row: TensorRow, layer: int | None) -> shapes.Size:
        """Elements along a row's axes in a layer.

        Raises:
            AxesError: by the function that is returned, the parameters give no whole number of elements.
        """
        number = layer if self._differs(row) else None
        if number not in self._sizes:
            scope = self.scope if number is None else ChainMap({"n": number}, self.scope)  # type: ignore[arg-type]
            self._sizes[number] = cache(lambda letter: self._size(letter, scope))
        return self._sizes[number]

    def shape(self, row: TensorRow) -> tuple[int, ...]:
        """Canonical shape of a tensor that is in no layer."""
        size = self.of(row, None)
        return tuple(int(math.prod(size(str(letter)) for letter in product)) for product in row.axes)

    def kind(self, part: Part, layer: int | None) -> Kind:
        """The part in a layer, made once for all layers of the same sizes.

        Raises:
            AxesError: sizes that are no whole numbers.
        """
        key = id(part), layer if self._differs(part.row) else None
        if key not in self._kinds:
            self._kinds[key] = part, _kind(part, self.of(part.row, layer))
        return self._kinds[key][1]

    def layers(self, row: TensorRow) -> int:
        """In how many layers a row's tensors may be."""
        if row.name not in self._layers:
            self._layers[row.name] = layers_of(self.family, row, self.scope)
        return self._layers[row.name]

    def has(self, row: TensorRow, layer: int | None) -> bool:
        """Whether a layer has, or may store, a row's tensors."""
        if row.layers is None or layer is None:
            return True
        if (row.name, layer) not in self._has:
            kinds = [kind for kind in (row.layers, row.spare) if kind is not None]
            self._has[row.name, layer] = any(_is(self.family, kind, self.scope, layer) for kind in kinds)
        return self._has[row.name, layer]

    def present(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """The segments of a stored tensor that a model has; the others are empty."""
        if len(parts) == 1:
            return parts
        return tuple(one for one in parts if one.row.when is None or one.row.when.value(self.scope)) or parts

    def _differs(self, row: TensorRow) -> bool:
        if row.fused_axes not in self._layered:
            letters = (letter for letter in shapes.letters(row.fused_axes) if letter in self.family.axes)
            self._layered[row.fused_axes] = any("n" in self.family.axes[letter].names for letter in letters)
        return self._layered[row.fused_axes]

    def _size(self, letter: str, scope: Mapping[str, Any]) -> float:
        try:
            value = self.family.axes[letter].value(scope)
        except ExpressionError as error:
            what = f": {error}" if self.family.path.parent != merge.FOLDER else " has no number of elements"
            raise shapes.AxesError(f"axis {letter}{what}") from None
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise shapes.AxesError(f"axis {letter} is {value!r}, not a number of elements")
        return value


# -- Tensors that models of a family have, always or by parameter ------------------------------------------------------

#: The output head, which a model has of its own or not whatever its class: rules of its own look at it.
_HEAD = "output"


@lru_cache(maxsize=MAX_FAMILIES)
def always(family: Family, format: str) -> frozenset[str]:
    """Canonical patterns that every model of the family has in a format."""
    constants = Scope(family, {})
    found = set()
    for row in family.tensors.values():
        if _has(row, format) and not row.optional:
            found.add(_pattern(family, row, "weight"))
            if row.bias is not None and not _asks(family, row.bias) and row.bias.value(constants):
                found.add(_pattern(family, row, "bias"))
    return frozenset(found)


def everywhere(family: Family, parameters: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    """Canonical pattern -> layers, of tensors in every GGUF of the family."""
    return _layers_of(family, parameters, always(family, "gguf"))


def _layers_of(family: Family, parameters: Mapping[str, Any], patterns: Collection[str]) -> dict[str, Sequence[int]]:
    scope = Scope(family, parameters)
    rows = [(_pattern(family, row, kind), row) for row in family.tensors.values() for kind in ("weight", "bias")]
    return {pattern: layers_with(family, row, scope) for pattern, row in rows if pattern in patterns}


def _has(row: TensorRow, format: str) -> bool:
    return bool(row.cells[format]) or (format == "gguf" and bool(row.key))


def conditional(family: Family, parameters: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    """Canonical pattern -> layers, of weights of this model's GGUF only."""
    scope = Scope(family, parameters)
    rows = (row for row in family.tensors.values() if row.optional and _has(row, "gguf") and row.cells["hf"])
    return {
        _pattern(family, row, "weight"): layers
        for row in rows
        if row.name != _HEAD and (row.when is None or row.when.value(scope))
        if (layers := layers_with(family, row, scope))
    }


def expected(family: Family, format: str, parameters: Mapping[str, Any]) -> dict[str, int]:
    """Canonical pattern -> count of a model's tensors, without the head."""
    return {pattern: len(layers) for pattern, layers in expected_layers(family, format, parameters).items()}


def expected_layers(family: Family, format: str, parameters: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    """Canonical pattern -> layers of a model's tensors, without the head."""
    scope = Scope(family, parameters)
    found: dict[str, Sequence[int]] = {}
    for row in family.tensors.values():
        if not _has(row, format) or row.name == _HEAD or (row.when is not None and not row.when.value(scope)):
            continue
        layers = layers_with(family, row, scope)
        found[_pattern(family, row, "weight")] = layers
        if row.bias is not None and row.bias.value(scope):
            found[_pattern(family, row, "bias")] = layers
    return {pattern: layers for pattern, layers in found.items() if layers}


def switches(family: Family) -> dict[str, frozenset[str]]:
    """Bias parameter -> canonical patterns of its biases."""
    found: dict[str, set[str]] = {}
    for row in family.tensors.values():
        if has_bias(row) and row.bias is not None and row.name != _HEAD:
            for name in family.parameters.keys() & _asks(family, row.bias):
                found.setdefault(name, set()).add(_pattern(family, row, "bias"))
    return {name: frozenset(patterns) for name, patterns in found.items()}


#: Of an engine without a row in the family file.
_UNSAID = Engine("")


def loaded(family: Family, engine: str) -> frozenset[str]:
    """Canonical patterns that an engine loads if present."""
    return _patterns(family, family.engines.get(engine, _UNSAID).optional)


def at_will(family: Family, engine: str, parameters: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    """Canonical pattern -> layers, of tensors that an engine loads if present."""
    return _layers_of(family, parameters, loaded(family, engine))


def required(family: Family, engine: str) -> frozenset[str]:
    """Canonical patterns that an engine requires, if some models lack them."""
    return _patterns(family, family.engines.get(engine, _UNSAID).required)


def narrow(family: Family, engine: str) -> frozenset[str]:
    """Canonical patterns in matrix type for this engine, in FP32 elsewhere."""
    return _patterns(family, family.engines.get(engine, _UNSAID).narrow)


def used(family: Family, engine: str) -> frozenset[str]:
    """Canonical patterns that a bump engine uses in addition to a Llama's."""
    return _patterns(family, family.engines.get(engine, _UNSAID).tensors)


def added(family: Family, engine: str) -> frozenset[str] | None:
    """Canonical patterns of biases that a bump engine adds; ``None``: all."""
    row = family.engines.get(engine)
    return None if row is None or row.biases is None else _patterns(family, row.biases)


def _patterns(family: Family, names: tuple[str, ...]) -> frozenset[str]:
    patterns = (name.rpartition(".") for name in names)
    return frozenset(
        canonical_pattern(family, module, kind) if kind in ("weight", "bias") else canonical_pattern(family, whole, "")
        for module, dot, kind in patterns
        for whole in (module + dot + kind,)
    )


def _asks(family: Family, expression: Expression) -> Iterator[str] | frozenset[str]:
    """Parameters at the root of a value, with derived parameters resolved."""
    found: set[str] = set()
    for name in expression.names:
        parameter = family.parameters.get(name)
        if parameter is not None and parameter.value is not None:
            found |= set(_asks(family, parameter.value))
        else:
            found.add(name)
    return frozenset(found)


def _pattern(family: Family, row: TensorRow, kind: str) -> str:
    return _of_rows(family)[row.name, kind]


@lru_cache(maxsize=MAX_FAMILIES)
def _of_rows(family: Family) -> Mapping[tuple[str, str], str]:
    """Name of a row, weight or bias -> canonical pattern."""
    rows = [(row, kind) for row in family.tensors.values() for kind in ("weight", "bias")]
    return {(row.name, kind): canonical_pattern(family, row.name, "" if row.whole_name else kind) for row, kind in rows}


# -- Parts of a stored tensor in elements: shapes and positions of rows ------------------------------------------------


class Kind(NamedTuple):
    """A part in one layer, or in all layers where sizes do not differ.

    Attributes:
        whole: shape of the stored tensor.
        shape: shape of the canonical one.
        first: stored element that is its first one.
        axes: in canonical order, with stored elements from one to the next.
    """

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    first: int
    axes: tuple[Axis, ...]

    @property
    def in_order(self) -> bool:
        """Whether the part is a single run of stored elements."""
        return merged(self.axes) in ((), ((math.prod(self.shape), 1),))

    def stacked(self, count: int) -> Kind:
        """Several equal tensors, each stored alone, as a stack."""
        each = math.prod(self.whole)
        return Kind((count, *self.whole), (count, *self.shape), self.first, ((count, each), *self.axes))


def _kind(part: Part, size: shapes.Size) -> Kind:
    if part.stored != part.axes:
        move = shapes.move(part.stored, part.axes, part.number, size)
        return Kind(move.stored, move.canonical, move.first, move.axes)
    shape = shapes.sizes(part.axes, size)
    return Kind(shape, shape, 0, tuple((n, math.prod(shape[at + 1 :])) for at, n in enumerate(shape)))


@lru_cache(maxsize=MAX_FAMILIES)
def stored_layout(kinds: tuple[Kind, ...], dtype: DType, *, one: bool = False) -> Layout:
    """Layout of canonical tensors of equal width in a shared stored tensor.

    It is one object for all layers of the same sizes.

    Args:
        one: of a stack, so that a vector is a row.
    """
    cols = kinds[0].shape[-1] if one else matrix_of(kinds[0].shape, dtype)[1]
    rows = sum(math.prod(kind.shape) for kind in kinds) // cols
    whole = matrix_of(kinds[0].whole, dtype)
    first = 0
    for kind in kinds:
        first = first + math.prod(kind.shape) if kind.in_order and kind.first == first else -1
    axes = [((rows, cols), (cols, 1))] if first == rows * cols else [kind.axes for kind in kinds]
    starts = [kinds[0].first] if len(axes) == 1 else [kind.first for kind in kinds]
    strips = tuple(strip(start, own, cols) for start, own in zip(starts, axes, strict=True))
    return Layout(rows, cols, *whole, strips, shared=len(kinds) == 1)


def layout_in(stored: NameRule, sizes: Sizes, layer: int | None) -> tuple[tuple[int, ...], Layout] | None:
    """Shape and layout of a stored tensor; ``None`` if rows just follow.

    Raises:
        AxesError: the parameters give no sizes.
    """
    kinds = tuple([sizes.kind(part, layer) for part in sizes.present(stored.parts)])
    layout = stored_layout(kinds, F32, one=bool(stored.parts[0].stack))
    whole, shape = kinds[0].whole, kinds[0].shape
    moved = whole != shape and sorted(whole) == sorted(shape)  # an axis of one element stands elsewhere
    same = layout.in_order and len(whole) == len(shape) and not moved
    return None if same else (whole, replace(layout, shared=False))


def factor_of(part: Part, parameters: Mapping[str, Any], layer: int | None = None) -> float:
    """Factor on stored values, the product of float32 factors.

    Args:
        layer: what expressions call ``n``.

    Raises:
        AxesError: a factor that no value is divided by again.
    """
    if part.by is None:
        return 1.0
    try:
        value = part.by.value(ChainMap({"n": layer}, parameters) if layer is not None else parameters)  # type: ignore[arg-type]
        factor = math.prod(float32(one) for one in (value if isinstance(value, list) else [value]))
    except (ExpressionError, TypeError, OverflowError, struct.error):
        raise shapes.AxesError("what a matrix is multiplied by is no number") from None
    if not factor or not math.isfinite(factor):
        raise shapes.AxesError(f"what a matrix is multiplied by is {factor:g}")
    return factor


def with_factor(tensor: Tensor, factor: float) -> Tensor:
    """Values times the factor that the format's class multiplies them with."""
    if factor == 1.0 and tensor.layout.scale == 1.0:
        return tensor
    if tensor.dtype.kind is not Kinds.FLOAT:
        why = "and the class multiplies its result by a factor, which blocks cannot store"
        message = f"tensor {quoted(tensor.source)} is {tensor.dtype}, {why}"
        raise UnsupportedError("model.config", message, tensor=tensor.source)
    return replace(tensor, layout=replace(tensor.layout, scale=factor))


def is_regrouped(family: Family, module: str, parameters: Mapping[str, Any] | None) -> bool:
    """Whether GGUF reorders rows or columns beyond interleaved heads.

    Args:
        module: canonical, of the matrix or of the whole that it is stored in.
        parameters: of the model; without them, whether that is so of any.
    """
    names, name = names_of(family, GGUF), parse(f"{module}.weight")
    whole = next((found for found in names.always_fused if found.canonical == name.pattern), None)
    found = whole or names.written.get(name.pattern)
    if found is None or heads_of(family, name.pattern):
        return False
    if parameters is None:
        return any(shapes.of_part(part.stored, part.number) != part.axes for part in found.parts)
    return layout_in(found, Sizes(family, parameters), name.layer) is not None


def is_transposed(part: Part) -> bool:
    """Whether a matrix is stored ``[in, out]``."""
    own = shapes.of_part(part.stored, part.number) if shapes.segment_count(part.stored) > 1 else part.stored
    return len(own) == 2 and own == part.axes[::-1] and own != part.axes


def has_transposed(family: Family) -> bool:
    """Whether a checkpoint stores the family's matrices ``[in, out]``."""
    return any(is_transposed(part) for stored in names_of(family, "hf").written.values() for part in stored.parts)


def canonical_shape(family: Family, parameters: Mapping[str, Any], canonical: str) -> tuple[int, ...] | None:
    """Shape of a canonical tensor, or ``None`` without a row.

    Raises:
        AxesError: the parameters give no sizes.
    """
    name = parse(canonical)
    found = names_of(family, "hf").written.get(name.pattern)
    part = next((part for part in found.parts if part.canonical == name.pattern), None) if found else None
    if part is None:
        return None
    axes = (part.row.axes[0], *part.axes[len(part.row.axes[0]) > 1 :]) if part.stack else part.axes
    return shapes.sizes(axes, Sizes(family, parameters).of(part.row, name.layer))
