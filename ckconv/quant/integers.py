"""Re-packings of integers of 4 and 8 bits with scales and zero points.

A group of a triple or of Q4_1 has a bias instead. It is ``-zero * scale`` exactly, with a zero point that is a code, or
the group has no zero point. Where every zero point is the middle one, nothing needs to be stored of them.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

from ckconv.core.dtypes import DTYPES, F16, DType, holds
from ckconv.quant import affine, packed
from ckconv.quant.affine import Affine, Repacked
from ckconv.quant.codec import from_float32, to_float32
from ckconv.quant.codes import unpack
from ckconv.quant.packed import INT, Scheme, scheme_of
from ckconv.quant.triples import split_planes, triple_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckconv.quant.codec import Rows
    from ckconv.quant.mlx import Triple

#: GGUF blocks that are a scale and integers around zero -> the same numbers as other quantizers have them.
INTEGERS = {DTYPES[name]: Scheme(INT, bits, 32, F16) for name, bits in (("Q4_0", 4), ("Q8_0", 8))}

_Q4_1 = DTYPES["Q4_1"]


@cache
def with_zeros(dtype: DType) -> Scheme | None:
    """Scheme of a type with zero points added, or ``None``.

    Of types with zero points or biases.
    """
    triple, found = triple_of(dtype), scheme_of(dtype)
    if triple is not None and triple.quantization.mode == "affine":
        found = Scheme(INT, triple.quantization.bits, triple.quantization.group_size, triple.number, zeros=True)
    elif dtype is _Q4_1:
        found = Scheme(INT, 4, 32, F16, zeros=True)
    elif found is None or not (found.codes == INT and found.zeros and whole(dtype, 1)) or found.ordered:
        return None
    return found if found.bits in (4, 8) else None


def whole(dtype: DType, unit: int) -> bool:
    """Whether groups of a packed type are all a multiple of ``unit`` long.

    Else the last one of a row is smaller.
    """
    scheme = scheme_of(dtype)
    return scheme is not None and scheme.groups(dtype.block) == 1 and dtype.block % unit == 0


def of_packed(rows: Rows, dtype: DType, *, codes: bool = True) -> Affine:
    """Rows of a packed type of integers."""
    import numpy as np

    found = packed.numbers(rows, dtype)
    assert found.zeros is not None  # of integers
    kept = found.codes if codes else found.codes[:, :0]
    return Affine(found.scheme.bits, dtype.block, kept, found.scales, zero=found.zeros.astype(np.int16))


def of_triple(triple: Triple, scales: Rows, biases: Rows, codes: Rows | None = None) -> Affine:
    """Rows of the arrays of a triple; without codes the numbers alone."""
    import numpy as np

    q = triple.quantization
    unpacked = np.empty((len(scales), 0), np.uint8) if codes is None else unpack(codes, q.bits)
    scale, bias = (to_float32(np.ascontiguousarray(plane), triple.number) for plane in (scales, biases))
    return Affine(q.bits, q.group_size, unpacked, scale, bias=bias)


def parts_of(rows: Rows, dtype: DType, *, codes: bool = True) -> Affine:
    """Codes and numbers of rows of a type that :func:`with_zeros` knows.

    Without ``codes`` the numbers alone.
    """
    import numpy as np

    from ckconv.quant import ggml

    triple = triple_of(dtype)
    if triple is not None:
        weight, scales, biases = split_planes(rows, triple)
        return of_triple(triple, scales, biases, weight if codes else None)
    if dtype is not _Q4_1:
        return of_packed(rows, dtype, codes=codes)
    blocks = ggml.of_bytes(rows, dtype)
    d, m = (np.ascontiguousarray(blocks[field]).astype(np.float32) for field in ("d", "m"))
    found = ggml.get_codes(blocks, dtype) if codes else np.empty((len(rows), 0), np.uint8)
    return Affine(4, 32, found, d, bias=m)


def way_between(source: DType, target: DType) -> Callable[..., Repacked] | None:
    """To rows of a packed type of integers, or ``None`` where there is none."""
    scheme, own = scheme_of(target), with_zeros(source)
    if scheme is None:
        return None
    if INTEGERS.get(source) == scheme:
        return partial(_of_blocks, block=source)
    same = own is not None and own == scheme._replace(number=own.number, zeros=True)
    return partial(_to_zeros, dtype=source, scheme=scheme) if same else None


def _of_blocks(rows: Rows, *, block: DType, codes: bool = True) -> Repacked:
    import numpy as np

    from ckconv.quant import ggml

    blocks = ggml.of_bytes(rows, block)
    scales = np.ascontiguousarray(blocks["d"])
    unfit = ~np.isfinite(scales)
    return Repacked((packed.rows_of(ggml.get_codes(blocks, block), scales),), unfit.size, int(unfit.sum()))


def _to_zeros(rows: Rows, *, dtype: DType, scheme: Scheme, codes: bool = True) -> Repacked:
    import numpy as np

    found = parts_of(rows, dtype)
    zeros, fits = affine.integers(found)
    fits = fits & holds(found.scale, scheme.number)
    if not scheme.zeros:
        fits &= zeros == 1 << scheme.bits - 1
    scales, _ = from_float32(found.scale, scheme.number)
    made = packed.rows_of(found.codes, scales, *([zeros] if scheme.zeros else []))
    return Repacked((made,), fits.size, int(np.count_nonzero(~fits)))
