"""What an adapter is, whatever file it came from: for each module of a base model, what its matrix changes by.

The tensors of an adapter stand in a :class:`~ckconv.core.tensors.TensorIndex` like those of a model, named
``MODULE.ROLE`` (:class:`Role`), in one orientation for every format: a LoRA's ``lora_a`` is ``[rank, in]``, its
``lora_b`` ``[out, rank]``, and the matrix ``[out, in]`` of the base, rows in canonical order, changes by
``scale * lora_b @ lora_a``. The scale is part of the layout of ``lora_b``
(:attr:`~ckconv.core.layouts.Layout.scale`), so that two adapters whose canonical values are equal change a model
alike, wherever each of them keeps its scale. An embedding is no exception: its rows are the vocabulary.

Scales are float32 numbers: PyTorch, MLX and llama.cpp all multiply float32 values by them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ckconv.core.floats import float32

if TYPE_CHECKING:
    from ckconv.core.config import ModelConfig
    from ckconv.core.tensors import TensorIndex


class Role(enum.StrEnum):
    """What a tensor of an adapter is to its module.

    ``lora_a`` ``[rank, in]`` and ``lora_b`` ``[out, rank]``; ``lora_bias`` ``[out]``, which the scale multiplies too;
    ``magnitude``, what DoRA makes the norms of the merged rows (of an embedding: columns); ``ia3``, what the module's
    outputs, or in a feed-forward its inputs, are multiplied by; ``rows``, what replaces single rows of a table;
    ``saved_weight`` and ``saved_bias``, whole tensors that replace the base's.
    """

    A = "lora_a"
    B = "lora_b"
    BIAS = "lora_bias"
    MAGNITUDE = "magnitude"
    IA3 = "ia3"
    ROWS = "rows"
    SAVED_WEIGHT = "saved_weight"
    SAVED_BIAS = "saved_bias"


#: The end of a sentence about a place that only the base model's numbers say: where no base is known, naming it helps.
BY_BASE = "which follows from the base model"


class AdapterModule(NamedTuple):
    """One module of the base model, and what changes it.

    Attributes:
        name: canonical (``layers.0.attention.q``), or as the file has it where there is no rule for it.
        path: as the file calls it (``model.layers.0.self_attn.q_proj``).
        roles: which tensors there are; the index has each as ``NAME.ROLE``.
        rank: columns of ``lora_b``, 0 where there is none.
        alpha: what the file says of the scale, ``None`` where it says nothing.
        scale: the effective one, a float32 number; 1 without LoRA.
        embedding: the module is a table that is looked up, not a matrix that is multiplied.
        feedforward: ``ia3`` multiplies the module's inputs.
        replaced: which rows of the base's matrix those of ``rows`` replace.
    """

    name: str
    path: str
    roles: tuple[Role, ...]
    rank: int = 0
    alpha: float | None = None
    scale: float = 1.0
    embedding: bool = False
    feedforward: bool = False
    replaced: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """The method, for people: ``lora``, ``dora``, ``ia3``, ``rows`` or ``full``."""
        if Role.IA3 in self.roles:
            return "ia3"
        if Role.ROWS in self.roles:
            return "rows"
        if Role.B not in self.roles:
            return "full"
        return "dora" if Role.MAGNITUDE in self.roles else "lora"


@dataclass(frozen=True, slots=True)
class Adapter:
    """Everything about an adapter but its tensors.

    Attributes:
        method: ``LoRA``, ``DoRA``, ``IA3`` or ``full``.
        base_name: what the adapter calls its base model; empty where it does not say.
        modules: by canonical name, in file order.
        unsupported: what the file says of the computation that ckconv has no rule for; each stops every use of it.
        base: the base model's hyper-parameters, where it was named and found.
        document: the configuration as the file has it.
        ties: what it changes of a tied model's embedding changes the output head too.
        base_index: the base model's tensors, where they were found.
    """

    method: str
    base_name: str
    modules: Mapping[str, AdapterModule]
    unsupported: tuple[str, ...] = ()
    base: ModelConfig | None = None
    document: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    ties: bool = True
    base_index: TensorIndex | None = field(default=None, compare=False, repr=False)

    @property
    def replaced(self) -> dict[str, tuple[int, ...]]:
        """Module -> the rows of it that others replace, of each that has such."""
        return {name: module.replaced for name, module in self.modules.items() if module.replaced}


def effective_scale(alpha: float, rank: int, *, rank_stabilised: bool = False) -> float:
    """``alpha / rank``, or ``alpha / sqrt(rank)`` with rsLoRA (peft's ``LoraLayer.update_layer``)."""
    return float32(alpha / (math.sqrt(rank) if rank_stabilised else rank))
