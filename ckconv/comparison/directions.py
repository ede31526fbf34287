"""Which quantised types each direction keeps, out of the tables that conversions work with."""

from __future__ import annotations

from ckconv.core.dtypes import DTYPES, Kind
from ckconv.formats import FORMATS, Place, load, model_outputs


def model_sources() -> list[str]:
    """The formats that models are read from."""
    return [format.name for format in FORMATS if format.read is not None]


def kept_types() -> dict[tuple[str, str], tuple[str, ...]]:
    """Source and target -> block types of a model that the target holds without decoding a block.

    Those of MLX are named by the GGUF type that has the same numbers. Floats go from every format to every other.
    """
    return {
        (source.name, target.name): tuple(name for name in _blocks(source.blocks) if name in _blocks(target.blocks))
        for source in FORMATS
        if source.read is not None
        for target in model_outputs()
    }


def _blocks(place: Place | None) -> list[str]:
    """In the order of the table of types."""
    held = load(place) if place is not None else ()
    return [dtype.name for dtype in DTYPES.values() if dtype.kind is Kind.BLOCK and dtype.name in held]
