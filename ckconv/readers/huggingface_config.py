"""A Hugging Face ``config.json``, in the style of transformers 4 or 5, -> ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckconv.errors import InputError
from ckconv.model.architectures import FAMILIES, Family, family_of_model_type
from ckconv.model.config import (
    DEFAULT_ROPE_THETA,
    PARAMETERS,
    ModelConfig,
    build_config,
    checked_number,
    shortest_float32,
)
from ckconv.model.gemma3 import FULL, LOCAL_ROPE_THETA, PERIOD, SLIDING, periodic
from ckconv.model.huggingface_defaults import DEFAULTS, GEMMA3_ATTENTION_SCALAR
from ckconv.model.index import StoredTensor

_BY_FIELD = {parameter.field: parameter for parameter in PARAMETERS}

_Modifiers = dict[str, tuple[object, ...]]

#: Keys that change the computation of a decoder with RMSNorm and SwiGLU, each with the values that change nothing.
_MODIFIERS: _Modifiers = {
    "attn_logit_softcapping": (None, 0),
    "final_logit_softcapping": (None, 0),
    "logit_scale": (None, 1, 1.0),
    "residual_multiplier": (None, 1, 1.0),
    "embedding_multiplier": (None, 1, 1.0),
    "attention_multiplier": (None, 1, 1.0),
    "scale_attn_by_inverse_layer_idx": (None, False),
    "use_bidirectional_attention": (None, False),
    "logits_scaling": (None, 1, 1.0),
    "hidden_act": (None, "silu", "swish"),
}

#: Families whose classes read other keys.
_OWN_MODIFIERS: dict[str, _Modifiers] = {
    "gemma3": {
        **{key: ok for key, ok in _MODIFIERS.items() if key not in ("hidden_act", "final_logit_softcapping")},
        "hidden_activation": (None, "gelu_pytorch_tanh"),
    },
    "gpt2": {
        "activation_function": (None, "gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (None, True),
        "scale_attn_by_inverse_layer_idx": (None, False),
    },
    "whisper": {"activation_function": (None, "gelu"), "scale_embedding": (None, False)},
}

#: Endings of the names of tables, in every dialect.
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "token_embedding.weight", "token_embd.weight")
_POSITIONS = ("wpe.weight", "decoder.embed_positions.weight", "position_embd.weight")


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The decoder's own part of the configuration of a model of several modalities, else the whole."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


def huggingface_family(config: Mapping[str, Any]) -> Family | None:
    """The family that ``model_type`` names; ``None`` for one without rules."""
    name = family_of_model_type(str(text_config(config).get("model_type", "")))
    return FAMILIES[name] if name else None


def huggingface_config(
    config: Mapping[str, Any], family: Family, stored: tuple[StoredTensor, ...], path: Path
) -> ModelConfig:
    """Read the hyper-parameters.

    Args:
        config: the whole document.
        stored: the tensors, for the rows of the embedding.

    Raises:
        InputError: ``model.config``, a field is missing, absurd, or contradicts another.
    """

    def fail(message: str) -> InputError:
        return InputError("model.config", message, path=path / "config.json" if path.is_dir() else path)

    own = text_config(config)
    values: dict[str, int | float] = {}
    names: dict[str, str] = {}
    for parameter in PARAMETERS:
        keys = (parameter.field,) if not parameter.huggingface else parameter.huggingface
        names[parameter.field] = keys[0]
        for key in parameter.huggingface:
            if own.get(key) is not None:
                names[parameter.field] = key
                values[parameter.field] = checked_number(key, own[key], parameter, fail)
                break
    if family.name == "gpt2" and "ffn_size" not in values and "hidden_size" in values:
        values["ffn_size"] = 4 * values["hidden_size"]  # transformers' meaning of n_inner: null
    rope = _rope(own, fail)
    if rope.get("rope_theta") is not None:
        name = "rope_parameters.rope_theta"
        theta = checked_number(name, rope["rope_theta"], _BY_FIELD["rope_theta"], fail)
        if values.setdefault("rope_theta", theta) != theta:
            raise fail(f"{names['rope_theta']} is {values['rope_theta']:,}, {name} is {theta:,}")
    # A key that is null is not left out: classes take null kv heads for as many as there are heads, and a null window
    # for none.
    for field, default in DEFAULTS.get(str(own.get("model_type", "")), {}).items():
        if not any(key in own for key in _BY_FIELD[field].huggingface):
            values.setdefault(field, default)
    values.setdefault("rope_theta", DEFAULT_ROPE_THETA)
    if own.get("encoder_layers") is not None:
        checked_number("encoder_layers", own["encoder_layers"], _BY_FIELD["num_layers"], fail)
    factor = own.get("partial_rotary_factor", rope.get("partial_rotary_factor"))
    if factor is not None and (isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 1):
        raise fail(f"partial_rotary_factor must be a number above 0 and at most 1, got {factor!r}")
    if factor is not None and factor < 1:
        head = values.get("head_dim") or values.get("hidden_size", 0) / max(values.get("num_heads", 1), 1)
        values["rotary_dim"] = int(head * factor)
    if not own.get("use_sliding_window", not family.name.startswith("qwen")):
        values.pop("sliding_window", None)
    tied = own.get("tie_word_embeddings")  # classes and libraries differ in what its absence means
    if tied is not None and not isinstance(tied, bool):
        raise fail(f"tie_word_embeddings must be true or false, got {tied!r}")
    made = build_config(
        family.name,
        str(own.get("model_type", "")),
        values,
        names,
        fail,
        vocab_size=_rows(stored, _EMBEDDINGS),
        position_rows=_rows(stored, _POSITIONS),
        rope=family.rope,
        rope_scaling=_scaling(own, rope, fail),
        tied=tied,
        modifiers=_modifiers(own, family),
        raw=config,
    )
    return _gemma3(own, made, fail) if family.name == "gemma3" else made


def _rows(stored: tuple[StoredTensor, ...], endings: tuple[str, ...]) -> int:
    for tensor in stored:
        if tensor.name.endswith(endings) and len(tensor.shape) == 2 and "vision" not in tensor.name:
            return tensor.shape[0]
    return 0


def _rope(own: Mapping[str, Any], fail: Any) -> Mapping[str, Any]:
    """``rope_parameters`` of transformers 5; of gemma 3's two, that of full attention is the model's."""
    parameters = own.get("rope_parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise fail(f"rope_parameters must be an object, got {type(parameters).__name__}")
    full = parameters.get("full_attention")
    return full if isinstance(full, dict) else parameters


def _scaling(own: Mapping[str, Any], rope: Mapping[str, Any], fail: Any) -> Mapping[str, Any] | None:
    """What scales RoPE, from either style; type ``default`` scales nothing, and a factor without a type is one."""
    scaling = own.get("rope_scaling")
    if scaling is not None and not isinstance(scaling, dict):
        raise fail(f"rope_scaling must be an object, got {type(scaling).__name__}")
    for found in (scaling or {}, rope):
        kind = found.get("rope_type", found.get("type"))
        if kind is None and found.get("factor") not in (None, 1):
            kind = "unnamed"
        if kind not in ("default", None):
            return {**found, "rope_type": kind}
    return None


def _modifiers(own: Mapping[str, Any], family: Family) -> tuple[str, ...]:
    table = _OWN_MODIFIERS.get(family.name, _MODIFIERS)
    return tuple(f"{key} = {own[key]!r}" for key, harmless in table.items() if key in own and own[key] not in harmless)


def _gemma3(own: Mapping[str, Any], config: ModelConfig, fail: Any) -> ModelConfig:
    """With what only Gemma 3 has (``Gemma3TextConfig`` of transformers 5)."""

    def number(name: str, value: object, default: float) -> float:
        return default if value is None else float(checked_number(name, value, _BY_FIELD["rope_theta"], fail))

    parameters = own.get("rope_parameters")
    local = parameters.get("sliding_attention") if isinstance(parameters, dict) else None
    base = local.get("rope_theta") if isinstance(local, dict) else None
    base = own.get("rope_local_base_freq") if base is None else base
    return replace(
        config,
        layer_types=_layer_types(own, config.num_layers, fail),
        local_rope_theta=shortest_float32(number("rope_local_base_freq", base, LOCAL_ROPE_THETA) or LOCAL_ROPE_THETA),
        final_cap=number("final_logit_softcapping", own.get("final_logit_softcapping"), 0.0),
        query_scalar=number("query_pre_attn_scalar", own.get("query_pre_attn_scalar"), GEMMA3_ATTENTION_SCALAR),
    )


def _layer_types(own: Mapping[str, Any], layers: int, fail: Any) -> tuple[str, ...]:
    """The class takes the list where there is one; of ``_sliding_window_pattern`` it takes no notice."""
    kinds = own.get("layer_types")
    if kinds is None:
        period = own.get("sliding_window_pattern", PERIOD)
        if isinstance(period, bool) or not isinstance(period, int) or period <= 0:
            raise fail(f"sliding_window_pattern must be a whole number above 0, got {period!r}")
        return periodic(layers, period)
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (SLIDING, FULL) for kind in kinds):
        raise fail(f"layer_types must list {SLIDING} or {FULL} for each of the {layers:,} layers")
    return tuple(kinds)
