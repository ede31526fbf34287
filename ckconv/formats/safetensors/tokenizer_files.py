"""The files of a tokenizer, made out of the arrays of a GGUF: decoded here and nowhere before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ckconv.formats.safetensors.checkpoint_tokenizer import TokenizerPlan, left_out
from ckconv.publish.files import SideFile
from ckconv.tokenizer import huggingface as tokenizer_json
from ckconv.tokenizer import sentencepiece
from ckconv.tokenizer.settings import also_ending, pieces, tokenizer_config
from ckconv.tokenizer.unigram import rules_of, unigram
from ckconv.tokenizer.vocabulary import NotFaithful, Vocabulary
from ckconv.tokenizer.wordpiece import wordpiece


def tokenizer_files(plan: TokenizerPlan) -> tuple[dict[str, SideFile], tuple[str, ...]]:
    """Name -> content, and what a user should know: that the words are not those of a tokenizer, and why.

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
    vocabulary = replace(vocabulary, special={"unk": unknown, **vocabulary.special})
    if not scores:
        settings = tokenizer_config(vocabulary, tokens, types, (), context)
        return {"tokenizer.json": document, "tokenizer_config.json": _json(settings)}
    own = {name: number for name, number in vocabulary.special.items() if name in ("bos", "eos", "pad")}
    own["unk"] = unknown
    model = sentencepiece.encode(
        pieces(tokens, types, scores, unknown),
        own,
        add_dummy_prefix=vocabulary.space_prefix,
        **(rules_of(vocabulary.unigram) if vocabulary.unigram else {}),
    )
    settings = tokenizer_config(vocabulary, tokens, types, scores, context)
    return {"tokenizer.json": document, "tokenizer.model": model, "tokenizer_config.json": _json(settings)}


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
