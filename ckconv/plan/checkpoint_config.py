"""The ``config.json`` of a checkpoint: the source's own where it has one, changed only where it must be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckconv.model.architectures import FAMILIES
from ckconv.model.config import ModelConfig
from ckconv.model.huggingface_document import Facts, build_document
from ckconv.model.index import TensorIndex

CONFIG_NAME = "config.json"
_DTYPE_KEYS = ("dtype", "torch_dtype")
_QUANTIZATION_KEYS = ("quantization", "quantization_config")

#: Keys that mlx-lm's classes cannot do without, or take a default of their own for; those of Hugging Face can.
_MLX_NEEDS: Mapping[str, tuple[str, ...]] = {
    "": ("rope_theta", "num_key_value_heads", "max_position_embeddings"),
    "llama": ("head_dim",),
    "qwen3": ("head_dim",),
    "qwen3moe": ("head_dim",),
    "gemma3": ("head_dim", "rope_local_base_freq", "query_pre_attn_scalar"),
    "gpt2": ("n_ctx", "n_positions", "layer_norm_epsilon"),
}

#: What transformers' classes take for a key that is not there, where mlx-lm's want it to be there.
_CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "qwen3moe": {"norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": []}
}


@dataclass(frozen=True, slots=True)
class Changes:
    """What the output's document says otherwise than the source's.

    Attributes:
        renamed: tensors have the names of the family's text-only class.
        tied: there is no output head of its own; ``None`` to leave what the source says.
        dtype: the type that the weights are to be loaded as; empty to leave what the source says.
        quantization: MLX's object; ``None`` for none, ``{}`` to leave what the source says.
        mlx: for mlx-lm, where the source is not.
        context: context length, 0 for the source's.
    """

    renamed: bool
    tied: bool | None
    dtype: str
    quantization: Mapping[str, Any] | None
    mlx: bool
    context: int = 0


def source_document(index: TensorIndex) -> dict[str, Any]:
    """The configuration that the source has of its own; empty where it has none or is no checkpoint."""
    if index.format not in ("safetensors", "mlx"):
        return {}
    return {key: value for key, value in index.metadata.items() if not key.startswith("__metadata__.")}


def changed_document(
    source: Mapping[str, Any], config: ModelConfig | None, facts: Facts, changes: Changes
) -> dict[str, Any]:
    """The source's document with what has to be different."""
    document = dict(source)
    nested = document.get("text_config")
    if changes.renamed and config is not None and isinstance(nested, dict):
        family = FAMILIES[config.family]
        kept = {key: value for key, value in document.items() if not key.endswith("_config")}
        document = {**kept, **nested, "architectures": [family.hf_class], "model_type": family.model_type}
    if changes.tied is not None:
        document["tie_word_embeddings"] = changes.tied
    if changes.dtype:
        for key in [key for key in _DTYPE_KEYS if key in document] or _DTYPE_KEYS:
            document[key] = changes.dtype
    if changes.quantization is None:
        for key in _QUANTIZATION_KEYS:
            document.pop(key, None)
    elif changes.quantization:
        document |= dict.fromkeys(_QUANTIZATION_KEYS, dict(changes.quantization))
    if changes.context:
        document["max_position_embeddings"] = changes.context
    if changes.mlx and config is not None:
        _complete(document, config, facts)
    return document


def _complete(document: dict[str, Any], config: ModelConfig, facts: Facts) -> None:
    """Add what mlx-lm needs and the document does not say in the words that mlx-lm reads."""
    built = build_document(config, facts)
    for key in (*_MLX_NEEDS[""], *_MLX_NEEDS.get(config.family, ())):
        if document.get(key) is None and built.get(key) is not None:
            document[key] = built[key]
    for key, value in _CLASS_DEFAULTS.get(config.family, {}).items():
        document.setdefault(key, value)
    if config.rope_scaling and not document.get("rope_scaling"):
        document["rope_scaling"] = dict(config.rope_scaling)
    types = document.get("layer_types")
    if config.family == "gemma3" and isinstance(types, list) and "full_attention" in types:
        document.setdefault("sliding_window_pattern", types.index("full_attention") + 1)


def rope_local_base(document: Mapping[str, Any]) -> Any:
    """The base of Gemma 3's sliding layers, in the style of transformers 4 or 5."""
    local = (document.get("rope_parameters") or {}).get("sliding_attention")
    found = local.get("rope_theta") if isinstance(local, dict) else None
    return document.get("rope_local_base_freq", found)


def encoded(document: Mapping[str, Any], index: TensorIndex) -> bytes:
    """The document as bytes: the source's own file, if it says the same."""
    if document == source_document(index):
        for path in index.side_files:
            if path.name == CONFIG_NAME:
                return path.read_bytes()
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
