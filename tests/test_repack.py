"""Exact re-expression between GGUF blocks and MLX triples: both sides decoded by independent decoders."""

from __future__ import annotations

import struct
from typing import Any

import gguf
import gguf.quants
import mlx_vectors
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from mlx_vectors import PATH, Case, raw_tensors
from packing import packed, raw_of
from test_lowest_bits import KINDS, values

from ckconv.core.layouts import BF16, DTYPES, F16, F32, DType
from ckconv.errors import CkconvError, InputError, UnsupportedError
from ckconv.quant.mlx import Quantization, decode
from ckconv.quant.repack import BY_BLOCK, RECIPES, Triple, candidates, find, natural_triple

#: TQ2_0 is with the blocks of 256 elements in test_superblocks.
NAMES = [recipe.block.name for recipe in RECIPES if recipe.block.block < 256]
OFFSETS = {"Q1_0": 0.5, "Q2_0": 1, "Q4_0": 8, "Q5_0": 16, "Q8_0": 128}
#: The smallest number that a code of the block stands for; the largest is one less than its opposite.
LOWEST = {"Q4_0": -8, "Q5_0": -16, "Q8_0": -128}
#: Bytes of the float16 numbers at the start of a block; the mx types have scale bytes instead.
HALVES = {"Q1_0": 2, "Q2_0": 2, "Q4_0": 2, "Q5_0": 2, "Q8_0": 2, "Q4_1": 4, "Q5_1": 4}

seeds = st.integers(0, 2**32 - 1)

#: Scale and bias as float32 bits: any at all, and some that fit one recipe or another, or nearly do.
number_pairs = st.one_of(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.sampled_from(
        [(0.5, -4), (0.5, -8), (0.5, -64), (0.25, 1), (0, 0), (65504, -524032), (65536, 1), (2**-24, 1)]
    ).map(lambda pair: struct.unpack("<II", struct.pack("<ff", *pair))),
)


def by_ggml(blocks: np.ndarray, block: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        if block.name in KINDS:
            return values(blocks.tobytes(), block.name).reshape(len(blocks), -1)
        return np.asarray(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(block.ggml)))


def by_triple(planes: tuple[np.ndarray, ...], triple: Triple) -> np.ndarray:
    """Decoded by our own decoder, which is held against MLX in test_mlxquant; the numbers as stored."""
    weight, scales, biases = (*planes, None)[:3]
    return decode(weight, scales, biases, triple.quantization, triple.number, arithmetic=F32)


def same_values(a: np.ndarray, b: np.ndarray, block: DType) -> bool:
    """Equal bit for bit. Only Q4_1 and Q5_1 promise the sign of a zero as well: the others get it cleared."""
    if block.name not in ("Q4_1", "Q5_1"):
        a, b = a + np.float32(0), b + np.float32(0)
    return bool((a.view(np.uint32) == b.view(np.uint32)).all())


def random_blocks(rng: np.random.Generator, block: DType, rows: int = 3, count: int = 8) -> np.ndarray:
    """Blocks of random codes and of scales that mean the same to both sides: finite, and with a bias that is, too."""
    blocks = rng.integers(0, 256, (rows, count, block.size), dtype=np.uint8)
    if block.name in HALVES:
        width = HALVES[block.name]
        # Any float16 below 2**(30 - 15 - 8): with 128 times it, the bias is still a float16.
        halves = rng.integers(0, 23 << 10, (rows, count, width // 2)).astype("<u2")
        halves |= rng.integers(0, 2, halves.shape).astype("<u2") << np.uint16(15)
        blocks[..., :width] = halves.view(np.uint8).reshape(rows, count, width)
    elif block.name == "MXFP4":
        blocks[..., 0] = rng.integers(0, 255, (rows, count))
    else:
        blocks[..., :4] = rng.integers(0, 127, (rows, count, 4))
    return blocks.reshape(rows, -1)


def halves(*values: float) -> np.ndarray:
    return np.frombuffer(struct.pack(f"<{len(values)}e", *values), np.uint8)


def floats(dtype: DType, *values: float) -> np.ndarray:
    """One row of numbers of a type, as raw bytes."""
    raw = raw_of(np.array([values]), dtype.name)
    assert wide(raw, dtype).tolist() == [list(values)]
    return raw


def wide(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """The same numbers as float32 values."""
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[dtype.name])


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(seed=seeds, number=st.sampled_from([F16, F32]))
def test_blocks_become_triples_of_the_same_values_and_come_back(name: str, seed: int, number: DType) -> None:
    recipe = BY_BLOCK[DTYPES[name]]
    blocks = random_blocks(np.random.default_rng(seed), recipe.block)
    triple = natural_triple(recipe.block, number)
    assert triple is not None
    there = recipe.to_triple(blocks, triple)
    assert (there.inexact, there.respelled) == (0, 0)
    assert same_values(by_ggml(blocks, recipe.block), by_triple(there.planes, triple), recipe.block)
    back = recipe.to_blocks(there.planes, triple)
    assert (back.inexact, back.respelled, back.groups) == (0, 0, there.groups)
    assert back.planes[0].tolist() == blocks.tolist()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(seed=seeds, bits=st.integers(1, 8), repeat=st.sampled_from([1, 2, 4]), number=st.sampled_from([F32, F16, BF16]))
def test_triples_become_blocks_of_the_same_values_and_come_back(
    name: str, seed: int, bits: int, repeat: int, number: DType
) -> None:
    recipe = BY_BLOCK[DTYPES[name]]
    rng = np.random.default_rng(seed)
    if recipe.mode == "affine":
        quantization = Quantization("affine", min(bits if bits != 7 else 4, recipe.bits), recipe.group * repeat)
    else:
        quantization = Quantization(recipe.mode, recipe.bits, recipe.group)
    triple = Triple(quantization, number)
    groups = 4 * 4 // min(repeat, 4)
    columns = groups * quantization.group_size
    weight = packed(rng.integers(0, 1 << quantization.bits, (2, columns), dtype=np.uint8), quantization.bits)
    if recipe.mode == "affine":
        # Eight significant bits, so that the numbers are numbers of all three types.
        scale = (rng.integers(-255, 256, (2, groups)) * 2.0 ** rng.integers(-20, -7, (2, groups))).astype(np.float32)
        free = (rng.integers(-255, 256, (2, groups)) * 2.0 ** rng.integers(-20, -7, (2, groups))).astype(np.float32)
        bias = scale * np.float32(-OFFSETS[name]) if name in OFFSETS else free
        numbers = [raw_of(values, number.name) for values in (scale, bias)]
        assert [wide(raw, number).tolist() for raw in numbers] == [scale.tolist(), bias.tolist()]
        planes = (weight, *numbers)
    else:
        planes = (weight, rng.integers(0, 127, (2, groups), dtype=np.uint8))
    there = recipe.to_blocks(planes, triple)
    assert (there.groups, there.inexact, there.respelled) == (2 * groups, 0, 0)
    assert same_values(by_ggml(there.planes[0], recipe.block), by_triple(planes, triple), recipe.block)
    back = recipe.to_triple(there.planes[0], triple)
    assert back.inexact == 0
    assert [plane.tolist() for plane in back.planes] == [plane.tolist() for plane in planes]


@settings(max_examples=200, deadline=None)
@given(
    seed=seeds,
    name=st.sampled_from(["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]),
    pairs=st.lists(number_pairs, min_size=4, max_size=4),
    number=st.sampled_from([F32, F16, BF16]),
)
@example(1, "Q4_0", [(0x3F800000, 0xC1000000)] * 3 + [(0x3F800000, 0xC1000001)], F32)
# Zero points that the block has for some codes only: -1 of Q5_0 unless code 15 is there.
@example(1, "Q5_0", [(0x10000, 0x10000)] * 4, F16)
@example(1, "Q8_0", [(0x3F800000, 0x42E20000), (0x3F800000, 0x42E40000)] * 2, F32)
def test_every_group_that_does_not_fit_is_counted(
    seed: int, name: str, pairs: list[tuple[int, int]], number: DType
) -> None:
    """Against a check of one number at a time by ``struct``, and, where all fit, against the decoders."""
    recipe = BY_BLOCK[DTYPES[name]]
    triple = Triple(Quantization("affine", 4, 32), number)
    size = number.size
    codes = np.random.default_rng(seed).integers(0, 16, (1, 128), dtype=np.uint8)
    codes[0, ::32] = 1  # no group without a code
    raw = [b"".join(struct.pack("<I", pair[i])[4 - size :] for pair in pairs) for i in (0, 1)]
    planes = (packed(codes, 4), *(np.frombuffer(plane, np.uint8).reshape(1, -1) for plane in raw))

    def value(bits: bytes) -> float:
        if number is BF16:
            bits = b"\0\0" + bits
        return float(struct.unpack("<e" if number is F16 else "<f", bits)[0])

    def is_half(x: float) -> bool:
        try:
            return struct.unpack("<e", struct.pack("<e", x))[0] == x and abs(x) != float("inf")
        except OverflowError:
            return False

    def right(scale: float, bias: float, low: int, high: int) -> bool:
        """A bias fits codes from ``low`` to ``high``: there is a zero point with which the block has them all."""
        if name not in LOWEST:
            return is_half(bias)
        least = LOWEST[name]
        signs = (1, -1) if name == "Q8_0" else (1,)
        return any(
            bias == -zero * scale and all(least <= sign * (code - zero) < -least for code in (low, high))
            for zero in range(least - 16, 16 - least)
            for sign in signs
        )

    unfit = unfit_by_numbers = 0
    for i in range(4):
        scale, bias = (value(plane[i * size : (i + 1) * size]) for plane in raw)
        group = codes[0, 32 * i : 32 * (i + 1)]
        unfit += not (is_half(scale) and right(scale, bias, int(group.min()), int(group.max())))
        unfit_by_numbers += not (is_half(scale) and right(scale, bias, 0, 15))
    result = recipe.to_blocks(planes, triple)
    assert (result.groups, result.inexact) == (4, unfit)
    assert recipe.unfit_groups(planes[1], planes[2], triple) == unfit_by_numbers
    if not unfit:
        assert same_values(by_ggml(result.planes[0], recipe.block), by_triple(planes, triple), recipe.block)


def test_infinite_and_nan_numbers_never_fit() -> None:
    for name in HALVES:
        recipe = BY_BLOCK[DTYPES[name]]
        rest = bytes(recipe.block.size - 2)
        blocks = np.frombuffer(b"".join(struct.pack("<e", d) + rest for d in (1, np.inf, -np.inf, np.nan)), np.uint8)
        triple = natural_triple(recipe.block, F32)
        assert triple is not None
        assert recipe.to_triple(blocks.reshape(1, -1), triple).inexact == 3, name


def test_a_bias_beyond_float16_needs_float32() -> None:
    recipe = BY_BLOCK[DTYPES["Q4_0"]]
    block = np.concatenate([halves(8192), np.full(16, 0x2C, np.uint8)]).reshape(1, -1)
    assert recipe.to_triple(block, Triple(Quantization("affine", 4, 32), F16)).inexact == 1
    assert recipe.to_triple(block, Triple(Quantization("affine", 4, 32), F32)).inexact == 0


@pytest.mark.parametrize(("name", "unfit"), [("MXFP4", [255]), ("NVFP4", [127, *range(128, 256)])])
def test_scale_bytes_that_mean_something_else_to_the_other_side(name: str, unfit: list[int]) -> None:
    recipe = BY_BLOCK[DTYPES[name]]
    triple = natural_triple(recipe.block)
    assert triple is not None
    columns = recipe.block.block
    for byte in range(256):
        scales = np.full((1, columns // recipe.group), byte, np.uint8)
        planes = (np.full((1, columns // 2), 0x21, np.uint8), scales)
        result = recipe.to_blocks(planes, triple)
        expected = scales.size if byte in unfit else 0
        assert result.inexact == recipe.unfit_groups(scales, None, triple) == expected
        assert recipe.to_triple(result.planes[0], triple).inexact == expected
        equal = same_values(by_ggml(result.planes[0], recipe.block), by_triple(planes, triple), recipe.block)
        # A scale of -0 would do, but has no place in ggml's unsigned scale.
        assert equal == (not expected) or (name, byte) == ("NVFP4", 0x80), byte


@pytest.mark.parametrize("name", ["Q4_1", "Q5_1"])
@pytest.mark.parametrize("number", [F32, BF16])
def test_the_scale_of_a_constant_group_does_not_matter(name: str, number: DType) -> None:
    """MLX writes scale -1e-7 and codes 0 for a group of equal values: no float16, but it changes no value."""
    recipe = BY_BLOCK[DTYPES[name]]
    triple = Triple(Quantization("affine", 4, 32), number)
    tiny = raw_of(np.array([[-1e-7, 0.5]]), number.name)
    codes = np.zeros((1, 64), np.uint8)
    codes[0, 32:] = 3
    for value in (0.0, -0.0, 0.375):
        planes = (packed(codes, 4), tiny, floats(number, value, 0.25))
        result = recipe.to_blocks(planes, triple)
        assert (result.inexact, result.respelled) == (0, 1)
        assert same_values(by_ggml(result.planes[0], recipe.block), by_triple(planes, triple), recipe.block)
    codes[0, 31] = 1
    assert recipe.to_blocks((packed(codes, 4), *planes[1:]), triple).inexact == 1
    assert recipe.unfit_groups(planes[1], planes[2], triple) == 1


def test_a_zero_bias_of_the_other_sign_is_reported() -> None:
    recipe = BY_BLOCK[DTYPES["Q4_0"]]
    triple = Triple(Quantization("affine", 4, 32), F16)
    weight = np.zeros((1, 32), np.uint8)
    result = recipe.to_blocks((weight, halves(0.0, -0.0)[None], halves(0.0, 0.0)[None]), triple)
    assert (result.inexact, result.respelled) == (0, 1)


def test_groups_merge_only_if_their_pairs_are_the_same_bits() -> None:
    recipe = BY_BLOCK[DTYPES["Q4_1"]]
    numbers = [(0.5, 1), (0.5, 1), (0.5, 2), (0.5, 1), (0.0, 1), (-0.0, 1)]
    row = np.concatenate([np.concatenate([halves(*pair), np.zeros(16, np.uint8)]) for pair in numbers])
    result = recipe.to_triple(row[None], Triple(Quantization("affine", 4, 64), F16))
    assert (result.groups, result.inexact) == (3, 2)


def test_codes_that_need_more_bits_do_not_fit() -> None:
    recipe = BY_BLOCK[DTYPES["Q4_1"]]
    row = np.concatenate([halves(1, 0), np.full(16, 0x31, np.uint8), halves(1, 0), np.full(16, 0x41, np.uint8)])
    result = recipe.to_triple(row[None], Triple(Quantization("affine", 2, 32), F16))
    assert (result.groups, result.inexact) == (2, 1)


def test_a_model_that_mlx_made() -> None:
    """bfloat16 scales of group 64 are float16 numbers: nothing is refused, and it comes back byte for byte."""
    triples = raw_tensors(PATH.parent / "llama-tied-bf16.q4g64" / "model.safetensors")
    twin = raw_tensors(
        PATH.parent.parent / "mlx-dequantized" / "llama-tied-bf16.q4g64.dequantized" / "model.safetensors"
    )
    triple = Triple(Quantization("affine", 4, 64), BF16)
    modules = [name.removesuffix(".scales") for name in triples if name.endswith(".scales")]
    for name in modules:
        planes = tuple(triples[f"{name}.{plane}"] for plane in ("weight", "scales", "biases"))
        for block in ("Q4_1", "Q5_1"):
            recipe = BY_BLOCK[DTYPES[block]]
            there = recipe.to_blocks(planes, triple)
            assert (there.inexact, there.respelled) == (0, 0), name
            assert same_values(by_ggml(there.planes[0], recipe.block), by_triple(planes, triple), recipe.block)
            back = recipe.to_triple(there.planes[0], triple).planes
            assert [plane.tolist() for plane in back] == [plane.tolist() for plane in planes]
        assert BY_BLOCK[DTYPES["Q4_0"]].unfit_groups(planes[1], planes[2], triple) > 0
        # The twin is what MLX's decoder makes of it, rounded to bfloat16 twice: ggml's decoder does not round.
        assert (by_ggml(there.planes[0], recipe.block) != wide(twin[f"{name}.weight"], BF16)).any()


@pytest.mark.parametrize(
    ("quantization", "blocks"),
    [
        (("affine", 2, 128), ["TQ2_0", "Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]),
        (("affine", 4, 32), ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]),
        (("affine", 5, 128), ["Q5_0", "Q5_1", "Q8_0"]),
        (("affine", 8, 64), ["Q8_0"]),
        (("affine", 4, 16), []),
        (("mxfp4", 4, 32), ["MXFP4"]),
        (("mxfp8", 8, 32), []),
        (("nvfp4", 4, 16), ["NVFP4"]),
    ],
)
def test_recipes_for_a_triple(quantization: Any, blocks: list[str]) -> None:
    assert [recipe.block.name for recipe in candidates(Quantization(*quantization))] == blocks
    for name in [*NAMES, "Q4_K"]:
        assert (find(Quantization(*quantization), DTYPES[name]) is not None) == (name in blocks)


def test_blocks_without_a_recipe_have_no_triple() -> None:
    assert natural_triple(DTYPES["Q6_K"]) is None


@pytest.mark.parametrize(
    ("call", "kind", "code", "fragment"),
    [
        (
            lambda: BY_BLOCK[DTYPES["Q4_0"]].to_triple(
                np.zeros((1, 19), np.uint8), Triple(Quantization("affine", 4, 32), F16)
            ),
            InputError,
            "repack.row",
            "a row of 19 bytes is not whole Q4_0 blocks of 18 bytes",
        ),
        (
            lambda: BY_BLOCK[DTYPES["Q4_0"]].to_triple(
                np.zeros((1, 54), np.uint8), Triple(Quantization("affine", 4, 64), F16)
            ),
            UnsupportedError,
            "repack.block",
            "rows of 96 elements are not whole groups of affine 4-bit group 64",
        ),
        (
            lambda: BY_BLOCK[DTYPES["NVFP4"]].to_blocks(
                (np.zeros((1, 48), np.uint8), np.zeros((1, 6), np.uint8)), Triple(Quantization("nvfp4", 4, 16), BF16)
            ),
            UnsupportedError,
            "repack.block",
            "rows of 96 elements are not .* whole NVFP4 blocks of 64",
        ),
        (
            lambda: BY_BLOCK[DTYPES["Q4_1"]].to_blocks(
                (np.zeros((1, 48), np.uint8), np.zeros((1, 6), np.uint8)), Triple(Quantization("affine", 4, 32), BF16)
            ),
            InputError,
            "mlx.quant",
            "weight rows of 48 bytes with 6 bytes of scales a row are not affine 4-bit group 32",
        ),
    ],
)
def test_rows_of_the_wrong_length_are_refused(call: Any, kind: type[CkconvError], code: str, fragment: str) -> None:
    with pytest.raises(kind, match=fragment) as caught:
        call()
    assert caught.value.code == code


#: float16 does not hold every scale of the mx modes.
NUMBERS = [
    (name, number)
    for name in NAMES
    for number in (F16, F32, BF16)
    if number is not F16 or BY_BLOCK[DTYPES[name]].mode == "affine"
]


@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_values_are_those_mlx_computes_now(name: str, number: DType) -> None:
    """ggml's values of random blocks against ``mx.dequantize`` of the triples made from them."""
    mx = pytest.importorskip("mlx.core")
    recipe = BY_BLOCK[DTYPES[name]]
    rng = np.random.default_rng(9)
    blocks = random_blocks(rng, recipe.block, rows=64, count=16)
    if recipe.mode == "affine" and number is BF16:
        # Scales and minima of bfloat16's eight significant bits.
        numbers = blocks.reshape(-1, recipe.block.size)[:, : HALVES[name]]
        numbers[:] = (numbers.copy().view("<u2") & np.uint16(0xFFF8)).view(np.uint8)
    triple = natural_triple(recipe.block, number)
    assert triple is not None
    there = recipe.to_triple(blocks, triple)
    assert there.inexact == 0
    values = mlx_vectors.by_mlx(mx, Case(triple.quantization, number), list(there.planes), wide=True)
    assert same_values(by_ggml(blocks, recipe.block), values, recipe.block)
