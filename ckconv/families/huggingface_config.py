"""``config.json``, read as transformers 5 or mlx-lm does -> ModelConfig."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckconv.core.config import (
    FIELD_OF,
    NUMBERS,
    REAL,
    WHOLE,
    Cause,
    Fail,
    ModelConfig,
    Modifier,
    build_config,
    checked_number,
    modifiers_of,
    shortest_float32,
)
from ckconv.core.metadata import text_key
from ckconv.core.tensors import StoredTensor
from ckconv.errors import InputError
from ckconv.families.catalog import family_of_class, family_of_model_type
from ckconv.families.config_source import ConfigSource
from ckconv.families.expressions import ExpressionError
from ckconv.families.huggingface_rope import Rope, of_a_count, read_rope
from ckconv.families.huggingface_types import takes
from ckconv.families.huggingface_windows import read_windows
from ckconv.families.keys import MLX_LM, READERS, TRANSFORMERS
from ckconv.families.merge import FOLDER, fault
from ckconv.families.parameter_rows import Parameter
from ckconv.families.parameters import ParameterError, Values, differ
from ckconv.families.schema import Family
from ckconv.families.words import document_words, written_words

#: Keys that are true or false; classes take null for false.
_TIED = "tie_word_embeddings"
_SWITCHES = ("attention_bias", "mlp_bias", "norm_topk_prob", _TIED, "use_sliding_window")

#: What follows the model's name in the name of a class.
_CLASS = re.compile(r"For[A-Z]|LMHead|DoubleHeads|EncoderModel|Model\b|Text(?=For|Model)")

#: Fields that rules of their own read, beside those of a family's rows.
_BY_RULE = frozenset({"rope_theta", "rotary_dim"})

#: What a consumer is called in family files.
_READERS: Mapping[str, str] = {TRANSFORMERS: "transformers", MLX_LM: "mlx_lm"}

#: Endings of the names of tables, in every naming scheme.
_EMBEDDINGS = (
    "embed_tokens.weight", "wte.weight", "token_embedding.weight", "token_embd.weight", "word_embeddings.weight",
    "tok_embeddings.weight", ".embeddings.weight", "embed_in.weight", "shared.weight",
)  # fmt: skip
_POSITIONS = ("wpe.weight", "decoder.embed_positions.weight", "position_embd.weight")


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Text part of a multimodal configuration, else the whole."""
    nested = config.get(text_key(config))
    return {**config, **nested} if isinstance(nested, dict) else config


def _said_of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keys that are about the text part of a model."""
    nested = config.get(text_key(config))
    return nested if isinstance(nested, dict) else config


def _with_outer_tie(config: Mapping[str, Any], consumer: str, stored: Sequence[StoredTensor]) -> Mapping[str, Any]:
    """Document with ``tie_word_embeddings`` of the outer document."""
    own = text_config(config)
    outer = config.get(_TIED)
    if consumer != TRANSFORMERS or own is config or not isinstance(outer, bool):
        return own
    headless = not any(tensor.name.endswith("lm_head.weight") for tensor in stored)
    return {**own, _TIED: outer or (headless and bool(own[_TIED]))}


def huggingface_family(config: Mapping[str, Any]) -> Family | None:
    """Family of ``model_type``, or of the class; ``None`` without rules."""
    own = text_config(config)
    return family_of_model_type(str(own.get("model_type", "")), own) or family_of_class(own)


def huggingface_config(
    config: Mapping[str, Any],
    family: Family,
    stored: Sequence[StoredTensor],
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
    whole = _with_outer_tie(config, consumer, stored)
    if whole is not config and isinstance(config.get("text_config"), dict):
        whole = {**family.document.within, **whole}
    own = {**whole, **_of_tables(ConfigSource(whole), family)}
    keys, reader = family.document.keys, _READERS[consumer]

    def fail(message: str) -> InputError:
        key = message.partition(" ")[0]
        if key in keys.keys and key not in own:
            message += f", as model_type {str(own.get('model_type', ''))!r} wants"
        return InputError("model.config", message, path=path / "config.json" if path.is_dir() else path)

    values, names = _numbers(own, family, consumer, fail)
    _check_switches(own, family, fail)
    values |= _defaults(own, family, reader, values)
    if own.get("encoder_layers") is not None:
        checked_number("encoder_layers", own["encoder_layers"], NUMBERS["num_layers"], fail)
    modifiers = [f"{key} = {own[key]!r}" for key in keys.active(own, consumer)]
    unknown, closed = unknown_keys(config, family, consumer)
    modifiers += [*closed, *keys.unseen(flat(_said_of_text(config)))]
    scaling, local = None, None
    unread = overruled = tuple[str, ...]()
    if family.rope:
        theta, context = _default(family.parameters["rope_theta"], reader), int(values.get("context_length", 0))
        turned = of_a_count(own, values, family.document.rope.counted, consumer, fail)
        rope = read_rope(turned, family.document.rope, theta, consumer, context, family.turns_a_part, fail)
        values["rope_theta"], scaling, local = _stretched(rope, values), rope.scaling, rope.local
        unread, overruled = rope.unknown, rope.overruled
        modifiers += rope.modifiers
        if family.turns_a_part and rope.part < 1:
            values["rotary_dim"] = _rotary(values, rope.part, fail)
    size = None if "sliding_window" not in values else int(values.pop("sliding_window"))
    known = {name: values[field] for name, field in FIELD_OF.items() if field in values}
    layers = int(known.get("layers", 0))
    windows = read_windows(
        own, family, consumer, size, layers, lambda: _kinds(own, family, reader, known, size, fail), fail
    )
    if windows.size is not None:
        values["sliding_window"] = windows.size
    if family.experts:
        _check_experts(own, family, values, names, fail)
    made = build_config(
        family.name,
        _model_type(own, family),
        values,
        names,
        fail,
        vocab_size=_rows(stored, _EMBEDDINGS),
        position_rows=_rows(stored, _POSITIONS),
        rope=family.rope,
        rope_scaling=scaling,
        tied=_tied(own, family, consumer),
        modifiers=modifiers_of(modifiers),
        raw=config,
    )
    unread = (*unknown, *unread)
    named = next(iter(_texts_of(config.get("architectures"))), "")
    if named and not text_key(config) and not _is_class_of(named, family):
        overruled = (*overruled, f"architectures ({named}), because model_type is there")
    made = replace(made, layer_types=windows.layer_types, unread=unread, overruled=overruled)
    made = _completed(ConfigSource(own, stored), family, made, reader, local, fail)
    if family.path.parent != FOLDER:
        _check_taken(own, family, reader, made)
    return made


def _check_taken(own: Mapping[str, Any], family: Family, reader: str, made: ModelConfig) -> None:
    """Check that every stated parameter is in the model.

    Raises:
        InputError: ``family.file``.
    """
    style = family.document.window
    rule = style.mlx_lm if reader == "mlx_lm" else style.transformers
    source, scope = ConfigSource(own), made.scope
    for name, row in family.parameters.items():
        cells = [cell for cell in row.key_cells("hf") if not cell.unread and READERS[reader][0] in cell.readers]
        said = {cell.key: source.value(cell.key) for cell in cells if source.value(cell.key) is not None}
        ruled = (name in ("window", "layer_types") and rule) or (name == "rope_theta" and family.document.rope.alpha)
        of_biases = any(cell.tensor.endswith(".bias") for cells in row.cells.values() for cell in cells)  # classes' own
        if not said or ruled or of_biases:
            continue
        others = {key: scope[key] for key in scope if key != name}
        try:
            wanted = Values(family, source, reader, others)[name]
            if row.value is not None:
                one = row._replace(value=None)
                alone = replace(family, parameters={**family.parameters, name: one})
                found, wanted = wanted, Values(alone, source, reader, others)[name]
            else:
                found = scope.get(name)
        except (ParameterError, ExpressionError):
            continue
        if differ(wanted, found):
            section = "[config.window]" if name in ("window", "layer_types") else "[config]"
            key, value = next(iter(said.items()))
            raise fault(
                family.path, f"parameters.{name}: config.json says {key} = {value!r}, and no rule of {section} takes it"
            )


def _model_type(own: Mapping[str, Any], family: Family) -> str:
    """The document's, if it is one of the family's."""
    said = str(own.get("model_type", ""))
    return said if said in family.in_huggingface.names else family.model_type


def unknown_keys(config: Mapping[str, Any], family: Family, consumer: str) -> tuple[list[str], list[Modifier]]:
    """Keys without a known reader, and refused keys as "key = value, why".

    A class of transformers that is known reads no key that the family's file does not list. Of any other code that is
    not known: of a class that is not the family's, of ``auto_map``, under a ``model_type`` that transformers does not
    know, and of a family whose file is closed (``unknown``), as one's own are.
    """
    unknown = family.document.keys.unknown(_said_of_text(config))
    own = text_config(config)
    code, foreign = _code_of(config) if consumer == TRANSFORMERS else "", ""
    named = code or next(iter(_texts_of(own.get("architectures"))), "")
    if own is config and named and not _is_class_of(named, family):
        foreign = named
    known = not family.document.closed and _model_type(own, family) == own.get("model_type")
    if known and not code and not foreign:
        return unknown, []
    whose = family.name if own.get("model_type") is None else f"{family.name} (model_type, architectures)"
    refused = [
        Modifier(f"{key} = {own[key]!r}, {Cause.UNKNOWN_KEY.value} {whose}", Cause.UNKNOWN_KEY)
        for key in unknown
        if own[key] is not None
    ]
    if code and foreign:
        text = f"auto_map names {foreign}, {Cause.FOREIGN_CLASS.value} {family.name} (architectures, model_type)"
        refused.append(Modifier(text, Cause.FOREIGN_CLASS))
    return [key for key in unknown if own[key] is None], refused


def flat(document: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Values by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return found


def _code_of(config: Mapping[str, Any]) -> str:
    """Class of ``auto_map``, from code beside the model; empty for none."""
    table = config.get("auto_map")
    table = table if isinstance(table, dict) else {}
    named = (name for key in table if key.startswith("AutoModel") for name in _texts_of(table[key]))
    return next(named, "").rpartition(".")[2]


def _texts_of(value: object) -> list[str]:
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]


def _is_class_of(name: str, family: Family) -> bool:
    """Whether a class is in the modeling file of the family's class."""
    stems = {_CLASS.split(one, maxsplit=1)[0].lower() for one in family.in_huggingface.classes}
    return _CLASS.split(name, maxsplit=1)[0].lower().rstrip("_") in {stem.rstrip("_") for stem in stems}


def _of_tables(document: ConfigSource, family: Family) -> dict[str, Any]:
    """Values in tables of the document by dotted keys, except RoPE's."""
    cells = [cell for row in family.parameters.values() for cell in row.key_cells("hf")]
    words = {cell.key for cell in cells if "." in cell.key and not cell.of_rope}
    return {word: document.value(word) for word in words if document.has(word)}


def _numbers(
    own: Mapping[str, Any], family: Family, consumer: str, fail: Fail
) -> tuple[dict[str, int | float], dict[str, str]]:
    """Field -> number, and field -> what the document calls it."""
    values: dict[str, int | float] = {}
    names: dict[str, str] = {}
    rows = [(row.name, cell) for row in family.parameters.values() for cell in row.key_cells("hf")]
    computed = {(FIELD_OF.get(name), cell.key): name for name, cell in rows if cell.read is not None}
    instead = {(FIELD_OF.get(name), cell.key) for name, cell in rows if cell.instead}
    for field, number in NUMBERS.items():
        words = document_words(family, field)
        names[field] = written_words(family, field)[0] if words else field
        for key in () if field in _BY_RULE else words:
            if own.get(key) is None or not family.document.keys.reads(key, consumer):
                continue
            if (field, key) in instead and field in values:
                continue
            name = computed.get((field, key))
            if name is None or not isinstance(own[key], str | list):
                found = checked_number(key, _alike(own, key), number, fail)
            if name is not None:
                try:
                    found = Values(family, ConfigSource(own), _READERS[consumer])[name]
                except (ParameterError, ExpressionError) as error:
                    raise fail(str(error)) from None
            if values.setdefault(field, found) != found:
                raise fail(f"{names[field]} is {_shown(own[names[field]])}, {key} is {_shown(own[key])}")
            names[field] = key
    return values, names


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)


def _alike(own: Mapping[str, Any], key: str) -> Any:
    """Number, or the common number of a list that the class takes."""
    value = own[key]
    alike = isinstance(value, list) and value and value.count(value[0]) == len(value)
    return value[0] if alike and takes(str(own.get("model_type")), key, value) else value


def _default(row: Parameter, reader: str) -> Any:
    """Default RoPE base of the reader, or of transformers."""
    return row.defaults.get(reader, row.defaults["transformers"]).value({})


def _defaults(
    own: Mapping[str, Any], family: Family, reader: str, values: Mapping[str, int | float]
) -> dict[str, int | float]:
    """Defaults of the class for missing numbers.

    A key that is null is not left out: classes take null kv heads for as many as there are heads, and a null window
    for none. What follows from other numbers is taken for null, too.
    """
    made: dict[str, int | float] = {}
    rows = {name: row.defaults[reader] for name, row in family.parameters.items() if reader in row.defaults}
    for name, default in sorted(rows.items(), key=lambda row: bool(row[1].names)):
        field = FIELD_OF.get(name, "")
        if field not in NUMBERS or field in _BY_RULE or field in values:
            continue
        if not default.names and any(key in own for key in document_words(family, field)):
            continue
        both = {**values, **made}
        known = {name: both[field] for name, field in FIELD_OF.items() if both.get(field) is not None}
        try:
            found = default.value(Values(family, ConfigSource(own), reader, known))
        except (ExpressionError, ParameterError):
            found = None
        if found is None:
            continue  # of numbers that are missing, or 0, which is said where they are looked at
        if not NUMBERS[field].integer or found == int(found):
            made[field] = int(found) if NUMBERS[field].integer else float(found)
    return made


def _check_switches(own: Mapping[str, Any], family: Family, fail: Fail) -> None:
    keys = family.document.keys
    for key in _SWITCHES:
        read = any(keys.reads(key, consumer) for consumer in (TRANSFORMERS, MLX_LM))
        if read and own.get(key) is not None and not isinstance(own[key], bool):
            raise fail(f"{key} must be true or false, got {own[key]!r}")


def _stretched(rope: Rope, values: Mapping[str, int | float]) -> float:
    """RoPE base, stretched as in modeling_hunyuan_v1_dense.py."""
    head = values.get("head_dim") or values.get("hidden_size", 0) / max(values.get("num_heads", 1), 1)
    return rope.theta * rope.alpha ** (head / (head - 2)) if rope.alpha != 1 and head > 2 else rope.theta


def _rotary(values: Mapping[str, int | float], part: float, fail: Fail) -> int:
    head = values.get("head_dim") or values.get("hidden_size", 0) / max(values.get("num_heads", 1), 1)
    rotary = int(head * part)
    if rotary < 2 or rotary % 2:
        raise fail(f"partial_rotary_factor is {part}, which turns {rotary} of {head:g} elements of a head, not pairs")
    return rotary


def _check_experts(
    own: Mapping[str, Any],
    family: Family,
    values: Mapping[str, int | float],
    names: Mapping[str, str],
    fail: Fail,
) -> None:
    """Check counts of experts and numbers of layers with experts."""
    used, count = int(values.get("experts_used", 0)), int(values.get("num_experts", 0))
    if not 0 < used <= count:
        counted = dict.fromkeys([names["num_experts"], *(k for k in document_words(family, "num_experts") if k in own)])
        raise fail(f"{names['experts_used']} is {used:,}, {' or '.join(counted)} is {count:,}")
    keys = family.document.keys.keys
    step = own.get("decoder_sparse_step", 1) if "decoder_sparse_step" in keys else 1
    dense = (own.get("mlp_only_layers") or []) if "mlp_only_layers" in keys else []
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise fail(f"decoder_sparse_step must be a whole number above 0, got {step!r}")
    if not isinstance(dense, list):
        raise fail(f"mlp_only_layers must be a list, got {dense!r}")


def _tied(own: Mapping[str, Any], family: Family, consumer: str) -> bool | None:
    """Tying as the consumer reads it; ``None`` leaves it to the tensors."""
    if not family.document.keys.reads(_TIED, consumer) or not document_words(family, "tied"):
        return None
    if _TIED in own:
        return bool(own[_TIED])
    default = family.parameters["tied"].defaults.get(_READERS[consumer])
    return default is not None and bool(default.value({}))


def _rows(stored: Sequence[StoredTensor], endings: tuple[str, ...]) -> int:
    for tensor in stored:
        if tensor.name.endswith(endings) and len(tensor.shape) == 2 and "vision" not in tensor.name:
            return tensor.shape[0]
    return 0


def _kinds(
    own: Mapping[str, Any], family: Family, reader: str, known: Mapping[str, Any], window: int | None, fail: Fail
) -> object:
    """Kinds of layers by the family's row."""
    try:
        return Values(family, ConfigSource(own), reader, {**known, "window": window})["layer_types"]
    except (ParameterError, ExpressionError) as error:
        raise fail(f"layer_types: {error}") from None


def _completed(
    source: ConfigSource, family: Family, config: ModelConfig, reader: str, local: object, fail: Fail
) -> ModelConfig:
    """With what only some families have."""
    rows = family.parameters
    special = [name for name in ("final_cap", "query_scalar") if name in rows]
    given = {name: value for name, value in config.scope.items() if name not in (*special, "local_theta")}
    values = Values(family, source, reader, given)
    try:
        found = {FIELD_OF[name]: values[name] for name in special}
        extra = {name: values[name] for name in family.own}
        for name in extra.keys() & family.sizes:
            if not isinstance(extra[name], list | None):  # kinds of layers are a list
                checked_number([*document_words(family, name), name][0], extra[name], WHOLE, fail)
        if "local_theta" in rows:
            local = values["local_theta"] if local is None else checked_number("rope_theta", local, REAL, fail)
    except (ParameterError, ExpressionError) as error:
        raise fail(str(error)) from None
    for name, value in found.items():
        key = next(iter(document_words(family, name)), name)
        if value is not None and checked_number(key, value, REAL, fail) == 0 and name == "query_scalar":
            raise fail(f"{key} is 0")
    if "local_theta" in rows:
        base: float = local if isinstance(local, float) and local else _default(rows["local_theta"], reader)
        found["local_rope_theta"] = shortest_float32(float(base))
    return replace(config, **found, own=extra)
