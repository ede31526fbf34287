"""What loaders read in the directory of a checkpoint, be it of an earlier one."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from ckconv.formats.safetensors.spec import ADAPTER_CONFIG, INDEX_SUFFIX, PICKLE_INDEX, SUFFIX
from ckconv.plan.container import Along
from ckconv.plan.steps import Plan

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
