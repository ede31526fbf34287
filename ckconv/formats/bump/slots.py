"""Tensors of a bump file in order: a slot table by layout, and offsets."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ckconv.core.config import FIELD_OF, ModelConfig
from ckconv.core.layouts import DTYPES, F32, DType, Kind, Layout, column_blocks, headed, plain, shifted
from ckconv.core.lazy import NamedTuple, table_of
from ckconv.core.tensors import Extent, StoredTensor, Tensor, matrix_of
from ckconv.families import catalog, names, schema, sizes
from ckconv.families.expressions import FULL, PERIOD, SLIDING, slides
from ckconv.families.parameters import scope_of
from ckconv.plan.steps import Reason

# -- Layers with a window and a RoPE base, as engines expect them ------------------------------------------------------

#: The RoPE base of the sliding layers, where nothing else is stated (``Gemma3TextConfig`` of transformers 5).
LOCAL_ROPE_THETA = 10_000.0


def periodic(layers: int, period: int) -> tuple[str, ...]:
    """Every ``period``-th layer has full attention; 1: all, 0: none."""
    return tuple(slides(layers, period))


def _period_of(kinds: Sequence[str]) -> int | None:
    """Period of full attention that gives these layers, or ``None``."""
    period = kinds.index(FULL) + 1 if FULL in kinds else max(PERIOD, len(kinds) + 1)
    return period if kinds == periodic(len(kinds), period) else None


def layers_of(config: ModelConfig) -> tuple[str, ...]:
    """Which layers slide; the usual ones where the source does not say."""
    return config.layer_types or periodic(config.num_layers, PERIOD if config.sliding_window else 1)


def local_theta_of(config: ModelConfig) -> float:
    """The RoPE base of the sliding layers."""
    return config.local_rope_theta or LOCAL_ROPE_THETA


def unusual(config: ModelConfig, format: str) -> Iterator[str]:
    """Source keys whose causality, cap or scale is not what engines assume."""
    family = catalog.FAMILIES[config.family]
    scope = scope_of(family, config)

    def key(name: str, of_a_document: str) -> str:
        return next(iter(catalog.field_keys(config, FIELD_OF.get(name, name), format)), of_a_document)

    if "causal" in family.parameters and not scope["causal"]:
        yield f"{key('causal', 'is_causal')} = False"
    if "final_cap" in family.parameters and scope["final_cap"]:
        yield f"{key('final_cap', 'final_logit_softcapping')} = {scope['final_cap']:g}"
    if "query_scalar" in family.parameters and scope["query_scalar"] != config.head_dim:
        yield f"query_pre_attn_scalar = {scope['query_scalar']:g} beside head_dim = {config.head_dim}"


# -- Tensors of a bump file in order: one table of slots a layout ------------------------------------------------------

# The bump files of C-Kernel-Engine, byte by byte: what stands around the slots, shared by reader and writer.
#
# Sources: the engine's ``scripts/convert_gguf_to_bump.py`` and ``convert_hf_to_bump.py`` for what version 3 is,
# ``version/v7/scripts/convert_gguf_to_bump_v7.py`` and ``include/ckernel_bump_v5.h`` for versions 4 and 5, the loaders
# emitted by ``src/ckernel_codegen.c`` for what is read. All integers are little-endian, and nothing in the payload is
# aligned. The slots are in :mod:`ckconv.formats.bump.slots`.

MAGIC: dict[int, bytes] = {3: b"BUMPWGT3", 4: b"BUMPWGT4", 5: b"BUMPWGT5"}
VERSIONS: dict[bytes, int] = {magic: version for version, magic in MAGIC.items()}

#: Bytes of every header; the checksum of version 3 covers everything after it.
HEADER_BYTES = 128

#: Zero bytes between the header and the dtype table in the newer layouts of versions 4 and 5 ("extended metadata").
EXTENSION_BYTES = 24
EXTENDED_HEADER_BYTES = HEADER_BYTES + EXTENSION_BYTES

#: Every float row and head of version 3 is padded to this many elements: 64 bytes of FP32.
ALIGN_ELEMENTS = 16

#: The model_type field has one value ("legacy").
MODEL_TYPE = 1

#: Size in a header -> what the engine's documents call it, in the order of its manifest.
WORDS: dict[str, str] = {
    "num_layers": "num_layers",
    "hidden_size": "embed_dim",
    "num_heads": "num_heads",
    "num_kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "ffn_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "context_length": "context_length",
}

# Offsets of what follows the magic: 0x08 version, 0x0C model type, 0x10 layers, 0x14 vocabulary, 0x18 hidden,
# 0x1C context, 0x20 heads, 0x24 head size, 0x28 aligned hidden, 0x30 aligned head size, 0x38 aligned context,
# 0x40 sha256 of 0x80 to the end, 0x60 zero.
HEADER_V3 = struct.Struct("<8s8I3Q32s32s")
_FIELDS_V3 = (
    *("version", "model_type", "num_layers", "vocab_size", "hidden_size", "context_length", "num_heads", "head_dim"),
    *("aligned_hidden", "aligned_head", "aligned_context", "sha256", "reserved"),
)

# 0x08 version, 0x0C model type, 0x10 layers, 0x14 vocabulary, 0x18 hidden, 0x1C feed-forward, 0x20 context, 0x24 heads,
# 0x28 key/value heads, 0x2C head size, 0x30 aligned hidden, 0x38 aligned head size, 0x40 aligned feed-forward,
# 0x48 aligned context.
HEADER_V4 = struct.Struct("<8s10I4Q")
_FIELDS_V4 = (
    *("version", "model_type", "num_layers", "vocab_size", "hidden_size", "ffn_size", "context_length"),
    *("num_heads", "num_kv_heads", "head_dim", "aligned_hidden", "aligned_head", "aligned_ffn", "aligned_context"),
)

# What follows at 0x50: the sha256 at once, or the number of merges and the bytes of token strings before it; zeros.
_TAIL_PLAIN = struct.Struct("<32s16s")
_TAIL_TOKENIZER = struct.Struct("<II32s8s")
_FIELDS_PLAIN = ("sha256", "reserved")
_FIELDS_TOKENIZER = ("num_merges", "total_vocab_bytes", "sha256", "reserved")

#: Length of the dtype table, before the table itself.
TABLE_LENGTH = struct.Struct("<I")

#: The last bytes of version 5: magic, bytes of the metadata before it, their sha256.
FOOTER = struct.Struct("<8sQ32s")
FOOTER_MAGIC = b"BUMPV5MD"


def align(elements: int, to: int = ALIGN_ELEMENTS) -> int:
    """``elements`` rounded up to a multiple of ``to``."""
    return -(-elements // to) * to


class HeaderV3(NamedTuple):
    """The fields of a version 3 header, in file order; sizes in elements."""

    num_layers: int
    vocab_size: int
    hidden_size: int
    context_length: int
    num_heads: int
    head_dim: int
    aligned_hidden: int
    aligned_head: int
    aligned_context: int
    sha256: bytes
    reserved: bytes = bytes(32)
    version: int = 3
    model_type: int = MODEL_TYPE

    def pack(self) -> bytes:
        """The 128 bytes."""
        return HEADER_V3.pack(MAGIC[3], *(getattr(self, field) for field in _FIELDS_V3))

    @classmethod
    def unpack(cls, data: bytes) -> HeaderV3:
        """Read 128 bytes; no field is judged here."""
        return cls(**dict(zip(_FIELDS_V3, HEADER_V3.unpack(data)[1:], strict=True)))


class HeaderV4(NamedTuple):
    """Fields of a version 4 or 5 header, in file order.

    Sizes are in elements, ``total_vocab_bytes`` in bytes.

    Attributes:
        tokenizer_fields: the two counts stand before the checksum; the oldest and the Hugging Face scripts have none.
    """

    num_layers: int
    vocab_size: int
    hidden_size: int
    ffn_size: int
    context_length: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    aligned_hidden: int
    aligned_head: int
    aligned_ffn: int
    aligned_context: int
    sha256: bytes
    num_merges: int = 0
    total_vocab_bytes: int = 0
    reserved: bytes = bytes(8)
    version: int = 5
    model_type: int = MODEL_TYPE
    tokenizer_fields: bool = True

    @property
    def reserved_at(self) -> int:
        """Where the reserved bytes begin."""
        return HEADER_BYTES - len(self.reserved)

    def pack(self) -> bytes:
        """The 128 bytes."""
        fixed = HEADER_V4.pack(MAGIC[self.version], *(getattr(self, field) for field in _FIELDS_V4))
        tail, fields = _tail(self.tokenizer_fields)
        return fixed + tail.pack(*(getattr(self, field) for field in fields))

    @classmethod
    def unpack(cls, data: bytes, *, tokenizer_fields: bool) -> HeaderV4:
        """Read 128 bytes; no field is judged here."""
        values = dict(zip(_FIELDS_V4, HEADER_V4.unpack_from(data)[1:], strict=True))
        tail, fields = _tail(tokenizer_fields)
        values |= dict(zip(fields, tail.unpack_from(data, HEADER_V4.size), strict=True))
        return cls(**values, tokenizer_fields=tokenizer_fields)


def _tail(tokenizer_fields: bool) -> tuple[struct.Struct, tuple[str, ...]]:
    """Layout of the rest of a version 4 or 5 header, and its fields."""
    return (_TAIL_TOKENIZER, _FIELDS_TOKENIZER) if tokenizer_fields else (_TAIL_PLAIN, _FIELDS_PLAIN)


def canonical_json(document: Any) -> bytes:
    """JSON as the format hashes it: sorted keys, no spaces, ASCII."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


#: What the document in a bump 5 file is called beside its files.
FOOTER_NAME = "the file's metadata"

#: Fields of a header that say nothing of the model.
_NOT_OF_THE_MODEL = ("sha256", "reserved", "tokenizer_fields")


def sizes_of(header: HeaderV3 | HeaderV4) -> dict[str, int]:
    """Sizes in a header that the engine's documents repeat, by field."""
    return {field: number for field, number in header._asdict().items() if field in WORDS}


def fields_of(header: HeaderV3 | HeaderV4) -> dict[str, Any]:
    """Fields of a header about the model, by name."""
    return {f"header.{name}": value for name, value in header._asdict().items() if name not in _NOT_OF_THE_MODEL}


# What lies in a bump file and in which order: one table of slots a layout, ``layouts.toml``.


class Part(NamedTuple):
    """Canonical rows inside a slot, placed by a row of the layout table."""

    canonical: str
    layout: str


class Slot(NamedTuple):
    """One entry of a bump file.

    Attributes:
        name: the engine's name for it; ``{n}`` is the layer.
        parts: what lies in it, in order; empty for tokenizer content.
        fp32: its type is FP32 whatever the model's is.
        zero_if_absent: zeros stand for a tensor that the model does not have.
        optional: the slot is only there if the model has it.
        coded: it has a byte in the dtype table.
        stored: it has bytes in the payload.
        content: element type of tokenizer content, by its name in :data:`ckconv.core.layouts.DTYPES`.
        layers: those that have it, where not all do.
    """

    name: str
    parts: tuple[Part, ...]
    fp32: bool = False
    zero_if_absent: bool = False
    optional: bool = False
    coded: bool = True
    stored: bool = True
    content: str = ""
    layers: frozenset[int] | None = None


#: Slots before the layers, of each layer, and after them. Order is the file's and the dtype table's.
SlotTable = tuple[tuple[Slot, ...], tuple[Slot, ...], tuple[Slot, ...]]


def _slot(name: str, row: Mapping[str, Any]) -> Slot:
    return Slot(**{**row, "name": name, "parts": tuple(Part(*part) for part in row.get("parts", ()))})


_DATA = table_of(Path(__file__).with_name("layouts.toml"))
_SLOTS = {
    key: _slot(prefix + row.get("name", key), row)
    for section, prefix in (("model", ""), ("layer", "layer.{n}."))
    for key, row in _DATA[section].items()
}

#: Layout -> its slots.
TABLES: Mapping[str, SlotTable] = {
    layout: (
        tuple(_SLOTS[key] for key in row["before"]),
        tuple(_SLOTS[key] for key in row["layer"]),
        tuple(_SLOTS[key] for key in row["behind"]),
    )
    for layout, row in _DATA["layouts"].items()
}

#: Tokenizer content in file order.
CONTENT = tuple(slot for slot in _SLOTS.values() if slot.content)

#: Block types that have a number in a dtype table.
BLOCKS = tuple(dtype.name for dtype in DTYPES.values() if dtype.kind is Kind.BLOCK and dtype.bump_v4 is not None)

#: The manifest's word for each type of :data:`ckconv.core.layouts.DTYPES`; tokenizer content has its own.
TYPE_WORDS: dict[str, str] = {
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "I8": "int8",
    **{name: name.lower() for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q8_K")},
}
CONTENT_WORDS: dict[str, str] = {"I32": "i32", "U8": "u8", "F32": "f32"}

#: Matrices of a layer whose types the manifest's ``quant_summary`` lists.
SUMMARIZED = ("wq", "wk", "wv", "wo", "w1", "w2")

#: Other names that the engine's builder takes for an entry (``WEIGHT_PATTERNS`` of ``build_ir_v7.py``).
ALIASES: dict[str, str] = {
    "token_embd.weight": "token_emb",
    "embed_tokens.weight": "token_emb",
    "lm_head.weight": "output.weight",
    "norm.weight": "final_ln_weight",
    "norm.bias": "final_ln_bias",
}


#: The layout of a part whose rows lie in canonical order, whatever its shape is.
CANONICAL = "canonical"


def own_slots(
    entries: Iterable[tuple[str, Sequence[str], bool, frozenset[int] | None]], *, final_bias: bool
) -> SlotTable:
    """Slot table of a family with layers of its own.

    ``convert_gguf_to_bump_v8.py``: the tokenizer behind everything.

    Args:
        entries: of a layer: name, canonical names of its tensors, whether it is FP32, and the layers that have it.
        final_bias: zeros stand behind the last norm.
    """
    layer = (
        Slot(f"layer.{{n}}.{name}", tuple(Part(tensor, CANONICAL) for tensor in tensors), fp32, layers=layers)
        for name, tensors, fp32, layers in entries
    )
    before = _SLOTS["token_emb"], _SLOTS["output.weight"]
    norm = [_SLOTS["final_ln_weight"], *([_SLOTS["final_ln_bias"]] if final_bias else [])]
    return before, tuple(layer), (*norm, *CONTENT)


def key_of(slot: Slot) -> str:
    """Key of an optional slot: canonical tensor, or its name for content."""
    return slot.parts[0].canonical if slot.parts else slot.name


def with_optional(table: SlotTable, present: Collection[str]) -> SlotTable:
    """Slot table with those optional slots whose :func:`key_of` is present."""
    head, layer, tail = (
        tuple(slot for slot in group if not slot.optional or key_of(slot) in present) for group in table
    )
    return head, layer, tail


def table_entries(table: SlotTable, num_layers: int) -> int:
    """Bytes of the dtype table."""
    head, tail = (sum(slot.coded for slot in table[at]) for at in (0, 2))
    in_layers = (num_layers if slot.layers is None else len(slot.layers) for slot in table[1] if slot.coded)
    return head + sum(in_layers) + tail


# Which of the engine's snapshots computes a bump 3 or 4 file: nothing in the file says for which one it was made.
#
# Sources: ``load_weight_dtypes`` of ``src/ckernel_codegen.c`` and ``src/kernels/dequant_kernels.c`` of the snapshots of
# January and April 2026, and logits of files of each kind in each snapshot.

#: Rows of family files: the generated runtime of bump 3, the one that goes by templates, of bump 4 and 5, and the one
#: that trains.
GENERATED, TEMPLATED, TRAINED = "bump3", "bump5", "bump_trained"

#: Types of whose blocks a bump 3 file is computed by one snapshot at most.
K_QUANTS = frozenset({"Q4_K", "Q6_K"})

_NEWER = "v7 and v8 want bump 5"

#: The January engine with bump 4 in its own layout has the same magic.
FOR_V7_AND_V8 = (
    "layout D, for v7 and v8 only: the v4 engine of January 2026 loads the file without a complaint, takes it for its "
    "own layout and computes garbage"
)


def computed_by(types: Collection[str], numbering: str) -> str:
    """Snapshots that compute a bump 3 file with these types.

    Empty where every snapshot with that format does.

    Args:
        types: their names.
        numbering: of its dtype table, ``v3`` or ``v4``.
    """
    if never := sorted({*types} - K_QUANTS - {"F32"}):  # the loader's init fails with -6
        return f"no engine of bump 3 loads {' and '.join(never)} matrices"
    named = " and ".join(sorted(K_QUANTS & set(types)))
    if not named:
        return ""
    if numbering == "v4":
        return f"{named} by the codes 7 and 8: only the v1 runtime of April 2026 computes it; {_NEWER}"
    if "Q4_K" in types:
        return (
            f"{named} by the codes 6 and 7: no known engine computes it. The engine of January 2026 has another Q4_K "
            f"than ggml's, April's v1 runtime wants --dtype-codes v4, {_NEWER}"
        )
    return (
        f"{named} by the code 7: only the engine of January 2026 computes it. April's v1 runtime takes it for Q4_K and "
        f"computes NaN: it wants --dtype-codes v4; {_NEWER}"
    )


# Where the tensors of a bump file lie: slot list + sizes + types -> canonical tensors with layouts and offsets.
#
# The writer and the reader both call :func:`place`, so there is one description of the packing.


class Geometry(NamedTuple):
    """Sizes in elements; aligned ones include padding of rows and heads."""

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


#: Fields of a header that a geometry has, in its order.
SIZES = (
    *("num_layers", "vocab_size", "hidden_size", "ffn_size", "num_heads", "num_kv_heads", "head_dim", "context_length"),
    *("aligned_hidden", "aligned_ffn", "aligned_head"),
)


def geometry(config: ModelConfig, *, context: int, step: int) -> Geometry:
    """Geometry with float rows and heads padded to multiples of ``step``."""
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


def _attention_output(g: Geometry, *, flat: bool) -> Layout:
    """Slot of Wo: ``[aligned_hidden, aligned_head]`` a head, or flat rows."""
    if not flat:
        return column_blocks(g.hidden, g.heads, g.head, block_rows=g.aligned_hidden, stored_cols=g.aligned_head)
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
    # Rows of blocks cannot be cut.
    "attention_output": lambda g, t, i: _attention_output(g, flat=t.block > 1),
    "attention_output_flat": lambda g, t, i: _attention_output(g, flat=True),
    "ffn_rows": lambda g, t, i: plain(g.ffn, g.hidden, stored_rows=g.aligned_ffn, stored_cols=g.aligned_hidden),
    "ffn_vector": lambda g, t, i: plain(g.ffn, 1, stored_rows=g.aligned_ffn),
    "down_rows": lambda g, t, i: plain(g.hidden, g.ffn, stored_rows=g.aligned_hidden, stored_cols=g.aligned_ffn),
}

_VECTORS = frozenset({"hidden_vector", "head_vector", "q_vector", "k_vector", "v_vector", "ffn_vector"})


class PlacedTensor(NamedTuple):
    """Placed tensor of a bump file.

    Attributes:
        canonical: its canonical name, empty for tokenizer content.
        offset, nbytes: absolute, and with padding.
    """

    slot: Slot
    slot_name: str
    canonical: str
    dtype: DType
    shape: tuple[int, ...]
    layout: Layout
    offset: int
    nbytes: int

    def stored(self, path: Path) -> StoredTensor:
        """Stored form of a slot, or of one of its parts."""
        name = self.canonical or self.slot_name
        return StoredTensor(name, self.dtype, self.shape, Extent(path, self.offset, self.nbytes))

    def tensor(self, path: Path) -> Tensor:
        """The canonical tensor in a slot."""
        return Tensor(
            self.canonical,
            self.slot_name,
            self.dtype,
            self.shape,
            (Extent(path, self.offset, self.nbytes),),
            self.layout,
            may_be_absent=self.slot.zero_if_absent,
        )


def tensors_of(path: Path, placed: Iterable[PlacedTensor]) -> dict[str, Any]:
    """Fields of an index about tensors that are stored under canonical names."""
    tensors = {item.canonical: item.tensor(path) for item in placed}
    stored = tuple(item.stored(path) for item in placed)
    return {"stored": stored, "tensors": tensors, "canonical_of": {name: (name,) for name in tensors}}


def slots_of(table: SlotTable, num_layers: int) -> list[tuple[str, Slot, list[str]]]:
    """Every slot of a model in file order: name, slot, canonical names in it."""
    head, layer, tail = table
    in_layers = ((slot, n) for n in range(num_layers) for slot in layer if slot.layers is None or n in slot.layers)
    each = (*((slot, "") for slot in head), *in_layers, *((slot, "") for slot in tail))
    return [
        (slot.name.replace("{n}", str(n)), slot, [part.canonical.replace("{n}", str(n)) for part in slot.parts])
        for slot, n in each
    ]


def place(
    table: SlotTable,
    g: Geometry,
    types: Mapping[str, DType] | None,
    *,
    start: int,
    interleaved: bool,
    family: schema.Family | None = None,
    content: Mapping[str, int] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> list[PlacedTensor]:
    """Lay all slots out back to back from byte ``start``.

    Args:
        table: the slots of one model (:func:`ckconv.formats.bump.slots.with_optional`).
        types: by slot name; ``None``: all are FP32.
        interleaved: Q and K rows are stored with RoPE pairs as neighbors.
        family: whose norms are stored shifted, if they are.
        content: bytes of each tokenizer slot in the table, by name.
        parameters: of the model, for slots of the family's own.
    """
    placed: list[PlacedTensor] = []
    kinds: dict[tuple[Part, DType], _Kind] = {}
    offset = start
    for name, slot, owned in slots_of(table, g.num_layers):
        if not slot.stored:
            continue
        if slot.content:
            placed.append(_place_content(slot, offset, (content or {})[slot.name]))
            offset += placed[-1].nbytes
            continue
        dtype = F32 if types is None else types[name]
        for part, canonical in zip(slot.parts, owned, strict=True):
            kind = kinds.get((part, dtype)) or kinds.setdefault(
                (part, dtype), _kind(part, dtype, g, interleaved, family, parameters or {})
            )
            placed.append(PlacedTensor(slot, name, canonical, dtype, kind.shape, kind.layout, offset, kind.nbytes))
            offset += kind.nbytes
    return placed


class _Kind(NamedTuple):
    """Layout of a part of a slot, in every layer of one type."""

    layout: Layout
    shape: tuple[int, ...]
    nbytes: int


def _kind(
    part: Part,
    dtype: DType,
    g: Geometry,
    interleaved: bool,
    family: schema.Family | None,
    parameters: Mapping[str, Any],
) -> _Kind:
    shift = names.shift_of(family, part.canonical) if family else 0
    if part.layout == CANONICAL:
        shape = (sizes.canonical_shape(family, parameters, part.canonical) if family else None) or (1,)
        layout = plain(*matrix_of(shape, dtype))
    else:
        layout = LAYOUTS[part.layout](g, dtype, interleaved)
        shape = (layout.rows,) if part.layout in _VECTORS else (layout.rows, layout.cols)
    return _Kind(shifted(layout, shift) if shift else layout, shape, dtype.nbytes(layout.elements))


def _place_content(slot: Slot, offset: int, nbytes: int) -> PlacedTensor:
    dtype = DTYPES[slot.content]
    elements = nbytes // dtype.size
    return PlacedTensor(slot, slot.name, "", dtype, (elements,), plain(elements, 1), offset, nbytes)


# Families with layers that slide in bump 5: the engine rotates all layers by one base, and slides in all of them.
#
# Source: logits of v7 and v8 against a forward pass with one base and a window in every layer, and against
# transformers.


def engine_reasons(config: ModelConfig, context: int) -> Iterator[Reason]:
    """Why the engine would compute something else than the model.

    Args:
        context: context length in the output.
    """
    layers, local, window = layers_of(config), local_theta_of(config), config.sliding_window
    if SLIDING in layers and local != config.rope_theta:
        yield Reason(
            f"RoPE's base is {local:,.9g} in {layers.count(SLIDING)} of {len(layers)} layers; the engine rotates all "
            f"layers of {config.family} by {config.rope_theta:,.9g}"
        )
    if window and window < context and FULL in layers:
        yield Reason(
            f"{layers.count(FULL)} of {len(layers)} layers attend to all {context:,} tokens; the engine slides over "
            f"{window:,} in every layer of {config.family}",
            f"--context {window} makes them the same",
        )


def carried(config: ModelConfig, family: schema.Family) -> dict[str, Any]:
    """Keys that the engine ignores and a reader needs for the model."""
    row = family.engines.get(TEMPLATED)
    if row is None or "window" not in row.reads:
        return {}
    found: dict[str, Any] = {}
    layers, local = layers_of(config), local_theta_of(config)
    if local != LOCAL_ROPE_THETA:
        found["rope_local_base_freq"] = local
    if config.sliding_window and layers != periodic(len(layers), PERIOD):
        found["sliding_window_pattern"] = _period_of(layers)
    return found
