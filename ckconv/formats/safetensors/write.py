"""Shards, headers, index, side files and tokenizer of a checkpoint."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ckconv.core.late import NamedTuple
from ckconv.core.metadata import METADATA, as_read, root_of
from ckconv.core.tensors import MetadataKind, TensorIndex, chained, made, reordered
from ckconv.errors import VerifyError
from ckconv.families.names import NAMES_KEY, REFERENCE
from ckconv.formats.safetensors.config_json import CHECKPOINTS
from ckconv.formats.safetensors.container import (
    INDEX_SUFFIX,
    LENGTH_BYTES,
    SINGLE_NAME,
    SUFFIX,
    encode_header,
    shard_name,
)
from ckconv.formats.safetensors.files import documents_of, pooled, pooling_files
from ckconv.io.files import CARD_NAME, CHUNK, open_source
from ckconv.options import Options
from ckconv.plan.steps import Container, Frame, Module, OutputFile, Piece, Step, place
from ckconv.publish.files import SideFile, side_file
from ckconv.tokenizer import gguf, huggingface as tokenizer_json
from ckconv.tokenizer.checkpoint import NORMAL, encode_sentencepiece, tokenizer_files
from ckconv.tokenizer.huggingface import (
    ACCENTS,
    also_ending,
    generation_config,
    model_pieces,
    rules_of,
    tokenizer_config,
    unigram,
    wordpiece,
)
from ckconv.tokenizer.vocabulary import LeftOut, NotFaithful, Vocabulary, ending_ids, special_ids, vocabulary

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
        """Bytes of all tensors."""
        return sum(file.nbytes - len(header) for file, header in zip(self.files, self.headers, strict=True))


def lay_out(
    modules: Sequence[Module], file_name: str, limit: int, metadata: Mapping[str, str], *, always_index: bool
) -> Shards:
    """Deal modules out to files by name, and put each file together.

    Args:
        file_name: of a single file; shards are called after it.
        limit: bytes of tensors in a file, unless one module has more; 0 for one file.
        always_index: a single file has an index too.
    """
    groups = _split(modules, limit)
    stem = file_name.removesuffix(SUFFIX)
    names = [file_name] if len(groups) == 1 else [shard_name(stem, n + 1, len(groups)) for n in range(len(groups))]
    indexed = always_index or len(groups) > 1
    files, headers = [], []
    weight_map: dict[str, str] = {}
    for name, group in zip(names, groups, strict=True):
        ordered = _ordered(chained(group))
        header = encode_header(((p.name, p.dtype.safetensors or "", p.shape, p.nbytes) for p in ordered), metadata)
        places, at = array("Q"), len(header)
        for piece in ordered:
            places.append(place(at))
            at += piece.nbytes
            if indexed:
                weight_map[piece.name] = name
        files.append(OutputFile(name, at, made(len(ordered), partial(_step, ordered, places))))
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
    """Order of tensors: wide types first, then by name.

    So every tensor is aligned to its own type, as safetensors' writer has it.
    """
    names, sizes = list[str](), array("q")
    for piece in pieces:
        names.append(piece.name)
        sizes.append(piece.dtype.size)
    order = sorted(range(len(names)), key=names.__getitem__)
    order.sort(key=lambda at: -sizes[at])
    return reordered(pieces, order)


def _step(pieces: Sequence[Piece], places: Sequence[int], at: int) -> Step:
    return pieces[at].step(places[at])


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
        side["config.json"] = checkpoint.config_json
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


def tokenizer_plan(index: TensorIndex, options: Options) -> TokenizerPlan:
    """Plan tokenizer files for a GGUF's tokenizer; decode no array."""
    metadata = index.metadata
    if index.format in CHECKPOINTS:
        reference = metadata.get(f"{METADATA}.{NAMES_KEY}") == REFERENCE  # Mistral's own, which no loader knows
        if not reference or (root_of(index) / "tokenizer.json").is_file() or options.file_name:
            return TokenizerPlan()  # its own files are carried
        try:
            keys = gguf.keys_of_words(tokenizer_files(index), index.config.vocab_size if index.config else 0)
        except LeftOut as reason:
            return TokenizerPlan(notes=(left_out(reason),))
        metadata = as_read(keys.metadata)
    elif index.format != "gguf":
        own = index.metadata_kind is MetadataKind.OWN
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
    generation = generation_config(special_ids(metadata), ending_ids(metadata), size)
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
        notes.append(ACCENTS)
    return TokenizerPlan(found, context, generation, tuple(notes))


def pooling_of_source(index: TensorIndex, options: Options) -> tuple[Mapping[str, bytes], tuple[str, ...]]:
    """Files of sentence-transformers for a GGUF's pooling, and notes."""
    if index.metadata_kind is not MetadataKind.TYPED or index.config is None:
        return {}, ()
    values = {key: getattr(value, "value", None) for key, value in index.metadata.items()}
    number = int(values.get(f"{index.architecture}.pooling_type") or 0)
    kept, how = documents_of(values, number), pooled(number)
    if options.file_name and (kept or how):
        where = f"embeddings are pooled {how} (pooling_type)" if how else "there are documents of sentence-transformers"
        return {}, (f"{where}; DST is a single file without the files that say so",)
    if kept or not how:
        return kept, ()
    files = pooling_files(number, index.config.hidden_size, options.context or index.config.context_length or 0)
    note = f"embeddings are pooled {how} (modules.json); a GGUF does not say whether they are normalized afterwards"
    return files, (note,)


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
        generation = also_ending(generation, tokens, types)
        try:
            files = _files(plan.vocabulary, tokens, types, plan.context)
            number = plan.vocabulary.special.get("unk", len(tokens))
            if number < len(tokens) and not tokenizer_json.has_role(number, tokens, types) and types[number] == NORMAL:
                word = f"{number} ({tokens[number]!r}), a word like others"
                notes = (f"tokenizer.ggml.unknown_token_id is {word}: no unk_token, which is looked for in a text",)
        except NotFaithful as reason:
            notes = (left_out(reason),)
    return {**({"generation_config.json": _json(generation)} if generation else {}), **files}, notes


def _files(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], context: int) -> dict[str, SideFile]:
    tokenizer_json.check_words(vocabulary, tokens, types)
    if vocabulary.pre is not None:
        settings = tokenizer_config(vocabulary, tokens, types, (), context)
        document = tokenizer_json.byte_level(vocabulary, tokens, types, vocabulary.merges.each())
        return {"tokenizer.json": document, "tokenizer_config.json": _json(settings)}
    scores = vocabulary.scores.decode()[: len(tokens)] if vocabulary.scores else ()
    made = unigram if vocabulary.unigram else wordpiece if vocabulary.lowers else tokenizer_json.pieces
    document = made(vocabulary, tokens, types, scores)
    unknown = tokenizer_json.unknown_token(vocabulary, tokens, types)
    vocabulary = vocabulary._replace(special={"unk": unknown, **vocabulary.special})
    if not scores:
        settings = tokenizer_config(vocabulary, tokens, types, (), context)
        return {"tokenizer.json": document, "tokenizer_config.json": _json(settings)}
    own = {name: number for name, number in vocabulary.special.items() if name in ("bos", "eos", "pad")}
    own["unk"] = unknown
    model = encode_sentencepiece(
        model_pieces(tokens, types, scores, unknown),
        own,
        add_dummy_prefix=vocabulary.space_prefix,
        **(rules_of(vocabulary.unigram) if vocabulary.unigram else {}),
    )
    settings = tokenizer_config(vocabulary, tokens, types, scores, context)
    return {"tokenizer.json": document, "tokenizer.model": model, "tokenizer_config.json": _json(settings)}
