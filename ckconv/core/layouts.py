"""How a tensor's canonical rows lie in stored bytes.

Canonical order is Hugging Face's: a matrix is ``[out, in]`` rows, the RoPE rows of a head are in split
("rotate half") order, and nothing is padded. A :class:`Layout` says where those rows are in a file:
head by head with padding, RoPE pairs interleaved, columns blocked by head, transposed. It is index
arithmetic over rows and knows no bytes and no files, so the same object serves a reader, a writer and
the verifier, and quantised rows move as opaque runs of whole blocks.

Units: rows and columns are elements. A vector is a matrix of one column, so that biases permute and
pad the way the rows of their matrix do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Index = NDArray[np.int64]

#: The number of a row, or of many.
Row = TypeVar("Row", int, "Index")


@dataclass(frozen=True, slots=True)
class Layout:
    """Canonical matrix ``[rows, cols]`` -> stored matrix ``[stored_rows, stored_cols]``.

    Attributes:
        rows, cols: the canonical matrix.
        stored_rows, stored_cols: the stored matrix, padding included. With ``column_head`` it is the
            stack of all head blocks; with ``transposed`` it is ``[cols, rows]``.
        head_rows, head_stride: rows of one head, and stored rows from one head to the next; 0 where
            rows form no heads.
        interleaved: within a head, canonical row ``i`` and row ``i + head_rows / 2`` are neighbours, as
            llama.cpp's converter stores the Q and K rows of llama models.
        column_head: canonical columns of one head, where the columns are stored as one block per head
            (bump 3's FP32 Wo: block ``h`` holds ``W[:, h*D:(h+1)*D]``); 0 where they are not.
        block_rows: stored rows of one such block.
        transposed: the stored matrix is ``[in, out]`` (GPT-2's Conv1D).
        column_offset: where the first canonical row is among the stored columns of a ``transposed`` matrix that
            holds more than one tensor side by side (GPT-2's fused q, k and v).
        shift: what is added to every canonical value in the file (gemma norms hold 1 + w in GGUF).
        scale: what every stored value is to be multiplied by (the B of a LoRA, whose scale its configuration holds);
            a float32 number.
    """

    rows: int
    cols: int
    stored_rows: int
    stored_cols: int
    head_rows: int = 0
    head_stride: int = 0
    interleaved: bool = False
    column_head: int = 0
    block_rows: int = 0
    transposed: bool = False
    column_offset: int = 0
    shift: int = 0
    scale: float = 1.0

    @property
    def in_order(self) -> bool:
        """Stored rows are the canonical rows and nothing else, in order: bytes can be copied as one run."""
        return (
            self.stored_rows == self.rows
            and self.stored_cols == self.cols
            and not (self.interleaved or self.transposed or self.column_head)
        )

    @property
    def padded(self) -> bool:
        """The stored matrix holds elements that are in no canonical row; all of them are zero."""
        return not self.transposed and self.stored_rows * self.stored_cols != self.rows * self.cols

    @property
    def elements(self) -> int:
        """Stored elements, padding included."""
        return self.stored_rows * self.stored_cols

    @property
    def heads(self) -> int:
        """Blocks of columns, or heads of rows; 1 where there are none."""
        if self.column_head:
            return self.cols // self.column_head
        return self.rows // self.head_rows if self.head_rows else 1

    def same_bytes_as(self, other: Layout) -> bool:
        """Both put the same values at the same places, so a whole tensor is one run of bytes."""
        if (self.shift, self.scale) != (other.shift, other.scale) or (self.rows, self.cols) != (other.rows, other.cols):
            return False
        if self.in_order and other.in_order:
            return True
        return not self.padded and self == other

    def stored_index(self, canonical: Row) -> Row:
        """Stored row of each canonical row. Not for ``transposed`` or ``column_head`` layouts."""
        if not self.head_rows:
            return canonical
        head, row = canonical // self.head_rows, canonical % self.head_rows
        if self.interleaved:
            half = self.head_rows // 2
            row = row % half * 2 + row // half
        return head * self.head_stride + row

    def canonical_index(self, stored: Index) -> Index:
        """Canonical row of each stored row, -1 for a padding row. The inverse of :meth:`stored_index`."""
        import numpy as np

        if not self.head_rows:
            return np.where(stored < self.rows, stored, -1)
        head, row = stored // self.head_stride, stored % self.head_stride
        padding = row >= self.head_rows
        if self.interleaved:
            half = self.head_rows // 2
            row = row // 2 + row % 2 * half
        return np.where(padding, -1, head * self.head_rows + row)


def plain(rows: int, cols: int, *, stored_rows: int = 0, stored_cols: int = 0, shift: int = 0) -> Layout:
    """Rows in canonical order, padded at the end of each row and after the last row."""
    return Layout(rows, cols, stored_rows or rows, stored_cols or cols, shift=shift)


def headed(
    heads: int, head_rows: int, cols: int, *, head_stride: int = 0, stored_cols: int = 0, interleaved: bool = False
) -> Layout:
    """``heads * head_rows`` rows, each head padded to ``head_stride`` stored rows."""
    stride = head_stride or head_rows
    return Layout(
        heads * head_rows, cols, heads * stride, stored_cols or cols, head_rows, stride, interleaved=interleaved
    )


def column_blocks(rows: int, heads: int, head_cols: int, *, block_rows: int = 0, stored_cols: int = 0) -> Layout:
    """``[rows, heads * head_cols]`` stored as one ``[block_rows, stored_cols]`` block per head."""
    block = block_rows or rows
    return Layout(
        rows, heads * head_cols, heads * block, stored_cols or head_cols, column_head=head_cols, block_rows=block
    )


def transposed(rows: int, cols: int, *, stored_cols: int = 0, column_offset: int = 0) -> Layout:
    """Canonical ``[rows, cols]`` stored as columns ``column_offset`` and on of ``[cols, stored_cols]``."""
    return Layout(rows, cols, cols, stored_cols or rows, transposed=True, column_offset=column_offset)


def shifted(layout: Layout, shift: int) -> Layout:
    """The same places, values stored ``shift`` higher."""
    return replace(layout, shift=shift)
