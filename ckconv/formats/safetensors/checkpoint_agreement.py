"""A document that goes from one library's hands into the other's: both must read the same out of it.

transformers and mlx-lm look at different keys and take different defaults, so that a copy can be another model.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckconv.core.config import ModelConfig, config_differences, same_factors_always
from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, UnsupportedError, listed
from ckconv.families.gguf_metadata import own_document
from ckconv.families.huggingface_config import huggingface_config
from ckconv.families.huggingface_types import unaccepted
from ckconv.families.keys import CONSUMERS, MLX_LM, TRANSFORMERS, Kind
from ckconv.families.parameter_rows import ParameterCell
from ckconv.families.schema import Family
from ckconv.families.words import family_of, said, without_noted

#: What the output says otherwise on purpose.
_ON_PURPOSE = ("family", "vocab_size")

#: Scaling that both libraries compute alike. Of ``longrope`` mlx-lm takes the long factors from the first token on,
#: transformers only for sequences longer than the original context.
_ALIKE = frozenset({"linear", "dynamic", "llama3", "yarn"})
_WINDOW = ("sliding_window", "layer_types")


def agreeing(
    document: Mapping[str, Any], config: ModelConfig, built: Mapping[str, Any], target: str, source: str
) -> dict[str, Any]:
    """The document, changed where the target's reader would take it for another model.

    Args:
        config: what the source's reader takes it for.
        built: a document made of ``config`` alone.
        target, source: formats.

    Raises:
        UnsupportedError: ``plan.refused``, no change makes them agree.
    """
    reader, other = CONSUMERS[target], CONSUMERS[source]
    keys = _family(config).document.keys
    ignored = set(keys.misread(document, other, reader))
    made = {key: value for key, value in document.items() if key not in ignored}
    if not _differences(made, config, reader):
        return made
    foreign = {name for name in keys.keys if keys.reads(name, reader) and not keys.reads(name, other)}
    carried = foreign | {name for name, key in keys.keys.items() if key.kind is Kind.PARAMETER}
    made = {key: value for key, value in made.items() if key not in foreign}
    made |= {key: value for key, value in built.items() if key in carried and key != "max_position_embeddings"}
    found = _differences(made, config, reader)
    if found:
        raise UnsupportedError(
            "plan.refused",
            f"{target} cannot hold this model: {reader} would read another configuration out of config.json",
            details=found,
        )
    return made


def fitting(document: Mapping[str, Any], built: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """The document without values that transformers' class does not take: mlx-lm's classes look at no types.

    Args:
        built: a document made of ``config`` alone, with what is there instead.
    """
    made = {**_said_for_null(config, built), **document}
    for key in _unaccepted(document, config):
        if built.get(key):
            made[key] = built[key]
        else:
            del made[key]
    return made


def check_fit(document: Mapping[str, Any], config: ModelConfig) -> None:
    """Raise ``plan.refused`` if transformers' class does not take the document."""
    names = unaccepted(document, str(document.get("model_type")), by_layer=_by_layer(config))
    found = [f"{key} = {reprlib.repr(document[key])}" for key in names]
    if found:
        what = f"transformers' {config.model_type} does not take what config.json would say: {', '.join(found)}"
        raise UnsupportedError("plan.refused", f"safetensors cannot hold this model: {what}")


def unfit_notes(index: TensorIndex, target: str) -> Iterator[str]:
    """What :func:`fitting` takes away, for people.

    Args:
        target: format.
    """
    config = index.config
    if config is None or index.format not in CONSUMERS or index.format == target or CONSUMERS[target] != TRANSFORMERS:
        return
    source = own_document(config)
    names = listed([f"{key} = {reprlib.repr(source[key])}" for key in _unaccepted(source, config)])
    if names:
        yield f"left out of config.json or put right, as transformers does not take it: {', '.join(names)}"


def _differences(document: Mapping[str, Any], config: ModelConfig, consumer: str) -> list[str]:
    family = _family(config)
    kind = (config.rope_scaling or {}).get("rope_type")
    alike = kind is None or kind in _ALIKE or same_factors_always(config.rope_scaling or {})
    if consumer == TRANSFORMERS and not alike:
        where = said(config, "rope_scaling")
        return [f"rope_type is {kind!r}{where}, which is not known to be the same in transformers"]
    try:
        read = huggingface_config(document, family, (), Path("config.json"), consumer=consumer)
    except InputError as error:
        return [error.message]
    # The plan holds a window against the context, and few classes of mlx-lm know one.
    mlx = family.engines.get("mlx_lm")
    windowless = consumer == MLX_LM and mlx is not None and "window" in mlx.ignores
    same = {name: getattr(config, name) for name in (*_ON_PURPOSE, *(_WINDOW if windowless else ()))}
    mine = without_noted(replace(config, modifiers=(), context_length=read.context_length))
    found = config_differences(mine, without_noted(replace(read, **same)), same_words=True)
    return [
        f"{name}{said(config, name)} is {ours!r}, {consumer} reads {theirs!r}" for name, (ours, theirs) in found.items()
    ]


def _unaccepted(document: Mapping[str, Any], config: ModelConfig) -> list[str]:
    return unaccepted(document, _class_of(config), by_layer=_by_layer(config))


def _by_layer(config: ModelConfig) -> bool:
    """RoPE has a table for each kind of layer: by the family's rule, or by keys of its own."""
    tables = (cell.of_rope and cell.key.count(".") > 1 for cell in _cells(config))
    return _family(config).document.rope.by_layer or any(tables)


def _said_for_null(config: ModelConfig, built: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that are said to be null because the class has a default that does not go with this model."""
    return {cell.key: None for cell in _cells(config) if cell.unread and cell.key in built and built[cell.key] is None}


def _cells(config: ModelConfig) -> Iterator[ParameterCell]:
    """What a document says of the family's parameters."""
    return (cell for row in _family(config).parameters.values() for cell in row.key_cells("hf"))


def _class_of(config: ModelConfig) -> str:
    """What transformers calls the class: mlx-lm's may go by the name of another one there."""
    row = _family(config).engines.get("mlx_lm")
    return _family(config).model_type if row is not None and row.model_type else config.model_type


def _family(config: ModelConfig) -> Family:
    family = family_of(config)
    assert family is not None
    return family
