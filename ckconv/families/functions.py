"""Rules that no table can say, by the name that family files call them with; each a pure function of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def cycle(count: int, items: list[Any]) -> list[Any]:
    """``count`` items, those given over and over."""
    return [items[n % len(items)] for n in range(count)]


def leading(count: int, first: int, one: Any, other: Any) -> list[Any]:
    """``count`` items: ``one`` for the first few, then ``other``."""
    return [one if n < first else other for n in range(count)]


def each(items: list[Any], item: Any, one: Any, other: Any) -> list[Any]:
    """``one`` where a list holds ``item``, ``other`` elsewhere."""
    return [one if found == item else other for found in items]


def every(count: int, period: int, one: Any, other: Any) -> list[Any]:
    """``count`` items: ``one``, and ``other`` as every ``period``-th of them (Gemma 3's layers of full attention)."""
    return [one if (n + 1) % period else other for n in range(count)]


BY_NAME: dict[str, Callable[..., Any]] = {"cycle": cycle, "leading": leading, "each": each, "every": every}
