"""Documents of a checkpoint compared with what its source says.

Rules are functions of both documents; a table says of which outputs each is. Expected values are the source's, or what
rows of the family make of hyper-parameters that a reader has read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import accumulate, zip_longest
from typing import Any

from ckconv.core.config import CONFIG_KEYS, FIELD_OF
from ckconv.core.lazy import replace
from ckconv.core.metadata import (
    CONFIG_NAME,
    PART,
    QUANTIZATION_KEYS,
    beside,
    document_of,
    text_key,
    text_on_top,
    within,
)
from ckconv.core.options import Options
from ckconv.core.tensors import PREFIX, ROPE_FREQUENCIES, MetadataKind, TensorIndex, parse, stored_value
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
from ckconv.families.parameters import scope_of, with_it, with_value
from ckconv.families.schema import MLX_VLM, TRANSFORMERS as OF_CLASSES, Engine, Family
from ckconv.families.sizes import switches
from ckconv.families.towers import of_a_tower, parameter_differences, tower_beside, tower_family
from ckconv.verification.content import Fact, engine_row, needed, of_files, read_whole, shown, unequal, unlike
from ckconv.verification.tokenizers import ALL_ROLES, pieces, roles_of_keys

#: Keys of a configuration that say how values are stored, or who wrote it.
_STORED = {*QUANTIZATION_KEYS, "dtype", "torch_dtype", "transformers_version", "tie_word_embeddings", "_name_or_path"}

#: Keys of a configuration that mean the same to every library. What computes is compared as hyper-parameters: a class
#: may be in other words, or of fewer biases.
_SHARED_KEYS = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "vocab_size"}

#: Keys that classes of one library have to state alike.
_COPIED_KEYS = _SHARED_KEYS | {"architectures", "hidden_act", "hidden_activation", "activation_function"}

#: Keys that every class reads, or that choose it.
_OF_EVERY = ("architectures", "model_type", "dtype")

#: What classes call the context length besides :data:`CONFIG_KEYS`.
_LENGTHS = {"max_position_embeddings", "seq_length", "model_max_length"}
_LENGTHS |= {"max_seq_len", "max_sequence_length", "max_context_length"}

#: Files that go from one checkpoint to the next as they are.
CARRIED = (
    r"(tokenizer\.json|tokenizer\.model.*|vocab\.(json|txt)|merges\.txt|added_tokens\.json|special_tokens_map\.json"
    r"|tokenizer_config\.json|generation_config\.json|chat_template\.(json|jinja)|preprocessor_config\.json|tekken\.json)"
)

#: Of these, those without which a copy of a directory generates otherwise.
_REQUIRED = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "generation_config.json")

_TIED, _TYPES, _CLASSES, _CLASS = "tie_word_embeddings", ("dtype", "torch_dtype"), "architectures", "model_type"

#: Keys that count layers behind the last: --drop mtp leaves them out, and no class of MLX has them.
_DRAFTED = {"mtp_num_hidden_layers", "num_nextn_predict_layers"}

_EXTRACTOR = "preprocessor_config.json"

#: Words of a scaling of RoPE; rows of families have one of them without its end.
_WORDS_OF_ROPE = {word for kind in ROPE_KEYS.values() for word in kind.keys}
_LONG = "_max_position_embeddings"


def is_edited(key: str, options: Options) -> bool:
    """Whether an option asks for another value of a key, or for none.

    By the key, by ``FILE:KEY``, or a token's text.
    """
    short = key.removeprefix("tokenizer.").removeprefix("ggml.")
    role = next((ours for ours, role_word in ALL_ROLES.items() if short == f"{role_word}_token_id"), short)
    keys = (key, short, f"{role}_token", f"{role}_token_id", _of_rope(key))
    for edited, _ in options.set_meta:
        name = edited.rpartition(":")[2]
        if edited == key or not {name, f"{name}_id", _of_rope(name)}.isdisjoint(keys):
            return True
    globs = {word for glob in options.drop_meta for word in (glob.rpartition(":")[2], _of_rope(glob))}
    return any(fnmatchcase(name, glob) for glob in globs for name in keys)


def _of_rope(key: str) -> str:
    """The word alone: it is edited in each table of RoPE."""
    table, _, word = key.rpartition(".")
    return word if table.partition(".")[0] in TABLES_OF_ROPE else key


def is_edited_in(index: TensorIndex, key: str, options: Options) -> bool:
    """Whether an option asks for another value of a key of an output.

    Of a document by its table or for a key within, and in its text part or beside it.
    """
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        return is_edited(full_key(index.architecture, key), options)
    text = text_key(document_of(index.metadata))
    own = key.removeprefix(f"{text}.")
    edited = (name.rpartition(":")[2] for name in (*dict(options.set_meta), *options.drop_meta))
    within = any(name.removeprefix(f"{text}.").startswith(f"{own}.") for name in edited)  # the key is a whole table
    prefixes = "", f"{text}.", f"{PART}.", f"{PART}.{text}."  # readers open the part that thinks
    return within or any(is_edited(f"{prefix}{path}", options) for path in _tables_of(own) for prefix in prefixes)


def _tables_of(key: str) -> Iterator[str]:
    """Paths of a document's tables that a key is within, and its own."""
    return accumulate(re.sub(r"\[\d+\]", "", key).split("."), "{}.{}".format)


def unasked_differences(out: TensorIndex, source: TensorIndex, options: Options) -> dict[str, tuple[object, object]]:
    """Hyper-parameters in which two models differ, and no option asks for it.

    Nor for one that they follow from.
    """
    found = parameter_differences(out, source)
    if not found or not (options.set_meta or options.drop_meta):
        return found
    names, form = set[str](), "gguf" if out.metadata_kind is MetadataKind.TYPED else "hf"
    families = {"": FAMILIES[out.config.family]} if out.config is not None else {}
    families |= {PREFIX: tower_family(out.tower.family)} if out.tower is not None else {}
    for prefix, family in families.items():
        rows = family.parameters.values()
        changed = {row.name for row in rows for cell in row.key_cells(form) if is_edited_in(out, cell.key, options)}
        while more := {row.name for row in rows if not row.depends_on.isdisjoint(changed)} - changed:
            changed |= more
        names |= {f"{prefix}{FIELD_OF.get(name, name)}" for name in changed}
    slides = {"layer_types", "sliding_window"}  # neither is said where nothing slides
    names |= slides if not slides.isdisjoint(names) else set()

    def is_edited_rope(word: str) -> bool:
        """Whether an option asks for a word of RoPE, in any of its tables."""
        keys = word, word.rpartition(".")[2], f"{TABLES_OF_ROPE[0]}.{word}"
        own = {word, f"rope_{word}".removesuffix(_LONG), *(["context_length"] if word.endswith(_LONG) else [])}
        return (
            not names.isdisjoint(own) or is_edited(word, options) or any(is_edited_in(out, at, options) for at in keys)
        )

    edited = (*dict(options.set_meta), *options.drop_meta)
    names |= {"rope_theta"} if is_edited_rope("rope_theta") else set()
    names |= {"rope_scaling"} if any(key.startswith(f"{out.architecture}.rope.scal") for key in edited) else set()
    for name in ("rope_scaling", "modifiers"):
        ours, expected = (_parts(value) for value in found.get(name, ((), ())))
        changed = {*filter(is_edited_rope, {*ours, *expected, *_WORDS_OF_ROPE})}
        others = {word for word in {*ours, *expected} - changed if ours.get(word) != expected.get(word)}
        if "rope_type" in changed or others <= ({"attention_factor"} if changed else set()):  # which follows
            names.add(name)
    return {name: pair for name, pair in found.items() if name not in names}


def _parts(value: Any) -> dict[str, Any]:
    """Words of a scaling, or keys of modifiers: what differs within them."""
    return value if isinstance(value, dict) else {text.partition(" = ")[0]: text for text in value or ()}


class Pair:
    """Two documents, and the models that they are of.

    Attributes:
        whole, wholes: the output's and the source's.
        output, meant: with the keys of their text parts on top.
        text: the key of the output's text part.
        typed: the source has no document.
        made: for another library than the source.
    """

    def __init__(self, out: TensorIndex, source: TensorIndex, options: Options) -> None:
        self.out, self.source, self.options = out, source, options
        self.whole, self.wholes = document_of(out.metadata), document_of(source.metadata)
        self.output, self.meant = text_on_top(self.whole), text_on_top(self.wholes)
        self.text, self.row = text_key(self.whole), engine_row(out)
        self.typed = source.metadata_kind is not MetadataKind.DOCUMENT
        self.made = out.format in CONSUMERS and out.format != source.format
        self.consumer = CONSUMERS.get(out.format, TRANSFORMERS)
        self.sees = sees(out)
        self.of_text = self.made and not (out.config is None or out.tower or self.sees or sees(source))

    @property
    def family(self) -> Family:
        """The family of the output."""
        assert self.out.config is not None
        return FAMILIES[self.out.config.family]

    @property
    def lengths(self) -> set[str]:
        """Keys of the context length, where an option asks for another one."""
        row = self.family.parameters.get("context") if self.out.config is not None else None
        own = {cell.key for cell in row.key_cells("hf")} if row is not None else set()
        return _LENGTHS.union(CONFIG_KEYS["context_length"], own) if self.options.context else set()

    @property
    def is_whole(self) -> bool:
        """Whether both have a text model and a tower, under the same keys."""
        towers = self.out.tower is not None is not self.source.tower
        return towers and self.out.config is not None and self.text == text_key(self.wholes)

    @property
    def of_tower(self) -> Engine | None:
        """Row of the tower for its engine; ``None`` for transformers."""
        assert self.out.tower is not None
        tower = tower_family(self.out.tower.family)
        return tower.engines.get(MLX_VLM.row) if self.consumer != TRANSFORMERS else None

    def is_edited(self, key: str) -> bool:
        """Whether an option asks for another value of the key, or table."""
        return is_edited_in(self.out, key, self.options)

    def fault(self, key: str, meant: Any) -> Fact:
        """The fault of a key at the top of the document."""
        return Fact(key, shown(self.output.get(key)), shown(meant), CONFIG_NAME)


def document_faults(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    """Everything that documents of an output say otherwise."""
    pair = Pair(out, source, options)
    for is_of, rule in _RULES:
        if is_of(pair):
            yield from (fact for fact in rule(pair) if not pair.is_edited(fact.key))
    yield from _of_files(pair)


# -- Rules of every output --------------------------------------------------------------------------------------------


def _of_needed(pair: Pair) -> Iterator[Fact]:
    """Keys that a class reads, and roles of tokens that a GGUF says."""
    document, source = pair.output, pair.source
    typed = source.metadata_kind is MetadataKind.TYPED
    rows = FAMILIES[source.config.family].parameters.values() if source.config else ()
    cells = {cell.key for row in rows for cell in row.key_cells("hf")}
    for keys in needed()["keys"].get(pair.out.format, ()):
        key, *others = keys.split("|")
        words = {word for words in (*CONFIG_KEYS.values(), _LENGTHS) if key in words for word in words} | {key, *others}
        default = default_of(document, key)
        read = key in _OF_EVERY or (default is not UNREAD if default is not UNKNOWN else not words.isdisjoint(cells))
        stated = typed or not words.isdisjoint(pair.meant)
        if words.isdisjoint(document) and read and stated and not any(map(pair.is_edited, words)):
            yield Fact(key, None, "one", CONFIG_NAME)
    for role, number in (roles_of_keys(source) if typed else {}).items():
        key = f"{role}_token_id"
        number = next((own for own in _stored_as(source, key) if own is not None), number)
        value = document.get(key, default_of(document, key))
        if role == "unk" or _is_no_token(key, number, document):
            continue
        if value not in (number, UNREAD) and not (role == "eos" and isinstance(value, list) and number in value):
            yield Fact(key, shown(None if value is UNKNOWN else value), str(number), CONFIG_NAME)


def _stored_as(source: TensorIndex, key: str) -> Iterator[Any]:
    """Values of a GGUF's keys that a family has for one of ``config.json``."""
    family = FAMILIES[source.config.family] if source.config else None
    for row in family.parameters.values() if family else ():
        if any(cell.key == key for cell in row.key_cells("hf")):
            yield from (stored_value(source, full_key(source.architecture, cell.key)) for cell in row.key_cells("gguf"))


def _is_no_token(key: str, value: Any, document: Mapping[str, Any]) -> bool:
    """Whether there is no token of this number: no class takes it."""
    if not key.endswith("_token_id"):
        return False
    numbers, most = value if isinstance(value, list) else [value], document.get("vocab_size")
    most = most if type(most) is int else 0
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    return value is not None and not (whole and all(0 <= number < (most or number + 1) for number in numbers))


def _of_class(pair: Pair) -> Iterator[Fact]:
    """Faults of the class that a document names, at its top and within."""
    out, family = pair.out, pair.family
    own = pair.row if pair.row is not None else family.engines.get(OF_CLASSES.row)
    known = [pair.wholes.get(_CLASS), pair.meant.get(_CLASS), family.model_type, *family.in_huggingface.names]
    known += [own.model_type, own.wrapped] if own is not None else []
    known += tower_family(out.tower.family).in_huggingface.names if out.tower is not None else ()
    for text in dict.fromkeys(("", pair.text)):
        ours, expected = (_part(document, text).get(_CLASS) for document in (pair.whole, pair.wholes))
        unsaid = pair.source.metadata_kind is MetadataKind.DOCUMENT and _CLASS not in _part(pair.wholes, text)
        if ours not in [*known, expected] or (ours is None and not unsaid):
            yield Fact(f"{text}.{_CLASS}".lstrip("."), shown(ours), shown(family.model_type), CONFIG_NAME)
    if own is not None and own.wrapped and pair.source.metadata_kind is MetadataKind.TYPED:
        yield from _of_wrapped(pair)


def _of_wrapped(pair: Pair) -> Iterator[Fact]:
    """Faults of the words that a document has around its text part.

    What both say is the same, and its class reads there what the text part's does not.
    """
    document, inner = pair.whole, _part(pair.whole, pair.text)
    cells = (cell for row in pair.family.parameters.values() if not row.defaults for cell in row.key_cells("hf"))
    outer = {cell.key for cell in cells if pair.consumer == TRANSFORMERS and default_of(inner, cell.key) is UNREAD}
    each = {_TIED, *(key for key in _SHARED_KEYS if key.endswith("_token_id"))}
    for key in sorted(((outer | each | document.keys()) & inner.keys() | each & document.keys()) - {_CLASS}):
        ours, expected = document.get(key), inner.get(key)
        if key not in inner:
            yield Fact(f"{pair.text}.{key}", None, shown(ours), CONFIG_NAME)
        elif key not in document or unequal(ours, expected):
            yield Fact(key, shown(ours), shown(expected), CONFIG_NAME)


def _of_engine(pair: Pair) -> Iterator[Fact]:
    """Keys that classes of an engine do not do without, or guess.

    For those that are missing a class takes something else than the source says.
    """
    one, other = QUANTIZATION_KEYS[:2]
    both = pair.out.format != pair.source.format and {one, other} <= pair.whole.keys()
    if both and unequal(pair.whole[one], pair.whole[other]):
        yield Fact(other, "another", f"what {one} says", CONFIG_NAME)
    if pair.row is None or pair.sees:
        return
    taken = defaults_of_mlx(pair.whole)
    if taken:
        yield from _of_defaults(pair, taken, pair.whole.get(pair.text, pair.whole) if pair.row.wrapped else pair.output)
    for key in pair.row.needs:
        stated = pair.out.format != pair.source.format or key in pair.meant  # a copy lacks what its source does
        table, _, word = key.rpartition(".")
        holder = pair.whole.get(table) or {word: None} if table else pair.output  # no table lacks nothing
        if stated and word not in holder and (table or not taken):
            yield Fact(key, None, "one", CONFIG_NAME)


def _of_defaults(pair: Pair, taken: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[Fact]:
    """Keys for which a class takes something else where they are missing.

    Args:
        taken: what it takes, by key.
        document: the part of the output's that it reads.
    """
    config = pair.source.config
    assert config is not None
    family, reader = FAMILIES[config.family], CONSUMERS.get(pair.source.format, pair.consumer)
    kinds = family.document.keys.keys.items()
    unread = {name for name, key in kinds if key.kind is Kind.MODIFIER and reader not in key.readers}
    read = {key: value for key, value in pair.meant.items() if key not in unread}
    constants = {name: key.neutral[0] for name, key in kinds if key.written} | {**family.document.written}
    stated = {**constants, **read, **dict(keyed_values(config_rows(family), scope_of(family, config), "hf"))}
    for key in sorted(taken.keys() - document.keys() - _DRAFTED):
        value, copied = stated.get(key), pair.out.format == pair.source.format and key not in pair.meant
        nothing = value is None or (key not in pair.meant and value is not False and value == 0)  # no layer has it
        other = not (nothing or taken[key] is None) and unequal(value, taken[key])
        if (taken[key] is REQUIRED or other) and not copied:
            yield Fact(key, None, shown(value) if value is not None else "one", CONFIG_NAME)


def _of_head(pair: Pair) -> Iterator[Fact]:
    """The fault of a head that is stated as separate, and missing."""
    if "output" not in pair.family.tensors or "output.weight" in pair.out.tensors:  # a classifier has none
        return
    config = pair.whole if text_key(pair.wholes) else pair.output  # a class may wrap the text model's
    for key in dict.fromkeys((_TIED, *document_words(pair.family, "tied"))):
        tied, before = (document.get(key, default_of(document, key)) for document in (config, pair.wholes))
        copied = pair.out.format == pair.source.format and "output.weight" not in pair.source.tensors and tied == before
        if tied is False and not copied:
            yield Fact(key, shown(tied), "true", CONFIG_NAME)


def _of_source(pair: Pair) -> Iterator[Fact]:
    """Keys of the source's: all of a copy, else those that mean alike."""
    text, alike = text_key(pair.wholes), pair.out.format == pair.source.format
    around, blind = tower_beside(pair.wholes), sees(pair.source) and not pair.sees
    alone = (bool(text) and (not pair.text or blind)) or bool(around and blind)  # the text model
    own = {key for key in pair.wholes if around and of_a_tower(around, key)}
    own = {"auto_map", "model_type", *(own - pair.family.document.keys.keys.keys())}
    other = alone or bool(pair.text and not text)
    document = pair.whole if text and alike and not alone else pair.output
    part = pair.wholes[text] if text else {key: value for key, value in pair.wholes.items() if key not in own}
    meant = part if alone else pair.wholes if alike else pair.meant
    free = _STORED | pair.lengths
    compared = _COPIED_KEYS if alike else _SHARED_KEYS
    there = compared if other or text else compared | {_CLASSES}
    copied = alike and not (alone or other)  # but for what says how values are stored, nothing in it changes
    rope = {*TABLES_OF_ROPE} if pair.options.context else set()  # which get further words
    plain = {*meant} - rope if copied else set()
    anything = free | _DRAFTED | {_CLASS} | rope
    free -= {"transformers_version", "_name_or_path"} if copied else set()
    types = needed()["documents"]["types"]
    floats = {types[stored.dtype.name] for stored in pair.out.stored if stored.dtype.name in types}
    for key in (key for key in _TYPES if copied and document.get(key) not in (meant.get(key), *floats, types["F32"])):
        yield Fact(key, shown(document.get(key)), shown(meant.get(key)), CONFIG_NAME)
    compared = (compared | (plain - _DRAFTED)) - ({_CLASSES} if other else set())
    for key, value in meant.items():
        if key in free or not (alike or key in there) or _is_no_token(key, value, meant):
            continue
        if key not in document:
            yield Fact(key, None, shown(value), CONFIG_NAME)
        elif value is None and key == "vocab_size":
            continue  # the rows of the embedding, which are compared
        elif re.search("Infinity|NaN", str(shown(value))) and document[key] == pair.family.document.written.get(key):
            continue  # as a strict document says it to the class
        elif key in compared:
            each = ([*_unlike(document[key], one, anything, key)] for one in (value, strictly(value)))
            yield from (Fact(path, shown(one), shown(other), CONFIG_NAME) for path, one, other in min(each, key=len))
    for key in sorted(document.keys() - meant.keys() - free if copied else ()):
        yield Fact(key, shown(document[key]), None, CONFIG_NAME)
    defaulted = CONSUMERS.get(pair.source.format) == TRANSFORMERS and pair.of_text  # no class of MLX has such defaults
    for key in sorted(_SHARED_KEYS - meant.keys() - {"vocab_size"} if defaulted else ()):
        default = default_of(meant, key)
        known = default not in (UNREAD, UNKNOWN, None) and not _is_no_token(key, default, document)
        if known and document.get(key) is not None and unequal(document[key], default):
            yield Fact(key, shown(document[key]), shown(default), CONFIG_NAME)


def _unlike(found: Any, meant: Any, free: Collection[str], where: str) -> Iterator[tuple[str, Any, Any]]:
    """Paths of tables that say two things, but for keys that are free."""
    if isinstance(found, dict) and isinstance(meant, dict):
        for key in sorted((found.keys() | meant.keys()) - {*free}):
            yield from _unlike(found.get(key), meant.get(key), free, f"{where}.{key}")
    elif unequal(found, meant):
        yield where, found, meant


# -- Rules of an output for another library ---------------------------------------------------------------------------


def _besides(pair: Pair) -> Iterator[Fact]:
    """Faults of keys at the top of a document.

    Each says what the source says; of another kind of source, what rows of the family and its constants say, with the
    context that was asked for, if any.
    """
    config, family, consumer, typed = pair.source.config, pair.family, pair.consumer, pair.typed
    assert config is not None
    document, meant, kinds, context = pair.output, pair.meant, family.document.keys.keys, pair.options.context
    alike = {name: key for name, key in kinds.items() if key.kind is Kind.MODIFIER}
    strict = consumer == TRANSFORMERS and not typed  # the class takes no such values
    untaken = {*unaccepted(meant, str(document.get(_CLASS)))} if strict else set()
    constants = {name: key.neutral[0] for name, key in alike.items() if key.written} | {**family.document.written}
    wanted = {**(pair.row.written if pair.row is not None else {}), **constants}
    cells = [[cell for cell in one.key_cells("hf") if not cell.of_rope] for one in family.parameters.values()]
    words = {cell.head: {one.head for one in several} for several in cells for cell in several}
    foreign = {cell.head for several in cells for cell in several if consumer not in cell.readers}
    of_class = {key: default_of(document, key) for key in foreign}
    taken = defaults_of_mlx(document, idle=typed) if consumer == MLX_LM else of_class
    foreign -= {key for key, value in taken.items() if value not in (UNREAD, UNKNOWN)}
    reader = CONSUMERS.get(pair.source.format, consumer)
    unread = words.keys() - {cell.head for several in cells for cell in several if reader in cell.readers}
    by_tensors = set[str]()
    if typed:
        config, rows = replace(config, context_length=context or config.context_length), config_rows(family)
        by_tensors = words.keys() - {cell.key for row in rows for cell in row.key_cells("hf")}  # or within a table
        keys = keyed_values(rows, scope_of(family, config), "hf")
        meant = wanted = wanted | {key: value for key, value in keys if "." not in key}
    drafted = consumer == TRANSFORMERS and not pair.options.drop  # no class of MLX has them
    stated = _LENGTHS | (_DRAFTED if drafted else set())
    free = set(needed()["documents"]["free"]) - (meant.keys() & stated if typed else set())
    free |= {*TABLES_OF_ROPE, *untaken, *(() if typed else pair.lengths)}
    free |= {key for key in meant.keys() | words.keys() if key.endswith("_config")}  # parts, which are left out
    for key in sorted((document.keys() | meant.keys()) - free):
        value, expected, known = document.get(key), meant.get(key), key in words and not typed  # their readers compare
        neutral = [key in alike and alike[key].is_neutral(one) for one in (value, expected)]
        neutral[1] = neutral[1] or (key in alike and reader not in alike[key].readers)
        endless = re.search("Infinity|NaN", str(shown(expected)))  # which a strict document leaves to the class
        if endless and value == family.document.written.get(key):
            continue
        if key not in document:
            elsewhere = (not words[key].isdisjoint(document) or key in unread) if known else (typed and key in foreign)
            default = taken.get(key, default_of(document, key))
            unsaid = default in (UNREAD, UNKNOWN)
            of_one = neutral[1] and alike[key].readers != BOTH  # the class of one library has it for a default
            if typed and of_one:
                wants = alike[key].written and consumer in alike[key].readers
                of_one = not wants if unsaid or default is None else alike[key].is_neutral(default)
            nothing = expected is None and (not typed or unsaid or default is None)
            other = not (nothing or endless or elsewhere or of_one)
        elif expected is not None:
            other = unequal(value, expected) and unequal(value, strictly(expected)) and not all(neutral)
        else:
            idle = value is None or neutral[0] or key in by_tensors
            other = not idle and unequal(value, wanted.get(key))
        if other and not (known and key in document):
            yield pair.fault(key, expected)


def _of_words(pair: Pair) -> Iterator[Fact]:
    """Faults of words that no reader of hyper-parameters compares.

    Of those that the library does not read a document may have what stands for nothing: the tensors have it.
    """
    config, rows = pair.source.config, config_rows(pair.family)
    assert config is not None
    cells = {row.name: [cell for cell in row.key_cells("hf") if not cell.of_rope] for row in rows}
    alone = [name for name, own in cells.items() if not any(pair.consumer in cell.readers for cell in own)]
    scope = scope_of(pair.family, config)
    stated, whole = (dict(keyed_values(rows, {**scope, **dict.fromkeys(none)}, "hf")) for none in (alone, ()))
    free = {*needed()["documents"]["free"], *TABLES_OF_ROPE, *pair.lengths}
    words = {cell.key for own in cells.values() for cell in own} - free
    for key in sorted(words & pair.output.keys()):
        value, meant = pair.output[key], [one[key] for one in (stated, pair.meant) if one.get(key) is not None]
        if value is not None and meant and all(unequal(value, one) for one in (*meant, whole.get(key))):
            yield pair.fault(key, meant[-1])


def _of_roles(pair: Pair) -> Iterator[Fact]:
    """Faults of roles of tokens, as the document beside a bump file says them."""
    for key in sorted(key for key in _SHARED_KEYS if key.endswith("_token_id")):
        if pair.output.get(key) is not None and unequal(pair.output[key], pair.source.metadata.get(key)):
            yield pair.fault(key, pair.source.metadata.get(key))


def _of_readers(pair: Pair) -> Iterator[Fact]:
    """Faults of a document that its reader takes in part.

    A key switches on what no hyper-parameter says, or a class follows another one that contradicts it.
    """
    ours, expected = pair.out.config, pair.source.config
    assert ours is not None
    assert expected is not None
    for words in ("modifiers", "overruled"):
        for text in (text for text in getattr(ours, words) if text not in getattr(expected, words)):
            key, _, value = text.removesuffix(",").partition(" = ")
            table = key.partition(",")[0].partition(".")[0]
            if value or unequal(pair.output.get(table), pair.meant.get(table)):  # both say it to another library
                yield Fact(key, value or "overruled", None, CONFIG_NAME)
    kinds = [(config.rope_scaling or {}).get("rope_type") for config in (ours, expected)]
    if kinds[0] not in (None, "default", kinds[1], *ROPE_KEYS):
        yield Fact("rope_type", shown(kinds[0]), shown(kinds[1] or "default"), CONFIG_NAME)


def strictly(value: Any) -> Any:
    """A value as strict JSON says it.

    transformers 5 has objects for numbers that are not finite.
    """
    return json.loads(json.dumps(value), parse_constant=lambda word: {"__float__": word})


def _of_stored(pair: Pair) -> Iterator[Fact]:
    """Faults of what a document says of tensors, and of its class."""
    out, document, meant, family = pair.out, pair.output, {} if pair.typed else pair.meant, pair.family
    consumer, types = pair.consumer, needed()["documents"]["types"]
    patterns, defaults = {parse(name).pattern for name in out.tensors}, defaults_of_mlx(document_of(out.metadata))
    headed = "output.weight" in out.tensors and "output" in family.tensors
    flags = [(document_words(family, "tied"), not headed, bool(headed))] if headed else []
    for name, biases in switches(family).items():
        cells, there = family.parameters[name].key_cells("hf"), not biases.isdisjoint(patterns)
        flags.append(([cell.key for cell in cells if consumer in cell.readers], there, False))
        if not meant:  # a class of the library may have the key and read it as another's, or look at nothing
            flags += [([cell.key], there, False) for cell in cells if type(document.get(cell.key)) is bool]
    for keys, there, otherwise in flags:
        stated = {key: document[key] for key in keys if type(document.get(key)) is bool}
        if not stated and keys:
            unsaid = None if meant else otherwise  # of a class that nobody recorded
            taken = default_of(document, keys[0]) if consumer == TRANSFORMERS else defaults.get(keys[0], unsaid)
            stated = {keys[0]: taken} if type(taken) is bool else {}
        yield from (pair.fault(key, there) for key, value in stated.items() if value != there)
    floats = {types[stored.dtype.name] for stored in out.stored if stored.dtype.name in types}
    for key in _TYPES:
        value = document.get(key)
        if value not in [meant.get(key), *floats, types["F32"]] or (value is None and not meant):
            yield pair.fault(key, " or ".join(sorted(floats)))
    if not any(tensor.planes or tensor.packed for tensor in out.everything.values()):  # nothing is quantized
        stale = {key for key in QUANTIZATION_KEYS if key in document and document[key] != meant.get(key)}
        yield from (pair.fault(key, None) for key in sorted(stale))
    value, classes = document.get(_CLASSES), family.in_huggingface.classes
    known = isinstance(value, list) and value and all(one in classes for one in value)
    if not known and not (meant and value == meant.get(_CLASSES)):
        yield pair.fault(_CLASSES, [classes[0]])


def _of_written(pair: Pair) -> Iterator[Fact]:
    """Faults of constants that a class of an engine wants."""
    meant = {} if pair.typed else pair.meant
    for key, value in pair.row.written.items() if pair.row is not None else ():
        found = pair.output.get(key)
        if not (found if meant.get(key) or isinstance(value, dict) else found == value):
            yield pair.fault(key, value)


def _of_tables(pair: Pair) -> Iterator[Fact]:
    """Faults of tables that rows of the family say."""
    out, document, family, (_, turned) = pair.out, pair.output, pair.family, TABLES_OF_ROPE
    of = (out if ROPE_FREQUENCIES in pair.source.tensors else pair.source).config  # factors say the scaling
    assert out.config is not None
    assert of is not None
    by_layer = family.document.rope.by_layer  # the words of a scaling stand in the table of one kind of layers
    rows = keyed_values(config_rows(family), scope_of(family, of), "hf")
    paths = {key: value for key, value in rows if "." in key}
    tables = {key: document.get(key) for key in (*TABLES_OF_ROPE, *(key.partition(".")[0] for key in paths))}
    scaling = {**(out.config.rope_scaling or {})}  # of one of the tables, and compared; the other says the same
    scaling.pop("rope_theta", None)  # of readers that look at the newer table, in which alone it is
    stand = {key for table in TABLES_OF_ROPE for key in tables[table] or ()}
    if not {"mscale", "mscale_all_dim"}.isdisjoint(stand):  # of which readers make the factor
        scaling = {key: value for key, value in scaling.items() if key != "attention_factor" or key in stand}
    if by_layer:
        paths = {key: value for key, value in paths.items() if key.count(".") > 1 or not key.startswith(TABLES_OF_ROPE)}
    words = {word: value for word, value in (tables[turned] or {}).items() if word in ROPE_KEYS["default"].keys}
    words |= {"rope_type": "default", **scaling}
    words["type"] = words["rope_type"]
    ours, written = dict(_leaves(tables)), pair.row.written if pair.row is not None else {}
    of_rope = [key for key in ours if key.startswith(TABLES_OF_ROPE)]
    wants = {key: words[word] for key in of_rope for word in (key.rpartition(".")[2],) if word in words}
    kinds = [key for key in of_rope if key.count(".") > 1 and key.endswith(".rope_type")]
    wants |= {key: "default" for key in kinds if ours[key] == "default"}
    wants |= dict(_leaves({key: value for key, value in written.items() if key in tables}))
    wants |= {f"{turned}.rope_theta": out.config.rope_theta}
    alike = str(scaling.get("rope_type")) in ROPE_KEYS and not by_layer
    named = [table for table in TABLES_OF_ROPE if alike and tables[table]]
    each = {f"{table}.{word}": value for table in named for word, value in scaling.items()}
    wants |= each | {key: value for key, value in paths.items() if value is not None}
    there = ours.keys() | paths.keys() | each.keys()
    yield from unlike(ours, {key: wants.get(key) for key in there}, CONFIG_NAME)


def _leaves(tables: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values of tables within each other."""
    for key, value in tables.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{where}{key}.")
        elif where:
            yield f"{where}{key}", value


def _of_wholes(pair: Pair) -> Iterator[Fact]:
    """Faults in the document of a model that sees.

    Every part says what the source's says, but for keys that the engine's row of the tower has. What stands there
    besides is a hyper-parameter, which readers compare, a constant, or what the source's class takes.
    """
    out, source, document, meant, engine = pair.out, pair.source, pair.whole, pair.wholes, pair.of_tower
    assert out.tower is not None
    assert source.tower is not None
    text, tower, config = pair.family, tower_family(out.tower.family), source.config
    whole, kinds, constants = pair.meant, text.document.keys.keys, text.document.written
    rows = (row for family in (text, tower) for row in family.parameters.values())
    read = {cell.key.rpartition(".")[2] for row in rows for cell in row.key_cells("hf")}
    floats = [needed()["documents"]["types"].get(stored.dtype.name) for stored in out.stored]
    names = [meant.get(_CLASS), *text.in_huggingface.names, *tower.in_huggingface.names]
    names += [each.parameters.get(word) for each in (out.tower, source.tower) for word in ("class", "ear_class")]
    free = _STORED - {*_TYPES} | _DRAFTED
    free |= pair.lengths
    says, only = (dict(engine.says), engine.only) if engine is not None else ({}, {})
    scope = source.tower.parameters
    by_path = {path: one.value(scope) for path, one in says.items() if one.names <= scope.keys()}
    unread = {f"{pair.text}.{_CLASSES}", *(says.keys() - by_path.keys())}
    overruled = {text.partition(",")[0] for text in config.overruled} if config is not None else set()
    classes = [str(one.get(_CLASS)) for one in (meant, meant.get(pair.text, {}))]
    untaken = {key for one in (*classes, *text.in_huggingface.names) for key in unaccepted(whole, one)}
    foreign = unread_by(CONSUMERS.get(source.format), text.parameters.values())
    follow = [row for row in text.parameters.values() if row.value is not None]
    follows = dict(keyed_values(follow, scope_of(text, config), "hf")) if config is not None else {}
    there, of = {parse(name).pattern for name in out.tensors}, switches(text)
    biased = {c.key: not there.isdisjoint(of[name]) for name in of for c in text.parameters[name].key_cells("hf")}

    def unsaid(key: str, value: Any, expected: Mapping[str, Any], of_text: bool) -> Iterator[Any]:
        """Values of a key of which the source's part says nothing."""
        if key in TABLES_OF_ROPE and isinstance(value, dict):  # the other table, in the older words
            same = expected.get(TABLES_OF_ROPE[1]) or value
            kind = {word: it for word, it in value.items() if word in read}
            kind |= {"rope_type": same.get("type", "default"), **same, "type": value.get("rope_type")}
            yield {word: kind.get(word) for word in value}
        elif of_text and whole.get(key) is not None:
            yield whole[key]
        else:
            yield from (default_of(expected, key), constants.get(key))
            yield from [value] if key in read or (key in kinds and kinds[key].is_neutral(value)) else ()

    def walk(ours: Mapping[str, Any], expected: Mapping[str, Any], where: str) -> Iterator[Fact]:
        of_text = where in ("", f"{pair.text}.")  # other parts have words alike
        for key in sorted((ours.keys() | expected.keys()) - free):
            value, place = ours.get(key), f"{where}{key}"
            wanted = by_path.get(place, expected.get(key))
            if key not in only.get(where.removesuffix("."), (key,)):
                if key in ours:  # and the class stops at it
                    yield Fact(place, shown(value), None, CONFIG_NAME)
            elif place in unread:
                continue
            elif isinstance(value, dict) and isinstance(wanted, dict if key in TABLES_OF_ROPE else dict | None):
                yield from walk(value, wanted or {}, f"{place}.")
            elif key not in overruled and unequal(value, wanted):
                fits = (
                    (True, (strictly(wanted),)),
                    (key == _CLASS, names),
                    (key in _TYPES, (None, whole.get(key), *floats)),  # no class of mlx-vlm reads a type
                    (of_text and key in untaken, (value,)),  # the source's class stops at it
                    (of_text and biased.get(key) is value is not None, (value,)),  # as tensors say
                    (of_text and key in follows, (follows.get(key),)),  # which is compared
                    (of_text and key in foreign, (None,)),
                    (wanted is None and key not in (_CLASS, *_TYPES), unsaid(key, value, expected, of_text)),
                )
                if all(unequal(value, one) for may, values in fits if may for one in values):
                    meant_here = whole.get(key) if wanted is None and of_text else wanted
                    yield Fact(place, shown(value), shown(meant_here), CONFIG_NAME)

    at_top = document.get(pair.text, {}) if engine is not None and engine.at_top else {}
    carried = {_CLASS, *tower.in_huggingface.tokens} & meant.keys()
    at_top = {key: value for key, value in at_top.items() if key not in carried}  # the text part's own
    yield from walk(document, {**meant, **at_top}, "")


def _of_own_defaults(pair: Pair) -> Iterator[Fact]:
    """Keys that are missing, of classes that have defaults of their own."""
    engine, config, text = pair.of_tower, pair.source.config, pair.family
    if engine is None or config is None:
        return
    each = [row for row in config_rows(text) if row.name != "context"]
    read_keys = {c.key for row in each for c in row.key_cells("hf") if MLX_LM in c.readers and "." not in c.key}
    wanted = dict(keyed_values(each, scope_of(text, config), "hf"))
    wanted = {key: value for key, value in wanted.items() if key in read_keys and value is not None}
    tied = "output.weight" not in pair.out.tensors
    wanted |= {_TIED: tied} if _TIED in document_words(text, "tied") else {}
    for key, value in wanted.items():
        if key not in pair.output or (key == _TIED and tied and pair.output[key] is not True):
            yield Fact(f"{pair.text}.{key}".lstrip("."), shown(pair.output.get(key)), shown(value), CONFIG_NAME)
    for path in engine.says:
        table, _, key = path.rpartition(".")
        if key not in ((pair.whole.get(table) or {}) if table else pair.whole):
            yield Fact(path, None, "one", CONFIG_NAME)


#: Rules of ``config.json``, and of which outputs each is.
_RULES: tuple[tuple[Callable[[Pair], bool], Callable[[Pair], Iterator[Fact]]], ...] = (
    (lambda pair: True, _of_needed),
    *((lambda pair: pair.made and pair.is_whole, rule) for rule in (_of_wholes, _of_own_defaults)),
    *((lambda pair: pair.of_text, rule) for rule in (_besides, _of_stored, _of_readers, _of_written)),
    (lambda pair: pair.of_text and pair.typed, _of_tables),
    (lambda pair: pair.of_text and not pair.typed, _of_words),
    (lambda pair: pair.of_text and pair.source.metadata_kind is MetadataKind.OWN, _of_roles),
    *((lambda pair: pair.out.config is not None, rule) for rule in (_of_class, _of_head)),
    (lambda pair: True, _of_engine),
    (lambda pair: not pair.typed, _of_source),
)


# -- Files ------------------------------------------------------------------------------------------------------------


def _of_files(pair: Pair) -> Iterator[Fact]:
    """Faults of files beside ``config.json``."""
    out, source, options = pair.out, pair.source, pair.options
    if out.shard_index is not None:
        yield from _of_index(out, source, out.shard_index.name)
    if "filters" in source.facts and out.path.is_dir():  # of a file that has no such document
        yield from _of_extractor(out, source)
    ours, expected = beside(out), beside(source) if not pair.typed else {}
    for name in (name for name in expected if re.fullmatch(CARRIED, name)):
        if name not in ours:
            if name in _REQUIRED and out.path.is_dir() and not is_edited(name, options):
                yield Fact(name, None, "one")
        elif any(found != meant for found, meant in zip_longest(pieces(ours[name]), pieces(expected[name]))):
            whole = ["chat_template"] if name == "chat_template.jinja" else []
            for fact in of_files(name, read_whole(ours[name]), read_whole(expected[name]), ours[name]):
                if not any(is_edited(word, options) for word in (*_tables_of(fact.key), *whole)):
                    yield fact


def _of_index(out: TensorIndex, source: TensorIndex, name: str) -> Iterator[Fact]:
    """Faults of the index of shards: files of tensors, and another size.

    No loader asks for the size, and a copy may say what its source says (DeepSeek V3: half of it).
    """
    document = json.loads(read_whole(out.path if out.shard_index is None else out.shard_index))
    stated, size = _total_of(out), sum(stored.extent.nbytes for stored in out.stored)
    if stated not in (None, _total_of(source), size):
        yield Fact("metadata.total_size", shown(stated), shown(size), name)
    for stored in out.stored:
        place = document["weight_map"].get(stored.name)
        if place != stored.extent.path.name:
            yield Fact(f"weight_map.{stored.name}", shown(place), repr(stored.extent.path.name), name)


def _of_extractor(out: TensorIndex, source: TensorIndex) -> Iterator[Fact]:
    """Faults of the document about the sound that a model hears."""
    assert source.config is not None
    path = beside(out).get(_EXTRACTOR)
    document = json.loads(read_whole(path)) if path is not None else {}
    yield from unlike(document, {**needed()["extractor"], "feature_size": source.config.scope["mels"]}, _EXTRACTOR)


def _total_of(index: TensorIndex) -> Any:
    if index.shard_index is None:
        return None
    return within(json.loads(read_whole(index.shard_index)), "metadata", "total_size")


def sees(index: TensorIndex) -> bool:
    """Whether tensors of a tower are stored."""
    document = document_of(index.metadata)
    return any(is_beside_text(document, stored.name) for stored in index.stored)


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Table of a document under a key; for an empty key the document."""
    found = document.get(key) if key else document
    return found if isinstance(found, dict) else {}


def config_rows(family: Family) -> list[Parameter]:
    """Parameters that no tensor of the model says."""
    by_tensors = {"tied", *switches(family)}
    return [row for row in family.parameters.values() if row.name not in by_tensors]


def keyed_values(rows: Iterable[Parameter], values: Mapping[str, Any], format: str) -> Iterator[tuple[str, Any]]:
    """Keys of a format, and what rows of a family make of parameters."""
    for row in rows:
        for cell in row.key_cells(format):
            with suppress(ExpressionError):
                if cell.alias or (cell.when is not None and not cell.when.value(with_value("stated", [], values))):
                    continue
                value, words = values[row.name], {word: own for own, word in cell.words.items()}
                if isinstance(value, list | tuple):
                    value = [words.get(item, item) if isinstance(item, str) else item for item in value]
                elif isinstance(value, str):
                    value = words.get(value, value)
                yield cell.key, with_it(cell.write, value, values) if cell.write else value
