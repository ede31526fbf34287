"""LoRA of bare parameters: ``target_parameters`` of peft, with which it changes the experts of a mixture.

transformers 5 holds all experts of a layer as parameters ``[experts, .., ..]`` of one module. peft wraps the module
once for each that is selected, the first one innermost, so that a parameter is told by its sizes. ``lora_A`` is
``[experts * rank, in]`` and ``lora_B`` ``[out, rank * experts]``, the experts innermost; ``in`` is the last axis of the
parameter, or the middle one where its class says ``is_transposed`` (``ParamWrapper`` of peft 0.21,
tuners/lora/layer.py). Either is read where sizes tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from ckconv.adapters.places import Side, Sides, sides_of
from ckconv.adapters.read import Collector, Part
from ckconv.core.config import ModelConfig
from ckconv.core.layouts import Layout, Strip, merged
from ckconv.core.tensors import AdapterModule, Role, Tensor, effective_scale, parse, plain_tensor, with_layer
from ckconv.errors import quoted
from ckconv.families.catalogue import FAMILIES
from ckconv.families.kinds import kind_of
from ckconv.families.names import HF, names_of
from ckconv.families.naming_schemes import NESTED
from ckconv.families.sizes import Sizes
from ckconv.formats.peft.config import PeftConfig

#: What peft puts around a module once more, for each of its parameters but the last.
_WRAPPED = ".base_layer"


class Parameter(NamedTuple):
    """A parameter of experts in one layer.

    Attributes:
        path: of the parameter.
        shape: experts, and its two axes.
        modules: canonical names of what it holds, in order, and where those lie in it.
    """

    path: str
    shape: tuple[int, int, int]
    modules: Mapping[str, Sides]

    @property
    def turned(self) -> bool:
        """Outputs lie along the last axis."""
        return next(iter(self.modules.values())).turned


def parameters_of(module: str, model: ModelConfig) -> Iterator[Parameter]:
    """The parameters of experts that the module at a path has in transformers."""
    family = FAMILIES[model.family]
    sizes = Sizes(family, model.scope)
    packed = {found.pattern for found in names_of(family, HF).packed.values()}
    for prefix, instead in (("", ""), *NESTED):
        name = parse(f"{instead}{module.removeprefix(prefix)}")
        if not module.startswith(prefix) or name.layer is None:
            continue
        for pattern, found in names_of(family, HF).stored.items():
            row = found.parts[0].row
            plain = pattern not in packed and all(not part.stack and not part.value for part in found.parts)
            if pattern.rpartition(".")[0] != name.pattern or not plain or not sizes.has(row, name.layer):
                continue
            kinds = [kind_of(part, sizes.of(part.row, name.layer)) for part in found.parts]
            sides = [sides_of(kind) for kind in kinds]
            known = [side for side in sides if side is not None]
            if len(kinds[0].whole) != 3 or len(known) < len(sides) or len({side.turned for side in known}) > 1:
                continue
            called = (with_layer(part.canonical.removesuffix(".weight"), name.layer) for part in found.parts)
            experts, first, second = kinds[0].whole
            path = f"{module}.{pattern.rpartition('.')[2]}"
            yield Parameter(path, (experts, first, second), dict(zip(called, known, strict=True)))


def parameter_with(module: str, model: ModelConfig) -> Parameter | None:
    """The parameter that holds a canonical stack of experts; of several spellings the one of transformers 5."""
    family, name = FAMILIES[model.family], parse(module)
    for pattern, found in sorted(names_of(family, HF).stored.items(), key=lambda one: one[0].endswith(".weight")):
        names = [part.canonical.removesuffix(".weight") for part in found.parts]
        path = with_layer(pattern, name.layer).rpartition(".")[0]
        if name.pattern in names and not any(part.stack for part in found.parts):
            for parameter in parameters_of(path, model):
                if module in parameter.modules:
                    return parameter
    return None


def is_transposed(model: ModelConfig) -> bool:
    """The class of transformers declares its parameters of experts ``[in, out]``."""
    row = FAMILIES[model.family].engines.get("transformers")
    return row is not None and row.transposed


def add_experts(
    collector: Collector, config: PeftConfig, path: str, parts: Mapping[Role, Part], model: ModelConfig | None
) -> bool:
    """Add the change of one parameter of experts as modules of the base; ``False`` where it is none that is known."""
    module = path.removesuffix(_WRAPPED)
    while module.endswith(_WRAPPED):
        module = module.removesuffix(_WRAPPED)
    if model is None or parts.keys() != {Role.A, Role.B}:
        return False
    a, b = parts[Role.A].stored, parts[Role.B].stored
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        return False
    widths = (a.shape[1], b.shape[0])
    for parameter in parameters_of(module, model):
        experts, first, second = parameter.shape
        if a.shape[0] % experts or widths not in ((first, second), (second, first)):
            continue
        in_middle = widths == (first, second) and (first != second or is_transposed(model))
        rank = a.shape[0] // experts
        if config.rank_of(parameter.path) != rank:
            said = config.rank_of(parameter.path)
            message = f"{parameter.path}: lora_A and lora_B have rank {rank}, r makes it {said}"
            collector.faults.add("adapter.rank", message, tensor=path, found=rank, allowed=said)
            return True
        alpha = config.alpha_of(parameter.path)
        scale = effective_scale(alpha, rank, rank_stabilised=config.rank_stabilised)
        if not 0 < scale < float("inf"):
            message = f"{quoted(parameter.path)}: alpha {alpha} and rank {rank} make a scale that float32 cannot hold"
            collector.faults.add("adapter.scale", message, tensor=path)
        for name, sides in parameter.modules.items():
            # lora_A lies along the axis that peft takes for inputs, whatever it is to the model
            of_a, of_b = (a, b) if sides.turned == in_middle else (b, a)
            layouts = matrices(sides, experts, rank, swapped=of_a is b, widths=widths)
            made = {
                role: _tensor(plain_tensor(f"{name}.{role.value}", stored), experts, layout)
                for role, stored, layout in zip((Role.A, Role.B), (of_a, of_b), layouts, strict=True)
            }
            made[Role.B] = replace(made[Role.B], layout=replace(made[Role.B].layout, scale=scale))
            collector.add_made(AdapterModule(name, module, (Role.A, Role.B), rank, alpha, scale), made)
        return True
    return False


def _tensor(stored: Tensor, experts: int, layout: Layout) -> Tensor:
    return replace(stored, shape=(experts, layout.rows // experts, layout.cols), layout=layout)


def matrices(sides: Sides, experts: int, rank: int, *, swapped: bool, widths: tuple[int, int]) -> tuple[Layout, Layout]:
    """Where ``[experts, rank, in]`` and ``[experts, out, rank]`` lie in peft's ``lora_A`` and ``lora_B``.

    Args:
        swapped: the first lies in ``lora_B``, the second in ``lora_A``.
        widths: of ``lora_A`` and ``lora_B``.
    """
    of_a = (rank * widths[0], widths[0], 1), (experts * rank, widths[0])
    of_b = (1, experts, rank * experts), (widths[1], rank * experts)
    first, second = (of_b, of_a) if swapped else (of_a, of_b)
    return _first(sides.inputs, experts, rank, *first), _second(sides.outputs, experts, rank, *second)


#: Elements from one expert, one column of the rank, one input or output to the next.
_Steps = tuple[int, int, int]


def _first(side: Side, experts: int, rank: int, steps: _Steps, stored: tuple[int, int]) -> Layout:
    each, column, along = steps
    cols = _count(side)
    places = Strip(side.first * along, merged([(experts, each), (rank, column)]), merged(side.spread(along)))
    return Layout(experts * rank, cols, *stored, (places,), shared=experts * rank * cols != stored[0] * stored[1])


def _second(side: Side, experts: int, rank: int, steps: _Steps, stored: tuple[int, int]) -> Layout:
    each, column, along = steps
    rows = experts * _count(side)
    places = Strip(side.first * along, merged([(experts, each), *side.spread(along)]), merged([(rank, column)]))
    return Layout(rows, rank, *stored, (places,), shared=rows * rank != stored[0] * stored[1])


def _count(side: Side) -> int:
    return math.prod(count for count, _ in side.axes)
