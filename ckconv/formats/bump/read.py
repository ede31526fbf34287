"""Bump files of any version -> the canonical index, and other facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from ckconv.core.config import CONFIG_KEYS, MAX_DIMENSION, ModelConfig
from ckconv.core.layouts import BUMP_CODES, DTYPES, F32, DType
from ckconv.core.lazy import NamedTuple, replace
from ckconv.core.metadata import CONFIG_NAME, Content
from ckconv.core.tensors import HEAD, Checksum, Extent, TensorIndex
from ckconv.errors import InputError, UnsupportedError, an, counted, in_file, quoted
from ckconv.families.axes import AxesError
from ckconv.families.catalog import (
    FAMILIES,
    families_of_gguf,
    family_in_gguf,
    family_of_model_type,
    family_without_name,
    written_as,
)
from ckconv.families.schema import Family
from ckconv.families.sizes import used
from ckconv.formats.bump import sidefiles, slots
from ckconv.formats.bump.header import (
    CODED,
    MANIFEST_NAME,
    ROUNDED,
    Bump5File,
    D,
    Flavour,
    Manifest,
    Metadata,
    check_numbers,
    check_reserved,
    check_room,
    checked_manifest,
    code_error,
    extent_error,
    huggingface_config,
    load_manifest,
    misfit,
    misfit_error,
    mismatch_error,
    read_bump5,
    read_table,
    relocated,
    slots_named,
    types_of,
)
from ckconv.formats.bump.releases import (
    FAMILY_KEY,
    KEY,
    ROPE_WORDS,
    releases,
    right_of_bump3,
    still_right,
    template_interleaves,
)
from ckconv.formats.bump.trained import index_trained, is_wrapped, manifest_of, trained_manifest
from ckconv.io.files import ByteSource, open_source
from ckconv.plan.steps import Globs, Plan
from ckconv.tokenizer.vocabulary import MERGE_BYTES

# -- Find the layout of a bump 4 or 5 file, its slots and their offsets ------------------------------------------------

# A manifest says it by the names of its entries. Without one it follows from the sizes: of the combinations of layout,
# numbering of the types and optional slots without a code, the one that ends where the payload ends.

_QK_NORM = ("layers.{n}.attention.q_norm.weight", "layers.{n}.attention.k_norm.weight")

#: The type of each of the manifest's words.
_TYPES = {word: DTYPES[name] for name, word in slots.TYPE_WORDS.items()}

#: Token strings are searched for their last NUL in pieces of this many bytes.
_PIECE = 1 << 16


class Variant(NamedTuple):
    """A layout with everything it leaves open decided.

    Attributes:
        content: bytes of each tokenizer slot.
        nbytes: of the payload.
    """

    flavour: Flavour
    numbering: str
    table: slots.SlotTable
    geometry: slots.Geometry
    types: Mapping[str, DType]
    content: Mapping[str, int]
    start: int
    nbytes: int
    manifest: Manifest | None = None

    @property
    def present(self) -> set[str]:
        """Keys of the slots that are there."""
        return {slots.key_of(slot) for group in self.table for slot in group}

    def place(
        self, *, interleaved: bool = False, family: Family | None = None, parameters: Mapping[str, Any] | None = None
    ) -> list[slots.PlacedTensor]:
        """Every stored slot.

        Raises:
            InputError: ``bump.metadata``, the manifest says otherwise.
        """
        placed = slots.place(
            self.table,
            self.geometry,
            self.types,
            start=self.start,
            interleaved=interleaved,
            family=family,
            content=self.content,
            parameters=parameters,
        )
        return placed if self.manifest is None else relocated(placed, self.manifest)


def resolve(source: ByteSource, file: Bump5File, manifest: Manifest | None, expected: frozenset[str]) -> Variant:
    """Decide what the file leaves open.

    Args:
        expected: optional slots of the family that a document names: with them is tried first.

    Raises:
        InputError: ``bump.metadata``, the manifest does not fit; ``bump.dtype-table`` or ``bump.extent``.
    """
    check_room(min((f.slots for f in file.flavours), key=lambda t: slots.table_entries(t, 1)), file.geometry, file.size)
    if manifest is not None:
        return _by_names(file, manifest)
    if any(slot.layers is not None for flavour in file.flavours for slot in flavour.slots[1]):
        raise InputError("bump.metadata", f"layers are of several kinds: {MANIFEST_NAME} says where they are")
    tried = [
        resolved
        for flavour in file.flavours
        for present in _coded(flavour, file)
        for resolved in _by_size(source, file, flavour, present, expected)
    ]
    if tried:
        closest = min(tried, key=lambda choice: abs(choice.nbytes - (file.end - file.start)))
        if closest.nbytes != file.end - file.start:
            placed = closest.place()
            item = misfit(placed)
            raise extent_error(placed, file.end) if item is None else misfit_error(item)
        return closest
    flavour = file.flavours[0]
    table = slots.with_optional(flavour.slots, next(iter(_coded(flavour, file)), frozenset()))
    raise code_error(table, file.codes, file.header.num_layers, file.start - len(file.codes))


def _by_names(file: Bump5File, manifest: Manifest) -> Variant:
    layers = file.header.num_layers
    refused: list[list[str]] = []
    for flavour in file.flavours:
        table, sentences = slots_named(manifest, flavour.slots, layers)
        worded = None
        if flavour.table_by_slot and slots.table_entries(table, layers) != len(file.codes):
            worded = _worded(table, layers, manifest)
            if worded is None:
                sentences.append(
                    f"the dtype table has {len(file.codes):,} codes, the manifest's slots "
                    f"{slots.table_entries(table, layers):,}"
                )
        else:
            sentences += _miscounted(flavour, file, manifest)
        if sentences:
            refused.append(sentences)
            continue
        content = {
            slot.name: manifest.entries[slot.name].nbytes for slot in slots.CONTENT if slot.name in manifest.entries
        }
        choices = [
            Variant(flavour, numbering, table, file.geometry, types, content, file.start, 0, manifest)
            for numbering, types in ([(flavour.numberings[0], worded)] if worded else _numbered(flavour, table, file))
        ]
        for choice in choices:
            if all(_agrees(choice, item) for item in choice.types):
                return choice
        if choices:
            choices[0].place()  # says what does not agree
            return choices[0]
        raise code_error(table, file.codes, layers, file.start - len(file.codes))
    raise mismatch_error(min(refused, key=len))


def _worded(table: slots.SlotTable, num_layers: int, manifest: Manifest) -> dict[str, DType] | None:
    """Types that the manifest names; ``None`` for no types.

    Of a file whose dtype table belongs to other slots.
    """
    types: dict[str, DType] = {}
    for name, slot, _ in slots.slots_of(table, num_layers):
        entry = None if slot.content else manifest.entries.get(name)
        dtype = F32 if entry is None else _TYPES.get(entry.dtype)
        if dtype is None or (slot.fp32 and dtype is not F32):
            return None
        types[name] = dtype
    return types


def _miscounted(flavour: Flavour, file: Bump5File, manifest: Manifest) -> Iterator[str]:
    """Tokenizer sizes in which the unhashed header and the manifest differ."""
    if not flavour.tokenizer_fields:
        return
    for name, nbytes in (
        ("vocab_strings", file.header.total_vocab_bytes),
        ("vocab_merges", file.header.num_merges * MERGE_BYTES),
    ):
        found = manifest.entries[name].nbytes if name in manifest.entries else 0
        if found != nbytes:
            yield f"{MANIFEST_NAME}: {name} has {found:,} bytes, the file's header makes it {nbytes:,}"


def _agrees(choice: Variant, slot: str) -> bool:
    assert choice.manifest is not None
    entry = choice.manifest.entries.get(slot)
    return entry is None or slot in choice.content or entry.dtype == slots.TYPE_WORDS.get(choice.types[slot].name)


def _numbered(flavour: Flavour, table: slots.SlotTable, file: Bump5File) -> Iterator[tuple[str, dict[str, DType]]]:
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


def _uniform(table: slots.SlotTable, codes: bytes, num_layers: int, numbering: str) -> dict[str, DType] | None:
    """Slot name -> type in a layout whose matrices all have one type.

    Codes of such a layout belong to no slots. ``None`` where they name two types.
    """
    known = BUMP_CODES[numbering]
    kinds = {known.get(code) for code in codes} - {F32}
    matrix = kinds.pop() if kinds else F32
    if matrix is None or kinds:
        return None
    return {name: F32 if slot.fp32 else matrix for name, slot, _ in slots.slots_of(table, num_layers)}


def _coded(flavour: Flavour, file: Bump5File) -> Iterator[frozenset[str]]:
    """The coded optional slots that make the dtype table as long as it is."""
    if not flavour.table_by_slot:
        yield from (frozenset(), frozenset({HEAD}))
        return
    for coded in CODED:
        table = slots.with_optional(flavour.slots, coded)
        if slots.table_entries(table, file.header.num_layers) == len(file.codes):
            yield coded
            return


def _by_size(
    source: ByteSource, file: Bump5File, flavour: Flavour, coded: frozenset[str], expected: frozenset[str]
) -> Iterator[Variant]:
    """Likeliest layout for each numbering: the first of the file's size."""
    keys = {slots.key_of(slot) for group in flavour.slots for slot in group if slot.optional and not slot.coded}
    norms = [set(_QK_NORM), set()] if set(_QK_NORM) <= keys else [set[str]()]
    if not expected.issuperset(_QK_NORM):
        norms.reverse()
    for numbering, types in _numbered(flavour, slots.with_optional(flavour.slots, coded | keys), file):
        made: list[Variant] = []
        for present in norms:
            nbytes = _payload_bytes(slots.with_optional(flavour.slots, coded | present), file.geometry, types)
            room = file.end - file.start - nbytes
            for content in _contents(source, file, flavour, keys, types, room):
                table = slots.with_optional(flavour.slots, coded | present | content.keys())
                total = nbytes + sum(content.values())
                made.append(Variant(flavour, numbering, table, file.geometry, types, content, file.start, total))
        yield next((choice for choice in made if choice.nbytes == file.end - file.start), made[0])


def _payload_bytes(table: slots.SlotTable, g: slots.Geometry, types: Mapping[str, DType]) -> int:
    """Bytes of all slots without content, from one layer's element counts."""
    one = slots.place(table, g._replace(num_layers=1), None, start=0, interleaved=False)
    elements: Counter[str] = Counter()
    for item in one:
        elements[item.slot.name] += item.nbytes // F32.size
    return sum(types[name].nbytes(elements[slot.name]) for name, slot, _ in slots.slots_of(table, g.num_layers))


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
    """Bytes of the token strings, at most ``room``; 0 where they do not end."""
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


# -- Facts of a bump file that are not tensors, and options visible in it ----------------------------------------------


def content(index: TensorIndex, named: Mapping[str, Path]) -> Content:
    """Header fields, tokenizer, metadata, and the documents beside the file.

    Args:
        named: document -> where it is, if not beside the file.
    """
    path = index.path
    if not index.version:  # its manifest is all that it says
        return Content({}, {}, {MANIFEST_NAME: named.get(MANIFEST_NAME) or manifest_of(path)})
    keys = {**slots.fields_of(index.facts["header"]), "dtype table": bytes(index.facts["codes"])}
    with open_source(path) as source:
        for stored in index.facts.get("tokenizer") or ():
            keys[stored.name] = source.read_at(stored.extent.offset, stored.extent.nbytes)
        metadata = [checksum.extent for checksum in index.checksums if checksum.what == "metadata"]
        files = {slots.FOOTER_NAME: source.read_at(metadata[0].offset, metadata[0].nbytes)} if metadata else {}
    names = (CONFIG_NAME,) if index.version == 3 else (CONFIG_NAME, MANIFEST_NAME, sidefiles.MAP_NAME)
    paths = {name: named.get(name) or sidefiles.document_beside(path, name) for name in names}
    return Content(keys, files, {name: place for name, place in paths.items() if place.exists()})


def shown_settings(_: TensorIndex, out: TensorIndex) -> dict[str, Any]:
    """The version, and how its types are numbered and its rows ordered."""
    if not out.version:
        return {"trainable": out.facts["layout"]}
    seen: dict[str, Any] = {"bump_version": out.version}
    one, other = BUMP_CODES.values()
    if out.version == 3 and any(one.get(code) is not other.get(code) for code in bytes(out.facts["codes"])):
        seen["dtype_codes"] = out.facts["dtype_codes"]
    if any(tensor.layout.interleaved for tensor in out.tensors.values()):
        seen["rope_layout"] = "interleaved"
    return seen


def stores_alike(plan: Plan, out: TensorIndex) -> bool:
    """Whether the plan writes entries of these types, in this order of rows."""
    if not (plan.version and out.version):
        return plan.version == out.version and plan.options.trainable == out.facts["layout"]
    layout = str(out.facts.get("rope_layout", "")) if plan.rope_layout else ""
    return bytes(plan.contents().keys["dtype table"]) == bytes(out.facts["codes"]) and plan.rope_layout == layout


def takes_along(plan: Plan, directory: Path) -> Globs:
    """Files that the engine reads along with the output.

    Unless another bump file there may need them.

    It takes types and offsets from ``weights_manifest.json``, and loads by the ``weights_manifest.map`` beside the
    weights.
    """
    if not plan.files:  # refused
        return Globs()
    name = directory / plan.files[0].name
    return Globs(documents=tuple(d for d in (MANIFEST_NAME, sidefiles.MAP_NAME) if not sidefiles.other_bumps(name, d)))


def configured(directory: Path) -> list[str]:
    """Bump files in the directory that its ``config.json`` describes."""
    found = (path for path in directory.iterdir() if path.suffix == ".bump")
    return [path.name for path in found if sidefiles.document_beside(path, CONFIG_NAME).name == CONFIG_NAME]


# -- Bump files of any version -> the canonical index ------------------------------------------------------------------

# BUMPWGT3 -> the canonical index: packed tensors described by the layouts that the writer uses.


class Bump3File(NamedTuple):
    """Contents of a version 3 file without a configuration."""

    header: slots.HeaderV3
    codes: bytes
    size: int | None


def read_bump3(source: ByteSource, head: bytes) -> Bump3File:
    """Read and check header and dtype table; ``head`` is the first 128 bytes.

    Raises:
        InputError: ``bump.header`` or ``bump.dtype-table``.
    """
    header = slots.HeaderV3.unpack(head)
    check_reserved(header.reserved, 0x60)
    check_numbers(header, _faults(header))
    layers = header.num_layers
    codes = read_table(source, slots.HEADER_BYTES, {slots.table_entries(slots.TABLES["3"], layers)}, layers)
    return Bump3File(header, codes, source.size)


def index_bump3(path: Path, file: Bump3File, config: Mapping[str, Any] | None) -> TensorIndex:
    """The index of a file, without tensors where there is no configuration.

    The file itself names neither the key/value heads nor the feed-forward size.

    Raises:
        InputError: ``bump.dtype-table``, ``bump.extent`` or ``model.config``.
        UnsupportedError: ``model.architecture``.
    """
    header, codes, size = file.header, file.codes, file.size
    facts = {"header": header, "codes": codes, "size": size}
    payload = Extent(path, slots.HEADER_BYTES, (size or slots.HEADER_BYTES) - slots.HEADER_BYTES)
    checksums = (Checksum("payload", payload, header.sha256),)
    bare = TensorIndex("bump", 3, path, (path,), "", None, (), {}, facts=facts, checksums=checksums)
    if config is None:
        if all(types_of(slots.TABLES["3"], codes, header.num_layers, numbering) is None for numbering in BUMP_CODES):
            raise code_error(slots.TABLES["3"], codes, header.num_layers, slots.HEADER_BYTES + slots.TABLE_LENGTH.size)
        return replace(bare, incomplete=sidefiles.without_config(path))
    model = sidefiles.model_config(path, config, slots.sizes_of(header))
    layout = _rope_layout(config)
    g = slots.geometry(model, context=header.context_length, step=slots.ALIGN_ELEMENTS)
    numbering, placed = _resolve_codes(codes, g, size, interleaved=layout == "interleaved")
    who = slots.computed_by([item.dtype.name for item in placed], numbering)
    note = {"note": who} if who else {}
    kinds = {item.dtype.name for item in placed if item.slot.parts and not item.slot.fp32}
    right = () if layout == "interleaved" else right_of_bump3(kinds, numbering)
    return replace(
        bare,
        architecture=str(config.get("model_type", "")),
        config=model,
        **slots.tensors_of(path, placed),
        metadata=config,
        facts={**facts, "dtype_codes": numbering, "rope_layout": layout, "engines": ", ".join(right) or None, **note},
    )


def _faults(h: slots.HeaderV3) -> Iterator[str]:
    """Where a file is not what the loader's own arithmetic gives."""
    if h.num_heads * h.head_dim != h.hidden_size:
        yield f"num_heads {h.num_heads} x head_dim {h.head_dim} is not embed_dim {h.hidden_size}"
    fields = h._asdict()
    for field, (name, rounded) in ROUNDED.items():
        if field in fields and fields[field] <= fields[rounded] != slots.align(fields[field]):
            yield f"aligned_{name} {fields[rounded]} is not {name} {fields[field]} rounded up to 16"


def _rope_layout(config: Mapping[str, Any]) -> str:
    layout = config.get("rope_layout", "split")
    if layout not in ("split", "interleaved"):
        raise InputError(
            "model.config",
            f"{CONFIG_NAME}: rope_layout is {quoted(str(layout))}, split or interleaved expected",
        )
    return str(layout)


def _resolve_codes(
    codes: bytes, g: slots.Geometry, size: int | None, *, interleaved: bool
) -> tuple[str, list[slots.PlacedTensor]]:
    """Which of the two numberings the table is in, and what it places.

    Version 3 carries no mark of it. Codes 6 and 8 are Q4_K and Q6_K in one numbering each; the file's size settles the
    rest, because a block of 144 bytes and one of 210 never give the same total for one model.
    """
    check_room(slots.TABLES["3"], g, size)
    start = slots.HEADER_BYTES + slots.TABLE_LENGTH.size
    plausible: list[slots.PlacedTensor] = []
    cut: slots.PlacedTensor | None = None
    for numbering in sorted(BUMP_CODES, key=lambda n: (n == "v4") != (8 in codes and 6 not in codes)):
        types = types_of(slots.TABLES["3"], codes, g.num_layers, numbering)
        if types is None:
            continue
        placed = slots.place(slots.TABLES["3"], g, types, start=start + len(codes), interleaved=interleaved)
        found = misfit(placed)
        if not found and (size is None or placed[-1].offset + placed[-1].nbytes == size):
            return numbering, placed
        cut = found or cut
        plausible = plausible or ([] if found else placed)
    if plausible:
        raise extent_error(plausible, size or 0)
    raise misfit_error(cut) if cut else code_error(slots.TABLES["3"], codes, g.num_layers, start)


# BUMPWGT5 and BUMPWGT4, in all their layouts -> the canonical index.

#: Keys that documents about one file must agree in, besides those that the header repeats.
_AGREEING = ("rope_theta", "rms_norm_eps", "rope_layout")


def index_bump5(
    path: Path,
    source: ByteSource,
    file: Bump5File,
    config: Mapping[str, Any] | None,
    manifest: Mapping[str, Any] | None,
) -> TensorIndex:
    """Index a file and the documents beside it; of a pipe without tensors.

    The end of a pipe is not known.

    Raises:
        InputError: ``bump.metadata``, ``bump.dtype-table``, ``bump.extent`` or ``model.config``.
        UnsupportedError: ``model.architecture``.
    """
    facts: dict[str, Any] = {"header": file.header, "codes": file.codes, "size": file.size}
    if file.size is None:
        return TensorIndex(
            "bump",
            file.version,
            path,
            (path,),
            "",
            None,
            (),
            {},
            facts=facts,
            incomplete=sidefiles.without_config(path),
        )
    checked = None
    if manifest is not None:
        checked = checked_manifest(manifest, start=file.start, end=file.end)
    merged = _merged(config, file.metadata, checked)
    own = _own("config", file.metadata, checked)
    family = _family(merged)
    if _written_as(own.get(FAMILY_KEY), family):
        family = merged["model_type"] = own[FAMILY_KEY]
    elif family and family_of_model_type(str(merged["model_type"])) is None:
        merged["model_type"] = family
    resolved = resolve(source, file, checked, used(row_family(family), slots.TEMPLATED) if family else frozenset())
    merged.setdefault("model_type", family or family_without_name(slots.TEMPLATED, resolved.present))
    _check_template(str(merged["model_type"]))
    model = sidefiles.completed(path, sidefiles.model_config(path, merged, slots.sizes_of(file.header)), own)
    embedded = _own("template", file.metadata, checked)
    interleaved = _interleaved(merged, resolved.flavour, model, embedded)
    try:
        placed = resolved.place(interleaved=interleaved, family=FAMILIES[model.family], parameters=model.scope)
    except AxesError as error:
        raise InputError("model.config", f"{MANIFEST_NAME}: {error}") from None
    cut = misfit(placed)
    if cut:
        raise misfit_error(cut)
    tensors = [p for p in placed if p.canonical]
    foreign = [p for p in tensors if resolved.flavour.own_q4_k and p.dtype is DTYPES["Q4_K"]]
    matrices = {p.slot_name: p.dtype for p in tensors if not p.slot.fp32}
    facts |= {
        "layout": f"{file.version}-{resolved.flavour.name}",
        "dtype_codes": resolved.numbering,
        "rope_layout": "interleaved" if interleaved else "split",
        "engines": ", ".join(still_right(_engines(own.get(KEY)), row_family(model.family).gguf, matrices)) or None,
        "tokenizer": tuple(p.stored(path) for p in placed if not p.canonical) or None,
    }
    if file.version == 4 and resolved.flavour is D:
        facts["note"] = slots.FOR_V7_AND_V8
    if foreign:
        facts["note"] = "its Q4_K blocks are packed in the engine's first way, not ggml's: they cannot be read"
    known = [p for p in tensors if p not in foreign]
    return TensorIndex(
        format="bump",
        version=file.version,
        path=path,
        files=(path,),
        architecture=str(merged["model_type"]),
        config=model,
        **{**slots.tensors_of(path, known), "stored": tuple(p.stored(path) for p in tensors)},
        unknown=tuple(p.stored(path) for p in foreign),
        metadata=merged,
        facts=facts,
        checksums=_checksums(path, file),
    )


def _check_template(model_type: str) -> None:
    """Refuse entries of a family that the engine may compute wrong."""
    family = family_of_model_type(model_type)
    row = row_family(family.name).engines.get(slots.TEMPLATED) if family else None
    if row is not None and row.absent:
        why = f": {row.why}" if row.why else ""
        raise UnsupportedError("model.architecture", f"ckconv reads no bump file of {an(model_type)}{why}")


def _checksums(path: Path, file: Bump5File) -> tuple[Checksum, ...]:
    payload = Checksum("payload", Extent(path, file.table_at, file.end - file.table_at), file.header.sha256)
    return (payload, file.metadata.checksum) if file.metadata else (payload,)


def _merged(config: Mapping[str, Any] | None, metadata: Metadata | None, manifest: Manifest | None) -> dict[str, Any]:
    """Merge documents under Hugging Face's keys, ``config.json`` first."""
    others = {
        "the file's metadata": huggingface_config(metadata.document if metadata else None),
        "the manifest": huggingface_config(manifest.document if manifest else None),
    }
    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    table = (config or {}).get("rope_parameters")  # where transformers 5 has the base
    table = table.get("full_attention", table) if isinstance(table, dict) else {}
    theta = {"rope_theta": table["rope_theta"]} if isinstance(table, dict) and "rope_theta" in table else {}
    for what, document in {**others, CONFIG_NAME: {**theta, **(config or {})}}.items():
        for key, value in document.items():
            if value is None:
                continue
            if key in _AGREEING and key in merged and merged[key] != value:
                raise InputError(
                    "model.config",
                    f"{what}: {key} is {quoted(str(value))}, {origin[key]} says {quoted(str(merged[key]))}",
                )
            merged[key], origin[key] = value, what
    model = (manifest.document if manifest else {}).get("model")
    if "model_type" not in merged and isinstance(model, str):
        merged["model_type"] = model
    return merged


def _family(config: Mapping[str, Any]) -> str:
    """Family that a configuration names; empty where it is not known."""
    word = str(config.get("model_type", ""))
    found = family_of_model_type(word) or next(iter(families_of_gguf(word)), None)
    return found.name if found else ""


def _own(what: str, metadata: Metadata | None, manifest: Manifest | None) -> dict[str, Any]:
    """Configuration (the engine's keys, and ckconv's) or template in the file."""
    found = (one.document.get(what) for one in (metadata, manifest) if one)
    return next((one for one in found if isinstance(one, dict)), {})


def _written_as(own: object, family: str) -> bool:
    """Whether a model of the family ``own`` is written as one of ``family``."""
    if not isinstance(own, str) or own not in FAMILIES or not family:
        return False
    return family == (written_as(FAMILIES[own], slots.TEMPLATED) or family_in_gguf(own))


def row_family(name: str) -> Family:
    """The family whose row says how a file of this one is laid out."""
    return FAMILIES[written_as(FAMILIES[name], slots.TEMPLATED) or family_in_gguf(name)]


def _engines(found: object) -> list[str]:
    """The releases that the file says it is for."""
    return [name for name in found if isinstance(name, str) and name in releases()] if isinstance(found, list) else []


def _interleaved(config: Mapping[str, Any], flavour: Flavour, model: ModelConfig, template: dict[str, Any]) -> bool:
    """Whether Q and K rows are stored interleaved.

    As the configuration says, else as the template rotates them, else as written.
    """
    word = config.get("rope_layout")
    row = FAMILIES[model.family].engines.get(slots.TEMPLATED)
    if row is not None and row.rotates == "neighbors":
        return False
    if word is None:
        row = row_family(model.family).engines.get(slots.TEMPLATED)
        default = flavour.interleaved and row is not None and row.rotates == "interleaved"
        return template_interleaves(template, default) if flavour.interleaved else default
    if not isinstance(word, str) or word not in ROPE_WORDS:
        raise InputError("model.config", f"rope_layout is {quoted(str(word))}, split or pairwise expected")
    return ROPE_WORDS[word]


# Bump files that are known and not read: named, with what reads them, so that none is mistaken for another.
#
# Source: ``load_model_weights`` of ``src/ckernel_codegen.c``, the runtime that is generated for bump 3. It takes the
# magic number ``BUMPWGT2`` (FP32 from byte 128 on), and any other start for FP32 from byte 0 on, as its
# ``save_model_weights`` writes it. ``build_dummy_weights`` of ``ck_run_v7.py``.

CODE = "bump.flavour"

#: The magic number before those of :data:`ckconv.formats.bump.slots.MAGIC`.
_SECOND = b"BUMPWGT2"

#: What the manifest of a file of zeros calls itself, which smoke tests load.
_DUMMY = "ck-bumpwgt4-dummy-v1"

_READER = "only the v1 runtime that the engine generates for bump 3 reads that"

_SIZES = ("num_layers", "vocab_size", "hidden_size", "ffn_size", "num_heads", "num_kv_heads", "context_length")


def check_old(path: Path, head: bytes, size: int | None, *, beside: bool) -> None:
    """Name a file that is none of those that are read.

    Args:
        beside: documents may lie beside it.

    Raises:
        UnsupportedError: ``bump.flavour``.
        InputError: ``bump.metadata``, the file cannot be described without its manifest.
    """
    if head.startswith(_SECOND):
        raise UnsupportedError(CODE, f"is bump 2, FP32 without types from byte {slots.HEADER_BYTES} on: {_READER}")
    if is_wrapped(head):
        document = load_manifest(manifest_of(path)) if beside else None
        if document is not None and document.get("format") == _DUMMY:
            raise UnsupportedError(CODE, "holds no weights, but zeros for a smoke test of the engine")
        raise InputError(
            "bump.metadata",
            f"a header of zeros stands before what the engine trained, and no {MANIFEST_NAME} of that is beside it",
        )
    if beside and not head.startswith(b"BUMPWGT") and size is not None and size == _flat(path):
        raise UnsupportedError(CODE, f"is FP32 without a header, in the order of bump 3: {_READER}")
    if len(head) == slots.HEADER_BYTES and not any(head):
        # Both scripts write the header last, over zeros.
        raise InputError("bump.magic", "the header is zeros: the engine's script stopped before it wrote one")


def _flat(path: Path) -> int | None:
    """Bytes of all slots of bump 3 in FP32, by the configuration's sizes."""
    try:
        config = sidefiles.load_config(sidefiles.document_beside(path, CONFIG_NAME), required=False)
    except InputError:
        return None
    sizes = {field: _number(config or {}, field) for field in _SIZES}
    sizes["num_kv_heads"] = sizes["num_kv_heads"] or sizes["num_heads"]
    if not all(sizes.values()):
        return None
    layers, vocab, hidden, ffn, heads, kv_heads, context = sizes.values()
    dim = hidden // heads
    aligned = map(slots.align, (hidden, ffn, dim))
    g = slots.Geometry(1, vocab, hidden, ffn, heads, kv_heads, dim, context, *aligned)

    def nbytes(layers: int) -> int:
        own = g._replace(num_layers=layers)
        return sum(item.nbytes for item in slots.place(slots.TABLES["3"], own, None, start=0, interleaved=False))

    return nbytes(1) + (layers - 1) * (nbytes(2) - nbytes(1))


def _number(config: Mapping[str, Any], field: str) -> int:
    value = next((config[key] for key in CONFIG_KEYS[field] if key in config), 0)
    return value if isinstance(value, int) and 0 < value < MAX_DIMENSION else 0


def open_bump(
    path: Path,
    *,
    source: ByteSource | None = None,
    config_path: Path | None = None,
    config: Mapping[str, Any] | None = None,
    manifest: Mapping[str, Any] | None = None,
) -> TensorIndex:
    """Read a bump file, its ``config.json`` and ``weights_manifest.json``.

    Both are looked for under the bump file's own name first (:mod:`ckconv.formats.bump.sidefiles`).

    A version 3 file itself names neither the key/value heads nor the feed-forward size, so without a configuration
    its index has no tensors; the header is still described. A version 4 or 5 file needs neither document.

    Args:
        config_path: where the configuration is, if not beside the file.
        config: the configuration itself, if the caller has it; then nothing beside the file is looked at.
        manifest: the manifest, for a caller who has the configuration.

    Raises:
        InputError: ``bump.*`` or ``model.config``.
        UnsupportedError: ``model.architecture``.
    """
    opened = source or open_source(path)
    try:
        with in_file(path):
            head = opened.read_at(0, slots.HEADER_BYTES)
            trained = trained_manifest(path, head) if source is None and config is None else None
            if trained is not None:
                return index_trained(path, opened, trained, wrapped=is_wrapped(head))
            check_old(path, head, opened.size, beside=source is None and config is None)
            version = _version(head)
            older = read_bump3(opened, head) if version == 3 else None
            beside = source is None and config is None  # nothing lies beside a pipe
            if beside and older is None:
                manifest = load_manifest(sidefiles.document_beside(path, MANIFEST_NAME))
            newer = read_bump5(path, opened, head, version, named=manifest is not None) if older is None else None
            if config is None and (config_path or source is None):
                config = sidefiles.load_config(
                    config_path or sidefiles.document_beside(path, CONFIG_NAME), required=config_path is not None
                )
            if older is not None:
                return index_bump3(path, older, config)
            assert newer is not None
            return index_bump5(path, opened, newer, config, manifest)
    finally:
        if source is None:
            opened.close()


def _version(head: bytes) -> int:
    version = slots.VERSIONS.get(head[:8])
    if version is None:
        raise InputError(
            "bump.magic",
            f"starts with {head[:8]!r}, not one of {', '.join(m.decode() for m in slots.MAGIC.values())}"
            if head
            else "the file is empty",
            offset=0,
            found=head[:8],
            hint=f"a model trained in the engine has none: its {MANIFEST_NAME} has to be beside it" if head else None,
        )
    if len(head) < slots.HEADER_BYTES:
        raise InputError(
            "bump.header",
            f"{counted(len(head), 'byte')}, a bump header has {slots.HEADER_BYTES}",
            found=len(head),
        )
    field = int.from_bytes(head[8:12], "little")
    if field != version:
        raise InputError(
            "bump.magic",
            f"magic {head[:8].decode()} with version {field}",
            offset=8,
            found=field,
            allowed=version,
        )
    return version
