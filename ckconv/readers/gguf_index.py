"""A GGUF's header -> the canonical index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckconv.errors import InputError, UnsupportedError
from ckconv.formats.adapters import GGUF_KIND
from ckconv.model.architectures import Canonical, Family, canonicalise_gguf, family_of_gguf
from ckconv.model.config import (
    GGUF_MODIFIERS,
    PARAMETERS,
    ModelConfig,
    build_config,
    checked_number,
    shortest_float32,
)
from ckconv.model.gemma3 import FULL, LOCAL_ROPE_THETA, PERIOD, SLIDING, periodic, scalar_in_gguf
from ckconv.model.index import TensorIndex
from ckconv.model.names import GGUF_NAMES
from ckconv.readers.bytesource import ByteSource
from ckconv.readers.gguf import ArrayRef, GgufFile, MetaValue, read_gguf

if TYPE_CHECKING:
    from ckconv.readers.adapter_base import Opener

_NUMBER = next(parameter for parameter in PARAMETERS if not parameter.integer)


def open_gguf(
    path: Path, *, source: ByteSource | None = None, opener: Opener | None = None, base: Path | None = None
) -> TensorIndex:
    """Read the header of a GGUF (all shards of a split set) and apply its family's rules.

    Args:
        opener: opens an adapter's ``base`` model.

    Raises:
        InputError: the file is malformed (``gguf.*``) or contradicts itself (``model.config``).
    """
    file = read_gguf(path, source=source)
    if _value(file.metadata, "general.type") == GGUF_KIND:
        from ckconv.readers.gguf_adapter import gguf_adapter

        return gguf_adapter(file, path, opener=opener or open_gguf, base=base)
    return index_gguf(path, file)


def index_gguf(path: Path, file: GgufFile) -> TensorIndex:
    """The index of headers that were read.

    Raises:
        InputError: ``model.config``, they contradict themselves.
    """
    architecture = str(_value(file.metadata, "general.architecture") or "")
    kind = str(_value(file.metadata, "general.type") or "model")
    family = _family(file, architecture) if kind == "model" else None
    config = _config(file, architecture, family) if family else None
    canonical = Canonical({}, {}, (), file.tensors)
    if family and config:
        canonical = canonicalise_gguf(file.tensors, family, config, GGUF_NAMES)
    return TensorIndex(
        format="gguf",
        version=file.version,
        path=path,
        files=file.files,
        architecture=architecture,
        config=config,
        stored=file.tensors,
        tensors=canonical.tensors,
        canonical_of=canonical.canonical_of,
        dropped=canonical.dropped,
        unknown=canonical.unknown,
        metadata=file.metadata,
        facts=_facts(file, kind),
    )


def _facts(file: GgufFile, kind: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": kind, "alignment": file.alignment, "data_offset": file.data_offset}
    if len(file.files) > 1:
        facts["shards"] = len(file.files)
    return facts


def _value(metadata: Mapping[str, MetaValue], key: str) -> object:
    found = metadata.get(key)
    return found.value if found else None


def _keys(architecture: str, name: str) -> tuple[str, str]:
    """A hyper-parameter's key: with the architecture's prefix, then without one (files of early converters)."""
    return f"{architecture}.{name}", name


def _family(file: GgufFile, architecture: str) -> Family | None:
    experts = next((v for key in _keys(architecture, "expert_count") if (v := _value(file.metadata, key))), 0)
    return family_of_gguf(architecture, experts if isinstance(experts, int) else 0)


def _config(file: GgufFile, architecture: str, family: Family) -> ModelConfig:
    def fail(message: str) -> InputError:
        return InputError("model.config", message, path=file.path)

    values: dict[str, int | float] = {}
    names: dict[str, str] = {}
    for parameter in PARAMETERS:
        names[parameter.field] = f"{architecture}.{parameter.gguf[0]}"
        for key in (key for name in parameter.gguf for key in _keys(architecture, name)):
            value = _value(file.metadata, key)
            if value is not None:
                names[parameter.field] = key
                values[parameter.field] = checked_number(key, _uniform(file, key, value), parameter, fail)
                break
    shapes = {tensor.name: tensor.shape for tensor in file.tensors}
    vocab = shapes.get("token_embd.weight", (0,))[0]
    _check_tokens(file, vocab, fail)
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
        modifiers=_modifiers(file, architecture),
    )
    return _gemma3(file, made, fail) if family.name == "gemma3" else made


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
    tokens = _value(file.metadata, "tokenizer.ggml.tokens")
    return tokens.count if isinstance(tokens, ArrayRef) else 0


def _check_tokens(file: GgufFile, vocab: int, fail: Any) -> None:
    tokens = _token_count(file)
    if tokens and vocab and tokens != vocab:
        raise fail(f"tokenizer.ggml.tokens has {tokens:,} entries, token_embd.weight {vocab:,} rows")


def _modifiers(file: GgufFile, architecture: str) -> tuple[str, ...]:
    """Keys that change the computation, with a value that does."""
    found = []
    for name, harmless in GGUF_MODIFIERS.items():
        for key in _keys(architecture, name):
            value = _value(file.metadata, key)
            if value is not None and not isinstance(value, ArrayRef) and value not in harmless:
                found.append(f"{key} = {value}")
    key_length, value_length = (
        next((v for key in _keys(architecture, name) if (v := _value(file.metadata, key)) is not None), None)
        for name in ("attention.key_length", "attention.value_length")
    )
    if value_length is not None and key_length is not None and key_length != value_length:
        found.append(f"{architecture}.attention.value_length = {value_length}")
    return tuple(found)


def _gemma3(file: GgufFile, config: ModelConfig, fail: Any) -> ModelConfig:
    """With what only Gemma 3 has (``load_arch_hparams`` of llama.cpp's ``src/models/gemma3.cpp``)."""

    def number(name: str, default: float) -> float:
        value = _value(file.metadata, f"gemma3.{name}")
        found = default if value is None else checked_number(f"gemma3.{name}", value, _NUMBER, fail)
        return shortest_float32(float(found))

    pattern = _value(file.metadata, "gemma3.attention.sliding_window_pattern")
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
