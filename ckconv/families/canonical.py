"""Stored tensors -> canonical tensors, by the rows of a family."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ckconv.core.config import ModelConfig
from ckconv.core.layouts import plain, shifted
from ckconv.core.lazy import NamedTuple, replace
from ckconv.core.tensors import (
    DroppedTensor,
    MetadataKind,
    Name,
    StoredTensor,
    Tensor,
    TensorIndex,
    cut,
    matrix_of,
    parse,
    plain_tensor,
    spellings,
    with_layer,
)
from ckconv.errors import Faults, InputError, UnsupportedError, an, quoted
from ckconv.families import axes as shapes, catalog, merge, parameters
from ckconv.families.expressions import ExpressionError
from ckconv.families.names import HF, NameRule, Names, Part, names_of, numbered_on
from ckconv.families.schema import DRAFTS, DROP_MTP, MTP, Family, stored_higher
from ckconv.families.sizes import Kind, Sizes, draft_layers, factor_of, layers_with, stored_layout, with_factor

# -- Stored tensors -> canonical tensors, by the rows of a family ------------------------------------------------------

#: Why a tensor is left out that only fills a place.
FILLER = "it stands in a layer that does not have such a tensor, and nothing reads it"

#: Why layers behind the last are left out, as many as the parameter ``extra_layers`` says.
_EXTRA = "of a layer that predicts further tokens, which is not needed to compute the model"

#: Of a model that contradicts its configuration.
_CODE = "model.config"

#: Parameters -> the keys of the source that they stand under, for people: `` (hidden_size)``.
Bracketed = Callable[..., str]


class Item(NamedTuple):
    """Stored tensor to name, or an MLX triple of arrays.

    ``tensor`` is in stored order under its stored name; its shape is ``[out, in]`` in elements of the model.
    ``others`` are what else the arrays may be, where nothing but the shape tells.
    """

    tensor: Tensor
    stored: tuple[StoredTensor, ...]
    others: tuple[Tensor, ...] = ()


def plain_item(stored: StoredTensor) -> Item:
    """A stored tensor that stands for itself."""
    return Item(plain_tensor(stored.name, stored), (stored,))


class Canonical(NamedTuple):
    """Canonical tensors of a file, and stored tensors without a row.

    The fields are those of an index.
    """

    tensors: Mapping[str, Tensor]
    canonical_of: Mapping[str, tuple[str, ...]]
    dropped: tuple[DroppedTensor, ...]
    unknown: Sequence[StoredTensor]


class FamilyFit(NamedTuple):
    """Result of fitting a model to its family; ``misfit`` names conflicts."""

    config: ModelConfig | None
    canonical: Canonical
    misfit: InputError | UnsupportedError | None = None


def fitted(
    make: Callable[[Sequence[str]], tuple[ModelConfig, Canonical]],
    stored: Sequence[StoredTensor],
    drop: Sequence[str],
) -> FamilyFit:
    """Configuration and canonical tensors, without the ``drop`` on conflict.

    Args:
        make: what reads both, without the tensors that globs name.
    """
    fault: InputError | UnsupportedError | None = None
    for globs in ((), tuple(drop)) if drop else ((),):
        try:
            return FamilyFit(*make(globs))
        except (InputError, UnsupportedError) as error:
            if error.code != _CODE:
                raise
            fault = error
    return FamilyFit(None, Canonical({}, {}, (), stored), fault)


def notes_on(misfit: InputError | UnsupportedError | None) -> tuple[str, ...]:
    """Notes on a model that contradicts the rules of its family."""
    return (f"{misfit.message}: tensors keep the names of the file",) if misfit is not None else ()


def not_following(family: Family, error: ExpressionError, bracketed: Bracketed) -> str:
    """Message on an expression without a value.

    Raises:
        ExpressionError: the same, in a file of one's own: its author is told of the expression.
    """
    if family.path.parent != merge.FOLDER:
        raise error
    text = error.why or f"a number or list of {an(family.name)} does not follow from its configuration"
    rows = (family.parameters[name] for name in sorted(error.names) if name in family.parameters)
    of_rope = ", ".join(cell.key for row in rows for cell in row.key_cells("hf"))
    return f"{text}{bracketed(*sorted(error.names)) or f' ({of_rope})'}"


def canonicalize(
    items: Iterable[Item],
    family: Family,
    names: Names,
    config: ModelConfig,
    bracketed: Bracketed,
    *,
    path: Path | None = None,
    layers: str = "the number of layers",
    nested: tuple[tuple[str, str], ...] = (),
    extra: str = _EXTRA,
    drop: Sequence[str] = (),
) -> Canonical:
    """Apply a family's rows.

    Args:
        names: those rows in the format of the items.
        path: the model, for errors.
        layers: what the file calls the number of layers.
        nested: what may stand before every name, and what the rows have in its place.
        extra: why layers behind the last are left out.
        drop: globs of tensors that are left aside, by stored or canonical names.

    Raises:
        InputError: ``model.config`` where a tensor's shape, layer or expert contradicts the configuration, or two
            tensors are one.
        UnsupportedError: ``model.config``, values in an order that cannot be moved.
    """
    reading = _Reading(family, names, config, bracketed, path, layers, nested, extra, drop)
    try:
        for item in items:
            reading.add(item)
        return reading.finish()
    except ExpressionError as error:
        raise InputError(_CODE, not_following(family, error, bracketed), path=path) from None


class _Reading:
    def __init__(
        self,
        family: Family,
        names: Names,
        config: ModelConfig,
        bracketed: Bracketed,
        path: Path | None,
        layers: str,
        nested: tuple[tuple[str, str], ...],
        why: str,
        drop: Sequence[str],
    ) -> None:
        self.names, self.bracketed, self.layers, self.nested, self.why = names, bracketed, layers, nested, why
        self.family, self.config, self.drop = family, config, drop
        self.sizes = Sizes(family, config.scope)
        self.tensors: dict[str, Tensor] = {}
        self.canonical_of: dict[str, tuple[str, ...]] = {}
        self.dropped: list[DroppedTensor] = []
        self.unknown: list[StoredTensor] = []
        self.faults = Faults(path)
        self.stacks: dict[str, tuple[Part, dict[int, Item]]] = {}
        self.beyond: dict[int, str] = {}
        self.rows_beyond: dict[str, Part] = {}
        self.either: list[tuple[Item, NameRule, int | None]] = []
        self.drafts = draft_layers(family, config.scope) if DRAFTS in config.own else 0
        self.extra = 0 if self.drafts else int(config.own.get("extra_layers") or 0)

    def add(self, item: Item) -> None:
        """Name a tensor, drop it by a rule, or leave it unknown."""
        name, found = self._look_up(item.tensor.source)
        numbers = found.numbers.value(self.sizes.scope) if found is not None and found.numbers is not None else None
        if isinstance(numbers, list | tuple):
            name = name._replace(layer=numbers.index(name.layer) if name.layer in numbers else len(numbers))
        if found is not None and found.of_one_layer:
            layers = layers_with(self.family, found.parts[0].row, self.sizes.scope)
            name, found = (name._replace(layer=layers[0]), found) if layers else (name, None)
        of_drafts = not self.drafts and numbered_on(item.tensor.source, self.family, 0) != item.tensor.source
        of_drafts |= name.layer is not None and 0 <= name.layer - self.config.num_layers < self.extra
        if self.drop and self._left_aside(item, [with_layer(one, name.layer) for one in found.names] if found else []):
            return
        if of_drafts:
            self.dropped += [DroppedTensor(stored, self.why, True, stored.name) for stored in item.stored]
        elif found is None:
            self._leave_out(item, name)
        elif name.layer is not None and name.layer >= self._layers(name, found.parts[0]):
            self.beyond.setdefault(name.layer, item.tensor.source)
            self.rows_beyond.update({part.canonical: part for part in found.parts})
        elif not self.sizes.has(found.parts[0].row, name.layer):
            if found.parts[0].instead:
                self.dropped += [DroppedTensor(stored, FILLER) for stored in item.stored]
            else:
                self._leave_out(item, name)
        elif found.parts[0].stack:
            layer, number = (None, name.layer) if name.expert is None else (name.layer, name.expert)
            for part in found.parts:
                stack = self.stacks.setdefault(with_layer(part.canonical, layer), (part, {}))
                stack[1][number or 0] = item
        elif found.pattern in self.names.turned:
            self.either.append((item, found, name.layer))
        else:
            self._place(item, found, name.layer)

    def _leave_out(self, item: Item, name: Name) -> None:
        """Drop a tensor that a rule names, or leave it unknown."""
        why = self.names.dropped.get(name.pattern)
        if why is None:
            self.unknown += item.stored
            return
        copied = self.names.copied.get(name.pattern, "").replace("{n}", str(name.layer))
        copied = copied.replace("{e}", str(name.expert))
        self.dropped += [DroppedTensor(stored, why, bool(copied), copied) for stored in item.stored]

    def _left_aside(self, item: Item, canonical: Sequence[str]) -> bool:
        """Whether a ``--drop`` glob names the tensor by either name."""
        names = [item.tensor.source, *(stored.name for stored in item.stored), *canonical]
        layers = (parse(one).layer for one in canonical)
        names += [MTP for layer in layers if self.drafts and layer is not None and layer >= self.config.num_layers]
        if not any(fnmatchcase(name, glob) for name in names for glob in self.drop):
            return False
        self.unknown += item.stored
        self.canonical_of.update({stored.name: tuple(canonical) for stored in item.stored})
        return True

    def finish(self) -> Canonical:
        """Stack tensors stored in parts, and report every fault found."""
        if self.beyond:
            named = f"layer{'s' if len(self.beyond) > 1 else ''} {', '.join(map(str, sorted(self.beyond)[:10]))}"
            first = self.beyond[min(self.beyond)]
            before = [source[: source.index(f".{n}.")] for n, source in self.beyond.items() if f".{n}." in source]
            import shlex

            globs = [shlex.quote(f"{start}.{n}.*") for start, n in zip(before, self.beyond, strict=False)]
            hint = f"--drop {' --drop '.join(globs)} leaves them out" if len(globs) == len(self.beyond) else None
            message = f"{self.layers} is {self.config.num_layers}, tensors name {named} ({quoted(first)})"
            if (lacks := self._lacking()) is not None:
                message += f", and layer {lacks} has none of that name"
                hint = f"rename them if they are its tensors: the layers are 0 to {self.config.num_layers - 1}"
            self.faults.add(_CODE, message, tensor=first, hint=hint)
        self._place_either()
        for name, (part, members) in self.stacks.items():
            self._stack(name, part, members)
        self.faults.check()
        return Canonical(self.tensors, self.canonical_of, tuple(self.dropped), tuple(self.unknown))

    def _lacking(self) -> int | None:
        """First layer without a tensor that one behind the last has."""
        either = (with_layer(found.parts[0].canonical, layer) for _, found, layer in self.either)
        present, has = {*self.tensors, *self.stacks, *either}, self.sizes.has
        rows, layers = self.rows_beyond.items(), range(self.config.num_layers)
        return next(
            (n for n in layers for name, part in rows if has(part.row, n) and with_layer(name, n) not in present), None
        )

    def _place_either(self) -> None:
        """Place tensors of either order (transposed or not) by shape.

        Square tensors lie as the others do, because one program wrote all of them.
        """
        turned = self.names.turned
        fits = [
            tuple(self._fits(item, one, layer) for one in (found, turned.get(found.pattern, found)))
            for item, found, layer in self.either
        ]
        for (item, found, layer), way in zip(self.either, fits, strict=True):
            if way == (True, True) and {(True, False), (False, True)} <= {*fits}:
                source = item.tensor.source
                message = f"{quoted(source)} is square, and others of its kind lie in two orders: it may be in either"
                self._fault(message, source)
            other = turned.get(found.pattern, found) if (False, True) in fits else found
            self._place(item, other if way[1] else found, layer)

    def _fault(self, message: str, tensor: str) -> None:
        layer = self._look_up(tensor)[0].layer
        drafted = self.drafts > 0 and layer is not None and layer >= self.config.num_layers
        self.faults.add(_CODE, message, tensor=tensor, hint=DROP_MTP if drafted else None)

    def _layers(self, name: Name, part: Part) -> float:
        """Upper bound of layer numbers in the stack of a row."""
        return math.inf if part.stack and name.expert is None else self.sizes.layers(part.row)

    def _look_up(self, stored: str) -> tuple[Name, NameRule | None]:
        if self.drafts and self.family.of_drafts:
            stored = numbered_on(stored, self.family, self.config.num_layers)
        for prefix, instead in (("", ""), *self.nested):
            if stored.startswith(prefix):
                for spelled in spellings(instead + stored[len(prefix) :]):
                    found = self._found(spelled)
                    if found is not None or spelled.pattern in self.names.dropped:
                        return spelled, found
        return parse(stored), None

    def _found(self, name: Name) -> NameRule | None:
        choices, scope = self.names.choices.get(name.pattern), self.sizes.scope
        if choices is None:
            return self.names.stored.get(name.pattern)
        rows = [one for one in choices if (when := one.parts[0].row.when) is None or when.value(scope)]
        listed = [(one, one.numbers.value(scope) if one.numbers is not None else None) for one in rows]
        # layers of a stack may go on with the numbers of the decoder's
        own = [one for one, numbers in listed if isinstance(numbers, list | tuple) and name.layer in numbers]
        plain = [one for one, numbers in listed if not isinstance(numbers, list | tuple)]
        here = (one for one in plain if self.sizes.has(one.parts[0].row, name.layer))
        return next(iter(own), None) or next(here, plain[0] if plain else None)

    def _put(self, tensor: Tensor) -> None:
        if tensor.name in self.tensors:
            other = self.tensors[tensor.name].source
            self._fault(f"{quoted(other)} and {quoted(tensor.source)} are both {tensor.name}", tensor.source)
        self.tensors[tensor.name] = tensor

    def _place(self, item: Item, found: NameRule, layer: int | None) -> None:
        """A tensor, or the parts of one that holds several."""
        parts, tensor = self.sizes.present(found.parts), item.tensor
        kinds = [self._kind(part, layer, tensor.source) for part in parts]
        whole = kinds[0].whole
        if tensor.shape != whole:
            tensor = next((one for one in item.others if one.shape == whole), tensor)
        if tensor.shape != whole:
            made = f"the configuration makes it {list(whole)}{self._keys(parts)}"
            self._fault(f"tensor {quoted(tensor.source)} has shape {list(tensor.shape)}, {made}", tensor.source)
            return
        names = tuple([with_layer(part.canonical, layer) for part in parts])
        for part, kind, name in zip(parts, kinds, names, strict=True):
            self._put(_named(self._multiplied(_placed(tensor, part, kind), part, layer), name))
        self.canonical_of.update(dict.fromkeys([stored.name for stored in item.stored], names))

    def _fits(self, item: Item, found: NameRule, layer: int | None) -> bool:
        return item.tensor.shape == self._kind(found.parts[0], layer, item.tensor.source).whole

    def _multiplied(self, tensor: Tensor, part: Part, layer: int | None) -> Tensor:
        """The values with the factors of the format's class in them."""
        try:
            factor = factor_of(part, self.sizes.scope, layer)
        except shapes.AxesError as error:
            named = sorted(part.by.names) if part.by is not None else ()
            keys = dict.fromkeys(each for name in named for each in (name, *self._behind(name)))
            raise UnsupportedError(_CODE, f"{error}{self.bracketed(*keys, 'family')}", tensor=tensor.source) from None
        return with_factor(tensor, factor)

    def _kind(self, part: Part, layer: int | None, source: str) -> Kind:
        try:
            return self.sizes.kind(part, layer)
        except shapes.AxesError as error:
            fused = [part, part._replace(axes=part.row.fused_axes)]
            raise UnsupportedError(_CODE, f"{error}{self._keys(fused)}", tensor=source) from None

    def _keys(self, parts: Sequence[Part]) -> str:
        """The keys that a shape follows from."""
        found = (letter for part in parts for letter in shapes.letters(part.axes) if letter in self.family.axes)
        named = (name for letter in found for name in sorted(self.family.axes[letter].names - {"n"}))
        return self.bracketed(*dict.fromkeys(each for name in named for each in (name, *self._behind(name))), "family")

    def _behind(self, name: str) -> list[str]:
        """Parameters that a parameter follows from, directly or by default."""
        parameter = self.family.parameters[name]
        expressions = [parameter.value] if parameter.value else list(parameter.defaults.values())
        return sorted({other for expression in expressions for other in expression.names} - {name})

    def _stack(self, name: str, part: Part, members: Mapping[int, Item]) -> None:
        """Stack stored parts as several extents of a single tensor."""
        layer = parse(name).layer
        count = self.sizes.of(part.row, layer)(part.stack)
        counted = self.family.axes[part.stack].names
        keys, what = self.bracketed(*sorted(counted)), "expert" if "experts" in counted else "part"
        beyond = [n for n in sorted(members) if n >= count]
        if beyond:
            source = members[beyond[0]].tensor.source
            self._fault(
                f"the number of {what}s{keys} is {count:,}, {quoted(source)} names {what} {beyond[0]:,}", source
            )
            return
        if len(members) < count:
            missing = next(n for n in range(int(count)) if n not in members)
            there = f"{len(members):,} of {count:,} {what}s{keys} are there"
            self._fault(f"{name}: {there}, {what} {missing:,} is missing", next(iter(members.values())).tensor.source)
            return
        ordered = [members[n] for n in range(int(count))]
        one = ordered[0].tensor
        kind = self._kind(part, layer, one.source)
        for item in ordered:
            if item.tensor.shape != kind.whole or item.tensor.dtype is not one.dtype:
                self._fault(
                    f"tensor {quoted(item.tensor.source)} is {item.tensor.dtype} {list(item.tensor.shape)}, "
                    f"the configuration and the other parts make it {one.dtype} {list(kind.whole)}{self._keys([part])}",
                    item.tensor.source,
                )
                return
        pieces = [item.tensor for item in ordered]
        if kind.in_order and not one.packed:
            pieces = [_cut(piece, kind.shape, kind.first) for piece in pieces]
            kind = kind._replace(whole=kind.shape, first=0)
        whole = replace(
            one,
            shape=(len(ordered), *kind.whole),
            extents=tuple(extent for piece in pieces for extent in piece.extents),
            planes=tuple(_serial([piece.planes[i] for piece in pieces]) for i in range(len(one.planes))),
            packed=tuple(packed for piece in pieces for packed in piece.packed),
        )
        placed = _placed(whole, part, kind.stacked(len(ordered)))
        if len(part.row.axes[0]) > 1:  # parts of one axis
            placed = replace(placed, shape=(math.prod(placed.shape[:2]), *placed.shape[2:]))
        self._put(_named(self._multiplied(placed, part, layer), name))
        for item in ordered:
            for stored in item.stored:
                self.canonical_of[stored.name] = (*self.canonical_of.get(stored.name, ()), name)


def _placed(tensor: Tensor, part: Part, kind: Kind) -> Tensor:
    """The part of a stored tensor, under its stored name."""
    if kind.in_order and not tensor.packed:
        tensor = _cut(tensor, kind.shape, kind.first)
    else:
        layout = stored_layout((kind,), tensor.dtype)
        planes = tensor.planes
        if layout.whole_rows:
            planes = tuple(replace(plane, layout=layout.of_width(plane.layout.cols)) for plane in planes)
        tensor = replace(tensor, shape=kind.shape, layout=layout, planes=planes)
    shift = stored_higher(part.value)
    return replace(tensor, layout=shifted(tensor.layout, shift)) if shift else tensor


def _named(tensor: Tensor, name: str) -> Tensor:
    """Tensor under its canonical name, with arrays that others may share."""
    return replace(tensor, name=name, planes=tuple(replace(plane, name=name) for plane in tensor.planes))


def _cut(tensor: Tensor, shape: tuple[int, ...], first: int) -> Tensor:
    """The elements from one on of a stored tensor, as many as ``shape`` has."""
    rows, cols = matrix_of(shape, tensor.dtype)
    if shape == tensor.shape and not tensor.planes and tensor.layout == plain(rows, cols):
        return tensor
    start, stop = tensor.dtype.nbytes(first), tensor.dtype.nbytes(first + rows * cols)
    planes = (_cut(plane, (rows, plane.layout.cols), first // cols * plane.layout.cols) for plane in tensor.planes)
    extents = tuple(cut(tensor.extents, start, stop)) if start or stop < tensor.nbytes else tensor.extents
    return replace(tensor, shape=shape, extents=extents, layout=plain(rows, cols), planes=tuple(planes))


def _serial(planes: list[Tensor]) -> Tensor:
    """Planes of several tensors, one after the other."""
    rows = sum(plane.layout.rows for plane in planes)
    cols = planes[0].layout.cols
    return replace(
        planes[0],
        shape=(rows, cols),
        extents=tuple(e for plane in planes for e in plane.extents),
        layout=plain(rows, cols),
    )


# -- Embedding as output head: classes may scale input and output apart ------------------------------------------------

_EMBEDDING, _HEAD = "token_embedding.weight", "output.weight"


def as_head(embedding: Tensor, config: ModelConfig | None) -> Tensor:
    """The embedding's rows with the factor of the head.

    Only transformers' classes have such factors, and elsewhere they are 1.

    Raises:
        UnsupportedError: ``model.config``, the factors differ, and the rows are blocks.
    """
    if config is None:
        return embedding
    family = catalog.FAMILIES[config.family]
    written, scope = names_of(family, HF).written, parameters.scope_of(family, config)
    parts = [written[name].parts[0] for name in (_EMBEDDING, _HEAD) if name in written]
    if all(part.by is None for part in parts) or len(parts) < 2:
        return embedding
    its, own = (factor_of(part, scope) for part in parts)
    return embedding if its == own else with_factor(embedding, own)


def unowned(index: TensorIndex) -> dict[str, Tensor]:
    """Stored name -> elements in front that no tensor of the model has.

    A Granite Switch's GGUF has an adapter of zeros before the others, and no checkpoint has a place for it.
    """
    family = (
        catalog.FAMILIES[index.config.family] if index.config and index.metadata_kind is MetadataKind.TYPED else None
    )
    written = names_of(family, "gguf").written.values() if family else ()
    if not any(letter.startswith("_") for rule in written for letter in shapes.letters(rule.parts[0].stored)):
        return {}
    stored = {one.name: one for one in index.stored}
    found = dict[str, Tensor]()
    for tensor in index.tensors.values():
        whole = stored.get(tensor.source) if len(index.canonical_of.get(tensor.source, ())) == 1 else None
        if whole is None or not tensor.extents or tensor.extents[0].offset == whole.extent.offset:
            continue
        extent = whole.extent._replace(nbytes=tensor.extents[0].offset - whole.extent.offset)
        count = whole.shape[0] * extent.nbytes // whole.extent.nbytes
        front = whole._replace(shape=(count, *whole.shape[1:]), extent=extent)
        found[tensor.source] = plain_tensor(tensor.name, front)
    return found
