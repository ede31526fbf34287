"""The GGUF container: what sound headers say, and the sentence for each broken one."""

from __future__ import annotations

import io
import os
import random
import shutil
import struct
from pathlib import Path

import pytest
from conftest import FIXTURES
from gguf_builder import Q8_0, Tensor, gguf, number, pair, raw_pair, string, value
from hypothesis import given, settings, strategies as st

from ckconv.errors import InputError, OutputError
from ckconv.formats.gguf import values as gguf_cursor
from ckconv.formats.gguf.read import ArrayRef, read_gguf
from ckconv.io.files import ByteSource, PipeSource

#: Files without a fault, by llama.cpp's own programs.
SOUND = sorted(
    path for folder in ("gguf", "gguf-split", "gguf-lora", "kquants") for path in (FIXTURES / folder).glob("*.gguf")
)

ARCH = ("general.architecture", "str", "llama")


def refusal(path: Path, *, source: ByteSource | None = None) -> InputError:
    """The error that the reader ends in."""
    with pytest.raises(InputError) as caught:
        read_gguf(path, source=source)
    assert caught.value.exit_code == 3
    return caught.value


# --- sound files


@pytest.mark.parametrize("path", SOUND, ids=lambda p: p.name)
def test_agrees_with_the_reference_reader(path):
    reference = pytest.importorskip("gguf").GGUFReader(path)
    shard = next(shard for shard in read_gguf(path).shards if shard.path == path)
    fields = {key: field for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert list(shard.metadata) == list(fields)
    for key, field in fields.items():
        found = shard.metadata[key].value
        assert (found.decode() if isinstance(found, ArrayRef) else found) == field.contents()
        assert shard.metadata[key].type.startswith("arr" if isinstance(found, ArrayRef) else "")
    assert [(t.name, t.dtype.name, t.shape, t.extent.offset, t.extent.nbytes) for t in shard.tensors] == [
        (t.name, t.tensor_type.name, tuple(map(int, t.shape))[::-1], t.data_offset, t.n_bytes)
        for t in reference.tensors
    ]
    assert shard.data_offset == reference.data_offset


def test_there_are_fixtures():
    assert len(SOUND) >= 5


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version(write, version):
    tensors = [Tensor("a", (8, 3)), Tensor("b", (32, 2), Q8_0)]
    data = gguf([ARCH, ("x.list", "arr[str]", ["p", "qr"])], tensors, version=version)
    file = read_gguf(write(data))
    assert (file.version, file.alignment, len(file.shards)) == (version, 32, 1)
    assert file.metadata["general.architecture"].value == "llama"
    assert file.metadata["x.list"].value.decode() == ["p", "qr"]
    assert [(t.name, t.dtype.name, t.shape, t.extent.nbytes) for t in file.tensors] == [
        ("a", "F32", (3, 8), 96),
        ("b", "Q8_0", (2, 32), 68),
    ]
    assert [t.extent.offset - file.data_offset for t in file.tensors] == [0, 96]
    assert file.shards[0].size == len(data)
    assert len(data) == file.data_offset + 96 + 96


SCALARS = [
    ("u8", 255),
    ("i8", -128),
    ("u16", 65_535),
    ("i16", -1),
    ("u32", 1 << 31),
    ("i32", -(1 << 31)),
    ("u64", (1 << 64) - 1),
    ("i64", -(1 << 63)),
    ("f32", 9.999999747378752e-06),
    ("f64", 0.1),
    ("bool", True),
    ("bool", False),
    ("str", "héllo\n\0"),
    ("str", ""),
]


@pytest.mark.parametrize(("kind", "content"), SCALARS)
def test_every_scalar_type(write, kind, content):
    found = read_gguf(write(gguf([("k", kind, content)]))).metadata["k"]
    assert (found.type, found.value, type(found.value)) == (kind, content, type(content))
    assert found.raw == (b"" if kind == "str" else value(kind, content))


def test_a_signaling_nan_is_kept_bit_for_bit(write):
    bits = struct.pack("<I", 0x7F800001)
    assert read_gguf(write(gguf([raw_pair("k", 6, bits)]))).metadata["k"].raw == bits


@pytest.mark.product("pairs")
@pytest.mark.parametrize(("kind", "content"), SCALARS)
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("version", [1, 3])
def test_every_array_type(write, kind, content, count, version):
    items = [content] * count
    data = gguf([("k", f"arr[{kind}]", items), ("after", "u8", 7)], version=version)
    file = read_gguf(write(data))
    array = file.metadata["k"].value
    assert file.metadata["k"].type == f"arr[{kind}]"
    assert (array.type, array.count) == (kind, count)
    assert array.decode() == items
    assert array.head(2) == items[:2]
    assert array.head(-1) == []
    assert array.raw() == b"".join(value(kind, content, version) for _ in range(count))
    assert data[array.offset : array.offset + array.nbytes] == array.raw()
    assert file.metadata["after"].value == 7


def test_bytes_that_are_not_utf8_survive_in_strings(write):
    raw = b"\xff\xfe ok \xc3("
    file = read_gguf(write(gguf([raw_pair("s", 8, string(raw)), ("a", "arr[str]", [raw])])))
    assert file.metadata["s"].value.encode("utf-8", "surrogateescape") == raw
    assert file.metadata["a"].value.decode()[0].encode("utf-8", "surrogateescape") == raw


@pytest.mark.parametrize("alignment", [8, 64, 1 << 20])
def test_alignment(write, alignment):
    data = gguf([("general.alignment", "u32", alignment)], [Tensor("a", (3,)), Tensor("b", (3,))], alignment=alignment)
    file = read_gguf(write(data))
    assert file.alignment == alignment
    assert file.data_offset % alignment == 0
    assert [t.extent.offset for t in file.tensors] == [file.data_offset, file.data_offset + max(alignment, 16)]


@pytest.mark.parametrize("kept", [0, 1, 20])
def test_the_last_padding_may_be_absent_or_partial(write, kept):
    data = gguf([ARCH], [Tensor("a", (3,))], last_padding=False)
    assert len(read_gguf(write(data + b"\0" * kept)).tensors) == 1


def test_a_vocabulary_without_tensors(write):
    data = gguf([ARCH])
    assert read_gguf(write(data)).tensors == ()
    assert read_gguf(write(data.rstrip(b"\0"))).tensors == ()


def test_windows_slide_over_any_boundary(write, monkeypatch):
    words = [random.Random(5).randbytes(n % 23).hex() for n in range(400)]
    metadata = [("words", "arr[str]", words), ("long", "str", "x" * 500), ("flags", "arr[bool]", [True] * 300)]
    path = write(gguf(metadata, [Tensor(f"t{n}", (n + 1,)) for n in range(30)]))
    whole = read_gguf(path)
    for window in (1, 9, 64, 255):
        monkeypatch.setattr(gguf_cursor.Cursor.__init__, "__kwdefaults__", {"first": window, "window": window})
        file = read_gguf(path)
        assert file.metadata["words"].value.decode() == words
        assert file.metadata["words"].value.head(3) == words[:3]
        assert file.metadata["long"].value == "x" * 500
        assert file.tensors == whole.tensors


@pytest.mark.product("pairs")
@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("window", [97, 4096, 1 << 20])
@pytest.mark.parametrize("longest", [3, 39, 40, 300])
@pytest.mark.parametrize("many", [0, 10_000])
def test_strings_of_any_length_are_passed_over(write, monkeypatch, many, longest, window, version):
    monkeypatch.setattr(gguf_cursor, "_MANY", many)
    monkeypatch.setattr(gguf_cursor.Cursor.__init__, "__kwdefaults__", {"first": window, "window": window})
    draw = random.Random(longest)
    words = ["\0" * draw.choice([0, 1, 2, draw.randrange(longest + 1)]) + "x" * draw.randrange(2) for _ in range(1_000)]
    path = write(gguf([("words", "arr[str]", words), ("last", "u8", 7)], version=version))
    metadata = read_gguf(path).metadata
    assert metadata["words"].value.decode() == words
    assert metadata["last"].value == 7


def test_an_array_of_a_file_that_changed_is_refused(write):
    path = write(gguf([("words", "arr[str]", ["a", "bc"])]))
    array = read_gguf(path).metadata["words"].value
    path.write_bytes(b"GGUF")
    for use in (array.raw, array.decode, lambda: array.head(1)):
        with pytest.raises(OutputError) as caught:
            use()
        assert caught.value.code == "input.changed"


@pytest.mark.parametrize("length", [(1 << 64) - 1, 1 << 40, 200])
@pytest.mark.parametrize("word", [0, 9], ids=["first", "last"])
def test_an_array_whose_lengths_changed_behind_the_readers_back_is_refused(write, length, word):
    path = write(gguf([("words", "arr[str]", ["a", "bc"])]))
    array = read_gguf(path).metadata["words"].value
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(array.offset + word)
        file.write(number(length))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    for use in (array.decode, lambda: array.head(2)):
        with pytest.raises(OutputError) as caught:
            use()
        assert caught.value.code == "input.changed"


# --- pipes


def test_a_pipe_is_read_without_its_data():
    class Endless(io.RawIOBase):
        """A header, then data that nobody should read to the end."""

        def __init__(self, start):
            self.start, self.served = start, 0

        def read(self, nbytes=-1):
            part = self.start[:nbytes] or b"\x11" * nbytes
            self.start = self.start[len(part) :]
            self.served += len(part)
            return part

    tensors = [Tensor("a", (1 << 20, 1 << 10), data=b"")]
    stream = Endless(gguf([ARCH, ("words", "arr[str]", ["a", "b"])], tensors))
    file = read_gguf(Path("-"), source=PipeSource(stream))
    assert (file.tensors[0].shape, file.shards[0].size) == ((1 << 10, 1 << 20), None)
    assert file.metadata["words"].value.decode() == ["a", "b"]
    assert stream.served < 40 << 20


def test_one_shard_from_a_pipe_is_described():
    data = (FIXTURES / "gguf-split" / "llama-untied-f32-00002-of-00003.gguf").read_bytes()
    file = read_gguf(Path("-"), source=PipeSource(io.BytesIO(data)))
    assert (file.metadata["split.count"].value, len(file.shards)) == (3, 1)


@pytest.mark.parametrize("cut", range(0, 300, 7))
def test_a_pipe_that_ends_early(cut):
    data = gguf([ARCH, ("words", "arr[str]", ["abc"] * 9), ("n", "arr[u32]", [1] * 9)], [Tensor("a"), Tensor("b")])
    assert data.index(b"\x11") > 300
    error = refusal(Path("-"), source=PipeSource(io.BytesIO(data[:cut])))
    codes = "gguf.empty gguf.magic gguf.truncated gguf.count gguf.string gguf.array"
    assert error.code in codes.split()


@pytest.mark.parametrize(
    "metadata", [raw_pair("k", 9, struct.pack("<IQQ", 8, 1, 900) + b"ab"), raw_pair("k", 9, struct.pack("<IQ", 6, 900))]
)
def test_an_array_beyond_the_end_of_a_pipe(metadata):
    error = refusal(Path("-"), source=PipeSource(io.BytesIO(gguf([metadata]))))
    assert error.code in ("gguf.string", "gguf.array")


# --- split sets


@pytest.fixture
def split(tmp_path):
    for path in (FIXTURES / "gguf-split").glob("*.gguf"):
        shutil.copy(path, tmp_path / path.name)
    return [tmp_path / f"llama-untied-f32-0000{n}-of-00003.gguf" for n in (1, 2, 3)]


def test_any_shard_opens_the_set(split):
    files = [read_gguf(path) for path in split]
    for file, path in zip(files, split, strict=True):
        assert file.path == path
        assert file.files == tuple(split)
        assert len(file.shards) == 3
        assert file.tensors == files[0].tensors
        assert file.metadata["general.architecture"].value == "llama"
    assert len(files[0].tensors) == 21
    assert sum(len(shard.tensors) for shard in files[0].shards) == 21
    assert {t.extent.path for t in files[0].tensors} == set(split)


def test_missing_shards_are_named(split):
    split[1].unlink()
    error = refusal(split[2])
    assert error.code == "gguf.split"
    assert error.message == "shard 2 of 3 is missing: expected llama-untied-f32-00002-of-00003.gguf"
    split[0].unlink()
    error = refusal(split[2])
    assert "shard 1 of 3 is missing" in error.message
    assert error.details == ("shard 2 of 3 is missing: expected llama-untied-f32-00002-of-00003.gguf",)


def test_a_shard_under_another_shards_name(split):
    shutil.copy(split[0], split[1])
    error = refusal(split[0])
    assert (error.code, error.path) == ("gguf.split", str(split[1]))
    assert "is shard 1 of 3, its name says 2 of 3" in error.message


def test_a_renamed_set(split):
    for path in split:
        path.rename(path.with_name(path.name.replace("of-00003", "of-00004")))
    error = refusal(split[0].with_name(split[0].name.replace("of-00003", "of-00004")))
    assert "is shard 1 of 3, its name says 1 of 4: expected llama-untied-f32-00001-of-00003.gguf" in error.message


def test_shards_whose_ending_is_in_capitals_have_a_hint_that_leads_on(split: list[Path]) -> None:
    for path in split:
        path.rename(path.with_suffix(".GGUF"))
    error = refusal(split[0].with_suffix(".GGUF"))
    assert error.hint == f"rename every shard: this one {split[0].name}"
    for path in split:
        path.with_suffix(".GGUF").rename(path)
    assert len(read_gguf(split[0]).files) == 3


def shard(number, count=2, total=2, names=("a",), kind="u16", alignment=32, extra=()):
    keys = [("split.no", kind, number), ("split.count", kind, count), ("split.tensors.count", "i32", total)]
    if alignment != 32:
        keys.append(("general.alignment", "u32", alignment))
    return gguf([*keys, *extra], [Tensor(name) for name in names], alignment=alignment)


@pytest.mark.parametrize("kind", ["u8", "u16", "i32", "u64"])
def test_each_shard_has_its_own_alignment_and_integer_types(write, kind):
    write(shard(0, kind=kind, names=("a",), extra=[ARCH]), "x-00001-of-00002.gguf")
    file = read_gguf(write(shard(1, kind=kind, names=("b",), alignment=256), "x-00002-of-00002.gguf"))
    assert [s.alignment for s in file.shards] == [32, 256]
    assert [t.extent.offset for t in file.tensors] == [s.data_offset for s in file.shards]
    assert list(file.metadata) == ["split.no", "split.count", "split.tensors.count", "general.architecture"]


@pytest.mark.parametrize(
    ("first", "second", "code", "message"),
    [
        (shard(0), shard(1), "gguf.duplicate-tensor", "'a' is listed twice, in x-00001-of-00002.gguf and x-00002-"),
        (
            shard(0, total=3),
            shard(1, total=3, names=["b"]),
            "gguf.split",
            "split.tensors.count is 3, the 2 shards hold 2",
        ),
        (shard(0), shard(1, total=5, names=["b"]), "gguf.split", "split.tensors.count is 5, the 2 shards hold 2"),
        (shard(0), shard(1, count=3, names=["b"]), "gguf.split", "is shard 2 of 3, its name says 2 of 2"),
        (shard(0), gguf([], [Tensor("b")]), "gguf.split", "split.no is absent"),
        (shard(0), shard(1, names=["b"])[:-17], "gguf.extent", "tensor 'b' ends at"),
        (shard(0), b"", "gguf.empty", "the file is empty"),
    ],
)
def test_sets_that_disagree(write, first, second, code, message):
    path = write(first, "x-00001-of-00002.gguf")
    write(second, "x-00002-of-00002.gguf")
    error = refusal(path)
    assert error.code == code
    assert message in error.message


def test_a_merged_file_is_one_file(write):
    file = read_gguf(write(gguf([("split.count", "u16", 0)], [Tensor("a")]), "x-00001-of-00003.gguf"))
    assert len(file.shards) == 1


# --- any sound file

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
KEYS = st.lists(st.text("abcdefg._0123456789", min_size=1, max_size=20), unique=True, max_size=6)


@given(KEYS, st.lists(TEXT, max_size=30), KEYS, st.sampled_from([1, 2, 3]))
@settings(max_examples=100, deadline=None)
def test_what_was_written_is_read(keys, words, names, version):
    pairs = [pair(key, "arr[str]", words, version) for key in keys]
    tensors = [Tensor(name, (n + 1, 2)) for n, name in enumerate(names)]
    file = read_gguf(Path("-"), source=PipeSource(io.BytesIO(gguf(pairs, tensors, version=version))))
    assert {key: meta.value.decode() for key, meta in file.metadata.items()} == dict.fromkeys(keys, words)
    assert [(t.name, t.shape) for t in file.tensors] == [(t.name, t.dims[::-1]) for t in tensors]
