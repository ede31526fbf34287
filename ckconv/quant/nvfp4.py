"""NVFP4 with a scale of scales: into ggml's blocks, which it stands beside, and between those that multiply and divide.

A block of ggml has four scales of E4M3 and the codes of 64 elements. Its scales have no sign and are numbers, else a
group does not fit. A divisor becomes a factor by one rounding, as llama.cpp's converter has it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ckconv.core.dtypes import DTYPES, DType
from ckconv.quant.affine import Repacked
from ckconv.quant.packed import E2M1, numbers, rows_of, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckconv.quant.codec import Rows

_NVFP4 = DTYPES["NVFP4"]


def way_between(source: DType, target: DType) -> Callable[..., Repacked] | None:
    """From rows of a scaled NVFP4 type, or ``None`` where there is none."""
    scheme, other = scheme_of(source), scheme_of(target)
    if scheme is None or scheme.codes != E2M1 or not scheme.factor:
        return None
    if target is _NVFP4:
        return partial(_to_blocks, dtype=source)
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


def _to_factor(rows: Rows, *, dtype: DType, codes: bool = True) -> Repacked:
    import numpy as np

    found = numbers(rows, dtype)
    assert found.factors is not None
    with np.errstate(all="ignore"):
        factors = (np.float32(1) / found.factors)[:, None].view(np.uint8)
    return Repacked((rows_of(found.codes, found.stored_scales, factors),), found.scales.size, 0)
