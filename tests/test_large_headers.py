"""Headers that list very much: memory is a small multiple of the header, and what is read is what any parser reads."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_builder import F16, Tensor, gguf
from hypothesis import given, settings, strategies as st
from models import Model
from test_memory import COMMAND, MB, peak

from ckconv.cli.render import json_parts
from ckconv.core import tensors as made
from ckconv.errors import InputError, UnsupportedError
from ckconv.formats.safetensors import container as safetensors_header
from ckconv.formats.safetensors.container import read_safetensors
from ckconv.io.files import ByteSource
from ckconv.io.json import Document, parse_object
from ckconv.plan.steps import place

MANY = 50_000


def gguf_of(path: Path, count: int) -> Path:
    """Tensors of four floats each, of an architecture that nobody knows."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    records = (
        text(f"blk.{n}.attn_q.weight") + struct.pack("<IQQIQ", 2, 2, 2, 0, n * 32) for n in range(count)
    )  # fmt: skip
    pairs = text("general.architecture") + struct.pack("<I", 8) + text("unheard-of")
    header = b"GGUF" + struct.pack("<IQQ", 3, count, 1) + pairs + b"".join(records)
    header += bytes(-len(header) % 32)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + count * 32)
    return path


def entry(n: int) -> str:
    place = f'"data_offsets":[{16 * n},{16 * n + 16}]'
    return f'"model.layers.{n}.self_attn.q_proj.weight":{{"dtype":"F32","shape":[2,2],{place}}}'


def of(path: Path, count: int) -> Path:
    if path.suffix == ".gguf":
        return gguf_of(path, count)
    return safetensors_of(path, f"{{{','.join(map(entry, range(count)))}}}".encode(), 16 * count)


def safetensors_of(path: Path, header: bytes, nbytes: int = 0) -> Path:
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + nbytes)
    return path


def refused(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        read_safetensors(path)
    return caught.value


@pytest.mark.parametrize("flags", [[], ["--json"], ["--tensors", "blk.1.*"]])
@pytest.mark.parametrize("format", ["gguf", "safetensors"])
def test_many_tensors_take_little_memory_each(tmp_path: Path, format: str, flags: list[str]) -> None:
    path = tmp_path / f"m.{format}"
    of(path, MANY)
    flags = [flag.replace("blk", "model.layers") if format == "safetensors" else flag for flag in flags]
    assert peak(COMMAND, "inspect", path, *flags) < 49 * MB


def test_a_conversion_takes_a_few_kilobytes_for_each_tensor(tmp_path: Path) -> None:
    few, many = (gguf_of(tmp_path / f"{count}.gguf", count) for count in (1_000, 11_000))
    for command in (("convert", "{}", "{}.out.gguf"), ("verify", "{}", "{}.out.gguf")):
        less, more = (peak(COMMAND, *(word.format(path) for word in command)) for path in (few, many))
        assert more - less < 10_000 * 3_000


@pytest.mark.parametrize(
    ("header", "code", "message"),
    [
        (
            b"{%s}" % b",".join(b'"k%d":0' % n for n in range(60_000)),
            "st.fields",
            "tensor 'k0' is a number; an object",
        ),
        (
            b'{"a":{"dtype":"U8","shape":[%s1],"data_offsets":[0,1]}}' % (b"1," * 70),
            "st.fields",
            "tensor 'a': shape has 71 dimensions; 64 are allowed",
        ),
        (
            b'{"a":{"dtype":"U8","shape":[%s1],"data_offsets":[0,1]}}' % (b"1," * 5_000_000),
            "st.fields",
            "the entry of a tensor has more than 65,536 bytes",
        ),
        (b'{"a":[%s0]}' % (b"[]," * 4_000_000), "st.fields", "the entry of a tensor has more than 65,536 bytes"),
        (b'{"a":"%s"}' % (b"\\" * 4_000_000), "st.fields", "the entry of a tensor has more than 65,536 bytes"),
        (b'{"__metadata__":{"a":"%s"}}' % (b"x" * (17 << 20)), "st.metadata", "__metadata__ has more than 16,777,216"),
    ],
)
def test_hostile_headers_are_refused_within_a_small_multiple_of_their_size(
    tmp_path: Path, header: bytes, code: str, message: str
) -> None:
    path = safetensors_of(tmp_path / "m.safetensors", header)
    error = refused(path)
    assert (error.code, error.exit_code) == (code, 3)
    assert message in error.message
    program = COMMAND.replace("sys.exit(status)", "sys.exit(status != 3)")
    assert peak(program, "inspect", path) < 60 * MB + 4 * len(header)


@pytest.mark.parametrize(
    ("flags", "lengths"), [([], range(100_000, 2_000_000)), (["--json"], range(4_000_000, 30_000_000))]
)
def test_a_text_of_four_megabytes_takes_a_small_multiple_of_them(
    tmp_path: Path, flags: list[str], lengths: range, ckconv: Callable[..., Any]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([("general.name", "str", "m"), ("a", "str", "\0" * 4_000_000)], [Tensor("w")]))
    assert peak(COMMAND, "inspect", path, *flags) < 60 * MB + 12 * 4_000_000
    assert len(ckconv("inspect", path, *flags).out) in lengths
    assert flags or "\\x00... 4,000,000 characters in all" in ckconv("inspect", path, *flags).out


@pytest.mark.parametrize(("format", "start"), [("gguf", 16_000), ("safetensors", 12_000)])
def test_a_million_tensors_are_converted_in_600_megabytes(tmp_path: Path, format: str, start: int) -> None:
    """Of two conversions without what small models keep: what each tensor takes, and the rest once."""
    settings = """
import ckconv.conversion.pipeline as pipeline
import ckconv.core.tensors as made
import ckconv.formats.safetensors.write as reference
made.MAX_OBJECTS = reference._MAX_HEADER = 0
pipeline.ALONE = -1
"""
    few, many = (of(tmp_path / f"{count}.{format}", count) for count in (start, 3 * start))
    for command in (("convert", "{}", "{}.out", "--to", format), ("verify", "{}.out", "{}")):
        less, more = (peak(settings + COMMAND, *(word.format(path) for word in command)) for path in (few, many))
        each = (more - less) / (2 * start)
        assert less + each * (1_000_000 - start) < 600 * MB


def test_tensors_that_are_not_kept_are_written_and_compared_as_those_that_are(
    tmp_path: Path, ckconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(f"layers.{n}.{what}" for n in range(12) for what in ("q.weight", "norm.weight", "steps"))
    model = [Tensor(name, (2, 8), F16) if name.endswith("q.weight") else Tensor(name, (8,)) for name in names]
    source = tmp_path / "m.gguf"
    source.write_bytes(gguf([("general.architecture", "str", "unheard-of")], model))
    for kept in (1 << 17, 0):
        monkeypatch.setattr(made, "MAX_OBJECTS", kept)
        where = tmp_path / str(kept)
        where.mkdir()
        for target in ("m.gguf", "m/ --to gguf --max-shard-size 200", "a/ --to safetensors --names gguf"):
            assert ckconv("convert", source, *f"{where}/{target}".split()).code == 0
        copy = f"{where}/b/ --to safetensors --max-shard-size 200".split()
        assert ckconv("convert", where / "a", *copy).code == 0
        assert ckconv("convert", f"{where}/b", f"{where}/c/", "--to", "safetensors", "--drop", "*norm*").code == 0
        assert ckconv("diff", where / "a", where / "b").code == 0
        assert ckconv("verify", where / "m.gguf", source).code == 0
    trees = [
        {p.relative_to(tmp_path / d): p.read_bytes() for p in sorted((tmp_path / d).rglob("*.*"))}
        for d in ("131072", "0")
    ]
    assert trees[0] == trees[1]
    assert len(trees[0]) > 6


def test_the_item_that_was_asked_for_last_is_not_made_again() -> None:
    asked = list[int]()
    inner = made.LazySequence(3, lambda at: asked.append(at) or f"{at}")
    outer = made.LazySequence(3, lambda at: inner[at] + inner[at])
    assert [outer[0], outer[0], outer[2], outer[-1], outer[0], *outer[1:]] == ["00", "00", "22", "22", "00", "11", "22"]
    assert asked == [0, 2, 0, 1, 2]
    with pytest.raises(IndexError):
        outer[3]


def test_a_million_and_one_tensors_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ckconv.formats.safetensors.container as reader

    monkeypatch.setattr(reader, "MAX_TENSORS", 4)
    header = f'{{"__metadata__":{{}},{",".join(map(entry, range(9)))}}}'.encode()
    error = refused(safetensors_of(tmp_path / "m.safetensors", header, 16 * 9))
    assert (error.code, error.message) == ("st.count", "the header lists 9 tensors; 4 are allowed")


def test_empty_lists_without_end_are_no_document() -> None:
    document = Document("configuration", "model.config", "model.config", 64 << 20)
    with pytest.raises(InputError, match=r"configuration has 333,334 lists and objects; 225,001 are allowed"):
        parse_object(b'{"a":[' + b",".join([b"[]"] * 333_332) + b"]" + b" " * 5 + b"}", document, Path("config.json"))
    pairs = json.dumps({"merges": [["a", "b"]] * 200_000}, separators=(",", ":")).encode()
    assert len(parse_object(pairs, document, Path("tokenizer.json"))["merges"]) == 200_000


def test_65535_missing_shards_are_one_error(tmp_path: Path, ckconv: Callable[..., Any]) -> None:
    keys = {"split.no": 0, "split.count": 65535, "split.tensors.count": 20}
    Model(extra_keys=keys).write(tmp_path / "m-00001-of-65535.gguf")
    found = ckconv("inspect", tmp_path / "m-00001-of-65535.gguf")
    assert found.code == 3
    assert "shard 2 of 65535 is missing: expected m-00002-of-65535.gguf" in found.err
    assert "... and 65,523 more" in found.err


class Memory(ByteSource):
    def __init__(self, data: bytes) -> None:
        self.path, self.size, self._data = Path("m"), len(data), data

    def read_at(self, offset: int, nbytes: int) -> bytes:
        return self._data[offset : offset + nbytes]


SPACE = st.sampled_from(["", "", " ", "\n\t ", "\r"])
NAME = st.text(alphabet='ab"\\{}[],: é\u2028\t', min_size=1, max_size=6)


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, dict[str, Any]]:
    """A sound header, its fields in any order and any space between its tokens, and what it says."""
    names = draw(st.lists(NAME.filter(lambda name: name != "__metadata__"), min_size=1, max_size=6, unique=True))
    said: dict[str, Any] = {}
    at = 0
    for name in names:
        shape = draw(st.lists(st.integers(0, 3), max_size=4))
        nbytes = 1
        for extent in shape:
            nbytes *= extent
        fields = [("dtype", "U8"), ("shape", shape), ("data_offsets", [at, at + nbytes])]
        said[name] = dict(draw(st.permutations(fields)) if draw(st.booleans()) else fields)
        at += nbytes
    if draw(st.booleans()):
        said = {"__metadata__": draw(st.dictionaries(NAME, NAME, max_size=3)), **said}
    text = json.dumps(said, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    return (text + draw(SPACE)).encode(), said


@settings(deadline=None, max_examples=200)
@given(headers(), st.integers(1, 40))
def test_windows_of_any_size_show_the_same_header(header: tuple[bytes, dict[str, Any]], window: int) -> None:
    text, said = header
    tensors = {name: fields for name, fields in said.items() if name != "__metadata__"}
    size = max(fields["data_offsets"][1] for fields in tensors.values())
    before = safetensors_header._WINDOW
    safetensors_header._WINDOW = window
    try:
        file = read_safetensors(Path("m"), source=Memory(struct.pack("<Q", len(text)) + text + bytes(size)))
    finally:
        safetensors_header._WINDOW = before
    start = 8 + len(text)
    assert dict(file.metadata) == said.get("__metadata__", {})
    assert {
        t.name: [t.dtype.name, list(t.shape), t.extent.offset - start, t.extent.offset + t.extent.nbytes - start]
        for t in file.tensors
    } == {name: ["U8", f["shape"], *f["data_offsets"]] for name, f in tensors.items()}


@settings(deadline=None, max_examples=300)
@given(headers(), st.integers(1, 40), st.data())
def test_a_broken_header_is_refused_whatever_the_window(
    header: tuple[bytes, dict[str, Any]], window: int, data: st.DataObject
) -> None:
    text, _ = header
    at = data.draw(st.integers(1, len(text) - 1))
    broken = (
        text[:at] + data.draw(st.sampled_from([b"", b'"', b",", b"{", b"}", b"\\", b"1", b"\xff"])) + text[at + 1 :]
    )
    try:
        json.loads(broken.decode())
    except (ValueError, UnicodeDecodeError):
        before = safetensors_header._WINDOW
        safetensors_header._WINDOW = window
        try:
            with pytest.raises(InputError):
                read_safetensors(Path("m"), source=Memory(struct.pack("<Q", len(broken)) + broken + bytes(1000)))
        finally:
            safetensors_header._WINDOW = before


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=10,
        ),
        min_size=1,
    )
)
def test_a_document_in_pieces_is_the_document_of_the_standard_library(document: dict[str, Any]) -> None:
    assert "".join(json_parts(document)) == json.dumps(document, indent=2) + "\n"
    streamed = {key: iter(value) if isinstance(value, list) else value for key, value in document.items()}
    assert "".join(json_parts(streamed)) == json.dumps(document, indent=2) + "\n"


def test_no_output_is_longer_than_any_file() -> None:
    assert place((1 << 63) - 1) == (1 << 63) - 1
    with pytest.raises(UnsupportedError, match=r"more than 9,223,372,036,854,775,807 bytes: no file is that long"):
        place(1 << 63)
