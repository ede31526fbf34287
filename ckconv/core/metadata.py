"""Metadata: typed values, model cards, documents and side files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct, pack, unpack_from
from typing import Any

from ckconv.core.layouts import Kind
from ckconv.core.lazy import NamedTuple, dataclass
from ckconv.core.tensors import StoredTensor, TensorIndex

# Metadata values that say their type, and their bytes: those of GGUF.
#
# Numbers are little-endian, counts and lengths 64 bits. Source: ``docs/gguf.md`` of ggml-org/ggml.

U32 = Struct("<I")
U64 = Struct("<Q")


class ValueType(NamedTuple):
    """A type of metadata value.

    ``code`` is its format for :mod:`struct`, ``size`` its bytes; strings have neither.
    """

    id: int
    name: str
    code: str = ""
    size: int = 0

    @property
    def integer(self) -> bool:
        """Whether a value is a whole number, and no ``bool``."""
        return self.code in "bBhHiIqQ" and self.size > 0


STRING = ValueType(8, "str")
ARRAY = ValueType(9, "arr")
BOOL = ValueType(7, "bool", "?", 1)

#: id -> type (``enum gguf_type``).
VALUE_TYPES: dict[int, ValueType] = {
    t.id: t
    for t in (
        ValueType(0, "u8", "B", 1),
        ValueType(1, "i8", "b", 1),
        ValueType(2, "u16", "H", 2),
        ValueType(3, "i16", "h", 2),
        ValueType(4, "u32", "I", 4),
        ValueType(5, "i32", "i", 4),
        ValueType(6, "f32", "f", 4),
        BOOL,
        STRING,
        ARRAY,
        ValueType(10, "u64", "Q", 8),
        ValueType(11, "i64", "q", 8),
        ValueType(12, "f64", "d", 8),
    )
}
VALUE_TYPES_BY_NAME: dict[str, ValueType] = {t.name: t for t in VALUE_TYPES.values()}


class Value(NamedTuple):
    """A metadata value as written: ``type`` (``u32``, ``arr[str]``) and bytes.

    The bytes are those behind the type's number.

    Those of an array begin with the element type and the count.
    """

    type: str
    payload: bytes

    @property
    def nbytes(self) -> int:
        """Bytes in the file, the type's number included."""
        return U32.size + len(self.payload)


def scalar(type: str, value: str | int | float | bool) -> Value:
    """A value of a scalar type.

    Raises:
        struct.error, OverflowError: the number does not fit into the type.
    """
    return Value(type, _elements(VALUE_TYPES_BY_NAME[type], (value,)))


def array(type: str, values: Sequence[str | int | float | bool]) -> Value:
    """An array of ``type`` elements.

    Raises:
        struct.error, OverflowError: as :func:`scalar`.
    """
    kind = VALUE_TYPES_BY_NAME[type]
    return raw_array(type, len(values), _elements(kind, values))


def raw_array(type: str, count: int, elements: bytes) -> Value:
    """Array whose elements are there as a file of version 2 or 3 stores them."""
    return Value(f"arr[{type}]", U32.pack(VALUE_TYPES_BY_NAME[type].id) + U64.pack(count) + elements)


def _elements(kind: ValueType, values: Sequence[str | int | float | bool]) -> bytes:
    if kind is STRING:
        return b"".join(string(str(value)) for value in values)
    return pack(f"<{len(values)}{kind.code}", *values)


def string(text: str) -> bytes:
    """A length and UTF-8; lone surrogates become bytes (``surrogateescape``)."""
    data = text.encode("utf-8", "surrogateescape")
    return U64.pack(len(data)) + data


# A configuration and a header's own metadata as one mapping: that of an index.

#: The configuration of a checkpoint, in its directory; that of a bump file beside it has the same name.
CONFIG_NAME = "config.json"

#: Documents beside it: how a text is made longer, and cut into tokens.
GENERATION, TOKENIZER, SETTINGS = "generation_config.json", "tokenizer.json", "tokenizer_config.json"

#: Key of a drafter's configuration, as it is read -> that of the model that it drafts for.
TARGET = "target"

#: The key of a safetensors header's own metadata.
METADATA = "__metadata__"


def joined_metadata(header: Mapping[str, str], document: Mapping[str, Any]) -> dict[str, Any]:
    """Join a header's ``__metadata__``, marked as such, and a configuration."""
    return {**{f"{METADATA}.{key}": value for key, value in header.items()}, **document}


def within(document: Any, *keys: str) -> Any:
    """Value under keys of objects within each other; ``None`` for none."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict | Mapping) else None
    return document


def table_within(document: Any, *keys: str) -> dict[str, Any]:
    """The object there, as :func:`within`; empty for none."""
    found = within(document, *keys)
    return found if isinstance(found, dict) else {}


def list_within(document: Any, *keys: str) -> list[Any]:
    """The list there, as :func:`within`; empty for none."""
    found = within(document, *keys)
    return found if isinstance(found, list) else []


def document_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration out of :func:`joined_metadata`."""
    return {key: value for key, value in metadata.items() if not key.startswith(f"{METADATA}.")}


#: Key of the configuration of a part that thinks, as it is read -> what that of the whole, which speaks too, says
#: besides. The part's tensors are called as its class calls them, behind ``thinker.``.
WHOLE, PART, THINKER = "(whole)", "thinker_config", "thinker."


def opened(document: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the part that thinks, of a whole that has one."""
    part = document.get(PART)
    if not isinstance(part, dict):
        return dict(document)
    rest = {key: value for key, value in document.items() if key != PART}
    return {**{key: rest[key] for key in QUANTIZATION_KEYS if key in rest}, **part, WHOLE: rest}


def closed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the whole again, of :func:`opened`."""
    rest = document.get(WHOLE)
    if not isinstance(rest, dict):
        return dict(document)
    taken = {key for key in QUANTIZATION_KEYS if key in rest and rest[key] == document.get(key)}
    part = {key: value for key, value in document.items() if key not in (WHOLE, *taken)}
    types = {key: part[key] for key in ("dtype", "torch_dtype") if key in part and key in rest}
    return {**rest, **types, PART: part}


#: What a drafter of the package speculators calls the configuration of its layer.
LAYER_TABLE = "transformer_layer_config"

#: What a configuration of several modalities calls the text part's: transformers' classes, and code of InternVL and
#: DeepSeek.
_TEXT_KEYS = ("text_config", "llm_config", "language_config", LAYER_TABLE)


def text_key(document: Mapping[str, Any]) -> str:
    """The key of the text part's configuration; empty for a text model."""
    return next((key for key in _TEXT_KEYS if isinstance(document.get(key), dict)), "")


def text_table(document: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration of the text part; empty for a text model."""
    return document[key] if (key := text_key(document)) else {}


def text_on_top(document: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration with the keys of its text part over its own."""
    return {**document, **text_table(document)}


#: Keys of ``config.json`` about how tensors are quantized: MLX's, everybody's, and compressed-tensors' old one.
QUANTIZATION_KEYS = ("quantization", "quantization_config", "compression_config")

#: Those that no document of one part has.
UNWRITTEN = (*QUANTIZATION_KEYS, WHOLE)


def unquantized(document: Mapping[str, Any], *, by: str = "") -> dict[str, Any]:
    """A configuration without quantization keys, inner ones included.

    Args:
        by: of objects that have this key, what they say stays.
    """
    return {
        key: unquantized(value, by=by) if key.endswith("_config") and isinstance(value, dict) else value
        for key, value in document.items()
        if key not in QUANTIZATION_KEYS or (by and (not isinstance(value, dict) or by in value))
    }


def without_stale(document: Mapping[str, Any], stored: Iterable[StoredTensor]) -> dict[str, Any]:
    """A configuration of floats without MLX's ``quantization``.

    MLX's objects name no ``quant_method``, without which transformers does not load a model.
    """
    without = unquantized(document, by="quant_method")
    if without != document and all(tensor.dtype.kind is Kind.FLOAT for tensor in stored if len(tensor.shape) > 1):
        return without
    return dict(document)


# What a model card says of a model: the front matter of a README.md, or the ``general.*`` keys of typed metadata.
#
# Sources: "Model card metadata" of the hub's documentation (``modelcard.md`` of huggingface/hub-docs); ``Keys.General``
# of gguf-py, and ``Metadata`` there, which has base models and datasets as ``organization``, ``name`` and ``repo_url``.

#: Between these lines stands what is YAML.
_FRONT_MATTER = r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$"

#: Where the hub has a model, and a dataset.
_HUB = "https://huggingface.co/"
_DATASETS = f"{_HUB}datasets/"

#: Models and datasets that a card names at most; more are no card.
_MOST = 64


class Card(NamedTuple):
    """Model card. Models and datasets are ``ORGANIZATION/NAME`` or ``NAME``."""

    license: str = ""
    license_name: str = ""
    license_link: str = ""
    base_models: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()


#: What a model says of itself: key behind ``general.`` -> key of the front matter (``apply_metadata_heuristic`` of
#: gguf-py's ``Metadata``).
OWN_KEYS: Mapping[str, str] = {
    key: f"model_{key}" for key in ("name", "author", "version", "organization", "description", "finetune", "basename")
}
NAME_KEY = OWN_KEYS["name"]

#: Field -> its key in the front matter, and behind ``general.``.
_TEXTS: Mapping[str, tuple[str, str]] = {
    "license": ("license", "license"),
    "license_name": ("license_name", "license.name"),
    "license_link": ("license_link", "license.link"),
}
_LISTS: Mapping[str, tuple[str, str]] = {"languages": ("language", "languages"), "tags": ("tags", "tags")}
#: The same of lists whose items have keys of their own, and where the hub has them.
_NAMED: Mapping[str, tuple[str, str, str]] = {
    "base_models": ("base_model", "base_model", _HUB),
    "datasets": ("datasets", "dataset", _DATASETS),
}


def card_of_text(text: str) -> Card:
    """Read the card of a README.md; empty without front matter in YAML."""
    front = _front_matter(text)
    found: dict[str, Any] = {field: _text(front.get(key)) for field, (key, _) in _TEXTS.items()}
    found |= {field: _texts(front.get(key)) for field, (key, *_) in (*_LISTS.items(), *_NAMED.items())}
    return Card(**found)


def own_in_card(text: str) -> dict[str, str]:
    """Texts of a README.md about the model itself, by :data:`OWN_KEYS`."""
    front = _front_matter(text)
    return {key: found for key, field in OWN_KEYS.items() if (found := _text(front.get(field)))}


def _front_matter(text: str) -> dict[Any, Any]:
    front = re.match(_FRONT_MATTER, text, re.DOTALL | re.MULTILINE)
    if front is None:
        return {}
    import yaml

    try:
        parsed = yaml.load(front[1], Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def text_of_card(card: Card, own: Mapping[str, str], library: str) -> str:
    """A README.md that says it; empty where there is nothing to say.

    Args:
        own: texts about the model itself, by :data:`OWN_KEYS`.
        library: that loads it (``library_name``).
    """
    keys: dict[str, Any] = {key: getattr(card, field) for field, (key, _) in _TEXTS.items()}
    lists = {key: [*getattr(card, field)] for field, (key, *_) in (*_NAMED.items(), *_LISTS.items())}
    keys |= lists | {OWN_KEYS[key]: text for key, text in own.items()}
    keys = {key: value for key, value in keys.items() if value}
    if not keys:
        return ""
    import yaml

    keys["library_name"] = library
    return f"---\n{yaml.safe_dump(keys, sort_keys=False, allow_unicode=True)}---\n"


def card_of_keys(keys: Mapping[str, Any]) -> Card:
    """The card of ``general.*`` keys, whose arrays are lists."""
    found: dict[str, Any] = {field: _text(keys.get(f"general.{key}")) for field, (_, key) in _TEXTS.items()}
    found |= {field: _texts(keys.get(f"general.{key}")) for field, (_, key) in _LISTS.items()}
    found |= {field: (*_items(keys, f"general.{key}", place),) for field, (_, key, place) in _NAMED.items()}
    return Card(**found)


def keys_of_card(card: Card) -> dict[str, str | int | list[str]]:
    """The ``general.*`` keys that say it, as llama.cpp's converter has them."""
    keys: dict[str, str | int | list[str]] = {}
    for attribute, (_, key) in _TEXTS.items():
        keys[f"general.{key}"] = getattr(card, attribute)
    for attribute, (_, key, place) in _NAMED.items():
        items = getattr(card, attribute)
        keys[f"general.{key}.count"] = len(items)
        for number, item in enumerate(items):
            organization, _, name = item.rpartition("/")
            start = f"general.{key}.{number}"
            keys |= {f"{start}.name": _title(name), f"{start}.organization": _title(organization)}
            keys[f"{start}.repo_url"] = f"{place}{item}" if organization else ""
    for attribute, (_, key) in _LISTS.items():
        keys[f"general.{key}"] = [*getattr(card, attribute)]
    return {key: value for key, value in keys.items() if value}


def _items(keys: Mapping[str, Any], start: str, place: str) -> Iterator[str]:
    """Names of the hub under a key, without titles that repeat them."""
    count = keys.get(f"{start}.count")
    for number in range(min(count, _MOST) if isinstance(count, int) else 0):
        labels = {key: _text(keys.get(f"{start}.{number}.{key}")) for key in ("repo_url", "organization", "name")}
        url = labels["repo_url"].rstrip("/")
        if url.startswith(place) and url.removeprefix(place).count("/") == 1:
            yield url.removeprefix(place)
        elif labels["name"]:
            yield labels["name"]


def _title(word: str) -> str:
    """``smol-lm2 v2`` -> ``Smol Lm2 v2``: capitals but for versions."""
    return " ".join(
        part.title() if part.islower() and not re.match(r"^(v\d+(?:\.\d+)*|\d.*)$", part) else part
        for part in word.replace("-", " ").split()
    )


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    """A text or a list as a tuple, each once; YAML takes ``no`` for false."""
    values = value if isinstance(value, list) else [value]
    values = ["no" if item is False else item for item in values]
    return tuple(dict.fromkeys(item.strip() for item in values[:_MOST] if isinstance(item, str) and item.strip()))


# The text of a file beside a model: bytes, or made when they are written.

#: Bytes of a text that stays in memory once made. Making a tokenizer of 150,000 words takes as long as reading 1 GB.
MAX_IN_MEMORY = 16 << 20


@dataclass(frozen=True, slots=True)
class StreamedText:
    """A text that is made when it is written, and does not stay in memory.

    Attributes:
        nbytes: of all of it.
        sha256: of all of it, as hex.
        pieces: makes it, the same each time.
    """

    nbytes: int
    sha256: str
    pieces: Callable[[], Iterator[bytes]]

    def __len__(self) -> int:
        return self.nbytes


#: What a side file holds.
SideFile = bytes | StreamedText


def side_file(pieces: Callable[[], Iterator[bytes]]) -> SideFile:
    """A side file of these pieces, in memory if it is small enough.

    The pieces are made once now; of a large file once more when it is written.

    Args:
        pieces: makes them, the same each time. What it raises is raised.
    """
    buffer: list[bytes] = []
    from hashlib import sha256

    nbytes, digest = 0, sha256()
    for piece in pieces():
        nbytes += len(piece)
        digest.update(piece)
        if nbytes <= MAX_IN_MEMORY:
            buffer.append(piece)
        else:
            buffer.clear()
    return b"".join(buffer) if nbytes <= MAX_IN_MEMORY else StreamedText(nbytes, digest.hexdigest(), pieces)


def pieces_of(content: SideFile) -> Iterator[bytes]:
    """All of it."""
    return iter([content]) if isinstance(content, bytes) else content.pieces()


def digest_of(content: SideFile) -> str:
    """SHA-256 of a side file, as hex."""
    from hashlib import sha256

    return sha256(content).hexdigest() if isinstance(content, bytes) else content.sha256


# The files beside a model, by what they are called from there.


def root_of(index: TensorIndex) -> Path:
    """The directory that a model lies in."""
    return index.path if index.path.is_dir() else index.path.parent


#: Files by which a checkpoint has a tokenizer of its own.
_TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
    "vocab.json", "vocab.txt", "tekken.json",
)  # fmt: skip


def pipeline_tokenizer(root: Path) -> Path | None:
    """The tokenizer of a text encoder without one, in a pipeline of diffusers.

    It is in ``tokenizer_2`` beside ``text_encoder_2`` (``from_pretrained`` of its ``pipeline_utils.py``).
    """
    part = root.absolute()
    folder = (root if root.name else part).parent / part.name.replace("text_encoder", "tokenizer", 1)
    if folder.name == part.name or any((root / name).is_file() for name in _TOKENIZERS):
        return None
    return folder if (part.parent / "model_index.json").is_file() and folder.is_dir() else None


def tokenizer_root(index: TensorIndex) -> Path:
    """The directory of a checkpoint's tokenizer; of a drafter, its model's."""
    return index.target or pipeline_tokenizer(root_of(index)) or root_of(index)


def beside(index: TensorIndex) -> dict[str, Path]:
    """Side files by name, with the directory of those in one."""
    parts = {f"{path.parent.name}/{path.name}": path for path in index.part_files}
    return {**{path.name: path for path in index.side_files}, **parts}


# What a model says besides its tensors.


class Content(NamedTuple):
    """Everything that is no tensor.

    Attributes:
        keys: header fields and metadata, by name. Two that are equal say the same.
        files: documents within the files, by what a person is told they are; content of a file beside them, if it is
            known without a path.
        paths: name that readers look for -> the file beside the model.
    """

    keys: Mapping[str, Any]
    files: Mapping[str, bytes] = {}
    paths: Mapping[str, Path] = {}


def numbered(key: str, number: int) -> str:
    """Only the first file of a set says anything of the model."""
    return key if number == 0 else f"file {number + 1}: {key}"


# Keys of a GGUF that were made here, in the words of a reader of one.


class LazyValue(NamedTuple):
    """A scalar value, or an array that is decoded when asked for."""

    value: Any


@dataclass(frozen=True, slots=True)
class MadeArray:
    """The elements of an array.

    Attributes:
        type: of an element, by name.
        count: elements.
        elements: their bytes.
    """

    type: str
    count: int
    elements: bytes

    def decode(self) -> list[Any]:
        """All of them."""
        if self.type == STRING.name:
            return list(self.each())
        return list(unpack_from(f"<{self.count}{VALUE_TYPES_BY_NAME[self.type].code}", self.elements))

    def each(self) -> Iterator[str]:
        """The strings of an array of them."""
        at = 0
        for _ in range(self.count):
            start = at + U64.size
            at = start + U64.unpack_from(self.elements, at)[0]
            yield self.elements[start:at].decode("utf-8", "surrogateescape")


def as_read(metadata: Mapping[str, Value]) -> dict[str, LazyValue]:
    """Key -> its value."""
    return {key: LazyValue(_as_read(value)) for key, value in metadata.items()}


def _as_read(value: Value) -> object:
    name = value.type.removeprefix("arr[").removesuffix("]")
    if name != value.type:
        return MadeArray(name, U64.unpack_from(value.payload, U32.size)[0], value.payload[U32.size + U64.size :])
    text = MadeArray(name, 1, value.payload)
    return text.decode()[0]
