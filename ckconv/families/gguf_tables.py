"""What every ``{arch}.*`` key of a GGUF is to llama.cpp, which computes what a GGUF says: a table an architecture.

A key that is in no table is one that llama.cpp does not read for the architecture: it changes nothing there, and a
report names it. Source of each row: ``load_hparams`` of llama.cpp's ``src/llama-model.cpp`` (every architecture) and
``load_arch_hparams`` of ``src/models/{arch}.cpp``, as recorded by ``scripts/record_gguf_keys.py``; what a row says of
the effect was measured by loading files with such keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ckconv.core.key_kinds import Kind


@dataclass(frozen=True, slots=True)
class Key:
    """One key, without the architecture's prefix.

    Attributes:
        neutral: of a modifier, the values that change nothing.
        same_as: of a modifier, the field of :class:`~ckconv.core.config.ModelConfig` whose value changes nothing.
    """

    name: str
    kind: Kind
    source: str
    neutral: tuple[object, ...] = ()
    same_as: str = ""


Rows = tuple[Key, ...]


def _parameters(source: str, *names: str) -> Rows:
    return tuple(Key(name, Kind.PARAMETER, source) for name in names)


def _harmless(source: str, *names: str) -> Rows:
    return tuple(Key(name, Kind.HARMLESS, source) for name in names)


def _modifier(source: str, name: str, *neutral: object, same_as: str = "") -> Rows:
    return (Key(name, Kind.MODIFIER, source, neutral, same_as),)


def _table(*groups: Iterable[Key]) -> Mapping[str, Key]:
    """Rows by name; a later row takes the place of an earlier one."""
    return {key.name: key for group in groups for key in group}


_LOADER = "load_hparams"
_SCALING = ("rope.scaling.type", "rope.scaling.factor", "rope.scale_linear", "rope.scaling.original_context_length")

_EVERY: Rows = (
    *_parameters(
        _LOADER,
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "expert_count",
        "expert_used_count",
        "rope.dimension_count",
        "rope.freq_base",
        *_SCALING,
    ),
    *_parameters("llama_vocab::impl::load: how many tokens, where no tokenizer lists them", "vocab_size"),
    *_modifier("n_embd_head_v; canonical heads have one size", "attention.value_length", same_as="head_dim"),
    *_modifier("causal_attn", "attention.causal", True),
    *_modifier("n_layer() leaves out so many of the last layers", "nextn_predict_layers", 0),
    *_modifier("build_moe_ffn chooses groups of experts first", "expert_group_count", 0, 1),
    *_modifier("multiplies what RoPE returns, for every type of scaling", "rope.scaling.attn_factor", 1.0),
    *_harmless("counts only beside expert_group_count", "expert_group_used_count"),
    *_harmless("how embeddings are pooled, not the logits", "pooling_type", "embedding_length_out"),
    *_harmless("a classifier's head", "classifier.output_labels", "classifier.pooling_type"),
    *_harmless("printed only", "rope.scaling.finetuned"),
    *_harmless("hunyuan only", "rope.scaling.alpha"),
    *_harmless(
        "layers that slide only, and none does",
        "attention.key_length_swa",
        "attention.value_length_swa",
        "rope.dimension_count_swa",
    ),
)

_RMS: Rows = _parameters("f_norm_rms_eps", "attention.layer_norm_rms_epsilon")

_NO_ROPE: Rows = _harmless(
    "positions are learned: nothing is rotated",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.attn_factor",
    *_SCALING,
)

#: ``general.architecture`` -> key without prefix -> row.
GGUF_KEYS: Mapping[str, Mapping[str, Key]] = {
    "llama": _table(_EVERY, _RMS),
    "qwen2": _table(_EVERY, _RMS),
    "qwen3": _table(_EVERY, _RMS),
    "qwen3moe": _table(_EVERY, _RMS, _parameters("n_ff_exp", "expert_feed_forward_length")),
    "gemma3": _table(
        _EVERY,
        _RMS,
        _parameters("n_swa, load_swa_pattern", "attention.sliding_window", "attention.sliding_window_pattern"),
        _parameters("rope_freq_base_train_swa: the base of layers that slide", "rope.freq_base_swa"),
        _parameters("f_final_logit_softcapping", "final_logit_softcapping"),
        _modifier("heads of layers that slide", "attention.key_length_swa", same_as="head_dim"),
        _modifier("heads of layers that slide", "attention.value_length_swa", same_as="head_dim"),
        _modifier("n_rot of layers that slide", "rope.dimension_count_swa", same_as="rotary_dim"),
    ),
    "phi3": _table(
        _EVERY, _RMS, _harmless("read, and set to 0: llama.cpp's phi3 never slides", "attention.sliding_window")
    ),
    "gpt2": _table(_EVERY, _NO_ROPE, _parameters("f_norm_eps", "attention.layer_norm_epsilon")),
}
