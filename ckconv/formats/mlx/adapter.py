"""mlx-lm adapters: a directory with ``adapter_config.json`` and ``adapters.safetensors``.

``PATH.lora_a`` is ``[in, rank]`` and ``PATH.lora_b`` ``[rank, out]``; a matrix changes by ``scale * (b.T @ a.T)``, with
the scale as the configuration has it, not divided by the rank. An embedding's are ``[vocabulary, rank]`` and
``[rank, hidden]``. Experts that are stacked have one of each: ``[experts, rank, in]`` and ``[experts, out, rank]``
(``LoRASwitchLinear`` of mlx_lm/tuner/lora.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ckconv.adapters.names import families_of, local_path, module_of, placed
from ckconv.adapters.read import Collector, Part, Shape
from ckconv.core.dtypes import float32
from ckconv.core.tensors import Adapter, Role, StoredTensor, TensorIndex
from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.formats.mlx.spec import MLX_NAME
from ckconv.formats.safetensors.adapter_base import Opener, check_fits, find_base
from ckconv.formats.safetensors.adapter_document import positive, read_adapter_document
from ckconv.formats.safetensors.adapter_index import adapter_index
from ckconv.formats.safetensors.files import regular_file
from ckconv.formats.safetensors.read import read_safetensors
from ckconv.formats.safetensors.spec import ADAPTER_CONFIG
from ckconv.io.json import shown

_ENDINGS = (
    (".lora_a", Role.A),
    (".lora_b", Role.B),
    (".m", Role.MAGNITUDE),
    (".weight", Role.SAVED_WEIGHT),
    (".bias", Role.SAVED_BIAS),
)

#: Tables that are looked up: of these ``lora_a`` holds what the rows of the table change by.
EMBEDDINGS = ("token_embedding", "position_embedding")

_METHODS = {"lora": "LoRA", "dora": "DoRA", "full": "full"}


def open_mlx_adapter(
    path: Path, *, opener: Opener, base: Path | None = None, follow_links: bool = False
) -> TensorIndex:
    """Read an adapter's configuration and header.

    Args:
        path: the directory, or its file of tensors.
        opener: opens a base model.
        base: the base model, if not where the adapter says it is.
        follow_links: links out of the directory are followed.

    Raises:
        InputError: ``adapter.*`` or ``st.*``: malformed, or not made for this base.
        UnsupportedError: ``adapter.unsupported``, no configuration or a method without rules.
    """
    root = path if path.is_dir() else path.parent
    weights, config_path = (regular_file(root, name, follow_links=follow_links) for name in (MLX_NAME, ADAPTER_CONFIG))
    if weights is None:
        raise InputError("adapter.config", f"there is no {MLX_NAME}", path=root)
    if config_path is None:
        message = f"there is no {ADAPTER_CONFIG} beside the tensors, and only it holds the scale"
        raise UnsupportedError("adapter.unsupported", message, path=root)
    document = read_adapter_document(config_path)
    method = document.get("fine_tune_type", "lora")
    if not isinstance(method, str) or method not in _METHODS:
        message = f"fine_tune_type is {shown(method)}; {', '.join(_METHODS)} are supported"
        raise UnsupportedError("adapter.unsupported", message, path=config_path)
    shape = _shape(document, config_path) if method != "full" else Shape(1.0)
    file = read_safetensors(weights)
    base_name = str(document.get("model") or "")
    found_base = find_base(base, base_name, opener)
    model = found_base.config if found_base else None
    found, unknown = _sorted(file.tensors)
    families = (model.family,) if model else families_of(found)
    collector = Collector(root)
    unsupported: list[str] = []
    for module, parts in found.items():
        name = module_of(module, families) or module
        outputs, why = placed(module, families, model)
        if outputs and parts.keys() - {Role.A, Role.B}:
            why = f"{quoted(module)} is stored head by head, and only LoRA of it has rules"
        unsupported += [why] if why else []
        embedding = name in EMBEDDINGS
        read = {
            role: Part(stored, transposed=role in (Role.A, Role.B) and len(stored.shape) == 2)
            for role, stored in parts.items()
        }
        if embedding and Role.A in parts and Role.B in parts:
            read |= {Role.B: Part(parts[Role.A]), Role.A: Part(parts[Role.B])}
        lora = Role.A in parts or Role.B in parts
        if lora != (method != "full") or (lora and (method == "dora") != (Role.MAGNITUDE in parts)):
            unsupported.append(f"{quoted(module)} has tensors of another method than {method}")
        if lora and not _selected(module, document):
            unsupported.append(f"the configuration does not select {quoted(module)}, so mlx-lm refuses it")
        collector.add(name, module, read, shape, embedding=embedding, outputs=outputs)
    collected = collector.finish()
    if model is not None:
        check_fits(collected.modules, collected.tensors, model, root)
    unsupported += [
        f"no rule for tensor {quoted(tensor.name)}"
        for tensor in unknown
        if not tensor.name.endswith((".lora_a", ".lora_b"))
    ]
    adapter = Adapter(_METHODS[method], base_name, collected.modules, tuple(unsupported), model, document)
    return adapter_index("mlx", path, file, config_path, collected, adapter, unknown=unknown)


def _shape(document: Mapping[str, Any], path: Path) -> Shape:
    """The one rank and scale of all modules."""
    parameters = document.get("lora_parameters")
    if not isinstance(parameters, dict):
        raise InputError("adapter.config", "lora_parameters is missing", path=path)
    scale, rank = positive(parameters.get("scale")), parameters.get("rank")
    if scale is None or not 0 < float32(scale) < float("inf"):
        message = f"lora_parameters.scale is {shown(parameters.get('scale'))}; it must be a number above 0"
        raise InputError("adapter.scale", message, path=path)
    if positive(rank) is None or not isinstance(rank, int):
        message = f"lora_parameters.rank is {shown(rank)}; it must be a whole number above 0"
        raise InputError("adapter.scale", message, path=path)
    return Shape(float32(scale), rank, None, "lora_parameters.rank")


def _sorted(tensors: Sequence[StoredTensor]) -> tuple[dict[str, dict[Role, StoredTensor]], list[StoredTensor]]:
    found: dict[str, dict[Role, StoredTensor]] = {}
    unknown: list[StoredTensor] = []
    for stored in tensors:
        ending = next((row for row in _ENDINGS if stored.name.endswith(row[0])), None)
        if ending is None:
            unknown.append(stored)
        else:
            found.setdefault(stored.name.removesuffix(ending[0]), {})[ending[1]] = stored
    return found, unknown


def _selected(module: str, document: Mapping[str, Any]) -> bool:
    """``linear_to_lora_layers``: all matrices of a layer without ``keys``, else those named, by local or whole path."""
    keys = document["lora_parameters"].get("keys")
    inside = local_path(module)
    if not isinstance(keys, list):
        return inside is not None
    return module in keys or inside in keys
