"""ModelConfig -> hyper-parameter keys of a GGUF, as llama.cpp's.

Source: ``set_gguf_parameters`` of the converter's classes, checked key by key against files that it wrote. llama.cpp
loads a number only with the type that is given here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.core.metadata import Value, array, scalar, text_key
from ckconv.families.keys import full_key
from ckconv.families.parameters import scope_of, write
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


def own_document(config: ModelConfig) -> Mapping[str, Any]:
    """Source document with the keys of its text part on top."""
    nested = config.raw.get(text_key(config.raw))
    return {**config.raw, **nested} if isinstance(nested, dict) else config.raw


#: Hyper-parameters in the order of files that were written before; any other key comes behind them. Nothing depends on
#: the order.
_ORDER = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.freq_base", "rope.freq_base_swa",
    "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "expert_count", "expert_used_count",
    "expert_feed_forward_length", "attention.key_length", "attention.value_length", "vocab_size",
    "rope.dimension_count", "attention.sliding_window", "final_logit_softcapping",
)  # fmt: skip


def stated_by(config: ModelConfig, family: Family) -> list[str]:
    """Parameters that the source's own document says."""
    document = own_document(config)
    return [
        name
        for name, row in family.parameters.items()
        if any(document.get(cell.key) is not None for cell in row.key_cells("hf"))
    ]


def number_tensors(config: ModelConfig, family: Family) -> Mapping[str, Sequence[float]]:
    """Tensors that are hyper-parameters: name -> numbers."""
    return write(family, scope_of(family, config), "gguf").tensors


def model_keys(config: ModelConfig, family: Family, context: int) -> dict[str, Value]:
    """``{arch}.*`` keys in order, for a changed context length.

    A scaling of RoPE must be one that :func:`ckconv.formats.gguf.entries.engine_reasons` does not refuse.
    """
    entries = dict(write(family, scope_of(family, config), "gguf", stated_by(config, family)).entries)
    scaling = config.rope_scaling or {}
    if scaling.get("rope_type") == "yarn":
        for name in ("beta_fast", "beta_slow"):
            if scaling.get(name) is not None:
                entries[f"rope.scaling.yarn_{name}"] = "f32", scaling[name]
    return {**keys_of_entries(family, entries), f"{family.gguf}.context_length": scalar("u32", context)}


def keys_of_entries(family: Family, entries: Mapping[str, tuple[str, Any]]) -> dict[str, Value]:
    """Keys with their architecture, in order."""
    names = sorted(entries, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    return {full_key(family.gguf, name): _value(*entries[name]) for name in names}


def _value(type: str, value: Any) -> Value:
    """A value in its key's type, or a list of such."""
    if isinstance(value, list | tuple):
        return array("bool" if isinstance(value[0], bool) else type.removesuffix("[]"), list(value))
    return scalar(type, float(value) if type == "f32" else value if type in ("bool", "str") else int(value))


def general_keys(family: Family, name: str, size_label: str, kind: str = "model") -> dict[str, Value]:
    """Keys at the head of a GGUF."""
    return {
        "general.architecture": scalar("str", family.gguf),
        "general.type": scalar("str", kind),
        **({"general.name": scalar("str", name)} if name else {}),
        "general.size_label": scalar("str", size_label),
    }


def type_keys(file_type: int) -> dict[str, Value]:
    """Keys on the types of the tensors."""
    return {
        "general.file_type": scalar("u32", file_type),
        "general.quantization_version": scalar("u32", _QUANTIZATION_VERSION),
    }


def importance_keys(file: str, entries: int, dataset: str, chunks: int) -> dict[str, Value]:
    """Keys on the importance matrix, as ``quantize.cpp`` writes them."""
    said = {"file": scalar("str", _cut(file))}
    said |= {"dataset": scalar("str", _cut(dataset))} if dataset else {}
    said |= {"entries_count": scalar("u32", entries)}
    said |= {"chunks_count": scalar("u32", chunks)} if chunks else {}
    return {f"quantize.imatrix.{key}": value for key, value in said.items()}


def _cut(text: str) -> str:
    """As much as llama.cpp keeps of it (``llama_model_kv_override``)."""
    return text.encode()[:127].decode(errors="ignore")


def size_label(parameters: int, experts: int, in_experts: int) -> str:
    """``297K``, ``7B``, ``8x7B``: count of parameters as a label.

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
    """``llama-tied-bf16`` -> ``Llama Tied Bf16``, as llama.cpp names it."""
    words = text.strip().replace("-", " ").replace("_", " ").split()
    return " ".join(word.title() if word.islower() and not word[0].isdigit() else word for word in words)


def directory_name(path: Path) -> str:
    """Name of the source's directory, or of a cached repository.

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
