"""Layouts as index arithmetic: every canonical row has one stored place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ckconv.core.layouts import Layout, Strip, boxes, column_blocks, headed, plain, shifted, transposed


@dataclass(frozen=True)
class Places:
    """A layout, and its stored place (row and column) of every canonical one, said in the plainest way."""

    layout: Layout
    place: Callable[[int, int], tuple[int, int]]

    def packed(self, matrix: np.ndarray) -> np.ndarray:
        """The stored matrix of a canonical one, element by element."""
        out = np.zeros((self.layout.stored_rows, self.layout.stored_cols), matrix.dtype)
        for r, c in np.ndindex(matrix.shape):
            out[self.place(r, c)] = matrix[r, c]
        return out


def by_heads(head_rows: int, stride: int, *, interleaved: bool) -> Callable[[int, int], tuple[int, int]]:
    def place(r: int, c: int) -> tuple[int, int]:
        head, row = divmod(r, head_rows)
        half = head_rows // 2
        if interleaved:
            row = 2 * row if row < half else 2 * (row - half) + 1
        return head * stride + row, c

    return place


@st.composite
def row_places(draw: st.DrawFn, *, cols: int = 0) -> Places:
    """Layouts that keep rows whole: plain or by heads, padded or not, RoPE pairs as neighbors or not."""
    stored_cols = cols or draw(st.integers(1, 9)) + draw(st.integers(0, 3))
    cols = cols or draw(st.integers(1, stored_cols))
    if draw(st.booleans()):
        rows = draw(st.integers(1, 40))
        layout = plain(rows, cols, stored_rows=rows + draw(st.integers(0, 5)), stored_cols=stored_cols)
        return Places(layout, lambda r, c: (r, c))
    interleaved = draw(st.booleans())
    head_rows = draw(st.integers(1, 8)) * (2 if interleaved else 1)
    stride = head_rows + draw(st.integers(0, 4))
    heads = draw(st.integers(1, 5))
    return Places(
        headed(heads, head_rows, cols, head_stride=stride, stored_cols=stored_cols, interleaved=interleaved),
        by_heads(head_rows, stride, interleaved=interleaved),
    )


@given(row_places())
def test_every_row_starts_where_it_is_placed(places: Places) -> None:
    layout = places.layout
    (strip,) = layout.strips
    wanted = [places.place(r, 0)[0] * layout.stored_cols for r in range(layout.rows)]
    assert strip.start(np.arange(layout.rows)).tolist() == wanted
    assert [strip.start(r) for r in range(layout.rows)] == wanted
    assert layout.padded == (layout.elements != layout.rows * layout.cols)
    if layout.in_order:
        assert wanted == list(range(0, layout.elements, layout.cols))


@given(row_places(), st.data())
def test_what_lies_between_two_stored_elements(places: Places, data: st.DataObject) -> None:
    layout = places.layout
    start, stop = sorted(data.draw(st.integers(0, layout.elements)) for _ in range(2))
    numbers = places.packed(np.arange(1, layout.rows * layout.cols + 1).reshape(layout.rows, layout.cols)).reshape(-1)
    (strip,) = layout.strips
    found = []
    for box in strip.between(start, stop):
        axes = zip(strip.stored, box, strict=True)
        inner = [[i * (step if mine else 1) for i in range(low, high)] for (_, _, step, mine), (low, high) in axes]
        scaled = [
            [n * (layout.cols if mine else 1) for n in each]
            for each, (_, _, _, mine) in zip(inner, strip.stored, strict=True)
        ]
        found += [1 + sum(each) for each in itertools.product(*scaled)]
    assert found == [int(n) for n in numbers[start:stop] if n]


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_boxes_are_the_elements_in_order(sizes: list[int], data: st.DataObject) -> None:
    count = math.prod(sizes)
    start, stop = sorted(data.draw(st.integers(0, count)) for _ in range(2))
    ranges = [[range(low, high) for low, high in box] for box in boxes(sizes, start, stop)]
    strides = [math.prod(sizes[n + 1 :]) for n in range(len(sizes))]
    flat = [
        sum(i * stride for i, stride in zip(at, strides, strict=True))
        for box in ranges
        for at in itertools.product(*box)
    ]
    assert flat == list(range(start, stop))
    assert len(ranges) <= 2 * len(sizes) + 1


A = plain(4, 6)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (A, plain(4, 6), True),
        (A, headed(2, 2, 6), True),
        (A, plain(6, 4), False),
        (A, shifted(A, 1), False),
        (shifted(A, 1), shifted(A, 1), True),
        (A, headed(1, 4, 6, interleaved=True), False),
        (A, headed(2, 2, 6, interleaved=True), True),  # halves of one row
        (headed(2, 2, 6, interleaved=True), headed(2, 2, 6, interleaved=True), True),
        (headed(1, 8, 6, interleaved=True), headed(2, 4, 6, interleaved=True), False),
        (A, transposed(4, 6), False),
        (transposed(4, 6), transposed(4, 6), True),
        (column_blocks(4, 2, 3), column_blocks(4, 2, 3), True),
        (column_blocks(4, 2, 3), column_blocks(4, 3, 2), False),
        (A, plain(4, 6, stored_cols=8), False),
        # padding is never copied from another file: it is written, so that it is zero
        (plain(4, 6, stored_cols=8), plain(4, 6, stored_cols=8), False),
    ],
)
def test_same_bytes(one: Layout, other: Layout, same: bool) -> None:
    assert one.same_bytes_as(other) is same
    assert other.same_bytes_as(one) is same


def test_sizes() -> None:
    blocks = column_blocks(5, 3, 2, block_rows=8, stored_cols=4)
    assert (blocks.rows, blocks.cols, blocks.stored_rows, blocks.stored_cols) == (5, 6, 24, 4)
    assert (blocks.elements, blocks.padded) == (96, True)
    assert not transposed(3, 4).in_order


@pytest.mark.parametrize(
    ("layout", "heads"),
    [(headed(3, 4, 2, interleaved=True), 3), (headed(1, 4, 2, interleaved=True, head_stride=6), 1)],
)
def test_heads_whose_rows_are_interleaved(layout: Layout, heads: int) -> None:
    assert layout.interleaved
    assert layout.heads == heads
    assert not any(other.interleaved for other in (headed(heads, 4, 2), transposed(4, 6), column_blocks(4, 2, 3)))


def test_rows_of_another_width_are_at_the_same_places() -> None:
    wide, narrow = headed(2, 4, 64, interleaved=True), headed(2, 4, 8, interleaved=True)
    assert wide.of_width(8) == narrow
    assert wide.part(4, 4).strips[0].first == 4 * 64


def test_rows_of_several_strips_start_where_their_strip_has_them() -> None:
    # Q, K and V of two heads of two rows, head by head, three elements a row
    q, k, v = (Strip(first * 6, ((2, 18), (2, 3)), ((3, 1),)) for first in range(3))
    layout = Layout(12, 3, 12, 3, (q, k, v))

    starts = layout.start(np.arange(12)) // 3

    assert starts.tolist() == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]
    assert [layout.part(first, 4).strips[0].start(0) // 3 for first in (0, 4, 8)] == [0, 2, 4]
