"""Statements of two models compared: parameters, metadata, keys, files."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any
from unicodedata import normalize

from ckconv.core.config import CONFIG_KEYS
from ckconv.core.lazy import NamedTuple, table_of
from ckconv.core.metadata import (
    CONFIG_NAME,
    SETTINGS,
    TOKENIZER,
    VALUE_TYPES_BY_NAME,
    Content,
    Value,
    document_of,
    table_within,
    text_key,
    within,
)
from ckconv.core.options import Options
from ckconv.core.tensors import TensorIndex, stored_value
from ckconv.errors import quoted
from ckconv.families import schema
from ckconv.families.catalog import FAMILIES
from ckconv.families.huggingface_classes import UNREAD, default_of, is_recorded
from ckconv.families.keys import TABLES_OF_ROPE
from ckconv.formats import format_of, load
from ckconv.formats.gguf.values import LENGTH, VERSION
from ckconv.io.files import card_of, open_source, own_texts
from ckconv.io.json import Document, parse_object

#: Keys that have to be there, by format, and by model of the tokenizer.
NEEDED = Path(__file__).with_name("needed.toml")

CODE = "side.json"
_JSON = Document("the file", CODE, CODE, 1 << 30)
_CONFIG = _JSON._replace(lax=True)

#: Largest file beside a model that is read whole, in bytes.
_LIMIT = 1 << 30

#: Files for people: a model is the same without them, or with others.
FOR_PEOPLE = ("README.md", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "COPYING*", "CITATION*")

#: A run of a document without white space between its items.
_RUN = r'(?s)(?:"(?:[^"\\]++|\\.)*+"|[^\s"]++)++'

#: Keys of ``config.json`` under which a hyper-parameter may stand: at its top, in the text part, in tables of RoPE.
_SPELLINGS = (*CONFIG_KEYS.values(), (*TABLES_OF_ROPE, "rope_theta", "rope_base", "partial_rotary_factor"))

#: All of them: the comparison of hyper-parameters covers them, under whatever name. One may be missing where another of
#: them says it, or where its loader takes that very value (:func:`_is_read_without`).
COVERED = frozenset(key for keys in _SPELLINGS for key in keys)

#: What a fact is called that is about a document as a whole.
SPELLING = "spelling"

#: What says which program wrote a document, and not what the model is.
_OF_THE_WRITER = frozenset({"created_by", "manifest_hash"})

#: Document -> keys with which transformers 5 says how it was opened when it was saved (``PreTrainedTokenizerBase``).
_OF_THE_OPENER = {SETTINGS: frozenset({"backend", "is_local", "local_files_only"})}


class Fact(NamedTuple):
    """Something of which two models say different things; ``None`` is nothing.

    Attributes:
        key: of a header, or in a document; the name of a file that only one of them has, or that is no document.
        file: the document, empty for a header.
        idle: only one document says it, and whoever reads the other takes the same.
    """

    key: str
    found: str | None
    meant: str | None
    file: str = ""
    idle: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.file}: {quoted(self.key)}" if self.file else self.key

    def __str__(self) -> str:
        if self.meant is None:
            return f"{self.name} is {self.found}; expected none"
        if self.found is None:
            return f"{self.name} is missing; expected {self.meant}"
        return f"{self.name} is {self.found}; expected {self.meant}"


@cache
def needed() -> Mapping[str, Mapping[str, Any]]:
    """The table of what an output has to say."""
    return table_of(NEEDED)


def content_of_index(index: TensorIndex, named: Mapping[str, Path] | None = None) -> Content:
    """Metadata in, and files beside, the files of an open model.

    Args:
        named: side file -> where it is, if not beside the model.

    Raises:
        InputError: one of the files cannot be read.
    """
    found: Content = load(format_of(index.format).content)(index, named or {})
    return found._replace(files={**{name: read_whole(path) for name, path in found.paths.items()}, **found.files})


def read_whole(path: Path) -> bytes:
    """The bytes of a file beside a model."""
    with open_source(path) as source:
        return source.read_at(0, min(source.size or 0, _LIMIT))


def engine_row(index: TensorIndex) -> schema.Engine | None:
    """Row of the engine that files of this format are for."""
    loader = schema.OF_FORMAT.get(index.format)
    return FAMILIES[index.config.family].engines.get(loader.row) if loader is not None and index.config else None


def differences(
    found: Content, meant: Content, *, people: bool = True, spelled: bool = True, defaults: bool = False
) -> Iterator[Fact]:
    """Facts that ``found`` states differently.

    Args:
        people: files for people count.
        spelled: a hyper-parameter that one says in two words, for two readers, has to be stated in both.
        defaults: a class of transformers reads both, so that its defaults stand for keys.

    Raises:
        InputError: ``side.json``, a file that should be JSON is malformed.
    """
    from ckconv.formats.bump.sidefiles import MAP_NAME
    from ckconv.formats.bump.slots import FOOTER_NAME

    for key in found.keys:
        if key not in meant.keys:
            yield Fact(key, _described(found.keys[key]), None)
        elif found.keys[key] != meant.keys[key]:
            yield _of_keys(key, found.keys[key], meant.keys[key])
    for key in meant.keys:
        if key not in found.keys:
            yield Fact(key, None, _described(meant.keys[key]))
    for name in sorted({*found.files, *meant.files}):
        read = not any(fnmatchcase(name, pattern) for pattern in FOR_PEOPLE)
        if name not in meant.files:
            if read and name != MAP_NAME:
                yield Fact(name, "there", None)
        elif name not in found.files:
            if (read or people) and name not in (MAP_NAME, FOOTER_NAME):
                yield Fact(name, None, "one")
        elif found.files[name] != meant.files[name] and (read or people):
            yield from of_files(
                name, found.files[name], meant.files[name], found.paths.get(name, Path(name)), spelled, people, defaults
            )


def check_documents(index: TensorIndex, named: Mapping[str, Path] | None = None) -> None:
    """Hold the documents that loaders read beside a model against it.

    Args:
        named: document -> where it is, if not beside the model.

    Raises:
        VerifyError: ``verify.*``, they say something else.
        InputError: one is malformed.
    """
    if (check := format_of(index.format).documents) is not None:
        load(check)(index, named)


def check_json(content: Content) -> None:
    """Every file beside a model that should be JSON is.

    Raises:
        InputError: ``side.json``.
    """
    for name, data in content.files.items():
        if name.endswith(".json"):
            _parsed(name, data, content.paths.get(name, Path(name)))


def _parsed(name: str, data: bytes, path: Path) -> Any:
    """The document in a file of JSON.

    Objects are held to all that ckconv asks of JSON, lists (``vocab`` files) to being JSON.
    """
    if data.lstrip()[:1] == b"[":
        data = b'{"":' + data + b"}"
        return parse_object(data, _JSON, path)[""]
    return parse_object(data, _CONFIG if name == CONFIG_NAME else _JSON, path)


def of_files(
    name: str, output: bytes, meant: bytes, path: Path, spelled: bool = True, exact: bool = True, defaults: bool = False
) -> Iterator[Fact]:
    """Differences between two files: of documents values, else bytes.

    Args:
        spelled, defaults: as :func:`differences` has them.
        exact: two spellings of one tokenizer are a difference.
    """
    from ckconv.formats.bump.slots import FOOTER_NAME

    if not (name.endswith(".json") or name == FOOTER_NAME):
        at = next((n for n, pair in enumerate(zip(output, meant, strict=False)) if pair[0] != pair[1]), None)
        where = f" another from byte {at:,} on" if at is not None else ""
        yield Fact(name, f"of {len(output):,} bytes{where}", f"one of {len(meant):,}")
        return
    ours, expected = _parsed(name, output, path), _parsed(name, meant, Path(name))
    if not exact and name == TOKENIZER:
        ours, expected = _one_spelling(ours), _one_spelling(expected)
    config = name == CONFIG_NAME and isinstance(ours, dict) and isinstance(expected, dict)
    found = list(_of_values(ours, expected, "", _covered_in(ours, expected) if config else {}, spelled, defaults))
    opened = _OF_THE_OPENER.get(name, ())
    yield from (fact._replace(file=name) for fact in found if fact.key not in opened)
    # A number or a letter may be spelled in two ways: 1e-05 and 1E-05, \u00e9 and \u00E9. Only one is written.
    if not found and not _plainly_spelled(output, ours):
        yield Fact(SPELLING, "another", "one", name)


def _one_spelling(document: Any) -> Any:
    """Spell a ``tokenizer.json`` as tokenizers 0.20 does: merges as pairs."""
    model = within(document, "model")
    if not isinstance(within(model, "merges"), list):
        return document
    merges = [item.split(" ", 1) if isinstance(item, str) else item for item in model["merges"]]
    return {**document, "model": {"ignore_merges": False, **model, "merges": merges}}


#: Table of a ``config.json`` -> the document whose class reads its keys, of both models.
_Covered = Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]


def _covered_in(output: Mapping[str, Any], meant: Mapping[str, Any]) -> _Covered:
    """The tables of a ``config.json`` in which keys are :data:`COVERED`."""
    text = text_key(meant)
    found: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    for outer in dict.fromkeys(("", text)):
        tables = (output, meant) if not outer else (table_within(output, outer), table_within(meant, outer))
        found |= {f"{outer}.{rope}".strip("."): tables for rope in ("", *TABLES_OF_ROPE)}
    return found


def _is_read_without(
    key: str, value: Any, where: str, document: Mapping[str, Any], other: Mapping[str, Any] | None
) -> bool:
    """Whether a reader takes this value for a key that is not there.

    Args:
        document: that of the text model.
        other: the one that has the key, and has it for this document's readers; ``None`` where they may be others.
    """
    rope = where.rpartition(".")[2]
    if rope in TABLES_OF_ROPE:
        default = default_of(document, rope)
        taken = {"rope_type": "default"} | (default if isinstance(default, dict) else {})
        return bool(value == (taken | {"rope_theta": default_of(document, "default_theta")}).get(key))
    words = {word for keys in _SPELLINGS if key in keys for word in keys} - (other or {}).keys()
    if not words.isdisjoint(document):
        return True  # in another word, and compared as a hyper-parameter
    default = default_of(document, "default_theta" if key == "rope_theta" else key)
    if other is None and (not is_recorded(document) or key in _SPELLINGS[-1]):
        return True  # its own class's reader has taken a value, which is compared as a hyper-parameter
    return bool(default == value) or (other is None and default is UNREAD)


def _of_values(
    output: Any, meant: Any, where: str, covered: _Covered, spelled: bool, defaults: bool = False
) -> Iterator[Fact]:
    if isinstance(output, dict) and isinstance(meant, dict):
        ours, expected = covered.get(where, ({}, {}))
        for key in output | meant:
            place = f"{where}.{key}" if where else str(key)
            if key in output and key in meant:
                yield from _of_values(output[key], meant[key], place, covered, spelled, defaults)
                continue
            value, has, lacks = (output[key], ours, expected) if key in output else (meant[key], expected, ours)
            may_lack = where in covered and key in COVERED
            idle = may_lack and _is_read_without(key, value, where, lacks, has if spelled else None)
            if defaults and where in covered and is_recorded(lacks):
                default = default_of(lacks, key)
                nothing = value is None and default is UNREAD
                idle = idle or nothing or (type(default) is type(value) and default == value)
            if key in output:
                yield Fact(place, _described(value), None, idle=idle)
            elif not idle:
                yield Fact(place, None, _described(value))
    elif isinstance(output, list) and isinstance(meant, list) and len(output) == len(meant):
        for n, (one, other) in enumerate(zip(output, meant, strict=True)):
            yield from _of_values(one, other, f"{where}[{n}]", covered, spelled)
    elif (type(output) is not type(meant) or unequal(output, meant)) and where not in _OF_THE_WRITER:
        yield Fact(where, _described(output), _described(meant))


def is_named(names: Collection[str], globs: Iterable[str]) -> bool:
    """Whether one of them is of a tensor of these names.

    A name stands for itself too: a tensor's may hold the brackets of a glob.
    """
    return any(glob in names or any(fnmatchcase(name, glob) for name in names) for glob in globs)


def unequal(one: object, other: object) -> bool:
    """Whether two values of a document differ, where NaN equals NaN."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) != len(other) or any(map(unequal, one, other))
    return one != other and not (one != one and other != other)


def _plainly_spelled(data: bytes, value: Any) -> bool:
    """Whether the document is spelled as Python spells it, white space apart."""
    text = "".join(re.findall(_RUN, data.decode("utf-8", "replace")))
    return any(text == json.dumps(value, ensure_ascii=ascii, separators=(",", ":")) for ascii in (True, False))


def _described(value: Any) -> str:
    if isinstance(value, Value):
        return _of_gguf(value)
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value):,}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes ({hashlib.sha256(value).hexdigest()[:8]}...)"
    text = repr(value) if not isinstance(value, str) else quoted(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _of_gguf(value: Value) -> str:
    if value.type.startswith("arr["):
        (count,) = LENGTH[VERSION].unpack_from(value.payload, 4)
        return f"{value.type} of {count:,}"
    if value.type == "str":
        return _described(value.payload[LENGTH[VERSION].size :].decode("utf-8", "replace"))
    found = struct.unpack(f"<{VALUE_TYPES_BY_NAME[value.type].code}", value.payload)[0]
    return f"{found} ({value.type})"


def _of_keys(key: str, output: Any, meant: Any) -> Fact:
    """The difference between two values of a header, or items of lists."""
    both = isinstance(output, Value) and isinstance(meant, Value) and output.type == meant.type
    if both and output.type.startswith("arr["):
        ours, expected = items_of(output), items_of(meant)
        if len(ours) == len(expected):
            at = next((n for n, pair in enumerate(zip(ours, expected, strict=True)) if pair[0] != pair[1]), 0)
            return Fact(f"{key}[{at}]", _described(ours[at]), _described(expected[at]))
    return Fact(key, _described(output), _described(meant))


def items_of(value: Value) -> list[Any]:
    """The items of an array: numbers, and texts as their bytes say them."""
    kind = VALUE_TYPES_BY_NAME.get(value.type[4:-1])
    (count,) = LENGTH[VERSION].unpack_from(value.payload, 4)
    at = 4 + LENGTH[VERSION].size
    if kind is None or not count:
        return []
    if kind.size:
        return list(struct.unpack_from(f"<{count}{kind.code}", value.payload, at))
    found = []
    for _ in range(count):
        (length,) = LENGTH[VERSION].unpack_from(value.payload, at)
        at += LENGTH[VERSION].size
        found.append(value.payload[at : at + length].decode("utf-8", "surrogateescape"))
        at += length
    return found


def shown(value: Any) -> str | None:
    """A value as a fact has it."""
    if value is None:
        return None
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def unlike(
    found: Mapping[str, Any], meant: Mapping[str, Any], file: str = "", other: Callable[[Any, Any], bool] = unequal
) -> Iterator[Fact]:
    """Facts of an output that a second table has otherwise.

    Args:
        other: whether two values differ; ``None`` is nothing.
    """
    for key in sorted({*found, *meant}):
        if other(found.get(key), meant.get(key)):
            yield Fact(key, shown(found.get(key)), shown(meant.get(key)), file)


# -- General keys of a GGUF: name, type, types -------------------------------------------------------------------------

#: Keys of names that programs spell with other capitals and separators.
_TITLE = r"\.\d+\.(name|organization)$"
_TYPE, _NAME, FILE_TYPE, VERSION_KEY = (
    f"general.{key}" for key in ("type", "name", "file_type", "quantization_version")
)


def general_faults(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    """Faults of the keys at the head of a model's file."""
    table = needed()["general"]
    meant = {_TYPE: table["types"][out.tower is not None], VERSION_KEY: table["version"]}
    yield from unlike({key: stored_value(out, key) for key in meant}, meant)
    stated = _labels(source) if out.tower is None else {}
    labels = {key for key in out.metadata if key.startswith("general.")} - ({*table["own"]} - stated.keys())
    found = {key: stored_value(out, key) for key in labels}
    titles = {key: found.get(key) for key in stated if re.search(_TITLE, key)}  # of a dash, none is written
    alike = {key: it for key, it in titles.items() if _letters(str(it or "")) == _letters(stated[key])}
    yield from unlike(found, stated | alike)
    name, names = stored_value(out, _NAME), [*_names(source)]
    if name is None:
        words = [word for word in needed()["strips"]["names"] if any(word in one.lower() for one in names)]
        if not words and _letters(names[0]):  # words with which llama.cpp takes a tokenizer for Phi 3's
            yield Fact(_NAME, None, shown(names[0]))
    elif _letters(str(name)) not in map(_letters, names):
        yield Fact(_NAME, shown(name), shown(names[0]))
    yield from file_type_faults(out, options)


def _labels(source: TensorIndex) -> dict[str, Any]:
    """Labels in a GGUF, by what the card of its source says."""
    table, card = needed()["general"], card_of(source)._asdict()
    found: dict[str, Any] = {key: text for key, text in own_texts(source).items() if key != "name"}
    found |= {key: card[field] for key, field in table["labels"].items()}
    for key, (field, hub) in table["hub"].items():
        found[f"{key}.count"] = len(card[field])
        for number, item in enumerate(card[field]):
            owner, _, name = item.rpartition("/")
            parts = {"name": name, "organization": owner, "repo_url": f"{hub}{item}" * bool(owner)}
            found |= {f"{key}.{number}.{word}": text for word, text in parts.items()}
    return {f"general.{key}": [*value] if isinstance(value, tuple) else value for key, value in found.items() if value}


def _names(source: TensorIndex) -> Iterator[str]:
    """Names of a checkpoint.

    By its card, its configuration, or where it lies.
    """
    yield from filter(None, [own_texts(source).get("name")])
    origin = document_of(source.metadata).get("_name_or_path")
    yield from filter(None, [str(origin or "").rstrip("/").rpartition("/")[2]])
    for part in chain(reversed(source.path.absolute().parts), reversed(source.path.resolve().parts)):
        yield from (part, part.rpartition("--")[2])


def _letters(text: str) -> str:
    folded = normalize("NFKC", text.encode("utf-8", "replace").decode()).upper()  # of ligatures titles have letters
    return re.sub(r"[\W_]", "", normalize("NFKC", folded.casefold()))


def file_type_faults(out: TensorIndex, options: Options) -> Iterator[Fact]:
    """The fault of a file type that is not that of most matrices."""
    number, recipes = stored_value(out, FILE_TYPE), needed()["file_types"]["recipes"]
    words = (word.strip() for word in options.quantize.upper().split(",") if "=" not in word)  # for single matrices
    recipe = next((recipes[word] for word in words if word in recipes), None)
    meant = plain_types(out) if recipe is None else {recipe}
    if number not in meant:
        # llama.cpp counts types itself where no key says it (llama_model_loader), and shows the number to people
        yield Fact(FILE_TYPE, shown(number), " or ".join(map(str, sorted(meant))), idle=number is None)


def made_by(index: TensorIndex, blocks: Collection[str]) -> str:
    """Type or recipe of blocks, as far as an output shows it; else empty.

    Args:
        blocks: types of the blocks.
    """
    table, stored = needed()["file_types"], stored_value(index, FILE_TYPE)
    plain = [name for name, number in table["plain"].items() if [name] == [*blocks] and stored in (None, number)]
    return next(iter(plain or (name for name, number in table["recipes"].items() if number == stored)), "").lower()


def plain_types(index: TensorIndex) -> set[int]:
    """Numbers of the types that most matrices have."""
    counts = Counter(stored.dtype.name for stored in index.stored if len(stored.shape) > 1)
    floats = counts.pop("F32", 0)  # some have to be, whatever the others are
    most = max(counts.values(), default=0)
    fits = {name for name, count in counts.items() if count == most} | ({"F32"} if floats >= most else set())
    return {needed()["file_types"]["plain"].get(name, 0) for name in fits}
