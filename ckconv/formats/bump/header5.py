"""What a BUMPWGT4 or BUMPWGT5 file says about itself: header, dtype table, and the metadata at its end."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ckconv.core.config import MAX_LAYERS
from ckconv.errors import InputError, listed
from ckconv.formats.bump.flavours import FLAVOURS, D, Flavour
from ckconv.formats.bump.manifest import MANIFEST_NAME
from ckconv.formats.bump.metadata import Metadata, read_metadata
from ckconv.formats.bump.own_layers import described_table
from ckconv.formats.bump.placement import Geometry
from ckconv.formats.bump.slots import table_entries, with_optional
from ckconv.formats.bump.spec import ALIGN_ELEMENTS, EXTENDED_HEADER_BYTES, HEADER_BYTES, TABLE_LENGTH, HeaderV4, align
from ckconv.formats.bump.table import read_table
from ckconv.io.bytesource import ByteSource

#: What the scripts round up to: 16 elements, or a K-quant's block.
_CONTEXT_STEPS = (ALIGN_ELEMENTS, 256)

_POST_NORMS = ("layers.{n}.post_attention_norm.weight", "layers.{n}.post_ffn_norm.weight")


_BY_MANIFEST = f"{MANIFEST_NAME}, which names every entry, has to lie beside a file of the engine's safetensors scripts"


class Bump5File(NamedTuple):
    """What the file says without the documents beside it.

    Attributes:
        flavours: the layouts that header and dtype table allow.
        table_at: where the dtype table's length stands, and the checksum's run begins.
        size: bytes of the file, ``None`` for a pipe.
    """

    version: int
    header: HeaderV4
    flavours: tuple[Flavour, ...]
    table_at: int
    codes: bytes
    size: int | None
    metadata: Metadata | None

    @property
    def start(self) -> int:
        """Where the payload begins."""
        return self.table_at + TABLE_LENGTH.size + len(self.codes)

    @property
    def end(self) -> int:
        """Where the payload ends."""
        return self.metadata.offset if self.metadata else self.size or self.start

    @property
    def geometry(self) -> Geometry:
        """The sizes, all of which the header names."""
        h = self.header
        return Geometry(
            h.num_layers,
            h.vocab_size,
            h.hidden_size,
            h.ffn_size,
            h.num_heads,
            h.num_kv_heads,
            h.head_dim,
            h.context_length,
            h.aligned_hidden,
            h.aligned_ffn,
            h.aligned_head,
        )


def read_bump5(path: Path, source: ByteSource, head: bytes, version: int, *, named: bool = False) -> Bump5File:
    """Read and check header, dtype table and metadata; ``head`` is the first 128 bytes.

    Args:
        named: a manifest names the entries and their types. Then the table may be as long as it likes, as no engine
            reads it: scripts that convert from safetensors give every entry a byte, or every weight of another list.

    Raises:
        InputError: ``bump.header``, ``bump.dtype-table`` or ``bump.metadata``.
    """
    between = source.read_at(HEADER_BYTES, EXTENDED_HEADER_BYTES - HEADER_BYTES + TABLE_LENGTH.size)
    header = HeaderV4.unpack(head, tokenizer_fields=True)
    _check_sizes(path, header)
    extended = _extended(path, between, header.num_layers, version)
    if not extended and not any(head[0x70:0x78]):  # the checksum ends before these bytes or covers them
        header = HeaderV4.unpack(head, tokenizer_fields=False)
    _check_reserved(path, header)
    if header.num_merges and not header.total_vocab_bytes:
        raise InputError(
            "bump.header",
            f"{header.num_merges:,} merges are declared, and no token strings",
            path=path,
            offset=0x50,
            found=header.num_merges,
        )
    flavours = tuple(
        f for f in FLAVOURS[version] if f.extended == extended and f.tokenizer_fields == header.tokenizer_fields
    )
    if not flavours:
        raise InputError(
            "bump.header",
            f"bump {version} has no layout with token counts at 0x50 and the dtype table at {HEADER_BYTES:#x}",
            path=path,
            offset=0x50,
        )
    table_at = EXTENDED_HEADER_BYTES if extended else HEADER_BYTES
    layers = header.num_layers
    expected = {length for flavour in flavours for length in table_lengths(flavour, layers)}
    raw = source.read_at(table_at, TABLE_LENGTH.size)
    coded = TABLE_LENGTH.unpack(raw)[0] if len(raw) == TABLE_LENGTH.size else 0
    own = None
    if version == 5 and coded not in expected and source.size is not None and coded < source.size:
        with suppress(InputError):  # of a table that is none, more is said below
            found = read_metadata(path, source, source.size, table_at + TABLE_LENGTH.size + coded)
            described = found.document.get("config")
            own = described_table(described, layers, coded) if isinstance(described, dict) else None
    if own is not None:
        expected, flavours = {coded}, (D._replace(slots=own),)
    foreign = own is None and named and coded not in expected and coded < (source.size or 0)
    hint = "" if named else _BY_MANIFEST
    codes = read_table(path, source, table_at, {coded} if foreign else expected, layers, hint)
    if own is None and not foreign:
        flavours = tuple(flavour for flavour in flavours if len(codes) in table_lengths(flavour, layers))
    metadata = None
    if version == 5 and source.size is not None:
        metadata = read_metadata(path, source, source.size, table_at + TABLE_LENGTH.size + len(codes))
    return Bump5File(version, header, flavours, table_at, codes, source.size, metadata)


def table_lengths(flavour: Flavour, num_layers: int) -> set[int]:
    """The lengths that a layout's dtype table may have.

    Of the coded optional slots a model has the head or not, and both norms behind the blocks or neither.
    """
    choices: tuple[set[str], ...] = (set(), set(_POST_NORMS))
    heads: tuple[set[str], ...] = (set(), {"output.weight"})
    tables = [with_optional(flavour.slots, norms | head) for norms in choices for head in heads]
    lengths = {table_entries(table, num_layers) for table in tables}
    if not flavour.table_by_slot:  # 8 weights a layer in the scripts that are known, 10 with the norms of Q and K
        lengths |= {2 + per_layer * num_layers + head for per_layer in (8, 10) for head in (0, 1)}
    return lengths


def _extended(path: Path, between: bytes, num_layers: int, version: int) -> bool:
    """Whether the dtype table is behind the 24 zero bytes of the newer layouts, or at once behind the header."""
    zeros, counted = between[: -TABLE_LENGTH.size], between[-TABLE_LENGTH.size :]
    if len(between) < EXTENDED_HEADER_BYTES - HEADER_BYTES + TABLE_LENGTH.size or not any(zeros):
        return True
    (there,), (here,) = TABLE_LENGTH.unpack(counted), TABLE_LENGTH.unpack_from(zeros)
    older = {n for f in FLAVOURS[version] if not f.extended for n in table_lengths(f, num_layers)}
    newer = {n for f in FLAVOURS[version] if f.extended for n in table_lengths(f, num_layers)}
    if here not in older and there in newer:
        at = next(i for i, byte in enumerate(zeros) if byte)
        raise InputError(
            "bump.header",
            f"reserved byte {HEADER_BYTES + at:#x} is {zeros[at]:#04x}, not zero",
            path=path,
            offset=HEADER_BYTES + at,
        )
    return False


def _check_reserved(path: Path, h: HeaderV4) -> None:
    if any(h.reserved):
        at = next(i for i, byte in enumerate(h.reserved) if byte)
        raise InputError(
            "bump.header",
            f"reserved byte {h.reserved_at + at:#x} is {h.reserved[at]:#04x}, not zero",
            path=path,
            offset=h.reserved_at + at,
        )


def _check_sizes(path: Path, h: HeaderV4) -> None:
    names = {
        "num_layers": h.num_layers,
        "vocab_size": h.vocab_size,
        "embed_dim": h.hidden_size,
        "intermediate_size": h.ffn_size,
        "context_length": h.context_length,
        "num_heads": h.num_heads,
        "num_kv_heads": h.num_kv_heads,
        "head_dim": h.head_dim,
    }
    faults = [f"{name} is {value}" for name, value in names.items() if not 0 < value < 1 << 31]
    if h.num_layers > MAX_LAYERS:
        faults.append(f"num_layers is {h.num_layers:,}, at most {MAX_LAYERS:,} are allowed")
    if h.model_type != 1:
        faults.append(f"model_type is {h.model_type}, 1 expected")
    if h.num_kv_heads and h.num_heads % h.num_kv_heads:
        faults.append(f"num_heads {h.num_heads} is not a multiple of num_kv_heads {h.num_kv_heads}")
    for name, real, aligned in (
        ("embed", h.hidden_size, h.aligned_hidden),
        ("head", h.head_dim, h.aligned_head),
        ("intermediate", h.ffn_size, h.aligned_ffn),
        ("context", h.context_length, h.aligned_context),
    ):
        if aligned < real:
            faults.append(f"aligned_{name} {aligned} is below {name} {real}")
    # Nothing lies in a file that would be as long as this, and no checksum covers it.
    if h.aligned_context > h.context_length and h.aligned_context not in (
        align(h.context_length, step) for step in _CONTEXT_STEPS
    ):
        faults.append(f"aligned_context {h.aligned_context} is not context {h.context_length} rounded up")
    if faults:
        raise InputError("bump.header", faults[0], path=path, details=listed(faults[1:]))
