"""Which keys of a configuration a field stands under, for messages that name them."""

from __future__ import annotations

from ckconv.core.config import ModelConfig, gguf_words, words_of
from ckconv.families.architectures import FAMILIES
from ckconv.families.key_tables import KEYS


def said(config: ModelConfig, *fields: str, format: str = "") -> str:
    """`` (num_attention_heads, head_dim)``; empty for a model without a configuration document, but for a GGUF."""
    keys = KEYS.get(config.model_type) if config.raw else None
    names = [word for field in fields for word in (words_of(field, keys) if keys else ())]
    if format == "gguf":
        names = gguf_words(FAMILIES[config.family].gguf, fields)
    return f" ({', '.join(dict.fromkeys(names))})" if names else ""
