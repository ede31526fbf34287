"""Digests of what a file holds, and that a write which went wrong is found before the output has its name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import FIXTURES
from hypothesis import given, settings
from hypothesis import strategies as st

from ckconv.api import convert
from ckconv.core.tensors import Checksum, Extent
from ckconv.engine import pipeline as stream
from ckconv.engine import reread
from ckconv.engine.pipeline import Pipeline
from ckconv.engine.reread import ChecksumThread, Reread
from ckconv.errors import VerifyError
from ckconv.options import Options

MODEL = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"


@pytest.fixture
def out(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@given(
    parts=st.lists(st.one_of(st.binary(max_size=300), st.integers(0, 200_000)), max_size=8),
    offset=st.integers(0, 200),
    at_once=st.sampled_from((1, 100, 4096)),
)
@settings(max_examples=60, deadline=None)
def test_bytes_and_holes_are_hashed_as_the_file_has_them(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes | int], offset: int, at_once: int
) -> None:
    path = tmp_path_factory.mktemp("reread") / "out"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reread, "HASHED_AT_ONCE", max(at_once, 1 << 10))
        behind = Reread(fd, offset)
        with Pipeline(fd, offset=offset, buffer_bytes=256, followers=[behind]) as pipeline:
            for part in parts:
                pipeline.zeros(part) if isinstance(part, int) else pipeline.put(part)
            pipeline.finish()
    os.close(fd)

    content = path.read_bytes()[offset:]
    assert behind.nbytes == len(content)
    assert behind.digest == hashlib.sha256(content).digest()


def test_it_is_the_file_that_is_hashed(out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(stream.os, "pwrite", lambda fd, data, at: write(fd, bytes(len(data)), at))
    behind = Reread(out, 0)
    with Pipeline(out, followers=[behind]) as pipeline:
        pipeline.put(b"abc")
        digest = pipeline.finish()

    assert digest == hashlib.sha256(b"abc").digest()
    assert behind.digest == hashlib.sha256(bytes(3)).digest()


def test_after_a_failure_its_thread_is_gone(out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reread, "HASHED_AT_ONCE", 1 << 10)
    behind = Reread(out, 0)
    pipeline = Pipeline(out, buffer_bytes=256, followers=[behind])
    pipeline.put(bytes(1 << 16))
    pipeline.abort()
    pipeline.abort()

    assert behind.nbytes <= 1 << 16


def test_a_known_digest_is_taken_for_that_extent_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    extent, other = Extent(path, 0, 3), Extent(path, 0, 6)
    wrong = hashlib.sha256(b"xyz").digest()

    known = ChecksumThread((Checksum("payload", extent, hashlib.sha256(b"abc").digest()),), {extent: wrong})
    unknown = ChecksumThread((Checksum("payload", extent, hashlib.sha256(b"abc").digest()),), {other: wrong})

    found = known.result()
    assert found is not None
    assert found[1] == wrong
    assert unknown.result() is None


def _first(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def _last(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize(("spoil", "code"), [(_first, "verify.file"), (_last, "bump.checksum")])
def test_a_write_that_went_wrong_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, spoil: Callable[[bytes], bytes], code: str
) -> None:
    write = os.pwrite
    calls = []

    def spoilt(fd: int, data: memoryview, at: int) -> int:
        calls.append(at)
        return write(fd, spoil(bytes(data)) if len(calls) == 1 else data, at)

    monkeypatch.setattr(stream.os, "pwrite", spoilt)
    with pytest.raises(VerifyError) as info:
        convert(MODEL, tmp_path / "out.bump", options=Options(bump_version=version))

    assert info.value.code == code
    assert info.value.path == str(tmp_path / "out.bump")
    assert not list(tmp_path.iterdir())
