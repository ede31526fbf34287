"""RoPE of a ``config.json``: base, scaling, rotated part, conflicts.

Sources: ``RotaryEmbeddingConfigMixin`` of modeling_rope_utils.py, transformers 5.23, and its overrides by gemma3 and
phi3; ``ModelArgs`` of mlx-lm 0.32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ckconv.core.config import (
    NUMBERS,
    REAL,
    Cause,
    Fail,
    Modifier,
    checked_number,
    same_factors_always,
    without_yarn_default,
)
from ckconv.families.key_rows import RopeStyle
from ckconv.families.keys import MLX_LM, TRANSFORMERS
from ckconv.families.rope_keys import ROPE_KEYS

#: Types whose frequencies follow from the context length before scaling; the model's own, where none is said.
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
    default: float,
    consumer: str,
    context: int,
    turns_a_part: bool,
    fail: Fail,
) -> Rope:
    """Read both styles of RoPE keys as the consumer does.

    Args:
        default: the base that the class takes where none is said.
        context: the model's context length.
        turns_a_part: the class turns a part of every head where nothing is scaled; others turn all of it.
    """
    own = {**own, "rope_theta": own.get(style.theta), "partial_rotary_factor": own.get(style.share)}
    scaling = _object(own.get("rope_scaling"), "rope_scaling", fail)
    nested = _object(own.get("rope_parameters"), "rope_parameters", fail)
    if own.get("rope_parameters") is None and consumer == TRANSFORMERS:
        nested = style.default
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
    if theta == 0:
        raise fail(f"{_said(stated, theta)} is 0")
    modifiers: list[str] = []
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
            overruled.append(f"{key}, because {_said(stated, theta)} is there")
    kind, other = _kind(table, name, consumer, fail)
    overruled += [f"{name}.{key}, because {name}.{word} is there" for key, word in other.items()]
    if consumer == MLX_LM and table is not nested:
        unread, _ = _kind(nested, where, TRANSFORMERS, fail)
        if unread not in ("default", kind):
            key = "type" if nested.get("rope_type") is None else "rope_type"
            modifiers.append(f"{where}.{key} = {unread!r}, which mlx-lm does not read")
    if local:
        slides, _ = _kind(local, "rope_parameters.sliding_attention", consumer, fail)
        if slides != "default":
            modifiers.append(f"rope_parameters.sliding_attention.rope_type = {slides!r}")
    base = local.get("rope_theta") if consumer == TRANSFORMERS else None
    known = ROPE_KEYS.get(kind)
    unknown = tuple(f"{name}.{key}" for key in known.unknown(table)) if known else ()
    if style.alpha and table.get("alpha") and (consumer == MLX_LM or kind == "dynamic"):
        alpha = float(checked_number(f"{name}.alpha", table["alpha"], REAL, fail))
        return Rope(float(theta), base, 1.0, None, tuple(modifiers), (), tuple(overruled), alpha)
    takes_mrope = consumer == MLX_LM or "mrope" in style.types
    plain = kind == "default" or (takes_mrope and _is_plain_mrope(table, kind))
    in_table = consumer == TRANSFORMERS or style.mlx_lm == "only_rope_parameters"
    part, key, idle = _part(own, table if in_table else {}, name, style.part.get(consumer, 1.0), fail)
    if consumer == MLX_LM:
        part, said = _mlx_part(own, nested, where, part, style, turns_a_part=turns_a_part, scaled=kind != "default")
        modifiers += said + _mlx_numbers(table, name, scaling if table is nested else nested, where, kind)
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
    made = _completed(own, table, kind, name, consumer, context, fail)
    if turns_a_part or kind == "longrope":
        made = {key: value for key, value in made.items() if key != "partial_rotary_factor"}
    part = part if turns_a_part else 1.0
    if consumer == MLX_LM and kind == "longrope" and not same_factors_always(made):
        modifiers.append(f"{name}.long_factor, which mlx-lm also uses for short sequences,")
    return Rope(float(theta), base, part, made, tuple(modifiers), unknown, tuple(overruled))


def of_a_count(own: Mapping[str, Any], values: Mapping[str, float], key: str, consumer: str, fail: Fail) -> Any:
    """Document with the rotated part of a head from a count of elements."""
    if not key or own.get(key) is None:
        return own
    head = values.get("head_dim") or values.get("hidden_size", 0) // values.get("num_heads", 1)
    part = {"partial_rotary_factor": checked_number(key, own[key], NUMBERS["rotary_dim"], fail) / (head or 1)}
    return {**own, **part} if consumer == MLX_LM else {**part, **own}


def _is_plain_mrope(table: Mapping[str, Any], kind: str) -> bool:
    """Whether mlx-lm rotates text by ``mrope`` as without scaling.

    So do the classes of transformers that know the type.
    """
    sections = table.get("mrope_section")
    return kind == "mrope" and isinstance(sections, list) and len(sections) == 3


Found = tuple[float, Mapping[str, Any], str]


def _of_transformers(
    own: Mapping[str, Any], style: RopeStyle, scaling: Mapping[str, Any], nested: Mapping[str, Any],
    stated: Mapping[str, float], default: float, where: str,
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
    stated: Mapping[str, float], default: float, where: str,
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


def _said(stated: Mapping[str, float], theta: float) -> str:
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
    nested: Mapping[str, Any],
    where: str,
    part: float,
    style: RopeStyle,
    *,
    turns_a_part: bool,
    scaled: bool,
) -> tuple[float, list[str]]:
    """The part that mlx-lm's class turns, and keys that say another one.

    A class that turns whole heads whatever is said: what released models say is left to a note of the engine's row.
    """
    said = {f"{where}.partial_rotary_factor": nested.get("partial_rotary_factor")}
    if style.whole:
        said[style.share] = own.get("partial_rotary_factor")
        usual = style.part[MLX_LM]
        stated = [value for value in said.values() if value is not None]
        part = usual if all(value == usual for value in stated) else 1.0
    elif not (turns_a_part or scaled):
        return part, []
    return part, [_two(key, value, f"{part:g}") for key, value in said.items() if value is not None and value != part]


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


def _completed(
    own: Mapping[str, Any], table: Mapping[str, Any], kind: str, name: str, consumer: str, context: int, fail: Fail
) -> dict[str, Any]:
    """Scaling, completed by the numbers that its reader assumes."""
    made = {key: value for key, value in table.items() if key != "type"} | {"rope_type": kind}
    if consumer == MLX_LM:
        read = ROPE_KEYS.get(kind)  # the other library must not find what this one takes no notice of
        made = {key: value for key, value in made.items() if read is None or read.reads(key, consumer)}
        made |= {key: value for key, value in _OF_MLX.get(kind, {}).items() if made.get(key) is None}
    if kind in _FROM_CONTEXT and (consumer == TRANSFORMERS or kind == "longrope"):
        original = own.get("original_max_position_embeddings", table.get("original_max_position_embeddings"))
        made["original_max_position_embeddings"] = original = context if original is None else original
        if kind == "yarn" and "factor" in table and table["factor"] is None and isinstance(original, int) and original:
            made["factor"] = context / original
        if kind == "yarn" and not (made.get("mscale") and made.get("mscale_all_dim")):
            made = {key: value for key, value in made.items() if key not in ("mscale", "mscale_all_dim")}
    for key in _NEEDED.get(kind, ()):
        if made.get(key) is None:
            raise fail(f"{name}.{key} is missing, which rope_type {kind} needs")
    for key in _FACTORS if kind == "longrope" else ():
        if not isinstance(made[key], list) or not made[key]:
            raise fail(f"{name}.{key} must be a list of numbers, got {made[key]!r}")
    for key, value in _numbers(made):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise fail(f"{name}.{key} must be a number above 0, got {value!r}")
    if kind == "yarn" and consumer == TRANSFORMERS:
        made = without_yarn_default(made)
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


def _numbers(made: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for key in _NUMBERS:
        if made.get(key) is not None:
            yield key, made[key]
    for key in _FACTORS if made["rope_type"] == "longrope" else ():
        yield from ((key, factor) for factor in made[key])
