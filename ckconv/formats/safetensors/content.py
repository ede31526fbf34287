"""Contents of a checkpoint or adapter that are no tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ckconv.core.metadata import METADATA, Content, beside, document_of, numbered
from ckconv.core.tensors import TensorIndex
from ckconv.families.names import NAMES_KEY
from ckconv.formats.safetensors.container import (
    ADAPTER_CONFIG,
    INDEX_SUFFIX,
    PICKLE_INDEX,
    PICKLE_METADATA,
    SUFFIX,
    is_pickle,
    read_metadata,
)
from ckconv.options import PACKED
from ckconv.plan.steps import Along, Plan

# What a checkpoint or an adapter in safetensors files says besides its tensors, and which options show in it.


def content(index: TensorIndex, _: Mapping[str, Path]) -> Content:
    """The metadata of the headers, and the files beside them."""
    keys = _header_keys(PICKLE_METADATA if is_pickle(path.name) else read_metadata(path) for path in index.files)
    return Content(keys, paths={**beside(index), **_beside(index)})


def _header_keys(headers: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Keys that all files of a checkpoint say, and each file's own."""
    keys: dict[str, Any] = {}
    first: Mapping[str, str] = {}
    for number, header in enumerate(headers):
        first = first if number else header
        if number == 0 or header != first:
            keys |= {numbered(f"{METADATA}.{key}", number): value for key, value in header.items()}
    return keys


def _beside(index: TensorIndex) -> dict[str, Path]:
    if index.adapter is not None:
        path = index.files[0].parent / ADAPTER_CONFIG
        return {path.name: path} if path.exists() else {}
    return {index.shard_index.name: index.shard_index} if index.shard_index else {}


#: A part of a fused tensor's name -> what ``--fuse`` calls it.
_FUSED = {"qkv_proj": "qkv", "gate_up_proj": "gate-up"}


def shown(source: TensorIndex, out: TensorIndex) -> dict[str, Any]:
    """The naming scheme, what was fused, and how matrices are packed."""
    names = [stored.name for stored in out.stored]
    before = [stored.name for stored in source.stored]
    fused = (
        word
        for part, word in _FUSED.items()
        if any(part in name for name in names) and not any(part in name for name in before)
    )
    names_of = str(out.metadata.get(f"{METADATA}.{NAMES_KEY}", "hf"))
    return {"names": names_of, "fuse": tuple(fused), "pack": _layout(out)}


def _layout(out: TensorIndex) -> str:
    """Whose layout its packed matrices have, as ``--pack`` calls it."""
    said = document_of(out.metadata).get("quantization_config") if out.packed else None
    method = said.get("quant_method") if isinstance(said, dict) else None
    return str(method) if method in PACKED else ""


# What loaders read in the directory of a checkpoint, be it of an earlier one.

#: What loaders look for.
_WEIGHTS = (f"model*{SUFFIX}", f"model*{SUFFIX}{INDEX_SUFFIX}")

#: Documents that transformers, mlx-lm, vLLM, sentence-transformers or their tokenizers look for by these names.
_DOCUMENTS = (
    "config.json", "generation_config.json", "preprocessor_config.json", "video_preprocessor_config.json",
    "processor_config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json", "quanto_qmap.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "normalizer.json", "tokenizer.model", "tokenizer.model.v[0-9]*", "spiece.model",
    "sentencepiece.bpe.model", "tiktoken.model", "qwen.tiktoken", "tekken.json", "params.json", "chat_template.json",
    "chat_template.jinja", "additional_chat_templates/*.jinja", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json",
)  # fmt: skip


def takes_along(plan: Plan, _: Path) -> Along:
    """Names of files that loaders read along with the output.

    transformers prefers ``model.safetensors`` to an index beside it, and loads the model that an adapter was made for
    where ``adapter_config.json`` is there (``find_adapter_config_file``); mlx-lm reads every ``model*.safetensors``
    (``mlx_lm.utils.load_model``). An output without files of tensors is what lies beside some.
    """
    names = [file.name for file in plan.files]
    if names and not any(_is_among(name, _WEIGHTS) for name in names):
        return Along()
    return Along((*_WEIGHTS, ADAPTER_CONFIG) if names else (), _DOCUMENTS)


#: Names of weights that loaders read with ``config.json``, and of those that have another document.
_CONFIGURED = (f"*{SUFFIX}", f"*{SUFFIX}{INDEX_SUFFIX}", "pytorch_model*.bin", PICKLE_INDEX)
_OTHERS = (f"adapter*{SUFFIX}", f"consolidated*{SUFFIX}")


def configured(directory: Path) -> list[str]:
    """Names of weights that ``config.json`` in the directory describes."""
    names = [path.name for path in directory.iterdir()]
    return [name for name in names if _is_among(name, _CONFIGURED) and not _is_among(name, _OTHERS)]


def _is_among(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
