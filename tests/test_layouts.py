"""Layouts as index arithmetic: every canonical row has one stored place, and the way back is the inverse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckconv.core.layouts import Layout, column_blocks, headed, plain, shifted, transposed


@st.composite
def row_layouts(draw: st.DrawFn) -> Layout:
    """Layouts that keep rows whole: plain or by heads, padded or not, RoPE pairs as neighbours or not."""
    cols = draw(st.integers(1, 9))
    stored_cols = cols + draw(st.integers(0, 3))
    if draw(st.booleans()):
        rows = draw(st.integers(1, 40))
        return plain(rows, cols, stored_rows=rows + draw(st.integers(0, 5)), stored_cols=stored_cols)
    interleaved = draw(st.booleans())
    head_rows = draw(st.integers(1, 8)) * (2 if interleaved else 1)
    stride = head_rows + draw(st.integers(0, 4))
    return headed(
        draw(st.integers(1, 5)), head_rows, cols, head_stride=stride, stored_cols=stored_cols, interleaved=interleaved
    )


@given(row_layouts())
def test_stored_index_and_canonical_index_are_inverse(layout: Layout) -> None:
    canonical = np.arange(layout.rows)
    stored = layout.stored_index(canonical)
    assert len(set(stored.tolist())) == layout.rows
    assert stored.min() >= 0
    assert stored.max() < layout.stored_rows
    assert np.array_equal(layout.canonical_index(stored), canonical)
    back = layout.canonical_index(np.arange(layout.stored_rows))
    assert sorted(back[back >= 0].tolist()) == canonical.tolist()
    assert np.count_nonzero(back < 0) == layout.stored_rows - layout.rows


@given(row_layouts())
def test_in_order_means_that_nothing_moves(layout: Layout) -> None:
    still = np.array_equal(layout.stored_index(np.arange(layout.rows)), np.arange(layout.rows))
    if layout.in_order:
        assert still
        assert not layout.padded
    assert layout.padded == (layout.elements != layout.rows * layout.cols)


def test_interleaved_rows_of_a_head() -> None:
    # llama.cpp puts row i and row i + D/2 of a head side by side
    layout = headed(2, 6, 1, interleaved=True)
    assert layout.stored_index(np.arange(12)).tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    assert layout.canonical_index(np.arange(12)).tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def test_padded_heads() -> None:
    layout = headed(2, 3, 1, head_stride=4)
    assert layout.stored_index(np.arange(6)).tolist() == [0, 1, 2, 4, 5, 6]
    assert layout.canonical_index(np.arange(8)).tolist() == [0, 1, 2, -1, 3, 4, 5, -1]


A = plain(4, 6)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (A, plain(4, 6), True),
        (A, headed(2, 2, 6), True),
        (A, plain(6, 4), False),
        (A, shifted(A, 1), False),
        (shifted(A, 1), shifted(A, 1), True),
        (A, headed(2, 2, 6, interleaved=True), False),
        (headed(2, 2, 6, interleaved=True), headed(2, 2, 6, interleaved=True), True),
        (headed(1, 4, 6, interleaved=True), headed(2, 2, 6, interleaved=True), False),
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
    assert (blocks.heads, blocks.elements, blocks.padded) == (3, 96, True)
    assert (headed(3, 4, 2).heads, plain(3, 4).heads) == (3, 1)
    assert not transposed(3, 4).in_order
