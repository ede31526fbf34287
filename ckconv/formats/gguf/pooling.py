"""How embeddings are pooled: what sentence-transformers' files say, as GGUF's key.

Source: ``_try_set_pooling_type`` of llama.cpp's converter.
"""

from __future__ import annotations

from ckconv.core.metadata import Value, beside, root_of, scalar
from ckconv.core.tensors import MetadataKind, TensorIndex
from ckconv.families.schema import Family
from ckconv.io.card import text_of_card
from ckconv.plan.planner import HEAD
from ckconv.plan.steps import Reason

#: ``LLAMA_POOLING_TYPE_RANK``: the outputs of a classifier, which llama.cpp's converter leaves to a flag of its server.
_RANK = 4
_RERANKERS = ("qwen3-reranker", "qwen3-vl-reranker")

_HINT = "take it out of modules.json for the embeddings before it"


def gives_embeddings(index: TensorIndex) -> bool:
    """A checkpoint has no output head on purpose: it is one of sentence-transformers, or of a class without one.

    Raises:
        InputError: ``model.config``, ``modules.json`` is malformed.
    """
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        return False
    from ckconv.formats.safetensors.modules import modules_of

    classes = index.metadata.get("architectures")
    named = [str(name) for name in classes] if isinstance(classes, list) else []
    headless = [name.endswith("Model") and not name.endswith("LMHeadModel") for name in named]
    return bool(headless and all(headless)) or bool(modules_of(root_of(index)))


def pooling_keys(index: TensorIndex, family: Family, notes: list[str]) -> dict[str, Value]:
    """The keys, where a checkpoint is one of sentence-transformers; notes are added for what has none.

    llama.cpp reads one of them. The documents are kept beside it, for the way back: what is behind the pooling, and
    prompts, it has no words for.

    Raises:
        InputError: ``model.config``, a file is malformed.
    """
    if index.config is not None and index.config.tied is False and HEAD not in index.tensors:
        notes.append("the model gives embeddings: where logits are asked for, llama.cpp takes the embedding for a head")
    if _is_reranker(index):
        notes.append(
            "a Qwen3-Reranker ranks by its logits of yes and no; the GGUF is the plain language model, without the "
            "cls.output and the pooling RANK that llama.cpp's own converter makes for its server"
        )
    if "labels" in family.parameters:
        return {f"{family.gguf}.pooling_type": scalar("u32", _RANK)}
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        return {}
    from ckconv.formats.safetensors.modules import kept_documents, modules_of, pooling_of

    if not (modules := modules_of(root_of(index))):
        return {}
    files = beside(index)
    number, said = pooling_of(files, modules)
    if not said:
        notes.append("modules.json names no pooling: llama.cpp gives an embedding for every token")
    elif not number:
        notes.append(f"{said} pools as llama.cpp does not, which gives an embedding for every token")
    made = {f"{family.gguf}.pooling_type": scalar("u32", number)} if number else {}
    return made | {key: scalar("str", text) for key, text in kept_documents(files).items()}


def _is_reranker(index: TensorIndex) -> bool:
    """Named so by its directory, its configuration or its card, as ``_is_qwen3_reranker`` of the converter finds it."""
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        return False
    named = (root_of(index).name, str(index.metadata.get("_name_or_path", "")))
    card = text_of_card(index).lower()
    found = [name.lower() for name in named] + [line for line in card.splitlines() if line.startswith("# ")]
    return any(word in text for text in found for word in _RERANKERS)


def module_reasons(index: TensorIndex) -> list[Reason]:
    """What is computed behind the pooling, with weights of its own, and llama.cpp does not.

    Raises:
        InputError: ``model.config``, ``modules.json`` is malformed.
    """
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        return []
    from ckconv.formats.safetensors.modules import PLAIN, modules_of

    return [
        Reason(f"modules.json names a {module.kind} after pooling ({module.path}/), which ckconv does not write", _HINT)
        for module in modules_of(root_of(index))
        if module.kind not in PLAIN
    ]
