"""Which values transformers' configuration classes take: they check the types of their fields, and load nothing else.

Source: the annotations of the classes of transformers 5.23 and what ``@strict`` of huggingface_hub does with them: a
float is no whole number, true is no number, a list holds what it says. A key that is in no row takes everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ckconv.families.catalogue import family_of_model_type

Accepts = Callable[[Any], bool]


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return isinstance(value, float)


def _number(value: Any) -> bool:
    return _count(value) or _real(value)


def _word(value: Any) -> bool:
    return isinstance(value, str)


def _share(value: Any) -> bool:
    """``initializer_range`` of a llama."""
    return _real(value) and 0 <= value <= 1


def _listed(value: Any) -> bool:
    return isinstance(value, list) and all(map(_count, value))


def _ids(value: Any) -> bool:
    return _count(value) or _listed(value)


def _labels(value: Any) -> bool:
    """``id2label``, whose keys are made whole numbers (``PreTrainedConfig.__post_init__``)."""
    return isinstance(value, dict) and all(key.isdecimal() and _word(name) for key, name in value.items())


def _type(value: Any) -> bool:
    """``dtype``: an attribute of torch (``PreTrainedConfig.__post_init__``)."""
    return value in ("float64", "float32", "float16", "bfloat16")


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _factored(value: Any) -> bool:
    """Lists of factors only for the type that they are of: ``Phi3Config.validate_rope`` counts them for any type."""
    if not isinstance(value, dict):
        return False
    kind = value.get("rope_type", value.get("type"))
    return kind == "longrope" or value.get("long_factor") is None is value.get("short_factor")


def _nothing(value: Any) -> bool:
    """A property, which cannot be set."""
    return False


def _or_null(accepts: Accepts) -> Accepts:
    return lambda value: value is None or accepts(value)


def _rows(accepts: Accepts, *names: str) -> Mapping[str, Accepts]:
    return dict.fromkeys(names, accepts)


#: Key -> what a class takes. Where classes differ, the row is for most of them, and :data:`_OWN` has the others.
TYPES: Mapping[str, Accepts] = {
    **_rows(
        _flag, "attention_bias", "mlp_bias", "norm_topk_prob", "output_router_logits", "reorder_and_upcast_attn",
        "scale_attn_by_inverse_layer_idx", "scale_attn_weights", "summary_proj_to_labels", "summary_use_proj",
        "tie_word_embeddings", "use_cache", "use_sliding_window",
        "apply_spec_augment", "scale_embedding", "use_weighted_layer_sum",
    ),
    **_rows(_or_null(_flag), "use_bidirectional_attention"),
    **_rows(
        _count, "decoder_sparse_step", "hidden_size", "intermediate_size", "max_position_embeddings",
        "max_window_layers", "moe_intermediate_size", "n_embd", "n_head", "n_layer", "n_positions",
        "num_attention_heads", "num_experts_per_tok", "num_hidden_layers", "num_labels",
        "original_max_position_embeddings", "query_pre_attn_scalar", "vocab_size",
        "classifier_proj_size", "d_model", "decoder_attention_heads", "decoder_ffn_dim", "decoder_layers",
        "decoder_start_token_id", "encoder_attention_heads", "encoder_ffn_dim", "encoder_layers",
        "mask_feature_length", "mask_feature_min_masks", "mask_time_length", "mask_time_min_masks",
        "max_source_positions", "max_target_positions", "median_filter_width", "num_mel_bins",
    ),
    **_rows(
        _or_null(_count), "bos_token_id", "head_dim", "n_inner", "num_key_value_heads", "pad_token_id",
        "pretraining_tp", "sliding_window",
    ),
    **_rows(_or_null(_ids), "eos_token_id"),
    **_rows(_or_null(_listed), "begin_suppress_tokens", "mlp_only_layers", "suppress_tokens"),
    **_rows(
        _number, "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_first_dropout",
        "activation_dropout", "decoder_layerdrop", "dropout", "encoder_layerdrop", "mask_feature_prob",
        "mask_time_prob",
    ),
    **_rows(
        _real, "init_std", "layer_norm_epsilon", "rms_norm_eps", "router_aux_loss_coef", "router_jitter_noise",
    ),
    **_rows(_or_null(_real), "attn_logit_softcapping", "final_logit_softcapping"),
    **_rows(_share, "initializer_range"),
    **_rows(_word, "activation_function", "hidden_act", "hidden_activation", "summary_type"),
    **_rows(_or_null(_word), "summary_activation"),
    **_rows(_or_null(_type), "dtype", "torch_dtype"),
    **_rows(_or_null(_labels), "id2label"),
    **_rows(_or_null(_object), "rope_parameters", "rope_scaling"),
    **_rows(_nothing, "is_heterogeneous", "per_layer_attributes", "use_return_dict"),
}  # fmt: skip

#: ``model_type`` -> the rows of its class.
_OWN: Mapping[str, Mapping[str, Accepts]] = {
    "llama": _rows(_or_null(_number), "attention_dropout"),
    "mistral": _rows(_count, "num_key_value_heads"),
    "mixtral": _rows(_count, "num_key_value_heads", "num_local_experts"),
    "qwen3": _rows(_count, "head_dim"),
    "qwen3_moe": _rows(_count, "num_experts", "num_key_value_heads"),
    "gemma3_text": {
        **_rows(_count, "head_dim", "num_key_value_heads"),
        **_rows(_or_null(_number), "attention_dropout"),
    },
    "gemma2": {**_rows(_count, "head_dim", "num_key_value_heads"), **_rows(_or_null(_number), "attention_dropout")},
    "phi3": {
        **_rows(_number, "partial_rotary_factor"),
        **_rows(_or_null(_factored), "rope_parameters", "rope_scaling"),
    },
    # Its positions are learned, and its class checks a scaling of RoPE that it does not read.
    "gpt2": {**_rows(_flag, "add_cross_attention"), **_rows(_or_null(_nothing), "rope_parameters", "rope_scaling")},
    "whisper": _rows(_flag, "is_encoder_decoder"),
}

#: Keys that list something for every layer, whichever class it is (``PreTrainedConfig.validate_layer_type``).
_LAYERS: Mapping[str, frozenset[str]] = {
    "layer_types": frozenset({
        "full_attention", "sliding_attention", "chunked_attention", "window_attention", "indexed_attention",
        "compressed_sparse_attention", "heavily_compressed_attention", "minimax_m3_sparse", "conv", "moe", "hybrid",
        "hybrid_sliding", "reference_sliding_attention", "linear_attention",
    }),
    "mlp_layer_types": frozenset({"sparse", "dense"}),
}  # fmt: skip

#: Model types whose hidden size has to be a multiple of the number of heads (``validate_architecture``).
_WHOLE_HEADS = frozenset({"llama", "gemma3_text"})


def misfits(document: Mapping[str, Any], model_type: str) -> list[str]:
    """Keys whose values the class of transformers does not take."""
    own = {**TYPES, **_of_rows(model_type), **_OWN.get(model_type, {})}
    found = [key for key, value in document.items() if key in own and not own[key](value)]
    layers = document.get("num_hidden_layers", document.get("n_layer"))
    found += [key for key in _LAYERS if document.get(key) is not None and not _lists(key, document[key], layers)]
    hidden, heads = document.get("hidden_size"), document.get("num_attention_heads")
    if model_type in _WHOLE_HEADS and _count(hidden) and _count(heads) and (not heads or hidden % heads):
        found.append("num_attention_heads")
    return found


def _of_rows(model_type: str) -> dict[str, Accepts]:
    """Numbers that only the family's own file knows; of a class's field that may be null nothing is said."""
    family = family_of_model_type(model_type)
    names = [name for name in family.own if not family.parameters[name].optional] if family else []
    rows = [family.parameters[name] for name in names if family]
    return {cell.key: _number for row in rows if row.kind == "f32" for cell in row.key_cells("hf")}


def _lists(key: str, kinds: Any, layers: Any) -> bool:
    known = isinstance(kinds, list) and all(isinstance(kind, str) and kind in _LAYERS[key] for kind in kinds)
    return known and layers in (None, len(kinds))
