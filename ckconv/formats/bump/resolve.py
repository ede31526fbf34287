"""Find the layout of a bump 4 or 5 file, its slots and their places.

A manifest says it by the names of its entries. Without one it follows from the sizes: of the combinations of layout,
numbering of the types and optional slots without a code, the one that ends where the payload ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.core.dtypes import BUMP_CODES, DTYPES, F32, DType
from ckconv.core.tensors import with_layer
from ckconv.errors import InputError
from ckconv.families.schema import Family
from ckconv.formats.bump.header import (
    MANIFEST_NAME,
    Bump5File,
    Flavour,
    Manifest,
    by_slot,
    check_room,
    code_error,
    extent_error,
    misfit,
    misfit_error,
    mismatch_error,
    relocated,
    slots_named,
    types_of,
)
from ckconv.formats.bump.slots import (
    CONTENT,
    TYPE_WORDS,
    Geometry,
    Placed,
    SlotTable,
    key_of,
    place,
    slots_of,
    table_entries,
    with_optional,
)
from ckconv.io.files import ByteSource
from ckconv.tokenizer.vocabulary import MERGE_BYTES

_QK_NORM = ("layers.{n}.attention.q_norm.weight", "layers.{n}.attention.k_norm.weight")
_POST_NORMS = ("layers.{n}.post_attention_norm.weight", "layers.{n}.post_ffn_norm.weight")
_HEAD = "output.weight"

#: The type of each of the manifest's words.
_TYPES = {word: DTYPES[name] for name, word in TYPE_WORDS.items()}

#: Token strings are searched for their last NUL in pieces of this many bytes.
_PIECE = 1 << 16


class Resolved(NamedTuple):
    """A layout with everything it leaves open decided.

    Attributes:
        content: bytes of each tokenizer slot.
        nbytes: of the payload.
    """

    path: Path
    flavour: Flavour
    numbering: str
    table: SlotTable
    geometry: Geometry
    types: Mapping[str, DType]
    content: Mapping[str, int]
    start: int
    nbytes: int
    manifest: Manifest | None = None

    @property
    def present(self) -> set[str]:
        """Keys of the slots that are there."""
        return {key_of(slot) for group in self.table for slot in group}

    def place(
        self, *, interleaved: bool = False, family: Family | None = None, parameters: Mapping[str, Any] | None = None
    ) -> list[Placed]:
        """Every stored slot.

        Raises:
            InputError: ``bump.metadata``, the manifest says otherwise.
        """
        placed = place(
            self.table,
            self.geometry,
            by_slot(self.types),
            start=self.start,
            interleaved=interleaved,
            family=family,
            content=self.content,
            parameters=parameters,
        )
        return placed if self.manifest is None else relocated(placed, self.manifest, self.path)


def resolve(
    path: Path, source: ByteSource, file: Bump5File, manifest: Manifest | None, expected: frozenset[str]
) -> Resolved:
    """Decide what the file leaves open.

    Args:
        expected: optional slots of the family that a document names: with them is tried first.

    Raises:
        InputError: ``bump.metadata``, the manifest does not fit; ``bump.dtype-table`` or ``bump.extent``.
    """
    check_room(path, min((f.slots for f in file.flavours), key=lambda t: table_entries(t, 1)), file.geometry, file.size)
    if manifest is not None:
        return _by_names(path, file, manifest)
    if any(slot.layers is not None for flavour in file.flavours for slot in flavour.slots[1]):
        raise InputError(
            "bump.metadata", f"layers are of several kinds: {MANIFEST_NAME} says where they are", path=path
        )
    tried = [
        resolved
        for flavour in file.flavours
        for present in _coded(flavour, file)
        for resolved in _by_size(path, source, file, flavour, present, expected)
    ]
    if tried:
        closest = min(tried, key=lambda choice: abs(choice.nbytes - (file.end - file.start)))
        if closest.nbytes != file.end - file.start:
            placed = closest.place()
            item = misfit(placed)
            raise extent_error(path, placed, file.end) if item is None else misfit_error(path, item)
        return closest
    flavour = file.flavours[0]
    table = with_optional(flavour.slots, next(iter(_coded(flavour, file)), set()))
    raise code_error(path, table, file.codes, file.header.num_layers, file.start - len(file.codes))


def _by_names(path: Path, file: Bump5File, manifest: Manifest) -> Resolved:
    layers = file.header.num_layers
    refused: list[list[str]] = []
    for flavour in file.flavours:
        table, sentences = slots_named(manifest, flavour.slots, layers)
        worded = None
        if flavour.table_by_slot and table_entries(table, layers) != len(file.codes):
            worded = _worded(table, layers, manifest)
            if worded is None:
                sentences.append(
                    f"the dtype table has {len(file.codes):,} codes, the manifest's slots "
                    f"{table_entries(table, layers):,}"
                )
        else:
            sentences += _miscounted(flavour, file, manifest)
        if sentences:
            refused.append(sentences)
            continue
        content = {slot.name: manifest.entries[slot.name].nbytes for slot in CONTENT if slot.name in manifest.entries}
        choices = [
            Resolved(path, flavour, numbering, table, file.geometry, types, content, file.start, 0, manifest)
            for numbering, types in ([(flavour.numberings[0], worded)] if worded else _numbered(flavour, table, file))
        ]
        for choice in choices:
            if all(_agrees(choice, item) for item in choice.types):
                return choice
        if choices:
            choices[0].place()  # says what does not agree
            return choices[0]
        raise code_error(path, table, file.codes, layers, file.start - len(file.codes))
    raise mismatch_error(min(refused, key=len), path)


def _worded(table: SlotTable, num_layers: int, manifest: Manifest) -> dict[str, DType] | None:
    """Types that the manifest names; ``None`` for no types.

    Of a file whose dtype table belongs to other slots.
    """
    types: dict[str, DType] = {}
    for slot, layer in slots_of(table, num_layers):
        name = with_layer(slot.name, layer)
        entry = None if slot.content else manifest.entries.get(name)
        dtype = F32 if entry is None else _TYPES.get(entry.dtype)
        if dtype is None or (slot.fp32 and dtype is not F32):
            return None
        types[name] = dtype
    return types


def _miscounted(flavour: Flavour, file: Bump5File, manifest: Manifest) -> Iterator[str]:
    """Counts of the tokenizer in header and manifest that differ.

    No checksum covers the header.
    """
    if not flavour.tokenizer_fields:
        return
    for name, nbytes in (
        ("vocab_strings", file.header.total_vocab_bytes),
        ("vocab_merges", file.header.num_merges * MERGE_BYTES),
    ):
        found = manifest.entries[name].nbytes if name in manifest.entries else 0
        if found != nbytes:
            yield f"{MANIFEST_NAME}: {name} has {found:,} bytes, the file's header makes it {nbytes:,}"


def _agrees(choice: Resolved, slot: str) -> bool:
    assert choice.manifest is not None
    entry = choice.manifest.entries.get(slot)
    return entry is None or slot in choice.content or entry.dtype == TYPE_WORDS.get(choice.types[slot].name)


def _numbered(flavour: Flavour, table: SlotTable, file: Bump5File) -> Iterator[tuple[str, dict[str, DType]]]:
    """Types that the dtype table means in each numbering that explains it."""
    layers = file.header.num_layers
    for numbering in flavour.numberings:
        types: dict[str, DType] | None
        if flavour.table_by_slot:
            types = types_of(table, file.codes, layers, numbering)
        else:
            types = _uniform(table, file.codes, layers, numbering)
        if types is not None:
            yield numbering, types


def _uniform(table: SlotTable, codes: bytes, num_layers: int, numbering: str) -> dict[str, DType] | None:
    """Types of a layout whose matrices all have one type.

    Its codes belong to no slots.
    """
    known = BUMP_CODES[numbering]
    kinds = {known.get(code) for code in codes} - {F32}
    matrix = kinds.pop() if kinds else F32
    if matrix is None or kinds:
        return None
    return {with_layer(slot.name, n): F32 if slot.fp32 else matrix for slot, n in slots_of(table, num_layers)}


def _coded(flavour: Flavour, file: Bump5File) -> Iterator[set[str]]:
    """The coded optional slots that make the dtype table as long as it is."""
    if not flavour.table_by_slot:
        yield from (set(), {_HEAD})
        return
    for norms, head in product((set[str](), set(_POST_NORMS)), (set[str](), {_HEAD})):
        if table_entries(with_optional(flavour.slots, norms | head), file.header.num_layers) == len(file.codes):
            yield norms | head
            return


def _by_size(
    path: Path, source: ByteSource, file: Bump5File, flavour: Flavour, coded: set[str], expected: frozenset[str]
) -> Iterator[Resolved]:
    """Layouts that the sizes leave possible, the likeliest first.

    At least one for each numbering that explains the table.
    """
    keys = {key_of(slot) for group in flavour.slots for slot in group if slot.optional and not slot.coded}
    norms = [set(_QK_NORM), set()] if set(_QK_NORM) <= keys else [set[str]()]
    if not expected.issuperset(_QK_NORM):
        norms.reverse()
    for numbering, types in _numbered(flavour, with_optional(flavour.slots, coded | keys), file):
        made: list[Resolved] = []
        for present in norms:
            nbytes = _payload_bytes(with_optional(flavour.slots, coded | present), file.geometry, types)
            room = file.end - file.start - nbytes
            for content in _contents(source, file, flavour, keys, types, room):
                table = with_optional(flavour.slots, coded | present | content.keys())
                total = nbytes + sum(content.values())
                made.append(Resolved(path, flavour, numbering, table, file.geometry, types, content, file.start, total))
        yield next((choice for choice in made if choice.nbytes == file.end - file.start), made[0])


def _payload_bytes(table: SlotTable, g: Geometry, types: Mapping[str, DType]) -> int:
    """Bytes of all slots but content, without placing every one.

    The elements of a slot are the same in every layer.
    """
    one = place(table, g._replace(num_layers=1), lambda slot, n: F32, start=0, interleaved=False)
    elements: Counter[str] = Counter()
    for item in one:
        elements[item.slot.name] += item.nbytes // F32.size
    return sum(types[with_layer(slot.name, n)].nbytes(elements[slot.name]) for slot, n in slots_of(table, g.num_layers))


def _contents(
    source: ByteSource, file: Bump5File, flavour: Flavour, keys: set[str], types: Mapping[str, DType], room: int
) -> Iterator[dict[str, int]]:
    """Sizes of the tokenizer slots that may be there."""
    h = file.header
    vocab = h.vocab_size
    if flavour.tokenizer_fields:
        if not h.total_vocab_bytes:
            yield {}
            return
        fixed = {"vocab_offsets": 4 * vocab, "vocab_strings": h.total_vocab_bytes}
        merges = {"vocab_merges": MERGE_BYTES * h.num_merges}
        for scores, kinds in product(({"vocab_scores": 4 * vocab}, {}), ({"vocab_types": vocab}, {})):
            yield {**fixed, **scores, **kinds, **merges}
        return
    yield {}
    if "vocab_offsets" not in keys or room < 5 * vocab:
        return
    # No count says how long the strings are: the last of them begins where the last offset says, and ends at a NUL.
    embedding = types["token_emb"].nbytes(vocab * h.aligned_hidden)
    strings_at = file.start + embedding + 4 * vocab
    strings = _strings_bytes(source, strings_at, room - 4 * vocab)
    if strings:
        yield {
            "vocab_offsets": 4 * vocab,
            "vocab_strings": strings,
            "vocab_merges": max(0, room - 4 * vocab - strings) // MERGE_BYTES * MERGE_BYTES,
        }


def _strings_bytes(source: ByteSource, at: int, room: int) -> int:
    """Bytes of the token strings at byte ``at``, at most ``room``.

    0 where they do not end.
    """
    last = int.from_bytes(source.read_at(at - 4, 4), "little", signed=True)
    while 0 <= last < room:
        piece = source.read_at(at + last, min(_PIECE, room - last))
        end = piece.find(b"\0")
        if end >= 0:
            return last + end + 1
        if not piece:
            return 0
        last += len(piece)
    return 0
