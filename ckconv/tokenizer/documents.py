"""The files of a checkpoint that tell of its tokenizer, read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ckconv.core.metadata import document_of, root_of, text_key
from ckconv.core.tensors import MetadataKind, TensorIndex
from ckconv.errors import InputError
from ckconv.io.bytesource import open_source
from ckconv.io.json import Document, read_object
from ckconv.tokenizer.added import added_tokens, words_of_document
from ckconv.tokenizer.apart import of_tekken, of_vocabulary
from ckconv.tokenizer.files import LeftOut, TokenizerFiles

#: Bytes of a tokenizer's file; real ones have a third of it.
_LIMIT = 64 << 20

_TEMPLATE, _MORE_TEMPLATES = "chat_template.jinja", "additional_chat_templates"
#: Named templates that are read; checkpoints have two or three.
_MAX_TEMPLATES = 32
#: Models of SentencePiece, the first that is there: Llama's and newer ones, T5's, XLM-R's.
_MODELS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
#: What Mistral calls them, with the version of its chats.
_VERSIONED = re.compile(r".+\.model\.v\d+(?:m\d+)?")
#: Tokenizers of other libraries.
_OTHERS = ("vocab.txt", "vocab.json", "tokenizer.tiktoken")
_TEKKEN, _VOCABULARY, _MERGES = "tekken.json", "vocab.json", "merges.txt"


def tokenizer_files(index: TensorIndex) -> TokenizerFiles:
    """What lies beside a checkpoint's tensors; nothing for another format.

    Raises:
        InputError: ``tokenizer.json``, one of the documents is malformed; ``tokenizer.model``, it is too large.
    """
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        return TokenizerFiles()
    root = root_of(index)
    config = document_of(index.metadata)
    nested = config.get(text_key(config))
    named = next((name for name in _MODELS if (root / name).is_file()), "")
    own = None
    tokenizer, model, why = _json(root / "tokenizer.json"), _bytes(root / named) if named else None, ""
    settings = _settings(root, alone=tokenizer is None and model is not None)
    if tokenizer is None and model is None:
        try:
            tokenizer = _apart(root, settings, config)
            if tokenizer is not None:
                settings = {**tokenizer.get("settings", {}), **settings}
        except LeftOut as error:
            why = str(error)
        if tokenizer is None and not why and (own := _versioned(root)) is not None:
            model = _bytes(own)
    return TokenizerFiles(
        tokenizer=tokenizer,
        model=model,
        moved=named == _MODELS[-1],
        versioned=own is not None,
        settings=settings,
        config={**config, **nested} if isinstance(nested, dict) else config,
        generation=_json(root / "generation_config.json") or {},
        chat_template=chat_template(root, settings),
        added=_json(root / "added_tokens.json") or {},
        why=why,
        others=tuple(name for name in _OTHERS if (root / name).is_file()),
    )


def _settings(root: Path, *, alone: bool) -> Mapping[str, Any]:
    """``tokenizer_config.json``, and ``special_tokens_map.json`` over it (``_from_pretrained`` of transformers).

    Args:
        alone: there is a SentencePiece model and no ``tokenizer.json``: transformers 5 takes no list of the map's.
    """
    settings = _json(root / "tokenizer_config.json") or {}
    if "added_tokens_decoder" in settings:
        return settings
    named = _json(root / "special_tokens_map.json") or {}
    return {**settings, **{key: value for key, value in named.items() if not (alone and isinstance(value, list))}}


def _versioned(root: Path) -> Path | None:
    """Mistral's SentencePiece model with the version of its chats behind its name; of several the last."""
    return max((path for path in root.glob("*.model.v*") if _VERSIONED.fullmatch(path.name)), default=None)


def vocabulary_beside(index: TensorIndex) -> Mapping[str, Any]:
    """Word -> id, of ``vocab.json`` or of the model of ``tokenizer.json``; empty where there is neither.

    Raises:
        InputError: ``tokenizer.json``, the document is malformed.
    """
    root = root_of(index)
    if (words := _json(root / _VOCABULARY)) is not None:
        return words
    model = (_json(root / "tokenizer.json") or {}).get("model")
    words = model.get("vocab") if isinstance(model, dict) else None
    return words if isinstance(words, dict) else {}


def token_ids_beside(index: TensorIndex, texts: Iterable[str]) -> dict[str, int]:
    """Text of a token -> its number, of those that the files beside a checkpoint add to its words.

    Raises:
        InputError: ``tokenizer.json``, a document is malformed.
    """
    files, wanted = tokenizer_files(index), {*texts}
    words = words_of_document(files.tokenizer)
    with suppress(LeftOut):
        added = added_tokens(files, words).values()
        # Of other files than tokenizer.json, the words are not known here.
        ids = {it.content: it.number if words else it.listed for it in added if it.content in wanted}
        return {text: number for text, number in ids.items() if number is not None}
    return {}


def _apart(root: Path, settings: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """``tokenizer.json`` of what other files say."""
    if (document := _json(root / _TEKKEN)) is not None:
        return of_tekken(document)
    if not (root / _MERGES).is_file() or (vocab := _json(root / _VOCABULARY)) is None:
        return None
    merges = (_bytes(root / _MERGES) or b"").decode("utf-8", "replace")
    return of_vocabulary(vocab, merges, settings, config)


def chat_template(root: Path, settings: Mapping[str, Any]) -> object:
    """A text, or a list of named ones: what the files say, else the settings, as in transformers."""
    texts = {}
    if (root / _TEMPLATE).is_file():
        texts["default"] = _text(root / _TEMPLATE)
    texts |= {path.stem: _text(path) for path in sorted((root / _MORE_TEMPLATES).glob("*.jinja"))[:_MAX_TEMPLATES]}
    said = settings.get("chat_template")
    if texts:
        said = texts["default"] if texts.keys() == {"default"} else texts
    if said is None:
        said = (_json(root / "chat_template.json") or {}).get("chat_template")
    return [{"name": name, "template": text} for name, text in said.items()] if isinstance(said, dict) else said


def _text(path: Path) -> str:
    return (_bytes(path) or b"").decode("utf-8", "replace")


def _json(path: Path) -> Mapping[str, Any] | None:
    what = "tokenizer" if path.name == "tokenizer.json" else "document"
    document = Document(what, "tokenizer.json", "tokenizer.json", _LIMIT)
    return read_object(path, document) if path.is_file() else None


def _bytes(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    with open_source(path) as source:
        data = source.read_at(0, _LIMIT + 1)
    if len(data) > _LIMIT:
        raise InputError("tokenizer.model", f"the file has more than {_LIMIT:,} bytes", path=path, allowed=_LIMIT)
    return data
