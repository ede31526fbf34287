"""Broken and hostile GGUF files: the code and the sentence for each."""

from __future__ import annotations

import io
import random
import struct
from pathlib import Path

import pytest
from gguf_broken import ARCH, BROKEN, START, TWO
from gguf_builder import F16, Q8_0, Tensor, gguf, mutated, number_fields, raw_pair, string
from hypothesis import given, settings, strategies as st
from test_readers_gguf import SOUND, refusal

from ckconv.errors import CkconvError
from ckconv.formats.gguf.read import ArrayRef, read_gguf
from ckconv.io.files import ByteSource, PipeSource

# --- broken files


@pytest.mark.parametrize(("data", "code", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_files(write, data, code, message):
    path = write(data)
    error = refusal(path)
    assert (error.code, error.path) == (code, str(path))
    assert message in error.message
    assert error.message.isprintable()
    assert all(detail.isprintable() for detail in error.details)


WITHOUT_LENGTH = ("gguf.extent", "gguf.trailing", "gguf.split")


@pytest.mark.parametrize(
    ("data", "code"),
    [c[:2] for c in BROKEN.values() if c[1] not in WITHOUT_LENGTH],
    ids=lambda v: v if v is str else "",
)
def test_broken_pipes(data, code):
    error = refusal(Path("-"), source=PipeSource(io.BytesIO(data)))
    # A count too large for what remains is found where the records end.
    assert error.code == code or (
        code == "gguf.count" and error.code in ("gguf.truncated", "gguf.string", "gguf.name", code)
    )


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"<!DOCTYPE html>", "looks like a web page saved by the downloader"),
        (b"PK\3\4", "looks like a zip archive"),
        (b"\x40\0\0\0\0\0\0\0{}", "looks like a safetensors file"),
        (b"tjgg", "looks like a GGML file from before GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\nsize 1\n", "git lfs pull"),
        (b"GGUF\0\0\0\3", "convert its byte order first"),
        (gguf([], TWO)[:-1], "the download looks truncated"),
        (gguf([ARCH, ("x", "str", "y" * 99)])[:100], "the download looks truncated"),
        (gguf([], [Tensor("a", type=43)]), "a newer ckconv may know it"),
    ],
    ids=["html", "zip", "safetensors", "ggml", "lfs", "endian", "extent", "string", "type"],
)
def test_hints(write, data, hint):
    assert hint in refusal(write(data)).hint


def test_offsets_point_at_the_field(write):
    assert refusal(write(gguf([("a", "u8", 1), (b"\xff", "u8", 1)]))).offset == START + 14
    assert refusal(write(gguf([raw_pair("x", 77, b"")]))).offset == START + 9
    assert refusal(write(gguf([raw_pair("x", 9, struct.pack("<IQ", 7, 2) + b"\0\2")]))).offset == START + 9 + 4 + 12 + 1
    assert refusal(write(gguf([("a", "u8", 1)], [Tensor("t", type=4)]))).offset == START + 14


def test_faults_of_one_kind_are_listed_up_to_ten_and_counted(write):
    error = refusal(write(gguf([], [Tensor(f"t{n}", (33,), Q8_0) for n in range(14)])))
    assert error.message == "tensor 't0' is Q8_0 with rows of 33; blocks hold 32"
    assert error.tensor == "t0"
    assert error.details[0] == "tensor 't1' is Q8_0 with rows of 33; blocks hold 32"
    assert error.details[-1].startswith("... and ")
    assert len(error.details) in (10, 11)


def test_every_tensor_beyond_the_end_is_listed(write):
    error = refusal(write(gguf([], [Tensor("a", (64,)), Tensor("b", (64,)), Tensor("c", (64,))])[:-300]))
    assert (error.code, error.tensor, error.found - error.allowed) == ("gguf.extent", "b", 44)
    assert [detail[:10] for detail in error.details] == ["tensor 'c'"]


@pytest.mark.parametrize(
    "tensors",
    [
        [Tensor("a"), Tensor("b", offset=64), Tensor("c", offset=96), Tensor("d", offset=128)],
        [TWO[0], Tensor("b", offset=0), Tensor("c", offset=544)],
    ],
    ids=["hole", "overlap"],
)
def test_a_hole_or_an_overlap_is_reported_once(write, tensors):
    error = refusal(write(gguf([], tensors)))
    assert (error.code, error.tensor, error.details) == ("gguf.offset", "b", ())


@pytest.mark.parametrize(
    "data",
    [
        gguf([(b"\xff", "u8", 1), string("", length=1 << 50)]),
        gguf([], [Tensor(b"\xff"), Tensor("b")])[: START + 33 + 20],
    ],
    ids=["keys", "tensors"],
)
def test_the_first_fault_is_reported_even_if_reading_ends_later(write, data):
    assert refusal(write(data)).code == "gguf.name"


def test_a_long_name_is_cut_in_messages(write):
    assert len(refusal(write(gguf([("k" * 60_000, "u8", 1)] * 2))).message) < 300


@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "模型.вес", "a b", "ü"])
def test_names_of_any_script_are_read(write, name):
    assert read_gguf(write(gguf([(name, "u8", 1)], [Tensor(name)]))).tensors[0].name == name


# --- hostile input at large


def outcome(path: Path, source: ByteSource | None) -> CkconvError | None:
    """The refusal, whose text is safe to print, or ``None`` for a file whose every array decodes."""
    try:
        file = read_gguf(path, source=source)
    except CkconvError as caught:
        error = caught
    else:
        arrays = [meta.value for meta in file.metadata.values() if isinstance(meta.value, ArrayRef)]
        assert [len(array.decode()) for array in arrays] == [array.count for array in arrays]
        return None
    assert all(text.isprintable() for text in (error.message, *error.details))
    return error


@pytest.mark.parametrize("path", SOUND, ids=lambda p: p.name)
def test_a_file_cut_anywhere_in_its_header_is_refused(write, path):
    data = path.read_bytes()
    header = next(s.data_offset for s in read_gguf(path).shards if s.path == path)
    for cut in range(0, header, 997):
        assert refusal(write(data[:cut])).code.startswith("gguf.")


@pytest.mark.parametrize(
    "data",
    [
        gguf([ARCH, ("w", "arr[str]", ["a", "bc", ""]), ("f", "arr[bool]", [True, False])], TWO),
        gguf([ARCH, ("general.alignment", "u32", 8)], [Tensor("q", (32, 3), Q8_0), Tensor("h", (5,), F16)], version=1),
        gguf([("split.no", "u16", 1), ("split.count", "u16", 2), ("split.tensors.count", "i32", 2)], [Tensor("a")]),
    ],
    ids=["v3", "v1", "shard"],
)
def test_mutations_are_read_or_refused(write, data):
    rng = random.Random(20)
    fields = number_fields(data)
    refused = 0
    for _ in range(1500):
        broken = mutated(data, rng, fields)
        for source in (None, PipeSource(io.BytesIO(broken))):
            refused += outcome(write(broken), source) is not None
    assert refused > 1500


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_after_the_magic(data):
    source = PipeSource(io.BytesIO(b"GGUF\3\0\0\0" + data))
    error = outcome(Path("-"), source)
    assert error is None or error.code.startswith("gguf.")
