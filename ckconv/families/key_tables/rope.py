"""The keys of ``rope_parameters`` and ``rope_scaling``, by ``rope_type``.

Sources: modeling_rope_utils.py of transformers 5.23, which reads every one with its own default, and mlx_lm's
models/rope_utils.py, 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping

from ckconv.core.key_table import TRANSFORMERS, Rows, Table, harmless, modifier, parameters, table

_BASE: Rows = parameters("rope_theta", "rope_type", "type")

#: No other type reads these.
_OF_YARN = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_OF_LLAMA3 = ("high_freq_factor", "low_freq_factor")
_OF_LONGROPE = ("long_factor", "long_mscale", "short_factor", "short_mscale")
_SECTIONS = ("mrope_section", "mrope_interleaved")

_UNREAD = "its function in ROPE_INIT_FUNCTIONS does not read it"

#: A part of the head is turned: the classes of llama's kind then multiply tensors of different sizes.
_WHOLE: Rows = modifier("partial_rotary_factor", 1, 1.0, source="dim = int(head_dim * partial_rotary_factor)")

_CONTEXT = "original_max_position_embeddings"

#: ``rope_type`` -> its keys. ``partial_rotary_factor`` of an unscaled RoPE is read by phi3's class only, which has a
#: key of its own for it.
ROPE_KEYS: Mapping[str, Table] = {
    found.model_type: found
    for found in (
        table(
            "default",
            _BASE,
            parameters("partial_rotary_factor", readers=(TRANSFORMERS,)),
            harmless("factor", _CONTEXT, *_OF_YARN, *_OF_LLAMA3, *_OF_LONGROPE, *_SECTIONS, source=_UNREAD),
        ),
        table(
            "linear",
            _BASE,
            parameters("factor"),
            _WHOLE,
            harmless(_CONTEXT, *_OF_YARN, *_OF_LLAMA3, *_OF_LONGROPE, *_SECTIONS, source=_UNREAD),
        ),
        table(
            "dynamic",
            _BASE,
            parameters("factor"),
            _WHOLE,
            harmless(_CONTEXT, *_OF_YARN, *_OF_LLAMA3, *_OF_LONGROPE, *_SECTIONS, source=_UNREAD),
        ),
        table(
            "llama3",
            _BASE,
            parameters("factor", _CONTEXT, *_OF_LLAMA3),
            _WHOLE,
            harmless(*_OF_YARN, *_OF_LONGROPE, *_SECTIONS, source=_UNREAD),
        ),
        table(
            "yarn",
            _BASE,
            parameters("factor", _CONTEXT, "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
            parameters("attention_factor", readers=(TRANSFORMERS,)),
            modifier("truncate", True, source="find_correction_range of _compute_yarn_parameters"),
            _WHOLE,
            harmless(*_OF_LLAMA3, *_OF_LONGROPE, *_SECTIONS, source=_UNREAD),
        ),
        table(
            "longrope",
            _BASE,
            parameters("factor", _CONTEXT, "attention_factor", "partial_rotary_factor", *_OF_LONGROPE),
            harmless(*(key for key in _OF_YARN if key != "attention_factor"), *_OF_LLAMA3, *_SECTIONS, source=_UNREAD),
        ),
    )
}
