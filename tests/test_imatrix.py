"""``--imatrix``: importance matrices of llama-imatrix, in both of its forms, count as with llama-quantize."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoints import Decoder
from conftest import Result
from test_quantize import WEIGHED, WIDE, WORDS, by_llama_quantize, checkpoint, llama_cpp, tensors

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
@pytest.mark.parametrize("word", ["q4_k_m", "q4_0", "q5_0", "iq4_xs"])
def test_every_block_is_llama_quantizes_with_the_same_importance(word: str, decoder: Decoder, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", decoder, "mixtral" if decoder.experts else "llama")
    plain = ckconv.convert(source, tmp_path / "plain.gguf") and tmp_path / "plain.gguf"
    sums = sums_of(plain)
    np.savez(tmp_path / "i.npz", **means(sums))
    theirs = by_llama_quantize(plain, tmp_path / "q.gguf", WORDS[word][0], str(tmp_path / "i.npz"))
    imatrix = save_gguf(tmp_path / "imatrix.gguf", sums)

    ckconv.convert(source, tmp_path / "ours.gguf", options=Options(quantize=word, imatrix=imatrix))

    assert tensors(tmp_path / "ours.gguf") == tensors(theirs)


def test_the_older_form_says_the_same(tmp_path: Path) -> None:
    values = {"blk.0.attn_q.weight": np.arange(1, 65, dtype=np.float32) / 8}

    found = read_imatrix(save_dat(tmp_path / "imatrix.dat", values, 4))

    assert list(found.matrices) == list(values)
    assert np.array_equal(found.matrices["blk.0.attn_q.weight"], values["blk.0.attn_q.weight"])
    assert (found.dataset, found.chunks) == ("some", 3)
    (tmp_path / "imatrix.dat").write_bytes((tmp_path / "imatrix.dat").read_bytes()[:-12])
    assert read_imatrix(tmp_path / "imatrix.dat")[1:] == ("", 0)


def test_a_gguf_says_what_its_blocks_were_weighed_by(tmp_path: Path) -> None:
    """Keys and their types of ``tools/quantize/quantize.cpp``; of the file its name, which is no place on a disk."""
    source = checkpoint(tmp_path / "hf", WIDE)
    ckconv.convert(source, tmp_path / "plain.gguf")
    sums = sums_of(tmp_path / "plain.gguf")
    weighed = Options(quantize="q4_0", imatrix=save_gguf(tmp_path / "imatrix.gguf", sums))

    ckconv.convert(source, tmp_path / "m.gguf", options=weighed)
    ckconv.convert(tmp_path / "plain.gguf", tmp_path / "again.gguf", options=weighed)

    for name in ("m", "again"):
        fields = gguf.GGUFReader(tmp_path / f"{name}.gguf").fields
        assert {key: (field.types[0].name, field.contents()) for key, field in fields.items() if "imatrix" in key} == {
            "quantize.imatrix.file": ("STRING", "imatrix.gguf"),
            "quantize.imatrix.dataset": ("STRING", "some.txt"),
            "quantize.imatrix.entries_count": ("UINT32", len(sums)),
            "quantize.imatrix.chunks_count": ("UINT32", 3),
        }


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


@pytest.mark.needs("posix")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "i.dat")

    with pytest.raises(InputError) as caught:
        read_imatrix(tmp_path / "i.dat")

    assert caught.value.code == "input.special"


@pytest.mark.parametrize("field", ["entries", "name", "numbers"])
def test_a_field_that_announces_more_than_is_there_reads_nothing(field: str, tmp_path: Path) -> None:
    """The file is of four gigabytes, all of them zeros but for the field."""
    fields = {"entries": [1, 1 << 20], "name": [1, -1], "numbers": [1, 0, 1, (1 << 30) - 1]}[field]
    with (tmp_path / "i.dat").open("wb") as file:
        file.write(struct.pack(f"<{len(fields)}i", *fields))
        file.truncate(4 << 30)

    tracemalloc.start()
    try:
        with pytest.raises(InputError) as caught:
            read_imatrix(tmp_path / "i.dat")
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()

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


#: Rows of whole blocks, a layer of every kind that a recipe tells apart.
LAYERS: dict[str, tuple[Decoder, str]] = {
    "8 layers": (Decoder(layers=8, hidden=256, head_dim=32, heads=8, kv_heads=4, ffn=256, vocab=32), "llama"),
    "8 heads, 2 of K and V": (
        Decoder(layers=1, hidden=256, head_dim=32, heads=8, kv_heads=2, ffn=256, vocab=32),
        "llama",
    ),
    "8 experts": (
        Decoder(layers=1, hidden=256, head_dim=64, ffn=256, vocab=32, experts=8, expert_ffn=256),
        "mixtral",
    ),
}


@llama_cpp
@pytest.mark.parametrize(
    ("word", "model"),
    [
        *(("q2_k_s", model) for model in LAYERS if model != "8 heads, 2 of K and V"),
        *((word, "8 heads, 2 of K and V") for word in WEIGHED if word != "iq1_s"),
        ("iq3_xs", "8 layers"), ("iq2_xxs", "8 experts"),
    ],
)  # fmt: skip
def test_recipes_of_few_bits_mix_as_llama_quantizes(word: str, model: str, tmp_path: Path) -> None:
    decoder, model_type = LAYERS[model]
    source = checkpoint(tmp_path / "hf", decoder, model_type)
    ckconv.convert(source, tmp_path / "plain.gguf", verify=False)
    sums = sums_of(tmp_path / "plain.gguf")
    np.savez(tmp_path / "i.npz", **means(sums))
    theirs = by_llama_quantize(tmp_path / "plain.gguf", tmp_path / "q.gguf", WEIGHED[word], str(tmp_path / "i.npz"))
    asked = Options(quantize=word, imatrix=save_gguf(tmp_path / "imatrix.gguf", sums))

    ckconv.convert(source, tmp_path / "ours.gguf", options=asked, verify=False)

    assert tensors(tmp_path / "ours.gguf") == tensors(theirs)
