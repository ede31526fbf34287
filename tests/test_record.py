"""Source records: archives that any unpacker opens, and hostile ones that are refused with a sentence."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ckconv.errors import InputError
from ckconv.io.files import open_source
from ckconv.record.read import Member, PartialSource, Record, SourceFile, archive, members_of, open_record


def packed(members: dict[str, bytes]) -> bytes:
    made = archive(Member(name, zlib.crc32(data), len(data)) for name, data in members.items())
    parts = [header + members[m.name] for header, m in zip(made.headers, made.members, strict=True)]
    data = b"".join(parts) + made.directory
    assert len(data) == made.nbytes
    return data


def unpackable(members: dict[str, bytes]) -> bytes:
    """The same archive as Python's zipfile writes it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in sorted(members.items()):
            info = zipfile.ZipInfo(name)
            info.create_version = info.extract_version = 10
            info.create_system, info.external_attr = 3, 0o100644 << 16
            archive.writestr(info, data)
    return made.getvalue()


def opened(path: Path, data: bytes) -> Any:
    path.write_bytes(data)
    with open_source(path) as source:
        return members_of(source, "record.zip")


NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=20)


@settings(suppress_health_check=[HealthCheck.too_slow])  # of the table of all characters, the first time
@given(st.dictionaries(NAMES, st.binary(max_size=60), min_size=1, max_size=6))
def test_an_archive_says_the_same_to_us_and_to_another_unpacker(members: dict[str, bytes]) -> None:
    data = packed(members)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == {
            name.split("\0")[0]: content for name, content in members.items()
        }
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o100644}


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    members = {"b/ü": b"x" * 300, "a": b"", "z": b"last"}
    data = unpackable(members)
    found = opened(tmp_path / "z.zip", data)
    assert {name: data[s.offset : s.offset + s.member.nbytes] for name, s in found.items()} == members
    assert packed(members) == packed(dict(reversed(members.items()))) == data, "in whatever order they come"


def test_an_archive_cut_anywhere_or_with_any_byte_changed_is_refused(tmp_path: Path) -> None:
    members = {"a": b"content", "b": b"more"}
    data = unpackable(members)
    contents = [data.index(content) + n for content in members.values() for n in range(len(content))]
    for end in range(len(data)):
        with pytest.raises(InputError, match=r"record\.zip"):
            opened(tmp_path / "z.zip", data[:end])
    for at in set(range(len(data))) - set(contents):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(InputError, match=r"record\.zip"):
            opened(tmp_path / "z.zip", bytes(flipped))


@pytest.mark.parametrize("form", ["compressed", "dated", "doubled", "unsorted", "prefixed", "commented"])
def test_other_forms_of_an_archive_are_refused(form: str, tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED if form == "compressed" else zipfile.ZIP_STORED) as archive:
        for name in {"doubled": "aa", "unsorted": "ba"}.get(form, "ab"):
            date = (1980, 1, 1, 0, 0, 0) if form != "dated" else (2020, 2, 2, 2, 2, 2)
            if form == "doubled" and name in archive.namelist():
                with pytest.warns(UserWarning, match="Duplicate"):
                    archive.writestr(zipfile.ZipInfo(name, date), bytes(100_000))
            else:
                archive.writestr(zipfile.ZipInfo(name, date), bytes(100_000))
        archive.comment = b"hello" if form == "commented" else b""
    data = b"#!/bin/sh\n" * (form == "prefixed") + made.getvalue()
    with pytest.raises(InputError) as caught:
        opened(tmp_path / "z.zip", data)
    assert caught.value.code == "record.zip"
    if form == "doubled":
        assert "member 'a' is there twice" in str(caught.value)


# --- record.json

HEAD, TAIL = b"header of a file", b"tail"


def document() -> dict[str, Any]:
    """A file of 100 bytes of which the first 16 and the last 4 are kept, and a side file."""
    return {
        "schema": 1,
        "format": "mlx",
        "source": "m",
        "bump": {"payload_sha256": "00" * 32, "rope_layout": "split", "family": "llama"},
        "options": {},
        "left_out": [],
        "aliases": {},
        "files": [
            {
                "name": "model.safetensors",
                "size": 100,
                "tensors": True,
                "kept": [{"sha256": sha256(HEAD + TAIL).hexdigest(), "runs": [[0, 16], [96, 4]]}],
            },
            {
                "name": "config.json",
                "size": 2,
                "tensors": False,
                "kept": [{"sha256": sha256(b"{}").hexdigest(), "runs": [[0, 2]]}],
            },
        ],
    }


def contents() -> dict[str, bytes]:
    return {f"parts/{sha256(HEAD + TAIL).hexdigest()}": HEAD + TAIL, "files/config.json": b"{}"}


def write(path: Path, made: dict[str, Any] | bytes, members: dict[str, bytes] | None = None) -> Path:
    data = made if isinstance(made, bytes) else json.dumps(made).encode()
    path.write_bytes(unpackable({**(contents() if members is None else members), "record.json": data}))
    return path


def test_a_record_is_read(tmp_path: Path) -> None:
    found = open_record(write(tmp_path / "r.zip", document()))
    found.check()
    big, small = found.record.files
    assert (found.record.format, found.record.source, big.runs) == ("mlx", "m", [(0, 16), (96, 4)])
    assert [(run, found.read(at, run[1])) for run, at in found.pieces(big)] == [((0, 16), HEAD), ((96, 4), TAIL)]
    assert [(run, found.read(at, run[1])) for run, at in found.pieces(small)] == [((0, 2), b"{}")]
    assert json.loads(found.record.to_json()) == document()


Change = Callable[[dict[str, Any]], object]


def set_in(key: str, value: object, *path: object) -> Change:
    def change(made: dict[str, Any]) -> None:
        place: Any = made
        for step in path:
            place = place[step]
        place[key] = value

    return change


FILE, SIDE = ("files", 0), ("files", 1)
RUNS = ("files", 0, "kept", 0)

#: What is changed -> code, and what the sentence says.
HOSTILE: dict[str, tuple[Change, str, str]] = {
    "schema": (set_in("schema", 4), "record.json", "schema is 4, 1, 2 or 3 expected"),
    "format": (set_in("format", "exe"), "record.json", "format is 'exe'"),
    "no files": (set_in("files", []), "record.files", "no file holds tensors"),
    "files no list": (set_in("files", {}), "record.json", "files is an object"),
    "digest": (set_in("payload_sha256", "0G" * 32, "bump"), "record.json", "is not a SHA-256"),
    "digest in capitals": (set_in("sha256", "AB" * 32, *RUNS), "record.json", "is not a SHA-256"),
    "left out": (set_in("left_out", [1]), "record.json", "must name tensors"),
    "aliases": (set_in("aliases", {"a": 1}), "record.json", "must name tensors"),
    "out of the directory": (set_in("name", "../m.gguf", *FILE), "record.files", "not a plain file name"),
    "absolute": (set_in("name", "/etc/passwd", *FILE), "record.files", "not a plain file name"),
    "backslash": (set_in("name", "a\\b", *FILE), "record.files", "not a plain file name"),
    "dots": (set_in("name", "..", *FILE), "record.files", "not a plain file name"),
    "control": (set_in("name", "a\nb", *FILE), "record.files", "not a plain file name"),
    "too long a name": (set_in("name", "x" * 300, *FILE), "record.files", "not a plain file name"),
    "source": (set_in("source", "a/b", *()), "record.files", "not a plain file name"),
    "hidden": (set_in("name", ".bashrc", *FILE), "record.files", "not a plain file name"),
    "no side file of a model": (set_in("name", "Makefile", *SIDE), "record.files", "does not belong to a model in mlx"),
    "a side file of a GGUF": (set_in("format", "gguf"), "record.files", "does not belong to a model in gguf"),
    "a file that is a directory": (
        set_in("name", "model.safetensors/config.json", *SIDE),
        "record.files",
        "'model.safetensors' is a file and a directory",
    ),
    "one name twice": (set_in("name", "config.json", *FILE), "record.files", "'config.json' is listed twice"),
    "negative size": (set_in("size", -1, *FILE), "record.files", "-1 bytes"),
    "size beyond any file": (set_in("size", 1 << 70, *FILE), "record.files", "bytes"),
    "size true": (set_in("size", True, *FILE), "record.json", "size is true"),
    "size a fraction": (set_in("size", 1.5, *FILE), "record.json", "size is 1.5"),
    "runs that overlap": (set_in("runs", [[0, 16], [15, 4]], *RUNS), "record.files", "overlaps another"),
    "a run beyond the end": (set_in("runs", [[0, 16], [97, 4]], *RUNS), "record.files", "not in its 100 bytes"),
    "a run before the start": (set_in("runs", [[-1, 20]], *RUNS), "record.files", "overlaps another or is not"),
    "an empty run": (set_in("runs", [[0, 20], [50, 0]], *RUNS), "record.files", "overlaps another or is not"),
    "no run": (set_in("runs", [[0]], *RUNS), "record.files", "[offset, bytes] expected"),
    "more runs than bytes": (set_in("runs", [[0, 17], [96, 4]], *RUNS), "record.content", "20 bytes, 21 are listed"),
    "another digest": (set_in("sha256", "00" * 32, *RUNS), "record.content", "is missing"),
    "a side file in part": (set_in("size", 3, *SIDE), "record.files", "is not kept whole"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_document_is_refused(name: str, tmp_path: Path) -> None:
    change, code, sentence = HOSTILE[name]
    made = document()
    change(made)
    with pytest.raises(InputError) as caught:
        open_record(write(tmp_path / "r.zip", made)).check()
    assert (caught.value.code, caught.value.exit_code) == (code, 3)
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message


def test_members_that_are_missing_or_further_are_refused(tmp_path: Path) -> None:
    for members, sentence in (
        ({"files/config.json": b"{}"}, "is missing"),
        ({**contents(), "files/../../x": b"slip"}, "'files/../../x' is listed nowhere"),
        ({**contents(), "files/config.json": b"[]"}, "does not have the SHA-256"),
        ({**contents(), "files/config.json": b"{ }"}, "has 3 bytes, 2 are listed"),
    ):
        with pytest.raises(InputError, match=r"record\.content") as caught:
            open_record(write(tmp_path / "r.zip", document(), members)).check()
        assert sentence in caught.value.message
    path = tmp_path / "empty.zip"
    path.write_bytes(unpackable(contents()))
    with pytest.raises(InputError, match=r"holds no record\.json"):
        open_record(path)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{", b'{"schema": 1, "schema": 1}', b'{"schema": NaN}', b"\xff", b'{"a":' * 5000],
    ids=["nothing", "a list", "cut", "a key twice", "NaN", "no UTF-8", "nested"],
)
def test_what_is_no_document_is_refused(text: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_record(write(tmp_path / "r.zip", text))
    assert caught.value.code == "record.json"


def test_a_document_that_was_changed_in_place_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "r.zip", document())
    path.write_bytes(path.read_bytes().replace(b'"split"', b'"SPLIT"'))
    with pytest.raises(InputError, match=r"record\.zip.*CRC-32"):
        open_record(path)


def test_a_record_larger_than_any_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "r.zip", document())
    with path.open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="a record has at most"):
        open_record(path)


# --- files of which only runs are kept


@given(st.data())
def test_a_kept_source_is_its_runs_and_zeros(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, 60), max_size=8)))
    runs = [(a, b - a) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    whole = bytearray(64)
    for offset, nbytes in runs:
        whole[offset : offset + nbytes] = bytes((offset + n) % 255 + 1 for n in range(nbytes))
    elsewhere, pieces = bytearray(b"..."), []
    for offset, nbytes in runs:
        pieces.append(((offset, nbytes), len(elsewhere)))
        elsewhere += whole[offset : offset + nbytes] + b"..."
    source = PartialSource(Path("x"), 64, pieces, lambda at, n: bytes(elsewhere[at : at + n]))
    for offset in range(0, 70, 3):
        for nbytes in (0, 1, 7, 64, 1 << 40):
            assert source.read_at(offset, nbytes) == bytes(whole[offset : offset + nbytes])


def test_the_size_of_a_document_does_not_depend_on_the_digest() -> None:
    made = [Record("gguf", "m", bytes([n] * 32), "", "", {}, (), {}, (SourceFile("m", 0, True, ()),)) for n in (0, 255)]
    assert len(made[0].to_json()) == len(made[1].to_json())
