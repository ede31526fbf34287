"""Whether blocks hold values as nearly as their type's quantizer does.

Blocks are made a second time: by another implementation where there is one, else by ggml's own, which finds what is
wrong in the use of it. Most of ggml's quantizers search for scales, and what is looked at besides is true of every
right block: codes are the next ones of the scales as they are stored, errors are no larger than those of scales that
merely reach far enough, and values are on the average as large as the source's. Merged values, which are a sum in
another order here, have nothing else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ckconv.core.layouts import BF16, F16, DType
from ckconv.core.lazy import Doubles, NDArray, Rows

#: Blocks that gguf makes of values as llama-quantize does, some only where errors are not weighed.
_SAME = frozenset({"Q8_0", "TQ1_0", "TQ2_0", "MXFP4"})
_SAME_ALIKE = _SAME | {"Q4_0", "Q4_1", "Q5_0", "Q5_1"}


class Codes(NamedTuple):
    """Evenly spaced codes of a group of numbers.

    Attributes:
        group: numbers that share a scale.
        bits: bits of a code.
        scale_bits: bits of a scale, as a multiple of that of 256 numbers; 0 is a float of its own.
        minimum: whether the codes begin at a stored number (K-quants: at 0 or below), else they lie around 0.
        mlx: ``affine_quantize`` of MLX's ``quantized.h``.
    """

    group: int
    bits: int
    scale_bits: int = 0
    minimum: bool = True
    mlx: bool = False

    @property
    def zero(self) -> bool:
        """Whether 0 is one of the codes in any case."""
        return self.mlx and self.bits > 1


#: ggml's types of such codes (block_q4_0 to block_q6_K of ggml-common.h).
LINEAR = {
    "Q4_0": Codes(32, 4, minimum=False), "Q4_1": Codes(32, 4), "Q5_0": Codes(32, 5, minimum=False),
    "Q5_1": Codes(32, 5), "Q8_0": Codes(32, 8, minimum=False), "Q2_K": Codes(16, 2, 4),
    "Q3_K": Codes(16, 3, 6, minimum=False), "Q4_K": Codes(32, 4, 6), "Q5_K": Codes(32, 5, 6),
    "Q6_K": Codes(16, 6, 8, minimum=False),
}  # fmt: skip

#: Values of the 16 codes of four bits, the highest of which is the sign.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


class _Next(NamedTuple):
    """Codes that a quantizer takes last, of the scales as they are stored.

    Attributes:
        codes: first and last byte of a block's codes.
        levels: values of the codes, in order, evenly spaced or not.
        ends: bytes of the first and the last.
        unrounded: scales lose digits after that; how far they may be off, where they are below float16's least.
    """

    codes: tuple[int, int]
    levels: Doubles
    ends: tuple[int, int] = (0, 255)
    unrounded: float = 0.0


#: ``kvalues_iq4nl`` of ggml-common.h.
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])

_NEXT = {
    "Q2_K": _Next((16, 80), np.arange(4.0)),
    "Q3_K": _Next((0, 96), np.arange(8.0)),
    "Q4_K": _Next((16, 144), np.arange(16.0)),
    "Q5_K": _Next((16, 176), np.arange(32.0)),
    "Q6_K": _Next((0, 192), np.arange(64.0)),
    "IQ4_NL": _Next((2, 18), _IQ4, unrounded=127 * 2.0**-24),
    "IQ4_XS": _Next((8, 136), _IQ4, unrounded=127 * 32 * 2.0**-24),
    "NVFP4": _Next((4, 36), np.array(sorted({*E2M1})), ends=(0xFF, 0x77)),
}

#: Rounding to nearest is off by a step / sqrt(12), rounding in one direction by twice that. MLX, which wants 0 to be a
#: code, cuts the largest values off where that ends in a tie.
_WORSE, _WORSE_WITH_ZERO = 1.6, 2.5

#: Least and largest factor between values and the source's; a few types have one of their own. Weighed scales are the
#: best ones where nothing rounds them but float16; ``quantize_row_iq1_s_impl`` has a factor that nobody explains.
_OF_MLX = (0.5, 1.5)
_WEIGHED_FACTORS = dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1"), (0.994, 1.006))
_FACTORS = dict.fromkeys(("TQ1_0", "TQ2_0", "MXFP4", "Q1_0"), (0.3, 1.5)) | {"IQ1_S": (0.6, 1.2)}
_FACTOR = (0.8, 1.12)

#: A row is judged as a whole where its energy is that of this share of its columns, or more.
_SPREAD = 0.05

#: Rows of smaller values may be rounded to zeros (half of float16's least, times 128 and 32 of Q6_K), and what is not
#: may have scales of few digits.
_ZEROS, _FEW = 2.0**-13, 2.0**-10

#: Types whose scales are coarser: NVFP4's are E4M3 numbers, and have a digit at 2**-9, six times which is a value.
_COARSE = {"NVFP4": 2.0**-4}

#: Squares of larger values have no sum in float32.
_LARGEST = 2.0**49

#: Float types narrower than float32 -> bits of the mantissa that are dropped.
DROPPED = {F16: 13, BF16: 16}


def rounded(values: Doubles, dtype: DType) -> Doubles:
    """Values rounded to float32, then to a narrower type, ties to even."""
    with np.errstate(all="ignore"):
        single = values.astype(np.float32)
        if dtype is F16:
            return single.astype(np.float16).astype(np.float64)
        if dtype is BF16:
            bits = single.view(np.uint32).astype(np.uint64)
            bits = bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1)) & np.uint64(0xFFFF0000)
            return np.where(np.isnan(single), np.nan, bits.astype(np.uint32).view(np.float32)).astype(np.float64)
        return single.astype(np.float64)


def again(values: Doubles, dtype: DType, *, weighed: bool) -> Doubles | None:
    """Values of the blocks that a second quantizer makes, if there is one."""
    if dtype.name == "Q1_0":  # quantize_row_q1_0_ref of ggml-quants.c: the mean size, and signs
        groups = values.reshape(len(values), -1, dtype.block)
        scales = rounded(np.abs(groups).mean(axis=-1, keepdims=True), F16)
        return np.where(groups >= 0, scales, -scales).reshape(values.shape)
    if dtype.ggml is None or dtype.name not in (_SAME if weighed else _SAME_ALIKE):
        return None
    from gguf import GGMLQuantizationType, quants

    kind = GGMLQuantizationType(dtype.ggml)
    with np.errstate(all="ignore"):  # of the reciprocal of a scale near 0
        return np.asarray(quants.dequantize(quants.quantize(values.astype(np.float32), kind), kind), np.float64)


def by_ggml(values: Doubles, dtype: DType, importance: Doubles | None) -> Rows | None:
    """Blocks that ggml's own code makes of rows, each by its importance."""
    try:
        import libgguf
    except ImportError:
        return None
    made = np.empty((len(values), dtype.nbytes(values.shape[1])), np.uint8)
    weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
    for number, row in enumerate(values.astype(np.float32)):
        how = None if weights is None else weights[number]
        libgguf.quantize_rows_into_raw(dtype.ggml, row, made[number], 1, len(row), how)
    return made


def misplaced(raw: Rows, found: Doubles, meant: Doubles, slack: Doubles, dtype: DType) -> NDArray[np.bool_] | None:
    """Values of which another code of their block is nearer, if that is known."""
    kind = _NEXT.get(dtype.name)
    if kind is None or dtype.ggml is None:
        return None
    from gguf import GGMLQuantizationType, quants

    blocks, ends = raw.reshape(len(raw), -1, dtype.size), []
    for byte in kind.ends:
        filled = blocks.copy()
        filled[..., slice(*kind.codes)] = byte
        decoded = quants.dequantize(filled.reshape(raw.shape), GGMLQuantizationType(dtype.ggml))
        ends.append(np.asarray(decoded, np.float64))
    low, span = ends[0], ends[1] - ends[0]
    levels = (kind.levels - kind.levels[0]) / np.ptp(kind.levels)
    with np.errstate(all="ignore"):
        place = np.where(span == 0, 0, (meant - low) / np.where(span == 0, 1, span))
        nearest = low + span * levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, place)]
        digits = 2.0**-10 * np.abs(span) if kind.unrounded else 2.0**-20 * (np.abs(span) + np.abs(meant))
        return np.asarray(np.abs(found - meant) > np.abs(nearest - meant) + digits + kind.unrounded + slack)


def spread(amounts: Doubles) -> Doubles:
    """The share of columns that would have the sum with even amounts."""
    squares = (amounts * amounts).sum(axis=1)
    return np.asarray(amounts.sum(axis=1) ** 2 / np.where(squares == 0, 1, squares) / amounts.shape[1])


def out_of_step(
    found: Doubles,
    meant: Doubles,
    slack: Doubles,
    importance: Doubles | None,
    name: str,
    codes: Codes | None,
    number: DType,
) -> tuple[int, str] | None:
    """A row that is further from its source than blocks of the type are.

    Errors are weighed as ggml does: by importance, and by size a little. Rows of a few large numbers, or with a few
    important ones, have no other quality that is sure.
    """
    squares = meant * meant
    weights = np.sqrt(squares.mean(axis=1, keepdims=True) + squares)
    regular = (spread(squares) >= _SPREAD) & (np.abs(meant).max(axis=1) < _LARGEST)
    if importance is not None:
        weights = weights * importance
        regular &= spread(importance) >= _SPREAD
    regular &= spread(weights * squares) >= _SPREAD
    small = np.where(found.any(axis=1), _FEW, _ZEROS)
    regular &= np.sqrt(squares.mean(axis=1)) > np.maximum(small, _COARSE.get(name, 0.0))
    with np.errstate(all="ignore"):
        factor = (weights * found * meant).sum(axis=1) / (weights * found * found).sum(axis=1)
    own = _WEIGHED_FACTORS if importance is not None and name in _WEIGHED_FACTORS else _FACTORS
    least, most = own.get(name, _FACTOR)
    if codes is not None and codes.zero:
        least, most = _OF_MLX
    elif codes is not None and codes.bits == 1:  # the ends of a group are its only values
        least, most = 0.0, 1.5
    wrong = regular & ~((least <= factor) & (factor <= most))
    if wrong.any():
        row = int(np.argmax(wrong))
        return row, f"{np.nan_to_num(factor[row]):.3g} times its values is nearest to the source's"
    if codes is None:
        return None
    naive, step = linearly(meant, codes, number, below=importance is not None)
    error = (weights * (found - meant) ** 2).sum(axis=1)
    # Of values that stand on such a grid (a model that was decoded), that of values between the codes: the naive codes
    # meet them exactly, and a quantizer, which rounds its scales, does not.
    usual = np.maximum((weights * (naive - meant) ** 2).sum(axis=1), (weights * step**2 / 12).sum(axis=1))
    worse = _WORSE_WITH_ZERO if codes.zero else _WORSE
    wrong = regular & (error > worse**2 * (usual + (weights * (slack**2 / 64 + squares * 2.0**-22)).sum(axis=1)))
    if not wrong.any():
        return None
    row = int(np.argmax(wrong))
    far, near = np.sqrt(np.array([error[row], usual[row]]) / weights[row].sum())
    return row, f"values are {far:.3g} away from the source's, {near:.3g} when each is rounded to the next code"


def linearly(values: Doubles, codes: Codes, number: DType, *, below: bool = False) -> tuple[Doubles, Doubles]:
    """Values of codes that reach just as far as each group, and their steps.

    Scales are as a simple quantizer of the type makes and stores them.

    Args:
        below: the codes begin at 0 or below it in any case (``make_qkx3_quants`` of ggml-quants.c).
    """
    number_of = np.float32 if codes.mlx else np.float64  # of ties the one that MLX computes with
    grouped: NDArray[Any] = values.reshape(len(values), -1, codes.group).astype(number_of)
    low, high = grouped.min(axis=-1), grouped.max(axis=-1)
    last = (1 << codes.bits) - 1
    with np.errstate(all="ignore"):
        if not codes.minimum:  # of the codes around 0, the negative ones reach one further
            step = -np.where(high > -low, high, low) * 2 / (last + 1)
        else:
            low = np.minimum(low, 0) if codes.scale_bits or (below and not codes.mlx) else low
            step = np.maximum((high - low) / last, 1e-7 if codes.mlx else 0)
        if codes.zero:
            under = np.abs(low) > np.abs(high)
            edge, step = np.where(under, low, high), np.where(under, step, -step)
            at = np.rint(edge / step)
            step, low = np.where(at, edge / at, step), np.where(at, edge, 0)
        unit = _stored(step, codes, codes.scale_bits - (not codes.minimum), number)
        least = _stored(low, codes, codes.scale_bits, number) if codes.minimum else -unit * (last + 1) / 2
        if codes.scale_bits:  # codes are of the scales as they are stored; of others, as they were before
            step, low = unit, least
        elif not codes.minimum:
            low = -step * (last + 1) / 2
        code = np.nan_to_num(np.clip(np.rint((grouped - low[..., None]) / step[..., None]), 0, last))
        made = least[..., None] + code * unit[..., None]
    return made.reshape(values.shape), np.repeat(np.abs(unit), codes.group, axis=-1)


def _stored(scales: Doubles, codes: Codes, bits: int, number: DType) -> Doubles:
    """Scales as floats, or as multiples of a float for 256 numbers."""
    if not codes.scale_bits:
        return rounded(scales, number)
    groups = scales.reshape(len(scales), -1, 256 // codes.group)
    unit = np.abs(groups).max(axis=-1, keepdims=True) / ((1 << bits) - 1)
    return (np.rint(groups / np.where(unit == 0, 1, unit)) * rounded(unit, number)).reshape(scales.shape)
