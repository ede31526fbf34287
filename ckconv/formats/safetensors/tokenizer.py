"""Tokenizer files for a GGUF's tokenizer, or why there are none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckconv.core.metadata import METADATA, as_read, root_of
from ckconv.core.tensors import MetadataKind, TensorIndex
from ckconv.families.names import NAMES_KEY, REFERENCE
from ckconv.formats.safetensors.config_json import CHECKPOINTS
from ckconv.formats.safetensors.files import documents_of, pooled, pooling_files
from ckconv.options import Options
from ckconv.publish.files import SideFile
from ckconv.tokenizer import huggingface as tokenizer_json
from ckconv.tokenizer import sentencepiece
from ckconv.tokenizer.checkpoint import tokenizer_files
from ckconv.tokenizer.gguf import keys_of_words
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

# The tokenizer of a GGUF that becomes a directory of Hugging Face or MLX: whether it is written, and as what.


@dataclass(frozen=True, slots=True)
class TokenizerPlan:
    """Tokenizer files to write; the writer decodes the words.

    Attributes:
        vocabulary: ``None`` where the tokenizer is left out.
        context: tokens that the model takes, 0 where nobody knows.
        generation: ``generation_config.json``, empty for none.
        notes: why the tokenizer is left out, or what it does that llama.cpp does not.
    """

    vocabulary: Vocabulary | None = None
    context: int = 0
    generation: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def tokenizer_plan(index: TensorIndex, options: Options) -> TokenizerPlan:
    """Plan tokenizer files for a GGUF's tokenizer; decode no array."""
    metadata = index.metadata
    if index.format in CHECKPOINTS:
        if not _is_reference(index) or (root_of(index) / "tokenizer.json").is_file() or options.file_name:
            return TokenizerPlan()  # its own files are carried
        try:
            keys = keys_of_words(tokenizer_files(index), index.config.vocab_size if index.config else 0)
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
        if found.tokens.count > size:
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


def _is_reference(index: TensorIndex) -> bool:
    """Say whether the tokenizer is Mistral's own, which no loader knows."""
    return index.metadata.get(f"{METADATA}.{NAMES_KEY}") == REFERENCE


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
        tokens, types = plan.vocabulary.tokens.decode(), plan.vocabulary.types.decode()
        generation = also_ending(generation, tokens, types)
        try:
            files = _files(plan.vocabulary, tokens, types, plan.context)
        except NotFaithful as reason:
            notes = (left_out(reason),)
    return {**({"generation_config.json": _json(generation)} if generation else {}), **files}, notes


def _files(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], context: int) -> dict[str, SideFile]:
    tokenizer_json.check_words(vocabulary, tokens, types)
    if vocabulary.pre is not None:
        settings = tokenizer_config(vocabulary, tokens, types, (), context)
        document = tokenizer_json.byte_level(vocabulary, tokens, types, vocabulary.merges.each)
        return {"tokenizer.json": document, "tokenizer_config.json": _json(settings)}
    scores = vocabulary.scores.decode() if vocabulary.scores else ()
    made = unigram if vocabulary.unigram else wordpiece if vocabulary.lowers else tokenizer_json.pieces
    document = made(vocabulary, tokens, types, scores)
    unknown = tokenizer_json.unknown_token(vocabulary, tokens, types)
    vocabulary = vocabulary._replace(special={"unk": unknown, **vocabulary.special})
    if not scores:
        settings = tokenizer_config(vocabulary, tokens, types, (), context)
        return {"tokenizer.json": document, "tokenizer_config.json": _json(settings)}
    own = {name: number for name, number in vocabulary.special.items() if name in ("bos", "eos", "pad")}
    own["unk"] = unknown
    model = sentencepiece.encode(
        model_pieces(tokens, types, scores, unknown),
        own,
        add_dummy_prefix=vocabulary.space_prefix,
        **(rules_of(vocabulary.unigram) if vocabulary.unigram else {}),
    )
    settings = tokenizer_config(vocabulary, tokens, types, scores, context)
    return {"tokenizer.json": document, "tokenizer.model": model, "tokenizer_config.json": _json(settings)}


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
