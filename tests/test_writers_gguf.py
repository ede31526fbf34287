"""GGUF headers as they are written, held against bytes put together by hand and against the gguf package."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import gguf
import gguf_builder as hand
import numpy as np
import pytest
from conftest import FIXTURES

import ckconv
from ckconv import Options
from ckconv.core.metadata import array, raw_array, scalar
from ckconv.errors import UnsupportedError
from ckconv.formats.gguf.values import Record, header, header_bytes

VALUES = [
    ("k.u8", "u8", 255), ("k.i8", "i8", -1), ("k.u16", "u16", 65_535), ("k.i16", "i16", -2), ("k.u32", "u32", 1 << 31),
    ("k.i32", "i32", -3), ("k.f32", "f32", 0.1), ("k.bool", "bool", True), ("k.str", "str", "naïve ✓"),
    ("k.u64", "u64", 1 << 63), ("k.i64", "i64", -4), ("k.f64", "f64", 1e300),
    ("k.arr[str]", "arr[str]", ["a", "", "ü"]), ("k.arr[i32]", "arr[i32]", [1, -1]), ("k.empty", "arr[f32]", []),
    ("k.arr[bool]", "arr[bool]", [True, False]),
]  # fmt: skip


def test_every_type_of_value_and_a_record_are_the_bytes_of_the_format() -> None:
    metadata = {
        key: array(kind[4:-1], content) if kind.startswith("arr[") else scalar(kind, content)
        for key, kind, content in VALUES
    }
    tensors = [hand.Tensor("a", (8, 2)), hand.Tensor("b.weight", (32,), hand.Q8_0)]

    made = header(metadata, [Record("a", (2, 8), 0, 0), Record("b.weight", (32,), 8, 64)])

    assert hand.gguf(VALUES, tensors).startswith(made)
    assert header_bytes(metadata, [("a", 2), ("b.weight", 1)]) == len(made)


def test_a_raw_array_is_its_elements() -> None:
    assert raw_array("i32", 2, struct.pack("<ii", 1, -1)) == array("i32", [1, -1])


REFERENCES = sorted(path.name for folder in ("gguf", "kquants") for path in (FIXTURES / folder).glob("*.gguf"))


@pytest.mark.parametrize("name", REFERENCES)
def test_a_file_of_llama_cpp_is_copied_to_the_last_byte(name: str, tmp_path: Path) -> None:
    source = next(FIXTURES.glob(f"*/{name}"))

    ckconv.convert(source, tmp_path / "m.gguf")

    assert (tmp_path / "m.gguf").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment_and_unusual_values_stay(alignment: int, tmp_path: Path) -> None:
    signaling = hand.raw_pair("k.nan", 6, b"\x01\x00\x80\x7f")
    odd = ("k.bytes", "str", b"\xff\xfe")
    metadata = [("general.architecture", "str", "other"), ("general.alignment", "u32", alignment), signaling, odd]
    tensors = [hand.Tensor("a", (3,)), hand.Tensor("b", (5,), 26), hand.Tensor("c", (32, 3), hand.Q4_0)]
    source = tmp_path / "s.gguf"
    source.write_bytes(hand.gguf([*metadata, *VALUES], tensors, alignment=alignment))

    ckconv.convert(source, tmp_path / "m.gguf")

    assert (tmp_path / "m.gguf").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_version_becomes_the_third(version: int, tmp_path: Path) -> None:
    metadata = [("general.architecture", "str", "other"), *VALUES]
    tensors = [hand.Tensor("a", (3,)), hand.Tensor("c", (32, 3), hand.Q4_0)]
    (tmp_path / "s.gguf").write_bytes(hand.gguf(metadata, tensors, version=version))

    ckconv.convert(tmp_path / "s.gguf", tmp_path / "m.gguf")

    assert (tmp_path / "m.gguf").read_bytes() == hand.gguf(metadata, tensors)


def test_a_file_of_metadata_only(tmp_path: Path) -> None:
    (tmp_path / "s.gguf").write_bytes(hand.gguf([("general.architecture", "str", "other")]))

    with pytest.raises(UnsupportedError) as caught:
        ckconv.convert(tmp_path / "s.gguf", tmp_path / "m.gguf")

    assert caught.value.code == "model.no-tensors"
    assert not (tmp_path / "m.gguf").exists()


# Split sets.

SPLIT = FIXTURES / "gguf-split" / "llama-untied-f32-00001-of-00003.gguf"


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    ckconv.convert(SPLIT, tmp_path / "merged.gguf")
    return tmp_path / "merged.gguf"


def test_a_set_becomes_one_file_without_the_keys_of_a_set(merged: Path) -> None:
    one = gguf.GGUFReader(merged)
    parts = [gguf.GGUFReader(path) for path in sorted(SPLIT.parent.glob("*.gguf"))]

    assert [t.name for t in one.tensors] == [t.name for part in parts for t in part.tensors]
    for tensor, twin in zip(one.tensors, [t for part in parts for t in part.tensors], strict=True):
        assert np.array_equal(tensor.data, twin.data)
    keys = [key for key in parts[0].fields if not key.startswith(("GGUF.", "split."))]
    assert [key for key in one.fields if not key.startswith("GGUF.")] == keys


def test_one_file_becomes_a_set_and_one_file_again(merged: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()

    report = ckconv.convert(merged, out / "model.gguf", options=Options(max_shard_bytes=150_000))

    names = [f"model-0000{n}-of-00004.gguf" for n in (1, 2, 3, 4)]
    assert sorted(path.name for path in out.iterdir()) == names == [file.path.name for file in report.files]
    shards = [gguf.GGUFReader(out / name) for name in names]
    for number, shard in enumerate(shards):
        assert sum(int(tensor.n_bytes) for tensor in shard.tensors) <= 150_000
        split = {key: shard.fields[key] for key in ("split.no", "split.tensors.count", "split.count")}
        assert [field.types[0].name for field in split.values()] == ["UINT16", "INT32", "UINT16"]
        assert [field.contents() for field in split.values()] == [number, 21, 4]
        assert ("general.architecture" in shard.fields) == (number == 0)
    ckconv.convert(out / names[2], tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == merged.read_bytes()


def test_the_first_shard_has_the_keys_that_gguf_split_gives_it(merged: Path, tmp_path: Path) -> None:
    ckconv.convert(merged, tmp_path / "m.gguf", options=Options(max_shard_bytes=312_000))

    theirs, ours = (gguf.GGUFReader(path).fields for path in (SPLIT, tmp_path / "m-00001-of-00002.gguf"))
    assert list(theirs) == list(ours)


def test_a_set_is_re_split_under_its_stem(tmp_path: Path) -> None:
    shutil.copytree(SPLIT.parent, tmp_path / "in")
    out = tmp_path / "out"
    out.mkdir()

    ckconv.convert(
        tmp_path / "in" / SPLIT.name, out / "x-00001-of-00009.gguf", options=Options(max_shard_bytes=300_000)
    )

    assert sorted(path.name for path in out.iterdir()) == ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"]


def test_a_tensor_larger_than_a_shard_has_one_of_its_own(merged: Path, tmp_path: Path) -> None:
    report = ckconv.convert(merged, tmp_path / "m.gguf", options=Options(max_shard_bytes=1))

    assert len(report.files) == 21


def test_a_limit_that_everything_keeps_makes_one_file(merged: Path, tmp_path: Path) -> None:
    report = ckconv.convert(merged, tmp_path / "m.gguf", options=Options(max_shard_bytes=1 << 30))

    assert [file.path.name for file in report.files] == ["m.gguf"]
