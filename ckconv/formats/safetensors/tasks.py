"""Adapters of tasks within a checkpoint: a LoRA for each.

Source: ``modeling_lora.py`` of jinaai/xlm-roberta-flash-implementation: a matrix is that of its module under
``parametrizations.weight.original``, ``lora_A`` and ``lora_B`` beside it have an axis of tasks in front. A table is
changed by ``A @ B``, any other matrix by ``B @ A``, times ``lora_alpha / lora_rank``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ckconv.adapters.model import Collector, Part, Shape, module_of
from ckconv.core.metadata import document_of
from ckconv.core.tensors import Adapter, Dropped, MetadataKind, Role, StoredTensor, TensorIndex, effective_scale
from ckconv.errors import InputError, UsageError, quoted
from ckconv.formats.safetensors.adapter import check_fits, positive

_MATRIX = re.compile(r"(.+)\.parametrizations\.weight\.0\.lora_([AB])")

#: Tables; llama.cpp's converter turns the first only.
_TABLES, _LOOKED_UP = ("token_embedding", "type_embedding"), "token_embedding"


def tasks_of(index: TensorIndex) -> tuple[str, ...]:
    """Tasks that a checkpoint has adapters of."""
    said = document_of(index.metadata).get("lora_adaptations") if index.metadata_kind is MetadataKind.DOCUMENT else None
    names = tuple(said) if isinstance(said, list) and all(isinstance(name, str) for name in said) else ()
    return names if any(map(_MATRIX.fullmatch, (item.stored.name for item in index.dropped))) else ()


def adapter_of_task(index: TensorIndex, task: str) -> TensorIndex:
    """The adapter of one task, as an adapter of the model.

    Raises:
        UsageError: ``usage.flag``, the model has none of such a task.
        InputError: ``adapter.*``, it does not fit the model.
    """
    names, config = tasks_of(index), index.config
    if task not in names or config is None:
        known = f"its tasks are {', '.join(names)}" if names else "it has no adapters of tasks"
        raise UsageError("usage.flag", f"--task {quoted(task)}: {known}", path=index.path)
    document = document_of(index.metadata)
    alpha = positive(document.get("lora_alpha", 1.0))
    if alpha is None:
        raise InputError("adapter.scale", f"lora_alpha is {document['lora_alpha']!r}", path=index.path)
    pairs: dict[str, dict[str, StoredTensor]] = {}
    for item in index.dropped:
        if (found := _MATRIX.fullmatch(item.stored.name)) and "pooler." not in item.stored.name:
            pairs.setdefault(found[1], {})[found[2]] = _of(item, names.index(task), len(names), index)
    collector = Collector(index.path)
    for path, pair in pairs.items():
        name = module_of(path, (config.family,)) or path
        turned = name in _TABLES
        parts = {Role.B if (side == "A") == turned else Role.A: Part(stored) for side, stored in pair.items()}
        ranks = [stored.shape[1 if (side == "A") == turned else 0] for side, stored in pair.items()]
        scale = effective_scale(alpha, ranks[0])
        collector.add(name, path, parts, Shape(scale, None, alpha), embedding=name == _LOOKED_UP)
    collected = collector.finish()
    check_fits(collected.modules, collected.tensors, config, index.path)
    instructions = document.get("task_instructions")
    instruction = instructions.get(task) if isinstance(instructions, dict) else None
    adapter = Adapter(
        "LoRA", "", collected.modules, base=config, task=(task, instruction if isinstance(instruction, str) else None)
    )
    stored: Sequence[StoredTensor] = tuple(one for pair in pairs.values() for one in pair.values())
    return replace(
        index,
        format="peft",
        config=None,
        stored=stored,
        tensors=collected.tensors,
        canonical_of=collected.canonical_of,
        dropped=(),
        unknown=(),
        metadata={},
        facts={"kind": "adapter", "method": "LoRA", "modules": len(collected.modules), "task": task},
        side_files=(),
        adapter=adapter,
    )


def _of(item: Dropped, number: int, count: int, index: TensorIndex) -> StoredTensor:
    """The part of a stored tensor that is one task's."""
    stored = item.stored
    if len(stored.shape) != 3 or stored.shape[0] != count:
        message = f"{quoted(stored.name)} is {list(stored.shape)}, and there are {count} tasks (lora_adaptations)"
        raise InputError("adapter.base", message, path=index.path, tensor=stored.name)
    nbytes = stored.extent.nbytes // count
    extent = stored.extent._replace(offset=stored.extent.offset + number * nbytes, nbytes=nbytes)
    return stored._replace(shape=stored.shape[1:], extent=extent)
