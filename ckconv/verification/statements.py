"""Statements of an output compared with its source's, by separate readers.

Nothing is planned. Hyper-parameters are those of the two readers; words, merges, scores and roles of tokens are read
here, out of the metadata of a GGUF or the documents of a checkpoint; what goes along as it is has to be the same; and
what the target's loader cannot do without has to be there (``needed.toml``, and the rows of the family that it reads).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ckconv.core.config import FIELD_OF
from ckconv.core.lazy import np
from ckconv.core.metadata import (
    CONFIG_NAME,
    GENERATION,
    METADATA,
    PART,
    SETTINGS,
    Content,
    beside,
    document_of,
    text_key,
)
from ckconv.core.options import Options
from ckconv.core.tensors import MetadataKind, Role, TensorIndex, Tower, stored_value
from ckconv.errors import VerifyError, listed
from ckconv.families.catalog import FAMILIES
from ckconv.families.keys import TABLES_OF_ROPE, full_key
from ckconv.families.names import heads_of, interleaves
from ckconv.families.parameters import differ
from ckconv.families.schema import MLX_VLM
from ckconv.families.towers import ORIGINAL_SHAPE, tower_family, tower_of_document
from ckconv.formats.gguf.values import HEAD_KEYS, known_types, types_of
from ckconv.formats.safetensors.container import ADAPTER_CONFIG, PEFT_PREFIX
from ckconv.io.imatrix import read_imatrix
from ckconv.verification.content import (
    FILE_TYPE,
    VERSION_KEY,
    Fact,
    content_of_index,
    file_type_faults,
    general_faults,
    is_named,
    needed,
    plain_types,
    read_whole,
    shown,
    unequal,
    unlike,
)
from ckconv.verification.documents import document_faults, is_edited, keyed_values, strictly, unasked_differences
from ckconv.verification.tokenizers import (
    ALL_ROLES,
    DOCUMENT,
    TOKENS,
    UNKNOWN_TYPE,
    engine_words,
    first_difference,
    templates_of,
    tokenizer_faults,
    tokens_of,
)

#: Keys of a GGUF that belong to its file, or say how values are stored.
_OF_THE_FILE = r"(split\.|general\.(file_type|quantization_version|alignment|size_label)$|quantize\.)"
#: Beginnings of keys that are about the parts of a split file, or about how it was quantized.
_OF_FILES = _PARTS, _QUANTIZED = "split.", "quantize."

#: Bytes that llama.cpp keeps of a text about an importance matrix (``llama_model_kv_override``).
_MAX_BYTES = 127

#: Keys that a copy may have besides: flags with the values that llama.cpp takes without them.
_IMPLIED = r"tokenizer\.ggml\.add_"

#: Sizes of linear layers behind a model (``dense_2``).
_OF_LAYERS = r"\.(embedding_length_out|dense_[23]_feat_(in|out))$"

#: Documents beside config.json whose keys are set by their names, and the key of a template, which has a file.
_TEMPLATE = "chat_template"
_EDITED_FILES = (GENERATION, SETTINGS)

#: Documents of sentence-transformers.
_MODULES, _POOLED, _POOLS, _RANKS = "modules.json", "1_Pooling/config.json", "pooling_type", 4

#: Differences that are looked for: more say nothing more.
ENOUGH = 1_000

HINT = "repeat the options of the conversion, or --weights compares the tensors alone"


def faults_of(
    out: TensorIndex, source: TensorIndex, options: Options, content: Callable[[], Content]
) -> Iterator[Fact]:
    """Everything in which an output says something else than its source.

    Each key once.

    Args:
        options: of the conversion; a key that they change is no fault.
        content: reads the output's metadata and documents.
    """
    seen = set[str]()
    unasked = (fact for fact in _faults_of(out, source, options, content) if not _is_edited(fact, options))
    for fact in chain(_of_edits(out, source, options), unasked):
        if fact.name not in seen:
            seen.add(fact.name)
            yield fact


def _is_edited(fact: Fact, options: Options) -> bool:
    return is_edited(fact.key.partition("[")[0].removeprefix(DOCUMENT), options)


def _faults_of(
    out: TensorIndex, source: TensorIndex, options: Options, content: Callable[[], Content]
) -> Iterator[Fact]:
    if out.adapter is not None and source.adapter is not None:
        yield from adapter_faults(out, source)
    made = out.metadata_kind is MetadataKind.TYPED is not source.metadata_kind
    if made and source.adapter is None and (out.config or out.tower):
        yield from general_faults(out, source, options)
        yield from tower_faults(out, source.tower) if source.tower is not None and out.tower is not None else ()
    elif made and not (source.adapter or source.config or source.tower):
        yield from diffusion_faults(out, source, options)
    if out.adapter is not None or source.adapter is not None:
        return
    typed = out.metadata_kind is source.metadata_kind is MetadataKind.TYPED
    if out.tower is not None or source.tower is not None or source.config is None:
        if out.metadata_kind is source.metadata_kind is MetadataKind.DOCUMENT and out.config and source.config:
            yield from document_faults(out, source, options)
        yield from _of_keys(out, source, options) if typed else ()
        return
    if out.config is None:
        edited = out.metadata_kind is source.metadata_kind and (options.set_meta or options.drop_meta)
        if edited and typed:
            yield from _of_keys(out, source, options)  # a copy as no family, for a key that is asked for
        elif edited and out.metadata_kind is MetadataKind.DOCUMENT:
            yield from document_faults(out, source, options)
        elif out.metadata_kind is not MetadataKind.OWN:
            found = f"not read ({out.misfit.message})" if out.misfit else "not known"
            yield Fact("the architecture", found, repr(source.config.family))
        return
    yield from _context(out, source, options)
    if out.metadata_kind is MetadataKind.TYPED:
        yield from _of_keys(out, source, options)
    elif out.metadata_kind is MetadataKind.DOCUMENT:
        yield from document_faults(out, source, options)
    elif out.version:
        yield from _of_engine(out, source, options, content())
    if out.metadata_kind is source.metadata_kind:  # the very keys and files are the same
        return
    yield from _of_pooling(out, source)
    yield from tokenizer_faults(out, source, options.context)


def _of_pooling(out: TensorIndex, source: TensorIndex) -> Iterator[Fact]:
    """The fault of an output that makes another embedding of a text."""
    stored = stored_value(out, f"{out.architecture}.{_POOLS}")
    if stored == _RANKS:  # by a head, whatever stands beside it
        return
    found, meant = stored or _pooling(out), _pooling(source)
    stated = source.metadata_kind is MetadataKind.TYPED and out.metadata_kind is MetadataKind.DOCUMENT
    if out.metadata_kind is MetadataKind.TYPED or (stated and out.path.is_dir()):
        key = _POOLED if stated else f"{out.architecture}.{_POOLS}"
        alone = source.metadata_kind is not MetadataKind.TYPED and key not in _own_keys(out)  # some always pool alike
        if (meant or alone) and found != meant:
            yield Fact(key, str(found) if found else None, str(meant) if meant else None)


def _pooling(index: TensorIndex) -> int:
    """Number of a kind of pooling (``llama_pooling_type``).

    0 where none of them is stated.
    """
    table = {int(number): words for number, words in needed()["pooling"].items()}
    if index.metadata_kind is MetadataKind.TYPED:
        stored = stored_value(index, f"{index.architecture}.{_POOLS}")
        return stored if stored in table else 0
    files = beside(index)
    modules = json.loads(read_whole(files[_MODULES])) if _MODULES in files else []
    types = [module for module in modules if isinstance(module, dict) and str(module.get("type")).endswith(".Pooling")]
    name = f"{types[0].get('path')}/config.json" if types else ""
    document = json.loads(read_whole(files[name])) if name in files else {}
    found = (n for n, (old, new) in table.items() if document.get(old) is True or document.get("pooling_mode") == new)
    return next(found, 0)


def check_statements(
    out: TensorIndex,
    source: TensorIndex,
    options: Options,
    path: Path | str,
    *,
    named: Mapping[str, Path] | None = None,
) -> None:
    """Hold everything but tensors of an output against its source.

    Args:
        options, path: of the conversion; what errors call the output.
        named: document -> where it is, if not beside the output.
    """
    content = cache(partial(content_of_index, out, named))
    found = chain(faults_of(out, source, options, content), _of_new_engine_file(out, options, content))
    faults = [str(fact) for fact in islice(found, ENOUGH)]
    if faults:
        raise VerifyError("verify.content", faults[0], path=path, details=listed(faults[1:]), hint=HINT)


def _context(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    found = unasked_differences(out, source, options).get("context_length")
    if found is None:
        return
    made = source.metadata_kind is MetadataKind.TYPED and out.metadata_kind is not MetadataKind.TYPED  # of a GGUF
    if out.config is None or (out.config.rope_theta is None and not made):  # by a table of positions, or not asked for
        return
    row = FAMILIES[out.config.family].parameters.get("context")
    if row is not None and all(cell.unread for cell in row.key_cells("hf")) and out.format != source.format:
        return  # no class reads it, which a note says
    wanted = options.context or found[1]
    if found[0] != wanted and out.metadata_kind is not MetadataKind.OWN:
        yield Fact("context_length", str(found[0]), str(wanted))


# -- Values that somebody asked for ------------------------------------------------------------------------------------


#: Key, document, its value in each of its tables, and whether one of these is what was asked for.
_EditTarget = tuple[str, str, Mapping[str, Any], Callable[[Any], bool]]


def _of_edits(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    """Faults of keys that were set, and say something else or nothing."""
    copied = out.metadata_kind is MetadataKind.DOCUMENT and out.format == source.format
    text = text_key(document_of(out.metadata)) if copied else ""
    own = {f"{part}.{table}".strip(".") for part in ("", text) for table in ("", *TABLES_OF_ROPE)}
    for edited, value in dict(options.set_meta).items():
        if is_named((edited,), options.drop_meta):  # which are left out of what was set
            continue
        for key, file, found, fits in _edit_targets(out, edited, value):
            wrong = {} if any(map(fits, found.values())) else found or {"": None}
            if copied and file == CONFIG_NAME and not wrong:  # every other table says what it did, or is set, too
                before = dict(_at(document_of(source.metadata), key))
                set_there = [before.get(place) for place in own & found.keys() if fits(found[place])]
                alike = own & found.keys() if "." not in key else ()  # a path is of one place
                stale = {place for place in alike if before.get(place) in set_there}
                others = ((place, now) for place, now in found.items() if not fits(now))
                wrong = {place: now for place, now in others if place in stale or unequal(now, before.get(place))}
            for now in [*wrong.values()][:1]:
                yield Fact(key, shown(now), value, file)


def _edit_targets(out: TensorIndex, edited: str, text: str) -> Iterator[_EditTarget]:
    """Targets of a key that was set, and what fits there."""
    file, _, path = edited.rpartition(":")
    role, found = re.sub("_token(_id)?$", "", edited), out.metadata
    header = f"{METADATA}.{edited.removeprefix(f'{METADATA}.')}"
    if out.metadata_kind is MetadataKind.TYPED:
        roles = f"tokenizer.ggml.{ALL_ROLES.get(role, role)}_token_id" if role != edited else ""
        key = next((key for key in (edited, roles, f"tokenizer.{edited}") if key in found), edited)
        if key in found or out.tower is None:  # a tower has keys of its own
            yield key, "", {"": stored_value(out, key)} if key in found else {}, lambda _: _has_value(out, key, text)
        return
    if out.metadata_kind is not MetadataKind.DOCUMENT:
        return
    if header in found or header == edited:
        yield header, "", {"": stored_value(out, header)}, lambda now: now == text
        return
    files = beside(out)
    documents = {name: json.loads(read_whole(files[name])) for name in _EDITED_FILES if name in files}
    documents[CONFIG_NAME] = document_of(found)
    if edited == _TEMPLATE:
        yield _TEMPLATE, "", {"": templates_of(files).get("default")}, lambda now: now == _lines(text)
    elif edited.endswith("_token") and role in ALL_ROLES and SETTINGS in documents:
        now, words = documents[SETTINGS].get(edited), tokens_of(out)
        yield edited, SETTINGS, {"": now.get("content") if isinstance(now, dict) else now}, lambda one: one == text
        for name in (CONFIG_NAME, GENERATION):
            if numbers := dict(_at(documents.get(name), f"{edited}_id")):
                yield f"{edited}_id", name, numbers, lambda number: words.get(number) == text
    else:
        path = path.removeprefix(f"{PART}.")  # which readers open
        there = {name: dict(_at(document, path)) for name, document in documents.items() if name == (file or name)}
        for name in [name for name in there if there[name]] or [file or CONFIG_NAME]:
            yield path, name, there.get(name, {}), partial(_is_read, text=text)


def _lines(text: str) -> str:
    return re.sub(r"\r\n?", "\n", text.encode("utf-8", "replace").decode())


def _has_value(out: TensorIndex, key: str, text: str) -> bool:
    """Whether a key of a GGUF has the value that a text is, in its type."""
    kind, stored = out.metadata[key].type, stored_value(out, key)
    text, words = text.removeprefix(f"{kind}:"), stored_value(out, TOKENS) if key.endswith("_token_id") else None
    if words and isinstance(stored, int) and stored < len(words) and words[stored] == text:  # a token by its text
        return True
    with suppress(ValueError, OverflowError):
        if kind == "str":
            return bool(stored == text)
        meant = json.loads(text)
        if kind in ("f32", "arr[f32]"):
            return not np.any(np.asarray(stored, "<f4").view("<u4") != np.asarray(meant, "<f4").view("<u4"))
        return not unequal(stored, meant) and isinstance(stored, bool) == isinstance(meant, bool)
    return bool(kind == "arr[str]" and stored == [item.strip() for item in text.split(",") if item.strip()])


def _at(document: Any, path: str, place: str = "") -> Iterator[tuple[str, Any]]:
    """Tables that have a key, and its values; a word of RoPE is in two."""
    if isinstance(document, dict):
        table, _, word = path.rpartition(".")
        first, _, rest = path.partition(".")
        if path in document:
            yield place, document[path]
        elif rest and isinstance(document.get(first), dict):
            yield from _at(document[first], rest, f"{place}.{first}".strip("."))
        elif table in TABLES_OF_ROPE:
            yield from _at(document, word, place)
        for name, value in document.items():
            if isinstance(value, dict) and not (rest and name == first):
                yield from _at(value, path, f"{place}.{name}".strip("."))


def _is_read(value: Any, text: str) -> bool:
    """Whether a value of a document is what a text says: JSON, or the text."""
    meant: Any = text
    with suppress(ValueError):
        meant = json.loads(text)
    alike = not unequal(strictly(value), strictly(meant)) and isinstance(value, bool) == isinstance(meant, bool)
    return bool(value == text) or alike


# -- Metadata of a GGUF -----------------------------------------------------------------------------------------------


def _stored(index: TensorIndex, key: str) -> Any:
    """Bytes of an array or of a number; else the value."""
    found = index.metadata[key]
    raw = getattr(getattr(found, "value", None), "raw", None)
    return bytes(raw()) if raw is not None else getattr(found, "raw", b"") or getattr(found, "value", None)


def _weighed(options: Options) -> dict[str, Any]:
    """Keys on the importance matrix that an option names."""
    if options.imatrix is None:
        return {}
    found = read_imatrix(options.imatrix)
    labels = {"file": options.imatrix.name, "dataset": found.dataset}
    labels = {key: text.encode(errors="replace")[:_MAX_BYTES].decode(errors="ignore") for key, text in labels.items()}
    counts = {"entries_count": len(found.matrices), "chunks_count": found.chunks}
    return {f"{_QUANTIZED}imatrix.{key}": value for key, value in (labels | counts).items() if value}


def _of_quantizing(index: TensorIndex) -> dict[str, Any]:
    return {key: stored_value(index, key) for key in index.metadata if key.startswith(_QUANTIZED)}


def _still_weighed(out: TensorIndex, source: TensorIndex, options: Options) -> dict[str, Any]:
    """Keys on blocks, without those on a matrix that no block is weighed by."""
    there, recorded = {one.name: one.dtype for one in source.stored}, _of_quantizing(source)
    types = {(there[one.name], one.dtype) for one in out.stored if one.name in there}
    unchanged = all(was is now for was, now in types) or any(was is now and now.block > 1 for was, now in types)
    gone = options.imatrix is not None or not unchanged
    return {key: value for key, value in recorded.items() if not (gone and key.startswith(f"{_QUANTIZED}imatrix."))}


def _of_keys(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    taken = taken_by_default(out)
    yield from unlike(_of_quantizing(out), _still_weighed(out, source, options) | _weighed(options))
    if source.metadata_kind is not MetadataKind.TYPED:
        yield from (
            Fact(key, None, "one") for key in dict.fromkeys(_needed_keys(out, source)) if key not in out.metadata
        )
        rows = out.tensors["token_embedding.weight"].shape[0] if "token_embedding.weight" in out.tensors else None
        sizes = {f"{out.architecture}.vocab_size": rows, **dict(_sizes_of_a_head(out, source))}
        yield from unlike({key: stored_value(out, key) for key in sizes}, sizes, other=_are_other_numbers)
        assert out.config is not None
        own, known = _own_keys(out), known_types(out.architecture, out.config.family)
        pattern = rf"{re.escape(out.architecture)}\.(?!rope\.scaling|{_POOLS})"  # those two are compared as numbers
        for key in sorted(out.metadata.keys() - {key for key in out.metadata if key.startswith(_OF_FILES)}):
            kind, kinds = out.metadata[key].type, types_of(key, known)
            of_model = key.startswith(f"{out.architecture}.")
            stray = re.match(pattern, key) if of_model else not kinds or is_named((key,), needed()["strays"]["never"])
            if stray and key not in own and taken.get(key) != (kind, stored_value(out, key)):
                yield Fact(key, shown(stored_value(out, key)), None)
            elif kinds and kind not in kinds and not kind.startswith("arr["):  # llama.cpp stops at another type
                yield Fact(key, kind, kinds[0])
        if source.metadata_kind is MetadataKind.OWN:  # its words are not how a text is cut
            ours = {key: stored_value(out, key) for key in out.metadata if key.startswith("tokenizer.")}
            template = source.metadata.get(_TEMPLATE) or None
            yield from unlike(ours, {"tokenizer.ggml.model": "no_vocab", f"tokenizer.{_TEMPLATE}": template})
        return
    behind = any(name.startswith("dense_") for name in source.tensors.keys() - out.tensors.keys())
    for key in (*source.metadata, *sorted(out.metadata.keys() - source.metadata.keys())):
        if behind and re.search(_OF_LAYERS, key):  # without them, the keys would be of rows that nothing makes
            if key in out.metadata:
                yield Fact(key, shown(stored_value(out, key)), None)
        elif re.match(_OF_THE_FILE, key) or (options.context and key.endswith(".context_length")):
            continue
        elif key not in out.metadata:
            if taken.get(key) != (source.metadata[key].type, stored_value(source, key)):
                yield Fact(key, None, shown(stored_value(source, key)))
        elif key not in source.metadata:
            implied = re.match(_IMPLIED, key) or (options.context and key.endswith(".original_context_length"))
            default, found = taken.get(key), (out.metadata[key].type, stored_value(out, key))
            if not implied and found != default:
                yield Fact(key, _typed(*found), _typed(*default) if default else None)
        elif _stored(out, key) != _stored(source, key):
            ours, expected = stored_value(out, key), stored_value(source, key)
            if ours != expected:
                yield first_difference(key, ours, expected)


def _typed(kind: str, value: Any) -> str:
    return f"{shown(value)} ({kind})"


def _are_other_numbers(found: Any, meant: Any) -> bool:
    return type(found) is type(meant) is int and found != meant


def taken_by_default(index: TensorIndex) -> dict[str, tuple[str, Any]]:
    """Keys of a GGUF -> types and values that llama.cpp takes without them.

    Of any architecture (``load_hparams`` of llama-model.cpp, ``llama_vocab::impl::load``), as far as they are known.
    """
    if index.metadata_kind is not MetadataKind.TYPED:
        return {}
    architecture = index.architecture
    taken: dict[str, tuple[str, Any]] = {f"{architecture}.rope.freq_base": ("f32", 10000.0)}
    if guessed := plain_types(index):  # by the types of tensors (llama_model_loader)
        stored = stored_value(index, FILE_TYPE)
        taken[FILE_TYPE] = ("u32", stored if stored in guessed else min(guessed))
    width = stored_value(index, f"{architecture}.embedding_length")
    heads = stored_value(index, f"{architecture}.attention.head_count")
    if type(width) is int and type(heads) is int and heads > 0:
        sizes = needed()["llama_cpp"]["of_a_head"]
        taken |= {f"{architecture}.{key}": ("u32", width // heads) for key in sizes}
    kinds = stored_value(index, "tokenizer.ggml.token_type")
    unread = stored_value(index, "tokenizer.ggml.model") in needed()["unread"]["unknown"]
    if unread and isinstance(kinds, list) and kinds.count(UNKNOWN_TYPE) == 1:  # types say which it is
        taken["tokenizer.ggml.unknown_token_id"] = ("u32", kinds.index(UNKNOWN_TYPE))
    return taken


def required_keys(index: TensorIndex) -> Iterator[str]:
    """Keys of a GGUF that llama.cpp does not load such a model without.

    Some are needed only of models that have what they are about; they count where the other model says them.
    """
    table, architecture = needed()["llama_cpp"], index.architecture
    yield from ("tokenizer.ggml.model",) if TOKENS in index.metadata else ()
    for key in (*table["always"], *table["everywhere"]):
        if architecture not in table["but"].get(key, ()):
            yield f"{architecture}.{key}"
    for key, architectures in table["only"].items():
        if architecture in architectures:
            yield f"{architecture}.{key}"
    for key, of in table["several"].items():
        number = stored_value(index, f"{architecture}.{of}")
        if isinstance(number, int) and number > 1:
            yield f"{architecture}.{key}"


def _own_keys(out: TensorIndex) -> set[str]:
    """Keys that rows of a GGUF's family have."""
    assert out.config is not None
    family = FAMILIES[out.config.family]
    cells = {cell.key for row in family.parameters.values() for cell in row.key_cells("gguf")}
    return {full_key(out.architecture, key) for key in cells} | {row.key for row in family.tensors.values()}


def _sizes_of_a_head(out: TensorIndex, source: TensorIndex) -> Iterator[tuple[str, Any]]:
    """Keys of the sizes of a head, and what rows of the family say they are."""
    assert source.config is not None
    scope = source.config.scope
    for row in FAMILIES[source.config.family].parameters.values():
        for cell in row.key_cells("gguf"):
            if cell.key in needed()["llama_cpp"]["of_a_head"] and cell.write is None and not cell.alias:
                follows = row.value is not None and row.value.names <= scope.keys()
                value = row.value.value(scope) if follows and row.value is not None else scope.get(row.name)
                yield f"{out.architecture}.{cell.key}", value


def _needed_keys(out: TensorIndex, source: TensorIndex) -> Iterator[str]:
    yield from needed()["keys"].get(out.format, ())
    architecture, config = out.architecture, source.config
    assert config is not None
    table = needed()["llama_cpp"]
    lengths = (key for key, names in table["only"].items() if "_length_" in key and architecture in names)
    yield from (f"{architecture}.{key}" for key in (*table["always"], *lengths))
    family, scope, sizes = FAMILIES[config.family], config.scope, dict[str, Any]()
    for row in family.parameters.values():
        cells = [cell for cell in row.key_cells("gguf") if not cell.alias and not cell.instead and cell.when is None]
        value = scope.get(row.name)
        sizes |= {cell.key: value for cell in cells}
        if cells and value is not None and not isinstance(value, (list, tuple)) and not row.optional:
            key = cells[0].key
            yield key.removeprefix("/") if key.startswith("/") else f"{architecture}.{key}"
    for key in table["of_a_head"] if {"heads", "hidden"} <= scope.keys() else ():
        entry = family.metadata.keys.get(key)
        same = entry.same_as if entry else None
        size = same.value(scope) if same and same.names <= scope.keys() else sizes.get(key)
        if isinstance(size, int) and isinstance(scope["heads"], int) and size * scope["heads"] != scope["hidden"]:
            yield f"{architecture}.{key}"
    model = stored_value(out, "tokenizer.ggml.model")
    if model not in (None, "none", "no_vocab") or TOKENS in out.metadata:
        yield TOKENS
        yield from (f"tokenizer.ggml.{key}" for key in needed()["tokenizer"].get(str(model), ()))
    else:
        yield f"{architecture}.vocab_size"  # the rows that it has without words (llama_vocab::impl::load)


# -- Documents of the engine ------------------------------------------------------------------------------------------


def _of_engine(out: TensorIndex, source: TensorIndex, options: Options, content: Content) -> Iterator[Fact]:
    """Faults in the documents of a bump file, and in its words.

    Looked for by ``build_ir_v7.py`` and ``src/ckernel_ir.c``; the keys stand in a table.
    Numbers are those of the header, which the reader holds against the tensors, and of the source's configuration.
    """
    assert source.config is not None
    config, header = source.config, out.facts["header"]
    table, own = needed()["engine"], source.metadata_kind is MetadataKind.OWN  # may have biases of zeros
    bias = source.tensors.get("layers.0.attention.q.bias")
    biased = bias is not None and not is_named((bias.name, bias.source), options.drop)
    numbers = {
        "rope_theta": config.rope_theta,
        "rms_eps": config.norm_eps,
        "tie_word_embeddings": "output.weight" not in out.tensors,
        "has_attention_biases": None if own else biased,
        "has_qk_norm": "layers.0.attention.q_norm.weight" in source.tensors,
        "attn_out_dim": header.num_heads * header.head_dim,
        **{key: getattr(header, field, None) for key, field in table["fields"].items()},
        **table["plain"],
    }
    documents = {name: json.loads(data) for name, data in content.files.items() if name.endswith(".json")}
    for name, keys in table["documents"].items():
        file, _, part = name.partition(":")
        whole = documents.get(file, {})
        stated = whole.get(part, {}) if part else whole
        for key in keys if whole else ():
            meant = numbers.get(key)
            if stated.get(key) is None:
                yield Fact(f"{part}.{key}".removeprefix("."), None, "one", file)
            elif meant is not None and unequal(stated[key], meant):
                yield Fact(f"{part}.{key}".removeprefix("."), shown(stated[key]), shown(meant), file)
    yield from engine_words(content.keys, source, int(header.vocab_size))


def _of_new_engine_file(out: TensorIndex, options: Options, content: Callable[[], Content]) -> Iterator[Fact]:
    """Faults of the engine's releases, and of what its runner fills in later."""
    table, file = needed()["engine"], "weights_manifest.json"
    files = content().files if out.metadata_kind is MetadataKind.OWN else {}
    document = json.loads(files.get(file, "{}"))
    for key in table["later"]:
        if document.get(key) is not None:
            yield Fact(key, shown(document[key]), None, file)
    releases, release = document.get("config", {}).get("ckconv_engines"), options.engine or table["release"]
    named_types = options.dtype != "engine" or options.quantize  # which another release may compute
    known = isinstance(releases, list) and {*releases} <= {*table["releases"]}
    if document and not options.trainable and not (known and (not releases or release in releases or named_types)):
        yield Fact("config.ckconv_engines", shown(releases), shown([release]), file)


# -- Keys of a GGUF that was made of a checkpoint ----------------------------------------------------------------------


def tower_faults(out: TensorIndex, tower: Tower) -> Iterator[Fact]:
    """Faults of a tower's numbers, for which its family has keys."""
    items = keyed_values(tower_family(tower.family).parameters.values(), tower.parameters, "gguf")
    meant = {full_key(out.architecture, key): value for key, value in items if value is not None}
    own = meant.keys() | {key for key in out.metadata if not key.startswith(("general.", _PARTS))}
    yield from unlike({key: stored_value(out, key) for key in own}, meant, other=_other)


def diffusion_faults(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    """Faults of the keys of a model that diffuses, which has few of them."""
    skipped = (FILE_TYPE, ORIGINAL_SHAPE, _PARTS)  # shapes are compared
    found = {key: stored_value(out, key) for key in out.metadata if not key.startswith(skipped)}
    yield from unlike(found, {"general.architecture": source.architecture, VERSION_KEY: needed()["general"]["version"]})
    yield from file_type_faults(out, options)


def _other(found: Any, meant: Any) -> bool:
    if isinstance(found, list | tuple) and isinstance(meant, list | tuple):
        return len(found) != len(meant) or any(map(differ, found, meant))
    return differ(found, meant)


# -- Adapters: a copy says what its source does, one for another program what ``needed.toml`` has, and what follows ----

_ENDING = r"\.(lora_(embedding_)?[ABab](\.weight)?|lora_magnitude_vector|m)$"
_INNER = ".base_layer"

#: Instead of a value: no such key is written.
_NOTHING = object()


def adapter_faults(out: TensorIndex, source: TensorIndex) -> Iterator[Fact]:
    """Everything that an adapter says otherwise than its source."""
    assert source.adapter is not None
    typed = out.metadata_kind is MetadataKind.TYPED
    file, found = "" if typed else ADAPTER_CONFIG, _stated_by(out)
    heads = _head_counts(source, out.architecture) if typed else {}
    copied = out.format == source.format and bool(source.metadata)  # not of a task within a checkpoint
    meant = {**(_stated_by(source) if copied else _made(out, source)), **heads}
    counted = tuple(key.format(arch=out.architecture) for key in HEAD_KEYS.values())
    free = counted if copied else tuple(needed()["adapters"][out.format]["numbers"])
    for key in sorted(found.keys() | meant.keys()):
        if key not in meant:
            if key not in free:
                yield Fact(key, shown(found[key]), None, file)
        elif key not in found:
            yield Fact(key, None, shown(meant[key]) or "null", file)
        elif type(found[key]) is not type(meant[key]) or unequal(found[key], meant[key]):
            yield Fact(key, shown(found[key]), shown(meant[key]), file)
    for key in () if copied or typed else free:
        if key not in found:
            yield Fact(key, None, "one", file)


def _stated_by(index: TensorIndex) -> dict[str, Any]:
    """Keys of a header, or of a configuration with inner ones of MLX."""
    if index.metadata_kind is MetadataKind.TYPED:
        return {key: stored_value(index, key) for key in index.metadata}
    document = document_of(index.metadata)
    inner = document.get("lora_parameters")
    if isinstance(inner, dict):
        document |= {f"lora_parameters.{key}": value for key, value in inner.items()}
        del document["lora_parameters"]
    return document


def _made(out: TensorIndex, source: TensorIndex) -> dict[str, Any]:
    """Statements that follow from the source and from what is stored."""
    from ckconv.families.adapters import families_of, family_named, local_path, transposing

    adapter = source.adapter
    assert adapter is not None
    name, base, document = adapter.base_name, adapter.base, document_of(out.metadata)
    weighed = any(Role.MAGNITUDE in module.roles for module in adapter.modules.values())
    paths = {re.sub(_ENDING, "", stored.name.removeprefix(PEFT_PREFIX)) for stored in out.stored}
    parameters = document.get("target_parameters")
    if isinstance(parameters, list):  # the paths are those of their modules, one inside the other where there are two
        parents = [str(path).rpartition(".")[0] for path in parameters]
        inside = {parent + _INNER * number for parent in parents for number in range(parents.count(parent))}
        parameters = parameters if inside <= paths else sorted(paths)
        paths -= inside
    seen = tower_of_document(base.raw) if base else None
    whole = seen is not None and MLX_VLM.row in seen.engines
    family = FAMILIES[base.family] if base else family_named(source.architecture)
    families = [family.name] if family else families_of(module.path for module in adapter.modules.values())
    task, prompt = adapter.task or (None, None)
    known: dict[str, Any] = {
        "architecture": family.gguf if family else out.architecture,
        "base": name or _NOTHING,
        "base or null": name or None,
        "bases": 1 if name else _NOTHING,
        "layers": base.num_layers if base else -1,  # mlx-lm takes the last ones, and below 1 all
        "local paths": sorted({path if whole else local_path(path) or path for path in paths}),
        "method": "dora" if weighed else "lora",
        "null": None,
        "parameters": parameters if isinstance(parameters, list) else _NOTHING,
        "paths": sorted(paths),
        "prompt": prompt or _NOTHING,
        "task": task or _NOTHING,
        "turned": bool(families) and transposing().issuperset(families),
        "weighed": weighed,
    }
    table = needed()["adapters"][out.format]
    meant = {key: known[word] for key, word in table["follows"].items()}
    return {**table["plain"], **{key: value for key, value in meant.items() if value is not _NOTHING}}


def _head_counts(source: TensorIndex, architecture: str) -> Mapping[str, int]:
    """Keys of a GGUF by which rows of Q and K are put in order."""
    from ckconv.families.adapters import weight_pattern

    assert source.adapter is not None
    base = source.adapter.base
    family = FAMILIES[base.family] if base else None
    if base is None or family is None or not interleaves(family):
        return {}
    fields = {FIELD_OF.get(heads_of(family, weight_pattern(name)) or "") for name in source.adapter.modules}
    return {HEAD_KEYS[field].format(arch=architecture): getattr(base, field) for field in fields if field}
