"""Planning an MLX directory as mlx-lm loads it: a checkpoint of other names, whose matrices may be quantised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ckconv.core.config import window_words
from ckconv.core.dtypes import DTYPES, F32, DType, Kind
from ckconv.core.tensors import Tensor
from ckconv.families.gemma3 import layers_of, pattern_words, period_of
from ckconv.families.huggingface_classes import CLASSES
from ckconv.families.schema import Family
from ckconv.formats.mlx.rope import rope_reasons
from ckconv.formats.safetensors.checkpoint import DECODE, CheckpointPlanner
from ckconv.plan.pieces import Module
from ckconv.plan.planner import HEAD
from ckconv.quant.mlx import Quantization
from ckconv.quant.triples import triple_of, triple_type


class MlxPlanner(CheckpointPlanner):
    """What mlx-lm's loader and classes want."""

    format = "mlx"
    loader = "mlx-lm"
    dialect = "mlx"
    written_by = "mlx"
    always_index = True

    def _keeps_names(self) -> bool:
        """What is MLX's already is copied; of an unknown architecture nobody knows what mlx-lm would compute."""
        return super()._keeps_names() and (self.config is not None or self.index.format == self.format)

    def _plain_type(self, name: str, source: DType) -> DType:
        dtype = super()._plain_type(name, source)
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
            return tensor.dtype
        from ckconv.quant.superblocks import triple_for

        asked = self.options.dtype
        triple = triple_for(tensor.dtype, F32 if asked in ("engine", "keep") else DTYPES[asked.upper()])
        if triple is None or asked == "keep":
            why = "is no exact MLX quantisation" if triple is None else "is another type in MLX"
            self._fault(f"{tensor.dtype} {why}", DECODE, tensor.source)
            return tensor.dtype
        if not triple.quantization.divides(tensor.shape[-1]):
            self._fault(f"rows are no whole groups of {triple.quantization}", DECODE, tensor.source)
            return tensor.dtype
        return triple_type(triple)

    def _renamed(self) -> list[Module]:
        modules = super()._renamed()
        numbers = {
            triple.number
            for name, dtype in self.types.items()
            if (triple := triple_of(dtype)) and triple.quantization.has_biases and self.tensors[name].dtype is not dtype
        }
        if F32 in numbers:
            self.notes.append("scales and biases are float32, so that MLX computes exactly what the blocks hold")
        elif numbers:
            self.notes.append(
                "with scales and biases of this type MLX rounds every value; with float32 ones it does not"
            )
        return modules

    def _check_class(self, family: Family) -> None:
        """mlx-lm's class computes what the configuration says."""
        super()._check_class(family)
        config = self.config
        assert config is not None
        own = CLASSES.get(family.name)
        if own is None:
            self.notes.append(
                f"ckconv knows no class of mlx-lm for {family.name}: the tensors have the names of Hugging Face"
            )
        if own is None or self.options.names in ("canonical", "gguf"):
            return
        if own.fixed_head and config.head_dim * config.num_heads != config.hidden_size:
            self.refuse(f"mlx-lm's {family.name} takes hidden / heads for the size of a head, not {config.head_dim}")
        if not own.head_of_its_own and HEAD in self.tensors:
            hint = "--tie leaves it out, if it is the embedding" if HEAD in self.index.tensors else ""
            self.refuse(f"mlx-lm's {family.name} has no output head of its own", hint)
        if not config.norm_eps:
            self.refuse("mlx-lm wants an epsilon above 0 for norms (rms_norm_eps, layer_norm_epsilon)")
        if self.rope_scaling:
            self.reasons += rope_reasons(config, self.rope_scaling, own)
        if family.name == "gpt2":
            self._check_gpt2()
        if family.name == "gemma3":
            self._check_gemma3()
            return
        context = self.options.context or config.context_length
        if config.sliding_window and config.sliding_window < context:
            self.refuse(
                f"attention slides over {config.sliding_window:,} tokens ({window_words(config)}), "
                f"mlx-lm attends to all {context:,}",
                f"--context {config.sliding_window} makes them the same",
            )

    def _check_gpt2(self) -> None:
        config = self.config
        assert config is not None
        if config.ffn_size != 4 * config.hidden_size:
            self.refuse(f"mlx-lm's gpt2 has a feed-forward of 4 x hidden, not {config.ffn_size:,}")

    def _check_gemma3(self) -> None:
        """mlx-lm's Gemma 3 has full attention in every nth layer, whatever the configuration lists, and has an nth."""
        config = self.config
        assert config is not None
        if config.final_cap:
            self.refuse(
                f"final_logit_softcapping = {config.final_cap:g} changes the computation; mlx-lm does not know it"
            )
        kinds = layers_of(config)
        period = period_of(kinds)
        keys = pattern_words(self.index.format)
        if period is None:
            self.refuse(f"mlx-lm's gemma3 has full attention in every nth layer, and this model has not ({keys})")
        elif config.num_layers < period:
            self.refuse(f"mlx-lm's gemma3 wants at least {period} layers, one of full attention among them ({keys})")

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
        return {**_entry(common), **{name: _entry(q) for name, q in sorted(found.items()) if q != common}}


def _entry(quantization: Quantization) -> dict[str, Any]:
    return {"group_size": quantization.group_size, "bits": quantization.bits, "mode": quantization.mode}
