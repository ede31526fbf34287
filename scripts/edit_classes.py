"""Whether the class that loads a model takes its ``config.json``, asked without the model."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def complaint(format: str, document: Mapping[str, Any]) -> str:
    """Why transformers (``hf``) or mlx-lm (``mlx``) does not take the document; empty if it does."""
    try:
        if format == "hf":
            import transformers

            transformers.CONFIG_MAPPING[document["model_type"]].from_dict(dict(document))
        elif format == "mlx":
            from mlx_lm import utils

            name = utils.MODEL_REMAPPING.get(document["model_type"], document["model_type"])
            importlib.import_module(f"mlx_lm.models.{name}").ModelArgs.from_dict(dict(document))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
