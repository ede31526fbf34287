"""``--imatrix``: importance matrices of llama-imatrix, in both of its forms, count as with llama-quantize."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoints import Decoder
from conftest import Result
from test_quantize import WIDE, WORDS, by_llama_quantize, checkpoint, llama_cpp, tensors

import ckconv
from ckconv import Options
from ckconv.errors import InputError, UnsupportedError, UsageError
from ckconv.io.imatrix import read_imatrix

pytest.importorskip("libgguf")

EXPERTS = Decoder(layers=1, hidden=256, head_dim=64, ffn=256, vocab=32, experts=4, expert_ffn=256)

Sums = Mapping[str, tuple[np.ndarray, np.ndarray]]


def sums_of(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sums ``[experts, columns]`` and counts for every matrix of a GGUF, from a seed; one expert was never asked."""
    rng, found = np.random.default_rng(5), {}
    for tensor in gguf.GGUFReader(path).tensors:
        shape = [int(n) for n in tensor.shape]
        if len(shape) > 1:
            experts = shape[2] if len(shape) == 3 else 1
            counts = np.arange(experts, dtype=np.float32) * 3 if experts > 1 else np.array([7], np.float32)
            found[tensor.name] = (rng.random((experts, shape[0])).astype(np.float32) * counts[:, None] * 40, counts)
    return found


def means(sums: Sums) -> dict[str, np.ndarray]:
    return {
        name: np.concatenate([row / n if n else np.ones_like(row) for row, n in zip(each, counts, strict=True)])
        for name, (each, counts) in sums.items()
    }


def save_gguf(path: Path, sums: Sums) -> Path:
    writer = gguf.GGUFWriter(path, "")
    writer.add_string("general.type", "imatrix")
    writer.add_array("imatrix.datasets", ["some.txt"])
    writer.add_uint32("imatrix.chunk_count", 3)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, (each, counts) in sums.items():
        writer.add_tensor(f"{name}.in_sum2", each)
        writer.add_tensor(f"{name}.counts", counts.reshape(-1, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def save_dat(path: Path, numbers: Mapping[str, np.ndarray], calls: int) -> Path:
    data = struct.pack("<i", len(numbers))
    for name, values in numbers.items():
        data += struct.pack(f"<i{len(name)}sii", len(name), name.encode(), calls, values.size)
        data += (values * np.float32(calls)).astype(np.float32).tobytes()
    path.write_bytes(data + struct.pack("<ii4s", 3, 4, b"some"))
    return path


@llama_cpp
@pytest.mark.parametrize("decoder", [WIDE, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("word", ["q4_k_m", "q4_0", "q5_0", "iq2_xs"])
def test_every_block_is_llama_quantizes_with_the_same_importance(word: str, decoder: Decoder, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", decoder, "mixtral" if decoder.experts else "llama")
    plain = ckconv.convert(source, tmp_path / "plain.gguf") and tmp_path / "plain.gguf"
    sums = sums_of(plain)
    file_type, mixes = WORDS.get(word, (20, False))
    np.savez(tmp_path / "i.npz", **means(sums))
    more = [*([] if mixes else ["pure"]), str(tmp_path / "i.npz")]
    theirs = by_llama_quantize(plain, tmp_path / "q.gguf", file_type, *more)
    imatrix = save_gguf(tmp_path / "imatrix.gguf", sums)

    ckconv.convert(source, tmp_path / "ours.gguf", options=Options(quantize=word, imatrix=imatrix))

    assert tensors(tmp_path / "ours.gguf") == tensors(theirs)


def test_the_older_form_says_the_same(tmp_path: Path) -> None:
    values = {"blk.0.attn_q.weight": np.arange(1, 65, dtype=np.float32) / 8}

    found = read_imatrix(save_dat(tmp_path / "imatrix.dat", values, 4))

    assert list(found) == list(values)
    assert np.array_equal(found["blk.0.attn_q.weight"], values["blk.0.attn_q.weight"])


def test_verification_and_records_need_the_same_file(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    source, out = checkpoint(tmp_path / "hf", WIDE), tmp_path / "m.gguf"
    ckconv("convert", source, tmp_path / "plain.gguf")
    imatrix = save_gguf(tmp_path / "imatrix.gguf", sums_of(tmp_path / "plain.gguf"))
    made = ckconv("convert", source, out, "--quantize", "q4_k", "--imatrix", imatrix, "--record")

    without, with_it = ckconv("verify", out, source), ckconv("verify", out, source, "--imatrix", imatrix)

    assert (made.code, without.code, with_it.code) == (0, 2, 0), with_it.err
    assert "--imatrix imatrix.gguf was given: name it again" in without.err


def test_a_bump_holds_the_blocks_of_the_gguf(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    source = checkpoint(tmp_path / "hf", WIDE)
    ckconv("convert", source, tmp_path / "plain.gguf")
    asked = ["--quantize", "q4_k_m", "--imatrix", save_gguf(tmp_path / "i.gguf", sums_of(tmp_path / "plain.gguf"))]
    ckconv("convert", source, tmp_path / "m.gguf", *asked)

    made = ckconv("convert", source, f"{tmp_path}/b/", "--to", "bump", *asked)
    compared = ckconv("diff", tmp_path / "m.gguf", f"{tmp_path}/b/weights.bump", "--weights")

    assert (made.code, compared.code) == (0, 0), made.err


@pytest.mark.parametrize("data", [b"", b"\1\0\0\0", b"GGUF", struct.pack("<i", 9) + b"\xff" * 40])
def test_what_is_no_importance_matrix_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "i.dat").write_bytes(data)

    with pytest.raises(InputError) as caught:
        read_imatrix(tmp_path / "i.dat")

    assert caught.value.code == "quantize.imatrix"


def test_one_of_another_model_is_refused(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", WIDE)
    imatrix = save_dat(tmp_path / "i.dat", {"blk.0.attn_q.weight": np.ones(64, np.float32)}, 1)

    with pytest.raises(UnsupportedError) as caught:
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize="q4_0", imatrix=imatrix))
    with pytest.raises(UsageError, match="--imatrix is for --quantize"):
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(imatrix=imatrix))

    said = " ".join([caught.value.message, *caught.value.details])
    assert "has 64 numbers for blk.0.attn_q.weight, which takes 256" in said
