"""Layers with a sliding window in a ``config.json``, by reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ckconv.core.config import Fail
from ckconv.families.functions import FULL, SLIDING, every
from ckconv.families.keys import MLX_LM
from ckconv.families.schema import Family

#: Layers below this one have full attention, where nothing is said (Qwen2Config, Qwen3Config).
_MAX_WINDOW_LAYERS = 28

Kinds = Callable[[], object]


class Windows(NamedTuple):
    """Window and sliding layers as read.

    Attributes:
        size: in tokens, ``None`` where no layer slides.
        layer_types: ``sliding_attention`` or ``full_attention`` for every layer, ``None`` where all are alike.
    """

    size: int | None
    layer_types: tuple[str, ...] | None = None


def read_windows(
    own: Mapping[str, Any], family: Family, consumer: str, size: int | None, layers: int, kinds: Kinds, fail: Fail
) -> Windows:
    """Read the window by the rule of the family for the consumer.

    Args:
        size: what ``sliding_window`` says, or the class takes for it; ``None`` for none.
        layers: how many there are.
        kinds: what the family's row of ``layer_types`` says.
    """
    style = family.document.window
    rule = style.mlx_lm if consumer == MLX_LM else style.transformers
    types: tuple[str, ...] = ()
    if rule == "period":
        return _by_period(own, consumer, size, layers, style.period, fail)
    if rule == "listed":
        types = _listed(own.get("layer_types"), layers, fail) or ()
    elif rule == "by_layer":
        types = _listed(kinds(), layers, fail) or ()
    elif rule == "all" or (rule == "switch" and own.get("use_sliding_window")):
        types = (SLIDING,) * layers
    elif rule == "switch_by_layer" and own.get("use_sliding_window"):
        types = _from_a_layer_on(own, size, layers, fail)
    if size is None or SLIDING not in types:
        return Windows(None, types if rule == "by_layer" else None)
    if size == 0:
        raise fail("sliding_window is 0")
    return Windows(size, types if FULL in types or rule == "by_layer" else None)


def _from_a_layer_on(own: Mapping[str, Any], size: int | None, layers: int, fail: Fail) -> tuple[str, ...]:
    stated = _listed(own.get("layer_types"), layers, fail)
    if stated is not None:
        return stated
    first = own.get("max_window_layers", _MAX_WINDOW_LAYERS)
    if isinstance(first, bool) or not isinstance(first, int):
        raise fail(f"max_window_layers must be a whole number, got {first!r}")
    return tuple(SLIDING if size is not None and n >= first else FULL for n in range(layers))


def _by_period(own: Mapping[str, Any], consumer: str, size: int | None, layers: int, usual: int, fail: Fail) -> Windows:
    """Kinds by the list, else by period; ``_sliding_window_pattern`` is moot."""
    types = None if consumer == MLX_LM else _listed(own.get("layer_types"), layers, fail)
    if types is None:
        period = own.get("sliding_window_pattern", usual)
        if isinstance(period, bool) or not isinstance(period, int) or period <= 0:
            raise fail(f"sliding_window_pattern must be a whole number above 0, got {period!r}")
        types = tuple(every(layers, period, SLIDING, FULL))
    if SLIDING in types and not size:
        said = "null" if own.get("sliding_window", 0) is None else own.get("sliding_window")
        keys = "layer_types, sliding_window_pattern, model_type"
        raise fail(f"sliding_window is {said}, and {types.count(SLIDING)} layers slide ({keys})")
    return Windows(size, types)


def _listed(kinds: object, layers: int, fail: Fail) -> tuple[str, ...] | None:
    if kinds is None:
        return None
    if not isinstance(kinds, list) or not all(kind in (SLIDING, FULL) for kind in kinds):
        raise fail(f"layer_types must list {SLIDING} or {FULL} for every layer")
    if len(kinds) != layers:
        raise fail(f"layer_types has {len(kinds):,} entries, num_hidden_layers is {layers:,}")
    return tuple(kinds)
