"""Which keys of a configuration a field stands under, for messages that name them."""

from __future__ import annotations

from ckconv.model.config import ModelConfig, words_of
from ckconv.model.keys import KEYS


def said(config: ModelConfig, *fields: str) -> str:
    """`` (num_attention_heads, head_dim)``; empty for a model without a configuration document."""
    keys = KEYS.get(config.model_type)
    if keys is None or not config.raw:
        return ""
    names = dict.fromkeys(word for field in fields for word in words_of(field, keys))
    return f" ({', '.join(names)})" if names else ""
