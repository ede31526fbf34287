"""Adapters: peft's and mlx-lm's directories, and those of tasks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.core.lazy import dataclass, replace
from ckconv.core.metadata import CONFIG_NAME, document_of, joined_metadata, within
from ckconv.core.tensors import (
    Adapter,
    DroppedTensor,
    MetadataKind,
    Role,
    StoredTensor,
    TensorIndex,
    effective_scale,
)
from ckconv.errors import Faults, InputError, UnsupportedError, UsageError, quoted
from ckconv.families.adapters import (
    OTHER_BASE,
    AdapterModules,
    Collector,
    Part,
    Shape,
    matrix_shape,
    module_of,
    resized_first,
)
from ckconv.families.huggingface_config import huggingface_config, huggingface_family
from ckconv.formats.safetensors.container import ADAPTER_CONFIG, MAX_JSON, SafetensorsFile
from ckconv.formats.safetensors.files import CONFIG_DOCUMENT, regular_file
from ckconv.formats.safetensors.write import Shards, check_opens
from ckconv.io.json import Document, parse_object, read_document, read_object
from ckconv.plan.steps import Container

# The base model of an adapter: its hyper-parameters, and whether the adapter fits it.

#: Opens a model of any format: given by who opens an adapter, as no reader knows the others.
Opener = Callable[[Path], TensorIndex]


@dataclass(frozen=True, slots=True)
class Base:
    """Base model: hyper-parameters, and tensors where they are there."""

    config: ModelConfig
    index: TensorIndex | None = None


def find_base(base: Path | None, named: str, opener: Opener) -> Base | None:
    """The base model that was asked for, else the one that the adapter names.

    Args:
        base: a model of any format, or a directory that holds its ``config.json``.
        named: what the adapter calls it; looked for in the file system, as peft does, and nowhere else.

    Raises:
        InputError: the model asked for cannot be read.
        UnsupportedError: ``model.architecture``, no rules are known for it.
    """
    if base is not None:
        found = _read(base, opener)
        if found is None:
            raise UnsupportedError("model.architecture", "ckconv does not know its architecture", path=base)
        return found
    # The name is the training machine's: here it may be one that may not be read, or is too long for this system.
    try:
        return _read(Path(named), opener) if named and Path(named).is_dir() else None
    except (InputError, UnsupportedError, OSError, ValueError):
        return None


def with_base(base: Path | None, named: str, opener: Opener, read: Callable[[Base | None], TensorIndex]) -> TensorIndex:
    """Adapter read with its base, as :func:`find_base` finds it.

    A base that only a name said is none where the adapter does not fit it, as before its vocabulary grew: what works
    with the adapter's files alone goes on, and a conversion raises what :attr:`TensorIndex.misfit` keeps.
    """
    found = find_base(base, named, opener)
    try:
        return read(found)
    except InputError as error:
        if error.code != "adapter.base" or base is not None or found is None:
            raise
        return replace(read(None), misfit=error)


def _read(path: Path, opener: Opener) -> Base | None:
    """A model of any format; a ``config.json`` will do, without weights."""
    if path.name == CONFIG_NAME:
        return _from_document(path)
    try:
        index = opener(path)
        return Base(index.config, index) if index.config else None
    except InputError as error:
        if error.code != "hf.no-weights" or not (path / CONFIG_NAME).is_file():
            raise
    return _from_document(path / CONFIG_NAME)


def _from_document(path: Path) -> Base | None:
    document = read_object(path, CONFIG_DOCUMENT)
    family = huggingface_family(document)
    return Base(huggingface_config(document, family, (), path)) if family else None


def check_fits(found: AdapterModules, base: Base | None, path: Path) -> None:
    """Check that modules and LoRA shapes are those of the base model."""
    if base is None:
        return
    faults = Faults(path)
    for module in found.modules.values():
        shape = matrix_shape(module.name, base.config)
        if shape is None and (".experts." in module.name or Role.B not in module.roles):
            continue  # one of many experts has no matrix of its own; a norm is none
        if shape is None:
            message = f"no base tensor for {quoted(module.path)}"
            faults.add("adapter.base", message, tensor=module.path, hint=OTHER_BASE)
            continue
        if Role.B not in module.roles:
            continue
        a, b = (found.tensors[f"{module.name}.{role.value}"] for role in (Role.A, Role.B))
        made = (*b.shape[:-1], a.shape[-1])
        if made != shape:
            message = f"{quoted(module.path)} changes a matrix of {list(made)}, the base has {list(shape)}"
            hint = resized_first(module.name, made, shape, base.index)
            faults.add("adapter.base", message, tensor=module.path, found=list(made), allowed=list(shape), hint=hint)
    faults.check()


# ``adapter_config.json`` of peft and of mlx-lm, as JSON.

_DOCUMENT = Document("adapter configuration", "adapter.config", "adapter.config", MAX_JSON)

_NOT_FINITE = re.compile(rb'"(r|lora_alpha|rank|scale|alpha)"\s*:\s*(-?(?:NaN|Infinity))')


def read_adapter_document(path: Path) -> dict[str, Any]:
    """The configuration of an adapter of any kind, as JSON.

    Raises:
        InputError: ``adapter.config``, malformed; ``adapter.scale``, a scale that is NaN or infinite.
    """
    data = read_document(path, _DOCUMENT)
    try:
        return parse_object(data, _DOCUMENT, path)
    except InputError as error:
        found = _NOT_FINITE.search(data) if error.code == _DOCUMENT.code else None
        if found:
            what, value = (group.decode() for group in found.groups())
            raise InputError("adapter.scale", f"{what} is {value}; it must be a number above 0", path=path) from None
        raise


def positive(value: object) -> float | None:
    """A finite number above 0, ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number > 0 else None


# The files of an adapter directory, of peft's and of mlx-lm's.


def config_beside(root: Path, weights: str, only: str, *, follow_links: bool, pickle: str = "") -> tuple[Path, Path]:
    """File of tensors and configuration of an adapter's directory.

    Args:
        weights: name of the file of tensors; ``pickle``: another name that it may have.
        only: facts that the configuration alone has.
    """
    files = [regular_file(root, name, follow_links=follow_links) for name in (weights, *([pickle] if pickle else []))]
    if (file := next(filter(None, files), None)) is None:
        raise InputError("adapter.config", f"there is no {weights}", path=root)
    if (config := regular_file(root, ADAPTER_CONFIG, follow_links=follow_links)) is None:
        message = f"there is no {ADAPTER_CONFIG} beside the tensors, and only it holds {only}"
        raise UnsupportedError("adapter.unsupported", message, path=root)
    return file, config


def container(shards: Shards, document: Mapping[str, Any]) -> Container:
    """One file of tensors, and the configuration beside it."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"  # as peft and mlx-lm write it
    files = {ADAPTER_CONFIG: text.encode("utf-8", "surrogateescape")}
    return Container(shards.frames, side_files=files, keys=shards.keys, check=check_opens)


# The index of an adapter that is a file of safetensors and a configuration.


def adapter_index(
    format: str,
    path: Path,
    file: SafetensorsFile,
    config_path: Path,
    collected: AdapterModules,
    adapter: Adapter,
    *,
    unknown: Sequence[StoredTensor],
    dropped: Sequence[DroppedTensor] = (),
    more: Mapping[str, object] | None = None,
) -> TensorIndex:
    """The index of an adapter that is a file of tensors and a configuration.

    Args:
        path: what the user named.
        more: what ``inspect`` prints besides.
    """
    facts: dict[str, object] = {"kind": "adapter", "method": adapter.method, "modules": len(adapter.modules)}
    if adapter.base_name:
        facts["base"] = adapter.base_name
    return TensorIndex(
        format=format,
        version=0,
        path=path,
        files=(file.path,),
        architecture=adapter.base.model_type if adapter.base else "",
        config=None,
        stored=file.tensors,
        tensors=collected.tensors,
        canonical_of=collected.canonical_of,
        unknown=tuple(unknown),
        dropped=tuple(dropped),
        metadata_kind=MetadataKind.DOCUMENT,
        metadata=joined_metadata(file.metadata, adapter.document),
        facts={**facts, **(more or {})},
        side_files=(config_path,),
        adapter=adapter,
    )


# -- Adapters of tasks within a checkpoint, a LoRA for each ------------------------------------------------------------
# Source: ``modeling_lora.py`` of jinaai/xlm-roberta-flash-implementation: a matrix is that of its module under
# ``parametrizations.weight.original``, ``lora_A`` and ``lora_B`` beside it have an axis of tasks in front. A table is
# changed by ``A @ B``, any other matrix by ``B @ A``, times ``lora_alpha / lora_rank``.

_MATRIX = re.compile(r"(.+)\.parametrizations\.weight\.0\.lora_([AB])")

#: Tables; llama.cpp's converter turns the first only.
_TABLES, _LOOKED_UP = ("token_embedding", "type_embedding"), "token_embedding"


def tasks_of(index: TensorIndex) -> tuple[str, ...]:
    """Tasks that a checkpoint has adapters of."""
    own = document_of(index.metadata).get("lora_adaptations") if index.metadata_kind is MetadataKind.DOCUMENT else None
    names = tuple(own) if isinstance(own, list) and all(isinstance(name, str) for name in own) else ()
    return names if any(map(_MATRIX.fullmatch, (item.stored.name for item in index.dropped))) else ()


def adapter_of_task(index: TensorIndex, task: str) -> TensorIndex:
    """The adapter of one task, as an adapter of the model."""
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
        name = module_of(path, model=config) or path
        turned = name in _TABLES
        parts = {Role.B if (side == "A") == turned else Role.A: Part(stored) for side, stored in pair.items()}
        ranks = [stored.shape[1 if (side == "A") == turned else 0] for side, stored in pair.items()]
        scale = effective_scale(alpha, ranks[0])
        collector.add(name, path, parts, Shape(scale, None, alpha), embedding=name == _LOOKED_UP)
    collected = collector.finish()
    check_fits(collected, Base(config), index.path)
    instruction = within(document, "task_instructions", task)
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


def _of(item: DroppedTensor, number: int, count: int, index: TensorIndex) -> StoredTensor:
    """The part of a stored tensor that is one task's."""
    stored = item.stored
    if len(stored.shape) != 3 or stored.shape[0] != count:
        message = f"{quoted(stored.name)} is {list(stored.shape)}, and there are {count} tasks (lora_adaptations)"
        raise InputError("adapter.base", message, path=index.path, tensor=stored.name)
    nbytes = stored.extent.nbytes // count
    extent = stored.extent._replace(offset=stored.extent.offset + number * nbytes, nbytes=nbytes)
    return stored._replace(shape=stored.shape[1:], extent=extent)
