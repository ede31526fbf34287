"""The arrays that one tensor of a checkpoint is written as, and the rows that go into them."""

from __future__ import annotations

from collections.abc import Sequence

from ckconv.core.dtypes import DType
from ckconv.core.layouts import plain, transposed
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


def module_of(entry: Entry, parts: Sequence[Tensor], dtype: DType) -> Module:
    """What is written for ``entry``.

    Args:
        parts: the tensors of ``entry.parts``.
        dtype: of all of them in the output; an MLX triple's is written as one array a plane.
    """
    shape = _shape(entry, parts)
    if triple_of(dtype) is None:
        return (_dense(entry, parts, shape, dtype),)
    return _planes(entry, parts, shape, dtype)


def _shape(entry: Entry, parts: Sequence[Tensor]) -> tuple[int, ...]:
    """The canonical shape of the whole."""
    first = parts[0].shape
    if entry.expert is not None:
        return first[1:]
    return first if len(parts) == 1 else (sum(part.shape[0] for part in parts), *first[1:])


def _dense(entry: Entry, parts: Sequence[Tensor], shape: tuple[int, ...], dtype: DType) -> Piece:
    rows, cols = matrix_of(shape, dtype)
    conversions = [Conversion(part.dtype, dtype, -part.layout.shift, factor=part.layout.scale) for part in parts]
    return Piece(
        entry.name,
        entry.canonical,
        dtype,
        shape[::-1] if entry.transposed else shape,
        transposed(rows, cols) if entry.transposed else plain(rows, cols),
        parts[0],
        conversions[0],
        _runs(entry, parts, conversions, rows),
    )


def _planes(entry: Entry, parts: Sequence[Tensor], shape: tuple[int, ...], dtype: DType) -> Module:
    triple = triple_of(dtype)
    assert triple is not None
    rows, cols = matrix_of(shape, dtype)
    q = triple.quantization
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
                plain(rows, widths[number]),
                sources[0],
                conversions[0],
                _runs(entry, sources, conversions, rows),
                dtype,
            )
        )
    return tuple(pieces)


def _runs(entry: Entry, sources: Sequence[Tensor], conversions: Sequence[Conversion], rows: int) -> tuple[Run, ...]:
    """The rows, where they are not all rows of one tensor; ``rows`` is how many the whole has."""
    if entry.expert is not None:
        return (Run(sources[0], conversions[0], entry.expert * rows, (entry.expert + 1) * rows),)
    if len(sources) == 1:
        return ()
    return tuple(Run(s, c, 0, s.layout.rows) for s, c in zip(sources, conversions, strict=True))
