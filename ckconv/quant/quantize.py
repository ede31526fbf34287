"""Quantize float32 to ggml's blocks, the very bytes of llama-quantize.

Three libraries give them: libgguf is ggml's own code and has every type, ggml-python makes some of them faster, and
gguf's quantizers in numpy are slower and have some. Blocks of a row depend on nothing outside of the row, so rows may
be quantized in any order and any tile.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

from ckconv.core.late import Floats, NamedTuple, Rows, np
from ckconv.core.layouts import DTYPES, F32, WIDENS_TO_F32, DType, Kind, round_to
from ckconv.errors import UnsupportedError
from ckconv.quant.codec import from_float32, libgguf
from ckconv.quant.mlx import Triple, quantize_triple, triple_of
from ckconv.system import c_function

#: Types that gguf's package quantizes to, in numpy (``quantize_blocks`` of ``gguf/quants.py``).
IN_NUMPY = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"})

#: Types of which libgguf makes other blocks than llama-quantize, and why.
UNLIKE = {
    "IQ1_M": "llama.cpp sums in another order for IQ1_M since September 2026 (its #28706), and libgguf 0.2.2 makes "
    "the blocks of before"
}

#: Those types, and those that libgguf does not know, or ggml has for intermediate results only.
_NO_QUANTIZER = frozenset({"Q8_1", "Q8_K", "Q2_0", *UNLIKE})

#: Types that are garbage without an importance matrix (``tensor_requires_imatrix`` of ``llama-quant.cpp``).
NEEDS_IMPORTANCE = frozenset({"IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"})

#: The types that can be asked for, by what they are called there.
GGML_TYPES: dict[str, DType] = {
    name.lower(): dtype
    for name, dtype in DTYPES.items()
    if dtype.ggml is not None and dtype.kind is Kind.BLOCK and name not in _NO_QUANTIZER
}


#: Million weights a second that libgguf quantizes on one core, where that is slow enough to be said.
SPEED = {"Q2_K": 8.0, "Q4_K": 7.0, "Q5_K": 8.0, "Q6_K": 10.0, "IQ4_XS": 3.0, "IQ4_NL": 3.0}


#: Numbers between these have squares that float32 holds with all digits, also summed up.
_SQUARED = (1e-15, 1e15)


class Error(NamedTuple):
    """How far quantizing moved the values of one type."""

    values: int
    largest: float
    rms: float


#: Of a thread that makes one of several pieces: what is to be noted when the turn of the piece comes.
_aside = _thread._local()


@contextmanager
def noted_aside() -> Iterator[list[Callable[[], None]]]:
    """Keep this thread's notes of the block apart instead of summing them.

    Sums of floats depend on their order.
    """
    notes: list[Callable[[], None]] = []
    _aside.notes = notes
    try:
        yield notes
    finally:
        _aside.notes = None


class Errors:
    """Adds up how far values moved, by type, while a plan is carried out."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, float, float]] = {}

    def add(self, dtype: DType, before: Floats, after: Floats) -> None:
        """Note some values."""
        with np.errstate(all="ignore"):
            squares = after - before
            squares *= squares
            largest, square = float(np.sqrt(squares.max(initial=0.0))), float(squares.sum())
            if largest and not _SQUARED[0] < largest < _SQUARED[1]:
                moved = after.astype(np.float64) - before
                largest, square = float(np.abs(moved).max()), float(np.square(moved).sum())
        if not np.isfinite(largest):
            beyond = float(np.abs(before).max())
            raise UnsupportedError(
                "quantize.value", f"values up to {beyond:g} are beyond the range of {dtype}", found=beyond
            )
        note = partial(self._note, dtype.name, before.size, largest, square)
        aside: list[Callable[[], None]] | None = getattr(_aside, "notes", None)
        note() if aside is None else aside.append(note)

    def _note(self, name: str, count: int, largest: float, square: float) -> None:
        values, most, squares = self._sums.get(name, (0, 0.0, 0.0))
        self._sums[name] = values + count, max(most, largest), squares + square

    def taken(self) -> dict[str, tuple[int, float, float]]:
        """Return the notes until now; later ones are dropped."""
        found, self._sums = self._sums, {}
        return found

    def join(self, found: Mapping[str, Sequence[float]]) -> None:
        """Note what was :meth:`taken` elsewhere."""
        for name, (values, largest, squares) in found.items():
            self._note(name, int(values), largest, squares)

    @property
    def of_types(self) -> dict[str, Error]:
        """Name of a type -> how far values moved."""
        return {
            name: Error(values, largest, float((squares / values) ** 0.5))
            for name, (values, largest, squares) in self._sums.items()
            if values
        }


class Quantizing:
    """Importance and other settings of a conversion that quantizes.

    Attributes:
        importance: one number a column, how much its error counts (an importance matrix); ``None`` for all alike.
        errors: where it is noted how far values move; ``None`` where nobody asks.
    """

    __slots__ = ("errors", "importance")

    def __init__(self, importance: Floats | None = None, errors: Errors | None = None) -> None:
        self.importance, self.errors = importance, errors


def missing_quantizer(dtype: DType) -> str:
    """Why there is no quantizer for a type; empty where there is one."""
    if dtype in WIDENS_TO_F32 or triple_of(dtype) is not None:
        return ""
    if dtype.name.lower() not in GGML_TYPES:
        return f"there is no quantizer for {dtype}"
    return f"quantizing to {dtype} needs the package libgguf" if needs_library(dtype) else ""


def needs_library(dtype: DType) -> bool:
    """Whether the type's only quantizer is libgguf, which is not installed."""
    return dtype.name.lower() in GGML_TYPES and dtype.name not in IN_NUMPY and not has_library()


@cache
def has_library() -> bool:
    """The package libgguf is installed."""
    return find_spec("libgguf") is not None


def quantizer_of(dtype: DType) -> str:
    """Package and version that make blocks of a ggml type; else empty."""
    if dtype.name.lower() not in GGML_TYPES:
        return ""
    from importlib.metadata import version

    if has_library():
        return f"ggml-python {version('ggml_python')}" if _makes(dtype) else f"libgguf {version('libgguf')}"
    import gguf

    return f"{gguf.__name__} {version(gguf.__name__)}"


def quantize(floats: Floats, dtype: DType, importance: Floats | None = None, number: DType = F32) -> Rows:
    """float32 ``[n, cols]`` -> ``[n, bytes]`` of a block type.

    Args:
        number: the float type that the values were stored in.

    Raises:
        UnsupportedError: ``quantize.value``, a value is no finite number.
    """
    triple = triple_of(dtype)
    if triple is not None:
        return np.concatenate(planes_of(floats, triple, number), axis=1)
    _check_finite(floats)
    if dtype in WIDENS_TO_F32:
        return from_float32(floats, dtype)[0]
    if has_library():
        return _by_library(np.ascontiguousarray(floats), dtype, importance)
    import gguf.quants

    assert dtype.ggml is not None
    made: Rows = gguf.quants.quantize(floats, gguf.GGMLQuantizationType(dtype.ggml))
    return made


def planes_of(floats: Floats, triple: Triple, number: DType, *, codes: bool = True) -> tuple[Rows, ...]:
    """Quantize to MLX's codes, scales and biases, each an array of its own.

    ``codes=False`` leaves the first empty.
    """
    _check_finite(floats)
    if triple.quantization.has_biases and triple.number is not number:  # mlx-lm casts the model before
        floats, number = floats.copy(), triple.number
        round_to(floats, number)
    return quantize_triple(floats, triple, number, codes=codes)


def _check_finite(floats: Floats) -> None:
    if not np.isfinite(floats).all():
        bad = floats[~np.isfinite(floats)].flat[0]
        raise UnsupportedError("quantize.value", f"the value {bad:g} cannot be quantized", found=str(bad))


def _by_library(floats: Floats, dtype: DType, importance: Floats | None) -> Rows:
    library = libgguf()
    assert library is not None
    weights: Any = None if importance is None else np.ascontiguousarray(importance, np.float32)
    if (faster := by_ggml_python(floats, dtype, weights)) is not None:
        return faster
    made = np.empty((len(floats), dtype.nbytes(floats.shape[1])), np.uint8)
    if made.size:
        library.quantize_rows_into_raw(dtype.ggml, floats, made, len(floats), floats.shape[1], weights)
    return made


# -- ggml-python: libgguf's blocks, some in half the time --------------------------------------------------------------

# libgguf is built for every processor of a kind; ggml-python is built where it is installed, with the instructions that
# the processor has. The blocks are equal, which is looked at before a type is made: of a first block by its checksum.

#: Types that it makes faster (Q4_0 to Q5_1: with an importance matrix) -> CRC-32 of the blocks that llama.cpp's library
#: makes of :func:`_first_values`, without and with one. It makes tables for IQ1, IQ2 and IQ3 first, which take longer
#: than a small model.
CHECKSUMS = {
    "Q4_0": 0xA4788F69,
    "Q4_1": 0x97A0500E,
    "Q5_0": 0x4A19EBC0,
    "Q5_1": 0x1595725D,
    "Q2_K": 0x87F01D79,
    "Q3_K": 0xC8138000,
    "Q4_K": 0xD5D21C21,
    "Q5_K": 0xAA9C9589,
    "Q6_K": 0x9D16FA54,
    "IQ4_NL": 0x552A2C6F,
    "IQ4_XS": 0x330AF4B6,
    "MXFP4": 0x96C80682,
}


def ggml_python_differs(dtype: DType) -> bool:
    """Whether ggml-python is installed and its blocks are not llama.cpp's."""
    return dtype.name in CHECKSUMS and _ggml_python() is not None and not _makes(dtype)


def by_ggml_python(floats: Floats, dtype: DType, importance: Floats | None) -> Rows | None:
    """float32 ``[n, cols]`` -> ``[n, bytes]``, ``None`` for libgguf to make.

    The values lie one after the other.

    Args:
        importance: ``[cols]`` contiguous float32, how much the error of each column counts.
    """
    return _quantized(floats, dtype, importance) if floats.size and _makes(dtype) else None


@cache
def _makes(dtype: DType) -> bool:
    if dtype.name not in CHECKSUMS or _ggml_python() is None:
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
    library = _ggml_python()
    assert library is not None
    rows, columns = floats.shape
    made = np.empty((rows, dtype.nbytes(columns)), np.uint8)
    library(dtype.ggml, _at(floats), _at(made), 0, rows, columns, None if importance is None else _at(importance))
    return made


def _at(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> int:
    return int(array.ctypes.data)


@cache
def _ggml_python() -> Callable[..., int] | None:
    """Load ``ggml_quantize_chunk`` of ``ggml.h`` by ctypes.

    The package's own module takes longer to import.
    """
    spec = find_spec("ggml")
    folder = Path(spec.origin).parent / "lib" if spec and spec.origin else Path()
    return c_function(folder, "ggml-base", "ggml_quantize_chunk", "iPPqqqP")
