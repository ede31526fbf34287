"""The bump files of C-Kernel-Engine, byte by byte: what stands around the slots, shared by reader and writer.

Sources: the engine's ``scripts/convert_gguf_to_bump.py`` and ``convert_hf_to_bump.py`` for what version 3 is,
``version/v7/scripts/convert_gguf_to_bump_v7.py`` and ``include/ckernel_bump_v5.h`` for versions 4 and 5, the loaders
emitted by ``src/ckernel_codegen.c`` for what is read. All integers are little-endian, and nothing in the payload is
aligned. The slots are in :mod:`ckconv.formats.bump.slots`.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

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
    """The fields of a version 4 or 5 header, in file order; sizes in elements, ``total_vocab_bytes`` in bytes.

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
    """How the rest of a version 4 or 5 header is laid out, and the fields in it."""
    return (_TAIL_TOKENIZER, _FIELDS_TOKENIZER) if tokenizer_fields else (_TAIL_PLAIN, _FIELDS_PLAIN)


def canonical_json(document: Any) -> bytes:
    """The one form in which the format hashes and embeds JSON: sorted keys, no spaces, ASCII escapes."""
    import json

    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


#: What the document in a bump 5 file is called beside its files.
FOOTER_NAME = "the file's metadata"

#: Fields of a header that say nothing of the model.
_NOT_OF_THE_MODEL = ("sha256", "reserved", "tokenizer_fields")


def fields_of(header: HeaderV3 | HeaderV4) -> dict[str, Any]:
    """What a header says of the model, by name."""
    return {f"header.{name}": value for name, value in header._asdict().items() if name not in _NOT_OF_THE_MODEL}
