"""The bump files of C-Kernel-Engine, byte by byte: headers and slot lists that the reader and the writer share.

Sources: the engine's ``scripts/convert_gguf_to_bump.py`` and ``convert_hf_to_bump.py`` for what is written, the loaders
emitted by ``src/ckernel_codegen.c`` for what is read (version 3). All integers are little-endian, and nothing in the
payload is aligned.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC: dict[int, bytes] = {3: b"BUMPWGT3", 4: b"BUMPWGT4", 5: b"BUMPWGT5"}
VERSIONS: dict[bytes, int] = {magic: version for version, magic in MAGIC.items()}

#: Bytes of every header; the checksum of version 3 covers everything after it.
HEADER_BYTES = 128

#: Every float row and head of version 3 is padded to this many elements: 64 bytes of FP32.
ALIGN_ELEMENTS = 16

#: The model_type field of version 3 has one value ("legacy").
MODEL_TYPE = 1

# 0x00 magic, 0x08 version, 0x0C model type, 0x10 layers, 0x14 vocabulary, 0x18 hidden, 0x1C context, 0x20 heads,
# 0x24 head size, 0x28 aligned hidden, 0x30 aligned head size, 0x38 aligned context, 0x40 sha256 of 0x80 to the end,
# 0x60 zero.
HEADER_V3 = struct.Struct("<8s8I3Q32s32s")

#: Length of the dtype table, before the table itself.
TABLE_LENGTH = struct.Struct("<I")


def align(elements: int, to: int = ALIGN_ELEMENTS) -> int:
    """``elements`` rounded up to a multiple of ``to``."""
    return -(-elements // to) * to


@dataclass(frozen=True, slots=True)
class HeaderV3:
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
        return HEADER_V3.pack(
            MAGIC[3],
            self.version,
            self.model_type,
            self.num_layers,
            self.vocab_size,
            self.hidden_size,
            self.context_length,
            self.num_heads,
            self.head_dim,
            self.aligned_hidden,
            self.aligned_head,
            self.aligned_context,
            self.sha256,
            self.reserved,
        )

    @classmethod
    def unpack(cls, data: bytes) -> HeaderV3:
        """Read 128 bytes; no field is judged here."""
        _, version, model_type, *numbers, sha256, reserved = HEADER_V3.unpack(data)
        return cls(*numbers, sha256=sha256, reserved=reserved, version=version, model_type=model_type)


@dataclass(frozen=True, slots=True)
class Part:
    """Canonical rows inside a slot: the canonical tensor, and the row of the layout table that places it."""

    canonical: str
    layout: str


@dataclass(frozen=True, slots=True)
class Slot:
    """One entry of a bump file.

    Attributes:
        name: the engine's name for it; ``{n}`` is the layer.
        parts: what lies in it, in order.
        fp32: its type is FP32 whatever the model's is.
        zero_if_absent: zeros stand for a tensor that the model does not have.
    """

    name: str
    parts: tuple[Part, ...]
    fp32: bool = False
    zero_if_absent: bool = False


def _matrix(name: str, *parts: tuple[str, str]) -> Slot:
    return Slot(name, tuple(Part(*part) for part in parts))


def _vector(name: str, canonical: str, layout: str) -> Slot:
    return Slot(name, (Part(canonical, layout),), fp32=True)


def _bias(name: str, *parts: tuple[str, str]) -> Slot:
    return Slot(name, tuple(Part(*part) for part in parts), fp32=True, zero_if_absent=True)


#: Slots before the layers, of each layer, and after them. Order is the file's and the dtype table's.
SLOTS_V3: tuple[tuple[Slot, ...], tuple[Slot, ...], tuple[Slot, ...]] = (
    (
        _matrix("token_emb", ("token_embedding.weight", "embedding")),
        _bias("pos_emb", ("position_embedding.weight", "positions")),
    ),
    (
        _vector("layer.{n}.ln1_gamma", "layers.{n}.attention_norm.weight", "hidden_vector"),
        _vector("layer.{n}.ln2_gamma", "layers.{n}.ffn_norm.weight", "hidden_vector"),
        _matrix("layer.{n}.wq", ("layers.{n}.attention.q.weight", "q_rows")),
        _bias("layer.{n}.bq", ("layers.{n}.attention.q.bias", "q_vector")),
        _matrix("layer.{n}.wk", ("layers.{n}.attention.k.weight", "k_rows")),
        _bias("layer.{n}.bk", ("layers.{n}.attention.k.bias", "k_vector")),
        _matrix("layer.{n}.wv", ("layers.{n}.attention.v.weight", "v_rows")),
        _bias("layer.{n}.bv", ("layers.{n}.attention.v.bias", "v_vector")),
        _matrix("layer.{n}.wo", ("layers.{n}.attention.output.weight", "attention_output")),
        _bias("layer.{n}.bo", ("layers.{n}.attention.output.bias", "hidden_vector")),
        _matrix("layer.{n}.w1", ("layers.{n}.ffn.gate.weight", "ffn_rows"), ("layers.{n}.ffn.up.weight", "ffn_rows")),
        _bias("layer.{n}.b1", ("layers.{n}.ffn.gate.bias", "ffn_vector"), ("layers.{n}.ffn.up.bias", "ffn_vector")),
        _matrix("layer.{n}.w2", ("layers.{n}.ffn.down.weight", "down_rows")),
        _bias("layer.{n}.b2", ("layers.{n}.ffn.down.bias", "hidden_vector")),
    ),
    (
        _vector("final_ln_weight", "output_norm.weight", "hidden_vector"),
        _bias("final_ln_bias", ("output_norm.bias", "hidden_vector")),
    ),
)

#: Matrix types that the version 3 loader accepts (``load_weight_dtypes``): the rest makes its init fail with -6.
LOADED_BY_V3 = ("F32", "Q4_K", "Q6_K")


def table_entries_v3(num_layers: int) -> int:
    """Bytes of the version 3 dtype table."""
    head, layer, tail = SLOTS_V3
    return len(head) + num_layers * len(layer) + len(tail)
