"""Rows of tests whose kinds other rows show: ``make combinations`` runs them, and ``make test`` does not."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence, Set as AbstractSet
from typing import Any, TypeVar

import pytest

Row = TypeVar("Row")


def beside(kinds: Sequence[AbstractSet[Hashable]]) -> set[int]:
    """The numbers of rows that need not run, because all of their kinds are in others."""
    missing, left = set[Hashable]().union(*kinds), {*range(len(kinds))}
    for many in range(max(map(len, kinds), default=0), 0, -1):
        for number, found in enumerate(kinds):
            if len(found & missing) >= many:
                missing -= found
                left.discard(number)
    return left


def diagonals(rows: Sequence[Sequence[Hashable]]) -> list[int]:
    """The numbers of a product's rows, those of its diagonal first: no value is in many rows and another one in few."""
    axes = [{value: place for place, value in enumerate(dict.fromkeys(axis))} for axis in zip(*rows, strict=True)]
    longest = max(range(len(axes)), key=lambda axis: len(axes[axis]))

    def off(number: int) -> list[int]:
        row = rows[number]
        place = axes[longest][row[longest]]
        return [(places[value] - place) % len(places) for value, places in zip(row, axes, strict=True)]

    return sorted(range(len(rows)), key=off)


def shown(
    rows: Iterable[Row], kinds_of: Callable[[Row], AbstractSet[Hashable]], name: Callable[[Row], str] = str
) -> list[Any]:
    """Parameters of a test, those marked whose kinds others show."""
    every = [*rows]
    left = beside([kinds_of(row) for row in every])
    return [
        pytest.param(row, id=name(row), marks=[pytest.mark.combinations] * (number in left))
        for number, row in enumerate(every)
    ]
