"""Tensors whose names are not those of the family that config.json names: one reason, where there would be many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.core.tensors import TensorIndex, parse
from ckconv.errors import counted, quoted
from ckconv.families.elsewhere import classes_of, known_by
from ckconv.families.naming_schemes import is_beside_text
from ckconv.plan.steps import Reason

#: Names that a reason shows.
_SHOWN = 3


def foreign_names(index: TensorIndex) -> Reason | None:
    """Why a model of a known family has no tensors of it; ``None`` where it has those of a layer."""
    config = index.config
    if config is None or index.adapter is not None or not index.unknown:
        return None
    text = [stored.name for stored in index.unknown if not is_beside_text(config.raw, stored.name)]
    layers = {name for name in index.tensors if parse(name).layer is not None}
    if layers or not any(parse(name).layer is not None for name in text):
        return None
    if reason := _wrapper(config.raw, config):
        return reason
    more = ", ..." if len(text) > _SHOWN else ""
    some = ", ".join(map(quoted, text[:_SHOWN])) + more
    return Reason(
        f"none of {counted(len(text), 'tensor')} has a name of a {config.family}, as config.json says: {some}"
    )


def _wrapper(raw: Mapping[str, Any], config: ModelConfig) -> Reason | None:
    """A model of several parts whose own architecture is not known, though that of its text part is."""
    outer = raw.get("model_type")
    if not isinstance(raw.get("text_config"), dict) or not isinstance(outer, str) or outer == config.model_type:
        return None
    return Reason(
        f"ckconv does not know the architecture {outer!r} (model_type), whose text part is a {config.family}; "
        f"{known_by(outer, classes_of(raw))}",
        "--to safetensors copies it as it is",
    )
