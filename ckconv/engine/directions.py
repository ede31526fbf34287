"""Which quantised types each direction keeps, out of the tables that conversions work with."""

from __future__ import annotations

from ckconv.core.dtypes import DTYPES, DType, Kind
from ckconv.engine.targets import ADAPTERS, PLANNERS
from ckconv.formats.bump.slots import LOADED_BY_V3, LOADED_BY_V5, LOADED_BY_V5_IN_LAYERS
from ckconv.formats.detect import READERS
from ckconv.quant.repack import BY_BLOCK
from ckconv.quant.superblocks import RECIPES

#: What models are converted to, and from; adapters go between the formats of :data:`ADAPTERS`.
MODEL_TARGETS = tuple(name for name in PLANNERS if name not in ADAPTERS.values())
MODEL_SOURCES = tuple(name for name in READERS if name != "peft")

_LOADED = {"bump 3": LOADED_BY_V3, **dict.fromkeys(("bump 4", "bump 5"), (*LOADED_BY_V5, *LOADED_BY_V5_IN_LAYERS))}


def kept_types(source: str, target: str) -> tuple[str, ...]:
    """Block types of a model in format ``source`` that ``target`` holds without decoding a block.

    Those of MLX are named by the GGUF type that has the same numbers. Floats go from every format to every other.
    """
    return tuple(dtype.name for dtype in _blocks_in(source) if _holds(target, dtype))


def _blocks_in(source: str) -> list[DType]:
    """Block types that a model in this format may have."""
    blocks = [dtype for dtype in DTYPES.values() if dtype.kind is Kind.BLOCK and dtype.ggml is not None]
    if source == "gguf":
        return blocks
    if source == "mlx":
        return [dtype for dtype in blocks if dtype in BY_BLOCK]
    return [dtype for dtype in blocks if dtype.bump_v4 is not None] if source == "bump" else []


def _holds(target: str, dtype: DType) -> bool:
    if target in _LOADED:
        return dtype.name in _LOADED[target]
    return target == "gguf" or (target == "mlx" and (dtype in BY_BLOCK or dtype in RECIPES))
