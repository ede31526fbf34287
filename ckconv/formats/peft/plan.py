"""Adapter directory of peft: rank and alpha for every module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from ckconv.core.lazy import replace
from ckconv.core.tensors import AdapterModule, Role, effective_scale
from ckconv.errors import counted, quoted
from ckconv.families.adapters import NUMBER, one_by_one, transposing
from ckconv.families.names import HF, NESTED
from ckconv.families.towers import tower_of_document
from ckconv.formats.peft.read import Parameter, is_transposed, matrices, parameter_with
from ckconv.formats.safetensors import adapter, write
from ckconv.formats.safetensors.container import PEFT_NAME, PEFT_PREFIX
from ckconv.io.files import Files
from ckconv.io.rows import same_values
from ckconv.plan.adapters import MERGED, NAME_BASE, AdapterPlanner, Entry, as_columns, as_rows, families_in, paths_in
from ckconv.plan.steps import Piece, Plan


class PeftPlanner(AdapterPlanner):
    """Plans ``adapter_model.safetensors`` and its configuration."""

    format = "peft"
    what = "peft"
    roles = frozenset(Role)

    def check(self) -> None:
        """Refuse whole fine-tuned models and experts without parameters."""
        self.parameters: dict[str, Parameter] = {}
        stacked = [module for module in self.modules if self.stacked(module) and NUMBER not in module.path]
        if stacked:
            self._place_experts(stacked)
        if self.index.format != "peft":
            whole = [m for m in self.modules if {Role.SAVED_WEIGHT, Role.SAVED_BIAS} & set(m.roles)]
            if whole:
                self.refuse(
                    f"peft has no place for whole tensors of {counted(len(whole), 'module')}",
                    f"{MERGED}, --drop '*.saved_*' leaves them out",
                )
            if any(Role.MAGNITUDE in m.roles and m.embedding for m in self.modules):
                self.refuse("peft keeps the DoRA magnitudes of an embedding by columns, MLX by rows")
        paths = paths_in(self, HF, same=self.index.format == "peft", placed=self.parameters)
        self.paths = {name: self._in_whole(path) for name, path in paths.items()}
        self.paths |= {name: found.path for name, found in self.parameters.items()}

    def _place_experts(self, stacked: Sequence[AdapterModule]) -> None:
        """Parameters of expert stacks; reasons for those without."""
        model = self.adapter.base
        if model is None:
            self.refuse(f"the parameters of {quoted(stacked[0].path)} follow from the base", NAME_BASE)
            return
        there = {module.name: module for module in stacked}
        for module in stacked:
            if module.name in self.parameters:
                continue
            parameter = parameter_with(module.name, model)
            if parameter is None:
                self.refuse(f"transformers has {module.name} as no parameter of experts", MERGED)
                return
            beside = [there[name] for name in parameter.modules if name in there]
            if len(beside) < len(parameter.modules):
                self.refuse(f"transformers has {module.name} in one parameter with what the adapter does not change")
                return
            if not self._one_change(beside):
                names = " and ".join(parameter.modules)
                self.refuse(f"transformers has {names} as one parameter with one lora_A, and these have two", MERGED)
                return
            parameter = parameter._replace(path=self._in_whole(parameter.path))
            self.parameters |= dict.fromkeys(parameter.modules, parameter)

    def _in_whole(self, path: str) -> str:
        """A text model's path within the class of both, if the base is that."""
        base = self.adapter.base if self.index.format != "peft" else None
        tower = tower_of_document(base.raw) if base else None
        prefix = tower.in_huggingface.text[2] if tower else ""
        inner = dict(NESTED).get(prefix)
        return path if inner is None or not path.startswith(inner) else f"{prefix}{path.removeprefix(inner)}"

    def _one_change(self, modules: Sequence[AdapterModule]) -> bool:
        """Whether parts share ``lora_a`` and scale."""
        first, *others = modules
        one = self.tensor(first, Role.A)
        with Files(self.index.identities) as files:
            return all(
                (other.rank, other.scale, self.tensor(other, Role.A).dtype) == (first.rank, first.scale, one.dtype)
                and same_values(replace(self.tensor(other, Role.A), name=one.name), one, files)
                for other in others
            )

    def _of_experts(self, parameter: Parameter) -> list[Entry]:
        """Two matrices of a parameter, parts joined."""
        names = list(parameter.modules)
        modules = [module for name in names for module in self.modules if module.name == name]
        experts, first, second = parameter.shape
        rank = modules[0].rank
        model = self.adapter.base
        assert model is not None
        in_middle = is_transposed(model)
        widths = (first, second) if in_middle else (second, first)
        swapped = parameter.turned != in_middle
        layouts = [
            matrices(sides, experts, rank, swapped=swapped, widths=widths) for sides in parameter.modules.values()
        ]
        a, others = self.tensor(modules[0], Role.A), [self.tensor(module, Role.B) for module in modules]
        whole = layouts[0][1]
        strips = tuple(strip for _, layout in layouts for strip in layout.strips)
        rows = sum(layout.rows for _, layout in layouts)
        scale = others[0].layout.scale
        of_b = replace(whole, rows=rows, strips=strips, shared=False, scale=scale)
        shapes = ((experts * rank, widths[0]), (widths[1], rank * experts))
        path, _, _ = parameter.path.rpartition(".")
        inner = ".base_layer" if self._is_first(parameter) else ""
        ends = [f"{PEFT_PREFIX}{path}{inner}{_ENDINGS[role]}" for role in (Role.A, Role.B)]
        one, other = (1, 0) if swapped else (0, 1)
        made = [
            Entry(ends[one], a, replace(layouts[0][0], shared=False), shapes[one]),
            Entry(ends[other], others[0], of_b, shapes[other], tuple(others[1:])),
        ]
        return sorted(made, key=lambda entry: entry.name)

    def _is_first(self, parameter: Parameter) -> bool:
        """Whether peft wraps this parameter of a module first."""
        path = parameter.path.rpartition(".")[0]
        beside = {found.path for found in self.parameters.values() if found.path.rpartition(".")[0] == path}
        return len(beside) > 1 and len(parameter.modules) > 1

    def entries(self) -> list[Entry]:
        """Every tensor under its module's path."""
        found = []
        done: set[str] = set()
        for module in self.modules:
            if module.name in self.parameters:
                parameter = self.parameters[module.name]
                found += [] if parameter.path in done else self._of_experts(parameter)
                done.add(parameter.path)
                continue
            prefix = PEFT_PREFIX + self.paths[module.name]
            if NUMBER in prefix:
                found += self._of_each_expert(prefix, module)
                continue
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
                        layout = replace(outputs.layout(module.rank), scale=tensor.layout.scale)
                        entry = entry._replace(layout=layout, shape=(outputs.rows, module.rank))
                    found.append(entry)
        return found

    def _of_each_expert(self, prefix: str, module: AdapterModule) -> list[Entry]:
        """Matrices of single experts, as the source has them."""
        return [
            as_rows(f"{prefix.replace(NUMBER, str(number))}{_ENDINGS[role]}", tensor, scale=tensor.layout.scale)
            for role in module.roles
            for number, tensor in enumerate(one_by_one(self.tensor(module, role)))
        ]

    def _as_it_was(self, name: str, module: AdapterModule, role: Role) -> Entry:
        """A tensor that only peft has: its name and shape are the source's."""
        tensor = self.tensor(module, role)
        stored = next(item for item in self.index.stored if item.name == name)
        entry = as_rows(name, tensor, scale=tensor.layout.scale)
        return Entry(entry.name, entry.source, entry.layout, stored.shape)

    def finish(self, pieces: Sequence[Piece]) -> Plan:
        """Write the tensors, and the source's or an equal configuration."""
        shards = write.lay_out([(piece,) for piece in pieces], PEFT_NAME, 0, {"format": "pt"}, always_index=False)
        document = self.adapter.document if self.index.format == "peft" else self._document()
        return self.made(shards.files, partial(adapter.container, shards, document), rope_layout="split")

    def _document(self) -> dict[str, Any]:
        """Configuration that gives every module its rank and scale."""
        modules = [module for module in self.modules if module.rank]
        alphas = {module.name: _alpha(module) for module in modules}
        rank = Counter(module.rank for module in modules).most_common(1)[0][0]
        alpha = Counter(alphas[module.name] for module in modules if module.rank == rank).most_common(1)[0][0]
        paths, families = self.paths, families_in(self)
        return {
            "alpha_pattern": {paths[m.name]: _number(alphas[m.name]) for m in modules if alphas[m.name] != alpha},
            "base_model_name_or_path": self.adapter.base_name or None,
            "bias": "none",
            "fan_in_fan_out": bool(families) and transposing().issuperset(families),  # a Conv1D
            "inference_mode": True,
            "init_lora_weights": True,
            "lora_alpha": _number(alpha),
            "lora_dropout": 0.0,
            "modules_to_save": None,
            "peft_type": "LORA",
            "r": rank,
            "rank_pattern": {paths[m.name]: m.rank for m in modules if m.rank != rank},
            "target_modules": sorted(paths[m.name] for m in modules if m.name not in self.parameters),
            **({"target_parameters": sorted({p.path for p in self.parameters.values()})} if self.parameters else {}),
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
    """Alpha that makes the scale: the source's, or scale times rank."""
    if module.alpha is not None and effective_scale(module.alpha, module.rank) == module.scale:
        return module.alpha
    return module.scale * module.rank


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value
