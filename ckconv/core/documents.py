"""A configuration and a header's own metadata as one mapping: that of an index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ckconv.core.dtypes import Kind

if TYPE_CHECKING:
    from ckconv.core.tensors import StoredTensor

#: The configuration of a checkpoint, in its directory; that of a bump file beside it has the same name.
CONFIG_NAME = "config.json"

#: The key of a safetensors header's own metadata.
METADATA = "__metadata__"


def joined_metadata(header: Mapping[str, str], document: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping of a header's own ``__metadata__``, marked as such, and a configuration."""
    return {**{f"{METADATA}.{key}": value for key, value in header.items()}, **document}


def document_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration out of :func:`joined_metadata`."""
    return {key: value for key, value in metadata.items() if not key.startswith(f"{METADATA}.")}


#: What a configuration of several modalities calls the text part's: transformers' classes, and InternVL's own code.
_TEXTS = ("text_config", "llm_config")


def text_key(document: Mapping[str, Any]) -> str:
    """The key of the text part's configuration; empty where the document is that of a text model."""
    return next((key for key in _TEXTS if isinstance(document.get(key), dict)), "")


#: Keys of ``config.json`` about how tensors are quantised: MLX's, everybody's, and compressed-tensors' old one.
QUANTIZATION_KEYS = ("quantization", "quantization_config", "compression_config")


def unquantised(document: Mapping[str, Any], *, by: str = "") -> dict[str, Any]:
    """A configuration without what it says of quantisation, in its inner ones too.

    Args:
        by: of objects that have this key, what they say stays.
    """
    return {
        key: unquantised(value, by=by) if key.endswith("_config") and isinstance(value, dict) else value
        for key, value in document.items()
        if key not in QUANTIZATION_KEYS or (by and (not isinstance(value, dict) or by in value))
    }


def without_stale(document: Mapping[str, Any], stored: Iterable[StoredTensor]) -> dict[str, Any]:
    """A configuration without MLX's word that matrices are quantised, where all of them are floats.

    MLX's objects name no ``quant_method``, without which transformers does not load a model.
    """
    dense = all(tensor.dtype.kind is Kind.FLOAT for tensor in stored if len(tensor.shape) > 1)
    return unquantised(document, by="quant_method") if dense else dict(document)
