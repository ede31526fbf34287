"""Quantize with ggml-python: libgguf's blocks, some in half the time.

libgguf is built for every processor of a kind; ggml-python is built where it is installed, with the instructions that
the processor has. The blocks are equal, which is looked at before a type is made: of a first block by its checksum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from ckconv.core.lazy import np
from ckconv.system import c_function

if TYPE_CHECKING:
    from ckconv.core.dtypes import DType
    from ckconv.quant.codec import Floats, Rows

#: Types that it makes faster -> CRC-32 of the blocks that llama.cpp's library makes of :func:`_first_values`, without
#: and with an importance matrix. It makes tables for IQ1, IQ2 and IQ3 first, which take longer than a small model.
CHECKSUMS = {
    "Q2_K": 0x87F01D79,
    "Q3_K": 0xC8138000,
    "Q4_K": 0xD5D21C21,
    "Q5_K": 0xAA9C9589,
    "Q6_K": 0x9D16FA54,
    "IQ4_NL": 0x552A2C6F,
    "IQ4_XS": 0x330AF4B6,
    "MXFP4": 0x96C80682,
}


def quantizer_of(dtype: DType) -> str:
    """Name and version of ggml-python where it makes blocks of this type."""
    from importlib.metadata import version

    return f"ggml-python {version('ggml_python')}" if _makes(dtype) else ""


def differs(dtype: DType) -> bool:
    """Whether ggml-python is installed and its blocks are not llama.cpp's."""
    return dtype.name in CHECKSUMS and _library() is not None and not _makes(dtype)


def quantize(floats: Floats, dtype: DType, importance: Floats | None) -> Rows | None:
    """float32 ``[n, cols]`` -> ``[n, bytes]``, ``None`` for libgguf to make.

    The values lie one after the other.

    Args:
        importance: ``[cols]`` contiguous float32, how much the error of each column counts.
    """
    return _quantized(floats, dtype, importance) if floats.size and _makes(dtype) else None


@cache
def _makes(dtype: DType) -> bool:
    if dtype.name not in CHECKSUMS or _library() is None:
        return False
    return checksum(dtype) == CHECKSUMS[dtype.name]


def checksum(dtype: DType) -> int:
    """CRC-32 of the first blocks."""
    values, importance = _first_values()
    without, weighted = (_quantized(values, dtype, weights) for weights in (None, importance))
    return crc32(weighted.tobytes(), crc32(without.tobytes()))


def _first_values() -> tuple[Floats, Floats]:
    """A row of 256 values, and as many weights: fractions that float32 holds."""
    numbers = np.arange(256)
    values = ((numbers * 37 % 251 - 125) / 64).astype(np.float32)
    return values[np.newaxis], ((numbers * 11 % 17 + 1) / 16).astype(np.float32)


def _quantized(floats: Floats, dtype: DType, importance: Floats | None) -> Rows:
    library = _library()
    assert library is not None
    rows, columns = floats.shape
    made = np.empty((rows, dtype.nbytes(columns)), np.uint8)
    library(dtype.ggml, _at(floats), _at(made), 0, rows, columns, None if importance is None else _at(importance))
    return made


def _at(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> int:
    return int(array.ctypes.data)


@cache
def _library() -> Callable[..., int] | None:
    """Load ``ggml_quantize_chunk`` of ``ggml.h`` by ctypes.

    The package's own module takes longer to import.
    """
    spec = find_spec("ggml")
    folder = Path(spec.origin).parent / "lib" if spec and spec.origin else Path()
    return c_function(folder, "ggml-base", "ggml_quantize_chunk", "iPPqqqP")
