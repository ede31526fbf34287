"""Element and block types of all formats; small floats inside float32."""

from __future__ import annotations

import enum
import math
import struct
from functools import cache, lru_cache

from ckconv.core.late import Flags, Floats, NamedTuple, np

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


class DType(NamedTuple):
    """One type. ``block`` is in elements, ``size`` is the bytes of one block."""

    name: str
    kind: Kind
    block: int
    size: int
    ggml: int | None = None
    safetensors: str | None = None
    bump_v3: int | None = None
    bump_v4: int | None = None

    def nbytes(self, elements: int) -> int:
        """Bytes of ``elements`` elements, which must fill whole blocks."""
        return elements // self.block * self.size

    def __str__(self) -> str:
        return self.name


def _table(*rows: tuple[str, Kind, int, int, int | None, str | None, int | None, int | None]) -> dict[str, DType]:
    return {row[0]: DType(*row) for row in rows}


_F, _I, _B, _O = Kind.FLOAT, Kind.INTEGER, Kind.BLOCK, Kind.OPAQUE

# fmt: off
#: name -> type; columns: name, kind, block elements, block bytes, ggml id, safetensors name, bump codes v3 and v4.
DTYPES: dict[str, DType] = _table(
    ("F32",     _F,   1,   4,    0, "F32",    0,    0),
    ("F16",     _F,   1,   2,    1, "F16",    2,    2),
    ("BF16",    _F,   1,   2,   30, "BF16",   1,    1),
    ("F64",     _F,   1,   8,   28, "F64", None, None),
    ("I8",      _I,   1,   1,   24, "I8",     3,    3),
    ("I16",     _I,   1,   2,   25, "I16", None, None),
    ("I32",     _I,   1,   4,   26, "I32", None, None),
    ("I64",     _I,   1,   8,   27, "I64", None, None),
    ("U8",      _I,   1,   1, None, "U8",  None, None),
    ("U16",     _I,   1,   2, None, "U16", None, None),
    ("U32",     _I,   1,   4, None, "U32", None, None),
    ("U64",     _I,   1,   8, None, "U64", None, None),
    ("BOOL",    _I,   1,   1, None, "BOOL", None, None),
    ("C64",     _O,   1,   8, None, "C64", None, None),
    ("F4",      _O,   2,   1, None, "F4",  None, None),
    ("F6_E2M3", _O,   4,   3, None, "F6_E2M3", None, None),
    ("F6_E3M2", _O,   4,   3, None, "F6_E3M2", None, None),
    ("F8_E4M3", _O,   1,   1, None, "F8_E4M3", None, None),
    ("F8_E5M2", _O,   1,   1, None, "F8_E5M2", None, None),
    ("F8_E8M0", _O,   1,   1, None, "F8_E8M0", None, None),
    ("F8_E4M3FNUZ", _O, 1, 1, None, "F8_E4M3FNUZ", None, None),
    ("F8_E5M2FNUZ", _O, 1, 1, None, "F8_E5M2FNUZ", None, None),
    ("Q4_0",    _B,  32,  18,    2, None,    5,    5),
    ("Q4_1",    _B,  32,  20,    3, None, None,    6),
    ("Q5_0",    _B,  32,  22,    6, None, None,   11),
    ("Q5_1",    _B,  32,  24,    7, None, None,   12),
    ("Q8_0",    _B,  32,  34,    8, None,    8,    9),
    ("Q8_1",    _B,  32,  36,    9, None, None, None),
    ("Q2_K",    _B, 256,  84,   10, None, None, None),
    ("Q3_K",    _B, 256, 110,   11, None, None, None),
    ("Q4_K",    _B, 256, 144,   12, None,    6,    7),
    ("Q5_K",    _B, 256, 176,   13, None, None,   13),
    ("Q6_K",    _B, 256, 210,   14, None,    7,    8),
    ("Q8_K",    _B, 256, 292,   15, None,    9,   10),
    ("IQ2_XXS", _B, 256,  66,   16, None, None, None),
    ("IQ2_XS",  _B, 256,  74,   17, None, None, None),
    ("IQ3_XXS", _B, 256,  98,   18, None, None, None),
    ("IQ1_S",   _B, 256,  50,   19, None, None, None),
    ("IQ4_NL",  _B,  32,  18,   20, None, None, None),
    ("IQ3_S",   _B, 256, 110,   21, None, None, None),
    ("IQ2_S",   _B, 256,  82,   22, None, None, None),
    ("IQ4_XS",  _B, 256, 136,   23, None, None, None),
    ("IQ1_M",   _B, 256,  56,   29, None, None, None),
    ("TQ1_0",   _B, 256,  54,   34, None, None, None),
    ("TQ2_0",   _B, 256,  66,   35, None, None, None),
    ("MXFP4",   _B,  32,  17,   39, None, None, None),
    ("NVFP4",   _B,  64,  36,   40, None, None, None),
    ("Q1_0",    _B, 128,  18,   41, None, None, None),
    ("Q2_0",    _B,  64,  18,   42, None, None, None),
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
    magnitude = bits & np.uint32(0x7FFFFFFF)
    if dtype is F16:
        # Integer rounding is right from 2**-14, the first normal float16, to below 65,520, which rounds to infinity.
        magnitude -= np.uint32(0x38800000)
        special = magnitude >= np.uint32(0x477FF000 - 0x38800000)
        with np.errstate(all="ignore"):
            kept = values[special].astype(np.float16).astype(np.float32)
        dropped = 13
    else:
        # Rounding a NaN's payload could carry into its exponent and sign.
        special = magnitude > np.uint32(0x7F800000)
        kept = np.full(1, np.nan, np.float32)
        dropped = 16
    odd = np.right_shift(bits, np.uint32(dropped), out=magnitude)
    odd &= np.uint32(1)
    odd += np.uint32((1 << dropped - 1) - 1)
    bits += odd
    bits &= np.uint32(0xFFFFFFFF >> dropped << dropped)
    values[special] = kept


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
