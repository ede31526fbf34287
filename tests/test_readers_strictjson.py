from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ckconv.errors import InputError
from ckconv.io import json as strictjson
from ckconv.io.json import Document, parse_object, read_object

HEADER = Document("header", "st.header-json", "st.duplicate-key", 1000, entry="tensor")
WIDE = Document("header", "st.header-json", "st.duplicate-key", 100_000_000, entry="tensor")
PATH = Path("model.safetensors")


def fault(data: bytes, document: Document = HEADER) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_object(data, document, PATH, offset=8)
    assert caught.value.exit_code == 3
    assert caught.value.path == "model.safetensors"
    return caught.value


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"{}", {}),
        (b' {"a": [1, -2, 0.5, "x", null, true]}\n', {"a": [1, -2, 0.5, "x", None, True]}),
        (b'{"\\u00e4\\ud83d\\ude00": "\xc3\xa4"}', {"ä😀": "ä"}),
        (b'{"\\\\ud800": 1}', {"\\ud800": 1}),
        (b'{"a": 1000000000000000019884624838656}', {"a": 10**30 + 19884624838656}),
        (b'{"a": {"x": 1}, "b": {"x": 1}}', {"a": {"x": 1}, "b": {"x": 1}}),
    ],
)
def test_sound_documents(data: bytes, value: Any) -> None:
    assert parse_object(data, HEADER, PATH) == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "header is not a JSON object: column 1: expecting value"),
        (b"{x", "header is not a JSON object: column 2: expecting property name"),
        (b'{"a":\n1,\n}', "header is not a JSON object: line "),
        (b"[]", "header is not a JSON object: it is a list"),
        (b"7", "header is not a JSON object: it is a number"),
        (b"null", "header is not a JSON object: it is null"),
        (b"{}x", "column 3: extra data"),
        (b"{}\0", "column 3: extra data"),
        (b'{"a": 01}', "column 8"),
        (b'{"a": "\n"}', "invalid control character"),
        (b"\xef\xbb\xbf{}", "column 1"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": 1e999}', "'1e999' is larger than any float64"),
        (b'{"a": ' + b"9" * 200 + b"}", "a number of 200 digits; 128 are allowed"),
        (b'{"a": 0.' + b"9" * 200 + b"}", "a number of 202 digits; 128 are allowed"),
        (b'{"\xff": 1}', "header is not UTF-8: byte 0xff at column 3"),
        (b'{"\\ud800": 1}', "half of a surrogate pair at column 3"),
        (b'{"\\udc00\\ud800": 1}', "half of a surrogate pair at column 3"),
        (b'{"\\ud83d\\ude00\\ude00": 1}', "half of a surrogate pair at column 15"),
        (b'{"\\ud83d\\\\ude00": 1}', "half of a surrogate pair at column 3"),
        (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}", "header is nested 65 deep; 64 levels are allowed"),
        (b"{" + b" " * 1000, "header is larger than 1,000 bytes"),
    ],
)
def test_refused_documents(data: bytes, message: str) -> None:
    error = fault(data)
    assert error.code == "st.header-json"
    assert message in error.message


def test_offset_is_absolute_and_in_bytes() -> None:
    assert fault('{"ä": x}'.encode()).offset == 8 + len('{"ä": '.encode())


def test_depth_of_64_is_read() -> None:
    assert parse_object(b'{"a":' + b"[" * 63 + b"]" * 63 + b"}", HEADER, PATH)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_a_depth_bomb_is_refused_before_parsing(opening: bytes) -> None:
    assert "levels are allowed" in fault(opening * 100_000, WIDE).message


@pytest.mark.parametrize("inside", ["[", "{", '\\"[', "\\\\", '\\\\\\"{', '""'.replace('"', '\\"') + "]["])
def test_brackets_in_strings_do_not_nest(inside: str) -> None:
    text = '{"' + inside * 200 + '": ["' + inside * 200 + '"]}'
    assert parse_object(text.encode(), WIDE, PATH) == json.loads(text)


def test_strings_that_end_in_backslashes_hide_no_depth() -> None:
    assert "nested" in fault(b'{"a\\\\": ' + b"[" * 100 + b'"\\\\"' + b"]" * 100 + b"}").message


@given(st.recursive(st.text(alphabet='[]{}"\\ab'), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_depth_is_that_of_the_value(value: Any) -> None:
    def depth(v: Any) -> int:
        if isinstance(v, (dict, list)):
            return 1 + max(map(depth, v.values() if isinstance(v, dict) else v), default=0)
        return 0

    assert strictjson._depth(json.dumps(value).encode()) == depth(value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1, "a": 1}', "tensor 'a' appears twice in the header"),
        (b'{"a": 1, "b": 2, "a": 1, "a": 3}', "tensor 'a' appears 3 times in the header"),
        (b'{"\\u0061": 1, "a": 1}', "tensor 'a' appears twice in the header"),
        (b'{"a": {"x": 1, "x": 1}}', "key 'x' appears twice in one object of the header"),
        (b'{"a": [[{"x": 1, "x": 2}]], "b": 1}', "key 'x' appears twice in one object of the header"),
        (b'{"\\u001b[2J": 1, "\\u001b[2J": 1}', "tensor '\\x1b[2J' appears twice"),
    ],
)
def test_duplicate_keys(data: bytes, message: str) -> None:
    error = fault(data)
    assert error.code == "st.duplicate-key"
    assert message in error.message


def test_every_duplicate_is_listed_up_to_the_limit() -> None:
    keys = [f'"{n}": 0' for n in range(20)]
    error = fault(("{" + ", ".join(keys * 2) + "}").encode())
    assert error.message == "tensor '0' appears twice in the header"
    assert error.details[0] == "tensor '1' appears twice in the header"
    assert error.details[-1] == "... and 9 more"
    assert len(error.details) == 11


def test_breadth_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strictjson, "MAX_STRUCTURE", 9)
    assert parse_object(b'{"a": [1,2]}', HEADER, PATH) == {"a": [1, 2]}
    error = fault(b'{"a": [1,2,3,4]}')
    assert error.message == "header has 10 brackets, quotes, commas and colons; 9 are allowed"
    assert (error.found, error.allowed) == (10, 9)


@pytest.mark.parametrize("unit", [b"[],", b'"",', b'\\"', b"\\", b'"', b"1,", b"{}"])
def test_hostile_megabytes_are_refused_quickly(unit: bytes) -> None:
    start = time.perf_counter()
    fault(b'{"a":[' + unit * (2_000_000 // len(unit)), WIDE)
    assert time.perf_counter() - start < 10


def test_read_object_bounds_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"{}" + b" " * 999)
    with pytest.raises(InputError, match=r"header has 1,001 bytes; at most 1,000 are read"):
        read_object(path, HEADER)
    path.write_bytes(b'{"a": 1}')
    assert read_object(path, HEADER) == {"a": 1}


def test_read_object_of_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_object(tmp_path / "none.json", HEADER)
    assert caught.value.code == "input.missing"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\x1b", "'a\\x1b'"),
        (True, "true"),
        (None, "null"),
        (-2, "-2"),
        (1.5, "1.5"),
        ([1], "a list"),
        ({}, "an object"),
        (10**50, "a number of more than 40 digits"),
    ],
)
def test_shown(value: object, text: str) -> None:
    assert strictjson.shown(value) == text
