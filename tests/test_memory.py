"""Peak memory does not grow with the model."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from checkpoints import Decoder
from distributed_builder import distributed
from gguf_builder import BLOCKS, F16, F32, Q4_K, Tensor, gguf

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc for the peak")

ROOT = Path(__file__).parent.parent
MB = 1 << 20

#: What the process itself ever held, unlike ru_maxrss, which begins with what its parent held.
PEAK = """
with open("/proc/self/status") as file:
    print(next(line.split()[1] for line in file if line.startswith("VmHWM")), file=sys.stderr)
"""

COMMAND = f"""
import sys
from ckconv.cli import run
status = run(sys.argv[1:])
{PEAK}
sys.exit(status)
"""

#: The first argument is what the refusal says.
REFUSED = f"""
import contextlib, io, sys
from ckconv.cli import run
with contextlib.redirect_stderr(io.StringIO()) as said:
    assert run(sys.argv[2:]) in (3, 4)
assert sys.argv[1] in said.getvalue(), said.getvalue()
{PEAK}
"""

#: Widens a matrix that is stored transposed: into its rows, or as it lies.
TRANSPOSED = f"""
import sys
from pathlib import Path
from ckconv.quant.convert import Conversion
from ckconv.core.layouts import F16, F32
from ckconv.io.files import Files
from ckconv.core.tensors import Extent, Tensor
from ckconv.core.layouts import plain, transposed
from ckconv.io.rows import RowReader
from ckconv.io.stored import stored_pieces
path, rows, cols = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
layout = {{"plain": plain, "transposed": transposed}}[sys.argv[4]](rows, cols)
tensor = Tensor("t", "t", F16, (rows, cols), (Extent(path, 0, rows * cols * 2),), transposed(rows, cols))
with Files() as files:
    reader = RowReader(tensor, files)
    written = sum(piece(reader)[0].nbytes for piece in stored_pieces(reader, layout, Conversion(F16, F32)))
assert written == rows * cols * 4
{PEAK}
"""


def peak(program: str, *arguments: object) -> int:
    """Bytes that the process held at most."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1]) * 1024


def llama(
    path: Path,
    kind: int,
    *,
    hidden: int,
    ffn: int,
    heads: int,
    vocab: int,
    tokenizer: Sequence[tuple[str, str, object]] = (),
) -> int:
    """A model of zeros that takes no space on the disk; returns its bytes."""
    numbers = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": hidden,
        "feed_forward_length": ffn,
        "attention.head_count": heads,
        "attention.head_count_kv": heads,
    }
    metadata: list[tuple[str, str, object]] = [
        ("general.architecture", "str", "llama"),
        *((f"llama.{key}", "u32", value) for key, value in numbers.items()),
        ("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5),
        *tokenizer,
    ]
    matrices = {
        "token_embd": (hidden, vocab),
        **{f"blk.0.attn_{name}": (hidden, hidden) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_gate": (hidden, ffn),
        "blk.0.ffn_up": (hidden, ffn),
        "blk.0.ffn_down": (ffn, hidden),
    }
    vectors = ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")
    tensors, at = [], 0
    shapes: Sequence[tuple[str, tuple[int, ...], int]] = [
        *((name, dims, kind) for name, dims in matrices.items()),
        *((name, (hidden,), F32) for name in vectors),
    ]
    for name, dims, type_id in shapes:
        tensors.append(Tensor(f"{name}.weight", dims, type_id, offset=at, data=b""))
        elements, nbytes = BLOCKS[type_id]
        size = dims[0] * (dims[1] if len(dims) > 1 else 1) // elements * nbytes
        at += -(-size // 32) * 32
    header = gguf(metadata, tensors)
    path.write_bytes(header)
    os.truncate(path, len(header) + at)
    return len(header) + at


#: Blocks are copied, but for Q and K, whose rows change places.
QUANTIZED = (
    Q4_K,
    {"hidden": 256, "ffn": 256, "heads": 4, "vocab": 64},
    {"hidden": 4096, "ffn": 6144, "heads": 32, "vocab": 32_000},
)
#: Everything is widened and padded, and wo packed head by head.
WIDENED = (
    F16,
    {"hidden": 40, "ffn": 88, "heads": 4, "vocab": 50},
    {"hidden": 2040, "ffn": 5500, "heads": 20, "vocab": 2_000},
)


@pytest.mark.parametrize(("kind", "small", "large"), [QUANTIZED, WIDENED], ids=["quantised", "widened"])
def test_convert_and_verify_hold_a_bounded_part_of_the_model(
    tmp_path: Path, kind: int, small: dict[str, int], large: dict[str, int]
) -> None:
    llama(tmp_path / "small.gguf", kind, **small)
    nbytes = llama(tmp_path / "large.gguf", kind, **large)
    assert nbytes > 100 * MB
    peaks = {}
    for size in ("small", "large"):
        source, out = tmp_path / f"{size}.gguf", tmp_path / size / "out.bump"
        out.parent.mkdir()
        peaks[f"convert {size}"] = peak(COMMAND, "convert", "-q", source, out)
        peaks[f"verify {size}"] = peak(COMMAND, "verify", "-q", out, source)
    assert peaks["convert large"] - peaks["convert small"] < 40 * MB, peaks
    assert peaks["verify large"] - peaks["verify small"] < 32 * MB, peaks
    assert max(peaks.values()) < 96_000_000, peaks


def test_a_distributed_checkpoint_is_put_together_in_a_bounded_part_of_it(tmp_path: Path) -> None:
    """Each of two processes saved a half of every row, so that no run of a tensor is in one piece."""
    peaks, nbytes = {}, 0
    for size, made in (("small", Decoder(layers=1)), ("large", Decoder(layers=1, hidden=1024, ffn=4096))):
        arrays = {f"model.{name}": array.astype(np.float32) for name, array in made.tensors().items()}
        halves = {
            name: (
                array.shape,
                [((0, at), half) for at, half in zip((0, array.shape[1] // 2), np.hsplit(array, 2), strict=True)],
            )
            if array.ndim == 2
            else (array.shape, [((0,), array)])
            for name, array in arrays.items()
        }
        source = distributed(tmp_path / size, halves)
        (source / "config.json").write_text(json.dumps(made.config("llama")))
        nbytes = sum(array.nbytes for array in arrays.values())
        peaks[size] = peak(COMMAND, "convert", "-q", source, tmp_path / f"{size}.gguf")
    assert nbytes > 48 * MB
    assert (peaks["large"] - peaks["small"] < 8 * MB, peaks["large"] < 72 * MB) == (True, True), peaks


def test_threads_that_decode_share_a_heap(tmp_path: Path) -> None:
    """With one heap for each thread it takes 88 MB and more."""
    llama(tmp_path / "model.gguf", Q4_K, hidden=1024, ffn=4096, heads=8, vocab=32_000)
    flags = ("--dequantize", "--dtype", "f32", "--jobs", "2")
    assert peak(COMMAND, "convert", "-q", tmp_path / "model.gguf", tmp_path / "out.gguf", *flags) < 80 * MB


@pytest.mark.parametrize("layout", ["plain", "transposed"])
def test_transposing_holds_a_bounded_part_of_a_matrix(tmp_path: Path, layout: str) -> None:
    path, rows, cols = tmp_path / "matrix", 6144, 4096
    path.touch()
    os.truncate(path, rows * cols * 2)
    small, large = peak(TRANSPOSED, path, 64, 64, layout), peak(TRANSPOSED, path, rows, cols, layout)
    assert large - small < 40 * MB, (small, large)


def runs(letters: str, longest: int) -> list[tuple[str, str, object]]:
    """A SentencePiece vocabulary of runs of letters: far more merges than pieces, and far longer."""
    pieces = [("<unk>", 0.0, 2), *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256))]
    pieces += [(a * n, -float(i), 1) for i, a in enumerate(letters, 1) for n in range(1, longest + 1)]
    texts, scores, types = (list(column) for column in zip(*pieces, strict=True))
    return [
        ("tokenizer.ggml.model", "str", "llama"),
        ("tokenizer.ggml.tokens", "arr[str]", texts),
        ("tokenizer.ggml.scores", "arr[f32]", scores),
        ("tokenizer.ggml.token_type", "arr[i32]", types),
        ("tokenizer.ggml.add_bos_token", "bool", False),
    ]


def bytewise(pre: str, unknown: int) -> list[tuple[str, str, object]]:
    """Words of bytes, or of pieces with merges, without a key for the unknown one."""
    words = [("<unk>", unknown), *((f"<0x{byte:02X}>", 6) for byte in range(256)), ("a", 1), ("aa", 1)]
    words = words if unknown == 2 else [("<|endoftext|>", unknown), ("a", 1), ("aa", 1)]
    return [
        ("tokenizer.ggml.model", "str", "gpt2"),
        ("tokenizer.ggml.pre", "str", pre),
        ("tokenizer.ggml.tokens", "arr[str]", [text for text, _ in words]),
        ("tokenizer.ggml.token_type", "arr[i32]", [kind for _, kind in words]),
        ("tokenizer.ggml.merges", "arr[str]", ["a a"]),
        ("tokenizer.ggml.add_bos_token", "bool", False),
    ]


SCORED = [("tokenizer.ggml.scores", "arr[f32]", [0.0, 0.0, 0.0])]
EMPTY = [
    (key, kind, [*value[:-1], {"tokens": "", "token_type": 4}.get(key.rpartition(".")[2], 0.0), value[-1]])
    if isinstance(value, list)
    else (key, kind, value)
    for key, kind, value in runs("a", 8)
]


@pytest.mark.parametrize(
    ("tokenizer", "unknown"),
    [(bytewise("gpt-2", 3) + SCORED, None), (bytewise("sarvam-moe", 2), "<unk>"), (EMPTY, "<unk>")],
    ids=["scores that bytes have no use for", "pieces with merges", "a piece without a text"],
)
def test_what_fewer_keys_say_of_a_tokenizer_is_written(
    tokenizer: list[tuple[str, str, object]], unknown: str | None, tmp_path: Path, ckconv
) -> None:
    count = len({key: values for key, _, values in tokenizer}["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    source = tmp_path / "m.gguf"
    llama(source, F32, hidden=32, ffn=32, heads=1, vocab=count, tokenizer=tokenizer)
    assert ckconv("convert", source, f"{tmp_path / 'out'}/", "--to", "safetensors").code == 0
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text()).get("unk_token") == unknown


@pytest.mark.parametrize("key", ["token_type", "scores"])
def test_of_lists_longer_than_the_words_the_rest_is_left(key: str, tmp_path: Path, ckconv) -> None:
    longer = [(name, kind, [*v, v[-1]] if name.endswith(key) else v) for name, kind, v in runs("a", 8)]
    for name, tokenizer in (("plain", runs("a", 8)), ("longer", longer)):
        source = tmp_path / f"{name}.gguf"
        llama(source, F32, hidden=32, ffn=32, heads=1, vocab=265, tokenizer=tokenizer)
        assert ckconv("convert", source, f"{tmp_path / name}/", "--to", "safetensors").code == 0
    for file in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json"):
        assert (tmp_path / "longer" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()


def test_a_tokenizer_that_is_many_times_its_words_is_written_in_pieces(tmp_path: Path) -> None:
    sizes, peaks = {}, {}
    for name, letters in (("small", "a"), ("large", "abcdefghij")):
        vocab = 257 + 256 * len(letters)
        source, out = tmp_path / f"{name}.gguf", tmp_path / name
        llama(source, F32, hidden=32, ffn=32, heads=1, vocab=vocab, tokenizer=runs(letters, 256))
        peaks[name] = peak(COMMAND, "convert", "-q", source, f"{out}/", "--to", "safetensors")
        sizes[name] = (out / "tokenizer.json").stat().st_size
    assert sizes["large"] > 50 * MB
    assert peaks["large"] - peaks["small"] < 32 * MB, (sizes, peaks)


def test_groups_across_a_hundred_million_rows_take_no_memory(tmp_path: Path) -> None:
    """HQQ's scales of ``axis`` 0 are those of every row of a group; the codes are a hole of 16 MB."""
    rows = 1 << 27
    small = {
        "scale": np.ones((1, 1), np.float16), "zero": np.zeros((1, 1), np.float16),
        "shape": np.array([rows, 1]), "group_size": np.array(rows, np.int32), "axis": np.array(0, np.int32),
        "packing": np.frombuffer(b"1bit_u8", np.uint8), "compute_dtype": np.frombuffer(b"torch.float16", np.uint8),
    }  # fmt: skip
    names = {"f2": "F16", "i8": "I64", "i4": "I32", "u1": "U8"}
    header: dict[str, object] = {}
    data = b""
    for name, array in small.items():
        place = [len(data), len(data) + array.nbytes]
        header[f"w.{name}"] = {"dtype": names[array.dtype.str[1:]], "shape": array.shape, "data_offsets": place}
        data += array.tobytes()
    place = [len(data), len(data) + rows // 8]
    header["w.W_q"] = {"dtype": "U8", "shape": [rows // 8, 1], "data_offsets": place}
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    os.truncate(tmp_path / "model.safetensors", 8 + len(text) + place[1])
    config = {"model_type": "unheard-of", "quantization_config": {"quant_method": "hqq"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert peak(COMMAND, "inspect", tmp_path) < 80 * MB


#: What the header of a file of 512 MB ends with: an array of this type, and so many elements of it.
ARRAYS = {
    "bytes": (0, 1 << 29, "declares 536,870,912 u8 elements, at most 16,777,216 are allowed"),
    "one number too many": (10, (1 << 24) + 1, "declares 16,777,217 u64 elements, at most 16,777,216 are allowed"),
    "texts": (8, 1 << 26, "declares 67,108,864 strings, at most 16,777,216 are allowed"),
}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("of", ARRAYS)
def test_a_huge_array_is_refused_before_it_is_read(tmp_path: Path, of: str, order: str) -> None:
    type_id, count, sentence = ARRAYS[of]
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack(f"{order}IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, type_id, count))
    os.truncate(path, 512 * MB)
    assert peak(REFUSED, sentence, "inspect", path) < 80 * MB
