"""Two models compared: which values differ, by how much, and what is no difference."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Array, Decoder, Raw, Tensors, save, save_gguf
from gguf_builder import Tensor, gguf as gguf_file
from packing import packed

from ckconv.comparison.compare import Comparison, Difference, diff, require_comparable
from ckconv.core.tensors import TensorIndex
from ckconv.errors import UnsupportedError
from ckconv.formats.detect import open_index

SMALL = Decoder(layers=1)


def bare(folder: Path, **tensors: Array) -> TensorIndex:
    """A directory without a known architecture: tensors are matched by their own names."""
    return open_index(save(folder, {"model_type": "other"}, tensors))


def compared(folder: Path, one: Array, other: Array) -> Comparison:
    return diff(bare(folder / "a", w=one), bare(folder / "b", w=other))


def only_difference(found: Comparison) -> Difference:
    assert not found.same
    assert (found.equal, found.only, found.config, len(found.different)) == (0, ((), ()), {}, 1)
    return found.different[0]


def f32(*bits: int) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


def test_errors_are_exact(tmp_path: Path) -> None:
    one = np.array([[3, 4, 0], [0, 0, 12]], np.float32)
    other = np.array([[3, 1, 0], [0, -4, 12]], np.float32)

    item = only_difference(compared(tmp_path, one, other))
    assert (item.name, item.dtypes, item.values, item.elements) == ("w", ("F32", "F32"), 2, 6)
    assert item.max_error == 4.0
    assert item.relative_error == pytest.approx(5 / 13, rel=1e-15)
    assert item.reason == ""


@pytest.mark.parametrize("at", [0, 299_999, 599_999])
def test_the_relative_error_is_against_the_whole_tensor_however_it_is_read(tmp_path: Path, at: int) -> None:
    """2.4 MB are read in three pieces, of which only one differs."""
    one = np.full((600_000, 1), 2, np.float32)
    other = one.copy()
    other[at] = 5

    item = only_difference(compared(tmp_path, one, other))
    assert (item.values, item.max_error) == (1, 3.0)
    assert item.relative_error == pytest.approx(3 / (2 * math.sqrt(600_000)), rel=1e-12)


def test_a_type_that_holds_the_same_values_is_no_difference(tmp_path: Path) -> None:
    one = np.array([1.5, -0.0, np.inf, -np.inf, np.nan, 2**-14, 65504], np.float32)
    found = compared(tmp_path, one, one.astype(np.float16))

    assert found.same
    assert (found.equal, found.retyped) == (1, (("w", "F32", "F16"),))


NAN, OTHER_NAN = 0x7FC00000, 0x7FC00001


@pytest.mark.parametrize(
    ("one", "other", "values", "max_error", "relative"),
    [
        (f32(0), f32(0x80000000), 1, 0.0, 0.0),
        (f32(NAN), f32(0), 1, math.nan, math.nan),
        (f32(NAN), f32(OTHER_NAN), 1, math.nan, math.nan),
        (np.array([np.inf, 1], np.float32), np.array([2, 1], np.float32), 1, math.inf, math.nan),
        (np.array([np.inf], np.float32), np.array([-np.inf], np.float32), 1, math.inf, math.nan),
        (np.array([1, 1], np.float32), np.array([1, np.inf], np.float32), 1, math.inf, math.inf),
        (np.array([0, 0], np.float32), np.array([0, 2], np.float32), 1, 2.0, math.inf),
        (np.array([np.nan, 4], np.float32), np.array([1, 3], np.float32), 2, 1.0, 0.25),
        (np.array([4, np.nan], np.float32), np.array([3, np.nan], np.float32), 1, 1.0, 0.25),
    ],
)
def test_numbers_that_are_none(
    tmp_path: Path, one: np.ndarray, other: np.ndarray, values: int, max_error: float, relative: float
) -> None:
    item = only_difference(compared(tmp_path, one, other))
    assert item.values == values
    assert item.max_error == pytest.approx(max_error, nan_ok=True)
    assert item.relative_error == pytest.approx(relative, nan_ok=True)


@pytest.mark.parametrize("value", [f32(NAN), f32(OTHER_NAN), f32(0x80000000), f32(0x7F800001)])
def test_the_same_bits_are_equal_whatever_they_mean(tmp_path: Path, value: np.ndarray) -> None:
    assert compared(tmp_path, value, value).same


def test_a_nan_is_a_nan_in_a_wider_type(tmp_path: Path) -> None:
    half = Raw("BF16", (2,), np.array([0x7FC0, 0x8000], np.uint16).tobytes())
    assert compared(tmp_path, half, f32(NAN, 0x80000000)).same


def test_a_signaling_nan_of_float16_warns_nobody(tmp_path: Path) -> None:
    half = np.array([0x7D00, 0x3C00], np.uint16).view(np.float16)
    item = only_difference(compared(tmp_path, half, np.array([np.nan, 2], np.float32)))
    assert item.max_error == 1.0


def test_shapes_that_differ_are_not_compared(tmp_path: Path) -> None:
    item = only_difference(compared(tmp_path, np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)))
    assert (item.reason, item.values, item.elements) == ("shape [2, 3] and [3, 2]", 0, 6)


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (np.array([1], np.int32), np.array([1], np.float32), "I32 and F32"),
        (
            np.array([1, 2, 3], np.int32),
            np.array([1, 2, 4], np.int32),
            "1 row differs, and there is no decoder for I32",
        ),
        (Raw("F8_E8M0", (2,), b"\1\2"), np.array([1, 2], np.uint8), "F8_E8M0 and U8"),
    ],
)
def test_types_without_float32_values_are_compared_as_bytes(
    tmp_path: Path, one: Array, other: Array, reason: str
) -> None:
    item = only_difference(compared(tmp_path, one, other))
    assert (item.reason, item.values) == (reason, 0)
    assert math.isnan(item.max_error)
    assert compared(tmp_path / "same", one, one).same


def test_fp8_without_scales_is_compared_by_its_values(tmp_path: Path) -> None:
    one, other = Raw("F8_E4M3", (2,), b"\x38\x30"), Raw("F8_E5M2", (2,), b"\x3c\x38")
    assert compared(tmp_path / "same", one, other).same
    assert compared(tmp_path / "floats", one, np.array([1, 0.5], np.float32)).same
    assert only_difference(compared(tmp_path / "not", one, np.array([1, 0.25], np.float32))).max_error == 0.25


def test_blocks_without_a_decoder_are_compared_as_bytes(tmp_path: Path) -> None:
    """Q8_K, which llama.cpp only makes while it computes."""
    paths = []
    for i, last in enumerate((0, 0, 1)):
        paths.append(tmp_path / f"{i}.gguf")
        block = bytes(291) + bytes([last])
        tensors = [Tensor("w", (256, 2), 15, data=bytes(292) + block)]
        paths[-1].write_bytes(gguf_file([("general.architecture", "str", "other")], tensors))
    one, same, other = map(open_index, paths)

    assert diff(one, same).same
    assert only_difference(diff(one, other)).reason == "1 row differs, and there is no decoder for Q8_K"


def test_a_block_of_nan_is_equal_to_decoded_nan(tmp_path: Path) -> None:
    block = np.array([np.nan], np.float16).tobytes() + bytes(range(1, 33))
    files = {"q.gguf": (8, block), "f.gguf": (0, np.full(32, np.nan, np.float32).tobytes())}
    for name, (kind, data) in files.items():
        tensors = [Tensor("w", (32,), kind, data=data)]
        (tmp_path / name).write_bytes(gguf_file([("general.architecture", "str", "other")], tensors))

    assert diff(*(open_index(tmp_path / name) for name in files)).same


def test_missing_and_extra_tensors_are_named_in_order(tmp_path: Path) -> None:
    one = np.ones(2, np.float32)
    found = diff(bare(tmp_path / "a", x=one, w=one, y=one), bare(tmp_path / "b", z=one, w=one))

    assert (found.same, found.equal, found.only) == (False, 1, (("x", "y"), ("z",)))


def test_no_element_is_no_difference(tmp_path: Path) -> None:
    assert compared(tmp_path, np.ones((0, 3), np.float32), np.ones((0, 3), np.float16)).same
    assert compared(tmp_path / "n", np.ones((3, 0), np.float32), np.ones((3, 0), np.float32)).same


def test_a_single_number_is_a_tensor(tmp_path: Path) -> None:
    item = only_difference(compared(tmp_path, np.array(2, np.float32), np.array(3, np.float32)))
    assert (item.elements, item.max_error, item.relative_error) == (1, 1.0, 0.5)


# models of a known architecture


def small(folder: Path, tensors: Tensors | None = None, **config: Any) -> TensorIndex:
    return open_index(save(folder, SMALL.config(**config), SMALL.tensors() if tensors is None else tensors))


def test_configurations_are_compared_field_by_field(tmp_path: Path) -> None:
    found = diff(small(tmp_path / "a"), small(tmp_path / "b", rope_theta=5e5, rms_norm_eps=1e-6))

    assert (found.same, found.equal, found.different) == (False, 12, ())
    assert found.config == {"norm_eps": (1e-05, 1e-06), "rope_theta": (10000.0, 500000.0)}


def test_a_head_that_is_the_embedding_is_a_tied_head(tmp_path: Path) -> None:
    tensors: Tensors = dict(SMALL.tensors())
    copied = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    tied = {name: array for name, array in tensors.items() if name != "lm_head.weight"}
    one = small(tmp_path / "copied", copied)

    assert diff(one, small(tmp_path / "tied", tied, tie_word_embeddings=True)).same
    found = diff(small(tmp_path / "own"), one)
    assert (found.same, found.only) == (False, (("output.weight",), ()))


def with_placeholder(index: TensorIndex, name: str) -> TensorIndex:
    return replace(index, tensors={**index.tensors, name: replace(index.tensors[name], may_be_absent=True)})


def test_a_placeholder_of_zeros_is_a_tensor_that_is_not_there(tmp_path: Path) -> None:
    name, stored = "layers.0.attention.q.bias", "model.layers.0.self_attn.q_proj.bias"
    lacking = small(tmp_path / "a")
    zeros = small(tmp_path / "b", {**SMALL.tensors(), stored: np.zeros(64, np.float32)})
    one = small(tmp_path / "c", {**SMALL.tensors(), stored: np.eye(1, 64, 63, dtype=np.float32)[0]})

    assert diff(lacking, with_placeholder(zeros, name)).same
    assert diff(lacking, zeros).same, "a bias of zeros computes what none does"
    assert diff(lacking, with_placeholder(one, name)).only == ((), (name,))
    assert diff(zeros, with_placeholder(zeros, name)).same, "the model has the zeros that the placeholder is made of"
    assert not diff(one, with_placeholder(zeros, name)).same


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip


# llama.cpp's loop (LlamaModel.generate_extra_tensors) in float64, for 8 pairs and a base of 10,000.
LLAMA3_FACTORS = np.array(
    [
        1 if 2 * math.pi / f < 64 / 4 else 8 if 2 * math.pi / f > 64 else
        1 / ((1 - (64 * f / (2 * math.pi) - 1) / 3) / 8 + (64 * f / (2 * math.pi) - 1) / 3)
        for f in (10000.0 ** (-2 * i / 16) for i in range(8))
    ],
    np.float32,
)  # fmt: skip


@pytest.mark.parametrize(
    ("scaling", "only"),
    [(LLAMA3, ()), ({**LLAMA3, "rope_type": "yarn"}, ("rope_frequencies",)), (None, ("rope_frequencies",))],
)
def test_rope_frequencies_follow_from_a_configuration_that_scales_so(
    tmp_path: Path, scaling: object, only: tuple[str, ...]
) -> None:
    extra = {"rope_freqs.weight": LLAMA3_FACTORS}
    path = save_gguf(tmp_path / "m.gguf", SMALL, "llama", permuted=True, extra=extra)
    one, other = open_index(path), small(tmp_path / "hf", rope_scaling=scaling)

    assert diff(one, other).only == (only, ())
    assert diff(other, one).only == ((), only)


@pytest.mark.parametrize(
    "change", [{"factor": 32.0}, {"original_max_position_embeddings": 128}, {"high_freq_factor": 8}]
)
def test_rope_frequencies_of_another_scaling_are_a_difference(tmp_path: Path, change: dict[str, float]) -> None:
    path = save_gguf(tmp_path / "m.gguf", SMALL, "llama", permuted=True, extra={"rope_freqs.weight": LLAMA3_FACTORS})
    other = small(tmp_path / "hf", rope_scaling={**LLAMA3, **change})

    assert diff(open_index(path), other).only == (("rope_frequencies",), ())


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ({"model_type": "mistral", "sliding_window": 32}, "sliding_window", 32),
        ({"rope_theta": 77.0}, "rope_theta", 77.0),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_scaling", {"rope_type": "linear", "factor": 4.0}),
        ({"hidden_act": "gelu"}, "modifiers", ("hidden_act = 'gelu'",)),
    ],
)
def test_whatever_changes_the_computation_is_a_difference(
    tmp_path: Path, change: dict[str, Any], name: str, value: object
) -> None:
    found = diff(small(tmp_path / "a"), small(tmp_path / "b", **change))
    assert (found.same, found.equal) == (False, 12)
    assert found.config[name][1] == value
    if name in ("sliding_window", "modifiers"):  # of these a GGUF of a llama says nothing
        gguf_path = save_gguf(tmp_path / "m.gguf", SMALL, "llama", permuted=True)
        assert diff(open_index(gguf_path), small(tmp_path / "b")).same


def test_one_scaling_in_two_styles_is_no_difference(tmp_path: Path) -> None:
    older = small(tmp_path / "a", rope_scaling={"type": "linear", "factor": 4})
    newer = small(
        tmp_path / "b", rope_theta=..., rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    )
    assert diff(older, newer).same


def test_an_unknown_tensor_does_not_pass_for_the_one_whose_canonical_name_it_has(tmp_path: Path) -> None:
    plain = SMALL.tensors()
    changed = {
        **plain,
        "model.norm.weight": plain["model.norm.weight"] + 1,
        "output_norm.weight": plain["model.norm.weight"],
    }
    found = diff(small(tmp_path / "a"), small(tmp_path / "b", changed))

    assert [item.name for item in found.different] == ["output_norm.weight"]
    assert found.only == ((), ("output_norm.weight (no rule)",))


def test_a_permuted_row_is_found_where_it_is(tmp_path: Path) -> None:
    one = open_index(save_gguf(tmp_path / "a.gguf", SMALL, "llama", permuted=True))
    wrong = open_index(save_gguf(tmp_path / "b.gguf", SMALL, "llama", permuted=False))
    hf = small(tmp_path / "hf")

    assert diff(one, hf).same
    found = diff(wrong, hf)
    assert {item.name for item in found.different} == {"layers.0.attention.q.weight", "layers.0.attention.k.weight"}
    # Of a head's 16 rows only the first and the last are where they were.
    assert {item.values for item in found.different} == {4 * 14 * 64, 2 * 14 * 64}


def q4_1(codes: np.ndarray, scales: np.ndarray, biases: np.ndarray) -> np.ndarray:
    """Blocks of 32: scale, minimum, then byte j of elements j and j + 16 (ggml-common.h)."""
    rows, groups = scales.shape
    blocks = np.empty((rows, groups, 20), np.uint8)
    blocks[..., 0:2] = scales[..., None].view(np.uint8)
    blocks[..., 2:4] = biases[..., None].view(np.uint8)
    runs = codes.reshape(rows, groups, 2, 16)
    blocks[..., 4:] = runs[:, :, 0] | runs[:, :, 1] << 4
    return blocks.reshape(rows, -1)


def test_a_triple_and_the_blocks_that_hold_the_same_numbers_are_equal(tmp_path: Path) -> None:
    """MLX rounds twice in float16 where ggml keeps float32: the decoded values differ, the model does not."""
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 16, (96, 64), dtype=np.uint8)
    scales, biases = rng.normal(0, 0.1, (2, 96, 2)).astype(np.float16)
    module = "model.layers.0.mlp.up_proj"
    tensors: Tensors = {
        **SMALL.tensors(),
        f"{module}.weight": packed(codes, 4).view(np.uint32),
        f"{module}.scales": scales,
        f"{module}.biases": biases,
    }
    mlx = small(tmp_path / "mlx", tensors, model_type="qwen2", quantization={"group_size": 32, "bits": 4})

    def blocks(name: str, changed: np.ndarray) -> TensorIndex:
        made = {"blk.0.ffn_up.weight": (q4_1(changed, scales, biases), gguf.GGMLQuantizationType.Q4_1)}
        return open_index(save_gguf(tmp_path / name, SMALL, "qwen2", permuted=False, blocks=made))

    pairs = [(mlx, blocks("a.gguf", codes)), (blocks("b.gguf", codes), mlx)]
    for found in (diff(*pair, weights=True) for pair in pairs):  # without biases it is no Qwen 2 to plan for
        assert found.same
        assert len(found.retyped) == 1
    other = codes.copy()
    other[7, 40] ^= 1
    item = diff(mlx, blocks("c.gguf", other)).different[0]
    assert item.name == "layers.0.ffn.up.weight"
    assert item.max_error == pytest.approx(abs(float(scales[7, 1])), rel=0.02)
    assert item.values > 1, "decoded, the roundings show as well"


def test_a_file_without_rules_is_not_compared_with_one_that_has_them(tmp_path: Path) -> None:
    one, other = small(tmp_path / "a"), bare(tmp_path / "b", w=np.ones(2, np.float32))

    for pair in ((one, other), (other, one)):
        with pytest.raises(UnsupportedError) as caught:
            require_comparable(*pair)
        assert (caught.value.code, caught.value.exit_code) == ("model.architecture", 4)
        assert caught.value.path == str(tmp_path / "b")
        assert "ckconv does not know the architecture 'other'" in caught.value.message
    require_comparable(one, one)
    require_comparable(other, other)


def test_progress_adds_up_to_the_bytes_read(tmp_path: Path) -> None:
    calls: list[tuple[int, str]] = []
    one = small(tmp_path / "a")
    diff(one, one, progress=lambda nbytes, name: calls.append((nbytes, name)))

    assert sum(nbytes for nbytes, _ in calls) == one.nbytes
    assert {name for _, name in calls} == set(one.tensors)
