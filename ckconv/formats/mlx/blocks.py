"""Quantised matrices of MLX, named by the block type of ggml that has the same numbers."""

from __future__ import annotations

from ckconv.quant.repack import BY_BLOCK
from ckconv.quant.superblocks import SUPERBLOCKS

#: What a model of MLX may have, and what becomes an MLX matrix without being decoded.
BLOCKS = tuple(dtype.name for dtype in BY_BLOCK)
HELD = (*BLOCKS, *(dtype.name for dtype in SUPERBLOCKS if dtype not in BY_BLOCK))
