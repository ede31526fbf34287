"""Re-pack NVFP4 with a scale of scales into ggml's blocks and MLX's.

The other way round blocks and triples have the scale of scales 1.

A block of ggml has four scales of E4M3 and the codes of 64 elements. Its scales have no sign and are numbers, else a
group does not fit. A group fits MLX's nvfp4 if its scale times the scale of scales is an E4M3 number without a sign:
with that one the codes say the same. A divisor becomes a factor by one rounding, as llama.cpp's converter has it; a
factor becomes a divisor if it is a power of two, of which the inverse is exact.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ckconv.core.dtypes import BF16, DTYPES, DType, e4m3
from ckconv.quant.affine import Repacked
from ckconv.quant.codes import pack, unpack
from ckconv.quant.mlx import Quantization, Triple
from ckconv.quant.packed import DIVISOR, FACTOR, is_scaled, numbers, rows_of, scheme_of
from ckconv.quant.triples import split_planes, triple_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckconv.quant.affine import Flags
    from ckconv.quant.codec import Rows

_NVFP4 = DTYPES["NVFP4"]

#: What holds a matrix whose scales take up the scale of scales.
TRIPLE = Triple(Quantization("nvfp4", 4, 16), BF16)


def way_between(source: DType, target: DType) -> Callable[..., Repacked] | None:
    """From or to rows of a scaled NVFP4 type, or ``None`` where there is none."""
    scheme, other = scheme_of(source), scheme_of(target)
    if other in (FACTOR, DIVISOR) and (source is _NVFP4 or triple_of(source) == TRIPLE):
        return partial(_with_one, dtype=source)
    if scheme == FACTOR and other == DIVISOR:
        return partial(_to_divisor, dtype=source)
    if scheme is None or not is_scaled(source):
        return None
    if target is _NVFP4:
        return partial(_to_blocks, dtype=source)
    if triple_of(target) == TRIPLE:
        return partial(_to_triple, dtype=source)
    if other is not None and scheme.divisor and other == scheme._replace(divisor=False):
        return partial(_to_factor, dtype=source)
    return None


def _to_blocks(rows: Rows, *, dtype: DType, codes: bool = True) -> Repacked:
    import numpy as np

    from ckconv.quant import ggml

    found = numbers(rows, dtype)
    blocks = ggml.empty(len(rows), found.codes.shape[1], _NVFP4)
    ggml.put_codes(blocks, found.codes, _NVFP4)
    blocks["d"] = found.stored_scales.reshape(blocks["d"].shape)
    unfit = found.stored_scales > np.uint8(0x7E)
    return Repacked((ggml.to_bytes(blocks),), unfit.size, int(unfit.sum()))


def products(rows: Rows, dtype: DType) -> tuple[Rows, Flags]:
    """Scales of groups times the scale of scales, and which exist.

    Bytes ``[rows, groups]``.
    """
    import numpy as np

    found = numbers(rows, dtype)
    assert found.factors is not None
    table, factors = e4m3()[:0x7F].astype(np.float64), found.factors.astype(np.float64)[:, None]
    scales = found.scales.astype(np.float64)
    with np.errstate(all="ignore"):  # a factor of 0, or that is no number
        wanted = scales / factors if found.scheme.divisor else scales * factors
    codes = np.searchsorted(table, wanted).clip(max=len(table) - 1)
    # Four bits times 24 are exact in float64; a quotient that is an E4M3 number is not rounded.
    exact = table[codes] * factors == scales if found.scheme.divisor else table[codes] == wanted
    return codes.astype(np.uint8), exact & np.isfinite(factors)


def _to_triple(rows: Rows, *, dtype: DType, codes: bool = True) -> Repacked:
    scales, exact = products(rows, dtype)
    found = numbers(rows, dtype).codes
    return Repacked((pack(found if codes else found[:, :0], 4), scales), exact.size, int((~exact).sum()))


def _to_factor(rows: Rows, *, dtype: DType, codes: bool = True) -> Repacked:
    import numpy as np

    found = numbers(rows, dtype)
    assert found.factors is not None
    with np.errstate(all="ignore"):
        factors = (np.float32(1) / found.factors)[:, None].view(np.uint8)
    return Repacked((rows_of(found.codes, found.stored_scales, factors),), found.scales.size, 0)


def _to_divisor(rows: Rows, *, dtype: DType, codes: bool = True) -> Repacked:
    import numpy as np

    found = numbers(rows, dtype)
    assert found.factors is not None
    mantissas, exponents = np.frexp(found.factors)
    exact = (mantissas == 0.5) & (exponents >= -125) & (exponents <= 127)
    with np.errstate(all="ignore"):
        divisors = (np.float32(1) / found.factors)[:, None].view(np.uint8)
    made = rows_of(found.codes, found.stored_scales, divisors)
    return Repacked((made,), found.scales.size, int((~exact).sum()) * found.scales.shape[1])


def _with_one(rows: Rows, *, dtype: DType, codes: bool = True) -> Repacked:
    import numpy as np

    from ckconv.quant import ggml

    if dtype is _NVFP4:
        blocks = ggml.of_bytes(rows, _NVFP4)
        found, scales = ggml.get_codes(blocks, _NVFP4), np.ascontiguousarray(blocks["d"]).reshape(len(rows), -1)
    else:
        weight, scales = split_planes(rows, TRIPLE)
        found = unpack(weight, 4)
    unfit = scales > np.uint8(0x7E)
    ones = np.ones((len(rows), 1), np.float32).view(np.uint8)
    return Repacked((rows_of(found, scales, ones),), unfit.size, int(unfit.sum()))
