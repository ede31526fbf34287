"""How a tensor lies in stored bytes: types of elements, positions of rows.

Canonical order is Hugging Face's: a matrix is ``[out, in]`` rows, the RoPE rows of a head are in split
("rotate half") order, and nothing is padded. A :class:`Layout` says where those rows are in a file, by the number of
stored elements from one index of an axis to the next: heads with padding behind them, RoPE pairs as neighbors, columns
in blocks by head, a transposed matrix, Q K and V fused head by head are all such strides. It is index arithmetic and
knows no bytes and no files, so the same object serves a reader, a writer and the verifier, and quantized rows move as
opaque runs of whole blocks.

Units: rows and columns are elements. A vector is a matrix of one column, so that biases permute and
pad the way the rows of their matrix do.
"""

from __future__ import annotations

import enum
import itertools
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import TypeVar

from ckconv.core.lazy import Flags, Floats, Index, NamedTuple, cached_property, dataclass, np, replace

# Element and block types: one table for every format.
#
# A *block* is the smallest run of elements that can be moved on its own; for plain numbers it is one
# element. Block sizes and ids of ggml types are those of ``ggml/include/ggml.h`` and
# ``ggml/src/ggml-common.h``; safetensors names those of ``safetensors/src/tensor.rs`` (0.8); bump codes
# those of C-Kernel-Engine's ``include/ckernel_dtype.h``, which was renumbered on 4 January 2026: the
# column ``v3`` holds the numbers before that day, ``v4`` those after it.


class Kind(enum.Enum):
    """Kind of a type: floats, integers, or blocks."""

    FLOAT = "float"
    INTEGER = "integer"
    BLOCK = "block"
    OPAQUE = "opaque"

    __hash__ = object.__hash__  # Enum's is no built-in one, and every type that is looked up in a table asks for it


class DType(NamedTuple):
    """Type of stored elements: ``block`` of them take ``size`` bytes."""

    name: str
    kind: Kind
    block: int
    size: int
    ggml: int | None = None
    safetensors: str | None = None
    bump_v3: int | None = None
    bump_v4: int | None = None
    file_type: int | None = None

    def nbytes(self, elements: int) -> int:
        """Bytes of ``elements`` elements, which must fill whole blocks."""
        return elements // self.block * self.size

    def __str__(self) -> str:
        return self.name


def _table(
    *rows: tuple[str, Kind, int, int, int | None, str | None, int | None, int | None, int | None],
) -> dict[str, DType]:
    return {row[0]: DType(*row) for row in rows}


_F, _I, _B, _O = Kind.FLOAT, Kind.INTEGER, Kind.BLOCK, Kind.OPAQUE

# fmt: off
#: name -> type; columns: name, kind, block elements, block bytes, ggml id, safetensors name, bump codes v3 and v4, and
#: the ``general.file_type`` of a GGUF most of whose matrices are of it (``enum llama_ftype`` of ``include/llama.h``, of
#: mixes the medium ones).
DTYPES: dict[str, DType] = _table(
    ("F32",     _F,   1,   4,    0, "F32",    0,    0,    0),
    ("F16",     _F,   1,   2,    1, "F16",    2,    2,    1),
    ("BF16",    _F,   1,   2,   30, "BF16",   1,    1,   32),
    ("F64",     _F,   1,   8,   28, "F64", None, None, None),
    ("I8",      _I,   1,   1,   24, "I8",     3,    3, None),
    ("I16",     _I,   1,   2,   25, "I16", None, None, None),
    ("I32",     _I,   1,   4,   26, "I32", None, None, None),
    ("I64",     _I,   1,   8,   27, "I64", None, None, None),
    ("U8",      _I,   1,   1, None, "U8",  None, None, None),
    ("U16",     _I,   1,   2, None, "U16", None, None, None),
    ("U32",     _I,   1,   4, None, "U32", None, None, None),
    ("U64",     _I,   1,   8, None, "U64", None, None, None),
    ("BOOL",    _I,   1,   1, None, "BOOL", None, None, None),
    ("C64",     _O,   1,   8, None, "C64", None, None, None),
    ("F4",      _O,   2,   1, None, "F4",  None, None, None),
    ("F6_E2M3", _O,   4,   3, None, "F6_E2M3", None, None, None),
    ("F6_E3M2", _O,   4,   3, None, "F6_E3M2", None, None, None),
    ("F8_E4M3", _O,   1,   1, None, "F8_E4M3", None, None, None),
    ("F8_E5M2", _O,   1,   1, None, "F8_E5M2", None, None, None),
    ("F8_E8M0", _O,   1,   1, None, "F8_E8M0", None, None, None),
    ("F8_E4M3FNUZ", _O, 1, 1, None, "F8_E4M3FNUZ", None, None, None),
    ("F8_E5M2FNUZ", _O, 1, 1, None, "F8_E5M2FNUZ", None, None, None),
    ("Q4_0",    _B,  32,  18,    2, None,    5,    5,    2),
    ("Q4_1",    _B,  32,  20,    3, None, None,    6,    3),
    ("Q5_0",    _B,  32,  22,    6, None, None,   11,    8),
    ("Q5_1",    _B,  32,  24,    7, None, None,   12,    9),
    ("Q8_0",    _B,  32,  34,    8, None,    8,    9,    7),
    ("Q8_1",    _B,  32,  36,    9, None, None, None, None),
    ("Q2_K",    _B, 256,  84,   10, None, None, None,   10),
    ("Q3_K",    _B, 256, 110,   11, None, None, None,   12),
    ("Q4_K",    _B, 256, 144,   12, None,    6,    7,   15),
    ("Q5_K",    _B, 256, 176,   13, None, None,   13,   17),
    ("Q6_K",    _B, 256, 210,   14, None,    7,    8,   18),
    ("Q8_K",    _B, 256, 292,   15, None,    9,   10, None),
    ("IQ2_XXS", _B, 256,  66,   16, None, None, None,   19),
    ("IQ2_XS",  _B, 256,  74,   17, None, None, None,   20),
    ("IQ3_XXS", _B, 256,  98,   18, None, None, None,   23),
    ("IQ1_S",   _B, 256,  50,   19, None, None, None,   24),
    ("IQ4_NL",  _B,  32,  18,   20, None, None, None,   25),
    ("IQ3_S",   _B, 256, 110,   21, None, None, None,   26),
    ("IQ2_S",   _B, 256,  82,   22, None, None, None,   28),
    ("IQ4_XS",  _B, 256, 136,   23, None, None, None,   30),
    ("IQ1_M",   _B, 256,  56,   29, None, None, None,   31),
    ("TQ1_0",   _B, 256,  54,   34, None, None, None,   36),
    ("TQ2_0",   _B, 256,  66,   35, None, None, None,   37),
    ("MXFP4",   _B,  32,  17,   39, None, None, None,   38),
    ("NVFP4",   _B,  64,  36,   40, None, None, None,   39),
    ("Q1_0",    _B, 128,  18,   41, None, None, None,   40),
    ("Q2_0",    _B,  64,  18,   42, None, None, None, None),
)
# fmt: on

F32, F16, BF16 = DTYPES["F32"], DTYPES["F16"], DTYPES["BF16"]

#: Types whose every value is a float32 value, so that widening them to F32 is exact.
F64, I64 = DTYPES["F64"], DTYPES["I64"]
WIDENS_TO_F32 = frozenset({F16, BF16, F32})
#: Types of tables of whole numbers, which become one another.
INTEGERS = frozenset({DTYPES["I32"], DTYPES["I64"]})

BY_GGML: dict[int, DType] = {t.ggml: t for t in DTYPES.values() if t.ggml is not None}
GGML_BLOCKS = tuple(t.name for t in BY_GGML.values() if t.kind is Kind.BLOCK)
BY_SAFETENSORS: dict[str, DType] = {t.safetensors: t for t in DTYPES.values() if t.safetensors is not None}

#: ggml ids that once had a meaning: id -> (name, what became of it). Source: comments in ``ggml.h``.
RETIRED_GGML: dict[int, str] = {
    4: "Q4_2, removed in 2023",
    5: "Q4_3, removed in 2023",
    31: "Q4_0_4_4, removed in 2024",
    32: "Q4_0_4_8, removed in 2024",
    33: "Q4_0_8_8, removed in 2024",
    36: "IQ4_NL_4_4, removed in 2024",
    37: "IQ4_NL_4_8, removed in 2024",
    38: "IQ4_NL_8_8, removed in 2024",
}

#: Types of matrices that only ik_llama.cpp has: id -> name, elements and bytes of a block, bytes in front of every row.
#: Source: ``type_traits`` of its ``ggml.c`` and the structs of ``ggml-common.h``, August 2026.
IK: dict[int, tuple[str, int, int, int]] = {
    133: ("Q6_0", 32, 26, 0), 134: ("IQ1_BN", 64, 13, 2), 135: ("IQ2_BN", 64, 16, 4), 137: ("IQ2_K", 256, 76, 0),
    138: ("IQ3_K", 256, 110, 0), 139: ("IQ4_K", 256, 144, 0), 140: ("IQ5_K", 256, 176, 0), 141: ("IQ6_K", 256, 212, 0),
    144: ("IQ4_KS", 256, 136, 4), 145: ("IQ2_KS", 256, 70, 2), 146: ("IQ4_KSS", 256, 128, 4),
    152: ("IQ5_KS", 256, 168, 4), 153: ("IQ2_KT", 256, 68, 4), 154: ("IQ3_KT", 256, 100, 4),
    155: ("IQ4_KT", 256, 128, 4), 156: ("IQ3_KS", 256, 102, 2), 157: ("IQ2_KL", 256, 86, 2),
    158: ("IQ1_KT", 256, 56, 4),
    219: ("IQ1_S_R4", 32, 6, 2), 229: ("IQ1_M_R4", 32, 7, 2), 230: ("BF16_R16", 1, 2, 0),
    233: ("Q6_0_R4", 32, 26, 0), 353: ("MXFP4_R8", 32, 17, 0),
    397: ("Q8_K_R16", 256, 258, 0), 399: ("Q8_K_R8", 256, 258, 0),
}  # fmt: skip
#: Those whose rows stand interleaved are those of the type 200 below, of as many bytes.
IK |= {
    number + 200: (f"{name}_R{together}", *sizes)
    for together, numbers in {
        4: (6, *range(10, 15), *range(16, 19), 20, 21, 22, 135, *range(137, 141), 144, 152),
        8: (2, 8, 23),
    }.items()
    for number in numbers
    for name, *sizes in (IK.get(number) or (BY_GGML[number].name, BY_GGML[number].block, BY_GGML[number].size, 0),)
}  # fmt: skip


@lru_cache(maxsize=1 << 14)
def of_ggml(number: int, columns: int) -> DType | None:
    """The type with this id.

    Of ik_llama.cpp's that have bytes in front of every row, rows of so many elements.
    """
    if number not in IK:
        return BY_GGML.get(number)
    name, block, size, head = IK[number]
    if head and columns and columns % block == 0:
        block, size = columns, head + columns // block * size
    return DType(name, Kind.BLOCK, block, size, number)


#: Types of its intermediate results.
_IK: dict[int, str] = {
    97: "Q8_0_X4", 98: "Q8_1_X4", 99: "Q8_2_X4", 136: "Q8_K64", 147: "Q8_K16", 148: "Q8_K32", 149: "Q8_KR8",
    150: "Q8_K128", 151: "Q8_KV", 398: "Q8_KV_R8",
}  # fmt: skip


def ik_type(number: int) -> str:
    """The name of a type of ik_llama.cpp; empty for any other."""
    return f"{_IK[number]} of ik_llama.cpp, which no matrix is of" if number in _IK else ""


#: The two numberings of the bump dtype table, by the name that ``--dtype-codes`` takes: code -> type.
BUMP_CODES: dict[str, dict[int, DType]] = {
    "v3": {t.bump_v3: t for t in DTYPES.values() if t.bump_v3 is not None},
    "v4": {t.bump_v4: t for t in DTYPES.values() if t.bump_v4 is not None},
}


# Small floats inside float32: rounding to them, being one of them, and the values of 4 and 8-bit codes.


def round_to(values: Floats, dtype: DType) -> None:
    """Round float32 in place to ``dtype``, ties to even; NaN stays NaN."""
    if dtype is F32:
        return
    bits = values.view(np.uint32)
    if dtype is F16:
        magnitude = bits & np.uint32(0x7FFFFFFF)
        if magnitude.max(initial=0) >= 0x477FF000:  # 65,520 becomes infinite
            with np.errstate(all="ignore"):
                values[...] = values.astype(np.float16)
            return
        # A power of two is added of which the last bit of the sum is the last one that a float16 of this size has.
        power = np.maximum(magnitude, np.uint32(0x38800000))  # below 2**-14 all have the same last bit
        power &= np.uint32(0x7F800000)
        power += np.uint32(13 << 23)
        total = magnitude.view(np.float32)
        total += power.view(np.float32)
        total -= power.view(np.float32)
        np.copysign(total, values, out=values)
        return
    # Rounding a NaN's payload could carry into its exponent and sign.
    special = np.isnan(values)
    odd = bits >> np.uint32(16)
    odd &= np.uint32(1)
    odd += np.uint32(0x7FFF)
    bits += odd
    bits &= np.uint32(0xFFFF0000)
    if special.any():
        values[special] = np.nan


def holds(values: Floats, dtype: DType) -> Flags:
    """A mask of values that ``dtype`` (F32, F16 or BF16) holds exactly."""
    bits = values.view(np.uint32)
    if dtype is not F16:
        finite: Flags = np.isfinite(values)
        return finite if dtype is F32 else finite & (bits & np.uint32(0xFFFF) == 0)
    # From 2**-14 to 65,504 float16 has ten bits of mantissa where float32 has 23.
    normal = (bits & np.uint32(0x7FFFFFFF)) - np.uint32(0x38800000) <= np.uint32(0x477FE000 - 0x38800000)
    same: Flags = bits & np.uint32(0x1FFF) == 0
    rest = values[~normal]
    with np.errstate(over="ignore", invalid="ignore"):
        same[~normal] = np.isfinite(rest) & (rest.astype(np.float16) == rest)
    return same


@cache
def e2m1() -> Floats:
    """The values of 4-bit float codes ``[16]``; bit 3 is the sign.

    Source: OCP Microscaling Formats v1.0, 5.3.3.
    """
    positive = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    return np.array([*positive, *(-v for v in positive)], np.float32)


@cache
def e4m3() -> Floats:
    """The values of 8-bit float codes ``[256]``: bias 7, no infinity.

    NaN at 0x7F and 0xFF. Source: OCP Microscaling Formats v1.0, 5.3.1.
    """
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8.0 + mantissa, exponent - 10))
    value[code & 127 == 127] = np.nan
    signed: Floats = np.where(code > 127, -value, value).astype(np.float32)
    return signed


@cache
def e5m2() -> Floats:
    """The values of 8-bit float codes ``[256]``: the upper half of a float16.

    Source: OCP 8-bit Floating Point Specification v1.0, 3.1.
    """
    with np.errstate(invalid="ignore"):
        values: Floats = (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)
    return values


@cache
def e8m0() -> Floats:
    """Powers of two ``[256]``: ``2 ** (code - 127)``.

    255, NaN in the standard, is 2**128 and so infinite in MLX.
    """
    with np.errstate(over="ignore"):
        powers: Floats = np.ldexp(1.0, np.arange(256) - 127).astype(np.float32)
    return powers


def float32(value: float) -> float:
    """The nearest float32 number; infinite where there is none."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


#: The number of a row, or of many.
Row = TypeVar("Row", int, "Index")

#: Of an axis: its elements, and how many stored elements are from one to the next.
Axis = tuple[int, int]

#: One range of each axis.
Box = tuple[tuple[int, int], ...]

#: Layouts that are shared: the tensors of a model have a few dozen.
_MAX_CACHED = 1024

#: What a format stores for a canonical w: 1 + w, or another number more (of float32), or -exp(w), exp(w), or
#: log(1 + exp(w)). A tensor has one of them everywhere or none, so the difference of two says what makes the one out of
#: the other.
ADD_ONE, NEG_EXP, EXP, SOFTPLUS = 1, 2, 3, 5

#: The signs of stored exponentials, and of what is log(1 + one).
EXPONENTIALS: Mapping[float, int] = {NEG_EXP: -1, EXP: 1, SOFTPLUS: 1}

#: Of whole numbers: each is stored higher by its place in its row.
COUNTED = 4


def ambiguous(shift: float) -> bool:
    """Whether several canonical values are stored as the same number.

    Exponentials and sums with a fraction are rounded; several float32 become the same one.
    """
    return shift < 0 and (-shift in EXPONENTIALS or shift != int(shift))


@dataclass(frozen=True)
class Strip:
    """Canonical rows one after the other, and where their elements are stored.

    Attributes:
        first: the stored element that is the first one.
        rows, cols: axes of the rows and of a row, outermost first.
    """

    first: int
    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]

    @cached_property
    def height(self) -> int:
        """How many rows they are."""
        return math.prod(n for n, _ in self.rows)

    @cached_property
    def stored(self) -> tuple[tuple[int, int, int, bool], ...]:
        """Axes in stored order: count, stored, canonical stride, whether of rows."""
        own = [*_canonical(self.rows, True), *_canonical(self.cols, False)]
        return tuple(sorted(own, key=lambda axis: -axis[1]))

    @property
    def run(self) -> int:
        """Elements of a row that lie together, at multiples of their number."""
        if self.cols and self.cols[-1][1] != 1:
            return 1
        inner = self.cols[-1][0] if self.cols else 1
        return math.gcd(inner, self.first, *(stride for _, stride in (*self.rows, *self.cols[:-1])))

    def start(self, row: Row) -> Row:
        """The stored element that is the first one of a row."""
        at = row * 0 + self.first
        for n, stride in reversed(self.rows):
            at = at + row % n * stride
            row = row // n
        return at

    def between(self, start: int, stop: int) -> Iterator[Box]:
        """Ranges of the axes, in stored order, between two stored elements."""
        sizes = [axis[0] for axis in self.stored]
        yield from boxes(sizes, self._behind(start), self._behind(stop))

    def _behind(self, element: int) -> int:
        """How many of the strip's elements lie before a stored one."""
        rest, count = max(0, element - self.first), math.prod(axis[0] for axis in self.stored)
        before = 0
        for n, stride, _, _ in self.stored:
            count //= n
            step, rest = divmod(rest, stride)
            before += min(step, n) * count
            if step >= n:
                return before
        return before + (rest > 0)


def _canonical(axes: Sequence[Axis], of_rows: bool) -> Iterator[tuple[int, int, int, bool]]:
    inner = 1
    for n, stride in reversed(axes):
        yield n, stride, inner, of_rows
        inner *= n


def boxes(sizes: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The elements ``start`` to ``stop`` of an array as few boxes in order."""
    if start >= stop:
        return
    if not sizes:
        yield ()
        return
    inner = math.prod(sizes[1:])
    low, below = divmod(start, inner)
    high, above = divmod(stop, inner)
    if below:
        for box in boxes(sizes[1:], below, inner if low < high else above):
            yield (low, low + 1), *box
        low += 1
    if low < high:
        yield (low, high), *((0, n) for n in sizes[1:])
    if above and low <= high:
        for box in boxes(sizes[1:], 0, above):
            yield (high, high + 1), *box


def merged(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """The same elements along as few axes as can be."""
    found: list[Axis] = []
    for n, stride in axes:
        if n != 1 and found and found[-1][1] == n * stride:
            found[-1] = found[-1][0] * n, stride
        elif n != 1:
            found.append((n, stride))
    return tuple(found)


@dataclass(frozen=True)
class Layout:
    """Positions of a canonical matrix in ``[stored_rows, stored_cols]``.

    Attributes:
        rows, cols: the canonical matrix.
        stored_rows, stored_cols: the stored matrix, padding and other tensors included.
        strips: where the canonical rows are; several where other tensors' rows follow that are stored as one with them.
        shared: stored elements that are in no canonical row are those of other tensors, no padding.
        shift: what the file holds for a canonical value (gemma norms are 1 + w in GGUF); 0 for the value itself.
        scale: what every stored value is to be multiplied by (the B of a LoRA, whose scale its configuration holds;
            the matrices of a class that multiplies what comes out of them); a float32 number, or the product of a few.
    """

    rows: int
    cols: int
    stored_rows: int
    stored_cols: int
    strips: tuple[Strip, ...]
    shared: bool = False
    shift: float = 0
    scale: float = 1.0

    @cached_property
    def in_order(self) -> bool:
        """Whether exactly the canonical rows are stored, in order: one run."""
        whole = Strip(0, merged([(self.rows, self.cols)]), merged([(self.cols, 1)]))
        return self.elements == self.rows * self.cols and self.strips == (whole,)

    @cached_property
    def padded(self) -> bool:
        """Whether the stored matrix holds zeros that are in no canonical row."""
        return not self.shared and self.elements != self.rows * self.cols

    @cached_property
    def elements(self) -> int:
        """Stored elements, padding included."""
        return self.stored_rows * self.stored_cols

    @cached_property
    def run(self) -> int:
        """Elements of a row that stay together, which blocks have to divide."""
        return math.gcd(*(strip.run for strip in self.strips))

    @cached_property
    def pitch(self) -> int:
        """Stored elements from one row to another are a multiple of this."""
        return math.gcd(*(stride for strip in self.strips for _, stride in strip.rows)) or self.cols

    @cached_property
    def whole_rows(self) -> bool:
        """Whether every row lies together."""
        return all(strip.cols in ((), ((self.cols, 1),)) for strip in self.strips)

    @cached_property
    def by_columns(self) -> bool:
        """Whether the matrix is stored transposed: columns lie together."""
        return any(strip.cols and strip.cols[-1][1] != 1 for strip in self.strips)

    @cached_property
    def interleaved(self) -> bool:
        """Whether rows ``i`` and ``i + n / 2`` of each head are neighbors.

        llama.cpp's converter stores Q and K so.
        """
        return self._pair >= 0

    @property
    def heads(self) -> int:
        """How many heads have their rows ``interleaved``; 1 where none has."""
        return math.prod(n for n, _ in self.strips[0].rows[: max(0, self._pair)])

    @cached_property
    def _pair(self) -> int:
        """Which axis of rows counts the two halves of a head."""
        axes = self.strips[0].rows if len(self.strips) == 1 else ()
        pairs = itertools.pairwise(axes)
        return next((n for n, (one, other) in enumerate(pairs) if one[0] == 2 and other[1] == 2 * one[1]), -1)

    @property
    def period(self) -> int:
        """The period of the permutation of rows; for one strip of whole rows."""
        axes = self.strips[0].rows
        inner = math.prod(n for n, _ in axes[1:])
        return inner if axes and axes[0][1] == inner * self.cols else self.rows

    def start(self, rows: Index) -> Index:
        """The stored elements at which canonical rows start."""
        if len(self.strips) == 1:
            return self.strips[0].start(rows)
        starts, first = rows * 0, 0
        for strip in self.strips:
            own = (rows >= first) & (rows < first + strip.height)
            starts[own] = strip.start(rows[own] - first)
            first += strip.height
        return starts

    def same_bytes_as(self, other: Layout) -> bool:
        """Whether two layouts store the same values at the same positions."""
        if (self.shift, self.scale) != (other.shift, other.scale) or (self.rows, self.cols) != (other.rows, other.cols):
            return False
        return not self.padded and (self.elements, self.strips) == (other.elements, other.strips)

    def part(self, first: int, rows: int) -> Layout:
        """Layout of ``rows`` canonical rows from ``first`` on, in whole heads."""
        strips: list[Strip] = []
        left = rows
        for one in self.strips:
            many = min(left, one.height - first)
            if many <= 0:
                first = max(0, first - one.height)
                continue
            inner = math.prod(n for n, _ in one.rows[1:])
            stride = one.rows[0][1] if one.rows else 0
            axes = merged([(many // inner, stride), *one.rows[1:]])
            strips.append(Strip(one.first + first // inner * stride, axes, one.cols))
            first, left = 0, left - many
        return replace(self, rows=rows, strips=tuple(strips), shared=True)

    def of_width(self, cols: int) -> Layout:
        """The same positions for rows of another width; only for whole rows."""
        wide = tuple(
            Strip(
                strip.first * cols // self.cols,
                tuple((n, stride * cols // self.cols) for n, stride in strip.rows),
                merged([(cols, 1)]),
            )
            for strip in self.strips
        )
        return replace(self, cols=cols, stored_rows=self.elements // self.cols, stored_cols=cols, strips=wide)


def stored_order(layout: Layout, other: Layout) -> Layout | None:
    """Return ``layout`` with rows and columns in the order of ``other``.

    Elements that ``other`` stores one after the other are neighbors, as blocks have them. ``None`` where an axis of the
    one runs over several of the other.
    """
    if len(layout.strips) > 1 or len(other.strips) > 1 or other.strips[0].first:
        return None
    if (layout.rows, layout.cols) != (other.rows, other.cols) or other.elements != other.rows * other.cols:
        return None
    order: list[Axis] = []
    for n, _, step, of_rows in other.strips[0].stored:
        axes = [axis for axis in layout.strips[0].stored if axis[3] is of_rows]
        found = [(n, stride * step // own) for size, stride, own, _ in axes if own <= step and step * n <= own * size]
        if not found:
            return None
        order.append(found[0])
    rows, cols = other.stored_rows, other.stored_cols
    split = next((at for at in range(len(order) + 1) if math.prod(n for n, _ in order[at:]) == cols), None)
    if split is None:
        return None
    strips = (Strip(layout.strips[0].first, merged(order[:split]), merged(order[split:])),)
    return replace(layout, rows=rows, cols=cols, strips=strips)


def strip(first: int, axes: Sequence[Axis], cols: int) -> Strip:
    """Strip of axes in canonical order; the last make a row of ``cols``."""
    split = len(axes)
    while cols > 1:
        split -= 1
        cols //= axes[split][0]
    return Strip(first, merged(axes[:split]), merged(axes[split:]))


@lru_cache(maxsize=_MAX_CACHED)
def plain(rows: int, cols: int, *, stored_rows: int = 0, stored_cols: int = 0, shift: float = 0) -> Layout:
    """Rows in canonical order, padded at their ends and after the last."""
    return headed(1, rows, cols, head_stride=stored_rows, stored_cols=stored_cols, shift=shift)


@lru_cache(maxsize=_MAX_CACHED)
def headed(
    heads: int,
    head_rows: int,
    cols: int,
    *,
    head_stride: int = 0,
    stored_cols: int = 0,
    interleaved: bool = False,
    shift: float = 0,
) -> Layout:
    """Rows of heads, each padded to ``head_stride`` stored rows."""
    stride, width = head_stride or head_rows, stored_cols or cols
    rows = [(2, width), (head_rows // 2, 2 * width)] if interleaved else [(head_rows, width)]
    stored = Strip(0, merged([(heads, stride * width), *rows]), merged([(cols, 1)]))
    return Layout(heads * head_rows, cols, heads * stride, width, (stored,), shift=shift)


def column_blocks(rows: int, heads: int, head_cols: int, *, block_rows: int = 0, stored_cols: int = 0) -> Layout:
    """Columns of heads, each stored as a ``[block_rows, stored_cols]`` block."""
    block, width = block_rows or rows, stored_cols or head_cols
    stored = Strip(0, merged([(rows, width)]), merged([(heads, block * width), (head_cols, 1)]))
    return Layout(rows, heads * head_cols, heads * block, width, (stored,))


def transposed(rows: int, cols: int, *, stored_cols: int = 0) -> Layout:
    """Canonical ``[rows, cols]`` stored as columns of a matrix."""
    width = stored_cols or rows
    return Layout(rows, cols, cols, width, (Strip(0, merged([(rows, 1)]), merged([(cols, width)])),))


def shifted(layout: Layout, shift: float) -> Layout:
    """The same positions, values stored ``shift`` higher."""
    return replace(layout, shift=shift)
