"""Planning an MLX directory as mlx-lm loads it: a checkpoint of other names, whose matrices may be quantised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ckconv.core.dtypes import DTYPES, F32, DType, Kind
from ckconv.core.tensors import Tensor
from ckconv.families.loaders import MLX_LM
from ckconv.families.schema import Family
from ckconv.formats.mlx.quantise import asked_of, default_of, quantization_of, type_of
from ckconv.formats.mlx.rope import rope_reasons
from ckconv.formats.safetensors.checkpoint import CheckpointPlanner
from ckconv.formats.safetensors.checkpoint_names import Entry
from ckconv.plan.checks import engine_of
from ckconv.plan.decoding import DECODE, decode_hint
from ckconv.plan.pieces import Module, Piece
from ckconv.plan.quantising import FLOATS, names
from ckconv.plan.steps import Plan
from ckconv.quant.convert import Action, Conversion, decodable, of_values
from ckconv.quant.mlx import Quantization
from ckconv.quant.packed import is_scaled
from ckconv.quant.quantise import Errors, Quantising
from ckconv.quant.triples import triple_of, triple_type


class MlxPlanner(CheckpointPlanner):
    """What mlx-lm's loader and classes want."""

    format = "mlx"
    loader = MLX_LM
    scheme = "mlx"
    written_by = "mlx"
    always_index = True
    library = "mlx"

    def _keeps_names(self) -> bool:
        """What is MLX's already is copied; of an unknown architecture nobody knows what mlx-lm would compute."""
        return (
            not self.options.quantize
            and super()._keeps_names()
            and (self.config is not None or self.index.format == self.format)
        )

    def plain_type(self, name: str, source: DType) -> DType:
        """As for any checkpoint, of the types that mlx loads."""
        dtype = super().plain_type(name, source)
        # Source: ``dtype_from_safetensor_str`` of mlx/io/safetensors.cpp, 0.32.
        if dtype.kind is Kind.OPAQUE or dtype.name == "F64":
            self._fault(f"mlx loads no {dtype} tensors", "--dtype f32" if dtype.name == "F64" else "", name)
        return dtype

    def _block_type(self, tensor: Tensor) -> DType:
        """The triple that holds every number of the blocks.

        Scales and biases are float32 unless another type is asked for: with those MLX computes the values that GGUF
        holds, where with float16 it rounds every one of them.
        """
        if triple_of(tensor.dtype) is not None:
            if self.index.format != self.format and (why := self.unsound(tensor)):
                self._fault(why, "", tensor.source)
            return tensor.dtype
        from ckconv.quant.reexpress import SCATTERED, is_fp8, scattered, triple_for

        asked = self.dtype
        triple = triple_for(tensor.dtype, F32 if asked in ("engine", "keep") else DTYPES[asked.upper()])
        if triple is None or asked == "keep":
            why = f"{tensor.dtype} {'has no exact form in MLX' if triple is None else 'is another type in MLX'}"
            if not decodable(tensor.dtype):
                why = f"ckconv neither decodes {tensor.dtype} nor packs it for MLX"
            self._fault(SCATTERED if scattered(tensor.dtype) else why, decode_hint(tensor.dtype), tensor.source)
            return tensor.dtype
        if is_fp8(tensor.dtype) and (count := self.source.unfit.get(tensor.name, {}).get(triple_type(triple), 0)):
            self._fault("scales are not powers of two, as MLX's mxfp8 wants them", DECODE, tensor.source, count)
            return tensor.dtype
        if is_scaled(tensor.dtype) and (count := self.source.unfit.get(tensor.name, {}).get(triple_type(triple), 0)):
            self._fault(
                "scales times the global scale are not E4M3 numbers, as MLX's nvfp4 wants them",
                DECODE,
                tensor.source,
                count,
            )
            return tensor.dtype
        if not triple.quantization.divides(tensor.shape[-1]):
            self._fault(f"rows are not whole groups of {triple.quantization}", DECODE, tensor.source)
            return tensor.dtype
        return triple_type(triple)

    def _types(self, entries: Sequence[Entry]) -> dict[str, DType]:
        types = super()._types(entries)
        if not self.options.quantize:
            return types
        asked = asked_of(self.options.quantize)
        general = quantization_of(asked.word, self.options.quantize)
        hit: set[str] = set()
        for entry in entries:
            parts = [self.tensors[name] for name in entry.parts]
            word, columns = asked.of(*parts), parts[0].shape[-1] if parts else 0
            module, _, kind = entry.name.rpartition(".")
            if kind != "weight" or entry.missing or len(parts[0].shape) < 2:
                continue
            chosen = default_of(module, self.config.model_type if self.config else "", general, columns)
            if word:
                hit.update(part.name for part in parts)
                chosen = None if word in FLOATS else quantization_of(word, self.options.quantize)
            if chosen is not None and not chosen.divides(columns):
                hint = "" if word else "mlx-lm's class asks for that; --quantize GLOB=TYPE asks for another type"
                self._fault(f"rows of {columns:,} are not whole groups of {chosen}", hint, entry.name)
            for part in parts:
                types[part.name] = self._chosen(part, chosen, FLOATS.get(word))
        for glob, word in asked.rules:
            if not any(names(glob, self.tensors[name]) for name in hit):
                self.refuse(f"--quantize {glob}={word} names no matrix that can be quantised")
        return types

    def _chosen(self, tensor: Tensor, chosen: Quantization | None, plain: DType | None) -> DType:
        """The type of a matrix of the source that is to be quantised so, or to be of a float type."""
        source, asked = tensor.dtype, self.dtype
        same = triple_of(source)
        if same is not None and chosen == same.quantization and not self.decoded(tensor):
            return source
        if source.kind is Kind.BLOCK and not self.decoded(tensor):
            why = f"--quantize rounds floats, and {source} is quantised already"
            self._fault(why, "--dequantize decodes it first", tensor.source)
        number = F32 if source.kind is Kind.BLOCK else source
        number = number if asked == "engine" else DTYPES[asked.upper()]
        if chosen is None:
            return plain or number
        if not chosen.has_biases and number is not source and source.kind is not Kind.BLOCK:
            self._fault(f"{chosen.mode} is made of the source's own values", "leave out --dtype", tensor.source)
        return type_of(chosen, number)

    def _finish(self, modules: Sequence[Module], kept: bool, metadata: Mapping[str, str]) -> Plan:
        errors = Errors()
        if self.options.quantize:
            modules = [tuple(self._told(piece, errors) for piece in module) for module in modules]
        plan = super()._finish(modules, kept, metadata)
        return replace(plan, errors=errors) if self.options.quantize else plan

    def _told(self, piece: Piece, errors: Errors) -> Piece:
        """The piece whose conversions say how far values move, once for all arrays of a module."""
        if piece.conversion is None:
            return piece
        how = Quantising(errors=None if piece.conversion.plane else errors)

        def told(conversion: Conversion, source: Tensor | None) -> Conversion:
            if source is not None and self.decoded(source):
                conversion = of_values(conversion)
            rounds = conversion.quantises or conversion.action is Action.NARROW
            return conversion._replace(quantising=how) if rounds else conversion

        runs = tuple(run._replace(conversion=told(run.conversion, run.tensor)) for run in piece.runs)
        return piece._replace(conversion=told(piece.conversion, piece.source), runs=runs)

    def _renamed(self) -> Sequence[Module]:
        modules = super()._renamed()
        stored = ((self.tensors[name], dtype) for name, dtype in self.types.items())
        self.note_growth((tensor.dtype, dtype) for tensor, dtype in stored if not self.decoded(tensor))
        numbers = {
            triple.number
            for name, dtype in self.types.items()
            if (triple := triple_of(dtype)) and triple.quantization.has_biases and not self._rounded(name, dtype)
        }
        if F32 in numbers:
            self.notes.append("scales and biases are float32, so that MLX computes exactly what the blocks hold")
        elif numbers:
            self.notes.append(
                "with scales and biases of this type MLX rounds every value; with float32 ones it does not"
            )
        return modules

    def _rounded(self, name: str, dtype: DType) -> bool:
        """A tensor's numbers are not those of the source's blocks."""
        source = self.tensors[name]
        return source.dtype is dtype or source.dtype.kind is not Kind.BLOCK or self.decoded(source)

    def _check_class(self, family: Family) -> None:
        """mlx-lm's class computes what the configuration says."""
        super()._check_class(family)
        config = self.config
        assert config is not None
        if self.options.names in ("canonical", "gguf"):
            return
        if "norm_eps" in family.parameters and not config.norm_eps:
            self.refuse("mlx-lm wants an epsilon above 0 for norms (rms_norm_eps, layer_norm_epsilon)")
        row = engine_of(family, MLX_LM)
        if self.rope_scaling and row is not None:
            self.reasons += rope_reasons(config, self.rope_scaling, row)

    def _quantization(self, modules: Sequence[Module]) -> dict[str, Any] | None:
        """The most common quantisation, and by name the modules that have another."""
        found: dict[str, Quantization] = {}
        for piece in (module[0] for module in modules):
            triple = triple_of(piece.module) if piece.module is not None else None
            if triple is not None:
                found[piece.name.removesuffix(".weight")] = triple.quantization
        if not found:
            return None
        common = Counter(found.values()).most_common(1)[0][0]
        if self.options.quantize:
            common = quantization_of(asked_of(self.options.quantize).word, self.options.quantize)
        return {**_entry(common), **{name: _entry(q) for name, q in sorted(found.items()) if q != common}}


def _entry(quantization: Quantization) -> dict[str, Any]:
    return {"group_size": quantization.group_size, "bits": quantization.bits, "mode": quantization.mode}
