"""The files of a checkpoint that tell of its tokenizer, read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckconv.errors import InputError
from ckconv.formats.safetensors import document_of
from ckconv.model.gguf_tokenizer import TokenizerFiles
from ckconv.model.index import TensorIndex
from ckconv.readers.strictjson import Document, read_object

#: Bytes of a tokenizer's file; real ones have a third of it.
_LIMIT = 64 << 20


def tokenizer_files(index: TensorIndex) -> TokenizerFiles:
    """What lies beside a checkpoint's tensors; nothing for another format.

    Raises:
        InputError: ``tokenizer.json``, one of the documents is malformed; ``tokenizer.model``, it is too large.
    """
    if index.format not in ("safetensors", "mlx"):
        return TokenizerFiles()
    root = index.path if index.path.is_dir() else index.path.parent
    settings = {**(_json(root / "special_tokens_map.json") or {}), **(_json(root / "tokenizer_config.json") or {})}
    config = document_of(index.metadata)
    nested = config.get("text_config")
    return TokenizerFiles(
        tokenizer=_json(root / "tokenizer.json"),
        model=_bytes(root / "tokenizer.model"),
        settings=settings,
        config={**config, **nested} if isinstance(nested, dict) else config,
        chat_template=_template(root, settings),
        added=_json(root / "added_tokens.json") or {},
    )


def _template(root: Path, settings: Mapping[str, Any]) -> object:
    """The settings' own, else the file that newer transformers write."""
    if settings.get("chat_template") is not None:
        return settings["chat_template"]
    data = _bytes(root / "chat_template.jinja")
    return data.decode("utf-8", "replace") if data is not None else None


def _json(path: Path) -> Mapping[str, Any] | None:
    document = Document("tokenizer", "tokenizer.json", "tokenizer.json", _LIMIT)
    return read_object(path, document) if path.is_file() else None


def _bytes(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        data = file.read(_LIMIT + 1)
    if len(data) > _LIMIT:
        raise InputError("tokenizer.model", f"the file has more than {_LIMIT:,} bytes", path=path, allowed=_LIMIT)
    return data
