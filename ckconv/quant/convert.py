"""Conversions between types, row by row, each exact or counted.

A conversion takes rows of one type as bytes and gives rows of another. Exact ones (copying, widening, re-packing blocks
whose numbers fit) cannot change a value; the others are only ever planned when a flag asks for them, and narrowing
reports how many values it changed.

ggml's blocks are the very bytes of llama-quantize. Three libraries give them: libgguf is ggml's own code and has every
type, ggml-python makes some of them faster, and gguf's quantizers in numpy are slower and have some. Q8_0 is made here.
Blocks of a row depend on nothing outside of the row, so rows may be quantized in any order and any tile.
"""

from __future__ import annotations

import _thread
import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from ckconv.core.layouts import (
    COUNTED,
    DTYPES,
    EXPONENTIALS,
    F16,
    F32,
    F64,
    IK,
    INTEGERS,
    SOFTPLUS,
    WIDENS_TO_F32,
    DType,
    Kind,
    ambiguous,
    round_to,
)
from ckconv.core.lazy import Floats, NamedTuple, NDArray, Rows, np
from ckconv.errors import UnsupportedError
from ckconv.quant import mlx as mlxquant, packed
from ckconv.quant.codec import from_float32, libgguf, reduced, to_float32, transposed
from ckconv.quant.mlx import TRIPLES, Triple, plane_types, quantize_triple, split_planes, triple_of
from ckconv.system import c_function

if TYPE_CHECKING:
    from ckconv.core.tensors import Tensor
    from ckconv.quant.repack import Way

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


Q8_0 = DTYPES["Q8_0"]

#: Numbers between these have squares that float32 holds with all digits, also summed up.
_SQUARED = (1e-15, 1e15)

#: Of as many values, one row in ``_EVERY`` is decoded to say how far they moved: a sixteenth of a matrix says as much
#: as all of it. No scale of smaller numbers than these is infinite, so that none of the others has to be looked at.
_MANY, _EVERY, _NARROW = 1 << 16, 16, 1e4


class Error(NamedTuple):
    """How far quantizing moved the values of one type.

    Attributes:
        values: how many were looked at.
    """

    values: int
    largest: float
    rms: float


#: Of a thread that makes one of several pieces: what is to be noted when the turn of the piece comes.
_aside = _thread._local()


@contextmanager
def noted_aside() -> Iterator[list[Callable[[], None]]]:
    """Collect this thread's notes: sums of floats depend on their order."""
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

    def add(self, dtype: DType, before: Floats, blocks: Rows) -> None:
        """Note values and the blocks that were made of them."""
        if before.size >= _MANY and _largest(before) < _NARROW:
            before, blocks = before[::_EVERY], blocks[::_EVERY]
        after = decode(blocks, dtype)
        with np.errstate(all="ignore"):
            squares = after - before
            squares *= squares
            largest, square = float(np.sqrt(squares.max(initial=0.0))), float(squares.sum())
            if largest and not _SQUARED[0] < largest < _SQUARED[1]:
                moved = after.astype(np.float64) - before
                largest, square = float(np.abs(moved).max()), float(np.square(moved).sum())
        if not np.isfinite(largest):
            raise _beyond(_largest(before), dtype)
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


class QuantSettings:
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
    """Whether the package libgguf is installed."""
    return find_spec("libgguf") is not None


def made_by_library(dtype: DType) -> bool:
    """Whether a library quantizes to the type, a piece in one call."""
    return dtype.name.lower() in GGML_TYPES and dtype is not Q8_0 and has_library()


def quantizer_of(dtype: DType) -> str:
    """Package and version that make blocks of a ggml type; else empty."""
    if dtype.name.lower() not in GGML_TYPES:
        return ""
    from importlib.metadata import version

    if dtype is Q8_0:
        return f"numpy {np.__version__}"
    if made_by_library(dtype):
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
    most = _largest(floats)
    if dtype in WIDENS_TO_F32:
        return from_float32(floats, dtype)[0]
    _check_representable(floats, most, dtype, importance)
    if dtype is Q8_0:  # which asks for no importance
        return _q8_0(floats)
    if has_library():
        return _by_library(np.ascontiguousarray(floats), dtype, importance)
    import gguf.quants

    assert dtype.ggml is not None
    made: Rows = gguf.quants.quantize(floats, gguf.GGMLQuantizationType(dtype.ggml))
    return made


def planes_of(floats: Floats, triple: Triple, number: DType, *, codes: bool = True) -> tuple[Rows, ...]:
    """Quantize to MLX's three arrays, the first empty without ``codes``."""
    _largest(floats)
    if triple.quantization.has_biases and triple.number is not number:  # mlx-lm casts the model before
        floats, number = floats.copy(), triple.number
        round_to(floats, number)
    return quantize_triple(floats, triple, number, codes=codes)


def _largest(floats: Floats) -> float:
    """Largest magnitude, held to be finite as every value is then."""
    most = float(max(floats.max(initial=0), -floats.min(initial=0)))
    if not math.isfinite(most):
        bad = floats[~np.isfinite(floats)].flat[0]
        raise UnsupportedError("quantize.value", f"the value {bad:g} cannot be quantized", found=str(bad))
    return most


def _beyond(most: float, dtype: DType) -> UnsupportedError:
    return UnsupportedError("quantize.value", f"values up to {most:g} are beyond the range of {dtype}", found=most)


#: Values that no block holds, of which ggml makes zeros, smaller or infinite ones, or ends the process (IQ2_XS): of
#: scales of float16 times those of Q6_K, which reach furthest; of the largest E4M3 times 6; of powers of two.
_END = 65504.0 * 128 * 32
_ENDS = {"NVFP4": 448.0 * 6, "MXFP4": float("inf")}

#: What values count, alone and times their squares, of which 256 times the codes have a sum in float32: of an infinite
#: one ggml makes zeros, or no number, and of IQ2_XXS it ends the process ("not on grid").
_SUMMED = 2.0**110

#: Values of an IQ3_S that have a scale.
_GROUP = 32


def _check_representable(floats: Floats, most: float, dtype: DType, importance: Floats | None) -> None:
    """Refuse values of which ggml makes others in silence, or ends."""
    if importance is None and dtype.name in NEEDS_IMPORTANCE:  # of a plan this is refused before
        raise UnsupportedError(
            "quantize.imatrix", f"{dtype} needs an importance matrix", hint="--imatrix FILE names the one that was used"
        )
    if importance is not None and floats.size:
        weight = float(importance.max())
        if weight * max(most, 1.0) ** 2 > _SUMMED:
            text = f"values up to {most:g} that count up to {weight:g} (--imatrix) have sums beyond float32's range"
            raise UnsupportedError("quantize.value", text, found=weight)
    if most > _ENDS.get(dtype.name, _END):
        raise _beyond(most, dtype)
    if dtype.name != "IQ3_S":
        return
    blocks = floats.reshape(-1, dtype.block // _GROUP, _GROUP) != 0
    filled = blocks.any(axis=2)
    if (filled.any(axis=1) & ~filled.all(axis=1)).any():  # quantize_row_iq3_s_impl: its pointers stay behind
        text = f"{_GROUP} zeros side by side: ggml's quantizer writes other groups of IQ3_S in their place"
        raise UnsupportedError("quantize.value", text)


def _q8_0(floats: Floats) -> Rows:
    """The largest of 32 values by 127, and codes rounded by ``roundf``.

    ``quantize_row_q8_0_ref`` of ``ggml-quants.c``, for which compilers call that function once a value.
    """
    groups = np.ascontiguousarray(floats).reshape(-1, Q8_0.block)
    columns = transposed(groups)
    np.abs(columns, out=columns)
    scales = reduced(columns, np.maximum) / np.float32(127)
    with np.errstate(all="ignore"):
        exact: Floats = groups * np.where(scales > 0, np.float32(1) / scales, np.float32(0))[:, np.newaxis]
        # Half away from zero: the number below a half is added, with the sign, and the fraction cut off.
        halves: NDArray[np.uint32] = columns.view(np.uint32).reshape(exact.shape)
        np.bitwise_and(exact.view(np.uint32), np.uint32(1 << 31), out=halves)
        halves |= np.nextafter(np.float32(0.5), np.float32(0)).view(np.uint32)
        exact += halves.view(np.float32)
        blocks = np.empty((len(groups), Q8_0.size), np.uint8)
        blocks[:, :2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
        blocks[:, 2:] = exact.astype(np.int8).view(np.uint8)
    return blocks.reshape(len(floats), floats.shape[1] // Q8_0.block * Q8_0.size)


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
    """``ggml_quantize_chunk`` by ctypes, faster than the package's import."""
    spec = find_spec("ggml")
    folder = Path(spec.origin).parent / "lib" if spec and spec.origin else Path()
    return c_function(folder, "ggml-base", "ggml_quantize_chunk", "iPPqqqP")


# -- Values in another convention: norms as 1 + w, decays as exponentials ---------------------------------------------

#: Binary digits of a bfloat16 and of a float32.
_FEWEST, _MOST = 8, 24


def shifted(floats: Floats, shift: float) -> Floats:
    """Shift float32 values by the difference of two layouts' shifts.

    Shifts of :class:`ckconv.core.layouts.Layout`; a NaN stays one.

    Exponentials and logarithms are computed in float64 and rounded once.
    """
    with np.errstate(all="ignore"):
        exact = floats.astype(np.float64)
        if shift == SOFTPLUS:
            return np.logaddexp(0.0, exact).astype(np.float32)
        if shift in EXPONENTIALS:
            return (EXPONENTIALS[shift] * np.exp(exact)).astype(np.float32)
        if not ambiguous(shift):
            return floats + np.float32(shift)
        if shift == -SOFTPLUS:
            return _shortest(exact + np.log(-np.expm1(-exact)), floats, SOFTPLUS)
        sign = EXPONENTIALS.get(-shift, 0)
        return _shortest(np.log(sign * exact) if sign else exact + shift, floats, -shift)


def _shortest(exact: NDArray[np.float64], floats: Floats, shift: float) -> Floats:
    """Shortest float32 that shifts to ``floats``; finds a bfloat16 again."""
    mantissa, exponent = np.frexp(exact)
    found = exact.astype(np.float32)
    for digits in range(_MOST - 1, _FEWEST - 1, -1):
        shorter = np.ldexp(np.round(np.ldexp(mantissa, digits)), exponent - digits).astype(np.float32)
        same = shifted(shorter, shift) == floats
        found = np.where(same, shorter, found)
    return found


# -- Conversions between types, row by row, each exact or counted ------------------------------------------------------

#: Block types of intermediate results: nobody decodes them to values.
_NO_DECODER = frozenset({"Q8_1", "Q8_K"})

#: Values that are quantized at once, about: few enough for a second-level cache, and so many that threads seldom wait
#: for each other.
_QUANTIZED_AT_ONCE = 1 << 17


class Action(enum.StrEnum):
    """Kinds of a conversion, from copied bytes to values that are rounded."""

    COPY = "copy"
    WIDEN = "widen"
    NARROW = "narrow"
    DECODE = "decode"
    REPACK = "repack"
    QUANTIZE = "quantize"
    SHIFT = "shift"
    SCALE = "scale"
    MERGE = "merge"
    ZERO = "zero"
    CONTENT = "content"


class Conversion(NamedTuple):
    """Conversion from ``source`` to ``target`` values, shifted or scaled.

    A value is shifted in float32, or multiplied by ``factor``.

    Attributes:
        shift: the target's of :class:`ckconv.core.layouts.Layout` less the source's.
        plane: of a target that is stored as several arrays (an MLX triple, a packed matrix), the one that is written;
            ``None`` for all of them side by side.
        quantizing: asks for values to be rounded to blocks, and says how; ``None`` where the types alone do.
        array: the type that this one array is stored as, where that is no word of MLX's: the bytes are the same.
        decoded: blocks of another type are made of the values, though there may be an exact way between the two.
    """

    source: DType
    target: DType
    shift: float = 0
    plane: int | None = None
    factor: float = 1.0
    quantizing: QuantSettings | None = None
    array: DType | None = None
    decoded: bool = False

    @property
    def written(self) -> DType:
        """Type of the rows that come out: the target's, or that of one array."""
        triple = triple_of(self.target)
        if self.plane is None:
            return self.target
        return self.array or (plane_types(triple)[self.plane] if triple else self.target)

    @property
    def action(self) -> Action:
        """The name of what happens, for reports."""
        if self.quantizes and (self.target.kind is Kind.BLOCK or self.source.kind is Kind.BLOCK):
            return Action.QUANTIZE
        if self._way or self._one_array:
            return Action.REPACK
        if self.source.kind is Kind.BLOCK and self.target is not self.source:
            return Action.DECODE
        if self.shift:
            return Action.SHIFT
        if self.factor != 1.0:
            return Action.SCALE
        if self.source is self.target:
            return Action.COPY
        return Action.WIDEN if self.target.name in ("F32", "I64") and self.source is not F64 else Action.NARROW

    @property
    def _way(self) -> Way | None:
        """The exact re-packing, if that is what is done."""
        return None if self.decoded else way_between(self.source, self.target)

    @property
    def _one_array(self) -> bool:
        """Whether one array is written of a matrix whose rows hold them all."""
        return self.plane is not None and packed.scheme_of(self.target) is not None

    @property
    def together(self) -> int:
        """Rows of the source that one row of the array which is written is for."""
        scheme = packed.scheme_of(self.target) if self.plane == 2 else None
        return packed.together(scheme) if scheme else 1

    @property
    def quantizes(self) -> bool:
        """Whether values are rounded, to blocks or to a float type that was asked."""
        if self.source is self.target or self._way:
            return False
        return self.target.kind is Kind.BLOCK or (self.quantizing is not None and self.target is not F32)

    @property
    def exact(self) -> bool:
        """Whether values stay: copied, widened, repacked, decoded to float32."""
        return self.action in (Action.COPY, Action.WIDEN, Action.REPACK) or (
            self.action is Action.DECODE and self.target is F32
        )

    def apply(self, rows: Rows) -> tuple[Rows, int]:
        """Convert ``rows`` ``[n, bytes of a source row]``.

        Returns:
            ``[n, bytes of a row of the type written]`` and the number of values that are not what they were; for a
            re-packing the number of groups that do not fit, and unless it is 0 the rows are of no use; for quantizing
            all values: how far they moved is noted in ``quantizing.errors``.
        """
        if self.without_codes:
            return self.numbers(rows)[self.plane or 0], 0
        made, changed = self._apply(rows.reshape(len(rows) * self.together, -1) if len(rows) else rows)
        if self.plane is not None and self._one_array:  # every group is judged once
            return packed.plane(made, self.target, self.plane), 0 if self.plane else changed
        triple = triple_of(self.target)
        if self.plane is None or triple is None:
            return made, changed
        return split_planes(made, triple)[self.plane], changed

    @property
    def in_arrays(self) -> bool:
        """Whether one array is made of an MLX triple."""
        return (
            self.plane is not None and triple_of(self.target) is not None and (self._way is not None or self.quantizes)
        )

    @property
    def without_codes(self) -> bool:
        """Whether scales or biases are made: both at once, without codes."""
        return bool(self.plane) and self.in_arrays

    def numbers(self, rows: Rows) -> tuple[Rows, ...]:
        """Rows of scales, and of biases if any, behind empty ones of codes."""
        if (way := self._way) is not None:
            return way(rows, codes=False).planes
        triple = triple_of(self.target)
        assert triple is not None
        floats, number = self._floats(rows)
        return planes_of(floats, triple, number, codes=False)

    def _apply(self, rows: Rows) -> tuple[Rows, int]:
        if self.source is self.target and not self.shift and self.factor == 1.0:
            return rows, 0
        if (way := self._way) is not None:
            made = way(rows)
            return (made.planes[0] if len(made.planes) == 1 else np.concatenate(made.planes, axis=1)), made.inexact
        if self.quantizes:
            return self._quantized(rows)
        if self.source is F64:
            return self._of_doubles(rows.view(np.float64))
        if self.source in INTEGERS:
            numbers = rows.view(np.dtype(f"<i{self.source.size}"))
            if abs(self.shift) == COUNTED:
                numbers = numbers + np.arange(numbers.shape[1], dtype=np.int64) * (1 if self.shift > 0 else -1)
            whole = numbers.astype(np.dtype(f"<i{self.target.size}"))
            return whole.view(np.uint8), int(np.count_nonzero(whole != numbers))
        floats = decode(rows, self.source)
        if self.factor != 1.0:
            return _scaled(floats, self.factor, self.target)
        if not self.shift:
            return narrowed(floats, self.target)
        moved = shifted(floats, self.shift)
        if self.shift > 0:
            return narrowed(moved, self.target)
        # The stored value is already rounded. Exact means: result + 1 rounds to the same bits. Few float32 have a
        # logarithm that is one: the nearest is what there is.
        lower, _ = from_float32(moved, self.target)
        if -self.shift in EXPONENTIALS:
            return lower, 0
        again = shifted(to_float32(lower, self.target), -self.shift)
        return lower, int(np.count_nonzero(again.view(np.uint32) != floats.view(np.uint32)))

    def _of_doubles(self, doubles: NDArray[np.float64]) -> tuple[Rows, int]:
        """Rows of float64, which go through float32."""
        singles = _singles(doubles)
        made, changed = self._replace(source=F32)._apply(singles.view(np.uint8))
        if self.shift or self.factor != 1.0:
            return made, changed + int(np.count_nonzero(_differ(singles, doubles)))
        return made, int(np.count_nonzero(_differ(to_float32(made, self.target), doubles)))

    def _floats(self, rows: Rows) -> tuple[Floats, DType]:
        """Values that are quantized, and the float type that holds all of them."""
        if self.source is F64:
            rows = _singles(rows.view(np.float64)).view(np.uint8)
            return self._replace(source=F32)._floats(rows)
        floats, number = decode(rows, self.source), self.source if self.source.kind is Kind.FLOAT else F32
        if self.factor == 1.0:
            return floats, number
        return (floats.astype(np.float64) * self.factor).astype(np.float32), F32

    def _quantized(self, rows: Rows) -> tuple[Rows, int]:
        """Quantize some rows at a time, so that they stay in a cache."""
        how, made, values = self.quantizing, [], 0
        columns = rows.shape[1] // self.source.size * self.source.block
        step = max(1, _QUANTIZED_AT_ONCE // max(1, columns))
        for start in range(0, max(1, len(rows)), step):
            floats, number = self._floats(rows[start : start + step])
            blocks = quantize(floats, self.target, how.importance if how else None, number)
            if how and how.errors and convertible(self.target, F32):
                how.errors.add(self.target, floats, blocks)
            made.append(blocks)
            values += floats.size
        return made[0] if len(made) == 1 else np.concatenate(made), values


def between(source: Tensor, target: Tensor, *, decoded: bool = False) -> Conversion:
    """Return the conversion of rows of ``source`` into rows of ``target``.

    Another type, another convention of values.

    Args:
        decoded: where both have blocks, those of ``target`` are made of the values.
    """
    one, other = source.layout, target.layout
    made = Conversion(source.dtype, target.dtype, other.shift - one.shift, factor=one.scale / other.scale)
    return of_values(made) if decoded else made


def of_values(conversion: Conversion) -> Conversion:
    """The conversion that decodes blocks to make those of another type."""
    one, other = conversion.source, conversion.target
    return conversion._replace(decoded=one is not other and one.kind is other.kind is Kind.BLOCK)


class Run(NamedTuple):
    """Canonical rows ``start`` to ``stop`` of one tensor and their conversion."""

    tensor: Tensor
    conversion: Conversion
    start: int
    stop: int


def convertible(source: DType, target: DType) -> bool:
    """Whether a conversion between the two types exists, exact or not."""
    if source is target or way_between(source, target) or {source, target} == INTEGERS:
        return True
    if not (source in WIDENS_TO_F32 or decodable(source)):
        return False
    return target in WIDENS_TO_F32 or (target.kind is Kind.BLOCK and not missing_quantizer(target))


def writable(source: DType, target: DType) -> bool:
    """Whether a conversion exists, of float64 too where float32 holds it."""
    return convertible(F32 if source is F64 and target is not F64 else source, target)


def decodable(dtype: DType) -> bool:
    """Whether a decoder gives the values that the type's own library computes."""
    return dtype.kind is Kind.BLOCK and dtype.name not in _NO_DECODER and dtype.ggml not in IK


def side_by_side(dtype: DType) -> bool:
    """Whether rows hold all codes, then all scales, and cannot be cut."""
    return dtype in TRIPLES or dtype in packed.SCHEMES


def way_between(source: DType, target: DType) -> Way | None:
    """Return the exact re-packing between two block types, or ``None``."""
    if source.block == 1 or target.block == 1 or source is target:
        return None
    from ckconv.quant import repack

    return repack.way_between(source, target)


def decode(rows: Rows, dtype: DType) -> Floats:
    """Decode ``[n, bytes]`` of any type to float32 ``[n, cols]``.

    Float types, ggml's blocks, MLX's triples and packed matrices.
    """
    if packed.scheme_of(dtype) is not None:
        return packed.decode(rows, dtype)
    triple = triple_of(dtype)
    if triple is None:
        return to_float32(rows, dtype)
    weight, scales, *biases = split_planes(rows, triple)
    return mlxquant.decode(weight, scales, biases[0] if biases else None, triple.quantization, triple.number)


def narrowed(floats: Floats, target: DType) -> tuple[Rows, int]:
    """float32 ``[n, cols]`` -> ``[n, bytes]``, and how many were rounded.

    Raises:
        UnsupportedError: ``plan.range``, a finite value is too large for ``target``: no flag makes infinity of it.
    """
    made, changed = from_float32(floats, target)
    if changed:
        infinite = made.view(np.uint16) << np.uint16(1) == (0x7C00 if target is F16 else 0x7F80) << 1
        beyond = infinite & np.isfinite(floats) if infinite.any() else infinite
        if beyond.any():
            largest = float(np.abs(floats[beyond]).max())
            raise UnsupportedError(
                "plan.range",
                f"the value {largest:g} is beyond the range of {target} and would become infinite",
                found=largest,
                hint="--dtype f32 or bf16 holds it" if target is F16 else "--dtype f32 holds it",
            )
    return made, changed


def _singles(doubles: NDArray[np.float64]) -> Floats:
    """float64 rounded to float32."""
    with np.errstate(over="ignore"):
        singles: Floats = np.ascontiguousarray(doubles.astype(np.float32))
    beyond = np.isinf(singles) & np.isfinite(doubles)
    if beyond.any():
        largest = float(np.abs(doubles[beyond]).max())
        message = f"the value {largest:g} is beyond the range of {F32} and would become infinite"
        raise UnsupportedError("plan.range", message, found=largest)
    return singles


def _differ(floats: Floats, doubles: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where values are not the same numbers, or not both NaN."""
    differ: NDArray[np.bool_] = (floats != doubles) & ~(np.isnan(floats) & np.isnan(doubles))
    return differ


def _scaled(floats: Floats, factor: float, target: DType) -> tuple[Rows, int]:
    """Values times ``factor``, rounded once (by powers of two never)."""
    with np.errstate(all="ignore"):
        products = floats.astype(np.float64) * factor
        made, _ = narrowed(products.astype(np.float32), target)
        back = to_float32(made, target).astype(np.float64)
    return made, int(np.count_nonzero((back != products) & ~(np.isnan(back) & np.isnan(products))))
