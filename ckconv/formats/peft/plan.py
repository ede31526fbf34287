"""peft's adapter directory: any method, a rank and an alpha for every module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from ckconv.adapters.write import AdapterPlanner, Entry, as_columns, as_rows, families_in, paths_in
from ckconv.core.adapters import AdapterModule, Role, effective_scale
from ckconv.errors import quoted
from ckconv.families.catalogue import FAMILIES
from ckconv.families.kinds import has_transposed
from ckconv.families.names import HF
from ckconv.formats.peft.spec import PEFT_NAME, PEFT_PREFIX
from ckconv.formats.safetensors.adapter_files import container
from ckconv.formats.safetensors.shards import lay_out
from ckconv.lazy import replace
from ckconv.plan.pieces import Piece
from ckconv.plan.steps import Plan


class PeftPlanner(AdapterPlanner):
    """Plans ``adapter_model.safetensors`` and its configuration."""

    format = "peft"
    what = "peft"
    roles = frozenset(Role)

    def check(self) -> None:
        """A whole model that was fine-tuned is no adapter to peft, and experts are parameters of a class."""
        stacked = [module for module in self.modules if self.stacked(module)]
        if stacked:
            self.refuse(
                f"peft: {quoted(stacked[0].path)} is all experts of a layer, for whose parameters there is no rule"
            )
        if self.index.format != "peft":
            whole = [m for m in self.modules if {Role.SAVED_WEIGHT, Role.SAVED_BIAS} & set(m.roles)]
            if whole:
                self.refuse(f"peft has no place for whole tensors of {len(whole)} modules", "--drop leaves tensors out")
            if any(Role.MAGNITUDE in m.roles and m.embedding for m in self.modules):
                self.refuse("peft keeps the DoRA magnitudes of an embedding by columns, MLX by rows")
        self.paths = paths_in(self, HF, same=self.index.format == "peft")

    def entries(self) -> list[Entry]:
        """Every tensor under its module's path."""
        found = []
        for module in self.modules:
            prefix = PEFT_PREFIX + self.paths[module.name]
            for role in module.roles:
                tensor = self.tensor(module, role)
                if self.index.format == "peft" and role not in (Role.A, Role.B):
                    found.append(self._as_it_was(tensor.source, module, role))
                elif module.embedding and role in (Role.A, Role.B):
                    # Of an embedding peft calls A what holds the rows of the vocabulary, as columns.
                    name = f"{prefix}.lora_embedding_{'B' if role is Role.A else 'A'}"
                    found.append(as_columns(name, tensor, scale=tensor.layout.scale))
                else:
                    entry = as_rows(f"{prefix}{_ENDINGS[role]}", tensor, scale=tensor.layout.scale)
                    outputs = self.placed(self.paths[module.name]) if role is Role.B else None
                    if outputs is not None:
                        places = replace(outputs.layout(module.rank), scale=tensor.layout.scale)
                        entry = entry._replace(layout=places, shape=(outputs.rows, module.rank))
                    found.append(entry)
        return found

    def _as_it_was(self, name: str, module: AdapterModule, role: Role) -> Entry:
        """A tensor that only peft has: its name and shape are the source's."""
        tensor = self.tensor(module, role)
        stored = next(item for item in self.index.stored if item.name == name)
        entry = as_rows(name, tensor, scale=tensor.layout.scale)
        return Entry(entry.name, entry.source, entry.layout, stored.shape)

    def finish(self, pieces: Sequence[Piece]) -> Plan:
        """One file of tensors, and the configuration: the source's own, or one that says the same."""
        shards = lay_out([(piece,) for piece in pieces], PEFT_NAME, 0, {"format": "pt"}, always_index=False)
        document = self.adapter.document if self.index.format == "peft" else self._document()
        return self.made(shards.files, partial(container, shards, document), rope_layout="split")

    def _document(self) -> dict[str, Any]:
        """A configuration from which peft computes every module's rank and scale as they are."""
        modules = [module for module in self.modules if module.rank]
        alphas = {module.name: _alpha(module) for module in modules}
        rank = Counter(module.rank for module in modules).most_common(1)[0][0]
        alpha = Counter(alphas[module.name] for module in modules if module.rank == rank).most_common(1)[0][0]
        paths = self.paths
        return {
            "alpha_pattern": {paths[m.name]: _number(alphas[m.name]) for m in modules if alphas[m.name] != alpha},
            "base_model_name_or_path": self.adapter.base_name or None,
            "bias": "none",
            "fan_in_fan_out": _is_conv1d(families_in(self)),
            "inference_mode": True,
            "init_lora_weights": True,
            "lora_alpha": _number(alpha),
            "lora_dropout": 0.0,
            "modules_to_save": None,
            "peft_type": "LORA",
            "r": rank,
            "rank_pattern": {paths[m.name]: m.rank for m in modules if m.rank != rank},
            "target_modules": sorted(paths[m.name] for m in modules),
            "task_type": "CAUSAL_LM",
            "use_dora": any(Role.MAGNITUDE in m.roles for m in modules),
            "use_rslora": False,
        }


_ENDINGS = {
    Role.A: ".lora_A.weight",
    Role.B: ".lora_B.weight",
    Role.MAGNITUDE: ".lora_magnitude_vector",
}


def _alpha(module: AdapterModule) -> float:
    """The alpha that makes the scale: the source's own where it does, else scale times rank, which is exact."""
    if module.alpha is not None and effective_scale(module.alpha, module.rank) == module.scale:
        return module.alpha
    return module.scale * module.rank


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _is_conv1d(families: Sequence[str]) -> bool:
    """Matrices are stored the other way round in transformers, which peft wants to be told."""
    return bool(families) and all(has_transposed(FAMILIES[name]) for name in families)
