"""Canonical tensors -> arrays of a checkpoint: names, rows, fusions."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ckconv.core.late import NamedTuple
from ckconv.core.layouts import DTYPES, DType, Layout, plain, shifted
from ckconv.core.tensors import Dropped, StoredTensor, Tensor, matrix_of, parse, plain_tensor, with_layer
from ckconv.families import axes as shapes, schema
from ckconv.families.names import OTHER_SCHEMES, Stored, fusion_names, numbered_apart, scheme_names
from ckconv.families.sizes import Sizes, factor_of, layout_in
from ckconv.plan.steps import Module, Piece
from ckconv.quant.convert import Conversion, Run
from ckconv.quant.mlx import Triple, plane_types, triple_of, viewed

# Canonical tensors -> the tensors of a checkpoint: what each is called there, and which are stored as one.


class Entry(NamedTuple):
    """A tensor of a checkpoint.

    Attributes:
        name: what it is called there.
        canonical: what it holds, by canonical name; for a fused tensor a name that no single tensor has.
        parts: canonical tensors whose rows it holds, in order.
        missing: parts that the model does not have.
        expert: the one expert or part whose rows it holds, ``None`` for all rows.
        of: how many there are.
        places: its shape, and where the canonical rows are in it; ``None`` where they follow each other.
        shift: what is stored for a canonical value (:class:`ckconv.core.layouts.Layout`).
        packed: it is stored as blocks and scales.
        factors: of each part, what a stored value is multiplied with; empty for 1.
    """

    name: str
    canonical: str
    parts: tuple[str, ...]
    missing: tuple[str, ...] = ()
    expert: int | None = None
    places: tuple[tuple[int, ...], Layout] | None = None
    shift: float = 0
    packed: bool = False
    factors: tuple[float, ...] = ()
    of: int = 1


class Spelling:
    """Names and fusions of a family's tensors in one kind of checkpoint.

    Args:
        parameters: of the model.
        scheme: ``hf``, ``mlx``, or one of :data:`ckconv.families.names.OTHER_SCHEMES`.
        fuse: canonical modules of tensors to fuse besides those that the family always fuses.
    """

    def __init__(
        self, family: schema.Family, parameters: Mapping[str, Any], scheme: str, fuse: Iterable[str] = ()
    ) -> None:
        self._sizes, self._family = Sizes(family, parameters), family
        self._by_class = bool(family.of_drafts) and scheme not in OTHER_SCHEMES
        names = scheme_names(family, scheme)
        self._written, self._packed = dict(names.written), names.packed
        for whole in fuse:
            self._written |= fusion_names(family, scheme, whole)

    def entries(self, present: Collection[str], packed: Collection[str] = ()) -> tuple[list[Entry], list[str]]:
        """Entries of a checkpoint, and canonical names without a name there.

        Args:
            packed: those whose values stay in blocks.

        Raises:
            AxesError: the parameters give no sizes.
        """
        found: dict[str, Entry] = {}
        nameless: list[str] = []
        for canonical in present:
            name = parse(canonical)
            stored = (self._packed if canonical in packed else self._written).get(name.pattern)
            if stored is None:
                nameless.append(canonical)
                continue
            for entry in self._entries_of(stored, name.layer, present):
                found.setdefault(entry.name, entry._replace(packed=canonical in packed))
        return list(found.values()), nameless

    def _entries_of(self, stored: Stored, layer: int | None, present: Collection[str]) -> Iterator[Entry]:
        called, part = with_layer(stored.pattern, layer), stored.parts[0]
        parts = tuple(with_layer(part.canonical, layer) for part in self._sizes.held(stored.parts))
        missing = tuple(part for part in parts if part not in present) if len(parts) > 1 else ()
        places = layout_in(stored, self._sizes, layer)
        canonical, shift = with_layer(stored.canonical, layer), schema.stored_higher(part.value)
        factors = tuple(factor_of(one, self._sizes.scope, layer) for one in stored.parts) if part.by is not None else ()
        if self._by_class:
            called = numbered_apart(called, canonical, self._family, int(self._sizes.scope["layers"]))
        whole = Entry(called, canonical, parts, missing, places=places, shift=shift, factors=factors)
        if not part.stack:
            yield whole
            return
        hole = "{e}" if "{e}" in called else "{n}"
        size = self._sizes.of(part.row, layer)
        if places is None and len(part.row.axes[0]) > 1:
            shape = shapes.sizes(part.axes, size)
            whole = whole._replace(places=(shape, plain(math.prod(shape[:-1]), shape[-1])))
        count = int(size(part.stack))
        for n in range(count):
            yield whole._replace(name=called.replace(hole, str(n)), expert=n, of=count)


# The arrays that one tensor of a checkpoint is written as, and the rows that go into them.

#: What the arrays of a quantized module of MLX are called, in the order of their planes.
PLANES = ("weight", "scales", "biases")

#: What stands behind the name of one that transformers stores in MXFP4.
BLOCKS = ("_blocks", "_scales")


def copied_piece(stored: StoredTensor, dtype: DType, canonical: str = "") -> Piece:
    """A stored tensor under its own name, in its own order."""
    canonical = canonical or stored.name
    tensor = plain_tensor(canonical, stored)
    conversion = Conversion(stored.dtype, dtype)
    return Piece(stored.name, canonical, dtype, stored.shape, tensor.layout, tensor, conversion)


def decoded_piece(canonical: str, tensor: Tensor, dtype: DType) -> Piece:
    """A packed matrix under the name that it has dense."""
    return Piece(tensor.source, canonical, dtype, tensor.shape, tensor.layout, tensor, Conversion(tensor.dtype, dtype))


def module_of(entry: Entry, parts: Sequence[Tensor], dtype: DType) -> Module:
    """The module that is written for ``entry``.

    Args:
        parts: the tensors of ``entry.parts``.
        dtype: of all of them in the output; an MLX triple's is written as one array a plane.
    """
    shape, layout = places_of(entry, parts, dtype)
    layout = shifted(layout, entry.shift) if entry.shift else layout
    triple = triple_of(dtype)
    if triple is None:
        return (_dense(entry, parts, shape, layout, dtype),)
    arrays = _blocks if entry.packed else _triple
    return planes(entry, parts, layout, dtype, arrays(entry.name, shape, triple))


def places_of(entry: Entry, parts: Sequence[Tensor], dtype: DType) -> tuple[tuple[int, ...], Layout]:
    """The shape of the whole, and where the rows of the parts are in it."""
    if entry.places is not None:
        return entry.places
    shape = parts[0].shape if entry.expert is None else parts[0].shape[1:]
    shape = shape if len(parts) == 1 else (sum(part.shape[0] for part in parts), *shape[1:])
    rows, cols = matrix_of(shape, dtype) if entry.expert is None else (math.prod(shape[:-1]), shape[-1])
    return shape, plain(rows, cols)


def _dense(entry: Entry, parts: Sequence[Tensor], shape: tuple[int, ...], layout: Layout, dtype: DType) -> Piece:
    factors = entry.factors or (1.0,) * len(parts)
    layout = replace(layout, scale=factors[0]) if len(parts) == 1 else layout
    conversions = [
        Conversion(part.dtype, dtype, layout.shift - part.layout.shift, factor=part.layout.scale / factor)
        for part, factor in zip(parts, factors, strict=True)
    ]
    return Piece(
        entry.name,
        entry.canonical,
        dtype,
        shape,
        layout,
        parts[0],
        conversions[0],
        _runs(entry, parts, conversions),
    )


def spare_of(
    family: schema.Family,
    scheme: str,
    parameters: Mapping[str, Any],
    dtype: DType,
    dropped: Sequence[Dropped],
    typed: Callable[[str, DType], DType],
) -> Iterator[Module]:
    """Tensors that a class would fill at random where they are missing.

    Args:
        dtype: of zeros, where the source does not have them.
        dropped: what its rules leave out.
        typed: the type in the output of an array that stands for itself.
    """
    sizes = Sizes(family, parameters)
    own = {item.stored.name: item.stored for item in dropped if item.copied}
    for name, row in scheme_names(family, scheme).zeros.items():
        shape = sizes.shape(row)
        found = next((one for called, one in own.items() if called == name or called.endswith(f".{name}")), None)
        if found is not None and found.shape == shape:
            yield (copied_piece(found, typed(found.name, found.dtype))._replace(name=name),)
            continue
        layout = plain(*matrix_of(shape, dtype))
        yield (Piece(name, row.name, dtype, shape, layout, None, None),)


class StoredArray(NamedTuple):
    """Array that is stored of a quantized module.

    Attributes:
        together: how many rows of the matrix one of its rows is for.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    together: int = 1


def _triple(name: str, shape: tuple[int, ...], triple: Triple) -> list[StoredArray]:
    """MLX's arrays of a matrix."""
    q, module = triple.quantization, name.removesuffix(".weight")
    widths = (q.row_bytes(shape[-1]) // 4, shape[-1] // q.group_size, shape[-1] // q.group_size)
    rows = zip(PLANES, plane_types(triple), widths, strict=False)
    return [StoredArray(f"{module}.{kind}", dtype, (*shape[:-1], width)) for kind, dtype, width in rows]


def _blocks(name: str, shape: tuple[int, ...], triple: Triple) -> list[StoredArray]:
    """Blocks of transformers' ``mxfp4``: codes of a group are an axis.

    Source: ``integrations/mxfp4.py`` of transformers 5.23.
    """
    q, module = triple.quantization, name.removesuffix(BLOCKS[0])
    groups = (*shape[:-1], shape[-1] // q.group_size)
    shapes = ((*groups, q.row_bytes(q.group_size)), groups)
    return [StoredArray(module + ending, DTYPES["U8"], own) for ending, own in zip(BLOCKS, shapes, strict=True)]


def planes(
    entry: Entry, parts: Sequence[Tensor], layout: Layout, dtype: DType, arrays: Sequence[StoredArray]
) -> Module:
    """Arrays of a quantized module; those of a triple are copied."""
    pieces = []
    for number, array in enumerate(arrays):
        kept = [part.dtype is dtype and bool(part.planes) for part in parts]
        sources = [
            viewed(part.planes[number], array.dtype) if same else part for part, same in zip(parts, kept, strict=True)
        ]
        conversions = [
            Conversion(array.dtype, array.dtype)
            if same
            else Conversion(part.dtype, dtype, plane=number, factor=part.layout.scale, array=array.dtype)
            for part, same in zip(parts, kept, strict=True)
        ]
        own = plain(*array.shape) if array.together > 1 else None
        pieces.append(
            Piece(
                array.name,
                entry.canonical,
                array.dtype,
                array.shape,
                own or layout.of_width(math.prod(array.shape) * layout.cols // layout.elements),
                sources[0],
                conversions[0],
                _runs(entry, sources, conversions),
                dtype,
            )
        )
    return tuple(pieces)


def _runs(entry: Entry, sources: Sequence[Tensor], conversions: Sequence[Conversion]) -> tuple[Run, ...]:
    """Rows that are not all of one tensor, as runs of ``sources``."""
    if entry.expert is None and len(sources) == 1:
        return ()
    found, number = [], entry.expert or 0
    for source, conversion in zip(sources, conversions, strict=True):
        each = source.layout.rows // entry.of // conversion.together
        found.append(Run(source, conversion, number * each, (number + 1) * each))
    return tuple(found)
