"""The keys of ``rope_parameters`` and ``rope_scaling``, by ``rope_type``.

Sources: modeling_rope_utils.py of transformers 5.23, which reads every one with its own default, and mlx_lm's
models/rope_utils.py, 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping

from ckconv.families.keys import BOTH, TRANSFORMERS, Key, Keys, Kind

Rows = tuple[Key, ...]


def _parameters(*names: str, readers: tuple[str, ...] = BOTH) -> Rows:
    return tuple(Key(name, Kind.PARAMETER, readers) for name in names)


def _harmless(*names: str) -> Rows:
    """Keys that the type's function in ``ROPE_INIT_FUNCTIONS`` does not read."""
    return tuple(Key(name, Kind.HARMLESS) for name in names)


def _modifier(name: str, *neutral: object) -> Rows:
    return (Key(name, Kind.MODIFIER, (TRANSFORMERS,), (*neutral, None)),)


def _keys(kind: str, *rows: Rows) -> Keys:
    return Keys(kind, {key.name: key for group in rows for key in group})


_BASE: Rows = _parameters("rope_theta", "rope_type", "type")

#: No other type reads these.
_OF_YARN = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_OF_LLAMA3 = ("high_freq_factor", "low_freq_factor")
_OF_LONGROPE = ("long_factor", "long_mscale", "short_factor", "short_mscale")
_SECTIONS = ("mrope_section", "mrope_interleaved")

#: A part of the head is rotated, ``dim = int(head_dim * partial_rotary_factor)``: the classes of llama's kind then
#: multiply tensors of different sizes.
_WHOLE: Rows = _modifier("partial_rotary_factor", 1, 1.0)

_CONTEXT = "original_max_position_embeddings"

#: ``rope_type`` -> its keys. ``partial_rotary_factor`` of an unscaled RoPE is read by phi3's class only, which has a
#: key of its own for it.
ROPE_KEYS: Mapping[str, Keys] = {
    found.name: found
    for found in (
        _keys(
            "default",
            _BASE,
            _parameters("partial_rotary_factor", readers=(TRANSFORMERS,)),
            _harmless("factor", _CONTEXT, *_OF_YARN, *_OF_LLAMA3, *_OF_LONGROPE, *_SECTIONS),
        ),
        _keys(
            "linear",
            _BASE,
            _parameters("factor"),
            _WHOLE,
            _harmless(_CONTEXT, *_OF_YARN, *_OF_LLAMA3, *_OF_LONGROPE, *_SECTIONS),
        ),
        _keys(
            "dynamic",
            _BASE,
            _parameters("factor"),
            _WHOLE,
            _harmless(_CONTEXT, *_OF_YARN, *_OF_LLAMA3, *_OF_LONGROPE, *_SECTIONS),
        ),
        _keys(
            "llama3",
            _BASE,
            _parameters("factor", _CONTEXT, *_OF_LLAMA3),
            _WHOLE,
            _harmless(*_OF_YARN, *_OF_LONGROPE, *_SECTIONS),
        ),
        _keys(
            "yarn",
            _BASE,
            _parameters(
                "factor", _CONTEXT, "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "llama_4_scaling_beta"
            ),
            _parameters("attention_factor", readers=(TRANSFORMERS,)),
            _modifier("truncate", True),  # find_correction_range of _compute_yarn_parameters
            _WHOLE,
            _harmless(*_OF_LLAMA3, *_OF_LONGROPE, *_SECTIONS),
        ),
        _keys(
            "longrope",
            _BASE,
            _parameters(_CONTEXT, *_OF_LONGROPE),
            _WHOLE,
            _parameters("factor", "attention_factor", readers=(TRANSFORMERS,)),
            _harmless(*(key for key in _OF_YARN if key != "attention_factor"), *_OF_LLAMA3, *_SECTIONS),
        ),
    )
}
