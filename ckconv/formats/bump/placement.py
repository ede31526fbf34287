"""Where the tensors of a bump file lie: slot list + sizes + types -> canonical tensors with layouts and offsets.

The writer and the reader both call :func:`place`, so there is one description of the packing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ckconv.core.config import ModelConfig
from ckconv.core.dtypes import DTYPES, DType
from ckconv.core.layouts import Layout, column_blocks, headed, plain, shifted
from ckconv.core.tensors import matrix_of, with_layer
from ckconv.families.kinds import canonical_shape
from ckconv.families.names import shift_of
from ckconv.families.schema import Family
from ckconv.formats.bump.slots import CANONICAL, Part, Slot, SlotTable
from ckconv.formats.bump.spec import align


class Geometry(NamedTuple):
    """The sizes a bump layout needs, in elements; the aligned ones are what float rows and heads are padded to."""

    num_layers: int
    vocab: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head: int
    context: int
    aligned_hidden: int
    aligned_ffn: int
    aligned_head: int


def geometry(config: ModelConfig, *, context: int, step: int) -> Geometry:
    """The geometry of a model whose float rows and heads are padded to multiples of ``step`` elements."""
    return Geometry(
        config.num_layers,
        config.vocab_size,
        config.hidden_size,
        config.ffn_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        context,
        align(config.hidden_size, step),
        align(config.ffn_size, step),
        align(config.head_dim, step),
    )


def _headed(g: Geometry, heads: int, *, cols: int, stored_cols: int, interleaved: bool) -> Layout:
    return headed(heads, g.head, cols, head_stride=g.aligned_head, stored_cols=stored_cols, interleaved=interleaved)


def _attention_output(g: Geometry, dtype: DType) -> Layout:
    """Float Wo is one ``[aligned_hidden, aligned_head]`` block per head; quantised rows cannot be cut and stay flat."""
    if dtype.block == 1:
        return column_blocks(g.hidden, g.heads, g.head, block_rows=g.aligned_hidden, stored_cols=g.aligned_head)
    return _attention_output_flat(g)


def _attention_output_flat(g: Geometry) -> Layout:
    return plain(g.hidden, g.heads * g.head, stored_rows=g.aligned_hidden, stored_cols=g.heads * g.aligned_head)


#: The layouts that the slot lists name: (geometry, type, RoPE rows interleaved) -> layout.
LAYOUTS: dict[str, Callable[[Geometry, DType, bool], Layout]] = {
    "embedding": lambda g, t, i: plain(g.vocab, g.hidden, stored_cols=g.aligned_hidden),
    "positions": lambda g, t, i: plain(g.context, g.hidden, stored_cols=g.aligned_hidden),
    "hidden_vector": lambda g, t, i: plain(g.hidden, 1, stored_rows=g.aligned_hidden),
    # The norms of Q and K stand before RoPE: their elements go where the rows of every head go.
    "head_vector": lambda g, t, i: _headed(g, 1, cols=1, stored_cols=1, interleaved=i),
    "q_rows": lambda g, t, i: _headed(g, g.heads, cols=g.hidden, stored_cols=g.aligned_hidden, interleaved=i),
    "k_rows": lambda g, t, i: _headed(g, g.kv_heads, cols=g.hidden, stored_cols=g.aligned_hidden, interleaved=i),
    "v_rows": lambda g, t, i: _headed(g, g.kv_heads, cols=g.hidden, stored_cols=g.aligned_hidden, interleaved=False),
    "q_vector": lambda g, t, i: _headed(g, g.heads, cols=1, stored_cols=1, interleaved=i),
    "k_vector": lambda g, t, i: _headed(g, g.kv_heads, cols=1, stored_cols=1, interleaved=i),
    "v_vector": lambda g, t, i: _headed(g, g.kv_heads, cols=1, stored_cols=1, interleaved=False),
    "attention_output": lambda g, t, i: _attention_output(g, t),
    "attention_output_flat": lambda g, t, i: _attention_output_flat(g),
    "ffn_rows": lambda g, t, i: plain(g.ffn, g.hidden, stored_rows=g.aligned_ffn, stored_cols=g.aligned_hidden),
    "ffn_vector": lambda g, t, i: plain(g.ffn, 1, stored_rows=g.aligned_ffn),
    "down_rows": lambda g, t, i: plain(g.hidden, g.ffn, stored_rows=g.aligned_hidden, stored_cols=g.aligned_ffn),
}

_VECTORS = frozenset({"hidden_vector", "head_vector", "q_vector", "k_vector", "v_vector", "ffn_vector"})


class Placed(NamedTuple):
    """One tensor of a bump file: ``offset`` is absolute, in bytes; ``nbytes`` includes padding.

    ``canonical`` is the canonical name, empty for tokenizer content.
    """

    slot: Slot
    slot_name: str
    canonical: str
    dtype: DType
    shape: tuple[int, ...]
    layout: Layout
    offset: int
    nbytes: int


def slots_of(table: SlotTable, num_layers: int) -> Iterator[tuple[Slot, int | None]]:
    """Every slot of a model with its layer, in file order."""
    head, layer, tail = table
    yield from ((slot, None) for slot in head)
    for n in range(num_layers):
        yield from ((slot, n) for slot in layer if slot.layers is None or n in slot.layers)
    yield from ((slot, None) for slot in tail)


def place(
    table: SlotTable,
    g: Geometry,
    dtype_of: Callable[[Slot, int | None], DType],
    *,
    start: int,
    interleaved: bool,
    family: Family | None = None,
    content: Mapping[str, int] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> list[Placed]:
    """Lay all slots out back to back from byte ``start``.

    Args:
        table: the slots of one model (:func:`ckconv.formats.bump.slots.with_optional`).
        interleaved: Q and K rows are stored with RoPE pairs as neighbours.
        family: whose norms are stored shifted, if they are.
        content: bytes of each tokenizer slot in the table, by name.
        parameters: of the model, for slots of the family's own.
    """
    placed: list[Placed] = []
    kinds: dict[tuple[Part, DType], _Kind] = {}
    offset = start
    for slot, layer in slots_of(table, g.num_layers):
        if not slot.stored:
            continue
        if slot.content:
            placed.append(_place_content(slot, offset, (content or {})[slot.name]))
            offset += placed[-1].nbytes
            continue
        dtype = dtype_of(slot, layer)
        name = with_layer(slot.name, layer)
        for part in slot.parts:
            kind = kinds.get((part, dtype)) or kinds.setdefault(
                (part, dtype), _kind(part, dtype, g, interleaved, family, parameters or {})
            )
            canonical = with_layer(part.canonical, layer)
            placed.append(Placed(slot, name, canonical, dtype, kind.shape, kind.layout, offset, kind.nbytes))
            offset += kind.nbytes
    return placed


class _Kind(NamedTuple):
    """What a part of a slot is in every layer in which it has one type."""

    layout: Layout
    shape: tuple[int, ...]
    nbytes: int


def _kind(
    part: Part, dtype: DType, g: Geometry, interleaved: bool, family: Family | None, parameters: Mapping[str, Any]
) -> _Kind:
    shift = shift_of(family, part.canonical) if family else 0
    if part.layout == CANONICAL:
        shape = (canonical_shape(family, parameters, part.canonical) if family else None) or (1,)
        layout = plain(*matrix_of(shape, dtype))
    else:
        layout = LAYOUTS[part.layout](g, dtype, interleaved)
        shape = (layout.rows,) if part.layout in _VECTORS else (layout.rows, layout.cols)
    return _Kind(shifted(layout, shift) if shift else layout, shape, dtype.nbytes(layout.elements))


def _place_content(slot: Slot, offset: int, nbytes: int) -> Placed:
    dtype = DTYPES[slot.content]
    elements = nbytes // dtype.size
    return Placed(slot, slot.name, "", dtype, (elements,), plain(elements, 1), offset, nbytes)
