"""The arrays that one tensor of a checkpoint is written as, and the rows that go into them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ckconv.core.dtypes import DType
from ckconv.core.layouts import Layout, plain, shifted
from ckconv.core.tensors import StoredTensor, Tensor, matrix_of, plain_tensor
from ckconv.formats.safetensors.checkpoint_names import Entry
from ckconv.plan.pieces import Module, Piece
from ckconv.quant.convert import Conversion, Run
from ckconv.quant.triples import plane_types, triple_of

#: What the arrays of a quantised module are called, in the order of their planes.
PLANES = ("weight", "scales", "biases")


def copied_piece(canonical: str, stored: StoredTensor, dtype: DType) -> Piece:
    """A stored tensor under its own name, in its own order."""
    tensor = plain_tensor(canonical, stored)
    conversion = Conversion(stored.dtype, dtype)
    return Piece(stored.name, canonical, dtype, stored.shape, tensor.layout, tensor, conversion)


def decoded_piece(canonical: str, tensor: Tensor, dtype: DType) -> Piece:
    """A packed matrix under the name that it has dense."""
    return Piece(tensor.source, canonical, dtype, tensor.shape, tensor.layout, tensor, Conversion(tensor.dtype, dtype))


def module_of(entry: Entry, parts: Sequence[Tensor], dtype: DType) -> Module:
    """What is written for ``entry``.

    Args:
        parts: the tensors of ``entry.parts``.
        dtype: of all of them in the output; an MLX triple's is written as one array a plane.
    """
    shape, layout = _places(entry, parts, dtype)
    layout = shifted(layout, entry.shift) if entry.shift else layout
    if triple_of(dtype) is None:
        return (_dense(entry, parts, shape, layout, dtype),)
    return _planes(entry, parts, shape, layout, dtype)


def _places(entry: Entry, parts: Sequence[Tensor], dtype: DType) -> tuple[tuple[int, ...], Layout]:
    """The shape of the whole, and where the rows of the parts are in it."""
    if entry.places is not None:
        return entry.places
    shape = parts[0].shape if entry.expert is None else parts[0].shape[1:]
    shape = shape if len(parts) == 1 else (sum(part.shape[0] for part in parts), *shape[1:])
    rows, cols = matrix_of(shape, dtype) if entry.expert is None else (math.prod(shape[:-1]), shape[-1])
    return shape, plain(rows, cols)


def _dense(entry: Entry, parts: Sequence[Tensor], shape: tuple[int, ...], layout: Layout, dtype: DType) -> Piece:
    conversions = [
        Conversion(part.dtype, dtype, layout.shift - part.layout.shift, factor=part.layout.scale) for part in parts
    ]
    return Piece(
        entry.name,
        entry.canonical,
        dtype,
        shape,
        layout,
        parts[0],
        conversions[0],
        _runs(entry, parts, parts, conversions),
    )


def _planes(entry: Entry, parts: Sequence[Tensor], shape: tuple[int, ...], layout: Layout, dtype: DType) -> Module:
    triple = triple_of(dtype)
    assert triple is not None
    q, cols = triple.quantization, layout.cols
    widths = (q.row_bytes(cols) // 4, cols // q.group_size, cols // q.group_size)
    pieces = []
    for number, plane in enumerate(plane_types(triple)):
        kept = [part.dtype is dtype for part in parts]
        sources = [part.planes[number] if same else part for part, same in zip(parts, kept, strict=True)]
        conversions = [
            Conversion(plane, plane) if same else Conversion(part.dtype, dtype, plane=number)
            for part, same in zip(parts, kept, strict=True)
        ]
        pieces.append(
            Piece(
                f"{entry.name.removesuffix('.weight')}.{PLANES[number]}",
                entry.canonical,
                plane,
                (*shape[:-1], widths[number]),
                layout.of_width(widths[number]),
                sources[0],
                conversions[0],
                _runs(entry, parts, sources, conversions),
                dtype,
            )
        )
    return tuple(pieces)


def _runs(
    entry: Entry, parts: Sequence[Tensor], sources: Sequence[Tensor], conversions: Sequence[Conversion]
) -> tuple[Run, ...]:
    """The rows, where they are not all rows of one tensor. ``sources`` are the parts, or one array of each."""
    if entry.expert is None and len(sources) == 1:
        return ()
    found, number = [], entry.expert or 0
    for part, source, conversion in zip(parts, sources, conversions, strict=True):
        each = source.layout.rows // (1 if entry.expert is None else part.shape[0])
        found.append(Run(source, conversion, number * each, (number + 1) * each))
    return tuple(found)
