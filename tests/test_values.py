"""Element types: widening is exact for every value, narrowing rounds to even and counts, blocks decode as gguf's."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import warnings

import gguf
import gguf.quants
import numpy as np
import pytest
from hypothesis import given, strategies as st

from ckconv.core.layouts import BF16, BY_GGML, DTYPES, F16, F32, DType, Kind
from ckconv.quant import codec
from ckconv.quant.codec import from_float32, to_float32
from ckconv.quant.convert import Action, Conversion, convertible, decodable

ALL = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def half_value(bits: int) -> float:
    """Sign, five bits of exponent, ten of fraction, by the definition."""
    sign, exponent, fraction = -1.0 if bits >> 15 else 1.0, bits >> 10 & 31, bits & 1023
    if exponent == 31:
        return sign * float("inf") if not fraction else float("nan")
    return sign * (fraction * 2.0**-24 if not exponent else (1024 + fraction) * 2.0 ** (exponent - 25))


def test_every_f16_widens_exactly() -> None:
    wide = to_float32(ALL.view(np.uint8).reshape(1 << 8, -1), F16).reshape(-1)
    expected = np.array([half_value(int(bits)) for bits in ALL], np.float32)
    assert np.array_equal(wide, expected, equal_nan=True)
    assert np.array_equal(np.signbit(wide), ALL >= 1 << 15)


def test_every_bf16_widens_exactly() -> None:
    wide = to_float32(ALL.view(np.uint8).reshape(1 << 8, -1), BF16).reshape(-1)
    assert np.array_equal(wide.view(np.uint32), ALL.astype(np.uint32) << 16)


@pytest.mark.parametrize("kind", [F16, BF16], ids=str)
def test_widening_and_narrowing_again_gives_the_same_bytes(kind: DType) -> None:
    rows = ALL.view(np.uint8).reshape(1, -1)
    back, changed = from_float32(to_float32(rows, kind), kind)
    finite = ~np.isnan(to_float32(rows, kind)).reshape(-1)
    assert np.array_equal(back.view(np.uint16).reshape(-1)[finite], ALL[finite])
    assert np.isnan(to_float32(back, kind)).sum() == np.count_nonzero(~finite), "NaN stays NaN"
    assert changed <= np.count_nonzero(~finite)


floats = st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=40).map(
    lambda bits: np.array([bits], np.uint32).view(np.float32)
)


@given(floats)
def test_bf16_is_the_gguf_packages(values: np.ndarray) -> None:
    got, changed = from_float32(values, BF16)
    with np.errstate(all="ignore"):
        want = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
    number = ~np.isnan(values)
    assert np.array_equal(got.view(np.uint16)[number], want.view(np.uint16)[number])
    wide = to_float32(got, BF16)
    assert np.array_equal(np.isnan(wide), np.isnan(values))
    assert changed == np.count_nonzero(wide.view(np.uint32) != values.view(np.uint32))


@given(floats)
def test_f16_is_the_standard_librarys(values: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):
        got, changed = from_float32(values, F16)
    for bits, value in zip(got.view(np.uint16)[0], values[0], strict=True):
        if np.isnan(value):
            assert np.isnan(half_value(int(bits)))
            continue
        try:
            (want,) = struct.unpack("<H", struct.pack("<e", float(value)))
        except OverflowError:
            want = 0xFC00 if value < 0 else 0x7C00
        assert int(bits) == want
    wide = to_float32(got, F16)
    assert changed == np.count_nonzero(wide.view(np.uint32) != values.view(np.uint32))


@pytest.mark.parametrize("low", [0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_bf16_ties_go_to_even_at_every_value(low: int) -> None:
    values = ((ALL.astype(np.uint32) << 16) | np.uint32(low)).view(np.float32).reshape(1, -1)
    values = values[~np.isnan(values)].reshape(1, -1)
    with np.errstate(all="ignore"):
        want = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
    got, changed = from_float32(values, BF16)
    assert got.tobytes() == want.tobytes()
    assert changed == values.size


@pytest.mark.parametrize("step", [-1, 0, 1])
def test_f16_ties_go_to_even_at_every_value(step: int) -> None:
    """Half-way between every two neighbors, and one float32 to either side of it."""
    grid = np.array([half_value(bits) for bits in range(0x7C00)])
    between = ((grid[:-1] + grid[1:]) / 2).astype(np.float32)
    values = (between.view(np.uint32) + np.uint32(step % (1 << 32))).view(np.float32).reshape(1, -1)
    got, _ = from_float32(values, F16)
    lower = np.arange(0x7C00 - 1)
    want = lower + (1 if step > 0 else 0 if step < 0 else lower % 2)
    assert np.array_equal(got.view(np.uint16)[0], want)


@pytest.mark.parametrize(
    ("value", "f16", "bf16"),
    [
        (1.0, 0, 0),
        (-0.0, 0, 0),
        (float("inf"), 0, 0),
        (65504.0, 0, 1),
        (65520.0, 1, 1),
        (2.0**-24, 0, 0),
        (2.0**-25, 1, 0),
        (1 + 2**-7, 0, 0),
        (1 + 2**-8, 0, 1),
        (3e38, 1, 1),
    ],
)
def test_what_changes_is_counted(value: float, f16: int, bf16: int) -> None:
    row = np.array([[value]], np.float32)
    assert (from_float32(row, F16)[1], from_float32(row, BF16)[1]) == (f16, bf16)


# --- blocks


def gguf_decodes(kind: gguf.GGMLQuantizationType) -> bool:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    try:
        with np.errstate(all="ignore"):
            gguf.quants.dequantize(np.zeros((1, size), np.uint8), kind)
    except (NotImplementedError, KeyError, AttributeError):
        return False
    return block > 1


#: Types that the package names, if at all, and does not decode.
OWN = ("Q1_0", "Q2_0")

GGML = [kind for kind in gguf.GGMLQuantizationType if kind.value in BY_GGML]


@pytest.mark.parametrize("kind", GGML, ids=lambda kind: kind.name)
def test_decodable_is_what_the_gguf_package_decodes(kind: gguf.GGMLQuantizationType) -> None:
    dtype = BY_GGML[kind.value]
    assert decodable(dtype) == (gguf_decodes(kind) or dtype.name in OWN)
    # 36 bytes in ggml-common.h: two float16 and 32 bytes; the package still counts two float32
    sizes = (32, 36) if dtype.name == "Q8_1" else gguf.GGML_QUANT_SIZES[kind]
    assert (dtype.block, dtype.size) == sizes
    assert dtype.name == kind.name


@pytest.mark.parametrize("kind", [kind for kind in GGML if gguf_decodes(kind)], ids=lambda kind: kind.name)
def test_blocks_decode_as_the_gguf_package_has_it(kind: gguf.GGMLQuantizationType) -> None:
    _, size = gguf.GGML_QUANT_SIZES[kind]
    rows = np.random.default_rng(kind.value).integers(0, 256, (5, 3 * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(rows, kind).astype(np.float32)
    got, changed = Conversion(BY_GGML[kind.value], F32).apply(rows)
    assert got.tobytes() == want.tobytes()
    assert changed == 0


# --- what a conversion calls itself


@pytest.mark.parametrize(
    ("source", "target", "shift", "action", "exact"),
    [
        (F32, F32, 0, Action.COPY, True),
        (F16, F32, 0, Action.WIDEN, True),
        (BF16, F32, 0, Action.WIDEN, True),
        (F32, F16, 0, Action.NARROW, False),
        (BF16, F16, 0, Action.NARROW, False),
        (F32, F32, 1, Action.SHIFT, False),
        (DTYPES["Q4_K"], DTYPES["Q4_K"], 0, Action.COPY, True),
        (DTYPES["Q4_K"], F32, 0, Action.DECODE, True),
        (DTYPES["Q4_K"], BF16, 0, Action.DECODE, False),
    ],
)
def test_action(source: DType, target: DType, shift: int, action: Action, exact: bool) -> None:
    conversion = Conversion(source, target, shift)
    assert (conversion.action, conversion.exact) == (action, exact)
    assert convertible(source, target)


def test_what_cannot_be_converted() -> None:
    assert convertible(F32, DTYPES["Q4_K"])  # by quantizing, where that is asked for
    assert not convertible(DTYPES["I32"], F32)
    assert not convertible(DTYPES["Q8_K"], F32)
    assert all(dtype.kind is Kind.BLOCK for dtype in DTYPES.values() if decodable(dtype) and dtype.ggml is not None)


def test_shift_is_added_in_float32() -> None:
    row = np.array([[0.1, -1.0, 1e-9, 3.0]], np.float16)
    shifted, changed = Conversion(F16, F32, 1).apply(row.view(np.uint8))
    assert np.array_equal(shifted.view(np.float32), row.astype(np.float32) + np.float32(1))
    assert changed == 0


def test_a_sum_with_a_fraction_gives_the_shortest_number_back() -> None:
    """PLaMo's norms: 1/5 is no float32, so that several numbers have one sum; a bfloat16 is found again."""
    rng = np.random.default_rng(0)
    rows = (rng.normal(0, 0.3, (8, 64)).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    fifth = float(np.float32(0.2))

    stored, _ = Conversion(F32, F32, fifth).apply(rows.view(np.uint8))
    again, changed = Conversion(F32, F32, -fifth).apply(stored)

    assert np.array_equal(stored.view(np.float32), rows + np.float32(0.2))
    assert np.array_equal(again.view(np.float32), rows)
    assert not np.array_equal(stored.view(np.float32) - np.float32(0.2), rows)
    assert changed == 0


def test_a_signaling_nan_of_a_shifted_norm_stays_a_nan_without_a_word() -> None:
    rows = np.array([[0xFF81, 0x7F80, 0xBF80]], "<u2").view(np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made, changed = Conversion(BF16, F32, shift=1).apply(rows)
    values = made.view("<f4")[0]
    assert np.isnan(values[0])
    assert (values[1:].tolist(), changed) == ([np.inf, 0.0], 0)


@pytest.mark.parametrize(
    "kind", [kind for kind in BY_GGML.values() if decodable(kind) and kind.name not in OWN], ids=str
)
def test_blocks_decode_to_the_same_bits_with_libgguf_and_without(kind: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any bytes at all: infinite scales and the payloads and signs of NaNs, too."""
    pytest.importorskip("libgguf")
    rows = np.random.default_rng(3).integers(0, 256, (64, 8 * kind.size), dtype=np.uint8)
    with_it = to_float32(rows, kind)
    monkeypatch.setattr(codec, "libgguf", lambda: None)
    without = to_float32(rows, kind)

    assert np.array_equal(with_it.view(np.uint32), without.view(np.uint32))
    with np.errstate(all="ignore"):
        by_gguf = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(kind.ggml))
    assert np.array_equal(without.view(np.uint32), by_gguf.view(np.uint32))


@pytest.mark.parametrize(("said", "expected"), [(None, "1"), ("3", "3")])
def test_libgguf_starts_no_threads_of_its_own_unless_somebody_says_how_many(said: str | None, expected: str) -> None:
    pytest.importorskip("libgguf")
    program = "import os; from ckconv.quant.codec import libgguf; libgguf(); print(os.environ['LIBGGUF_NUM_THREADS'])"
    environment = {key: value for key, value in os.environ.items() if key != "LIBGGUF_NUM_THREADS"}
    environment |= {"LIBGGUF_NUM_THREADS": said} if said else {}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == expected
