"""Statements of an output compared with its source's, by separate readers.

Nothing is planned. Hyper-parameters are those of the two readers; words, merges, scores and roles of tokens are read
here, out of the metadata of a GGUF or the documents of a checkpoint; what goes along as it is has to be the same; and
what the target's loader cannot do without has to be there (``needed.toml``, and the rows of the family that it reads).
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from ckconv.core.config import CONFIG_KEYS, shortest_float32
from ckconv.core.metadata import CONFIG_NAME, QUANTIZATION_KEYS, beside, document_of, text_key
from ckconv.core.named import NamedTuple
from ckconv.core.tensors import MetadataKind, TensorIndex, stored_value
from ckconv.errors import VerifyError, listed
from ckconv.families.catalog import FAMILIES
from ckconv.families.huggingface_classes import UNKNOWN, UNREAD, default_of
from ckconv.families.keys import full_key
from ckconv.families.names import is_beside_text
from ckconv.io.files import open_source
from ckconv.options import Options
from ckconv.verification.content import Fact, of_files, parameter_differences, read_whole, unequal

#: Keys that have to be there, by format, and by model of the tokenizer.
NEEDED = Path(__file__).with_name("needed.toml")

#: Keys of a GGUF that belong to its file, or say how values are stored.
_OF_THE_FILE = r"(split\.|general\.(file_type|quantization_version|alignment|size_label)$|quantize\.)"

#: Keys of a configuration that say how values are stored, or who wrote it.
_STORED = {*QUANTIZATION_KEYS, "dtype", "torch_dtype", "transformers_version", "tie_word_embeddings", "_name_or_path"}

#: Keys of a configuration that mean the same to every library. What computes is compared as hyper-parameters: a class
#: may be told in other words, or of fewer biases.
_SAID_ALIKE = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "vocab_size"),
}

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
_CARRIED = (
    r"(tokenizer\.json|tokenizer\.model.*|vocab\.(json|txt)|merges\.txt|added_tokens\.json|special_tokens_map\.json"
    r"|tokenizer_config\.json|generation_config\.json|chat_template\.(json|jinja)|preprocessor_config\.json|tekken\.json)"
)

#: Of these, those without which a copy of a directory generates otherwise.
_REQUIRED = ("tokenizer.json", "tokenizer.model", "generation_config.json")

#: Roles of tokens -> what a GGUF calls them.
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}

#: Words that stand for a number without one.
_FILLS = r"(\[?<?\|?(PAD|pad|unused|UNUSED|extra_id_|dummy)_?\d+\|?>?\]?)?"

_TOKENS = "tokenizer.ggml.tokens"
_DOCUMENT = "tokenizer.json: "
_TIED = "tie_word_embeddings"

#: Differences that are looked for: more say nothing more.
ENOUGH = 1_000

#: Bytes of a file that are looked at together.
_PIECE = 1 << 20

#: Where the list of merges of a ``tokenizer.json`` begins, and whole items of it.
_MERGES = rb'(?<!\\)"merges"\s*:\s*\['
_ITEMS = re.compile(rb'(?:[^"\[\]]++|"(?:[^"\\]++|\\.)*+"|\[(?:[^"\[\]]++|"(?:[^"\\]++|\\.)*+")*+\])*+', re.DOTALL)

HINT = "repeat the options of the conversion, or --weights compares the tensors alone"


class Words(NamedTuple):
    """The tokenizer of a model; ``None`` and empty where nothing is said.

    Attributes:
        tokens: number -> text.
        merges: pairs, with a space between.
        scores: number -> score of a piece.
        special, plain: numbers of added tokens that are special, and of those that are not.
        roles: ``bos``, ``eos``, ... -> number.
        template: of chats.
        behind: text of the token that a template puts behind a text.
    """

    tokens: Mapping[int, str]
    merges: list[str] | None = None
    scores: Mapping[int, float] = {}
    types: Mapping[int, int] = {}
    special: frozenset[int] = frozenset()
    roles: Mapping[str, int] = {}
    template: str | None = None
    behind: str = ""


def faults_of(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    """Everything in which an output says something else than its source.

    Args:
        options: of the conversion: what somebody asked to be another is.
    """
    if out.adapter is not None or source.adapter is not None or out.tower is not None or source.tower is not None:
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
    if out.metadata_kind is source.metadata_kind:  # the very keys and files are the same
        return
    theirs = words_of(source)
    ours = words_of(out, merges=theirs is None or theirs.merges is not None)
    if ours is not None and theirs is not None:
        for fact in _of_words(ours, theirs, typed=out.metadata_kind is MetadataKind.TYPED):
            if not _is_asked(fact.key.partition("[")[0].removeprefix(_DOCUMENT), options):
                yield fact


@cache
def _needed() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(NEEDED.read_text())


def check_statements(out: TensorIndex, source: TensorIndex, options: Options, path: Path | str) -> None:
    """Hold everything but tensors of an output against its source.

    Args:
        options, path: of the conversion; what errors call the output.
    """
    faults = [str(fact) for fact in islice(faults_of(out, source, options), ENOUGH)]
    if faults:
        raise VerifyError("verify.content", faults[0], path=path, details=listed(faults[1:]), hint=HINT)


def _context(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    found = parameter_differences(out, source).get("context_length")
    if found is None or options.set_meta or options.drop_meta:
        return
    if out.config is None or out.config.rope_theta is None:  # a table of positions says it, or nothing asks for it
        return
    row = FAMILIES[out.config.family].parameters.get("context")
    if row is not None and all(cell.unread for cell in row.key_cells("hf")) and out.format != source.format:
        return  # no class reads it, which a note says
    wanted = options.context or found[1]
    if found[0] != wanted and out.metadata_kind is not MetadataKind.OWN:
        yield Fact("context_length", str(found[0]), str(wanted))


def _is_asked(key: str, options: Options) -> bool:
    """Whether an option asks for another value of a key, or for none.

    By the key, by ``FILE:KEY``, an inner key or a token's text.
    """
    for asked, _ in options.set_meta:
        name = asked.rpartition(":")[2]
        if key in (asked, name, name.partition(".")[0]) or key == f"{name}_id":
            return True
    return any(fnmatchcase(key, glob.rpartition(":")[2]) for glob in options.drop_meta)


# -- Metadata of a GGUF -----------------------------------------------------------------------------------------------


def _stored(index: TensorIndex, key: str) -> Any:
    """Bytes of an array or of a number; else the value."""
    found = index.metadata[key]
    raw = getattr(getattr(found, "value", None), "raw", None)
    return bytes(raw()) if raw is not None else getattr(found, "raw", b"") or getattr(found, "value", None)


def _of_keys(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    if source.metadata_kind is not MetadataKind.TYPED:
        for key in _needed_keys(out, source):
            if key not in out.metadata and not _is_asked(key, options):
                yield Fact(key, None, "one")
        return
    for key in source.metadata:
        if (
            _is_asked(key, options)
            or re.match(_OF_THE_FILE, key)
            or (options.context and key.endswith(".context_length"))
        ):
            continue
        if key not in out.metadata:
            yield Fact(key, None, _shown(stored_value(source, key)))
        elif _stored(out, key) != _stored(source, key):
            ours, theirs = stored_value(out, key), stored_value(source, key)
            if ours != theirs:
                yield _first(key, ours, theirs)


def required_keys(index: TensorIndex) -> Iterator[str]:
    """Keys of a GGUF that llama.cpp does not load such a model without.

    Some are needed only of models that have what they are about; they count where the other model says them.
    """
    table, architecture = _needed()["llama_cpp"], index.architecture
    yield from ("tokenizer.ggml.model",) if _TOKENS in index.metadata else ()
    for key in table["everywhere"]:
        if architecture not in table["but"].get(key, ()):
            yield f"{architecture}.{key}"
    for key, architectures in table["only"].items():
        if architecture in architectures:
            yield f"{architecture}.{key}"


def _needed_keys(out: TensorIndex, source: TensorIndex) -> Iterator[str]:
    yield from _needed()["keys"].get(out.format, ())
    architecture, config = out.architecture, source.config
    assert config is not None
    for row in FAMILIES[config.family].parameters.values() if config.family in FAMILIES else ():
        cells = [cell for cell in row.key_cells("gguf") if not cell.alias and not cell.instead and cell.when is None]
        value = config.scope.get(row.name)
        if cells and value is not None and not isinstance(value, (list, tuple)) and not row.optional:
            key = cells[0].key
            yield key.removeprefix("/") if key.startswith("/") else f"{architecture}.{key}"
    model = stored_value(out, "tokenizer.ggml.model")
    if model not in (None, "none", "no_vocab") or _TOKENS in out.metadata:
        yield from ("tokenizer.ggml.model", _TOKENS)
        yield from (f"tokenizer.ggml.{key}" for key in _needed()["tokenizer"].get(str(model), ()))


# -- Documents of a checkpoint ----------------------------------------------------------------------------------------


def _of_documents(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    mine, meant = document_of(out.metadata), document_of(source.metadata)
    yield from _of_needed(_flat(mine), source, out.format, options)
    inner = mine.get(text_key(mine)) if not text_key(meant) else None
    if isinstance(inner, dict):  # a class that wraps the text model's
        mine = _flat(mine)
    if out.shard_index is not None:
        places = json.loads(read_whole(out.shard_index))["weight_map"]
        for stored in out.stored:
            if places.get(stored.name) != stored.extent.path.name:
                place = _shown(places.get(stored.name))
                yield Fact(f"weight_map.{stored.name}", place, repr(stored.extent.path.name), out.shard_index.name)
    headed = out.config is not None and "output" in FAMILIES[out.config.family].tensors  # no classifier
    tied = headed and "output.weight" not in out.tensors
    said = mine.get(_TIED, default_of(mine, _TIED))
    copied = out.format == source.format and "output.weight" not in source.tensors and said == meant.get(_TIED)
    if tied and said is False and not copied and not _is_asked(_TIED, options):
        yield Fact(_TIED, _shown(said), "true", CONFIG_NAME)
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
            yield Fact(key, None, _shown(value), CONFIG_NAME)
        elif value is None and key == "vocab_size":
            continue  # the rows of the embedding, which are compared
        elif unequal(mine[key], value) and key in said and not (key == "architectures" and isinstance(inner, dict)):
            yield Fact(key, _shown(mine[key]), _shown(value), CONFIG_NAME)
    ours, theirs = beside(out), beside(source)
    for name in theirs:
        if not re.fullmatch(_CARRIED, name):
            continue
        if name not in ours:
            if alike and name in _REQUIRED and out.path.is_dir():
                yield Fact(name, None, "one")
        elif any(mine != meant for mine, meant in zip_longest(_pieces(ours[name]), _pieces(theirs[name]))):
            whole = ["chat_template"] if name == "chat_template.jinja" else []
            for fact in of_files(name, read_whole(ours[name]), read_whole(theirs[name]), ours[name]):
                if not any(_is_asked(word, options) for word in (fact.key.partition(".")[0], *whole)):
                    yield fact


def sees(index: TensorIndex) -> bool:
    """Whether tensors of a tower are stored."""
    document = document_of(index.metadata)
    return any(is_beside_text(document, stored.name) for stored in index.stored)


def _flat(document: dict[str, Any]) -> dict[str, Any]:
    """Document with the keys of its text part over its own."""
    inner = document.get(text_key(document))
    return {**document, **inner} if isinstance(inner, dict) else document


def _is_no_token(key: str, value: Any, document: Mapping[str, Any]) -> bool:
    """The number of a token that there is not: no class takes it."""
    if not key.endswith("_token_id"):
        return False
    numbers, most = value if isinstance(value, list) else [value], document.get("vocab_size")
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    return value is not None and not (whole and all(0 <= number < (most or number + 1) for number in numbers))


def _of_needed(mine: Mapping[str, Any], source: TensorIndex, format: str, options: Options) -> Iterator[Fact]:
    """Keys that a class reads, and roles of tokens that a GGUF says."""
    meant = _flat(document_of(source.metadata))
    typed = source.metadata_kind is MetadataKind.TYPED
    for keys in _needed()["keys"].get(format, ()):
        key, *others = keys.split("|")
        words = {word for words in (*CONFIG_KEYS.values(), _LENGTHS) if key in words for word in words} | {key, *others}
        asked = any(_is_asked(word, options) for word in words)
        read = key in _OF_EVERY or default_of(mine, key) is not UNREAD
        if words.isdisjoint(mine) and read and not asked and (typed or not words.isdisjoint(meant)):
            yield Fact(key, None, "one", CONFIG_NAME)
    for role, number in (_roles_of_keys(source) if typed else {}).items():
        key = f"{role}_token_id"
        number = next((own for own in _stored_as(source, key) if own is not None), number)
        said = mine.get(key, default_of(mine, key))
        if role == "unk" or _is_no_token(key, number, mine) or _is_asked(key, options):
            continue
        if said not in (number, UNKNOWN, UNREAD) and not (isinstance(said, list) and number in said):
            yield Fact(key, _shown(said), str(number), CONFIG_NAME)


def _stored_as(source: TensorIndex, key: str) -> Iterator[Any]:
    """Values of a GGUF's keys that a family has for one of ``config.json``."""
    family = FAMILIES[source.config.family] if source.config else None
    for row in family.parameters.values() if family else ():
        if any(cell.key == key for cell in row.key_cells("hf")):
            yield from (stored_value(source, full_key(source.architecture, cell.key)) for cell in row.key_cells("gguf"))


# -- Tokenizers -------------------------------------------------------------------------------------------------------


def words_of(index: TensorIndex, *, merges: bool = True) -> Words | None:
    """The tokenizer of a model, ``None`` where that is not read here.

    Args:
        merges: those of ``tokenizer.json`` are looked at: there may be hundreds of times as many as there are words.
    """
    if index.metadata_kind is MetadataKind.TYPED:
        return _words_of_keys(index) if _TOKENS in index.metadata else None
    return _words_of_documents(index, merges=merges) if index.metadata_kind is MetadataKind.DOCUMENT else None


def _roles_of_keys(index: TensorIndex) -> dict[str, int]:
    found = {role: stored_value(index, f"tokenizer.ggml.{name}_token_id") for role, name in _ROLES.items()}
    return {role: number for role, number in found.items() if isinstance(number, int)}


def _words_of_keys(index: TensorIndex) -> Words:
    lists = {
        name: stored_value(index, f"tokenizer.ggml.{name}") for name in ("tokens", "token_type", "scores", "merges")
    }
    tokens, types, scores = (
        dict(enumerate(lists[name] if isinstance(lists[name], list) else ()))
        for name in ("tokens", "token_type", "scores")
    )
    return Words(
        tokens,
        lists["merges"],
        scores,
        types,
        frozenset(number for number, kind in types.items() if kind == _CONTROL),
        _roles_of_keys(index),
        stored_value(index, "tokenizer.chat_template"),
    )


#: Types of tokens (``enum llama_token_type``).
_NORMAL, _UNKNOWN, _CONTROL, _UNUSED = 1, 2, 3, 5


def _words_of_documents(index: TensorIndex, *, merges: bool) -> Words | None:
    files = beside(index)
    document = _json(files, "tokenizer.json", read_whole if merges else _without_merges)
    model = document.get("model")
    if not isinstance(model, dict):
        return None
    vocab, scores = model.get("vocab"), {}
    if isinstance(vocab, list):
        tokens = {number: str(pair[0]) for number, pair in enumerate(vocab)}
        scores = {number: float(pair[1]) for number, pair in enumerate(vocab)}
    elif isinstance(vocab, dict):
        tokens = {number: text for text, number in vocab.items()}
    else:
        return None
    special, words = set(), {text: number for number, text in tokens.items()}
    free = max(tokens, default=-1) + 1
    doubted = {str(token.get("content")) for token in _decoder(files).values() if not token.get("special")}
    for added in document.get("added_tokens") or ():  # a word keeps its number, any other token gets the next one
        text = added["content"]
        number = words.setdefault(text, free)
        free = max(free, number + 1)
        tokens[number] = text
        special |= {number} if added.get("special") and text not in doubted else set()
    merged = model.get("merges") if merges else None
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in merged] if merged is not None else None
    return Words(tokens, pairs, scores, {}, frozenset(special), _roles(index, files, tokens), None, _behind(document))


def _behind(document: Mapping[str, Any]) -> str:
    """The special token that ends the template of a ``tokenizer.json``."""
    processor = document.get("post_processor")
    steps = [processor, *(processor.get("processors") or ())] if isinstance(processor, dict) else []
    for step in steps:
        single = step.get("single") if isinstance(step, dict) else None
        special = single[-1].get("SpecialToken") if isinstance(single, list) and single else None
        if isinstance(special, dict):
            return str(special.get("id"))
    return ""


def _decoder(files: Mapping[str, Any]) -> dict[str, Any]:
    """Added tokens of ``tokenizer_config.json``."""
    found = _json(files, "tokenizer_config.json").get("added_tokens_decoder")
    return {key: token for key, token in found.items() if isinstance(token, dict)} if isinstance(found, dict) else {}


def _roles(index: TensorIndex, files: Mapping[str, Any], tokens: Mapping[int, str]) -> dict[str, int]:
    """Numbers of tokens with a role, of the tokenizer or of config.json."""
    numbers = {text: number for number, text in tokens.items()}
    settings = {**_json(files, "special_tokens_map.json"), **_json(files, "tokenizer_config.json")}
    config, found = document_of(index.metadata), {}
    for role in _ROLES:
        said = settings.get(f"{role}_token")
        text = said.get("content") if isinstance(said, dict) else said
        number = numbers.get(text) if isinstance(text, str) else config.get(f"{role}_token_id")
        if isinstance(number, int):
            found[role] = number
    return found


def _of_words(ours: Words, theirs: Words, *, typed: bool) -> Iterator[Fact]:
    prefix = "tokenizer.ggml." if typed else _DOCUMENT
    for number, text in theirs.tokens.items():
        found = ours.tokens.get(number)
        if found == text or (found is not None and not {*_spelled(found)}.isdisjoint(_spelled(text))):
            continue
        if not (re.fullmatch(_FILLS, text) and (found is None or re.fullmatch(_FILLS, found))):
            yield Fact(f"{prefix}tokens[{number}]", _shown(found), _shown(text))
            break
    if ours.merges is not None and theirs.merges is not None and ours.merges != theirs.merges:
        yield _first(f"{prefix}merges", ours.merges, theirs.merges)
    if ours.scores and theirs.scores:
        kinds = ours.types or theirs.types
        both = (n for n in theirs.scores if n in ours.scores and kinds.get(n, _NORMAL) == _NORMAL)
        wrong = (n for n in both if not _near(ours.scores[n], theirs.scores[n]))
        if (at := next(wrong, None)) is not None:
            yield Fact(f"{prefix}scores[{at}]", _shown(ours.scores[at]), _shown(theirs.scores[at]))
    if ours.types and theirs.types and ours.types != theirs.types:
        yield _first(f"{prefix}token_type", [*ours.types.values()], [*theirs.types.values()])
    elif ours.special and theirs.special and (ours.types or theirs.types):
        unknown = {number for words in (ours, theirs) for number, kind in words.types.items() if kind == _UNKNOWN}
        for number in sorted(theirs.special - ours.special - unknown)[:1]:  # other documents may add to them
            yield Fact(f"{prefix}token_type[{number}]", "not special", "special")
    for role, number in theirs.roles.items():
        said = ours.roles.get(role)
        one = typed and role == "eos" and said is not None and ours.tokens.get(said) == theirs.behind
        if one and ours.tokens.get(number) in _needed()["ends"]["texts"]:
            continue  # a GGUF has one key for what ends a text and for what is put behind one
        if role == "unk" and said is None and theirs.types.get(number) in (_NORMAL, _UNUSED):
            continue  # transformers looks for such a token in a text, and this is a word of it, or fills a row
        if said != number and number in theirs.tokens:
            yield Fact(f"{prefix}{_ROLES[role]}_token_id", _shown(said), _shown(number))


def _spelled(text: str) -> Iterator[str]:
    """A word in each spelling in which it may be stored.

    One of BERT's begins with a space, or with none where others have ``##``.
    """
    yield text
    yield text.removeprefix("▁") if text.startswith("▁") else f"##{text}"


def _near(one: float, other: float) -> bool:
    return shortest_float32(one) == shortest_float32(other)


def _first(key: str, mine: Any, meant: Any) -> Fact:
    """The first difference between two lists, or two other values."""
    if isinstance(mine, list) and isinstance(meant, list):
        at = next((n for n, pair in enumerate(zip(mine, meant, strict=False)) if pair[0] != pair[1]), None)
        if at is not None:
            return Fact(f"{key}[{at}]", _shown(mine[at]), _shown(meant[at]))
        return Fact(key, f"a list of {len(mine):,}", f"one of {len(meant):,}")
    return Fact(key, _shown(mine), _shown(meant))


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _pieces(path: Any) -> Iterator[bytes]:
    with open_source(path) as source:
        for at in range(0, source.size or 0, _PIECE):
            yield source.read_at(at, min(_PIECE, (source.size or 0) - at))


def _without_merges(path: Any) -> bytes:
    """A ``tokenizer.json`` with an empty list of merges, in bounded memory."""
    kept, rest, within = bytearray(), b"", False
    for piece in _pieces(path):
        data, at = rest + piece, 0
        if not within:
            start = re.search(_MERGES, data)
            at = start.end() if start else max(0, len(data) - len(piece))
            within = start is not None
            kept += data[:at]
        if within:
            items = _ITEMS.match(data, at)
            at = items.end() if items else at
            within = data[at : at + 1] != b"]"
        rest = data[at:]
    return bytes(kept + rest)


def _json(files: Mapping[str, Any], name: str, read: Callable[[Any], bytes] = read_whole) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        found = json.loads(read(files[name]))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
