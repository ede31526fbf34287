"""A file so small that one thread writes, hashes and compares it: proved and given up as any other."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FIXTURES

import ckconv
from ckconv.conversion import write
from ckconv.errors import OutputError, VerifyError

SOURCE = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"

Write = Callable[[int, memoryview, int], None]


def converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writing: Callable[[Write], Write]) -> list[str]:
    """Names of what is left of a conversion whose tensors are written so."""
    monkeypatch.setattr(write, "write_all", writing(write.write_all))
    with pytest.raises((OutputError, VerifyError)) as caught:
        ckconv.convert(SOURCE, f"{tmp_path}/out.bump")
    return [caught.value.code, *(path.name for path in tmp_path.iterdir())]


def test_one_thread_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, found = write.write_all, set[int]()

    def noted(fd: int, data: memoryview, offset: int) -> None:
        found.add(threading.get_ident())
        real(fd, data, offset)

    monkeypatch.setattr(write, "write_all", noted)
    assert ckconv.convert(SOURCE, f"{tmp_path}/out.bump").verified
    assert found == {threading.get_ident()}


def test_another_byte_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def writing(real: Write) -> Write:
        return lambda fd, data, offset: real(fd, memoryview(bytes([data[0] ^ 64]) + bytes(data[1:])), offset)

    assert converted(tmp_path, monkeypatch, writing) == ["verify.tensor"]


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def writing(real: Write) -> Write:
        monkeypatch.setattr(write, "write_some", full)
        return real

    assert converted(tmp_path, monkeypatch, writing) == ["output.space"]
