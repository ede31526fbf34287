from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import given, strategies as st
from safetensors_builder import BITS, container, f32, mutated, sound, split, tensor

from ckconv.errors import CkconvError, InputError, UnsupportedError
from ckconv.formats.safetensors import container as reader
from ckconv.formats.safetensors.container import SafetensorsFile, read_safetensors
from ckconv.io.files import PipeSource

FIXTURES = Path(__file__).parent.parent / "fixtures" / "hf"
FILES = sorted(FIXTURES.glob("*/*.safetensors"))


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read(data: bytes) -> SafetensorsFile:
        path = tmp_path / "model.safetensors"
        path.write_bytes(data)
        return read_safetensors(path)

    return read


@pytest.fixture
def fault(read: Any) -> Any:
    def fault(data: bytes) -> CkconvError:
        with pytest.raises(CkconvError) as caught:
            read(data)
        assert caught.value.exit_code == 3
        assert caught.value.path is not None
        assert caught.value.path.endswith("model.safetensors")
        return caught.value

    return fault


def reference_reads(data: bytes) -> bool:
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return False
    return True


# ---- sound files


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_reads_what_the_reference_reads(path: Path) -> None:
    data = path.read_bytes()
    ours = read_safetensors(path)
    theirs = dict(safetensors.deserialize(data))
    assert {t.name for t in ours.tensors} == theirs.keys()
    for t in ours.tensors:
        assert list(t.shape) == theirs[t.name]["shape"]
        assert t.dtype.safetensors == theirs[t.name]["dtype"]
        assert data[t.extent.offset : t.extent.offset + t.extent.nbytes] == bytes(theirs[t.name]["data"])
        assert t.extent.path == path
    with safetensors.safe_open(path, "np") as opened:
        assert ours.metadata == opened.metadata()
    assert ours.size == len(data)
    assert ours.data_offset == 8 + ours.header_bytes == ours.tensors[0].extent.offset


def test_tensors_are_in_the_order_of_their_data(read: Any) -> None:
    header = {"z": f32(0, 4), "a": f32(8, 12), "m": f32(4, 8)}
    assert [t.name for t in read(container(header, bytes(12))).tensors] == ["z", "m", "a"]


@pytest.mark.parametrize("dtype", BITS)
def test_every_dtype(dtype: str, read: Any) -> None:
    data = sound({"a": (dtype, [3, 8])})
    assert reference_reads(data)
    (only,) = read(data).tensors
    assert (only.dtype.name, only.shape, only.extent.nbytes) == (dtype, (3, 8), 3 * BITS[dtype])


@pytest.mark.parametrize("shape", [[], [0], [0, 5], [2, 0, 3], [1]])
def test_scalars_and_empty_tensors(shape: list[int], read: Any) -> None:
    tensors = {"first": ("U8", [3]), "it": ("F32", shape), "last": ("U8", [2])}
    assert reference_reads(sound(tensors))
    assert [(t.name, t.shape) for t in read(sound(tensors)).tensors] == [
        (name, tuple(shape)) for name, (_, shape) in tensors.items()
    ]


@pytest.mark.parametrize("metadata", [{}, {"format": "pt", "": "\x1b"}, None])
def test_metadata(metadata: Any, read: Any) -> None:
    data = container({"__metadata__": metadata, "a": f32(0, 4)}, bytes(4))
    assert reference_reads(data)
    assert read(data).metadata == (metadata or {})


@pytest.mark.parametrize("padding", [b"", b" ", b"       ", b"\n"])
def test_white_space_behind_the_header(padding: bytes, read: Any) -> None:
    header = json.dumps({"a": f32(0, 4)}).encode() + padding
    file = read(container(header, bytes(4)))
    assert file.tensors[0].extent.offset == 8 + len(header)
    assert file.header_bytes == len(header)


def test_from_a_pipe(tmp_path: Path) -> None:
    tensors = {"a": ("F32", [2]), "b": ("F16", [3])}
    data = sound(tensors) + bytes(3_000_000)
    file = read_safetensors(Path("-"), source=PipeSource(io.BytesIO(data)))
    assert [t.name for t in file.tensors] == ["a", "b"]
    assert file.size is None
    with pytest.raises(InputError, match=r"header declares 1,000 bytes, the file has 12"):
        read_safetensors(Path("-"), source=PipeSource(io.BytesIO(struct.pack("<Q", 1000) + b"{abc")))


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(sorted(BITS)), st.lists(st.sampled_from([0, 1, 3, 4, 8]), max_size=3)),
        min_size=1,
        max_size=6,
    )
)
def test_any_sound_file_is_read(tensors: dict[str, tuple[str, list[int]]]) -> None:
    data = sound(tensors)
    if not reference_reads(data):
        # Types below a byte with a shape that does not end on one.
        assert any(BITS[dtype] % 8 for dtype, _ in tensors.values())
        return
    file = read_safetensors(Path("x"), source=PipeSource(io.BytesIO(data)))
    assert {t.name: (t.dtype.name, list(t.shape)) for t in file.tensors} == tensors


# ---- row 26: the header's length


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (b"", "the file is empty", "partial download"),
        (b"\x10\0\0", "the file has 3 bytes; a safetensors file starts with 8 of header length", "partial download"),
        (struct.pack("<Q", 1000) + b"{}", "header declares 1,000 bytes, the file has 10", "partial download"),
        (struct.pack("<Q", 1), "header declares 1 byte, too few", None),
        (struct.pack("<Q", 0) + b"{}", "header declares 0 bytes, too few", None),
        (
            struct.pack("<Q", 100_000_001) + b"{}",
            "header declares 100,000,001 bytes; safetensors allows 100,000,000",
            "not a safetensors file",
        ),
        (b"\xff" * 8, "header declares 18,446,744,073,709,551,615 bytes", "not a safetensors file"),
        (b"<!DOCTYPE html>", "safetensors allows 100,000,000", "web page"),
        (b"GGUF\3\0\0\0\1\0", "safetensors allows 100,000,000", "GGUF"),
        (b"BUMPWGT5abcd", "safetensors allows 100,000,000", "bump"),
        (b'{"a": {"dtype"', "safetensors allows 100,000,000", "JSON"),
    ],
)
def test_header_length(data: bytes, message: str, hint: str | None, fault: Any) -> None:
    error = fault(data)
    assert error.code == "st.header-length"
    assert message in error.message
    assert hint is None or hint in error.hint


def test_git_lfs_pointer(fault: Any) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 4100000000\n"
    error = fault(text.encode())
    assert (error.code, error.message) == ("st.lfs-pointer", "is a git-lfs pointer for a 4.1 GB object")
    assert error.hint == "run `git lfs pull`"


@pytest.mark.parametrize("data", [b"PK\3\4\0\0\x08\x08\0\0", b"\x80\x02}q\0X\5\0\0\0model"])
def test_pickles_are_named(data: bytes, read: Any) -> None:
    with pytest.raises(UnsupportedError, match="pickle") as caught:
        read(data)
    assert (caught.value.code, caught.value.exit_code) == ("hf.pickle", 4)


# ---- row 27: the header as JSON


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b' {"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', "column 1: it must begin with '{', not with ' '"),
        (b"[]", "column 1: it must begin with '{', not with '['"),
        (b"\0\0", "column 1: it must begin with '{', not with '\\x00'"),
        (b"{a", "header is not a JSON object: column 2: "),
        (b'{"\xff": 1}', "header is not UTF-8: byte 0xff"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "header is nested 5,001 deep"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}\0', "extra data"),
    ],
)
def test_header_json(header: bytes, message: str, fault: Any) -> None:
    error = fault(container(header, b"\1"))
    assert error.code == "st.header-json"
    assert message in error.message
    assert error.offset >= 8


# ---- row 28: duplicate keys


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ('{"a":A,"a":A}', "tensor 'a' appears twice in the header"),
        ('{"a":A,"\\u0061":A}', "tensor 'a' appears twice in the header"),
        ('{"__metadata__":{},"a":A,"__metadata__":{}}', "tensor '__metadata__' appears twice"),
        ('{"__metadata__":{"k":"1","k":"2"},"a":A}', "key 'k' appears twice in one object"),
        ('{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', "key 'dtype' appears twice"),
    ],
)
def test_duplicate_keys(header: str, message: str, fault: Any) -> None:
    header = header.replace("A", '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}')
    error = fault(container(header, b"\1"))
    assert error.code == "st.duplicate-key"
    assert message in error.message


# ---- row 29: fields


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (7, "tensor 'a' is a number; an object is required"),
        (None, "tensor 'a' is null; an object is required"),
        (["U8", [1], [0, 1]], "tensor 'a' is a list; an object is required"),
        ({"dtype": "U8", "shape": [1]}, "tensor 'a': data_offsets is missing"),
        ({}, "tensor 'a': dtype is missing, shape is missing, data_offsets is missing"),
        ({**tensor("U8", [1], 0, 1), "evil": 1}, "tensor 'a': 'evil' is not a field of safetensors"),
        (tensor(3, [1], 0, 1), "tensor 'a': dtype must be a string, got 3"),
        (tensor(None, [1], 0, 1), "tensor 'a': dtype must be a string, got null"),
        (tensor("U8", 1, 0, 1), "tensor 'a': shape must be a list, got 1"),
        (tensor("U8", {"0": 1}, 0, 1), "tensor 'a': shape must be a list, got an object"),
        (tensor("U8", [-2], 0, 1), "tensor 'a': shape must be whole numbers >= 0, got -2"),
        (tensor("U8", [1.0], 0, 1), "tensor 'a': shape must be whole numbers >= 0, got 1.0"),
        (tensor("U8", [True], 0, 1), "tensor 'a': shape must be whole numbers >= 0, got true"),
        (tensor("U8", ["1"], 0, 1), "tensor 'a': shape must be whole numbers >= 0, got '1'"),
        (tensor("U8", [[1]], 0, 1), "tensor 'a': shape must be whole numbers >= 0, got a list"),
        (tensor("U8", [2**63], 0, 1), "tensor 'a': shape holds 9223372036854775808, larger than any file"),
        (tensor("U8", [1], -1, 0), "tensor 'a': data_offsets must be whole numbers >= 0, got -1"),
        (tensor("U8", [1], 0, 2**64), "tensor 'a': data_offsets holds 18446744073709551616, larger than any file"),
        ({**tensor("U8", [1], 0, 1), "data_offsets": [0]}, "data_offsets must be a list of 2 whole numbers, got 1 v"),
        ({**tensor("U8", [1], 0, 1), "data_offsets": [0, 1, 1]}, "must be a list of 2 whole numbers, got 3 values"),
        ({**tensor("U8", [1], 0, 1), "data_offsets": "0,1"}, "must be a list of 2 whole numbers, got '0,1'"),
    ],
)
def test_fields(entry: Any, message: str, fault: Any) -> None:
    data = container({"a": entry}, b"\1")
    error = fault(data)
    assert (error.code, error.tensor) == ("st.fields", "a")
    assert message in error.message


def test_minus_zero_is_no_whole_number(fault: Any) -> None:
    data = container('{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}')
    assert not reference_reads(data)
    assert fault(data).message == "tensor 'a': shape must be whole numbers >= 0, got -0.0"


def test_names_are_printed_escaped(fault: Any) -> None:
    error = fault(container({"a\x1b]0;owned\x07\u202e": 7}))
    assert error.message.isprintable()
    assert "a\\x1b]0;owned\\x07\\u202e" in error.message


def test_a_long_name_is_refused(fault: Any, read: Any) -> None:
    assert read(container({"n" * 1024: f32(0, 4)}, bytes(4))).tensors[0].name == "n" * 1024
    error = fault(container({"n" * 1025: f32(0, 4)}, bytes(4)))
    assert error.code == "st.fields"
    assert error.message.endswith("has a name of 1,025 bytes; 1,024 are allowed")
    assert len(error.message) < 250


def test_all_faults_of_a_kind_are_listed_up_to_the_limit(fault: Any) -> None:
    error = fault(container({f"t{n}": {} for n in range(30)} | {"x": tensor("Q4_K", [1], 0, 1)}))
    assert error.message.startswith("tensor 't0'")
    assert error.details[0].startswith("tensor 't1'")
    assert len(error.details) == 11
    assert error.details[-1] == "... and 19 more"


# ---- row 30: dtypes


@pytest.mark.parametrize("dtype", ["Q4_K", "f32", "F32 ", "", "C128", "F6", "\x1b"])
def test_dtype(dtype: str, fault: Any) -> None:
    data = container({"a": tensor(dtype, [1], 0, 4)}, bytes(4))
    assert not reference_reads(data)
    error = fault(data)
    assert (error.code, error.message) == ("st.dtype", f"tensor 'a' has dtype {dtype!r}")
    assert "BF16" in error.allowed


# ---- row 31: sizes


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes", "message"),
    [
        ("F32", [2, 2], 8, "'a' [2, 2] F32 needs 16 bytes, offsets give 8"),
        ("F32", [2, 2], 17, "'a' [2, 2] F32 needs 16 bytes, offsets give 17"),
        ("F32", [], 0, "'a' [] F32 needs 4 bytes, offsets give 0"),
        ("F32", [0], 4, "'a' [0] F32 needs 0 bytes, offsets give 4"),
        ("F32", [2**32, 2**32], 0, "'a' [4294967296, 4294967296] F32 is larger than any file"),
        ("F32", [2**62, 2**62, 0], 0, "is larger than any file"),
        ("F64", [2**61], 0, "'a' [2305843009213693952] F64 is larger than any file"),
        ("F4", [3], 1, "'a' [3] F4 is 12 bits and does not end on a byte"),
        ("F4", [3], 2, "'a' [3] F4 is 12 bits and does not end on a byte"),
        ("F6_E2M3", [2], 1, "'a' [2] F6_E2M3 is 12 bits and does not end on a byte"),
        ("F6_E3M2", [4], 4, "'a' [4] F6_E3M2 needs 3 bytes, offsets give 4"),
    ],
)
def test_size(dtype: str, shape: list[int], nbytes: int, message: str, fault: Any) -> None:
    data = container({"a": tensor(dtype, shape, 0, nbytes)}, bytes(nbytes))
    assert not reference_reads(data)
    error = fault(data)
    assert (error.code, error.tensor) == ("st.size", "a")
    assert message in error.message


# ---- row 32: offsets


@pytest.mark.parametrize(
    ("header", "nbytes", "message"),
    [
        ({"a": f32(0, 16), "b": f32(8, 24)}, 24, "'b' begins at 8, expected 16: it overlaps the tensor before it"),
        ({"a": f32(0, 16), "b": f32(0, 16)}, 16, "'b' begins at 0, expected 16: it overlaps the tensor before it"),
        ({"a": f32(0, 8), "b": f32(12, 16)}, 16, "'b' begins at 12, expected 8: it leaves a hole"),
        ({"a": f32(4, 8)}, 8, "'a' begins at 4, expected 0: it leaves a hole"),
        ({"a": tensor("F32", [1], 8, 4)}, 8, "'a' begins at 8 and ends before it, at 4"),
        ({"a": f32(0, 4)}, 8, "4 bytes after the last tensor (start '\\x00\\x00\\x00\\x00')"),
        ({"a": f32(0, 8), "z": tensor("F32", [0], 4, 4)}, 8, "'z' begins at 4, expected 8"),
    ],
)
def test_offsets(header: dict[str, Any], nbytes: int, message: str, fault: Any) -> None:
    data = container(header, bytes(nbytes))
    assert not reference_reads(data)
    error = fault(data)
    assert error.code == "st.offsets"
    assert message in error.message
    assert error.offset >= 8


def test_a_truncated_file_names_what_is_missing(fault: Any) -> None:
    data = sound({"a": ("F32", [10]), "b": ("F32", [10]), "c": ("F32", [10])})
    error = fault(data[:-50])
    assert error.code == "st.offsets"
    assert error.message == f"'b' ends at {len(data) - 40}; the file has {len(data) - 50}"
    assert error.details == (f"'c' ends at {len(data)}; the file has {len(data) - 50}",)
    assert (error.found, error.allowed) == (len(data) - 40, len(data) - 50)
    assert "partial download" in error.hint


def test_a_polyglot_is_refused(fault: Any) -> None:
    error = fault(sound({"a": ("U8", [3])}) + b"PK\3\4rest")
    assert error.message == "8 bytes after the last tensor (start 'PK\\x03\\x04')"


# ---- row 33: metadata; and files without tensors


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"x": 1}, "metadata 'x' is a number; strings only"),
        ({"x": None}, "metadata 'x' is null; strings only"),
        ({"x": {"y": "z"}}, "metadata 'x' is an object; strings only"),
        ([], "__metadata__ is a list; an object of strings is required"),
        ("x", "__metadata__ is a string; an object of strings is required"),
        (f32(0, 4), "metadata 'shape' is a list; strings only"),
    ],
)
def test_bad_metadata(metadata: Any, message: str, fault: Any) -> None:
    data = container({"__metadata__": metadata, "a": f32(0, 4)}, bytes(4))
    assert not reference_reads(data)
    error = fault(data)
    assert error.code == "st.metadata"
    assert message in [error.message, *error.details]


@pytest.mark.parametrize("header", [{}, {"__metadata__": {"a": "b"}}])
def test_no_tensors(header: dict[str, Any], fault: Any) -> None:
    error = fault(container(header))
    assert (error.code, error.message) == ("st.empty", "the header lists no tensors")


def test_the_number_of_tensors_is_bounded(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_TENSORS", 2)
    error = fault(sound({name: ("U8", [1]) for name in "abc"}))
    assert (error.code, error.message) == ("st.count", "the header lists 3 tensors; 2 are allowed")


# ---- mutations


def mutations(count: int) -> Iterator[bytes]:
    rng = random.Random(20)
    seeds = [
        container({"__metadata__": {"format": "pt"}, "a": f32(0, 8), "b": tensor("F4", [2, 2], 8, 10)}, bytes(10)),
        sound({"w": ("BF16", [3, 2]), "n": ("F32", []), "z": ("I64", [0])}),
    ]
    for _ in range(count):
        header, data = split(rng.choice(seeds))
        if rng.random() < 0.1:
            data = data[: rng.randrange(len(data) + 1)] + bytes(rng.randrange(3))
        file = container(mutated(header, rng), data)
        yield mutated(file, rng) if rng.random() < 0.05 else file


def outcome(data: bytes) -> SafetensorsFile | CkconvError:
    try:
        return read_safetensors(Path("m"), source=_Memory(data))
    except CkconvError as error:
        return error


def test_never_more_lenient_than_the_reference_on_mutations() -> None:
    accepted = refused = 0
    for data in mutations(3000):
        result = outcome(data)
        if isinstance(result, CkconvError):
            assert result.exit_code in (3, 4)
            assert "".join([result.message, *result.details]).isprintable()
            refused += 1
            continue
        accepted += 1
        theirs = dict(safetensors.deserialize(data))
        assert {t.name: list(t.shape) for t in result.tensors} == {n: t["shape"] for n, t in theirs.items()}
        for t in result.tensors:
            assert data[t.extent.offset : t.extent.offset + t.extent.nbytes] == bytes(theirs[t.name]["data"])
    assert accepted > 50
    assert refused > 1000


class _Memory(PipeSource):
    """A whole file in memory, with its size known."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.read_at(0, len(data) + 1)
