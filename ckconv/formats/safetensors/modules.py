"""What sentence-transformers keeps beside a checkpoint: ``modules.json``, and a directory for each further module.

Source: ``SentenceTransformer._load_sbert_model`` and ``Pooling`` of sentence-transformers; ``_try_set_pooling_type`` of
llama.cpp's converter, ``enum llama_pooling_type`` of its ``include/llama.h``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.errors import InputError
from ckconv.io.json import Document, parse_object, read_document, read_object

MODULES = "modules.json"
#: Modules that other programs than sentence-transformers compute, too, or that change no direction.
PLAIN = ("Transformer", "Pooling", "Normalize")
_POOLING, _PLACE = "Pooling", "1_Pooling"
_PACKAGE = "sentence_transformers.models."

#: How embeddings are pooled: the word of new files, the key of old ones, the number in a GGUF, and in words.
_KINDS = (
    ("mean", "pooling_mode_mean_tokens", 1, "by their mean"),
    ("cls", "pooling_mode_cls_token", 2, "by the first token"),
    ("lasttoken", "pooling_mode_lasttoken", 3, "by the last token"),
)
#: Keys of a GGUF that no engine reads -> the documents that are kept there, for the way back.
_KEPT = {
    "sentence_transformers.modules": MODULES,
    "sentence_transformers.pooling": f"{_PLACE}/config.json",
    "sentence_transformers.transformer": "sentence_bert_config.json",
    "sentence_transformers.config": "config_sentence_transformers.json",
}
#: Bytes of one; prompts are a few lines.
_MAX_KEPT = 1 << 16
#: Keys of old files that ckconv never writes as true.
_OTHERS = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
_DOCUMENT = Document("description", "model.config", "model.config", 1 << 20)


class Module(NamedTuple):
    """One of the list: its class without the package, and its directory."""

    kind: str
    path: str


def modules_of(root: Path) -> list[Module]:
    """What ``modules.json`` lists; nothing where there is none.

    Raises:
        InputError: ``model.config``, it is malformed.
    """
    path = root / MODULES
    if not path.is_file():
        return []
    return _listed(read_document(path, _DOCUMENT), path)


def _listed(data: bytes, path: Path) -> list[Module]:
    found = parse_object(b'{"modules": %s}' % data, _DOCUMENT, path)["modules"]
    listed = [module for module in (found if isinstance(found, list) else ()) if isinstance(module, dict)]
    return [Module(str(one.get("type")).rpartition(".")[2], str(one.get("path") or "")) for one in listed]


def folders_of(root: Path) -> Iterator[str]:
    """The directories of modules that lie beside the model.

    Raises:
        InputError: ``model.config``, ``modules.json`` is malformed.
    """
    for module in modules_of(root):
        is_plain = Path(module.path).name == module.path and not module.path.startswith(".")
        if module.path and is_plain and (root / module.path).is_dir():
            yield module.path


def pooling_of(files: Mapping[str, Path], modules: list[Module]) -> tuple[int, str]:
    """GGUF's number, 0 where there is none, and the file that says so.

    Args:
        files: those that belong to the checkpoint, by their names in it. No other is read: a name in ``modules.json``
            may lead out of the directory, and so may a link.

    Raises:
        InputError: ``model.config``, the file is malformed.
    """
    name = next((f"{module.path}/config.json" for module in modules if module.kind == _POOLING), "")
    return (_number(read_object(files[name], _DOCUMENT)), name) if name in files else (0, "")


def _number(said: Mapping[str, Any]) -> int:
    number = next((number for _, key, number, _ in _KINDS if said.get(key) is True), 0)
    return number or {word: number for word, _, number, _ in _KINDS}.get(str(said.get("pooling_mode")), 0)


def kept_documents(files: Mapping[str, Path]) -> dict[str, str]:
    """Key of a GGUF -> the document that lies beside a checkpoint, word for word.

    Args:
        files: those that belong to the checkpoint, by their names in it.

    Raises:
        InputError: ``model.config``, one is malformed.
    """
    data = {key: read_document(files[name], _DOCUMENT) for key, name in _KEPT.items() if name in files}
    for key, text in data.items():
        if _KEPT[key] != MODULES:
            parse_object(text, _DOCUMENT, files[_KEPT[key]])
    return {key: text.decode() for key, text in data.items() if len(text) <= _MAX_KEPT}


def documents_of(kept: Mapping[str, object], number: int) -> dict[str, bytes]:
    """The files out of the keys of a GGUF; nothing where they pool otherwise than the file does, or say nothing.

    Args:
        kept: metadata of a GGUF.
        number: how it pools.
    """
    files = {name: text.encode() for key, name in _KEPT.items() if isinstance(text := kept.get(key), str)}
    pooling = files.get(_KEPT["sentence_transformers.pooling"])
    try:
        modules = _listed(files.get(MODULES, b"[]"), Path(MODULES))
        said = parse_object(pooling, _DOCUMENT, Path(_POOLING)) if pooling else {}
        for name in files.keys() - {MODULES, f"{_PLACE}/config.json"}:
            parse_object(files[name], _DOCUMENT, Path(name))
    except InputError:
        return {}
    plain = all(module.kind in PLAIN for module in modules)
    there = {module.path for module in modules if module.kind == _POOLING} == ({_PLACE} if pooling else set())
    return files if modules and plain and there and _number(said) == number else {}


def pooled(number: object) -> str:
    """How, in words; empty for another number."""
    return next((words for _, _, own, words in _KINDS if own == number), "")


def pooling_files(number: int, width: int, context: int) -> Mapping[str, bytes]:
    """The files of sentence-transformers that pool so, old ones and new ones read them.

    Args:
        width: of an embedding.
        context: tokens that the model takes, 0 where nobody knows.
    """
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": _PACKAGE + kind}
        for n, (path, kind) in enumerate([("", PLAIN[0]), (_PLACE, _POOLING)])
    ]
    switches = {key: own == number for _, key, own, _ in _KINDS} | dict.fromkeys(_OTHERS, False)
    pooling = {"word_embedding_dimension": width, **switches, "include_prompt": True}
    said = {MODULES: modules, f"{_PLACE}/config.json": pooling}
    said |= {"sentence_bert_config.json": {"max_seq_length": context, "do_lower_case": False}} if context else {}
    return {name: (json.dumps(document, indent=2) + "\n").encode() for name, document in said.items()}
