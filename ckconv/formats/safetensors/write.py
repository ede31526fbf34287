"""Arrays of a checkpoint, and the files that hold them or go along."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ckconv.core import tensors
from ckconv.core.layouts import DTYPES, DType, Layout, plain, shifted
from ckconv.core.lazy import NamedTuple, replace
from ckconv.core.metadata import (
    CONFIG_NAME,
    GENERATION,
    METADATA,
    SETTINGS,
    TOKENIZER,
    SideFile,
    as_read,
    root_of,
    side_file,
)
from ckconv.core.options import Options
from ckconv.errors import VerifyError
from ckconv.families import axes as shapes, schema
from ckconv.families.names import (
    FUSIONS,
    NAMES_KEY,
    OTHER_SCHEMES,
    REFERENCE,
    NameRule,
    draft_name,
    fuses_otherwise,
    fusion_names,
    scheme_names,
)
from ckconv.families.sizes import Sizes, factor_of, layout_in
from ckconv.formats.safetensors.config_json import CHECKPOINTS
from ckconv.formats.safetensors.container import (
    INDEX_SUFFIX,
    LENGTH_BYTES,
    SINGLE_NAME,
    SUFFIX,
    encode_header,
    shard_name,
)
from ckconv.formats.safetensors.files import LINEAR, documents_of, layer_files, pooled, pooling_files
from ckconv.io.files import CARD_NAME, CHUNK, open_source
from ckconv.plan.steps import Container, Frame, Module, OutputFile, Piece, Step, place
from ckconv.quant.convert import Conversion, Run
from ckconv.quant.mlx import Triple, plane_types, triple_of, viewed
from ckconv.tokenizer import gguf, huggingface, huggingface as tokenizer_json
from ckconv.tokenizer.checkpoint import NORMAL, encode_sentencepiece, tokenizer_files
from ckconv.tokenizer.vocabulary import Inexact, NotFaithful, Vocabulary, ending_ids, special_ids, vocabulary

# Canonical tensors -> the tensors of a checkpoint: what each is called there, and which are stored as one.


class Entry(NamedTuple):
    """A tensor of a checkpoint.

    Attributes:
        name: what it is called there.
        canonical: what it holds, by canonical name; for a fused tensor a name that no single tensor has.
        parts: canonical tensors whose rows it holds, in order.
        missing: parts that the model does not have.
        expert: the one expert or part whose rows it holds, ``None`` for all rows.
        of: how many there are.
        stored: its shape, and where the canonical rows are in it; ``None`` where they follow each other.
        shift: what is stored for a canonical value (:class:`ckconv.core.layouts.Layout`).
        packed: it is stored as blocks and scales.
        factors: of each part, what a stored value is multiplied with; empty for 1.
    """

    name: str
    canonical: str
    parts: tuple[str, ...]
    missing: tuple[str, ...] = ()
    expert: int | None = None
    stored: tuple[tuple[int, ...], Layout] | None = None
    shift: float = 0
    packed: bool = False
    factors: tuple[float, ...] = ()
    of: int = 1


class Spelling:
    """Names and fusions of a family's tensors in one kind of checkpoint.

    Args:
        parameters: of the model.
        scheme: ``hf``, ``mlx``, or one of :data:`ckconv.families.names.OTHER_SCHEMES`.
        fuse: canonical modules of tensors to fuse besides those that the family always fuses.
    """

    def __init__(
        self, family: schema.Family, parameters: Mapping[str, Any], scheme: str, fuse: Iterable[str] = ()
    ) -> None:
        self._sizes, self._family = Sizes(family, parameters), family
        self._by_class = bool(family.of_drafts) and scheme not in OTHER_SCHEMES
        names = scheme_names(family, scheme)
        self._written, self._packed = dict(names.written), names.packed
        for whole in fuse:
            self._written |= fusion_names(family, scheme, whole)

    def entries(self, present: Collection[str], packed: Collection[str] = ()) -> tuple[list[Entry], list[str]]:
        """Entries of a checkpoint, and canonical names without a name there.

        Args:
            packed: those whose values stay in blocks.

        Raises:
            AxesError: the parameters give no sizes.
        """
        found: dict[str, Entry] = {}
        nameless: list[str] = []
        for canonical in present:
            name = tensors.parse(canonical)
            stored = (self._packed if canonical in packed else self._written).get(name.pattern)
            if stored is None:
                nameless.append(canonical)
                continue
            for entry in self._entries_of(stored, name.layer, present):
                found.setdefault(entry.name, entry._replace(packed=canonical in packed))
        return list(found.values()), nameless

    def _entries_of(self, stored: NameRule, layer: int | None, present: Collection[str]) -> Iterator[Entry]:
        called, part = tensors.with_layer(stored.pattern, layer), stored.parts[0]
        parts = tuple(tensors.with_layer(part.canonical, layer) for part in self._sizes.present(stored.parts))
        missing = tuple(part for part in parts if part not in present) if len(parts) > 1 else ()
        found = layout_in(stored, self._sizes, layer)
        canonical, shift = tensors.with_layer(stored.canonical, layer), schema.stored_higher(part.value)
        factors = tuple(factor_of(one, self._sizes.scope, layer) for one in stored.parts) if part.by is not None else ()
        if self._by_class:
            called = draft_name(called, canonical, self._family, int(self._sizes.scope["layers"]))
        whole = Entry(called, canonical, parts, missing, stored=found, shift=shift, factors=factors)
        if not part.stack:
            yield whole
            return
        hole = "{e}" if "{e}" in called else "{n}"
        size = self._sizes.of(part.row, layer)
        if found is None and len(part.row.axes[0]) > 1:
            shape = shapes.sizes(part.axes, size)
            whole = whole._replace(stored=(shape, plain(math.prod(shape[:-1]), shape[-1])))
        count = int(size(part.stack))
        for n in range(count):
            yield whole._replace(name=called.replace(hole, str(n)), expert=n, of=count)


# The arrays that one tensor of a checkpoint is written as, and the rows that go into them.

#: What the arrays of a quantized module of MLX are called, in the order of their planes.
PLANES = ("weight", "scales", "biases")

#: What stands behind the name of one that transformers stores in MXFP4.
BLOCKS = ("_blocks", "_scales")


def copied_piece(stored: tensors.StoredTensor, dtype: DType, canonical: str = "") -> Piece:
    """A stored tensor under its own name, in its own order."""
    canonical = canonical or stored.name
    tensor = tensors.plain_tensor(canonical, stored)
    conversion = Conversion(stored.dtype, dtype)
    return Piece(stored.name, canonical, dtype, stored.shape, tensor.layout, tensor, conversion)


def decoded_piece(canonical: str, tensor: tensors.Tensor, dtype: DType) -> Piece:
    """A packed matrix under the name that it has dense."""
    return Piece(tensor.source, canonical, dtype, tensor.shape, tensor.layout, tensor, Conversion(tensor.dtype, dtype))


def module_of(entry: Entry, parts: Sequence[tensors.Tensor], dtype: DType) -> Module:
    """The module that is written for ``entry``.

    Args:
        parts: the tensors of ``entry.parts``.
        dtype: of all of them in the output; an MLX triple's is written as one array a plane.
    """
    shape, layout = parts_layout(entry, parts, dtype)
    layout = shifted(layout, entry.shift) if entry.shift else layout
    triple = triple_of(dtype)
    if triple is None:
        return (_dense(entry, parts, shape, layout, dtype),)
    arrays = _blocks if entry.packed else _triple
    return planes(entry, parts, layout, dtype, arrays(entry.name, shape, triple))


def parts_layout(entry: Entry, parts: Sequence[tensors.Tensor], dtype: DType) -> tuple[tuple[int, ...], Layout]:
    """The shape of the whole, and where the rows of the parts are in it."""
    if entry.stored is not None:
        return entry.stored
    shape = parts[0].shape if entry.expert is None else parts[0].shape[1:]
    shape = shape if len(parts) == 1 else (sum(part.shape[0] for part in parts), *shape[1:])
    rows, cols = tensors.matrix_of(shape, dtype) if entry.expert is None else (math.prod(shape[:-1]), shape[-1])
    return shape, plain(rows, cols)


def _dense(
    entry: Entry, parts: Sequence[tensors.Tensor], shape: tuple[int, ...], layout: Layout, dtype: DType
) -> Piece:
    factors = entry.factors or (1.0,) * len(parts)
    layout = replace(layout, scale=factors[0]) if len(parts) == 1 else layout
    conversions = [
        Conversion(part.dtype, dtype, layout.shift - part.layout.shift, factor=part.layout.scale / factor)
        for part, factor in zip(parts, factors, strict=True)
    ]
    return Piece(
        entry.name,
        entry.canonical,
        dtype,
        shape,
        layout,
        parts[0],
        conversions[0],
        _runs(entry, parts, conversions),
    )


def spare_of(
    family: schema.Family,
    scheme: str,
    parameters: Mapping[str, Any],
    dtype: DType,
    dropped: Sequence[tensors.DroppedTensor],
    typed: Callable[[str, DType], DType],
) -> Iterator[Module]:
    """Tensors that a class would fill at random where they are missing.

    Args:
        dtype: of zeros, where the source does not have them.
        dropped: what its rules leave out.
        typed: the type in the output of an array that stands for itself.
    """
    sizes = Sizes(family, parameters)
    own = {item.stored.name: item.stored for item in dropped if item.copied}
    for name, row in scheme_names(family, scheme).zeros.items():
        shape = sizes.shape(row)
        found = next((one for called, one in own.items() if called == name or called.endswith(f".{name}")), None)
        if found is not None and found.shape == shape:
            yield (copied_piece(found, typed(found.name, found.dtype))._replace(name=name),)
            continue
        layout = plain(*tensors.matrix_of(shape, dtype))
        yield (Piece(name, row.name, dtype, shape, layout, None, None),)


class StoredArray(NamedTuple):
    """Array that is stored of a quantized module.

    Attributes:
        together: how many rows of the matrix one of its rows is for.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    together: int = 1


def _triple(name: str, shape: tuple[int, ...], triple: Triple) -> list[StoredArray]:
    """MLX's arrays of a matrix."""
    q, module = triple.quantization, name.removesuffix(".weight")
    widths = (q.row_bytes(shape[-1]) // 4, shape[-1] // q.group_size, shape[-1] // q.group_size)
    rows = zip(PLANES, plane_types(triple), widths, strict=False)
    return [StoredArray(f"{module}.{kind}", dtype, (*shape[:-1], width)) for kind, dtype, width in rows]


def _blocks(name: str, shape: tuple[int, ...], triple: Triple) -> list[StoredArray]:
    """Blocks of transformers' ``mxfp4``: codes of a group are an axis.

    Source: ``integrations/mxfp4.py`` of transformers 5.23.
    """
    q, module = triple.quantization, name.removesuffix(BLOCKS[0])
    groups = (*shape[:-1], shape[-1] // q.group_size)
    shapes = ((*groups, q.row_bytes(q.group_size)), groups)
    return [StoredArray(module + ending, DTYPES["U8"], own) for ending, own in zip(BLOCKS, shapes, strict=True)]


def planes(
    entry: Entry, parts: Sequence[tensors.Tensor], layout: Layout, dtype: DType, arrays: Sequence[StoredArray]
) -> Module:
    """Arrays of a quantized module; those of a triple are copied."""
    pieces = []
    for number, plane in enumerate(arrays):
        copied = [part.dtype is dtype and bool(part.planes) for part in parts]
        sources = [
            viewed(part.planes[number], plane.dtype) if same else part for part, same in zip(parts, copied, strict=True)
        ]
        conversions = [
            Conversion(plane.dtype, plane.dtype)
            if same
            else Conversion(part.dtype, dtype, plane=number, factor=part.layout.scale, array=plane.dtype)
            for part, same in zip(parts, copied, strict=True)
        ]
        own = plain(*plane.shape) if plane.together > 1 else None
        pieces.append(
            Piece(
                plane.name,
                entry.canonical,
                plane.dtype,
                plane.shape,
                own or layout.of_width(math.prod(plane.shape) * layout.cols // layout.elements),
                sources[0],
                conversions[0],
                _runs(entry, sources, conversions),
                dtype,
            )
        )
    return tuple(pieces)


def _runs(entry: Entry, sources: Sequence[tensors.Tensor], conversions: Sequence[Conversion]) -> tuple[Run, ...]:
    """Rows that are not all of one tensor, as runs of ``sources``."""
    if entry.expert is None and len(sources) == 1:
        return ()
    found, number = [], entry.expert or 0
    for source, conversion in zip(sources, conversions, strict=True):
        each = source.layout.rows // entry.of // conversion.together
        found.append(Run(source, conversion, number * each, (number + 1) * each))
    return tuple(found)


#: What a loader does that finds tensors under other names.
_UNFOUND = {
    "transformers": ", and computes with random numbers for those that it does not find",
    "mlx-lm": ", and refuses others",
}


def loading_notes(family: schema.Family | None, options: Options, loader: schema.Loader, scheme: str) -> Iterator[str]:
    """Notes on names or fusions that the loader does not load.

    Args:
        scheme: what ``--names hf`` means here.
    """
    fused = family is not None and fuses_otherwise(family, scheme, [FUSIONS[what] for what in options.fuse])
    if fused or options.names in ("canonical", "gguf"):
        what = f"the names of --names hf, fused as its classes are{_UNFOUND.get(loader.name, '')}"
        yield f"{loader.name} does not load this output: it looks for tensors under {what}"


# Arrays -> safetensors files: which file each goes into, in which order, and the header in front of them.

#: What loaders look for in the directory of a checkpoint.
_DIFFUSERS_NAME = f"diffusion_pytorch_model{SUFFIX}"


class Shards(NamedTuple):
    """The files.

    Attributes:
        headers: what stands before the tensors of each file.
        metadata: what each header says besides.
        index_name: what their index is called, empty where there is none.
        weight_map: tensor -> file, where there is an index.
    """

    files: tuple[OutputFile, ...]
    headers: tuple[bytes, ...]
    metadata: Mapping[str, str]
    index_name: str
    weight_map: Mapping[str, str]

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Bytes around the tensors of each file."""
        return tuple(Frame(header) for header in self.headers)

    @property
    def keys(self) -> dict[str, str]:
        """Keys that every file declares."""
        return {f"{METADATA}.{key}": value for key, value in self.metadata.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that the index lists."""
        listed, pairs = {*self.weight_map.values()}, zip(self.files, self.headers, strict=True)
        return sum(file.nbytes - len(header) for file, header in pairs if file.name in listed)


def lay_out(
    modules: Sequence[Module],
    file_name: str,
    limit: int,
    metadata: Mapping[str, str],
    *,
    always_index: bool,
    behind: Mapping[str, Module] | None = None,
    drafts: tuple[str, str] = ("", ""),
) -> Shards:
    """Deal modules out to files by name, and put each file together.

    Args:
        file_name: of a single file; shards are called after it.
        limit: bytes of tensors in a file, unless one module has more; 0 for one file.
        always_index: a single file has an index too.
        behind: directory -> linear layer behind the model, which no index lists.
        drafts: beginning of names of what stands in a file of its own, and which.
    """
    separate: dict[str, Sequence[Module]] = {f"{at}/{SINGLE_NAME}": [module] for at, module in (behind or {}).items()}
    if drafts[0]:
        separate[drafts[1]] = [module for module in modules if module[0].name.startswith(drafts[0])]
        modules = [module for module in modules if not module[0].name.startswith(drafts[0])]
    groups = _split(modules, limit)
    stem = file_name.removesuffix(SUFFIX)
    names = [file_name] if len(groups) == 1 else [shard_name(stem, n + 1, len(groups)) for n in range(len(groups))]
    indexed = always_index or len(groups) > 1
    files, headers = [], []
    weight_map: dict[str, str] = {}
    for name, group in (*zip(names, groups, strict=True), *separate.items()):
        ordered = _ordered(tensors.chained(group))
        header = encode_header(((p.name, p.dtype.safetensors or "", p.shape, p.nbytes) for p in ordered), metadata)
        offsets, at = array("Q"), len(header)
        for piece in ordered:
            offsets.append(place(at))
            at += piece.nbytes
            if indexed and "/" not in name:
                weight_map[piece.name] = name
        files.append(OutputFile(name, at, tensors.made(len(ordered), partial(_step, ordered, offsets))))
        headers.append(header)
    return Shards(
        tuple(files),
        tuple(headers),
        metadata,
        f"{stem}{SUFFIX}{INDEX_SUFFIX}" if indexed else "",
        dict(sorted(weight_map.items())),
    )


def single_name(name: str, same: bool) -> str:
    """Name of an output's only file, and of its shards.

    Args:
        name: of the source's first file.
        same: the output is the same kind of model; diffusers looks for its own name (``WEIGHTS_NAME``).
    """
    return _DIFFUSERS_NAME if same and name.startswith(_DIFFUSERS_NAME.removesuffix(SUFFIX)) else SINGLE_NAME


def _split(modules: Sequence[Module], limit: int) -> list[Sequence[Module]]:
    if not limit:
        return [modules]
    groups: list[list[Module]] = [[]]
    filled = 0
    for module in sorted(modules, key=lambda module: natural(module[0].name)):
        nbytes = sum(piece.nbytes for piece in module)
        if groups[-1] and filled + nbytes > limit:
            groups.append([])
            filled = 0
        groups[-1].append(module)
        filled += nbytes
    return [*groups]


def _ordered(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Order of tensors as in safetensors' writer: wide types first, by name."""
    names, sizes = list[str](), array("q")
    for piece in pieces:
        names.append(piece.name)
        sizes.append(piece.dtype.size)
    order = sorted(range(len(names)), key=names.__getitem__)
    order.sort(key=lambda at: -sizes[at])
    return tensors.reordered(pieces, order)


def _step(pieces: Sequence[Piece], offsets: Sequence[int], at: int) -> Step:
    return pieces[at].step(offsets[at])


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sorting key that puts layer 2 before layer 10."""
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in name.split("."))


# The reference parser of safetensors, asked whether it opens a file that ckconv has written.
#
# What it costs: it parses the header only, 1 ms for a usual one; 1.3 s and 275 MB for one of 32 MB (280,000 tensors).

#: Bytes of a header that it is asked about: it takes nine times as much memory.
_MAX_HEADER = 16 << 20


def check_opens(path: Path) -> None:
    """Open a file with the ``safetensors`` package, as loaders do.

    Where that is not installed, the system cannot map the file or its header lists very much, nothing is said.
    """
    try:
        from safetensors import SafetensorError, __version__, safe_open
    except ImportError:
        return
    try:
        with path.open("rb") as file:
            if int.from_bytes(file.read(LENGTH_BYTES), "little") > _MAX_HEADER:
                return
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        message = f"safetensors {__version__} does not open it: {error}"
        hint = "a newer release of the safetensors package may know what this one does not"
        raise VerifyError("verify.file", message, path=path, hint=hint) from error
    except (OSError, MemoryError):
        return


# What stands in and beside safetensors files but tensors: headers, index, configuration, tokenizer, carried files.


class Checkpoint(NamedTuple):
    """Bytes in and beside the files of a checkpoint that are no tensors.

    Attributes:
        config_json: the bytes of ``config.json``; empty for none.
        parameters: elements of all tensors.
        carried: files of the source that are copied, by the names that they keep.
        tokenizer: what is made of the tokenizer of a source that has no such files.
        card: the README.md of a source that has none beside it; empty where it says nothing for one.
        further: other documents beside it: how embeddings are pooled, how pictures are prepared.
    """

    shards: Shards
    config_json: bytes
    parameters: int
    carried: Mapping[str, Path]
    tokenizer: TokenizerPlan
    card: str = ""
    further: Mapping[str, bytes] = {}


def container(checkpoint: Checkpoint) -> Container:
    """Everything in a checkpoint but its tensors.

    Raises:
        InputError: a file of the source that is carried cannot be read.
        OutputError: ``input.changed``, the source is not what it was.
    """
    side = {name: _carried(path) for name, path in checkpoint.carried.items()}
    made, notes = files_from_gguf(checkpoint.tokenizer)
    side |= made
    if checkpoint.card:
        side[CARD_NAME] = checkpoint.card.encode()
    if checkpoint.config_json:
        side[CONFIG_NAME] = checkpoint.config_json
    side |= checkpoint.further
    shards = checkpoint.shards
    if shards.index_name:
        metadata = {"total_parameters": checkpoint.parameters, "total_size": shards.nbytes}
        side[shards.index_name] = _json({"metadata": metadata, "weight_map": shards.weight_map})
    return Container(
        shards.frames, side_files=dict(sorted(side.items())), keys=shards.keys, notes=notes, check=check_opens
    )


def _carried(path: Path) -> SideFile:
    with open_source(path) as source:  # which can be read later, too
        return side_file(lambda: (source.read_at(at, CHUNK) for at in range(0, source.size or 0, CHUNK)))


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


# -- Files of a tokenizer ----------------------------------------------------------------------------------------------

# The tokenizer of a GGUF that becomes a directory of Hugging Face or MLX: whether it is written, and as what.


class TokenizerPlan(NamedTuple):
    """Tokenizer files to write; the writer decodes the words.

    Attributes:
        vocabulary: ``None`` where the tokenizer is left out.
        context: tokens that the model takes, 0 where nobody knows.
        generation: ``generation_config.json``, empty for none.
        notes: why the tokenizer is left out, or what it does that llama.cpp does not.
    """

    vocabulary: Vocabulary | None = None
    context: int = 0
    generation: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()


def tokenizer_plan(index: tensors.TensorIndex, options: Options) -> TokenizerPlan:
    """Plan tokenizer files for a GGUF's tokenizer; decode no array."""
    metadata = index.metadata
    if index.format in CHECKPOINTS:
        reference = metadata.get(f"{METADATA}.{NAMES_KEY}") == REFERENCE  # Mistral's own, which no loader knows
        if not reference or (root_of(index) / TOKENIZER).is_file() or options.file_name:
            return TokenizerPlan()  # its own files are carried
        try:
            keys = gguf.keys_of_words(tokenizer_files(index), index.config.vocab_size if index.config else 0)
        except Inexact as reason:
            return TokenizerPlan(notes=(left_out(reason),))
        metadata = as_read(keys.metadata)
    elif index.format != "gguf":
        own = index.metadata_kind is tensors.MetadataKind.OWN
        why = (
            "a bump file has no whole one"
            if own
            else f"{index.format} has words, and neither merges nor special tokens"
        )
        return TokenizerPlan(notes=(left_out(why),))
    if options.file_name:
        return TokenizerPlan(notes=("DST is a single file, so tokenizer files were not written; use DST/ to get them",))
    config = index.config
    size, context = (config.vocab_size, options.context or config.context_length) if config else (0, 0)
    generation = huggingface.generation_config(special_ids(metadata), ending_ids(metadata), size)
    try:
        found = vocabulary(metadata)
        if config and found.tokens.count > size:
            raise NotFaithful(f"it has {found.tokens.count:,} tokens, the embedding {size:,} rows")
    except NotFaithful as reason:
        return TokenizerPlan(None, context, generation, (left_out(reason),))
    notes = []
    if found.pre and found.pre.nfc:
        notes.append(f"the tokenizer NFC-normalizes text first, as those of {found.pre.name} do; llama.cpp does not")
    if found.pre and found.pre.otherwise:
        notes.append(f"llama.cpp splits {found.pre.otherwise} differently from the tokenizer ({found.pre.name})")
    if found.lowers and found.lowers[1]:
        notes.append(huggingface.ACCENTS)
    return TokenizerPlan(found, context, generation, tuple(notes))


def linear_layer(tensor: tensors.Tensor, dtype: DType) -> Module:
    """Linear layer behind a model, as sentence-transformers has it."""
    return module_of(Entry(LINEAR, tensor.name, (tensor.name,)), [tensor], dtype)


def pooling_of_source(
    index: tensors.TensorIndex, options: Options, behind: Mapping[str, Module]
) -> tuple[Mapping[str, bytes], tuple[str, ...]]:
    """Files of sentence-transformers for a GGUF's pooling, and notes.

    Args:
        behind: directory -> linear layer behind the pooling, or the model.
    """
    if index.metadata_kind is not tensors.MetadataKind.TYPED or index.config is None:
        return {}, ()
    values = {key: getattr(value, "value", None) for key, value in index.metadata.items()}
    number = int(values.get(f"{index.architecture}.pooling_type") or 0)
    stored, how, layers = documents_of(values, number, [*behind]), pooled(number), layer_files(behind)
    if options.file_name and (stored or how):
        where = f"embeddings are pooled {how} (pooling_type)" if how else "there are documents of sentence-transformers"
        return {}, (f"{where}; DST is a single file without the files that say so",)
    if stored or not (how or layers):
        return {**stored, **layers}, ()
    context = options.context or index.config.context_length or 0
    files = pooling_files(number if how else 0, index.config.hidden_size, context, [*behind])
    text = f"embeddings are pooled {how}" if how else f"{', '.join(behind)} changes the embedding of each token"
    note = f"{text} (modules.json); a GGUF does not say whether they are normalized afterwards"
    return {**files, **layers}, (note,)


def left_out(reason: object) -> str:
    """The line of the report."""
    return f"no tokenizer files are written: {reason}; put those of the original checkpoint beside the model"


# The files of a tokenizer, made out of the arrays of a GGUF: decoded here and nowhere before.


def files_from_gguf(plan: TokenizerPlan) -> tuple[dict[str, SideFile], tuple[str, ...]]:
    """Name -> content, and notes where words are no tokenizer's.

    Raises:
        OutputError: ``input.changed``, the source is not what it was.
    """
    generation = plan.generation
    files: dict[str, SideFile] = {}
    notes: tuple[str, ...] = ()
    if plan.vocabulary is not None:
        tokens = plan.vocabulary.tokens.decode()
        types = plan.vocabulary.types.decode()[: len(tokens)]  # llama.cpp looks at no more
        generation = huggingface.also_ending(generation, tokens, types)
        try:
            files = _files(plan.vocabulary, tokens, types, plan.context)
            number = plan.vocabulary.special.get("unk", len(tokens))
            if number < len(tokens) and not tokenizer_json.has_role(number, tokens, types) and types[number] == NORMAL:
                word = f"{number} ({tokens[number]!r}), a word like others"
                notes = (f"tokenizer.ggml.unknown_token_id is {word}: no unk_token, which is looked for in a text",)
        except NotFaithful as reason:
            notes = (left_out(reason),)
    return {**({GENERATION: _json(generation)} if generation else {}), **files}, notes


def _files(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], context: int) -> dict[str, SideFile]:
    tokenizer_json.check_words(vocabulary, tokens, types)
    if vocabulary.pre is not None:
        settings = huggingface.tokenizer_config(vocabulary, tokens, types, (), context)
        document = tokenizer_json.byte_level(vocabulary, tokens, types, vocabulary.merges.each())
        return {TOKENIZER: document, SETTINGS: _json(settings)}
    scores = vocabulary.scores.decode()[: len(tokens)] if vocabulary.scores else ()
    made = (
        huggingface.unigram
        if vocabulary.unigram
        else huggingface.wordpiece
        if vocabulary.lowers
        else tokenizer_json.pieces
    )
    document = made(vocabulary, tokens, types, scores)
    unknown = tokenizer_json.unknown_token(vocabulary, tokens, types)
    vocabulary = vocabulary._replace(special={"unk": unknown, **vocabulary.special})
    if not scores:
        settings = huggingface.tokenizer_config(vocabulary, tokens, types, (), context)
        return {TOKENIZER: document, SETTINGS: _json(settings)}
    own = {name: number for name, number in vocabulary.special.items() if name in ("bos", "eos", "pad")}
    own["unk"] = unknown
    model = encode_sentencepiece(
        huggingface.model_pieces(tokens, types, scores, unknown),
        own,
        add_dummy_prefix=vocabulary.space_prefix,
        **(huggingface.rules_of(vocabulary.unigram) if vocabulary.unigram else {}),
    )
    settings = huggingface.tokenizer_config(vocabulary, tokens, types, scores, context)
    return {TOKENIZER: document, "tokenizer.model": model, SETTINGS: _json(settings)}
