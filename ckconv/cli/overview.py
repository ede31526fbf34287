"""What people ask first of a model: its name, its size and types, its license, what it takes to run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ckconv.cli.render import cut
from ckconv.core.metadata import Card, document_of
from ckconv.core.named import NamedTuple
from ckconv.core.tensors import MetadataKind, TensorIndex, parse
from ckconv.errors import CkconvError, counted, listed
from ckconv.families.gguf_metadata import FILE_TYPES, directory_name
from ckconv.families.schema import DRAFTS
from ckconv.formats.gguf.values import MetaValue
from ckconv.io.files import card_of
from ckconv.plan import recipes

#: What layers keep of every token: rows of K and of V, or of the vector that latent attention makes both of.
_CACHED = frozenset(
    {"layers.{n}.attention.k.weight", "layers.{n}.attention.v.weight", "layers.{n}.attention.kv_a.weight"}
)

#: Bytes of a number in a cache of F16, which engines have where nothing else is asked for.
_F16 = 2

#: Contexts for which the cache is said, where the model has so many; its own is the last.
_CONTEXTS = (4_096, 32_768)

_SLIDING = "sliding_attention"


class Cache(NamedTuple):
    """Bytes that the keys and values of so many tokens take."""

    tokens: int
    nbytes: int


class Overview(NamedTuple):
    """The headline; texts are empty where the model says nothing.

    Attributes:
        types: a label such as ``Q4_K_M``.
        bits: stored bits of a weight, scales and padding counted.
        tokenizer: its kind, or the file that it is in.
        template: it has a chat template; ``None`` where that is not known.
        heads: what there is besides a text model: layers that predict further tokens, a classifier, a tower.
    """

    name: str
    types: str
    bits: float
    context: int
    tokenizer: str
    template: bool | None
    card: Card
    caches: tuple[Cache, ...]
    heads: tuple[str, ...] = ()


def overview(index: TensorIndex) -> Overview:
    """Gather it; nothing but headers and documents is read."""
    parameters, typed = index.parameters, index.metadata_kind is MetadataKind.TYPED
    return Overview(
        name=_value(index, "general.name") or directory_name(index.path) or index.path.name,
        types=_label(index),
        bits=8 * index.nbytes / parameters if parameters else 0.0,
        context=index.config.context_length if index.config else 0,
        tokenizer=_tokenizer(index),
        template=any(key.startswith("tokenizer.chat_template") for key in index.metadata)
        if typed
        else _template(index),
        card=card_of(index),
        caches=_caches(index),
        heads=tuple(_heads(index)),
    )


def as_document(found: Overview) -> dict[str, Any]:
    """The same for JSON: what the model does not say is null."""
    facts = {**found._asdict(), "bits": round(found.bits, 3)}
    facts["card"] = {key: _listed(value) for key, value in found.card._asdict().items()}
    facts["heads"] = [*found.heads]
    facts["caches"] = [cache._asdict() for cache in found.caches]
    return {key: None if value == "" else value for key, value in facts.items()}


def _listed(value: str | tuple[str, ...]) -> list[str] | str | None:
    return [*value] if isinstance(value, tuple) else value or None


def as_rows(found: Overview) -> Iterator[tuple[str, object]]:
    """(what, value) of everything that the model says, for lines."""
    yield "name", found.name
    yield "types", found.types
    yield "bits", f"{found.bits:.3f}"
    said = (("context", found.context), ("tokenizer", found.tokenizer))
    yield from ((key, value) for key, value in said if value)
    if found.template is not None:
        yield "chat_template", "yes" if found.template else "no"
    for key, value in found.card._asdict().items():
        if value:
            yield key, value if isinstance(value, str) else ", ".join(value)
    yield from (("heads", head) for head in found.heads)
    yield from ((f"cache_{cache.tokens}", cache.nbytes) for cache in found.caches)


def _value(index: TensorIndex, key: str) -> str:
    item = index.metadata.get(key)
    return cut(item.value) if isinstance(item, MetaValue) and isinstance(item.value, str) else ""


def _label(index: TensorIndex) -> str:
    """What a GGUF calls itself if it is that, else the type that most of its bytes are of."""
    nbytes: Counter[str] = Counter()
    for tensor in index.tensors.values():
        nbytes[tensor.dtype.name] += tensor.nbytes
    for stored in index.unknown:
        whole = index.packed.get(stored.name)
        nbytes[(whole or stored).dtype.name] += stored.extent.nbytes
    item = index.metadata.get("general.file_type")
    number = item.value if isinstance(item, MetaValue) and isinstance(item.value, int) else None
    names = {recipes.file_type(name): (name.upper(), recipes.base(name)) for name in recipes.names()}
    names = {**{value: (name, name) for name, value in FILE_TYPES.items()}, **names}
    most = [name for name, _ in nbytes.most_common(2)]
    if number in names:
        said, base = names[number]
        return said if base in most or not most else f"{most[0]} (said to be {said})"
    return most[0] if most else ""


def _tokenizer(index: TensorIndex) -> str:
    if index.metadata_kind is MetadataKind.TYPED:
        model, pre = _value(index, "tokenizer.ggml.model"), _value(index, "tokenizer.ggml.pre")
        return f"{model} ({pre})" if pre else model
    names = {path.name for path in index.side_files}
    return next((name for name in _TOKENIZERS if name in names), "")


_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "tokenizer.tiktoken", "vocab.json", "vocab.txt")


def _template(index: TensorIndex) -> bool | None:
    from ckconv.tokenizer.source import texts_of

    try:
        return "chat_template" in texts_of(index) if index.side_files else None
    except CkconvError:
        return None


def _heads(index: TensorIndex) -> Iterator[str]:
    own = index.config.own if index.config is not None else {}
    if own.get(DRAFTS):
        yield f"{counted(int(own['extra_layers']), 'layer')} to predict further tokens (mtp)"
    if labels := own.get("labels"):
        yield f"a classifier of {counted(len(labels), 'label')}: {', '.join(listed([cut(label) for label in labels]))}"
    if index.tower is not None:
        yield f"the tower of a {index.tower.family}: {counted(len(index.tensors), 'tensor')}"
    elif index.metadata_kind is MetadataKind.DOCUMENT and index.unknown:
        from ckconv.families.naming_schemes import is_beside_text
        from ckconv.families.towers import tower_of_document

        document = document_of(index.metadata)
        if beside := sum(is_beside_text(document, stored.name) for stored in index.unknown):
            family = tower_of_document(document)
            whose = f"the tower of a {family.name}" if family else "a tower that ckconv does not know"
            yield f"{whose}: {counted(beside, 'tensor')}"


def _caches(index: TensorIndex) -> tuple[Cache, ...]:
    """What is kept of all tokens, and of as many as the window of a sliding layer has."""
    config = index.config
    if config is None or not config.context_length:
        return ()
    whole = sliding = 0
    for name, tensor in index.tensors.items():
        pattern, layer, _ = parse(name)
        if pattern in _CACHED and layer is not None and layer < config.num_layers:
            kinds = config.layer_types
            slides = bool(config.sliding_window) and (
                kinds is None or (layer < len(kinds) and kinds[layer] == _SLIDING)
            )
            rows = tensor.shape[0] * _F16
            sliding, whole = (sliding + rows, whole) if slides else (sliding, whole + rows)
    if not whole + sliding:
        return ()
    window = config.sliding_window or 0
    lengths = [*(n for n in _CONTEXTS if n < config.context_length), config.context_length]
    return tuple(Cache(n, n * whole + min(n, window) * sliding) for n in lengths)
