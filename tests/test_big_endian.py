"""Big-endian GGUF files, made by gguf's own converter, are read as the little-endian ones they were made of."""

from __future__ import annotations

import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import FIXTURES, Result
from gguf_builder import F16, Q4_0, Q4_K, Q8_0, Tensor, gguf

Run = Callable[..., Result]
LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
SPLIT = FIXTURES / "gguf-split"


def turned(path: Path, monkeypatch: pytest.MonkeyPatch, order: str = "big") -> Path:
    """The file with its bytes in the other order, in place."""
    from gguf.scripts.gguf_convert_endian import main

    with monkeypatch.context() as patch:
        patch.setattr("builtins.input", lambda *_: "YES")
        patch.setattr(sys, "argv", ["", str(path), order])
        main()
    return path


def blocks(dims: tuple[int, int], type_id: int, nbytes: int, name: str) -> Tensor:
    return Tensor(name, dims, type_id, data=np.random.default_rng(3).bytes(nbytes))


MIXED = gguf(
    [
        ("general.architecture", "str", "other"), ("a", "arr[i16]", [1, -2, 3]), ("b", "arr[str]", ["x", "yz"]),
        ("c", "arr[f64]", [0.5]), ("d", "u64", 1 << 40), ("e", "arr[u8]", [1, 2]), ("f", "bool", True),
    ],
    [
        blocks((4, 3), 0, 48, "f32"), blocks((5, 2), F16, 20, "f16"), blocks((64, 3), Q4_0, 108, "q4_0"),
        blocks((32, 1), Q8_0, 34, "q8_0"), blocks((256, 2), Q4_K, 288, "q4_k"), blocks((256, 1), 14, 210, "q6_k"),
        blocks((32, 2), 39, 34, "mxfp4"),
    ],
)  # fmt: skip


@pytest.mark.parametrize("source", ["llama", "mixed"])
def test_its_copy_is_the_little_endian_file(
    tmp_path: Path, ckconv: Run, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    wanted = LLAMA.read_bytes() if source == "llama" else MIXED
    path = tmp_path / "big.gguf"
    path.write_bytes(wanted)
    turned(path, monkeypatch)
    assert path.read_bytes() != wanted
    done = ckconv("convert", path, tmp_path / "m.gguf")
    assert (done.code, "the source is big-endian" in done.out) == (0, True), done.err
    assert (tmp_path / "m.gguf").read_bytes() == wanted
    assert ckconv("verify", tmp_path / "m.gguf", path).code == 0


def test_its_values_convert(tmp_path: Path, ckconv: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path = turned(Path(shutil.copy(LLAMA, tmp_path / "big.gguf")), monkeypatch)
    assert ckconv("convert", path, f"{tmp_path}/hf/", "--to", "hf").code == 0
    assert ckconv("diff", tmp_path / "hf", LLAMA).code == 0


def test_a_split_set_of_both_orders(tmp_path: Path, ckconv: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in SPLIT.iterdir():
        shutil.copy(path, tmp_path)
    shards = sorted(tmp_path.glob("*.gguf"))
    for shard in shards[:2]:
        turned(shard, monkeypatch)
    assert ckconv("diff", shards[0], sorted(SPLIT.iterdir())[0]).code == 0


HUGE = struct.pack(">Q", 1 << 62)
#: What is put where in a file of one key and one tensor, and the sentence.
BROKEN = {
    "no counts": (8, None, "ends at byte 8"),
    "a cut key": (30, None, "remain"),
    "cut records": (90, None, "ends at byte 90"),
    "cut data": (-40, None, "ends at "),
    "a huge count of tensors": (8, HUGE, "declares 4611686018427387904 tensors"),
    "a huge count of keys": (16, HUGE, "declares 4611686018427387904 metadata keys"),
    "a huge key": (24, HUGE, "declares 4,611,686,018,427,387,904 bytes"),
    "a type of values that is none": (52, struct.pack(">I", 77), "77"),
    "an array of arrays": (52, struct.pack(">III", 9, 9, 9), "array"),
    "a huge array": (52, struct.pack(">IIQ", 9, 4, 1 << 40), "elements"),
    "a version of the future": (4, struct.pack(">I", 4), "GGUF version 4; ckconv reads"),
    "a type that is none": (90, struct.pack(">I", 4000), "has type 4000"),
    "five dimensions": (78, struct.pack(">I", 5), "5 dimensions"),
    "a tensor behind the end": (94, struct.pack(">Q", 1 << 40), "starts at 1,099,511,627,776"),
    "blocks whose order is not sure": (90, struct.pack(">I", 6), "Q5_0 blocks, as of 'w', have no order"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_malformed_in_it(tmp_path: Path, ckconv: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([("general.architecture", "str", "llama")], [Tensor("w", (32,), 0)]))
    data = turned(path, monkeypatch).read_bytes()
    at, new, sentence = BROKEN[name]
    path.write_bytes(data[:at] if new is None else data[:at] + new + data[at + len(new) :])
    done = ckconv("convert", path, tmp_path / "out.gguf")
    assert (done.code in (3, 4), sentence in done.err) == (True, True), done.err
    assert not (tmp_path / "out.gguf").exists()
