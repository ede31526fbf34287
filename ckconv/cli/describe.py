"""What ``inspect`` knows of a model, ready to be printed: facts, tensors, metadata, and what it could become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ckconv.cli.overview import Overview, as_document, as_rows, overview
from ckconv.cli.render import container, cut
from ckconv.conversion.planning import judged
from ckconv.core.config import SHARED_FIELDS
from ckconv.core.named import NamedTuple
from ckconv.core.tensors import StoredTensor, TensorIndex
from ckconv.errors import CkconvError, shown
from ckconv.formats import Output, adapter_outputs, format_of, model_outputs
from ckconv.formats.bump.slots import HeaderV3, HeaderV4
from ckconv.formats.gguf.read import ArrayRef, MetaValue
from ckconv.formats.hazards import Hazard, hazards
from ckconv.io.files import head_is_embedding
from ckconv.plan.probe import SourceFacts
from ckconv.plan.steps import Reason

if TYPE_CHECKING:
    from ckconv.comparison.hash import Hashes

#: Elements of an array that are shown before it is cut.
SHOWN_ELEMENTS = 5

#: What JSON calls the values of a configuration.
_KINDS = {type(None): "null", dict: "object", list: "list"}

_CONFIG_FIELDS = (*SHARED_FIELDS, "sliding_window")


class Target(NamedTuple):
    """Whether the model converts to a target as it is, every reason if not, and what there is to know of the output."""

    name: str
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Description:
    """Everything ``inspect`` prints, independent of how."""

    index: TensorIndex
    shown: Sequence[StoredTensor]
    targets: tuple[Target, ...]
    hashes: Hashes | None
    overview: Overview
    hazards: tuple[Hazard, ...]

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
        """(canonical module, its path, method, rank, alpha, effective scale) of an adapter."""
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
                yield key, item.type, cut(_text(item.value))
            else:
                yield key, _KINDS.get(type(item), type(item).__name__), "null" if item is None else cut(str(item))

    def document(self) -> dict[str, Any]:
        """The document of ``--json``."""
        index = self.index
        return {
            "path": shown(index.path),
            "format": index.format,
            "version": index.version or None,
            "files": [shown(path) for path in index.files],
            "architecture": index.architecture or None,
            "parameters": index.parameters,
            "bytes": index.nbytes,
            "overview": as_document(self.overview),
            "container": self.facts,
            "config": self.config or None,
            **self._adapter(),
            "types": [{"dtype": name, "tensors": n, "bytes": total} for name, n, total in self.types],
            "tensors": (self._tensor(tensor) for tensor in self.shown),
            "unknown_tensors": (tensor.name for tensor in index.unknown),
            "hazards": [hazard._asdict() for hazard in self.hazards],
            "metadata": {key: _json(item) for key, item in index.metadata.items()},
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
        """What there is to say of an adapter; nothing of a model."""
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
            yield "\t".join(str(cell).replace("\t", "\\t").replace("\n", "\\n") for cell in row)

    def _rows(self, *, only_metadata: bool, only_tensors: bool) -> Iterator[tuple[object, ...]]:
        index = self.index
        everything = not (only_metadata or only_tensors)
        if everything:
            words = (shown(index.path), container(index.format, index.version), index.architecture)
            yield ("model", *words, index.parameters, index.nbytes)
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
        places = (t.extent.nbytes, t.extent.offset, t.extent.path.name)
        return ("tensor", t.name, self.canonical(t) or "-", t.dtype, shape, *places) + (
            (self.hash_of(t),) if self.hashes else ()
        )


def describe(
    index: TensorIndex, *, tensors: str | None, hashes: Hashes | None, piped: bool, everywhere: bool = False
) -> Description:
    """Gather what is to be shown.

    Args:
        tensors: a glob over stored and canonical names.
        everywhere: judge every target, whose planners take a while to import; else those that are always judged.
    """
    listed = index.stored if tensors is None else tuple(t for t in index.stored if _matches(t, index, tensors))
    targets: tuple[Target, ...] = ()
    if index.facts.get("kind", "model") == "model" and not format_of(index.format).keeps_source:
        source = SourceFacts(not piped and head_is_embedding(index))
        outputs = [output for output in model_outputs() if output.judged or (everywhere and output.general)]
        targets = tuple(_target(index, output.name, output, source) for output in outputs)
    if index.adapter is not None:
        targets = tuple(_target(index, name, output, SourceFacts()) for name, output in adapter_outputs().items())
    return Description(index, listed, targets, hashes, overview(index), hazards(index))


def _target(index: TensorIndex, name: str, output: Output, source: SourceFacts) -> Target:
    try:
        plan = judged(index, output, source)
    except CkconvError as error:
        return Target(name, (Reason(error.message, error.hint or ""),), ())
    return Target(name, plan.refusals, () if plan.refusals else plan.notes)


def _matches(tensor: StoredTensor, index: TensorIndex, glob: str) -> bool:
    return any(fnmatchcase(name, glob) for name in (tensor.name, *index.canonical_of.get(tensor.name, ())))


def _text(value: object) -> str:
    if not isinstance(value, ArrayRef):
        return str(value)
    first = ", ".join(
        repr(element) if isinstance(element, str) else str(element) for element in value.head(SHOWN_ELEMENTS)
    )
    more = f", ... {value.count:,} in all" if value.count > SHOWN_ELEMENTS else ""
    return f"[{first}{more}]"


def _json(item: object) -> object:
    """A metadata value for JSON: arrays as their first elements and their count, bytes that are no text escaped."""
    if not isinstance(item, MetaValue):
        return _plain(item)
    if isinstance(item.value, ArrayRef):
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
