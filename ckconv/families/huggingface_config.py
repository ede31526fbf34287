"""A Hugging Face or MLX ``config.json``, as transformers 5 or mlx-lm reads it, -> ModelConfig."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckconv.core.config import (
    FIELD_OF,
    PARAMETERS,
    Fail,
    ModelConfig,
    build_config,
    checked_number,
    shortest_float32,
)
from ckconv.core.key_kinds import Kind
from ckconv.core.key_table import MLX_LM, TRANSFORMERS, Table
from ckconv.core.tensors import StoredTensor
from ckconv.errors import InputError
from ckconv.families.catalogue import family_of_model_type
from ckconv.families.gemma3 import LOCAL_ROPE_THETA
from ckconv.families.huggingface_defaults import DEFAULTS, GEMMA3_ATTENTION_SCALAR, TIED, TIED_BY_TENSORS
from ckconv.families.huggingface_rope import read_rope
from ckconv.families.huggingface_windows import read_windows
from ckconv.families.key_tables import KEYS
from ckconv.families.key_tables.fields import words_of
from ckconv.families.schema import Family

_BY_FIELD = {parameter.field: parameter for parameter in PARAMETERS}

#: Keys that are true or false; classes take null for false.
_SWITCHES = ("attention_bias", "mlp_bias", "norm_topk_prob", "tie_word_embeddings", "use_sliding_window")

_EXPERTS = ("num_local_experts", "num_experts")

#: Endings of the names of tables, in every dialect.
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "token_embedding.weight", "token_embd.weight")
_POSITIONS = ("wpe.weight", "decoder.embed_positions.weight", "position_embd.weight")


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The decoder's own part of the configuration of a model of several modalities, else the whole."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


def huggingface_family(config: Mapping[str, Any]) -> Family | None:
    """The family that ``model_type`` names; ``None`` for one without rules."""
    return family_of_model_type(str(text_config(config).get("model_type", "")))


def huggingface_config(
    config: Mapping[str, Any],
    family: Family,
    stored: tuple[StoredTensor, ...],
    path: Path,
    *,
    consumer: str = TRANSFORMERS,
) -> ModelConfig:
    """Read the hyper-parameters.

    Args:
        config: the whole document.
        stored: the tensors, for the rows of the embedding.
        consumer: whose classes compute the model.

    Raises:
        InputError: ``model.config``, a field is missing, absurd, or contradicts another.
    """

    def fail(message: str) -> InputError:
        return InputError("model.config", message, path=path / "config.json" if path.is_dir() else path)

    own = text_config(config)
    model_type = str(own.get("model_type", ""))
    keys = KEYS.get(model_type, KEYS[family.model_type])
    values, names = _numbers(own, keys, consumer, fail)
    _check_switches(own, keys, fail)
    if family.name == "gpt2" and "hidden_size" in values and "ffn_size" not in values:
        values["ffn_size"] = 4 * values["hidden_size"]  # transformers' meaning of n_inner: null
    # A key that is null is not left out: classes take null kv heads for as many as there are heads, and a null window
    # for none.
    for field, default in DEFAULTS[consumer].get(keys.model_type, {}).items():
        if not any(key in own for key in words_of(field, keys)):
            values.setdefault(field, default)
    if own.get("encoder_layers") is not None:
        checked_number("encoder_layers", own["encoder_layers"], _BY_FIELD["num_layers"], fail)
    modifiers = [f"{key} = {own[key]!r}" for key in keys.active(own, consumer)]
    scaling = None
    unread: tuple[str, ...] = ()
    overruled: tuple[str, ...] = ()
    if family.rope:
        rope = read_rope(own, keys.model_type, consumer, int(values.get("context_length", 0)), fail)
        values["rope_theta"], scaling = rope.theta, rope.scaling
        unread, overruled = rope.unknown, rope.overruled
        modifiers += rope.modifiers
        if keys.model_type == "phi3" and rope.part < 1:
            values["rotary_dim"] = _rotary(values, rope.part, fail)
    size = values.pop("sliding_window", None)
    layers = int(values.get("num_layers", 0))
    windows = read_windows(own, keys.model_type, consumer, None if size is None else int(size), layers, fail)
    if windows.size is not None:
        values["sliding_window"] = windows.size
    if family.experts:
        modifiers += _of_experts(own, values, names, layers, fail)
    made = build_config(
        family.name,
        model_type,
        values,
        names,
        fail,
        vocab_size=_rows(stored, _EMBEDDINGS),
        position_rows=_rows(stored, _POSITIONS),
        rope=family.rope,
        rope_scaling=scaling,
        tied=_tied(own, keys.model_type, consumer),
        modifiers=tuple(modifiers),
        raw=config,
    )
    made = replace(made, own=_sizes(own, family, fail))
    made = replace(made, layer_types=windows.layer_types, unread=(*unknown_keys(config), *unread), overruled=overruled)
    return _gemma3(own, made, consumer, fail) if family.name == "gemma3" else made


def _sizes(document: Mapping[str, Any], family: Family, fail: Fail) -> dict[str, Any]:
    """Numbers that sizes of tensors follow from and that no field of the configuration holds."""
    expressions = (*family.axes.values(), *(stack.count for stack in family.stacks.values()))
    found = {}
    for name in {name for expression in expressions for name in expression.names} - FIELD_OF.keys() - {"n"}:
        keys = [cell.key for cell in family.parameters[name].cells.get("hf", ()) if cell.key]
        for key in (key for key in keys if document.get(key) is not None):
            found[name] = checked_number(key, document[key], _BY_FIELD["hidden_size"], fail)
    return found


def unknown_keys(config: Mapping[str, Any]) -> list[str]:
    """Keys of the document that no class of its family reads, as far as anybody knows."""
    own = text_config(config)
    name = "gemma3" if isinstance(config.get("text_config"), dict) else str(own.get("model_type", ""))
    return KEYS[name].unknown(own) if name in KEYS else []


def _numbers(
    own: Mapping[str, Any], keys: Table, consumer: str, fail: Fail
) -> tuple[dict[str, int | float], dict[str, str]]:
    """Field -> number, and field -> what the document calls it."""
    values: dict[str, int | float] = {}
    names: dict[str, str] = {}
    for parameter in PARAMETERS:
        words = words_of(parameter.field, keys)
        # An older name of a key is read by fewer libraries than its own.
        words.sort(key=lambda word: -len(keys.keys[word].readers))
        names[parameter.field] = (words or [*parameter.huggingface, parameter.field])[0]
        if parameter.field == "rope_theta":
            continue
        for key in words:
            if own.get(key) is None or not keys.reads(key, consumer):
                continue
            number = checked_number(key, own[key], parameter, fail)
            if values.setdefault(parameter.field, number) != number:
                raise fail(f"{names[parameter.field]} is {values[parameter.field]:,}, {key} is {number:,}")
            names[parameter.field] = key
    return values, names


def _check_switches(own: Mapping[str, Any], keys: Table, fail: Fail) -> None:
    for key in _SWITCHES:
        known = keys.keys.get(key)
        if known is None or known.kind is Kind.HARMLESS:
            continue
        if own.get(key) is not None and not isinstance(own[key], bool):
            raise fail(f"{key} must be true or false, got {own[key]!r}")


def _rotary(values: Mapping[str, int | float], part: float, fail: Fail) -> int:
    head = values.get("head_dim") or values.get("hidden_size", 0) / max(values.get("num_heads", 1), 1)
    rotary = int(head * part)
    if rotary < 2 or rotary % 2:
        raise fail(f"partial_rotary_factor is {part}, which turns {rotary} of {head:g} elements of a head, not pairs")
    return rotary


def _of_experts(
    own: Mapping[str, Any], values: Mapping[str, int | float], names: Mapping[str, str], layers: int, fail: Fail
) -> Iterator[str]:
    """Every layer has its experts, as many as are asked for."""
    used, count = int(values.get("experts_used", 0)), int(values.get("num_experts", 0))
    if not 0 < used <= count:
        counted = dict.fromkeys([names["num_experts"], *(key for key in _EXPERTS if key in own)])
        raise fail(f"{names['experts_used']} is {used:,}, {' or '.join(counted)} is {count:,}")
    step, dense = own.get("decoder_sparse_step", 1), own.get("mlp_only_layers") or []
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise fail(f"decoder_sparse_step must be a whole number above 0, got {step!r}")
    if not isinstance(dense, list):
        raise fail(f"mlp_only_layers must be a list, got {dense!r}")
    if own.get("model_type") != "qwen3_moe":
        return
    if step != 1:
        yield f"decoder_sparse_step = {step}"
    if any(layer in dense for layer in range(layers)):
        yield f"mlp_only_layers = {dense!r}"


def _tied(own: Mapping[str, Any], model_type: str, consumer: str) -> bool | None:
    """What the consumer takes for said; ``None`` where it asks the tensors."""
    if consumer == MLX_LM and model_type in TIED_BY_TENSORS:
        return None
    stated = own.get("tie_word_embeddings")
    return model_type in TIED[consumer] if "tie_word_embeddings" not in own else bool(stated)


def _rows(stored: tuple[StoredTensor, ...], endings: tuple[str, ...]) -> int:
    for tensor in stored:
        if tensor.name.endswith(endings) and len(tensor.shape) == 2 and "vision" not in tensor.name:
            return tensor.shape[0]
    return 0


def _gemma3(own: Mapping[str, Any], config: ModelConfig, consumer: str, fail: Fail) -> ModelConfig:
    """With what only Gemma 3 has (``Gemma3TextConfig`` of transformers 5)."""

    def number(name: str, value: object, default: float) -> float:
        return default if value is None else float(checked_number(name, value, _BY_FIELD["rope_theta"], fail))

    base = None
    if consumer == TRANSFORMERS:
        parameters = own.get("rope_parameters")
        local = parameters.get("sliding_attention") if isinstance(parameters, dict) else None
        base = local.get("rope_theta") if isinstance(local, dict) else None
    base = own.get("rope_local_base_freq") if base is None else base
    cap = own.get("final_logit_softcapping") if consumer == TRANSFORMERS else None
    scalar = number("query_pre_attn_scalar", own.get("query_pre_attn_scalar"), GEMMA3_ATTENTION_SCALAR)
    if scalar <= 0:
        raise fail("query_pre_attn_scalar is 0")
    return replace(
        config,
        local_rope_theta=shortest_float32(number("rope_local_base_freq", base, LOCAL_ROPE_THETA) or LOCAL_ROPE_THETA),
        final_cap=number("final_logit_softcapping", cap, 0.0),
        query_scalar=scalar,
    )
