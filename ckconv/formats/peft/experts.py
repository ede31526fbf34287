"""LoRA of bare parameters: ``target_parameters`` of peft, with which it changes the experts of a mixture.

transformers 5 holds all experts of a layer as two parameters of one module, ``gate_up_proj`` ``[E, 2 * ffn, hidden]``
and ``down_proj`` ``[E, hidden, ffn]``; peft wraps the module once for each, so that the parameter is told by its sizes.
``lora_A`` is ``[E * rank, in]`` and ``lora_B`` ``[out, rank * E]``, the experts innermost
(``ParamWrapper.get_delta_weight`` of peft 0.21, tuners/lora/layer.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from ckconv.adapters.model import matrix_shape
from ckconv.adapters.read import Collector, Part
from ckconv.core.adapters import AdapterModule, Role, effective_scale
from ckconv.core.config import ModelConfig
from ckconv.core.layouts import Layout, Strip, merged
from ckconv.core.names import parse
from ckconv.core.tensors import Tensor, plain_tensor
from ckconv.errors import quoted
from ckconv.families.catalogue import FAMILIES
from ckconv.formats.peft.config import PeftConfig
from ckconv.lazy import replace

#: What peft puts around a module once more, for the second of its parameters.
_WRAPPED = ".base_layer"


def add_experts(
    collector: Collector, config: PeftConfig, path: str, parts: Mapping[Role, Part], model: ModelConfig | None
) -> bool:
    """Add the change of one parameter of experts as modules of the base; ``False`` where it is none that is known."""
    module, layer = path.removesuffix(_WRAPPED), parse(path).layer
    if model is None or layer is None or not module.endswith(".experts") or parts.keys() != {Role.A, Role.B}:
        return False
    row = FAMILIES[model.family].tensors.get("L.ffn.experts.gate")
    shape = matrix_shape(f"layers.{layer}.ffn.experts.gate", model)
    # A checkpoint whose experts are fused as in the class may have gate and up in any order.
    if row is None or shape is None or not row.cells["hf"][0].stack:
        return False
    experts, ffn, hidden = shape
    a, b = parts[Role.A].stored, parts[Role.B].stored
    found = {(hidden, 2 * ffn): ("gate", "up"), (ffn, hidden): ("down",)}.get((a.shape[-1], b.shape[0]))
    rank = a.shape[0] // experts
    if found is None or a.shape != (rank * experts, a.shape[-1]) or b.shape != (b.shape[0], rank * experts):
        return False
    parameter = f"{module}.{'down_proj' if found == ('down',) else 'gate_up_proj'}"
    if config.rank_of(parameter) != rank:
        message = f"{parameter}: lora_A and lora_B have rank {rank}, r makes it {config.rank_of(parameter)}"
        collector.faults.add("adapter.rank", message, tensor=path, found=rank, allowed=config.rank_of(parameter))
        return True
    alpha = config.alpha_of(parameter)
    scale = effective_scale(alpha, rank, rank_stabilised=config.rank_stabilised)
    if not 0 < scale < float("inf"):
        message = f"{quoted(parameter)}: alpha {alpha} and rank {rank} make a scale that is no float32 number"
        collector.faults.add("adapter.scale", message, tensor=path)
    for part, word in enumerate(found):
        name = f"layers.{layer}.ffn.experts.{word}"
        out = b.shape[0] // len(found)
        made = {
            Role.A: replace(plain_tensor(f"{name}.{Role.A.value}", a), shape=(experts, rank, a.shape[1])),
            Role.B: _inner(plain_tensor(f"{name}.{Role.B.value}", b), (experts, out, rank), part, scale),
        }
        known = AdapterModule(name, module, (Role.A, Role.B), rank, alpha, scale)
        collector.add_made(known, made)
    return True


def _inner(stored: Tensor, shape: tuple[int, int, int], part: int, scale: float) -> Tensor:
    """``[experts, out, rank]`` of one part of the rows of ``[out, rank, experts]``."""
    experts, out, rank = shape
    width = rank * experts
    places = Strip(part * out * width, merged([(experts, 1), (out, width)]), merged([(rank, experts)]))
    whole = stored.layout
    layout = Layout(experts * out, rank, whole.rows, width, (places,), shared=whole.rows != out, scale=scale)
    return replace(stored, shape=shape, layout=layout)
