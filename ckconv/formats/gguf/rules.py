"""What llama.cpp loads and computes: which tensors of a family it looks for, and what it does not do.

A tensor that llama.cpp does not look for stops it from loading a file ("wrong number of tensors"), a missing one too.
Source: ``load_arch_tensors`` and ``load_arch_hparams`` of the files in llama.cpp's ``src/models``; what may be there
besides was found by loading files that have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckconv.core.config import (
    LLAMA3_NUMBERS,
    MAX_FLOAT32,
    MIN_FLOAT32,
    ModelConfig,
    positive_numbers,
    scaled,
    starts_behind,
)
from ckconv.families.catalogue import FAMILIES
from ckconv.families.loaders import LLAMA_CPP
from ckconv.families.presence import conditional, everywhere, loaded, required
from ckconv.families.rope_keys import ROPE_KEYS
from ckconv.families.words import HEAD_SIZE, said
from ckconv.plan.checks import modifier_reason, row_reasons
from ckconv.plan.planner import HEAD, ROPE_FREQUENCIES
from ckconv.plan.steps import Reason

#: Of vectors of other types: ggml/src/ggml-cpu/binary-ops.cpp, ``binary_op``, "unsupported types".
ABORTS = "llama.cpp computes with vectors of FP32 only: it loads this file, and aborts when it computes"

#: Keys of a YaRN scaling that are said in GGUF or say what llama.cpp does anyway.
_YARN_KEYS = frozenset({"rope_type", "type", "factor", "original_max_position_embeddings", "rope_theta"})

#: Numbers of a YaRN scaling that llama.cpp takes for these, whatever ``rope.scaling.yarn_beta_fast`` and ``_slow`` say:
#: it reads those two keys for other architectures only (v0.5.0; found by loading files that have them).
_YARN_FIXED: Mapping[str, float] = {"beta_fast": 32.0, "beta_slow": 1.0}


def known_patterns(config: ModelConfig) -> frozenset[str]:
    """Every canonical pattern that llama.cpp loads of a model."""
    return frozenset(required_layers(config)) | loaded(FAMILIES[config.family], LLAMA_CPP.row) | {HEAD}


def required_layers(config: ModelConfig) -> dict[str, Sequence[int]]:
    """Canonical patterns of tensors without which it does not load a model -> the layers that have them."""
    family = FAMILIES[config.family]
    found = {**everywhere(family, config.scope), **conditional(family, config.scope)}
    wanted = {name: layers for name, layers in found.items() if name not in loaded(family, LLAMA_CPP.row)}
    layers: dict[str, Sequence[int]] = dict.fromkeys(required(family, LLAMA_CPP.row), range(config.num_layers))
    for name in layers:
        weight = (
            f"{name.removesuffix('.bias')}.weight"  # a bias is where its weight is, a weight that is named everywhere
        )
        layers[name] = found.get(weight, layers[name])
    return wanted | layers


def engine_reasons(config: ModelConfig, context: int, *, rope_dropped: bool, tied: bool = True) -> Iterator[Reason]:
    """Why llama.cpp would compute something else than the source's configuration says.

    Args:
        context: context length in the output.
        rope_dropped: a flag leaves Llama 3's scaling out.
        tied: the output has no head of its own.
    """
    family = FAMILIES[config.family]
    for modifier in config.modifiers:
        yield modifier_reason(modifier, f", and llama.cpp computes {family.gguf} without it")
    if config.rope_scaling is not None and not starts_behind(config.rope_scaling, config, context):
        yield from _scaling_reasons(config, config.rope_scaling, rope_dropped)
    if family.rope and config.head_dim % 2:
        yield Reason(f"heads of {config.head_dim} elements cannot form RoPE pairs{said(config, *HEAD_SIZE)}")
    if family.rope and config.rotary_dim != config.head_dim and not family.turns_a_part:
        what = f"RoPE rotates {config.rotary_dim} of {config.head_dim} elements of a head; llama.cpp rotates all"
        yield Reason(what + said(config, "rotary_dim"))
    if config.own.get("causal") is False and config.sliding_window and config.sliding_window < context:
        text = "llama.cpp's window ends before a token, and of one that sees in both ways around it"
        yield Reason(text + said(config, "causal"))
    eps = said(config, "norm_eps")
    for what, number in (("rope_theta", config.rope_theta), (f"the epsilon of norms{eps}", config.norm_eps or None)):
        if number is not None and not MIN_FLOAT32 <= number <= MAX_FLOAT32:
            yield Reason(f"{what} is {number:g}, which float32 cannot hold")
    if not config.norm_eps:
        yield Reason(f"the source names no epsilon for its norms{eps}")
    if not context:
        yield Reason("the source names no context length (max_position_embeddings)", "--context N sets one")
    yield from row_reasons(config, LLAMA_CPP, context=context, tied=tied, format="" if config.raw else "gguf")


def _scaling_reasons(config: ModelConfig, scaling: Mapping[str, Any], dropped: bool) -> Iterator[Reason]:
    kind = str(scaling.get("rope_type"))
    if kind == "llama3":
        if dropped:
            return
        if ROPE_FREQUENCIES not in known_patterns(config):
            yield Reason(f"{scaled(kind, config)}, which llama.cpp does not do for {FAMILIES[config.family].gguf}")
        elif positive_numbers(scaling, LLAMA3_NUMBERS) is None:
            yield Reason(f"{scaled(kind, config)} and lacks one of its numbers: " + ", ".join(LLAMA3_NUMBERS))
        return
    family = FAMILIES[config.family]
    written = {name.removeprefix("rope_") for name, row in family.parameters.items() if row.cells.get("gguf")}
    if "type" not in written:
        yield Reason(f"{scaled(kind, config)}, and ckconv knows no key of llama.cpp's {family.gguf} for it")
        return
    if kind == "longrope" and "long_factor" in written:
        sets = [scaling.get(key) for key in ("long_factor", "short_factor")]
        if any(not isinstance(factors, list) or len(factors) != config.rotary_dim // 2 for factors in sets):
            yield Reason(f"{scaled(kind, config)} and names no {config.rotary_dim // 2} long and short factors")
        return
    if kind not in ("linear", "yarn"):
        hint = f"--context {config.context_length} is where it starts" if kind == "dynamic" else ""
        yield Reason(f"{scaled(kind, config)}, which this version does not write to GGUF", hint)
        return
    if positive_numbers(scaling, ("factor",)) is None:
        yield Reason(f"{scaled(kind, config)} and names no factor")
    if kind == "yarn" and scaling.get("factor", 1) < 1:
        yield Reason(f"{scaled(kind, config)} with factor = {scaling['factor']:g}, which llama.cpp weights differently")
    if kind == "yarn":
        known, read = _YARN_KEYS | _YARN_FIXED.keys() | written | {*family.document.rope.noted}, ROPE_KEYS["yarn"]
        known |= {"mscale", "mscale_all_dim"} if "attention_factor" in written else set()  # it holds what they give
        for key in sorted(key for key in scaling if key not in known and not read.idle(key, scaling[key])):
            yield Reason(
                f"{scaled(kind, config)} with {key} = {scaling[key]!r}, for which llama.cpp's {family.gguf} has no key"
            )
        given = [key for key in (*_YARN_FIXED, "original_max_position_embeddings") if scaling.get(key) is not None]
        if positive_numbers(scaling, tuple(given)) is None:
            yield Reason(f"{scaled(kind, config)} with numbers that are none: " + ", ".join(given))
            return
        for key, fixed in _YARN_FIXED.items():
            if key not in written and scaling.get(key) not in (None, fixed):
                yield Reason(
                    f"{scaled(kind, config)} with {key} = {scaling[key]!r}, llama.cpp's {family.gguf} {fixed:g}"
                )
