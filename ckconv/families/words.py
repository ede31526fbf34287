"""Source keys of a field, for messages that name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ckconv.core.config import FIELD_OF, ModelConfig, config_differences, worded_fields
from ckconv.errors import an
from ckconv.families.catalog import FAMILIES, families_of_gguf, family_of_model_type
from ckconv.families.expressions import Expression
from ckconv.families.keys import full_key
from ckconv.families.names import names_of
from ckconv.families.schema import Family, TensorRow

#: The fields that the size of a head follows from.
HEAD_SIZE = ("head_dim", "hidden_size", "num_heads")

_PARAMETER_OF = {field: name for name, field in FIELD_OF.items()}


def family_of(config: ModelConfig) -> Family | None:
    """Family file of a model, by its own ``model_type`` or its family."""
    family = FAMILIES.get(config.family)
    if family is not None and config.model_type in family.in_huggingface.names:
        return family
    return family_of_model_type(config.model_type) or family


def document_words(family: Family, field: str) -> list[str]:
    """Keys of a field in a family's configuration."""
    parameter = family.parameters.get(_PARAMETER_OF.get(field, field))
    cells = parameter.key_cells("hf") if parameter else ()
    return [cell.key for cell in cells if not cell.of_rope and not cell.unread]


def written_words(family: Family, field: str) -> list[str]:
    """Keys that the family's class itself uses, without aliases."""
    parameter = family.parameters.get(_PARAMETER_OF.get(field, field))
    cells = parameter.key_cells("hf") if parameter else ()
    own = [cell.key for cell in cells if not cell.of_rope and not cell.alias and not cell.unread]
    return own or document_words(family, field)


def gguf_words(family: Family, field: str) -> list[str]:
    """Keys of a field in a GGUF."""
    parameter = family.parameters.get(_PARAMETER_OF.get(field, field))
    return [full_key(family.gguf, cell.key) for cell in parameter.key_cells("gguf")] if parameter else []


def window_words(config: ModelConfig) -> str:
    """Keys that make layers slide."""
    family = family_of(config) if config.raw else None
    switched = family is not None and "windowed" in family.parameters
    return "sliding_window, use_sliding_window, max_window_layers, layer_types" if switched else "sliding_window"


def said(config: ModelConfig, *fields: str, format: str = "") -> str:
    """`` (num_attention_heads, head_dim)``; empty without a document.

    Args:
        fields: of the configuration, or parameters; ``family`` is what says which class it is of.
    """
    names = dict.fromkeys(name for field in fields for name in keys_said(config, field, format))
    return f" ({', '.join(names)})" if names else ""


def keys_said(config: ModelConfig, field: str, format: str) -> list[str]:
    """Keys of a field in the source."""
    family = family_of(config)
    if family is None or (format == "gguf" and field == "family"):
        return []
    if format == "gguf":
        return gguf_words(family, field)
    if not config.raw:
        return []
    own = {"family": ["model_type"], "rope_scaling": ["rope_scaling", "rope_parameters"]}
    return own.get(field) or document_words(family, field)


def of_class(config: ModelConfig | None) -> str:
    """`` of a llama (model_type)``: class behind a sentence, if named."""
    return f" of {an(config.model_type)} (model_type)" if config is not None and config.raw else ""


def of_source(config: ModelConfig | None, format: str, pattern: str) -> str:
    """:func:`of_class`, with the keys that say which layers have a tensor."""
    if config is None:
        return ""
    if format != "gguf":
        family = family_of(config) if config.raw else None
        keys = _of_layers(family, format, pattern) if family else []
        return of_class(config).replace("(model_type", ", ".join(["(model_type", *keys]))
    family = FAMILIES[config.family]
    others = [other for other in families_of_gguf(family.gguf) if pattern in names_of(other, "gguf").stored]
    keys = [key for other in others if other.in_gguf.condition for key in other.in_gguf.condition.asked]
    of_file = (key[1:] if key.startswith("=") else full_key(family.gguf, key) for key in keys)  # "=" names a tensor
    keys = [*of_file, *_of_layers(family, format, pattern)]
    return f" of {an(family.name)} ({', '.join(dict.fromkeys(keys))})" if keys else ""


def _of_layers(family: Family, format: str, pattern: str) -> list[str]:
    """Keys that say which layers have a tensor, where not all have it."""
    held = names_of(family, format if format in ("gguf", "mlx") else "hf").stored.get(pattern)
    return _keys_of(family, held.parts[0].row, format) if held else []


def _keys_of(family: Family, row: TensorRow, format: str, *switches: Expression | None) -> list[str]:
    """Keys that say which layers have the tensors of a row.

    Args:
        switches: expressions that say whether any has.
    """
    fields = sorted({name for kind in row.layers.names for name in family.layers[kind].names}) if row.layers else []
    fields += sorted({name for switch in switches if switch is not None for name in switch.names} - {*fields})
    words = gguf_words if format == "gguf" else document_words
    return [key for name in fields for key in words(family, name)]


def layers_said(config: ModelConfig, pattern: str, format: str) -> list[str]:
    """Keys that say whether, and in which layers, a model has a tensor."""
    family = family_of(config)
    row = next((row for row in family.tensors.values() if _is_of(row.name, pattern)), None) if family else None
    if family is None or row is None or not (config.raw or format == "gguf"):
        return []
    switches = (row.when, row.bias if pattern.endswith(".bias") else None)
    return list(dict.fromkeys(_keys_of(family, row, format, *switches)))


def _is_of(module: str, pattern: str) -> bool:
    return pattern.startswith(f"{module.replace('L.', 'layers.{n}.', 1)}.")


def tensors_said(config: ModelConfig, *, format: str) -> str:
    """The keys that say which tensors a model has, in brackets."""
    family = family_of(config)
    experts = ("num_experts",) if family is not None and family.experts else ()
    return said(config, "num_layers", *experts, "family", format=format)


def tie_word(config: ModelConfig) -> str:
    """The key that says whether the head is the embedding, or empty."""
    family = family_of(config)
    row = family.parameters.get("tied") if family is not None else None
    words = document_words(family, "tied") if family is not None else []
    return words[0] if words else "" if row is not None and row.value is not None else "tie_word_embeddings"


def said_of(config: ModelConfig, format: str = "") -> Callable[..., str]:
    """:func:`said` of parameters of family files; ``family`` is none."""
    return lambda *names: said(config, *(FIELD_OF.get(name, name) for name in names), format=format)


def without_aids(config: ModelConfig) -> ModelConfig:
    """Configuration without aids to compute others, and neutral values."""
    family = family_of(config)
    rows = family.parameters if family else {}
    own = {
        name: it
        for name, it in config.own.items()
        if name not in rows or not (rows[name].aid or (rows[name].optional and it in rows[name].neutral))
    }
    return replace(config, own=own)


def without_noted(config: ModelConfig) -> ModelConfig:
    """Configuration without scaling keys that a note covers."""
    family = family_of(config)
    rows = family.parameters if family else {}
    own = {name: it for name, it in config.own.items() if name not in rows or not rows[name].folded}
    config = replace(config, own=own)
    noted = family.document.rope.noted if family else ()
    if not noted or not config.rope_scaling:
        return config
    return replace(config, rope_scaling={key: it for key, it in config.rope_scaling.items() if key not in noted})


def read_otherwise(made: ModelConfig, config: ModelConfig, *, of: str, factors: bool) -> list[str]:
    """Differences between a configuration and what keys made of it say.

    Args:
        of: format of the source, whose keys are named.
        factors: a tensor has what RoPE is scaled by.
    """
    ours, theirs = (replace(without_aids(without_noted(one)), context_length=0) for one in (config, made))
    worded = worded_fields(config, factors=factors)
    found = dict[str, tuple[object, object]]()
    for name, (mine, other) in config_differences(ours, theirs, same_words=False, worded=(worded, worded)).items():
        if isinstance(mine, dict) and isinstance(other, dict):
            keys = [key for key in mine | other if mine.get(key) != other.get(key)]
            found |= {f"{name}: {key}": (mine.get(key), other.get(key)) for key in keys}
        else:
            found[name] = mine, other
    return [f"{name}{_stated(config, name, of)} is {a!r}, and would be read as {b!r}" for name, (a, b) in found.items()]


def _stated(config: ModelConfig, field: str, format: str) -> str:
    """:func:`said`, with keys of RoPE's tables."""
    family = family_of(config)
    row = family.parameters.get(_PARAMETER_OF.get(field, field)) if family else None
    if format != "gguf" and row is not None and config.raw and not said(config, field):
        return f" ({', '.join(cell.key for cell in row.key_cells('hf'))})" if row.key_cells("hf") else ""
    return said(config, field, format=format)


def stated_in(config: ModelConfig, message: str, format: str) -> str:
    """Source keys behind a message about keys of a GGUF."""
    family = family_of(config)
    names = [
        row.name
        for row in (family.parameters.values() if family else ())
        if any(f"{family.gguf}.{cell.key}" in message for cell in row.key_cells("gguf") if family)
    ]
    return ", ".join(_stated(config, name, format)[2:-1] or name.removeprefix("rope_") for name in names)


def copied_by(format: str) -> str:
    """Flag that copies a model, as a way out."""
    return f"--to {format} copies it as it is" if format in ("gguf", "safetensors", "mlx") else ""
