"""Tokenizers of two models compared, and the documents that one became.

Words, merges, scores and roles of tokens are read here, out of the metadata of a GGUF or the documents of a checkpoint.
What documents say besides of a GGUF's tokenizer has to be what ``needed.toml`` and its keys say.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ckconv.core.config import shortest_float32
from ckconv.core.lazy import NamedTuple, cached_property
from ckconv.core.metadata import beside, document_of, list_within, table_within, text_on_top, within
from ckconv.core.tensors import MetadataKind, TensorIndex, stored_value
from ckconv.families.catalog import FAMILIES
from ckconv.families.keys import full_key
from ckconv.io.files import open_source
from ckconv.verification.content import Fact, needed, of_files, read_whole, shown

#: Roles of tokens -> what a GGUF calls them.
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
ALL_ROLES = {**_ROLES, "sep": "seperator", "cls": "cls", "mask": "mask"}

#: Words that stand for a number without one.
_FILLS = r"(\[?<?\|?(PAD|pad|unused|UNUSED|extra_id_|dummy)_?\d+\|?>?\]?)?"

TOKENS = "tokenizer.ggml.tokens"
_FILE, _SETTINGS, _GENERATION, _MODEL = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "tokenizer.model",
)
DOCUMENT = f"{_FILE}: "

_TEMPLATE = "tokenizer.chat_template"
#: Files of the default one and of others by name (``PreTrainedTokenizerBase._from_pretrained``).
_JINJA, _MORE = "chat_template.jinja", "additional_chat_templates/"
#: Names that stand in a key (``GGUFWriter.add_chat_template`` takes other letters for ``_``).
_NAMED = re.compile("[a-z0-9_]{1,64}")

#: Types of tokens (``enum llama_token_type``), and those that are looked for in a text before anything else.
_NORMAL, UNKNOWN_TYPE, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_ADDED = (UNKNOWN_TYPE, _CONTROL, _USER_DEFINED)

#: What a ``tokenizer.json`` consists of (``Tokenizer`` of the tokenizers library, version 1.0).
_PARTS = {
    *("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor"),
    *("decoder", "model"),
}
_WORDS = ("vocab", "merges", "unk_token", "unk_id")

#: Byte-level BPE in the spelling whose digests ``needed.toml`` has.
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_BYTE_PAIRS = {
    **dict.fromkeys(("dropout", "continuing_subword_prefix", "end_of_word_suffix")),
    "type": "BPE",
    "fuse_unk": False,
    "byte_fallback": False,
}

_NORMALIZERS = (None, {"type": "NFC"})

#: Models of SentencePiece, the first that is there, and by how much numbers of its words are higher: XLM-R has four
#: tokens of its own in the place of three (``XLMRobertaTokenizer`` of transformers).
_MODELS = {"tokenizer.model": 0, "spiece.model": 0, "sentencepiece.bpe.model": 1}

#: Bytes of a file that are looked at together.
_PIECE = 1 << 20

#: Where the list of merges of a ``tokenizer.json`` begins, and whole items of it.
_MERGES = rb'(?<!\\)"merges"\s*:\s*\['
_ITEMS = rb'(?:[^"\[\]]++|"(?:[^"\\]++|\\.)*+"|\[(?:[^"\[\]]++|"(?:[^"\\]++|\\.)*+")*+\])*+'


class Tokens(NamedTuple):
    """The tokenizer of a model; ``None`` and empty where nothing is stated.

    Attributes:
        tokens: number -> text.
        merges: pairs, with a space between.
        scores: number -> score of a piece.
        special: numbers of added tokens that are special.
        users: numbers of added tokens that are not.
        roles: ``bos``, ``eos``, ... -> number.
        behind: text of the token that a template puts behind a text.
        is_wordpiece: as BERT has words, whose beginnings a GGUF marks, and a document the others.
    """

    tokens: Mapping[int, str]
    merges: list[str] | None = None
    scores: Mapping[int, float] = {}
    types: Mapping[int, int] = {}
    special: frozenset[int] = frozenset()
    roles: Mapping[str, int] = {}
    behind: str = ""
    users: frozenset[int] = frozenset()
    is_wordpiece: bool = False


def tokenizer_faults(out: TensorIndex, source: TensorIndex, context: int = 0) -> Iterator[Fact]:
    """Everything in which the tokenizer of an output is not its source's.

    Args:
        context: length in tokens that was asked for, 0 where none was.
    """
    files, made = beside(out), out.metadata_kind is MetadataKind.DOCUMENT
    document = _json(beside(source), _FILE)
    wanted = _words_of(source, document or _of_two_files(beside(source)))
    if isinstance(model := document.get("model"), dict):
        document["model"] = {key: part for key, part in model.items() if key not in _WORDS}
    merges = wanted is None or wanted.merges is not None
    documents = {_FILE: _json(files, _FILE, read_whole if merges else _without_merges)}
    made = made and source.metadata_kind is MetadataKind.TYPED
    if made:
        documents |= {name: _json(files, name) for name in (_SETTINGS, _GENERATION)}
        if (none := next((name for name, found in documents.items() if name in files and not found), None)) is not None:
            yield Fact(none, "no JSON object", "one")
            return
    ours = _words_of(out, documents[_FILE], merges=merges)
    if ours is None and wanted is not None and made and (documents[_FILE] or {_SETTINGS, _MODEL} & files.keys()):
        yield Fact("vocab", "no list of words", "one", _FILE)
    typed = out.metadata_kind is MetadataKind.TYPED
    if typed and ours is not None and source.metadata_kind is MetadataKind.DOCUMENT:
        wanted = _with_pieces(wanted, source, len(ours.tokens))
        yield from _of_checkpoint(out, ours, source, document)
    if ours is None or wanted is None:
        return
    yield from _of_words(ours, wanted, typed=typed, model=stored_value(out, "tokenizer.ggml.model") if typed else None)
    if made:
        keys = _Keys(source, wanted)
        yield from _of_documents(files, documents, keys)
        lengths = [context] if context else [index.config.context_length for index in (out, source) if index.config]
        length = documents[_SETTINGS].get("model_max_length")
        if any(lengths) and documents[_SETTINGS] and length not in lengths:
            yield Fact("model_max_length", shown(length), shown(max(filter(None, lengths))), _SETTINGS)
        pieces = bool(wanted.scores) and not wanted.is_wordpiece and bool(keys.flags)
        for name in (_FILE, _SETTINGS, *([_MODEL] if pieces else ())):
            if name not in files and {_FILE, _SETTINGS, _MODEL} & files.keys():
                yield Fact(name, None, "one")


# -- Words ------------------------------------------------------------------------------------------------------------


def _words_of(index: TensorIndex, document: Mapping[str, Any], *, merges: bool = True) -> Tokens | None:
    """The tokenizer of a model, ``None`` where that is not read here.

    Args:
        document: ``tokenizer.json``.
        merges: those of ``tokenizer.json`` are looked at: there may be hundreds of times as many as there are words.
    """
    if index.metadata_kind is MetadataKind.TYPED:
        return _words_of_keys(index) if TOKENS in index.metadata else None
    return _words_of_document(index, document, merges=merges) if index.metadata_kind is MetadataKind.DOCUMENT else None


def tokens_of(index: TensorIndex) -> Mapping[int, str]:
    """Texts of a model's tokens, as far as they are read here."""
    words = _words_of(index, _json(beside(index), _FILE, _without_merges), merges=False)
    return words.tokens if words is not None else {}


def roles_of_keys(index: TensorIndex) -> dict[str, int]:
    """Numbers of tokens with a role that keys of a GGUF say."""
    found = {role: stored_value(index, f"tokenizer.ggml.{name}_token_id") for role, name in _ROLES.items()}
    return {role: number for role, number in found.items() if isinstance(number, int)}


def templates_of(files: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates of a checkpoint by name, as transformers takes them."""
    found: dict[str, Any] = {"default": _JINJA} if _JINJA in files else {}
    found |= {Path(name).stem: name for name in files if name.startswith(_MORE) and name.endswith(".jinja")}
    if found:  # which count before settings
        found = {
            name: re.sub(r"\r\n?", "\n", read_whole(files[at]).decode("utf-8", "replace")) for name, at in found.items()
        }
    else:
        templates = _json(files, _SETTINGS).get("chat_template")
        templates = _json(files, "chat_template.json").get("chat_template") if templates is None else templates
        if isinstance(templates, list):
            named = (item for item in templates if isinstance(item, dict) and isinstance(item.get("name"), str))
            templates = {item["name"]: item.get("template") for item in named}
        found = templates if isinstance(templates, dict) else {"default": templates}
    texts = {name: text for name, text in found.items() if isinstance(text, str) and _NAMED.fullmatch(name)}
    return {name: text.encode("utf-8", "replace").decode() for name, text in texts.items()}


def _of_checkpoint(out: TensorIndex, ours: Tokens, source: TensorIndex, document: Mapping[str, Any]) -> Iterator[Fact]:
    """Faults of keys other than words that were made of documents."""
    files = beside(source)
    templates = templates_of(files)
    wanted: dict[str, Any] = dict.fromkeys({_TEMPLATE} & out.metadata.keys()) | {
        f"{_TEMPLATE}.{name}".removesuffix(".default"): text for name, text in templates.items()
    }
    if more := sorted(templates.keys() - {"default"}):
        wanted[f"{_TEMPLATE}s"] = more
    for key, meant in wanted.items():  # a family adds some of its own
        found = stored_value(out, key)
        if found != meant and not (isinstance(found, list) and isinstance(meant, list) and {*meant} <= {*found}):
            yield Fact(key, shown(found), shown(meant))
    keys, around = _Keys(out, ours), dict(zip(("bos", "eos"), (document and _around(document)) or (), strict=False))
    for (role, text), puts in zip(around.items(), (keys.begins, keys.ends), strict=False):
        named = text in ("", ours.tokens.get(ours.roles.get(role, -1)))
        if named and puts != bool(text) and not keys.kind.get("closed"):
            key = f"tokenizer.ggml.add_{role}_token"
            yield Fact(key, shown(stored_value(out, key)), shown(bool(text)))
        number = keys.roles.get(known_role := "bos" if role == "bos" else keys.end, -1)
        if text and keys.kind.get("closed") and ours.tokens.get(number) != text:
            yield Fact(f"tokenizer.ggml.{ALL_ROLES[known_role]}_token_id", shown(number), shown(text))
    roles, family = _roles(source, files, ours.tokens, ALL_ROLES), FAMILIES[out.config.family] if out.config else None
    rows = family.parameters.values() if family else ()  # a drafter's mask is a parameter
    by_rows = {full_key(out.architecture, cell.key) for row in rows for cell in row.key_cells(out.format)}
    for role in ALL_ROLES.keys() - _ROLES.keys() if not keys.kind.get("closed") else ():
        key = f"tokenizer.ggml.{ALL_ROLES[role]}_token_id"
        if key not in by_rows and stored_value(out, key) not in (None, roles.get(role)):
            yield Fact(key, shown(stored_value(out, key)), shown(roles.get(role)))
    flags = _flags(document, files)
    for word, (name, _) in keys.kind.get("flags", {}).items():
        value = keys.charsmap if word == "map" else keys.flags[word]
        if flags.get(word) and value not in flags[word]:
            output, meant = (f"{len(one):,} bytes" if word == "map" else one for one in (value, flags[word][0]))
            yield Fact(f"tokenizer.ggml.{name}", shown(output), shown(meant))
    kinds = needed()["models"].get(str(within(document, "model", "type")), ())
    if kinds and (name := stored_value(out, "tokenizer.ggml.model")) not in kinds:
        yield Fact("tokenizer.ggml.model", shown(name), " or ".join(map(repr, kinds)))
    if stored_value(out, "tokenizer.ggml.model") in {one for several in needed()["models"].values() for one in several}:
        own = {name for name, _ in keys.kind.get("flags", {}).values()}
        ending = [number for name in (_GENERATION, "config.json") for number in _ends_in(_json(files, name))]
        for name in needed()["strays"]["flags"]:
            if f"tokenizer.ggml.{name}" in out.metadata and name not in own:
                yield Fact(f"tokenizer.ggml.{name}", shown(stored_value(out, f"tokenizer.ggml.{name}")), None)
        for name in needed()["strays"]["ends"]:
            number = stored_value(out, f"tokenizer.ggml.{name}")
            if number is not None and number not in ending:
                yield Fact(f"tokenizer.ggml.{name}", shown(number), None)
    names, found = _cuts_as(document), stored_value(out, "tokenizer.ggml.pre")
    kind = needed()["tokenizer"].get(stored_value(out, "tokenizer.ggml.model"), ())
    if names and "pre" in kind and found not in names:
        yield Fact("tokenizer.ggml.pre", shown(found), shown(names[0]))


def _ends_in(document: Mapping[str, Any]) -> list[Any]:
    """Numbers of tokens that end a text, by any part of a document."""
    ends = document.get("eos_token_id")
    parts = [part for part in document.values() if isinstance(part, dict)]
    return [*(ends if isinstance(ends, list) else [ends]), *(number for part in parts for number in _ends_in(part))]


def _flags(document: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Word of ``kinds.*.flags`` -> values, of which a GGUF says one.

    Steps of a ``tokenizer.json`` of pieces say all where nothing else is done to a text; else a SentencePiece model
    may count.
    """
    found: dict[str, list[Any]] = {}
    before, cut = (
        _members(document.get(name), f"{name.replace('_', '')}s") for name in ("normalizer", "pre_tokenizer")
    )
    types = [step.get("type") for step in (*before, *cut)]
    spaces = [step for step in cut if step.get("type") == "Metaspace"]
    if (bert := next((step for step in before if step.get("type") == "BertNormalizer"), None)) is not None:
        lower, accents = (bert.get(key) for key in ("lowercase", "strip_accents"))
        found["lower"] = [lower is True]
        found["accents"] = [lower is True if accents is None else accents is True]
    elif "Replace" in types or spaces:
        puts = any(step.get("prepend_scheme", "always") != "never" for step in spaces)
        found["prefix"] = [puts or "Prepend" in types]
        found["one space"] = ["WhitespaceSplit" in types]
        maps = (step.get("precompiled_charsmap") for step in before if step.get("type") == "Precompiled")
        with suppress(ValueError):  # of what is malformed
            found["map"] = [base64.b64decode(text) for text in maps if isinstance(text, str)] or [b""]
        model = document.get("model")
        pairs = isinstance(model, dict) and model.get("type") == "BPE"
        if (
            pairs
            and all(step.get("split") is False for step in spaces)
            and {*types} <= {"Prepend", "Replace", "Metaspace", "Split"}
        ):
            return found
    named = next((name for name in _MODELS if name in files), "")
    rules = _rules(read_whole(files[named])) if named else {}
    if type(prefix := _json(files, _SETTINGS).get("add_prefix_space")) is bool and rules:
        rules["prefix"] = prefix
    return found | {word: [value, *found.get(word, ())] for word, value in rules.items()}


def _rules(data: bytes) -> dict[str, Any]:
    """Flags of a SentencePiece model (its ``NormalizerSpec``)."""
    spec: dict[int, Any] = {}
    with suppress(IndexError):  # of a file that is cut off
        for field, part in _fields(data):
            spec |= _fields(part) if field == 3 and isinstance(part, bytes) else {}
    rules = spec.get(2)
    return {
        "map": rules if isinstance(rules, bytes) else b"",
        "prefix": spec.get(3, 1) != 0,
        "one space": spec.get(4, 1) != 0,
    }


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a message of protobuf."""
    at = 0
    while at < len(data):
        tag, at = _size(data, at)
        size = {1: 8, 5: 4}.get(tag & 7, 0)
        if tag & 7 in (0, 2):
            size, at = _size(data, at)
        if tag & 7 == 0:
            yield tag >> 3, size
            continue
        yield tag >> 3, data[at : at + size]
        at += size


def _cuts_as(document: Mapping[str, Any]) -> list[str]:
    """Names of ``tokenizer.ggml.pre`` that cut text as a document does.

    None where that is not known.
    """
    steps = []
    for step in _members(document.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "ByteLevel":
            step = {**_BYTES, "use_regex": True, **step, "trim_offsets": True}
        elif isinstance(pattern := step.get("pattern"), dict) and isinstance(text := pattern.get("Regex"), str):
            step = {**step, "pattern": {"Regex": text.replace("\r", r"\r").replace("\n", r"\n")}}
            if (step.get("behavior"), step.get("invert")) == ("Removed", True):  # as good where all of a text matches
                step |= {"behavior": "Isolated", "invert": False}
        steps.append(step)
    cut = {"type": "Sequence", "pretokenizers": steps} if steps[1:] else next(iter(steps), None)
    model = document.get("model")
    ignores = isinstance(model, dict) and model.get("ignore_merges") is True
    for each in (ignores, not ignores):  # where no name looks words up as it does, all words are ones that merges make
        written = [{"normalizer": normalizer, "pre_tokenizer": cut, "decoder": _BYTES} for normalizer in _NORMALIZERS]
        texts = [
            json.dumps({**part, "model": {**_BYTE_PAIRS, "ignore_merges": each}}, sort_keys=True) for part in written
        ]
        if names := [name for text in texts for name in needed()["steps"].get(_digest(text), ())]:
            return names
    return []


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _words_of_keys(index: TensorIndex) -> Tokens:
    lists = {
        name: stored_value(index, f"tokenizer.ggml.{name}") for name in ("tokens", "token_type", "scores", "merges")
    }
    tokens, types, scores = (
        dict(enumerate(lists[name] if isinstance(lists[name], list) else ()))
        for name in ("tokens", "token_type", "scores")
    )
    kind = needed()["kinds"].get(stored_value(index, "tokenizer.ggml.model"), {})
    return Tokens(
        tokens,
        None if kind.get("flags") else lists["merges"],  # which llama.cpp reads of no such kind
        scores,
        types,
        frozenset(number for number, kind in types.items() if kind == _CONTROL),
        roles_of_keys(index),
        users=frozenset(number for number, kind in types.items() if kind == _USER_DEFINED),
        is_wordpiece=kind.get("wordpiece", False),
    )


def _of_two_files(files: Mapping[str, Any]) -> dict[str, Any]:
    """Words of ``vocab.json`` and ``merges.txt``, where they are alone."""
    words = _json(files, "vocab.json")
    if not words or "merges.txt" not in files or _FILE in files or not _MODELS.keys().isdisjoint(files):
        return {}
    lines = read_whole(files["merges.txt"]).decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    first = 1 if lines[0].startswith("#version") else 0
    merges = [line for line in lines[first:] if line]
    added = {**words, **_json(files, "added_tokens.json")}
    return {"model": {"vocab": added, "merges": merges}}


def _words_of_document(index: TensorIndex, document: Mapping[str, Any], *, merges: bool) -> Tokens | None:
    files = beside(index)
    model = document.get("model")
    if not isinstance(model, dict):
        return None
    vocab, scores = model.get("vocab"), {}
    if isinstance(vocab, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in vocab):
        tokens = {number: str(text) for number, (text, _) in enumerate(vocab)}
        scores = {n: float(score) for n, (_, score) in enumerate(vocab) if isinstance(score, int | float)}
        words = {text: number for number, text in tokens.items()}
    elif isinstance(vocab, dict):
        words = {text: number for text, number in vocab.items() if type(number) is int and number >= 0}
        tokens = {}
        for text, number in words.items():  # a letter without a token of its own may stand behind them, for its byte
            tokens.setdefault(number, text)
    else:
        return None
    special, users = set[int](), set[int]()
    free = len(vocab)  # as the tokenizers library counts (``AddedVocabulary.add_tokens``)
    doubted = {str(token.get("content")) for token in _decoder(files).values() if not token.get("special")}
    for added in list_within(document, "added_tokens"):  # a word keeps its number, any other gets the next one
        content = within(added, "content")
        if isinstance(content, str):
            number = words.setdefault(content, free)
            free = max(free, number + 1)
            tokens[number] = content
            (special if added.get("special") and content not in doubted else users).add(number)
    merged, pairs = model.get("merges") if merges else None, None
    if isinstance(merged, list):
        with suppress(TypeError):  # of what is no pair of words
            pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in merged]
    return Tokens(
        tokens,
        pairs,
        scores,
        special=frozenset(special),
        roles=_roles(index, files, tokens),
        behind=(_around(document) or ("", ""))[1],
        users=frozenset(users),
        is_wordpiece=model.get("type") == "WordPiece",
    )


def _with_pieces(words: Tokens | None, source: TensorIndex, rows: int) -> Tokens | None:
    """Words with the scores of a SentencePiece model, or its own."""
    files = beside(source)
    name = next((name for name in _MODELS if name in files), "")
    if not name or (words.scores if words else _FILE in files):
        return words
    first = _MODELS[name]
    pieces = (item for item in enumerate(_pieces(read_whole(files[name])), first) if item[0] >= 4 * first)
    if words is None:
        others = {*_decoder(files), *map(str, _json(files, "added_tokens.json").values())}
        read = {number: piece for number, piece in pieces if piece[2] and str(number) not in others}
        tokens = {number: text for number, (text, _, _) in read.items()}
        scores = {number: score for number, (_, score, kind) in read.items() if kind == _NORMAL}
        return Tokens(tokens, scores=scores, roles=_roles(source, files, tokens))
    added = words.special | words.users
    left, scores = len(words.tokens.keys() - added), {}
    for number, (text, score, kind) in pieces:
        if not _is_text(text):
            return words  # of a model that is not read
        if number not in added:
            if words.tokens.get(number) != text or number >= rows:
                return words  # of other words, which do not count
            left -= 1
            if kind == _NORMAL:
                scores[number] = score
    return words if left else words._replace(scores=scores)


def _pieces(data: bytes) -> Iterator[tuple[str, float, int]]:
    """Text, score and type of each piece of a SentencePiece model.

    The type is 0 where they are not read here.

    Of a file as the library writes it: pieces come first, each with these fields (``sentencepiece_model.proto``).
    """
    at = 0
    with suppress(IndexError):  # of a file that is cut off
        while data[at : at + 1] == b"\x0a":
            size, at = _size(data, at + 1)
            length, start = _size(data, at + 1)
            text, tail = data[start : start + length], data[start + length : at + size]
            kind = tail[6] if tail[5:6] == b"\x18" and len(tail) == 7 else _NORMAL if len(tail) == 5 else 0
            known = data[at : at + 1] == b"\x0a" and tail[:1] == b"\x15" and kind
            score = struct.unpack_from("<f", tail, 1)[0] if known else 0.0
            yield text.decode("utf-8", "surrogateescape"), score, kind if known else 0
            at += size


def _is_text(text: str) -> bool:
    return text.encode("utf-8", "ignore").decode() == text


def _size(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint: the value, and where the next byte is."""
    value = shift = 0
    while data[at] > 0x7F:
        value, shift, at = value | (data[at] & 0x7F) << shift, shift + 7, at + 1
    return value | data[at] << shift, at + 1


def _around(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """Special tokens that are put before and behind a text.

    ``None`` where a ``tokenizer.json`` does more.
    """
    first = last = ""
    try:
        for step in _members(document.get("post_processor"), "processors"):
            if step.get("type") == "TemplateProcessing":
                words = [part["SpecialToken"]["id"] if "SpecialToken" in part else "" for part in step["single"]]
                at = words.index("")
                if words.count("") > 1 or at > 1 or len(words) > at + 2:
                    return None
                first, last = "".join(words[:at]), "".join(words[at:])
            elif step.get("type") in ("BertProcessing", "RobertaProcessing"):
                first, last = (str(step[name][0]) for name in ("cls", "sep"))
            elif step.get("type") != "ByteLevel":
                return None
    except (TypeError, KeyError, IndexError, ValueError):
        return None
    return first, last


def _members(step: Any, name: str) -> list[dict[str, Any]]:
    """The steps of a sequence, or the one that there is."""
    found = step.get(name) if isinstance(step, dict) and step.get("type") == "Sequence" else [step]
    return [member for member in found if isinstance(member, dict)] if isinstance(found, list) else []


def _decoder(files: Mapping[str, Any]) -> dict[str, Any]:
    """Added tokens of ``tokenizer_config.json``."""
    found = table_within(_json(files, "tokenizer_config.json"), "added_tokens_decoder")
    return {key: token for key, token in found.items() if isinstance(token, dict)}


def _roles(
    index: TensorIndex, files: Mapping[str, Any], tokens: Mapping[int, str], of: Iterable[str] = _ROLES
) -> dict[str, Any]:
    """Numbers of tokens with a role, of the tokenizer or of config.json."""
    numbers = {text: number for number, text in tokens.items()}
    settings = _json(files, _SETTINGS)
    if "added_tokens_decoder" not in settings:  # as transformers reads them (PreTrainedTokenizerBase._from_pretrained)
        settings |= _json(files, "special_tokens_map.json")
    config, found = text_on_top(document_of(index.metadata)), {}
    for role in of:
        token = settings.get(f"{role}_token")
        text = token.get("content") if isinstance(token, dict) else token
        number = numbers.get(text) if isinstance(text, str) else config.get(f"{role}_token_id")
        if type(number) is int:
            found[role] = number
    return found


def _of_words(ours: Tokens, expected: Tokens, *, typed: bool, model: Any) -> Iterator[Fact]:
    prefix, kinds = "tokenizer.ggml." if typed else DOCUMENT, ours.types or expected.types
    for number, text in expected.tokens.items():
        found = ours.tokens.get(number)
        if found is not None and _is_spelled_alike(found, text, number, expected):
            continue
        if not (re.fullmatch(_FILLS, text) and (found is None or re.fullmatch(_FILLS, found))):
            yield Fact(f"{prefix}tokens[{number}]", shown(found), shown(text))
            break
    if ours.merges is not None and expected.merges is not None and ours.merges != expected.merges:
        yield first_difference(f"{prefix}merges", ours.merges, expected.merges)
    if ours.scores and expected.scores:
        both = (n for n in expected.scores if n in ours.scores and kinds.get(n, _NORMAL) == _NORMAL)
        wrong = (n for n in both if not _near(ours.scores[n], expected.scores[n]))
        if (at := next(wrong, None)) is not None:
            yield Fact(f"{prefix}scores[{at}]", shown(ours.scores[at]), shown(expected.scores[at]))
    if ours.types and expected.types and ours.types != expected.types:
        yield first_difference(f"{prefix}token_type", [*ours.types.values()], [*expected.types.values()])
    elif ours.special and expected.special and (ours.types or expected.types):
        unknown = {number for words in (ours, expected) for number, kind in words.types.items() if kind == UNKNOWN_TYPE}
        lost = expected.special - ours.special - unknown  # other documents may add to them
        for number in sorted(number for number in lost if expected.tokens.get(number))[:1]:
            yield Fact(f"{prefix}token_type[{number}]", "not special", "special")
    for role, number in expected.roles.items():
        token = ours.roles.get(role)
        one = typed and role == "eos" and token is not None and ours.tokens.get(token) == expected.behind
        if one and ours.tokens.get(number) in needed()["ends"]["texts"]:
            continue  # a GGUF has one key for what ends a text and for what is put behind one
        if role == "unk" and token is None and expected.types.get(number, UNKNOWN_TYPE) not in _ADDED:
            continue  # transformers looks for such a token in a text, and this is a word of it, or fills a row
        if token != number and number in expected.tokens:
            idle = token is None and role == "unk" and model in needed()["unread"]["unknown"]
            yield Fact(f"{prefix}{_ROLES[role]}_token_id", shown(token), shown(number), idle=idle)


def _is_spelled_alike(found: str, meant: str, number: int, expected: Tokens) -> bool:
    """Whether two formats have one word, each in the spelling of its own.

    A GGUF has a user's tokens with spaces (``_create_vocab_sentencepiece`` and ``get_vocab_base`` of llama.cpp's
    converter), and BERT's words with a mark where they begin (``BertModel.set_vocab``).
    """
    if number in expected.users:
        found, meant = found.replace("▁", " "), meant.replace("▁", " ")
    return found == meant or (expected.is_wordpiece and (found == _marked(meant) or _marked(found) == meant))


def _marked(text: str) -> str:
    return text.removeprefix("##") if text.startswith("##") else f"▁{text}"


def _near(one: float, other: float) -> bool:
    return one == other or shortest_float32(one) == shortest_float32(other)


def first_difference(key: str, found: Any, meant: Any) -> Fact:
    """The first difference between two lists, or two other values."""
    if isinstance(found, list) and isinstance(meant, list):
        at = next((n for n, pair in enumerate(zip(found, meant, strict=False)) if pair[0] != pair[1]), None)
        if at is not None:
            return Fact(f"{key}[{at}]", shown(found[at]), shown(meant[at]))
        return Fact(key, f"a list of {len(found):,}", f"one of {len(meant):,}")
    return Fact(key, shown(found), shown(meant))


# -- Documents that were made of a GGUF's tokenizer --------------------------------------------------------------------


def _of_documents(files: Mapping[str, Path], documents: Mapping[str, Mapping[str, Any]], keys: _Keys) -> Iterator[Fact]:
    for name, faults_of in ((_FILE, _of_steps), (_SETTINGS, _of_settings), (_GENERATION, _of_generation)):
        if documents[name] or (name == _GENERATION and _FILE in files):
            yield from (fact._replace(file=name) for fact in faults_of(documents[name], keys))
    if keys.words.scores and keys.words.merges is None and keys.kind.get("merges_by_score"):
        yield from _of_made_merges(files[_FILE], keys.words)
    if _MODEL in files:
        ours, meant = read_whole(files[_MODEL]), keys.model_file()
        if ours != meant:
            yield from of_files(_MODEL, ours, meant, files[_MODEL])


class _Keys:
    """Tokenizer of a GGUF by its keys, or by the defaults of llama.cpp."""

    def __init__(self, source: TensorIndex, words: Tokens) -> None:
        self._source, self.words = source, words
        model, table = str(self.value("model", "")), needed()["adds"]
        self.kind: Mapping[str, Any] = needed()["kinds"].get(model, {})
        self.pre = str(self.kind.get("pre") or self.value("pre", ""))
        self.name = str(stored_value(source, "general.name") or "").lower()
        self.flags: dict[str, Any] = {}
        for word, (key, otherwise) in self.kind.get("flags", {}).items():
            self.flags[word] = self.value(key, self.flags.get(otherwise) if isinstance(otherwise, str) else otherwise)
        self.steps = " ".join([model, *(word for word, value in self.flags.items() if value)])
        self.steps = self.steps if self.flags else self.pre
        #: Pieces of words, and not of bytes.
        self.pieces = bool(self.flags) or self.pre in table["pieces"]
        numbers = {role: stored_value(source, f"tokenizer.ggml.{name}_token_id") for role, name in ALL_ROLES.items()}
        roles = {role: number for role, number in numbers.items() if isinstance(number, int) and number >= 0}
        self.roles = {**self.kind.get("roles", {}), **roles}
        closed = self.kind.get("closed")
        begins = self.value("add_bos_token", self.kind.get("begins", self.pre in table["bos"]))
        self.begins = bool(closed) or begins or (not self.flags and self.pre in table["always"])
        self.ends = bool(closed) or self.value("add_eos_token", self.kind.get("ends", False))
        #: Role of the token that ends a text.
        self.end = closed or "eos"
        if closed:  # the beginning stands for a class, too
            self.roles = {"eos": self.roles[closed], **self.roles, "cls": self.roles["bos"]}

    def value(self, key: str, otherwise: Any) -> Any:
        """Value of a key of the type of another, or that one."""
        found = stored_value(self._source, f"tokenizer.ggml.{key}")
        return found if type(found) is type(otherwise) else otherwise

    def text(self, role: str) -> str | None:
        """Text of the token with a role, if it is looked for in a text."""
        number = self.roles.get(role, -1)
        looked_for = self.words.types.get(number) in _ADDED and not self.fills(number)
        return self.words.tokens[number] if looked_for else None

    def fills(self, number: int) -> bool:
        """Whether a token only fills a row."""
        text, kind = self.words.tokens[number], self.words.types.get(number, _NORMAL)
        return not text or (kind in (_UNUSED, UNKNOWN_TYPE) and text == f"[PAD{number}]")

    @property
    def added(self) -> Iterator[int]:
        """Numbers of tokens that are looked for in a text."""
        return (n for n in self.words.tokens if self.words.types.get(n) in _ADDED and not self.fills(n))

    @cached_property
    def unknown(self) -> int | None:
        """Number of the token for what is no other's."""
        found = [n for n in self.added if self.words.types[n] == UNKNOWN_TYPE]
        named = self.roles.get("unk", 0)
        return found[0] if found else named if self.words.types.get(named) in _ADDED else None

    @property
    def charsmap(self) -> bytes:
        """Rules of SentencePiece for characters."""
        return bytes(byte % 256 for byte in self.flags.get("map", ()))

    def piece(self, number: int) -> bytes:
        """The text of a token in a ``tokenizer.model``."""
        text, kind = self.words.tokens[number], self.words.types[number]
        return ((text.replace(" ", "▁") if kind == _USER_DEFINED else text) or f"[PAD{number}]").encode()

    def templates(self) -> str | list[dict[str, str]] | None:
        """Templates of chats: one, or several by name."""
        key, found = _TEMPLATE, {}
        for name in [*(name for name in self._source.metadata if name.startswith(f"{key}.")), key]:
            text = stored_value(self._source, name)
            if isinstance(text, str) and text:  # llama.cpp takes the key without a name, which is the last here
                found[name.removeprefix(key).removeprefix(".") or "default"] = text.encode("utf-8", "replace").decode()
        if found.keys() <= {"default"}:
            return found.get("default")
        return [
            {"name": name, "template": text} for name, text in sorted(found.items(), key=lambda f: f[0] != "default")
        ]

    def model_file(self) -> bytes:
        """A ``tokenizer.model`` (``sentencepiece_model.proto``)."""
        tokens, types, scores = self.words.tokens, self.words.types, self.words.scores
        count, pack = len(tokens), struct.Struct("<f").pack
        while count and self.fills(count - 1):
            count -= 1
        made, unknown, one_byte = bytearray(), self.unknown, [bytes((n,)) for n in range(0x80)]
        for number in range(count):
            data, kind = self.piece(number), types[number]
            if number == unknown:
                kind = UNKNOWN_TYPE
            elif kind != _NORMAL or not tokens[number]:
                kind = kind if _NORMAL <= kind <= _BYTE and not self.fills(number) else _UNUSED
            size = one_byte[len(data)] if len(data) < 0x80 else _varint(len(data))
            tail = b"" if kind == _NORMAL else bytes((0x18, kind))
            length = 1 + len(size) + len(data) + 5 + len(tail)
            made += b"\x0a" + (one_byte[length] if length < 0x80 else _varint(length)) + b"\x0a" + size + data
            made += b"\x15" + pack(scores[number]) + tail
        unigram = self.kind.get("unigram", False)
        trainer = [b"\x18", _varint(1 if unigram else 2), b"\x20", _varint(count), b"\x98\x02", _varint(not unigram)]
        for field, role in enumerate(("unk", "bos", "eos", "pad"), 40):
            found = unknown if role == "unk" else self.roles.get(role, -1)
            assert found is not None
            trainer += [_varint(field << 3), _varint(found % (1 << 64))]
            if 0 <= found < count:
                trainer += [_varint((field + 5) << 3 | 2), _varint(len(self.piece(found))), self.piece(found)]
        rules = [b"\x12", _varint(len(self.charsmap)), self.charsmap] if self.charsmap else []
        prefix, one = self.flags.get("prefix", False), self.flags.get("one space", False)
        normalizer = [b"\x0a\x08identity", *rules, b"\x18", _varint(prefix), b"\x20", _varint(one)]
        for tag, message in ((b"\x12", b"".join(trainer)), (b"\x1a", b"".join(normalizer))):
            made += tag + _varint(len(message)) + message
        return bytes(made)


def _varint(value: int) -> bytes:
    more = []
    while value > 0x7F:
        more.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*more, value))


def _of_steps(document: Mapping[str, Any], keys: _Keys) -> Iterator[Fact]:
    """Faults of a ``tokenizer.json``, words apart."""
    if document.keys() != _PARTS:
        yield Fact(min(document.keys() ^ _PARTS), None, "what the tokenizers library reads")
        return
    model = document["model"]
    found = {key: document[key] for key in ("normalizer", "pre_tokenizer", "decoder")}
    found["model"] = {key: value for key, value in model.items() if key not in _WORDS}
    text, maps = json.dumps(found, sort_keys=True), []
    for encoded in re.findall(r'"precompiled_charsmap": "([^"]*)"', text):
        text = text.replace(encoded, "")
        maps.append(base64.b64decode(encoded))
    digest = _digest(text)
    if keys.steps not in needed()["steps"].get(digest, ()):
        yield Fact("pre_tokenizer", f"with other steps ({digest})", f"those of {keys.steps!r}")
    if maps != [keys.charsmap] * len(maps):
        yield Fact("normalizer", "with other rules for characters", "those of precompiled_charsmap")
    unknown = keys.unknown if keys.pieces else None
    word = keys.words.tokens.get(unknown) if unknown is not None else None
    if model.get("unk_id", unknown) != unknown or model.get("unk_token", word) != word:
        yield Fact("model.unk_token", shown(model.get("unk_token", model.get("unk_id"))), shown(word))
    added = {token["id"]: token for token in document["added_tokens"]}
    swallows = any(word in keys.name for word in needed()["strips"]["names"])
    for number in keys.added:
        content = keys.words.tokens[number]
        meant = {"id": number, "content": content, "single_word": False, "lstrip": False, "normalized": False}
        meant["special"] = keys.words.types[number] != _USER_DEFINED
        meant["rstrip"] = swallows and content not in needed()["strips"]["but"]
        if added.pop(number, None) != meant:
            yield Fact(f"added_tokens[{number}]", "another", shown(content))
            break
    for number in added:
        yield Fact(f"added_tokens[{number}]", "one", "a word like others")
        break
    yield from _of_ends(document["post_processor"], keys)


def _of_ends(processor: Any, keys: _Keys) -> Iterator[Fact]:
    """Faults of the tokens around a text, or around each of two."""
    members = (processor or {}).get("processors", [processor] if processor else [])
    template: Mapping[str, Any] = next((member for member in members if member.get("type") == "TemplateProcessing"), {})
    roles = ("bos" if keys.begins else "", keys.end if keys.ends else "")
    begin, end = ([keys.text(role)] if role else [] for role in roles)
    parts = {"single": "A", "pair": "AB"} if begin or end else {}
    around = {key: [part for name in names for part in (*begin, name, *end)] for key, names in parts.items()}
    for key, meant in around.items():
        found = [next(iter(item.values())).get("id") for item in template.get(key, ())]
        if found != meant:
            yield Fact(f"post_processor.{key}", shown(found), shown(meant))
    wanted = [*([] if keys.pieces else ["ByteLevel"]), *(["TemplateProcessing"] if around else [])]
    found = [member.get("type") for member in members]
    if found != wanted or (len(wanted) > 1 and processor.get("type") != "Sequence"):
        yield Fact("post_processor.type", shown(found), shown(wanted))
    ids = {keys.text(role): [keys.roles[role]] for role in roles if role}
    special = {text: token["ids"] for text, token in template.get("special_tokens", {}).items()}
    if special != ids:
        yield Fact("post_processor.special_tokens", shown(special), shown(ids))


def _of_settings(settings: Mapping[str, Any], keys: _Keys) -> Iterator[Fact]:
    """Faults of a ``tokenizer_config.json``."""
    plain = {"add_bos_token": keys.begins, "add_eos_token": keys.ends, "clean_up_tokenization_spaces": False}
    meant = {**plain, "tokenizer_class": "PreTrainedTokenizerFast"}
    meant |= {f"{role}_token": keys.text(role) for role in ALL_ROLES}
    if keys.pieces and keys.unknown is not None and "unk" not in keys.roles:
        meant["unk_token"] = keys.words.tokens[keys.unknown]
    meant["chat_template"] = keys.templates()
    free = {"model_max_length", "added_tokens_decoder"}  # which are compared elsewhere
    for key, value in {**dict.fromkeys(settings.keys() - free), **meant}.items():
        if type(settings.get(key)) is not type(value) or settings.get(key) != value:
            yield Fact(key, shown(settings.get(key)), shown(value))
    for number, token in settings.get("added_tokens_decoder", {}).items():
        text, kind = keys.words.tokens.get(int(number)), keys.words.types.get(int(number))
        if token.get("content") != text or token.get("special") is not (kind == _CONTROL):
            yield Fact(f"added_tokens_decoder.{number}", shown(token.get("content")), shown(text))


def _of_generation(document: Mapping[str, Any], keys: _Keys) -> Iterator[Fact]:
    """Faults of a ``generation_config.json``."""
    texts, words, types = needed()["ends"]["texts"], keys.words.tokens, keys.words.types
    for key in sorted(document.keys() - {f"{role}_token_id" for role in ("bos", "eos", "pad")}):
        yield Fact(key, shown(document[key]), None)
    for role in ("bos", "pad"):
        stated, meant = document.get(f"{role}_token_id"), keys.roles.get(role)
        if stated != meant and (stated is not None or meant in words):
            yield Fact(f"{role}_token_id", shown(stated), shown(meant))
    stated = document.get("eos_token_id", [])
    ends = {n for n, text in words.items() if text in texts and types.get(n) == _CONTROL}
    known = {keys.roles.get("eos"), *ends, *(keys.value(f"{name}_token_id", -1) for name in ("eot", "eom"))}
    found = {*stated} if isinstance(stated, list) else {stated}
    meant = known & words.keys()
    if not found <= known or (not meant <= found if found else keys.roles.get("eos") in words):
        yield Fact("eos_token_id", shown(stated), shown(sorted(meant)))


def engine_words(entries: Mapping[str, Any], source: TensorIndex, rows: int) -> Iterator[Fact]:
    """Words in a bump file that are not the source's.

    Args:
        entries: name -> bytes: ``vocab_offsets`` (int32, a word each), ``vocab_strings`` (UTF-8, a NUL behind each),
            ``vocab_scores`` (float32), ``vocab_types`` (uint8), ``vocab_merges`` (int32: left, right, both).
        rows: words that there are.
    """
    expected = _words_of(source, _json(beside(source), _FILE, _without_merges), merges=False)
    if "vocab_strings" not in entries or expected is None:
        return
    strings = entries["vocab_strings"]
    offsets = struct.unpack(f"<{rows}i", entries["vocab_offsets"])
    ends = (*offsets[1:], len(strings))
    words = [strings[at:end].removesuffix(b"\0") for at, end in zip(offsets, ends, strict=True)]
    for number, text in expected.tokens.items():
        found = words[number].decode("utf-8", "surrogateescape") if number < rows else text
        if text and not _is_spelled_alike(found, text, number, expected):
            yield Fact(f"vocab_strings[{number}]", shown(words[number].decode("utf-8", "replace")), shown(text))
            break
    for name, code, known in (("vocab_scores", "f", expected.scores), ("vocab_types", "B", expected.types)):
        stored = struct.unpack(f"<{rows}{code}", entries[name]) if name in entries else ()
        if source.metadata_kind is MetadataKind.TYPED and stored and known:
            wrong = (n for n, value in known.items() if n < rows and stored[n] != value)
            if (at := next(wrong, None)) is not None:
                yield Fact(f"{name}[{at}]", shown(stored[at]), shown(known[at]))
    for number, (left, right, both) in enumerate(struct.iter_unpack("<3i", entries.get("vocab_merges", b""))):
        if not all(0 <= n < rows for n in (left, right, both)) or words[left] + words[right] != words[both]:
            yield Fact(f"vocab_merges[{number}]", shown([left, right, both]), "two words and what they make")
            break


def _of_made_merges(path: Path, words: Tokens) -> Iterator[Fact]:
    """Faults of merges that make pieces, of their order and halves."""
    numbers = {text: number for number, text in words.tokens.items()}
    scores, last, count = words.scores, float("inf"), 0
    for merge in _merges_in(path):
        left, _, right = merge.partition(" ")
        number = numbers.get(left + right)
        halves = (len(left) == 1 or left in numbers) and (len(right) == 1 or right in numbers)
        if number is None or not halves or scores[number] > last:
            yield Fact(f"{DOCUMENT}merges[{count}]", shown(merge), "pieces in the order of their scores")
            return
        last, count = scores[number], count + 1


# -- Files -----------------------------------------------------------------------------------------------------------


def pieces(path: Any) -> Iterator[bytes]:
    """The bytes of a file, some at a time."""
    with open_source(path) as source:
        for at in range(0, source.size or 0, _PIECE):
            yield source.read_at(at, min(_PIECE, (source.size or 0) - at))


def _parts_of(path: Any) -> Iterator[tuple[bool, bytes]]:
    """Bytes of a ``tokenizer.json``, and whether they are merges."""
    import regex  # possessive quantifiers of re are wrong before 3.11.5 (python/cpython#106052)

    rest, within, whole = b"", False, regex.compile(_ITEMS, regex.DOTALL)
    for piece in pieces(path):
        data, at = rest + piece, 0
        if not within:
            start = re.search(_MERGES, data)
            at = start.end() if start else max(0, len(data) - len(piece))
            within = start is not None
            yield False, data[:at]
        if within:
            items = whole.match(data, at)
            assert items is not None
            yield True, data[at : items.end()]
            at = items.end()
            within = data[at : at + 1] != b"]"
        rest = data[at:]
    yield False, rest


def _without_merges(path: Any) -> bytes:
    """A ``tokenizer.json`` with an empty list of merges, in bounded memory."""
    return b"".join(data for within, data in _parts_of(path) if not within)


def _merges_in(path: Any) -> Iterator[str]:
    for inside, data in _parts_of(path):
        if inside:
            yield from json.loads(b"[" + data.strip(b", \r\n\t") + b"]")


def _json(files: Mapping[str, Any], name: str, read: Callable[[Any], bytes] = read_whole) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        found = json.loads(read(files[name]))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
