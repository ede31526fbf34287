"""Statements of an adapter, held against its source.

A copy says what its source does. An adapter that is made for another program says what ``needed.toml`` has, and what
follows from the source's modules and its base; ranks and scales are compared with the matrices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ckconv.adapters.model import families_of, family_named, local_path, transposing, weight_pattern
from ckconv.core.config import FIELD_OF
from ckconv.core.metadata import document_of
from ckconv.core.tensors import MetadataKind, Role, TensorIndex, stored_value
from ckconv.families.catalog import FAMILIES
from ckconv.families.names import heads_of, interleaves
from ckconv.families.schema import MLX_VLM
from ckconv.families.towers import tower_of_document
from ckconv.formats.gguf.values import HEAD_KEYS
from ckconv.formats.safetensors.container import ADAPTER_CONFIG, PEFT_PREFIX
from ckconv.verification.content import Fact, needed, shown, unequal

_ENDING = r"\.(lora_(embedding_)?[ABab](\.weight)?|lora_magnitude_vector|m)$"
_INNER = ".base_layer"

#: Instead of a value: no such key is written.
_NOTHING = object()


def adapter_faults(out: TensorIndex, source: TensorIndex) -> Iterator[Fact]:
    """Everything that an adapter says otherwise than its source."""
    assert source.adapter is not None
    typed = out.metadata_kind is MetadataKind.TYPED
    file, mine = "" if typed else ADAPTER_CONFIG, _said(out)
    heads = _head_counts(source, out.architecture) if typed else {}
    copied = out.format == source.format and bool(source.metadata)  # not of a task within a checkpoint
    meant = {**(_said(source) if copied else _made(out, source)), **heads}
    counted = tuple(key.format(arch=out.architecture) for key in HEAD_KEYS.values())
    free = counted if copied else tuple(needed()["adapters"][out.format]["numbers"])
    for key in sorted(mine.keys() | meant.keys()):
        if key not in meant:
            if key not in free:
                yield Fact(key, shown(mine[key]), None, file)
        elif key not in mine:
            yield Fact(key, None, shown(meant[key]) or "null", file)
        elif type(mine[key]) is not type(meant[key]) or unequal(mine[key], meant[key]):
            yield Fact(key, shown(mine[key]), shown(meant[key]), file)
    for key in () if copied or typed else free:
        if key not in mine:
            yield Fact(key, None, "one", file)


def _said(index: TensorIndex) -> dict[str, Any]:
    """Keys of a header, or of a configuration with inner ones of MLX."""
    if index.metadata_kind is MetadataKind.TYPED:
        return {key: stored_value(index, key) for key in index.metadata}
    said = document_of(index.metadata)
    inner = said.get("lora_parameters")
    if isinstance(inner, dict):
        said |= {f"lora_parameters.{key}": value for key, value in inner.items()}
        del said["lora_parameters"]
    return said


def _made(out: TensorIndex, source: TensorIndex) -> dict[str, Any]:
    """Statements that follow from the source and from what is stored."""
    adapter = source.adapter
    assert adapter is not None
    name, base, said = adapter.base_name, adapter.base, document_of(out.metadata)
    weighed = any(Role.MAGNITUDE in module.roles for module in adapter.modules.values())
    paths = {re.sub(_ENDING, "", stored.name.removeprefix(PEFT_PREFIX)) for stored in out.stored}
    parameters = said.get("target_parameters")
    if isinstance(parameters, list):  # the paths are those of their modules, one inside the other where there are two
        parents = [str(path).rpartition(".")[0] for path in parameters]
        inside = {parent + _INNER * number for parent in parents for number in range(parents.count(parent))}
        parameters = parameters if inside <= paths else sorted(paths)
        paths -= inside
    seen = tower_of_document(base.raw) if base else None
    whole = seen is not None and MLX_VLM.row in seen.engines
    family = FAMILIES[base.family] if base else family_named(source.architecture)
    families = [family.name] if family else families_of(module.path for module in adapter.modules.values())
    task, prompt = adapter.task or (None, None)
    known: dict[str, Any] = {
        "architecture": family.gguf if family else out.architecture,
        "base": name or _NOTHING,
        "base or null": name or None,
        "bases": 1 if name else _NOTHING,
        "layers": base.num_layers if base else -1,  # mlx-lm takes the last ones, and below 1 all
        "local paths": sorted({path if whole else local_path(path) or path for path in paths}),
        "method": "dora" if weighed else "lora",
        "null": None,
        "parameters": parameters if isinstance(parameters, list) else _NOTHING,
        "paths": sorted(paths),
        "prompt": prompt or _NOTHING,
        "task": task or _NOTHING,
        "turned": bool(families) and transposing().issuperset(families),
        "weighed": weighed,
    }
    table = needed()["adapters"][out.format]
    meant = {key: known[word] for key, word in table["follows"].items()}
    return {**table["plain"], **{key: value for key, value in meant.items() if value is not _NOTHING}}


def _head_counts(source: TensorIndex, architecture: str) -> Mapping[str, int]:
    """Keys of a GGUF by which rows of Q and K are put in order."""
    assert source.adapter is not None
    base = source.adapter.base
    family = FAMILIES[base.family] if base else None
    if base is None or family is None or not interleaves(family):
        return {}
    fields = {FIELD_OF.get(heads_of(family, weight_pattern(name)) or "") for name in source.adapter.modules}
    return {HEAD_KEYS[field].format(arch=architecture): getattr(base, field) for field in fields if field}
