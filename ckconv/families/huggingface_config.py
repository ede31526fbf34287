"""``config.json``, read as transformers 5 or mlx-lm does -> ModelConfig.

Sources: ``RotaryEmbeddingConfigMixin`` of modeling_rope_utils.py, transformers 5.23, and its overrides by gemma3 and
phi3; ``ModelArgs`` of mlx-lm 0.32.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
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
    same_factors_always,
    scales_by_one,
    shortest_float32,
    without_yarn_default,
    yarn_scale,
)
from ckconv.core.lazy import NamedTuple, replace
from ckconv.core.metadata import CONFIG_NAME, LAYER_TABLE, text_key, text_on_top, text_table
from ckconv.core.tensors import StoredTensor
from ckconv.errors import InputError
from ckconv.families import towers
from ckconv.families.catalog import FAMILIES, document_words, family_of_class, family_of_model_type, written_words
from ckconv.families.expressions import FULL, SLIDING, ExpressionError
from ckconv.families.huggingface_classes import default_of, takes, ties_head
from ckconv.families.keys import MLX_LM, READERS, ROPE_KEYS, TRANSFORMERS, Parameter, RopeStyle
from ckconv.families.merge import FOLDER, fault
from ckconv.families.parameters import ConfigSource, ParameterError, Values, differ
from ckconv.families.schema import Family

# -- Layers with a sliding window in a ``config.json``, by reader ------------------------------------------------------


class Windows(NamedTuple):
    """Window and sliding layers as read.

    Attributes:
        size: in tokens, ``None`` where no layer slides.
        layer_types: ``sliding_attention`` or ``full_attention`` for every layer, ``None`` where all are alike, and no
            format has a place for the list.
    """

    size: int | None
    layer_types: tuple[str, ...] | None = None


def read_windows(
    family: Family, own: Mapping[str, Any], values: Mapping[str, Any], consumer: str, fail: Fail
) -> Windows:
    """Read which layers slide, by the rows ``window`` and ``layer_types``.

    Args:
        values: parameters as the consumer reads them.
    """
    window, row = family.parameters.get("window"), family.parameters.get("layer_types")
    if window is None or row is None or not any(consumer in cell.readers for cell in window.key_cells("hf")):
        return Windows(None)
    try:
        kinds, size = _listed(values["layer_types"], values["layers"], fail), values["window"]
    except (ParameterError, ExpressionError) as error:
        raise fail(f"layer_types: {error}") from None
    slides = kinds.count(SLIDING)
    if slides and not size:
        names = {name for cell in window.key_cells("hf") if cell.read for name in cell.read.names}
        keys = [*_keys_of([window]), *_keys_of([family.parameters[name] for name in names & family.parameters.keys()])]
        stated = ", ".join(f"{key} is {'null' if own.get(key) is None else own[key]}" for key in keys)
        raise fail(f"{stated}, and {slides} layers slide ({', '.join([*_keys_of([row]), 'model_type'])})")
    stored = any(not cell.alias for cells in row.cells.values() for cell in cells)
    return Windows(size if slides else None, kinds if stored or (slides and FULL in kinds) else None)


def _keys_of(rows: Sequence[Parameter]) -> list[str]:
    return list(dict.fromkeys(cell.key for row in rows for cell in row.key_cells("hf") if not cell.unread))


def _listed(kinds: object, layers: int, fail: Fail) -> tuple[str, ...]:
    if kinds is None:
        return ()
    if not isinstance(kinds, list) or not all(kind in (SLIDING, FULL) for kind in kinds):
        raise fail(f"layer_types must list {SLIDING} or {FULL} for every layer")
    if len(kinds) != layers:
        raise fail(f"layer_types has {len(kinds):,} entries, num_hidden_layers is {layers:,}")
    return tuple(kinds)


# -- RoPE of a ``config.json``: base, scaling, rotated part, conflicts -------------------------------------------------

#: Keys that, where they are lists, have an item for each layer: classes of transformers or mlx-lm stop at fewer, and at
#: more (``validate_layer_type`` of its configurations, ``IndexError`` at load).
_OF_LAYERS = frozenset({
    "layer_types", "layers_block_type", "mlp_layer_types", "indexer_types", "attn_type_list", "hybrid_layer_pattern",
    "activation_sparsity_pattern", "block_configs", "intermediate_size", "layer_rope_theta", "moe_layer_freq",
    "no_rope_layers", "num_attention_heads_per_layer",
})  # fmt: skip

#: Of these, lists that may be longer, as of a model that layers were taken from: each layer looks its own item up.
_LOOKED_UP = frozenset({"layer_rope_theta", "no_rope_layers"})

#: Types whose frequencies follow from the context length before scaling; the model's own, where none is stated.
_FROM_CONTEXT = ("llama3", "yarn", "longrope")

_FACTORS = ("long_factor", "short_factor")

#: Numbers that a type cannot do without.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": _FACTORS,
}

#: What mlx-lm takes for a number that is not there, in Llama3RoPE and YarnRoPE of its rope_utils.py.
_OF_MLX: Mapping[str, Mapping[str, Any]] = {
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    "yarn": {"original_max_position_embeddings": 4096},
}

_UNSCALED: Mapping[str, Any] = {"rope_type": "default"}


class Rope(NamedTuple):
    """RoPE as read from a document.

    Attributes:
        theta: the base.
        local: that of layers which slide, where the document has a table for them.
        part: of a head that is rotated.
        scaling: every number that its type needs, under Hugging Face's keys; ``None`` where nothing is scaled.
        modifiers: what else changes the angles, as "key = value".
        unknown: keys of the tables that nobody reads.
        overruled: keys that another one makes idle, as "key, because other_key is there".
        alpha: what stretches the base.
    """

    theta: float
    local: object = None
    part: float = 1.0
    scaling: Mapping[str, Any] | None = None
    modifiers: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    overruled: tuple[str, ...] = ()
    alpha: float = 1.0


def read_rope(
    own: Mapping[str, Any],
    style: RopeStyle,
    default: float | None,
    consumer: str,
    context: int,
    turns_a_part: bool,
    fail: Fail,
) -> Rope:
    """Read both styles of RoPE keys as the consumer does.

    Args:
        default: the base that the class takes where none is stated; ``None`` where nobody here knows it.
        context: the model's context length.
        turns_a_part: the class turns a part of every head where nothing is scaled; others turn all of it.
    """
    base = own.get(style.theta)
    if style.read_theta and base is not None:
        base = style.read_theta.value({"it": checked_number(style.theta, base, REAL, fail)})
    own = {**own, "rope_theta": base, "partial_rotary_factor": own.get(style.share)}
    scaling = _object(own.get("rope_scaling"), "rope_scaling", fail)
    nested = _object(own.get("rope_parameters"), "rope_parameters", fail)
    if own.get("rope_parameters") is None and consumer == TRANSFORMERS:
        nested = style.default
    if style.share in style.noted:  # a row of its own has it, and the sizes of heads say what turns
        scaling, nested = (
            {key: value for key, value in one.items() if key != style.share} for one in (scaling, nested)
        )
    modifiers: list[str] = []
    if style.read_theta and consumer == TRANSFORMERS and nested.get("rope_theta") is not None:
        modifiers.append(Modifier(f"rope_parameters = {dict(nested)!r}", Cause.STRAY))  # the class has another key
        nested = {}
    if style.by_part:
        top = own["rope_theta"] if own.get("rope_theta") is not None else default
        scaling, nested = (
            _of_parts(table, name, top, modifiers, fail)
            for table, name in ((scaling, "rope_scaling"), (nested, "rope_parameters"))
        )
    local: Mapping[str, Any] = {}
    if style.by_layer:
        local = _object(nested.get("sliding_attention"), "rope_parameters.sliding_attention", fail)
        full = nested.get("full_attention")
        # Gemma3TextConfig.convert_rope_params_to_dict has a type already: ``type`` of rope_scaling changes nothing.
        nested = _UNSCALED if full is None else _object(full, "rope_parameters.full_attention", fail)
    where = "rope_parameters.full_attention" if style.by_layer else "rope_parameters"
    stated = {
        name: checked_number(name, value, REAL, fail)
        for name, value in (
            ("rope_theta", own.get("rope_theta")),
            (f"{where}.rope_theta", nested.get("rope_theta")),
            ("rope_scaling.rope_theta", scaling.get("rope_theta")),
        )
        if value is not None
    }
    found = _of_mlx if consumer == MLX_LM else _of_transformers
    theta, table, name = found(own, style, scaling, nested, stated, default, where)
    if theta is None:
        raise fail(f"{style.theta} is missing (what the class takes for it then is not known)")
    if theta == 0:
        raise fail(f"{_key_with(stated, theta)} is 0")
    overruled: list[str] = []
    for key, value in stated.items():
        if value == theta:
            continue
        if consumer == MLX_LM:
            modifiers.append(_two(key, value, f"{theta:,}"))
        elif theta not in stated.values():
            taken = f"transformers takes {theta:,}, its own, for rope_theta"
            raise fail(f"{key} is {value:,}, and not read, because rope_scaling is there: {taken}")
        else:
            overruled.append(f"{key}, because {_key_with(stated, theta)} is there")
    kind, other = _kind(table, name, consumer, fail)
    kind = style.older.get(consumer, {}).get(kind, kind)
    untaken = consumer == TRANSFORMERS and style.types is not None and kind not in ("default", *style.types)
    if untaken and (style.types or not scales_by_one({**table, "rope_type": kind})):  # one without types checks none
        modifiers.append(f"{name}.rope_type = {kind!r}, which the class does not take,")
    overruled += [f"{name}.{key}, because {name}.{word} is there" for key, word in other.items()]
    if consumer == MLX_LM and table is not nested:
        unread, _ = _kind(nested, where, TRANSFORMERS, fail)
        if unread not in ("default", kind) and not scales_by_one({**nested, "rope_type": unread}):
            key = "type" if nested.get("rope_type") is None else "rope_type"
            modifiers.append(f"{where}.{key} = {unread!r}, which mlx-lm does not read")
    if local:
        slides, _ = _kind(local, "rope_parameters.sliding_attention", consumer, fail)
        if slides != "default" and not scales_by_one({**local, "rope_type": slides}):
            modifiers.append(f"rope_parameters.sliding_attention.rope_type = {slides!r}")
    base = local.get("rope_theta") if consumer == TRANSFORMERS else None
    known = ROPE_KEYS.get(kind)
    unknown = tuple(f"{name}.{key}" for key in known.unknown(table)) if known else ()
    if style.alpha and table.get("alpha") and (consumer == MLX_LM or kind == "dynamic"):
        alpha = float(checked_number(f"{name}.alpha", table["alpha"], REAL, fail))
        return Rope(float(theta), base, 1.0, None, tuple(modifiers), (), tuple(overruled), alpha)
    takes_mrope = consumer == MLX_LM or "mrope" in (style.types or ())
    in_table = consumer == TRANSFORMERS or style.mlx_lm == "only_rope_parameters"
    part, key, idle = _part(own, table if in_table else {}, name, style.part.get(consumer, 1.0), fail)
    if consumer == MLX_LM:
        tables = {where: nested, "rope_scaling": scaling}
        part, ignored = _mlx_part(own, tables, part, style, turns_a_part=turns_a_part, scaled=kind != "default")
        modifiers += ignored + _mlx_numbers(table, name, scaling if table is nested else nested, where, kind)
    by_one = scales_by_one({**table, "rope_type": kind}) and (turns_a_part or part == 1)
    plain = kind == "default" or (takes_mrope and _is_plain_mrope(table, kind)) or by_one
    if plain and not turns_a_part:
        return Rope(float(theta), base, 1.0, None, tuple(modifiers), unknown, tuple(overruled))
    if not 0 < part <= 1:
        raise fail(f"{key} must be above 0 and at most 1, got {part:g}")
    overruled += [f"{other}, because {key} is there" for other in idle]
    if plain:
        return Rope(float(theta), base, part, None, tuple(modifiers), unknown, tuple(overruled))
    if known:
        merged = {key: value for key, value in table.items() if key != "partial_rotary_factor"}
        if part != 1 and not turns_a_part:  # else it is a parameter of its own
            merged["partial_rotary_factor"] = part
        modifiers += [
            f"{name}.{key} = {merged[key]!r}" for key in known.active(merged, consumer) if key not in style.noted
        ]
    made = _completed_scaling(own, table, kind, name, consumer, context, fail)
    if turns_a_part or kind == "longrope":
        made = {key: value for key, value in made.items() if key != "partial_rotary_factor"}
    part = part if turns_a_part else 1.0
    weight = table.get("attention_factor")
    if consumer == MLX_LM and kind == "yarn" and isinstance(weight, int | float):
        computed = yarn_scale(
            made["factor"], *(made.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim"))
        )
        if not math.isclose(weight, computed, rel_tol=1e-6):
            modifiers.append(_two(f"{name}.attention_factor", weight, f"{computed:g}"))
    if consumer == MLX_LM and kind == "longrope" and not same_factors_always(made):
        modifiers.append(f"{name}.long_factor, which mlx-lm also uses for short sequences,")
    return Rope(float(theta), base, part, made, tuple(modifiers), unknown, tuple(overruled))


def _of_parts(table: Mapping[str, Any], name: str, top: object, modifiers: list[str], fail: Fail) -> Mapping[str, Any]:
    """The scaling of ``compress`` with the base of ``main``.

    As DeepseekV4Config reads the two. A table without them has the scaling, and neither base nor part of a head: they
    are at the top of the document. A factor of attention is 1.

    Args:
        modifiers: gets what is missing in one table.
    """
    both = [key for key in ("main", "compress") if table.get(key) is not None]
    main, compress = (_object(table.get(key), f"{name}.{key}", fail) for key in ("main", "compress"))
    if len(both) == 2:
        if compress.get("rope_theta") is None:
            modifiers.append(f"{name}.compress has no rope_theta, so that the class takes the other one")
        table = {**compress, "rope_theta": main.get("rope_theta")}
        kind, _ = _kind(main, f"{name}.main", TRANSFORMERS, fail)
        parts = [one.get("partial_rotary_factor") for one in (main, compress)]
        if kind != "default":
            modifiers.append(f"{name}.main.rope_type = {kind!r}")
        if parts[0] != parts[1] or parts[0] is None:
            modifiers.append(f"{name}.main.partial_rotary_factor = {parts[0]} beside {parts[1]} of compress")
    else:
        if table.get("rope_theta") not in (None, top):
            modifiers.append(f"{name}.rope_theta = {table['rope_theta']} beside {top}, which the class takes,")
        table = {key: value for key, value in table.items() if key != "partial_rotary_factor"}
    factor = table.get("attention_factor", None if len(both) == 2 else 1)  # filled in where the class makes the two
    if factor is None and _kind(table, name, TRANSFORMERS, fail)[0] == "yarn":
        modifiers.append(f"{name} has no attention_factor, for which the class takes another than 1")
    return {key: value for key, value in table.items() if key != "attention_factor" or value != 1}


def of_a_count(own: Mapping[str, Any], values: Mapping[str, float], key: str, consumer: str, fail: Fail) -> Any:
    """Document with the rotated part of a head from a count of elements."""
    if not key or own.get(key) is None:
        return own
    head = values.get("head_dim") or values.get("hidden_size", 0) // values.get("num_heads", 1)
    part = {"partial_rotary_factor": checked_number(key, own[key], NUMBERS["rotary_dim"], fail) / (head or 1)}
    return {**own, **part} if consumer == MLX_LM else {**part, **own}


def _is_plain_mrope(table: Mapping[str, Any], kind: str) -> bool:
    """Whether ``mrope`` leaves text unscaled, in mlx-lm and transformers."""
    sections = table.get("mrope_section")
    return kind == "mrope" and isinstance(sections, list) and len(sections) == 3


Found = tuple[float | None, Mapping[str, Any], str]


def _of_transformers(
    own: Mapping[str, Any], style: RopeStyle, scaling: Mapping[str, Any], nested: Mapping[str, Any],
    stated: Mapping[str, float], default: float | None, where: str,
) -> Found:  # fmt: skip
    """RoPE table as transformers merges it from both styles."""
    table: Mapping[str, Any]
    if style.by_layer:
        table, name = {**nested, **scaling}, where
    else:
        table, name = (scaling, "rope_scaling") if scaling else (nested, where)
    theta = table.get("rope_theta")
    return stated.get("rope_theta", default) if theta is None else float(theta), table, name


def _of_mlx(
    own: Mapping[str, Any], style: RopeStyle, scaling: Mapping[str, Any], nested: Mapping[str, Any],
    stated: Mapping[str, float], default: float | None, where: str,
) -> Found:  # fmt: skip
    """RoPE table as the class of mlx-lm reads it."""
    if style.mlx_lm == "only_rope_parameters":
        return stated.get(f"{where}.rope_theta", default), nested, where
    theta = stated.get("rope_theta")
    if style.mlx_lm in ("rope_parameters", "base") and own.get("rope_theta") is None:
        theta = stated.get(f"{where}.rope_theta")
    table, name = scaling, "rope_scaling"
    if style.mlx_lm == "rope_parameters" and own.get("rope_scaling") is None:
        table, name = nested, where
    return default if theta is None else theta, {} if style.mlx_lm in ("base", "nowhere") else table, name


def _key_with(stated: Mapping[str, float], theta: float) -> str:
    return next((key for key, value in stated.items() if value == theta), "rope_theta")


def _object(value: object, name: str, fail: Fail) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise fail(f"{name} must be an object, got {type(value).__name__}")
    return value


def _kind(table: Mapping[str, Any], name: str, consumer: str, fail: Fail) -> tuple[str, dict[str, str]]:
    """Type of scaling, and keys that name a different type.

    transformers reads ``rope_type`` first (``standardize_rope_params``), mlx-lm ``type`` (``initialize_rope``).
    """
    words = ("rope_type", "type") if consumer == TRANSFORMERS else ("type", "rope_type")
    kinds = {key: table[key] for key in words if table.get(key) is not None}
    for key, kind in kinds.items():
        if not isinstance(kind, str):
            raise fail(f"{name}.{key} must be a word, got {kind!r}")
    read = next(iter(kinds), "")
    return kinds.get(read, "default"), {key: read for key, kind in kinds.items() if kind != kinds[read]}


def _part(
    own: Mapping[str, Any], table: Mapping[str, Any], name: str, default: float, fail: Fail
) -> tuple[float, str, list[str]]:
    """Rotated part of a head, its key, and conflicting keys."""
    stated = {f"{name}.partial_rotary_factor": table.get("partial_rotary_factor")}
    stated["partial_rotary_factor"] = own.get("partial_rotary_factor")
    found = {key: value for key, value in stated.items() if value is not None}
    for key, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise fail(f"{key} must be a number above 0 and at most 1, got {value!r}")
    read, part = next(iter(found.items()), ("partial_rotary_factor", default))
    return float(part), read, [key for key, value in found.items() if value != part]


def _mlx_part(
    own: Mapping[str, Any],
    tables: Mapping[str, Mapping[str, Any]],
    part: float,
    style: RopeStyle,
    *,
    turns_a_part: bool,
    scaled: bool,
) -> tuple[float, list[str]]:
    """The part that mlx-lm's class turns, and keys that say another one.

    A class that turns whole heads whatever is stated: what released models say is left to a note of the engine's row.
    """
    shares = {f"{name}.partial_rotary_factor": table.get("partial_rotary_factor") for name, table in tables.items()}
    if style.whole:
        shares[style.share] = own.get("partial_rotary_factor")
        usual = style.part[MLX_LM]
        stated = [value for value in shares.values() if value is not None]
        part = usual if all(value == usual for value in stated) else 1.0
    elif not (turns_a_part or scaled):
        return part, []
    return part, [_two(key, value, f"{part:g}") for key, value in shares.items() if value is not None and value != part]


def _mlx_numbers(table: Mapping[str, Any], name: str, other: Mapping[str, Any], where: str, kind: str) -> list[str]:
    """Conflicts between the two tables of RoPE, for mlx-lm."""
    known = ROPE_KEYS.get(kind)
    name_of_other = where if name == "rope_scaling" else "rope_scaling"
    return [
        _two(f"{name_of_other}.{key}", value, repr(table[key]))
        for key, value in other.items()
        if known and key not in _BASE_KEYS and known.reads(key, MLX_LM)
        if value is not None and table.get(key) is not None and value != table[key]
    ]


def _two(key: str, value: object, taken: str) -> Modifier:
    return Modifier(f"{key} = {value!r} beside {taken}, which mlx-lm takes", Cause.TWO_NUMBERS)


_BASE_KEYS = ("rope_theta", "rope_type", "type", "partial_rotary_factor")


def _completed_scaling(
    own: Mapping[str, Any], table: Mapping[str, Any], kind: str, name: str, consumer: str, context: int, fail: Fail
) -> dict[str, Any]:
    """Scaling, completed by the numbers that its reader assumes."""
    made = {key: value for key, value in table.items() if key != "type"} | {"rope_type": kind}
    if consumer == MLX_LM:
        read = ROPE_KEYS.get(kind)  # the other library must not find what this one takes no notice of
        made = {key: value for key, value in made.items() if read is None or read.reads(key, consumer)}
        made |= {key: value for key, value in _OF_MLX.get(kind, {}).items() if made.get(key) is None}
    if kind in _FROM_CONTEXT and (consumer == TRANSFORMERS or kind == "longrope"):
        # A class that has the key takes its own number for one not stated, whatever the table says (Phi3Config).
        key = "original_max_position_embeddings"
        default = default_of(own, key)
        original = own.get(key, default if type(default) is int else table.get(key))
        made[key] = original = context if original is None else original
        if kind == "yarn" and "factor" in table and table["factor"] is None and isinstance(original, int) and original:
            made["factor"] = context / original
        if kind == "yarn" and not (made.get("mscale") and made.get("mscale_all_dim")):
            # classes of latent attention multiply scores by mscale_all_dim alone, too (DeepseekV3Attention)
            latent = type(own.get("kv_lora_rank", default_of(own, "kv_lora_rank"))) is int
            gone = ("mscale",) if latent and made.get("mscale_all_dim") else ("mscale", "mscale_all_dim")
            made = {key: value for key, value in made.items() if key not in gone}
    for key in _NEEDED.get(kind, ()):
        if made.get(key) is None:
            raise fail(f"{name}.{key} is missing, which rope_type {kind} needs")
    for key in _FACTORS if kind == "longrope" else ():
        if not isinstance(made[key], list) or not made[key]:
            raise fail(f"{name}.{key} must be a list of numbers, got {made[key]!r}")
    for key, value in _positive_numbers(made):
        lowest = -float("inf") if key == "mscale" else 0
        if isinstance(value, bool) or not isinstance(value, int | float) or not lowest < value < float("inf"):
            raise fail(f"{name}.{key} must be a number above 0, got {value!r}")
    if kind == "yarn" and consumer == TRANSFORMERS:
        made = without_yarn_default(made)
    one, all_dim = made.get("mscale"), made.get("mscale_all_dim") or 0
    one = 1 if one is None else one  # YarnRoPE of mlx-lm takes 1 and 0 where nothing is stated
    both = (made.get("mscale") or 0) > 0 and all_dim
    if kind == "yarn" and consumer == MLX_LM and not both and (one, all_dim) != (1, 0):
        growth = yarn_scale(made["factor"]) - 1
        made["attention_factor"] = (growth * one + 1) / (growth * all_dim + 1)
        made.pop("mscale", None)
    if kind == "llama3" and made["low_freq_factor"] > made["high_freq_factor"]:
        raise fail(f"{name}.low_freq_factor is above {name}.high_freq_factor, which is {made['high_freq_factor']}")
    return made


_NUMBERS = (
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
)


def _positive_numbers(made: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for key in _NUMBERS:
        if made.get(key) is not None:
            yield key, made[key]
    for key in _FACTORS if made["rope_type"] == "longrope" else ():
        yield from ((key, factor) for factor in made[key])


# -- ``config.json``, read as transformers 5 or mlx-lm does -> ModelConfig ---------------------------------------------

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
    if not (key := text_key(config)):
        return config
    # a layer's table has the class of the layer's own model
    return text_on_top(config) | ({"architectures": config.get("architectures")} if key == LAYER_TABLE else {})


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keys that are about the text part of a model."""
    return text_table(config) if text_key(config) else config


def _with_outer_tie(config: Mapping[str, Any], family: Family, consumer: str) -> Mapping[str, Any]:
    """Text document with ``tie_word_embeddings`` as the whole's class has it."""
    own, part = text_config(config), text_part(config)
    outer = config.get(_TIED) if isinstance(config.get(_TIED), bool) else None
    if consumer != TRANSFORMERS or own is config:
        return own
    text = bool(_tied(part, family, consumer))
    tied = ties_head(str(config.get("model_type")), whole=outer, text=text)
    if tied is None:  # of code beside the model: the text part's class is within
        tied = bool(outer) or text
    return {**own, _TIED: tied}


def huggingface_family(config: Mapping[str, Any]) -> Family | None:
    """Family of ``model_type``, or of the class; ``None`` without rules."""
    own = text_config(config)
    return family_of_model_type(str(own.get("model_type", "")), own) or family_of_class(own) or _beside_tower(config)


def _beside_tower(config: Mapping[str, Any]) -> Family | None:
    """Family of a text model whose keys stand beside a tower's."""
    with suppress(ValueError):  # what the document does not say
        if tower := towers.tower_beside(config):
            return FAMILIES.get(str(Values(tower, ConfigSource(config))["text_family"]))
    return None


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
    """
    whole = _with_outer_tie(config, family, consumer)
    if whole is not config and isinstance(config.get("text_config"), dict):
        whole = {**family.document.within, **whole}
    own = {**whole, **_of_tables(ConfigSource(whole), family)}
    keys, reader = family.document.keys, _READERS[consumer]

    def fail(message: str) -> InputError:
        key = message.partition(" ")[0]
        if key in keys.keys and key not in own:
            wanted = f", as model_type {str(own.get('model_type', ''))!r} wants"
            message += wanted if " is missing" in message else f"; {consumer} takes that where config.json says nothing"
        return InputError("model.config", message, path=path / CONFIG_NAME if path.is_dir() else path)

    values, names = _numbers(own, family, consumer, fail)
    _check_switches(own, family, fail)
    values |= _defaults(own, family, reader, values)
    if own.get("encoder_layers") is not None:
        checked_number("encoder_layers", own["encoder_layers"], NUMBERS["num_layers"], fail)
    modifiers = [f"{key} = {own[key]!r}" for key in keys.active(own, consumer)]
    unknown, closed = unknown_keys(config, family, consumer)
    text = flat(text_part(config))
    base = text.get("rope_theta")  # the table of the newer style may say it once more, and nothing else
    twice = {} if base is None else {"rope_parameters.rope_theta": base, "rope_parameters.rope_type": "default"}
    new = {key: value for key, value in text.items() if key in keys.seen or key not in twice or twice[key] != value}
    modifiers += [*closed, *keys.unseen(new)]
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
    given = {**known, "layers": int(known.get("layers", 0)), "window": size}
    windows = read_windows(family, own, Values(family, ConfigSource(own), reader, given), consumer, fail)
    if windows.size is not None:
        values["sliding_window"] = windows.size
    made = build_config(
        family.name,
        _model_type(own, family),
        values,
        names,
        fail,
        vocab_size=_rows(stored, _EMBEDDINGS),
        position_rows=_rows(stored, _POSITIONS),
        rope=family.rope,
        experts=family.experts,
        rope_scaling=scaling,
        tied=_tied(own, family, consumer),
        modifiers=modifiers_of(modifiers),
        raw=config,
    )
    unread = (*unknown, *unread)
    named = next(iter(_texts_of(config.get("architectures"))), "")
    if named and not text_key(config) and not _is_class_of(named, family) and _beside_tower(config) is not family:
        overruled = (*overruled, f"architectures ({named}), because model_type is there")
    made = replace(made, layer_types=windows.layer_types, unread=unread, overruled=overruled)
    made = _completed(ConfigSource(own, stored), family, made, reader, local, fail)
    if family.path.parent != FOLDER:
        _check_taken(own, family, reader, made)
    return made


def _check_taken(own: Mapping[str, Any], family: Family, reader: str, made: ModelConfig) -> None:
    """Check that every stated parameter is in the model."""
    source, scope = ConfigSource(own), made.scope
    read = {cell.key for row in family.parameters.values() if row.value is None for cell in row.key_cells("hf")}
    for name, row in family.parameters.items():
        cells = [cell for cell in row.key_cells("hf") if not cell.unread and READERS[reader][0] in cell.readers]
        if row.value is not None:  # keys of another row are compared there
            cells = [cell for cell in cells if cell.key not in read]
        stated = {cell.key: source.value(cell.key) for cell in cells if source.value(cell.key) is not None}
        ruled = name == "layer_types" or (name == "window" and "layer_types" in family.parameters)
        ruled = ruled or (name == "rope_theta" and family.document.rope.alpha)
        of_biases = any(cell.tensor.endswith(".bias") for cells in row.cells.values() for cell in cells)  # classes' own
        if not stated or ruled or of_biases:
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
            row_of = (
                "no row layer_types says which layers slide" if name == "window" else "no rule of [config] takes it"
            )
            key, value = next(iter(stated.items()))
            raise fault(family.path, f"parameters.{name}: config.json says {key} = {value!r}, and {row_of}")


def _model_type(own: Mapping[str, Any], family: Family) -> str:
    """The document's, if it is one of the family's."""
    stated = str(own.get("model_type", ""))
    return stated if stated in family.in_huggingface.names else family.model_type


def unknown_keys(config: Mapping[str, Any], family: Family, consumer: str) -> tuple[list[str], list[Modifier]]:
    """Keys without a known reader, and refused keys as "key = value, why".

    A class of transformers that is known reads no key that the family's file does not list. Of any other code that is
    not known: of a class that is not the family's, of ``auto_map``, under a ``model_type`` that transformers does not
    know, and of a family whose file is closed (``unknown``), as one's own are.
    """
    stated = {key: value for key, value in text_part(config).items() if value is not None}
    unknown, own = family.document.keys.unknown(stated), text_config(config)
    code, foreign = _code_of(config) if consumer == TRANSFORMERS else "", ""
    named = code or next(iter(_texts_of(own.get("architectures"))), "")
    if (tower := towers.tower_beside(config)) and named in tower.in_huggingface.classes:
        unknown, code, named = [key for key in unknown if not towers.of_a_tower(tower, key)], "", ""
    if own is config and named and not _is_class_of(named, family):
        foreign = named
    known = not family.document.closed and _model_type(own, family) == own.get("model_type")
    layers = {cell.key for cell in family.parameters["layers"].key_cells("hf")} if "layers" in family.parameters else {}
    part = text_part(config)
    alone = part is not config and "model_type" not in part and not towers.tower_of_document(config)
    if alone and not config.keys().isdisjoint(layers):
        unknown = [*unknown, text_key(config)]  # the class of a text model reads none, and this reader would
    elif known and not code and not foreign:
        return unknown, []
    keys = "no model_type" if own.get("model_type") is None else "model_type, architectures"
    whose = f"{family.name} ({keys})"
    refused = [
        Modifier(f"{key} = {own[key]!r}, {Cause.UNKNOWN_KEY.value} {whose}", Cause.UNKNOWN_KEY) for key in unknown
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
        if number.required and not words:
            _check_lists(own, family, field, fail)
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
                if found is None:
                    continue
                if not isinstance(found, int | float):
                    found = checked_number(key, own[key], number, fail)
            if values.setdefault(field, found) != found:
                raise fail(f"{names[field]} is {_shown(own[names[field]])}, {key} is {_shown(own[key])}")
            names[field] = key
    return values, names


def _check_lists(own: Mapping[str, Any], family: Family, field: str, fail: Fail) -> None:
    """Check lists over layers that a number without a key follows from."""
    row = next((row for name, row in family.parameters.items() if FIELD_OF.get(name) == field), None)
    for name in {one for default in row.defaults.values() for one in default.names} if row else ():
        for key in document_words(family, name):
            value = own.get(key)
            items = value if isinstance(value, list) and value else [value]
            if value is not None and not all(type(item) is int for item in items):
                raise fail(f"{key} must be whole numbers, got {reprlib.repr(value)}")


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)


def _alike(own: Mapping[str, Any], key: str) -> Any:
    """Number, or the common number of a list that the class takes."""
    value = own[key]
    alike = isinstance(value, list) and value and value.count(value[0]) == len(value)
    return value[0] if alike and takes(str(own.get("model_type")), key, value) else value


def _default(row: Parameter, reader: str) -> Any:
    """RoPE base that a reader takes; ``None`` for one that is not known."""
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
        stated = any(key in own for key in document_words(family, field))
        if stated and (not default.names or field == "sliding_window"):
            continue
        both = {**values, **made}
        known = {name: both[field] for name, field in FIELD_OF.items() if both.get(field) is not None}
        try:
            found = default.value(Values(family, ConfigSource(own), reader, known))
        except (ExpressionError, ParameterError):
            found = None
        if not isinstance(found, int | float) or not math.isfinite(found):
            continue  # of numbers that are missing, 0 or no numbers, which is said where they are looked at
        if not NUMBERS[field].integer or found == int(found):
            made[field] = int(found) if NUMBERS[field].integer else float(found)
    if reader == "transformers" and "num_heads" not in {**values, **made}:
        heads = [default_of(own, key) for key in document_words(family, "num_heads") if key not in own]
        made.update(("num_heads", number) for number in heads if type(number) is int)
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


def _check_parts(source: ConfigSource, family: Family, values: Mapping[str, Any], fail: Fail) -> None:
    """Check bases, and that layers turn pairs of a head, no more of it."""
    for name, value in values.items():
        for cell in family.parameters[name].key_cells("hf"):
            base = source.value(cell.key) if cell.key.rpartition(".")[2] == "rope_theta" else None
            for one in base if isinstance(base, list) else [base]:  # a list has one for each layer
                if one is not None and checked_number(cell.key, one, REAL, fail) == 0:
                    raise fail(f"{cell.key} is 0")
            part = source.value(cell.key) if cell.key.endswith(".partial_rotary_factor") else None
            if part is None:
                continue
            if not 0 < checked_number(cell.key, part, REAL, fail) <= 1:
                raise fail(f"{cell.key} must be above 0 and at most 1, got {part:g}")
            if name == "local_dim" and (value < 2 or value % 2):
                raise fail(f"{cell.key} is {part:g}, which turns {value} elements of a head, not pairs")


def _check_lengths(source: ConfigSource, family: Family, reader: str, layers: int, fail: Fail) -> None:
    """Check that lists over layers that are read have an item for each.

    One for each layer that predicts further tokens, too, where the family has such.
    """
    more = _OF_LAYERS if "extra_layers" in family.parameters else _LOOKED_UP
    cells = [cell for row in family.parameters.values() for cell in row.key_cells("hf") if not cell.unread]
    for key in {cell.key for cell in cells if READERS[reader][0] in cell.readers} & _OF_LAYERS:
        value = source.value(key)
        if isinstance(value, list) and value and (len(value) < layers or (len(value) > layers and key not in more)):
            raise fail(f"{key} has {len(value):,} entries, num_hidden_layers is {layers:,}")


def _tied(own: Mapping[str, Any], family: Family, consumer: str) -> bool | None:
    """Tying as the consumer reads it; ``None`` leaves it to the tensors."""
    row = family.parameters.get("tied")
    if row is not None and row.value is not None:
        return bool(row.value.value({}))
    words = document_words(family, "tied")
    key = _TIED if _TIED in words or not words else words[0]
    if not family.document.keys.reads(key, consumer) or not words:
        return None
    if key in own:
        return bool(own[key])
    default = family.parameters["tied"].defaults.get(_READERS[consumer])
    return default is not None and bool(default.value({}))


def _rows(stored: Sequence[StoredTensor], endings: tuple[str, ...]) -> int:
    for tensor in stored:
        other = any(word in tensor.name for word in ("vision", "per_layer"))
        if tensor.name.endswith(endings) and len(tensor.shape) == 2 and not other:
            return tensor.shape[0]
    return 0


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
            words = [*document_words(family, "local_theta"), "rope_parameters.sliding_attention.rope_theta"]
            key = words[-1] if local is not None else words[0]
            local = values["local_theta"] if local is None else local
            if local is not None and checked_number(key, local, REAL, fail) == 0:
                raise fail(f"{key} is 0")
    except (ParameterError, ExpressionError) as error:
        raise fail(str(error)) from None
    for name, value in found.items():
        key = next(iter(document_words(family, name)), name)
        if value is not None and checked_number(key, value, REAL, fail) == 0 and name == "query_scalar":
            raise fail(f"{key} is 0")
    _check_parts(source, family, extra, fail)
    _check_lengths(source, family, reader, config.num_layers, fail)
    if "local_theta" in rows:
        base: float = local if isinstance(local, float) and local else _default(rows["local_theta"], reader)
        found["local_rope_theta"] = shortest_float32(float(base))
    return replace(config, **found, own=extra)
