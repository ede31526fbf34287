"""Which keys of a configuration a field stands under, for messages that name them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ckconv.core.config import FIELD_OF, PARAMETERS, ModelConfig
from ckconv.core.key_table import Table
from ckconv.families.catalogue import FAMILIES
from ckconv.families.key_tables import KEYS

#: The fields that the size of a head follows from.
HEAD_SIZE = ("head_dim", "hidden_size", "num_heads")


def said(config: ModelConfig, *fields: str, format: str = "") -> str:
    """`` (num_attention_heads, head_dim)``; empty for a model without a configuration document, but for a GGUF.

    Args:
        fields: of the configuration; ``family`` is what says which class it is of.
    """
    names = dict.fromkeys(name for field in fields for name in _names(config, field, format))
    return f" ({', '.join(names)})" if names else ""


def _names(config: ModelConfig, field: str, format: str) -> Iterable[str]:
    if format == "gguf":
        return gguf_words(FAMILIES[config.family].gguf, [field]) if field != "family" else ()
    if not config.raw:
        return ()
    if field == "family":
        return ("model_type",)
    return words_of(field, KEYS[config.model_type]) if config.model_type in KEYS else ()


def of_class(config: ModelConfig | None) -> str:
    """`` of a llama (model_type)``: which class's tensors a sentence is about, where a document names one."""
    return f" of a {config.model_type} (model_type)" if config is not None and config.raw else ""


def tensors_said(config: ModelConfig, *, format: str) -> str:
    """The keys that say which tensors a model has, in brackets."""
    experts = ("num_experts",) if FAMILIES[config.family].experts else ()
    return said(config, "num_layers", *experts, "family", format=format)


def said_of(config: ModelConfig, format: str = "") -> Callable[..., str]:
    """:func:`said` of parameters, by the names of family files; ``family`` is no parameter."""
    fields = {**FIELD_OF, "family": "family"}
    return lambda *names: said(config, *(fields[name] for name in names if name in fields), format=format)


#: Fields that only Gemma 3 has a key for.
_OTHER_WORDS: Mapping[str, tuple[str, ...]] = {
    "local_rope_theta": ("rope_local_base_freq",),
    "final_cap": ("final_logit_softcapping",),
    "query_scalar": ("query_pre_attn_scalar",),
}


def words_of(field: str, keys: Table) -> list[str]:
    """What a family's configuration calls a field."""
    found = (key for parameter in PARAMETERS if parameter.field == field for key in parameter.huggingface)
    return [key for key in (*found, *_OTHER_WORDS.get(field, ())) if key in keys.keys]


def gguf_words(architecture: str, fields: Iterable[str]) -> list[str]:
    """What a GGUF calls fields."""
    keys = {parameter.field: parameter.gguf for parameter in PARAMETERS}
    return [f"{architecture}.{key}" for field in fields for key in keys[field]]
