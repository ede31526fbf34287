"""Edits of JSON documents by ``--set-meta`` and ``--drop-meta``.

A key goes to every document that has it, else to the one whose class reads it: ``config.json``,
``generation_config.json`` or ``tokenizer_config.json``. ``FILE:KEY`` names the document, ``a.b`` a key in an object.
"""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.core.config import CONFIG_KEYS, ModelConfig
from ckconv.core.layouts import DTYPES, WIDENS_TO_F32
from ckconv.core.lazy import replace, table_of
from ckconv.core.metadata import (
    CONFIG_NAME,
    GENERATION,
    METADATA,
    PART,
    QUANTIZATION_KEYS,
    SETTINGS,
    TOKENIZER,
    WHOLE,
    SideFile,
    closed,
    opened,
    pieces_of,
    text_key,
)
from ckconv.core.tensors import HEAD, parse
from ckconv.errors import InputError, UnsupportedError, UsageError, an, nearest, quoted
from ckconv.families import axes, catalog
from ckconv.families.huggingface_classes import Accepts, accepted_by, accepts, is_on, switches_of
from ckconv.families.huggingface_config import huggingface_config, huggingface_family, text_part
from ckconv.families.keys import CONSUMERS, MLX_LM, TABLES_OF_ROPE, Kind
from ckconv.families.schema import OF_FORMAT, Family
from ckconv.families.sizes import Scope, canonical_shape, expected, layers_with
from ckconv.families.towers import reader_of, tower_of_document
from ckconv.formats.safetensors.config_json import header_key, own_metadata, strict
from ckconv.io.files import head_is_embedding
from ckconv.io.json import Document, parse_object
from ckconv.plan.planner import row_reasons
from ckconv.plan.steps import Change, Plan, Reason
from ckconv.tokenizer.checkpoint import words_of_document

KEYS = Path(__file__).with_name("document_keys.toml")

_SPECIAL = "special_tokens_map.json"
_DOCUMENTS = (CONFIG_NAME, GENERATION, SETTINGS)
_JINJA, _TEMPLATE = "chat_template.jinja", "chat_template"
_LIMIT = 64 << 20

#: Roles of tokens that may be named by their text, and those whose ids stand in ``config.json``.
_ROLES = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")
_NUMBERED = ("bos", "eos", "pad")

#: Keys that follow from the tensors.
_DECIDED = {
    *(key for field in ("num_layers", "hidden_size", "ffn_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size",
                        "num_experts", "expert_ffn_size") for key in CONFIG_KEYS[field]),
    *QUANTIZATION_KEYS,
}  # fmt: skip


#: Types that no quantizer packs codes in: of values, and of buffers such as ``position_ids``.
_PLAIN = WIDENS_TO_F32 | {DTYPES["I64"]}

#: Instead of a value: the key goes.
_NOTHING = object()


class _Place(NamedTuple):
    """Where a key stands: a document, and the keys that lead to it."""

    file: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {'.'.join(key for key in self.path if key != WHOLE)}"


def with_edits(plan: Plan) -> Plan:
    """Plan with edited documents; ``changes`` and notes name the edits.

    Raises:
        UsageError: ``usage.meta``, a value of another type, a key that the tensors decide, a glob that names nothing,
            or a configuration that no reader would take.
    """
    edits = _Edits(plan)
    for key, text in plan.options.set_meta:
        edits.set(key, text)
    for glob in plan.options.drop_meta:
        edits.drop(glob)
    edits.check()
    made = (*edits.header_changes(), *edits.changes)
    container = plan.contents()
    container = container._replace(side_files=dict(sorted({**container.side_files, **edits.files()}.items())))
    return replace(
        plan,
        contents=lambda: container,
        changes=tuple(one for one in made if one.old is None or repr(one.old) != repr(one.new)),
        notes=(*plan.notes, *edits.notes),
        refusals=(*plan.refusals, *edits.refusals),
    )


@cache
def _rows() -> Mapping[str, Mapping[str, str]]:
    """Document -> key -> types, of those beside ``config.json``."""
    tables = table_of(KEYS)
    return {
        file: {key: kinds for kinds, keys in table.items() for key in keys.split()} for file, table in tables.items()
    }


class _Edits:
    """The documents of one output, while flags change them."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._index = plan, plan.index
        self._side: Mapping[str, SideFile] = plan.contents().side_files
        self._before = {name: self._parsed(name) for name in (*_DOCUMENTS, _SPECIAL)}
        self._after = copy.deepcopy(self._before)
        self._texts: dict[str, bytes] = {}
        self._flag, self._set_by = "", dict[_Place, tuple[str, Any]]()
        self.changes: list[Change] = []
        self.notes: list[str] = []
        self.refusals: list[Reason] = []

    def _parsed(self, name: str) -> dict[str, Any]:
        if name not in self._side:
            return {}
        data = b"".join(pieces_of(self._side[name]))
        document = parse_object(data, Document("document", "usage.meta", "usage.meta", _LIMIT, lax=True), Path(name))
        return opened(document) if name == CONFIG_NAME else document

    # -- What flags do

    def set(self, key: str, text: str) -> None:
        """``--set-meta``."""
        if header_key(self._index, key):
            return  # the headers have it
        self._flag = key
        role, _, kind = key.rpartition("_")
        if kind == "token" and role in _ROLES and SETTINGS in self._side:
            self._set_token(role, text)
        elif key == _TEMPLATE and _JINJA in self._side:
            self._texts[_JINJA] = text.encode()
            self.changes.append(
                Change(_JINJA, b"".join(pieces_of(self._side[_JINJA])).decode("utf-8", "replace"), text)
            )
        else:
            for place in self._targets(key):
                self._put(place, self._value(place, text))

    def drop(self, glob: str) -> None:
        """``--drop-meta``."""
        headers = [*own_metadata(self._index)]
        found = any(fnmatchcase(name, glob) for key in headers for name in (key, f"{METADATA}.{key}"))
        for file in (*_DOCUMENTS, _SPECIAL):
            inner = text_key(self._after[file])
            tables = [(*at, *table) for table in ((), *zip(TABLES_OF_ROPE)) for at in ((), (inner,))] + [(WHOLE,)]
            nested = [(*at, key) for at in tables for key in _table(self._after[file], (*at, "")) or ()]
            for path in nested:
                key = path[-1]
                words = [
                    ".".join((*path[:-2], *word)) for word in _spellings(path[-2:])
                ]  # in the other table of RoPE, too
                names = (key, ".".join(path), *words, f"{file}:{key}" if ":" in glob else key)
                if not any(fnmatchcase(name, glob) for name in names):
                    continue
                if _table(self._after[file], path) is None:  # gone with the table that it was in
                    continue
                stale = key in QUANTIZATION_KEYS and all(one.dtype in _PLAIN for one in self._index.stored)
                stale |= key not in QUANTIZATION_KEYS and self._switches(key)  # of other families a size
                stale |= key == inner == self._stray and not self._after[file][key]
                if file == CONFIG_NAME and (key in self._decided or key in ("model_type", "text_config")) and not stale:
                    message = f"--drop-meta {glob} would drop {key}, without which nothing loads the model"
                    raise UsageError("usage.meta", message)
                found = True
                self._put(_Place(file, path), _NOTHING)
        if not found:
            raise UsageError("usage.meta", f"--drop-meta {glob} matches no key")

    def _check_token(self, key: str, text: str, words: Mapping[str, int]) -> None:
        if text not in words:
            near = nearest(text, words)
            hint = f"there is {quoted(near)}" if near else "tokenizer.json lists them"
            raise UsageError("usage.meta", f"--set-meta {key}: no token is {quoted(text)}", hint=hint)

    def _set_token(self, role: str, text: str) -> None:
        words, key = self._words(), f"{role}_token"
        self._check_token(key, text, words)
        for file in (SETTINGS, *([_SPECIAL] if key in self._before[_SPECIAL] else [])):
            old = self._before[file].get(key)
            self._put(_Place(file, (key,)), {**old, "content": text} if isinstance(old, dict) else text)
        targets = [place for place in self._there(f"{key}_id") if place.file != SETTINGS]
        for place in targets or [_Place(CONFIG_NAME, (f"{key}_id",))][: role in _NUMBERED]:
            self._put(place, words[text])

    def _words(self) -> dict[str, int]:
        document = self._parsed(TOKENIZER)
        added = document.get("added_tokens") or []
        return words_of_document(document) | {item["content"]: item["id"] for item in added if isinstance(item, dict)}

    # -- Where a key stands

    def _there(self, key: str) -> list[_Place]:
        """The paths of a key that documents have."""
        found = []
        for file in _DOCUMENTS:
            document, split = self._after[file], tuple(key.removeprefix(f"{PART}.").split("."))
            inner = text_key(document)
            words = [(*outer, *word) for outer in ((), (inner,), (WHOLE,)) for word in _spellings(split)]
            named = [path for path in dict.fromkeys(((key,), *words)) if _has(document, path)]
            values = [(_table(document, path) or {})[path[-1]] for path in named]
            named = [
                path for path, value in zip(named, values, strict=True) if value == values[0]
            ]  # twice, for two readers
            rope = [(*at, table, key) for at in ((), (inner,)) for table in TABLES_OF_ROPE]
            outer = [at for at in ((), (inner,)) if len(split) > 1 and _has(document, (*at, *split[:-1]))][:1]
            tables = [word for word in _spellings(split) if len(word) > 1]
            within = [(*at, *word) for at in outer for word in tables if _has(document, (*at, *word[:-1]))]
            found += [
                _Place(file, path) for path in [*named, *(path for path in rope if _has(document, path))] or within
            ]
        return found

    def _targets(self, key: str) -> list[_Place]:
        file, colon, name = key.partition(":")
        if colon and file not in _DOCUMENTS:
            message = f"--set-meta {key}: {quoted(file)} is no document with keys"
            raise UsageError("usage.meta", message, hint=f"{', '.join(_DOCUMENTS)} are")
        if colon:
            return [_Place(file, (name,) if name in self._after[file] else tuple(name.split(".")))]
        if found := self._there(key):
            return found
        files = [file for file, rows in _rows().items() if key in rows and not key.endswith("_token_id")]
        inner = text_key(self._after[CONFIG_NAME])
        return [
            _Place(files[0], (key,)) if files else _Place(CONFIG_NAME, (key,) if inner == self._stray else (inner, key))
        ]

    @property
    def _own(self) -> Mapping[str, Any]:
        """The decoder's part of ``config.json``."""
        return text_part(self._after[CONFIG_NAME])

    @property
    def _stray(self) -> str:
        """The key of a text part that a text model has beside its own keys."""
        config, key = self._index.config, text_key(self._before[CONFIG_NAME])
        return key if config is not None and any(one.key == key for one in config.modifiers) else ""

    @property
    def _decided(self) -> frozenset[str]:
        """Keys that follow from the tensors, by the family's words too."""
        family = huggingface_family(self._after[CONFIG_NAME])
        rows = [row for name, row in family.parameters.items() if name in catalog.SIZES] if family else []
        return frozenset(_DECIDED) | {cell.key for row in rows for cell in row.key_cells("hf") if cell.read is None}

    def _names(self) -> list[str]:
        family = huggingface_family(self._after[CONFIG_NAME])
        return [*family.document.keys.keys] if family else []

    def _switches(self, key: str) -> bool:
        family = huggingface_family(self._after[CONFIG_NAME])
        known = family.document.keys.keys.get(key) if family else None
        return known is not None and known.kind is Kind.MODIFIER

    def _known(self, key: str) -> bool:
        return key in self._names() or accepted_by(str(self._own.get("model_type", "")), key) is not None

    # -- Values

    def _value(self, place: _Place, text: str) -> Any:
        """Text as a value of the class's type, or of the old value's."""
        key = place.path[-1]
        if place.file == CONFIG_NAME and key in self._decided and self._index.config is not None:
            raise UsageError("usage.meta", f"--set-meta cannot set {key}: the tensors decide it")
        table = _table(self._after[place.file], place.path) or {}
        old, kinds = table.get(key), _rows().get(place.file, {}).get(key)
        accepted: Accepts | None = accepts(kinds) if kinds else None
        if place.file == CONFIG_NAME and len(place.path) == 1 + bool(text_key(self._after[CONFIG_NAME])):
            accepted = accepted_by(str(self._own.get("model_type", "")), key)
        named = key.endswith("_token") and key.removesuffix("_token") in _ROLES and text != "null"
        if place.file == SETTINGS and named and TOKENIZER in self._side:
            self._check_token(str(place), text, self._words())
        for value in _readings(text):
            if accepted(value) if accepted else old is None or type(value) is type(old):
                return value
        message = f"--set-meta {place}: {quoted(text)} is not of its type"
        raise UsageError("usage.meta", message, hint=f"it is {json.dumps(old)} now" if old is not None else "")

    def _put(self, place: _Place, new: Any) -> None:
        table = _table(self._after[place.file], place.path)
        if table is None:
            raise UsageError("usage.meta", f"--set-meta {place}: {'.'.join(place.path[:-1])} is no object there")
        key, old = place.path[-1], table.get(place.path[-1])
        if new is _NOTHING:
            del table[key]
            new = None
        else:
            other, value = self._set_by.get(place, (self._flag, new))
            if other != self._flag and value != new:
                text = f"--set-meta {other} and {self._flag} would have {place} say {value!r} and {new!r}"
                raise UsageError("usage.meta", text)
            self._set_by[place], table[key] = (self._flag, new), new
        self.changes.append(Change(str(place), old, new))
        if place.file == CONFIG_NAME and len(place.path) == 1 + bool(text_key(self._after[CONFIG_NAME])):
            self._note_unread(key, new)
        config = self._index.config
        for number in new if isinstance(new, list) else [new]:
            if key.endswith("_token_id") and type(number) is int and config and number >= config.vocab_size:
                text = f"--set-meta {key}={number}: there are {config.vocab_size:,} tokens"
                self.refusals = [Reason(text, f"the last one is {config.vocab_size - 1}")]

    def _note_unread(self, key: str, new: Any) -> None:
        family, consumer = huggingface_family(self._after[CONFIG_NAME]), CONSUMERS[self._plan.format]
        readers = [one for one in CONSUMERS.values() if family and family.document.keys.reads(key, one)]
        if new is not None and readers and consumer not in readers:
            self.notes.append(f"{consumer} does not read {key} of config.json, {readers[0]} does")
        if new is None or not self._names() or self._known(key) or any(key in rows for rows in _rows().values()):
            return
        near = nearest(key, self._names(), 0.8)
        meant = f"; did you mean {near}?" if near else ""
        model_type = self._own.get("model_type")
        self.notes.append(f"no known class of {model_type} reads {key} of config.json{meant}")

    # -- What comes of it

    def check(self) -> None:
        """Read the configuration as the target's loader does."""
        document, index = self._after[CONFIG_NAME], self._index
        if document == self._before[CONFIG_NAME] or index.config is None:
            return
        family = huggingface_family(document)
        self._check_kind(family)
        if family is None:
            self.notes.append(f"ckconv knows no model_type {quoted(str(self._own.get('model_type')))}")
            return
        consumer = CONSUMERS[self._plan.format]
        try:
            made = huggingface_config(document, family, index.stored, Path(CONFIG_NAME), consumer=consumer)
        except InputError as error:
            raise UsageError("usage.meta", f"config.json would say something malformed: {error.message}") from None
        if made.family == index.config.family:
            for each in (made, *self._by_one_key(family, document)):
                self._check_shapes(family, index.config, each)
            self._check_groups(family, made)
        elif made.tied is False and HEAD not in index.tensors:
            text = f"config.json would make it {an(made.family)} with a head of its own, and the tensors have none"
            raise UsageError("usage.meta", text, hint=f"--set-meta {catalog.tie_word(made)}=true, too, ties it")
        if (stray := self._stray) and stray in document:
            text = f"config.json has {stray}, and {made.family} is a text model: transformers loads none that has one"
            raise UsageError(
                "usage.meta", text, hint=None if document[stray] else f"--drop-meta {stray}, too, drops it"
            )
        reader, edited = reader_of(consumer, document), self._edited()
        for modifier in sorted({*made.modifiers} - {*index.config.modifiers}):
            note = modifier.replace(f"which {consumer} takes", f"which {reader} takes")
            key = modifier.partition(" ")[0]
            table = key.partition(".")[0]
            if table in TABLES_OF_ROPE and index.format != self._plan.format and edited.isdisjoint((key, table)):
                text = f"config.json would say {note.removesuffix(',')}"
                raise UsageError("usage.meta", text, hint=f"--drop-meta {table}, too, drops what is left of it")
            self.notes.append(f"{note} changes what is computed: ckconv converts no such {family.name}")
        before = self._otherwise(index.config)
        self.notes += [text for text in self._otherwise(made) if text not in before]

    def _check_groups(self, family: Family, made: ModelConfig) -> None:
        """Refuse groups of experts at which classes stop, or choose at random."""
        consumer = CONSUMERS[self._plan.format]
        rows = [family.parameters[name] for name in ("groups", "groups_used") if name in family.parameters]
        keys = {cell.key for row in rows for cell in row.key_cells("hf") if consumer in cell.readers}
        edited = {key.rpartition(".")[2] for key in self._edited()}
        groups, chosen, experts = (made.scope.get(name) or 0 for name in ("groups", "groups_used", "experts"))
        if keys.isdisjoint(edited) or (groups <= 1 and consumer == MLX_LM):
            return
        if null := sorted(key for key in keys if self._own.get(key, 0) is None):
            raise UsageError("usage.meta", f"{null[0]} would be null, with which no class computes")
        if not groups or experts % groups or not 0 < chosen <= groups:
            text = f"{', '.join(sorted(keys))}: of {groups} groups of {experts} experts {chosen} would be chosen"
            raise UsageError("usage.meta", f"{text}, which no class computes")

    def _edited(self, *, only_set: bool = False) -> frozenset[str]:
        return frozenset(one.key.rpartition(" ")[2] for one in self.changes if one.new is not None or not only_set)

    def _otherwise(self, config: ModelConfig) -> list[str]:
        """Why engines of other formats would compute something else."""
        tied = HEAD not in self._index.tensors
        rows = partial(row_reasons, config, context=config.context_length, tied=tied, equal=tied)
        return [reason.text for loader in OF_FORMAT.values() for reason in rows(loader)]

    def _by_one_key(self, family: Family, document: Mapping[str, Any]) -> Iterator[ModelConfig]:
        """Models of readers that go by one of the edited keys alone."""
        own, consumer = text_key(document), CONSUMERS[self._plan.format]
        for key in self._edited(only_set=True):
            rows = [{cell.key for cell in row.key_cells("hf")} for row in family.parameters.values()]
            others = {other for keys in rows if key in keys for other in keys} - {key}
            if others and family.document.keys.reads(key, consumer):
                less = {name: value for name, value in self._own.items() if name not in others}
                alone = {**document, own: less} if isinstance(document.get(own), dict) else less
                with suppress(InputError, UnsupportedError):  # what is read without the others is not known
                    yield huggingface_config(alone, family, self._index.stored, Path(), consumer=consumer)

    def _check_shapes(self, family: Family, config: ModelConfig, made: ModelConfig) -> None:
        """Check that the same layers have matrices of the same shapes."""
        rows = [row for row in family.tensors.values() if row.layers is not None]
        now, then = (Scope(family, one.scope) for one in (config, made))
        moved = any([*layers_with(family, row, now)] != [*layers_with(family, row, then)] for row in rows)
        scheme = "mlx" if self._plan.format == "mlx" else "hf"
        counts, wanted = (expected(family, scheme, one.scope) for one in (config, made))
        tensors = self._index.tensors
        there = Counter(parse(name).pattern for name in tensors)
        others = {name for name, _ in counts.items() ^ wanted.items()}
        moved = moved or any(there[name] != wanted.get(name, 0) for name in others) or self._moves_biases(made, there)
        of_each = {parse(tensor.name).pattern: tensor for tensor in tensors.values()}.values()
        resized = any(_is_resized(family, config, made, one.name, one.shape) for one in of_each)
        if not moved and not resized and not self._moves_head(family, made):
            return
        keys = [(change.key.rpartition(" ")[2], change.old) for change in self.changes if CONFIG_NAME in change.key]
        says = f"{', '.join(key for key, _ in keys)} {'together say' if keys[1:] else 'says'}"
        what = "which shapes tensors have" if resized and not moved else "which layers have which tensors"
        what = what if moved or resized else "which head there is"
        before = self._before[CONFIG_NAME]
        was = (f"{key} = {json.dumps(old)}" if _has(before, key.split(".")) else f"no {key}" for key, old in keys)
        hint = f"they are those of {', '.join(was)}"
        raise UsageError("usage.meta", f"{says} {what}, and a copy has the source's", hint=hint)

    def _moves_biases(self, made: ModelConfig, there: Mapping[str, int]) -> bool:
        """Whether a switch says other biases than the copy has."""
        consumer = CONSUMERS[self._plan.format]
        before = text_part(self._before[CONFIG_NAME])
        for key, patterns in switches_of(made, consumer).items():
            was, now = (is_on(made, key, document, consumer) for document in (before, self._own))
            if was is not now and now is not any(there[name] for name in patterns):
                return True
        return False

    def _moves_head(self, family: Family, made: ModelConfig) -> bool:
        """Whether the class invents a head, or MLX's ignores the stored head."""
        index, consumer = self._index, CONSUMERS[self._plan.format]
        before = huggingface_config(self._before[CONFIG_NAME], family, index.stored, Path(), consumer=consumer)
        if made.tied is None or bool(before.tied) is made.tied:
            return False
        if made.tied:
            return HEAD in index.tensors and self._plan.format == "mlx" and not head_is_embedding(index)
        return HEAD not in index.tensors

    def _check_kind(self, family: Family | None) -> None:
        """Check that an edited document names the class of the tensors."""
        index = self._index
        assert index.config is not None
        seen = tower_of_document(self._before[CONFIG_NAME])
        sees = tower_of_document(self._after[CONFIG_NAME])
        texts = an(index.config.family), an(family.name if family else index.config.family)
        towers = tuple(an(found.name) if found else "a model without a known tower" for found in (seen, sees))
        for was, made in (texts, towers):
            if was == made:
                continue
            text = f"config.json would make it {made}, and its tensors are those of {was}"
            if index.format != self._plan.format or index.tower is not None:
                raise UsageError("usage.meta", text, hint="convert it first; edit changes what a document says")
            self.notes.append(text)

    def files(self) -> dict[str, bytes]:
        """Every file that is another."""
        changed = {
            name: (json.dumps(strict(closed(after)), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
            for name, after in self._after.items()
            if after != self._before[name]
        }
        return {**changed, **self._texts}

    def header_changes(self) -> Iterator[Change]:
        """Changes in the headers of the files."""
        before, options = own_metadata(self._index), self._plan.options
        for key, text in options.set_meta:
            if name := header_key(self._index, key):
                yield Change(f"{METADATA}.{name}", before.get(name), text)
        for key, text in before.items():
            if any(fnmatchcase(name, glob) for glob in options.drop_meta for name in (key, f"{METADATA}.{key}")):
                yield Change(f"{METADATA}.{key}", text, None)


def _is_resized(family: Family, config: ModelConfig, made: ModelConfig, name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor has the shape of one configuration and not of another."""
    if canonical_shape(family, config.scope, name) != shape:
        return False
    try:
        return canonical_shape(family, made.scope, name) != shape
    except axes.AxesError:
        return True


def _spellings(path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Where a word of RoPE's scaling stands, for readers of either table."""
    yield path
    for table in TABLES_OF_ROPE if len(path) > 1 and path[0] in TABLES_OF_ROPE else ():
        yield from ((table, path[-1]), path[-1:])


def _has(document: dict[str, Any], path: Sequence[str]) -> bool:
    return path[-1] in (_table(document, path) or {})


def _table(document: dict[str, Any], path: Sequence[str]) -> dict[str, Any] | None:
    """Object that holds the last key of a path; else ``None``."""
    for key in path[:-1]:
        inner = document.get(key)
        if not isinstance(inner, dict):
            return None
        document = inner
    return document


def _readings(text: str) -> Iterator[Any]:
    """Meanings of a text, in order: JSON, a real number, the text."""
    try:
        value = json.loads(text, parse_constant=lambda _: math.nan)
    except ValueError:
        yield text
        return
    if value == value:
        yield value
        if type(value) is int:
            yield float(value)
    yield text
