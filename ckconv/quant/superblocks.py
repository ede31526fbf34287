"""Blocks of 256 elements as MLX triples: exact one way, for the types whose scales belong to 32 elements or more.

=====  ===========================  ======================================================================
GGUF   MLX                          the pair of a group
=====  ===========================  ======================================================================
Q4_K   affine 4-bit, groups of 32   scale = d * sc, bias = -(dmin * m); sc and m are 6-bit, d and dmin float16
Q5_K   affine 5-bit, groups of 32   the same
TQ2_0  affine 2-bit, groups of 32   scale = d, bias = -d
=====  ===========================  ======================================================================

d * sc has at most 17 significant bits and is a float32 number, and so is its product with a code of 5 bits: ggml's
decoder and MLX's round the same sum once. Where d or dmin is infinite or NaN a group does not fit. There is no way
back: another d with other 6-bit factors can give the same products. Q2_K, Q3_K and Q6_K have groups of 16 elements,
which MLX's affine mode lacks.

Block structs: ``ggml/src/ggml-common.h``; 6-bit factors: ``get_scale_min_k4`` in ``ggml/src/ggml-quants.c``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ckconv.core.dtypes import DTYPES, F32, DType
from ckconv.core.floats import holds
from ckconv.errors import InputError, UnsupportedError
from ckconv.quant.codec import from_float32
from ckconv.quant.mlx import Quantization, pack
from ckconv.quant.repack import BY_BLOCK, Repacked, Triple, natural_triple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

#: Elements that share a pair in the triple.
GROUP = 32

#: Fields of one block, in order. ``factors`` are eight 6-bit pairs, ``qh`` the fifth bits of the codes.
_FIELDS: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {
    "Q4_K": [("d", "<f2", ()), ("dmin", "<f2", ()), ("factors", "u1", (12,)), ("qs", "u1", (4, 32))],
    "Q5_K": [
        ("d", "<f2", ()),
        ("dmin", "<f2", ()),
        ("factors", "u1", (12,)),
        ("qh", "u1", (32,)),
        ("qs", "u1", (4, 32)),
    ],
    "TQ2_0": [("qs", "u1", (2, 32)), ("d", "<f2", ())],
}


class SuperblockRecipe(NamedTuple):
    """One exact way from a GGUF type to a triple.

    Attributes:
        block: the GGUF type.
        bits: of a code.
    """

    block: DType
    bits: int

    @property
    def quantization(self) -> Quantization:
        """What the triple is."""
        return Quantization("affine", self.bits, GROUP)

    def triple(self, number: DType | None = None) -> Triple:
        """The triple; with float32 numbers, the default, every finite block fits."""
        return Triple(self.quantization, number or F32)

    def to_triple(self, raw: Bytes, triple: Triple, *, codes: bool = True) -> Repacked:
        """GGUF rows ``[rows, bytes]`` -> MLX rows of the type ``triple``.

        Args:
            codes: ``False`` for scales and biases alone: the first plane is empty.

        Raises:
            InputError: ``repack.row``: rows are not whole blocks.
            UnsupportedError: ``repack.block``: the triple is of another kind.
        """
        import numpy as np

        if raw.shape[1] % self.block.size:
            message = f"a row of {raw.shape[1]:,} bytes is not whole {self.block} blocks of {self.block.size} bytes"
            raise InputError("repack.row", message, found=raw.shape[1], allowed=self.block.size)
        if triple.quantization != self.quantization:
            raise UnsupportedError("repack.block", f"{self.block} blocks are {self.quantization}, not {triple}")
        blocks = np.ascontiguousarray(raw).view(np.dtype(_FIELDS[self.block.name]))
        with np.errstate(invalid="ignore", over="ignore"):  # d or dmin may be infinite or NaN
            scale, bias = _pairs(blocks)
        fits = holds(scale, triple.number) & holds(bias, triple.number)
        numbers = (from_float32(scale, triple.number)[0], from_float32(bias, triple.number)[0])
        unpacked = _codes(blocks).reshape(len(raw), -1) if codes else np.empty((len(raw), 0), np.uint8)
        return Repacked((pack(unpacked, self.bits), *numbers), fits.size, int((~fits).sum()))


RECIPES: dict[DType, SuperblockRecipe] = {
    DTYPES[name]: SuperblockRecipe(DTYPES[name], bits) for name, bits in (("Q4_K", 4), ("Q5_K", 5), ("TQ2_0", 2))
}


def triple_for(block: DType, number: DType) -> Triple | None:
    """The triple that holds the blocks of a GGUF type, of this size or smaller, or ``None`` where none does.

    ``number`` is the type of affine scales and biases.
    """
    if block in RECIPES:
        return RECIPES[block].triple(number)
    recipe = BY_BLOCK.get(block)
    return natural_triple(block, number if recipe is not None and recipe.mode == "affine" else None)


def find(block: DType, quantization: Quantization) -> SuperblockRecipe | None:
    """The recipe from a GGUF type to triples of this kind, or ``None``."""
    recipe = RECIPES.get(block)
    return recipe if recipe is not None and recipe.quantization == quantization else None


def _pairs(blocks: NDArray[Any]) -> tuple[Floats, Floats]:
    """Scales and biases ``[rows, groups]`` of blocks ``[rows, n]``."""
    import numpy as np

    rows, groups = blocks.shape[0], blocks.shape[1] * 8
    d = blocks["d"].astype(np.float32)[..., None]
    if "dmin" not in (blocks.dtype.names or ()):
        scale = np.repeat(d, 8, axis=-1).reshape(rows, groups)
        return scale, -scale
    factors, minima = _factors(blocks["factors"])
    dmin = blocks["dmin"].astype(np.float32)[..., None]
    return (d * factors).reshape(rows, groups), (-(dmin * minima)).reshape(rows, groups)


def _factors(packed: Bytes) -> tuple[Floats, Floats]:
    """The eight 6-bit factors of the scales and of the minima ``[..., 8]`` of bytes ``[..., 12]``."""
    import numpy as np

    low, high, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, (rest & 15) | (low >> 6 << 4)], axis=-1)
    minima = np.concatenate([high & 63, (rest >> 4) | (high >> 6 << 4)], axis=-1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _codes(blocks: NDArray[Any]) -> Bytes:
    """Codes uint8 ``[rows, n, 256]`` of blocks ``[rows, n]``, in the order of the elements."""
    import numpy as np

    fields = blocks.dtype.names or ()
    qs = blocks["qs"]
    # Each run of 32 bytes holds groups of 32 elements side by side: the lowest bits are the first group.
    shifts = np.array([0, 4] if "dmin" in fields else [0, 2, 4, 6], np.uint8)
    codes: Bytes = qs[..., None, :] >> shifts[:, None] & np.uint8(15 if "dmin" in fields else 3)
    if "qh" in fields:
        fifth = blocks["qh"][..., None, :] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
        codes |= (fifth << np.uint8(4)).reshape(codes.shape)
    return codes.reshape(*blocks.shape, 256)
