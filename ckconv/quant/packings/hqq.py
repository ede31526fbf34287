"""HQQ as its library saves it in safetensors (``encoded_state_dict``).

``W_q``              U8, of 3 bits I32, or those bytes as floats (``view_as_float``): codes, see below
``scale``, ``zero``  floats, as many as groups: ``[groups, 1]``, with ``axis`` 0 ``[1, groups]``
``shape``            I64 ``[2]``: of the matrix
``group_size``, ``axis``  I32: codes of a group; 1: they follow each other; 0: they are as many codes apart as there are
                     groups
``packing``          U8: ``4bit_u8`` and its like, in ASCII
``compute_dtype``    U8: ``torch.float16`` and its like, in ASCII; what values are rounded to

All codes of the matrix, row after row, are cut into as many parts as a byte (or, of 3 bits, a word) holds codes.
Element i of ``W_q`` has code i of every part, the first part's in its highest bits. Value = (code - zero) * scale;
the difference and the product are each rounded to the type of the scales. Source: ``core/quantize.py`` and
``core/bitpack.py`` of hqq 0.2.8.
"""

from __future__ import annotations

from functools import partial

from ckconv.core.arrays import Rows, np
from ckconv.core.dtypes import BF16, F16, F32, DType
from ckconv.core.layouts import Layout, Strip, merged, plain
from ckconv.core.tensors import StoredTensor
from ckconv.quant.packed import REAL, Scheme, rows_of
from ckconv.quant.packings.module import (
    FLOATS,
    I32,
    I64,
    U8,
    Arrays,
    Declared,
    Misfit,
    Module,
    Packing,
    Tile,
    Unread,
    laid_out,
    shaped,
)

#: Bits of a code, codes of an element, and bytes of an element.
_PACKINGS = {
    "8bit_u8": (8, 1, 1), "4bit_u8": (4, 2, 1), "3bit_32": (3, 10, 4), "2bit_u8": (2, 4, 1), "1bit_u8": (1, 8, 1),
}  # fmt: skip
_TYPES: dict[str, DType | None] = {"torch.float16": F16, "torch.bfloat16": BF16, "torch.float32": F32}

#: Arrays of numbers beside the codes; names that other arrays have, too.
BESIDE = (
    *(".scale", ".zero", ".zero_scale", ".shape", ".group_size", ".axis", ".packing", ".compute_dtype", ".nbits"),
    *(".view_as_float", ".unpack_view_dtype", ".quant_scale", ".quant_zero", ".offload_meta", ".encoded_state_dict"),
    *(".stores_quant_config", ".channel_wise", ".optimize", ".round_zero"),
)


def _fit(stored: Arrays, declared: Declared) -> Module:
    if ".zero_scale" in stored:
        raise Unread("HQQ with scales and zero points in one array (offload_meta)")
    missing = [suffix for suffix in BESIDE[:2] + BESIDE[3:7] if suffix not in stored]
    if missing:
        raise Misfit(f"there is no {missing[0][1:]}")
    said = {suffix: _numbers(stored[suffix], declared, suffix) for suffix in (".shape", ".group_size", ".axis")}
    said[".packing"] = _numbers(stored[".packing"], declared, ".packing", U8)
    packing, weight, scale, zero = _text(said[".packing"]), stored[".W_q"], stored[".scale"], stored[".zero"]
    shape, (size, axis) = (
        said[".shape"],
        (said[key][0] if len(said[key]) == 1 else -1 for key in (".group_size", ".axis")),
    )
    if packing not in _PACKINGS:
        raise Unread(f"HQQ with packing {packing}")
    if len(shape) != 2 or not all(0 < length < 1 << 32 for length in shape) or size < 1 or axis not in (0, 1):
        raise Misfit(f"it says shape {shape}, group_size {size} and axis {axis}")
    rows, columns = shape
    bits, parts, unit = _PACKINGS[packing]
    groups, rest = divmod(rows * columns, size)
    if rest:
        raise Misfit(f"groups of {size} do not divide {rows * columns:,} codes")
    lines = groups if axis else size  # of what was packed, whose first axis is cut into parts
    elements = -(-lines // parts) * (rows * columns // lines)
    if weight.extent.nbytes != elements * unit or (lines % parts and bits != 3):
        raise Misfit(f"W_q has shape {list(weight.shape)} {weight.dtype}, which is not {packing} of {shape}")
    shaped(scale, (groups, 1) if axis else (1, groups))
    shaped(zero, scale.shape)
    if columns % size if axis else groups % columns:
        raise Unread("HQQ with groups that cross rows")
    computed: DType | None = F16
    if ".compute_dtype" in stored:
        computed = _TYPES.get(_text(_numbers(stored[".compute_dtype"], declared, ".compute_dtype", U8)))
    if computed is not scale.dtype or zero.dtype is not scale.dtype:
        raise Unread("HQQ with scales of another type than it computes in")
    many = (rows, columns // size) if axis else (rows, columns)
    layout = plain(*many) if axis else _over_and_over(size, groups // columns, columns)
    numbers = [laid_out(array, layout, scale.dtype) for array in (scale, zero)]
    return Module(
        Scheme(REAL, bits, size if axis else 1, scale.dtype, zeros=True),
        (rows, columns),
        (laid_out(weight, plain(rows, columns * unit), U8, times=parts), *numbers),
        partial(_unpack, elements=elements, unit=unit),
        f"{bits}-bit, groups of {size}{' across rows' * (not axis)}",
    )


def _numbers(stored: StoredTensor, declared: Declared, suffix: str, *types: DType) -> list[int]:
    """Integers of a small array; bytes of a text where these types say so."""
    if stored.dtype not in (types or (I32, I64)):
        expected = "bytes of a text" if types else "integers"
        raise Misfit(f"{suffix[1:]} is {stored.dtype}, {expected} expected")
    found = declared.integers_of(stored) if stored.extent.nbytes <= 64 else None
    if found is None:
        raise Unread("HQQ without its settings")
    return [int(number) for number in found]


def _text(numbers: list[int]) -> str:
    return bytes(number & 0x7F for number in numbers).decode("ascii")


def _over_and_over(times: int, rows: int, columns: int) -> Layout:
    """Stored rows that are those of the matrix so many times.

    By a stride of nothing: as many extents would take what a hostile header says.
    """
    strip = Strip(0, merged([(times, 0), (rows, columns)]), merged([(columns, 1)]))
    return Layout(times * rows, columns, rows, columns, (strip,), shared=True)


def _unpack(tile: Tile, *, elements: int, unit: int) -> Rows:
    bits, stored = tile.scheme.bits, np.ascontiguousarray(tile.own(0))
    words = stored.view("<u4") if unit == 4 else stored
    first, count = tile.start * tile.columns, words.size
    parts = next(parts for of, parts, _ in _PACKINGS.values() if of == bits)
    step = 1 if elements % tile.columns else tile.columns  # most often a row is in one part
    part = np.arange(first, first + count, step).reshape(len(words), -1) // elements
    codes = words >> (bits * (parts - 1 - part)).astype(words.dtype) & words.dtype.type((1 << bits) - 1)
    return rows_of(codes.astype(np.uint8), tile.own(1), tile.own(2))


_SMALL = (U8, I32, I64, F32)

PACKINGS = (
    Packing(
        "HQQ",
        frozenset({"hqq"}),
        {".W_q": (U8, I32, *FLOATS), **{f"{suffix}?": (*_SMALL, *FLOATS) for suffix in BESIDE}},
        _fit,
    ),
)
