"""Blocks of 256 elements as MLX triples: ggml's decoder and MLX's give the same bits."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import Model

from ckconv.core.dtypes import BF16, DTYPES, F16, F32, DType
from ckconv.engine.compare import diff
from ckconv.errors import InputError
from ckconv.formats.detect import open_index
from ckconv.quant.mlx import decode
from ckconv.quant.repack import Triple
from ckconv.quant.superblocks import RECIPES, find, triple_for

Q = gguf.GGMLQuantizationType
NAMES = ["Q4_K", "Q5_K", "TQ2_0"]
#: Where the float16 numbers of a block lie.
HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "TQ2_0": (64,)}


def random_blocks(rng: np.random.Generator, name: str, rows: int = 3, count: int = 4) -> np.ndarray:
    """Any codes and factors, and scales that are finite."""
    blocks = rng.integers(0, 256, (rows, count, DTYPES[name].size), dtype=np.uint8)
    for at in HALVES[name]:
        halves = rng.integers(0, 0x7C00, (rows, count, 1)).astype("<u2")
        halves |= rng.integers(0, 2, halves.shape).astype("<u2") << np.uint16(15)
        blocks[..., at : at + 2] = halves.view(np.uint8)
    return blocks.reshape(rows, -1)


def by_ggml(blocks: np.ndarray, name: str) -> np.ndarray:
    return np.asarray(gguf.quants.dequantize(blocks, Q[name]))


def triple(name: str, number: DType = F32) -> Triple:
    found = triple_for(DTYPES[name], number)
    assert found is not None
    return found


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_every_finite_block_fits_and_has_the_values_of_ggml(name: str, seed: int) -> None:
    blocks = random_blocks(np.random.default_rng(seed), name)
    made = RECIPES[DTYPES[name]].to_triple(blocks, triple(name))

    assert (made.groups, made.inexact) == (blocks.shape[0] * 4 * 8, 0)
    values = decode(*made.planes, triple(name).quantization, F32)
    wanted = by_ggml(blocks, name)
    if name == "TQ2_0":  # (1 - 1) * -d is -0.0 in ggml, -d + d is 0.0 in MLX
        values, wanted = values + np.float32(0), wanted + np.float32(0)
    assert values.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_mlx_itself_decodes_the_values_of_ggml(name: str) -> None:
    mx = pytest.importorskip("mlx.core")
    blocks = random_blocks(np.random.default_rng(7), name, rows=64, count=8)
    weight, scales, biases = RECIPES[DTYPES[name]].to_triple(blocks, triple(name)).planes
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_groups_of_a_block_with_an_infinite_or_nan_scale_do_not_fit(name: str, number: float) -> None:
    for at in HALVES[name]:
        blocks = random_blocks(np.random.default_rng(1), name, rows=1, count=2)
        blocks[0, at : at + 2] = np.frombuffer(np.float16(number).tobytes(), np.uint8)

        assert RECIPES[DTYPES[name]].to_triple(blocks, triple(name)).inexact >= 1


@pytest.mark.parametrize("number", [F16, BF16])
def test_products_that_a_smaller_type_does_not_hold_are_counted(number: DType) -> None:
    block = np.zeros((1, 144), np.uint8)
    block[0, :4] = np.frombuffer(np.array([1 + 2**-10, 1.0], np.float16).tobytes(), np.uint8)
    block[0, 4:8] = (1, 3, 0, 2)  # d times 3 needs a bit more than float16 has
    block[0, 12:16] = 1

    inexact = {F16: 1, BF16: 7}[number]
    assert RECIPES[DTYPES["Q4_K"]].to_triple(block, triple("Q4_K", number)).inexact == inexact


def test_a_row_of_half_a_block_is_refused() -> None:
    with pytest.raises(InputError, match="not whole Q4_K blocks of 144 bytes"):
        RECIPES[DTYPES["Q4_K"]].to_triple(np.zeros((1, 72), np.uint8), triple("Q4_K"))


def test_types_with_groups_of_16_have_no_triple() -> None:
    assert [triple_for(DTYPES[name], F32) for name in ("Q2_K", "Q3_K", "Q6_K", "IQ4_XS")] == [None] * 4
    assert find(DTYPES["Q4_K"], triple("Q5_K").quantization) is None


@pytest.mark.parametrize("kind", [Q.Q4_K, Q.Q5_K])
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


def sound(path: Path, name: str) -> None:
    """Give every block of ``name`` finite scales."""
    data = bytearray(path.read_bytes())
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.tensor_type == Q[name]:
            rows = random_blocks(np.random.default_rng(3), name, rows=tensor.data.shape[0], count=1)
            data[tensor.data_offset : tensor.data_offset + rows.nbytes] = rows.tobytes()
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
