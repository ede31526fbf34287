"""The hyper-parameters of a GGUF, as llama.cpp reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ckconv.core.config import PARAMETERS, Fail, ModelConfig, build_config, checked_number, shortest_float32
from ckconv.core.key_kinds import Kind
from ckconv.errors import InputError, UnsupportedError
from ckconv.families.gemma3 import FULL, LOCAL_ROPE_THETA, PERIOD, SLIDING, periodic, scalar_in_gguf
from ckconv.families.gguf_tables import GGUF_KEYS
from ckconv.families.schema import Family
from ckconv.formats.gguf.read import ArrayRef, GgufFile, MetaValue

_NUMBER = next(parameter for parameter in PARAMETERS if not parameter.integer)
_WHOLE = next(parameter for parameter in PARAMETERS if parameter.field == "context_length")


def value_of(metadata: Mapping[str, MetaValue], key: str) -> object:
    """The value under a key, ``None`` where there is none."""
    found = metadata.get(key)
    return found.value if found else None


def keys_of(architecture: str, name: str) -> tuple[str, str]:
    """A hyper-parameter's key: with the architecture's prefix, then without one (files of early converters)."""
    return f"{architecture}.{name}", name


def gguf_config(file: GgufFile, architecture: str, family: Family) -> ModelConfig:
    """Read the hyper-parameters.

    Raises:
        InputError: ``model.config``, a field is missing, absurd, or contradicts another.
        UnsupportedError: ``model.config``, one differs from layer to layer.
    """
    fail = _fail(file)
    values: dict[str, int | float] = {}
    names: dict[str, str] = {}
    for parameter in PARAMETERS:
        names[parameter.field] = f"{architecture}.{parameter.gguf[0]}"
        for key in (key for name in parameter.gguf for key in keys_of(architecture, name)):
            value = value_of(file.metadata, key)
            if value is not None:
                names[parameter.field] = key
                values[parameter.field] = checked_number(key, _uniform(file, key, value), parameter, fail)
                break
    shapes = {tensor.name: tensor.shape for tensor in file.tensors}
    vocab = shapes.get("token_embd.weight", (0,))[0]
    _check_tokens(file, vocab, fail)
    idle = _idle(file, vocab, values, names)
    for field in idle:
        del values[field]
    positions = shapes.get("position_embd.weight", (0,))[0]
    made = build_config(
        family.name,
        family.model_type,
        values,
        names,
        fail,
        vocab_size=vocab or _token_count(file),
        position_rows=positions,
        rope=family.rope,
    )
    made = _classified(file, architecture, _window(file, architecture, made))
    made = replace(made, unread=(*made.unread, *idle.values()))
    return _gemma3(file, made, fail) if family.name == "gemma3" else made


def _idle(file: GgufFile, vocab: int, values: Mapping[str, float], names: Mapping[str, str]) -> dict[str, str]:
    """Fields whose key says nothing here -> the key: llama.cpp counts listed tokens (``llama_vocab::impl::load``)."""
    counted = "vocab_size" in values and values["vocab_size"] != vocab and _token_count(file) > 0
    return {"vocab_size": names["vocab_size"]} if counted else {}


def _window(file: GgufFile, architecture: str, config: ModelConfig) -> ModelConfig:
    """Without the window that llama.cpp does not read for an architecture, unless the context never leaves it."""
    key = GGUF_KEYS[architecture].get("attention.sliding_window")
    read = key is not None and key.kind is Kind.PARAMETER
    if read or not config.sliding_window or config.sliding_window >= config.context_length > 0:
        return config
    return replace(config, sliding_window=None)


def _fail(file: GgufFile) -> Fail:
    return lambda message: InputError("model.config", message, path=file.path)


def _uniform(file: GgufFile, key: str, value: object) -> object:
    """The one value of a per-layer array whose elements are all the same; no family here has others."""
    if not isinstance(value, ArrayRef):
        return value
    elements = value.decode()
    if not elements or any(element != elements[0] for element in elements):
        raise UnsupportedError(
            "model.config", f"{key} differs from layer to layer, which no known architecture does", path=file.path
        )
    return elements[0]


def _token_count(file: GgufFile) -> int:
    tokens = value_of(file.metadata, "tokenizer.ggml.tokens")
    return tokens.count if isinstance(tokens, ArrayRef) else 0


def _check_tokens(file: GgufFile, vocab: int, fail: Any) -> None:
    tokens = _token_count(file)
    if vocab and tokens > vocab:
        raise fail(f"tokenizer.ggml.tokens has {tokens:,} entries, token_embd.weight {vocab:,} rows")


def _classified(file: GgufFile, architecture: str, config: ModelConfig) -> ModelConfig:
    """With the keys that change the computation, those that llama.cpp does not read, and the scaling of RoPE."""
    table, prefix = GGUF_KEYS.get(architecture, {}), f"{architecture}."
    modifiers, unread = [], []
    for name in file.metadata:
        key = table.get(name.removeprefix(prefix))
        if key is None and name.startswith(prefix):
            unread.append(name)
        elif key is not None and key.kind is Kind.MODIFIER:
            value = value_of(file.metadata, name)
            neutral = (getattr(config, key.same_as),) if key.same_as else key.neutral
            if isinstance(value, ArrayRef):
                modifiers.append(f"{name}, an array,")
            elif value not in neutral:
                modifiers.append(f"{name} = {value}")
    scaling, unknown = _rope_scaling(file, architecture, config) if config.rope_theta is not None else (None, "")
    modifiers += [unknown] if unknown else []
    return replace(config, modifiers=tuple(modifiers), unread=tuple(unread), rope_scaling=scaling)


def _rope_scaling(file: GgufFile, architecture: str, config: ModelConfig) -> tuple[dict[str, Any] | None, str]:
    """The scaling in Hugging Face's words, and what of it has none.

    llama.cpp takes a factor without a type for a linear one, ``rope.scale_linear`` where there is no factor, 0 for 1,
    and YaRN without an original context to start from the model's (``load_hparams``).
    """

    def found(name: str) -> tuple[str, object]:
        return next(
            (
                (key, value)
                for key in keys_of(architecture, name)
                if (value := value_of(file.metadata, key)) is not None
            ),
            (f"{architecture}.{name}", None),
        )

    def number(name: str, integer: bool) -> float | None:
        key, value = found(name)
        return None if value is None else checked_number(key, value, _WHOLE if integer else _NUMBER, _fail(file))

    factor = number("rope.scaling.factor", False)
    factor = number("rope.scale_linear", False) if factor is None else factor
    original = number("rope.scaling.original_context_length", True)
    key, kind = found("rope.scaling.type")
    if kind not in (None, "none", "linear", "yarn"):
        return None, f"{key} = {kind}"
    if kind == "none" or factor in (None, 0, 1):
        return None, ""
    scaling: dict[str, Any] = {"rope_type": kind or "linear", "factor": shortest_float32(float(factor or 1))}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = int(original or config.context_length)
    return scaling, ""


def _gemma3(file: GgufFile, config: ModelConfig, fail: Any) -> ModelConfig:
    """With what only Gemma 3 has (``load_arch_hparams`` of llama.cpp's ``src/models/gemma3.cpp``)."""

    def number(name: str, default: float) -> float:
        value = value_of(file.metadata, f"gemma3.{name}")
        found = default if value is None else checked_number(f"gemma3.{name}", value, _NUMBER, fail)
        return shortest_float32(float(found))

    pattern = value_of(file.metadata, "gemma3.attention.sliding_window_pattern")
    return replace(
        config,
        layer_types=_layer_types(pattern, config, fail),
        local_rope_theta=number("rope.freq_base_swa", LOCAL_ROPE_THETA),
        final_cap=number("final_logit_softcapping", 0.0),
        query_scalar=float(scalar_in_gguf(config)),
    )


def _layer_types(pattern: object, config: ModelConfig, fail: Any) -> tuple[str, ...]:
    """A period, or for every layer whether it slides; layers behind the end of a list do not."""
    if not config.sliding_window:
        return periodic(config.num_layers, 1)
    if isinstance(pattern, ArrayRef):
        slides = [bool(item) for item in pattern.decode()[: config.num_layers]]
        slides += [False] * (config.num_layers - len(slides))
        return tuple(SLIDING if item else FULL for item in slides)
    if pattern is None:
        return periodic(config.num_layers, PERIOD)
    if isinstance(pattern, bool) or not isinstance(pattern, int) or pattern < 0:
        raise fail(f"gemma3.attention.sliding_window_pattern must be a whole number or a list, got {pattern!r}")
    return periodic(config.num_layers, pattern)
