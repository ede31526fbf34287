"""How the source scales RoPE, in Hugging Face's words, and what of it has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckconv.files import Files
from ckconv.model.config import ModelConfig
from ckconv.model.index import TensorIndex
from ckconv.plan.planner import ROPE_FREQUENCIES
from ckconv.plan.steps import Reason

#: What GGUF calls a scaling -> Hugging Face, of those that a factor alone says.
_TYPES = {"linear": "linear"}


@dataclass(frozen=True, slots=True)
class Scaling:
    """What was found.

    Attributes:
        document: ``rope_scaling`` of a ``config.json``; ``None`` for none.
        left_out: why the source's tensor of factors is not written; empty where there is none.
        reasons: why a configuration cannot say what the source computes.
    """

    document: Mapping[str, Any] | None = None
    left_out: str = ""
    reasons: tuple[Reason, ...] = ()


def scaling_of(index: TensorIndex, config: ModelConfig, *, drop: bool) -> Scaling:
    """Recover the scaling; of a source with a configuration document it is there.

    Args:
        drop: a flag leaves the tensor of factors out.
    """
    document, left_out = config.rope_scaling, ""
    reasons: list[Reason] = []
    if ROPE_FREQUENCIES in index.tensors:
        if drop:
            document = None  # the plan names the loss
        else:
            document = _recovered(index, config)
            left_out = "follows from rope_scaling in config.json"
            if document is None:
                text = f"{index.tensors[ROPE_FREQUENCIES].source} is not Llama 3's scaling, the only one that is known"
                reasons.append(Reason(text, "--drop rope_frequencies leaves it out, which is a loss"))
    if index.format == "gguf":
        said = _said(index)
        for modifier in config.modifiers:
            key = modifier.split(" = ")[0]
            if document is None and said and key.endswith((".scaling.type", ".scaling.factor", ".scale_linear")):
                continue
            reasons.append(Reason(f"{modifier} changes the computation; no key of a config.json says it"))
        document = document or said
    elif index.format == "bump":
        reasons += [Reason(f"{modifier} changes the computation") for modifier in config.modifiers]
    return Scaling(document, left_out, tuple(reasons))


def _said(index: TensorIndex) -> dict[str, Any] | None:
    """A GGUF's own keys."""

    def value(name: str) -> Any:
        return getattr(index.metadata.get(f"{index.architecture}.rope.scaling.{name}"), "value", None)

    kind, factor = value("type"), value("factor")
    return {"rope_type": _TYPES[kind], "factor": float(factor)} if kind in _TYPES and factor else None


def _recovered(index: TensorIndex, config: ModelConfig) -> dict[str, Any] | None:
    import numpy as np

    from ckconv.model.llama3_rope import rope_scaling_of
    from ckconv.rows import RowReader
    from ckconv.values import to_float32

    tensor = index.tensors[ROPE_FREQUENCIES]
    if tensor.dtype.name != "F32" or tensor.shape != (config.rotary_dim // 2,) or config.rope_theta is None:
        return None
    with Files(index.identities) as files:
        factors = to_float32(RowReader(tensor, files).rows(0, tensor.layout.rows), tensor.dtype).reshape(-1)
    return rope_scaling_of(np.ascontiguousarray(factors), config.rope_theta, config.rotary_dim)
