"""Where the tensors of a bump file lie: slot list + sizes + types -> canonical tensors with layouts and offsets.

The writer and the reader both call :func:`place`, so there is one description of the packing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ckconv.dtypes import DType
from ckconv.formats.bump import Part, Slot, align
from ckconv.model.config import ModelConfig
from ckconv.model.layouts import Layout, column_blocks, headed, plain
from ckconv.model.names import with_layer


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes a bump layout needs, in elements; ``step`` is what float rows and heads are rounded up to."""

    num_layers: int
    vocab: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head: int
    context: int
    step: int

    @property
    def aligned_hidden(self) -> int:
        """The hidden size, rounded up."""
        return align(self.hidden, self.step)

    @property
    def aligned_ffn(self) -> int:
        """The feed-forward size, rounded up."""
        return align(self.ffn, self.step)

    @property
    def aligned_head(self) -> int:
        """The head size, rounded up."""
        return align(self.head, self.step)

    @property
    def aligned_context(self) -> int:
        """The context length, rounded up."""
        return align(self.context, self.step)


def geometry(config: ModelConfig, *, context: int, step: int) -> Geometry:
    """The geometry of a model."""
    return Geometry(
        config.num_layers,
        config.vocab_size,
        config.hidden_size,
        config.ffn_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        context,
        step,
    )


def _headed(g: Geometry, heads: int, *, cols: int, stored_cols: int, interleaved: bool) -> Layout:
    return headed(heads, g.head, cols, head_stride=g.aligned_head, stored_cols=stored_cols, interleaved=interleaved)


def _attention_output(g: Geometry, dtype: DType) -> Layout:
    """Float Wo is one ``[aligned_hidden, aligned_head]`` block per head; quantised rows cannot be cut and stay flat."""
    if dtype.block == 1:
        return column_blocks(g.hidden, g.heads, g.head, block_rows=g.aligned_hidden, stored_cols=g.aligned_head)
    return plain(g.hidden, g.heads * g.head, stored_rows=g.aligned_hidden, stored_cols=g.heads * g.aligned_head)


#: The layouts that the slot lists name: (geometry, type, RoPE rows interleaved) -> layout.
LAYOUTS: dict[str, Callable[[Geometry, DType, bool], Layout]] = {
    "embedding": lambda g, t, i: plain(g.vocab, g.hidden, stored_cols=g.aligned_hidden),
    "positions": lambda g, t, i: plain(g.context, g.hidden, stored_cols=g.aligned_hidden),
    "hidden_vector": lambda g, t, i: plain(g.hidden, 1, stored_rows=g.aligned_hidden),
    "q_rows": lambda g, t, i: _headed(g, g.heads, cols=g.hidden, stored_cols=g.aligned_hidden, interleaved=i),
    "k_rows": lambda g, t, i: _headed(g, g.kv_heads, cols=g.hidden, stored_cols=g.aligned_hidden, interleaved=i),
    "v_rows": lambda g, t, i: _headed(g, g.kv_heads, cols=g.hidden, stored_cols=g.aligned_hidden, interleaved=False),
    "q_vector": lambda g, t, i: _headed(g, g.heads, cols=1, stored_cols=1, interleaved=i),
    "k_vector": lambda g, t, i: _headed(g, g.kv_heads, cols=1, stored_cols=1, interleaved=i),
    "v_vector": lambda g, t, i: _headed(g, g.kv_heads, cols=1, stored_cols=1, interleaved=False),
    "attention_output": lambda g, t, i: _attention_output(g, t),
    "ffn_rows": lambda g, t, i: plain(g.ffn, g.hidden, stored_rows=g.aligned_ffn, stored_cols=g.aligned_hidden),
    "ffn_vector": lambda g, t, i: plain(g.ffn, 1, stored_rows=g.aligned_ffn),
    "down_rows": lambda g, t, i: plain(g.hidden, g.ffn, stored_rows=g.aligned_hidden, stored_cols=g.aligned_ffn),
}

_VECTORS = frozenset({"hidden_vector", "q_vector", "k_vector", "v_vector", "ffn_vector"})


@dataclass(frozen=True, slots=True)
class Placed:
    """One canonical tensor in a bump file: ``offset`` is absolute, in bytes; ``nbytes`` includes padding."""

    slot: Slot
    slot_name: str
    canonical: str
    dtype: DType
    shape: tuple[int, ...]
    layout: Layout
    offset: int
    nbytes: int


def slots_of(table: tuple[tuple[Slot, ...], ...], num_layers: int) -> Iterator[tuple[Slot, int | None]]:
    """Every slot of a model with its layer, in file order."""
    head, layer, tail = table
    yield from ((slot, None) for slot in head)
    for n in range(num_layers):
        yield from ((slot, n) for slot in layer)
    yield from ((slot, None) for slot in tail)


def place(
    table: tuple[tuple[Slot, ...], ...],
    g: Geometry,
    dtype_of: Callable[[Slot, int | None], DType],
    *,
    start: int,
    interleaved: bool,
) -> list[Placed]:
    """Lay all slots out back to back from byte ``start``."""
    placed = []
    offset = start
    for slot, layer in slots_of(table, g.num_layers):
        dtype = dtype_of(slot, layer)
        for part in slot.parts:
            item = _place_part(slot, part, layer, g, dtype, offset, interleaved)
            placed.append(item)
            offset += item.nbytes
    return placed


def _place_part(
    slot: Slot, part: Part, layer: int | None, g: Geometry, dtype: DType, offset: int, interleaved: bool
) -> Placed:
    layout = LAYOUTS[part.layout](g, dtype, interleaved)
    shape = (layout.rows,) if part.layout in _VECTORS else (layout.rows, layout.cols)
    return Placed(
        slot,
        with_layer(slot.name, layer),
        with_layer(part.canonical, layer),
        dtype,
        shape,
        layout,
        offset,
        dtype.nbytes(layout.elements),
    )
