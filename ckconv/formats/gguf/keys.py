"""Metadata of a GGUF that is written: copied, made, set or dropped."""

from __future__ import annotations

import json
import shlex
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from ckconv.core.config import FIELD_OF, NUMBERS, checked_number
from ckconv.core.lazy import replace
from ckconv.core.metadata import (
    STRING,
    VALUE_TYPES_BY_NAME,
    Content,
    LazyValue,
    MadeArray,
    Value,
    ValueType,
    array,
    as_read,
    beside,
    keys_of_card,
    numbered,
    raw_array,
    root_of,
    scalar,
    string,
)
from ckconv.core.tensors import HEAD, MetadataKind, TensorIndex, made
from ckconv.errors import InputError, UsageError, and_more, counted, nearest, quoted
from ckconv.families import schema, towers
from ckconv.families.catalog import FAMILIES, SIZES, families_of_gguf, hyperparameters, layers_behind
from ckconv.formats.gguf.entries import has_scales
from ckconv.formats.gguf.read import read_header
from ckconv.formats.gguf.values import (
    ALIGNMENT_KEY,
    LENGTH,
    VERSION,
    ArrayRef,
    MetaValue,
    Record,
    align_up,
    header,
    keys_by_type,
    known_types,
    types_of,
)
from ckconv.formats.safetensors.files import PLAIN, POOLING, modules_of, pooling_of, stored_documents
from ckconv.io.files import card_of, open_source, own_texts
from ckconv.plan.planner import Planner
from ckconv.plan.steps import Change, Container, Frame, OutputFile, Reason
from ckconv.tokenizer.vocabulary import MODELS

# -- Keys of a GGUF that readers know, by type, and short names --------------------------------------------------------

TOKENS, MODEL = "tokenizer.ggml.tokens", "tokenizer.ggml.model"

#: Lists with an item for each token.
PER_TOKEN = (TOKENS, "tokenizer.ggml.scores", "tokenizer.ggml.token_type")

_TEMPLATE = "tokenizer.chat_template"
_PREFIX, _ID = "tokenizer.ggml.", "_token_id"

#: Keys of any model that llama.cpp loads.
_LOADED = ("general.architecture", "general.file_type", "general.name")

#: Keys whose loaders take no list for a number, nor one of another type.
_EXACT = ("adapter.", "clip.")

#: Role of a token, in the words of transformers -> what a GGUF calls it, spelled as there.
_ROLES = {
    **{role: role for role in ("bos", "eos", "eot", "eom", "mask", "fim_pre", "fim_suf", "fim_mid", "fim_pad")},
    "unk": "unknown",
    "pad": "padding",
    "sep": "seperator",
    "cls": "cls",
}
_NAMES = {f"{ours}{end}": f"{_PREFIX}{word}{_ID}" for ours, word in _ROLES.items() for end in ("_token", _ID)}


def _mistyped(key: str, value: Value, known: Mapping[str, list[str]]) -> str:
    """The type that llama.cpp wants of a key that has another one.

    Of several of a model it takes any list for a number of each layer.
    """
    exact = key.startswith(_EXACT)
    if value.type.startswith("arr[") and not exact:
        return ""
    kinds = [kind for kind in types_of(key, known) if exact or not kind.startswith("arr[")]
    return "" if value.type in kinds else next(iter(kinds), "")


def mistyped_notes(metadata: Mapping[str, Value], architecture: str, family: str) -> Iterator[str]:
    """Note keys of another type than llama.cpp loads.

    It looks at the type of what it reads, and stops at another one: ``get_key`` of llama-model-loader.cpp, and
    ``gguf_get_val_*`` in the loaders of adapters and towers.
    """
    read = (f"{architecture}.", _PREFIX, *_LOADED)
    own = known_types(architecture, family) if family else {}  # which most have: other families are not read for them
    others = {key: value for key, value in metadata.items() if key.startswith(read)}
    others = {key: value for key, value in others.items() if value.type not in types_of(key, own)}
    known = known_types(architecture) if others else {}
    kinds = {key: kind for key, value in others.items() if (kind := _mistyped(key, value, known))}
    if not kinds:
        return
    texts = {key: _text(kinds[key], _plain(as_read({key: metadata[key]})[key])) for key in kinds}
    types = and_more([f"{key} is {metadata[key].type}, not {kind}" for key, kind in kinds.items()])
    flags = " ".join(f"--set-meta {key}={shlex.quote(text)}" for key, text in texts.items() if text)
    way = f": ckconv edit SRC DST {flags} gives it the right type" if all(texts.values()) else ""
    yield f"llama.cpp does not load a key of another type ({types}){way}"


def _text(kind: str, value: object) -> str:
    """The same value for ``--set-meta``; empty where the type has none."""
    if kind == "bool" and value in (0, 1):
        return json.dumps(bool(value))
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
    return "" if _try(kind, text) is None else text


def unknown_note(key: str, architecture: str) -> str:
    """Note on a key that no known reader reads; may be empty."""
    families, known = families_of_gguf(architecture), known_types(architecture)
    if types_of(key, known) or (not families and key.startswith(f"{architecture}.")):
        return ""
    read = [name for family in families for name in family.metadata.keys]
    if key in {f"{architecture}.{name}" for name in read}:
        return ""
    names = [*known, *(f"{architecture}.{name}" for name in read)]
    near = nearest(key, names, 0.8)
    return f"no known reader looks at {key}{f'; did you mean {near}?' if near else ''}"


def resolved(metadata: Mapping[str, Value], pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Pairs with full keys, and ids for tokens named by their text.

    Raises:
        UsageError: ``usage.meta``, the vocabulary has no such token, or two flags say two things of one key.
    """
    found = tuple(_resolved(metadata, key, text) for key, text in pairs)
    set_by: dict[str, tuple[str, str]] = {}
    for (short, _), (key, text) in zip(pairs, found, strict=True):
        other, before = set_by.setdefault(key, (short, text))
        if other != short and before != text:
            message = f"--set-meta {other} and {short} would have {key} say {quoted(before)} and {quoted(text)}"
            raise UsageError("usage.meta", message)
    return found


def _resolved(metadata: Mapping[str, Value], short: str, text: str) -> tuple[str, str]:
    key = short if short in metadata else _TEMPLATE if short == "chat_template" else _NAMES.get(short, short)
    if not (key.startswith(_PREFIX) and key.endswith(_ID)) or text.lstrip("-").isdecimal():
        return key, text
    if text.partition(":")[0] in keys_by_type():  # u32:7
        return key, text
    if TOKENS not in metadata:
        raise UsageError("usage.meta", f"--set-meta {key}: the file has no tokens, so {quoted(text)} names none")
    tokens = list(_tokens(metadata))
    if text not in tokens:
        near = nearest(text, tokens)
        raise UsageError(
            "usage.meta",
            f"--set-meta {short}: no token is {quoted(text)}",
            hint=f"there is {quoted(near)}" if near else "give a token's text or its id",
        )
    return key, str(tokens.index(text))


def _tokens(metadata: Mapping[str, Value]) -> Iterator[str]:
    found = as_read({TOKENS: metadata[TOKENS]})[TOKENS].value
    return found.each() if isinstance(found, MadeArray) else iter(())


# -- Metadata of a GGUF that is written: copied, made, set or dropped --------------------------------------------------

ARCHITECTURE_KEY = "general.architecture"
SPLIT_KEYS = "split."

_TOKENS = ("tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.merges")


def copied(metadata: Mapping[str, MetaValue]) -> dict[str, Value]:
    """The model's keys of a file, in order, without those of its split set."""
    return {key: _value(value) for key, value in metadata.items() if not key.startswith(SPLIT_KEYS)}


def card_keys(index: TensorIndex) -> dict[str, Value]:
    """Metadata keys of a model card."""
    own = {f"general.{key}": scalar("str", text) for key, text in own_texts(index).items() if key != "name"}
    return own | {key: _as_value(value) for key, value in keys_of_card(card_of(index)).items()}


def _as_value(value: str | int | list[str]) -> Value:
    if isinstance(value, list):
        return array("str", value)
    return scalar("str" if isinstance(value, str) else "u32", value)


def _value(value: MetaValue) -> Value:
    found = value.value
    if isinstance(found, ArrayRef):
        if found.type == STRING.name and found.length.size != LENGTH[VERSION].size:
            return array(found.type, found.decode())  # version 1 has shorter lengths
        return raw_array(found.type, found.count, found.raw())
    return Value(value.type, value.raw or string(str(found)))


def edited(
    planner: Planner, metadata: Mapping[str, Value], architecture: str, *, ruled: bool, own: bool
) -> dict[str, Value]:
    """Metadata after ``--drop-meta`` and ``--set-meta``.

    Without them no family is read for it.

    Notes what changes, and keys that nobody reads.

    Args:
        ruled: the tensors fit the rules of the architecture; otherwise any of its keys may be what has to be mended.
        own: the metadata are the source's, which may name any architecture.

    Raises:
        UsageError: ``usage.meta``.
    """
    if not planner.options.drop_meta and not planner.options.set_meta:
        return dict(metadata)
    pairs = resolved(metadata, planner.options.set_meta)
    planner.options = replace(planner.options, set_meta=pairs)
    parameters = hyperparameters(architecture) if ruled else []
    tensors = {row.key for family in families_of_gguf(architecture) for row in family.tensors.values() if row.key}
    needed = _keys_of(architecture, [row for row in parameters if not row[1].startswith(_SCALES)]) | tensors
    if planner.index.tower is not None:
        rows = towers.tower_family(planner.index.tower.family).parameters.values()
        needed |= {f"{architecture}.{cell.key}" for row in rows for cell in row.key_cells("gguf")}
    remaining = _dropped(metadata, planner.options.drop_meta, needed)
    decided = _keys_of(architecture, [row for row in parameters if row[0] in SIZES])
    decided |= {ALIGNMENT_KEY, *tensors, *([] if own else [ARCHITECTURE_KEY])}
    made = _with_set(remaining, pairs, decided, architecture)
    _check_numbers(made, [key for key, _ in pairs], architecture, parameters)
    _check_vocabulary(metadata, made, [key for key, _ in pairs], own=own)
    planner.changes = tuple(_changes(metadata, made, [key for key, _ in pairs]))
    planner.notes += filter(None, (unknown_note(key, architecture) for key, _ in pairs))
    return made


#: Keys that ``llama_model_base::load_hparams`` asks for, and does without, whatever the architecture.
_SCALES = ("rope.freq_base", "rope.scale_linear", "rope.scaling.")


def _keys_of(architecture: str, parameters: Iterable[tuple[str, str]]) -> set[str]:
    """Keys of hyper-parameters."""
    return {f"{prefix}{key}" for _, key in parameters for prefix in (f"{architecture}.", "")}


def _dropped(metadata: Mapping[str, Value], globs: Sequence[str], computing: Iterable[str]) -> dict[str, Value]:
    """The metadata without the keys that a flag names."""
    needed = {ARCHITECTURE_KEY, ALIGNMENT_KEY, *_TOKENS, *computing}
    needed |= {key for key in metadata if key.startswith(towers.ORIGINAL_SHAPE)}
    going: set[str] = set()
    for glob in globs:
        matched = {key for key in metadata if fnmatchcase(key, glob)}
        if not matched:
            raise UsageError("usage.meta", f"--drop-meta {glob} matches no key")
        for key in sorted(matched & needed):
            raise UsageError("usage.meta", f"--drop-meta {glob} would drop {key}, by which the model is computed")
        going |= matched
    return {key: value for key, value in metadata.items() if key not in going}


def _with_set(
    metadata: Mapping[str, Value], pairs: Iterable[tuple[str, str]], decided: set[str], architecture: str
) -> dict[str, Value]:
    """Metadata with ``--set-meta``; types by key, else by the text's look."""
    made, known = dict(metadata), known_types(architecture)
    for key, text in pairs:
        there = made.get(key)
        other = _mistyped(key, there, known) if there else ""
        by_tensors = UsageError("usage.meta", f"--set-meta cannot set {key}: the tensors decide it")
        if (key in decided and not other) or key.startswith((SPLIT_KEYS, towers.ORIGINAL_SHAPE)):
            raise by_tensors
        if not key.isprintable() or not key or text != text.encode("utf-8", "replace").decode():
            raise UsageError("usage.meta", f"--set-meta: {quoted(key)}={quoted(text)} is not text")
        kind = other or (there.type if there else next(iter(types_of(key, known)), ""))
        kind = STRING.name if key == ARCHITECTURE_KEY else kind
        made[key] = _parsed(key, kind, text) if kind else _new(key, text)
        if key in decided and there and _plain(as_read({"": there})[""]) != _plain(as_read({"": made[key]})[""]):
            raise by_tensors  # but for its type
    return made


def _check_numbers(
    metadata: Mapping[str, Value], keys: Collection[str], architecture: str, parameters: Iterable[tuple[str, str]]
) -> None:
    """Check numbers that flags set as a reader of the file does."""
    fail = partial(InputError, "usage.meta")
    for name, own in parameters:
        number, key = NUMBERS.get(FIELD_OF.get(name, "")), f"{architecture}.{own}"
        if number is not None and key in keys and not metadata[key].type.startswith("arr["):
            try:
                value = checked_number(key, _plain(as_read({key: metadata[key]})[key]), number, fail)
                if number.field == "rope_theta" and not value:
                    raise fail(f"{key} must be above 0, got {value}")
            except InputError as error:
                raise UsageError("usage.meta", f"--set-meta {error.message}") from None


def _check_vocabulary(
    before: Mapping[str, Value], after: Mapping[str, Value], keys: Collection[str], *, own: bool
) -> None:
    """Check the number of tokens and the tokenizer after edits."""
    count = _length(before[TOKENS]) if TOKENS in before else 0
    for key in (key for key in keys if count and key in PER_TOKEN):
        found = _length(after[key])
        if found != count:
            raise UsageError("usage.meta", f"--set-meta {key} has {counted(found, 'item')}, {count:,} tokens expected")
    kind = _plain(as_read({key: after[key] for key in keys if key == MODEL}).get(MODEL))
    if kind is not None and kind not in MODELS:
        message = f"--set-meta {MODEL}: llama.cpp knows no tokenizer {quoted(str(kind))}"
        raise UsageError("usage.meta", message, hint=f"one of {', '.join(MODELS)}")
    made = _plain(as_read({key: before[key] for key in before if key == MODEL}).get(MODEL))
    if not own and kind not in (None, made):
        what = f"the source's files make {quoted(str(made))}" if made else "the source has none"
        raise UsageError("usage.meta", f"--set-meta cannot set {MODEL}: {what}")


def _length(value: Value) -> int:
    found = as_read({"": value})[""].value
    return found.count if isinstance(found, MadeArray) else 0


def _changes(before: Mapping[str, Value], after: Mapping[str, Value], keys: Iterable[str]) -> Iterator[Change]:
    """Keys that flags changed, then dropped keys."""
    named = dict.fromkeys([*keys, *(key for key in before if key not in after)])
    for key in (key for key in named if before.get(key) != after.get(key)):
        old, new = (as_read({key: side[key]}).get(key) if key in side else None for side in (before, after))
        yield Change(key, _plain(old), _plain(new))


def _plain(made: LazyValue | None) -> object:
    value = made.value if made is not None else None
    return value.decode() if isinstance(value, MadeArray) else value


#: Types that a text without one is tried as, in this order; a text is what it is otherwise.
_GUESSES = ("bool", "u32", "i32", "u64", "i64", "f32")


def _new(key: str, text: str) -> Value:
    """``u32:7``, ``arr[str]:["a"]``; without a type what the text looks like."""
    kind, colon, rest = text.partition(":")
    if colon and (kind in VALUE_TYPES_BY_NAME or kind.startswith("arr[")):
        return _parsed(key, kind, rest)
    return next((value for name in _GUESSES if (value := _try(name, text))), scalar("str", text))


def _parsed(key: str, kind: str, text: str) -> Value:
    text = text.removeprefix(f"{kind}:")
    if kind == "arr[str]" and key.startswith("general.") and not text.startswith("["):  # tags, languages
        text = json.dumps([item.strip() for item in text.split(",") if item.strip()])
    value = _try(kind, text)
    if value is None:
        raise UsageError(
            "usage.meta", f"--set-meta {key}: {quoted(text)} is not of type {kind}", found=text, allowed=kind
        )
    return value


def _try(kind: str, text: str) -> Value | None:
    """Parse a text as type ``kind`` (JSON unless a string), else ``None``."""
    try:
        if kind.startswith("arr["):
            type = VALUE_TYPES_BY_NAME[kind[4:-1]]
            found = json.loads(text)
            return array(type.name, [_checked(type, item) for item in found]) if isinstance(found, list) else None
        type = VALUE_TYPES_BY_NAME[kind]
        return scalar(kind, text if type is STRING else _checked(type, json.loads(text)))
    except (KeyError, ValueError, OverflowError, struct.error):
        return None


def _checked(type: ValueType, value: object) -> str | int | float | bool:
    """A JSON value that is one of ``type``."""
    if type is STRING and isinstance(value, str):
        return value
    if type.code == "?" and isinstance(value, bool):
        return value
    if type.integer and isinstance(value, int) and not isinstance(value, bool):
        return value
    if type.code in ("f", "d") and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError


# How embeddings are pooled: what sentence-transformers' files say, as GGUF's key.
#
# Source: ``_try_set_pooling_type`` of llama.cpp's converter.

#: ``LLAMA_POOLING_TYPE_RANK``: the outputs of a classifier; of encoders, llama.cpp's converter leaves it to a flag.
_RANK = 4

_HINT = "take it out of modules.json for the embeddings before it"


def gives_embeddings(index: TensorIndex) -> bool:
    """Whether a checkpoint has no output head on purpose.

    It is one of sentence-transformers, or of a class without one.

    Raises:
        InputError: ``model.config``, ``modules.json`` is malformed.
    """
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        return False
    classes = index.metadata.get("architectures")
    named = [str(name) for name in classes] if isinstance(classes, list) else []
    headless = [name.endswith("Model") and not name.endswith("LMHeadModel") for name in named]
    return bool(headless and all(headless)) or bool(modules_of(root_of(index)))


def pooling_keys(index: TensorIndex, family: schema.Family, notes: list[str]) -> dict[str, Value]:
    """Pooling keys of a checkpoint of sentence-transformers.

    Notes are added for what has none.

    llama.cpp reads one of them. The documents are stored beside it, for the way back: what is behind the pooling, and
    prompts, it has no words for.

    Raises:
        InputError: ``model.config``, a file is malformed.
    """
    if index.config is not None and index.config.tied is False and HEAD not in index.tensors:
        notes.append("the model gives embeddings: where logits are asked for, llama.cpp takes the embedding for a head")
    if "labels" in family.parameters:
        return {f"{family.gguf}.pooling_type": scalar("u32", _RANK)}
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        return {}
    if not (modules := modules_of(root_of(index))):
        return {}
    files = beside(index)
    number, pooling = pooling_of(files, modules)
    if not pooling:
        notes.append("modules.json names no pooling: llama.cpp gives an embedding for every token")
    elif not number:
        notes.append(f"{pooling} pools as llama.cpp does not, which gives an embedding for every token")
    made = {f"{family.gguf}.pooling_type": scalar("u32", number)} if number else {}
    return made | {key: scalar("str", text) for key, text in stored_documents(files).items()}


def module_reasons(index: TensorIndex) -> list[Reason]:
    """Why modules behind the model are refused.

    They have weights of their own, and llama.cpp does not compute them.

    Raises:
        InputError: ``model.config``, ``modules.json`` is malformed.
    """
    if index.metadata_kind is not MetadataKind.DOCUMENT or index.config is None:
        return []
    family, modules = FAMILIES[index.config.family], modules_of(root_of(index))
    there = layers_behind(index).values()
    pools = next((n for n, module in enumerate(modules) if module.kind == POOLING), len(modules))
    return [
        Reason(
            f"modules.json names a {module.kind} after {'pooling' if n > pools else 'the model'} ({module.path}/), "
            f"which llama.cpp's {family.gguf} does not compute",
            _HINT,
        )
        for n, module in enumerate(modules)
        if module.kind not in PLAIN and module.path not in {tensor.source.partition("/")[0] for tensor in there}
    ]


# The bytes of a GGUF that are not tensors: metadata, tensor records and the padding before the data section.


def container(
    files: Sequence[OutputFile], metadata: Sequence[Mapping[str, Value]], alignments: Sequence[int]
) -> Container:
    """One frame a file; nothing lies beside a GGUF.

    Args:
        metadata: of each file.
        alignments: of each file, in bytes.
    """
    frames = tuple(Frame(prologue(*parts)) for parts in zip(files, metadata, alignments, strict=True))
    return Container(frames, keys=keys_of(metadata))


def keys_of(metadata: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
    """Metadata of a GGUF or a split set."""
    keys: dict[str, Any] = {"version": VERSION}
    for number, own in enumerate(metadata):
        keys |= {numbered(key, number): value for key, value in own.items() if not key.startswith(SPLIT_KEYS)}
    return keys


def prologue(file: OutputFile, metadata: Mapping[str, Value], alignment: int) -> bytes:
    """All bytes before the data section, where the first tensor lies."""
    start = file.steps[0].offset if file.steps else file.nbytes

    def record(at: int) -> Record:
        step = file.steps[at]
        type_id = step.target.dtype.ggml
        assert type_id is not None
        return Record(step.slot, step.target.shape, type_id, step.offset - start)

    found = header(metadata, made(len(file.steps), record), start)
    assert len(found) == start == align_up(start, alignment)
    return found


# What a GGUF says besides its tensors.


def content(index: TensorIndex, _: Mapping[str, Path]) -> Content:
    """The metadata of every file of the set."""
    keys: dict[str, Any] = {}
    for number, path in enumerate(index.files):
        with open_source(path) as source:
            shard = read_header(source)
            keys["version"] = min(shard.version, keys.get("version", shard.version))
            keys |= {numbered(key, number): value for key, value in copied(shard.metadata).items()}
    return Content(keys, paths={path.name: path for path in index.side_files})


def shown(_: TensorIndex, out: TensorIndex) -> dict[str, Any]:
    """Whether scales of scales stand beside their matrices."""
    return {"tensor_scales": has_scales(out.stored)}
