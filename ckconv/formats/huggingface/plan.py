"""Planning a checkpoint as transformers loads it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ckconv.core.dtypes import BF16, DTYPES, F32, DType
from ckconv.core.tensors import GATE_UP, PARTS, QKV, Tensor, parse
from ckconv.errors import counted
from ckconv.families.loaders import TRANSFORMERS
from ckconv.families.names import HF, names_of
from ckconv.formats.huggingface.packing import (
    COMPRESSED,
    MODELOPT,
    arrays_of,
    beside,
    form_of,
    misplaced,
    packed_as,
    quantization_of,
    words_of,
)
from ckconv.formats.safetensors.checkpoint import CheckpointPlanner
from ckconv.formats.safetensors.checkpoint_names import Entry
from ckconv.formats.safetensors.checkpoint_pieces import BLOCKS, module_of, places_of, planes
from ckconv.plan.decoding import DECODE, decode_hint
from ckconv.plan.pieces import Module, Piece
from ckconv.plan.planner import EMBEDDING, HEAD
from ckconv.quant.integers import with_zeros
from ckconv.quant.mlx import Quantization, Triple
from ckconv.quant.packed import DIVISOR, inverse, is_scaled, scheme_of
from ckconv.quant.triples import triple_type

#: Blocks and scales of transformers' ``mxfp4``: the same numbers as ggml's and MLX's.
_MXFP4 = Triple(Quantization("mxfp4", 4, 32), BF16)

#: transformers 5.23 with compressed-tensors 0.20: packed ones end in an AttributeError of qwen3_moe, and of those that
#: are floats ``core_model_loading.convert`` finds none ("Ckpt contains: 0").
_EXPERTS = "transformers makes one tensor of a layer's experts, and does not in a checkpoint that is packed as"

#: Of a triple or a block of Q4_1.
_NO_ZERO = "groups have a bias that is not a code times their scale, so they have no zero point"

#: vLLM's ``process_weights_after_loading`` of NVFP4 (``compressed_tensors_w4a16_nvfp4.py``, ``modelopt.py``): the
#: largest ``weight_global_scale`` or ``weight_scale_2`` of matrices that it computes as one is taken for all of them.
#: SGLang does the same, and nothing else loads ModelOpt's.
_ONE_SCALE = {
    COMPRESSED: "vLLM takes the largest scale of scales of q, k and v, or of gate and up, for all of them: where they "
    "differ, as in {} here, it computes other values; transformers takes each matrix's own",
    MODELOPT: "vLLM and SGLang, which load modelopt, take the largest scale of scales of q, k and v, or of gate and "
    "up, for all of them, and in {} these differ",
}


class HuggingFacePlanner(CheckpointPlanner):
    """What the classes of transformers load."""

    format = "safetensors"
    loader = TRANSFORMERS
    scheme = "hf"
    written_by = "pt"
    always_index = False
    library = "transformers"

    def _keeps_names(self) -> bool:
        """What is laid out so already is copied."""
        said = self.document.get("quantization_config")
        method = said.get("quant_method") if isinstance(said, dict) else None
        return super()._keeps_names() and self.options.pack in ("", method)

    def _floats(self, pieces: Sequence[Piece]) -> frozenset[str]:
        """compressed-tensors unpacks FP4 as bfloat16, and a model has one type of activations."""
        found = super()._floats(pieces)
        forms = [form_of(piece.module) for piece in pieces if piece.module is not None]
        if self.options.pack != COMPRESSED or not any(form.scales for form in forms):
            return found
        if found - {BF16.name}:
            others = "--dtype bf16 stores the others so, too"
            self.notes.append(
                f"transformers computes FP4 of {COMPRESSED} in bfloat16, which config.json says; {others}"
            )
        return frozenset({BF16.name})

    def _renamed(self) -> Sequence[Module]:
        modules = super()._renamed()
        wholes = {
            tuple(module.format(n=parse(name).layer) + ".weight" for module in PARTS[whole])
            for name in self.types
            for whole in (QKV, GATE_UP)
        }
        apart = 0
        for parts in wholes if self.options.pack else ():
            scaled = [self.tensors[name] for name in parts if is_scaled(self.types.get(name, F32))]
            apart += len({number for tensor in scaled for number in self._factors(tensor)}) > 1
        if apart:
            said = _ONE_SCALE[self.options.pack].format(counted(apart, "place"))
            self.refuse(said, DECODE) if self.options.pack == MODELOPT else self.notes.append(said)
        return modules

    def _types(self, entries: Sequence[Entry]) -> dict[str, DType]:
        self._entries = {part: entry for entry in entries for part in entry.parts}
        if self.options.pack and any(entry.expert is not None for entry in entries):
            self.refuse(f"{_EXPERTS} {self.options.pack}", "--dequantize without --pack decodes all matrices")
        return super()._types(entries)

    def _block_type(self, tensor: Tensor) -> DType:
        """Blocks of MXFP4 stay what they are where the family's class has them, others where a flag asks for it."""
        if self.in_blocks(tensor):
            return triple_type(_MXFP4)
        if not self.options.pack:
            return super()._block_type(tensor)
        number = DTYPES[self.dtype.upper()] if self.dtype in ("f16", "bf16") else None
        count, middle = 0, False
        if self.options.pack == COMPRESSED and with_zeros(tensor.dtype):
            count, middle = self.source.zeros.get(tensor.name, (count, middle))
        dtype = packed_as(self.options.pack, tensor, _MXFP4, number, middle=middle)
        why = (_NO_ZERO, DECODE) if count else self._unpackable(tensor, dtype)
        if why:
            self._fault(*why, tensor.source, count)
        return dtype if dtype is not None and not why else tensor.dtype

    def _unpackable(self, tensor: Tensor, dtype: DType | None) -> tuple[str, str] | None:
        """Why the layout that was asked for does not hold a matrix as it is, and what does."""
        layout, entry = self.options.pack, self._entries.get(tensor.name)
        if dtype is None:
            elsewhere = layout != COMPRESSED and packed_as(COMPRESSED, tensor, _MXFP4) is not None
            elsewhere = elsewhere and not (with_zeros(tensor.dtype) and self.source.zeros.get(tensor.name, (0,))[0])
            hint = f"--pack {COMPRESSED} keeps it; {DECODE}" if elsewhere else decode_hint(tensor.dtype)
            return f"{layout} has no type for the numbers of {tensor.dtype}", hint
        if tensor.name == EMBEDDING:
            return f"{layout} packs linear layers, and this is the embedding", DECODE
        if entry is not None and (why := misplaced(entry)):
            return f"{layout} cannot pack it: {why}", DECODE
        if wrong := self.unsound(tensor):
            return wrong, DECODE
        if (many := words_of(dtype)) and math.prod(tensor.shape[:-1]) % many:
            return f"{layout} has zero points of {many} rows in a word, and the rows are no multiple of that", DECODE
        numbers = self._factors(tensor)
        if entry is not None and any(self._factors(self.tensors[part]) != numbers for part in entry.parts):
            return "matrices that are stored as one have scales of scales of their own", DECODE
        inverted = scheme_of(dtype) == DIVISOR or (is_scaled(tensor.dtype) and tensor.dtype is not dtype)
        if inverted and not all(inverse(number) for number in numbers):
            does, better = ("divides", MODELOPT) if layout == COMPRESSED else ("multiplies", COMPRESSED)
            hint = f"--pack {better} writes it as it is; {DECODE}"
            return f"{layout} {does} by the scale of scales, and only a power of two has an exact inverse", hint
        return None

    def _factors(self, tensor: Tensor) -> list[float]:
        """The scale of scales of a matrix, or of each of stacked ones."""
        stacked = tensor.shape[0] if len(tensor.shape) > 2 else 1
        return self.source.factors.get(tensor.name, [math.nan]) if is_scaled(tensor.dtype) else [1.0] * stacked

    def _module(self, entry: Entry, parts: Sequence[Tensor], dtype: DType) -> Module:
        """As of any checkpoint; in the layout of another quantiser where that is asked for."""
        if not self.options.pack or dtype.block == 1 or entry.packed:
            return module_of(entry, parts, dtype)
        shape, layout = places_of(entry, parts, dtype)
        made = planes(entry, parts, layout, dtype, arrays_of(entry.name, shape, dtype))
        return (*made, *beside(entry, shape, dtype, self._factors(parts[0])[0]))

    def in_blocks(self, tensor: Tensor) -> bool:
        """The family's class has the tensor in blocks, and it is of that type."""
        o, pattern = self.options, parse(tensor.name).pattern
        known = self.family is not None and o.names == HF and not o.pack and pattern in names_of(self.family, HF).packed
        return known and tensor.dtype in (triple_type(_MXFP4), DTYPES["MXFP4"]) and not self.decoded(tensor)

    def _quantization(self, modules: Sequence[Module]) -> dict[str, Any] | None:
        if self.options.pack:
            assert self.family is not None
            head = names_of(self.family, HF).written.get(HEAD)
            return quantization_of(self.options.pack, modules, head.pattern if head and self.tied else "")
        packed = {module[0].name.removesuffix(BLOCKS[0]) for module in modules if module[0].module is not None}
        if not packed:
            return None
        dense = (module[0].name for module in modules if module[0].module is None and len(module[0].shape) > 1)
        paths = (name.removesuffix(".weight") for name in dense if name.endswith(".weight"))
        return {"modules_to_not_convert": _outside(paths, packed), "quant_method": "mxfp4"}


def _outside(paths: Iterable[str], packed: Iterable[str]) -> list[str]:
    """The shortest paths that lead to these modules and to none of the packed ones; ``*`` for the layers."""
    above = {start for path in packed for start in _starts(path)}
    return list(dict.fromkeys(next(start for start in _starts(path) if start not in above) for path in paths))


def _starts(path: str) -> list[str]:
    words = ["*" if word.isdecimal() else word for word in path.split(".")]
    return [".".join(words[:depth]) for depth in range(1, len(words) + 1)]
