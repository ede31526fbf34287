"""Facts of `inspect`: headline, tensors, metadata, targets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ckconv.cli.render import container, count, cut, printable, size
from ckconv.conversion.planning import Target, judged
from ckconv.core.config import SHARED_FIELDS
from ckconv.core.layouts import DTYPES, WIDENS_TO_F32
from ckconv.core.lazy import NamedTuple, dataclass
from ckconv.core.metadata import Card, document_of
from ckconv.core.tensors import MetadataKind, StoredTensor, Tensor, TensorIndex, parse
from ckconv.errors import CkconvError, an, counted, listed, shown
from ckconv.families import catalog, schema, towers
from ckconv.families.names import is_beside_text
from ckconv.families.parameters import directory_name
from ckconv.formats.bump.slots import HeaderV3, HeaderV4
from ckconv.formats.gguf.read import ArrayRef, MetaValue
from ckconv.formats.hazards import Hazard, hazards
from ckconv.io.files import card_of
from ckconv.plan.probe import size_of
from ckconv.plan.quantizing import base_type, file_type, recipe_names
from ckconv.tokenizer.source import abilities_of, templates_of, texts_of

if TYPE_CHECKING:
    from ckconv.comparison.compare import Hashes


#: Elements of an array that are shown before it is cut.
SHOWN_ELEMENTS = 5

#: What JSON calls the values of a configuration.
_KINDS = {type(None): "null", dict: "object", list: "list"}

_CONFIG_FIELDS = (*SHARED_FIELDS, "sliding_window")


@dataclass(frozen=True, eq=False, repr=False)
class Description:
    """Facts that ``inspect`` prints; ``full``: arrays with all elements."""

    index: TensorIndex
    shown: Sequence[StoredTensor]
    targets: tuple[Target, ...]
    hashes: Hashes | None
    overview: Overview
    hazards: tuple[Hazard, ...]
    full: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """Canonical hyper-parameters, those that the model has."""
        c = self.index.config
        return (
            {}
            if c is None
            else {name: value for name in _CONFIG_FIELDS if (value := getattr(c, name)) not in (None, 0)}
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The container's own facts."""
        facts: dict[str, Any] = {"note": "; ".join(self.index.notes)} if self.index.notes else {}
        for key, value in self.index.facts.items():
            if isinstance(value, HeaderV3 | HeaderV4):
                facts.update({f"header.{k}": v for k, v in value._asdict().items() if k not in ("reserved", "sha256")})
                facts["header.sha256"] = value.sha256.hex()
            elif isinstance(value, bytes):
                facts[f"{key}"] = f"{len(value)} entries"
            elif isinstance(value, tuple):
                facts[key] = {item.name: item.extent.nbytes for item in value}
            elif value is not None:
                facts[key] = value
        return facts

    @property
    def types(self) -> list[tuple[str, int, int]]:
        """(type, tensors, bytes), the largest first."""
        tensors: Counter[str] = Counter()
        nbytes: Counter[str] = Counter()
        for tensor in self.index.stored:
            tensors[tensor.dtype.name] += 1
            nbytes[tensor.dtype.name] += tensor.extent.nbytes
        return [(name, tensors[name], total) for name, total in nbytes.most_common()]

    @property
    def modules(self) -> list[tuple[str, str, str, int, str, str]]:
        """(module, path, method, rank, alpha, scale) of an adapter."""
        adapter = self.index.adapter
        return [
            (m.name, m.path, m.kind, m.rank, "-" if m.alpha is None else f"{m.alpha:g}", repr(m.scale))
            for m in (adapter.modules.values() if adapter else ())
        ]

    def canonical(self, tensor: StoredTensor) -> str:
        """Canonical names made from a stored tensor, joined."""
        return " + ".join(self.index.canonical_of.get(tensor.name, ()))

    def hash_of(self, tensor: StoredTensor) -> str:
        """The content hashes of what was made from a stored tensor, joined."""
        return " + ".join(self._hashes(tensor)) or "-"

    def _hashes(self, tensor: StoredTensor) -> list[str]:
        """None of a tensor that is no part of the model."""
        packed = self.index.packed.get(tensor.name)
        names = self.index.canonical_of.get(tensor.name) or (packed.name if packed else tensor.name,)
        return [self.hashes.tensors[name] for name in names if name in self.hashes.tensors] if self.hashes else []

    def metadata(self) -> Iterator[tuple[str, str, str]]:
        """(key, type, value as text), long arrays and texts cut."""
        for key, item in self.index.metadata.items():
            if isinstance(item, MetaValue):
                yield key, item.type, cut(_text(item.value, full=self.full))
            else:
                yield key, _KINDS.get(type(item), type(item).__name__), cut(_text(item))

    def document(self) -> dict[str, Any]:
        """The document of ``--json``."""
        index = self.index
        return {
            "path": shown(index.path),
            "format": index.format,
            "version": index.version or None,
            "files": [shown(path) for path in index.files],
            "architecture": index.architecture or None,
            "parameters": self.overview.parameters,
            "bytes": index.nbytes,
            "overview": as_document(self.overview),
            "container": self.facts,
            "config": self.config or None,
            **self._adapter(),
            "types": [{"dtype": name, "tensors": n, "bytes": total} for name, n, total in self.types],
            "tensors": (self._tensor(tensor) for tensor in self.shown),
            "unknown_tensors": (tensor.name for tensor in index.unknown),
            "hazards": [hazard._asdict() for hazard in self.hazards],
            "metadata": {key: _json(item, full=self.full) for key, item in index.metadata.items()},
            "targets": [
                {
                    "target": t.name,
                    "converts": not t.reasons,
                    "reasons": [{"text": r.text, "hint": r.hint or None} for r in t.reasons],
                    "notes": list(t.notes),
                }
                for t in self.targets
            ],
            **({"hash": self.hashes.model} if self.hashes else {}),
        }

    def _adapter(self) -> dict[str, Any]:
        """Fields of an adapter; none of a model."""
        adapter = self.index.adapter
        if adapter is None:
            return {}
        modules = [
            {
                "module": m.name,
                "path": m.path,
                "method": m.kind,
                "tensors": [role.value for role in m.roles],
                "rank": m.rank or None,
                "alpha": m.alpha,
                "scale": m.scale if m.rank else None,
            }
            for m in adapter.modules.values()
        ]
        facts = {"method": adapter.method, "base": adapter.base_name or None, "unsupported": list(adapter.unsupported)}
        return {"adapter": {**facts, "modules": modules}}

    def _tensor(self, tensor: StoredTensor) -> dict[str, Any]:
        names = self.index.canonical_of.get(tensor.name, ())
        facts: dict[str, Any] = {
            "name": tensor.name,
            "canonical": list(names) if len(names) != 1 else names[0],
            "dtype": tensor.dtype.name,
            "shape": list(tensor.shape),
            "bytes": tensor.extent.nbytes,
            "offset": tensor.extent.offset,
            "file": str(tensor.extent.path),
        }
        if self.hashes:
            hashes = self._hashes(tensor)
            facts["hash"] = hashes if len(hashes) != 1 else hashes[0]
        return facts

    def lines(self, *, only_metadata: bool, only_tensors: bool) -> Iterator[str]:
        """Tab-separated lines for a pipe; the first field says what a line is."""
        for row in self._rows(only_metadata=only_metadata, only_tensors=only_tensors):
            line = "\t".join(map(str, row))
            if "\n" in line or line.count("\t") >= len(row):  # of few lines among a million
                line = "\t".join(str(cell).replace("\t", "\\t").replace("\n", "\\n") for cell in row)
            yield line

    def markdown(self) -> Iterator[str]:
        """Lines for a model card: headline, types and targets."""
        index, o = self.index, self.overview
        yield from ("| | |", "|---|---|")
        facts = {
            "Name": o.name,
            "Format": container(index.format, index.version, "v"),
            "Architecture": index.architecture,
            "Parameters": count(o.parameters),
            "Size": size(index.nbytes),
            "Types": o.types,
            "Bits per weight": f"{o.bits:.2f}",
            "Context": f"{o.context:,} tokens" if o.context else "",
            "Tokenizer": o.tokenizer,
            "Chat template": "; ".join(o.abilities) or {True: "yes", False: "no", None: ""}[o.template],
            "License": o.card.license_name or o.card.license,
            "Base model": ", ".join(o.card.base_models),
            **{f"KV cache at {cache.tokens:,} tokens (F16)": size(cache.nbytes) for cache in o.caches},
        }
        yield from (f"| {name} | {_cell(text)} |" for name, text in facts.items() if text)
        yield from ("", "| type | tensors | size |", "|---|--:|--:|")
        yield from (f"| {name} | {tensors:,} | {size(nbytes)} |" for name, tensors, nbytes in self.types)
        if self.targets:
            yield from ("", "| converts to | | |", "|---|---|---|")
            for target in self.targets:
                why = _cell("; ".join(reason.text for reason in target.reasons))
                yield f"| {target.name} | {'no' if target.reasons else 'yes'} | {why} |"

    def _rows(self, *, only_metadata: bool, only_tensors: bool) -> Iterator[tuple[object, ...]]:
        index = self.index
        everything = not (only_metadata or only_tensors)
        if everything:
            words = (shown(index.path), container(index.format, index.version), index.architecture)
            yield ("model", *words, self.overview.parameters, index.nbytes)
            yield from (("overview", *row) for row in as_rows(self.overview))
            yield from (("hazard", *hazard) for hazard in self.hazards)
            yield from (("container", key, value) for key, value in self.facts.items())
            yield from (("config", key, value) for key, value in self.config.items())
            yield from (("module", *row) for row in self.modules)
            yield from (("unsupported", text) for text in (index.adapter.unsupported if index.adapter else ()))
            yield from (("type", *row) for row in self.types)
        if only_tensors or not only_metadata:
            yield from map(self._tensor_row, self.shown)
        if only_metadata or not only_tensors:
            yield from (("metadata", *row) for row in self.metadata())
        if everything:
            yield from (("target", t.name, "yes" if not t.reasons else "no") for t in self.targets)
            yield from (("reason", t.name, reason.text, reason.hint) for t in self.targets for reason in t.reasons)
            yield from (("note", t.name, note) for t in self.targets for note in t.notes)
        if self.hashes and (only_tensors or not only_metadata):
            yield "hash", self.hashes.model

    def _tensor_row(self, t: StoredTensor) -> tuple[object, ...]:
        shape = "x".join(map(str, t.shape))
        extent = (t.extent.nbytes, t.extent.offset, t.extent.path.name)
        return ("tensor", t.name, self.canonical(t) or "-", t.dtype, shape, *extent) + (
            (self.hash_of(t),) if self.hashes else ()
        )


def describe(
    index: TensorIndex,
    *,
    tensors: str | None,
    hashes: Hashes | None,
    piped: bool,
    everywhere: bool = False,
    full: bool = False,
) -> Description:
    """Gather what is to be shown.

    Args:
        tensors: a glob over stored and canonical names.
        everywhere: judge every target, whose planners take a while to import; else those that are always judged.
    """
    listed = index.stored if tensors is None else tuple(t for t in index.stored if _matches(t, index, tensors))
    convertible = index.adapter is not None or index.facts.get("kind", "model") == "model"
    targets = tuple(judged(index, everywhere=everywhere, piped=piped)) if convertible else ()
    return Description(index, listed, targets, hashes, overview(index), hazards(index), full)


def _cell(text: str) -> str:
    """Text of a model, escaped for a cell of Markdown."""
    return " ".join(printable(text).split()).replace("|", "\\|").replace("<", "&lt;")


def _matches(tensor: StoredTensor, index: TensorIndex, glob: str) -> bool:
    return any(fnmatchcase(name, glob) for name in (tensor.name, *index.canonical_of.get(tensor.name, ())))


def _text(value: object, *, full: bool = False) -> str:
    """Value as JSON; a text without quotes, a long array's first elements."""
    if isinstance(value, str):
        return value
    if not isinstance(value, ArrayRef):
        plain = _plain(value)
        return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=str)
    if full:
        return json.dumps([_plain(element) for element in value.head(value.count)], ensure_ascii=False)
    first = ", ".join(json.dumps(_plain(element), ensure_ascii=False) for element in value.head(SHOWN_ELEMENTS))
    more = f", ... {value.count:,} in all" if value.count > SHOWN_ELEMENTS else ""
    return f"[{first}{more}]"


def _json(item: object, *, full: bool) -> object:
    """Metadata value for JSON, arrays cut or in full."""
    if not isinstance(item, MetaValue):
        return _plain(item)
    if isinstance(item.value, ArrayRef):
        if full:
            values = [_plain(element) for element in item.value.head(item.value.count)]
            return {"type": item.type, "count": item.value.count, "value": values}
        head = [_plain(element) for element in item.value.head(SHOWN_ELEMENTS)]
        return {"type": item.type, "count": item.value.count, "head": head}
    return {"type": item.type, "value": _plain(item.value)}


def _plain(value: object) -> object:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return (
        str(value) if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))) else value
    )


#: What layers keep of every token: rows of K and of V, or of the vector that latent attention makes both of.
_CACHED = frozenset(
    {"layers.{n}.attention.k.weight", "layers.{n}.attention.v.weight", "layers.{n}.attention.kv_a.weight"}
)

#: Bytes of a number in a cache of F16, which engines have where nothing else is asked for.
_F16 = 2

#: Contexts for which the cache is said, where the model has so many; its own is the last.
_CONTEXTS = (4_096, 32_768)

#: Percent of the bytes from which on the headline names a second type.
_SHOWN_SHARE = 5

_SLIDING = "sliding_attention"


class Cache(NamedTuple):
    """Bytes that the keys and values of so many tokens take."""

    tokens: int
    nbytes: int


class Overview(NamedTuple):
    """The headline; texts are empty where the model says nothing.

    Attributes:
        types: a label such as ``Q4_K_M``.
        parameters: without zeros that stand for a tensor which is not there.
        bits: stored bits of a weight, scales and padding counted.
        tokenizer: its kind, or the file that it is in.
        template: it has a chat template; ``None`` where that is not known.
        abilities: what each of its chat templates does.
        heads: what there is besides a text model: layers that predict further tokens, a classifier, a tower.
    """

    name: str
    types: str
    parameters: int
    bits: float
    context: int
    tokenizer: str
    template: bool | None
    card: Card
    caches: tuple[Cache, ...]
    heads: tuple[str, ...] = ()
    abilities: tuple[str, ...] = ()


def overview(index: TensorIndex) -> Overview:
    """Gather it from headers, documents, and tensors that may be zeros."""
    parameters, nbytes = size_of(index)
    typed = index.metadata_kind is MetadataKind.TYPED
    return Overview(
        name=_name(index),
        types=_label(index),
        parameters=parameters,
        bits=8 * nbytes / parameters if parameters else 0.0,
        context=index.config.context_length if index.config else 0,
        tokenizer=_tokenizer(index),
        template=any(key.startswith("tokenizer.chat_template") for key in index.metadata)
        if typed
        else _template(index),
        card=card_of(index),
        caches=_caches(index),
        heads=tuple(_heads(index)),
        abilities=tuple(_abilities(index)),
    )


def as_document(found: Overview) -> dict[str, Any]:
    """The same for JSON: what the model does not say is null."""
    facts = {**found._asdict(), "bits": round(found.bits, 3)}
    facts["card"] = {key: _listed(value) for key, value in found.card._asdict().items()}
    facts["heads"], facts["abilities"] = [*found.heads], [*found.abilities]
    del facts["parameters"]  # the document has them above
    facts["caches"] = [cache._asdict() for cache in found.caches]
    return {key: None if value == "" else value for key, value in facts.items()}


def _listed(value: str | tuple[str, ...]) -> list[str] | str | None:
    return [*value] if isinstance(value, tuple) else value or None


def as_rows(found: Overview) -> Iterator[tuple[str, object]]:
    """(what, value) of everything that the model says, for lines."""
    yield "name", found.name
    yield "types", found.types
    yield "bits", f"{found.bits:.3f}"
    rows = (("context", found.context), ("tokenizer", found.tokenizer))
    yield from ((key, value) for key, value in rows if value)
    if found.template is not None:
        yield "chat_template", "yes" if found.template else "no"
    yield from (("template_does", text) for text in found.abilities)
    for key, value in found.card._asdict().items():
        if value:
            yield key, value if isinstance(value, str) else ", ".join(value)
    yield from (("heads", head) for head in found.heads)
    yield from ((f"cache_{cache.tokens}", cache.nbytes) for cache in found.caches)


def _name(index: TensorIndex) -> str:
    """Name that the model has for itself, else that of its place."""
    own = index.metadata.get("model_name")
    name = _value(index, "general.name") or (cut(own) if isinstance(own, str) else "")
    return name or directory_name(index.path) or index.path.name


def _value(index: TensorIndex, key: str) -> str:
    item = index.metadata.get(key)
    return cut(item.value) if isinstance(item, MetaValue) and isinstance(item.value, str) else ""


def _label(index: TensorIndex) -> str:
    """Name of a GGUF's mix of types, else the largest types."""
    nbytes: Counter[str] = Counter()
    for tensor in index.tensors.values():
        nbytes[tensor.dtype.name] += tensor.nbytes
    for stored in index.unknown:
        whole = index.packed.get(stored.name)
        nbytes[(whole or stored).dtype.name] += stored.extent.nbytes
    item = index.metadata.get("general.file_type")
    number = item.value if isinstance(item, MetaValue) and isinstance(item.value, int) else None
    names = {dtype.file_type: (dtype.name, dtype.name) for dtype in DTYPES.values() if dtype.file_type is not None}
    if number is not None and number not in {dtype.file_type for dtype in WIDENS_TO_F32}:  # a mix
        names |= {file_type(name): (name.upper(), base_type(name)) for name in recipe_names()}
    most = [name for name, _ in nbytes.most_common()[:2]]
    if number in names:
        title, base = names[number]
        if title != base or base not in most:  # the name of a mix, or of other types than there are
            return title if base in most or not most else f"{title} (mostly {most[0]})"
    total = sum(nbytes.values())
    shares = {name: 100 * nbytes[name] // total for name in most if 100 * nbytes[name] >= _SHOWN_SHARE * total > 0}
    return ", ".join(f"{name} {share} %" for name, share in shares.items()) if len(shares) > 1 else "".join(most[:1])


def _tokenizer(index: TensorIndex) -> str:
    if index.metadata_kind is MetadataKind.TYPED:
        model, pre = _value(index, "tokenizer.ggml.model"), _value(index, "tokenizer.ggml.pre")
        return f"{model} ({pre})" if pre else model
    if index.metadata_kind is MetadataKind.OWN:
        return "words in the file" if index.facts.get("tokenizer") else ""
    names = {path.name for path in index.side_files}
    return next((name for name in _TOKENIZERS if name in names), "")


_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "tokenizer.tiktoken", "vocab.json", "vocab.txt")


def _template(index: TensorIndex) -> bool | None:
    try:
        if index.metadata_kind is MetadataKind.OWN:
            return bool(index.metadata.get("chat_template")) if index.metadata else None
        return "chat_template" in texts_of(index) if index.side_files else None
    except CkconvError:
        return None


def _abilities(index: TensorIndex) -> Iterator[str]:
    """Roles, tools and thinking of each chat template, by its text."""
    try:
        found = dict(templates_of(index))
    except CkconvError:
        return
    for where, text in found.items():
        name = where.rpartition("chat_template")[2].strip(" .")
        yield f"{name}: {abilities_of(text)}" if name else str(abilities_of(text))


def _heads(index: TensorIndex) -> Iterator[str]:
    own = index.config.own if index.config is not None else {}
    if own.get(schema.DRAFTS):
        yield f"{counted(int(own['extra_layers']), 'layer')} to predict further tokens (mtp)"
    if labels := own.get("labels"):
        yield f"a classifier of {counted(len(labels), 'label')}: {', '.join(listed([cut(label) for label in labels]))}"
    if behind := [tensor.shape for tensor in catalog.layers_behind(index).values()]:
        widths = " to ".join(map(str, (behind[0][1], *(shape[0] for shape in behind))))
        yield f"{counted(len(behind), 'linear layer')} behind the embedding: {widths}"
    is_document = index.metadata_kind is MetadataKind.DOCUMENT
    document, left = (document_of(index.metadata), index.unknown) if is_document else ({}, ())
    if drafts := catalog.drafts_for(document, index.architecture):
        read = (
            f", of whose layers it reads {', '.join(map(str, own['target_layers']))}" if "target_layers" in own else ""
        )
        yield drafts.removeprefix("it ") + read
    if index.tower is not None:
        yield f"the tower of {an(index.tower.family)}: {counted(len(index.tensors), 'tensor')}"
    elif beside := sum(is_beside_text(document, stored.name) for stored in left):
        family = towers.tower_of_document(document)
        whose = f"the tower of {an(family.name)}" if family else "a tower that ckconv does not know"
        yield f"{whose}: {counted(beside, 'tensor')}"


def _caches(index: TensorIndex) -> tuple[Cache, ...]:
    """Bytes of the KV cache, sliding layers by their window."""
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


#: What names of plain numbers begin with, and what stands for a type whose own characters are taken.
_PLAIN, _MARKS = "BF", "abcdefghijklmnopqrstuvwxyz"


#: What the row of vectors is called.
VECTORS = "vectors"


class LayerMap(NamedTuple):
    """Role -> type by layer, empty for none; ``outside``: embedding, head."""

    layers: tuple[int, ...]
    rows: Mapping[str, tuple[str, ...]]
    outside: Mapping[str, str] = {}

    @property
    def types(self) -> tuple[str, ...]:
        """Every type, in the order in which they come."""
        return tuple(
            dict.fromkeys(name for row in (self.outside.values(), *self.rows.values()) for name in row if name)
        )


def layer_map(tensors: Mapping[str, Tensor]) -> LayerMap:
    """Map tensors by role and layer.

    Experts of one role are one, and so are the vectors of a layer.

    Where the experts of a role, or the vectors of a layer, have several types, the last one stands.
    """
    cells: dict[str, dict[int, str]] = {}
    for name, tensor in tensors.items():
        pattern, layer, _ = parse(name)
        if layer is not None:
            role = role_of(pattern) if len(tensor.shape) > 1 else VECTORS
            cells.setdefault(role, {})[layer] = tensor.dtype.name
    if VECTORS in cells:
        cells[VECTORS] = cells.pop(VECTORS)
    layers = tuple(sorted({layer for row in cells.values() for layer in row}))
    outside = {role: tensors[name].dtype.name for name, role in OUTSIDE.items() if name in tensors}
    rows = {role: tuple(row.get(layer, "") for layer in layers) for role, row in cells.items()}
    return LayerMap(layers, rows, outside)


#: Matrices outside of the layers that are often the largest of all -> their roles.
OUTSIDE = {"token_embedding.weight": "embedding", "output.weight": "head"}


def role_of(pattern: str) -> str:
    """``attention.q`` of ``layers.{n}.attention.q.weight``."""
    return pattern.rpartition("{n}.")[2].removesuffix(".weight").replace(".{e}", "")


def marks(types: Sequence[str]) -> dict[str, str]:
    """Type -> the character that shows it: bits of blocks, else a letter."""
    found: dict[str, str] = {}
    for name in types:
        digits = [c for c in name if c.isdigit()]
        wanted = (name[:1], *digits[:1]) if name[:1] in _PLAIN else (*digits[:1], name[:1])
        free = (c for c in (*wanted, *_MARKS) if c not in found.values())
        found[name] = next(free, "?")
    return found


class Row(NamedTuple):
    """Tensor of a table, or the same tensor of equal layers."""

    name: str
    types: str
    shape: str
    nbytes: int


def repeated(tensors: Mapping[str, Tensor]) -> list[Row]:
    """Rows of tensors, those of equal layers in one."""
    layers: dict[tuple[str, int], list[tuple[str, Tensor]]] = {}
    alone: list[Row] = []
    for name, tensor in tensors.items():
        pattern, layer, _ = parse(name)
        if layer is None:
            alone.append(Row(name, tensor.dtype.name, " x ".join(map(str, tensor.shape)), tensor.nbytes))
        else:
            layers.setdefault((pattern.partition("{n}")[0], layer), []).append((pattern, tensor))
    alike: dict[tuple[str, object], list[int]] = {}
    for (stack, layer), members in layers.items():
        kind = tuple(sorted((pattern, t.dtype.name, t.shape) for pattern, t in members))
        alike.setdefault((stack, kind), []).append(layer)
    rows = []
    for (stack, _), numbers in alike.items():
        members = layers[stack, numbers[0]]
        types = ", ".join(dict.fromkeys(tensor.dtype.name for _, tensor in members))
        nbytes = sum(tensor.nbytes for number in numbers for _, tensor in layers[stack, number])
        times = f"{len(numbers)} x: " if len(numbers) > 1 else ""
        rows.append(Row(f"{stack}{runs(numbers)}  {times}{counted(len(members), 'tensor')}", types, "", nbytes))
    return [*alone[:1], *rows, *alone[1:]]


def runs(numbers: Iterable[int]) -> str:
    """``0-3,7`` of 0, 1, 2, 3 and 7."""
    runs = (
        [number for _, number in run]
        for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    )
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
