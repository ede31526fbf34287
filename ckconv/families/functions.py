"""Functions for expressions of family files, pure in their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ckconv.core.config import shortest_float32, yarn_scale

SLIDING, FULL = "sliding_attention", "full_attention"
#: Gemma 3's period, where nothing else is said.
PERIOD = 6


def cycle(count: int, items: list[Any]) -> list[Any]:
    """``count`` items, those given over and over."""
    return [items[n % len(items)] for n in range(count)]


def leading(count: int, first: int, one: Any, other: Any) -> list[Any]:
    """``count`` items: ``one`` for the first few, then ``other``."""
    return [one if n < first else other for n in range(count)]


def each(items: list[Any], item: Any, one: Any, other: Any) -> list[Any]:
    """``one`` where a list holds ``item``, ``other`` elsewhere."""
    return [one if found == item else other for found in items]


def spelled(pattern: Sequence[str], letters: str, words: list[str]) -> list[str]:
    """A word for each letter of a pattern."""
    return [words[letters.index(letter)] for letter in pattern]


def overlaid(items: list[Any], others: list[Any]) -> list[Any]:
    """Items of a list, with gaps filled from a second list."""
    return [item or other for item, other in zip(items, others, strict=True)]


def spread(count: int, it: Any) -> list[Any]:
    """List for every layer, made of a list or a single value."""
    return it if isinstance(it, list) else [it] * count


def of_kind(items: list[Any], kinds: Sequence[str], kind: str) -> Any:
    """Common item of all layers of a kind, or of all layers without any."""
    found = [item for item, own in zip(items, kinds, strict=True) if own == kind] or items
    if found.count(found[0]) < len(found):
        raise ValueError(f"{kind} layers have {found}")
    return found[0]


def first(items: list[Any], number: int) -> list[Any]:
    """The first few items of a list."""
    return items[:number]


def first_of(items: list[Any], item: Any) -> int:
    """Where a list has an item first, 0 where it has none."""
    return items.index(item) if item in items else 0


def count(items: list[Any], item: Any) -> int:
    """How often a list has an item."""
    return items.count(item)


def overridden(table: dict[Any, dict[str, Any]], kinds: Sequence[str], kind: str, key: str, other: Any) -> Any:
    """``per_layer_config`` value of all layers of a kind, else a default."""
    if not all(str(layer).isdecimal() and isinstance(row, dict | None) for layer, row in table.items()):
        raise ValueError("per_layer_config does not name layers")
    own = {int(layer): row for layer, row in table.items() if row}
    if any(layer >= len(kinds) for layer in own):
        raise ValueError(f"per_layer_config names layer {max(own)}, and the last one is {len(kinds) - 1}")
    if any(kinds[layer] != kind for layer in own):
        raise ValueError(f"per_layer_config names layers that are not {kind}")
    return of_kind([own.get(n, {}).get(key, other) for n in range(len(kinds))], kinds, kind)


def numbered(count: int, numbers: list[int], one: Any, other: Any, start: int = 0) -> list[Any]:
    """Items from ``start`` on: ``one`` at given numbers, else ``other``."""
    return [one if n in numbers else other for n in range(start, start + count)]


def numbers(items: list[Any], item: Any, start: int = 0) -> list[int]:
    """Where a list has an item, numbered from ``start``."""
    return [n for n, found in enumerate(items, start) if found == item]


def among(count: int, numbers: list[int]) -> list[int]:
    """Numbers of a list that are below ``count``."""
    return [n for n in range(count) if n in numbers]


def every(count: int, period: int, one: Any, other: Any, start: int = -1) -> list[Any]:
    """``count`` items ``one``, with ``other`` at every ``period``-th.

    Args:
        start: the first of those, ModernBERT's 0; the last of the first period otherwise.
    """
    return [one if (n - start) % period else other for n in range(count)]


def from_first(kinds: Sequence[str], usual: int) -> int | None:
    """Period of full attention from the first layer on, or ``None``."""
    periods = (usual, *range(1, len(kinds) + 2))
    return next((p for p in periods if list(kinds) == every(len(kinds), p, SLIDING, FULL, 0)), None)


def period_of(kinds: Sequence[str]) -> int | None:
    """Period of full attention that gives these layers, or ``None``."""
    period = kinds.index(FULL) + 1 if FULL in kinds else max(PERIOD, len(kinds) + 1)
    return period if list(kinds) == every(len(kinds), period, SLIDING, FULL) else None


def slide_pattern(kinds: Sequence[str], usual: int = PERIOD) -> int | list[bool] | None:
    """Sliding layers as a period or flags, if not llama.cpp's default."""
    if SLIDING not in kinds or list(kinds) == every(len(kinds), usual, SLIDING, FULL):
        return None
    return period_of(kinds) or [kind == SLIDING for kind in kinds]


def slides(count: int, pattern: int | list[bool]) -> list[str]:
    """Kinds of layers from a period (0: all slide) or from flags."""
    if isinstance(pattern, list):
        return [SLIDING if n < len(pattern) and pattern[n] else FULL for n in range(count)]
    return every(count, pattern, SLIDING, FULL) if pattern else [SLIDING] * count


def stride(items: list[Any], item: Any) -> int:
    """Regular distance between places of an item in a list."""
    start = first_of(items, item) if item in items else len(items)
    for period in range(start + 1, len(items) + 2):
        if [found == item for found in items] == every(len(items), period, False, True, start):
            return period
    raise ValueError(f"{item} does not come in regular steps")


def letters(kinds: Sequence[str]) -> str:
    """Shortest repeated pattern of L (sliding) and G, as in Exaone 4."""
    every_one = "".join("L" if kind == SLIDING else "G" for kind in kinds)
    return next(
        every_one[:n] for n in range(1, len(kinds) + 1) if cycle(len(kinds), list(every_one[:n])) == list(every_one)
    )


def lettered(count: int, pattern: str | int | None) -> list[str]:
    """Kinds of layers from ``LLLG`` or a period; by default none slides."""
    if isinstance(pattern, str) and pattern:
        return [SLIDING if letter == "L" else FULL for letter in cycle(count, list(pattern))]
    return every(count, int(pattern or 1), SLIDING, FULL)


def longrope_scale(stretch: float, original: int) -> float:
    """Factor of LongRoPE on cosines and sines, as in transformers."""
    return shortest_float32(math.sqrt(1 + math.log(stretch) / math.log(original))) if stretch > 1 else 1.0


def yarn_attention(stored: float, taken: float) -> float | None:
    """Shortest ``attention_factor`` that gives llama.cpp's float32 factor."""
    if stored == 1:
        return None
    shortest = (float(f"{stored * taken:.{digits}g}") for digits in range(1, 17))
    return next((it for it in shortest if shortest_float32(it / taken) == stored), stored * taken)


def lines(items: list[str]) -> str:
    """Join lines to a text, with line feeds between them."""
    return "\n".join(items)


def classifies(classes: object) -> bool:
    """``architectures`` of a document name a classifier of texts."""
    return isinstance(classes, list) and any(str(name).endswith("ForSequenceClassification") for name in classes)


def items(table: object) -> list[str]:
    """Items of ``id2label`` by number, without gaps."""
    if not isinstance(table, dict) or not table or {str(key) for key in table} != set(map(str, range(len(table)))):
        raise ValueError("a label for every number from 0 on is expected")
    return [str(table.get(str(n), table.get(n))) for n in range(len(table))]


def labels_of(count: int) -> list[str]:
    """Names of transformers for labels without names."""
    return [f"LABEL_{n}" for n in range(count)]


def indexed(items: list[Any]) -> dict[str, Any]:
    """``id2label``: number -> item."""
    return {str(n): item for n, item in enumerate(items)}


def indices(items: list[Any]) -> dict[str, int]:
    """``label2id``: item -> number."""
    return {str(item): n for n, item in enumerate(items)}


BY_NAME: dict[str, Callable[..., Any]] = {
    "cycle": cycle,
    "leading": leading,
    "each": each,
    "spelled": spelled,
    "overlaid": overlaid,
    "spread": spread,
    "of_kind": of_kind,
    "first": first,
    "first_of": first_of,
    "count": count,
    "overridden": overridden,
    "numbered": numbered,
    "numbers": numbers,
    "among": among,
    "every": every,
    "from_first": from_first,
    "period_of": period_of,
    "slide_pattern": slide_pattern,
    "slides": slides,
    "lines": lines,
    "classifies": classifies,
    "items": items,
    "labels_of": labels_of,
    "indexed": indexed,
    "indices": indices,
    "stride": stride,
    "letters": letters,
    "lettered": lettered,
    "longrope_scale": longrope_scale,
    "yarn_scale": yarn_scale,
    "yarn_attention": yarn_attention,
}
