"""How embeddings are pooled: what sentence-transformers' files say, as GGUF's key.

Source: ``_try_set_pooling_type`` of llama.cpp's converter; ``enum llama_pooling_type`` of ``include/llama.h``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ckconv.core.tensors import MetadataKind, TensorIndex
from ckconv.core.typed import Value, scalar
from ckconv.families.schema import Family
from ckconv.io.json import Document, parse_object, read_document, read_object

#: Key of ``1_Pooling/config.json`` -> the number; the first that is true counts. Newer files have a word instead.
_SWITCHES = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
_WORDS = {"mean": 1, "cls": 2, "lasttoken": 3}
_DOCUMENT = Document("description", "model.config", "model.config", 1 << 20)


def pooling_keys(index: TensorIndex, family: Family, notes: list[str]) -> dict[str, Value]:
    """The key, where a checkpoint is one of sentence-transformers; notes are added for what has none.

    Raises:
        InputError: ``model.config``, a file is malformed.
    """
    root = index.path if index.path.is_dir() else index.path.parent
    if index.metadata_kind is not MetadataKind.DOCUMENT or not (root / "modules.json").is_file():
        return {}
    modules = [*_modules(root / "modules.json")]
    place = next((str(module.get("path")) for module in modules if _kind(module) == "Pooling"), "")
    other = [_kind(module) for module in modules if _kind(module) not in ("Transformer", "Pooling", "Normalize")]
    notes += [f"llama.cpp computes no {name} behind what it pools (modules.json)" for name in other]
    if not place or Path(place).name != place or not (root / place / "config.json").is_file():
        notes.append("modules.json names no pooling: llama.cpp gives an embedding for every token")
        return {}
    said = read_object(root / place / "config.json", _DOCUMENT)
    number = next((number for key, number in _SWITCHES.items() if said.get(key) is True), None)
    number = _WORDS.get(str(said.get("pooling_mode"))) if number is None else number
    if number is None:
        notes.append(f"{place}/config.json pools as llama.cpp does not, which gives an embedding for every token")
        return {}
    return {f"{family.gguf}.pooling_type": scalar("u32", number)}


def _modules(path: Path) -> Iterator[Mapping[str, Any]]:
    """The list that the file is, which no other document of a checkpoint is."""
    found = parse_object(b'{"modules": %s}' % read_document(path, _DOCUMENT), _DOCUMENT, path)["modules"]
    yield from (module for module in (found if isinstance(found, list) else ()) if isinstance(module, dict))


def _kind(module: Mapping[str, Any]) -> str:
    return str(module.get("type")).rpartition(".")[2]
