"""The type of every slot of a bump file, and why a tensor cannot have one there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckconv.core.dtypes import DTYPES, F32, F64, WIDENS_TO_F32, DType
from ckconv.core.tensors import Tensor, parse, with_layer
from ckconv.formats.bump.placement import slots_of
from ckconv.formats.bump.slots import Slot
from ckconv.plan.decoding import decoding_hint
from ckconv.quant.convert import decodable, side_by_side, writable
from ckconv.quant.packed import scheme_of

if TYPE_CHECKING:
    from ckconv.formats.bump.plan import BumpPlanner

_Q8_0 = DTYPES["Q8_0"]

#: What `inspect` says of an MLX model, whose scales and biases it does not read.
_UNREAD = "if its blocks hold the numbers of every quantised group: convert --dry-run reads them and says so"


def types_of(planner: BumpPlanner) -> dict[str, DType]:
    """Slot name -> type; a refused one stands for itself so that planning goes on to find every reason."""
    types: dict[str, DType] = {}
    refused: dict[str, list[Tensor]] = {}
    mixed: dict[str, list[list[Tensor]]] = {}
    kept: set[str] = set()
    for slot, layer in slots_of(planner.table, planner.config.num_layers):
        name = with_layer(slot.name, layer)
        here = [
            planner.tensors[c] for part in slot.parts if (c := with_layer(part.canonical, layer)) in planner.tensors
        ]
        chosen = []
        for tensor in here:
            given = planner.quantised_as.get(tensor.name)
            if given is not None and not slot.fp32:
                dtype, why = given, planner.refused_type(given, slot) if given.block > 1 else ""
            elif side_by_side(tensor.dtype) and planner.dtype == "engine" and not planner.decoded(tensor):
                dtype, why = _repacked(planner, here, tensor.dtype, slot)
            else:
                dtype, why = _type(planner, tensor, slot)
            if why:
                refused.setdefault(why, []).append(tensor)
            elif tensor.dtype.block > 1 and not planner.decoded(tensor):
                kept.add(tensor.source)
            chosen.append(dtype)
        if len(set(chosen)) > 1 and planner.dtype == "engine" and set(chosen) <= WIDENS_TO_F32:
            chosen = [F32] * len(chosen)  # floats of several types in one slot
        types[name] = chosen[0] if chosen else F32
        if len(set(chosen)) > 1:
            mixed.setdefault(f"gate and up share one type in {slot.name}", []).append(here)
    for why, tensors in refused.items():
        _refuse_blocks(planner, why, tensors, kept, tensors[0].source)
    for why, pairs in mixed.items():
        both = " and ".join(f"{tensor.source} is {tensor.dtype}" for tensor in pairs[0])
        tensors = [tensor for pair in pairs for tensor in pair if tensor.dtype.block > 1]
        _refuse_blocks(planner, why, tensors, kept - {tensor.source for tensor in tensors}, both, len(pairs))
    return types


def _refuse_blocks(
    planner: BumpPlanner, why: str, tensors: Sequence[Tensor], kept: set[str], first: str, count: int = 0
) -> None:
    """Note a reason that decoding takes away, if any of ``tensors`` is quantised and not to be decoded already.

    Args:
        kept: names of quantised tensors that nothing speaks against.
        first: what the reason names; ``count`` is how many there are of it, where that is not the tensors.
    """
    matrices = [tensor for tensor in tensors if len(tensor.shape) > 1]  # nothing decodes a vector
    blocks = [tensor.source for tensor in matrices if tensor.dtype.block > 1 and not planner.decoded(tensor)]
    decodes = blocks and planner.options.dtype != "keep"
    more = (count or len(tensors)) - 1
    hints = [decoding_hint(blocks, kept) if decodes else "", _requantising(planner, matrices), planner.elsewhere(why)]
    planner.refuse(f"{why}: {first}" + (f" and {more} more" if more else ""), "; ".join(filter(None, hints)))


def _requantising(planner: BumpPlanner, matrices: Sequence[Tensor]) -> str:
    """The flag that gives matrices of floats Q8_0 instead of what ``--quantize`` asks for; empty for none."""
    names = {
        parse(tensor.source).pattern.replace("{n}", "*") for tensor in matrices if tensor.name in planner.quantised_as
    }
    fit = not any(tensor.shape[-1] % _Q8_0.block for tensor in matrices)
    slots = [slot for group in planner.table for slot in group if slot.parts]
    taken = not any(planner.refused_type(_Q8_0, slot) for slot in slots)
    rules = "".join(f",{name}=q8_0" for name in sorted(names))
    return f"--quantize '{planner.options.quantize}{rules}' takes another type" if names and fit and taken else ""


def _type(planner: BumpPlanner, tensor: Tensor, slot: Slot) -> tuple[DType, str]:
    """(type in the output, reason to refuse or "")."""
    asked, source = planner.dtype, tensor.dtype
    if slot.fp32:
        held = source in WIDENS_TO_F32 or (source is F64 and asked not in ("engine", "keep"))
        return F32, "" if held else f"{source} in an FP32 slot"
    if source.block > 1 and planner.decoded(tensor):
        target = planner.decoded_as(tensor)
        return target, "" if decodable(source) else f"no decoder for {source}"
    if asked == "keep":
        known = getattr(source, f"bump_{planner.numbering}") is not None
        return source, "" if known else f"{source} has no code in the dtype table"
    if source.block > 1:
        return source, planner.refused_type(source, slot)
    kept = source if planner.keeps(source) else F32
    target = kept if asked == "engine" else DTYPES[asked.upper()]
    if not writable(source, target):
        return source, f"{source} cannot become {target} exactly"
    return target, ""


def _repacked(planner: BumpPlanner, tensors: Sequence[Tensor], source: DType, slot: Slot) -> tuple[DType, str]:
    """(type in the output of a matrix that none of GGUF's types is, reason to refuse or ""): the smallest that fits.

    Args:
        tensors: all that share the slot, and so its type.
    """
    from ckconv.quant.reexpress import blocks_for, no_block, none_of

    columns = tensors[0].layout.cols
    blocks = blocks_for(source, columns)
    if not blocks and scheme_of(source):
        return source, no_block(source, columns)
    loaded = [block for block in blocks if not planner.refused_type(block, slot)]
    if not loaded:
        return source, planner.refused_type(source, slot)
    if _UNREAD not in planner.notes and not any(tensor.name in planner.source.unfit for tensor in tensors):
        planner.notes.append(_UNREAD)
    counts: Counter[DType] = Counter()
    for tensor in tensors:
        counts.update(planner.source.unfit.get(tensor.name, {}))
    best = min(loaded, key=lambda block: (counts[block], block.size))
    if counts[best]:
        have = "group has" if counts[best] == 1 else "groups have"
        return source, f"{counts[best]:,} {have} {none_of(loaded)}"
    return best, ""
