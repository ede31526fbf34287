"""What lies in a bump file and in which order: one table of slots a layout. Versions differ in tables, not in code.

Sources: as in :mod:`ckconv.formats.bump.spec`; for the layouts A, B, C and E of version 4 the scripts named at each
table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ckconv.core.dtypes import DTYPES, Kind


class Part(NamedTuple):
    """Canonical rows inside a slot: the canonical tensor, and the row of the layout table that places it."""

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
        content: element type of tokenizer content, by its name in :data:`ckconv.core.dtypes.DTYPES`.
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


def _matrix(name: str, *parts: tuple[str, str], optional: bool = False) -> Slot:
    return Slot(name, tuple(Part(*part) for part in parts), optional=optional)


def _vector(name: str, canonical: str, layout: str, *, optional: bool = False, coded: bool = True) -> Slot:
    return Slot(name, (Part(canonical, layout),), fp32=True, optional=optional, coded=coded)


def _bias(name: str, *parts: tuple[str, str]) -> Slot:
    return Slot(name, tuple(Part(*part) for part in parts), fp32=True, zero_if_absent=True)


def _content(name: str, dtype: str) -> Slot:
    return Slot(name, (), optional=True, coded=False, content=dtype)


_TOKEN_EMB = _matrix("token_emb", ("token_embedding.weight", "embedding"))
_POS_EMB = _bias("pos_emb", ("position_embedding.weight", "positions"))
_LN1 = _vector("layer.{n}.ln1_gamma", "layers.{n}.attention_norm.weight", "hidden_vector")
_LN2 = _vector("layer.{n}.ln2_gamma", "layers.{n}.ffn_norm.weight", "hidden_vector")
_WQ = _matrix("layer.{n}.wq", ("layers.{n}.attention.q.weight", "q_rows"))
_BQ = _bias("layer.{n}.bq", ("layers.{n}.attention.q.bias", "q_vector"))
_WK = _matrix("layer.{n}.wk", ("layers.{n}.attention.k.weight", "k_rows"))
_BK = _bias("layer.{n}.bk", ("layers.{n}.attention.k.bias", "k_vector"))
_WV = _matrix("layer.{n}.wv", ("layers.{n}.attention.v.weight", "v_rows"))
_BV = _bias("layer.{n}.bv", ("layers.{n}.attention.v.bias", "v_vector"))
_WO_PACKED = _matrix("layer.{n}.wo", ("layers.{n}.attention.output.weight", "attention_output"))
_WO_FLAT = _matrix("layer.{n}.wo", ("layers.{n}.attention.output.weight", "attention_output_flat"))
_BO = _bias("layer.{n}.bo", ("layers.{n}.attention.output.bias", "hidden_vector"))
_W1 = _matrix("layer.{n}.w1", ("layers.{n}.ffn.gate.weight", "ffn_rows"), ("layers.{n}.ffn.up.weight", "ffn_rows"))
_B1 = _bias("layer.{n}.b1", ("layers.{n}.ffn.gate.bias", "ffn_vector"), ("layers.{n}.ffn.up.bias", "ffn_vector"))
_W2 = _matrix("layer.{n}.w2", ("layers.{n}.ffn.down.weight", "down_rows"))
_B2 = _bias("layer.{n}.b2", ("layers.{n}.ffn.down.bias", "hidden_vector"))
_FINAL = _vector("final_ln_weight", "output_norm.weight", "hidden_vector")
_FINAL_BIAS = _bias("final_ln_bias", ("output_norm.bias", "hidden_vector"))
_HEAD = _matrix("output.weight", ("output.weight", "embedding"), optional=True)
_LM_HEAD = _HEAD._replace(name="lm_head_weight")
# Slots of families that have them. The norms of Q and K never have a byte in the dtype table, the others do.
_Q_NORM = _vector("layer.{n}.q_norm", "layers.{n}.attention.q_norm.weight", "head_vector", optional=True, coded=False)
_K_NORM = _vector("layer.{n}.k_norm", "layers.{n}.attention.k_norm.weight", "head_vector", optional=True, coded=False)
_POST_ATTENTION = _vector(
    "layer.{n}.post_attention_norm", "layers.{n}.post_attention_norm.weight", "hidden_vector", optional=True
)
_POST_FFN = _vector("layer.{n}.post_ffn_norm", "layers.{n}.post_ffn_norm.weight", "hidden_vector", optional=True)

_OFFSETS, _STRINGS = _content("vocab_offsets", "I32"), _content("vocab_strings", "U8")
_SCORES, _TYPES = _content("vocab_scores", "F32"), _content("vocab_types", "U8")
_MERGES = _content("vocab_merges", "I32")

#: Tokenizer content in file order. Strings are UTF-8 with a NUL after each; merges are triples of token ids.
CONTENT: tuple[Slot, ...] = (_OFFSETS, _STRINGS, _SCORES, _TYPES, _MERGES)

#: ``convert_gguf_to_bump.py`` and the loader of BUMPWGT3.
SLOTS_V3: SlotTable = (
    (_TOKEN_EMB, _POS_EMB),
    (_LN1, _LN2, _WQ, _BQ, _WK, _BK, _WV, _BV, _WO_PACKED, _BO, _W1, _B1, _W2, _B2),
    (_FINAL, _FINAL_BIAS),
)

#: Layout A, ``scripts/convert_{gguf,hf}_to_bump_v4.py``: no biases, no positions, the norms beside what they feed.
SLOTS_A: SlotTable = (
    (_TOKEN_EMB,),
    (_LN1, _WQ, _WK, _WV, _WO_PACKED, _LN2, _W1, _W2),
    (_FINAL, _LM_HEAD),
)

#: Layouts B and C, ``scripts/v6/`` and ``scripts/v6.5/``: as version 3 with flat Wo; C may hold a tokenizer.
SLOTS_C: SlotTable = (
    (_TOKEN_EMB, *CONTENT, _POS_EMB),
    (_LN1, _LN2, _WQ, _BQ, _WK, _BK, _WV, _BV, _WO_FLAT, _BO, _W1, _B1, _W2, _B2),
    (_FINAL, _FINAL_BIAS),
)

#: Version 5 and layout D of version 4, ``convert_gguf_to_bump_v7.py``. RoPE models have a code for positions, and no
#: positions.
SLOTS_V5: SlotTable = (
    (_TOKEN_EMB, _HEAD, *CONTENT, _POS_EMB._replace(stored=False)),
    (
        *(_LN1, _LN2, _POST_ATTENTION, _POST_FFN),
        *(_WQ, _BQ, _Q_NORM, _WK, _BK, _K_NORM, _WV, _BV, _WO_FLAT, _BO, _W1, _B1, _W2, _B2),
    ),
    (_FINAL, _FINAL_BIAS),
)

#: Layout E, ``convert_hf_to_bump_v7.py``: its dtype table follows another list of weights, so no slot has a code here.
SLOTS_E: SlotTable = (
    (_TOKEN_EMB, _OFFSETS, _STRINGS, _MERGES),
    (_LN1, _Q_NORM._replace(optional=False), _K_NORM._replace(optional=False), _WQ, _WK, _WV, _WO_FLAT, _LN2, _W1, _W2),
    (_FINAL, _LM_HEAD),
)

#: Models that were trained in the engine: of entries that are found by name and offset, in no order.
SLOTS_TRAINED: SlotTable = (
    (_TOKEN_EMB, _HEAD._replace(optional=False)),
    (_LN1, _LN2, _WQ, _BQ, _Q_NORM, _WK, _BK, _K_NORM, _WV, _BV, _WO_FLAT, _BO, _W1, _B1, _W2, _B2),
    (_FINAL,),
)

#: Block types that have a number in a dtype table.
BLOCKS = tuple(dtype.name for dtype in DTYPES.values() if dtype.kind is Kind.BLOCK and dtype.bump_v4 is not None)

#: The manifest's word for each type of :data:`ckconv.core.dtypes.DTYPES`; tokenizer content has its own.
TYPE_WORDS: dict[str, str] = {
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "I8": "int8",
    **{name: name.lower() for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q8_K")},
}
CONTENT_WORDS: dict[str, str] = {"I32": "i32", "U8": "u8", "F32": "f32"}

#: Matrices of a layer whose types the manifest's ``quant_summary`` lists.
SUMMARISED = ("wq", "wk", "wv", "wo", "w1", "w2")

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
    """The table of a family with layers of its own, ``convert_gguf_to_bump_v8.py``: the tokenizer behind everything.

    Args:
        entries: of a layer: name, canonical names of its tensors, whether it is FP32, and the layers that have it.
        final_bias: zeros stand behind the last norm.
    """
    layer = (
        Slot(f"layer.{{n}}.{name}", tuple(Part(tensor, CANONICAL) for tensor in tensors), fp32, layers=layers)
        for name, tensors, fp32, layers in entries
    )
    return (_TOKEN_EMB, _HEAD), tuple(layer), (_FINAL, *((_FINAL_BIAS,) if final_bias else ()), *CONTENT)


def key_of(slot: Slot) -> str:
    """What decides whether an optional slot is there: its canonical tensor, or its own name for content."""
    return slot.parts[0].canonical if slot.parts else slot.name


def with_optional(table: SlotTable, present: Collection[str]) -> SlotTable:
    """The table of one model: of the optional slots those whose key (:func:`key_of`) is present."""
    head, layer, tail = (
        tuple(slot for slot in group if not slot.optional or key_of(slot) in present) for group in table
    )
    return head, layer, tail


def table_entries(table: SlotTable, num_layers: int) -> int:
    """Bytes of the dtype table."""
    head, tail = (sum(slot.coded for slot in table[at]) for at in (0, 2))
    in_layers = (num_layers if slot.layers is None else len(slot.layers) for slot in table[1] if slot.coded)
    return head + sum(in_layers) + tail
