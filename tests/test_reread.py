"""Digests of what a file holds, and that a write which went wrong is found before the output has its name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FIXTURES
from hypothesis import given, settings
from hypothesis import strategies as st

from ckconv.api import convert
from ckconv.core.tensors import Extent
from ckconv.engine import readonce, store
from ckconv.engine.following import LEAD, Following, Growth
from ckconv.engine.readonce import RUN_BYTES, ReadOnce
from ckconv.errors import VerifyError
from ckconv.io.ahead import at_once
from ckconv.options import Options

MODEL = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"


@given(
    content=st.binary(max_size=5000),
    offset=st.integers(0, 300),
    asked=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 900)), max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_what_is_looked_at_in_any_order_is_what_is_there_and_hashed_once(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, offset: int, asked: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("readonce") / "file"
    path.write_bytes(bytes(offset) + content + b"behind")
    whole = path.read_bytes()
    extent = Extent(path, offset, len(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readonce, "RUN_BYTES", 256)
        with ReadOnce(hashed=[extent]) as files:
            for at, nbytes in asked:
                found = bytearray(len(whole[at : at + nbytes]))
                files.read_into(path, at, found)
                assert found == whole[at : at + nbytes]
            assert files.digest(extent) == hashlib.sha256(content).digest()


@pytest.mark.needs("posix")
def test_a_file_that_is_looked_at_in_order_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 << 20))
    read, calls = os.preadv, []
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: calls.append(at) or read(fd, into, at))
    extent = Extent(path, 100, (3 << 20) - 100)
    with ReadOnce(hashed=[extent]) as files:
        assert files.are_zero([(path, 200, (3 << 20) - 200)])
        assert files.digest(extent) == hashlib.sha256(bytes(extent.nbytes)).digest()
    assert calls == list(range(100, 3 << 20, RUN_BYTES))


def test_bytes_are_waited_for_and_a_writer_does_not_get_far_ahead(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = bytes(range(256)) * (3 * LEAD // 256)
    path.write_bytes(bytes(len(content)))
    extent = Extent(path, 0, len(content))
    growth = Growth([extent])

    def look() -> bytes:
        with ReadOnce({}, growth, hashed=[extent]) as files:
            return files.digest(extent)

    with path.open("r+b", buffering=0) as file, Following(growth, look) as following:
        for at in range(0, len(content), 1 << 20):
            file.write(content[at : at + (1 << 20)])
            growth.tell(path, min(len(content), at + (1 << 20)))
        assert following.result() == hashlib.sha256(content).digest()


def test_who_follows_a_writer_that_gave_up_ends(tmp_path: Path) -> None:
    growth = Growth([Extent(tmp_path / "file", 0, 10)])
    with pytest.raises(KeyError), Following(growth, lambda: growth.wait_for(tmp_path / "file", 5)):
        raise KeyError


def test_a_follower_that_fails_keeps_no_writer_waiting(tmp_path: Path) -> None:
    growth = Growth([Extent(tmp_path / "file", 0, 10 * LEAD)])

    def fail() -> None:
        growth.wait_for(tmp_path / "file", 5)
        raise KeyError("x")

    with Following(growth, fail) as following:
        growth.tell(tmp_path / "file", 10 * LEAD)
        with pytest.raises(KeyError):
            following.result()


def _first(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def _last(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize("which", [1, 2, 3, 4])
@pytest.mark.parametrize("spoil", [_first, _last])
@pytest.mark.needs("posix")
def test_a_write_that_went_wrong_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, which: int, spoil: Callable[[bytes], bytes]
) -> None:
    write = os.pwrite
    calls = []

    def spoilt(fd: int, data: memoryview, at: int) -> int:
        calls.append(at)
        return write(fd, spoil(bytes(data)) if len(calls) == which else data, at)

    monkeypatch.setattr(store.os, "pwrite", spoilt)
    with pytest.raises(VerifyError) as info:
        convert(MODEL, tmp_path / "out.bump", options=Options(bump_version=version))

    assert info.value.path == str(tmp_path / "out.bump")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("jobs", [(1, 2), (2, 1)])
def test_jobs_of_another_conversion_in_this_process_change_no_digest(tmp_path: Path, jobs: tuple[int, int]) -> None:
    data = os.urandom(7 * RUN_BYTES + 5)
    extent = Extent(tmp_path / "file", 0, len(data))
    extent.path.write_bytes(data)
    before, after = jobs
    with at_once(before), ReadOnce(hashed=[extent]) as files:
        assert files.stores([extent], 0, data[: 2 * RUN_BYTES])
        with at_once(after):
            assert files.digest(extent) == hashlib.sha256(data).digest()
