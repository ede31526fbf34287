"""Planning a BUMPWGT3 file, as its loader wants it.

Source of every rule: the loader that ``src/ckernel_codegen.c`` emits (``load_weight_dtypes``, ``load_model_weights``)
and the kernels it calls; upstream's own GGUF script breaks several of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ckconv.core.dtypes import F32, DType
from ckconv.core.tensors import TensorIndex
from ckconv.formats.bump.ages import LOADED_BY_V3, age_of, numbering, right_of_bump3, said
from ckconv.formats.bump.engines import GENERATED, K_QUANTS, computed_by
from ckconv.formats.bump.plan import BumpPlanner
from ckconv.formats.bump.slots import SLOTS_V3, Slot
from ckconv.formats.bump.spec import ALIGN_ELEMENTS, HEADER_BYTES
from ckconv.options import Options
from ckconv.plan.probe import SourceFacts
from ckconv.plan.steps import Plan

_K_QUANT_BLOCK = 256

#: A configuration's context may make at most so many bytes of zeros: some megabytes, or a few times the model.
_POSITIONS_FLOOR = 64 << 20
_POSITIONS_SHARE = 4


class Bump3Planner(BumpPlanner):
    """The rules of the engine's first generated runtime."""

    engine = GENERATED
    version = 3
    table = SLOTS_V3
    data_start = HEADER_BYTES
    step = ALIGN_ELEMENTS

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        super().__init__(index, options, source)
        self.numbering = numbering(options)

    def _check_engine(self) -> None:
        c = self.config
        if self.options.template:
            self.refuse("bump 3 has no place for an engine template")
        age = age_of(self.options)
        if self.options.engine and self.version not in age.versions:
            self.refuse(f"the engine of {age.title} loads no bump 3", f"--bump-version {age.versions[0]}")
        elif self.options.engine and self.numbering != age.codes:
            self.refuse(f"the engine of {age.title} uses other numbers for K-quants", f"--dtype-codes {age.codes}")
        absent = next((row for row in (self.own_row, self.row) if row is not None and row.absent), None)
        if absent is not None:
            plain = f"{c.family} is not an RMSNorm + SwiGLU decoder, which is all this engine computes"
            self.refuse(absent.why or plain)
            return
        if self.row is None:
            self.refuse(self.unknown_to_us(GENERATED))
        if self.family.experts:
            self.refuse(f"{c.num_experts} experts per layer; the format holds dense models")
        if c.head_dim * c.num_heads != c.hidden_size:
            self.refuse(
                f"head size {c.head_dim} is not hidden / heads ({c.hidden_size} / {c.num_heads}), as it must be"
            )

        positions = self.geometry.context * self.geometry.aligned_hidden * F32.size
        most = max(_POSITIONS_FLOOR, _POSITIONS_SHARE * self.index.nbytes)
        if positions > most and not self.options.context:
            self.refuse(
                f"a context of {self.geometry.context:,} makes {positions:,} bytes of zeros for positions that are not "
                f"learned, the model has {self.index.nbytes:,} bytes",
                "--context N sets the context length",
            )

    def refused_type(self, source: DType, slot: Slot) -> str:
        """See :meth:`BumpPlanner.refused_type`."""
        age = age_of(self.options)
        if self.options.engine and source.name in LOADED_BY_V3 and source.name not in age.older:
            return f"the engine of {age.title} has no correct kernel for {source} matrices"
        ok = source.name in LOADED_BY_V3
        return "" if ok else f"the engine loads F32, Q4_K and Q6_K matrices, not {source}"

    def _rotates_pairs(self) -> bool:
        return False  # src/kernels/rope_kernels.c turns (i, i + D/2)

    def _check_types(self, types: Mapping[str, DType]) -> None:
        """Rows of blocks cannot be padded element by element, and the loader wants more for K-quants."""
        g = self.geometry
        if any(dtype.block == _K_QUANT_BLOCK for dtype in types.values()):
            for what, size in (("hidden", g.hidden), ("feed-forward", g.ffn)):
                if size % _K_QUANT_BLOCK:
                    self.refuse(
                        f"{what} size {size} is not a multiple of 256, which the loader wants of K-quants",
                        "--dequantize decodes them to FP32",
                    )
        flat = [n for n in range(self.config.num_layers) if types[f"layer.{n}.wo"].block > 1]
        if flat and g.heads * g.aligned_head != g.aligned_hidden:
            self.refuse(
                f"a quantised wo must have heads x padded head size = hidden, not {g.heads} x {g.aligned_head}",
                "--dequantize decodes them to FP32",
            )
        if any(t.block > 1 and (g.hidden % t.block or g.ffn % t.block) for t in types.values()):
            self.refuse(
                f"hidden {g.hidden} and feed-forward {g.ffn} must be whole blocks", "--dequantize decodes them to FP32"
            )
        who = computed_by([dtype.name for dtype in types.values()], self.numbering)
        self.notes += [who] if who else []

    def _check_rows(self, *, interleaved: bool) -> None:
        if interleaved:
            self.notes.append("Q and K rows are interleaved: every engine of bump 3 rotates split rows")

    def _finish(self, types: Mapping[str, DType], interleaved: bool) -> Plan:
        from ckconv.formats.bump.write3 import Bump3, container

        steps = self.steps(types, interleaved=interleaved)
        kinds = {dtype.name for dtype in self.matrices(types).values()}
        right = () if interleaved else right_of_bump3(kinds, self.numbering)
        self.notes += [said(right)] if right and not K_QUANTS & kinds else []
        layout = "interleaved" if interleaved else "split"
        return Plan(
            self.index,
            "bump",
            3,
            self.options,
            (self.file(steps),),
            tuple(self.left_out),
            notes=tuple(self.notes),
            rope_layout=layout,
            importance=self.importance,
            errors=self.quantised.errors if self.options.quantize else None,
            engines=right,
            contents=partial(container, Bump3(self.config, self.geometry, self.codes(types), layout)),
        )
