"""Q1_0 and Q2_0: decoded as ggml does, to MLX and back with the same bytes; types of ik_llama.cpp are copied."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import consumers
import numpy as np
import pytest
from conftest import Result
from gguf_builder import BLOCKS, Tensor, gguf
from packed_checkpoints import arrays_of

HIDDEN = 256
#: Name -> id, elements and bytes of a block, bits of a code.
KINDS = {"Q1_0": (41, 128, 18, 1), "Q2_0": (42, 64, 18, 2)}
FIELDS = [
    ("general.architecture", "str", "llama"),
    ("general.alignment", "u32", 32),
    *(
        (f"llama.{key}", "u32", value)
        for key, value in {
            "block_count": 1, "context_length": 64, "embedding_length": HIDDEN, "feed_forward_length": HIDDEN,
            "attention.head_count": 4, "attention.head_count_kv": 4, "vocab_size": 32, "rope.dimension_count": 64,
        }.items()
    ),
    ("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5),
]  # fmt: skip
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def blocks(rows: int, block: int, size: int, seed: int) -> np.ndarray:
    """Rows of blocks: a finite scale, some negative, then any bits."""
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 256, (rows, HIDDEN // block, size), dtype=np.uint8)
    made[..., :2] = rng.standard_normal((*made.shape[:2], 1)).astype("<f2").view(np.uint8)
    return made.reshape(rows, -1)


def written(path: Path, number: int, row: Callable[[int], np.ndarray]) -> dict[str, bytes]:
    """A llama whose matrices are of this type; the bytes of each."""
    embedding = np.random.default_rng(9).standard_normal((32, HIDDEN)).astype(np.float32).tobytes()
    tensors = [Tensor("token_embd.weight", (HIDDEN, 32), data=embedding), Tensor("output_norm.weight", (HIDDEN,))]
    tensors += [Tensor(f"blk.0.{name}_norm.weight", (HIDDEN,)) for name in ("attn", "ffn")]
    data = {f"blk.0.{name}.weight": row(seed).tobytes() for seed, name in enumerate(MATRICES)}
    tensors += [Tensor(name, (HIDDEN, HIDDEN), number, data=raw) for name, raw in data.items()]
    path.write_bytes(gguf(FIELDS, tensors))
    return data


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def values(raw: bytes, kind: str) -> np.ndarray:
    """``d * (2 * bit - 1)``, ``d * (code - 1)``."""
    _, block, size, bits = KINDS[kind]
    rows = np.frombuffer(raw, np.uint8).reshape(-1, size)
    stream = np.unpackbits(rows[:, 2:], axis=1, bitorder="little").reshape(len(rows), block, bits)
    codes = (stream << np.arange(bits)).sum(-1).astype(np.float32)
    d = rows[:, :2].copy().view("<f2").astype(np.float32)
    with np.errstate(all="ignore"):
        return ((codes - 1 if bits == 2 else 2 * codes - 1) * d).reshape(-1, HIDDEN)


def split(rows: np.ndarray) -> np.ndarray:
    """Rows of Q and K as Hugging Face orders them."""
    return rows.reshape(4, HIDDEN // 8, 2, -1).swapaxes(1, 2).reshape(HIDDEN, -1)


def test_decoded(tmp_path: Path, ckconv: Callable[..., Result], kind: str) -> None:
    number, block, size, _ = KINDS[kind]
    data = written(tmp_path / "m.gguf", number, lambda seed: blocks(HIDDEN, block, size, seed))
    done = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/out/", "--to", "hf", "--dequantize")
    assert done.code == 0, done.err
    found = arrays_of(tmp_path / "out")
    for name, there in {"self_attn.q_proj": "attn_q", "mlp.down_proj": "ffn_down"}.items():
        wanted = values(data[f"blk.0.{there}.weight"], kind)
        wanted = split(wanted) if there == "attn_q" else wanted
        raw = found[f"model.layers.0.{name}.weight"]
        assert (raw.dtype, raw.data == wanted.tobytes()) == ("F32", True)


@pytest.mark.skipif(not consumers.LIBRARY, reason="LLAMA_CPP_LIBRARY names no folder of llama.cpp's libraries")
def test_ggml_has_the_same_values(kind: str) -> None:
    _, block, size, _ = KINDS[kind]
    raw = blocks(8, block, size, 3)
    decode = getattr(ctypes.CDLL(str(Path(consumers.LIBRARY) / "libggml-base.so")), f"dequantize_row_{kind.lower()}")
    decode.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    made = np.empty((8, HIDDEN), np.float32)
    decode(raw.ctypes.data, made.ctypes.data, made.size)
    assert made.tobytes() == values(raw.tobytes(), kind).tobytes()


def test_to_mlx_and_back(tmp_path: Path, ckconv: Callable[..., Result], kind: str) -> None:
    number, block, size, bits = KINDS[kind]
    data = written(tmp_path / "m.gguf", number, lambda seed: blocks(HIDDEN, block, size, seed))
    done = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/mlx/", "--to", "mlx")
    assert done.code == 0, done.err
    assert f"re-packed 7 {kind} -> MLX {bits}-bit group {block} F32" in done.out

    done = ckconv("convert", f"{tmp_path}/mlx", tmp_path / "back.gguf")
    assert (done.code, f"-> {kind}" in done.out) == (0, True), done.out + done.err
    back = (tmp_path / "back.gguf").read_bytes()
    assert all(raw in back for raw in data.values())
    assert ckconv("diff", "--weights", tmp_path / "m.gguf", tmp_path / "back.gguf").code == 0


def test_mlx_computes_them(tmp_path: Path, ckconv: Callable[..., Result], kind: str) -> None:
    core = pytest.importorskip("mlx.core")
    number, block, size, bits = KINDS[kind]
    data = written(tmp_path / "m.gguf", number, lambda seed: blocks(HIDDEN, block, size, seed))
    assert ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/mlx/", "--to", "mlx").code == 0
    arrays = core.load(f"{tmp_path}/mlx/model.safetensors")
    parts = [arrays[f"model.layers.0.mlp.up_proj.{part}"] for part in ("weight", "scales", "biases")]
    made = np.array(core.dequantize(*parts, group_size=block, bits=bits))
    assert np.array_equal(made, values(data["blk.0.ffn_up.weight"], kind))


def test_one_bit_of_other_biases_goes_to_a_block_that_has_them(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    """What mlx quantizes to one bit has the lower end for a bias: no Q1_0, and Q4_1 if float16 holds the numbers."""
    number, block, size, _ = KINDS["Q1_0"]
    written(tmp_path / "m.gguf", number, lambda seed: blocks(HIDDEN, block, size, seed))
    flags = ("--dequantize", "--quantize", "affine:1:64", "--dtype", "f16", "--allow-lossy")
    done = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/mlx/", "--to", "mlx", *flags)
    assert done.code == 0, done.err
    done = ckconv("convert", f"{tmp_path}/mlx", tmp_path / "back.gguf")
    assert (done.code, "MLX 1-bit group 64 F16 -> Q4_1" in done.out) == (0, True), done.out + done.err


#: Types of ik_llama.cpp: id -> name and bytes of a row of 256.
IK = {139: ("IQ4_K", 144), 144: ("IQ4_KS", 140), 152: ("IQ5_KS", 172), 212: ("Q4_K_R4", 144), 335: ("IQ2_BN_R4", 68)}


@pytest.mark.parametrize("number", IK)
def test_types_of_ik_llama_cpp_are_read_and_copied(tmp_path: Path, ckconv: Callable[..., Result], number: int) -> None:
    name, width = IK[number]
    source = tmp_path / "m.gguf"
    rng = np.random.default_rng(1)
    written(source, number, lambda seed: rng.integers(0, 256, (HIDDEN, width), dtype=np.uint8))
    found = ckconv("inspect", source, "--hash")
    assert (found.code, f"type\t{name}\t7\t{7 * HIDDEN * width}" in found.out) == (0, True), found.out + found.err
    assert ckconv("convert", source, tmp_path / "copy.gguf").code == 0
    assert ckconv("verify", tmp_path / "copy.gguf", source).code == 0
    assert (tmp_path / "copy.gguf").read_bytes()[-HIDDEN * width :] == source.read_bytes()[-HIDDEN * width :]
    for flags in (("--to", "hf"), ("--to", "hf", "--dequantize"), ("--to", "mlx"), ("--to", "gguf", "--dequantize")):
        refused = ckconv("convert", source, f"{tmp_path}/no/", *flags)
        assert (refused.code, name in refused.err) == (4, True), refused.err


def test_rows_that_are_no_whole_blocks_of_ik_llama_cpp(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    assert 144 not in BLOCKS
    (tmp_path / "m.gguf").write_bytes(gguf(FIELDS, [Tensor("output.weight", (100, 2), 144, data=bytes(500))]))
    done = ckconv("inspect", tmp_path / "m.gguf")
    assert (done.code, "is IQ4_KS with rows of 100; blocks hold 256" in done.err) == (3, True)


#: Q1_0, Q2_0 and three of ik_llama.cpp's: id -> elements and bytes of a block.
SIZES = {41: (128, 18), 42: (64, 18), 137: (256, 76), 144: (256, 136), 156: (256, 136)}
FAULTS: dict[str, Callable[[int], Tensor]] = {
    "a row of no whole blocks": lambda number: Tensor("w", (SIZES[number][0] + 32, 2), number, data=bytes(64)),
    "data that ends early": lambda number: Tensor("w", (SIZES[number][0], 4), number, data=bytes(17)),
    "a place behind the end": lambda number: Tensor("w", (SIZES[number][0],), number, 1 << 40, data=bytes(17)),
    "a place between": lambda number: Tensor("w", (SIZES[number][0],), number, 7, data=bytes(SIZES[number][1])),
    "a negative length": lambda number: Tensor("w", ((1 << 64) - 128, 2), number, data=bytes(64)),
    "more numbers than there are": lambda number: Tensor("w", (1 << 40, 1 << 40), number, data=bytes(64)),
    "five axes": lambda number: Tensor("w", (SIZES[number][0], 1, 1, 1, 1), number, data=bytes(SIZES[number][1])),
    "no name": lambda number: Tensor("", (SIZES[number][0],), number, 1, data=bytes(SIZES[number][1])),
    "no bytes": lambda number: Tensor("w", (SIZES[number][0],), number, data=b""),
    "a million rows": lambda number: Tensor("w", (SIZES[number][0], 1 << 20), number, data=bytes(64)),
}


@pytest.mark.parametrize("number", SIZES)
@pytest.mark.parametrize("fault", FAULTS)
def test_malformed_tensors_of_these_types(
    tmp_path: Path, ckconv: Callable[..., Result], fault: str, number: int
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([("general.architecture", "str", "llama")], [FAULTS[fault](number)]))
    done = ckconv("convert", path, tmp_path / "out.gguf")
    assert (done.code, "error[gguf." in done.err) == (3, True), done.err
    assert not (tmp_path / "out.gguf").exists()
