"""ModelConfig -> the hyper-parameter keys of a GGUF, as llama.cpp's converter writes them.

Source: ``set_gguf_parameters`` of the converter's classes, checked key by key against files that it wrote. llama.cpp
loads a number only with the type that is given here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ckconv.core.config import MAX_DIMENSION, ModelConfig
from ckconv.core.typed import Value, array, scalar
from ckconv.families.gemma3 import PERIOD, SLIDING, layers_of, local_theta_of, period_of, periodic
from ckconv.families.schema import Family

#: ``general.file_type`` by the type of most matrices (``enum llama_ftype`` of ``include/llama.h``, the medium mixes).
FILE_TYPES: dict[str, int] = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K": 12,
    "Q4_K": 15,
    "Q5_K": 17,
    "Q6_K": 18,
    "IQ2_XXS": 19,
    "IQ2_XS": 20,
    "IQ3_XXS": 23,
    "IQ1_S": 24,
    "IQ4_NL": 25,
    "IQ3_S": 26,
    "IQ2_S": 28,
    "IQ4_XS": 30,
    "IQ1_M": 31,
    "BF16": 32,
    "TQ1_0": 36,
    "TQ2_0": 37,
    "MXFP4": 38,
    "NVFP4": 39,
    "Q1_0": 40,
}

#: The version of ggml's block types, which changed last in 2023 (``GGML_QNT_VERSION`` of ``ggml.h``).
_QUANTIZATION_VERSION = 2

#: How a repository's directory in a download cache begins.
_CACHED = "models--"

_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"))

Number = int | float | None


def own_document(config: ModelConfig) -> Mapping[str, Any]:
    """The source's document with the decoder's part on top, for a model of several modalities."""
    nested = config.raw.get("text_config")
    return {**config.raw, **nested} if isinstance(nested, dict) else config.raw


def _head_dim(config: ModelConfig) -> Number:
    """Written where the source says it, or where it does not follow from the other sizes."""
    follows = config.head_dim * config.num_heads == config.hidden_size
    return None if follows and own_document(config).get("head_dim") is None else config.head_dim


def _scaling(kind: str, *keys: str) -> Callable[[ModelConfig], Number]:
    """A number of the scaling, where it is of this kind."""

    def found(config: ModelConfig) -> Number:
        scaling = config.rope_scaling or {}
        numbers = (scaling.get(key) for key in keys) if kind in ("", scaling.get("rope_type")) else ()
        return next((n for n in numbers if n is not None), None)

    return found


def _original_context(config: ModelConfig) -> Number:
    scaling = config.rope_scaling or {}
    return _tokens(scaling, config) if scaling.get("rope_type") == "yarn" else None


def _phi3_context(config: ModelConfig) -> Number:
    return _tokens(own_document(config), config)


def _tokens(document: Mapping[str, Any], config: ModelConfig) -> int:
    """The context length before scaling, else the model's."""
    found = document.get("original_max_position_embeddings")
    usable = isinstance(found, int) and not isinstance(found, bool) and 0 < found < MAX_DIMENSION
    return found if usable and found is not None else config.context_length


def _gemma3_window(config: ModelConfig) -> Number:
    """None where no layer slides, as llama.cpp's converter has it."""
    return config.sliding_window if SLIDING in layers_of(config) else None


def _gemma3_pattern(config: ModelConfig) -> Value | None:
    """Which layers slide, where it is not what llama.cpp takes without a word: a period, else every layer by itself."""
    kinds = layers_of(config)
    if SLIDING not in kinds or kinds == periodic(len(kinds), PERIOD):
        return None
    period = period_of(kinds)
    return scalar("u32", period) if period else array("bool", [kind == SLIDING for kind in kinds])


@dataclass(frozen=True, slots=True)
class _Key:
    """One key after ``{arch}.``; it is left out where ``value`` gives ``None``. ``only`` names families, if not all."""

    name: str
    type: str
    value: Callable[[ModelConfig], Number]
    only: tuple[str, ...] = ()


_LLAMA = ("llama", "mixtral")
_RMS = ("llama", "mixtral", "qwen2", "qwen3", "qwen3moe", "gemma3", "phi3")

_KEYS: tuple[_Key, ...] = (
    _Key("block_count", "u32", lambda c: c.num_layers),
    _Key("context_length", "u32", lambda c: c.context_length),
    _Key("embedding_length", "u32", lambda c: c.hidden_size),
    _Key("feed_forward_length", "u32", lambda c: c.ffn_size),
    _Key("attention.head_count", "u32", lambda c: c.num_heads),
    _Key("attention.head_count_kv", "u32", lambda c: c.num_kv_heads, _RMS),
    _Key("rope.scaling.factor", "f32", _scaling("", "factor")),
    _Key("rope.scaling.original_context_length", "u32", _original_context),
    _Key("rope.scaling.original_context_length", "u32", _phi3_context, ("phi3",)),
    _Key("rope.scaling.yarn_beta_fast", "f32", _scaling("yarn", "beta_fast")),
    _Key("rope.scaling.yarn_beta_slow", "f32", _scaling("yarn", "beta_slow")),
    _Key("rope.freq_base", "f32", lambda c: c.rope_theta, _RMS),
    _Key("rope.freq_base_swa", "f32", local_theta_of, ("gemma3",)),
    _Key("attention.layer_norm_rms_epsilon", "f32", lambda c: c.norm_eps, _RMS),
    _Key("attention.layer_norm_epsilon", "f32", lambda c: c.norm_eps, ("gpt2",)),
    _Key("expert_count", "u32", lambda c: c.num_experts or None),
    _Key("expert_used_count", "u32", lambda c: c.experts_used or None),
    _Key("expert_feed_forward_length", "u32", lambda c: c.expert_ffn_size or None, ("qwen3moe",)),
    _Key("attention.key_length", "u32", _head_dim),
    _Key("attention.value_length", "u32", _head_dim),
    _Key("vocab_size", "u32", lambda c: c.vocab_size, _LLAMA),
    _Key("rope.dimension_count", "u32", lambda c: c.rotary_dim, (*_LLAMA, "phi3")),
    # llama.cpp's phi 3 wants the key, and 0 for a model that attends to everything.
    _Key("attention.sliding_window", "u32", lambda c: c.sliding_window or 0, ("phi3",)),
    _Key("attention.sliding_window", "u32", _gemma3_window, ("gemma3",)),
    _Key("final_logit_softcapping", "f32", lambda c: c.final_cap or None, ("gemma3",)),
)


def model_keys(config: ModelConfig, family: Family, context: int) -> dict[str, Value]:
    """The ``{arch}.*`` keys, in order, for another context length: what RoPE is scaled from stays the source's.

    A scaling of RoPE must be one that :func:`ckconv.formats.gguf.rules.engine_reasons` does not refuse.
    """
    keys = dict(_model_keys(config, family))
    return {**keys, f"{family.gguf}.context_length": scalar("u32", context)}


def _model_keys(config: ModelConfig, family: Family) -> Iterator[tuple[str, Value]]:
    scaling = (config.rope_scaling or {}).get("rope_type")
    named = scaling in ("linear", "yarn")
    for key in _KEYS:
        if key.only and family.name not in key.only:
            continue
        if key.name == "rope.scaling.factor":
            if not named:
                continue
            yield f"{family.gguf}.rope.scaling.type", scalar("str", str(scaling))
        value = key.value(config)
        if value is not None:
            yield f"{family.gguf}.{key.name}", scalar(key.type, float(value) if key.type == "f32" else int(value))
    pattern = _gemma3_pattern(config) if family.name == "gemma3" else None
    if pattern:
        yield f"{family.gguf}.attention.sliding_window_pattern", pattern


def general_keys(family: Family, name: str, size_label: str) -> dict[str, Value]:
    """What stands at the head of the file."""
    return {
        "general.architecture": scalar("str", family.gguf),
        "general.type": scalar("str", "model"),
        **({"general.name": scalar("str", name)} if name else {}),
        "general.size_label": scalar("str", size_label),
    }


def type_keys(file_type: int) -> dict[str, Value]:
    """What the types of the tensors are."""
    return {
        "general.file_type": scalar("u32", file_type),
        "general.quantization_version": scalar("u32", _QUANTIZATION_VERSION),
    }


def size_label(parameters: int, experts: int, in_experts: int) -> str:
    """``297K``, ``7B``, ``8x7B``: parameters in words, as ``gguf.utility.size_label`` has them.

    Args:
        parameters: all of them.
        experts: how many experts a layer has; 0 for none.
        in_experts: parameters of all experts together.
    """
    count = parameters - in_experts + in_experts // experts if experts else parameters
    unit, letter = next(((u, letter) for u, letter in _UNITS if count > u), (10**3, "K"))
    scaled = count / unit
    digits = max(2 - len(str(round(scaled)).lstrip("0")), 0)
    return f"{f'{experts}x' if experts else ''}{scaled:.{digits}f}{letter}"


def display_name(text: str) -> str:
    """``llama-tied-bf16`` -> ``Llama Tied Bf16``, as llama.cpp's converter names a model after its directory."""
    words = text.strip().replace("-", " ").replace("_", " ").split()
    return " ".join(word.title() if word.islower() and not word[0].isdigit() else word for word in words)


def directory_name(path: Path) -> str:
    """The name of the directory that a source is, or lies in; of a download cache, the repository's.

    The cache is ``models--OWNER--NAME/snapshots/REVISION/FILE -> ../../blobs/HASH`` (huggingface_hub, "Understand
    caching").
    """
    resolved = path.resolve()
    for place in (path.absolute(), resolved):
        for repository, inside in pairwise(place.parts):
            if repository.startswith(_CACHED) and inside in ("snapshots", "blobs"):
                owner, _, name = repository.removeprefix(_CACHED).partition("--")
                return name or owner
    return resolved.name if resolved.is_dir() else resolved.parent.name
