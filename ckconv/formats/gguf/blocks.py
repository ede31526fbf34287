"""The block types of ggml, all of which a GGUF holds."""

from __future__ import annotations

from ckconv.core.dtypes import DTYPES, Kind

BLOCKS = tuple(dtype.name for dtype in DTYPES.values() if dtype.kind is Kind.BLOCK and dtype.ggml is not None)
