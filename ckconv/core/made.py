"""Sequences whose items are made when they are asked for: of a million tensors every object that is kept counts."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TypeVar, overload

T = TypeVar("T")

#: Items that are kept: as many tensors as large models have.
KEPT = 1 << 16


class Made(Sequence[T]):
    """``count`` items, each made anew whenever it is asked for."""

    __slots__ = ("_count", "_make")

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        """Make nothing yet.

        Args:
            make: the item of a place, the same each time.
        """
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return map(self._make, range(self._count))

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        if isinstance(at, slice):
            return tuple(map(self._make, range(self._count)[at]))
        return self._make(at if 0 <= at < self._count else range(self._count)[at])


def made(count: int, make: Callable[[int], T]) -> Sequence[T]:
    """``count`` items: kept where they are few, else made whenever they are asked for."""
    return tuple(map(make, range(count))) if count <= KEPT else Made(count, make)


def chained(parts: Sequence[Sequence[T]]) -> Sequence[T]:
    """The items of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    ends = array("Q", accumulate(map(len, parts)))

    def item(at: int) -> T:
        number = bisect_right(ends, at)
        return parts[number][at - ends[number]]

    return made(ends[-1] if ends else 0, item)
