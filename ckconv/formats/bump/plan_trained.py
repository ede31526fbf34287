"""Plan the float32 file that training in the engine starts from.

By a manifest, as its runtime writes its checkpoints.

Source: ``_write_ck_weight_checkpoint_bump`` of ``ck_run_v7.py``; on what is computed :mod:`.trained`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ckconv.core.dtypes import F32, DType
from ckconv.core.tensors import EMBEDDING, HEAD, TensorIndex
from ckconv.families.catalog import families_of_engine, family_of_model_type
from ckconv.families.sizes import used
from ckconv.formats.bump.plan import BumpPlanner
from ckconv.formats.bump.slots import SLOTS_TRAINED, TRAINED, Slot, align, with_optional
from ckconv.formats.bump.trained import ALIGNMENT, CHECKPOINT, CONFIG_KEYS, EPSILON, PROVENANCE, WRAPPERS
from ckconv.formats.bump.write import MANIFEST_NAME
from ckconv.options import Options
from ckconv.plan.probe import SourceFacts
from ckconv.plan.steps import Container, Frame, Plan, Step

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

    engine = TRAINED
    numbering = "v4"
    data_start = 0
    step = 1

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        # A head that is the embedding is a head: it is trained apart.
        super().__init__(_as_trained(index), options, source._replace(head_is_embedding=False))
        self._as_read = index
        self.table = with_optional(SLOTS_TRAINED, used(self.family, TRAINED))

    def _check_engine(self) -> None:
        c = self.config
        if self.row is None:
            known = ", ".join(family.name for family in families_of_engine(TRAINED))
            self.refuse(f"ckconv does not know how the engine trains a {self.family.name}; it knows {known}")
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

    def refused_type(self, source: DType, slot: Slot) -> str:
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
        return Plan(
            self._as_read,
            self.format,
            0,
            self.options,
            (self.file(steps),),
            tuple(self.left_out),
            notes=tuple(self.notes),
            rope_layout="interleaved" if interleaved else "split",
            contents=partial(_container, wrapper, document),
        )

    @staticmethod
    def _aligned(steps: list[Step], start: int) -> list[Step]:
        """In the runtime's order of names, each slot at a multiple of 64 bytes."""
        made: list[Step] = []
        for step in sorted(steps, key=lambda step: step.slot):  # stable: parts of a slot stay in order
            end = made[-1].offset + made[-1].nbytes if made else start
            goes_on = made and made[-1].slot == step.slot
            offset = end if goes_on else start + align(end - start, ALIGNMENT)
            extent = step.target.extents[0]._replace(offset=offset)
            made.append(step._replace(target=replace(step.target, extents=(extent,))))
        return made

    def _manifest(self, steps: list[Step], *, wrapped: bool) -> dict[str, Any]:
        own = self.index.metadata if self.index.format == self.format and not self.index.version else {}
        said = own.get("config")
        said = said if isinstance(said, dict) else {}
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
            "training": said.get("training", _TRAINING),
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
    """Serialize a document as the runtime does.

    Two spaces, and no line feed behind it.
    """
    return Container((Frame(wrapper),), side_files={MANIFEST_NAME: json.dumps(document, indent=2).encode()})
