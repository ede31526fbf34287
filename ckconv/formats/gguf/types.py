"""The type that each tensor of a GGUF gets, or why it gets none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ckconv.core.dtypes import DTYPES, F32, F64, WIDENS_TO_F32, DType, Kind
from ckconv.core.tensors import Tensor
from ckconv.families.catalogue import FAMILIES
from ckconv.families.gguf_metadata import FILE_TYPES
from ckconv.families.loaders import LLAMA_CPP
from ckconv.formats.gguf.entries import Entry
from ckconv.plan.decoding import DECODE, decode_hint
from ckconv.plan.pieces import apart
from ckconv.plan.planner import Planner
from ckconv.quant.convert import decodable, side_by_side, writable
from ckconv.quant.packed import is_scaled

#: Block types of intermediate results: ggml has no kernel for a matrix of them.
_NO_MATRIX = frozenset({"Q8_1", "Q8_K"})


class _Choice(NamedTuple):
    """The type of a tensor; ``why`` it is refused, if it is, how many ``groups`` that counts, and the flag for it."""

    dtype: DType
    why: str = ""
    hint: str = ""
    groups: int = 0


def types_of(
    planner: Planner, entries: Sequence[Entry], quantised: Mapping[str, DType], *, same_format: bool
) -> list[DType]:
    """The type of each entry; reasons are noted with the planner, and a refused type stands for itself.

    Args:
        quantised: types of entries that were asked for, by name.
        same_format: the source is a GGUF: what it holds can be held.
    """
    chosen: list[DType] = []
    refused: dict[tuple[str, str], list[str]] = {}
    groups: Counter[str] = Counter()
    for entry in entries:
        types: list[DType] = [] if entry.parts else [F32]
        for part in entry.parts:
            given = quantised.get(entry.name)
            choice = _Choice(given) if given is not None else _choice(planner, entry, part, same_format)
            if choice.why:
                refused.setdefault((choice.why, choice.hint), []).append(part.source)
                groups[choice.why] += choice.groups
            elif why := apart([part], entry.layout, choice.dtype):
                refused.setdefault((why, DECODE), []).append(part.source)
            types.append(choice.dtype)
        if len(set(types)) > 1 and set(types) <= WIDENS_TO_F32 and planner.dtype == "engine":
            types = [F32]
        if len(set(types)) > 1:
            mixed = " and ".join(f"{part.source} is {part.dtype}" for part in entry.parts)
            refused.setdefault((f"the parts of {entry.name} share one type", DECODE), []).append(mixed)
        chosen.append(types[0])
    for (why, hint), names in refused.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        count = f"{groups[why]:,} " if groups[why] else ""
        planner.refuse(f"{count}{why}: {names[0]}{more}", hint)
    return chosen


def _choice(planner: Planner, entry: Entry, tensor: Tensor, same_format: bool) -> _Choice:
    asked, source = planner.dtype, tensor.dtype
    if source.block > 1 and planner.decoded(tensor):
        target = F32 if entry.fp32 else planner.decoded_as(tensor)
        return _Choice(target, planner.unsound(tensor) if decodable(source) else f"no decoder for {source}")
    if asked == "keep":
        return _Choice(source, "" if source.ggml is not None else f"GGUF has no type for {source}")
    if is_scaled(source):
        return _nvfp4(planner, entry, source)
    if side_by_side(source):
        return _repacked(planner, entry, source)
    if source.block > 1:
        useless = not same_format and (source.ggml is None or source.name in _NO_MATRIX)
        return _Choice(source, f"llama.cpp computes nothing with {source}" if useless else "", decode_hint(source))
    if entry.fp32:
        return _floats(source, F64 if source is F64 and asked == "engine" else F32, same_format)
    return _floats(source, DTYPES[asked.upper()] if asked != "engine" else source, same_format)


def _floats(source: DType, target: DType, same_format: bool) -> _Choice:
    """Of float64 the type that is asked for, where one is."""
    if same_format and source not in WIDENS_TO_F32 and not (source is F64 and source is not target):
        return _Choice(source)  # an integer or F64 that an architecture wants
    if source.kind is Kind.FLOAT and target is not F64 and writable(source, target):
        return _Choice(target)
    return _Choice(source, f"llama.cpp loads no {source} here", "--dtype f32" if source is F64 else "")


def _nvfp4(planner: Planner, entry: Entry, source: DType) -> _Choice:
    """NVFP4, its scale of scales beside it: of families of which it was measured that llama.cpp multiplies by that."""
    config = planner.index.config
    row = FAMILIES[config.family].engines.get(LLAMA_CPP.row) if config else None
    if row is None or not row.scaled:
        return _Choice(source, "llama.cpp is not known to multiply NVFP4 by its scale in this family", DECODE)
    if entry.shape[-1] % DTYPES["NVFP4"].block:
        return _Choice(source, f"rows of {entry.shape[-1]:,} elements are not whole blocks", DECODE)
    return _Choice(DTYPES["NVFP4"])


def _repacked(planner: Planner, entry: Entry, source: DType) -> _Choice:
    """The type of a matrix that no type of GGUF's is: the smallest that holds every number of all parts."""
    from ckconv.quant.reexpress import blocks_for, no_block, none_of

    blocks = blocks_for(source, entry.shape[-1])
    if not blocks:
        return _Choice(source, no_block(source, entry.shape[-1]), DECODE)
    counts: Counter[DType] = Counter()
    for part in entry.parts:
        counts.update(planner.source.unfit.get(part.name, {}))
    best = min(blocks, key=lambda block: (counts[block], block.size / block.block))
    if counts[best]:
        return _Choice(source, f"groups have {none_of(blocks)}", DECODE, counts[best])
    return _Choice(best)


def file_type(entries: Sequence[Entry], types: Sequence[DType]) -> int:
    """``general.file_type``: what most matrices are; all-FP32 where there are none."""
    counts: Mapping[DType, int] = Counter(
        dtype for entry, dtype in zip(entries, types, strict=True) if entry.matrix and not entry.fp32
    )
    best = max(counts, key=lambda dtype: (counts[dtype], dtype.kind is not Kind.FLOAT, dtype.size), default=F32)
    return FILE_TYPES.get(best.name, FILE_TYPES["F32"])
