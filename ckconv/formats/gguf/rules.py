"""What llama.cpp loads and computes: which tensors of a family it looks for, and what it does not do.

A tensor that llama.cpp does not look for stops it from loading a file ("wrong number of tensors"), a missing one too.
Source: ``load_arch_tensors`` and ``load_arch_hparams`` of the files in llama.cpp's ``src/models``; what may be there
besides was found by loading files that have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckconv.core.config import ModelConfig, window_words
from ckconv.core.rope import LLAMA3_NUMBERS, MAX_FLOAT32, MIN_FLOAT32, positive_numbers, scaled, starts_behind
from ckconv.families.catalogue import FAMILIES
from ckconv.families.gemma3 import SLIDING, layers_of, local_theta_of, scalar_in_gguf, scalar_of
from ckconv.families.gguf_metadata import own_document
from ckconv.families.key_tables.fields import HEAD_SIZE, said
from ckconv.families.key_tables.rope import ROPE_KEYS
from ckconv.families.presence import always, loaded
from ckconv.families.schema import Family
from ckconv.plan.planner import HEAD, ROPE_FREQUENCIES
from ckconv.plan.steps import Reason

#: Its row in the family files.
LLAMA_CPP = "llama_cpp"

#: Keys of a YaRN scaling that are said in GGUF or say what llama.cpp does anyway.
_YARN_KEYS = frozenset({"rope_type", "type", "factor", "original_max_position_embeddings", "rope_theta"})

#: Numbers of a YaRN scaling that llama.cpp takes for these, whatever ``rope.scaling.yarn_beta_fast`` and ``_slow`` say:
#: it reads those two keys for other architectures only (v0.5.0; found by loading files that have them).
_YARN_FIXED: Mapping[str, float] = {"beta_fast": 32.0, "beta_slow": 1.0}


def known_patterns(family: Family) -> frozenset[str]:
    """Every canonical pattern that llama.cpp loads for a family."""
    return always(family, "gguf") | loaded(family, LLAMA_CPP) | {HEAD}


def required_patterns(family: Family) -> frozenset[str]:
    """Canonical patterns of tensors without which it does not load a model of the family."""
    return always(family, "gguf") - loaded(family, LLAMA_CPP)


def engine_reasons(config: ModelConfig, context: int, *, rope_dropped: bool) -> Iterator[Reason]:
    """Why llama.cpp would compute something else than the source's configuration says.

    Args:
        context: context length in the output.
        rope_dropped: a flag leaves Llama 3's scaling out.
    """
    family = FAMILIES[config.family]
    own = own_document(config)
    for modifier in config.modifiers:
        yield Reason(f"{modifier} changes the computation, and llama.cpp computes {family.gguf} without it")
    if config.rope_scaling is not None and not starts_behind(config.rope_scaling, config, context):
        yield from _scaling_reasons(config, config.rope_scaling, rope_dropped)
    if family.rope and config.head_dim % 2:
        yield Reason(f"heads of {config.head_dim} elements cannot form RoPE pairs{said(config, *HEAD_SIZE)}")
    if family.rope and config.rotary_dim != config.head_dim and family.name != "phi3":
        yield Reason(f"RoPE turns {config.rotary_dim} of {config.head_dim} elements of a head; llama.cpp turns all")
    for what, number in (("rope_theta", config.rope_theta), ("the epsilon of norms", config.norm_eps or None)):
        if number is not None and not MIN_FLOAT32 <= number <= MAX_FLOAT32:
            yield Reason(f"{what}{_named(config, what)} is {number:g}, which no float32 holds")
    if not config.norm_eps:
        yield Reason(f"the source names no epsilon for its norms{_named(config, 'the epsilon of norms')}")
    if not context:
        yield Reason("the source names no context length (max_position_embeddings)", "--context N sets one")
    if family.name == "gemma3":
        yield from _gemma3_reasons(config)
    elif config.sliding_window and config.sliding_window < context:
        yield Reason(
            f"attention slides over {config.sliding_window:,} tokens ({window_words(config)}), "
            f"llama.cpp attends to all {context:,}",
            f"--context {config.sliding_window} makes them the same",
        )
    if family.name == "qwen3moe" and config.raw and own.get("norm_topk_prob") is not True:
        yield Reason("the weights of the chosen experts are not renormalised (norm_topk_prob), which llama.cpp does")


def _named(config: ModelConfig, what: str) -> str:
    if what == "rope_theta" or not config.raw:
        return ""
    return " (layer_norm_epsilon)" if config.family == "gpt2" else " (rms_norm_eps)"


def _scaling_reasons(config: ModelConfig, scaling: Mapping[str, Any], dropped: bool) -> Iterator[Reason]:
    kind = str(scaling.get("rope_type"))
    if kind == "llama3":
        if dropped:
            return
        if ROPE_FREQUENCIES not in known_patterns(FAMILIES[config.family]):
            yield Reason(f"{scaled(kind, config)}, which llama.cpp does not do for {FAMILIES[config.family].gguf}")
        elif positive_numbers(scaling, LLAMA3_NUMBERS) is None:
            yield Reason(f"{scaled(kind, config)} and lacks one of its numbers: " + ", ".join(LLAMA3_NUMBERS))
        return
    if kind not in ("linear", "yarn"):
        hint = f"--context {config.context_length} is where it starts" if kind == "dynamic" else ""
        yield Reason(f"{scaled(kind, config)}, which this version does not write to GGUF", hint)
        return
    if positive_numbers(scaling, ("factor",)) is None:
        yield Reason(f"{scaled(kind, config)} and names no factor")
    if kind == "yarn":
        known, read = _YARN_KEYS | _YARN_FIXED.keys(), ROPE_KEYS["yarn"]
        for key in sorted(key for key in scaling if key not in known and not read.idle(key, scaling[key])):
            yield Reason(f"{scaled(kind, config)} with {key} = {scaling[key]!r}, which has no key in GGUF")
        given = [key for key in (*_YARN_FIXED, "original_max_position_embeddings") if scaling.get(key) is not None]
        if positive_numbers(scaling, tuple(given)) is None:
            yield Reason(f"{scaled(kind, config)} with numbers that are none: " + ", ".join(given))
            return
        for key, fixed in _YARN_FIXED.items():
            if scaling.get(key) not in (None, fixed):
                family = FAMILIES[config.family].gguf
                yield Reason(f"{scaled(kind, config)} with {key} = {scaling[key]!r}, llama.cpp's {family} {fixed:g}")


def _gemma3_reasons(config: ModelConfig) -> Iterator[Reason]:
    if config.sliding_window is None and SLIDING in layers_of(config):
        yield Reason("the source names no sliding window, which every other part of gemma3 depends on")
    scalar, taken = scalar_of(config), scalar_in_gguf(config)
    if scalar != taken:
        also = f" for {config.num_layers} layers" if taken != config.head_dim else ", the size of a head"
        yield Reason(f"query_pre_attn_scalar = {scalar:g}, llama.cpp takes {taken:g}{also}")
    numbers = {"rope_local_base_freq": local_theta_of(config), "final_logit_softcapping": config.final_cap or 0.0}
    for name, number in numbers.items():
        if number > MAX_FLOAT32:
            yield Reason(f"{name} is {number:g}, which no float32 holds")
