"""Statements of an output compared with its source's, by separate readers.

Nothing is planned. Hyper-parameters are those of the two readers; words, merges, scores and roles of tokens are read
here, out of the metadata of a GGUF or the documents of a checkpoint; what goes along as it is has to be the same; and
what the target's loader cannot do without has to be there (``needed.toml``, and the rows of the family that it reads).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from ckconv.core.config import CONFIG_KEYS
from ckconv.core.metadata import CONFIG_NAME, QUANTIZATION_KEYS, Content, beside, document_of, text_key
from ckconv.core.tensors import ROPE_FREQUENCIES, MetadataKind, TensorIndex, Tower, parse, stored_value
from ckconv.errors import VerifyError, listed
from ckconv.families.catalog import FAMILIES, document_words
from ckconv.families.expressions import ExpressionError
from ckconv.families.huggingface_classes import REQUIRED, UNKNOWN, UNREAD, default_of, defaults_of_mlx, unaccepted
from ckconv.families.keys import (
    BOTH,
    CONSUMERS,
    MLX_LM,
    ROPE_KEYS,
    TABLES_OF_ROPE,
    TRANSFORMERS,
    Kind,
    Parameter,
    full_key,
    unread_by,
)
from ckconv.families.names import is_beside_text
from ckconv.families.parameters import differ, scope_of
from ckconv.families.schema import MLX_VLM, TRANSFORMERS as OF_CLASSES, Family
from ckconv.families.sizes import switches
from ckconv.families.towers import tower_family
from ckconv.options import Options
from ckconv.verification.content import (
    FILE_TYPE,
    Fact,
    content_of_index,
    engine_row,
    general_faults,
    is_named,
    needed,
    of_files,
    parameter_differences,
    plain_types,
    read_whole,
    shown,
    unequal,
)
from ckconv.verification.tokenizers import (
    ALL_ROLES,
    DOCUMENT,
    TOKENS,
    UNKNOWN_TYPE,
    engine_words,
    first_difference,
    pieces,
    roles_of_keys,
    tokenizer_faults,
)

#: Keys of a GGUF that belong to its file, or say how values are stored.
_OF_THE_FILE = r"(split\.|general\.(file_type|quantization_version|alignment|size_label)$|quantize\.)"
#: Sizes of linear layers behind a model (``dense_2``).
_OF_LAYERS = r"\.(embedding_length_out|dense_[23]_feat_(in|out))$"

#: Keys of a configuration that say how values are stored, or who wrote it.
_STORED = {*QUANTIZATION_KEYS, "dtype", "torch_dtype", "transformers_version", "tie_word_embeddings", "_name_or_path"}

#: Keys of a configuration that mean the same to every library. What computes is compared as hyper-parameters: a class
#: may be told in other words, or of fewer biases.
_SAID_ALIKE = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "vocab_size"}

#: Keys that classes of one library have to be told alike.
_SAID_THERE = _SAID_ALIKE | {"architectures", "hidden_act", "hidden_activation", "activation_function"}

#: Keys that every class reads, or that choose it.
_OF_EVERY = ("architectures", "model_type", "dtype")

#: What classes call the context length besides :data:`CONFIG_KEYS`.
_LENGTHS = (
    "max_position_embeddings",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "model_max_length",
    "max_context_length",
)

#: Files that go from one checkpoint to the next as they are.
CARRIED = (
    r"(tokenizer\.json|tokenizer\.model.*|vocab\.(json|txt)|merges\.txt|added_tokens\.json|special_tokens_map\.json"
    r"|tokenizer_config\.json|generation_config\.json|chat_template\.(json|jinja)|preprocessor_config\.json|tekken\.json)"
)

#: Of these, those without which a copy of a directory generates otherwise.
_REQUIRED = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "generation_config.json")

_TIED, _TYPES, _CLASSES = "tie_word_embeddings", ("dtype", "torch_dtype"), "architectures"

#: Keys that count layers behind the last: --drop mtp leaves them out, and no class of MLX has them.
_DRAFTED = {"mtp_num_hidden_layers", "num_nextn_predict_layers"}

_EXTRACTOR = "preprocessor_config.json"

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
        options: of the conversion: what somebody asked to be another is.
        content: reads the output's metadata and documents.
    """
    said = set[str]()
    for fact in _faults_of(out, source, options, content):
        if fact.name not in said:
            said.add(fact.name)
            yield fact


def _faults_of(
    out: TensorIndex, source: TensorIndex, options: Options, content: Callable[[], Content]
) -> Iterator[Fact]:
    if out.adapter is not None and source.adapter is not None:
        from ckconv.verification.adapters import adapter_faults

        yield from _unasked(adapter_faults(out, source), options)
    made = out.metadata_kind is MetadataKind.TYPED and source.metadata_kind is MetadataKind.DOCUMENT
    if made and source.adapter is None and (out.config or out.tower):
        towers = tower_faults(out, source.tower) if source.tower is not None and out.tower is not None else ()
        yield from _unasked(chain(general_faults(out, source, options), towers), options)
    if out.adapter is not None or source.adapter is not None:
        return
    if out.tower is not None or source.tower is not None:
        if out.metadata_kind is source.metadata_kind is MetadataKind.DOCUMENT and out.config and source.config:
            yield from _of_documents(out, source, options)
        return
    if source.config is None:
        return
    if out.config is None:
        edited = out.metadata_kind is source.metadata_kind and (options.set_meta or options.drop_meta)
        if edited and out.metadata_kind is MetadataKind.TYPED:
            yield from _of_keys(out, source, options)  # a copy as no family, for a key that is asked for
        elif edited and out.metadata_kind is MetadataKind.DOCUMENT:
            yield from _of_documents(out, source, options)
        elif out.metadata_kind is not MetadataKind.OWN:
            mine = f"not read ({out.misfit.message})" if out.misfit else "not known"
            yield Fact("the architecture", mine, repr(source.config.family))
        return
    yield from _context(out, source, options)
    if out.metadata_kind is MetadataKind.TYPED:
        yield from _of_keys(out, source, options)
    elif out.metadata_kind is MetadataKind.DOCUMENT:
        yield from _of_documents(out, source, options)
    elif out.version:
        yield from _of_engine(out, source, options, content())
    if out.metadata_kind is source.metadata_kind:  # the very keys and files are the same
        return
    yield from _of_pooling(out, source, options)
    for fact in tokenizer_faults(out, source, options.context):
        if not _is_asked(fact.key.partition("[")[0].removeprefix(DOCUMENT), options):
            yield fact


def _of_pooling(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    """The fault of an output that makes another embedding of a text."""
    if stored_value(out, f"{out.architecture}.{_POOLS}") == _RANKS:  # by a head, whatever stands beside it
        return
    mine, meant = (_pooling(index) for index in (out, source))
    stated = source.metadata_kind is MetadataKind.TYPED and out.metadata_kind is MetadataKind.DOCUMENT
    if out.metadata_kind is MetadataKind.TYPED or (stated and out.path.is_dir()):
        key = _POOLED if stated else f"{out.architecture}.{_POOLS}"
        alone = source.metadata_kind is MetadataKind.DOCUMENT and key not in _own_keys(out)  # some always pool alike
        if (meant or alone) and mine != meant and not _is_asked(key, options):
            yield Fact(key, str(mine) if mine else None, str(meant) if meant else None)


def _pooling(index: TensorIndex) -> int:
    """Number of a kind of pooling (``llama_pooling_type``).

    0 where none of them is said.
    """
    table = {int(number): words for number, words in needed()["pooling"].items()}
    if index.metadata_kind is MetadataKind.TYPED:
        said = stored_value(index, f"{index.architecture}.{_POOLS}")
        return said if said in table else 0
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
    found = parameter_differences(out, source).get("context_length")
    if found is None or options.set_meta or options.drop_meta:
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


def _unasked(facts: Iterable[Fact], options: Options) -> Iterator[Fact]:
    return (fact for fact in facts if not _is_asked(fact.key, options))


def _is_asked(key: str, options: Options) -> bool:
    """Whether an option asks for another value of a key, or for none.

    By the key, by ``FILE:KEY``, an inner key or a token's text.
    """
    short = key.removeprefix("tokenizer.").removeprefix("ggml.")
    role = next((ours for ours, theirs in ALL_ROLES.items() if short == f"{theirs}_token_id"), short)
    keys = (key, short, f"{role}_token", f"{role}_token_id", _of_rope(key))
    for asked, _ in options.set_meta:
        name = asked.rpartition(":")[2]
        if asked == key or not {name, name.partition(".")[0], f"{name}_id", _of_rope(name)}.isdisjoint(keys):
            return True
    return any(fnmatchcase(name, glob.rpartition(":")[2]) for glob in options.drop_meta for name in keys)


def _of_rope(key: str) -> str:
    """The word alone: it is edited in each table of RoPE."""
    table, _, word = key.rpartition(".")
    return word if table in TABLES_OF_ROPE else key


# -- Metadata of a GGUF -----------------------------------------------------------------------------------------------


def _stored(index: TensorIndex, key: str) -> Any:
    """Bytes of an array or of a number; else the value."""
    found = index.metadata[key]
    raw = getattr(getattr(found, "value", None), "raw", None)
    return bytes(raw()) if raw is not None else getattr(found, "raw", b"") or getattr(found, "value", None)


def _of_keys(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    taken = taken_by_default(out)
    if source.metadata_kind is not MetadataKind.TYPED:
        for key in dict.fromkeys(_needed_keys(out, source)):
            if key not in out.metadata and not _is_asked(key, options):
                yield Fact(key, None, "one")
        rows = out.tensors["token_embedding.weight"].shape[0] if "token_embedding.weight" in out.tensors else None
        for key, meant in ((f"{out.architecture}.vocab_size", rows), *_sizes_of_a_head(out, source)):
            number = stored_value(out, key)
            if type(number) is int and type(meant) is int and number != meant and not _is_asked(key, options):
                yield Fact(key, shown(number), shown(meant))
        if source.metadata_kind is MetadataKind.DOCUMENT:
            said = rf"{re.escape(out.architecture)}\.(?!rope\.scaling|{_POOLS})"  # those two are compared as numbers
            for key in sorted(key for key in out.metadata.keys() - _own_keys(out) if re.match(said, key)):
                value = stored_value(out, key)
                if taken.get(key) != (out.metadata[key].type, value) and not _is_asked(key, options):
                    yield Fact(key, shown(value), None)
        return
    behind = any(name.startswith("dense_") for name in source.tensors.keys() - out.tensors.keys())
    for key in source.metadata:
        if behind and re.search(_OF_LAYERS, key):  # without them, the keys would be of rows that nothing makes
            if key in out.metadata:
                yield Fact(key, shown(stored_value(out, key)), None)
            continue
        if (
            _is_asked(key, options)
            or re.match(_OF_THE_FILE, key)
            or (options.context and key.endswith(".context_length"))
        ):
            continue
        if key not in out.metadata:
            if taken.get(key) != (source.metadata[key].type, stored_value(source, key)):
                yield Fact(key, None, shown(stored_value(source, key)))
        elif _stored(out, key) != _stored(source, key):
            ours, theirs = stored_value(out, key), stored_value(source, key)
            if ours != theirs:
                yield first_difference(key, ours, theirs)


def taken_by_default(index: TensorIndex) -> dict[str, tuple[str, Any]]:
    """Keys of a GGUF -> types and values that llama.cpp takes without them.

    Of any architecture (``load_hparams`` of llama-model.cpp, ``llama_vocab::impl::load``), as far as they are known.
    """
    if index.metadata_kind is not MetadataKind.TYPED:
        return {}
    architecture = index.architecture
    taken: dict[str, tuple[str, Any]] = {f"{architecture}.rope.freq_base": ("f32", 10000.0)}
    if guessed := plain_types(index):  # by the types of tensors (llama_model_loader)
        said = stored_value(index, FILE_TYPE)
        taken[FILE_TYPE] = ("u32", said if said in guessed else min(guessed))
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
    return {f"{out.architecture}.{key}" for key in cells} | {row.key for row in family.tensors.values()}


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
        said = family.metadata.keys.get(key)
        same = said.same_as if said else None
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
    """Faults of the engine's ages, and of what its runner fills in later."""
    table, file = needed()["engine"], "weights_manifest.json"
    files = content().files if out.metadata_kind is MetadataKind.OWN else {}
    document = json.loads(files.get(file, "{}"))
    for key in table["later"]:
        if document.get(key) is not None:
            yield Fact(key, shown(document[key]), None, file)
    ages, asked = document.get("config", {}).get("ckconv_engines"), options.engine or table["age"]
    named_types = options.dtype != "engine" or options.quantize  # which another age may compute
    known = isinstance(ages, list) and {*ages} <= {*table["ages"]}
    if document and not options.trainable and not (known and (not ages or asked in ages or named_types)):
        yield Fact("config.ckconv_engines", shown(ages), shown([asked]), file)


# -- Documents of a checkpoint ----------------------------------------------------------------------------------------


def _of_documents(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    mine, meant = document_of(out.metadata), document_of(source.metadata)
    yield from _of_needed(_flat(mine), source, out.format, options)
    made = out.format in CONSUMERS and out.format != source.format
    if made and out.tower is not None:
        for fact in _of_wholes(out, source, options):
            if not _is_asked(fact.key.rpartition(".")[2], options):
                yield fact
    elif made and not (out.config is None or sees(out) or sees(source)):
        pair = _flat(mine), _flat(meant)
        stated = pair[1] if source.metadata_kind is MetadataKind.DOCUMENT else {}
        found = chain(_besides(*pair, out, source, options.context), _of_stored(pair[0], stated, out))
        yield from _unasked(chain(found, _of_readers(out, source)), options)
        asked = {key.rpartition(":")[2] for key in (*dict(options.set_meta), *options.drop_meta)}
        for fact in _of_tables(pair[0], stated, out, source):
            table, word = fact.key.partition(".")[0], fact.key.rpartition(".")[2]  # a word is edited in each table
            if table not in asked and not any(_is_asked(key, options) for key in (fact.key, word)):
                yield fact
    yield from _of_total(out, source)
    if "filters" in source.facts and out.path.is_dir():  # of a file that has no such document
        yield from _of_extractor(out, source)
    row = engine_row(out)
    if out.config is not None and not _is_asked("model_type", options):
        family, key = FAMILIES[out.config.family], "model_type"
        own = row if row is not None else family.engines.get(OF_CLASSES.row)
        known = [meant.get(key), _flat(meant).get(key), family.model_type]
        known += [*family.in_huggingface.names, *((own.model_type, own.wrapped) if own is not None else ())]
        known += tower_family(out.tower.family).in_huggingface.names if out.tower is not None else ()
        if own is not None and own.wrapped and source.metadata_kind is MetadataKind.TYPED:
            yield from _unasked(_of_wrapped(mine, family, CONSUMERS[out.format]), options)
        for text in dict.fromkeys(("", text_key(mine))):
            ours, theirs = (_part(document, text) for document in (mine, meant))
            unsaid = key not in theirs and source.metadata_kind is MetadataKind.DOCUMENT
            if ours.get(key) not in [*known, theirs.get(key)] or (ours.get(key) is None and not unsaid):
                yield Fact(f"{text}.{key}".lstrip("."), shown(ours.get(key)), shown(family.model_type), CONFIG_NAME)
    one, other = QUANTIZATION_KEYS[:2]
    if one in mine and other in mine and out.format != source.format and unequal(mine[one], mine[other]):
        yield Fact(other, "another", f"what {one} says", CONFIG_NAME)
    taken = defaults_of_mlx(mine) if row is not None and not sees(out) else {}
    read = mine.get(text_key(mine), mine) if row is not None and row.wrapped else _flat(mine)
    yield from _unasked(_of_defaults(taken, read, out, source) if taken else (), options)
    for key in row.needs if row is not None and not sees(out) else ():
        if taken and "." not in key:
            continue
        told = out.format != source.format or key in _flat(meant)  # a copy lacks what its source does
        table, _, word = key.rpartition(".")
        holder = mine.get(table) or {word: None} if table else _flat(mine)  # a table that is not there lacks nothing
        if told and word not in holder and not _is_asked(key, options):
            yield Fact(key, None, "one", CONFIG_NAME)
    inner = mine.get(text_key(mine)) if not text_key(meant) else None
    if isinstance(inner, dict):  # a class that wraps the text model's
        mine = _flat(mine)
    if out.shard_index is not None:
        places = json.loads(read_whole(out.shard_index))["weight_map"]
        for stored in out.stored:
            if places.get(stored.name) != stored.extent.path.name:
                place = shown(places.get(stored.name))
                yield Fact(f"weight_map.{stored.name}", place, repr(stored.extent.path.name), out.shard_index.name)
    headed = out.config is not None and "output" in FAMILIES[out.config.family].tensors  # no classifier
    tied = headed and "output.weight" not in out.tensors
    for key in dict.fromkeys((_TIED, *(document_words(FAMILIES[out.config.family], "tied") if out.config else ()))):
        said, before = (document.get(key, default_of(document, key)) for document in (mine, meant))
        copied = out.format == source.format and "output.weight" not in source.tensors and said == before
        if tied and said is False and not copied and not _is_asked(key, options):
            yield Fact(key, shown(said), "true", CONFIG_NAME)
    if source.metadata_kind is not MetadataKind.DOCUMENT:
        return
    text, alike = text_key(meant), out.format == source.format
    if text and (not text_key(mine) or (sees(source) and not sees(out))):  # the text model alone
        inner, meant, mine = meant[text], dict(meant[text]), _flat(mine)
    elif text and not alike:  # a library's own document around the text model: that one's words count
        mine, meant = _flat(mine), _flat(meant)
    free = _STORED | ({*CONFIG_KEYS["context_length"], *_LENGTHS} if options.context else set())
    said = _SAID_THERE if alike else _SAID_ALIKE
    there = said if isinstance(inner, dict) or text_key(meant) else said | {"architectures"}
    for key, value in meant.items():
        if key in free or _is_asked(key, options) or not (alike or key in there) or _is_no_token(key, value, meant):
            continue
        if key not in mine:
            yield Fact(key, None, shown(value), CONFIG_NAME)
        elif value is None and key == "vocab_size":
            continue  # the rows of the embedding, which are compared
        elif unequal(mine[key], value) and key in said and not (key == "architectures" and isinstance(inner, dict)):
            yield Fact(key, shown(mine[key]), shown(value), CONFIG_NAME)
    ours, theirs = beside(out), beside(source)
    for name in theirs:
        if not re.fullmatch(CARRIED, name):
            continue
        if name not in ours:
            if name in _REQUIRED and out.path.is_dir() and not _is_asked(name, options):
                yield Fact(name, None, "one")
        elif any(mine != meant for mine, meant in zip_longest(pieces(ours[name]), pieces(theirs[name]))):
            whole = ["chat_template"] if name == "chat_template.jinja" else []
            for fact in of_files(name, read_whole(ours[name]), read_whole(theirs[name]), ours[name]):
                if not any(_is_asked(word, options) for word in (fact.key.partition(".")[0], *whole)):
                    yield fact


def _besides(
    mine: Mapping[str, Any], meant: Mapping[str, Any], out: TensorIndex, source: TensorIndex, context: int
) -> Iterator[Fact]:
    """Faults of keys of a document that was made for another library.

    Each says what the source says; of another kind of source, what rows of the family and its constants say, with the
    context that was asked for, if any.
    """
    assert out.config is not None
    assert source.config is not None
    family, consumer, row = FAMILIES[out.config.family], CONSUMERS[out.format], engine_row(out)
    typed, kinds = source.metadata_kind is not MetadataKind.DOCUMENT, family.document.keys.keys
    alike = {name: key for name, key in kinds.items() if key.kind is Kind.MODIFIER}
    strict = consumer == TRANSFORMERS and not typed  # the class takes no such values
    untaken = {*unaccepted(meant, str(mine.get("model_type")))} if strict else set()
    constants = {name: key.neutral[0] for name, key in alike.items() if key.written} | {**family.document.written}
    wanted = {**(row.written if row is not None else {}), **constants}
    cells = [[cell for cell in one.key_cells("hf") if not cell.of_rope] for one in family.parameters.values()]
    words = {cell.head: {one.head for one in several} for several in cells for cell in several}
    foreign = {cell.head for several in cells for cell in several if consumer not in cell.readers}
    taken = defaults_of_mlx(mine) if consumer == MLX_LM else {key: default_of(mine, key) for key in foreign}
    foreign -= {key for key, value in taken.items() if value not in (UNREAD, UNKNOWN)}
    told_to = CONSUMERS.get(source.format, consumer)
    unread = words.keys() - {cell.head for several in cells for cell in several if told_to in cell.readers}
    if typed:
        config = replace(source.config, context_length=context or source.config.context_length)
        keys = _said_by_rows(_told_rows(family), scope_of(family, config), "hf")
        meant = wanted = wanted | {key: value for key, value in keys if "." not in key}
    free = set(needed()["documents"]["free"]) - (meant.keys() & {*_LENGTHS} if typed and not context else set())
    for key in sorted(mine.keys() | meant.keys()):
        if key in free or key in TABLES_OF_ROPE or key.endswith("_config") or key in untaken:
            continue
        there, value, known = key in mine, mine.get(key), key in words and not typed  # compared by their readers
        neutral = [key in alike and alike[key].is_neutral(document.get(key)) for document in (mine, meant)]
        neutral[1] = neutral[1] or (key in alike and told_to not in alike[key].readers)
        endless = re.search("Infinity|NaN", str(shown(meant.get(key))))  # which a strict document leaves to the class
        if endless and value == family.document.written.get(key):
            continue
        if not there:
            elsewhere = (not words[key].isdisjoint(mine) or key in unread) if known else (typed and key in foreign)
            of_one = neutral[1] and alike[key].readers != BOTH  # the class of one library has it for a default
            nothing = meant[key] is None and (not typed or default_of(mine, key) in (None, UNREAD, UNKNOWN))
            if not (nothing or endless or elsewhere or of_one):
                yield Fact(key, None, shown(meant[key]), CONFIG_NAME)
        elif known:
            continue
        elif meant.get(key) is not None:
            if unequal(value, meant[key]) and unequal(value, _strict(meant[key])) and not all(neutral):
                yield Fact(key, shown(value), shown(meant[key]), CONFIG_NAME)
        elif not (value is None or neutral[0] or (typed and key in kinds)) and unequal(value, wanted.get(key)):
            yield Fact(key, shown(value), None, CONFIG_NAME)


def _of_tables(
    mine: Mapping[str, Any], meant: Mapping[str, Any], out: TensorIndex, source: TensorIndex
) -> Iterator[Fact]:
    """Faults of tables within a document, and of what its class wants.

    Args:
        meant: the source's, empty for none: rows of the family say then what each table holds.
    """
    assert out.config is not None
    assert source.config is not None
    family, row = FAMILIES[out.config.family], engine_row(out)
    written = row.written if row is not None else {}
    for key, value in written.items():
        if not (mine.get(key) if meant.get(key) or isinstance(value, dict) else mine.get(key) == value):
            yield Fact(key, shown(mine.get(key)), shown(value), CONFIG_NAME)
    if meant:
        return
    of = out if ROPE_FREQUENCIES in source.tensors else source  # factors say the scaling, and readers compare them
    assert of.config is not None
    said = {key: v for key, v in _said_by_rows(_told_rows(family), scope_of(family, of.config), "hf") if "." in key}
    tables = {key: mine.get(key) for key in (*TABLES_OF_ROPE, *(key.partition(".")[0] for key in said))}
    scaling = out.config.rope_scaling or {}  # of one of the tables, and compared; the other says the same
    stand = {key for table in TABLES_OF_ROPE for key in tables[table] or ()}
    if not {"mscale", "mscale_all_dim"}.isdisjoint(stand):  # of which readers make the factor
        scaling = {key: value for key, value in scaling.items() if key != "attention_factor" or key in stand}
    alike = str(scaling.get("rope_type")) in ROPE_KEYS and not family.document.rope.by_layer
    for table in (key for key in TABLES_OF_ROPE if tables[key] and alike):
        words = {**scaling, **({"type": scaling["rope_type"]} if "type" in (tables[table] or ()) else {})}
        said |= {f"{table}.{key}": value for key, value in words.items() if said.get(f"{table}.{key}") is None}
    if family.document.rope.by_layer:  # the words of a scaling stand in the table of one kind of layers
        said = {key: value for key, value in said.items() if key.count(".") > 1 or not key.startswith(TABLES_OF_ROPE)}
    ours, wants = dict(_leaves(tables)), dict(_leaves({key: v for key, v in written.items() if key in tables}))
    kind = ".rope_type"
    wants |= {key: ours[key] for key in ours if key.endswith(kind) and key.count(".") > 1 and ours[key] == "default"}
    turned = (tables[TABLES_OF_ROPE[1]] or {}).items()
    part = {key: value for key, value in turned if key in ROPE_KEYS["default"].keys}
    stated = {**part, kind[1:]: "default", **scaling}
    words = {key: key.rpartition(".")[2] for key in ours if key.startswith(TABLES_OF_ROPE)}
    wants |= {key: stated[word] for key, word in words.items() if word in stated and key not in wants}
    wants[f"{TABLES_OF_ROPE[1]}.rope_theta"] = out.config.rope_theta
    for key in sorted(ours.keys() | said.keys()):
        value = wants.get(key) if said.get(key) is None else said[key]
        if unequal(ours.get(key), value):
            yield Fact(key, shown(ours.get(key)), shown(value), CONFIG_NAME)


def _leaves(tables: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values of tables within each other."""
    for key, value in tables.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{where}{key}.")
        elif where:
            yield f"{where}{key}", value


def _of_wrapped(mine: Mapping[str, Any], family: Family, consumer: str) -> Iterator[Fact]:
    """Faults of the words that a document has around its text part.

    What both say is the same, and its class reads there what the text part's does not.
    """
    inner = _part(mine, text_key(mine))
    cells = (cell for row in family.parameters.values() if not row.defaults for cell in row.key_cells("hf"))
    outer = {cell.key for cell in cells if consumer == TRANSFORMERS and default_of(inner, cell.key) is UNREAD}
    each = {_TIED, *(key for key in _SAID_ALIKE if key.endswith("_token_id"))}
    for key in sorted(((outer | each | mine.keys()) & inner.keys() | each & mine.keys()) - {"model_type"}):
        ours, theirs = mine.get(key), inner.get(key)
        if key not in inner:
            yield Fact(f"{text_key(mine)}.{key}", None, shown(ours), CONFIG_NAME)
        elif key not in mine or unequal(ours, theirs):
            yield Fact(key, shown(ours), shown(theirs), CONFIG_NAME)


def _of_defaults(
    taken: Mapping[str, Any], mine: Mapping[str, Any], out: TensorIndex, source: TensorIndex
) -> Iterator[Fact]:
    """Keys for which a class takes something else where they are missing.

    Args:
        taken: what it takes, by key.
    """
    assert source.config is not None
    family, meant = FAMILIES[source.config.family], _flat(document_of(source.metadata))
    reader = CONSUMERS.get(source.format, CONSUMERS[out.format])
    kinds = family.document.keys.keys.items()
    unread = {name for name, key in kinds if key.kind is Kind.MODIFIER and reader not in key.readers}
    read = {key: value for key, value in meant.items() if key not in unread}
    constants = {name: key.neutral[0] for name, key in kinds if key.written} | {**family.document.written}
    said = {**constants, **read, **dict(_said_by_rows(_told_rows(family), scope_of(family, source.config), "hf"))}
    for key in sorted(taken.keys() - mine.keys() - _DRAFTED):
        value, copied = said.get(key), out.format == source.format and key not in meant
        nothing = value is None or (key not in meant and value is not False and value == 0)  # no layer has it
        other = not (nothing or taken[key] is None) and unequal(value, taken[key])
        if (taken[key] is REQUIRED or other) and not copied:
            yield Fact(key, None, shown(value) if value is not None else "one", CONFIG_NAME)


def _of_wholes(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    """Faults in the document of a model that sees, made for another library.

    Every part says what the source's says, but for keys that the engine's row of the tower has. What stands there
    besides is a hyper-parameter, which readers compare, a constant, or what the source's class takes.
    """
    mine, meant = document_of(out.metadata), document_of(source.metadata)
    if out.config is None or out.tower is None or source.tower is None or text_key(mine) != text_key(meant):
        return
    text, tower = FAMILIES[out.config.family], tower_family(out.tower.family)
    whole, kinds = _flat(meant), text.document.keys.keys
    rows = (row for family in (text, tower) for row in family.parameters.values())
    read = {cell.key.rpartition(".")[2] for row in rows for cell in row.key_cells("hf")}
    floats = [needed()["documents"]["types"].get(stored.dtype.name) for stored in out.stored]
    names = [meant.get("model_type"), *text.in_huggingface.names, *tower.in_huggingface.names]
    names += [source.tower.parameters.get("class")]
    free = _STORED - {*_TYPES} | _DRAFTED
    free |= {*CONFIG_KEYS["context_length"], *_LENGTHS} if options.context else set()
    unread = {f"{text_key(meant)}.{_CLASSES}"}
    engine = tower.engines.get(MLX_VLM.row) if CONSUMERS[out.format] != TRANSFORMERS else None
    says = dict(engine.says) if engine is not None else {}
    scope = source.tower.parameters
    told = {path: one.value(scope) for path, one in says.items() if one.names <= scope.keys()}
    overruled = {text.partition(",")[0] for text in source.config.overruled} if source.config is not None else set()
    classes = [str(one.get("model_type")) for one in (meant, meant.get(text_key(meant), {}))]
    untaken = {key for one in (*classes, *text.in_huggingface.names) for key in unaccepted(whole, one)}
    foreign = unread_by(CONSUMERS.get(source.format), text.parameters.values())
    follow = [row for row in text.parameters.values() if row.value is not None]
    follows = dict(_said_by_rows(follow, scope_of(text, source.config), "hf")) if source.config is not None else {}
    there, of = {parse(name).pattern for name in out.tensors}, switches(text)
    biased = {c.key: not there.isdisjoint(of[name]) for name in of for c in text.parameters[name].key_cells("hf")}

    def walk(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str) -> Iterator[Fact]:
        of_text = where in ("", f"{text_key(mine)}.")  # other parts have words alike
        for key in sorted(ours.keys() | theirs.keys()):
            value, place = ours.get(key), f"{where}{key}"
            said = told.get(place, theirs.get(key))
            if key in free or place in says.keys() - told.keys() or place in unread:
                continue
            if isinstance(value, dict) and (isinstance(said, dict) or (said is None and key not in TABLES_OF_ROPE)):
                yield from walk(value, said or {}, f"{place}.")
            elif not (unequal(value, said) and unequal(value, _strict(said))) or key in overruled:
                continue
            elif of_text and (key in untaken or biased.get(key) is value is not None):
                continue  # the class stops at it, and the document says what the class takes, or what tensors say
            elif of_text and (follows.get(key, key) == value or (value is None and key in foreign)):
                continue  # the source's class does not read it: what it follows from is compared
            elif key == "model_type" or key in _TYPES:
                # no class of mlx-vlm reads a type
                if value not in (names if key == "model_type" else (None, whole.get(key), *floats)):
                    yield Fact(place, shown(value), shown(said), CONFIG_NAME)
            elif said is None:
                stated = whole.get(key) if of_text else None
                known = default_of(theirs, key) if stated is None else stated
                if key in TABLES_OF_ROPE and isinstance(value, dict):  # the other table, in the older words
                    same = {**(theirs.get(TABLES_OF_ROPE[1]) or value), "type": value.get("rope_type")}
                    known = {word: same.get(word) for word in value}
                neutral = key in kinds and kinds[key].is_neutral(value)
                constant = key in text.document.written and text.document.written[key] == value
                if unequal(value, known) and (stated is not None or not (key in read or neutral or constant)):
                    yield Fact(place, shown(value), shown(stated), CONFIG_NAME)
            else:
                yield Fact(place, shown(value), shown(said), CONFIG_NAME)

    if engine is not None and source.config is not None:  # each key is said, as classes have defaults of their own
        flat, each = _flat(mine), [row for row in _told_rows(text) if row.name != "context"]
        asked = {c.key for row in each for c in row.key_cells("hf") if MLX_LM in c.readers and "." not in c.key}
        wanted = dict(_said_by_rows(each, scope_of(text, source.config), "hf"))
        wanted = {key: value for key, value in wanted.items() if key in asked and value is not None}
        tied = "output.weight" not in out.tensors
        if _TIED in document_words(text, "tied"):
            wanted[_TIED] = tied
        for key, value in wanted.items():
            if key not in flat or (key == _TIED and tied and flat[key] is not True):
                yield Fact(f"{text_key(mine)}.{key}".lstrip("."), shown(flat.get(key)), shown(value), CONFIG_NAME)
    at_top = mine.get(text_key(mine), {}) if engine is not None and engine.at_top else {}
    kept = {"model_type", *tower.in_huggingface.tokens} & meant.keys()
    at_top = {key: value for key, value in at_top.items() if key not in kept}  # the text part's, whatever stood there
    yield from walk(mine, {**meant, **at_top}, "")
    for path in says:
        table, _, key = path.rpartition(".")
        if key not in ((mine.get(table) or {}) if table else mine):
            yield Fact(path, None, "one", CONFIG_NAME)


def _of_readers(out: TensorIndex, source: TensorIndex) -> Iterator[Fact]:
    """Faults of a document that its reader takes in part.

    A key switches on what no hyper-parameter says, or a class follows another one that contradicts it.
    """
    assert out.config is not None
    assert source.config is not None
    for words in ("modifiers", "overruled"):
        for text in (text for text in getattr(out.config, words) if text not in getattr(source.config, words)):
            key, _, value = text.partition(" = ")
            yield Fact(key, value or "overruled", None, CONFIG_NAME)
    kinds = [(one.config.rope_scaling or {}).get("rope_type") for one in (out, source) if one.config]
    if kinds[0] not in (None, "default", kinds[1], *ROPE_KEYS):
        yield Fact("rope_type", shown(kinds[0]), shown(kinds[1] or "default"), CONFIG_NAME)


def _strict(value: Any) -> Any:
    """A value as strict JSON says it.

    transformers 5 has objects for numbers that are not finite.
    """
    return json.loads(json.dumps(value), parse_constant=lambda word: {"__float__": word})


def _of_stored(mine: Mapping[str, Any], meant: Mapping[str, Any], out: TensorIndex) -> Iterator[Fact]:
    """Faults of what a document says of tensors, and of its class.

    Args:
        meant: the source's, empty for none.
    """
    assert out.config is not None
    family, consumer, table = FAMILIES[out.config.family], CONSUMERS[out.format], needed()["documents"]
    patterns, defaults = {parse(name).pattern for name in out.tensors}, defaults_of_mlx(document_of(out.metadata))
    headed = "output.weight" in out.tensors and "output" in family.tensors
    told = [(document_words(family, "tied"), not headed, bool(headed))] if headed else []
    for name, biases in switches(family).items():
        cells, there = family.parameters[name].key_cells("hf"), not biases.isdisjoint(patterns)
        told.append(([cell.key for cell in cells if consumer in cell.readers], there, False))
        if not meant:  # a class of the library may have the key and read it as another's, or look at nothing
            told += [([cell.key], there, False) for cell in cells if type(mine.get(cell.key)) is bool]
    for keys, there, otherwise in told:
        said = {key: mine[key] for key in keys if type(mine.get(key)) is bool}
        if not said and keys:
            unsaid = None if meant else otherwise  # of a class that nobody recorded
            taken = default_of(mine, keys[0]) if consumer == TRANSFORMERS else defaults.get(keys[0], unsaid)
            said = {keys[0]: taken} if type(taken) is bool else {}
        for key in (key for key, value in said.items() if value != there):
            yield Fact(key, shown(mine.get(key)), shown(there), CONFIG_NAME)
    floats = {table["types"][stored.dtype.name] for stored in out.stored if stored.dtype.name in table["types"]}
    for key in _TYPES:
        value = mine.get(key)
        if value not in [meant.get(key), *floats, table["types"]["F32"]] or (value is None and not meant):
            yield Fact(key, shown(value), shown(" or ".join(sorted(floats))), CONFIG_NAME)
    value, classes = mine.get(_CLASSES), family.in_huggingface.classes
    known = isinstance(value, list) and value and all(one in classes for one in value)
    if not known and not (meant and value == meant.get(_CLASSES)):
        yield Fact(_CLASSES, shown(value), shown([classes[0]]), CONFIG_NAME)


def _of_extractor(out: TensorIndex, source: TensorIndex) -> Iterator[Fact]:
    """Faults of the document about the sound that a model hears."""
    assert source.config is not None
    path = beside(out).get(_EXTRACTOR)
    mine = json.loads(read_whole(path)) if path is not None else {}
    meant = {**needed()["extractor"], "feature_size": source.config.scope["mels"]}
    for key in sorted(mine.keys() | meant.keys()):
        if unequal(mine.get(key), meant.get(key)):
            yield Fact(key, shown(mine.get(key)), shown(meant.get(key)), _EXTRACTOR)


def _of_total(out: TensorIndex, source: TensorIndex) -> Iterator[Fact]:
    """The fault of an index that says another size.

    No loader asks for it, and a copy may say what its source says (DeepSeek V3: half of it).
    """
    if out.shard_index is None or (said := _total_of(out)) in (None, _total_of(source)):
        return
    size = sum(stored.extent.nbytes for stored in out.stored)
    if said != size:
        yield Fact("metadata.total_size", shown(said), shown(size), out.shard_index.name)


def _total_of(index: TensorIndex) -> Any:
    if index.shard_index is None:
        return None
    said = json.loads(read_whole(index.shard_index)).get("metadata")
    return said.get("total_size") if isinstance(said, dict) else None


def sees(index: TensorIndex) -> bool:
    """Whether tensors of a tower are stored."""
    document = document_of(index.metadata)
    return any(is_beside_text(document, stored.name) for stored in index.stored)


def _flat(document: dict[str, Any]) -> dict[str, Any]:
    """Document with the keys of its text part over its own."""
    inner = document.get(text_key(document))
    return {**document, **inner} if isinstance(inner, dict) else document


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Table of a document under a key; for an empty key the document."""
    found = document.get(key) if key else document
    return found if isinstance(found, dict) else {}


def _is_no_token(key: str, value: Any, document: Mapping[str, Any]) -> bool:
    """The number of a token that there is not: no class takes it."""
    if not key.endswith("_token_id"):
        return False
    numbers, most = value if isinstance(value, list) else [value], document.get("vocab_size")
    most = most if type(most) is int else 0
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    return value is not None and not (whole and all(0 <= number < (most or number + 1) for number in numbers))


def _of_needed(mine: Mapping[str, Any], source: TensorIndex, format: str, options: Options) -> Iterator[Fact]:
    """Keys that a class reads, and roles of tokens that a GGUF says."""
    meant = _flat(document_of(source.metadata))
    typed = source.metadata_kind is MetadataKind.TYPED
    rows = FAMILIES[source.config.family].parameters.values() if source.config else ()
    cells = {cell.key for row in rows for cell in row.key_cells("hf")}
    for keys in needed()["keys"].get(format, ()):
        key, *others = keys.split("|")
        words = {word for words in (*CONFIG_KEYS.values(), _LENGTHS) if key in words for word in words} | {key, *others}
        asked = any(_is_asked(word, options) for word in words)
        default = default_of(mine, key)
        read = key in _OF_EVERY or (default is not UNREAD if default is not UNKNOWN else not words.isdisjoint(cells))
        if words.isdisjoint(mine) and read and not asked and (typed or not words.isdisjoint(meant)):
            yield Fact(key, None, "one", CONFIG_NAME)
    for role, number in (roles_of_keys(source) if typed else {}).items():
        key = f"{role}_token_id"
        number = next((own for own in _stored_as(source, key) if own is not None), number)
        said = mine.get(key, default_of(mine, key))
        if role == "unk" or _is_no_token(key, number, mine) or _is_asked(key, options):
            continue
        if said not in (number, UNREAD) and not (isinstance(said, list) and number in said):
            yield Fact(key, shown(None if said is UNKNOWN else said), str(number), CONFIG_NAME)


def _stored_as(source: TensorIndex, key: str) -> Iterator[Any]:
    """Values of a GGUF's keys that a family has for one of ``config.json``."""
    family = FAMILIES[source.config.family] if source.config else None
    for row in family.parameters.values() if family else ():
        if any(cell.key == key for cell in row.key_cells("hf")):
            yield from (stored_value(source, full_key(source.architecture, cell.key)) for cell in row.key_cells("gguf"))


# -- Keys of a GGUF that was made of a checkpoint ----------------------------------------------------------------------


def tower_faults(out: TensorIndex, tower: Tower) -> Iterator[Fact]:
    """Faults of a tower's numbers, for which its family has keys."""
    said = _said_by_rows(tower_family(tower.family).parameters.values(), tower.parameters, "gguf")
    meant = {full_key(out.architecture, key): value for key, value in said if value is not None}
    for key in sorted(meant.keys() | {key for key in out.metadata if key.startswith(f"{out.architecture}.")}):
        mine = stored_value(out, key)
        if key not in meant:
            yield Fact(key, shown(mine), None)
        elif mine is None or _other(mine, meant[key]):
            yield Fact(key, shown(mine), shown(meant[key]))


def _told_rows(family: Family) -> list[Parameter]:
    """Parameters that no tensor of the model says."""
    by_tensors = {"tied", *switches(family)}
    return [row for row in family.parameters.values() if row.name not in by_tensors]


def _said_by_rows(rows: Iterable[Parameter], values: Mapping[str, Any], format: str) -> Iterator[tuple[str, Any]]:
    """Keys of a format, and what rows of a family make of parameters."""
    for row in rows:
        for cell in row.key_cells(format):
            with suppress(ExpressionError):
                if cell.alias or (cell.when is not None and not cell.when.value({**values, "stated": []})):
                    continue
                value, words = values[row.name], {theirs: own for own, theirs in cell.words.items()}
                if isinstance(value, list | tuple):
                    value = [words.get(item, item) if isinstance(item, str) else item for item in value]
                elif isinstance(value, str):
                    value = words.get(value, value)
                yield cell.key, cell.write.value({**values, "it": value}) if cell.write is not None else value


def _other(mine: Any, meant: Any) -> bool:
    if isinstance(mine, list | tuple) and isinstance(meant, list | tuple):
        return len(mine) != len(meant) or any(map(differ, mine, meant))
    return differ(mine, meant)
