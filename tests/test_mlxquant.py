"""Bit packing and decoding of MLX triples, against values that MLX itself computed."""

from __future__ import annotations

from typing import Any

import mlx_vectors
import numpy as np
import pytest
from hypothesis import given, strategies as st
from mlx_vectors import PATH, Case, raw_tensors
from packing import packed, raw_of

from ckconv.core.layouts import BF16, F16, F32, holds, round_to
from ckconv.errors import CkconvError, InputError
from ckconv.quant import mlx as mlxquant
from ckconv.quant.codec import pack, unpack
from ckconv.quant.mlx import Quantization, checked_shape, decode, quantization

BITS = (1, 2, 3, 4, 5, 6, 8)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit for bit; a NaN equals any NaN."""
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


def bit_stream(codes: list[int], bits: int) -> bytes:
    """The packing rule as one big number: code i is the bits from i * bits on."""
    return sum(code << i * bits for i, code in enumerate(codes)).to_bytes(len(codes) * bits // 8, "little")


def planes_of(planes: list[np.ndarray]) -> tuple[Any, Any, Any]:
    return planes[0], planes[1], planes[2] if len(planes) == 3 else None


@given(st.sampled_from(BITS), st.integers(1, 4), st.integers(1, 5), st.randoms(use_true_random=False))
def test_packing_is_one_bit_stream_a_row(bits: int, rows: int, words: int, random: Any) -> None:
    codes = [[random.randrange(1 << bits) for _ in range(32 * words)] for _ in range(rows)]
    stream = np.array([list(bit_stream(row, bits)) for row in codes], np.uint8)
    assert pack(np.array(codes, np.uint8), bits).tolist() == stream.tolist()
    assert unpack(stream, bits).tolist() == codes


def test_packing_reads_rows_of_a_wider_array_and_changes_no_input() -> None:
    wide = np.arange(256, dtype=np.uint8).reshape(4, 64)
    for bits in BITS:
        part = wide[::2, 8:56]
        if part.shape[1] % bits:
            continue
        codes = unpack(part, bits)
        assert pack(codes, bits).tolist() == part.tolist()
    assert wide.tolist() == np.arange(256).reshape(4, 64).tolist()


def test_a_code_that_needs_more_bits_is_refused() -> None:
    with pytest.raises(CkconvError, match="code 16 does not fit 4 bits") as caught:
        pack(np.array([[15, 16] * 16], np.uint8), 4)
    assert (caught.value.code, caught.value.exit_code) == ("internal.code", 1)


@pytest.mark.parametrize(
    ("case", "planes", "values"), [pytest.param(*stored, id=stored[0].key) for stored in mlx_vectors.stored()]
)
def test_values_are_those_mlx_computed(case: Case, planes: list[np.ndarray], values: np.ndarray) -> None:
    assert same_bits(decode(*planes_of(planes), case.quantization, case.dtype), values)


def test_values_are_those_of_the_dequantized_twin() -> None:
    triples = raw_tensors(PATH.parent / "llama-tied-bf16.q4g64" / "model.safetensors")
    twin = raw_tensors(
        PATH.parent.parent / "mlx-dequantized" / "llama-tied-bf16.q4g64.dequantized" / "model.safetensors"
    )
    modules = [name.removesuffix(".scales") for name in triples if name.endswith(".scales")]
    assert len(modules) == 15
    for name in modules:
        planes = [triples[f"{name}.{plane}"] for plane in ("weight", "scales", "biases")]
        values = decode(*planes_of(planes), quantization("affine", 4, 64), BF16)
        assert raw_of(values, "BF16").tolist() == twin[f"{name}.weight"].tolist(), name


def test_decoding_in_chunks_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(Quantization("affine", 3, 32), BF16)
    planes = planes_of(mlx_vectors.inputs(case, np.random.default_rng(1), rows=7))
    whole = decode(*planes, case.quantization, BF16)
    monkeypatch.setattr(mlxquant, "CHUNK_ELEMENTS", 600)
    assert same_bits(decode(*planes, case.quantization, BF16), whole)


def test_wide_arithmetic_rounds_only_the_sum() -> None:
    # 0.1 in bfloat16 is 0x3DCD: 205 * 2**-11; times 7 that needs 11 bits.
    scale, bias = (raw_of(np.array([[v]]), "BF16") for v in (0.1, 1.0))
    weight = packed(np.full((1, 32), 7, np.uint8), 4)
    q = Quantization("affine", 4, 32)
    assert decode(weight, scale, bias, q, BF16, arithmetic=F32)[0, 0] == 7 * 205 / 2048 + 1
    assert decode(weight, scale, bias, q, BF16)[0, 0] == 1.703125


def test_any_group_that_divides_the_row_decodes() -> None:
    weight = packed(np.tile(np.arange(16, dtype=np.uint8), (1, 3)), 4)
    numbers = raw_of(np.array([range(1, 17)]), "F32")
    values = decode(weight, numbers, numbers, quantization("affine", 4, 3), F32)
    assert values[0, :7].tolist() == [1, 2, 3, 4 * 2, 5 * 2, 6 * 2, 7 * 3]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ((), Quantization("affine", 4, 64)),
        (("affine", 6, 96), Quantization("affine", 6, 96)),
        (("mxfp4",), Quantization("mxfp4", 4, 32)),
        (("mxfp8",), Quantization("mxfp8", 8, 32)),
        (("nvfp4", None, 16), Quantization("nvfp4", 4, 16)),
    ],
)
def test_an_entry_of_the_configuration(entry: tuple[Any, ...], expected: Quantization) -> None:
    assert quantization(*entry) == expected


@pytest.mark.parametrize(
    ("entry", "fragment"),
    [
        (("affine", 7), "affine quantization has 7 bits; 1, 2, 3, 4, 5, 6, 8 is allowed"),
        (("affine", True), "affine quantization has True bits"),
        (("affine", 4.0), "has 4.0 bits"),
        (("affine", [4]), "has a list bits"),
        (("affine", 4, 0), "group size 0; a whole number from 1 to 2,147,483,647 is allowed"),
        (("affine", 4, -32), "group size -32"),
        (("affine", 4, 10**5000), "beyond 10\\^18"),
        (("mxfp4", 4, 64), "mxfp4 quantization has group size 64; 32 is allowed"),
        (("nvfp4", 8), "nvfp4 quantization has 8 bits; 4 is allowed"),
        (("\x1b[31mred",), "mode is '\\\\x1b\\[31mred'; affine, mxfp4, mxfp8, nvfp4 exist"),
        (({},), "mode is a dict"),
    ],
)
def test_a_wrong_entry_is_refused(entry: tuple[Any, ...], fragment: str) -> None:
    with pytest.raises(InputError, match=fragment) as caught:
        quantization(*entry, path="config.json", tensor="model.norm")
    error = caught.value
    assert (error.code, error.exit_code, error.path, error.tensor) == ("mlx.quant", 3, "config.json", "model.norm")


@pytest.mark.parametrize(
    ("shapes", "q", "fragment"),
    [
        (
            ((2, 128), (2, 8), (2, 8)),
            ("affine", 4, 32),
            "128 bytes with 8 bytes and 8 bytes of scales and biases a row",
        ),
        (((2, 128), (2, 16), None), ("affine", 4, 32), "128 bytes with 16 bytes of scales a row are not affine 4-bit"),
        (((2, 128), (2, 8), (2, 8)), ("mxfp4", 4, 32), "are not mxfp4 4-bit group 32"),
        (((2, 128), (3, 16), (3, 16)), ("affine", 4, 32), "are not affine"),
        (((2, 128), (2, 2), (2, 2)), ("affine", 4, 96), "are not affine 4-bit group 96"),
        (((2, 0), (2, 0), (2, 0)), ("affine", 4, 32), "weight rows of 0 bytes"),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(shapes: Any, q: Any, fragment: str) -> None:
    planes = [np.zeros(shape, np.uint8) if shape else None for shape in shapes]
    for call in (lambda: decode(*planes, Quantization(*q), F16), lambda: checked_shape(*planes, Quantization(*q), F16)):
        with pytest.raises(InputError, match=fragment) as caught:
            call()
        assert (caught.value.code, caught.value.exit_code) == ("mlx.quant", 3)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64), st.sampled_from([F16, BF16, F32]))
def test_rounding_and_holding(bits: list[int], dtype: Any) -> None:
    values = np.array([bits], np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        if dtype is F16:
            expected = values.astype(np.float16).astype(np.float32)
        else:
            expected = raw_of(values, dtype.name).view(np.uint16 if dtype is BF16 else np.uint32).astype(np.uint32)
            expected = (expected << np.uint32(16 if dtype is BF16 else 0)).view(np.float32)
    result = values.copy()
    round_to(result, dtype)
    assert same_bits(result, expected)
    assert (holds(values, dtype) == (np.isfinite(values) & (expected == values))).all()


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_rounding_at_every_border(dtype: Any) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    exact = bits.view(np.float16).astype(np.float32) if dtype is F16 else None
    words = exact.view(np.uint32) if exact is not None else bits.astype(np.uint32) << np.uint32(16)
    for step in (0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFFFFFF):
        values = (words + np.uint32(step)).view(np.float32)
        back = raw_of(values, dtype.name).view(np.uint16)
        wide = back.view(np.float16).astype(np.float32) if dtype is F16 else back.astype(np.uint32) << np.uint32(16)
        result = values.copy()
        round_to(result, dtype)
        wide = wide.view(np.float32)
        assert same_bits(result, wide), hex(step)
        assert (holds(values, dtype) == (np.isfinite(values) & (values == wide))).all(), hex(step)


@pytest.mark.parametrize("case", mlx_vectors.CASES, ids=lambda case: case.key)
def test_values_are_those_mlx_computes_now(case: Case) -> None:
    mx = pytest.importorskip("mlx.core")
    planes = mlx_vectors.inputs(case, np.random.default_rng(3), rows=64, columns=512)
    assert same_bits(decode(*planes_of(planes), case.quantization, case.dtype), mlx_vectors.by_mlx(mx, case, planes))
