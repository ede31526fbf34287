"""Blocks of 256 elements as MLX triples: ggml's decoder and MLX's give the same bits."""

from __future__ import annotations

import shutil
from pathlib import Path

import consumers
import gguf
import gguf.quants
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from models import Model

import ckconv
from ckconv.comparison.compare import diff
from ckconv.core.layouts import BF16, DTYPES, F16, F32, DType
from ckconv.core.options import Options
from ckconv.errors import InputError
from ckconv.formats.detect import open_index
from ckconv.quant.affine import NewTile
from ckconv.quant.mlx import Triple, decode, triple_type
from ckconv.quant.repack import triple_for, way_between

Q = gguf.GGMLQuantizationType
#: Where the float16 numbers of a block lie.
HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "TQ2_0": (64,), "TQ1_0": (52,), "Q3_K": (108,), "IQ4_NL": (0,)}
NAMES = [*HALVES]
#: Groups of a block.
GROUPS = {"Q4_K": 8, "Q5_K": 8}


def random_blocks(
    rng: np.random.Generator, name: str, rows: int = 3, count: int = 4, below: int = 0x7C00
) -> np.ndarray:
    """Any codes and factors, and scales that are finite: float16 of bits below ``below``, and a sign."""
    blocks = rng.integers(0, 256, (rows, count, DTYPES[name].size), dtype=np.uint8)
    for at in HALVES[name]:
        halves = rng.integers(0, below, (rows, count, 1)).astype("<u2")
        halves |= rng.integers(0, 2, halves.shape).astype("<u2") << np.uint16(15)
        blocks[..., at : at + 2] = halves.view(np.uint8)
    return blocks.reshape(rows, -1)


def by_ggml(blocks: np.ndarray, name: str) -> np.ndarray:
    return np.asarray(gguf.quants.dequantize(blocks, Q[name]))


def triple(name: str, number: DType = F32) -> Triple:
    found = triple_for(DTYPES[name], number)
    assert found is not None
    return found


def to_triple(blocks: np.ndarray, name: str, number: DType = F32) -> NewTile:
    way = way_between(DTYPES[name], triple_type(triple(name, number)))
    assert way is not None
    return way(blocks)


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_every_finite_block_fits_and_has_the_values_of_ggml(name: str, seed: int) -> None:
    blocks = random_blocks(np.random.default_rng(seed), name)
    made = to_triple(blocks, name)

    assert (made.groups, made.inexact) == (blocks.shape[0] * 4 * GROUPS.get(name, 1), 0)
    values = decode(*made.planes, triple(name).quantization, F32)
    wanted = by_ggml(blocks, name)
    if name not in GROUPS:  # (1 - 1) * -d is -0.0 in ggml, -d + d is 0.0 in MLX
        values, wanted = values + np.float32(0), wanted + np.float32(0)
    assert values.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_mlx_itself_decodes_the_values_of_ggml(name: str) -> None:
    mx = pytest.importorskip("mlx.core")
    blocks = random_blocks(np.random.default_rng(7), name, rows=64, count=8)
    weight, scales, biases = to_triple(blocks, name).planes
    q = triple(name).quantization

    made = mx.dequantize(
        mx.array(weight.view(np.uint32)),
        mx.array(scales.view(np.float32)),
        mx.array(biases.view(np.float32)),
        group_size=q.group_size,
        bits=q.bits,
        stream=mx.cpu,
    )
    assert np.array_equal(np.array(made), by_ggml(blocks, name))


@pytest.mark.product("values")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_groups_of_a_block_with_an_infinite_or_nan_scale_do_not_fit(name: str, number: float) -> None:
    for at in HALVES[name]:
        blocks = random_blocks(np.random.default_rng(1), name, rows=1, count=2)
        blocks[0, at : at + 2] = np.frombuffer(np.float16(number).tobytes(), np.uint8)

        assert to_triple(blocks, name).inexact >= 1


@pytest.mark.parametrize("number", [F16, BF16])
def test_products_that_a_smaller_type_does_not_hold_are_counted(number: DType) -> None:
    block = np.zeros((1, 144), np.uint8)
    block[0, :4] = np.frombuffer(np.array([1 + 2**-10, 1.0], np.float16).tobytes(), np.uint8)
    block[0, 4:8] = (1, 3, 0, 2)  # d times 3 needs a bit more than float16 has
    block[0, 12:16] = 1

    inexact = {F16: 1, BF16: 7}[number]
    assert to_triple(block, "Q4_K", number).inexact == inexact


def test_a_row_of_half_a_block_is_refused() -> None:
    with pytest.raises(InputError, match="not whole Q4_K blocks of 144 bytes"):
        to_triple(np.zeros((1, 72), np.uint8), "Q4_K")


def test_types_with_two_scales_and_products_of_many_bits_have_no_triple() -> None:
    assert [triple_for(DTYPES[name], F32) for name in ("Q2_K", "Q6_K", "IQ4_XS", "IQ3_S", "Q8_K")] == [None] * 5
    assert way_between(DTYPES["Q4_K"], triple_type(triple("Q5_K"))) is None


@pytest.mark.parametrize(
    ("source", "target"),
    [("Q3_K", "Q8_0"), ("IQ4_NL", "Q8_0"), ("TQ1_0", "Q8_0"), ("TQ2_0", "Q8_0"), ("TQ1_0", "TQ2_0")],
)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_every_finite_block_is_another_block_of_the_same_values(source: str, target: str, seed: int) -> None:
    blocks = random_blocks(np.random.default_rng(seed), source, rows=2, count=8)
    way = way_between(DTYPES[source], DTYPES[target])
    assert way is not None
    made = way(blocks)
    assert made.inexact == 0
    assert np.array_equal(by_ggml(made.planes[0], target), by_ggml(blocks, source))


def test_blocks_with_a_minimum_are_no_blocks_without_one() -> None:
    assert way_between(DTYPES["Q4_K"], DTYPES["Q8_0"]) is None
    assert way_between(DTYPES["Q3_K"], DTYPES["Q4_0"]) is None


@pytest.mark.parametrize("kind", [Q.Q4_K, Q.Q5_K, Q.Q3_K, Q.TQ1_0])
def test_a_model_becomes_one_of_mlx_without_decoding(tmp_path: Path, ckconv, kind: Q) -> None:
    source = Model(hidden=256, ffn=256, types={"attn_q.weight": kind, "ffn_down.weight": kind}).write(
        tmp_path / "m.gguf"
    )
    sound(source, kind.name)
    result = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx", "--json")

    assert (result.code, result.err) == (0, "")
    assert ckconv("verify", tmp_path / "out", source).code == 0
    made, read = open_index(tmp_path / "out"), open_index(source)
    for one, other in ((made, read), (read, made)):
        assert (diff(one, other).different, diff(one, other).only) == ((), ((), ()))
    scales = next((tmp_path / "out").glob("*.safetensors"))
    damaged = tmp_path / "damaged"
    shutil.copytree(tmp_path / "out", damaged)
    flip(damaged / scales.name, b"down_proj.scales")
    assert ckconv("verify", damaged, source).code == 5


@pytest.mark.parametrize("kind", [Q.Q4_K, Q.Q5_K, Q.Q3_K, Q.IQ4_NL, Q.TQ1_0, Q.TQ2_0])
def test_mlx_lm_computes_the_same_of_triples_and_of_decoded_blocks(
    tmp_path: Path, mlx_lm: consumers.Consumer, kind: Q
) -> None:
    """The embedding is float16 in the one: products with float32 triples are float32 in MLX all the same."""
    types = dict.fromkeys(("attn_q.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"), kind)
    source = Model(hidden=256, ffn=256, types={"token_embd.weight": Q.F16, **types}).write(tmp_path / "m.gguf")
    sound(source, kind.name, below=0x1C00 if kind is Q.IQ4_NL or kind.name[0] == "T" else 0x1000)
    ckconv.convert(source, tmp_path / "triples", to="mlx")
    ckconv.convert(source, tmp_path / "floats", to="mlx", options=Options(dequantize=True))

    made, wanted = (mlx_lm.logits(tmp_path / name, [1, 5, 17, 42]) for name in ("triples", "floats"))
    assert np.isfinite(made).all()
    assert np.abs(made - wanted).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(("kind", "block"), [(Q.Q3_K, "Q8_0"), (Q.TQ1_0, "TQ2_0"), (Q.TQ2_0, "TQ2_0")])
def test_triples_without_minima_become_blocks_again(tmp_path: Path, kind: Q, block: str) -> None:
    """Of the same values: another type where the one they came from has more parts than a triple."""
    source = Model(hidden=256, ffn=256, types={"ffn_down.weight": kind}).write(tmp_path / "m.gguf")
    sound(source, kind.name)
    ckconv.convert(source, tmp_path / "mlx", to="mlx")
    ckconv.convert(tmp_path / "mlx", tmp_path / "back.gguf")

    one, other = ({t.name: t for t in gguf.GGUFReader(tmp_path / name).tensors} for name in ("m.gguf", "back.gguf"))
    name = "blk.1.ffn_down.weight"
    assert other[name].tensor_type.name == block
    assert np.array_equal(by_ggml(one[name].data, kind.name), by_ggml(other[name].data, block))


def sound(path: Path, name: str, below: int = 0x7C00) -> None:
    """Give every block of ``name`` finite scales."""
    data = bytearray(path.read_bytes())
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.tensor_type == Q[name]:
            made = random_blocks(
                np.random.default_rng(3), name, tensor.data.shape[0], tensor.data.shape[1] // DTYPES[name].size, below
            )
            data[tensor.data_offset : tensor.data_offset + made.nbytes] = made.tobytes()
    path.write_bytes(data)


def flip(path: Path, name: bytes) -> None:
    """Change the last byte of a tensor whose name ends like this."""
    import json

    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    end = next(entry["data_offsets"][1] for key, entry in header.items() if key.endswith(name.decode()))
    data[8 + length + end - 1] ^= 1
    path.write_bytes(data)
