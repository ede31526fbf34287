"""Adapters of mlx-lm, read and planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.core.layouts import float32, plain, transposed
from ckconv.core.lazy import replace
from ckconv.core.tensors import Adapter, Role, StoredTensor, TensorIndex
from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.families import schema, towers
from ckconv.families.adapters import Collector, Part, Shape, families_of, local_path, module_of, path_of, placed
from ckconv.families.names import MLX
from ckconv.formats.safetensors import write
from ckconv.formats.safetensors.adapter import (
    Base,
    Opener,
    adapter_index,
    check_fits,
    config_beside,
    container,
    positive,
    read_adapter_document,
    with_base,
)
from ckconv.formats.safetensors.container import MLX_NAME, SafetensorsFile, read_safetensors
from ckconv.io.json import shown
from ckconv.plan.adapters import MERGED, NAME_BASE, AdapterPlanner, Entry, as_columns, as_rows, best_scale, paths_in
from ckconv.plan.steps import Piece, Plan

# mlx-lm adapters: a directory with ``adapter_config.json`` and ``adapters.safetensors``.
#
# ``PATH.lora_a`` is ``[in, rank]`` and ``PATH.lora_b`` ``[rank, out]``; a matrix changes by ``scale * (b.T @ a.T)``,
# with the scale as the configuration has it, not divided by the rank. An embedding's are ``[vocabulary, rank]`` and
# ``[rank, hidden]``. Experts that are stacked have one of each: ``[experts, rank, in]`` and ``[experts, out, rank]``
# (``LoRASwitchLinear`` of mlx_lm/tuner/lora.py).

#: How names of its tensors end.
_ENDINGS = {
    Role.A: ".lora_a",
    Role.B: ".lora_b",
    Role.MAGNITUDE: ".m",
    Role.SAVED_WEIGHT: ".weight",
    Role.SAVED_BIAS: ".bias",
}

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
    """
    root = path if path.is_dir() else path.parent
    weights, config_path = config_beside(root, MLX_NAME, "the scale", follow_links=follow_links)
    document = read_adapter_document(config_path)
    method = document.get("fine_tune_type", "lora")
    if not isinstance(method, str) or method not in _METHODS:
        message = f"fine_tune_type is {shown(method)}; {', '.join(_METHODS)} are supported"
        raise UnsupportedError("adapter.unsupported", message, path=config_path)
    shape = _shape(document, config_path) if method != "full" else Shape(1.0)
    file = read_safetensors(weights)

    def described(found_base: Base | None) -> TensorIndex:
        return _index(path, root, config_path, document, shape, file, found_base)

    return with_base(base, str(document.get("model") or ""), opener, described)


def _index(
    path: Path,
    root: Path,
    config_path: Path,
    document: Mapping[str, Any],
    shape: Shape,
    file: SafetensorsFile,
    found_base: Base | None,
) -> TensorIndex:
    method, base_name = document.get("fine_tune_type", "lora"), str(document.get("model") or "")
    model = found_base.config if found_base else None
    found, unknown = _sorted(file.tensors)
    families = (model.family,) if model else families_of(found)
    collector = Collector(root)
    unsupported: list[str] = []
    for module, parts in found.items():
        name = module_of(module, families, model) or module
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
    check_fits(collected, found_base, root)
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
        role = next((role for role, ending in _ENDINGS.items() if stored.name.endswith(ending)), None)
        if role is None:
            unknown.append(stored)
        else:
            found.setdefault(stored.name.removesuffix(_ENDINGS[role]), {})[role] = stored
    return found, unknown


def _selected(module: str, document: Mapping[str, Any]) -> bool:
    """Whether ``linear_to_lora_layers`` takes a module: named, or every one."""
    keys = document["lora_parameters"].get("keys")
    inside = local_path(module)
    if not isinstance(keys, list):
        return inside is not None
    return module in keys or inside in keys


# mlx-lm's adapter directory: one rank and one scale for all modules, ``lora_a`` ``[in, rank]``.

#: mlx-lm takes the last ``num_layers`` layers, and with a number below 1 all of them.
_ALL_LAYERS = -1


class MlxAdapterPlanner(AdapterPlanner):
    """Plans ``adapters.safetensors`` and its configuration.

    Of a base that sees they are mlx-vlm's, which goes by whole names of modules, and leaves out tensors of others
    without a word (``trainer/peft/utils.py`` of 0.7).
    """

    format = "mlx adapter"
    what = "MLX"
    roles = frozenset({Role.A, Role.B, Role.MAGNITUDE})

    def _refuse_roles(self) -> None:
        if self.index.format != "mlx":
            super()._refuse_roles()

    def has_place(self, module: str, base: ModelConfig) -> bool:
        """Whether the module has an MLX path."""
        return path_of(module, (base.family,), MLX) is not None

    def check(self) -> None:
        """Check that all ranks are equal, and embeddings mean the same."""
        self.paths = paths_in(self, MLX, same=self.index.format == "mlx")
        seeing = towers.tower_of_document(self.adapter.base.raw) if self.adapter.base else None
        self.seen_by = seeing.engines.get(schema.MLX_VLM.row) if seeing and self.index.format != "mlx" else None
        if self.seen_by is not None:
            self.paths = {name: towers.name_within(self.seen_by, path) for name, path in self.paths.items()}
            odd = [module.path for module in self.modules if module.embedding or self.stacked(module)]
            if odd:
                self.refuse(f"mlx-vlm adapts linear layers alone, and {quoted(odd[0])} is none", MERGED)
            self.notes.append("names are those of mlx-vlm, which loads the base with its tower")
        ranks = sorted({module.rank for module in self.modules if module.rank})
        self.rank = ranks[-1] if ranks else 0
        if len(ranks) > 1:
            small = ", ".join(map(str, ranks[:-1]))
            self.notes.append(f"MLX has one rank for all modules: zeros make those of {small} modules of {self.rank}")
        if len(ranks) > 1 and any(map(self.stacked, self.modules)):
            self.refuse(f"MLX has one rank for all modules, and those of {small} modules are experts or beside them")
        with_magnitude = [m for m in self.modules if Role.MAGNITUDE in m.roles]
        if with_magnitude and len(with_magnitude) != sum(bool(m.rank) for m in self.modules):
            self.refuse("MLX has DoRA magnitudes for all modules or for none")
        if self.index.format == "mlx":
            return
        if any(module.embedding for module in with_magnitude):
            self.refuse("MLX keeps the DoRA magnitudes of an embedding by rows, peft by columns")
        embeddings = [module for module in self.modules if module.embedding]
        base = self.adapter.base
        if embeddings and base is None:
            self.refuse(
                f"MLX changes the output head with {quoted(embeddings[0].path)} where the base ties them",
                NAME_BASE,
            )
        elif embeddings and base is not None and base.tied:
            self.refuse(f"the base is tied, so MLX would change the output head with {quoted(embeddings[0].path)}")

    def entries(self) -> list[Entry]:
        """Tensors by module path, both matrices transposed."""
        self.scale = best_scale(module for module in self.modules if module.rank)
        found = []
        for module in self.modules:
            for role in module.roles:
                tensor = self.tensor(module, role)
                ending = _ENDINGS[role]
                if module.embedding and role in (Role.A, Role.B):
                    ending = _ENDINGS[Role.B if role is Role.A else Role.A]
                stacked = self.stacked(module)
                turned = role in (Role.A, Role.B) and not module.embedding and not stacked
                scale = self.scale if role is Role.B else 1.0
                build = as_columns if turned else as_rows
                entry = build(f"{self.paths[module.name]}{ending}", tensor, scale=scale)
                outputs = self.placed(self.paths[module.name]) if role is Role.B and turned else None
                if outputs is not None:
                    layout = outputs.layout(module.rank, turned=True, stored_rank=self.rank)
                    shape = (self.rank, outputs.rows)
                    found.append(entry._replace(layout=replace(layout, scale=scale), shape=shape))
                    continue
                widened = role in (Role.A, Role.B) and not stacked
                found.append(self._widened(entry, role, turned) if widened else entry)
        return found

    def _widened(self, entry: Entry, role: Role, turned: bool) -> Entry:
        """Matrix of a common rank, filled up with zeros."""
        layout, shape = entry.layout, entry.shape
        if turned == (role is Role.A):
            wide = (transposed if turned else plain)(layout.rows, layout.cols, stored_cols=self.rank)
            return entry._replace(layout=replace(wide, scale=layout.scale), shape=(shape[0], self.rank))
        return entry._replace(shape=(self.rank, shape[1]))

    def finish(self, pieces: Sequence[Piece]) -> Plan:
        """Plan the file of tensors and the configuration."""
        shards = write.lay_out([(piece,) for piece in pieces], MLX_NAME, 0, {}, always_index=False)
        document = self.adapter.document if self.index.format == "mlx" else self._document()
        return self.made(shards.files, partial(container, shards, document), rope_layout="split")

    def _document(self) -> dict[str, Any]:
        modules = [module for module in self.modules if module.rank]
        paths = [self.paths[module.name] for module in modules]
        return {
            "fine_tune_type": "dora" if any(Role.MAGNITUDE in m.roles for m in modules) else "lora",
            "lora_parameters": {
                "dropout": 0.0,
                "keys": sorted({path if self.seen_by else _key(path) for path in paths}),
                "rank": self.rank,
                "scale": self.scale,
            },
            "model": self.adapter.base_name or None,
            "num_layers": self.adapter.base.num_layers if self.adapter.base else _ALL_LAYERS,
        }


def _key(path: str) -> str:
    """Path of a module for mlx-lm, within its layer or whole."""
    return local_path(path) or path
