"""``config.json`` as transformers and mlx-lm read it, out of the canonical hyper-parameters.

RoPE is written in both styles, ``rope_theta`` with ``rope_scaling`` and ``rope_parameters``: transformers 4 and most of
mlx-lm's classes (0.32) know only the first, and take their own default where they find only the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.families.catalogue import FAMILIES
from ckconv.families.parameters import nested, scope_of, write
from ckconv.families.schema import Family


@dataclass(frozen=True, slots=True)
class Facts:
    """What a document says besides the hyper-parameters.

    Attributes:
        tied: there is no output head of its own.
        dtype: the type that the weights are to be loaded as, in torch's words; empty for none.
        switches: ``attention_bias`` and the like.
        rope_scaling: in Hugging Face's words.
        tokens: ids of special tokens, by key.
        context: context length, 0 for the model's own.
    """

    tied: bool
    dtype: str
    switches: Mapping[str, bool] = field(default_factory=dict)
    rope_scaling: Mapping[str, Any] | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    context: int = 0


def build_document(config: ModelConfig, facts: Facts) -> dict[str, Any]:
    """The document, its keys sorted as transformers sorts them."""
    family = FAMILIES[config.family]
    if config.sliding_window is not None and family.document.window.family:
        family = FAMILIES[family.document.window.family]
    scope = {**scope_of(family, replace(config, tied=facts.tied)), "rope_scaling": facts.rope_scaling}
    document: dict[str, Any] = {
        "architectures": [family.hf_class],
        "model_type": family.model_type,
        **family.document.written,
        **_neutral(family),
        **_rows(family, scope),
        **_dtype(facts.dtype),
        **facts.switches,
        **facts.tokens,
    }
    if family.rope:
        document |= _rope(config, family, facts.rope_scaling, scope)
    if facts.context:
        document |= dict.fromkeys(_keys_of_context(family), facts.context)
    return dict(sorted(document.items()))


def _dtype(name: str) -> dict[str, str]:
    # transformers 5 and late 4 read "dtype", older ones "torch_dtype".
    return {"dtype": name, "torch_dtype": name} if name else {}


def _neutral(family: Family) -> dict[str, Any]:
    """Modifiers that a document says, with the value that changes nothing."""
    return {key.name: key.neutral[0] for key in family.document.keys.keys.values() if key.written}


def _rows(family: Family, scope: Mapping[str, Any]) -> dict[str, Any]:
    """What the rows of the parameters say; tables of a family whose RoPE the reader knows have a rule of their own."""
    entries = write(family, scope, "hf").entries
    of_rope = {path for path in entries if family.rope and path.startswith("rope_") and "." in path}
    return nested({path: said for path, said in entries.items() if path not in of_rope})


def _keys_of_context(family: Family) -> list[str]:
    return [cell.key for cell in family.parameters["context"].key_cells("hf") if not cell.alias]


def _rope(
    config: ModelConfig, family: Family, scaling: Mapping[str, Any] | None, scope: Mapping[str, Any]
) -> dict[str, Any]:
    parameters = {"rope_theta": config.rope_theta, **(scaling or {"rope_type": "default"})}
    for path, (_, value) in write(family, scope, "hf").entries.items():
        table_name, _, key = path.partition(".")
        if table_name == "rope_parameters" and value is not None and "." not in key:
            parameters.setdefault(key, value)
    if family.document.rope.by_layer:
        local = {"rope_theta": scope["local_theta"], "rope_type": "default"}
        parameters = {"full_attention": parameters, "sliding_attention": local}
    table = dict(scaling) if scaling else None
    if table and table["rope_type"] == "longrope":
        table["type"] = "longrope"  # which mlx-lm's class asks for, as transformers before 4.43
    return {"rope_parameters": parameters, "rope_scaling": table}
