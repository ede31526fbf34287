"""Planning a BUMPWGT3 file, as its loader wants it.

Source of every rule: the loader that ``src/ckernel_codegen.c`` emits (``load_weight_dtypes``, ``load_model_weights``)
and the kernels it calls; upstream's own GGUF script breaks several of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ckconv.dtypes import DTYPES, F32, WIDENS_TO_F32, DType
from ckconv.formats.bump import (
    ALIGN_ELEMENTS,
    HEADER_BYTES,
    LOADED_BY_V3,
    SLOTS_V3,
    TABLE_LENGTH,
    Slot,
    table_entries_v3,
)
from ckconv.model.architectures import FAMILIES
from ckconv.model.config import ModelConfig
from ckconv.model.index import Extent, Tensor, TensorIndex
from ckconv.model.names import pattern_of, with_layer
from ckconv.model.placement import Geometry, geometry, place, slots_of
from ckconv.plan.steps import Left, Options, Plan, Reason, Step
from ckconv.values import Conversion, convertible, decodable

_K_QUANT_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Bump3:
    """What the version 3 writer needs besides the steps."""

    config: ModelConfig
    geometry: Geometry
    codes: bytes


def plan_bump3(index: TensorIndex, options: Options, *, head_is_embedding: bool) -> Plan:
    """Plan the conversion of ``index`` to BUMPWGT3.

    Args:
        head_is_embedding: ``output.weight`` is byte for byte the embedding.
    """
    config = index.config
    if config is None:
        return _refused(index, options, [_unknown_architecture(index)])
    return _Planner(index, config, options, head_is_embedding).plan()


def _refused(index: TensorIndex, options: Options, reasons: list[Reason]) -> Plan:
    return Plan(index, "bump", 3, options, 0, (), refusals=tuple(reasons))


def _unknown_architecture(index: TensorIndex) -> Reason:
    known = ", ".join(FAMILIES)
    what = f"architecture {index.architecture!r} has no rules" if index.architecture else "no architecture is named"
    return Reason(f"{what} (known: {known})")


class _Planner:
    """Collects every reason before it gives up, so that a user sees them all at once."""

    def __init__(self, index: TensorIndex, config: ModelConfig, options: Options, head_is_embedding: bool) -> None:
        self.index, self.config, self.options = index, config, options
        self.head_is_embedding = head_is_embedding
        self.reasons: list[Reason] = []
        self.notes: list[str] = []
        self.left_out: list[Left] = []
        self.tensors: dict[str, Tensor] = {}
        self.geometry = geometry(config, context=options.context or config.context_length, step=ALIGN_ELEMENTS)

    def plan(self) -> Plan:
        self._select()
        self._check_model()
        types = self._types()
        self._check_missing()
        if not self.reasons:
            self._check_blocks(types)
        interleaved = self._interleaved()
        if self.reasons:
            return _refused(self.index, self.options, self.reasons)
        codes = bytes(
            self._code(types[with_layer(slot.name, n)]) for slot, n in slots_of(SLOTS_V3, self.config.num_layers)
        )
        steps = self._steps(types, interleaved)
        return Plan(
            self.index,
            "bump",
            3,
            self.options,
            steps[-1].offset + steps[-1].nbytes,
            tuple(steps),
            tuple(self.left_out),
            notes=tuple(self.notes),
            rope_layout="interleaved" if interleaved else "split",
            details=Bump3(self.config, self.geometry, codes),
        )

    def _select(self) -> None:
        """Every source tensor goes into a slot, or is left out by a rule or a flag, or is a reason to refuse."""
        slotted = {part.canonical for group in SLOTS_V3 for slot in group for part in slot.parts}
        homeless: Counter[str] = Counter()
        for dropped in self.index.dropped:
            self.left_out.append(Left(dropped.stored.name, dropped.reason, dropped.stored.extent.nbytes))
        for tensor in self.index.tensors.values():
            if self._dropped(tensor.name, tensor.source):
                self.left_out.append(Left(tensor.name, "--drop", tensor.nbytes))
            elif tensor.name == "output.weight" and self.head_is_embedding:
                self.left_out.append(Left(tensor.name, "byte for byte the embedding: tied", tensor.nbytes))
                self.notes.append("output.weight is byte for byte token_embedding.weight: written as tied")
            elif pattern_of(tensor.name) in slotted:
                self.tensors[tensor.name] = tensor
            elif tensor.name == "output.weight":
                self.reasons.append(
                    Reason("the output head is not tied to the embeddings and bump 3 has no slot for it")
                )
            elif tensor.name == "rope_frequencies":
                self.reasons.append(
                    Reason(
                        f"{tensor.source} scales RoPE (Llama 3.1 style), which the engine does not do",
                        "--drop rope_frequencies leaves it out: right up to the original context only",
                    )
                )
            else:
                homeless[pattern_of(tensor.name)] += 1
        for stored in self.index.unknown:
            if self._dropped(stored.name, stored.name):
                self.left_out.append(Left(stored.name, "--drop", stored.extent.nbytes))
            else:
                homeless[pattern_of(stored.name)] += 1
        for pattern, count in homeless.items():
            self.reasons.append(Reason(f"no slot for {pattern}" + (f" ({count} tensors)" if count > 1 else "")))

    def _dropped(self, *names: str) -> bool:
        return any(fnmatchcase(name, glob) for name in names for glob in self.options.drop)

    def _check_model(self) -> None:
        c, g = self.config, self.geometry
        family = FAMILIES[c.family]
        if not family.rms_swiglu:
            self.reasons.append(
                Reason(f"{c.family} is not an RMSNorm + SwiGLU decoder, which is all this engine computes")
            )
        if family.experts:
            self.reasons.append(Reason(f"{c.num_experts} experts per layer; the format holds dense models"))
        if c.head_dim * c.num_heads != c.hidden_size:
            self.reasons.append(
                Reason(
                    f"head size {c.head_dim} is not hidden / heads ({c.hidden_size} / {c.num_heads}), as it must be"
                )
            )
        if family.rope and c.rotary_dim != c.head_dim:
            self.reasons.append(
                Reason(f"RoPE turns {c.rotary_dim} of {c.head_dim} elements of a head; the engine turns all")
            )
        if c.sliding_window and c.sliding_window < g.context:
            self.reasons.append(
                Reason(
                    f"attention slides over {c.sliding_window:,} tokens, the engine attends to all {g.context:,}",
                    f"--context {c.sliding_window} makes them the same",
                )
            )
        self.reasons += [
            Reason(f"{modifier} changes the computation; the engine does not know it") for modifier in c.modifiers
        ]
        if not c.norm_eps:
            self.reasons.append(Reason("the source names no epsilon for its norms"))
        if not g.context:
            self.reasons.append(Reason("the source names no context length", "--context N sets one"))
        elif c.context_length and g.context > c.context_length:
            self.notes.append(f"context {g.context:,} is longer than the source's {c.context_length:,}")

    def _interleaved(self) -> bool:
        """Whether Q/K rows are written with RoPE pairs as neighbours. This engine rotates half against half."""
        asked = self.options.rope_layout
        if asked == "source":
            return any(tensor.layout.interleaved for tensor in self.tensors.values())
        return asked == "interleaved"

    def _types(self) -> dict[str, DType]:
        """Slot name -> type; a refused one stands for itself so that planning goes on to find every reason."""
        types: dict[str, DType] = {}
        refused: dict[tuple[str, str], list[str]] = {}
        for slot, layer in slots_of(SLOTS_V3, self.config.num_layers):
            name = with_layer(slot.name, layer)
            here = [self.tensors[c] for part in slot.parts if (c := with_layer(part.canonical, layer)) in self.tensors]
            chosen = []
            for tensor in here:
                dtype, why, hint = self._type(tensor.dtype, slot)
                if why:
                    refused.setdefault((why, hint), []).append(tensor.source)
                chosen.append(dtype)
            types[name] = chosen[0] if chosen else F32
            if len(set(chosen)) > 1:
                mixed = " and ".join(f"{tensor.source} is {tensor.dtype}" for tensor in here)
                refused.setdefault(
                    (f"gate and up share one type in {pattern_of(slot.name)}", "--dequantize"), []
                ).append(mixed)
        for (why, hint), names in refused.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self.reasons.append(Reason(f"{why}: {names[0]}{more}", hint and f"{hint} decodes them to FP32"))
        return types

    def _type(self, source: DType, slot: Slot) -> tuple[DType, str, str]:
        """(type in the output, reason to refuse or "", flag that would change it)."""
        asked = self.options.dtype
        if slot.fp32:
            ok = source in WIDENS_TO_F32
            return F32, "" if ok else f"{source} in an FP32 slot", ""
        if source.block > 1 and self.options.dequantize:
            target = F32 if asked in ("engine", "keep") else DTYPES[asked.upper()]
            return target, "" if decodable(source) else f"no decoder for {source}", ""
        if asked == "keep":
            known = getattr(source, f"bump_{self.options.dtype_codes}") is not None
            return source, "" if known else f"{source} has no code in the dtype table", ""
        if source.block > 1:
            ok = source.name in LOADED_BY_V3
            return source, "" if ok else f"the engine loads F32, Q4_K and Q6_K matrices, not {source}", "--dequantize"
        target = F32 if asked == "engine" else DTYPES[asked.upper()]
        if not convertible(source, target):
            return source, f"{source} cannot become {target} exactly", ""
        return target, "", ""

    def _check_missing(self) -> None:
        missing: Counter[str] = Counter()
        for slot, layer in slots_of(SLOTS_V3, self.config.num_layers):
            for part in slot.parts:
                if not slot.zero_if_absent and with_layer(part.canonical, layer) not in self.tensors:
                    missing[part.canonical] += 1
        for pattern, count in missing.items():
            self.reasons.append(
                Reason(f"no tensor for {pattern}" + (f" in {count} layers" if "{n}" in pattern else ""))
            )

    def _check_blocks(self, types: dict[str, DType]) -> None:
        """Rows of blocks cannot be padded element by element, and the loader wants more for K-quants."""
        g = self.geometry
        if any(dtype.block == _K_QUANT_BLOCK for dtype in types.values()):
            for what, size in (("hidden", g.hidden), ("feed-forward", g.ffn)):
                if size % _K_QUANT_BLOCK:
                    self.reasons.append(
                        Reason(
                            f"{what} size {size} is no multiple of 256, which the loader wants of K-quants",
                            "--dequantize",
                        )
                    )
        flat = [n for n in range(self.config.num_layers) if types[f"layer.{n}.wo"].block > 1]
        if flat and g.heads * g.aligned_head != g.aligned_hidden:
            self.reasons.append(
                Reason(
                    f"a quantised wo must have heads x padded head size = hidden, not {g.heads} x {g.aligned_head}",
                    "--dequantize",
                )
            )
        if any(t.block > 1 and (g.hidden % t.block or g.ffn % t.block) for t in types.values()):
            self.reasons.append(
                Reason(f"hidden {g.hidden} and feed-forward {g.ffn} must be whole blocks", "--dequantize")
            )

    def _code(self, dtype: DType) -> int:
        code = getattr(dtype, f"bump_{self.options.dtype_codes}")
        assert isinstance(code, int)
        return code

    def _steps(self, types: dict[str, DType], interleaved: bool) -> list[Step]:
        def dtype_of(slot: Slot, layer: int | None) -> DType:
            return types[with_layer(slot.name, layer)]

        start = HEADER_BYTES + TABLE_LENGTH.size + table_entries_v3(self.config.num_layers)
        steps = []
        for item in place(SLOTS_V3, self.geometry, dtype_of, start=start, interleaved=interleaved):
            target = Tensor(
                item.canonical,
                item.slot_name,
                item.dtype,
                item.shape,
                (Extent(self.index.path, item.offset, item.nbytes),),
                item.layout,
                may_be_absent=item.slot.zero_if_absent,
            )
            source = self.tensors.get(item.canonical)
            conversion = None
            if source is not None:
                conversion = Conversion(source.dtype, item.dtype, item.layout.shift - source.layout.shift)
            steps.append(Step(item.slot_name, target, source, conversion))
        return steps
