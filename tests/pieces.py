"""The bytes of a tensor as a layout stores them, one piece after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ckconv.core.layouts import Layout
from ckconv.io.rows import stored_pieces
from ckconv.quant.convert import Conversion


def stored_chunks(reader: Any, layout: Layout, conversion: Conversion) -> Iterator[tuple[Any, int]]:
    """What the makers of pieces make, in order."""
    return (piece(reader) for piece in stored_pieces(reader, layout, conversion))
