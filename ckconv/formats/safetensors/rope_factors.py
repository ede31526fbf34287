"""How the source scales RoPE, in Hugging Face's words, and what of it has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ckconv.core.config import ModelConfig, scaled
from ckconv.core.tensors import TensorIndex
from ckconv.families.words import family_of
from ckconv.io.files import Files
from ckconv.plan.planner import ROPE_FREQUENCIES
from ckconv.plan.steps import Reason


class Scaling(NamedTuple):
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
    family = family_of(config)
    reasons: list[Reason] = []
    if ROPE_FREQUENCIES in index.tensors:
        if drop:
            document = None  # the plan names the loss
        else:
            found, source = _recovered(index, config), index.tensors[ROPE_FREQUENCIES].source
            left_out = "follows from rope_scaling in config.json" if found else "every factor is 1: nothing is scaled"
            if found is None:
                text = f"{source} is neither Llama 3's scaling nor a linear one: no rope_scaling gives these factors"
                reasons.append(Reason(text, "--drop rope_frequencies leaves it out, which is a loss"))
            elif found and document and index.format == "gguf":
                kind = document["rope_type"]
                reasons.append(Reason(f"{source} scales RoPE, and rope.scaling.type = {kind} once more"))
            document = found or document
    if index.format == "gguf":
        changes = "changes the computation; no key of a config.json says it"
        reasons += [Reason(f"{modifier} {changes}") for modifier in config.modifiers]
        kind = document.get("rope_type") if document else None
        types = family.document.rope.types if family else ()
        if kind and types and kind not in types:
            known = f"transformers' {config.family} knows {', '.join(types)} only"
            reasons.append(Reason(f"{scaled(str(kind), config)}; {known}"))
    elif index.format == "bump":
        reasons += [Reason(f"{modifier} changes the computation") for modifier in config.modifiers]
    return Scaling(document, left_out, tuple(reasons))


def _recovered(index: TensorIndex, config: ModelConfig) -> dict[str, Any] | None:
    import numpy as np

    from ckconv.core.config import rope_scaling_of
    from ckconv.io.rows import RowReader
    from ckconv.quant.codec import to_float32

    tensor = index.tensors[ROPE_FREQUENCIES]
    if tensor.dtype.name != "F32" or tensor.shape != (config.rotary_dim // 2,) or config.rope_theta is None:
        return None
    with Files(index.identities) as files:
        factors = to_float32(RowReader(tensor, files).rows(0, tensor.layout.rows), tensor.dtype).reshape(-1)
    return rope_scaling_of(np.ascontiguousarray(factors), config.rope_theta, config.rotary_dim)
