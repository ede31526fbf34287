"""Models trained in the engine (v7): float32 and a manifest.

The numbers begin at byte 0 of the file.

Sources: ``init_tiny_train_model_v7.py`` and ``_write_ck_weight_checkpoint_bump`` of ``ck_run_v7.py`` for the files,
``build_ir_train_v7.py`` for the entries that are used; what is computed was measured by the losses of the engine.

A run holds ``weights.bump`` beside ``weights_manifest.json``, and ``checkpoints/weights_step_N.bump`` beside
``weights_step_N_manifest.json``. Entries begin at multiples of 64, with zeros between them. For inference the same
bytes are wrapped: the magic number of version 4 and zeros stand before them (152 bytes in v7, 128 in v8).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ckconv.core.config import NUMBERS, REAL, ModelConfig, checked_number
from ckconv.core.layouts import F32, DType
from ckconv.core.lazy import replace
from ckconv.core.metadata import table_within
from ckconv.core.options import Options
from ckconv.core.tensors import EMBEDDING, HEAD, DroppedTensor, Extent, StoredTensor, TensorIndex, parse
from ckconv.errors import InputError, UnsupportedError, an, counted, listed, quoted
from ckconv.families.catalog import FAMILIES, families_of_engine, family_of_model_type
from ckconv.families.schema import Family
from ckconv.families.sizes import always, switches, used
from ckconv.formats.bump import header, slots
from ckconv.formats.bump.plan import BumpPlanner
from ckconv.formats.bump.releases import ROPE_WORDS, template_interleaves
from ckconv.formats.bump.sidefiles import document_beside, model_config
from ckconv.io.files import ByteSource, open_source
from ckconv.io.json import shown
from ckconv.plan.probe import SourceFacts
from ckconv.plan.steps import Container, Frame, Plan, Step

#: What the manifests of such models call themselves: as they are initialized, and as they are trained.
INITIALIZED, CHECKPOINT = "weights_manifest_v7_tiny_init", "weights_manifest_v7_runtime_checkpoint"

#: Keys of a manifest that say where the model is from.
PROVENANCE = ("source", "step", "reason")

#: Layout of the bytes -> what stands before them: nothing, or what v7 wraps them in.
WRAPPERS: Mapping[str, bytes] = {"headerless": b"", "wrapped": slots.MAGIC[4].ljust(slots.EXTENDED_HEADER_BYTES, b"\0")}

#: Entries begin at multiples of this.
ALIGNMENT = 64

#: The runtime's norms have it; no document says so.
EPSILON = 1e-6

#: More than a shape ever has; of others the error says less.
_DIMENSIONS = 4

#: State of a parity harness in a model that was never trained, which is no part of it.
_HARNESS = "tiny."

#: Field -> its keys in the manifest's configuration; ``hidden_size`` there is the feed-forward's.
CONFIG_KEYS: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_layers",),
    "hidden_size": ("embed_dim",),
    "ffn_size": ("intermediate_size", "hidden_size"),
    "num_heads": ("num_heads",),
    "num_kv_heads": ("num_kv_heads",),
    "head_dim": ("head_dim",),
    "vocab_size": ("vocab_size",),
    "context_length": ("context_len", "context_length"),
}


def manifest_of(path: Path) -> Path:
    """Path of a manifest: ``STEM_manifest.json``, or the engine's name."""
    own = path.with_name(f"{path.stem}_manifest.json")
    return own if own.exists() else document_beside(path, header.MANIFEST_NAME)


def trained_manifest(path: Path, head: bytes) -> Mapping[str, Any] | None:
    """Manifest beside a file of a trained model that begins with ``head``.

    Raises:
        InputError: ``bump.metadata``; those of ``open_source``.
    """
    if head.startswith(tuple(slots.MAGIC.values())) and not is_wrapped(head):
        return None
    document = header.load_manifest(manifest_of(path))
    return document if document is not None and document.get("format") in (INITIALIZED, CHECKPOINT) else None


def is_trained(path: Path) -> bool:
    """Whether the files beside it say that a model was trained in the engine.

    Its first numbers may look like anything.
    """
    with open_source(path) as source:
        return trained_manifest(path, source.read_at(0, slots.HEADER_BYTES)) is not None


def is_wrapped(head: bytes) -> bool:
    """Whether the magic of version 4 stands before a header of zeros."""
    return head.startswith(slots.MAGIC[4]) and not any(head[len(slots.MAGIC[4]) : slots.HEADER_BYTES])


def index_trained(path: Path, source: ByteSource, document: Mapping[str, Any], *, wrapped: bool) -> TensorIndex:
    """The index of a file and its manifest.

    Raises:
        InputError: ``bump.metadata`` or ``model.config``, what the manifest says is not what the file can hold.
        UnsupportedError: ``model.architecture``, the engine trains no such family, or ckconv knows none.
    """
    start, end = slots.HEADER_BYTES if wrapped else 0, source.size or 0
    manifest = header.checked_manifest(document, start=start, end=end)
    config = table_within(document, "config")
    family = _family(config)
    unused = {
        name
        for name in manifest.entries
        if name.startswith(_HARNESS) or (name.endswith(("q_norm", "k_norm")) and not used(family, slots.TRAINED))
    }
    stored = manifest._replace(entries={name: e for name, e in manifest.entries.items() if name not in unused})
    model = _config(path, config, family)
    table, faults = header.slots_named(stored, slots.TABLES["trained"], model.num_layers)
    if faults:
        raise header.mismatch_error(faults)
    interleaved = _interleaved(document, config, family)
    g = slots.geometry(model, context=model.context_length, step=1)
    placed = header.relocated(slots.place(table, g, None, start=0, interleaved=interleaved, family=family), stored)
    _check_shapes(document, placed)
    _check_gaps(source, manifest, len(slots.MAGIC[4]) if wrapped else 0)
    lacking = _without_a_place(source, placed, family)
    row = family.engines[slots.TRAINED]
    dropped = tuple(_dropped(path, manifest, name) for name in manifest.entries if name in unused)
    facts: dict[str, Any] = {
        "layout": "wrapped" if wrapped else "headerless",
        "manifest": document["format"],
        "rope_layout": "interleaved" if interleaved else "split",
        "imposed": "norm_eps",
        "only_here": _only_here(document, config),
    }
    if lacking and row.biased:
        other = FAMILIES[row.biased]
        model = replace(model, family=other.name, model_type=other.model_type)
        facts["note"] = (
            f"{lacking[0]} is trained, and {an(family.name)} has no such bias: it is read as {an(other.name)}"
        )
    found = slots.tensors_of(path, placed)
    return TensorIndex(
        format="bump",
        version=0,
        path=path,
        files=(path,),
        architecture=family.name,
        config=model,
        **{**found, "stored": (*found["stored"], *(item.stored for item in dropped))},
        dropped=dropped,
        metadata={key: value for key, value in document.items() if key != "entries"},
        facts=facts,
    )


def _only_here(document: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Note about a model's origin and training in the manifest, or empty."""
    keys = [key for key in PROVENANCE if key in document]
    keys += [f"config.{key}" for key in ("training",) if key in config]
    return f"left out, and kept by --to bump --trainable only: {', '.join(keys)} of the manifest" if keys else ""


def _family(config: Mapping[str, Any]) -> Family:
    word = config.get("model")
    if not isinstance(word, str):
        raise InputError("model.config", f"{header.MANIFEST_NAME}: config.model is {shown(word)}, a name expected")
    family = family_of_model_type(word)
    row = family.engines.get(slots.TRAINED) if family else None
    if family is None or row is None:
        known = ", ".join(family.name for family in families_of_engine(slots.TRAINED))
        raise UnsupportedError(
            "model.architecture",
            f"was trained in the engine as {quoted(word)}; ckconv knows what the engine trains of {known}",
        )
    return family


def _config(path: Path, config: Mapping[str, Any], family: Family) -> ModelConfig:
    def fail(message: str) -> InputError:
        return InputError("model.config", f"{header.MANIFEST_NAME}: {message}")

    sizes = {}
    for field, keys in CONFIG_KEYS.items():
        key = next((key for key in keys if key in config), keys[0])
        if key not in config:
            raise fail(f"config.{key} is missing")
        sizes[field] = int(checked_number(f"config.{key}", config[key], NUMBERS[field], fail))
        if not sizes[field]:
            raise fail(f"config.{key} is 0")
    if sizes["num_heads"] % sizes["num_kv_heads"]:
        raise fail(f"config.num_heads is {sizes['num_heads']}, not a multiple of num_kv_heads, {sizes['num_kv_heads']}")
    theta = checked_number("config.rope_theta", config.get("rope_theta"), REAL, fail)
    words = {"model_type": family.model_type, "rope_theta": theta, "rms_norm_eps": EPSILON}
    return replace(model_config(path, words, sizes), tied=False)


def _interleaved(document: Mapping[str, Any], config: Mapping[str, Any], family: Family) -> bool:
    """Whether rows are interleaved, as ``_resolve_train_config`` has it.

    The configuration's word, else the template's, else the family's.
    """
    word = config.get("rope_layout")
    if word is None:
        interleaved = family.engines[slots.TRAINED].rotates == "interleaved"
        return template_interleaves(document.get("template"), interleaved)
    if not isinstance(word, str) or word not in ROPE_WORDS:
        raise InputError("model.config", f"rope_layout is {shown(word)}, split or pairwise expected")
    return ROPE_WORDS[word]


def _check_gaps(source: ByteSource, manifest: header.Manifest, start: int) -> None:
    """Check for short gaps of zeros between entries, and none at the end."""
    ordered = sorted(manifest.entries.values(), key=lambda entry: entry.offset)
    ends = [start, *(entry.end for entry in ordered)]
    for end, entry in zip(ends, ordered, strict=False):
        gap = entry.offset - end
        limit = ALIGNMENT if end != start else slots.HEADER_BYTES + ALIGNMENT
        if gap >= limit or any(source.read_at(end, gap)):
            what = f"{counted(gap, 'byte')} before" if gap >= limit else "other bytes than zeros before"
            raise InputError(
                "bump.extent",
                f"{what} {quoted(entry.name)} belong to no entry of {header.MANIFEST_NAME}",
                offset=end,
            )
    if source.size is not None and source.size > ends[-1]:
        raise InputError(
            "bump.extent",
            f"{counted(source.size - ends[-1], 'byte')} after the last entry of {header.MANIFEST_NAME}",
            offset=ends[-1],
        )


def _check_shapes(document: Mapping[str, Any], placed: list[slots.PlacedTensor]) -> None:
    """Check a manifest's shapes, which byte counts alone do not determine."""
    rows: dict[str, list[int]] = {}
    for item in placed:
        shape = rows.setdefault(item.slot_name, [0, *item.shape[1:]])
        shape[0] += item.shape[0]
    shapes = {entry.get("name"): entry.get("shape") for entry in document["entries"]}
    faults = [
        f"{header.MANIFEST_NAME}: the shape of {name} is {_words(shapes[name])}, the model's sizes make it {shape}"
        for name, shape in rows.items()
        if shapes.get(name) is not None and shapes[name] != shape
    ]
    if faults:
        raise InputError(header.CODE, faults[0], details=listed(faults[1:]))


def _words(shape: object) -> str:
    whole = isinstance(shape, list) and len(shape) <= _DIMENSIONS and all(isinstance(n, int) for n in shape)
    return str(shape) if whole else shown(shape)


def _without_a_place(source: ByteSource, placed: list[slots.PlacedTensor], family: Family) -> list[str]:
    """Biases that the family's class never has, and that are not zero."""
    possible = always(family, "hf").union(*switches(family).values())
    foreign = (item for item in placed if item.slot.zero_if_absent and parse(item.canonical).pattern not in possible)
    return [item.slot_name for item in foreign if any(source.read_whole(item.offset, item.nbytes))]


def _dropped(path: Path, manifest: header.Manifest, name: str) -> DroppedTensor:
    entry = manifest.entries[name]
    reason = "state of a parity harness" if name.startswith(_HARNESS) else "the runtime of this family does not use it"
    if entry.dtype != "fp32" or entry.nbytes % F32.size:
        raise InputError(
            header.CODE,
            f"{header.MANIFEST_NAME}: {quoted(name)} is {shown(entry.dtype)} of {entry.nbytes:,} bytes, fp32 expected",
            tensor=name,
        )
    stored = StoredTensor(name, F32, (entry.nbytes // F32.size,), Extent(path, entry.offset, entry.nbytes))
    return DroppedTensor(stored, reason)


# -- Plans of what the engine trains -----------------------------------------------------------------------------------
# By a manifest, as its runtime writes its checkpoints.
#
# Source: ``_write_ck_weight_checkpoint_bump`` of ``ck_run_v7.py``.

#: What the engine's initialization says of training, where the source says nothing.
_TRAINING: Mapping[str, Any] = {
    "enabled": True,
    "kernel_policy": "fp32_reference_first",
    "precision_policy": "fp32_only",
    "optimizer": {
        "name": "adamw",
        "adamw": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-08, "weight_decay": 0.01},
    },
}


class TrainedPlanner(BumpPlanner):
    """Planner for the runtime that trains: all biases, a head of its own."""

    engine = slots.TRAINED
    numbering = "v4"
    data_start = 0
    step = 1

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        # A head that is the embedding is a head: it is trained apart.
        super().__init__(_as_trained(index), options, source._replace(head_is_embedding=False))
        self._as_read = index
        self.table = slots.with_optional(slots.TABLES["trained"], used(self.family, slots.TRAINED))

    def _check_engine(self) -> None:
        c = self.config
        absent = next((row for row in (self.own_row, self.row) if row is not None and row.absent), None)
        if self.row is None or absent is not None:
            known = ", ".join(family.name for family in families_of_engine(slots.TRAINED))
            self.refuse(f"ckconv does not know how the engine trains {an(self.family.name)}; it knows {known}")
        if c.norm_eps and c.norm_eps != EPSILON and not self.options.allow_lossy:
            self.refuse(
                f"the epsilon of its norms is {c.norm_eps:g}, the engine trains with {EPSILON:g} only",
                f"--allow-lossy starts from these weights with {EPSILON:g}",
            )
        if c.num_heads * c.head_dim != c.hidden_size:
            self.refuse(
                f"{c.num_heads} heads of {c.head_dim} are not the hidden size {c.hidden_size:,}; "
                "the engine trains square matrices of Q and of the output"
            )

    def _select(self, *, look: bool) -> None:
        super()._select(look=look)
        tied = self.is_tied() or self.index.config is None or self.index.config.tied is None
        if HEAD not in self.tensors and tied and EMBEDDING in self.tensors:
            self.tensors[HEAD] = self.tensors[EMBEDDING]
            self.notes.append("the engine trains a head of its own: it begins as a copy of the embedding")

    def refused_type(self, source: DType, slot: slots.Slot) -> str:
        """See :meth:`BumpPlanner.refused_type`."""
        return "the engine trains FP32 only"

    def _check_types(self, types: Mapping[str, DType]) -> None:
        other = next((dtype for dtype in types.values() if dtype is not F32), None)
        if other is not None:
            self.refuse(f"--dtype {self.options.dtype} would store {other}, and the engine trains FP32 only")

    def _rotates_pairs(self) -> bool:
        return self.row is not None and self.row.rotates == "interleaved"

    def _finish(self, types: Mapping[str, DType], interleaved: bool) -> Plan:
        wrapper = WRAPPERS[self.options.trainable]
        steps = self._aligned(super().steps(types, interleaved=interleaved), len(wrapper))
        document = self._manifest(steps, wrapped=bool(wrapper))
        self.notes.append("no tokenizer is written: the engine's training takes token ids, or learns one of its own")
        if self.config.norm_eps != EPSILON:
            self.notes.append(
                f"the engine trains with an epsilon of {EPSILON:g}, the source's is {self.config.norm_eps:g}"
            )
        layout = "interleaved" if interleaved else "split"
        plan = self.made([self.file(steps)], partial(_container, wrapper, document), rope_layout=layout)
        return replace(plan, index=self._as_read)

    @staticmethod
    def _aligned(steps: list[Step], start: int) -> list[Step]:
        """In the runtime's order of names, each slot at a multiple of 64 bytes."""
        made: list[Step] = []
        for step in sorted(steps, key=lambda step: step.slot):  # stable: parts of a slot stay in order
            end = made[-1].offset + made[-1].nbytes if made else start
            goes_on = made and made[-1].slot == step.slot
            offset = end if goes_on else start + slots.align(end - start, ALIGNMENT)
            extent = step.target.extents[0]._replace(offset=offset)
            made.append(replace(step, target=replace(step.target, extents=(extent,))))
        return made

    def _manifest(self, steps: list[Step], *, wrapped: bool) -> dict[str, Any]:
        own = self.index.metadata if self.index.format == self.format and not self.index.version else {}
        sizes = {keys[0]: getattr(self.config, field) for field, keys in CONFIG_KEYS.items()}
        config: dict[str, Any] = {
            "model": self.family.gguf,
            "num_layers": sizes["num_layers"],
            "embed_dim": sizes["embed_dim"],
            "hidden_size": sizes["intermediate_size"],
            **{
                name: sizes[name]
                for name in ("intermediate_size", "vocab_size", "num_heads", "num_kv_heads", "head_dim")
            },
            "context_len": self.geometry.context,
            "rope_theta": float(self.config.rope_theta or 0),
            "dtype": "fp32",
            "training": table_within(own, "config").get("training", _TRAINING),
        }
        if wrapped:  # what the engine that infers fills with defaults of its own
            config |= {"rms_eps": EPSILON, "context_length": self.geometry.context, "tie_word_embeddings": False}
        where = {key: own[key] for key in PROVENANCE if key in own}
        return {
            "version": 1,
            "format": CHECKPOINT,
            **(where or {"source": "ckconv", "step": 0, "reason": "conversion"}),
            "entries": _entries(steps),
            "config": config,
            **{key: own[key] for key in ("template",) if key in own},
        }


def _as_trained(index: TensorIndex) -> TensorIndex:
    """Model trained in the engine, as the family that it was trained as."""
    family = family_of_model_type(index.architecture) if index.format == "bump" and not index.version else None
    if family is None or index.config is None:
        return index
    return replace(index, config=replace(index.config, family=family.name, model_type=family.model_type))


def _entries(steps: list[Step]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for step in steps:
        entry = found.setdefault(
            step.slot,
            {
                "name": step.slot,
                "offset": step.offset,
                "size": 0,
                "dtype": "fp32",
                "shape": [0, *step.target.shape[1:]],
            },
        )
        entry["size"] += step.nbytes
        entry["shape"][0] += step.target.shape[0]
    return list(found.values())


def _container(wrapper: bytes, document: Mapping[str, Any]) -> Container:
    """Serialize as the runtime does: two spaces, no line feed at the end."""
    return Container((Frame(wrapper),), side_files={header.MANIFEST_NAME: json.dumps(document, indent=2).encode()})
