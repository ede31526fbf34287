"""Codes and numbers of GGUF's superblocks, which only go one way.

======  =========================================================  ================================
GGUF    a value                                                    the numbers of a group
======  =========================================================  ================================
Q4_K    groups of 32, ``d * sc * code - dmin * m``                 ``d * sc``, bias ``-(dmin * m)``
Q5_K    the same, codes of five bits                               the same
Q3_K    ``d * n``, ``n = (sc - 32) * (code - 4)``, -124 to 128     ``d`` of 256, code ``n + 127``
IQ4_NL  ``d * n``, n one of 16 signed bytes                        ``d`` of 32, code ``n + 128``
TQ1_0   ``d * n``, n -1, 0 or 1                                    ``d`` of 256, code ``n + 1``
TQ2_0   ``d * n``, n -1 to 2                                       the same
======  =========================================================  ================================

``d``, ``dmin`` are float16; sc and m of Q4_K and Q5_K have six bits: ``d * sc`` has at most 17 significant bits and is
a float32 number, and so is its product with a code of 5 bits, so ggml's decoder and MLX's round the same sum once.
There is no way back: another d with other factors can give the same products. Q2_K and Q6_K have groups of 16
elements, which MLX's affine mode lacks, and products of more bits than eight.

Block structs: ``ggml/src/ggml-common.h``; 6-bit factors: ``get_scale_min_k4`` in ``ggml/src/ggml-quants.c``, and for
the others ``dequantize_row_*`` there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ckconv.core.dtypes import DTYPES, DType
from ckconv.errors import InputError
from ckconv.quant import ggml as ggmlblocks
from ckconv.quant.affine import Affine

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]
    Blocks = NDArray[Any]

#: Fields of one block, in order; those of TQ2_0 and IQ4_NL are :mod:`ckconv.quant.ggml`'s.
_FIELDS: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {
    "Q3_K": [("hmask", "u1", (32,)), ("qs", "u1", (2, 32)), ("scales", "u1", (12,)), ("d", "<f2", ())],
    "Q4_K": [("d", "<f2", ()), ("dmin", "<f2", ()), ("factors", "u1", (12,)), ("qs", "u1", (4, 32))],
    "Q5_K": [
        ("d", "<f2", ()),
        ("dmin", "<f2", ()),
        ("factors", "u1", (12,)),
        ("qh", "u1", (32,)),
        ("qs", "u1", (4, 32)),
    ],
    "TQ1_0": [("qs", "u1", (48,)), ("qh", "u1", (4,)), ("d", "<f2", ())],
}

#: Values of the codes of IQ4_NL; ``kvalues_iq4nl``.
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class Superblock(NamedTuple):
    """How the numbers of a GGUF type lie.

    Attributes:
        bits: of a code as it is here.
        group: elements that share the numbers.
        zero: the code of 0; ``None`` where there is a bias.
        codes: codes uint8 ``[rows, n, block]`` of blocks ``[rows, n]``.
    """

    bits: int
    group: int
    zero: int | None
    codes: Callable[[Blocks], Bytes]


def parts_of(raw: Bytes, block: DType, *, codes: bool = True) -> Affine:
    """GGUF rows ``[rows, bytes]`` as codes and numbers.

    Args:
        codes: ``False`` for the numbers alone.

    Raises:
        InputError: ``repack.row``: rows are not whole blocks.
    """
    import numpy as np

    if raw.shape[1] % block.size:
        message = f"a row of {raw.shape[1]:,} bytes is not whole {block} blocks of {block.size} bytes"
        raise InputError("repack.row", message, found=raw.shape[1], allowed=block.size)
    kind, fields = SUPERBLOCKS[block], _FIELDS.get(block.name)
    blocks = ggmlblocks.of_bytes(raw, block) if fields is None else np.ascontiguousarray(raw).view(np.dtype(fields))
    unpacked = kind.codes(blocks).reshape(len(raw), -1) if codes else np.empty((len(raw), 0), np.uint8)
    d = blocks["d"].astype(np.float32)
    if kind.zero is not None:
        return Affine(kind.bits, kind.group, unpacked, d, zero=np.full(d.shape, kind.zero, np.int16))
    with np.errstate(invalid="ignore", over="ignore"):  # d or dmin may be infinite or NaN
        factors, minima = _factors(blocks["factors"])
        scale = (d[..., None] * factors).reshape(len(raw), -1)
        bias = -(blocks["dmin"].astype(np.float32)[..., None] * minima).reshape(len(raw), -1)
    return Affine(kind.bits, kind.group, unpacked, scale, bias=bias)


def _factors(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight 6-bit factors of scales and of minima, of bytes ``[..., 12]``."""
    import numpy as np

    low, high, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, (rest & 15) | (low >> 6 << 4)], axis=-1)
    minima = np.concatenate([high & 63, (rest >> 4) | (high >> 6 << 4)], axis=-1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _runs(bytes_of_runs: Bytes, bits: int) -> Bytes:
    """Codes of runs of bytes ``[..., run]``, lowest bits first."""
    import numpy as np

    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes: Bytes = bytes_of_runs[..., None, :] >> shifts[:, None] & np.uint8((1 << bits) - 1)
    return codes


def _k_codes(blocks: Blocks) -> Bytes:
    import numpy as np

    codes = _runs(blocks["qs"], 4)
    if "qh" in (blocks.dtype.names or ()):
        codes |= (_runs(blocks["qh"], 1) << np.uint8(4)).reshape(codes.shape)
    return codes


def _q3_codes(blocks: Blocks) -> Bytes:
    import numpy as np

    packed = blocks["scales"]
    low = _runs(packed[..., :8], 4).reshape(*blocks.shape, 16)
    high = _runs(packed[..., 8:], 2).reshape(*blocks.shape, 16)
    factors = (low | high << np.uint8(4)).astype(np.int16) - np.int16(32)
    codes = _runs(blocks["qs"], 2).reshape(*blocks.shape, 256)
    codes |= (_runs(blocks["hmask"], 1) << np.uint8(2)).reshape(codes.shape)
    signed = (codes.astype(np.int16) - np.int16(4)).reshape(*blocks.shape, 16, 16)
    return (signed * factors[..., None] + np.int16(127)).astype(np.uint8)


def _nl_codes(blocks: Blocks) -> Bytes:
    import numpy as np

    table = (np.array(_IQ4_NL, np.int16) + np.int16(128)).astype(np.uint8)
    return table[ggmlblocks.get_codes(blocks, DTYPES["IQ4_NL"])]


def _ternary_codes(blocks: Blocks) -> Bytes:
    """Unpack five ternary digits of a byte, or four.

    A byte is the fraction ``byte / 256`` in base 3.
    """
    import numpy as np

    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
    runs = ((blocks["qs"][..., :32], 5), (blocks["qs"][..., 32:], 5), (blocks["qh"], 4))
    digits = [(run[..., None, :] * powers[:n]).reshape(*blocks.shape, -1) for run, n in runs]
    return (np.concatenate(digits, axis=-1).astype(np.uint16) * np.uint16(3) >> np.uint16(8)).astype(np.uint8)


SUPERBLOCKS: dict[DType, Superblock] = {
    DTYPES["Q4_K"]: Superblock(4, 32, None, _k_codes),
    DTYPES["Q5_K"]: Superblock(5, 32, None, _k_codes),
    DTYPES["Q3_K"]: Superblock(8, 256, 127, _q3_codes),
    DTYPES["IQ4_NL"]: Superblock(8, 32, 128, _nl_codes),
    DTYPES["TQ1_0"]: Superblock(2, 256, 1, _ternary_codes),
    DTYPES["TQ2_0"]: Superblock(2, 256, 1, lambda blocks: _runs(blocks["qs"], 2)),
}
