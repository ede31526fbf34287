"""The header, dtype table, manifest and metadata of a bump 4 or 5 file."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from ckconv.core.config import MAX_LAYERS
from ckconv.core.layouts import BUMP_CODES, F32, DType, Kind
from ckconv.core.lazy import NamedTuple
from ckconv.core.tensors import HEAD, Checksum, Extent, with_layer
from ckconv.errors import Faults, InputError, counted, listed, quoted
from ckconv.formats.bump import slots
from ckconv.formats.bump.sidefiles import described_table
from ckconv.io.files import ByteSource
from ckconv.io.json import Document, parse_object, read_object, shown

# ``weights_manifest.json``: what a bump 4 or 5 file holds where, in the words of the engine's scripts.

MANIFEST_NAME = "weights_manifest.json"
CODE = "bump.metadata"
_MANIFEST_DOCUMENT = Document("manifest", CODE, CODE, 64 << 20)
_HINT = f"if {MANIFEST_NAME} belongs to another file, move it away: the file can be read without one"


class _Faults(Faults):
    """Faults of a manifest, which may belong to another file."""

    def note(self, message: str, name: str | None = None, **facts: Any) -> None:
        """Note a fault of the entry ``name``, or of the whole."""
        self.add(CODE, f"{MANIFEST_NAME}: {message}", tensor=name, hint=_HINT, **facts)


class Entry(NamedTuple):
    """One entry; ``offset`` is absolute, both numbers are in bytes."""

    name: str
    dtype: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """Where the entry ends."""
        return self.offset + self.nbytes


class Manifest(NamedTuple):
    """Manifest; entries by slot name lie in the payload without overlap."""

    document: Mapping[str, Any]
    entries: Mapping[str, Entry]


def load_manifest(path: Path) -> Mapping[str, Any] | None:
    """The document at ``path``, ``None`` where there is none.

    Raises:
        InputError: ``bump.metadata``; those of ``open_source``.
    """
    return read_object(path, _MANIFEST_DOCUMENT) if path.exists() else None


def checked_manifest(document: Mapping[str, Any], *, start: int, end: int) -> Manifest:
    """Check a manifest against payload bytes ``start`` to ``end``.

    Of the file at ``path``.

    Raises:
        InputError: ``bump.metadata``, an entry is malformed, twice there, outside the payload or overlaps another.
    """
    faults = _Faults(None)
    items = document.get("entries")
    if not isinstance(items, list) or not items:
        raise InputError(CODE, f"{MANIFEST_NAME} has no list of entries", hint=_HINT)
    entries: dict[str, Entry] = {}
    for number, item in enumerate(items):
        entry = _entry(item)
        if entry is None:
            faults.note(f"entry #{number + 1:,} lacks name, dtype, file_offset or size")
        elif entry.name in entries:
            faults.note(f"{quoted(entry.name)} is listed twice", entry.name)
        else:
            entries[entry.name] = entry
            if entry.offset < start or entry.end > end:
                place = f"is at {entry.offset:,} to {entry.end:,}, the payload at {start:,} to {end:,}"
                facts = {"offset": entry.offset, "found": entry.end, "allowed": end}
                faults.note(f"{quoted(entry.name)} {place}", entry.name, **facts)
    for one, other in pairwise(sorted(entries.values(), key=lambda entry: (entry.offset, entry.end))):
        if one.end > other.offset:
            place = f"begins at {other.offset:,}, inside {quoted(one.name)}, which ends at {one.end:,}"
            facts = {"offset": other.offset, "found": other.offset, "allowed": one.end}
            faults.note(f"{quoted(other.name)} {place}", other.name, **facts)
    faults.check()
    return Manifest(document, entries)


def _entry(item: object) -> Entry | None:
    """An entry, under the names that the engine's builder takes."""
    if not isinstance(item, dict):
        return None
    name, dtype = item.get("name"), item.get("dtype")
    offset = item.get("file_offset", item.get("offset"))
    nbytes = item.get("size", item.get("size_bytes"))
    if not isinstance(name, str) or not isinstance(dtype, str):
        return None
    for number in (offset, nbytes):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63:
            return None
    assert isinstance(offset, int)
    assert isinstance(nbytes, int)
    return Entry(slots.ALIASES.get(name, name), dtype, offset, nbytes)


def slots_named(manifest: Manifest, table: slots.SlotTable, num_layers: int) -> tuple[slots.SlotTable, list[str]]:
    """Slots of ``table`` that a manifest names, and faults as sentences."""
    names = manifest.entries.keys()
    present = {
        slots.key_of(slot) for group in table for slot in group if slot.optional and with_layer(slot.name, 0) in names
    }
    resolved = slots.with_optional(table, present)
    wanted = {name: slot for name, slot, _ in slots.slots_of(resolved, num_layers) if slot.stored}
    missing = [name for name, slot in wanted.items() if name not in names and not slot.zero_if_absent]
    extra = [name for name in names if name not in wanted]
    sentences = [f"{MANIFEST_NAME} has no entry {name}" for name in missing]
    sentences += [f"{MANIFEST_NAME}: {quoted(name)} is not a slot of this layout" for name in extra]
    return resolved, sentences


def relocated(placed: list[slots.PlacedTensor], manifest: Manifest) -> list[slots.PlacedTensor]:
    """The placed slots that have an entry, at the entry's offset.

    Raises:
        InputError: ``bump.metadata``, an entry's type or size is not the slot's.
    """
    faults = _Faults(None)
    sizes: dict[str, int] = {}
    for item in placed:
        sizes[item.slot_name] = sizes.get(item.slot_name, 0) + item.nbytes
    found: list[slots.PlacedTensor] = []
    at: dict[str, int] = {}
    for item in placed:
        entry = manifest.entries.get(item.slot_name)
        if entry is None:
            continue
        words = slots.CONTENT_WORDS if item.slot.content else slots.TYPE_WORDS
        word = words.get(item.dtype.name)
        if item.slot_name not in at and entry.dtype != word:
            message = f"{item.slot_name} is {shown(entry.dtype)}, the file's dtype table says {word}"
            faults.note(message, item.slot_name)
        elif item.slot_name not in at and entry.nbytes != (nbytes := sizes[item.slot_name]):
            message = f"{item.slot_name} has {entry.nbytes:,} bytes, its shape and type make it {nbytes:,}"
            faults.note(message, item.slot_name, found=entry.nbytes, allowed=nbytes)
        offset = at.get(item.slot_name, entry.offset)
        at[item.slot_name] = offset + item.nbytes
        found.append(item._replace(offset=offset))
    faults.check()
    return found


def mismatch_error(sentences: list[str]) -> InputError:
    """A manifest names other slots than the file's layout has."""
    return InputError(CODE, sentences[0], hint=_HINT, details=listed(sentences[1:]))


# The metadata at the end of a version 5 file, found by the footer behind it.

_METADATA_DOCUMENT = Document("metadata", CODE, CODE, 64 << 20)

#: Keys of the engine's own configuration documents -> Hugging Face's.
HUGGINGFACE_KEYS: dict[str, str] = {
    "model": "model_type",
    "num_layers": "num_hidden_layers",
    "embed_dim": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "rms_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "rope_layout": "rope_layout",
    "sliding_window": "sliding_window",
    "sliding_window_pattern": "sliding_window_pattern",
    "rope_local_base_freq": "rope_local_base_freq",
    "tie_word_embeddings": "tie_word_embeddings",
}


class Metadata(NamedTuple):
    """Metadata: document, first byte (the payload's end) and checksum."""

    document: Mapping[str, Any]
    offset: int
    checksum: Checksum


def read_metadata(path: Path, source: ByteSource, size: int, start: int) -> Metadata:
    """Read the metadata of a file of ``size`` bytes.

    Its dtype table ends at byte ``start``.

    Raises:
        InputError: ``bump.metadata``.
    """
    footer_at = size - slots.FOOTER.size
    if footer_at < start:
        raise InputError(
            CODE,
            f"the file ends at byte {size:,}, where its dtype table and footer need {start + slots.FOOTER.size:,}",
            found=size,
            allowed=start + slots.FOOTER.size,
            hint="the copy looks incomplete",
        )
    magic, nbytes, sha256 = slots.FOOTER.unpack(source.read_whole(footer_at, slots.FOOTER.size))
    if magic != slots.FOOTER_MAGIC:
        wanted = f"footer magic {slots.FOOTER_MAGIC.decode()!r} not found {slots.FOOTER.size} bytes before the end"
        hint = "the copy looks incomplete"
        raise InputError(CODE, f"{wanted}, but {magic!r}", offset=footer_at, found=magic, hint=hint)
    limit = min(footer_at - start, _METADATA_DOCUMENT.limit)
    if nbytes > limit:
        raise InputError(
            CODE,
            f"the footer declares {nbytes:,} bytes of metadata, at most {limit:,} fit",
            offset=footer_at + 8,
            found=nbytes,
            allowed=limit,
        )
    offset = footer_at - nbytes
    data = source.read_whole(offset, nbytes)
    computed = hashlib.sha256(data).digest()
    if computed != sha256:
        raise InputError(
            CODE,
            f"the metadata sha256 is wrong: stored {sha256.hex()}, computed {computed.hex()}",
            offset=footer_at + 16,
            found=computed.hex(),
            allowed=sha256.hex(),
        )
    document = parse_object(data, _METADATA_DOCUMENT, path, offset=offset)
    return Metadata(document, offset, Checksum("metadata", Extent(path, offset, nbytes), sha256))


def huggingface_config(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """``config`` of a manifest or of the metadata under Hugging Face's keys."""
    config = (document or {}).get("config")
    if not isinstance(config, dict):
        return {}
    return {name: config[ours] for ours, name in HUGGINGFACE_KEYS.items() if config.get(ours) is not None}


# What the readers of all bump versions share: the dtype table, and tensors out of placed slots.


def read_table(source: ByteSource, at: int, expected: Collection[int], num_layers: int, hint: str = "") -> bytes:
    """The dtype table whose length stands at byte ``at``.

    Args:
        expected: lengths that the number of layers allows.
        hint: what helps where it has another.
    """
    raw = source.read_at(at, slots.TABLE_LENGTH.size)
    if len(raw) < slots.TABLE_LENGTH.size:
        raise InputError("bump.dtype-table", "the file ends before the dtype table", offset=at)
    (count,) = slots.TABLE_LENGTH.unpack(raw)
    if count not in expected:
        lengths = " or ".join(f"{length:,}" for length in sorted(expected))
        raise InputError(
            "bump.dtype-table",
            f"the table has {count:,} entries, {lengths} expected for {counted(num_layers, 'layer')}",
            offset=at,
            found=count,
            allowed=max(expected),
            hint=hint or None,
        )
    start = at + slots.TABLE_LENGTH.size
    if source.size is not None and start + count > source.size:
        raise InputError(
            "bump.dtype-table",
            f"the table of {count:,} bytes ends at {start + count:,}, the file has {source.size:,}",
            offset=start,
        )
    codes = source.read_at(start, count)
    if len(codes) != count:
        raise InputError("bump.dtype-table", "the file ends inside the dtype table", offset=start + len(codes))
    return codes


def types_of(table: slots.SlotTable, codes: bytes, num_layers: int, numbering: str) -> dict[str, DType] | None:
    """Slot name -> type, FP32 without a code; ``None`` for a wrong code."""
    known = BUMP_CODES[numbering]
    types: dict[str, DType] = {}
    remaining = iter(codes)
    for name, slot, _ in slots.slots_of(table, num_layers):
        dtype = known.get(next(remaining)) if slot.coded else F32
        if dtype is None or (slot.fp32 and dtype is not F32) or dtype.kind is Kind.INTEGER:
            return None
        types[name] = dtype
    return types


def code_error(table: slots.SlotTable, codes: bytes, num_layers: int, start: int) -> InputError:
    """Error for codes, from byte ``start`` on, that no numbering explains."""
    known = {code for codes_ in BUMP_CODES.values() for code, dtype in codes_.items() if dtype.kind is not Kind.INTEGER}
    faults = []
    first = 0
    coded = [(name, slot) for name, slot, _ in slots.slots_of(table, num_layers) if slot.coded]
    if len(coded) != len(codes):  # of a layout whose codes belong to no slots
        coded = []
    for position, ((name, slot), code) in enumerate(zip(coded, codes, strict=False)):
        if slot.fp32 and code:
            faults.append(f"{name} has dtype code {code}, it is always FP32 (0)")
        elif code not in known:
            faults.append(f"{name} has dtype code {code}, which no weights have")
        if len(faults) == 1 and not first:
            first = start + position
    if not faults:
        faults.append("its codes belong to no one numbering of the types")
    return InputError("bump.dtype-table", faults[0], offset=first or None, details=listed(faults[1:]))


def check_room(table: slots.SlotTable, g: slots.Geometry, size: int | None) -> None:
    """Check that the file has room for all layers before indexing them."""
    layer = tuple(
        slot for slot in table[1] if slot.fp32 and not slot.optional and slot.parts[0].layout != slots.CANONICAL
    )
    least = slots.place(((), layer, ()), g._replace(num_layers=1), None, start=0, interleaved=False)
    need = g.num_layers * sum(item.nbytes for item in least)
    if size is not None and need > size:
        raise InputError(
            "bump.extent",
            f"the FP32 vectors of {g.num_layers:,} layers alone are {need:,} bytes, the file has {size:,}",
            found=size,
            allowed=need,
            hint="the copy looks incomplete",
        )


def misfit(placed: list[slots.PlacedTensor]) -> slots.PlacedTensor | None:
    """The first tensor whose rows are not whole blocks."""
    return next((p for p in placed if p.layout.cols % p.dtype.block or p.layout.stored_cols % p.dtype.block), None)


def misfit_error(item: slots.PlacedTensor) -> InputError:
    """Error for a tensor whose rows are not whole blocks."""
    return InputError(
        "bump.dtype-table",
        f"{item.slot_name} is {item.dtype} with rows of {item.layout.cols}; blocks hold {item.dtype.block}",
        tensor=item.slot_name,
    )


def extent_error(placed: list[slots.PlacedTensor], size: int) -> InputError:
    """Error for a payload that ends at byte ``size``, not at its last slot's."""
    end = placed[-1].offset + placed[-1].nbytes
    for item in placed:
        if item.offset + item.nbytes > size:
            return InputError(
                "bump.extent",
                f"{item.slot_name} ends at byte {item.offset + item.nbytes:,}, the file has {size:,}",
                tensor=item.slot_name,
                offset=item.offset,
                found=size,
                allowed=end,
                hint="the copy looks incomplete",
            )
    return InputError(
        "bump.extent",
        f"{counted(size - end, 'byte')} after {placed[-1].slot_name}, which ends at {end:,}",
        offset=end,
    )


# The layouts that share a magic number: five of version 4 under one, two of version 5 under another.
#
# Nothing in a file names its layout. What tells them apart is where the dtype table is (24 zero bytes before it or
# not), where the checksum is (two counts before it or not), how long the table is, and how large the whole is.


class Flavour(NamedTuple):
    """One layout.

    Attributes:
        name: the letter of its writer.
        slots: what lies in it.
        numberings: those that its dtype table may be in.
        extended: 24 zero bytes stand before the dtype table.
        tokenizer_fields: two counts stand before the checksum.
        interleaved: it was made from GGUF rows, which have RoPE pairs as neighbors in families whose template rotates
            those (``interleaved`` of their row); the rows of the others are Hugging Face's, because their writer read
            those or their engine rotates those.
        table_by_slot: a byte of the dtype table belongs to a slot; else only the set of codes says something.
        own_q4_k: its Q4_K blocks are not ggml's (``q4_k_quantize.py`` packs them in the engine's first way).
    """

    name: str
    slots: slots.SlotTable
    numberings: tuple[str, ...] = ("v4",)
    extended: bool = False
    tokenizer_fields: bool = False
    interleaved: bool = True
    table_by_slot: bool = True
    own_q4_k: bool = False


A = Flavour("A", slots.TABLES["A"], ("v3", "v4"), interleaved=False)
B = Flavour("B", slots.TABLES["C"])
C = Flavour("C", slots.TABLES["C"], tokenizer_fields=True)
D = Flavour("D", slots.TABLES["5"], extended=True, tokenizer_fields=True)
E = Flavour("E", slots.TABLES["E"], ("v3",), interleaved=False, table_by_slot=False, own_q4_k=True)
F = E._replace(name="F", slots=slots.TABLES["F"])

#: The layouts of each version, in the order in which they are tried.
FLAVOURS: dict[int, tuple[Flavour, ...]] = {4: (D, A, B, C, E, F), 5: (D, E, F)}


# What a BUMPWGT4 or BUMPWGT5 file says about itself: header, dtype table, and the metadata at its end.

#: What the scripts round up to: 16 elements, or a K-quant's block.
_CONTEXT_STEPS = (slots.ALIGN_ELEMENTS, 256)

_POST_NORMS = frozenset({"layers.{n}.post_attention_norm.weight", "layers.{n}.post_ffn_norm.weight"})

#: Of the coded optional slots a model has the head or not, and both norms behind the blocks or neither.
CODED: tuple[frozenset[str], ...] = tuple(
    norms | head for norms in (frozenset[str](), _POST_NORMS) for head in (frozenset[str](), frozenset({HEAD}))
)


_BY_MANIFEST = f"{MANIFEST_NAME}, which names every entry, has to lie beside a file of the engine's safetensors scripts"


class Bump5File(NamedTuple):
    """Contents of a version 5 file without the documents beside it.

    Attributes:
        flavours: the layouts that header and dtype table allow.
        table_at: where the dtype table's length stands, and the checksum's run begins.
        size: bytes of the file, ``None`` for a pipe.
    """

    version: int
    header: slots.HeaderV4
    flavours: tuple[Flavour, ...]
    table_at: int
    codes: bytes
    size: int | None
    metadata: Metadata | None

    @property
    def start(self) -> int:
        """Where the payload begins."""
        return self.table_at + slots.TABLE_LENGTH.size + len(self.codes)

    @property
    def end(self) -> int:
        """Where the payload ends."""
        return self.metadata.offset if self.metadata else self.size or self.start

    @property
    def geometry(self) -> slots.Geometry:
        """The sizes, all of which the header names."""
        return slots.Geometry(*(getattr(self.header, field) for field in slots.SIZES))


def read_bump5(path: Path, source: ByteSource, head: bytes, version: int, *, named: bool = False) -> Bump5File:
    """Read and check header, dtype table and metadata.

    ``head`` is the first 128 bytes.

    Args:
        named: a manifest names the entries and their types. Then the table may be as long as it likes, as no engine
            reads it: scripts that convert from safetensors give every entry a byte, or every weight of another list.

    Raises:
        InputError: ``bump.header``, ``bump.dtype-table`` or ``bump.metadata``.
    """
    between = source.read_at(
        slots.HEADER_BYTES, slots.EXTENDED_HEADER_BYTES - slots.HEADER_BYTES + slots.TABLE_LENGTH.size
    )
    header = slots.HeaderV4.unpack(head, tokenizer_fields=True)
    check_numbers(header, _faults(header))
    extended = _extended(between, header.num_layers, version)
    if not extended and not any(head[0x70:0x78]):  # the checksum ends before these bytes or covers them
        header = slots.HeaderV4.unpack(head, tokenizer_fields=False)
    check_reserved(header.reserved, header.reserved_at)
    if header.num_merges and not header.total_vocab_bytes:
        raise InputError(
            "bump.header",
            f"{header.num_merges:,} merges are declared, and no token strings",
            offset=0x50,
            found=header.num_merges,
        )
    flavours = tuple(
        f for f in FLAVOURS[version] if f.extended == extended and f.tokenizer_fields == header.tokenizer_fields
    )
    if not flavours:
        raise InputError(
            "bump.header",
            f"bump {version} has no layout with token counts at 0x50 and the dtype table at {slots.HEADER_BYTES:#x}",
            offset=0x50,
        )
    table_at = slots.EXTENDED_HEADER_BYTES if extended else slots.HEADER_BYTES
    layers = header.num_layers
    expected = {length for flavour in flavours for length in table_lengths(flavour, layers)}
    raw = source.read_at(table_at, slots.TABLE_LENGTH.size)
    coded = slots.TABLE_LENGTH.unpack(raw)[0] if len(raw) == slots.TABLE_LENGTH.size else 0
    own = None
    if version == 5 and coded not in expected and source.size is not None and coded < source.size:
        with suppress(InputError):  # of a table that is none, more is said below
            found = read_metadata(path, source, source.size, table_at + slots.TABLE_LENGTH.size + coded)
            described = found.document.get("config")
            own = described_table(described, layers, coded) if isinstance(described, dict) else None
    if own is not None:
        expected, flavours = {coded}, (D._replace(slots=own),)
    foreign = own is None and named and coded not in expected and coded < (source.size or 0)
    hint = "" if named else _BY_MANIFEST
    codes = read_table(source, table_at, {coded} if foreign else expected, layers, hint)
    if own is None and not foreign:
        flavours = tuple(flavour for flavour in flavours if len(codes) in table_lengths(flavour, layers))
    metadata = None
    if version == 5 and source.size is not None:
        metadata = read_metadata(path, source, source.size, table_at + slots.TABLE_LENGTH.size + len(codes))
    return Bump5File(version, header, flavours, table_at, codes, source.size, metadata)


def table_lengths(flavour: Flavour, num_layers: int) -> set[int]:
    """The lengths that a layout's dtype table may have."""
    tables = [slots.with_optional(flavour.slots, coded) for coded in CODED]
    lengths = {slots.table_entries(table, num_layers) for table in tables}
    if not flavour.table_by_slot:  # 8 weights a layer in the scripts that are known, 10 with the norms of Q and K
        lengths |= {2 + per_layer * num_layers + head for per_layer in (8, 10) for head in (0, 1)}
    return lengths


def _extended(between: bytes, num_layers: int, version: int) -> bool:
    """Whether the dtype table is behind the 24 zeros of newer layouts."""
    zeros, counted = between[: -slots.TABLE_LENGTH.size], between[-slots.TABLE_LENGTH.size :]
    if len(between) < slots.EXTENDED_HEADER_BYTES - slots.HEADER_BYTES + slots.TABLE_LENGTH.size or not any(zeros):
        return True
    (there,), (here,) = slots.TABLE_LENGTH.unpack(counted), slots.TABLE_LENGTH.unpack_from(zeros)
    older = {n for f in FLAVOURS[version] if not f.extended for n in table_lengths(f, num_layers)}
    newer = {n for f in FLAVOURS[version] if f.extended for n in table_lengths(f, num_layers)}
    if here not in older and there in newer:
        check_reserved(zeros, slots.HEADER_BYTES)
    return False


def check_reserved(reserved: bytes, start: int) -> None:
    """Refuse reserved bytes that are not zero.

    Args:
        start: offset of the first one in the file.
    """
    at = next((i for i, byte in enumerate(reserved) if byte), None)
    if at is not None:
        message = f"reserved byte {start + at:#x} is {reserved[at]:#04x}, not zero"
        raise InputError("bump.header", message, offset=start + at)


def _faults(h: slots.HeaderV4) -> Iterator[str]:
    if h.num_kv_heads and h.num_heads % h.num_kv_heads:
        yield f"num_heads {h.num_heads} is not a multiple of num_kv_heads {h.num_kv_heads}"
    # Nothing lies in a file that would be as long as this, and no checksum covers it.
    steps = [slots.align(h.context_length, step) for step in _CONTEXT_STEPS]
    if h.aligned_context > h.context_length and h.aligned_context not in steps:
        yield f"aligned_context {h.aligned_context} is not context {h.context_length} rounded up"


#: Field of a header that is rounded up -> what the format calls it, and the rounded one.
ROUNDED = {
    "hidden_size": ("embed", "aligned_hidden"), "head_dim": ("head", "aligned_head"),
    "ffn_size": ("intermediate", "aligned_ffn"), "context_length": ("context", "aligned_context"),
}  # fmt: skip


def check_numbers(header: slots.HeaderV3 | slots.HeaderV4, others: Iterable[str]) -> None:
    """Refuse numbers that no model has.

    Args:
        others: what else is wrong with them.
    """
    fields, sizes = header._asdict(), slots.sizes_of(header)
    faults = [f"{slots.WORDS[field]} is {number}" for field, number in sizes.items() if not 0 < number < 1 << 31]
    if header.num_layers > MAX_LAYERS:
        faults.append(f"num_layers is {header.num_layers:,}, at most {MAX_LAYERS:,} are allowed")
    if header.model_type != 1:
        faults.append(f"model_type is {header.model_type}, 1 expected")
    faults += others
    for field, (name, rounded) in ROUNDED.items():
        if field in fields and fields[rounded] < fields[field]:
            faults.append(f"aligned_{name} {fields[rounded]} is below {name} {fields[field]}")
    if faults:
        raise InputError("bump.header", faults[0], details=listed(faults[1:]))
