"""mlx-lm's adapter directory: one rank and one scale for all modules, ``lora_a`` ``[in, rank]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ckconv.adapters.names import local_path, path_of
from ckconv.adapters.write import NAME_BASE, AdapterPlanner, Entry, as_columns, as_rows, best_scale, paths_in
from ckconv.core.config import ModelConfig
from ckconv.core.layouts import plain, transposed
from ckconv.core.tensors import Role
from ckconv.errors import quoted
from ckconv.families.names import MLX
from ckconv.formats.mlx.spec import MLX_NAME
from ckconv.formats.safetensors.adapter_files import container
from ckconv.formats.safetensors.shards import lay_out
from ckconv.plan.pieces import Piece
from ckconv.plan.steps import Plan

_ENDINGS = {
    Role.A: ".lora_a",
    Role.B: ".lora_b",
    Role.MAGNITUDE: ".m",
    Role.SAVED_WEIGHT: ".weight",
    Role.SAVED_BIAS: ".bias",
}

#: mlx-lm takes the last ``num_layers`` layers, and with a number below 1 all of them.
_ALL_LAYERS = -1


class MlxAdapterPlanner(AdapterPlanner):
    """Plans ``adapters.safetensors`` and its configuration."""

    format = "mlx adapter"
    what = "MLX"
    roles = frozenset({Role.A, Role.B, Role.MAGNITUDE})

    def _refuse_roles(self) -> None:
        if self.index.format != "mlx":
            super()._refuse_roles()

    def has_place(self, module: str, base: ModelConfig) -> bool:
        """It has a path of its own."""
        return path_of(module, (base.family,), MLX) is not None

    def check(self) -> None:
        """One rank; embeddings that mean the same."""
        self.paths = paths_in(self, MLX, same=self.index.format == "mlx")
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
        """Every tensor under its module's path, the two matrices the other way round."""
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
                    places = outputs.layout(module.rank, turned=True, stored_rank=self.rank)
                    shape = (self.rank, outputs.rows)
                    found.append(entry._replace(layout=replace(places, scale=scale), shape=shape))
                    continue
                widened = role in (Role.A, Role.B) and not stacked
                found.append(self._widened(entry, role, turned) if widened else entry)
        return found

    def _widened(self, entry: Entry, role: Role, turned: bool) -> Entry:
        """A matrix of the one rank: what is beyond its own is zeros, at the end of its rows or behind the last one."""
        layout, shape = entry.layout, entry.shape
        if turned == (role is Role.A):
            wide = (transposed if turned else plain)(layout.rows, layout.cols, stored_cols=self.rank)
            return entry._replace(layout=replace(wide, scale=layout.scale), shape=(shape[0], self.rank))
        return entry._replace(shape=(self.rank, shape[1]))

    def finish(self, pieces: Sequence[Piece]) -> Plan:
        """One file of tensors, and the configuration."""
        shards = lay_out([(piece,) for piece in pieces], MLX_NAME, 0, {}, always_index=False)
        document = self.adapter.document if self.index.format == "mlx" else self._document()
        return self.made(shards.files, partial(container, shards, document), rope_layout="split")

    def _document(self) -> dict[str, Any]:
        modules = [module for module in self.modules if module.rank]
        paths = [self.paths[module.name] for module in modules]
        return {
            "fine_tune_type": "dora" if any(Role.MAGNITUDE in m.roles for m in modules) else "lora",
            "lora_parameters": {
                "dropout": 0.0,
                "keys": sorted({_key(path) for path in paths}),
                "rank": self.rank,
                "scale": self.scale,
            },
            "model": self.adapter.base_name or None,
            "num_layers": self.adapter.base.num_layers if self.adapter.base else _ALL_LAYERS,
        }


def _key(path: str) -> str:
    """What mlx-lm calls a module: its path in its layer, or the whole path outside of the layers."""
    return local_path(path) or path
